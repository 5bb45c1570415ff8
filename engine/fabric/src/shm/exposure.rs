//! Exposed memory: the target's table of its exposures, and the initiator's table of the memory it may touch.
//!
//! A handle is an index into both tables and random bits above it. The target announces an exposure with a BIND, in the
//! ring, before the Send that carries the handle: a record of its own, or the start of the Send's. The initiator keeps the
//! BIND in a private table and checks handle, bounds and access there; then it copies.
//!
//! An exposure ends in one of two ways, neither of which touches a shared line in the usual case:
//!
//! - the initiator invalidates it with a Send: it forgets the bind before the Send leaves;
//! - the target fences it: it increments the exposure's kill word. Each bind carries the count of its time,
//!   and the initiator compares before each access ([`order`]). A count, rather than the dead handle: a bind
//!   of an earlier exposure at that index, which the initiator has not replaced yet, stays dead whatever
//!   happens at the index later.
//!
//! A fence waits for an access that may be under way only if the peer may write: until then its writes could land in what the memory
//! is used for next. A reader compares the count once more behind its copy, and throws away what it copied too late.

use std::rc::Rc;

use super::order;
use super::pages::Part;
use super::regions::Region;
use crate::{Exposed, Handle};

/// What a bind allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// RDMA Read.
    Read,
    /// RDMA Write.
    Write,
}

/// What a BIND says: the payload of its record, or the first octets of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bind {
    /// Where the memory starts in its arena. Also the segment's offset.
    pub(super) offset: u64,
    /// Which of the arenas that were passed when the connection was made.
    pub(super) region: u16,
    /// Bytes.
    pub(super) len: u32,
    /// The kill count while the exposure is alive.
    pub(super) kills: u32,
}

impl Bind {
    /// Length of its encoding.
    pub(super) const LEN: usize = 16;
    const OFFSET_BITS: u32 = 48;

    /// As bytes; both sides run on one machine.
    #[inline]
    pub(super) fn encode(self) -> [u8; Bind::LEN] {
        debug_assert!(self.offset >> Bind::OFFSET_BITS == 0, "arenas are shorter than 2^48 bytes");
        let place = self.offset | u64::from(self.region) << Bind::OFFSET_BITS;
        // Not `copy_from_slice`: the compiler may leave that a call, for each of the few octets.
        let [a, b, c, d, e, f, g, h] = place.to_ne_bytes();
        let [l0, l1, l2, l3] = self.len.to_ne_bytes();
        let [k0, k1, k2, k3] = self.kills.to_ne_bytes();
        [a, b, c, d, e, f, g, h, l0, l1, l2, l3, k0, k1, k2, k3]
    }

    /// From bytes. Any bytes are a bind; [`Binds::insert`] checks it.
    #[inline]
    pub(super) fn decode(bytes: [u8; Bind::LEN]) -> Bind {
        let [a, b, c, d, e, f, g, h, l0, l1, l2, l3, k0, k1, k2, k3] = bytes;
        let place = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
        Bind {
            offset: place & ((1 << Bind::OFFSET_BITS) - 1),
            region: (place >> Bind::OFFSET_BITS) as u16,
            len: u32::from_ne_bytes([l0, l1, l2, l3]),
            kills: u32::from_ne_bytes([k0, k1, k2, k3]),
        }
    }
}

/// Bits of a handle that are the index.
fn index_bits(exposures: u32) -> u32 {
    exposures.next_power_of_two().trailing_zeros()
}

/// One entry of the target's table.
struct Entry {
    /// The live handle, or 0.
    handle: u32,
    /// How often the entry was killed: what its kill word says.
    kills: u32,
    exposed: Option<Exposed>,
}

/// A fence that waits for the initiator's span to end.
struct Waiting {
    index: usize,
    id: u64,
    span: u64,
}

/// What [`Exposures::fence`] found.
pub(super) enum Fenced {
    /// Dead and quiet.
    Done(Exposed),
    /// Dead; an access may be under way.
    Waiting,
}

/// Octets of heap of both tables: that of `ours` exposures, and that of `theirs`.
pub(super) const fn footprint(ours: u32, theirs: u32) -> usize {
    ours as usize * (size_of::<Entry>() + size_of::<u16>() + size_of::<Waiting>())
        + theirs as usize * size_of::<Bound>()
}

/// The target's table.
///
/// Invariant: an index is in `free` or its entry holds a handle (live or waiting), never both.
pub(super) struct Exposures {
    entries: Box<[Entry]>,
    free: Vec<u16>,
    waiting: Vec<Waiting>,
    bits: u32,
    random: u64,
}

impl Exposures {
    /// A table for `count` exposures at once; `seed` comes from the system's random numbers.
    pub(super) fn new(count: u32, seed: u64) -> Exposures {
        Exposures {
            entries: (0..count).map(|_| Entry { handle: 0, kills: 0, exposed: None }).collect(),
            free: (0..count as u16).rev().collect(),
            waiting: Vec::with_capacity(count as usize),
            bits: index_bits(count),
            random: seed | 1,
        }
    }

    /// Whether one more fits.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Chooses a handle for [`Exposures::insert`], which takes no other; there is room (see [`Exposures::is_full`]). One that is not
    /// inserted is never used.
    #[inline(always)]
    pub(super) fn next_handle(&mut self) -> Handle {
        let index = *self.free.last().expect("the caller asked is_full");
        // xorshift64*: a handle cannot be guessed from those of other queue pairs; within one queue pair the
        // peer is told them all anyway.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let random = (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32;
        // The top bit: never 0, so that 0 can mean none.
        Handle(1 << 31 | random >> self.bits << self.bits | u32::from(index))
    }

    /// Puts `exposed` into the table, under the handle that [`Exposures::next_handle`] chose just before. Returns the kill count
    /// that keeps it alive.
    #[inline(always)]
    pub(super) fn insert(&mut self, handle: Handle, exposed: Exposed) -> u32 {
        let index = self.free.pop().expect("the handle was chosen for a free entry");
        debug_assert_eq!(
            u32::from(index),
            handle.0 & ((1 << self.bits) - 1),
            "the handle chosen just before"
        );
        let entry = &mut self.entries[usize::from(index)];
        entry.handle = handle.0;
        entry.exposed = Some(exposed);
        entry.kills
    }

    #[inline(always)]
    fn find(&self, handle: Handle) -> Option<usize> {
        let index = (handle.0 & ((1 << self.bits) - 1)) as usize;
        let entry = self.entries.get(index)?;
        let live = entry.handle == handle.0 && entry.exposed.is_some();
        (live && (self.waiting.is_empty() || !self.waits(index))).then_some(index)
    }

    #[cold]
    fn waits(&self, index: usize) -> bool {
        self.waiting.iter().any(|waiting| waiting.index == index)
    }

    #[inline(always)]
    fn remove(&mut self, index: usize) -> Exposed {
        self.free.push(index as u16);
        let entry = &mut self.entries[index];
        entry.handle = 0;
        entry.exposed.take().expect("an entry with a handle holds its memory")
    }

    /// The peer invalidated `handle`, and forgot it before it said so. `None`: we had fenced it already.
    #[inline]
    pub(super) fn invalidated(&mut self, handle: Handle) -> Option<Exposed> {
        self.find(handle).map(|index| self.remove(index))
    }

    /// Kills `handle`. `None`: it is not exposed (any more). Memory that the peer only reads is free at once.
    pub(super) fn fence(
        &mut self,
        handle: Handle,
        id: u64,
        ours: &Part,
        theirs: Option<&Part>,
    ) -> Option<Fenced> {
        let index = self.find(handle)?;
        let entry = &mut self.entries[index];
        entry.kills = entry.kills.wrapping_add(1);
        // Without a peer no access can be under way.
        let span = theirs.and_then(|theirs| order::kill(ours.kills(index), entry.kills, theirs.epoch()));
        let is_written = matches!(entry.exposed, Some(Exposed::Write(_)));
        Some(match span.filter(|_| is_written) {
            None => Fenced::Done(self.remove(index)),
            Some(span) => {
                self.waiting.push(Waiting { index, id, span });
                Fenced::Waiting
            }
        })
    }

    /// A fence that was waiting and is done: its handle, the id it was asked for with, and the memory.
    /// `gone`: the peer cannot touch anything any more.
    pub(super) fn poll(&mut self, theirs: &Part, gone: bool) -> Option<(Handle, u64, Exposed)> {
        let done = |w: &Waiting| gone || order::is_over(theirs.epoch(), w.span);
        let at = self.waiting.iter().position(done)?;
        let Waiting { index, id, .. } = self.waiting.swap_remove(at);
        let handle = Handle(self.entries[index].handle);
        Some((handle, id, self.remove(index)))
    }

    /// Whether a fence waits.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether [`Exposures::poll`] would find something.
    #[inline]
    pub(super) fn has_done(&self, theirs: &Part, gone: bool) -> bool {
        self.waiting.iter().any(|waiting| gone || order::is_over(theirs.epoch(), waiting.span))
    }

    /// The first live handle at or after the index `from`, and the index behind it: for the end of the
    /// connection, when all are fenced.
    pub(super) fn next_live(&self, from: usize) -> Option<(Handle, usize)> {
        let rest = self.entries.iter().enumerate().skip(from);
        let mut live = rest.filter(|(_, e)| e.handle != 0 && self.find(Handle(e.handle)).is_some());
        live.next().map(|(index, e)| (Handle(e.handle), index + 1))
    }

    /// Leaks the memory whose fence still waits: the peer may be writing to it. Returns how many exposures that are.
    pub(super) fn forget_waiting(&mut self) -> usize {
        let count = self.waiting.len();
        for Waiting { index, .. } in self.waiting.drain(..) {
            std::mem::forget(self.entries[index].exposed.take());
        }
        count
    }

    /// Whether nothing is exposed, nor waits.
    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.entries.len()
    }
}

/// One entry of the initiator's table.
#[derive(Clone, Copy)]
struct Bound {
    /// 0: none.
    handle: u32,
    access: Access,
    kills: u32,
    len: u32,
    offset: u64,
    base: *mut u8,
}

/// The initiator's table. Holds the peer's arenas, so the pointers in it stay mapped.
///
/// Invariant: a bound entry's `base` points to `len` mapped, writable bytes of one of `regions`.
pub(super) struct Binds {
    entries: Box<[Bound]>,
    regions: Vec<Rc<Region>>,
    bits: u32,
}

/// Why an access is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No such handle, not that access, or outside of its bounds.
    Access,
    /// The target has fenced it.
    Dead,
}

/// A BIND that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadBind;

impl Binds {
    /// A table for a peer that exposes `count` regions at once out of `regions`.
    pub(super) fn new(count: u32, regions: Vec<Rc<Region>>) -> Binds {
        let none = Bound {
            handle: 0,
            access: Access::Read,
            kills: 0,
            len: 0,
            offset: 0,
            base: std::ptr::null_mut(),
        };
        Binds { entries: vec![none; count as usize].into(), regions, bits: index_bits(count) }
    }

    #[inline]
    fn index(&self, handle: u32) -> usize {
        (handle & ((1 << self.bits) - 1)) as usize
    }

    /// Takes what a BIND says. Whatever was bound at the index is dead: only then does a target
    /// use the index again.
    #[inline]
    pub(super) fn insert(&mut self, handle: u32, access: Access, bind: Bind) -> Result<(), BadBind> {
        let index = self.index(handle);
        let entry = self.entries.get_mut(index).ok_or(BadBind)?;
        let region = self.regions.get(usize::from(bind.region)).ok_or(BadBind)?;
        let base = region.range(bind.offset, bind.len).ok_or(BadBind)?;
        let Bind { offset, len, kills, .. } = bind;
        *entry = Bound { handle, access, kills, len, offset, base };
        Ok(())
    }

    /// Where `len` bytes at `offset` of the exposure `handle` are. To be called within a span of accesses,
    /// which covers the copy, too.
    #[inline]
    pub(super) fn access(
        &self,
        handle: Handle,
        offset: u64,
        len: usize,
        access: Access,
        theirs: &Part,
    ) -> Result<*mut u8, Refusal> {
        let index = self.index(handle.0);
        let entry = self.entries.get(index).ok_or(Refusal::Access)?;
        if handle.0 == 0 || entry.handle != handle.0 || entry.access != access {
            return Err(Refusal::Access);
        }
        let skip = offset.checked_sub(entry.offset).ok_or(Refusal::Access)?;
        let end = skip.checked_add(len as u64).ok_or(Refusal::Access)?;
        if end > u64::from(entry.len) {
            return Err(Refusal::Access);
        }
        if order::is_dead(theirs.kills(index), entry.kills) {
            return Err(Refusal::Dead);
        }
        // SAFETY: `skip + len <= entry.len`, so inside of what `base` points to (invariant).
        Ok(unsafe { entry.base.add(skip as usize) })
    }

    /// Whether an exposure that was just read, after [`Binds::access`], is alive still: then what was copied is what was exposed.
    #[inline]
    pub(super) fn is_alive(&self, handle: Handle, theirs: &Part) -> bool {
        let index = self.index(handle.0);
        self.entries.get(index).is_some_and(|entry| !order::was_killed(theirs.kills(index), entry.kills))
    }

    /// Forgets `handle`, before a Send tells its owner. `false`: it is not known.
    #[inline]
    pub(super) fn forget(&mut self, handle: Handle) -> bool {
        let index = self.index(handle.0);
        match self.entries.get_mut(index) {
            Some(entry) if handle.0 != 0 && entry.handle == handle.0 => {
                entry.handle = 0;
                true
            }
            _ => false,
        }
    }
}
