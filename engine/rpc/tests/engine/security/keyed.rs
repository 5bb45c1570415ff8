//! A flavor for tests, both halves: a keyed hash over headers, arguments and results. It is not secure.
//!
//! ```text
//!  credential   mode, session, sequence number
//!  verifier     hash of the header up to the credential, and of the arguments if the mode protects them
//!  Reply        hash of sequence number, xid, outcome, and of the results if the mode protects them
//! ```

use std::cell::Cell;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher};

use stag_rpc::{
    AuthBody, CallSealer, CallToSeal, Claim, Flavor, OpenedCall, OpenedCaller, OpenedResults, ReplyOpener,
    ReplySeal, SealBroken, SealedCall, SealedHeader, Unsealed,
};
use stag_wire::rpc::{Accepted, AuthStat, AuthSys, CallHeader, Gids, OpaqueAuth};
use stag_wire::xdr::{Encode, Writer};

/// None that IANA will soon assign.
pub(crate) const NUMBER: u32 = 0x4000_0001;

pub(crate) const KEY: u64 = 0x0123_4567_89ab_cdef;

/// The user as whom session 2 acts.
pub(crate) const USER: u32 = 1002;

/// Octets behind encrypted results, so that they are longer than the plain ones.
const TAIL_LEN: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A control Call: makes a session.
    Hello,
    /// The header is signed.
    Header,
    /// So are arguments and results.
    Body,
    /// And they are encrypted, too.
    Encrypted,
}

impl Mode {
    fn of(number: u32) -> Option<Mode> {
        [Mode::Hello, Mode::Header, Mode::Body, Mode::Encrypted]
            .into_iter()
            .find(|mode| *mode as u32 == number)
    }

    fn protects_body(self) -> bool {
        matches!(self, Mode::Body | Mode::Encrypted)
    }
}

fn hash(key: u64, parts: &[&[u8]]) -> Vec<u8> {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(key);
    for part in parts {
        hasher.write_usize(part.len());
        hasher.write(part);
    }
    hasher.finish().to_be_bytes().to_vec()
}

/// Encrypts, or decrypts.
fn cipher(key: u64, sequence: u32, octets: &mut [u8]) {
    for (block, octets) in (0_u32..).zip(octets.chunks_mut(8)) {
        let stream = hash(key, &[&sequence.to_be_bytes(), &block.to_be_bytes()]);
        octets.iter_mut().zip(stream).for_each(|(octet, other)| *octet ^= other);
    }
}

fn reply_hash(key: u64, sequence: u32, xid: u32, outcome: Accepted, body: &[u8]) -> AuthBody {
    let outcome = format!("{outcome:?}");
    let body = hash(key, &[b"reply", &sequence.to_be_bytes(), &xid.to_be_bytes(), outcome.as_bytes(), body]);
    AuthBody { flavor: NUMBER, body }
}

/// What a credential says.
#[derive(Clone, Copy)]
struct Claimed {
    mode: Mode,
    session: u32,
    sequence: u32,
}

impl Claimed {
    fn parse(body: &[u8]) -> Option<Claimed> {
        let words: &[u8; 12] = body.try_into().ok()?;
        let word = |at: usize| u32::from_be_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
        Some(Claimed { mode: Mode::of(word(0))?, session: word(4), sequence: word(8) })
    }
}

/// The server's half.
#[derive(Debug)]
pub(crate) struct Keyed {
    /// With which its Replies are signed.
    pub(crate) reply_key: u64,
    /// Its Replies have an empty verifier.
    pub(crate) is_mute: bool,
    seen: HashSet<u32>,
    sessions: u32,
    /// Calls that were opened.
    pub(crate) opened: u32,
}

impl Keyed {
    pub(crate) fn new() -> Keyed {
        Keyed { reply_key: KEY, is_mute: false, seen: HashSet::new(), sessions: 0, opened: 0 }
    }
}

impl Flavor for Keyed {
    const NUMBER: u32 = NUMBER;

    fn claim<'a>(&self, header: &CallHeader<'a>) -> Claim<'a> {
        match Claimed::parse(header.credential.body) {
            None => Claim::Denied(AuthStat::BADCRED),
            Some(claimed) if claimed.mode.protects_body() => Claim::Protected,
            Some(_) => Claim::Signed,
        }
    }

    fn open(&mut self, call: &SealedCall<'_>) -> Unsealed {
        let Some(Claimed { mode, session, sequence }) = Claimed::parse(call.header.credential.body) else {
            return Unsealed::Denied(AuthStat::BADCRED);
        };
        let body = if mode.protects_body() { call.arguments } else { &[] };
        let expected = hash(KEY, &[call.signed, body]);
        if call.header.verifier != (OpaqueAuth { flavor: NUMBER, body: &expected }) {
            return Unsealed::Denied(AuthStat::BADVERF);
        }
        if !self.seen.insert(sequence) {
            return Unsealed::Dropped;
        }
        let (key, is_mute) = (self.reply_key, self.is_mute);
        let seal = Box::new(KeyedSeal { key, is_mute, mode, sequence });
        if mode == Mode::Hello {
            self.sessions += 1;
            return Unsealed::Answered { results: self.sessions.to_be_bytes().to_vec(), seal };
        }
        if session == 0 || session > self.sessions {
            return Unsealed::Denied(AuthStat::REJECTEDCRED);
        }
        self.opened += 1;
        let arguments = (mode == Mode::Encrypted).then(|| {
            let mut plain = call.arguments.to_vec();
            cipher(KEY, sequence, &mut plain);
            plain
        });
        let caller = match session {
            2 => OpenedCaller::Sys(user_body()),
            3 => OpenedCaller::None,
            session => OpenedCaller::Own(format!("session {session}").into_bytes()),
        };
        Unsealed::Call(OpenedCall { caller, arguments, seal })
    }
}

fn user_body() -> Vec<u8> {
    let user = AuthSys { stamp: 0, machine_name: b"here", uid: USER, gid: 100, gids: Gids::NONE };
    let mut body = vec![0; AuthSys::BODY_LEN_MAX];
    let mut writer = Writer::new(&mut body);
    user.encode(&mut writer).expect("room enough");
    let len = writer.position();
    body.truncate(len);
    body
}

#[derive(Debug)]
struct KeyedSeal {
    key: u64,
    is_mute: bool,
    mode: Mode,
    sequence: u32,
}

impl ReplySeal for KeyedSeal {
    fn growth_max(&self) -> usize {
        8 + if self.mode == Mode::Encrypted { TAIL_LEN } else { 0 }
    }

    fn seal(&mut self, xid: u32, outcome: Accepted, results: &mut Vec<u8>) -> AuthBody {
        if self.is_mute {
            return AuthBody { flavor: 0, body: Vec::new() };
        }
        if self.mode == Mode::Encrypted && outcome == Accepted::Success {
            results.extend([0xee; TAIL_LEN]);
            cipher(self.key, self.sequence, results);
        }
        let body = if self.mode.protects_body() { &results[..] } else { &[] };
        reply_hash(self.key, self.sequence, xid, outcome, body)
    }
}

/// The client's half.
#[derive(Debug)]
pub(crate) struct Sealer {
    pub(crate) key: u64,
    pub(crate) mode: Mode,
    pub(crate) session: u32,
    pub(crate) sequence: Cell<u32>,
    /// It says that its Calls may have chunks, and signs these arguments.
    pub(crate) claims_chunks: Option<Vec<u8>>,
    /// It signs other arguments than it sends.
    pub(crate) is_forger: bool,
}

impl Sealer {
    pub(crate) fn new(mode: Mode, session: u32) -> Sealer {
        let sequence = Cell::new((mode as u32 + 1) * 10_000 + session * 1000);
        Sealer { key: KEY, mode, session, sequence, claims_chunks: None, is_forger: false }
    }

    /// Leaves a sequence number out.
    pub(crate) fn skip(&self) {
        self.sequence.set(self.sequence.get() + 1);
    }

    /// Its next Call repeats the last sequence number.
    pub(crate) fn repeat(&self) {
        self.sequence.set(self.sequence.get() - 1);
    }
}

impl CallSealer for Sealer {
    fn protects_body(&self) -> bool {
        self.mode.protects_body() && self.claims_chunks.is_none()
    }

    fn reply_growth_max(&self) -> u32 {
        8 + TAIL_LEN as u32
    }

    fn seal(&self, call: CallToSeal, arguments: &mut Vec<u8>) -> SealedHeader {
        let &Sealer { key, mode, session, .. } = self;
        let sequence = self.sequence.get() + 1;
        self.sequence.set(sequence);
        let words = [mode as u32, session, sequence];
        let credential = AuthBody { flavor: NUMBER, body: words.map(u32::to_be_bytes).concat() };
        let signed = call.signed(credential.as_opaque());
        if mode == Mode::Encrypted {
            cipher(KEY, sequence, arguments);
        }
        let body = match &self.claims_chunks {
            Some(arguments) => &arguments[..],
            None if mode.protects_body() => &arguments[..],
            None => &[],
        };
        let verifier = AuthBody { flavor: NUMBER, body: hash(key, &[&signed, body]) };
        if self.is_forger {
            arguments.iter_mut().take(1).for_each(|octet| *octet ^= 1);
        }
        let opener = Box::new(Opener { mode, sequence, xid: call.xid });
        SealedHeader { credential, verifier, opener }
    }
}

#[derive(Debug)]
struct Opener {
    mode: Mode,
    sequence: u32,
    xid: u32,
}

impl ReplyOpener for Opener {
    fn open(
        &mut self,
        outcome: Accepted,
        verifier: OpaqueAuth<'_>,
        results: &[u8],
    ) -> Result<OpenedResults, SealBroken> {
        let body = if self.mode.protects_body() { results } else { &[] };
        if verifier != reply_hash(KEY, self.sequence, self.xid, outcome, body).as_opaque() {
            return Err(SealBroken);
        }
        if self.mode != Mode::Encrypted || outcome != Accepted::Success {
            return Ok(OpenedResults::AsTheyCame);
        }
        let mut plain = results.to_vec();
        cipher(KEY, self.sequence, &mut plain);
        plain.truncate(plain.len().checked_sub(TAIL_LEN).ok_or(SealBroken)?);
        Ok(OpenedResults::Plain(plain))
    }
}
