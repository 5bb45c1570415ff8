//! Calls that go on while their RDMA device, its link or the other end is taken away: run by `ci/verbs.sh`.
//!
//! ```text
//! endure serve HOST:PORT      until its standard input ends
//! endure call HOST:PORT       likewise
//! ```
//!
//! Twice a second each prints its state. At the end it prints the outcome of all Calls and whether every buffer came
//! back; status 1 if a Call has no outcome or two, if a Reply has other octets than were sent, or if a buffer is missing.

use std::collections::BTreeMap;
use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use stag::fabric::verbs::{Verbs, VerbsConfig};
use stag::prelude::*;
use stag::rpc::{Backoff, ClientPolicy, ConnectionId, KeepAlive};

const PROGRAM: u32 = 0x2000_7a62;
/// One stays inline, the other goes by a Position Zero Read chunk and comes back in a Reply chunk.
const LENGTHS: [usize; 2] = [100, 20_000];
const LENGTH_MAX: u32 = 20_000;
/// Calls under way at once.
const DEPTH: u64 = 16;
const TIMEOUT: Duration = Duration::from_secs(10);
const STATUS_INTERVAL: Duration = Duration::from_millis(500);

/// Returns its arguments.
struct Echo;

static ECHO: Procedure = Procedure::plain("ECHO");

impl Service for Echo {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (1, 1)
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<&'static Procedure> {
        (procedure == 1).then_some(&ECHO)
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        match call.arguments().opaque(LENGTH_MAX) {
            Ok(octets) => reply.success(|writer| writer.opaque(octets)),
            Err(_) => reply.garbage_arguments(),
        }
        Outcome::Done
    }
}

/// Leaves the core to the kernel, which is the device where it is one of software. Nothing here waits for this time.
fn nap() {
    std::thread::sleep(Duration::from_micros(50));
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [role, address] = &arguments[..] else { return Err("endure serve|call HOST:PORT".into()) };
    // Partner: the loops' loads. The flag guards nothing else.
    let ended = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ended);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        flag.store(true, Ordering::Relaxed);
    });

    let config = EngineConfig::default();
    let memory = Memory::new(&config, 16 << 20)?;
    let mut verbs = Verbs::open(VerbsConfig::default())?;
    verbs.register(&memory.arena)?;
    let pools = memory.pools.clone();
    // Not the process id, which is the same each time in a container.
    let seed = RandomState::new().hash_one(0) as u32;
    match &role[..] {
        "serve" => serve(Engine::new(verbs, (Echo,), pools, config, seed)?, address, &ended)?,
        "call" => Client::new(Engine::new(verbs, (), pools, config, seed)?, address).run(&ended)?,
        _ => return Err(format!("{role} is neither serve nor call").into()),
    }
    match memory.ledger.outstanding() {
        0 => println!("end: all buffers are back"),
        count => return Err(format!("{count} buffers are not back").into()),
    }
    Ok(())
}

fn serve(
    mut engine: Engine<Verbs, (Echo,)>,
    address: &str,
    ended: &AtomicBool,
) -> Result<(), Box<dyn Error>> {
    let clock = Clock::start();
    engine.listen(address)?;
    let mut status_at = Duration::ZERO;
    while !ended.load(Ordering::Relaxed) {
        let now = clock.now();
        if engine.poll(now) == 0 {
            nap();
        }
        if now >= status_at {
            status_at = now + STATUS_INTERVAL;
            let device = engine.provider().device().unwrap_or("none");
            let (calls, connections) = (engine.statistics().calls_received, engine.connection_count());
            println!("calls={calls} connections={connections} device={device}");
        }
    }
    Ok(())
}

/// What the client keeps of its Calls.
struct Client {
    engine: Engine<Verbs, ()>,
    address: String,
    clock: Clock,
    connection: Option<ConnectionId>,
    /// Calls begun and not ended.
    under_way: BTreeMap<u64, usize>,
    begun: u64,
    restored: u64,
    /// How they ended, in words.
    outcomes: BTreeMap<String, u64>,
}

impl Client {
    fn new(engine: Engine<Verbs, ()>, address: &str) -> Client {
        Client {
            engine,
            address: address.to_owned(),
            clock: Clock::start(),
            connection: None,
            under_way: BTreeMap::new(),
            begun: 0,
            restored: 0,
            outcomes: BTreeMap::new(),
        }
    }

    fn run(mut self, ended: &AtomicBool) -> Result<(), Box<dyn Error>> {
        let mut status_at = Duration::ZERO;
        let mut connect_at = Duration::ZERO;
        while !ended.load(Ordering::Relaxed) {
            let now = self.clock.now();
            if self.connection.is_none() && now >= connect_at {
                connect_at = now + STATUS_INTERVAL;
                self.connect();
            }
            while (self.under_way.len() as u64) < DEPTH && self.begin() {}
            self.turn()?;
            if now >= status_at {
                status_at = now + STATUS_INTERVAL;
                self.say("");
            }
        }
        // Each ends by itself, if only because its time is over.
        let patience = self.clock.now() + 3 * TIMEOUT;
        while !self.under_way.is_empty() {
            if self.clock.now() > patience {
                return Err(format!("Calls without an outcome: {:?}", self.under_way).into());
            }
            self.turn()?;
        }
        if let Some(connection) = self.connection {
            self.engine.disconnect(connection);
        }
        while self.engine.connection_count() > 0 && self.clock.now() < patience + TIMEOUT {
            self.turn()?;
        }
        self.say("end: ");
        Ok(())
    }

    fn say(&self, what: &str) {
        let device = self.engine.provider().device().unwrap_or("none");
        let (begun, restored, outcomes) = (self.begun, self.restored, &self.outcomes);
        println!("{what}begun={begun} restored={restored} device={device} outcomes={outcomes:?}");
    }

    fn connect(&mut self) {
        let policy = ClientPolicy {
            reconnect: Some(Backoff { max: Duration::from_millis(500), ..Backoff::default() }),
            keep_alive: Some(KeepAlive {
                program: PROGRAM,
                version: 1,
                after: Duration::from_secs(1),
                answer_within: Duration::from_secs(2),
                when_idle: true,
            }),
        };
        match self.engine.connect_with(&self.address, policy) {
            Ok(connection) => self.connection = Some(connection),
            Err(error) => println!("connect: {error}"),
        }
    }

    /// Begins a Call, if there is a connection that takes it. Every other is sent again when the connection is made anew.
    fn begin(&mut self) -> bool {
        let Some(connection) = self.connection else { return false };
        let length = LENGTHS[(self.begun / 2 % 2) as usize];
        let request = Request {
            program: PROGRAM,
            version: 1,
            procedure: 1,
            credentials: Credentials::None,
            user: self.begun,
            timeout: TIMEOUT,
            results_len_max: 4 + length as u32,
            retransmit: self.begun.is_multiple_of(2),
            reply_mode: ReplyMode::Auto,
        };
        let octets = pattern(self.begun, length);
        let begun = self.engine.call(connection, &request, &mut Chunks::default(), |w| w.opaque(&octets));
        if begun.is_ok() {
            self.under_way.insert(self.begun, length);
            self.begun += 1;
        }
        begun.is_ok()
    }

    fn turn(&mut self) -> Result<(), Box<dyn Error>> {
        if self.engine.poll(self.clock.now()) == 0 {
            nap();
        }
        while let Some(done) = self.engine.completed() {
            let Some(length) = self.under_way.remove(&done.user) else {
                return Err(format!("Call {} ended twice", done.user).into());
            };
            let outcome = match done.result {
                Ok(results) => {
                    let octets = Reader::new(results.bytes()).opaque(LENGTH_MAX)?;
                    if octets != pattern(done.user, length) {
                        return Err(format!("Call {} was answered with other octets", done.user).into());
                    }
                    "ok".to_owned()
                }
                Err(error) => error.to_string(),
            };
            *self.outcomes.entry(outcome).or_default() += 1;
        }
        while let Some(event) = self.engine.connection_event() {
            println!("{event:?}");
            match event {
                ConnectionEvent::Restored { .. } => self.restored += 1,
                ConnectionEvent::Closed { .. } => self.connection = None,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Octets that differ from Call to Call.
fn pattern(call: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at ^ at >> 8 ^ call.wrapping_mul(0x9d)) as u8).collect()
}
