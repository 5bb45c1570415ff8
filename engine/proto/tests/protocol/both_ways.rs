//! Calls both ways on one connection (RFC 8167): an end is Requester and Responder at once.

use stag_proto::direction::{Recipient, Roles, Stray};
use stag_proto::receives::{ReceivePurpose, Receives};
use stag_proto::requester::{self, ChunkLists, EndedCall, PlanError, Requester, Shape};
use stag_proto::responder::{self, ChunkLimits, RefusedCall, Responder};
use stag_wire::rpcrdma::{Done, HeaderError};
use stag_wire::rpcrdma2::option;
use stag_wire::rpcrdma2::procedure::OPTIONAL;

use crate::support::*;

/// An end that takes Calls.
const SERVES: Roles = Roles { responds: true, exposes_replies: false, pulls_replies: false };

fn recipient(message: &[u8]) -> Recipient {
    Recipient::of(message, &SERVES, |_| false)
}

#[test]
fn the_msg_type_tells_the_direction_and_not_who_connected() {
    // 8167-2-a 8167-5.1-b 8167-5.2-a 8167-L-1
    assert_eq!(recipient(&Message::call(7).bytes()), Recipient::Responder);
    assert_eq!(recipient(&Message::reply(7, 1).bytes()), Recipient::Requester);
    let chunk = [segment(1, 64)];
    for message in [Message::call(7), Message::reply(7, 1)] {
        let expected = recipient(&message.bytes());
        assert_eq!(recipient(&message.clone().write(&chunk).bytes()), expected);
        assert_eq!(recipient(&message.clone().reply_chunk(&[segment(1, 0)]).bytes()), expected);
    }
    // A long Payload stream is where its sender's role has it.
    let long = |message: Message| recipient(&message.nomsg().bytes());
    assert_eq!(long(Message::call(7).read(0, segment(1, 64))), Recipient::Responder);
    assert_eq!(long(Message::call(7).read(0, segment(1, 64)).reply_chunk(&chunk)), Recipient::Responder);
    assert_eq!(long(Message::reply(7, 1).reply_chunk(&chunk)), Recipient::Requester);
    assert_eq!(long(Message::reply(7, 1).write(&chunk)), Recipient::Dropped(Stray::NoDirection));
    // Neither CALL nor REPLY.
    let message = Message::new(7, 1, 2).bytes();
    assert_eq!(recipient(&message), Recipient::Dropped(Stray::NoDirection));
}

#[test]
fn in_version_2_the_direction_word_tells_the_direction() {
    // V2-3.2-a V2-4.2.2-b V2-4.2.2-c V2-4.2.2-d XC-X-4 XC-X-7
    let of = |message: &[u32]| {
        Recipient::of_version2(&words(message), |_| panic!("a direction that can be read is enough"))
    };
    let by_word = [Recipient::Responder, Recipient::Requester];
    for (direction, expected) in (0..).zip(by_word) {
        // Whatever the Payload stream says: its recipient compares the two.
        for msg_type in [0, 1] {
            assert_eq!(of(&[7, 2, 1, MSG, direction, 0, 0, 0, 7, msg_type]), expected);
        }
        // Both have a chunk, and no Payload stream to look into.
        assert_eq!(of(&[7, 2, 1, NOMSG, direction, 1, 0, 5, 64, 0, 0, 0, 0, 0]), expected);
        assert_eq!(of(&[7, 2, 1, NOMSG, direction, 0, 0, 1, 1, 5, 64, 0, 0]), expected);
        // Operations: those of groups, and an unknown one.
        for option in [option::XMTREQ, option::XMTRESP, option::XMTCONT, option::XMTERR, 4242] {
            assert_eq!(of(&[7, 2, 1, OPTIONAL, direction, option, 0]), expected, "{option}");
        }
        assert_eq!(of(&[7, 2, 1, OPTIONAL, direction, option::RESPXCH, 0]), expected);
        // What an end tells of itself is for the role that has Receives for it.
        for option in [option::INITXCH, option::REQXCH, option::UPDXCH] {
            assert_eq!(of(&[7, 2, 1, OPTIONAL, direction, option, 0]), Recipient::First, "{option}");
        }
    }
    for code in [[1, 1, 2], [2, 0, 0], [3, 0, 0], [99, 0, 0]] {
        assert_eq!(of(&[&[7, 2, 1, ERROR][..], &code].concat()), Recipient::Requester, "{code:?}");
    }
    // Of a Call that is broken behind its direction its sender learns; a Reply is dropped (V2-X-5).
    assert_eq!(of(&[7, 2, 1, MSG, 0, 9, 9, 9]), Recipient::Responder);
    assert_eq!(of(&[7, 2, 1, MSG, 1, 9, 9, 9]), Recipient::Requester);
}

#[test]
fn a_message_of_version_2_without_a_direction_may_be_the_reply_to_a_call_of_ours() {
    // 8167-X-1 V2-X-6 V2-X-7
    let of = |message: &[u32], called| Recipient::of_version2(&words(message), |xid| called && xid == 7);
    let without_direction =
        [[7, 2, 1, MSG, 2, 0, 0, 0], [7, 2, 1, 9, 0, 0, 0, 0], [7, 3, 1, MSG, 0, 0, 0, 0]];
    for message in without_direction {
        assert_eq!(of(&message, false), Recipient::Responder, "{message:?}");
        assert_eq!(of(&message, true), Recipient::Requester, "{message:?}");
    }
    assert_eq!(of(&[7, 2, 1, MSG, 0], false), Recipient::Requester, "too short: it is dropped");
    // Version 1, and what is too short for any version: of before version 2 was agreed on.
    for message in [Message::call(7).bytes(), Message::reply(7, 1).bytes(), words(&[7])] {
        assert_eq!(Recipient::of_version2(&message, |_| true), Recipient::First);
    }
}

#[test]
fn an_error_answers_a_call_of_the_receivers_own() {
    // 8167-D-1 8167-D-2
    for error in [err_chunk(7, 9), err_vers(7, 1, 9, 1, 1)] {
        assert_eq!(recipient(&error), Recipient::Requester);
        let mut requester = requester(4);
        let call = send_null(&mut requester);
        let granted = requester.window().granted();
        let mut error = error;
        error[..4].copy_from_slice(&call.xid().to_be_bytes());
        let received = requester.handle_receive(&error, None);
        assert!(
            matches!(received, requester::RequesterReceived::Failed { call: failed, .. } if failed == call)
        );
        assert_eq!(requester.window().granted(), granted, "its credits are ignored");
    }
    // An error that cannot be decoded answers nothing, and is not answered.
    let message = words(&[7, 1, 1, ERROR, 9]);
    assert_eq!(recipient(&message), Recipient::Dropped(Stray::Unreadable(HeaderError::ErrorBody)));
}

#[test]
fn what_cannot_be_read_is_answered_unless_it_may_be_a_reply() {
    // 8167-X-1
    for message in
        [words(&[7, 1, 1, MSG, 9, 0, 0]), words(&[7, 1, 1, MSGP, 0, 0, 0]), words(&[7, 3, 1, MSG, 0, 0, 0])]
    {
        let found = Recipient::of(&message, &SERVES, |xid| xid == 8);
        assert_eq!(found, Recipient::Responder);
        assert!(matches!(responder(1).handle_receive(&message), responder::ResponderReceived::Error(_)));
        let found = Recipient::of(&message, &SERVES, |xid| xid == 7);
        assert!(matches!(found, Recipient::Dropped(Stray::Unreadable(_))), "{found:?}");
    }
    let short = &Message::call(7).bytes()[..32];
    assert_eq!(Recipient::of(short, &SERVES, |_| false), Recipient::Responder);
    assert_eq!(Recipient::of(short, &SERVES, |_| true), Recipient::Dropped(Stray::NoDirection));
    let found = Recipient::of(&[0; 15], &SERVES, |_| false);
    assert_eq!(found, Recipient::Dropped(Stray::Unreadable(HeaderError::Short)));
}

#[test]
fn a_call_before_the_service_is_there_is_for_nobody() {
    // 8167-6-a 8167-3.2-a
    let roles = Roles::default();
    for message in [Message::call(7).bytes(), Message::call(7).read(8, segment(1, 4)).bytes()] {
        let found = Recipient::of(&message, &roles, |_| false);
        assert_eq!(found, Recipient::Dropped(Stray::NoService));
    }
    let reply = Message::reply(7, 1).bytes();
    assert_eq!(Recipient::of(&reply, &roles, |_| false), Recipient::Requester);
    // Nor is a message answered that may have been one.
    let broken = words(&[7, 1, 1, MSG, 9, 0, 0]);
    assert_eq!(Recipient::of(&broken, &roles, |_| false), Recipient::Dropped(Stray::NoService));
}

#[test]
fn a_position_zero_read_chunk_is_a_reply_only_where_that_was_agreed() {
    // RR-X-1 RR-P-1
    let message = Message::call(7).read(0, segment(1, 64)).nomsg().bytes();
    assert_eq!(recipient(&message), Recipient::Responder);
    let pulls = Roles { pulls_replies: true, ..SERVES };
    assert_eq!(Recipient::of(&message, &pulls, |_| false), Recipient::Requester);
    let exposes = Roles { exposes_replies: true, ..SERVES };
    assert_eq!(Recipient::of(&message, &exposes, |_| false), Recipient::Responder);
    let done = words(&[7, 1, 9, DONE]);
    assert_eq!(recipient(&done), Recipient::Dropped(Stray::NotAgreed));
    let found = Recipient::of(&done, &exposes, |_| true);
    assert_eq!(found, Recipient::Exposed(Done { xid: 7, credits: 9 }), "whatever Calls of ours there are");
    let only = Roles { responds: false, ..exposes };
    assert!(matches!(Recipient::of(&done, &only, |_| false), Recipient::Exposed(_)));
}

#[test]
fn the_same_xid_both_ways_is_two_calls() {
    // 8167-2.4-a
    let (mut requester, mut responder) = (requester(2), responder(2));
    let own = send_null(&mut requester);
    let message = Message::call(own.xid()).bytes();
    assert_eq!(Recipient::of(&message, &SERVES, |xid| requester.has_call(xid)), Recipient::Responder);
    let theirs = receive_call(&mut responder, &message);
    let reply = Message::reply(own.xid(), 2).bytes();
    assert_eq!(Recipient::of(&reply, &SERVES, |xid| requester.has_call(xid)), Recipient::Requester);
    let received = requester.handle_receive(&reply, None);
    assert!(matches!(received, requester::RequesterReceived::Reply(reply) if reply.call == own));
    assert_eq!(responder.grant().in_process(), 1, "the peer's goes on");
    assert!(!requester.has_call(own.xid()));
    answer(&mut responder, theirs, &message);
}

#[test]
fn credits_of_the_two_directions_do_not_mix() {
    // 8167-4.1-a 8167-4.1-b 8167-4.1-d 8167-4.1-e
    let mut requester = requester_with(8, parameters(1024, 1024, false));
    let mut responder = responder_with(2, parameters(1024, 1024, false));
    assert_eq!((requester.window().granted(), responder.grant().granted()), (1, 1), "one each at first");
    let own = send_null(&mut requester);
    // A Call asks for 30 in its direction. That is no grant in ours.
    let message = Message { credits: 30, ..Message::call(5) }.bytes();
    let theirs = receive_call(&mut responder, &message);
    assert_eq!((responder.credits_requested(), requester.window().granted()), (30, 1));
    // The Reply to ours grants 6. That is no request in theirs.
    let reply = Message::reply(own.xid(), 6).bytes();
    let received = requester.handle_receive(&reply, None);
    assert!(matches!(received, requester::RequesterReceived::Reply(_)));
    assert_eq!((requester.window().granted(), responder.credits_requested()), (6, 30));
    let reply = answer(&mut responder, theirs, &message);
    assert_eq!(reply[8..12], [0, 0, 0, 2], "the grant of their direction");
}

#[test]
fn thresholds_follow_the_way_of_travel() {
    // 8167-4.2-a
    let forward = parameters(4096, 2048, true);
    let reverse = forward.reversed();
    assert_eq!((reverse.call_threshold, reverse.reply_threshold), (2048, 4096));
    assert!(!reverse.remote_invalidation, "nothing was said about the handles of the other end");
    assert_eq!(reverse.reversed(), parameters(4096, 2048, false));
}

#[test]
fn a_requester_that_does_not_know_of_more_sends_short_calls_only() {
    // 8167-5.3-a 8167-5.3-c
    let mut requester = Requester::new(&requester::RequesterConfig {
        slots: 2,
        parameters: parameters(1024, 1024, false),
        credits_requested: 2,
        segments_max: 0,
        xid_seed: 9,
    });
    let short = Shape { payload_len: 996, reply_payload_len_max: 996, ..Shape::default() };
    let form = requester.plan(&short).expect("it fits");
    assert!(!form.long && !form.reply_chunk);
    let call = requester.begin().expect("the first credit");
    let len = requester.emit_call(call, &form, &ChunkLists::default(), &mut [0; 1024]);
    assert_eq!(len, Ok(28));
    for shape in [
        Shape { payload_len: 997, ..short },
        Shape { reply_payload_len_max: 997, ..short },
        Shape { read_segments: 1, ..short },
        Shape { write_chunks: &[1], ..short },
        Shape { prefer_long_call: true, ..short },
    ] {
        let refused = requester.plan(&shape);
        assert!(matches!(refused, Err(PlanError::Segments { limit: 0, .. })), "{shape:?}: {refused:?}");
    }
}

#[test]
fn a_responder_without_chunks_refuses_them() {
    // 8167-5.3-b
    let config = responder::ResponderConfig {
        slots: 1,
        parameters: parameters(1024, 1024, false),
        limits: ChunkLimits::SHORT,
    };
    let chunk = [segment(1, 64)];
    for message in [
        Message::call(7).read(96, chunk[0]),
        Message::call(7).write(&chunk),
        Message::call(7).write(&[]),
        Message::call(7).reply_chunk(&chunk),
        Message::call(7).read(0, chunk[0]).nomsg(),
    ] {
        let mut responder = Responder::new(&config);
        responder.receives_posted(1);
        let error = receive_error(&mut responder, &message.bytes());
        assert_eq!(error[..20], err_chunk(7, 1), "{message:?}");
        assert_eq!(responder.grant().in_process(), 0);
    }
    let mut responder = Responder::new(&config);
    responder.receives_posted(1);
    let message = Message::call(7).bytes();
    let id = receive_call(&mut responder, &message);
    assert!(responder.refuse(id, RefusedCall::Payload).is_some());
}

#[test]
fn calls_outlive_a_lost_connection_with_their_xid() {
    // 8167-5.4-a 8167-5.1-a 8167-4.3-c
    let mut requester = requester(2);
    let mut receives = Receives::new();
    receives.post(2);
    assert_eq!(receives.promise(ReceivePurpose::Reply, 1), 1);
    let call = send_null(&mut requester);
    let mut told = Vec::new();
    requester.handle_interruption(|call, outcome| {
        told.push((call, outcome));
        true
    });
    receives.handle_disconnect();
    assert_eq!(told, [(call, EndedCall::MaybeExecuted)]);
    assert_eq!((receives.posted(), receives.entitled()), (0, 0));

    requester.handle_reconnect(parameters(1024, 1024, false));
    // First the Receive of each Call that is sent again, and of the first Call that the peer may send.
    assert_eq!(receives.promise(ReceivePurpose::Reply, 1), 0, "none is posted yet");
    receives.post(2);
    assert_eq!(receives.promise(ReceivePurpose::Reply, 1), 1);
    assert_eq!(receives.promise(ReceivePurpose::Call, 9), 1);
    assert!(requester.resume(call));
    let form = requester.plan(&Shape { payload_len: 40, ..Shape::default() }).expect("a NULL Call");
    let mut out = [0; 1024];
    requester.emit_call(call, &form, &ChunkLists::default(), &mut out).expect("a header");
    assert_eq!(out[..4], call.xid().to_be_bytes());
    assert_eq!(out[4..8], [0, 0, 0, 1], "the version of the forward Calls");
}

#[test]
fn receives_are_posted_for_both_directions_together() {
    // 8167-4.3-a 8167-4.3-b RR-P-8
    let (reply, call, done) = (ReceivePurpose::Reply, ReceivePurpose::Call, ReceivePurpose::Done);
    let mut receives = Receives::new();
    receives.post(6);
    assert_eq!(receives.promise(call, 3), 3);
    assert_eq!(receives.promise(reply, 2), 2);
    assert_eq!(receives.promise(done, 2), 1, "no more than there are");
    assert_eq!((receives.entitled(), receives.free(), receives.missing()), (6, 0, 0));
    assert!(receives.consume(Some(call)));
    assert!(receives.consume(Some(reply)));
    assert!(receives.consume(Some(done)));
    assert_eq!((receives.posted(), receives.entitled(), receives.missing()), (3, 3, 0));
    // A second RDMA_DONE, and a message that is dropped, take what was promised to others.
    assert!(!receives.consume(Some(done)));
    assert!(!receives.consume(None));
    assert_eq!((receives.posted(), receives.entitled(), receives.missing(), receives.free()), (1, 3, 2, 0));
    assert_eq!(receives.promise(reply, 1), 0, "first what is missing");
    receives.post(3);
    assert_eq!((receives.missing(), receives.free()), (0, 1));
    // A Call that was not sent needs none.
    assert_eq!(receives.promise(reply, 1), 1);
    receives.withdraw(reply, 1);
    assert_eq!(receives.free(), 1);
    assert_eq!([reply, call, done].map(|purpose| receives.promised(purpose)), [1, 2, 0]);
}

#[test]
#[should_panic(expected = "withdrawn once")]
fn a_promise_is_withdrawn_once() {
    let mut receives = Receives::new();
    receives.post(1);
    assert_eq!(receives.promise(ReceivePurpose::Reply, 1), 1);
    receives.withdraw(ReceivePurpose::Reply, 2);
}
