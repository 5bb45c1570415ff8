//! The clock: the only file of the workspace that reads one.
//!
//! All other code is given `now`, a [`Duration`] since the clock's origin, so it can be driven by a
//! simulator. [`Clock`] reads the time stamp counter where that is sound and costs a few nanoseconds;
//! elsewhere it asks the system.

use std::cell::Cell;
use std::time::Duration;

/// Something that tells the time. A [`Clock`], or a [`ManualClock`] in tests.
pub trait TimeSource {
    /// The time since the origin. Never goes backwards as one thread sees it.
    fn now(&self) -> Duration;
}

impl<T: TimeSource> TimeSource for &T {
    #[inline]
    fn now(&self) -> Duration {
        (**self).now()
    }
}

/// Monotonic time since the clock was started.
///
/// A copy shares the origin: start one and give a copy to each reactor, and the `now` of one core
/// means something on another. Two cores may disagree by some tens of nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    source: Source,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Tsc {
        origin: u64,
        scale: tsc::Scale,
    },
    System {
        origin: std::time::Instant,
    },
}

impl Clock {
    /// Starts a clock; its origin is now.
    ///
    /// The first start in a process may take 10 ms: it measures the time stamp counter.
    #[must_use]
    pub fn start() -> Clock {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if let Some(scale) = tsc::scale() {
            return Clock { source: Source::Tsc { origin: tsc::read(), scale } };
        }
        Clock::start_system()
    }

    /// Starts a clock that asks the system for the time, whatever the processor offers.
    #[must_use]
    pub fn start_system() -> Clock {
        Clock { source: Source::System { origin: system::monotonic() } }
    }

    /// The time since the origin.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Duration {
        match self.source {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Source::Tsc { origin, scale } => {
                // Saturating: another core may have read the origin a few ticks ahead of this one.
                Duration::from_nanos(scale.nanoseconds(tsc::read().saturating_sub(origin)))
            }
            Source::System { origin } => system::monotonic().saturating_duration_since(origin),
        }
    }

    /// What the time is read from: `"tsc"` or `"system"`.
    #[must_use]
    pub fn source(&self) -> &'static str {
        match self.source {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Source::Tsc { .. } => "tsc",
            Source::System { .. } => "system",
        }
    }
}

impl TimeSource for Clock {
    #[inline]
    fn now(&self) -> Duration {
        Clock::now(self)
    }
}

/// Wall-clock time for time stamps of files, without a system call each time.
///
/// It is the reactor's `now` plus an offset, and the offset is measured anew once a second. A time
/// stamp is never older than the one before it, unless the system's clock was set back by more than
/// a second.
#[derive(Clone, Debug)]
pub struct WallClock {
    /// What to add to `now` to get the time since 1970.
    offset: Duration,
    /// When to measure `offset` anew.
    refresh_at: Duration,
    /// What was last returned.
    last: Duration,
}

impl WallClock {
    /// How long an offset is used.
    pub const REFRESH: Duration = Duration::from_secs(1);

    /// A wall clock for the clock that `now` was read from, a moment ago.
    #[must_use]
    pub fn new(now: Duration) -> WallClock {
        WallClock::with_wall(now, system::wall())
    }

    /// The time since the start of 1970 (UTC) at `now`.
    #[inline]
    pub fn at(&mut self, now: Duration) -> Duration {
        if now >= self.refresh_at {
            self.refresh(now, system::wall());
        }
        self.step(now)
    }

    fn with_wall(now: Duration, wall: Duration) -> WallClock {
        WallClock { offset: wall.saturating_sub(now), refresh_at: now + Self::REFRESH, last: Duration::ZERO }
    }

    fn refresh(&mut self, now: Duration, wall: Duration) {
        self.offset = wall.saturating_sub(now);
        self.refresh_at = now + Self::REFRESH;
    }

    fn step(&mut self, now: Duration) -> Duration {
        let wall = self.offset + now;
        // A small step back is our own measurement's jitter; a large one is the operator's will.
        if wall < self.last && self.last - wall < Self::REFRESH {
            return self.last;
        }
        self.last = wall;
        wall
    }
}

/// A clock that is moved by hand, for tests and simulations.
#[derive(Debug, Default)]
pub struct ManualClock {
    now: Cell<Duration>,
}

impl ManualClock {
    /// A clock that stands at zero.
    #[must_use]
    pub fn new() -> ManualClock {
        ManualClock::default()
    }

    /// Moves the clock forwards.
    pub fn advance(&self, by: Duration) {
        self.now.set(self.now.get() + by);
    }
}

impl TimeSource for ManualClock {
    fn now(&self) -> Duration {
        self.now.get()
    }
}

/// The system's own clocks.
// This is the one place that may ask them: .clippy.toml forbids it to everybody else.
#[allow(clippy::disallowed_methods)]
mod system {
    use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

    #[inline]
    pub(super) fn monotonic() -> Instant {
        Instant::now()
    }

    /// Since 1970. A clock set to before then counts as 1970.
    pub(super) fn wall() -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
    }
}

/// The time stamp counter of x86.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod tsc {
    use std::arch::x86_64::{__cpuid, _rdtsc};
    use std::sync::OnceLock;
    use std::time::{Duration, Instant};

    use super::system;

    /// How long the counter is compared with the system's clock. A reading of the pair is off by
    /// some 50 ns at worst, so the rate is off by 10 parts in a million at worst.
    const CALIBRATION: Duration = Duration::from_millis(10);

    /// Binary digits behind the point of [`Scale::multiplier`].
    const SHIFT: u32 = 32;

    /// Turns ticks into nanoseconds.
    #[derive(Clone, Copy, Debug)]
    pub(super) struct Scale {
        /// Nanoseconds per tick, times 2^SHIFT.
        multiplier: u64,
    }

    impl Scale {
        /// The scale of a counter that made `ticks` in `elapsed`; `None` for what no processor does.
        pub(super) fn new(ticks: u64, elapsed: Duration) -> Option<Scale> {
            if ticks == 0 {
                return None;
            }
            let multiplier = u64::try_from((elapsed.as_nanos() << SHIFT) / u128::from(ticks)).ok()?;
            // From 50 MHz (20 ns a tick) to 20 GHz: outside of it the counter is emulated or broken.
            let range = (1 << SHIFT) / 20..=(20 << SHIFT);
            range.contains(&multiplier).then_some(Scale { multiplier })
        }

        #[inline]
        pub(super) fn nanoseconds(self, ticks: u64) -> u64 {
            // The product of two u64 always fits. The cast cuts off nothing for the first 500 years.
            ((u128::from(ticks) * u128::from(self.multiplier)) >> SHIFT) as u64
        }
    }

    #[inline]
    pub(super) fn read() -> u64 {
        // SAFETY: every x86_64 processor has the instruction; it only reads a counter. A process
        // that forbade it to itself (PR_SET_TSC) would get SIGSEGV, not undefined behaviour.
        unsafe { _rdtsc() }
    }

    /// The scale of this machine's counter, measured once; `None` if it cannot serve as a clock.
    pub(super) fn scale() -> Option<Scale> {
        static SCALE: OnceLock<Option<Scale>> = OnceLock::new();
        *SCALE.get_or_init(|| if is_invariant() && kernel_trusts_it() { calibrate() } else { None })
    }

    /// Whether the counter has one rate at any frequency and does not stop in sleep states
    /// (`constant_tsc` and `nonstop_tsc`; "invariant TSC" in the manuals).
    fn is_invariant() -> bool {
        const EXTENDED: u32 = 0x8000_0000;
        const POWER: u32 = 0x8000_0007;
        const INVARIANT_TSC: u32 = 1 << 8;
        __cpuid(EXTENDED).eax >= POWER && __cpuid(POWER).edx & INVARIANT_TSC != 0
    }

    /// The kernel takes `tsc` off this list when it finds the counters of two cores apart.
    fn kernel_trusts_it() -> bool {
        std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/available_clocksource")
            .is_ok_and(|list| list.split_whitespace().any(|name| name == "tsc"))
    }

    fn calibrate() -> Option<Scale> {
        let (ticks_before, before) = read_pair();
        std::thread::sleep(CALIBRATION);
        let (ticks_after, after) = read_pair();
        Scale::new(ticks_after.checked_sub(ticks_before)?, after.duration_since(before))
    }

    /// The counter and the system's clock at the same moment: the closest of some tries, because a
    /// try may be interrupted in the middle.
    fn read_pair() -> (u64, Instant) {
        let mut best = None;
        let mut width_min = u64::MAX;
        for _ in 0..16 {
            let before = read();
            let instant = system::monotonic();
            let width = read().saturating_sub(before);
            if best.is_none() || width < width_min {
                width_min = width;
                best = Some((before + width / 2, instant));
            }
        }
        best.expect("there was at least one try")
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_scale_turns_ticks_into_nanoseconds() {
            let scale = Scale::new(30_000_000, Duration::from_millis(10)).unwrap(); // 3 GHz
            assert_eq!(scale.nanoseconds(0), 0);
            let second = scale.nanoseconds(3_000_000_000);
            assert!((999_999_990..=1_000_000_000).contains(&second), "{second}");
            // A century: no overflow, and still within a part in a thousand million.
            let century = scale.nanoseconds(3_000_000_000 * 3_155_760_000);
            assert!(century.abs_diff(3_155_760_000_000_000_000) < 3_155_760_000, "{century}");
        }

        #[test]
        fn a_scale_that_no_processor_has_is_refused() {
            assert!(Scale::new(0, Duration::from_millis(10)).is_none());
            assert!(Scale::new(1, Duration::from_millis(10)).is_none());
            assert!(Scale::new(u64::MAX, Duration::from_millis(10)).is_none());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn the_clock_never_goes_backwards() {
        for clock in [Clock::start(), Clock::start_system()] {
            let mut last = clock.now();
            for _ in 0..1000 {
                let now = clock.now();
                assert!(now >= last, "{} after {last:?}: {now:?}", clock.source());
                last = now;
            }
        }
    }

    #[test]
    fn the_clock_runs_at_the_systems_rate() {
        let (clock, system) = (Clock::start(), Clock::start_system());
        let (clock_before, system_before) = (clock.now(), system.now());
        std::thread::sleep(ms(20));
        // The system is read around the clock, so its bounds hold however late this thread runs.
        let lower = system.now() - system_before;
        let elapsed = clock.now() - clock_before;
        let upper = system.now() - system_before + ms(1);
        assert!(elapsed + ms(1) >= lower - lower / 1000, "{elapsed:?} < {lower:?}");
        assert!(elapsed <= upper + upper / 1000 + ms(1), "{elapsed:?} > {upper:?}");
    }

    #[test]
    fn copies_share_the_origin() {
        let clock = Clock::start();
        let copy = clock;
        std::thread::sleep(ms(1));
        assert!(std::thread::spawn(move || copy.now()).join().unwrap() >= ms(1));
    }

    #[test]
    fn wall_time_is_now_plus_an_offset() {
        let mut wall = WallClock::with_wall(ms(100), ms(5_000_100));
        assert_eq!(wall.step(ms(100)), ms(5_000_100));
        assert_eq!(wall.step(ms(900)), ms(5_000_900));
    }

    #[test]
    fn wall_time_ignores_a_small_step_back_and_follows_a_large_one() {
        let mut wall = WallClock::with_wall(ms(0), ms(5_000_000));
        assert_eq!(wall.step(ms(10)), ms(5_000_010));
        wall.refresh(ms(10), ms(5_000_008));
        assert_eq!(wall.step(ms(10)), ms(5_000_010));
        assert_eq!(wall.step(ms(13)), ms(5_000_011));
        wall.refresh(ms(13), ms(4_000_000));
        assert_eq!(wall.step(ms(13)), ms(4_000_000));
        wall.refresh(ms(13), ms(6_000_000));
        assert_eq!(wall.step(ms(14)), ms(6_000_001));
    }

    #[test]
    fn wall_time_agrees_with_the_system() {
        let clock = Clock::start();
        let mut wall = WallClock::new(clock.now());
        let before = system::wall();
        let found = wall.at(clock.now());
        assert!(found + ms(5) >= before, "{found:?} {before:?}");
        // Past the refresh it is measured anew, and reads the system's clock of then.
        let later = wall.at(clock.now() + WallClock::REFRESH);
        assert!(later >= found);
    }
}
