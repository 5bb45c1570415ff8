//! The fabric of both ends: how it is opened for a measurement, and where its server listens.

use std::io;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use stag_fabric::{
    Iwarp, IwarpConfig, ListenerId, Provider, QueuePairId, Shm, ShmConfig, Verbs, VerbsConfig,
};

use crate::engine_config::engine_config;
use crate::scenario::Scenario;

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceFacts {
    /// Its name.
    pub name: String,
    /// What was chosen on it, and why: sentences for people.
    pub notes: Vec<String>,
}

/// A fabric that can be measured.
pub trait Opened: Provider + Sized + 'static {
    /// Opens it for either end.
    ///
    /// # Errors
    ///
    /// What the provider says.
    fn open(scenario: &Scenario) -> Result<Self>;

    /// Gives this thread a table of descriptors of its own, so that each end of many connections may have as many as a
    /// process. Nothing that other threads opened afterwards may be used by number here, nor the other way round.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    fn separate_descriptors() -> Result<()> {
        // SAFETY: the call takes no pointers. The ends share no descriptor that either opens or closes later: each opens its
        // own provider and arena, and drops both on its thread.
        let result = unsafe { libc::unshare(libc::CLONE_FILES) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()).context("a table of descriptors") }
    }

    /// What the server of one round listens at.
    fn own_address(round: usize) -> String;

    /// Where that is, for its clients.
    ///
    /// # Errors
    ///
    /// When nothing leads there.
    fn listens_at(&self, _listener: ListenerId, asked: String) -> Result<String> {
        Ok(asked)
    }

    /// The device, and what was chosen on it and why, where there is one.
    fn device(&self) -> Option<DeviceFacts> {
        None
    }

    /// The congestion control algorithm below a queue pair, where there is one.
    fn congestion_control_of(&self, _queue_pair: QueuePairId) -> Option<String> {
        None
    }
}

impl Opened for Shm {
    fn open(scenario: &Scenario) -> Result<Shm> {
        let config = engine_config(scenario);
        let default = ShmConfig::default();
        Ok(Shm::open(ShmConfig {
            may_sleep: scenario.may_sleep,
            queue_pairs: config.connections_max.max(default.queue_pairs),
            completions: config.completions_max().max(default.completions),
            ..default
        })?)
    }

    fn own_address(round: usize) -> String {
        format!("stag-perf-{}-{round}", std::process::id())
    }
}

impl Opened for Iwarp {
    fn open(scenario: &Scenario) -> Result<Iwarp> {
        let config = engine_config(scenario);
        let default = IwarpConfig::default();
        Ok(Iwarp::open(IwarpConfig {
            queue_pairs: config.connections_max.max(default.queue_pairs),
            completions: config.completions_max().max(default.completions),
            may_sleep: scenario.may_sleep,
            crc: scenario.crc,
            congestion_control: scenario.congestion_control,
            ..default
        })?)
    }

    fn own_address(_round: usize) -> String {
        "127.0.0.1:0".to_owned()
    }

    fn listens_at(&self, listener: ListenerId, asked: String) -> Result<String> {
        Ok(self.listener_address(listener).map_or(asked, |address| address.to_string()))
    }

    fn congestion_control_of(&self, queue_pair: QueuePairId) -> Option<String> {
        self.congestion_control(queue_pair)
    }
}

impl Opened for Verbs {
    fn open(scenario: &Scenario) -> Result<Verbs> {
        let config = engine_config(scenario);
        let needed = Verbs::completions_needed(&config.capacity()) * u64::from(config.connections_max);
        let default = VerbsConfig::default();
        Ok(Verbs::open(VerbsConfig {
            may_sleep: scenario.may_sleep,
            device: scenario.device.clone(),
            exposure: scenario.exposure,
            completions: u32::try_from(needed).unwrap_or(u32::MAX).max(default.completions),
            ..default
        })?)
    }

    // The device's library has one set of descriptors for all threads.
    fn separate_descriptors() -> Result<()> {
        Ok(())
    }

    fn own_address(_round: usize) -> String {
        "0.0.0.0:0".to_owned()
    }

    fn listens_at(&self, listener: ListenerId, asked: String) -> Result<String> {
        let port = self.listener_address(listener).map(|address| address.port());
        let address = self.addresses().into_iter().map(|found| found.address).find(SocketAddr::is_ipv4);
        match (address, port) {
            (Some(address), Some(port)) => Ok(SocketAddr::new(address.ip(), port).to_string()),
            _ => bail!(
                "{asked}: the network interface of RDMA device {} has no IPv4 address to connect to",
                Verbs::device(self).unwrap_or("(gone)")
            ),
        }
    }

    fn device(&self) -> Option<DeviceFacts> {
        let name = Verbs::device(self)?.to_owned();
        Some(DeviceFacts { name, notes: self.notes().to_vec() })
    }
}
