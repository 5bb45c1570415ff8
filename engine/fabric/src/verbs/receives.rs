//! Receives: a queue pair's own, and those that queue pairs share.
//!
//! # Shared Receives
//!
//! A message goes to the oldest Receive of the shared queue, whichever queue pair it is for. So `post_receive` adds a
//! **reservation** (an id) to a queue pair, and a buffer to the shared queue; a message takes the oldest buffer and its queue
//! pair's oldest id. There are as many buffers in the queue as reservations, and some more: a queue pair that ends gives its
//! ids up, but nothing can be taken out of the queue, so its buffers are left over and replace the next ones to post. The
//! peers of all queue pairs together can therefore have no more messages on their way than there are Receives, as long as
//! each keeps to its credits. A peer that sends more is disconnected, and the buffer that it took goes back.
//!
//! The device could report that few are left (its limit event); that is not used, because we count them.
//!
//! # Scattered Receives
//!
//! A Receive with targets is a list of several pieces. Such a queue pair has Receives of its own, and they are posted one by one.
//!
//! One reactor owns the queue and all queue pairs on it, so the numbers are plain ones.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use stag_memory::Buf;

use super::domain::Domain;
use super::objects::SharedReceiveQueue;
use super::work::{Batch, Receive, SHARED_SLOT, WorkId};
use crate::scatter::{ReceiveTargets, ScatterQueue, ScatteredReceive};
use crate::{PostError, QueuePairCapacity, QueuePairId};

/// A Receive of a queue pair's own, and its work request, which stays as it is while messages are taken where they arrived.
struct OwnReceive {
    id: u64,
    /// `None`: it is spare.
    buf: Option<Buf>,
    arena: usize,
    /// Made when it was first handed over.
    request: Receive,
}

impl OwnReceive {
    /// Makes the request for the device.
    #[inline]
    fn prepare(&mut self, id: QueuePairId, len_max: u32, domain: &Domain) {
        let (slot, generation) = (id.index, id.generation as u16);
        // Receives complete in order, so this is not needed to find the slot.
        let id = WorkId { is_receive: true, slot, generation, sequence: 0 };
        let Some(buf) = &mut self.buf else { unreachable!("a Receive that was posted has a buffer") };
        let len = buf.capacity().min(len_max as usize) as u32;
        self.request = Receive::new(id, buf.as_mut_ptr(), len, domain.lkey(self.arena));
    }
}

/// The Receives of one queue pair, which complete in posting order.
pub(super) struct ReceiveQueue {
    /// Those posted, in order, of its own.
    posted: VecDeque<Box<OwnReceive>>,
    /// Boxes for more of them.
    #[expect(clippy::vec_box, reason = "what is in a box stays where it is when it moves to `posted`")]
    spare: Vec<Box<OwnReceive>>,
    /// Instead, the Receives that it shares, and the ids of those that it posted.
    shared: Option<Rc<SharedReceivePool>>,
    reserved: VecDeque<u64>,
    /// Where all of them are scattered, what is behind the buffers in `posted`.
    scatter: Option<Box<ScatterQueue>>,
    /// The arenas of the targets that the device does not have yet, one after the other.
    arenas: VecDeque<usize>,
    /// How many of `posted`, from the front, the device has.
    handed: usize,
    /// Until they are harvested.
    used: u32,
    capacity: QueuePairCapacity,
}

impl ReceiveQueue {
    /// Octets of heap, all posted.
    pub(super) fn footprint(capacity: &QueuePairCapacity) -> usize {
        let receives = capacity.receives as usize;
        receives * (2 * size_of::<Box<OwnReceive>>() + size_of::<OwnReceive>())
            + ScatterQueue::footprint(capacity)
            + receives * capacity.receive_targets as usize * size_of::<usize>()
    }

    pub(super) fn new(capacity: &QueuePairCapacity, shared: Option<Rc<SharedReceivePool>>) -> ReceiveQueue {
        let count = capacity.receives as usize;
        let (own, reserved) = if shared.is_some() { (0, count) } else { (count, 0) };
        let empty = || Box::new(OwnReceive { id: 0, buf: None, arena: 0, request: Receive::default() });
        ReceiveQueue {
            posted: VecDeque::with_capacity(own),
            spare: (0..own).map(|_| empty()).collect(),
            shared,
            reserved: VecDeque::with_capacity(reserved),
            scatter: None,
            arenas: VecDeque::with_capacity(count * capacity.receive_targets as usize),
            handed: 0,
            used: 0,
            capacity: *capacity,
        }
    }

    /// The shared Receives that its queue pair takes part in.
    #[inline]
    pub(super) fn shared(&self) -> Option<&Rc<SharedReceivePool>> {
        self.shared.as_ref()
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.used >= self.capacity.receives
    }

    /// Takes a Receive of its own, for which there is room.
    #[inline]
    pub(super) fn push(&mut self, id: u64, buf: Buf, arena: usize) {
        self.used += 1;
        let mut receive = self.spare.pop().expect("there is a box for each Receive that is not harvested");
        (receive.id, receive.buf, receive.arena) = (id, Some(buf), arena);
        self.posted.push_back(receive);
    }

    /// Notes the id of a shared Receive, for which there is room; its buffer is posted already.
    #[inline]
    pub(super) fn reserve(&mut self, id: u64) {
        self.used += 1;
        self.reserved.push_back(id);
    }

    /// Whether they have targets.
    #[inline]
    pub(super) fn is_scattered(&self) -> bool {
        self.scatter.is_some()
    }

    /// Whether a Receive with targets can be posted.
    pub(super) fn admit(&self, request: &ScatteredReceive) -> Result<(), PostError> {
        match self.shared {
            Some(_) => Err(PostError::Scatter),
            None => ScatterQueue::admit(self.scatter.as_deref(), self.posted.len(), &self.capacity, request),
        }
    }

    /// Takes a Receive that was admitted, whose head is in this arena; `arena_of` tells those of the targets.
    pub(super) fn push_scattered(
        &mut self,
        request: ScatteredReceive,
        arena: usize,
        arena_of: impl FnMut(&Buf) -> usize,
    ) {
        let ScatteredReceive { id, head, targets } = request;
        self.arenas.extend(targets.bufs().iter().map(arena_of));
        self.push(id, head, arena);
        ScatterQueue::of(&mut self.scatter, &self.capacity).push(targets);
    }

    /// The targets of the oldest message that was not asked about.
    pub(super) fn take_targets(&mut self) -> Option<Box<ReceiveTargets>> {
        self.scatter.as_mut()?.take()
    }

    /// Whether there are targets of a message that was not asked about.
    pub(super) fn has_targets(&self) -> bool {
        self.scatter.as_ref().is_some_and(|scatter| scatter.has_done())
    }

    /// A message of `len` octets came, for which there was a Receive with this head: the octets in the head. `None`: more than
    /// there is room for.
    pub(super) fn split(&mut self, len: usize, head: &Buf) -> Option<usize> {
        let Some(scatter) = &mut self.scatter else { return Some(len).filter(|len| *len <= head.capacity()) };
        let in_head = len.min(head.len());
        if len - in_head > scatter.room() {
            return None;
        }
        scatter.complete(len - in_head);
        Some(in_head)
    }

    /// The oldest Receive failed: its targets, if it has some, go back to their pools.
    pub(super) fn discard_targets(&mut self) {
        self.scatter.iter_mut().for_each(|scatter| scatter.discard());
    }

    /// The user has seen a completion.
    #[inline]
    pub(super) fn harvested(&mut self) {
        self.used = self.used.saturating_sub(1);
    }

    /// Whether the device has none of it.
    pub(super) fn is_idle(&self) -> bool {
        self.handed == 0
    }

    /// Whether there are some of its own that the device does not have yet.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.handed < self.posted.len()
    }

    /// Fills the batch with what the device does not have yet.
    #[inline]
    pub(super) fn fill(&mut self, batch: &mut Batch, id: QueuePairId, domain: &Domain) {
        while batch.has_room()
            && let Some(receive) = self.posted.get_mut(self.handed)
        {
            receive.prepare(id, self.capacity.receive_len_max, domain);
            batch.push_receive(&receive.request);
            self.handed += 1;
        }
    }

    /// Puts the next scattered Receive that the device does not have yet into the batch, which is empty.
    pub(super) fn fill_scattered(&mut self, batch: &mut Batch, id: QueuePairId, domain: &Domain) {
        let receive = self.posted.get_mut(self.handed);
        let targets = self.scatter.as_mut().and_then(|scatter| scatter.nth(self.handed));
        let (Some(receive), Some(targets)) = (receive, targets) else {
            unreachable!("a scattered Receive of its own waits, with its targets")
        };
        let head_len = receive.buf.as_ref().map_or(0, |head| head.len()) as u32;
        receive.prepare(id, head_len, domain);
        batch.push_receive(&receive.request);
        for target in targets.bufs_mut() {
            let arena = self.arenas.pop_front().expect("each target has one");
            batch.push_target(target.as_mut_ptr(), target.capacity() as u32, domain.lkey(arena));
        }
        self.handed += 1;
    }

    /// The oldest Receive that the device has is done: its id and buffer, unless the device has none.
    #[inline]
    pub(super) fn take_done(&mut self) -> Option<(u64, Buf)> {
        self.handed = self.handed.checked_sub(1)?;
        self.take_left()
    }

    /// The buffer of the oldest Receive that the device has, if it has one of its own.
    #[inline]
    pub(super) fn oldest(&mut self) -> Option<&mut Buf> {
        match self.posted.front_mut() {
            Some(receive) if self.handed > 0 => receive.buf.as_mut(),
            _ => None,
        }
    }

    /// Puts the oldest Receive, which the device has, behind all others: its message was taken where it arrived. The request that
    /// posts it again; `None`: others wait before it, and the next `fill` has all of them.
    #[inline]
    pub(super) fn post_again(&mut self) -> Option<&mut Receive> {
        let receive = self.posted.pop_front()?;
        self.posted.push_back(receive);
        if self.handed == self.posted.len() {
            return self.posted.back_mut().map(|receive| &mut receive.request);
        }
        self.handed -= 1;
        None
    }

    /// The device refused the request of `post_again`: it does not have the last Receive.
    #[cold]
    pub(super) fn refused_again(&mut self) {
        self.handed -= 1;
    }

    /// Whether a shared Receive is reserved for a message.
    #[inline]
    pub(super) fn has_reserved(&self) -> bool {
        !self.reserved.is_empty()
    }

    /// A message took one of the shared Receives: the id that goes with it. `None`: no Receive is posted any more.
    #[inline]
    pub(super) fn take_id(&mut self) -> Option<u64> {
        self.reserved.pop_front()
    }

    /// The queue pair is gone: gives what is left of its own.
    #[inline]
    pub(super) fn take_left(&mut self) -> Option<(u64, Buf)> {
        let mut receive = self.posted.pop_front()?;
        let taken = receive.buf.take().map(|buf| (receive.id, buf));
        self.spare.push(receive);
        taken
    }

    /// The queue pair, of that number, is gone: gives up its part in shared Receives.
    pub(super) fn give_up(&mut self, number: u32) {
        if let Some(shared) = self.shared.take() {
            shared.leave(number, self.reserved.drain(..).len() as u32);
        }
    }
}

/// Receives that queue pairs share, and their buffers. Whatever is made to take part holds an `Rc` of it, so the queue goes
/// after its last queue pair, and the buffers, by the order of the fields, after the queue.
pub(super) struct SharedReceivePool {
    queue: SharedReceiveQueue,
    state: RefCell<State>,
    domain: Rc<Domain>,
    /// Octets of each.
    len: u32,
    count: u32,
}

struct State {
    /// By the number that a work request carries.
    posted: Vec<Option<(Buf, usize)>>,
    free: Vec<u32>,
    /// Buffers in the queue that are no longer reserved.
    left_over: u32,
    /// Who takes part: the device's number of the queue pair, and its slot; by number.
    users: Vec<(u32, u32)>,
}

impl SharedReceivePool {
    /// Room for `count` Receives of `len` octets.
    pub(super) fn new(domain: &Rc<Domain>, count: u32, len: u32) -> io::Result<SharedReceivePool> {
        let queue = SharedReceiveQueue::new(&domain.domain, count)?;
        let state = State {
            posted: (0..count).map(|_| None).collect(),
            free: (0..count).rev().collect(),
            left_over: 0,
            users: Vec::new(),
        };
        Ok(SharedReceivePool { queue, state: RefCell::new(state), domain: Rc::clone(domain), len, count })
    }

    pub(super) fn queue(&self) -> &SharedReceiveQueue {
        &self.queue
    }

    /// Completions that they may have in the completion queue, whosever they are.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Whether such a queue pair can take part: then all of its Receives are as long as the others', and of one buffer, and it does
    /// not want more of them than there are.
    pub(super) fn suits(&self, capacity: &QueuePairCapacity) -> bool {
        capacity.receive_len_max == self.len
            && capacity.receives <= self.count
            && capacity.receive_targets == 0
    }

    /// A queue pair takes part from now on.
    pub(super) fn join(&self, number: u32, index: u32) {
        let users = &mut self.state.borrow_mut().users;
        let at = users.partition_point(|user| user.0 < number);
        users.insert(at, (number, index));
    }

    /// A queue pair is gone: what it had reserved is left over.
    fn leave(&self, number: u32, reserved: u32) {
        let mut state = self.state.borrow_mut();
        state.users.retain(|user| user.0 != number);
        state.left_over += reserved;
    }

    /// The slot of the queue pair with that number.
    #[inline]
    pub(super) fn user(&self, number: u32) -> Option<u32> {
        let users = &self.state.borrow().users;
        let at = users.binary_search_by_key(&number, |user| user.0).ok()?;
        Some(users[at].1)
    }

    /// Posts one more Receive for a queue pair. Where one is left over, that is it, and `buf` goes back to its pool.
    /// `Err`: all are in use, or the buffer is too short for the others' messages, or the device refused, and why.
    #[inline]
    pub(super) fn post(&self, buf: Buf, arena: usize) -> Result<(), (Buf, Option<io::Error>)> {
        let mut state = self.state.borrow_mut();
        if state.left_over > 0 {
            state.left_over -= 1;
            return Ok(());
        }
        if state.free.is_empty() || buf.capacity() < self.len as usize {
            return Err((buf, None));
        }
        self.hand_over(&mut state, buf, arena).map_err(|(buf, error)| (buf, Some(error)))
    }

    /// The Receive with that number is done: its buffer and arena.
    #[inline]
    pub(super) fn take(&self, number: u32) -> Option<(Buf, usize)> {
        let mut state = self.state.borrow_mut();
        let taken = state.posted.get_mut(number as usize)?.take()?;
        state.free.push(number);
        Some(taken)
    }

    /// Puts a buffer back that a message took for which no Receive was posted.
    #[cold]
    pub(super) fn put_back(&self, buf: Buf, arena: usize) {
        let mut state = self.state.borrow_mut();
        if let Err((_, error)) = self.hand_over(&mut state, buf, arena) {
            tracing::warn!("post a shared Receive again: {error}");
            state.left_over = state.left_over.saturating_sub(1);
        }
    }

    /// Posts a Receive again whose message was taken where it arrived.
    #[inline]
    pub(super) fn post_again(&self, buf: Buf, arena: usize) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        self.hand_over(&mut state, buf, arena).map_err(|(_, error)| error)
    }

    /// Gives a buffer to the device. There is a free number.
    fn hand_over(&self, state: &mut State, mut buf: Buf, arena: usize) -> Result<(), (Buf, io::Error)> {
        let number = state.free.pop().expect("there are as many as entries");
        let id = WorkId { is_receive: true, slot: SHARED_SLOT, generation: 0, sequence: number };
        let mut receive = Receive::new(id, buf.as_mut_ptr(), self.len, self.domain.lkey(arena));
        // SAFETY: the queue exists. The buffer goes to `posted`, which does not access it, until it completes or
        // the queue is destroyed, which is before `posted` is dropped.
        match unsafe { receive.post_shared(self.queue.as_ptr()) } {
            Ok(()) => {
                state.posted[number as usize] = Some((buf, arena));
                Ok(())
            }
            Err(error) => {
                state.free.push(number);
                Err((buf, error))
            }
        }
    }
}
