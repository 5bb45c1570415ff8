//! Reads that a provider may do during the call that posts them. It may also not do them, and then nothing happens.

use stag_fabric::{Exposed, Handle, Provider, ReadPart, RemoteSegment};

use crate::bench::{A, B, Bench, Harness, pattern};

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
