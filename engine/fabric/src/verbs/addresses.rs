//! Which of this machine's addresses lead to the device, as the connection manager says when one is bound.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ptr;
use std::sync::Arc;

use stag_rdma_core_sys as sys;

use super::identifiers::{CmId, EventChannel, socket_address};
use crate::epoll::Token;

/// An address of a network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The interface's name.
    pub interface: String,
    /// With port 0; a link-local one has its scope.
    pub address: SocketAddr,
}

/// The IP addresses of this machine's interfaces.
pub(super) fn of_this_machine() -> io::Result<Vec<InterfaceAddress>> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: it writes one pointer.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut at = list;
    // SAFETY: null, or an entry of the list, which is freed below.
    while let Some(entry) = unsafe { at.as_ref() } {
        at = entry.ifa_next;
        if entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: an address of the family that it says, which is all that is looked at.
        let Some(address) = (unsafe { socket_address(entry.ifa_addr) }) else { continue };
        // SAFETY: a C string of the list.
        let interface = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) };
        found.push(InterfaceAddress { interface: interface.to_string_lossy().into_owned(), address });
    }
    // SAFETY: what `getifaddrs` returned; everything in it was copied.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// Those of `addresses` that lead to `device`.
pub(super) fn leading_to(
    channel: &Arc<EventChannel>,
    device: *mut sys::ibv_context,
    addresses: Vec<InterfaceAddress>,
) -> Vec<InterfaceAddress> {
    let leads = |address: &InterfaceAddress| {
        let id = CmId::new(channel, Token::Own).and_then(|id| id.bind(address.address).map(|()| id));
        id.is_ok_and(|id| id.context() == device)
    };
    addresses.into_iter().filter(leads).collect()
}

/// Whether another machine may use it too: neither the loopback's nor a link's own.
pub(super) fn is_global(address: &InterfaceAddress) -> bool {
    match address.address.ip() {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_the_loopback() {
        let addresses = of_this_machine().expect("a list");
        let loopback = addresses.iter().find(|it| it.address.ip().is_loopback()).expect("127.0.0.1 or ::1");
        assert_eq!((loopback.interface.as_str(), loopback.address.port()), ("lo", 0));
        assert!(!is_global(loopback));
    }
}
