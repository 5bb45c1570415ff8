//! A group of servers' reactors and their clients, in one thread and one simulated world.

use stag_fabric::sim::{Attendance, FaultPlan, Sim, Violations, World};
use stag_memory::Shared;
use stag_rpc::{
    CARRIED_CALLS_MAX, Call, CallId, CallMesh, CallRefused, Chunks, ConnectionEvent, ConnectionId, Engine,
    EngineConfig, EngineGroup, Home, Memory, Request,
};
use stag_runtime::{Poller, ReactorId};
use stag_wire::xdr::{Overflow, Writer};

use crate::support::program::{ECHO, Program};
use crate::support::{Ended, Node, PASSES_MAX, bytes, opaque, request, small};

pub(crate) struct Group {
    pub(crate) world: World,
    pub(crate) reactors: Vec<Node<(Program,)>>,
    pub(crate) clients: Vec<Node<()>>,
    connections: Vec<ConnectionId>,
    /// A small generator: it chooses who has the next turn.
    random: u64,
    /// Of reactors and then clients, where they may be late.
    pub(crate) attendance: Option<Attendance>,
    /// Units that the engine of reactor 0 keeps as long as it lives.
    pub(crate) kept: usize,
}

/// Where reactor number `index` listens.
pub(crate) fn address(index: usize) -> String {
    format!("server{index}")
}

impl Group {
    pub(crate) fn new(reactors: usize, home: fn(&Call<'_>) -> Home) -> Group {
        Group::with_lanes(reactors, CARRIED_CALLS_MAX, home)
    }

    pub(crate) fn with_lanes(reactors: usize, calls_max: usize, home: fn(&Call<'_>) -> Home) -> Group {
        Group::in_world(World::new(1, FaultPlan::default()), 1, reactors, calls_max, home)
    }

    pub(crate) fn in_world(
        world: World,
        seed: u64,
        reactors: usize,
        calls_max: usize,
        home: fn(&Call<'_>) -> Home,
    ) -> Group {
        let mesh = CallMesh::new(reactors, calls_max);
        let join = |engine: &mut Engine<Sim, (Program,)>, index: usize| {
            let own = ReactorId::new(index).and_then(|own| mesh.take(own)).expect("one of the group");
            engine.join(own, None);
            engine.listen(&address(index)).expect("the address is free");
        };
        Group::of(world, seed, 4 << 20, reactors, home, join)
    }

    /// A group whose reactors have this configuration.
    pub(crate) fn configured(reactors: usize, config: EngineConfig, home: fn(&Call<'_>) -> Home) -> Group {
        let mesh = CallMesh::new(reactors, CARRIED_CALLS_MAX);
        let join = |engine: &mut Engine<Sim, (Program,)>, index: usize| {
            let own = ReactorId::new(index).and_then(|own| mesh.take(own)).expect("one of the group");
            engine.join(own, None);
            engine.listen(&address(index)).expect("the address is free");
        };
        let world = World::new(1, FaultPlan::default());
        Group::of_config(world, (1, config), 4 << 20, reactors, home, join)
    }

    /// A group in which each reactor has so much payload memory.
    pub(crate) fn with_payload(
        world: World,
        payload_len: usize,
        reactors: usize,
        home: fn(&Call<'_>) -> Home,
    ) -> Group {
        let mesh = CallMesh::new(reactors, CARRIED_CALLS_MAX);
        let join = |engine: &mut Engine<Sim, (Program,)>, index: usize| {
            let own = ReactorId::new(index).and_then(|own| mesh.take(own)).expect("one of the group");
            engine.join(own, None);
            engine.listen(&address(index)).expect("the address is free");
        };
        Group::of(world, 1, payload_len, reactors, home, join)
    }

    /// A group that is one server: a client that connects to reactor 0 is served by any. Each takes
    /// `connections_max` connections.
    pub(crate) fn of_one_server(reactors: usize, connections_max: u32, home: fn(&Call<'_>) -> Home) -> Group {
        let group = EngineGroup::new(reactors, CARRIED_CALLS_MAX, connections_max).expect("some descriptors");
        let join = |engine: &mut Engine<Sim, (Program,)>, index: usize| {
            engine.join_group(&group, ReactorId::new(index).expect("one of the group"), None);
            if index == 0 {
                engine.listen(&address(0)).expect("the address is free");
            }
        };
        Group::of(World::new(1, FaultPlan::default()), 1, 4 << 20, reactors, home, join)
    }

    fn of(
        world: World,
        seed: u64,
        payload_len: usize,
        reactors: usize,
        home: fn(&Call<'_>) -> Home,
        join: impl Fn(&mut Engine<Sim, (Program,)>, usize),
    ) -> Group {
        Group::of_config(world, (seed, small()), payload_len, reactors, home, join)
    }

    fn of_config(
        world: World,
        (seed, config): (u64, EngineConfig),
        payload_len: usize,
        reactors: usize,
        home: fn(&Call<'_>) -> Home,
        join: impl Fn(&mut Engine<Sim, (Program,)>, usize),
    ) -> Group {
        let node = |index: usize| {
            let own = ReactorId::new(index).expect("one of the group");
            let memory = Memory::on_demand(&config, payload_len).expect("a few megabytes").owned_by(own);
            let mut node = Node::on(&world, "server", config, memory, |memory| {
                let mut program = Program::new(memory.pools.payload.clone());
                program.home = home;
                (program,)
            });
            join(&mut node.engine, index);
            node
        };
        let reactors = (0..reactors).map(node).collect();
        Group {
            world,
            reactors,
            clients: Vec::new(),
            connections: Vec::new(),
            random: seed,
            attendance: None,
            kept: 0,
        }
    }

    /// Adds a client of reactor number `entry`.
    pub(crate) fn connect(&mut self, entry: usize) -> usize {
        self.connect_of(0, entry)
    }

    /// The same, of this user.
    pub(crate) fn connect_of(&mut self, user: u32, entry: usize) -> usize {
        let mut node = Node::new(&self.world, "client", small(), 4 << 20, |_| ());
        node.engine.provider_mut().set_user(user);
        let connection = node.engine.connect(&address(entry)).expect("the address is fine");
        self.clients.push(node);
        self.connections.push(connection);
        let client = self.clients.len() - 1;
        let wanted = ConnectionEvent::Established { connection };
        self.run(|group| group.clients[client].events.contains(&wanted));
        client
    }

    /// Another connection of the same client.
    pub(crate) fn connect_again(&mut self, client: usize) -> ConnectionId {
        let connection = self.clients[client].engine.connect(&address(0)).expect("the address is fine");
        let wanted = ConnectionEvent::Established { connection };
        self.run(|group| group.clients[client].events.contains(&wanted));
        connection
    }

    /// Connections that each reactor has.
    pub(crate) fn connections(&self) -> Vec<usize> {
        self.reactors.iter().map(|reactor| reactor.engine.connection_count()).collect()
    }

    pub(crate) fn disconnect(&mut self, client: usize) {
        self.clients[client].engine.disconnect(self.connections[client]);
    }

    pub(crate) fn program(&mut self, reactor: usize) -> &mut Program {
        &mut self.reactors[reactor].engine.services_mut().0
    }

    /// A Call, after which there is more than one credit.
    #[track_caller]
    pub(crate) fn check_alive(&mut self, client: usize) {
        let call = self.begin(client, request(ECHO), Chunks::default(), |writer| writer.opaque(b"alive?"));
        assert_eq!(bytes(&self.finish(client, call)), opaque(b"alive?"));
    }

    /// The same, over this connection of the client.
    #[track_caller]
    pub(crate) fn check_alive_over(&mut self, client: usize, connection: ConnectionId) {
        let usual = std::mem::replace(&mut self.connections[client], connection);
        self.check_alive(client);
        self.connections[client] = usual;
    }

    /// Credits that a client has been granted.
    pub(crate) fn credits(&self, client: usize) -> u32 {
        self.clients[client].engine.credits_granted(self.connections[client])
    }

    /// How many Calls each reactor's handler has got.
    pub(crate) fn executed(&mut self) -> Vec<u64> {
        (0..self.reactors.len()).map(|reactor| self.program(reactor).executed).collect()
    }

    pub(crate) fn draw(&mut self, below: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % below
    }

    /// Draws whether one comes to this pass.
    fn comes(&mut self, node: usize) -> bool {
        self.attendance.as_mut().is_none_or(|attendance| attendance.draw(node))
    }

    /// One pass of each, in an order of its own each time; now and then one has none.
    pub(crate) fn pass(&mut self) -> usize {
        let now = self.world.now();
        let (all, first, missing) = (self.reactors.len(), self.draw(64), self.draw(4 * self.reactors.len()));
        let mut count = 0;
        self.attendance.iter_mut().for_each(Attendance::begin_pass);
        for turn in 0..all {
            let reactor = (first + turn) % all;
            if reactor == missing {
                // What it would have done is still to be done.
                count += 1;
            } else if self.comes(reactor) {
                count += self.reactors[reactor].poll(now);
            }
        }
        for client in 0..self.clients.len() {
            if self.comes(all + client) {
                count += self.clients[client].poll(now);
            }
        }
        count
    }

    fn step(&mut self) -> bool {
        if self.pass() > 0 {
            return true;
        }
        let servers = self.reactors.iter().map(|reactor| reactor.engine.next_timeout());
        let clients = self.clients.iter().map(|client| client.engine.next_timeout());
        let away = self.attendance.as_ref().and_then(|attendance| attendance.next_pass(self.world.now()));
        let timer = servers.chain(clients).chain([away]).flatten().min();
        self.world.advance_before(timer)
    }

    #[track_caller]
    pub(crate) fn run(&mut self, mut done: impl FnMut(&mut Group) -> bool) {
        for _ in 0..PASSES_MAX {
            if done(self) {
                return;
            }
            assert!(self.step() || done(self), "nothing happens any more, and what was awaited did not");
        }
        panic!("what was awaited did not happen in {PASSES_MAX} passes");
    }

    /// Repeats `turn`, which polls some of the group, until it says that it is done.
    #[track_caller]
    pub(crate) fn turns(&mut self, mut turn: impl FnMut(&mut Group) -> bool) {
        for _ in 0..PASSES_MAX {
            if turn(self) {
                return;
            }
            self.world.advance_before(None);
        }
        panic!("what was awaited did not happen in {PASSES_MAX} passes");
    }

    pub(crate) fn run_passes(&mut self, count: usize) {
        for _ in 0..count {
            self.pass();
        }
    }

    pub(crate) fn begin(
        &mut self,
        client: usize,
        request: Request<'_>,
        chunks: Chunks,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> CallId {
        self.try_begin(client, request, chunks, encode).expect("the Call is begun")
    }

    pub(crate) fn try_begin(
        &mut self,
        client: usize,
        request: Request<'_>,
        mut chunks: Chunks,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<CallId, CallRefused> {
        let connection = self.connections[client];
        self.clients[client].engine.call(connection, &request, &mut chunks, encode)
    }

    #[track_caller]
    pub(crate) fn finish(&mut self, client: usize, call: CallId) -> Ended {
        self.run(|group| group.clients[client].done.iter().any(|done| done.call == call));
        let done = &mut self.clients[client].done;
        let at = done.iter().position(|done| done.call == call).expect("just seen");
        Ended::of(done.swap_remove(at))
    }

    /// A buffer of a client's payload pool with this content.
    pub(crate) fn data(&self, client: usize, octets: &[u8]) -> Shared {
        self.clients[client].data(octets)
    }

    /// The end of a test: ends all connections, and sees that nothing is left anywhere.
    #[track_caller]
    pub(crate) fn close(mut self) {
        for client in &mut self.clients {
            let mut opened = Vec::new();
            opened.extend(client.events.iter().filter_map(|event| match event {
                ConnectionEvent::Established { connection } => Some(*connection),
                _ => None,
            }));
            opened.into_iter().for_each(|connection| client.engine.disconnect(connection));
        }
        self.run(|group| {
            group.clients.iter().all(|client| client.engine.is_drained())
                && group.reactors.iter().all(|reactor| reactor.engine.connection_count() == 0)
        });
        for reactor in 0..self.reactors.len() {
            self.program(reactor).release();
        }
        self.run(|group| {
            group.reactors.iter_mut().all(|reactor| reactor.engine.services_mut().0.kept() == 0)
        });
        // The buffers of unanswered Calls come back.
        self.run_passes(200);
        for client in &mut self.clients {
            client.done.clear();
            assert_eq!(client.outstanding(), 0, "a client's buffers: {}", client.memory.ledger);
        }
        for (index, reactor) in self.reactors.iter_mut().enumerate() {
            assert_eq!(reactor.engine.services_mut().0.kept(), 0);
            assert!(reactor.engine.has_given_back(), "reactor {index} holds others' memory");
            let kept = if index == 0 { self.kept } else { 0 };
            assert_eq!(reactor.outstanding(), kept, "a reactor's buffers: {}", reactor.memory.ledger);
        }
        assert_eq!(self.world.violations(), Violations::default());
    }
}
