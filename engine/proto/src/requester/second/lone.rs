//! Calls of version 2 in one Send, built where they leave, and Replies in one Send, taken in where they arrived.

use stag_wire::rpcrdma2::{HEADER_LEN_MIN, MessageType, OptionalOperation};

use super::{Extra, GroupCall, Requester2};
use crate::directions::ExpectedResult;
use crate::lone::{self, Lone};
use crate::requester::{EmitError, EndedCall, ExposedMemory, Requester, RequesterCallId, State};

/// A Reply in one Send, as a view of it.
#[derive(Clone, Copy, Debug)]
pub struct LoneReply<'m> {
    /// The Call that it answers. Nothing of it is exposed.
    pub call: RequesterCallId,
    credits: u32,
    /// Where the Payload stream starts in the message.
    pub start: u32,
    /// The Payload stream.
    pub stream: &'m [u8],
    /// The result that the Call directed to targets, if there is one.
    pub data: Option<&'m [u8]>,
    /// It came as a transmission; otherwise as a base message.
    pub is_transmission: bool,
}

impl GroupCall<'_> {
    /// Octets of the header, if the Call goes in one Send.
    #[inline]
    #[must_use]
    pub fn lone_header_len(&self) -> usize {
        match self.is_base() {
            true => HEADER_LEN_MIN,
            false => self.lead(1, 0).header_len(),
        }
    }

    /// Whether a base message says all of it.
    fn is_base(&self) -> bool {
        self.items.is_empty() && self.directions.is_empty()
    }
}

impl Requester2 {
    /// Writes the header of a Call that goes in one Send, and whose Reply may take one: `group.response_receives` is 0, and it has at most
    /// one item and one direction, in targets both. A Call with neither goes as a base message. Returns the octets of the header.
    ///
    /// # Errors
    ///
    /// `out` is too short. Nothing happened.
    ///
    /// # Panics
    ///
    /// When the Call was sent before, or is over, or a group is being sent.
    #[inline]
    pub fn emit_lone(
        &mut self,
        requester: &mut Requester,
        call: RequesterCallId,
        group: &GroupCall<'_>,
        out: &mut [u8],
    ) -> Result<usize, EmitError> {
        assert!(requester.state(call) == Some(State::Building), "a Call is emitted once, after begin");
        assert!(self.sender.open().is_none(), "nothing is sent between the transmissions of a group");
        let (xid, credits) = (call.xid, requester.window.requested());
        let len = if group.is_base() {
            lone::emit_base(out, MessageType::Call, xid, credits)?
        } else {
            let operation = OptionalOperation::Request(group.lead(1, group.payload_len));
            operation.emit(out, MessageType::Call, xid, credits)?.0
        };
        let extra = &mut self.slots[call.index()];
        (extra.credits, extra.receives, extra.directions) = (0, 0, 0);
        if let Some(direction) = group.directions.iter().flat_map(|set| set.items.iter()).next() {
            (extra.expected[0], extra.directions) = (ExpectedResult::of(&direction), 1);
        }
        let slot = &mut requester.slots[call.index()];
        (slot.state, slot.outcome) = (State::Sent, EndedCall::MaybeExecuted);
        Ok(len)
    }

    /// Looks at a message that may be a Reply in one Send, in one piece, to a Call that exposed nothing. Nothing happens. `None`: it is
    /// something else, or this is the midst of a group: for [`Requester2::handle_divided`].
    #[inline]
    #[must_use]
    pub fn peek_lone<'m>(&self, requester: &Requester, message: &'m [u8]) -> Option<LoneReply<'m>> {
        if !self.receiver.is_idle() {
            return None;
        }
        let found = lone::parse(message, self.run, MessageType::Reply)?;
        let Lone { xid, credits, header_len: start, stream, item, is_transmission, .. } = found;
        let call = requester.find(xid)?;
        let slot = &requester.slots[call.index()];
        if slot.state != State::Sent || slot.offer.expects_chunks() || slot.offer.is_exposed() {
            return None;
        }
        let Extra { expected, directions, .. } = &self.slots[call.index()];
        let is_expected = match (item, *directions) {
            (None, 0) => true,
            (Some(None), 1) => true,
            (Some(Some(_)), 1) => expected[0].is_any_in_targets(),
            _ => false,
        };
        let data = item.flatten().map(|item| item.data);
        is_expected.then_some(LoneReply { call, credits, start, stream, data, is_transmission })
    }

    /// Takes in a Reply that was looked at just before. Its Call is over, and its Receive is posted still.
    #[inline]
    pub fn accept_lone(&mut self, requester: &mut Requester, reply: &LoneReply<'_>) {
        requester.window.handle_grant(reply.credits);
        self.release(requester, reply.call);
        let memory = requester.answered(reply.call.index, EndedCall::Replied);
        debug_assert_eq!(memory, ExposedMemory::Safe, "nothing was exposed");
    }
}
