//! Probes whether the server is still there: a NULL Call on the credit that is kept back for it
//! (8267-6.7.2-a).

use std::time::Duration;

use stag_fabric::Provider;

use crate::ConnectionId;
use crate::client::calling::Calling;
use crate::client::{Chunks, Credentials, ReplyMode, Request};
use crate::state::Core;

/// What the silence of a server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    /// Nothing, so far.
    Presumed,
    /// The server is gone: it had every opportunity to answer.
    Gone,
}

impl Calling {
    /// Probes the server, if it is time. It is gone where no probe can be sent because it answered no Call on any credit, although
    /// those Calls were abandoned.
    pub(crate) fn keep_alive<P: Provider>(&mut self, core: &mut Core<P>, id: ConnectionId) -> Liveness {
        let Some(policy) = self.policy.keep_alive else { return Liveness::Presumed };
        if self.is_busy() {
            // Not when the Call began: for that the last pass is taken, which may be long ago.
            self.busy_since.get_or_insert(core.now);
        }
        let due = self.keep_alive_due().filter(|due| core.now >= *due);
        let Some(due) = due else { return Liveness::Presumed };
        if self.requester.available() == 0 {
            let is_gone = self.outstanding == 0 && core.now >= due.saturating_add(policy.answer_within);
            return if is_gone { Liveness::Gone } else { Liveness::Presumed };
        }
        let request = Request {
            program: policy.program,
            version: policy.version,
            procedure: 0,
            credentials: Credentials::None,
            user: 0,
            timeout: policy.answer_within,
            results_len_max: 0,
            retransmit: false,
            reply_mode: ReplyMode::Auto,
        };
        let made = self.make(core, id, &request, &mut Chunks::default(), true, |_| Ok(()));
        core.statistics.keep_alives += u64::from(made.is_ok());
        Liveness::Presumed
    }

    /// Whether its server may have to be asked whether it lives.
    pub(crate) fn has_keep_alive(&self) -> bool {
        self.policy.keep_alive.is_some()
    }

    /// Whether the server owes an answer: also to Calls that were given up, whose credits are gone until it comes.
    fn is_busy(&self) -> bool {
        self.requester.window().in_flight() > 0
    }

    /// When to probe the server, if no message comes before.
    pub(crate) fn keep_alive_due(&self) -> Option<Duration> {
        let policy = self.policy.keep_alive.filter(|_| !self.probing)?;
        let silent_since = match self.is_busy() {
            true => self.heard.max(self.busy_since?),
            false if policy.when_idle => self.heard,
            false => return None,
        };
        Some(silent_since.saturating_add(policy.after))
    }
}
