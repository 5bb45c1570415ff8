//! The three chunk lists of a header, which versions 1 and 2 lay out alike.

use super::chunk::{ReadList, ReadSegment, Segment, WriteChunk, WriteList};
use super::{HeaderError, READ_SEGMENT_LEN};

/// The chunk lists of a checked header, borrowed from the Receive buffer that they arrived in.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeaderLists<'a> {
    pub(super) reads: &'a [[u8; READ_SEGMENT_LEN]],
    /// Entries of the Write list, without the word that ends it.
    pub(super) writes: &'a [u8],
    pub(super) write_chunks: u32,
    pub(super) reply: Option<WriteChunk<'a>>,
    pub(super) has_position_zero: bool,
}

impl<'a> HeaderLists<'a> {
    /// Checks the lists at the start of `body`, and returns them with what follows.
    ///
    /// Accepts at most `segments_max` segments, and as many Write chunks (8166-X-13).
    #[inline]
    pub(crate) fn parse(
        body: &'a [u8],
        segments_max: u32,
    ) -> Result<(HeaderLists<'a>, &'a [u8]), HeaderError> {
        let too_many = HeaderError::TooManySegments { limit: segments_max };
        let mut room = segments_max;
        let mut rest = body;

        let mut read_segments = 0;
        let mut has_position_zero = false;
        while list_word(rest)? {
            let Some((entry, after)) = rest.split_first_chunk() else { return Err(HeaderError::Truncated) };
            room = room.checked_sub(1).ok_or(too_many)?;
            let entry = ReadSegment::from_wire(entry);
            if !entry.position.is_multiple_of(4) {
                return Err(HeaderError::Position(entry.position));
            }
            check_range(entry.segment)?;
            has_position_zero |= entry.position == 0;
            read_segments += 1;
            rest = after;
        }
        let (reads, _) = body[..READ_SEGMENT_LEN * read_segments].as_chunks();
        rest = &rest[size_of::<u32>()..];

        let writes = rest;
        let mut write_chunks = 0;
        while list_word(rest)? {
            rest = &rest[size_of::<u32>()..];
            take_chunk(&mut rest, &mut room, too_many)?;
            write_chunks += 1;
            // An empty Write chunk uses no segment but has to be bounded too.
            if write_chunks > segments_max {
                return Err(too_many);
            }
        }
        let writes = &writes[..writes.len() - rest.len()];
        rest = &rest[size_of::<u32>()..];

        let present = list_word(rest)?;
        rest = &rest[size_of::<u32>()..];
        let reply = if present { Some(take_chunk(&mut rest, &mut room, too_many)?) } else { None };
        Ok((HeaderLists { reads, writes, write_chunks, reply, has_position_zero }, rest))
    }

    /// Iterates over the Read list.
    #[inline]
    #[must_use]
    pub fn read_list(&self) -> ReadList<'a> {
        ReadList::new(self.reads)
    }

    /// Iterates over the Write list.
    #[inline]
    #[must_use]
    pub fn write_list(&self) -> WriteList<'a> {
        WriteList::new(self.writes, self.write_chunks as usize)
    }

    /// Returns the number of Write chunks, empty ones included.
    #[inline]
    #[must_use]
    pub const fn write_chunk_count(&self) -> usize {
        self.write_chunks as usize
    }

    /// Returns the Reply chunk.
    #[inline]
    #[must_use]
    pub const fn reply_chunk(&self) -> Option<WriteChunk<'a>> {
        self.reply
    }

    /// Tells whether the Read list has a Position Zero Read chunk.
    #[inline]
    #[must_use]
    pub const fn has_position_zero(&self) -> bool {
        self.has_position_zero
    }

    /// Tells whether all lists are absent.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty() && self.reply.is_none()
    }
}

/// Returns the next word, and leaves `rest` behind it.
#[inline]
pub(super) fn take_word(rest: &mut &[u8]) -> Result<u32, HeaderError> {
    let (word, after) = rest.split_first_chunk().ok_or(HeaderError::Truncated)?;
    *rest = after;
    Ok(u32::from_be_bytes(*word))
}

/// Looks at the word that says whether an entry follows. On `Ok` the word is there.
#[inline]
fn list_word(rest: &[u8]) -> Result<bool, HeaderError> {
    let Some(word) = rest.first_chunk() else { return Err(HeaderError::Truncated) };
    match u32::from_be_bytes(*word) {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(HeaderError::ListWord(found)),
    }
}

/// Splits a chunk off `rest`, after checking it, and takes its segments from `room`.
#[inline]
fn take_chunk<'a>(
    rest: &mut &'a [u8],
    room: &mut u32,
    too_many: HeaderError,
) -> Result<WriteChunk<'a>, HeaderError> {
    // The limit first: a count above it is refused as such, whatever the length of the message.
    let Some(count) = rest.first_chunk() else { return Err(HeaderError::Truncated) };
    let count = u32::from_be_bytes(*count);
    *room = room.checked_sub(count).ok_or(too_many)?;
    let Some((chunk, after)) = WriteChunk::split(rest) else { return Err(HeaderError::Truncated) };
    chunk.segments().try_for_each(check_range)?;
    *rest = after;
    Ok(chunk)
}

/// Refuses a segment whose end exceeds 64 bits, so that later sums cannot overflow.
#[inline]
fn check_range(segment: Segment) -> Result<(), HeaderError> {
    if segment.ends() { Ok(()) } else { Err(HeaderError::SegmentRange) }
}
