//! Receives in several buffers: a head, and targets that hold the rest.
//!
//! ```text
//! message   |--- header, Payload stream, padding ---|------ item ------|------ item ------|
//! Receive   |--------------- head ------------------|---- target 0 ----|---- target 1 ----|
//! ```
//!
//! So an item that its sender puts behind the octets of the head lands in buffers of its own, which a store can keep.

use std::collections::VecDeque;

use stag_memory::{ArenaId, Buf};

use crate::{PostError, QueuePairCapacity, Refused};

/// Targets of one Receive at most, whatever the provider.
pub const RECEIVE_TARGETS_MAX: usize = 64;

/// The buffers behind the head of a Receive. The box is posted and comes back again and again: nothing is allocated for a message.
#[derive(Debug, Default)]
pub struct ReceiveTargets {
    bufs: Vec<Buf>,
}

impl ReceiveTargets {
    /// Of these buffers, each used up to its capacity.
    #[must_use]
    pub fn new(bufs: Vec<Buf>) -> Self {
        Self { bufs }
    }

    /// Returns the buffers. After a message each has the octets in it as its length, 0 behind the message's end.
    #[must_use]
    pub fn bufs(&self) -> &[Buf] {
        &self.bufs
    }

    /// Returns the buffers to take them out, or to put others in before they are posted.
    pub fn bufs_mut(&mut self) -> &mut Vec<Buf> {
        &mut self.bufs
    }

    /// Returns the octets of all of them.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.bufs.iter().map(Buf::capacity).sum()
    }

    /// Whether such a queue pair takes them: they are not too many, and a provider that copies words can fill them, because behind a
    /// head of `head_len` octets each begins at a multiple of 8.
    pub(crate) fn suit(&self, capacity: &QueuePairCapacity, head_len: usize) -> bool {
        let is_aligned =
            head_len.is_multiple_of(8) && self.bufs.iter().all(|buf| buf.capacity().is_multiple_of(8));
        is_aligned && capacity.receive_targets > 0 && self.bufs.len() <= capacity.receive_targets as usize
    }

    /// Where the octet `at` goes, and the octets that fit there. `None`: behind the last target.
    pub(crate) fn piece(&mut self, mut at: usize) -> Option<(*mut u8, usize)> {
        for buf in &mut self.bufs {
            let capacity = buf.capacity();
            if at < capacity {
                return Some((buf.as_mut_ptr().wrapping_add(at), capacity - at));
            }
            at -= capacity;
        }
        None
    }

    /// `len` octets were put there.
    pub(crate) fn set_len(&mut self, mut len: usize) {
        for buf in &mut self.bufs {
            let here = len.min(buf.capacity());
            buf.set_len(here);
            len -= here;
        }
    }
}

/// A Receive to post in several buffers.
#[derive(Debug)]
pub struct ScatteredReceive {
    /// Comes back in the completion.
    pub id: u64,
    /// Gets the first octets of the message, up to its `len()`, and comes back in the completion.
    pub head: Buf,
    /// Get the rest, one after the other. [`Provider::take_targets`](crate::Provider::take_targets) gives them back.
    pub targets: Box<ReceiveTargets>,
}

impl ScatteredReceive {
    /// Whether this holds for the arena of each of its buffers.
    pub(crate) fn all_arenas(&self, holds: impl Fn(ArenaId) -> bool) -> bool {
        self.targets.bufs().iter().chain([&self.head]).all(|buf| holds(buf.location().arena))
    }
}

/// The targets of one queue pair's Receives, in the order in which they were posted.
#[derive(Debug)]
pub(crate) struct ScatterQueue {
    posted: VecDeque<Box<ReceiveTargets>>,
    /// Those of messages that came, until the user takes them.
    done: VecDeque<Box<ReceiveTargets>>,
}

impl ScatterQueue {
    /// For this number of Receives.
    fn new(receives: u32) -> Self {
        let count = receives as usize;
        Self { posted: VecDeque::with_capacity(count), done: VecDeque::with_capacity(count) }
    }

    /// Octets of heap of a queue pair's, all full, without the targets themselves.
    pub(crate) fn footprint(capacity: &QueuePairCapacity) -> usize {
        match capacity.receive_targets {
            0 => 0,
            _ => size_of::<Self>() + 2 * capacity.receives as usize * size_of::<Box<ReceiveTargets>>(),
        }
    }

    /// Posts a Receive to a queue pair with these `receives`: its head there, and its targets in `queue`, which is made for the
    /// first.
    pub(crate) fn post(
        queue: &mut Option<Box<ScatterQueue>>,
        receives: &mut VecDeque<(u64, Buf)>,
        capacity: &QueuePairCapacity,
        request: ScatteredReceive,
    ) -> Result<(), Refused<ScatteredReceive>> {
        if let Err(error) = ScatterQueue::admit(queue.as_deref(), receives.len(), capacity, &request) {
            return Err(Refused { request, error });
        }
        let ScatteredReceive { id, head, targets } = request;
        receives.push_back((id, head));
        ScatterQueue::of(queue, capacity).push(targets);
        Ok(())
    }

    /// Whether a queue pair with `receives` Receives posted takes this one, too.
    pub(crate) fn admit(
        queue: Option<&ScatterQueue>,
        receives: usize,
        capacity: &QueuePairCapacity,
        request: &ScatteredReceive,
    ) -> Result<(), PostError> {
        let (posted, untaken) = queue.map_or((0, 0), |queue| (queue.posted.len(), queue.done.len()));
        if posted != receives || !request.targets.suit(capacity, request.head.len()) {
            return Err(PostError::Scatter);
        }
        if receives.max(untaken) >= capacity.receives as usize {
            return Err(PostError::Full);
        }
        Ok(())
    }

    /// The one there is, or a new one.
    pub(crate) fn of<'a>(
        queue: &'a mut Option<Box<ScatterQueue>>,
        capacity: &QueuePairCapacity,
    ) -> &'a mut ScatterQueue {
        queue.get_or_insert_with(|| Box::new(ScatterQueue::new(capacity.receives)))
    }

    /// Takes the targets of a Receive that was admitted.
    pub(crate) fn push(&mut self, targets: Box<ReceiveTargets>) {
        self.posted.push_back(targets);
    }

    /// Those of the Receive at this place of the queue.
    pub(crate) fn nth(&mut self, at: usize) -> Option<&mut ReceiveTargets> {
        self.posted.get_mut(at).map(|targets| &mut **targets)
    }

    /// Those of the oldest Receive.
    pub(crate) fn oldest(&mut self) -> Option<&mut ReceiveTargets> {
        self.posted.front_mut().map(|targets| &mut **targets)
    }

    /// The octets that the oldest ones hold.
    pub(crate) fn room(&self) -> usize {
        self.posted.front().map_or(0, |targets| targets.capacity())
    }

    /// The oldest Receive has a message, of which the targets hold `len` octets.
    pub(crate) fn complete(&mut self, len: usize) {
        if let Some(mut targets) = self.posted.pop_front() {
            targets.set_len(len);
            self.done.push_back(targets);
        }
    }

    /// The oldest Receive failed: its targets go back to their pools.
    pub(crate) fn discard(&mut self) {
        self.posted.pop_front();
    }

    /// Those of the oldest message that has not been asked about.
    pub(crate) fn take(&mut self) -> Option<Box<ReceiveTargets>> {
        self.done.pop_front()
    }

    /// Whether a message has not been asked about.
    pub(crate) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }
}
