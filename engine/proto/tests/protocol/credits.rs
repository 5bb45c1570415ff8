//! Credits at both ends (8166-3.3).

use stag_proto::credits::Grant;
use stag_proto::requester::{self, CallFailure, DroppedReply};
use stag_proto::responder::{self, ResponderMisuse};

use crate::support::*;

fn credits_of(header: &[u8]) -> u32 {
    u32::from_be_bytes([header[8], header[9], header[10], header[11]])
}

fn reply(requester: &mut requester::Requester, xid: u32, credits: u32) {
    let message = Message::reply(xid, credits).bytes();
    assert!(matches!(requester.handle_receive(&message, None), requester::RequesterReceived::Reply(_)));
}

#[test]
fn a_new_connection_has_one_credit_until_the_first_valid_reply() {
    // 8166-3.3.3-a
    let mut requester = requester_with(8, parameters(1024, 1024, false));
    let call = send_null(&mut requester);
    assert_eq!(requester.begin(), None);
    reply(&mut requester, call.xid(), 8);
    assert_eq!(requester.available(), 8);
}

#[test]
fn calls_in_flight_are_bounded_by_the_request_and_by_the_grant() {
    // 8166-3.3.1-b LX-6
    for (requested, granted, allowed) in [(8, 4, 4), (4, 8, 4), (8, u32::MAX, 8), (3, 3, 3)] {
        let mut requester = requester(8);
        requester.set_credits_requested(requested);
        let call = send_null(&mut requester);
        reply(&mut requester, call.xid(), granted);
        let mut sent = 0;
        while requester.begin().is_some() {
            sent += 1;
        }
        assert_eq!(sent, allowed, "requested {requested}, granted {granted}");
    }
}

#[test]
fn reserved_credits_are_left_for_others() {
    let mut requester = requester(8);
    let call = send_null(&mut requester);
    reply(&mut requester, call.xid(), 3);
    assert!(requester.begin_beyond(1).is_some());
    assert!(requester.begin_beyond(1).is_some());
    assert_eq!(requester.begin_beyond(1), None);
    assert!(requester.begin().is_some(), "the one that was left");
}

#[test]
fn a_call_requests_and_a_reply_grants() {
    // 8166-3.3.1-a 8166-4.2.3-a
    let mut requester = requester(8);
    requester.set_credits_requested(5);
    let (_, header) = send(&mut requester, &requester::ChunkLists::default());
    assert_eq!(credits_of(&header), 5);

    let mut responder = responder(8);
    responder.set_credit_limit(6);
    let mut message = Message::call(1);
    message.credits = 5;
    let message = message.bytes();
    let id = receive_call(&mut responder, &message);
    assert_eq!(responder.credits_requested(), 5);
    assert_eq!(credits_of(&answer(&mut responder, id, &message)), 6);
}

#[test]
fn more_credits_than_slots_are_not_requested() {
    // 8166-3.3.1-b
    let mut requester = requester(4);
    requester.set_credits_requested(100);
    let (_, header) = send(&mut requester, &requester::ChunkLists::default());
    assert_eq!(credits_of(&header), 4);
}

#[test]
fn a_grant_of_0_counts_as_1() {
    // 8166-X-7 LX-6
    let mut requester = requester(8);
    let call = send_null(&mut requester);
    reply(&mut requester, call.xid(), 0);
    assert_eq!(requester.available(), 1);
}

#[test]
fn a_grant_that_shrinks_below_what_is_in_flight_takes_nothing_back() {
    // 8166-3.3.1-b 8166-3.3.1-d
    let mut requester = requester(4);
    let calls: Vec<_> = (0..4).map(|_| send_null(&mut requester)).collect();
    reply(&mut requester, calls[0].xid(), 2);
    assert_eq!((requester.window().in_flight(), requester.available()), (3, 0));
    reply(&mut requester, calls[1].xid(), 2);
    assert_eq!((requester.window().in_flight(), requester.available()), (2, 0));
    reply(&mut requester, calls[2].xid(), 2);
    assert_eq!((requester.window().in_flight(), requester.available()), (1, 1));
    reply(&mut requester, calls[3].xid(), 4);
    assert_eq!((requester.window().in_flight(), requester.available()), (0, 4));
}

#[test]
fn the_credit_field_of_an_error_is_ignored() {
    // 8166-X-6 8166-3.3.3-a
    let mut requester = requester_with(8, parameters(1024, 1024, false));
    let call = send_null(&mut requester);
    let message = err_chunk(call.xid(), 8);
    let received = requester.handle_receive(&message, None);
    assert!(matches!(received, requester::RequesterReceived::Failed { failure: CallFailure::Chunk, .. }));
    assert_eq!(requester.available(), 1, "the credit is back, and it is still the only one");
}

#[test]
fn a_reply_with_an_unknown_xid_keeps_its_grant() {
    // 8166-X-10
    let mut requester = requester(8);
    let message = Message::reply(1, 3).bytes();
    let received = requester.handle_receive(&message, None);
    assert!(matches!(received, requester::RequesterReceived::Dropped(DroppedReply::UnknownXid(1))));
    assert_eq!(requester.available(), 3);
}

#[test]
fn a_request_for_0_counts_as_1() {
    // 8166-X-8
    let mut responder = responder(4);
    let mut message = Message::call(1);
    message.credits = 0;
    receive_call(&mut responder, &message.bytes());
    assert_eq!(responder.credits_requested(), 1);

    let mut requester = requester(4);
    requester.set_credits_requested(0);
    assert_eq!(requester.available(), 1);
}

#[test]
fn a_grant_is_never_0() {
    // 8166-3.3.1-c
    let mut responder = responder(4);
    responder.set_credit_limit(0);
    let message = Message::call(1).bytes();
    let id = receive_call(&mut responder, &message);
    assert_eq!(credits_of(&answer(&mut responder, id, &message)), 1);
}

#[test]
fn a_grant_grows_only_after_the_receives_are_posted() {
    // 8166-3.3.1-d
    let mut responder = responder::Responder::new(&responder::ResponderConfig {
        slots: 16,
        parameters: parameters(1024, 1024, false),
        limits: limits(),
    });
    responder.receives_posted(2);
    let mut granted = Vec::new();
    for (xid, posted) in [(1, 0), (2, 2), (3, 0), (4, 100)] {
        responder.receives_posted(posted);
        let message = Message::call(xid).bytes();
        let id = receive_call(&mut responder, &message);
        granted.push(credits_of(&answer(&mut responder, id, &message)));
    }
    assert_eq!(granted, [2, 4, 4, 16]);
}

#[test]
fn a_grant_shrinks_while_calls_are_in_process() {
    // 8166-3.3.1-d
    let mut responder = responder(4);
    let messages: Vec<_> = (1..=4).map(|xid| Message::call(xid).bytes()).collect();
    let ids: Vec<_> = messages.iter().map(|message| receive_call(&mut responder, message)).collect();
    responder.set_credit_limit(2);
    assert_eq!(credits_of(&answer(&mut responder, ids[0], &messages[0])), 2);

    // The peer may have sent this before it saw that the grant shrank.
    let late = Message::call(5).bytes();
    let id = receive_call(&mut responder, &late);
    assert_eq!(credits_of(&answer(&mut responder, id, &late)), 2);
}

#[test]
fn a_message_that_was_dropped_takes_a_receive_until_it_is_posted_again() {
    // 8166-3.3.1-d
    let mut responder = responder(4);
    let done = words(&[1, 1, 4, DONE]);
    let _ = responder.handle_receive(&done);
    let message = Message::call(1).bytes();
    let id = receive_call(&mut responder, &message);
    assert_eq!(credits_of(&answer(&mut responder, id, &message)), 3);
    responder.receives_posted(1);
    let id = receive_call(&mut responder, &message);
    assert_eq!(credits_of(&answer(&mut responder, id, &message)), 4);
}

#[test]
fn an_error_carries_the_present_grant() {
    // 8166-X-6
    let mut responder = responder(4);
    responder.set_credit_limit(3);
    let mut message = Message::call(9);
    message.procedure = MSGP;
    assert_eq!(receive_error(&mut responder, &message.bytes()), err_chunk(9, 3));
}

#[test]
fn more_calls_than_were_granted_end_the_connection() {
    // 8166-3.3.1-b 8166-3.3.3-a
    let mut fresh = responder_with(4, parameters(1024, 1024, false));
    receive_call(&mut fresh, &Message::call(1).bytes());
    let message = Message::call(2).bytes();
    let received = fresh.handle_receive(&message);
    assert!(matches!(
        received,
        responder::ResponderReceived::Close(ResponderMisuse::TooManyCalls { granted: 1 })
    ));

    let mut granted = responder(4);
    for xid in 1..=4 {
        receive_call(&mut granted, &Message::call(xid).bytes());
    }
    let message = Message::call(5).bytes();
    let received = granted.handle_receive(&message);
    assert!(matches!(
        received,
        responder::ResponderReceived::Close(ResponderMisuse::TooManyCalls { granted: 4 })
    ));
    assert_eq!(granted.grant().in_process(), 4);
}

#[test]
fn a_call_that_is_answered_at_once_changes_a_grant_as_its_steps_do() {
    // 8166-3.3.1-d
    for (receives, limit, in_process) in
        (0..6).flat_map(|receives| (0..7).flat_map(move |limit| (0..4).map(move |n| (receives, limit, n))))
    {
        let mut at_once = Grant::new(4);
        at_once.receives_posted(receives);
        at_once.renew(false);
        for _ in 0..in_process {
            let _ = at_once.start();
        }
        let mut by_steps = at_once;
        let granted = by_steps.start().then(|| {
            by_steps.set_limit(limit);
            let granted = by_steps.renew(false);
            by_steps.finish();
            granted
        });
        assert_eq!(at_once.answer_at_once(limit), granted, "{receives} Receives, limit {limit}");
        assert_eq!(at_once, by_steps);
    }
}
