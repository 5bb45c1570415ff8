//! The chunk lists that a Call offers to the Responder, as they were exposed.

use arrayvec::ArrayVec;
use stag_fabric::{Exposed, PostError, Provider, RemoteSegment};
use stag_memory::{Buf, Shared};
use stag_proto::requester::ChunkLists;
use stag_wire::rpcrdma::{ReadSegment, Segment};

use crate::ConnectionId;
use crate::client::CLIENT_SEGMENTS_MAX;
use crate::state::Core;

/// Segments of each Write chunk.
pub(crate) struct WriteCounts {
    counts: [u32; CLIENT_SEGMENTS_MAX],
    len: usize,
}

impl WriteCounts {
    /// Counts them by the number of the chunk that each belongs to.
    #[inline]
    pub(crate) fn of(chunks: impl IntoIterator<Item = u8>) -> WriteCounts {
        let mut counts = WriteCounts { counts: [0; CLIENT_SEGMENTS_MAX], len: 0 };
        for chunk in chunks {
            let chunk = usize::from(chunk).min(CLIENT_SEGMENTS_MAX - 1);
            counts.counts[chunk] += 1;
            counts.len = counts.len.max(chunk + 1);
        }
        counts
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u32] {
        &self.counts[..self.len]
    }
}

/// Lets `emit` write the header of a Call with chunks.
pub(crate) fn emit_chunks<R>(lists: &Lists, counts: &[u32], emit: impl FnOnce(&ChunkLists<'_>) -> R) -> R {
    let mut writes: ArrayVec<&[Segment], CLIENT_SEGMENTS_MAX> = ArrayVec::new();
    let mut at = 0;
    for &count in counts {
        writes.push(&lists.writes[at..at + count as usize]);
        at += count as usize;
    }
    let reply = lists.reply.as_ref().map(std::slice::from_ref);
    emit(&ChunkLists { reads: &lists.reads, writes: &writes, reply })
}

/// The chunk lists of one Call, as exposed.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    pub(crate) reads: ArrayVec<ReadSegment, { CLIENT_SEGMENTS_MAX + 1 }>,
    pub(crate) writes: ArrayVec<Segment, CLIENT_SEGMENTS_MAX>,
    pub(crate) reply: Option<Segment>,
}

impl Lists {
    pub(crate) fn expose_read<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        at: u32,
        data: Shared,
    ) -> Result<(), PostError> {
        let len = data.len() as u32;
        match core.provider.expose(id, Exposed::Read(data)) {
            Ok(source) => {
                self.reads.push(ReadSegment { position: at, segment: segment(source, len) });
                core.statistics.read_chunks += u64::from(at != 0);
                Ok(())
            }
            Err(refused) => Err(refused.error),
        }
    }
}

#[inline]
pub(crate) fn segment(remote: RemoteSegment, length: u32) -> Segment {
    Segment { handle: remote.handle.0, length, offset: remote.offset }
}

pub(crate) fn write_buf(exposed: Exposed) -> Option<Buf> {
    match exposed {
        Exposed::Write(buf) => Some(buf),
        Exposed::Read(_) => None,
    }
}
