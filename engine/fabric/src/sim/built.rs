//! Messages that are built without a buffer, as they leave.

use stag_wire::rpcrdma::{HEADER_LEN_MIN, emit_plain};

use super::Sim;
use super::queue_pair::{Payload, Verb};
use crate::{Handle, QueuePairId};

impl Sim {
    /// Sends the first `len` octets of the space as the Payload stream of a message without chunks.
    pub(super) fn send_plain(&self, queue_pair: QueuePairId, credits: u32, len: usize) {
        let stream = &self.space[..len];
        let mut message = vec![0; HEADER_LEN_MIN];
        let xid = u32::from_be_bytes(*stream.first_chunk().expect("it begins with an xid"));
        emit_plain(&mut message, xid, credits).expect("it has room for the header");
        message.extend_from_slice(stream);
        self.send_built(queue_pair, None, message);
    }

    /// Posts a message that was built without a buffer.
    pub(super) fn send_built(&self, queue_pair: QueuePairId, invalidate: Option<Handle>, message: Vec<u8>) {
        let mut state = self.world.0.borrow_mut();
        let early = state.random.below(8) == 0;
        let request = (0, false, Verb::Send { invalidate }, Payload::Built(message), Vec::new());
        self.enqueue(&mut state, queue_pair, early, request);
    }
}
