//! Rounds of limits and load, and their ratios.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;
use serde::Serialize;
use stag_fabric::{Iwarp, Shm, Verbs};
use stag_rpc::Statistics;
use stag_runtime::WallClock;

use crate::cpu::ServerMeter;
use crate::disturbance::{CoreTime, Disturbance};
use crate::limits::bare::BareLimits;
use crate::limits::tcp::TcpLimits;
use crate::limits::{self, MachineLimits};
use crate::load::{self, Measured, Observer};
use crate::opened::{DeviceFacts, Opened};
use crate::pin::pin;
use crate::rounds::{self, CpuFigures, IntervalFigures, OpenLoopFigures, RoundFigures, ShareFigures};
use crate::scenario::{MeasuredFabric, MeasuredOperation, Scenario};
use crate::server::{EXPORT, Served, Server};
use crate::spread::Spread;

/// What a scenario came to. Spreads are over rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// What was measured.
    pub scenario: Scenario,
    /// Calls measured, of all clients and rounds.
    pub calls: u64,
    /// Calls a second, all clients together.
    pub calls_per_second: Spread,
    /// Octets of data a second; 0 for operations that move none.
    pub bytes_per_second: Spread,
    /// Latency in nanoseconds, of the rounds with Calls; `None` if none had any.
    pub latency_ns: Option<Latency>,
    /// Each round.
    pub rounds: Vec<RoundFigures>,
    /// Each interval of each round, if there were some.
    pub intervals: Vec<IntervalFigures>,
    /// Quantiles of the latencies of all rounds, and nanoseconds, as far as ten Calls lie beyond.
    pub distribution: Vec<(f64, f64)>,
    /// Each operation of a mix.
    pub mix: Vec<ShareFigures>,
    /// Of Calls that start by the clock.
    pub open_loop: Option<OpenLoopFigures>,
    /// Processor time of both ends.
    pub cpu: CpuFigures,
    /// Rounds in which no Call ended: they were too short, and have no latencies.
    pub rounds_empty: usize,
    /// The box's limits; one measurement in each round. None when there is only one core: they spin.
    pub limits: Option<MachineLimits>,
    /// The figures as ratios to the limits of the same round.
    pub ratios: Option<Ratios>,
    /// The limits of TCP on these cores, over iWARP.
    pub tcp_limits: Option<TcpLimits>,
    /// The figures as ratios to those of the same round.
    pub tcp_ratios: Option<TcpRatios>,
    /// What the device can do without RPC, over verbs, if both ends are ours.
    pub bare_limits: Option<BareLimits>,
    /// The figures as ratios to those of the same round.
    pub bare_ratios: Option<BareRatios>,
    /// The client's RDMA device, over verbs.
    pub device: Option<DeviceFacts>,
    /// TCP's congestion control algorithm, over iWARP.
    pub congestion_control: Option<String>,
    /// The server's last grant.
    pub credits_granted: u32,
    /// Inline thresholds: of Calls, of Replies.
    pub inline_thresholds: (u32, u32),
    /// Payload octets that the server copied beyond their placement, for each Call, if the server is ours.
    pub server_copied_bytes_per_call: Option<f64>,
    /// The same of the client.
    pub client_copied_bytes_per_call: f64,
    /// Replies that the client read of the server's memory, for each Call: each takes a round trip more.
    pub replies_pulled_per_call: f64,
    /// Replies in a Reply chunk of the client, for each Call.
    pub reply_chunks_per_call: f64,
    /// Entries that READDIRPLUS returned, for each Call.
    pub entries_per_call: f64,
    /// Buffers that the server did not get back. Always 0, or Stag has a bug.
    pub buffers_leaked: usize,
    /// The pages that the client's memory stands on.
    pub pages: String,
    /// What memory of either end stepped down from.
    pub notes: Vec<String>,
    /// What else ran meanwhile.
    pub disturbance: Disturbance,
}

/// Percentiles of the latency. One that too few Calls of a round lie beyond was not measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Half of all Calls are faster.
    pub p50: Option<Spread>,
    /// 99 %.
    pub p99: Option<Spread>,
    /// 99.9 %.
    pub p999: Option<Spread>,
    /// The slowest.
    pub max: Spread,
    /// The mean.
    pub mean: Spread,
}

/// Ratios to the limits of the same round.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ratios {
    /// Median latency to the round trip of a bare 64 B echo: of use at depth 1.
    pub latency_to_echo: Spread,
    /// Calls a second to bare echoes a second at the same depth.
    pub rate_to_echo: Spread,
    /// Octets a second to memcpy with a target that no other core touches.
    pub bytes_to_copy_hot: Spread,
    /// Octets a second to memcpy with a target that the other core reads.
    pub bytes_to_copy_read: Spread,
}

/// Ratios to what TCP alone can do, in the same round.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TcpRatios {
    /// Median latency to the round trip of the same octets: of use at depth 1.
    pub latency_to_tcp: Spread,
    /// Calls a second to those of messages of the same octets, as many outstanding; `None` of large ones.
    pub rate_to_tcp: Option<Spread>,
    /// Octets a second to a stream; if CRCs are used, to one that has the same CRCs computed.
    pub bytes_to_stream: Spread,
}

/// Ratios to what the fabric alone can do, in the same round.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BareRatios {
    /// Median latency to the round trip of a Send and the Send that answers it: of use at depth 1.
    pub latency_to_bare: Spread,
    /// Calls a second to such echoes a second at the same depth.
    pub rate_to_bare: Spread,
    /// Octets a second to those of bare RDMA Writes or Reads of that length; of READ and WRITE.
    pub bytes_to_transfer: Option<Spread>,
}

/// What a measurement tells while it runs.
#[derive(Clone, Copy, Debug)]
pub enum MeasurementProgress<'a> {
    /// A round has ended.
    Round,
    /// An interval has ended.
    Interval(&'a IntervalFigures),
}

/// Who is told.
pub type OnProgress<'a> = dyn FnMut(MeasurementProgress<'_>) + 'a;

/// What was measured beside the load, round by round.
#[derive(Default)]
struct Beside {
    limits: Vec<MachineLimits>,
    tcp: Vec<TcpLimits>,
    bare: Vec<BareLimits>,
}

/// Measures `scenario`. `progress` is called after each round and each interval.
///
/// # Errors
///
/// When a server or client fails.
// Not generic: its engines are compiled here, beside the programs and not with them.
pub fn run(scenario: &Scenario, progress: &mut OnProgress<'_>) -> Result<Figures> {
    match scenario.fabric {
        MeasuredFabric::Shm => run_over::<Shm>(scenario, progress),
        MeasuredFabric::Iwarp => run_over::<Iwarp>(scenario, progress),
        MeasuredFabric::Verbs => run_over::<Verbs>(scenario, progress),
    }
}

fn run_over<P: Opened>(scenario: &Scenario, progress: &mut OnProgress<'_>) -> Result<Figures> {
    let copies = [MeasuredOperation::Read, MeasuredOperation::Write].iter().any(|data| scenario.calls(*data));
    let copy_len = if copies { scenario.size } else { 4096 };
    let cores = [scenario.client_cores()[0], scenario.server_core()];
    let mut beside = Beside::default();
    let (mut rounds, mut intervals) = (Vec::new(), Vec::new());
    let mut summed = Vec::new();
    let mut served: Option<(Statistics, u64)> = None;
    let mut leaked = 0;
    let mut notes = Vec::new();
    let (mut disturbance, begin) = (Disturbance::before(&scenario.cores), CoreTime::of(&scenario.cores));
    // On one core both ends wait for each other.
    let is_apart = !scenario.client_cores().contains(&scenario.server_core());
    for round in 0..scenario.repeat.max(1) {
        if cores[0] != cores[1] {
            match scenario.fabric {
                MeasuredFabric::Shm => beside.limits.push(limits::measure(
                    cores,
                    scenario.depth * scenario.connections,
                    copy_len,
                    1,
                )),
                MeasuredFabric::Iwarp => beside.tcp.push(limits::tcp::measure(cores, scenario)?),
                MeasuredFabric::Verbs if scenario.server.is_none() => {
                    beside.bare.push(limits::bare::measure::<P>(cores, scenario, round)?);
                }
                // The way to another server is not the way from this device to itself.
                MeasuredFabric::Verbs => {}
            }
        }
        let mut tell = |interval: IntervalFigures| {
            progress(MeasurementProgress::Interval(&interval));
            intervals.push(interval);
        };
        let (round, began) = match &scenario.server {
            Some((address, export)) => clients::<P>(scenario, (address, export), round, None, &mut tell)?,
            None => {
                let mut server = Server::start::<P>(scenario, round)?;
                let meter = server.meter.clone();
                let measured = clients::<P>(scenario, (&server.address, EXPORT), round, meter, &mut tell)?;
                let Served { statistics, outstanding, contention } = server.finish()?;
                leaked += outstanding;
                notes = std::mem::take(&mut server.notes);
                served = Some((statistics, statistics.calls_received.max(1)));
                disturbance.add(contention, is_apart);
                measured
            }
        };
        round.iter().for_each(|client| disturbance.add(client.contention, is_apart));
        summed.push(rounds::round_figures(scenario, &round, began));
        rounds.push(round);
        progress(MeasurementProgress::Round);
    }
    disturbance.add_cores(begin, CoreTime::of(&scenario.cores));
    for note in &rounds[rounds.len() - 1][0].notes {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    let distribution = rounds::distribution(&summed);
    let figures = sum_up(scenario, &rounds, &beside, served, leaked);
    Ok(Figures { notes, disturbance, intervals, distribution, rounds: summed, ..figures })
}

/// One round of all client cores, and when it began.
fn clients<P: Opened>(
    scenario: &Scenario,
    (address, export): (&str, &str),
    round: usize,
    server: Option<ServerMeter>,
    told: &mut dyn FnMut(IntervalFigures),
) -> Result<(Vec<Measured>, SystemTime)> {
    let (sender, samples) = mpsc::channel();
    let mut threads = Vec::new();
    let began = SystemTime::UNIX_EPOCH + WallClock::new(Duration::ZERO).at(Duration::ZERO);
    for (number, &core) in scenario.client_cores().iter().enumerate() {
        let (scenario, address, export) = (scenario.clone(), address.to_owned(), export.to_owned());
        let observer = Observer {
            server: server.clone(),
            intervals: scenario.interval.is_some().then(|| sender.clone()),
        };
        threads.push(thread::Builder::new().name("stag-perf-client".into()).spawn(move || {
            pin(core);
            P::separate_descriptors()?;
            load::run::<P>(&scenario, &address, &export, number, &observer)
        })?);
    }
    drop(sender);
    rounds::gather_intervals(scenario, round + 1, &samples, began, told);
    let joined =
        threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("the client panicked"))?);
    Ok((joined.collect::<Result<_>>()?, began))
}

fn sum_up(
    scenario: &Scenario,
    rounds: &[Vec<Measured>],
    Beside { limits: limit_rounds, tcp: tcp_rounds, bare: bare_rounds }: &Beside,
    served: Option<(Statistics, u64)>,
    leaked: usize,
) -> Figures {
    let size = rounds::data_per_call(scenario);
    let rates: Vec<f64> = rounds.iter().map(|round| rounds::rate(round)).collect();
    let latencies: Vec<Histogram<u64>> = rounds.iter().map(|round| rounds::merged(round)).collect();
    let is_measured = |latency: &&Histogram<u64>| !latency.is_empty();
    let rounds_empty = latencies.len() - latencies.iter().filter(is_measured).count();
    let of = |value: &dyn Fn(&Histogram<u64>) -> f64| {
        Spread::of(latencies.iter().filter(is_measured).map(value).collect())
    };
    let percentile = |quantile: f64| {
        let mut measured = latencies.iter().filter(is_measured);
        measured
            .all(|latency| rounds::is_enough(latency.len(), quantile))
            .then(|| of(&|latency| latency.value_at_quantile(quantile) as f64))
    };
    // The median latency of each round that has one, in relation to what a limit of that round was.
    let latency_to = |limit: &dyn Fn(usize) -> f64| {
        let measured = latencies.iter().enumerate().filter(|(_, latency)| !latency.is_empty());
        Spread::of(
            measured.map(|(round, latency)| latency.value_at_quantile(0.5) as f64 / limit(round)).collect(),
        )
    };
    let ratio = |value: &dyn Fn(usize) -> f64| Spread::of((0..rounds.len()).map(value).collect());
    let gather = |value: &dyn Fn(&MachineLimits) -> f64| Spread::of(limit_rounds.iter().map(value).collect());
    let last = &rounds[rounds.len() - 1][0];
    let sent = last.statistics.calls_sent.max(1) as f64;
    Figures {
        scenario: scenario.clone(),
        calls: rounds.iter().flatten().map(|client| client.calls).sum(),
        calls_per_second: Spread::of(rates.clone()),
        bytes_per_second: Spread::of(rates.iter().map(|rate| rate * size).collect()),
        latency_ns: (rounds_empty < rounds.len()).then(|| Latency {
            p50: percentile(0.5),
            p99: percentile(0.99),
            p999: percentile(0.999),
            max: of(&|latency| latency.max() as f64),
            mean: of(&Histogram::mean),
        }),
        rounds: Vec::new(),
        intervals: Vec::new(),
        distribution: Vec::new(),
        mix: rounds::share_figures(scenario, rounds),
        open_loop: rounds::open_loop_figures(scenario, rounds),
        cpu: rounds::cpu_figures(rounds),
        rounds_empty,
        limits: limit_rounds.first().map(|first| MachineLimits {
            line_transfer_ns: gather(&|limits| limits.line_transfer_ns.median),
            echo_round_trip_ns: gather(&|limits| limits.echo_round_trip_ns.median),
            echo_per_second: gather(&|limits| limits.echo_per_second.median),
            copy_hot: gather(&|limits| limits.copy_hot.median),
            copy_read: gather(&|limits| limits.copy_read.median),
            ..first.clone()
        }),
        ratios: limit_rounds.first().map(|_| Ratios {
            latency_to_echo: latency_to(&|round| limit_rounds[round].echo_round_trip_ns.median),
            rate_to_echo: ratio(&|round| rates[round] / limit_rounds[round].echo_per_second.median),
            bytes_to_copy_hot: ratio(&|round| rates[round] * size / limit_rounds[round].copy_hot.median),
            bytes_to_copy_read: ratio(&|round| rates[round] * size / limit_rounds[round].copy_read.median),
        }),
        tcp_limits: tcp_rounds.first().map(|first| TcpLimits {
            round_trip_ns: Spread::of(tcp_rounds.iter().map(|tcp| tcp.round_trip_ns.median).collect()),
            calls_per_second: first
                .calls_per_second
                .map(|_| Spread::of(tcp_rounds.iter().filter_map(calls_over_tcp).collect())),
            stream: Spread::of(tcp_rounds.iter().map(|tcp| tcp.stream.median).collect()),
            stream_crc: Spread::of(tcp_rounds.iter().map(|tcp| tcp.stream_crc.median).collect()),
        }),
        tcp_ratios: tcp_rounds.first().map(|first| TcpRatios {
            latency_to_tcp: latency_to(&|round| tcp_rounds[round].round_trip_ns.median),
            rate_to_tcp: first
                .calls_per_second
                .is_some()
                .then(|| ratio(&|round| rates[round] / calls_over_tcp(&tcp_rounds[round]).unwrap_or(0.0))),
            bytes_to_stream: ratio(&|round| {
                let tcp = &tcp_rounds[round];
                let stream = if scenario.crc { tcp.stream_crc } else { tcp.stream };
                rates[round] * size / stream.median
            }),
        }),
        bare_limits: BareLimits::gather(bare_rounds),
        bare_ratios: bare_rounds.first().map(|first| BareRatios {
            latency_to_bare: latency_to(&|round| bare_rounds[round].round_trip_ns.median),
            rate_to_bare: ratio(&|round| rates[round] / bare_rounds[round].echoes_per_second.median),
            bytes_to_transfer: first.transfer.is_some().then(|| {
                ratio(&|round| {
                    let transfer = bare_rounds[round].transfer.as_ref();
                    rates[round] * size / transfer.map_or(0.0, |transfer| transfer.bytes_per_second.median)
                })
            }),
        }),
        device: last.device.clone(),
        congestion_control: last.congestion_control.clone(),
        credits_granted: last.credits_granted,
        inline_thresholds: last.thresholds,
        server_copied_bytes_per_call: served
            .map(|(statistics, calls)| statistics.copied_bytes as f64 / calls as f64),
        client_copied_bytes_per_call: last.statistics.copied_bytes as f64 / sent,
        replies_pulled_per_call: last.statistics.replies_pulled as f64 / sent,
        reply_chunks_per_call: last.statistics.reply_chunks as f64 / sent,
        entries_per_call: last.entries_per_call,
        buffers_leaked: leaked,
        pages: last.pages.clone(),
        notes: Vec::new(),
        disturbance: Disturbance::default(),
    }
}

/// Calls a second of batched TCP in one round.
fn calls_over_tcp(limits: &TcpLimits) -> Option<f64> {
    limits.calls_per_second.map(|rate| rate.median)
}
