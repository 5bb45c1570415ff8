//! Calls both ways over each fabric and in both versions, both ends in one thread: Replies are right, nothing is left, and the steady state
//! allocates nothing.
//!
//! A program of its own, because it replaces the allocator.

use std::time::Duration;

use stag::fabric::verbs::{Verbs, VerbsConfig};
use stag::fabric::{Iwarp, IwarpConfig};
use stag::prelude::*;
use stag::rpc::{CallRefused, ConnectionId, ProtocolChoice};
use stag_testing::CountingAllocator;

#[path = "../../fabric/tests/fake/mod.rs"]
mod fake;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const PROGRAM: u32 = 0x2000_0b0b;
/// Calls of each direction that are counted, after as many to warm up.
const CALLS: u64 = 2000;

/// `opaque echo(opaque)`; remembers where the last Call came from.
#[derive(Default)]
struct Echo {
    called_on: Option<ConnectionId>,
}

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
        self.called_on = Some(call.connection());
        match call.arguments().opaque(1024) {
            Ok(text) => reply.success(|writer| writer.opaque(text)),
            Err(_) => reply.garbage_arguments(),
        }
        Outcome::Done
    }
}

fn request(user: u64) -> Request<'static> {
    Request {
        program: PROGRAM,
        version: 1,
        procedure: 1,
        credentials: Credentials::None,
        user,
        timeout: Duration::from_secs(3600),
        results_len_max: 600,
        retransmit: false,
        reply_mode: ReplyMode::Auto,
    }
}

/// What a Call sends and gets back.
fn text(user: u64) -> [u8; 500] {
    [user as u8; 500]
}

/// Takes the Calls of one end that are over.
fn take<P: Provider>(engine: &mut Engine<P, (Echo,)>) -> u64 {
    let mut count = 0;
    while let Some(done) = engine.completed() {
        let results = done.result.expect("an answer");
        assert_eq!(results.bytes()[4..], text(done.user));
        count += 1;
    }
    count
}

/// Makes Calls both ways, as many at once as there are credits. Returns how often memory was allocated in the second half.
fn call_both_ways<P: Provider>(open: impl Fn(u32) -> P, listen: &str, protocol: ProtocolChoice) -> u64 {
    let config = EngineConfig { reverse_credits: 4, connections_max: 2, protocol, ..EngineConfig::default() };
    let memory = [(); 2].map(|()| Memory::new(&config, 1 << 20).expect("a few megabytes"));
    let [mut server, mut client] = [0, 1].map(|end| {
        let mut provider = open(config.completions_max());
        provider.register(&memory[end].arena).expect("an arena");
        let pools = memory[end].pools.clone();
        Engine::new(provider, (Echo::default(),), pools, config, end as u32).expect("it fits")
    });
    let listener = server.listen(listen).expect("it is free");
    let address = server.provider().listener_address(listener).map_or(listen.to_owned(), |at| at.to_string());
    let forward = client.connect(&address).expect("the address is fine");
    let mut now = Duration::ZERO;
    let mut pass = |client: &mut Engine<P, (Echo,)>, server: &mut Engine<P, (Echo,)>| {
        now += Duration::from_micros(5);
        client.poll(now);
        server.poll(now);
    };
    while client.credits_available(forward) == 0 {
        pass(&mut client, &mut server);
    }
    let mut allocations = 0;
    // Begun, and over.
    let (mut forwards, mut reverses) = ([0, 0], [0, 0]);
    while forwards[1] < 2 * CALLS
        || reverses[1] < 2 * CALLS
        || forwards[0] > forwards[1]
        || reverses[0] > reverses[1]
    {
        let begin = |writer: &mut stag::wire::xdr::Writer<'_>, user| writer.opaque(&text(user));
        while forwards[0] - forwards[1] < 8
            && client
                .call(forward, &request(forwards[0]), &mut Chunks::default(), |writer| {
                    begin(writer, forwards[0])
                })
                .is_ok()
        {
            forwards[0] += 1;
        }
        let called_on = server.services_mut().0.called_on;
        while let Some(connection) = called_on.filter(|_| reverses[0] - reverses[1] < 4)
            && let called =
                server.call_back(connection, &request(reverses[0]), |writer| begin(writer, reverses[0]))
            && called != Err(CallRefused::NoCredit)
        {
            called.expect("a Call goes back");
            reverses[0] += 1;
        }
        let before = CountingAllocator::allocations();
        pass(&mut client, &mut server);
        if forwards[1].min(reverses[1]) > CALLS {
            allocations += CountingAllocator::allocations() - before;
        }
        forwards[1] += take(&mut client);
        reverses[1] += take(&mut server);
        if forwards[1].max(reverses[1]) >= 2 * CALLS && forwards[1].min(reverses[1]) >= 2 * CALLS {
            break;
        }
    }
    client.disconnect(forward);
    while client.connection_count() + server.connection_count() > 0 {
        pass(&mut client, &mut server);
    }
    while client.completed().is_some() || server.completed().is_some() {}
    drop((client, server));
    for memory in &memory {
        assert_eq!(memory.ledger.outstanding(), 0, "{}", memory.ledger);
    }
    allocations
}

#[test]
fn over_shared_memory() {
    let open =
        |completions| Shm::open(ShmConfig { completions, ..ShmConfig::default() }).expect("it needs nothing");
    for (name, protocol) in [("call-back", ProtocolChoice::One), ("call-back-2", ProtocolChoice::Two)] {
        let listen = format!("{name}-{}", std::process::id());
        assert_eq!(call_both_ways(open, &listen, protocol), 0, "allocations, {protocol:?}");
    }
}

#[test]
fn over_iwarp() {
    let open = |completions| {
        Iwarp::open(IwarpConfig { completions, ..IwarpConfig::default() }).expect("it needs nothing")
    };
    for protocol in [ProtocolChoice::One, ProtocolChoice::Two] {
        assert_eq!(call_both_ways(open, "127.0.0.1:0", protocol), 0, "allocations, {protocol:?}");
    }
}

#[test]
fn over_verbs_on_libraries_of_nothing() {
    // What the libraries of nothing allocate is theirs, and is not told apart from ours.
    let _ = call_both_ways(
        |completions| {
            let config = VerbsConfig { completions, ..VerbsConfig::default() };
            // SAFETY: the table is of functions that do what libibverbs' and librdmacm's do.
            unsafe { Verbs::open_with(&fake::FAKE, config) }.expect("there is a device")
        },
        "127.0.0.1:20049",
        ProtocolChoice::One,
    );
}
