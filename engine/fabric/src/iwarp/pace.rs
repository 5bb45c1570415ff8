//! When to send before the end of a pass, so that the peer need not wait for all of it.
//!
//! A system call costs as much as ten to twenty small messages, so all messages of a pass leave together: that is best if both
//! ends are busy. But an end that has waited knows that the peer was working meanwhile, and that the peer will wait next: only
//! one end works at a time. Then many answers leave in two halves, so that both ends work; once both are busy neither waits, and
//! nothing is divided any more. Few answers are not divided: the system calls cost both ends more time than is gained (measured:
//! from 2 to 8 messages a fifth was lost, at 32 a third won). The answer to a single message, and the first message of a queue
//! pair that has received none, leave at once.

/// Looks in a row that find nothing before this end counts as one that waits: together they take longer than the system
/// call that an early half costs.
const IDLE_LOOKS: u32 = 16;

/// Messages of a half, at least.
const HALF_MIN: u32 = 8;

/// The pace of one queue pair.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Looks in a row that found nothing.
    idle_looks: u32,
    /// Messages, Read Requests and Reads that came since something was found again.
    arrived: u32,
    /// Messages and Reads that were posted since then.
    posted: u32,
    /// Something may still leave early in this pass.
    may_lead: bool,
}

impl Pace {
    /// Nothing has come.
    #[inline(always)]
    pub(super) fn note_nothing(&mut self) {
        self.idle_looks = self.idle_looks.saturating_add(1);
        if self.idle_looks >= IDLE_LOOKS {
            (self.may_lead, self.arrived, self.posted) = (true, 0, 0);
        }
    }

    /// Octets have come, the first that this look finds.
    #[inline(always)]
    pub(super) fn note_something(&mut self) {
        self.may_lead = self.idle_looks >= IDLE_LOOKS;
        (self.idle_looks, self.arrived, self.posted) = (0, 0, 0);
    }

    /// A message has come, a Read Request, or the data of a Read.
    #[inline(always)]
    pub(super) fn note_arrival(&mut self) {
        self.arrived += 1;
    }

    /// A Send or a Read was posted. `true`: what is made so far is to leave at once.
    #[inline(always)]
    pub(super) fn note_posted(&mut self) -> bool {
        self.posted = self.posted.saturating_add(1);
        let is_due = match self.arrived {
            0 | 1 => true,
            many => many >= 2 * HALF_MIN && self.posted >= many.div_ceil(2),
        };
        self.may_lead && is_due && std::mem::take(&mut self.may_lead)
    }

    /// Messages were answered up to here; `left` of `all` their octets remain. `true`: the answers made so far should leave
    /// at once, if there are any.
    #[inline(always)]
    pub(super) fn is_half_way(&self, left: usize, all: usize) -> bool {
        match self.arrived {
            0 | 1 => self.may_lead && left == 0,
            many => self.may_lead && many >= HALF_MIN && left <= all / 2,
        }
    }

    /// Something has left early: the rest of the pass leaves together.
    #[inline(always)]
    pub(super) fn note_led(&mut self) {
        self.may_lead = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of `count` messages leave at once, together with those before.
    fn leads(pace: &mut Pace, count: u32) -> Vec<u32> {
        (1..=count).filter(|_| pace.note_posted()).collect()
    }

    fn idle(pace: &mut Pace) {
        (0..IDLE_LOOKS).for_each(|_| pace.note_nothing());
    }

    #[test]
    fn the_first_of_an_idle_queue_pair_leaves_at_once() {
        let mut pace = Pace::default();
        assert_eq!(leads(&mut pace, 3), []);
        idle(&mut pace);
        assert_eq!(leads(&mut pace, 32), [1]);
        assert_eq!(leads(&mut pace, 3), [], "once, until it is idle again");
        pace.note_nothing();
        assert_eq!(leads(&mut pace, 3), [1]);
    }

    #[test]
    fn answers_leave_in_halves_where_this_end_has_waited() {
        let mut pace = Pace::default();
        for (arrived, first) in [(1, Some(1)), (2, None), (15, None), (16, Some(8)), (33, Some(17))] {
            idle(&mut pace);
            pace.note_something();
            (0..arrived).for_each(|_| pace.note_arrival());
            assert_eq!(leads(&mut pace, arrived), first.into_iter().collect::<Vec<_>>(), "of {arrived}");
            pace.note_nothing();
            pace.note_something();
            (0..arrived).for_each(|_| pace.note_arrival());
            assert_eq!(leads(&mut pace, arrived), [], "no end waits");
        }
    }

    #[test]
    fn half_way_is_told_once() {
        let mut pace = Pace::default();
        for (arrived, expected) in [
            (1, [false, false, false, true]),
            (7, [false, false, false, false]),
            (8, [false, true, true, true]),
        ] {
            idle(&mut pace);
            pace.note_something();
            (0..arrived).for_each(|_| pace.note_arrival());
            assert_eq!([60, 50, 40, 0].map(|left| pace.is_half_way(left, 100)), expected, "{arrived}");
            pace.note_led();
            assert!(!pace.is_half_way(0, 100));
        }
    }
}
