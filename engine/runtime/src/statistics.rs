//! How a reactor spent its time.
//!
//! The reactor counts in plain numbers of its own and publishes a copy now and then, so that counting
//! causes no cache traffic with other cores in a pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;

/// Counted since the reactor began to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReactorStatistics {
    /// Time in passes that handled something.
    pub busy: Duration,
    /// Time in passes that found nothing to do.
    pub idle: Duration,
    /// Time asleep, from the last pass before to the first pass after.
    pub asleep: Duration,
    /// Passes over the poller.
    pub passes: u64,
    /// Passes that found nothing to do.
    pub idle_passes: u64,
    /// What the passes handled, as `poll` counts it.
    pub events: u64,
    /// Times that the reactor went to sleep.
    pub sleeps: u64,
    /// Times that it wanted to sleep and found work while it prepared to.
    pub sleeps_refused: u64,
    /// The longest pass that handled something: how long another event may have waited.
    pub pass_max: Duration,
}

impl ReactorStatistics {
    /// Busy time as a share of all time, from 0 to 1.
    #[must_use]
    pub fn utilization(&self) -> f64 {
        let total = self.busy + self.idle + self.asleep;
        if total.is_zero() { 0.0 } else { self.busy.as_secs_f64() / total.as_secs_f64() }
    }
}

/// Reads a reactor's statistics from any thread.
#[derive(Clone, Debug)]
pub struct StatisticsReader {
    published: Arc<Published>,
}

impl StatisticsReader {
    /// What the reactor published last: at most [`PUBLISH_INTERVAL`] old while it runs, and complete
    /// when it sleeps or has ended.
    ///
    /// Each number is right by itself; two of them may be from publications next to each other.
    #[must_use]
    pub fn read(&self) -> ReactorStatistics {
        let number = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let time = |cell: &AtomicU64| Duration::from_nanos(cell.load(Ordering::Relaxed));
        let cells = &*self.published.cells;
        ReactorStatistics {
            busy: time(&cells.busy),
            idle: time(&cells.idle),
            asleep: time(&cells.asleep),
            passes: number(&cells.passes),
            idle_passes: number(&cells.idle_passes),
            events: number(&cells.events),
            sleeps: number(&cells.sleeps),
            sleeps_refused: number(&cells.sleeps_refused),
            pass_max: time(&cells.pass_max),
        }
    }
}

/// How often a running reactor publishes.
pub const PUBLISH_INTERVAL: Duration = Duration::from_millis(1);

/// The copy that others read. All Relaxed: the numbers guard nothing.
#[derive(Debug, Default)]
struct Published {
    cells: CachePadded<Cells>,
}

#[derive(Debug, Default)]
struct Cells {
    busy: AtomicU64,
    idle: AtomicU64,
    asleep: AtomicU64,
    passes: AtomicU64,
    idle_passes: AtomicU64,
    events: AtomicU64,
    sleeps: AtomicU64,
    sleeps_refused: AtomicU64,
    pass_max: AtomicU64,
}

/// What the reactor was doing until a clock reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    /// Nothing yet: the first reading begins the count.
    Starting,
    /// A pass that handled this many events.
    Pass(usize),
    /// Sleep.
    Asleep,
}

/// The reactor's side: attributes the time between two clock readings to what happened in between.
#[derive(Debug)]
pub(crate) struct Ledger {
    statistics: ReactorStatistics,
    activity: Activity,
    /// The last clock reading.
    since: Duration,
    publish_at: Duration,
    published: Arc<Published>,
}

impl Ledger {
    pub(crate) fn new() -> Ledger {
        Ledger {
            statistics: ReactorStatistics::default(),
            activity: Activity::Starting,
            since: Duration::ZERO,
            publish_at: Duration::ZERO,
            published: Arc::default(),
        }
    }

    /// A pass begins: closes the account of what was done until `now`.
    #[inline]
    pub(crate) fn begin(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.since);
        match self.activity {
            Activity::Starting => {}
            Activity::Pass(0) => self.statistics.idle += elapsed,
            Activity::Pass(_) => {
                self.statistics.busy += elapsed;
                self.statistics.pass_max = self.statistics.pass_max.max(elapsed);
            }
            Activity::Asleep => self.statistics.asleep += elapsed,
        }
        self.since = now;
        if now >= self.publish_at {
            self.publish();
            self.publish_at = now + PUBLISH_INTERVAL;
        }
    }

    /// The pass is over.
    #[inline]
    pub(crate) fn end(&mut self, events: usize) {
        self.statistics.passes += 1;
        self.statistics.idle_passes += u64::from(events == 0);
        self.statistics.events += events as u64;
        self.activity = Activity::Pass(events);
    }

    /// The reactor goes to sleep; the time since the last reading counts as sleep.
    pub(crate) fn sleep(&mut self) {
        self.statistics.sleeps += 1;
        self.activity = Activity::Asleep;
        self.publish();
    }

    /// The reactor wanted to sleep, but there is work.
    pub(crate) fn refuse_sleep(&mut self) {
        self.statistics.sleeps_refused += 1;
    }

    pub(crate) fn statistics(&self) -> ReactorStatistics {
        self.statistics
    }

    pub(crate) fn reader(&self) -> StatisticsReader {
        StatisticsReader { published: self.published.clone() }
    }

    pub(crate) fn publish(&self) {
        let number = |cell: &AtomicU64, value| cell.store(value, Ordering::Relaxed);
        // A u64 of nanoseconds lasts 584 years, so the cast cuts nothing off.
        let time = |cell: &AtomicU64, value: Duration| cell.store(value.as_nanos() as u64, Ordering::Relaxed);
        let ReactorStatistics {
            busy,
            idle,
            asleep,
            passes,
            idle_passes,
            events,
            sleeps,
            sleeps_refused,
            pass_max,
        } = self.statistics;
        let cells = &*self.published.cells;
        time(&cells.busy, busy);
        time(&cells.idle, idle);
        time(&cells.asleep, asleep);
        number(&cells.passes, passes);
        number(&cells.idle_passes, idle_passes);
        number(&cells.events, events);
        number(&cells.sleeps, sleeps);
        number(&cells.sleeps_refused, sleeps_refused);
        time(&cells.pass_max, pass_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn time_goes_to_what_the_pass_returned() {
        let mut ledger = Ledger::new();
        ledger.begin(us(100)); // the origin of the clock lies before the reactor's start
        ledger.end(3);
        ledger.begin(us(110));
        ledger.end(0);
        ledger.begin(us(115));
        ledger.end(1);
        ledger.begin(us(117));
        ledger.end(0);
        ledger.sleep();
        ledger.begin(us(917));
        let found = ledger.statistics();
        assert_eq!((found.busy, found.idle, found.asleep), (us(12), us(5), us(800)));
        assert_eq!((found.passes, found.idle_passes, found.events, found.sleeps), (4, 2, 4, 1));
        assert_eq!(found.pass_max, us(10));
    }

    #[test]
    fn a_reader_sees_what_was_published() {
        let mut ledger = Ledger::new();
        let reader = ledger.reader();
        ledger.begin(us(1));
        ledger.end(5);
        assert_eq!(reader.read().events, 0, "not published yet");
        ledger.begin(us(1) + PUBLISH_INTERVAL);
        assert_eq!(reader.read(), ledger.statistics());
        ledger.end(7);
        ledger.sleep();
        assert_eq!(reader.read(), ledger.statistics(), "sleep publishes");
        assert_eq!(reader.read().events, 12);
    }

    #[test]
    fn utilization_is_busy_time_of_all_time() {
        assert_eq!(ReactorStatistics::default().utilization(), 0.0);
        let quarter =
            ReactorStatistics { busy: us(1), idle: us(2), asleep: us(1), ..ReactorStatistics::default() };
        assert_eq!(quarter.utilization(), 0.25);
    }
}
