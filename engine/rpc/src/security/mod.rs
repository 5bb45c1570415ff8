//! Authentication flavors: who makes a Call, and what protects it and its Reply (RFC 5531 section 8).
//!
//! ```text
//!            plain flavor: the credential says it all
//!  header ─▶ claim ──────────────────────────────────────────────────────▶ route ─▶ … ─▶ handler ─▶ Reply
//!              │                                                             ▲                        │
//!              └─▶ check ─▶ data ─▶ open: verify, decrypt ─▶ a plain Call ───┘                        ▼
//!            sealed flavor                │        │                                          seal: verifier,
//!                                         ▼        ▼                                          protected results
//!                                      refuse   control Call: answered, no service hears of it
//! ```
//!
//! A [`Flavor`] is one kind of credential and verifier. Services have a tuple of flavors, chosen when the program is compiled:
//! [`StandardFlavors`] unless they are [`Secured`] with others. A Call of a flavor that is not among them is refused with
//! AUTH_BADCRED.
//!
//! A Call of a *plain* flavor (AUTH_NONE, AUTH_SYS) claims who makes it, and nothing proves that. A Call of a *sealed* flavor is opened
//! once, when all of it is here. That gives a plain Call with an empty verifier, and a [`ReplySeal`] for its Reply. Everything
//! behind the seam sees plain Calls and plain Replies: services, the duplicate request cache, other reactors. Sealed Calls
//! take the general way: they are not handled where they arrived.
//!
//! `standard.rs` has the flavors that prove nothing; `secured.rs` gives services other flavors; `sealed.rs` takes a sealed Call
//! through its steps; `client.rs` is the client's half.

pub(crate) mod client;
pub(crate) mod sealed;
mod secured;
mod standard;

use std::fmt;
use std::time::Duration;

use stag_fabric::Peer;
use stag_wire::rpc::{Accepted, AuthStat, CallHeader, OpaqueAuth, flavor};

pub use self::client::{CallSealer, CallToSeal, OpenedResults, ReplyOpener, SealBroken, SealedHeader};
pub use self::secured::Secured;
pub use self::standard::{AuthNone, AuthTls, AuthUnix, StandardFlavors};
use crate::service::call::Caller;

/// A credential or a verifier that owns its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthBody {
    /// The flavor's number.
    pub flavor: u32,
    /// At most [`AUTH_BODY_LEN_MAX`](stag_wire::rpc::AUTH_BODY_LEN_MAX) octets.
    pub body: Vec<u8>,
}

impl AuthBody {
    /// As it is encoded.
    #[must_use]
    pub fn as_opaque(&self) -> OpaqueAuth<'_> {
        OpaqueAuth { flavor: self.flavor, body: &self.body }
    }
}

/// What a Call's header says of its caller, before anything is verified.
#[derive(Clone, Copy, Debug)]
pub enum Claim<'a> {
    /// Call and Reply are plain, and this is who calls.
    Plain(Caller<'a>),
    /// [`Flavor::open`] decides. The header is signed; arguments and results are plain, and may go by chunk.
    Signed,
    /// [`Flavor::open`] decides. Arguments and results are signed or encrypted, so they do not go by chunk: a Call with data chunks is
    /// refused with ERR_CHUNK, and Write chunks stay unused.
    Protected,
    /// The Call is refused with AUTH_ERROR.
    Denied(AuthStat),
}

/// A Call of a sealed flavor, with all of its data.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct SealedCall<'a> {
    /// Its header.
    pub header: CallHeader<'a>,
    /// The header's octets from the xid to the end of the credential: what a verifier signs.
    pub signed: &'a [u8],
    /// The octets behind the verifier, without data that came in chunks.
    pub arguments: &'a [u8],
    /// Who is at the other end of the connection, if the fabric knows.
    pub peer: Option<&'a Peer>,
    /// When this pass of the reactor began.
    pub now: Duration,
}

/// Who makes a Call that was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenedCaller {
    /// Services see [`Caller::None`].
    None,
    /// Services see [`Caller::Sys`]: this is the encoded body of an AUTH_SYS credential ([`stag_wire::rpc::AuthSys`]).
    Sys(Vec<u8>),
    /// Services see [`Caller::Own`] with this name, of at most 400 octets.
    Own(Vec<u8>),
}

/// A Call that was verified.
#[derive(Debug)]
pub struct OpenedCall {
    /// Who makes it.
    pub caller: OpenedCaller,
    /// Its plain arguments; `None`: those of the sealed Call, as they are. Of a signed Call with data in chunks they must be as long
    /// as those were.
    pub arguments: Option<Vec<u8>>,
    /// What seals its Reply.
    pub seal: Box<dyn ReplySeal>,
}

/// What becomes of a sealed Call.
#[derive(Debug)]
pub enum Unsealed {
    /// A service answers it.
    Call(OpenedCall),
    /// It is a control Call: it is answered with these results, whatever its program, and no service hears of it.
    Answered {
        /// The results, encoded.
        results: Vec<u8>,
        /// What seals the Reply.
        seal: Box<dyn ReplySeal>,
    },
    /// It is refused with AUTH_ERROR.
    Denied(AuthStat),
    /// It is not answered: it is a repetition of an earlier message (RFC 2203 section 5.3.3.1).
    Dropped,
}

/// Seals the Reply to one Call that was opened. It is kept while the Call is answered later.
pub trait ReplySeal: fmt::Debug {
    /// Octets that the sealed Reply is longer than the plain one at most: of the verifier's body, and of protected results.
    fn growth_max(&self) -> usize;

    /// Protects the encoded `results` in place, if they are protected, and returns the Reply's verifier. They are empty unless the
    /// Call succeeded, and without what goes by chunk. It may be called again for the same Call: the Reply did not fit, and an error
    /// goes instead.
    fn seal(&mut self, xid: u32, outcome: Accepted, results: &mut Vec<u8>) -> AuthBody;
}

/// What is done with the caller that a credential names. A flavor calls one of the methods, once.
///
/// Not a closure, so that it is compiled into each flavor's way: most Calls of a server take one of them.
pub trait CallerVisitor<'a> {
    /// The result.
    type Output;

    /// The credential names this caller, and that is all there is to it.
    fn named(self, caller: Caller<'a>) -> Self::Output;

    /// It does not: [`Flavor::claim`] tells what the Call is.
    fn other(self) -> Self::Output;
}

/// One kind of credential and verifier.
///
/// A flavor without [`Flavor::open`] is plain. One reactor has its own value of each flavor: what a context of several Calls
/// needs is shared by the flavor's own means if clients reach several reactors.
pub trait Flavor {
    /// Its number. IANA assigns them from 400000 upward, and none is for private use: a private flavor takes a number far above.
    const NUMBER: u32;

    /// Tells `visitor` whom a credential of this flavor with this body names, if that is all there is to it: the fast path of
    /// [`Flavor::claim`] for Calls with an empty verifier.
    #[inline(always)]
    fn named<'a, V: CallerVisitor<'a>>(&self, body: &'a [u8], visitor: V) -> V::Output {
        let _ = body;
        visitor.other()
    }

    /// Reads a credential of this flavor. It may be asked several times of one Call, and changes nothing.
    fn claim<'a>(&self, header: &CallHeader<'a>) -> Claim<'a>;

    /// Verifies a Call that [`Flavor::claim`] called signed or protected, and opens it. Asked once of each Call.
    fn open(&mut self, call: &SealedCall<'_>) -> Unsealed {
        let _ = call;
        Unsealed::Denied(AuthStat::BADCRED)
    }
}

/// The flavors of a server: a tuple of one to six. The first one of a number counts.
pub trait FlavorSet {
    /// See [`Flavor::named`].
    fn named<'a, V: CallerVisitor<'a>>(&self, credential: OpaqueAuth<'a>, visitor: V) -> V::Output;

    /// See [`Flavor::claim`].
    fn claim<'a>(&self, header: &CallHeader<'a>) -> Claim<'a>;

    /// See [`Flavor::open`].
    fn open(&mut self, call: &SealedCall<'_>) -> Unsealed;
}

macro_rules! flavors {
    ($($name:ident $place:tt),+) => {
        impl<$($name: Flavor),+> FlavorSet for ($($name,)+) {
            #[inline(always)]
            fn named<'a, V: CallerVisitor<'a>>(&self, credential: OpaqueAuth<'a>, visitor: V) -> V::Output {
                // One way for each, so that the visitor knows which kind of caller it gets.
                $(
                    if credential.flavor == $name::NUMBER {
                        return self.$place.named(credential.body, visitor);
                    }
                )+
                visitor.other()
            }

            fn claim<'a>(&self, header: &CallHeader<'a>) -> Claim<'a> {
                $(
                    if header.credential.flavor == $name::NUMBER {
                        return self.$place.claim(header);
                    }
                )+
                Claim::Denied(AuthStat::BADCRED)
            }

            fn open(&mut self, call: &SealedCall<'_>) -> Unsealed {
                $(
                    if call.header.credential.flavor == $name::NUMBER {
                        return self.$place.open(call);
                    }
                )+
                Unsealed::Denied(AuthStat::BADCRED)
            }
        }
    };
}

flavors!(A 0);
flavors!(A 0, B 1);
flavors!(A 0, B 1, C 2);
flavors!(A 0, B 1, C 2, D 3);
flavors!(A 0, B 1, C 2, D 3, E 4);
flavors!(A 0, B 1, C 2, D 3, E 4, F 5);

/// The flavors of plain Calls that a seam has let in already: those that another reactor verified, and those that were opened here. Their
/// credential is the standard ones', or says in its body what a sealed flavor calls the caller.
pub(crate) struct VerifiedFlavors;

impl FlavorSet for VerifiedFlavors {
    #[inline(always)]
    fn named<'a, V: CallerVisitor<'a>>(&self, credential: OpaqueAuth<'a>, visitor: V) -> V::Output {
        StandardFlavors::default().named(credential, visitor)
    }

    fn claim<'a>(&self, header: &CallHeader<'a>) -> Claim<'a> {
        let OpaqueAuth { flavor, body } = header.credential;
        match flavor {
            flavor::AUTH_NONE | flavor::AUTH_SYS | flavor::AUTH_TLS => {
                StandardFlavors::default().claim(header)
            }
            flavor => Claim::Plain(Caller::Own { flavor, name: body }),
        }
    }

    fn open(&mut self, _: &SealedCall<'_>) -> Unsealed {
        Unsealed::Denied(AuthStat::BADCRED)
    }
}
