//! The STags of one queue pair: which memory its peer may touch, and how.
//!
//! An STag is a place in the table and random bits above it. It is good on this queue pair only, names one piece of memory
//! with one right, and is checked for every segment, before anything is placed (5042-a). Its offsets count from 0, so that
//! they reveal nothing of our memory. A freed place is reused last, so that a late access meets no STag rather than a new
//! one, and a late invalidation is recognised.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use stag_memory::Shared;

use super::fault::Access;
use crate::{Exposed, Handle};

/// One place.
struct Entry {
    /// The live STag, or the last one.
    stag: u32,
    /// It was ended by our fence, rather than by the peer.
    fenced: bool,
    /// Where the memory is, for placing.
    place: *mut u8,
    len: u32,
    exposed: Option<Exposed>,
}

/// What became of an invalidation by the peer.
pub(super) enum Invalidated {
    /// The STag is dead, and here is its memory.
    Now(Exposed),
    /// We had fenced it while the message was on its way: no news.
    Before,
    /// It was never exposed, or the peer has invalidated it before.
    Never,
}

/// The table.
///
/// Invariants: a place is in `free` or holds memory, never both. The `place` and `len` of one that holds an
/// `Exposed::Write` are those of its buffer.
pub(super) struct Stags {
    entries: Box<[Entry]>,
    free: VecDeque<u32>,
    live: u32,
    live_max: u32,
    bits: u32,
    /// Keyed by the system's random numbers: who sees some STags cannot tell the next.
    random: RandomState,
    count: u64,
}

impl Stags {
    /// Most exposures of one queue pair: half of the bits of an STag stay random.
    pub(super) const EXPOSURES_MAX: u32 = 1 << 15;

    /// Twice as many as exposures, so that each has a rest even when all exposures are in use.
    fn places(live_max: u32) -> u32 {
        (live_max.max(1) * 2).next_power_of_two()
    }

    /// Octets of heap of such a table.
    pub(super) fn footprint(live_max: u32) -> usize {
        Stags::places(live_max) as usize * (size_of::<Entry>() + size_of::<u32>())
    }

    /// A table for `live_max` exposures at once; the keys of `random` are this table's alone.
    pub(super) fn new(live_max: u32, random: RandomState) -> Stags {
        let places = Stags::places(live_max);
        let none = || Entry { stag: 0, fenced: false, place: std::ptr::null_mut(), len: 0, exposed: None };
        Stags {
            entries: (0..places).map(|_| none()).collect(),
            free: (0..places).collect(),
            live: 0,
            live_max,
            bits: places.trailing_zeros(),
            random,
            count: 0,
        }
    }

    /// Whether no more may be exposed.
    pub(super) fn is_full(&self) -> bool {
        self.live >= self.live_max
    }

    /// Exposes memory; there is room (see [`Stags::is_full`]).
    #[inline]
    pub(super) fn insert(&mut self, mut exposed: Exposed) -> Handle {
        let index = self.free.pop_front().expect("there are more places than exposures");
        self.count += 1;
        let random = self.random.hash_one(self.count) as u32;
        let entry = &mut self.entries[index as usize];
        // Never 0, and never the last one of this place again.
        let mut stag = 1 << 31 | random >> self.bits << self.bits | index;
        if stag == entry.stag {
            stag ^= 1 << 30;
        }
        (entry.place, entry.len) = match &mut exposed {
            Exposed::Read(shared) => (std::ptr::null_mut(), shared.len() as u32),
            Exposed::Write(buf) => (buf.as_mut_ptr(), buf.len() as u32),
        };
        entry.stag = stag;
        entry.exposed = Some(exposed);
        self.live += 1;
        Handle(stag)
    }

    #[inline(always)]
    fn index(&self, stag: u32) -> usize {
        (stag & ((1 << self.bits) - 1)) as usize
    }

    #[inline]
    fn entry(&self, stag: u32) -> Result<&Entry, Access> {
        let entry = &self.entries[self.index(stag)];
        if entry.stag == stag && entry.exposed.is_some() { Ok(entry) } else { Err(Access::Stag) }
    }

    #[inline]
    fn within(entry: &Entry, offset: u64, len: u32) -> Result<(), Access> {
        match offset.checked_add(u64::from(len)) {
            None => Err(Access::Wrap),
            Some(end) if end > u64::from(entry.len) => Err(Access::Bounds),
            Some(_) => Ok(()),
        }
    }

    /// The place of `len` octets at `offset`. Valid for writes of them until the exposure ends.
    #[inline]
    pub(super) fn place(&self, stag: u32, offset: u64, len: u32) -> Result<*mut u8, Access> {
        let entry = self.entry(stag)?;
        if !matches!(entry.exposed, Some(Exposed::Write(_))) {
            return Err(Access::Right);
        }
        Stags::within(entry, offset, len)?;
        // SAFETY: within the buffer, as just checked (invariant).
        Ok(unsafe { entry.place.add(offset as usize) })
    }

    /// The `len` octets at `offset`, to be read by the peer.
    #[inline]
    pub(super) fn source(&self, stag: u32, offset: u64, len: u32) -> Result<Shared, Access> {
        let entry = self.entry(stag)?;
        let Some(Exposed::Read(shared)) = &entry.exposed else { return Err(Access::Right) };
        Stags::within(entry, offset, len)?;
        Ok(shared.slice(offset as usize..offset as usize + len as usize))
    }

    fn remove(&mut self, index: usize, fenced: bool) -> Option<Exposed> {
        let entry = &mut self.entries[index];
        let exposed = entry.exposed.take()?;
        entry.fenced = fenced;
        entry.place = std::ptr::null_mut();
        entry.len = 0;
        self.free.push_back(index as u32);
        self.live -= 1;
        Some(exposed)
    }

    /// We end an exposure. All placing is done by the thread that calls this, so it is over at once.
    #[inline]
    pub(super) fn fence(&mut self, handle: Handle) -> Option<Exposed> {
        self.entry(handle.0).ok()?;
        self.remove(self.index(handle.0), true)
    }

    /// The peer ends an exposure, by a Send (5040-e).
    #[inline]
    pub(super) fn invalidate(&mut self, stag: u32) -> Invalidated {
        let index = self.index(stag);
        let entry = &self.entries[index];
        if entry.stag != stag || stag == 0 {
            return Invalidated::Never;
        }
        match (&entry.exposed, entry.fenced) {
            (Some(_), _) => self.remove(index, false).map_or(Invalidated::Never, Invalidated::Now),
            (None, true) => Invalidated::Before,
            (None, false) => Invalidated::Never,
        }
    }

    /// Takes one exposure out, for the end of the connection.
    pub(super) fn take_any(&mut self) -> Option<(Handle, Exposed)> {
        if self.live == 0 {
            return None;
        }
        let index = self.entries.iter().position(|entry| entry.exposed.is_some())?;
        let handle = Handle(self.entries[index].stag);
        self.remove(index, true).map(|exposed| (handle, exposed))
    }
}
