//! The object of `--json`, one for each point of a table.

use serde::Serialize;
use stag_bench::opened::DeviceFacts;
use stag_bench::rounds::{CpuFigures, IntervalFigures, OpenLoopFigures, RoundFigures, ShareFigures};
use stag_bench::run::{BareRatios, Latency, Ratios, TcpRatios};
use stag_bench::{BareLimits, Figures, MachineLimits, Offsets, Spread, TcpLimits};
use stag_runtime::environment::Finding;

use super::environment::{FigureEnvironment, RunEnvironment};
use super::notes;
use super::plan::{BUILD_PROFILE, Plan};
use super::requirement::Verdict;

/// The version of [`Measured`].
const SCHEMA: u32 = 1;

/// The object of `--json`, one for each size. A figure is `median`, `min`, `max`, and `count` of rounds.
#[derive(Serialize)]
pub(super) struct Measured<'a> {
    /// Of these objects: it changes when a field goes or means something else.
    schema: u32,
    environment: FigureEnvironment<'a>,
    operation: &'static str,
    /// Null for those that move no data.
    size: Option<usize>,
    /// Calls outstanding of each connection, at most with a rate.
    depth: usize,
    connections: usize,
    /// Seconds that a round measures at most, and that it runs before.
    duration_s: f64,
    warm_up_s: f64,
    /// Octets of all files; null for those that have none.
    working_set: Option<usize>,
    files: Option<usize>,
    offsets: Option<Offsets>,
    /// Null in closed loop.
    open_loop: Option<&'a OpenLoopFigures>,
    /// Each operation of `mix`; null of the others.
    mix: Option<&'a [ShareFigures]>,
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
    /// Quantiles and nanoseconds of all rounds together, as far as ten Calls lie beyond.
    latency_distribution: &'a [(f64, f64)],
    rounds: &'a [RoundFigures],
    /// Null without `--interval`.
    intervals: Option<&'a [IntervalFigures]>,
    cpu: &'a CpuFigures,
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

/// What was found at one point.
pub(super) fn object<'a>(
    plan: &'a Plan,
    index: usize,
    figures: &'a Figures,
    requirements: &'a [Verdict],
    environment: &'a RunEnvironment,
) -> Measured<'a> {
    let scenario = &plan.scenarios[index];
    let is_measured = figures.latency_ns.is_some();
    let is_reply = scenario.operation == stag_bench::MeasuredOperation::Reply;
    let has_files = scenario.operation.has_file();
    let connections = scenario.connections * scenario.client_cores().len();
    Measured {
        schema: SCHEMA,
        environment: environment.with(&figures.disturbance),
        operation: plan.operation(),
        size: scenario.operation.has_size().then_some(scenario.size),
        depth: scenario.depth,
        connections: scenario.connections,
        duration_s: scenario.duration.as_secs_f64(),
        warm_up_s: scenario.warm_up.as_secs_f64(),
        working_set: has_files.then(|| scenario.files_len() * connections),
        files: has_files.then_some(scenario.files),
        offsets: has_files.then_some(scenario.offsets),
        open_loop: figures.open_loop.as_ref(),
        mix: (!figures.mix.is_empty()).then_some(&figures.mix[..]),
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
        latency_distribution: &figures.distribution,
        rounds: &figures.rounds,
        intervals: scenario.interval.is_some().then_some(&figures.intervals[..]),
        cpu: &figures.cpu,
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
