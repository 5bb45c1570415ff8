//! Messages between the lockings of a group of reactors: that a host restarted.
//!
//! A host says so by SM_NOTIFY, which all reactors get, and by the NSM state in a LOCK, which only the reactor of that file's
//! locks gets. A reactor that gets a new state tells it to the others, so that the host's locks end there as well.

use std::io;

use stag_runtime::{Receiver, Sender, mailbox};

use super::hosts::Place;

/// News that wait for one reactor at most. There is one for each restart of a host.
const NEWS_MAX: usize = 256;

/// A host, and the NSM state that it is in.
#[derive(Clone, Debug)]
pub(super) struct HostState {
    pub(super) name: Box<[u8]>,
    pub(super) place: Place,
    pub(super) state: u32,
}

/// What one locking of a group hears from the others, and tells them.
pub struct LockingLink {
    others: Vec<Sender<HostState>>,
    pub(super) news: Receiver<HostState>,
}

impl LockingLink {
    /// One for each of `count` lockings.
    ///
    /// # Errors
    ///
    /// When the process has no descriptor left.
    pub fn all(count: usize) -> io::Result<Vec<LockingLink>> {
        let mailboxes: Vec<_> = (0..count).map(|_| mailbox(NEWS_MAX)).collect::<Result<_, _>>()?;
        let (senders, receivers): (Vec<_>, Vec<_>) = mailboxes.into_iter().unzip();
        let link = |(own, news)| {
            let others = senders.iter().enumerate().filter(|(index, _)| *index != own);
            LockingLink { others: others.map(|(_, sender)| Sender::clone(sender)).collect(), news }
        };
        Ok(receivers.into_iter().enumerate().map(link).collect())
    }

    /// Tells the others.
    #[cold]
    pub(super) fn tell(&self, host: &HostState) {
        for other in &self.others {
            if other.send(host.clone()).is_err() {
                tracing::warn!("a restart of a lock client is not told to all cores: too many at once");
            }
        }
    }
}
