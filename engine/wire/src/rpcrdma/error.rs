//! Why a transport header was refused, and the error that its sender gets.

/// What a Responder does about a message it refuses. A Requester drops every message it refuses
/// (8166-4.5-c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing is sent; the Receive is posted again.
    Drop,
    /// RDMA_ERROR with ERR_VERS: same xid, same version word, and the range of versions (8166-4.5.1-a).
    ErrVers,
    /// RDMA_ERROR with ERR_CHUNK: same xid, same version word (8166-4.5.2-a).
    ErrChunk,
}

/// Why a transport header was refused. [`HeaderError::answer`] is the error that the peer gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderError {
    /// The message is shorter than the smallest of its kind: 16 octets for any, 28 for one with chunk
    /// lists (8166-4.5-a, 8166-X-1).
    Short,
    /// The version is not 1 (8166-4.5.1-a).
    Version(u32),
    /// RDMA_DONE (8166-4.6.2-a).
    Done,
    /// RDMA_MSGP (8166-4.6.1-a).
    Padded,
    /// A procedure that does not exist (8166-4.5.2-a).
    Procedure(u32),
    /// An RDMA_ERROR whose body cannot be decoded (8166-4.5-e).
    ErrorBody,
    /// The message ends before its chunk lists do.
    Truncated,
    /// A word that says whether an entry follows is neither 0 nor 1 (8166-X-2).
    ListWord(u32),
    /// The lists hold more segments, or more Write chunks, than the limit (8166-X-13).
    TooManySegments {
        /// The limit.
        limit: u32,
    },
    /// A Position is not a multiple of 4 (8166-3.4.5-a).
    Position(u32),
    /// Offset plus length of a segment exceeds 64 bits: no memory is there.
    SegmentRange,
    /// RDMA_MSG with a Position Zero Read chunk: the Payload would be there twice (8166-X-3).
    PositionZero,
    /// RDMA_NOMSG without the chunk that holds the Payload stream (8166-4.2.4-b, 8166-X-4).
    NoPayload,
    /// The Payload stream is too short to have an xid and a msg_type.
    PayloadShort,
    /// The xid of the Payload stream is not that of the header (8166-4.2.1-a).
    Xid {
        /// The xid of the Payload stream.
        payload: u32,
    },
    /// A Reply with a Read list (8166-4.3.1-a).
    ReadListInReply,
    /// A Reply as RDMA_MSG whose Reply chunk claims to hold octets.
    ReplyChunkWithMessage,
    /// An RDMA_ERROR where a Call was expected (8166-4.2.4-c), or where a Reply's lists were.
    UnexpectedError,
}

impl HeaderError {
    /// Returns what a Responder does about the message. An error is never answered with an error.
    #[inline]
    #[must_use]
    pub const fn answer(self) -> Answer {
        match self {
            HeaderError::Short
            | HeaderError::Done
            | HeaderError::ErrorBody
            | HeaderError::UnexpectedError => Answer::Drop,
            // These are found in Replies only.
            HeaderError::ReadListInReply | HeaderError::ReplyChunkWithMessage => Answer::Drop,
            HeaderError::Version(_) => Answer::ErrVers,
            HeaderError::Padded
            | HeaderError::Procedure(_)
            | HeaderError::Truncated
            | HeaderError::ListWord(_)
            | HeaderError::TooManySegments { .. }
            | HeaderError::Position(_)
            | HeaderError::SegmentRange
            | HeaderError::PositionZero
            | HeaderError::NoPayload
            | HeaderError::PayloadShort
            | HeaderError::Xid { .. } => Answer::ErrChunk,
        }
    }
}

impl core::fmt::Display for HeaderError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            HeaderError::Short => f.write_str("the message is shorter than any of its kind"),
            HeaderError::Version(found) => write!(f, "version {found} is not supported, 1 is"),
            HeaderError::Done => f.write_str("RDMA_DONE is not in use"),
            HeaderError::Padded => f.write_str("RDMA_MSGP is not in use"),
            HeaderError::Procedure(found) => write!(f, "procedure {found} does not exist"),
            HeaderError::ErrorBody => f.write_str("an RDMA_ERROR that cannot be decoded"),
            HeaderError::Truncated => f.write_str("the message ends inside its chunk lists"),
            HeaderError::ListWord(found) => write!(f, "list word {found} is neither 0 nor 1"),
            HeaderError::TooManySegments { limit } => write!(f, "more than {limit} segments"),
            HeaderError::Position(found) => write!(f, "Position {found} is not a multiple of 4"),
            HeaderError::SegmentRange => f.write_str("a segment ends beyond 64 bits"),
            HeaderError::PositionZero => f.write_str("RDMA_MSG with a Position Zero Read chunk"),
            HeaderError::NoPayload => f.write_str("RDMA_NOMSG without a chunk for the Payload stream"),
            HeaderError::PayloadShort => f.write_str("the Payload stream is shorter than 8 octets"),
            HeaderError::Xid { payload } => write!(f, "the Payload stream has another xid: {payload:#010x}"),
            HeaderError::ReadListInReply => f.write_str("a Reply with a Read list"),
            HeaderError::ReplyChunkWithMessage => f.write_str("RDMA_MSG with octets in its Reply chunk"),
            HeaderError::UnexpectedError => f.write_str("an RDMA_ERROR in the wrong direction"),
        }
    }
}

impl core::error::Error for HeaderError {}
