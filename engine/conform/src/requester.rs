//! A run as requester: checks a peer that serves.

use std::time::Duration;

use crate::check::{Check, CheckNeeds, CheckOutcome, CheckText, Stop};
use crate::files::ScratchFiles;
use crate::probe::Probe;
use crate::raw::RawPeer;
use crate::{
    chunk_checks, exposed_checks, file_checks, group_checks, header_checks, private_data_checks,
    version2_checks,
};

/// All checks of a Responder, in the order of a run.
pub fn checks() -> impl Iterator<Item = &'static Check> {
    let all = [
        private_data_checks::CHECKS,
        header_checks::CHECKS,
        chunk_checks::CHECKS,
        file_checks::CHECKS,
        exposed_checks::CHECKS,
        version2_checks::CHECKS,
        group_checks::CHECKS,
    ];
    all.into_iter().flatten()
}

/// How many checks in a row may leave the peer without an answer, until the run ends.
const DEAD_MAX: usize = 3;

/// The server, and how to check it.
pub struct CheckedServer<'a> {
    /// Where the server is, on the fabric of the raw end.
    pub address: &'a str,
    /// Files on the server, if there are some to use.
    pub files: Option<ScratchFiles>,
    /// For each answer.
    pub wait: Duration,
    /// Whether checks may crash the server.
    pub is_dangerous: bool,
    /// Which checks.
    pub selects: &'a dyn Fn(CheckText) -> bool,
    /// A random number, from which the transaction ids go on: a server may still have the Replies to the Calls of another run.
    pub seed: u32,
}

/// A run, as an iterator over its checks: each is done when it is asked for.
///
/// An error is the last item: the peer is gone for good, and why.
pub struct RequesterRun<'a> {
    probe: Probe,
    is_dangerous: bool,
    selects: &'a dyn Fn(CheckText) -> bool,
    /// Those still to be done.
    checks: Box<dyn Iterator<Item = &'static Check>>,
    /// Checks in a row that left the peer without an answer.
    dead: usize,
}

impl<'a> RequesterRun<'a> {
    /// Connects, and waits for the answer to NULL.
    ///
    /// # Errors
    ///
    /// There is no connection, or no right answer.
    pub fn begin(peer: Box<dyn RawPeer>, config: CheckedServer<'a>) -> Result<RequesterRun<'a>, String> {
        let CheckedServer { address, files, wait, is_dangerous, selects, seed } = config;
        let mut probe = Probe::new(peer, address, wait, files, seed);
        probe.reconnect().map_err(Stop::why)?;
        Ok(RequesterRun { probe, is_dangerous, selects, checks: Box::new(checks()), dead: 0 })
    }

    fn outcome(&mut self, check: &Check) -> CheckOutcome {
        let lacking = match check.needs {
            CheckNeeds::Files if self.probe.files.is_none() => {
                Some("it needs a scratch export: --export /PATH")
            }
            CheckNeeds::Consent if !self.is_dangerous => Some("it is known to crash a server: --dangerous"),
            _ => None,
        };
        if let Some(lacking) = lacking {
            return Err(Stop::NotApplicable(lacking.to_owned()));
        }
        let outcome = (check.run)(&mut self.probe);
        // The next check finds a connection on which NULL was answered; if there is none, this one is to blame.
        match self.probe.reconnect() {
            Ok(()) => {
                self.dead = 0;
                outcome
            }
            Err(stop) => {
                self.dead += 1;
                let came = outcome.unwrap_or_else(Stop::why);
                Err(Stop::Fail(format!("{came}; and then: {}", stop.why())))
            }
        }
    }
}

impl Iterator for RequesterRun<'_> {
    type Item = Result<(CheckText, CheckOutcome), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.dead == DEAD_MAX {
            self.dead = 0;
            self.checks = Box::new(std::iter::empty());
            return Some(Err("the peer answers no Call any more".to_owned()));
        }
        let selects = self.selects;
        match self.checks.find(|check| selects(check.text())) {
            Some(check) => Some(Ok((check.text(), self.outcome(check)))),
            None => {
                self.probe.disconnect();
                None
            }
        }
    }
}
