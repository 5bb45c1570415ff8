//! Free runs of units: finds a contiguous run, and merges a run that is given back with its neighbours.
//!
//! Plain bookkeeping on indices; it knows nothing of memory. Taking, giving and merging touch a bounded
//! number of tags. An *extent* is a maximal run of free units. The tag of its first unit (its head) holds its
//! length and its links in the list of its class; the tag of its last unit holds the length too, so that a
//! run given back finds the extent before it (boundary tags, as in Knuth; the classes are those of TLSF: four
//! for each power of two).

/// No unit.
const NONE: u32 = u32::MAX;
/// Lengths 1 to 7 have a class each; above that four classes for each power of two, up to 2^32 - 1.
const CLASSES: usize = 124;
/// How many extents of the one class that may or may not hold a long enough one are looked at.
const SCAN_MAX: usize = 16;

/// One unit's tag.
#[derive(Clone, Copy)]
struct Tag {
    /// Units of the extent that begins or ends here; 0 for every other unit, in use or free.
    len: u32,
    /// The class's next and previous extent. Only a head's are valid.
    next: u32,
    previous: u32,
}

/// The free extents of a pool.
pub(crate) struct Extents {
    tags: Box<[Tag]>,
    /// The first extent of each class.
    heads: [u32; CLASSES],
    /// Bit `c`: class `c` has an extent.
    occupied: u128,
}

/// The class that holds extents of `len` units.
#[inline]
fn class_of(len: u32) -> usize {
    debug_assert!(len > 0);
    if len < 8 {
        return len as usize;
    }
    let log = len.ilog2();
    (((log - 1) << 2) | ((len >> (log - 2)) & 3)) as usize
}

/// Whether every extent in the class of `len` has at least `len` units.
#[inline]
fn is_lower_bound(len: u32) -> bool {
    len < 8 || len.trailing_zeros() >= len.ilog2() - 2
}

impl Extents {
    /// `count` units, all free, in one extent.
    pub(crate) fn new(count: u32) -> Extents {
        let tags = vec![Tag { len: 0, next: NONE, previous: NONE }; count as usize].into_boxed_slice();
        let mut extents = Extents { tags, heads: [NONE; CLASSES], occupied: 0 };
        if count > 0 {
            extents.give(0, count);
        }
        extents
    }

    /// Takes a run of `count` units (at least 1) and returns its first.
    ///
    /// `None` if there is none, or if one barely long enough hides among more than [`SCAN_MAX`] that are
    /// just too short: the work is bounded. It does not hide when `count` is a power of two, or below 8.
    pub(crate) fn take(&mut self, count: u32) -> Option<u32> {
        let class = class_of(count);
        if !is_lower_bound(count) {
            // The closest fits may be in the class of `count` itself, among shorter ones.
            let mut head = self.heads[class];
            for _ in 0..SCAN_MAX {
                if head == NONE {
                    break;
                }
                let tag = self.tags[head as usize];
                if tag.len >= count {
                    self.carve(head, count);
                    return Some(head);
                }
                head = tag.next;
            }
        }
        let sure = class + usize::from(!is_lower_bound(count));
        let fitting = self.occupied.checked_shr(sure as u32).unwrap_or(0);
        if fitting == 0 {
            return None;
        }
        let head = self.heads[sure + fitting.trailing_zeros() as usize];
        self.carve(head, count);
        Some(head)
    }

    /// Takes at most `count` units (at least 1) from an extent of the lowest class, so that long extents
    /// stay whole. Returns the first and how many.
    pub(crate) fn take_from_shortest(&mut self, count: u32) -> Option<(u32, u32)> {
        if self.occupied == 0 {
            return None;
        }
        let head = self.heads[self.occupied.trailing_zeros() as usize];
        let count = count.min(self.tags[head as usize].len);
        self.carve(head, count);
        Some((head, count))
    }

    /// Takes at most `count` units (at least 1) from an extent of the highest class. Returns the first and
    /// how many.
    pub(crate) fn take_from_longest(&mut self, count: u32) -> Option<(u32, u32)> {
        if self.occupied == 0 {
            return None;
        }
        let head = self.heads[self.occupied.ilog2() as usize];
        let count = count.min(self.tags[head as usize].len);
        self.carve(head, count);
        Some((head, count))
    }

    /// Gives back `count` units (at least 1) that were taken, and merges them with the free ones before and
    /// after. They need not be a run that was taken as such.
    pub(crate) fn give(&mut self, first: u32, count: u32) {
        let (mut start, mut len) = (first, count);
        let end = first + count;
        if first > 0 {
            // The unit before is in use, or the last of an extent: it cannot be in the middle of one,
            // because `first` was in use.
            let before = self.tags[first as usize - 1].len;
            if before != 0 {
                start -= before;
                len += before;
                self.unlink(start);
                self.tags[first as usize - 1].len = 0;
            }
        }
        if let Some(tag) = self.tags.get(end as usize) {
            let after = tag.len;
            if after != 0 {
                len += after;
                self.unlink(end);
                self.tags[end as usize].len = 0;
            }
        }
        self.tags[(start + len - 1) as usize].len = len;
        self.link(start, len);
    }

    /// Takes the first `count` units out of the extent at `head`.
    fn carve(&mut self, head: u32, count: u32) {
        let len = self.tags[head as usize].len;
        debug_assert!(count > 0 && count <= len);
        self.unlink(head);
        self.tags[head as usize].len = 0;
        let rest = len - count;
        self.tags[(head + len - 1) as usize].len = rest;
        if rest > 0 {
            self.link(head + count, rest);
        }
    }

    /// Puts the extent at the front of its class: what was given last is taken first, while it is in the
    /// cache.
    fn link(&mut self, head: u32, len: u32) {
        let class = class_of(len);
        let next = self.heads[class];
        self.tags[head as usize] = Tag { len, next, previous: NONE };
        if next != NONE {
            self.tags[next as usize].previous = head;
        }
        self.heads[class] = head;
        self.occupied |= 1 << class;
    }

    /// Takes the extent at `head` out of its class. Leaves its tags' lengths for the caller to change.
    fn unlink(&mut self, head: u32) {
        let Tag { len, next, previous } = self.tags[head as usize];
        let class = class_of(len);
        if next != NONE {
            self.tags[next as usize].previous = previous;
        }
        if previous != NONE {
            self.tags[previous as usize].next = next;
        } else {
            self.heads[class] = next;
            if next == NONE {
                self.occupied &= !(1 << class);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn classes_are_ordered_and_know_their_lower_bounds() {
        let mut previous = 0;
        for len in 1..5000_u32 {
            let class = class_of(len);
            assert!(class == previous || class == previous + 1, "{len}");
            assert_eq!(is_lower_bound(len), class != previous, "{len}");
            previous = class;
        }
        assert_eq!(class_of(u32::MAX), CLASSES - 1);
    }

    #[test]
    fn neighbours_merge_in_every_order() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut extents = Extents::new(12);
            let runs = [4, 5, 3].map(|count| (extents.take(count).unwrap(), count));
            assert_eq!(extents.take(1), None);
            for index in order {
                extents.give(runs[index].0, runs[index].1);
            }
            assert_eq!(extents.take(12), Some(0), "{order:?}");
        }
    }

    #[test]
    fn a_run_comes_back_in_other_pieces_than_it_was_taken() {
        let mut extents = Extents::new(100);
        assert_eq!(extents.take(60), Some(0));
        assert_eq!(extents.take(40), Some(60));
        for unit in (0..100).step_by(2) {
            extents.give(unit, 1);
        }
        assert_eq!(extents.take(2), None);
        for unit in (1..100).step_by(2) {
            extents.give(unit, 1);
        }
        assert_eq!(extents.take(100), Some(0));
    }

    #[test]
    fn the_shortest_that_fits_is_cut_and_the_longest_can_be_had() {
        let mut extents = Extents::new(64);
        for first in [0, 3, 10, 13, 63] {
            assert_eq!(extents.take(1).is_some(), first < 64);
        }
        // In use: 0..5. Free again: 1..3, and 5..64.
        extents.give(1, 2);
        assert_eq!(extents.take_from_shortest(16), Some((1, 2)));
        extents.give(1, 2);
        assert_eq!(extents.take_from_longest(16), Some((5, 16)));
        assert_eq!(extents.take(2), Some(1));
        assert_eq!(extents.take(43), Some(21));
        assert_eq!(extents.take_from_longest(1), None);
    }
}
