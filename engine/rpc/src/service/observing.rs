//! What an observer of Calls is told ([`Services::observe`](crate::Services::observe)).

use std::time::Duration;

use crate::service::Token;

/// A step of a Call at the server. Every Call that its service is given takes all of them, in this order, whichever way it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallStep {
    /// It came.
    Arrived,
    /// Its data is here, and it may be executed: its service is called next.
    Ready,
    /// Its service has answered.
    Executed,
    /// Its Reply is made and handed to what sends it.
    Sent,
    /// It is over. An answer that its client no longer waits for is over without [`CallStep::Sent`].
    Done,
}

/// A Call that takes a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallInStep {
    /// Its name, as in [`Call::token`](crate::Call::token).
    pub token: Token,
    /// When it took the step, by the clock of the reactor's passes.
    pub at: Duration,
    /// When it came; at the later steps of a Call that is answered in a later pass, as `at`.
    pub arrived: Duration,
    /// What was called; `None` at the later steps of a Call that is answered in a later pass.
    pub called: Option<ObservedProcedure>,
}

/// What a Call calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedProcedure {
    /// The number of its service.
    pub service: usize,
    /// The program's number.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// The procedure's number; not 0, which the engine answers.
    pub procedure: u32,
}
