//! Whole clients and servers through all weathers of the simulated fabric, one seed after another.
//!
//! Each run is one server and up to three clients that make Calls of every form, cancel some, let others time out, lose their
//! connections and connect again, some of them by themselves. What must hold whatever happens: each Call ends exactly once; a
//! success has the Call's own data; memory of a Call that is over is not written any more; credits are conserved; every buffer
//! comes back; and no Send ever finds its Receive missing.

use std::collections::HashMap;
use std::time::Duration;

use stag_fabric::sim::{Attendance, FaultPlan, Odds, Random, Violations, World, sweep};
use stag_memory::{Buf, Shared};
use stag_rpc::{
    Backoff, CallError, CallId, Chunks, ClientPolicy, ConnectionEvent, ConnectionId, EngineConfig, KeepAlive,
    Memory, PlacementChoice, ProtocolChoice, ReplyMode, Request,
};
use stag_runtime::Poller;
use stag_wire::xdr::{Overflow, Writer};

use crate::support::program::{
    BIG, ECHO, FORGET, GET, LATER, LATER_PUT, NEVER, PROGRAM, PUT, Program, VERSION, pattern, sum,
};
use crate::support::{ADDRESS, Node, opaque, request, words};

/// Seeds without `STAG_SEEDS`.
const SEEDS: u64 = 300;
const CLIENTS_MAX: usize = 3;
/// Passes after which a run is stuck.
const PASSES_MAX: u32 = 400_000;
/// A Call that has so long is answered in time, on a connection that is neither lost nor slow.
const PATIENCE: Duration = Duration::from_millis(20);
/// What memory that came back is filled with, to see whether anybody writes to it.
const GUARD: u8 = 0xa5;

/// The largest of all configurations: memory is made once, and used by every seed.
fn largest() -> EngineConfig {
    EngineConfig {
        inline_threshold: 4096,
        credits_max: 16,
        connections_max: 8,
        receives_max: 128,
        exposed_replies: 8,
        pull_len_max: 1 << 20,
        protocol: ProtocolChoice::Auto,
        ..EngineConfig::default()
    }
}

fn some_config(random: &mut Random) -> EngineConfig {
    let connections_max = 3 + random.below(5) as u32;
    EngineConfig {
        inline_threshold: [1024, 2048, 4096][random.below(3) as usize],
        credits_max: 1 + random.below(16) as u32,
        connections_max,
        receives_max: connections_max * 2 + random.below(64) as u32,
        remote_invalidation: random.below(2) == 0,
        burst: [1, 2, 16, 64][random.below(4) as usize],
        // Reliable reply: at one end, at both, or at none.
        exposed_replies: [0, 0, 1, 2, 8][random.below(5) as usize],
        pull_len_max: [0, 20_000, 1 << 20][random.below(3) as usize],
        // A fleet of both versions.
        protocol: [ProtocolChoice::One, ProtocolChoice::Two, ProtocolChoice::Auto][random.below(3) as usize],
        placement: [PlacementChoice::Auto, PlacementChoice::Rdma][random.below(2) as usize],
        receive_targets: random.below(3) as u32,
        continuation: [1, 2, 8][random.below(3) as usize],
        ..largest()
    }
}

/// Whether a client connects again by itself, and asks whether its server lives.
fn some_policy(random: &mut Random) -> ClientPolicy {
    let reconnect = (random.below(2) == 0).then(|| Backoff {
        first: Duration::from_micros(1 + random.below(2000)),
        max: Duration::from_millis(5),
        give_up_after: Duration::from_millis(1 + random.below(100)),
        resend_after: Duration::from_millis(1 + random.below(20)),
    });
    let keep_alive = (random.below(3) == 0).then(|| KeepAlive {
        program: PROGRAM,
        version: VERSION,
        after: Duration::from_millis(1 + random.below(10)),
        answer_within: Duration::from_millis(1 + random.below(10)),
        when_idle: random.below(2) == 0,
    });
    ClientPolicy { reconnect, keep_alive }
}

/// What a Call that succeeds brings, and what of its memory is watched.
struct Expected {
    client: usize,
    call: CallId,
    procedure: u32,
    results: Result<Vec<u8>, CallError>,
    written: Vec<Vec<u8>>,
    /// The peer may read these until the Call is over, and not longer.
    exposed: Vec<Shared>,
    cancelled: bool,
    timeout: Duration,
    /// Whether its answer may come too late, or never.
    may_time_out: bool,
    /// It goes to the next connection if this one ends.
    is_kept: bool,
}

struct Client {
    node: Node<()>,
    policy: ClientPolicy,
    connection: Option<ConnectionId>,
    established: bool,
    /// The connection that Calls are of was ended for good, by its user or because there was no other.
    has_ended: bool,
}

struct Run {
    world: World,
    random: Random,
    server: Node<(Program,)>,
    clients: Vec<Client>,
    expected: HashMap<u64, Expected>,
    /// Buffers that came back, filled with [`GUARD`].
    guarded: Vec<Buf>,
    next_user: u64,
    passes: u32,
    /// Whether the server's payload memory is short: data may be missing.
    short: bool,
    /// Whether private data gets lost on its way.
    deaf: bool,
    /// Whether connections are neither lost nor slow.
    is_steady: bool,
    /// Of the server and then the clients.
    attendance: Attendance,
    succeeded: u64,
    failed: u64,
    interruptions: u64,
}

impl Run {
    fn pass(&mut self) -> usize {
        self.passes += 1;
        assert!(self.passes < PASSES_MAX, "stuck: {} Calls are not over", self.expected.len());
        let now = self.world.now();
        let mut count = 0;
        self.attendance.begin_pass();
        for index in 0..=self.clients.len() {
            if !self.attendance.draw(index) {
                continue;
            }
            match index.checked_sub(1) {
                None => count += self.server.poll(now),
                Some(client) => {
                    count += self.clients[client].node.poll(now);
                    self.take(client);
                }
            }
        }
        count
    }

    /// Looks at what came out of a client's engine.
    fn take(&mut self, index: usize) {
        let client = &mut self.clients[index];
        for event in client.node.events.drain(..) {
            match event {
                ConnectionEvent::Established { connection } => {
                    assert_eq!(client.connection, Some(connection));
                    client.established = true;
                }
                ConnectionEvent::Interrupted { connection, .. } => {
                    assert!(client.connection == Some(connection) && client.policy.reconnect.is_some());
                    client.established = false;
                    self.interruptions += 1;
                }
                ConnectionEvent::Restored { connection } => {
                    assert!(client.connection == Some(connection) && !client.established);
                    client.established = true;
                }
                ConnectionEvent::Closed { connection, .. } => {
                    assert_eq!(client.connection.take(), Some(connection));
                    client.established = false;
                    client.has_ended = true;
                    let lost = self.expected.values().any(|expected| {
                        expected.client == index
                            && !client.node.done.iter().any(|done| done.call == expected.call)
                    });
                    assert!(!lost, "the connection is closed, and a Call of it is not over");
                }
                event => panic!("unexpected: {event:?}"),
            }
        }
        for done in std::mem::take(&mut client.node.done) {
            let expected = self.expected.remove(&done.user).expect("a Call ends once");
            assert_eq!((expected.client, expected.call), (index, done.call));
            for data in expected.exposed {
                assert!(data.is_unique(), "it is over, and its memory is still exposed");
            }
            let written: Vec<Vec<u8>> = done.written.iter().map(|(_, buf)| buf.to_vec()).collect();
            match (&done.result, &expected.results) {
                (Ok(results), Ok(wanted)) => {
                    let missing = self.short && results.bytes().starts_with(&[0, 0, 0, 1]);
                    if !missing || !matches!(expected.procedure, PUT | LATER_PUT) {
                        assert!(
                            results.bytes() == wanted,
                            "DBG {} {:?} reduced {} len {} want {} now {:?} index {index} closing",
                            expected.procedure,
                            done.call,
                            results.reduced_len(),
                            results.bytes().len(),
                            wanted.len(),
                            self.world.now()
                        );
                    }
                    assert_eq!(written, expected.written);
                }
                // One that is kept may fit no more where the ends do not hear of each other's inline threshold.
                (Err(CallError::ConnectionLost | CallError::NotSent), _) => {
                    assert!(
                        !expected.is_kept || client.has_ended || self.deaf,
                        "it goes to the next connection: {:?}",
                        done.result
                    );
                }
                (Err(CallError::NotPosted(_)), _) => {}
                (Err(CallError::Cancelled), _) => assert!(expected.cancelled),
                (Err(CallError::TimedOut), _) => {
                    assert!(self.world.now() >= done.started + expected.timeout);
                    let is_whole = client.node.engine.statistics().connections_closed == 0;
                    let is_late = expected.may_time_out || self.short || !is_whole;
                    assert!(is_late, "Call of procedure {} has no answer", expected.procedure);
                }
                (Err(CallError::Chunk | CallError::GarbageArguments), _) if self.short => {}
                (Err(CallError::ReplyTooLong { len, limit }), Ok(_)) => {
                    assert!(*limit == client.node.engine.config().pull_len_max && *len > u64::from(*limit));
                }
                // One end knows of a larger inline threshold than the other: no Reply chunk was offered.
                (Err(CallError::Chunk), _) if self.deaf => {}
                (Err(error), wanted) => assert_eq!(Err(*error), wanted.as_ref().map(|_| ()).map_err(|e| *e)),
                (Ok(results), Err(error)) => panic!("{:?} instead of {error}", results.bytes()),
            }
            assert_eq!(
                done.written.len(),
                expected.written.len(),
                "the Write chunks' memory comes back: {:?}",
                done.result
            );
            self.succeeded += u64::from(done.result.is_ok());
            self.failed += u64::from(done.result.is_err());
            for (_, mut buf) in done.written {
                if self.guarded.len() < 16 {
                    buf.set_len(buf.capacity());
                    buf.fill(GUARD);
                    self.guarded.push(buf);
                }
            }
        }
    }

    fn step(&mut self, until: Duration) {
        if self.pass() == 0 {
            let timers = self.clients.iter().map(|client| client.node.engine.next_timeout());
            let away = self.attendance.next_pass(self.world.now());
            let timers = timers.chain([self.server.engine.next_timeout(), Some(until), away]);
            let timer = timers.flatten().min();
            self.world.advance_before(timer);
        }
    }

    fn run_until(&mut self, until: Duration) {
        while self.world.now() < until {
            self.step(until);
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn len(&mut self) -> usize {
        let bound = [5, 100, 1100, 5000, 40_000][self.below(5) as usize];
        self.below(bound) as usize
    }

    /// Begins a Call of some form.
    fn begin(&mut self, index: usize) {
        let Some(connection) = self.clients[index].connection else { return };
        let mut chunks = Chunks::default();
        let mut exposed = Vec::new();
        let mut written = Vec::new();
        let seed = self.below(1 << 20) as u32;
        let data = |run: &mut Run, octets: &[u8]| {
            let memory = &run.clients[index].node.memory;
            let mut buf = memory.pools.payload.take_len(octets.len().max(1))?;
            buf.set_len(octets.len());
            buf.copy_from_slice(octets);
            Some(buf.share())
        };
        let procedure =
            [0, ECHO, ECHO, PUT, PUT, GET, GET, LATER, LATER_PUT, BIG, FORGET, 77][self.below(12) as usize];
        let delay = match self.below(12) {
            0 => NEVER,
            _ => self.below(400),
        };
        let mut text = Vec::new();
        let mut lens: Vec<u32> = Vec::new();
        let mut inline: Vec<Option<Vec<u8>>> = Vec::new();
        let mut results_len_max = 0;
        let results = match procedure {
            0 => Ok(Vec::new()),
            ECHO | LATER => {
                let len = self.len();
                text = pattern(seed, len);
                results_len_max = text.len() + 8;
                Ok(opaque(&text))
            }
            PUT | LATER_PUT => {
                let mut answer = vec![0; 4];
                for item in 0..=self.below(3) as u32 {
                    let len = self.len().max(1);
                    let octets = pattern(seed + item, len);
                    answer.extend(sum(&octets).to_be_bytes());
                    lens.push(len as u32);
                    if self.below(4) == 0 {
                        inline.push(Some(octets));
                        continue;
                    }
                    inline.push(None);
                    let number = inline.iter().filter(|item| item.is_none()).count() as u8 - 1;
                    let parts = octets.split_at(self.below(len as u64) as usize);
                    for part in [parts.0, parts.1].into_iter().filter(|part| !part.is_empty()) {
                        let Some(piece) = data(self, part) else { return };
                        exposed.push(piece.clone());
                        chunks.read.push((number, piece));
                    }
                }
                results_len_max = 4 + 4 * lens.len();
                Ok(answer)
            }
            GET => {
                let mut answer = Vec::new();
                for item in 0..=self.below(3) as u32 {
                    let len = self.len();
                    let octets = pattern(seed + item, len);
                    lens.push(len as u32);
                    if self.below(4) == 0 {
                        answer.extend(opaque(&octets));
                        results_len_max += 8 + len;
                        continue;
                    }
                    answer.extend((len as u32).to_be_bytes());
                    results_len_max += 4;
                    let room = len + self.below(100) as usize + 1;
                    let memory = &self.clients[index].node.memory;
                    let Some(mut buf) = memory.pools.payload.take_len(room) else { return };
                    buf.set_len(room);
                    chunks.write.push((item as u8, buf));
                    written.push(octets);
                }
                // An item without its chunk is inline only when an empty chunk, or none, is in its place;
                // after the last one given there is none.
                Ok(answer)
            }
            BIG => {
                let len = self.len();
                lens = vec![seed, len as u32];
                results_len_max = 4 + len.next_multiple_of(4);
                Ok(opaque(&pattern(seed, len)))
            }
            FORGET => Err(CallError::SystemError),
            _ => Err(CallError::ProcedureUnavailable),
        };
        self.next_user += 1;
        let timeout = Duration::from_micros(200 + self.below(50_000));
        let reply_mode = [ReplyMode::Auto, ReplyMode::Chunk, ReplyMode::Responder][self.below(3) as usize];
        let request = Request {
            user: self.next_user,
            timeout,
            results_len_max: if self.below(8) == 0 { u32::MAX } else { results_len_max as u32 },
            reply_mode,
            retransmit: self.below(4) > 0,
            ..request(procedure)
        };
        let is_kept = request.retransmit && self.clients[index].policy.reconnect.is_some();
        let encode = |writer: &mut Writer<'_>| -> Result<(), Overflow> {
            match procedure {
                ECHO => writer.opaque(&text),
                LATER => {
                    writer.u64(delay)?;
                    writer.opaque(&text)
                }
                PUT | LATER_PUT => {
                    if procedure == LATER_PUT {
                        writer.u64(delay)?;
                    }
                    writer.u32(lens.len() as u32)?;
                    for (len, item) in lens.iter().zip(&inline) {
                        match item {
                            Some(octets) => writer.eligible_opaque_inline(octets)?,
                            None => writer.eligible_opaque_reduced(*len).map(|_| ())?,
                        }
                    }
                    Ok(())
                }
                GET => {
                    words(writer, &[seed, lens.len() as u32])?;
                    words(writer, &lens)
                }
                BIG => words(writer, &lens),
                _ => Ok(()),
            }
        };
        let offered = (chunks.read.len(), chunks.write.len());
        match self.clients[index].node.engine.call(connection, &request, &mut chunks, encode) {
            Ok(call) => {
                let expected = Expected {
                    client: index,
                    call,
                    procedure,
                    results,
                    written,
                    exposed,
                    cancelled: false,
                    timeout,
                    may_time_out: delay == NEVER || timeout < PATIENCE || !self.is_steady,
                    is_kept,
                };
                self.expected.insert(self.next_user, expected);
            }
            Err(_) => assert_eq!((chunks.read.len(), chunks.write.len()), offered, "it is as it was"),
        }
    }

    fn cancel_some(&mut self) {
        let mut users: Vec<u64> = self.expected.keys().copied().collect();
        users.sort_unstable();
        if users.is_empty() {
            return;
        }
        let user = users[self.below(users.len() as u64) as usize];
        let Some(expected) = self.expected.get_mut(&user) else { return };
        expected.cancelled = true;
        self.clients[expected.client].node.engine.cancel(expected.call);
    }

    fn connect(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if client.connection.is_none() {
            let connected = client.node.engine.connect_with(ADDRESS, client.policy);
            client.connection = Some(connected.expect("the address is fine"));
            client.has_ended = false;
        }
    }

    fn act(&mut self) {
        let index = self.below(self.clients.len() as u64) as usize;
        self.connect(index);
        match self.below(40) {
            0..=27 => self.begin(index),
            28..=30 => self.cancel_some(),
            31 => {
                if let Some(connection) = self.clients[index].connection
                    && self.below(4) == 0
                {
                    self.clients[index].has_ended = true;
                    self.clients[index].node.engine.disconnect(connection);
                }
            }
            _ => {
                let end = self.world.now() + Duration::from_micros(self.below(300));
                self.run_until(end);
            }
        }
        if self.below(3) == 0 {
            let until = self.world.now() + Duration::from_micros(20);
            self.step(until);
        }
    }

    /// Waits until every Call is over, and looks at what has to be as before.
    fn settle(&mut self) {
        while !self.expected.is_empty() {
            let until = self.world.now() + Duration::from_millis(1);
            self.step(until);
        }
        self.attendance.be_all_here();
        // Late Replies of Calls that were given up bring their credits back, also of those that waited for memory, for which
        // Long Calls have 20 s.
        for _ in 0..if self.short { 110 } else { 10 } {
            self.server.engine.services_mut().0.release();
            let end = self.world.now() + Duration::from_millis(200);
            self.run_until(end);
        }
        for client in &self.clients {
            let Some(connection) = client.connection.filter(|_| client.established) else { continue };
            let engine = &client.node.engine;
            let granted = engine.credits_granted(connection).min(engine.config().credits_max);
            // One may be a keep-alive's that is under way.
            let missing = granted - engine.credits_available(connection);
            assert!(missing <= u32::from(client.policy.keep_alive.is_some()), "{missing} credits are lost");
        }
    }

    /// Ends everything. `gently`: the server stops, and the clients are told.
    fn close(&mut self, gently: bool) {
        self.attendance.be_all_here();
        let now = self.world.now();
        if gently {
            self.server.engine.stop(now);
        }
        for client in &mut self.clients {
            if let Some(connection) = client.connection
                && !gently
            {
                client.has_ended = true;
                client.node.engine.disconnect(connection);
            }
        }
        let mut turns = 0;
        while !self.server.engine.is_drained()
            || self.clients.iter().any(|client| !client.node.engine.is_drained())
        {
            turns += 1;
            if turns % 1000 == 0 {
                self.server.engine.services_mut().0.release();
            }
            let until = self.world.now() + Duration::from_millis(1);
            self.step(until);
        }
        self.server.engine.services_mut().0.release();
        for _ in 0..100 {
            self.pass();
        }
    }
}

/// Returns how many connections were made again.
fn run(seed: u64, memories: &mut Vec<Memory>) -> u64 {
    let mut random = Random::new(seed);
    let plan = FaultPlan::from_seed(seed);
    let faults = [plan.death, plan.slow_peer, plan.delay, plan.setup_lost, plan.connect_refused];
    let is_steady = faults.iter().all(|odds| *odds == Odds::NEVER);
    let deaf = plan.private_data_dropped != Odds::NEVER || plan.private_data_truncated != Odds::NEVER;
    let world = World::new(seed, plan);
    let clients = 1 + random.below(CLIENTS_MAX as u64) as usize;
    let mut take = || memories.pop().expect("one for each node");
    let server_config = some_config(&mut random);
    let mut server = Node::on(&world, "server", server_config, take(), |memory| {
        (Program::new(memory.pools.payload.clone()),)
    });
    server.engine.listen(ADDRESS).expect("the address is free");
    let clients = (0..clients)
        .map(|_| Client {
            node: Node::on(&world, "client", some_config(&mut random), take(), |_| ()),
            policy: some_policy(&mut random),
            connection: None,
            established: false,
            has_ended: false,
        })
        .collect();
    let mut hoard = Vec::new();
    let short = random.below(5) == 0;
    if short {
        while let Some(buf) = server.memory.pools.payload.take() {
            hoard.push(buf);
        }
        hoard.truncate(hoard.len() - random.below(60) as usize);
    }
    let mut run = Run {
        world,
        random,
        server,
        clients,
        expected: HashMap::new(),
        guarded: Vec::new(),
        next_user: 0,
        passes: 0,
        short,
        deaf,
        is_steady,
        attendance: Attendance::new(seed),
        succeeded: 0,
        failed: 0,
        interruptions: 0,
    };
    for _ in 0..150 {
        run.act();
    }
    let (settled, gently) = (run.below(4) > 0, run.below(2) == 0);
    if settled {
        run.settle();
    }
    run.close(gently);

    assert!(run.expected.is_empty(), "Calls that never ended");
    let statistics = *run.server.engine.statistics();
    assert!(statistics.replies_taken + statistics.exposures_expired <= statistics.replies_exposed);
    if settled && statistics.connections_closed == statistics.connections_opened && gently {
        assert_eq!(statistics.exposures_expired, 0, "a client that lives tells");
    }
    // One whose Reply found no memory is executed again: it is harmless.
    let received = statistics.calls_received + statistics.replies_starved;
    assert!(run.server.engine.services_mut().0.executed <= received, "a Call ran twice");
    for buf in &run.guarded {
        assert!(buf.iter().all(|octet| *octet == GUARD), "memory was written to after its Call was over");
    }
    assert_eq!(run.world.violations(), Violations::default());
    drop(hoard);
    run.guarded.clear();
    let Run { server, clients, interruptions, .. } = run;
    let Node { engine, memory, .. } = server;
    drop(engine);
    let mut all = vec![memory];
    for client in clients {
        let Node { engine, memory, .. } = client.node;
        drop(engine);
        all.push(memory);
    }
    for memory in &all {
        assert_eq!(memory.ledger.outstanding(), 0, "buffers are missing: {}", memory.ledger);
    }
    memories.extend(all);
    interruptions
}

#[test]
fn whole_clients_and_servers_in_all_weathers() {
    let memories = || -> Vec<Memory> {
        (0..=CLIENTS_MAX).map(|_| Memory::on_demand(&largest(), 3 << 20).expect("a few megabytes")).collect()
    };
    let mut memories = memories();
    let (mut seeds, mut interruptions) = (0, 0);
    sweep("whole_clients_and_servers_in_all_weathers", 0..SEEDS, |seed| {
        seeds += 1;
        interruptions += run(seed, &mut memories);
    });
    println!("{seeds} seeds, {interruptions} connections made again");
    assert!(seeds < SEEDS || interruptions > seeds / 10);
}
