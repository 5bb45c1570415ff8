//! iWARP under the suite: both ends in one thread, over the loopback, polled alternately.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use stag_fabric::iwarp::{Iwarp, IwarpConfig};

use crate::bench::{Bench, Harness};

/// How far the clock moves when both sides are idle. Virtual: no thread waits for it.
const TICK: Duration = Duration::from_micros(20);

/// The providers' clock and settings.
pub(crate) struct OverTcp {
    now: Duration,
    config: IwarpConfig,
}

/// Runs a case: with CRCs and large FPDUs, then without, so that messages are cut to the segment size.
pub(crate) fn run(_name: &str, case: fn(&mut Bench<OverTcp>)) {
    let usual = IwarpConfig { connect_timeout: Duration::from_millis(500), ..IwarpConfig::default() };
    for config in [usual, IwarpConfig { crc: false, large_fpdus: false, ..usual }] {
        let mut bench = Bench::new(OverTcp { now: Duration::ZERO, config });
        case(&mut bench);
        bench.finish();
    }
}

impl Harness for OverTcp {
    type Provider = Iwarp;

    fn open(&mut self, _label: &str) -> Iwarp {
        Iwarp::open(self.config).expect("TCP needs nothing special")
    }

    fn address(&mut self) -> String {
        // Partner of nothing: only uniqueness matters, among tests that run at the same time. An address of the loopback
        // for each process, and ports below those that the system gives to connecting sockets.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (process, port) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        format!(
            "127.{}.{}.{}:{}",
            1 + process / 62_500 % 250,
            process / 250 % 250,
            1 + process % 250,
            10_000 + port
        )
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

    fn completes_early(&self) -> bool {
        true
    }

    fn finish(&mut self) {}
}
