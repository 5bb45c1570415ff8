//! Calls of version 2, one by one: what each refusal gives back, and what each end answers (rtrext).

use stag_proto::layout::ReceiveLayout;
use stag_proto::requester::{
    self, CallFailure, ChunkLists, ExposedMemory, GroupCall, RequesterEvent2, RequesterReceived, Shape,
};
use stag_proto::responder::{self, Responder, ResponderEvent2};
use stag_wire::rpcrdma::{ReadSegment, Segment};
use stag_wire::rpcrdma2::{
    Answer2, Body2, Continuation, Elements, ErrorCode2, GroupFault, Header2, ItemPlace, MessageType,
    OptionalOperation, PlacedItem, RequestTransmission, TransmissionError, TransmissionId, emit_error,
    option,
};

use crate::second::{Pair, SLOTS};
use crate::support::{Random, limits, parameters, words};

/// A pair whose Receives have two targets of 4096 octets, with as many credits as there are.
fn pair() -> Pair {
    let pairs = (0..).map(|seed| Pair::new(&mut Random::new(seed)));
    let is_wanted = |pair: &Pair| {
        pair.layout.targets() == 2 && pair.own.request_limit == 4 && pair.own.response_receives == 3
    };
    let mut pair = { pairs }.find(is_wanted).expect("a seed");
    // The first Reply grants what there is.
    let call = pair.requester.begin().expect("one credit");
    let payload = words(&[call.xid(), 0]);
    let form = pair
        .requester2
        .plan(&pair.requester, &pair.peer, &pair.own, &Shape { payload_len: 8, ..Shape::default() })
        .expect("it fits");
    let mut out = vec![0; 100];
    let lists = ChunkLists::default();
    let len = pair.requester2.emit_call(&mut pair.requester, call, &form, &lists, &mut out).expect("it fits");
    out.truncate(len);
    out.extend(&payload);
    pair.calls.insert(call.xid(), payload);
    pair.promise(1);
    pair.to_server.push_back(out);
    pair.server_takes();
    pair.answer(&mut Random::new(1));
    pair.client_takes();
    assert_eq!(pair.requester.available(), SLOTS);
    pair
}

/// Begins a Call and emits its group of transmissions, without items.
fn group_of(
    pair: &mut Pair,
    payload_len: u32,
    response_receives: u32,
) -> (requester::RequesterCallId, Vec<Vec<u8>>) {
    let call = pair.requester.begin().expect("a credit");
    let mut payload = words(&[call.xid(), 0]);
    payload.resize(payload_len as usize, 7);
    let group = GroupCall {
        items: &[],
        target_lens: &[],
        directions: Elements::EMPTY,
        payload_len,
        response_receives,
    };
    let layout = pair.layout;
    let cut = pair.requester2.plan_group(&pair.requester, &pair.peer, &layout, &group).expect("it fits");
    let mut sends = Vec::new();
    pair.promise(1 + response_receives);
    for sent in cut.transmissions() {
        let mut out = vec![0; sent.len as usize];
        let lists = ChunkLists::default();
        let second = &mut pair.requester2;
        let at = match sent.number {
            0 => second.emit_lead(&mut pair.requester, call, &group, &cut, &lists, &mut out),
            _ => {
                second.emit_continuation(&pair.requester, call, &sent, &mut out).map(|len| len.expect("open"))
            }
        };
        let at = at.expect("as planned");
        let part = sent.payload_at as usize..(sent.payload_at + sent.payload_len) as usize;
        out[at..at + part.len()].copy_from_slice(&payload[part]);
        sends.push(out);
    }
    pair.calls.insert(call.xid(), payload);
    (call, sends)
}

/// What the client makes of a message.
fn client<'m>(pair: &mut Pair, message: &'m [u8]) -> RequesterEvent2<'m> {
    let (event, broken) = pair.requester2.handle_receive(&mut pair.requester, message, None, None);
    assert!(broken.is_none());
    event
}

#[test]
fn a_refused_group_gives_its_credits_back_and_fails_its_call() {
    // RTR-5.4-c RTR-X-8 RTR-X-12 RTR-5.1-a V2-4.2.3-a
    let mut pair = pair();
    let full = pair.layout.len();
    // Sent: of two transmissions.
    let (call, sends) = group_of(&mut pair, full, 2);
    assert_eq!((sends.len(), pair.requester.available()), (2, SLOTS - 2));
    let id = TransmissionId { xid: call.xid(), direction: MessageType::Call, number: 1 };
    let error = TransmissionError { bad: id, lead: None, fault: GroupFault::NoGroup };
    let message = stag_proto::version2::SmallMessage::transmission_error(&error, 3);
    let RequesterEvent2::Base(RequesterReceived::Failed { call: failed, failure, memory }) =
        client(&mut pair, message.as_bytes())
    else {
        panic!("it failed");
    };
    assert_eq!((failed, failure), (call, CallFailure::Transmission(GroupFault::NoGroup)));
    assert_eq!(
        (memory, pair.requester.available(), pair.requester2.take_unused()),
        (ExposedMemory::Safe, SLOTS, 2)
    );
    // Again: its xid is unknown by now.
    let again = client(&mut pair, message.as_bytes());
    assert!(matches!(
        again,
        RequesterEvent2::Base(RequesterReceived::Dropped(requester::DroppedReply::UnknownXid(_)))
    ));
    // INVAL_OPTION of a peer that does not know the operation.
    for (code, expected) in
        [(ErrorCode2::InvalidOption, CallFailure::Option), (ErrorCode2::BadHeader, CallFailure::Chunk)]
    {
        let (call, _) = group_of(&mut pair, 100, 1);
        let mut octets = [0; 28];
        let len = emit_error(&mut octets, call.xid(), 2, 3, code).expect("28 octets");
        let found = client(&mut pair, &octets[..len]);
        let RequesterEvent2::Base(RequesterReceived::Failed { failure, .. }) = found else {
            panic!("{found:?}")
        };
        assert_eq!((failure, pair.requester.available()), (expected, SLOTS));
        assert_eq!(pair.requester2.take_unused(), 1);
    }
    // Nothing more is sent of a group that was refused while it is being sent.
    let call = pair.requester.begin().expect("a credit");
    let group = GroupCall {
        items: &[],
        target_lens: &[],
        directions: Elements::EMPTY,
        payload_len: 2 * full,
        response_receives: 0,
    };
    let layout = pair.layout;
    let cut = pair.requester2.plan_group(&pair.requester, &pair.peer, &layout, &group).expect("it fits");
    let mut out = vec![0; full as usize];
    let lists = ChunkLists::default();
    let second = &mut pair.requester2;
    second.emit_lead(&mut pair.requester, call, &group, &cut, &lists, &mut out).expect("as planned");
    let id = TransmissionId { xid: call.xid(), direction: MessageType::Call, number: 0 };
    let error =
        TransmissionError { bad: id, lead: None, fault: GroupFault::Number { expected: 1, found: 3 } };
    let message = stag_proto::version2::SmallMessage::transmission_error(&error, 3);
    assert!(matches!(
        client(&mut pair, message.as_bytes()),
        RequesterEvent2::Base(RequesterReceived::Failed { .. })
    ));
    let next = cut.transmissions().nth(1).expect("three of them");
    assert_eq!(pair.requester2.emit_continuation(&pair.requester, call, &next, &mut out), Ok(None));
    assert_eq!(pair.requester.available(), SLOTS);
}

#[test]
fn the_server_refuses_what_breaks_a_group_and_counts_its_credits() {
    // RTR-4.2-a RTR-5.4-a RTR-5.4-b RTR-X-7 RTR-X-8 RTR-X-19 RTR-X-21
    let mut pair = pair();
    let full = pair.layout.len();
    let server = |pair: &mut Pair, message: &[u8], lead: Option<&[u8]>| {
        let (event, broken) = pair.responder2.handle_receive(&mut pair.responder, message, lead);
        let broken = broken.map(|message| message.as_bytes().to_vec());
        let answer = match event {
            ResponderEvent2::Answer(message) => Some(message.as_bytes().to_vec()),
            ResponderEvent2::Part { .. } | ResponderEvent2::Rest => None,
            ResponderEvent2::Call(call) => {
                let _ = pair.responder.discard(call.id);
                None
            }
            other => panic!("{other:?}"),
        };
        (answer, broken, pair.responder.grant().in_process())
    };
    let fault_of = |message: &[u8]| {
        let (header, _) = Header2::parse(message).expect("a good header");
        let Body2::Optional(found) = header.body else { panic!("{header:?}") };
        let Ok(OptionalOperation::Error(error)) = OptionalOperation::parse(&found) else {
            panic!("{found:?}")
        };
        (header.xid, error.fault)
    };
    let (call, sends) = group_of(&mut pair, 2 * full, 0);
    assert_eq!(sends.len(), 3);
    assert_eq!(server(&mut pair, &sends[0], None), (None, None, 1));
    assert_eq!(server(&mut pair, &sends[1], Some(&sends[0])), (None, None, 2));
    // The second one again.
    let (answer, broken, in_process) = server(&mut pair, &sends[1], Some(&sends[0]));
    let fault = GroupFault::Number { expected: 2, found: 1 };
    assert_eq!((fault_of(&answer.expect("an XMTERR")), broken, in_process), ((call.xid(), fault), None, 0));
    assert_eq!(server(&mut pair, &sends[2], None), (None, None, 0), "the rest is dropped");
    // A base Call in the midst: the group is refused, and the Call is taken.
    pair.responder.receives_posted(4);
    assert_eq!(server(&mut pair, &sends[0], None), (None, None, 1));
    let null = words(&[1234, 2, 9, 0, 0, 0, 0, 0, 1234, 0]);
    let (answer, broken, in_process) = server(&mut pair, &null, Some(&sends[0]));
    let fault = GroupFault::Procedure { expected: 5, found: 0 };
    assert_eq!((answer, fault_of(&broken.expect("an XMTERR")), in_process), (None, (call.xid(), fault), 0));
    // A Call in one transmission in the midst is judged by its own header, not by that of the broken group.
    pair.responder.receives_posted(4);
    let numbers = [0];
    let place = ItemPlace::Buffers { offset: 0, numbers: Elements::new(&numbers) };
    let items = [PlacedItem { displacement: 8, len: 9, place }];
    let lead = OptionalOperation::Request(RequestTransmission {
        items: Elements::new(&items),
        directions: Elements::EMPTY,
        count: 2,
        response_receives: 0,
        payload_len: 8,
    });
    let mut first = vec![0; full as usize];
    let (at, _) = lead.emit(&mut first, MessageType::Call, 500, 1).expect("it fits");
    first[at..at + 4].copy_from_slice(&500_u32.to_be_bytes());
    assert_eq!(server(&mut pair, &first, None), (None, None, 1));
    let (single_call, single) = group_of(&mut pair, 100, 0);
    let (event, broken) = pair.responder2.handle_receive(&mut pair.responder, &single[0], Some(&first));
    assert!(broken.is_some());
    let ResponderEvent2::Whole { id, part, .. } = event else { panic!("{event:?}") };
    assert_eq!((part.xid, part.number), (single_call.xid(), 0));
    assert!(pair.responder.discard(id));
    // A continuation of nothing, and one that a Reply would have.
    let mut out = [0; 40];
    let found = OptionalOperation::Continuation(Continuation {
        number: 1,
        lead_option: option::XMTREQ,
        payload_len: 0,
    });
    found.emit(&mut out, MessageType::Call, 77, 1).expect("40 octets");
    pair.responder.receives_posted(2);
    let (answer, ..) = server(&mut pair, &out, None);
    assert_eq!(fault_of(&answer.expect("an XMTERR")), (77, GroupFault::NoGroup));
}

#[test]
fn a_group_takes_no_more_credits_than_were_granted() {
    // RTR-4.3-a 8166-3.3.1-b
    let mut pair = pair();
    let full = pair.layout.len();
    let (_, sends) = group_of(&mut pair, 3 * full, 0);
    // As many as there are: the next one has to go otherwise.
    assert_eq!(sends.len(), 4);
    let (_, more) = group_of(&mut pair, 3 * full, 0);
    assert_eq!((more.len(), pair.requester.available()), (4, 0));
    assert!(pair.requester.begin().is_none());
    // A peer that was never granted so much is not let in.
    let parameters = parameters(1024, 1024, false);
    pair.responder =
        Responder::new(&responder::ResponderConfig { slots: SLOTS, parameters, limits: limits() });
    pair.responder.receives_posted(SLOTS);
    let (first, _) = pair.responder2.handle_receive(&mut pair.responder, &sends[0], None);
    assert!(matches!(first, ResponderEvent2::Part { .. }), "one credit");
    let (second, _) = pair.responder2.handle_receive(&mut pair.responder, &sends[1], Some(&sends[0]));
    let expected = responder::ResponderMisuse::TooManyCalls { granted: 1 };
    assert!(matches!(second, ResponderEvent2::Close(misuse) if misuse == expected), "{second:?}");
}

#[test]
fn wishes_and_strange_messages_are_answered() {
    // XC-d XC-a XC-f V2-4.2.3-a V2-X-5 V2-5.3-a XC-X-1
    let mut pair = pair();
    let mut answer = |message: &[u8]| {
        pair.responder.receives_posted(1);
        let (event, broken) = pair.responder2.handle_receive(&mut pair.responder, message, None);
        assert!(broken.is_none());
        match event {
            ResponderEvent2::Answer(message) => Some(message.as_bytes().to_vec()),
            ResponderEvent2::Dropped(_) | ResponderEvent2::Characteristics(_) | ResponderEvent2::Reply => {
                None
            }
            other => panic!("{other:?}"),
        }
    };
    // REQXCH with three wishes: all are rejected, under its xid.
    let asked = words(&[9, 2, 1, 5, 0, 2, 40, 3, 1, 4, 8192, 99, 4, 0, 98, 4, 0]);
    let expected = words(&[9, 2, SLOTS, 5, 1, 3, 16, 0, 1, 0b111, 0]);
    assert_eq!(answer(&asked), Some(expected));
    assert_eq!(answer(&words(&[9, 2, 1, 5, 0, 77, 0])), Some(words(&[9, 2, SLOTS, 4, 3])), "INVAL_OPTION");
    assert_eq!(answer(&words(&[9, 2, 1, 9, 0, 0, 0, 0])), Some(words(&[9, 2, SLOTS, 4, 2])), "BAD_HEADER");
    assert_eq!(
        answer(&words(&[9, 3, 1, 0, 0, 0, 0, 0])),
        Some(words(&[9, 3, SLOTS, 4, 1, 1, 2])),
        "ERR_VERS"
    );
    assert_eq!(answer(&words(&[9, 2, 1, 5, 1, 77, 0])), None, "an answer is never answered");
    assert_eq!(answer(&words(&[9, 2, 1])), None);
    let refused = Header2::parse(&words(&[9, 2, 1, 9, 0, 0, 0, 0])).expect_err("no such procedure").answer;
    assert_eq!(refused, Answer2::BadHeader);
}

/// INITXCH and UPDXCH of a Receive of 8192 octets.
fn told(direction: MessageType) -> [Vec<u8>; 2] {
    let direction = direction.number();
    [
        words(&[9, 2, 1, 5, direction, option::INITXCH, 20, 1, 1, 4, 8192, 0]),
        words(&[9, 2, 1, 5, direction, option::UPDXCH, 16, 1, 4, 8192, 1]),
    ]
}

#[test]
fn what_a_client_tells_of_itself_may_have_either_direction() {
    // XC-X-4 RTR-X-26 RTR-4.2-a V2-X-5
    for direction in [MessageType::Call, MessageType::Reply] {
        for message in told(direction) {
            // In the midst of a Call.
            let mut pair = pair();
            let full = pair.layout.len();
            let (_, sends) = group_of(&mut pair, full, 0);
            pair.responder.receives_posted(2);
            let (first, _) = pair.responder2.handle_receive(&mut pair.responder, &sends[0], None);
            assert!(matches!(first, ResponderEvent2::Part { .. }));
            let (event, broken) =
                pair.responder2.handle_receive(&mut pair.responder, &message, Some(&sends[0]));
            assert!(matches!(event, ResponderEvent2::Characteristics(_)), "{direction:?} {event:?}");
            assert_eq!(broken.is_some(), direction == MessageType::Call);
            // Cut off: a sender of Calls learns of it, and an answer is never answered.
            pair.responder.receives_posted(1);
            let cut = &message[..message.len() - 4];
            let (event, _) = pair.responder2.handle_receive(&mut pair.responder, cut, None);
            assert_eq!(
                matches!(event, ResponderEvent2::Answer(_)),
                direction == MessageType::Call,
                "{event:?}"
            );
        }
    }
}

#[test]
fn what_a_server_tells_of_itself_may_have_either_direction() {
    // XC-X-4 RTR-X-26 RTR-4.2-a
    for direction in [MessageType::Call, MessageType::Reply] {
        for message in told(direction) {
            // In the midst of a Reply: the first seed whose Reply is a group.
            let divided = (1..).find_map(|seed| {
                let mut pair = pair();
                let (_, sends) = group_of(&mut pair, 100, 3);
                pair.to_server.extend(sends);
                while !pair.to_server.is_empty() {
                    pair.server_takes();
                }
                pair.answer(&mut Random::new(seed));
                (pair.to_client.len() > 1).then_some(pair)
            });
            let mut pair = divided.expect("a seed");
            let lead = pair.to_client[0].clone();
            let part = client(&mut pair, &lead);
            assert!(matches!(part, RequesterEvent2::Part { .. }), "{part:?}");
            let (event, broken) =
                pair.requester2.handle_receive(&mut pair.requester, &message, None, Some(&lead));
            assert!(matches!(event, RequesterEvent2::Characteristics(_)), "{direction:?} {event:?}");
            assert_eq!(broken.is_some(), direction == MessageType::Reply);
        }
    }
}

#[test]
fn a_chunked_call_is_the_same_in_both_versions() {
    // 8166-3.4.5-b V2-4.2.1-a
    let mut pair = pair();
    let call = pair.requester.begin().expect("a credit");
    let payload = words(&[call.xid(), 0, 1, 2, 3, 4]);
    let read = ReadSegment { position: 24, segment: Segment { handle: 5, length: 6001, offset: 9 } };
    let (write, room) =
        (Segment { handle: 6, length: 500, offset: 0 }, Segment { handle: 7, length: 9000, offset: 0 });
    let shape = Shape {
        payload_len: 24,
        read_segments: 1,
        write_chunks: &[1],
        reply_payload_len_max: 9000,
        ..Shape::default()
    };
    // What Replies may be here is what a Receive holds.
    pair.own.layout = ReceiveLayout::plain(4096);
    let form = pair.requester2.plan(&pair.requester, &pair.peer, &pair.own, &shape).expect("it fits");
    assert!(form.reply_chunk && !form.long);
    let lists = ChunkLists { reads: &[read], writes: &[&[write]], reply: Some(&[room]) };
    let mut out = vec![0; 4096];
    let len =
        pair.requester2.emit_call(&mut pair.requester, call, &form, &lists, &mut out).expect("as planned");
    assert_eq!(len as u32, form.header_len);
    out.truncate(len);
    out.extend(&payload);
    let (event, _) = pair.responder2.handle_receive(&mut pair.responder, &out, None);
    let ResponderEvent2::Call(received) = event else { panic!("{event:?}") };
    let id = received.id;
    let chunks: Vec<_> = received.read_chunks().map(|chunk| (chunk.position, chunk.len)).collect();
    assert_eq!((chunks, received.write_room(0)), (vec![(24, 6001)], Some(500)));
    assert_eq!(received.reply_chunk().map(|chunk| chunk.total_len()), Some(9000));
    let form = pair.responder.plan_reply(id, &out, &[400], 8000).expect("it fits");
    assert!(form.long);
    let mut reply = vec![0; 4096];
    let emitted = pair.responder.emit_reply(id, &out, &[400], &form, &mut reply).expect("in process");
    assert_eq!(emitted.header_len as u32, form.header_len);
    let event = client(&mut pair, &reply[..emitted.header_len]);
    let RequesterEvent2::Base(RequesterReceived::Reply(reply)) = event else { panic!("{event:?}") };
    assert_eq!((reply.call, reply.payload), (call, requester::ReplyPayload::Long(8000)));
    assert_eq!(reply.write_lens().collect::<Vec<_>>(), [400]);
    let mut handles: Vec<u32> = std::iter::from_fn(|| pair.requester.poll_fence(call)).collect();
    handles.sort_unstable();
    assert_eq!(handles, [5, 6, 7]);
    // And refused in its own version.
    for handle in handles {
        let _ = pair.requester.handle_fenced(call, handle);
    }
    let null = words(&[1234, 2, 9, 0, 0, 0, 0, 0, 1234, 0]);
    let (event, _) = pair.responder2.handle_receive(&mut pair.responder, &null, None);
    let ResponderEvent2::Call(received) = event else { panic!("{event:?}") };
    let error = pair.responder.refuse(received.id, responder::RefusedCall::Ineligible).expect("in process");
    assert_eq!(error.as_bytes()[4..8], [0, 0, 0, 2]);
}
