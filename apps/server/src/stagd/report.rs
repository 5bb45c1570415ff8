//! The server's report: where it listens, its counters, and its totals at the end.

use std::time::Duration;

use serde::Serialize;
use stag_runtime::{CoreId, ReactorStatistics};

use super::credits::CreditReport;
use super::ended::Ended;
use super::fabric::DeviceWork;
use super::listen::Listen;
use super::locks::Locks;
use super::snapshot::Snapshot;
use super::supervisor;
use crate::counters::Counters;
use crate::failure::CommandFailure;
use crate::logging::now;
use crate::output::Output;
use crate::values::{Size, Time};

/// One of the places where it listens: an object of `--json`.
#[derive(Serialize)]
struct Ready<'a> {
    event: &'static str,
    /// The time of day.
    time: String,
    url: &'a str,
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

/// Says what the reactors on these cores did, and what became of their memory.
pub(super) fn tell_end(
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
