//! Measures the iWARP provider alone, between two pinned processes over the loopback: what messages and transfers cost before
//! any RPC is on top.
//!
//! `cargo run --release -p stag-fabric --example iwarp_rates [PART OF A NAME] [ALGORITHM]`
//!
//! Each figure is taken in many short windows; best and median are printed, as a machine that does other things meanwhile
//! spoils some windows, never improves one. For scale, the box's own limits come first: TCP by itself, polled as the
//! provider polls it, with as many octets. All sockets use the same congestion control algorithm, `reno` unless
//! another one is named: some pace even the loopback.

use std::env;
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use stag_fabric::iwarp::{CongestionControl, Iwarp, IwarpConfig};
use stag_fabric::{
    Completed, Completion, Event, Exposed, Handle, Provider, QueuePairCapacity, QueuePairId, ReadPart,
    ReadRequest, RemoteSegment, SendRequest, WriteRequest,
};
use stag_memory::{Arena, ArenaConfig, Budget, Buf, PageChoice, Pool};

type Outcome<T> = Result<T, Box<dyn Error>>;

const WINDOWS: usize = 40;
const WINDOW: Duration = Duration::from_millis(10);
const DEPTH_MAX: u32 = 32;
/// Octets of a message of 64 octets on the wire.
const FPDU_64: usize = 88;
const LARGE: usize = 1 << 20;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().collect();
    let argument = |at: usize| arguments.get(at).map(String::as_str);
    match argument(1) {
        Some("serve") => return serve(argument(2) == Some("crc"), argument(3).ok_or("no algorithm")?),
        Some("raw-serve") => return raw_serve(argument(2).ok_or("no algorithm")?),
        _ => {}
    }
    pin(0);
    let only = argument(1).unwrap_or_default();
    let algorithm = argument(2).unwrap_or("reno");
    let wanted = |what: &str| what.contains(only);
    println!("{:<44} {:>12} {:>12}   ({algorithm})", "", "best", "median");
    if wanted("raw") {
        raw(algorithm)?;
    }
    for crc in [false, true] {
        println!("-- CRC {}", if crc { "on" } else { "off" });
        let mut side = Side::new(crc, algorithm)?;
        let mode = if crc { "crc" } else { "plain" };
        let (mut child, address) = spawn(&["serve", mode, algorithm])?;
        let pair = side.connect(&address)?;
        for (depth, len) in [(1, 64), (DEPTH_MAX, 64), (DEPTH_MAX, 256)] {
            if wanted(&format!("echo {len} B, depth {depth}")) {
                side.echo(pair, depth, len)?;
            }
        }
        for (len, depth) in [(4096, 32), (LARGE, 4)] {
            for write in [true, false] {
                let what = format!("{} {len} B, depth {depth}", if write { "Write" } else { "Read" });
                if wanted(&what) {
                    side.copies(pair, len, depth, write, &what)?;
                }
            }
        }
        println!("   {:?}", side.iwarp.counters().each().filter(|(_, value)| *value > 0).collect::<Vec<_>>());
        side.iwarp.disconnect(pair);
        while !side.disconnected {
            side.poll();
        }
        child.0.wait()?;
    }
    Ok(())
}

/// A child of this program, and the address that it prints.
fn spawn(arguments: &[&str]) -> Outcome<(Reaped, String)> {
    let mut command = Command::new(env::current_exe()?);
    let mut child = command.args(arguments).stdout(std::process::Stdio::piped()).spawn()?;
    let mut out = io::BufReader::new(child.stdout.take().ok_or("no output")?);
    let mut address = String::new();
    io::BufRead::read_line(&mut out, &mut address)?;
    Ok((Reaped(child), address.trim().to_owned()))
}

struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

struct Side {
    iwarp: Iwarp,
    start: Instant,
    messages: Pool,
    payload: Pool,
    completions: Vec<Completion>,
    established: Option<QueuePairId>,
    disconnected: bool,
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
    fn new(crc: bool, algorithm: &str) -> Outcome<Side> {
        let budget = Budget::new(64 << 20);
        let config =
            ArenaConfig { name: "rates", len: 16 << 20, page: PageChoice::Auto, node: None, budget: &budget };
        let arena = Arena::new(&config)?;
        let messages = Pool::fixed(&arena, "messages", 1024, 512)?;
        let payload = Pool::runs(&arena, "payload", 4096, 2048)?;
        let congestion_control = Some(algorithm.parse::<CongestionControl>()?);
        let mut iwarp = Iwarp::open(IwarpConfig { crc, congestion_control, ..IwarpConfig::default() })?;
        iwarp.register(&arena)?;
        Ok(Side {
            iwarp,
            start: now(),
            messages,
            payload,
            completions: Vec::with_capacity(256),
            established: None,
            disconnected: false,
            segments: None,
        })
    }

    fn message(&self, len: usize) -> Buf {
        let mut buf = self.messages.take().expect("there are more than are ever posted");
        buf.set_len(len);
        buf
    }

    fn poll(&mut self) -> usize {
        let count = self.iwarp.poll(self.start.elapsed(), &mut self.completions, 64);
        if count == 0
            && let Some(event) = self.iwarp.poll_event()
        {
            match event {
                Event::ConnectRequest { request, .. } => {
                    if let Ok(pair) = self.iwarp.prepare(request, CAPACITY) {
                        self.post_receives(pair);
                        self.iwarp.accept(pair, b"").expect("just prepared");
                    }
                }
                Event::Established { queue_pair, .. } => self.established = Some(queue_pair),
                Event::Disconnected { .. } => self.disconnected = true,
                _ => {}
            }
        }
        count
    }

    fn post_receives(&mut self, pair: QueuePairId) {
        for _ in 0..CAPACITY.receives {
            let buf = self.message(1024);
            self.iwarp.post_receive(pair, 0, buf).expect("within the capacity");
        }
    }

    fn connect(&mut self, address: &str) -> Outcome<QueuePairId> {
        let pair = self.iwarp.connect(address, b"", CAPACITY)?;
        self.post_receives(pair);
        // The server's first message is what it exposes.
        while self.segments.is_none() {
            if self.disconnected {
                return Err("the server did not come up".into());
            }
            self.poll();
            while let Some(completion) = self.completions.pop() {
                if let Completed::Receive { buf, .. } = completion.completed {
                    let word = |at: usize| u64::from_ne_bytes(buf[at..at + 8].try_into().expect("8 bytes"));
                    let segment =
                        |at| RemoteSegment { handle: Handle(word(at) as u32), offset: word(at + 8) };
                    self.segments = Some([segment(0), segment(16)]);
                    self.iwarp.post_receive(pair, 0, buf).expect("it was just received");
                }
            }
        }
        println!("   {}", self.iwarp.congestion_control(pair).unwrap_or_default());
        Ok(pair)
    }

    /// Messages there and back, `depth` under way.
    fn echo(&mut self, pair: QueuePairId, depth: u32, len: usize) -> Outcome<()> {
        let mut rates = Vec::new();
        for _ in 0..WINDOWS {
            for _ in 0..depth {
                self.send(pair, len);
            }
            self.iwarp.ring_doorbells();
            let begin = now();
            let (mut done, mut passes) = (0u64, 0u64);
            loop {
                passes += 1;
                if passes.is_multiple_of(64) && begin.elapsed() > WINDOW {
                    break;
                }
                if self.poll() > 0 {
                    done += self.answer(pair, len);
                }
            }
            rates.push(done as f64 / begin.elapsed().as_secs_f64());
            let mut left = depth;
            while left > 0 {
                self.poll();
                while let Some(completion) = self.completions.pop() {
                    if let Completed::Receive { buf, .. } = completion.completed {
                        self.iwarp.post_receive(pair, 0, buf).expect("it was just received");
                        left -= 1;
                    }
                }
            }
        }
        if depth == 1 {
            report(&format!("echo {len} B, depth 1, round trip [us]"), rates.iter().map(|r| 1e6 / r), true);
        } else {
            report(&format!("echo {len} B, depth {depth} [M/s]"), rates.iter().map(|r| r / 1e6), false);
        }
        Ok(())
    }

    fn send(&mut self, pair: QueuePairId, len: usize) {
        let buf = self.message(len);
        let request = SendRequest { id: 0, buf, invalidate: None, signaled: false };
        self.iwarp.post_send(pair, request).expect("the depth is within the capacity");
    }

    /// Answers each message with one; returns how many there were.
    fn answer(&mut self, pair: QueuePairId, len: usize) -> u64 {
        let mut received = 0;
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            if let Completed::Receive { buf, .. } = completion.completed {
                if self.iwarp.post_receive(pair, 0, buf).is_err() {
                    continue;
                }
                self.send(pair, len);
                received += 1;
            }
        }
        self.completions = completions;
        self.iwarp.ring_doorbells();
        received
    }

    /// Writes and Reads of `len` bytes, `depth` under way.
    fn copies(
        &mut self,
        pair: QueuePairId,
        len: usize,
        depth: usize,
        write: bool,
        what: &str,
    ) -> Outcome<()> {
        let [written, read] = self.segments.ok_or("no segments")?;
        let source = self.payload.take_len(len).ok_or("no payload")?.share();
        let part = ReadPart { at: 0, len: len as u32, source: read };
        let mut targets: Vec<Buf> = (0..depth).filter_map(|_| self.payload.take_len(len)).collect();
        let depth = targets.len();
        let mut rates = Vec::new();
        let mut under_way = 0;
        for _ in 0..WINDOWS {
            let begin = now();
            let mut done = 0u64;
            while begin.elapsed() < WINDOW || under_way > 0 {
                while begin.elapsed() < WINDOW && under_way < depth {
                    if write {
                        let source = source.clone();
                        let request = WriteRequest { id: 0, source, target: written, signaled: true };
                        self.iwarp.post_write(pair, request).map_err(|r| r.error)?;
                    } else {
                        let Some(target) = targets.pop() else { break };
                        let request = ReadRequest { id: 0, target };
                        self.iwarp.post_read(pair, request, &[part]).map_err(|r| r.error)?;
                    }
                    under_way += 1;
                }
                self.iwarp.ring_doorbells();
                self.poll();
                for completion in self.completions.drain(..) {
                    completion.result?;
                    under_way -= 1;
                    done += 1;
                    if let Completed::Read(buf) = completion.completed {
                        targets.push(buf);
                    }
                }
            }
            rates.push(done as f64 / begin.elapsed().as_secs_f64());
        }
        if len < 65536 {
            report(&format!("{what} [M/s]"), rates.iter().map(|r| r / 1e6), false);
        } else {
            report(&format!("{what} [GB/s]"), rates.iter().map(|r| r * len as f64 / 1e9), false);
        }
        Ok(())
    }
}

fn serve(crc: bool, algorithm: &str) -> Outcome<()> {
    pin(1);
    let mut side = Side::new(crc, algorithm)?;
    let listener = side.iwarp.listen("127.0.0.1:0")?;
    println!("{}", side.iwarp.listener_address(listener).ok_or("no address")?);
    let mut exposed = false;
    while !side.disconnected {
        if let (Some(pair), false) = (side.established, exposed) {
            exposed = true;
            let mut message = side.message(32);
            for (i, at) in [0, 16].into_iter().enumerate() {
                let buf = side.payload.take_len(LARGE).ok_or("no payload")?;
                let exposed = if i == 0 { Exposed::Write(buf) } else { Exposed::Read(buf.share()) };
                let segment = side.iwarp.expose(pair, exposed).map_err(|r| r.error)?;
                message[at..at + 8].copy_from_slice(&u64::from(segment.handle.0).to_ne_bytes());
                message[at + 8..at + 16].copy_from_slice(&segment.offset.to_ne_bytes());
            }
            let request = SendRequest { id: 0, buf: message, invalidate: None, signaled: false };
            side.iwarp.post_send(pair, request).map_err(|r| r.error)?;
            side.iwarp.ring_doorbells();
        }
        if side.poll() > 0 {
            if let Some(pair) = side.established {
                let len = side.completions.iter().find_map(|c| match &c.completed {
                    Completed::Receive { buf, .. } if c.result.is_ok() => Some(buf.len()),
                    _ => None,
                });
                if let Some(len) = len {
                    side.answer(pair, len);
                }
            }
            side.completions.clear();
        }
    }
    let counters = side.iwarp.counters().each().filter(|(_, value)| *value > 0);
    eprintln!("   server: {:?}", counters.collect::<Vec<_>>());
    Ok(())
}

fn raw_socket(socket: &TcpStream, algorithm: &str) -> Outcome<()> {
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    // SAFETY: the name is readable for its length.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            algorithm.as_ptr().cast(),
            algorithm.len() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error().into()) }
}

/// Moves octets, or nothing; `None` at the end.
fn some(result: io::Result<usize>) -> Option<usize> {
    match result {
        Ok(0) => None,
        Ok(count) => Some(count),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(0),
        Err(_) => None,
    }
}

/// The first octet of a connection says what it is for: an echo, or a stream that is thrown away.
fn raw_serve(algorithm: &str) -> Outcome<()> {
    pin(1);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let mut octets = vec![0; LARGE];
    for _ in 0..3 {
        let (mut socket, _) = listener.accept()?;
        let mut kind = [0];
        socket.read_exact(&mut kind)?;
        raw_socket(&socket, algorithm)?;
        if kind == *b"e" {
            while let Some(count) = some(socket.read(&mut octets)) {
                if count > 0 {
                    socket.write_all(&octets[..count])?;
                }
            }
        } else {
            while let Some(count) = some(socket.read(&mut octets)) {
                if kind == *b"c" && count > 0 {
                    std::hint::black_box(crc_fast::checksum(
                        crc_fast::CrcAlgorithm::Crc32Iscsi,
                        &octets[..count],
                    ));
                }
            }
        }
    }
    Ok(())
}

fn raw(algorithm: &str) -> Outcome<()> {
    let (mut child, address) = spawn(&["raw-serve", algorithm])?;
    let open = |kind: &[u8]| -> Outcome<TcpStream> {
        let mut socket = TcpStream::connect(&address)?;
        socket.write_all(kind)?;
        raw_socket(&socket, algorithm)?;
        Ok(socket)
    };
    let mut socket = open(b"e")?;
    let (mut octets, mut times) = ([7; FPDU_64], Vec::new());
    for _ in 0..WINDOWS {
        let (begin, mut done) = (now(), 0u64);
        while begin.elapsed() < WINDOW {
            socket.write_all(&octets)?;
            let mut at = 0;
            while at < octets.len() {
                at += some(socket.read(&mut octets[at..])).ok_or("closed")?;
            }
            done += 1;
        }
        times.push(begin.elapsed().as_secs_f64() * 1e6 / done as f64);
    }
    drop(socket);
    report("raw TCP echo 88 B, round trip [us]", times.into_iter(), true);
    for (kind, what) in [(b"s", "raw TCP stream [GB/s]"), (b"c", "raw TCP stream with CRC32C [GB/s]")] {
        let mut socket = open(kind)?;
        let (octets, mut rates) = (vec![7; LARGE], Vec::new());
        for _ in 0..WINDOWS {
            let (begin, mut done) = (now(), 0u64);
            while begin.elapsed() < WINDOW {
                if kind == b"c" {
                    std::hint::black_box(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &octets));
                }
                let mut at = 0;
                while at < octets.len() {
                    at += some(socket.write(&octets[at..])).ok_or("closed")?;
                }
                done += octets.len() as u64;
            }
            rates.push(done as f64 / begin.elapsed().as_secs_f64() / 1e9);
        }
        report(what, rates.into_iter(), false);
    }
    child.0.wait()?;
    Ok(())
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
