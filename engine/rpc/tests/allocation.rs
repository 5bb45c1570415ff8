//! The steady state of a Call allocates nothing, on either side: counted, over shared memory and TCP, with both ends
//! in one thread. And what an idle connection pins.
//!
//! A program of its own, because it replaces the allocator.

#[path = "engine/support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use stag_fabric::{Iwarp, IwarpConfig, Provider, Shm, ShmConfig};
use stag_memory::{Buf, Pool};
use stag_rpc::{
    Backoff, Call, Chunks, ClientPolicy, CompletedCall, ConnectionEvent, ConnectionId, Engine, EngineConfig,
    KeepAlive, Memory, Outcome, Placement, PlacementChoice, Procedure, ProtocolChoice, Repeat, Reply,
    Request, Service,
};
use stag_runtime::Poller;
use stag_testing::CountingAllocator;
use stag_wire::record::{MARK_LEN, Mark};
use stag_wire::rpc::{CallHeader, OpaqueAuth};
use stag_wire::xdr::{Item, Writer};

use support::program::{ECHO, GET, PROGRAM, PUT, VERSION};
use support::request_for;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Octets of the data chunks.
const CHUNK_LEN: usize = 4096;
/// Calls that are counted, after as many to warm up.
const CALLS: u64 = 1000;

static PLAIN: Procedure = Procedure::plain("ECHO").once();
static TAKES: Procedure = Procedure {
    eligible_arguments: 1,
    repeat: Repeat::Untimely,
    locate: Some(|arguments| arguments.u32()),
    ..Procedure::plain("PUT")
};
static GIVES: Procedure = Procedure { eligible_results: 1, ..Procedure::plain("GET") };

/// Keeps the data of the last PUT, and gives it to each GET: no copies, and no allocations of its own.
struct Store {
    page: Option<stag_memory::Shared>,
    /// A GET gives its data in this number of pieces, of this number of octets each; `None`: all of it.
    pieces: Option<(usize, usize)>,
}

impl Store {
    fn new(pool: &Pool) -> Store {
        let mut buf = pool.take_len(CHUNK_LEN).expect("a page");
        buf.set_len(CHUNK_LEN);
        buf.fill(1);
        Store { page: Some(buf.share()), pieces: None }
    }
}

impl Service for Store {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (VERSION, VERSION)
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<&'static Procedure> {
        match procedure {
            ECHO => Some(&PLAIN),
            PUT => Some(&TAKES),
            GET => Some(&GIVES),
            _ => None,
        }
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        let mut arguments = call.arguments();
        match call.procedure {
            ECHO => match arguments.opaque(1024) {
                Ok(text) => reply.success(|writer| writer.opaque(text)),
                Err(_) => reply.garbage_arguments(),
            },
            PUT => match arguments.eligible_opaque(1 << 20) {
                Ok(Item::Reduced { index, len }) => {
                    let placed = call.placed(index).pieces.pop().map(Buf::share);
                    // Something that GET can give.
                    self.page = placed.filter(|_| len as usize == CHUNK_LEN).or(self.page.take());
                    reply.success(|_| Ok(()));
                }
                Ok(Item::Inline(_)) => reply.success(|_| Ok(())),
                _ => reply.garbage_arguments(),
            },
            _ => {
                let len = self.page.as_ref().map_or(0, |page| page.len());
                let (count, piece_len) = self.pieces.unwrap_or((1, len));
                let count = count.min(reply.pieces_room());
                let len = (count * piece_len) as u32;
                match (reply.item(len), &self.page) {
                    (Placement::Reduced, Some(page)) => {
                        (0..count).for_each(|_| reply.piece(page.slice(0..piece_len)));
                        reply.success(|writer| writer.eligible_opaque_reduced(len).map(|_| ()));
                    }
                    _ => reply.system_error(),
                }
            }
        }
        Outcome::Done
    }
}

/// Both ends of one shared-memory connection.
struct Pair {
    client: Engine<Shm, ()>,
    server: Engine<Shm, (Store,)>,
    connection: ConnectionId,
    memory: (Memory, Memory),
    now: Duration,
}

impl Pair {
    fn new(label: &str, config: EngineConfig) -> Pair {
        Pair::with(label, config, ClientPolicy::default())
    }

    fn with(label: &str, config: EngineConfig, policy: ClientPolicy) -> Pair {
        let name = format!("rpc-{label}-{}", std::process::id());
        let open = |memory: &Memory| {
            let mut shm = Shm::open(ShmConfig::default()).expect("it needs nothing");
            shm.register(&memory.arena).expect("an arena is sealed");
            shm
        };
        let memory = || Memory::new(&config, 4 << 20).expect("a few megabytes");
        let memory = (memory(), memory());
        let store = Store::new(&memory.1.pools.payload);
        let mut server =
            Engine::new(open(&memory.1), (store,), memory.1.pools.clone(), config, 1).expect("it fits");
        server.listen(&name).expect("the name is free");
        let mut client =
            Engine::new(open(&memory.0), (), memory.0.pools.clone(), config, 2).expect("it fits");
        let connection = client.connect_with(&name, policy).expect("the name is fine");
        let mut pair = Pair { client, server, connection, memory, now: Duration::ZERO };
        loop {
            pair.pass();
            match pair.client.connection_event() {
                Some(ConnectionEvent::Established { .. }) => return pair,
                Some(event) => panic!("unexpected: {event:?}"),
                None => {}
            }
        }
    }

    fn pass(&mut self) {
        self.now += Duration::from_micros(1);
        self.client.poll(self.now);
        self.server.poll(self.now);
    }

    fn call(
        &mut self,
        request: &Request<'_>,
        chunks: &mut Chunks,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), stag_wire::xdr::Overflow>,
    ) -> CompletedCall {
        self.client.call(self.connection, request, chunks, encode).expect("a credit");
        for _ in 0..100_000 {
            self.pass();
            if let Some(done) = self.client.completed() {
                return done;
            }
        }
        panic!("no answer");
    }

    /// Allocations of many Calls after the first.
    fn count(&mut self, mut call: impl FnMut(&mut Pair)) -> u64 {
        for _ in 0..CALLS {
            call(self);
        }
        let before = CountingAllocator::allocations();
        for _ in 0..CALLS {
            call(self);
        }
        CountingAllocator::allocations() - before
    }
}

fn calls_allocate_nothing(label: &str, policy: ClientPolicy) {
    let mut pair = Pair::with(label, EngineConfig::default(), policy);
    let null = pair.count(|pair| {
        let done = pair.call(&request_for(0, 0), &mut Chunks::default(), |_| Ok(()));
        assert!(done.result.is_ok());
    });
    let echo = pair.count(|pair| {
        let done =
            pair.call(&request_for(ECHO, 512), &mut Chunks::default(), |writer| writer.opaque(&[7; 500]));
        assert_eq!(done.result.expect("an answer").bytes().len(), 504);
    });
    let page = |pair: &Pair| {
        let mut buf = pair.memory.0.pools.payload.take_len(CHUNK_LEN).expect("a page");
        buf.set_len(CHUNK_LEN);
        buf
    };
    let put = pair.count(|pair| {
        let mut chunks = Chunks::read(page(pair).share());
        let done = pair.call(&request_for(PUT, 0), &mut chunks, |writer| {
            writer.eligible_opaque_reduced(CHUNK_LEN as u32).map(|_| ())
        });
        assert!(done.result.is_ok());
    });
    let get = pair.count(|pair| {
        let mut chunks = Chunks::write(page(pair));
        let done = pair.call(&request_for(GET, 4), &mut chunks, |_| Ok(()));
        assert_eq!(done.result.expect("an answer").reduced_len() as usize, CHUNK_LEN);
    });
    assert_eq!([null, echo, put, get], [0; 4], "{label}, allocations of {CALLS} Calls: NULL, ECHO, PUT, GET");
}

/// Both ends of a connection over iWARP that speaks version 2, with data in the messages.
struct SecondPair {
    client: Engine<Iwarp, ()>,
    server: Engine<Iwarp, (Store,)>,
    connection: ConnectionId,
    pages: Pool,
    now: Duration,
}

impl SecondPair {
    fn new() -> SecondPair {
        let config = EngineConfig {
            protocol: ProtocolChoice::Auto,
            placement: PlacementChoice::Send,
            ..EngineConfig::default()
        };
        let memory = || Memory::new(&config, 4 << 20).expect("a few megabytes");
        let memory = (memory(), memory());
        let open = |memory: &Memory| {
            let mut iwarp = Iwarp::open(IwarpConfig::default()).expect("it needs nothing");
            iwarp.register(&memory.arena).expect("an arena is sealed");
            iwarp
        };
        let pages = memory.0.pools.payload.clone();
        let store = Store::new(&memory.1.pools.payload);
        let mut server =
            Engine::new(open(&memory.1), (store,), memory.1.pools.clone(), config, 1).expect("it fits");
        let listener = server.listen("127.0.0.1:0").expect("the loopback");
        let address = server.provider().listener_address(listener).expect("a port").to_string();
        let mut client = Engine::new(open(&memory.0), (), memory.0.pools, config, 2).expect("it fits");
        let connection = client.connect(&address).expect("the address is fine");
        let mut pair = SecondPair { client, server, connection, pages, now: Duration::ZERO };
        loop {
            pair.pass();
            match pair.client.connection_event() {
                Some(ConnectionEvent::Established { .. }) => return pair,
                Some(event) => panic!("unexpected: {event:?}"),
                None => {}
            }
        }
    }

    fn pass(&mut self) {
        self.now += Duration::from_micros(1);
        self.client.poll(self.now);
        self.server.poll(self.now);
    }

    /// Makes a Call with a chunk of `data` octets for its data, or of `results` for its results; or with
    /// neither.
    fn call(&mut self, procedure: u32, data: usize, results: usize) {
        let page = |len| {
            let mut buf = self.pages.take_len(len).expect("pages");
            buf.set_len(len);
            buf
        };
        let mut chunks = match (data, results) {
            (0, 0) => Chunks::default(),
            (0, len) => Chunks::write(page(len)),
            (len, _) => Chunks::read(page(len).share()),
        };
        let encode = |writer: &mut Writer<'_>| match data {
            0 => Ok(()),
            len => writer.eligible_opaque_reduced(len as u32).map(|_| ()),
        };
        let request = request_for(procedure, 4);
        self.client.call(self.connection, &request, &mut chunks, encode).expect("a credit");
        for _ in 0..1_000_000 {
            self.pass();
            if let Some(done) = self.client.completed() {
                assert_eq!(done.result.expect("an answer").reduced_len() as usize, results);
                return;
            }
        }
        panic!("no answer");
    }

    fn count(&mut self, call: (u32, usize, usize)) -> u64 {
        let (procedure, data, results) = call;
        (0..CALLS).for_each(|_| self.call(procedure, data, results));
        let before = CountingAllocator::allocations();
        (0..CALLS).for_each(|_| self.call(procedure, data, results));
        CountingAllocator::allocations() - before
    }
}

fn calls_of_version_2_allocate_nothing() {
    let mut pair = SecondPair::new();
    // Data of two pages takes one Send, as that of one does; more takes several.
    let kinds = [
        (0, 0, 0),
        (PUT, CHUNK_LEN, 0),
        (GET, 0, CHUNK_LEN),
        (PUT, 2 * CHUNK_LEN, 0),
        (PUT, 4 * CHUNK_LEN, 0),
    ];
    let counted = kinds.map(|kind| pair.count(kind));
    assert_eq!(counted, [0; 5], "allocations of {CALLS} Calls of version 2: NULL, PUT, GET, longer PUTs");
    let [client, server] = [pair.client.statistics(), pair.server.statistics()].map(|found| *found);
    assert_eq!((server.read_bytes, server.write_bytes), (0, 0), "no RDMA");
    assert!(client.continuations >= CALLS && server.items_placed >= 8 * CALLS, "{server:?}");
}

/// A record with a Call of the store.
fn record(xid: u32, procedure: u32, data: Option<&[u8]>) -> Vec<u8> {
    let mut octets = vec![0; 256 + data.map_or(0, <[u8]>::len)];
    let mut writer = Writer::new(&mut octets[MARK_LEN..]);
    let (credential, verifier) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
    let header = CallHeader { xid, program: PROGRAM, version: VERSION, procedure, credential, verifier };
    header.emit(&mut writer).expect("room enough");
    if let Some(data) = data {
        writer.opaque(data).expect("room enough");
    }
    let len = writer.position();
    octets.truncate(MARK_LEN + len);
    octets[..MARK_LEN].copy_from_slice(&Mark::whole(len as u32).to_bytes());
    octets
}

fn calls_over_tcp_allocate_nothing() {
    /// Calls at once.
    const BURST: usize = 8;
    let config = EngineConfig::default();
    let memory = Memory::new(&config, 16 << 20).expect("a few megabytes");
    let mut shm = Shm::open(ShmConfig::default()).expect("it needs nothing");
    shm.register(&memory.arena).expect("an arena is sealed");
    let store = Store::new(&memory.pools.payload);
    let mut server = Engine::new(shm, (store,), memory.pools.clone(), config, 1).expect("it fits");
    let address = server.listen_tcp("127.0.0.1:0").expect("a port is free");
    let mut peer = TcpStream::connect(address).expect("it listens");
    peer.set_nonblocking(true).expect("a socket");
    let mut now = Duration::ZERO;
    let mut buf = vec![0; 1 << 20];

    let mut count = |what: &str, procedure: u32, data: Option<&[u8]>, reply_len: usize| {
        let mut xid = procedure << 20;
        let mut octets: Vec<u8> = (0..BURST).flat_map(|_| record(0, procedure, data)).collect();
        let len = octets.len() / BURST;
        let mut counted = 0;
        for round in 0..200 {
            for call in octets.chunks_mut(len) {
                xid += 1;
                call[MARK_LEN..][..4].copy_from_slice(&xid.to_be_bytes());
            }
            let before = CountingAllocator::allocations();
            let (mut sent, mut received) = (0, 0);
            while received < reply_len * BURST {
                sent += peer.write(&octets[sent..]).unwrap_or(0);
                now += Duration::from_micros(100);
                server.poll(now);
                received += peer.read(&mut buf).unwrap_or(0);
            }
            assert_eq!(received, reply_len * BURST, "{what}");
            if round >= 100 {
                counted += CountingAllocator::allocations() - before;
            }
        }
        counted
    };
    let header = MARK_LEN + 24;
    let large = vec![7; 300_000];
    let counted = [
        count("NULL", 0, None, header),
        count("ECHO", ECHO, Some(&[7; 500]), header + 504),
        count("GET", GET, None, header + 4 + CHUNK_LEN),
        count("PUT of a page", PUT, Some(&[7; CHUNK_LEN]), header),
        count("PUT of more", PUT, Some(&large), header),
    ];
    assert_eq!(counted, [0; 5], "allocations of Calls over TCP: NULL, ECHO, GET, PUT, PUT of more");
    assert!(server.statistics().stream_items >= 1000 && server.statistics().duplicates_answered == 0);
}

/// Octets of all memory files that this process has mapped, each counted once.
fn memory_files() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
    let mut files: Vec<(String, u64)> = Vec::new();
    for line in maps.lines().filter(|line| line.contains("memfd:")) {
        let mut words = line.split_whitespace();
        let (range, inode) = (words.next().unwrap_or_default(), words.nth(3).unwrap_or_default());
        let (start, end) = range.split_once('-').expect("a range");
        let address = |text| u64::from_str_radix(text, 16).expect("an address");
        let len = address(end) - address(start);
        match files.iter_mut().find(|(known, _)| known == inode) {
            Some((_, most)) => *most = len.max(*most),
            None => files.push((inode.to_owned(), len)),
        }
    }
    files.iter().map(|(_, len)| len).sum()
}

fn an_idle_connection_pins_little() {
    let config = EngineConfig { inline_threshold: 1024, credits_max: 32, ..EngineConfig::default() };
    let mut pair = Pair::new("pinned", config);
    let name = format!("rpc-pinned-{}", std::process::id());
    pair.pass();
    let before = memory_files();
    let second = pair.client.connect(&name).expect("the name is fine");
    loop {
        pair.pass();
        if let Some(event) = pair.client.connection_event() {
            assert_eq!(event, ConnectionEvent::Established { connection: second });
            break;
        }
    }
    pair.pass();
    let rings = memory_files() - before;
    // Both ends' together. The buffers that wait in posted Receives are of the shared pools.
    assert!(rings > 0, "the rings are not in memory files any more: count them where they are");
    assert!(rings <= 64 << 10, "a connection's rings are {rings} octets");
    println!("a connection's memory beyond the shared pools: {rings} octets");
}

/// How two engines of one thread find each other on a fabric.
struct Way<P> {
    /// Opens a provider for this number of connections of servers or clients, with this number of
    /// completions.
    open: fn(u32, u32) -> P,
    /// Where to listen.
    listen: String,
    /// Octets of a server's queue pair.
    queue_pair_len: fn(&EngineConfig) -> usize,
}

/// A server, a client, and octets of heap that the server took in its passes.
struct Served<P: Provider> {
    server: Engine<P, (Store,)>,
    client: Engine<P, ()>,
    memory: Memory,
    address: String,
    now: Duration,
    held: isize,
}

impl<P: Provider> Served<P> {
    fn new(way: &Way<P>, config: EngineConfig, client_len: usize) -> Served<P> {
        let memory = |len| Memory::new(&config, len).expect("some megabytes");
        let (ours, theirs) = (memory(4 << 20), memory(client_len));
        let open = |memory: &Memory, completions| {
            let mut provider = (way.open)(config.connections_max, completions);
            provider.register(&memory.arena).expect("an arena");
            provider
        };
        let store = Store::new(&ours.pools.payload);
        let provider = open(&ours, config.serving_completions_max());
        let mut server = Engine::new(provider, (store,), ours.pools, config, 1).expect("it fits");
        let listener = server.listen(&way.listen).expect("it is free");
        let at = server.provider().listener_address(listener);
        let address = at.map_or(way.listen.clone(), |at| at.to_string());
        let provider = open(&theirs, config.completions_max());
        let client = Engine::new(provider, (), theirs.pools.clone(), config, 2).expect("it fits");
        Served { server, client, memory: theirs, address, now: Duration::ZERO, held: 0 }
    }

    fn pass(&mut self) {
        self.now += Duration::from_micros(50);
        self.client.poll(self.now);
        let before = CountingAllocator::held();
        self.server.poll(self.now);
        self.held += CountingAllocator::held() - before;
    }

    fn connect(&mut self) -> ConnectionId {
        let connection = self.client.connect(&self.address).expect("the address is fine");
        while self.client.credits_available(connection) == 0 {
            self.pass();
        }
        connection
    }

    /// Makes Calls with and without chunks, as many at once as there are credits, until all credits were used.
    fn keep_busy(&mut self, connection: ConnectionId, credits_max: u32) {
        let (mut done, mut most, mut turn) = (0, 0, 0);
        let mut under_way = 0;
        let mut is_enough = false;
        while !is_enough || under_way > 0 {
            is_enough = done >= 32 * credits_max && most >= credits_max;
            while !is_enough && self.client.credits_available(connection) > 0 {
                let mut buf = self.memory.pools.payload.take_len(CHUNK_LEN).expect("a page");
                buf.set_len(CHUNK_LEN);
                let (mut chunks, procedure) = match turn % 3 {
                    0 => (Chunks::read(buf.share()), PUT),
                    1 => (Chunks::write(buf), GET),
                    _ => (Chunks::default(), ECHO),
                };
                let called =
                    self.client.call(connection, &request_for(procedure, 8), &mut chunks, |writer| {
                        match procedure {
                            PUT => writer.eligible_opaque_reduced(CHUNK_LEN as u32).map(|_| ()),
                            GET => Ok(()),
                            _ => writer.opaque(b"busy"),
                        }
                    });
                if called.is_err() {
                    break;
                }
                turn += 1;
                under_way += 1;
            }
            most = most.max(under_way);
            self.pass();
            while let Some(completed) = self.client.completed() {
                assert!(completed.result.is_ok(), "{:?}", completed.result.err());
                done += 1;
                under_way -= 1;
            }
            assert!(done < 1_000_000, "only {most} of {credits_max} credits were used");
        }
    }
}

/// The memory of a connection that serves, idle and at its busiest: within what [`EngineConfig::connection_len`] and the
/// provider's `queue_pair_len` say, and not much less.
fn a_connection_takes_the_memory_that_it_is_said_to<P: Provider>(what: &str, way: &Way<P>) {
    /// Connections that are counted, after the first: that one fills what all share.
    const COUNTED: isize = 4;
    for credits_max in [16, 64, 128] {
        let config = EngineConfig {
            credits_max,
            connections_max: 8,
            receives_max: 2048,
            duplicates_max: 0,
            ..EngineConfig::default()
        };
        let mut served = Served::new(way, config, 4 << 20);
        let said = (config.connection_len() + (way.queue_pair_len)(&config)) as isize;
        let start = served.held;
        let first = served.connect();
        served.keep_busy(first, credits_max);
        let shared = served.held - start - said;
        let in_calls = config.call_len() as isize * credits_max as isize;
        let (start, files) = (served.held, memory_files() as isize);
        let connections: Vec<ConnectionId> = (0..COUNTED).map(|_| served.connect()).collect();
        served.pass();
        let files = (memory_files() as isize - files) / COUNTED;
        let idle = (served.held - start) / COUNTED + files;
        for &connection in &connections {
            served.keep_busy(connection, credits_max);
        }
        served.pass();
        let busy = (served.held - start) / COUNTED + files;
        println!(
            "{what}, {credits_max} credits: {idle} octets idle, {busy} busy, {said} are said; Calls in process: {shared}, \
             {in_calls} are said"
        );
        assert!(idle <= busy && busy <= said, "{what}: {idle} octets, then {busy}; {said} are said");
        assert!(said <= busy + busy / 20, "{what}: {busy} octets, {said} are said");
        assert!(shared <= in_calls, "{what}: Calls in process take {shared} octets, {in_calls} are said");
    }
}

/// The heap of a TCP connection whose peer asks and takes no answers: within what [`EngineConfig::stream_len`] says.
fn a_tcp_connection_takes_the_heap_that_it_is_said_to() {
    const STREAMS: isize = 4;
    let config = EngineConfig { duplicates_max: 0, ..EngineConfig::default() };
    let memory = Memory::new(&config, 16 << 20).expect("a few megabytes");
    let mut shm = Shm::open(ShmConfig::default()).expect("it needs nothing");
    shm.register(&memory.arena).expect("an arena is sealed");
    let mut store = Store::new(&memory.pools.payload);
    let mut now = Duration::ZERO;
    // Answers of an octet: many of them are few octets.
    store.page = store.page.map(|page| page.slice(0..1));
    let mut server = Engine::new(shm, (store,), memory.pools.clone(), config, 1).expect("it fits");
    let address = server.listen_tcp("127.0.0.1:0").expect("a port is free");
    let asked: Vec<u8> = (1..200_000).flat_map(|xid| record(xid, GET, None)).collect();
    let (mut before, mut peers) = (0, Vec::new());
    for count in 0..=STREAMS {
        let mut peer = TcpStream::connect(address).expect("it listens");
        peer.set_nonblocking(true).expect("a socket");
        let (mut sent, mut silent) = (0, 0);
        // Until the server takes no more.
        while silent < 200 {
            let taken = peer.write(&asked[sent % asked.len()..]).unwrap_or(0);
            sent += taken;
            silent = if taken > 0 { 0 } else { silent + 1 };
            assert!(sent < 256 << 20, "the server answers a peer that takes no answers");
            now += Duration::from_micros(100);
            server.poll(now);
        }
        peers.push(peer);
        if count == 0 {
            before = CountingAllocator::held();
        }
    }
    let each = (CountingAllocator::held() - before) / STREAMS;
    let said = config.stream_len() as isize;
    println!("TCP: {each} octets with as many answers waiting as there may be, {said} are said");
    assert!(each <= said, "a TCP connection takes {each} octets, {said} are said");
    drop(peers);
}

/// The heap of Replies in many pieces that peers do not take: within what [`EngineConfig::lists_len`] says, as the service makes
/// them shorter then. Each peer gets its results all the same.
fn replies_in_many_pieces_take_what_they_are_said_to<P: Provider>(what: &str, way: &Way<P>) {
    const CONNECTIONS: u32 = 8;
    const CREDITS: u32 = 64;
    // As many as a transfer of 1 MiB has pages, and more octets in all than sockets take.
    const PIECES: usize = 257;
    const PIECE_LEN: usize = 512;
    let config = EngineConfig {
        credits_max: CREDITS,
        connections_max: CONNECTIONS,
        receives_max: 2048,
        duplicates_max: 0,
        ..EngineConfig::default()
    };
    let len = PIECES * PIECE_LEN;
    let client_len = (CONNECTIONS * CREDITS) as usize * len.next_multiple_of(CHUNK_LEN);
    let mut served = Served::new(way, config, client_len + (4 << 20));
    let connections: Vec<ConnectionId> = (0..CONNECTIONS).map(|_| served.connect()).collect();
    for &connection in &connections {
        served.keep_busy(connection, CREDITS);
    }
    let store = &mut served.server.services_mut().0;
    store.pieces = Some((PIECES, PIECE_LEN));
    // It counts as no memory for transit.
    store.page.iter().for_each(stag_memory::Shared::mark_stored);
    let start = served.held;
    let (mut most, mut asked, mut short) = (0, 0, 0);
    for &connection in &connections {
        while served.client.credits_available(connection) > 0 {
            let mut buf = served.memory.pools.payload.take_len(len).expect("pages");
            buf.set_len(len);
            let mut chunks = Chunks::write(buf);
            served.client.call(connection, &request_for(GET, 8), &mut chunks, |_| Ok(())).expect("a credit");
            asked += 1;
        }
    }
    served.client.ring_doorbells();
    // The client does nothing meanwhile.
    for _ in 0..1000 {
        let before = CountingAllocator::held();
        served.now += Duration::from_micros(50);
        served.server.poll(served.now);
        served.held += CountingAllocator::held() - before;
        most = most.max(served.held - start);
    }
    let mut done = 0;
    while done < asked {
        served.pass();
        while let Some(completed) = served.client.completed() {
            let got = completed.result.expect("an answer").reduced_len() as usize;
            assert!(got > 0 && got.is_multiple_of(PIECE_LEN), "{got} octets");
            short += u32::from(got < len);
            done += 1;
        }
    }
    let said = config.lists_len(0) as isize;
    println!(
        "{what}: {most} octets for {asked} Replies in many pieces, {said} are said; {short} were shorter"
    );
    assert!(asked >= 256, "only {asked} Calls");
    // They are of one owner, who gets no more than it leaves free: half.
    assert!(most >= said / 3, "{what}: lists take {most} octets, {said} are said");
    assert!(most <= said, "{what}: lists take {most} octets, {said} are said");
}

/// One test, so that nothing else allocates or opens files while it counts.
#[test]
fn what_a_call_and_a_connection_cost() {
    calls_allocate_nothing("allocation", ClientPolicy::default());
    let (after, answer_within) = (Duration::from_micros(1), Duration::from_secs(1));
    let keep_alive = KeepAlive { program: PROGRAM, version: VERSION, after, answer_within, when_idle: true };
    let policy = ClientPolicy { reconnect: Some(Backoff::default()), keep_alive: Some(keep_alive) };
    calls_allocate_nothing("allocation-kept", policy);
    calls_over_tcp_allocate_nothing();
    calls_of_version_2_allocate_nothing();
    an_idle_connection_pins_little();
    a_tcp_connection_takes_the_heap_that_it_is_said_to();
    let iwarp = Way {
        open: |queue_pairs, completions| {
            let config = IwarpConfig { completions, queue_pairs, ..IwarpConfig::default() };
            Iwarp::open(config).expect("it needs nothing")
        },
        listen: "127.0.0.1:0".to_owned(),
        queue_pair_len: |config| Iwarp::queue_pair_len(&config.serving_capacity()),
    };
    let shm = Way {
        open: |queue_pairs, completions| {
            let config = ShmConfig { completions, queue_pairs, ..ShmConfig::default() };
            Shm::open(config).expect("it needs nothing")
        },
        listen: format!("rpc-price-{}", std::process::id()),
        queue_pair_len: |config| Shm::queue_pair_len(&config.serving_capacity(), config.capacity().exposures),
    };
    a_connection_takes_the_memory_that_it_is_said_to("iwarp", &iwarp);
    a_connection_takes_the_memory_that_it_is_said_to("shm", &shm);
    replies_in_many_pieces_take_what_they_are_said_to("iwarp", &iwarp);
}
