//! A running reactor does not allocate: not in a pass, not for a timer or a message, not to sleep.

// Nothing here runs under loom's scheduler.
#![cfg(not(loom))]

use std::os::fd::RawFd;
use std::time::Duration;

use stag_runtime::{
    Clock, PollMode, Poller, Reactor, ReactorConfig, Receiver, Sender, StopFlag, TimerId, Timers, mailbox,
};
use stag_testing::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Sends itself a message and sets itself timers, in turns with sleep.
struct Worker {
    mail: Receiver<u64>,
    to_self: Sender<u64>,
    timers: Timers<u64>,
    pending: Option<TimerId>,
    rounds: u64,
    allocations_before: Option<u64>,
    allocations_after: u64,
    stop: StopFlag,
}

const ROUNDS: u64 = 200;

impl Poller for Worker {
    fn poll(&mut self, now: Duration) -> usize {
        let due = self.timers.pop(now);
        if self.rounds == 0 || due.is_some() {
            self.rounds += 1;
            self.to_self.send(self.rounds).unwrap();
            self.pending.take().map(|id| self.timers.cancel(id));
            self.pending = self.timers.insert(now + Duration::from_secs(60), 0);
            self.timers.insert(now + Duration::from_micros(20), self.rounds).unwrap();
        }
        let read = self.mail.receive();
        self.allocations_after = CountingAllocator::allocations();
        // The first rounds warm up what the kernel and the library set up on first use.
        if self.rounds == 10 {
            self.allocations_before.get_or_insert(self.allocations_after);
        }
        if self.rounds == ROUNDS {
            self.stop.request();
        }
        usize::from(due.is_some()) + usize::from(read.is_some())
    }
    fn next_timeout(&self) -> Option<Duration> {
        self.timers.next()
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
fn a_running_reactor_allocates_nothing() {
    let stop = StopFlag::new().unwrap();
    let (to_self, mail) = mailbox(4).unwrap();
    let mut worker = Worker {
        mail,
        to_self,
        timers: Timers::new(4),
        pending: None,
        rounds: 0,
        allocations_before: None,
        allocations_after: 0,
        stop: stop.clone(),
    };
    let mode = PollMode::Adaptive { spin: Duration::ZERO };
    let config = ReactorConfig { mode, ..ReactorConfig::default() };
    let stopped = Reactor::new(config, Clock::start()).unwrap().run(&mut worker, &stop).unwrap();
    assert!(stopped.statistics.sleeps > 10, "{stopped:?}");
    assert_eq!(Some(worker.allocations_after), worker.allocations_before);
}
