//! Options of `stag` that concern every connection: set once, before the command runs.

use std::sync::OnceLock;

use stag_fabric::ExposureKind;
use stag_fabric::iwarp::CongestionControl;
use stag_fabric::shm::Admit;
use stag_memory::{PageChoice, PageSize};
use stag_rpc::{PlacementChoice, ProtocolChoice};

/// How servers are connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionOptions {
    /// The TCP port of MOUNT, for URLs that do not say it.
    pub mount_port: Option<u16>,
    /// Whether a connection that ends is the end of the command.
    pub no_reconnect: bool,
    /// Whether to pull Replies that the server exposes.
    pub reliable_reply: bool,
    /// Whether to ask for CRCs over iWARP.
    pub crc: bool,
    /// The congestion control algorithm of TCP below iWARP; the system's default, if there is none.
    pub congestion_control: Option<CongestionControl>,
    /// The RDMA device; the one that the address leads to, if none is named.
    pub device: Option<String>,
    /// How it exposes memory; by its best means, if that is not said.
    pub exposure: Option<ExposureKind>,
    /// Over shm, servers that are trusted with our memory besides those of the same user.
    pub shm_allow: Vec<Admit>,
    /// Versions of RPC-over-RDMA to speak.
    pub protocol: ProtocolChoice,
    /// Where version 2 puts data.
    pub placement: PlacementChoice,
}

impl Default for ConnectionOptions {
    fn default() -> ConnectionOptions {
        ConnectionOptions {
            mount_port: None,
            no_reconnect: false,
            reliable_reply: false,
            crc: true,
            congestion_control: None,
            device: None,
            exposure: None,
            shm_allow: Vec::new(),
            protocol: ProtocolChoice::One,
            placement: PlacementChoice::Auto,
        }
    }
}

impl ConnectionOptions {
    /// The pages that memory for a server is put on. Over `shm`, a server of another user takes none on reserved hugepages.
    #[must_use]
    pub fn pages(&self) -> PageChoice {
        if self.shm_allow.is_empty() { PageChoice::Auto } else { PageChoice::Size(PageSize::Transparent) }
    }
}

static OPTIONS: OnceLock<ConnectionOptions> = OnceLock::new();

/// Sets them. Only the first time counts.
pub fn set(options: ConnectionOptions) {
    let _ = OPTIONS.set(options);
}

/// What was set, or the default.
#[must_use]
pub fn get() -> ConnectionOptions {
    OPTIONS.get().cloned().unwrap_or_default()
}
