//! How to open the provider.

use std::time::Duration;

use crate::CongestionControl;

/// Read Requests at once in each direction, unless told otherwise.
pub(super) const READS_DEFAULT: u16 = 128;

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
