//! The operations that an RDMA2_OPTIONAL carries.

use super::characteristic::{
    CharacteristicRequest, CharacteristicResponse, CharacteristicUpdate, InitialCharacteristics, PositionSet,
};
use super::error::{Answer2, Error2, Refused2};
use super::header::{OptionMessage, write_option_head};
use super::message_type::MessageType;
use super::option;
use super::placement::{check_directions, check_items};
use super::transmission::{Continuation, RequestTransmission, ResponseTransmission, TransmissionError};
use crate::xdr::{Overflow, Reader, Writer, XdrError};

/// Octets of Payload stream that a first transmission has at least: xid and msg_type (RTR-X-11).
const START_LEN: u32 = 8;

/// An operation, checked and borrowed from its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionalOperation<'a> {
    /// ROPT_INITXCH.
    Initial(InitialCharacteristics<'a>),
    /// ROPT_REQXCH.
    Ask(CharacteristicRequest<'a>),
    /// ROPT_RESPXCH.
    Answer(CharacteristicResponse<'a>),
    /// ROPT_UPDXCH.
    Update(CharacteristicUpdate<'a>),
    /// ROPT_XMTREQ.
    Request(RequestTransmission<'a>),
    /// ROPT_XMTRESP.
    Response(ResponseTransmission<'a>),
    /// ROPT_XMTCONT.
    Continuation(Continuation),
    /// ROPT_XMTERR.
    Error(TransmissionError),
}

impl<'a> OptionalOperation<'a> {
    /// Checks an operation. What it says about a Payload stream behind it is not compared with that.
    ///
    /// An operation with an unknown number is answered with INVAL_OPTION, one that cannot be read with BAD_HEADER; both only
    /// when a Requester sent it, because answers are never answered (V2-X-5).
    pub fn parse(message: &OptionMessage<'a>) -> Result<OptionalOperation<'a>, Refused2> {
        let direction = message.direction;
        let answer = match message.option {
            option::INITXCH..=option::XMTCONT => Answer2::BadHeader,
            // An error is never answered with an error.
            option::XMTERR => Answer2::Drop,
            found => {
                return Err(Refused2::new(Error2::UnknownOption(found), direction, Answer2::InvalidOption));
            }
        };
        let refuse = |error| Refused2::new(error, direction, answer);
        let operation = OptionalOperation::decode(message).map_err(|error| refuse(Error2::Xdr(error)))?;
        operation.check(direction).map_err(refuse)?;
        Ok(operation)
    }

    fn decode(message: &OptionMessage<'a>) -> Result<OptionalOperation<'a>, XdrError> {
        let mut reader = Reader::new(message.info);
        let operation = match message.option {
            option::INITXCH => OptionalOperation::Initial(InitialCharacteristics {
                values: reader.value()?,
                unchanging: PositionSet(reader.value()?),
            }),
            option::REQXCH => OptionalOperation::Ask(CharacteristicRequest { wanted: reader.value()? }),
            option::RESPXCH => OptionalOperation::Answer(CharacteristicResponse {
                done: PositionSet(reader.value()?),
                rejected: PositionSet(reader.value()?),
                pending: PositionSet(reader.value()?),
            }),
            option::UPDXCH => OptionalOperation::Update(CharacteristicUpdate {
                now: reader.value()?,
                is_settled: reader.bool()?,
            }),
            option::XMTREQ => OptionalOperation::Request(reader.value()?),
            option::XMTRESP => OptionalOperation::Response(reader.value()?),
            option::XMTCONT => OptionalOperation::Continuation(reader.value()?),
            _ => OptionalOperation::Error(reader.value()?),
        };
        reader.finish()?;
        Ok(operation)
    }

    /// Checks what the XDR does not.
    fn check(&self, direction: MessageType) -> Result<(), Error2> {
        if self.direction().is_some_and(|own| own != direction) {
            return Err(Error2::OperationDirection(self.option()));
        }
        match self {
            OptionalOperation::Initial(initial) => initial.values.iter().try_for_each(|value| value.check()),
            OptionalOperation::Ask(ask) => ask.wanted.iter().try_for_each(|value| value.check()),
            OptionalOperation::Update(update) => update.now.check(),
            OptionalOperation::Request(request) => {
                check_group(request.count, request.payload_len)?;
                check_items(&request.items, true)?;
                check_directions(&request.directions)
            }
            OptionalOperation::Response(response) => {
                check_group(response.count, response.payload_len)?;
                check_items(&response.items, false)
            }
            OptionalOperation::Answer(_)
            | OptionalOperation::Continuation(_)
            | OptionalOperation::Error(_) => Ok(()),
        }
    }

    /// Returns the only direction that the operation can have; `None` if it goes both ways.
    #[must_use]
    pub const fn direction(&self) -> Option<MessageType> {
        match self {
            OptionalOperation::Ask(_) | OptionalOperation::Request(_) => Some(MessageType::Call),
            OptionalOperation::Answer(_) | OptionalOperation::Response(_) => Some(MessageType::Reply),
            OptionalOperation::Error(error) => Some(error.bad.direction.opposite()),
            OptionalOperation::Initial(_)
            | OptionalOperation::Update(_)
            | OptionalOperation::Continuation(_) => None,
        }
    }

    /// Returns its number.
    #[must_use]
    pub const fn option(&self) -> u32 {
        match self {
            OptionalOperation::Initial(_) => option::INITXCH,
            OptionalOperation::Ask(_) => option::REQXCH,
            OptionalOperation::Answer(_) => option::RESPXCH,
            OptionalOperation::Update(_) => option::UPDXCH,
            OptionalOperation::Request(_) => option::XMTREQ,
            OptionalOperation::Response(_) => option::XMTRESP,
            OptionalOperation::Continuation(_) => option::XMTCONT,
            OptionalOperation::Error(_) => option::XMTERR,
        }
    }

    /// Returns the octets of Payload stream that the operation claims to be in its message; `None` if it has none.
    #[must_use]
    pub const fn payload_len(&self) -> Option<u32> {
        match self {
            OptionalOperation::Request(RequestTransmission { payload_len, .. })
            | OptionalOperation::Response(ResponseTransmission { payload_len, .. })
            | OptionalOperation::Continuation(Continuation { payload_len, .. }) => Some(*payload_len),
            _ => None,
        }
    }

    /// Writes the message's header with this operation. Returns its length, and the rest of `buf` for what follows.
    ///
    /// # Errors
    ///
    /// [`Overflow`] when `buf` is too short; the buffer holds no header then.
    pub fn emit<'b>(
        &self,
        buf: &'b mut [u8],
        direction: MessageType,
        xid: u32,
        credits: u32,
    ) -> Result<(usize, &'b mut [u8]), Overflow> {
        let mut writer = Writer::new(buf);
        write_option_head(&mut writer, xid, credits, direction, self.option())?;
        let len = writer.reserve_u32()?;
        let start = writer.position();
        match self {
            OptionalOperation::Initial(initial) => {
                writer.value(&initial.values)?;
                writer.value(&initial.unchanging.0)?;
            }
            OptionalOperation::Ask(ask) => writer.value(&ask.wanted)?,
            OptionalOperation::Answer(answer) => {
                [answer.done, answer.rejected, answer.pending]
                    .iter()
                    .try_for_each(|set| writer.value(&set.0))?;
            }
            OptionalOperation::Update(update) => {
                writer.value(&update.now)?;
                writer.bool(update.is_settled)?;
            }
            OptionalOperation::Request(request) => writer.value(request)?,
            OptionalOperation::Response(response) => writer.value(response)?,
            OptionalOperation::Continuation(continuation) => writer.value(continuation)?,
            OptionalOperation::Error(error) => writer.value(error)?,
        }
        let end = writer.position();
        writer.patch_u32(len, u32::try_from(end - start).map_err(|_| Overflow)?);
        Ok((end, &mut buf[end..]))
    }
}

fn check_group(count: u32, payload_len: u32) -> Result<(), Error2> {
    match (count, payload_len) {
        (0, _) => Err(Error2::EmptyGroup),
        (_, 0..START_LEN) => Err(Error2::EmptyStart),
        _ => Ok(()),
    }
}
