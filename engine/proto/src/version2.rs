//! Version 2 at both ends of a connection: an end's own characteristics, and the short messages beside Calls.

use stag_wire::rpcrdma2::{
    Body2, CharacteristicValue, Elements, ErrorCode2, Header2, InitialCharacteristics, MessageType,
    OptionalOperation, PositionSet, ReverseSupport, TransmissionError, emit_error, transmission_support,
};
use stag_wire::xdr::Overflow;

use crate::layout::ReceiveLayout;

/// Octets of the longest [`SmallMessage`].
const SMALL_LEN_MAX: usize = 112;

/// Transport characteristics of this end. They never change while a connection lives, so no change is ever announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnCharacteristics {
    /// How each of its Receives is divided.
    pub layout: ReceiveLayout,
    /// Octets of the longest Send that it makes, at least 4096.
    pub send_len_max: u32,
    /// Transmissions of the longest Call that it takes, at least 1.
    pub request_limit: u32,
    /// Transmissions of the longest Reply that it makes, at least 1.
    pub response_limit: u32,
    /// Receives that it posts for further transmissions of a Reply at most.
    pub response_receives: u32,
    /// The reverse Calls that it takes part in (XC-l).
    pub reverse_support: ReverseSupport,
}

impl OwnCharacteristics {
    /// Writes ROPT_INITXCH, which tells them, to the start of `out`, and returns its length. It goes right behind the answered
    /// probe, once on each connection (XC-c, XC-X-1); its xid is 0, since nothing answers it but an error.
    ///
    /// # Errors
    ///
    /// `out` is too short; 256 octets are enough for a layout of up to four groups.
    pub fn emit_initial(&self, credits: u32, out: &mut [u8]) -> Result<usize, Overflow> {
        let support = transmission_support::REQUEST
            | transmission_support::RESPONSE
            | transmission_support::CONTINUATION;
        let values = [
            CharacteristicValue::ReceiveSize(self.layout.len()),
            CharacteristicValue::TransmissionSupport(support),
            CharacteristicValue::BufferStructure(self.layout.structure()),
            CharacteristicValue::RequestLimit(self.request_limit),
            CharacteristicValue::ResponseLimit(self.response_limit),
            CharacteristicValue::ReverseSupport(self.reverse_support),
        ];
        let initial = InitialCharacteristics {
            values: Elements::new(&values),
            unchanging: PositionSet(Elements::new(&[0b11_1111])),
        };
        let (len, _) = OptionalOperation::Initial(initial).emit(out, MessageType::Call, 0, credits)?;
        Ok(len)
    }
}

/// A message that is complete as it is: an error, or the answer to a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallMessage {
    octets: [u8; SMALL_LEN_MAX],
    len: u8,
}

impl SmallMessage {
    /// Returns the octets to send.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.octets[..usize::from(self.len)]
    }

    /// XMTERR: it goes against the direction of the bad transmission (RTR-X-17).
    #[must_use]
    pub fn transmission_error(error: &TransmissionError, credits: u32) -> Self {
        let direction = error.bad.direction.opposite();
        // The transaction that it answers (RTR-X-8).
        let xid = error.lead.unwrap_or(error.bad).xid;
        Self::of(&OptionalOperation::Error(*error), direction, xid, credits)
    }

    /// RDMA2_ERROR (V2-4.2.3-a).
    #[must_use]
    pub fn error(xid: u32, version: u32, credits: u32, code: ErrorCode2) -> Self {
        let mut octets = [0; SMALL_LEN_MAX];
        let len = emit_error(&mut octets, xid, version, credits, code).expect("28 octets at most");
        Self { octets, len: len as u8 }
    }

    /// An operation that is known to fit.
    pub(crate) fn of(
        operation: &OptionalOperation<'_>,
        direction: MessageType,
        xid: u32,
        credits: u32,
    ) -> Self {
        let mut octets = [0; SMALL_LEN_MAX];
        let (len, _) = operation.emit(&mut octets, direction, xid, credits).expect("a short operation");
        Self { octets, len: len as u8 }
    }
}

/// Returns the operation of a message that was taken in before. `None`: it has none.
pub(crate) fn operation(message: &[u8]) -> Option<OptionalOperation<'_>> {
    match Header2::parse(message).ok()?.0.body {
        Body2::Optional(found) => OptionalOperation::parse(&found).ok(),
        _ => None,
    }
}
