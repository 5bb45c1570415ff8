//! Messages without chunks, as providers find them: see [`PlainMessage`](crate::PlainMessage).

use stag_wire::rpcrdma::{HEADER_LEN_MIN, VERSION};

use crate::PLAIN_LEN_MAX;

/// The credits of a message without chunks that is short enough to be shown in place. `None`: it is none.
#[inline(always)]
pub(crate) fn plain_credits(message: &[u8]) -> Option<u32> {
    if message.len() > HEADER_LEN_MIN + PLAIN_LEN_MAX {
        return None;
    }
    let look: &[u8; HEADER_LEN_MIN + 4] = message.first_chunk()?;
    let word = |at: usize| u32::from_be_bytes([look[at], look[at + 1], look[at + 2], look[at + 3]]);
    // xid, version, credits, procedure RDMA_MSG; no Read list, no Write list, no Reply chunk; xid.
    let differs = word(4) ^ VERSION | word(12) | word(16) | word(20) | word(24) | word(28) ^ word(0);
    (differs == 0).then(|| word(8))
}
