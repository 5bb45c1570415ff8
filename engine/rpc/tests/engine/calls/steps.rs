//! An observer is told of the same steps of every Call, in the same order, whichever way the Call took.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use stag_fabric::sim::{FaultPlan, Odds, World};
use stag_rpc::{
    CARRIED_CALLS_MAX, Call, CallInStep, CallMesh, CallStep, Chunks, ConnectionEvent, ConnectionId,
    EngineConfig, Home, Lookup, Observed, Outcome, PlacementChoice, ProtocolChoice, Reply, Services, Token,
};
use stag_runtime::{Poller, ReactorId};
use stag_wire::xdr::Writer;

use crate::support::program::{DEFER, ECHO, GET_ONE, LATER, LATER_PUT, PROGRAM, PUT_LONG, PUT_ONE, VERSION};
use crate::support::program::{Program, pattern};
use crate::support::{Ended, Node, PASSES_MAX, bytes, request_for, small};

/// All steps, in their order.
const ALL: [CallStep; 5] =
    [CallStep::Arrived, CallStep::Ready, CallStep::Executed, CallStep::Sent, CallStep::Done];

/// Serves the test program, and notes the steps of its Calls.
struct Noted {
    services: (Program,),
    steps: Vec<(CallStep, CallInStep)>,
}

impl Services for Noted {
    fn lookup(&self, program: u32, version: u32, procedure: u32) -> Lookup {
        self.services.lookup(program, version, procedure)
    }

    fn home(&self, service: usize, call: &Call<'_>) -> Home {
        self.services.home(service, call)
    }

    fn call(&mut self, service: usize, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        self.services.call(service, call, reply)
    }

    fn observe(&mut self, step: CallStep, call: &CallInStep) {
        self.steps.push((step, *call));
    }

    fn poll_later(&mut self, now: Duration) -> Option<(usize, Token)> {
        self.services.poll_later(now)
    }

    fn finish(&mut self, service: usize, token: Token, reply: &mut Reply<'_>) {
        self.services.finish(service, token, reply);
    }

    fn abandoned(&mut self, service: usize, token: Token) {
        self.services.abandoned(service, token);
    }
}

impl Noted {
    /// The steps of the only Call since the last time, which was of `procedure`. None was taken before the one before it.
    #[track_caller]
    fn take(&mut self, procedure: u32) -> Vec<CallStep> {
        let steps = std::mem::take(&mut self.steps);
        let (_, first) = steps.first().expect("a Call was observed");
        assert!(steps.iter().all(|(_, call)| call.token == first.token), "{steps:?}");
        assert!(steps.is_sorted_by_key(|(_, call)| call.at), "{steps:?}");
        let called = first.called.expect("the first steps have it");
        assert_eq!((called.service, called.program, called.version), (0, PROGRAM, VERSION));
        assert_eq!(called.procedure, procedure);
        steps.into_iter().map(|(step, _)| step).collect()
    }
}

fn home_at_one(_: &Call<'_>) -> Home {
    Home::At(ReactorId::new(1).expect("there may be two"))
}

/// Servers with observers, and one client.
struct Lab {
    world: World,
    /// The first takes connections, the last executes Calls.
    servers: Vec<Node<Noted>>,
    client: Node<()>,
    connection: ConnectionId,
}

impl Lab {
    fn new(plan: FaultPlan, config: EngineConfig, reactors: usize) -> Lab {
        let world = World::new(1, plan);
        let mesh = CallMesh::new(reactors, CARRIED_CALLS_MAX);
        let mut servers: Vec<Node<Noted>> = Vec::new();
        for index in 0..reactors {
            let mut node = Node::new(&world, &format!("server{index}"), config, 4 << 20, |memory| {
                let mut program = Program::new(memory.pools.payload.clone().owned_by(index as u8));
                if reactors > 1 {
                    program.home = home_at_one;
                }
                Noted { services: (program,), steps: Vec::new() }
            });
            if reactors > 1 {
                let own = ReactorId::new(index).and_then(|own| mesh.take(own)).expect("one of the group");
                node.engine.join(own, None);
            }
            servers.push(node);
        }
        if let [first, .., last] = &mut servers[..] {
            let arenas = [first.memory.arena.clone(), last.memory.arena.clone()];
            for arena in arenas {
                stag_fabric::Provider::register(first.engine.provider_mut(), &arena).expect("an arena");
                stag_fabric::Provider::register(last.engine.provider_mut(), &arena).expect("an arena");
            }
        }
        servers[0].engine.listen("server").expect("the address is free");
        let mut client = Node::new(&world, "client", config, 4 << 20, |_| ());
        let connection = client.engine.connect("server").expect("the address is fine");
        let mut lab = Lab { world, servers, client, connection };
        lab.run(|lab| lab.client.events.contains(&ConnectionEvent::Established { connection }));
        // Grants grow the general way, while Receives are posted; and the client has shown that it lets itself be read.
        for _ in 0..100 {
            lab.call(ECHO);
            lab.call(PUT_ONE);
        }
        lab
    }

    fn pass(&mut self) -> usize {
        let now = self.world.now();
        self.servers.iter_mut().map(|server| server.poll(now)).sum::<usize>() + self.client.poll(now)
    }

    #[track_caller]
    fn run(&mut self, done: impl Fn(&mut Lab) -> bool) {
        for _ in 0..PASSES_MAX {
            if done(self) {
                return;
            }
            if self.pass() == 0 {
                let timers = self.servers.iter().map(|server| server.engine.next_timeout());
                let timer = timers.chain([self.client.engine.next_timeout()]).flatten().min();
                self.world.advance_before(timer);
            }
            // Another thread answers these.
            if let Some(deferred) = self.home().services.0.deferred.pop() {
                deferred.finish(|reply| reply.success(|_| Ok(())));
            }
        }
        panic!("what was awaited did not happen in {PASSES_MAX} passes");
    }

    /// Where Calls are executed.
    fn home(&mut self) -> &mut Noted {
        self.servers.last_mut().expect("there is one").engine.services_mut()
    }

    #[track_caller]
    fn call(&mut self, procedure: u32) -> Vec<CallStep> {
        let (connection, request) = (self.connection, request_for(procedure, 1000));
        let mut chunks = match procedure {
            PUT_ONE | PUT_LONG | LATER_PUT => Chunks::read(self.client.data(&pattern(7, 5000))),
            GET_ONE => Chunks::write(self.client.space(4096)),
            _ => Chunks::default(),
        };
        let encode = |writer: &mut Writer<'_>| match procedure {
            LATER => {
                writer.u64(500)?;
                writer.opaque(b"later")
            }
            PUT_ONE | PUT_LONG | LATER_PUT => {
                if procedure == LATER_PUT {
                    writer.u64(500)?;
                }
                writer.u32(1)?;
                writer.eligible_opaque_reduced(5000).map(drop)
            }
            GET_ONE => [1, 1, 3000].into_iter().try_for_each(|word| writer.u32(word)),
            DEFER => Ok(()),
            _ => writer.opaque(b"echo"),
        };
        let call = self.client.engine.call(connection, &request, &mut chunks, encode).expect("a credit");
        self.run(|lab| lab.client.done.iter().any(|done| done.call == call));
        let _ = bytes(&Ended::of(self.client.done.remove(0)));
        let steps = self.home().take(procedure);
        if self.servers.len() > 1 {
            assert!(self.servers[0].engine.services_mut().steps.is_empty(), "it is executed elsewhere");
        }
        steps
    }
}

/// Every way over RDMA: in place, in a Receive, read at once, read later, answered later, by another thread and at another reactor, in both
/// versions.
#[test]
fn each_way_has_the_same_steps() {
    let version2 =
        EngineConfig { protocol: ProtocolChoice::Auto, placement: PlacementChoice::Send, ..small() };
    for config in [small(), version2] {
        for in_place in [Odds::NEVER, Odds::one_in(2), Odds::ALWAYS] {
            for far in [Odds::NEVER, Odds::ALWAYS] {
                for reactors in [1, 2] {
                    let plan = FaultPlan { in_place, far, ..FaultPlan::default() };
                    let mut lab = Lab::new(plan.clone(), config, reactors);
                    for procedure in [ECHO, PUT_ONE, PUT_LONG, GET_ONE, LATER, LATER_PUT, DEFER, ECHO] {
                        let steps = lab.call(procedure);
                        assert_eq!(steps, ALL, "{procedure}: {config:?} {plan:?} {reactors}");
                    }
                }
            }
        }
    }
}

/// A Call over a byte stream, too.
#[test]
fn a_record_has_the_same_steps() {
    let mut lab = Lab::new(FaultPlan::default(), small(), 1);
    let address = lab.servers[0].engine.listen_tcp("127.0.0.1:0").expect("a port is free");
    let mut peer = TcpStream::connect(address).expect("it listens");
    peer.set_nonblocking(true).expect("a socket");
    let words = [0x8000_0000 | 44, 7, 0, 2, PROGRAM, VERSION, ECHO, 0, 0, 0, 0, 0];
    let record: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
    peer.write_all(&record).expect("it takes a record");
    let mut answer = [0; 32];
    let mut len = 0;
    while len < answer.len() {
        lab.servers[0].poll(lab.world.now());
        if let Ok(count) = peer.read(&mut answer[len..]) {
            assert!(count > 0, "it is open");
            len += count;
        }
    }
    assert_eq!(lab.home().take(ECHO), ALL);
}

/// A reverse Call, at the client.
#[test]
fn a_reverse_call_has_the_same_steps() {
    let config = EngineConfig { reverse_credits: 4, ..small() };
    let world = World::new(1, FaultPlan::default());
    let node = |name: &str| {
        Node::new(&world, name, config, 4 << 20, |memory| Noted {
            services: (Program::new(memory.pools.payload.clone()),),
            steps: Vec::new(),
        })
    };
    let (mut server, mut client) = (node("server"), node("client"));
    server.engine.listen("server").expect("the address is free");
    let forward = client.engine.connect("server").expect("the address is fine");
    let pass = |server: &mut Node<Noted>, client: &mut Node<Noted>| {
        let now = world.now();
        if server.poll(now) + client.poll(now) == 0 {
            let timers = [server.engine.next_timeout(), client.engine.next_timeout()];
            world.advance_before(timers.into_iter().flatten().min());
        }
    };
    while !client.events.contains(&ConnectionEvent::Established { connection: forward }) {
        pass(&mut server, &mut client);
    }
    let connection = server.engine.credit_gauges().next().expect("a connection").connection;
    for _ in 0..20 {
        let request = request_for(ECHO, 800);
        // Its end of the connection may be established later.
        while server.engine.call_back(connection, &request, |writer| writer.opaque(b"back")).is_err() {
            pass(&mut server, &mut client);
        }
        while server.done.is_empty() {
            pass(&mut server, &mut client);
        }
        let _ = bytes(&Ended::of(server.done.remove(0)));
        assert_eq!(client.engine.services_mut().take(ECHO), ALL);
    }
}

/// A Call whose data takes a round trip came before it was ready; the counters say how long that took.
#[test]
fn waiting_for_data_is_timed() {
    let plan = FaultPlan { in_place: Odds::ALWAYS, far: Odds::ALWAYS, ..FaultPlan::default() };
    for in_place in [Odds::NEVER, Odds::ALWAYS] {
        let world = World::new(1, FaultPlan { in_place, ..plan.clone() });
        let mut server = Node::new(&world, "server", small(), 4 << 20, |memory| {
            Observed::new((Program::new(memory.pools.payload.clone()),))
        });
        server.engine.listen("server").expect("the address is free");
        let mut client = Node::new(&world, "client", small(), 4 << 20, |_| ());
        let connection = client.engine.connect("server").expect("the address is fine");
        let mut calls = 0;
        for _ in 0..100_000 {
            let now = world.now();
            if server.poll(now) + client.poll(now) == 0 {
                let timers = [server.engine.next_timeout(), client.engine.next_timeout()];
                world.advance_before(timers.into_iter().flatten().min());
            }
            let is_ready = client.events.contains(&ConnectionEvent::Established { connection });
            if is_ready && calls < 50 && calls == client.done.len() {
                calls += 1;
                let mut chunks = Chunks::read(client.data(&pattern(7, 5000)));
                let request = request_for(PUT_ONE, 800);
                let encode = |writer: &mut Writer<'_>| {
                    writer.u32(1)?;
                    writer.eligible_opaque_reduced(5000).map(drop)
                };
                client.engine.call(connection, &request, &mut chunks, encode).expect("a credit");
            }
        }
        assert_eq!(client.done.len(), 50);
        let observed = server.engine.services_mut();
        let found = observed.procedures().next().expect("it was called");
        assert_eq!((found.calls, found.pulled), (50, 50), "{in_place:?}");
        assert_eq!(found.pull_waited.iter().sum::<u64>(), 50);
        assert!(found.pull_waited_sum > Duration::ZERO);
    }
}
