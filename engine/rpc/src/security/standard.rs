//! The flavors that prove nothing: AUTH_NONE, AUTH_SYS, and the NULL Call that asks for TLS.

use stag_wire::rpc::{AuthStat, AuthSys, CallHeader, flavor};

use super::{CallerVisitor, Claim, Flavor};
use crate::service::call::Caller;

/// What services take unless they say otherwise.
pub type StandardFlavors = (AuthNone, AuthUnix, AuthTls);

/// AUTH_NONE: the Call names no user.
#[derive(Clone, Copy, Debug, Default)]
pub struct AuthNone;

/// AUTH_SYS: the Call names a user of the client's machine by numbers.
///
/// NULL takes any credential of this flavor, whatever its body (5531-b).
#[derive(Clone, Copy, Debug, Default)]
pub struct AuthUnix;

/// AUTH_TLS: a NULL Call asks for TLS (RFC 9289 section 4.1). It is answered as any NULL Call, with an empty verifier: TLS is not offered.
#[derive(Clone, Copy, Debug, Default)]
pub struct AuthTls;

impl Flavor for AuthNone {
    const NUMBER: u32 = flavor::AUTH_NONE;

    #[inline(always)]
    fn named<'a, V: CallerVisitor<'a>>(&self, _: &'a [u8], visitor: V) -> V::Output {
        visitor.named(Caller::None)
    }

    fn claim<'a>(&self, _: &CallHeader<'a>) -> Claim<'a> {
        Claim::Plain(Caller::None)
    }
}

impl Flavor for AuthUnix {
    const NUMBER: u32 = flavor::AUTH_SYS;

    #[inline(always)]
    fn named<'a, V: CallerVisitor<'a>>(&self, body: &'a [u8], visitor: V) -> V::Output {
        match AuthSys::parse_usual(body) {
            Some(user) => visitor.named(Caller::Sys(user)),
            None => visitor.other(),
        }
    }

    fn claim<'a>(&self, header: &CallHeader<'a>) -> Claim<'a> {
        match AuthSys::parse(header.credential.body) {
            Ok(user) => Claim::Plain(Caller::Sys(user)),
            Err(_) if header.procedure == 0 => Claim::Plain(Caller::None),
            Err(_) => Claim::Denied(AuthStat::BADCRED),
        }
    }
}

impl Flavor for AuthTls {
    const NUMBER: u32 = flavor::AUTH_TLS;

    fn claim<'a>(&self, header: &CallHeader<'a>) -> Claim<'a> {
        match header.procedure {
            0 => Claim::Plain(Caller::None),
            _ => Claim::Denied(AuthStat::BADCRED),
        }
    }
}
