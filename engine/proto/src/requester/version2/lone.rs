//! Calls of version 2 in one Send, built in the send buffer, and Replies in one Send, taken in where they
//! arrived.

use stag_wire::rpcrdma2::{
    DirectedPlace, HEADER_LEN_MIN, LonePlace, LoneTransmission, MessageType, ResultDirection,
};

use super::{Extra, Requester2};
use crate::directions::ExpectedResult;
use crate::lone::{self, Lone, LoneItem};
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
    pub item: Option<LoneItem<'m>>,
    /// It came as a transmission; otherwise as a base message.
    pub is_transmission: bool,
}

/// What a Call in one Send has beside its Payload stream.
#[derive(Clone, Copy, Debug)]
pub struct LoneRequest {
    /// Its only item, in the Responder's first targets: octets of it, and the targets that it takes.
    pub data: Option<(u32, u32)>,
    /// Its only result goes to targets of our Receives.
    pub is_directed: bool,
}

impl LoneRequest {
    /// Octets of the header.
    #[inline]
    #[must_use]
    pub fn header_len(&self) -> usize {
        match self.is_base() {
            true => HEADER_LEN_MIN,
            false => self.transmission(0, 0).header_len(),
        }
    }

    /// Whether a base message says all of it.
    #[inline]
    fn is_base(&self) -> bool {
        self.data.is_none() && !self.is_directed
    }

    #[inline]
    fn transmission(&self, displacement: u32, payload_len: u32) -> LoneTransmission {
        let item = self.data.map(|(len, count)| LonePlace::Targets { displacement, len, count });
        let is_directed = self.is_directed;
        LoneTransmission { xid: 0, credits: 0, direction: MessageType::Call, item, is_directed, payload_len }
    }
}

/// The direction of a [`LoneRequest`] that is directed.
const DIRECTION: ResultDirection<'_> = ResultDirection { min_len: 0, place: DirectedPlace::Buffers };

impl Requester2 {
    /// Writes the header of a Call that goes in one Send, and whose Reply may take one. A Call without data and direction goes as a base
    /// message. `stream`: where its data belongs in the virtual stream, and the octets of the Payload stream. Returns the octets of the
    /// header.
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
        lone: &LoneRequest,
        stream: (u32, u32),
        out: &mut [u8],
    ) -> Result<usize, EmitError> {
        assert!(requester.state(call) == Some(State::Building), "a Call is emitted once, after begin");
        assert!(self.sender.open().is_none(), "nothing is sent between the transmissions of a group");
        let (xid, credits) = (call.xid, requester.window.requested());
        let len = if lone.is_base() {
            lone::emit_base(out, MessageType::Call, xid, credits)?
        } else {
            let (displacement, payload_len) = stream;
            LoneTransmission { xid, credits, ..lone.transmission(displacement, payload_len) }.emit(out)?
        };
        let extra = &mut self.slots[call.index()];
        (extra.credits, extra.receives, extra.directions) = (0, 0, 0);
        if lone.is_directed {
            (extra.expected[0], extra.directions) = (ExpectedResult::of(&DIRECTION), 1);
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
        let item = item.flatten();
        is_expected.then_some(LoneReply { call, credits, start, stream, item, is_transmission })
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
