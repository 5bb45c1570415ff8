//! How a connection waits for memory, and which unused memory it can give up.

use std::time::Duration;

use super::{Connection, PAGES_MIN, PRESSED_RATE, SILENCE_MAX};
use crate::pools::PAGE_LEN;
use crate::server::pulling::{Pressure, worse};
use crate::state::Core;
use crate::stream::incoming::Short;

impl Connection {
    /// How it waits for memory that others hold, if it does.
    pub(in crate::stream) fn pressure(&self, now: Duration) -> Option<Pressure> {
        let of = |(since, short): (Duration, Short)| Pressure {
            time: now.saturating_sub(since),
            owner: short.owner,
        };
        worse(self.incoming.waits.map(of), self.barred.map(of))
    }

    /// Whose memory has to come back before another Call may be taken on, if it lacks the few pages that any Call takes.
    pub(super) fn missing_pages<P>(&self, core: &Core<P>) -> Option<Short> {
        let pool = &core.pools.payload;
        if pool.transit_free() < PAGES_MIN {
            return Some(Short { owner: None });
        }
        core.transit.leaves_untaken(&self.share, pool).map(|owner| Short { owner: Some(owner) })
    }

    /// Whether it lacks the few pages that any Call takes; notes since when.
    pub(super) fn lacks_pages<P>(&mut self, core: &Core<P>) -> bool {
        let missing = self.missing_pages(core);
        let since = self.barred.map_or(core.now, |(since, _)| since);
        self.barred = missing.filter(|_| self.share.replies() == 0).map(|short| (since, short));
        missing.is_some()
    }

    /// Octets of Replies whose peer takes none of them, though it should while others wait for memory.
    pub(in crate::stream) fn untaken_octets(&self, now: Duration) -> usize {
        let is_silent = self.outbox.queued() > 0 && now.saturating_sub(self.progress) >= SILENCE_MAX;
        if is_silent { self.counted * PAGE_LEN } else { 0 }
    }

    /// Octets that it holds for a record whose peer does not go on as it should while others wait for memory.
    pub(in crate::stream) fn idle_octets(&self, now: Duration) -> usize {
        if self.stalled {
            // Parts of records that have to be in one piece would wait for each other.
            let is_starved = self.incoming.starved.is_some_and(|since| now >= since + Duration::from_secs(1));
            return if is_starved { self.incoming.held() } else { 0 };
        }
        let Some(started) = self.incoming.started else { return 0 };
        let allowed = Duration::from_millis(1000 * self.incoming.came() as u64 / PRESSED_RATE);
        let is_silent = now.saturating_sub(self.active) >= SILENCE_MAX;
        let is_slow = now.saturating_sub(started) >= Duration::from_secs(1) + allowed;
        if is_silent || is_slow { self.incoming.held() } else { 0 }
    }
}
