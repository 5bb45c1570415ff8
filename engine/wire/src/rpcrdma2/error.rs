//! Why a message of version 2 was refused, and the error that its sender gets.

use super::message_type::MessageType;
use crate::rpcrdma;
use crate::xdr;

/// What the receiver of a refused message sends back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer2 {
    /// Nothing; the Receive is posted again.
    Drop,
    /// RDMA2_ERROR with ERR_VERS: same xid, same version word, and the range of versions.
    ErrVers,
    /// RDMA2_ERROR with BAD_HEADER (V2-4.2.3-a).
    BadHeader,
    /// RDMA2_ERROR with INVAL_OPTION (V2-4.2.3-a).
    InvalidOption,
}

/// Why a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error2 {
    /// The message is shorter than the smallest of its kind: 16 octets for any, 32 for one with chunk lists, 28 for an
    /// operation.
    Short,
    /// The version is not 2.
    Version(u32),
    /// A procedure that does not exist.
    Procedure(u32),
    /// An RDMA2_ERROR that cannot be decoded.
    ErrorBody,
    /// The direction is neither CALL nor REPLY.
    Direction(u32),
    /// The chunk lists, or what they must hold for a message of this kind.
    Lists(rpcrdma::HeaderError),
    /// The direction of the header is not the msg_type of the Payload stream (V2-4.2.2-b).
    OtherDirection,
    /// An operation that only goes in the other direction (V2-4.2.2-d, RTR-9.2-a, RTR-9.3-a).
    OperationDirection(u32),
    /// The octets of the operation are more than the message has.
    OptionLength(u32),
    /// An operation that does not exist, or is not supported (V2-4.2.3-a).
    UnknownOption(u32),
    /// The octets of the operation are not the XDR that it is declared with.
    Xdr(xdr::XdrError),
    /// Offset plus length of a segment exceeds 64 bits: no memory is there.
    SegmentRange,
    /// A characteristic whose value does not have its type (XC-h).
    CharacteristicValue(u32),
    /// A Receive's structure whose parts are not as long as the whole (RTR-7.2-c).
    StructureLength,
    /// A placed item whose displacement is no multiple of 4, is not behind the one before, or ends beyond 32 bits.
    Displacement(u32),
    /// A request with a placement that only results have (RTR-X-13).
    ResultInRequest,
    /// Ranges of results that are not disjoint and increasing (RTR-7.4-a).
    Ranges,
    /// A group of no transmissions (RTR-X-14).
    EmptyGroup,
    /// A first transmission without the start of the Payload stream (RTR-X-11).
    EmptyStart,
}

/// A refused message: the reason, and the error that its sender gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused2 {
    /// Why.
    pub error: Error2,
    /// What is sent back. A Reply, and an error, are never answered (V2-X-5).
    pub answer: Answer2,
}

impl Refused2 {
    /// Says that `error` is answered by `answer`, if the message is a Call.
    pub(super) const fn new(error: Error2, direction: MessageType, answer: Answer2) -> Refused2 {
        match direction {
            MessageType::Call => Refused2 { error, answer },
            MessageType::Reply => Refused2::dropped(error),
        }
    }

    /// Says that the message is dropped.
    pub(super) const fn dropped(error: Error2) -> Refused2 {
        Refused2 { error, answer: Answer2::Drop }
    }
}

impl core::fmt::Display for Error2 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Error2::Short => f.write_str("the message is shorter than any of its kind"),
            Error2::Version(found) => write!(f, "version {found} is not supported, 2 is"),
            Error2::Procedure(found) => write!(f, "procedure {found} does not exist"),
            Error2::ErrorBody => f.write_str("an RDMA2_ERROR that cannot be decoded"),
            Error2::Direction(found) => write!(f, "direction {found} is neither CALL nor REPLY"),
            Error2::Lists(error) => error.fmt(f),
            Error2::OtherDirection => f.write_str("the header's direction is not that of the Payload stream"),
            Error2::OperationDirection(option) => write!(f, "operation {option} in the wrong direction"),
            Error2::OptionLength(found) => {
                write!(f, "the message ends before the {found} octets of its operation")
            }
            Error2::UnknownOption(found) => write!(f, "operation {found} is not supported"),
            Error2::Xdr(error) => write!(f, "operation: {error}"),
            Error2::SegmentRange => f.write_str("a segment ends beyond 64 bits"),
            Error2::CharacteristicValue(id) => {
                write!(f, "characteristic {id} has a value that is not of its type")
            }
            Error2::StructureLength => f.write_str("a Receive's parts are not as long as the whole"),
            Error2::Displacement(found) => write!(f, "a placed item cannot be at displacement {found}"),
            Error2::ResultInRequest => f.write_str("TOOSHORT or NOITEM in a request"),
            Error2::Ranges => f.write_str("ranges of results overlap or decrease"),
            Error2::EmptyGroup => f.write_str("a group of no transmissions"),
            Error2::EmptyStart => f.write_str("a first transmission of less than 8 octets of Payload stream"),
        }
    }
}

impl core::error::Error for Error2 {}
