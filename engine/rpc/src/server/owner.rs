//! Who a peer is when something is shared: the client that it is, and the owner that this client belongs to.

use std::net::IpAddr;

use stag_fabric::Peer;

/// Returns the owner of a connection: as whom its peer shares what is scarce with others. One for each address of IPv4, network of 64
/// bits of IPv6, and user of this machine; 0 where the fabric does not tell.
#[must_use]
pub fn owner(peer: Option<&Peer>) -> u128 {
    match peer {
        None => 0,
        Some(Peer::Address(address)) => match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
            IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
                Some(_) => ip.to_bits(),
                None => ip.to_bits() >> 64 << 64,
            },
        },
        // In a range of addresses that no host has (RFC 6666).
        Some(Peer::Process { uid, .. }) => 0x0100 << 112 | u128::from(*uid),
    }
}

/// Who a Call is from, over whichever connection.
pub(crate) fn address(peer: &Peer) -> u128 {
    match peer {
        Peer::Address(address) => match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
            IpAddr::V6(ip) => ip.to_bits(),
        },
        // In a range of addresses that no host has (RFC 6666).
        Peer::Process { pid, uid, gid } => {
            0x0100 << 112 | u128::from(*pid) << 64 | u128::from(*uid) << 32 | u128::from(*gid)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_addresses_without_ports() {
        let of = |text: &str| address(&Peer::Address(text.parse().expect("an address")));
        assert_eq!(of("10.0.0.1:700"), of("10.0.0.1:2"));
        assert_eq!(of("10.0.0.1:700"), of("[::ffff:10.0.0.1]:9"));
        assert_ne!(of("10.0.0.1:700"), of("10.0.0.2:700"));
        assert_ne!(of("[fe80::1]:700"), of("[fe80::2]:700"));
        let process = |pid| address(&Peer::Process { pid, uid: 0, gid: 0 });
        assert_ne!(process(1), process(2));
    }

    #[test]
    fn an_owner_has_all_of_a_network_of_ipv6_or_all_processes_of_a_user() {
        let peer = |text: &str| Peer::Address(text.parse().expect("an address"));
        let of = |text| owner(Some(&peer(text)));
        assert_eq!(of("[2001:db8:0:1::1]:1"), of("[2001:db8:0:1::2]:1"), "64 bits are one owner's");
        assert_ne!(of("[2001:db8::1]:1"), of("[2001:db8:0:1::1]:1"));
        assert_eq!(of("10.0.0.1:1"), of("[::ffff:10.0.0.1]:9"));
        let process = |pid, uid| owner(Some(&Peer::Process { pid, uid, gid: 0 }));
        assert_eq!(process(7, 1), process(8, 1));
        assert_ne!(process(7, 1), process(7, 2));
    }
}
