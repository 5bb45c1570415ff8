//! [`PanicGuard`]: a service whose panics cost one Call each, instead of the process.

use std::cell::Cell;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use stag_fabric::LogLimiter;

use crate::ConnectionId;
use crate::call_back::{CallBack, CallBackError};
use crate::service::call::Call;
use crate::service::reply::Reply;
use crate::service::{Home, Outcome, Procedure, Service, Token};

/// Serves as `S` does. Where a handler of `S` panics, its Call is answered with SYSTEM_ERR, and the log names the program and
/// the procedure. The connection, its other Calls and the process go on.
///
/// Guarded is the work for one Call: [`Service::home`], [`Service::call`], [`Service::finish`], [`Service::abandoned`], and what
/// a [`Deferred`](crate::Deferred) runs on the reactor; and that for the end of one ([`Service::called_back`],
/// [`Service::connection_ended`]). A panic elsewhere ([`Service::poll_later`]) belongs to no Call and ends the process as without the guard. So does every panic where the program is built with `panic = "abort"`.
///
/// The handler stops where it panics, and `S` goes on with the state that it has then. Nothing checks that this is unwind
/// safe: guard a service only where each handler leaves its state whole at every point where it may panic, or where later
/// Calls can do with less. Locks that it holds are poisoned. A Call that it left for later before the panic is answered by the
/// SYSTEM_ERR; its token means nothing any more.
///
/// The panic hook of the process still runs, and prints a message for each panic (`std::panic::set_hook`): one that a client
/// can cause at will fills what stderr leads to.
#[derive(Debug)]
pub struct PanicGuard<S> {
    service: S,
    /// Whether panics are caught.
    is_on: bool,
    /// Whether [`Service::home`] has panicked: the Call in question is still to be refused.
    has_home_panicked: Cell<bool>,
    /// The instant of this pass.
    now: Duration,
    complaints: LogLimiter,
}

impl<S> PanicGuard<S> {
    /// Guards `service`.
    pub fn new(service: S) -> PanicGuard<S> {
        PanicGuard::switched(service, true)
    }

    /// Guards `service` if `is_on`. Otherwise a panic does what it does without a guard: a program that lets its user choose has one
    /// type for both, and with it one copy of the engine's code.
    pub fn switched(service: S, is_on: bool) -> PanicGuard<S> {
        let complaints = LogLimiter::default();
        PanicGuard { service, is_on, has_home_panicked: Cell::new(false), now: Duration::ZERO, complaints }
    }

    /// Says that the handler panicked where there is no answer to say so.
    fn complain(&mut self, when: &str)
    where
        S: Service,
    {
        if let Some(withheld) = self.complaints.admit(self.now) {
            let program = self.service.program();
            tracing::error!(program, withheld, "handler: it panicked when {when}");
        }
    }

    /// The service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.service
    }
}

/// Runs `handler`. `None`: it panicked.
pub(crate) fn caught<T>(handler: impl FnOnce() -> T) -> Option<T> {
    // What the handler leaves half done is its service's, which the embedder has guarded knowingly; the engine's own state is
    // the Reply, which is forgotten.
    catch_unwind(AssertUnwindSafe(handler)).ok()
}

impl<S: Service> Service for PanicGuard<S> {
    fn program(&self) -> u32 {
        self.service.program()
    }

    fn versions(&self) -> (u32, u32) {
        self.service.versions()
    }

    fn procedure(&self, version: u32, procedure: u32) -> Option<&'static Procedure> {
        self.service.procedure(version, procedure)
    }

    fn home(&self, call: &Call<'_>) -> Home {
        if !self.is_on {
            return self.service.home(call);
        }
        caught(|| self.service.home(call)).unwrap_or_else(|| {
            self.has_home_panicked.set(true);
            Home::Here
        })
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        if !self.is_on {
            return self.service.call(call, reply);
        }
        // A home depends on the Call alone: it panics again for the Call that has come here for want of one.
        if self.has_home_panicked.get() && caught(|| self.service.home(call)).is_none() {
            reply.panicked();
            return Outcome::Done;
        }
        reply.deferrals.is_guarded.set(true);
        let outcome = caught(|| self.service.call(call, reply));
        reply.deferrals.is_guarded.set(false);
        outcome.unwrap_or_else(|| {
            reply.panicked();
            Outcome::Done
        })
    }

    fn subject(&self, call: &Call<'_>) -> Option<String> {
        // Guarded, too: a Call that may be logged is one that a handler reads.
        if self.is_on { caught(|| self.service.subject(call)).flatten() } else { self.service.subject(call) }
    }

    fn stage(&self, token: Token) -> &'static str {
        self.service.stage(token)
    }

    fn poll_later(&mut self, now: Duration) -> Option<Token> {
        self.now = now;
        self.service.poll_later(now)
    }

    fn finish(&mut self, token: Token, reply: &mut Reply<'_>) {
        if !self.is_on {
            return self.service.finish(token, reply);
        }
        if caught(|| self.service.finish(token, reply)).is_none() {
            reply.panicked();
        }
    }

    fn abandoned(&mut self, token: Token) {
        if !self.is_on {
            return self.service.abandoned(token);
        }
        if caught(|| self.service.abandoned(token)).is_none() {
            self.complain("its Call was abandoned");
        }
    }

    fn next_call_back(&mut self) -> Option<CallBack> {
        self.service.next_call_back()
    }

    fn called_back(&mut self, id: u64, end: Result<&[u8], CallBackError>) {
        if !self.is_on {
            return self.service.called_back(id, end);
        }
        if caught(|| self.service.called_back(id, end)).is_none() {
            self.complain("its Call to a client was over");
        }
    }

    fn connection_ended(&mut self, connection: ConnectionId) {
        if !self.is_on {
            return self.service.connection_ended(connection);
        }
        if caught(|| self.service.connection_ended(connection)).is_none() {
            self.complain("a connection ended");
        }
    }

    fn give_back(&mut self) {
        self.service.give_back();
    }

    fn arm(&mut self) -> bool {
        self.service.arm()
    }

    fn disarm(&mut self) {
        self.service.disarm();
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.service.descriptors(out);
    }

    fn next_timeout(&self) -> Option<Duration> {
        self.service.next_timeout()
    }
}
