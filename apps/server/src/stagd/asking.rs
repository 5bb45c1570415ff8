//! Asks all reactors of this server at once, from another thread, for the control socket and the metrics.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use stag_dump::status;
use stag_fabric::Peer;
use stag_nfs::export::{Export, RateLimits, RateWaits};
use stag_nfs::server::{OperationStatistics, Traffic, TrafficClient};
use stag_rpc::{
    EXECUTION_BOUNDS_NANOSECONDS, OTHER_STATUS, ProcedureStatistics, Recording, ServedConnection,
    WAIT_BOUNDS_MICROSECONDS, sum_procedures,
};
use stag_runtime::{CoreId, Sender, StatisticsReader};
use stag_wire::mount3;

use super::client_name::client_name;
use super::holdings::Holdings;
use super::live::LiveSettings;
use super::request::{EvictedSender, Request, snapshots};
use super::snapshot::Snapshot;
use crate::admin::{
    ClientState, CoreState, ExportState, HoldingsState, LimitedState, OperationState, PATIENCE,
    ProcedureState, ServerState,
};
use crate::version;

/// The reactors of this server, as other threads ask them.
#[derive(Clone)]
pub(super) struct Reactors {
    /// Of each.
    pub(super) senders: Vec<Sender<Request>>,
    pub(super) cores: Vec<CoreId>,
    pub(super) times: Vec<StatisticsReader>,
    /// What is served now.
    pub(super) live: Arc<LiveSettings>,
    /// What `--memory` is for, with the octets of each.
    pub(super) memory: Arc<[(String, u64)]>,
}

impl Reactors {
    /// Asks all for what they count: see [`snapshots`].
    pub(super) fn snapshots(&self) -> Option<Vec<Snapshot>> {
        snapshots(&self.senders)
    }

    /// Connections there are. `None`: a core did not answer in time.
    pub(super) fn connection_count(&self) -> Option<usize> {
        let count = |snapshot: &Snapshot| snapshot.connections().0 + snapshot.connections().1;
        self.snapshots().map(|all| all.iter().map(count).sum())
    }

    /// Asks all who holds which opens and locks, and puts it together.
    pub(super) fn holdings(&self) -> Option<HoldingsState> {
        let (sender, receiver) = sync_channel(self.senders.len());
        for reactor in &self.senders {
            reactor.send(Request::Holdings(sender.clone())).ok()?;
        }
        drop(sender);
        let mut sum = Holdings::default();
        for _ in &self.senders {
            sum.add(receiver.recv_timeout(PATIENCE).ok()?);
        }
        Some(sum.state())
    }

    /// Asks all for what they recorded. `None`: a core did not answer in time. Empty: nothing is recorded.
    pub(super) fn recordings(&self) -> Option<Vec<Recording>> {
        let (sender, receiver) = sync_channel(self.senders.len());
        for reactor in &self.senders {
            reactor.send(Request::Record(sender.clone())).ok()?;
        }
        drop(sender);
        let found = self.senders.iter().map(|_| receiver.recv_timeout(PATIENCE).ok());
        Some(found.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Asks all to disconnect a client. Returns how many connections ended.
    pub(super) fn evict(&self, client: &str) -> usize {
        self.sum(|sender| Request::Evict(client.to_owned(), sender))
    }

    /// Asks all to end a client of NFS version 4. Returns whether it was known.
    pub(super) fn evict_client(&self, client: u64) -> bool {
        self.sum(|sender| Request::EvictClient(client, sender)) > 0
    }

    fn sum(&self, request: impl Fn(EvictedSender) -> Request) -> usize {
        let (sender, receiver) = sync_channel(self.senders.len());
        for reactor in &self.senders {
            // One that has ended has no clients.
            let _ = reactor.send(request(sender.clone()));
        }
        drop(sender);
        std::iter::from_fn(|| receiver.recv_timeout(PATIENCE).ok()).sum()
    }

    /// Asks all for everything, and puts it together.
    pub(super) fn state(&self) -> Option<ServerState> {
        let all = self.snapshots()?;
        let mut sum = Snapshot::default();
        all.iter().for_each(|snapshot| sum += snapshot);
        let cores = self.cores.iter().zip(&all).zip(&self.times).map(|((core, snapshot), time)| {
            let time = time.read();
            CoreState {
                core: core.0,
                busy_seconds: time.busy.as_secs_f64(),
                idle_seconds: time.idle.as_secs_f64(),
                asleep_seconds: time.asleep.as_secs_f64(),
                calls: snapshot.counters().replies_sent,
                calls_carried: snapshot.counters().calls_carried,
                connections: snapshot.connections().0,
                streams: snapshot.connections().1,
            }
        });
        let exports = self.live.exports().into_iter().map(|(spec, Export { path, limits, .. })| {
            let usage = sum.usage().iter().find(|(found, _)| *found == path).map(|(_, usage)| usage);
            let waits = sum.limited().iter().filter(|(found, _)| *found == path);
            let rate = |rate: Option<NonZeroU64>| rate.map(NonZeroU64::get);
            let Traffic { read, written } = sum.export_traffic(&path);
            ExportState {
                read_bytes: read,
                written_bytes: written,
                rate: rate(limits.as_ref().and_then(RateLimits::all)),
                client_rate: rate(limits.as_ref().and_then(RateLimits::each)),
                limited: limits.is_some().then(|| limited(waits.map(|(_, waits)| waits))),
                path,
                spec,
                bytes_total: usage.map(|usage| usage.bytes_total),
                bytes_free: usage.map(|usage| usage.bytes_free),
                files_total: usage.map(|usage| usage.files_total),
                files_free: usage.map(|usage| usage.files_free),
            }
        });
        let pools = self.cores.iter().zip(&all);
        let pools = pools.flat_map(|(core, snapshot)| snapshot.pools(core.0));
        let (receives_held, receives_max) = sum.receives();
        let (locks_held, locks_waiting) = sum.locks();
        Some(ServerState {
            version: version::get().to_owned(),
            uptime_seconds: sum.uptime().as_secs_f64(),
            counters: *sum.counters(),
            cores: cores.collect(),
            procedures: procedures(sum.procedures()),
            operations: operations(sum.operations()),
            clients: clients(&sum),
            exports: exports.collect(),
            pools: pools.collect(),
            memory: self.memory.to_vec(),
            receives_held,
            receives_max,
            locks_held,
            locks_waiting,
        })
    }
}

/// What waited for the limits of an export, at all reactors.
fn limited<'w>(waits: impl Iterator<Item = &'w RateWaits>) -> LimitedState {
    let mut sum = LimitedState::default();
    for RateWaits { transfers, octets, time, waiting } in waits {
        sum.calls += transfers;
        sum.bytes += octets;
        sum.seconds += time.as_secs_f64();
        sum.waiting += waiting;
    }
    sum
}

/// The clients of all reactors, those with the most Calls first.
fn clients(sum: &Snapshot) -> Vec<ClientState> {
    let mut clients: Vec<ClientState> = Vec::new();
    let place = |clients: &mut Vec<ClientState>, peer: Option<&Peer>| {
        let name = client_name(peer);
        clients.iter().position(|it| it.client == name).unwrap_or_else(|| {
            let Traffic { read, written } = sum.client_traffic(TrafficClient::of(peer));
            clients.push(ClientState {
                client: name,
                connections: 0,
                streams: 0,
                calls: 0,
                read_bytes: read,
                written_bytes: written,
                granted: 0,
                used: 0,
                waiting: 0,
            });
            clients.len() - 1
        })
    };
    for ServedConnection { peer, is_stream, calls, .. } in sum.served() {
        let place = place(&mut clients, peer.as_ref());
        let client = &mut clients[place];
        client.connections += u32::from(!is_stream);
        client.streams += u32::from(*is_stream);
        client.calls += calls;
    }
    for gauge in sum.gauges() {
        let place = place(&mut clients, gauge.peer.as_ref());
        let client = &mut clients[place];
        client.granted += gauge.granted;
        client.used += gauge.used;
        client.waiting += gauge.waiting;
    }
    clients.sort_by(|a, b| b.calls.cmp(&a.calls).then_with(|| a.client.cmp(&b.client)));
    clients
}

/// What is in the ranges with these upper bounds, of which `per_second` are a second, and in one without a bound.
fn ranges(bounds: &[u64], per_second: f64, counts: &[u64]) -> Vec<(Option<f64>, u64)> {
    let bounds = bounds.iter().map(|&bound| Some(bound as f64 / per_second)).chain([None]);
    bounds.zip(counts.iter().copied()).collect()
}

/// Adds the failures of one reactor, by the names of their statuses in the RFCs.
fn add_failures(
    sum: &mut Vec<(String, u64)>,
    found: &[(u32, u64)],
    name: impl Fn(u32) -> Option<&'static str>,
) {
    for &(status, calls) in found {
        let name = match status {
            OTHER_STATUS => "other".to_owned(),
            _ => name(status).map_or_else(|| status.to_string(), str::to_owned),
        };
        match sum.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += calls,
            None => sum.push((name, calls)),
        }
    }
}

/// The procedures of all reactors, each once, those with the most Calls first.
fn procedures(all: &[ProcedureStatistics]) -> Vec<ProcedureState> {
    let state = |sum: ProcedureStatistics| {
        let name = if sum.program == mount3::PROGRAM { status::mount3 } else { status::nfs3 };
        let mut failures = Vec::new();
        add_failures(&mut failures, &sum.failures, name);
        ProcedureState {
            program: sum.program,
            version: sum.version,
            name: sum.name.to_owned(),
            calls: sum.calls,
            late: sum.late,
            late_seconds: sum.waited_sum.as_secs_f64(),
            waited: ranges(&WAIT_BOUNDS_MICROSECONDS, 1e6, &sum.waited),
            executed: ranges(&EXECUTION_BOUNDS_NANOSECONDS, 1e9, &sum.executed),
            executed_seconds: sum.executed_sum.as_secs_f64(),
            failures,
        }
    };
    sum_procedures(all).into_iter().map(state).collect()
}

/// The operations of all reactors, each once, those that were executed most first.
fn operations(all: &[OperationStatistics]) -> Vec<OperationState> {
    let mut operations: Vec<OperationState> = Vec::new();
    for OperationStatistics { name, calls, errors, failures, waits } in all {
        let place = operations.iter().position(|it| it.name == *name).unwrap_or_else(|| {
            let failures = Vec::new();
            operations.push(OperationState {
                name: (*name).to_owned(),
                calls: 0,
                errors: 0,
                failures,
                waits: 0,
            });
            operations.len() - 1
        });
        let sum = &mut operations[place];
        sum.calls += calls;
        sum.errors += errors;
        sum.waits += waits;
        add_failures(&mut sum.failures, failures, status::nfs4);
    }
    operations.sort_by(|a, b| b.calls.cmp(&a.calls).then_with(|| a.name.cmp(&b.name)));
    operations
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_procedure_is_the_sum_of_its_reactors() {
        let one = |calls, range: usize| {
            let mut waited = [0; WAIT_BOUNDS_MICROSECONDS.len() + 1];
            waited[range] = 1;
            let waited_sum = Duration::from_millis(500);
            ProcedureStatistics {
                program: 100_003,
                version: 3,
                name: "READ",
                calls,
                late: 1,
                waited,
                waited_sum,
                executed: waited,
                executed_sum: waited_sum,
                failures: vec![(2, 1), (10_008, 1), (77_777, 2), (OTHER_STATUS, 1)],
            }
        };
        let write = ProcedureStatistics { name: "WRITE", calls: 100, ..one(0, 0) };
        let sums = procedures(&[one(3, 0), write, one(4, 9)]);
        let names: Vec<_> = sums.iter().map(|sum| (sum.name.as_str(), sum.calls)).collect();
        assert_eq!(names, [("WRITE", 100), ("READ", 7)]);
        assert_eq!((sums[1].late, sums[1].late_seconds), (2, 1.0));
        assert_eq!((sums[1].waited[0], sums[1].waited[9]), ((Some(0.000_064), 1), (None, 1)));
        assert_eq!((sums[1].executed[0], sums[1].executed[9]), ((Some(0.000_000_25), 1), (None, 1)));
        let failures = [("NFS3ERR_NOENT", 2), ("NFS3ERR_JUKEBOX", 2), ("77777", 4), ("other", 2)];
        assert_eq!(sums[1].failures, failures.map(|(name, calls)| (name.to_owned(), calls)));
    }

    #[test]
    fn an_operation_is_the_sum_of_its_reactors() {
        let one = |name, calls, errors| {
            let failures = if errors > 0 { vec![(10_013, errors)] } else { Vec::new() };
            OperationStatistics { name, calls, errors, failures, waits: 1 }
        };
        let sums = operations(&[one("READ", 3, 0), one("OPEN", 9, 2), one("READ", 4, 1)]);
        assert_eq!(sums[0].failures, [("NFS4ERR_GRACE".to_owned(), 2)]);
        let sums: Vec<_> = sums.iter().map(|it| (it.name.as_str(), it.calls, it.errors, it.waits)).collect();
        assert_eq!(sums, [("OPEN", 9, 2, 1), ("READ", 7, 1, 2)]);
    }
}
