//! RDMA_ERROR at the Requester, and the errors of an upper layer at the Responder.

use stag_proto::requester::{self, CallFailure, DroppedReply, ExposedMemory, RequesterReceived};
use stag_proto::responder::{RefusedCall, ReplyError};

use crate::support::*;

#[test]
fn an_error_ends_its_call_for_good() {
    // 8166-4.5-d 8166-4.5.1-b
    for (error, failure) in [
        (err_chunk as fn(u32, u32) -> Vec<u8>, CallFailure::Chunk),
        (|xid, credits| err_vers(xid, 1, credits, 2, 3), CallFailure::Version { low: 2, high: 3 }),
    ] {
        let mut requester = requester(4);
        let call = send_null(&mut requester);
        match requester.handle_receive(&error(call.xid(), 4), None) {
            RequesterReceived::Failed { call: failed, failure: why, memory } => {
                assert_eq!((failed, why, memory), (call, failure, ExposedMemory::Safe));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(requester.window().in_flight(), 0);
        // Once only, and the Reply that comes all the same is dropped.
        let message = error(call.xid(), 4);
        let again = requester.handle_receive(&message, None);
        assert!(matches!(again, RequesterReceived::Dropped(DroppedReply::UnknownXid(_))));
        let message = Message::reply(call.xid(), 4).bytes();
        let reply = requester.handle_receive(&message, None);
        assert!(matches!(reply, RequesterReceived::Dropped(DroppedReply::UnknownXid(_))));
        let next = requester.begin().expect("a credit");
        assert_ne!(next.xid(), call.xid(), "the same xid is not sent again");
    }
}

#[test]
fn an_error_for_an_unknown_xid_is_discarded() {
    // 8166-4.5-e
    let mut requester = requester(4);
    let call = send_null(&mut requester);
    for xid in [call.xid() ^ 0x8000_0000, call.xid() ^ 1, 0, u32::MAX] {
        let message = err_chunk(xid, 4);
        let received = requester.handle_receive(&message, None);
        assert!(
            matches!(received, RequesterReceived::Dropped(DroppedReply::UnknownXid(unknown)) if unknown == xid)
        );
    }
    assert_eq!(requester.window().in_flight(), 1);
}

#[test]
fn a_second_reply_to_a_call_is_dropped() {
    // 8166-X-10
    let mut requester = requester(4);
    let call = send_null(&mut requester);
    let message = Message::reply(call.xid(), 4).bytes();
    assert!(matches!(requester.handle_receive(&message, None), RequesterReceived::Reply(_)));
    assert!(matches!(
        requester.handle_receive(&message, None),
        RequesterReceived::Dropped(DroppedReply::UnknownXid(_))
    ));
    assert_eq!(requester.window().in_flight(), 0);
}

#[test]
fn a_reply_to_a_call_that_is_not_sent_yet_is_dropped() {
    // 8166-X-10
    let mut requester = requester(4);
    let call = requester.begin().expect("a credit");
    let message = Message::reply(call.xid(), 4).bytes();
    assert!(matches!(
        requester.handle_receive(&message, None),
        RequesterReceived::Dropped(DroppedReply::UnknownXid(_))
    ));
    assert_eq!(requester.abandon(call), ExposedMemory::Safe);
}

#[test]
fn a_call_that_cannot_be_sent_fails_locally_and_gives_its_credit_back() {
    // 8166-4.5.4-a
    let mut requester = requester(1);
    let call = requester.begin().expect("a credit");
    assert_eq!(requester.available(), 0);
    assert_eq!(requester.abandon(call), ExposedMemory::Safe);
    assert_eq!(requester.available(), 1);

    // The Send was refused after the header was made: what it exposed is fenced first.
    let reads = [read_segment(96, 1, 8)];
    let (call, _) = send(&mut requester, &requester::ChunkLists { reads: &reads, ..Default::default() });
    assert_eq!(requester.abandon(call), ExposedMemory::Exposed);
    assert_eq!(requester.window().in_flight(), 0);
    assert_eq!(fence_all(&mut requester, call), [1]);
    assert_eq!(requester.available(), 1);
}

#[test]
fn a_call_can_be_refused_with_err_chunk_by_the_upper_layer() {
    // 8166-6.1-c 8166-4.5-b
    let mut responder = responder(4);
    let message = Message::call(5).read(12, segment(1, 8)).bytes();
    let id = receive_call(&mut responder, &message);
    let error = responder.refuse(id, RefusedCall::Ineligible).expect("the Call is in process");
    assert_eq!(error.as_bytes(), err_chunk(5, 4));
    assert_eq!(responder.grant().in_process(), 0);
    assert_eq!(responder.refuse(id, RefusedCall::Ineligible), None);
}

#[test]
fn a_reply_that_fits_nowhere_is_answered_with_err_chunk_and_the_connection_lives() {
    // 8166-4.5.3-a 8267-3-b
    let mut responder = responder(4);
    let message = Message::call(5).bytes();
    let id = receive_call(&mut responder, &message);
    let why = responder.plan_reply(id, &message, &[], 5000).unwrap_err();
    assert_eq!(why, ReplyError::NoReplyChunk);
    let error = responder.refuse(id, RefusedCall::Reply(why)).expect("the Call is in process");
    assert_eq!(error.as_bytes(), err_chunk(5, 4));
    responder.receives_posted(1);
    let id = receive_call(&mut responder, &message);
    answer(&mut responder, id, &message);
}

#[test]
fn a_call_that_ended_a_connection_is_refused_on_the_next_which_lives() {
    // 8166-4.5.3-b: its driver saw the Read of the chunk fail, and remembers the xid.
    let message = Message::call(5).read(12, segment(1, 8)).bytes();
    let mut first = responder(4);
    let lost = receive_call(&mut first, &message);
    let mut ended = Vec::new();
    first.handle_disconnect(|call| ended.push(call));
    assert_eq!(ended, [lost]);
    let mut second = responder(4);
    let id = receive_call(&mut second, &message);
    let error = second.refuse(id, RefusedCall::EndedConnection).expect("the Call is in process");
    assert_eq!(error.as_bytes(), err_chunk(5, 4));
    assert_eq!(second.grant().in_process(), 0);
    second.receives_posted(1);
    let other = Message::call(6).bytes();
    let id = receive_call(&mut second, &other);
    answer(&mut second, id, &other);
}

#[test]
fn an_rpc_level_error_goes_in_an_rdma_msg() {
    // 8166-4.5.2-b
    let mut responder = responder(4);
    let message = Message::call(5).read(12, segment(1, 8)).bytes();
    let id = receive_call(&mut responder, &message);
    let header = answer(&mut responder, id, &message);
    assert_eq!(header, words(&[5, 1, 4, MSG, 0, 0, 0]));
}

#[test]
fn a_call_can_be_discarded_unanswered() {
    // 8166-4.5.4-c
    let mut responder = responder(4);
    let id = receive_call(&mut responder, &Message::call(5).bytes());
    assert!(responder.discard(id));
    assert!(!responder.discard(id));
    assert_eq!(responder.grant().in_process(), 0);
}
