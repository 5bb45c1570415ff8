//! RoCEv2 packets and the connection manager's messages in them (InfiniBand Architecture volume 1, annex A17).
//!
//! For captures: hardware and kernels do all this for `verbs`. So there are views here, and of emitters only that of the messages
//! that set up a connection, for captures that are written ([`ConnectionSetup`]).
//!
//! ```text
//!  UDP port 4791:  BTH | [DETH] [RETH] [AETH] [ImmDt] [IETH] | payload | pad 0..3 | ICRC
//!
//!  BTH    0 opcode | 1 SE M pad:2 version:4 | 2 P_Key | 4 reserved | 5 destination QP | 8 ack request | 9 PSN
//!  RETH   0 virtual address (8) | 8 R_Key | 12 length
//!  AETH   0 syndrome | 1 MSN (3)
//!  DETH   0 Q_Key | 4 reserved | 5 source QP (3)
//! ```

use core::net::{IpAddr, SocketAddr};

/// UDP port of RoCEv2.
pub const PORT: u16 = 4791;

/// Octets of the base transport header.
pub const BTH_LEN: usize = 12;
/// Octets of the invariant CRC at the end of each packet.
pub const ICRC_LEN: usize = 4;
/// The queue pair of the connection manager.
pub const QP_GENERAL_SERVICES: u32 = 1;

const RETH_LEN: usize = 16;

/// Why octets are no packet of RoCEv2 that is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RoceError {
    /// The packet ends inside a header.
    Truncated,
    /// The transport header version is not 0.
    Version(u8),
    /// An operation that neither RPC-over-RDMA nor the connection manager uses.
    Opcode(u8),
    /// The pad count is above the payload.
    Padding,
}

impl core::fmt::Display for RoceError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            RoceError::Truncated => f.write_str("the packet ends inside a header"),
            RoceError::Version(found) => write!(f, "transport header version {found} is not 0"),
            RoceError::Opcode(found) => write!(f, "opcode {found:#04x} is not known"),
            RoceError::Padding => f.write_str("more padding than payload"),
        }
    }
}

impl core::error::Error for RoceError {}

/// Which packet of its message a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// First and last.
    Only,
}

impl Part {
    /// Tells whether a message starts with it.
    #[must_use]
    pub const fn starts(self) -> bool {
        matches!(self, Part::First | Part::Only)
    }

    /// Tells whether a message ends with it.
    #[must_use]
    pub const fn ends(self) -> bool {
        matches!(self, Part::Last | Part::Only)
    }
}

/// The memory that an RDMA Write or Read names (RETH).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Where it starts.
    pub address: u64,
    /// R_Key: a handle.
    pub handle: u32,
    /// Octets of the whole message.
    pub length: u32,
}

/// What a packet does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoceOperation {
    /// A piece of a Send, and in its last one the handle to invalidate.
    Send {
        /// Which piece.
        part: Part,
        /// R_Key to invalidate.
        invalidate: Option<u32>,
    },
    /// A piece of an RDMA Write.
    Write {
        /// Which piece.
        part: Part,
        /// Where the message goes; with the first piece.
        target: Option<Reth>,
    },
    /// An RDMA Read Request.
    ReadRequest(Reth),
    /// A piece of the answer to an RDMA Read.
    ReadResponse {
        /// Which piece.
        part: Part,
    },
    /// An acknowledgement, positive or negative.
    Acknowledge {
        /// Octet that says which.
        syndrome: u8,
    },
    /// An unreliable datagram: to queue pair 1, a management datagram.
    Datagram {
        /// The sender's queue pair.
        source_qp: u32,
    },
}

impl RoceOperation {
    /// Tells whether an acknowledgement refuses ([`RoceOperation::Acknowledge`] with a NAK).
    #[must_use]
    pub const fn is_nak(&self) -> bool {
        matches!(self, RoceOperation::Acknowledge { syndrome } if *syndrome & 0x60 == 0x60)
    }
}

/// A packet, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The receiver's queue pair.
    pub destination_qp: u32,
    /// Packet sequence number, of 24 bits.
    pub psn: u32,
    /// What it does.
    pub operation: RoceOperation,
    /// The payload without its padding, as far as it is there.
    pub payload: &'a [u8],
    /// Octets of the payload behind that, of a packet of which only the start is there.
    pub missing: usize,
    /// The invariant CRC, as it stands there; zeros where only the start of the packet is there.
    pub icrc: [u8; ICRC_LEN],
}

/// Opcodes: three bits of service, five of operation.
mod opcode {
    pub(super) const SERVICE: u8 = 0xe0;
    pub(super) const RELIABLE_CONNECTION: u8 = 0x00;
    pub(super) const UNRELIABLE_DATAGRAM: u8 = 0x60;
    pub(super) const OPERATION: u8 = 0x1f;
}

fn word(octets: &[u8; 4]) -> u32 {
    u32::from_be_bytes(*octets)
}

/// Reads a number of 24 bits behind an octet that is something else.
fn low24(octets: &[u8; 4]) -> u32 {
    word(octets) & 0x00ff_ffff
}

/// Splits a fixed number of octets off.
fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Result<&'a [u8; N], RoceError> {
    let (head, after) = rest.split_first_chunk().ok_or(RoceError::Truncated)?;
    *rest = after;
    Ok(head)
}

fn take_word(rest: &mut &[u8]) -> Result<u32, RoceError> {
    take(rest).map(word)
}

fn take_reth(rest: &mut &[u8]) -> Result<Reth, RoceError> {
    let [a0, a1, a2, a3, a4, a5, a6, a7, h0, h1, h2, h3, length @ ..] = take::<RETH_LEN>(rest)?;
    Ok(Reth {
        address: u64::from_be_bytes([*a0, *a1, *a2, *a3, *a4, *a5, *a6, *a7]),
        handle: u32::from_be_bytes([*h0, *h1, *h2, *h3]),
        length: word(length),
    })
}

impl<'a> Packet<'a> {
    /// Reads the payload of a UDP datagram. The ICRC is not checked: see [`icrc`].
    pub fn parse(datagram: &'a [u8]) -> Result<Packet<'a>, RoceError> {
        Packet::parse_start(datagram, 0)
    }

    /// Reads the start of the payload of a UDP datagram, of which `missing` more octets were sent.
    pub fn parse_start(datagram: &'a [u8], missing: usize) -> Result<Packet<'a>, RoceError> {
        let mut rest = datagram;
        let [code, flags, _, _, q0, q1, q2, q3, p0, p1, p2, p3] = take::<BTH_LEN>(&mut rest)?;
        if flags & 0x0f != 0 {
            return Err(RoceError::Version(flags & 0x0f));
        }
        let operation = Packet::operation(*code, &mut rest)?;
        let padding = usize::from(flags >> 4 & 3);
        let left = (rest.len() + missing).checked_sub(ICRC_LEN).ok_or(RoceError::Truncated)?;
        let len = left.checked_sub(padding).ok_or(RoceError::Padding)?;
        let payload = &rest[..len.min(rest.len())];
        let icrc = datagram.last_chunk().filter(|_| missing == 0).copied().unwrap_or_default();
        Ok(Packet {
            destination_qp: low24(&[*q0, *q1, *q2, *q3]),
            psn: low24(&[*p0, *p1, *p2, *p3]),
            operation,
            payload,
            missing: len - payload.len(),
            icrc,
        })
    }

    /// Reads the headers that the opcode asks for.
    fn operation(code: u8, rest: &mut &'a [u8]) -> Result<RoceOperation, RoceError> {
        let send = |part| RoceOperation::Send { part, invalidate: None };
        let service = code & opcode::SERVICE;
        if service == opcode::UNRELIABLE_DATAGRAM {
            let immediate = match code & opcode::OPERATION {
                4 => false,
                5 => true,
                _ => return Err(RoceError::Opcode(code)),
            };
            let [_, _, _, _, source @ ..] = take::<8>(rest)?;
            if immediate {
                take_word(rest)?;
            }
            return Ok(RoceOperation::Datagram { source_qp: low24(source) });
        }
        if service != opcode::RELIABLE_CONNECTION {
            return Err(RoceError::Opcode(code));
        }
        Ok(match code & opcode::OPERATION {
            0 => send(Part::First),
            1 => send(Part::Middle),
            2 => send(Part::Last),
            3 => take_word(rest).map(|_| send(Part::Last))?,
            4 => send(Part::Only),
            5 => take_word(rest).map(|_| send(Part::Only))?,
            6 => RoceOperation::Write { part: Part::First, target: Some(take_reth(rest)?) },
            7 => RoceOperation::Write { part: Part::Middle, target: None },
            8 => RoceOperation::Write { part: Part::Last, target: None },
            9 => take_word(rest).map(|_| RoceOperation::Write { part: Part::Last, target: None })?,
            10 => RoceOperation::Write { part: Part::Only, target: Some(take_reth(rest)?) },
            11 => {
                let target = Some(take_reth(rest)?);
                take_word(rest)?;
                RoceOperation::Write { part: Part::Only, target }
            }
            12 => RoceOperation::ReadRequest(take_reth(rest)?),
            13 => take_word(rest).map(|_| RoceOperation::ReadResponse { part: Part::First })?,
            14 => RoceOperation::ReadResponse { part: Part::Middle },
            15 => take_word(rest).map(|_| RoceOperation::ReadResponse { part: Part::Last })?,
            16 => take_word(rest).map(|_| RoceOperation::ReadResponse { part: Part::Only })?,
            17 => {
                let [syndrome, ..] = take::<4>(rest)?;
                RoceOperation::Acknowledge { syndrome: *syndrome }
            }
            22 => RoceOperation::Send { part: Part::Last, invalidate: Some(take_word(rest)?) },
            23 => RoceOperation::Send { part: Part::Only, invalidate: Some(take_word(rest)?) },
            _ => return Err(RoceError::Opcode(code)),
        })
    }
}

/// Computes the invariant CRC of a packet, as it stands on the wire: over the IP header, the UDP header, and
/// `datagram` without its last four octets, with what routers may change replaced by ones.
///
/// `None` if the headers are not those of IPv4 without options or IPv6 without extensions, or too short.
#[must_use]
pub fn icrc(ip_header: &[u8], udp_header: &[u8; 8], datagram: &[u8]) -> Option<[u8; ICRC_LEN]> {
    let mut crc = Crc(u32::MAX);
    // In the place of the link's header, which RoCEv2 leaves out.
    crc.update(&[0xff; 8]);
    if let Ok(mut header) = <[u8; 20]>::try_from(ip_header) {
        // Type of service, time to live, header checksum.
        for at in [1, 8, 10, 11] {
            header[at] = 0xff;
        }
        crc.update(&header);
    } else {
        let mut header = <[u8; 40]>::try_from(ip_header).ok()?;
        // Traffic class, flow label, hop limit.
        header[0] |= 0x0f;
        for at in [1, 2, 3, 7] {
            header[at] = 0xff;
        }
        crc.update(&header);
    }
    let [head @ .., _, _] = udp_header;
    crc.update(head);
    crc.update(&[0xff; 2]);
    let body = datagram.get(..datagram.len().checked_sub(ICRC_LEN)?)?;
    let (bth, rest) = body.split_first_chunk::<BTH_LEN>()?;
    let mut bth = *bth;
    bth[4] = 0xff;
    crc.update(&bth);
    crc.update(rest);
    Some((!crc.0).to_le_bytes())
}

/// CRC-32 of Ethernet.
struct Crc(u32);

const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut value = index as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 != 0 { 0xedb8_8320 ^ value >> 1 } else { value >> 1 };
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
};

impl Crc {
    fn update(&mut self, octets: &[u8]) {
        for octet in octets {
            let [low, ..] = (self.0 ^ u32::from(*octet)).to_le_bytes();
            self.0 = self.0 >> 8 ^ CRC_TABLE[usize::from(low)];
        }
    }
}

/// A message of the connection manager, borrowed from the management datagram it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionMessage<'a> {
    /// REQ: a request for a connection.
    Request {
        /// Names the connection on the sender's side.
        local_id: u32,
        /// Which service: see [`ConnectionMessage::port`].
        service_id: u64,
        /// The sender's queue pair.
        local_qp: u32,
        /// RDMA Reads that it answers at once (its IRD).
        responder_resources: u8,
        /// RDMA Reads that it has outstanding (its ORD).
        initiator_depth: u8,
        /// First packet sequence number that the other side is to send.
        starting_psn: u32,
        /// Octets of a packet's payload at most.
        path_mtu: u32,
        /// All 92 octets; the address block of the RDMA IP CM service takes the first 36.
        private_data: &'a [u8],
    },
    /// REP: the connection is accepted.
    Reply {
        /// Names the connection on the sender's side.
        local_id: u32,
        /// Names it on the receiver's side.
        remote_id: u32,
        /// The sender's queue pair.
        local_qp: u32,
        /// RDMA Reads that it answers at once.
        responder_resources: u8,
        /// RDMA Reads that it has outstanding.
        initiator_depth: u8,
        /// First packet sequence number that the other side is to send.
        starting_psn: u32,
        /// All 196 octets.
        private_data: &'a [u8],
    },
    /// RTU: the accept has arrived.
    ReadyToUse {
        /// Names the connection on the sender's side.
        local_id: u32,
        /// Names it on the receiver's side.
        remote_id: u32,
    },
    /// REJ: the connection is refused.
    Reject {
        /// Names the connection on the sender's side.
        local_id: u32,
        /// Names it on the receiver's side.
        remote_id: u32,
        /// Why.
        reason: u16,
        /// All 148 octets.
        private_data: &'a [u8],
    },
    /// DREQ: the connection ends.
    DisconnectRequest {
        /// Names the connection on the sender's side.
        local_id: u32,
        /// Names it on the receiver's side.
        remote_id: u32,
    },
    /// DREP: the answer to it.
    DisconnectReply {
        /// Names the connection on the sender's side.
        local_id: u32,
        /// Names it on the receiver's side.
        remote_id: u32,
    },
    /// Another message, by its attribute.
    Other(u16),
}

const MAD_HEADER_LEN: usize = 24;
const CM_LEN: usize = 232;
const CLASS_COMMUNICATION_MANAGEMENT: u8 = 7;
/// Octets of the address block that the RDMA IP CM service puts in front of a REQ's private data.
const ADDRESS_BLOCK_LEN: usize = 36;
/// Service ids of the RDMA IP CM service for TCP ports: this prefix, then the port.
const SERVICE_TCP: u64 = 0x0000_0000_0106;

mod attribute {
    pub(super) const REQUEST: u16 = 0x10;
    pub(super) const REJECT: u16 = 0x12;
    pub(super) const REPLY: u16 = 0x13;
    pub(super) const READY_TO_USE: u16 = 0x14;
    pub(super) const DISCONNECT_REQUEST: u16 = 0x15;
    pub(super) const DISCONNECT_REPLY: u16 = 0x16;
}

/// Octets of private data of a REQ to the RDMA IP CM service.
pub const REQUEST_PRIVATE_DATA_LEN: usize = 92 - ADDRESS_BLOCK_LEN;
/// Octets of private data of a REP.
pub const REPLY_PRIVATE_DATA_LEN: usize = 196;

/// Octets of a management datagram.
pub const MAD_LEN: usize = MAD_HEADER_LEN + CM_LEN;

/// A REQ or REP to be written into a capture: what readers of captures look at; everything else in it is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionSetup<'a> {
    /// Names the connection on the client's side.
    pub client_id: u32,
    /// Of a REP: names it on the server's side. `None`: it is a REQ.
    pub server_id: Option<u32>,
    /// The sender's queue pair.
    pub local_qp: u32,
    /// First packet sequence number that the other side is to send.
    pub starting_psn: u32,
    /// The client, and the server with the port of its service.
    pub ends: [SocketAddr; 2],
    /// What is beyond the field ([`REQUEST_PRIVATE_DATA_LEN`], [`REPLY_PRIVATE_DATA_LEN`]) is left out.
    pub private_data: &'a [u8],
}

/// A path MTU of 4096 octets.
const PATH_MTU_4096: u8 = 5;

impl ConnectionSetup<'_> {
    /// Returns the management datagram.
    #[must_use]
    pub fn to_wire(&self) -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        let attribute = if self.server_id.is_some() { attribute::REPLY } else { attribute::REQUEST };
        // Base version, class, version of the class, method Send.
        mad[..4].copy_from_slice(&[1, CLASS_COMMUNICATION_MANAGEMENT, 2, 3]);
        // The transaction is the client's.
        mad[12..16].copy_from_slice(&self.client_id.to_be_bytes());
        mad[16..18].copy_from_slice(&attribute.to_be_bytes());
        let body = &mut mad[MAD_HEADER_LEN..];
        let high24 = |number: u32| (number << 8).to_be_bytes();
        if let Some(server_id) = self.server_id {
            body[..4].copy_from_slice(&server_id.to_be_bytes());
            body[4..8].copy_from_slice(&self.client_id.to_be_bytes());
            body[12..16].copy_from_slice(&high24(self.local_qp));
            body[20..24].copy_from_slice(&high24(self.starting_psn));
            copy_start(&mut body[36..36 + REPLY_PRIVATE_DATA_LEN], self.private_data);
            return mad;
        }
        let [client, server] = self.ends;
        body[..4].copy_from_slice(&self.client_id.to_be_bytes());
        let service = SERVICE_TCP << 16 | u64::from(server.port());
        body[8..16].copy_from_slice(&service.to_be_bytes());
        body[32..36].copy_from_slice(&high24(self.local_qp));
        body[44..48].copy_from_slice(&high24(self.starting_psn));
        body[50] = PATH_MTU_4096 << 4;
        // The GIDs of RoCEv2 are addresses.
        body[56..72].copy_from_slice(&in_six(client.ip()));
        body[72..88].copy_from_slice(&in_six(server.ip()));
        let (block, private_data) = body[140..].split_at_mut(ADDRESS_BLOCK_LEN);
        block[1] = if client.is_ipv4() { 0x40 } else { 0x60 };
        block[2..4].copy_from_slice(&client.port().to_be_bytes());
        for (place, end) in [(4, client), (20, server)] {
            match end.ip() {
                // At the end of its field.
                IpAddr::V4(four) => block[place + 12..place + 16].copy_from_slice(&four.octets()),
                IpAddr::V6(six) => block[place..place + 16].copy_from_slice(&six.octets()),
            }
        }
        copy_start(private_data, self.private_data);
        mad
    }
}

fn in_six(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(four) => four.to_ipv6_mapped().octets(),
        IpAddr::V6(six) => six.octets(),
    }
}

/// Copies as much as fits.
fn copy_start(to: &mut [u8], from: &[u8]) {
    let len = to.len().min(from.len());
    to[..len].copy_from_slice(&from[..len]);
}

impl<'a> ConnectionMessage<'a> {
    /// Reads the payload of a datagram to [`QP_GENERAL_SERVICES`]. `None` if it is of another management class,
    /// or too short.
    #[must_use]
    pub fn parse(mad: &'a [u8]) -> Option<ConnectionMessage<'a>> {
        let (header, body) = mad.split_first_chunk::<MAD_HEADER_LEN>()?;
        let body: &[u8; CM_LEN] = body.first_chunk()?;
        if header[1] != CLASS_COMMUNICATION_MANAGEMENT {
            return None;
        }
        // Offsets of the architecture's tables 99 to 106; all of them are inside CM_LEN.
        let word = |at: usize| body[at..].first_chunk().map_or(0, word);
        let high24 = |at: usize| word(at) >> 8;
        let (local_id, remote_id) = (word(0), word(4));
        Some(match u16::from_be_bytes([header[16], header[17]]) {
            attribute::REQUEST => ConnectionMessage::Request {
                local_id,
                service_id: u64::from(word(8)) << 32 | u64::from(word(12)),
                local_qp: high24(32),
                responder_resources: body[35],
                initiator_depth: body[39],
                starting_psn: high24(44),
                path_mtu: 128 << u32::from(body[50] >> 4).min(5),
                private_data: &body[140..],
            },
            attribute::REPLY => ConnectionMessage::Reply {
                local_id,
                remote_id,
                local_qp: high24(12),
                responder_resources: body[24],
                initiator_depth: body[25],
                starting_psn: high24(20),
                private_data: &body[36..],
            },
            attribute::READY_TO_USE => ConnectionMessage::ReadyToUse { local_id, remote_id },
            attribute::REJECT => ConnectionMessage::Reject {
                local_id,
                remote_id,
                reason: u16::from_be_bytes([body[10], body[11]]),
                private_data: &body[84..],
            },
            attribute::DISCONNECT_REQUEST => ConnectionMessage::DisconnectRequest { local_id, remote_id },
            attribute::DISCONNECT_REPLY => ConnectionMessage::DisconnectReply { local_id, remote_id },
            other => ConnectionMessage::Other(other),
        })
    }

    /// Returns the port that a REQ is for, if its service is the RDMA IP CM service's for TCP ports (8166-5-c).
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        match self {
            ConnectionMessage::Request { service_id, .. } if service_id >> 16 == SERVICE_TCP => {
                Some((service_id & 0xffff) as u16)
            }
            _ => None,
        }
    }

    /// Returns the private data of the upper layer: of a REQ to the RDMA IP CM service, what is behind the
    /// address block.
    #[must_use]
    pub fn private_data(&self) -> &'a [u8] {
        match *self {
            ConnectionMessage::Request { private_data, .. } if self.port().is_some() => {
                private_data.get(ADDRESS_BLOCK_LEN..).unwrap_or_default()
            }
            ConnectionMessage::Request { private_data, .. }
            | ConnectionMessage::Reply { private_data, .. }
            | ConnectionMessage::Reject { private_data, .. } => private_data,
            _ => &[],
        }
    }

    /// Returns the port that the client's end of a REQ names in its address block.
    #[must_use]
    pub fn client_port(&self) -> Option<u16> {
        match *self {
            ConnectionMessage::Request { private_data: [_, _, p0, p1, ..], .. } if self.port().is_some() => {
                Some(u16::from_be_bytes([*p0, *p1]))
            }
            _ => None,
        }
    }
}
