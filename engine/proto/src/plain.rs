//! The fast path for the most frequent message: an RDMA_MSG without chunks.
//!
//! It decides what the checks of [`Header`](stag_wire::rpcrdma::Header) would, for messages that need no more than that; all
//! others take the general way.

use stag_wire::rpcrdma::{HEADER_LEN_MIN, VERSION, procedure};

/// msg_type of a Call.
pub(crate) const CALL: u32 = 0;
/// msg_type of a Reply.
pub(crate) const REPLY: u32 = 1;

/// The xid and the msg_type that a Payload stream starts with.
#[inline]
pub(crate) fn start(stream: &[u8]) -> Option<(u32, u32)> {
    let [x0, x1, x2, x3, t0, t1, t2, t3] = *stream.first_chunk()?;
    Some((u32::from_be_bytes([x0, x1, x2, x3]), u32::from_be_bytes([t0, t1, t2, t3])))
}

/// What a plain message says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain<'m> {
    pub(crate) xid: u32,
    pub(crate) credits: u32,
    pub(crate) stream: &'m [u8],
}

/// Takes `message` apart if it is an RDMA_MSG of our version, without chunks, whose Payload stream starts with
/// the header's xid and `msg_type`. `None` says nothing about the message.
#[inline]
pub(crate) fn parse(message: &[u8], msg_type: u32) -> Option<Plain<'_>> {
    // xid, version, credits, procedure; three lists; xid, msg_type.
    let words: &[u8; 36] = message.first_chunk()?;
    let word = |at: usize| u32::from_be_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
    let xid = word(0);
    // All at once: one branch, taken for nearly every message.
    let differs = word(4) ^ VERSION
        | word(12) ^ procedure::MSG
        | word(16)
        | word(20)
        | word(24)
        | word(28) ^ xid
        | word(32) ^ msg_type;
    (differs == 0).then(|| Plain { xid, credits: word(8), stream: &message[HEADER_LEN_MIN..] })
}
