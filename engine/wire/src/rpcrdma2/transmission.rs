//! Transmissions: the parts of a message that several Sends carry, and their errors (RTR section 6).

use super::OPTIONAL_LEN_MIN;
use super::elements::Elements;
use super::message_type::MessageType;
use super::placement::{DirectionSet, PlacedItem};
use crate::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError};

/// ROPT_XMTREQ: the first transmission of a Call (RTR-9.2-a). The Payload stream follows the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTransmission<'a> {
    /// Items of the arguments that left the Payload stream. They hold for the whole group (RTR-4.2-b).
    pub items: Elements<'a, PlacedItem<'a>>,
    /// Where the results are to go.
    pub directions: Elements<'a, DirectionSet<'a>>,
    /// Transmissions of the group, with this one.
    pub count: u32,
    /// Receives that were posted for continuations of the response, beside the one for its first transmission.
    pub response_receives: u32,
    /// Octets of the Payload stream in this transmission.
    pub payload_len: u32,
}

impl RequestTransmission<'_> {
    /// Returns the octets of a message's header with this operation. They do not depend on its numbers.
    #[must_use]
    pub fn header_len(&self) -> usize {
        let directions = self.directions.iter().map(|set| set.encoded_len()).sum::<usize>();
        OPTIONAL_LEN_MIN + items_len(&self.items) + 4 + directions + 12
    }
}

/// Octets of a list of items on the wire.
fn items_len(items: &Elements<'_, PlacedItem<'_>>) -> usize {
    4 + items.iter().map(|item| item.encoded_len()).sum::<usize>()
}

impl<'a> Decode<'a> for RequestTransmission<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        Ok(RequestTransmission {
            items: reader.value()?,
            directions: reader.value()?,
            count: reader.u32()?,
            response_receives: reader.u32()?,
            payload_len: reader.u32()?,
        })
    }
}

impl Encode for RequestTransmission<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.value(&self.items)?;
        writer.value(&self.directions)?;
        writer.u32(self.count)?;
        writer.u32(self.response_receives)?;
        writer.u32(self.payload_len)
    }
}

/// ROPT_XMTRESP: the first transmission of a Reply (RTR-9.3-a). The Payload stream follows the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseTransmission<'a> {
    /// One for each direction of the request, in the same order (RTR-7.4-f).
    pub items: Elements<'a, PlacedItem<'a>>,
    /// Transmissions of the group, with this one.
    pub count: u32,
    /// Octets of the Payload stream in this transmission.
    pub payload_len: u32,
}

impl ResponseTransmission<'_> {
    /// Returns the octets of a message's header with this operation. They do not depend on its numbers.
    #[must_use]
    pub fn header_len(&self) -> usize {
        OPTIONAL_LEN_MIN + items_len(&self.items) + 8
    }
}

impl<'a> Decode<'a> for ResponseTransmission<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        Ok(ResponseTransmission { items: reader.value()?, count: reader.u32()?, payload_len: reader.u32()? })
    }
}

impl Encode for ResponseTransmission<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.value(&self.items)?;
        writer.u32(self.count)?;
        writer.u32(self.payload_len)
    }
}

/// ROPT_XMTCONT: a further transmission of a Call or Reply (RTR-9.4-a). Its part of the Payload stream follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// Its number in the group; the first transmission is 0 (RTR-X-4).
    pub number: u32,
    /// The operation of the first transmission: XMTREQ or XMTRESP (RTR-X-5).
    pub lead_option: u32,
    /// Octets of the Payload stream in this transmission. May be 0.
    pub payload_len: u32,
}

impl Decode<'_> for Continuation {
    #[inline]
    fn decode(reader: &mut Reader<'_>) -> Result<Self, XdrError> {
        Ok(Continuation { number: reader.u32()?, lead_option: reader.u32()?, payload_len: reader.u32()? })
    }
}

impl Encode for Continuation {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        [self.number, self.lead_option, self.payload_len].iter().try_for_each(|word| writer.u32(*word))
    }
}

/// Names a transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmissionId {
    /// The xid of its group.
    pub xid: u32,
    /// The group's direction.
    pub direction: MessageType,
    /// Its number in the group, from 0.
    pub number: u32,
}

impl Decode<'_> for TransmissionId {
    #[inline]
    fn decode(reader: &mut Reader<'_>) -> Result<Self, XdrError> {
        Ok(TransmissionId { xid: reader.u32()?, direction: reader.value()?, number: reader.u32()? })
    }
}

impl Encode for TransmissionId {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.u32(self.xid)?;
        writer.value(&self.direction)?;
        writer.u32(self.number)
    }
}

/// What is wrong with a transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupFault {
    /// BADHMT: another procedure within a group.
    Procedure {
        /// What was expected.
        expected: u32,
        /// What came.
        found: u32,
    },
    /// BADOMT: another operation within a group.
    Option {
        /// What was expected.
        expected: u32,
        /// What came.
        found: u32,
    },
    /// BADCONT: a continuation without a group.
    NoGroup,
    /// BADSEQ: another number than the next; or more transmissions than are taken (RTR-X-7).
    Number {
        /// What was expected.
        expected: u32,
        /// What came.
        found: u32,
    },
    /// BADXID: another xid within a group.
    Xid {
        /// What was expected.
        expected: u32,
        /// What came.
        found: u32,
    },
    /// BADOFF: an offset beyond its target segment.
    Offset {
        /// What came.
        value: u32,
        /// The least that is right.
        min: u32,
        /// The most.
        max: u32,
    },
    /// BADTBSN: a target segment that is not in the group.
    Target {
        /// What came.
        value: u32,
        /// The least that is right.
        min: u32,
        /// The most.
        max: u32,
    },
    /// BADPL: a Payload stream longer than its transmission.
    PayloadLength {
        /// What came.
        value: u32,
        /// The least that is right.
        min: u32,
        /// The most.
        max: u32,
    },
}

impl GroupFault {
    /// Returns the number of the error (OPTXERR), and its words.
    fn words(&self) -> (u32, [u32; 3], usize) {
        match *self {
            GroupFault::Procedure { expected, found } => (1, [expected, found, 0], 2),
            GroupFault::Option { expected, found } => (2, [expected, found, 0], 2),
            GroupFault::NoGroup => (3, [0; 3], 0),
            GroupFault::Number { expected, found } => (4, [expected, found, 0], 2),
            GroupFault::Xid { expected, found } => (5, [expected, found, 0], 2),
            GroupFault::Offset { value, min, max } => (6, [value, min, max], 3),
            GroupFault::Target { value, min, max } => (7, [value, min, max], 3),
            GroupFault::PayloadLength { value, min, max } => (8, [value, min, max], 3),
        }
    }

    /// Returns the number of the error, 1 to 8.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.words().0
    }
}

impl Decode<'_> for GroupFault {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, XdrError> {
        let which = reader.u32()?;
        let (mut expected, mut found) = (0, 0);
        let (mut value, mut min, mut max) = (0, 0, 0);
        match which {
            1 | 2 | 4 | 5 => (expected, found) = (reader.u32()?, reader.u32()?),
            3 => {}
            6..=8 => (value, min, max) = (reader.u32()?, reader.u32()?, reader.u32()?),
            other => return Err(XdrError::BadDiscriminant(other)),
        }
        Ok(match which {
            1 => GroupFault::Procedure { expected, found },
            2 => GroupFault::Option { expected, found },
            4 => GroupFault::Number { expected, found },
            5 => GroupFault::Xid { expected, found },
            6 => GroupFault::Offset { value, min, max },
            7 => GroupFault::Target { value, min, max },
            8 => GroupFault::PayloadLength { value, min, max },
            _ => GroupFault::NoGroup,
        })
    }
}

impl Encode for GroupFault {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        let (which, words, count) = self.words();
        writer.u32(which)?;
        words[..count].iter().try_for_each(|word| writer.u32(*word))
    }
}

/// ROPT_XMTERR: a transmission that cannot be taken (RTR-9.5-a). No Payload stream follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmissionError {
    /// The transmission on which it was found.
    pub bad: TransmissionId,
    /// An earlier one that may have caused it.
    pub lead: Option<TransmissionId>,
    /// What is wrong.
    pub fault: GroupFault,
}

impl Decode<'_> for TransmissionError {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, XdrError> {
        Ok(TransmissionError { bad: reader.value()?, lead: reader.optional()?, fault: reader.value()? })
    }
}

impl Encode for TransmissionError {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.value(&self.bad)?;
        writer.optional(self.lead.as_ref())?;
        writer.value(&self.fault)
    }
}
