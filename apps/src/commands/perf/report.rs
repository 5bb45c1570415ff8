//! Prints the choices before the first round, and the results after each size.

use std::time::Duration;

use stag_bench::rounds::{IntervalFigures, Percentiles};
use stag_bench::run::{BareRatios, TcpRatios};
use stag_bench::{BareLimits, Figures, Scenario, Spread, TcpLimits};
use stag_server::failure::CommandFailure;
use stag_server::output::{Colour, Output};
use stag_server::values::{Size, Time};
use stag_server::wrapped::{columns, wrapped};

use super::curve::Along;
use super::plan::Plan;
use super::requirement::{Verdict, beaten, rate, too_short};
use super::{load, notes};

/// Columns of a report at most: those of the usual terminal.
const REPORT_COLUMNS: usize = 80;

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
    let most = &plan.scenarios[plan.scenarios.len() - 1];
    let depth =
        if plan.along == Along::Depth { format!("{depth} to {}", most.depth) } else { depth.to_string() };
    let touch = if scenario.touch { ", the reader reads every line" } else { "" };
    let what = match &scenario.mix[..] {
        [] => plan.operation().to_owned(),
        shares => {
            let parts = shares.iter().map(|share| format!("{} {}", share.operation.name(), share.weight));
            format!("mix of {}", parts.collect::<Vec<_>>().join(", "))
        }
    };
    let load =
        format!("{what}, depth {depth}, connections {connections}{touch}; {repeat} rounds of {length}");
    out.line(wrapped("load       ", &load, REPORT_COLUMNS))?;
    if let Some(arrivals) = most.arrivals {
        let spacing = match arrivals.spacing {
            stag_bench::Spacing::Poisson => "poisson",
            stag_bench::Spacing::Constant => "constant gaps",
        };
        out.line(format_args!(
            "arrivals   open loop, up to {} ({spacing}); latency from the intended start",
            rate(arrivals.rate)
        ))?;
    }
    if let Some(data) = load::data(scenario) {
        out.line(wrapped("data       ", &data, REPORT_COLUMNS))?;
    }
    for note in &plan.notes {
        out.line(warning(note))?;
    }
    for finding in &plan.findings {
        out.line(warning(finding))?;
    }
    out.flush()
}

/// Says what was found at one point. `is_any_disturbed`: this one, or one before.
pub(super) fn measured(
    plan: &Plan,
    index: usize,
    figures: &Figures,
    requirements: &[Verdict],
    is_any_disturbed: bool,
    out: &mut Output,
) -> Result<(), CommandFailure> {
    let is_table = plan.scenarios.len() > 1;
    if index == 0 {
        engine(figures, out)?;
        heading(plan, out)?;
    }
    row(plan, figures, out)?;
    if !is_table {
        below(figures, out)?;
    }
    if is_table {
        if index + 1 == plan.scenarios.len() {
            if is_any_disturbed {
                out.line(
                    Colour::Red
                        .of(&warning("!: other programs ran on these cores; this row is not measured")),
                )?;
            }
            limits(plan, figures, true, out)?;
        }
    } else {
        limits(plan, figures, false, out)?;
    }
    for verdict in requirements {
        let colour = if verdict.met == Some(true) { Colour::Green } else { Colour::Red };
        let word = verdict.word();
        let line = wrapped(&format!("{word:<12} "), &verdict.to_string(), columns());
        out.line(line.replacen(word, &colour.of(word), 1))?;
    }
    out.flush()
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

/// One interval of a round.
pub(super) fn interval(
    scenario: &Scenario,
    interval: &IntervalFigures,
    out: &mut Output,
) -> Result<(), CommandFailure> {
    let [p50, p99, _, max] = percentiles(&interval.latency_ns);
    let bandwidth = bandwidth(interval.bytes_per_second);
    let line = format!(
        "{:>7.3} s {:>9} {bandwidth:>5} GB/s p50 {p50:>8} p99 {p99:>8} max {max:>8}",
        interval.at_s,
        rate(interval.calls_per_second),
    );
    out.line(wrapped(&format!("round {}/{} ", interval.round, scenario.repeat), &line, columns()))?;
    out.flush()
}

/// p50, p99, p99.9 and the maximum.
fn percentiles(latency: &Percentiles) -> [String; 4] {
    let time = |found: Option<f64>| found.map_or("-".to_owned(), |found| nanoseconds(found).to_string());
    [latency.p50, latency.p99, latency.p999, latency.max].map(time)
}

fn bandwidth(bytes_per_second: f64) -> String {
    if bytes_per_second == 0.0 { "-".to_owned() } else { format!("{:.2}", bytes_per_second / 1e9) }
}

fn heading(plan: &Plan, out: &mut Output) -> Result<(), CommandFailure> {
    out.line(format_args!(
        "{:<11} {:>10} {:>4} {:>6} {:>8} {:>8} {:>8} {:>8} {:>7}",
        plan.along.heading(),
        "rate",
        "±",
        "GB/s",
        "p50",
        "p99",
        "p99.9",
        "max",
        "× limit"
    ))
}

fn row(plan: &Plan, figures: &Figures, out: &mut Output) -> Result<(), CommandFailure> {
    let scenario = &figures.scenario;
    let point = plan.along.label(scenario).unwrap_or_else(|| match scenario.operation.has_size() {
        true => Size(scenario.size as u64).to_string(),
        false => plan.operation().to_owned(),
    });
    let latency = figures.latency_ns.as_ref();
    let [p50, p99, p999, max] = [
        latency.and_then(|latency| latency.p50),
        latency.and_then(|latency| latency.p99),
        latency.and_then(|latency| latency.p999),
        latency.map(|latency| latency.max),
    ]
    .map(|spread| spread.map_or("-".to_owned(), |spread| time(spread).to_string()));
    let bandwidth = bandwidth(figures.bytes_per_second.median);
    let ratio = main(figures).filter(|_| figures.latency_ns.is_some());
    let ratio = ratio.map_or("-".to_owned(), |(_, ratio)| factor(ratio.median));
    let mark = if plan.along != Along::Nothing && figures.disturbance.disturbed { "!" } else { "" };
    out.line(format_args!(
        "{point:<11} {:>10} {:>3.0}% {bandwidth:>6} {p50:>8} {p99:>8} {p999:>8} {max:>8} {ratio:>7}{mark}",
        rate(figures.calls_per_second.median),
        figures.calls_per_second.percent(),
    ))?;
    let is_table = plan.along != Along::Nothing;
    for share in &figures.mix {
        let [p50, p99, p999, max] = percentiles(&share.latency_ns);
        let part = 100.0 * share.calls as f64 / figures.calls.max(1) as f64;
        out.line(format_args!(
            "  {:<9} {part:>9.1}% {:>4} {:>6} {p50:>8} {p99:>8} {p999:>8} {max:>8}",
            share.operation.name(),
            "",
            ""
        ))?;
    }
    if scenario.operation == stag_bench::MeasuredOperation::Reply {
        let (pulled, chunks) = (figures.replies_pulled_per_call, figures.reply_chunks_per_call);
        out.line(format_args!(
            "           {:.2} round trips a Call: {:.0} % of the Replies read of the server's\n           \
             memory, {:.0} % in a Reply chunk",
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
    if let Some(open) = &figures.open_loop {
        starts(figures, open, out)?;
    }
    if let Some(problem) = figures.disturbance.describe().filter(|_| !is_table) {
        out.line(Colour::Red.of(&warning(problem)))?;
    }
    let ratio = main(figures)
        .filter(|_| !is_table)
        .and_then(|(name, ratio)| Some((name, beaten(name, ratio.median)?)));
    if let (Some((name, problem)), Some(_)) = (ratio, latency) {
        out.line(Colour::Red.of(&warning(format_args!("{name} is not measured: {problem}"))))?;
    }
    match too_short(figures) {
        Some(problem) => out.line(warning(problem)),
        None => Ok(()),
    }
}

/// What became of Calls that start by the clock, if not all were in time.
fn starts(
    figures: &Figures,
    open: &stag_bench::rounds::OpenLoopFigures,
    out: &mut Output,
) -> Result<(), CommandFailure> {
    let share = 100.0 * open.late_starts as f64 / figures.calls.max(1) as f64;
    if open.late_starts > 0 {
        out.line(format_args!(
            "           {} Calls ({share:.1} %) started late, up to {}; {} never did",
            open.late_starts,
            nanoseconds(open.start_delay_max_ns),
            open.never_started
        ))?;
    }
    // Of a Poisson process of n starts, the count scatters by its root.
    let scatter = 4.0 / (open.rate * figures.scenario.duration.as_secs_f64()).max(1.0).sqrt();
    if figures.scenario.count.is_none() && figures.calls_per_second.median < open.rate * (0.98 - scatter) {
        out.line(warning(format_args!(
            "{} asked for, {} done: latencies are those of a queue that grows for as long as a round lasts",
            rate(open.rate),
            rate(figures.calls_per_second.median)
        )))?;
    }
    Ok(())
}

/// What a Call costs, below the row of a single point.
fn below(figures: &Figures, out: &mut Output) -> Result<(), CommandFailure> {
    // Both ends' where both are ours.
    let copied = figures.client_copied_bytes_per_call + figures.server_copied_bytes_per_call.unwrap_or(0.0);
    let cpu = &figures.cpu;
    let end = |name: &str, all: Spread, busy: Spread| {
        format!("{name} {} (busy {})", nanoseconds(all.median), nanoseconds(busy.median))
    };
    let mut ends = vec![end("client", cpu.client_ns_per_call, cpu.client_busy_ns_per_call)];
    ends.extend(
        cpu.server_ns_per_call.zip(cpu.server_busy_ns_per_call).map(|(all, busy)| end("server", all, busy)),
    );
    if figures.latency_ns.is_some() {
        out.line(format_args!("CPU a Call {}", ends.join(", ")))?;
    }
    out.line(format_args!(
        "           {} credits granted, {copied:.0} octets copied a Call",
        figures.credits_granted
    ))
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
            "\nlimits     not measured to another server; ib_send_lat, ib_write_bw and\n           \
             ib_read_bw measure the path to it",
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
    limit_line("TCP ping-pong of a NULL's octets", &time(trip).to_string(), trip, Some(ratio), out)?;
    if let (Some(calls), Some(ratio)) = (limits.calls_per_second, ratios.rate_to_tcp) {
        let depth = figures.scenario.depth * figures.scenario.connections;
        let what = format!("batched TCP of the Calls, depth {depth}");
        limit_line(&what, &rate(calls.median), calls, Some(("rate/tcp", ratio)), out)?;
    }
    let moves = matches!(
        figures.scenario.operation,
        stag_bench::MeasuredOperation::Read | stag_bench::MeasuredOperation::Write
    );
    for (what, stream, crc) in [
        ("TCP stream of 1 MiB messages", limits.stream, false),
        ("the same, CRC32C at both ends", limits.stream_crc, true),
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
        "{:<36} {:>10} {:>5}  {:<12} {:>6} {:>5}",
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
        0 => format!("  {name:<12} {:>6} {:>5}", "-", "-"),
        _ => format!("  {name:<12} {:>6} {:>4.0}%", factor(ratio.median), ratio.percent()),
    });
    out.line(format_args!("{what:<36} {limit:>10} {:>4.0}%{ratio}", spread.percent()))
}

/// A ratio; its hundredths count where it is small.
fn factor(ratio: f64) -> String {
    if ratio < 100.0 { format!("{ratio:.2}") } else { format!("{ratio:.0}") }
}

fn time(found: Spread) -> Time {
    nanoseconds(found.median)
}

fn nanoseconds(found: f64) -> Time {
    Time(Duration::from_nanos(found as u64))
}
