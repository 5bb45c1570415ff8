//! What single rounds and intervals came to, and what is summed up of them besides rates and percentiles.

use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;
use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::cpu::UsedTime;
use crate::load::{IntervalSample, Measured, Starts};
use crate::scenario::{MeasuredOperation, Scenario};
use crate::spread::Spread;

/// Calls of one round that lie beyond a percentile of it, at least: with fewer it is the time of one or another of them by chance.
const CALLS_BEYOND_MIN: u64 = 10;

/// Whether this number of Calls is enough for this quantile.
#[must_use]
pub fn is_enough(calls: u64, quantile: f64) -> bool {
    // Quantiles of a thousandth are no exact numbers.
    (calls as f64 * (1.0 - quantile) + 1e-6) as u64 >= CALLS_BEYOND_MIN
}

/// A quantile in nanoseconds; `None` if too few Calls lie beyond it.
fn quantile(latency: &Histogram<u64>, quantile: f64) -> Option<f64> {
    is_enough(latency.len(), quantile).then(|| latency.value_at_quantile(quantile) as f64)
}

/// Latencies of one round or interval, in nanoseconds. Percentiles with fewer than ten Calls beyond are `None`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Percentiles {
    /// Half of all Calls are faster.
    pub p50: Option<f64>,
    /// 99 %.
    pub p99: Option<f64>,
    /// 99.9 %.
    pub p999: Option<f64>,
    /// The slowest; `None` without Calls.
    pub max: Option<f64>,
    /// The mean; `None` without Calls.
    pub mean: Option<f64>,
}

impl Percentiles {
    pub(crate) fn of(latency: &Histogram<u64>) -> Percentiles {
        let is_measured = !latency.is_empty();
        Percentiles {
            p50: quantile(latency, 0.5),
            p99: quantile(latency, 0.99),
            p999: quantile(latency, 0.999),
            max: is_measured.then(|| latency.max() as f64),
            mean: is_measured.then(|| latency.mean()),
        }
    }
}

/// What one round came to.
#[derive(Clone, Debug, Serialize)]
pub struct RoundFigures {
    /// Calls measured, of all clients.
    pub calls: u64,
    /// Calls a second.
    pub calls_per_second: f64,
    /// Octets of data a second; 0 for operations that move none.
    pub bytes_per_second: f64,
    /// Latencies.
    pub latency_ns: Percentiles,
    /// Nanoseconds of processor time that the client took for a Call.
    pub client_cpu_ns: Option<f64>,
    /// The same of the server, if it is ours.
    pub server_cpu_ns: Option<f64>,
    /// Calls that started late, in open loop.
    pub late_starts: u64,
    /// All latencies.
    #[serde(skip)]
    pub latency: Histogram<u64>,
    /// When its clients began.
    #[serde(skip)]
    pub began: SystemTime,
    /// How long it measured.
    #[serde(skip)]
    pub took: Duration,
}

/// What one interval of a round came to.
#[derive(Clone, Debug, Serialize)]
pub struct IntervalFigures {
    /// The round, from 1.
    pub round: usize,
    /// When it ended, in seconds since the round began to measure.
    pub at_s: f64,
    /// Calls a second of all clients.
    pub calls_per_second: f64,
    /// Octets of data a second.
    pub bytes_per_second: f64,
    /// Latencies.
    pub latency_ns: Percentiles,
    /// All latencies.
    #[serde(skip)]
    pub latency: Histogram<u64>,
    /// When it began.
    #[serde(skip)]
    pub began: SystemTime,
    /// How long it was.
    #[serde(skip)]
    pub took: Duration,
}

/// Processor time of both ends, over rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CpuFigures {
    /// Nanoseconds on a core of the clients for a Call. A thread that polls uses all of its core's time.
    pub client_ns_per_call: Spread,
    /// Of these, nanoseconds in passes that found something to do.
    pub client_busy_ns_per_call: Spread,
    /// The same of the server; null if it is not ours.
    pub server_ns_per_call: Option<Spread>,
    /// Of these, nanoseconds in passes that found something to do.
    pub server_busy_ns_per_call: Option<Spread>,
}

/// What became of Calls that start by the clock.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OpenLoopFigures {
    /// Calls a second that were wanted.
    pub rate: f64,
    /// How they were spread.
    pub spacing: crate::arrivals::Spacing,
    /// Calls of all rounds that started late: when the next one was due, too, or 10 us after their time.
    pub late_starts: u64,
    /// Calls of all rounds that were due and had not started at the end, about.
    pub never_started: u64,
    /// The longest that a Call started after its time, in nanoseconds.
    pub start_delay_max_ns: f64,
}

/// Latencies of one operation of a mix, of all rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ShareFigures {
    /// What was called.
    pub operation: MeasuredOperation,
    /// Its weight.
    pub weight: u32,
    /// How often it was called.
    pub calls: u64,
    /// Its latencies.
    pub latency_ns: Percentiles,
}

/// All clients' latencies of one round.
pub(crate) fn merged(round: &[Measured]) -> Histogram<u64> {
    let mut sum = round[0].latency.clone();
    for client in &round[1..] {
        // The bounds are the same everywhere, so nothing is lost.
        let _ = sum.add(&client.latency);
    }
    sum
}

/// Calls a second of all clients in one round.
pub(crate) fn rate(round: &[Measured]) -> f64 {
    round.iter().map(|client| client.calls as f64 / client.took.as_secs_f64().max(1e-9)).sum()
}

/// Octets of data of a Call on average.
pub(crate) fn data_per_call(scenario: &Scenario) -> f64 {
    let size = |operation: MeasuredOperation| if operation.has_size() { scenario.size as f64 } else { 0.0 };
    if scenario.mix.is_empty() {
        return size(scenario.operation);
    }
    let weights: u32 = scenario.mix.iter().map(|share| share.weight).sum();
    let octets: f64 = scenario.mix.iter().map(|share| f64::from(share.weight) * size(share.operation)).sum();
    octets / f64::from(weights.max(1))
}

/// Sums up one round.
pub(crate) fn round_figures(scenario: &Scenario, round: &[Measured], began: SystemTime) -> RoundFigures {
    let latency = merged(round);
    let calls: u64 = round.iter().map(|client| client.calls).sum();
    let per_call = |time: Duration| time.as_nanos() as f64 / calls as f64;
    let client: Duration = round.iter().map(|client| client.client.cpu).sum();
    RoundFigures {
        calls,
        calls_per_second: rate(round),
        bytes_per_second: rate(round) * data_per_call(scenario),
        latency_ns: Percentiles::of(&latency),
        client_cpu_ns: (calls > 0).then(|| per_call(client)),
        server_cpu_ns: round[0].server.filter(|_| calls > 0).map(|server| per_call(server.cpu)),
        late_starts: round.iter().map(|client| client.starts.late).sum(),
        latency,
        began,
        took: round[0].took,
    }
}

/// Sums up processor time over the rounds that had Calls.
pub(crate) fn cpu_figures(rounds: &[Vec<Measured>]) -> CpuFigures {
    let spread = |of: &dyn Fn(&[Measured]) -> Option<Duration>| {
        let per_call = rounds.iter().filter_map(|round| {
            let calls: u64 = round.iter().map(|client| client.calls).sum();
            (calls > 0).then(|| Some(of(round)?.as_nanos() as f64 / calls as f64))
        });
        per_call.collect::<Option<Vec<f64>>>().map(Spread::of)
    };
    let clients = |of: fn(&UsedTime) -> Duration| {
        spread(&|round| Some(round.iter().map(|client| of(&client.client)).sum())).unwrap_or_default()
    };
    // The time of each client is about the same, so the first one's look at the server counts.
    let server = |of: fn(&UsedTime) -> Duration| spread(&|round| round[0].server.as_ref().map(of));
    CpuFigures {
        client_ns_per_call: clients(|used| used.cpu),
        client_busy_ns_per_call: clients(|used| used.busy),
        server_ns_per_call: server(|used| used.cpu),
        server_busy_ns_per_call: server(|used| used.busy),
    }
}

/// Sums up the starts of open loop.
pub(crate) fn open_loop_figures(scenario: &Scenario, rounds: &[Vec<Measured>]) -> Option<OpenLoopFigures> {
    let arrivals = scenario.arrivals?;
    let starts: Vec<Starts> = rounds.iter().flatten().map(|client| client.starts).collect();
    Some(OpenLoopFigures {
        rate: arrivals.rate,
        spacing: arrivals.spacing,
        late_starts: starts.iter().map(|starts| starts.late).sum(),
        never_started: starts.iter().map(|starts| starts.never).sum(),
        start_delay_max_ns: starts
            .iter()
            .map(|starts| starts.delay_max.as_nanos() as f64)
            .fold(0.0, f64::max),
    })
}

/// Sums up each operation of a mix.
pub(crate) fn share_figures(scenario: &Scenario, rounds: &[Vec<Measured>]) -> Vec<ShareFigures> {
    let shares = scenario.mix.iter().enumerate().filter_map(|(index, share)| {
        let mut found = rounds.iter().flatten().filter_map(|client| client.shares.get(index));
        let mut sum = found.next()?.clone();
        for other in found {
            let _ = sum.add(other);
        }
        Some(ShareFigures {
            operation: share.operation,
            weight: share.weight,
            calls: sum.len(),
            latency_ns: Percentiles::of(&sum),
        })
    });
    shares.collect()
}

/// The distribution of all latencies: quantiles, and nanoseconds. It ends where fewer than ten Calls are left.
pub(crate) fn distribution(latencies: &[RoundFigures]) -> Vec<(f64, f64)> {
    let Some(first) = latencies.first() else { return Vec::new() };
    let mut sum = first.latency.clone();
    for round in &latencies[1..] {
        let _ = sum.add(&round.latency);
    }
    let steps = sum.iter_quantiles(4).map(|step| (step.quantile(), step.value_iterated_to() as f64));
    let mut points: Vec<_> = steps.take_while(|(quantile, _)| is_enough(sum.len(), *quantile)).collect();
    points.dedup_by(|next, before| next.1 == before.1);
    points
}

/// Passes the intervals of all clients on, each when the last client has told it.
pub(crate) fn gather_intervals(
    scenario: &Scenario,
    round: usize,
    samples: &Receiver<IntervalSample>,
    began: SystemTime,
    told: &mut dyn FnMut(IntervalFigures),
) {
    let clients = scenario.client_cores().len();
    let len = scenario.interval.unwrap_or_default();
    let mut open: BTreeMap<usize, (usize, IntervalSample)> = BTreeMap::new();
    let mut tell = |sample: IntervalSample| {
        let start = len * sample.index as u32;
        let seconds = sample.took.as_secs_f64().max(1e-9);
        let rate = sample.latency.len() as f64 / seconds;
        told(IntervalFigures {
            round,
            at_s: (start + sample.took).as_secs_f64(),
            calls_per_second: rate,
            bytes_per_second: rate * data_per_call(scenario),
            latency_ns: Percentiles::of(&sample.latency),
            latency: sample.latency,
            began: began + scenario.warm_up + start,
            took: sample.took,
        });
    };
    for sample in samples {
        let index = sample.index;
        match open.get_mut(&index) {
            None => drop(open.insert(index, (1, sample))),
            Some((count, sum)) => {
                *count += 1;
                let _ = sum.latency.add(&sample.latency);
                sum.took = sum.took.max(sample.took);
            }
        }
        if open.get(&index).is_some_and(|(count, _)| *count == clients)
            && let Some((_, sum)) = open.remove(&index)
        {
            tell(sum);
        }
    }
    // What not all clients had: the end of the round.
    open.into_values().for_each(|(_, sum)| tell(sum));
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::scenario::MixShare;

    #[test]
    fn a_percentile_wants_ten_calls_beyond_it() {
        for (quantile, least) in [(0.5, 20), (0.99, 1000), (0.999, 10_000)] {
            assert!(is_enough(least, quantile) && !is_enough(least - 1, quantile), "{quantile}");
        }
        let mut few = Histogram::<u64>::new_with_bounds(1, 1_000_000, 3).unwrap();
        (0..500).for_each(|value| few.saturating_record(value));
        let found = Percentiles::of(&few);
        assert!(found.p50.is_some() && found.p99.is_none() && found.max.is_some());
        few.reset();
        assert!(Percentiles::of(&few).max.is_none());
    }

    #[test]
    fn a_mix_moves_the_data_of_its_shares() {
        let share = |operation, weight| MixShare { operation, weight };
        let mix = vec![
            share(MeasuredOperation::Read, 70),
            share(MeasuredOperation::Write, 20),
            share(MeasuredOperation::Getattr, 10),
        ];
        let scenario = Scenario { operation: MeasuredOperation::Mix, mix, size: 1000, ..Scenario::default() };
        assert!((data_per_call(&scenario) - 900.0).abs() < 1e-9);
        assert_eq!(data_per_call(&Scenario { size: 1000, ..Scenario::default() }), 0.0);
    }

    #[test]
    fn an_interval_is_told_when_all_clients_have_told_theirs() {
        let scenario =
            Scenario { cores: vec![0, 1, 2], interval: Some(Duration::from_secs(1)), ..Scenario::default() };
        let (sender, samples) = mpsc::channel();
        let sample = |index, calls| {
            let mut latency = Histogram::new_with_bounds(1, 1_000_000, 3).unwrap();
            (0..calls).for_each(|value| latency.saturating_record(100 + value));
            IntervalSample { index, took: Duration::from_secs(1), latency }
        };
        for (index, calls) in [(0, 10), (1, 20), (0, 30), (1, 40), (2, 5)] {
            sender.send(sample(index, calls)).unwrap();
        }
        drop(sender);
        let mut found = Vec::new();
        gather_intervals(&scenario, 1, &samples, SystemTime::UNIX_EPOCH, &mut |interval| {
            found.push((interval.at_s, interval.calls_per_second));
        });
        assert_eq!(found, [(1.0, 40.0), (2.0, 60.0), (3.0, 5.0)]);
    }
}
