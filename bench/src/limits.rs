//! The limits of the box itself, measured in the same run as Stag: the references of every ratio.
//!
//! Two threads on the two cores under test. Each measurement is taken `repeat` times; the median counts. None takes
//! longer than `TIME_MAX`, however slow the machine is.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::TryRecvError;
use std::thread;
use std::time::Duration;

use serde::Serialize;
use stag_runtime::Clock;

use crate::pin::pin;
use crate::spread::Spread;

pub mod bare;
mod batched;
pub mod tcp;
mod tcp_ends;

/// How long one measurement may take.
const TIME_MAX: Duration = Duration::from_millis(500);

/// How often a measurement looks at the time, in rounds.
const LOOK_INTERVAL: u64 = 1024;

/// One cache line that two cores write in turns.
#[repr(align(128))]
#[derive(Default)]
struct Line {
    words: [AtomicU64; 8],
}

/// Slots of each echo ring.
const RING_SLOTS: usize = 256;

/// Echoes outstanding at most: more gain nothing.
const ECHO_DEPTH_MAX: usize = RING_SLOTS / 2;

/// The box's limits for one pair of cores.
#[derive(Clone, Debug, Serialize)]
pub struct MachineLimits {
    /// One transfer of a cache line from core to core, in nanoseconds: half a ping-pong.
    pub line_transfer_ns: Spread,
    /// Round trip of a bare 64 B echo over two rings, one at a time, in nanoseconds.
    pub echo_round_trip_ns: Spread,
    /// Bare 64 B echoes a second over two rings at `echo_depth`.
    pub echo_per_second: Spread,
    /// The depth of the figure above.
    pub echo_depth: usize,
    /// memcpy of `copy_len` octets whose target no other core touches, in octets a second.
    pub copy_hot: Spread,
    /// memcpy of `copy_len` octets into a target of which the other core reads every line before the next copy
    /// into it, both at work at the same time, in octets a second.
    pub copy_read: Spread,
    /// The size of the two figures above.
    pub copy_len: usize,
}

/// Measures the limits of `cores` (client, server) for `depth` messages outstanding, 128 at most, and transfers of `copy_len` octets.
#[must_use]
pub fn measure(cores: [usize; 2], depth: usize, copy_len: usize, repeat: usize) -> MachineLimits {
    let (depth, copy_len) = (depth.clamp(1, ECHO_DEPTH_MAX), copy_len.max(64));
    let mut line = Vec::new();
    let mut echo = Vec::new();
    let mut rate = Vec::new();
    let mut hot = Vec::new();
    let mut read = Vec::new();
    for _ in 0..repeat.max(1) {
        line.push(ping_pong(cores));
        echo.push(echo_over_rings(cores, 1, 200_000));
        rate.push(1e9 / echo_over_rings(cores, depth, 1_000_000));
        hot.push(copy_hot(cores[1], copy_len));
        read.push(copy_read(cores, copy_len));
    }
    MachineLimits {
        line_transfer_ns: Spread::of(line),
        echo_round_trip_ns: Spread::of(echo),
        echo_per_second: Spread::of(rate),
        echo_depth: depth,
        copy_hot: Spread::of(hot),
        copy_read: Spread::of(read),
        copy_len,
    }
}

/// One cache-line transfer, in nanoseconds.
pub(crate) fn ping_pong(cores: [usize; 2]) -> f64 {
    const ROUNDS: u64 = 100_000;
    const OVER: u64 = u64::MAX;
    let line = Arc::new(Line::default());
    let other = Arc::clone(&line);
    let echo = thread::spawn(move || {
        pin(cores[1]);
        let mut round = 0;
        loop {
            // Acquire pairs with the pinger's release-store of an odd number.
            match other.words[0].load(Ordering::Acquire) {
                OVER => return,
                found if found == 2 * round + 1 => {
                    other.words[0].store(2 * round + 2, Ordering::Release);
                    round += 1;
                }
                _ => std::hint::spin_loop(),
            }
        }
    });
    let nanoseconds = on_core(cores[0], move |clock| {
        let start = clock.now();
        let mut rounds = 0;
        while rounds < ROUNDS && (rounds % LOOK_INTERVAL != 0 || clock.now() - start < TIME_MAX) {
            line.words[0].store(2 * rounds + 1, Ordering::Release);
            // Acquire pairs with the echo's release-store of an even number.
            while line.words[0].load(Ordering::Acquire) != 2 * rounds + 2 {
                std::hint::spin_loop();
            }
            rounds += 1;
        }
        let took = clock.now() - start;
        line.words[0].store(OVER, Ordering::Release);
        took.as_nanos() as f64 / (2 * rounds) as f64
    });
    join(echo);
    nanoseconds
}

/// A ring of 64 B messages: seven words of payload and one of sequence number, on one line.
struct Ring {
    slots: Box<[Line]>,
}

impl Ring {
    fn new() -> Ring {
        Ring { slots: (0..RING_SLOTS).map(|_| Line::default()).collect() }
    }

    #[inline]
    fn put(&self, sequence: u64) {
        let line = &self.slots[sequence as usize % RING_SLOTS];
        for word in &line.words[..7] {
            word.store(sequence, Ordering::Relaxed);
        }
        line.words[7].store(sequence + 1, Ordering::Release);
    }

    #[inline]
    fn take(&self, sequence: u64) -> bool {
        let line = &self.slots[sequence as usize % RING_SLOTS];
        // Acquire pairs with the release-store in `put`.
        if line.words[7].load(Ordering::Acquire) != sequence + 1 {
            return false;
        }
        let mut sum = 0;
        for word in &line.words[..7] {
            sum ^= word.load(Ordering::Relaxed);
        }
        black_box(sum);
        true
    }
}

/// Nanoseconds for each of `count` echoes with `depth` outstanding, or of as many as there is time for.
fn echo_over_rings(cores: [usize; 2], depth: usize, count: u64) -> f64 {
    let depth = depth.clamp(1, ECHO_DEPTH_MAX) as u64;
    let rings = Arc::new([Ring::new(), Ring::new()]);
    let theirs = Arc::clone(&rings);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let echo = thread::spawn(move || {
        pin(cores[1]);
        let mut done = 0;
        // Relaxed: nothing is read because of it.
        while !stopped.load(Ordering::Relaxed) {
            if theirs[0].take(done) {
                theirs[1].put(done);
                done += 1;
            } else {
                std::hint::spin_loop();
            }
        }
    });
    let nanoseconds = on_core(cores[0], move |clock| {
        let start = clock.now();
        let (mut sent, mut received, mut count) = (0, 0, count);
        while received < count {
            while sent < count && sent - received < depth {
                if sent % LOOK_INTERVAL == 0 && clock.now() - start >= TIME_MAX {
                    count = sent;
                    break;
                }
                rings[0].put(sent);
                sent += 1;
            }
            if rings[1].take(received) {
                received += 1;
            } else {
                std::hint::spin_loop();
            }
        }
        let took = clock.now() - start;
        stop.store(true, Ordering::Relaxed);
        took.as_nanos() as f64 / received.max(1) as f64
    });
    join(echo);
    nanoseconds
}

/// Copies before those that count.
const WARM_UP: usize = 4;

/// Bytes a second of a copy whose target stays with the copying core.
fn copy_hot(core: usize, len: usize) -> f64 {
    on_core(core, move |clock| {
        let sources = [vec![1u8; len], vec![2u8; len]];
        let mut targets = [vec![0u8; len], vec![0u8; len]];
        let (mut took, mut count) = (Duration::ZERO, 0);
        while count < WARM_UP + rounds(len) && took < TIME_MAX {
            let start = clock.now();
            targets[count % 2].copy_from_slice(&sources[count % 2]);
            black_box(&mut targets[count % 2]);
            count += 1;
            if count > WARM_UP {
                took += clock.now() - start;
            }
        }
        ((count - WARM_UP) * len) as f64 / took.as_secs_f64()
    })
}

/// Bytes a second through a loop of two cores: one copies, the other reads every line of the copy, and gives the
/// buffer back.
fn copy_read(cores: [usize; 2], len: usize) -> f64 {
    // Two buffers travel between the copier and the reader, so that each has one in hand (depth 2).
    let (to_reader, from_copier) = std::sync::mpsc::sync_channel::<Vec<u8>>(2);
    let (to_copier, from_reader) = std::sync::mpsc::sync_channel::<Vec<u8>>(2);
    for _ in 0..2 {
        // The channel has room for both.
        let _ = to_copier.send(vec![0u8; len]);
    }
    let reader = thread::spawn(move || {
        pin(cores[0]);
        loop {
            match from_copier.try_recv() {
                Ok(buf) => {
                    black_box(touch(&buf));
                    if to_copier.send(buf).is_err() {
                        return;
                    }
                }
                Err(TryRecvError::Empty) => std::hint::spin_loop(),
                Err(TryRecvError::Disconnected) => return,
            }
        }
    });
    let rate = on_core(cores[1], move |clock| {
        let sources = [vec![1u8; len], vec![2u8; len]];
        let next = || loop {
            match from_reader.try_recv() {
                Err(TryRecvError::Empty) => std::hint::spin_loop(),
                found => return found.ok(),
            }
        };
        let (mut start, mut count) = (clock.now(), 0);
        while count < WARM_UP + rounds(len) && clock.now() - start < TIME_MAX {
            let Some(mut buf) = next() else { break };
            if count == WARM_UP {
                start = clock.now();
            }
            buf.copy_from_slice(&sources[count % 2]);
            black_box(&mut buf);
            count += 1;
            if to_reader.send(buf).is_err() {
                break;
            }
        }
        // What was copied counts when it was read.
        let _ = (next(), next());
        let took = clock.now() - start;
        (count.saturating_sub(WARM_UP) * len) as f64 / took.as_secs_f64()
    });
    join(reader);
    rate
}

/// Reads one octet of every cache line.
#[inline]
#[must_use]
pub fn touch(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(64).map(|&octet| u64::from(octet)).sum()
}

/// Enough copies for a steady figure: about 256 MiB of them, 20,000 at most.
fn rounds(len: usize) -> usize {
    ((256 << 20) / len).clamp(32, 20_000)
}

fn on_core<T: Send + 'static>(core: usize, work: impl FnOnce(&Clock) -> T + Send + 'static) -> T {
    join(thread::spawn(move || {
        pin(core);
        let clock = Clock::start();
        work(&clock)
    }))
}

fn join<T>(thread: thread::JoinHandle<T>) -> T {
    match thread.join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
