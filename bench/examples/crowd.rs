//! Very many connections: the cost of an idle one, and how fast connections come, go and come again.
//!
//! `crowd shm|iwarp|tcp COUNT [CREDITS]` starts a server as a process of its own, opens COUNT connections to it and makes one NULL
//! Call on each. It prints
//!
//! | line | meaning |
//! |---|---|
//! | `opened` | connections a second, up to [`DIALS_MAX`] of them being set up at once, each with its first Call |
//! | `idle` | octets that the server holds for each: what its resident memory grew by, and what of it is locked or registered |
//! | `asked` | one Call on each connection in turn, one after the other: their median and their 99th percentile |
//! | `closed` | how long the server takes to notice that all are gone at once |
//! | `again` | connections a second when all come back at once |
//!
//! CREDITS is how many Calls a connection may have outstanding (64 if it is left out), which is the length of its
//! tables.
//!
//! A process needs a descriptor or two for each connection: `ulimit -n`. More than 28,000 TCP connections of one address need more
//! ports (`net.ipv4.ip_local_port_range`).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context, Result, bail, ensure};
use stag_fabric::iwarp::{Iwarp, IwarpConfig};
use stag_fabric::{Provider, Shm, ShmConfig};
use stag_nfs::client::{Null, Target};
use stag_rpc::{Chunks, ConnectionEvent, ConnectionId, Credentials, Engine, EngineConfig, Memory};
use stag_runtime::{Clock, Poller};

#[path = "shared/descriptors.rs"]
mod descriptors;
#[path = "shared/nothing.rs"]
mod nothing;

use descriptors::raise_descriptors;
use nothing::{Nothing, PROGRAM};

/// Connections that are being set up at once, but for those that come back.
const DIALS_MAX: usize = 64;

/// Completions of a connection's queue pair, at most.
const COMPLETIONS: u32 = 700;

/// Octets of payload memory at each end.
const PAYLOAD_LEN: usize = 4 << 20;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// A NULL Call of the program that [`Nothing`] is, as a record of a byte stream (RFC 5531 sections 9 and 11): the record's mark,
/// xid, CALL, RPC version 2, program, version, procedure, and two empty credentials.
const RECORD: [u32; 11] = [0x8000_0028, 1, 0, 2, PROGRAM, 3, 0, 0, 0, 0, 0];

/// Octets of the answer: mark, xid, REPLY, MSG_ACCEPTED, an empty verifier, SUCCESS.
const ANSWER_LEN: usize = 28;

/// The request for the server's memory: the kernel counts that page by page.
const MEMORY: &str = "memory";

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (serves, words) = match words.split_first() {
        Some((&"serve", rest)) => (true, rest),
        _ => (false, &words[..]),
    };
    let usage = "crowd shm|iwarp|tcp COUNT [CREDITS]";
    let (fabric, count) = (*words.first().context(usage)?, words.get(1).context(usage)?.parse()?);
    let credits = words.get(2).map_or(Ok(64), |word| word.parse())?;
    raise_descriptors()?;
    let crowd = Crowd { count, credits };
    // One more than there are connections: one that ends and its successor overlap.
    let (completions, queue_pairs) = (4096 + count * COMPLETIONS, 2 * count + 2);
    let shm = ShmConfig { completions, queue_pairs, ..ShmConfig::default() };
    let iwarp = IwarpConfig { completions, queue_pairs, ..IwarpConfig::default() };
    match (serves, fabric) {
        (true, "shm") => crowd.serve(Shm::open(shm)?, Some(&format!("crowd-{}", std::process::id()))),
        (true, "iwarp") => crowd.serve(Iwarp::open(iwarp)?, Some(&free_port()?)),
        // Only its byte streams are used.
        (true, "tcp") => crowd.serve(Shm::open(ShmConfig::default())?, None),
        (false, "shm") => crowd.measure(words, || Dialer::new(Shm::open(shm.clone())?, crowd)),
        (false, "iwarp") => crowd.measure(words, || Dialer::new(Iwarp::open(iwarp)?, crowd)),
        (false, "tcp") => crowd.measure(words, || Ok(Sockets::default())),
        _ => bail!("{usage}"),
    }
}

/// A port that was free a moment ago.
fn free_port() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

/// How many, and how many Calls each may have outstanding.
#[derive(Clone, Copy)]
struct Crowd {
    count: u32,
    credits: u32,
}

impl Crowd {
    fn config(self) -> EngineConfig {
        // Three Receives for each, and some to share.
        let receives_max = 4 * self.count + 256;
        EngineConfig {
            connections_max: self.count + 1,
            credits_max: self.credits,
            receives_max,
            streams_max: self.count + 1,
            set_up_timeout: PATIENCE,
            ..EngineConfig::default()
        }
    }

    /// Serves until its input ends, and says how it is for each line of it.
    fn serve<P: Provider>(self, mut provider: P, address: Option<&str>) -> Result<()> {
        let config = self.config();
        let memory = Memory::new(&config, PAYLOAD_LEN)?;
        provider.register(&memory.arena)?;
        let mut engine = Engine::new(provider, (Nothing,), memory.pools.clone(), config, 1)?;
        let address = match address {
            Some(address) => {
                engine.listen(address)?;
                address.to_owned()
            }
            None => engine.listen_tcp("127.0.0.1:0")?.to_string(),
        };
        println!("{address}");
        let (sender, questions) = mpsc::channel();
        let asking = thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                let Ok(line) = line else { break };
                if sender.send(line == MEMORY).is_err() {
                    break;
                }
            }
        });
        let clock = Clock::start();
        loop {
            engine.poll(clock.now());
            match questions.try_recv() {
                Ok(wants_memory) => {
                    let held = if wants_memory { Held::now()? } else { Held::default() };
                    println!(
                        "{} {} {}",
                        engine.connection_count() + engine.stream_count(),
                        held.resident,
                        held.locked
                    );
                }
                Err(mpsc::TryRecvError::Empty) => {}
                Err(mpsc::TryRecvError::Disconnected) => break,
            }
        }
        asking.join().map_err(|_| anyhow::anyhow!("the input's thread panicked"))
    }

    /// Starts a server, and measures.
    fn measure<C: Client>(self, words: &[&str], open: impl Fn() -> Result<C>) -> Result<()> {
        let mut server = Server::start(words)?;
        let clock = Clock::start();
        let empty = server.ask(MEMORY)?.1;
        let mut client = open()?;
        let began = clock.now();
        client.open(&server.address, self.count as usize, DIALS_MAX, &clock)?;
        let took = clock.now() - began;
        let (open_now, full) = server.ask(MEMORY)?;
        ensure!(open_now == self.count as usize, "the server has {open_now} connections");
        println!("opened   {:10.0} connections/s ({} in {took:.2?})", self.rate(took), self.count);
        let each = |after: u64, before: u64| after.saturating_sub(before) / u64::from(self.count);
        let (resident, locked) = (each(full.resident, empty.resident), each(full.locked, empty.locked));
        println!("idle     {resident:10} octets resident of each, {locked} of them locked");
        let mut times = client.ask_each(&clock)?;
        times.sort_unstable();
        let at = |share: usize| times[(times.len() - 1) * share / 100];
        println!("asked    {:10.1?} median, {:.1?} 99th percentile", at(50), at(99));
        let began = clock.now();
        drop(client);
        loop {
            let left = server.ask("")?.0;
            if left == 0 {
                break;
            }
            ensure!(clock.now() - began < PATIENCE, "the server still has {left} connections");
            thread::sleep(Duration::from_millis(1));
        }
        println!("closed   {:10.0} ms until the server knew", (clock.now() - began).as_secs_f64() * 1e3);
        let mut client = open()?;
        let began = clock.now();
        let refused = client.open(&server.address, self.count as usize, self.count as usize, &clock)?;
        let rate = self.rate(clock.now() - began);
        println!(
            "again    {rate:10.0} connections/s, all at once; {refused} were not taken at first and tried again"
        );
        Ok(())
    }

    fn rate(self, took: Duration) -> f64 {
        f64::from(self.count) / took.as_secs_f64()
    }
}

/// Octets that a process holds.
#[derive(Clone, Copy, Default)]
struct Held {
    resident: u64,
    /// Locked in memory, or mapped as shared memory, which is what a device or a peer may use.
    locked: u64,
}

impl Held {
    fn now() -> Result<Held> {
        // Of what is mapped twice, or by two processes, each has its share.
        let text = fs::read_to_string("/proc/self/smaps_rollup")?;
        let value = |name: &str| -> Result<u64> {
            let line =
                text.lines().find_map(|line| line.strip_prefix(name)).context("a line of smaps_rollup")?;
            Ok(1024 * line.trim_matches([':', ' ', '\t', 'k', 'B']).parse::<u64>()?)
        };
        Ok(Held { resident: value("Pss:")?, locked: value("Locked:")? + value("Pss_Shmem:")? })
    }
}

/// The server's process.
struct Server {
    child: Child,
    input: ChildStdin,
    output: std::io::Lines<BufReader<std::process::ChildStdout>>,
    address: String,
}

impl Server {
    fn start(words: &[&str]) -> Result<Server> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child =
            command.arg("serve").args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().context("it is piped")?;
        let mut output = BufReader::new(child.stdout.take().context("it is piped")?).lines();
        let address = output.next().context("the server ended")??;
        Ok(Server { child, input, output, address })
    }

    /// Its connections, and, if it is asked for `MEMORY`, the memory that it holds.
    fn ask(&mut self, what: &str) -> Result<(usize, Held)> {
        writeln!(self.input, "{what}")?;
        let line = self.output.next().context("the server ended")??;
        let mut words = line.split(' ');
        let mut number = || -> Result<u64> { Ok(words.next().context("a number")?.parse()?) };
        Ok((number()? as usize, Held { resident: number()?, locked: number()? }))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Errors: it may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Many connections to one server.
trait Client {
    /// Opens `count` connections, up to `dials_max` of them being set up at once, and makes a Call on each.
    /// How many were not taken and tried again.
    fn open(&mut self, address: &str, count: usize, dials_max: usize, clock: &Clock) -> Result<usize>;

    /// Makes a Call on each connection, one after the other: how long each took.
    fn ask_each(&mut self, clock: &Clock) -> Result<Vec<Duration>>;
}

/// Connections of an engine.
struct Dialer<P: Provider> {
    engine: Engine<P, ()>,
    connections: Vec<ConnectionId>,
}

impl<P: Provider> Dialer<P> {
    fn new(mut provider: P, crowd: Crowd) -> Result<Dialer<P>> {
        let config = EngineConfig { credits_max: 2, ..crowd.config() };
        let memory = Memory::new(&config, PAYLOAD_LEN)?;
        provider.register(&memory.arena)?;
        let engine = Engine::new(provider, (), memory.pools, config, 1)?;
        Ok(Dialer { engine, connections: Vec::new() })
    }

    fn begin(&mut self, connection: ConnectionId) -> Result<()> {
        let target = Target { connection, credentials: Credentials::None, timeout: PATIENCE };
        target.begin(&mut self.engine, &Null, &mut Chunks::default(), 0)?;
        Ok(())
    }
}

impl<P: Provider> Client for Dialer<P> {
    fn open(&mut self, address: &str, count: usize, dials_max: usize, clock: &Clock) -> Result<usize> {
        let (mut dialed, mut ended, mut refused) = (0, 0, 0);
        while ended < count {
            while dialed < count && dialed - self.connections.len() < dials_max {
                self.engine.connect(address)?;
                dialed += 1;
            }
            self.engine.poll(clock.now());
            while let Some(event) = self.engine.connection_event() {
                match event {
                    ConnectionEvent::Established { connection, .. } => {
                        self.connections.push(connection);
                        self.begin(connection)?;
                    }
                    ConnectionEvent::Closed { connection, .. } if !self.connections.contains(&connection) => {
                        refused += 1;
                        dialed -= 1;
                    }
                    other => bail!("connection {} of {count}: {other:?}", self.connections.len() + 1),
                }
            }
            while let Some(done) = self.engine.completed() {
                done.result?;
                ended += 1;
            }
        }
        Ok(refused)
    }

    fn ask_each(&mut self, clock: &Clock) -> Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(self.connections.len());
        for place in 0..self.connections.len() {
            let began = clock.now();
            self.begin(self.connections[place])?;
            self.engine.ring_doorbells();
            loop {
                self.engine.poll(clock.now());
                if let Some(done) = self.engine.completed() {
                    done.result?;
                    break;
                }
            }
            times.push(clock.now() - began);
        }
        Ok(times)
    }
}

/// Plain sockets.
#[derive(Default)]
struct Sockets(Vec<TcpStream>);

fn send(socket: &mut TcpStream) -> Result<()> {
    let octets: Vec<u8> = RECORD.iter().flat_map(|word| word.to_be_bytes()).collect();
    Ok(socket.write_all(&octets)?)
}

fn receive(socket: &mut TcpStream) -> Result<()> {
    let mut answer = [0; ANSWER_LEN];
    Ok(socket.read_exact(&mut answer)?)
}

impl Client for Sockets {
    fn open(&mut self, address: &str, count: usize, dials_max: usize, _: &Clock) -> Result<usize> {
        while self.0.len() < count {
            let from = self.0.len();
            for _ in from..count.min(from + dials_max) {
                let mut socket = TcpStream::connect(address)?;
                socket.set_nodelay(true)?;
                socket.set_read_timeout(Some(PATIENCE))?;
                send(&mut socket)?;
                self.0.push(socket);
            }
            self.0[from..].iter_mut().try_for_each(receive)?;
        }
        // The kernel tries again by itself.
        Ok(0)
    }

    fn ask_each(&mut self, clock: &Clock) -> Result<Vec<Duration>> {
        let ask = |socket: &mut TcpStream| -> Result<Duration> {
            let began = clock.now();
            send(socket)?;
            receive(socket)?;
            Ok(clock.now() - began)
        };
        self.0.iter_mut().map(ask).collect()
    }
}
