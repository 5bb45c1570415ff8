//! One queue pair: its socket, its posted work, and its outcome.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::net::SocketAddr;
use std::time::Duration;

use stag_memory::Buf;
use stag_wire::{ddp, mpa};

use super::counters::IwarpCounters;
use super::fault::Fault;
use super::handshake::{Dial, Offer};
use super::pace::Pace;
use super::rx::Rx;
use super::send::{Flushed, Payload, Scratch, Tx, Work};
use super::socket::Socket;
use super::stags::Stags;
use super::terms::Terms;
use crate::scatter::{ReceiveTargets, ScatterQueue, ScatteredReceive};
use crate::slots::Numbered;
use crate::{
    Completed, Completion, DisconnectReason, Exposed, Handle, PostError, QueuePairCapacity, QueuePairId,
    ReadPart, ReadRequest, Refused, RemoteSegment, SendRequest, WorkError, WriteRequest,
};

/// Octets of the start of an FPDU that is kept until the rest is here, at most.
const HELD_LEN_MAX: usize = 20 * 1024;

/// What a queue pair waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Connecting side: for TCP, then for the reply.
    Dialing,
    /// Accepting side: for the user's `accept`.
    Prepared,
    /// For the user to take `Event::Established`.
    Announced,
    /// For work.
    Open,
    /// For everything to be given back.
    Closing(DisconnectReason),
}

/// A peer that we connected to, and that has not sent anything.
pub(super) struct Nudging {
    pub(super) index: u32,
    pub(super) generation: u32,
    pub(super) at: Duration,
    pub(super) count: u32,
}

/// Where completions go: to the user who is polling, or to wait for the next poll.
pub(super) struct Sink<'a> {
    out: Option<&'a mut VecDeque<Completion>>,
    /// Completions and messages that the user takes: `out` is as long at most, less what was taken in place.
    end: usize,
    /// Messages that the user took where they arrived.
    pub(super) taken: usize,
    /// The next message may be shown: none of this queue pair has become a completion.
    pub(super) shows: bool,
    local: &'a mut VecDeque<Completion>,
}

impl<'a> Sink<'a> {
    /// To the user who is polling; `taken`: messages that the user took in this poll.
    #[inline(always)]
    pub(super) fn user(
        out: &'a mut VecDeque<Completion>,
        end: usize,
        taken: usize,
        local: &'a mut VecDeque<Completion>,
    ) -> Sink<'a> {
        Sink { out: Some(out), end, taken, shows: true, local }
    }

    /// To wait for the next poll.
    #[inline(always)]
    pub(super) fn waiting(local: &'a mut VecDeque<Completion>) -> Sink<'a> {
        Sink { out: None, end: 0, taken: 0, shows: false, local }
    }

    /// Whether the user, who is polling, takes another completion or message.
    #[inline(always)]
    fn has_room(&self) -> bool {
        // In order: nothing overtakes what waits.
        self.local.is_empty() && self.out.as_ref().is_some_and(|out| out.len() + self.taken < self.end)
    }

    /// Whether the user may be shown a message.
    #[inline(always)]
    pub(super) fn may_show(&self) -> bool {
        self.shows && (self.out.is_none() || self.has_room())
    }

    /// Gives a completion to the user. `true`: it is harvested; `false`: it will be.
    #[inline(always)]
    pub(super) fn push(&mut self, completion: Completion) -> bool {
        if self.has_room()
            && let Some(out) = &mut self.out
        {
            out.push_back(completion);
            return true;
        }
        self.local.push_back(completion);
        false
    }
}

/// A queue pair.
pub(super) struct QueuePair {
    pub(super) id: QueuePairId,
    pub(super) phase: Phase,
    pub(super) capacity: QueuePairCapacity,
    pub(super) socket: Option<Socket>,
    pub(super) peer: SocketAddr,
    pub(super) dial: Option<Box<Dial>>,
    pub(super) offer: Option<Offer>,
    pub(super) rx: Rx,
    pub(super) tx: Tx,
    pub(super) pace: Pace,
    pub(super) stags: Stags,
    pub(super) receives: VecDeque<(u64, Buf)>,
    /// Where all Receives are scattered, their targets.
    pub(super) scatter: Option<Box<ScatterQueue>>,
    /// Requests whose completion the user has not got, and unsignaled ones that are not done.
    pub(super) outstanding: u32,
    /// In the provider's list of queue pairs that have something to send.
    pub(super) is_dirty: bool,
    /// In the provider's list of queue pairs whose socket was full.
    pub(super) is_blocked: bool,
    /// Its socket is in the epoll.
    pub(super) is_watched: bool,
    /// Its socket is in the epoll for room to send.
    pub(super) is_watched_to_send: bool,
    /// It is read in every pass.
    pub(super) is_hot: bool,
    /// Octets came since the last look.
    pub(super) is_heard: bool,
    /// Looks in a row that found nothing of one that is read in every pass, or something of another.
    pub(super) looks: u8,
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
        peer: SocketAddr,
    ) -> QueuePair {
        QueuePair {
            id,
            phase,
            capacity,
            socket: None,
            peer,
            dial: None,
            offer: None,
            rx: Rx::new(),
            tx: Tx::new(&capacity),
            pace: Pace::default(),
            stags: Stags::new(capacity.exposures, RandomState::new()),
            receives: VecDeque::with_capacity(capacity.receives as usize),
            scatter: None,
            outstanding: 0,
            is_dirty: false,
            is_blocked: false,
            is_watched: false,
            is_watched_to_send: false,
            is_hot: false,
            is_heard: false,
            looks: 0,
        }
    }

    /// Octets of heap of its queues and tables, all full.
    pub(super) fn footprint(capacity: &QueuePairCapacity) -> usize {
        capacity.receives as usize * size_of::<(u64, Buf)>()
            + ScatterQueue::footprint(capacity)
            + if capacity.receive_targets > 0 { HELD_LEN_MAX } else { 0 }
            + Tx::footprint(capacity)
            + Stags::footprint(capacity.exposures)
    }

    /// Completions that it may have waiting at once.
    pub(super) fn completions(capacity: &QueuePairCapacity) -> u64 {
        u64::from(capacity.receives) + u64::from(capacity.sends) + u64::from(capacity.exposures)
    }

    /// Both sides know that they are connected, and on which terms.
    pub(super) fn agree(&mut self, terms: &Terms) {
        self.rx.agree(terms);
        self.tx.agree(terms, self.capacity.send_len_max);
        self.phase = Phase::Announced;
    }

    #[inline(always)]
    fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    pub(super) fn post_receive(&mut self, id: u64, buf: Buf) -> Result<(), Refused<Buf>> {
        let error = if matches!(self.phase, Phase::Closing(_)) {
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

    /// Posts a Receive in several buffers.
    #[cold]
    pub(super) fn post_scattered(
        &mut self,
        request: ScatteredReceive,
    ) -> Result<(), Refused<ScatteredReceive>> {
        if matches!(self.phase, Phase::Closing(_)) {
            return Err(Refused { request, error: PostError::NotConnected });
        }
        if self.rx.held.capacity() == 0 {
            let len = mpa::fpdu_len(ddp::UNTAGGED_LEN + request.head.len() + request.targets.capacity());
            self.rx.held.reserve_exact(len.min(HELD_LEN_MAX));
        }
        ScatterQueue::post(&mut self.scatter, &mut self.receives, &self.capacity, request)
    }

    /// The targets of the oldest message that was not asked about.
    pub(super) fn take_targets(&mut self) -> Option<Box<ReceiveTargets>> {
        self.scatter.as_mut()?.take()
    }

    /// Whether there are targets of a message that was not asked about.
    pub(super) fn has_targets(&self) -> bool {
        self.scatter.as_ref().is_some_and(|scatter| scatter.has_done())
    }

    /// Why one more request cannot be posted.
    #[inline(always)]
    fn refusal(&self) -> Option<PostError> {
        if !self.is_open() {
            Some(PostError::NotConnected)
        } else if self.outstanding >= self.capacity.sends {
            Some(PostError::Full)
        } else {
            None
        }
    }

    #[inline]
    pub(super) fn post_send(&mut self, request: SendRequest) -> Result<(), Refused<SendRequest>> {
        if let Some(error) = self.refusal() {
            return Err(Refused { request, error });
        }
        if request.buf.len() > self.capacity.send_len_max as usize {
            return Err(Refused { request, error: PostError::TooLong });
        }
        let SendRequest { id, buf, invalidate, signaled } = request;
        self.outstanding += 1;
        self.tx.post(Work::new(id, signaled, Payload::Send { buf, invalidate }));
        Ok(())
    }

    /// Where a message without chunks can be built, if nothing stands in its way.
    #[inline(always)]
    pub(super) fn plain_space(&mut self) -> Option<&mut [u8]> {
        if self.is_open() { self.tx.plain_space() } else { None }
    }

    /// Exposes memory, and sends a message that names it, built where it leaves, if nothing stands in its way. `false`: nothing happened.
    #[inline]
    pub(super) fn build_exposing(
        &mut self,
        exposed: &mut Option<Exposed>,
        build: impl FnOnce(&mut [u8], RemoteSegment) -> Option<usize>,
    ) -> bool {
        if !self.is_open() || self.stags.is_full() {
            return false;
        }
        let Some(space) = self.tx.whole_space() else { return false };
        let Some(memory) = exposed.take() else { return false };
        let handle = self.stags.insert(memory);
        let Some(len) = build(space, RemoteSegment { handle, offset: 0 }) else {
            *exposed = self.stags.fence(handle);
            return false;
        };
        self.tx.send_exposing(len);
        true
    }

    /// Where a message with memory behind it can be built, if nothing stands in its way.
    #[inline]
    pub(super) fn gather_space(&mut self) -> Option<&mut [u8]> {
        if self.is_open() && self.scatter.is_some() { self.tx.gather_space() } else { None }
    }

    #[inline]
    pub(super) fn post_write(&mut self, request: WriteRequest) -> Result<(), Refused<WriteRequest>> {
        if let Some(error) = self.refusal() {
            return Err(Refused { request, error });
        }
        let WriteRequest { id, source, target, signaled } = request;
        self.outstanding += 1;
        self.tx.post(Work::new(id, signaled, Payload::Write { source, target }));
        Ok(())
    }

    #[inline]
    pub(super) fn post_read(
        &mut self,
        request: ReadRequest,
        parts: &[ReadPart],
    ) -> Result<(), Refused<ReadRequest>> {
        if let Some(error) = self.refusal() {
            return Err(Refused { request, error });
        }
        let room = request.target.len() as u64;
        let fits = |part: &ReadPart| u64::from(part.at) + u64::from(part.len) <= room;
        // A peer with an IRD of 0 accepts no Reads.
        if parts.len() > crate::READ_PARTS_MAX || !parts.iter().all(fits) || !self.tx.may_read() {
            return Err(Refused { request, error: PostError::TooLong });
        }
        if !self.tx.has_room_for_parts(parts.len()) {
            return Err(Refused { request, error: PostError::Full });
        }
        let ReadRequest { id, target } = request;
        self.outstanding += 1;
        self.tx.post_read(id, target, parts);
        Ok(())
    }

    #[inline]
    pub(super) fn expose(&mut self, exposed: Exposed) -> Result<RemoteSegment, Refused<Exposed>> {
        if !self.is_open() {
            return Err(Refused { request: exposed, error: PostError::NotConnected });
        }
        if self.stags.is_full() {
            return Err(Refused { request: exposed, error: PostError::Full });
        }
        Ok(RemoteSegment { handle: self.stags.insert(exposed), offset: 0 })
    }

    /// Sends what there is before the end of the pass, if the socket was not full. `true`: some request may be done. Whatever
    /// else comes of it is found out at the doorbell.
    #[inline]
    pub(super) fn flush_early(&mut self, scratch: &mut Scratch, counters: &mut IwarpCounters) -> bool {
        self.pace.note_led();
        let Some(socket) = &self.socket else { return false };
        if self.is_blocked || !matches!(self.phase, Phase::Open) {
            return false;
        }
        self.tx.flush(socket, scratch, counters) == Flushed::All
    }

    /// Hands out what is done, from the oldest request on, as far as it goes without a gap.
    #[inline]
    pub(super) fn complete(&mut self, sink: &mut Sink<'_>) {
        while let Some(work) = self.tx.take_done() {
            if !work.signaled {
                self.outstanding -= 1;
                continue;
            }
            let completion =
                Completion { queue_pair: self.id, id: work.id, completed: work.completed(), result: Ok(()) };
            if sink.push(completion) {
                self.outstanding -= 1;
            }
        }
    }

    /// The user got the completion of a Send, Write or Read that had waited.
    #[inline]
    pub(super) fn harvested(&mut self) {
        // What completed with an error counts no more.
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// Gives back all that is posted and exposed. `fault`: what the peer did, if it was its fault; `refused`: which of our requests the
    /// peer refused, with the error. There is room for all completions: that is what admission is for.
    #[cold]
    pub(super) fn flush(
        &mut self,
        sink: &mut Sink<'_>,
        fault: Option<Fault>,
        refused: Option<(u64, WorkError)>,
    ) {
        let queue_pair = self.id;
        let flushed = Err(WorkError::Flushed);
        let mut first = fault.map(Fault::receive_error);
        while let Some((id, buf)) = self.receives.pop_front() {
            if let Some(scatter) = &mut self.scatter {
                scatter.discard();
            }
            let completed = Completed::Receive { buf, invalidated: None, exposed: None };
            let result = first.take().map_or(flushed, Err);
            sink.push(Completion { queue_pair, id, completed, result });
        }
        self.tx.forget_emitted();
        while let Some((sequence, work)) = self.tx.take_any() {
            let result = match refused {
                Some((which, error)) if which == sequence => Err(error),
                _ => flushed,
            };
            let id = work.id;
            sink.push(Completion { queue_pair, id, completed: work.completed(), result });
        }
        self.outstanding = 0;
        while let Some((handle, exposed)) = self.stags.take_any() {
            let completed = Completed::Fence { handle, exposed };
            sink.push(Completion { queue_pair, id: 0, completed, result: flushed });
        }
    }

    pub(super) fn fence(&mut self, handle: Handle) -> Option<Exposed> {
        if matches!(self.phase, Phase::Closing(_)) { None } else { self.stags.fence(handle) }
    }
}
