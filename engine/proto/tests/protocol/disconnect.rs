//! The end of the connection, at every step of a Call.

use stag_proto::requester::{
    ChunkLists, EndedCall, ExposedMemory, Requester, RequesterCallId, RequesterReceived,
};
use stag_proto::responder::{DroppedCall, RefusedCall, ReplyError};

use crate::support::*;

/// Takes a Call to some step, and breaks the connection there.
fn outcome(steps: impl FnOnce(&mut Requester) -> RequesterCallId) -> Option<EndedCall> {
    let mut requester = requester(2);
    let call = steps(&mut requester);
    let mut outcomes = Vec::new();
    requester.handle_disconnect(|ended, outcome| {
        assert_eq!(ended, call);
        outcomes.push(outcome);
    });
    assert!(outcomes.len() <= 1);
    assert_eq!(requester.window().in_flight(), 0);
    assert_eq!((requester.available(), requester.begin()), (0, None), "no Call begins after the end");
    // Nothing that comes later finds the Call.
    let _ = requester.handle_receive(&Message::reply(call.xid(), 2).bytes(), None);
    assert_eq!(requester.poll_fence(call), None);
    assert_eq!(requester.handle_fenced(call, 7), None);
    requester.handle_disconnect(|_, _| panic!("every Call is reported once"));
    outcomes.pop()
}

fn sent(requester: &mut Requester) -> RequesterCallId {
    send(requester, &ChunkLists { reads: &[read_segment(96, 7, 64)], ..ChunkLists::default() }).0
}

fn reply(requester: &mut Requester, call: RequesterCallId) {
    let _ = requester.handle_receive(&Message::reply(call.xid(), 2).bytes(), None);
}

#[test]
fn each_step_of_a_call_has_a_clear_outcome() {
    // 8166-4.5.3-a 8267-4-c 8166-4.4.1-a
    assert_eq!(outcome(|requester| requester.begin().unwrap()), Some(EndedCall::NotSent));
    assert_eq!(outcome(send_null), Some(EndedCall::MaybeExecuted));
    assert_eq!(outcome(sent), Some(EndedCall::MaybeExecuted));
    let answered = outcome(|requester| {
        let call = sent(requester);
        reply(requester, call);
        call
    });
    assert_eq!(answered, Some(EndedCall::Replied), "only the fence was missing");
    let fencing = outcome(|requester| {
        let call = sent(requester);
        reply(requester, call);
        assert_eq!(requester.poll_fence(call), Some(7));
        call
    });
    assert_eq!(fencing, Some(EndedCall::Replied));
    let failed = outcome(|requester| {
        let call = sent(requester);
        let _ = requester.handle_receive(&err_chunk(call.xid(), 2), None);
        call
    });
    assert_eq!(failed, Some(EndedCall::Failed));
    let abandoned = outcome(|requester| {
        let call = sent(requester);
        let _ = requester.abandon(call);
        call
    });
    assert_eq!(abandoned, Some(EndedCall::NotSent));
    let cancelled = outcome(|requester| {
        let call = sent(requester);
        let _ = requester.cancel(call);
        call
    });
    assert_eq!(cancelled, Some(EndedCall::Cancelled));
    let late = outcome(|requester| {
        let call = sent(requester);
        let _ = requester.cancel(call);
        reply(requester, call);
        call
    });
    assert_eq!(late, Some(EndedCall::Cancelled));
    let over = outcome(|requester| {
        let call = sent(requester);
        reply(requester, call);
        fence_all(requester, call);
        call
    });
    assert_eq!(over, None);
}

#[test]
fn all_outstanding_calls_are_told() {
    // 8166-4.5.3-a
    let mut requester = requester(8);
    let calls: Vec<_> = (0..8).map(|_| send_null(&mut requester)).collect();
    let mut told = Vec::new();
    requester.handle_disconnect(|call, outcome| told.push((call.xid(), outcome)));
    let expected: Vec<_> = calls.iter().map(|call| (call.xid(), EndedCall::MaybeExecuted)).collect();
    told.sort_by_key(|(xid, _)| *xid);
    assert_eq!(told.len(), expected.len());
    assert!(expected.iter().all(|call| told.contains(call)));
}

#[test]
fn a_handler_that_ends_after_the_connection_is_refused() {
    // 8166-4.5.4-c
    let mut responder = responder(4);
    let message = Message::call(5).write(&[segment(1, 64)]).bytes();
    let id = receive_call(&mut responder, &message);
    let form = responder.plan_reply(id, &message, &[10], 24).expect("it fits");
    let other = receive_call(&mut responder, &Message::call(6).bytes());

    let mut ended = Vec::new();
    responder.handle_disconnect(|id| ended.push(id));
    ended.sort_by_key(|id| id.index());
    assert_eq!(ended, [id, other]);
    assert_eq!(responder.grant().in_process(), 0);

    let mut out = [0; 1024];
    assert_eq!(responder.plan_reply(id, &message, &[10], 24), Err(ReplyError::Stale));
    assert_eq!(responder.emit_reply(id, &message, &[10], &form, &mut out), Err(ReplyError::Stale));
    assert_eq!(responder.refuse(id, RefusedCall::Ineligible), None);
    assert!(!responder.discard(id));
    assert_eq!(receive_dropped(&mut responder, &message), DroppedCall::Disconnected);
    responder.handle_disconnect(|_| panic!("every Call is reported once"));
}

/// A connection that ends with a Call of each kind; returns those that may be kept, and the others.
fn interrupted() -> (Requester, [RequesterCallId; 2], [RequesterCallId; 3]) {
    let mut requester = warm(requester(8), 8);
    let building = requester.begin().unwrap();
    let lost = sent(&mut requester);
    let answered = sent(&mut requester);
    let cancelled = sent(&mut requester);
    let _ = requester.cancel(cancelled);
    let failed = sent(&mut requester);
    let _ = requester.handle_receive(&err_chunk(failed.xid(), 2), None);
    reply(&mut requester, answered);
    requester.handle_interruption(|_, _| true);
    (requester, [building, lost], [answered, cancelled, failed])
}

#[test]
fn what_was_not_answered_is_sent_again_with_the_same_xid() {
    // 8166-4.5-d 8166-3.3.3-a
    let (mut requester, [building, lost], over) = interrupted();
    assert_eq!(requester.window().in_flight(), 0);
    assert!(!requester.resume(lost), "there is no connection yet");
    assert_eq!((requester.available(), requester.begin()), (0, None));

    requester.handle_reconnect(parameters(1024, 1024, true));
    assert_eq!(requester.window().granted(), 1, "a new connection starts with one credit");
    for call in over {
        assert!(!requester.resume(call), "it was answered, failed or given up: it is never sent again");
    }
    assert!(requester.resume(lost));
    assert!(!requester.resume(lost), "once");
    assert!(!requester.resume(building), "no credit");
    let lists = ChunkLists { reads: &[read_segment(96, 9, 64)], ..ChunkLists::default() };
    let mut out = [0; 1024];
    let len = requester.emit_call(lost, &form_of(&lists), &lists, &mut out).unwrap();
    assert_eq!(out[..4], lost.xid().to_be_bytes(), "the same xid");
    assert!(len > 28);
    // The Reply: its handle is the new one.
    let _ = requester.handle_receive(&Message::reply(lost.xid(), 8).bytes(), None);
    assert_eq!(requester.poll_fence(lost), Some(9));
    assert_eq!(requester.handle_fenced(lost, 9), Some(ExposedMemory::Safe));
    // 8166-X-10: its answer can come once only.
    assert!(matches!(
        requester.handle_receive(&Message::reply(lost.xid(), 8).bytes(), None),
        RequesterReceived::Dropped(_)
    ));
    assert!(requester.resume(building));
    requester.postpone(building);
    assert_eq!(requester.window().in_flight(), 0);
    assert_eq!(requester.cancel(building), ExposedMemory::Safe);
    assert!(!requester.resume(building), "it was given up");
    requester.handle_disconnect(|_, _| panic!("nothing is outstanding"));
}

#[test]
fn a_call_that_no_connection_comes_for_is_told_of_once() {
    let (mut requester, [building, lost], _) = interrupted();
    let mut told = Vec::new();
    requester.handle_interruption(|call, outcome| {
        told.push((call, outcome));
        call == lost
    });
    told.sort_by_key(|(call, _)| *call != building);
    assert_eq!(told, [(building, EndedCall::NotSent), (lost, EndedCall::MaybeExecuted)]);
    let mut told = Vec::new();
    requester.handle_disconnect(|call, outcome| told.push((call, outcome)));
    assert_eq!(told, [(lost, EndedCall::MaybeExecuted)], "although it was interrupted twice");
}

#[test]
fn a_call_that_left_on_an_earlier_connection_may_have_been_executed_whatever_comes_after() {
    // 8267-4-c
    let (mut requester, [building, lost], _) = interrupted();
    requester.handle_reconnect(parameters(1024, 1024, true));
    let lists = ChunkLists { reads: &[read_segment(96, 9, 64)], ..ChunkLists::default() };
    for (call, expected) in [(lost, EndedCall::MaybeExecuted), (building, EndedCall::NotSent)] {
        assert!(requester.resume(call));
        requester.emit_call(call, &form_of(&lists), &lists, &mut [0; 1024]).unwrap();
        // The fabric refused its Send; its memory waits for a fence when the connection ends.
        assert_eq!(requester.abandon(call), ExposedMemory::Exposed);
        let mut told = None;
        requester.handle_interruption(|ended, outcome| {
            told = told.or((ended == call).then_some(outcome));
            ended == building
        });
        assert_eq!(told, Some(expected));
        requester.handle_reconnect(parameters(1024, 1024, true));
    }
}
