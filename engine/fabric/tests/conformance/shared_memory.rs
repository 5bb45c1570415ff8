//! Shared memory under the suite: both ends in one thread, polled alternately. Two processes have tests of
//! their own beside the provider.
//! their own beside the provider.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use stag_fabric::shm::{Shm, ShmConfig};

use crate::bench::{Bench, Harness};

/// How far the clock moves when both sides are idle. Virtual: no thread waits for it.
const TICK: Duration = Duration::from_micros(20);

/// The providers' clock, and names for rendezvous.
pub(crate) struct SharedMemory {
    now: Duration,
}

/// Runs a case.
pub(crate) fn run(_name: &str, case: fn(&mut Bench<SharedMemory>)) {
    let mut bench = Bench::new(SharedMemory { now: Duration::ZERO });
    case(&mut bench);
    bench.finish();
}

impl Harness for SharedMemory {
    type Provider = Shm;

    fn open(&mut self, _label: &str) -> Shm {
        let config = ShmConfig { setup_timeout: Duration::from_millis(500), ..ShmConfig::default() };
        Shm::open(config).expect("shared memory needs nothing special")
    }

    fn address(&mut self) -> String {
        // Partner of nothing: only uniqueness matters, among tests that run at the same time.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!("stag-conformance-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
    }

    fn now(&self) -> Duration {
        self.now
    }

    fn pass_time(&mut self) -> bool {
        self.now += TICK;
        true
    }

    fn idle_turns_max(&self) -> u32 {
        500
    }

    fn finish(&mut self) {}
}
