//! The provider's methods: the thin layer between the trait and a queue pair.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use stag_memory::{Arena, ArenaId, Buf};

use super::connection::{Phase, QueuePair};
use super::handshake::{self, Dial, Incomplete, PRIVATE_DATA_LEN_MAX};
use super::listen::IwarpHandover;
use super::reactor::Ending;
use super::{Iwarp, MESSAGE_LEN_MAX};
use crate::epoll::{EventFlags, Token};
use crate::scatter::{RECEIVE_TARGETS_MAX, ReceiveTargets, ScatteredReceive};
use crate::setup::{check_private_data, resolve};
use crate::slots::{find, find_to_post};
use crate::{
    Completed, Completion, ConnectRequestId, DisconnectReason, Event, Exposed, ExposureKind, FabricError,
    Fence, GatheredPieces, Handle, Limits, ListenerId, Peer, Provider, QueuePairCapacity, QueuePairId,
    ReadPart, ReadRequest, Refused, RemoteSegment, SendRequest, ShownMessage, Stranger, TakeShown, Taken,
    WriteRequest,
};

/// Idle passes after which the sockets are looked at, for a caller whose time stands still.
const LOOK_PASSES: u32 = 4096;

impl Provider for Iwarp {
    type Handover = IwarpHandover;
    type Destination = ();

    fn name(&self) -> &'static str {
        "iwarp"
    }

    fn limits(&self) -> Limits {
        Limits {
            completions: self.config.completions,
            queue_pairs: self.config.queue_pairs,
            message_len_max: MESSAGE_LEN_MAX,
            transfer_len_max: u32::MAX,
            private_data_len_max: PRIVATE_DATA_LEN_MAX,
            send_with_invalidate: true,
            exposure: ExposureKind::TableEntry,
            shared_receives: false,
            receive_targets: RECEIVE_TARGETS_MAX as u32,
            message_data_max: super::MESSAGE_DATA_MAX,
            message_results_max: super::MESSAGE_RESULTS_MAX,
        }
    }

    fn register(&mut self, arena: &Arena) -> Result<(), FabricError> {
        if !self.is_registered(arena.id()) {
            self.arenas.push(arena.clone());
        }
        Ok(())
    }

    fn is_registered(&self, arena: ArenaId) -> bool {
        Iwarp::is_registered(self, arena)
    }

    fn listen(&mut self, address: &str) -> Result<ListenerId, FabricError> {
        let at = resolve(address)?;
        self.bind(at)
            .map_err(|source| FabricError::System { doing: format!("listen at iwarp://{address}"), source })
    }

    fn listener_address(&self, listener: ListenerId) -> Option<SocketAddr> {
        Iwarp::listener_address(self, listener)
    }

    fn local_address(&self, queue_pair: QueuePairId) -> Option<SocketAddr> {
        let pair = self.slots.get(queue_pair.index as usize)?.as_deref()?;
        pair.socket.as_ref().filter(|_| pair.id == queue_pair)?.address().ok()
    }

    fn connect(
        &mut self,
        address: &str,
        private_data: &[u8],
        capacity: QueuePairCapacity,
    ) -> Result<QueuePairId, FabricError> {
        check_private_data(private_data, PRIVATE_DATA_LEN_MAX)?;
        let to = resolve(address)?;
        let id = self.admit(&capacity)?;
        let mut pair = QueuePair::new(id, Phase::Dialing, capacity, to);
        pair.dial = Some(Box::new(Dial {
            address: to,
            private_data: private_data.to_vec(),
            deadline: None,
            has_asked: false,
            reply: Incomplete::default(),
            revision: self.config.revision,
            failed: None,
        }));
        self.install(pair);
        self.dialing.push(id.index);
        self.start_dialing(id.index);
        self.look_at = Duration::ZERO;
        Ok(id)
    }

    fn prepare(
        &mut self,
        request: ConnectRequestId,
        capacity: QueuePairCapacity,
    ) -> Result<QueuePairId, FabricError> {
        let (incoming, offer) =
            self.waiting.take_request(request).ok_or(FabricError::Gone("the connection request"))?;
        let id = match self.admit(&capacity) {
            Ok(id) => id,
            Err(error) => {
                self.refuse(incoming.socket, &offer, &error.to_string());
                return Err(error);
            }
        };
        let mut pair = QueuePair::new(id, Phase::Prepared, capacity, incoming.peer);
        // It fails only without memory; then the end of the peer is noticed at `accept`.
        pair.is_watched =
            self.epoll.change(incoming.socket.as_fd(), Token::queue_pair(id), EventFlags::IN).is_ok();
        pair.socket = Some(incoming.socket);
        pair.offer = Some(offer);
        self.install(pair);
        Ok(id)
    }

    fn accept(&mut self, queue_pair: QueuePairId, private_data: &[u8]) -> Result<(), FabricError> {
        check_private_data(private_data, PRIVATE_DATA_LEN_MAX)?;
        let gone = FabricError::Gone("the prepared queue pair");
        // A peer that sends before the reply, or is gone, is found out here at the latest.
        self.hear_prepared(queue_pair.index);
        let Some(pair) = find(&mut self.slots, queue_pair) else { return Err(gone) };
        let (Some(socket), Some(offer)) = (&pair.socket, &pair.offer) else {
            // It ended meanwhile: `Event::Disconnected` says why.
            return if matches!(pair.phase, Phase::Closing(_)) { Ok(()) } else { Err(gone) };
        };
        if pair.phase != Phase::Prepared {
            return Err(gone);
        }
        if !handshake::send(socket, &offer.reply(&self.config, private_data)) {
            self.close(queue_pair.index, DisconnectReason::PeerDied, Ending::default());
            return Ok(());
        }
        let terms = offer.terms(&self.config, socket.segment_len());
        pair.agree(&terms);
        self.counters.established += 1;
        let peer = Peer::Address(pair.peer);
        self.events.push_back(Event::Established { queue_pair, private_data: Vec::new(), peer });
        Ok(())
    }

    fn reject(&mut self, request: ConnectRequestId, reason: &str) {
        if let Some((incoming, offer)) = self.waiting.take_request(request) {
            self.refuse(incoming.socket, &offer, reason);
        }
    }

    fn destination(&self) {}

    fn release(&mut self, request: ConnectRequestId, (): &()) -> Option<IwarpHandover> {
        self.release_request(request)
    }

    fn adopt(&mut self, handover: IwarpHandover) -> Result<ConnectRequestId, FabricError> {
        self.adopt_request(handover)
    }

    fn disconnect(&mut self, queue_pair: QueuePairId) {
        if find(&mut self.slots, queue_pair).is_some() {
            self.close(queue_pair.index, DisconnectReason::Local, Ending::default());
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
        let is_registered = self.is_registered(request.buf.location().arena);
        match find_to_post(&mut self.slots, queue_pair, is_registered) {
            Err(error) => return Err(Refused { request, error }),
            Ok(pair) => pair.post_send(request)?,
        }
        self.posted(queue_pair.index);
        Ok(())
    }

    #[inline]
    fn post_write(
        &mut self,
        queue_pair: QueuePairId,
        request: WriteRequest,
    ) -> Result<(), Refused<WriteRequest>> {
        let is_registered = self.is_registered(request.source.location().arena);
        match find_to_post(&mut self.slots, queue_pair, is_registered) {
            Err(error) => return Err(Refused { request, error }),
            Ok(pair) => pair.post_write(request)?,
        }
        self.mark_dirty(queue_pair.index);
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
        match find_to_post(&mut self.slots, queue_pair, is_registered) {
            Err(error) => return Err(Refused { request, error }),
            Ok(pair) => pair.post_read(request, parts)?,
        }
        self.posted(queue_pair.index);
        Ok(())
    }

    #[inline]
    fn expose(
        &mut self,
        queue_pair: QueuePairId,
        exposed: Exposed,
    ) -> Result<RemoteSegment, Refused<Exposed>> {
        let is_registered = self.is_registered(exposed.location().arena);
        match find_to_post(&mut self.slots, queue_pair, is_registered) {
            Ok(pair) => pair.expose(exposed),
            Err(error) => Err(Refused { request: exposed, error }),
        }
    }

    #[inline]
    fn fence(&mut self, queue_pair: QueuePairId, handle: Handle, _id: u64) -> Option<Fence> {
        find(&mut self.slots, queue_pair)?.fence(handle).map(Fence::Done)
    }

    #[inline]
    fn ring_doorbells(&mut self) {
        while let Some(index) = self.dirty.pop() {
            self.flush(index);
        }
    }

    #[inline]
    fn poll(&mut self, now: Duration, completions: &mut VecDeque<Completion>, max: usize) -> usize {
        self.poll_in_place(now, completions, max, &mut |_: ShownMessage<'_>| Taken::No)
    }

    #[inline]
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
        self.taken = 0;

        // What waits comes first. As long as it does not fit, nothing new is taken from the peers.
        self.drain_local(completions, end);
        if self.local.is_empty() && completions.len() < end {
            self.harvest(completions, end, take);
        }
        self.look_passes += u32::from(completions.len() + self.taken == start);
        if now >= self.look_at || self.look_passes >= LOOK_PASSES {
            self.poll_sockets(completions, end, take);
        }
        if !self.blocked.is_empty() {
            self.retry_blocked();
        }
        // Read Responses, and what had to wait for the peer.
        self.ring_doorbells();

        if !self.local.is_empty() {
            self.drain_local(completions, end - self.taken.min(end - start));
        }
        if !self.closing.is_empty() && self.local.is_empty() {
            self.clear_away();
        }
        completions.len() - start + self.taken
    }

    #[inline]
    fn build_plain(
        &mut self,
        queue_pair: QueuePairId,
        build: impl FnOnce(&mut [u8]) -> Option<(u32, usize)>,
    ) -> bool {
        let Some(pair) = find(&mut self.slots, queue_pair) else { return false };
        let Some((credits, len)) = pair.plain_space().and_then(build) else { return false };
        pair.tx.send_plain(credits, len);
        let is_full = pair.tx.is_built_full();
        self.posted(queue_pair.index);
        if is_full {
            self.flush_early(queue_pair.index);
        }
        true
    }

    #[inline]
    fn build_exposing(
        &mut self,
        queue_pair: QueuePairId,
        exposed: &mut Option<Exposed>,
        build: impl FnOnce(&mut [u8], RemoteSegment) -> Option<usize>,
    ) -> bool {
        let arena = match exposed {
            Some(Exposed::Read(shared)) => shared.location().arena,
            Some(Exposed::Write(buf)) => buf.location().arena,
            None => return false,
        };
        if !self.is_registered(arena) {
            return false;
        }
        let Some(pair) = find(&mut self.slots, queue_pair) else { return false };
        if !pair.build_exposing(exposed, build) {
            return false;
        }
        let is_full = pair.tx.is_built_full();
        self.posted(queue_pair.index);
        if is_full {
            self.flush_early(queue_pair.index);
        }
        true
    }

    #[inline]
    fn gather_space(&mut self, queue_pair: QueuePairId) -> Option<&mut [u8]> {
        find(&mut self.slots, queue_pair)?.gather_space()
    }

    #[inline]
    fn send_gathered(&mut self, queue_pair: QueuePairId, len: usize, pieces: &mut GatheredPieces) {
        let pair = find(&mut self.slots, queue_pair).expect("it gave the space just before");
        pair.tx.send_gathered(len, pieces);
        let is_full = pair.tx.is_built_full();
        self.posted(queue_pair.index);
        if is_full {
            self.flush_early(queue_pair.index);
        }
    }

    fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if let Event::Established { queue_pair, .. } = event
            && find(&mut self.slots, queue_pair).is_some()
        {
            // From here on there may be completions.
            self.activate(queue_pair.index);
        }
        Some(event)
    }

    fn take_stranger(&mut self) -> Option<Stranger> {
        self.waiting.strangers.pop_front().map(|(stranger, _)| stranger)
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.timeout()
    }

    fn arm(&mut self) -> bool {
        if !self.config.may_sleep {
            return false;
        }
        self.ring_doorbells();
        let is_busy = !self.local.is_empty()
            || !self.events.is_empty()
            || !self.closing.is_empty()
            || !self.waiting.strangers.is_empty();
        if is_busy {
            return false;
        }
        // What is in a socket already makes the epoll readable: it is level-triggered.
        self.watch_blocked();
        self.is_armed = true;
        true
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            // Whatever woke us, the next pass looks.
            self.look_at = Duration::ZERO;
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.config.may_sleep.then(|| self.epoll.as_fd())
    }
}

impl Iwarp {
    /// A Send or a Read was posted: it leaves at once, or with the next doorbell.
    #[inline(always)]
    fn posted(&mut self, index: u32) {
        self.mark_dirty(index);
        if let Some(Some(pair)) = self.slots.get_mut(index as usize)
            && pair.pace.note_posted()
        {
            self.flush_early(index);
        }
    }

    /// Hands out completions that waited.
    #[inline]
    fn drain_local(&mut self, completions: &mut VecDeque<Completion>, end: usize) {
        while completions.len() < end
            && let Some(completion) = self.local.pop_front()
        {
            let is_request =
                !matches!(completion.completed, Completed::Receive { .. } | Completed::Fence { .. });
            if is_request && let Some(pair) = find(&mut self.slots, completion.queue_pair) {
                pair.harvested();
            }
            completions.push_back(completion);
        }
    }
}
