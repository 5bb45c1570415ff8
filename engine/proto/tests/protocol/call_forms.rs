//! Short, Chunked and Long Calls, and when a Reply chunk goes with them.

use stag_proto::requester::{CallForm, ChunkLists, EmitError, ExposedMemory, PlanError, Requester, Shape};
use stag_wire::rpcrdma::{ReadSegment, SINGLE_LEN, Segment, SingleChunk};

use crate::support::*;

fn plan(shape: &Shape<'_>) -> Result<CallForm, PlanError> {
    requester(2).plan(shape)
}

fn short(payload_len: u32) -> Shape<'static> {
    Shape { payload_len, ..Shape::default() }
}

#[test]
fn a_short_call_fills_the_inline_threshold_to_the_last_octet() {
    // 8166-3.5.1-a 8166-4.2.4-d 8166-4.1-b
    assert_eq!(plan(&short(1024 - 28)), Ok(CallForm { long: false, reply_chunk: false, header_len: 28 }));
    let form = plan(&short(1024 - 28 + 1)).unwrap();
    assert_eq!(form, CallForm { long: true, reply_chunk: false, header_len: 28 + 24 });
}

#[test]
fn a_chunked_call_counts_what_is_left_after_reduction() {
    // 8166-3.5.2-a 8166-4.1.2-d
    let shape = Shape { payload_len: 1024 - 28 - 2 * 24, read_segments: 2, ..Shape::default() };
    assert_eq!(plan(&shape), Ok(CallForm { long: false, reply_chunk: false, header_len: 76 }));
}

#[test]
fn a_long_call_may_have_read_chunks_beside_its_position_zero_read_chunk() {
    // 8166-3.5.3-a 8166-3.5.3-b 8166-3.5.3-g 8166-4.1.2-d
    let shape = Shape { payload_len: 2000, read_segments: 2, long_call_segments: 3, ..Shape::default() };
    assert_eq!(plan(&shape), Ok(CallForm { long: true, reply_chunk: false, header_len: 28 + 5 * 24 }));
}

#[test]
fn a_long_call_may_be_chosen_at_any_time() {
    // 8166-3.5.3-d
    let shape = Shape { payload_len: 40, prefer_long_call: true, ..Shape::default() };
    assert_eq!(plan(&shape), Ok(CallForm { long: true, reply_chunk: false, header_len: 52 }));
}

#[test]
fn a_reply_chunk_goes_along_exactly_when_the_largest_reply_could_exceed_the_threshold() {
    // 8166-4.3.3-a 8166-3.5.3-c 8267-D-1
    let with_reply = |len, writes| {
        plan(&Shape {
            payload_len: 100,
            reply_payload_len_max: len,
            write_chunks: writes,
            ..Shape::default()
        })
    };
    assert!(!with_reply(1024 - 28, &[]).unwrap().reply_chunk);
    let form = with_reply(1024 - 27, &[]).unwrap();
    assert_eq!((form.reply_chunk, form.header_len), (true, 28 + 20));
    // The Write list counts: the Reply's header repeats it.
    assert!(!with_reply(1024 - 28 - 8 - 32, &[2]).unwrap().reply_chunk);
    assert!(with_reply(1024 - 28 - 8 - 31, &[2]).unwrap().reply_chunk);
}

#[test]
fn a_call_whose_header_does_not_fit_fails_locally() {
    // 8166-4.5.4-a 8166-4.2.4-d
    let wide = Requester::new(&stag_proto::requester::RequesterConfig {
        slots: 1,
        parameters: parameters(1024, 1024, false),
        credits_requested: 1,
        segments_max: 64,
        xid_seed: 0,
    });
    // With no room beside the lists, the Payload stream needs a Position Zero Read chunk as well.
    let reads = Shape { read_segments: 42, ..Shape::default() };
    assert_eq!(wide.plan(&reads), Err(PlanError::CallHeader { len: 28 + 43 * 24, threshold: 1024 }));
    let writes = Shape { write_chunks: &[31, 31], ..Shape::default() };
    assert!(matches!(wide.plan(&writes), Err(PlanError::CallHeader { threshold: 1024, .. })));
    let many = Shape { write_chunks: &[60, 5], ..Shape::default() };
    assert!(matches!(wide.plan(&many), Err(PlanError::Segments { limit: 64, .. })));
    // The Reply chunk counts too.
    let roomy = requester_with(1, parameters(4096, 1024, false));
    let fits = Shape { write_chunks: &[31], reply_payload_len_max: 2000, ..Shape::default() };
    assert!(roomy.plan(&fits).is_ok());
    let one_more = Shape { write_chunks: &[32], ..fits };
    assert_eq!(roomy.plan(&one_more), Err(PlanError::Segments { count: 33, limit: 32 }));
    let absurd = Shape { write_chunks: &[u32::MAX, u32::MAX], read_segments: u32::MAX, ..Shape::default() };
    assert!(wide.plan(&absurd).is_err());
}

#[test]
fn a_reply_header_that_would_not_fit_fails_the_call_locally() {
    // 8166-4.5.4-a 8267-D-1
    let narrow = requester_with(1, parameters(4096, 1024, false));
    let shape = Shape { write_chunks: &[31], reply_payload_len_max: 2000, ..Shape::default() };
    assert!(narrow.plan(&shape).is_ok());
    let wide = Requester::new(&stag_proto::requester::RequesterConfig {
        slots: 1,
        parameters: parameters(4096, 1024, false),
        credits_requested: 1,
        segments_max: 64,
        xid_seed: 0,
    });
    let shape = Shape { write_chunks: &[62], reply_payload_len_max: 2000, ..Shape::default() };
    assert_eq!(
        wide.plan(&shape),
        Err(PlanError::ReplyHeader { len: 28 + 8 + 62 * 16 + 20, threshold: 1024 })
    );
}

#[test]
fn a_null_call_has_the_header_of_the_notes() {
    // 8166-4.1-a 8166-4.2.2-a 8166-4.2.4-a 8166-3.2-a
    let mut requester = requester(32);
    let (call, header) = send(&mut requester, &ChunkLists::default());
    assert_eq!(header, words(&[call.xid(), 1, 32, MSG, 0, 0, 0]));
}

#[test]
fn a_write_call_has_the_header_of_the_notes() {
    // 8166-4.1.2-a 8166-3.4.5-a 8166-3.5.2-a
    let mut requester = requester(32);
    let reads = [
        stag_wire::rpcrdma::ReadSegment {
            position: 96,
            segment: stag_wire::rpcrdma::Segment { handle: 0xc101, length: 4096, offset: 0x7f00_0000_1000 },
        },
        stag_wire::rpcrdma::ReadSegment {
            position: 96,
            segment: stag_wire::rpcrdma::Segment { handle: 0xc202, length: 1905, offset: 0x7f00_0000_9000 },
        },
    ];
    let (call, header) = send(&mut requester, &ChunkLists { reads: &reads, ..ChunkLists::default() });
    let expected = [
        call.xid(),
        1,
        32,
        MSG, //
        1,
        96,
        0xc101,
        4096,
        0x7f00,
        0x1000, //
        1,
        96,
        0xc202,
        1905,
        0x7f00,
        0x9000, //
        0,
        0,
        0,
    ];
    assert_eq!(header, words(&expected));
}

#[test]
fn a_read_call_offers_its_write_chunks_and_an_empty_one() {
    // 8166-4.1.2-b 8166-4.3.2.3-a
    let mut requester = requester(32);
    let chunk = [segment(0xd101, 4096), segment(0xd202, 4096)];
    let lists = ChunkLists { writes: &[&chunk, &[]], ..ChunkLists::default() };
    let (call, header) = send(&mut requester, &lists);
    let mut expected = Message::call(call.xid()).write(&chunk).write(&[]);
    expected.payload.clear();
    assert_eq!(header, expected.bytes());
}

#[test]
fn a_long_call_with_a_reply_chunk_has_the_header_of_the_notes() {
    // 8166-3.5.3-b 8166-4.2.4-b 8166-4.1.2-c 8166-8.2-b
    let mut requester = requester(32);
    let reads = [read_segment(0, 0xe101, 3000)];
    let reply = [segment(0xe202, 65536)];
    let lists = ChunkLists { reads: &reads, reply: Some(&reply), ..ChunkLists::default() };
    let (call, header) = send(&mut requester, &lists);
    let (at, room) = (reads[0].segment.offset, reply[0].offset);
    let expected = [
        call.xid(),
        1,
        32,
        NOMSG, //
        1,
        0,
        0xe101,
        3000,
        (at >> 32) as u32,
        at as u32,
        0, //
        0, //
        1,
        1,
        0xe202,
        65536,
        (room >> 32) as u32,
        room as u32,
    ];
    assert_eq!(header, words(&expected));
    assert_eq!(header.len(), 72);
}

#[test]
fn read_chunks_are_written_in_ascending_order_of_position() {
    // 8166-X-9 8166-3.4.5-b
    let mut requester = requester(32);
    let reads =
        [read_segment(200, 1, 8), read_segment(96, 2, 4), read_segment(200, 3, 8), read_segment(0, 4, 300)];
    let (_, header) = send(&mut requester, &ChunkLists { reads: &reads, ..ChunkLists::default() });
    let (header, _) = stag_wire::rpcrdma::Header::parse(&header).unwrap();
    let order: Vec<_> = header.read_list().map(|read| (read.position, read.segment.handle)).collect();
    assert_eq!(order, [(0, 4), (96, 2), (200, 1), (200, 3)]);
}

#[test]
fn a_call_with_one_chunk_is_the_same_by_its_short_way() {
    // 8166-3.5.2-a 8166-4.2.4-d
    for (offset, length) in [(0, 0), (7, 1), (1 << 40, 1 << 20), (u64::MAX - 9, 9)] {
        let segment = Segment { handle: 77, length, offset };
        for chunk in [
            SingleChunk::Write(segment),
            SingleChunk::Read(ReadSegment { position: 4, segment }),
            SingleChunk::Read(ReadSegment { position: 1020, segment }),
        ] {
            let (mut usual, mut short) = (requester(4), requester(4));
            let (_, expected) = match chunk {
                SingleChunk::Write(segment) => {
                    send(&mut usual, &ChunkLists { writes: &[&[segment]], ..ChunkLists::default() })
                }
                SingleChunk::Read(read) => {
                    send(&mut usual, &ChunkLists { reads: &[read], ..ChunkLists::default() })
                }
            };
            let call = short.begin().unwrap();
            let mut head = [0x5a; SINGLE_LEN];
            short.emit_single_call(call, chunk, &mut head);
            assert_eq!(head[..], expected[..SINGLE_LEN]);
            assert_eq!(short.cancel(call), ExposedMemory::Exposed);
            assert_eq!(fence_all(&mut short, call), [77]);
        }
    }
}

#[test]
fn lists_that_are_not_as_planned_are_not_sent() {
    // 8166-4.5.4-a 8166-3.4.5-a
    let mut requester = requester(4);
    let call = requester.begin().unwrap();
    let plain = CallForm { long: false, reply_chunk: false, header_len: 28 };
    let one_read = CallForm { header_len: 52, ..plain };
    let mut out = [0; 1024];
    for (form, reads) in [
        (plain, &[read_segment(96, 1, 4)][..]),
        (one_read, &[read_segment(0, 1, 4)]),
        (one_read, &[read_segment(98, 1, 4)]),
        (CallForm { long: true, ..one_read }, &[read_segment(96, 1, 4)]),
        (CallForm { reply_chunk: true, ..one_read }, &[read_segment(96, 1, 4)]),
    ] {
        let lists = ChunkLists { reads, ..ChunkLists::default() };
        assert_eq!(requester.emit_call(call, &form, &lists, &mut out), Err(EmitError::NotAsPlanned));
    }
    let short = requester.emit_call(call, &plain, &ChunkLists::default(), &mut out[..27]);
    assert_eq!(short, Err(EmitError::OutTooShort));
    let lists = ChunkLists { reads: &[read_segment(96, 1, 4)], ..ChunkLists::default() };
    assert_eq!(requester.emit_call(call, &one_read, &lists, &mut out[..51]), Err(EmitError::OutTooShort));
    // Nothing happened: the Call can still be made, or given up.
    assert_eq!(requester.abandon(call), stag_proto::requester::ExposedMemory::Safe);
    assert_eq!(requester.available(), 4);
}

#[test]
fn xids_do_not_come_back_soon_and_differ_by_seed() {
    // 8166-4.2.1-a
    let mut seen = std::collections::HashSet::new();
    let mut requester = requester(5);
    for _ in 0..10_000 {
        let call = send_null(&mut requester);
        assert!(seen.insert(call.xid()));
        assert!(call.index() < 5);
        let message = Message::reply(call.xid(), 5).bytes();
        assert!(matches!(
            requester.handle_receive(&message, None),
            stag_proto::requester::RequesterReceived::Reply(_)
        ));
    }
}
