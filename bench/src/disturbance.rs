//! What else ran on the machine during a measurement, as far as it tells: without permissions, and without a cost while Calls are measured.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde::Serialize;

/// Part of the time in which a thread was ready to run and waited for its core, and part of the cores' time that a hypervisor
/// took: with more, figures are those of the other programs as well.
const WAITED_MAX: f64 = 0.02;
const STEAL_MAX: f64 = 0.01;

/// How long the cores are looked at before the measurement.
const LOOK_TIME: Duration = Duration::from_millis(100);

/// What a thread had to wait for its core, since it began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Contention {
    /// Nanoseconds on a core.
    ran: u64,
    /// Nanoseconds in which it was ready and did not run.
    waited: u64,
    /// Times that it was taken off its core.
    switches: u64,
}

impl Contention {
    /// Of the calling thread.
    pub(crate) fn of_this_thread() -> Contention {
        let read =
            |name: &str| fs::read_to_string(Path::new("/proc/thread-self").join(name)).unwrap_or_default();
        Contention::parse(&read("schedstat"), &read("status"))
    }

    fn parse(schedstat: &str, status: &str) -> Contention {
        let mut numbers = schedstat.split_ascii_whitespace().map_while(|number| number.parse().ok());
        let switches = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
        Contention {
            ran: numbers.next().unwrap_or(0),
            waited: numbers.next().unwrap_or(0),
            switches: switches.and_then(|number| number.trim().parse().ok()).unwrap_or(0),
        }
    }

    /// Part of the time in which it wanted to run.
    fn waited_share(&self) -> f64 {
        self.waited as f64 / (self.ran + self.waited).max(1) as f64
    }
}

/// Time of some cores, in the kernel's ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CoreTime {
    total: u64,
    stolen: u64,
    /// Neither idle nor stolen.
    used: u64,
}

impl CoreTime {
    /// Of these cores, so far.
    pub(crate) fn of(cores: &[usize]) -> CoreTime {
        CoreTime::parse(&fs::read_to_string("/proc/stat").unwrap_or_default(), cores)
    }

    fn parse(stat: &str, cores: &[usize]) -> CoreTime {
        let mut sum = CoreTime::default();
        for line in stat.lines() {
            // "cpu3 user nice system idle iowait irq softirq steal guest guest_nice"; guests' time is in user and nice, too.
            let mut words = line.split_ascii_whitespace();
            let core = words.next().and_then(|name| name.strip_prefix("cpu")?.parse().ok());
            if core.is_some_and(|core: usize| cores.contains(&core)) {
                let ticks: Vec<u64> = words.take(8).map_while(|number| number.parse().ok()).collect();
                let tick = |index: usize| ticks.get(index).copied().unwrap_or(0);
                let total = ticks.iter().sum::<u64>();
                sum.total += total;
                sum.stolen += tick(7);
                sum.used += total - tick(3) - tick(4) - tick(7);
            }
        }
        sum
    }

    /// Parts of the time from `begin` to this: stolen, and used.
    fn shares_since(&self, begin: &CoreTime) -> (f64, f64) {
        let since = |of: fn(&CoreTime) -> u64| of(self).saturating_sub(of(begin)) as f64;
        let total = since(|time| time.total).max(1.0);
        (since(|time| time.stolen) / total, since(|time| time.used) / total)
    }
}

/// Threads that ran or were ready to, as a mean of the last minute; `None` if the machine does not say.
fn load_average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_ascii_whitespace().next()?.parse().ok()
}

/// What else ran on the machine during a measurement.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Disturbance {
    /// Threads that ran or were ready to, as a mean of the minute before; null if the machine does not say.
    pub load_average: Option<f64>,
    /// The same at the end: those that measure are among them.
    pub load_average_end: Option<f64>,
    /// Part of the cores' time that a hypervisor took in the tenth of a second before.
    pub steal_before: f64,
    /// Part of it in which something ran there.
    pub busy_before: f64,
    /// Part of the cores' time that a hypervisor took.
    pub steal: f64,
    /// Part of the time in which a thread of either end was ready to run, and waited for its core; the largest of all threads.
    pub waited: f64,
    /// Times that a thread of either end was taken off its core.
    pub involuntary_switches: u64,
    /// The figures are not those of an undisturbed machine.
    pub disturbed: bool,
}

impl Disturbance {
    /// Looks at these cores for a tenth of a second, before the measurement.
    pub(crate) fn before(cores: &[usize]) -> Disturbance {
        let (load_average, begin) = (load_average(), CoreTime::of(cores));
        thread::sleep(LOOK_TIME);
        let (steal_before, busy_before) = CoreTime::of(cores).shares_since(&begin);
        Disturbance { load_average, steal_before, busy_before, ..Disturbance::default() }
    }

    /// Adds a thread; whether it has its core for itself is said: otherwise the other end is what it waits for.
    pub(crate) fn add(&mut self, thread: Contention, is_alone: bool) {
        self.involuntary_switches += thread.switches;
        self.waited = self.waited.max(thread.waited_share());
        self.disturbed |= is_alone && thread.waited_share() > WAITED_MAX;
    }

    /// Adds the time of the cores from `begin` to `end`, when the measurement is over.
    pub(crate) fn add_cores(&mut self, begin: CoreTime, end: CoreTime) {
        self.load_average_end = load_average();
        self.steal = end.shares_since(&begin).0;
        self.disturbed |= self.steal > STEAL_MAX;
    }

    /// What disturbed the measurement, in words; `None` if nothing did.
    #[must_use]
    pub fn describe(&self) -> Option<String> {
        let load = self.load_average.map_or(String::new(), |load| format!(", load average {load:.1} before"));
        self.disturbed.then(|| {
            format!(
                "other programs ran on these cores: threads waited {:.0} % of their time for a core, {} involuntary \
                 switches, steal {:.0} %{load}; stop them, or choose other --cores",
                100.0 * self.waited,
                self.involuntary_switches,
                100.0 * self.steal,
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_for_its_core_is_disturbed() {
        for (schedstat, is_alone, is_disturbed) in [
            ("1000000000 1000000 50", true, false),
            ("1000000000 500000000 50", true, true),
            ("1000000000 500000000 50", false, false),
            ("", true, false),
        ] {
            let mut found = Disturbance::default();
            let status = "Name:\tperf\nvoluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t7\n";
            found.add(Contention::parse(schedstat, status), is_alone);
            assert_eq!((found.disturbed, found.involuntary_switches), (is_disturbed, 7), "{schedstat}");
            assert_eq!(found.describe().is_some(), is_disturbed);
        }
    }

    #[test]
    fn steal_of_the_measured_cores_counts() {
        let stat = |stolen: u32| {
            format!(
                "cpu  9 9 9 9 9 9 9 99 0 0\ncpu0 1 0 0 99 0 0 0 9 0 0\ncpu1 100 0 0 100 0 0 0 {stolen} 50 0\nintr 7\n"
            )
        };
        for (stolen, is_disturbed) in [(0, false), (2, false), (20, true)] {
            let mut found = Disturbance::default();
            let (begin, end) =
                (CoreTime::parse("cpu1 0 0 0 0 0 0 0 0 0 0\n", &[1]), CoreTime::parse(&stat(stolen), &[1]));
            found.add_cores(begin, end);
            assert_eq!(found.disturbed, is_disturbed, "{stolen}: {found:?}");
        }
        let (begin, end) = (CoreTime::default(), CoreTime::parse("cpu0 20 0 20 20 20 0 0 20 0 0\n", &[0]));
        assert_eq!(end.shares_since(&begin), (0.2, 0.4));
    }
}
