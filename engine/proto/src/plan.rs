//! Which form a message takes: Short, Chunked or Long (8166-3.5).
//!
//! The sizes decide, before anything is exposed or moved: [`CallForm::of_call`] on the Requester's side, and
//! the Responder's [`plan_reply`](crate::responder::Responder::plan_reply).

use stag_wire::rpcrdma;

use crate::parameters::Parameters;

/// Octets of a header without chunks.
const HEADER_LEN_MIN: u32 = rpcrdma::HEADER_LEN_MIN as u32;
/// Octets of one read segment in a header, its list word included.
pub(crate) const READ_SEGMENT_LEN: u32 = rpcrdma::READ_SEGMENT_LEN as u32;
/// Octets of one plain segment in a header.
const SEGMENT_LEN: u32 = rpcrdma::SEGMENT_LEN as u32;
/// Octets of a Write chunk in a header beside its segments: list word and count (8166-4.1.2-b).
const WRITE_CHUNK_LEN: u32 = 8;
/// Octets of a Reply chunk in a header beside its segments and its presence word: count (8166-4.1.2-c).
const REPLY_CHUNK_LEN: u32 = 4;

/// What a Call and its Reply will carry, as the Upper-Layer Binding reckons it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape<'a> {
    /// Octets of the Call's Payload stream after reduction.
    pub payload_len: u32,
    /// Read segments of the reduced arguments, all Read chunks together.
    pub read_segments: u32,
    /// Segments of each Write chunk, in list order; 0 for an empty chunk (8166-4.3.2.3-a).
    pub write_chunks: &'a [u32],
    /// The most that the Reply's Payload stream can be after reduction (8166-6.2-a).
    pub reply_payload_len_max: u32,
    /// Use a Long Call even if a Short one would do (8166-3.5.3-d): the Payload stream is not copied then.
    pub prefer_long_call: bool,
    /// Segments that a Position Zero Read chunk would have, if one is needed; 0 counts as 1.
    pub long_call_segments: u32,
    /// Segments that a Reply chunk would have, if one is needed; 0 counts as 1.
    pub reply_chunk_segments: u32,
}

/// The form of a Call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallForm {
    /// The Payload stream goes into a Position Zero Read chunk (RDMA_NOMSG); otherwise it follows the
    /// header (RDMA_MSG).
    pub long: bool,
    /// A Reply chunk goes with the Call.
    pub reply_chunk: bool,
    /// Octets of the header; the inline Payload starts there.
    pub header_len: u32,
}

/// Why a Call cannot be sent: it ends here, locally (8166-4.5.4-a).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// The header alone is longer than the call inline threshold.
    CallHeader {
        /// Octets of the header.
        len: u32,
        /// The call inline threshold.
        threshold: u32,
    },
    /// The Reply's header, which repeats the Write list and the Reply chunk, is longer than the reply
    /// inline threshold.
    ReplyHeader {
        /// Octets of the header.
        len: u32,
        /// The reply inline threshold.
        threshold: u32,
    },
    /// More segments than a Call of this Requester can carry.
    Segments {
        /// Segments wanted.
        count: u32,
        /// The limit.
        limit: u32,
    },
}

impl core::fmt::Display for PlanError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::CallHeader { len, threshold } => {
                write!(f, "the Call's header is {len} octets, the inline threshold {threshold}")
            }
            Self::ReplyHeader { len, threshold } => {
                write!(f, "the Reply's header would be {len} octets, the inline threshold is {threshold}")
            }
            Self::Segments { count, limit } => write!(f, "{count} segments, the limit is {limit}"),
        }
    }
}

impl core::error::Error for PlanError {}

impl CallForm {
    /// Decides the form of a Call.
    ///
    /// The Reply chunk is decided first, on what the Reply would be without one (8267-D-1): its header
    /// with the Write list repeated, and the largest Payload. So the decision does not depend on itself.
    pub fn of_call(shape: &Shape<'_>, parameters: &Parameters, segments_max: u32) -> Result<Self, PlanError> {
        let writes_len = write_list_len(shape.write_chunks);
        let mut segments = shape.read_segments.saturating_add(sum(shape.write_chunks));

        // 8166-4.3.3-a
        let threshold = parameters.reply_threshold;
        let mut reply_header_len = HEADER_LEN_MIN.saturating_add(writes_len);
        let reply_chunk = reply_header_len.saturating_add(shape.reply_payload_len_max) > threshold;
        let mut reply_chunk_len = 0;
        if reply_chunk {
            let count = shape.reply_chunk_segments.max(1);
            segments = segments.saturating_add(count);
            reply_chunk_len = REPLY_CHUNK_LEN.saturating_add(SEGMENT_LEN.saturating_mul(count));
            reply_header_len = reply_header_len.saturating_add(reply_chunk_len);
        }

        // 8166-3.5.1-a, 8166-3.5.2-a, 8166-3.5.3-a
        let mut header_len = HEADER_LEN_MIN
            .saturating_add(READ_SEGMENT_LEN.saturating_mul(shape.read_segments))
            .saturating_add(writes_len)
            .saturating_add(reply_chunk_len);
        let long = shape.prefer_long_call
            || header_len.saturating_add(shape.payload_len) > parameters.call_threshold;
        if long {
            let count = shape.long_call_segments.max(1);
            segments = segments.saturating_add(count);
            header_len = header_len.saturating_add(READ_SEGMENT_LEN.saturating_mul(count));
        }

        if segments > segments_max {
            return Err(PlanError::Segments { count: segments, limit: segments_max });
        }
        if header_len > parameters.call_threshold {
            return Err(PlanError::CallHeader { len: header_len, threshold: parameters.call_threshold });
        }
        if reply_header_len > threshold {
            return Err(PlanError::ReplyHeader { len: reply_header_len, threshold });
        }
        Ok(Self { long, reply_chunk, header_len })
    }
}

fn write_list_len(chunks: &[u32]) -> u32 {
    chunks.iter().fold(0, |len: u32, &segments| {
        len.saturating_add(WRITE_CHUNK_LEN).saturating_add(SEGMENT_LEN.saturating_mul(segments))
    })
}

fn sum(counts: &[u32]) -> u32 {
    counts.iter().fold(0, |sum: u32, &count| sum.saturating_add(count))
}
