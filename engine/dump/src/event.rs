//! The reports of an [`Analyzer`](crate::Analyzer), and its totals.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use stag_wire::cm_private_data::PrivateData;
use stag_wire::reliable_reply::ReliableReply;
use stag_wire::rpcrdma::{self, Done};
use stag_wire::rpcrdma2::{Header2, OptionalOperation};

use crate::procedure::{Rpc, Status};

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The end that asked for the connection.
    Client,
    /// The end that was asked.
    Server,
}

impl ConnectionEnd {
    /// The other end.
    #[must_use]
    pub const fn other(self) -> ConnectionEnd {
        match self {
            ConnectionEnd::Client => ConnectionEnd::Server,
            ConnectionEnd::Server => ConnectionEnd::Client,
        }
    }

    pub(crate) const fn index(self) -> usize {
        match self {
            ConnectionEnd::Client => 0,
            ConnectionEnd::Server => 1,
        }
    }
}

/// What carries the RDMA messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapturedFabric {
    /// MPA, DDP and RDMAP over TCP.
    Iwarp,
    /// RoCE version 2 over UDP.
    Roce,
}

impl fmt::Display for CapturedFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CapturedFabric::Iwarp => "iWARP",
            CapturedFabric::Roce => "RoCEv2",
        })
    }
}

/// A connection that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// What carries it.
    pub fabric: CapturedFabric,
    /// The end that asked for it. For RoCE the port is that of the address block, or 0.
    pub client: SocketAddr,
    /// The end that was asked. For RoCE the port is that of the service, or 0.
    pub server: SocketAddr,
    /// The capture does not have its start: which end is the client is a guess, and what depends on the past
    /// is not checked.
    pub midway: bool,
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleViolation {
    /// The rule's number in `engine/spec`.
    pub rule: &'static str,
    /// What was found.
    pub text: String,
}

/// A message of the connection's set-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup<'a> {
    /// What it is: `MPA Request`, `CM REP` and the like.
    pub name: &'static str,
    /// Its options, as `name value` pairs in the order of the wire.
    pub options: Vec<(&'static str, String)>,
    /// The upper layer's private data.
    pub private_data: &'a [u8],
    /// What RFC 8797 finds in it.
    pub parameters: Option<PrivateData>,
    /// What it says about replies of any size.
    pub reliable_reply: Option<ReliableReply>,
    /// It says there that it speaks version 2 (RR-P-4b).
    pub announces_version_2: bool,
}

/// A message that RFC 8166 does not know.
#[derive(Clone, Copy, Debug)]
pub enum Extension<'a> {
    /// Of version 2.
    Version2 {
        /// Its header.
        header: Header2<'a>,
        /// Its operation, if it has one that can be read.
        operation: Option<OptionalOperation<'a>>,
        /// What follows the header.
        payload: &'a [u8],
    },
    /// RDMA_DONE: the Requester has pulled a Reply. [`Message::long_payload`] has it, and [`Message::rpc`] what it says.
    Done(Done),
}

/// A DDP or RDMAP error that ends a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Termination {
    /// What it says.
    pub text: String,
}

/// Which chunk of a Call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkKind {
    /// All segments of the Read list with this Position.
    Read {
        /// The Position.
        position: u32,
    },
    /// An entry of the Write list.
    Write {
        /// Its place in the list, from 0.
        index: usize,
    },
    /// The Reply chunk.
    Reply,
    /// The Read chunk of a Reply, which its Requester pulls.
    Exposed,
}

/// What happened to a chunk until its Reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkUse {
    /// Which chunk.
    pub kind: ChunkKind,
    /// Octets that were offered.
    pub offered: u64,
    /// RDMA Reads or Writes.
    pub operations: u32,
    /// Octets that they moved.
    pub moved: u64,
    /// The octets, if [`Options::keep_data`](crate::Options::keep_data) asked for them or they are a Payload stream.
    pub data: Vec<u8>,
}

/// The Call that a Reply answers.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    /// Frame of the Call.
    pub frame: u64,
    /// When it was captured.
    pub time: Duration,
    /// Its chunks, in the order of the wire.
    pub chunks: &'a [ChunkUse],
    /// The whole message, if [`Options::keep_data`](crate::Options::keep_data) asked for it; else empty.
    pub octets: &'a [u8],
}

/// An RPC-over-RDMA message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Who sent it.
    pub from: ConnectionEnd,
    /// All of it that was captured.
    pub octets: &'a [u8],
    /// Octets behind these that were sent and not captured. If there are some, no broken rules are named.
    pub missing: usize,
    /// The handle that came to be invalidated with it.
    pub invalidated: Option<u32>,
    /// What it is, if it is not of RFC 8166; [`Message::header`] is an error then.
    pub extension: Option<Extension<'a>>,
    /// Its header and the Payload stream behind it; or why it cannot be read.
    pub header: Result<(rpcrdma::Header<'a>, &'a [u8]), rpcrdma::HeaderError>,
    /// The Payload stream that went by chunk, as far as it was captured.
    pub long_payload: Option<&'a [u8]>,
    /// What the Payload stream says.
    pub rpc: Option<&'a Rpc>,
    /// Of NFS version 4: the operations, with arguments or with results.
    pub compound: Option<&'a CapturedCompound>,
    /// The Call that it answers.
    pub answered: Option<Answered<'a>>,
    /// The rules that it breaks.
    pub violations: &'a [RuleViolation],
}

/// A COMPOUND or CB_COMPOUND of NFS version 4, or its results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapturedCompound {
    /// Of a Call: 0, 1 or 2, or a number that is no minor version.
    pub minor_version: Option<u32>,
    /// The operations, as far as they can be read, 64 at most.
    pub operations: Vec<CapturedOperation>,
    /// Operations that are not listed.
    pub unlisted: u32,
}

/// An operation with its arguments, or with its results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedOperation {
    /// Its number.
    pub number: u32,
    /// Its name; none if the number has none in 4.0 to 4.2.
    pub name: Option<&'static str>,
    /// Of results: the status.
    pub status: Option<Status>,
    /// Arguments or results, field by field.
    pub text: String,
}

impl fmt::Display for CapturedOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            Some(name) => f.write_str(name)?,
            None => write!(f, "operation {}", self.number)?,
        }
        if let Some(status) = &self.status {
            write!(f, " {status}")?;
        }
        if !self.text.is_empty() {
            write!(f, " {}", self.text)?;
        }
        Ok(())
    }
}

/// Something that was seen.
#[derive(Debug)]
pub struct CapturedEvent<'a> {
    /// In which frame. A Call whose Payload went by chunk comes when that has been read, but with its own frame.
    pub frame: u64,
    /// When, since 1970.
    pub time: Duration,
    /// On which connection, counted from 1.
    pub connection: u64,
    /// What.
    pub kind: EventKind<'a>,
}

/// What was seen.
#[derive(Debug)]
pub enum EventKind<'a> {
    /// A connection.
    Opened(Endpoints),
    /// A message of its set-up.
    Setup(ConnectionEnd, Setup<'a>),
    /// An RPC-over-RDMA message.
    Message(&'a Message<'a>),
    /// A broken rule below RPC-over-RDMA.
    Violation(ConnectionEnd, &'a RuleViolation),
    /// The capture lacks this number of octets that a side sent; for RoCE, packets. They belong before the event's
    /// frame.
    Gap(ConnectionEnd, u64),
    /// What one should know to read the rest.
    Note(ConnectionEnd, &'static str),
    /// A Terminate message.
    Terminate(ConnectionEnd, Termination),
    /// The connection ended. Calls that were not answered.
    Closed {
        /// Calls without a Reply.
        unanswered: usize,
        /// Calls whose Replies may be in what the capture lacks.
        unknown: usize,
    },
}

/// Ports to which RPC Calls go without RDMA that are told apart; further ones are not counted.
const OTHER_PORTS_MAX: usize = 16;

/// What was counted.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Frames of the capture.
    pub frames: u64,
    /// Frames whose link type is not read here.
    pub frames_of_other_links: u64,
    /// The first such link type.
    pub other_link: Option<u16>,
    /// RPC Calls that are not over RDMA, by protocol and the port that they go to.
    pub other_calls: BTreeMap<(IpProtocol, u16), u64>,
    /// Frames that are fragments of IP packets.
    pub fragments: u64,
    /// Frames that end inside a header, or contradict themselves.
    pub malformed: u64,
    /// RDMA connections.
    pub connections: u64,
    /// RPC-over-RDMA messages.
    pub messages: u64,
    /// Of these: Calls.
    pub calls: u64,
    /// Of these: Replies.
    pub replies: u64,
    /// Of these: RDMA_ERROR.
    pub errors: u64,
    /// RPC-over-RDMA messages that are none of these: RDMA_DONE, and operations of version 2 that belong to no Call.
    pub others: u64,
    /// Continuations of Calls and Replies.
    pub continuations: u64,
    /// Replies and errors whose Call was found.
    pub paired: u64,
    /// Calls that were not answered when their connection or the capture ended.
    pub unanswered: u64,
    /// Calls whose Replies may be in what the capture lacks.
    pub unknown: u64,
    /// Sends that are not RPC-over-RDMA.
    pub other_sends: u64,
    /// RDMA Reads, and the octets that they moved.
    pub reads: Moved,
    /// RDMA Writes, and the octets that they moved.
    pub writes: Moved,
    /// FPDUs, or packets of RoCE.
    pub segments: u64,
    /// Of these: with a CRC that was checked and is right.
    pub crc_good: u64,
    /// Of these: with a wrong CRC.
    pub crc_bad: u64,
    /// Packets of RoCE that came before.
    pub duplicates: u64,
    /// Places where the capture lacks something.
    pub gaps: u64,
    /// Octets of TCP streams that the capture lacks.
    pub missing: u64,
    /// Connections that were given up to keep within memory.
    pub given_up: u64,
    /// Broken rules.
    pub violations: BTreeMap<&'static str, u64>,
}

/// A protocol over IP that carries RPC without RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IpProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Operations and what they moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Operations.
    pub operations: u64,
    /// Octets.
    pub octets: u64,
}

impl Totals {
    /// Counts a TCP segment or a datagram that is not RDMA, if an RPC Call begins it.
    pub(crate) fn count_other(&mut self, protocol: IpProtocol, port: u16, payload: &[u8]) {
        // A byte stream has a mark before the record.
        let record = if protocol == IpProtocol::Tcp { payload.get(4..) } else { Some(payload) };
        // xid, CALL, version 2 of RPC.
        let is_call = record.and_then(|record| record.get(4..12)) == Some(&[0, 0, 0, 0, 0, 0, 0, 2]);
        if is_call
            && (self.other_calls.len() < OTHER_PORTS_MAX || self.other_calls.contains_key(&(protocol, port)))
        {
            *self.other_calls.entry((protocol, port)).or_default() += 1;
        }
    }

    /// All broken rules together.
    #[must_use]
    pub fn violation_count(&self) -> u64 {
        self.violations.values().sum()
    }
}

/// Where things are reported, and at which moment of the capture.
pub(crate) struct Context<'c> {
    pub(crate) frame: u64,
    pub(crate) time: Duration,
    pub(crate) connection: u64,
    /// Octets that the message in work lacks.
    pub(crate) missing: usize,
    pub(crate) sink: &'c mut dyn FnMut(&CapturedEvent<'_>),
    pub(crate) totals: &'c mut Totals,
}

impl Context<'_> {
    pub(crate) fn emit(&mut self, kind: EventKind<'_>) {
        let (frame, time, connection) = (self.frame, self.time, self.connection);
        (self.sink)(&CapturedEvent { frame, time, connection, kind });
    }

    /// Reports a broken rule below RPC-over-RDMA.
    pub(crate) fn violation(&mut self, from: ConnectionEnd, rule: &'static str, text: impl fmt::Display) {
        *self.totals.violations.entry(rule).or_default() += 1;
        self.emit(EventKind::Violation(from, &RuleViolation { rule, text: text.to_string() }));
    }
}
