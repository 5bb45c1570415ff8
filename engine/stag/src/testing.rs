//! Whole servers and clients in virtual time, with faults by seed: a program's own services under all that a fabric may do.
//!
//! A [`Simulation`] has a server and clients on [`stag_fabric::sim`]. One thread runs them, nothing sleeps, and everything
//! that happens follows from the seed: delays, reordering, full queues, connections that die at any point, and ends that are late and
//! find several messages at once. With a plan that has no faults, none is late. [`sweep`] runs a test for many seeds, and names the one
//! that fails, with which it fails again.
//!
//! ```
//! use stag::prelude::*;
//! use stag::testing::{FaultPlan, Simulation, sweep};
//!
//! static ADD: [Procedure; 1] = [Procedure::plain("ADD").once()];
//!
//! sweep("sums_are_right", 0..5, |seed| {
//!     let mut sum = 0;
//!     let add = move |call: &mut Call<'_>, reply: &mut Reply<'_>| {
//!         sum += call.arguments().u32().unwrap_or(0);
//!         reply.success(|writer| writer.u32(sum));
//!         Outcome::Done
//!     };
//!     let services = |_: &Pool| (Program::new(0x2000_7a71, 1, &ADD, add),);
//!     let mut simulation = Simulation::new(seed, FaultPlan::from_seed(seed), services);
//!     let client = simulation.add_client();
//!     for number in 1..=10 {
//!         let results = simulation.call(client, 0x2000_7a71, 1, 1, |writer| writer.u32(1));
//!         assert_eq!(results.expect("an answer"), u32::to_be_bytes(number), "executed once each");
//!     }
//!     simulation.finish().expect("nothing is left");
//! });
//! ```
//!
//! `examples/planted_bug.rs` finds a mistake so that no run on a well-behaved fabric shows.

use std::fmt;
use std::time::Duration;

use stag_fabric::Provider;
pub use stag_fabric::sim::{Attendance, FaultPlan, Sim, Violations, World, sweep};
use stag_memory::{Ledger, Pool};
use stag_rpc::{
    Backoff, CallError, CallRefused, Chunks, ClientPolicy, CompletedCall, ConnectionEvent, ConnectionId,
    Credentials, Engine, EngineConfig, Memory, ReplyMode, Request, Services,
};
use stag_runtime::Poller;
use stag_wire::xdr::{Overflow, Writer};

/// Octets of payload memory of each end.
const PAYLOAD_LEN: usize = 8 << 20;

/// Passes after which what is awaited does not come any more.
const PASSES_MAX: u64 = 5_000_000;

/// Attempts to connect until a plan that refuses all is given up.
const CONNECTS_MAX: u32 = 1000;

const ADDRESS: &str = "server";

/// What is left at the end that should not be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Leftover {
    /// Connections do not end.
    #[error("the connections do not end")]
    Connections,
    /// Buffers did not come back: what the ledger says of them.
    #[error("{0}")]
    Buffers(String),
    /// An end broke a rule of the fabric: a defect of the engine, if its parts were used as their types allow.
    #[error("a rule of the fabric was broken: {0}")]
    Violation(String),
}

/// A client of a [`Simulation`].
struct SimulatedClient {
    engine: Engine<Sim, ()>,
    pools: stag_rpc::Pools,
    connection: ConnectionId,
    done: Vec<CompletedCall>,
    events: Vec<ConnectionEvent>,
}

/// A server and its clients, in one thread, in virtual time.
pub struct Simulation<S: Services> {
    world: World,
    /// Of the server and then the clients.
    attendance: Attendance,
    server: Engine<Sim, S>,
    clients: Vec<SimulatedClient>,
    config: EngineConfig,
    ledgers: Vec<Ledger>,
    next_user: u64,
}

/// An engine's own memory, with what it registers.
fn memory(config: &EngineConfig, ledgers: &mut Vec<Ledger>, provider: &mut Sim) -> stag_rpc::Pools {
    let problem = "the memory of a simulated engine";
    let memory = Memory::on_demand(config, PAYLOAD_LEN).expect(problem);
    provider.register(&memory.arena).expect(problem);
    ledgers.push(memory.ledger);
    memory.pools
}

impl<S: Services> Simulation<S> {
    /// A server of the services that `make` returns, which is given the server's memory for data. Its clients are added.
    ///
    /// # Panics
    ///
    /// When the machine has not some megabytes of memory.
    pub fn new(seed: u64, plan: FaultPlan, make: impl FnOnce(&Pool) -> S) -> Simulation<S> {
        let config = EngineConfig {
            credits_max: 16,
            connections_max: 16,
            receives_max: 256,
            ..EngineConfig::default()
        };
        Simulation::with(seed, plan, config, make)
    }

    /// The same with a configuration of its own, for server and clients.
    ///
    /// # Panics
    ///
    /// When the configuration cannot be, or the machine has not some megabytes of memory.
    pub fn with(
        seed: u64,
        plan: FaultPlan,
        config: EngineConfig,
        make: impl FnOnce(&Pool) -> S,
    ) -> Simulation<S> {
        let mut attendance = Attendance::new(seed);
        if plan == FaultPlan::default() {
            attendance.be_all_here();
        }
        let world = World::new(seed, plan);
        let mut provider = world.provider("server");
        let mut ledgers = Vec::new();
        let pools = memory(&config, &mut ledgers, &mut provider);
        let services = make(&pools.payload);
        let problem = "the configuration of a simulated engine";
        let mut server = Engine::new(provider, services, pools, config, 1).expect(problem);
        server.listen(ADDRESS).expect("the address is free");
        Simulation { world, attendance, server, clients: Vec::new(), config, ledgers, next_user: 0 }
    }

    /// Adds a client, which is connected again whenever its connection ends, and returns its number. Runs until it is connected.
    ///
    /// # Panics
    ///
    /// When the plan never lets it be.
    pub fn add_client(&mut self) -> usize {
        let mut provider = self.world.provider("client");
        let pools = memory(&self.config, &mut self.ledgers, &mut provider);
        let seed = self.clients.len() as u32 + 2;
        let mut engine =
            Engine::new(provider, (), pools.clone(), self.config, seed).expect("as that of the server");
        let connection = connect(&mut engine);
        let client = SimulatedClient { engine, pools, connection, done: Vec::new(), events: Vec::new() };
        self.clients.push(client);
        let number = self.clients.len() - 1;
        for _ in 0..CONNECTS_MAX {
            let is_up = self.run_until(|simulation| {
                simulation.clients[number].events.drain(..).find_map(|event| match event {
                    ConnectionEvent::Established { .. } | ConnectionEvent::Restored { .. } => Some(true),
                    ConnectionEvent::Closed { .. } => Some(false),
                    _ => None,
                })
            });
            if is_up == Some(true) {
                return number;
            }
            let client = &mut self.clients[number];
            client.connection = connect(&mut client.engine);
        }
        panic!("the plan lets no client connect");
    }

    /// Memory for data of client number `client`.
    #[must_use]
    pub fn payload(&self, client: usize) -> &Pool {
        &self.clients[client].pools.payload
    }

    /// The world: its time, and how much has happened in it.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The server's engine: its services, its counters.
    pub fn server(&mut self) -> &mut Engine<Sim, S> {
        &mut self.server
    }

    /// The engine of client number `client`.
    pub fn client(&mut self, client: usize) -> &mut Engine<Sim, ()> {
        &mut self.clients[client].engine
    }

    /// A Call without chunks, from its begin to its end: the encoded results.
    ///
    /// # Errors
    ///
    /// How it failed.
    ///
    /// # Panics
    ///
    /// When nothing happens any more, and the Call is not over.
    pub fn call(
        &mut self,
        client: usize,
        program: u32,
        version: u32,
        procedure: u32,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<Vec<u8>, CallError> {
        let request = Request {
            program,
            version,
            procedure,
            credentials: Credentials::None,
            user: 0,
            timeout: Duration::from_secs(3600),
            results_len_max: 1 << 16,
            reply_mode: ReplyMode::Auto,
            retransmit: true,
        };
        let done = self.call_with(client, &request, Chunks::default(), encode);
        done.result.map(|results| results.bytes().to_vec())
    }

    /// A Call of any kind, from its begin to its end.
    ///
    /// # Panics
    ///
    /// When the Call cannot be made, or nothing happens any more, and it is not over.
    pub fn call_with(
        &mut self,
        client: usize,
        request: &Request<'_>,
        mut chunks: Chunks,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> CompletedCall {
        let user = self.next_user;
        self.next_user += 1;
        let request = Request { user, ..*request };
        let begun = self.run_until(|simulation| {
            let SimulatedClient { engine, connection, .. } = &mut simulation.clients[client];
            match engine.call(*connection, &request, &mut chunks, &encode) {
                Ok(call) => Some(Ok(call)),
                Err(CallRefused::NoCredit | CallRefused::Interrupted | CallRefused::FabricBusy) => None,
                Err(refused) => Some(Err(refused)),
            }
        });
        match begun {
            Some(Ok(_)) => {}
            Some(Err(refused)) => panic!("the Call is not made: {refused}"),
            None => panic!("nothing happens any more, and there is no credit"),
        }
        let done = self.run_until(|simulation| {
            let done = &mut simulation.clients[client].done;
            done.iter().position(|done| done.user == user).map(|at| done.swap_remove(at))
        });
        done.unwrap_or_else(|| panic!("nothing happens any more, and the Call is not over"))
    }

    /// Lets things happen until `found` finds something. `None`: nothing happens any more.
    pub fn run_until<T>(&mut self, mut found: impl FnMut(&mut Self) -> Option<T>) -> Option<T> {
        for _ in 0..PASSES_MAX {
            if let Some(found) = found(self) {
                return Some(found);
            }
            if !self.step() {
                return found(self);
            }
        }
        None
    }

    /// One pass of each engine; and if all were idle, time goes on to what is next. `false`: nothing is.
    pub fn step(&mut self) -> bool {
        let now = self.world.now();
        self.attendance.begin_pass();
        let mut count = if self.attendance.draw(0) { self.server.poll(now) } else { 0 };
        for (number, client) in self.clients.iter_mut().enumerate() {
            if !self.attendance.draw(1 + number) {
                continue;
            }
            count += client.engine.poll(now);
            client.done.extend(std::iter::from_fn(|| client.engine.completed()));
            client.events.extend(std::iter::from_fn(|| client.engine.connection_event()));
        }
        if count > 0 {
            return true;
        }
        let timers = self.clients.iter().map(|client| client.engine.next_timeout());
        let others = [self.server.next_timeout(), self.attendance.next_pass(now)];
        let timer = timers.chain(others).flatten().min();
        self.world.advance_before(timer)
    }

    /// Ends all connections, and the engines.
    ///
    /// # Errors
    ///
    /// What is left of them: buffers that a service keeps count, too, unless they go with it.
    pub fn finish(mut self) -> Result<(), Leftover> {
        self.attendance.be_all_here();
        for client in &mut self.clients {
            client.done.clear();
            client.engine.disconnect(client.connection);
        }
        let ended = self.run_until(|simulation| {
            for client in &mut simulation.clients {
                client.done.clear();
            }
            let connections = simulation.clients.iter().map(|client| client.engine.connection_count());
            (connections.sum::<usize>() + simulation.server.connection_count() == 0).then_some(())
        });
        let Simulation { world, server, clients, ledgers, .. } = self;
        drop((server, clients));
        if ended.is_none() {
            return Err(Leftover::Connections);
        }
        if let Some(ledger) = ledgers.iter().find(|ledger| ledger.outstanding() > 0) {
            return Err(Leftover::Buffers(ledger.to_string()));
        }
        let violations = world.violations();
        match violations == Violations::default() {
            true => Ok(()),
            false => Err(Leftover::Violation(format!("{violations:?}"))),
        }
    }
}

fn connect(engine: &mut Engine<Sim, ()>) -> ConnectionId {
    let policy = ClientPolicy { reconnect: Some(Backoff::default()), keep_alive: None };
    engine.connect_with(ADDRESS, policy).expect("the address is fine")
}

impl<S: Services> fmt::Debug for Simulation<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation")
            .field("now", &self.world.now())
            .field("clients", &self.clients.len())
            .finish_non_exhaustive()
    }
}
