//! The configuration of an engine.

use std::time::Duration;

use stag_fabric::{CongestionControl, Limits, QueuePairCapacity};

use crate::connection::Connection;
use crate::server::draft::Draft;
use crate::server::governor::{CreditConfig, CreditPolicy};
use crate::server::pulling::Pull;
use crate::server::spares::GROWN_MAX;
use crate::server::transit::LISTS_MAX;

pub(crate) use crate::server::governor::SPARE_RECEIVES;
use crate::version2;

/// Which versions of RPC-over-RDMA an engine speaks. Calls go both ways
/// ([`EngineConfig::reverse_credits`]) on connections that speak version 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProtocolChoice {
    /// Version 1 only. Nothing on the wire tells of another.
    #[default]
    One,
    /// Version 2 where the peer speaks it, announced or not: each peer is probed for it (V2-5-a). Version 1 with any other.
    Two,
    /// Version 2 where both ends announce it when they connect. Version 1 with any other peer, which is not probed. With
    /// [`PlacementChoice::Auto`], version 1 over a fabric that says that data costs less by RDMA, whatever its size.
    Auto,
}

/// Where the bulk data of Calls and Replies goes in version 2. In version 1 it goes by chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlacementChoice {
    /// Into the messages up to the sizes for which the fabric says that it costs less
    /// ([`message_data_max`](stag_fabric::Limits::message_data_max)), else by chunks.
    #[default]
    Auto,
    /// Into the messages, padded so that it lands in buffers of its own, where that is possible; else by chunks.
    Send,
    /// By chunks: RDMA Reads and Writes of the server.
    Rdma,
}

/// Numbers of an engine. All have defaults; [`EngineConfig::check`] says what does not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Inline threshold that this side offers, in octets, both as its largest Send and as its largest
    /// Receive: 1024 to 262144, rounded down to a multiple of 1024 (8797-4.2).
    pub inline_threshold: u32,
    /// Credits of one connection: what a client asks for, and the most that a server grants.
    pub credits_max: u32,
    /// Credits of one connection for reverse Calls, those from the end that accepted to the end that connected (RFC 8167): what
    /// [`Engine::call_back`](crate::Engine::call_back) asks for, and the most that a connecting end grants. 0: Calls go one way.
    pub reverse_credits: u32,
    /// How a server grants credits.
    pub credit_policy: CreditPolicy,
    /// Connections at once.
    pub connections_max: u32,
    /// Receives that all connections' Calls may use together: the credits that the server has.
    pub receives_max: u32,
    /// Whether to agree to remote invalidation (8797-4.1).
    pub remote_invalidation: bool,
    /// Largest Read chunk or Long Call that a server pulls, in octets (8166-8.1-e).
    pub chunk_len_max: u32,
    /// Replies of one connection that a server exposes at once, because they fit neither inline nor into a Reply chunk: reliable
    /// reply, if the client says that it pulls them. 0: such Calls are answered with ERR_CHUNK. 4 to 16 suits most servers.
    pub exposed_replies: u32,
    /// Largest Reply that a server exposes, in octets.
    pub exposed_len_max: u32,
    /// Largest Reply that a client pulls which the server exposes, in octets. 0: it does not say that it pulls any.
    pub pull_len_max: u32,
    /// Completions handled in one pass.
    pub burst: usize,
    /// How long a connection may stay half set up, and how long until its first Call: over TCP always, over RDMA when
    /// others are turned away because of [`EngineConfig::connections_max`].
    pub set_up_timeout: Duration,
    /// How long a client may leave a Reply untaken, or its Read chunks unread, before its connection is ended: until then
    /// it holds message buffers and payload memory.
    pub peer_timeout: Duration,
    /// TCP connections at once.
    pub streams_max: u32,
    /// Octets of payload memory that Calls on their way in over TCP may hold.
    pub stream_memory: u32,
    /// Congestion control of TCP connections' sockets; `None`: the system's default.
    pub stream_congestion_control: Option<CongestionControl>,
    /// Replies kept for retransmissions of Calls that must not be executed twice. 0 keeps none. WRITEs have as
    /// many again, divided by 4.
    pub duplicates_max: u32,
    /// Versions of RPC-over-RDMA that this side speaks.
    pub protocol: ProtocolChoice,
    /// Where this side's Calls put their bulk data, and want that of their Replies, on connections of version 2.
    pub placement: PlacementChoice,
    /// Targets of 4096 octets in each Receive of a connection of version 2: the bulk data that one message may bring. 0: a Receive
    /// is one buffer of an inline threshold, and bulk data goes by chunks. Each posted Receive holds as many pages of
    /// [`Pools::payload`](crate::Pools::payload).
    pub receive_targets: u32,
    /// Sends of which one message may consist at most, on connections of version 2.
    pub continuation: u32,
    /// Connections that may speak version 2 at once, where version 1 can be spoken instead ([`ProtocolChoice::Auto`]): further ones
    /// speak version 1. Each takes message buffers and pages that one of version 1 does not need.
    pub version2_max: u32,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            inline_threshold: 4096,
            credits_max: 64,
            reverse_credits: 0,
            credit_policy: CreditPolicy::Governed,
            connections_max: 64,
            receives_max: 1024,
            remote_invalidation: true,
            chunk_len_max: (1 << 20) + 4096,
            exposed_replies: 0,
            exposed_len_max: (1 << 20) + 4096,
            pull_len_max: 0,
            burst: 64,
            set_up_timeout: Duration::from_secs(10),
            peer_timeout: Duration::from_secs(60),
            streams_max: 64,
            stream_memory: 16 << 20,
            stream_congestion_control: None,
            duplicates_max: 1024,
            protocol: ProtocolChoice::One,
            placement: PlacementChoice::Auto,
            receive_targets: 2,
            continuation: 8,
            version2_max: 64,
        }
    }
}

/// Most segments in one Call's chunk lists that either side deals with: what fits, within reason, in
/// an inline threshold (8166-X-13), and more than every server must accept (8267-6.4.2-a).
pub const SEGMENTS_MAX: u32 = 64;

/// Segments of one exposed Reply: pieces of memory that it may lie in.
pub(crate) const EXPOSED_SEGMENTS_MAX: usize = 16;

/// A number of an [`EngineConfig`] that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {found}: it must be {low} to {high}; {repair}")]
pub struct ConfigError {
    /// The number's name.
    pub what: &'static str,
    /// The value found.
    pub found: u64,
    /// The lowest that works.
    pub low: u64,
    /// The highest that works.
    pub high: u64,
    /// What to do.
    pub repair: &'static str,
}

impl EngineConfig {
    /// Says what is wrong, if anything is.
    ///
    /// # Errors
    ///
    /// The first number that is out of its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let check = |what, found: u64, low: u64, high: u64, repair| {
            if found < low || found > high {
                Err(ConfigError { what, found, low, high, repair })
            } else {
                Ok(())
            }
        };
        check(
            "inline_threshold",
            self.inline_threshold.into(),
            1024,
            262_144,
            "RFC 8797 carries 1 KiB to 256 KiB",
        )?;
        check("credits_max", self.credits_max.into(), 1, 1024, "32 to 128 suits most servers")?;
        check("reverse_credits", self.reverse_credits.into(), 0, 1024, "2 to 8 suits most services")?;
        check("connections_max", self.connections_max.into(), 1, 65_536, "a reactor polls each of them")?;
        check(
            "receives_max",
            self.receives_max.into(),
            u64::from(self.connections_max) * 2,
            1 << 20,
            "every connection needs at least two Receives: raise it, or lower connections_max",
        )?;
        check("chunk_len_max", self.chunk_len_max.into(), 4096, 64 << 20, "1 MiB and a page suits NFS")?;
        check("exposed_replies", self.exposed_replies.into(), 0, 256, "each pins a message buffer")?;
        check("exposed_len_max", self.exposed_len_max.into(), 4096, 1 << 30, "1 MiB suits NFS")?;
        check("pull_len_max", self.pull_len_max.into(), 0, 1 << 30, "1 MiB suits NFS")?;
        check("streams_max", self.streams_max.into(), 0, 65_536, "each pins up to 64 KiB while it waits")?;
        check(
            "stream_memory",
            self.stream_memory.into(),
            u64::from(self.chunk_len_max) + 8192,
            1 << 30,
            "the largest Call has to fit",
        )?;
        check("duplicates_max", self.duplicates_max.into(), 0, 1 << 22, "16384 is plenty for most")?;
        let targets_max = version2::TARGETS_MAX.into();
        check("receive_targets", self.receive_targets.into(), 0, targets_max, "2 suits a mix of sizes")?;
        check("continuation", self.continuation.into(), 1, version2::CONTINUATION_MAX.into(), "8 is plenty")?;
        check("version2_max", self.version2_max.into(), 0, 65_536, "64 is plenty for most")?;
        check("burst", self.burst as u64, 1, 4096, "64 is a good burst")
    }

    /// The same over a provider with these limits: what it leaves to the fabric is decided. Memory for the Receives of version 2 is
    /// needed only where that is spoken.
    #[must_use]
    pub fn over(&self, limits: &Limits) -> EngineConfig {
        let is_open = self.protocol == ProtocolChoice::Auto && self.placement == PlacementChoice::Auto;
        let is_dear = limits.message_data_max == 0 && limits.message_results_max == 0;
        let protocol = if is_open && is_dear { ProtocolChoice::One } else { self.protocol };
        EngineConfig { protocol, ..*self }
    }

    /// Octets of one message buffer: Sends and Receives.
    #[must_use]
    pub fn message_len(&self) -> usize {
        (self.inline_threshold / 1024 * 1024) as usize
    }

    /// Completions that a provider's queue needs for all connections.
    #[must_use]
    pub fn completions_max(&self) -> u32 {
        let QueuePairCapacity { receives, sends, exposures, .. } = self.capacity();
        (receives + sends + exposures).saturating_mul(self.connections_max)
    }

    /// Octets of memory, beside the pools, that kept Replies take.
    #[must_use]
    pub fn duplicates_len(&self) -> usize {
        crate::server::duplicates::Duplicates::footprint(self.duplicates_max)
    }

    /// The same of a server, whose connections expose nothing but Replies.
    #[must_use]
    pub fn serving_completions_max(&self) -> u32 {
        let QueuePairCapacity { receives, sends, exposures, .. } = self.serving_capacity();
        (receives + sends + exposures).saturating_mul(self.connections_max)
    }

    /// Octets of heap that one connection takes in a server, beside what the provider takes for its queue pair
    /// (`queue_pair_len` of each) and the buffers of the pools.
    #[must_use]
    pub fn connection_len(&self) -> usize {
        let reverse = match self.reverse_credits {
            0 => 0,
            _ => version2::ClientVersion2::reverse_footprint(self),
        };
        let version2 = version2::ServerVersion2::footprint(self) + reverse;
        Connection::footprint(self) + if self.speaks_version_2() { version2 } else { 0 }
    }

    /// Octets of heap that each Call in process may take beside that, with chunks. There are at most
    /// [`EngineConfig::receives_max`] over RDMA.
    #[must_use]
    pub fn call_len(&self) -> usize {
        Draft::FOOTPRINT + Pull::FOOTPRINT
    }

    /// Octets of heap that lists of pieces take beside that at most, where `pages` of the payload memory are for Calls on their
    /// way: those of Calls and Replies whose data lies in many pieces, and those of Replies in pieces of a store's memory, if
    /// its service keeps to [`Reply::pieces_room`](crate::Reply::pieces_room).
    #[must_use]
    pub fn lists_len(&self, pages: usize) -> usize {
        // A transfer begins and ends within a page.
        let pages_max = (self.chunk_len_max as usize).div_ceil(crate::PAGE_LEN) + 1;
        let drafts = (LISTS_MAX as usize + GROWN_MAX + 1) * Draft::grown(pages_max);
        let pulls = GROWN_MAX * pages_max.next_power_of_two() * Pull::PIECE_LEN;
        drafts + pulls + pages * Draft::PIECE_LEN.max(Pull::PIECE_LEN)
    }

    /// Octets of heap that one TCP connection takes at most, beside the buffers of the pools.
    #[must_use]
    pub fn stream_len(&self) -> usize {
        crate::stream::connection_len(self.chunk_len_max)
    }

    /// What the queue pair of a connection may have outstanding that a server accepted. It exposes Replies at most: reverse Calls
    /// have no chunks.
    #[must_use]
    pub fn serving_capacity(&self) -> QueuePairCapacity {
        let QueuePairCapacity { receives, sends, .. } = self.capacity();
        let exposures = self.exposed_replies * EXPOSED_SEGMENTS_MAX as u32;
        QueuePairCapacity {
            // One RDMA_DONE for each exposed Reply (RR-P-8).
            receives: receives + self.exposed_replies,
            // A fence for each of its segments.
            sends: sends + exposures,
            exposures,
            ..self.capacity()
        }
    }

    /// What one connection's queue pair may have outstanding.
    #[must_use]
    pub fn capacity(&self) -> QueuePairCapacity {
        QueuePairCapacity {
            // A Receive for each credit and one for a message that takes none (RDMA_DONE, garbage).
            receives: self.credits_max
                + SPARE_RECEIVES
                + self.reverse_receives()
                + if self.speaks_version_2() { version2::UNCREDITED_RECEIVES + self.continuation } else { 0 },
            // For each credit: its Send, or the Read or Writes before it. A fragmented transfer takes
            // more than its share and waits for room when the queue is full. Reverse Calls and their Replies are one Send each.
            sends: self.credits_max * 4 + 8 + self.reverse_credits * 2,
            // For each credit: Read chunks, Write chunks and a Reply chunk.
            exposures: self.credits_max * 4 + 8,
            send_len_max: match self.speaks_version_2() {
                true => version2::send_len_max(self),
                false => self.message_len() as u32,
            },
            // Messages of version 2 may be longer, where Receives are.
            receive_len_max: self.message_len() as u32,
            receive_targets: 0,
        }
    }

    /// Whether a connection may speak version 2.
    pub(crate) fn speaks_version_2(&self) -> bool {
        self.protocol != ProtocolChoice::One
    }

    /// Connections that speak version 2 at most.
    pub(crate) fn version2_connections(&self) -> u32 {
        match self.protocol {
            ProtocolChoice::One => 0,
            ProtocolChoice::Auto => self.version2_max.min(self.connections_max),
            ProtocolChoice::Two => self.connections_max,
        }
    }

    /// Pages of [`Pools::payload`](crate::Pools::payload) that posted Receives hold at most, beside those for payload.
    #[must_use]
    pub fn target_pages(&self) -> usize {
        if !self.speaks_version_2() {
            return 0;
        }
        let targets = version2::targets(self, self.receive_targets) as usize;
        let each = self.capacity().receives;
        let connections = self.version2_connections();
        let served = self.receives_max.min(connections.saturating_mul(each));
        // Receives of reverse Calls are none of those that connections share.
        let reverse = connections.saturating_mul(self.reverse_receives());
        (served + reverse + each) as usize * targets
    }

    /// What the connections share of Receives.
    pub(crate) fn credits(&self) -> CreditConfig {
        let EngineConfig { connections_max, receives_max, credits_max, credit_policy: policy, .. } = *self;
        CreditConfig { connections_max, receives_max, credits_max, policy }
    }

    /// Receives of one connection for reverse Calls, or for their Replies.
    pub(crate) fn reverse_receives(&self) -> u32 {
        if self.reverse_credits == 0 { 0 } else { self.reverse_credits + SPARE_RECEIVES }
    }
}
