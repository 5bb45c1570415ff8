//! What measurements of a provider share: one end, in a process pinned to its core, and how figures are taken.
//!
//! Each figure is taken in many short windows; best and median are printed, as a machine that does other things meanwhile
//! spoils some windows, never improves one.

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stag_fabric::{
    Completed, Completion, DisconnectReason, Event, Exposed, Handle, Provider, QueuePairCapacity,
    QueuePairId, ReadPart, ReadRequest, RemoteSegment, SendRequest, WriteRequest,
};
use stag_memory::{Arena, ArenaConfig, Budget, Buf, PageChoice, Pool};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// Windows of each figure.
pub(crate) const WINDOWS: usize = 40;
/// How long each is.
pub(crate) const WINDOW: Duration = Duration::from_millis(10);
/// Messages under way at most.
pub(crate) const DEPTH_MAX: u32 = 32;
/// Octets of a large transfer.
pub(crate) const LARGE: usize = 1 << 20;

pub(crate) const CAPACITY: QueuePairCapacity = QueuePairCapacity {
    receives: 2 * DEPTH_MAX,
    sends: 2 * DEPTH_MAX,
    exposures: 64,
    send_len_max: 1024,
    receive_len_max: 1024,
};

/// One end.
pub(crate) struct Side<P> {
    pub(crate) provider: P,
    pub(crate) payload: Pool,
    pub(crate) completions: Vec<Completion>,
    pub(crate) established: Option<QueuePairId>,
    disconnected: bool,
    start: Instant,
    messages: Pool,
    /// What the server lets us write, and read.
    segments: Option<[RemoteSegment; 2]>,
}

impl<P: Provider> Side<P> {
    pub(crate) fn new(mut provider: P) -> Outcome<Side<P>> {
        let budget = Budget::new(64 << 20);
        let config =
            ArenaConfig { name: "rates", len: 16 << 20, page: PageChoice::Auto, node: None, budget: &budget };
        let arena = Arena::new(&config)?;
        let messages = Pool::fixed(&arena, "messages", 1024, 512)?;
        let payload = Pool::runs(&arena, "payload", 4096, 2048)?;
        provider.register(&arena)?;
        Ok(Side {
            provider,
            payload,
            completions: Vec::with_capacity(256),
            established: None,
            disconnected: false,
            start: now(),
            messages,
            segments: None,
        })
    }

    fn message(&self, len: usize) -> Buf {
        let mut buf = self.messages.take().expect("there are more than are ever posted");
        buf.set_len(len);
        buf
    }

    /// One pass; the clock is read as a reactor would, once.
    pub(crate) fn poll(&mut self) -> usize {
        let count = self.provider.poll(self.start.elapsed(), &mut self.completions, 64);
        if count == 0
            && let Some(event) = self.provider.poll_event()
        {
            match event {
                Event::ConnectRequest { request, .. } => {
                    let pair = self.provider.prepare(request, CAPACITY).expect("one queue pair fits");
                    self.post_receives(pair);
                    self.provider.accept(pair, b"").expect("just prepared");
                }
                Event::Established { queue_pair, .. } => self.established = Some(queue_pair),
                Event::Disconnected { reason, .. } => {
                    self.disconnected = true;
                    if !matches!(reason, DisconnectReason::Local | DisconnectReason::Peer) {
                        eprintln!("disconnected: {reason:?}");
                    }
                }
                _ => {}
            }
        }
        count
    }

    pub(crate) fn post_receives(&mut self, pair: QueuePairId) {
        for _ in 0..CAPACITY.receives {
            let buf = self.message(1024);
            self.provider.post_receive(pair, 0, buf).expect("within the capacity");
        }
    }

    /// Connects to a server that listens, and takes its first message, which is what it exposes.
    pub(crate) fn connect(&mut self, address: &str) -> Outcome<QueuePairId> {
        let pair = self.provider.connect(address, b"", CAPACITY)?;
        self.post_receives(pair);
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
                    self.provider.post_receive(pair, 0, buf).expect("it was just received");
                }
            }
        }
        Ok(pair)
    }

    pub(crate) fn disconnect(&mut self, pair: QueuePairId) {
        self.provider.disconnect(pair);
        while !self.disconnected {
            self.poll();
        }
    }

    /// Lets the peer write one piece of memory and read another, and answers its messages until it goes.
    pub(crate) fn serve(&mut self) -> Outcome<()> {
        let mut exposed = false;
        while !self.disconnected {
            if let (Some(pair), false) = (self.established, exposed) {
                exposed = true;
                self.expose(pair)?;
            }
            if self.poll() > 0 {
                if let Some(pair) = self.established {
                    let len = self.completions.iter().find_map(|c| match &c.completed {
                        Completed::Receive { buf, .. } if c.result.is_ok() => Some(buf.len()),
                        _ => None,
                    });
                    if let Some(len) = len {
                        self.answer(pair, len);
                    }
                }
                self.completions.clear();
            }
        }
        Ok(())
    }

    fn expose(&mut self, pair: QueuePairId) -> Outcome<()> {
        let mut message = self.message(32);
        for (i, at) in [0, 16].into_iter().enumerate() {
            let buf = self.payload.take_len(LARGE).ok_or("no payload")?;
            let exposed = if i == 0 { Exposed::Write(buf) } else { Exposed::Read(buf.share()) };
            let segment = self.provider.expose(pair, exposed).map_err(|r| r.error)?;
            message[at..at + 8].copy_from_slice(&u64::from(segment.handle.0).to_ne_bytes());
            message[at + 8..at + 16].copy_from_slice(&segment.offset.to_ne_bytes());
        }
        let request = SendRequest { id: 0, buf: message, invalidate: None, signaled: false };
        self.provider.post_send(pair, request).map_err(|r| r.error)?;
        self.provider.ring_doorbells();
        Ok(())
    }

    pub(crate) fn send(&mut self, pair: QueuePairId, len: usize) {
        let buf = self.message(len);
        let request = SendRequest { id: 0, buf, invalidate: None, signaled: false };
        self.provider.post_send(pair, request).expect("the depth is within the capacity");
    }

    /// Answers each message with one; returns how many there were.
    fn answer(&mut self, pair: QueuePairId, len: usize) -> u64 {
        let mut received = 0;
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            if let Completed::Receive { buf, .. } = completion.completed {
                if self.provider.post_receive(pair, 0, buf).is_err() {
                    continue;
                }
                self.send(pair, len);
                received += 1;
            }
        }
        self.completions = completions;
        self.provider.ring_doorbells();
        received
    }

    /// Messages there and back, `depth` under way.
    pub(crate) fn echo(&mut self, pair: QueuePairId, depth: u32, len: usize) {
        let mut rates = Vec::new();
        for _ in 0..WINDOWS {
            for _ in 0..depth {
                self.send(pair, len);
            }
            self.provider.ring_doorbells();
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
                        self.provider.post_receive(pair, 0, buf).expect("it was just received");
                        left -= 1;
                    }
                }
            }
        }
        let what = format!("echo {len} B, depth {depth}");
        if depth == 1 {
            report(&format!("{what}, round trip [ns]"), rates.iter().map(|r| 1e9 / r), true);
        } else {
            report(&format!("{what} [M/s]"), rates.iter().map(|r| r / 1e6), false);
        }
    }

    /// Writes or Reads of `len` octets, `depth` under way.
    pub(crate) fn copies(&mut self, pair: QueuePairId, write: bool, len: usize, depth: usize) -> Outcome<()> {
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
                        self.provider.post_write(pair, request).map_err(|r| r.error)?;
                    } else {
                        let Some(target) = targets.pop() else { break };
                        let request = ReadRequest { id: 0, target };
                        self.provider.post_read(pair, request, &[part]).map_err(|r| r.error)?;
                    }
                    under_way += 1;
                }
                self.provider.ring_doorbells();
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
        report_copies(&transfers(write, len, depth), len, rates.iter().copied());
        Ok(())
    }
}

/// The name of a figure of [`Side::copies`].
pub(crate) fn transfers(write: bool, len: usize, depth: usize) -> String {
    format!("{} {len} B, depth {depth}", if write { "Write" } else { "Read" })
}

/// Reports rates of copies of `len` octets: small ones by number, large ones by octets.
pub(crate) fn report_copies(what: &str, len: usize, rates: impl Iterator<Item = f64>) {
    if len < 65536 {
        report(&format!("{what} [M/s]"), rates.map(|r| r / 1e6), false);
    } else {
        report(&format!("{what} [GB/s]"), rates.map(|r| r * len as f64 / 1e9), false);
    }
}

/// Prints the best of some values, and their median.
pub(crate) fn report(what: &str, values: impl Iterator<Item = f64>, less_is_better: bool) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let best = if less_is_better { values[0] } else { values[values.len() - 1] };
    println!("{what:<44} {best:>12.2} {:>12.2}", values[values.len() / 2]);
}

/// A child process, killed if it is still there.
pub(crate) struct Reaped(pub(crate) Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

/// A child of this program, and the line that it prints when it listens: its address.
pub(crate) fn spawn(arguments: &[&str]) -> Outcome<(Reaped, String)> {
    let mut command = Command::new(env::current_exe()?);
    let mut child = command.args(arguments).stdout(Stdio::piped()).spawn()?;
    let mut out = BufReader::new(child.stdout.take().ok_or("no output")?);
    let mut address = String::new();
    out.read_line(&mut address)?;
    Ok((Reaped(child), address.trim().to_owned()))
}

#[expect(clippy::disallowed_methods, reason = "a measurement has no reactor whose clock it could use")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Pins this process to the core `wanted` if there is one.
pub(crate) fn pin(wanted: usize) {
    // SAFETY: all zeroes is an empty set; CPU_SET is told a core below its capacity.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(wanted, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}
