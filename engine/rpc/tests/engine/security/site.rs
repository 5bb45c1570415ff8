//! A server of one reactor or two, a client, and the world between them.

use std::time::Duration;

use stag_fabric::sim::{FaultPlan, Odds, Sim, World};
use stag_rpc::{
    AuthNone, AuthUnix, CARRIED_CALLS_MAX, Call, CallId, CallMesh, CallRefused, Caller, Chunks,
    ConnectionEvent, ConnectionId, Credentials, Engine, Home, Memory, Observed, Outcome, Procedure,
    ProtocolChoice, Reply, Request, Secured, Service,
};
use stag_runtime::{Poller, ReactorId};
use stag_wire::xdr::{Overflow, Writer};

use super::keyed::{Keyed, Mode, Sealer};
use crate::support::program::Program;
use crate::support::{Ended, Node, PASSES_MAX, bytes, request, small};

/// `opaque who()`: what is known of the caller.
pub(crate) const WHO_PROGRAM: u32 = 0x2000_0043;

/// The services, with every kind of wrapper that has to hand Calls on to their flavors.
pub(crate) type Services = Option<Observed<Secured<(Program, Who), (AuthNone, AuthUnix, Keyed)>>>;

/// How Calls reach the services.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// Messages that are offered where they arrived.
    pub(crate) in_place: Odds,
    /// 2: Calls come in at reactor 0, and are executed at reactor 1.
    pub(crate) reactors: usize,
    pub(crate) protocol: ProtocolChoice,
}

/// All of them.
pub(crate) fn ways() -> Vec<Way> {
    let mut ways = Vec::new();
    for in_place in [Odds::NEVER, Odds::one_in(2), Odds::ALWAYS] {
        for reactors in [1, 2] {
            for protocol in [ProtocolChoice::One, ProtocolChoice::Auto] {
                ways.push(Way { in_place, reactors, protocol });
            }
        }
    }
    ways
}

/// See [`WHO_PROGRAM`].
pub(crate) struct Who;

static WHO: Procedure = Procedure::plain("WHO");

fn at_the_last(_: &Call<'_>) -> Home {
    Home::At(ReactorId::new(1).expect("a group may have two"))
}

impl Service for Who {
    fn program(&self) -> u32 {
        WHO_PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (1, 1)
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<&'static Procedure> {
        (procedure == 1).then_some(&WHO)
    }

    fn home(&self, call: &Call<'_>) -> Home {
        at_the_last(call)
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        let who = match call.caller {
            Caller::None => "none".to_owned(),
            Caller::Sys(user) => format!("user {}", user.uid),
            Caller::Own { flavor, name } => format!("{flavor:#x} {}", String::from_utf8_lossy(name)),
            _ => "another".to_owned(),
        };
        reply.success(|writer| writer.opaque(who.as_bytes()));
        Outcome::Done
    }
}

pub(crate) struct Site {
    pub(crate) world: World,
    pub(crate) servers: Vec<Node<Services>>,
    pub(crate) client: Node<()>,
    pub(crate) connection: ConnectionId,
}

impl Site {
    pub(crate) fn new(way: Way) -> Site {
        let Way { in_place, reactors, protocol } = way;
        let world = World::new(1, FaultPlan { in_place, ..FaultPlan::default() });
        let config = stag_rpc::EngineConfig { protocol, streams_max: 8, ..small() };
        let mesh = CallMesh::new(reactors, CARRIED_CALLS_MAX);
        let servers: Vec<Node<Services>> = (0..reactors)
            .map(|index| {
                let own = ReactorId::new(index).expect("a group may have two");
                let memory = Memory::on_demand(&config, 8 << 20).expect("a few megabytes").owned_by(own);
                let mut node = Node::on(&world, "server", config, memory, |memory| {
                    let mut program = Program::new(memory.pools.payload.clone());
                    if reactors == 2 {
                        program.home = at_the_last;
                    }
                    let flavors = (AuthNone, AuthUnix, Keyed::new());
                    Some(Observed::new(Secured::new((program, Who), flavors)))
                });
                if reactors == 2 {
                    node.engine.join(mesh.take(own).expect("once"), None);
                }
                if index == 0 {
                    node.engine.listen("server").expect("the address is free");
                }
                node
            })
            .collect();
        let mut client = Node::new(&world, "client", config, 4 << 20, |_| ());
        let connection = client.engine.connect("server").expect("the address is fine");
        let mut site = Site { world, servers, client, connection };
        let wanted = ConnectionEvent::Established { connection };
        site.run(|site| site.client.events.contains(&wanted));
        site
    }

    fn secured(&mut self, reactor: usize) -> &mut Secured<(Program, Who), (AuthNone, AuthUnix, Keyed)> {
        let engine: &mut Engine<Sim, Services> = &mut self.servers[reactor].engine;
        engine.services_mut().as_mut().expect("they are there").get_mut()
    }

    /// Where Calls are executed.
    pub(crate) fn program(&mut self) -> &mut Program {
        let last = self.servers.len() - 1;
        &mut self.secured(last).services_mut().0
    }

    /// Where they come in.
    pub(crate) fn keyed(&mut self) -> &mut Keyed {
        &mut self.secured(0).flavors_mut().2
    }

    pub(crate) fn pass(&mut self) -> usize {
        let now = self.world.now();
        let count: usize = self.servers.iter_mut().map(|server| server.poll(now)).sum();
        count + self.client.poll(now)
    }

    fn step(&mut self) -> bool {
        if self.pass() > 0 {
            return true;
        }
        let servers = self.servers.iter().map(|server| server.engine.next_timeout());
        let timer = servers.chain([self.client.engine.next_timeout()]).flatten().min();
        self.world.advance_before(timer)
    }

    #[track_caller]
    pub(crate) fn run(&mut self, mut done: impl FnMut(&mut Site) -> bool) {
        for _ in 0..PASSES_MAX {
            if done(self) {
                return;
            }
            assert!(self.step() || done(self), "nothing happens any more, and what was awaited did not");
        }
        panic!("what was awaited did not happen in {PASSES_MAX} passes");
    }

    /// Lets a little time pass: sockets are looked at now and then.
    pub(crate) fn tick(&mut self) {
        self.pass();
        self.world.advance_to(self.world.now() + Duration::from_micros(50));
    }

    pub(crate) fn begin(
        &mut self,
        sealer: &Sealer,
        request: Request<'_>,
        mut chunks: Chunks,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<CallId, CallRefused> {
        let request = Request { credentials: Credentials::Own(sealer), ..request };
        self.client.engine.call(self.connection, &request, &mut chunks, encode)
    }

    #[track_caller]
    pub(crate) fn finish(&mut self, call: CallId) -> Ended {
        self.run(|site| site.client.done.iter().any(|done| done.call == call));
        let at = self.client.done.iter().position(|done| done.call == call).expect("just seen");
        Ended::of(self.client.done.swap_remove(at))
    }

    /// A whole Call.
    #[track_caller]
    pub(crate) fn call(
        &mut self,
        sealer: &Sealer,
        request: Request<'_>,
        chunks: Chunks,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Ended {
        let call = self.begin(sealer, request, chunks, encode).expect("the Call is begun");
        self.finish(call)
    }

    /// Makes sessions, by control Calls, until there are `count`.
    #[track_caller]
    pub(crate) fn make_sessions(&mut self, count: u32) {
        let sealer = Sealer::new(Mode::Hello, 0);
        for session in 1..=count {
            let done =
                self.call(&sealer, Request { results_len_max: 4, ..request(0) }, Chunks::default(), |_| {
                    Ok(())
                });
            assert_eq!(bytes(&done), session.to_be_bytes());
        }
    }

    /// The end of a test: nothing is left anywhere.
    #[track_caller]
    pub(crate) fn close(mut self) {
        let connection = self.connection;
        self.client.engine.disconnect(connection);
        self.run(|site| {
            let is_drained = |node: &Node<Services>| node.engine.is_drained();
            site.client.engine.is_drained() && site.servers.iter().all(is_drained)
        });
        self.program().release();
        for _ in 0..100 {
            self.pass();
        }
        self.client.done.clear();
        assert_eq!(self.client.outstanding(), 0, "{}", self.client.memory.ledger);
        let mut ledgers = Vec::new();
        for Node { engine, memory, .. } in self.servers {
            drop(engine);
            ledgers.push(memory);
        }
        for memory in ledgers {
            assert_eq!(memory.ledger.outstanding(), 0, "{}", memory.ledger);
        }
    }
}
