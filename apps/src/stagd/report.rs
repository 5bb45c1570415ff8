//! What the server says: at its start what it chose, at its end what it did.

use std::time::Duration;

use serde::Serialize;
use stag::memory::{Ledger, PriceList};
use stag::nfs::server::SharedLocking;
use stag::rpc::{Engine, Services};
use stag::runtime::Stopped;

use super::Settings;
use super::fabric::{Device, DeviceWork, Served, mount_advice, shm_admits};
use super::listen::Listen;
use super::locks::Locks;
use super::plan::Plan;
use super::serve::Place;
use crate::counters::Counters;
use crate::failure::Failure;
use crate::output::Output;
use crate::values::{Size, Time};

/// What was chosen: the object of `--check --json`, and the first one of `--json`.
#[derive(Serialize)]
struct Chosen<'a> {
    /// `checked` or `started`.
    event: &'static str,
    version: &'static str,
    core: usize,
    node: u32,
    poll: String,
    /// The pages that the memory stands on; what was asked for, if it is only checked.
    pages: String,
    /// What it stepped down from, and why.
    notes: &'a [String],
    /// The RDMA device, over verbs.
    device: Option<&'a Device>,
    /// How Linux mounts it, over verbs.
    mount: Option<&'a str>,
    /// Whom it admits, over shm.
    shm: Option<&'a str>,
    warnings: &'a [String],
    inline_threshold: u32,
    credits: u32,
    connections_max: u32,
    exports: Vec<String>,
    memory: u64,
    prices: Vec<Price<'a>>,
}

/// A line of the price list.
#[derive(Serialize)]
struct Price<'a> {
    what: &'a str,
    each: u64,
    count: u64,
    bytes: u64,
}

/// One of the places where it listens: an object of `--json`.
#[derive(Serialize)]
struct Ready<'a> {
    event: &'static str,
    url: &'a str,
}

/// What was done so far: taken in the reactor, printed elsewhere.
pub(super) struct Snapshot {
    /// Since the server started.
    uptime: Duration,
    counters: Counters,
    device: Option<DeviceWork>,
    locks: Locks,
    /// Connections there are, of RDMA and of TCP.
    connections: (usize, usize),
}

impl Snapshot {
    /// Takes it.
    pub(super) fn take<P: Served, S: Services>(
        engine: &Engine<P, S>,
        locking: &SharedLocking,
        uptime: Duration,
    ) -> Snapshot {
        Snapshot {
            uptime,
            counters: engine.statistics().into(),
            device: engine.provider().device_work(),
            locks: locking.borrow().statistics().into(),
            connections: (engine.connection_count(), engine.stream_count()),
        }
    }
}

/// What a SIGUSR1 asks for: an object of `--json`.
#[derive(Serialize)]
struct Counted<'a> {
    event: &'static str,
    uptime_seconds: f64,
    /// RDMA connections there are.
    connections: usize,
    /// TCP connections there are.
    streams: usize,
    counters: &'a Counters,
    device: Option<&'a DeviceWork>,
    locks: Locks,
}

/// The last object of `--json`.
#[derive(Serialize)]
struct Ended<'a> {
    event: &'static str,
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
    /// Units of all pools that did not come back.
    leaked: usize,
    ledger: &'a str,
}

/// What it got from the machine.
pub(super) struct Got<'a> {
    /// The pages of its memory.
    pub(super) pages: String,
    /// What it stepped down from, and why.
    pub(super) notes: &'a [String],
    pub(super) device: Option<&'a Device>,
    /// How Linux mounts it, where that is not plain.
    pub(super) mount: Option<String>,
}

/// Says what would be done.
pub(super) fn checked(
    settings: &Settings,
    plan: &Plan,
    place: &Place,
    out: &mut Output,
) -> Result<(), Failure> {
    let pages = format!("{} (asked for)", settings.pages.0);
    let got =
        Got { pages, notes: &place.notes, device: None, mount: mount_advice(settings, &settings.listen) };
    chosen("checked", settings, plan, place, &got, out)
}

/// Says what is done.
pub(super) fn started(
    settings: &Settings,
    plan: &Plan,
    place: &Place,
    got: &Got<'_>,
    out: &mut Output,
) -> Result<(), Failure> {
    chosen("started", settings, plan, place, got, out)
}

fn chosen(
    event: &'static str,
    settings: &Settings,
    plan: &Plan,
    place: &Place,
    got: &Got<'_>,
    out: &mut Output,
) -> Result<(), Failure> {
    let version = env!("CARGO_PKG_VERSION");
    let (engine, core, node) = (&plan.engine, place.core.0, place.node);
    let exports: Vec<String> = settings.exports.iter().map(|(spec, _)| spec.clone()).collect();
    out.line(format_args!("stagd {version}"))?;
    out.line(format_args!("core       {core}, NUMA node {node}, polls: {}", settings.poll))?;
    out.line(format_args!("pages      {}", got.pages))?;
    for note in got.notes {
        out.line(format_args!("           {note}"))?;
    }
    if let Some(device) = got.device {
        out.line(format_args!("device     {}", device.name))?;
        for note in &device.notes {
            out.line(format_args!("           {note}"))?;
        }
    }
    let shm = shm_admits(settings);
    if let Some(shm) = &shm {
        out.line(format_args!("shm        {shm}"))?;
    }
    let threshold = Size(engine.inline_threshold.into());
    let (credits, connections) = (engine.credits_max, engine.connections_max);
    out.line(format_args!(
        "messages   {threshold} inline, {credits} credits, {connections} connections at most"
    ))?;
    for export in &exports {
        out.line(format_args!("export     {export}"))?;
    }
    out.line(format_args!("memory     {}, of which", Size(settings.memory)))?;
    for line in plan.prices.to_string().lines() {
        out.line(format_args!("           {line}"))?;
    }
    if let Some(mount) = &got.mount {
        out.line(format_args!("mount      {mount}"))?;
    }
    for warning in &place.warnings {
        out.line(format_args!("warning: {warning}"))?;
    }
    out.object(&Chosen {
        event,
        version,
        core,
        node,
        poll: settings.poll.to_string(),
        pages: got.pages.clone(),
        notes: got.notes,
        device: got.device,
        mount: got.mount.as_deref(),
        shm: shm.as_deref(),
        warnings: &place.warnings,
        inline_threshold: engine.inline_threshold,
        credits: engine.credits_max,
        connections_max: engine.connections_max,
        exports,
        memory: settings.memory,
        prices: prices(&plan.prices),
    })?;
    out.flush()
}

fn prices(list: &PriceList) -> Vec<Price<'_>> {
    let lines = list.prices().iter();
    lines
        .map(|line| Price { what: &line.what, each: line.each, count: line.count, bytes: line.bytes() })
        .collect()
}

/// Says where it listens, and that it does.
pub(super) fn ready(places: &[Listen], out: &mut Output) -> Result<(), Failure> {
    for place in places {
        let url = place.to_string();
        out.line(format_args!("ready: {url}"))?;
        out.object(&Ready { event: "ready", url: &url })?;
    }
    out.flush()
}

/// Says what was done so far.
pub(super) fn counters(snapshot: &Snapshot, out: &mut Output) -> Result<(), Failure> {
    let (connections, streams) = snapshot.connections;
    out.line(format_args!(
        "counters   after {}; {connections} RDMA and {streams} TCP connections are open",
        Time(snapshot.uptime)
    ))?;
    tell_work(snapshot, out)?;
    out.object(&Counted {
        event: "counters",
        uptime_seconds: snapshot.uptime.as_secs_f64(),
        connections,
        streams,
        counters: &snapshot.counters,
        device: snapshot.device.as_ref(),
        locks: snapshot.locks,
    })?;
    out.flush()
}

/// Says what was done. Fails if a buffer did not come back. Clients that held the server up until the drain limit and
/// were cut off then are no failure of the server's.
pub(super) fn stopped(
    stopped: &Stopped,
    work: &Snapshot,
    ledger: &Ledger,
    out: &mut Output,
) -> Result<(), Failure> {
    let leaked = ledger.outstanding();
    let ledger = match leaked {
        0 => format!("no buffer leaked ({ledger})"),
        _ => ledger.to_string().trim_end().replace('\n', "; "),
    };
    let told = tell_end(stopped, work, leaked, &ledger, out);
    // What went wrong matters more than who hears of it.
    if leaked > 0 {
        return Err(Failure::Run(ledger));
    }
    Failure::unless_output_closed(told)
}

fn tell_end(
    stopped: &Stopped,
    work: &Snapshot,
    leaked: usize,
    ledger: &str,
    out: &mut Output,
) -> Result<(), Failure> {
    let Stopped { drained, drain, statistics } = *stopped;
    let connections_cut = if drained { 0 } else { work.connections.0 + work.connections.1 };
    let how = if drained {
        "everything under way was finished".to_owned()
    } else {
        let noun = if connections_cut == 1 { "connection" } else { "connections" };
        format!("not everything was finished in time; {connections_cut} {noun} cut off")
    };
    out.line(format_args!("stopped    in {}: {how}", Time(drain)))?;
    tell_work(work, out)?;
    let [busy, idle, asleep] = [statistics.busy, statistics.idle, statistics.asleep].map(Time);
    out.line(format_args!("time       {busy} busy, {idle} idle, {asleep} asleep"))?;
    out.line(format_args!("ledger     {ledger}"))?;
    out.object(&Ended {
        event: "stopped",
        drained,
        drain_seconds: drain.as_secs_f64(),
        connections_cut,
        busy_seconds: statistics.busy.as_secs_f64(),
        idle_seconds: statistics.idle.as_secs_f64(),
        asleep_seconds: statistics.asleep.as_secs_f64(),
        counters: &work.counters,
        device: work.device.as_ref(),
        locks: work.locks,
        leaked,
        ledger,
    })?;
    out.flush()
}

/// The lines for people about what was done.
fn tell_work(work: &Snapshot, out: &mut Output) -> Result<(), Failure> {
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
