//! Takes Replies: where they arrived, or in the buffer of a Receive.
//!
//! There are two ways. A short Reply, with one chunk of one segment or none, ends its Call in one step ([`Calling::complete_short`]),
//! if all memory of the Call is back with it. Anything else says what becomes of its Call ([`ReplyOutcome`]), which ends when its memory is
//! fenced. A Reply where it arrived that is neither is left to its Receive.

use stag_fabric::{Exposed, Handle, Provider, WholeMessage};
use stag_memory::{Buf, Pool};
use stag_proto::requester::{
    self, CallFailure, ExposedMemory, Pulled, ReplyPayload, RequesterReceived, ShortReply,
};
use stag_wire::rpc::take_success;
use stag_wire::xdr::Reader;

use crate::ConnectionId;
use crate::client::calling::Calling;
use crate::client::pulling::take_exposed;
use crate::client::slot::{Ending, Slot, Stage, results_start};
use crate::client::{CLIENT_SEGMENTS_MAX, CallError, Results};
use crate::fault::fault;
use crate::few::Few;
use crate::state::{Core, EngineState};

/// The message of a Reply.
pub(crate) enum ReplyMessage<'a> {
    /// Shown where it arrived: the pool of messages has a buffer for it.
    Shown(&'a [u8]),
    /// In the buffer of its Receive.
    Held(Buf),
}

impl ReplyMessage<'_> {
    #[inline(always)]
    fn octets(&self) -> &[u8] {
        match self {
            ReplyMessage::Shown(octets) => octets,
            ReplyMessage::Held(buf) => buf,
        }
    }

    /// The whole message, in a buffer.
    #[inline(always)]
    fn into_buf(self, messages: &Pool) -> Option<Buf> {
        match self {
            ReplyMessage::Shown(octets) => messages.take_copy(octets),
            ReplyMessage::Held(buf) => Some(buf),
        }
    }

    /// The results in it, from its octet `first` on. `reduced` octets of others are in a Write chunk.
    #[inline(always)]
    pub(crate) fn into_results(
        self,
        messages: &Pool,
        first: u32,
        reduced: u32,
    ) -> Result<Results, CallError> {
        match self {
            ReplyMessage::Shown(octets) => {
                let results = &octets[first as usize..];
                if results.is_empty() {
                    return Ok(Results::short(None, reduced));
                }
                let copy = messages.take_copy(results);
                let copy = copy.ok_or(CallError::NoMemory { len: octets.len() as u32 })?;
                Ok(Results::short(Some(copy), reduced))
            }
            ReplyMessage::Held(buf) => Ok(Results::new(buf, first, reduced)),
        }
    }
}

/// What a message says of a Call, without what it borrows.
pub(crate) enum ReplyOutcome {
    /// It has its Reply, and ends so.
    Reply { call: requester::RequesterCallId, memory: ExposedMemory, ending: Ending },
    /// It gets none.
    Failed { call: requester::RequesterCallId, memory: ExposedMemory, error: CallError },
    /// It was given up before.
    Late { call: requester::RequesterCallId, memory: ExposedMemory },
    /// The server exposes its Reply. `chunk_lens`: the octets in each Write chunk.
    Exposed { xid: u32, pulled: Pulled, chunk_lens: [u32; CLIENT_SEGMENTS_MAX] },
    /// The message is of no Call.
    Dropped,
    /// The peer invalidated memory that it must not.
    Misused,
}

impl ReplyOutcome {
    /// What a message of `message_len` octets says. The slot of a Call with a Reply gets the lengths of its Write chunks.
    pub(crate) fn of(
        received: RequesterReceived<'_>,
        message_len: usize,
        slots: &mut [Slot],
    ) -> ReplyOutcome {
        match received {
            RequesterReceived::Reply(reply) => {
                let ending = match reply.payload {
                    ReplyPayload::Inline(payload) => Ending::Inline((message_len - payload.len()) as u32),
                    ReplyPayload::Long(len) => Ending::Long(len),
                };
                slots[reply.call.index()].chunk_lens = chunk_lens(reply.write_lens());
                ReplyOutcome::Reply { call: reply.call, memory: reply.memory, ending }
            }
            RequesterReceived::Failed { call, failure, memory } => {
                ReplyOutcome::Failed { call, memory, error: error_of(failure) }
            }
            RequesterReceived::Late { call, memory } => ReplyOutcome::Late { call, memory },
            RequesterReceived::Exposed(reply) => ReplyOutcome::Exposed {
                xid: reply.xid,
                chunk_lens: chunk_lens(reply.write_lens()),
                pulled: reply.pulled,
            },
            RequesterReceived::Dropped(_) => ReplyOutcome::Dropped,
            RequesterReceived::Close(_) => ReplyOutcome::Misused,
        }
    }
}

fn chunk_lens(lens: impl Iterator<Item = u32>) -> [u32; CLIENT_SEGMENTS_MAX] {
    let mut each = [0; CLIENT_SEGMENTS_MAX];
    for (len, place) in lens.zip(&mut each) {
        *place = len;
    }
    each
}

/// How a Call ends that the Requester says failed. Version 1 knows no options, transmissions, or placement.
fn error_of(failure: CallFailure) -> CallError {
    match failure {
        CallFailure::Version { low, high } => CallError::TransportVersion { low, high },
        CallFailure::Chunk | CallFailure::Option | CallFailure::Transmission(_) => CallError::Chunk,
        CallFailure::Violation(_)
        | CallFailure::Length { .. }
        | CallFailure::Lists
        | CallFailure::Results(_)
        | CallFailure::Placement(_) => CallError::BadReply,
    }
}

impl Calling {
    /// Takes in a Reply without chunks where it arrived. `false`: it is for the general way, and nothing happened.
    #[inline(always)]
    pub(crate) fn complete_plain(&mut self, state: &mut EngineState, credits: u32, stream: &[u8]) -> bool {
        let Some(xid) = stream.first_chunk().map(|xid| u32::from_be_bytes(*xid)) else { return false };
        let mut reader = Reader::new(stream);
        if !take_success(&mut reader, xid) {
            return false;
        }
        let results = reader.rest();
        if results.is_empty() {
            return self.complete_with(state, credits, stream, None);
        }
        self.complete_results(state, (credits, stream), results)
    }

    /// As [`Calling::complete_plain`], of a Reply with results.
    // Not inline: a Reply without results must not set up the buffer for them.
    #[inline(never)]
    fn complete_results(
        &mut self,
        state: &mut EngineState,
        (credits, stream): (u32, &[u8]),
        results: &[u8],
    ) -> bool {
        let Some(buf) = state.pools.messages.take_copy(results) else { return false };
        self.complete_with(state, credits, stream, Some(buf))
    }

    /// Completes the Call of a Reply without chunks, whose results are all of `message`.
    #[inline(always)]
    fn complete_with(
        &mut self,
        state: &mut EngineState,
        credits: u32,
        stream: &[u8],
        message: Option<Buf>,
    ) -> bool {
        let Some(call) = self.requester.handle_plain(credits, stream) else { return false };
        self.heard = state.now;
        state.statistics.replies_received += 1;
        if self.note_answered(call) {
            let result = Ok(Results::short(message, 0));
            self.hand_over(state, call, result, Few::new());
        } else {
            state.faults.push((self.name, fault("a Call that waits for its Reply is over")));
        }
        true
    }

    /// Takes in a Reply with one chunk of one segment, or to a Call with one, where it arrived. `false`: it is for the general
    /// way, and nothing happened.
    #[inline(never)]
    pub(crate) fn complete_whole(&mut self, state: &mut EngineState, message: WholeMessage<'_>) -> bool {
        let WholeMessage { octets, invalidated, exposed, .. } = message;
        // Memory that is still exposed has to be fenced, which takes the provider.
        let Some(handle) = invalidated else { return false };
        if state.pools.messages.free_units() == 0 {
            return false;
        }
        let Some(reply) = self.requester.handle_short(octets, Some(handle.0)) else { return false };
        self.heard = state.now;
        state.statistics.remote_invalidations += 1;
        let message = ReplyMessage::Shown(octets);
        if self.complete_short(state, &reply, message, invalidated, exposed) == ExposedMemory::Exposed {
            state.fault(self.name, "a handle is invalidated, and exposed");
        }
        true
    }

    /// Takes in a message. `Err`: the connection has to end, and why.
    // `inline(always)`: there is one caller, which has taken the completion apart already.
    #[inline(always)]
    pub(crate) fn receive<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        message: Buf,
        invalidated: Option<Handle>,
        exposed: &mut Option<Exposed>,
    ) -> Result<(), &'static str> {
        self.heard = core.now;
        // The Receive first: a Call that the Reply lets out brings back a Reply that needs one.
        self.receives_posted -= 1;
        self.post_receives(core, id);
        core.statistics.remote_invalidations += u64::from(invalidated.is_some());
        if let Some(reply) = self.requester.handle_short(&message, invalidated.map(|handle| handle.0)) {
            let message = ReplyMessage::Held(message);
            if self.complete_short(core, &reply, message, invalidated, exposed) == ExposedMemory::Exposed {
                self.settle(core, id, reply.call, ExposedMemory::Exposed);
            }
            return Ok(());
        }
        self.receive_any(core, id, message, invalidated, exposed)
    }

    /// Takes in a message that is not a Reply of the most frequent kinds.
    #[inline(never)]
    fn receive_any<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        message: Buf,
        invalidated: Option<Handle>,
        exposed: &mut Option<Exposed>,
    ) -> Result<(), &'static str> {
        let received = self.requester.handle_receive(&message, invalidated.map(|handle| handle.0));
        let answer = ReplyOutcome::of(received, message.len(), &mut self.slots);
        self.take_answer(core, id, answer, message, (invalidated, exposed))
    }

    /// Takes in what a message says, in either version. `Err`: the connection has to end, and why.
    pub(crate) fn take_answer<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        answer: ReplyOutcome,
        message: Buf,
        (invalidated, exposed): (Option<Handle>, &mut Option<Exposed>),
    ) -> Result<(), &'static str> {
        match answer {
            ReplyOutcome::Reply { call, memory, ending } => {
                core.statistics.replies_received += 1;
                core.statistics.reply_chunks += u64::from(matches!(ending, Ending::Long(_)));
                self.end_answered(core, call, ending);
                self.slots[call.index()].message = Some(message);
                self.settle_returned(core, id, (call, memory), (invalidated, exposed));
            }
            ReplyOutcome::Failed { call, memory, error } => {
                self.end_answered(core, call, Ending::Failed(error));
                self.settle_returned(core, id, (call, memory), (invalidated, exposed));
            }
            ReplyOutcome::Late { call, memory } => {
                self.settle_returned(core, id, (call, memory), (invalidated, exposed));
            }
            ReplyOutcome::Exposed { xid, pulled, chunk_lens } => {
                return take_exposed(
                    self,
                    core,
                    id,
                    (xid, pulled),
                    message,
                    chunk_lens,
                    (invalidated, exposed),
                );
            }
            ReplyOutcome::Dropped => core.statistics.messages_discarded += 1,
            ReplyOutcome::Misused => return Err(self.misused(invalidated, exposed)),
        }
        Ok(())
    }

    /// Takes back what a message returned of a Call's memory, and fences the rest.
    pub(crate) fn settle_returned<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        (call, memory): (requester::RequesterCallId, ExposedMemory),
        (invalidated, exposed): (Option<Handle>, &mut Option<Exposed>),
    ) {
        self.exposed -= self.slots[call.index()].take_back(invalidated, exposed.take());
        self.settle(core, id, call, memory);
    }

    /// A Send invalidated a handle that it must not: whose memory it was must get it back with the end of the connection all
    /// the same. Returns what the peer did.
    #[cold]
    pub(crate) fn misused(
        &mut self,
        invalidated: Option<Handle>,
        exposed: &mut Option<Exposed>,
    ) -> &'static str {
        let owner = self.slots.iter_mut().find(|slot| invalidated.is_some_and(|h| slot.exposes(h.0)));
        if let Some(slot) = owner {
            self.exposed -= slot.take_back(invalidated, exposed.take());
        }
        "its Send invalidated a handle that it must not (8797-X-2)"
    }

    /// Completes a Call by an inline Reply with one chunk of one segment, or none. [`ExposedMemory::Exposed`]: it is not over,
    /// and the caller settles it.
    #[inline(always)]
    pub(crate) fn complete_short(
        &mut self,
        state: &mut EngineState,
        reply: &ShortReply,
        message: ReplyMessage<'_>,
        invalidated: Option<Handle>,
        exposed: &mut Option<Exposed>,
    ) -> ExposedMemory {
        let ShortReply { call, start, written: len, memory } = *reply;
        state.statistics.replies_received += 1;
        if !self.note_answered(call) {
            state.fault(self.name, "a Call that waits for its Reply is over");
            return ExposedMemory::Safe;
        }
        let slot = &mut self.slots[call.index()];
        let mut written = Few::new();
        match exposed.take() {
            // All of its memory is back, if it exposed any.
            None if memory == ExposedMemory::Safe && slot.written.is_empty() => {}
            Some(Exposed::Read(data)) if memory == ExposedMemory::Safe => {
                drop(data);
                slot.reads.clear();
                self.exposed -= 1;
            }
            Some(Exposed::Write(mut buf)) if memory == ExposedMemory::Safe && slot.written.len() == 1 => {
                let chunk = slot.written.pop().map_or(0, |part| part.chunk);
                let len = len.unwrap_or(0);
                buf.set_len(len as usize);
                state.statistics.count_write_chunk(len);
                written = Few::one((chunk, buf));
                self.exposed -= 1;
            }
            returned => {
                let no_memory = CallError::NoMemory { len: message.octets().len() as u32 };
                slot.message = message.into_buf(&state.pools.messages);
                let ending =
                    slot.message.as_ref().map_or(Ending::Failed(no_memory), |_| Ending::Inline(start));
                slot.enter(Stage::Ending(ending));
                slot.chunk_lens = [0; CLIENT_SEGMENTS_MAX];
                slot.chunk_lens[0] = len.unwrap_or(0);
                self.exposed -= slot.take_back(invalidated, returned);
                if memory == ExposedMemory::Safe {
                    self.finish(state, call);
                }
                return memory;
            }
        }
        let result = match results_start(message.octets(), start as usize, call, &mut slot.sealed) {
            Ok(first) => message.into_results(&state.pools.messages, first, len.unwrap_or(0)),
            Err(error) => Err(error),
        };
        self.hand_over(state, call, result, written);
        ExposedMemory::Safe
    }

    /// A Call was answered: it does not wait for room any more, if it did, as a peer may guess an xid. `false`: it waited for no
    /// Reply.
    #[inline(always)]
    pub(crate) fn note_answered(&mut self, call: requester::RequesterCallId) -> bool {
        let slot = &mut self.slots[call.index()];
        if matches!(slot.stage(), Stage::Unsent) {
            slot.message = None;
            slot.enter(Stage::Sent);
            self.unsent -= 1;
        }
        matches!(slot.stage(), Stage::Sent)
    }

    /// Sets how a Call ends that was answered.
    pub(crate) fn end_answered<P>(
        &mut self,
        core: &mut Core<P>,
        call: requester::RequesterCallId,
        ending: Ending,
    ) {
        if self.note_answered(call) {
            self.slots[call.index()].enter(Stage::Ending(ending));
        } else {
            core.fault(self.name, "a Call that waits for its Reply is over");
        }
    }
}
