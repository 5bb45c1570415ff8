//! Two reactors on threads of their own, as one server: connections are spread, Calls are carried to their homes, and data crosses
//! as loans.

use std::error::Error;
use std::thread;
use std::time::Duration;

use stag::memory::{PageSize, loans_lost};
use stag::prelude::*;
use stag::rpc::{CARRIED_CALLS_MAX, ConnectionId, EngineGroup, Home};
use stag::runtime::{GroupConfig, GroupMember, ReactorGroup, ReactorId, Stopped};
use stag::wire::xdr::Item;

const PROGRAM: u32 = 0x2000_7a61;
/// `where() -> reactor`: executed where it comes in.
const HERE: u32 = 1;
/// `where() -> reactor`: executed at reactor 1.
const AT_ONE: u32 = 2;
/// `keep(eligible opaque)`: reactor 1 keeps it.
const KEEP: u32 = 3;
/// `give() -> eligible opaque`: what reactor 1 keeps.
const GIVE: u32 = 4;

static PLAIN: Procedure = Procedure::plain("WHERE");
static TAKES: Procedure = Procedure { eligible_arguments: 1, ..Procedure::plain("KEEP") };
static GIVES: Procedure = Procedure { eligible_results: 1, ..Procedure::plain("GIVE") };

/// How long a test waits for what takes microseconds, on a machine that does something else.
const PATIENCE: Duration = Duration::from_secs(60);

/// Octets that are kept.
const LEN: usize = 100_000;

/// A service of one reactor.
struct Keeper {
    reactor: ReactorId,
    kept: Vec<Shared>,
}

impl Service for Keeper {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (1, 1)
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<&'static Procedure> {
        [&PLAIN, &PLAIN, &TAKES, &GIVES].get(procedure.wrapping_sub(1) as usize).copied()
    }

    fn home(&self, call: &Call<'_>) -> Home {
        match (call.procedure, ReactorId::new(1)) {
            (HERE, _) | (_, None) => Home::Here,
            (_, Some(one)) => Home::At(one),
        }
    }

    fn give_back(&mut self) {
        self.kept.clear();
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        match call.procedure {
            KEEP => {
                let Ok(Item::Reduced { index, .. }) = call.arguments().eligible_opaque(LEN as u32) else {
                    reply.garbage_arguments();
                    return Outcome::Done;
                };
                self.kept = call.placed(index).pieces.drain(..).map(Buf::share).collect();
                reply.success(|_| Ok(()));
            }
            GIVE => {
                assert_eq!(reply.item(LEN as u32), Placement::Reduced);
                self.kept.iter().for_each(|piece| reply.piece(piece.clone()));
                reply.success(|writer| writer.eligible_opaque_reduced(LEN as u32).map(drop));
            }
            _ => {
                let reactor = self.reactor.index() as u32;
                reply.success(|writer| writer.u32(reactor));
            }
        }
        Outcome::Done
    }
}

/// Stops the reactors also when a test fails: their threads could not be joined otherwise.
struct Stopping<'a>(&'a StopFlag);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.request();
    }
}

/// The memory of one reactor, which the others send from as well.
fn arena() -> Arena {
    let config = EngineConfig::default();
    let len =
        Pool::footprint(config.message_len(), Pools::messages_needed(&config)) + Pool::footprint(4096, 1024);
    let (page, budget) = (PageChoice::Size(PageSize::Base), Budget::new(1 << 32));
    Arena::new(&ArenaConfig { name: "group", len, page, node: None, budget: &budget }).expect("some memory")
}

struct Client {
    engine: Engine<Shm, ()>,
    memory: Memory,
    clock: Clock,
}

impl Client {
    fn new() -> Client {
        let memory = Memory::new(&EngineConfig::default(), 4 << 20).expect("some memory");
        let mut shm = Shm::open(ShmConfig::default()).expect("shared memory");
        shm.register(&memory.arena).expect("an arena");
        let engine = Engine::new(shm, (), memory.pools.clone(), EngineConfig::default(), 1).expect("it fits");
        Client { engine, memory, clock: Clock::start() }
    }

    fn until<T>(&mut self, mut found: impl FnMut(&mut Engine<Shm, ()>) -> Option<T>) -> T {
        let begun = self.clock.now();
        loop {
            self.engine.poll(self.clock.now());
            if let Some(found) = found(&mut self.engine) {
                return found;
            }
            assert!(self.clock.now() - begun < PATIENCE, "nothing comes");
            thread::yield_now();
        }
    }

    fn connect(&mut self, name: &str) -> ConnectionId {
        let connection = self.engine.connect(name).expect("a name");
        let event = self.until(Engine::connection_event);
        assert!(matches!(event, ConnectionEvent::Established { .. }), "{event:?}");
        connection
    }

    /// A buffer of [`LEN`] octets, all of which are `fill`.
    fn space(&self, fill: u8) -> Buf {
        let mut buf = self.memory.pools.payload.take_len(LEN).expect("memory enough");
        buf.set_len(LEN);
        buf.fill(fill);
        buf
    }

    /// The results of a Call, and what its Write chunk has.
    fn call(&mut self, connection: ConnectionId, procedure: u32, mut chunks: Chunks) -> (Vec<u8>, Vec<u8>) {
        let request = Request {
            program: PROGRAM,
            version: 1,
            procedure,
            credentials: Credentials::None,
            user: 0,
            timeout: Duration::from_secs(60),
            results_len_max: 64,
            retransmit: false,
            reply_mode: ReplyMode::Auto,
        };
        let encode = |writer: &mut Writer<'_>| match procedure {
            KEEP => writer.eligible_opaque_reduced(LEN as u32).map(drop),
            _ => Ok(()),
        };
        self.engine.call(connection, &request, &mut chunks, encode).expect("a credit");
        let done = self.until(Engine::completed);
        let results = done.result.expect("it is answered");
        let written = done.written.iter().next().map_or(Vec::new(), |(_, buf)| buf.to_vec());
        (results.bytes().to_vec(), written)
    }
}

#[test]
fn one_server_on_two_threads() {
    let name = format!("group-{}", std::process::id());
    let arenas = [arena(), arena()];
    let config = GroupConfig {
        cores: vec![None, None],
        mode: PollMode::default(),
        drain_max: Duration::from_secs(20),
    };
    let reactors = ReactorGroup::new(&config, Clock::start()).expect("two threads");
    let engines = EngineGroup::new(2, CARRIED_CALLS_MAX, 8).expect("some descriptors");
    let make = |member: GroupMember| {
        let config = EngineConfig::default();
        let arena = &arenas[member.id().index()];
        let pools = Pools {
            messages: Pool::fixed(arena, "messages", config.message_len(), Pools::messages_needed(&config))?,
            payload: Pool::runs(arena, "payload", 4096, 1024)?.owned_by(member.id().index() as u8),
        };
        let mut shm = Shm::open(ShmConfig { may_sleep: true, ..ShmConfig::default() })?;
        // Its own: the engine registers those of the others when it has joined them.
        shm.register(arena)?;
        let keeper = Keeper { reactor: member.id(), kept: Vec::new() };
        let mut engine = Engine::new(shm, (keeper,), pools, config, 1)?;
        engine.join_group(&engines, member.id(), Some(member.clone()));
        if member.id().index() == 0 {
            engine.listen(&name)?;
        }
        Ok::<_, Box<dyn Error + Send + Sync>>(engine)
    };
    let end = |engine: Engine<Shm, (Keeper,)>, _: &Stopped| {
        let (carried, pools) = (engine.statistics().calls_carried, engine.pools().clone());
        drop(engine);
        (carried, pools.messages.outstanding() + pools.payload.outstanding())
    };
    let stop = StopFlag::new().expect("a descriptor");
    let ended = thread::scope(|scope| {
        let server = scope.spawn(|| reactors.run(&stop, make, end).map_err(|error| error.to_string()));
        let stopping = Stopping(&stop);
        let mut client = Client::new();
        // The name is there as soon as reactor 0 listens.
        let begun = client.clock.now();
        while !std::fs::read_to_string("/proc/net/unix").is_ok_and(|names| names.contains(&name)) {
            assert!(client.clock.now() - begun < PATIENCE, "it does not listen");
            thread::yield_now();
        }
        let connections = [client.connect(&name), client.connect(&name)];
        let of = |client: &mut Client, procedure| {
            connections.map(|connection| client.call(connection, procedure, Chunks::default()).0[3])
        };
        let served = of(&mut client, HERE);
        assert!(served == [0, 1] || served == [1, 0], "{served:?}");
        for _ in 0..100 {
            assert_eq!(of(&mut client, AT_ONE), [1, 1]);
        }
        let at_zero = connections[served.iter().position(|reactor| *reactor == 0).expect("just seen")];
        for round in 0..20_u8 {
            let data = client.space(round).share();
            client.call(at_zero, KEEP, Chunks::read(data));
            for connection in connections {
                let space = client.space(0xee);
                let (_, given) = client.call(connection, GIVE, Chunks::write(space));
                assert_eq!((given.len(), given.iter().all(|octet| *octet == round)), (LEN, true), "{round}");
            }
        }
        for connection in connections {
            client.engine.disconnect(connection);
        }
        client.until(|engine| engine.is_drained().then_some(()));
        drop(stopping);
        server.join().expect("no panic").expect("it ran")
    });
    for (stopped, (_, outstanding)) in &ended {
        assert_eq!((stopped.drained, *outstanding), (true, 0));
    }
    let carried: u64 = ended.iter().map(|(_, (carried, _))| carried).sum();
    assert_eq!(carried, 100 + 20 * 2, "those that came in at reactor 0");
    assert_eq!(loans_lost(), 0);
}
