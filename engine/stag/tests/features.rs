//! Reliable reply, and version 2 with its data in the messages, over each fabric, both ends in one thread: the data is right, it
//! comes the way that was asked for, and nothing is left.

use std::time::Duration;

use stag::fabric::verbs::{Verbs, VerbsConfig};
use stag::fabric::{Iwarp, IwarpConfig};
use stag::prelude::*;
use stag::rpc::{CallError, CompletedCall, ConnectionId, PlacementChoice, ProtocolChoice};

#[path = "../../fabric/tests/fake/mod.rs"]
mod fake;
#[allow(dead_code, reason = "each test target uses its part")]
#[path = "../../rpc/tests/engine/support/program.rs"]
mod program;

use program::{BIG, GET_ONE, PUT_ONE, Program, pattern, sum};

/// Octets of payload memory of each end.
const PAYLOAD_LEN: usize = 16 << 20;

/// Passes until a test gives up.
const PASSES_MAX: u32 = 5_000_000;

/// Both ends.
struct Ends<P: Provider> {
    server: Engine<P, (Program,)>,
    client: Engine<P, ()>,
    memory: [Memory; 2],
    connection: ConnectionId,
    clock: Clock,
}

impl<P: Provider> Ends<P> {
    /// Connected; `listen` is where the server is.
    fn new(open: impl Fn(u32) -> P, listen: &str, config: EngineConfig) -> Ends<P> {
        let memory = [(); 2].map(|()| Memory::new(&config, PAYLOAD_LEN).expect("some megabytes"));
        let [server, client] = [0, 1].map(|end: usize| {
            let mut provider = open(config.completions_max());
            provider.register(&memory[end].arena).expect("an arena");
            provider
        });
        let pools = memory[0].pools.clone();
        let program = Program::new(pools.payload.clone());
        let mut server = Engine::new(server, (program,), pools, config, 1).expect("it fits");
        let mut client = Engine::new(client, (), memory[1].pools.clone(), config, 2).expect("it fits");
        let listener = server.listen(listen).expect("it is free");
        let address =
            server.provider().listener_address(listener).map_or(listen.to_owned(), |at| at.to_string());
        let connection = client.connect(&address).expect("the address is fine");
        let mut ends = Ends { server, client, memory, connection, clock: Clock::start() };
        ends.run(|ends| {
            matches!(ends.client.connection_event(), Some(ConnectionEvent::Established { .. })).then_some(())
        });
        ends
    }

    fn run<T>(&mut self, mut found: impl FnMut(&mut Self) -> Option<T>) -> T {
        for _ in 0..PASSES_MAX {
            let now = self.clock.now();
            self.client.poll(now);
            self.server.poll(now);
            if let Some(found) = found(self) {
                return found;
            }
        }
        panic!("what was awaited did not happen");
    }

    /// Makes a Call, and waits for its end.
    fn call(
        &mut self,
        procedure: u32,
        results_len_max: u32,
        mut chunks: Chunks,
        encode: impl Fn(&mut stag::wire::xdr::Writer<'_>) -> Result<(), stag::wire::xdr::Overflow>,
    ) -> CompletedCall {
        let request = Request {
            program: program::PROGRAM,
            version: program::VERSION,
            procedure,
            credentials: Credentials::None,
            user: 0,
            timeout: Duration::from_secs(60),
            results_len_max,
            retransmit: false,
            reply_mode: ReplyMode::Auto,
        };
        self.client.call(self.connection, &request, &mut chunks, encode).expect("a credit");
        self.run(|ends| ends.client.completed())
    }

    /// Memory of the client.
    fn space(&self, len: usize) -> Buf {
        let mut buf = self.memory[1].pools.payload.take_len(len).expect("memory");
        buf.set_len(len);
        buf
    }

    fn close(mut self) {
        self.client.disconnect(self.connection);
        self.run(|ends| (ends.client.connection_count() + ends.server.connection_count() == 0).then_some(()));
        let Ends { server, client, memory, .. } = self;
        drop((server, client));
        for memory in &memory {
            assert_eq!(memory.ledger.outstanding(), 0, "{}", memory.ledger);
        }
    }
}

/// RR-4.1-a, RR-4.1.2-a, RR-4.1.3-a, RR-4.1.4-b: results whose size their caller does not know.
fn replies_of_any_size_arrive<P: Provider>(open: impl Fn(u32) -> P, listen: &str) {
    let config = EngineConfig {
        exposed_replies: 4,
        exposed_len_max: 4 << 20,
        pull_len_max: 4 << 20,
        connections_max: 2,
        ..EngineConfig::default()
    };
    let mut ends = Ends::new(open, listen, config);
    let lens = [0, 1, 1000, 4000, 5000, 65_536, 300_001, (2 << 20) + 3];
    for len in lens {
        let done = ends.call(BIG, u32::MAX, Chunks::default(), |writer| {
            writer.u32(len)?;
            writer.u32(len)
        });
        let results = done.result.expect("a Reply");
        assert_eq!(results.bytes()[..4], len.to_be_bytes());
        assert!(results.bytes()[4..][..len as usize] == pattern(len, len as usize), "{len} octets");
    }
    // Those that do not fit inline.
    ends.run(|ends| (ends.server.statistics().replies_taken == 4).then_some(()));
    assert_eq!((ends.server.statistics().replies_exposed, ends.client.statistics().replies_pulled), (4, 4));
    assert_eq!(ends.client.statistics().reply_chunks, 0);
    // Longer than this end takes: told of, and not read.
    let long = 5 << 20;
    let done = ends.call(BIG, u32::MAX, Chunks::default(), |writer| {
        writer.u32(1)?;
        writer.u32(long)
    });
    assert!(matches!(done.result, Err(CallError::Chunk | CallError::ReplyTooLong { .. })), "{done:?}");
    ends.close();
}

/// V2-5.1-a, RTR-7.3-b, RTR-7.4-f, RTR-9.4-a: data of Calls and results in targets of Receives, in one Send or in several.
fn data_goes_in_the_messages<P: Provider>(open: impl Fn(u32) -> P, listen: &str) {
    let config = EngineConfig {
        protocol: ProtocolChoice::Auto,
        // Also over fabrics where data costs less by RDMA.
        placement: PlacementChoice::Send,
        connections_max: 2,
        ..EngineConfig::default()
    };
    let mut ends = Ends::new(open, listen, config);
    let lens = [1, 1000, 4096, 5000, 8192, 20_000];
    for len in lens {
        let data = pattern(3, len);
        let mut buf = ends.space(len);
        buf.copy_from_slice(&data);
        let done = ends.call(PUT_ONE, 64, Chunks::read(buf.share()), |writer| {
            writer.u32(1)?;
            writer.eligible_opaque_reduced(len as u32).map(drop)
        });
        let expected = [[0; 4], sum(&data).to_be_bytes()].concat();
        assert_eq!(done.result.expect("a Reply").bytes(), expected, "{len} octets");
        let space = ends.space(len);
        let done = ends.call(GET_ONE, 64, Chunks::write(space), |writer| {
            [7, 1, len as u32].iter().try_for_each(|word| writer.u32(*word))
        });
        assert_eq!(done.result.expect("a Reply").bytes(), (len as u32).to_be_bytes());
        let written: Vec<u8> = done.written.iter().flat_map(|(_, buf)| buf.to_vec()).collect();
        assert!(written == pattern(7, len), "{len} octets");
    }
    let count = lens.len() as u64;
    let (server, client) = (ends.server.statistics(), ends.client.statistics());
    // Each end counts what it sends so, and what it gets.
    assert_eq!((server.items_placed, client.items_placed), (2 * count, 2 * count), "all in targets");
    assert_eq!((server.read_bytes, server.write_bytes), (0, 0), "and nothing by RDMA");
    assert!(server.continuations > 0, "some in several Sends");
    // What no message holds goes by chunks.
    let space = ends.space(300_000);
    let done = ends.call(GET_ONE, 64, Chunks::write(space), |writer| {
        [7, 1, 300_000].iter().try_for_each(|word| writer.u32(*word))
    });
    let written: Vec<u8> = done.written.iter().flat_map(|(_, buf)| buf.to_vec()).collect();
    assert!(done.result.is_ok() && written == pattern(7, 300_000));
    drop(done);
    assert_eq!(ends.server.statistics().write_bytes, 300_000);
    ends.close();
}

fn shm(completions: u32) -> Shm {
    Shm::open(ShmConfig { completions, ..ShmConfig::default() }).expect("it needs nothing")
}

fn iwarp(completions: u32) -> Iwarp {
    Iwarp::open(IwarpConfig { completions, ..IwarpConfig::default() }).expect("it needs nothing")
}

fn verbs(completions: u32) -> Verbs {
    let config = VerbsConfig { completions, ..VerbsConfig::default() };
    // SAFETY: the table is of functions that do what libibverbs' and librdmacm's do.
    unsafe { Verbs::open_with(&fake::FAKE, config) }.expect("there is a device")
}

#[test]
fn replies_of_any_size_arrive_over_shared_memory() {
    replies_of_any_size_arrive(shm, &format!("any-size-{}", std::process::id()));
}

#[test]
fn replies_of_any_size_arrive_over_iwarp() {
    replies_of_any_size_arrive(iwarp, "127.0.0.1:0");
}

#[test]
fn replies_of_any_size_arrive_over_verbs_on_libraries_of_nothing() {
    replies_of_any_size_arrive(verbs, "127.0.0.1:20049");
}

#[test]
fn data_goes_in_the_messages_over_shared_memory() {
    data_goes_in_the_messages(shm, &format!("in-messages-{}", std::process::id()));
}

#[test]
fn data_goes_in_the_messages_over_iwarp() {
    data_goes_in_the_messages(iwarp, "127.0.0.1:0");
}

#[test]
fn data_goes_in_the_messages_over_verbs_on_libraries_of_nothing() {
    data_goes_in_the_messages(verbs, "127.0.0.1:20050");
}
