//! The reactor: accounting, sleep and its ends, graceful stop, pinning.

// Nothing here runs under loom's scheduler.
#![cfg(not(loom))]

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use stag_runtime::{
    AffinityError, Clock, CoreId, ManualClock, PollMode, Poller, Reactor, ReactorConfig, ReactorStatistics,
    Receiver, Sender, StopFlag, Timers, affinity, mailbox,
};

const fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Longer than anything here takes: what is not done by then hangs.
const PATIENCE: Duration = Duration::from_secs(60);

const SLEEPY: ReactorConfig =
    ReactorConfig { core: None, mode: PollMode::Adaptive { spin: Duration::ZERO }, drain_max: PATIENCE };
const BUSY: ReactorConfig = ReactorConfig { mode: PollMode::Busy, ..SLEEPY };

const ONE_PASS: [(usize, Duration); 1] = [(1, us(1))];

/// Plays a script of passes, each with what it handles and how long it takes, then asks for a stop.
struct Script<'a> {
    clock: &'a ManualClock,
    passes: std::slice::Iter<'a, (usize, Duration)>,
    stop: StopFlag,
    /// Passes that the drain needs.
    drain: usize,
    stops: usize,
}

impl<'a> Script<'a> {
    fn new(clock: &'a ManualClock, stop: &StopFlag, passes: &'a [(usize, Duration)]) -> Script<'a> {
        Script { clock, passes: passes.iter(), stop: stop.clone(), drain: 0, stops: 0 }
    }
}

impl Poller for Script<'_> {
    fn poll(&mut self, _now: Duration) -> usize {
        if self.stops > 0 {
            self.drain = self.drain.saturating_sub(1);
            self.clock.advance(ms(1));
            return 1;
        }
        let &(events, duration) = self.passes.next().unwrap();
        self.clock.advance(duration);
        if self.passes.len() == 0 {
            self.stop.request();
        }
        events
    }
    fn next_timeout(&self) -> Option<Duration> {
        None
    }
    fn arm(&mut self) -> bool {
        false
    }
    fn disarm(&mut self) {}
    fn descriptors(&self, _out: &mut Vec<RawFd>) {}
    fn stop(&mut self, now: Duration) {
        assert_eq!(now, self.clock_now());
        self.stops += 1;
    }
    fn is_drained(&self) -> bool {
        self.stops > 0 && self.drain == 0
    }
}

impl Script<'_> {
    fn clock_now(&self) -> Duration {
        use stag_runtime::TimeSource;
        self.clock.now()
    }
}

#[test]
fn time_is_busy_or_idle_by_what_poll_returned() {
    let clock = ManualClock::new();
    clock.advance(ms(7)); // the clock is older than the reactor
    let stop = StopFlag::new().unwrap();
    let script = [(3, us(10)), (0, us(1)), (0, us(2)), (1, us(20)), (0, us(4))];
    let mut poller = Script::new(&clock, &stop, &script);
    let mut reactor = Reactor::with_time_source(BUSY, &clock).unwrap();
    let reader = reactor.statistics();

    let stopped = reactor.run(&mut poller, &stop).unwrap();
    let expected = ReactorStatistics {
        busy: us(30),
        idle: us(7),
        passes: 5,
        idle_passes: 3,
        events: 4,
        pass_max: us(20),
        ..ReactorStatistics::default()
    };
    assert_eq!(stopped.statistics, expected);
    assert_eq!(reader.read(), expected, "published at the end");
    assert!(stopped.drained);
    assert_eq!(stopped.drain, Duration::ZERO);
}

#[test]
fn a_graceful_stop_polls_until_drained() {
    let clock = ManualClock::new();
    let stop = StopFlag::new().unwrap();
    let mut poller = Script::new(&clock, &stop, &ONE_PASS);
    poller.drain = 10;
    let stopped = Reactor::with_time_source(BUSY, &clock).unwrap().run(&mut poller, &stop).unwrap();
    assert!(stopped.drained);
    assert_eq!((poller.stops, stopped.drain, stopped.statistics.passes), (1, ms(10), 11));
}

#[test]
fn a_graceful_stop_ends_at_its_deadline() {
    let clock = ManualClock::new();
    let stop = StopFlag::new().unwrap();
    let mut poller = Script::new(&clock, &stop, &ONE_PASS);
    poller.drain = 10;
    let config = ReactorConfig { drain_max: ms(9), ..BUSY };
    let stopped = Reactor::with_time_source(config, &clock).unwrap().run(&mut poller, &stop).unwrap();
    assert!(!stopped.drained);
    assert_eq!((stopped.drain, poller.drain), (ms(9), 1));
}

#[test]
fn a_stop_that_came_first_still_drains() {
    let clock = ManualClock::new();
    let stop = StopFlag::new().unwrap();
    stop.request();
    let mut poller = Script::new(&clock, &stop, &[]);
    poller.drain = 2;
    let stopped = Reactor::with_time_source(BUSY, &clock).unwrap().run(&mut poller, &stop).unwrap();
    assert!(stopped.drained);
    assert_eq!(stopped.statistics.passes, 2);
}

/// A poller of everything that can wake a reactor. Reports what it saw.
struct Listener {
    mail: Receiver<u32>,
    socket: UnixStream,
    timers: Timers<u32>,
    reports: mpsc::Sender<u32>,
    can_sleep: bool,
    stopping: bool,
    /// Set when a stop drains at once.
    drains: bool,
}

/// The other ends.
struct Outside {
    mail: Sender<u32>,
    socket: UnixStream,
    reports: mpsc::Receiver<u32>,
}

impl Listener {
    fn new() -> (Listener, Outside) {
        let (sender, receiver) = mailbox(4).unwrap();
        let (inside, outside) = UnixStream::pair().unwrap();
        inside.set_nonblocking(true).unwrap();
        let (report, reports) = mpsc::channel();
        let listener = Listener {
            mail: receiver,
            socket: inside,
            timers: Timers::new(4),
            reports: report,
            can_sleep: true,
            stopping: false,
            drains: true,
        };
        (listener, Outside { mail: sender, socket: outside, reports })
    }
}

impl Poller for Listener {
    fn poll(&mut self, now: Duration) -> usize {
        let mut byte = [0];
        let read = self.socket.read(&mut byte).unwrap_or(0);
        let seen = [self.mail.receive(), (read > 0).then_some(u32::from(byte[0])), self.timers.pop(now)];
        for report in seen.into_iter().flatten() {
            // It fails when the test is over, and then the report is not missed.
            let _ = self.reports.send(report);
        }
        seen.iter().flatten().count()
    }
    fn next_timeout(&self) -> Option<Duration> {
        self.timers.next()
    }
    fn arm(&mut self) -> bool {
        self.can_sleep && self.mail.arm()
    }
    fn disarm(&mut self) {
        self.mail.disarm();
    }
    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.extend([self.mail.descriptor(), self.socket.as_raw_fd()]);
    }
    fn stop(&mut self, _now: Duration) {
        self.stopping = true;
    }
    fn is_drained(&self) -> bool {
        self.stopping && self.drains
    }
}

/// Runs a reactor on `listener` in a thread while `outside` runs here.
fn with_reactor(
    config: ReactorConfig,
    mut listener: Listener,
    outside: impl FnOnce(&dyn Fn() -> ReactorStatistics, &StopFlag),
) -> stag_runtime::Stopped {
    let stop = StopFlag::new().unwrap();
    let clock = Clock::start();
    let mut reactor = Reactor::new(config, clock).unwrap();
    let reader = reactor.statistics();
    thread::scope(|scope| {
        let running = scope.spawn(|| reactor.run(&mut listener, &stop).unwrap());
        outside(&|| reader.read(), &stop);
        stop.request();
        running.join().unwrap()
    })
}

/// Waits until the reactor has gone to sleep `count` times.
fn wait_for_sleep(read: &dyn Fn() -> ReactorStatistics, count: u64) {
    let clock = Clock::start();
    while read().sleeps < count {
        assert!(clock.now() < PATIENCE, "the reactor does not sleep: {:?}", read());
        thread::yield_now();
    }
}

#[test]
fn a_sleeping_reactor_is_woken_by_mail() {
    let (listener, outside) = Listener::new();
    let stopped = with_reactor(SLEEPY, listener, |read, _| {
        for round in 0..100 {
            wait_for_sleep(read, u64::from(round) + 1);
            outside.mail.send(round).unwrap();
            assert_eq!(outside.reports.recv_timeout(PATIENCE), Ok(round), "not woken");
        }
    });
    assert!(stopped.drained);
    assert!(stopped.statistics.asleep > Duration::ZERO);
}

#[test]
fn a_sleeping_reactor_is_woken_by_a_descriptor() {
    let (listener, mut outside) = Listener::new();
    let _ = with_reactor(SLEEPY, listener, |read, _| {
        for round in 0..100u8 {
            wait_for_sleep(read, u64::from(round) + 1);
            outside.socket.write_all(&[round]).unwrap();
            assert_eq!(outside.reports.recv_timeout(PATIENCE), Ok(u32::from(round)), "not woken");
        }
    });
}

#[test]
fn a_sleeping_reactor_is_woken_by_its_next_timer() {
    let (mut listener, outside) = Listener::new();
    // The clock of the reactor starts after these, so they are due from 20 ms and 40 ms on.
    listener.timers.insert(ms(20), 20).unwrap();
    listener.timers.insert(ms(40), 40).unwrap();
    let stopped = with_reactor(SLEEPY, listener, |_, _| {
        assert_eq!(outside.reports.recv_timeout(PATIENCE), Ok(20));
        assert_eq!(outside.reports.recv_timeout(PATIENCE), Ok(40));
    });
    assert!(stopped.statistics.asleep > ms(10), "it was asleep in between: {stopped:?}");
}

#[test]
fn a_sleeping_reactor_is_woken_by_a_stop() {
    let (listener, _outside) = Listener::new();
    let stopped = with_reactor(SLEEPY, listener, |read, _| wait_for_sleep(read, 1));
    assert!(stopped.drained);
}

#[test]
fn a_stop_may_come_from_a_signal_handler() {
    static STOP: OnceLock<StopFlag> = OnceLock::new();
    extern "C" fn handler(_signal: libc::c_int) {
        STOP.get().unwrap().request();
    }
    let (mut listener, _outside) = Listener::new();
    let stop = STOP.get_or_init(|| StopFlag::new().unwrap());
    let handler: extern "C" fn(libc::c_int) = handler;
    // SAFETY: the handler has the signature that `signal` wants, and does only what is async-signal-safe:
    // it reads an initialised OnceLock, stores an atomic and writes to a descriptor.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };

    let mut reactor = Reactor::new(SLEEPY, Clock::start()).unwrap();
    let reader = reactor.statistics();
    thread::scope(|scope| {
        let running = scope.spawn(|| reactor.run(&mut listener, stop).unwrap());
        wait_for_sleep(&|| reader.read(), 1);
        // SAFETY: sends a signal to the calling thread, which has a handler for it.
        unsafe { libc::raise(libc::SIGUSR1) };
        assert!(running.join().unwrap().drained);
    });
}

#[test]
fn a_poller_with_work_is_not_put_to_sleep() {
    let (mut listener, outside) = Listener::new();
    listener.can_sleep = false;
    let stopped = with_reactor(SLEEPY, listener, |read, _| {
        let clock = Clock::start();
        while read().sleeps_refused < 100 {
            assert!(clock.now() < PATIENCE, "{:?}", read());
            thread::yield_now();
        }
        outside.mail.send(1).unwrap();
        assert_eq!(outside.reports.recv_timeout(PATIENCE), Ok(1));
    });
    assert_eq!(stopped.statistics.sleeps, 0);
}

#[test]
fn a_busy_reactor_never_sleeps() {
    let (listener, outside) = Listener::new();
    let stopped = with_reactor(BUSY, listener, |_, _| {
        outside.mail.send(1).unwrap();
        assert_eq!(outside.reports.recv_timeout(PATIENCE), Ok(1));
    });
    assert_eq!((stopped.statistics.sleeps, stopped.statistics.sleeps_refused), (0, 0));
    assert_eq!(stopped.statistics.asleep, Duration::ZERO);
}

#[test]
fn a_drain_sleeps_too_and_ends_at_its_deadline() {
    let (mut listener, _outside) = Listener::new();
    listener.drains = false;
    let config = ReactorConfig { drain_max: ms(30), ..SLEEPY };
    let stopped = with_reactor(config, listener, |_, _| {});
    assert!(!stopped.drained);
    assert!(stopped.drain >= ms(30), "{stopped:?}");
    assert!(stopped.statistics.sleeps > 0 && stopped.statistics.passes < 100, "it polled on: {stopped:?}");
}

/// Answers each number with the next one.
struct Player {
    mail: Receiver<u32>,
    peer: Sender<u32>,
    last: u32,
    stop: StopFlag,
}

impl Poller for Player {
    fn poll(&mut self, _now: Duration) -> usize {
        let Some(number) = self.mail.receive() else { return 0 };
        // The peer has stopped when the last number was its own.
        let _ = self.peer.send(number + 1);
        if number >= self.last {
            self.stop.request();
        }
        1
    }
    fn next_timeout(&self) -> Option<Duration> {
        None
    }
    fn arm(&mut self) -> bool {
        self.mail.arm()
    }
    fn disarm(&mut self) {
        self.mail.disarm();
    }
    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.push(self.mail.descriptor());
    }
    fn stop(&mut self, _now: Duration) {}
    fn is_drained(&self) -> bool {
        true
    }
}

#[test]
fn two_reactors_on_one_core_do_not_starve_each_other() {
    const ROUNDS: u32 = 1000;
    let core = affinity::allowed().iter().next();
    let mode = PollMode::Adaptive { spin: PollMode::SPIN };
    let config = ReactorConfig { core, mode, drain_max: PATIENCE };
    let stop = StopFlag::new().unwrap();
    let (to_first, first) = mailbox(4).unwrap();
    let (to_second, second) = mailbox(4).unwrap();
    to_first.send(0).unwrap();
    let player = |mail, peer| Player { mail, peer, last: ROUNDS, stop: stop.clone() };
    let mut players = [player(first, to_second), player(second, to_first)];

    let clock = Clock::start();
    thread::scope(|scope| {
        for player in &mut players {
            let stop = &stop;
            scope.spawn(move || Reactor::new(config, clock).unwrap().run(player, stop).unwrap());
        }
    });
    // Without sleep each turn would last a time slice of the scheduler, some milliseconds.
    assert!(clock.now() < PATIENCE, "{:?}", clock.now());
}

#[test]
fn a_reactor_runs_on_its_core() {
    struct Where {
        found: Option<CoreId>,
        stop: StopFlag,
    }
    impl Poller for Where {
        fn poll(&mut self, _now: Duration) -> usize {
            self.found = affinity::current();
            self.stop.request();
            1
        }
        fn next_timeout(&self) -> Option<Duration> {
            None
        }
        fn arm(&mut self) -> bool {
            true
        }
        fn disarm(&mut self) {}
        fn descriptors(&self, _out: &mut Vec<RawFd>) {}
        fn stop(&mut self, _now: Duration) {}
        fn is_drained(&self) -> bool {
            true
        }
    }

    let clock = Clock::start();
    for core in affinity::allowed().iter() {
        let stop = StopFlag::new().unwrap();
        let mut poller = Where { found: None, stop: stop.clone() };
        let mut reactor = Reactor::new(ReactorConfig { core: Some(core), ..SLEEPY }, clock).unwrap();
        let found = thread::scope(|scope| {
            let running = scope.spawn(|| {
                let _ = reactor.run(&mut poller, &stop).unwrap();
                poller.found
            });
            running.join().unwrap()
        });
        assert_eq!(found, Some(core));
    }
}

#[test]
fn a_core_that_cannot_be_had_is_refused_at_the_start() {
    let config = ReactorConfig { core: Some(CoreId(1024)), ..BUSY };
    let error = Reactor::new(config, Clock::start()).unwrap_err();
    assert!(matches!(error, AffinityError::TooLarge { core: 1024, .. }), "{error}");

    let absent = (0..1024).map(CoreId).find(|core| !affinity::allowed().contains(*core));
    if let Some(core) = absent {
        let error = Reactor::new(ReactorConfig { core: Some(core), ..BUSY }, Clock::start()).unwrap_err();
        assert!(matches!(error, AffinityError::NotAllowed { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains(&affinity::allowed().to_string()) && text.contains(&core.to_string()),
            "{text}"
        );
    }
}
