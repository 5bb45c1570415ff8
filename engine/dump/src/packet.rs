//! From a captured frame to TCP and UDP: link headers, VLAN tags, IPv4 and IPv6 with their extensions.
//!
//! By hand for the same reason as [`capture`](crate::capture): all code that reads hostile octets is here and fuzzed.
//!
//! Nothing here keeps state. Fragments of IP packets are not put together: TCP does not cause them, and RoCEv2 forbids
//! them; they are counted as left out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Link types that are read here, of the LINKTYPE registry.
mod link {
    pub(super) const NULL: u16 = 0;
    pub(super) const ETHERNET: u16 = 1;
    /// LINKTYPE_RAW, and two values that some systems used in its place.
    pub(super) const RAW: [u16; 3] = [101, 12, 14];
    pub(super) const LOOP: u16 = 108;
    pub(super) const COOKED: u16 = 113;
    pub(super) const IPV4: u16 = 228;
    pub(super) const IPV6: u16 = 229;
    pub(super) const COOKED_2: u16 = 276;
}

mod ether_type {
    pub(super) const IPV4: u16 = 0x0800;
    pub(super) const IPV6: u16 = 0x86dd;
    pub(super) const VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];
}

mod protocol {
    pub(super) const HOP_BY_HOP: u8 = 0;
    pub(super) const TCP: u8 = 6;
    pub(super) const UDP: u8 = 17;
    pub(super) const ROUTING: u8 = 43;
    pub(super) const FRAGMENT: u8 = 44;
    pub(super) const AUTHENTICATION: u8 = 51;
    pub(super) const DESTINATION: u8 = 60;
}

/// VLAN tags, and extension headers, that a packet may have.
const NESTING_MAX: usize = 8;

/// Whether frames of link type `link_type` are IP packets and nothing else: what a file says that it lacks of one is of the packet.
pub(crate) fn is_bare(link_type: u16) -> bool {
    link_type == link::IPV4 || link_type == link::IPV6 || link::RAW.contains(&link_type)
}

/// Why a frame was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// The link type is not read here.
    Link(u16),
    /// It holds neither IPv4 nor IPv6, nor TCP or UDP in them.
    Other,
    /// It is a fragment of an IP packet.
    Fragment,
    /// It ends inside a header, or a header contradicts itself.
    Malformed,
}

/// A TCP segment.
#[derive(Clone, Copy, Debug)]
pub struct TcpSegment<'a> {
    /// Where it comes from.
    pub source: SocketAddr,
    /// Where it goes.
    pub destination: SocketAddr,
    /// Sequence number of the first octet, or of SYN.
    pub sequence: u32,
    /// What the sender has, if ACK is set.
    pub acknowledged: Option<u32>,
    /// SYN, FIN, RST.
    pub flags: Flags,
    /// The octets that were captured.
    pub payload: &'a [u8],
    /// Octets behind them that were sent, but not captured.
    pub missing: usize,
}

/// Flags of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags {
    /// The connection starts.
    pub syn: bool,
    /// The direction ends.
    pub fin: bool,
    /// The connection is dead.
    pub rst: bool,
}

/// A UDP datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Where it comes from.
    pub source: SocketAddr,
    /// Where it goes.
    pub destination: SocketAddr,
    /// The IP header, with options and extensions.
    pub ip_header: &'a [u8],
    /// The UDP header.
    pub udp_header: &'a [u8; 8],
    /// The octets that were captured.
    pub payload: &'a [u8],
    /// Octets behind them that were sent, but not captured.
    pub missing: usize,
}

/// What a frame holds.
#[derive(Clone, Copy, Debug)]
pub enum CapturedPacket<'a> {
    /// TCP.
    Tcp(TcpSegment<'a>),
    /// UDP.
    Udp(Datagram<'a>),
}

/// Finds TCP or UDP in a frame of link type `link_type`.
pub fn parse(link_type: u16, frame: &[u8]) -> Result<CapturedPacket<'_>, Skipped> {
    match link_type {
        link::ETHERNET => tagged(frame.get(12..).ok_or(Skipped::Malformed)?),
        link::COOKED => tagged(frame.get(14..).ok_or(Skipped::Malformed)?),
        link::COOKED_2 => {
            let ([t0, t1, ..], packet) = frame.split_first_chunk::<20>().ok_or(Skipped::Malformed)?;
            typed(u16::from_be_bytes([*t0, *t1]), packet)
        }
        // Four octets of an address family, whose numbers differ between systems: the packet itself tells.
        link::NULL | link::LOOP => versioned(frame.get(4..).ok_or(Skipped::Malformed)?),
        link::IPV4 | link::IPV6 => versioned(frame),
        raw if link::RAW.contains(&raw) => versioned(frame),
        other => Err(Skipped::Link(other)),
    }
}

/// Reads the type of what follows, behind any VLAN tags.
fn tagged(mut rest: &[u8]) -> Result<CapturedPacket<'_>, Skipped> {
    for _ in 0..NESTING_MAX {
        let (kind, packet) = rest.split_first_chunk().ok_or(Skipped::Malformed)?;
        let kind = u16::from_be_bytes(*kind);
        if !ether_type::VLAN.contains(&kind) {
            return typed(kind, packet);
        }
        rest = packet.get(2..).ok_or(Skipped::Malformed)?;
    }
    Err(Skipped::Other)
}

fn typed(kind: u16, packet: &[u8]) -> Result<CapturedPacket<'_>, Skipped> {
    match kind {
        ether_type::IPV4 => ipv4(packet),
        ether_type::IPV6 => ipv6(packet),
        kind if ether_type::VLAN.contains(&kind) => tagged(packet.get(2..).ok_or(Skipped::Malformed)?),
        _ => Err(Skipped::Other),
    }
}

fn versioned(packet: &[u8]) -> Result<CapturedPacket<'_>, Skipped> {
    match packet.first().map(|first| first >> 4) {
        Some(4) => ipv4(packet),
        Some(6) => ipv6(packet),
        Some(_) => Err(Skipped::Other),
        None => Err(Skipped::Malformed),
    }
}

/// A packet of IP without its header.
struct Body<'a> {
    source: IpAddr,
    destination: IpAddr,
    header: &'a [u8],
    octets: &'a [u8],
    /// Octets behind them that were not captured.
    missing: usize,
}

fn ipv4(packet: &[u8]) -> Result<CapturedPacket<'_>, Skipped> {
    let head: &[u8; 20] = packet.first_chunk().ok_or(Skipped::Malformed)?;
    let [first, _, l0, l1, _, _, f0, f1, _, kind, _, _, s0, s1, s2, s3, d0, d1, d2, d3] = *head;
    let header_len = usize::from(first & 0x0f) * 4;
    if first >> 4 != 4 || header_len < 20 {
        return Err(Skipped::Malformed);
    }
    // More fragments, or an offset.
    if u16::from_be_bytes([f0, f1]) & 0x3fff != 0 {
        return Err(Skipped::Fragment);
    }
    let (header, rest) = packet.split_at_checked(header_len).ok_or(Skipped::Malformed)?;
    // 0 where the sender's segmentation offload made a packet longer than the field can say.
    let total = match usize::from(u16::from_be_bytes([l0, l1])) {
        0 => packet.len(),
        total => total,
    };
    let len = total.checked_sub(header_len).ok_or(Skipped::Malformed)?;
    let body = Body {
        source: Ipv4Addr::new(s0, s1, s2, s3).into(),
        destination: Ipv4Addr::new(d0, d1, d2, d3).into(),
        header,
        octets: &rest[..len.min(rest.len())],
        missing: len.saturating_sub(rest.len()),
    };
    transport(kind, &body)
}

fn ipv6(packet: &[u8]) -> Result<CapturedPacket<'_>, Skipped> {
    let (head, mut rest) = packet.split_first_chunk::<40>().ok_or(Skipped::Malformed)?;
    if head[0] >> 4 != 6 {
        return Err(Skipped::Malformed);
    }
    let address = |at: usize| {
        let octets: [u8; 16] = head[at..].first_chunk().copied().unwrap_or_default();
        IpAddr::from(Ipv6Addr::from(octets))
    };
    // 0 with a jumbo payload, or where segmentation offload made one.
    let mut len = match usize::from(u16::from_be_bytes([head[4], head[5]])) {
        0 => rest.len(),
        len => len,
    };
    let mut kind = head[6];
    for _ in 0..NESTING_MAX {
        let extension_len = match kind {
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION => {
                8 + 8 * usize::from(*rest.get(1).ok_or(Skipped::Malformed)?)
            }
            protocol::AUTHENTICATION => 8 + 4 * usize::from(*rest.get(1).ok_or(Skipped::Malformed)?),
            protocol::FRAGMENT => {
                let [_, _, o0, o1, ..] = rest.first_chunk::<8>().ok_or(Skipped::Malformed)?;
                if u16::from_be_bytes([*o0, *o1]) & !6 != 0 {
                    return Err(Skipped::Fragment);
                }
                8
            }
            _ => {
                let body = Body {
                    source: address(8),
                    destination: address(24),
                    header: &packet[..packet.len() - rest.len()],
                    octets: &rest[..len.min(rest.len())],
                    missing: len.saturating_sub(rest.len()),
                };
                return transport(kind, &body);
            }
        };
        let (extension, after) = rest.split_at_checked(extension_len).ok_or(Skipped::Malformed)?;
        len = len.checked_sub(extension_len).ok_or(Skipped::Malformed)?;
        kind = extension[0];
        rest = after;
    }
    Err(Skipped::Other)
}

fn transport<'a>(kind: u8, body: &Body<'a>) -> Result<CapturedPacket<'a>, Skipped> {
    match kind {
        protocol::TCP => tcp(body).map(CapturedPacket::Tcp),
        protocol::UDP => udp(body).map(CapturedPacket::Udp),
        _ => Err(Skipped::Other),
    }
}

fn tcp<'a>(body: &Body<'a>) -> Result<TcpSegment<'a>, Skipped> {
    let head: &[u8; 20] = body.octets.first_chunk().ok_or(Skipped::Malformed)?;
    let [s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, offset, flags, ..] = *head;
    let header_len = usize::from(offset >> 4) * 4;
    if header_len < 20 {
        return Err(Skipped::Malformed);
    }
    let flag = |bit: u8| flags & bit != 0;
    Ok(TcpSegment {
        source: SocketAddr::new(body.source, u16::from_be_bytes([s0, s1])),
        destination: SocketAddr::new(body.destination, u16::from_be_bytes([d0, d1])),
        sequence: u32::from_be_bytes([q0, q1, q2, q3]),
        acknowledged: flag(0x10).then_some(u32::from_be_bytes([a0, a1, a2, a3])),
        flags: Flags { syn: flag(0x02), fin: flag(0x01), rst: flag(0x04) },
        payload: body.octets.get(header_len..).ok_or(Skipped::Malformed)?,
        missing: body.missing,
    })
}

fn udp<'a>(body: &Body<'a>) -> Result<Datagram<'a>, Skipped> {
    let (udp_header, rest) = body.octets.split_first_chunk::<8>().ok_or(Skipped::Malformed)?;
    let [s0, s1, d0, d1, l0, l1, _, _] = *udp_header;
    let len = usize::from(u16::from_be_bytes([l0, l1])).checked_sub(8).ok_or(Skipped::Malformed)?;
    Ok(Datagram {
        source: SocketAddr::new(body.source, u16::from_be_bytes([s0, s1])),
        destination: SocketAddr::new(body.destination, u16::from_be_bytes([d0, d1])),
        ip_header: body.header,
        udp_header,
        payload: &rest[..len.min(rest.len())],
        missing: len.saturating_sub(rest.len()),
    })
}
