//! The chunk lists of a Call.

use stag_wire::rpcrdma::{ReadSegment, SINGLE_LEN, Segment, SingleChunk};

use crate::plan::CallForm;

/// The chunk lists of a Call, each segment as the fabric exposed it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChunkLists<'a> {
    /// Read segments; those of one chunk share a Position, those of a Long Call's Payload stream have
    /// Position 0. Written in ascending order of Position, whatever the order here (8166-X-9).
    pub reads: &'a [ReadSegment],
    /// Write chunks in the order of the results that they are for; an empty slice is an empty chunk.
    pub writes: &'a [&'a [Segment]],
    /// The Reply chunk.
    pub reply: Option<&'a [Segment]>,
}

impl ChunkLists<'_> {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty() && self.reply.is_none()
    }
}

/// The only chunk of `lists`, if there is one as `form` says, and it has one segment.
#[inline(always)]
pub(super) fn single_chunk(form: &CallForm, lists: &ChunkLists<'_>) -> Option<SingleChunk> {
    let is_planned = !form.long && !form.reply_chunk && form.header_len == const { SINGLE_LEN as u32 };
    match (lists.reads, lists.writes, lists.reply) {
        _ if !is_planned => None,
        // Position 0 is a Long Call's.
        ([read], [], None) if read.position != 0 && read.position.is_multiple_of(4) => {
            Some(SingleChunk::Read(*read))
        }
        ([], [[segment]], None) => Some(SingleChunk::Write(*segment)),
        _ => None,
    }
}
