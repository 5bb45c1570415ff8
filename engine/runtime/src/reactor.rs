//! The reactor: the loop of one core.
//!
//! [`Reactor::run`] pins its thread and makes passes until it is told to stop; then it drains. A pass is one
//! clock reading and one poll. In adaptive mode the reactor sleeps after it was idle for a while, until a
//! descriptor of the poller is ready or its next timer is due.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::RawFd;
use std::time::Duration;

use crate::affinity::{self, AffinityError};
use crate::bell::Bell;
use crate::clock::{Clock, TimeSource};
use crate::cores::CoreId;
use crate::member::GroupMember;
use crate::phases::Milestone;
use crate::poller::Poller;
use crate::statistics::{Ledger, ReactorStatistics, StatisticsReader};
use crate::stop::StopFlag;

/// What a reactor does when there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollMode {
    /// Polls on. The lowest latency; takes a core for itself alone, and starves other threads on it.
    Busy,
    /// Polls for `spin` after the last event, then sleeps until there is work.
    Adaptive {
        /// How long to poll before sleep. Longer than a peer needs to answer, so that a dialogue of
        /// two reactors never sleeps.
        spin: Duration,
    },
}

impl PollMode {
    /// How long the adaptive mode polls unless told otherwise.
    pub const SPIN: Duration = Duration::from_micros(50);
}

/// Adaptive. On a single core it does not spin: spinning would delay the peer it waits for.
impl Default for PollMode {
    fn default() -> PollMode {
        let spin = if affinity::allowed().len() == 1 { Duration::ZERO } else { PollMode::SPIN };
        PollMode::Adaptive { spin }
    }
}

/// How a reactor is to run.
#[derive(Clone, Copy, Debug)]
pub struct ReactorConfig {
    /// The core to pin to; `None` leaves the thread to the scheduler.
    pub core: Option<CoreId>,
    /// What to do when idle.
    pub mode: PollMode,
    /// How long a graceful stop may take before the reactor ends without being drained.
    pub drain_max: Duration,
}

impl Default for ReactorConfig {
    fn default() -> ReactorConfig {
        ReactorConfig { core: None, mode: PollMode::default(), drain_max: Duration::from_secs(5) }
    }
}

/// How a reactor ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Stopped {
    /// Whether the poller finished what was under way, and all others of its group gave back what is its. `false`: the deadline came
    /// first.
    pub drained: bool,
    /// How long the drain took.
    pub drain: Duration,
    /// Everything counted since the start, the drain included.
    pub statistics: ReactorStatistics,
}

/// The loop of one core. `C` is the clock; all but tests use [`Clock`].
#[derive(Debug)]
pub struct Reactor<C = Clock> {
    config: ReactorConfig,
    clock: C,
    ledger: Ledger,
    /// The last time that was not idle: spinning is counted from here.
    active_at: Duration,
    /// What to wake up for. Kept for its capacity.
    descriptors: Vec<RawFd>,
    entries: Vec<libc::pollfd>,
}

/// Descriptors of one reactor before a sleep allocates: more than a few pollers have.
const DESCRIPTORS: usize = 32;

impl Reactor<Clock> {
    /// A reactor on `clock`. Checks that the core can be had; [`Reactor::run`] pins to it.
    pub fn new(config: ReactorConfig, clock: Clock) -> Result<Reactor, AffinityError> {
        Reactor::with_time_source(config, clock)
    }
}

impl<C: TimeSource> Reactor<C> {
    /// A reactor on any clock.
    pub fn with_time_source(config: ReactorConfig, clock: C) -> Result<Reactor<C>, AffinityError> {
        if let Some(core) = config.core {
            affinity::check(core)?;
        }
        Ok(Reactor {
            config,
            clock,
            ledger: Ledger::new(),
            active_at: Duration::ZERO,
            descriptors: Vec::with_capacity(DESCRIPTORS),
            entries: Vec::with_capacity(DESCRIPTORS),
        })
    }

    /// Reads the statistics from other threads.
    #[must_use]
    pub fn statistics(&self) -> StatisticsReader {
        self.ledger.reader()
    }

    /// Pins the calling thread, then polls until `stop` is requested, then drains.
    pub fn run<P: Poller>(&mut self, poller: &mut P, stop: &StopFlag) -> Result<Stopped, AffinityError> {
        self.pin()?;
        Ok(self.serve(poller, stop, None))
    }

    /// Pins the calling thread to the reactor's core, if it has one.
    pub(crate) fn pin(&self) -> Result<(), AffinityError> {
        self.config.core.map_or(Ok(()), affinity::pin)
    }

    /// As [`Reactor::run`] on a thread that is pinned, alone or as a member of a group.
    pub(crate) fn serve<P: Poller>(
        &mut self,
        poller: &mut P,
        stop: &StopFlag,
        member: Option<&GroupMember>,
    ) -> Stopped {
        fine_grained_sleep();

        self.active_at = self.clock.now();
        while !stop.is_requested() {
            if !self.pass(poller) {
                self.rest(poller, member, Some(stop), Duration::MAX, |_| false);
            }
        }
        let stopped = self.drain(poller, member);
        self.ledger.publish();
        stopped
    }

    /// Makes one pass. `false`: the mode wants sleep now.
    #[inline]
    fn pass<P: Poller>(&mut self, poller: &mut P) -> bool {
        // Read once: everything in this pass happens at the same instant.
        let now = self.clock.now();
        self.ledger.begin(now);
        let events = poller.poll(now);
        self.ledger.end(events);
        if events > 0 {
            self.active_at = now;
        }
        match self.config.mode {
            PollMode::Busy => true,
            PollMode::Adaptive { spin } => events > 0 || now.saturating_sub(self.active_at) < spin,
        }
    }

    /// Stops the poller and makes passes until nothing is under way and nothing is borrowed, or the deadline.
    ///
    /// In a group it goes on for the others: until all have finished, and then until all have given back.
    fn drain<P: Poller>(&mut self, poller: &mut P, member: Option<&GroupMember>) -> Stopped {
        let begin = self.clock.now();
        let first = member.map_or(begin, |member| member.begin_stop(begin));
        let deadline = first.saturating_add(self.config.drain_max);

        poller.stop(begin);
        self.pass_until(poller, member, deadline, P::is_drained);
        let has_finished = poller.is_drained();
        let now = self.pass_until_all(poller, member, deadline, Milestone::Finished);
        poller.give_back(now);
        self.pass_until(poller, member, deadline, P::has_given_back);
        self.pass_until_all(poller, member, deadline, Milestone::GaveBack);
        let have_all = member.is_none_or(|member| member.is_reached_by_all(Milestone::GaveBack));
        if member.is_some() {
            // What the others published before they were through.
            self.pass(poller);
        }

        let now = self.clock.now();
        self.ledger.begin(now);
        Stopped {
            drained: has_finished && have_all && poller.is_drained() && poller.has_given_back(),
            drain: now.saturating_sub(begin),
            statistics: self.ledger.statistics(),
        }
    }

    /// Says that this reactor has reached a milestone, and makes passes until all of its group have.
    fn pass_until_all<P: Poller>(
        &mut self,
        poller: &mut P,
        member: Option<&GroupMember>,
        deadline: Duration,
        milestone: Milestone,
    ) -> Duration {
        let Some(member) = member else { return self.clock.now() };
        member.reach(milestone);
        self.pass_until(poller, Some(member), deadline, |_| member.is_reached_by_all(milestone))
    }

    /// Makes passes until `is_done`, or the deadline. Returns the time.
    fn pass_until<P: Poller>(
        &mut self,
        poller: &mut P,
        member: Option<&GroupMember>,
        deadline: Duration,
        is_done: impl Fn(&P) -> bool,
    ) -> Duration {
        let mut now = self.clock.now();
        while !is_done(poller) && now < deadline {
            if !self.pass(poller) && !is_done(poller) {
                // Not on the stop flag: it is readable already, and would never let us sleep.
                self.rest(poller, member, None, deadline, &is_done);
            }
            now = self.clock.now();
        }
        now
    }

    /// Sleeps until there is work, or a timer of the poller or `latest` comes. Returns at once if
    /// there is work already, or if `is_done`.
    fn rest<P: Poller>(
        &mut self,
        poller: &mut P,
        member: Option<&GroupMember>,
        stop: Option<&StopFlag>,
        latest: Duration,
        is_done: impl Fn(&P) -> bool,
    ) {
        // Armed first, asked second: work that comes in between makes a descriptor readable. The bell before the poller,
        // which looks at its lanes then.
        let bell = member.map(GroupMember::bell);
        bell.inspect(|bell| bell.arm());
        if poller.arm() && !is_done(poller) {
            let now = self.clock.now();
            let timeout = poller.next_timeout().unwrap_or(Duration::MAX).min(latest).saturating_sub(now);
            if timeout > Duration::ZERO {
                self.ledger.sleep();
                self.collect(poller, [bell.map(Bell::descriptor), stop.map(StopFlag::descriptor)]);
                wait(&mut self.entries, timeout);
            }
        } else {
            self.ledger.refuse_sleep();
        }
        poller.disarm();
        bell.inspect(|bell| bell.disarm());
        // What woke us is likely the first of several events, so spin again before the next sleep.
        self.active_at = self.clock.now();
    }

    /// Collects the descriptors to wake up for.
    fn collect<P: Poller>(&mut self, poller: &P, own: [Option<RawFd>; 2]) {
        self.descriptors.clear();
        poller.descriptors(&mut self.descriptors);
        self.descriptors.extend(own.into_iter().flatten());
        self.entries.clear();
        let entry = |&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        self.entries.extend(self.descriptors.iter().map(entry));
    }
}

/// Sleeps until one of `pollers` has work, their next timer or `latest` comes, or a signal arrives.
///
/// For a thread that polls by itself, without a [`Reactor`]. `now` and `latest` are on the clock whose time the
/// pollers are given. Returns at once if one of them has work already.
pub fn sleep(pollers: &mut [&mut dyn Poller], now: Duration, latest: Duration) {
    let mut due = latest;
    let mut entries = Vec::with_capacity(DESCRIPTORS);
    // Armed first, asked second: work that comes in between makes a descriptor readable.
    let is_idle = pollers.iter_mut().all(|poller| poller.arm());
    if is_idle {
        let mut descriptors = Vec::with_capacity(DESCRIPTORS);
        for poller in pollers.iter() {
            due = due.min(poller.next_timeout().unwrap_or(Duration::MAX));
            poller.descriptors(&mut descriptors);
        }
        entries.extend(descriptors.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }));
        let timeout = due.saturating_sub(now);
        if timeout > Duration::ZERO {
            wait(&mut entries, timeout);
        }
    }
    for poller in pollers {
        poller.disarm();
    }
}

/// Waits until one of `entries` is readable or `timeout` has passed. May return early: on a signal.
fn wait(entries: &mut [libc::pollfd], timeout: Duration) {
    let timeout = libc::timespec {
        // Capped below what a 32-bit time_t holds; waking once in 68 years does no harm.
        tv_sec: timeout.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as _,
    };
    let count = entries.len() as libc::nfds_t;
    // SAFETY: `entries` is readable and writable for `count` entries; `timeout` is readable; a null
    // signal mask leaves the mask as it is.
    let ready = unsafe { libc::ppoll(entries.as_mut_ptr(), count, &raw const timeout, std::ptr::null()) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted, "poll on a reactor's descriptors: {error}");
    }
    debug_assert!(
        entries.iter().all(|entry| entry.revents & libc::POLLNVAL == 0),
        "a poller names a descriptor that is closed: {entries:?}"
    );
}

/// Asks the kernel to end this thread's sleeps when they are due: by default it may be 50 µs late.
fn fine_grained_sleep() {
    const SLACK_NS: NonZeroU64 = NonZeroU64::MIN;
    // Where it is refused, sleeps are a little longer.
    let _ = rustix::thread::set_current_timer_slack(Some(SLACK_NS));
}
