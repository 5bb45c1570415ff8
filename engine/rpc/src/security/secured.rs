//! [`Secured`]: services with authentication flavors of their own.

use std::os::fd::RawFd;
use std::time::Duration;

use stag_wire::rpc::{CallHeader, OpaqueAuth};

use super::{CallerVisitor, Claim, FlavorSet, SealedCall, Unsealed};
use crate::ConnectionId;
use crate::call_back::{CallBack, CallBackError};
use crate::service::call::Call;
use crate::service::reply::Reply;
use crate::service::{Home, Lookup, Outcome, Services, Token};

/// Serves as `S` does, and takes Calls of the flavors `F` only.
///
/// ```
/// use stag_rpc::{AuthUnix, Secured};
///
/// // Calls have to name a user: AUTH_NONE is refused, with NULL too.
/// let services = Secured::new((), (AuthUnix,));
/// # let _ = services;
/// ```
#[derive(Debug)]
pub struct Secured<S, F> {
    services: S,
    flavors: F,
}

impl<S, F> Secured<S, F> {
    /// Gives `services` these flavors, a tuple.
    #[must_use]
    pub fn new(services: S, flavors: F) -> Secured<S, F> {
        Secured { services, flavors }
    }

    /// The services.
    pub fn services_mut(&mut self) -> &mut S {
        &mut self.services
    }

    /// The flavors.
    pub fn flavors_mut(&mut self) -> &mut F {
        &mut self.flavors
    }

    /// The same flavors for other services.
    #[must_use]
    pub fn map<T>(self, with: impl FnOnce(S) -> T) -> Secured<T, F> {
        Secured { services: with(self.services), flavors: self.flavors }
    }
}

impl<S: Services, F: FlavorSet> Services for Secured<S, F> {
    #[inline(always)]
    fn named_caller<'a, V: CallerVisitor<'a>>(&self, credential: OpaqueAuth<'a>, visitor: V) -> V::Output {
        self.flavors.named(credential, visitor)
    }

    fn claim<'a>(&self, header: &CallHeader<'a>) -> Claim<'a> {
        self.flavors.claim(header)
    }

    fn open(&mut self, call: &SealedCall<'_>) -> Unsealed {
        self.flavors.open(call)
    }

    #[inline]
    fn lookup(&self, program: u32, version: u32, procedure: u32) -> Lookup {
        self.services.lookup(program, version, procedure)
    }

    #[inline]
    fn home(&self, service: usize, call: &Call<'_>) -> Home {
        self.services.home(service, call)
    }

    #[inline]
    fn call(&mut self, service: usize, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        self.services.call(service, call, reply)
    }

    #[inline(always)]
    fn note_null(&mut self, service: usize, program: u32, version: u32) {
        self.services.note_null(service, program, version);
    }

    #[inline]
    fn poll_later(&mut self, now: Duration) -> Option<(usize, Token)> {
        self.services.poll_later(now)
    }

    fn finish(&mut self, service: usize, token: Token, reply: &mut Reply<'_>) {
        self.services.finish(service, token, reply);
    }

    fn abandoned(&mut self, service: usize, token: Token) {
        self.services.abandoned(service, token);
    }

    fn subject(&self, service: usize, call: &Call<'_>) -> Option<String> {
        self.services.subject(service, call)
    }

    fn stage(&self, service: usize, token: Token) -> &'static str {
        self.services.stage(service, token)
    }

    fn next_call_back(&mut self) -> Option<(usize, CallBack)> {
        self.services.next_call_back()
    }

    fn called_back(&mut self, service: usize, id: u64, end: Result<&[u8], CallBackError>) {
        self.services.called_back(service, id, end);
    }

    fn connection_ended(&mut self, connection: ConnectionId) {
        self.services.connection_ended(connection);
    }

    fn give_back(&mut self) {
        self.services.give_back();
    }

    fn arm(&mut self) -> bool {
        self.services.arm()
    }

    fn disarm(&mut self) {
        self.services.disarm();
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.services.descriptors(out);
    }

    fn next_timeout(&self) -> Option<Duration> {
        self.services.next_timeout()
    }
}
