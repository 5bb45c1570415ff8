//! Exposing memory, and ending it.

use std::collections::BTreeSet;

use stag_fabric::{
    Completed, Completion, DisconnectReason, Exposed, Fence, Handle, PostError, QueuePairId, RemoteSegment,
    WorkError,
};

use crate::bench::{A, B, Bench, CAPACITY, Harness, Kind, kind_of, memory, pattern};

/// A fence gives back what was exposed, once.
pub(crate) fn a_fence_gives_the_memory_back<H: Harness>(bench: &mut Bench<H>) {
    let [_, qb] = bench.connect();
    let readable = bench[B].expose_read(qb, &pattern(777, 1));
    let writable = bench[B].expose_write(qb, 888);
    assert_ne!(readable.handle, writable.handle);
    match bench.fenced(B, qb, readable.handle, 1) {
        Exposed::Read(shared) => assert_eq!(shared[..], pattern(777, 1)[..]),
        Exposed::Write(_) => panic!("exposed to be read, and back as something to be written"),
    }
    assert_eq!(bench.fenced_buf(B, qb, writable.handle, 2)[..], [0x77; 888]);
    for handle in [readable.handle, writable.handle, Handle(0x0bad_cafe)] {
        assert!(bench[B].fence(qb, handle, 3).is_none(), "{handle:?} is not exposed");
    }
}

/// A fenced handle is dead: the access fails, and the memory is as its owner left it.
pub(crate) fn a_fenced_handle_is_dead<H: Harness>(bench: &mut Bench<H>) {
    if !bench.guards() {
        return;
    }
    for kind in [Kind::Write, Kind::Read] {
        let [qa, qb] = bench.connect();
        let segment = match kind {
            Kind::Write => bench.offer_write(B, [qa, qb], 100),
            _ => bench.offer_read(B, [qa, qb], &[0x77; 100]),
        };
        let memory = bench.fenced(B, qb, segment.handle, 1);
        match kind {
            Kind::Write => bench[A].post_write(qa, 1, &[1; 100], segment),
            _ => bench[A].post_read(qa, 1, 100, segment),
        }
        bench.refused(A, [qa, qb], kind, 1, WorkError::RemoteAccess);
        match memory {
            Exposed::Read(shared) => assert_eq!(shared[..], [0x77; 100]),
            Exposed::Write(buf) => assert_eq!(buf[..], [0x77; 100]),
        }
    }
}

/// A handle that is dead stays dead when its slot is used again.
pub(crate) fn handles_are_not_reused<H: Harness>(bench: &mut Bench<H>) {
    if !bench.guards() {
        return;
    }
    let [qa, qb] = bench.connect();
    let mut seen = BTreeSet::new();
    let mut first = None;
    for round in 0..50 {
        let segment = bench.offer_write(B, [qa, qb], 100);
        assert!(seen.insert(segment.handle.0), "{:?} was in use in an earlier round", segment.handle);
        let first = *first.get_or_insert(segment);
        assert!(first == segment || bench[B].fence(qb, first.handle, 0).is_none());
        bench.fenced(B, qb, segment.handle, round);
    }
    let first = first.expect("fifty rounds");
    let live: Vec<_> = (0..CAPACITY.exposures).map(|_| bench[B].expose_write(qb, 100)).collect();
    assert!(live.iter().all(|segment| segment.handle != first.handle));
    bench[A].post_write(qa, 1, &[1; 100], first);
    bench.refused(A, [qa, qb], Kind::Write, 1, WorkError::RemoteAccess);
}

/// Once a fence is done nothing is written any more, whatever was under way.
pub(crate) fn a_fence_against_writes_under_way<H: Harness>(bench: &mut Bench<H>) {
    if !bench.guards() {
        return;
    }
    for turns in 0..6 {
        let [qa, qb] = bench.connect();
        let target = bench.offer_write(B, [qa, qb], 60_000);
        for id in 0..4 {
            bench[A].post_write(qa, id, &pattern(60_000, id), target);
        }
        for _ in 0..turns {
            bench.turn();
        }
        let memory = match bench[B].fence(qb, target.handle, 7) {
            None => panic!("the handle is exposed"),
            Some(Fence::Done(Exposed::Write(buf))) => buf,
            Some(Fence::Done(Exposed::Read(_))) => panic!("exposed to be written"),
            Some(Fence::Pending) => {
                let is = |c: &Completion| matches!(c.completed, Completed::Fence { .. });
                let completion = bench.until("the fence completes", |bench| bench[B].take_completion(is));
                match completion.completed {
                    Completed::Fence { handle, exposed: Exposed::Write(buf) } => {
                        assert_eq!((handle, completion.id), (target.handle, 7));
                        buf
                    }
                    other => panic!("the fence completed as {other:?}"),
                }
            }
        };
        let then = memory.to_vec();
        for _ in 0..200 {
            bench.turn();
        }
        assert!(memory[..] == then[..], "nothing is placed after the fence");
        drop(memory);
        bench.close([qa, qb]);
        bench[A].completions.clear();
    }
}

/// A Read that is under way while its source is fenced either fetches the octets of before, or fails.
pub(crate) fn a_fence_against_a_read_under_way<H: Harness>(bench: &mut Bench<H>) {
    for turns in 0..6 {
        let [qa, qb] = bench.connect();
        let bytes = pattern(50_000, turns);
        let source = bench.offer_read(B, [qa, qb], &bytes);
        bench[A].post_read(qa, 1, 50_000, source);
        for _ in 0..turns {
            bench.turn();
        }
        let is_there = bench[B].fence(qb, source.handle, 7);
        assert!(is_there.is_some(), "the handle is exposed");
        drop(is_there);
        let read = bench.completion(A, qa, Kind::Read, 1);
        match (read.result, read.completed) {
            (Ok(()), Completed::Read(buf)) => assert!(buf[..] == bytes[..], "the octets of before"),
            // The second and the third where a device just stops answering.
            (
                Err(WorkError::RemoteAccess | WorkError::Flushed | WorkError::Unreachable),
                Completed::Read(_),
            ) => {}
            other => panic!("a Read of fenced memory: {other:?}"),
        }
        bench.close([qa, qb]);
        bench[B].completions.clear();
    }
}

/// Send with Invalidate: the memory comes back with the message, and the handle is dead.
pub(crate) fn send_with_invalidate<H: Harness>(bench: &mut Bench<H>) {
    if !supports_invalidate(bench) {
        return;
    }
    let [qa, qb] = bench.connect();
    let target = bench.offer_write(B, [qa, qb], 10_000);
    let keeps = bench.offer_read(B, [qa, qb], &[3; 10]);
    bench[B].post_receive(qb, 1);
    bench[A].post_write(qa, 1, &pattern(10_000, 1), target);
    bench[A].post_send_with_invalidate(qa, 2, target.handle);
    let arrived = bench.completion(B, qb, Kind::Receive, 1);
    assert_eq!(arrived.result, Ok(()));
    match arrived.completed {
        Completed::Receive { buf, invalidated, exposed: Some(Exposed::Write(memory)) } => {
            assert_eq!(buf[..], *b"and one handle less");
            assert_eq!(invalidated, Some(target.handle));
            assert!(memory[..] == pattern(10_000, 1)[..], "placed before the Send that invalidates");
        }
        other => panic!("the memory comes back with the Receive, not {other:?}"),
    }
    assert!(bench[B].fence(qb, target.handle, 5).is_none(), "it is not exposed any more");
    // Its slot is free again, and its neighbour was not touched.
    for _ in 1..CAPACITY.exposures {
        bench[B].expose_write(qb, 10);
    }
    bench[A].post_read(qa, 3, 10, keeps);
    assert_eq!(bench.read(A, qa, 3)[..], [3; 10]);
    bench[A].post_write(qa, 4, &[1; 10], target);
    bench.refused(A, [qa, qb], Kind::Write, 4, WorkError::RemoteAccess);
}

/// Memory that was exposed to be read comes back in the same way.
pub(crate) fn send_with_invalidate_of_readable_memory<H: Harness>(bench: &mut Bench<H>) {
    if !supports_invalidate(bench) {
        return;
    }
    let [qa, qb] = bench.connect();
    let source = bench.offer_read(B, [qa, qb], &pattern(3000, 2));
    bench[A].post_read(qa, 1, 3000, source);
    assert!(bench.read(A, qa, 1)[..] == pattern(3000, 2)[..]);
    bench[B].post_receive(qb, 1);
    bench[A].post_send_with_invalidate(qa, 2, source.handle);
    match bench.completion(B, qb, Kind::Receive, 1).completed {
        Completed::Receive { invalidated, exposed: Some(Exposed::Read(memory)), .. } => {
            assert_eq!(invalidated, Some(source.handle));
            assert!(memory[..] == pattern(3000, 2)[..]);
        }
        other => panic!("the memory comes back with the Receive, not {other:?}"),
    }
}

/// Invalidating what was not exposed to that queue pair breaks the fabric's rules: it was never exposed, or to
/// another.
pub(crate) fn invalidating_what_is_not_exposed<H: Harness>(bench: &mut Bench<H>) {
    if !supports_invalidate(bench) {
        return;
    }
    let ours = bench.connect();
    let live = bench.offer_write(B, ours, 100);
    refuses_to_invalidate(bench, ours, Handle(live.handle.0 ^ 0x0101_0101));
    let [ours, [other_a, other_b]] = [bench.connect(), bench.connect()];
    let others = bench.offer_write(B, [other_a, other_b], 100);
    refuses_to_invalidate(bench, ours, others.handle);
    bench[B].post_receive(other_b, 1);
    bench[A].post_send(other_a, 1, b"not concerned");
    bench.message(B, other_b, 1);
}

/// So does invalidating what was exposed, a second time.
pub(crate) fn invalidating_twice<H: Harness>(bench: &mut Bench<H>) {
    if !supports_invalidate(bench) || !survives_late_invalidations(bench) {
        return;
    }
    let [qa, qb] = bench.connect();
    let live = bench.offer_write(B, [qa, qb], 100);
    bench[B].post_receive(qb, 10);
    bench[A].post_send_with_invalidate(qa, 10, live.handle);
    bench.message(B, qb, 10);
    assert_eq!(bench.completion(A, qa, Kind::Send, 10).result, Ok(()));
    refuses_to_invalidate(bench, [qa, qb], live.handle);
}

/// A asks for the end of `handle`, which ends the connection.
fn refuses_to_invalidate<H: Harness>(bench: &mut Bench<H>, [qa, qb]: [QueuePairId; 2], handle: Handle) {
    bench[B].post_receive(qb, 1);
    bench[B].post_receive(qb, 2);
    bench[A].post_send_with_invalidate(qa, 1, handle);
    let by_receiver = match bench.end(B, qb) {
        DisconnectReason::PeerViolation(_) => true,
        // The fabric did not even take it there.
        DisconnectReason::Peer => false,
        other => panic!("B ended because of {other:?}"),
    };
    let shares = bench[B].shares_receives();
    let receives: Vec<_> = std::iter::from_fn(|| {
        bench[B].take_completion(|c| c.queue_pair == qb && kind_of(c) == Some(Kind::Receive))
    })
    .map(|completion| completion.result)
    .collect();
    let first = if by_receiver { WorkError::PeerViolation } else { WorkError::Flushed };
    let flushed = [Err(first), Err(WorkError::Flushed)];
    assert_eq!(receives, flushed[..if shares { usize::from(by_receiver) } else { 2 }]);
    let reason = bench.end(A, qa);
    let knows = reason == DisconnectReason::Work(WorkError::RemoteAccess);
    assert!(knows || by_receiver && !matches!(reason, DisconnectReason::Local), "A: {reason:?}");
}

/// A message that invalidates a handle which was fenced while it was on its way: the handle is dead in any case, and
/// is not reported a second time. The message arrives, or the connection ends.
pub(crate) fn invalidating_what_was_fenced_meanwhile<H: Harness>(bench: &mut Bench<H>) {
    if !supports_invalidate(bench) || !survives_late_invalidations(bench) {
        return;
    }
    let [qa, qb] = bench.connect();
    let target = bench.offer_write(B, [qa, qb], 100);
    bench[B].post_receive(qb, 1);
    bench.fenced(B, qb, target.handle, 1);
    bench[A].post_send_with_invalidate(qa, 1, target.handle);
    let arrived = bench.completion(B, qb, Kind::Receive, 1);
    match (arrived.result, arrived.completed) {
        (Ok(()), Completed::Receive { buf, invalidated: None, exposed: None }) => {
            assert_eq!(buf[..], *b"and one handle less");
        }
        (Err(WorkError::PeerViolation | WorkError::Flushed), _) => {
            bench.end(A, qa);
        }
        other => panic!("it arrived as {other:?}"),
    }
}

/// No more exposures than agreed on; ending one makes room.
pub(crate) fn exposures_are_limited<H: Harness>(bench: &mut Bench<H>) {
    let [_, qb] = bench.connect();
    let live: Vec<RemoteSegment> = (0..CAPACITY.exposures).map(|_| bench[B].expose_write(qb, 64)).collect();
    let one_more = bench[B].buf(&[5; 64]);
    let refused = bench[B].try_expose(qb, Exposed::Write(one_more)).expect_err("the limit is reached");
    assert_eq!(refused.error, PostError::Full);
    let Exposed::Write(buf) = refused.request else { panic!("the memory comes back as it was") };
    assert_eq!(buf[..], [5; 64]);
    bench.fenced(B, qb, live[1].handle, 1);
    bench[B].try_expose(qb, Exposed::Write(buf)).expect("there is room again");
}

/// What is not registered is not exposed.
pub(crate) fn exposing_unregistered_memory<H: Harness>(bench: &mut Bench<H>) {
    let [_, qb] = bench.connect();
    let (_arena, messages, _) = memory("foreign");
    let buf = messages.take_len(10).expect("a fresh pool");
    let refused = bench[B].try_expose(qb, Exposed::Write(buf)).expect_err("it is not registered");
    assert_eq!(refused.error, PostError::NotRegistered);
    drop(refused);
    assert_eq!(messages.outstanding(), 0);
}

fn supports_invalidate<H: Harness>(bench: &mut Bench<H>) -> bool {
    use stag_fabric::Provider;
    let supports = bench[A].provider().limits().send_with_invalidate;
    bench.can(
        supports,
        "no Send with Invalidate here: what is exposed is a registration, which is not for a peer to end",
    )
}

fn survives_late_invalidations<H: Harness>(bench: &mut Bench<H>) -> bool {
    let survives = bench.harness.survives_late_invalidations();
    bench.can(
        survives,
        "rxe's kernel does not survive that a window is invalidated which is not bound (rxe_do_invalidate_mw: a null pointer)",
    )
}
