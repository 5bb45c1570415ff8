//! What a reactor did so far: taken in it, told elsewhere.

use std::collections::HashMap;
use std::time::Duration;

use stag_memory::Ledger;
use stag_nfs::export::RateWaits;
use stag_nfs::server::{
    OperationStatistics, ServicesWithLocks, Share, SharedLocking, Traffic, TrafficClient,
};
use stag_rpc::{CreditGauge, Engine, Observed, ProcedureStatistics, ServedConnection};
use stag_vfs::{Store, Usage};

use super::credits::CreditSnapshot;
use super::fabric::{DeviceWork, Served};
use super::locks::Locks;
use crate::admin::PoolState;
use crate::counters::Counters;
use crate::programs::Programs;

/// What was done so far.
#[derive(Default)]
pub(super) struct Snapshot {
    /// Since the server started.
    pub(super) uptime: Duration,
    pub(super) counters: Counters,
    pub(super) device: Option<DeviceWork>,
    pub(super) locks: Locks,
    pub(super) credits: CreditSnapshot,
    /// Connections there are, of RDMA and of TCP.
    pub(super) connections: (usize, usize),
    served: Vec<ServedConnection>,
    procedures: Vec<ProcedureStatistics>,
    /// Of COMPOUND.
    operations: Vec<OperationStatistics>,
    /// Of exports whose files are at this reactor alone.
    usage: Vec<(String, Usage)>,
    /// What waited for the limits of exports.
    limited: Vec<(String, RateWaits)>,
    /// What was read and written, of each export and by each client.
    exports_traffic: Vec<(String, Traffic)>,
    clients_traffic: HashMap<TrafficClient, Traffic>,
    pools: Vec<PoolUse>,
}

/// How much of a pool is in use.
struct PoolUse {
    name: &'static str,
    unit_len: usize,
    units: usize,
    units_free: usize,
}

impl Snapshot {
    /// Takes it.
    pub(super) fn take<P: Served>(
        engine: &mut Engine<P, Programs>,
        locking: &SharedLocking,
        ledger: &Ledger,
        uptime: Duration,
    ) -> Snapshot {
        let mut snapshot = match engine.services_mut() {
            Some(programs) => Snapshot::of_services(programs),
            None => Snapshot::default(),
        };
        let pools = ledger.pools().iter().map(|pool| PoolUse {
            name: pool.name(),
            unit_len: pool.unit_len(),
            units: pool.units(),
            units_free: pool.free_units(),
        });
        snapshot.pools = pools.collect();
        Snapshot {
            uptime,
            counters: engine.statistics().into(),
            device: engine.provider().device_work(),
            locks: locking.borrow().statistics().into(),
            credits: CreditSnapshot::take(engine),
            connections: (engine.connection_count(), engine.stream_count()),
            served: engine.served_connections().collect(),
            ..snapshot
        }
    }

    /// What the services know.
    fn of_services(programs: &mut Observed<ServicesWithLocks<dyn Store>>) -> Snapshot {
        let procedures = programs.procedures().collect();
        let services = programs.get_mut();
        let operations = services.1.operations();
        let exports = services.0.exports().borrow();
        let served = || exports.shares().iter().filter(|share| !share.is_removed());
        let path = |share: &Share<dyn Store>| share.export().path.clone();
        // The space of exports in memory. Asking a disk could take long.
        let in_memory = served().filter(|share| !share.volume().profile().can.is_at_every_reactor);
        let usage = in_memory.filter_map(|share| Some((path(share), share.volume().store().usage().ok()?)));
        Snapshot {
            procedures,
            operations,
            usage: usage.collect(),
            limited: served().filter_map(|share| Some((path(share), share.rate_waits()?))).collect(),
            exports_traffic: served().map(|share| (path(share), share.traffic())).collect(),
            clients_traffic: exports.clients_traffic(),
            ..Snapshot::default()
        }
    }

    pub(super) fn uptime(&self) -> Duration {
        self.uptime
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Connections there are, of RDMA and of TCP.
    pub(super) fn connections(&self) -> (usize, usize) {
        self.connections
    }

    pub(super) fn served(&self) -> &[ServedConnection] {
        &self.served
    }

    pub(super) fn gauges(&self) -> &[CreditGauge] {
        self.credits.gauges()
    }

    /// Receives that are held, and the most that may be.
    pub(super) fn receives(&self) -> (u32, u32) {
        self.credits.receives()
    }

    pub(super) fn procedures(&self) -> &[ProcedureStatistics] {
        &self.procedures
    }

    pub(super) fn operations(&self) -> &[OperationStatistics] {
        &self.operations
    }

    pub(super) fn usage(&self) -> &[(String, Usage)] {
        &self.usage
    }

    /// What waited for the limits of exports: an item for each export and reactor.
    pub(super) fn limited(&self) -> &[(String, RateWaits)] {
        &self.limited
    }

    /// What was read and written of an export, at all reactors.
    pub(super) fn export_traffic(&self, path: &str) -> Traffic {
        let mut sum = Traffic::default();
        let found = self.exports_traffic.iter().filter(|(found, _)| *found == path);
        found.for_each(|(_, moved)| sum += *moved);
        sum
    }

    /// What a client read and wrote, at all reactors.
    pub(super) fn client_traffic(&self, client: TrafficClient) -> Traffic {
        self.clients_traffic.get(&client).copied().unwrap_or_default()
    }

    /// Locks that are held, and requests that wait.
    pub(super) fn locks(&self) -> (u32, u32) {
        self.locks.now()
    }

    /// The pools of the reactor on this core.
    pub(super) fn pools(&self, core: usize) -> impl Iterator<Item = PoolState> {
        self.pools.iter().map(move |pool| PoolState {
            core,
            pool: pool.name.to_owned(),
            unit_bytes: pool.unit_len,
            units: pool.units,
            units_free: pool.units_free,
        })
    }
}

impl std::ops::AddAssign<&Snapshot> for Snapshot {
    fn add_assign(&mut self, other: &Snapshot) {
        self.uptime = self.uptime.max(other.uptime);
        self.counters += other.counters;
        self.locks += other.locks;
        self.credits += &other.credits;
        self.connections.0 += other.connections.0;
        self.connections.1 += other.connections.1;
        self.served.extend_from_slice(&other.served);
        self.procedures.extend_from_slice(&other.procedures);
        self.operations.extend_from_slice(&other.operations);
        self.usage.extend_from_slice(&other.usage);
        self.limited.extend_from_slice(&other.limited);
        self.exports_traffic.extend_from_slice(&other.exports_traffic);
        for (client, moved) in &other.clients_traffic {
            *self.clients_traffic.entry(*client).or_default() += *moved;
        }
        if let Some(work) = other.device {
            *self.device.get_or_insert_default() += work;
        }
    }
}
