//! The order in which a received message is checked (section 12 of the notes), at both ends.

use stag_proto::requester::{self, Requester};
use stag_proto::responder::{self, DroppedCall, RefusedCall, Responder, ResponderReceived};
use stag_wire::rpcrdma::HeaderError;

use crate::support::*;

/// Messages that no Responder answers, and no Requester takes.
fn ignored_by_both() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("nothing", vec![]),
        ("15 octets", words(&[7, 1, 8, MSG])[..15].to_vec()),
        ("RDMA_DONE", words(&[7, 1, 8, DONE])),
        ("RDMA_DONE with more behind", words(&[7, 1, 8, DONE, 1, 2, 3, 4, 5, 6])),
        ("RDMA_MSG of 16 octets", words(&[7, 1, 8, MSG])),
        ("RDMA_MSG of 27 octets", words(&[7, 1, 8, MSG, 0, 0, 0])[..27].to_vec()),
        ("RDMA_NOMSG of 24 octets", words(&[7, 1, 8, NOMSG, 0, 0])),
        ("RDMA_ERROR without a code", words(&[7, 1, 8, ERROR])),
        ("RDMA_ERROR with an unknown code", words(&[7, 1, 8, ERROR, 3, 1, 1])),
        ("ERR_VERS that is cut", words(&[7, 1, 8, ERROR, 1, 1])),
        ("ERR_CHUNK of another version", words(&[7, 2, 8, ERROR, 2])),
    ]
}

#[test]
fn a_responder_answers_nothing_to_a_message_that_is_too_short_done_or_an_error() {
    // 8166-4.5-a 8166-X-1 8166-4.6.2-a 8166-4.2.4-c LX-1
    let mut responder = responder(4);
    for (what, message) in ignored_by_both() {
        let why = receive_dropped(&mut responder, &message);
        assert!(matches!(why, DroppedCall::Header(_)), "{what}: {why:?}");
    }
    // An error is never answered with an error, whatever its version.
    for message in [err_chunk(7, 8), err_vers(7, 1, 8, 1, 1), err_vers(7, 9, 8, 2, 3)] {
        receive_dropped(&mut responder, &message);
    }
    assert_eq!(responder.grant().in_process(), 0);
}

#[test]
fn a_requester_discards_every_header_that_is_in_error() {
    // 8166-4.5-c 8166-4.5-e 8166-X-1 8166-4.6.1-a 8166-4.6.2-a 8166-X-2 LX-5
    let mut requester = requester(4);
    let room = segment(9, 4096);
    let (call, _) =
        send(&mut requester, &requester::ChunkLists { reply: Some(&[room]), ..Default::default() });
    let xid = call.xid();
    let reply = || Message::reply(xid, 4);
    let mut messages: Vec<Vec<u8>> = ignored_by_both()
        .into_iter()
        .map(|(_, mut message)| {
            // As if it were for the Call in flight.
            if let Some(first) = message.first_chunk_mut() {
                *first = xid.to_be_bytes();
            }
            message
        })
        .collect();
    messages.extend([
        Message { version: 2, ..reply() }.bytes(),
        Message { procedure: MSGP, ..reply() }.bytes(),
        Message { procedure: 5, ..reply() }.bytes(),
        Message { payload: vec![0; 7], ..reply() }.bytes(),
        Message { payload: words(&[xid ^ 1, REPLY, 0, 0]), ..reply() }.bytes(),
        reply().read(96, segment(1, 4)).bytes(),
        reply().nomsg().read(0, segment(1, 4)).reply_chunk(&[room]).bytes(),
        reply().nomsg().bytes(),
        reply().nomsg().write(&[segment(1, 4)]).bytes(),
        reply().nomsg().reply_chunk(&[]).bytes(),
        reply().nomsg().reply_chunk(&[segment(9, 0)]).bytes(),
        reply().reply_chunk(&[room]).bytes(),
        words(&[xid, 1, 4, MSG, 2, 0, 0, xid, REPLY]),
        words(&[xid, 1, 4, MSG, 0, 7, 0, xid, REPLY]),
        words(&[xid, 1, 4, MSG, 0, 0, 9, xid, REPLY]),
        words(&[xid, 1, 4, MSG, 0, 1, 0x1000_0001, 0, 0, 0, 0, 0, xid, REPLY]),
        err_vers(xid, 3, 4, 3, 3),
    ]);
    for message in messages {
        let received = requester.handle_receive(&message, None);
        assert!(matches!(received, requester::RequesterReceived::Dropped(_)), "{message:x?}: {received:?}");
    }
    assert_eq!(requester.window().in_flight(), 1);
    let whole = reply().nomsg().reply_chunk(&[room]).bytes();
    assert!(matches!(requester.handle_receive(&whole, None), requester::RequesterReceived::Reply(_)));
}

#[test]
fn a_requester_drops_a_call() {
    // 8167-4.1-c
    let mut requester = requester(4);
    let call = send_null(&mut requester);
    let message = Message::call(call.xid()).bytes();
    let received = requester.handle_receive(&message, None);
    assert!(matches!(received, requester::RequesterReceived::Dropped(requester::DroppedReply::NotAReply)));
    assert_eq!(requester.window().granted(), 4, "what it carries is a request, not a grant");
}

#[test]
fn the_version_is_checked_before_all_else() {
    // 8166-4.5.1-a 8166-4.5-b 8166-7-a LX-1
    let mut responder = responder(4);
    for version in [0, 2, u32::MAX] {
        for procedure in [MSG, NOMSG, MSGP, DONE, 77] {
            let message = words(&[0xa000_0004, version, 8, procedure]);
            let answer = receive_error(&mut responder, &message);
            assert_eq!(answer, err_vers(0xa000_0004, version, 4, 1, 1), "procedure {procedure}");
        }
    }
}

#[test]
fn a_header_in_error_is_answered_with_err_chunk() {
    // 8166-4.5.2-a 8166-4.5-b 8166-4.6.1-a 8166-X-2 8166-X-3 8166-X-4 LX-1
    let call = || Message::call(5);
    let read = segment(1, 8);
    let messages = [
        ("MSGP", Message { procedure: MSGP, ..call() }.bytes()),
        ("procedure 5", Message { procedure: 5, ..call() }.bytes()),
        ("NOMSG without chunks", call().nomsg().bytes()),
        ("NOMSG with data Read chunk only", call().nomsg().read(96, read).bytes()),
        ("NOMSG with Write chunk only", call().nomsg().write(&[read]).bytes()),
        ("NOMSG with Reply chunk only", call().nomsg().reply_chunk(&[read]).bytes()),
        ("MSG with Position Zero Read chunk", call().read(0, read).bytes()),
        ("list word 2", words(&[5, 1, 8, MSG, 2, 0, 0, 5, CALL])),
        ("list word 2 in the Write list", words(&[5, 1, 8, MSG, 0, 2, 0, 5, CALL])),
        ("Reply chunk word 2", words(&[5, 1, 8, MSG, 0, 0, 2, 5, CALL])),
        ("Read list that never ends", words(&[5, 1, 8, MSG, 1, 96, 1, 8, 0, 0, 1, 96, 1, 8, 0, 0, 1])),
        ("Write chunk longer than the message", words(&[5, 1, 8, MSG, 0, 1, 60, 0, 0, 0, 0, 0, 0])),
        ("segment count that overflows", words(&[5, 1, 8, MSG, 0, 1, u32::MAX, 0, 0, 0, 0, 0, 0])),
        ("no Payload", Message { payload: vec![], ..call() }.bytes()),
        ("Payload of 7 octets", Message { payload: vec![0; 7], ..call() }.bytes()),
        ("other xid in the Payload", Message { payload: words(&[6, CALL, 2]), ..call() }.bytes()),
        (
            "segment beyond 64 bits",
            call()
                .write(&[stag_wire::rpcrdma::Segment { handle: 1, length: 2, offset: u64::MAX - 1 }])
                .bytes(),
        ),
    ];
    let mut responder = responder(4);
    for (what, message) in messages {
        assert_eq!(receive_error(&mut responder, &message), err_chunk(5, 4), "{what}");
    }
    assert_eq!(responder.grant().in_process(), 0);
}

#[test]
fn octets_behind_a_header_without_payload_are_ignored() {
    // 8166-X-5
    let mut responder = responder(4);
    let mut message = Message::call(5).nomsg().read(0, segment(1, 40));
    message.payload = b"anything".to_vec();
    receive_call(&mut responder, &message.bytes());

    let mut requester = requester(4);
    let call = send_null(&mut requester);
    let mut error = err_chunk(call.xid(), 4);
    error.extend(b"anything");
    assert!(matches!(requester.handle_receive(&error, None), requester::RequesterReceived::Failed { .. }));
}

#[test]
fn a_message_that_is_no_call_is_dropped() {
    // 5531-d
    let mut responder = responder(4);
    for msg_type in [REPLY, 2, u32::MAX] {
        let message = Message::new(5, 4, msg_type).bytes();
        assert_eq!(receive_dropped(&mut responder, &message), DroppedCall::NotACall);
    }
}

#[test]
fn a_call_whose_xid_is_in_process_is_dropped_and_answered_once() {
    // 5531-e
    let mut responder = responder(4);
    let message = Message::call(5).bytes();
    let id = receive_call(&mut responder, &message);
    assert_eq!(receive_dropped(&mut responder, &message), DroppedCall::DuplicateXid(5));
    answer(&mut responder, id, &message);
    // Answered: the xid is free again.
    receive_call(&mut responder, &message);
}

#[test]
fn a_duplicate_is_found_whatever_was_answered_in_between() {
    // 5531-e
    let mut responder = responder(8);
    let mut random = Random::new(5);
    let mut open: Vec<(u32, responder::ResponderCallId, Vec<u8>)> = Vec::new();
    for step in 0..2000 {
        let xid = random.below(12);
        let message = Message::call(xid).bytes();
        let known = open.iter().any(|(other, ..)| *other == xid);
        if known {
            assert_eq!(
                receive_dropped(&mut responder, &message),
                DroppedCall::DuplicateXid(xid),
                "step {step}"
            );
        } else if open.len() < 8 {
            let id = receive_call(&mut responder, &message);
            open.push((xid, id, message));
        }
        if !open.is_empty() && random.once_in(2) {
            let (_, id, message) = open.swap_remove(random.below(open.len() as u32) as usize);
            answer(&mut responder, id, &message);
        }
    }
}

#[test]
fn a_long_calls_payload_must_be_a_call_with_the_headers_xid() {
    // 8166-4.2.1-a 8166-4.5.2-a
    let pulled = |payload: &[u8]| -> (Responder, Result<(), Option<Vec<u8>>>) {
        let mut responder = responder(4);
        let message = Message::call(5).nomsg().read(0, segment(1, 40)).bytes();
        let id = receive_call(&mut responder, &message);
        let result = responder.handle_pulled(id, payload).map_err(|error| {
            error.map(|error| {
                assert_eq!(error.refused, RefusedCall::Payload);
                error.as_bytes().to_vec()
            })
        });
        (responder, result)
    };
    let (responder, result) = pulled(&words(&[5, CALL, 2]));
    assert_eq!((result, responder.grant().in_process()), (Ok(()), 1));
    for payload in [words(&[6, CALL, 2]), words(&[5, REPLY, 2]), words(&[5]), vec![]] {
        let (responder, result) = pulled(&payload);
        assert_eq!(result, Err(Some(err_chunk(5, 4))));
        assert_eq!(responder.grant().in_process(), 0);
    }
}

#[test]
fn a_long_replys_payload_must_be_a_reply_with_the_calls_xid() {
    // 8166-4.2.1-a
    let mut requester: Requester = requester(2);
    let call = send_null(&mut requester);
    assert!(call.is_reply(&words(&[call.xid(), REPLY, 0])));
    assert!(!call.is_reply(&words(&[call.xid(), CALL, 0])));
    assert!(!call.is_reply(&words(&[call.xid() + 1, REPLY, 0])));
    assert!(!call.is_reply(&call.xid().to_be_bytes()));
}

#[test]
fn the_reason_of_a_refusal_is_told_for_the_log() {
    // 8166-4.5.2-a
    let mut responder = responder(4);
    let message = Message { procedure: MSGP, ..Message::call(5) }.bytes();
    let ResponderReceived::Error(error) = responder.handle_receive(&message) else { panic!("an error") };
    assert_eq!(error.refused, RefusedCall::Header(HeaderError::Padded));
}
