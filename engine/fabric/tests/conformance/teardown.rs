//! The end of a connection, at every step of its life, by either side. Each time everything comes back, and
//! `Disconnected` comes last: the bench checks both.

use stag_fabric::{DisconnectReason, Exposed, Fence, Provider, QueuePairId, SendRequest, WriteRequest};

use crate::bench::{A, B, Bench, CAPACITY, Harness, pattern};

/// Disconnects `side` and waits for both ends.
fn disconnect_by<H: Harness>(bench: &mut Bench<H>, side: usize, queue_pairs: [QueuePairId; 2]) {
    bench[side].provider().disconnect(queue_pairs[side]);
    bench[side].provider().disconnect(queue_pairs[side]); // harmless
    assert_eq!(bench.end(side, queue_pairs[side]), DisconnectReason::Local);
    let other = bench.end(1 - side, queue_pairs[1 - side]);
    assert!(matches!(other, DisconnectReason::Peer), "the other side ended because of {other:?}");
    bench[side].provider().disconnect(queue_pairs[side]); // harmless
}

/// Runs `load` on a fresh connection, and ends it after a number of turns, by either side.
fn at_every_step<H: Harness>(bench: &mut Bench<H>, load: impl Fn(&mut Bench<H>, [QueuePairId; 2])) {
    for side in [A, B] {
        for turns in [0, 1, 2, 4, 8] {
            let queue_pairs = bench.connect();
            load(bench, queue_pairs);
            for _ in 0..turns {
                bench.turn();
            }
            disconnect_by(bench, side, queue_pairs);
            for side in [A, B] {
                bench[side].completions.clear();
                // What one connection left over in a shared queue is used by the next.
                let left_over = if bench[side].shares_receives() { CAPACITY.receives as usize } else { 0 };
                assert!(bench[side].messages.outstanding() <= left_over, "messages of side {side}");
                assert_eq!(bench[side].pages.outstanding(), 0, "pages of side {side}");
            }
        }
    }
}

/// The connecting side gives up before anybody answered.
pub(crate) fn before_the_answer<H: Harness>(bench: &mut Bench<H>) {
    for turns in 0..8 {
        let qa = bench.dial(b"", CAPACITY);
        bench[A].post_receive(qa, 1);
        for _ in 0..turns {
            bench.turn();
        }
        bench[A].provider().disconnect(qa);
        // With nothing else to do, a turn may take as long as set-up may.
        let reason = bench.end(A, qa);
        assert!(matches!(reason, DisconnectReason::Local | DisconnectReason::TimedOut), "{reason:?}");
        bench.settle();
        // If the request came in, its answer reaches no client.
        let is = |event: &stag_fabric::Event| matches!(event, stag_fabric::Event::ConnectRequest { .. });
        if let Some(stag_fabric::Event::ConnectRequest { request, .. }) = bench[B].take_event(is)
            && let Ok(qb) = bench[B].provider().prepare(request, CAPACITY)
        {
            let qb = bench[B].adopt(qb);
            let _ = bench[B].provider().accept(qb, b"");
            assert_ne!(bench.end(B, qb), DisconnectReason::Local);
        }
    }
}

/// Either side gives up after B prepared, with Receives posted on both.
pub(crate) fn after_prepare<H: Harness>(bench: &mut Bench<H>) {
    for side in [A, B] {
        let qa = bench.dial(b"", CAPACITY);
        let request = bench.request().0;
        let qb = bench.prepare(request, CAPACITY);
        bench[A].post_receive(qa, 1);
        bench[B].post_receive(qb, 1);
        let queue_pairs = [qa, qb];
        bench[side].provider().disconnect(queue_pairs[side]);
        assert_eq!(bench.end(side, queue_pairs[side]), DisconnectReason::Local);
        let other = bench.end(1 - side, queue_pairs[1 - side]);
        assert!(
            matches!(
                other,
                DisconnectReason::Peer
                    | DisconnectReason::Rejected(_)
                    | DisconnectReason::PeerDied
                    // Where a fabric does not say that the client is gone (siw).
                    | DisconnectReason::TimedOut
            ),
            "the other side ended because of {other:?}"
        );
    }
}

/// Either side gives up right after B accepted, at every point until both know.
pub(crate) fn after_accept<H: Harness>(bench: &mut Bench<H>) {
    for side in [A, B] {
        for turns in 0..6 {
            let qa = bench.dial(b"", CAPACITY);
            let request = bench.request().0;
            let qb = bench.prepare(request, CAPACITY);
            bench[A].post_receive(qa, 1);
            bench[B].post_receive(qb, 1);
            bench[B].provider().accept(qb, b"").expect("a prepared connection is accepted");
            for _ in 0..turns {
                bench.turn();
            }
            let queue_pairs = [qa, qb];
            bench[side].provider().disconnect(queue_pairs[side]);
            assert_eq!(bench.end(side, queue_pairs[side]), DisconnectReason::Local);
            assert_ne!(bench.end(1 - side, queue_pairs[1 - side]), DisconnectReason::Local);
        }
    }
}

/// A connection on which nothing is going on.
pub(crate) fn idle<H: Harness>(bench: &mut Bench<H>) {
    at_every_step(bench, |_, _| {});
}

/// Both sides end it at the same time.
pub(crate) fn both_sides_at_once<H: Harness>(bench: &mut Bench<H>) {
    let queue_pairs = bench.connect();
    for side in [A, B] {
        bench[side].post_receive(queue_pairs[side], 1);
        bench[side].provider().disconnect(queue_pairs[side]);
    }
    for side in [A, B] {
        let reason = bench.end(side, queue_pairs[side]);
        assert!(matches!(reason, DisconnectReason::Local | DisconnectReason::Peer), "{reason:?}");
    }
}

/// With Receives posted.
pub(crate) fn with_posted_receives<H: Harness>(bench: &mut Bench<H>) {
    at_every_step(bench, |bench, queue_pairs| {
        for (side, queue_pair) in queue_pairs.into_iter().enumerate() {
            for id in 0..8 {
                bench[side].post_receive(queue_pair, id);
            }
        }
    });
}

/// With Sends under way in both directions, signaled and not.
pub(crate) fn with_sends_under_way<H: Harness>(bench: &mut Bench<H>) {
    at_every_step(bench, |bench, queue_pairs| {
        for (side, queue_pair) in queue_pairs.into_iter().enumerate() {
            for id in 0..6 {
                bench[side].post_receive(queue_pair, id);
            }
        }
        for (side, queue_pair) in queue_pairs.into_iter().enumerate() {
            for id in 0..6 {
                let buf = bench[side].buf(&pattern(500, id));
                let request = SendRequest { id, buf, invalidate: None, signaled: id % 2 == 0 };
                bench[side].try_send(queue_pair, request).expect("within capacity");
            }
        }
    });
}

/// With memory exposed, and one handle fenced.
pub(crate) fn with_exposures<H: Harness>(bench: &mut Bench<H>) {
    at_every_step(bench, |bench, queue_pairs| {
        for (side, queue_pair) in queue_pairs.into_iter().enumerate() {
            bench[side].expose_read(queue_pair, &pattern(5000, 1));
            bench[side].expose_write(queue_pair, 6000);
            let fenced = bench[side].expose_write(queue_pair, 10);
            match bench[side].fence(queue_pair, fenced.handle, 3) {
                None => panic!("it is exposed"),
                Some(Fence::Done(Exposed::Write(_)) | Fence::Pending) => {}
                Some(Fence::Done(Exposed::Read(_))) => panic!("it was exposed to be written"),
            }
        }
    });
}

/// With Reads under way in both directions.
pub(crate) fn with_reads_under_way<H: Harness>(bench: &mut Bench<H>) {
    at_every_step(bench, |bench, queue_pairs| {
        let sources: Vec<_> = (0..2).map(|s| bench.offer_read(s, queue_pairs, &pattern(50_000, 1))).collect();
        for side in [A, B] {
            for id in 0..3 {
                bench[side].post_read(queue_pairs[side], id, 50_000, sources[1 - side]);
            }
        }
    });
}

/// With Writes under way in both directions, signaled and not, and memory that is being fenced meanwhile.
pub(crate) fn with_writes_under_way<H: Harness>(bench: &mut Bench<H>) {
    at_every_step(bench, |bench, queue_pairs| {
        let targets: Vec<_> = (0..2).map(|s| bench.offer_write(s, queue_pairs, 50_000)).collect();
        for side in [A, B] {
            for id in 0..3 {
                let source = bench[side].buf(&pattern(50_000, id)).share();
                let request = WriteRequest { id, source, target: targets[1 - side], signaled: id != 1 };
                bench[side].try_write(queue_pairs[side], request).expect("within capacity");
            }
        }
    });
}

/// With everything at once.
pub(crate) fn with_everything_under_way<H: Harness>(bench: &mut Bench<H>) {
    at_every_step(bench, |bench, queue_pairs| {
        let sources: Vec<_> = (0..2).map(|s| bench.offer_read(s, queue_pairs, &pattern(9000, 1))).collect();
        let targets: Vec<_> = (0..2).map(|s| bench.offer_write(s, queue_pairs, 9000)).collect();
        for (side, queue_pair) in queue_pairs.into_iter().enumerate() {
            for id in 0..4 {
                bench[side].post_receive(queue_pair, id);
            }
        }
        for side in [A, B] {
            let queue_pair = queue_pairs[side];
            for id in 0..2 {
                bench[side].post_read(queue_pair, 10 + id, 9000, sources[1 - side]);
                bench[side].post_write(queue_pair, 20 + id, &pattern(9000, id), targets[1 - side]);
                bench[side].post_send(queue_pair, 30 + id, b"behind the Write");
            }
        }
    });
}

/// One side vanishes, as when its process dies; the other gets everything back.
pub(crate) fn the_other_side_dies<H: Harness>(bench: &mut Bench<H>) {
    let queue_pairs = [bench.connect(), bench.connect()];
    for [qa, qb] in queue_pairs {
        let source = bench.offer_read(B, [qa, qb], &pattern(9000, 1));
        let target = bench.offer_write(A, [qa, qb], 9000);
        for id in 0..4 {
            bench[A].post_receive(qa, id);
            bench[B].post_receive(qb, id);
        }
        bench[A].post_read(qa, 1, 9000, source);
        bench[A].post_send(qa, 2, b"hello?");
        bench[B].post_write(qb, 1, &pattern(9000, 2), target);
    }
    for _ in 0..3 {
        bench.turn();
    }
    bench[B].drop_provider();
    for [qa, _] in queue_pairs {
        let reason = bench.end(A, qa);
        assert!(matches!(reason, DisconnectReason::PeerDied | DisconnectReason::Peer), "{reason:?}");
    }
    assert_eq!(
        bench[B].messages.outstanding() + bench[B].pages.outstanding(),
        0,
        "a dead side leaks nothing"
    );
    // And there is no listener any more.
    let qa = bench.dial(b"", CAPACITY);
    assert_eq!(bench.end(A, qa), DisconnectReason::NoListener);
}

/// After one connection's end the next one works, many times: nothing is used up.
pub(crate) fn over_and_over<H: Harness>(bench: &mut Bench<H>) {
    for round in 0..60 {
        let queue_pairs = bench.connect();
        let [qa, qb] = queue_pairs;
        assert_eq!((qa.index, qb.index), (0, 0), "slots are small, dense and used again");
        bench[B].post_receive(qb, round);
        bench[B].expose_write(qb, 10);
        bench[A].post_send(qa, round, &round.to_le_bytes());
        assert_eq!(bench.message(B, qb, round)[..], round.to_le_bytes());
        disconnect_by(bench, round as usize % 2, queue_pairs);
        bench[A].completions.clear();
        bench[B].completions.clear();
    }
}
