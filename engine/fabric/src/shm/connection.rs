//! One queue pair: its rings, its tables, and its posted work.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Duration;

use stag_memory::{Buf, Shared};

use super::exposure::{Access, Bind, Exposures, Fenced};
use super::link::{Link, closed, closed_code};
use super::order::{self, Word};
use super::pending::Dialing;
use super::ring::{BadHead, Kind};
use super::sockets::Socket;
use crate::scatter::ScatterQueue;
use crate::slots::Numbered;
use crate::{
    Completed, Completion, DisconnectReason, Exposed, Fence, Handle, PLAIN_LEN_MAX, Peer, PostError,
    QueuePairCapacity, QueuePairId, ReadPart, ReadRequest, Refused, RemoteSegment, SendRequest,
    WHOLE_LEN_MAX, WorkError, WriteRequest,
};

/// What a queue pair waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Connecting side: for the listener, then for its ACCEPT.
    Dialing,
    /// Accepting side: for the user's `accept`.
    Prepared,
    /// For the user to take `Event::Established`.
    Announced,
    /// For work.
    Open,
    /// The peer is gone. For the messages in the ring to be received, as far as Receives are posted.
    Draining(DisconnectReason),
    /// For everything to be given back.
    Closing(DisconnectReason),
}

/// Something that found no room in the ring, in order.
pub(super) enum Pending {
    Send(SendRequest),
    Bind {
        kind: Kind,
        handle: Handle,
        bind: Bind,
    },
    /// Done, but behind Sends that are not.
    Complete(Completion),
}

/// A queue pair.
pub(super) struct QueuePair {
    pub(super) id: QueuePairId,
    pub(super) phase: Phase,
    pub(super) link: Option<Link>,
    pub(super) receives: VecDeque<(u64, Buf)>,
    pub(super) scatter: Option<Box<ScatterQueue>>,
    pub(super) pending: VecDeque<Pending>,
    pub(super) exposures: Exposures,
    pub(super) capacity: QueuePairCapacity,
    /// Signaled requests whose completion the user has not got, and Sends that wait for room.
    outstanding: u32,
    /// In the provider's list of queue pairs whose doorbell it must ring.
    pub(super) is_dirty: bool,
    /// In the provider's list of queue pairs that `poll` must look after.
    pub(super) needs_attention: bool,
    /// The peer can touch nothing any more: its socket is gone.
    pub(super) peer_gone: bool,
    pub(super) socket: Option<Socket>,
    pub(super) peer: Peer,
    pub(super) dialing: Option<Dialing>,
    /// Accepting side: our part's descriptor, until ACCEPT is sent.
    pub(super) part_fd: Option<OwnedFd>,
    /// Where the fence of all exposures is, while closing.
    flushed: usize,
    /// Fences wait for an access of the peer: which one, and since when.
    stall: Option<Stall>,
}

/// An access of the peer that fences wait for.
#[derive(Clone, Copy)]
struct Stall {
    /// The peer's epoch.
    epoch: u64,
    since: Duration,
    /// The connection was closing already.
    is_closing: bool,
}

impl Numbered for QueuePair {
    #[inline(always)]
    fn id(&self) -> QueuePairId {
        self.id
    }

    #[inline(always)]
    fn dirty_flag(&mut self) -> &mut bool {
        &mut self.is_dirty
    }
}

impl QueuePair {
    pub(super) fn new(
        id: QueuePairId,
        phase: Phase,
        capacity: QueuePairCapacity,
        seed: u64,
        peer: Peer,
    ) -> QueuePair {
        QueuePair {
            id,
            phase,
            link: None,
            receives: VecDeque::with_capacity(capacity.receives as usize),
            scatter: None,
            pending: VecDeque::with_capacity(QueuePair::pending_max(&capacity)),
            exposures: Exposures::new(capacity.exposures, seed),
            capacity,
            outstanding: 0,
            is_dirty: false,
            needs_attention: false,
            peer_gone: false,
            socket: None,
            peer,
            dialing: None,
            part_fd: None,
            flushed: 0,
            stall: None,
        }
    }

    fn pending_max(capacity: &QueuePairCapacity) -> usize {
        capacity.sends as usize + 2 * capacity.exposures as usize
    }

    /// Octets of heap of its queues, all full.
    pub(super) fn footprint(capacity: &QueuePairCapacity) -> usize {
        capacity.receives as usize * size_of::<(u64, Buf)>()
            + ScatterQueue::footprint(capacity)
            + QueuePair::pending_max(capacity) * size_of::<Pending>()
    }

    /// Completions that it may have waiting at once.
    pub(super) fn completions(capacity: &QueuePairCapacity) -> u64 {
        u64::from(capacity.receives) + u64::from(capacity.sends) + u64::from(capacity.exposures)
    }

    #[inline(always)]
    fn completion(&self, id: u64, completed: Completed, result: Result<(), WorkError>) -> Completion {
        Completion { queue_pair: self.id, id, completed, result }
    }

    /// The user got the completion of a signaled Send, Write or Read.
    #[inline(always)]
    pub(super) fn harvested(&mut self) {
        self.outstanding -= 1;
    }

    /// The link, if work may be posted.
    #[inline(always)]
    fn open(&mut self) -> Option<&mut Link> {
        if matches!(self.phase, Phase::Open) { self.link.as_mut() } else { None }
    }

    /// The first word of the next batch, for the provider's list.
    #[inline]
    pub(super) fn doorbell(&self) -> Option<*const std::sync::atomic::AtomicU64> {
        self.link.as_ref().map(|link| link.consumer.doorbell())
    }

    #[inline]
    pub(super) fn post_receive(&mut self, id: u64, buf: Buf) -> Result<(), Refused<Buf>> {
        let error = if matches!(self.phase, Phase::Draining(_) | Phase::Closing(_)) {
            PostError::NotConnected
        } else if self.receives.len() >= self.capacity.receives as usize {
            PostError::Full
        } else if self.scatter.is_some() {
            PostError::Scatter
        } else {
            self.receives.push_back((id, buf));
            return Ok(());
        };
        Err(Refused { request: buf, error })
    }

    /// Sends a message if nothing stands in its way: most do not. `false`: nothing happened.
    #[inline(always)]
    pub(super) fn send_now(&mut self, buf: &Buf, invalidate: Option<Handle>) -> bool {
        let len = buf.len();
        if !matches!(self.phase, Phase::Open)
            || !self.pending.is_empty()
            || len > self.capacity.send_len_max as usize
        {
            return false;
        }
        let Some(link) = &mut self.link else { return false };
        if !link.producer.fits_surely(len) {
            return false;
        }
        // Last, because it cannot be taken back.
        if let Some(handle) = invalidate
            && !link.binds.forget(handle)
        {
            return false;
        }
        link.send(buf, invalidate);
        true
    }

    /// Builds a message without chunks where it leaves, and sends it, if nothing stands in its way. `false`: nothing happened.
    #[inline(always)]
    pub(super) fn build_plain(&mut self, build: impl FnOnce(&mut [u8]) -> Option<(u32, usize)>) -> bool {
        if !self.pending.is_empty() {
            return false;
        }
        let Some(link) = self.open() else { return false };
        if !link.find_space(PLAIN_LEN_MAX) {
            return false;
        }
        // SAFETY: there is room for it, and nothing is pushed before `build` returns.
        let space = unsafe { link.producer.space(PLAIN_LEN_MAX) };
        let Some((credits, len)) = build(space) else { return false };
        assert!((4..=PLAIN_LEN_MAX).contains(&len), "{len} octets");
        link.send_built(Kind::Plain, credits.to_be(), len);
        true
    }

    /// Builds a message where it leaves, and sends it, if nothing stands in its way. `None`: nothing happened. `Err`: the connection
    /// has to end.
    #[inline(always)]
    pub(super) fn build_whole(
        &mut self,
        build: impl FnOnce(&mut [u8]) -> Option<(usize, Option<Handle>)>,
    ) -> Option<Result<(), DisconnectReason>> {
        if !self.pending.is_empty() {
            return None;
        }
        let len_max = WHOLE_LEN_MAX.min(self.capacity.send_len_max as usize);
        let link = self.open()?;
        if !link.find_space(WHOLE_LEN_MAX) {
            return None;
        }
        // SAFETY: there is room for it, and nothing is pushed before `build` returns.
        let space = unsafe { link.producer.space(len_max) };
        let (len, invalidate) = build(space)?;
        assert!(len <= len_max, "{len} octets");
        let (kind, aux) = match invalidate {
            None => (Kind::Send, 0),
            Some(handle) if link.binds.forget(handle) => (Kind::SendInvalidate, handle.0),
            Some(_) => return Some(Err(DisconnectReason::Work(WorkError::RemoteAccess))),
        };
        link.send_built(kind, aux, len);
        Some(Ok(()))
    }

    /// Exposes memory that begins at an offset of one of our arenas, and sends a message that names it, built where it leaves, if
    /// nothing stands in its way. `false`: nothing happened.
    #[inline(always)]
    pub(super) fn build_exposing(
        &mut self,
        exposed: &mut Option<Exposed>,
        (region, offset): (usize, u64),
        build: impl FnOnce(&mut [u8], RemoteSegment) -> Option<usize>,
    ) -> bool {
        if !self.pending.is_empty() || self.exposures.is_full() {
            return false;
        }
        let (Phase::Open, Some(link)) = (&self.phase, &mut self.link) else { return false };
        if region >= link.regions || !link.find_space(Bind::LEN + WHOLE_LEN_MAX) {
            return false;
        }
        let (kind, len) = match exposed {
            Some(Exposed::Read(shared)) => (Kind::SendBindRead, shared.len()),
            Some(Exposed::Write(buf)) => (Kind::SendBindWrite, buf.len()),
            None => return false,
        };
        // SAFETY: there is room for it, and nothing is pushed before `build` returns.
        let space = unsafe { link.producer.space(Bind::LEN + WHOLE_LEN_MAX) };
        let Some((bind, space)) = space.split_first_chunk_mut::<{ Bind::LEN }>() else {
            unreachable!("it is longer")
        };
        let handle = self.exposures.next_handle();
        let Some(message_len) = build(space, RemoteSegment { handle, offset }) else { return false };
        assert!(message_len <= WHOLE_LEN_MAX, "{message_len} octets");
        let Some(exposed) = exposed.take() else { unreachable!("it was there before") };
        let kills = self.exposures.insert(handle, exposed);
        *bind = Bind { offset, region: region as u16, len: len as u32, kills }.encode();
        link.send_built(kind, handle.0, Bind::LEN + message_len);
        true
    }

    /// Posts a Send. `Err` in the inner result: the connection has to end.
    #[inline]
    pub(super) fn post_send(
        &mut self,
        request: SendRequest,
        local: &mut VecDeque<Completion>,
    ) -> Result<Result<(), DisconnectReason>, Refused<SendRequest>> {
        let full = self.outstanding >= self.capacity.sends;
        let len_max = self.capacity.send_len_max as usize;
        let room = self.pending.is_empty();
        let Some(link) = self.open() else {
            return Err(Refused { request, error: PostError::NotConnected });
        };
        let len = request.buf.len();
        if len > len_max {
            return Err(Refused { request, error: PostError::TooLong });
        }
        let fits = room
            && match link.producer.fits(len, link.theirs.head()) {
                Ok(fits) => fits,
                Err(BadHead) => {
                    let SendRequest { id, buf, .. } = request;
                    return Ok(Err(self.fail_send(id, buf, WorkError::PeerViolation, local)));
                }
            };
        // A Send that is done at once and wants no completion takes no room.
        if full && (request.signaled || !fits) {
            return Err(Refused { request, error: PostError::Full });
        }
        if let Some(handle) = request.invalidate
            && !link.binds.forget(handle)
        {
            let SendRequest { id, buf, .. } = request;
            return Ok(Err(self.fail_send(id, buf, WorkError::RemoteAccess, local)));
        }
        if !fits {
            self.outstanding += 1;
            self.pending.push_back(Pending::Send(request));
            return Ok(Ok(()));
        }
        let SendRequest { id, buf, invalidate, signaled } = request;
        link.send(&buf, invalidate);
        if signaled {
            self.outstanding += 1;
            local.push_back(self.completion(id, Completed::Send(buf), Ok(())));
        }
        Ok(Ok(()))
    }

    #[cold]
    fn fail_send(
        &mut self,
        id: u64,
        buf: Buf,
        error: WorkError,
        local: &mut VecDeque<Completion>,
    ) -> DisconnectReason {
        self.outstanding += 1;
        self.complete(id, Completed::Send(buf), Err(error), local);
        DisconnectReason::Work(error)
    }

    /// Queues a completion, behind those of Sends that still wait for room. Counted in `outstanding` already.
    fn complete(
        &mut self,
        id: u64,
        completed: Completed,
        result: Result<(), WorkError>,
        local: &mut VecDeque<Completion>,
    ) {
        let completion = self.completion(id, completed, result);
        if self.pending.is_empty() {
            local.push_back(completion);
        } else {
            self.pending.push_back(Pending::Complete(completion));
        }
    }

    #[inline]
    pub(super) fn post_write(
        &mut self,
        request: WriteRequest,
        local: &mut VecDeque<Completion>,
    ) -> Result<Result<(), DisconnectReason>, Refused<WriteRequest>> {
        let full = self.outstanding >= self.capacity.sends;
        let Some(link) = self.open() else {
            return Err(Refused { request, error: PostError::NotConnected });
        };
        if full && request.signaled {
            return Err(Refused { request, error: PostError::Full });
        }
        let WriteRequest { id, source, target, signaled } = request;
        let result = write(link, &source, target);
        if signaled || result.is_err() {
            self.outstanding += 1;
            self.complete(id, Completed::Write(source), result, local);
        }
        Ok(result.map_err(DisconnectReason::Work))
    }

    #[inline]
    pub(super) fn post_read(
        &mut self,
        request: ReadRequest,
        parts: &[ReadPart],
        local: &mut VecDeque<Completion>,
    ) -> Result<Result<(), DisconnectReason>, Refused<ReadRequest>> {
        let full = self.outstanding >= self.capacity.sends;
        let Some(link) = self.open() else {
            return Err(Refused { request, error: PostError::NotConnected });
        };
        if full {
            return Err(Refused { request, error: PostError::Full });
        }
        if !is_within(parts, &request.target) {
            return Err(Refused { request, error: PostError::TooLong });
        }
        let ReadRequest { id, mut target } = request;
        let result = read(link, &mut target, parts);
        self.outstanding += 1;
        self.complete(id, Completed::Read(target), result, local);
        Ok(result.map_err(DisconnectReason::Work))
    }

    /// Fills `target` now, if the queue pair is in use and nothing waits. `false`: nothing else changed.
    #[inline]
    pub(super) fn read_at_once(&mut self, target: &mut Buf, parts: &[ReadPart]) -> bool {
        if !self.pending.is_empty() || !is_within(parts, target) {
            return false;
        }
        self.open().is_some_and(|link| read(link, target, parts).is_ok())
    }

    #[inline]
    pub(super) fn expose(
        &mut self,
        exposed: Exposed,
        region: Option<usize>,
    ) -> Result<RemoteSegment, Refused<Exposed>> {
        let room = self.pending.is_empty();
        let full = self.exposures.is_full() || self.pending.len() == self.pending.capacity();
        let (Phase::Open, Some(link)) = (&self.phase, &mut self.link) else {
            return Err(Refused { request: exposed, error: PostError::NotConnected });
        };
        let Some(region) = region.filter(|&region| region < link.regions) else {
            return Err(Refused { request: exposed, error: PostError::NotRegistered });
        };
        if full {
            return Err(Refused { request: exposed, error: PostError::Full });
        }
        let (kind, offset, len) = match &exposed {
            Exposed::Read(shared) => (Kind::BindRead, shared.location().offset, shared.len()),
            Exposed::Write(buf) => (Kind::BindWrite, buf.location().offset, buf.len()),
        };
        // A head that cannot be waits in `pending`, where it is met again and ends the connection.
        let fits = room && link.producer.fits(Bind::LEN, link.theirs.head()) == Ok(true);
        let handle = self.exposures.next_handle();
        let kills = self.exposures.insert(handle, exposed);
        let bind = Bind { offset, region: region as u16, len: len as u32, kills };
        if fits {
            link.announce(kind, handle, bind);
        } else {
            self.pending.push_back(Pending::Bind { kind, handle, bind });
        }
        Ok(RemoteSegment { handle, offset })
    }

    #[inline]
    pub(super) fn fence(&mut self, handle: Handle, id: u64) -> Option<Fence> {
        let link = self.link.as_ref()?;
        let theirs = (!self.peer_gone).then_some(&link.theirs);
        Some(match self.exposures.fence(handle, id, &link.ours, theirs)? {
            Fenced::Done(exposed) => Fence::Done(exposed),
            Fenced::Waiting => Fence::Pending,
        })
    }

    /// Ends the span of accesses, and makes what was posted leave.
    #[inline(always)]
    pub(super) fn ring_doorbell(&mut self) {
        let Some(link) = &mut self.link else { return };
        // First, so that a peer that fences what this batch did not invalidate need not wait.
        link.end_span();
        link.publish(&self.socket);
    }

    /// Whether `poll` has something to look after here.
    #[inline]
    pub(super) fn has_chores(&self) -> bool {
        !self.pending.is_empty() || self.exposures.is_waiting() || !matches!(self.phase, Phase::Open)
    }

    /// Sends what waited for room, as far as there is room now.
    pub(super) fn send_pending(&mut self, local: &mut VecDeque<Completion>) -> Result<(), DisconnectReason> {
        let Some(link) = &mut self.link else { return Ok(()) };
        let mut pushed = false;
        while let Some(next) = self.pending.front() {
            let len = match next {
                Pending::Send(request) => Some(request.buf.len()),
                Pending::Bind { .. } => Some(Bind::LEN),
                Pending::Complete(_) => None,
            };
            if let Some(len) = len {
                match link.producer.fits(len, link.theirs.head()) {
                    Ok(true) => pushed = true,
                    Ok(false) => break,
                    Err(BadHead) => {
                        return Err(DisconnectReason::PeerViolation("a position outside of the ring"));
                    }
                }
            }
            match self.pending.pop_front() {
                Some(Pending::Send(SendRequest { id, buf, invalidate, signaled })) => {
                    link.send(&buf, invalidate);
                    if signaled {
                        let completed = Completed::Send(buf);
                        local.push_back(Completion { queue_pair: self.id, id, completed, result: Ok(()) });
                    } else {
                        self.outstanding -= 1;
                    }
                }
                Some(Pending::Bind { kind, handle, bind }) => {
                    link.announce(kind, handle, bind);
                }
                Some(Pending::Complete(completion)) => local.push_back(completion),
                None => {}
            }
        }
        // Their doorbell was rung when there was no room.
        if pushed {
            link.publish(&self.socket);
        }
        Ok(())
    }

    /// Hands out fences that were waiting and are done, at most `room`.
    pub(super) fn poll_fences(&mut self, completions: &mut VecDeque<Completion>, room: usize) {
        let Some(link) = &self.link else { return };
        for _ in 0..room {
            let Some((handle, id, exposed)) = self.exposures.poll(&link.theirs, self.peer_gone) else {
                return;
            };
            let completed = Completed::Fence { handle, exposed };
            completions.push_back(Completion { queue_pair: self.id, id, completed, result: Ok(()) });
        }
    }

    /// Notes which access of the peer fences wait for, after they were polled. Returns how long they have waited for this one; while
    /// the connection closes, that time begins anew.
    pub(super) fn stalled_for(&mut self, now: Duration) -> Duration {
        let Some(link) = self.link.as_ref().filter(|_| self.exposures.is_waiting() && !self.peer_gone) else {
            self.stall = None;
            return Duration::ZERO;
        };
        let (epoch, is_closing) = (link.theirs.epoch().get(), matches!(self.phase, Phase::Closing(_)));
        let is_same = |stall: &Stall| stall.epoch == epoch && stall.is_closing == is_closing;
        let stall = self.stall.filter(is_same).unwrap_or(Stall { epoch, since: now, is_closing });
        self.stall = Some(stall);
        now.saturating_sub(stall.since)
    }

    /// When fences that wait will have waited for `limit`.
    pub(super) fn stalled_until(&self, limit: Duration) -> Option<Duration> {
        self.stall.map(|stall| stall.since.saturating_add(limit))
    }

    /// While closing: whether all that is left are fences that wait for an access of the peer.
    fn waits_for_fences(&self) -> bool {
        self.receives.is_empty()
            && self.pending.is_empty()
            && self.exposures.is_waiting()
            && self.exposures.next_live(self.flushed).is_none()
    }

    /// Gives up memory that the peer may be writing to for as long as it runs. Returns how many exposures that are.
    #[cold]
    pub(super) fn lose_waiting(&mut self) -> usize {
        self.exposures.forget_waiting()
    }

    /// Whether there is nothing to receive, or no Receive for it.
    pub(super) fn is_drained(&self) -> bool {
        let nothing = |link: &Link| !matches!(link.consumer.peek(), Ok(Some(_)));
        self.receives.is_empty() || self.link.as_ref().is_none_or(nothing)
    }

    /// The peer's socket is gone: why, by its own last word.
    pub(super) fn peer_reason(&self) -> DisconnectReason {
        match self.link.as_ref().map(|link| closed_code(&link.theirs)) {
            Some(closed::LENGTH) => DisconnectReason::Work(WorkError::Length),
            Some(0) | None => DisconnectReason::PeerDied,
            Some(_) => DisconnectReason::Peer,
        }
    }

    /// Starts to close. No access of ours is under way, nor will any come: the peer may rely on it as soon as it
    /// sees `closed`.
    pub(super) fn close(&mut self, reason: DisconnectReason) {
        if let Some(link) = &mut self.link {
            link.end_span();
            // What was posted before still goes out, where the peer can take it.
            link.producer.publish();
            link.bell.ring();
            let code = if reason == DisconnectReason::Work(WorkError::Length) {
                closed::LENGTH
            } else {
                closed::ORDERLY
            };
            // Release: after the last access. Pairs with the acquire in `closed_code`.
            link.ours.closed().set_release(code);
        }
        self.phase = Phase::Closing(reason);
    }

    /// Gives back what is posted and exposed, at most `room`. `true`: nothing is left.
    pub(super) fn flush(&mut self, completions: &mut VecDeque<Completion>, room: usize) -> bool {
        let end = completions.len() + room;
        let flushed = Err(WorkError::Flushed);
        while completions.len() < end {
            if let Some((id, buf)) = self.receives.pop_front() {
                self.scatter.iter_mut().for_each(|scatter| scatter.discard());
                let completed = Completed::Receive { buf, invalidated: None, exposed: None };
                completions.push_back(self.completion(id, completed, flushed));
                continue;
            }
            match self.pending.pop_front() {
                Some(Pending::Send(SendRequest { id, buf, .. })) => {
                    self.outstanding -= 1;
                    completions.push_back(self.completion(id, Completed::Send(buf), flushed));
                    continue;
                }
                Some(Pending::Complete(completion)) => {
                    self.outstanding -= 1;
                    // Nothing succeeds behind a Send that did not.
                    let result = completion.result.and(flushed);
                    completions.push_back(Completion { result, ..completion });
                    continue;
                }
                Some(Pending::Bind { .. }) => continue,
                None => {}
            }
            // A local fence of everything: no need to wait for the peer, unless it is in the middle of an access.
            if let Some((handle, next)) = self.exposures.next_live(self.flushed) {
                self.flushed = next;
                if let Some(Fence::Done(exposed)) = self.fence(handle, 0) {
                    let completed = Completed::Fence { handle, exposed };
                    completions.push_back(self.completion(0, completed, flushed));
                }
                continue;
            }
            let Some(link) = &self.link else { break };
            let Some((handle, id, exposed)) = self.exposures.poll(&link.theirs, self.peer_gone) else {
                break;
            };
            completions.push_back(self.completion(id, Completed::Fence { handle, exposed }, flushed));
        }
        self.receives.is_empty() && self.pending.is_empty() && self.exposures.is_empty()
    }

    /// Says that we sleep, or that we do not.
    pub(super) fn set_sleeping(&mut self, sleeping: bool) {
        if let Some(link) = &mut self.link {
            if sleeping {
                link.sleeps = order::next_sleep(link.sleeps);
                order::sleep_announce(link.ours.sleeping(), link.sleeps);
            } else {
                link.ours.sleeping().set(0);
            }
        }
    }

    /// Whether `poll` would find work here. After [`QueuePair::set_sleeping`] and a fence.
    pub(super) fn has_work(&mut self) -> bool {
        match self.phase {
            Phase::Open => {}
            // Its socket tells when there is news; without one, `poll_timeout` does.
            Phase::Dialing | Phase::Prepared => return false,
            Phase::Closing(_) if self.waits_for_fences() => {}
            Phase::Announced | Phase::Draining(_) | Phase::Closing(_) => return true,
        }
        let Some(link) = &mut self.link else { return false };
        // A peer rings its doorbell behind its accesses, and wakes us.
        if self.exposures.has_done(&link.theirs, self.peer_gone) {
            return true;
        }
        if matches!(self.phase, Phase::Closing(_)) {
            return false;
        }
        if !matches!(link.consumer.peek(), Ok(None)) && !self.receives.is_empty() {
            return true;
        }
        // Room for what waits for it; the peer wakes us when it makes some.
        match self.pending.front() {
            Some(Pending::Send(request)) => {
                link.producer.fits(request.buf.len(), link.theirs.head()) != Ok(false)
            }
            Some(Pending::Bind { .. }) => link.producer.fits(Bind::LEN, link.theirs.head()) != Ok(false),
            Some(Pending::Complete(_)) => true,
            None => false,
        }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
impl QueuePair {
    /// Receives that wait for a message.
    pub(super) fn receives_posted(&self) -> usize {
        self.receives.len()
    }

    /// A Write that does not end the connection when it is refused.
    pub(super) fn try_write(&mut self, source: &stag_memory::Shared, at: RemoteSegment) -> bool {
        let Some(link) = self.open() else { return false };
        let Ok(to) = link.access(at, source.len(), Access::Write) else { return false };
        // SAFETY: as in `post_write`.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), to, source.len()) };
        true
    }
}

impl Drop for QueuePair {
    /// A provider that is dropped with open queue pairs: the peer hears of it, and memory that it may be
    /// writing to at this moment is given up rather than given back.
    fn drop(&mut self) {
        if !matches!(self.phase, Phase::Closing(_)) {
            self.close(DisconnectReason::Local);
        }
        let mut from = 0;
        while let Some((handle, next)) = self.exposures.next_live(from) {
            from = next;
            drop(self.fence(handle, 0));
        }
        if let Some(link) = &self.link {
            while let Some(done) = self.exposures.poll(&link.theirs, self.peer_gone) {
                drop(done);
            }
        }
        self.exposures.forget_waiting();
    }
}

/// Copies `source` to the peer's memory.
#[inline(always)]
pub(super) fn write(link: &mut Link, source: &Shared, target: RemoteSegment) -> Result<(), WorkError> {
    let to = link.access(target, source.len(), Access::Write)?;
    // SAFETY: `source` is readable for its length. `to` is mapped and writable for it (`Binds`), and the peer keeps off
    // while the span lasts (`order`). They do not overlap: `source` is memory that is not written, and what is exposed
    // for writing is a buffer with one owner.
    unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), to, source.len()) };
    Ok(())
}

/// Copies as many octets of the peer's memory as `target` has into it.
#[inline(always)]
pub(super) fn fill(link: &mut Link, target: &mut Buf, source: RemoteSegment) -> Result<(), WorkError> {
    let len = target.len();
    let from = link.access(source, len, Access::Read)?;
    // SAFETY: `from` is mapped for `len` bytes (`Binds`), and the peer keeps off unless it fences the exposure, which is checked
    // next. The target is as long, and ours alone, so they do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), target.as_mut_ptr(), len) };
    link.check_read(source.handle)
}

/// Whether `parts` may be read into `target`.
#[inline(always)]
pub(super) fn is_within(parts: &[ReadPart], target: &Buf) -> bool {
    let room = target.len() as u64;
    let fits = |part: &ReadPart| u64::from(part.at) + u64::from(part.len) <= room;
    parts.len() <= crate::READ_PARTS_MAX && parts.iter().all(fits)
}

/// Copies `parts` of the peer's memory into `target`.
#[inline(always)]
pub(super) fn read(link: &mut Link, target: &mut Buf, parts: &[ReadPart]) -> Result<(), WorkError> {
    assert!(is_within(parts, target), "the parts are checked before");
    parts.iter().try_for_each(|part| {
        let from = link.access(part.source, part.len as usize, Access::Read)?;
        // SAFETY: `from` is mapped for `len` bytes (`Binds`), and the peer keeps off unless it fences the exposure,
        // which is checked next. `at + len` is at most the target's length, as checked above, and the target is ours
        // alone, so they do not overlap.
        unsafe {
            let to = target.as_mut_ptr().add(part.at as usize);
            std::ptr::copy_nonoverlapping(from.cast_const(), to, part.len as usize);
        }
        link.check_read(part.source.handle)
    })
}
