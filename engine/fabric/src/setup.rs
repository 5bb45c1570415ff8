//! Connection set-up that the providers share: addresses, and limits of a queue pair.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use crate::FabricError;

/// What `HOST:PORT` means. Numbers are understood without asking anybody; a name is looked up, which may take a while.
/// An IPv6 address stands in brackets, a link-local one with its scope: `[fe80::1%eth0]:20049`.
///
/// # Errors
///
/// [`FabricError::Address`]: it is none, or its name cannot be resolved.
pub fn resolve(address: &str) -> Result<SocketAddr, FabricError> {
    let bad = |problem: String| FabricError::Address { address: address.to_owned(), problem };
    if let Ok(address) = address.parse() {
        return Ok(address);
    }
    let split =
        |(host, port): (&'_ str, &str)| Some((unbracketed(host)?.to_owned(), port.parse::<u16>().ok()?));
    let Some(host_and_port) =
        address.rsplit_once(':').and_then(split).filter(|(host, _)| !host.contains('\0'))
    else {
        return Err(bad("an address is HOST:PORT, as in 192.0.2.1:20049 or [fe80::1%eth0]:20049".to_owned()));
    };
    let unknown = |problem: String| bad(format!("{problem}; {}", repair(&host_and_port.0)));
    let mut found = host_and_port.to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
    found.next().ok_or_else(|| unknown("the name has no address".to_owned()))
}

/// What to look at when a host is not found.
fn repair(host: &str) -> String {
    match host.split_once('%') {
        Some((_, interface)) => format!("`ip link` lists the interfaces: is {interface} one?"),
        None => format!(
            "`getent hosts {host}` shows whether this machine knows the name; an address does without, as in \
             192.0.2.1:20049"
        ),
    }
}

/// The host without its brackets. None at all is none, and so is IPv6 without them: its last group could be the port.
fn unbracketed(host: &str) -> Option<&str> {
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    bracketed.or(Some(host).filter(|host| !host.contains(':'))).filter(|host| !host.is_empty())
}

/// Whether an `accept` failed because the process or the system has no descriptor, or no memory, left for another
/// connection. The connection is still there, so to try again at once would fail again.
#[must_use]
pub fn is_exhausted(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// How long a listener is left alone then.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Refuses private data that does not fit.
pub(crate) fn check_private_data(private_data: &[u8], len_max: usize) -> Result<(), FabricError> {
    let (wanted, limit) = (private_data.len() as u64, len_max as u64);
    check_limit("octets of private data", wanted, limit, "send less of it at connection set-up")
}

/// Refuses Receives in more buffers than a provider fills.
pub(crate) fn check_targets(wanted: u32, limit: u32) -> Result<(), FabricError> {
    check_limit("targets of a Receive", wanted.into(), limit.into(), "ask for fewer, or for none")
}

/// Refuses more than there is room for.
pub(crate) fn check_limit(
    what: &'static str,
    wanted: u64,
    limit: u64,
    repair: &'static str,
) -> Result<(), FabricError> {
    if wanted > limit { Err(FabricError::Limit { what, wanted, limit, repair }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_host_and_port() {
        assert_eq!(resolve("127.0.0.1:20049").expect("an address"), ([127, 0, 0, 1], 20049).into());
        assert!(resolve("[::1]:7").expect("an address").is_ipv6());
        assert_eq!(resolve("localhost:7").expect("every machine has it").port(), 7);
        for bad in [
            "",
            ":7",
            "[]:7",
            "no/slash",
            "nul\0byte",
            "nul\0byte:7",
            "127.0.0.1",
            "::1:7x",
            "fe80::1:7",
            "a:65536",
        ] {
            let error = resolve(bad).expect_err("not an address");
            assert!(
                matches!(&error, FabricError::Address { problem, .. } if problem.contains("HOST:PORT")),
                "{error}"
            );
        }
    }

    /// A link-local address means nothing without its interface.
    #[test]
    fn a_scope_is_a_number_or_an_interface() {
        for address in ["[fe80::1%1]:20049", "[fe80::1%lo]:20049"] {
            let SocketAddr::V6(found) = resolve(address).expect("lo is the first interface") else {
                panic!("{address} is IPv6");
            };
            assert_eq!((found.scope_id(), found.port()), (1, 20049), "{address}");
            assert_eq!(found.to_string(), "[fe80::1%1]:20049", "as it is shown");
        }
        let error = resolve("[fe80::1%nosuchinterface]:7").expect_err("there is no such interface");
        assert!(
            error.to_string().contains("`ip link` lists the interfaces: is nosuchinterface one?"),
            "{error}"
        );
    }

    /// `.invalid` is in no domain name system (RFC 6761 section 6.4).
    #[test]
    fn an_unknown_name_says_how_to_check_it() {
        let error = resolve("nosuchhost.invalid:7").expect_err("the name is reserved").to_string();
        assert!(error.contains("`getent hosts nosuchhost.invalid` shows whether"), "{error}");
        assert!(error.contains("an address does without, as in 192.0.2.1:20049"), "{error}");
    }
}
