//! Clients that take payload memory and do nothing with it: the others go on, and the greedy ones end.

use std::sync::LazyLock;
use std::time::Duration;

use stag_fabric::sim::{FaultPlan, Random, World, sweep};
use stag_rpc::{CallError, CallId, CallRefused, Chunks, EngineConfig};

use crate::support::program::{ECHO, PUT, pattern, sum};
use crate::support::{Bench, Ended, bytes, request, request_for, small};

/// Octets of the data of one Call here: three of them are all memory that there is.
pub(crate) const LARGE: usize = 300 << 10;

fn bench(clients: usize) -> Bench {
    let config = EngineConfig { connections_max: 16, receives_max: 256, ..small() };
    Bench::with(config, config, clients)
}

/// Begins a Call with `len` octets of data, at most [`LARGE`].
pub(crate) fn put(bench: &mut Bench, client: usize, len: usize) -> Result<CallId, CallRefused> {
    static DATA: LazyLock<Vec<u8>> = LazyLock::new(|| pattern(1, LARGE));
    let chunks = Chunks::read(bench.clients[client].data(&DATA[..len]));
    bench.begin(client, request(PUT), chunks, |writer| {
        writer.u32(1)?;
        writer.eligible_opaque_reduced(len as u32).map(|_| ())
    })
}

/// Lets nothing be read of a client's memory, and begins as many Calls as it may.
fn fall_silent(bench: &mut Bench, client: usize, len: usize) {
    bench.clients[client].engine.provider_mut().set_readable(Some(0));
    for _ in 0..8 {
        if put(bench, client, len).is_err() {
            break;
        }
    }
}

/// An honest Call with much data is executed with its data, and soon.
#[track_caller]
pub(crate) fn check_honest(bench: &mut Bench, within: Duration) {
    let begun = bench.world.now();
    let call = put(bench, 0, LARGE).expect("a credit");
    let done = bench.finish(0, call);
    let expected = [0u32.to_be_bytes(), sum(&pattern(1, LARGE)).to_be_bytes()].concat();
    assert_eq!(bytes(&done), expected, "its data was there");
    let took = bench.world.now() - begun;
    assert!(took < within, "it took {took:?}");
    bench.check_alive(0);
}

#[track_caller]
pub(crate) fn close(mut bench: Bench) {
    for client in &mut bench.clients {
        client.engine.provider_mut().set_writable(true);
        client.engine.provider_mut().set_readable(None);
    }
    bench.run_for(Duration::from_secs(1));
    bench.close();
}

/// Clients that never answered: they hold next to nothing, and not for ever.
#[test]
fn clients_that_never_let_their_chunks_be_read() {
    let mut bench = bench(12);
    bench.check_alive(0);
    (1..12).for_each(|client| fall_silent(&mut bench, client, LARGE));
    bench.run_for(Duration::from_millis(100));
    let pool = &bench.server.memory.pools.payload;
    assert!(pool.outstanding() <= pool.transit() / 4, "{} pages are held", pool.outstanding());
    check_honest(&mut bench, Duration::from_millis(100));
    // The server has nothing to do, and knows it.
    let now = bench.world.now();
    let done: usize = (0..4).map(|_| bench.server.poll(now)).last().unwrap_or(1);
    assert_eq!(done, 0);
    let limit = bench.server.engine.config().peer_timeout;
    bench.run_for(limit + Duration::from_secs(5));
    assert_eq!(bench.server.engine.statistics().peers_stuck, 11);
    assert_eq!(bench.server.memory.pools.payload.outstanding(), 0);
    check_honest(&mut bench, Duration::from_millis(100));
    close(bench);
}

/// Clients that were trusted, and then hold as much as they can get: who needs the memory gets it.
#[test]
fn clients_that_fall_silent_yield_to_those_who_need_the_memory() {
    let mut bench = bench(12);
    for client in (0..12).rev() {
        let call = put(&mut bench, client, LARGE).expect("a credit");
        bench.finish(client, call);
    }
    (1..12).for_each(|client| fall_silent(&mut bench, client, LARGE));
    bench.run_for(Duration::from_millis(100));
    // What they do not let be read is taken back before they end for it.
    check_honest(&mut bench, Duration::from_millis(100));
    check_honest(&mut bench, Duration::from_millis(100));
    assert_eq!(bench.server.engine.statistics().peers_stuck, 0);
    // Clients that go on after all have their Calls executed, with all of their data.
    (1..12).for_each(|client| bench.clients[client].engine.provider_mut().set_readable(None));
    bench.run(|bench| bench.clients[1..].iter().all(|client| client.done.len() >= 3));
    bench.run_for(Duration::from_secs(1));
    let expected = [0u32.to_be_bytes(), sum(&pattern(1, LARGE)).to_be_bytes()].concat();
    for client in &mut bench.clients[1..] {
        for done in client.done.drain(..) {
            assert_eq!(bytes(&Ended::of(done)), expected);
        }
    }
    close(bench);
}

/// One that lets a little be read now and then keeps what it does not let be read no longer than anybody.
#[test]
fn a_trickle_keeps_no_other_pull_alive() {
    let mut bench = bench(2);
    bench.check_alive(0);
    let call = put(&mut bench, 1, 4096).expect("a credit");
    bench.finish(1, call);
    fall_silent(&mut bench, 1, 16 << 10);
    for _ in 0..4 {
        bench.run_for(Duration::from_secs(20));
        bench.clients[1].engine.provider_mut().set_readable(Some(4));
    }
    assert_eq!(bench.server.engine.statistics().peers_stuck, 1);
    assert_eq!(bench.server.memory.pools.payload.outstanding(), 0);
    check_honest(&mut bench, Duration::from_millis(100));
    close(bench);
}

/// Each whole Read that it lets be done is of use to its own Call alone.
#[test]
fn a_call_that_is_done_now_and_then_keeps_no_other_pull_alive() {
    let mut bench = bench(2);
    bench.check_alive(0);
    // A single octet comes in one piece.
    let call = put(&mut bench, 1, 1).expect("a credit");
    bench.finish(1, call);
    fall_silent(&mut bench, 1, 1);
    for _ in 0..3 {
        bench.run_for(Duration::from_secs(18));
        assert_eq!(bench.server.engine.statistics().peers_stuck, 0);
        // Reads may be served in any order, and are done in that in which they were posted.
        let before = bench.clients[1].done.len();
        for _ in 0..8 {
            if bench.clients[1].done.len() == before {
                bench.clients[1].engine.provider_mut().set_readable(Some(1));
                bench.run_for(Duration::from_millis(100));
            }
        }
        assert!(bench.clients[1].done.len() > before);
    }
    assert!(bench.clients[1].done.len() < 8, "one is left that waits");
    bench.run_for(Duration::from_secs(8));
    assert_eq!(bench.server.engine.statistics().peers_stuck, 1);
    assert_eq!(bench.server.memory.pools.payload.outstanding(), 0);
    close(bench);
}

/// A Long Call waits for memory for longer than one whose client can be told to retry.
#[test]
fn a_long_call_is_patient() {
    let mut bench = Bench::new();
    bench.check_alive(0);
    let pool = bench.server.memory.pools.payload.clone();
    for (back_after, is_answered) in [(15, true), (25, false)] {
        let hoard: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        let text = pattern(2, 3000);
        let encode = |writer: &mut stag_wire::xdr::Writer<'_>| writer.opaque(&text);
        let long = bench.begin(0, request_for(ECHO, 4000), Chunks::default(), encode).expect("a credit");
        bench.run_for(Duration::from_secs(back_after));
        drop(hoard);
        let result = bench.finish(0, long).result;
        match is_answered {
            true => assert_eq!(result.map(|results| results.len()), Ok(3004)),
            false => assert_eq!(result, Err(CallError::Chunk)),
        }
    }
    bench.close();
}

/// Every other page is free: Long Calls, data and Long Replies take as many pieces as pages.
#[test]
fn memory_in_single_pages_serves_everybody() {
    let mut bench = Bench::new();
    let pool = bench.server.memory.pools.payload.clone();
    let mut hoard: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    hoard.sort_by_key(|buf| buf.as_ptr() as usize);
    let mut at = 0;
    hoard.retain(|_| {
        at += 1;
        at % 2 == 0
    });
    check_honest(&mut bench, Duration::from_secs(1));
    let text = pattern(7, 200_001);
    let done = bench.call(request_for(ECHO, 210_000), Chunks::default(), |writer| writer.opaque(&text));
    assert_eq!(bytes(&done), crate::support::opaque(&text));
    drop(hoard);
    bench.close();
}

/// What a client of the storm does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    Honest,
    /// Makes large Calls all the time, and lets all be read.
    Greedy,
    /// Lets nothing be read.
    Silent,
    /// Lets a little be read now and then.
    Trickling,
}

const MANNERS: [Manner; 8] = [
    Manner::Honest,
    Manner::Honest,
    Manner::Greedy,
    Manner::Greedy,
    Manner::Silent,
    Manner::Silent,
    Manner::Trickling,
    Manner::Trickling,
];

/// Whatever the others do: each honest Call ends within a bounded time, and at the end all memory is back.
#[test]
fn honest_calls_end_in_a_storm() {
    sweep("honest_calls_end_in_a_storm", 0..30, |seed| {
        let mut random = Random::new(seed);
        let config = EngineConfig { connections_max: 16, receives_max: 256, ..small() };
        let world = World::new(seed, FaultPlan::default());
        let mut bench = Bench::in_world(world, config, config, MANNERS.len());
        bench.establish();
        (0..MANNERS.len()).for_each(|client| bench.check_alive(client));
        for round in 0..40 {
            for (client, manner) in MANNERS.into_iter().enumerate() {
                if bench.closed(client).is_some() {
                    continue;
                }
                let sim = bench.clients[client].engine.provider_mut();
                match manner {
                    // Some of them are trusted before they fall silent.
                    Manner::Silent if round > random.below(20) => sim.set_readable(Some(0)),
                    Manner::Trickling if round > 3 => sim.set_readable(Some(random.below(3))),
                    _ => {}
                }
                let count = if manner == Manner::Honest { 1 } else { random.below(4) };
                let mut calls = Vec::new();
                for _ in 0..count {
                    let len = [1, 4096, 50_000, LARGE][random.below(4) as usize];
                    calls.extend(put(&mut bench, client, len));
                }
                if manner == Manner::Honest && !calls.is_empty() {
                    let begun = bench.world.now();
                    let mut ended = false;
                    while !ended && bench.world.now() < begun + Duration::from_secs(8) {
                        bench.run_for(Duration::from_millis(5));
                        ended = bench.clients[client].done.iter().any(|done| done.call == calls[0]);
                    }
                    assert!(ended, "client {client} in round {round}: no answer");
                    assert_eq!(bench.closed(client), None, "client {client} in round {round}");
                }
            }
            bench.clients.iter_mut().for_each(|client| client.done.clear());
            bench.run_for(Duration::from_millis(random.below(800)));
        }
        close(bench);
    });
}
