//! Calls that outlive their connection: the parts of each that are kept, and how it is sent again.
//!
//! The stages are those of [`Slot`](crate::client::slot): `Interrupted`, `Unsent`, `Halfway` and `Withdrawing`.
//!
//! All memory of a Call is back when its connection has ended: it is exposed again, under new handles. Its xid and
//! its Payload are those of the first time, so that a server that remembers xids can tell that it is the same.

use std::time::Duration;

use arrayvec::ArrayVec;
use stag_fabric::{PostError, Provider, SendRequest};
use stag_memory::{Buf, Shared};
use stag_proto::parameters::Parameters;
use stag_proto::plan::{CallForm, Shape};
use stag_proto::requester::{self, EndedCall};

use crate::ConnectionId;
use crate::client::calling::{Calling, Positions};
use crate::client::making::{PlannedCall, Unsent};
use crate::client::offering::WriteCounts;
use crate::client::pulling::{PullTerms, resume_pulls};
use crate::client::slot::{CallMemory, Ending, Stage};
use crate::client::{CLIENT_SEGMENTS_MAX, CallError, Chunks, ReplyMode};
use crate::service::reply::LONG_REPLY_LEN_MAX;
use crate::state::Core;
use crate::version2::calling::end_version2;

/// What is kept of a Call to send it again.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Whether its user wants that.
    pub(crate) retransmit: bool,
    /// How often it was sent again, and when the last time.
    resends: u32,
    resent: Duration,
    /// The Payload, if it is not in `long`.
    payload: Vec<u8>,
    positions: Positions,
    reads: ArrayVec<(u8, Shared), CLIENT_SEGMENTS_MAX>,
    long: Option<Shared>,
    reply_payload_len_max: u32,
    reply_mode: ReplyMode,
}

impl Kept {
    /// Keeps a Call that is being made.
    pub(crate) fn keep(
        &mut self,
        payload: &[u8],
        positions: &[u32],
        chunks: &Chunks,
        long: Option<&Shared>,
        (reply_payload_len_max, reply_mode): (u32, ReplyMode),
        threshold: usize,
    ) {
        self.resends = 0;
        self.payload.clear();
        // Once, and for the longest that there can be: later Calls in this slot allocate nothing.
        self.payload.reserve_exact(threshold.max(payload.len()));
        self.payload.extend_from_slice(payload);
        self.positions = positions.iter().copied().collect();
        self.reads.clear();
        for (item, data) in chunks.read.iter() {
            self.reads.push((*item, data.clone()));
        }
        self.long = long.cloned();
        (self.reply_payload_len_max, self.reply_mode) = (reply_payload_len_max, reply_mode);
    }

    /// Lets go of all memory, before the Call is handed to its user.
    pub(crate) fn clear(&mut self) {
        self.retransmit = false;
        self.resends = 0;
        self.reads.clear();
        self.long = None;
    }
}

/// Memory that sending a Call again takes.
struct RetransmissionMemory {
    /// For its message.
    send: Buf,
    /// The Reply chunk, if it has one.
    reply: Option<Buf>,
}

impl Calling {
    /// The connection is gone, and all memory is back; there may be another. Calls that are kept wait for it, the
    /// others end.
    pub(crate) fn interrupt<P: Provider>(&mut self, core: &mut Core<P>) {
        end_version2(self);
        self.receives_posted = 0;
        self.unsent = 0;
        self.stop_pulling();
        let (slots, kept) = (&mut self.slots, &mut self.kept);
        let mut interrupted = 0;
        let mut over: Vec<requester::RequesterCallId> = Vec::new();
        self.requester.handle_interruption(|call, outcome| {
            let slot = &mut slots[call.index()];
            slot.reads.clear();
            let lost = matches!(outcome, EndedCall::NotSent | EndedCall::MaybeExecuted);
            let is_over =
                matches!(slot.stage(), Stage::Free | Stage::Ending(_) | Stage::Withdrawing(Some(_)));
            let has_memory = slot.written.iter().all(|part| part.buf.is_some());
            let retransmits = has_memory && kept.get(call.index()).is_some_and(|kept| kept.retransmit);
            if lost && retransmits && !is_over {
                slot.message = None;
                slot.enter(Stage::Interrupted);
                interrupted += 1;
                return true;
            }
            slot.end_disconnected(outcome);
            over.push(call);
            false
        });
        self.interrupted = interrupted;
        self.exposed = 0;
        for call in over {
            self.finish(core, call);
        }
    }

    /// There is a new connection, which speaks version 1.
    pub(crate) fn reconnected<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        parameters: Parameters,
        (pull_len_max, terms): (u32, PullTerms),
    ) {
        self.requester.handle_reconnect(parameters);
        self.pull_replies(pull_len_max, terms);
        self.heard = core.now;
        self.post_receives(core, id);
        self.resume(core, id);
    }

    /// Whether a Call was sent again and is not answered for too long.
    pub(crate) fn is_unanswered(&self, now: Duration) -> bool {
        let Some(backoff) = self.policy.reconnect else { return false };
        self.kept.iter().zip(&self.slots).any(|(kept, slot)| {
            let is_sent = kept.resends > 0 && matches!(slot.stage(), Stage::Sent | Stage::Ending(_));
            is_sent && now >= kept.resent.saturating_add(backoff.resend_after(kept.resends))
        })
    }

    /// Whether Calls wait to be sent again.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.interrupted + self.unsent + self.pulls_waiting > 0
    }

    /// Sends what waits, as far as credits and queues allow. Returns how many Calls left.
    #[cold]
    pub(crate) fn resume<P: Provider>(&mut self, core: &mut Core<P>, id: ConnectionId) -> usize {
        let mut count = 0;
        if let Some(version2) = &mut self.version2
            && !version2.post_outbox(core, id, &mut self.unsent)
        {
            return 0;
        }
        if self.pulls_waiting > 0 {
            count += resume_pulls(self, core, id);
        }
        for index in 0..self.slots.len() {
            if self.unsent == 0 {
                break;
            }
            let slot = &mut self.slots[index];
            if !matches!(slot.stage(), Stage::Unsent) {
                continue;
            }
            slot.enter(Stage::Sent);
            self.unsent -= 1;
            let Some(message) = slot.message.take() else {
                core.fault(id, "a Call waits for room, and has no message");
                continue;
            };
            if !self.post(core, id, index, message) {
                break;
            }
            count += 1;
        }
        while self.interrupted > 0 {
            let Some((index, call)) = self.next_interrupted() else {
                // Waiting Calls keep others from being begun: for ever, if there are none.
                core.fault(id, "interrupted Calls are counted that are not there");
                break;
            };
            if !self.retransmit(core, id, index, call) {
                break;
            }
            count += 1;
        }
        count
    }

    /// The oldest of those that were sent least: a new connection has one credit, and a Call that the server drops
    /// must not keep it from the others each time.
    fn next_interrupted(&self) -> Option<(usize, requester::RequesterCallId)> {
        let calls = self.kept.iter().zip(&self.slots).enumerate();
        let waiting = calls.filter(|(_, (_, slot))| matches!(slot.stage(), Stage::Interrupted));
        let oldest = waiting.map(|(index, (kept, slot))| (kept.resends, slot.started, index)).min();
        oldest.and_then(|(_, _, index)| Some((index, self.requester.call_at(index)?)))
    }

    /// Sends one Call again. `false`: not now.
    fn retransmit<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        index: usize,
        call: requester::RequesterCallId,
    ) -> bool {
        let replies = self.requester.window().in_flight() + 1;
        let has_receives = self.provide_receives(core, id, replies) && self.provide_receives_for(core, id, 1);
        if self.requester.window().available() == 0 || !has_receives {
            return false;
        }
        let (slot, kept) = (&self.slots[index], &self.kept[index]);
        let (mode, len_max) = (kept.reply_mode, kept.reply_payload_len_max);
        let leaves_reply = self.pulls.as_mut().is_some_and(|pulls| pulls.leave_reply(call, mode, len_max));
        let counts = WriteCounts::of(slot.written.iter().map(|part| part.chunk));
        let mut shape = Shape {
            // What went as a Long Call goes as one again: its Payload is there, in memory that can be exposed.
            payload_len: if kept.long.is_some() { u32::MAX } else { kept.payload.len() as u32 },
            prefer_long_call: kept.long.is_some(),
            read_segments: kept.reads.len() as u32,
            write_chunks: counts.as_slice(),
            reply_payload_len_max: if leaves_reply { 0 } else { len_max },
            long_call_segments: 1,
            reply_chunk_segments: 1,
        };
        let mut form = self.plan(&shape);
        // What went in several Sends fits what the peer receives, and not a buffer of ours: it goes as a Long Call.
        if form.as_ref().is_ok_and(|form| {
            !form.long && form.header_len as usize + kept.payload.len() > core.pools.messages.unit_len()
        }) {
            shape.payload_len = u32::MAX;
            form = self.plan(&shape);
        }
        let Ok(form) = form else {
            // The server came back with a smaller inline threshold. Whether the Call was executed is unknown.
            self.cancel(core, id, call, CallError::ConnectionLost);
            return true;
        };
        let regions = kept.reads.len() + slot.written.len();
        let regions = regions as u32 + u32::from(form.long) + u32::from(form.reply_chunk);
        if self.exposed + regions > self.exposures_max {
            return false;
        }
        let Some(memory) = self.memory_for(core, index, &form) else { return false };
        if !self.requester.resume(call) {
            core.fault(id, "an interrupted Call is not the Requester's, or its credit is gone");
            return false;
        }
        self.interrupted -= 1;
        core.statistics.calls_retransmitted += 1;
        self.slots[index].enter(Stage::Sent);
        let kept = &mut self.kept[index];
        kept.resends = kept.resends.saturating_add(1);
        kept.resent = core.now;
        self.expose_again(core, id, call, &form, memory, counts.as_slice())
    }

    /// The memory that sending again takes: the message, and a Reply chunk; in the slot, a Long Call's Payload.
    fn memory_for<P>(
        &mut self,
        core: &mut Core<P>,
        index: usize,
        form: &CallForm,
    ) -> Option<RetransmissionMemory> {
        let kept = &mut self.kept[index];
        let send = core.pools.messages.take()?;
        if form.long && kept.long.is_none() {
            let mut buf = core.pools.payload.take_len(kept.payload.len())?;
            buf.set_len(kept.payload.len());
            buf.copy_from_slice(&kept.payload);
            core.statistics.copied_bytes += kept.payload.len() as u64;
            kept.long = Some(buf.share());
        }
        let mut reply = None;
        if form.reply_chunk {
            let len = (kept.reply_payload_len_max as usize).min(LONG_REPLY_LEN_MAX);
            let old = self.slots[index].reply_chunk.take().and_then(|(_, buf)| buf);
            let mut buf = match old.filter(|buf| buf.capacity() >= len) {
                Some(buf) => buf,
                None => core.pools.payload.take_len(len)?,
            };
            buf.set_len(len);
            reply = Some(buf);
        }
        Some(RetransmissionMemory { send, reply })
    }

    /// Exposes a Call's memory anew, writes its header, and posts it. `false`: nothing more leaves now.
    fn expose_again<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        call: requester::RequesterCallId,
        form: &CallForm,
        memory: RetransmissionMemory,
        counts: &[u32],
    ) -> bool {
        let RetransmissionMemory { mut send, reply } = memory;
        let index = call.index();
        let (slot, kept) = (&mut self.slots[index], &self.kept[index]);
        let mut chunks = Chunks::default();
        chunks.read.extend(kept.reads.iter().cloned());
        for part in slot.written.drain(..) {
            let Some(mut buf) = part.buf else {
                core.fault(id, "memory is still exposed on a connection that is gone");
                continue;
            };
            buf.set_len(part.offered as usize);
            chunks.write.push((part.chunk, buf));
        }
        let long = if form.long { kept.long.clone() } else { None };
        let payload: &[u8] = if form.long { &[] } else { &kept.payload };
        let payload_len = payload.len();
        send.set_len(send.capacity());
        send[form.header_len as usize..][..payload_len].copy_from_slice(payload);
        let positions = kept.positions.clone();
        let memory = CallMemory { chunks: &mut chunks, positions: &positions, long, reply };
        match self.leave(core, id, call, PlannedCall { form, counts, memory, send, payload_len }) {
            Ok(()) => return true,
            Err(Unsent { error, message: Some(message) }) => {
                self.set_unsent(core, id, index, error, message);
            }
            Err(Unsent { error: PostError::NotConnected, message: None }) => {
                self.slots[index].enter(Stage::Halfway);
            }
            Err(Unsent { message: None, .. }) => {
                // What was exposed is being fenced; then it waits for another time.
                self.slots[index].enter(Stage::Withdrawing(None));
                self.withdrawn(core, id, call);
            }
        }
        false
    }

    /// Posts the message of a Call that is kept. `false`: the queue is full, or the connection is ending.
    fn post<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        index: usize,
        message: Buf,
    ) -> bool {
        let request = SendRequest { id: 0, buf: message, invalidate: None, signaled: false };
        match core.post_send(id, request) {
            Ok(()) => true,
            Err(refused) => {
                self.set_unsent(core, id, index, refused.error, refused.request.buf);
                false
            }
        }
    }

    /// The message of a Call that is kept was not posted.
    pub(crate) fn set_unsent<P>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        index: usize,
        error: PostError,
        message: Buf,
    ) {
        // Else the end of the connection is near, and the Call counts as sent until then.
        if error == PostError::Full {
            let slot = &mut self.slots[index];
            slot.enter(Stage::Unsent);
            slot.message = Some(message);
            self.unsent += 1;
            core.ready.touch_late(id);
        }
    }

    /// Goes on with a Call that could not be exposed as a whole, when all that was of it is back.
    pub(crate) fn withdrawn<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        call: requester::RequesterCallId,
    ) {
        let slot = &mut self.slots[call.index()];
        if slot.exposed_count() > 0 {
            return;
        }
        match slot.stage() {
            Stage::Withdrawing(None) => {
                slot.enter(Stage::Interrupted);
                self.requester.postpone(call);
                self.interrupted += 1;
                core.ready.touch_late(id);
            }
            Stage::Withdrawing(Some(error)) => {
                slot.enter(Stage::Ending(Ending::Failed(error)));
                let memory = self.requester.abandon(call);
                self.settle(core, id, call, memory);
            }
            _ => core.fault(id, "a Call was over before all of it was fenced"),
        }
    }
}
