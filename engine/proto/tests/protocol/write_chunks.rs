//! Write chunks in Replies: which item goes where, and how the list comes back.

use stag_proto::responder::{ReplyError, Responder};
use stag_wire::rpcrdma::{Header, Segment};

use crate::support::*;

/// Answers a Call that offers `writes` with `items`, and returns the lengths in the Reply's Write list.
fn echoed(writes: &[&[Segment]], items: &[u32]) -> Vec<Vec<Segment>> {
    let mut message = Message::call(5);
    message.writes = writes.iter().map(|chunk| chunk.to_vec()).collect();
    let message = message.bytes();
    let mut responder = responder(4);
    let id = receive_call(&mut responder, &message);
    let form = responder.plan_reply(id, &message, items, 100).expect("it fits");
    assert!(!form.long);
    let mut out = vec![0; 1024];
    let emitted = responder.emit_reply(id, &message, items, &form, &mut out).expect("in process");
    assert_eq!(emitted.header_len, form.header_len as usize);
    // Parsed as a Requester would, with the Payload right behind.
    out[emitted.header_len..][..8].copy_from_slice(&words(&[5, REPLY]));
    let (header, payload) = Header::parse(&out).expect("a good header");
    assert_eq!(header.check_reply(payload), Ok(()));
    assert_eq!(out.len() - payload.len(), emitted.header_len);
    header.write_list().map(|chunk| chunk.segments().collect()).collect()
}

fn lengths(writes: &[&[Segment]], items: &[u32]) -> Vec<Vec<u32>> {
    let echoed = echoed(writes, items);
    for (offered, returned) in writes.iter().zip(&echoed) {
        // Count, handles and offsets are copied.
        let same = |segment: &Segment| (segment.handle, segment.offset);
        assert!(offered.iter().map(same).eq(returned.iter().map(same)));
    }
    assert_eq!(writes.len(), echoed.len());
    echoed.iter().map(|chunk| chunk.iter().map(|segment| segment.length).collect()).collect()
}

#[test]
fn a_write_chunk_is_filled_front_to_back_and_comes_back_with_its_lengths() {
    // 8166-3.4.6-b 8166-3.4.6-c 8166-4.3.2-a
    let chunk = [segment(1, 4096), segment(2, 4096), segment(3, 4096)];
    assert_eq!(lengths(&[&chunk], &[5001]), [[4096, 905, 0]]);
    assert_eq!(lengths(&[&chunk], &[4096]), [[4096, 0, 0]]);
    assert_eq!(lengths(&[&chunk], &[12288]), [[4096, 4096, 4096]]);
}

#[test]
fn roundup_is_not_written_to_a_write_chunk() {
    // 8166-3.4.6.2-a
    assert_eq!(lengths(&[&[segment(1, 8)]], &[5]), [[5]]);
    // The chunk of an item that just fits has no room for it.
    assert_eq!(lengths(&[&[segment(1, 5)]], &[5]), [[5]]);
}

#[test]
fn write_chunks_are_used_in_list_order_one_for_each_item() {
    // 8166-4.3.2.1-a 8267-6.4.1-c 8267-6.4.1-d
    let (a, b, c) = ([segment(1, 100)], [segment(2, 50), segment(3, 50)], [segment(4, 100)]);
    assert_eq!(lengths(&[&a, &b, &c], &[10, 60, 100]), [vec![10], vec![50, 10], vec![100]]);
}

#[test]
fn a_left_over_write_chunk_comes_back_unused() {
    // 8166-4.3.2.2-b 8267-6.4.1-h
    let (a, b) = ([segment(1, 100)], [segment(2, 50), segment(3, 50)]);
    assert_eq!(lengths(&[&a, &b], &[10]), [vec![10], vec![0, 0]]);
    assert_eq!(lengths(&[&a, &b], &[]), [vec![0], vec![0, 0]]);
}

#[test]
fn an_item_with_an_empty_write_chunk_goes_inline_and_the_chunk_comes_back_empty() {
    // 8166-4.3.2.3-a 8166-4.3.2.3-b 8267-6.4.1-e
    let (a, c) = ([segment(1, 100)], [segment(2, 100)]);
    assert_eq!(lengths(&[&a, &[], &c], &[10, 70, 20]), [vec![10], vec![], vec![20]]);
}

#[test]
fn items_beyond_the_write_list_go_inline() {
    // 8166-4.3.2.3-c 8267-6.4.1-g 8166-4.3.2.3-a
    assert_eq!(lengths(&[&[segment(1, 100)]], &[10, 20, 30]), [[10]]);
    assert_eq!(lengths(&[], &[10, 20]), Vec::<Vec<u32>>::new());
}

#[test]
fn an_item_without_octets_uses_up_its_chunk_and_leaves_it_unused() {
    // 8166-X-12 8267-X-3 8267-X-1 8267-X-2 8166-4.3.2.2-a
    let (a, b) = ([segment(1, 100)], [segment(2, 100)]);
    assert_eq!(lengths(&[&a, &b], &[0, 20]), [[0], [20]]);
}

#[test]
fn placement_is_told_before_the_payload_is_encoded() {
    // 8166-4.3.2-a 8166-4.3.2.3-b
    let mut responder = responder(4);
    let message = Message::call(5).write(&[segment(1, 100)]).write(&[]).bytes();
    let id = receive_call(&mut responder, &message);
    let call = responder.call(id, &message).expect("in process");
    let places: Vec<_> = (0..3).map(|item| call.write_chunk(item).map(|chunk| chunk.total_len())).collect();
    assert_eq!(places, [Some(100), None, None]);
}

#[test]
fn an_item_longer_than_its_write_chunk_is_found_before_anything_is_written() {
    // 8166-3.4.6-a 8267-3-b
    let mut responder = responder(4);
    let chunk = [segment(2, 50), segment(3, 50)];
    let message = Message::call(5).write(&[segment(1, 100)]).write(&chunk).bytes();
    let id = receive_call(&mut responder, &message);
    let plan = |responder: &Responder, items: &[u32]| responder.plan_reply(id, &message, items, 100);
    assert!(plan(&responder, &[100, 100]).is_ok());
    assert_eq!(plan(&responder, &[100, 101]), Err(ReplyError::WriteChunk { item: 1 }));
    assert_eq!(plan(&responder, &[u32::MAX]), Err(ReplyError::WriteChunk { item: 0 }));
}
