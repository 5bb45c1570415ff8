//! The fabric of both ends: how it is opened for a measurement, and where its server listens.

use anyhow::Result;
use stag::fabric::{Iwarp, IwarpConfig, ListenerId, Provider, QueuePairId, Shm, ShmConfig};

use crate::scenario::Scenario;

/// A fabric that can be measured.
pub trait Opened: Provider + Sized + 'static {
    /// Opens it for either end.
    ///
    /// # Errors
    ///
    /// What the provider says.
    fn open(scenario: &Scenario) -> Result<Self>;

    /// What the server of one round listens at.
    fn own_address(round: usize) -> String;

    /// Where that is, for its clients.
    fn listens_at(&self, _listener: ListenerId, asked: String) -> String {
        asked
    }

    /// The congestion control algorithm below a queue pair, where there is one.
    fn congestion_control_of(&self, _queue_pair: QueuePairId) -> Option<String> {
        None
    }
}

impl Opened for Shm {
    fn open(scenario: &Scenario) -> Result<Shm> {
        Ok(Shm::open(ShmConfig { may_sleep: scenario.may_sleep, ..ShmConfig::default() })?)
    }

    fn own_address(round: usize) -> String {
        format!("stag-perf-{}-{round}", std::process::id())
    }
}

impl Opened for Iwarp {
    fn open(scenario: &Scenario) -> Result<Iwarp> {
        Ok(Iwarp::open(IwarpConfig {
            may_sleep: scenario.may_sleep,
            crc: scenario.crc,
            congestion_control: scenario.congestion_control,
            ..IwarpConfig::default()
        })?)
    }

    fn own_address(_round: usize) -> String {
        "127.0.0.1:0".to_owned()
    }

    fn listens_at(&self, listener: ListenerId, asked: String) -> String {
        self.listener_address(listener).map_or(asked, |address| address.to_string())
    }

    fn congestion_control_of(&self, queue_pair: QueuePairId) -> Option<String> {
        self.congestion_control(queue_pair)
    }
}
