//! RDMA Writes and RDMA Reads.

use stag_fabric::{
    Exposed, Handle, PostError, QueuePairId, READ_PARTS_MAX, ReadPart, ReadRequest, RemoteSegment,
    SendRequest, WorkError, WriteRequest,
};

use crate::bench::{A, B, Bench, CAPACITY, Harness, Kind, pattern, refusal};

/// A piece of exposed memory, `by` octets from its start.
fn at(segment: RemoteSegment, by: u64) -> RemoteSegment {
    RemoteSegment { offset: segment.offset.wrapping_add(by), ..segment }
}

/// All Writes are placed before the Send behind them is delivered.
pub(crate) fn writes_land_before_the_send_behind_them<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    for round in 0..4 {
        let target = bench.offer_write(B, [qa, qb], 40_000);
        bench[B].post_receive(qb, round);
        let bytes = pattern(40_000, round);
        for (i, piece) in bytes.chunks(10_000).enumerate() {
            bench[A].post_write(qa, round * 10 + i as u64, piece, at(target, i as u64 * 10_000));
        }
        bench[A].post_send(qa, 1000 + round, b"look");
        assert_eq!(bench.message(B, qb, round)[..], *b"look");
        // Without waiting for anything else: the Send says that it is there.
        let memory = bench.fenced_buf(B, qb, target.handle, round);
        assert!(memory[..] == bytes[..], "all of it is there when the Send is");
        assert_eq!(bench.completion(A, qa, Kind::Send, 1000 + round).result, Ok(()));
    }
}

/// A Write touches its target and nothing beside it.
pub(crate) fn a_write_touches_nothing_else<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    let target = bench.offer_write(B, [qa, qb], 300);
    bench[B].post_receive(qb, 1);
    bench[A].post_write(qa, 1, &pattern(100, 3), at(target, 100));
    bench[A].post_send(qa, 2, b"done");
    bench.message(B, qb, 1);
    let memory = bench.fenced_buf(B, qb, target.handle, 1);
    assert_eq!(memory.len(), 300);
    assert!(memory[..100].iter().chain(&memory[200..]).all(|&byte| byte == 0x77));
    assert_eq!(memory[100..200], pattern(100, 3)[..]);
}

/// One Read request gathers many pieces of several exposures in one buffer.
pub(crate) fn a_read_gathers_its_parts<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    let (one, two) = (pattern(5000, 1), pattern(70, 2));
    let first = bench.offer_read(A, [qa, qb], &one);
    let second = bench.offer_read(A, [qa, qb], &two);
    let mut target = bench[B].buf(&[0xee; 6000]);
    target.set_len(6000);
    let parts = [
        ReadPart { at: 70, len: 4000, source: at(first, 1000) },
        ReadPart { at: 0, len: 70, source: second },
        ReadPart { at: 4070, len: 1000, source: first },
        ReadPart { at: 5070, len: 1, source: at(first, 4999) },
    ];
    bench[B].try_read(qb, ReadRequest { id: 1, target }, &parts).expect("it is posted");
    let read = bench.read(B, qb, 1);
    let expected = [&two[..], &one[1000..], &one[..1000], &one[4999..], &[0xee; 929]].concat();
    assert_eq!(read.len(), 6000);
    assert!(read[..] == expected[..], "each part in its place, and nothing else touched");
}

/// As many parts as the trait allows, and not one more; nor a part that leaves the target.
pub(crate) fn read_parts_are_bounded<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    let bytes = pattern(READ_PARTS_MAX, 4);
    let source = bench.offer_read(A, [qa, qb], &bytes);
    let part = |i: usize| ReadPart { at: i as u32, len: 1, source: at(source, i as u64) };
    let parts: Vec<_> = (0..READ_PARTS_MAX).map(part).collect();
    let target = bench[B].buf(&[0; READ_PARTS_MAX]);
    bench[B].try_read(qb, ReadRequest { id: 1, target }, &parts).expect("it is posted");
    assert_eq!(bench.read(B, qb, 1)[..], bytes[..]);

    let too_many = vec![part(0); READ_PARTS_MAX + 1];
    let target = bench[B].buf(&[5; 64]);
    let result = bench[B].try_read(qb, ReadRequest { id: 2, target }, &too_many);
    assert_eq!(refusal(result, |r| r.id == 2 && r.target[..] == [5; 64]), PostError::TooLong);

    for (part_at, len) in [(1 << 16, 1), (0, 1 << 16), (u32::MAX, u32::MAX)] {
        let target = bench[B].buf(&[5; 64]);
        let outside = [ReadPart { at: part_at, len, source }];
        let result = bench[B].try_read(qb, ReadRequest { id: 3, target }, &outside);
        assert_eq!(refusal(result, |r| r.id == 3 && r.target[..] == [5; 64]), PostError::TooLong);
    }
}

/// Transfers of no octets are done like any other, at the very end of the memory too.
pub(crate) fn zero_length_transfers<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    let readable = bench.offer_read(B, [qa, qb], &[1; 16]);
    let writable = bench.offer_write(B, [qa, qb], 16);
    bench[A].post_write(qa, 1, b"", writable);
    bench[A].post_write(qa, 2, b"", at(writable, 16));
    bench[A].post_read(qa, 3, 0, at(readable, 16));
    for id in [1, 2] {
        assert_eq!(bench.completion(A, qa, Kind::Write, id).result, Ok(()));
    }
    assert_eq!(bench.read(A, qa, 3).len(), 0);
    assert_eq!(bench.fenced_buf(B, qb, writable.handle, 1)[..], [0x77; 16]);
}

/// Sends, Writes and Reads of one queue pair complete in the order in which they were posted.
pub(crate) fn completions_come_in_posting_order<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    let readable = bench.offer_read(B, [qa, qb], &pattern(9000, 1));
    let writable = bench.offer_write(B, [qa, qb], 9000);
    for round in 0..5 {
        let ids = round * 10;
        for id in 0..2 {
            bench[B].post_receive(qb, ids + id);
        }
        bench[A].post_read(qa, ids, 9000, readable);
        bench[A].post_send(qa, ids + 1, b"one");
        bench[A].post_write(qa, ids + 2, &pattern(9000, 2), writable);
        bench[A].post_read(qa, ids + 3, 1, readable);
        bench[A].post_send(qa, ids + 4, b"two");
        // The bench checks the order; here, that all of them come.
        for (id, kind) in
            [(0, Kind::Read), (1, Kind::Send), (2, Kind::Write), (3, Kind::Read), (4, Kind::Send)]
        {
            assert_eq!(bench.completion(A, qa, kind, ids + id).result, Ok(()));
        }
        for id in 0..2 {
            bench.message(B, qb, ids + id);
        }
    }
}

/// Unsignaled Writes give their sources back without a completion.
pub(crate) fn unsignaled_writes<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    let target = bench.offer_write(B, [qa, qb], 4096);
    for round in 0..20 {
        let source = bench[A].buf(&pattern(4096, round)).share();
        let mut request = Some(WriteRequest { id: round, source, target, signaled: false });
        bench.until("an unsignaled Write finds room", |bench| {
            let refused = bench[A].try_write(qa, request.take()?).err();
            request = refused.map(|refused| {
                assert_eq!(refused.error, PostError::Full);
                refused.request
            });
            request.is_none().then_some(())
        });
    }
    bench[B].post_receive(qb, 1);
    let buf = bench[A].buf(b"last");
    bench.send_when_there_is_room(A, qa, SendRequest { id: 99, buf, invalidate: None, signaled: true });
    bench.message(B, qb, 1);
    assert_eq!(bench.completion(A, qa, Kind::Send, 99).result, Ok(()));
    assert!(bench[A].completions.is_empty(), "unsignaled: {:?}", bench[A].completions);
    let pool = bench[A].pages.clone();
    bench.until("unsignaled sources are back", |_| (pool.outstanding() == 0).then_some(()));
    bench.fenced_buf(B, qb, target.handle, 1);
}

/// Writes that reach outside of the exposed memory: none of it is written, and the connection ends.
pub(crate) fn write_bounds<H: Harness>(bench: &mut Bench<H>) {
    if !bench.guards() || !guards_bounds(bench) {
        return;
    }
    for (by, len) in OUTSIDE {
        let [qa, qb] = bench.connect();
        let target = bench.offer_write(B, [qa, qb], EXPOSED);
        bench[A].post_write(qa, 1, &pattern(len, 1), at(target, by));
        refused_untouched(bench, [qa, qb], Kind::Write);
    }
}

/// Reads that reach outside of the exposed memory fail, and the connection ends.
pub(crate) fn read_bounds<H: Harness>(bench: &mut Bench<H>) {
    if !bench.guards() || !guards_bounds(bench) {
        return;
    }
    for (by, len) in OUTSIDE {
        let [qa, qb] = bench.connect();
        let source = bench.offer_read(B, [qa, qb], &[7; EXPOSED]);
        bench[A].post_read(qa, 1, len as u32, at(source, by));
        bench.refused(A, [qa, qb], Kind::Read, 1, WorkError::RemoteAccess);
        let end = bench[B].take_completion(|c| c.queue_pair == qb).expect("the memory came back");
        assert_eq!(end.result, Err(WorkError::Flushed));
    }
}

fn guards_bounds<H: Harness>(bench: &mut Bench<H>) -> bool {
    let guards = bench.harness.guards_bounds();
    bench.can(
        guards,
        "rxe's kernel checks the bounds of the region that a window is in, not the window's (check_rkey)",
    )
}

/// Octets exposed in the tests of bounds. The buffer behind them is larger.
const EXPOSED: usize = 5000;

/// Ways to miss it: octets from the start (modulo 2^64), and how many.
const OUTSIDE: [(u64, usize); 7] = [
    (u64::MAX, 1),             // before the start
    (u64::MAX, 2),             // across the start
    (EXPOSED as u64, 1),       // past the end, inside of the buffer
    (EXPOSED as u64 - 1, 2),   // across the end
    (0, EXPOSED + 1),          // all and one more
    (1 << 40, 8),              // far away
    (u64::MAX - (1 << 20), 1), // so far that it is before the start again
];

/// The peer refused access to the memory exposed on B; nothing was written.
fn refused_untouched<H: Harness>(bench: &mut Bench<H>, [qa, qb]: [QueuePairId; 2], kind: Kind) {
    bench.refused(A, [qa, qb], kind, 1, WorkError::RemoteAccess);
    let end = bench[B].take_completion(|c| c.queue_pair == qb).expect("the memory came back");
    match end.completed {
        stag_fabric::Completed::Fence { exposed: Exposed::Write(buf), .. } => {
            assert!(buf.iter().all(|&byte| byte == 0x77), "not written");
        }
        other => panic!("it came back as {other:?}"),
    }
}

/// Memory exposed to be read is not written, and the other way round.
pub(crate) fn wrong_access<H: Harness>(bench: &mut Bench<H>) {
    if !bench.guards() {
        return;
    }
    let [qa, qb] = bench.connect();
    let source = bench.offer_read(B, [qa, qb], &pattern(100, 1));
    bench[A].post_write(qa, 1, &[0; 10], source);
    bench.refused(A, [qa, qb], Kind::Write, 1, WorkError::RemoteAccess);
    let end = bench[B].take_completion(|c| c.queue_pair == qb).expect("the memory came back");
    match end.completed {
        stag_fabric::Completed::Fence { exposed: Exposed::Read(shared), .. } => {
            assert_eq!(shared[..], pattern(100, 1)[..], "not written");
        }
        other => panic!("it came back as {other:?}"),
    }

    let guards = bench.harness.guards_against_reads();
    if !bench.can(guards, "siw answers a Read of memory that is registered for anything") {
        return;
    }
    let [qa, qb] = bench.connect();
    let target = bench.offer_write(B, [qa, qb], 100);
    bench[A].post_read(qa, 1, 10, target);
    refused_untouched(bench, [qa, qb], Kind::Read);
}

/// Handles that were never given out name nothing.
pub(crate) fn unknown_handle<H: Harness>(bench: &mut Bench<H>) {
    if !bench.guards() {
        return;
    }
    for flip in [1, 1 << 7, 1 << 15, 1 << 16, 1 << 31, u32::MAX] {
        let [qa, qb] = bench.connect();
        let target = bench.offer_write(B, [qa, qb], 100);
        let unknown = RemoteSegment { handle: Handle(target.handle.0 ^ flip), ..target };
        bench[A].post_write(qa, 1, &[0; 10], unknown);
        refused_untouched(bench, [qa, qb], Kind::Write);
    }
    // Nor when nothing at all is exposed.
    for handle in [0, 1, u32::MAX] {
        let [qa, qb] = bench.connect();
        bench[A].post_read(qa, 1, 10, RemoteSegment { handle: Handle(handle), offset: 0 });
        bench.refused(A, [qa, qb], Kind::Read, 1, WorkError::RemoteAccess);
    }
}

/// A handle is good on the queue pair that it was made for, and on no other of the same two providers.
pub(crate) fn handle_of_another_queue_pair<H: Harness>(bench: &mut Bench<H>) {
    if !bench.guards() {
        return;
    }
    let [qa, qb] = bench.connect();
    let [other_a, other_b] = bench.connect();
    let target = bench.offer_write(B, [qa, qb], 100);
    bench[A].post_write(other_a, 1, &[0; 10], target);
    bench.refused(A, [other_a, other_b], Kind::Write, 1, WorkError::RemoteAccess);
    // The queue pair whose handle it is has nothing to do with that.
    bench[B].post_receive(qb, 1);
    bench[A].post_write(qa, 1, &[9; 100], target);
    bench[A].post_send(qa, 2, b"done");
    bench.message(B, qb, 1);
    assert_eq!(bench.fenced_buf(B, qb, target.handle, 1)[..], [9; 100]);
}

/// A handle is good for the peer, not for the side that made it.
pub(crate) fn own_handle<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    let own = bench.offer_read(A, [qa, qb], &[1; 64]);
    bench[A].post_read(qa, 1, 64, own);
    bench.refused(A, [qa, qb], Kind::Read, 1, WorkError::RemoteAccess);
}

/// What was posted before a refused request is not undone, what was posted behind it is flushed.
pub(crate) fn requests_around_a_refused_one<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect_with(CAPACITY, CAPACITY);
    bench[B].post_receive(qb, 1);
    bench[B].post_receive(qb, 2);
    bench[A].post_send(qa, 1, b"before");
    assert_eq!(bench.message(B, qb, 1)[..], *b"before");
    assert_eq!(bench.completion(A, qa, Kind::Send, 1).result, Ok(()));
    let nowhere = RemoteSegment { handle: Handle(0x1234_5678), offset: 0 };
    bench[A].post_read(qa, 2, 4, nowhere);
    bench.refused(A, [qa, qb], Kind::Read, 2, WorkError::RemoteAccess);
    bench.flushed_receive(B, qb, 2);
}
