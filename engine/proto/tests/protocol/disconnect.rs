//! The end of the connection, at every step of a Call.

use stag_proto::requester::{CallId, ChunkLists, Outcome, Requester};
use stag_proto::responder::{Dropped, Refused, ReplyError};

use crate::support::*;

/// Takes a Call to some step, and breaks the connection there.
fn outcome(steps: impl FnOnce(&mut Requester) -> CallId) -> Option<Outcome> {
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
    requester.handle_disconnect(|_, _| panic!("every Call is told once"));
    outcomes.pop()
}

fn sent(requester: &mut Requester) -> CallId {
    send(requester, &ChunkLists { reads: &[read_segment(96, 7, 64)], ..ChunkLists::default() }).0
}

fn reply(requester: &mut Requester, call: CallId) {
    let _ = requester.handle_receive(&Message::reply(call.xid(), 2).bytes(), None);
}

#[test]
fn each_step_of_a_call_has_a_clear_outcome() {
    // 8166-4.5.3-a 8267-4-c 8166-4.4.1-a
    assert_eq!(outcome(|requester| requester.begin().unwrap()), Some(Outcome::NotSent));
    assert_eq!(outcome(send_null), Some(Outcome::MaybeExecuted));
    assert_eq!(outcome(sent), Some(Outcome::MaybeExecuted));
    let answered = outcome(|requester| {
        let call = sent(requester);
        reply(requester, call);
        call
    });
    assert_eq!(answered, Some(Outcome::Replied), "only the fence was missing");
    let fencing = outcome(|requester| {
        let call = sent(requester);
        reply(requester, call);
        assert_eq!(requester.poll_fence(call), Some(7));
        call
    });
    assert_eq!(fencing, Some(Outcome::Replied));
    let failed = outcome(|requester| {
        let call = sent(requester);
        let _ = requester.handle_receive(&err_chunk(call.xid(), 2), None);
        call
    });
    assert_eq!(failed, Some(Outcome::Failed));
    let abandoned = outcome(|requester| {
        let call = sent(requester);
        let _ = requester.abandon(call);
        call
    });
    assert_eq!(abandoned, Some(Outcome::NotSent));
    let cancelled = outcome(|requester| {
        let call = sent(requester);
        let _ = requester.cancel(call);
        call
    });
    assert_eq!(cancelled, Some(Outcome::Cancelled));
    let late = outcome(|requester| {
        let call = sent(requester);
        let _ = requester.cancel(call);
        reply(requester, call);
        call
    });
    assert_eq!(late, Some(Outcome::Cancelled));
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
    let expected: Vec<_> = calls.iter().map(|call| (call.xid(), Outcome::MaybeExecuted)).collect();
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
    assert_eq!(responder.refuse(id, Refused::Ineligible), None);
    assert!(!responder.discard(id));
    assert_eq!(receive_dropped(&mut responder, &message), Dropped::Disconnected);
    responder.handle_disconnect(|_| panic!("every Call is told once"));
}
