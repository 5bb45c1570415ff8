//! Messages without chunks: shown in the buffer that they arrived in, and built in memory that the provider keeps.

use std::collections::VecDeque;

use stag_fabric::{
    Completed, Completion, DisconnectReason, Exposed, PLAIN_LEN_MAX, Provider, QueuePairCapacity,
    SendRequest, ShownMessage, Taken, WorkError,
};
use stag_rdma_core_sys as sys;

use crate::fake;
use crate::side::*;

const MANY: QueuePairCapacity = QueuePairCapacity { receives: 16, sends: 32, ..WIDE };

/// Octets of the header that the provider writes.
const HEADER_LEN: usize = 28;

/// Polls a side; returns the lengths of the messages that were shown, all of which are taken, and the completions.
fn poll_shown(side: &mut Side) -> (Vec<usize>, Vec<Completion>) {
    side.now += TICK;
    let (mut shown, mut completions) = (Vec::new(), VecDeque::with_capacity(32));
    side.verbs.poll_in_place(side.now, &mut completions, 32, &mut |message: ShownMessage<'_>| {
        let ShownMessage::Plain(message) = message else { panic!("peers' memory is not in reach") };
        assert!(message.stream.iter().enumerate().all(|(at, octet)| *octet == at as u8));
        shown.push(message.stream.len());
        Taken::Done
    });
    side.verbs.ring_doorbells();
    (shown, completions.into())
}

/// Neither end takes a buffer of a pool, nothing completes, and the Receives are posted again: for many more messages than
/// there are Receives, Sends and slots.
#[test]
fn messages_need_no_buffer_at_either_end() {
    for kind in KINDS {
        kind.begin();
        let (mut a, mut b) = connected(&kind.config(), MANY);
        // What was done at first is done with.
        (0..20).for_each(|_| drop((poll_shown(&mut a), poll_shown(&mut b))));
        let outstanding = (a.pool.outstanding(), b.pool.outstanding());
        let (mut sent, mut arrived, mut refused) = (0, 0, 0);
        while arrived < 500 {
            let len = 4 + sent * 37 % (PLAIN_LEN_MAX - HEADER_LEN - 4);
            // As many as the peer has Receives.
            while sent - arrived < 16 && sent < 500 && a.build(9, len) {
                sent += 1;
            }
            refused += usize::from(sent - arrived < 16 && sent < 500);
            a.verbs.ring_doorbells();
            let (shown, completions) = poll_shown(&mut b);
            assert!(completions.is_empty(), "{kind:?}: {completions:?}");
            arrived += shown.len();
            let (shown, completions) = poll_shown(&mut a);
            assert!(shown.is_empty() && completions.is_empty(), "{kind:?}: {completions:?}");
        }
        assert!(refused < 500, "{kind:?}: there is space as soon as Sends are done");
        assert_eq!((a.pool.outstanding(), b.pool.outstanding()), outstanding, "{kind:?}");
        drop((a, b));
        assert_eq!(fake::leaks(), [], "{kind:?}");
    }
}

/// Short ones go in the work request; the others are read by the device from where they were built, which stays as it is
/// until they are done.
#[test]
fn what_is_under_way_is_not_built_over() {
    WINDOWS.begin();
    let (mut a, mut b) = connected(&WINDOWS.config(), WIDE);
    (0..20).for_each(|_| drop((poll_shown(&mut a), poll_shown(&mut b))));
    let inline = fake::with(|world| world.seen.inline);
    let mut built = Vec::new();
    while a.build(9, 30 + 370 * (built.len() % 2)) {
        built.push(30 + 370 * (built.len() % 2));
    }
    assert_eq!(built.len(), WIDE.sends as usize, "as many as may be posted");
    a.verbs.ring_doorbells();
    assert_eq!(fake::with(|world| world.seen.inline) - inline, u64::from(WIDE.sends / 2));
    let mut arrived = Vec::new();
    for turn in 0..400 {
        // As soon as there is space again, it is used. `look` sees that all arrive as they were built.
        if turn < 200 && a.build(9, 300) {
            built.push(300);
        }
        poll_shown(&mut a);
        arrived.extend(poll_shown(&mut b).0);
    }
    assert!(built.len() > 20, "{} were built", built.len());
    assert_eq!(arrived, built);
}

/// A Send that fails has nothing to give back: the connection ends, and no completion says why.
#[test]
fn a_built_message_that_fails_ends_the_connection() {
    for kind in [WINDOWS, REGIONS, SHARED] {
        for status in (1..=24).filter(|status| *status != sys::IBV_WC_WR_FLUSH_ERR) {
            kind.begin();
            let (mut a, mut b) = connected(&kind.config(), MANY);
            (0..20).for_each(|_| drop((poll_shown(&mut a), poll_shown(&mut b))));
            assert!(a.build(9, 30) && a.build(9, 400));
            fake::spoil(false, status);
            for _ in 0..30_000 {
                pass(&mut a, &mut b, 1);
                if a.pair.is_none() && b.pair.is_none() {
                    break;
                }
            }
            assert_eq!((a.pair, b.pair), (None, None), "{kind:?} {status}");
            assert!(
                matches!(
                    a.ended[..],
                    [DisconnectReason::Work(_)
                        | DisconnectReason::PeerDied
                        | DisconnectReason::PeerViolation(_)]
                ),
                "{:?}",
                a.ended
            );
            let flushed = |(_, result): &(u64, _)| *result == Err(WorkError::Flushed);
            assert!(a.completions.iter().all(flushed), "only Receives come back: {:?}", a.completions);
            drop((a, b));
            fake::forgive();
            assert_eq!(fake::leaks(), [], "{kind:?} {status}");
        }
    }
}

/// Polls a side until a message was shown, without ringing its doorbells.
fn look_for_one(side: &mut Side) {
    let (mut shown, mut completions) = (0, VecDeque::with_capacity(32));
    for _ in 0..100 {
        side.now += TICK;
        side.verbs.poll_in_place(side.now, &mut completions, 32, &mut |_: ShownMessage<'_>| {
            shown += 1;
            Taken::Done
        });
        if shown > 0 {
            break;
        }
    }
    assert_eq!(shown, 1);
}

/// The Receive of a message that was taken where it arrived is the device's again when the poll returns: nothing is left for a
/// doorbell.
#[test]
fn a_receive_is_posted_again_at_once() {
    for kind in [WINDOWS, REGIONS] {
        kind.begin();
        let (mut a, mut b) = connected(&kind.config(), MANY);
        (0..20).for_each(|_| drop((poll_shown(&mut a), poll_shown(&mut b))));
        for _ in 0..40 {
            let (posted, doorbells) = (fake::calls("ibv_post_recv"), b.verbs.counters().doorbells);
            assert!(a.build(9, 30));
            a.verbs.ring_doorbells();
            look_for_one(&mut b);
            assert_eq!(fake::calls("ibv_post_recv") - posted, 1, "{kind:?}");
            b.verbs.ring_doorbells();
            assert_eq!(fake::calls("ibv_post_recv") - posted, 1, "{kind:?}");
            assert_eq!(b.verbs.counters().doorbells, doorbells, "{kind:?}: nothing was left to post");
            poll_shown(&mut a);
        }
    }
}

/// A Receive that the device does not take back ends the connection, and no buffer is lost.
#[test]
fn a_receive_that_is_refused_again_ends_the_connection() {
    for kind in [WINDOWS, REGIONS] {
        kind.begin();
        let (mut a, mut b) = connected(&kind.config(), MANY);
        (0..20).for_each(|_| drop((poll_shown(&mut a), poll_shown(&mut b))));
        b.completions.clear();
        assert!(a.build(9, 30));
        a.verbs.ring_doorbells();
        fake::fail("ibv_post_recv", 0, libc::ENOMEM);
        look_for_one(&mut b);
        for _ in 0..30_000 {
            pass(&mut a, &mut b, 1);
            if a.pair.is_none() && b.pair.is_none() {
                break;
            }
        }
        assert_eq!((a.pair, b.pair), (None, None), "{kind:?}");
        assert_eq!(
            (a.pool.outstanding(), b.pool.outstanding()),
            (0, 0),
            "{kind:?}: the refused one came back, too"
        );
        drop((a, b));
        fake::forgive();
        assert_eq!(fake::leaks(), [], "{kind:?}");
    }
}

/// A run of built messages of which some wait for the next doorbell: the space of those that are done comes back all the same.
#[test]
fn what_waits_does_not_keep_the_space_of_what_is_done() {
    WINDOWS.begin();
    let (mut a, mut b) = connected(&WINDOWS.config(), MANY);
    (0..20).for_each(|_| drop((poll_shown(&mut a), poll_shown(&mut b))));
    for _ in 0..20 {
        let mut built = (0..20).filter(|_| a.build(9, 30)).count();
        a.verbs.ring_doorbells();
        assert!(built == 20 && a.build(9, 30), "one more, for which no doorbell is rung");
        built += 1;
        let mut arrived = 0;
        for _ in 0..40 {
            arrived += poll_shown(&mut b).0.len();
            a.now += TICK;
            a.verbs.poll(a.now, &mut VecDeque::with_capacity(32), 32);
        }
        assert_eq!(arrived, 20);
        let more = (0..32).filter(|_| a.build(9, 30)).count();
        assert!(more > 20, "{more}: all but the one that waits, and an interval that is done unnoticed");
        built += more;
        for _ in 0..80 {
            a.verbs.ring_doorbells();
            arrived += poll_shown(&mut b).0.len();
            poll_shown(&mut a);
        }
        assert_eq!(arrived, built);
    }
}

/// Without memory for it nothing is built in place, and messages go as they do from pools. Nor is there space for messages
/// that the peer would not take.
#[test]
fn without_memory_there_is_no_space() {
    WINDOWS.begin();
    // The arenas are registered first.
    fake::fail("ibv_reg_mr", 2, libc::ENOMEM);
    let (mut a, mut b) = connected(&WINDOWS.config(), MANY);
    fake::forgive();
    let offers = [a.build(9, 8), b.build(9, 8)];
    assert_eq!(offers.iter().filter(|offers| **offers).count(), 1, "one registration failed");
    a.verbs.ring_doorbells();
    drop((a, b));

    WINDOWS.begin();
    let (mut a, b) = connected(&WINDOWS.config(), CAPACITY);
    assert!(!a.build(9, 8), "512 octets behind a header are longer than the peer takes");
    drop((a, b));
}

/// What invalidates a handle of ours comes as a completion, whatever it looks like.
#[test]
fn what_invalidates_is_not_shown() {
    WINDOWS.begin();
    let (mut a, mut b) = connected(&WINDOWS.config(), MANY);
    (0..20).for_each(|_| drop((poll_shown(&mut a), poll_shown(&mut b))));
    let (pair_a, pair_b) = (a.pair.expect("connected"), b.pair.expect("connected"));
    let memory = Exposed::Write(b.buf(&[7; 64]));
    let segment = b.verbs.expose(pair_b, memory).expect("within capacity");
    b.verbs.ring_doorbells();
    let mut message = [0; 36];
    (message[7], message[11]) = (1, 9);
    let buf = a.buf(&message);
    let request = SendRequest { id: 1, buf, invalidate: Some(segment.handle), signaled: false };
    (0..5).for_each(|_| drop(poll_shown(&mut b)));
    a.verbs.post_send(pair_a, request).expect("within capacity");
    a.verbs.ring_doorbells();
    let found: Vec<Completion> = (0..10).flat_map(|_| poll_shown(&mut b).1).collect();
    let [Completion { completed: Completed::Receive { invalidated, exposed, .. }, .. }] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!((*invalidated, exposed.is_some()), (Some(segment.handle), true));
}
