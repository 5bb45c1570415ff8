//! RPC-over-RDMA version 2 as of June 2016 (version-two-01), with its transport characteristics and send-based placement.
//!
//! Three documents: the base with RDMA2_MSG, RDMA2_NOMSG, RDMA2_ERROR and RDMA2_OPTIONAL; the exchange of transport
//! characteristics (xcharext-00); and message continuation with send-based placement (rtrext-00). Later drafts of version 2 are
//! laid out otherwise and are not read here. Rules are `V2-*`, `XC-*` and `RTR-*` of `engine/spec`.
//!
//! [`Header2::parse`] and [`OptionalOperation::parse`] check a message once. What they return cannot fail afterwards.
//! [`start`] writes the header of a message with chunk lists, [`OptionalOperation::emit`] that of an operation,
//! [`emit_error`] an error.
//!
//! ```text
//!  0       4     8         12     16
//!  | xid   | 2   | credits | proc | MSG, NOMSG:  direction, Read list, Write list, Reply chunk
//!                                 | ERROR:       code, and low high behind ERR_VERS
//!                                 | OPTIONAL:    direction, operation, length, its octets
//! ```

mod characteristic;
mod elements;
mod error;
mod header;
mod lone;
mod message_type;
mod operation;
mod placement;
mod transmission;

pub use characteristic::{
    BufferGroup, BufferStructure, CharacteristicRequest, CharacteristicResponse, CharacteristicUpdate,
    CharacteristicValue, InitialCharacteristics, PositionSet, ReverseSupport,
};
pub use elements::{ElementIter, Elements};
pub use error::{Answer2, Error2, Refused2};
pub use header::{Body2, ErrorCode2, Header2, OptionMessage, emit_error, start};
pub use lone::{LonePlace, LoneTransmission};
pub use message_type::MessageType;
pub use operation::OptionalOperation;
pub use placement::{DirectedPlace, DirectionSet, ItemPlace, PlacedItem, ResultDirection};
pub use transmission::{
    Continuation, GroupFault, RequestTransmission, ResponseTransmission, TransmissionError, TransmissionId,
};

/// The protocol version of this module.
pub const VERSION: u32 = 2;

/// Octets of an RDMA2_MSG header without chunks.
pub const HEADER_LEN_MIN: usize = 32;

/// Octets of an RDMA2_OPTIONAL header without those of its operation.
pub const OPTIONAL_LEN_MIN: usize = 28;

/// Octets of the header of an XMTCONT.
pub const CONTINUATION_LEN: usize = OPTIONAL_LEN_MIN + 12;

/// Inline threshold of both directions when nothing else was agreed (V2-3-a).
pub const INLINE_THRESHOLD_DEFAULT: u32 = 4096;

/// Octets that the first message of a connection may have: the peer may speak version 1 only (V2-5-a).
pub const PROBE_LEN_MAX: u32 = crate::rpcrdma::INLINE_THRESHOLD_DEFAULT;

/// Values of the fourth fixed word.
pub mod procedure {
    /// The Payload stream follows the header.
    pub const MSG: u32 = 0;
    /// The Payload stream is in a chunk.
    pub const NOMSG: u32 = 1;
    /// A message could not be processed by the transport.
    pub const ERROR: u32 = 4;
    /// An operation of an extension.
    pub const OPTIONAL: u32 = 5;
}

/// Values of the error code in an RDMA2_ERROR.
pub mod errcode {
    /// The version is not supported.
    pub const VERS: u32 = 1;
    /// The header could not be processed.
    pub const BAD_HEADER: u32 = 2;
    /// The operation is not supported.
    pub const INVAL_OPTION: u32 = 3;
}

/// Numbers of the operations in an RDMA2_OPTIONAL.
pub mod option {
    /// ROPT_INITXCH: the sender's characteristics.
    pub const INITXCH: u32 = 1;
    /// ROPT_REQXCH: asks the peer to change its characteristics.
    pub const REQXCH: u32 = 2;
    /// ROPT_RESPXCH: what became of that.
    pub const RESPXCH: u32 = 3;
    /// ROPT_UPDXCH: one of the sender's characteristics changed.
    pub const UPDXCH: u32 = 4;
    /// ROPT_XMTREQ: the first transmission of a Call.
    pub const XMTREQ: u32 = 5;
    /// ROPT_XMTRESP: the first transmission of a Reply.
    pub const XMTRESP: u32 = 6;
    /// ROPT_XMTCONT: a further transmission of either.
    pub const XMTCONT: u32 = 7;
    /// ROPT_XMTERR: a transmission that cannot be taken.
    pub const XMTERR: u32 = 8;
}

/// Numbers of the transport characteristics.
pub mod characteristic_id {
    /// Octets of the smallest Receive that the sender posts.
    pub const RECEIVE_SIZE: u32 = 1;
    /// Whether the sender takes Sends with Invalidate, as a Requester.
    pub const REQUESTER_INVALIDATION: u32 = 2;
    /// Which Calls the sender takes as the one who opened the connection.
    pub const REVERSE_SUPPORT: u32 = 3;
    /// Which operations of rtrext the sender supports.
    pub const TRANSMISSION_SUPPORT: u32 = 4;
    /// How the sender's Receives are divided.
    pub const BUFFER_STRUCTURE: u32 = 5;
    /// Transmissions of the longest Call that the sender takes.
    pub const REQUEST_LIMIT: u32 = 6;
    /// Transmissions of the longest Reply that the sender makes.
    pub const RESPONSE_LIMIT: u32 = 7;
}

/// Bits of the characteristic [`characteristic_id::TRANSMISSION_SUPPORT`].
pub mod transmission_support {
    /// ROPT_XMTREQ is supported.
    pub const REQUEST: u32 = 1;
    /// ROPT_XMTRESP is supported.
    pub const RESPONSE: u32 = 2;
    /// ROPT_XMTCONT is supported.
    pub const CONTINUATION: u32 = 4;
}
