//! The table of exposed memory of one queue pair.

use std::collections::BTreeSet;

use super::random::Random;
use crate::{Exposed, Handle, RemoteSegment};

/// Bits of a handle that name the slot; the others are its generation.
const SLOT_BITS: u32 = 14;
const GENERATION_MASK: u32 = u32::MAX >> SLOT_BITS;
/// Exposures that a queue pair can have at once.
pub(super) const EXPOSURES_MAX: u32 = 1 << SLOT_BITS;

/// What a peer wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// Exposed memory by handle. The generations of a slot are a random walk through all that there are: a peer
/// cannot guess the next one, and one that is dead stays dead until the slot was used 2^18 times.
#[derive(Debug, Default)]
pub(super) struct Exposures {
    slots: Vec<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Of the present or last use.
    generation: u32,
    /// Odd, and therefore comes by every generation before it comes by one again. 0: never used.
    stride: u32,
    entry: Option<Entry>,
    /// The handle that was here last ended by a fence of ours, of which the peer may not know yet.
    was_fenced: bool,
}

#[derive(Debug)]
struct Entry {
    /// The offset of the first octet. Random: a peer must not rely on our addresses.
    base: u64,
    exposed: Exposed,
    /// Accesses of the peer that began and have not ended.
    under_way: u32,
    /// The handle is dead for new accesses, and this fence waits.
    fence: Option<u64>,
    /// The fence waits for an event of its own besides the accesses.
    fence_late: bool,
}

/// What [`Exposures::invalidate`] found.
pub(super) enum Invalidated {
    /// It is dead now, and this is what it named.
    Memory(Exposed),
    /// It was fenced while the message was on its way.
    AlreadyFenced,
    /// The peer had no business with it.
    Unknown,
}

/// What [`Exposures::fence`] found.
pub(super) enum Fenced {
    /// No access is under way: here is the memory.
    Done(Exposed),
    /// It has to wait.
    Pending,
}

impl Exposures {
    /// Adds memory. `live` has the handles of the whole world: none is given out twice at once, so that
    /// another queue pair's handle is surely unknown to this one.
    pub(super) fn insert(
        &mut self,
        exposed: Exposed,
        random: &mut Random,
        live: &mut BTreeSet<u32>,
    ) -> RemoteSegment {
        let index = self.slots.iter().position(|slot| slot.entry.is_none()).unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let slot = &mut self.slots[index];
        if slot.stride == 0 {
            slot.stride = random.next_u64() as u32 | 1;
            slot.generation = random.next_u64() as u32 & GENERATION_MASK;
        }
        let handle = loop {
            slot.generation = slot.generation.wrapping_add(slot.stride) & GENERATION_MASK;
            let handle = (slot.generation << SLOT_BITS) | index as u32;
            if live.insert(handle) {
                break Handle(handle);
            }
        };
        // The upper half of the address space is left free, so that honest arithmetic cannot overflow.
        let base = random.next_u64() >> 1;
        slot.entry = Some(Entry { base, exposed, under_way: 0, fence: None, fence_late: false });
        RemoteSegment { handle, offset: base }
    }

    fn slot(&self, handle: Handle) -> Option<usize> {
        let index = (handle.0 & (EXPOSURES_MAX - 1)) as usize;
        let slot = self.slots.get(index)?;
        (slot.generation == handle.0 >> SLOT_BITS && slot.entry.is_some()).then_some(index)
    }

    fn entry_mut(&mut self, handle: Handle) -> Option<&mut Entry> {
        let index = self.slot(handle)?;
        self.slots[index].entry.as_mut()
    }

    fn entry(&self, handle: Handle) -> Option<&Entry> {
        self.slots[self.slot(handle)?].entry.as_ref()
    }

    fn remove(&mut self, handle: Handle, is_fence: bool, live: &mut BTreeSet<u32>) -> Option<Entry> {
        let index = self.slot(handle)?;
        live.remove(&handle.0);
        let slot = &mut self.slots[index];
        let entry = slot.entry.take();
        slot.was_fenced = entry.is_some() && is_fence;
        entry
    }

    /// Begins an access to all of `len` octets at `segment`, if the peer may.
    pub(super) fn begin(&mut self, segment: RemoteSegment, len: u64, access: Access) -> bool {
        let Some(entry) = self.entry_mut(segment.handle) else { return false };
        if entry.fence.is_some() {
            return false;
        }
        let exposed_len = match (&entry.exposed, access) {
            (Exposed::Read(shared), Access::Read) => shared.len() as u64,
            (Exposed::Write(buf), Access::Write) => buf.len() as u64,
            _ => return false,
        };
        let Some(at) = segment.offset.checked_sub(entry.base) else { return false };
        let Some(end) = at.checked_add(len) else { return false };
        if end > exposed_len {
            return false;
        }
        entry.under_way += 1;
        true
    }

    /// The octets of exposed memory that a piece of an access reads. `None`: they are gone.
    pub(super) fn readable(&self, segment: RemoteSegment, at: u32, len: u32) -> Option<&[u8]> {
        let entry = self.entry(segment.handle)?;
        let start = (segment.offset - entry.base) as usize + at as usize;
        match &entry.exposed {
            Exposed::Read(shared) => Some(&shared[start..start + len as usize]),
            Exposed::Write(_) => None,
        }
    }

    /// The octets that a piece of an access writes. `None`: they are gone.
    pub(super) fn writable(&mut self, segment: RemoteSegment, at: u32, len: u32) -> Option<&mut [u8]> {
        let entry = self.entry_mut(segment.handle)?;
        let start = (segment.offset - entry.base) as usize + at as usize;
        match &mut entry.exposed {
            Exposed::Write(buf) => Some(&mut buf[start..start + len as usize]),
            Exposed::Read(_) => None,
        }
    }

    /// Ends an access. Returns the fence that waited for it alone, with its memory.
    pub(super) fn end(&mut self, handle: Handle, live: &mut BTreeSet<u32>) -> Option<(u64, Exposed)> {
        let entry = self.entry_mut(handle)?;
        entry.under_way -= 1;
        self.finish_fence(handle, live)
    }

    /// Lets a late fence finish, unless an access is still under way.
    pub(super) fn fence_due(&mut self, handle: Handle, live: &mut BTreeSet<u32>) -> Option<(u64, Exposed)> {
        self.entry_mut(handle)?.fence_late = false;
        self.finish_fence(handle, live)
    }

    fn finish_fence(&mut self, handle: Handle, live: &mut BTreeSet<u32>) -> Option<(u64, Exposed)> {
        let entry = self.entry(handle)?;
        let id = entry.fence?;
        if entry.under_way > 0 || entry.fence_late {
            return None;
        }
        self.remove(handle, true, live).map(|entry| (id, entry.exposed))
    }

    /// Kills a handle: no access begins from here on. `late`: [`Exposures::fence_due`] will be called.
    pub(super) fn fence(
        &mut self,
        handle: Handle,
        id: u64,
        late: bool,
        live: &mut BTreeSet<u32>,
    ) -> Option<Fenced> {
        let entry = self.entry_mut(handle)?;
        if entry.fence.is_some() {
            return None;
        }
        if entry.under_way == 0 && !late {
            return self.remove(handle, true, live).map(|entry| Fenced::Done(entry.exposed));
        }
        entry.fence = Some(id);
        entry.fence_late = late;
        Some(Fenced::Pending)
    }

    /// Kills a handle on the peer's demand.
    pub(super) fn invalidate(&mut self, handle: Handle, live: &mut BTreeSet<u32>) -> Invalidated {
        let slot = self.slots.get((handle.0 & (EXPOSURES_MAX - 1)) as usize);
        let Some(slot) = slot.filter(|slot| slot.generation == handle.0 >> SLOT_BITS) else {
            return Invalidated::Unknown;
        };
        match &slot.entry {
            Some(entry) if entry.fence.is_some() => return Invalidated::AlreadyFenced,
            Some(_) => {}
            None if slot.was_fenced => return Invalidated::AlreadyFenced,
            None => return Invalidated::Unknown,
        }
        let entry = self.remove(handle, false, live);
        entry.map_or(Invalidated::Unknown, |entry| Invalidated::Memory(entry.exposed))
    }

    /// Takes everything, in the order of slots: the handle, its memory, and the fence that waited for it.
    pub(super) fn drain(&mut self, live: &mut BTreeSet<u32>) -> Vec<(Handle, Exposed, Option<u64>)> {
        let mut all = Vec::new();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if let Some(entry) = slot.entry.take() {
                let handle = Handle((slot.generation << SLOT_BITS) | index as u32);
                live.remove(&handle.0);
                all.push((handle, entry.exposed, entry.fence));
            }
        }
        all
    }
}
