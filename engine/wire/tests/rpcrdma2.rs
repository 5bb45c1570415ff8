//! Headers and operations of version 2, rule by rule.

use stag_wire::rpcrdma::{self, HeaderLists, MessageKind, ReadSegment, Segment};
use stag_wire::rpcrdma2::*;
use stag_wire::xdr::{self, Overflow};

mod support;
use support::{octets, vector};

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn segment(handle: u32, length: u32, offset: u64) -> Segment {
    Segment { handle, length, offset }
}

fn refused(message: &[u8]) -> Refused2 {
    Header2::parse(message).map(|(header, _)| header.xid).unwrap_err()
}

/// The operation in a message, and what follows.
fn operation(message: &[u8]) -> (OptionMessage<'_>, OptionalOperation<'_>, &[u8]) {
    let (header, rest) = Header2::parse(message).unwrap();
    let Body2::Optional(option) = header.body else { panic!("{header:?}") };
    let operation = OptionalOperation::parse(&option).unwrap();
    assert_eq!((option.xid, option.credits), (header.xid, header.credits));
    (option, operation, rest)
}

fn emit(operation: &OptionalOperation<'_>, direction: MessageType, xid: u32, credits: u32) -> Vec<u8> {
    let mut buf = [0xff; 2048];
    let (len, rest) = operation.emit(&mut buf, direction, xid, credits).unwrap();
    assert_eq!(rest.len(), 2048 - len);
    for room in 0..len {
        let cut = operation.emit(&mut [0; 2048][..room], direction, xid, credits).map(|(len, _)| len);
        assert_eq!(cut, Err(Overflow), "{room} octets of {len}");
    }
    buf[..len].to_vec()
}

/// `example` is this operation of a Call or Reply, and nothing else; and it is emitted as it is.
fn assert_example(example: &[u8], direction: MessageType, xid: u32, expected: &OptionalOperation<'_>) {
    let (message, found, rest) = operation(example);
    assert_eq!((message.direction, message.xid, message.credits), (direction, xid, 16));
    assert_eq!(&found, expected);
    assert_eq!(rest, []);
    assert_eq!(emit(expected, direction, xid, 16), example);
    assert_eq!(emit(&found, direction, xid, 16), example, "as it was read");
    let mut buf = [0xff; 200];
    let (len, _) = message.emit(&mut buf).unwrap();
    assert_eq!(buf[..len], *example, "by its octets");
    for len in 16..example.len() {
        let refused = refused(&example[..len]);
        let answer =
            if len < 28 || direction == MessageType::Reply { Answer2::Drop } else { Answer2::BadHeader };
        assert_eq!(refused.answer, answer, "cut to {len}");
    }
}

#[test]
fn every_example_of_the_rules_has_its_vector() {
    let vectors = [
        ("v2-msg", include_str!("vectors/v2-msg.txt")),
        ("v2-initxch", include_str!("vectors/v2-initxch.txt")),
        ("v2-inval-option", include_str!("vectors/v2-inval-option.txt")),
        ("v2-xmtreq-explicit", include_str!("vectors/v2-xmtreq-explicit.txt")),
        ("v2-xmtreq-group", include_str!("vectors/v2-xmtreq-group.txt")),
        ("v2-xmtcont", include_str!("vectors/v2-xmtcont.txt")),
        ("v2-xmtresp", include_str!("vectors/v2-xmtresp.txt")),
        ("v2-xmterr", include_str!("vectors/v2-xmterr.txt")),
        ("exposed-reply", include_str!("vectors/exposed-reply.txt")),
        ("done", include_str!("vectors/done.txt")),
        ("private-data-reliable-reply", include_str!("vectors/private-data-reliable-reply.txt")),
    ];
    let rules = [
        include_str!("../../spec/rpcrdma-v2-base.md"),
        include_str!("../../spec/rtrext.md"),
        include_str!("../../spec/reliable-reply.md"),
        include_str!("../../spec/bidirectional-8167.md"),
    ];
    let examples = rules.iter().flat_map(|text| text.split("```\noff ").skip(1));
    let mut found = 0;
    for example in examples {
        let (example, _) = example.split_once("```").expect("the block ends");
        let example = octets(&format!("off {example}"));
        assert!(vectors.iter().any(|(_, text)| octets(text) == example), "{example:02x?}");
        found += 1;
    }
    assert_eq!(found, vectors.len());
}

#[test]
fn a_message_without_chunks() {
    // V2-3.2-a
    let example = vector!("v2-msg");
    let (header, rest) = Header2::parse(&example).unwrap();
    assert_eq!((header.xid, header.version, header.credits), (0xb000_0002, 2, 16));
    assert_eq!(header.direction(), MessageType::Call);
    let Body2::Message(MessageType::Call, lists) = header.body else { panic!("{header:?}") };
    assert!(lists.is_empty());
    assert_eq!(rest, []);
    let mut buf = [0xff; 40];
    let (len, _) =
        start(&mut buf, MessageKind::Msg, MessageType::Call, 0xb000_0002, 16).unwrap().finish().unwrap();
    assert_eq!(len, HEADER_LEN_MIN);
    assert_eq!(buf[..len], example);
}

#[test]
fn initial_characteristics() {
    // XC-c
    let values = [
        CharacteristicValue::ReceiveSize(8192),
        CharacteristicValue::TransmissionSupport(
            transmission_support::REQUEST
                | transmission_support::RESPONSE
                | transmission_support::CONTINUATION,
        ),
        CharacteristicValue::RequestLimit(4),
        CharacteristicValue::ResponseLimit(4),
    ];
    let expected = OptionalOperation::Initial(InitialCharacteristics {
        values: Elements::new(&values),
        unchanging: PositionSet(Elements::new(&[0xf])),
    });
    assert_example(&vector!("v2-initxch"), MessageType::Call, 0, &expected);
}

#[test]
fn an_unknown_operation_is_answered() {
    // V2-4.2.3-a XC-a V2-4.2.2-c V2-X-5 RTR-5.1-a
    let example = vector!("v2-inval-option");
    let (header, _) = Header2::parse(&example).unwrap();
    assert!(matches!(header.body, Body2::Error(ErrorCode2::InvalidOption)));
    assert_eq!(header.direction(), MessageType::Reply, "V2-4.2.2-c");
    let mut buf = [0xff; 20];
    assert_eq!(emit_error(&mut buf, 0xb000_0001, 2, 16, ErrorCode2::InvalidOption), Ok(20));
    assert_eq!(buf[..], example);
    assert_eq!(emit_error(&mut buf[..19], 0, 2, 16, ErrorCode2::InvalidOption), Err(Overflow));

    for (direction, answer) in [(0, Answer2::InvalidOption), (1, Answer2::Drop)] {
        for option in [0, 9, u32::MAX] {
            let message = words(&[7, 2, 1, 5, direction, option, 0]);
            let (header, _) = Header2::parse(&message).unwrap();
            let Body2::Optional(message) = header.body else { panic!("{header:?}") };
            let error = OptionalOperation::parse(&message).unwrap_err();
            assert_eq!(error, Refused2 { error: Error2::UnknownOption(option), answer }, "V2-X-5");
        }
    }
}

#[test]
fn a_request_with_an_item_in_registered_memory() {
    // RTR-9.2-a RTR-7.3-c RTR-7.3-a
    let segments = [segment(0xc101, 6001, 0x7f00_0000_1000)];
    let item =
        PlacedItem { displacement: 96, len: 6001, place: ItemPlace::Explicit(Elements::new(&segments)) };
    let items = [item];
    let expected = OptionalOperation::Request(RequestTransmission {
        items: Elements::new(&items),
        directions: Elements::EMPTY,
        count: 1,
        response_receives: 0,
        payload_len: 96,
    });
    assert_eq!(expected.payload_len(), Some(96));
    assert_example(&vector!("v2-xmtreq-explicit"), MessageType::Call, 0xb000_0003, &expected);
}

#[test]
fn a_request_of_two_transmissions_with_a_direction() {
    // RTR-7.4-a
    let segments = [segment(0xd101, 65_536, 0x7f00_0002_0000)];
    let place = DirectedPlace::BySize { threshold: 4096, segments: Elements::new(&segments) };
    let items = [ResultDirection { min_len: 512, place }];
    let set = DirectionSet { begin: 0, end: 5000, items: Elements::new(&items) };
    let sets = [set];
    let expected = OptionalOperation::Request(RequestTransmission {
        items: Elements::EMPTY,
        directions: Elements::new(&sets),
        count: 2,
        response_receives: 1,
        payload_len: 3968,
    });
    assert_example(&vector!("v2-xmtreq-group"), MessageType::Call, 0xb000_0004, &expected);
}

#[test]
fn a_continuation() {
    // RTR-9.4-a RTR-X-4 RTR-X-5
    let continuation = Continuation { number: 1, lead_option: option::XMTREQ, payload_len: 1032 };
    let expected = OptionalOperation::Continuation(continuation);
    assert_example(&vector!("v2-xmtcont"), MessageType::Call, 0xb000_0004, &expected);
}

#[test]
fn a_response_with_an_item_in_a_target_segment() {
    // RTR-9.3-a RTR-7.3-b
    let place = ItemPlace::Buffers { offset: 0, numbers: Elements::new(&[0]) };
    let item = PlacedItem { displacement: 24, len: 3000, place };
    let items = [item];
    let expected = OptionalOperation::Response(ResponseTransmission {
        items: Elements::new(&items),
        count: 1,
        payload_len: 24,
    });
    assert_example(&vector!("v2-xmtresp"), MessageType::Reply, 0xb000_0005, &expected);
}

#[test]
fn a_transmission_error() {
    // RTR-9.5-a
    let id = |number| TransmissionId { xid: 0xb000_0004, direction: MessageType::Call, number };
    let expected = OptionalOperation::Error(TransmissionError {
        bad: id(2),
        lead: Some(id(0)),
        fault: GroupFault::Number { expected: 1, found: 2 },
    });
    assert_example(&vector!("v2-xmterr"), MessageType::Reply, 0xb000_0004, &expected);
}

#[test]
fn every_transmission_error_reads_as_it_was_written() {
    // RTR-9.5-a RTR-9.5-b RTR-X-17
    let (expected, found, value, min, max) = (1, 2, 3, 4, 5);
    let faults = [
        GroupFault::Procedure { expected, found },
        GroupFault::Option { expected, found },
        GroupFault::NoGroup,
        GroupFault::Number { expected, found },
        GroupFault::Xid { expected, found },
        GroupFault::Offset { value, min, max },
        GroupFault::Target { value, min, max },
        GroupFault::PayloadLength { value, min, max },
    ];
    for (fault, number) in faults.into_iter().zip(1..) {
        assert_eq!(fault.number(), number);
        for direction in [MessageType::Call, MessageType::Reply] {
            for lead in [None, Some(TransmissionId { xid: 8, direction, number: 0 })] {
                let bad = TransmissionId { xid: 7, direction, number: 3 };
                let error = OptionalOperation::Error(TransmissionError { bad, lead, fault });
                let octets = emit(&error, direction.opposite(), 7, 1);
                assert_eq!(operation(&octets).1, error);
                // RTR-X-17: in the other direction it is dropped.
                let octets = emit(&error, direction, 7, 1);
                let (header, _) = Header2::parse(&octets).unwrap();
                let Body2::Optional(message) = header.body else { panic!() };
                let refused = OptionalOperation::parse(&message).unwrap_err();
                assert_eq!(refused.answer, Answer2::Drop);
            }
        }
    }
}

/// Parses an operation by its words.
fn parse_words(direction: u32, option: u32, info: &[u32]) -> Result<(), Refused2> {
    let mut message = words(&[7, 2, 1, 5, direction, option, 4 * info.len() as u32]);
    message.extend(words(info));
    let (header, _) = Header2::parse(&message).unwrap();
    let Body2::Optional(message) = header.body else { panic!("{header:?}") };
    OptionalOperation::parse(&message).map(|_| ())
}

fn bad_header(error: Error2) -> Result<(), Refused2> {
    Err(Refused2 { error, answer: Answer2::BadHeader })
}

#[test]
fn characteristics_of_other_types_or_lengths_are_refused() {
    // XC-h XC-X-3 XC-g XC-k
    let initial = |id: u32, data: &[u32]| {
        let head = [1, id, 4 * data.len() as u32];
        parse_words(0, option::INITXCH, &[&head, data, &[0]].concat())
    };
    for (id, good) in [(1, &[4096][..]), (2, &[1]), (3, &[3]), (4, &[7]), (6, &[0]), (7, &[9])] {
        assert_eq!(initial(id, good), Ok(()));
        assert_eq!(initial(id, &[]), bad_header(Error2::Xdr(xdr::XdrError::Truncated)), "{id}");
        let longer = [good, &[0]].concat();
        assert_eq!(initial(id, &longer), bad_header(Error2::Xdr(xdr::XdrError::TrailingOctets)), "{id}");
    }
    assert_eq!(initial(2, &[2]), bad_header(Error2::Xdr(xdr::XdrError::BadBool(2))));
    assert_eq!(initial(3, &[4]), bad_header(Error2::Xdr(xdr::XdrError::BadDiscriminant(4))));
    assert_eq!(initial(1, &[31]), bad_header(Error2::CharacteristicValue(1)));
    assert_eq!(initial(1, &[32]), Ok(()));
    // XC-g, XC-k: others are skipped, whatever they hold.
    for id in [0, 8, 4_294_967_040, u32::MAX] {
        assert_eq!(initial(id, &[1, 2, 3]), Ok(()));
        assert_eq!(initial(id, &[]), Ok(()));
    }
    // Data beyond the message.
    let error = parse_words(0, option::INITXCH, &[1, 99, 5, 0]);
    assert_eq!(error, bad_header(Error2::Xdr(xdr::XdrError::Truncated)));
    // The same in a request and in an update.
    assert_eq!(parse_words(0, option::REQXCH, &[1, 1, 4, 4096]), Ok(()));
    assert_eq!(parse_words(0, option::REQXCH, &[1, 1, 4, 1]), bad_header(Error2::CharacteristicValue(1)));
    assert_eq!(parse_words(0, option::UPDXCH, &[1, 4, 4096, 1]), Ok(()));
    assert_eq!(parse_words(0, option::UPDXCH, &[1, 4, 1, 0]), bad_header(Error2::CharacteristicValue(1)));
    let error = bad_header(Error2::Xdr(xdr::XdrError::BadBool(2)));
    assert_eq!(parse_words(0, option::UPDXCH, &[1, 4, 4096, 2]), error);
}

#[test]
fn a_position_set_is_indexed_by_position() {
    // XC-b
    let set = PositionSet(Elements::new(&[0x8000_0001, 0x2]));
    let members: Vec<usize> = (0..100).filter(|position| set.contains(*position)).collect();
    assert_eq!(members, [0, 31, 33]);
    assert!(!PositionSet(Elements::EMPTY).contains(0));
    let answer = OptionalOperation::Answer(CharacteristicResponse {
        done: PositionSet(Elements::new(&[1])),
        rejected: set,
        pending: PositionSet(Elements::EMPTY),
    });
    let octets = emit(&answer, MessageType::Reply, 9, 1);
    assert_eq!(operation(&octets).1, answer);
}

#[test]
fn operations_go_in_their_direction() {
    // XC-X-4 RTR-9.2-a RTR-9.3-a V2-4.2.2-d
    let start = [0, 1, 8];
    let cases: [(u32, &[u32], [bool; 2]); 7] = [
        (option::INITXCH, &[0, 0], [true, true]),
        (option::REQXCH, &[0], [true, false]),
        (option::RESPXCH, &[0, 0, 0], [false, true]),
        (option::UPDXCH, &[6, 4, 1, 0], [true, true]),
        (option::XMTREQ, &[0, 0, 1, 0, 8], [true, false]),
        (option::XMTRESP, &start, [false, true]),
        (option::XMTCONT, &[1, 5, 0], [true, true]),
    ];
    for (option, info, allowed) in cases {
        for (direction, is_allowed) in (0..).zip(allowed) {
            let found = parse_words(direction, option, info);
            let error = Error2::OperationDirection(option);
            let answer = if direction == 0 { Answer2::BadHeader } else { Answer2::Drop };
            let expected = if is_allowed { Ok(()) } else { Err(Refused2 { error, answer }) };
            assert_eq!(found, expected, "operation {option} in direction {direction}");
        }
    }
}

#[test]
fn a_receive_is_as_long_as_its_parts() {
    // RTR-7.2-a RTR-7.2-c RTR-7.2-b
    let group = |count, len, is_target| BufferGroup { count, len, align: 4096, is_target };
    let groups = [group(1, 512, false), group(3, 4096, true), group(2, 100, false), group(1, 8, true)];
    let structure = BufferStructure { len: 512 + 3 * 4096 + 200 + 8, groups: Elements::new(&groups) };
    assert_eq!(structure.target_count(), 4);
    let targets: Vec<_> = (0..5).map(|number| structure.target(number)).collect();
    let last = 512 + 3 * 4096 + 200;
    assert_eq!(targets, [Some((512, 4096)), Some((4608, 4096)), Some((8704, 4096)), Some((last, 8)), None]);

    let values = [CharacteristicValue::BufferStructure(structure)];
    let initial = OptionalOperation::Initial(InitialCharacteristics {
        values: Elements::new(&values),
        unchanging: PositionSet(Elements::EMPTY),
    });
    let octets = emit(&initial, MessageType::Call, 0, 1);
    assert_eq!(operation(&octets).1, initial);

    let parse = |len: u32, groups: &[u32]| {
        let count = groups.len() as u32 / 4;
        let head = [1, 5, 8 + 4 * groups.len() as u32, len, count];
        parse_words(0, option::INITXCH, &[&head, groups, &[0]].concat())
    };
    assert_eq!(parse(96, &[2, 32, 0, 0, 1, 32, 8, 0xffff_fffe | 1]), Ok(()), "RTR-7.2-b");
    for (len, groups) in [
        (95, &[3, 32, 0, 0][..]),
        (64, &[u32::MAX, u32::MAX, 0, 0, u32::MAX, u32::MAX, 0, 0, 1, u32::MAX, 0, 0]),
        // 2^16 times 2^16, and 32, is 32 in 32 bits.
        (32, &[1 << 16, 1 << 16, 0, 1, 1, 32, 0, 0]),
        // A target without room.
        (32, &[1, 32, 0, 0, 1, 0, 0, 1]),
    ] {
        assert_eq!(parse(len, groups), bad_header(Error2::StructureLength), "{groups:?}");
    }
    for (len, groups) in [(0, &[][..]), (28, &[1, 28, 0, 0]), (31, &[1, 31, 0, 0])] {
        let refused = bad_header(Error2::CharacteristicValue(5));
        assert_eq!(parse(len, groups), refused, "XC-X-3: not even the smallest message fits");
    }
}

#[test]
fn table_1_of_placements() {
    // RTR-X-13
    let request = |kind: u32, rest: &[u32]| {
        let info = [&[1, 0, 4, kind], rest, &[0, 1, 0, 8]].concat();
        parse_words(0, option::XMTREQ, &info)
    };
    assert_eq!(request(1, &[0]), Ok(()));
    assert_eq!(request(2, &[0, 0]), Ok(()));
    for kind in [3, 4, 0, 7] {
        assert_eq!(request(kind, &[]), bad_header(Error2::Xdr(xdr::XdrError::BadDiscriminant(kind))));
    }
    for kind in [5, 6] {
        assert_eq!(request(kind, &[]), bad_header(Error2::ResultInRequest));
    }
    let response = |kind: u32, rest: &[u32]| {
        parse_words(1, option::XMTRESP, &[&[1, 0, 4, kind], rest, &[1, 8]].concat())
    };
    for (kind, rest) in [(1, &[0][..]), (2, &[0, 0]), (5, &[]), (6, &[])] {
        assert_eq!(response(kind, rest), Ok(()));
    }
    for kind in [3, 4, 0, 7] {
        let error = Error2::Xdr(xdr::XdrError::BadDiscriminant(kind));
        assert_eq!(response(kind, &[]), Err(Refused2 { error, answer: Answer2::Drop }));
    }
    let direction = |kind: u32, rest: &[u32]| {
        let info = [&[0, 1, 0, 8, 1, 0, kind], rest, &[1, 0, 8]].concat();
        parse_words(0, option::XMTREQ, &info)
    };
    for (kind, rest) in [(1, &[0][..]), (2, &[]), (3, &[0]), (4, &[0, 0])] {
        assert_eq!(direction(kind, rest), Ok(()), "{kind}");
    }
    for kind in [5, 6, 0, 7] {
        assert_eq!(direction(kind, &[]), bad_header(Error2::Xdr(xdr::XdrError::BadDiscriminant(kind))));
    }
}

#[test]
fn table_2_of_directions_and_results() {
    // RTR-7.4-e
    let none = Elements::EMPTY;
    let directions = [
        DirectedPlace::Explicit(none),
        DirectedPlace::Buffers,
        DirectedPlace::Choice(none),
        DirectedPlace::BySize { threshold: 1, segments: none },
    ];
    let results = [
        ItemPlace::Explicit(none),
        ItemPlace::Buffers { offset: 0, numbers: Elements::EMPTY },
        ItemPlace::TooShort,
        ItemPlace::NoItem,
    ];
    let table = directions.map(|direction| results.map(|result| direction.permits(&result)));
    let (yes, no) = (true, false);
    assert_eq!(
        table,
        [[yes, no, yes, yes], [no, yes, yes, yes], [yes, yes, yes, yes], [yes, yes, yes, yes]],
        "DR and NDR are yes, Inv is no"
    );
}

#[test]
fn items_are_at_increasing_multiples_of_4() {
    // RTR-X-18 RTR-X-15 RTR-X-16 RTR-7.4-a
    let request = |places: &[(u32, u32)]| {
        let items = places.iter().flat_map(|(displacement, len)| [*displacement, *len, 1, 0]);
        let info: Vec<u32> = [places.len() as u32].into_iter().chain(items).chain([0, 1, 0, 8]).collect();
        parse_words(0, option::XMTREQ, &info)
    };
    assert_eq!(request(&[(0, 5), (8, 0), (12, 4)]), Ok(()));
    for (places, at) in [
        (&[(2, 4)][..], 2),
        (&[(8, 4), (4, 4)], 4),
        (&[(8, 5), (12, 4)], 12),
        (&[(8, 0), (8, 0)], 8),
        (&[(u32::MAX - 3, 4)], u32::MAX - 3),
        (&[(8, u32::MAX)], 8),
    ] {
        assert_eq!(request(places), bad_header(Error2::Displacement(at)), "{places:?}");
    }
    // RTR-X-15: the displacement of a result without an item says nothing.
    let response = [3, 8, 4, 5, 3, 0, 6, 16, 4, 6, 1, 8];
    assert_eq!(parse_words(1, option::XMTRESP, &response), Ok(()));
    // RTR-7.4-a, RTR-X-16: ranges.
    let ranges = |ranges: &[(u32, u32)]| {
        let sets = ranges.iter().flat_map(|(begin, end)| [*begin, *end, 0]);
        let info: Vec<u32> = [0, ranges.len() as u32].into_iter().chain(sets).chain([1, 0, 8]).collect();
        parse_words(0, option::XMTREQ, &info)
    };
    assert_eq!(ranges(&[(0, 1), (1, 9), (100, u32::MAX)]), Ok(()));
    for bad in [&[(4, 4)][..], &[(4, 3)], &[(0, 8), (7, 9)], &[(8, 9), (0, 1)]] {
        assert_eq!(ranges(bad), bad_header(Error2::Ranges), "{bad:?}");
    }
}

#[test]
fn a_first_transmission_has_the_start_of_its_payload() {
    // RTR-X-11 RTR-X-14 V2-4.2.2-b RTR-9.2-b
    assert_eq!(parse_words(0, option::XMTREQ, &[0, 0, 0, 0, 8]), bad_header(Error2::EmptyGroup));
    assert_eq!(parse_words(0, option::XMTREQ, &[0, 0, 1, 0, 7]), bad_header(Error2::EmptyStart));
    let dropped = |error| Err(Refused2 { error, answer: Answer2::Drop });
    assert_eq!(parse_words(1, option::XMTRESP, &[0, 0, 8]), dropped(Error2::EmptyGroup));
    assert_eq!(parse_words(1, option::XMTRESP, &[0, 2, 0]), dropped(Error2::EmptyStart));

    let request = OptionalOperation::Request(RequestTransmission {
        items: Elements::EMPTY,
        directions: Elements::EMPTY,
        count: 1,
        response_receives: 0,
        payload_len: 8,
    });
    let mut octets = emit(&request, MessageType::Call, 7, 1);
    let len = octets.len();
    for (payload, expected) in [
        (words(&[7, 0]), Ok(())),
        (words(&[7, 1]), bad_header(Error2::OtherDirection)),
        (words(&[8, 0]), bad_header(Error2::Lists(rpcrdma::HeaderError::Xid { payload: 8 }))),
        (words(&[7]), bad_header(Error2::Lists(rpcrdma::HeaderError::PayloadShort))),
    ] {
        octets.truncate(len);
        octets.extend(payload);
        let (message, _, payload) = operation(&octets);
        assert_eq!(message.check_start(payload), expected);
    }
}

#[test]
fn segments_end_within_64_bits() {
    let bad = [9, 2, u32::MAX, u32::MAX - 1];
    let good = [9, 1, u32::MAX, u32::MAX - 1];
    for (segment, expected) in [(good, Ok(())), (bad, bad_header(Error2::SegmentRange))] {
        let info = [&[1, 0, 4, 1, 1], &segment[..], &[0, 1, 0, 8]].concat();
        assert_eq!(parse_words(0, option::XMTREQ, &info), expected);
        let info = [&[0, 1, 0, 8, 1, 0, 3, 1], &segment[..], &[1, 0, 8]].concat();
        assert_eq!(parse_words(0, option::XMTREQ, &info), expected);
    }
}

#[test]
fn octets_behind_an_operation_are_refused() {
    for (option, info) in [
        (option::INITXCH, &[0, 0][..]),
        (option::REQXCH, &[0]),
        (option::UPDXCH, &[6, 4, 1, 0]),
        (option::XMTREQ, &[0, 0, 1, 0, 8]),
        (option::XMTCONT, &[1, 5, 0]),
    ] {
        assert_eq!(parse_words(0, option, info), Ok(()));
        let longer = [info, &[0]].concat();
        assert_eq!(parse_words(0, option, &longer), bad_header(Error2::Xdr(xdr::XdrError::TrailingOctets)));
        let shorter = &info[..info.len() - 1];
        assert_eq!(parse_words(0, option, shorter), bad_header(Error2::Xdr(xdr::XdrError::Truncated)));
    }
}

/// A message with chunk lists and a Payload stream.
fn message(
    kind: MessageKind,
    direction: MessageType,
    (read, write, reply): (Option<u32>, bool, Option<u32>),
    payload: &[u32],
) -> Vec<u8> {
    let mut buf = [0xff; 256];
    let mut emitter = start(&mut buf, kind, direction, 7, 1).unwrap();
    if let Some(position) = read {
        emitter.read_segment(ReadSegment { position, segment: segment(1, 10, 100) }).unwrap();
    }
    if write {
        emitter.write_chunk(&[segment(2, 20, 200)]).unwrap();
    }
    if let Some(len) = reply {
        emitter.reply_chunk(&[segment(3, len, 300)]).unwrap();
    }
    let (len, _) = emitter.finish().unwrap();
    [&buf[..len], &words(payload)].concat()
}

fn check(message: &[u8]) -> Result<(), Refused2> {
    let (header, payload) = Header2::parse(message)?;
    header.check(payload)
}

#[test]
fn chunk_lists_are_as_in_version_1() {
    // V2-X-6 V2-X-2
    let octets = message(MessageKind::Msg, MessageType::Call, (Some(8), true, Some(30)), &[7, 0]);
    let (header, payload) = Header2::parse(&octets).unwrap();
    assert_eq!(payload, words(&[7, 0]));
    let Body2::Message(_, lists) = header.body else { panic!("{header:?}") };
    assert!(lists.read_list().eq([ReadSegment { position: 8, segment: segment(1, 10, 100) }]));
    assert!(lists.write_list().flat_map(|chunk| chunk.segments()).eq([segment(2, 20, 200)]));
    assert!(lists.reply_chunk().unwrap().segments().eq([segment(3, 30, 300)]));
    assert_eq!(check(&octets), Ok(()));
    for len in 16..octets.len() - 8 {
        let answer = if len < HEADER_LEN_MIN { Answer2::Drop } else { Answer2::BadHeader };
        assert_eq!(refused(&octets[..len]).answer, answer, "{len} octets, V2-X-6");
    }
}

#[test]
fn the_direction_is_that_of_the_payload() {
    // V2-4.2.2-b V2-X-7
    let none = (None, false, None);
    for (direction, msg_type) in [(MessageType::Call, 0), (MessageType::Reply, 1)] {
        let octets = message(MessageKind::Msg, direction, none, &[7, msg_type]);
        assert_eq!(check(&octets), Ok(()));
        let octets = message(MessageKind::Msg, direction, none, &[7, 1 - msg_type]);
        let answer = if msg_type == 0 { Answer2::BadHeader } else { Answer2::Drop };
        assert_eq!(check(&octets), Err(Refused2 { error: Error2::OtherDirection, answer }));
    }
    // V2-X-7
    let error = Error2::Direction(2);
    assert_eq!(check(&words(&[7, 2, 1, 0, 2, 0, 0, 0])), Err(Refused2 { error, answer: Answer2::BadHeader }));
}

#[test]
fn where_the_payload_is_fits_the_direction() {
    // V2-4.2.1-a
    let lists = |error| Error2::Lists(error);
    use rpcrdma::HeaderError::{NoPayload, PositionZero, ReadListInReply, ReplyChunkWithMessage};
    let (call, reply) = (MessageType::Call, MessageType::Reply);
    let (msg, nomsg) = (MessageKind::Msg, MessageKind::Nomsg);
    for (kind, direction, chunks, expected) in [
        (nomsg, call, (Some(0), false, None), Ok(())),
        (nomsg, call, (Some(8), false, None), Err(NoPayload)),
        (nomsg, call, (None, true, None), Err(NoPayload)),
        (nomsg, call, (None, false, None), Err(NoPayload)),
        (nomsg, reply, (None, false, Some(30)), Ok(())),
        (nomsg, reply, (None, false, Some(0)), Err(NoPayload)),
        (nomsg, reply, (None, true, None), Err(NoPayload)),
        (nomsg, reply, (Some(0), false, Some(30)), Err(ReadListInReply)),
        (msg, call, (Some(0), false, None), Err(PositionZero)),
        (msg, reply, (Some(8), false, None), Err(ReadListInReply)),
        (msg, reply, (None, true, Some(0)), Ok(())),
        (msg, reply, (None, false, Some(30)), Err(ReplyChunkWithMessage)),
    ] {
        let octets = message(kind, direction, chunks, &[7, direction.number()]);
        let answer = if direction == call { Answer2::BadHeader } else { Answer2::Drop };
        let expected = expected.map_err(|error| Refused2 { error: lists(error), answer });
        assert_eq!(check(&octets), expected, "{kind:?} {direction:?} {chunks:?}");
    }
}

#[test]
fn other_versions_and_procedures_are_answered() {
    // V2-5.2-a V2-3-a
    for version in [0, 1, 3, u32::MAX] {
        for procedure in [0, 1, 5, 9] {
            let refused = refused(&words(&[7, version, 1, procedure]));
            assert_eq!((refused.error, refused.answer), (Error2::Version(version), Answer2::ErrVers));
        }
    }
    // V2-3-a: neither RDMA_MSGP nor RDMA_DONE.
    for procedure in [2, 3, 6, u32::MAX] {
        let refused = refused(&words(&[7, 2, 1, procedure]));
        assert_eq!((refused.error, refused.answer), (Error2::Procedure(procedure), Answer2::BadHeader));
    }
    for len in 0..16 {
        assert_eq!(refused(&vector!("v2-msg")[..len]).error, Error2::Short);
    }
}

#[test]
fn errors_read_and_write() {
    // V2-X-1 V2-X-3
    for (code, expected) in [
        (ErrorCode2::Vers { low: 1, high: 2 }, &[7, 2, 9, 4, 1, 1, 2][..]),
        (ErrorCode2::BadHeader, &[7, 2, 9, 4, 2]),
        (ErrorCode2::InvalidOption, &[7, 2, 9, 4, 3]),
    ] {
        let mut buf = [0xff; 28];
        let len = emit_error(&mut buf, 7, 2, 9, code).unwrap();
        assert_eq!(buf[..len], words(expected));
        let (header, rest) = Header2::parse(&buf[..len]).unwrap();
        assert!(matches!(header.body, Body2::Error(found) if found == code));
        assert_eq!((rest, header.check(&[])), (&[][..], Ok(())));
        for len in 16..len {
            assert_eq!(refused(&buf[..len]), Refused2 { error: Error2::Short, answer: Answer2::Drop });
        }
    }
    // An ERR_VERS of version 1 refuses our version on the same connection; it is read all the same.
    let (header, _) =
        Header2::parse(&vector!("err-vers")).map(|(header, _)| (header.version, header.xid)).unwrap();
    assert_eq!(header, 2);
    let dropped = Refused2 { error: Error2::ErrorBody, answer: Answer2::Drop };
    assert_eq!(refused(&words(&[7, 1, 9, 4, 2])), dropped);
    for code in [0, 4, u32::MAX] {
        assert_eq!(refused(&words(&[7, 2, 9, 4, code])), dropped);
    }
}

#[test]
fn counts_that_the_message_cannot_hold_are_refused_at_once() {
    let truncated = bad_header(Error2::Xdr(xdr::XdrError::Truncated));
    for count in [9, 1 << 30, u32::MAX] {
        assert_eq!(parse_words(0, option::INITXCH, &[count, 0]), truncated);
        assert_eq!(parse_words(0, option::XMTREQ, &[count, 0, 1, 0, 8]), truncated);
        assert_eq!(parse_words(0, option::XMTREQ, &[1, 0, 4, 1, count, 0, 1, 0, 8]), truncated);
        assert_eq!(parse_words(0, option::XMTREQ, &[1, 0, 4, 2, 0, count, 0, 1, 8]), truncated);
    }
    let message = words(&[7, 2, 1, 5, 0, 1, u32::MAX, 0]);
    assert_eq!(refused(&message).error, Error2::OptionLength(u32::MAX));
}

#[test]
fn the_lists_of_a_header_are_the_same_type_in_both_versions() {
    fn reads(lists: &HeaderLists<'_>) -> usize {
        lists.read_list().len()
    }
    let octets = message(MessageKind::Msg, MessageType::Call, (Some(8), false, None), &[7, 0]);
    let (header, _) = Header2::parse(&octets).unwrap();
    assert!(
        matches!(&header.body, Body2::Message(_, lists) if reads(lists) == 1 && !lists.has_position_zero())
    );
}
