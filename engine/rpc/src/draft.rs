//! A Reply in the making: what is built, and what of it is already posted.

use stag_memory::{Buf, Shared};

/// One DDP-eligible result in a Draft.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    /// Octets, without roundup.
    pub(crate) len: u32,
    /// Whether it goes to its Write chunk.
    pub(crate) reduced: bool,
    /// Where its pieces end in [`Draft::pieces`]; they begin where the item before ends.
    pub(crate) pieces_end: u32,
}

/// What the handler decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing yet.
    Empty,
    /// The payload is in place.
    Encoded,
    /// The results fit neither the Reply's inline threshold nor the chunks: ERR_CHUNK.
    TooLong,
    /// The arguments used chunks as the binding does not allow: ERR_CHUNK.
    BadChunks,
}

/// A Reply in the making. Reused: its lists keep their capacity, so the steady state allocates nothing.
#[derive(Debug)]
pub(crate) struct Draft {
    /// The Send: room for the transport header, then the payload unless `long`.
    pub(crate) send: Option<Buf>,
    /// Octets of the transport header.
    pub(crate) header_len: usize,
    /// Octets of (reduced) RPC message.
    pub(crate) payload_len: usize,
    /// Where in the payload the first reduced result belongs.
    pub(crate) splice: u32,
    /// The payload, when it did not fit behind the header.
    pub(crate) long: Option<Buf>,
    /// Eligible results in order.
    pub(crate) items: Vec<Item>,
    /// The memory of the reduced ones.
    pub(crate) pieces: Vec<Shared>,
    /// The handler's decision.
    pub(crate) verdict: Verdict,
    /// The RDMA Writes that are still to be posted, and the next of them to post.
    pub(crate) writes: Vec<PlannedWrite>,
    /// Index into `writes`.
    pub(crate) next_write: usize,
    /// The peer's handle that dies with the Send.
    pub(crate) invalidate: Option<stag_fabric::Handle>,
}

/// One RDMA Write of a Draft.
#[derive(Debug)]
pub(crate) struct PlannedWrite {
    /// Taken when it is posted.
    pub(crate) source: Option<Shared>,
    pub(crate) target: stag_fabric::RemoteSegment,
}

impl Draft {
    pub(crate) fn new() -> Draft {
        Draft {
            send: None,
            header_len: 0,
            payload_len: 0,
            splice: 0,
            long: None,
            items: Vec::with_capacity(4),
            pieces: Vec::with_capacity(16),
            verdict: Verdict::Empty,
            writes: Vec::with_capacity(16),
            next_write: 0,
            invalidate: None,
        }
    }

    /// Forgets everything; buffers go back to their pools.
    // Always inline: for most Replies it has little to forget, and sees that.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.send = None;
        self.header_len = 0;
        self.forget_results();
        self.writes.clear();
        self.next_write = 0;
        self.invalidate = None;
    }

    /// Forgets the handler's results, and keeps the Send buffer.
    pub(crate) fn forget_results(&mut self) {
        self.payload_len = 0;
        self.long = None;
        self.items.clear();
        self.pieces.clear();
        self.verdict = Verdict::Empty;
    }
}
