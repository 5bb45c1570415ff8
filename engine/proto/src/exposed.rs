//! Replies that a Responder exposes, because they fit neither inline nor in a Reply chunk (reliable reply).
//!
//! ```text
//!         expose             handle_done                    when every handle is fenced
//!  Free ─────────▶ Exposed ──────────────▶ Told ───────────────────────────────────────▶ Free
//!                     │                     ▲
//!                     │ revoke              │ handle_done
//!                     └───────▶ Revoked ────┘
//! ```
//!
//! | state | waits for | may be read by the peer |
//! |---|---|---|
//! | `Exposed` | the peer's RDMA_DONE, or the driver's time-out | yes |
//! | `Revoked` | the RDMA_DONE: its Receive stays promised (RR-P-11) | until the handles are fenced |
//! | `Told` | the fences | until the handles are fenced |
//!
//! Each handle is fenced once, by the peer's Send with Invalidate or by the driver ([`ExposedReplies::poll_fence`]). An
//! RDMA_DONE has no Call's credit, so at most as many Replies are exposed as Receives were promised for it (RR-P-8). An
//! RDMA_DONE that matches no exposed Reply is ignored, as often as it comes (RR-4.1.3-d).

use stag_wire::rpcrdma::ReadSegment;

use crate::offer::{HANDLES_MAX, Offer, Offers};
use crate::requester::{ChunkLists, ExposedMemory};

/// Names one exposed Reply of one connection. A stale one is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExposedId {
    index: u32,
    generation: u32,
}

impl ExposedId {
    /// Its slot: small and dense, so that the driver can index an array with it.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        self.index as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Exposed,
    Revoked,
    Told,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    xid: u32,
    /// Counts the Replies in this slot.
    generation: u32,
    state: State,
    /// Counts up over all slots: of two with one xid the older is reported first.
    age: u64,
    offer: Offer,
}

/// What an RDMA_DONE meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum DoneOutcome {
    /// The peer has no more use for a Reply. With [`ExposedMemory::Safe`] it is over: its memory is the driver's again.
    Told {
        /// Which.
        reply: ExposedId,
        /// Whether its handles must be fenced first.
        memory: ExposedMemory,
    },
    /// No Reply waits for it: dropped (RR-4.1.3-d).
    Unknown,
    /// It came with a Send that invalidated a handle which is not the Reply's (RR-4.1.4-c): the connection ends.
    ForeignHandle(u32),
}

/// The exposed Replies of one connection, in one direction. All that it ever allocates is allocated when it is made.
#[derive(Debug)]
pub struct ExposedReplies {
    slots: Box<[Slot]>,
    offers: Offers,
    remote_invalidation: bool,
    next_age: u64,
}

impl ExposedReplies {
    /// At most `limit` Replies at once, each of at most `segments_max` segments. `remote_invalidation`: both ends said that they
    /// support it (RR-4.1.4-a).
    ///
    /// # Panics
    ///
    /// When `segments_max` is above 64.
    #[must_use]
    pub fn new(limit: u16, segments_max: u32, remote_invalidation: bool) -> Self {
        let per_slot = segments_max as usize;
        assert!(per_slot <= HANDLES_MAX, "segments_max: {per_slot}, the limit is {HANDLES_MAX}");
        let slot = Slot { xid: 0, generation: 0, state: State::Free, age: 0, offer: Offer::default() };
        Self {
            slots: vec![slot; usize::from(limit)].into_boxed_slice(),
            offers: Offers::new(usize::from(limit), per_slot),
            remote_invalidation,
            next_age: 0,
        }
    }

    /// Replies that can be exposed now.
    #[must_use]
    pub fn available(&self) -> u32 {
        self.slots.iter().filter(|slot| slot.state == State::Free).count() as u32
    }

    /// RDMA_DONEs that the peer owes: as many Receives are promised for them.
    #[must_use]
    pub fn owed(&self) -> u32 {
        let owes = |slot: &&Slot| matches!(slot.state, State::Exposed | State::Revoked);
        self.slots.iter().filter(owes).count() as u32
    }

    /// Remembers that the Reply with this xid exposes `segments`: those of the header that goes out. `None`: there is no
    /// room, and the Reply waits, or is refused (RR-P-9).
    ///
    /// Handles belong to this Reply alone, so fencing them ends access to no other.
    pub fn expose(&mut self, xid: u32, segments: &[ReadSegment]) -> Option<ExposedId> {
        let index = self.slots.iter().position(|slot| slot.state == State::Free)?;
        let lists = ChunkLists { reads: segments, ..ChunkLists::default() };
        let offer = self.offers.record(index, &lists).ok()?;
        let slot = &mut self.slots[index];
        let generation = slot.generation.wrapping_add(1);
        *slot = Slot { xid, generation, state: State::Exposed, age: self.next_age, offer };
        self.next_age += 1;
        Some(ExposedId { index: index as u32, generation })
    }

    /// Takes in an RDMA_DONE. `invalidated`: the handle that came dead with it.
    pub fn handle_done(&mut self, xid: u32, invalidated: Option<u32>) -> DoneOutcome {
        let waiting = |slot: &Slot| slot.xid == xid && matches!(slot.state, State::Exposed | State::Revoked);
        let found = (0..).zip(&self.slots).filter(|(_, slot)| waiting(slot)).min_by_key(|(_, slot)| slot.age);
        let Some(index) = found.map(|(index, _): (u32, _)| index) else {
            // Whose memory was invalidated cannot be told.
            return invalidated.map_or(DoneOutcome::Unknown, DoneOutcome::ForeignHandle);
        };
        let slot = &mut self.slots[index as usize];
        if let Some(handle) = invalidated
            && !(self.remote_invalidation
                && self.offers.handle_invalidated(index as usize, &mut slot.offer, handle))
        {
            return DoneOutcome::ForeignHandle(handle);
        }
        slot.state = State::Told;
        let reply = ExposedId { index, generation: slot.generation };
        DoneOutcome::Told { reply, memory: self.settle(index) }
    }

    /// The peer has not told in time: its access ends. The RDMA_DONE is still owed (RR-P-11). A Reply that was told of, or
    /// revoked, stays as it is.
    pub fn revoke(&mut self, reply: ExposedId) -> ExposedMemory {
        let Some(slot) = self.slot_mut(reply) else { return ExposedMemory::Safe };
        if slot.state == State::Exposed {
            slot.state = State::Revoked;
        }
        if slot.offer.is_exposed() { ExposedMemory::Exposed } else { ExposedMemory::Safe }
    }

    /// A new Call has the xid of an exposed Reply: its Requester has no more use for that one (section 3 of the rules).
    /// Returns it, revoked.
    pub fn handle_call(&mut self, xid: u32) -> Option<ExposedId> {
        let index = self.slots.iter().position(|slot| slot.state == State::Exposed && slot.xid == xid)?;
        let reply = ExposedId { index: index as u32, generation: self.slots[index].generation };
        let _ = self.revoke(reply);
        Some(reply)
    }

    /// The next handle to fence of a Reply that was told of or revoked.
    pub fn poll_fence(&mut self, reply: ExposedId) -> Option<u32> {
        let index = reply.index();
        let slot = self.slots.get_mut(index).filter(|slot| slot.generation == reply.generation)?;
        match slot.state {
            State::Revoked | State::Told => self.offers.poll_fence(index, &mut slot.offer),
            State::Free | State::Exposed => None,
        }
    }

    /// A handle from [`ExposedReplies::poll_fence`] is dead. `None`: its fence was not awaited. With [`ExposedMemory::Safe`] the
    /// Reply's memory is the driver's again.
    pub fn handle_fenced(&mut self, reply: ExposedId, handle: u32) -> Option<ExposedMemory> {
        let index = reply.index();
        let slot = self.slots.get_mut(index).filter(|slot| slot.generation == reply.generation)?;
        if slot.state == State::Free || !self.offers.handle_fenced(index, &mut slot.offer, handle) {
            return None;
        }
        Some(self.settle(reply.index))
    }

    /// The connection, or the device, is gone, so the peer can read nothing any more. Tells `each` Reply whose memory the
    /// driver does not have back yet, and forgets them all.
    pub fn handle_disconnect(&mut self, mut each: impl FnMut(ExposedId)) {
        for (index, slot) in (0..).zip(&mut self.slots) {
            let holds = slot.state != State::Free && slot.offer.is_exposed();
            slot.state = State::Free;
            slot.offer = Offer::default();
            if holds {
                each(ExposedId { index, generation: slot.generation });
            }
        }
    }

    fn slot_mut(&mut self, reply: ExposedId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(reply.index())?;
        (slot.generation == reply.generation && slot.state != State::Free).then_some(slot)
    }

    /// Frees the slot when nothing keeps it: the peer has told, and nothing is exposed.
    fn settle(&mut self, index: u32) -> ExposedMemory {
        let slot = &mut self.slots[index as usize];
        if slot.offer.is_exposed() {
            return ExposedMemory::Exposed;
        }
        if slot.state == State::Told {
            slot.state = State::Free;
        }
        ExposedMemory::Safe
    }
}
