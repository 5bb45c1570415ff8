//! The embedder's interface: [`Service`], and how several of them make one registry.
//!
//! `call.rs` and `reply.rs` are the handler's view; `dispatch.rs` leads from a Call's octets to its handler, for every
//! transport. `late.rs` is for answers that come later, `deferred.rs` for those of other threads;
//! `panic_guard.rs` is for handlers that may panic; `observed.rs` counts Calls by procedure.

pub(crate) mod call;
pub(crate) mod deferred;
pub(crate) mod dispatch;
pub(crate) mod late;
pub(crate) mod observed;
pub(crate) mod panic_guard;
pub(crate) mod procedure_sums;
pub(crate) mod reply;
pub(crate) mod steps;

use std::os::fd::RawFd;
use std::time::Duration;

use stag_runtime::ReactorId;
use stag_wire::rpc::{CallHeader, OpaqueAuth};
use stag_wire::xdr::Reader;

use crate::ConnectionId;
use crate::call_back::{CallBack, CallBackError};
use crate::security::{CallerVisitor, Claim, FlavorSet, SealedCall, StandardFlavors, Unsealed};
use crate::service::call::Call;
use crate::service::reply::Reply;

/// What the engine must know of one procedure: its Upper-Layer Binding (8166-6-a), and what it means to be
/// called again.
///
/// The default, [`Procedure::plain`], has no DDP-eligible item: its Calls may still be long
/// (Position Zero Read chunk) and its Replies too (Reply chunk). It may be called again.
#[derive(Clone, Copy, Debug)]
pub struct Procedure {
    /// Its name, for logs and statistics.
    pub name: &'static str,
    /// How many items of the arguments are DDP-eligible: data Read chunks that a Call may have.
    pub eligible_arguments: u8,
    /// How many items of the results are DDP-eligible: Write chunks that a Reply may use.
    pub eligible_results: u8,
    /// What a second execution of the same Call would do.
    pub repeat: Repeat,
    /// Finds the one eligible argument in a Call that comes over a byte stream, so that its data can be received
    /// right into payload memory. `None`: it is not looked for, and is always inline.
    pub locate: Option<Locate>,
}

/// Reads arguments up to and including the length word of the eligible one, and returns that length.
/// [`stag_wire::xdr::XdrError::Truncated`]: more of the arguments has to be here.
pub type Locate = fn(&mut Reader<'_>) -> Result<u32, stag_wire::xdr::XdrError>;

/// The effect of executing the same Call twice. Unless it is harmless, Replies are kept for a while and sent
/// again when a Call is retransmitted, over whichever connection (5531-e).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// None: a retransmission is executed again.
    Harmless,
    /// The second execution has another effect, or fails (REMOVE).
    Harmful,
    /// Idempotent, but must not run after a later Call (WRITE). Its Replies are cached separately, so that WRITEs do
    /// not evict the others.
    Untimely,
}

impl Procedure {
    /// A procedure without DDP-eligible items, which may be called again.
    #[must_use]
    pub const fn plain(name: &'static str) -> Procedure {
        Procedure { name, eligible_arguments: 0, eligible_results: 0, repeat: Repeat::Harmless, locate: None }
    }

    /// Whether arguments or results may go by chunk.
    #[inline]
    pub(crate) const fn has_eligible_items(&self) -> bool {
        self.eligible_arguments > 0 || self.eligible_results > 0
    }

    /// The same procedure, which must not be executed twice.
    #[must_use]
    pub const fn once(self) -> Procedure {
        Procedure { repeat: Repeat::Harmful, ..self }
    }
}

/// Names a Call that a [`Service`] answers later. Made by [`Call::token`]; good for one
/// [`Service::finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    pub(crate) connection: stag_fabric::QueuePairId,
    pub(crate) slot: u32,
    pub(crate) xid: u32,
}

/// Where a Call is executed, in a group of reactors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// At the reactor that it came in at: what it is about is there, or shared by means of the service's own.
    Here,
    /// At this reactor, which owns what the Call is about.
    At(ReactorId),
    /// At one and the same reactor for all Calls of the caller's address.
    OfCaller,
    /// At all reactors. The Reply is that of the one it came in at, which is the last.
    Everywhere,
}

/// What a handler did with a Call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// The [`Reply`] is filled in.
    Done,
    /// The Reply comes later: by the [`Deferred`](crate::Deferred) of this token, or [`Service::poll_later`] will return it.
    /// What was put in the [`Reply`] so far is forgotten.
    Later(Token),
}

/// What a late Call waited for, if its service does not say more.
const SERVICE_STAGE: &str = "its service";

/// One RPC program. Lives on one reactor, which owns it: no locks are needed, and none should be taken.
///
/// The engine answers for it: unknown versions and procedures (`PROG_MISMATCH`, `PROC_UNAVAIL`),
/// unusable credentials, procedure 0 (NULL), and chunks that the binding does not allow (`ERR_CHUNK`).
pub trait Service {
    /// The program number.
    fn program(&self) -> u32;

    /// The lowest and the highest version served; every version between is served too.
    fn versions(&self) -> (u32, u32);

    /// The binding of one procedure, or `None` when there is no such procedure. Procedure 0 need not be
    /// known here.
    fn procedure(&self, version: u32, procedure: u32) -> Option<&'static Procedure>;

    /// Where a Call is executed, if its engine is one of a group ([`Engine::join`](crate::Engine::join)); asked of no other.
    ///
    /// Depends on the Call's arguments, and on nothing that changes: a retransmission must find the same reactor, which
    /// knows it. NULL is answered where it comes in. `call` has no data of Read chunks.
    ///
    /// Chunks are carried as loans: no octet is copied. A Call that all reactors execute has no such items; one of a procedure
    /// that has is answered with SYSTEM_ERR.
    fn home(&self, call: &Call<'_>) -> Home {
        let _ = call;
        Home::Here
    }

    /// Answers a Call. Must not block; slow work returns [`Outcome::Later`]: [`Reply::defer`] for what another thread does,
    /// [`Service::poll_later`] for what this reactor polls.
    ///
    /// A panic ends the process, unless the service is in a [`PanicGuard`](crate::PanicGuard).
    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome;

    /// What a Call is about, in a few words for the log: for example a file. Asked only of Calls that may be logged.
    fn subject(&self, call: &Call<'_>) -> Option<String> {
        let _ = call;
        None
    }

    /// What a Call waited for longest that was left for later and can be answered now, in a few words for the log.
    fn stage(&self, token: Token) -> &'static str {
        let _ = token;
        SERVICE_STAGE
    }

    /// The next Call that was left for later and can be answered now. Called each pass.
    fn poll_later(&mut self, now: Duration) -> Option<Token> {
        let _ = now;
        None
    }

    /// Answers the Call of `token`, which [`Service::poll_later`] returned.
    fn finish(&mut self, token: Token, reply: &mut Reply<'_>) {
        let _ = token;
        reply.system_error();
    }

    /// The Call of `token`, which [`Service::poll_later`] returned, needs no answer any more: its
    /// connection is gone.
    fn abandoned(&mut self, token: Token) {
        let _ = token;
    }

    /// The next Call to make to a client, on a connection that it opened: a reverse Call over RDMA (RFC 8167), or a Call in the same
    /// byte stream. Asked in each pass until there is none. The client has to have said that it takes such Calls.
    ///
    /// Whatever becomes of it, [`Service::called_back`] tells, at its [`CallBack::timeout`] at the latest; but not
    /// always when the reactor stops. Of one connection [`CALLS_BACK_MAX`](crate::CALLS_BACK_MAX) may not be over; further ones are
    /// refused. They may leave in another order.
    fn next_call_back(&mut self) -> Option<CallBack> {
        None
    }

    /// The Call `id` to a client is over: its encoded results, or why there are none.
    fn called_back(&mut self, id: u64, end: Result<&[u8], CallBackError>) {
        let _ = (id, end);
    }

    /// A connection that a client opened to this reactor ended, over RDMA or TCP. `connection` is its name in the group
    /// ([`name_in_group`](crate::name_in_group)). Calls to the client end too, before or after.
    fn connection_ended(&mut self, connection: ConnectionId) {
        let _ = connection;
    }

    /// Lets go of what belongs to other reactors of the group: what came by chunk with Calls that were carried here. Called once, when
    /// all reactors stop and no Call comes any more.
    fn give_back(&mut self) {}

    /// Prepares for sleep on [`Service::descriptors`]. `false`: [`Service::poll_later`] has something to do already. After
    /// a `true`, a descriptor becomes readable when it has. [`Service::disarm`] follows, whatever was returned.
    ///
    /// A [`Receiver`](stag_runtime::Receiver) of a mailbox has to be armed here: otherwise its senders do not signal it.
    /// What is readable as long as there is something to do, as a socket, needs nothing.
    fn arm(&mut self) -> bool {
        true
    }

    /// Ends what [`Service::arm`] began. Harmless when nothing was begun.
    fn disarm(&mut self) {}

    /// Adds what becomes readable when [`Service::poll_later`] has something to do, so that the reactor may sleep
    /// on it.
    fn descriptors(&self, out: &mut Vec<RawFd>) {
        let _ = out;
    }

    /// When [`Service::poll_later`] has something to do even if nothing happens, on the clock of its `now`. A time
    /// in the past forbids sleep.
    fn next_timeout(&self) -> Option<Duration> {
        None
    }
}

/// What a registry says of a program, version and procedure.
#[derive(Clone, Copy, Debug)]
pub enum Lookup {
    /// Served, with this binding; `service` is the place in the registry.
    Found {
        /// Place in the registry.
        service: usize,
        /// The binding.
        procedure: &'static Procedure,
    },
    /// No such program.
    NoProgram,
    /// The program has other versions: lowest, highest.
    NoVersion(u32, u32),
    /// No such procedure.
    NoProcedure,
}

/// Procedure 0 of every program.
pub(crate) static NULL_PROCEDURE: Procedure = Procedure::plain("NULL");

/// Several services, known at compile time: `()`, a tuple of one to seven [`Service`]s (one alone is `(service,)`), an `Option` of such,
/// or such [`Observed`](crate::Observed) or [`Secured`](crate::Secured).
///
/// What stands before other services hands every method on to them, the provided ones too.
pub trait Services {
    /// Tells `visitor` whom this credential of a Call with an empty verifier names, if it says it all: the fast path of
    /// [`Services::claim`].
    #[inline(always)]
    fn named_caller<'a, V: CallerVisitor<'a>>(&self, credential: OpaqueAuth<'a>, visitor: V) -> V::Output {
        StandardFlavors::default().named(credential, visitor)
    }
    /// Reads a Call's credential: [`Flavor::claim`](crate::Flavor::claim). The standard flavors are taken, unless the services are
    /// [`Secured`](crate::Secured) with others.
    fn claim<'a>(&self, header: &CallHeader<'a>) -> Claim<'a> {
        StandardFlavors::default().claim(header)
    }
    /// Verifies and opens a Call of a sealed flavor: [`Flavor::open`](crate::Flavor::open).
    fn open(&mut self, call: &SealedCall<'_>) -> Unsealed {
        StandardFlavors::default().open(call)
    }
    /// Finds who serves a procedure. The first service with that program and version wins.
    fn lookup(&self, program: u32, version: u32, procedure: u32) -> Lookup;
    /// Where service number `service` executes a Call.
    fn home(&self, service: usize, call: &Call<'_>) -> Home {
        let _ = (service, call);
        Home::Here
    }
    /// Calls service number `service`.
    fn call(&mut self, service: usize, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome;
    /// Tells that the engine answers NULL for service number `service`.
    #[inline(always)]
    fn note_null(&mut self, service: usize, program: u32, version: u32) {
        let _ = (service, program, version);
    }
    /// What a Call of service number `service` is about, in words.
    fn subject(&self, service: usize, call: &Call<'_>) -> Option<String> {
        let _ = (service, call);
        None
    }
    /// What a late Call of service number `service` waited for longest, in words.
    fn stage(&self, service: usize, token: Token) -> &'static str {
        let _ = (service, token);
        SERVICE_STAGE
    }
    /// The next late answer, and whose it is.
    fn poll_later(&mut self, now: Duration) -> Option<(usize, Token)>;
    /// Lets service number `service` answer late.
    fn finish(&mut self, service: usize, token: Token, reply: &mut Reply<'_>);
    /// Tells service number `service` that an answer is no longer needed.
    fn abandoned(&mut self, service: usize, token: Token);
    /// The next Call to a client, and whose it is.
    #[inline]
    fn next_call_back(&mut self) -> Option<(usize, CallBack)> {
        None
    }
    /// Tells service number `service` how its Call `id` to a client ended.
    fn called_back(&mut self, service: usize, id: u64, end: Result<&[u8], CallBackError>) {
        let _ = (service, id, end);
    }
    /// Tells each service that a connection ended.
    fn connection_ended(&mut self, connection: ConnectionId) {
        let _ = connection;
    }
    /// Lets each service let go of what belongs to other reactors.
    fn give_back(&mut self) {}
    /// Lets each service prepare for sleep. `false`: one of them has something to do.
    fn arm(&mut self) -> bool {
        true
    }
    /// Ends what `arm` began.
    fn disarm(&mut self) {}
    /// Adds what to wake up for.
    fn descriptors(&self, out: &mut Vec<RawFd>) {
        let _ = out;
    }
    /// When to look for late answers next, even if nothing happens.
    fn next_timeout(&self) -> Option<Duration> {
        None
    }
}

/// Looks into one service; merges with what the ones before it said.
#[inline]
fn lookup<S: Service>(service: &S, place: usize, program: u32, version: u32, procedure: u32) -> Lookup {
    if service.program() != program {
        return Lookup::NoProgram;
    }
    let (low, high) = service.versions();
    if version < low || version > high {
        return Lookup::NoVersion(low, high);
    }
    if procedure == 0 {
        return Lookup::Found { service: place, procedure: &NULL_PROCEDURE };
    }
    match service.procedure(version, procedure) {
        Some(procedure) => Lookup::Found { service: place, procedure },
        None => Lookup::NoProcedure,
    }
}

/// The better of two answers: a program served by two services has the versions of both.
#[inline]
fn merge(first: Lookup, second: Lookup) -> Lookup {
    match (first, second) {
        (Lookup::Found { .. }, _) | (Lookup::NoProcedure, Lookup::NoProgram | Lookup::NoVersion(..)) => first,
        (Lookup::NoVersion(a, b), Lookup::NoVersion(c, d)) => Lookup::NoVersion(a.min(c), b.max(d)),
        (Lookup::NoVersion(..), Lookup::NoProgram) => first,
        _ => second,
    }
}

impl Services for () {
    fn lookup(&self, _: u32, _: u32, _: u32) -> Lookup {
        Lookup::NoProgram
    }
    fn call(&mut self, _: usize, _: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        reply.system_error();
        Outcome::Done
    }
    #[inline]
    fn poll_later(&mut self, _: Duration) -> Option<(usize, Token)> {
        None
    }
    fn finish(&mut self, _: usize, _: Token, reply: &mut Reply<'_>) {
        reply.system_error();
    }
    fn abandoned(&mut self, _: usize, _: Token) {}
}

/// Services that may be missing; without them every program is unavailable, as with `()`. A program with engines of both kinds
/// has one type for them, and with it one copy of the engine's code.
impl<S: Services> Services for Option<S> {
    #[inline(always)]
    fn named_caller<'a, V: CallerVisitor<'a>>(&self, credential: OpaqueAuth<'a>, visitor: V) -> V::Output {
        match self {
            Some(services) => services.named_caller(credential, visitor),
            None => ().named_caller(credential, visitor),
        }
    }
    fn claim<'a>(&self, header: &CallHeader<'a>) -> Claim<'a> {
        self.as_ref().map_or_else(|| ().claim(header), |services| services.claim(header))
    }
    fn open(&mut self, call: &SealedCall<'_>) -> Unsealed {
        match self {
            Some(services) => services.open(call),
            None => ().open(call),
        }
    }
    #[inline]
    fn lookup(&self, program: u32, version: u32, procedure: u32) -> Lookup {
        self.as_ref().map_or(Lookup::NoProgram, |services| services.lookup(program, version, procedure))
    }
    #[inline]
    fn home(&self, service: usize, call: &Call<'_>) -> Home {
        self.as_ref().map_or(Home::Here, |services| services.home(service, call))
    }
    #[inline]
    fn call(&mut self, service: usize, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        match self {
            Some(services) => services.call(service, call, reply),
            None => ().call(service, call, reply),
        }
    }
    #[inline(always)]
    fn note_null(&mut self, service: usize, program: u32, version: u32) {
        if let Some(services) = self {
            services.note_null(service, program, version);
        }
    }
    fn subject(&self, service: usize, call: &Call<'_>) -> Option<String> {
        self.as_ref()?.subject(service, call)
    }
    fn stage(&self, service: usize, token: Token) -> &'static str {
        self.as_ref().map_or(SERVICE_STAGE, |services| services.stage(service, token))
    }
    #[inline]
    fn poll_later(&mut self, now: Duration) -> Option<(usize, Token)> {
        self.as_mut()?.poll_later(now)
    }
    fn finish(&mut self, service: usize, token: Token, reply: &mut Reply<'_>) {
        match self {
            Some(services) => services.finish(service, token, reply),
            None => ().finish(service, token, reply),
        }
    }
    fn abandoned(&mut self, service: usize, token: Token) {
        if let Some(services) = self {
            services.abandoned(service, token);
        }
    }
    #[inline]
    fn next_call_back(&mut self) -> Option<(usize, CallBack)> {
        self.as_mut()?.next_call_back()
    }
    fn called_back(&mut self, service: usize, id: u64, end: Result<&[u8], CallBackError>) {
        if let Some(services) = self {
            services.called_back(service, id, end);
        }
    }
    fn connection_ended(&mut self, connection: ConnectionId) {
        if let Some(services) = self {
            services.connection_ended(connection);
        }
    }
    fn give_back(&mut self) {
        if let Some(services) = self {
            services.give_back();
        }
    }
    fn arm(&mut self) -> bool {
        self.as_mut().is_none_or(S::arm)
    }
    fn disarm(&mut self) {
        if let Some(services) = self {
            services.disarm();
        }
    }
    fn descriptors(&self, out: &mut Vec<RawFd>) {
        if let Some(services) = self {
            services.descriptors(out);
        }
    }
    fn next_timeout(&self) -> Option<Duration> {
        self.as_ref()?.next_timeout()
    }
}

macro_rules! services {
    ($($name:ident $place:tt),+) => {
        impl<$($name: Service),+> Services for ($($name,)+) {
            #[inline]
            fn lookup(&self, program: u32, version: u32, procedure: u32) -> Lookup {
                let mut found = Lookup::NoProgram;
                $(
                    found = merge(found, lookup(&self.$place, $place, program, version, procedure));
                    if let Lookup::Found { .. } = found {
                        return found;
                    }
                )+
                found
            }
            #[inline(always)]
            fn home(&self, service: usize, call: &Call<'_>) -> Home {
                match service {
                    $($place => self.$place.home(call),)+
                    _ => {
                        debug_assert!(false, "service {service} did not come from lookup");
                        Home::Here
                    }
                }
            }
            #[inline]
            fn call(&mut self, service: usize, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
                match service {
                    $($place => self.$place.call(call, reply),)+
                    _ => {
                        debug_assert!(false, "service {service} did not come from lookup");
                        reply.system_error();
                        Outcome::Done
                    }
                }
            }
            fn subject(&self, service: usize, call: &Call<'_>) -> Option<String> {
                match service {
                    $($place => self.$place.subject(call),)+
                    _ => None,
                }
            }
            fn stage(&self, service: usize, token: Token) -> &'static str {
                match service {
                    $($place => self.$place.stage(token),)+
                    _ => SERVICE_STAGE,
                }
            }
            fn poll_later(&mut self, now: Duration) -> Option<(usize, Token)> {
                $(
                    if let Some(token) = self.$place.poll_later(now) {
                        return Some(($place, token));
                    }
                )+
                None
            }
            fn finish(&mut self, service: usize, token: Token, reply: &mut Reply<'_>) {
                match service {
                    $($place => self.$place.finish(token, reply),)+
                    _ => {
                        debug_assert!(false, "service {service} did not come from poll_later");
                        reply.system_error();
                    }
                }
            }
            fn abandoned(&mut self, service: usize, token: Token) {
                match service {
                    $($place => self.$place.abandoned(token),)+
                    _ => debug_assert!(false, "service {service} did not come from poll_later"),
                }
            }
            #[inline]
            fn next_call_back(&mut self) -> Option<(usize, CallBack)> {
                $(
                    if let Some(call) = self.$place.next_call_back() {
                        return Some(($place, call));
                    }
                )+
                None
            }
            fn called_back(&mut self, service: usize, id: u64, end: Result<&[u8], CallBackError>) {
                match service {
                    $($place => self.$place.called_back(id, end),)+
                    _ => debug_assert!(false, "service {service} did not come from next_call_back"),
                }
            }
            fn connection_ended(&mut self, connection: ConnectionId) {
                $(self.$place.connection_ended(connection);)+
            }
            fn give_back(&mut self) {
                $(self.$place.give_back();)+
            }
            fn arm(&mut self) -> bool {
                true $(&& self.$place.arm())+
            }
            fn disarm(&mut self) {
                $(self.$place.disarm();)+
            }
            fn descriptors(&self, out: &mut Vec<RawFd>) {
                $(self.$place.descriptors(out);)+
            }
            fn next_timeout(&self) -> Option<Duration> {
                [$(self.$place.next_timeout()),+].into_iter().flatten().min()
            }
        }
    };
}

services!(A 0);
services!(A 0, B 1);
services!(A 0, B 1, C 2);
services!(A 0, B 1, C 2, D 3);
services!(A 0, B 1, C 2, D 3, E 4);
services!(A 0, B 1, C 2, D 3, E 4, F 5);
services!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);

#[cfg(test)]
mod tests {
    use super::*;

    /// A program of one version with one procedure beside NULL.
    struct Program;

    static ONLY: Procedure = Procedure::plain("ONLY");

    impl Service for Program {
        fn program(&self) -> u32 {
            100
        }
        fn versions(&self) -> (u32, u32) {
            (3, 3)
        }
        fn procedure(&self, _: u32, procedure: u32) -> Option<&'static Procedure> {
            (procedure == 1).then_some(&ONLY)
        }
        fn call(&mut self, _: &mut Call<'_>, _: &mut Reply<'_>) -> Outcome {
            Outcome::Done
        }
        fn arm(&mut self) -> bool {
            false
        }
        fn next_timeout(&self) -> Option<Duration> {
            Some(Duration::ZERO)
        }
    }

    #[test]
    fn services_that_may_be_missing_serve_as_they_do_alone_or_nobody() {
        let (mut there, mut missing) = (Some((Program,)), None::<(Program,)>);
        for (version, procedure, alone) in [(3, 1, "ONLY"), (3, 0, "NULL")] {
            let Lookup::Found { service: 0, procedure: found } = there.lookup(100, version, procedure) else {
                panic!("it is there");
            };
            assert_eq!(found.name, alone);
            assert!(matches!(missing.lookup(100, version, procedure), Lookup::NoProgram));
        }
        assert!(matches!(there.lookup(100, 2, 1), Lookup::NoVersion(3, 3)));
        assert!(matches!(there.lookup(100, 3, 2), Lookup::NoProcedure));
        assert!(matches!(there.lookup(101, 3, 1), Lookup::NoProgram));

        // One without work of its own never keeps its reactor awake.
        assert!(!there.arm() && missing.arm());
        assert_eq!((there.next_timeout(), missing.next_timeout()), (Some(Duration::ZERO), None));
        assert_eq!(missing.poll_later(Duration::ZERO), None);
    }
}
