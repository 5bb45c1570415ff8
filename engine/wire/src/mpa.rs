//! MPA, Marker PDU Aligned framing for TCP (RFC 5044), and its enhanced connection set-up (RFC 6581).
//!
//! A connection starts with one [`Frame`] from each side, a request and a reply; behind them the stream is nothing but
//! FPDUs, which [`Fpdu::parse`] takes apart and [`emit_fpdu`] puts together:
//!
//! ```text
//!  frame  0            16      17    18            20
//!         | key        | flags | Rev | PD_Length   | private data, of which with S the first 4 octets:
//!                                                  | A B IRD | C D ORD |
//!
//!  FPDU   0            2                 2 + n
//!         | n          | ULPDU, n octets | PAD 0..3 | CRC32C |
//! ```
//!
//! Markers are not implemented: a receiver need not ask for them, and a sender that is asked for them refuses
//! (5044-7.1-d, siw-3). Callers that need a fast CRC bring their own; [`crc32c`] is a plain one.

mod field {
    use core::ops::Range;
    pub(super) const KEY: Range<usize> = 0..16;
    pub(super) const FLAGS: usize = 16;
    pub(super) const REVISION: usize = 17;
    pub(super) const PRIVATE_DATA_LEN: Range<usize> = 18..20;
}

/// Octets of a frame without its private data.
pub const FRAME_LEN: usize = 20;

/// Octets of the key, the first of a frame.
pub const KEY_LEN: usize = 16;

/// The key of a request.
pub const REQUEST_KEY: [u8; KEY_LEN] = *b"MPA ID Req Frame";

/// The key of a reply.
pub const REPLY_KEY: [u8; KEY_LEN] = *b"MPA ID Rep Frame";

/// Octets of private data at most, those of [`Enhanced`] included (RFC 5044 section 7.1).
pub const PRIVATE_DATA_LEN_MAX: usize = 512;

/// Octets of private data that Linux's siw takes at most, those of [`Enhanced`] included (siw-4).
pub const PRIVATE_DATA_LEN_MAX_SIW: usize = 256;

/// Octets of [`Enhanced`] in front of the private data.
pub const ENHANCED_LEN: usize = 4;

/// Octets of a frame at most.
pub const FRAME_LEN_MAX: usize = FRAME_LEN + PRIVATE_DATA_LEN_MAX;

/// An IRD or ORD that says: not negotiated here (6581-9-e). Also the largest value of the field.
pub const NOT_NEGOTIATED: u16 = 0x3fff;

/// M: the sender of the frame wants markers in what it receives.
const FLAG_MARKERS: u8 = 0x80;
/// C: CRCs are wanted.
const FLAG_CRC: u8 = 0x40;
/// R: rejected.
const FLAG_REJECTED: u8 = 0x20;
/// S: the private data starts with [`Enhanced`].
const FLAG_ENHANCED: u8 = 0x10;
/// Linux's siw, in a bit that is reserved: FPDUs beyond the segment size are welcome (siw-7).
const FLAG_LARGE_FPDUS: u8 = 0x08;

/// A or C, and B or D, of the enhanced words.
const ENHANCED_HIGH: u16 = 0x8000;
const ENHANCED_NEXT: u16 = 0x4000;

/// Who sends a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// The side that opened the TCP connection.
    Request,
    /// The side that answers.
    Reply,
}

/// Why a frame was refused: close the connection (5044-7.1-b).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrameError {
    /// More octets are needed: at least this number in all.
    Truncated(usize),
    /// The first octets are no MPA key.
    Key,
    /// Neither revision 1 nor 2.
    Revision(u8),
    /// PD_Length is more than [`PRIVATE_DATA_LEN_MAX`].
    PrivateDataTooLong(u16),
    /// S is set, and the private data is too short for [`Enhanced`] (siw-6).
    EnhancedTooShort,
}

impl core::fmt::Display for FrameError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            FrameError::Truncated(needed) => write!(f, "the frame needs {needed} octets"),
            FrameError::Key => f.write_str("the first octets are no MPA key"),
            FrameError::Revision(revision) => write!(f, "MPA revision {revision}, which is neither 1 nor 2"),
            FrameError::PrivateDataTooLong(len) => {
                write!(f, "{len} octets of private data, at most {PRIVATE_DATA_LEN_MAX} are allowed")
            }
            FrameError::EnhancedTooShort => f.write_str("no room for IRD and ORD in the private data"),
        }
    }
}

/// Which zero-length message makes the accepting side ready to send (6581-9-b).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadyToReceive {
    /// B: a Send.
    pub send: bool,
    /// C: an RDMA Write.
    pub write: bool,
    /// D: an RDMA Read.
    pub read: bool,
}

/// What RFC 6581 puts in front of the private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enhanced {
    /// A: the peer-to-peer model, with the ready-to-receive messages that are possible. `None`: the connecting side sends
    /// first by itself (6581-9-a).
    pub peer_to_peer: Option<ReadyToReceive>,
    /// Read Requests that the sender of the frame takes at once; 14 bits, or [`NOT_NEGOTIATED`].
    pub ird: u16,
    /// Read Requests that the sender of the frame has outstanding at once; 14 bits, or [`NOT_NEGOTIATED`].
    pub ord: u16,
}

impl Enhanced {
    /// Reads the two words.
    #[must_use]
    pub const fn from_wire(wire: [u8; ENHANCED_LEN]) -> Enhanced {
        let [w0, w1, w2, w3] = wire;
        let (first, second) = (u16::from_be_bytes([w0, w1]), u16::from_be_bytes([w2, w3]));
        let peer_to_peer = if first & ENHANCED_HIGH != 0 {
            Some(ReadyToReceive {
                send: first & ENHANCED_NEXT != 0,
                write: second & ENHANCED_HIGH != 0,
                read: second & ENHANCED_NEXT != 0,
            })
        } else {
            None
        };
        Enhanced { peer_to_peer, ird: first & NOT_NEGOTIATED, ord: second & NOT_NEGOTIATED }
    }

    /// Writes the two words. Values beyond 14 bits become the largest that can be said.
    #[must_use]
    pub fn to_wire(&self) -> [u8; ENHANCED_LEN] {
        let mut first = self.ird.min(NOT_NEGOTIATED);
        let mut second = self.ord.min(NOT_NEGOTIATED);
        if let Some(ReadyToReceive { send, write, read }) = self.peer_to_peer {
            first |= ENHANCED_HIGH | if send { ENHANCED_NEXT } else { 0 };
            second |= if write { ENHANCED_HIGH } else { 0 } | if read { ENHANCED_NEXT } else { 0 };
        }
        let ([w0, w1], [w2, w3]) = (first.to_be_bytes(), second.to_be_bytes());
        [w0, w1, w2, w3]
    }
}

/// A request or a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Which.
    pub kind: FrameKind,
    /// M: its sender wants markers in what it receives.
    pub markers: bool,
    /// C: CRCs are generated and checked on both sides if either says so (5044-7.1-c).
    pub crc: bool,
    /// R: the connection is refused. Means nothing in a request (5044-7.1-e).
    pub rejected: bool,
    /// A hint of Linux's siw in a bit that others send as 0 and ignore: its sender may send FPDUs beyond the segment
    /// size, and takes them (siw-7, 5044-5-b).
    pub large_fpdus: bool,
    /// 1 (RFC 5044) or 2 (RFC 6581).
    pub revision: u8,
    /// S: the words of RFC 6581. Only with revision 2.
    pub enhanced: Option<Enhanced>,
    /// What the user said, without `enhanced`.
    pub private_data: &'a [u8],
}

/// How many octets the frame has that starts with these, or why it is none. Everything that can be wrong with
/// the first [`FRAME_LEN`] octets is found here, so that a reader never waits for private data that is too
/// long.
pub fn frame_len(octets: &[u8]) -> Result<usize, FrameError> {
    let known = octets.len().min(KEY_LEN);
    if octets[..known] != REQUEST_KEY[..known] && octets[..known] != REPLY_KEY[..known] {
        return Err(FrameError::Key);
    }
    let Some(fixed) = octets.first_chunk::<FRAME_LEN>() else {
        return Err(FrameError::Truncated(FRAME_LEN));
    };
    let revision = fixed[field::REVISION];
    if !(1..=2).contains(&revision) {
        return Err(FrameError::Revision(revision));
    }
    let len =
        u16::from_be_bytes([fixed[field::PRIVATE_DATA_LEN.start], fixed[field::PRIVATE_DATA_LEN.start + 1]]);
    if usize::from(len) > PRIVATE_DATA_LEN_MAX {
        return Err(FrameError::PrivateDataTooLong(len));
    }
    let enhanced = revision == 2 && fixed[field::FLAGS] & FLAG_ENHANCED != 0;
    if enhanced && usize::from(len) < ENHANCED_LEN {
        return Err(FrameError::EnhancedTooShort);
    }
    Ok(FRAME_LEN + usize::from(len))
}

impl<'a> Frame<'a> {
    /// Splits the first octets of a stream into the frame and what follows. Reserved bits are ignored.
    pub fn parse(octets: &'a [u8]) -> Result<(Frame<'a>, &'a [u8]), FrameError> {
        let len = frame_len(octets)?;
        let Some((frame, rest)) = octets.split_at_checked(len) else {
            return Err(FrameError::Truncated(len));
        };
        let (fixed, mut private_data) = frame.split_at(FRAME_LEN);
        let flags = fixed[field::FLAGS];
        let revision = fixed[field::REVISION];
        let mut enhanced = None;
        // The bit means something in revision 2 only; `frame_len` saw that the words are there.
        if revision == 2
            && flags & FLAG_ENHANCED != 0
            && let Some((words, rest)) = private_data.split_first_chunk()
        {
            enhanced = Some(Enhanced::from_wire(*words));
            private_data = rest;
        }
        let kind = if fixed[field::KEY] == REQUEST_KEY { FrameKind::Request } else { FrameKind::Reply };
        let frame = Frame {
            kind,
            markers: flags & FLAG_MARKERS != 0,
            crc: flags & FLAG_CRC != 0,
            rejected: kind == FrameKind::Reply && flags & FLAG_REJECTED != 0,
            large_fpdus: flags & FLAG_LARGE_FPDUS != 0,
            revision,
            enhanced,
            private_data,
        };
        Ok((frame, rest))
    }

    /// Octets of the frame on the wire.
    #[must_use]
    pub fn len(&self) -> usize {
        FRAME_LEN + if self.enhanced.is_some() { ENHANCED_LEN } else { 0 } + self.private_data.len()
    }

    /// A frame is never empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the frame to the start of `out`, and returns its octets; `None` if it does not fit there, or has more
    /// private data than [`PRIVATE_DATA_LEN_MAX`].
    pub fn emit(&self, out: &mut [u8]) -> Option<usize> {
        let len = self.len();
        let private_data_len = len - FRAME_LEN;
        if private_data_len > PRIVATE_DATA_LEN_MAX {
            return None;
        }
        let out = out.get_mut(..len)?;
        let (fixed, mut rest) = out.split_at_mut(FRAME_LEN);
        let key = match self.kind {
            FrameKind::Request => &REQUEST_KEY,
            FrameKind::Reply => &REPLY_KEY,
        };
        fixed[field::KEY].copy_from_slice(key);
        let bit = |on: bool, flag: u8| if on { flag } else { 0 };
        fixed[field::FLAGS] = bit(self.markers, FLAG_MARKERS)
            | bit(self.crc, FLAG_CRC)
            | bit(self.rejected, FLAG_REJECTED)
            | bit(self.enhanced.is_some(), FLAG_ENHANCED)
            | bit(self.large_fpdus, FLAG_LARGE_FPDUS);
        fixed[field::REVISION] = self.revision;
        fixed[field::PRIVATE_DATA_LEN].copy_from_slice(&(private_data_len as u16).to_be_bytes());
        if let Some(enhanced) = self.enhanced {
            let (words, behind) = rest.split_at_mut(ENHANCED_LEN);
            words.copy_from_slice(&enhanced.to_wire());
            rest = behind;
        }
        rest.copy_from_slice(self.private_data);
        Some(len)
    }
}

/// Octets of ULPDU_Length.
pub const LENGTH_LEN: usize = 2;

/// Octets of the CRC.
pub const CRC_LEN: usize = 4;

/// Octets of PAD and CRC at most.
pub const TRAILER_LEN_MAX: usize = 3 + CRC_LEN;

/// Octets of a ULPDU at most.
pub const ULPDU_LEN_MAX: usize = u16::MAX as usize;

/// Octets of PAD behind a ULPDU of this length (5044-4.1-b).
#[inline]
#[must_use]
pub const fn pad_len(ulpdu_len: usize) -> usize {
    (LENGTH_LEN + ulpdu_len).wrapping_neg() & 3
}

/// Octets of the FPDU around a ULPDU of this length.
#[inline]
#[must_use]
pub const fn fpdu_len(ulpdu_len: usize) -> usize {
    LENGTH_LEN + ulpdu_len + pad_len(ulpdu_len) + CRC_LEN
}

/// The largest ULPDU whose FPDU fits in a TCP segment of `emss` octets, without markers (5044-5-a). Never below 128.
#[must_use]
pub const fn mulpdu(emss: usize) -> usize {
    let fits = emss.saturating_sub(6 + emss % 4);
    if fits < 128 {
        128
    } else if fits > ULPDU_LEN_MAX {
        ULPDU_LEN_MAX
    } else {
        fits
    }
}

/// One FPDU of a stream without markers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fpdu<'a> {
    /// What the CRC covers: ULPDU_Length, ULPDU and PAD.
    pub covered: &'a [u8],
    /// The DDP segment.
    pub ulpdu: &'a [u8],
    /// The CRC field, whatever it holds (5044-4.1-c).
    pub crc: u32,
}

impl<'a> Fpdu<'a> {
    /// Splits a stream that is at the start of an FPDU. `Err`: more octets are needed, at least that number in
    /// all.
    pub fn parse(stream: &'a [u8]) -> Result<(Fpdu<'a>, &'a [u8]), usize> {
        let Some((length, _)) = stream.split_first_chunk() else {
            return Err(LENGTH_LEN + CRC_LEN);
        };
        let ulpdu_len = usize::from(u16::from_be_bytes(*length));
        let len = fpdu_len(ulpdu_len);
        let Some((fpdu, rest)) = stream.split_at_checked(len) else { return Err(len) };
        let (covered, crc) = fpdu.split_at(len - CRC_LEN);
        let crc = crc.first_chunk().map_or(0, |crc| u32::from_le_bytes(*crc));
        Ok((Fpdu { covered, ulpdu: &covered[LENGTH_LEN..LENGTH_LEN + ulpdu_len], crc }, rest))
    }

    /// Whether the CRC is that of the content (5044-4.4-a). Only means something when CRCs were agreed on.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        crc32c(self.covered) == self.crc
    }
}

/// Writes an FPDU around `ulpdu`. `crc` computes its CRC from the octets before it (`None`: 0, as siw sends it). Returns its
/// octets; `None` if it does not fit, or the ULPDU is longer than [`ULPDU_LEN_MAX`].
pub fn emit_fpdu(ulpdu: &[u8], crc: Option<fn(&[u8]) -> u32>, out: &mut [u8]) -> Option<usize> {
    let length = u16::try_from(ulpdu.len()).ok()?;
    let len = fpdu_len(ulpdu.len());
    let (covered, trailer) = out.get_mut(..len)?.split_at_mut(len - CRC_LEN);
    covered[..LENGTH_LEN].copy_from_slice(&length.to_be_bytes());
    covered[LENGTH_LEN..LENGTH_LEN + ulpdu.len()].copy_from_slice(ulpdu);
    covered[LENGTH_LEN + ulpdu.len()..].fill(0);
    trailer.copy_from_slice(&crc.map_or(0, |crc| crc(covered)).to_le_bytes());
    Some(len)
}

/// MPA's codes in a Terminate of layer 2 (RFC 5044 section 8, RFC 6581 section 10).
pub mod code {
    /// The TCP connection was lost or closed.
    pub const CONNECTION: u8 = 1;
    /// A CRC does not match.
    pub const CRC: u8 = 2;
    /// A marker and ULPDU_Length disagree.
    pub const MARKER: u8 = 3;
    /// An invalid request or reply frame.
    pub const FRAME: u8 = 4;
    /// Local catastrophic error.
    pub const CATASTROPHIC: u8 = 5;
    /// The other side's IRD is too small.
    pub const IRD: u8 = 6;
    /// No ready-to-receive message that both sides know.
    pub const READY_TO_RECEIVE: u8 = 7;
}

/// The CRC32C of `octets`, one octet at a time: for tools and tests. It is stored least significant octet first (5044-4.4-a).
#[must_use]
pub fn crc32c(octets: &[u8]) -> u32 {
    !octets
        .iter()
        .fold(!0, |crc: u32, &octet| CRC_TABLE[((crc ^ u32::from(octet)) & 0xff) as usize] ^ crc >> 8)
}

/// Castagnoli's polynomial, reflected.
const CRC_POLYNOMIAL: u32 = 0x82f6_3b78;

const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = index as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { CRC_POLYNOMIAL ^ crc >> 1 } else { crc >> 1 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};
