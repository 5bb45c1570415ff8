//! A program with no procedure but NULL.

use stag_rpc::{Call, Outcome, Procedure, Reply, Service};

/// NFS's number, as the client's NULL has it.
pub(crate) const PROGRAM: u32 = 100_003;

/// A program with no procedure but NULL, which the engine answers.
pub(crate) struct Nothing;

impl Service for Nothing {
    fn program(&self) -> u32 {
        PROGRAM
    }
    fn versions(&self) -> (u32, u32) {
        (3, 3)
    }
    fn procedure(&self, _: u32, _: u32) -> Option<&'static Procedure> {
        None
    }
    fn call(&mut self, _: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        reply.system_error();
        Outcome::Done
    }
}
