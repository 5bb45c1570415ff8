//! Walks the memory of a chunk front to back.
//!
//! A chunk is a list of segments cut anywhere (8166-3.4.4-a), and the data that is moved to or from it is a
//! list of local pieces cut elsewhere. [`Cursor`] finds the cuts of both: ask it for the rest of the local
//! piece, post the span that it gives, go on.
//!
//! ```text
//! local    |------- 5000 -------|-- 1000 --|
//! chunk    |--- 4096 ---|------- 4096 -------|
//! spans    |    4096    |  904  |   1000   |
//! ```

use stag_wire::rpcrdma::Segment;

/// A contiguous piece of the peer's memory: one RDMA Read or Write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The peer's steering tag.
    pub handle: u32,
    /// Where the piece starts; opaque to us (8166-4.4.3-a).
    pub offset: u64,
    /// Octets, never 0.
    pub len: u32,
}

/// A place in a chunk's memory, moving forward.
#[derive(Clone, Debug)]
pub struct Cursor<I> {
    segments: I,
    /// What is left of the segment that the cursor is in.
    current: Segment,
}

impl<I: Iterator<Item = Segment>> Cursor<I> {
    /// Starts at the first octet of `segments`.
    #[inline]
    pub fn new(segments: I) -> Self {
        Self { segments, current: Segment { handle: 0, length: 0, offset: 0 } }
    }

    /// Moves over at most `len` octets, as far as they are contiguous, and says where they are. `None`: the
    /// chunk is used up, or `len` is 0. Empty segments are passed over.
    #[inline]
    pub fn take(&mut self, len: u32) -> Option<Span> {
        if len == 0 {
            return None;
        }
        while self.current.length == 0 {
            self.current = self.segments.next()?;
        }
        let taken = len.min(self.current.length);
        let span = Span { handle: self.current.handle, offset: self.current.offset, len: taken };
        self.current.length -= taken;
        // Received segments that would wrap were refused; ours cannot come from beyond the address space.
        self.current.offset = self.current.offset.wrapping_add(u64::from(taken));
        Some(span)
    }
}
