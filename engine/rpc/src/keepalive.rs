//! Whether the server is still there: a NULL Call on the credit that is kept back for it (8267-6.7.2-a).

use std::time::Duration;

use stag_fabric::Provider;

use crate::ConnectionId;
use crate::calling::Calling;
use crate::client::{Chunks, Credentials, Request};
use crate::state::Core;

impl Calling {
    /// Asks whether the server is there, if it is time.
    pub(crate) fn keep_alive<P: Provider>(&mut self, core: &mut Core<P>, id: ConnectionId) {
        let Some(policy) = self.policy.keep_alive else { return };
        if self.outstanding > 0 {
            // Not when the Call began: for that the last pass is taken, which may be long ago.
            self.busy_since.get_or_insert(core.now);
        }
        let Some(due) = self.keep_alive_due() else { return };
        if core.now < due || self.requester.available() == 0 {
            return;
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
        };
        let made = self.make(core, id, &request, &mut Chunks::default(), true, |_| Ok(()));
        core.statistics.keep_alives += u64::from(made.is_ok());
    }

    /// When the server is to be asked, if nothing comes before.
    pub(crate) fn keep_alive_due(&self) -> Option<Duration> {
        let policy = self.policy.keep_alive.filter(|_| !self.probing)?;
        let silent_since = match self.outstanding {
            0 if policy.when_idle => self.heard,
            0 => return None,
            _ => self.heard.max(self.busy_since?),
        };
        Some(silent_since.saturating_add(policy.after))
    }
}
