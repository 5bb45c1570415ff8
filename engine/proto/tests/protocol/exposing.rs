//! Replies that a Responder exposes, from the Call to the RDMA_DONE, with a Requester that pulls them.

use stag_proto::exposed::{DoneOutcome, ExposedReplies};
use stag_proto::requester::{ChunkLists, ExposedMemory, Pulled, RequesterReceived};
use stag_proto::responder::ReplyError;
use stag_wire::rpcrdma::Header;

use crate::support::*;

#[test]
fn a_reply_that_fits_nowhere_is_exposed_and_pulled() {
    // RR-4.1.1-a RR-4.1-a RR-4.1-b RR-4.1-d RR-4.1.3-a
    let (chunk, reply) = ([segment(1, 100)], [segment(2, 40)]);
    let with_chunks = ChunkLists { writes: &[&chunk], reply: Some(&reply), ..ChunkLists::default() };
    let with_write = ChunkLists { writes: &[&chunk], ..ChunkLists::default() };
    for (lists, items) in [(ChunkLists::default(), &[][..]), (with_write, &[60]), (with_chunks, &[60])] {
        let (mut requester, mut responder) = (requester(2), responder(2));
        requester.set_pull_limit(1 << 20);
        let (call, mut message) = send(&mut requester, &lists);
        message.extend(Message::call(call.xid()).payload);
        let id = receive_call(&mut responder, &message);
        let long = responder.plan_reply(id, &message, items, 5000);
        assert!(matches!(long, Err(ReplyError::NoReplyChunk | ReplyError::ReplyChunk)));

        let form = responder.plan_exposed(id, &message, items, 5000, 2).expect("its header fits");
        let segments = [read_segment(0, 50, 4096), read_segment(0, 51, 904)];
        let mut exposed = ExposedReplies::new(1, 4, true);
        let reply = exposed.expose(call.xid(), &segments).expect("there is room");
        let mut out = vec![0; 1024];
        let emitted = responder.emit_exposed(id, &message, items, &form, &segments, &mut out);
        let emitted = emitted.expect("it is in process");
        assert_eq!(emitted.header_len, form.header_len as usize);
        out.truncate(emitted.header_len);
        assert_eq!(responder.grant().in_process(), 0, "the Call is answered");
        let (header, rest) = Header::parse(&out).expect("a header");
        assert_eq!((header.read_list().count(), rest), (2, &[][..]));
        assert_eq!(header.reply_chunk().map(|chunk| chunk.total_len()), lists.reply.map(|_| 0));

        let RequesterReceived::Exposed(found) = requester.handle_receive(&out, emitted.invalidate) else {
            panic!("it is exposed")
        };
        let Pulled::Pull { call: pulled, len: 5000, .. } = found.pulled else { panic!("{:?}", found.pulled) };
        assert_eq!(pulled, call);
        assert!(found.segments().eq(segments));
        assert!(found.write_lens().eq(items.iter().copied()));
        fence_all(&mut requester, call);
        assert_eq!(requester.handle_pulled(call), ExposedMemory::Safe);
        let mut done = [0; 16];
        requester.emit_done(found.xid, &mut done).expect("16 octets");
        let told = exposed.handle_done(u32::from_be_bytes([done[0], done[1], done[2], done[3]]), Some(50));
        assert_eq!(
            told,
            DoneOutcome::Told { reply, memory: ExposedMemory::Exposed },
            "the other handle is left"
        );
    }
}

#[test]
fn a_responder_without_the_feature_refuses_what_fits_nowhere() {
    // RR-4.1.1-b
    let mut responder = responder(1);
    let message = Message::call(7).bytes();
    let id = receive_call(&mut responder, &message);
    let why = responder.plan_reply(id, &message, &[], 5000).expect_err("it fits nowhere");
    let error =
        responder.refuse(id, stag_proto::responder::RefusedCall::Reply(why)).expect("it is in process");
    assert_eq!(error.as_bytes()[..8], err_chunk(7, 1)[..8]);
    assert_eq!(error.as_bytes()[12..], err_chunk(7, 1)[12..]);
}

#[test]
fn a_header_of_too_many_segments_is_not_exposed() {
    // 8166-4.2.4-d
    let mut responder = responder(1);
    let message = Message::call(7).write(&[segment(1, 8)]).bytes();
    let id = receive_call(&mut responder, &message);
    // 28 octets, a Write chunk of 24, and 24 for each segment.
    assert_eq!(responder.plan_exposed(id, &message, &[8], 5000, 40).map(|form| form.header_len), Ok(1012));
    assert_eq!(responder.plan_exposed(id, &message, &[8], 5000, 41), Err(ReplyError::Header));
    assert_eq!(responder.plan_exposed(id, &message, &[9], 5000, 1), Err(ReplyError::WriteChunk { item: 0 }));
    assert!(responder.discard(id));
    assert_eq!(responder.plan_exposed(id, &message, &[], 5000, 1), Err(ReplyError::Stale));
}
