//! Both ends busy at once, through all weathers of the simulated fabric, one seed after another.
//!
//! What must hold whatever happens: each Call of either end ends exactly once, a success has the Call's own data, the credits of
//! both directions are conserved, every buffer comes back, and no message ever finds its Receive missing.

use std::collections::HashMap;
use std::time::Duration;

use stag_fabric::sim::{Attendance, FaultPlan, Odds, Random, Violations, World, sweep};
use stag_rpc::{
    Backoff, CallError, CallId, Chunks, ClientPolicy, ConnectionEvent, ConnectionId, EngineConfig,
    ProtocolChoice, Request,
};
use stag_runtime::Poller;
use stag_wire::xdr::Writer;

use crate::support::program::{BIG, ECHO, FORGET, LATER, NEVER, Program, pattern};
use crate::support::{ADDRESS, IS_VERSION_2, Node, opaque, request, small, words};

/// Seeds without `STAG_SEEDS`.
const SEEDS: u64 = 120;
const CLIENTS_MAX: u64 = 3;

/// A Call that waits so long on a whole and steady connection is answered.
const PATIENCE: Duration = Duration::from_millis(50);

struct Expected {
    node: usize,
    call: CallId,
    results: Result<Vec<u8>, CallError>,
    is_cancelled: bool,
    is_reverse: bool,
    may_time_out: bool,
}

/// The server is node 0, the others are its clients.
struct Run {
    world: World,
    random: Random,
    nodes: Vec<Node<(Program,)>>,
    /// Of each client, while it has one.
    connections: Vec<Option<ConnectionId>>,
    /// Connections that the server was called on, and may have lost since.
    accepted: Vec<ConnectionId>,
    expected: HashMap<u64, Expected>,
    next_user: u64,
    /// The ends may differ about the inline threshold, or about reverse Calls.
    is_uneven: bool,
    /// Whether connections are neither lost nor slow.
    is_steady: bool,
    attendance: Attendance,
    succeeded: [u64; 2],
}

fn some_config(random: &mut Random) -> EngineConfig {
    EngineConfig {
        inline_threshold: [1024, 4096][random.below(2) as usize],
        credits_max: 1 + random.below(8) as u32,
        reverse_credits: [0, 1, 2, 5, 8][random.below(5) as usize],
        receives_max: 16 + random.below(64) as u32,
        burst: [1, 2, 16, 64][random.below(4) as usize],
        // Where version 2 is tested, some speak version 1 only.
        protocol: match IS_VERSION_2 && random.below(5) == 0 {
            true => ProtocolChoice::One,
            false => small().protocol,
        },
        ..small()
    }
}

impl Run {
    fn pass(&mut self) -> usize {
        let now = self.world.now();
        let mut count = 0;
        self.attendance.begin_pass();
        for index in 0..self.nodes.len() {
            if self.attendance.draw(index) {
                count += self.nodes[index].poll(now);
                self.take(index);
            }
        }
        let called_on = self.nodes[0].engine.services_mut().0.called_on.take();
        if let Some(connection) = called_on.filter(|connection| !self.accepted.contains(connection)) {
            self.accepted.push(connection);
        }
        count
    }

    fn take(&mut self, index: usize) {
        for event in std::mem::take(&mut self.nodes[index].events) {
            if let ConnectionEvent::Closed { connection, .. } = event {
                match index {
                    0 => self.accepted.retain(|accepted| *accepted != connection),
                    _ => self.connections[index - 1] = None,
                }
                let open = self.expected.values().filter(|expected| expected.node == index);
                let open = open.filter(|expected| expected.call.connection == connection);
                let done = &self.nodes[index].done;
                let lost =
                    open.filter(|expected| !done.iter().any(|done| done.call == expected.call)).count();
                assert_eq!(lost, 0, "the connection is closed, and Calls of it are not over");
            }
        }
        for done in std::mem::take(&mut self.nodes[index].done) {
            let expected = self.expected.remove(&done.user).expect("a Call ends once");
            assert_eq!((expected.node, expected.call), (index, done.call));
            match (&done.result, &expected.results) {
                (Ok(results), Ok(wanted)) => {
                    assert_eq!(results.bytes(), wanted);
                    self.succeeded[usize::from(expected.is_reverse)] += 1;
                }
                (Err(CallError::ConnectionLost | CallError::NotSent | CallError::NotPosted(_)), _) => {}
                (Err(CallError::Cancelled), _) => assert!(expected.is_cancelled),
                (Err(CallError::TimedOut), _) => {
                    let is_whole = self.nodes[index].engine.statistics().connections_closed == 0;
                    assert!(expected.may_time_out || !is_whole, "{:?} has no answer", expected.call);
                }
                (Err(CallError::Chunk), _) if self.is_uneven => {}
                (Err(error), wanted) => {
                    assert_eq!(Err(*error), wanted.as_ref().map(|_| ()).map_err(|error| *error));
                }
                (Ok(results), Err(error)) => panic!("{:?} instead of {error}", results.bytes()),
            }
        }
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.world.now() + time;
        while self.world.now() < end {
            if self.pass() == 0 {
                let timers = self.nodes.iter().map(|node| node.engine.next_timeout());
                let away = self.attendance.next_pass(self.world.now());
                self.world.advance_before(timers.chain([Some(end), away]).flatten().min());
            }
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// Begins a Call: a forward one of a client, or a reverse one of the server.
    fn begin(&mut self) {
        let node = self.below(self.nodes.len() as u64) as usize;
        let is_reverse = node == 0;
        let connection = match node {
            0 if self.accepted.is_empty() => return,
            0 => {
                let at = self.below(self.accepted.len() as u64) as usize;
                self.accepted[at]
            }
            client => match self.connections[client - 1] {
                Some(connection) => connection,
                None => {
                    let reconnect = (self.below(2) == 0).then(Backoff::default);
                    let policy = ClientPolicy { reconnect, keep_alive: None };
                    let connected = self.nodes[client].engine.connect_with(ADDRESS, policy);
                    self.connections[client - 1] = Some(connected.expect("the address is fine"));
                    return;
                }
            },
        };
        let (seed, mut len) = (self.below(1 << 20) as u32, self.below(700) as usize);
        let procedure = [0, ECHO, ECHO, ECHO, LATER, LATER, BIG, FORGET, 77][self.below(9) as usize];
        let mut results_len_max = 800;
        if procedure == BIG && !is_reverse {
            // Forward ones may be long: by a Reply chunk, or in several Sends.
            len += self.below(12_000) as usize;
            results_len_max = len as u32 + 8;
        }
        let text = pattern(seed, len);
        let delay = if self.below(10) == 0 { NEVER } else { self.below(400) };
        let results = match procedure {
            0 => Ok(Vec::new()),
            ECHO | LATER | BIG => Ok(opaque(&text)),
            FORGET => Err(CallError::SystemError),
            _ => Err(CallError::ProcedureUnavailable),
        };
        self.next_user += 1;
        let timeout = match self.below(4) {
            0 => 2 * PATIENCE,
            _ => Duration::from_micros(200 + self.below(20_000)),
        };
        let may_time_out = timeout < PATIENCE || delay == NEVER || !self.is_steady;
        let request = Request { user: self.next_user, timeout, results_len_max, ..request(procedure) };
        let encode = |writer: &mut Writer<'_>| match procedure {
            ECHO => writer.opaque(&text),
            LATER => {
                writer.u64(delay)?;
                writer.opaque(&text)
            }
            BIG => words(writer, &[seed, len as u32]),
            _ => Ok(()),
        };
        let engine = &mut self.nodes[node].engine;
        let begun = match is_reverse {
            true => engine.call_back(connection, &request, encode),
            false => engine.call(connection, &request, &mut Chunks::default(), encode),
        };
        if let Ok(call) = begun {
            let expected = Expected { node, call, results, is_cancelled: false, is_reverse, may_time_out };
            self.expected.insert(self.next_user, expected);
        }
    }

    fn act(&mut self) {
        match self.below(20) {
            0..=14 => self.begin(),
            15 => {
                let mut users: Vec<u64> = self.expected.keys().copied().collect();
                users.sort_unstable();
                if users.is_empty() {
                    return;
                }
                let user = users[self.below(users.len() as u64) as usize];
                if let Some(expected) = self.expected.get_mut(&user) {
                    expected.is_cancelled = true;
                    self.nodes[expected.node].engine.cancel(expected.call);
                }
            }
            16 if self.below(8) == 0 && !self.accepted.is_empty() => {
                let at = self.below(self.accepted.len() as u64) as usize;
                self.nodes[0].engine.disconnect(self.accepted[at]);
            }
            17 if self.below(8) == 0 => {
                let client = self.below(self.connections.len() as u64) as usize;
                if let Some(connection) = self.connections[client] {
                    self.nodes[client + 1].engine.disconnect(connection);
                }
            }
            _ => {
                let time = Duration::from_micros(self.below(200));
                self.run_for(time);
            }
        }
        if self.below(3) == 0 {
            self.pass();
        }
    }

    /// Waits until every Call is over; late Replies bring the credits of both directions back.
    fn settle(&mut self) {
        self.attendance.be_all_here();
        for _ in 0..20 {
            self.nodes.iter_mut().for_each(|node| node.engine.services_mut().0.release());
            self.run_for(Duration::from_millis(200));
        }
        assert!(self.expected.is_empty(), "Calls that never end");
        for (node, connection) in self.connections.clone().into_iter().enumerate() {
            let Some(connection) = connection else { continue };
            let engine = &self.nodes[node + 1].engine;
            // One that is being made anew has none.
            if engine.credits_available(connection) > 0 {
                let granted = engine.credits_granted(connection).min(engine.config().credits_max);
                assert_eq!(engine.credits_available(connection), granted, "a forward credit is lost");
            }
        }
    }

    fn close(&mut self, gently: bool) {
        self.attendance.be_all_here();
        let now = self.world.now();
        for index in 0..self.nodes.len() {
            if gently {
                self.nodes[index].engine.stop(now);
            } else if let Some(connection) = index.checked_sub(1).and_then(|client| self.connections[client])
            {
                self.nodes[index].engine.disconnect(connection);
            }
        }
        for turn in 0..100_000 {
            if self.nodes.iter().all(|node| node.engine.is_drained()) {
                break;
            }
            if turn % 100 == 0 {
                self.nodes.iter_mut().for_each(|node| node.engine.services_mut().0.release());
            }
            self.run_for(Duration::from_millis(1));
        }
        assert!(self.nodes.iter().all(|node| node.engine.is_drained()), "an end does not come to rest");
        for _ in 0..100 {
            self.nodes.iter_mut().for_each(|node| node.engine.services_mut().0.release());
            self.pass();
        }
    }
}

fn run(seed: u64) -> [u64; 2] {
    let mut random = Random::new(seed);
    let plan = FaultPlan::from_seed(seed);
    let faults = [plan.death, plan.slow_peer, plan.delay, plan.setup_lost, plan.connect_refused];
    let is_steady = faults.iter().all(|odds| *odds == Odds::NEVER);
    let is_deaf = plan.private_data_dropped != Odds::NEVER || plan.private_data_truncated != Odds::NEVER;
    let world = World::new(seed, plan);
    let clients = 1 + random.below(CLIENTS_MAX) as usize;
    let nodes: Vec<_> = (0..=clients)
        .map(|index| {
            let (name, config) = (if index == 0 { "server" } else { "client" }, some_config(&mut random));
            Node::new(&world, name, config, 256 << 10, |memory| (Program::new(memory.pools.payload.clone()),))
        })
        .collect();
    let mut run = Run {
        world,
        random,
        nodes,
        connections: vec![None; clients],
        accepted: Vec::new(),
        expected: HashMap::new(),
        next_user: 0,
        is_uneven: is_deaf,
        is_steady,
        attendance: Attendance::new(seed),
        succeeded: [0; 2],
    };
    run.nodes[0].engine.listen(ADDRESS).expect("the address is free");
    for _ in 0..400 {
        run.act();
    }
    if run.below(4) > 0 {
        run.settle();
    }
    let gently = run.below(2) == 0;
    run.close(gently);
    assert!(run.expected.is_empty(), "Calls that never ended");
    assert_eq!(run.world.violations(), Violations::default(), "no Receive is ever missing");
    for node in &run.nodes {
        assert_eq!(node.outstanding(), 0, "buffers are missing: {}", node.memory.ledger);
        assert_eq!((node.engine.statistics().faults, node.engine.statistics().violations), (0, 0));
    }
    run.succeeded
}

#[test]
fn both_ends_call_each_other_in_all_weathers() {
    let mut succeeded = [0; 2];
    sweep("both_ends_call_each_other_in_all_weathers", 0..SEEDS, |seed| {
        let [forward, reverse] = run(seed);
        succeeded = [succeeded[0] + forward, succeeded[1] + reverse];
    });
    assert!(succeeded.iter().all(|&count| count > 0), "{succeeded:?}");
}
