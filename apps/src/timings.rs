//! How long Calls took, by procedure.

use std::time::Duration;

use hdrhistogram::Histogram;
use stag_bench::rounds::is_enough;
use stag_wire::nfs3::Procedure;

/// A histogram for each NFS procedure, in nanoseconds.
#[derive(Clone)]
pub struct Timings {
    histograms: Vec<Histogram<u64>>,
}

/// The figures of one procedure.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Which.
    pub procedure: Procedure,
    /// Calls.
    pub calls: u64,
    /// Half of them were as fast as this. Here and below: `None` if fewer than ten Calls lie beyond.
    pub p50: Option<Duration>,
    /// 99 of 100 were.
    pub p99: Option<Duration>,
    /// 999 of 1000 were.
    pub p999: Option<Duration>,
    /// All were.
    pub max: Duration,
}

/// Longer Calls count as this long.
const LONGEST: Duration = Duration::from_secs(3600);

impl Default for Timings {
    fn default() -> Timings {
        let one = || {
            let bounds = Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, 3);
            let mut histogram = bounds.unwrap_or_else(|error| unreachable!("constant bounds: {error}"));
            histogram.auto(false);
            histogram
        };
        Timings { histograms: (0..Procedure::COUNT).map(|_| one()).collect() }
    }
}

impl Timings {
    /// Counts a Call.
    pub fn record(&mut self, procedure: Procedure, time: Duration) {
        let nanoseconds = time.min(LONGEST).as_nanos() as u64;
        self.histograms[procedure.number() as usize].saturating_record(nanoseconds);
    }

    /// The procedures that were called, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = Timing> + '_ {
        Procedure::ALL.iter().zip(&self.histograms).filter(|(_, histogram)| !histogram.is_empty()).map(
            |(procedure, histogram)| {
                let at = |quantile| {
                    is_enough(histogram.len(), quantile)
                        .then(|| Duration::from_nanos(histogram.value_at_quantile(quantile)))
                };
                Timing {
                    procedure: *procedure,
                    calls: histogram.len(),
                    p50: at(0.5),
                    p99: at(0.99),
                    p999: at(0.999),
                    max: Duration::from_nanos(histogram.max()),
                }
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_what_was_recorded() {
        let mut timings = Timings::default();
        for tenths in 1..=10_000 {
            timings.record(Procedure::Read, Duration::from_nanos(100 * tenths));
        }
        timings.record(Procedure::Write, Duration::from_secs(7200));
        let all: Vec<_> = timings.iter().collect();
        assert_eq!((all.len(), all[0].procedure, all[0].calls), (2, Procedure::Read, 10_000));
        let near = |found: Option<Duration>, micros: f64| {
            found.is_some_and(|found| (found.as_secs_f64() * 1e6 / micros - 1.0).abs() < 0.01)
        };
        assert!(near(all[0].p50, 500.0) && near(all[0].p99, 990.0) && near(all[0].p999, 999.0));
        assert!(near(Some(all[0].max), 1000.0));
        assert!(near(Some(all[1].max), 3.6e9), "longer than an hour counts as an hour");
        assert_eq!((all[1].p50, all[1].p99, all[1].p999), (None, None, None), "of one Call");
    }
}
