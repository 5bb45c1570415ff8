//! A group of reactors: start of all or none, messages that wake, stop in phases, panics.

// Nothing here runs under loom's scheduler.
#![cfg(not(loom))]

use std::error::Error;
use std::os::fd::RawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use stag_runtime::{
    Clock, GroupConfig, GroupError, GroupMember, LaneMesh, LaneRecord, Lanes, PollMode, Poller, ReactorGroup,
    ReactorId, StopFlag, affinity,
};

/// Longer than anything here takes: what is not done by then hangs.
const PATIENCE: Duration = Duration::from_secs(60);
const SLEEPY: PollMode = PollMode::Adaptive { spin: Duration::ZERO };

fn id(index: usize) -> ReactorId {
    ReactorId::new(index).unwrap()
}

fn group(count: usize, mode: PollMode, drain_max: Duration) -> ReactorGroup {
    let config = GroupConfig { cores: vec![None; count], mode, drain_max };
    ReactorGroup::new(&config, Clock::start()).unwrap()
}

/// A poller of nothing: what the pollers below are made of.
struct Quiet;

impl Poller for Quiet {
    fn poll(&mut self, _now: Duration) -> usize {
        0
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

/// Passes a number on to the next reactor, one more each time, as a record; the one who sees `last` asks for the stop.
struct Runner {
    member: GroupMember,
    lanes: Lanes<LaneRecord>,
    record: LaneRecord,
    last: u64,
    stop: StopFlag,
    /// Not Send: a poller stays on its thread.
    seen: Rc<Vec<u64>>,
}

impl Runner {
    fn send(&mut self, number: u64) {
        let next = id((self.member.id().index() + 1) % self.member.count());
        self.record.buffer()[..8].copy_from_slice(&number.to_le_bytes());
        self.record.set_len(100);
        assert!(self.lanes.to(next).unwrap().push_record(&self.record));
        let reached = self.lanes.publish();
        assert!(reached.contains(next));
        self.member.ring(reached);
    }
}

impl Poller for Runner {
    fn poll(&mut self, _now: Duration) -> usize {
        if self.member.id().index() == 0 && self.seen.is_empty() {
            Rc::get_mut(&mut self.seen).unwrap().push(0);
            self.send(1);
            return 1;
        }
        let before = id((self.member.id().index() + self.member.count() - 1) % self.member.count());
        if !self.lanes.from(before).unwrap().pop_record(&mut self.record) {
            return 0;
        }
        let number = u64::from_le_bytes(self.record.octets()[..8].try_into().unwrap());
        Rc::get_mut(&mut self.seen).unwrap().push(number);
        if number == self.last {
            self.stop.request();
        } else {
            self.send(number + 1);
        }
        1
    }
    fn next_timeout(&self) -> Option<Duration> {
        None
    }
    fn arm(&mut self) -> bool {
        self.lanes.is_empty() && !(self.member.id().index() == 0 && self.seen.is_empty())
    }
    fn disarm(&mut self) {}
    fn descriptors(&self, _out: &mut Vec<RawFd>) {}
    fn stop(&mut self, _now: Duration) {}
    fn is_drained(&self) -> bool {
        true
    }
}

/// Each turn is a wake-up: the others sleep. With more reactors than cores, and with two.
#[test]
fn reactors_that_sleep_wake_each_other() {
    const LAST: u64 = 2000;
    for count in [2, 3] {
        let stop = StopFlag::new().unwrap();
        let mesh = LaneMesh::<LaneRecord>::new(count, 8);
        let make = |member: GroupMember| {
            let lanes = mesh.take(member.id()).unwrap();
            let (record, seen) = (LaneRecord::new(), Rc::default());
            Ok::<_, ()>(Runner { member, lanes, record, last: LAST, stop: stop.clone(), seen })
        };
        let ended =
            group(count, SLEEPY, PATIENCE).run(&stop, make, |runner, _| runner.seen.to_vec()).unwrap();
        assert_eq!(ended.len(), count);
        let mut all: Vec<_> = ended.iter().flat_map(|(_, seen)| seen.clone()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..=LAST).collect::<Vec<_>>(), "each number once");
        for (at, (stopped, seen)) in ended.iter().enumerate() {
            assert!(stopped.drained);
            assert!(
                seen.iter().all(|number| *number as usize % count == at),
                "results are in the reactors' order"
            );
            assert!(stopped.statistics.sleeps > 0, "{stopped:?}");
        }
    }
}

#[test]
fn each_reactor_runs_on_its_own_thread_and_core_with_the_same_clock() {
    struct Where(GroupMember, Option<thread::ThreadId>, StopFlag, Option<stag_runtime::CoreId>);
    impl Poller for Where {
        fn poll(&mut self, _now: Duration) -> usize {
            self.1 = Some(thread::current().id());
            self.3 = affinity::current();
            self.2.request();
            1
        }
        fn next_timeout(&self) -> Option<Duration> {
            None
        }
        fn arm(&mut self) -> bool {
            self.1.is_some()
        }
        fn disarm(&mut self) {}
        fn descriptors(&self, _out: &mut Vec<RawFd>) {}
        fn stop(&mut self, now: Duration) {
            // Polled once at least, also if another one asked for the stop before the first pass.
            self.poll(now);
        }
        fn is_drained(&self) -> bool {
            true
        }
    }

    let cores: Vec<_> = affinity::allowed().iter().take(2).map(Some).collect();
    // On a thread of its own: the calling thread is pinned, and stays so.
    thread::spawn(move || {
        let stop = StopFlag::new().unwrap();
        let config = GroupConfig { cores: cores.clone(), mode: SLEEPY, drain_max: PATIENCE };
        let clock = Clock::start();
        let make = |member: GroupMember| {
            let core = affinity::current();
            assert_eq!(core, member.core(), "pinned before its memory is made");
            assert!(stag_runtime::TimeSource::now(&member.clock()) < PATIENCE);
            assert_eq!(member.ids().count(), member.count());
            assert!(member.statistics(id(member.count())).is_none());
            Ok::<_, ()>(Where(member, None, stop.clone(), None))
        };
        let group = ReactorGroup::new(&config, clock).unwrap();
        let readers = group.statistics();
        let ended = group.run(&stop, make, |place, _| (place.0.id(), place.1, place.3)).unwrap();
        let threads: Vec<_> = ended.iter().map(|(_, (_, thread, _))| thread.unwrap()).collect();
        assert_eq!(threads[0], thread::current().id(), "reactor 0 is the calling thread");
        for (at, (stopped, (found, _, core))) in ended.iter().enumerate() {
            assert_eq!((found.index(), *core), (at, cores[at]));
            assert_eq!(threads.iter().filter(|thread| **thread == threads[at]).count(), 1);
            assert_eq!(readers[at].read(), stopped.statistics);
        }
    })
    .join()
    .unwrap();
}

#[test]
fn nobody_is_polled_before_all_are_made() {
    struct Counting<'a>(&'a AtomicUsize, &'a StopFlag);
    impl Poller for Counting<'_> {
        fn poll(&mut self, _now: Duration) -> usize {
            assert_eq!(self.0.load(Ordering::SeqCst), 3, "polled before all were made");
            self.1.request();
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

    for _ in 0..20 {
        let stop = StopFlag::new().unwrap();
        let made = AtomicUsize::new(0);
        let make = |_| {
            // Gives reactors that are early time to be wrong.
            (0..50).for_each(|_| thread::yield_now());
            made.fetch_add(1, Ordering::SeqCst);
            Ok::<_, ()>(Counting(&made, &stop))
        };
        let ended = group(3, SLEEPY, PATIENCE).run(&stop, make, |_, _| ()).unwrap();
        assert_eq!(ended.len(), 3);
    }
}

#[test]
fn one_that_is_not_made_ends_all_and_its_error_comes_back() {
    /// Must not be polled, and must be dropped.
    struct Never<'a>(&'a AtomicUsize);
    impl Drop for Never<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    impl Poller for Never<'_> {
        fn poll(&mut self, _now: Duration) -> usize {
            unreachable!("polled although one of the group was not made")
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

    for failing in 0..3 {
        let stop = StopFlag::new().unwrap();
        let alive = AtomicUsize::new(0);
        let make = |member: GroupMember| {
            if member.id().index() == failing {
                return Err("no memory");
            }
            alive.fetch_add(1, Ordering::SeqCst);
            Ok(Never(&alive))
        };
        let error = group(3, SLEEPY, PATIENCE).run(&stop, make, |_, _| ()).unwrap_err();
        assert!(
            matches!(error, GroupError::Make { reactor, source: "no memory" } if reactor.index() == failing)
        );
        assert_eq!(error.to_string(), format!("reactor {failing}: no memory"));
        assert_eq!(alive.load(Ordering::SeqCst), 0, "what was made is dropped");
    }
}

/// `?` takes what `make` returned, also if it is a boxed error, which is no `Error` itself.
#[test]
fn the_error_of_a_boxed_cause_is_an_error() {
    type Boxed = Box<dyn Error + Send + Sync>;
    fn run() -> Result<(), Boxed> {
        let stop = StopFlag::new()?;
        let make = |_: GroupMember| Err::<Quiet, Boxed>("no memory".into());
        group(2, SLEEPY, PATIENCE).run(&stop, make, |_, _| ())?;
        Ok(())
    }
    let error = run().unwrap_err();
    assert!(error.to_string().ends_with(": no memory"), "{error}");
    let error = error.downcast::<GroupError<Boxed>>().expect("it stays what it was");
    assert!(matches!(*error, GroupError::Make { source, .. } if source.to_string() == "no memory"));
}

/// What happened in which order, over all reactors.
type Story = Mutex<Vec<(usize, &'static str)>>;

/// Finishes, and gives back, once it has heard a number of messages of others, and tells them.
struct Leaver<'a> {
    member: GroupMember,
    story: &'a Story,
    lanes: Lanes<&'static str>,
    /// Messages that it waits for before it has finished, and before it has given back.
    waits_for: [usize; 2],
    /// 0: serves; 1: finishes; 2: has finished; 3: gives back; 4: gave back.
    stage: usize,
    heard: usize,
}

impl Leaver<'_> {
    fn note(&self, what: &'static str) {
        self.story.lock().unwrap().push((self.member.id().index(), what));
    }

    fn is_due(&self) -> bool {
        matches!(self.stage, 1 | 3) && self.heard >= self.waits_for[self.stage / 2]
    }
}

impl Poller for Leaver<'_> {
    fn poll(&mut self, _now: Duration) -> usize {
        let heard = std::iter::from_fn(|| self.lanes.pop()).count();
        self.heard += heard;
        if !self.is_due() {
            return heard;
        }
        let what = if self.stage == 1 { "finished" } else { "gave back" };
        self.note(what);
        for other in self.member.ids() {
            if let Some(lane) = self.lanes.to(other) {
                lane.push(what).unwrap();
            }
        }
        self.member.ring(self.lanes.publish());
        self.stage += 1;
        heard + 1
    }
    fn next_timeout(&self) -> Option<Duration> {
        None
    }
    fn arm(&mut self) -> bool {
        self.lanes.is_empty() && !self.is_due()
    }
    fn disarm(&mut self) {}
    fn descriptors(&self, _out: &mut Vec<RawFd>) {}
    fn stop(&mut self, _now: Duration) {
        self.stage = 1;
    }
    fn is_drained(&self) -> bool {
        self.stage >= 2
    }
    fn give_back(&mut self, _now: Duration) {
        self.note("gives back");
        self.stage = 3;
    }
    fn has_given_back(&self) -> bool {
        self.stage == 4
    }
}

/// Each reactor is the last one once, in each phase: the others go on, asleep or not, and hear of it.
#[test]
fn a_group_stops_in_phases_whoever_is_last() {
    for mode in [SLEEPY, PollMode::Adaptive { spin: PollMode::SPIN }] {
        for [finishes_last, gives_back_last] in [[0, 1], [1, 1], [1, 2], [2, 0]] {
            let stop = StopFlag::new().unwrap();
            let (story, mesh) = (Story::default(), LaneMesh::new(3, 8));
            let make = |member: GroupMember| {
                // The last one waits for the word of both others.
                let at = member.id().index();
                let waits_for =
                    [if at == finishes_last { 2 } else { 0 }, if at == gives_back_last { 4 } else { 0 }];
                let lanes = mesh.take(member.id()).unwrap();
                Ok::<_, ()>(Leaver { member, story: &story, lanes, waits_for, stage: 0, heard: 0 })
            };
            stop.request();
            let ended = group(3, mode, PATIENCE).run(&stop, make, |leaver, _| leaver.heard).unwrap();
            assert!(ended.iter().all(|(stopped, _)| stopped.drained));
            assert!(
                ended.iter().all(|(_, heard)| *heard == 4),
                "all that was published was taken: {ended:?}"
            );
            let story = story.into_inner().unwrap();
            let at = |what| story.iter().enumerate().filter(move |(_, (_, found))| *found == what);
            let times = |what| at(what).map(|(time, _)| time).collect::<Vec<_>>();
            let last = |what| at(what).next_back().unwrap().1.0;
            assert_eq!(
                [times("finished").len(), times("gives back").len(), times("gave back").len()],
                [3; 3]
            );
            assert!(times("finished")[2] < times("gives back")[0], "{story:?}");
            assert_eq!([last("finished"), last("gave back")], [finishes_last, gives_back_last], "{story:?}");
        }
    }
}

/// One that never finishes keeps the others no longer than the deadline of all.
#[test]
fn a_reactor_that_does_not_finish_is_left_behind_at_the_deadline() {
    let stop = StopFlag::new().unwrap();
    let (story, mesh) = (Story::default(), LaneMesh::new(3, 8));
    let make = |member: GroupMember| {
        let waits_for = [if member.id().index() == 1 { usize::MAX } else { 0 }, 0];
        let lanes = mesh.take(member.id()).unwrap();
        Ok::<_, ()>(Leaver { member, story: &story, lanes, waits_for, stage: 0, heard: 0 })
    };
    stop.request();
    let drain_max = Duration::from_millis(30);
    let ended = group(3, SLEEPY, drain_max).run(&stop, make, |_, _| ()).unwrap();
    assert!(!ended[1].0.drained, "{ended:?}");
    assert!(ended.iter().all(|(stopped, ())| stopped.drain < PATIENCE));
}

#[test]
fn a_group_of_one_is_a_reactor() {
    struct Once(StopFlag);
    impl Poller for Once {
        fn poll(&mut self, _now: Duration) -> usize {
            self.0.request();
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
    let stop = StopFlag::new().unwrap();
    let ended = group(1, SLEEPY, PATIENCE)
        .run(&stop, |_| Ok::<_, ()>(Once(stop.clone())), |_, stopped| *stopped)
        .unwrap();
    assert_eq!(ended.len(), 1);
    assert_eq!((ended[0].0, ended[0].0.statistics.passes), (ended[0].1, 1), "no pass more than alone");
}

/// Set in the process that is to panic.
const PANICS: &str = "STAG_TEST_GROUP_PANICS";

/// The others would wait for its answers for ever.
#[test]
fn a_panic_on_one_thread_ends_the_process_with_its_message() {
    struct Panics(bool);
    impl Poller for Panics {
        fn poll(&mut self, now: Duration) -> usize {
            assert!(!self.0, "the handler lost its mind");
            Quiet.poll(now)
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

    if let Ok(which) = std::env::var(PANICS) {
        let stop = StopFlag::new().unwrap();
        let make = |member: GroupMember| Ok::<_, ()>(Panics(member.id().index().to_string() == which));
        let _ = group(3, SLEEPY, PATIENCE).run(&stop, make, |_, _| ());
        unreachable!("the process goes on");
    }
    for which in ["0", "2"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "a_panic_on_one_thread_ends_the_process_with_its_message"])
            .env(PANICS, which)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{text}");
        assert!(text.contains("the handler lost its mind"), "{text}");
    }
}
