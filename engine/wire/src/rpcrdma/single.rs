//! The most frequent header with a chunk: an RDMA_MSG whose lists hold one chunk of one segment.
//!
//! Both kinds are 52 octets long, and all words but a few are constants. So parsing compares them all at once, and emitting
//! copies them. [`Header`](super::Header) and [`Emitter`](super::Emitter) treat these and all other headers entry by entry,
//! with the same result.
//!
//! ```text
//!  word      0   1   2        3   4   5   6   7   8   9   10  11  12
//!  Write     xid 1   credits  MSG 0   1   1   H   L   O   O   0   0
//!  Read      xid 1   credits  MSG 1   P   H   L   O   O   0   0   0
//! ```

use super::{Layout, ReadSegment, SINGLE_LEN, Segment, VERSION, procedure};
use crate::xdr::Overflow;

/// The one chunk of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SingleChunk {
    /// A Write chunk of one segment.
    Write(Segment),
    /// A Read chunk of one segment. Its Position is a multiple of 4 and not 0.
    Read(ReadSegment),
}

impl SingleChunk {
    /// Returns its segment.
    #[inline]
    #[must_use]
    pub const fn segment(&self) -> Segment {
        match self {
            SingleChunk::Write(segment) => *segment,
            SingleChunk::Read(read) => read.segment,
        }
    }

    /// Returns where the lists of its header are, for [`Header::with_layout`](super::Header::with_layout).
    #[inline]
    #[must_use]
    pub const fn layout(&self) -> Layout {
        match self {
            SingleChunk::Write(_) => Layout::SINGLE_WRITE,
            SingleChunk::Read(_) => Layout::SINGLE_READ,
        }
    }
}

/// The header of an RDMA_MSG of version 1 with one chunk of one segment, and with no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Single {
    /// Equals the xid of the RPC message.
    pub xid: u32,
    /// Credits requested by a Call, granted by a Reply.
    pub credits: u32,
    /// The chunk.
    pub chunk: SingleChunk,
}

impl Single {
    /// Splits a received message into its header and the Payload stream that follows.
    ///
    /// `None` says nothing about the message: [`Header::parse`](super::Header::parse) does. What is returned, it returns too.
    /// The Payload stream is not looked at.
    #[inline(always)]
    #[must_use]
    pub fn parse(message: &[u8]) -> Option<(Single, &[u8])> {
        let (head, stream) = message.split_first_chunk::<SINGLE_LEN>()?;
        let word = |at: usize| {
            let at = size_of::<u32>() * at;
            u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
        };
        let segment = |at: usize| Segment {
            handle: word(at),
            length: word(at + 1),
            offset: u64::from(word(at + 2)) << 32 | u64::from(word(at + 3)),
        };
        let fixed = word(1) ^ VERSION | word(3) ^ procedure::MSG;
        let (differs, chunk) = match word(4) {
            0 => (word(5) ^ 1 | word(6) ^ 1 | word(11) | word(12), SingleChunk::Write(segment(7))),
            1 => {
                let position = word(5);
                // Position 0 is for a Long Call, which is no RDMA_MSG.
                let is_odd = u32::from(position == 0 || !position.is_multiple_of(4));
                let read = ReadSegment { position, segment: segment(6) };
                (word(10) | word(11) | word(12) | is_odd, SingleChunk::Read(read))
            }
            _ => return None,
        };
        let Segment { length, offset, .. } = chunk.segment();
        let ends = offset.checked_add(u64::from(length)).is_some();
        (fixed | differs == 0 && ends).then(|| (Single { xid: word(0), credits: word(2), chunk }, stream))
    }

    /// As [`Single::parse`], of a message with a Write chunk. `None`: it has none, or says nothing.
    // `inline(always)`: the result is large; inlined, it never goes through memory.
    #[inline(always)]
    #[must_use]
    pub fn parse_write(message: &[u8]) -> Option<(u32, u32, Segment)> {
        let head: &[u8; SINGLE_LEN] = message.first_chunk()?;
        let (words, _) = head.as_chunks::<{ size_of::<u32>() }>();
        let word = |at: usize| u32::from_be_bytes(words[at]);
        let differs = (word(1) ^ VERSION)
            | (word(3) ^ procedure::MSG)
            | word(4)
            | (word(5) ^ 1)
            | (word(6) ^ 1)
            | word(11)
            | word(12);
        let offset = u64::from(word(9)) << 32 | u64::from(word(10));
        let segment = Segment { handle: word(7), length: word(8), offset };
        let ends = offset.checked_add(u64::from(segment.length)).is_some();
        (differs == 0 && ends).then(|| (word(0), word(2), segment))
    }

    /// As [`Single::emit`], of a message with a Write chunk.
    ///
    /// # Errors
    ///
    /// As of [`Single::emit`].
    // `inline(always)`: the header is built in its place, not copied there.
    #[inline(always)]
    pub fn emit_write(buf: &mut [u8], xid: u32, credits: u32, segment: Segment) -> Result<(), Overflow> {
        let head = buf.first_chunk_mut::<SINGLE_LEN>().ok_or(Overflow)?;
        let Segment { handle, length, offset } = segment;
        let (high, low) = ((offset >> 32) as u32, offset as u32);
        let (words, _) = head.as_chunks_mut::<{ size_of::<u32>() }>();
        // One list, not two that are chained: that would be a loop.
        let all = [xid, VERSION, credits, procedure::MSG, 0, 1, 1, handle, length, high, low, 0, 0];
        for (place, word) in words.iter_mut().zip(all) {
            *place = word.to_be_bytes();
        }
        Ok(())
    }

    /// Writes the header, and returns the rest of `buf`, where the Payload stream goes.
    ///
    /// # Errors
    ///
    /// [`Overflow`] when `buf` is shorter than [`SINGLE_LEN`]; nothing is written then.
    #[inline]
    pub fn emit<'b>(&self, buf: &'b mut [u8]) -> Result<&'b mut [u8], Overflow> {
        let (head, rest) = buf.split_first_chunk_mut::<SINGLE_LEN>().ok_or(Overflow)?;
        let Segment { handle, length, offset } = self.chunk.segment();
        let (high, low) = ((offset >> 32) as u32, offset as u32);
        let start = [self.xid, VERSION, self.credits, procedure::MSG];
        let lists = match self.chunk {
            SingleChunk::Write(_) => [0, 1, 1, handle, length, high, low, 0, 0],
            SingleChunk::Read(read) => [1, read.position, handle, length, high, low, 0, 0, 0],
        };
        let (words, _) = head.as_chunks_mut::<{ size_of::<u32>() }>();
        for (place, word) in words.iter_mut().zip(start.into_iter().chain(lists)) {
            *place = word.to_be_bytes();
        }
        Ok(rest)
    }
}
