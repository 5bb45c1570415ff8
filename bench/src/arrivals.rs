//! Open loop: when Calls ought to start, whatever became of those before.
//!
//! A closed loop begins a Call when one ended, so a server that stalls is asked less while it stalls, and its worst time is
//! recorded once (coordinated omission). Here the times are fixed beforehand, and latency counts from them.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Exp};
use serde::Serialize;

/// The longest time that a Call may start after its own and still be in time, and the shortest that counts.
const LATENESS: [Duration; 2] = [Duration::from_micros(10), Duration::from_micros(1)];

/// How the starts of Calls are spread over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Spacing {
    /// Independent of each other, as those of many users are: gaps are exponentially distributed.
    #[default]
    Poisson,
    /// All gaps alike.
    Constant,
}

/// Calls that start by the clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Arrivals {
    /// Calls a second, all clients together; more than 0.
    pub rate: f64,
    /// How they are spread.
    pub spacing: Spacing,
}

/// The intended starts of one client's Calls, one after the other.
pub(crate) struct ArrivalClock {
    /// When the next Call ought to start, in nanoseconds since the clock's start.
    next: f64,
    /// The mean gap in nanoseconds.
    gap: f64,
    gaps: Option<(Exp<f64>, SmallRng)>,
    lateness_max: Duration,
}

impl ArrivalClock {
    /// The clock of client `number`, one of `clients`, from `start` on. Constant gaps of several clients interleave. A client has
    /// the same times in each run.
    pub(crate) fn new(
        arrivals: &Arrivals,
        (number, clients): (usize, usize),
        start: Duration,
    ) -> ArrivalClock {
        let gap = 1e9 * clients as f64 / arrivals.rate;
        let gaps = match arrivals.spacing {
            Spacing::Constant => None,
            // A rate of nanoseconds that is positive makes a distribution.
            Spacing::Poisson => {
                Exp::new(1.0 / gap).ok().map(|gaps| (gaps, SmallRng::seed_from_u64(number as u64)))
            }
        };
        let [longest, shortest] = LATENESS;
        let lateness_max = Duration::from_nanos(gap as u64).clamp(shortest, longest);
        let first = start.as_nanos() as f64 + gap * number as f64 / clients as f64;
        let mut clock = ArrivalClock { next: first, gap, gaps, lateness_max };
        if clock.gaps.is_some() {
            clock.take();
        }
        clock
    }

    /// Whether a Call ought to have started by `now`.
    #[inline]
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.next <= now.as_nanos() as f64
    }

    /// The intended start of the next Call, which is taken.
    #[inline]
    pub(crate) fn take(&mut self) -> Duration {
        let due = self.next;
        self.next += match &mut self.gaps {
            None => self.gap,
            Some((gaps, random)) => gaps.sample(random),
        };
        Duration::from_nanos(due as u64)
    }

    /// Whether a Call that ought to have started at `due` starts late at `now`: the next one was due, too, or 10 us went by.
    #[inline]
    pub(crate) fn is_late(&self, due: Duration, now: Duration) -> bool {
        now.saturating_sub(due) > self.lateness_max
    }

    /// How many Calls are due by `now` and were not taken, about.
    pub(crate) fn backlog(&self, now: Duration) -> u64 {
        let behind = now.as_nanos() as f64 - self.next;
        if behind < 0.0 { 0 } else { (behind / self.gap) as u64 + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(rate: f64, spacing: Spacing, client: (usize, usize)) -> ArrivalClock {
        ArrivalClock::new(&Arrivals { rate, spacing }, client, Duration::from_secs(1))
    }

    #[test]
    fn constant_gaps_of_several_clients_interleave() {
        let starts = |number| {
            let mut clock = clock(1e6, Spacing::Constant, (number, 2));
            [(); 3].map(|()| clock.take().as_nanos() as u64 - 1_000_000_000)
        };
        assert_eq!((starts(0), starts(1)), ([0, 2000, 4000], [1000, 3000, 5000]));
    }

    /// Of exponential gaps the standard deviation is the mean, and the counts of equal times are as scattered.
    #[test]
    fn poisson_gaps_have_the_rate_and_the_scatter() {
        let mut clock = clock(1e5, Spacing::Poisson, (0, 1));
        let starts: Vec<f64> = (0..100_000).map(|_| clock.take().as_nanos() as f64).collect();
        let gaps: Vec<f64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean / 1e4 - 1.0).abs() < 0.02, "{mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.02, "{variance}");
        assert!(starts.is_sorted() && starts[0] >= 1e9);
    }

    #[test]
    fn what_was_not_begun_is_counted() {
        let mut clock = clock(1e6, Spacing::Constant, (0, 1));
        let now = Duration::from_secs(1) + Duration::from_micros(10);
        assert_eq!(clock.backlog(now), 11);
        let due = clock.take();
        assert_eq!(clock.backlog(now), 10);
        assert!(clock.is_due(now) && clock.is_late(due, now));
        assert!(!clock.is_late(now, now + Duration::from_micros(1)));
        assert!(!clock.is_due(due));
    }
}
