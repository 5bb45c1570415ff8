//! How many Calls are made and in which way, where counting begins, and what is said at the end.

use std::hint;
use std::time::Duration;

/// Octets of payload memory at each end.
pub(crate) const PAYLOAD_LEN: usize = 16 << 20;

/// Calls before those that are counted. After them pools, tables and credits have the size that they keep.
pub(crate) const WARM_UP: u64 = 256;

/// What is behind the `+` of a kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Plain,
    Carried,
    Second,
    Recorded,
    Both,
}

impl Way {
    pub(crate) fn of(kind: &str) -> Way {
        match kind.split_once('+') {
            Some((_, "carried")) => Way::Carried,
            Some((_, "second")) => Way::Second,
            Some((_, "recorded")) => Way::Recorded,
            Some((_, "both")) => Way::Both,
            _ => Way::Plain,
        }
    }
}

/// Calls that are counted, outstanding at once, the time between turns, and connections that carry none.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) count: u64,
    pub(crate) depth: u64,
    pub(crate) pause: Duration,
    pub(crate) way: Way,
    pub(crate) idle: u32,
}

/// Says how much of the processor's time, in nanoseconds at either end, a Call took.
pub(crate) fn say(counted: u64, passes: u64, used: [u64; 2]) {
    let [client, server] = used.map(|used| used / counted.max(1));
    println!(
        "{counted} Calls in {passes} passes; processor time of one: client {client} ns, server {server} ns"
    );
}

/// Nanoseconds that this thread has had a processor, in the kernel too: what others use meanwhile does not count.
pub(crate) fn thread_time() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes, for as long as the call takes.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(status, 0, "the clock of a thread that runs");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Does nothing: callgrind sets its counters to zero here.
#[inline(never)]
pub(crate) fn counted_from_here() {
    hint::black_box(());
}
