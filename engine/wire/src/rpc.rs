//! ONC RPC version 2 (RFC 5531): the headers of Call and Reply, AUTH_NONE and AUTH_SYS.
//!
//! ```text
//!  Call    xid, 0, rpcvers, prog, vers, proc, credential, verifier, arguments
//!  Reply   xid, 1, 0, verifier, accept_stat, [low, high | results]
//!          xid, 1, 1, reject_stat, low, high | auth_stat
//! ```
//!
//! A credential or verifier is a flavor, a length of at most 400, and that many octets.

use crate::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError};

mod auth_sys;

pub use auth_sys::{AuthSys, Gids};

/// The version of the protocol.
pub const VERSION: u32 = 2;

/// Octets that the body of a credential or verifier may have.
pub const AUTH_BODY_LEN_MAX: u32 = 400;

/// Octets of a Call header with empty credential and verifier.
pub const CALL_HEADER_LEN_MIN: usize = 40;

/// Octets of the header of a successful Reply with an empty verifier; the results follow.
pub const REPLY_HEADER_LEN_MIN: usize = 24;

/// Returns the transaction id that an RPC message begins with, as does the header of an RPC-over-RDMA message; 0 if it is shorter.
#[inline(always)]
#[must_use]
pub fn leading_xid(octets: &[u8]) -> u32 {
    octets.first_chunk().map_or(0, |xid| u32::from_be_bytes(*xid))
}

/// Values of the second word.
mod msg_type {
    pub(super) const CALL: u32 = 0;
    pub(super) const REPLY: u32 = 1;
}

/// Values of the third word of a Reply.
mod reply_stat {
    pub(super) const MSG_ACCEPTED: u32 = 0;
    pub(super) const MSG_DENIED: u32 = 1;
}

/// Values of accept_stat.
mod accept_stat {
    pub(super) const SUCCESS: u32 = 0;
    pub(super) const PROG_UNAVAIL: u32 = 1;
    pub(super) const PROG_MISMATCH: u32 = 2;
    pub(super) const PROC_UNAVAIL: u32 = 3;
    pub(super) const GARBAGE_ARGS: u32 = 4;
    pub(super) const SYSTEM_ERR: u32 = 5;
}

/// Values of reject_stat.
mod reject_stat {
    pub(super) const RPC_MISMATCH: u32 = 0;
    pub(super) const AUTH_ERROR: u32 = 1;
}

/// Flavors of credentials and verifiers.
pub mod flavor {
    /// No authentication. The body is empty.
    pub const AUTH_NONE: u32 = 0;
    /// A user's numbers, unproved: [`super::AuthSys`].
    pub const AUTH_SYS: u32 = 1;
    /// GSS-API (RFC 2203).
    pub const RPCSEC_GSS: u32 = 6;
    /// A NULL Call that asks for TLS (RFC 9289). The body is empty.
    pub const AUTH_TLS: u32 = 7;
}

/// Why a message is not a Call, or not a Reply.
///
/// [`RpcError::Drop`] and [`RpcError::Denied`] are what a server does about it; a client drops a Reply that
/// it cannot read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RpcError {
    /// It cannot be read as far as xid and msg_type, or is of the other type: no answer (5531-d).
    Drop,
    /// It is a Call with this xid, and this is the answer (5531-a).
    Denied {
        /// The Call's xid.
        xid: u32,
        /// What to answer.
        reason: Denied,
    },
    /// It is a Call or Reply with this xid, but ends too early or has values that do not exist. A Call is
    /// answered with GARBAGE_ARGS.
    Garbage {
        /// The message's xid.
        xid: u32,
        /// What is wrong.
        cause: XdrError,
    },
}

impl core::fmt::Display for RpcError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            RpcError::Drop => f.write_str("not an RPC message of the expected type"),
            RpcError::Denied { xid, reason } => write!(f, "Call {xid:#010x} is denied: {reason:?}"),
            RpcError::Garbage { xid, cause } => write!(f, "message {xid:#010x}: {cause}"),
        }
    }
}

impl core::error::Error for RpcError {}

/// A credential or a verifier, undecoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpaqueAuth<'a> {
    /// One of [`flavor`], or any other.
    pub flavor: u32,
    /// At most [`AUTH_BODY_LEN_MAX`] octets; what they mean depends on the flavor.
    pub body: &'a [u8],
}

impl OpaqueAuth<'_> {
    /// AUTH_NONE: nothing is claimed.
    pub const NONE: OpaqueAuth<'static> = OpaqueAuth { flavor: flavor::AUTH_NONE, body: &[] };
}

impl<'a> Decode<'a> for OpaqueAuth<'a> {
    /// A chunk in the place of the body is not looked for: it ends as a chunk that belongs to no item
    /// (8166-8.2-a: credentials and verifiers are never reduced).
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<OpaqueAuth<'a>, XdrError> {
        let [flavor @ .., l0, l1, l2, l3] = reader.array::<8>()?;
        let len = u32::from_be_bytes([*l0, *l1, *l2, *l3]);
        if len > AUTH_BODY_LEN_MAX {
            return Err(XdrError::TooLong { limit: AUTH_BODY_LEN_MAX, found: len });
        }
        Ok(OpaqueAuth { flavor: u32::from_be_bytes(*flavor), body: reader.opaque_fixed(len as usize)? })
    }
}

impl Encode for OpaqueAuth<'_> {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.u32(self.flavor)?;
        writer.opaque(self.body)
    }
}

/// The header of a Call; the arguments follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallHeader<'a> {
    /// Names the Call until its Reply.
    pub xid: u32,
    /// Program number.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure of the version. 0 is NULL in every program (5531-b).
    pub procedure: u32,
    /// Who calls.
    pub credential: OpaqueAuth<'a>,
    /// Proof of who calls.
    pub verifier: OpaqueAuth<'a>,
}

impl<'a> CallHeader<'a> {
    /// Reads the header of a Call. `reader` stands at the xid before, and at the arguments after.
    ///
    /// Checks the first of 5531-a, rpcvers; the rest is the caller's.
    #[inline(always)]
    pub fn parse(reader: &mut Reader<'a>) -> Result<CallHeader<'a>, RpcError> {
        match CallHeader::parse_usual(reader) {
            Some(header) => Ok(header),
            None => CallHeader::parse_any(reader),
        }
    }

    /// Reads a header with an empty verifier, as nearly all are, with one look at its words. `None`: nothing was read, and
    /// [`CallHeader::parse`] tells what it is.
    #[inline(always)]
    #[must_use]
    pub fn parse_usual(reader: &mut Reader<'a>) -> Option<CallHeader<'a>> {
        let rest = reader.rest();
        let (head, behind) = rest.split_first_chunk::<32>()?;
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (flavor, len) = (word(24), word(28));
        if (word(4) ^ msg_type::CALL | word(8) ^ VERSION | (len % 4)) != 0 || len > AUTH_BODY_LEN_MAX {
            return None;
        }
        let (body, behind) = behind.split_at_checked(len as usize)?;
        if *behind.first_chunk::<8>()? != [0; 8] {
            return None;
        }
        let header_len = CALL_HEADER_LEN_MIN + body.len();
        // A chunk in place of the credential is an error.
        let end = reader.unreduced_position() + header_len as u64;
        if reader.reduced().first().is_some_and(|chunk| u64::from(chunk.position) < end) {
            return None;
        }
        reader.opaque_fixed(header_len).ok()?;
        Some(CallHeader {
            xid: word(0),
            program: word(12),
            version: word(16),
            procedure: word(20),
            credential: OpaqueAuth { flavor, body },
            verifier: OpaqueAuth::NONE,
        })
    }

    #[inline(never)]
    fn parse_any(reader: &mut Reader<'a>) -> Result<CallHeader<'a>, RpcError> {
        let xid = expect_type(reader, msg_type::CALL)?;
        // Alone, so that another version's Call is denied whatever its header looks like from here on.
        if garbage(xid, reader.u32())? != VERSION {
            return Err(RpcError::Denied { xid, reason: Denied::RPC_MISMATCH });
        }
        let [program @ .., v0, v1, v2, v3, p0, p1, p2, p3] = garbage(xid, reader.array::<12>())?;
        Ok(CallHeader {
            xid,
            program: u32::from_be_bytes(*program),
            version: u32::from_be_bytes([*v0, *v1, *v2, *v3]),
            procedure: u32::from_be_bytes([*p0, *p1, *p2, *p3]),
            credential: parse_auth(reader, xid, Denied::BAD_CREDENTIAL)?,
            verifier: parse_auth(reader, xid, Denied::BAD_VERIFIER)?,
        })
    }

    /// Returns the octets that [`CallHeader::emit`] writes.
    #[inline]
    #[must_use]
    pub const fn emitted_len(&self) -> usize {
        CALL_HEADER_LEN_MIN
            + self.credential.body.len().next_multiple_of(4)
            + self.verifier.body.len().next_multiple_of(4)
    }

    /// Writes the header of a Call of AUTH_NONE, [`CALL_HEADER_LEN_MIN`] octets: all at once, with one look at the room.
    #[inline(always)]
    pub fn emit_anonymous(
        writer: &mut Writer<'_>,
        xid: u32,
        program: u32,
        version: u32,
        procedure: u32,
    ) -> Result<(), Overflow> {
        let none = flavor::AUTH_NONE;
        let words = [xid, msg_type::CALL, VERSION, program, version, procedure, none, 0, none, 0];
        put_words::<10, CALL_HEADER_LEN_MIN>(writer, words)
    }

    /// Writes the header of a Call. [`Overflow`] also if a body is longer than [`AUTH_BODY_LEN_MAX`].
    #[inline]
    pub fn emit(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        let limit = AUTH_BODY_LEN_MAX as usize;
        if self.credential.body.len() > limit || self.verifier.body.len() > limit {
            return Err(Overflow);
        }
        let CallHeader { xid, program, version, procedure, credential, verifier } = *self;
        let len = credential.body.len() as u32;
        let head = [xid, msg_type::CALL, VERSION, program, version, procedure, credential.flavor, len];
        put_words::<8, 32>(writer, head)?;
        writer.opaque_fixed(credential.body)?;
        put_words::<2, 8>(writer, [verifier.flavor, verifier.body.len() as u32])?;
        writer.opaque_fixed(verifier.body)
    }
}

/// A Call of procedure 0 with nothing in it: no credential, no verifier, no arguments. Clients ask so whether a program is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NullCall {
    /// Names the Call until its Reply.
    pub xid: u32,
    /// Program number.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
}

impl NullCall {
    /// Reads a Payload stream that is such a Call and nothing else, by comparing its constant words. `None`: it is something
    /// else, which [`CallHeader::parse`] reads.
    #[inline(always)]
    #[must_use]
    pub fn parse(stream: &[u8]) -> Option<NullCall> {
        let octets: &[u8; CALL_HEADER_LEN_MIN] = stream.try_into().ok()?;
        // Pairs of words, each where a copy has put it as one: a load across two stores waits for both.
        let pair = |at: usize| {
            let (pairs, _) = octets.as_chunks::<8>();
            let both = u64::from_be_bytes(pairs[at]);
            ((both >> 32) as u32, both as u32)
        };
        let [(xid, msg_type), (rpc_version, program), (version, procedure)] = [pair(0), pair(1), pair(2)];
        let (credential, verifier) = (pair(3), pair(4));
        let others = (msg_type ^ msg_type::CALL) | (rpc_version ^ VERSION) | procedure;
        let is_null =
            others == 0 && credential == (flavor::AUTH_NONE, 0) && verifier == (flavor::AUTH_NONE, 0);
        is_null.then_some(NullCall { xid, program, version })
    }
}

/// Reads xid and msg_type; returns the xid if the type is `expected`.
#[inline]
fn expect_type(reader: &mut Reader<'_>, expected: u32) -> Result<u32, RpcError> {
    let [xid @ .., t0, t1, t2, t3] = reader.array::<8>().map_err(|_| RpcError::Drop)?;
    if u32::from_be_bytes([*t0, *t1, *t2, *t3]) != expected {
        return Err(RpcError::Drop);
    }
    Ok(u32::from_be_bytes(*xid))
}

#[inline]
fn garbage<T>(xid: u32, result: Result<T, XdrError>) -> Result<T, RpcError> {
    result.map_err(|cause| RpcError::Garbage { xid, cause })
}

/// Reads a credential or verifier of a Call. One that is too long is denied as `bad`.
#[inline]
fn parse_auth<'a>(reader: &mut Reader<'a>, xid: u32, bad: Denied) -> Result<OpaqueAuth<'a>, RpcError> {
    reader.value().map_err(|cause| match cause {
        XdrError::TooLong { .. } => RpcError::Denied { xid, reason: bad },
        cause => RpcError::Garbage { xid, cause },
    })
}

/// Reads `N` words, which are `LEN` octets.
#[inline(always)]
fn words<const N: usize, const LEN: usize>(octets: &[u8; LEN]) -> [u32; N] {
    const { assert!(4 * N == LEN, "a word is four octets") };
    let mut words = [0; N];
    for (word, octets) in words.iter_mut().zip(octets.as_chunks().0) {
        *word = u32::from_be_bytes(*octets);
    }
    words
}

/// Writes `N` words, `LEN` octets, with one check of the room.
#[inline(always)]
fn put_words<const N: usize, const LEN: usize>(
    writer: &mut Writer<'_>,
    words: [u32; N],
) -> Result<(), Overflow> {
    const { assert!(4 * N == LEN, "a word is four octets") };
    for (place, word) in writer.array::<LEN>()?.as_chunks_mut().0.iter_mut().zip(words) {
        *place = word.to_be_bytes();
    }
    Ok(())
}

/// Why the credential of a Call was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthStat(pub u32);

impl AuthStat {
    /// The credential cannot be read.
    pub const BADCRED: AuthStat = AuthStat(1);
    /// The client has to begin a new session.
    pub const REJECTEDCRED: AuthStat = AuthStat(2);
    /// The verifier cannot be read.
    pub const BADVERF: AuthStat = AuthStat(3);
    /// The verifier expired or was used before.
    pub const REJECTEDVERF: AuthStat = AuthStat(4);
    /// Not allowed with this flavor.
    pub const TOOWEAK: AuthStat = AuthStat(5);
    /// The client refuses the verifier of the Reply.
    pub const INVALIDRESP: AuthStat = AuthStat(6);
    /// No reason is given.
    pub const FAILED: AuthStat = AuthStat(7);
    /// No credentials for the user (RPCSEC_GSS).
    pub const RPCSEC_GSS_CREDPROBLEM: AuthStat = AuthStat(13);
    /// Problem with the context (RPCSEC_GSS).
    pub const RPCSEC_GSS_CTXPROBLEM: AuthStat = AuthStat(14);
}

/// Why a Call was denied, before its program was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// RPC_MISMATCH: the RPC version is not within these.
    RpcMismatch {
        /// Lowest version supported.
        low: u32,
        /// Highest version supported.
        high: u32,
    },
    /// AUTH_ERROR.
    AuthError(AuthStat),
}

impl Denied {
    /// The answer to an rpcvers other than 2.
    pub const RPC_MISMATCH: Denied = Denied::RpcMismatch { low: VERSION, high: VERSION };
    const BAD_CREDENTIAL: Denied = Denied::AuthError(AuthStat::BADCRED);
    const BAD_VERIFIER: Denied = Denied::AuthError(AuthStat::BADVERF);
}

/// What became of a Call whose sender was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// The results follow.
    Success,
    /// The program is not served here.
    ProgUnavail,
    /// The program is served, in these versions.
    ProgMismatch {
        /// Lowest version served.
        low: u32,
        /// Highest version served.
        high: u32,
    },
    /// The version has no such procedure.
    ProcUnavail,
    /// The arguments cannot be decoded.
    GarbageArgs,
    /// The server failed for reasons of its own.
    SystemErr,
}

/// What a Reply says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyBody<'a> {
    /// MSG_ACCEPTED.
    Accepted {
        /// Proof of who replies.
        verifier: OpaqueAuth<'a>,
        /// What became of the Call.
        outcome: Accepted,
    },
    /// MSG_DENIED.
    Denied(Denied),
}

/// The header of a Reply; after [`Accepted::Success`] the results follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader<'a> {
    /// The Call's xid.
    pub xid: u32,
    /// What it says.
    pub body: ReplyBody<'a>,
}

impl<'a> ReplyHeader<'a> {
    /// Makes a Reply with the verifier that goes with AUTH_NONE and AUTH_SYS: AUTH_NONE (5531-c).
    #[inline]
    #[must_use]
    pub const fn accepted(xid: u32, outcome: Accepted) -> ReplyHeader<'static> {
        ReplyHeader { xid, body: ReplyBody::Accepted { verifier: OpaqueAuth::NONE, outcome } }
    }

    /// Makes a Reply that denies the Call.
    #[inline]
    #[must_use]
    pub const fn denied(xid: u32, reason: Denied) -> ReplyHeader<'static> {
        ReplyHeader { xid, body: ReplyBody::Denied(reason) }
    }

    /// Makes the answer to a Call that [`CallHeader::parse`] refused; `None` if it must be dropped.
    #[must_use]
    pub const fn refusal(error: RpcError) -> Option<ReplyHeader<'static>> {
        match error {
            RpcError::Drop => None,
            RpcError::Denied { xid, reason } => Some(ReplyHeader::denied(xid, reason)),
            RpcError::Garbage { xid, .. } => Some(ReplyHeader::accepted(xid, Accepted::GarbageArgs)),
        }
    }

    /// Tells whether results follow the header.
    #[inline]
    #[must_use]
    pub const fn is_success(&self) -> bool {
        matches!(self.body, ReplyBody::Accepted { outcome: Accepted::Success, .. })
    }

    /// Reads the header of a Reply. `reader` stands at the xid before, and at the results after.
    #[inline]
    pub fn parse(reader: &mut Reader<'a>) -> Result<ReplyHeader<'a>, RpcError> {
        let xid = expect_type(reader, msg_type::REPLY)?;
        Ok(ReplyHeader { xid, body: garbage(xid, ReplyBody::decode(reader))? })
    }

    /// Returns the octets that [`ReplyHeader::emit`] writes.
    #[must_use]
    pub const fn emitted_len(&self) -> usize {
        match self.body {
            ReplyBody::Accepted { verifier, outcome } => {
                let range = if matches!(outcome, Accepted::ProgMismatch { .. }) { 8 } else { 0 };
                REPLY_HEADER_LEN_MIN + verifier.body.len().next_multiple_of(4) + range
            }
            ReplyBody::Denied(Denied::RpcMismatch { .. }) => 24,
            ReplyBody::Denied(Denied::AuthError(_)) => 20,
        }
    }

    /// Writes the header of a Reply. [`Overflow`] also if the verifier is longer than [`AUTH_BODY_LEN_MAX`].
    #[inline]
    pub fn emit(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        put_words::<2, 8>(writer, [self.xid, msg_type::REPLY])?;
        self.body.encode(writer)
    }
}

/// Writes the header of a successful Reply with an empty verifier, the most frequent of all.
#[inline]
pub fn emit_success(writer: &mut Writer<'_>, xid: u32) -> Result<(), Overflow> {
    let words = [xid, msg_type::REPLY, reply_stat::MSG_ACCEPTED, flavor::AUTH_NONE, 0, accept_stat::SUCCESS];
    put_words::<6, REPLY_HEADER_LEN_MIN>(writer, words)
}

/// Reads the header of a Reply if it is what [`emit_success`] writes. `false`: nothing was read; [`ReplyHeader::parse`]
/// tells what it is. Inlined always: a call would cost more than the comparisons.
#[inline(always)]
pub fn take_success(reader: &mut Reader<'_>, xid: u32) -> bool {
    let Some((found, rest)) = reader.rest().split_first_chunk() else { return false };
    // Octets against a constant, as a loop over words may stay a loop.
    u32::from_be_bytes(*found) == xid
        && rest.first_chunk() == Some(&SUCCESS)
        && reader.array::<REPLY_HEADER_LEN_MIN>().is_ok()
}

/// What follows the xid in the header that [`emit_success`] writes: all of it is 0 but the first word.
const SUCCESS: [u8; REPLY_HEADER_LEN_MIN - 4] = {
    assert!(reply_stat::MSG_ACCEPTED | flavor::AUTH_NONE | accept_stat::SUCCESS == 0);
    let mut octets = [0; REPLY_HEADER_LEN_MIN - 4];
    octets[3] = msg_type::REPLY as u8;
    octets
};

impl<'a> Decode<'a> for ReplyBody<'a> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<ReplyBody<'a>, XdrError> {
        match reader.u32()? {
            reply_stat::MSG_ACCEPTED => {
                let verifier = reader.value()?;
                let outcome = match reader.u32()? {
                    accept_stat::SUCCESS => Accepted::Success,
                    accept_stat::PROG_UNAVAIL => Accepted::ProgUnavail,
                    accept_stat::PROG_MISMATCH => {
                        Accepted::ProgMismatch { low: reader.u32()?, high: reader.u32()? }
                    }
                    accept_stat::PROC_UNAVAIL => Accepted::ProcUnavail,
                    accept_stat::GARBAGE_ARGS => Accepted::GarbageArgs,
                    accept_stat::SYSTEM_ERR => Accepted::SystemErr,
                    found => return Err(XdrError::BadDiscriminant(found)),
                };
                Ok(ReplyBody::Accepted { verifier, outcome })
            }
            reply_stat::MSG_DENIED => Ok(ReplyBody::Denied(match reader.u32()? {
                reject_stat::RPC_MISMATCH => Denied::RpcMismatch { low: reader.u32()?, high: reader.u32()? },
                reject_stat::AUTH_ERROR => Denied::AuthError(AuthStat(reader.u32()?)),
                found => return Err(XdrError::BadDiscriminant(found)),
            })),
            found => Err(XdrError::BadDiscriminant(found)),
        }
    }
}

impl Encode for ReplyBody<'_> {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        match *self {
            ReplyBody::Accepted { verifier, outcome } => {
                if verifier.body.len() > AUTH_BODY_LEN_MAX as usize {
                    return Err(Overflow);
                }
                writer.u32(reply_stat::MSG_ACCEPTED)?;
                verifier.encode(writer)?;
                match outcome {
                    Accepted::Success => writer.u32(accept_stat::SUCCESS),
                    Accepted::ProgUnavail => writer.u32(accept_stat::PROG_UNAVAIL),
                    Accepted::ProgMismatch { low, high } => {
                        put_words::<3, 12>(writer, [accept_stat::PROG_MISMATCH, low, high])
                    }
                    Accepted::ProcUnavail => writer.u32(accept_stat::PROC_UNAVAIL),
                    Accepted::GarbageArgs => writer.u32(accept_stat::GARBAGE_ARGS),
                    Accepted::SystemErr => writer.u32(accept_stat::SYSTEM_ERR),
                }
            }
            ReplyBody::Denied(Denied::RpcMismatch { low, high }) => {
                put_words::<4, 16>(writer, [reply_stat::MSG_DENIED, reject_stat::RPC_MISMATCH, low, high])
            }
            ReplyBody::Denied(Denied::AuthError(AuthStat(why))) => {
                put_words::<3, 12>(writer, [reply_stat::MSG_DENIED, reject_stat::AUTH_ERROR, why])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::xdr::Reduced;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

        /// Whatever stands in the place of a header, what is read at one look is what is read part by part.
        #[test]
        fn a_header_is_read_alike(
            (xid, kind, version) in (any::<u32>(), 0..2u32, 1..4u32),
            (called, flavor) in (any::<[u32; 3]>(), 0..3u32),
            (len, body) in (0..420u32, 0..420usize),
            verifier in prop_oneof![3 => Just([0, 0]), 1 => [0..2u32, 0..9u32]],
            rest in 0..20usize,
            cut in prop_oneof![3 => Just(usize::MAX), 1 => 0..80usize],
            is_whole in any::<bool>(),
            chunk in prop_oneof![2 => Just(None), 1 => (0..30u32).prop_map(|at| Some(Reduced::read_chunk(0, 4 * at, 8)))],
            filler in vec(any::<u8>(), 448),
        ) {
            let len = if is_whole { body as u32 } else { len };
            let [program, number, procedure] = called;
            let words = [xid, kind, version, program, number, procedure, flavor, len];
            let mut octets: std::vec::Vec<u8> = words.map(u32::to_be_bytes).as_flattened().to_vec();
            octets.extend(&filler[..body.next_multiple_of(4)]);
            octets.extend(verifier.map(u32::to_be_bytes).as_flattened());
            octets.extend(&filler[..rest]);
            octets.truncate(cut);
            let reduced = chunk.as_slice();
            let (mut one, mut other) =
                (Reader::with_reduced(&octets, reduced), Reader::with_reduced(&octets, reduced));
            prop_assert_eq!(CallHeader::parse(&mut one), CallHeader::parse_any(&mut other));
            if CallHeader::parse_any(&mut Reader::with_reduced(&octets, reduced)).is_ok() {
                prop_assert_eq!(one.position(), other.position());
                prop_assert_eq!(one.unreduced_position(), other.unreduced_position());
            }
        }
    }
}
