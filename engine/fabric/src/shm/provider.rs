//! The provider's methods: the thin layer between the trait and a queue pair.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use stag_memory::{Arena, ArenaId, Buf};

use super::admit;
use super::connection::{Phase, QueuePair};
use super::harvest::InPlace;
use super::link::Link;
use super::pages::{self, AllowedPages, MESSAGE_LEN_MAX};
use super::pending::Dialing;
use super::regions::{REGIONS_MAX, no_memory};
use super::rendezvous::{self, Address};
use super::setup::{self, ShmHandover, refuse};
use super::{Active, DIAL_INTERVAL, LOOK_PASSES, SOCKET, Shm, copy, message, order};
use crate::epoll::Token;
use crate::scatter::{RECEIVE_TARGETS_MAX, ReceiveTargets, ScatteredReceive};
use crate::setup::check_private_data;
use crate::slots::{Numbered, find, find_to_post};
use crate::{
    Completed, Completion, ConnectRequestId, DisconnectReason, Event, Exposed, ExposureKind, FabricError,
    Fence, Handle, Limits, ListenerId, Peer, PostError, Provider, QueuePairCapacity, QueuePairId, ReadPart,
    ReadRequest, Refused, RemoteSegment, SendRequest, ShownMessage, TakeShown, Taken, WriteRequest,
};

impl Provider for Shm {
    type Handover = ShmHandover;
    type Destination = ();

    fn name(&self) -> &'static str {
        "shm"
    }

    fn limits(&self) -> Limits {
        Limits {
            completions: self.config.completions,
            queue_pairs: self.config.queue_pairs,
            message_len_max: MESSAGE_LEN_MAX,
            transfer_len_max: u32::MAX,
            private_data_len_max: message::PRIVATE_DATA_LEN_MAX,
            send_with_invalidate: true,
            exposure: ExposureKind::TableEntry,
            shared_receives: false,
            receive_targets: RECEIVE_TARGETS_MAX as u32,
            // The peer has all memory in reach: a message only adds copies.
            message_data_max: 0,
            message_results_max: 0,
        }
    }

    /// Connections that exist already do not learn of it: expose its buffers on later ones.
    fn register(&mut self, arena: &Arena) -> Result<(), FabricError> {
        if self.ours.region(arena.id()).is_some() {
            return Ok(());
        }
        let wanted = self.ours.arenas.len() + 1;
        if wanted > REGIONS_MAX {
            let (wanted, limit) = (wanted as u64, REGIONS_MAX as u64);
            let repair = "register fewer, larger arenas";
            return Err(FabricError::Limit { what: "registered arenas", wanted, limit, repair });
        }
        let len = arena.len() as u64;
        let checked = match arena.fd() {
            Some(fd) => pages::check_memory(fd, len, AllowedPages::Hugepages),
            None => Err("it has no descriptor that a peer could map; use Arena::adopt"),
        };
        checked.map_err(|problem| {
            let doing = format!("register the arena {:?}: {problem}", arena.name());
            FabricError::System { doing, source: io::ErrorKind::InvalidInput.into() }
        })?;
        self.ours.arenas.push(arena.clone());
        Ok(())
    }

    fn is_registered(&self, arena: ArenaId) -> bool {
        self.ours.region(arena).is_some()
    }

    fn listen(&mut self, address: &str) -> Result<ListenerId, FabricError> {
        let name = Address::new(address)?;
        let index = self.listeners.len() as u32;
        let listener = rendezvous::listen(&name).and_then(|listener| {
            self.epoll.add(listener.as_fd(), Token::Listener(index), SOCKET)?;
            Ok(listener)
        });
        let failed = |source| FabricError::System { doing: format!("listen at shm://{address}"), source };
        self.listeners.push(listener.map_err(failed)?);
        Ok(ListenerId(index))
    }

    fn connect(
        &mut self,
        address: &str,
        private_data: &[u8],
        capacity: QueuePairCapacity,
    ) -> Result<QueuePairId, FabricError> {
        let name = Address::new(address)?;
        check_private_data(private_data, message::PRIVATE_DATA_LEN_MAX)?;
        let seed = seed()?;
        let id = self.admit(&capacity)?;
        let (part, fd) = setup::create_part(&capacity).map_err(|error| {
            self.completions_taken -= QueuePair::completions(&capacity);
            no_memory(error)
        })?;
        // Who it is comes out when there is a socket.
        let peer = Peer::Process { pid: 0, uid: 0, gid: 0 };
        let mut pair = QueuePair::new(id, Phase::Dialing, capacity, seed, peer);
        let private_data = private_data.to_vec();
        pair.dialing = Some(Dialing { address: name, part, fd, private_data, deadline: None });
        self.install(pair);
        self.dialing.push(id.index);
        // The next pass dials, so that Receives can be posted even when there is no listener.
        self.look_at = Duration::ZERO;
        Ok(id)
    }

    fn prepare(
        &mut self,
        request: ConnectRequestId,
        capacity: QueuePairCapacity,
    ) -> Result<QueuePairId, FabricError> {
        let (incoming, offer) =
            self.take_request(request).ok_or(FabricError::Gone("the connection request"))?;
        let refused = |error: FabricError| {
            refuse(incoming.socket.as_fd(), &error.to_string());
            error
        };
        let seed = seed()?;
        let id = self.admit(&capacity).map_err(refused)?;
        let parts = setup::create_part(&capacity).map_err(no_memory).and_then(|ours| {
            let theirs = offer.map(&mut self.regions, admit::user(&incoming.peer))?;
            let token = Token::queue_pair(id);
            self.epoll.change(incoming.socket.as_fd(), token, SOCKET).map_err(no_memory)?;
            Ok((ours, theirs))
        });
        let ((ours, fd), theirs) = match parts {
            Ok(parts) => parts,
            Err(error) => {
                self.completions_taken -= QueuePair::completions(&capacity);
                return Err(refused(error));
            }
        };
        let mut pair = QueuePair::new(id, Phase::Prepared, capacity, seed, incoming.peer);
        pair.link = Some(Link::new(ours, theirs, self.ours.arenas.len()));
        pair.part_fd = Some(fd);
        pair.socket = Some(incoming.socket);
        self.install(pair);
        Ok(id)
    }

    fn accept(&mut self, queue_pair: QueuePairId, private_data: &[u8]) -> Result<(), FabricError> {
        check_private_data(private_data, message::PRIVATE_DATA_LEN_MAX)?;
        let gone = FabricError::Gone("the prepared queue pair");
        let slot = self.slots.get_mut(queue_pair.index as usize).and_then(Option::as_deref_mut);
        let Some(pair) = slot.filter(|pair| pair.id == queue_pair && pair.phase == Phase::Prepared) else {
            return Err(gone);
        };
        let (Some(socket), Some(link), Some(fd)) = (&pair.socket, &pair.link, pair.part_fd.take()) else {
            return Err(gone);
        };
        let part = (link.ours(), fd.as_fd());
        let private_data = private_data.to_vec();
        let who = (queue_pair, pair.capacity);
        let sent = setup::introduce(socket.as_fd(), false, &self.ours, part, who, private_data);
        if sent.is_err() {
            self.close(queue_pair.index, DisconnectReason::PeerDied);
            return Ok(());
        }
        pair.phase = Phase::Announced;
        let peer = pair.peer.clone();
        self.events.push_back(Event::Established { queue_pair, private_data: Vec::new(), peer });
        Ok(())
    }

    fn reject(&mut self, request: ConnectRequestId, reason: &str) {
        if let Some((incoming, _)) = self.take_request(request) {
            refuse(incoming.socket.as_fd(), reason);
        }
    }

    fn destination(&self) {}

    fn release(&mut self, request: ConnectRequestId, (): &()) -> Option<ShmHandover> {
        self.release_request(request)
    }

    fn adopt(&mut self, handover: ShmHandover) -> Result<ConnectRequestId, FabricError> {
        self.adopt_request(handover)
    }

    fn disconnect(&mut self, queue_pair: QueuePairId) {
        if find(&mut self.slots, queue_pair).is_some() {
            self.close(queue_pair.index, DisconnectReason::Local);
        }
    }

    #[inline]
    fn post_receive(&mut self, queue_pair: QueuePairId, id: u64, buf: Buf) -> Result<(), Refused<Buf>> {
        let is_registered = self.is_registered(buf.location().arena);
        match find_to_post(&mut self.slots, queue_pair, is_registered) {
            Ok(pair) => pair.post_receive(id, buf),
            Err(error) => Err(Refused { request: buf, error }),
        }
    }

    fn post_scattered(
        &mut self,
        queue_pair: QueuePairId,
        request: ScatteredReceive,
    ) -> Result<(), Refused<ScatteredReceive>> {
        let is_registered = request.all_arenas(|arena| self.is_registered(arena));
        match find_to_post(&mut self.slots, queue_pair, is_registered) {
            Ok(pair) => pair.post_scattered(request),
            Err(error) => Err(Refused { request, error }),
        }
    }

    fn take_targets(&mut self, queue_pair: QueuePairId) -> Option<Box<ReceiveTargets>> {
        find(&mut self.slots, queue_pair)?.take_targets()
    }

    #[inline]
    fn post_send(
        &mut self,
        queue_pair: QueuePairId,
        request: SendRequest,
    ) -> Result<(), Refused<SendRequest>> {
        if self.ours.region(request.buf.location().arena).is_none() {
            return Err(Refused { request, error: PostError::NotRegistered });
        }
        if request.signaled || !self.send_now(queue_pair, &request.buf, request.invalidate) {
            return self.post_send_slow(queue_pair, request);
        }
        Ok(())
    }

    #[inline]
    fn post_write(
        &mut self,
        queue_pair: QueuePairId,
        request: WriteRequest,
    ) -> Result<(), Refused<WriteRequest>> {
        let is_registered = self.is_registered(request.source.location().arena);
        let result = match find_to_post(&mut self.slots, queue_pair, is_registered) {
            Err(error) => return Err(Refused { request, error }),
            Ok(pair) => pair.post_write(request, &mut self.local)?,
        };
        self.posted(queue_pair.index, result);
        Ok(())
    }

    #[inline]
    fn post_read(
        &mut self,
        queue_pair: QueuePairId,
        request: ReadRequest,
        parts: &[ReadPart],
    ) -> Result<(), Refused<ReadRequest>> {
        let is_registered = self.is_registered(request.target.location().arena);
        let result = match find_to_post(&mut self.slots, queue_pair, is_registered) {
            Err(error) => return Err(Refused { request, error }),
            Ok(pair) => pair.post_read(request, parts, &mut self.local)?,
        };
        self.posted(queue_pair.index, result);
        Ok(())
    }

    #[inline]
    fn read_at_once(&mut self, queue_pair: QueuePairId, target: &mut Buf, parts: &[ReadPart]) -> bool {
        if self.ours.region(target.location().arena).is_none() {
            return false;
        }
        let Some(pair) = find(&mut self.slots, queue_pair) else { return false };
        let is_done = pair.read_at_once(target, parts);
        // The doorbell ends the span of the accesses, also of those before one that was refused.
        pair.mark_dirty(&mut self.dirty);
        is_done
    }

    #[inline]
    fn expose(
        &mut self,
        queue_pair: QueuePairId,
        exposed: Exposed,
    ) -> Result<RemoteSegment, Refused<Exposed>> {
        let region = self.ours.region(exposed.location().arena);
        let segment = match find(&mut self.slots, queue_pair) {
            None => return Err(Refused { request: exposed, error: PostError::NotConnected }),
            Some(pair) => pair.expose(exposed, region)?,
        };
        self.posted(queue_pair.index, Ok(()));
        Ok(segment)
    }

    #[inline]
    fn fence(&mut self, queue_pair: QueuePairId, handle: Handle, id: u64) -> Option<Fence> {
        let fence = find(&mut self.slots, queue_pair)?.fence(handle, id)?;
        if matches!(fence, Fence::Pending) {
            self.mark_attention(queue_pair.index);
        }
        Some(fence)
    }

    #[inline(always)]
    fn ring_doorbells(&mut self) {
        match self.dirty[..] {
            [] => {}
            // The usual case, without a loop.
            [index] => {
                self.dirty.clear();
                if let Some(Some(pair)) = self.slots.get_mut(index as usize) {
                    pair.is_dirty = false;
                    pair.ring_doorbell();
                }
            }
            _ => self.ring_dirty(),
        }
    }

    #[inline]
    fn poll(&mut self, now: Duration, completions: &mut VecDeque<Completion>, max: usize) -> usize {
        self.poll_in_place(now, completions, max, &mut |_: ShownMessage<'_>| Taken::No)
    }

    // `inline(always)`, as its callees: each has one caller, once for each pass.
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

        while completions.len() < end
            && let Some(completion) = self.local.pop_front()
        {
            let signaled =
                !matches!(completion.completed, Completed::Receive { .. } | Completed::Fence { .. });
            if signaled && let Some(pair) = find(&mut self.slots, completion.queue_pair) {
                pair.harvested();
            }
            completions.push_back(completion);
        }

        let taken = self.harvest(completions, end, take);

        if !self.attention.is_empty() {
            self.attend(completions, end);
        }
        let count = completions.len() - start + taken;
        if count == 0 {
            self.look_passes += 1;
        }
        if nanoseconds(now) >= nanoseconds(self.look_at) || self.look_passes >= LOOK_PASSES {
            self.poll_sockets();
        }
        count
    }

    #[inline(always)]
    fn build_plain(
        &mut self,
        queue_pair: QueuePairId,
        build: impl FnOnce(&mut [u8]) -> Option<(u32, usize)>,
    ) -> bool {
        let Some(pair) = find(&mut self.slots, queue_pair) else { return false };
        if !pair.build_plain(build) {
            return false;
        }
        pair.mark_dirty(&mut self.dirty);
        true
    }

    #[inline(always)]
    fn build_whole(
        &mut self,
        queue_pair: QueuePairId,
        build: impl FnOnce(&mut [u8]) -> Option<(usize, Option<Handle>)>,
    ) -> bool {
        let Some(pair) = find(&mut self.slots, queue_pair) else { return false };
        let Some(result) = pair.build_whole(build) else { return false };
        if result.is_err() {
            self.posted(queue_pair.index, result);
        } else {
            pair.mark_dirty(&mut self.dirty);
        }
        true
    }

    #[inline(always)]
    fn build_exposing(
        &mut self,
        queue_pair: QueuePairId,
        exposed: &mut Option<Exposed>,
        build: impl FnOnce(&mut [u8], RemoteSegment) -> Option<usize>,
    ) -> bool {
        let Some(location) = exposed.as_ref().map(Exposed::location) else { return false };
        let Some(region) = self.ours.region(location.arena) else { return false };
        let Some(pair) = find(&mut self.slots, queue_pair) else { return false };
        if !pair.build_exposing(exposed, (region, location.offset), build) {
            return false;
        }
        pair.mark_dirty(&mut self.dirty);
        true
    }

    #[inline]
    fn poll_event(&mut self) -> Option<Event> {
        if self.events.is_empty() { None } else { self.take_event() }
    }

    fn poll_timeout(&self) -> Option<Duration> {
        let incoming = self.incoming.iter().filter(|i| i.hello.is_none()).map(|i| i.deadline);
        let dialing = self.dialing.iter().filter_map(|&index| {
            let pair = self.slots.get(index as usize)?.as_ref()?;
            let dialing = pair.dialing.as_ref()?;
            let again = pair.socket.is_none().then_some(self.now + DIAL_INTERVAL);
            Some(again.unwrap_or_else(|| dialing.deadline.unwrap_or(self.now)))
        });
        let fences = self.attention.iter().filter_map(|&index| {
            self.slots.get(index as usize)?.as_ref()?.stalled_until(self.config.fence_timeout)
        });
        incoming.chain(dialing).chain(self.paused_until).chain(fences).min()
    }

    fn arm(&mut self) -> bool {
        if !self.config.may_sleep || !self.local.is_empty() || !self.events.is_empty() {
            return false;
        }
        self.ring_doorbells();
        self.is_armed = true;
        for pair in self.slots.iter_mut().flatten() {
            pair.set_sleeping(true);
        }
        // Pairs with the fence of `order::asleep`: a producer whose doorbell we miss below sees that we sleep.
        order::full_fence();
        if self.slots.iter_mut().flatten().any(|pair| pair.has_work()) {
            self.disarm();
            return false;
        }
        true
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            for pair in self.slots.iter_mut().flatten() {
                pair.set_sleeping(false);
            }
            // Whatever woke us, the next pass looks.
            self.look_at = Duration::ZERO;
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.config.may_sleep.then(|| self.epoll.as_fd())
    }
}

impl Shm {
    /// Tells the user of an event.
    #[cold]
    fn take_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if let Event::Established { queue_pair, .. } = event
            && let Some(pair) = find(&mut self.slots, queue_pair)
        {
            // From here on there may be completions.
            if pair.phase == Phase::Announced {
                pair.phase = Phase::Open;
                if let Some(doorbell) = pair.doorbell() {
                    self.active.push(Active { doorbell, index: queue_pair.index, seen: doorbell, quiet: 0 });
                }
                // The peer may be gone again already; what it sent is in the ring.
                if pair.peer_gone {
                    pair.phase = Phase::Draining(pair.peer_reason());
                    self.mark_attention(queue_pair.index);
                }
            }
        }
        Some(event)
    }

    /// Rings the doorbells of the queue pairs with something that has to leave.
    #[inline(never)]
    fn ring_dirty(&mut self) {
        for &index in &self.dirty {
            if let Some(Some(pair)) = self.slots.get_mut(index as usize) {
                pair.is_dirty = false;
                pair.ring_doorbell();
            }
        }
        self.dirty.clear();
    }

    /// Sends a message if nothing stands in its way. `false`: nothing happened.
    #[inline]
    fn send_now(&mut self, queue_pair: QueuePairId, buf: &Buf, invalidate: Option<Handle>) -> bool {
        let Some(pair) = find(&mut self.slots, queue_pair) else { return false };
        if !pair.send_now(buf, invalidate) {
            return false;
        }
        pair.mark_dirty(&mut self.dirty);
        true
    }

    /// Posts a Send that `send_now` does not take.
    #[inline(never)]
    fn post_send_slow(
        &mut self,
        queue_pair: QueuePairId,
        request: SendRequest,
    ) -> Result<(), Refused<SendRequest>> {
        let result = match find(&mut self.slots, queue_pair) {
            None => return Err(Refused { request, error: PostError::NotConnected }),
            Some(pair) => pair.post_send(request, &mut self.local)?,
        };
        self.posted(queue_pair.index, result);
        Ok(())
    }

    /// Goes round the open queue pairs, once.
    #[inline(always)]
    fn harvest(
        &mut self,
        completions: &mut VecDeque<Completion>,
        end: usize,
        take: &mut impl TakeShown,
    ) -> usize {
        if self.ours.bells.is_rung() {
            self.answer_bells();
        }
        let [Active { doorbell, index, .. }] = self.active[..] else {
            return self.harvest_all(completions, end, take);
        };
        #[cfg(test)]
        {
            self.doorbells_seen += 1;
        }
        // SAFETY: mapped and aligned (invariant of `Active`). Relaxed: the harvest looks again, in order.
        if unsafe { &*doorbell }.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let mut in_place = InPlace::default();
        self.harvest_one(0, index, completions, end, take, &mut in_place);
        in_place.taken
    }

    /// As [`Shm::harvest`], with any number of them.
    #[inline(never)]
    fn harvest_all(
        &mut self,
        completions: &mut VecDeque<Completion>,
        end: usize,
        take: &mut impl TakeShown,
    ) -> usize {
        let count = self.active.len();
        let mut taken = 0;
        if self.turn >= count {
            self.turn = 0;
        }
        let mut at = self.turn;
        for _ in 0..count {
            let Active { doorbell, index, .. } = self.active[at];
            #[cfg(test)]
            {
                self.doorbells_seen += 1;
            }
            let next = if at + 1 == count { 0 } else { at + 1 };
            if count > 1 {
                copy::prefetch_read(self.active[next].doorbell.cast());
            }
            // SAFETY: mapped and aligned (invariant of `Active`). Relaxed: the harvest looks again, in order.
            let rung = unsafe { &*doorbell }.load(Ordering::Relaxed) != 0;
            if rung {
                let mut in_place = InPlace::default();
                let goes_on = self.harvest_one(at, index, completions, end, take, &mut in_place);
                taken += in_place.taken;
                if !goes_on {
                    break;
                }
            }
            at = next;
        }
        taken
    }

    /// Takes what one queue pair has. `false`: this pass is over.
    // Not inline: otherwise each pass would set up its loop.
    #[inline(never)]
    fn harvest_one(
        &mut self,
        at: usize,
        index: u32,
        completions: &mut VecDeque<Completion>,
        end: usize,
        take: &mut impl TakeShown,
        in_place: &mut InPlace,
    ) -> bool {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return true };
        let result = pair.harvest(completions, end - completions.len(), take, &self.ours, in_place);
        if in_place.needs_doorbell {
            pair.mark_dirty(&mut self.dirty);
        }
        if let Some(doorbell) = pair.doorbell() {
            self.active[at].doorbell = doorbell;
        }
        if let Err(reason) = result {
            self.close(index, reason);
            return false;
        }
        if completions.len() == end {
            // The next pass starts behind this one, so that no connection starves.
            self.turn = at + 1;
            return false;
        }
        true
    }
}

/// A time as one number, which is compared at once. That of the machine's clock fits for centuries.
#[inline(always)]
fn nanoseconds(time: Duration) -> u64 {
    time.as_secs().wrapping_mul(1_000_000_000).wrapping_add(u64::from(time.subsec_nanos()))
}

/// Random bits for handles.
fn seed() -> Result<u64, FabricError> {
    getrandom::u64().map_err(|error| FabricError::System {
        doing: "get random bits for handles".to_owned(),
        source: io::Error::other(error.to_string()),
    })
}
