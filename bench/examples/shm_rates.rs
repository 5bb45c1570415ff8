//! Measures the shm provider alone, between two pinned processes: the cost of a message and of a copy without
//! RPC.
//!
//! `cargo run --release -p stag-bench --example shm_rates [memcpy|one thread|echo|copies|fences]`
//!
//! For scale, the box's own limits come first: a bare echo of 64 bytes over two cache lines, and memcpy.

use std::env;
use std::mem::ManuallyDrop;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use memmap2::MmapOptions;
use rates::{DEPTH_MAX, LARGE, Reaped, SHAPE, WINDOWS, copies, echo, now, pin, report, report_copies, spawn};
use stag::fabric::{Completed, Completion, Exposed, Provider, QueuePairId, Shm, ShmConfig};
use stag_bench::bare::BareEnd;

mod rates;

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().collect();
    let argument = |at: usize| arguments.get(at).map(String::as_str);
    match argument(1) {
        Some("serve") => return serve(argument(2).context("serve NAME")?, argument(3) == Some("adaptive")),
        Some("bounce") => return bounce(argument(2).context("bounce DESCRIPTOR")?),
        _ => {}
    }
    pin(0);
    let only = argument(1).unwrap_or_default();
    let wanted = |what: &str| what.contains(only);
    println!("{:<44} {:>12} {:>12}", "", "best", "median");
    bare_echo()?;
    if wanted("memcpy") {
        memcpy();
    }
    if wanted("one thread") {
        one_thread()?;
    }
    for may_sleep in [false, true] {
        let mode = if may_sleep { "adaptive" } else { "busy" };
        let (mut child, name) = spawn(&["serve", &format!("rates-{}-{mode}", std::process::id()), mode])?;
        let mut side = side(may_sleep)?;
        let pair = side.connect(&name)?;
        println!("-- {mode}");
        for (depth, len) in [(1, 8), (1, 64), (4, 64), (DEPTH_MAX, 64)] {
            if wanted("echo") {
                echo(&mut side, pair, depth, len)?;
            }
        }
        for (len, depth) in [(4096, 1), (4096, 32), (LARGE, 2)] {
            for write in [true, false] {
                if wanted("copies") && !may_sleep {
                    copies(&mut side, pair, write, len, depth)?;
                }
            }
        }
        if wanted("fences") && !may_sleep {
            fences(&mut side, pair)?;
        }
        side.disconnect(pair)?;
        child.0.wait()?;
    }
    Ok(())
}

fn side(may_sleep: bool) -> Result<BareEnd<Shm>> {
    BareEnd::new(Shm::open(ShmConfig { may_sleep, ..ShmConfig::default() })?, SHAPE)
}

fn serve(name: &str, may_sleep: bool) -> Result<()> {
    pin(1);
    let mut side = side(may_sleep)?;
    side.provider.listen(name)?;
    println!("{name}");
    side.serve(|| false)
}

/// Expose and fence, without anybody using it.
fn fences(side: &mut BareEnd<Shm>, pair: QueuePairId) -> Result<()> {
    let mut costs = Vec::new();
    for _ in 0..WINDOWS.count / 4 {
        let begin = now();
        for _ in 0..100 {
            let buf = side.payload.take().context("no payload")?;
            let segment = side.provider.expose(pair, Exposed::Write(buf)).map_err(|r| r.error)?;
            side.provider.ring_doorbells();
            drop(side.provider.fence(pair, segment.handle, 0));
        }
        costs.push(begin.elapsed().as_nanos() as f64 / 100.0);
        // Let the server catch up with the announcements, even when it does not run right now.
        let until = now() + Duration::from_millis(20);
        while now() < until {
            side.poll()?;
        }
    }
    report("expose + doorbell + local fence [ns]", costs.into_iter(), true);
    Ok(())
}

/// What the code costs without the transfers: both sides in one thread, and a pass that finds nothing.
fn one_thread() -> Result<()> {
    let (mut client, mut server) = (side(false)?, side(false)?);
    let name = format!("rates-{}-one", std::process::id());
    server.provider.listen(&name)?;
    let pair = client.provider.connect(&name, b"", SHAPE.capacity())?;
    client.post_receives(pair)?;
    while client.established.is_none() || server.established.is_none() {
        client.poll()?;
        server.poll()?;
    }
    let peer = server.established.context("just established")?;
    let (mut messages, mut idle) = (Vec::new(), Vec::new());
    for _ in 0..WINDOWS.count {
        let (begin, mut done) = (now(), 0u64);
        while begin.elapsed() < WINDOWS.each {
            for _ in 0..8 {
                for _ in 0..DEPTH_MAX {
                    client.send(pair, 64)?;
                }
                client.provider.ring_doorbells();
                server.provider.poll(Duration::ZERO, &mut server.completions, 64);
                while let Some(Completion { completed: Completed::Receive { buf, .. }, .. }) =
                    server.completions.pop_front()
                {
                    server.provider.post_receive(peer, 0, buf).map_err(|r| r.error)?;
                    done += 1;
                }
            }
        }
        messages.push(begin.elapsed().as_nanos() as f64 / done as f64);
        let begin = now();
        for _ in 0..1000 {
            client.provider.poll(Duration::ZERO, &mut client.completions, 64);
        }
        idle.push(begin.elapsed().as_nanos() as f64 / 1000.0);
    }
    report("message 64 B, both sides in one thread [ns]", messages.into_iter(), true);
    report("idle pass [ns]", idle.into_iter(), true);
    let begin = now();
    for _ in 0..1000 {
        std::hint::black_box(now());
    }
    report("clock read [ns]", [begin.elapsed().as_nanos() as f64 / 1000.0].into_iter(), true);
    Ok(())
}

/// A word and 56 bytes on each of two lines.
#[repr(C, align(4096))]
struct Lines([Line; 2]);

#[repr(C, align(128))]
struct Line {
    flag: AtomicU64,
    payload: [AtomicU64; 7],
}

fn lines(fd: i32) -> &'static Lines {
    let map = MmapOptions::new().len(4096).map_raw(fd).expect("the memfd's only page");
    // Never unmapped.
    let map = ManuallyDrop::new(map);
    // SAFETY: a page of zeroes, aligned; all of it is atomics.
    unsafe { &*map.as_mut_ptr().cast::<Lines>() }
}

fn bounce(fd: &str) -> Result<()> {
    pin(1);
    let Lines([there, back]) = lines(fd.parse()?);
    let mut turn = 1;
    loop {
        let flag = there.flag.load(Ordering::Acquire);
        if flag == u64::MAX {
            return Ok(());
        }
        if flag == turn {
            for (to, from) in back.payload.iter().zip(&there.payload) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            back.flag.store(turn, Ordering::Release);
            turn += 1;
        }
    }
}

fn bare_echo() -> Result<()> {
    // SAFETY: a C string; no CLOEXEC, as the child inherits it.
    let fd = unsafe { libc::memfd_create(c"bare-echo".as_ptr(), 0) };
    // SAFETY: the descriptor just made.
    assert!(unsafe { libc::ftruncate(fd, 4096) } == 0);
    let Lines([there, back]) = lines(fd);
    let mut child = Reaped(Command::new(env::current_exe()?).args(["bounce", &fd.to_string()]).spawn()?);
    let mut turn = 0;
    let mut times = Vec::new();
    for _ in 0..WINDOWS.count {
        let (begin, mut done) = (now(), 0u64);
        while begin.elapsed() < WINDOWS.each {
            for _ in 0..64 {
                turn += 1;
                for (i, word) in there.payload.iter().enumerate() {
                    word.store(turn + i as u64, Ordering::Relaxed);
                }
                there.flag.store(turn, Ordering::Release);
                while back.flag.load(Ordering::Acquire) != turn {}
                done += 1;
            }
        }
        times.push(begin.elapsed().as_nanos() as f64 / done as f64);
    }
    there.flag.store(u64::MAX, Ordering::Release);
    child.0.wait()?;
    report("bare echo 64 B, round trip [ns]", times.into_iter(), true);
    Ok(())
}

fn memcpy() {
    for len in [4096, 1 << 20] {
        // Not at the same offset in a page: the processor takes that for an overlap.
        let (source, mut target) = (vec![1u8; len], vec![0u8; len + 512]);
        let mut rates = Vec::new();
        for _ in 0..WINDOWS.count {
            let (begin, mut done) = (now(), 0u64);
            while begin.elapsed() < WINDOWS.each {
                for _ in 0..(1 << 21) / len {
                    target[512..].copy_from_slice(std::hint::black_box(&source));
                    std::hint::black_box(&mut target);
                    done += 1;
                }
            }
            rates.push(done as f64 / begin.elapsed().as_secs_f64());
        }
        report_copies(&format!("memcpy {len} B, hot"), len, rates.into_iter());
    }
}
