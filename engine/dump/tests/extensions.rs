//! Conversations beyond RFC 8166: replies of any size, version 2, transmissions; and each rule of them that is named, broken.

use stag_wire::rdmap::Opcode;
use stag_wire::reliable_reply::ReliableReply;
use stag_wire::rpcrdma::{Done, MessageKind, ReadSegment, Segment};
use stag_wire::rpcrdma2::*;

mod support;
use support::remake::*;
use support::talk::*;

/// A connection whose client pulls Replies, of which the server exposes two at once.
fn pulling() -> Talk {
    let client = ReliableReply { pulls: true, exposes: false, done_receives: 0 }.to_wire();
    let server = ReliableReply { pulls: false, exposes: true, done_receives: 2 }.to_wire();
    Talk::with_more(true, true, [&client, &server]).greet()
}

/// A READ of 100 octets without a chunk, and a Reply of which the server exposes the Payload stream under `handle`.
fn exposed_read(talk: &mut Talk, xid: u32, handle: u32) -> Vec<u8> {
    let arguments = [&HANDLE[..], &words(&[0, 0, 100])].concat();
    talk.send(CLIENT, &plain(xid, 32, &call(xid, 6, &arguments)));
    let stream = reply(xid, &[words(&[0, 0, 100, 1, 100]), vec![7; 100]].concat());
    let reads = [ReadSegment { position: 0, segment: segment(handle, stream.len() as u32, 0x5000) }];
    let chunks = Chunks { reads: &reads, ..Chunks::default() };
    talk.send(SERVER, &message(MessageKind::Nomsg, xid, &chunks, &[]));
    stream
}

fn done(xid: u32) -> [u8; 16] {
    let mut octets = [0; 16];
    Done { xid, credits: 32 }.emit(&mut octets).unwrap();
    octets
}

#[test]
fn a_reply_is_known_when_it_was_pulled() {
    // RR-4.1-a RR-4.1.3-a RR-4.1.3-c RR-4.1-b
    let mut talk = pulling();
    let stream = exposed_read(&mut talk, 2, 21);
    talk.read(CLIENT, 21, 0x5000, &stream[..60]);
    talk.read(CLIENT, 21, 0x5000 + 60, &stream[60..]);
    talk.untagged(CLIENT, Opcode::SendInvalidate, 21, &done(2));
    let (lines, totals) = analyze(&talk.frames);
    assert_eq!(rules(&totals), [], "{lines:#?}");
    assert_eq!((totals.messages, totals.calls, totals.replies, totals.others), (5, 2, 2, 1));
    assert_eq!((totals.paired, totals.unanswered), (2, 0));
    let last = lines.last().unwrap();
    assert!(last.contains("Reply") && last.contains("procedure: 6") && last.contains("[144]"), "{lines:#?}");

    // A Requester that gave the Call up says so without a Read (RR-4.1.3-c).
    let mut talk = pulling();
    exposed_read(&mut talk, 2, 21);
    talk.send(CLIENT, &done(2));
    assert_eq!(talk.rules(), []);
}

#[test]
fn rules_of_exposed_replies() {
    // RR-P-8 RR-4.1.4-c RR-4.1-c RR-P-10 RR-P-1
    let mut talk = pulling();
    exposed_read(&mut talk, 2, 21);
    talk.send(CLIENT, &done(2));
    talk.send(CLIENT, &done(2));
    assert_eq!(talk.rules(), [("RR-P-8", 1)], "twice");

    let mut talk = pulling();
    for xid in 2..5 {
        exposed_read(&mut talk, xid, 20 + xid);
    }
    assert_eq!(talk.rules(), [("RR-P-8", 1)], "three at once");

    let mut talk = pulling();
    let stream = exposed_read(&mut talk, 2, 21);
    talk.send(CLIENT, &done(2));
    talk.read(CLIENT, 21, 0x5000, &stream);
    assert_eq!(talk.rules(), [("5041-f", 1)], "a Read after RDMA_DONE");

    let mut talk = pulling();
    exposed_read(&mut talk, 2, 21);
    talk.write(CLIENT, 21, 0x5000, &[1; 4]);
    assert_eq!(talk.rules(), [("8166-2.3.2-e", 1)], "a Write to it");

    let mut talk = pulling();
    exposed_read(&mut talk, 2, 21);
    talk.untagged(CLIENT, Opcode::SendInvalidate, 22, &done(2));
    assert_eq!(talk.rules(), [("RR-4.1.4-c", 1)]);

    let mut talk = pulling();
    exposed_read(&mut talk, 2, 21);
    talk.send(CLIENT, &[&done(2)[..], &[0; 4]].concat());
    assert_eq!(talk.rules(), [("RR-P-10", 1)]);

    let mut talk = pulling();
    talk.send(CLIENT, &plain(2, 32, &call(2, 0, &[])));
    let reads = [0, 8].map(|position| ReadSegment { position, segment: segment(21, 32, 0) });
    let chunks = Chunks { reads: &reads, ..Chunks::default() };
    talk.send(SERVER, &message(MessageKind::Nomsg, 2, &chunks, &[]));
    assert_eq!(talk.rules(), [("RR-4.1-c", 1)]);

    // Not agreed on: RFC 8166 governs.
    let client = ReliableReply { pulls: true, exposes: true, done_receives: 4 }.to_wire();
    let mut talk = Talk::with_more(true, true, [&client, &[]]).greet();
    talk.send(CLIENT, &done(1));
    assert_eq!(talk.rules(), [("8166-4.6.2-a", 1)]);
}

/// A message of version 2 with a Payload stream and no chunks.
fn plain2(direction: MessageType, xid: u32, payload: &[u8]) -> Vec<u8> {
    let mut buf = [0; 4096];
    let (len, _) = start(&mut buf, MessageKind::Msg, direction, xid, 32).unwrap().finish().unwrap();
    [&buf[..len], payload].concat()
}

fn operation(operation: &OptionalOperation<'_>, direction: MessageType, xid: u32, payload: &[u8]) -> Vec<u8> {
    let mut buf = [0; 4096];
    let (len, _) = operation.emit(&mut buf, direction, xid, 32).unwrap();
    [&buf[..len], payload].concat()
}

fn initial(values: &[CharacteristicValue<'_>]) -> Vec<u8> {
    let initial =
        InitialCharacteristics { values: Elements::new(values), unchanging: PositionSet(Elements::EMPTY) };
    operation(&OptionalOperation::Initial(initial), MessageType::Call, 0, &[])
}

const GROUPS: [BufferGroup; 2] = [
    BufferGroup { count: 1, len: 1024, align: 0, is_target: false },
    BufferGroup { count: 1, len: 4096, align: 4096, is_target: true },
];

/// Both sides speak version 2, take Calls of four transmissions, and have one target in each Receive.
fn greet2() -> Talk {
    let mut talk = Talk::new();
    talk.send(CLIENT, &plain2(MessageType::Call, 1, &call(1, 0, &[])));
    talk.send(SERVER, &plain2(MessageType::Reply, 1, &reply(1, &[])));
    let values = [
        CharacteristicValue::ReceiveSize(5120),
        CharacteristicValue::RequestLimit(4),
        CharacteristicValue::BufferStructure(BufferStructure { len: 5120, groups: Elements::new(&GROUPS) }),
    ];
    talk.send(CLIENT, &initial(&values));
    talk.send(SERVER, &initial(&values));
    talk
}

/// A WRITE of `len` octets whose data is at `place`, and its Payload stream.
fn write_request<'a>(items: &'a [PlacedItem<'a>], stream: &[u8]) -> RequestTransmission<'a> {
    let items = Elements::new(items);
    let payload_len = stream.len() as u32;
    RequestTransmission { items, directions: Elements::EMPTY, count: 1, response_receives: 0, payload_len }
}

fn write_stream(xid: u32, len: u32) -> Vec<u8> {
    call(xid, 7, &[&HANDLE[..], &words(&[0, 0, len, 0, len])].concat())
}

fn write_reply(xid: u32) -> Vec<u8> {
    reply(xid, &words(&[0, 0, 0, 6, 0, 0, 0]))
}

/// Position of a WRITE's data.
const DATA: u32 = 40 + 8 + 8 + 4 + 4 + 4;

fn in_buffers(len: u32, numbers: &[u32]) -> PlacedItem<'_> {
    let place = ItemPlace::Buffers { offset: 0, numbers: Elements::new(numbers) };
    PlacedItem { displacement: DATA, len, place }
}

#[test]
fn calls_and_replies_of_version_2_are_paired_in_both_directions() {
    // V2-4.2.2-a V2-4.2.2-b 8167-2.4-a
    let mut talk = greet2();
    talk.send(CLIENT, &plain2(MessageType::Call, 2, &call(2, 0, &[])));
    talk.send(SERVER, &plain2(MessageType::Call, 2, &call(2, 0, &[])));
    talk.send(CLIENT, &plain2(MessageType::Reply, 2, &reply(2, &[])));
    talk.send(SERVER, &plain2(MessageType::Reply, 2, &reply(2, &[])));
    let (lines, totals) = analyze(&talk.frames);
    assert_eq!(rules(&totals), [], "{lines:#?}");
    assert_eq!((totals.calls, totals.replies, totals.paired, totals.others), (3, 3, 3, 2));
}

#[test]
fn an_item_in_the_receivers_buffers_is_not_in_the_stream() {
    // RTR-9.2-a RTR-9.3-a RTR-4.2-b RTR-7.3-d
    let mut talk = greet2();
    let stream = write_stream(2, 4096);
    let items = [in_buffers(4096, &[0])];
    let request = OptionalOperation::Request(write_request(&items, &stream));
    talk.send(CLIENT, &operation(&request, MessageType::Call, 2, &[stream, vec![7; 4096]].concat()));
    let stream = write_reply(2);
    let response =
        ResponseTransmission { items: Elements::EMPTY, count: 1, payload_len: stream.len() as u32 };
    talk.send(SERVER, &operation(&OptionalOperation::Response(response), MessageType::Reply, 2, &stream));
    let (lines, totals) = analyze(&talk.frames);
    assert_eq!(rules(&totals), [], "{lines:#?}");
    assert_eq!((totals.calls, totals.paired), (2, 2));
    assert!(lines[4].contains("procedure: 7") && lines[5].contains("NFS3_OK"), "{lines:#?}");
}

/// A WRITE of 6000 octets inline, cut into three transmissions.
fn group(xid: u32) -> [Vec<u8>; 3] {
    let stream = [write_stream(xid, 6000), vec![7; 6000]].concat();
    let (first, rest) = stream.split_at(2000);
    let (second, third) = rest.split_at(2000);
    let request = RequestTransmission { count: 3, ..write_request(&[], first) };
    let continued = |number, part: &[u8]| {
        let payload_len = part.len() as u32;
        let continuation = Continuation { number, lead_option: option::XMTREQ, payload_len };
        operation(&OptionalOperation::Continuation(continuation), MessageType::Call, xid, part)
    };
    let lead = operation(&OptionalOperation::Request(request), MessageType::Call, xid, first);
    [lead, continued(1, second), continued(2, third)]
}

#[test]
fn a_group_is_read_when_it_is_whole() {
    // RTR-9.4-a RTR-4.2-a RTR-7.3-e
    let mut talk = greet2();
    let [first, second, third] = group(2);
    talk.send(CLIENT, &first);
    talk.send(CLIENT, &second);
    // The other side may say something meanwhile, and so may this one as a Responder.
    talk.send(SERVER, &plain2(MessageType::Call, 9, &call(9, 0, &[])));
    talk.send(CLIENT, &plain2(MessageType::Reply, 9, &reply(9, &[])));
    talk.send(CLIENT, &third);
    talk.send(SERVER, &plain2(MessageType::Reply, 2, &write_reply(2)));
    let (lines, totals) = analyze(&talk.frames);
    assert_eq!(rules(&totals), [], "{lines:#?}");
    assert_eq!((totals.calls, totals.continuations, totals.paired, totals.unanswered), (3, 2, 3, 0));
    assert!(lines[8].contains("procedure: 7"), "the last one tells what it was: {lines:#?}");
}

#[test]
fn rules_of_groups() {
    // RTR-4.2-a RTR-9.4-a RTR-9.4-b RTR-5.2-a RTR-9.2-a RTR-X-8
    let [first, second, third] = group(2);
    let check = |messages: &[&[u8]], expected: &[(&str, u64)]| {
        let mut talk = greet2();
        messages.iter().for_each(|message| talk.send(CLIENT, message));
        assert_eq!(talk.rules(), expected);
    };
    check(&[&second], &[("RTR-9.4-a", 1)]);
    check(&[&first, &third], &[("RTR-9.4-a", 1)]);
    check(&[&first, &group(3)[1]], &[("RTR-9.4-a", 1)]);
    check(
        &[&first, &plain2(MessageType::Call, 3, &call(3, 0, &[])), &second],
        &[("RTR-4.2-a", 1), ("RTR-9.4-a", 1)],
    );
    // More transmissions than the other side takes, or there are credits for.
    let request = RequestTransmission { count: 5, ..write_request(&[], &write_stream(2, 0)) };
    let octets = operation(&OptionalOperation::Request(request), MessageType::Call, 2, &write_stream(2, 0));
    check(&[&octets], &[("RTR-5.2-a", 1)]);
    let request = RequestTransmission { count: 33, ..request };
    let octets = operation(&OptionalOperation::Request(request), MessageType::Call, 2, &write_stream(2, 0));
    check(&[&octets], &[("8166-3.3.1-b", 1), ("RTR-5.2-a", 1)]);
    // Claims more than there is.
    let request = RequestTransmission { payload_len: 5000, ..write_request(&[], &[]) };
    let stream = [write_stream(2, 4), vec![7; 4]].concat();
    let octets = operation(&OptionalOperation::Request(request), MessageType::Call, 2, &stream);
    check(&[&octets], &[("RTR-9.2-a", 1)]);
}

#[test]
fn rules_of_placement() {
    // RTR-6.2-a RTR-7.3-b RTR-7.3-c RTR-5.3-a
    let check = |item: PlacedItem<'_>, expected: &[(&str, u64)]| {
        let mut talk = greet2();
        let stream = write_stream(2, item.len);
        let items = [item];
        let request = OptionalOperation::Request(write_request(&items, &stream));
        talk.send(CLIENT, &operation(&request, MessageType::Call, 2, &stream));
        assert_eq!(talk.rules(), expected, "{item:?}");
    };
    check(in_buffers(100, &[0]), &[]);
    check(in_buffers(100, &[1]), &[("RTR-6.2-a", 1)]);
    check(in_buffers(4097, &[0]), &[("RTR-7.3-b", 1)]);
    let place = ItemPlace::Buffers { offset: 4097, numbers: Elements::new(&[0]) };
    check(PlacedItem { place, ..in_buffers(0, &[]) }, &[("RTR-7.3-b", 1)]);
    let segments = [segment(9, 50, 0x1000)];
    let place = ItemPlace::Explicit(Elements::new(&segments));
    check(PlacedItem { place, ..in_buffers(50, &[]) }, &[]);
    check(PlacedItem { place, ..in_buffers(51, &[]) }, &[("RTR-7.3-c", 1)]);

    // To a receiver that told no structure.
    let mut talk = Talk::new();
    talk.send(CLIENT, &plain2(MessageType::Call, 1, &call(1, 0, &[])));
    talk.send(SERVER, &plain2(MessageType::Reply, 1, &reply(1, &[])));
    let stream = write_stream(2, 100);
    let items = [in_buffers(100, &[0])];
    let request = OptionalOperation::Request(write_request(&items, &stream));
    talk.send(CLIENT, &operation(&request, MessageType::Call, 2, &stream));
    assert_eq!(talk.rules(), [("RTR-5.3-a", 1)]);
}

#[test]
fn results_go_where_they_were_directed() {
    // RTR-7.4-f RTR-7.4-c RTR-7.3-c RTR-5.2-b RTR-7.4-b RTR-7.4-d
    let memory = [segment(9, 100, 0x1000)];
    let check = |place: DirectedPlace<'_>,
                 results: &[PlacedItem<'_>],
                 written: u32,
                 expected: &[(&str, u64)]| {
        let mut talk = greet2();
        let directions = [ResultDirection { min_len: 50, place }];
        let sets = [DirectionSet { begin: 0, end: 60, items: Elements::new(&directions) }];
        let stream = call(2, 6, &[&HANDLE[..], &words(&[0, 0, 100])].concat());
        let request = RequestTransmission { directions: Elements::new(&sets), ..write_request(&[], &stream) };
        talk.send(CLIENT, &operation(&OptionalOperation::Request(request), MessageType::Call, 2, &stream));
        if written > 0 {
            talk.write(SERVER, 9, 0x1000, &vec![7; written as usize]);
        }
        let len = results.first().map_or(0, |item| item.len);
        let inline = match results.first().map(|item| item.place) {
            None | Some(ItemPlace::TooShort) => vec![7; len as usize],
            _ => Vec::new(),
        };
        let stream = match results.first().map(|item| item.place) {
            Some(ItemPlace::NoItem) => reply(2, &words(&[5, 0])),
            _ => reply(2, &[words(&[0, 0, len, 1, len]), inline].concat()),
        };
        let payload_len = stream.len() as u32;
        let response = ResponseTransmission { items: Elements::new(results), count: 1, payload_len };
        let octets = operation(&OptionalOperation::Response(response), MessageType::Reply, 2, &stream);
        talk.send(SERVER, &octets);
        assert_eq!(talk.rules(), expected, "{place:?} {results:?}");
    };
    fn result(len: u32, place: ItemPlace<'_>) -> PlacedItem<'_> {
        PlacedItem { displacement: 44, len, place }
    }
    let explicit = DirectedPlace::Explicit(Elements::new(&memory));
    let choice = DirectedPlace::Choice(Elements::new(&memory));
    let buffers = ItemPlace::Buffers { offset: 0, numbers: Elements::new(&[0]) };
    let of = |segments| ItemPlace::Explicit(Elements::new(segments));
    check(explicit, &[result(100, of(&memory))], 100, &[]);
    check(choice, &[result(100, of(&memory))], 100, &[]);
    check(choice, &[result(100, buffers)], 0, &[]);
    check(DirectedPlace::Buffers, &[result(100, buffers)], 0, &[]);
    check(explicit, &[result(40, ItemPlace::TooShort)], 0, &[]);
    check(explicit, &[result(0, ItemPlace::NoItem)], 0, &[]);
    check(explicit, &[result(100, buffers)], 0, &[("RTR-7.4-f", 1)]);
    check(DirectedPlace::Buffers, &[result(100, of(&memory))], 0, &[("RTR-7.4-f", 1)]);
    check(explicit, &[], 0, &[("RTR-7.4-f", 1)]);
    let short = [segment(9, 40, 0x1000)];
    check(explicit, &[result(40, of(&short))], 40, &[("RTR-7.4-c", 1)]);
    check(explicit, &[result(100, of(&short))], 40, &[("RTR-7.3-c", 1)]);
    let other: [Segment; 1] = [segment(8, 100, 0x1000)];
    check(explicit, &[result(100, of(&other))], 100, &[("8166-3.4.6-c", 1)]);

    // A group that the Requester has no Receives for; and to a Call that is no transmission.
    let response = ResponseTransmission { items: Elements::EMPTY, count: 2, payload_len: 8 };
    let response = operation(&OptionalOperation::Response(response), MessageType::Reply, 2, &words(&[2, 1]));
    let mut talk = greet2();
    let stream = call(2, 0, &[]);
    let request = OptionalOperation::Request(write_request(&[], &stream));
    talk.send(CLIENT, &operation(&request, MessageType::Call, 2, &stream));
    talk.send(SERVER, &response);
    assert_eq!(talk.rules(), [("RTR-5.2-b", 1)]);
    let mut talk = greet2();
    talk.send(CLIENT, &plain2(MessageType::Call, 2, &stream));
    talk.send(SERVER, &response);
    assert_eq!(talk.rules(), [("RTR-5.2-b", 1)]);
}

#[test]
fn errors_answer_their_calls() {
    // V2-4.2.3-a RTR-X-8
    for is_group in [false, true] {
        let mut talk = greet2();
        talk.send(CLIENT, &plain2(MessageType::Call, 2, &call(2, 0, &[])));
        let mut error = [0; 20];
        emit_error(&mut error, 2, 2, 32, ErrorCode2::BadHeader).unwrap();
        let bad = TransmissionId { xid: 2, direction: MessageType::Call, number: 0 };
        let fault = GroupFault::NoGroup;
        let group = OptionalOperation::Error(TransmissionError { bad, lead: None, fault });
        let group = operation(&group, MessageType::Reply, 2, &[]);
        talk.send(SERVER, if is_group { &group } else { &error });
        let (lines, totals) = analyze(&talk.frames);
        assert_eq!(rules(&totals), [], "{lines:#?}");
        assert_eq!((totals.errors, totals.paired, totals.unanswered), (1, 2, 0));
    }
}

#[test]
fn rules_of_versions_and_characteristics() {
    // V2-5-a V2-3-a V2-5.3-a XC-d XC-a
    let check = |talk: &mut Talk, from: usize, octets: &[u8], expected: &[(&str, u64)]| {
        talk.send(from, octets);
        assert_eq!(talk.rules(), expected);
    };
    // V2-5-a: more than is sure to be taken, before version 2 was heard.
    let long = plain2(MessageType::Call, 1, &call(1, 0, &[0; 4096]));
    let mut talk = Talk::new();
    talk.send(CLIENT, &long);
    assert!(talk.rules().contains(&("V2-5-a", 1)));
    // V2-3-a: more than the other side's Receives.
    let mut talk = greet2();
    talk.send(CLIENT, &plain2(MessageType::Call, 2, &call(2, 0, &[0; 5120])));
    assert!(talk.rules().contains(&("V2-3-a", 1)));
    // V2-5.3-a: the answer has the version of the Call.
    let mut talk = Talk::new();
    talk.send(CLIENT, &plain2(MessageType::Call, 1, &call(1, 0, &[])));
    check(&mut talk, SERVER, &plain(1, 32, &reply(1, &[])), &[("V2-5.3-a", 1)]);
    // XC-d: an answer to nothing; and to a request.
    let empty = PositionSet(Elements::EMPTY);
    let answer =
        OptionalOperation::Answer(CharacteristicResponse { done: empty, rejected: empty, pending: empty });
    let answer = operation(&answer, MessageType::Reply, 5, &[]);
    check(&mut greet2(), SERVER, &answer, &[("XC-d", 1)]);
    let ask = OptionalOperation::Ask(CharacteristicRequest { wanted: Elements::EMPTY });
    let mut talk = greet2();
    talk.send(CLIENT, &operation(&ask, MessageType::Call, 5, &[]));
    check(&mut talk, SERVER, &answer, &[]);
    // XC-a: no Payload stream.
    check(&mut greet2(), CLIENT, &operation(&ask, MessageType::Call, 5, &[1; 4]), &[("XC-a", 1)]);
    // What cannot be read.
    let header = |procedure: u32, rest: &[u32]| words(&[&[2, 2, 32, procedure], rest].concat());
    for (octets, rule) in [
        (header(0, &[]), "V2-X-6"),
        (header(0, &[2, 0, 0, 0]), "V2-X-7"),
        (header(5, &[0, 99, 0]), "V2-4.2.3-a"),
        (header(5, &[0, 1, 4, 1]), "V2-4.2.3-a"),
        (header(5, &[1, 2, 4, 0]), "XC-X-4"),
        (header(5, &[1, 5, 20, 0, 0, 1, 0, 8]), "RTR-9.2-a"),
        (header(5, &[0, 6, 12, 0, 1, 8]), "RTR-9.3-a"),
        (header(5, &[0, 1, 20, 1, 1, 4, 1, 0]), "XC-X-3"),
        (header(5, &[0, 5, 20, 0, 0, 0, 0, 8]), "RTR-X-14"),
        (header(5, &[0, 5, 20, 0, 0, 1, 0, 0]), "RTR-X-11"),
        (header(5, &[0, 5, 36, 1, 2, 4, 1, 0, 0, 1, 0, 8]), "RTR-X-18"),
        (header(5, &[0, 5, 32, 1, 0, 4, 5, 0, 1, 0, 8]), "RTR-X-13"),
        (header(5, &[0, 5, 32, 0, 1, 9, 9, 0, 1, 0, 8]), "RTR-7.4-a"),
    ] {
        check(&mut greet2(), CLIENT, &octets, &[(rule, 1)]);
    }
    check(
        &mut greet2(),
        CLIENT,
        &plain2(MessageType::Call, 2, &reply(2, &[0; 16])),
        &[("5531-d", 1), ("V2-4.2.2-b", 1)],
    );
}

/// An error with this code, about a message of this version.
fn error(xid: u32, version: u32, code: u32) -> Vec<u8> {
    let range: &[u32] = if code == 1 { &[1, 2] } else { &[] };
    words(&[&[xid, version, 32, 4, code][..], range].concat())
}

fn transmission_error(bad: u32, lead: Option<u32>, fault: GroupFault) -> Vec<u8> {
    let id = |xid| TransmissionId { xid, direction: MessageType::Call, number: 0 };
    let error = TransmissionError { bad: id(bad), lead: lead.map(id), fault };
    operation(&OptionalOperation::Error(error), MessageType::Reply, lead.unwrap_or(bad), &[])
}

/// The rules that the server breaks which answers bad messages of its client so, and those of the client.
#[track_caller]
fn check_answers(mut talk: Talk, messages: &[(usize, Vec<u8>)], expected: &[&str]) {
    messages.iter().for_each(|(from, message)| talk.send(*from, message));
    let (lines, totals) = analyze(&talk.frames);
    let of_server: Vec<&String> =
        lines.iter().filter(|line| line.contains(" Server ") && !line.ends_with(" []")).collect();
    assert_eq!(of_server, Vec::<&String>::new(), "{lines:#?}");
    let rules: Vec<&str> = totals.violations.keys().copied().collect();
    assert_eq!(rules, expected, "{lines:#?}");
}

#[test]
fn who_answers_a_bad_message_as_it_must_breaks_no_rule() {
    // 8166-4.5-a 8166-4.5.1-a 8166-4.5.2-a V2-4.2.3-a
    for (bad, answer, rule) in [
        (words(&[2, 1, 32, 0, 7, 0, 0]), error(2, 1, 2), "8166-X-2"),
        (words(&[2, 1, 32, 2, 0, 0, 0]), error(2, 1, 2), "8166-4.6.1-a"),
        (words(&[2, 9, 32, 0, 0, 0, 0]), error(2, 9, 1), "8166-4.2.2-a"),
        (words(&[2, 1, 32, 5, 0, 0, 0]), error(2, 1, 2), "8166-4.5.2-a"),
        (words(&[2, 1, 32, 1, 0, 0, 0]), error(2, 1, 2), "8166-4.2.4-b"),
    ] {
        check_answers(Talk::new().greet(), &[(CLIENT, bad), (SERVER, answer)], &[rule]);
    }
    // Each message permits one answer.
    let mut talk = Talk::new().greet();
    talk.send(CLIENT, &words(&[2, 9, 32, 0, 0, 0, 0]));
    talk.send(SERVER, &error(2, 9, 1));
    talk.send(SERVER, &error(2, 9, 1));
    assert_eq!(talk.rules(), [("8166-4.2.2-a", 1), ("8166-4.5-e", 1)]);
    for (bad, answer, rules) in [
        (words(&[2, 2, 32, 0, 9, 0, 0, 0]), error(2, 2, 2), &["V2-X-7"][..]),
        (words(&[2, 2, 32, 5, 0, 77, 0]), error(2, 2, 3), &["V2-4.2.3-a"]),
        (words(&[2, 2, 32, 5, 0, 1, 12, 1, 99, 400]), error(2, 2, 2), &["V2-4.2.3-a"]),
        (
            words(&[2, 2, 32, 5, 0, 7, 12, 1, 5, 0]),
            transmission_error(2, None, GroupFault::NoGroup),
            &["RTR-9.4-a"],
        ),
    ] {
        check_answers(greet2(), &[(CLIENT, bad), (SERVER, answer)], rules);
    }
    // Operations that the server does not support.
    check_answers(greet2(), &[(CLIENT, initial(&[])), (SERVER, error(0, 2, 3))], &[]);
}

#[test]
fn who_gives_a_group_up_as_it_must_breaks_no_rule() {
    // RTR-4.2-a RTR-X-8 RTR-X-19
    let [first, second, third] = group(2);
    let null = |xid| plain2(MessageType::Call, xid, &call(xid, 0, &[]));
    let answer = |xid| plain2(MessageType::Reply, xid, &reply(xid, &[]));
    let procedure = GroupFault::Procedure { expected: 5, found: 0 };
    let broken = |fault| transmission_error(2, Some(2), fault);
    // Another Call between the transmissions, also one with the same xid, or of version 1.
    for xid in [3, 2] {
        let messages = [
            (CLIENT, first.clone()),
            (CLIENT, null(xid)),
            (SERVER, broken(procedure)),
            (SERVER, answer(xid)),
        ];
        check_answers(greet2(), &messages, &["RTR-4.2-a"]);
    }
    let version_1 = plain(3, 32, &call(3, 0, &[]));
    let messages = [
        (CLIENT, first.clone()),
        (CLIENT, version_1),
        (SERVER, broken(procedure)),
        (SERVER, plain(3, 32, &reply(3, &[]))),
    ];
    check_answers(greet2(), &messages, &["RTR-4.2-a"]);
    // The group once more, whole.
    let option = GroupFault::Option { expected: 7, found: 5 };
    let mut messages = vec![(CLIENT, first.clone())];
    messages.extend(group(2).map(|message| (CLIENT, message)));
    messages.extend([(SERVER, broken(option)), (SERVER, plain2(MessageType::Reply, 2, &write_reply(2)))]);
    check_answers(greet2(), &messages, &["RTR-4.2-a"]);
    // A wrong number, and the xid of another.
    let number = GroupFault::Number { expected: 1, found: 2 };
    check_answers(
        greet2(),
        &[
            (CLIENT, first.clone()),
            (CLIENT, third.clone()),
            (SERVER, broken(number)),
            (CLIENT, null(2)),
            (SERVER, answer(2)),
        ],
        &["RTR-9.4-a"],
    );
    let xid = transmission_error(3, Some(2), GroupFault::Xid { expected: 2, found: 3 });
    let other = group(3)[1].clone();
    check_answers(greet2(), &[(CLIENT, first.clone()), (CLIENT, other), (SERVER, xid)], &["RTR-9.4-a"]);
    // The server refuses it while it goes on: the rest is no mistake, nor is what follows.
    let messages = [
        (CLIENT, first),
        (SERVER, error(2, 2, 2)),
        (CLIENT, second),
        (CLIENT, third),
        (CLIENT, null(4)),
        (SERVER, answer(4)),
    ];
    check_answers(greet2(), &messages, &[]);
}
