//! Messages without chunks, handled where they arrived and built where they leave. A provider may do neither: then all of
//! them come as completions, and the same holds.

use std::collections::VecDeque;

use stag_fabric::{
    Completed, Completion, PLAIN_LEN_MAX, PlainMessage, Provider, QueuePairId, SendRequest, Taken,
};

use crate::bench::{A, B, Bench, Harness, MESSAGE, pattern};

/// The Payload stream of message `number`: its xid, and `len` octets behind it.
fn stream(number: u32, len: usize) -> Vec<u8> {
    [&number.to_be_bytes()[..], &pattern(len, number.into())].concat()
}

/// A message without chunks.
fn plain(credits: u32, stream: &[u8]) -> Vec<u8> {
    let words = [1, credits, 0, 0, 0, 0].map(u32::to_be_bytes);
    [&stream[..4], words.as_flattened(), stream].concat()
}

/// Sends without a completion, in any way.
fn send<H: Harness>(bench: &mut Bench<H>, side: usize, queue_pair: QueuePairId, message: &[u8]) {
    let buf = bench[side].buf(message);
    bench.send_when_there_is_room(
        side,
        queue_pair,
        SendRequest { id: 0, buf, invalidate: None, signaled: false },
    );
    bench[side].provider().ring_doorbells();
}

/// Builds a message where it leaves, if there is space; else sends it.
fn build<H: Harness>(
    bench: &mut Bench<H>,
    side: usize,
    queue_pair: QueuePairId,
    credits: u32,
    stream: &[u8],
) {
    let provider = bench[side].provider();
    if let Some(space) = provider.plain_space(queue_pair) {
        assert_eq!(space.len(), PLAIN_LEN_MAX);
        space.fill(0x5a);
        space[..stream.len()].copy_from_slice(stream);
        provider.send_plain(queue_pair, credits, stream.len());
        provider.ring_doorbells();
    } else {
        send(bench, side, queue_pair, &plain(credits, stream));
    }
}

/// What one poll of side B found: messages in their order, with their credits if they were shown.
fn look<H: Harness>(
    bench: &mut Bench<H>,
    mut take: impl FnMut(&mut PlainMessage<'_>) -> Taken,
) -> Vec<(Option<u32>, Vec<u8>)> {
    let now = bench.harness.now();
    let mut completions = VecDeque::with_capacity(32);
    let mut found = Vec::new();
    let mut count_taken = 0;
    // What came while there was no room to send.
    let mut earlier = std::mem::take(&mut bench[B].completions);
    let count = bench[B].provider().poll_in_place(now, &mut completions, 32, &mut |mut message| {
        assert!((4..=PLAIN_LEN_MAX).contains(&message.stream.len()));
        let taken = take(&mut message);
        if taken != Taken::No {
            count_taken += 1;
            found.push((Some(message.credits), message.stream.to_vec()));
        }
        taken
    });
    assert_eq!(count, count_taken + completions.len(), "what was taken counts");
    completions.iter().for_each(|completion| bench[B].note_harvested(completion));
    let shown = std::mem::take(&mut found);
    for completion in earlier.drain(..) {
        found.push((None, whole(completion)));
    }
    found.extend(shown);
    found.extend(completions.into_iter().map(|completion| (None, whole(completion))));
    found
}

/// The message of a completed Receive.
fn whole(completion: Completion) -> Vec<u8> {
    assert_eq!(completion.result, Ok(()));
    match completion.completed {
        Completed::Receive { buf, .. } => buf.to_vec(),
        other => panic!("{other:?}"),
    }
}

/// Takes turns until `done` gives something; it polls side B.
fn until<H: Harness, T>(bench: &mut Bench<H>, mut done: impl FnMut(&mut Bench<H>) -> Option<T>) -> T {
    for _ in 0..100_000 {
        for side in [A, B] {
            bench[side].provider().ring_doorbells();
        }
        if let Some(value) = done(bench) {
            return value;
        }
        let now = bench.harness.now();
        if bench[A].poll(now) == 0 {
            bench.harness.pass_time();
        }
    }
    panic!("no message arrives");
}

/// A message that is taken leaves its Receive for the next one, and can be answered at once.
pub(crate) fn a_taken_message_needs_no_receive<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    bench[B].post_receive(qb, 0);
    let (mut receives, mut answered) = (0, 0);
    for number in 0..60u32 {
        let message = stream(number, (number as usize * 31) % (PLAIN_LEN_MAX - 3));
        bench[A].post_receive(qa, number.into());
        send(bench, A, qa, &plain(number + 1, &message));
        let found = until(bench, |bench| {
            let found = look(bench, |shown| match (number % 3, shown.space.take()) {
                (0, _) => Taken::Done,
                (1, Some(space)) => {
                    answered += 1;
                    let answer = stream(shown.credits, number as usize % 200);
                    space[..answer.len()].copy_from_slice(&answer);
                    Taken::Answered { credits: number + 7, len: answer.len() }
                }
                _ => Taken::No,
            });
            (!found.is_empty()).then_some(found)
        });
        let was_answered = number % 3 == 1 && found[0].0.is_some();
        match &found[..] {
            [(Some(credits), shown)] => assert_eq!((*credits, shown), (number + 1, &message)),
            [(None, whole)] => {
                assert_eq!(*whole, plain(number + 1, &message));
                receives += 1;
                bench[B].post_receive(qb, receives);
            }
            _ => panic!("one was sent: {found:?}"),
        }
        bench[B].provider().ring_doorbells();
        // Each message gets an answer, if not from where it was then in the usual way.
        let answer = stream(number + 1, number as usize % 200);
        if !was_answered {
            send(bench, B, qb, &plain(number + 7, &answer));
        }
        assert_eq!(bench.message(A, qa, number.into())[..], plain(number + 7, &answer));
    }
    assert!(answered <= 20 && receives >= 20, "{answered} answered, {receives} left");
}

/// Of several messages that are there, those that are left, and those that cannot be shown, are not overtaken.
pub(crate) fn a_message_that_is_left_is_not_overtaken<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    bench[B].lets_receives_swap(qb);
    let mut next = 0;
    for id in 0..8 {
        bench[B].post_receive(qb, id);
    }
    for round in 0..20u32 {
        for number in round * 8..round * 8 + 8 {
            // Some are longer than what is shown, some are answered with an error: neither is shown.
            let len = if number % 5 == 4 { PLAIN_LEN_MAX } else { 60 };
            send(bench, A, qa, &plain(9, &stream(number, len)));
        }
        until(bench, |bench| {
            let found = look(bench, |shown| {
                let number = u32::from_be_bytes(shown.stream[..4].try_into().expect("an xid"));
                if (number + round) % 4 == 3 { Taken::No } else { Taken::Done }
            });
            for (shown, octets) in found {
                let len = if next % 5 == 4 { PLAIN_LEN_MAX } else { 60 };
                let expected = stream(next, len);
                match shown {
                    Some(_) => assert_eq!(octets, expected),
                    None => {
                        assert_eq!(octets, plain(9, &expected));
                        bench[B].post_receive(qb, u64::from(next) + 100);
                    }
                }
                next += 1;
            }
            (next == round * 8 + 8).then_some(())
        });
    }
}

/// A message that was built in place arrives as any other, in order with those that were not.
pub(crate) fn messages_are_built_in_place<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    for number in 0..80u32 {
        bench[B].post_receive(qb, number.into());
        let message = stream(number, (number as usize * 53) % (PLAIN_LEN_MAX - 3));
        build(bench, A, qa, number, &message);
        if number % 4 == 3 {
            for number in number - 3..=number {
                let message = stream(number, (number as usize * 53) % (PLAIN_LEN_MAX - 3));
                assert_eq!(bench.message(B, qb, number.into())[..], plain(number, &message));
            }
        }
    }
}

/// Whatever has chunks, another version, two xids, or no Payload stream is not shown.
pub(crate) fn what_is_not_plain_is_not_shown<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    let whole = plain(5, &stream(77, 100));
    let mut messages: Vec<Vec<u8>> = (0..32).map(|len| whole[..len].to_vec()).collect();
    for at in (0..32).filter(|at| !(8..12).contains(at)) {
        let mut other = whole.clone();
        other[at] ^= 1;
        messages.push(other);
    }
    messages.push(plain(5, &stream(78, PLAIN_LEN_MAX - 3)));
    messages.push(pattern(MESSAGE, 3));
    for (id, message) in (0..).zip(messages) {
        bench[B].post_receive(qb, id);
        send(bench, A, qa, &message);
        let found = until(bench, |bench| {
            let found = look(bench, |shown| panic!("{:x?} is shown", shown.stream));
            (!found.is_empty()).then_some(found)
        });
        assert_eq!(found, [(None, message)]);
    }
}
