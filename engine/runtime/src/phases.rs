//! How a group of reactors stops: in phases that all of them enter together.
//!
//! ```text
//!   serve ──stop──▶ finish ──all have finished──▶ give back ──all have given back──▶ leave
//! ```
//!
//! A reactor that has finished its own Calls goes on serving what others carry to it, and one that holds nothing of others goes
//! on taking back what is its own: no reactor leaves while another waits for it. The state is one countdown for each phase, so a
//! reactor that is too late (the deadline has passed) counts itself down for all that is left, and the others do not wait for it.

use std::time::Duration;

use crate::sync::{AtomicU64, AtomicUsize, Ordering};

/// What a reactor says once, when it has done its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Milestone {
    /// Its connections and the Calls that it took in are over.
    Finished = 0,
    /// It holds nothing of others, and has nothing of its own that others may ask for.
    GaveBack = 1,
}

/// The countdowns that the reactors of a group share.
#[derive(Debug)]
pub(crate) struct StopPhases {
    /// Reactors that have not reached each milestone.
    remaining: [AtomicUsize; 2],
    /// When the first reactor saw the stop, in nanoseconds of the group's clock, plus one; 0 before.
    began: AtomicU64,
}

impl StopPhases {
    pub(crate) fn new(count: usize) -> StopPhases {
        StopPhases { remaining: [AtomicUsize::new(count), AtomicUsize::new(count)], began: AtomicU64::new(0) }
    }

    /// Says that the calling reactor stops at `now`, and when the first one did: all have one deadline.
    pub(crate) fn begin(&self, now: Duration) -> Duration {
        // A u64 of nanoseconds lasts 584 years, so the cast cuts nothing off.
        let mine = now.as_nanos() as u64 + 1;
        // Relaxed: nothing is read because of it.
        match self.began.compare_exchange(0, mine, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => now,
            Err(first) => Duration::from_nanos(first - 1),
        }
    }

    /// The calling reactor has reached a milestone; once for each. `true`: it is the last one, and wakes the others.
    pub(crate) fn reach(&self, milestone: Milestone) -> bool {
        // Release: what we published before is seen by the reactor that sees the countdown at its end. Acquire: the last one
        // sees all of it itself, and its own zero passes it on.
        self.remaining[milestone as usize].fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether all reactors have reached it.
    pub(crate) fn is_reached_by_all(&self, milestone: Milestone) -> bool {
        // Acquire pairs with the Release in `reach`.
        self.remaining[milestone as usize].load(Ordering::Acquire) == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_who_stops_sets_the_time_for_all() {
        let phases = StopPhases::new(2);
        let times = [7, 9, 3].map(Duration::from_nanos);
        assert_eq!(times.map(|now| phases.begin(now)), [times[0]; 3]);
    }
}

#[cfg(all(loom, test))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::handshake::Handshake;

    /// Three reactors in every order: none is in a phase before all have reached what ends the one before, one of them is the
    /// last, and what each wrote before it said so is seen by all. Preemptions are bounded: all of them take hours.
    #[test]
    fn loom_three_reactors_enter_each_phase_together() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(|| {
            let group =
                Arc::new((StopPhases::new(3), [0, 1, 2].map(|_| AtomicUsize::new(0)), AtomicUsize::new(0)));
            let reactor = |group: Arc<(StopPhases, [AtomicUsize; 3], AtomicUsize)>, id: usize| {
                let (phases, wrote, last) = &*group;
                wrote[id].store(1, Ordering::Relaxed);
                if phases.reach(Milestone::Finished) {
                    last.fetch_add(1, Ordering::Relaxed);
                }
                if phases.is_reached_by_all(Milestone::Finished) {
                    for wrote in wrote {
                        assert_eq!(wrote.load(Ordering::Relaxed), 1, "entered before all had finished");
                    }
                }
                // As one does whose deadline has passed: it reaches what is left without waiting.
                phases.reach(Milestone::GaveBack);
                if phases.is_reached_by_all(Milestone::GaveBack) {
                    assert!(phases.is_reached_by_all(Milestone::Finished), "phases are in order for all");
                }
            };
            let threads: Vec<_> = (1..3)
                .map(|id| {
                    let group = group.clone();
                    thread::spawn(move || reactor(group, id))
                })
                .collect();
            reactor(group.clone(), 0);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(group.0.is_reached_by_all(Milestone::GaveBack));
            assert_eq!(group.2.load(Ordering::Relaxed), 1, "one is the last");
        });
    }

    /// A reactor that waits for the others and goes to sleep is woken by the last one.
    #[test]
    fn loom_who_waits_for_the_others_is_woken_by_the_last() {
        loom::model(|| {
            let group = Arc::new((StopPhases::new(2), Handshake::new(), AtomicUsize::new(0)));
            let other = group.clone();
            let thread = thread::spawn(move || {
                if other.0.reach(Milestone::Finished) && other.1.must_wake() {
                    other.2.fetch_add(1, Ordering::Relaxed);
                }
            });
            let is_last = group.0.reach(Milestone::Finished);
            group.1.arm();
            let sleeps = !group.0.is_reached_by_all(Milestone::Finished);
            thread.join().unwrap();
            let signals = group.2.load(Ordering::Relaxed);
            assert!(!sleeps || signals == 1, "asleep, and never woken");
            assert!(!(is_last && sleeps));
        });
    }
}
