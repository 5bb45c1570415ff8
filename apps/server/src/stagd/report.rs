//! The server's report: where it listens, its counters, and its totals at the end.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;
use stag_memory::Ledger;
use stag_nfs::export::RateWaits;
use stag_nfs::server::{
    OperationStatistics, ServicesWithLocks, Share, SharedLocking, Traffic, TrafficClient,
};
use stag_rpc::{CreditGauge, Engine, Observed, ProcedureStatistics, ServedConnection};
use stag_runtime::{CoreId, ReactorStatistics};
use stag_vfs::{Store, Usage};

use super::credits::{CreditReport, CreditSnapshot};
use super::ended::{Ended, judge};
use super::fabric::{DeviceWork, Served};
use super::listen::Listen;
use super::locks::Locks;
use super::signals::Printer;
use super::supervisor;
use crate::admin::PoolState;
use crate::counters::Counters;
use crate::failure::CommandFailure;
use crate::logging::now;
use crate::output::Output;
use crate::programs::Programs;
use crate::values::{Size, Time};

/// One of the places where it listens: an object of `--json`.
#[derive(Serialize)]
struct Ready<'a> {
    event: &'static str,
    /// The time of day.
    time: String,
    url: &'a str,
}

/// What was done so far: taken in a reactor, printed elsewhere.
#[derive(Default)]
pub(super) struct Snapshot {
    /// Since the server started.
    uptime: Duration,
    counters: Counters,
    device: Option<DeviceWork>,
    locks: Locks,
    credits: CreditSnapshot,
    /// Connections there are, of RDMA and of TCP.
    connections: (usize, usize),
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

/// The work of all reactors.
fn sum<'a>(all: impl Iterator<Item = &'a Snapshot>) -> Snapshot {
    let mut sum = Snapshot::default();
    all.for_each(|snapshot| sum += snapshot);
    sum
}

/// A core's share of the work: an item of `cores` in objects of `--json`.
#[derive(Serialize)]
struct CoreShare {
    core: usize,
    /// RDMA and TCP connections there are.
    connections: usize,
    streams: usize,
    /// Those there were.
    connections_opened: u64,
    streams_opened: u64,
    /// Replies sent: Calls that came in there.
    calls: u64,
    /// Those of them that other cores executed.
    calls_carried: u64,
    /// Calls executed there that came in at other cores.
    calls_executed_for_others: u64,
    /// Pieces of memory lent to other cores.
    pieces_lent: u64,
    #[serde(skip_serializing_if = "Option::is_none", flatten)]
    time: Option<CoreTime>,
}

/// What a core did with its time.
#[derive(Clone, Copy, Serialize)]
struct CoreTime {
    busy_seconds: f64,
    idle_seconds: f64,
    asleep_seconds: f64,
}

impl CoreShare {
    fn of(core: CoreId, work: &Snapshot, time: Option<CoreTime>) -> CoreShare {
        let Counters { replies_sent, connections_opened, streams_opened, .. } = work.counters;
        let Counters { calls_carried, calls_executed_for_others, pieces_lent, .. } = work.counters;
        let (connections, streams) = work.connections;
        CoreShare {
            core: core.0,
            connections,
            streams,
            connections_opened,
            streams_opened,
            calls: replies_sent,
            calls_carried,
            calls_executed_for_others,
            pieces_lent,
            time,
        }
    }
}

/// A line for people about each core, if there are several.
fn tell_cores(cores: &[CoreShare], out: &mut Output) -> Result<(), CommandFailure> {
    for share in cores.iter().filter(|_| cores.len() > 1) {
        let CoreShare { core, calls, connections_opened, streams_opened, .. } = share;
        let CoreShare { calls_carried, calls_executed_for_others, pieces_lent, time, .. } = share;
        let time = time.map_or_else(String::new, |time| {
            let [busy, idle, asleep] = [time.busy_seconds, time.idle_seconds, time.asleep_seconds]
                .map(|seconds| Time(Duration::from_secs_f64(seconds)));
            format!("; {busy} busy, {idle} idle, {asleep} asleep")
        });
        out.line(format_args!(
            "core {core:<6}{calls} Calls on {connections_opened} RDMA and {streams_opened} TCP connections, {calls_carried} of \
             them carried to other cores; {calls_executed_for_others} executed for others; {pieces_lent} pieces lent{time}"
        ))?;
    }
    Ok(())
}

/// What a SIGUSR1 asks for: an object of `--json`.
#[derive(Serialize)]
struct Counted<'a> {
    event: &'static str,
    /// The time of day.
    time: String,
    uptime_seconds: f64,
    /// RDMA connections there are.
    connections: usize,
    /// TCP connections there are.
    streams: usize,
    counters: &'a Counters,
    device: Option<&'a DeviceWork>,
    locks: Locks,
    credits: &'a CreditReport,
    cores: Vec<CoreShare>,
}

/// The last object of `--json`.
#[derive(Serialize)]
struct Stop<'a> {
    event: &'static str,
    /// The time of day.
    time: String,
    /// Whether everything under way was finished in time.
    drained: bool,
    drain_seconds: f64,
    /// Connections that were still there then.
    connections_cut: usize,
    busy_seconds: f64,
    idle_seconds: f64,
    asleep_seconds: f64,
    counters: &'a Counters,
    /// What exposing memory on the RDMA device cost, over verbs.
    device: Option<&'a DeviceWork>,
    locks: Locks,
    cores: Vec<CoreShare>,
    /// Units of all pools that did not come back.
    leaked: usize,
    ledger: &'a str,
}

/// Says where it listens, and that it does.
pub(super) fn ready(places: &[Listen], out: &mut Output) -> Result<(), CommandFailure> {
    for place in places {
        let url = place.to_string();
        out.line(format_args!("ready: {url}"))?;
        out.object(&Ready { event: "ready", time: now(), url: &url })?;
    }
    out.flush()?;
    supervisor::ready();
    Ok(())
}

/// Says what the reactors on these cores did so far.
pub(super) fn counters(cores: &[CoreId], all: &[Snapshot], out: &mut Output) -> Result<(), CommandFailure> {
    let work = sum(all.iter());
    let (connections, streams) = work.connections;
    out.line(format_args!(
        "counters   after {}; {connections} RDMA and {streams} TCP connections are open",
        Time(work.uptime)
    ))?;
    tell_work(&work, out)?;
    let credits = CreditReport::new(&work.credits);
    credits.tell(out)?;
    let cores: Vec<_> = cores.iter().zip(all).map(|(core, work)| CoreShare::of(*core, work, None)).collect();
    tell_cores(&cores, out)?;
    out.object(&Counted {
        event: "counters",
        time: now(),
        uptime_seconds: work.uptime.as_secs_f64(),
        connections,
        streams,
        counters: &work.counters,
        device: work.device.as_ref(),
        locks: work.locks,
        credits: &credits,
        cores,
    })?;
    out.flush()
}

/// Says what the reactors on these cores did. Fails if a buffer did not come back. Clients that held the server up until the
/// drain limit and were cut off then are no failure of the server's.
pub(super) fn stopped(
    cores: Vec<CoreId>,
    mut all: Vec<Ended>,
    printer: Printer,
    json: bool,
) -> Result<(), CommandFailure> {
    if let Some(failure) = all.iter_mut().find_map(|ended| ended.failure.take()) {
        return printer.finish(|| Ok(())).and(Err(failure));
    }
    let (leaked, ledger) = judge(&cores, &all);
    let said = ledger.clone();
    let told = printer.finish(move || tell_end(&cores, &all, leaked, &said, &mut Output::new(json)));
    // What went wrong matters more than who hears of it.
    if leaked > 0 {
        return Err(CommandFailure::Run(ledger));
    }
    CommandFailure::unless_output_closed(told)
}

fn tell_end(
    cores: &[CoreId],
    all: &[Ended],
    leaked: usize,
    ledger: &str,
    out: &mut Output,
) -> Result<(), CommandFailure> {
    let work = sum(all.iter().map(|ended| &ended.work));
    let drained = all.iter().all(|ended| ended.stopped.drained);
    let drain = all.iter().map(|ended| ended.stopped.drain).max().unwrap_or_default();
    let connections_cut = if drained { 0 } else { work.connections.0 + work.connections.1 };
    let how = if drained {
        "everything under way was finished".to_owned()
    } else {
        let noun = if connections_cut == 1 { "connection" } else { "connections" };
        format!("not everything was finished in time; {connections_cut} {noun} cut off")
    };
    tracing::info!("stopped in {}: {how}", Time(drain));
    out.line(format_args!("stopped    in {}: {how}", Time(drain)))?;
    tell_work(&work, out)?;
    let time = |part: fn(&ReactorStatistics) -> Duration| -> Duration {
        all.iter().map(|ended| part(&ended.stopped.statistics)).sum()
    };
    let times = [time(|it| it.busy), time(|it| it.idle), time(|it| it.asleep)];
    let [busy, idle, asleep] = times.map(Time);
    out.line(format_args!("time       {busy} busy, {idle} idle, {asleep} asleep"))?;
    let share = |(core, ended): (&CoreId, &Ended)| {
        let ReactorStatistics { busy, idle, asleep, .. } = ended.stopped.statistics;
        let [busy_seconds, idle_seconds, asleep_seconds] =
            [busy, idle, asleep].map(|time| time.as_secs_f64());
        CoreShare::of(*core, &ended.work, Some(CoreTime { busy_seconds, idle_seconds, asleep_seconds }))
    };
    let cores: Vec<_> = cores.iter().zip(all).map(share).collect();
    tell_cores(&cores, out)?;
    out.line(format_args!("ledger     {ledger}"))?;
    let [busy_seconds, idle_seconds, asleep_seconds] = times.map(|time| time.as_secs_f64());
    out.object(&Stop {
        event: "stopped",
        time: now(),
        drained,
        drain_seconds: drain.as_secs_f64(),
        connections_cut,
        busy_seconds,
        idle_seconds,
        asleep_seconds,
        counters: &work.counters,
        device: work.device.as_ref(),
        locks: work.locks,
        cores,
        leaked,
        ledger,
    })?;
    out.flush()
}

/// The lines for people about what was done.
fn tell_work(work: &Snapshot, out: &mut Output) -> Result<(), CommandFailure> {
    let Snapshot { counters, device, locks, .. } = work;
    let Counters { replies_sent, connections_opened, streams_opened, .. } = *counters;
    let Counters { read_bytes, write_bytes, stream_bytes_received, stream_bytes_sent, .. } = *counters;
    let [pulled, pushed, received, sent] =
        [read_bytes, write_bytes, stream_bytes_received, stream_bytes_sent].map(Size);
    out.line(format_args!(
        "served     {replies_sent} Calls on {connections_opened} RDMA and {streams_opened} TCP connections"
    ))?;
    out.line(format_args!("placed     {pulled} by RDMA Read, {pushed} by RDMA Write"))?;
    if let Some(device) = device {
        let DeviceWork { binds, registrations, standing, fences, invalidations, probes, doorbells } = device;
        out.line(format_args!(
            "exposed    by {binds} binds and {registrations} registrations; ended by {fences} fences and \
             {invalidations} invalidations of peers; {doorbells} doorbells; {probes} times a silent peer was asked"
        ))?;
        if *standing > 0 {
            out.line(format_args!("UNGUARDED  {standing} exposures were standing: nothing was protected"))?;
        }
    }
    if streams_opened > 0 {
        out.line(format_args!("TCP        {received} received, {sent} sent"))?;
    }
    let Counters { duplicates_answered, duplicates_dropped, duplicates_unkept, .. } = *counters;
    if duplicates_answered + duplicates_dropped + duplicates_unkept > 0 {
        out.line(format_args!(
            "repeated   {duplicates_answered} Calls answered again, {duplicates_dropped} dropped while executed, \
             {duplicates_unkept} Replies not kept"
        ))?;
    }
    let Counters { datagrams_received, datagrams_dropped, .. } = *counters;
    if datagrams_received > 0 {
        out.line(format_args!("UDP        {datagrams_received} Calls, {datagrams_dropped} not answered"))?;
    }
    if locks.is_used() {
        out.line(format_args!("locks      {locks}"))?;
    }
    Ok(())
}
