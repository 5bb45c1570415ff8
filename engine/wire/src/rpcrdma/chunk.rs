//! Segments, chunks, and the iterators over a checked header's lists.
//!
//! The iterators re-read the wire words. On octets that passed [`super::Header::parse`] they cannot fail;
//! on any others they end early, and never go beyond the slice.

use super::{READ_SEGMENT_LEN, SEGMENT_LEN};

/// A plain segment: one contiguous piece of the peer's registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Steering tag (STag, R_key).
    pub handle: u32,
    /// Octets.
    pub length: u32,
    /// Where the piece starts. Opaque: an address of the peer, or counted from 0 (8166-4.4.3-a).
    pub offset: u64,
}

impl Segment {
    /// Tells whether its end is a 64-bit number: no memory is beyond.
    #[inline]
    pub(crate) const fn ends(&self) -> bool {
        self.offset.checked_add(self.length as u64).is_some()
    }

    #[inline]
    pub(crate) fn from_wire(wire: &[u8; SEGMENT_LEN]) -> Segment {
        let [h0, h1, h2, h3, l0, l1, l2, l3, offset @ ..] = *wire;
        Segment {
            handle: u32::from_be_bytes([h0, h1, h2, h3]),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
            offset: u64::from_be_bytes(offset),
        }
    }

    #[inline]
    pub(crate) fn to_wire(self) -> [u8; SEGMENT_LEN] {
        let [h0, h1, h2, h3] = self.handle.to_be_bytes();
        let [l0, l1, l2, l3] = self.length.to_be_bytes();
        let [o0, o1, o2, o3, o4, o5, o6, o7] = self.offset.to_be_bytes();
        [h0, h1, h2, h3, l0, l1, l2, l3, o0, o1, o2, o3, o4, o5, o6, o7]
    }
}

/// An entry of the Read list. All entries of equal Position are one Read chunk (8166-3.4.5-a).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadSegment {
    /// Offset in the unreduced Payload stream where the data belongs. A multiple of 4.
    pub position: u32,
    /// The memory to read.
    pub segment: Segment,
}

impl ReadSegment {
    /// Reads an entry with its list word in front.
    #[inline]
    pub(super) fn from_wire(wire: &[u8; READ_SEGMENT_LEN]) -> ReadSegment {
        let [_, _, _, _, p0, p1, p2, p3, segment @ ..] = wire;
        ReadSegment {
            position: u32::from_be_bytes([*p0, *p1, *p2, *p3]),
            segment: Segment::from_wire(segment),
        }
    }
}

/// Iterates over the Read list, in list order.
#[derive(Clone, Debug)]
pub struct ReadList<'a> {
    entries: core::slice::Iter<'a, [u8; READ_SEGMENT_LEN]>,
}

impl<'a> ReadList<'a> {
    #[inline]
    pub(super) fn new(entries: &'a [[u8; READ_SEGMENT_LEN]]) -> ReadList<'a> {
        ReadList { entries: entries.iter() }
    }
}

impl Iterator for ReadList<'_> {
    type Item = ReadSegment;

    #[inline]
    fn next(&mut self) -> Option<ReadSegment> {
        self.entries.next().map(ReadSegment::from_wire)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.entries.size_hint()
    }
}

impl ExactSizeIterator for ReadList<'_> {}
impl core::iter::FusedIterator for ReadList<'_> {}

/// Iterates over the segments of a Write chunk or Reply chunk.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    segments: core::slice::Iter<'a, [u8; SEGMENT_LEN]>,
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        self.segments.next().map(Segment::from_wire)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.segments.size_hint()
    }
}

impl ExactSizeIterator for Segments<'_> {}
impl core::iter::FusedIterator for Segments<'_> {}

/// A Write chunk, or the Reply chunk: a counted array of segments in the Receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteChunk<'a> {
    segments: &'a [[u8; SEGMENT_LEN]],
}

impl<'a> WriteChunk<'a> {
    /// Splits a chunk that starts with its segment count off `bytes`.
    #[inline]
    pub(super) fn split(bytes: &'a [u8]) -> Option<(WriteChunk<'a>, &'a [u8])> {
        let (count, rest) = bytes.split_first_chunk()?;
        let len = (u32::from_be_bytes(*count) as usize).checked_mul(SEGMENT_LEN)?;
        let (segments, rest) = rest.split_at_checked(len)?;
        Some((WriteChunk { segments: segments.as_chunks().0 }, rest))
    }

    /// Returns the number of segments. 0 makes the chunk *empty*.
    #[inline]
    #[must_use]
    pub const fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// Tells whether the chunk is *empty*: without segments (8166-4.3.2.3-a).
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Iterates over the segments.
    #[inline]
    #[must_use]
    pub fn segments(&self) -> Segments<'a> {
        Segments { segments: self.segments.iter() }
    }

    /// Returns the sum of the segments' lengths: in a Call the room, in a Reply the octets written.
    #[inline]
    #[must_use]
    pub fn total_len(&self) -> u64 {
        self.segments().map(|segment| u64::from(segment.length)).sum()
    }
}

/// Iterates over the Write list, in list order.
#[derive(Clone, Debug)]
pub struct WriteList<'a> {
    /// Entries, each with its list word; without the word that ends the list.
    entries: &'a [u8],
    count: usize,
}

impl<'a> WriteList<'a> {
    #[inline]
    pub(super) fn new(entries: &'a [u8], count: usize) -> WriteList<'a> {
        WriteList { entries, count }
    }
}

impl<'a> Iterator for WriteList<'a> {
    type Item = WriteChunk<'a>;

    #[inline]
    fn next(&mut self) -> Option<WriteChunk<'a>> {
        self.count = self.count.checked_sub(1)?;
        let split = self.entries.get(size_of::<u32>()..).and_then(WriteChunk::split);
        let Some((chunk, rest)) = split else {
            self.count = 0;
            return None;
        };
        self.entries = rest;
        Some(chunk)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.count))
    }
}

impl core::iter::FusedIterator for WriteList<'_> {}
