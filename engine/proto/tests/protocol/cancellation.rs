//! Cancelled Calls: fenced first; the credit stays taken until the late Reply (8166-4.4.1-b).

use stag_proto::requester::{ChunkLists, ExposedMemory, Requester, RequesterReceived};

use crate::support::*;

fn send_one_read(requester: &mut Requester) -> stag_proto::requester::RequesterCallId {
    send(requester, &ChunkLists { reads: &[read_segment(96, 7, 64)], ..ChunkLists::default() }).0
}

#[test]
fn before_it_is_sent_a_cancelled_call_just_ends() {
    // 8166-4.5.4-a
    let mut requester = requester(1);
    let call = requester.begin().expect("a credit");
    assert_eq!(requester.cancel(call), ExposedMemory::Safe);
    assert_eq!(requester.available(), 1);
}

#[test]
fn a_cancelled_call_is_fenced_and_keeps_its_credit_until_the_late_reply() {
    // 8166-4.4.1-b 8166-3.3.1-b
    let mut requester = requester(1);
    let call = send_one_read(&mut requester);
    assert_eq!(requester.cancel(call), ExposedMemory::Exposed);
    assert_eq!(fence_all(&mut requester, call), [7]);
    assert_eq!((requester.begin(), requester.window().in_flight()), (None, 1));

    let message = Message::reply(call.xid(), 1).bytes();
    match requester.handle_receive(&message, None) {
        RequesterReceived::Late { call: late, memory } => {
            assert_eq!((late, memory), (call, ExposedMemory::Safe))
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(requester.available(), 1);
}

#[test]
fn the_late_reply_may_come_before_the_fence_is_done() {
    // 8166-4.4.1-b
    let mut requester = requester(1);
    let call = send_one_read(&mut requester);
    assert_eq!(requester.cancel(call), ExposedMemory::Exposed);
    assert_eq!(requester.poll_fence(call), Some(7));
    let message = Message::reply(call.xid(), 1).bytes();
    match requester.handle_receive(&message, None) {
        RequesterReceived::Late { memory, .. } => assert_eq!(memory, ExposedMemory::Exposed),
        other => panic!("{other:?}"),
    }
    assert_eq!(
        (requester.window().in_flight(), requester.begin()),
        (0, None),
        "the slot waits for the fence"
    );
    assert_eq!(requester.handle_fenced(call, 7), Some(ExposedMemory::Safe));
    assert!(requester.begin().is_some());
}

#[test]
fn the_late_reply_may_invalidate_a_handle_that_is_being_fenced() {
    // 8166-4.4.1-b 8166-4.4.1-c
    let mut requester = requester(1);
    let call = send_one_read(&mut requester);
    assert_eq!(requester.cancel(call), ExposedMemory::Exposed);
    assert_eq!(requester.poll_fence(call), Some(7));
    let message = Message::reply(call.xid(), 1).bytes();
    match requester.handle_receive(&message, Some(7)) {
        RequesterReceived::Late { memory, .. } => assert_eq!(memory, ExposedMemory::Safe),
        other => panic!("{other:?}"),
    }
    assert_eq!(requester.handle_fenced(call, 7), None, "not awaited any more");
    assert!(requester.begin().is_some());
}

#[test]
fn a_late_reply_may_invalidate_a_handle_that_is_dead() {
    // 8166-4.4.1-b 8797-4.1-b
    let mut requester = requester(1);
    let call = send_one_read(&mut requester);
    assert_eq!(requester.cancel(call), ExposedMemory::Exposed);
    fence_all(&mut requester, call);
    let message = Message::reply(call.xid(), 1).bytes();
    let received = requester.handle_receive(&message, Some(7));
    // The Responder did not know of the cancellation: no fault of its own.
    assert!(matches!(received, RequesterReceived::Late { memory: ExposedMemory::Safe, .. }));
    assert_eq!(requester.available(), 1);
}

#[test]
fn a_late_error_frees_the_credit_and_brings_no_grant() {
    // 8166-4.5-d 8166-X-6
    let mut requester = requester(4);
    let call = send_one_read(&mut requester);
    assert_eq!(requester.cancel(call), ExposedMemory::Exposed);
    fence_all(&mut requester, call);
    assert!(matches!(
        requester.handle_receive(&err_chunk(call.xid(), 1), None),
        RequesterReceived::Late { .. }
    ));
    assert_eq!((requester.window().in_flight(), requester.available()), (0, 4));
}

#[test]
fn a_late_reply_keeps_its_grant() {
    // 8166-X-10 8166-3.3.1-d
    let mut requester = requester(4);
    let call = send_one_read(&mut requester);
    assert_eq!(requester.cancel(call), ExposedMemory::Exposed);
    fence_all(&mut requester, call);
    let _ = requester.handle_receive(&Message::reply(call.xid(), 2).bytes(), None);
    assert_eq!(requester.available(), 2);
}

#[test]
fn cancelling_is_harmless_at_any_time() {
    // 8166-4.4.1-b
    let mut requester = requester(2);
    let call = send_one_read(&mut requester);
    assert_eq!(requester.cancel(call), ExposedMemory::Exposed);
    assert_eq!(requester.cancel(call), ExposedMemory::Exposed);
    fence_all(&mut requester, call);
    assert_eq!(requester.cancel(call), ExposedMemory::Safe);
    let _ = requester.handle_receive(&Message::reply(call.xid(), 2).bytes(), None);
    assert_eq!(requester.cancel(call), ExposedMemory::Safe);

    // Answered, and being fenced: the Reply stands.
    let call = send_one_read(&mut requester);
    let _ = requester.handle_receive(&Message::reply(call.xid(), 2).bytes(), None);
    assert_eq!(requester.cancel(call), ExposedMemory::Exposed);
    assert_eq!(fence_all(&mut requester, call), [7]);
    assert_eq!(requester.available(), 2);
}
