//! Congestion control of TCP sockets, by name.

use std::fmt;
use std::str::FromStr;

/// Longest name of a congestion control algorithm (the kernel's `TCP_CA_NAME_MAX`, without its final 0).
const NAME_LEN_MAX: usize = 15;

/// A congestion control algorithm of the kernel's TCP, by its name: `reno`, `cubic`, `bbr`, ...
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CongestionControl {
    // Invariant: the first `len` octets are ASCII.
    name: [u8; NAME_LEN_MAX],
    len: u8,
}

impl CongestionControl {
    /// Its name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.name[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl FromStr for CongestionControl {
    type Err = BadCongestionControl;

    fn from_str(name: &str) -> Result<CongestionControl, BadCongestionControl> {
        let octets = name.as_bytes();
        if octets.is_empty() || octets.len() > NAME_LEN_MAX || !octets.iter().all(u8::is_ascii_graphic) {
            return Err(BadCongestionControl);
        }
        let mut it = CongestionControl { name: [0; NAME_LEN_MAX], len: octets.len() as u8 };
        it.name[..octets.len()].copy_from_slice(octets);
        Ok(it)
    }
}

impl fmt::Display for CongestionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for CongestionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that no congestion control algorithm can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the name of a congestion control algorithm has 1 to 15 letters; net.ipv4.tcp_available_congestion_control lists them"
)]
pub struct BadCongestionControl;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_algorithms() {
        assert_eq!("reno".parse::<CongestionControl>().map(|it| it.to_string()), Ok("reno".to_owned()));
        for bad in ["", "with space", "longer-than-15-letters"] {
            assert_eq!(bad.parse::<CongestionControl>(), Err(BadCongestionControl));
        }
    }
}
