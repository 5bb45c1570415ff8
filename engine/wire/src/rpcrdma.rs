//! RPC-over-RDMA version 1 transport header (RFC 8166).
//!
//! [`Header::parse`] checks a header once. After it returns `Ok`, no accessor and no iterator can fail,
//! and none copies more than the words it returns. [`Emitter`] writes a header, [`emit_plain`] the 28
//! octets of one without chunks, [`emit_err_vers`] and [`emit_err_chunk`] the two errors. [`Single`] parses and emits the
//! header with one chunk of one segment faster.
//!
//! ```text
//!  0       4          8         12      16
//!  | xid   | version  | credits | proc  | MSG, NOMSG:  Read list, Write list, Reply chunk
//!                                       | ERROR:       ERR_VERS low high, or ERR_CHUNK
//!
//!  Read list     1 - PHLOO - 1 - PHLOO - ... - 0
//!  Write list    1 - N - HLOO - HLOO - ... - 1 - N - HLOO - ... - 0
//!  Reply chunk   0, or 1 - N - HLOO - HLOO - ...
//! ```
//!
//! P, H, L and O are position, handle, length and offset; N counts the HLOO that follow it.

mod chunk;
mod done;
mod emitter;
mod error;
mod header;
mod lists;
mod single;

pub use chunk::{ReadList, ReadSegment, Segment, Segments, WriteChunk, WriteList};
pub use done::Done;
pub use emitter::{
    Emitter, MessageKind, emit_err_chunk, emit_err_vers, emit_plain, header_len, replace_read_segments,
};
pub use error::{Answer, HeaderError};
pub use header::{Direction, ErrorBody, Fixed, Header, Layout, MessageProcedure};
pub use lists::HeaderLists;
pub use single::{Single, SingleChunk};

/// The protocol version of this module (8166-4.2.2-a).
pub const VERSION: u32 = 1;

/// Octets of the words that are the same in all versions (8166-4.1-a).
pub const FIXED_LEN: usize = 16;

/// Octets of a header without chunks, the smallest of RDMA_MSG and RDMA_NOMSG (8166-4.1-b).
pub const HEADER_LEN_MIN: usize = 28;

/// Octets of a header with one chunk of one segment ([`Single`]).
pub const SINGLE_LEN: usize = 52;

/// Octets of an ERR_VERS message.
pub const ERR_VERS_LEN: usize = 28;

/// Octets of an ERR_CHUNK message.
pub const ERR_CHUNK_LEN: usize = 20;

/// Octets of an RDMA_DONE.
pub const DONE_LEN: usize = FIXED_LEN;

/// Octets of a plain segment in a Write list or Reply chunk.
pub const SEGMENT_LEN: usize = 16;

/// Octets of a read segment, with the list word in front of it.
pub const READ_SEGMENT_LEN: usize = 24;

/// Inline threshold of both directions when nothing else was agreed (8166-3.3.3-b).
pub const INLINE_THRESHOLD_DEFAULT: u32 = 1024;

/// Port of NFS over RDMA (8166-5-c).
pub const NFS_PORT: u16 = 20049;

/// Segments, of all lists together, that [`Header::parse`] accepts in one header (8166-X-13).
///
/// It is what the lists of a message of 4096 octets, the customary inline threshold, can hold.
pub const SEGMENTS_MAX: u32 = 256;

/// Values of the fourth fixed word.
pub mod procedure {
    /// The Payload stream follows the header.
    pub const MSG: u32 = 0;
    /// The Payload stream is in a chunk.
    pub const NOMSG: u32 = 1;
    /// Padded message: no longer used (8166-4.6.1-a).
    pub const MSGP: u32 = 2;
    /// Acknowledgement: used only where both ends agreed on reliable replies (8166-4.6.2-a, RR-P-1).
    pub const DONE: u32 = 3;
    /// The Call could not be processed by the transport.
    pub const ERROR: u32 = 4;
}

/// Values of the error code in an RDMA_ERROR.
pub mod errcode {
    /// The version is not supported.
    pub const VERS: u32 = 1;
    /// The header or its chunks could not be processed.
    pub const CHUNK: u32 = 2;
}
