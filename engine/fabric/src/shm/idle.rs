//! The connections that a pass polls: those that were used lately. The others ring their [`bells`](super::bells).

use std::sync::atomic::Ordering;

use super::{Active, Shm};

/// Up to this number of connections, all are polled in each pass, used or not.
const ACTIVE_MIN: usize = 4;
/// Looks at the clock without a message, 30 µs apart, after which a connection's bell is silenced.
const SILENCE_AFTER: u32 = 3;
/// The same, after which it is idle. All that its peer stored before the bell was silenced is visible by then.
const RETIRE_AFTER: u32 = 6;
/// Idle connections that are checked at each look at the clock, in rotation, in case a bell was lost.
const IDLE_LOOKS: usize = 4;

impl Shm {
    /// Takes unused connections off the list of the active ones, and looks at some of the idle ones.
    pub(super) fn retire_idle(&mut self) {
        if self.active.len() + self.ours.bells.idle_count() > ACTIVE_MIN {
            // From the end, so that what takes a retired one's place was looked at already.
            for at in (0..self.active.len()).rev() {
                self.age(at);
            }
        }
        for _ in 0..IDLE_LOOKS {
            let Some(index) = self.ours.bells.next_idle() else { return };
            let Some(Some(pair)) = self.slots.get(index as usize) else { continue };
            let Some(doorbell) = pair.doorbell() else { continue };
            // SAFETY: mapped and aligned, as long as the queue pair lives. Relaxed: the harvest looks again, in order.
            if unsafe { &*doorbell }.load(Ordering::Relaxed) != 0 {
                self.rouse(index);
            }
        }
    }

    /// One more look at the clock for an active connection.
    fn age(&mut self, at: usize) {
        let active = &mut self.active[at];
        // SAFETY: mapped and aligned (invariant of `Active`).
        let is_rung = || unsafe { &*active.doorbell }.load(Ordering::Relaxed) != 0;
        if active.doorbell != active.seen || is_rung() {
            // Its bell may be silent already.
            if active.quiet >= SILENCE_AFTER {
                self.ours.bells.quieten(active.index);
            }
            (active.seen, active.quiet) = (active.doorbell, 0);
            return;
        }
        active.quiet = active.quiet.saturating_add(1);
        let index = active.index;
        if active.quiet == SILENCE_AFTER {
            self.ours.bells.silence(index);
        }
        if active.quiet < RETIRE_AFTER {
            return;
        }
        if self.ours.bells.retire(index) {
            self.active.swap_remove(at);
        } else {
            active.quiet = 0;
        }
    }

    /// Looks at idle connections again whose bells were rung.
    #[cold]
    pub(super) fn answer_bells(&mut self) {
        let mut rung = std::mem::take(&mut self.rung);
        self.ours.bells.collect(&mut rung);
        for index in rung.drain(..) {
            self.rouse(index);
        }
        self.rung = rung;
    }

    /// Looks at a connection in each pass again, if it was idle.
    pub(super) fn rouse(&mut self, index: u32) {
        if !self.ours.bells.is_idle(index) {
            return;
        }
        self.ours.bells.quieten(index);
        let Some(Some(pair)) = self.slots.get(index as usize) else { return };
        if let Some(doorbell) = pair.doorbell() {
            self.active.push(Active { doorbell, index, seen: doorbell, quiet: 0 });
        }
    }
}
