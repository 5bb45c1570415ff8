//! The verbs provider under the suite: both ends in one thread, polled alternately.
//!
//! On a device of nothing (`fake`), of several kinds. Or on a real one: `STAG_VERBS_HOST` is an address of this machine that
//! an RDMA device has; `STAG_VERBS_WINDOWS` has it use its memory windows where that is not its way, `STAG_VERBS_STANDING`
//! standing exposures, `STAG_VERBS_SHARED` a shared receive queue.

use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use stag_fabric::verbs::{SharedReceives, Verbs, VerbsConfig};
use stag_fabric::{ExposureKind, Provider};

use crate::bench::{Bench, Harness, MESSAGE};
use crate::fake;

/// How far the clock moves when both sides of the fake are idle. Virtual: no thread waits for it.
const TICK: Duration = Duration::from_micros(20);

/// Where queue pairs share their Receives: enough for every case.
const SHARED: SharedReceives = SharedReceives { count: 512, len: MESSAGE as u32 };

/// How long a case may take on a real device before what it waits for is held to be lost.
const PATIENCE: Duration = Duration::from_secs(40);

/// Kernels whose rxe was seen to be at fault with windows. Of others, the suite finds out.
const FAULTY: [&str; 2] = ["6.1.", "6.12."];

/// A device, and ports to listen on.
pub(crate) struct Devices {
    /// An address of the real device.
    host: Option<String>,
    /// What the fake is, and how a device is used.
    kind: Kind,
    /// Linux's software iWARP completes what TCP has taken, and keeps the peer's Terminate to itself.
    is_siw: bool,
    /// Linux's software RoCE, and memory is exposed by its windows, on a kernel that is known.
    has_faulty_windows: bool,
    now: Duration,
}

/// Runs a case.
pub(crate) fn run(_name: &str, case: fn(&mut Bench<Devices>)) {
    if let Ok(host) = std::env::var("STAG_VERBS_HOST") {
        let asked = |name| std::env::var_os(name).is_some();
        let exposure = match () {
            () if asked("STAG_VERBS_WINDOWS") => Some(ExposureKind::MemoryWindow),
            () if asked("STAG_VERBS_STANDING") => Some(ExposureKind::Standing),
            () => None,
        };
        let kind = Kind { exposure, shares_receives: asked("STAG_VERBS_SHARED"), ..KINDS[0] };
        let mut bench = Bench::new(Devices::new(Some(host), kind, clock()));
        case(&mut bench);
        bench.finish();
        return;
    }
    let mut left_out = Vec::new();
    for kind in KINDS {
        fake::reset(kind.has_windows);
        fake::with(|world| world.is_iwarp = kind.is_iwarp);
        let mut bench = Bench::new(Devices::new(None, kind, Duration::ZERO));
        case(&mut bench);
        left_out.extend(bench.left_out.take());
        bench.finish();
        assert_eq!(fake::leaks(), [], "everything was freed");
    }
    if left_out.len() == KINDS.len() {
        stag_testing::skipped(left_out[0]);
    }
}

/// A kind of device of nothing, and how it is used.
#[derive(Clone, Copy)]
struct Kind {
    has_windows: bool,
    is_iwarp: bool,
    loopback: &'static str,
    exposure: Option<ExposureKind>,
    shares_receives: bool,
}

/// InfiniBand with memory windows and without, and iWARP, likewise; then what is only used when asked for.
const KINDS: [Kind; 6] = {
    let windows = Kind {
        has_windows: true,
        is_iwarp: false,
        loopback: "127.0.0.1",
        exposure: None,
        shares_receives: false,
    };
    let iwarp = Kind { has_windows: false, is_iwarp: true, loopback: "[::1]", ..windows };
    [
        windows,
        Kind { has_windows: false, ..windows },
        iwarp,
        Kind { has_windows: true, ..iwarp },
        Kind { shares_receives: true, ..windows },
        Kind { shares_receives: true, exposure: Some(ExposureKind::Standing), ..iwarp },
    ]
};

/// The machine's monotonic clock: a device takes real time.
fn clock() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes the one structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The kernel's version.
fn osrelease() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("every Linux has it")
}

impl Devices {
    fn new(host: Option<String>, kind: Kind, now: Duration) -> Devices {
        Devices { host, kind, is_siw: false, has_faulty_windows: false, now }
    }
}

impl Harness for Devices {
    type Provider = Verbs;

    fn open(&mut self, _label: &str) -> Verbs {
        let config = VerbsConfig {
            setup_timeout: Duration::from_secs(if self.host.is_some() { 5 } else { 1 }),
            completions: 4096,
            // A silent peer is probed all the time, and no test may notice.
            keep_alive: Some(Duration::from_millis(if self.host.is_some() { 100 } else { 1 })),
            exposure: self.kind.exposure,
            shared_receives: self.kind.shares_receives.then_some(SHARED),
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
        let has_windows = verbs.limits().exposure == ExposureKind::MemoryWindow;
        self.has_faulty_windows =
            is("rxe") && has_windows && FAULTY.iter().any(|kernel| osrelease().starts_with(kernel));
        verbs
    }

    fn address(&mut self) -> String {
        // Partner of nothing: only uniqueness matters, among tests that run at the same time.
        static NEXT: AtomicU16 = AtomicU16::new(21_000);
        let host = self.host.as_deref().unwrap_or(self.kind.loopback);
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
        // rxe dereferences null (`rxe_do_invalidate_mw`), and the kernel panics.
        !self.has_faulty_windows
    }

    fn guards_bounds(&self) -> bool {
        // rxe looks whether the access is in the region that the window is in (`check_rkey`).
        !self.has_faulty_windows
    }

    fn guards_against_reads(&self) -> bool {
        // It looks for the right to write before it places a Write, and for none before it answers a Read
        // (`siw_check_sgl_tx`): a peer that guesses a handle reads all that is registered in the queue pair's domain.
        !self.is_siw
    }

    fn is_one_of_several(&self) -> bool {
        self.host.is_none()
    }

    fn finish(&mut self) {}
}
