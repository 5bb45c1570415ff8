//! Memory that a Call exposed is fenced before it is handed back (8166-4.4.1).

use stag_proto::requester::{
    ChunkLists, ExposedMemory, Requester, RequesterCallId, RequesterMisuse, RequesterReceived,
};
use stag_wire::rpcrdma::Segment;

use crate::support::*;

/// A Call with handles 1 and 2 (Read), 3 (two Write segments) and 4 (Reply chunk).
fn send_all_kinds(requester: &mut Requester) -> RequesterCallId {
    let reads = [read_segment(0, 1, 2000), read_segment(96, 2, 64), read_segment(96, 2, 64)];
    let write = [segment(3, 100), Segment { offset: 0, ..segment(3, 100) }];
    let reply = [segment(4, 4096)];
    send(requester, &ChunkLists { reads: &reads, writes: &[&write], reply: Some(&reply) }).0
}

/// Its Reply: nothing written.
fn reply_to(call: RequesterCallId) -> Vec<u8> {
    let write = [segment(3, 0), Segment { offset: 0, ..segment(3, 0) }];
    Message::reply(call.xid(), 4).write(&write).reply_chunk(&[segment(4, 0)]).bytes()
}

fn memory_of(received: RequesterReceived<'_>) -> ExposedMemory {
    match received {
        RequesterReceived::Reply(reply) => reply.memory,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_call_without_chunks_is_over_with_its_reply() {
    // 8166-4.4.1-a
    let mut requester = requester(4);
    let call = send_null(&mut requester);
    let memory = memory_of(requester.handle_receive(&Message::reply(call.xid(), 4).bytes(), None));
    assert_eq!(memory, ExposedMemory::Safe);
    assert_eq!(requester.poll_fence(call), None);
}

#[test]
fn every_handle_is_fenced_once_and_before_the_call_is_over() {
    // 8166-4.4.1-a 8166-8.1-d 8166-3.4.5.1-a 8166-4.3.2.2-c 8166-8.1-b
    let mut requester = requester(4);
    let call = send_all_kinds(&mut requester);
    assert_eq!(requester.poll_fence(call), None, "the Responder may still use them");
    assert_eq!(memory_of(requester.handle_receive(&reply_to(call), None)), ExposedMemory::Exposed);

    let handles: Vec<_> = std::iter::from_fn(|| requester.poll_fence(call)).collect();
    assert_eq!(handles, [1, 2, 3, 4]);
    assert_eq!(requester.handle_fenced(call, 3), Some(ExposedMemory::Exposed));
    assert_eq!(requester.handle_fenced(call, 3), None, "once");
    assert_eq!(requester.handle_fenced(call, 9), None, "not of this Call");
    assert_eq!(requester.handle_fenced(call, 1), Some(ExposedMemory::Exposed));
    assert_eq!(requester.handle_fenced(call, 4), Some(ExposedMemory::Exposed));
    assert_eq!(requester.handle_fenced(call, 2), Some(ExposedMemory::Safe));
    assert_eq!(requester.handle_fenced(call, 2), None, "the Call is over");
}

#[test]
fn a_handle_nobody_began_to_fence_is_not_taken_as_fenced() {
    // 8166-4.4.1-a
    let mut requester = requester(4);
    let call = send_all_kinds(&mut requester);
    let _ = requester.handle_receive(&reply_to(call), None);
    assert_eq!(requester.handle_fenced(call, 1), None);
}

#[test]
fn a_slot_is_not_used_again_while_its_memory_is_exposed() {
    // 8166-4.4.1-a 8166-8.1-b
    let mut requester = requester(1);
    let call = send_all_kinds(&mut requester);
    let _ = requester.handle_receive(&reply_to(call), None);
    assert_eq!(requester.window().available(), 1);
    assert_eq!(requester.begin(), None);
    fence_all(&mut requester, call);
    assert!(requester.begin().is_some());
}

#[test]
fn a_handle_that_the_responder_invalidated_needs_no_fence() {
    // 8166-4.4.1-c 8797-4.1-a
    let mut requester = requester(4);
    let call = send_all_kinds(&mut requester);
    assert_eq!(memory_of(requester.handle_receive(&reply_to(call), Some(3))), ExposedMemory::Exposed);
    assert_eq!(fence_all(&mut requester, call), [1, 2, 4]);

    let reads = [read_segment(96, 7, 64)];
    let (call, _) = send(&mut requester, &ChunkLists { reads: &reads, ..ChunkLists::default() });
    let reply = Message::reply(call.xid(), 4).bytes();
    assert_eq!(memory_of(requester.handle_receive(&reply, Some(7))), ExposedMemory::Safe);
}

#[test]
fn an_invalidation_that_was_not_agreed_ends_the_connection() {
    // 8797-X-2 8797-4.1-c
    let mut requester = warm(requester_with(4, parameters(1024, 1024, false)), 4);
    let call = send_all_kinds(&mut requester);
    let message = reply_to(call);
    let received = requester.handle_receive(&message, Some(3));
    assert!(matches!(received, RequesterReceived::Close(RequesterMisuse::InvalidationNotAgreed)));
}

#[test]
fn an_invalidated_handle_that_is_not_the_calls_ends_the_connection() {
    // 8797-X-2 8797-4.1-b
    let mut requester = requester(4);
    let other =
        send(&mut requester, &ChunkLists { reads: &[read_segment(96, 9, 8)], ..Default::default() }).0;
    let call = send_all_kinds(&mut requester);
    fn foreign(received: RequesterReceived<'_>) -> bool {
        matches!(received, RequesterReceived::Close(RequesterMisuse::ForeignHandle(9)))
    }
    assert!(foreign(requester.handle_receive(&reply_to(call), Some(9))));
    // Beside messages that name no Call in flight, too.
    assert!(foreign(requester.handle_receive(&reply_to(call)[..20], Some(9))));
    assert!(foreign(requester.handle_receive(&Message::reply(1, 4).bytes(), Some(9))));
    assert!(foreign(requester.handle_receive(&err_chunk(call.xid(), 4), Some(9))));
    assert!(foreign(requester.handle_receive(&Message::call(call.xid()).bytes(), Some(9))));
    // Both Calls are as they were.
    assert_eq!(requester.window().in_flight(), 2);
    assert!(matches!(
        requester.handle_receive(&err_chunk(other.xid(), 4), Some(9)),
        RequesterReceived::Failed { .. }
    ));
}

#[test]
fn a_failed_calls_memory_is_fenced_too() {
    // 8166-4.4.1-a 8166-4.5-d
    let mut requester = requester(4);
    let call = send_all_kinds(&mut requester);
    match requester.handle_receive(&err_chunk(call.xid(), 4), None) {
        RequesterReceived::Failed { memory, .. } => assert_eq!(memory, ExposedMemory::Exposed),
        other => panic!("{other:?}"),
    }
    assert_eq!(fence_all(&mut requester, call), [1, 2, 3, 4]);
}

#[test]
fn as_many_handles_as_a_call_can_have_are_fenced() {
    // 8166-4.4.1-a 8166-X-13
    let mut wide = Requester::new(&stag_proto::requester::RequesterConfig {
        slots: 2,
        parameters: parameters(4096, 4096, false),
        credits_requested: 2,
        segments_max: 64,
        xid_seed: 1,
    });
    for slot in 0..2 {
        let chunk: Vec<_> = (0..64).map(|nth| segment(slot * 100 + nth, 16)).collect();
        let (call, _) = send(&mut wide, &ChunkLists { writes: &[&chunk], ..ChunkLists::default() });
        let reply = Message::reply(call.xid(), 2).write(&[]).bytes();
        assert_eq!(memory_of(wide.handle_receive(&reply, None)), ExposedMemory::Exposed);
        assert_eq!(fence_all(&mut wide, call).len(), 64);
    }
}
