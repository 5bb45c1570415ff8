//! Work that a provider may do during the call that posts it: Reads, and Sends behind Writes. It may also do neither, and then
//! nothing happens.

use stag_fabric::{Completed, Exposed, Handle, Provider, ReadPart, RemoteSegment};

use crate::bench::{A, B, Bench, Harness, Kind, pattern};

/// What is read at once is what a posted Read finds, and nothing completes. What that is refused, this is too, and nothing
/// fails.
pub(crate) fn reads_at_once<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    for round in 0..8 {
        let bytes = pattern(5000, round);
        let source = bench.offer_read(A, [qa, qb], &bytes);
        let written = bench[A].expose_write(qa, 100);
        bench.tell(A, [qa, qb]);
        let from = |by: u64| RemoteSegment { offset: source.offset.wrapping_add(by), ..source };
        let mut target = bench[B].buf(&[0xee; 6000]);
        let parts =
            [ReadPart { at: 1000, len: 4000, source: from(1000) }, ReadPart { at: 0, len: 1000, source }];
        if bench[B].provider().read_at_once(qb, &mut target, &parts) {
            assert!(target[..5000] == bytes[..], "round {round}");
            assert!(target[5000..].iter().all(|&octet| octet == 0xee), "nothing beside it");
        }
        let unknown = RemoteSegment { handle: Handle(source.handle.0 ^ 0x5a5a_5a5a), ..source };
        for (what, part) in [
            ("beyond the exposure", ReadPart { at: 0, len: 1001, source: from(4000) }),
            ("before the exposure", ReadPart { at: 0, len: 10, source: from(u64::MAX) }),
            ("beyond the target", ReadPart { at: 5001, len: 1000, source }),
            ("beyond any target", ReadPart { at: u32::MAX, len: 1, source }),
            ("an unknown handle", ReadPart { at: 0, len: 10, source: unknown }),
            ("what is exposed for writing", ReadPart { at: 0, len: 10, source: written }),
        ] {
            assert!(!bench[B].provider().read_at_once(qb, &mut target, &[part]), "{what}");
        }
        // It guards the memory as any access does, and the connection is none the worse for what was refused.
        let Exposed::Read(memory) = bench.fenced(A, qa, source.handle, round) else {
            panic!("it was readable")
        };
        assert!(memory[..] == bytes[..]);
        bench.tell(A, [qa, qb]);
        assert!(!bench[B].provider().read_at_once(qb, &mut target, &parts), "it is fenced");
        bench.fenced_buf(A, qa, written.handle, round);
        assert!(bench[B].completions.is_empty(), "{:?}", bench[B].completions);
    }
    let mut target = bench[B].buf(&[0; 10]);
    bench[B].provider().disconnect(qb);
    let source = RemoteSegment { handle: Handle(1), offset: 0 };
    assert!(!bench[B].provider().read_at_once(qb, &mut target, &[ReadPart { at: 0, len: 10, source }]));
}

/// What is sent at once arrives as any message, behind the Writes before it, and nothing completes.
pub(crate) fn sends_at_once<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    for round in 0..8 {
        let target = bench.offer_write(B, [qa, qb], 5000);
        let bytes = pattern(5000, round);
        bench[B].post_receive(qb, round);
        bench[A].post_write(qa, round, &bytes, target);
        let buf = bench[A].buf(b"look");
        // What was not exposed cannot be invalidated, and nothing happens.
        let unknown = Handle(target.handle.0 ^ 0x5a5a_5a5a);
        assert!(!bench[A].provider().send_at_once(qa, &buf, Some(unknown)));
        let invalidates = round % 2 == 1 && bench[A].provider().limits().send_with_invalidate;
        let invalidate = invalidates.then_some(target.handle);
        let is_sent = bench[A].provider().send_at_once(qa, &buf, invalidate);
        drop(buf);
        if !is_sent {
            match invalidates {
                true => bench[A].post_send_with_invalidate(qa, round, target.handle),
                false => bench[A].post_send(qa, round, b"look"),
            }
        }
        let arrived = bench.completion(B, qb, Kind::Receive, round);
        let Completed::Receive { buf, exposed, .. } = arrived.completed else { panic!("{arrived:?}") };
        assert!(!is_sent || buf[..] == *b"look");
        let memory = match exposed {
            Some(Exposed::Write(memory)) if invalidates => memory,
            None if !invalidates => bench.fenced_buf(B, qb, target.handle, round),
            other => panic!("{other:?} came with the message"),
        };
        assert!(memory[..] == bytes[..], "the Write is there when the Send is");
        assert_eq!(bench.completion(A, qa, Kind::Write, round).result, Ok(()));
        if !is_sent {
            assert_eq!(bench.completion(A, qa, Kind::Send, round).result, Ok(()));
        }
        assert!(bench[A].completions.is_empty(), "{:?}", bench[A].completions);
    }
}
