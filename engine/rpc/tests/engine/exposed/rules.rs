//! Rule by rule, between engines of ours.

use std::time::Duration;

use stag_fabric::sim::{FaultPlan, World};
use stag_rpc::{Backoff, CallError, Chunks, ClientPolicy, EngineConfig, ReplyMode, Request};

use super::{EXPOSED, bench, check_big, check_exposed, config, left, unknown};
use crate::support::program::{BIG, ECHO, GET, LATER, ONCE, pattern};
use crate::support::{Bench, bytes, error, opaque, request, request_for, small, words};

/// RR-4.1-a, RR-4.1.1-a, RR-4.1.2-a, RR-4.1.3-a
#[test]
fn replies_of_any_size_arrive_whole() {
    let mut bench = bench(config(), config());
    let lens = [0, 1, 100, 900, 1000, 1024, 4096, 5000, 65_536, 300_001, 1 << 20];
    for len in lens {
        check_big(&mut bench, len);
    }
    check_exposed(&mut bench, 7);
    assert_eq!(bench.clients[0].engine.statistics().replies_pulled, 7);
    assert_eq!(bench.clients[0].engine.statistics().reply_chunks, 0);
    bench.close();
}

/// RR-4.1.1-a: far beyond what a Reply chunk may hold.
#[test]
fn replies_of_64_mib_arrive_whole() {
    let server = EngineConfig { exposed_len_max: (64 << 20) + 4096, ..config() };
    let world = World::new(1, FaultPlan::default());
    let mut bench = Bench::with_memory(world, server, config(), 1, 200 << 20);
    bench.establish();
    for len in [(1 << 20) + 5000, 5 << 20, 64 << 20] {
        check_big(&mut bench, len);
    }
    check_exposed(&mut bench, 3);
    // One that is longer than what is exposed is refused.
    let short = EngineConfig { exposed_len_max: 2 << 20, ..config() };
    let mut narrow = Bench::with_memory(World::new(2, FaultPlan::default()), short, config(), 1, 16 << 20);
    narrow.establish();
    let done = narrow.call(unknown(BIG), Chunks::default(), |writer| words(writer, &[1, 3 << 20]));
    assert_eq!(error(&done), CallError::Chunk);
    narrow.close();
    bench.close();
}

/// RR-4.1.1-b, RR-P-1, RR-P-2, RR-6-a: unless both ends have it switched on, everything is as RFC 8166 says.
#[test]
fn both_ends_have_to_want_it() {
    let off = small();
    for (server, client) in [(off, off), (config(), off), (off, config())] {
        let mut bench = bench(server, client);
        let ask = |bench: &mut Bench, request: Request<'_>, len| {
            bench.call(request, Chunks::default(), |writer| words(writer, &[7, len]))
        };
        // With a Reply chunk of the largest size.
        check_big(&mut bench, 300_000);
        let done = ask(&mut bench, unknown(BIG), (1 << 20) + 5000);
        assert_eq!(error(&done), CallError::Chunk, "longer than the Reply chunk");
        let done = ask(&mut bench, left(BIG, 100_000), 50_000);
        assert_eq!(bytes(&done), opaque(&pattern(7, 50_000)), "there is a Reply chunk after all");
        let done = ask(&mut bench, request(BIG), 50_000);
        assert_eq!(error(&done), CallError::Chunk, "its caller said that it is short");
        assert_eq!(bench.server.engine.statistics().replies_exposed, 0);
        bench.close();
    }
}

/// RR-4.1-b, RR-4.1-c: results go to their Write chunks first.
#[test]
fn write_chunks_are_used_all_the_same() {
    let mut bench = bench(config(), config());
    let buf = bench.clients[0].space(9000);
    // The second result is eligible, but has no chunk.
    let done = bench.call(unknown(GET), Chunks::write(buf), |writer| words(writer, &[5, 2, 9000, 70_000]));
    let expected = [&9000u32.to_be_bytes()[..], &opaque(&pattern(6, 70_000))].concat();
    assert_eq!(bytes(&done), expected);
    assert_eq!(done.reduced_len, 9000);
    assert!(done.written == [(0, pattern(5, 9000))]);
    check_exposed(&mut bench, 1);
    bench.close();
}

/// RR-4.1-d: a Reply chunk that is too small comes back unused.
#[test]
fn a_reply_chunk_that_is_too_small_comes_back_unused() {
    let mut bench = bench(config(), config());
    let small = Request { reply_mode: ReplyMode::Chunk, ..request_for(BIG, 2000) };
    let done = bench.call(small, Chunks::default(), |writer| words(writer, &[5, 70_000]));
    assert_eq!(bytes(&done), opaque(&pattern(5, 70_000)));
    check_exposed(&mut bench, 1);
    // One that is large enough is used.
    let large = Request { reply_mode: ReplyMode::Chunk, ..request_for(BIG, 80_000) };
    let done = bench.call(large, Chunks::default(), |writer| words(writer, &[5, 70_000]));
    assert_eq!(bytes(&done), opaque(&pattern(5, 70_000)));
    check_exposed(&mut bench, 1);
    bench.close();
}

/// RR-4.1.2-a: a Reply that is longer than its caller, or this end, takes is not read; RDMA_DONE is sent all the same.
#[test]
fn limits_of_the_caller_and_of_the_engine_hold() {
    let mut bench = bench(config(), EngineConfig { pull_len_max: 100_000, ..config() });
    for (request, len, limit) in [(left(BIG, 50_000), 60_000, 50_032), (unknown(BIG), 120_000, 100_000)] {
        let done = bench.call(request, Chunks::default(), |writer| words(writer, &[5, len]));
        assert_eq!(error(&done), CallError::ReplyTooLong { len: u64::from(len) + 28, limit });
    }
    check_big(&mut bench, 90_000);
    check_exposed(&mut bench, 3);
    assert_eq!(bench.clients[0].engine.statistics().replies_pulled, 1);
    bench.close();
}

/// RR-P-8, RR-P-9: no more Replies are exposed than were announced; the next ones wait for RDMA_DONE.
#[test]
fn replies_wait_for_a_place() {
    for exposed_replies in [1, 3] {
        let server = EngineConfig { exposed_replies, ..config() };
        let mut bench = bench(server, config());
        check_big(&mut bench, 10);
        let connection = bench.connections[0];
        let ask = |bench: &mut Bench, seed| {
            // A grant grows with use.
            bench.run(|bench| bench.clients[0].engine.credits_available(connection) > 0);
            bench.begin(0, unknown(BIG), Chunks::default(), |writer| words(writer, &[seed, 40_000]))
        };
        let calls: Vec<_> = (0..8).map(|seed| ask(&mut bench, seed).expect("a credit")).collect();
        for (seed, call) in (0..).zip(calls) {
            let done = bench.finish(0, call);
            assert_eq!(bytes(&done), opaque(&pattern(seed, 40_000)));
        }
        check_exposed(&mut bench, 8);
        bench.close();
    }
}

/// RR-4.1.4-a, RR-4.1.4-b, RR-4.1.4-c: RDMA_DONE invalidates where both ends said that they can.
#[test]
fn rdma_done_invalidates_where_both_ends_can() {
    for (server, client) in [(true, true), (true, false), (false, true)] {
        let end = |remote_invalidation| EngineConfig { remote_invalidation, ..config() };
        let mut bench = bench(end(server), end(client));
        check_big(&mut bench, 50_000);
        check_exposed(&mut bench, 1);
        let expected = u64::from(!(server && client));
        assert_eq!(bench.server.engine.statistics().local_fences, expected, "{server} {client}");
        bench.close();
    }
}

/// RR-4.1.3-c: the Reply of a Call that was given up gets an RDMA_DONE, whether it came before that or after.
#[test]
fn calls_are_given_up_at_every_step() {
    let mut steps = 0;
    for step in 0..200 {
        let mut bench = bench(config(), config());
        let call = bench.begin(0, unknown(BIG), Chunks::default(), |writer| words(writer, &[5, 70_000]));
        let call = call.expect("a credit");
        for _ in 0..step {
            bench.step();
        }
        if !bench.clients[0].done.is_empty() {
            bench.close();
            break;
        }
        steps += 1;
        bench.clients[0].engine.cancel(call);
        let done = bench.finish(0, call);
        assert_eq!(error(&done), CallError::Cancelled, "after {step} steps");
        // The Reply brings its credit back.
        let connection = bench.connections[0];
        bench.run(|bench| bench.clients[0].engine.credits_available(connection) > 0);
        check_big(&mut bench, 50_000);
        check_exposed(&mut bench, 2);
        bench.close();
    }
    assert!(steps > 5, "some steps before it is over: {steps}");
}

/// The connection ends at every step: all memory is back, and the Call ends, or is sent again.
#[test]
fn connections_end_at_every_step() {
    for is_kept in [false, true] {
        for step in 0..60 {
            let mut bench = Bench::in_world(World::new(3, FaultPlan::default()), config(), config(), 0);
            let backoff = Backoff { first: Duration::from_millis(1), ..Backoff::default() };
            let reconnect = is_kept.then_some(backoff);
            bench.add_client_with(config(), ClientPolicy { reconnect, ..ClientPolicy::default() });
            bench.establish();
            let call = bench.begin(0, unknown(BIG), Chunks::default(), |writer| words(writer, &[5, 70_000]));
            let call = call.expect("a credit");
            for _ in 0..step {
                bench.step();
            }
            let connection = bench.connections[0];
            bench.clients[0].engine.provider_mut().cut(connection);
            let done = bench.finish(0, call);
            match is_kept {
                true => assert_eq!(bytes(&done), opaque(&pattern(5, 70_000))),
                false if done.result.is_ok() => {}
                false => assert!(matches!(error(&done), CallError::ConnectionLost | CallError::NotSent)),
            }
            bench.close();
        }
    }
}

/// Answers that come later, and those that are kept for duplicates, are exposed like any other.
#[test]
fn late_answers_are_exposed() {
    let mut bench = bench(config(), config());
    let text = pattern(9, 30_000);
    let done = bench.call(unknown(LATER), Chunks::default(), |writer| {
        writer.u64(500)?;
        writer.opaque(&text)
    });
    assert_eq!(bytes(&done), opaque(&text));
    let done = bench.call(unknown(ONCE), Chunks::default(), |writer| {
        writer.u64(0)?;
        writer.u32(10_000)
    });
    assert_eq!(bytes(&done).len(), 4 + 40_000);
    check_exposed(&mut bench, 2);
    bench.close();
}

/// RR-P-12: reverse Calls on the same connection are not disturbed.
#[test]
fn reverse_calls_go_on_beside_exposed_replies() {
    let both = EngineConfig { reverse_credits: 2, ..config() };
    let mut bench = bench(both, both);
    for round in 0..10 {
        check_big(&mut bench, 20_000 + round);
        let connection = bench.server.engine.services_mut().0.called_on.expect("it was called");
        let back = Request { timeout: Duration::from_secs(1), ..request_for(ECHO, 64) };
        let call = bench.server.engine.call_back(connection, &back, |writer| writer.opaque(b"back"));
        call.expect("a reverse Call");
        check_big(&mut bench, 30_000);
        bench.run(|bench| bench.server.done.pop().is_some());
    }
    check_exposed(&mut bench, 20);
    bench.close();
}

/// A server that stops lets its client read what it exposed, and an engine that has it switched on takes no memory for those
/// who do not ask for it.
#[test]
fn a_server_stops_after_its_client_has_read() {
    let mut bench = bench(config(), config());
    let call = bench.begin(0, unknown(BIG), Chunks::default(), |writer| words(writer, &[5, 70_000]));
    let call = call.expect("a credit");
    bench.run(|bench| bench.server.engine.statistics().replies_exposed == 1);
    let now = bench.world.now();
    stag_runtime::Poller::stop(&mut bench.server.engine, now);
    let done = bench.finish(0, call);
    assert_eq!(bytes(&done), opaque(&pattern(5, 70_000)));
    bench.run(|bench| stag_runtime::Poller::is_drained(&bench.server.engine));
    assert_eq!(bench.server.engine.statistics().replies_taken, 1);
    bench.close();
}

#[test]
fn numbers_out_of_range_are_refused() {
    let bad = [
        EngineConfig { exposed_replies: 257, ..small() },
        EngineConfig { exposed_len_max: 100, ..small() },
        EngineConfig { pull_len_max: (1 << 30) + 1, ..small() },
    ];
    assert!(bad.iter().all(|config| config.check().is_err()));
    assert!(EngineConfig { exposed_replies: 256, pull_len_max: 1 << 30, ..small() }.check().is_ok());
    assert_eq!(config().serving_capacity().receives, small().serving_capacity().receives + EXPOSED);
}
