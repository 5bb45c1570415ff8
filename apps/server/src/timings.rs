//! How long Calls took, by procedure.

use std::time::Duration;

use hdrhistogram::Histogram;
use stag_wire::nfs3::Procedure;

/// A histogram for each NFS procedure, in nanoseconds.
#[derive(Clone)]
pub struct Timings {
    histograms: Vec<Histogram<u64>>,
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

    /// The procedures that were called and how long their Calls took, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (Procedure, &Histogram<u64>)> {
        let all = Procedure::ALL.iter().copied().zip(&self.histograms);
        all.filter(|(_, histogram)| !histogram.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_than_an_hour_counts_as_an_hour() {
        let mut timings = Timings::default();
        timings.record(Procedure::Read, Duration::from_nanos(1500));
        timings.record(Procedure::Write, Duration::from_secs(7200));
        let all: Vec<_> = timings.iter().collect();
        let procedures: Vec<_> =
            all.iter().map(|(procedure, histogram)| (*procedure, histogram.len())).collect();
        assert_eq!(procedures, [(Procedure::Read, 1), (Procedure::Write, 1)]);
        let hour = LONGEST.as_nanos() as f64;
        assert!((all[1].1.max() as f64 / hour - 1.0).abs() < 0.01);
    }
}
