//! Where the receiving half of a queue pair is in the stream.

use stag_wire::ddp::{self, DdpHeader, Tagged};
use stag_wire::mpa;
use stag_wire::rdmap::{self, Opcode};

use super::crc::Crc;
use super::fault::Fault;
use super::terms::Terms;
use crate::{Exposed, Handle};

/// A payload of which at least so much is still to come is received straight into its place; less is cheaper to copy.
pub(super) const DIRECT_MIN: u32 = 16 * 1024;
/// Payload that is kept beside the header: a Read Request, or as much of a Terminate as says anything.
pub(super) const INLINE_MAX: usize = rdmap::TERMINATE_LEN_MAX;
/// ULPDU_Length and the longest header.
pub(super) const HEAD_LEN_MAX: usize = mpa::LENGTH_LEN + ddp::UNTAGGED_LEN;

/// The next part of the stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// ULPDU_Length and the DDP header.
    Head,
    Payload,
    /// Padding and CRC.
    Trailer,
}

/// Where a payload goes.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// To the oldest posted Receive.
    Receive,
    /// To the oldest posted Receive, which is in several buffers.
    Scattered,
    /// To exposed memory.
    Exposed { stag: u32, offset: u64 },
    /// To the target of the oldest Read.
    Read,
    /// Beside the header.
    Inline,
    /// Nowhere.
    Nowhere,
}

/// Where the receiving half is.
pub(super) struct Rx {
    pub(super) stage: Stage,
    pub(super) head: [u8; HEAD_LEN_MAX],
    pub(super) head_len: usize,
    pub(super) inline: [u8; INLINE_MAX],
    pub(super) header: DdpHeader,
    pub(super) opcode: Opcode,
    pub(super) place: Place,
    /// Octets of the segment's payload, and how many of them came.
    pub(super) payload_len: u32,
    pub(super) payload_at: u32,
    pub(super) trailer: [u8; mpa::TRAILER_LEN_MAX],
    pub(super) trailer_len: usize,
    pub(super) crc: Crc,
    pub(super) checks_crc: bool,
    /// What is wrong with the header, if its CRC is right.
    pub(super) suspect: Option<Fault>,
    pub(super) swallows_send: bool,
    /// Next message, and next octet of it, of the queue of Sends.
    pub(super) send_msn: u32,
    pub(super) send_at: u32,
    pub(super) read_msn: u32,
    /// Something came since the connection was made.
    pub(super) has_heard: bool,
    /// The start of an FPDU for a scattered Receive, until the rest is here. Its capacity is the longest that is kept; 0 where
    /// Receives are not scattered.
    pub(super) held: Vec<u8>,
    /// What the message has invalidated that was shown just now, and left: the inner `None` is a handle that was dead before.
    pub(super) invalidated: Option<Option<(Handle, Exposed)>>,
}

impl Rx {
    pub(super) fn new() -> Rx {
        Rx {
            stage: Stage::Head,
            head: [0; HEAD_LEN_MAX],
            head_len: 0,
            inline: [0; INLINE_MAX],
            header: DdpHeader::Tagged(Tagged { last: false, control: 0, stag: 0, offset: 0 }),
            opcode: Opcode::Write,
            place: Place::Nowhere,
            payload_len: 0,
            payload_at: 0,
            trailer: [0; mpa::TRAILER_LEN_MAX],
            trailer_len: 0,
            crc: Crc::START,
            checks_crc: true,
            suspect: None,
            swallows_send: false,
            send_msn: 1,
            send_at: 0,
            read_msn: 1,
            has_heard: false,
            held: Vec::new(),
            invalidated: None,
        }
    }

    /// Keeps `rest`, if it is the start of an FPDU with a Send that fits. `false`: it is something else.
    ///
    /// A message that is shown is in one piece, so the start of one waits until a later read brings the rest: if it went to its
    /// Receive, those behind it could not be shown before that completes.
    #[inline(never)]
    pub(super) fn hold(&mut self, rest: &[u8]) -> bool {
        let len_max = self.held.capacity();
        if len_max == 0 || self.head_len > 0 || rest.len() >= len_max {
            return false;
        }
        if let Some(length) = rest.first_chunk()
            && mpa::fpdu_len(usize::from(u16::from_be_bytes(*length))) > len_max
        {
            return false;
        }
        if rest.get(mpa::LENGTH_LEN).is_some_and(|control| ddp::header_len(*control) != ddp::UNTAGGED_LEN) {
            return false;
        }
        self.held.extend_from_slice(rest);
        true
    }

    pub(super) fn agree(&mut self, terms: &Terms) {
        self.checks_crc = terms.crc;
        self.swallows_send = terms.swallows_send;
    }

    /// Whether the stream is between two FPDUs.
    pub(super) fn is_between(&self) -> bool {
        self.stage == Stage::Head && self.head_len == 0 && self.held.is_empty()
    }

    /// Whether the segment under way is one of many that go to the same message.
    pub(super) fn is_bulk(&self) -> bool {
        matches!(self.header, DdpHeader::Tagged(Tagged { last: false, .. })) && self.payload_len >= DIRECT_MIN
    }

    /// What a Terminate tells of the segment that a fault is about: its header and length, and its Read Request.
    pub(super) fn about(&self, fault: Fault) -> (&[u8], u16, Option<&[u8; rdmap::READ_REQUEST_LEN]>) {
        let header =
            &self.head[mpa::LENGTH_LEN..mpa::LENGTH_LEN + ddp::header_len(self.head[mpa::LENGTH_LEN])];
        let segment_len = u16::from_be_bytes([self.head[0], self.head[1]]);
        let request = match fault {
            Fault::Read(_) | Fault::TooManyReads => self.inline.first_chunk(),
            _ => None,
        };
        (header, segment_len, request)
    }

    /// Octets of the ULPDU, from the head's first two.
    #[inline(always)]
    pub(super) fn ulpdu_len(&self) -> usize {
        usize::from(u16::from_be_bytes([self.head[0], self.head[1]]))
    }
}
