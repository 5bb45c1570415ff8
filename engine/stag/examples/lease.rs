//! Calls both ways on one connection (RFC 8167): a server of leases calls a client back to recall a lease that another wants.
//!
//! ```text
//! lease serve NAME           serves at shm://NAME
//! lease hold NAME LEASE      takes LEASE, and holds it until the server recalls it
//! lease take NAME LEASE      takes LEASE, and says how long that took: the server recalls it from who holds it
//! ```
//!
//! A client opens the connection, and its engine has a service too, which the server calls. The client's Call for a lease says
//! that it can be called back (RFC 8167 section 6: a program's own matter). A holder that does not answer a recall in time, or
//! whose connection is gone, loses its lease.

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::RawFd;
use std::thread;
use std::time::Duration;

use stag::prelude::*;
use stag::rpc::{CallRefused, ConnectionId};

/// Forward: version 1, procedure 1, `void lease(opaque name)`: returns when the caller has the lease.
const LEASES: u32 = 0x2000_7a65;
/// Reverse: version 1, procedure 1, `void recall(opaque name)`: returns when the holder has let go of it.
const HOLDER: u32 = 0x2000_7a66;

const NAME_LEN_MAX: u32 = 256;

/// Reverse Calls that may be outstanding on one connection.
const RECALLS_MAX: u32 = 4;

/// How long a holder may take to answer.
const RECALL_TIMEOUT: Duration = Duration::from_secs(5);

static ONLY: Procedure = Procedure::plain("ONLY");

fn request(program: u32, user: u64, timeout: Duration) -> Request<'static> {
    Request {
        program,
        version: 1,
        procedure: 1,
        credentials: Credentials::None,
        user,
        timeout,
        results_len_max: 0,
        retransmit: false,
        reply_mode: ReplyMode::Auto,
    }
}

fn config() -> EngineConfig {
    EngineConfig { reverse_credits: RECALLS_MAX, ..EngineConfig::default() }
}

/// One lease: its holder, and the client that wants it.
struct Lease {
    holder: ConnectionId,
    waiting: VecDeque<(ConnectionId, Deferred)>,
}

/// The server's program.
#[derive(Default)]
struct Leases {
    leases: BTreeMap<Vec<u8>, Lease>,
    /// Leases to recall: their names.
    recalls: VecDeque<Vec<u8>>,
    /// Leases that are being recalled, by the `user` of the reverse Call.
    recalled: BTreeMap<u64, Vec<u8>>,
    next_recall: u64,
}

impl Leases {
    /// A lease is free: it goes to the next who waits for it, and is recalled from that one if there are more.
    fn pass_on(&mut self, name: &[u8]) {
        let Some(lease) = self.leases.get_mut(name) else { return };
        let Some((next, deferred)) = lease.waiting.pop_front() else {
            self.leases.remove(name);
            return;
        };
        lease.holder = next;
        if !lease.waiting.is_empty() {
            self.recalls.push_back(name.to_vec());
        }
        deferred.finish(|reply| reply.success(|_| Ok(())));
    }
}

impl Service for Leases {
    fn program(&self) -> u32 {
        LEASES
    }

    fn versions(&self) -> (u32, u32) {
        (1, 1)
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<&'static Procedure> {
        (procedure == 1).then_some(&ONLY)
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        let Ok(name) = call.arguments().opaque(NAME_LEN_MAX) else {
            reply.garbage_arguments();
            return Outcome::Done;
        };
        let client = call.connection();
        let Some(lease) = self.leases.get_mut(name) else {
            self.leases.insert(name.to_vec(), Lease { holder: client, waiting: VecDeque::new() });
            reply.success(|_| Ok(()));
            return Outcome::Done;
        };
        if lease.holder == client {
            reply.success(|_| Ok(()));
            return Outcome::Done;
        }
        // It fails when there are too many: then the client gets an error at once.
        let Ok(deferred) = reply.defer(call) else {
            reply.system_error();
            return Outcome::Done;
        };
        let token = deferred.token();
        lease.waiting.push_back((client, deferred));
        // With more than one the recall is under way.
        if lease.waiting.len() == 1 {
            self.recalls.push_back(name.to_vec());
        }
        Outcome::Later(token)
    }
}

/// What the reactor polls: the engine, and between its passes the Calls that it makes to clients.
struct Server<P: Provider>(Engine<P, (Leases,)>);

impl<P: Provider> Server<P> {
    /// Calls the holders of leases that others want. Returns how many.
    fn recall(&mut self) -> usize {
        let mut count = 0;
        while let Some(name) = self.0.services_mut().0.recalls.pop_front() {
            let leases = &mut self.0.services_mut().0;
            let Some(holder) = leases.leases.get(&name).map(|lease| lease.holder) else { continue };
            leases.next_recall += 1;
            let user = leases.next_recall;
            let recall = request(HOLDER, user, RECALL_TIMEOUT);
            match self.0.call_back(holder, &recall, |writer| writer.opaque(&name)) {
                Ok(_) => {
                    self.0.services_mut().0.recalled.insert(user, name);
                    count += 1;
                }
                // Until one of those that are outstanding is over.
                Err(CallRefused::NoCredit | CallRefused::NoMemory) => {
                    self.0.services_mut().0.recalls.push_front(name);
                    break;
                }
                // It is gone, and its lease with it.
                Err(_) => self.0.services_mut().0.pass_on(&name),
            }
        }
        count
    }
}

impl<P: Provider> Poller for Server<P> {
    fn poll(&mut self, now: Duration) -> usize {
        let mut events = self.0.poll(now);
        while let Some(done) = self.0.completed() {
            events += 1;
            let leases = &mut self.0.services_mut().0;
            // Let go of, or lost: whatever the result is, the lease is free.
            if let Some(name) = leases.recalled.remove(&done.user) {
                leases.pass_on(&name);
            }
        }
        // Connections that were called back and are gone: their Calls have ended before.
        while self.0.connection_event().is_some() {}
        events + self.recall()
    }

    fn next_timeout(&self) -> Option<Duration> {
        self.0.next_timeout()
    }

    fn arm(&mut self) -> bool {
        self.0.arm()
    }

    fn disarm(&mut self) {
        self.0.disarm();
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.0.descriptors(out);
    }

    fn stop(&mut self, now: Duration) {
        self.0.stop(now);
    }

    fn is_drained(&self) -> bool {
        self.0.is_drained()
    }
}

fn serve(name: &str) -> Result<(), Box<dyn Error>> {
    let memory = Memory::new(&config(), 1 << 20)?;
    let mut shm = Shm::open(ShmConfig { may_sleep: true, ..ShmConfig::default() })?;
    shm.register(&memory.arena)?;
    let mut engine = Engine::new(shm, (Leases::default(),), memory.pools, config(), 1)?;
    engine.listen(name)?;
    println!("ready: {name}");

    // Until the process is ended by a signal.
    let stop = StopFlag::new()?;
    let stopped = Reactor::new(ReactorConfig::default(), Clock::start())?.run(&mut Server(engine), &stop)?;
    println!("{:?}, {}", stopped.drained, memory.ledger);
    Ok(())
}

/// The client's program: what the server calls.
#[derive(Default)]
struct Holder {
    recalled: Option<Vec<u8>>,
}

impl Service for Holder {
    fn program(&self) -> u32 {
        HOLDER
    }

    fn versions(&self) -> (u32, u32) {
        (1, 1)
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<&'static Procedure> {
        (procedure == 1).then_some(&ONLY)
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        match call.arguments().opaque(NAME_LEN_MAX) {
            // A cache would write back here what it holds under the lease, and answer later.
            Ok(name) => {
                self.recalled = Some(name.to_vec());
                reply.success(|_| Ok(()));
            }
            Err(_) => reply.garbage_arguments(),
        }
        Outcome::Done
    }
}

/// Takes a lease, and holds it until it is recalled, if it is to.
fn take(name: &str, lease: &str, is_to_hold: bool) -> Result<(), Box<dyn Error>> {
    let memory = Memory::new(&config(), 1 << 20)?;
    let mut shm = Shm::open(ShmConfig::default())?;
    shm.register(&memory.arena)?;
    let seed = RandomState::new().hash_one(0) as u32;
    let mut engine = Engine::new(shm, (Holder::default(),), memory.pools, config(), seed)?;
    let clock = Clock::start();
    let connection = engine.connect(name)?;
    loop {
        engine.poll(clock.now());
        match engine.connection_event() {
            Some(ConnectionEvent::Established { .. }) => break,
            Some(event) => return Err(format!("{name}: {event}").into()),
            None => thread::yield_now(),
        }
    }
    let begin = clock.now();
    let request = request(LEASES, 0, Duration::from_secs(60));
    engine.call(connection, &request, &mut Chunks::default(), |writer| writer.opaque(lease.as_bytes()))?;
    let done = loop {
        engine.poll(clock.now());
        match engine.completed() {
            Some(done) => break done,
            None => thread::yield_now(),
        }
    };
    done.result?;
    let took = clock.now() - begin;
    println!("{lease}: taken after {:.1} us", took.as_secs_f64() * 1e6);
    while is_to_hold && engine.services_mut().0.recalled.is_none() {
        engine.poll(clock.now());
        if let Some(event) = engine.connection_event() {
            return Err(format!("{name}: {event}").into());
        }
        thread::yield_now();
    }
    if is_to_hold {
        println!("{lease}: recalled");
    }
    // A graceful stop sends the answer to the recall.
    engine.stop(clock.now());
    while !engine.is_drained() {
        engine.poll(clock.now());
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", name] => serve(name),
        ["hold", name, lease] => take(name, lease, true),
        ["take", name, lease] => take(name, lease, false),
        _ => Err("serve NAME, hold NAME LEASE, or take NAME LEASE".into()),
    }
}
