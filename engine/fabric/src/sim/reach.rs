//! The peer's memory, while one of its messages is shown.

use std::cell::RefMut;

use stag_memory::{ArenaId, Buf, Shared};

use super::provider::own;
use super::queue_pair::{End, Part, Payload, Verb};
use super::world::State;
use super::{Sim, World};
use crate::{MemoryInReach, QueuePairId, ReadPart, ReadRequest, RemoteSegment};

/// The peer's memory: read or written at once or not, at random.
pub(super) struct Reach {
    world: World,
    device: usize,
    queue_pair: QueuePairId,
    is_far: bool,
    /// A Read that is posted when the message is taken.
    pub(super) read: Option<(ReadRequest, RemoteSegment)>,
}

impl Reach {
    pub(super) fn new(world: World, device: usize, queue_pair: QueuePairId, is_far: bool) -> Reach {
        Reach { world, device, queue_pair, is_far, read: None }
    }

    /// The state, if memory of this arena can be used.
    fn state(&self, arena: ArenaId) -> Option<RefMut<'_, State>> {
        let mut state = self.world.0.borrow_mut();
        own(&mut state, self.device).arenas.contains(&arena).then_some(state)
    }

    fn end(&self) -> End {
        End { device: self.device, id: self.queue_pair }
    }
}

impl MemoryInReach for Reach {
    fn is_far(&self) -> bool {
        self.is_far
    }

    fn read(&mut self, target: &mut Buf, parts: &[ReadPart]) -> bool {
        let state = self.state(target.location().arena);
        state.is_some_and(|mut state| state.read_at_once(self.end(), target, parts))
    }

    fn post_read(&mut self, request: ReadRequest, source: RemoteSegment) -> Result<(), ReadRequest> {
        let may_read = self.state(request.target.location().arena).is_some_and(|mut state| {
            let odds = state.plan.in_place;
            let happens = state.random.happens(odds);
            let found = own(&mut state, self.device).queue_pair_mut(self.queue_pair);
            // Beside the answer's.
            happens && found.is_some_and(|found| found.sends_used + 1 < found.capacity.sends)
        });
        if !may_read || self.read.is_some() {
            return Err(request);
        }
        self.read = Some((request, source));
        Ok(())
    }

    fn write(&mut self, source: &Shared, target: RemoteSegment) -> bool {
        let state = self.state(source.location().arena);
        state.is_some_and(|mut state| state.write_at_once(self.end(), source, target))
    }
}

impl Sim {
    /// Whether the memory of a peer takes a round trip to read this time.
    pub(super) fn is_far(&self) -> bool {
        let mut state = self.world.0.borrow_mut();
        let odds = state.plan.far;
        state.random.happens(odds)
    }

    /// Posts a Read that there was room for.
    pub(super) fn begin_read(&self, id: QueuePairId, request: ReadRequest, source: RemoteSegment) {
        let mut state = self.world.0.borrow_mut();
        let early = state.random.below(8) == 0;
        let ReadRequest { id: request_id, target } = request;
        let part = Part { remote: source, at: 0, len: target.len() as u32, pieces_left: 0, begun: false };
        let read = (request_id, true, Verb::Read, Payload::Read(target), vec![part]);
        self.enqueue(&mut state, id, early, read);
    }
}
