//! Replies whose Payload stream this end pulls: the Responder exposed it, because it fits neither inline nor in a chunk.
//!
//! ```text
//!        the exposed Reply             handle_pulled
//!  Sent ──────────────────▶ Pulling ────────────────▶ Fencing ──▶ Free
//! ```
//!
//! The driver fences the Call's own memory, reads the segments into a buffer of its own, sends **one** RDMA_DONE, whether the
//! Reads succeeded or failed (RR-4.1.2-a), and calls [`Requester::handle_pulled`]. If there is nothing to pull it only sends
//! the RDMA_DONE ([`Pulled::Tell`]): the Responder's memory is exposed until then. An RDMA_DONE takes no credit (RR-P-8).

use stag_wire::rpcrdma::{Done, Header, MessageProcedure};
use stag_wire::xdr::Overflow;

use super::{
    CallFailure, DroppedReply, EndedCall, ExposedMemory, ExposedReply, Pulled, Requester, RequesterCallId,
    RequesterReceived, State,
};
use crate::offer::HANDLES_MAX;

impl Requester {
    /// Takes Replies that the peer exposes, of up to `len_max` octets each: both ends agreed on that (RR-P-2). 0: it takes none,
    /// as before the first call of this and after [`Requester::handle_reconnect`].
    pub fn set_pull_limit(&mut self, len_max: u32) {
        self.pull_len_max = len_max;
    }

    /// Tells whether a header is that of a Reply that the peer exposed.
    pub(super) fn is_exposed(&self, header: &Header<'_>) -> bool {
        self.pull_len_max > 0 && header.procedure() == MessageProcedure::Nomsg && header.read_list().len() > 0
    }

    /// Takes in a Reply that the peer exposed.
    pub(super) fn receive_exposed<'m>(
        &mut self,
        header: &Header<'m>,
        invalidated: Option<u32>,
    ) -> Result<RequesterReceived<'m>, DroppedReply> {
        let (xid, reads) = (header.xid(), header.read_list());
        let exposed = |pulled| {
            let writes = header.write_list();
            Ok(RequesterReceived::Exposed(ExposedReply { xid, pulled, reads: header.read_list(), writes }))
        };
        let found = self.find(xid);
        if let Some(handle) = invalidated
            && !found.is_some_and(|call| self.invalidate(call, handle))
        {
            return Ok(RequesterReceived::Close(self.misuse(handle)));
        }
        let Some(call) = found else {
            self.window.handle_grant(header.credits());
            return exposed(Pulled::Tell { call: None, failure: None, memory: ExposedMemory::Safe });
        };
        if self.slots[call.index()].state == State::Cancelled {
            self.window.handle_grant(header.credits());
            let memory = self.answered(call.index, EndedCall::Cancelled);
            return exposed(Pulled::Tell { call: Some(call), failure: None, memory });
        }
        let len: u64 = reads.clone().map(|entry| u64::from(entry.segment.length)).sum();
        let is_stream = reads.len() <= HANDLES_MAX && reads.clone().all(|entry| entry.position == 0);
        let offer = &self.slots[call.index()].offer;
        let verified = self.offers.verify(call.index(), offer, header.write_list(), header.reply_chunk());
        let failure = match verified {
            Err(violation) => Some(CallFailure::Violation(violation)),
            // RR-X-3, RR-4.1-d
            Ok(0) if is_stream && len <= u64::from(self.pull_len_max) && len > 0 => None,
            Ok(0) if is_stream => Some(CallFailure::Length { len, limit: self.pull_len_max }),
            Ok(_) => Some(CallFailure::Lists),
        };
        if let Some(failure) = failure {
            let memory = self.answered(call.index, EndedCall::Failed);
            return exposed(Pulled::Tell { call: Some(call), failure: Some(failure), memory });
        }
        self.window.handle_grant(header.credits());
        self.window.give_back();
        let slot = &mut self.slots[call.index()];
        // Until it is pulled, a lost connection loses it.
        (slot.state, slot.outcome) = (State::Pulling, EndedCall::MaybeExecuted);
        let memory = self.memory(call.index);
        // No longer than the limit.
        exposed(Pulled::Pull { call, len: len as u32, memory })
    }

    /// The Payload stream of an exposed Reply was pulled, or cannot be: the Call is over but for its fences. Harmless on a Call
    /// that is over.
    pub fn handle_pulled(&mut self, call: RequesterCallId) -> ExposedMemory {
        if self.state(call) != Some(State::Pulling) {
            return if self.state(call).is_some() { self.memory(call.index) } else { ExposedMemory::Safe };
        }
        let slot = &mut self.slots[call.index()];
        slot.state = State::Fencing;
        if slot.outcome != EndedCall::Cancelled {
            slot.outcome = EndedCall::Replied;
        }
        self.settle(call.index)
    }

    /// Writes the RDMA_DONE for an exposed Reply to the start of `out`, and returns its length.
    ///
    /// # Errors
    ///
    /// [`Overflow`] when `out` is shorter than 16 octets.
    pub fn emit_done(&self, xid: u32, out: &mut [u8]) -> Result<usize, Overflow> {
        Done { xid, credits: self.window.requested() }.emit(out)
    }
}
