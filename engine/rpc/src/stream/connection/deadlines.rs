//! The time limits of a byte stream.

use std::time::Duration;

use super::{Connection, Ending};
use crate::stream::incoming::PATIENCE_LONG;

/// How long an unused connection stays: as Linux's server does.
const IDLE_MAX: Duration = Duration::from_secs(6 * 60);

/// How long a peer that sends no more waits for its last Replies.
const ENDED_MAX: Duration = Duration::from_secs(60);

/// How long Replies may wait without the peer taking an octet.
const SEND_MAX: Duration = Duration::from_secs(30);

/// How long a record may take to arrive, beyond what its length allows.
const RECORD_MAX: Duration = Duration::from_secs(10);

/// Octets a second that a record has to come with.
const RECORD_RATE: u64 = 64 << 10;

impl Connection {
    /// Looks at the clock: has something taken too long?
    pub(in crate::stream) fn expire(&self, now: Duration, set_up_timeout: Duration) -> Result<(), Ending> {
        let since = |start: Duration| now.saturating_sub(start);
        if self.outbox.queued() > 0 && since(self.progress) >= SEND_MAX {
            return Err(Ending::TimedOut("it does not take its Replies"));
        }
        // A record that is on its way has a time of its own.
        let is_silent = self.calls == 0 && self.incoming.started.is_none() && !self.stalled;
        if is_silent && since(self.opened) >= set_up_timeout {
            return Err(Ending::TimedOut("it makes no Call"));
        }
        if let Some(started) = self.incoming.started
            && !self.stalled
            && since(started) >= RECORD_MAX + self.allowance()
        {
            return Err(Ending::TimedOut("a record takes too long to arrive"));
        }
        if self.incoming.starved.is_some_and(|starved| since(starved) >= PATIENCE_LONG) {
            return Err(Ending::TimedOut("there is no memory for a record of it"));
        }
        if self.ended && since(self.active) >= ENDED_MAX {
            return Err(Ending::Peer);
        }
        if self.later_count == 0 && since(self.active) >= IDLE_MAX {
            return Err(Ending::Idle);
        }
        Ok(())
    }

    /// What the length of the record that arrives now allows for.
    fn allowance(&self) -> Duration {
        let len = self.incoming.splitter.record_len().unwrap_or(0);
        Duration::from_secs(u64::from(len) / RECORD_RATE)
    }
}
