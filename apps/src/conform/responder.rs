//! A run as responder: checks the clients that connect.

use std::time::Duration;

use super::check::Stop;
use super::client_checks::{self, ClientCheck};
use super::open::open;
use super::report::{CheckText, ConformReport};
use super::served::ServedClient;
use super::{exposed_client_checks, placed_client_checks, version2_client_checks};
use crate::failure::CommandFailure;
use crate::url::{FabricName, Url};

/// All checks of a Requester, in the order of a run. Those that end a client come last.
pub fn checks() -> impl Iterator<Item = &'static ClientCheck> {
    let all = [
        client_checks::CHECKS,
        exposed_client_checks::CHECKS,
        placed_client_checks::CHECKS,
        version2_client_checks::CHECKS,
        client_checks::ENDING,
    ];
    all.into_iter().flatten()
}

/// What a run does.
pub struct ResponderRun<'a> {
    /// Where to listen.
    pub url: &'a Url,
    /// For the client's next step.
    pub wait: Duration,
    /// Which checks.
    pub selects: &'a dyn Fn(CheckText) -> bool,
}

/// Listens, and checks who comes.
///
/// # Errors
///
/// It cannot listen there, or no client comes at all.
pub fn run(run: &ResponderRun<'_>, report: &mut ConformReport<'_>) -> Result<(), CommandFailure> {
    let begin = |why: String| CommandFailure::not_begun(format_args!("{}: {why}", run.url));
    let mut peer = open(run.url.fabric, run.wait).map_err(begin)?;
    let address = peer.listen(&run.url.address).map_err(begin)?;
    let mut url = run.url.clone();
    if let (Some(address), true) = (address, url.fabric != FabricName::Shm) {
        url.address = address.to_string();
    }
    report.say(&format!(
        "ready      {url}; have the client make many Calls, as in: stag ping -c 1000000 {url}"
    ))?;
    let mut client = ServedClient::new(peer, run.wait);
    let mut has_come = false;
    for check in checks() {
        let text =
            CheckText { name: check.name, rules: check.rules, sent: check.sent, expected: check.expected };
        if !(run.selects)(text) {
            continue;
        }
        let outcome = (check.run)(&mut client);
        // A failed check may have left Calls behind that stay unanswered: the next check has a connection of its
        // own.
        if matches!(outcome, Err(Stop::Fail(_))) {
            client.disconnect();
        }
        has_come |= client.messages > 0;
        if let (Err(Stop::NotApplicable(why)), false) = (&outcome, has_come) {
            return Err(begin(why.clone()));
        }
        report.note(text, &outcome)?;
    }
    client.disconnect();
    Ok(())
}
