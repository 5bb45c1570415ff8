//! [`Sim`]: the fabric trait on a simulated device.

use std::cell::RefMut;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use stag_memory::{Arena, ArenaId, Buf, Shared};
use stag_wire::rpcrdma::HEADER_LEN_MIN;

use super::World;
use super::device::Device;
use super::exposure::{EXPOSURES_MAX, Fenced, Invalidated};
use super::queue_pair::{End, Part, Payload, Phase, QueuePair, Receive, Verb, Work};
use super::setup::SimHandover;
use super::world::{Happening, State};
use crate::plain::plain_credits;
use crate::scatter::{ReceiveTargets, ScatteredReceive};
use crate::setup::{check_private_data, check_targets};
use crate::{
    Completed, Completion, ConnectRequestId, DisconnectReason, Event, Exposed, FabricError, Fence,
    GATHERED_LEN_MAX, GatheredPieces, Handle, Limits, ListenerId, MemoryInReach, PLAIN_LEN_MAX, PlainMessage,
    PostError, Provider, QueuePairCapacity, QueuePairId, READ_PARTS_MAX, ReadPart, ReadRequest, Refused,
    RemoteSegment, SendRequest, TakeShown, Taken, WHOLE_LEN_MAX, WholeMessage, WriteRequest,
};

/// A provider on a simulated fabric. Made by [`World::provider`].
///
/// Dropping it is what the death of its process is elsewhere: everything posted goes back to its pool, and
/// its peers see `PeerDied`.
#[derive(Debug)]
pub struct Sim {
    pub(super) world: World,
    pub(super) device: usize,
    /// Where messages are built that have no buffer.
    pub(super) space: Box<[u8; GATHERED_LEN_MAX]>,
}

impl Sim {
    /// The world that it lives in.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The name it was opened with.
    #[must_use]
    pub fn label(&self) -> String {
        self.world.0.borrow().device(self.device).map_or_else(String::new, |device| device.name.clone())
    }

    /// The queue pair at the other end, which only a simulation can tell. `None`: there is none (any more, or
    /// before the peer prepared it).
    #[must_use]
    pub fn peer(&self, queue_pair: QueuePairId) -> Option<QueuePairId> {
        let state = self.world.0.borrow();
        let peer = state.queue_pair(self.end(queue_pair))?.peer?;
        state.queue_pair(peer).map(|_| peer.id)
    }

    /// Cuts a connection, as a fault does: each side finds out some time later. Harmless when the queue pair is gone.
    pub fn cut(&mut self, queue_pair: QueuePairId) {
        let end = self.end(queue_pair);
        self.world.0.borrow_mut().cut(end);
    }

    /// Lets peers read `pieces` more of what is exposed here, and then nothing: their RDMA Reads stay under way, as those
    /// of a peer that does not answer. `None`: all, as at first.
    pub fn set_readable(&mut self, pieces: Option<u64>) {
        if let Some(device) = self.world.0.borrow_mut().devices[self.device].as_mut() {
            device.readable = pieces;
        }
    }

    /// Lets peers write to what is exposed here, or not: then their RDMA Writes, and the Sends behind them, stay under way,
    /// as those to a peer that takes nothing.
    pub fn set_writable(&mut self, is_writable: bool) {
        if let Some(device) = self.world.0.borrow_mut().devices[self.device].as_mut() {
            device.is_unwritable = !is_writable;
        }
    }

    /// Sets the user that peers see in [`Peer::Process`](crate::Peer::Process); 0 at first. Connections that are already made keep theirs.
    pub fn set_user(&mut self, user: u32) {
        if let Some(device) = self.world.0.borrow_mut().devices[self.device].as_mut() {
            device.user = user;
        }
    }

    fn end(&self, id: QueuePairId) -> End {
        End { device: self.device, id }
    }

    /// Makes a queue pair if there is room for all its completions.
    fn admit(
        &self,
        state: &mut State,
        phase: Phase,
        capacity: QueuePairCapacity,
    ) -> Result<QueuePairId, FabricError> {
        let slow = state.random.happens(state.plan.slow_peer);
        let slowness = if slow { state.plan.slow_factor.max(1) } else { 1 };
        let device = own(state, self.device);
        let Limits { completions, queue_pairs, message_len_max, receive_targets, .. } = device.limits;
        let limit = |what, wanted, limit, repair| {
            if wanted > limit { Err(FabricError::Limit { what, wanted, limit, repair }) } else { Ok(()) }
        };
        let count = device.queue_pairs().count() as u64;
        limit("queue pairs", count + 1, queue_pairs.into(), "open the provider for more, or use another")?;
        let wanted = device.completions_committed() + QueuePair::completions(&capacity);
        limit("completion queue entries", wanted, completions.into(), "lower the queue pairs' capacity")?;
        let exposures = capacity.exposures.into();
        limit("exposures of a queue pair", exposures, EXPOSURES_MAX.into(), "expose less at once")?;
        let message = capacity.send_len_max.max(capacity.receive_len_max).into();
        limit("message length", message, message_len_max.into(), "lower the inline threshold")?;
        check_targets(capacity.receive_targets, receive_targets)?;
        Ok(device.insert(QueuePair::new(phase, capacity, slowness)))
    }

    /// Puts a request in the send queue, if nothing speaks against it.
    fn post(
        &self,
        id: QueuePairId,
        check: impl FnOnce(&QueuePair, &Limits) -> Result<(), PostError>,
        arena: ArenaId,
        make: impl FnOnce() -> (u64, bool, Verb, Payload, Vec<Part>),
    ) -> Result<(), PostError> {
        let mut state = self.world.0.borrow_mut();
        let state = &mut *state;
        let (full, early) = (state.plan.post_full, state.random.below(8) == 0);
        let is_full = state.random.happens(full);
        let device = own(state, self.device);
        let limits = device.limits;
        let is_registered = device.arenas.contains(&arena);
        let queue_pair = device.queue_pair_mut(id).ok_or(PostError::NotConnected)?;
        if queue_pair.phase != Phase::Established {
            return Err(PostError::NotConnected);
        }
        check(queue_pair, &limits)?;
        if !is_registered {
            return Err(PostError::NotRegistered);
        }
        if queue_pair.sends_used >= queue_pair.capacity.sends || (is_full && queue_pair.sends_used > 0) {
            return Err(PostError::Full);
        }
        self.enqueue(state, id, early, make());
        Ok(())
    }

    /// Puts a request in the send queue of a queue pair that has room for it.
    pub(super) fn enqueue(
        &self,
        state: &mut State,
        id: QueuePairId,
        early: bool,
        (request_id, signaled, verb, payload, parts): (u64, bool, Verb, Payload, Vec<Part>),
    ) {
        let found = own(state, self.device).queue_pair_mut(id);
        let queue_pair = found.expect("it was asked for room just before");
        let sequence = queue_pair.next_sequence;
        queue_pair.next_sequence += 1;
        queue_pair.sends_used += 1;
        queue_pair.sends.push_back(Work {
            sequence,
            id: request_id,
            signaled,
            verb,
            payload,
            parts,
            departed: false,
            arrived: false,
            executed: false,
            acked: false,
            reported: false,
            not_ready: 0,
        });
        state.trace.words(&[20, self.device as u64, u64::from(id.index), sequence, request_id]);
        // A device may begin before the doorbell is rung.
        if early {
            state.depart(self.end(id));
        }
    }

    /// Whether there is space now to build a message.
    pub(super) fn offers_space(&self, id: QueuePairId) -> bool {
        let mut state = self.world.0.borrow_mut();
        let odds = state.plan.in_place;
        let offers = state.random.happens(odds);
        let found = own(&mut state, self.device).queue_pair_mut(id);
        found.is_some_and(|found| {
            offers && found.phase == Phase::Established && found.sends_used < found.capacity.sends
        })
    }

    /// Takes memory back whose handle was not handed out.
    fn unexpose(&self, queue_pair: QueuePairId, handle: Handle) -> Option<Exposed> {
        let mut state = self.world.0.borrow_mut();
        let state = &mut *state;
        let device = state.devices[self.device].as_mut().expect("a device lives until its Sim is dropped");
        let found = device.queue_pair_mut(queue_pair)?;
        let Invalidated::Memory(exposed) = found.exposures.invalidate(handle, &mut state.handles) else {
            unreachable!("it was exposed just before")
        };
        found.exposures_used -= 1;
        Some(exposed)
    }

    /// Shows a message where it arrived. It is given back if it was not taken, or not even shown.
    fn show(&mut self, mut completion: Completion, take: &mut impl TakeShown) -> Result<(), Completion> {
        let queue_pair = completion.queue_pair;
        let is_shown = {
            let mut state = self.world.0.borrow_mut();
            let odds = state.plan.in_place;
            let is_shown = state.random.happens(odds);
            match own(&mut state, self.device).queue_pair_mut(queue_pair) {
                Some(found) if is_shown && found.is_scattered => {
                    drop(state);
                    return self.show_scattered(completion, take);
                }
                found => is_shown && found.is_some_and(|found| found.phase == Phase::Established),
            }
        };
        let Completed::Receive { buf, invalidated, exposed } = &mut completion.completed else {
            return Err(completion);
        };
        if !is_shown || completion.result.is_err() || buf.len() > WHOLE_LEN_MAX {
            return Err(completion);
        }
        let plain = plain_credits(buf).filter(|_| invalidated.is_none());
        let space_len = if plain.is_some() { PLAIN_LEN_MAX } else { WHOLE_LEN_MAX };
        let has_space = self.offers_space(queue_pair);
        let mut memory = Reach { world: self.world.clone(), device: self.device, queue_pair };
        let space = has_space.then(|| &mut self.space[..space_len]);
        let taken = match plain {
            Some(credits) => {
                let stream = &buf[HEADER_LEN_MIN..];
                take.take_plain(PlainMessage { queue_pair, credits, stream, space })
            }
            None => take.take_whole(WholeMessage {
                queue_pair,
                octets: buf,
                space,
                invalidated: *invalidated,
                exposed,
                memory: &mut memory,
            }),
        };
        match taken {
            Taken::No => return Err(completion),
            Taken::Done => {}
            Taken::Answered { credits, len } => {
                assert!(has_space && plain.is_some(), "an answer of {len} octets without space");
                self.send_plain(queue_pair, credits, len);
            }
            Taken::AnsweredWhole { len, invalidate } => {
                assert!(has_space && plain.is_none(), "an answer of {len} octets without space");
                self.send_built(queue_pair, invalidate, self.space[..len].to_vec());
            }
            Taken::AnsweredGathered { len } => unreachable!("its Receive is one buffer: {len} octets"),
        }
        // Its Receive stands for the next message.
        let Completed::Receive { buf, .. } = completion.completed else { unreachable!("it was one above") };
        let mut state = self.world.0.borrow_mut();
        state.trace.words(&[23, self.device as u64, completion.id]);
        state.taken_in_place += 1;
        let found = own(&mut state, self.device).queue_pair_mut(queue_pair).expect("it is established");
        found.receives_used += 1;
        found.receives.push_front(Receive { id: completion.id, buf, targets: None });
        Ok(())
    }
}

/// The peer's memory, while one of its messages is shown.
struct Reach {
    world: World,
    device: usize,
    queue_pair: QueuePairId,
}

impl Reach {
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
    fn read(&mut self, target: &mut Buf, parts: &[ReadPart]) -> bool {
        let state = self.state(target.location().arena);
        state.is_some_and(|mut state| state.read_at_once(self.end(), target, parts))
    }

    fn write(&mut self, source: &Shared, target: RemoteSegment) -> bool {
        let state = self.state(source.location().arena);
        state.is_some_and(|mut state| state.write_at_once(self.end(), source, target))
    }
}

/// The device behind a live [`Sim`].
pub(super) fn own(state: &mut State, device: usize) -> &mut Device {
    state.device_mut(device).expect("a device lives until its Sim is dropped")
}

fn refused<T>(request: T, error: PostError) -> Refused<T> {
    Refused { request, error }
}

impl Provider for Sim {
    type Handover = SimHandover;
    type Destination = ();

    fn name(&self) -> &'static str {
        "sim"
    }

    fn limits(&self) -> Limits {
        own(&mut self.world.0.borrow_mut(), self.device).limits
    }

    fn register(&mut self, arena: &Arena) -> Result<(), FabricError> {
        let mut state = self.world.0.borrow_mut();
        let device = own(&mut state, self.device);
        if !device.arenas.contains(&arena.id()) {
            device.arenas.push(arena.id());
        }
        Ok(())
    }

    fn is_registered(&self, arena: ArenaId) -> bool {
        own(&mut self.world.0.borrow_mut(), self.device).arenas.contains(&arena)
    }

    fn listen(&mut self, address: &str) -> Result<ListenerId, FabricError> {
        let mut state = self.world.0.borrow_mut();
        let problem = if address.is_empty() {
            "a name is expected"
        } else if state.listeners.contains_key(address) {
            "somebody listens there already; choose another name"
        } else {
            let listener = own(&mut state, self.device).next_listener();
            state.listeners.insert(address.to_owned(), (self.device, listener));
            return Ok(listener);
        };
        Err(FabricError::Address { address: address.to_owned(), problem: problem.to_owned() })
    }

    fn connect(
        &mut self,
        address: &str,
        private_data: &[u8],
        capacity: QueuePairCapacity,
    ) -> Result<QueuePairId, FabricError> {
        if address.is_empty() {
            let problem = "a name is expected".to_owned();
            return Err(FabricError::Address { address: String::new(), problem });
        }
        let mut state = self.world.0.borrow_mut();
        check_private_data(private_data, own(&mut state, self.device).limits.private_data_len_max)?;
        let id = self.admit(&mut state, Phase::Connecting, capacity)?;
        state.start_connect(self.end(id), address, private_data);
        Ok(id)
    }

    fn prepare(
        &mut self,
        request: ConnectRequestId,
        capacity: QueuePairCapacity,
    ) -> Result<QueuePairId, FabricError> {
        let mut state = self.world.0.borrow_mut();
        if !own(&mut state, self.device).requests.contains_key(&request.0) {
            return Err(FabricError::Gone("the connection request"));
        }
        // Only now: a request that does not fit can still be rejected, with the reason.
        let id = self.admit(&mut state, Phase::Prepared, capacity)?;
        if let Some(request) = own(&mut state, self.device).requests.remove(&request.0) {
            state.join(self.end(id), request.from);
        }
        Ok(id)
    }

    fn accept(&mut self, queue_pair: QueuePairId, private_data: &[u8]) -> Result<(), FabricError> {
        let mut state = self.world.0.borrow_mut();
        check_private_data(private_data, own(&mut state, self.device).limits.private_data_len_max)?;
        let end = self.end(queue_pair);
        match state.queue_pair(end) {
            Some(found) if found.phase == Phase::Prepared => {
                state.start_accept(end, private_data);
                Ok(())
            }
            // It ended meanwhile, and its `Disconnected` is on the way.
            _ => Err(FabricError::Gone("the connection to accept")),
        }
    }

    fn destination(&self) {}

    fn release(&mut self, request: ConnectRequestId, (): &()) -> Option<SimHandover> {
        let mut state = self.world.0.borrow_mut();
        own(&mut state, self.device)
            .requests
            .remove(&request.0)
            .map(|request| SimHandover { from: request.from })
    }

    fn adopt(&mut self, handover: SimHandover) -> Result<ConnectRequestId, FabricError> {
        self.world.0.borrow_mut().adopt_request(self.device, handover.from)
    }

    fn reject(&mut self, request: ConnectRequestId, reason: &str) {
        let mut state = self.world.0.borrow_mut();
        if let Some(request) = own(&mut state, self.device).requests.remove(&request.0) {
            state.refuse_connect(request.from, DisconnectReason::Rejected(reason.to_owned()));
        }
    }

    fn disconnect(&mut self, queue_pair: QueuePairId) {
        let mut state = self.world.0.borrow_mut();
        let end = self.end(queue_pair);
        let Some(found) = state.queue_pair_mut(end) else { return };
        if matches!(found.phase, Phase::Closing | Phase::Dead) {
            return;
        }
        found.phase = Phase::Closing;
        let delay = state.latency(end);
        let (reason, tell) = (DisconnectReason::Local, Some(DisconnectReason::Peer));
        state.plan_after(delay, Happening::Dies { end, failed: None, reason, tell });
    }

    fn post_receive(&mut self, queue_pair: QueuePairId, id: u64, buf: Buf) -> Result<(), Refused<Buf>> {
        self.post_any_receive(queue_pair, id, buf, None).map_err(|(buf, _, error)| refused(buf, error))
    }

    fn post_scattered(
        &mut self,
        queue_pair: QueuePairId,
        request: ScatteredReceive,
    ) -> Result<(), Refused<ScatteredReceive>> {
        let ScatteredReceive { id, head, targets } = request;
        self.post_any_receive(queue_pair, id, head, Some(targets)).map_err(|(head, targets, error)| {
            let targets = targets.unwrap_or_default();
            Refused { request: ScatteredReceive { id, head, targets }, error }
        })
    }

    fn take_targets(&mut self, queue_pair: QueuePairId) -> Option<Box<ReceiveTargets>> {
        let mut state = self.world.0.borrow_mut();
        let device = own(&mut state, self.device);
        let (targets, _) = device.queue_pair_mut(queue_pair)?.filled.pop_front()?;
        device.announce_end(queue_pair);
        Some(targets)
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePairId,
        request: SendRequest,
    ) -> Result<(), Refused<SendRequest>> {
        let SendRequest { id, buf, invalidate, signaled } = request;
        let (len, arena) = (buf.len(), buf.location().arena);
        let mut slot = Some(buf);
        let check = |queue_pair: &QueuePair, limits: &Limits| {
            let longest = queue_pair.capacity.send_len_max.min(limits.message_len_max);
            if len > longest as usize { Err(PostError::TooLong) } else { Ok(()) }
        };
        self.post(queue_pair, check, arena, || {
            let buf = slot.take().expect("asked for once");
            (id, signaled, Verb::Send { invalidate }, Payload::Send(buf), Vec::new())
        })
        .map_err(|error| {
            let buf = slot.take().expect("what is refused was not taken");
            refused(SendRequest { id, buf, invalidate, signaled }, error)
        })
    }

    fn post_write(
        &mut self,
        queue_pair: QueuePairId,
        request: WriteRequest,
    ) -> Result<(), Refused<WriteRequest>> {
        let WriteRequest { id, source, target, signaled } = request;
        let (len, arena) = (source.len(), source.location().arena);
        let mut slot = Some(source);
        let check = |_: &QueuePair, limits: &Limits| {
            if len > limits.transfer_len_max as usize { Err(PostError::TooLong) } else { Ok(()) }
        };
        self.post(queue_pair, check, arena, || {
            let source = slot.take().expect("asked for once");
            let part = Part { remote: target, at: 0, len: len as u32, pieces_left: 0, begun: false };
            (id, signaled, Verb::Write, Payload::Write(source), vec![part])
        })
        .map_err(|error| {
            let source = slot.take().expect("what is refused was not taken");
            refused(WriteRequest { id, source, target, signaled }, error)
        })
    }

    fn post_read(
        &mut self,
        queue_pair: QueuePairId,
        request: ReadRequest,
        parts: &[ReadPart],
    ) -> Result<(), Refused<ReadRequest>> {
        let ReadRequest { id, target } = request;
        let (target_len, arena) = (target.len() as u64, target.location().arena);
        let mut slot = Some(target);
        let check = |_: &QueuePair, limits: &Limits| {
            let fits = |part: &ReadPart| {
                part.len <= limits.transfer_len_max && u64::from(part.at) + u64::from(part.len) <= target_len
            };
            if parts.len() > READ_PARTS_MAX || !parts.iter().all(fits) {
                return Err(PostError::TooLong);
            }
            Ok(())
        };
        self.post(queue_pair, check, arena, || {
            let target = slot.take().expect("asked for once");
            let part = |part: &ReadPart| {
                let ReadPart { at, len, source } = *part;
                Part { remote: source, at, len, pieces_left: 0, begun: false }
            };
            (id, true, Verb::Read, Payload::Read(target), parts.iter().map(part).collect())
        })
        .map_err(|error| {
            let target = slot.take().expect("what is refused was not taken");
            refused(ReadRequest { id, target }, error)
        })
    }

    fn read_at_once(&mut self, queue_pair: QueuePairId, target: &mut Buf, parts: &[ReadPart]) -> bool {
        let mut state = self.world.0.borrow_mut();
        own(&mut state, self.device).arenas.contains(&target.location().arena)
            && state.read_at_once(self.end(queue_pair), target, parts)
    }

    fn expose(
        &mut self,
        queue_pair: QueuePairId,
        exposed: Exposed,
    ) -> Result<RemoteSegment, Refused<Exposed>> {
        let mut state = self.world.0.borrow_mut();
        let state = &mut *state;
        let arena = exposed.location().arena;
        let device = state.devices[self.device].as_mut().expect("a device lives until its Sim is dropped");
        let is_registered = device.arenas.contains(&arena);
        let found = device.queue_pair_mut(queue_pair);
        let Some(found) = found.filter(|found| found.phase == Phase::Established) else {
            return Err(refused(exposed, PostError::NotConnected));
        };
        if !is_registered {
            return Err(refused(exposed, PostError::NotRegistered));
        }
        if found.exposures_used >= found.capacity.exposures {
            return Err(refused(exposed, PostError::Full));
        }
        found.exposures_used += 1;
        Ok(found.exposures.insert(exposed, &mut state.random, &mut state.handles))
    }

    fn fence(&mut self, queue_pair: QueuePairId, handle: Handle, id: u64) -> Option<Fence> {
        let mut state = self.world.0.borrow_mut();
        let state = &mut *state;
        let late = state.random.happens(state.plan.fence_pending);
        let end = self.end(queue_pair);
        let device = state.devices[self.device].as_mut().expect("a device lives until its Sim is dropped");
        let found = device.queue_pair_mut(queue_pair)?;
        match found.exposures.fence(handle, id, late, &mut state.handles)? {
            Fenced::Done(exposed) => {
                found.exposures_used -= 1;
                Some(Fence::Done(exposed))
            }
            Fenced::Pending => {
                found.sends_used += 1;
                if late {
                    let delay = state.latency(end);
                    state.plan_after(delay, Happening::FenceDue { end, handle });
                }
                Some(Fence::Pending)
            }
        }
    }

    fn ring_doorbells(&mut self) {
        let mut state = self.world.0.borrow_mut();
        let ids: Vec<QueuePairId> = own(&mut state, self.device)
            .queue_pairs()
            .filter(|(_, queue_pair)| queue_pair.sends.back().is_some_and(|work| !work.departed))
            .map(|(id, _)| id)
            .collect();
        for id in ids {
            state.depart(self.end(id));
        }
    }

    /// Harvests completions. A `now` later than the world's time moves the world there first.
    ///
    /// # Panics
    ///
    /// If `now` is earlier than the world's time: then the caller's clock is not the world's.
    fn poll(&mut self, now: Duration, completions: &mut VecDeque<Completion>, max: usize) -> usize {
        let mut state = self.world.0.borrow_mut();
        assert!(now >= state.now, "polled at {now:?}, but the simulated time is {:?} already", state.now);
        state.advance_to(now);
        let max = max.min(completions.capacity() - completions.len());
        for count in 0..max {
            let Some(completion) = own(&mut state, self.device).harvest() else { return count };
            let failed = u64::from(completion.result.is_err());
            state.trace.words(&[22, self.device as u64, completion.id, failed]);
            completions.push_back(completion);
        }
        max
    }

    fn poll_in_place(
        &mut self,
        now: Duration,
        completions: &mut VecDeque<Completion>,
        max: usize,
        take: &mut impl TakeShown,
    ) -> usize {
        // Those with a message among the completions, which nothing overtakes.
        let mut left: Vec<QueuePairId> = Vec::new();
        {
            let mut state = self.world.0.borrow_mut();
            assert!(now >= state.now, "polled at {now:?}, but the simulated time is {:?} already", state.now);
            state.advance_to(now);
        }
        let max = max.min(completions.capacity() - completions.len());
        for count in 0..max {
            let harvested = own(&mut self.world.0.borrow_mut(), self.device).harvest();
            let Some(completion) = harvested else { return count };
            let id = completion.queue_pair;
            let shown = match left.contains(&id) {
                true => Err(completion),
                false => self.show(completion, take),
            };
            if let Err(completion) = shown {
                let is_message = matches!(completion.completed, Completed::Receive { .. });
                let failed = u64::from(completion.result.is_err());
                self.world.0.borrow_mut().trace.words(&[22, self.device as u64, completion.id, failed]);
                completions.push_back(completion);
                if is_message {
                    left.push(id);
                }
            }
        }
        max
    }

    fn build_plain(
        &mut self,
        queue_pair: QueuePairId,
        build: impl FnOnce(&mut [u8]) -> Option<(u32, usize)>,
    ) -> bool {
        if !self.offers_space(queue_pair) {
            return false;
        }
        let Some((credits, len)) = build(&mut self.space[..PLAIN_LEN_MAX]) else { return false };
        self.send_plain(queue_pair, credits, len);
        true
    }

    fn build_exposing(
        &mut self,
        queue_pair: QueuePairId,
        exposed: &mut Option<Exposed>,
        build: impl FnOnce(&mut [u8], RemoteSegment) -> Option<usize>,
    ) -> bool {
        let is_full = {
            let mut state = self.world.0.borrow_mut();
            let odds = state.plan.post_full;
            state.random.happens(odds)
        };
        if is_full || !self.offers_space(queue_pair) {
            return false;
        }
        let Some(memory) = exposed.take() else { return false };
        let segment = match self.expose(queue_pair, memory) {
            Ok(segment) => segment,
            Err(refused) => {
                *exposed = Some(refused.request);
                return false;
            }
        };
        let Some(len) = build(&mut self.space[..WHOLE_LEN_MAX], segment) else {
            *exposed = self.unexpose(queue_pair, segment.handle);
            return false;
        };
        self.send_built(queue_pair, None, self.space[..len].to_vec());
        true
    }

    fn gather_space(&mut self, queue_pair: QueuePairId) -> Option<&mut [u8]> {
        self.offers_space(queue_pair).then(|| &mut self.space[..GATHERED_LEN_MAX])
    }

    fn send_gathered(&mut self, queue_pair: QueuePairId, len: usize, pieces: &mut GatheredPieces) {
        self.send_pieces(queue_pair, len, pieces);
    }

    fn poll_event(&mut self) -> Option<Event> {
        own(&mut self.world.0.borrow_mut(), self.device).next_event()
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.world.next_event()
    }

    fn arm(&mut self) -> bool {
        let mut state = self.world.0.borrow_mut();
        let device = own(&mut state, self.device);
        device.events.is_empty() && device.harvestable().is_none()
    }

    fn disarm(&mut self) {}

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        // A panic inside of the world unwinds with it borrowed: then there is nothing to tidy up for.
        let Ok(mut state) = self.world.0.try_borrow_mut() else { return };
        let index = self.device;
        state.listeners.retain(|_, &mut (device, _)| device != index);
        let Some(device) = state.device_mut(index) else { return };
        let waiting: Vec<End> = device.requests.values().map(|request| request.from).collect();
        let ids: Vec<QueuePairId> = device.queue_pairs().map(|(id, _)| id).collect();
        for from in waiting {
            state.refuse_connect(from, DisconnectReason::PeerDied);
        }
        for id in ids {
            state.die(self.end(id), None, DisconnectReason::Local, Some(DisconnectReason::PeerDied));
        }
        state.devices[index] = None;
    }
}

impl Sim {
    /// Posts a Receive of either kind.
    fn post_any_receive(
        &mut self,
        queue_pair: QueuePairId,
        id: u64,
        buf: Buf,
        targets: Option<Box<ReceiveTargets>>,
    ) -> Result<(), (Buf, Option<Box<ReceiveTargets>>, PostError)> {
        let mut state = self.world.0.borrow_mut();
        let state = &mut *state;
        let device = own(state, self.device);
        let is_own = |buf: &Buf| device.arenas.contains(&buf.location().arena);
        let is_registered =
            is_own(&buf) && targets.as_ref().is_none_or(|targets| targets.bufs().iter().all(is_own));
        let found = device.queue_pair_mut(queue_pair);
        let Some(found) = found.filter(|found| !matches!(found.phase, Phase::Closing | Phase::Dead)) else {
            return Err((buf, targets, PostError::NotConnected));
        };
        if !is_registered {
            return Err((buf, targets, PostError::NotRegistered));
        }
        let is_mixed = found.receives.back().is_some_and(|last| last.targets.is_some() != targets.is_some());
        let is_bad = |targets: &ReceiveTargets| !targets.suit(&found.capacity, buf.len());
        if is_mixed || targets.as_deref().is_some_and(is_bad) {
            return Err((buf, targets, PostError::Scatter));
        }
        if found.receives_used >= found.capacity.receives {
            return Err((buf, targets, PostError::Full));
        }
        let capacity = targets.as_ref().map_or(buf.capacity(), |targets| buf.len() + targets.capacity());
        let is_small = capacity < found.capacity.receive_len_max as usize;
        found.receives_used += 1;
        found.is_scattered |= targets.is_some();
        found.receives.push_back(Receive { id, buf, targets });
        state.violations.receives_too_small += u64::from(is_small);
        state.trace.words(&[21, self.device as u64, u64::from(queue_pair.index), id]);
        Ok(())
    }
}
