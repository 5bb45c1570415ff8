//! A run as responder: checks the clients that connect.

use std::net::SocketAddr;
use std::time::Duration;

use crate::check::{CheckOutcome, CheckText, Stop};
use crate::client_checks::{self, ClientCheck};
use crate::raw::RawPeer;
use crate::scratch::StartScratch;
use crate::served::ServedClient;
use crate::{exposed_client_checks, placed_client_checks, version2_client_checks};

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

/// Where clients come, and how to check them.
pub struct CheckedClients<'a> {
    /// Where to listen, on the fabric of the raw end.
    pub address: &'a str,
    /// For the client's next step.
    pub wait: Duration,
    /// Which checks.
    pub selects: &'a dyn Fn(CheckText) -> bool,
    /// Starts the service that answers Calls with content. It is called once, when the first such Call comes.
    pub start: StartScratch,
}

/// A run, as an iterator over its checks: each is done when it is asked for.
///
/// An error is the last item: no client has come at all.
pub struct ResponderRun<'a> {
    client: ServedClient,
    /// The address of a network that it got.
    address: Option<SocketAddr>,
    selects: &'a dyn Fn(CheckText) -> bool,
    /// Those still to be done.
    checks: Box<dyn Iterator<Item = &'static ClientCheck>>,
    has_come: bool,
}

impl<'a> ResponderRun<'a> {
    /// Listens.
    ///
    /// # Errors
    ///
    /// It cannot listen there.
    pub fn begin(mut peer: Box<dyn RawPeer>, config: CheckedClients<'a>) -> Result<ResponderRun<'a>, String> {
        let CheckedClients { address, wait, selects, start } = config;
        let address = peer.listen(address)?;
        let client = ServedClient::new(peer, wait, start);
        Ok(ResponderRun { client, address, selects, checks: Box::new(checks()), has_come: false })
    }

    /// The address of a network at which it listens. None: the fabric has no such addresses.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

impl Iterator for ResponderRun<'_> {
    type Item = Result<(CheckText, CheckOutcome), String>;

    fn next(&mut self) -> Option<Self::Item> {
        let selects = self.selects;
        let Some(check) = self.checks.find(|check| selects(check.text())) else {
            self.client.disconnect();
            return None;
        };
        let outcome = (check.run)(&mut self.client);
        // A failed check may have left Calls behind that stay unanswered: the next check has a connection of its own.
        if matches!(outcome, Err(Stop::Fail(_))) {
            self.client.disconnect();
        }
        self.has_come |= self.client.messages > 0;
        match outcome {
            Err(Stop::NotApplicable(why)) if !self.has_come => {
                self.checks = Box::new(std::iter::empty());
                Some(Err(why))
            }
            outcome => Some(Ok((check.text(), outcome))),
        }
    }
}
