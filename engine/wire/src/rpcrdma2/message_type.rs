//! The direction of a message of version 2.

use crate::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError};

/// The direction that a header states: the msg_type of the RPC message (V2-3.2-a).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageType {
    /// From a Requester: CALL.
    Call,
    /// From a Responder: REPLY.
    Reply,
}

impl MessageType {
    /// Returns the word on the wire.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            MessageType::Call => 0,
            MessageType::Reply => 1,
        }
    }

    /// Returns what a word on the wire means.
    #[inline]
    #[must_use]
    pub const fn from_number(number: u32) -> Option<MessageType> {
        match number {
            0 => Some(MessageType::Call),
            1 => Some(MessageType::Reply),
            _ => None,
        }
    }

    /// Returns the direction of an answer.
    #[inline]
    #[must_use]
    pub const fn opposite(self) -> MessageType {
        match self {
            MessageType::Call => MessageType::Reply,
            MessageType::Reply => MessageType::Call,
        }
    }
}

impl Decode<'_> for MessageType {
    #[inline]
    fn decode(reader: &mut Reader<'_>) -> Result<Self, XdrError> {
        reader.enumeration(MessageType::from_number)
    }
}

impl Encode for MessageType {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.u32(self.number())
    }
}
