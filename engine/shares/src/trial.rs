//! Finds by trial how many credits a connection can use.
//!
//! A server sees how many Calls are in process, but not how many are on their way, and it does not know how long that way is. So
//! a busy connection gets twice its limit for one round of Calls, and keeps it if they came an eighth faster. If credits are
//! scarce, a connection whose Calls use less than a quarter of its limit at once gets half for one round, and keeps that unless
//! they came an eighth slower. After a failed trial the next one is later, and the delay doubles each time: a trial that does not
//! help costs nearly nothing.

use std::time::Duration;

/// Rounds until the next trial after one that failed, at first and at most.
const WAIT_MIN: u32 = 64;
const WAIT_MAX: u32 = 4096;

/// Time in which a client uses its limit up if its Calls are on their way for that long. Who takes longer is not held up by its
/// limit.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Direction {
    Up,
    Down,
}

/// What is known at the end of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundResult {
    pub(crate) calls: u32,
    pub(crate) time: Duration,
    /// The most Calls at once.
    pub(crate) peak: u32,
    /// The limit that it had, and the most that would be fair.
    pub(crate) limit: u32,
    pub(crate) fair: u32,
    pub(crate) is_scarce: bool,
}

/// The trials of one connection.
#[derive(Debug)]
pub(crate) struct CreditTrial {
    /// The one of this round, and the limit before.
    running: Option<(Direction, u32)>,
    /// Nanoseconds for a Call in the last round without one; 0: it is not known.
    pace: u64,
    /// Rounds until the next one.
    wait: u32,
    next_wait: u32,
    /// Fewer credits were tried last, and were too few.
    needs_all: bool,
}

impl Default for CreditTrial {
    fn default() -> CreditTrial {
        CreditTrial { running: None, pace: 0, wait: 0, next_wait: WAIT_MIN, needs_all: false }
    }
}

impl CreditTrial {
    /// The limit changed for another reason: this round tells nothing.
    pub(crate) fn cancel(&mut self) {
        self.running = None;
        self.pace = 0;
    }

    /// A round is over. Returns the limit of the next one.
    pub(crate) fn end_round(&mut self, round: &RoundResult) -> u32 {
        let &RoundResult { calls, time, peak, limit, fair, is_scarce } = round;
        let pace = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) / u64::from(calls.max(1));
        let (before, limit) = match self.running.take() {
            None => (self.pace, limit),
            Some((direction, limit_before)) => {
                let has_passed = match direction {
                    Direction::Up => pace.saturating_mul(8) <= self.pace.saturating_mul(7),
                    Direction::Down => pace.saturating_mul(7) <= self.pace.saturating_mul(8),
                };
                self.needs_all = direction == Direction::Down && !has_passed;
                if !has_passed {
                    // It is as it was before: so is its pace.
                    if direction == Direction::Up || !is_scarce {
                        self.wait = self.next_wait;
                        self.next_wait = (self.next_wait * 2).min(WAIT_MAX);
                    }
                    return limit_before;
                }
                self.next_wait = WAIT_MIN;
                (pace, limit)
            }
        };
        self.pace = pace;
        if self.wait > 0 {
            self.wait -= 1;
            return limit;
        }
        if before == 0 || pace == 0 {
            return limit;
        }
        let is_busy = pace.saturating_mul(limit.into()) <= ROUND_TRIP_MAX.as_nanos() as u64;
        // With half of it, its Calls would still use less than half at once.
        if is_scarce && !self.needs_all && peak * 4 < limit {
            self.running = Some((Direction::Down, limit));
            return limit / 2;
        }
        if is_busy && limit < fair {
            self.running = Some((Direction::Up, limit));
            return (limit * 2).min(fair);
        }
        // It has what is fair, or is idle.
        if self.needs_all {
            self.needs_all = false;
            self.wait = self.next_wait;
            self.next_wait = (self.next_wait * 2).min(WAIT_MAX);
        }
        limit
    }
}
