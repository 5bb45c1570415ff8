//! How a connection waits for memory, and what it holds without using it.

use std::time::Duration;

use super::{Connection, PRESSED_RATE, SILENCE_MAX};
use crate::server::pulling::{Pressure, worse};

impl Connection {
    /// How it waits for memory that others hold, if it does.
    pub(in crate::stream) fn pressure(&self, now: Duration) -> Option<Pressure> {
        let of = |(since, owner)| Pressure { time: now.saturating_sub(since), owner };
        let record = self.incoming.waits.map(|(since, short)| of((since, short.owner)));
        worse(record, self.barred.map(|since| of((since, None))))
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
