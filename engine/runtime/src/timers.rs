//! Timers of one reactor: bounded, cancelable, and no allocation after `new`.
//!
//! A binary heap of slots, each of which knows its place in the heap. Most time-outs of Calls are inserted in
//! the order of their deadlines, which moves nothing, and cancelled long before they are due. No crate was found that is
//! bounded, cancels in place and allocates nothing.

use std::time::Duration;

/// Names a timer until it is popped or cancelled; never names another one afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId {
    index: u32,
    generation: u32,
}

/// A bounded set of timers, each with a token for its owner.
///
/// Timers of the same deadline come in the order they were inserted, so that a run can be repeated.
#[derive(Debug)]
pub struct Timers<T> {
    slots: Vec<Slot<T>>,
    /// Slot indices. A parent is due no later than its children.
    heap: Vec<u32>,
    /// Head of the list of free slots.
    free: u32,
    /// Tells timers of the same deadline apart. Never wraps: 500 years at one a nanosecond.
    sequence: u64,
}

#[derive(Debug)]
struct Slot<T> {
    /// Counts the uses of the slot.
    generation: u32,
    /// Its place in the heap; in a free slot, the next free one.
    place: u32,
    key: (Duration, u64),
    /// `None` in a free slot.
    token: Option<T>,
}

/// Ends the list of free slots.
const NONE: u32 = u32::MAX;

impl<T> Timers<T> {
    /// Room for `capacity` timers.
    ///
    /// # Panics
    ///
    /// If `capacity` is 2^32 - 1 or more.
    #[must_use]
    pub fn new(capacity: usize) -> Timers<T> {
        let count = u32::try_from(capacity).unwrap_or(NONE);
        assert!(count < NONE, "timers: a capacity of {capacity} is not below {NONE}");
        let slot = |index| Slot {
            generation: 0,
            place: if index + 1 < count { index + 1 } else { NONE },
            key: (Duration::ZERO, 0),
            token: None,
        };
        Timers {
            slots: (0..count).map(slot).collect(),
            heap: Vec::with_capacity(capacity),
            free: if count == 0 { NONE } else { 0 },
            sequence: 0,
        }
    }

    /// Adds a timer that is due at `deadline`. `None`: all are in use.
    pub fn insert(&mut self, deadline: Duration, token: T) -> Option<TimerId> {
        let index = self.free;
        let place = self.heap.len();
        let slot = self.slots.get_mut(index as usize)?;
        self.free = slot.place;
        slot.key = (deadline, self.sequence);
        slot.token = Some(token);
        let generation = slot.generation;
        self.sequence += 1;
        self.heap.push(index);
        self.sift_up(place);
        Some(TimerId { index, generation })
    }

    /// Takes a timer back. `None`: it was popped or cancelled before.
    pub fn cancel(&mut self, id: TimerId) -> Option<T> {
        let slot = self.slots.get(id.index as usize)?;
        if slot.generation != id.generation || slot.token.is_none() {
            return None;
        }
        self.remove(slot.place as usize)
    }

    /// The deadline of the timer that is due first.
    #[inline]
    #[must_use]
    pub fn next(&self) -> Option<Duration> {
        self.heap.first().map(|&index| self.slots[index as usize].key.0)
    }

    /// The token of a timer that is due at `now`, earliest first; `None` when none is (any more).
    #[inline]
    pub fn pop(&mut self, now: Duration) -> Option<T> {
        if self.next()? <= now { self.remove(0) } else { None }
    }

    /// The number of timers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether there is no timer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// The number of timers that there is room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    fn remove(&mut self, place: usize) -> Option<T> {
        let index = self.heap.swap_remove(place);
        // Another one took its place. It may have to go either way: it comes from another branch.
        if place < self.heap.len() {
            self.sift_up(place);
            self.sift_down(place);
        }
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.place = self.free;
        self.free = index;
        slot.token.take()
    }

    fn sift_up(&mut self, mut place: usize) {
        while place > 0 && self.key(place) < self.key((place - 1) / 2) {
            self.heap.swap(place, (place - 1) / 2);
            self.note(place);
            place = (place - 1) / 2;
        }
        self.note(place);
    }

    fn sift_down(&mut self, mut place: usize) {
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.heap.len());
            let first = children.min_by_key(|&child| self.key(child));
            let Some(child) = first.filter(|&child| self.key(child) < self.key(place)) else { break };
            self.heap.swap(place, child);
            self.note(place);
            place = child;
        }
        self.note(place);
    }

    fn key(&self, place: usize) -> (Duration, u64) {
        self.slots[self.heap[place] as usize].key
    }

    /// Writes a heap entry's place into its slot.
    fn note(&mut self, place: usize) {
        // Places are below the capacity, which fits in 32 bits.
        self.slots[self.heap[place] as usize].place = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn timers_come_by_deadline_then_by_age() {
        let mut timers = Timers::new(8);
        for (deadline, token) in [(30, 'd'), (10, 'a'), (20, 'b'), (20, 'c')] {
            timers.insert(ms(deadline), token).unwrap();
        }
        assert_eq!(timers.next(), Some(ms(10)));
        assert_eq!(timers.pop(ms(9)), None);
        assert_eq!(timers.pop(ms(20)), Some('a'));
        assert_eq!(timers.pop(ms(20)), Some('b'));
        assert_eq!(timers.pop(ms(20)), Some('c'));
        assert_eq!(timers.pop(ms(20)), None);
        assert_eq!(timers.next(), Some(ms(30)));
        assert_eq!(timers.len(), 1);
    }

    #[test]
    fn an_id_names_one_timer_only() {
        let mut timers = Timers::new(1);
        let first = timers.insert(ms(1), 'a').unwrap();
        assert_eq!(timers.insert(ms(1), 'x'), None, "full");
        assert_eq!(timers.cancel(first), Some('a'));
        assert_eq!(timers.cancel(first), None);
        let second = timers.insert(ms(2), 'b').unwrap();
        assert_ne!(first, second);
        assert_eq!(timers.cancel(first), None, "the slot is another timer's now");
        assert_eq!(timers.pop(ms(2)), Some('b'));
        assert_eq!(timers.cancel(second), None, "popped");
    }

    #[test]
    fn no_room_at_all_is_allowed() {
        let mut timers = Timers::new(0);
        assert_eq!(timers.insert(ms(1), ()), None);
        assert_eq!(timers.next(), None);
        assert_eq!(timers.pop(Duration::MAX), None);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Cancel(prop::sample::Index),
        Pop(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..50u64).prop_map(Step::Insert),
            2 => any::<prop::sample::Index>().prop_map(Step::Cancel),
            1 => (0..50u64).prop_map(Step::Pop),
        ]
    }

    proptest! {
        /// Against an ordered map that does the same.
        #[test]
        fn timers_behave_as_an_ordered_map(steps in prop::collection::vec(step(), 0..200)) {
            const CAPACITY: usize = 16;
            let mut timers = Timers::new(CAPACITY);
            let heap = timers.heap.as_ptr();
            let mut model = BTreeMap::new();
            let mut ids = Vec::new();
            for (token, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(at) => {
                        let id = timers.insert(ms(at), token);
                        prop_assert_eq!(id.is_some(), model.len() < CAPACITY);
                        if let Some(id) = id {
                            model.insert((ms(at), token), token);
                            ids.push((id, (ms(at), token)));
                        }
                    }
                    Step::Cancel(which) if !ids.is_empty() => {
                        let (id, key) = *which.get(&ids);
                        prop_assert_eq!(timers.cancel(id), model.remove(&key));
                    }
                    Step::Cancel(_) => {}
                    Step::Pop(now) => {
                        let due = model.first_key_value().filter(|(key, _)| key.0 <= ms(now));
                        let due = due.map(|(&key, _)| key);
                        prop_assert_eq!(timers.pop(ms(now)), due.map(|key| key.1));
                        due.map(|key| model.remove(&key));
                    }
                }
                prop_assert_eq!(timers.len(), model.len());
                prop_assert_eq!(timers.next(), model.first_key_value().map(|(key, _)| key.0));
            }
            prop_assert_eq!(timers.heap.as_ptr(), heap, "it allocated");
        }
    }
}
