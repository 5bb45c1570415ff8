//! Lines in the log about peers: as many as they cause would fill a disk, and writing them would take the reactor's time.

use std::time::Duration;

/// A few lines a second of what peers can cause.
#[derive(Debug)]
pub(crate) struct LogLimiter {
    /// Lines within one second, at most.
    lines_max: u32,
    /// Lines written since `next` was set.
    lines: u32,
    /// The end of the second.
    next: Duration,
    withheld: u64,
}

impl Default for LogLimiter {
    /// One line a second.
    fn default() -> LogLimiter {
        LogLimiter::new(1)
    }
}

impl LogLimiter {
    /// At most `lines_max` lines a second.
    pub(crate) fn new(lines_max: u32) -> LogLimiter {
        LogLimiter { lines_max, lines: 0, next: Duration::ZERO, withheld: 0 }
    }

    /// Whether to write a line now, and how many were withheld before it.
    pub(crate) fn admit(&mut self, now: Duration) -> Option<u64> {
        if now >= self.next {
            self.next = now + Duration::from_secs(1);
            self.lines = 0;
        }
        if self.lines == self.lines_max {
            self.withheld += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.withheld))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_withheld_is_counted() {
        let ms = Duration::from_millis;
        let mut complaints = LogLimiter::default();
        assert_eq!(complaints.admit(ms(0)), Some(0));
        assert_eq!(complaints.admit(ms(1)), None);
        assert_eq!(complaints.admit(ms(999)), None);
        assert_eq!(complaints.admit(ms(1000)), Some(2));
        assert_eq!(complaints.admit(ms(1001)), None);
        assert_eq!(complaints.admit(ms(60_000)), Some(1));
    }

    #[test]
    fn several_lines_a_second_if_that_is_wanted() {
        let mut complaints = LogLimiter::new(3);
        let mut admitted = |ms| (0..5).filter_map(|_| complaints.admit(Duration::from_millis(ms))).count();
        assert_eq!((admitted(0), admitted(500), admitted(1000)), (3, 0, 3));
        assert_eq!(complaints.admit(Duration::from_secs(3)), Some(2));
    }
}
