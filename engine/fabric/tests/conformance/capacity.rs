//! Capacity, admission, and what is refused before it starts.

use stag_fabric::{
    Completed, DisconnectReason, Exposed, FabricError, Handle, PostError, Provider, QueuePairCapacity,
    QueuePairId, RECEIVE_TARGETS_MAX, ReadPart, ReadRequest, RemoteSegment, SendRequest, WorkError,
    WriteRequest,
};

use crate::bench::{A, B, Bench, CAPACITY, Harness, Kind, memory, pattern, refusal};

/// Sends, Writes and Reads share one capacity; beyond it a post is handed back untouched; a harvested completion
/// makes room for exactly one more.
pub(crate) fn sends_beyond_capacity<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    let readable = bench.offer_read(B, [qa, qb], &pattern(100, 1));
    let writable = bench.offer_write(B, [qa, qb], 100);
    for id in 0..8 {
        bench[B].post_receive(qb, id);
    }
    for id in 0..8 {
        match id % 3 {
            0 => bench[A].post_send(qa, id, b"fill"),
            1 => bench[A].post_write(qa, id, &[1; 100], writable),
            _ => bench[A].post_read(qa, id, 100, readable),
        }
    }
    every_post_is_refused(bench, qa, PostError::Full, readable);
    for id in 0..8 {
        let kind = [Kind::Send, Kind::Write, Kind::Read][id as usize % 3];
        assert_eq!(bench.completion(A, qa, kind, id).result, Ok(()));
    }
    for id in 0..8 {
        bench[A].post_read(qa, id, 1, readable);
    }
    for id in 0..8 {
        bench.read(A, qa, id);
    }
}

/// Each kind of post on a queue pair of A is refused with `expected` and hands everything back.
fn every_post_is_refused<H: Harness>(
    bench: &mut Bench<H>,
    qa: QueuePairId,
    expected: PostError,
    somewhere: RemoteSegment,
) {
    let buf = bench[A].buf(b"message");
    let request = SendRequest { id: 77, buf, invalidate: Some(Handle(5)), signaled: true };
    let is_same = |r: &SendRequest| {
        r.id == 77 && r.buf[..] == *b"message" && r.invalidate == Some(Handle(5)) && r.signaled
    };
    assert_eq!(refusal(bench[A].try_send(qa, request), is_same), expected);

    let source = bench[A].buf(b"source").share();
    let request = WriteRequest { id: 78, source, target: somewhere, signaled: true };
    let is_same =
        |r: &WriteRequest| r.id == 78 && r.source[..] == *b"source" && r.target == somewhere && r.signaled;
    assert_eq!(refusal(bench[A].try_write(qa, request), is_same), expected);

    let target = bench[A].buf(b"target");
    let part = ReadPart { at: 0, len: 1, source: somewhere };
    let result = bench[A].try_read(qa, ReadRequest { id: 79, target }, &[part]);
    assert_eq!(refusal(result, |r| r.id == 79 && r.target[..] == *b"target"), expected);
}

/// No more Receives than agreed on.
pub(crate) fn receives_beyond_capacity<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    for id in 0..8 {
        bench[B].post_receive(qb, id);
    }
    let refused = bench[B].try_receive(qb, 8).expect_err("the capacity is used up");
    assert_eq!(refused.error, PostError::Full);
    drop(refused);
    bench[A].post_send(qa, 1, b"one");
    bench.message(B, qb, 0);
    bench[B].post_receive(qb, 8);
    bench[B].try_receive(qb, 9).expect_err("the capacity is used up again");
}

/// A buffer that is not registered is refused, or fails alone; it comes back in any case.
pub(crate) fn unregistered_buffers<H: Harness>(bench: &mut Bench<H>) {
    let (_arena, messages, _) = memory("foreign");
    let nowhere = RemoteSegment { handle: Handle(0), offset: 0 };
    for kind in [Kind::Receive, Kind::Send, Kind::Write, Kind::Read] {
        let queue_pairs = bench.connect();
        let qa = queue_pairs[A];
        let buf = messages.take().expect("a fresh pool");
        let side = &mut bench[A];
        let error = match kind {
            Kind::Receive => side.provider().post_receive(qa, 1, buf).map_err(|r| r.error),
            Kind::Send => side
                .try_send(qa, SendRequest { id: 1, buf, invalidate: None, signaled: true })
                .map_err(|r| r.error),
            Kind::Write => side
                .try_write(qa, WriteRequest { id: 1, source: buf.share(), target: nowhere, signaled: true })
                .map_err(|r| r.error),
            Kind::Read => {
                let part = ReadPart { at: 0, len: 1, source: nowhere };
                side.try_read(qa, ReadRequest { id: 1, target: buf }, &[part]).map_err(|r| r.error)
            }
        };
        match error {
            Err(error) => assert_eq!(error, PostError::NotRegistered, "{kind:?}"),
            Ok(()) => {
                let completion = bench.completion(A, qa, kind, 1);
                assert_eq!(completion.result, Err(WorkError::LocalProtection), "{kind:?}");
            }
        }
        bench.close(queue_pairs);
        assert_eq!(messages.outstanding(), 0, "{kind:?}: the foreign buffer came back");
    }
}

/// A queue pair whose completions might not fit is refused, with the numbers, and the peer can be told.
pub(crate) fn admission<H: Harness>(bench: &mut Bench<H>) {
    let limit = bench[A].provider().limits().completions;
    let address = bench.address.clone();
    for greedy in [
        QueuePairCapacity { receives: limit, ..CAPACITY },
        QueuePairCapacity { sends: limit, ..CAPACITY },
        QueuePairCapacity { receives: u32::MAX, sends: u32::MAX, exposures: u32::MAX, ..CAPACITY },
        QueuePairCapacity { receive_targets: RECEIVE_TARGETS_MAX as u32 + 1, ..CAPACITY },
    ] {
        let refused = bench[A].provider().connect(&address, b"", greedy).expect_err("it does not fit");
        match &refused {
            FabricError::Limit { wanted, limit, .. } => assert!(wanted > limit, "{refused}"),
            other => panic!("refused because of {other}"),
        }

        let qa = bench.dial(b"", CAPACITY);
        let request = bench.request().0;
        let refused = bench[B].provider().prepare(request, greedy).expect_err("it does not fit");
        let reason = refused.to_string();
        bench[B].provider().reject(request, &reason);
        match bench.end(A, qa) {
            // A provider may cut a long reason short.
            DisconnectReason::Rejected(told) => {
                assert!(!told.is_empty() && reason.starts_with(&told), "{told}")
            }
            other => panic!("A ended because of {other:?}"),
        }
    }
    // What is refused takes no room; what is used takes some.
    let half = QueuePairCapacity { receives: limit / 2, exposures: 1, ..CAPACITY };
    let queue_pairs = bench.connect_with(half, CAPACITY);
    bench[A].provider().connect(&address, b"", half).expect_err("two halves and a bit do not fit");
    bench.close(queue_pairs);
    bench.connect_with(half, CAPACITY);
}

/// The name of a queue pair that is gone names nothing, not even when its slot is in use again.
pub(crate) fn stale_queue_pair<H: Harness>(bench: &mut Bench<H>) {
    let stale = bench.connect();
    bench.close(stale);
    let fresh = bench.connect();
    assert_ne!(stale[A], fresh[A]);
    let qa = stale[A];
    let nowhere = RemoteSegment { handle: Handle(0), offset: 0 };
    every_post_is_refused(bench, qa, PostError::NotConnected, nowhere);
    let refused = bench[A].try_receive(qa, 1).expect_err("it is gone");
    assert_eq!(refused.error, PostError::NotConnected);
    let memory = bench[A].buf(b"memory");
    let refused = bench[A].try_expose(qa, Exposed::Write(memory)).expect_err("it is gone");
    assert_eq!(refused.error, PostError::NotConnected);
    assert!(bench[A].fence(qa, Handle(0), 1).is_none());
    bench[A].provider().disconnect(qa);
    assert!(bench[A].provider().accept(qa, b"").is_err());
    bench[B].post_receive(fresh[B], 1);
    bench[A].post_send(fresh[A], 1, b"the fresh one is not concerned");
    bench.message(B, fresh[B], 1);
}

/// Before a queue pair is established it takes Receives, and nothing else.
pub(crate) fn posts_before_established<H: Harness>(bench: &mut Bench<H>) {
    let qa = bench.dial(b"", CAPACITY);
    bench[A].post_receive(qa, 1);
    let nowhere = RemoteSegment { handle: Handle(0), offset: 0 };
    every_post_is_refused(bench, qa, PostError::NotConnected, nowhere);
    let request = bench.request().0;
    let qb = bench.prepare(request, CAPACITY);
    bench[B].post_receive(qb, 1);
    let buf = bench[B].buf(b"too early");
    let early = SendRequest { id: 1, buf, invalidate: None, signaled: true };
    assert_eq!(refusal(bench[B].try_send(qb, early), |r| r.id == 1), PostError::NotConnected);
    bench[B].provider().accept(qb, b"").expect("a prepared connection is accepted");
    bench.established(A, qa);
    // B's Receive is there before B knows that it is connected.
    bench[A].post_send(qa, 2, b"first");
    bench.established(B, qb);
    assert_eq!(bench.message(B, qb, 1)[..], *b"first");
    bench[B].post_send(qb, 2, b"second");
    assert_eq!(bench.message(A, qa, 1)[..], *b"second");
    let sent = bench.completion(A, qa, Kind::Send, 2);
    assert!(matches!(sent.completed, Completed::Send(_)) && sent.result.is_ok());
}
