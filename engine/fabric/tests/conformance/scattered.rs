//! Receives in several buffers: a head and targets.

use std::collections::VecDeque;

use stag_fabric::{
    Completed, DisconnectReason, Event, Exposed, GATHERED_LEN_MAX, GatheredPieces, PostError, Provider,
    QueuePairCapacity, QueuePairId, RECEIVE_TARGETS_MAX, SendRequest, ShownMessage, Taken, WHOLE_LEN_MAX,
    WorkError,
};
use stag_memory::Buf;
use stag_wire::rpcrdma::SINGLE_LEN;

use crate::bench::{A, B, Bench, CAPACITY, Harness, Kind, MESSAGE, pattern};

/// Octets of a page.
const PAGE: usize = 4096;

/// Messages of a head and three pages.
const LONG: QueuePairCapacity = QueuePairCapacity {
    send_len_max: (MESSAGE + 3 * PAGE) as u32,
    receive_len_max: (MESSAGE + 3 * PAGE) as u32,
    receive_targets: 3,
    ..CAPACITY
};

/// Whether a Receive can have three targets here. Where it cannot, each is one buffer.
fn has_targets<H: Harness>(bench: &mut Bench<H>) -> bool {
    let targets = bench[B].provider().limits().receive_targets;
    assert!(targets as usize <= RECEIVE_TARGETS_MAX);
    bench.can(targets >= 3, "a Receive has fewer than four buffers")
}

/// A message fills the head first, then one target after the other, and both come back in posting order.
pub(crate) fn a_long_message_goes_on_in_the_targets<H: Harness>(bench: &mut Bench<H>) {
    if !has_targets(bench) {
        return;
    }
    let [qa, qb] = bench.connect_with(LONG, LONG);
    let ends = [0, MESSAGE, MESSAGE + PAGE, MESSAGE + 2 * PAGE, MESSAGE + 3 * PAGE];
    let mut lens: Vec<usize> = ends.iter().flat_map(|end| [end.saturating_sub(1), *end, end + 1]).collect();
    lens.pop();
    lens.extend([4, 100, MESSAGE + 5000]);
    for (round, lens) in lens.chunks(4).enumerate() {
        let ids = |at: usize| (4 * round + at) as u64;
        for at in 0..lens.len() {
            bench[B].post_scattered(qb, ids(at), 3);
        }
        for (at, len) in lens.iter().enumerate() {
            bench[A].post_send(qa, ids(at), &pattern(*len, ids(at)));
        }
        for (at, len) in lens.iter().enumerate() {
            let head = bench.message(B, qb, ids(at));
            let targets = bench[B].provider().take_targets(qb).expect("they are done with the head");
            let mut found = head.to_vec();
            let lens_found: Vec<usize> = targets.bufs().iter().map(|buf| buf.len()).collect();
            targets.bufs().iter().for_each(|buf| found.extend(&buf[..]));
            assert_eq!(found, pattern(*len, ids(at)), "{len} octets");
            assert_eq!(head.len(), MESSAGE.min(*len));
            for (nth, here) in lens_found.into_iter().enumerate() {
                assert_eq!(
                    here,
                    len.saturating_sub(MESSAGE + nth * PAGE).min(PAGE),
                    "{len} octets, target {nth}"
                );
            }
            assert_eq!(bench.completion(A, qa, Kind::Send, ids(at)).result, Ok(()));
        }
        assert!(bench[B].provider().take_targets(qb).is_none(), "each once");
    }
}

/// The head is the octets of its buffer that the user says, not all of it: the octets behind them go to the targets.
pub(crate) fn a_head_is_as_long_as_its_user_says<H: Harness>(bench: &mut Bench<H>) {
    if !has_targets(bench) {
        return;
    }
    const HEAD: usize = MESSAGE / 2;
    let short = QueuePairCapacity { receive_len_max: (HEAD + 3 * PAGE) as u32, ..LONG };
    let [qa, qb] = bench.connect_with(LONG, short);
    let lens = [4, HEAD - 1, HEAD, HEAD + 1, MESSAGE, MESSAGE + 1, HEAD + PAGE, HEAD + 3 * PAGE];
    for (id, len) in (0..).zip(lens) {
        bench[B].post_behind(qb, id, HEAD, 3);
        bench[A].post_send(qa, id, &pattern(len, id));
        let head = bench.message(B, qb, id);
        let targets = bench[B].provider().take_targets(qb).expect("they are done with the head");
        assert_eq!(head.len(), HEAD.min(len));
        let mut found = head.to_vec();
        targets.bufs().iter().for_each(|buf| found.extend(&buf[..]));
        assert_eq!(found, pattern(len, id), "{len} octets");
        assert_eq!(bench.completion(A, qa, Kind::Send, id).result, Ok(()));
    }
}

/// A message that is built together with an exposure is as any other to a Receive in several buffers.
pub(crate) fn a_message_that_exposes_goes_on_in_the_targets<H: Harness>(bench: &mut Bench<H>) {
    if !has_targets(bench) {
        return;
    }
    const HEAD: usize = 64;
    let short = QueuePairCapacity { receive_len_max: (HEAD + 3 * PAGE) as u32, ..LONG };
    let [qa, qb] = bench.connect_with(LONG, short);
    for (id, len) in (0..).zip([SINGLE_LEN, HEAD - 4, HEAD, HEAD + 4, WHOLE_LEN_MAX]) {
        bench[B].post_behind(qb, id, HEAD, 3);
        let message = pattern(len, id);
        let mut exposed = Some(Exposed::Read(bench[A].buf(&pattern(500, id + 50)).share()));
        let mut named = None;
        let is_sent = bench[A].build_exposing(qa, &mut exposed, |space, segment| {
            space[..len].copy_from_slice(&message);
            named = Some(segment);
            Some(len)
        });
        let segment = match exposed {
            None => named.expect("it was built"),
            Some(memory) => {
                assert!(!is_sent, "all of it, or nothing");
                bench[A].post_send(qa, id, &message);
                assert_eq!(bench.completion(A, qa, Kind::Send, id).result, Ok(()));
                bench[A].try_expose(qa, memory).expect("an exposure within capacity is made")
            }
        };
        bench[A].provider().ring_doorbells();
        let head = bench.message(B, qb, id);
        let targets = bench[B].provider().take_targets(qb).expect("they are done with the head");
        let mut found = head.to_vec();
        targets.bufs().iter().for_each(|buf| found.extend(&buf[..]));
        assert_eq!(found, message, "{len} octets");
        bench.fenced(A, qa, segment.handle, id);
    }
}

/// A peer sends its last message and ends the connection. A user that has the head of that message still gets its targets, however late
/// it asks; the end comes after that.
pub(crate) fn targets_of_the_last_message_outlast_the_peer<H: Harness>(bench: &mut Bench<H>) {
    if !has_targets(bench) {
        return;
    }
    let [qa, qb] = bench.connect_with(LONG, LONG);
    let message = pattern(MESSAGE + 5000, 7);
    bench[B].post_scattered(qb, 1, 3);
    bench[A].post_send(qa, 1, &message);
    assert_eq!(bench.completion(A, qa, Kind::Send, 1).result, Ok(()));
    bench[A].provider().disconnect(qa);
    bench.settle();
    let is_end = |event: &Event| matches!(event, Event::Disconnected { .. });
    assert!(bench[B].take_event(is_end).is_none(), "its message has not been asked about");
    let head = bench.message(B, qb, 1);
    let targets = bench[B].provider().take_targets(qb).expect("the peer had sent all of it");
    let mut found = head.to_vec();
    targets.bufs().iter().for_each(|buf| found.extend(&buf[..]));
    assert_eq!(found, message);
    bench.end(B, qb);
    bench.end(A, qa);
}

/// One that is longer than all buffers together ends the connection, as with any Receive; the targets go back to their pool.
pub(crate) fn a_message_longer_than_all_buffers<H: Harness>(bench: &mut Bench<H>) {
    let longer = QueuePairCapacity { send_len_max: LONG.send_len_max + 8, ..LONG };
    let short = QueuePairCapacity { receive_len_max: (MESSAGE + 2 * PAGE) as u32, ..LONG };
    if !has_targets(bench) {
        return;
    }
    let [qa, qb] = bench.connect_with(longer, short);
    let free = bench[B].pages.free_units();
    bench[B].post_scattered(qb, 1, 2);
    bench[B].post_scattered(qb, 2, 2);
    bench[A].post_send(qa, 9, &pattern(MESSAGE + 2 * PAGE + 1, 1));
    assert_eq!(bench.completion(B, qb, Kind::Receive, 1).result, Err(WorkError::Length));
    bench.flushed_receive(B, qb, 2);
    assert_eq!(bench.end(B, qb), DisconnectReason::Work(WorkError::Length));
    bench.end(A, qa);
    assert!(bench[B].provider().take_targets(qb).is_none(), "of no Receive that failed");
    assert_eq!(bench[B].pages.free_units(), free, "they are free again");
}

/// What cannot be filled is refused, and handed back.
pub(crate) fn scattered_receives_are_checked<H: Harness>(bench: &mut Bench<H>) {
    let short = QueuePairCapacity { receive_len_max: MESSAGE as u32, ..LONG };
    let plain = bench.connect();
    let refused = bench[B].try_scattered(plain[B], 1, 0).expect_err("it was asked for without targets");
    assert_eq!(refused.error, PostError::Scatter);
    bench.close(plain);
    if !has_targets(bench) {
        return;
    }
    let [qa, qb] = bench.connect_with(short, LONG);
    let refused = bench[B].try_scattered(qb, 1, 4).expect_err("too many");
    assert_eq!(refused.error, PostError::Scatter);
    assert_eq!(refused.request.targets.bufs().len(), 4);
    for id in 0..u64::from(CAPACITY.receives) {
        bench[B].post_scattered(qb, id, 3);
    }
    let refused = bench[B].try_scattered(qb, 99, 3).expect_err("the capacity is used up");
    assert_eq!(refused.error, PostError::Full);
    bench[A].post_send(qa, 1, b"still connected");
    assert_eq!(bench.message(B, qb, 0)[..], *b"still connected");
    bench[B].provider().take_targets(qb).expect("they are done with the head");
    // Neither kind is posted beside the other: messages would find the wrong targets.
    let plain = bench[B].pages.take().expect("a page");
    let refused = bench[B].provider().post_receive(qb, 98, plain).expect_err("the others have targets");
    assert_eq!(refused.error, PostError::Scatter);
    bench[A].post_receive(qa, 1);
    assert_eq!(
        bench[A].try_scattered(qa, 2, 3).expect_err("a plain one is posted").error,
        PostError::Scatter
    );
}

/// Targets that hold a message stay the user's; those that are only posted go back to their pool.
pub(crate) fn targets_of_a_connection_that_ends<H: Harness>(bench: &mut Bench<H>) {
    if !has_targets(bench) {
        return;
    }
    let [qa, qb] = bench.connect_with(LONG, LONG);
    let free = bench[B].pages.free_units();
    bench[B].post_scattered(qb, 1, 3);
    bench[B].post_scattered(qb, 2, 3);
    bench[A].post_send(qa, 1, &pattern(MESSAGE + PAGE, 1));
    let head = bench.message(B, qb, 1);
    let targets = bench[B].provider().take_targets(qb).expect("it came");
    bench[A].provider().disconnect(qa);
    bench.flushed_receive(B, qb, 2);
    bench.end(B, qb);
    bench.end(A, qa);
    assert_eq!([&head[..], &targets.bufs()[0][..]].concat(), pattern(MESSAGE + PAGE, 1));
    assert_eq!(bench[B].pages.free_units(), free - 3);
    drop(targets);
    assert_eq!(bench[B].pages.free_units(), free);
}

/// Sends a message with its first `head_len` octets built where it leaves and the others gathered, if there is space; else from a
/// buffer.
fn gather<H: Harness>(bench: &mut Bench<H>, queue_pair: QueuePairId, message: &[u8], head_len: usize) {
    let (head, data) = message.split_at(head_len);
    let mut pieces: GatheredPieces =
        data.chunks(PAGE / 2 + 100).map(|piece| bench[A].buf(piece).share()).collect();
    let Some(space) = bench[A].provider().gather_space(queue_pair) else {
        let buf = bench[A].buf(message);
        let request = SendRequest { id: 0, buf, invalidate: None, signaled: false };
        return bench.send_when_there_is_room(A, queue_pair, request);
    };
    assert_eq!(space.len(), GATHERED_LEN_MAX);
    space.fill(0x5a);
    space[..head_len].copy_from_slice(head);
    bench[A].provider().send_gathered(queue_pair, head_len, &mut pieces);
    assert!(pieces.is_empty(), "they are on their way");
}

/// What one poll of side B found: messages in one piece, and whether each was shown. Odd ones that are shown are taken.
fn poll_shown<H: Harness>(bench: &mut Bench<H>, queue_pair: QueuePairId) -> Vec<(bool, Vec<u8>)> {
    let now = bench.harness.now();
    let mut completions = VecDeque::with_capacity(32);
    let mut found = Vec::new();
    let count =
        bench[B].provider().poll_in_place(now, &mut completions, 32, &mut |shown: ShownMessage<'_>| {
            let ShownMessage::Scattered(message) = shown else { panic!("its Receive is scattered") };
            if message.octets[0] % 2 == 0 {
                return Taken::No;
            }
            found.push((true, message.octets.to_vec()));
            match message.space {
                Some(space) if message.octets.len() % 3 == 0 => {
                    space[..2].copy_from_slice(&[message.octets[0], 7]);
                    Taken::AnsweredGathered { len: 2 }
                }
                _ => Taken::Done,
            }
        });
    assert_eq!(count, found.len() + completions.len(), "what was taken counts");
    let targets: Vec<_> =
        completions.iter().map(|_| bench[B].provider().take_targets(queue_pair).expect("one each")).collect();
    for (completion, targets) in completions.into_iter().zip(targets) {
        bench[B].note_harvested(&completion);
        assert_eq!(completion.result, Ok(()));
        let Completed::Receive { buf, .. } = completion.completed else { panic!("only messages come") };
        let rest = targets.bufs().iter().flat_map(|target: &Buf| target.iter().copied());
        found.push((false, buf.iter().copied().chain(rest).collect()));
    }
    found
}

/// A message is one message to its receiver, whether it was gathered, and whether it is shown in place; what was taken there
/// leaves its Receive for the next one.
pub(crate) fn a_gathered_message_is_one_message<H: Harness>(bench: &mut Bench<H>) {
    if !has_targets(bench) {
        return;
    }
    let [qa, qb] = bench.connect_with(LONG, LONG);
    bench[B].post_scattered(qb, 0, 3);
    (0..4).for_each(|id| bench[A].post_scattered(qa, id, 3));
    let mut receives = 0;
    for number in 0..120_usize {
        let head_len = 1 + number * 37 % 600;
        let data_len =
            [0, 1, PAGE, PAGE + 5, 2 * PAGE - 1][number % 5].min(LONG.send_len_max as usize - head_len);
        let mut message = pattern(head_len + data_len, number as u64);
        message[0] = number as u8;
        gather(bench, qa, &message, head_len);
        let mut found = Vec::new();
        for _ in 0..100_000 {
            [A, B].into_iter().for_each(|side| bench[side].provider().ring_doorbells());
            found = poll_shown(bench, qb);
            if !found.is_empty() {
                break;
            }
            bench.harness.pass_time();
        }
        let [(is_shown, octets)] = &found[..] else { panic!("{} messages", found.len()) };
        assert_eq!(octets, &message, "message {number}, shown: {is_shown}");
        if !is_shown {
            receives += 1;
            bench[B].post_scattered(qb, receives, 3);
        }
        // Answers come to scattered Receives as well; those that were posted are not all used up.
        let now = bench.harness.now();
        bench[A].poll(now);
        while let Some(completion) = bench[A].completions.pop_front() {
            assert_eq!(completion.result, Ok(()));
            if let Completed::Receive { buf, .. } = completion.completed {
                assert_eq!(buf[1], 7, "an answer");
                assert!(bench[A].provider().take_targets(qa).is_some());
                bench[A].post_scattered(qa, completion.id, 3);
            }
        }
    }
}
