//! Opens the fabric that a URL names, for a raw end of a connection.

use std::time::Duration;

use stag::fabric::{Iwarp, IwarpConfig, Shm, ShmConfig, Verbs, VerbsConfig};

use super::raw::{RawEnd, RawPeer};
use crate::options;
use crate::url::FabricName;

/// Queue pairs at once: the one in use, and those that are being ended.
const QUEUE_PAIRS: u32 = 4;

/// Completions for all of them.
const COMPLETIONS: u32 = 8192;

/// Opens it. `wait` is for the set-up of each connection.
///
/// # Errors
///
/// This machine cannot run the fabric, or there is no memory.
pub fn open(fabric: FabricName, wait: Duration) -> Result<Box<dyn RawPeer>, String> {
    let options = options::get();
    match fabric {
        FabricName::Shm => {
            let config = ShmConfig {
                admit: options.shm_allow,
                queue_pairs: QUEUE_PAIRS,
                completions: COMPLETIONS,
                may_sleep: true,
                setup_timeout: wait,
                foreign_hugepages: true,
                ..ShmConfig::default()
            };
            let provider = Shm::open(config).map_err(|error| error.to_string())?;
            Ok(Box::new(RawEnd::new(provider)?))
        }
        FabricName::Iwarp => {
            let config = IwarpConfig {
                queue_pairs: QUEUE_PAIRS,
                completions: COMPLETIONS,
                may_sleep: true,
                crc: options.crc,
                congestion_control: options.congestion_control,
                connect_timeout: wait,
                ..IwarpConfig::default()
            };
            let provider = Iwarp::open(config).map_err(|error| error.to_string())?;
            Ok(Box::new(RawEnd::new(provider)?))
        }
        FabricName::Verbs => {
            let config = VerbsConfig {
                device: options.device,
                exposure: options.exposure,
                queue_pairs: QUEUE_PAIRS,
                completions: COMPLETIONS,
                may_sleep: true,
                setup_timeout: wait,
                ..VerbsConfig::default()
            };
            let provider = Verbs::open(config).map_err(|error| error.to_string())?;
            Ok(Box::new(RawEnd::new(provider)?))
        }
    }
}
