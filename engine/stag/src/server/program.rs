//! [`Program`]: a service that is one function.

use std::fmt;

use stag_rpc::{Call, Outcome, Procedure, Reply, Service};

/// A program of one version whose Calls go to one function. Its procedures are numbered from 1.
///
/// What has several versions, late answers of its own or homes on several cores implements [`Service`] instead.
pub struct Program<F> {
    number: u32,
    version: u32,
    procedures: &'static [Procedure],
    handler: F,
}

impl<F> Program<F>
where
    F: FnMut(&mut Call<'_>, &mut Reply<'_>) -> Outcome,
{
    /// The program `number` in `version`: `procedures[0]` is procedure 1, and so on. Procedure 0 is answered without the handler.
    pub fn new(number: u32, version: u32, procedures: &'static [Procedure], handler: F) -> Program<F> {
        Program { number, version, procedures, handler }
    }
}

impl<F> Service for Program<F>
where
    F: FnMut(&mut Call<'_>, &mut Reply<'_>) -> Outcome,
{
    #[inline]
    fn program(&self) -> u32 {
        self.number
    }

    #[inline]
    fn versions(&self) -> (u32, u32) {
        (self.version, self.version)
    }

    #[inline]
    fn procedure(&self, _version: u32, procedure: u32) -> Option<&'static Procedure> {
        self.procedures.get(procedure.checked_sub(1)? as usize)
    }

    #[inline]
    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        (self.handler)(call, reply)
    }
}

impl<F> fmt::Debug for Program<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("number", &self.number)
            .field("version", &self.version)
            .field("procedures", &self.procedures)
            .finish_non_exhaustive()
    }
}
