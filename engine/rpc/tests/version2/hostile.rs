//! Peers that announce version 2 and then do not keep to its rules, against an engine with an honest peer beside.

use stag_fabric::sim::{FaultPlan, Random, World, sweep};
use stag_proto::layout::ReceiveLayout;
use stag_proto::version2::OwnCharacteristics;
use stag_rpc::{Chunks, EngineConfig};
use stag_wire::rpcrdma2::{
    Continuation, DirectedPlace, DirectionSet, Elements, Header2, ItemPlace, MessageType, OptionalOperation,
    PlacedItem, RequestTransmission, ResponseTransmission, ResultDirection, option,
};

use crate::ends::Served as Case;
use crate::raw::{Raw, octets, word};
use crate::support::program::{ECHO, PROGRAM, PUT, VERSION};
use crate::support::{ADDRESS, request, small};

/// Octets of the head of the engine's Receives.
const HEAD: usize = 384;
/// The procedure of messages with an operation.
const OPTIONAL: u32 = 5;
const ERROR: u32 = 4;

impl Case {
    /// The client of the test has several credits.
    fn new(world: World) -> Case {
        let server = EngineConfig { inline_threshold: 4096, ..small() };
        Case::spoken(Case::connected(world, server, Vec::new()))
    }

    /// Version 2 is spoken on its connection.
    pub(crate) fn spoken(mut case: Case) -> Case {
        let null = call(7, 0, &[]);
        case.raw.send(&[&octets(&[7, 2, 8, 0, 0, 0, 0, 0])[..], &null].concat(), None);
        case.run(|case| case.raw.messages.len() == 2);
        case.raw.messages.clear();
        // It may send more than it has credits for.
        case.bench.rules_broken = true;
        case
    }
}

/// An RPC Call.
pub(crate) fn call(xid: u32, procedure: u32, arguments: &[u32]) -> Vec<u8> {
    octets(&[&[xid, 0, 2, PROGRAM, VERSION, procedure, 0, 0, 0, 0][..], arguments].concat())
}

/// A message with an operation, and what stands behind it.
pub(crate) fn message(
    operation: &OptionalOperation<'_>,
    direction: MessageType,
    xid: u32,
    payload: &[u8],
) -> Vec<u8> {
    let mut out = vec![0; 2048];
    let (len, _) = operation.emit(&mut out, direction, xid, 8).expect("there is room");
    out.truncate(len);
    out.extend(payload);
    out
}

/// A Call of `PUT` with one item in targets.
fn put(xid: u32, item: PlacedItem<'_>, count: u32, behind: &[u8]) -> Vec<u8> {
    let payload = call(xid, PUT, &[1, item.len]);
    let items = [item];
    let lead = RequestTransmission {
        items: Elements::new(&items),
        directions: Elements::EMPTY,
        count,
        response_receives: 0,
        payload_len: payload.len() as u32,
    };
    let mut message = message(&OptionalOperation::Request(lead), MessageType::Call, xid, &payload);
    message.resize(HEAD, 0);
    message.extend(behind);
    message
}

fn item(len: u32, offset: u32, numbers: &[u32]) -> PlacedItem<'_> {
    // Behind the header of the Call, the count, and the length.
    PlacedItem {
        displacement: 48,
        len,
        place: ItemPlace::Buffers { offset, numbers: Elements::new(numbers) },
    }
}

#[test]
fn items_that_are_not_where_they_are_said_to_be_are_refused() {
    // RTR-5.4-b RTR-7.3-b RTR-X-20
    let mut case = Case::new(World::new(1, FaultPlan::default()));
    let data = [5; 1000];
    for (xid, bad) in (100..).zip([
        item(1000, 0, &[1]),
        item(1000, 0, &[99]),
        item(1000, 5000, &[0]),
        item(2000, 0, &[0]),
        item(1000, 1, &[0]),
        item(5000, 0, &[0]),
        item(1000, 0, &[]),
    ]) {
        let answer = case.answer_to(&put(xid, bad, 1, &data));
        assert_eq!((word(&answer, 0), word(&answer, 3)), (xid, OPTIONAL), "{bad:?}");
        let Ok((header, _)) = Header2::parse(&answer) else { panic!("{answer:?}") };
        let stag_wire::rpcrdma2::Body2::Optional(found) = header.body else { panic!("{header:?}") };
        assert_eq!(found.option, option::XMTERR, "{bad:?}");
    }
    // What is right is served: also into the middle of a target.
    for (xid, good, at) in [(200, item(1000, 0, &[0]), 0), (201, item(992, 8, &[0]), 8)] {
        let answer = case.answer_to(&put(xid, good, 1, &data));
        assert_eq!(answer.len(), 32 + 24 + 8, "{answer:?}");
        let sum = crate::support::program::sum(&data[at..]);
        assert_eq!(answer[56..], octets(&[0, sum]));
    }
    case.close();
}

#[test]
fn groups_that_break_off_are_refused_once() {
    // RTR-4.2-a RTR-X-7 RTR-X-8 RTR-X-12 RTR-X-19
    let mut case = Case::new(World::new(1, FaultPlan::default()));
    let next = |number, xid| {
        let found = Continuation { number, lead_option: option::XMTREQ, payload_len: 8 };
        message(&OptionalOperation::Continuation(found), MessageType::Call, xid, &[0; 8])
    };
    // Another message in the midst: it is served, and the group is not.
    case.raw.send(&put(50, item(4, 0, &[0]), 3, &[1; 4]), None);
    let null = [&octets(&[51, 2, 8, 0, 0, 0, 0, 0])[..], &call(51, 0, &[])].concat();
    case.raw.send(&null, None);
    case.run(|case| case.raw.messages.len() == 2);
    let found: Vec<_> =
        case.raw.messages.drain(..).map(|answer| (word(&answer, 0), word(&answer, 3))).collect();
    assert_eq!(found, [(50, OPTIONAL), (51, 0)]);
    // The wrong number, then the rest of that group; one that belongs to none; more than are taken.
    case.raw.send(&put(60, item(4, 0, &[0]), 3, &[1; 4]), None);
    case.raw.send(&next(2, 60), None);
    case.raw.send(&next(1, 60), None);
    case.run(|case| !case.raw.messages.is_empty());
    case.quiesce();
    assert_eq!(case.raw.messages.drain(..).map(|answer| word(&answer, 0)).collect::<Vec<_>>(), [60]);
    assert_eq!(word(&case.answer_to(&next(1, 61)), 0), 61);
    assert_eq!(word(&case.answer_to(&put(62, item(4, 0, &[0]), 99, &[1; 4])), 0), 62);
    case.quiesce();
    // One that never ends, and with it the connection.
    case.raw.send(&put(70, item(4, 0, &[0]), 2, &[1; 4]), None);
    case.quiesce();
    case.close();
}

#[test]
fn a_message_of_another_version_breaks_a_group_at_once() {
    // RTR-4.2-a
    let mut case = Case::new(World::new(1, FaultPlan::default()));
    let first = [&octets(&[51, 1, 8, 0, 0, 0, 0])[..], &call(51, 0, &[])].concat();
    let unknown = [&octets(&[51, 9, 8, 0, 0, 0, 0])[..], &call(51, 0, &[])].concat();
    for (xid, other, answered) in [(50, first, [1, 0]), (60, unknown, [9, ERROR])] {
        case.raw.send(&put(xid, item(4, 0, &[0]), 3, &[1; 4]), None);
        case.raw.send(&other, None);
        case.run(|case| case.raw.messages.len() == 2);
        let answers: Vec<_> = case.raw.messages.drain(..).collect();
        // ROPT_XMTERR about its first transmission: BADHMT, 5 is expected, and 0 came.
        assert_eq!([0, 1, 3, 5].map(|at| word(&answers[0], at)), [xid, 2, OPTIONAL, option::XMTERR]);
        let len = answers[0].len() / 4;
        assert_eq!([len - 3, len - 2, len - 1].map(|at| word(&answers[0], at)), [1, 5, 0], "{answers:?}");
        assert_eq!([1, 3].map(|at| word(&answers[1], at)), answered);
        // The next message is served as if there had been no group.
        let null = [&octets(&[70, 2, 8, 0, 0, 0, 0, 0])[..], &call(70, 0, &[])].concat();
        assert_eq!(word(&case.answer_to(&null), 3), 0);
    }
    case.quiesce();
    case.close();
}

#[test]
fn results_that_fit_nowhere_are_refused() {
    // RTR-5.2-b RTR-7.4-e RTR-X-2: the client's Receives have no targets, and it says that they have.
    let mut case = Case::new(World::new(1, FaultPlan::default()));
    let payload = call(80, 3, &[7, 1, 5000]);
    let direction = [ResultDirection { min_len: 0, place: DirectedPlace::Buffers }];
    let sets = [DirectionSet { begin: 0, end: 100, items: Elements::new(&direction) }];
    let lead = RequestTransmission {
        items: Elements::EMPTY,
        directions: Elements::new(&sets),
        count: 1,
        response_receives: 0,
        payload_len: payload.len() as u32,
    };
    let answer = case.answer_to(&message(&OptionalOperation::Request(lead), MessageType::Call, 80, &payload));
    assert_eq!((word(&answer, 0), word(&answer, 3)), (80, ERROR));
    case.close();
}

#[test]
fn another_version_is_refused_with_both_that_are_spoken() {
    // V2-5.2-a: also before the first Call of version 2.
    for is_spoken in [true, false] {
        let mut case = Case::new(World::new(1, FaultPlan::default()));
        if !is_spoken {
            case.raw.disconnect();
            case.run(|case| case.raw.closed.is_some());
            case.raw = Raw::new(&case.bench.world);
            case.raw.connect(ADDRESS);
            case.run(|case| case.raw.established);
        }
        for (xid, version) in (90..).zip([0, 3, u32::MAX]) {
            let message = [&octets(&[xid, version, 8, 0, 0, 0, 0, 0])[..], &call(xid, 0, &[])].concat();
            let answer = case.answer_to(&message);
            assert_eq!(answer, octets(&[xid, version, word(&answer, 2), ERROR, 1, 1, 2]), "{version}");
        }
        case.close();
    }
}

/// A message of version 2 that may be anything.
fn anything(random: &mut Random, xid: u32) -> Vec<u8> {
    let numbers = [random.below(4) as u32, random.below(4) as u32];
    let count = 1 + random.below(3) as u32;
    let len = random.below(5000) as u32;
    let direction = if random.below(4) == 0 { MessageType::Reply } else { MessageType::Call };
    let own = OwnCharacteristics {
        layout: match random.below(2) {
            0 => ReceiveLayout::plain(32 + random.below(9000) as u32),
            _ => {
                ReceiveLayout::with_targets(random.below(2000) as u32, 1 + random.below(8) as u32, 4096, 4096)
            }
        },
        send_len_max: 4096,
        request_limit: random.below(9) as u32,
        response_limit: random.below(9) as u32,
        response_receives: 0,
        reverse_support: Default::default(),
    };
    let mut found = match random.below(8) {
        0 => {
            let mut out = vec![0; 512];
            let len = own.emit_initial(8, &mut out).expect("it is short");
            out.truncate(len);
            out
        }
        1 => {
            let next = Continuation { number: count, lead_option: option::XMTREQ, payload_len: len % 64 };
            message(&OptionalOperation::Continuation(next), direction, xid, &[0; 64])
        }
        2 => {
            let response = ResponseTransmission { items: Elements::EMPTY, count, payload_len: 8 };
            message(&OptionalOperation::Response(response), direction, xid, &[0; 64])
        }
        3 => [&octets(&[xid, 2, 8, 0, 0, 0, 0, 0])[..], &call(xid, ECHO, &[4, 9])].concat(),
        4 => {
            let direction = [ResultDirection { min_len: len, place: DirectedPlace::Buffers }];
            let sets = [DirectionSet { begin: 0, end: 1 + len, items: Elements::new(&direction) }];
            let payload = call(xid, 3, &[7, 1, len]);
            let lead = RequestTransmission {
                items: Elements::EMPTY,
                directions: Elements::new(&sets),
                count: 1,
                response_receives: random.below(12) as u32,
                payload_len: payload.len() as u32,
            };
            message(&OptionalOperation::Request(lead), MessageType::Call, xid, &payload)
        }
        _ => {
            let placed = item(len, random.below(6) as u32, &numbers[..1 + random.below(2) as usize]);
            put(xid, placed, count, &vec![3; random.below(3000) as usize])
        }
    };
    for _ in 0..random.below(4) {
        let at = random.below(found.len() as u64) as usize;
        found[at] = random.next_u64() as u8;
    }
    if random.below(8) == 0 {
        found.truncate(random.below(found.len() as u64 + 1) as usize);
    }
    found
}

#[test]
fn any_messages_end_a_connection_at_worst() {
    sweep("any_messages_end_a_connection_at_worst", 0..60, |seed| {
        let mut random = Random::new(seed);
        let mut case = Case::new(World::new(seed, FaultPlan::default()));
        for turn in 0..40 {
            let found = anything(&mut random, 1000 + turn / 2);
            if found.is_empty() || !case.raw.send(&found, None) {
                break;
            }
            (0..random.below(6)).for_each(|_| {
                case.pass();
            });
            if case.raw.closed.is_some() {
                break;
            }
        }
        case.quiesce();
        case.bench.check_alive(0);
        let call = case.bench.begin(0, request(ECHO), Chunks::default(), |writer| writer.opaque(b"still"));
        assert!(call.is_ok());
        case.quiesce();
        case.close();
    });
}
