//! Bells: how idle connections get attention without a look at every ring.
//!
//! A connection whose ring stays empty for a while leaves the list that each pass goes through. From then on its peer rings
//! its bell: a byte in a page of ours, which all our peers map writable. The bell of a connection in the list is always rung,
//! so its peer finds 1 there and does nothing.
//!
//! ```text
//!   0     any     u8               1: one of the groups below has news
//!   64    groups  u8 for 64 bells  1: one of these bells was rung
//!   ...   bells   u8 for each queue pair, by its index
//! ```
//!
//! A pass loads one byte, whatever the number of connections. A peer whose bell is rung already pays no locked instruction and no
//! fence. For that, the owner takes a bell back ([`Bells::silence`]) long before it stops polling the ring: a doorbell that was
//! stored before has left the peer's core by then, and one that is stored later finds the bell silent.
//!
//! # Trust
//!
//! A process that maps the page may ring any bell, which costs a look at a ring, or silence one, which hides a message until the
//! rotation reaches that ring (`IDLE_LOOKS`). An admitted peer could do worse by other means. No byte leads to an address.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, Ordering, compiler_fence};

use memmap2::{MmapOptions, MmapRaw};

use super::order::{self, Word};
use super::pages;
use super::regions::Region;

/// Bells that one byte of `groups` stands for: the bits of a word.
const GROUP: usize = 64;
/// Where the groups begin: behind a line of its own for `any`.
const GROUPS: usize = 64;
const PAGE: usize = 4096;

/// Where a peer's bell for us is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BellPlace {
    /// Bells there are.
    pub(super) count: u32,
    /// Which of them is ours.
    pub(super) index: u32,
}

impl BellPlace {
    /// Most bells of a provider.
    pub(super) const COUNT_MAX: u32 = 1 << 20;

    /// Whether the numbers make sense: they come from the peer.
    pub(super) fn is_valid(self) -> bool {
        self.index < self.count && self.count <= Self::COUNT_MAX
    }

    /// Octets of the memory that they are in.
    pub(super) fn file_len(self) -> usize {
        (bells_at(self.count as usize) + self.count as usize).next_multiple_of(PAGE)
    }
}

/// Where the bells begin.
const fn bells_at(count: usize) -> usize {
    GROUPS + count.div_ceil(GROUP).next_multiple_of(64)
}

/// The bells of a provider, and which of its connections are heard by them alone.
pub(super) struct Bells {
    map: MmapRaw,
    fd: OwnedFd,
    /// Bells there are.
    count: usize,
    /// A bit for each connection that is out of the list.
    idle: Box<[u64]>,
    idle_count: usize,
    /// The next idle connection in the rotation.
    turn: usize,
}

impl Bells {
    /// Bells for `count` queue pairs, in memory that peers can map.
    pub(super) fn new(count: u32) -> io::Result<Bells> {
        let place = BellPlace { count, index: 0 };
        let (fd, len) = (pages::memory(c"stag-shm-bells", place.file_len())?, place.file_len());
        let map = MmapOptions::new().len(len).map_raw(&fd)?;
        let count = count as usize;
        let idle = vec![0; count.div_ceil(GROUP)].into();
        Ok(Bells { map, fd, count, idle, idle_count: 0, turn: 0 })
    }

    /// What the peer of a connection must know to ring its bell.
    pub(super) fn place(&self, index: u32) -> (BellPlace, BorrowedFd<'_>) {
        (BellPlace { count: self.count as u32, index }, self.fd.as_fd())
    }

    #[inline(always)]
    fn byte(&self, offset: usize) -> &AtomicU8 {
        debug_assert!(offset < self.map.len());
        // SAFETY: callers stay below `bells_at(count) + count`, which is within the mapping; it lives as long as `self`, and all
        // accesses to it, in every process, are atomic and of one octet.
        unsafe { AtomicU8::from_ptr(self.map.as_mut_ptr().add(offset)) }
    }

    fn bell(&self, index: usize) -> &AtomicU8 {
        assert!(index < self.count, "a queue pair's index is below the number of queue pairs");
        self.byte(bells_at(self.count) + index)
    }

    /// Connections that are out of the list.
    pub(super) fn idle_count(&self) -> usize {
        self.idle_count
    }

    /// Whether an idle connection may have news.
    #[inline(always)]
    pub(super) fn is_rung(&self) -> bool {
        self.idle_count > 0 && self.byte(0).get() != 0
    }

    /// The connection is in the list: its peer need not ring.
    pub(super) fn quieten(&mut self, index: u32) {
        self.set_idle(index as usize, false);
        self.bell(index as usize).set(1);
    }

    /// Lets the peer ring from its next doorbell on. The ring has still to be looked at for a while.
    pub(super) fn silence(&self, index: u32) {
        self.bell(index as usize).set(0);
    }

    /// The connection leaves the list. `false`: its bell was rung meanwhile, or never silenced; it stays.
    pub(super) fn retire(&mut self, index: u32) -> bool {
        let is_silent = self.bell(index as usize).get() == 0;
        self.set_idle(index as usize, is_silent);
        is_silent
    }

    fn set_idle(&mut self, index: usize, is_idle: bool) {
        let bit = 1 << (index % GROUP);
        let word = &mut self.idle[index / GROUP];
        let was_idle = *word & bit != 0;
        *word = *word & !bit | if is_idle { bit } else { 0 };
        self.idle_count = self.idle_count + usize::from(is_idle) - usize::from(was_idle);
    }

    /// Whether the connection is out of the list.
    pub(super) fn is_idle(&self, index: u32) -> bool {
        self.idle[index as usize / GROUP] & 1 << (index as usize % GROUP) != 0
    }

    /// The idle connections whose bells were rung, added to `out`.
    #[cold]
    pub(super) fn collect(&self, out: &mut Vec<u32>) {
        if !order::take_mark(self.byte(0)) {
            return;
        }
        for group in 0..self.idle.len() {
            if !order::take_mark(self.byte(GROUPS + group)) {
                continue;
            }
            let mut idle = self.idle[group];
            while idle != 0 {
                let index = group * GROUP + idle.trailing_zeros() as usize;
                idle &= idle - 1;
                if self.bell(index).get() != 0 {
                    out.push(index as u32);
                }
            }
        }
    }

    /// The next idle connection in the rotation.
    pub(super) fn next_idle(&mut self) -> Option<u32> {
        if self.idle_count == 0 {
            return None;
        }
        let words = self.idle.len();
        let first = self.idle.get(self.turn / GROUP)? & (u64::MAX << (self.turn % GROUP));
        let at = self.turn / GROUP;
        let found = match first {
            // Round and back to the bits before in the same word.
            0 => {
                let next = (1..=words).map(|step| (at + step) % words).find(|&word| self.idle[word] != 0)?;
                next * GROUP + self.idle[next].trailing_zeros() as usize
            }
            bits => at * GROUP + bits.trailing_zeros() as usize,
        };
        self.turn = if found + 1 >= words * GROUP { 0 } else { found + 1 };
        Some(found as u32)
    }
}

/// The bell of a connection at its peer. None, if the peer has none: then it looks at the ring in each pass.
pub(super) struct Bell {
    bell: *const AtomicU8,
    marks: Option<Marks>,
}

/// Where a peer without bells has one: it is always rung.
static RUNG: AtomicU8 = AtomicU8::new(1);

/// What is marked when a bell is rung.
struct Marks {
    group: *const AtomicU8,
    any: *const AtomicU8,
    /// What they point into.
    _memory: Rc<Region>,
}

impl Bell {
    /// A peer without bells.
    pub(super) const NONE: Bell = Bell { bell: &raw const RUNG, marks: None };

    /// The bell at `place` in `memory`, which is as long as the place says. `None`: it is not, or there is no such place.
    pub(super) fn new(place: BellPlace, memory: Rc<Region>) -> Option<Bell> {
        if !place.is_valid() {
            return None;
        }
        let (count, index) = (place.count as usize, place.index as usize);
        let byte = |at: usize| memory.range(at as u64, 1).map(|byte| byte.cast_const().cast::<AtomicU8>());
        let (bell, group, any) = (byte(bells_at(count) + index)?, byte(GROUPS + index / GROUP)?, byte(0)?);
        Some(Bell { bell, marks: Some(Marks { group, any, _memory: memory }) })
    }

    /// Rings, if the peer does not look at the ring by itself. After the doorbell.
    #[inline(always)]
    pub(super) fn ring(&self) {
        // The doorbell leaves first. The processor may still load before it has: see above.
        compiler_fence(Ordering::SeqCst);
        // SAFETY: within the mapping (`new`), which `_memory` keeps, or a static; accesses are atomic.
        if unsafe { &*self.bell }.get() == 0 {
            self.mark();
        }
    }

    #[cold]
    fn mark(&self) {
        let Some(marks) = &self.marks else { return };
        // SAFETY: as in `Bell::ring`.
        let (bell, group, any) = unsafe { (&*self.bell, &*marks.group, &*marks.any) };
        order::mark(bell, group, any);
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::super::regions::Regions;
    use super::*;

    fn bell(bells: &Bells, index: u32) -> Bell {
        let (place, fd) = bells.place(index);
        Bell::new(place, Regions::new().map(fd, place.file_len() as u64, 0).unwrap()).unwrap()
    }

    fn collected(bells: &Bells) -> Vec<u32> {
        let mut out = Vec::new();
        bells.collect(&mut out);
        out
    }

    #[test]
    fn only_who_is_idle_is_heard_and_once() {
        let mut bells = Bells::new(200).unwrap();
        let peers: Vec<Bell> = (0..200).map(|index| bell(&bells, index)).collect();
        (0..200).for_each(|index| bells.quieten(index));
        peers.iter().for_each(Bell::ring);
        assert!(!bells.is_rung(), "all are looked at");
        for index in [3, 64, 199] {
            assert!(!bells.retire(index), "a bell that was not silenced is not waited for");
            bells.silence(index);
            assert!(bells.retire(index));
        }
        assert!(!bells.is_rung());
        peers.iter().for_each(Bell::ring);
        assert!(bells.is_rung());
        assert_eq!(collected(&bells), [3, 64, 199]);
        assert!(!bells.is_rung(), "a ring is heard once");
        bells.quieten(64);
        assert_eq!((bells.is_idle(64), bells.is_idle(3)), (false, true));
    }

    #[test]
    fn one_that_is_rung_between_stays() {
        let mut bells = Bells::new(4).unwrap();
        let peer = bell(&bells, 1);
        bells.quieten(1);
        bells.silence(1);
        peer.ring();
        assert!(!bells.retire(1));
        assert!(!bells.is_idle(1));
    }

    #[test]
    fn each_idle_one_has_its_turn() {
        let mut bells = Bells::new(130).unwrap();
        assert_eq!(bells.next_idle(), None);
        for index in [0, 63, 64, 129] {
            assert!(bells.retire(index));
        }
        let turns: Vec<u32> = std::iter::repeat_with(|| bells.next_idle().unwrap()).take(6).collect();
        assert_eq!(turns, [0, 63, 64, 129, 0, 63]);
        (0..130).for_each(|index| bells.quieten(index));
        assert_eq!(bells.next_idle(), None);
    }

    #[test]
    fn a_place_that_is_not_there_has_no_bell() {
        let bells = Bells::new(10).unwrap();
        let (place, fd) = bells.place(3);
        let memory = Regions::new().map(fd, place.file_len() as u64, 0).unwrap();
        for (count, index) in [(10, 10), (0, 0), (10_000, 9_000), (u32::MAX, 3)] {
            assert!(Bell::new(BellPlace { count, index }, Rc::clone(&memory)).is_none(), "{count} {index}");
        }
    }
}
