//! The send queue: the user's requests, those that the device has, and those that it completed.
//!
//! The user's requests wait here until the device has room. One request may be many work requests (the parts of a Read); a
//! bind, an invalidation or a probe is one that the user does not see; and the peer's resources limit the RDMA Reads under
//! way. Order is kept, so a Read that has to wait delays the requests behind it.
//!
//! Adjacent messages that were built in place are one request: a run. The device takes messages from its front while others
//! are added at its end.
//!
//! # Signalling
//!
//! The device reports only the work requests that ask for it, and one report covers all before it. The user's signaled
//! requests ask; so does every `interval`-th, so that the queue always drains by itself; and so does each request that siw
//! would otherwise send out of memory that is the user's again (`Profile::lent_from`).
//!
//! A report does not cover Reads before it, though it should: siw reports a Send as soon as TCP has it, while the answer to a
//! Read before it is still on its way. So Reads always ask, and are done when their own report comes.

use std::collections::VecDeque;
use std::io;

use stag_memory::{Buf, Shared};
use stag_rdma_core_sys as sys;

use super::domain::Domain;
use super::exposure::{Exposures, remote_access};
use super::objects::MemoryRegion;
use super::plain::PlainBuffers;
use super::work::{Batch, Send, WorkId};
use crate::{Completed, QueuePairCapacity, QueuePairId, READ_PARTS_MAX, ReadPart};

/// Room for the parts of Reads beyond the first: more wait for their turn.
const PARTS_ROOM: u32 = 32;
/// Parts of Reads that may be posted and not be handed to the device, beyond one for each request.
const PARTS_EXTRA: usize = 4 * READ_PARTS_MAX;
/// Work requests of Reads that the device has at once: as many as a peer can have resources for.
const READS_MAX: usize = u8::MAX as usize;
/// Unsignaled work requests in a row at most.
const INTERVAL_MAX: u32 = 16;

/// Work requests of the send queue of such a queue pair.
pub(super) fn depth(capacity: &QueuePairCapacity) -> u64 {
    // A bind and an invalidation for each exposure, and the binds of an interval that are done unnoticed.
    u64::from(capacity.sends)
        + 2 * u64::from(capacity.exposures)
        + u64::from(INTERVAL_MAX)
        + u64::from(PARTS_ROOM)
}

/// Parts of Reads that may be posted at once.
fn parts_max(capacity: &QueuePairCapacity) -> usize {
    capacity.sends as usize + PARTS_EXTRA
}

/// A request in the send queue.
pub(super) enum Work {
    Send {
        buf: Buf,
        arena: usize,
        invalidate: Option<u32>,
    },
    /// Messages that were built in place, one behind the other in `SendQueue::plain`: how many of them the device does not
    /// have yet. The others are `Op::begin` to `Op::end`.
    Plain {
        waiting: u32,
    },
    Write {
        source: Shared,
        arena: usize,
        offset: u64,
        rkey: u32,
    },
    /// The parts that are left are in `SendQueue::parts`.
    Read {
        sink: Option<MemoryRegion>,
        target: Buf,
        arena: usize,
        parts: u16,
    },
    Bind {
        slot: u16,
        arena: usize,
    },
    Invalidate {
        slot: u16,
    },
    /// A Write of nothing, which only an answer of the peer's device completes.
    Probe,
}

impl Work {
    /// Whether it is not the user's.
    #[inline]
    fn is_hidden(&self) -> bool {
        matches!(self, Work::Bind { .. } | Work::Invalidate { .. } | Work::Probe)
    }
}

impl Work {
    /// Whether it has nothing to give back, so that it never completes.
    #[inline]
    fn is_silent(&self) -> bool {
        self.is_hidden() || matches!(self, Work::Plain { .. })
    }
}

struct Op {
    id: u64,
    signaled: bool,
    /// Counts work requests: its first, once the device has that; the one behind its last, once it has them all.
    begin: Option<u32>,
    end: u32,
    work: Work,
}

/// An entry taken off the send queue.
pub(super) enum Done {
    /// A request of the user's.
    Completed { id: u64, completed: Completed },
    /// An exposure's invalidation.
    Invalidated { slot: u16 },
}

/// See the module.
pub(super) struct SendQueue {
    ops: VecDeque<Op>,
    /// How many of `ops`, from the front, the device has.
    handed: usize,
    /// Parts of Reads that the device does not have yet, in order.
    parts: VecDeque<ReadPart>,
    /// The work requests of Reads that the device has not done, by count.
    reads: VecDeque<u32>,
    /// Counts work requests: the next, and the first that is not known to be done.
    next: u32,
    done: u32,
    /// The count behind the last that asked for a completion.
    asked: u32,
    /// Work requests since then, and the limit.
    since: u32,
    interval: u32,
    /// Octets from which on a request asks in any case.
    lent_from: u32,
    depth: u32,
    read_depth: u32,
    has_probe: bool,
    /// The user's requests, until they are harvested, and the limit.
    used: u32,
    limit: u32,
    /// Where messages without chunks are built, if they can be.
    plain: Option<PlainBuffers>,
}

impl SendQueue {
    pub(super) fn new(capacity: &QueuePairCapacity) -> SendQueue {
        let depth = depth(capacity) as u32;
        SendQueue {
            ops: VecDeque::with_capacity(depth as usize),
            handed: 0,
            parts: VecDeque::with_capacity(parts_max(capacity)),
            reads: VecDeque::with_capacity(READS_MAX),
            next: 0,
            done: 0,
            asked: 0,
            since: 0,
            interval: (capacity.sends / 4).clamp(1, INTERVAL_MAX),
            lent_from: u32::MAX,
            depth,
            read_depth: 1,
            has_probe: false,
            used: 0,
            limit: capacity.sends,
            plain: None,
        }
    }

    /// Octets of heap of its queues, all full.
    pub(super) fn footprint(capacity: &QueuePairCapacity) -> usize {
        depth(capacity) as usize * size_of::<Op>()
            + parts_max(capacity) * size_of::<ReadPart>()
            + READS_MAX * size_of::<u32>()
    }

    /// Whether `count` more parts of Reads may be posted.
    #[inline]
    pub(super) fn has_room_for_parts(&self, count: usize) -> bool {
        self.parts.len() + count <= self.parts.capacity()
    }

    /// Says how many RDMA Reads the peer has resources for; at least one, because some do not say.
    pub(super) fn set_read_depth(&mut self, depth: u8) {
        self.read_depth = u32::from(depth.max(1));
    }

    /// Says from how many octets on a request asks for a completion in any case.
    pub(super) fn set_lent_from(&mut self, len: u32) {
        self.lent_from = len;
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.used >= self.limit
    }

    /// The user has seen a completion, or an unsignaled request is done.
    #[inline]
    pub(super) fn harvested(&mut self) {
        self.used = self.used.saturating_sub(1);
    }

    /// Takes a request of the user's, for which there is room.
    #[inline]
    pub(super) fn push(&mut self, id: u64, signaled: bool, work: Work) {
        self.used += 1;
        self.ops.push_back(Op { id, signaled, begin: None, end: 0, work });
    }

    /// Says where messages without chunks are built from now on.
    pub(super) fn set_plain(&mut self, plain: Option<PlainBuffers>) {
        self.plain = plain;
    }

    /// Where the Payload stream of a message without chunks can be built, if there is room now.
    #[inline]
    pub(super) fn plain_space(&mut self) -> Option<&mut [u8]> {
        if self.is_full() { None } else { self.plain.as_mut()?.space() }
    }

    /// Takes the message that was built in the space given last.
    #[inline]
    pub(super) fn push_plain(&mut self, credits: u32, len: usize) {
        self.plain.as_mut().expect("it gave the space just before").take(credits, len);
        if let Some(Op { work: Work::Plain { waiting }, .. }) = self.ops.back_mut() {
            self.used += 1;
            // It was the last, and the device had all of it.
            self.handed -= usize::from(*waiting == 0);
            *waiting += 1;
        } else {
            self.push(0, false, Work::Plain { waiting: 1 });
        }
    }

    /// Takes a Read; parts of no octets are not asked for.
    #[inline]
    pub(super) fn push_read(
        &mut self,
        id: u64,
        (target, arena): (Buf, usize),
        sink: Option<MemoryRegion>,
        parts: &[ReadPart],
    ) {
        let before = self.parts.len();
        self.parts.extend(parts.iter().filter(|part| part.len > 0));
        let parts = (self.parts.len() - before) as u16;
        self.push(id, true, Work::Read { sink, target, arena, parts });
    }

    /// Takes what only an answer of the peer completes, if there is none of that already. It finds room where parts of
    /// Reads would.
    pub(super) fn push_probe(&mut self) -> bool {
        let is_new = !std::mem::replace(&mut self.has_probe, true);
        if is_new {
            self.push_hidden(Work::Probe);
        }
        is_new
    }

    /// Takes a bind or an invalidation: they have room of their own.
    #[inline]
    pub(super) fn push_hidden(&mut self, work: Work) {
        let signaled = matches!(work, Work::Invalidate { .. } | Work::Probe);
        self.ops.push_back(Op { id: 0, signaled, begin: None, end: 0, work });
    }

    /// Whether no more completions will arrive: finished unsignaled requests are never reported, even on flush.
    pub(super) fn is_idle(&self) -> bool {
        !is_before(self.done, self.asked) && self.reads.is_empty()
    }

    /// Whether there is something that the device does not have yet.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.handed < self.ops.len()
    }

    /// Fills the batch with what the device has room for, up to the next run of messages that were built in place.
    pub(super) fn fill(
        &mut self,
        batch: &mut Batch,
        id: QueuePairId,
        domain: &Domain,
        exposures: &Exposures,
        inline_len: u32,
    ) {
        while batch.has_room()
            && self.next.wrapping_sub(self.done) < self.depth
            && let Some(op) = self.ops.get_mut(self.handed)
        {
            if let Work::Plain { .. } = op.work {
                return;
            }
            let mut is_last = true;
            let mut is_read = false;
            let mut is_lent = false;
            let send = match &mut op.work {
                Work::Send { buf, arena, invalidate } => {
                    let len = buf.len() as u32;
                    is_lent = len >= self.lent_from;
                    let send = match *invalidate {
                        None => batch.push_send(sys::IBV_WR_SEND),
                        Some(rkey) => batch.push_send(sys::IBV_WR_SEND_WITH_INV).invalidate(rkey),
                    };
                    let flags = if len <= inline_len { sys::IBV_SEND_INLINE } else { 0 };
                    send.flags(flags).memory(buf.as_ptr(), len, domain.lkey(*arena))
                }
                Work::Plain { .. } => unreachable!("`post_plain` posts it"),
                Work::Write { source, arena, offset, rkey } => {
                    let len = source.len() as u32;
                    is_lent = len >= self.lent_from;
                    batch
                        .push_send(sys::IBV_WR_RDMA_WRITE)
                        .memory(source.as_ptr(), len, domain.lkey(*arena))
                        .remote(*offset, *rkey)
                }
                // Nothing to read: a Write of nothing keeps its place in the order of completions.
                Work::Read { parts: 0, .. } | Work::Probe => {
                    batch.push_send(sys::IBV_WR_RDMA_WRITE).remote(0, 0)
                }
                Work::Read { sink, target, arena, parts } => {
                    if self.reads.len() as u32 >= self.read_depth {
                        return;
                    }
                    let Some(part) = self.parts.pop_front() else { return };
                    *parts -= 1;
                    is_last = *parts == 0;
                    is_read = true;
                    let lkey = sink.as_ref().map_or_else(|| domain.lkey(*arena), MemoryRegion::lkey);
                    let base = target.as_ptr().wrapping_add(part.at as usize);
                    batch
                        .push_send(sys::IBV_WR_RDMA_READ)
                        .memory(base, part.len, lkey)
                        .remote(part.source.offset, part.source.handle.0)
                }
                Work::Bind { slot, arena } => {
                    batch.note_bind(*slot);
                    bind(batch.push_send(sys::IBV_WR_BIND_MW), *slot, domain.region(*arena), exposures)
                }
                Work::Invalidate { slot } => {
                    batch.push_send(sys::IBV_WR_LOCAL_INV).invalidate(exposures.handle(*slot).0)
                }
            };
            self.since += 1;
            // A Read that fills the peer's resources is waited for.
            let fills = is_read && self.reads.len() as u32 + 1 >= self.read_depth.div_ceil(2);
            let mut flags = 0;
            if (op.signaled && is_last) || fills || is_lent || self.since >= self.interval {
                flags = sys::IBV_SEND_SIGNALED;
                (self.since, self.asked) = (0, self.next.wrapping_add(1));
            }
            let (slot, generation) = (id.index, id.generation as u16);
            send.flags(flags).id(WorkId { is_receive: false, slot, generation, sequence: self.next });
            if is_read {
                self.reads.push_back(self.next);
            }
            op.begin.get_or_insert(self.next);
            self.next = self.next.wrapping_add(1);
            if is_last {
                op.end = self.next;
                self.handed += 1;
            }
        }
    }

    /// Posts messages of a run that were built in place, if they are next in the queue: as many as there is room for.
    /// `None`: something else is next.
    ///
    /// # Safety
    ///
    /// `queue_pair` is the one that the memory of these messages was made for, and it exists.
    #[inline]
    pub(super) unsafe fn post_plain(
        &mut self,
        queue_pair: *mut sys::ibv_qp,
        inline_len: u32,
    ) -> Option<io::Result<u32>> {
        let op = self.ops.get_mut(self.handed)?;
        let Work::Plain { waiting } = &mut op.work else { return None };
        let plain = self.plain.as_mut().expect("a run of messages has the memory that they were built in");
        let count = (*waiting).min(self.depth - self.next.wrapping_sub(self.done));
        if count == 0 {
            return Some(Ok(0));
        }
        let first = self.next;
        op.begin.get_or_insert(first);
        let (since, asked, interval) = (&mut self.since, &mut self.asked, self.interval);
        let asks = |sequence: u32| {
            *since += 1;
            let asks = *since >= interval;
            if asks {
                (*since, *asked) = (0, sequence.wrapping_add(1));
            }
            asks
        };
        // SAFETY: the caller's word.
        let posted = unsafe { plain.post(queue_pair, count, first, inline_len, asks) };
        self.next = first.wrapping_add(count);
        op.end = self.next;
        *waiting -= count;
        self.handed += usize::from(*waiting == 0);
        Some(posted.map(|()| count))
    }

    /// The first request is a run of messages that were built in place: forgets those before `done`. `true`: these were all.
    #[inline]
    fn retire_plain(&mut self, done: u32) -> bool {
        let Some(op) = self.ops.front_mut() else { return false };
        let (Work::Plain { waiting }, Some(begin)) = (&op.work, op.begin) else { return false };
        let done = if is_before(done, op.end) { done } else { op.end };
        if is_before(begin, done) {
            let count = done.wrapping_sub(begin);
            op.begin = Some(done);
            self.used = self.used.saturating_sub(count);
            self.plain.iter_mut().for_each(|plain| plain.give_back(count));
        }
        if *waiting > 0 || is_before(done, op.end) {
            return false;
        }
        self.ops.pop_front();
        self.handed -= 1;
        true
    }

    /// Notes that the device has done a work request, and so all before it. Then `take_done` has what it finished.
    #[inline]
    pub(super) fn note_done(&mut self, sequence: u32) {
        let done = sequence.wrapping_add(1);
        if is_before(self.done, done) && !is_before(self.next, done) {
            self.done = done;
        }
        // A Read is only believed to be done when it, or a Read behind it, says so itself.
        if let Some(at) = self.reads.iter().position(|&read| read == sequence) {
            self.reads.drain(..=at);
        }
    }

    /// The next request that is done without an error, in order. Unsignaled ones of the user's are done with here.
    #[inline]
    pub(super) fn take_done(&mut self) -> Option<Done> {
        loop {
            let first = self.ops.front()?;
            if let Work::Plain { .. } = first.work {
                if !self.retire_plain(self.done) {
                    return None;
                }
                continue;
            }
            if self.handed == 0 {
                return None;
            }
            let end = first.end;
            if is_before(self.done, end) || self.reads.front().is_some_and(|&read| is_before(read, end)) {
                return None;
            }
            let op = self.pop()?;
            match op.work {
                Work::Invalidate { slot } => return Some(Done::Invalidated { slot }),
                Work::Bind { .. } => {}
                Work::Probe => self.has_probe = false,
                _ if !op.signaled => self.harvested(),
                work => return completed(op.id, work),
            }
        }
    }

    /// A work request failed: gives the requests up to it that are still here, in order. What is done well was taken
    /// out by `take_done` before.
    pub(super) fn take_failed(&mut self, sequence: u32) -> Option<Done> {
        loop {
            let op = self.ops.front()?;
            if is_before(sequence, op.begin?) {
                return None;
            }
            if let Work::Plain { .. } = op.work {
                let behind = sequence.wrapping_add(1);
                let done = if is_before(behind, op.end) { behind } else { op.end };
                self.note_done(done.wrapping_sub(1));
                if !self.retire_plain(done) {
                    return None;
                }
                continue;
            }
            // A Read has one completion, however many of its parts fail. One that is handed over in part is the last
            // that is handed over at all.
            let end = if self.handed > 0 { op.end } else { self.next };
            let is_its = is_before(sequence, end);
            if !is_its && self.reads.front().is_some_and(|&read| is_before(read, end)) {
                // A Read that the device has not given up yet.
                return None;
            }
            self.note_done(end.wrapping_sub(1));
            self.reads.retain(|&read| !is_before(read, end));
            let op = self.pop()?;
            if !op.work.is_silent() {
                return completed(op.id, op.work);
            }
        }
    }

    /// The queue pair is gone: gives all that is left, in order. Exposures come back by themselves.
    pub(super) fn take_left(&mut self) -> Option<Done> {
        loop {
            let op = self.pop()?;
            if !op.work.is_silent() {
                return completed(op.id, op.work);
            }
        }
    }

    fn pop(&mut self) -> Option<Op> {
        let op = self.ops.pop_front()?;
        self.handed = self.handed.saturating_sub(1);
        if let Work::Read { parts, .. } = &op.work {
            self.parts.drain(..usize::from(*parts).min(self.parts.len()));
        }
        Some(op)
    }
}

/// Whether `a` comes before `b`, both counting around.
#[inline]
fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

fn completed(id: u64, work: Work) -> Option<Done> {
    let completed = match work {
        Work::Send { buf, .. } => Completed::Send(buf),
        Work::Write { source, .. } => Completed::Write(source),
        // The sink's registration ends before the buffer is anybody's.
        Work::Read { sink, target, .. } => {
            drop(sink);
            Completed::Read(target)
        }
        Work::Plain { .. } | Work::Bind { .. } | Work::Invalidate { .. } | Work::Probe => return None,
    };
    Some(Done::Completed { id, completed })
}

/// The bind of a slot's window to what is exposed in it.
fn bind<'a>(send: Send<'a>, slot: u16, region: *mut sys::ibv_mr, exposures: &Exposures) -> Send<'a> {
    let (base, len, is_written) = exposures.memory(slot).unwrap_or((std::ptr::null(), 0, false));
    let window = exposures.window(slot).map_or(std::ptr::null_mut(), |window| window.as_ptr());
    send.bind(sys::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
        mw: window,
        rkey: exposures.handle(slot).0,
        bind_info: sys::ibv_mw_bind_info {
            mr: region,
            addr: base as u64,
            length: len as u64,
            mw_access_flags: remote_access(is_written),
        },
    })
}
