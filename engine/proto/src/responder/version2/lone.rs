//! Calls of version 2 in one Send, which are answered in one step, without a slot.

use stag_wire::rpcrdma2::{HEADER_LEN_MIN, LoneTransmission, MessageType};
use stag_wire::xdr::Overflow;

use super::Responder2;
use crate::layout::TargetRun;
use crate::lone::{self, Lone, LoneItem};
use crate::responder::Responder;

/// A Call in one Send, as a view of it. It has no chunks.
#[derive(Clone, Copy, Debug)]
pub struct LoneCall<'m> {
    /// Its xid.
    pub xid: u32,
    /// The credits that it requests.
    pub credits: u32,
    /// Its Payload stream.
    pub stream: &'m [u8],
    /// The only item of its arguments that is not in the Payload stream.
    pub item: Option<LoneItem<'m>>,
    /// Its result goes to targets of the Requester's Receives.
    pub is_directed: bool,
    /// It came as a transmission; otherwise as a base message.
    pub is_transmission: bool,
}

/// The Reply to such a Call, if that is one Send as well.
#[derive(Clone, Copy, Debug)]
pub struct LoneAnswer {
    /// The result that goes to targets, if the Call is directed: where it belongs in the virtual stream, and its octets.
    pub result: Option<(u32, u32)>,
    /// Octets of the Payload stream.
    pub payload_len: u32,
}

impl Responder2 {
    /// Looks at a message that may be a Call in one Send, in one piece. Nothing happens. `None`: it is something else, or this is the
    /// midst of a group: for [`Responder2::handle_divided`].
    #[inline]
    #[must_use]
    pub fn peek_lone<'m>(&self, message: &'m [u8]) -> Option<LoneCall<'m>> {
        if !self.receiver.is_idle() {
            return None;
        }
        let found = lone::parse(message, self.run, MessageType::Call)?;
        let Lone { xid, credits, header_len, stream, item, is_directed, is_transmission } = found;
        // All but its item is in the head of the Receive that it would take.
        let end = match item {
            None => message.len() as u32,
            Some(_) => header_len + stream.len() as u32,
        };
        let is_short = end <= self.map.layout().head_len();
        let item = item.flatten();
        is_short.then_some(LoneCall { xid, credits, stream, item, is_directed, is_transmission })
    }

    /// Octets of the header of a Reply in one Send. `targets`: those of the Requester's Receives, if the Call is directed.
    #[inline]
    #[must_use]
    pub fn lone_header_len(targets: Option<TargetRun>, reply: &LoneAnswer) -> usize {
        match targets {
            None => HEADER_LEN_MIN,
            Some(run) => lone::response(reply.result, run, 0).header_len(),
        }
    }

    /// Takes in a Call and answers it, in one step: its Receive is posted still. Writes the Reply's header to the start of `out`, and
    /// returns its octets. `requested` and `limit` are as of [`Responder::answer_plain`], `targets` as of
    /// [`Responder2::lone_header_len`].
    ///
    /// # Errors
    ///
    /// `out` is shorter than the header.
    ///
    /// # Panics
    ///
    /// As [`Responder::answer_plain`].
    #[inline]
    pub fn answer_lone(
        &mut self,
        responder: &mut Responder,
        call: &LoneCall<'_>,
        limit: u32,
        targets: Option<TargetRun>,
        reply: &LoneAnswer,
        out: &mut [u8],
    ) -> Result<usize, Overflow> {
        let credits = responder.answer_plain(call.credits, limit);
        let LoneAnswer { result, payload_len } = *reply;
        match targets {
            None => lone::emit_base(out, MessageType::Reply, call.xid, credits),
            Some(run) => {
                let response = lone::response(result, run, payload_len);
                LoneTransmission { xid: call.xid, credits, ..response }.emit(out)
            }
        }
    }
}
