//! The chunks that come back in a Reply, compared with what the Call offered (8166-X-11).

use stag_proto::requester::{
    CallFailure, ChunkLists, ExposedMemory, ReplyPayload, RequesterReceived, Violation,
};
use stag_wire::rpcrdma::Segment;

use crate::support::*;

/// Chunks as offered: two segments, empty, one segment.
fn offered() -> [Vec<Segment>; 3] {
    [vec![segment(1, 4096), segment(2, 4096)], vec![], vec![segment(3, 100)]]
}

fn reply_chunk() -> Vec<Segment> {
    vec![segment(4, 4096), segment(5, 4096)]
}

/// With other lengths.
fn filled(chunk: &[Segment], lengths: &[u32]) -> Vec<Segment> {
    chunk.iter().zip(lengths).map(|(segment, &length)| Segment { length, ..*segment }).collect()
}

enum Answer {
    Reply { writes: Vec<u32>, long: Option<u32> },
    Failed(Violation),
}

/// What becomes of a Call with `offered()` and `reply_chunk()` when `change` is done to its good Reply.
fn answered(change: impl FnOnce(&mut Message)) -> Answer {
    let mut requester = requester(4);
    let (offered, room) = (offered(), reply_chunk());
    let writes: Vec<&[Segment]> = offered.iter().map(Vec::as_slice).collect();
    let lists = ChunkLists { writes: &writes, reply: Some(&room), ..ChunkLists::default() };
    let (call, _) = send(&mut requester, &lists);
    let mut reply = Message::reply(call.xid(), 4)
        .write(&filled(&offered[0], &[4096, 905]))
        .write(&[])
        .write(&filled(&offered[2], &[0]))
        .reply_chunk(&filled(&room, &[0, 0]));
    change(&mut reply);
    let message = reply.bytes();
    let answer = match requester.handle_receive(&message, None) {
        RequesterReceived::Reply(reply) => {
            assert_eq!((reply.call, reply.memory), (call, ExposedMemory::Exposed));
            let long = match reply.payload {
                ReplyPayload::Inline(payload) => {
                    assert!(message.ends_with(payload) && payload.len() == 40);
                    None
                }
                ReplyPayload::Long(len) => Some(len),
            };
            Answer::Reply { writes: reply.write_lens().collect(), long }
        }
        RequesterReceived::Failed { call: failed, failure: CallFailure::Violation(violation), memory } => {
            assert_eq!((failed, memory), (call, ExposedMemory::Exposed));
            Answer::Failed(violation)
        }
        other => panic!("{other:?}"),
    };
    // Good or bad, the memory is fenced and the credit is back.
    assert_eq!(fence_all(&mut requester, call), [1, 2, 3, 4, 5]);
    assert_eq!(requester.window().in_flight(), 0);
    answer
}

fn lens(change: impl FnOnce(&mut Message)) -> (Vec<u32>, Option<u32>) {
    match answered(change) {
        Answer::Reply { writes, long } => (writes, long),
        Answer::Failed(violation) => panic!("{violation:?}"),
    }
}

fn violation(change: impl FnOnce(&mut Message)) -> Violation {
    match answered(change) {
        Answer::Failed(violation) => violation,
        Answer::Reply { writes, .. } => panic!("accepted: {writes:?}"),
    }
}

#[test]
fn returned_lengths_are_told_for_each_write_chunk() {
    // 8166-3.4.6-c 8166-6.1-d
    assert_eq!(lens(|_| ()), (vec![5001, 0, 0], None));
}

#[test]
fn a_long_reply_tells_the_octets_in_the_reply_chunk() {
    // 8166-3.5.3-c 8166-4.2.4-b
    let long = |reply: &mut Message| {
        reply.procedure = NOMSG;
        reply.payload.clear();
        reply.reply = Some(filled(&reply_chunk(), &[4096, 7]));
    };
    assert_eq!(lens(long), (vec![5001, 0, 0], Some(4103)));
}

#[test]
fn unused_and_empty_mean_the_same_for_a_write_chunk() {
    // 8267-X-2 8267-6.4.1-f 8267-X-3
    let unused = lens(|reply| reply.writes[0] = filled(&offered()[0], &[0, 0]));
    let empty = lens(|reply| reply.writes[0].clear());
    assert_eq!(unused, empty);
    assert_eq!(unused.0, [0, 0, 0]);
}

#[test]
fn a_reply_chunk_that_is_missing_counts_as_unused() {
    // 8166-4.3.3-c
    assert_eq!(lens(|reply| reply.reply = None), (vec![5001, 0, 0], None));
}

#[test]
fn a_wrong_number_of_chunks_fails_the_call() {
    // 8166-X-11
    assert_eq!(violation(|reply| reply.writes.clear()), Violation::WriteListCount);
    assert_eq!(violation(|reply| drop(reply.writes.pop())), Violation::WriteListCount);
    assert_eq!(violation(|reply| reply.writes.push(vec![])), Violation::WriteListCount);
}

#[test]
fn a_wrong_number_of_segments_fails_the_call() {
    // 8166-X-11
    assert_eq!(violation(|reply| reply.writes[0].truncate(1)), Violation::SegmentCount);
    assert_eq!(violation(|reply| reply.writes[2].push(segment(3, 0))), Violation::SegmentCount);
    // Octets in a chunk that had no room at all.
    assert_eq!(violation(|reply| reply.writes[1].push(segment(1, 0))), Violation::SegmentCount);
    let one = |reply: &mut Message| reply.reply.as_mut().unwrap().truncate(1);
    assert_eq!(violation(one), Violation::SegmentCount);
}

#[test]
fn other_memory_than_was_offered_fails_the_call() {
    // 8166-X-11
    assert_eq!(violation(|reply| reply.writes[0][0].handle = 9), Violation::SegmentChanged);
    assert_eq!(violation(|reply| reply.writes[0][1].offset += 1), Violation::SegmentChanged);
    assert_eq!(violation(|reply| reply.writes[0].swap(0, 1)), Violation::SegmentChanged);
    assert_eq!(violation(|reply| reply.writes.swap(0, 2)), Violation::SegmentCount);
    let other = |reply: &mut Message| reply.reply.as_mut().unwrap()[1].handle = 1;
    assert_eq!(violation(other), Violation::SegmentChanged);
}

#[test]
fn more_octets_than_were_offered_fail_the_call() {
    // 8166-X-11
    assert_eq!(violation(|reply| reply.writes[2][0].length = 101), Violation::SegmentLength);
    assert_eq!(violation(|reply| reply.writes[0][1].length = u32::MAX), Violation::SegmentLength);
}

#[test]
fn a_chunk_that_was_not_filled_front_to_back_fails_the_call() {
    // 8166-3.4.6-b 8166-X-11
    assert_eq!(violation(|reply| reply.writes[0][0].length = 4095), Violation::SegmentGap);
}

#[test]
fn chunks_for_a_call_without_any_fail_it() {
    // 8166-X-11
    let with = |change: fn(Message) -> Message, expected| {
        let mut requester = requester(4);
        let call = send_null(&mut requester);
        let message = change(Message::reply(call.xid(), 3)).bytes();
        match requester.handle_receive(&message, None) {
            RequesterReceived::Failed { failure: CallFailure::Violation(violation), memory, .. } => {
                assert_eq!((violation, memory), (expected, ExposedMemory::Safe));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(requester.window().granted(), 4, "not a valid Reply: its grant does not count");
    };
    with(|reply| reply.write(&[]), Violation::WriteListCount);
    with(|reply| reply.write(&[segment(1, 4)]), Violation::WriteListCount);
    with(|reply| reply.reply_chunk(&[segment(1, 0)]), Violation::UnofferedReplyChunk);
    with(|reply| reply.nomsg().reply_chunk(&[segment(1, 64)]), Violation::UnofferedReplyChunk);
}
