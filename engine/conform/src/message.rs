//! Messages of RPC-over-RDMA as drafts, which can be wrong in any way, and as seen, with any contents.
//!
//! Written and read here word by word, apart from the engine's own emitters and parsers, so that a mistake there
//! cannot hide itself.

use std::fmt;

use stag_wire::nfs3;
use stag_wire::rpc::{Accepted, ReplyBody, ReplyHeader};
use stag_wire::rpcrdma::{FIXED_LEN, Fixed, Segment, VERSION, errcode, procedure};
use stag_wire::xdr::Reader;

/// The version of RPC-over-RDMA that has operations.
pub const SECOND: u32 = 2;

/// Its rdma_proc of a message with an operation.
pub const OPTIONAL: u32 = 5;

/// Octets under construction, word by word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words(pub Vec<u8>);

impl Words {
    /// Adds words.
    #[must_use]
    pub fn words(mut self, words: &[u32]) -> Words {
        for word in words {
            self.0.extend_from_slice(&word.to_be_bytes());
        }
        self
    }

    /// Adds a number of 64 bits.
    #[must_use]
    pub fn wide(self, number: u64) -> Words {
        self.words(&[(number >> 32) as u32, number as u32])
    }

    /// Adds counted octets, and the padding behind them.
    #[must_use]
    pub fn opaque(self, octets: &[u8]) -> Words {
        let mut out = self.words(&[octets.len() as u32]);
        out.0.extend_from_slice(octets);
        out.0.resize(out.0.len().next_multiple_of(4), 0);
        out
    }

    /// Adds a plain segment.
    #[must_use]
    pub fn segment(self, segment: Segment) -> Words {
        self.words(&[segment.handle, segment.length]).wide(segment.offset)
    }
}

/// The header of an RPC Call without credentials, whose arguments follow.
#[must_use]
pub fn call_header(xid: u32, program: u32, version: u32, number: u32) -> Words {
    Words::default().words(&[xid, 0, 2, program, version, number, 0, 0, 0, 0])
}

/// A message to send. Starts as a correct NULL Call.
#[derive(Clone, Debug)]
pub struct DraftMessage {
    /// The fixed words.
    pub fixed: Fixed,
    /// The direction word of version 2. `None`: a message of version 1.
    pub direction: Option<u32>,
    /// The Read list: Positions and segments.
    pub reads: Vec<(u32, Segment)>,
    /// The Write list.
    pub writes: Vec<Vec<Segment>>,
    /// The Reply chunk.
    pub reply: Option<Vec<Segment>>,
    /// What follows the header.
    pub payload: Vec<u8>,
}

impl DraftMessage {
    /// A NULL Call of NFS version 3: idempotent, and without arguments or results.
    #[must_use]
    pub fn null(xid: u32) -> DraftMessage {
        DraftMessage::of(xid, call_header(xid, nfs3::PROGRAM, nfs3::VERSION, 0))
    }

    /// A Call without chunks.
    #[must_use]
    pub fn of(xid: u32, payload: Words) -> DraftMessage {
        DraftMessage {
            fixed: Fixed { xid, version: VERSION, credits: 32, procedure: procedure::MSG },
            direction: None,
            reads: Vec::new(),
            writes: Vec::new(),
            reply: None,
            payload: payload.0,
        }
    }

    /// The header alone.
    #[must_use]
    pub fn header(&self) -> Words {
        let mut out = Words(self.fixed.to_wire().to_vec());
        if let Some(direction) = self.direction {
            out = out.words(&[direction]);
        }
        for (position, segment) in &self.reads {
            out = out.words(&[1, *position]).segment(*segment);
        }
        out = out.words(&[0]);
        for chunk in &self.writes {
            out = out.words(&[1, chunk.len() as u32]);
            out = chunk.iter().fold(out, |out, segment| out.segment(*segment));
        }
        out = out.words(&[0]);
        match &self.reply {
            None => out.words(&[0]),
            Some(chunk) => {
                out = out.words(&[1, chunk.len() as u32]);
                chunk.iter().fold(out, |out, segment| out.segment(*segment))
            }
        }
    }

    /// The whole message.
    #[must_use]
    pub fn octets(&self) -> Vec<u8> {
        let mut out = self.header().0;
        out.extend_from_slice(&self.payload);
        out
    }
}

/// What stands behind the fixed words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeenBody {
    /// RDMA_MSG or RDMA_NOMSG.
    Lists {
        /// The Read list: Positions and segments.
        reads: Vec<(u32, Segment)>,
        /// The Write list.
        writes: Vec<Vec<Segment>>,
        /// The Reply chunk.
        reply: Option<Vec<Segment>>,
        /// Octets of the header.
        header_len: usize,
        /// What follows the header.
        payload: Vec<u8>,
    },
    /// RDMA_ERROR: the range of versions.
    ErrVers(u32, u32),
    /// RDMA_ERROR: ERR_CHUNK; in version 2 BAD_HEADER.
    ErrChunk,
    /// RDMA2_ERROR: INVAL_OPTION.
    InvalidOption,
    /// RDMA2_OPTIONAL.
    Operation {
        /// The number of the operation.
        kind: u32,
        /// Its octets.
        info: Vec<u8>,
        /// What follows.
        payload: Vec<u8>,
    },
    /// Anything else.
    Unreadable(&'static str),
}

/// A message that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenMessage {
    /// The fixed words; zeros if they are not whole.
    pub fixed: Fixed,
    /// The direction word of version 2.
    pub direction: Option<u32>,
    /// What follows them.
    pub body: SeenBody,
    /// Octets of the message.
    pub len: usize,
    /// The handle that it invalidated.
    pub invalidated: Option<u32>,
}

/// The word at the start of `rest`, which is moved behind it.
pub fn take(rest: &mut &[u8]) -> Option<u32> {
    let (word, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(u32::from_be_bytes(*word))
}

/// The plain segment at the start of `rest`, which is moved behind it.
pub fn take_segment(rest: &mut &[u8]) -> Option<Segment> {
    let (handle, length) = (take(rest)?, take(rest)?);
    let offset = (u64::from(take(rest)?) << 32) | u64::from(take(rest)?);
    Some(Segment { handle, length, offset })
}

fn take_chunk(rest: &mut &[u8]) -> Option<Vec<Segment>> {
    let count = take(rest)?;
    (0..count).map(|_| take_segment(rest)).collect()
}

/// Reads the lists from octet `start` on, as strictly as their grammar: a list word is 0 or 1.
fn lists(message: &[u8], start: usize) -> Option<SeenBody> {
    let mut rest = message.get(start..)?;
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    while present(&mut rest)? {
        let position = take(&mut rest)?;
        reads.push((position, take_segment(&mut rest)?));
    }
    while present(&mut rest)? {
        writes.push(take_chunk(&mut rest)?);
    }
    let reply = if present(&mut rest)? { Some(take_chunk(&mut rest)?) } else { None };
    Some(SeenBody::Lists {
        reads,
        writes,
        reply,
        header_len: message.len() - rest.len(),
        payload: rest.to_vec(),
    })
}

/// What follows the direction word of version 2.
fn second_body(message: &[u8], number: u32, mut rest: &[u8]) -> SeenBody {
    let is_cut = "of version 2, with a header that cannot be read";
    match number {
        procedure::MSG | procedure::NOMSG => {
            lists(message, FIXED_LEN + 4).unwrap_or(SeenBody::Unreadable(is_cut))
        }
        OPTIONAL => {
            let mut operation = || {
                let (kind, len) = (take(&mut rest)?, take(&mut rest)? as usize);
                let info = rest.get(..len)?.to_vec();
                let payload = rest.get(len.next_multiple_of(4)..)?.to_vec();
                Some(SeenBody::Operation { kind, info, payload })
            };
            operation().unwrap_or(SeenBody::Unreadable(is_cut))
        }
        _ => SeenBody::Unreadable("of version 2, of an rdma_proc that does not exist"),
    }
}

fn present(rest: &mut &[u8]) -> Option<bool> {
    match take(rest)? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

impl SeenMessage {
    /// Reads a message.
    #[must_use]
    pub fn of(message: &[u8], invalidated: Option<u32>) -> SeenMessage {
        let len = message.len();
        let Ok((fixed, mut rest)) = Fixed::parse(message) else {
            let fixed = Fixed { xid: 0, version: 0, credits: 0, procedure: 0 };
            return SeenMessage {
                fixed,
                direction: None,
                body: SeenBody::Unreadable("shorter than 16 octets"),
                len,
                invalidated,
            };
        };
        if fixed.version == SECOND && fixed.procedure != procedure::ERROR {
            let direction = take(&mut rest);
            let body = second_body(message, fixed.procedure, rest);
            return SeenMessage { fixed, direction, body, len, invalidated };
        }
        let body = match fixed.procedure {
            procedure::MSG | procedure::NOMSG => lists(message, FIXED_LEN)
                .unwrap_or(SeenBody::Unreadable("with chunk lists that cannot be read")),
            procedure::ERROR => match (take(&mut rest), take(&mut rest), take(&mut rest)) {
                (Some(errcode::VERS), Some(low), Some(high)) => SeenBody::ErrVers(low, high),
                (Some(errcode::CHUNK), ..) => SeenBody::ErrChunk,
                (Some(3), ..) if fixed.version == SECOND => SeenBody::InvalidOption,
                _ => SeenBody::Unreadable("RDMA_ERROR that cannot be read"),
            },
            procedure::DONE => SeenBody::Unreadable("RDMA_DONE"),
            procedure::MSGP => SeenBody::Unreadable("RDMA_MSGP"),
            _ => SeenBody::Unreadable("of an rdma_proc that does not exist"),
        };
        SeenMessage { fixed, direction: None, body, len, invalidated }
    }

    /// What follows the header.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        match &self.body {
            SeenBody::Lists { payload, .. } | SeenBody::Operation { payload, .. } => payload,
            _ => &[],
        }
    }

    /// The Write list.
    #[must_use]
    pub fn writes(&self) -> &[Vec<Segment>] {
        match &self.body {
            SeenBody::Lists { writes, .. } => writes,
            _ => &[],
        }
    }

    /// The Read list.
    #[must_use]
    pub fn reads(&self) -> &[(u32, Segment)] {
        match &self.body {
            SeenBody::Lists { reads, .. } => reads,
            _ => &[],
        }
    }

    /// The Reply chunk.
    #[must_use]
    pub fn reply_chunk(&self) -> Option<&[Segment]> {
        match &self.body {
            SeenBody::Lists { reply, .. } => reply.as_deref(),
            _ => None,
        }
    }

    /// Whether it is an RDMA_NOMSG.
    #[must_use]
    pub fn is_nomsg(&self) -> bool {
        self.fixed.procedure == procedure::NOMSG
    }

    /// Whether it is an RDMA_ERROR with ERR_CHUNK that answers `xid` in version 1.
    #[must_use]
    pub fn is_err_chunk(&self, xid: u32) -> bool {
        self.body == SeenBody::ErrChunk && self.fixed.xid == xid && self.fixed.version == VERSION
    }

    /// The second word of the Payload stream: 0 for a Call, 1 for a Reply.
    #[must_use]
    pub fn message_type(&self) -> Option<u32> {
        let mut rest = self.payload().get(4..)?;
        take(&mut rest)
    }
}

/// What an RPC Reply says of its Call, or that it is none.
#[must_use]
pub fn outcome(payload: &[u8]) -> RpcOutcome {
    match ReplyHeader::parse(&mut Reader::new(payload)) {
        Ok(ReplyHeader { body: ReplyBody::Accepted { outcome: Accepted::Success, .. }, .. }) => {
            RpcOutcome::Success
        }
        Ok(ReplyHeader { body: ReplyBody::Accepted { outcome: Accepted::GarbageArgs, .. }, .. }) => {
            RpcOutcome::Garbage
        }
        Ok(_) => RpcOutcome::Refused,
        Err(_) => RpcOutcome::NoReply,
    }
}

/// How an RPC ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RpcOutcome {
    /// SUCCESS.
    Success,
    /// GARBAGE_ARGS.
    Garbage,
    /// Any other refusal.
    Refused,
    /// It is no RPC Reply.
    NoReply,
}

impl fmt::Display for RpcOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RpcOutcome::Success => "SUCCESS",
            RpcOutcome::Garbage => "GARBAGE_ARGS",
            RpcOutcome::Refused => "an RPC refusal",
            RpcOutcome::NoReply => "no RPC Reply",
        })
    }
}

impl fmt::Display for SeenMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.body {
            SeenBody::ErrVers(low, high) => write!(f, "ERR_VERS {low} to {high}")?,
            SeenBody::ErrChunk if self.fixed.version == SECOND => f.write_str("BAD_HEADER")?,
            SeenBody::ErrChunk => f.write_str("ERR_CHUNK")?,
            SeenBody::InvalidOption => f.write_str("INVAL_OPTION")?,
            SeenBody::Operation { kind, info, .. } => {
                write!(f, "operation {kind} of {} octets", info.len())?;
            }
            SeenBody::Unreadable(what) => write!(f, "a message {what}")?,
            SeenBody::Lists { reads, payload, .. } if self.is_nomsg() && !reads.is_empty() => {
                let total: u64 = reads.iter().map(|(_, segment)| u64::from(segment.length)).sum();
                write!(f, "RDMA_NOMSG, {total} octets in {} segments to be read", reads.len())?;
                if !payload.is_empty() {
                    write!(f, ", {} behind the header", payload.len())?;
                }
            }
            SeenBody::Lists { reply, payload, .. } if self.is_nomsg() => {
                let total: u64 = reply.iter().flatten().map(|segment| u64::from(segment.length)).sum();
                write!(f, "RDMA_NOMSG, {total} octets in the Reply chunk")?;
                if !payload.is_empty() {
                    write!(f, ", {} behind the header", payload.len())?;
                }
            }
            SeenBody::Lists { payload, writes, .. } => {
                let outcome = outcome(payload);
                write!(f, "RDMA_MSG, {outcome}")?;
                if outcome == RpcOutcome::NoReply {
                    write!(f, " ({:02x?})", &payload[..payload.len().min(32)])?;
                }
                for chunk in writes {
                    let total: u64 = chunk.iter().map(|segment| u64::from(segment.length)).sum();
                    write!(f, ", Write chunk of {} segments with {total} octets", chunk.len())?;
                }
            }
        }
        if self.fixed.version != VERSION && !matches!(self.body, SeenBody::ErrVers(..)) {
            write!(f, ", version {}", self.fixed.version)?;
        }
        if self.invalidated.is_some() {
            f.write_str(", a handle invalidated")?;
        }
        Ok(())
    }
}

impl SeenMessage {
    /// The message as a draft, which gives its octets again. `None`: it has no chunk lists.
    #[must_use]
    pub fn to_draft(&self) -> Option<DraftMessage> {
        let SeenBody::Lists { reads, writes, reply, payload, .. } = &self.body else { return None };
        Some(DraftMessage {
            fixed: self.fixed,
            direction: self.direction,
            reads: reads.clone(),
            writes: writes.clone(),
            reply: reply.clone(),
            payload: payload.clone(),
        })
    }
}
