//! Measures the shm provider alone, between two pinned processes: what a message and a copy cost before
//! any RPC is on top.
//!
//! `cargo run --release -p stag-fabric --example shm_rates [memcpy|one thread|echo|copies|fences]`
//!
//! Each figure is taken in many short windows; best and median are printed, as a machine that does other
//! things meanwhile spoils some windows, never improves one. For scale, the box's own limits come first: a
//! bare echo of 64 bytes over two cache lines, and memcpy.

use std::env;
use std::error::Error;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use stag_fabric::{
    Completed, Completion, DisconnectReason, Event, Exposed, Handle, Provider, QueuePairCapacity,
    QueuePairId, ReadPart, ReadRequest, RemoteSegment, SendRequest, Shm, ShmConfig, WriteRequest,
};
use stag_memory::{Arena, ArenaConfig, Budget, Buf, PageChoice, Pool};

type Outcome<T> = Result<T, Box<dyn Error>>;

const WINDOWS: usize = 40;
const WINDOW: Duration = Duration::from_millis(5);
const DEPTH_MAX: u32 = 32;

fn main() -> Outcome<()> {
    match env::args().nth(1).as_deref() {
        Some("serve") => return serve(&env::args().nth(2).ok_or("serve NAME")?),
        Some("bounce") => return bounce(&env::args().nth(2).ok_or("bounce DESCRIPTOR")?),
        _ => {}
    }
    pin(0);
    let only = env::args().nth(1).unwrap_or_default();
    let wanted = |what: &str| what.contains(&only);
    println!("{:<44} {:>12} {:>12}", "", "best", "median");
    bare_echo()?;
    if wanted("memcpy") {
        memcpy();
    }
    if wanted("one thread") {
        one_thread()?;
    }
    for may_sleep in [false, true] {
        let name = format!("rates-{}-{may_sleep}", std::process::id());
        let mode = if may_sleep { "adaptive" } else { "busy" };
        let child = Command::new(env::current_exe()?).args(["serve", &name, mode]).spawn()?;
        let mut reaped = Reaped(child);
        let mut side = Side::new(may_sleep)?;
        let pair = side.connect(&name)?;
        println!("-- {mode}");
        for (depth, len) in [(1, 8), (1, 64), (4, 64), (DEPTH_MAX, 64)] {
            if wanted("echo") {
                side.echo(pair, depth, len)?;
            }
        }
        for (len, batch) in [(4096, 1), (4096, 32), (1 << 20, 2)] {
            if wanted("copies") && !may_sleep {
                side.copies(pair, len, batch)?;
            }
        }
        if wanted("fences") && !may_sleep {
            side.fences(pair)?;
        }
        side.shm.disconnect(pair);
        while side.disconnected.is_none() {
            side.poll();
        }
        reaped.0.wait()?;
    }
    Ok(())
}

struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

struct Side {
    shm: Shm,
    start: Instant,
    messages: Pool,
    payload: Pool,
    completions: Vec<Completion>,
    established: Option<QueuePairId>,
    disconnected: Option<QueuePairId>,
    /// What the server lets us write, and read.
    segments: Option<[RemoteSegment; 2]>,
}

const CAPACITY: QueuePairCapacity = QueuePairCapacity {
    receives: 2 * DEPTH_MAX,
    sends: 2 * DEPTH_MAX,
    exposures: 64,
    send_len_max: 1024,
    receive_len_max: 1024,
};

impl Side {
    fn new(may_sleep: bool) -> Outcome<Side> {
        let budget = Budget::new(64 << 20);
        let config =
            ArenaConfig { name: "rates", len: 16 << 20, page: PageChoice::Auto, node: None, budget: &budget };
        let arena = Arena::new(&config)?;
        let messages = Pool::fixed(&arena, "messages", 1024, 512)?;
        let payload = Pool::runs(&arena, "payload", 4096, 2048)?;
        let mut shm = Shm::open(ShmConfig { may_sleep, ..ShmConfig::default() })?;
        shm.register(&arena)?;
        Ok(Side {
            shm,
            start: now(),
            messages,
            payload,
            completions: Vec::with_capacity(256),
            established: None,
            disconnected: None,
            segments: None,
        })
    }

    fn message(&self, len: usize) -> Buf {
        let mut buf = self.messages.take().expect("there are more than are ever posted");
        buf.set_len(len);
        buf
    }

    /// One pass; the clock is read as a reactor would, once.
    fn poll(&mut self) -> usize {
        let now = self.start.elapsed();
        let count = self.shm.poll(now, &mut self.completions, 64);
        if count == 0 {
            self.events();
        }
        count
    }

    fn events(&mut self) {
        match self.shm.poll_event() {
            Some(Event::Established { queue_pair, .. }) => self.established = Some(queue_pair),
            Some(Event::Disconnected { queue_pair, reason }) => {
                self.disconnected = Some(queue_pair);
                if self.established.is_some()
                    && !matches!(reason, DisconnectReason::Local | DisconnectReason::Peer)
                {
                    eprintln!("disconnected: {reason:?}");
                }
            }
            Some(Event::ConnectRequest { request, .. }) => {
                let pair = self.shm.prepare(request, CAPACITY).expect("one queue pair fits");
                self.post_receives(pair);
                self.shm.accept(pair, b"").expect("just prepared");
            }
            _ => {}
        }
    }

    fn post_receives(&mut self, pair: QueuePairId) {
        for _ in 0..CAPACITY.receives {
            let buf = self.message(0);
            self.shm.post_receive(pair, 0, buf).expect("within the capacity");
        }
    }

    fn connect(&mut self, name: &str) -> Outcome<QueuePairId> {
        for _ in 0..2000 {
            let pair = self.shm.connect(name, b"", CAPACITY)?;
            self.post_receives(pair);
            while self.established.is_none() && self.disconnected.is_none() {
                self.poll();
                self.completions.clear();
            }
            if self.established.is_some() {
                // The server's first message is what it exposes.
                while self.segments.is_none() {
                    self.poll();
                    while let Some(completion) = self.completions.pop() {
                        if let Completed::Receive { buf, .. } = completion.completed {
                            let word =
                                |at: usize| u64::from_ne_bytes(buf[at..at + 8].try_into().expect("8 bytes"));
                            let segment =
                                |at| RemoteSegment { handle: Handle(word(at) as u32), offset: word(at + 8) };
                            self.segments = Some([segment(0), segment(16)]);
                            self.shm.post_receive(pair, 0, buf).expect("it was just received");
                        }
                    }
                }
                return Ok(pair);
            }
            self.disconnected = None;
            std::thread::sleep(Duration::from_millis(5));
        }
        Err("the server did not come up".into())
    }

    /// Messages there and back, `depth` under way.
    fn echo(&mut self, pair: QueuePairId, depth: u32, len: usize) -> Outcome<()> {
        let mut rates = Vec::new();
        for _ in 0..WINDOWS {
            for _ in 0..depth {
                self.send(pair, len);
            }
            self.shm.ring_doorbells();
            let begin = now();
            let (mut done, mut passes) = (0u64, 0u64);
            loop {
                passes += 1;
                if passes.is_multiple_of(64) && begin.elapsed() > WINDOW {
                    break;
                }
                if self.poll() == 0 {
                    continue;
                }
                done += self.answer(pair, len);
            }
            rates.push(done as f64 / begin.elapsed().as_secs_f64());
            let mut left = depth;
            while left > 0 {
                self.poll();
                while let Some(completion) = self.completions.pop() {
                    if let Completed::Receive { buf, .. } = completion.completed {
                        self.shm.post_receive(pair, 0, buf).expect("it was just received");
                        left -= 1;
                    }
                }
            }
        }
        if depth == 1 {
            report(&format!("echo {len} B, depth 1, round trip [ns]"), rates.iter().map(|r| 1e9 / r), true);
        } else {
            report(&format!("echo {len} B, depth {depth} [M/s]"), rates.iter().map(|r| r / 1e6), false);
        }
        Ok(())
    }

    fn send(&mut self, pair: QueuePairId, len: usize) {
        let buf = self.message(len);
        let request = SendRequest { id: 0, buf, invalidate: None, signaled: false };
        self.shm.post_send(pair, request).expect("the depth is within the capacity");
    }

    /// Answers each message with one; returns how many there were.
    fn answer(&mut self, pair: QueuePairId, len: usize) -> u64 {
        let mut received = 0;
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            if let Completed::Receive { buf, .. } = completion.completed {
                if self.shm.post_receive(pair, 0, buf).is_err() {
                    continue;
                }
                self.send(pair, len);
                received += 1;
            }
        }
        self.completions = completions;
        self.shm.ring_doorbells();
        received
    }

    /// Writes and Reads of `len` bytes, `batch` for each doorbell.
    fn copies(&mut self, pair: QueuePairId, len: usize, batch: usize) -> Outcome<()> {
        let [written, read] = self.segments.ok_or("no segments")?;
        let source = self.payload.take_len(len).ok_or("no payload")?.share();
        let mut target = Some(self.payload.take_len(len).ok_or("no payload")?);
        for write in [true, false] {
            let mut rates = Vec::new();
            for _ in 0..WINDOWS {
                let begin = now();
                let mut done = 0u64;
                while begin.elapsed() < WINDOW {
                    for _ in 0..batch {
                        if write {
                            let request = WriteRequest {
                                id: 0,
                                source: source.clone(),
                                target: written,
                                signaled: false,
                            };
                            self.shm.post_write(pair, request).map_err(|r| r.error)?;
                        } else {
                            let buf = target.take().ok_or("the target is under way")?;
                            let part = ReadPart { at: 0, len: len as u32, source: read };
                            let request = ReadRequest { id: 0, target: buf };
                            self.shm.post_read(pair, request, &[part]).map_err(|r| r.error)?;
                            while self.shm.poll(self.start.elapsed(), &mut self.completions, 64) == 0 {}
                            if let Some(Completion { completed: Completed::Read(buf), .. }) =
                                self.completions.pop()
                            {
                                target = Some(buf);
                            }
                        }
                        done += 1;
                    }
                    self.shm.ring_doorbells();
                }
                rates.push(done as f64 / begin.elapsed().as_secs_f64());
            }
            let verb = if write { "Write" } else { "Read" };
            let what = format!("{verb} {len} B, {batch} a doorbell");
            if len < 65536 {
                report(&format!("{what} [M/s]"), rates.iter().map(|r| r / 1e6), false);
            } else {
                report(&format!("{what} [GB/s]"), rates.iter().map(|r| r * len as f64 / 1e9), false);
            }
        }
        Ok(())
    }

    /// Expose and fence, without anybody using it.
    fn fences(&mut self, pair: QueuePairId) -> Outcome<()> {
        let mut costs = Vec::new();
        for _ in 0..WINDOWS / 4 {
            let begin = now();
            for _ in 0..100 {
                let buf = self.payload.take().ok_or("no payload")?;
                let segment = self.shm.expose(pair, Exposed::Write(buf)).map_err(|r| r.error)?;
                self.shm.ring_doorbells();
                drop(self.shm.fence(pair, segment.handle, 0));
            }
            costs.push(begin.elapsed().as_nanos() as f64 / 100.0);
            // Let the server catch up with the announcements, even when it does not run right now.
            let until = now() + Duration::from_millis(20);
            while now() < until {
                self.poll();
            }
        }
        report("expose + doorbell + local fence [ns]", costs.into_iter(), true);
        Ok(())
    }
}

/// What the code costs without the transfers: both sides in one thread, and a pass that finds nothing.
fn one_thread() -> Outcome<()> {
    let (mut client, mut server) = (Side::new(false)?, Side::new(false)?);
    let name = format!("rates-{}-one", std::process::id());
    server.shm.listen(&name)?;
    let pair = client.shm.connect(&name, b"", CAPACITY)?;
    client.post_receives(pair);
    while client.established.is_none() || server.established.is_none() {
        client.poll();
        server.poll();
    }
    let peer = server.established.ok_or("just established")?;
    let (mut messages, mut idle) = (Vec::new(), Vec::new());
    for _ in 0..WINDOWS {
        let (begin, mut done) = (now(), 0u64);
        while begin.elapsed() < WINDOW {
            for _ in 0..8 {
                for _ in 0..DEPTH_MAX {
                    client.send(pair, 64);
                }
                client.shm.ring_doorbells();
                server.shm.poll(Duration::ZERO, &mut server.completions, 64);
                while let Some(Completion { completed: Completed::Receive { buf, .. }, .. }) =
                    server.completions.pop()
                {
                    server.shm.post_receive(peer, 0, buf).map_err(|r| r.error)?;
                    done += 1;
                }
            }
        }
        messages.push(begin.elapsed().as_nanos() as f64 / done as f64);
        let begin = now();
        for _ in 0..1000 {
            client.shm.poll(Duration::ZERO, &mut client.completions, 64);
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

fn serve(name: &str) -> Outcome<()> {
    pin(1);
    let may_sleep = env::args().nth(3).as_deref() == Some("adaptive");
    let mut side = Side::new(may_sleep)?;
    side.shm.listen(name)?;
    let mut exposed = false;
    while side.disconnected.is_none() {
        if let (Some(pair), false) = (side.established, exposed) {
            exposed = true;
            let mut message = side.message(32);
            for (i, at) in [0, 16].into_iter().enumerate() {
                let buf = side.payload.take_len(1 << 20).ok_or("no payload")?;
                let exposed = if i == 0 { Exposed::Write(buf) } else { Exposed::Read(buf.share()) };
                let segment = side.shm.expose(pair, exposed).map_err(|r| r.error)?;
                message[at..at + 8].copy_from_slice(&u64::from(segment.handle.0).to_ne_bytes());
                message[at + 8..at + 16].copy_from_slice(&segment.offset.to_ne_bytes());
            }
            let request = SendRequest { id: 0, buf: message, invalidate: None, signaled: false };
            side.shm.post_send(pair, request).map_err(|r| r.error)?;
            side.shm.ring_doorbells();
        }
        if side.poll() > 0 {
            if let Some(pair) = side.established {
                let len = side.completions.iter().find_map(|c| match &c.completed {
                    Completed::Receive { buf, .. } => Some(buf.len()),
                    _ => None,
                });
                side.answer(pair, len.unwrap_or(0));
            }
            side.completions.clear();
        }
    }
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
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new shared mapping of the memfd's only page, never unmapped.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_SHARED, fd, 0) };
    assert!(base != libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
    // SAFETY: a page of zeroes, aligned; all of it is atomics.
    unsafe { &*base.cast::<Lines>() }
}

fn bounce(fd: &str) -> Outcome<()> {
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

fn bare_echo() -> Outcome<()> {
    // SAFETY: a C string; no CLOEXEC, as the child inherits it.
    let fd = unsafe { libc::memfd_create(c"bare-echo".as_ptr(), 0) };
    // SAFETY: the descriptor just made.
    assert!(unsafe { libc::ftruncate(fd, 4096) } == 0);
    let Lines([there, back]) = lines(fd);
    let mut child = Reaped(Command::new(env::current_exe()?).args(["bounce", &fd.to_string()]).spawn()?);
    let mut turn = 0;
    let mut times = Vec::new();
    for _ in 0..WINDOWS {
        let (begin, mut done) = (now(), 0u64);
        while begin.elapsed() < WINDOW {
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
        for _ in 0..WINDOWS {
            let (begin, mut done) = (now(), 0u64);
            while begin.elapsed() < WINDOW {
                for _ in 0..(1 << 21) / len {
                    target[512..].copy_from_slice(std::hint::black_box(&source));
                    std::hint::black_box(&mut target);
                    done += 1;
                }
            }
            rates.push(done as f64 / begin.elapsed().as_secs_f64());
        }
        if len < 65536 {
            report(&format!("memcpy {len} B, hot [M/s]"), rates.iter().map(|r| r / 1e6), false);
        } else {
            report(&format!("memcpy {len} B, hot [GB/s]"), rates.iter().map(|r| r * len as f64 / 1e9), false);
        }
    }
}

fn report(what: &str, values: impl Iterator<Item = f64>, less_is_better: bool) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let best = if less_is_better { values[0] } else { values[values.len() - 1] };
    println!("{what:<44} {best:>12.2} {:>12.2}", values[values.len() / 2]);
}

#[expect(clippy::disallowed_methods, reason = "a measurement has no reactor whose clock it could use")]
fn now() -> Instant {
    Instant::now()
}

/// Pins this process to the core `wanted` if there is one.
fn pin(wanted: usize) {
    // SAFETY: all zeroes is an empty set; CPU_SET is told a core below its capacity.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(wanted, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}
