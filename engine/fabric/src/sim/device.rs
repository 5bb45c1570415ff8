//! The state of one simulated provider: its completion queue, its events, its queue pairs.

use std::collections::{BTreeMap, VecDeque};

use stag_memory::ArenaId;

use super::queue_pair::{End, Phase, QueuePair};
use crate::{Completion, Event, Limits, ListenerId, QueuePairId};

/// Connection requests that wait for an answer, of one device.
pub(super) const BACKLOG_MAX: usize = 1024;

/// Which slots of a queue pair a completion gives back when it is harvested.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slots {
    pub(super) receives: u32,
    pub(super) sends: u32,
    pub(super) exposures: u32,
}

impl Slots {
    pub(super) const RECEIVE: Slots = Slots { receives: 1, sends: 0, exposures: 0 };
    pub(super) const SEND: Slots = Slots { receives: 0, sends: 1, exposures: 0 };
    pub(super) const EXPOSURE: Slots = Slots { receives: 0, sends: 0, exposures: 1 };
    pub(super) const PENDING_FENCE: Slots = Slots { receives: 0, sends: 1, exposures: 1 };
    pub(super) const RECEIVE_AND_EXPOSURE: Slots = Slots { receives: 1, sends: 0, exposures: 1 };
}

/// A completion that waits to be harvested.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) completion: Completion,
    pub(super) slots: Slots,
}

/// A request to connect that waits for an answer.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) from: End,
}

#[derive(Debug, Default)]
struct PairSlot {
    generation: u32,
    queue_pair: Option<QueuePair>,
}

/// The state behind one [`Sim`](super::Sim).
#[derive(Debug)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) limits: Limits,
    pub(super) arenas: Vec<ArenaId>,
    pub(super) completions: VecDeque<Queued>,
    pub(super) events: VecDeque<Event>,
    /// By the number of their [`ConnectRequestId`](crate::ConnectRequestId).
    pub(super) requests: BTreeMap<u64, Request>,
    pub(super) listeners: u32,
    /// Pieces of its memory that peers may still read by RDMA Read, if not all.
    pub(super) readable: Option<u64>,
    /// RDMA Writes to its memory stay under way.
    pub(super) is_unwritable: bool,
    /// The user that peers see.
    pub(super) user: u32,
    slots: Vec<PairSlot>,
}

impl Device {
    pub(super) fn new(name: &str, limits: Limits) -> Device {
        Device {
            name: name.to_owned(),
            limits,
            arenas: Vec::new(),
            completions: VecDeque::new(),
            events: VecDeque::new(),
            requests: BTreeMap::new(),
            listeners: 0,
            readable: None,
            is_unwritable: false,
            user: 0,
            slots: Vec::new(),
        }
    }

    pub(super) fn next_listener(&mut self) -> ListenerId {
        self.listeners += 1;
        ListenerId(self.listeners - 1)
    }

    pub(super) fn queue_pair(&self, id: QueuePairId) -> Option<&QueuePair> {
        let slot = self.slots.get(id.index as usize)?;
        if slot.generation == id.generation { slot.queue_pair.as_ref() } else { None }
    }

    pub(super) fn queue_pair_mut(&mut self, id: QueuePairId) -> Option<&mut QueuePair> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation == id.generation { slot.queue_pair.as_mut() } else { None }
    }

    /// All queue pairs that exist, in the order of slots.
    pub(super) fn queue_pairs(&self) -> impl Iterator<Item = (QueuePairId, &QueuePair)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let id = QueuePairId { index: index as u32, generation: slot.generation };
            Some((id, slot.queue_pair.as_ref()?))
        })
    }

    pub(super) fn insert(&mut self, queue_pair: QueuePair) -> QueuePairId {
        let index = self.slots.iter().position(|slot| slot.queue_pair.is_none()).unwrap_or_else(|| {
            self.slots.push(PairSlot::default());
            self.slots.len() - 1
        });
        let slot = &mut self.slots[index];
        // Generation 0 is never in use, so a zeroed id names nothing.
        slot.generation = slot.generation.wrapping_add(1).max(1);
        slot.queue_pair = Some(queue_pair);
        QueuePairId { index: index as u32, generation: slot.generation }
    }

    /// Room in the completion queue that is promised to queue pairs.
    pub(super) fn completions_committed(&self) -> u64 {
        self.queue_pairs().map(|(_, queue_pair)| QueuePair::completions(&queue_pair.capacity)).sum()
    }

    /// The next completion that may be harvested: the oldest of a queue pair whose `Established` was taken.
    pub(super) fn harvestable(&self) -> Option<usize> {
        self.completions.iter().position(|queued| {
            self.queue_pair(queued.completion.queue_pair).is_none_or(|queue_pair| !queue_pair.held)
        })
    }

    /// Harvests one completion, and tells of a queue pair's end when it was the last one.
    pub(super) fn harvest(&mut self) -> Option<Completion> {
        let Queued { completion, slots } = self.completions.remove(self.harvestable()?)?;
        let id = completion.queue_pair;
        if let Some(queue_pair) = self.queue_pair_mut(id) {
            queue_pair.unharvested -= 1;
            queue_pair.receives_used -= slots.receives;
            queue_pair.sends_used -= slots.sends;
            queue_pair.exposures_used -= slots.exposures;
            self.announce_end(id);
        }
        Some(completion)
    }

    /// Queues `Disconnected` once a dead queue pair has nothing left to give back, its targets included.
    pub(super) fn announce_end(&mut self, id: QueuePairId) {
        let Some(queue_pair) = self.queue_pair_mut(id) else { return };
        if queue_pair.phase != Phase::Dead || queue_pair.unharvested > 0 || !queue_pair.filled.is_empty() {
            return;
        }
        assert!(
            queue_pair.receives_used + queue_pair.sends_used + queue_pair.exposures_used == 0,
            "a queue pair ends with all of its slots back"
        );
        if let Some(reason) = queue_pair.reason.take() {
            self.events.push_back(Event::Disconnected { queue_pair: id, reason });
        }
    }

    /// The next event. What waited for the user to know of it goes on.
    pub(super) fn next_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        match &event {
            Event::Established { queue_pair, .. } => {
                if let Some(queue_pair) = self.queue_pair_mut(*queue_pair) {
                    queue_pair.held = false;
                }
            }
            // Only now may the slot be used again: until here the user had a use for its index.
            Event::Disconnected { queue_pair, .. } => {
                self.slots[queue_pair.index as usize].queue_pair = None;
            }
            Event::ConnectRequest { .. } => {}
        }
        Some(event)
    }
}
