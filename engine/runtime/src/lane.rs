//! Lanes: bounded rings from one thread to one other, for the steady traffic between reactors.
//!
//! ```text
//!   writer                                                       reader
//!   position ─────────┐                         ┌─────────────── position
//!                     ▼                         ▼
//!   places   [ free ][ pushed ][ published ][ published ][ popped, not given back ][ free ]
//!                              ▲                         ▲
//!   own line: tail ────────────┘ Release                 └────── own line: head, Release
//! ```
//!
//! A mailbox costs each send an atomic exchange and a fence; a lane costs a *batch* one store on either side. The writer fills
//! places that the reader does not see, and [`LaneWriter::publish`] shows all of them with one store of `tail`. The reader
//! rereads `tail` when it has consumed all values it knew of, prefetches the lines of the new ones, and gives places back by a
//! store of `head` once in a quarter of the ring, and when it runs empty. Each side rereads the other's index only when its
//! own copy of it is used up, so that the two index lines move once a batch, not once a value.
//!
//! A lane of [`LaneRecord`]s is written and read in place: no octet is copied to get into it or out of it.
//!
//! A lane wakes no reactor. [`Bell`](crate::Bell) does, once for all lanes that end at one reactor.

mod record;

use std::fmt;
use std::mem::{MaybeUninit, size_of};

use crossbeam_utils::CachePadded;

pub use record::{LaneRecord, VacantRecord};

use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering, UnsafeCell};

/// Octets of a cache line.
const LINE_LEN: usize = 64;
/// Lines of a new batch that the reader prefetches: about what a core can have under way at a time.
const PREFETCH_LINES: usize = 12;
/// Lines of a longer value that it prefetches at most: a value seldom fills more.
const PREFETCH_LINES_EACH: usize = 4;
/// [`LaneWriter::room`] looks again when it knows of fewer free places than this.
const ROOM_MIN: usize = 8;

/// Makes a lane with room for `len` values, rounded up to a power of two and to 1 at least.
///
/// Memory: `len` values and two or three lines for the indices, allocated here and never again. What is in the lane when
/// both ends are gone is dropped with it.
#[must_use]
pub fn lane<T: Send>(len: usize) -> (LaneWriter<T>, LaneReader<T>) {
    lane_at(len, 0)
}

/// A lane whose positions begin at `start`.
fn lane_at<T: Send>(len: usize, start: usize) -> (LaneWriter<T>, LaneReader<T>) {
    let len = len.next_power_of_two();
    let ring = Arc::new(Ring {
        // Zeroed: records are written where they lie, see `record.rs`.
        places: (0..len).map(|_| UnsafeCell::new(MaybeUninit::zeroed())).collect(),
        writer: CachePadded::new(Side::new(start)),
        reader: CachePadded::new(Side::new(start)),
    });
    let writer = LaneWriter {
        ring: ring.clone(),
        position: start,
        published: start,
        head: start,
        unused_lines: 0,
        statistics: LaneStatistics::default(),
    };
    let reader = LaneReader {
        ring,
        position: start,
        returned: start,
        quarter: len.div_ceil(4),
        tail: start,
        statistics: LaneStatistics::default(),
    };
    (writer, reader)
}

/// What one side tells the other.
struct Side {
    /// The writer's: places before it are published. The reader's: places before it are free again. Positions count from
    /// the start and wrap as `usize` does; the ring's length is a power of two, so places go on in order across the wrap.
    index: AtomicUsize,
    /// This end was dropped. Relaxed: it is advice; nothing is read because of it.
    is_gone: AtomicBool,
}

impl Side {
    fn new(start: usize) -> Side {
        Side { index: AtomicUsize::new(start), is_gone: AtomicBool::new(false) }
    }
}

/// What both ends share. Of the positions from `reader.index` to `writer.index` each place has a value, unless the reader has
/// moved it out already; the places behind `writer.index` belong to the writer alone.
struct Ring<T> {
    places: Box<[UnsafeCell<MaybeUninit<T>>]>,
    writer: CachePadded<Side>,
    reader: CachePadded<Side>,
}

// SAFETY: a place is used by one thread at a time, as the two indices say (see `LaneWriter::push` and `LaneReader::pop`), and a
// value goes through it from one thread to the other: that is what `T: Send` allows. References to values are not shared.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: the ring owns its values, so that it may go where they may go.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    /// The place of a position.
    #[inline(always)]
    fn place(&self, position: usize) -> &UnsafeCell<MaybeUninit<T>> {
        // The length is a power of two, so the mask keeps the place inside, which the compiler sees.
        &self.places[position & (self.places.len() - 1)]
    }

    /// Begins to fetch the lines of the places from `from` to before `to`, at most [`PREFETCH_LINES`].
    #[inline(always)]
    fn prefetch(&self, from: usize, to: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
        {
            let step = LINE_LEN.div_ceil(size_of::<T>().max(1));
            let lines = size_of::<T>().div_ceil(LINE_LEN).clamp(1, PREFETCH_LINES_EACH);
            let count = to.wrapping_sub(from).min(PREFETCH_LINES / lines * step);
            for offset in (0..count).step_by(step) {
                let place = std::ptr::from_ref(self.place(from.wrapping_add(offset))).cast::<i8>();
                for line in 0..lines {
                    // SAFETY: a prefetch reads nothing, writes nothing and never faults, whatever the address.
                    unsafe {
                        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
                            place.wrapping_add(line * LINE_LEN),
                        )
                    };
                }
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri), not(loom))))]
        let _ = (from, to, PREFETCH_LINES);
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        let end = self.writer.index.load(Ordering::Relaxed);
        let mut position = self.reader.index.load(Ordering::Relaxed);
        while position != end {
            // SAFETY: both ends are gone, and each has stored where it stopped: the writer dropped what it had not published,
            // the reader gave back what it had moved out. So the places between the indices have values, and each is dropped
            // once. `&mut self` excludes any other access.
            self.place(position).with_mut(|place| unsafe { (*place).assume_init_drop() });
            position = position.wrapping_add(1);
        }
    }
}

/// What one end of a lane counted since it was made. Plain numbers of that end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStatistics {
    /// Values pushed, or popped.
    pub values: u64,
    /// Batches: publications that showed something new, or looks at the writer's index that found something new.
    pub batches: u64,
    /// Cache lines that moved between the cores, estimated: at the writer those of the values and of the reader's index, at
    /// the reader those of the writer's index. The sum of both ends is what the lane cost.
    pub lines: u64,
    /// The writer's: times that it found too little room.
    pub full: u64,
}

/// The end of a lane that values go into. Belongs to one thread at a time.
pub struct LaneWriter<T> {
    ring: Arc<Ring<T>>,
    /// Where the next value goes.
    position: usize,
    /// The `tail` that was stored last.
    published: usize,
    /// The reader's index as it was seen last.
    head: usize,
    /// Cache lines of values that are not published yet which those do not fill.
    unused_lines: usize,
    statistics: LaneStatistics,
}

impl<T: Send> LaneWriter<T> {
    /// Values that the lane holds at most.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.ring.places.len()
    }

    /// A number of values that `push` is sure to take now.
    ///
    /// Looks at the reader's index only when fewer than 8 places are known to be free.
    #[inline]
    pub fn room(&mut self) -> usize {
        if self.known_room() < ROOM_MIN.min(self.capacity()) {
            self.refresh();
        }
        self.known_room()
    }

    /// Whether `push` takes `count` values now. Looks at the reader's index only when fewer places are known to be free.
    #[inline]
    pub fn find_room(&mut self, count: usize) -> bool {
        if self.known_room() >= count {
            return true;
        }
        self.refresh();
        let is_enough = self.known_room() >= count;
        self.statistics.full += u64::from(!is_enough);
        is_enough
    }

    /// Puts a value behind the others. The reader does not see it before [`LaneWriter::publish`].
    ///
    /// A full lane hands the value back, also to a writer whose reader is gone.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if !self.find_room(1) {
            return Err(value);
        }
        // SAFETY: fewer than the ring's length lie between the reader's index and `position`, so the reader has moved out
        // of this place what was in it, and has given it back by the Release store that `refresh` saw by its Acquire load.
        // It does not look here again before `publish`. We are the only writer (`&mut self`, and the end is not Clone).
        self.ring.place(self.position).with_mut(|place| unsafe {
            (*place).write(value);
        });
        self.position = self.position.wrapping_add(1);
        Ok(())
    }

    /// Shows the reader all that was pushed, by one store. `true`: there was something new.
    ///
    /// Wakes no reactor: ring the reader's [`Bell`](crate::Bell) afterwards, once for all that was published.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let count = self.position.wrapping_sub(self.published);
        if count == 0 {
            return false;
        }
        // Release pairs with the Acquire in `LaneReader::refresh`: the values are seen with the index.
        self.ring.writer.index.store(self.position, Ordering::Release);
        self.published = self.position;
        self.statistics.values += count as u64;
        self.statistics.batches += 1;
        let lines = (count * size_of::<T>()).div_ceil(LINE_LEN) - std::mem::take(&mut self.unused_lines);
        self.statistics.lines += lines as u64;
        true
    }

    /// Whether the reader is gone, so that pushed values will never be read.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.ring.reader.is_gone.load(Ordering::Relaxed)
    }

    /// What this end counted. Values that are not published yet are not in it.
    #[must_use]
    pub fn statistics(&self) -> LaneStatistics {
        self.statistics
    }

    /// Free places by what we know of the reader.
    #[inline(always)]
    fn known_room(&self) -> usize {
        self.capacity() - self.position.wrapping_sub(self.head)
    }

    /// Looks how far the reader is.
    fn refresh(&mut self) {
        // Acquire pairs with the Release in `LaneReader::give_back`: what was in the places has been moved out.
        let head = self.ring.reader.index.load(Ordering::Acquire);
        self.statistics.lines += u64::from(head != self.head);
        self.head = head;
    }
}

impl<T> Drop for LaneWriter<T> {
    fn drop(&mut self) {
        while self.position != self.published {
            self.position = self.position.wrapping_sub(1);
            // SAFETY: the place has a value that was pushed and not published, so it is ours alone, and is dropped once.
            self.ring.place(self.position).with_mut(|place| unsafe { (*place).assume_init_drop() });
        }
        self.ring.writer.is_gone.store(true, Ordering::Relaxed);
    }
}

/// The end of a lane that values come out of. Belongs to one thread at a time.
pub struct LaneReader<T> {
    ring: Arc<Ring<T>>,
    /// Where the next value is.
    position: usize,
    /// The `head` that was stored last.
    returned: usize,
    /// Places that are given back at once: a quarter of the ring.
    quarter: usize,
    /// The writer's index as it was seen last.
    tail: usize,
    statistics: LaneStatistics,
}

impl<T: Send> LaneReader<T> {
    /// The oldest value that was published, or `None`.
    ///
    /// Looks at the writer's index only when what it knows of is used up. Take a bounded number in one pass: the writer may
    /// be faster.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.position == self.tail && !self.refresh() {
            return None;
        }
        // SAFETY: the position is before the writer's index, which the Acquire load in `refresh` saw, so the place has a value
        // that was written before. The writer does not touch it before we give it back. It is read once, because `position`
        // moves on, and there is no other reader (`&mut self`, and the end is not Clone).
        let value = self.ring.place(self.position).with(|place| unsafe { (*place).assume_init_read() });
        self.leave();
        Some(value)
    }

    /// Leaves the oldest value behind, whose place has none any more. Places are given back by quarters of the ring.
    #[inline(always)]
    fn leave(&mut self) {
        self.position = self.position.wrapping_add(1);
        self.statistics.values += 1;
        if self.position.wrapping_sub(self.returned) >= self.quarter {
            self.give_back();
        }
    }

    /// Whether nothing is published that was not popped. Looks at the writer's index: for the last look before sleep.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.position == self.tail && self.position == self.ring.writer.index.load(Ordering::Acquire)
    }

    /// Whether the writer is gone: when the lane is empty too, nothing comes any more.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.ring.writer.is_gone.load(Ordering::Relaxed)
    }

    /// What this end counted.
    #[must_use]
    pub fn statistics(&self) -> LaneStatistics {
        self.statistics
    }

    /// Looks for new values. `false`: there are none; all places are given back then.
    #[inline]
    fn refresh(&mut self) -> bool {
        // Acquire pairs with the Release in `LaneWriter::publish`.
        let tail = self.ring.writer.index.load(Ordering::Acquire);
        if tail == self.tail {
            self.give_back();
            return false;
        }
        self.ring.prefetch(self.tail, tail);
        self.tail = tail;
        self.statistics.batches += 1;
        self.statistics.lines += 1;
        true
    }

    /// Tells the writer which places are free. Stores nothing when it knows already.
    #[inline]
    fn give_back(&mut self) {
        if self.returned != self.position {
            // Release pairs with the Acquire in `LaneWriter::refresh`: the values were moved out before.
            self.ring.reader.index.store(self.position, Ordering::Release);
            self.returned = self.position;
        }
    }
}

impl<T> Drop for LaneReader<T> {
    fn drop(&mut self) {
        // What the ring's drop begins at. Release, although the `Arc` orders it too: a writer may still push.
        self.ring.reader.index.store(self.position, Ordering::Release);
        self.ring.reader.is_gone.store(true, Ordering::Relaxed);
    }
}

impl<T> fmt::Debug for LaneWriter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneWriter").field("statistics", &self.statistics).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for LaneReader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneReader").field("statistics", &self.statistics).finish_non_exhaustive()
    }
}

// Not under loom: its atomics work only inside a model.
#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn values_come_in_order_once_they_are_published() {
        // Positions that wrap on the way.
        for start in [0, usize::MAX - 2] {
            let (mut writer, mut reader) = lane_at(4, start);
            assert!(!writer.publish(), "nothing is new");
            assert_eq!((writer.push(1), writer.push(2)), (Ok(()), Ok(())));
            assert!(reader.is_empty() && reader.pop().is_none(), "nothing is published");
            assert!(writer.publish() && !writer.publish());
            assert!(!reader.is_empty());
            assert_eq!((reader.pop(), reader.pop(), reader.pop()), (Some(1), Some(2), None));
            assert!(reader.is_empty());
            for round in 0..100 {
                writer.push(round).unwrap();
                writer.publish();
                assert_eq!((reader.pop(), reader.pop()), (Some(round), None));
            }
        }
    }

    #[test]
    fn a_full_lane_hands_back_until_places_are_given_back() {
        let (mut writer, mut reader) = lane(3);
        assert_eq!(writer.capacity(), 4, "a power of two");
        assert_eq!(writer.room(), 4);
        for value in 0..4 {
            writer.push(value).unwrap();
        }
        assert_eq!((writer.push(4), writer.room(), writer.find_room(1)), (Err(4), 0, false));
        writer.publish();
        assert_eq!(writer.push(4), Err(4), "published, but not taken");
        assert_eq!(reader.pop(), Some(0));
        assert_eq!(writer.push(4), Ok(()), "a quarter of the ring is given back at once");
        assert_eq!(writer.statistics().full, 3);
    }

    /// In a long lane places come back by quarters, and all of them when the reader finds nothing.
    #[test]
    fn places_come_back_in_batches_and_when_the_lane_runs_empty() {
        let (mut writer, mut reader) = lane(16);
        for value in 0..16 {
            writer.push(value).unwrap();
        }
        writer.publish();
        for room in [0, 0, 0, 4, 4, 4, 4, 8] {
            reader.pop().unwrap();
            assert_eq!(writer.room(), room);
        }
        while reader.position != reader.tail {
            reader.pop().unwrap();
        }
        assert_eq!(reader.pop(), None);
        assert!(writer.find_room(16));
        assert_eq!(reader.statistics(), LaneStatistics { values: 16, batches: 1, lines: 1, full: 0 });
    }

    /// Index lines move once a batch, not once a value: what a lane is for.
    #[test]
    fn lines_are_counted_for_batches() {
        let (mut writer, mut reader) = lane([0u64; 8].len() * 32);
        for _ in 0..10 {
            for _ in 0..20 {
                writer.push([0u64; 8]).unwrap();
            }
            writer.publish();
            while reader.pop().is_some() {}
        }
        let (wrote, read) = (writer.statistics(), reader.statistics());
        assert_eq!((wrote.values, wrote.batches, read.values, read.batches), (200, 10, 200, 10));
        assert_eq!(
            (wrote.lines, read.lines),
            (200, 10),
            "there was always room, so no look at the reader's index"
        );
    }

    #[test]
    fn what_is_in_a_lane_is_dropped_with_it_whichever_end_goes_first() {
        for writer_first in [true, false] {
            let witness = Arc::new(());
            let (mut writer, mut reader) = lane(8);
            for _ in 0..5 {
                writer.push(witness.clone()).unwrap();
            }
            writer.publish();
            drop(reader.pop());
            writer.push(witness.clone()).unwrap(); // not published
            assert_eq!(Arc::strong_count(&witness), 6);
            if writer_first {
                drop(writer);
                assert_eq!(Arc::strong_count(&witness), 5, "what was not published went with the writer");
                assert!(reader.is_abandoned());
                drop(reader.pop().unwrap());
                drop(reader);
            } else {
                assert!(!writer.is_abandoned());
                drop(reader);
                assert!(writer.is_abandoned());
                writer.push(witness.clone()).unwrap();
                assert!(writer.publish(), "harmless");
                drop(writer);
            }
            assert_eq!(Arc::strong_count(&witness), 1);
        }
    }

    #[test]
    fn values_without_size_and_lanes_of_one_place_work() {
        let (mut writer, mut reader) = lane(0);
        for _ in 0..3 {
            assert_eq!(writer.push(()), Ok(()));
            assert_eq!(writer.push(()), Err(()));
            writer.publish();
            assert_eq!((reader.pop(), reader.pop()), (Some(()), None));
        }
    }

    #[test]
    fn two_threads_lose_nothing_and_keep_the_order() {
        const VALUES: u64 = if cfg!(miri) { 200 } else { 200_000 };
        let (mut writer, mut reader) = lane::<Box<u64>>(8);
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut next = 0;
                while next < VALUES {
                    // Batches of every length, as room allows.
                    for _ in 0..next % 11 + 1 {
                        if next < VALUES && writer.push(Box::new(next)).is_ok() {
                            next += 1;
                        }
                    }
                    if !writer.publish() {
                        thread::yield_now();
                    }
                }
            });
            for expected in 0..VALUES {
                let value = loop {
                    match reader.pop() {
                        Some(value) => break value,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!(*value, expected);
            }
        });
        assert_eq!(reader.pop(), None);
    }
}

#[cfg(all(loom, test))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::handshake::Handshake;
    use crate::sync::AtomicUsize;

    /// Two places, three values, positions that wrap: each comes out once, in order, and none is torn. Loom's cells refuse
    /// a read and a write of one place at a time.
    #[test]
    fn loom_a_lane_that_wraps_keeps_values_and_order() {
        loom::model(|| {
            let (mut writer, mut reader) = lane_at(2, usize::MAX);
            let writing = thread::spawn(move || {
                let mut value = 1;
                while value <= 3 {
                    if writer.push(Box::new(value)).is_ok() {
                        value += 1;
                    } else {
                        writer.publish();
                        thread::yield_now();
                    }
                }
                writer.publish();
            });
            let mut expected = 1;
            while expected <= 3 {
                match reader.pop() {
                    Some(value) => {
                        assert_eq!(*value, expected);
                        expected += 1;
                    }
                    None => thread::yield_now(),
                }
            }
            writing.join().unwrap();
            assert!(reader.is_empty() && reader.pop().is_none());
        });
    }

    /// Both caches stale: the writer believes the lane full and the reader believes it empty, and neither is right.
    #[test]
    fn loom_stale_copies_of_both_indices_are_looked_up_again() {
        loom::model(|| {
            let (mut writer, mut reader) = lane(2);
            writer.push(1).unwrap();
            writer.push(2).unwrap();
            writer.publish();
            // The reader moves on; the writer's copy is of the start. Then the writer does; the reader's copy is of here.
            assert_eq!((reader.pop(), reader.pop(), reader.pop()), (Some(1), Some(2), None));
            let writing = thread::spawn(move || {
                assert!(writer.push(3).is_ok(), "both places are free since before");
                writer.publish();
                let second = writer.push(4).is_ok();
                writer.publish();
                assert!(second);
                writer
            });
            let early = reader.pop();
            assert!(matches!(early, None | Some(3)));
            let mut writer = writing.join().unwrap();
            let rest: Vec<_> = std::iter::from_fn(|| reader.pop()).collect();
            let all: Vec<_> = early.into_iter().chain(rest).collect();
            assert_eq!(all, [3, 4]);
            assert_eq!(writer.room(), 2);
        });
    }

    /// Either end goes while the other is at work: what is in the lane is dropped once.
    #[test]
    fn loom_either_end_may_go_first() {
        /// Counts the values that are alive.
        struct Alive(Arc<AtomicUsize>);
        impl Alive {
            fn new(count: &Arc<AtomicUsize>) -> Alive {
                count.fetch_add(1, Ordering::Relaxed);
                Alive(count.clone())
            }
        }
        impl Drop for Alive {
            fn drop(&mut self) {
                assert!(self.0.fetch_sub(1, Ordering::Relaxed) > 0, "dropped twice");
            }
        }

        loom::model(|| {
            let alive = Arc::new(AtomicUsize::new(0));
            let (mut writer, mut reader) = lane(2);
            let count = alive.clone();
            let writing = thread::spawn(move || {
                let _ = writer.push(Alive::new(&count));
                writer.publish();
                let _ = writer.push(Alive::new(&count)); // not published
                let _ = writer.is_abandoned();
            });
            drop(reader.pop());
            drop(reader);
            writing.join().unwrap();
            assert_eq!(alive.load(Ordering::Relaxed), 0);
        });
    }

    /// A reader that arms, finds its lane empty and sleeps is woken by the next publish.
    #[test]
    fn loom_no_wake_up_is_lost_between_publish_and_arm() {
        loom::model(|| {
            let (mut writer, mut reader) = lane(2);
            let bell = Arc::new((Handshake::new(), AtomicUsize::new(0)));
            let rung = bell.clone();
            let writing = thread::spawn(move || {
                for value in 1..=2 {
                    writer.push(value).unwrap();
                    writer.publish();
                    if rung.0.must_wake() {
                        rung.1.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            let first = reader.pop();
            bell.0.arm();
            let sleeps = reader.is_empty();
            writing.join().unwrap();
            let signals = bell.1.load(Ordering::Relaxed);
            let missed = !reader.is_empty();
            assert!(!(sleeps && missed) || signals == 1, "asleep with a value and no signal");
            assert!(signals <= 1);
            bell.0.disarm();
            let rest: Vec<_> = first.into_iter().chain(std::iter::from_fn(|| reader.pop())).collect();
            assert_eq!(rest, [1, 2]);
        });
    }
}
