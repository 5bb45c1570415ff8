//! The Read list of a Call, as the Responder pulls it.
//!
//! A Read list comes in any order (8166-X-9): segments of equal Position are one chunk, joined in list order
//! (8166-3.4.5-b). The Responder proves once that the chunks fit between each other and in the Payload
//! stream; after that [`ReadChunks`] walks them in ascending order.
//!
//! ```text
//! Positions count in the unreduced stream; `at` is the same place in what was sent:
//!
//! unreduced  |---- 96 ----|-- item, 6001 + 3 of roundup --|---- 40 ----|
//! sent       |---- 96 ----|---- 40 ----|                    at = Position - what was taken out before
//! ```

use stag_wire::rpcrdma::{ReadList, Segment};

/// Why the chunk lists of a Call, each of them well-formed, were refused with ERR_CHUNK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChunkError {
    /// A chunk starts inside of the one before it (LX-3).
    Overlap,
    /// A chunk starts behind the end of the Payload stream (LX-3).
    OutOfRange,
    /// More chunks in a list than the limit (8166-X-13).
    Chunks,
    /// A Read chunk, or all of them together, longer than the limit (8166-8.1-e).
    Length {
        /// Octets.
        len: u64,
        /// [`ChunkLimits::chunk_len`], or [`ChunkLimits::pull_len`].
        limit: u32,
    },
}

/// How large and how many the chunks of a Call may be. What is above is refused with ERR_CHUNK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkLimits {
    /// Segments of all lists of a Call together. At least 16 in a chunk must be accepted (8267-6.4.2-a).
    pub segments: u32,
    /// Read chunks beside the Position Zero Read chunk.
    pub read_chunks: u32,
    /// Write chunks.
    pub write_chunks: u32,
    /// Octets of one Read chunk.
    pub chunk_len: u32,
    /// Octets of all Read chunks together: what one Call may make the Responder hold.
    pub pull_len: u32,
}

impl ChunkLimits {
    /// No chunks at all: a Responder of reverse Calls that supports none answers each with ERR_CHUNK (8167-5.3-b).
    pub const SHORT: ChunkLimits =
        ChunkLimits { segments: 0, read_chunks: 0, write_chunks: 0, chunk_len: 0, pull_len: 0 };
}

impl Default for ChunkLimits {
    fn default() -> Self {
        Self { segments: 64, read_chunks: 16, write_chunks: 16, chunk_len: 1 << 24, pull_len: 1 << 24 }
    }
}

/// One data Read chunk: an argument that is not in the Payload stream.
#[derive(Clone, Debug)]
pub struct ReadChunk<'m> {
    /// Where it belongs in the unreduced Payload stream.
    pub position: u32,
    /// Where it belongs in the Payload stream as it was sent: the octets before `at` come before it.
    pub at: u32,
    /// Octets. With or without roundup (8166-3.4.5.2-a): the count in the stream says how many are data.
    pub len: u32,
    list: ReadList<'m>,
}

impl<'m> ReadChunk<'m> {
    /// Its segments in list order.
    #[inline]
    pub fn segments(&self) -> impl Iterator<Item = Segment> + Clone + use<'m> {
        segments_at(self.list.clone(), self.position)
    }
}

/// The data Read chunks of a checked list, ascending by Position.
#[derive(Clone, Debug)]
pub struct ReadChunks<'m> {
    list: ReadList<'m>,
    /// Position of the chunk before; 0 at the start, which passes over the Position Zero Read chunk.
    last: u32,
    /// Octets that the chunks so far took out of the stream, roundup included.
    taken: u32,
}

impl<'m> ReadChunks<'m> {
    #[inline]
    pub(crate) fn new(list: ReadList<'m>) -> Self {
        Self { list, last: 0, taken: 0 }
    }
}

impl<'m> Iterator for ReadChunks<'m> {
    type Item = ReadChunk<'m>;

    fn next(&mut self) -> Option<ReadChunk<'m>> {
        let position = next_position(self.list.clone(), self.last)?;
        // A checked list has no chunk above 2^32 octets, and `taken` ends below the next Position.
        let len = len_at(self.list.clone(), position) as u32;
        let at = position.saturating_sub(self.taken);
        self.last = position;
        self.taken = self.taken.saturating_add(len.checked_next_multiple_of(4).unwrap_or(u32::MAX));
        Some(ReadChunk { position, at, len, list: self.list.clone() })
    }
}

/// The segments of one chunk.
#[inline]
pub(crate) fn segments_at(list: ReadList<'_>, position: u32) -> impl Iterator<Item = Segment> + Clone {
    list.filter(move |read| read.position == position).map(|read| read.segment)
}

/// The smallest Position above `last`.
fn next_position(list: ReadList<'_>, last: u32) -> Option<u32> {
    list.map(|read| read.position).filter(|&position| position > last).min()
}

/// Octets of the chunk at `position`. Cannot overflow: fewer than 2^32 segments of fewer than 2^32 octets.
pub(crate) fn len_at(list: ReadList<'_>, position: u32) -> u64 {
    segments_at(list, position).map(|segment| u64::from(segment.length)).sum()
}

/// Checks the Positions and lengths of a Read list that is well-formed in itself, against the Payload
/// stream and the limits. `inline_len`: octets of the stream behind the header; `None` in an RDMA_NOMSG,
/// whose stream is the Position Zero Read chunk.
pub(crate) fn check(
    list: ReadList<'_>,
    inline_len: Option<u32>,
    limits: &ChunkLimits,
) -> Result<(), ChunkError> {
    let mut pulled = 0;
    let stream_len = match inline_len {
        Some(len) => u64::from(len),
        None => pull(&list, 0, &mut pulled, limits)?,
    };
    // Octets that the chunks so far took out of the stream.
    let mut taken = 0;
    let mut earliest = 0;
    let mut last = 0;
    let mut chunks = 0;
    while let Some(position) = next_position(list.clone(), last) {
        chunks += 1;
        if chunks > limits.read_chunks {
            return Err(ChunkError::Chunks);
        }
        let start = u64::from(position);
        if start < earliest {
            return Err(ChunkError::Overlap);
        }
        // `earliest` is at least `taken`.
        if start - taken > stream_len {
            return Err(ChunkError::OutOfRange);
        }
        let len = pull(&list, position, &mut pulled, limits)?.next_multiple_of(4);
        taken += len;
        earliest = start + len;
        last = position;
    }
    Ok(())
}

/// The length of the chunk at `position`, if it and all that is `pulled` with it stay within the limits.
fn pull(
    list: &ReadList<'_>,
    position: u32,
    pulled: &mut u64,
    limits: &ChunkLimits,
) -> Result<u64, ChunkError> {
    let len = len_at(list.clone(), position);
    *pulled += len;
    for (len, limit) in [(len, limits.chunk_len), (*pulled, limits.pull_len)] {
        if len > u64::from(limit) {
            return Err(ChunkError::Length { len, limit });
        }
    }
    Ok(len)
}
