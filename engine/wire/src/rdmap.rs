//! RDMAP (RFC 5040): what the messages in DDP segments are, and the content of two of them, Read Request and Terminate.
//!
//! ```text
//!  Read Request   0         4         12     16       20         28
//!                 | SinkStag| SinkTO  | Size | SrcSTag| SrcTO    |
//!
//!  Terminate      0                1      2         4                 6
//!                 | layer | EType  | code | M D R 0 | segment length  | DDP header, 14 or 18 | Read Request, 28
//!                                                     only with M       only with D            only with R
//! ```

use crate::ddp;

/// The version of this module, in the upper bits of the control octet.
pub const VERSION: u8 = 1;

const VERSION_SHIFT: u32 = 6;
const OPCODE_MASK: u8 = 0x0f;

/// Queue numbers of untagged messages (5041-b).
pub mod queue {
    /// Sends.
    pub const SEND: u32 = 0;
    /// RDMA Read Requests.
    pub const READ_REQUEST: u32 = 1;
    /// Terminate.
    pub const TERMINATE: u32 = 2;
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// RDMA Write: tagged.
    Write,
    /// RDMA Read Request.
    ReadRequest,
    /// RDMA Read Response: tagged.
    ReadResponse,
    /// Send.
    Send,
    /// Send with Invalidate.
    SendInvalidate,
    /// Send with Solicited Event.
    SendSolicited,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate,
    /// Terminate.
    Terminate,
}

/// Why a control octet was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControlError {
    /// Another version: [`code::VERSION`].
    Version(u8),
    /// No such opcode: [`code::OPCODE`].
    Opcode(u8),
}

impl Opcode {
    /// Reads the control octet.
    #[inline]
    pub const fn from_control(control: u8) -> Result<Opcode, ControlError> {
        if control >> VERSION_SHIFT != VERSION {
            return Err(ControlError::Version(control >> VERSION_SHIFT));
        }
        Ok(match control & OPCODE_MASK {
            0 => Opcode::Write,
            1 => Opcode::ReadRequest,
            2 => Opcode::ReadResponse,
            3 => Opcode::Send,
            4 => Opcode::SendInvalidate,
            5 => Opcode::SendSolicited,
            6 => Opcode::SendSolicitedInvalidate,
            7 => Opcode::Terminate,
            other => return Err(ControlError::Opcode(other)),
        })
    }

    /// Returns the control octet.
    #[inline]
    #[must_use]
    pub const fn to_control(self) -> u8 {
        let opcode = match self {
            Opcode::Write => 0,
            Opcode::ReadRequest => 1,
            Opcode::ReadResponse => 2,
            Opcode::Send => 3,
            Opcode::SendInvalidate => 4,
            Opcode::SendSolicited => 5,
            Opcode::SendSolicitedInvalidate => 6,
            Opcode::Terminate => 7,
        };
        VERSION << VERSION_SHIFT | opcode
    }

    /// Whether its segments are tagged.
    #[inline]
    #[must_use]
    pub const fn is_tagged(self) -> bool {
        matches!(self, Opcode::Write | Opcode::ReadResponse)
    }

    /// The queue of its segments, if they are untagged.
    #[inline]
    #[must_use]
    pub const fn queue(self) -> Option<u32> {
        match self {
            Opcode::Write | Opcode::ReadResponse => None,
            Opcode::ReadRequest => Some(queue::READ_REQUEST),
            Opcode::Terminate => Some(queue::TERMINATE),
            _ => Some(queue::SEND),
        }
    }

    /// Whether it invalidates the STag in its header.
    #[inline]
    #[must_use]
    pub const fn invalidates(self) -> bool {
        matches!(self, Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate)
    }
}

/// Octets of a Read Request's payload.
pub const READ_REQUEST_LEN: usize = 28;

/// The payload of a Read Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmapReadRequest {
    /// STag of the memory of the one who asks.
    pub sink_stag: u32,
    /// Where in it the data goes.
    pub sink_offset: u64,
    /// Octets to read.
    pub len: u32,
    /// STag of the memory to be read.
    pub source_stag: u32,
    /// Where in it.
    pub source_offset: u64,
}

impl RdmapReadRequest {
    /// Reads the payload.
    #[inline]
    #[must_use]
    pub const fn from_wire(wire: [u8; READ_REQUEST_LEN]) -> RdmapReadRequest {
        let [k0, k1, k2, k3, a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, rest @ ..] = wire;
        let [c0, c1, c2, c3, b0, b1, b2, b3, b4, b5, b6, b7] = rest;
        RdmapReadRequest {
            sink_stag: u32::from_be_bytes([k0, k1, k2, k3]),
            sink_offset: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            len: u32::from_be_bytes([l0, l1, l2, l3]),
            source_stag: u32::from_be_bytes([c0, c1, c2, c3]),
            source_offset: u64::from_be_bytes([b0, b1, b2, b3, b4, b5, b6, b7]),
        }
    }

    /// Returns the payload.
    #[inline]
    #[must_use]
    pub const fn to_wire(&self) -> [u8; READ_REQUEST_LEN] {
        let [k0, k1, k2, k3] = self.sink_stag.to_be_bytes();
        let [a0, a1, a2, a3, a4, a5, a6, a7] = self.sink_offset.to_be_bytes();
        let [l0, l1, l2, l3] = self.len.to_be_bytes();
        let [c0, c1, c2, c3] = self.source_stag.to_be_bytes();
        let [b0, b1, b2, b3, b4, b5, b6, b7] = self.source_offset.to_be_bytes();
        [
            k0, k1, k2, k3, a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, c0, c1, c2, c3, b0, b1, b2, b3,
            b4, b5, b6, b7,
        ]
    }
}

/// Layers in a Terminate.
pub mod layer {
    /// RDMAP.
    pub const RDMAP: u8 = 0;
    /// DDP: [`ddp::code`](crate::ddp::code).
    pub const DDP: u8 = 1;
    /// The layer below, MPA: [`mpa::code`](crate::mpa::code).
    pub const LLP: u8 = 2;
}

/// RDMAP's error types, and their codes, in a Terminate of layer 0.
pub mod code {
    /// Error type: local catastrophic error.
    pub const CATASTROPHIC: u8 = 0;
    /// Error type: remote protection.
    pub const PROTECTION: u8 = 1;
    /// Protection: invalid STag.
    pub const STAG: u8 = 0;
    /// Protection: base or bounds.
    pub const BOUNDS: u8 = 1;
    /// Protection: access rights.
    pub const ACCESS: u8 = 2;
    /// Protection: the STag is not associated with this stream.
    pub const STREAM: u8 = 3;
    /// Protection: the tagged offset wraps.
    pub const WRAP: u8 = 4;
    /// Protection and operation: the STag cannot be invalidated.
    pub const INVALIDATE: u8 = 9;
    /// Error type: remote operation.
    pub const OPERATION: u8 = 2;
    /// Operation: version.
    pub const VERSION: u8 = 5;
    /// Operation: an opcode that is not expected here.
    pub const OPCODE: u8 = 6;
    /// Operation: catastrophic for this stream.
    pub const STREAM_CATASTROPHIC: u8 = 7;
    /// Operation: catastrophic for all.
    pub const GLOBAL_CATASTROPHIC: u8 = 8;
    /// Protection and operation: unspecified.
    pub const UNSPECIFIED: u8 = 0xff;
}

/// What went wrong, in a Terminate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// One of [`layer`].
    pub layer: u8,
    /// Error type within the layer: 4 bits.
    pub error_type: u8,
    /// Code within the error type.
    pub code: u8,
}

impl Cause {
    /// What it means; `None` if no RFC says.
    #[must_use]
    pub const fn meaning(&self) -> Option<&'static str> {
        Some(match (self.layer, self.error_type, self.code) {
            (layer::RDMAP, code::CATASTROPHIC, _) => "RDMAP: local catastrophic error",
            (layer::RDMAP, code::PROTECTION, code::STAG) => "RDMAP: invalid STag",
            (layer::RDMAP, code::PROTECTION, code::BOUNDS) => "RDMAP: base or bounds",
            (layer::RDMAP, code::PROTECTION, code::ACCESS) => "RDMAP: access rights",
            (layer::RDMAP, code::PROTECTION, code::STREAM) => "RDMAP: STag of another stream",
            (layer::RDMAP, code::PROTECTION, code::WRAP) => "RDMAP: tagged offset wraps",
            (layer::RDMAP, code::PROTECTION | code::OPERATION, code::INVALIDATE) => {
                "RDMAP: STag cannot be invalidated"
            }
            (layer::RDMAP, code::PROTECTION, code::UNSPECIFIED) => "RDMAP: remote protection error",
            (layer::RDMAP, code::OPERATION, code::VERSION) => "RDMAP: version",
            (layer::RDMAP, code::OPERATION, code::OPCODE) => "RDMAP: unexpected opcode",
            (layer::RDMAP, code::OPERATION, code::STREAM_CATASTROPHIC) => "RDMAP: catastrophic, this stream",
            (layer::RDMAP, code::OPERATION, code::GLOBAL_CATASTROPHIC) => "RDMAP: catastrophic, all streams",
            (layer::RDMAP, code::OPERATION, code::UNSPECIFIED) => "RDMAP: remote operation error",
            (layer::DDP, 0, _) => "DDP: local catastrophic error",
            (layer::DDP, ddp::code::TAGGED, ddp::code::TAGGED_STAG) => "DDP: invalid STag",
            (layer::DDP, ddp::code::TAGGED, ddp::code::TAGGED_BOUNDS) => "DDP: base or bounds",
            (layer::DDP, ddp::code::TAGGED, ddp::code::TAGGED_STREAM) => "DDP: STag of another stream",
            (layer::DDP, ddp::code::TAGGED, ddp::code::TAGGED_WRAP) => "DDP: tagged offset wraps",
            (layer::DDP, ddp::code::TAGGED, ddp::code::TAGGED_VERSION) => "DDP: version",
            (layer::DDP, ddp::code::UNTAGGED, ddp::code::UNTAGGED_QUEUE) => "DDP: invalid queue number",
            (layer::DDP, ddp::code::UNTAGGED, ddp::code::UNTAGGED_NO_BUFFER) => {
                "DDP: no buffer for the message"
            }
            (layer::DDP, ddp::code::UNTAGGED, ddp::code::UNTAGGED_MSN) => "DDP: message sequence number",
            (layer::DDP, ddp::code::UNTAGGED, ddp::code::UNTAGGED_OFFSET) => "DDP: message offset",
            (layer::DDP, ddp::code::UNTAGGED, ddp::code::UNTAGGED_TOO_LONG) => {
                "DDP: message too long for its buffer"
            }
            (layer::DDP, ddp::code::UNTAGGED, ddp::code::UNTAGGED_VERSION) => "DDP: version",
            (layer::LLP, 0, crate::mpa::code::CONNECTION) => "MPA: TCP connection closed or lost",
            (layer::LLP, 0, crate::mpa::code::CRC) => "MPA: CRC",
            (layer::LLP, 0, crate::mpa::code::MARKER) => "MPA: marker and length disagree",
            (layer::LLP, 0, crate::mpa::code::FRAME) => "MPA: invalid request or reply frame",
            (layer::LLP, 0, crate::mpa::code::CATASTROPHIC) => "MPA: local catastrophic error",
            (layer::LLP, 0, crate::mpa::code::IRD) => "MPA: insufficient IRD",
            (layer::LLP, 0, crate::mpa::code::READY_TO_RECEIVE) => {
                "MPA: no matching ready-to-receive message"
            }
            _ => return None,
        })
    }
}

impl core::fmt::Display for Cause {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Cause { layer, error_type, code } = self;
        match self.meaning() {
            Some(meaning) => f.write_str(meaning),
            None => write!(f, "layer {layer}, error type {error_type}, code {code:#04x}"),
        }
    }
}

/// Octets of a Terminate's payload at most.
pub const TERMINATE_LEN_MAX: usize = TERMINATE_FIXED_LEN + 2 + ddp::UNTAGGED_LEN + READ_REQUEST_LEN;

const TERMINATE_FIXED_LEN: usize = 4;
/// M: the DDP segment's length follows.
const FLAG_LENGTH: u8 = 0x80;
/// D: its DDP header follows.
const FLAG_DDP: u8 = 0x40;
/// R: its Read Request follows.
const FLAG_RDMAP: u8 = 0x20;
/// The same as siw writes them on little-endian machines (siw-21).
const SIW_FLAGS: [u8; 3] = [0x01, 0x02, 0x04];

/// The payload of a Terminate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate<'a> {
    /// As RFC 5040 has it: the layer in the upper half of the first octet.
    pub cause: Cause,
    /// As siw has it on little-endian machines: the halves exchanged (siw-21).
    pub cause_siw: Cause,
    /// Whether the flags say that it is siw who wrote it; `None` if there are none, so that both are possible.
    pub is_siw: Option<bool>,
    /// Octets of the segment that it is about, header and payload (M).
    pub segment_len: Option<u16>,
    /// That segment's DDP header (D).
    pub header: Option<ddp::DdpHeader>,
    /// The Read Request that it is about (R).
    pub read_request: Option<&'a [u8; READ_REQUEST_LEN]>,
}

impl<'a> Terminate<'a> {
    /// Reads as much as is there: a Terminate is the end in any case, so nothing that follows its first octets is an
    /// error. `None`: not even these are there.
    #[must_use]
    pub fn parse(payload: &'a [u8]) -> Option<Terminate<'a>> {
        let ([first, code, flags, _], mut rest) = payload.split_first_chunk::<TERMINATE_FIXED_LEN>()?;
        let (high, low) = (first >> 4, first & 0x0f);
        let is_siw = if flags & (FLAG_LENGTH | FLAG_DDP | FLAG_RDMAP) != 0 {
            Some(false)
        } else if SIW_FLAGS.iter().any(|flag| flags & flag != 0) {
            Some(true)
        } else {
            None
        };
        let [length, ddp, rdmap] =
            if is_siw == Some(true) { SIW_FLAGS } else { [FLAG_LENGTH, FLAG_DDP, FLAG_RDMAP] };
        let (mut segment_len, mut header, mut read_request) = (None, None, None);
        if flags & length != 0
            && let Some((len, behind)) = rest.split_first_chunk()
        {
            segment_len = Some(u16::from_be_bytes(*len));
            rest = behind;
        }
        if flags & ddp != 0
            && let Ok((parsed, behind)) = ddp::DdpHeader::parse(rest)
        {
            header = Some(parsed);
            rest = behind;
        }
        if flags & rdmap != 0 && header.is_some() {
            read_request = rest.first_chunk();
        }
        Some(Terminate {
            cause: Cause { layer: high, error_type: low, code: *code },
            cause_siw: Cause { layer: low, error_type: high, code: *code },
            is_siw,
            segment_len,
            header,
            read_request,
        })
    }

    /// The cause, by the reading that makes sense: the one that the flags tell, or that an RFC knows; RFC 5040's own
    /// if both are possible.
    #[must_use]
    pub fn likely_cause(&self) -> Cause {
        match self.is_siw {
            Some(true) => self.cause_siw,
            None if self.cause.meaning().is_none() && self.cause_siw.meaning().is_some() => self.cause_siw,
            _ => self.cause,
        }
    }
}

/// Writes a Terminate's payload to the start of `out`, in RFC 5040's order, and returns its octets.
///
/// `header` is the DDP header of the segment that it is about, 14 or 18 octets, and `segment_len` its octets with the
/// payload; `read_request` its payload, if it was a Read Request. None of them for errors of MPA and catastrophes.
pub fn emit_terminate(
    cause: Cause,
    about: Option<(&[u8], u16)>,
    read_request: Option<&[u8; READ_REQUEST_LEN]>,
    out: &mut [u8; TERMINATE_LEN_MAX],
) -> usize {
    let mut len = TERMINATE_FIXED_LEN;
    let mut flags = 0;
    if let Some((header, segment_len)) = about {
        let header = &header[..header.len().min(ddp::UNTAGGED_LEN)];
        flags |= FLAG_LENGTH | FLAG_DDP;
        out[len..len + 2].copy_from_slice(&segment_len.to_be_bytes());
        len += 2;
        out[len..len + header.len()].copy_from_slice(header);
        len += header.len();
        if let Some(read_request) = read_request {
            flags |= FLAG_RDMAP;
            out[len..len + READ_REQUEST_LEN].copy_from_slice(read_request);
            len += READ_REQUEST_LEN;
        }
    }
    out[..TERMINATE_FIXED_LEN].copy_from_slice(&[
        cause.layer << 4 | cause.error_type & 0x0f,
        cause.code,
        flags,
        0,
    ]);
    len
}
