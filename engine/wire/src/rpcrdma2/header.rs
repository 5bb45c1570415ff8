//! The header of version 2 as a view of the Receive buffer that it arrived in.

use super::error::{Answer2, Error2, Refused2};
use super::message_type::MessageType;
use super::{HEADER_LEN_MIN, OPTIONAL_LEN_MIN, VERSION, errcode, option, procedure};
use crate::rpcrdma::{Emitter, Fixed, HeaderError, HeaderLists, MessageKind, SEGMENTS_MAX};
use crate::xdr::{Overflow, Reader, Writer, padding};

/// What an RDMA2_ERROR says about the transaction of its xid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode2 {
    /// The Responder does not speak the Call's version.
    Vers {
        /// Lowest version that it speaks.
        low: u32,
        /// Highest version that it speaks.
        high: u32,
    },
    /// The Responder could not process the header.
    BadHeader,
    /// The Responder does not support the operation.
    InvalidOption,
}

/// An RDMA2_OPTIONAL: an operation of an extension, not looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionMessage<'a> {
    /// Equals that of the transaction, or is one of the direction's own (V2-4.2.2-d).
    pub xid: u32,
    /// Credits requested by a Call, granted by a Reply.
    pub credits: u32,
    /// Who sent it: a Requester or a Responder.
    pub direction: MessageType,
    /// Its number, one of those in [`option`](super::option) or any other.
    pub option: u32,
    /// Its octets, without padding.
    pub info: &'a [u8],
}

/// What follows the fixed words.
#[derive(Clone, Copy, Debug)]
pub enum Body2<'a> {
    /// RDMA2_MSG: the Payload stream follows.
    Message(MessageType, HeaderLists<'a>),
    /// RDMA2_NOMSG: the Payload stream is in the Position Zero Read chunk or in the Reply chunk.
    Long(MessageType, HeaderLists<'a>),
    /// RDMA2_ERROR: nothing follows.
    Error(ErrorCode2),
    /// RDMA2_OPTIONAL: what follows is as the operation says.
    Optional(OptionMessage<'a>),
}

/// A checked header, borrowed from the Receive buffer that it arrived in.
#[derive(Clone, Copy, Debug)]
pub struct Header2<'a> {
    /// Equals the xid of the RPC message.
    pub xid: u32,
    /// 2, except in an ERR_VERS that refuses another version.
    pub version: u32,
    /// Credits requested by a Call, granted by a Reply. That of an error is ignored.
    pub credits: u32,
    /// The rest.
    pub body: Body2<'a>,
}

impl<'a> Header2<'a> {
    /// Splits a received message into its header and what follows.
    ///
    /// A message of another version is [`Error2::Version`], unless it is an ERR_VERS: that is laid out alike in all versions,
    /// and carries the version that it refuses. An operation is not looked into, because an unknown one is answered with another
    /// error ([`OptionalOperation::parse`](super::OptionalOperation::parse)).
    ///
    /// Accepts at most [`SEGMENTS_MAX`] segments.
    pub fn parse(message: &'a [u8]) -> Result<(Header2<'a>, &'a [u8]), Refused2> {
        let (fixed, rest) = Fixed::parse(message).map_err(|_| Refused2::dropped(Error2::Short))?;
        let header = |body| Header2 { xid: fixed.xid, version: fixed.version, credits: fixed.credits, body };
        if fixed.procedure == procedure::ERROR {
            let (code, rest) = parse_error(fixed.version, rest).map_err(Refused2::dropped)?;
            return Ok((header(Body2::Error(code)), rest));
        }
        if fixed.version != VERSION {
            return Err(Refused2 { error: Error2::Version(fixed.version), answer: Answer2::ErrVers });
        }
        let len_min = match fixed.procedure {
            procedure::MSG | procedure::NOMSG => HEADER_LEN_MIN,
            procedure::OPTIONAL => OPTIONAL_LEN_MIN,
            found => return Err(Refused2 { error: Error2::Procedure(found), answer: Answer2::BadHeader }),
        };
        if message.len() < len_min {
            return Err(Refused2::dropped(Error2::Short));
        }
        let mut reader = Reader::new(rest);
        let word = reader.u32().map_err(|_| Refused2::dropped(Error2::Short))?;
        let Some(direction) = MessageType::from_number(word) else {
            return Err(Refused2 { error: Error2::Direction(word), answer: Answer2::BadHeader });
        };
        let bad = |error| Refused2::new(error, direction, Answer2::BadHeader);
        if fixed.procedure == procedure::OPTIONAL {
            let (message, rest) = parse_option(&fixed, direction, &mut reader).map_err(bad)?;
            return Ok((header(Body2::Optional(message)), rest));
        }
        let (lists, rest) =
            HeaderLists::parse(reader.rest(), SEGMENTS_MAX).map_err(|error| bad(Error2::Lists(error)))?;
        if fixed.procedure == procedure::MSG {
            if lists.has_position_zero() {
                return Err(bad(Error2::Lists(HeaderError::PositionZero)));
            }
            return Ok((header(Body2::Message(direction, lists)), rest));
        }
        if lists.is_empty() {
            return Err(bad(Error2::Lists(HeaderError::NoPayload)));
        }
        Ok((header(Body2::Long(direction, lists)), rest))
    }

    /// Returns who sent the message. An error comes from a Responder (V2-4.2.2-c).
    #[inline]
    #[must_use]
    pub const fn direction(&self) -> MessageType {
        match self.body {
            Body2::Message(direction, _) | Body2::Long(direction, _) => direction,
            Body2::Error(_) => MessageType::Reply,
            Body2::Optional(OptionMessage { direction, .. }) => direction,
        }
    }

    /// Whether its sender tells of itself (INITXCH, UPDXCH), which it may do in either direction (XC-X-4).
    #[inline]
    #[must_use]
    pub const fn tells_of_sender(&self) -> bool {
        matches!(self.body, Body2::Optional(OptionMessage { option: option::INITXCH | option::UPDXCH, .. }))
    }

    /// Checks a message with chunk lists against the Payload stream behind it, and against its direction.
    ///
    /// `Ok` for errors and operations, which have their own rules.
    pub fn check(&self, payload: &[u8]) -> Result<(), Refused2> {
        let direction = self.direction();
        let found = match (&self.body, direction) {
            (Body2::Error(_) | Body2::Optional(_), _) => Ok(()),
            (Body2::Message(..), MessageType::Call) => Ok(()),
            (Body2::Long(_, lists), MessageType::Call) => {
                if lists.has_position_zero() {
                    Ok(())
                } else {
                    Err(HeaderError::NoPayload)
                }
            }
            (Body2::Message(_, lists) | Body2::Long(_, lists), MessageType::Reply) => {
                let reply_len = lists.reply_chunk().map_or(0, |chunk| chunk.total_len());
                match matches!(self.body, Body2::Long(..)) {
                    _ if lists.read_list().len() > 0 => Err(HeaderError::ReadListInReply),
                    true if reply_len == 0 => Err(HeaderError::NoPayload),
                    false if reply_len > 0 => Err(HeaderError::ReplyChunkWithMessage),
                    _ => Ok(()),
                }
            }
        };
        let bad = |error| Refused2::new(error, direction, Answer2::BadHeader);
        found.map_err(|error| bad(Error2::Lists(error)))?;
        if matches!(self.body, Body2::Message(..)) {
            check_start(self.xid, direction, payload).map_err(bad)?;
        }
        Ok(())
    }
}

/// Checks that a Payload stream starts with the header's xid and direction (V2-4.2.2-b).
fn check_start(xid: u32, direction: MessageType, payload: &[u8]) -> Result<(), Error2> {
    let Some([x0, x1, x2, x3, d0, d1, d2, d3]) = payload.first_chunk() else {
        return Err(Error2::Lists(HeaderError::PayloadShort));
    };
    let found = u32::from_be_bytes([*x0, *x1, *x2, *x3]);
    if found != xid {
        return Err(Error2::Lists(HeaderError::Xid { payload: found }));
    }
    if u32::from_be_bytes([*d0, *d1, *d2, *d3]) != direction.number() {
        return Err(Error2::OtherDirection);
    }
    Ok(())
}

fn parse_error(version: u32, body: &[u8]) -> Result<(ErrorCode2, &[u8]), Error2> {
    let mut reader = Reader::new(body);
    let mut word = || reader.u32().map_err(|_| Error2::Short);
    let code = match word()? {
        errcode::VERS => ErrorCode2::Vers { low: word()?, high: word()? },
        // Nothing else of a foreign version can be understood.
        errcode::BAD_HEADER if version == VERSION => ErrorCode2::BadHeader,
        errcode::INVAL_OPTION if version == VERSION => ErrorCode2::InvalidOption,
        _ => return Err(Error2::ErrorBody),
    };
    Ok((code, reader.rest()))
}

fn parse_option<'a>(
    fixed: &Fixed,
    direction: MessageType,
    reader: &mut Reader<'a>,
) -> Result<(OptionMessage<'a>, &'a [u8]), Error2> {
    let option = reader.u32().map_err(Error2::Xdr)?;
    let len = reader.u32().map_err(Error2::Xdr)?;
    let info = reader.opaque_fixed(len as usize).map_err(|_| Error2::OptionLength(len))?;
    let Fixed { xid, credits, .. } = *fixed;
    Ok((OptionMessage { xid, credits, direction, option, info }, reader.rest()))
}

impl OptionMessage<'_> {
    /// Checks that the Payload stream of a first transmission starts with the xid and the direction (V2-4.2.2-b).
    pub fn check_start(&self, payload: &[u8]) -> Result<(), Refused2> {
        check_start(self.xid, self.direction, payload)
            .map_err(|error| Refused2::new(error, self.direction, Answer2::BadHeader))
    }

    /// Writes an operation's message by its octets, and returns the header's length and the rest of `buf`.
    ///
    /// # Errors
    ///
    /// [`Overflow`] when `buf` is too short.
    pub fn emit<'b>(&self, buf: &'b mut [u8]) -> Result<(usize, &'b mut [u8]), Overflow> {
        let len = OPTIONAL_LEN_MIN + self.info.len() + padding(self.info.len());
        let (head, rest) = buf.split_at_mut_checked(len).ok_or(Overflow)?;
        let mut writer = Writer::new(head);
        write_option_head(&mut writer, self.xid, self.credits, self.direction, self.option)?;
        writer.opaque(self.info)?;
        Ok((len, rest))
    }
}

/// Writes the words of an RDMA2_OPTIONAL in front of its operation's length.
pub(super) fn write_option_head(
    writer: &mut Writer<'_>,
    xid: u32,
    credits: u32,
    direction: MessageType,
    option: u32,
) -> Result<(), Overflow> {
    let fixed = Fixed { xid, version: VERSION, credits, procedure: procedure::OPTIONAL };
    *writer.array()? = fixed.to_wire();
    writer.value(&direction)?;
    writer.u32(option)
}

/// Starts the header of an RDMA2_MSG or RDMA2_NOMSG; its chunk lists are written as those of version 1.
///
/// # Errors
///
/// [`Overflow`] when `buf` is shorter than the fixed words and the direction.
#[inline]
pub fn start(
    buf: &mut [u8],
    kind: MessageKind,
    direction: MessageType,
    xid: u32,
    credits: u32,
) -> Result<Emitter<'_>, Overflow> {
    Emitter::of_version_2(buf, kind, direction.number(), xid, credits)
}

/// Writes an RDMA2_ERROR, 20 or 28 octets, and returns its length.
///
/// `xid` and `version` are copied from the message that it answers; `credits` is the present grant.
///
/// # Errors
///
/// [`Overflow`] when `buf` is shorter.
pub fn emit_error(
    buf: &mut [u8],
    xid: u32,
    version: u32,
    credits: u32,
    code: ErrorCode2,
) -> Result<usize, Overflow> {
    let mut writer = Writer::new(buf);
    *writer.array()? = Fixed { xid, version, credits, procedure: procedure::ERROR }.to_wire();
    match code {
        ErrorCode2::Vers { low, high } => {
            [errcode::VERS, low, high].iter().try_for_each(|word| writer.u32(*word))?
        }
        ErrorCode2::BadHeader => writer.u32(errcode::BAD_HEADER)?,
        ErrorCode2::InvalidOption => writer.u32(errcode::INVAL_OPTION)?,
    }
    Ok(writer.position())
}
