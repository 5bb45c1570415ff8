//! The data path: what is posted, signaled, inline, queued, registered; and sleep.

use std::os::fd::AsRawFd;

use stag_fabric::verbs::{Verbs, VerbsConfig};
use stag_fabric::{
    Exposed, Fence, Provider, QueuePairCapacity, ReadPart, ReadRequest, SendRequest, WriteRequest,
};

use crate::fake;
use crate::side::*;

#[test]
fn one_doorbell_for_all_that_was_posted() {
    WINDOWS.begin();
    let (mut a, mut b) = connected(&WINDOWS.config(), CAPACITY);
    let before = fake::calls("ibv_post_send");
    let pair = a.pair.expect("it is connected");
    for id in 0..6 {
        let buf = a.buf(b"one of six");
        let request = SendRequest { id, buf, invalidate: None, signaled: id == 5 };
        a.verbs.post_send(pair, request).expect("within capacity");
    }
    a.verbs.ring_doorbells();
    assert_eq!(fake::calls("ibv_post_send") - before, 1);
    pass(&mut a, &mut b, 20);

    // And those that replace the six Receives that it took.
    let before = fake::calls("ibv_post_recv");
    b.receive();
    b.verbs.ring_doorbells();
    assert_eq!(fake::calls("ibv_post_recv") - before, 1);
}

/// No event between the last poll and the sleep is slept through, and later ones wake.
#[test]
fn arm_then_poll_again() {
    WINDOWS.begin();
    let (mut a, mut b) = connected(&VerbsConfig { may_sleep: true, ..WINDOWS.config() }, CAPACITY);
    let wakes = |verbs: &Verbs| {
        let fd = verbs.descriptor().expect("it may sleep").as_raw_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure.
        unsafe { libc::poll(&mut poll, 1, 0) > 0 }
    };
    let say = |a: &mut Side| {
        let buf = a.buf(b"wake up");
        let request = SendRequest { id: 1, buf, invalidate: None, signaled: true };
        a.verbs.post_send(a.pair.expect("connected"), request).expect("within capacity");
        a.verbs.ring_doorbells();
    };
    b.verbs.disarm();
    say(&mut a);
    // It is in the completion queue since B looked there for the last time, and before B asks to be told.
    a.poll(TICK * 2999);
    assert!(!b.verbs.arm(), "it came before");
    b.poll(TICK * 3000);
    assert!(b.verbs.arm(), "there is nothing");
    assert!(!wakes(&b.verbs));
    say(&mut a);
    a.poll(TICK * 3001);
    assert!(wakes(&b.verbs), "it came later");
    b.verbs.disarm();
    let before = b.completions.len();
    b.poll(TICK * 3002);
    assert_eq!(b.completions.len(), before + 1);
}

/// A bind is done without a word to the user; behind more of them than are taken at once there may be a message.
#[test]
fn arm_looks_behind_what_is_not_for_the_user() {
    WINDOWS.begin();
    // So few Sends that every work request asks for a completion.
    let capacity = QueuePairCapacity { sends: 4, exposures: 40, ..CAPACITY };
    let (mut a, mut b) = connected(&VerbsConfig { may_sleep: true, ..WINDOWS.config() }, capacity);
    for _ in 0..40 {
        let memory = Exposed::Write(a.buf(&[0; 8]));
        a.verbs.expose(a.pair.expect("connected"), memory).expect("within capacity");
    }
    a.verbs.ring_doorbells();
    (0..50).for_each(|turn| b.poll(TICK * (3000 + turn)));
    send(&mut b, 1, 8, true);
    b.verbs.ring_doorbells();
    (0..5).for_each(|turn| b.poll(TICK * (3100 + turn)));
    assert_eq!(b.completions, [(1, Ok(()))], "A has it");
    assert!(!a.verbs.arm(), "behind 40 binds");
}

/// A queue pair that did not ask for completions does not wait for them at the end.
#[test]
fn the_end_does_not_wait_for_completions_that_were_not_asked_for() {
    WINDOWS.begin();
    let (mut a, mut b) = connected(&WINDOWS.config(), MANY);
    (0..3).for_each(|id| send(&mut a, id, 8, false));
    pass(&mut a, &mut b, 20);
    a.verbs.disconnect(a.pair.expect("connected"));
    pass(&mut a, &mut b, 10);
    assert_eq!((a.pair, a.pool.outstanding()), (None, 0), "at once, not after a time-out");
}

const MANY: QueuePairCapacity = QueuePairCapacity {
    receives: 64,
    sends: 64,
    exposures: 4,
    send_len_max: 512,
    receive_len_max: 512,
    receive_targets: 0,
};

fn send(side: &mut Side, id: u64, len: usize, signaled: bool) {
    let buf = side.buf(&vec![id as u8; len]);
    let request = SendRequest { id, buf, invalidate: None, signaled };
    side.verbs.post_send(side.pair.expect("connected"), request).expect("within capacity");
}

/// One work request of sixteen asks for a completion, and that gives back what is before it.
#[test]
fn completions_are_only_asked_for_now_and_then() {
    WINDOWS.begin();
    let (mut a, mut b) = connected(&WINDOWS.config(), MANY);
    let posted = a.pool.outstanding();
    let (requests, signaled) = fake::with(|world| (world.seen.requests, world.seen.signaled));
    // Two rounds, more together than the capacity: the first has to be given back unasked.
    for _ in 0..2 {
        for id in 0..48 {
            send(&mut a, id, 8, false);
        }
        pass(&mut a, &mut b, 100);
        b.receive();
        assert_eq!(a.pool.outstanding(), posted, "all Sends are given back");
    }
    fake::with(|world| {
        assert_eq!(world.seen.requests - requests, 96);
        assert!((5..=7).contains(&(world.seen.signaled - signaled)), "{:?}", world.seen);
    });
    assert_eq!(a.completions, [], "the user did not ask for any");
    send(&mut a, 7, 8, true);
    pass(&mut a, &mut b, 20);
    assert_eq!(a.completions, [(7, Ok(()))]);
}

/// siw sends a page or more out of the user's memory for as long as TCP likes, unless the request itself asks for a
/// completion: then it copies. Memory that was given back before was seen to arrive with what came into it next.
#[test]
fn siw_is_made_to_copy_what_it_would_go_on_using() {
    for (kind, len, asks) in [(IWARP, 4096, 3), (IWARP, 4095, 0), (REGIONS, 4096, 0)] {
        kind.begin();
        let (mut a, mut b) = connected(&kind.config(), QueuePairCapacity { send_len_max: 4096, ..MANY });
        pass(&mut a, &mut b, 20);
        let before = fake::with(|world| world.seen.signaled);
        let pair = a.pair.expect("connected");
        (0..2).for_each(|id| send(&mut a, id, len, false));
        let segment = b.verbs.expose(b.pair.expect("connected"), Exposed::Write(b.buf(&vec![0; len])));
        let target = segment.expect("within capacity");
        let source = a.buf(&vec![1; len]).share();
        a.verbs.post_write(pair, WriteRequest { id: 3, source, target, signaled: false }).expect("capacity");
        a.verbs.ring_doorbells();
        assert_eq!(fake::with(|world| world.seen.signaled) - before, asks, "{kind:?}, {len} octets");
    }
}

/// The device refuses more than 100 octets inline, so half of the 256 asked for, and half of that, were tried.
#[test]
fn what_fits_goes_inline() {
    WINDOWS.begin();
    let (mut a, _b) = connected(&WINDOWS.config(), CAPACITY);
    for (len, inline) in [(0, 1), (1, 1), (64, 1), (65, 0), (512, 0)] {
        let before = fake::with(|world| world.seen.inline);
        send(&mut a, 1, len, true);
        a.verbs.ring_doorbells();
        assert_eq!(fake::with(|world| world.seen.inline) - before, inline, "{len} octets");
    }
}

/// What fits into a queue pair that is shallow may not fit into a deep one.
#[test]
fn what_fits_inline_is_what_the_queue_pair_has_room_for() {
    WINDOWS.begin();
    let deep = QueuePairCapacity { sends: 100, ..CAPACITY };
    let (mut a, _b) = connected(&WINDOWS.config(), deep);
    for (len, inline) in [(16, 1), (17, 0), (64, 0)] {
        let before = fake::with(|world| world.seen.inline);
        send(&mut a, 1, len, true);
        a.verbs.ring_doorbells();
        assert_eq!(fake::with(|world| world.seen.inline) - before, inline, "{len} octets");
    }
}

/// As many Reads are under way as the peer has resources for, and not one more; the others wait their turn.
#[test]
fn reads_wait_for_the_peers_resources() {
    for kind in [WINDOWS, REGIONS, IWARP] {
        for (read_depth, expected) in [(1, 1), (2, 2), (16, 4)] {
            kind.begin();
            let config = VerbsConfig { read_depth, ..kind.config() };
            let (mut a, mut b) = connected(&config, CAPACITY);
            let memory = Exposed::Read(b.buf(&[9; 300]).share());
            let source = b.verbs.expose(b.pair.expect("connected"), memory).expect("within capacity");
            pass(&mut a, &mut b, 5);
            fake::with(|world| world.seen.reads_max = 0);
            for id in 0..4 {
                let target = a.buf(&[0; 80]);
                let parts: Vec<ReadPart> =
                    (0..8).map(|at| ReadPart { at: at * 10, len: 10, source }).collect();
                let request = ReadRequest { id, target };
                a.verbs.post_read(a.pair.expect("connected"), request, &parts).expect("within capacity");
            }
            pass(&mut a, &mut b, 100);
            let done: Vec<u64> =
                a.completions.iter().filter(|(_, ok)| ok.is_ok()).map(|(id, _)| *id).collect();
            assert_eq!(done, [0, 1, 2, 3], "{kind:?}");
            assert_eq!(
                fake::with(|world| world.seen.reads_max),
                expected,
                "{kind:?}, asked for {read_depth}"
            );
        }
    }
}

/// Calls into the driver and work requests that `at_once` exposures and fences take, one after the other: the table in
/// engine/docs/decisions/how-is-exposed-memory-protected.md. (registered, deregistered, of windows, doorbells)
#[test]
fn what_an_exposure_costs() {
    const ROUNDS: u64 = 10;
    for (kind, at_once, expected) in [
        (WINDOWS, 1, [0, 0, 2, 2]),
        (REGIONS, 1, [1, 1, 0, 1]),
        (IWARP, 1, [1, 1, 0, 1]),
        (STANDING, 1, [0, 0, 0, 1]),
        // The binds share the doorbell of the Send that tells of them.
        (WINDOWS, 3, [0, 0, 6, 2]),
        (REGIONS, 3, [3, 3, 0, 1]),
        (STANDING, 3, [0, 0, 0, 1]),
    ] {
        kind.begin();
        let (mut a, mut b) = connected(&kind.config(), CAPACITY);
        let pair = a.pair.expect("connected");
        let mut round = |a: &mut Side| {
            let expose = |a: &mut Side| {
                let memory = Exposed::Write(a.buf(&[0; 100]));
                a.verbs.expose(pair, memory).expect("within capacity")
            };
            let exposed: Vec<_> = (0..at_once).map(|_| expose(a)).collect();
            send(a, 1, 8, true);
            a.verbs.ring_doorbells();
            pass(a, &mut b, 10);
            b.receive();
            for segment in exposed {
                match a.verbs.fence(pair, segment.handle, 2).expect("it is exposed") {
                    Fence::Done(memory) => drop(memory),
                    Fence::Pending => {}
                }
            }
            a.verbs.ring_doorbells();
            pass(a, &mut b, 10);
        };
        // Several standing exposures at one time take registrations once.
        round(&mut a);
        let seen = || {
            let windows = fake::with(|world| world.seen.window_requests);
            [fake::calls("ibv_reg_mr"), fake::calls("ibv_dereg_mr"), windows, fake::calls("ibv_post_send")]
        };
        let (before, posted) = (seen(), a.pool.outstanding());
        (0..ROUNDS).for_each(|_| round(&mut a));
        let cost: Vec<u64> = seen().iter().zip(before).map(|(after, before)| after - before).collect();
        assert_eq!(cost, expected.map(|each| each * ROUNDS), "{kind:?}, {at_once} at once");
        let counters = a.verbs.counters();
        assert_eq!(counters.standing > 0, kind.exposure.is_some(), "{counters:?}");
        assert_eq!(a.pool.outstanding(), posted, "all memory is back");
    }
}

/// An arena is registered once in each protection domain, and a domain with its arenas serves one connection after the
/// other.
#[test]
fn an_arena_is_registered_once_in_each_domain() {
    // Domains of a side: one for all; or one that is a model, and one for each connection, where memory is registered for
    // its peer: that which is exposed, or over iWARP the target of a Read. Standing exposures have one, where
    // it is registered as often as there are exposures at one time.
    let iwarp_windows = Kind { has_windows: true, ..IWARP };
    for (kind, expected) in [(WINDOWS, 1), (STANDING, 2), (REGIONS, 2), (IWARP, 2), (iwarp_windows, 2)] {
        kind.begin();
        let (mut a, mut b) = connected(&kind.config(), CAPACITY);
        for _ in 0..3 {
            // But for what exposures and targets of Reads take.
            let others = a.verbs.counters().registrations + b.verbs.counters().registrations;
            assert_eq!(fake::calls("ibv_reg_mr") - others, 2 * expected, "{kind:?}");
            for side in [&mut a, &mut b] {
                let pair = side.pair.expect("connected");
                side.verbs.disconnect(pair);
            }
            pass(&mut a, &mut b, 100);
            assert_eq!((a.pair, b.pair), (None, None));
            connect(&mut a, &mut b);
        }
    }
}
