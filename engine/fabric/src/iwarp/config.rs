//! How to open the provider.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Read Requests at once in each direction, unless told otherwise.
pub(super) const READS_DEFAULT: u16 = 128;

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

/// The MPA revision that a connecting side begins with (5044-7.1-b, 6581-9-f). The accepting side takes both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Revision {
    /// RFC 5044 alone: no word of IRD and ORD. Linux's NFS server refuses it.
    One,
    /// RFC 6581, and another try with [`Revision::One`] at a peer that closes instead of answering.
    #[default]
    Two,
}

/// How to open the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IwarpConfig {
    /// Whether the reactor may sleep on [`Provider::descriptor`](crate::Provider::descriptor).
    pub may_sleep: bool,
    /// Queue pairs at most.
    pub queue_pairs: u32,
    /// Completions at most, over all queue pairs: the sum of their `receives`, `sends` and `exposures`.
    pub completions: u32,
    /// Whether to ask for CRCs. They are used if either side asks (5044-7.1-c).
    pub crc: bool,
    /// Whether a connecting side asks for the peer-to-peer model, in which the accepting side may send first (6581-9-a).
    pub peer_to_peer: bool,
    /// The revision that a connecting side begins with.
    pub revision: Revision,
    /// Read Requests of a peer at once, for each queue pair. More end the connection (5040-c).
    pub ird: u16,
    /// Read Requests of ours at once, for each queue pair; the peer's IRD may be less.
    pub ord: u16,
    /// Whether FPDUs beyond the TCP segment size may be sent to a peer that says it likes them (siw-7): one of this
    /// code, or Linux's siw. Any peer has to take them (5044-5-b), but a network card may be slow at it.
    pub large_fpdus: bool,
    /// How long a connecting side waits for the connection and the reply.
    pub connect_timeout: Duration,
    /// How long an accepting side waits for the whole request.
    pub request_timeout: Duration,
    /// Connections at once whose request has not come, beside one for each queue pair that there may still be: beyond that
    /// the oldest is closed.
    pub handshakes: u32,
    /// After how long without a sign of life a peer is taken for dead.
    pub dead_peer_timeout: Duration,
    /// The congestion control algorithm of each socket; `None`: the system's default. Where that is `bbr`, it paces
    /// even the loopback.
    pub congestion_control: Option<CongestionControl>,
    /// Bytes of each socket's send buffer (`SO_SNDBUF`); `None`: the system adapts it.
    pub send_buffer: Option<u32>,
    /// Bytes of each socket's receive buffer (`SO_RCVBUF`); `None`: the system adapts it.
    pub receive_buffer: Option<u32>,
}

impl Default for IwarpConfig {
    fn default() -> IwarpConfig {
        IwarpConfig {
            may_sleep: false,
            queue_pairs: 1024,
            completions: 64 * 1024,
            crc: true,
            peer_to_peer: true,
            revision: Revision::Two,
            ird: READS_DEFAULT,
            ord: READS_DEFAULT,
            large_fpdus: true,
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(5),
            handshakes: 256,
            dead_peer_timeout: Duration::from_secs(30),
            congestion_control: None,
            send_buffer: None,
            receive_buffer: None,
        }
    }
}

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
