//! Lines in the log about peers: as many as they cause would fill a disk, and writing them would take the reactor's time.

use std::time::Duration;

/// At most one line a second of what peers can cause.
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    next: Duration,
    withheld: u64,
}

impl Complaints {
    /// Whether to write a line now, and how many were withheld before it.
    pub(crate) fn admit(&mut self, now: Duration) -> Option<u64> {
        if now < self.next {
            self.withheld += 1;
            return None;
        }
        self.next = now + Duration::from_secs(1);
        Some(std::mem::take(&mut self.withheld))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_withheld_is_counted() {
        let ms = Duration::from_millis;
        let mut complaints = Complaints::default();
        assert_eq!(complaints.admit(ms(0)), Some(0));
        assert_eq!(complaints.admit(ms(1)), None);
        assert_eq!(complaints.admit(ms(999)), None);
        assert_eq!(complaints.admit(ms(1000)), Some(2));
        assert_eq!(complaints.admit(ms(1001)), None);
        assert_eq!(complaints.admit(ms(60_000)), Some(1));
    }
}
