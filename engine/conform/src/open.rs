//! Opens a fabric for a raw end of a connection.

use std::time::Duration;

use stag_fabric::iwarp::CongestionControl;
use stag_fabric::shm::Admit;
use stag_fabric::{ExposureKind, Iwarp, IwarpConfig, Shm, ShmConfig, Verbs, VerbsConfig};
use stag_memory::PageChoice;

use crate::raw::{RawEnd, RawPeer};

/// Queue pairs at once: the one in use, and those that are being ended.
const QUEUE_PAIRS: u32 = 4;

/// Completions for all of them.
const COMPLETIONS: u32 = 8192;

/// A fabric, with the options that its user chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawFabric {
    /// Two processes of one host.
    Shm {
        /// Peers that are trusted with our memory besides those of the same user.
        admit: Vec<Admit>,
    },
    /// RDMA in userspace over TCP.
    Iwarp {
        /// Whether to ask for CRCs.
        crc: bool,
        /// The congestion control algorithm of TCP; the system's default, if there is none.
        congestion_control: Option<CongestionControl>,
    },
    /// RDMA hardware, through rdma-core.
    Verbs {
        /// The device; the one that the address leads to, if none is named.
        device: Option<String>,
        /// How it exposes memory; by its best means, if that is not said.
        exposure: Option<ExposureKind>,
    },
}

/// Opens it, with memory on `page`s. `wait` is for the set-up of each connection.
///
/// # Errors
///
/// This machine cannot run the fabric, or there is no memory.
pub fn open(fabric: RawFabric, page: PageChoice, wait: Duration) -> Result<Box<dyn RawPeer>, String> {
    match fabric {
        RawFabric::Shm { admit } => {
            let config = ShmConfig {
                admit,
                queue_pairs: QUEUE_PAIRS,
                completions: COMPLETIONS,
                may_sleep: true,
                setup_timeout: wait,
                foreign_hugepages: true,
                ..ShmConfig::default()
            };
            let provider = Shm::open(config).map_err(|error| error.to_string())?;
            Ok(Box::new(RawEnd::new(provider, page)?))
        }
        RawFabric::Iwarp { crc, congestion_control } => {
            let config = IwarpConfig {
                queue_pairs: QUEUE_PAIRS,
                completions: COMPLETIONS,
                may_sleep: true,
                crc,
                congestion_control,
                connect_timeout: wait,
                ..IwarpConfig::default()
            };
            let provider = Iwarp::open(config).map_err(|error| error.to_string())?;
            Ok(Box::new(RawEnd::new(provider, page)?))
        }
        RawFabric::Verbs { device, exposure } => {
            let config = VerbsConfig {
                device,
                exposure,
                queue_pairs: QUEUE_PAIRS,
                completions: COMPLETIONS,
                may_sleep: true,
                setup_timeout: wait,
                ..VerbsConfig::default()
            };
            let provider = Verbs::open(config).map_err(|error| error.to_string())?;
            Ok(Box::new(RawEnd::new(provider, page)?))
        }
    }
}
