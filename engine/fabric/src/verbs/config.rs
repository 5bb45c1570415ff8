//! How to open the provider.

use std::time::Duration;

use crate::ExposureKind;

/// How to open the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsConfig {
    /// The device's name (`mlx5_0`). Without one, the first with an active port; and if the first address that is listened
    /// at or connected to leads to another, that one.
    pub device: Option<String>,
    /// Whether the reactor may sleep on [`Provider::descriptor`](crate::Provider::descriptor).
    pub may_sleep: bool,
    /// Queue pairs at most.
    pub queue_pairs: u32,
    /// Entries of the completion queue at most. Each queue pair takes its `receives` and `sends`, two for each of its
    /// `exposures`, and some more.
    pub completions: u32,
    /// Octets that a Send may carry inside of its work request; the device may have room for fewer.
    pub inline_len: u32,
    /// RDMA Reads under way at once in each direction of a queue pair; the device and the peer may allow fewer.
    pub read_depth: u8,
    /// How often a Send is tried again when the peer has no Receive posted: 7 is for ever. Credits see to it that there
    /// is one, so it is a fault; a few attempts forgive a peer that is late.
    pub rnr_retries: u8,
    /// How long the device waits for an acknowledgement before it sends again: 4.096 µs times two to the power of this.
    /// It tries seven times, so a peer that vanished is noticed after some 20 times that. 0 is the kernel's choice.
    pub ack_timeout: u8,
    /// How long a connected peer may be silent until its device is probed, with an RDMA Write of no octets. Nothing else
    /// shows that a machine lost its power, or its cable for long: an idle RDMA connection sends nothing. `None`: never.
    pub keep_alive: Option<Duration>,
    /// Connection requests that may wait in the kernel.
    pub backlog: u32,
    /// How long a connection's set-up may take.
    pub setup_timeout: Duration,
    /// How memory is exposed; without it, by the best means that the device has.
    pub exposure: Option<ExposureKind>,
    /// Receives that queue pairs share, where the device can. Without it each queue pair has its own.
    pub shared_receives: Option<SharedReceives>,
}

/// A shared receive queue.
///
/// It saves each queue pair's own receive queue, on the device and in memory. It saves no buffers: a credit is granted only
/// if a Receive is posted for it, whichever queue pair will use that. Its price: a peer that sends more than it was granted
/// takes others' Receives until we notice. Over InfiniBand and RoCE these others' messages wait a moment, over iWARP their
/// connections end. So it is for many connections of peers that are trusted not to, and only used when asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedReceives {
    /// Receives of all queue pairs together.
    pub count: u32,
    /// Octets of each. Queue pairs with another `receive_len_max` have receive queues of their own.
    pub len: u32,
}

impl Default for VerbsConfig {
    fn default() -> VerbsConfig {
        VerbsConfig {
            device: None,
            may_sleep: false,
            queue_pairs: 1024,
            completions: 64 * 1024,
            inline_len: 256,
            read_depth: 16,
            rnr_retries: 6,
            ack_timeout: 16,
            keep_alive: Some(Duration::from_secs(60)),
            backlog: 256,
            setup_timeout: Duration::from_secs(5),
            exposure: None,
            shared_receives: None,
        }
    }
}
