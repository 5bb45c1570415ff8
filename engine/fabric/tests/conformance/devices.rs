//! The verbs provider under the suite: both ends in one thread, polled by turns.
//!
//! On a device of nothing (`fake`), of three kinds. Or on a real one: `STAG_VERBS_HOST` is an address
//! of this machine that an RDMA device has; `STAG_VERBS_WINDOWS` has it use its memory windows where that is not its way.

use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use stag_fabric::verbs::{Verbs, VerbsConfig};
use stag_fabric::{ExposureKind, Provider};

use crate::bench::{Bench, Harness};
use crate::fake;

/// How far the clock moves when both sides of the fake are idle. Virtual: nobody waits for it.
const TICK: Duration = Duration::from_micros(20);

/// How long a case may take on a real device before what it waits for is held to be lost.
const PATIENCE: Duration = Duration::from_secs(40);

/// A device, and ports to listen on.
pub(crate) struct Devices {
    /// An address of the real device.
    host: Option<String>,
    /// Where the fake listens.
    loopback: &'static str,
    /// Linux's software iWARP completes what TCP has taken, and keeps the peer's Terminate to itself.
    is_siw: bool,
    /// Linux's software RoCE, and memory is exposed by its windows.
    has_rxe_windows: bool,
    now: Duration,
}

/// Runs a case.
pub(crate) fn run(_name: &str, case: fn(&mut Bench<Devices>)) {
    if let Ok(host) = std::env::var("STAG_VERBS_HOST") {
        let mut bench = Bench::new(Devices::new(Some(host), "", clock()));
        case(&mut bench);
        bench.finish();
        return;
    }
    // InfiniBand with memory windows and without, and iWARP, which has none.
    for (has_windows, is_iwarp) in [(true, false), (false, false), (false, true)] {
        fake::reset(has_windows);
        fake::with(|world| world.is_iwarp = is_iwarp);
        let loopback = if is_iwarp { "[::1]" } else { "127.0.0.1" };
        let mut bench = Bench::new(Devices::new(None, loopback, Duration::ZERO));
        case(&mut bench);
        bench.finish();
        assert_eq!(fake::leaks(), [], "everything was freed");
    }
}

/// The machine's monotonic clock: a device takes real time.
fn clock() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes the one structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

impl Devices {
    fn new(host: Option<String>, loopback: &'static str, now: Duration) -> Devices {
        Devices { host, loopback, is_siw: false, has_rxe_windows: false, now }
    }
}

impl Harness for Devices {
    type Provider = Verbs;

    fn open(&mut self, _label: &str) -> Verbs {
        let by_windows = std::env::var_os("STAG_VERBS_WINDOWS").is_some();
        let config = VerbsConfig {
            setup_timeout: Duration::from_secs(if self.host.is_some() { 5 } else { 1 }),
            completions: 4096,
            exposure: by_windows.then_some(ExposureKind::MemoryWindow),
            ..VerbsConfig::default()
        };
        let verbs = match self.host {
            Some(_) => Verbs::open(config),
            // SAFETY: the fake does as the manual pages say.
            None => unsafe { Verbs::open_with(&fake::FAKE, config) },
        };
        let verbs = verbs.expect("there is a device");
        let is = |kind| verbs.device().is_some_and(|name| name.starts_with(kind));
        self.is_siw = is("siw");
        self.has_rxe_windows = is("rxe") && verbs.limits().exposure == ExposureKind::MemoryWindow;
        verbs
    }

    fn address(&mut self) -> String {
        // Partner of nothing: only uniqueness matters, among tests that run at the same time.
        static NEXT: AtomicU16 = AtomicU16::new(21_000);
        let host = self.host.as_deref().unwrap_or(self.loopback);
        format!("{host}:{}", NEXT.fetch_add(1, Ordering::Relaxed))
    }

    fn now(&self) -> Duration {
        if self.host.is_some() { clock() - self.now } else { self.now }
    }

    fn pass_time(&mut self) -> bool {
        if self.host.is_some() {
            std::thread::sleep(TICK);
            return self.now() < PATIENCE;
        }
        self.now += TICK;
        true
    }

    fn idle_turns_max(&self) -> u32 {
        500
    }

    fn completes_early(&self) -> bool {
        self.is_siw
    }

    fn tells_refusals(&self) -> bool {
        !self.is_siw
    }

    fn pads_private_data(&self) -> bool {
        true
    }

    fn survives_late_invalidations(&self) -> bool {
        // In Linux 6.1 rxe dereferences null when a window is invalidated that is not bound, and loses a reference when
        // one is that is being read through: then destroying the queue pair takes a minute.
        !self.has_rxe_windows
    }

    fn guards_against_reads(&self) -> bool {
        // It looks for the right to write before it places a Write, and for none before it answers a Read
        // (`siw_check_sgl_tx`): a peer that guesses a handle reads all that is registered in the queue pair's domain.
        !self.is_siw
    }

    fn finish(&mut self) {}
}
