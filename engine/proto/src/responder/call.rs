//! A Call, as a view of its message.

use stag_wire::rpcrdma::{
    HEADER_LEN_MIN, Header, HeaderLists, ReadList, SINGLE_LEN, Segment, SingleChunk, WriteChunk, WriteList,
};

use crate::reads::{self, ReadChunks};

/// Names one Call of one Responder. A stale one is recognised, even when the peer used its xid again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResponderCallId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl ResponderCallId {
    /// Its slot: small and dense, so that the driver can index an array with it.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// A Call, as a view of its message. [`Responder::call`](super::Responder::call) makes it again from the kept message.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedCall<'m> {
    /// Its name.
    pub id: ResponderCallId,
    /// Its Payload stream.
    pub payload: CallPayload<'m>,
    pub(super) xid: u32,
    pub(super) chunks: Chunks<'m>,
}

/// The chunks of a Call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Chunks<'m> {
    None,
    /// One chunk of one segment, and the message that it is in.
    Single(SingleChunk, &'m [u8]),
    /// Any lists.
    Lists(Header<'m>),
    /// Those of a message of version 2.
    Version2(HeaderLists<'m>),
}

/// Where the Payload stream of a Call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPayload<'m> {
    /// In the message.
    Inline(&'m [u8]),
    /// In the Position Zero Read chunk: pull this many octets, then ask
    /// [`Responder::handle_pulled`](super::Responder::handle_pulled).
    Long(u32),
}

impl<'m> ReceivedCall<'m> {
    /// The xid.
    #[inline]
    #[must_use]
    pub fn xid(&self) -> u32 {
        self.xid
    }

    /// Whether the Call has no chunk at all: nothing to pull, nothing to write to.
    #[inline]
    #[must_use]
    pub fn is_plain(&self) -> bool {
        matches!(self.chunks, Chunks::None)
    }

    /// Its only chunk, if it has one only, and that is of one segment: the usual case, which needs no walk over lists. The
    /// other accessors show it as well.
    #[inline]
    #[must_use]
    pub fn single(&self) -> Option<SingleChunk> {
        match self.chunks {
            Chunks::Single(chunk, _) => Some(chunk),
            Chunks::None | Chunks::Lists(_) | Chunks::Version2(_) => None,
        }
    }

    /// Octets of the header of an inline Reply; `None`: only a plan tells.
    #[inline]
    #[must_use]
    pub fn inline_header_len(&self) -> Option<usize> {
        match self.chunks {
            Chunks::None | Chunks::Single(SingleChunk::Read(_), _) => Some(HEADER_LEN_MIN),
            Chunks::Single(SingleChunk::Write(_), _) => Some(SINGLE_LEN),
            Chunks::Lists(_) | Chunks::Version2(_) => None,
        }
    }

    /// The segments of the Position Zero Read chunk.
    pub fn long_segments(&self) -> impl Iterator<Item = Segment> + Clone + use<'m> {
        reads::segments_at(self.read_list(), 0)
    }

    /// The other Read chunks, ascending by Position. They fit into the Payload stream and do not overlap;
    /// whether they are where the arguments have their items, only the decoder can tell: GARBAGE_ARGS if
    /// not (8166-4.5.2-b), or [`Responder::refuse`](super::Responder::refuse) if the item is not eligible (8166-6.1-c).
    #[inline]
    pub fn read_chunks(&self) -> ReadChunks<'m> {
        ReadChunks::new(self.read_list())
    }

    /// The number of [`ReceivedCall::read_chunks`].
    #[inline]
    #[must_use]
    pub fn read_chunk_count(&self) -> usize {
        match self.chunks {
            Chunks::None | Chunks::Single(SingleChunk::Write(_), _) => 0,
            Chunks::Single(SingleChunk::Read(_), _) => 1,
            Chunks::Lists(_) | Chunks::Version2(_) => self.read_chunks().count(),
        }
    }

    /// The Write chunk for the eligible result item number `item` of the Reply, counted from 0 in Payload
    /// order. `None`: the item goes into the Payload stream, because there is no chunk for it or an empty
    /// one (8166-4.3.2.3).
    ///
    /// Items are counted by the results that can have one (8267-X-1): one that failed counts, with length 0.
    #[inline]
    #[must_use]
    pub fn write_chunk(&self, item: usize) -> Option<WriteChunk<'m>> {
        if self.is_plain() {
            return None;
        }
        self.write_list().nth(item).filter(|chunk| !chunk.is_empty())
    }

    /// Octets that [`ReceivedCall::write_chunk`] has room for; `None` where that is.
    #[inline]
    #[must_use]
    pub fn write_room(&self, item: usize) -> Option<u64> {
        match self.chunks {
            Chunks::Single(SingleChunk::Write(segment), _) if item == 0 => Some(segment.length.into()),
            Chunks::None | Chunks::Single(..) => None,
            Chunks::Lists(_) | Chunks::Version2(_) => self.write_chunk(item).map(|chunk| chunk.total_len()),
        }
    }

    /// The Reply chunk, for [`ReplyForm::long`](super::ReplyForm::long) Replies.
    #[inline]
    #[must_use]
    pub fn reply_chunk(&self) -> Option<WriteChunk<'m>> {
        match self.chunks {
            Chunks::Lists(header) => header.reply_chunk(),
            Chunks::Version2(lists) => lists.reply_chunk(),
            Chunks::None | Chunks::Single(..) => None,
        }
    }

    #[inline]
    fn read_list(&self) -> ReadList<'m> {
        match self.chunks {
            Chunks::Lists(header) => header.read_list(),
            Chunks::None => HeaderLists::default().read_list(),
            Chunks::Single(chunk, message) => single_header(chunk, message).read_list(),
            Chunks::Version2(lists) => lists.read_list(),
        }
    }

    #[inline]
    pub(super) fn write_list(&self) -> WriteList<'m> {
        match self.chunks {
            Chunks::Lists(header) => header.write_list(),
            Chunks::None => HeaderLists::default().write_list(),
            Chunks::Single(chunk, message) => single_header(chunk, message).write_list(),
            Chunks::Version2(lists) => lists.write_list(),
        }
    }
}

/// The header of a message whose only chunk was found in it.
#[inline]
fn single_header(chunk: SingleChunk, message: &[u8]) -> Header<'_> {
    Header::with_layout(message, chunk.layout()).expect("the chunk was found in this message")
}
