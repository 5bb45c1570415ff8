//! What a peer tells of its Receives: short ones, long ones, and divided ones that are not as ours.

use stag_fabric::sim::{FaultPlan, World};
use stag_rpc::EngineConfig;
use stag_wire::rpcrdma::Segment;
use stag_wire::rpcrdma2::{
    Body2, Continuation, DirectedPlace, DirectionSet, Elements, Header2, ItemPlace, MessageType,
    OptionalOperation, PlacedItem, RequestTransmission, ResponseTransmission, ResultDirection, option,
};

use crate::ends::Served as Case;
use crate::hostile::{call, message};
use crate::raw::{Raw, octets, word};
use crate::support::program::{BIG, ECHO, GET_ONE, ONCE, PUT, pattern, sum};
use crate::support::{ADDRESS, small};

/// Procedures of messages.
const ERROR: u32 = 4;
const OPTIONAL: u32 = 5;
/// RDMA2_ERR_BAD_HEADER.
const BAD_HEADER: u32 = 2;
/// Numbers of characteristics.
const SIZE: u32 = 1;
const STRUCTURE: u32 = 5;
/// Numbers of operations.
const INITXCH: u32 = 1;
const UPDXCH: u32 = 4;

impl Case {
    /// The client of the test posts Receives of `len` octets.
    fn receiving(len: u32) -> Case {
        let server = EngineConfig { inline_threshold: 4096, ..small() };
        let mut case = Case::connected(World::new(1, FaultPlan::default()), server, Vec::new());
        case.raw.disconnect();
        case.run(|case| case.raw.closed.is_some());
        case.raw = Raw::new(&case.bench.world);
        case.raw.resize_receives(len);
        case.raw.connect(ADDRESS);
        case.run(|case| case.raw.established);
        Case::spoken(case)
    }

    /// Tells characteristics, and goes on when they are taken in.
    #[track_caller]
    fn tell(&mut self, told: &[u8]) {
        assert!(self.raw.send(told, None));
        self.quiesce();
        assert!(self.raw.messages.is_empty(), "characteristics are not answered");
    }

    fn counted(&mut self) -> u32 {
        self.bench.server.engine.services_mut().0.counted
    }

    /// Sends a Call, and returns its Reply, however many Sends that has.
    #[track_caller]
    fn reply_to(&mut self, message: &[u8]) -> Whole {
        assert!(self.raw.send(message, None));
        self.quiesce();
        Whole::of(std::mem::take(&mut self.raw.messages))
    }
}

/// A Reply.
#[derive(Debug)]
struct Whole {
    sends: Vec<Vec<u8>>,
    payload: Vec<u8>,
    /// What became of each direction: offset and numbers of the targets of its item, and the octets of that; `None`: there is none.
    items: Vec<Option<(u32, Vec<u32>, u32)>>,
}

impl Whole {
    #[track_caller]
    fn of(sends: Vec<Vec<u8>>) -> Whole {
        let (mut payload, mut found_items) = (Vec::new(), Vec::new());
        let mut left = 1;
        for (index, send) in sends.iter().enumerate() {
            let (header, rest) = Header2::parse(send).expect("a header");
            left -= 1;
            let len = match header.body {
                Body2::Message(..) => rest.len(),
                Body2::Optional(found) => match OptionalOperation::parse(&found).expect("an operation") {
                    OptionalOperation::Response(ResponseTransmission { items, count, payload_len }) => {
                        assert_eq!(index, 0);
                        left = count - 1;
                        found_items.extend(items.iter().map(|item| match item.place {
                            ItemPlace::Buffers { offset, numbers } => {
                                Some((offset, numbers.iter().collect(), item.len))
                            }
                            ItemPlace::NoItem => None,
                            place => panic!("{place:?}"),
                        }));
                        payload_len as usize
                    }
                    OptionalOperation::Continuation(next) => {
                        assert_eq!(next.number as usize, index);
                        next.payload_len as usize
                    }
                    other => panic!("{other:?}"),
                },
                Body2::Error(code) => panic!("{code:?}"),
                Body2::Long(..) => panic!("a long Reply"),
            };
            payload.extend_from_slice(&rest[..len]);
        }
        assert_eq!(left, 0, "{} Sends", sends.len());
        Whole { sends, payload, items: found_items }
    }

    /// The octets of the item. `targets`: where each target of a Receive starts, and its octets.
    #[track_caller]
    fn data(&self, targets: &[(usize, usize)]) -> Vec<u8> {
        let (offset, numbers, len) = self.items.iter().flatten().next().cloned().expect("an item");
        let (mut data, mut offset) = (Vec::new(), offset as usize);
        for number in numbers {
            let (send, target) = (number as usize / targets.len(), number as usize % targets.len());
            let (start, target_len) = targets[target];
            let here = (target_len - offset).min(len as usize - data.len());
            data.extend_from_slice(&self.sends[send][start + offset..][..here]);
            offset = 0;
        }
        assert_eq!(data.len(), len as usize);
        data
    }
}

/// The words of a structure: of each group the parts, their octets, and whether they are targets.
fn structure(groups: &[(u32, u32, bool)]) -> Vec<u32> {
    let len = groups.iter().map(|(count, len, _)| count * len).sum();
    let mut words = vec![len, groups.len() as u32];
    for (count, len, is_target) in groups {
        words.extend([*count, *len, 0, u32::from(*is_target)]);
    }
    words
}

/// ROPT_INITXCH, or ROPT_UPDXCH, with one characteristic.
fn told(option: u32, id: u32, value: &[u32]) -> Vec<u8> {
    let mut info = if option == INITXCH { vec![1] } else { vec![] };
    info.extend([id, 4 * value.len() as u32]);
    info.extend(value);
    info.push(0);
    octets(&[&[77, 2, 8, OPTIONAL, 0, option, 4 * info.len() as u32][..], &info].concat())
}

/// A Call as a base message without chunks.
fn base(payload: &[u8]) -> Vec<u8> {
    let xid = word(payload, 0);
    [&octets(&[xid, 2, 8, 0, 0, 0, 0, 0])[..], payload].concat()
}

/// A Call as a group of one transmission, with a direction to targets for each of these ranges.
fn group(payload: &[u8], ranges: &[(u32, u32)], receives: u32) -> Vec<u8> {
    let direction = [ResultDirection { min_len: 0, place: DirectedPlace::Buffers }];
    let sets: Vec<_> = ranges
        .iter()
        .map(|(begin, end)| DirectionSet { begin: *begin, end: *end, items: Elements::new(&direction) })
        .collect();
    let lead = RequestTransmission {
        items: Elements::EMPTY,
        directions: Elements::new(&sets),
        count: 1,
        response_receives: receives,
        payload_len: payload.len() as u32,
    };
    message(&OptionalOperation::Request(lead), MessageType::Call, word(payload, 0), payload)
}

/// A Call of [`ONCE`] without a delay.
fn once(xid: u32) -> Vec<u8> {
    call(xid, ONCE, &[0, 0, 0])
}

fn echo(xid: u32, len: u32) -> Vec<u8> {
    call(xid, ECHO, &[&[len][..], &vec![7; len as usize / 4]].concat())
}

fn get(xid: u32, len: u32) -> Vec<u8> {
    call(xid, GET_ONE, &[7, 1, len])
}

#[track_caller]
fn is_bad_header(answer: &[u8], xid: u32) {
    assert_eq!(
        (answer.len(), word(answer, 0), word(answer, 3), word(answer, 4)),
        (20, xid, ERROR, BAD_HEADER),
        "{answer:?}"
    );
}

#[test]
fn a_structure_shorter_than_any_message_is_refused() {
    // XC-X-3
    let mut case = Case::receiving(4096);
    for len in [0, 4, 28, 31] {
        for option in [INITXCH, UPDXCH] {
            let value = if len == 0 { vec![0, 0] } else { structure(&[(1, len, false)]) };
            is_bad_header(&case.answer_to(&told(option, STRUCTURE, &value)), 77);
            // Nothing of it counts.
            let answer = case.answer_to(&base(&echo(5, 100)));
            assert_eq!(answer.len(), 32 + 24 + 4 + 100, "{len}");
        }
    }
    case.close();
}

#[test]
fn a_call_whose_smallest_reply_does_not_fit_is_not_executed() {
    // XC-X-5
    for len in [32, 36, 40, 55, 56, 63, 64, 96] {
        for (id, value) in [(SIZE, vec![len]), (STRUCTURE, structure(&[(1, len, false)]))] {
            let mut case = Case::receiving(1024);
            case.tell(&told(UPDXCH, id, &value));
            let before = case.counted();
            let directed = [(0, u32::MAX)];
            for (xid, message) in (10..).zip([
                base(&once(10)),
                group(&once(11), &[], 0),
                group(&once(12), &directed, 0),
                base(&once(13)),
            ]) {
                is_bad_header(&case.answer_to(&message), xid);
                assert_eq!(case.counted(), before, "{len} octets, {xid}");
            }
            // What does no harm is answered if that fits.
            let answer = case.answer_to(&base(&call(20, 0, &[])));
            assert_eq!(answer.len(), if len < 56 { 20 } else { 56 }, "{len}");
            let answer = case.answer_to(&base(&echo(21, 12)));
            assert_eq!(answer.len(), if len < 72 { 20 } else { 72 }, "{len}");
            // An error of a group is no longer than they are.
            let answer = case.answer_to(&octets(&[30, 2, 8, OPTIONAL, 0, 7, 12, 1, 5, 0]));
            assert!(word(&answer, 0) == 30 && answer.len() as u32 <= len, "{answer:?}");
            case.close();
        }
    }
}

#[test]
fn what_is_told_counts_for_the_call_right_behind_it() {
    // XC-X-5 XC-j: however the two of them arrive.
    for passes in [0, 1, 2, 40] {
        for (size, len, expected) in [(256, 100, 160), (256, 300, 20), (128, 100, 20), (3000, 900, 960)] {
            for value in [vec![size], structure(&[(1, size, false)])] {
                let id = if value.len() == 1 { SIZE } else { STRUCTURE };
                let mut case = Case::receiving(4096);
                for round in 0..3 {
                    let xid = 40 + round;
                    case.raw.send(&told(UPDXCH, id, &value), None);
                    for _ in 0..passes {
                        case.pass();
                    }
                    let answer = case.answer_to(&base(&echo(xid, len)));
                    assert_eq!((word(&answer, 0), answer.len()), (xid, expected), "{size} {len} {passes}");
                }
                case.close();
            }
        }
    }
}

#[test]
fn a_head_may_be_longer_than_what_is_built_where_a_call_arrived() {
    // RTR-7.3-b
    for head in [1024, 1032, 2000, 4096] {
        let mut case = Case::receiving(13 * 1024);
        case.tell(&told(UPDXCH, STRUCTURE, &structure(&[(1, head, false), (2, 4096, true)])));
        for (xid, len) in (50..).zip([1, 100, 4096, 8192]) {
            let reply = case.reply_to(&group(&get(xid, len), &[(0, u32::MAX)], 0));
            let targets = [(head as usize, 4096), (head as usize + 4096, 4096)];
            assert_eq!(reply.data(&targets), pattern(7, len as usize), "{head} {len}");
        }
        case.close();
    }
}

#[test]
fn base_replies_are_as_long_as_the_client_told() {
    // V2-5.1-a: whatever its private data said.
    let mut case = Case::receiving(9 * 1024);
    for (size, fits, too_long) in [(8192, 8132, 8136), (1024, 964, 968), (4096, 4036, 4040)] {
        case.tell(&told(UPDXCH, SIZE, &[size]));
        for (xid, procedure) in (60..).zip([GET_ONE, BIG]) {
            let arguments = |len| if procedure == GET_ONE { vec![7, 1, len] } else { vec![7, len] };
            for len in [100, 900, fits] {
                let reply = case.reply_to(&base(&call(xid, procedure, &arguments(len))));
                assert_eq!(reply.payload[28..], pattern(7, len as usize), "{size} {len}");
            }
            is_bad_header(&case.answer_to(&base(&call(xid, procedure, &arguments(too_long)))), xid);
        }
    }
    case.close();
}

#[test]
fn a_reply_that_does_not_fit_what_the_client_told_goes_into_its_reply_chunk() {
    // V2-5.1-a: also if a buffer of ours would hold it.
    let mut case = Case::receiving(4096);
    case.tell(&told(UPDXCH, SIZE, &[1024]));
    let [_, chunk] = case.raw.expose(8192).expect("memory");
    for (xid, len) in (70..).zip([100, 2000, 6000]) {
        let head = octets(&[xid, 2, 8, 0, 0, 0, 0, 1, 1, chunk.handle.0, 8192]);
        let payload = call(xid, BIG, &[7, len]);
        let message = [&head[..], &chunk.offset.to_be_bytes(), &payload].concat();
        let before = case.bench.server.engine.statistics().write_bytes;
        let answer = case.answer_to(&message);
        let written = case.bench.server.engine.statistics().write_bytes - before;
        let is_long = len > 1000;
        assert_eq!((word(&answer, 0), word(&answer, 3)), (xid, u32::from(is_long)), "{len}");
        assert_eq!(written, if is_long { u64::from(len) + 28 } else { 0 }, "{len}");
    }
    case.close();
}

#[test]
fn a_reply_that_fits_no_single_receive_is_continued_whatever_holds_it() {
    // RTR-4.3-c RTR-5.2-b
    let mut case = Case::receiving(4096);
    for size in [1024, 2048] {
        case.tell(&told(UPDXCH, STRUCTURE, &structure(&[(1, size, false)])));
        for (xid, len) in (80..).zip([700, 1000, 1500, 2000, 3000, 3900, 4100, 6000]) {
            let reply = case.reply_to(&group(&get(xid, len), &[], 8));
            assert_eq!(reply.payload[28..], pattern(7, len as usize), "{size} {len}");
            assert!(reply.sends.iter().all(|send| send.len() as u32 <= size), "{size} {len}");
        }
    }
    case.close();
}

#[test]
fn ranges_of_directions_are_places_in_the_call() {
    // RTR-7.4-a RTR-7.4-d RTR-X-22: the arguments begin at 40.
    let mut case = Case::receiving(9 * 1024);
    case.tell(&told(UPDXCH, STRUCTURE, &structure(&[(1, 384, false), (2, 4096, true)])));
    let targets = [(384, 4096), (384 + 4096, 4096)];
    for (xid, (ranges, directed)) in (90..).zip([
        (&[(0, 8)][..], None),
        (&[(0, 40)], None),
        (&[(2000, 4096)], None),
        (&[(41, 4096)], None),
        (&[(0, 41)], Some(0)),
        (&[(40, 41)], Some(0)),
        (&[(40, u32::MAX)], Some(0)),
        (&[(0, 40), (40, 200)], Some(1)),
        (&[(0, 8), (8, 40), (2000, 3000)], None),
        (&[(0, 50), (50, 200)], Some(0)),
    ]) {
        let reply = case.reply_to(&group(&get(xid, 300), ranges, 0));
        let found: Vec<bool> = reply.items.iter().map(Option::is_some).collect();
        let expected: Vec<bool> = (0..ranges.len()).map(|index| directed == Some(index)).collect();
        assert_eq!(found, expected, "{ranges:?}");
        match directed {
            Some(_) => assert_eq!(reply.data(&targets), pattern(7, 300)),
            None => assert_eq!(reply.payload[28..], pattern(7, 300)),
        }
    }
    case.close();
}

#[test]
fn results_go_into_receives_that_are_not_as_ours() {
    // RTR-X-24 RTR-5.3-a
    let (head, target) = (|len| (1, len, false), |count, len| (count, len, true));
    for (groups, receives, fit, too_long) in [
        (vec![head(1024), target(1, 65_536)], 0, &[1, 40_000, 64_896][..], &[64_897, 65_536][..]),
        (vec![target(1, 4096), head(512)], 0, &[1, 1000, 3900], &[4096]),
        (vec![target(2, 4096)], 0, &[1, 3000, 4000, 4096, 7900], &[8192]),
        (vec![head(64), target(2, 4096)], 0, &[1, 4096, 7900], &[8192]),
        (vec![head(64), target(2, 4096)], 2, &[1, 4096, 7900, 8192, 16_000], &[40_000]),
        (vec![head(1024), target(32, 4096)], 0, &[1, 61_440], &[61_441]),
        (vec![head(1024), target(32, 4096)], 3, &[61_441, 100_000, 200_000], &[]),
    ] {
        let mut case = Case::receiving(65 * 1024);
        case.tell(&told(UPDXCH, STRUCTURE, &structure(&groups)));
        let (mut targets, mut at) = (Vec::new(), 0);
        for (count, len, is_target) in &groups {
            for _ in 0..*count {
                targets.extend(is_target.then_some((at, *len as usize)));
                at += *len as usize;
            }
        }
        for (xid, len) in (200..).zip(fit) {
            let reply = case.reply_to(&group(&get(xid, *len), &[(0, u32::MAX)], receives));
            assert_eq!(reply.data(&targets), pattern(7, *len as usize), "{groups:?} {len}");
            assert!(reply.sends.iter().all(|send| send.len() <= at.min(65_920)), "{groups:?} {len}");
        }
        for (xid, len) in (300..).zip(too_long) {
            is_bad_header(&case.answer_to(&group(&get(xid, *len), &[(0, u32::MAX)], receives)), xid);
        }
        case.close();
    }
}

#[test]
fn data_of_a_group_may_be_read_by_rdma() {
    // RTR-7.3-c RTR-X-25
    let mut case = Case::receiving(9 * 1024);
    for (xid, (len, count, is_directed)) in
        (400..).zip([(100, 1, false), (5000, 1, false), (5000, 2, false), (5000, 3, false), (100, 1, true)])
    {
        let exposed = case.raw.expose_filled(len, 9).expect("memory");
        let (first, rest) =
            (Segment { handle: exposed.handle.0, length: 60, offset: exposed.offset }, len - 60);
        let next = Segment { length: rest as u32, offset: exposed.offset + 60, ..first };
        let segments = [first, next];
        let place = ItemPlace::Explicit(Elements::new(&segments));
        let items = [PlacedItem { displacement: 48, len: len as u32, place }];
        let direction = [ResultDirection { min_len: 0, place: DirectedPlace::Buffers }];
        let sets = [DirectionSet { begin: 0, end: u32::MAX, items: Elements::new(&direction) }];
        let payload = call(xid, PUT, &[1, len as u32]);
        let parts: Vec<&[u8]> =
            payload.chunks(payload.len().div_ceil(count as usize).next_multiple_of(4)).collect();
        let lead = RequestTransmission {
            items: Elements::new(&items),
            directions: Elements::new(if is_directed { &sets } else { &[] }),
            count,
            response_receives: 0,
            payload_len: parts[0].len() as u32,
        };
        case.raw.send(&message(&OptionalOperation::Request(lead), MessageType::Call, xid, parts[0]), None);
        for (number, part) in (1..).zip(&parts[1..]) {
            let payload_len = part.len() as u32;
            let next = Continuation { number, lead_option: option::XMTREQ, payload_len };
            case.raw
                .send(&message(&OptionalOperation::Continuation(next), MessageType::Call, xid, part), None);
        }
        case.quiesce();
        let answers = std::mem::take(&mut case.raw.messages);
        if is_directed {
            is_bad_header(&answers[0], xid);
            continue;
        }
        let reply = Whole::of(answers);
        assert_eq!(reply.payload[24..], octets(&[0, sum(&vec![9; len])]), "{len} octets, {count} Sends");
    }
    case.close();
}
