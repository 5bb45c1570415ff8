//! Sends and Receives.

use std::collections::VecDeque;

use stag_fabric::{
    Completion, DisconnectReason, PostError, Provider, QueuePairCapacity, SendRequest, WorkError,
};

use crate::bench::{A, B, Bench, CAPACITY, Harness, Kind, MESSAGE, kind_of, pattern, refusal};

/// Sends arrive in the order in which they were posted, with their own bytes and lengths.
pub(crate) fn sends_arrive_in_order<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    for round in 0..6 {
        for i in 0..8 {
            bench[B].post_receive(qb, round * 8 + i);
        }
        for i in 0..8 {
            let id = round * 8 + i;
            bench[A].post_send(qa, id, &pattern((id as usize * 97) % MESSAGE, id));
        }
        for i in 0..8 {
            let id = round * 8 + i;
            assert_eq!(bench.message(B, qb, id)[..], pattern((id as usize * 97) % MESSAGE, id)[..]);
            assert_eq!(bench.completion(A, qa, Kind::Send, id).result, Ok(()));
        }
    }
}

/// Each message goes into the oldest posted Receive, whatever their ids.
pub(crate) fn receives_match_in_posting_order<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    for id in [50, 3, 99, 7] {
        bench[B].post_receive(qb, id);
    }
    for i in 0..4u8 {
        bench[A].post_send(qa, u64::from(i), &[i]);
    }
    for (i, id) in [50, 3, 99, 7].into_iter().enumerate() {
        assert_eq!(bench.message(B, qb, id)[..], [i as u8]);
    }
}

/// Both sides send at the same time, over and over.
pub(crate) fn both_directions_at_once<H: Harness>(bench: &mut Bench<H>) {
    let queue_pairs = bench.connect();
    for round in 0..20 {
        for side in [A, B] {
            bench[side].post_receive(queue_pairs[side], round);
        }
        // A side may send only when the other's Receive is posted; here both are.
        for side in [A, B] {
            bench[side].post_send(queue_pairs[side], round, &pattern(200, round + side as u64));
        }
        for side in [A, B] {
            let expected = pattern(200, round + 1 - side as u64);
            assert_eq!(bench.message(side, queue_pairs[side], round)[..], expected[..]);
            assert_eq!(bench.completion(side, queue_pairs[side], Kind::Send, round).result, Ok(()));
        }
    }
}

/// A message larger than the Receive ends the connection; both sides are told why.
pub(crate) fn message_longer_than_the_receive<H: Harness>(bench: &mut Bench<H>) {
    let long = QueuePairCapacity { send_len_max: 8192, ..CAPACITY };
    let [qa, qb] = bench.connect_with(long, CAPACITY);
    bench[B].post_receive(qb, 1);
    bench[B].post_receive(qb, 2);
    bench[A].post_send(qa, 9, &pattern(MESSAGE + 1, 1));
    let first = bench.completion(B, qb, Kind::Receive, 1);
    assert_eq!(first.result, Err(WorkError::Length));
    bench.flushed_receive(B, qb, 2);
    assert_eq!(bench.end(B, qb), DisconnectReason::Work(WorkError::Length));
    let reason = bench.end(A, qa);
    let is_told = reason == DisconnectReason::Work(WorkError::Length);
    assert!(is_told || !bench.harness.tells_refusals() && reason != DisconnectReason::Local, "{reason:?}");
}

/// A message of no bytes is a message.
pub(crate) fn zero_length_message<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    bench[B].post_receive(qb, 1);
    bench[B].post_receive(qb, 2);
    bench[A].post_send(qa, 1, b"");
    bench[A].post_send(qa, 2, b"x");
    assert_eq!(bench.message(B, qb, 1).len(), 0);
    assert_eq!(bench.message(B, qb, 2)[..], *b"x");
}

/// The largest message that was agreed on passes; one octet more is refused before it leaves.
pub(crate) fn largest_message<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    bench[B].post_receive(qb, 1);
    let message = pattern(MESSAGE, 5);
    bench[A].post_send(qa, 1, &message);
    assert_eq!(bench.message(B, qb, 1)[..], message[..]);

    let buf = bench[A].buf(&pattern(MESSAGE + 1, 6));
    let request = SendRequest { id: 2, buf, invalidate: None, signaled: true };
    let error =
        refusal(bench[A].try_send(qa, request), |r| r.id == 2 && r.buf[..] == pattern(MESSAGE + 1, 6)[..]);
    assert_eq!(error, PostError::TooLong);
    bench[B].post_receive(qb, 2);
    bench[A].post_send(qa, 3, b"still connected");
    assert_eq!(bench.message(B, qb, 2)[..], *b"still connected");
}

/// Unsignaled Sends complete without a word, and their buffers go back by themselves.
pub(crate) fn unsignaled_sends<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    for round in 0..10 {
        bench[B].post_receive(qb, round);
        let buf = bench[A].buf(&pattern(100, round));
        bench.send_when_there_is_room(
            A,
            qa,
            SendRequest { id: round, buf, invalidate: None, signaled: false },
        );
        assert_eq!(bench.message(B, qb, round)[..], pattern(100, round)[..]);
    }
    // A signaled Send behind them completes after them; then they are all done.
    bench[B].post_receive(qb, 99);
    let buf = bench[A].buf(b"last");
    bench.send_when_there_is_room(A, qa, SendRequest { id: 99, buf, invalidate: None, signaled: true });
    assert_eq!(bench.completion(A, qa, Kind::Send, 99).result, Ok(()));
    assert!(bench[A].completions.is_empty(), "unsignaled: {:?}", bench[A].completions);
    let pool = bench[A].messages.clone();
    bench.until("unsignaled buffers are back", |_| (pool.outstanding() == 0).then_some(()));
}

/// What is posted may wait for its doorbell; once that is rung, it leaves.
pub(crate) fn doorbell<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    bench[B].post_receive(qb, 1);
    bench[A].post_send(qa, 1, b"ding");
    for _ in 0..50 {
        bench.turn_without_doorbells();
    }
    bench[A].provider().ring_doorbells();
    let is = |c: &Completion| kind_of(c) == Some(Kind::Receive) && c.id == 1;
    for _ in 0..100_000 {
        if let Some(completion) = bench[B].take_completion(is) {
            assert_eq!(completion.result, Ok(()));
            return;
        }
        bench.turn_without_doorbells();
    }
    panic!("a rung doorbell sends what was posted");
}

/// `poll` harvests no more than it is told to, nor than there is room for, and loses nothing.
pub(crate) fn poll_respects_its_bounds<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    for id in 0..8 {
        bench[B].post_receive(qb, id);
    }
    // Side B is polled by hand from here on, so its books are kept by hand too.
    for id in 0..8 {
        bench[A].post_send(qa, id, &[id as u8]);
    }
    bench[A].provider().ring_doorbells();
    let mut few = VecDeque::with_capacity(2);
    let mut got = Vec::new();
    bench.until("all eight arrive", |bench| {
        let here = bench[B].completions.drain(..).map(|completion| completion.id);
        got.extend(here);
        let now = bench.harness.now();
        for max in [0, 1, 3, 100] {
            let count = bench[B].provider().poll(now, &mut few, max);
            assert_eq!(count, few.len());
            assert!(
                count <= max && few.capacity() == 2,
                "{count} of at most {max}, room for {}",
                few.capacity()
            );
            for completion in few.drain(..) {
                got.push(completion.id);
                bench[B].note_harvested(&completion);
            }
        }
        (got.len() == 8).then_some(())
    });
    assert_eq!(got, [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// Many queue pairs of one provider do not get into each other's way.
pub(crate) fn many_queue_pairs<H: Harness>(bench: &mut Bench<H>) {
    let connections: Vec<_> = (0..24).map(|_| bench.connect()).collect();
    for round in 0..4 {
        for (i, &[_, qb]) in connections.iter().enumerate() {
            bench[B].post_receive(qb, round * 100 + i as u64);
        }
        for (i, &[qa, _]) in connections.iter().enumerate().rev() {
            let id = round * 100 + i as u64;
            bench[A].post_send(qa, id, &pattern(64, id));
        }
        for (i, &[qa, qb]) in connections.iter().enumerate() {
            let id = round * 100 + i as u64;
            assert_eq!(bench.message(B, qb, id)[..], pattern(64, id)[..]);
            assert_eq!(bench.completion(A, qa, Kind::Send, id).result, Ok(()));
        }
    }
}
