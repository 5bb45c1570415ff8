//! The Read list of a Call: what the Responder pulls, and what it refuses.

use stag_proto::responder::{
    CallPayload, ChunkError, ReceivedCall, RefusedCall, Responder, ResponderReceived,
};
use stag_proto::span::{Cursor, Span};
use stag_wire::rpcrdma::Segment;

use crate::support::*;

/// What is pulled: position, place in the sent stream, octets, handles in order.
type Pulled = Vec<(u32, u32, u32, Vec<u32>)>;

fn pulled(call: &ReceivedCall<'_>) -> Pulled {
    call.read_chunks()
        .map(|chunk| {
            let handles = chunk.segments().map(|segment| segment.handle).collect();
            (chunk.position, chunk.at, chunk.len, handles)
        })
        .collect()
}

fn accept<R>(message: &Message, check: impl FnOnce(&ReceivedCall<'_>) -> R) -> R {
    let bytes = message.bytes();
    match responder(4).handle_receive(&bytes) {
        ResponderReceived::Call(call) => check(&call),
        other => panic!("{other:?}"),
    }
}

fn refused_by(responder: &mut Responder, message: &Message) -> RefusedCall {
    match responder.handle_receive(&message.bytes()) {
        ResponderReceived::Error(error) => {
            assert_eq!(error.as_bytes(), err_chunk(message.xid, 4));
            error.refused
        }
        other => panic!("{other:?}"),
    }
}

fn refused(message: &Message) -> RefusedCall {
    refused_by(&mut responder(4), message)
}

/// A Call with `len` octets of Payload behind the header.
fn call(len: usize) -> Message {
    let mut message = Message::call(5);
    message.payload.resize(len, 0);
    message
}

#[test]
fn segments_of_one_position_are_one_chunk_in_list_order() {
    // 8166-3.4.5-b 8166-3.4.4-a
    let message = call(96).read(96, segment(3, 4096)).read(96, segment(1, 0)).read(96, segment(2, 1905));
    accept(&message, |call| {
        assert!(!call.is_plain());
        assert_eq!(pulled(call), [(96, 96, 6001, vec![3, 1, 2])]);
    });
}

#[test]
fn chunks_come_in_any_order_and_interleaved() {
    // 8166-X-9 LX-3 LX-4
    let message = call(200)
        .read(120, segment(1, 8))
        .read(60, segment(2, 3))
        .read(120, segment(3, 8))
        .read(60, segment(4, 2))
        .read(160, segment(5, 4));
    accept(&message, |call| {
        let expected = [(60, 60, 5, vec![2, 4]), (120, 112, 16, vec![1, 3]), (160, 136, 4, vec![5])];
        assert_eq!(pulled(call), expected);
    });
}

#[test]
fn a_chunk_may_hold_its_roundup_or_not() {
    // 8166-3.4.5.2-a 8166-3.4.4.4-b
    for lengths in [vec![6001], vec![6004], vec![6001, 3]] {
        let mut message = call(200);
        for &length in &lengths {
            message = message.read(96, segment(1, length));
        }
        message = message.read(6200, segment(2, 8));
        accept(&message, |call| {
            // The next item is at the same place of the sent stream either way.
            assert_eq!(pulled(call)[1], (6200, 6200 - 6004, 8, vec![2]));
        });
    }
}

#[test]
fn a_long_calls_payload_is_its_position_zero_read_chunk() {
    // 8166-3.5.3-b 8166-3.5.3-f
    let message = call(0).nomsg().read(0, segment(1, 3000)).read(0, segment(2, 96));
    accept(&message, |call| {
        assert_eq!(call.payload, CallPayload::Long(3096));
        assert_eq!(call.long_segments().map(|segment| segment.handle).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(pulled(call), []);
    });
}

fn is_too_long(refused: RefusedCall) -> bool {
    matches!(refused, RefusedCall::Chunks(ChunkError::Length { len, limit }) if len > limit.into())
}

#[test]
fn positions_beside_a_position_zero_read_chunk_count_in_the_unreduced_stream() {
    // 8166-3.5.3-g 8166-3.4.5-a 8267-6.4.2-a
    let message =
        call(0).nomsg().read(4000, segment(3, 1000)).read(0, segment(1, 2996)).read(1000, segment(2, 2001));
    accept(&message, |call| {
        assert_eq!(call.payload, CallPayload::Long(2996));
        assert_eq!(pulled(call), [(1000, 1000, 2001, vec![2]), (4000, 1996, 1000, vec![3])]);
    });
    // One word less in the Position Zero Read chunk is still enough: the last item ends the stream.
    let at_end = call(0).nomsg().read(0, segment(1, 1000)).read(1000, segment(2, 8));
    accept(&at_end, |call| assert_eq!(pulled(call), [(1000, 1000, 8, vec![2])]));
    let beyond = call(0).nomsg().read(0, segment(1, 1000)).read(1004, segment(2, 8));
    assert_eq!(refused(&beyond), RefusedCall::Chunks(ChunkError::OutOfRange));
}

#[test]
fn a_position_lies_within_the_stream_as_it_was_sent() {
    // LX-3 8166-X-9
    accept(&call(96).read(96, segment(1, 8)), |call| assert_eq!(pulled(call)[0].1, 96));
    assert_eq!(refused(&call(96).read(100, segment(1, 8))), RefusedCall::Chunks(ChunkError::OutOfRange));
    // What one chunk takes out moves the next one: 96 + 8 is where the stream goes on, 40 octets are left.
    accept(&call(136).read(96, segment(1, 8)).read(144, segment(2, 8)), |call| {
        assert_eq!(pulled(call)[1].1, 136);
    });
    let beyond = call(136).read(96, segment(1, 8)).read(148, segment(2, 8));
    assert_eq!(refused(&beyond), RefusedCall::Chunks(ChunkError::OutOfRange));
    let far = call(136).read(0xffff_fffc, segment(1, 8));
    assert_eq!(refused(&far), RefusedCall::Chunks(ChunkError::OutOfRange));
}

#[test]
fn chunks_do_not_overlap() {
    // LX-3 8166-X-9
    let overlapping = call(200).read(96, segment(1, 9)).read(104, segment(2, 8));
    assert_eq!(refused(&overlapping), RefusedCall::Chunks(ChunkError::Overlap));
    let touching = call(200).read(96, segment(1, 9)).read(108, segment(2, 8));
    accept(&touching, |call| assert_eq!(pulled(call)[1].1, 96));
    // In the other order of the list too.
    let overlapping = call(200).read(104, segment(2, 8)).read(96, segment(1, 9));
    assert_eq!(refused(&overlapping), RefusedCall::Chunks(ChunkError::Overlap));
}

#[test]
fn a_position_is_a_multiple_of_4() {
    // 8166-3.4.5-a LX-3
    for position in [1, 2, 3, 97] {
        let refused = refused(&call(200).read(position, segment(1, 8)));
        assert!(matches!(refused, RefusedCall::Header(_)), "{refused:?}");
    }
}

#[test]
fn lengths_that_are_too_large_or_overflow_when_summed_are_refused() {
    // 8166-8.1-e 8166-3.4.4-a
    let limits = limits();
    accept(&call(96).read(96, segment(1, limits.chunk_len)), |call| {
        assert_eq!(pulled(call)[0].2, limits.chunk_len);
    });
    let segments_of = |lengths: &[u32]| {
        lengths.iter().fold(call(96), |message, &length| message.read(96, segment(1, length)))
    };
    for lengths in [
        &[limits.chunk_len + 1][..],
        &[limits.chunk_len, 1],
        &[u32::MAX, 1],
        &[u32::MAX; 9],
        &[u32::MAX, u32::MAX, 2],
    ] {
        assert!(is_too_long(refused(&segments_of(lengths))), "{lengths:?}");
    }
    // Each chunk within its limit, all together not.
    let mut message = call(200);
    for nth in 0..3 {
        message = message.read(96 + nth * (limits.chunk_len + 4), segment(1, limits.chunk_len));
    }
    assert!(is_too_long(refused(&message)));
    // The Position Zero Read chunk counts as well.
    let long = call(0).nomsg().read(0, segment(1, limits.chunk_len + 1));
    assert!(is_too_long(refused(&long)));
}

#[test]
fn lists_are_accepted_up_to_their_limits_and_refused_beyond() {
    // 8166-X-13 8267-6.4.2-a 8267-6.4.2-b
    let limits = limits();
    let reads =
        |count| (0..count).fold(call(1000), |message, nth| message.read(96 + 8 * nth, segment(nth, 4)));
    accept(&reads(limits.read_chunks), |call| assert_eq!(pulled(call).len(), limits.read_chunks as usize));
    assert_eq!(refused(&reads(limits.read_chunks + 1)), RefusedCall::Chunks(ChunkError::Chunks));

    let writes = |count| (0..count).fold(call(1000), |message, _| message.write(&[]));
    accept(&writes(limits.write_chunks), |_| ());
    assert_eq!(refused(&writes(limits.write_chunks + 1)), RefusedCall::Chunks(ChunkError::Chunks));

    // 16 segments in each of the three lists, as every server must take them.
    let sixteen: Vec<Segment> = (0..16).map(|nth| segment(nth, 64)).collect();
    let mut message = call(0).nomsg().write(&sixteen).reply_chunk(&sixteen);
    for nth in 0..16 {
        message = message.read(0, segment(nth, 64)).read(64, segment(nth, 64));
    }
    accept(&message, |call| assert_eq!(call.long_segments().count(), 16));
    assert!(matches!(refused(&message.read(64, segment(1, 1))), RefusedCall::Header(_)));
}

#[test]
fn a_call_seen_again_from_its_kept_message_is_the_same() {
    // 8166-3.4.6-c
    let mut responder = responder(4);
    let message = call(96)
        .read(96, segment(1, 100))
        .write(&[])
        .write(&[segment(2, 64), segment(3, 64)])
        .reply_chunk(&[segment(4, 8192)])
        .bytes();
    let id = receive_call(&mut responder, &message);
    let call = responder.call(id, &message).expect("in process");
    assert_eq!(call.xid(), 5);
    assert_eq!(pulled(&call), [(96, 96, 100, vec![1])]);
    assert!(call.write_chunk(0).is_none());
    assert_eq!(call.write_chunk(1).unwrap().total_len(), 128);
    assert!(call.write_chunk(2).is_none());
    assert_eq!(call.reply_chunk().unwrap().total_len(), 8192);
    assert_eq!(call.payload, CallPayload::Inline(&message[message.len() - 96..]));
    answer_with(&mut responder, id, &message);
    assert!(responder.call(id, &message).is_none());
}

fn answer_with(responder: &mut Responder, id: stag_proto::responder::ResponderCallId, message: &[u8]) {
    answer(responder, id, message);
}

#[test]
fn a_cursor_cuts_local_pieces_against_segments() {
    // 8166-3.4.4-a 8166-3.4.6-b 8166-4.4.3-a
    let segments = [segment(1, 4096), segment(9, 0), segment(2, 4096)];
    let mut cursor = Cursor::new(segments.into_iter());
    assert_eq!(cursor.take(0), None);
    let at = |segment: Segment, skip: u64, len| {
        Some(Span { handle: segment.handle, offset: segment.offset + skip, len })
    };
    assert_eq!(cursor.take(5000), at(segments[0], 0, 4096));
    assert_eq!(cursor.take(904), at(segments[2], 0, 904));
    assert_eq!(cursor.take(1000), at(segments[2], 904, 1000));
    assert_eq!(cursor.take(u32::MAX), at(segments[2], 1904, 2192));
    assert_eq!(cursor.take(1), None);
}
