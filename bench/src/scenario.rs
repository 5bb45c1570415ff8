//! What to measure.

use std::time::Duration;

use serde::Serialize;
use stag::fabric::ExposureKind;
use stag::fabric::iwarp::CongestionControl;
use stag::rpc::{PlacementChoice, ProtocolChoice, ReplyMode};

/// The operation under load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MeasuredOperation {
    /// NFS NULL: no arguments, no results.
    Null,
    /// NFS READ; large ones by Write chunk.
    Read,
    /// NFS WRITE, unstable; large ones by Read chunk.
    Write,
    /// NFS GETATTR.
    Getattr,
    /// A program of our own that returns its arguments, always inline.
    Echo,
    /// A program of our own whose Reply has the wanted size, none of which may go by Write chunk.
    Reply,
}

impl MeasuredOperation {
    /// Whether it moves `size` octets.
    #[must_use]
    pub fn has_size(self) -> bool {
        matches!(
            self,
            MeasuredOperation::Read
                | MeasuredOperation::Write
                | MeasuredOperation::Echo
                | MeasuredOperation::Reply
        )
    }

    /// Whether it works on a file.
    #[must_use]
    pub fn has_file(self) -> bool {
        matches!(self, MeasuredOperation::Read | MeasuredOperation::Write | MeasuredOperation::Getattr)
    }
}

/// The fabric that both ends use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MeasuredFabric {
    /// Shared memory.
    #[default]
    Shm,
    /// iWARP over TCP, by the loopback if the server is our own.
    Iwarp,
    /// An RDMA device, which turns to itself if the server is our own.
    Verbs,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Scenario {
    /// What is called.
    pub operation: MeasuredOperation,
    /// Octets of each READ, WRITE or echo.
    pub size: usize,
    /// Calls outstanding on each connection.
    pub depth: usize,
    /// Connections of each client core.
    pub connections: usize,
    /// Cores of the clients, then the server's core. At least two entries; the last one is the server's.
    pub cores: Vec<usize>,
    /// How long each round measures.
    pub duration: Duration,
    /// Calls after which a round ends, if before `duration`.
    pub count: Option<u64>,
    /// How long each round runs before it measures.
    pub warm_up: Duration,
    /// Rounds.
    pub repeat: usize,
    /// Inline threshold that both ends offer.
    pub inline_threshold: u32,
    /// Whether the client reads every cache line of what it READ.
    pub touch: bool,
    /// Whether both ends may sleep; otherwise they spin.
    pub may_sleep: bool,
    /// A server that runs already: its address, and the export to use.
    pub server: Option<(String, String)>,
    /// The handle of that export's root, where it is known; otherwise the server is asked for it.
    #[serde(skip)]
    pub root: Option<Vec<u8>>,
    /// What both ends use.
    pub fabric: MeasuredFabric,
    /// Whether they ask for CRCs, over iWARP.
    pub crc: bool,
    /// The congestion control algorithm of TCP, over iWARP; the system's default, if there is none.
    #[serde(skip)]
    pub congestion_control: Option<CongestionControl>,
    /// The RDMA device, over verbs; the first with an active port, if none is named.
    pub device: Option<String>,
    /// How it exposes memory; by its best means, if that is not said.
    #[serde(skip)]
    pub exposure: Option<ExposureKind>,
    /// Versions of RPC-over-RDMA that both ends speak.
    #[serde(skip)]
    pub protocol: ProtocolChoice,
    /// Where the client wants bulk data, in version 2.
    #[serde(skip)]
    pub placement: PlacementChoice,
    /// Sends of a message at most, in version 2.
    #[serde(skip)]
    pub continuation: u32,
    /// Who provides the memory of a long Reply, of [`MeasuredOperation::Reply`].
    #[serde(skip)]
    pub reply_mode: ReplyMode,
}

impl Default for Scenario {
    fn default() -> Scenario {
        Scenario {
            operation: MeasuredOperation::Null,
            size: 4096,
            depth: 1,
            connections: 1,
            cores: vec![0, 1],
            duration: Duration::from_millis(500),
            count: None,
            warm_up: Duration::from_millis(200),
            repeat: 5,
            inline_threshold: 4096,
            touch: false,
            may_sleep: false,
            server: None,
            root: None,
            fabric: MeasuredFabric::Shm,
            crc: true,
            congestion_control: None,
            device: None,
            exposure: None,
            protocol: ProtocolChoice::One,
            placement: PlacementChoice::Auto,
            continuation: 8,
            reply_mode: ReplyMode::Auto,
        }
    }
}

impl Scenario {
    /// Cores of the clients.
    #[must_use]
    pub fn client_cores(&self) -> &[usize] {
        &self.cores[..self.cores.len() - 1]
    }

    /// The server's core.
    #[must_use]
    pub fn server_core(&self) -> usize {
        self.cores[self.cores.len() - 1]
    }

    /// Credits that one connection needs.
    #[must_use]
    pub fn credits(&self) -> u32 {
        (self.depth as u32).clamp(1, 1024)
    }
}
