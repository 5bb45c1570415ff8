//! The fast paths of a Requester: Calls and Replies without chunks, or with one chunk of one segment.
//!
//! They decide what the general way would, for messages that consist of constants and a few numbers. All others take
//! the general way; so does each message that contradicts its Call, because the general way reports the contradiction.

use stag_wire::rpcrdma::{HEADER_LEN_MIN, SINGLE_LEN, Single, SingleChunk};

use super::{EmitError, EndedCall, ExposedMemory, Requester, RequesterCallId, State};
use crate::offer::Offer;
use crate::plain;

/// A Reply that is inline, and whose Write list has one chunk of one segment, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortReply {
    /// The Call that it answers.
    pub call: RequesterCallId,
    /// Where the Payload stream starts in the message.
    pub start: u32,
    /// Octets in the Write chunk, if the Call has one. Checked against the offer.
    pub written: Option<u32>,
    /// Whether the Call's memory must be fenced first. With [`ExposedMemory::Safe`] the Call is over.
    pub memory: ExposedMemory,
}

impl Requester {
    /// Writes the header of a Call with one chunk of one segment.
    #[inline(always)]
    pub(super) fn emit_single(
        &mut self,
        call: RequesterCallId,
        chunk: SingleChunk,
        credits: u32,
        out: &mut [u8],
    ) -> Result<usize, EmitError> {
        Single { xid: call.xid, credits, chunk }.emit(out)?;
        self.slots[call.index()].offer = Offer::single(&chunk);
        Ok(SINGLE_LEN)
    }

    /// Writes the header of a Call with one chunk of one segment, as [`Requester::emit_call`] does for the lists with that chunk.
    ///
    /// # Panics
    ///
    /// When the Call was emitted already, or is over; or when the chunk is a Read chunk at Position 0, or not at a whole word.
    #[inline(always)]
    pub fn emit_single_call(
        &mut self,
        call: RequesterCallId,
        chunk: SingleChunk,
        out: &mut [u8; SINGLE_LEN],
    ) {
        assert!(self.state(call) == Some(State::Building), "a Call is emitted once, after begin");
        if let SingleChunk::Read(read) = chunk {
            assert!(read.position != 0 && read.position.is_multiple_of(4), "position {}", read.position);
        }
        let credits = self.window.requested();
        let emitted = self.emit_single(call, chunk, credits, out);
        debug_assert_eq!(emitted, Ok(SINGLE_LEN), "`out` has room for the header");
        let slot = &mut self.slots[call.index()];
        slot.state = State::Sent;
        slot.outcome = EndedCall::MaybeExecuted;
    }

    /// Takes in an inline Reply whose Write list has one chunk of one segment, or none, as the Call offered it. `None`: nothing
    /// happened; the message is for [`Requester::handle_receive`], which tries this first.
    // `inline(always)`: the result is large; inlined, it never goes through memory.
    #[inline(always)]
    pub fn handle_short(&mut self, message: &[u8], invalidated: Option<u32>) -> Option<ShortReply> {
        let xid = u32::from_be_bytes(*message.first_chunk()?);
        let call = self.find(xid)?;
        let slot = &mut self.slots[call.index()];
        if slot.state != State::Sent {
            return None;
        }
        let (credits, start, written) = if slot.offer.expects_single_write() {
            let (_, credits, returned) = Single::parse_write(message)?;
            let start = plain::start(&message[SINGLE_LEN..]);
            if start != Some((xid, plain::REPLY)) || !slot.offer.matches_single(&returned) {
                return None;
            }
            (credits, SINGLE_LEN, Some(returned.length))
        } else {
            let reply = plain::parse(message, plain::REPLY)?;
            if slot.offer.expects_chunks() {
                return None;
            }
            (reply.credits, HEADER_LEN_MIN, None)
        };
        if let Some(handle) = invalidated
            && !(self.parameters.remote_invalidation && slot.offer.take_invalidated(handle))
        {
            return None;
        }
        self.window.handle_grant(credits);
        let memory = self.answered(call.index, EndedCall::Replied);
        Some(ShortReply { call, start: start as u32, written, memory })
    }

    /// Takes in a Reply without chunks, by the credits of its header and its Payload stream. `None`: nothing happened; it is
    /// for [`Requester::handle_receive`].
    #[inline(always)]
    pub fn handle_plain(&mut self, credits: u32, stream: &[u8]) -> Option<RequesterCallId> {
        let (xid, msg_type) = plain::start(stream)?;
        let call = self.find(xid)?;
        let slot = &self.slots[call.index()];
        if msg_type != plain::REPLY || slot.state != State::Sent || slot.offer.expects_chunks() {
            return None;
        }
        // What was exposed has to be fenced first.
        if slot.offer.is_exposed() {
            return None;
        }
        self.window.handle_grant(credits);
        let memory = self.answered(call.index, EndedCall::Replied);
        debug_assert_eq!(memory, ExposedMemory::Safe, "nothing was exposed");
        Some(call)
    }

    /// Ends the making of a Call without chunks, and returns the credits of its header, which the caller writes.
    ///
    /// # Panics
    ///
    /// When the Call was emitted already, or is over.
    #[inline(always)]
    pub fn emit_plain(&mut self, call: RequesterCallId) -> u32 {
        assert!(self.state(call) == Some(State::Building), "a Call is emitted once, after begin");
        let slot = &mut self.slots[call.index()];
        slot.state = State::Sent;
        slot.outcome = EndedCall::MaybeExecuted;
        self.window.requested()
    }
}
