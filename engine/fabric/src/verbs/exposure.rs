//! The memory that the peer of one queue pair may touch: a slot for each exposure, with its memory window or
//! region.

use std::collections::VecDeque;

use stag_rdma_core_sys as sys;

use super::objects::{MemoryRegion, MemoryWindow};
use crate::{Exposed, Handle};

/// The exposures of a queue pair.
#[derive(Default)]
pub(super) struct Exposures {
    slots: Vec<Slot>,
    /// By slot: the handle that it has, or had last. Apart from the slots, so that a search is one sweep.
    handles: Vec<u32>,
    /// What stays of each window's handle, in order, and its slot. Empty where there are no windows.
    windows: Vec<(u32, u16)>,
    /// Slots that are free; the first is used next.
    free: VecDeque<u16>,
    /// Whether that is the one that was used last: standing exposures need no more handles than there are exposures at
    /// one time. Others take the one that has been free for the longest, so that keys come back late.
    is_standing: bool,
}

/// One exposure.
struct Slot {
    // In this order: what gives access goes before the memory.
    window: Option<MemoryWindow>,
    region: Option<MemoryRegion>,
    state: State,
}

/// What a slot's handle means.
#[derive(Debug)]
enum State {
    /// Never used.
    Fresh,
    /// The peer may touch it.
    Live(Exposed),
    /// Its invalidation is posted.
    Fencing(u64, Exposed),
    /// We ended it: a Send of the peer that invalidates it may still be on its way.
    Fenced,
    /// A Send of the peer ended it.
    Invalidated,
}

/// What became of a handle that the peer's Send invalidated.
pub(super) enum Invalidated {
    /// It was exposed; here is the memory.
    Ended(Exposed),
    /// We were about to end it, or had just done so: nothing to report.
    Meanwhile,
    /// It names nothing that the peer could know of.
    Violation,
}

impl Exposures {
    /// Octets of heap of the tables for `count` exposures.
    pub(super) fn footprint(count: u32) -> usize {
        count as usize * (size_of::<Slot>() + size_of::<u32>() + size_of::<(u32, u16)>() + size_of::<u16>())
    }

    /// Room for as many exposures as there are windows; or, without windows, for `count`.
    pub(super) fn new(windows: Vec<MemoryWindow>, count: usize, is_standing: bool) -> Exposures {
        let slot = |window| Slot { window, region: None, state: State::Fresh };
        let slots: Vec<Slot> = if windows.is_empty() {
            (0..count).map(|_| slot(None)).collect()
        } else {
            windows.into_iter().map(|window| slot(Some(window))).collect()
        };
        let handles = slots.iter().map(|slot| slot.window.as_ref().map_or(0, MemoryWindow::rkey)).collect();
        let free = (0..slots.len() as u16).collect();
        let keys = slots.iter().map_while(|slot| slot.window.as_ref()).map(|window| index_of(window.rkey()));
        let mut windows: Vec<(u32, u16)> = keys.zip(0..).collect();
        windows.sort_unstable();
        Exposures { slots, handles, windows, free, is_standing }
    }

    fn set_free(&mut self, slot: u16) {
        if self.is_standing { self.free.push_front(slot) } else { self.free.push_back(slot) }
    }

    /// The slot to use next, if there is one. It stays free until `start`.
    pub(super) fn next_free(&self) -> Option<u16> {
        self.free.front().copied()
    }

    /// The handle that the next bind of this slot's window makes: its key counts up.
    pub(super) fn next_handle(&self, slot: u16) -> u32 {
        sys::ibv_inc_rkey(self.handles[usize::from(slot)])
    }

    /// Notes that the bind of a slot's window is posted: until then the window has the key of the bind before, which
    /// the driver passes on.
    pub(super) fn bound(&mut self, slot: u16) {
        let rkey = self.handles[usize::from(slot)];
        if let Some(window) = &mut self.slots[usize::from(slot)].window {
            window.set_rkey(rkey);
        }
    }

    /// Takes the slot of `next_free` into use: its window gets `handle`, or its region has it.
    pub(super) fn start(&mut self, handle: u32, region: Option<MemoryRegion>, exposed: Exposed) {
        let slot = self.free.pop_front().expect("asked for by next_free");
        // A region's key may have been an earlier region's; then it is no longer that one's.
        if region.is_some()
            && let Some(earlier) = self.find(handle)
        {
            self.handles[usize::from(earlier)] = 0;
        }
        self.handles[usize::from(slot)] = handle;
        let entry = &mut self.slots[usize::from(slot)];
        entry.region = region;
        entry.state = State::Live(exposed);
    }

    /// The slot of a handle that is or was used.
    fn find(&self, handle: u32) -> Option<u16> {
        if self.windows.is_empty() {
            return self.handles.iter().position(|&h| h == handle).map(|at| at as u16);
        }
        let at = self.windows.binary_search_by_key(&index_of(handle), |window| window.0).ok()?;
        let slot = self.windows[at].1;
        (self.handles[usize::from(slot)] == handle).then_some(slot)
    }

    /// The slot of a handle that is exposed, and not being fenced.
    pub(super) fn live(&self, handle: Handle) -> Option<u16> {
        let slot = self.find(handle.0)?;
        matches!(self.slots[usize::from(slot)].state, State::Live(_)).then_some(slot)
    }

    /// The window of a slot, for the device.
    pub(super) fn window(&self, slot: u16) -> Option<&MemoryWindow> {
        self.slots[usize::from(slot)].window.as_ref()
    }

    /// The handle of a slot.
    pub(super) fn handle(&self, slot: u16) -> Handle {
        Handle(self.handles[usize::from(slot)])
    }

    /// What is exposed in a live slot: where, how many octets, and whether for writing.
    pub(super) fn memory(&self, slot: u16) -> Option<(*const u8, usize, bool)> {
        match &self.slots[usize::from(slot)].state {
            State::Live(exposed) | State::Fencing(_, exposed) => Some(place(exposed)),
            _ => None,
        }
    }

    /// Notes that the invalidation of a live slot is under way.
    pub(super) fn fence(&mut self, slot: u16, id: u64) {
        let state = &mut self.slots[usize::from(slot)].state;
        if let State::Live(exposed) = std::mem::replace(state, State::Fenced) {
            *state = State::Fencing(id, exposed);
        }
    }

    /// The registration of a live slot, to be ended. The slot stays live until `fenced`.
    pub(super) fn take_region(&mut self, slot: u16) -> Option<MemoryRegion> {
        self.slots[usize::from(slot)].region.take()
    }

    /// Puts back what could not be ended.
    pub(super) fn put_region(&mut self, slot: u16, region: MemoryRegion) {
        self.slots[usize::from(slot)].region = Some(region);
    }

    /// The end of a slot's exposure, live or being fenced: nothing reaches the memory through it any more.
    pub(super) fn fenced(&mut self, slot: u16) -> Option<(u64, Exposed)> {
        let state = &mut self.slots[usize::from(slot)].state;
        match std::mem::replace(state, State::Fenced) {
            State::Live(exposed) => {
                self.set_free(slot);
                Some((0, exposed))
            }
            State::Fencing(id, exposed) => {
                self.set_free(slot);
                Some((id, exposed))
            }
            before => {
                *state = before;
                None
            }
        }
    }

    /// A Send of the peer invalidated a handle.
    pub(super) fn invalidated(&mut self, handle: u32) -> Invalidated {
        let Some(slot) = self.find(handle) else { return Invalidated::Violation };
        let state = &mut self.slots[usize::from(slot)].state;
        match std::mem::replace(state, State::Invalidated) {
            State::Live(exposed) => {
                self.set_free(slot);
                Invalidated::Ended(exposed)
            }
            before @ (State::Fencing(..) | State::Fenced) => {
                *state = before;
                Invalidated::Meanwhile
            }
            before @ (State::Fresh | State::Invalidated) => {
                *state = before;
                Invalidated::Violation
            }
        }
    }

    /// Slots in which memory is exposed, for the end of the queue pair.
    pub(super) fn first_used(&self) -> Option<u16> {
        let used = |slot: &Slot| matches!(slot.state, State::Live(_) | State::Fencing(..));
        self.slots.iter().position(used).map(|at| at as u16)
    }

    /// Frees the windows, bound or not, before the queue pair's end: rxe's waits for those that are still bound to it, and
    /// gives up after a minute.
    pub(super) fn drop_windows(&mut self) {
        for slot in &mut self.slots {
            slot.window = None;
        }
    }

    /// Ends the registration of every slot, after the queue pair's end.
    pub(super) fn drop_regions(&mut self) {
        for slot in &mut self.slots {
            slot.region = None;
        }
    }
}

/// What names a window in its handle: a bind changes the low octet only (`ibv_inc_rkey`).
fn index_of(rkey: u32) -> u32 {
    rkey >> 8
}

/// Where exposed memory is, how many octets, and whether the peer may write them.
pub(super) fn place(exposed: &Exposed) -> (*const u8, usize, bool) {
    match exposed {
        Exposed::Read(shared) => (shared.as_ptr(), shared.len(), false),
        Exposed::Write(buf) => (buf.as_ptr(), buf.len(), true),
    }
}

/// What the peer may do: no more than asked for (8166-8.1-c).
pub(super) fn remote_access(is_written: bool) -> sys::ibv_access_flags {
    if is_written { sys::IBV_ACCESS_REMOTE_WRITE } else { sys::IBV_ACCESS_REMOTE_READ }
}
