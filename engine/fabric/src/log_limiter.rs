//! Lines in the log about peers: as many as they cause would fill a disk, and writing them would take the reactor's time.

use std::fmt;
use std::time::Duration;

/// A few lines a second of what peers can cause.
#[derive(Debug)]
pub struct LogLimiter {
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
    #[must_use]
    pub fn new(lines_max: u32) -> LogLimiter {
        LogLimiter { lines_max, lines: 0, next: Duration::ZERO, withheld: 0 }
    }

    /// Whether to write a line now, and how many were withheld before it.
    pub fn admit(&mut self, now: Duration) -> Option<u64> {
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

/// Lines that were left out before this one: nothing, or `; 7 lines like this were left out before`.
#[derive(Clone, Copy, Debug)]
pub struct Withheld(pub u64);

impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            1 => f.write_str("; 1 line like this was left out before"),
            count => write!(f, "; {count} lines like this were left out before"),
        }
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
