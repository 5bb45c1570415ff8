//! Short, Chunked and Long Replies; remote invalidation.

use stag_proto::responder::{Emitted, ReplyError, ReplyForm, Responder, ResponderReceived};
use stag_wire::rpcrdma::{Header, MessageProcedure};

use crate::support::*;

fn plan(message: &Message, items: &[u32], payload_len: u32) -> Result<ReplyForm, ReplyError> {
    let mut responder = responder(4);
    let message = message.bytes();
    let id = receive_call(&mut responder, &message);
    responder.plan_reply(id, &message, items, payload_len)
}

fn emit(responder: &mut Responder, message: &Message, payload_len: u32) -> (Emitted, Vec<u8>) {
    let message = message.bytes();
    let id = receive_call(responder, &message);
    let form = responder.plan_reply(id, &message, &[], payload_len).expect("it fits");
    let mut out = vec![0; 1024];
    let emitted = responder.emit_reply(id, &message, &[], &form, &mut out).expect("in process");
    out.truncate(emitted.header_len);
    (emitted, out)
}

#[test]
fn a_short_reply_fills_the_inline_threshold_to_the_last_octet() {
    // 8166-3.5.1-a 8166-4.2.4-d
    let form = plan(&Message::call(5), &[], 1024 - 28).unwrap();
    assert_eq!(form, ReplyForm { long: false, header_len: 28, payload_len: 996 });
    assert_eq!(plan(&Message::call(5), &[], 1024 - 27), Err(ReplyError::NoReplyChunk));
    assert_eq!(plan(&Message::call(5), &[], u32::MAX), Err(ReplyError::NoReplyChunk));
}

#[test]
fn a_chunked_replys_header_counts_the_write_list() {
    // 8166-3.5.2-a 8166-4.1.2-d
    let message = Message::call(5).write(&[segment(1, 4096), segment(2, 4096)]);
    let form = plan(&message, &[5001], 1024 - 68).unwrap();
    assert_eq!(form, ReplyForm { long: false, header_len: 68, payload_len: 956 });
    assert_eq!(plan(&message, &[5001], 1024 - 67), Err(ReplyError::NoReplyChunk));
}

#[test]
fn a_reply_that_fits_is_inline_even_if_there_is_a_reply_chunk() {
    // 8166-4.3.3-b 8166-4.3.3-c LX-8
    let mut responder = responder(4);
    let message = Message::call(5).reply_chunk(&[segment(1, 4096), segment(2, 4096)]);
    let (_, header) = emit(&mut responder, &message, 100);
    let mut expected = Message::reply(5, 4).reply_chunk(&[segment(1, 4096), segment(2, 4096)]);
    expected.payload.clear();
    expected.reply.as_mut().unwrap().iter_mut().for_each(|segment| segment.length = 0);
    assert_eq!(header, expected.bytes());
}

#[test]
fn a_reply_beyond_the_threshold_goes_into_the_reply_chunk() {
    // 8166-3.5.3-a 8166-3.5.3-e 8166-4.2.4-b 8166-4.3.3-c 8166-4.3.1-a
    let mut responder = responder(4);
    let message = Message::call(5).nomsg().read(0, segment(7, 3000)).reply_chunk(&[
        segment(1, 16384),
        segment(2, 16384),
        segment(3, 16384),
    ]);
    let (_, header) = emit(&mut responder, &message, 20480);
    let mut expected =
        Message::reply(5, 4).nomsg().reply_chunk(&[segment(1, 16384), segment(2, 4096), segment(3, 0)]);
    expected.payload.clear();
    assert_eq!(header, expected.bytes());
    let (header, _) = Header::parse(&header).expect("a good header");
    assert_eq!(header.procedure(), MessageProcedure::Nomsg);
    assert_eq!(header.read_list().count(), 0);
}

#[test]
fn results_are_reduced_first_and_the_rest_goes_into_the_reply_chunk() {
    // 8166-3.5.3-e 8166-4.3.2.3-c
    let message = Message::call(5).write(&[segment(1, 4096)]).reply_chunk(&[segment(2, 8192)]);
    let form = plan(&message, &[4000, 6000], 6100).unwrap();
    assert_eq!(form, ReplyForm { long: true, header_len: 28 + 8 + 16 + 4 + 16, payload_len: 6100 });
}

#[test]
fn a_reply_chunk_that_is_too_small_is_found_before_anything_is_written() {
    // 8166-4.3.3-d 8267-3-b
    let message = Message::call(5).reply_chunk(&[segment(1, 2000), segment(2, 96)]);
    assert!(plan(&message, &[], 2096).is_ok());
    assert_eq!(plan(&message, &[], 2097), Err(ReplyError::ReplyChunk));
    let empty = Message::call(5).reply_chunk(&[]);
    assert!(plan(&empty, &[], 900).is_ok());
    assert_eq!(plan(&empty, &[], 1000), Err(ReplyError::ReplyChunk));
}

#[test]
fn a_header_whose_repeated_chunks_exceed_the_threshold_is_refused() {
    // 8166-4.2.4-d 8267-D-2
    let chunk: Vec<_> = (0..62).map(|nth| segment(nth, 64)).collect();
    let message = Message::call(5).write(&chunk);
    assert!(plan(&message, &[], 0).is_err_and(|error| error == ReplyError::Header));
    let chunk: Vec<_> = (0..61).map(|nth| segment(nth, 64)).collect();
    assert!(plan(&Message::call(5).write(&chunk), &[], 12).is_ok());
}

#[test]
fn a_reply_repeats_xid_and_version_and_carries_no_read_list() {
    // 8166-4.2.1-a 8166-4.2.2-a 8166-4.3.1-a 8166-3.2-a
    let mut responder = responder(4);
    let (emitted, header) = emit(&mut responder, &Message::call(0xa000_0001).read(12, segment(1, 8)), 24);
    assert_eq!(header, words(&[0xa000_0001, 1, 4, MSG, 0, 0, 0]));
    assert_eq!(emitted.header_len, 28);
}

#[test]
fn a_handle_is_invalidated_only_when_it_is_the_calls_only_one_and_both_sides_agreed() {
    // 8797-4.1-a 8797-4.1-b 8797-4.1-c 8797-L-2 8797-X-3 8166-4.4.1-c
    let one = Message::call(5).read(12, segment(7, 8)).read(12, segment(7, 8)).write(&[segment(7, 64)]);
    let two = Message::call(5).read(12, segment(7, 8)).write(&[segment(8, 64)]);
    let reply = Message::call(5).reply_chunk(&[segment(9, 64)]);
    let none = Message::call(5).write(&[]);
    let cases = [(&one, Some(7)), (&two, None), (&reply, Some(9)), (&none, None), (&Message::call(5), None)];
    for (message, invalidate) in cases {
        let mut agreed = responder_with(4, parameters(1024, 1024, true));
        assert_eq!(emit(&mut agreed, message, 24).0.invalidate, invalidate);
        let mut not_agreed = responder_with(4, parameters(1024, 1024, false));
        assert_eq!(emit(&mut not_agreed, message, 24).0.invalidate, None);
    }
}

#[test]
fn a_completion_for_a_call_that_is_over_is_refused() {
    // 8166-4.5-d
    let mut responder = responder(4);
    let message = Message::call(5).bytes();
    let id = receive_call(&mut responder, &message);
    let form = responder.plan_reply(id, &message, &[], 24).expect("it fits");
    answer(&mut responder, id, &message);
    // The same xid in the same slot is another Call.
    let again = receive_call(&mut responder, &message);
    assert_eq!(again.index(), id.index());
    assert_ne!(again, id);
    let mut out = [0; 1024];
    assert_eq!(responder.plan_reply(id, &message, &[], 24), Err(ReplyError::Stale));
    assert_eq!(responder.emit_reply(id, &message, &[], &form, &mut out), Err(ReplyError::Stale));
    assert_eq!(responder.handle_pulled(id, &[]), Err(None));
    assert!(responder.call(id, &message).is_none());
    assert_eq!(out, [0; 1024]);
    answer(&mut responder, again, &message);
}

#[test]
fn a_plain_call_says_so() {
    // 8166-3.5.1-a
    let mut responder = responder(4);
    let message = Message::call(5).bytes();
    let ResponderReceived::Call(call) = responder.handle_receive(&message) else { panic!("a Call") };
    assert!(call.is_plain());
    assert_eq!(call.read_chunks().count(), 0);
}
