//! Whole client and server engines over one simulated world, in virtual time.

#![allow(dead_code, reason = "each test target uses its part")]

pub(crate) mod log;
pub(crate) mod program;

use std::time::Duration;

use stag_fabric::Provider;
use stag_fabric::sim::{FaultPlan, Sim, Violations, World};
use stag_memory::{Buf, Shared};
use stag_rpc::{
    CallError, CallId, CallRefused, Chunks, ClientPolicy, CloseReason, CompletedCall, ConnectionEvent,
    ConnectionId, Credentials, Engine, EngineConfig, Memory, PlacementChoice, ProtocolChoice, ReplyMode,
    Request, Services,
};
use stag_runtime::Poller;
use stag_wire::xdr::{Overflow, Writer};

use program::{PROGRAM, Program, VERSION};

pub(crate) const ADDRESS: &str = "server";
/// Passes after which a bench that should be done is stuck.
pub(crate) const PASSES_MAX: u64 = 2_000_000;

/// Whether the tests are those of engines that speak version 2.
pub(crate) const IS_VERSION_2: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"version2");

/// A configuration small enough for a test to meet its limits.
pub(crate) fn small() -> EngineConfig {
    EngineConfig {
        inline_threshold: 1024,
        credits_max: 8,
        connections_max: 8,
        receives_max: 128,
        protocol: if IS_VERSION_2 { ProtocolChoice::Auto } else { ProtocolChoice::One },
        ..EngineConfig::default()
    }
}

/// The same, whose data goes by chunks in any version.
pub(crate) fn chunked() -> EngineConfig {
    EngineConfig { placement: PlacementChoice::Rdma, ..small() }
}

/// One engine, its memory, and what came out of it.
pub(crate) struct Node<S> {
    pub(crate) engine: Engine<Sim, S>,
    pub(crate) memory: Memory,
    pub(crate) events: Vec<ConnectionEvent>,
    pub(crate) done: Vec<CompletedCall>,
}

impl<S: Services> Node<S> {
    pub(crate) fn new(
        world: &World,
        name: &str,
        config: EngineConfig,
        payload_len: usize,
        services: impl FnOnce(&Memory) -> S,
    ) -> Node<S> {
        let memory = Memory::on_demand(&config, payload_len).expect("a few megabytes");
        Node::on(world, name, config, memory, services)
    }

    /// A node on memory that there is already. Its message buffers may be larger than `config` needs.
    pub(crate) fn on(
        world: &World,
        name: &str,
        config: EngineConfig,
        memory: Memory,
        services: impl FnOnce(&Memory) -> S,
    ) -> Node<S> {
        let mut sim = world.provider(name);
        sim.register(&memory.arena).expect("an arena");
        let services = services(&memory);
        let engine = Engine::new(sim, services, memory.pools.clone(), config, 7).expect("it fits");
        Node { engine, memory, events: Vec::new(), done: Vec::new() }
    }

    pub(crate) fn poll(&mut self, now: Duration) -> usize {
        let count = self.engine.poll(now);
        while let Some(event) = self.engine.connection_event() {
            self.events.push(event);
        }
        while let Some(done) = self.engine.completed() {
            self.done.push(done);
        }
        count
    }

    /// A buffer of the payload pool with this content.
    pub(crate) fn data(&self, octets: &[u8]) -> Shared {
        let mut buf = self.space(octets.len());
        buf.copy_from_slice(octets);
        buf.share()
    }

    /// A buffer of the payload pool of this length.
    pub(crate) fn space(&self, len: usize) -> Buf {
        let mut buf = self.memory.pools.payload.take_len(len).expect("the payload pool is large enough");
        buf.set_len(len);
        buf
    }

    /// Buffers that are out of their pools.
    pub(crate) fn outstanding(&self) -> usize {
        self.memory.ledger.outstanding()
    }
}

/// One server, some clients, and the world between them.
pub(crate) struct Bench {
    pub(crate) world: World,
    pub(crate) server: Node<(Program,)>,
    pub(crate) clients: Vec<Node<()>>,
    pub(crate) connections: Vec<ConnectionId>,
    next_user: u64,
    /// Of each engine.
    payload_len: usize,
    /// Somebody here sends without credits: some Sends find no Receive, and that is not our fault.
    pub(crate) rules_broken: bool,
}

impl Bench {
    /// A calm world, one client, connected.
    pub(crate) fn new() -> Bench {
        Bench::with(small(), small(), 1)
    }

    pub(crate) fn with(server: EngineConfig, client: EngineConfig, clients: usize) -> Bench {
        let mut bench = Bench::in_world(World::new(1, FaultPlan::default()), server, client, clients);
        bench.establish();
        bench
    }

    /// As [`Bench::new`], and data goes by chunks in any version.
    pub(crate) fn chunked() -> Bench {
        Bench::with(chunked(), chunked(), 1)
    }

    /// Nothing is established yet.
    pub(crate) fn in_world(
        world: World,
        server: EngineConfig,
        client: EngineConfig,
        clients: usize,
    ) -> Bench {
        Bench::with_memory(world, server, client, clients, 4 << 20)
    }

    /// As [`Bench::in_world`], with so much payload memory for each engine.
    pub(crate) fn with_memory(
        world: World,
        server: EngineConfig,
        client: EngineConfig,
        clients: usize,
        payload_len: usize,
    ) -> Bench {
        let mut server = Node::new(&world, "server", server, payload_len, |memory| {
            (Program::new(memory.pools.payload.clone()),)
        });
        server.engine.listen(ADDRESS).expect("the address is free");
        let mut bench = Bench {
            world,
            server,
            clients: Vec::new(),
            connections: Vec::new(),
            next_user: 0,
            rules_broken: false,
            payload_len,
        };
        for _ in 0..clients {
            bench.add_client(client);
        }
        bench
    }

    pub(crate) fn add_client(&mut self, config: EngineConfig) -> usize {
        self.add_client_with(config, ClientPolicy::default())
    }

    pub(crate) fn add_client_with(&mut self, config: EngineConfig, policy: ClientPolicy) -> usize {
        self.add_client_of(0, config, policy)
    }

    /// A client of this user.
    pub(crate) fn add_client_of(&mut self, user: u32, config: EngineConfig, policy: ClientPolicy) -> usize {
        let mut node = Node::new(&self.world, "client", config, self.payload_len, |_| ());
        node.engine.provider_mut().set_user(user);
        self.connections.push(node.engine.connect_with(ADDRESS, policy).expect("the address is fine"));
        self.clients.push(node);
        self.clients.len() - 1
    }

    pub(crate) fn establish(&mut self) {
        for (client, connection) in self.connections.clone().into_iter().enumerate() {
            let wanted = ConnectionEvent::Established { connection };
            self.run(|bench| bench.clients[client].events.contains(&wanted));
        }
    }

    /// One pass of every engine, at one time. Returns how much was done.
    pub(crate) fn pass(&mut self) -> usize {
        let now = self.world.now();
        let mut count = self.server.poll(now);
        for client in &mut self.clients {
            count += client.poll(now);
        }
        count
    }

    /// As [`Bench::pass`], then lets time go on if nothing was done. `false`: nothing will happen any more.
    pub(crate) fn step(&mut self) -> bool {
        self.step_before(None)
    }

    fn step_before(&mut self, end: Option<Duration>) -> bool {
        if self.pass() > 0 {
            return true;
        }
        let timers = self.clients.iter().map(|client| client.engine.next_timeout());
        let timer = timers.chain([self.server.engine.next_timeout(), end]).flatten().min();
        self.world.advance_before(timer)
    }

    /// Runs until `done` says so.
    #[track_caller]
    pub(crate) fn run(&mut self, mut done: impl FnMut(&mut Bench) -> bool) {
        for _ in 0..PASSES_MAX {
            if done(self) {
                return;
            }
            assert!(self.step() || done(self), "nothing happens any more, and what was awaited did not");
        }
        panic!("what was awaited did not happen in {PASSES_MAX} passes");
    }

    /// Runs for so long.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.world.now() + time;
        for _ in 0..PASSES_MAX {
            if self.world.now() >= end {
                return;
            }
            self.step_before(Some(end));
        }
        panic!("time did not go on in {PASSES_MAX} passes");
    }

    /// Begins a Call of client number `client`.
    pub(crate) fn begin(
        &mut self,
        client: usize,
        request: Request<'_>,
        mut chunks: Chunks,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<CallId, CallRefused> {
        self.next_user += 1;
        let request = Request { user: self.next_user, ..request };
        self.clients[client].engine.call(self.connections[client], &request, &mut chunks, encode)
    }

    /// Runs until the Call is over.
    #[track_caller]
    pub(crate) fn finish(&mut self, client: usize, call: CallId) -> Ended {
        self.run(|bench| bench.clients[client].done.iter().any(|done| done.call == call));
        let done = &mut self.clients[client].done;
        let at = done.iter().position(|done| done.call == call).expect("just seen");
        Ended::of(done.swap_remove(at))
    }

    /// A whole Call of client 0.
    #[track_caller]
    pub(crate) fn call(
        &mut self,
        request: Request<'_>,
        chunks: Chunks,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Ended {
        let call = self.begin(0, request, chunks, encode).expect("the Call is begun");
        self.finish(0, call)
    }

    /// The connection of client 0 works: an echo comes back.
    #[track_caller]
    pub(crate) fn check_alive(&mut self, client: usize) {
        let call = self
            .begin(client, request(program::ECHO), Chunks::default(), |writer| writer.opaque(b"alive?"))
            .expect("a Call can be begun");
        let done = self.finish(client, call);
        assert_eq!(bytes(&done), opaque(b"alive?"));
    }

    /// The end of a test: ends all connections, and sees that nothing is left anywhere.
    #[track_caller]
    pub(crate) fn close(mut self) {
        for (client, connection) in self.clients.iter_mut().zip(&self.connections) {
            client.engine.disconnect(*connection);
        }
        self.run(|bench| {
            bench.clients.iter().all(|client| client.engine.is_drained()) && bench.server.engine.is_drained()
        });
        // Calls that waited for an answer are abandoned, now that their clients are gone.
        self.server.engine.services_mut().0.release();
        self.run_passes(100);
        self.check_left();
    }

    fn run_passes(&mut self, count: usize) {
        for _ in 0..count {
            self.pass();
        }
    }

    /// Nothing is connected any more: every buffer is back, and no rule of the fabric was broken.
    #[track_caller]
    pub(crate) fn check_left(mut self) {
        for client in &mut self.clients {
            client.done.clear();
            assert_eq!(client.outstanding(), 0, "a client's buffers: {}", client.memory.ledger);
        }
        assert_eq!(self.server.engine.services_mut().0.kept(), 0);
        assert_eq!(self.server.outstanding(), 0, "the server's buffers: {}", self.server.memory.ledger);
        let mut violations = self.world.violations();
        if self.rules_broken {
            violations.receiver_not_ready = 0;
        }
        assert_eq!(violations, Violations::default());
        assert_eq!(self.server.engine.connection_count(), 0);
    }

    /// How the connection of a client ended.
    pub(crate) fn closed(&self, client: usize) -> Option<&CloseReason> {
        self.clients[client].events.iter().find_map(|event| match event {
            ConnectionEvent::Closed { connection, reason } if *connection == self.connections[client] => {
                Some(reason)
            }
            _ => None,
        })
    }
}

/// A request for a procedure of the test program, with time enough.
pub(crate) fn request(procedure: u32) -> Request<'static> {
    Request {
        program: PROGRAM,
        version: VERSION,
        procedure,
        credentials: Credentials::None,
        user: 0,
        timeout: Duration::from_secs(3600),
        results_len_max: 0,
        retransmit: true,
        reply_mode: ReplyMode::Auto,
    }
}

/// As [`request`], where the results may be so long.
pub(crate) fn request_for(procedure: u32, results_len_max: usize) -> Request<'static> {
    Request { results_len_max: results_len_max as u32, ..request(procedure) }
}

/// A copy of all that a completed Call brought; its buffers are let go of.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) result: Result<Vec<u8>, CallError>,
    pub(crate) reduced_len: u32,
    pub(crate) written: Vec<(u8, Vec<u8>)>,
}

impl Ended {
    pub(crate) fn of(done: CompletedCall) -> Ended {
        Ended {
            reduced_len: done.result.as_ref().map_or(0, |results| results.reduced_len()),
            result: done.result.map(|results| results.bytes().to_vec()),
            written: done.written.iter().map(|(chunk, buf)| (*chunk, buf.to_vec())).collect(),
        }
    }
}

/// The results of a Call that succeeded.
#[track_caller]
pub(crate) fn bytes(done: &Ended) -> &[u8] {
    match &done.result {
        Ok(results) => results,
        Err(error) => panic!("the Call failed: {error}"),
    }
}

/// The error of a Call that failed.
#[track_caller]
pub(crate) fn error(done: &Ended) -> CallError {
    match &done.result {
        Ok(results) => panic!("the Call succeeded: {results:?}"),
        Err(error) => *error,
    }
}

/// A variable-length opaque, encoded.
pub(crate) fn opaque(octets: &[u8]) -> Vec<u8> {
    let mut encoded = (octets.len() as u32).to_be_bytes().to_vec();
    encoded.extend(octets);
    encoded.resize(encoded.len().next_multiple_of(4), 0);
    encoded
}

/// Encodes words.
pub(crate) fn words(writer: &mut Writer<'_>, words: &[u32]) -> Result<(), Overflow> {
    words.iter().try_for_each(|word| writer.u32(*word))
}
