//! Rpcbind (RFC 1833), program 100000: where each program is served. Version 2 is the port mapper; versions 3
//! and 4 name transports by netid and places by universal address. Nothing in it is DDP-eligible.
//!
//! ```text
//! version 2     Mapping { program, version, protocol, port }    GETPORT ──▶ port, 0 if there is none
//! version 3, 4  Binding { program, version, netid, address }    GETADDR ──▶ address, empty if there is none
//! ```
//!
//! A [`UniversalAddress`] is the text of an IP address with two more numbers for the port: `192.0.2.1.8.1`,
//! `fd00::1.8.1`.

use core::fmt::{self, Write as _};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::nfs3::Entries;
use crate::nfs3::value::{numbers, opaques, records};
use crate::xdr::{Overflow, Writer};

/// Program number of rpcbind, and of the port mapper that it was.
pub const PROGRAM: u32 = 100_000;
/// The version of the port mapper.
pub const VERSION_PORTMAP: u32 = 2;
/// The first version with universal addresses.
pub const VERSION_3: u32 = 3;
/// The last version.
pub const VERSION_4: u32 = 4;
/// The port of the service itself, over TCP and UDP.
pub const PORT: u16 = 111;

/// Longest netid, universal address or owner that is parsed, in bytes. RFC 1833 sets no limit; XDR-f wants one.
pub const TEXT_LEN_MAX: u32 = 256;

/// The protocols of [`Mapping::protocol`].
pub mod protocol {
    /// TCP (IPPROTO_TCP).
    pub const TCP: u32 = 6;
    /// UDP (IPPROTO_UDP).
    pub const UDP: u32 = 17;
}

/// The names of transports ([`Binding::netid`]).
pub mod netid {
    /// TCP over IPv4.
    pub const TCP: &[u8] = b"tcp";
    /// TCP over IPv6.
    pub const TCP6: &[u8] = b"tcp6";
    /// UDP over IPv4.
    pub const UDP: &[u8] = b"udp";
    /// UDP over IPv6.
    pub const UDP6: &[u8] = b"udp6";
    /// RPC-over-RDMA, its peer an IPv4 address (8267-4.2-a).
    pub const RDMA: &[u8] = b"rdma";
    /// RPC-over-RDMA, its peer an IPv6 address.
    pub const RDMA6: &[u8] = b"rdma6";
}

numbers! {
    /// The procedures of version 2 that are known here: all but CALLIT, which makes a server call others in
    /// the caller's name.
    PortmapProcedure {
        /// Does nothing.
        Null = 0,
        /// Registers a mapping.
        Set = 1,
        /// Forgets all mappings of a program and version.
        Unset = 2,
        /// The port of a program, version and protocol.
        Getport = 3,
        /// All mappings.
        Dump = 4,
    }
}

numbers! {
    /// The procedures of versions 3 and 4 that are known here: not those that call others, nor the statistics.
    RpcbindProcedure {
        /// Does nothing.
        Null = 0,
        /// Registers a binding.
        Set = 1,
        /// Forgets the bindings of a program and version: those of a netid, or all if that is empty.
        Unset = 2,
        /// The universal address of a program and version.
        Getaddr = 3,
        /// All bindings.
        Dump = 4,
        /// The server's time in seconds since 1970.
        Gettime = 6,
        /// As [`RpcbindProcedure::Getaddr`], but of exactly this version. Version 4 only.
        Getversaddr = 9,
    }
}

records! {
    /// Where a program is served, in version 2 (mapping): arguments of SET, UNSET and GETPORT, entry of DUMP.
    Mapping {
        /// Program number.
        program: u32,
        /// Version of the program.
        version: u32,
        /// One of [`protocol`].
        protocol: u32,
        /// The port; GETPORT and UNSET ignore it. A number of more than 16 bits is no port.
        port: u32,
    }

    /// Where a program is served (rpcb): arguments of SET, UNSET and GETADDR, entry of DUMP.
    Binding<'a> {
        /// Program number.
        program: u32,
        /// Version of the program.
        version: u32,
        /// One of [`netid`].
        netid: Text<'a>,
        /// The universal address. In GETADDR the address that the caller reaches rpcbind at, or nothing.
        address: Text<'a>,
        /// Who registered it.
        owner: Text<'a>,
    }
}

opaques! {
    /// A string of RFC 1833: a netid, universal address or owner. [`RpcbindProcedure::Getaddr`] is answered by one.
    Text up to TEXT_LEN_MAX;
}

/// Results of DUMP in version 2 (pmaplist).
pub type Mappings<'a> = Entries<'a, Mapping>;
/// Results of DUMP in versions 3 and 4 (rpcblist).
pub type Bindings<'a> = Entries<'a, Binding<'a>>;

/// Writes the results of DUMP in version 2.
pub fn encode_mappings(
    writer: &mut Writer<'_>,
    mappings: impl IntoIterator<Item = Mapping>,
) -> Result<(), Overflow> {
    for mapping in mappings {
        writer.optional(Some(&mapping))?;
    }
    writer.bool(false)
}

/// Writes the results of DUMP in versions 3 and 4.
pub fn encode_bindings<'b>(
    writer: &mut Writer<'_>,
    bindings: impl IntoIterator<Item = Binding<'b>>,
) -> Result<(), Overflow> {
    for binding in bindings {
        writer.optional(Some(&binding))?;
    }
    writer.bool(false)
}

/// Longest [`UniversalAddress`] in bytes: an IPv6 address of 45, and `.255.255`.
const ADDRESS_LEN_MAX: usize = 45 + 8;

/// A universal address as text (RFC 5665 section 5.2.3): made from an address and port, or read as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniversalAddress {
    octets: [u8; ADDRESS_LEN_MAX],
    len: usize,
}

impl UniversalAddress {
    /// The text of an address and port.
    #[must_use]
    pub fn new(address: SocketAddr) -> UniversalAddress {
        let mut text = UniversalAddress { octets: [0; ADDRESS_LEN_MAX], len: 0 };
        let [high, low] = address.port().to_be_bytes();
        let written = write!(text, "{}.{high}.{low}", address.ip());
        debug_assert!(written.is_ok(), "the longest address has room");
        text
    }

    /// Reads an address and port; `None` if it is not the text of one.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<SocketAddr> {
        let text = core::str::from_utf8(text).ok()?;
        let (text, low) = text.rsplit_once('.')?;
        let (ip, high) = text.rsplit_once('.')?;
        let octet =
            |digits: &str| digits.bytes().all(|octet| octet.is_ascii_digit()).then(|| digits.parse().ok())?;
        let port = u16::from_be_bytes([octet(high)?, octet(low)?]);
        let ip = match ip.parse::<Ipv4Addr>() {
            Ok(ip) => IpAddr::V4(ip),
            Err(_) => IpAddr::V6(ip.parse::<Ipv6Addr>().ok()?),
        };
        Some(SocketAddr::new(ip, port))
    }

    /// As a value to encode.
    #[must_use]
    pub fn text(&self) -> Text<'_> {
        Text(&self.octets[..self.len])
    }
}

impl fmt::Write for UniversalAddress {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        let end = self.len + piece.len();
        self.octets.get_mut(self.len..end).ok_or(fmt::Error)?.copy_from_slice(piece.as_bytes());
        self.len = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn universal_addresses_are_those_of_rfc_5665() {
        for (address, text) in [
            ("192.0.2.1:2049", "192.0.2.1.8.1"),
            ("0.0.0.0:111", "0.0.0.0.0.111"),
            ("[::]:20049", "::.78.81"),
            ("[fd00::1]:65535", "fd00::1.255.255"),
            ("[::ffff:192.0.2.1]:0", "::ffff:192.0.2.1.0.0"),
        ] {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(UniversalAddress::new(address).text(), Text(text.as_bytes()));
            assert_eq!(UniversalAddress::parse(text.as_bytes()), Some(address));
        }
        let longest = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535".parse().unwrap();
        assert_eq!(UniversalAddress::parse(UniversalAddress::new(longest).text().0), Some(longest));
    }

    #[test]
    fn what_is_no_universal_address_is_told() {
        for text in
            ["", ".", "1.2.3.4", "1.2.3.4.5", "1.2.3.4.256.0", "1.2.3.4.+1.0", "x.0.0", "1.2.3.4.5.", "::1"]
        {
            assert_eq!(UniversalAddress::parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(UniversalAddress::parse(&[0xff; 40]), None);
    }
}
