//! Clients that do not keep to the rules, against a server's engine.

use std::cell::Cell;
use std::time::Duration;

use stag_fabric::RemoteSegment;
use stag_fabric::sim::{FaultPlan, Odds, Random, World, sweep};
use stag_rpc::{Chunks, ConnectionEvent, EngineConfig};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};

use crate::ends::Served as Case;
use crate::raw::{Raw, octets, word};
use crate::support::program::{BIG, ECHO, GET, LATER, NEVER, PROGRAM, PUT, VERSION};
use crate::support::{ADDRESS, Bench, request, small};

const MSG: u32 = 0;
const NOMSG: u32 = 1;
const MSGP: u32 = 2;
const DONE: u32 = 3;
const ERROR: u32 = 4;

impl Case {
    fn new() -> Case {
        Case::in_world(World::new(1, FaultPlan::default()))
    }

    fn in_world(world: World) -> Case {
        Case::connected(world, EngineConfig { inline_threshold: 4096, ..small() }, Vec::new())
    }
}

/// The RPC message of a Call.
fn rpc(xid: u32, procedure: u32, arguments: &[u32]) -> Vec<u32> {
    let mut words = vec![xid, 0, 2, PROGRAM, VERSION, procedure, 0, 0, 0, 0];
    words.extend(arguments);
    words
}

/// Which flavors NULL is answered to (5531-b): those that are served, and AUTH_TLS. Others are refused as by Linux's server; with
/// RPCSEC_GSS a success would say that there is a context (RFC 2203 section 5.2.2).
#[test]
fn null_is_refused_with_a_flavor_that_is_not_served() {
    let everywhere = FaultPlan { in_place: Odds::ALWAYS, ..FaultPlan::default() };
    for plan in [FaultPlan::default(), everywhere] {
        let mut case = Case::in_world(World::new(1, plan));
        // { version 1, INIT, sequence 0, service none, empty handle }, and a token.
        let gss = [1, 1, 0, 1, 0];
        for (flavor, body, is_answered) in [
            (0, &[][..], true),
            (1, &[0, 0, 0, 0, 0], true),
            (7, &[], true),
            (6, &gss, false),
            (2, &[], false),
            (3, &[], false),
            (99, &[], false),
        ] {
            let xid = 100 + flavor;
            let mut words = vec![xid, 0, 2, PROGRAM, VERSION, 0, flavor, body.len() as u32 * 4];
            words.extend(body);
            words.extend([0, 0, 4, 0xabcd_ef01]);
            let answer = case.answer_to(&message(xid, MSG, &[0, 0, 0], &words));
            let told: Vec<u32> = (7..12).map(|at| word(&answer, at)).collect();
            let expected = if is_answered { [xid, 1, 0, 0, 0] } else { [xid, 1, 1, 1, 1] };
            assert_eq!(told, expected, "flavor {flavor}");
        }
        case.close();
    }
}

/// A transport header and what follows it.
fn message(xid: u32, procedure: u32, lists: &[u32], rest: &[u32]) -> Vec<u8> {
    let mut words = vec![xid, 1, 1, procedure];
    words.extend(lists);
    words.extend(rest);
    octets(&words)
}

/// A read segment, with the word before it that says so.
fn read(position: u32, handle: u32, len: u32, offset: u64) -> Vec<u32> {
    vec![1, position, handle, len, (offset >> 32) as u32, offset as u32]
}

fn of(segment: RemoteSegment, position: u32, len: u32) -> Vec<u32> {
    read(position, segment.handle.0, len, segment.offset)
}

#[test]
fn headers_in_error_get_their_answers() {
    // 8166-4.5-a, 8166-4.5-b, 8166-4.5.1-a, 8166-4.5.2-a, 8166-4.2.4-c, 8166-4.6.1-a, 8166-8.1-e; the connection lives on each time.
    let mut case = Case::new();
    let null = |xid| rpc(xid, 0, &[]);
    let xid = 0x77;
    let list = |parts: &[Vec<u32>]| -> Vec<u32> {
        let mut lists = parts.concat();
        lists.extend([0, 0, 0]);
        lists
    };
    let none = None;
    let chunk = Some(2);
    let mut endless = Vec::new();
    for _ in 0..160 {
        endless.extend(read(0, 1, 4, 0));
    }
    let many: Vec<Vec<u32>> = (0..65).map(|_| read(40, 1, 4, 0)).collect();
    let nine: Vec<Vec<u32>> = (0..9).map(|index| read(40 + 4 * index, 1, 4, 0)).collect();
    let cases: Vec<(&str, Vec<u8>, Option<u32>)> = vec![
        ("nothing", vec![], none),
        ("four octets", octets(&[xid]), none),
        ("27 octets", message(xid, MSG, &[0, 0, 0], &[])[..27].to_vec(), none),
        ("zeros", vec![0; 28], Some(1)),
        ("many zeros", vec![0; 4096], Some(1)),
        ("version 2", octets(&[xid, 2, 1, MSG, 0, 0, 0]), Some(1)),
        ("version 0xffffffff", octets(&[xid, u32::MAX, 1, 77, 0, 0, 0]), Some(1)),
        ("RDMA_MSGP", message(xid, MSGP, &[0, 0, 0, 0, 0], &null(xid)), chunk),
        ("RDMA_DONE", message(xid, DONE, &[0, 0, 0], &[]), none),
        ("RDMA_ERROR", message(xid, ERROR, &[2, 0, 0], &[]), none),
        ("procedure 9", message(xid, 9, &[0, 0, 0], &null(xid)), chunk),
        ("RDMA_NOMSG without lists", message(xid, NOMSG, &[0, 0, 0], &[]), chunk),
        ("a list that never ends", message(xid, MSG, &endless, &[]), chunk),
        ("a list word of 7", message(xid, MSG, &[7, 0, 0], &null(xid)), chunk),
        ("65 segments", message(xid, MSG, &list(&many), &null(xid)), chunk),
        ("9 chunks", message(xid, MSG, &list(&nine), &rpc(xid, PUT, &[4; 10])), chunk),
        ("a Write chunk of 2^32-1 segments", message(xid, MSG, &[0, 1, u32::MAX, 0, 0], &null(xid)), chunk),
        ("an xid that is not the RPC's", message(xid, MSG, &[0, 0, 0], &null(xid + 1)), chunk),
        ("a Reply", message(xid, MSG, &[0, 0, 0], &[xid, 1, 0, 0, 0, 0]), none),
        ("Position 5", message(xid, MSG, &list(&[read(5, 1, 4, 0)]), &null(xid)), chunk),
        ("a Position outside", message(xid, MSG, &list(&[read(4000, 1, 4, 0)]), &null(xid)), chunk),
        (
            "Positions that overlap",
            message(xid, MSG, &list(&[read(40, 1, 40, 0), read(44, 2, 40, 0)]), &null(xid)),
            chunk,
        ),
        (
            "lengths that overflow when summed",
            message(xid, NOMSG, &list(&[read(0, 1, u32::MAX, 0), read(0, 2, u32::MAX, 0)]), &[]),
            chunk,
        ),
        (
            "an address that overflows",
            message(xid, NOMSG, &list(&[read(0, 1, 4096, u64::MAX - 4)]), &[]),
            chunk,
        ),
        ("a Long Call beyond the budget", message(xid, NOMSG, &list(&[read(0, 1, 2 << 20, 0)]), &[]), chunk),
    ];
    for (what, octets, expected) in cases {
        assert!(case.raw.send(&octets, None), "{what}");
        case.quiesce();
        let answers = std::mem::take(&mut case.raw.messages);
        assert_eq!(case.raw.closed, None, "{what}: the connection lives");
        match expected {
            None => assert!(answers.is_empty(), "{what}: {answers:?}"),
            Some(code) => {
                assert_eq!(answers.len(), 1, "{what}");
                let answer = &answers[0];
                assert_eq!(answer.len(), if code == 1 { 28 } else { 20 }, "{what}");
                let same = [word(&octets, 0), word(&octets, 1)];
                assert_eq!([word(answer, 0), word(answer, 1)], same, "{what}: xid and version");
                assert!(word(answer, 2) >= 1, "{what}: a grant is never 0");
                assert_eq!([word(answer, 3), word(answer, 4)], [ERROR, code], "{what}");
            }
        }
    }
    // After all of that it is served as anybody.
    assert!(case.raw.send(&message(5, MSG, &[0, 0, 0], &rpc(5, 0, &[])), None));
    case.run(|case| case.raw.messages.len() == 1);
    assert_eq!(word(&case.raw.messages[0], 0), 5);
    assert_eq!(word(&case.raw.messages[0], 3), MSG);
    case.close();
}

#[test]
fn rpc_messages_in_error_get_their_answers() {
    // 5531-a, 5531-d
    let mut case = Case::new();
    let mut send = |words: &[u32]| -> Option<Vec<u8>> {
        let octets = message(words[0], MSG, &[0, 0, 0], words);
        assert!(case.raw.send(&octets, None));
        case.quiesce();
        let mut answers = std::mem::take(&mut case.raw.messages);
        assert!(answers.len() <= 1);
        answers.pop()
    };
    // RPC version 3: denied, RPC_MISMATCH, 2 to 2.
    let answer = send(&[1, 0, 3, PROGRAM, VERSION, 0, 0, 0, 0, 0]).expect("an answer");
    assert_eq!((7..13).map(|at| word(&answer, at)).collect::<Vec<_>>(), [1, 1, 1, 0, 2, 2]);
    // An unknown flavor: denied, AUTH_ERROR, AUTH_BADCRED.
    let answer = send(&[2, 0, 2, PROGRAM, VERSION, ECHO, 77, 0, 0, 0]).expect("an answer");
    assert_eq!((7..12).map(|at| word(&answer, at)).collect::<Vec<_>>(), [2, 1, 1, 1, 1]);
    // A credential of 4 GiB, and one that is longer than the message: an answer or none, never more.
    let _ = send(&[3, 0, 2, PROGRAM, VERSION, ECHO, 1, u32::MAX, 0, 0]);
    let _ = send(&[4, 0, 2, PROGRAM, VERSION, ECHO, 1, 400, 0, 0]);
    // A Call that ends in its header.
    let _ = send(&[5, 0, 2, PROGRAM]);
    // The arguments' string has 4 GiB.
    let answer = send(&rpc(6, ECHO, &[u32::MAX])).expect("an answer");
    assert_eq!(word(&answer, 12), 4, "GARBAGE_ARGS");
    case.close();
}

#[test]
fn memory_that_is_not_there_ends_that_connection_alone() {
    // A Long Call, a data chunk, a Write chunk and a Reply chunk whose handles were never exposed.
    let calls: [Vec<u8>; 4] = [
        message(9, NOMSG, &[read(0, 0xbad, 4096, 64), vec![0, 0, 0]].concat(), &[]),
        message(9, MSG, &[read(44, 0xbad, 4096, 64), vec![0, 0, 0]].concat(), &rpc(9, PUT, &[1, 4096])),
        message(9, MSG, &[0, 1, 1, 0xbad, 4096, 0, 64, 0, 0], &rpc(9, GET, &[1, 1, 4096])),
        message(9, MSG, &[0, 0, 1, 1, 0xbad, 9000, 0, 64], &rpc(9, BIG, &[1, 8000])),
    ];
    for call in calls {
        let mut case = Case::new();
        assert!(case.raw.send(&call, None));
        case.run(|case| case.raw.closed.is_some());
        case.run(|case| case.bench.server.engine.connection_count() == 1);
        case.close();
    }
}

#[test]
fn a_segment_beyond_its_region_ends_that_connection_alone() {
    let mut case = Case::new();
    let [readable, _] = case.raw.expose(4096).expect("memory");
    let lists = [of(readable, 44, 8192), vec![0, 0, 0]].concat();
    assert!(case.raw.send(&message(9, MSG, &lists, &rpc(9, PUT, &[1, 8192])), None));
    case.run(|case| case.raw.closed.is_some());
    case.close();
}

#[test]
fn a_call_that_ended_a_connection_is_refused_on_the_next() {
    // 8166-4.5.3-b: a Read, then a Write, beyond the region. The connection lives, and other Calls are as ever.
    let mut case = Case::new();
    for (xid, procedure) in [(9, PUT), (10, GET)] {
        for is_first in [true, false] {
            let [readable, writable] = case.raw.expose(4096).expect("memory");
            let (lists, arguments) = match procedure {
                PUT => ([of(readable, 44, 8192), vec![0, 0, 0]].concat(), vec![1, 8192]),
                _ => {
                    let (high, low) = ((writable.offset >> 32) as u32, writable.offset as u32);
                    (vec![0, 1, 1, writable.handle.0, 8192, high, low, 0, 0], vec![1, 1, 8192])
                }
            };
            let call = message(xid, MSG, &lists, &rpc(xid, procedure, &arguments));
            assert!(case.raw.send(&call, None));
            if is_first {
                case.run(|case| case.raw.closed.is_some());
                assert!(case.raw.messages.is_empty());
                (case.raw.closed, case.raw.established) = (None, false);
                case.raw.connect(ADDRESS);
                case.run(|case| case.raw.established);
                continue;
            }
            case.run(|case| !case.raw.messages.is_empty());
            let refusal = case.raw.messages.remove(0);
            assert_eq!([0, 3, 4].map(|at| word(&refusal, at)), [xid, ERROR, 2], "ERR_CHUNK");
            let echo = message(7, MSG, &[0, 0, 0], &rpc(7, ECHO, &[0]));
            assert!(case.raw.send(&echo, None));
            case.run(|case| !case.raw.messages.is_empty());
            assert_eq!([0, 3].map(|at| word(&case.raw.messages[0], at)), [7, MSG]);
            case.raw.messages.clear();
        }
    }
    case.close();
}

#[test]
fn a_call_whose_reply_is_longer_than_the_receives_is_refused_on_the_next() {
    let mut case = Case::new();
    case.raw.resize_receives(1024);
    let call = message(9, MSG, &[0, 0, 0], &rpc(9, BIG, &[1, 2000]));
    for round in 0..3 {
        case.raw.disconnect();
        case.run(|case| case.bench.server.engine.connection_count() == 1);
        (case.raw.closed, case.raw.established) = (None, false);
        case.raw.connect(ADDRESS);
        case.run(|case| case.raw.established);
        assert!(case.raw.send(&call, None));
        if round == 0 {
            case.run(|case| case.raw.closed.is_some());
            assert!(case.raw.messages.is_empty());
            continue;
        }
        case.run(|case| !case.raw.messages.is_empty());
        let refusal = case.raw.messages.remove(0);
        assert_eq!([0, 3, 4].map(|at| word(&refusal, at)), [9, ERROR, 2], "ERR_CHUNK");
    }
    case.close();
}

#[test]
fn more_calls_than_credits_end_the_connection() {
    // 8166-3.3.1-b: one credit is assumed at first; the second Call in process is one too many.
    let mut case = Case::new();
    for xid in [1, 2] {
        let arguments = [(NEVER >> 32) as u32, NEVER as u32, 0];
        assert!(case.raw.send(&message(xid, MSG, &[0, 0, 0], &rpc(xid, LATER, &arguments)), None));
    }
    case.run(|case| case.raw.closed.is_some());
    assert_eq!(case.bench.server.engine.statistics().violations, 1);
    assert!(case.raw.messages.is_empty());
    case.close();
}

#[test]
fn a_client_whose_chunks_cannot_be_read_is_not_awaited_for_ever() {
    let mut case = Case::new();
    let [readable, _] = case.raw.expose(4096).expect("memory");
    let lists = [of(readable, 44, 4096), vec![0, 0, 0]].concat();
    assert!(case.raw.send(&message(9, MSG, &lists, &rpc(9, PUT, &[1, 4096])), None));
    case.run(|case| case.bench.server.engine.statistics().read_chunks == 1);
    // From here on its memory is a year away.
    let year = Duration::from_secs(365 * 24 * 3600);
    case.bench.world.set_plan(FaultPlan { latency: year..=year, ..FaultPlan::default() });
    case.bench.run(|bench| bench.server.engine.statistics().peers_stuck == 1);
    let limit = case.bench.server.engine.config().peer_timeout;
    assert!((limit..limit * 2).contains(&case.bench.world.now()), "{:?}", case.bench.world.now());
    case.bench.world.set_plan(FaultPlan::default());
    case.run_ahead(|case| case.bench.server.engine.connection_count() == 1);
    case.close();
}

/// Replies to clients that are cut off hold message buffers until that is known, for each of the credits that they have:
/// the others do not wait for these.
#[test]
fn clients_that_are_cut_off_do_not_starve_the_others() {
    let server = EngineConfig { connections_max: 12, receives_max: 108, burst: 8, ..small() };
    let mut bench = Bench::with(server, small(), 12);
    for client in 1..bench.clients.len() {
        // Its credits grow with use.
        for _ in 0..8 {
            while bench.clients[client].engine.credits_available(bench.connections[client]) > 0 {
                let begun =
                    bench.begin(client, request(ECHO), Chunks::default(), |writer| writer.opaque(b"use"));
                begun.expect("a credit");
            }
            bench.run_for(Duration::from_millis(1));
        }
        while bench.clients[client].engine.credits_available(bench.connections[client]) > 0 {
            let begun = bench.begin(client, request(LATER), Chunks::default(), |writer| {
                writer.u64(NEVER)?;
                writer.opaque(b"text")
            });
            begun.expect("a credit");
        }
    }
    bench.run_for(Duration::from_millis(5));
    let count = bench.server.engine.services_mut().0.kept();
    assert!(count > 80, "only {count} Calls");
    // Their answers are a year away.
    let year = Duration::from_secs(365 * 24 * 3600);
    bench.world.set_plan(FaultPlan { latency: year..=year, ..FaultPlan::default() });
    bench.server.engine.services_mut().0.release();
    let now = bench.world.now();
    for _ in 0..4 {
        bench.server.poll(now);
    }
    assert_eq!(bench.server.engine.services_mut().0.kept(), 0, "Calls that have to wait with their answers");
    bench.world.set_plan(FaultPlan::default());
    bench.check_alive(0);
    assert!(bench.world.now() < now + Duration::from_secs(1), "it had to wait");
    bench.close();
}

impl Case {
    /// Enough strangers, each connected, to take every place.
    fn strangers(&mut self) -> Vec<Raw> {
        let mut strangers = Vec::new();
        while (self.bench.server.engine.connection_count() as u32) < small().connections_max {
            let mut stranger = Raw::new(&self.bench.world);
            stranger.connect(ADDRESS);
            self.run(|case| {
                stranger.poll(case.bench.world.now());
                stranger.established
            });
            strangers.push(stranger);
        }
        strangers
    }

    /// Another client is let in.
    #[track_caller]
    fn admit(&mut self) {
        let admitted = self.bench.add_client(small());
        let connection = self.bench.connections[admitted];
        self.run(|case| {
            case.bench.clients[admitted].events.contains(&ConnectionEvent::Established { connection })
        });
        self.bench.check_alive(admitted);
    }
}

/// Calls a procedure on each of the strangers' connections.
fn call_all(case: &mut Case, strangers: &mut [Raw], procedure: u32) {
    for stranger in strangers {
        assert!(stranger.send(&message(5, MSG, &[0; 3], &rpc(5, procedure, &[0])), None));
        case.run(|case| {
            stranger.poll(case.bench.world.now());
            !stranger.messages.is_empty()
        });
        stranger.messages.clear();
    }
}

/// Strangers that take all places there are, and say nothing, or only NULL, or what is refused: they make room, one for
/// each client that comes, and those that have made a Call stay.
#[test]
fn strangers_that_are_of_no_use_make_room() {
    for procedure in [None, Some(0), Some(999)] {
        let mut case = Case::new();
        case.bench.check_alive(0);
        case.raw.disconnect();
        case.run(|case| case.raw.pair.is_none() && case.bench.server.engine.connection_count() == 1);
        let mut strangers = case.strangers();
        if let Some(procedure) = procedure {
            call_all(&mut case, &mut strangers, procedure);
        }
        for count in 1..4 {
            case.admit();
            assert_eq!(case.bench.server.engine.statistics().connections_evicted, count);
        }
        assert_eq!(case.bench.server.engine.statistics().connections_refused, 0);
        for stranger in &mut strangers {
            stranger.disconnect();
            case.run(|case| {
                stranger.poll(case.bench.world.now());
                stranger.closed.is_some()
            });
        }
        case.close();
    }
}

/// A new client evicts an idle connection, not a used one; while all are used it evicts one only of an owner that
/// has more.
#[test]
fn who_uses_a_connection_keeps_it() {
    let most = small().connections_max as usize;
    let mut bench = Bench::with(small(), small(), most);
    (0..most).for_each(|client| bench.check_alive(client));
    let refused = bench.add_client(small());
    bench.run(|bench| bench.closed(refused).is_some());
    // All but two go on, for as long as makes the others idle.
    for _ in 0..12 {
        bench.run_for(Duration::from_secs(1));
        (2..most).for_each(|client| bench.check_alive(client));
    }
    // One of the two has a Call under way, so the other makes room.
    bench
        .begin(1, request(LATER), Chunks::default(), |writer| {
            writer.u64(NEVER)?;
            writer.opaque(b"")
        })
        .expect("a credit");
    bench.run(|bench| bench.server.engine.services_mut().0.kept() == 1);
    let admitted = bench.add_client(small());
    bench.run(|bench| bench.closed(0).is_some());
    bench.run(|bench| bench.clients[admitted].engine.credits_available(bench.connections[admitted]) > 0);
    (2..most).for_each(|client| bench.check_alive(client));
    bench.check_alive(admitted);
    let refused = bench.add_client(small());
    bench.run(|bench| bench.closed(refused).is_some());
    bench.server.engine.services_mut().0.release();
    bench.close();
}

#[test]
fn a_flood_of_connects_is_served_as_far_as_there_is_room() {
    let server = EngineConfig { connections_max: 200, receives_max: 1024, ..small() };
    // All of them from one engine, with buffers for all.
    let client = EngineConfig { receives_max: 4096, ..small() };
    let mut bench = Bench::with(server, client, 0);
    bench.add_client(client);
    bench.establish();
    // It is of use, so it stays.
    bench.check_alive(0);
    for _ in 0..3 {
        let flood: Vec<_> = (0..300)
            .map(|_| bench.clients[0].engine.connect(ADDRESS).expect("the address is fine"))
            .collect();
        // Those that come late are refused, or one that was let in before them makes room.
        let of = |bench: &Bench, closed: bool| -> Vec<_> {
            let events = bench.clients[0].events.iter().filter_map(|event| match event {
                ConnectionEvent::Established { connection } if !closed => Some(*connection),
                ConnectionEvent::Closed { connection, .. } if closed => Some(*connection),
                _ => None,
            });
            events.filter(|connection| flood.contains(connection)).collect()
        };
        bench.run(|bench| {
            let closed = of(bench, true);
            let open = of(bench, false).into_iter().filter(|connection| !closed.contains(connection)).count();
            (open, closed.len()) == (199, 101)
        });
        let closed = of(&bench, true);
        for connection in of(&bench, false).into_iter().filter(|connection| !closed.contains(connection)) {
            let call =
                bench.clients[0].engine.call(connection, &request(ECHO), &mut Chunks::default(), |writer| {
                    writer.opaque(b"here")
                });
            call.expect("the first credit");
        }
        bench.run(|bench| bench.clients[0].done.len() == 199);
        assert!(bench.clients[0].done.drain(..).all(|done| done.result.is_ok()));
        for connection in flood {
            bench.clients[0].engine.disconnect(connection);
        }
        bench.run(|bench| bench.server.engine.connection_count() == 1);
    }
    bench.check_alive(0);
    bench.close();
}

#[test]
fn an_xid_that_is_in_process_is_not_executed_twice() {
    // 5531-e
    let mut case = Case::new();
    let call = message(8, MSG, &[0, 0, 0], &rpc(8, LATER, &[0, 200, 0]));
    assert!(case.raw.send(&call, None));
    assert!(case.raw.send(&call, None));
    case.run(|case| case.bench.server.engine.services_mut().0.executed == 1);
    case.bench.run_for(std::time::Duration::from_millis(20));
    case.quiesce();
    assert_eq!(case.raw.messages.len(), 1);
    assert_eq!(case.bench.server.engine.services_mut().0.executed, 1);
    case.close();
}

#[test]
fn arbitrary_messages_do_no_harm() {
    // Random octets, and Calls of every form with some words changed or cut off.
    sweep("arbitrary_messages_do_no_harm", 0..60, |seed| {
        let mut random = Random::new(seed);
        let mut case = Case::in_world(World::new(seed, FaultPlan::default()));
        case.bench.rules_broken = true;
        for xid in 0..40 {
            if case.raw.pair.is_none() {
                case.raw.established = false;
                case.raw.closed = None;
                case.raw.connect(ADDRESS);
                case.run(|case| case.raw.established || case.raw.closed.is_some());
            }
            let Some([readable, writable]) = case.raw.expose(4096) else { continue };
            let (reads, writes) = (of(readable, 44, 4096), of(writable, 0, 4096));
            let mut octets = match random.below(6) {
                0 => (0..random.below(4096)).map(|_| random.below(256) as u8).collect(),
                1 => message(xid, MSG, &[reads, vec![0, 0, 0]].concat(), &rpc(xid, PUT, &[1, 4096])),
                2 => {
                    let lists = [&[0, 1, 1][..], &writes[2..], &[0, 0]].concat();
                    message(xid, MSG, &lists, &rpc(xid, GET, &[1, 1, 4000]))
                }
                3 => {
                    let lists = [&[0, 0, 1, 1][..], &writes[2..]].concat();
                    message(xid, MSG, &lists, &rpc(xid, BIG, &[1, 4000]))
                }
                4 => message(xid, NOMSG, &[of(readable, 0, 4096), vec![0, 0, 0]].concat(), &[]),
                _ => message(xid, MSG, &[0, 0, 0], &rpc(xid, ECHO, &[4, 4])),
            };
            for _ in 0..random.below(4) {
                if octets.len() < 4 {
                    break;
                }
                let at = random.below(octets.len() as u64 / 4) as usize * 4;
                let value = [0, 1, 2, 4, 0x7fff_fffc, u32::MAX, random.below(1 << 32) as u32];
                let value = value[random.below(7) as usize];
                octets[at..at + 4].copy_from_slice(&value.to_be_bytes());
            }
            if random.below(6) == 0 {
                octets.truncate(random.below(octets.len() as u64 + 1) as usize);
            }
            case.raw.send(&octets, None);
            if random.below(3) > 0 {
                case.quiesce();
            }
        }
        case.quiesce();
        case.close();
    });
}

thread_local! {
    /// Warnings of this thread.
    static WARNINGS: Cell<u32> = const { Cell::new(0) };
}

/// Counts warnings; of all threads, since the log keeps in mind what it was asked for in whichever came first.
struct Warnings;

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        WARNINGS.set(WARNINGS.get() + 1);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn a_flood_of_offenders_does_not_flood_the_log() {
    tracing::subscriber::set_global_default(Warnings).expect("no other test wants the log");
    let most = small().connections_max as usize;
    let mut bench = Bench::with(small(), small(), most);
    // They are used, so none is evicted.
    (0..most).for_each(|client| bench.check_alive(client));
    for _ in 0..50 {
        let refused = bench.add_client(small());
        bench.run(|bench| bench.closed(refused).is_some());
    }
    assert_eq!(bench.server.engine.statistics().connections_refused, 50);
    assert!(bench.world.now() < Duration::from_secs(1), "{:?}", bench.world.now());
    assert_eq!(WARNINGS.get(), 1, "one line a second");
    bench.close();
}
