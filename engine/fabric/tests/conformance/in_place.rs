//! Messages that are handled where they arrived and built where they leave. A provider may do neither: then all of
//! them come as completions, and the same holds.

use std::collections::VecDeque;

use stag_fabric::{
    Completed, Completion, DisconnectReason, Exposed, Handle, PLAIN_LEN_MAX, PlainMessage, Provider,
    QueuePairId, ReadPart, RemoteSegment, SendRequest, ShownMessage, Taken, WHOLE_LEN_MAX,
};
use stag_memory::Shared;
use stag_wire::rpcrdma::SINGLE_LEN;

use crate::bench::{A, B, Bench, Harness, Kind, MESSAGE, pattern};

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
    let is_built = provider.build_plain(queue_pair, |space| {
        assert_eq!(space.len(), PLAIN_LEN_MAX);
        space.fill(0x5a);
        space[..stream.len()].copy_from_slice(stream);
        Some((credits, stream.len()))
    });
    if is_built {
        provider.ring_doorbells();
    } else {
        send(bench, side, queue_pair, &plain(credits, stream));
    }
}

/// What one poll of side B found: messages in their order, with their credits if they were shown.
fn poll_shown<H: Harness>(
    bench: &mut Bench<H>,
    mut take: impl FnMut(&mut PlainMessage<'_>) -> Taken,
) -> Vec<(Option<u32>, Vec<u8>)> {
    let now = bench.harness.now();
    let mut completions = VecDeque::with_capacity(32);
    let mut found = Vec::new();
    let mut count_taken = 0;
    // What came while there was no room to send.
    let mut earlier = std::mem::take(&mut bench[B].completions);
    let count =
        bench[B].provider().poll_in_place(now, &mut completions, 32, &mut |shown: ShownMessage<'_>| {
            let ShownMessage::Plain(mut message) = shown else { return Taken::No };
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
            let found = poll_shown(bench, |shown| match (number % 3, shown.space.take()) {
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
            let found = poll_shown(bench, |shown| {
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
            let found = poll_shown(bench, |shown| panic!("{:x?} is shown", shown.stream));
            (!found.is_empty()).then_some(found)
        });
        assert_eq!(found, [(None, message)]);
    }
}

/// What became of a message that B polled for.
enum Found {
    /// It was answered where it was shown.
    Answered,
    /// It came as a completion.
    Left(Vec<u8>),
}

/// Polls B until a message is there, and answers it where it is shown: with `result` in `writable`, after it has read `bytes`
/// from `readable`. Every third is left to the usual way after all.
fn answer_whole<H: Harness>(
    bench: &mut Bench<H>,
    (message, round): (&[u8], u64),
    (readable, bytes): (RemoteSegment, &[u8]),
    (writable, result): (RemoteSegment, &Shared),
    invalidate: Option<Handle>,
) -> Found {
    until(bench, |bench| {
        let now = bench.harness.now();
        let mut completions = VecDeque::with_capacity(32);
        let mut target = bench[B].buf(&[0xee; 3000]);
        let mut is_answered = false;
        bench[B].provider().poll_in_place(now, &mut completions, 32, &mut |shown: ShownMessage<'_>| {
            let ShownMessage::Whole(whole) = shown else { panic!("it is not plain") };
            assert_eq!((whole.octets, whole.invalidated), (message, None));
            let part = |segment: RemoteSegment, by: u64, len| {
                let offset = segment.offset.wrapping_add(by);
                [ReadPart { at: 0, len, source: RemoteSegment { offset, ..segment } }]
            };
            for (what, parts) in [
                ("beyond it", part(readable, 1, bytes.len() as u32)),
                ("before it", part(readable, u64::MAX, 10)),
                ("what may be written", part(writable, 0, 10)),
            ] {
                assert!(!whole.memory.read(&mut target, &parts), "{what}");
            }
            for by in [1, u64::MAX] {
                let beside = RemoteSegment { offset: writable.offset.wrapping_add(by), ..writable };
                assert!(!whole.memory.write(result, beside), "beside it");
            }
            assert!(!whole.memory.write(result, readable), "what may be read");
            let has_read = whole.memory.read(&mut target, &part(readable, 0, bytes.len() as u32));
            assert!(!has_read || target[..bytes.len()] == *bytes);
            match whole.space {
                Some(space) if has_read && whole.memory.write(result, writable) && round % 3 != 2 => {
                    assert_eq!(space.len(), WHOLE_LEN_MAX);
                    space.fill(0x5a);
                    space[..5].copy_from_slice(b"done!");
                    is_answered = true;
                    Taken::AnsweredWhole { len: 5, invalidate }
                }
                _ => Taken::No,
            }
        });
        completions.iter().for_each(|completion| bench[B].note_harvested(completion));
        if is_answered {
            return Some(Found::Answered);
        }
        completions.pop_front().map(|completion| Found::Left(whole(completion)))
    })
}

/// A message that is shown whole is answered with the peer's memory read and written, in the order of requests. Of what is not
/// answered so the peer sees the same.
pub(crate) fn whole_messages_are_answered_with_memory<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    bench[B].post_receive(qb, 0);
    let can_invalidate = bench[A].provider().limits().send_with_invalidate;
    for round in 0..24 {
        let (bytes, result) = (pattern(3000, round), pattern(2000, round + 50));
        let readable = bench[A].expose_read(qa, &bytes);
        let writable = bench[A].expose_write(qa, 2000);
        bench[A].post_receive(qa, round);
        let message = pattern(100 + round as usize * 20, round);
        send(bench, A, qa, &message);
        let invalidate = (can_invalidate && round % 2 == 1).then_some(writable.handle);
        let shared = bench[B].buf(&result).share();
        let found =
            answer_whole(bench, (&message, round), (readable, &bytes), (writable, &shared), invalidate);
        if let Found::Left(octets) = found {
            assert_eq!(octets, message);
            bench[B].post_receive(qb, round + 1);
            bench[B].post_write(qb, round, &result, writable);
            match invalidate {
                Some(handle) => bench[B].post_send_with_invalidate(qb, round, handle),
                None => bench[B].post_send(qb, round, b"done!"),
            }
            assert_eq!(bench.completion(B, qb, Kind::Write, round).result, Ok(()));
            assert_eq!(bench.completion(B, qb, Kind::Send, round).result, Ok(()));
        }
        bench[B].provider().ring_doorbells();
        let arrived = bench.completion(A, qa, Kind::Receive, round);
        let Completed::Receive { invalidated, exposed, .. } = arrived.completed else {
            panic!("{arrived:?}")
        };
        assert_eq!(invalidated, invalidate);
        let memory = match exposed {
            Some(Exposed::Write(memory)) if invalidate.is_some() => memory,
            None if invalidate.is_none() => bench.fenced_buf(A, qa, writable.handle, round),
            other => panic!("{other:?} came with the message"),
        };
        assert!(memory[..] == result[..], "what was written is there when the answer is");
        bench.fenced(A, qa, readable.handle, round);
    }
}

/// An answer that invalidates what the peer has not exposed ends the connection.
pub(crate) fn an_answer_invalidates_what_is_exposed<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    bench[B].post_receive(qb, 0);
    bench[A].post_receive(qa, 0);
    let readable = bench[A].expose_read(qa, &[7; 100]);
    let writable = bench[A].expose_write(qa, 200);
    let message = pattern(100, 3);
    send(bench, A, qa, &message);
    let shared = bench[B].buf(&[8; 200]).share();
    let unknown = Handle(writable.handle.0 ^ 0x5a5a_5a5a);
    let found = answer_whole(bench, (&message, 0), (readable, &[7; 100]), (writable, &shared), Some(unknown));
    drop(shared);
    if let Found::Answered = found {
        let reason = bench.end(B, qb);
        assert!(!matches!(reason, DisconnectReason::Local), "{reason:?}");
        bench.end(A, qa);
    }
}

/// A message whose memory was read, and which is then left, does not keep that memory from being fenced.
pub(crate) fn what_was_read_in_vain_can_be_fenced<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    bench[B].post_receive(qb, 0);
    let readable = bench[A].expose_read(qa, &[7; 100]);
    send(bench, A, qa, &pattern(100, 3));
    let octets = until(bench, |bench| {
        let now = bench.harness.now();
        let mut completions = VecDeque::with_capacity(32);
        let mut target = bench[B].buf(&[0xee; 100]);
        bench[B].provider().poll_in_place(now, &mut completions, 32, &mut |shown: ShownMessage<'_>| {
            let ShownMessage::Whole(shown) = shown else { panic!("it is not plain") };
            shown.memory.read(&mut target, &[ReadPart { at: 0, len: 100, source: readable }]);
            Taken::No
        });
        completions.iter().for_each(|completion| bench[B].note_harvested(completion));
        completions.pop_front().map(whole)
    });
    assert_eq!(octets, pattern(100, 3));
    let Exposed::Read(memory) = bench.fenced(A, qa, readable.handle, 1) else { panic!("it was readable") };
    assert_eq!(memory[..], [7; 100]);
}

/// A message that is built in place behind an exposure arrives as any other, in order, and the peer can use what it names. Space
/// that is left leaves nothing.
pub(crate) fn messages_that_expose_are_built_in_place<H: Harness>(bench: &mut Bench<H>) {
    let [qa, qb] = bench.connect();
    let mut sent: Vec<(Vec<u8>, RemoteSegment)> = Vec::new();
    // A whole number of fours: nothing is left at the end.
    for round in 0..88u64 {
        bench[B].post_receive(qb, round);
        let bytes = pattern(500, round);
        let stream = pattern(round as usize * 53 % (WHOLE_LEN_MAX - SINGLE_LEN + 1), round);
        let message_of = |segment: RemoteSegment| {
            let mut head = [round as u8; SINGLE_LEN];
            head[..4].copy_from_slice(&segment.handle.0.to_be_bytes());
            [&head[..], &stream].concat()
        };
        let mut exposed = Some(Exposed::Read(bench[A].buf(&bytes).share()));
        let mut built = None;
        let is_sent = bench[A].build_exposing(qa, &mut exposed, |space, segment| {
            assert_eq!(space.len(), WHOLE_LEN_MAX);
            space.fill(0x5a);
            let message = message_of(segment);
            space[..message.len()].copy_from_slice(&message);
            // One that leaves its space, and one behind others in the usual way.
            (round % 7 != 3).then(|| built.insert((message, segment)).0.len())
        });
        assert_eq!((is_sent, is_sent), (built.is_some(), exposed.is_none()), "all of it, or nothing");
        if let Some(memory) = exposed {
            let segment = bench[A].try_expose(qa, memory).expect("an exposure within capacity is made");
            let message = message_of(segment);
            send(bench, A, qa, &message);
            built = Some((message, segment));
        } else if round % 5 != 1 {
            bench[A].provider().ring_doorbells();
        }
        sent.extend(built);
        if round % 4 == 3 {
            bench[A].provider().ring_doorbells();
            let first = round + 1 - sent.len() as u64;
            for (round, (message, segment)) in (first..).zip(sent.drain(..)) {
                assert_eq!(bench.message(B, qb, round)[..], message, "message {round}");
                bench[B].post_read(qb, round, 500, segment);
                bench[B].provider().ring_doorbells();
                assert_eq!(bench.read(B, qb, round)[..], pattern(500, round));
                bench.fenced(A, qa, segment.handle, round);
            }
        }
    }
}
