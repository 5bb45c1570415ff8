//! The provider's methods.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use stag_memory::{Arena, ArenaId, Buf};
use stag_rdma_core_sys as sys;

use super::connection::QueuePair;
use super::device::PRIVATE_DATA_LEN_MAX;
use super::errors::hint;
use super::exposure::{place, remote_access};
use super::handover::{VerbsDestination, VerbsHandover};
use super::harvest::Out;
use super::objects::MemoryRegion;
use super::sends::Work;
use super::{LOOK_PASSES, Verbs};
use crate::scatter::{ReceiveTargets, ScatteredReceive};
use crate::slots::{Numbered, find};
use crate::{
    Completed, Completion, ConnectRequestId, DisconnectReason, Event, Exposed, ExposureKind, FabricError,
    Fence, Handle, Limits, ListenerId, PostError, Provider, QueuePairCapacity, QueuePairId, READ_PARTS_MAX,
    ReadPart, ReadRequest, Refused, RemoteSegment, SendRequest, ShownMessage, TakeShown, Taken, WorkError,
    WriteRequest,
};

impl Provider for Verbs {
    type Handover = VerbsHandover;
    type Destination = VerbsDestination;

    fn name(&self) -> &'static str {
        "verbs"
    }

    fn limits(&self) -> Limits {
        let opened = self.opened.as_ref();
        let exposure = opened.map_or(ExposureKind::Registration, |opened| opened.profile.exposure);
        let len_max = opened.map_or(0, |opened| opened.profile.len_max);
        Limits {
            completions: opened.map_or(0, |opened| opened.completions(&self.config)),
            queue_pairs: self.config.queue_pairs,
            message_len_max: len_max,
            transfer_len_max: len_max,
            private_data_len_max: PRIVATE_DATA_LEN_MAX,
            // A registration of `ibv_reg_mr` is not for a peer to end, and drivers do not say when one did.
            send_with_invalidate: exposure == ExposureKind::MemoryWindow,
            exposure,
            shared_receives: opened.is_some_and(|opened| opened.receives.is_some()),
            receive_targets: opened.map_or(0, |opened| opened.profile.receive_targets),
            // Not measured on a device of hardware: data goes by RDMA, as in version 1.
            message_data_max: 0,
            message_results_max: 0,
        }
    }

    fn register(&mut self, arena: &Arena) -> Result<(), FabricError> {
        if self.arena(arena.id()).is_some() {
            return Ok(());
        }
        if let Some(opened) = &self.opened {
            let failed = |source| FabricError::System {
                doing: format!("register the arena {:?}{}", arena.name(), hint(&source)),
                source,
            };
            opened.register(arena, self.domains()).map_err(failed)?;
        }
        self.arenas.push(arena.clone());
        Ok(())
    }

    fn is_registered(&self, arena: ArenaId) -> bool {
        self.arena(arena).is_some()
    }

    fn listen(&mut self, address: &str) -> Result<ListenerId, FabricError> {
        self.start_listening(address)
    }

    fn listener_address(&self, listener: ListenerId) -> Option<SocketAddr> {
        self.listeners.get(listener.0 as usize).map(|listener| listener.address)
    }

    fn local_address(&self, queue_pair: QueuePairId) -> Option<SocketAddr> {
        let pair = self.slots.get(queue_pair.index as usize)?.as_deref()?;
        pair.cm.as_ref().filter(|_| pair.id == queue_pair)?.local()
    }

    fn connect(
        &mut self,
        address: &str,
        private_data: &[u8],
        capacity: QueuePairCapacity,
    ) -> Result<QueuePairId, FabricError> {
        self.start_connecting(address, private_data, capacity)
    }

    fn prepare(
        &mut self,
        request: ConnectRequestId,
        capacity: QueuePairCapacity,
    ) -> Result<QueuePairId, FabricError> {
        self.prepare_request(request, capacity)
    }

    fn accept(&mut self, queue_pair: QueuePairId, private_data: &[u8]) -> Result<(), FabricError> {
        self.accept_prepared(queue_pair, private_data)
    }

    fn reject(&mut self, request: ConnectRequestId, reason: &str) {
        self.refuse(request, reason);
    }

    fn destination(&self) -> VerbsDestination {
        VerbsDestination(Arc::clone(&self.channel))
    }

    fn release(&mut self, request: ConnectRequestId, to: &VerbsDestination) -> Option<VerbsHandover> {
        self.release_request(request, to)
    }

    fn adopt(&mut self, handover: VerbsHandover) -> Result<ConnectRequestId, FabricError> {
        self.adopt_request(handover)
    }

    fn disconnect(&mut self, queue_pair: QueuePairId) {
        if self.find(queue_pair).is_some() {
            self.close(queue_pair.index, DisconnectReason::Local);
        }
    }

    // `inline(always)`, as `post_send`: called once for each Call, and a refusal hands back a large value.
    #[inline(always)]
    fn post_receive(&mut self, queue_pair: QueuePairId, id: u64, buf: Buf) -> Result<(), Refused<Buf>> {
        let arena = self.arena(buf.location().arena);
        let refused = |request, error| Err(Refused { request, error });
        let Some(pair) = find(&mut self.slots, queue_pair).filter(|pair| pair.takes_receives()) else {
            return refused(buf, PostError::NotConnected);
        };
        let Some(arena) = arena else { return refused(buf, PostError::NotRegistered) };
        if pair.receives.is_full() {
            return refused(buf, PostError::Full);
        }
        if pair.receives.is_scattered() {
            return refused(buf, PostError::Scatter);
        }
        if let Some(shared) = pair.receives.shared() {
            let Err((buf, error)) = shared.post(buf, arena) else {
                pair.receives.reserve(id);
                return Ok(());
            };
            let Some(error) = error else { return refused(buf, PostError::Full) };
            self.post_failed(queue_pair.index, &error);
            return refused(buf, PostError::NotConnected);
        }
        pair.receives.push(id, buf, arena);
        pair.mark_dirty(&mut self.dirty);
        Ok(())
    }

    fn post_scattered(
        &mut self,
        queue_pair: QueuePairId,
        request: ScatteredReceive,
    ) -> Result<(), Refused<ScatteredReceive>> {
        let is_registered = request.all_arenas(|arena| self.arena(arena).is_some());
        let arena = self.arena(request.head.location().arena).filter(|_| is_registered);
        let Verbs { slots, arenas, dirty, .. } = self;
        let error = match (find(slots, queue_pair).filter(|pair| pair.takes_receives()), arena) {
            (None, _) => PostError::NotConnected,
            (_, None) => PostError::NotRegistered,
            (Some(pair), _) if pair.receives.is_full() => PostError::Full,
            (Some(pair), Some(arena)) => match pair.receives.admit(&request) {
                Err(error) => error,
                Ok(()) => {
                    let place = |buf: &Buf| {
                        let found = arenas.iter().position(|arena| arena.id() == buf.location().arena);
                        found.expect("each was found just before")
                    };
                    pair.receives.push_scattered(request, arena, place);
                    pair.mark_dirty(dirty);
                    return Ok(());
                }
            },
        };
        Err(Refused { request, error })
    }

    fn take_targets(&mut self, queue_pair: QueuePairId) -> Option<Box<ReceiveTargets>> {
        self.find(queue_pair)?.receives.take_targets()
    }

    #[inline(always)]
    fn post_send(
        &mut self,
        queue_pair: QueuePairId,
        request: SendRequest,
    ) -> Result<(), Refused<SendRequest>> {
        let arena = self.arena(request.buf.location().arena);
        let (pair, arena) = match may_post(&mut self.slots, queue_pair, arena) {
            Ok(found) => found,
            Err(error) => return Err(Refused { request, error }),
        };
        if request.buf.len() > pair.capacity.send_len_max as usize {
            return Err(Refused { request, error: PostError::TooLong });
        }
        let SendRequest { id, buf, invalidate, signaled } = request;
        let invalidate = invalidate.map(|handle| handle.0);
        pair.sends.push(id, signaled, Work::Send { buf, arena, invalidate });
        pair.mark_dirty(&mut self.dirty);
        Ok(())
    }

    #[inline]
    fn post_write(
        &mut self,
        queue_pair: QueuePairId,
        request: WriteRequest,
    ) -> Result<(), Refused<WriteRequest>> {
        let arena = self.arena(request.source.location().arena);
        let len_max = self.len_max();
        let (pair, arena) = match may_post(&mut self.slots, queue_pair, arena) {
            Ok(found) => found,
            Err(error) => return Err(Refused { request, error }),
        };
        if request.source.len() > len_max as usize {
            return Err(Refused { request, error: PostError::TooLong });
        }
        let WriteRequest { id, source, target, signaled } = request;
        let work = Work::Write { source, arena, offset: target.offset, rkey: target.handle.0 };
        pair.sends.push(id, signaled, work);
        pair.mark_dirty(&mut self.dirty);
        Ok(())
    }

    #[inline]
    fn post_read(
        &mut self,
        queue_pair: QueuePairId,
        request: ReadRequest,
        parts: &[ReadPart],
    ) -> Result<(), Refused<ReadRequest>> {
        let arena = self.arena(request.target.location().arena);
        let len_max = self.len_max();
        let registers = self.opened.as_ref().is_some_and(|opened| opened.profile.registers_targets());
        let (pair, arena) = match may_post(&mut self.slots, queue_pair, arena) {
            Ok(found) => found,
            Err(error) => return Err(Refused { request, error }),
        };
        let fits = |part: &ReadPart| {
            let end = u64::from(part.at) + u64::from(part.len);
            part.len <= len_max && end <= request.target.len() as u64
        };
        if parts.len() > READ_PARTS_MAX || !parts.iter().all(fits) {
            return Err(Refused { request, error: PostError::TooLong });
        }
        if !pair.sends.has_room_for_parts(parts.len()) {
            return Err(Refused { request, error: PostError::Full });
        }
        let ReadRequest { id, mut target } = request;
        let mut sink = None;
        if registers && !target.is_empty() {
            let access = sys::IBV_ACCESS_LOCAL_WRITE | sys::IBV_ACCESS_REMOTE_WRITE;
            let domain = pair.domain.as_ref().map(|domain| &domain.domain);
            // SAFETY: the buffer is kept beside the region, which is dropped first.
            let region = domain.map(|domain| unsafe {
                MemoryRegion::new(domain, target.as_mut_ptr(), target.len(), access)
            });
            match region {
                Some(Ok(region)) => sink = Some(region),
                _ => {
                    let request = ReadRequest { id, target };
                    return Err(Refused { request, error: PostError::Full });
                }
            }
        }
        pair.sends.push_read(id, (target, arena), sink, parts);
        pair.mark_dirty(&mut self.dirty);
        self.counters.registrations += u64::from(registers);
        Ok(())
    }

    #[inline]
    fn expose(
        &mut self,
        queue_pair: QueuePairId,
        exposed: Exposed,
    ) -> Result<RemoteSegment, Refused<Exposed>> {
        let arena = self.arena(exposed.location().arena);
        let kind = self.opened.as_ref().map(|opened| opened.profile.exposure);
        let refused = |request, error| Err(Refused { request, error });
        let Verbs { slots, arenas, counters, .. } = self;
        let Some(pair) = find(slots, queue_pair).filter(|pair| pair.is_open()) else {
            return refused(exposed, PostError::NotConnected);
        };
        let Some(arena) = arena else { return refused(exposed, PostError::NotRegistered) };
        let Some(slot) = pair.exposures.next_free() else { return refused(exposed, PostError::Full) };
        let Some(domain) = &pair.domain else { return refused(exposed, PostError::NotConnected) };
        let (base, len, is_written) = place(&exposed);
        let mut is_posted = false;
        let registered = match kind {
            Some(ExposureKind::MemoryWindow) => {
                counters.binds += 1;
                // A window of nothing is not bound: its handle opens nothing, which is what it should.
                is_posted = len > 0;
                Ok((pair.exposures.next_handle(slot), None))
            }
            Some(ExposureKind::Standing) => {
                counters.standing += 1;
                domain.standing_rkey(arena, &arenas[arena], slot).map(|rkey| (rkey, None))
            }
            _ => {
                counters.registrations += 1;
                // A length of 0 is registered as one octet without access.
                let access = if len == 0 { 0 } else { remote_access(is_written) };
                let access = access | if is_written { sys::IBV_ACCESS_LOCAL_WRITE } else { 0 };
                // SAFETY: the memory is kept beside the region, which is dropped first.
                let region =
                    unsafe { MemoryRegion::new(&domain.domain, base.cast_mut(), len.max(1), access) };
                region.map(|region| (region.rkey(), Some(region)))
            }
        };
        let (handle, region) = match registered {
            Ok(registered) => registered,
            Err(error) => {
                tracing::warn!("register {len} octets to expose them{}: {error}", hint(&error));
                return refused(exposed, PostError::Full);
            }
        };
        pair.exposures.start(handle, region, exposed);
        if is_posted {
            pair.sends.push_hidden(Work::Bind { slot, arena });
            self.mark_dirty(queue_pair.index);
        }
        Ok(RemoteSegment { handle: Handle(handle), offset: base as u64 })
    }

    #[inline]
    fn fence(&mut self, queue_pair: QueuePairId, handle: Handle, id: u64) -> Option<Fence> {
        let pair = self.find(queue_pair)?;
        let slot = pair.exposures.live(handle)?;
        let has_window = pair.exposures.window(slot).is_some();
        let is_empty = pair.exposures.memory(slot).is_some_and(|(_, len, _)| len == 0);
        let is_open = pair.is_open();
        if has_window && !is_empty {
            pair.exposures.fence(slot, id);
            // The end of a queue pair that takes no more work fences it.
            if is_open {
                pair.sends.push_hidden(Work::Invalidate { slot });
                self.mark_dirty(queue_pair.index);
            }
            self.counters.fences += 1;
            return Some(Fence::Pending);
        }
        let ended = pair.exposures.take_region(slot).map_or(Ok(()), MemoryRegion::deregister);
        if let Err((region, error)) = ended {
            // Then only the queue pair's end keeps the peer out.
            tracing::warn!("end the registration of exposed memory: {error}");
            pair.exposures.put_region(slot, region);
            pair.exposures.fence(slot, id);
            self.close(queue_pair.index, DisconnectReason::Work(WorkError::Device));
            return Some(Fence::Pending);
        }
        let (_, exposed) = pair.exposures.fenced(slot)?;
        self.counters.fences += 1;
        Some(Fence::Done(exposed))
    }

    #[inline]
    fn ring_doorbells(&mut self) {
        while let Some(index) = self.dirty.pop() {
            self.ring_one(index);
        }
    }

    fn poll(&mut self, now: Duration, completions: &mut VecDeque<Completion>, max: usize) -> usize {
        self.poll_in_place(now, completions, max, &mut |_: ShownMessage<'_>| Taken::No)
    }

    // `inline(always)`: it has one caller, once for each pass.
    #[inline(always)]
    fn poll_in_place(
        &mut self,
        now: Duration,
        completions: &mut VecDeque<Completion>,
        max: usize,
        take: &mut impl TakeShown,
    ) -> usize {
        let start = completions.len();
        let end = start + max.min(completions.capacity() - start);
        self.now = now;
        self.polls += 1;
        let mut out = Out { completions, end, taken: 0 };
        if !self.local.is_empty() {
            self.deliver(&mut out);
        }
        while out.has_room() && self.harvest(&mut out, take) {}
        self.look_passes += u32::from(out.count_from(start) == 0);
        if now >= self.look_at || self.look_passes >= LOOK_PASSES {
            self.poll_events();
            self.deliver(&mut out);
        }
        out.count_from(start)
    }

    #[inline]
    fn build_plain(
        &mut self,
        queue_pair: QueuePairId,
        build: impl FnOnce(&mut [u8]) -> Option<(u32, usize)>,
    ) -> bool {
        let Some(pair) = find(&mut self.slots, queue_pair).filter(|pair| pair.is_open()) else {
            return false;
        };
        let Some((credits, len)) = pair.sends.plain_space().and_then(build) else { return false };
        pair.sends.push_plain(credits, len);
        pair.mark_dirty(&mut self.dirty);
        true
    }

    #[inline]
    fn poll_event(&mut self) -> Option<Event> {
        if self.events.is_empty() { None } else { self.take_event() }
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.next_deadline()
    }

    fn arm(&mut self) -> bool {
        if !self.config.may_sleep || !self.local.is_empty() || !self.events.is_empty() {
            return false;
        }
        self.ring_doorbells();
        let Some(opened) = &self.opened else { return true };
        opened.queue.clear_events();
        if !opened.queue.request_event() {
            return false;
        }
        // What came before the request makes no event. All of it: some completions have nothing for the user.
        let mut nothing = VecDeque::new();
        let mut out = Out::nowhere(&mut nothing);
        while self.harvest(&mut out, &mut |_: ShownMessage<'_>| Taken::No) {}
        self.local.is_empty() && self.dirty.is_empty() && !self.is_broken
    }

    fn disarm(&mut self) {
        if let Some(opened) = &self.opened {
            opened.queue.clear_events();
        }
        // Whatever woke us, the next pass looks.
        self.look_at = Duration::ZERO;
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.config.may_sleep.then(|| self.epoll.as_fd())
    }
}

impl Verbs {
    #[inline]
    fn len_max(&self) -> u32 {
        self.opened.as_ref().map_or(0, |opened| opened.profile.len_max)
    }

    /// Tells the user of an event.
    #[cold]
    fn take_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if let Event::Established { queue_pair, .. } = event {
            let Some(Some(pair)) = self.slots.get_mut(queue_pair.index as usize) else { return Some(event) };
            pair.is_announced = true;
            self.local.extend(pair.held.drain(..));
        }
        Some(event)
    }

    /// Gives the user what is queued.
    fn deliver(&mut self, out: &mut Out<'_>) {
        while out.has_room()
            && let Some(completion) = self.local.pop_front()
        {
            let poll = self.polls;
            if let Some(pair) = self.find(completion.queue_pair) {
                pair.harvested(&completion.completed);
                if matches!(completion.completed, Completed::Receive { .. }) {
                    pair.left_in = poll;
                }
            }
            out.completions.push_back(completion);
        }
    }
}

/// The queue pair, if its send queue takes one more.
#[inline]
fn may_post(
    slots: &mut [Option<Box<QueuePair>>],
    queue_pair: QueuePairId,
    arena: Option<usize>,
) -> Result<(&mut QueuePair, usize), PostError> {
    let pair = find(slots, queue_pair).filter(|pair| pair.is_open()).ok_or(PostError::NotConnected)?;
    let arena = arena.ok_or(PostError::NotRegistered)?;
    if pair.sends.is_full() { Err(PostError::Full) } else { Ok((pair, arena)) }
}
