//! Prints the choices before the first round, and the results after each size.

use std::time::Duration;

use serde::Serialize;
use stag::runtime::environment::Finding;
use stag_bench::opened::DeviceFacts;
use stag_bench::run::{BareRatios, Latency, Ratios, TcpRatios};
use stag_bench::{BareLimits, Figures, MachineLimits, Spread, TcpLimits};

use super::notes;
use super::plan::{BUILD_PROFILE, Plan};
use super::requirement::{Verdict, beaten, rate, too_short};
use crate::failure::CommandFailure;
use crate::output::{Colour, Output};
use crate::values::{Size, Time};
use crate::wrapped::{columns, wrapped};

/// The object of `--json`, one for each size. A figure is `median`, `min`, `max`, and `count` of rounds.
#[derive(Serialize)]
struct Measured<'a> {
    operation: &'static str,
    /// Null for those that move no data.
    size: Option<usize>,
    depth: usize,
    connections: usize,
    /// Cores of the clients, the server's last.
    cores: &'a [usize],
    nodes: &'a [u32],
    poll: String,
    /// Null for a server of our own.
    url: Option<String>,
    touch: bool,
    pages: &'a str,
    /// Cargo's profile that built this program: `dist` is the fastest.
    build: &'a str,
    notes: Vec<String>,
    findings: Vec<Found<'a>>,
    inline_threshold_call: u32,
    inline_threshold_reply: u32,
    credits_granted: u32,
    calls: u64,
    calls_per_second: Spread,
    bytes_per_second: Spread,
    /// Null if no round had a Call.
    latency_ns: Option<Latency>,
    /// What else ran on the machine; the figures are of no use if `disturbed`.
    disturbed: bool,
    disturbance: &'a stag_bench::Disturbance,
    /// Rounds without Calls.
    rounds_empty: usize,
    client_copied_bytes_per_call: f64,
    /// Null of a server that is not our own.
    server_copied_bytes_per_call: Option<f64>,
    /// Null on one core.
    limits: Option<&'a MachineLimits>,
    ratios: Option<&'a Ratios>,
    /// `shm`, `iwarp`, `verbs`.
    fabric: stag_bench::MeasuredFabric,
    /// Null but over verbs.
    device: Option<&'a DeviceFacts>,
    /// Null but over iwarp.
    crc: Option<bool>,
    /// Null but over iwarp.
    congestion_control: Option<&'a str>,
    /// Null but over iwarp, and on one core.
    tcp_limits: Option<&'a TcpLimits>,
    tcp_ratios: Option<&'a TcpRatios>,
    /// Null but over verbs with a server of our own, and on one core.
    bare_limits: Option<&'a BareLimits>,
    bare_ratios: Option<&'a BareRatios>,
    /// Buffers that our own server did not get back.
    leaked: usize,
    /// Replies that the client read of the server's memory, and those in its own Reply chunk, for each Call; null but of `reply`.
    replies_pulled_per_call: Option<f64>,
    reply_chunks_per_call: Option<f64>,
    /// Round trips of a Call: 1, and 1 more for each Reply that is read; null but of `reply`.
    round_trips: Option<f64>,
    /// Entries that a READDIRPLUS returned; null but of `readdirplus`.
    entries_per_call: Option<f64>,
    requirements: &'a [Verdict],
}

/// Something that spoils the measurement.
#[derive(Serialize)]
struct Found<'a> {
    what: &'a str,
    found: &'a str,
    why: &'a str,
    repair: &'a str,
}

impl<'a> From<&'a Finding> for Found<'a> {
    fn from(finding: &'a Finding) -> Found<'a> {
        Found { what: finding.what, found: &finding.found, why: finding.why, repair: &finding.repair }
    }
}

/// Says what was chosen.
pub(super) fn chosen(plan: &Plan, out: &mut Output) -> Result<(), CommandFailure> {
    let scenario = &plan.scenarios[0];
    let list = |numbers: Vec<String>| numbers.join(",");
    let clients = list(scenario.client_cores().iter().map(usize::to_string).collect());
    let nodes = list(plan.nodes.iter().map(u32::to_string).collect());
    let server = match &plan.url {
        Some(url) => format!("server {url} (limits with core {})", scenario.server_core()),
        None => format!("server core {}", scenario.server_core()),
    };
    out.line(format_args!("cores      client {clients}, {server}; NUMA node {nodes}; polls: {}", plan.poll))?;
    let (depth, connections, repeat) = (scenario.depth, scenario.connections, scenario.repeat);
    let length = match scenario.count {
        Some(count) => format!("{count} Calls"),
        None => Time(scenario.duration).to_string(),
    };
    let touch = if scenario.touch { ", the reader reads every line" } else { "" };
    out.line(format_args!(
        "load       {}, depth {depth}, connections {connections}{touch}; {repeat} rounds of {length}",
        plan.operation()
    ))?;
    for note in &plan.notes {
        out.line(warning(note))?;
    }
    for finding in &plan.findings {
        out.line(warning(finding))?;
    }
    out.flush()
}

/// Says what was found for one size.
pub(super) fn measured(
    plan: &Plan,
    index: usize,
    figures: &Figures,
    requirements: &[Verdict],
    out: &mut Output,
) -> Result<(), CommandFailure> {
    out.object(&object(plan, index, figures, requirements))?;
    let is_table = plan.scenarios.len() > 1;
    if index == 0 {
        engine(figures, out)?;
        heading(out)?;
    }
    row(plan, figures, out)?;
    if is_table {
        if index + 1 == plan.scenarios.len() {
            limits(plan, figures, true, out)?;
        }
    } else {
        limits(plan, figures, false, out)?;
    }
    for verdict in requirements {
        let colour = if verdict.met == Some(true) { Colour::Green } else { Colour::Red };
        out.line(format_args!("{} {verdict}", colour.of(&format!("{:<12}", verdict.word()))))?;
    }
    out.flush()
}

fn object<'a>(
    plan: &'a Plan,
    index: usize,
    figures: &'a Figures,
    requirements: &'a [Verdict],
) -> Measured<'a> {
    let scenario = &plan.scenarios[index];
    let is_measured = figures.latency_ns.is_some();
    let is_reply = scenario.operation == stag_bench::MeasuredOperation::Reply;
    Measured {
        operation: plan.operation(),
        size: scenario.operation.has_size().then_some(scenario.size),
        depth: scenario.depth,
        connections: scenario.connections,
        cores: &plan.cores,
        nodes: &plan.nodes,
        poll: plan.poll.to_string(),
        url: plan.url.as_ref().map(ToString::to_string),
        touch: scenario.touch,
        pages: &figures.pages,
        build: BUILD_PROFILE,
        notes: plan
            .notes
            .iter()
            .cloned()
            .chain(notes::merged(&figures.notes))
            .chain(notes::of_depth(figures))
            .collect(),
        findings: plan.findings.iter().map(Found::from).collect(),
        inline_threshold_call: figures.inline_thresholds.0,
        inline_threshold_reply: figures.inline_thresholds.1,
        credits_granted: figures.credits_granted,
        calls: figures.calls,
        calls_per_second: figures.calls_per_second,
        bytes_per_second: figures.bytes_per_second,
        latency_ns: figures.latency_ns,
        disturbed: figures.disturbance.disturbed,
        disturbance: &figures.disturbance,
        rounds_empty: figures.rounds_empty,
        client_copied_bytes_per_call: figures.client_copied_bytes_per_call,
        server_copied_bytes_per_call: figures.server_copied_bytes_per_call,
        limits: figures.limits.as_ref(),
        ratios: figures.ratios.as_ref().filter(|_| is_measured),
        fabric: scenario.fabric,
        device: figures.device.as_ref(),
        crc: (scenario.fabric == stag_bench::MeasuredFabric::Iwarp).then_some(scenario.crc),
        congestion_control: figures.congestion_control.as_deref(),
        tcp_limits: figures.tcp_limits.as_ref(),
        tcp_ratios: figures.tcp_ratios.as_ref().filter(|_| is_measured),
        bare_limits: figures.bare_limits.as_ref(),
        bare_ratios: figures.bare_ratios.as_ref().filter(|_| is_measured),
        leaked: figures.buffers_leaked,
        replies_pulled_per_call: is_reply.then_some(figures.replies_pulled_per_call),
        reply_chunks_per_call: is_reply.then_some(figures.reply_chunks_per_call),
        round_trips: is_reply.then_some(1.0 + figures.replies_pulled_per_call),
        entries_per_call: (scenario.operation == stag_bench::MeasuredOperation::Readdirplus)
            .then_some(figures.entries_per_call),
        requirements,
    }
}

/// What both ends agreed on, and what they stand on.
fn engine(figures: &Figures, out: &mut Output) -> Result<(), CommandFailure> {
    let [calls, replies] =
        [figures.inline_thresholds.0, figures.inline_thresholds.1].map(|octets| Size(octets.into()));
    if let Some(congestion) = &figures.congestion_control {
        let crc = if figures.scenario.crc { "on" } else { "off" };
        out.line(format_args!("fabric     iwarp, CRC {crc}, congestion control {congestion}"))?;
    }
    if let Some(device) = &figures.device {
        out.line(format_args!("fabric     verbs, device {}", device.name))?;
        for note in &device.notes {
            out.line(format_args!("           {note}"))?;
        }
    }
    out.line(format_args!("messages   inline up to {calls} for Calls, {replies} for Replies"))?;
    out.line(format_args!("pages      {}", figures.pages))?;
    for note in notes::merged(&figures.notes) {
        out.line(warning(format_args!("pages: {note}")))?;
    }
    if let Some(note) = notes::of_depth(figures) {
        out.line(warning(note))?;
    }
    out.line("")
}

/// What spoils the figures.
pub(super) fn warning(text: impl std::fmt::Display) -> String {
    wrapped("warning: ", &text.to_string(), columns())
}

fn heading(out: &mut Output) -> Result<(), CommandFailure> {
    out.line(format_args!(
        "{:<9} {:>11} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>11} {:>9}",
        "size", "rate", "±", "GB/s", "p50", "p99", "p99.9", "max", "credits", "copied/Call", "× limit"
    ))
}

fn row(plan: &Plan, figures: &Figures, out: &mut Output) -> Result<(), CommandFailure> {
    let scenario = &figures.scenario;
    let size = if scenario.operation.has_size() {
        Size(scenario.size as u64).to_string()
    } else {
        plan.operation().to_owned()
    };
    let latency = figures.latency_ns.as_ref();
    let [p50, p99, p999, max] = [
        latency.and_then(|latency| latency.p50),
        latency.and_then(|latency| latency.p99),
        latency.and_then(|latency| latency.p999),
        latency.map(|latency| latency.max),
    ]
    .map(|spread| spread.map_or("-".to_owned(), |spread| time(spread).to_string()));
    let bandwidth = match figures.bytes_per_second.median {
        0.0 => "-".to_owned(),
        bytes => format!("{:.2}", bytes / 1e9),
    };
    // Both ends' where both are ours.
    let copied = figures.client_copied_bytes_per_call + figures.server_copied_bytes_per_call.unwrap_or(0.0);
    let ratio = main(figures).filter(|_| figures.latency_ns.is_some());
    let ratio = ratio.map_or("-".to_owned(), |(_, ratio)| format!("{:.2}", ratio.median));
    out.line(format_args!(
        "{size:<9} {:>11} {:>5.0}% {bandwidth:>9} {p50:>9} {p99:>9} {p999:>9} {max:>9} {:>7} {copied:>11.0} {ratio:>9}",
        rate(figures.calls_per_second.median),
        figures.calls_per_second.percent(),
        figures.credits_granted,
    ))?;
    if scenario.operation == stag_bench::MeasuredOperation::Reply {
        let (pulled, chunks) = (figures.replies_pulled_per_call, figures.reply_chunks_per_call);
        out.line(format_args!(
            "           {:.2} round trips a Call: {:.0} % of the Replies read of the server's memory, {:.0} % in a Reply chunk",
            1.0 + pulled,
            100.0 * pulled,
            100.0 * chunks,
        ))?;
    }
    if scenario.operation == stag_bench::MeasuredOperation::Readdirplus {
        let entries = figures.entries_per_call;
        out.line(format_args!(
            "           {entries:.0} entries a Call: {}",
            rate(entries * figures.calls_per_second.median)
        ))?;
    }
    if let Some(problem) = figures.disturbance.describe() {
        out.line(Colour::Red.of(&warning(problem)))?;
    }
    let ratio = main(figures).and_then(|(name, ratio)| Some((name, beaten(name, ratio.median)?)));
    if let (Some((name, problem)), Some(_)) = (ratio, latency) {
        out.line(Colour::Red.of(&warning(format_args!("{name} is not measured: {problem}"))))?;
    }
    match too_short(figures) {
        Some(problem) => out.line(warning(problem)),
        None => Ok(()),
    }
}

/// The limit that counts most for a scenario: its name, and the ratio to it.
fn main(figures: &Figures) -> Option<(&'static str, Spread)> {
    use stag_bench::MeasuredOperation::{Getattr, Null, Read, Write};
    let scenario = &figures.scenario;
    if let Some(tcp) = &figures.tcp_ratios {
        return match scenario.operation {
            Read | Write if tcp.rate_to_tcp.is_none() => Some(("stream", tcp.bytes_to_stream)),
            Null | Getattr if scenario.depth * scenario.connections == 1 => {
                Some(("latency/tcp", tcp.latency_to_tcp))
            }
            _ => tcp.rate_to_tcp.map(|ratio| ("rate/tcp", ratio)),
        };
    }
    if let Some(bare) = &figures.bare_ratios {
        return Some(match (bare.bytes_to_transfer, scenario.depth * scenario.connections) {
            (Some(transfer), _) => ("transfer", transfer),
            (None, 1) => ("latency/bare", bare.latency_to_bare),
            (None, _) => ("rate/bare", bare.rate_to_bare),
        });
    }
    let ratios = figures.ratios.as_ref()?;
    Some(match scenario.operation {
        Read if scenario.touch => ("copy-read", ratios.bytes_to_copy_read),
        Read | Write => ("copy-hot", ratios.bytes_to_copy_hot),
        _ if scenario.depth * scenario.connections == 1 => ("latency/echo", ratios.latency_to_echo),
        _ => ("rate/echo", ratios.rate_to_echo),
    })
}

fn limits(
    plan: &Plan,
    figures: &Figures,
    is_last_of_many: bool,
    out: &mut Output,
) -> Result<(), CommandFailure> {
    if let (Some(limits), Some(ratios)) = (&figures.tcp_limits, &figures.tcp_ratios) {
        return tcp_limits(figures, limits, ratios, is_last_of_many, out);
    }
    if let (Some(limits), Some(ratios)) = (&figures.bare_limits, &figures.bare_ratios) {
        return bare_limits(figures, limits, ratios, is_last_of_many, out);
    }
    if figures.scenario.fabric == stag_bench::MeasuredFabric::Verbs && figures.scenario.server.is_some() {
        return out.line(
            "\nlimits     not measured to another server; ib_send_lat, ib_write_bw and ib_read_bw measure the path to it",
        );
    }
    let (Some(limits), Some(ratios)) = (&figures.limits, &figures.ratios) else {
        return out.line("\nlimits     not measured: they need two cores");
    };
    let copies = matches!(plan.operation(), "read" | "write");
    let depth = limits.echo_depth;
    limits_heading(figures, is_last_of_many, out)?;
    let mut line = |what: &str, limit: String, spread: Spread, ratio: Option<(&str, Spread)>| {
        limit_line(what, &limit, spread, ratio, out)
    };
    let (transfer, echo) = (limits.line_transfer_ns, limits.echo_round_trip_ns);
    line("cache line from core to core", time(transfer).to_string(), transfer, None)?;
    let ratio = ("latency/echo", ratios.latency_to_echo);
    line("echo of 64 B over two rings, depth 1", time(echo).to_string(), echo, Some(ratio))?;
    let echoes = limits.echo_per_second;
    let ratio = ("rate/echo", ratios.rate_to_echo);
    line(&format!("the same, depth {depth}"), rate(echoes.median), echoes, Some(ratio))?;
    let copy = |spread: Spread| format!("{:.2} GB/s", spread.median / 1e9);
    let size = Size(limits.copy_len as u64);
    let ratio = copies.then_some(("copy-hot", ratios.bytes_to_copy_hot));
    line(&format!("memcpy of {size}, target untouched"), copy(limits.copy_hot), limits.copy_hot, ratio)?;
    let ratio = copies.then_some(("copy-read", ratios.bytes_to_copy_read));
    line(&format!("memcpy of {size}, target read since"), copy(limits.copy_read), limits.copy_read, ratio)
}

/// The limits of iWARP: TCP's.
fn tcp_limits(
    figures: &Figures,
    limits: &TcpLimits,
    ratios: &TcpRatios,
    is_last_of_many: bool,
    out: &mut Output,
) -> Result<(), CommandFailure> {
    limits_heading(figures, is_last_of_many, out)?;
    let trip = limits.round_trip_ns;
    let ratio = ("latency/tcp", ratios.latency_to_tcp);
    limit_line("TCP ping-pong of the octets of a NULL", &time(trip).to_string(), trip, Some(ratio), out)?;
    if let (Some(calls), Some(ratio)) = (limits.calls_per_second, ratios.rate_to_tcp) {
        let depth = figures.scenario.depth * figures.scenario.connections;
        let what = format!("TCP of the Calls' octets, batched, depth {depth}");
        limit_line(&what, &rate(calls.median), calls, Some(("rate/tcp", ratio)), out)?;
    }
    let moves = matches!(
        figures.scenario.operation,
        stag_bench::MeasuredOperation::Read | stag_bench::MeasuredOperation::Write
    );
    for (what, stream, crc) in [
        ("TCP stream of 1 MiB messages", limits.stream, false),
        ("the same, CRC32C computed at both ends", limits.stream_crc, true),
    ] {
        let ratio = (moves && crc == figures.scenario.crc).then_some(("stream", ratios.bytes_to_stream));
        limit_line(what, &format!("{:.2} GB/s", stream.median / 1e9), stream, ratio, out)?;
    }
    Ok(())
}

/// The limits of verbs: the same device's without RPC.
fn bare_limits(
    figures: &Figures,
    limits: &BareLimits,
    ratios: &BareRatios,
    is_last_of_many: bool,
    out: &mut Output,
) -> Result<(), CommandFailure> {
    limits_heading(figures, is_last_of_many, out)?;
    let (trip, echoes, depth) = (limits.round_trip_ns, limits.echoes_per_second, limits.echo_depth);
    let ratio = ("latency/bare", ratios.latency_to_bare);
    limit_line("Send of 64 B and one back, depth 1", &time(trip).to_string(), trip, Some(ratio), out)?;
    let ratio = ("rate/bare", ratios.rate_to_bare);
    limit_line(&format!("the same, depth {depth}"), &rate(echoes.median), echoes, Some(ratio), out)?;
    if let Some(transfer) = &limits.transfer {
        let kind = if transfer.is_write { "Write" } else { "Read" };
        let what = format!("RDMA {kind} of {}, depth {}", Size(transfer.len as u64), transfer.depth);
        let moved = transfer.bytes_per_second;
        let ratio = ratios.bytes_to_transfer.map(|ratio| ("transfer", ratio));
        limit_line(&what, &format!("{:.2} GB/s", moved.median / 1e9), moved, ratio, out)?;
    }
    Ok(())
}

fn limits_heading(figures: &Figures, is_last_of_many: bool, out: &mut Output) -> Result<(), CommandFailure> {
    out.line("")?;
    if let (true, Some((name, _))) = (is_last_of_many, main(figures)) {
        out.line(format_args!("× limit is {name}; at the last size:"))?;
    }
    out.line(format_args!(
        "{:<40} {:>12} {:>6}   {:<14} {:>7} {:>6}",
        "limit of these two cores", "", "±", "ratio to it", "", "±"
    ))
}

fn limit_line(
    what: &str,
    limit: &str,
    spread: Spread,
    ratio: Option<(&str, Spread)>,
    out: &mut Output,
) -> Result<(), CommandFailure> {
    let ratio = ratio.map_or(String::new(), |(name, ratio)| match ratio.count {
        0 => format!("   {name:<14} {:>7} {:>6}", "-", "-"),
        _ => format!("   {name:<14} {:>7.2} {:>5.0}%", ratio.median, ratio.percent()),
    });
    out.line(format_args!("{what:<40} {limit:>12} {:>5.0}%{ratio}", spread.percent()))
}

fn time(nanoseconds: Spread) -> Time {
    Time(Duration::from_nanos(nanoseconds.median as u64))
}
