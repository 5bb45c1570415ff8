//! A run as requester: checks a peer that serves.

use std::time::Duration;

use super::check::{Check, CheckNeeds, Stop};
use super::files::ScratchFiles;
use super::open::open;
use super::probe::Probe;
use super::report::{CheckText, ConformReport};
use super::{
    chunk_checks, exposed_checks, file_checks, group_checks, header_checks, private_data_checks,
    version2_checks,
};
use crate::failure::CommandFailure;
use crate::url::Url;

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

/// What a run does.
pub struct RequesterRun<'a> {
    /// The server.
    pub url: &'a Url,
    /// The scratch export, if there is one.
    pub export: Option<&'a Url>,
    /// For each answer.
    pub wait: Duration,
    /// Whether checks may crash the server.
    pub is_dangerous: bool,
    /// Which checks.
    pub selects: &'a dyn Fn(CheckText) -> bool,
}

/// Runs them.
///
/// # Errors
///
/// It cannot begin, or the peer is gone for good.
pub fn run(run: &RequesterRun<'_>, report: &mut ConformReport<'_>) -> Result<(), CommandFailure> {
    let begin = |why: String| CommandFailure::not_begun(format_args!("{}: {why}", run.url));
    let peer = open(run.url.fabric, run.wait).map_err(begin)?;
    let files = run.export.map(ScratchFiles::make).transpose().map_err(CommandFailure::before_begin)?;
    let mut probe = Probe::new(peer, &run.url.address, run.wait, files);
    probe.reconnect().map_err(|stop| begin(why(stop)))?;
    let mut dead = 0;
    for check in checks() {
        let text =
            CheckText { name: check.name, rules: check.rules, sent: check.sent, expected: check.expected };
        if !(run.selects)(text) {
            continue;
        }
        let lacking = match check.needs {
            CheckNeeds::Files if probe.files.is_none() => Some("it needs a scratch export: --export /PATH"),
            CheckNeeds::Consent if !run.is_dangerous => Some("it is known to crash a server: --dangerous"),
            _ => None,
        };
        if let Some(lacking) = lacking {
            report.note(text, &Err(Stop::NotApplicable(lacking.to_owned())))?;
            continue;
        }
        let mut outcome = (check.run)(&mut probe);
        // The next check finds a connection on which NULL was answered; if there is none, this one is to blame.
        match probe.reconnect() {
            Ok(()) => dead = 0,
            Err(stop) => {
                dead += 1;
                let came = match outcome {
                    Ok(came) | Err(Stop::Fail(came) | Stop::NotApplicable(came)) => came,
                };
                outcome = Err(Stop::Fail(format!("{came}; and then: {}", why(stop))));
            }
        }
        report.note(text, &outcome)?;
        if dead == DEAD_MAX {
            return Err(CommandFailure::run(format_args!("{}: the peer answers no Call any more", run.url)));
        }
    }
    probe.disconnect();
    Ok(())
}

fn why(stop: Stop) -> String {
    match stop {
        Stop::Fail(why) | Stop::NotApplicable(why) => why,
    }
}
