//! Whether a peer makes progress: takes its Replies, and lets its chunks be read.

use std::time::Duration;

/// How far a peer has come, as seen now and then.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Things that were awaited, and came.
    steps: u64,
    /// The step count and the time at which we began to wait.
    awaited: Option<(u64, Duration)>,
}

impl Progress {
    /// Something that was awaited came.
    #[inline]
    pub(crate) fn step(&mut self) {
        self.steps += 1;
    }

    /// For how long something has been awaited while nothing came, as of the last [`Progress::observe`].
    pub(crate) fn silence(&self, now: Duration) -> Duration {
        match self.awaited {
            Some((steps, since)) if steps == self.steps => now.saturating_sub(since),
            _ => Duration::ZERO,
        }
    }

    /// Notes whether something `is_awaited` now. Returns whether it has been for `limit`, while nothing at all came.
    pub(crate) fn observe(&mut self, is_awaited: bool, now: Duration, limit: Duration) -> bool {
        match self.awaited {
            Some((steps, since)) if is_awaited && steps == self.steps => now >= since.saturating_add(limit),
            _ => {
                self.awaited = is_awaited.then_some((self.steps, now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_begins_the_time_anew() {
        let second = Duration::from_secs;
        let mut progress = Progress::default();
        assert!(!progress.observe(true, second(0), second(10)));
        assert!(!progress.observe(true, second(9), second(10)));
        assert_eq!(progress.silence(second(9)), second(9));
        progress.step();
        assert_eq!(progress.silence(second(9)), Duration::ZERO);
        assert!(!progress.observe(true, second(10), second(10)));
        assert!(!progress.observe(true, second(19), second(10)));
        assert!(!progress.observe(false, second(30), second(10)), "nothing is awaited");
        assert!(!progress.observe(true, second(31), second(10)));
        assert!(progress.observe(true, second(41), second(10)));
    }
}
