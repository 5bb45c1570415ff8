//! How many of each kind there are at all reactors together, without a lock.
//!
//! A table of one word for each key that is counted: a part of the key's hash, and the count. A word whose count is 0 is free,
//! whatever hash it has, so nothing is ever removed. Keys are added and counts changed when connections come and go; reading a
//! count is one load.
//!
//! Two keys of one hash share a count. One key may have two words for a while, when an earlier word became free just as two
//! reactors added the key: the count is then too low until these words are free again. So the counts are good for shares, not for
//! limits.

use crate::sync::{Arc, AtomicU64, Ordering};

/// Bits of a word that count.
const COUNT_BITS: u32 = 24;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// Words that a key may be in.
const PROBES: usize = 8;

/// Times that a word may change while a key is added, until it is not counted.
const ATTEMPTS_MAX: usize = 64;

/// Counts of keys, shared by all reactors of a group. Clones are the same table.
#[derive(Clone, Debug)]
pub struct HeadCounts(Arc<Vec<AtomicU64>>);

impl HeadCounts {
    /// A table with room for about `keys_max` keys at once.
    #[must_use]
    pub fn new(keys_max: usize) -> HeadCounts {
        HeadCounts(Arc::new((0..HeadCounts::words(keys_max)).map(|_| AtomicU64::new(0)).collect()))
    }

    /// Octets of memory of one with room for `keys_max` keys.
    #[must_use]
    pub fn footprint(keys_max: usize) -> usize {
        HeadCounts::words(keys_max) * size_of::<u64>()
    }

    fn words(keys_max: usize) -> usize {
        (keys_max * 2).next_power_of_two().max(PROBES)
    }

    /// Counts one more of `key`, and returns where: [`HeadCounts::remove`] takes it back. `None`: there is no room, and it is not
    /// counted.
    #[must_use]
    pub fn add(&self, key: u128) -> Option<u32> {
        let words = &self.0;
        let hash = (((key >> 64) as u64) ^ key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let tag = hash >> COUNT_BITS << COUNT_BITS;
        let place = |probe: usize| ((hash >> 32) as usize + probe) & (words.len() - 1);
        for _ in 0..ATTEMPTS_MAX {
            // Relaxed throughout: the words guard no other memory.
            let read = |probe| words[place(probe)].load(Ordering::Relaxed);
            let is_own = |word: u64| word & COUNT_MASK > 0 && word & !COUNT_MASK == tag;
            let own = (0..PROBES).map(|probe| (probe, read(probe))).find(|&(_, word)| is_own(word));
            let free =
                || (0..PROBES).map(|probe| (probe, read(probe))).find(|&(_, word)| word & COUNT_MASK == 0);
            let (probe, before) = own.or_else(free)?;
            if before & COUNT_MASK == COUNT_MASK {
                return None;
            }
            let after = if is_own(before) { before + 1 } else { tag | 1 };
            let word = &words[place(probe)];
            if word.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return Some(place(probe) as u32);
            }
        }
        None
    }

    /// Counts one more of the key that [`HeadCounts::add`] counted at `place`, and that was not removed as often.
    pub fn add_at(&self, place: u32) {
        let before = self.0[place as usize].fetch_add(1, Ordering::Relaxed);
        debug_assert!((1..COUNT_MASK).contains(&(before & COUNT_MASK)), "nothing was added, or too much");
    }

    /// Counts one less at `place`, where [`HeadCounts::add`] counted it. The word stays that key's while its count is not 0.
    pub fn remove(&self, place: u32) {
        let before = self.0[place as usize].fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before & COUNT_MASK > 0, "removed more often than added");
    }

    /// How many there are at `place`.
    #[must_use]
    pub fn count(&self, place: u32) -> u32 {
        (self.0[place as usize].load(Ordering::Relaxed) & COUNT_MASK) as u32
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_its_count() {
        let counts = HeadCounts::new(100);
        let mut places = Vec::new();
        for key in 0..50 {
            places.extend((0..=key).map(|_| (key, counts.add(key).expect("room"))));
        }
        for &(key, place) in &places {
            assert_eq!(u128::from(counts.count(place)), key + 1);
        }
        places.iter().for_each(|(_, place)| counts.remove(*place));
        assert!(counts.0.iter().all(|word| word.load(Ordering::Relaxed) & COUNT_MASK == 0));
        // The words are free again.
        let again: Vec<_> = (1000..1050).map(|key| counts.add(key).expect("room")).collect();
        assert!(again.iter().all(|place| counts.count(*place) == 1));
    }

    #[test]
    fn one_for_whom_there_is_no_room_is_not_counted() {
        let counts = HeadCounts::new(1);
        assert_eq!((0..20).filter(|key| counts.add(*key).is_some()).count(), PROBES);
    }
}

#[cfg(all(test, loom))]
mod tests {
    use loom::thread;

    use super::*;

    /// Two reactors add and remove a key each, the same or two: nothing is lost, and no count is mixed with
    /// another's.
    #[test]
    fn loom_nothing_is_lost() {
        for keys in [[7, 7], [7, 8]] {
            loom::model(move || {
                let counts = HeadCounts::new(1);
                let other = counts.clone();
                let thread = thread::spawn(move || {
                    let place = other.add(keys[1]).unwrap();
                    let seen = other.count(place);
                    assert!((1..=2).contains(&seen), "{seen}");
                    other.add_at(place);
                    other.remove(place);
                    other.remove(place);
                    other.add(keys[1]).unwrap()
                });
                let place = counts.add(keys[0]).unwrap();
                let theirs = thread.join().unwrap();
                let expected = if keys[0] == keys[1] && place == theirs { 2 } else { 1 };
                assert_eq!((counts.count(place), counts.count(theirs)), (expected, expected));
                counts.remove(place);
                counts.remove(theirs);
                let left: u64 = counts.0.iter().map(|word| word.load(Ordering::Relaxed) & COUNT_MASK).sum();
                assert_eq!(left, 0);
            });
        }
    }
}
