//! The faults of the simulated fabric: each does what its plan says, and everything comes back all the same.

use std::collections::VecDeque;
use std::time::Duration;

use stag_fabric::sim::{FaultPlan, LIMITS, Odds, Run, Violations, World};
use stag_fabric::{
    Completion, DisconnectReason, Event, FabricError, Fence, Limits, PostError, Provider, QueuePairCapacity,
    QueuePairId, SendRequest, WorkError,
};

use crate::bench::{A, B, Bench, CAPACITY, Kind, kind_of, pattern, refusal};
use crate::simulated::Simulated;

/// A bench in this weather, with every way taking the same time.
fn bench(seed: u64, plan: FaultPlan) -> Bench<Simulated> {
    Bench::new(Simulated::new(seed, FaultPlan { latency: MICROSECOND..=MICROSECOND, ..plan }))
}

const MICROSECOND: Duration = Duration::from_micros(1);

#[test]
fn a_connection_is_refused() {
    let mut bench = bench(1, FaultPlan { connect_refused: Odds::ALWAYS, ..FaultPlan::default() });
    let qa = bench.dial(b"", CAPACITY);
    bench[A].post_receive(qa, 1);
    assert!(matches!(bench.end(A, qa), DisconnectReason::Rejected(_)));
    bench.finish();
}

#[test]
fn a_lost_request_times_out() {
    let mut bench = bench(1, FaultPlan { setup_lost: Odds::ALWAYS, ..FaultPlan::default() });
    let qa = bench.dial(b"", CAPACITY);
    bench[A].post_receive(qa, 1);
    assert_eq!(bench.end(A, qa), DisconnectReason::TimedOut);
    assert_eq!(bench.harness.world.now(), FaultPlan::default().setup_timeout);
    assert!(bench[B].events.is_empty(), "B did not hear of it");
    bench.finish();
}

#[test]
fn a_lost_answer_times_out_on_both_sides() {
    let mut bench = bench(1, FaultPlan::default());
    let qa = bench.dial(b"", CAPACITY);
    let request = bench.request().0;
    let qb = bench.prepare(request, CAPACITY);
    bench[B].post_receive(qb, 1);
    bench.harness.world.set_plan(FaultPlan { setup_lost: Odds::ALWAYS, ..FaultPlan::default() });
    bench[B].provider().accept(qb, b"").expect("it is prepared");
    assert_eq!(bench.end(A, qa), DisconnectReason::TimedOut);
    let reason = bench.end(B, qb);
    assert!(matches!(reason, DisconnectReason::TimedOut | DisconnectReason::Peer), "{reason:?}");
    bench.finish();
}

#[test]
fn private_data_is_dropped_or_truncated() {
    for (dropped, truncated) in [(Odds::ALWAYS, Odds::NEVER), (Odds::NEVER, Odds::ALWAYS)] {
        let plan = FaultPlan {
            private_data_dropped: dropped,
            private_data_truncated: truncated,
            ..FaultPlan::default()
        };
        let mut bench = bench(3, plan);
        let qa = bench.dial(b"request", CAPACITY);
        let (request, private_data) = bench.request();
        let qb = bench.prepare(request, CAPACITY);
        bench[B].provider().accept(qb, b"answer").expect("it is prepared");
        let answer = bench.established(A, qa);
        bench.established(B, qb);
        for (sent, got) in [(&b"request"[..], private_data), (b"answer", answer)] {
            assert!(got.len() < sent.len() && sent.starts_with(&got), "{got:?} of {sent:?}");
            assert!(dropped == Odds::NEVER || got.is_empty());
        }
        bench.finish();
    }
}

/// All kinds of work on one connection. `false`: it died on the way.
fn scenario(bench: &mut Bench<Simulated>) -> bool {
    let dialed = bench.dial(b"hello", CAPACITY);
    let mut queue_pairs: [Option<QueuePairId>; 2] = [Some(dialed), None];
    bench[A].post_receive(dialed, 1);
    let mut up = [false; 2];
    // Each side does its part as soon as it is established; nothing here waits for what may never come.
    loop {
        for side in [A, B] {
            while let Some(event) = bench[side].events.pop_front() {
                match event {
                    Event::ConnectRequest { request, .. } => {
                        let Ok(queue_pair) = bench[B].provider().prepare(request, CAPACITY) else { continue };
                        queue_pairs[B] = Some(bench[B].adopt(queue_pair));
                        for id in 1..4 {
                            bench[B].post_receive(queue_pair, id);
                        }
                        // It may have died in between, as far as the fabric is concerned.
                        let _ = bench[B].provider().accept(queue_pair, b"welcome");
                    }
                    Event::Established { queue_pair, .. } => {
                        up[side] = true;
                        if let Some(at) = (side == B).then(|| bench[B].expose_write(queue_pair, 5000)) {
                            bench[B].post_send(queue_pair, 10, &at.handle.0.to_le_bytes());
                            bench[B].expose_read(queue_pair, &pattern(5000, 1));
                        }
                    }
                    Event::Disconnected { queue_pair, .. } => {
                        queue_pairs[side] = queue_pairs[side].filter(|&id| id != queue_pair);
                    }
                    _ => {}
                }
            }
        }
        let told = |c: &Completion| kind_of(c) == Some(Kind::Receive) && c.result.is_ok();
        if let (Some(qa), true, Some(_)) = (queue_pairs[A], up[A], bench[A].take_completion(told)) {
            for id in 0..3 {
                let buf = bench[A].buf(&pattern(300, id));
                let request = SendRequest { id, buf, invalidate: None, signaled: id != 1 };
                match bench[A].try_send(qa, request) {
                    Ok(()) => {}
                    Err(refused) => assert_eq!(refused.error, PostError::NotConnected),
                }
            }
        }
        if !bench.turn() && bench[A].events.is_empty() && bench[B].events.is_empty() {
            return queue_pairs.iter().all(Option::is_some);
        }
    }
}

#[test]
fn death_at_every_step() {
    let mut calm = bench(7, FaultPlan::default());
    assert!(scenario(&mut calm), "nothing dies in calm weather");
    let steps = calm.harness.world.steps();
    calm.finish();
    assert!(steps > 10, "{steps} steps");
    for step in 1..=steps {
        let mut bench = bench(7, FaultPlan { death_at: Some(step), ..FaultPlan::default() });
        assert!(!scenario(&mut bench), "death at step {step} of {steps}");
        bench.finish();
    }
}

#[test]
fn the_two_sides_of_a_cut_find_out_at_different_times() {
    let mut bench = bench(5, FaultPlan::default());
    let [qa, qb] = bench.connect();
    bench[A].post_receive(qa, 1);
    bench[B].post_receive(qb, 1);
    bench[A].post_send(qa, 2, b"lost");
    bench[A].provider().cut(qa);
    assert_eq!(bench.end(A, qa), DisconnectReason::PeerDied);
    let first = bench.harness.world.now();
    assert_eq!(bench.end(B, qb), DisconnectReason::PeerDied);
    let lost = bench[B].take_completion(|c| c.id == 1).expect("the Receive came back");
    assert_eq!(lost.result, Err(WorkError::Flushed));
    drop(lost);
    assert_ne!(first, bench.harness.world.now());
    bench.finish();
}

#[test]
fn a_post_is_refused_early() {
    let mut bench = bench(1, FaultPlan { post_full: Odds::ALWAYS, ..FaultPlan::default() });
    let [qa, qb] = bench.connect();
    bench[B].post_receive(qb, 1);
    bench[B].post_receive(qb, 2);
    bench[A].post_send(qa, 1, b"alone");
    let buf = bench[A].buf(b"in company");
    let request = SendRequest { id: 2, buf, invalidate: None, signaled: true };
    let error = refusal(bench[A].try_send(qa, request), |r| r.buf[..] == *b"in company");
    assert_eq!(error, PostError::Full);
    bench.completion(A, qa, Kind::Send, 1);
    bench[A].post_send(qa, 2, b"alone again");
    bench.message(B, qb, 2);
    bench.finish();
}

#[test]
fn requests_complete_before_they_arrive() {
    let plan = FaultPlan {
        complete_early: Odds::ALWAYS,
        delay: Odds::ALWAYS,
        latency: MICROSECOND..=MICROSECOND,
        ..FaultPlan::default()
    };
    let mut bench = Bench::new(Simulated::new(2, plan));
    let [qa, qb] = bench.connect();
    let target = bench.offer_write(B, [qa, qb], 3000);
    bench[B].post_receive(qb, 1);
    bench[A].post_write(qa, 1, &pattern(3000, 1), target);
    bench[A].post_send(qa, 2, b"late");
    let sent = bench.completion(A, qa, Kind::Send, 2);
    assert_eq!(sent.result, Ok(()));
    bench[A].completions.clear();
    drop(sent);
    assert_eq!(bench[A].messages.outstanding() + bench[A].pages.outstanding(), 0, "all is back already");
    let is = |c: &Completion| kind_of(c) == Some(Kind::Receive);
    assert!(bench[B].take_completion(is).is_none(), "and nothing has arrived");
    assert_eq!(bench.message(B, qb, 1)[..], *b"late");
    assert!(bench.fenced_buf(B, qb, target.handle, 1)[..] == pattern(3000, 1)[..]);
    bench.finish();
}

#[test]
fn a_send_without_a_receive_is_counted_and_ends_the_connection() {
    let mut bench = bench(1, FaultPlan::default());
    let world = bench.harness.world.clone();
    let [qa, qb] = bench.connect();
    bench[A].post_send(qa, 1, b"not expected");
    let sent = bench.completion(A, qa, Kind::Send, 1);
    assert_eq!(sent.result, Err(WorkError::PeerViolation));
    bench.end(A, qa);
    assert!(matches!(bench.end(B, qb), DisconnectReason::PeerViolation(_)));
    assert_eq!(world.violations(), Violations { receiver_not_ready: 1, ..Violations::default() });
}

#[test]
fn a_receive_in_time_saves_the_connection_but_not_the_record() {
    let mut bench = bench(1, FaultPlan::default());
    let world = bench.harness.world.clone();
    let [qa, qb] = bench.connect();
    bench[A].post_send(qa, 1, b"too early");
    bench.until("it is noticed", |_| (world.violations().receiver_not_ready == 1).then_some(()));
    bench[B].post_receive(qb, 1);
    assert_eq!(bench.message(B, qb, 1)[..], *b"too early");
    assert_eq!(bench.completion(A, qa, Kind::Send, 1).result, Ok(()));
    bench.close([qa, qb]);
    assert_eq!(world.violations().receiver_not_ready, 1);
}

#[test]
fn a_receive_that_is_too_small_is_counted() {
    let mut bench = bench(1, FaultPlan::default());
    let large = QueuePairCapacity { receive_len_max: 1025, ..CAPACITY };
    let [qa, qb] = bench.connect_with(CAPACITY, large);
    bench[B].post_receive(qb, 1);
    bench.close([qa, qb]);
    let expected = Violations { receives_too_small: 1, ..Violations::default() };
    assert_eq!(bench.harness.world.violations(), expected);
}

#[test]
fn a_fence_is_late_though_nobody_is_there() {
    let mut bench = bench(1, FaultPlan { fence_pending: Odds::ALWAYS, ..FaultPlan::default() });
    let [qa, qb] = bench.connect();
    let target = bench.offer_write(B, [qa, qb], 100);
    // Leaves before the fence, and arrives while it is pending: the handle is dead from the call on.
    bench[A].post_write(qa, 1, &[1; 100], target);
    bench[A].provider().ring_doorbells();
    assert!(matches!(bench[B].fence(qb, target.handle, 5), Some(Fence::Pending)));
    assert!(bench[B].fence(qb, target.handle, 6).is_none(), "it is being fenced already");
    bench.refused(A, [qa, qb], Kind::Write, 1, WorkError::RemoteAccess);
    bench.finish();
}

#[test]
fn a_fence_waits_for_what_is_under_way() {
    let mut pending = 0;
    for seed in 0..40 {
        let mut bench = Bench::new(Simulated::new(seed, FaultPlan::default()));
        let [qa, qb] = bench.connect();
        let target = bench.offer_write(B, [qa, qb], 50_000);
        bench[A].post_write(qa, 1, &pattern(50_000, 1), target);
        for _ in 0..2 {
            bench.turn();
        }
        if let Some(Fence::Pending) = bench[B].fence(qb, target.handle, 5) {
            pending += 1;
            let is = |c: &Completion| kind_of(c).is_none();
            let done = bench.until("the fence is done", |bench| bench[B].take_completion(is));
            assert_eq!((done.id, done.result), (5, Ok(())));
            assert_eq!(
                bench.completion(A, qa, Kind::Write, 1).result,
                Ok(()),
                "it was let in before the fence"
            );
        }
        bench.finish();
    }
    assert!(pending > 3, "{pending} of 40 fences found a Write half placed");
}

#[test]
fn a_late_invalidation_ends_the_connection_on_some_hardware() {
    let mut bench = bench(1, FaultPlan { late_invalidate_refused: Odds::ALWAYS, ..FaultPlan::default() });
    let [qa, qb] = bench.connect();
    let target = bench.offer_write(B, [qa, qb], 100);
    bench[B].post_receive(qb, 1);
    bench.fenced_buf(B, qb, target.handle, 1);
    bench[A].post_send_with_invalidate(qa, 1, target.handle);
    assert!(matches!(bench.end(B, qb), DisconnectReason::PeerViolation(_)));
    assert_eq!(bench.end(A, qa), DisconnectReason::Work(WorkError::RemoteAccess));
    bench.finish();
}

#[test]
fn completions_of_different_queue_pairs_overtake_each_other() {
    // How often neighbours in the completion queue are of different queue pairs.
    let changes = |reorder: Odds, seed: u64| {
        let mut bench = bench(seed, FaultPlan { reorder, ..FaultPlan::default() });
        let connections: Vec<_> = (0..4).map(|_| bench.connect()).collect();
        for &[qa, qb] in &connections {
            for id in 0..6 {
                bench[B].post_receive(qb, id);
                bench[A].post_send(qa, id, b"x");
            }
        }
        bench[A].provider().ring_doorbells();
        let world = bench.harness.world.clone();
        world.advance_to(world.now() + Duration::from_millis(1));
        bench.turn();
        let order: Vec<u32> = bench[B].completions.iter().map(|c| c.queue_pair.index).collect();
        assert_eq!(order.len(), 24, "and the bench checks the order within each queue pair");
        bench.finish();
        order.windows(2).filter(|pair| pair[0] != pair[1]).count()
    };
    let [in_order, reordered] =
        [Odds::NEVER, Odds::ALWAYS].map(|reorder| (0..10).map(|seed| changes(reorder, seed)).sum::<usize>());
    // In order there are hardly more than the three that four queue pairs need.
    assert!(in_order < 80 && reordered > 130, "{in_order} changes in order, {reordered} reordered");
}

#[test]
fn slow_peers_and_delays_take_time() {
    let time_of_a_send = |plan: FaultPlan| {
        let mut bench = bench(1, plan);
        let [qa, qb] = bench.connect();
        bench[B].post_receive(qb, 1);
        let start = bench.harness.world.now();
        bench[A].post_send(qa, 1, b"x");
        bench.message(B, qb, 1);
        let took = bench.harness.world.now() - start;
        bench.finish();
        took
    };
    assert_eq!(time_of_a_send(FaultPlan::default()), MICROSECOND);
    let slow = FaultPlan { slow_peer: Odds::ALWAYS, slow_factor: 50, ..FaultPlan::default() };
    assert_eq!(time_of_a_send(slow), 50 * MICROSECOND);
    assert!(time_of_a_send(FaultPlan { delay: Odds::ALWAYS, ..FaultPlan::default() }) > 10 * MICROSECOND);
}

#[test]
fn queue_pairs_are_limited() {
    let world = World::new(1, FaultPlan::default());
    let mut sim = world.provider_with("small", Limits { queue_pairs: 2, completions: 50, ..LIMITS });
    let small = QueuePairCapacity { receives: 1, sends: 1, exposures: 1, ..CAPACITY };
    let first = sim.connect("x", b"", small).expect("one");
    sim.connect("x", b"", small).expect("two");
    let third = sim.connect("x", b"", small).expect_err("three");
    assert!(matches!(third, FabricError::Limit { what: "queue pairs", wanted: 3, limit: 2, .. }), "{third}");
    // An end that was taken note of makes room.
    while world.advance() {}
    let ended = std::iter::from_fn(|| sim.poll_event()).count();
    assert_eq!(ended, 2);
    assert_ne!(sim.connect("x", b"", small).expect("one again"), first);
}

#[test]
fn run_moves_time_when_all_are_idle_and_says_how_it_ended() {
    let world = World::new(1, FaultPlan::default());
    let mut sim = world.provider("lonely");
    sim.connect("absent", b"", CAPACITY).expect("connecting starts");
    let mut scratch = VecDeque::with_capacity(4);
    let mut pass = |now: Duration| {
        let _ = sim.poll(now, &mut scratch, 4);
        match sim.poll_event() {
            Some(Event::Disconnected { .. }) => Run::Done,
            Some(_) => Run::Busy,
            None => Run::Idle(Some(now + Duration::from_nanos(1))),
        }
    };
    assert!(!world.run(3, &mut pass), "three passes are too few");
    assert!(world.run(1_000_000, &mut pass), "then it learns that there is no listener");
    assert!(!world.run(1_000_000, |_| Run::Idle(None)), "and nothing more happens");
    assert!(world.next_event().is_none());
}

#[test]
#[should_panic(expected = "but the simulated time is")]
fn a_clock_that_is_not_the_worlds_is_noticed() {
    let world = World::new(1, FaultPlan::default());
    let mut sim = world.provider("late");
    world.advance_to(MICROSECOND);
    sim.poll(Duration::ZERO, &mut VecDeque::new(), 1);
}

#[test]
fn a_provider_sleeps_only_if_there_is_nothing_to_harvest() {
    let mut bench = bench(1, FaultPlan::default());
    let [qa, qb] = bench.connect();
    bench[B].post_receive(qb, 1);
    assert!(bench[B].provider().arm());
    assert!(bench[B].provider().descriptor().is_none(), "simulated time wakes no thread");
    bench[B].provider().disarm();
    bench[A].post_send(qa, 1, b"x");
    bench[A].provider().ring_doorbells();
    let world = bench.harness.world.clone();
    assert!(bench[B].provider().poll_timeout().is_some());
    world.advance();
    assert!(!bench[B].provider().arm(), "a message is there");
    bench.message(B, qb, 1);
    assert!(bench[B].provider().arm());
    bench.finish();
}
