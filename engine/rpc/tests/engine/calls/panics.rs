//! Handlers that panic behind a [`PanicGuard`].

use std::time::Duration;

use stag_fabric::sim::{FaultPlan, World};
use stag_rpc::{
    CARRIED_CALLS_MAX, Call, CallError, CallMesh, Chunks, ConnectionEvent, ConnectionId, Deferred, Home,
    Memory, Outcome, PanicGuard, Procedure, Reply, Service, Token,
};
use stag_runtime::{Poller, ReactorId};

use crate::support::program::PROGRAM;
use crate::support::{Ended, Node, PASSES_MAX, bytes, error, request, small};

/// Answers with how often it was executed.
const COUNT: u32 = 1;
/// Panics before it has answered.
const BEFORE: u32 = 2;
/// Panics while its results are encoded.
const ENCODING: u32 = 3;
/// Panics when it is answered late.
const LATER: u32 = 4;
/// Panics in what another thread gave for its answer.
const DEFERRED: u32 = 5;
/// Panics, and must not be executed twice.
const ONCE: u32 = 6;
/// Panics where its home is asked for.
const HOMELESS: u32 = 7;
/// Panics after it was left to another thread.
const REGRETTED: u32 = 8;

static PLAIN: Procedure = Procedure::plain("PLAIN");
static ONLY_ONCE: Procedure = Procedure::plain("ONCE").once();

#[derive(Default)]
struct Fragile {
    executed: u32,
    late: Option<Token>,
    deferred: Vec<Deferred>,
}

impl Service for Fragile {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (2, 3)
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<&'static Procedure> {
        match procedure {
            ONCE => Some(&ONLY_ONCE),
            COUNT..=REGRETTED => Some(&PLAIN),
            _ => None,
        }
    }

    fn home(&self, call: &Call<'_>) -> Home {
        assert_ne!(call.procedure, HOMELESS, "it has no home");
        Home::At(ReactorId::new(1).expect("a group may have two"))
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        self.executed += 1;
        let executed = self.executed;
        match call.procedure {
            COUNT | HOMELESS => reply.success(|writer| writer.u32(executed)),
            ENCODING => reply.success(|writer| {
                writer.u32(executed)?;
                panic!("in the middle of its results");
            }),
            LATER => {
                self.late = Some(call.token());
                return Outcome::Later(call.token());
            }
            DEFERRED => {
                let deferred = reply.defer(call).expect("a descriptor");
                let token = deferred.token();
                deferred.finish(|_| panic!("on the reactor"));
                return Outcome::Later(token);
            }
            REGRETTED => {
                self.deferred.push(reply.defer(call).expect("a descriptor"));
                panic!("it is left to another thread already");
            }
            _ => panic!("before it has answered"),
        }
        Outcome::Done
    }

    fn poll_later(&mut self, _: Duration) -> Option<Token> {
        self.late.take()
    }

    fn finish(&mut self, _: Token, _: &mut Reply<'_>) {
        panic!("when it is answered late");
    }

    fn abandoned(&mut self, _: Token) {
        panic!("when its Call is gone");
    }
}

type Guarded = (PanicGuard<Fragile>,);

/// Servers, of which the client is connected to the first.
struct Lab {
    world: World,
    servers: Vec<Node<Guarded>>,
    client: Node<()>,
    connection: ConnectionId,
}

impl Lab {
    fn new(servers: usize) -> Lab {
        let world = World::new(1, FaultPlan::default());
        let mesh = CallMesh::new(servers, CARRIED_CALLS_MAX);
        let mut servers: Vec<Node<Guarded>> = (0..servers)
            .filter_map(ReactorId::new)
            .map(|own| {
                let memory = Memory::on_demand(&small(), 1 << 20).expect("a few megabytes").owned_by(own);
                let guarded = |_: &Memory| (PanicGuard::new(Fragile::default()),);
                let mut node = Node::on(&world, "server", small(), memory, guarded);
                if let Some(lanes) = mesh.take(own).filter(|_| servers > 1) {
                    node.engine.join(lanes, None);
                }
                node
            })
            .collect();
        servers[0].engine.listen("server").expect("the address is free");
        let mut client = Node::new(&world, "client", small(), 1 << 20, |_| ());
        let connection = client.engine.connect("server").expect("the address is fine");
        let mut lab = Lab { world, servers, client, connection };
        let wanted = ConnectionEvent::Established { connection };
        lab.run(|lab| lab.client.events.contains(&wanted));
        lab
    }

    #[track_caller]
    fn run(&mut self, done: impl Fn(&Lab) -> bool) {
        for _ in 0..PASSES_MAX {
            if done(self) {
                return;
            }
            let now = self.world.now();
            let count: usize = self.servers.iter_mut().map(|server| server.poll(now)).sum();
            if count + self.client.poll(now) == 0 {
                let engines = self.servers.iter().map(|server| server.engine.next_timeout());
                let timer = engines.chain([self.client.engine.next_timeout()]).flatten().min();
                self.world.advance_before(timer);
            }
        }
        panic!("what was awaited did not happen in {PASSES_MAX} passes");
    }

    #[track_caller]
    fn call(&mut self, procedure: u32) -> Ended {
        let (connection, mut chunks) = (self.connection, Chunks::default());
        let call = self.client.engine.call(connection, &request(procedure), &mut chunks, |_| Ok(()));
        call.expect("a credit");
        self.run(|lab| !lab.client.done.is_empty());
        Ended::of(self.client.done.remove(0))
    }

    fn fragile(&mut self, server: usize) -> &mut Fragile {
        self.servers[server].engine.services_mut().0.get_mut()
    }

    fn close(mut self) {
        let alive = self.call(COUNT);
        assert_eq!(bytes(&alive).len(), 4);
        self.client.engine.disconnect(self.connection);
        self.run(|lab| lab.client.engine.is_drained() && lab.servers[0].engine.connection_count() == 0);
        assert_eq!(self.client.outstanding(), 0);
        for server in &self.servers {
            assert_eq!(server.outstanding(), 0, "{}", server.memory.ledger);
        }
    }
}

#[test]
fn a_panic_costs_one_call_and_no_more() {
    let mut lab = Lab::new(1);
    let panicking = [BEFORE, ENCODING, LATER, DEFERRED, ONCE, REGRETTED];
    for (count, procedure) in (1..).zip(panicking) {
        assert_eq!(error(&lab.call(procedure)), CallError::SystemError, "procedure {procedure}");
        assert_eq!(lab.servers[0].engine.statistics().replies_defective, count);
    }
    // Its answer comes, and nothing waits for it.
    for deferred in lab.fragile(0).deferred.drain(..) {
        deferred.finish(|reply| reply.success(|_| Ok(())));
    }
    assert_eq!(bytes(&lab.call(COUNT)), 7_u32.to_be_bytes());
    assert_eq!(lab.servers[0].engine.statistics().connections_closed, 0);
    lab.close();
}

#[test]
fn a_panic_at_another_reactor_costs_one_call() {
    let mut lab = Lab::new(2);
    for procedure in [BEFORE, ENCODING, LATER, DEFERRED, ONCE] {
        assert_eq!(error(&lab.call(procedure)), CallError::SystemError, "procedure {procedure}");
    }
    assert_eq!(bytes(&lab.call(COUNT)), 6_u32.to_be_bytes());
    assert_eq!(lab.fragile(0).executed, 0, "all were executed at their home");
    lab.close();
}

/// It is executed nowhere: not where it came in, either, which is not its home.
#[test]
fn a_call_whose_home_cannot_be_said_is_not_executed() {
    let mut lab = Lab::new(2);
    for _ in 0..2 {
        assert_eq!(error(&lab.call(HOMELESS)), CallError::SystemError);
    }
    assert_eq!([0, 1].map(|server| lab.fragile(server).executed), [0, 0]);
    assert_eq!(bytes(&lab.call(COUNT)), 1_u32.to_be_bytes());
    lab.close();
}

#[test]
fn a_panic_over_a_call_whose_client_is_gone() {
    let mut lab = Lab::new(1);
    assert_eq!(error(&lab.call(REGRETTED)), CallError::SystemError);
    let token = lab.fragile(0).deferred.pop().expect("it was left to another thread").token();
    // Nothing waits for this answer, as the service hears.
    lab.fragile(0).late = Some(token);
    lab.close();
}
