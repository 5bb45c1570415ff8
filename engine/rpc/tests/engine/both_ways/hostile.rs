//! Peers that break the rules where Calls go both ways: each is cut off, or what it sent is dropped, and nothing is lost.
//!
//! In either version: [`message`] knows the differences.

use std::time::Duration;

use stag_fabric::Handle;
use stag_fabric::sim::{FaultPlan, Random, World, sweep};
use stag_rpc::{CallError, Chunks, CloseReason, ConnectionEvent, ConnectionId, EngineConfig, Request};

use super::ends::{REVERSE_CREDITS, config};
use crate::raw::{Raw, octets, word};
use crate::support::program::{ECHO, LATER, NEVER, PROGRAM, Program, VERSION};
use crate::support::{ADDRESS, Ended, IS_VERSION_2, Node, bytes, error, opaque, request_for};

const MSG: u32 = 0;
const NOMSG: u32 = 1;
const DONE: u32 = 3;
const ERROR: u32 = 4;

/// The version that is spoken, and the word where the RPC message begins behind empty lists.
const SPOKEN: u32 = if IS_VERSION_2 { 2 } else { 1 };
const RPC: usize = if IS_VERSION_2 { 8 } else { 7 };

/// An engine, and a peer that sends what the test says.
pub(super) struct Case {
    pub(super) world: World,
    pub(super) node: Node<(Program,)>,
    pub(super) connection: ConnectionId,
    pub(super) raw: Raw,
}

impl Case {
    fn new(config: EngineConfig) -> Case {
        let world = World::new(1, FaultPlan::default());
        let raw = Raw::new(&world);
        let node = Node::new(&world, "engine", config, 1 << 20, |memory| {
            (Program::new(memory.pools.payload.clone()),)
        });
        Case { world, node, connection: ConnectionId { index: 0, generation: 0 }, raw }
    }

    /// The engine opens the connection.
    pub(super) fn probing(config: EngineConfig) -> Case {
        let mut case = Case::new(config);
        case.raw.listen(ADDRESS);
        case.connection = case.node.engine.connect(ADDRESS).expect("the address is fine");
        case.run(|case| case.raw.established);
        case
    }

    /// The engine opened the connection: it takes reverse Calls.
    pub(super) fn client() -> Case {
        Case::client_with(config()).0
    }

    /// The same, and what the engine tells of itself in version 2.
    pub(super) fn client_with(config: EngineConfig) -> (Case, Vec<u8>) {
        let (mut case, mut said) = (Case::probing(config), Vec::new());
        if IS_VERSION_2 {
            let probe = word(&case.answer(), 0);
            let null = message(probe, 1, MSG, &[0, 0, 0], &[probe, 1, 0, 0, 0, 0]);
            assert!(case.raw.send(&null, None) && case.raw.send(&told(&[(1, 4096)]), None));
            said = case.answer();
        }
        case.run(|case| !case.node.events.is_empty());
        case.node.events.clear();
        (case, said)
    }

    /// The engine accepted the connection, and makes reverse Calls.
    pub(super) fn server() -> Case {
        Case::server_with(config()).0
    }

    /// The same, and what the engine tells of itself in version 2.
    pub(super) fn server_with(config: EngineConfig) -> (Case, Vec<u8>) {
        let mut case = Case::new(config);
        case.node.engine.listen(ADDRESS).expect("the address is free");
        case.raw.connect(ADDRESS);
        case.run(|case| case.raw.established);
        assert!(case.raw.send(&call(1, MSG, &[0, 0, 0], ECHO, &[0]), None));
        case.answer();
        let said = if IS_VERSION_2 { case.answer() } else { Vec::new() };
        case.connection = case.node.engine.services_mut().0.called_on.expect("it was called");
        (case, said)
    }

    fn pass(&mut self) -> usize {
        let now = self.world.now();
        self.node.poll(now) + self.raw.poll(now)
    }

    #[track_caller]
    pub(super) fn run(&mut self, mut done: impl FnMut(&mut Case) -> bool) {
        for _ in 0..100_000 {
            if done(self) {
                return;
            }
            if self.pass() == 0 {
                let timer = stag_runtime::Poller::next_timeout(&self.node.engine);
                assert!(self.world.advance_before(timer) || done(self), "what was awaited did not happen");
            }
        }
        panic!("what was awaited did not happen");
    }

    pub(super) fn run_for(&mut self, time: Duration) {
        let end = self.world.now() + time;
        while self.world.now() < end {
            if self.pass() == 0 {
                self.world.advance_before(Some(end));
            }
        }
    }

    /// A Call of the engine that the peer has received: its message.
    #[track_caller]
    pub(super) fn called(&mut self, chunks: &mut Chunks) -> Vec<u8> {
        let before = self.raw.messages.len();
        let request = Request { timeout: Duration::from_secs(5), ..request_for(ECHO, 64) };
        let engine = &mut self.node.engine;
        let begun = match chunks.is_empty() && engine.call_back(self.connection, &request, |_| Ok(())).is_ok()
        {
            true => Ok(()),
            false => engine.call(self.connection, &request, chunks, |_| Ok(())).map(drop),
        };
        begun.expect("a credit");
        self.run(|case| case.raw.messages.len() > before);
        self.raw.messages.pop().expect("just seen")
    }

    #[track_caller]
    pub(super) fn answer(&mut self) -> Vec<u8> {
        self.run(|case| !case.raw.messages.is_empty());
        self.raw.messages.remove(0)
    }

    #[track_caller]
    pub(super) fn ended(&mut self) -> Ended {
        self.run(|case| !case.node.done.is_empty());
        Ended::of(self.node.done.remove(0))
    }

    /// Why the engine ended the connection.
    #[track_caller]
    pub(super) fn cut_off(&mut self) -> CloseReason {
        let reason = |case: &Case| {
            case.node.events.iter().find_map(|event| match event {
                ConnectionEvent::Closed { reason, .. } => Some(reason.clone()),
                _ => None,
            })
        };
        self.run(|case| reason(case).is_some());
        reason(self).expect("just seen")
    }

    #[track_caller]
    pub(super) fn close(mut self) {
        self.raw.disconnect();
        self.run(|case| case.raw.closed.is_some() && case.node.engine.connection_count() == 0);
        self.node.engine.services_mut().0.release();
        for _ in 0..100 {
            self.pass();
        }
        self.node.done.clear();
        assert_eq!(self.node.outstanding(), 0, "{}", self.node.memory.ledger);
        assert_eq!(self.raw.memory.ledger.outstanding(), 0, "{}", self.raw.memory.ledger);
        let mut violations = self.world.violations();
        violations.receiver_not_ready = 0;
        assert_eq!(violations, Default::default());
    }
}

/// A message with these lists, and this RPC message in it: in version 2 its msg_type is in the header, too.
pub(super) fn message(xid: u32, credits: u32, procedure: u32, lists: &[u32], rpc: &[u32]) -> Vec<u8> {
    let direction = if IS_VERSION_2 { &rpc[1..2] } else { &[] };
    octets(&[&[xid, SPOKEN, credits, procedure], direction, lists, rpc].concat())
}

/// What a peer of version 2 tells of itself: numbers of characteristics, each with its value.
pub(super) fn told(values: &[(u32, u32)]) -> Vec<u8> {
    let count = values.len() as u32;
    let mut words = vec![0, 2, 1, 5, 0, 1, 8 + 12 * count, count];
    values.iter().for_each(|(number, value)| words.extend([*number, 4, *value]));
    words.push(0);
    octets(&words)
}

pub(super) fn call(xid: u32, procedure: u32, lists: &[u32], called: u32, arguments: &[u32]) -> Vec<u8> {
    let rpc = [&[xid, 0, 2, PROGRAM, VERSION, called, 0, 0, 0, 0], arguments].concat();
    message(xid, 99, procedure, lists, &rpc)
}

/// A Call that the engine does not answer.
pub(super) fn endless(xid: u32) -> Vec<u8> {
    call(xid, MSG, &[0, 0, 0], LATER, &[(NEVER >> 32) as u32, NEVER as u32, 0])
}

pub(super) fn reply(xid: u32, results: &[u32]) -> Vec<u8> {
    message(xid, 7, MSG, &[0, 0, 0], &[&[xid, 1, 0, 0, 0, 0][..], results].concat())
}

#[test]
fn one_xid_may_be_outstanding_in_both_directions() {
    // 8167-2.4-a, 8167-4.1-b, 8167-4.1-c
    let mut case = Case::client();
    let xid = word(&case.called(&mut Chunks::default()), 0);
    assert!(case.raw.send(&call(xid, MSG, &[0, 0, 0], ECHO, &[4, 0x616c_6c6f]), None));
    let answer = case.answer();
    assert_eq!([0, 1, 2, 3].map(|at| word(&answer, at)), [xid, SPOKEN, REVERSE_CREDITS, MSG]);
    assert_eq!(
        [RPC, RPC + 1].map(|at| word(&answer, at)),
        [xid, 1],
        "the RPC message: a Reply with that xid"
    );
    assert_eq!(case.node.engine.credits_granted(case.connection), 1, "99 was a request");
    assert!(case.node.done.is_empty(), "the forward Call still waits");
    assert!(case.raw.send(&reply(xid, &[9]), None));
    assert_eq!(bytes(&case.ended()), 9u32.to_be_bytes());
    assert_eq!(case.node.engine.credits_granted(case.connection), 7);
    case.close();
}

#[test]
fn a_reverse_call_with_chunks_is_refused() {
    // 8167-5.3-b
    let mut case = Case::client();
    let [readable, writable] = case.raw.expose(4096).expect("memory");
    let segment = |remote: stag_fabric::RemoteSegment| {
        [remote.handle.0, 4096, (remote.offset >> 32) as u32, remote.offset as u32]
    };
    let (read, write) = (segment(readable), segment(writable));
    let cases = [
        (MSG, [&[1, 44][..], &read, &[0, 0, 0]].concat()),
        (NOMSG, [&[1, 0][..], &read, &[0, 0, 0]].concat()),
        (MSG, [&[0, 1, 1][..], &write, &[0, 0]].concat()),
        (MSG, [&[0, 0, 1, 1][..], &write].concat()),
    ];
    for (xid, (procedure, lists)) in (50..).zip(cases) {
        assert!(case.raw.send(&call(xid, procedure, &lists, ECHO, &[0]), None));
        let answer = case.answer();
        assert_eq!(
            [0, 1, 3, 4].map(|at| word(&answer, at)),
            [xid, SPOKEN, ERROR, 2],
            "ERR_CHUNK, or BAD_HEADER"
        );
    }
    assert_eq!(case.node.engine.services_mut().0.executed, 0);
    assert!(case.raw.send(&call(60, MSG, &[0, 0, 0], ECHO, &[0]), None));
    assert_eq!(word(&case.answer(), 3), MSG);
    case.close();
}

#[test]
fn reverse_calls_beyond_the_grant_end_the_connection() {
    // 8167-4.1-d: one credit is assumed at first.
    let mut case = Case::client();
    assert!(case.raw.send(&endless(1), None) && case.raw.send(&endless(2), None));
    assert!(matches!(case.cut_off(), CloseReason::Violation(_)));
    case.close();
}

#[test]
fn a_message_that_cannot_be_read_ends_no_call() {
    // 8167-X-1: of version 9, with the xid of a Call of ours, or with another. In version 2, V2-X-7: of no direction.
    let mut case = Case::client();
    let xid = word(&case.called(&mut Chunks::default()), 0);
    let (version, code) = if IS_VERSION_2 { (2, 2) } else { (9, 1) };
    assert!(case.raw.send(&octets(&[xid, version, 1, MSG, 7, 0, 0, 0]), None));
    case.run(|case| case.node.engine.statistics().messages_discarded == 1);
    assert!(case.raw.send(&octets(&[xid ^ 1, version, 1, MSG, 7, 0, 0, 0]), None));
    let answer = case.answer();
    let wanted = [xid ^ 1, version, ERROR, code];
    assert_eq!([0, 1, 3, 4].map(|at| word(&answer, at)), wanted, "ERR_VERS, or BAD_HEADER");
    assert!(case.raw.send(&reply(xid, &[1]), None));
    assert_eq!(bytes(&case.ended()).len(), 4);
    case.close();
}

#[test]
fn an_rdma_error_ends_the_reverse_call_that_it_answers() {
    // 8167-D-1: it is never for a Call of the peer that has the same xid.
    let mut case = Case::server();
    let xid = word(&case.called(&mut Chunks::default()), 0);
    assert!(case.raw.send(&endless(xid), None));
    case.run(|case| case.node.engine.services_mut().0.kept() == 1);
    assert!(case.raw.send(&octets(&[xid, SPOKEN, 5, ERROR, 2]), None));
    assert_eq!(error(&case.ended()), CallError::Chunk);
    case.node.engine.services_mut().0.release();
    let answer = case.answer();
    assert_eq!([0, 3, RPC + 1].map(|at| word(&answer, at)), [xid, MSG, 1], "the forward Call is answered");
    case.close();
}

#[test]
fn messages_for_nobody_are_dropped() {
    for mut case in [Case::client(), Case::server()] {
        let xid = word(&case.called(&mut Chunks::default()), 0);
        let before = case.node.engine.statistics().messages_discarded;
        for round in 0..60 {
            let stray = match round % 4 {
                // Replies to nothing, an RDMA_DONE, no direction.
                0 => reply(xid ^ 5, &[1]),
                1 => octets(&[xid, SPOKEN, 1, DONE]),
                2 => octets(&[xid, SPOKEN, 1, NOMSG, 0, 0, 0]),
                _ => octets(&[xid, SPOKEN, 1]),
            };
            assert!(case.raw.send(&stray, None));
            case.run_for(Duration::from_millis(1));
        }
        assert_eq!(case.node.engine.statistics().messages_discarded, before + 60);
        assert!(case.raw.messages.is_empty(), "none is answered");
        assert!(case.raw.send(&reply(xid, &opaque_words(b"text")), None));
        assert_eq!(bytes(&case.ended()), opaque(b"text"));
        assert!(case.raw.send(&reply(xid, &[]), None), "twice");
        case.run(|case| case.node.engine.statistics().messages_discarded == before + 61);
        assert!(case.raw.send(&call(9, MSG, &[0, 0, 0], ECHO, &[0]), None));
        let answer = case.answer();
        assert_eq!([0, RPC + 1].map(|at| word(&answer, at)), [9, 1]);
        case.close();
    }
}

fn opaque_words(octets: &[u8]) -> Vec<u32> {
    let encoded = opaque(octets);
    encoded.as_chunks().0.iter().map(|word| u32::from_be_bytes(*word)).collect()
}

#[test]
fn a_reverse_call_that_invalidates_a_handle_ends_the_connection() {
    // 8797-4.1-b: only the Reply may, and the memory comes back to its Call all the same.
    let mut case = Case::client();
    let mut chunks = Chunks::write(case.node.space(4096));
    let sent = case.called(&mut chunks);
    assert_eq!(
        [RPC - 3, RPC - 2, RPC - 1].map(|at| word(&sent, at)),
        [0, 1, 1],
        "one Write chunk of one segment"
    );
    let invalidate = Some(Handle(word(&sent, RPC)));
    assert!(case.raw.send(&call(3, MSG, &[0, 0, 0], ECHO, &[0]), invalidate));
    assert!(matches!(case.cut_off(), CloseReason::Violation(_)));
    let ended = case.ended();
    assert_eq!((error(&ended), ended.written.len()), (CallError::ConnectionLost, 1));
    assert_eq!(case.node.engine.services_mut().0.executed, 0);
    case.close();
}

/// Sends messages of all kinds in any order, with Calls of the engine between them.
fn any_messages(seed: u64) {
    let mut random = Random::new(seed);
    let mut case = if random.below(2) == 0 { Case::client() } else { Case::server() };
    let mut xids = vec![1];
    for _ in 0..random.below(120) {
        if case.raw.pair.is_none() {
            break;
        }
        let xid = match random.below(4) {
            0 => random.next_u64() as u32,
            _ => xids[random.below(xids.len() as u64) as usize],
        };
        let text = opaque_words(&[7; 40][..random.below(40) as usize]);
        let octets = match random.below(12) {
            0..=2 => call(xid, MSG, &[0, 0, 0], ECHO, &text),
            3 => endless(xid),
            4..=6 => reply(xid, &text),
            7 => octets(&[xid, SPOKEN, 1, DONE]),
            8 => octets(&[xid, SPOKEN, 1, ERROR, 1 + random.below(3) as u32, 1, 1]),
            9 => call(xid, NOMSG, &[1, 0, 4, 4, 0, 0, 0, 0, 0], ECHO, &text),
            10 => octets(&[xid, random.below(4) as u32, 1, random.below(6) as u32, 0, 0, 0]),
            _ => {
                let mut any = call(xid, MSG, &[0, 0, 0], ECHO, &text);
                let at = random.below(any.len() as u64) as usize;
                any[at] ^= 1 << random.below(8);
                any.truncate(at + random.below(80) as usize);
                any
            }
        };
        case.raw.send(&octets, None);
        if random.below(3) == 0 {
            let timeout = Duration::from_micros(50 + random.below(5000));
            let request = Request { timeout, ..request_for(ECHO, 64) };
            let engine = &mut case.node.engine;
            let encode = |writer: &mut stag_wire::xdr::Writer<'_>| writer.opaque(b"text");
            let _ = engine.call_back(case.connection, &request, encode);
            let _ = engine.call(case.connection, &request, &mut Chunks::default(), encode);
        }
        if random.below(3) == 0 {
            case.run_for(Duration::from_micros(random.below(100)));
        }
        for message in case.raw.messages.drain(..) {
            if message.len() >= 36 && word(&message, RPC + 1) == 0 {
                xids.push(word(&message, 0));
            }
        }
    }
    let statistics = case.node.engine.statistics();
    assert_eq!(statistics.faults, 0, "no message shows a defect of ours");
    case.raw.disconnect();
    case.close();
}

#[test]
fn any_messages_of_both_directions_do_no_harm() {
    sweep("any_messages_of_both_directions_do_no_harm", 0..200, any_messages);
}
