//! Calls that end otherwise than by their Reply: cancelled, timed out, cut off; and engines that stop.

use std::time::Duration;

use stag_fabric::Provider;
use stag_fabric::sim::{FaultPlan, Odds, World, sweep};
use stag_rpc::{CallError, CallRefused, Chunks, CloseReason, ConnectionEvent, Request};
use stag_runtime::Poller;

use crate::support::program::{BIG, ECHO, GET, LATER, PUT, pattern};
use crate::support::{Bench, Ended, IS_VERSION_2, bytes, opaque, request, request_for, small, words};

/// A Call that uses all there is: a Long Call with a data chunk, a Write chunk and room for a long Reply.
fn begin_large(bench: &mut Bench, timeout: Duration) -> Option<stag_rpc::CallId> {
    let mut chunks = Chunks::write(bench.clients[0].space(6000));
    chunks.read.push((0, bench.clients[0].data(&pattern(1, 5000))));
    let text = pattern(2, 2000);
    let request = Request { timeout, ..request_for(PUT, 9000) };
    let begun = bench.begin(0, request, chunks, |writer| {
        writer.u32(2)?;
        writer.opaque(&text)?;
        writer.eligible_opaque_reduced(5000).map(|_| ())
    });
    begun.ok()
}

/// Calls of every form, one after the other as credits allow, until the connection is cut at step `death_at`.
/// Returns whether it was cut.
fn run_to_death(death_at: u64, plan: &FaultPlan) -> bool {
    let plan = FaultPlan { death_at: Some(death_at), ..plan.clone() };
    let mut bench = Bench::in_world(World::new(3, plan), small(), small(), 1);
    let (mut begun, mut over) = (0u32, 0u32);
    let mut next = 0;
    bench.run(|bench| {
        let closed = bench.closed(0).is_some();
        if !closed && next < 12 && bench.clients[0].engine.credits_available(bench.connections[0]) > 0 {
            let call = match next % 4 {
                0 => begin_large(bench, Duration::from_secs(1)),
                1 => bench
                    .begin(0, request_for(BIG, 4000), Chunks::default(), |writer| words(writer, &[1, 3000]))
                    .ok(),
                2 => {
                    let chunks = Chunks::write(bench.clients[0].space(5000));
                    bench.begin(0, request_for(GET, 8), chunks, |writer| words(writer, &[1, 1, 4500])).ok()
                }
                _ => bench
                    .begin(0, request_for(LATER, 16), Chunks::default(), |writer| {
                        writer.u64(30)?;
                        writer.opaque(b"text")
                    })
                    .ok(),
            };
            begun += u32::from(call.is_some());
            next += 1;
        }
        for done in std::mem::take(&mut bench.clients[0].done) {
            over += 1;
            match done.result.map(|_| ()) {
                Ok(()) | Err(CallError::ConnectionLost | CallError::NotSent) => {}
                Err(error) => panic!("step {death_at}: {error}"),
            }
        }
        closed || (next == 12 && over == begun)
    });
    assert_eq!(over, begun, "step {death_at}: each Call ends exactly once, before its connection is closed");
    // A client that probes for version 2 connects again when it is cut off there, and goes on.
    let cut = bench.world.steps() >= death_at;
    bench.close();
    cut
}

#[test]
fn death_at_every_step() {
    let mut steps = 0;
    while run_to_death(steps + 1, &FaultPlan::default()) {
        steps += 1;
    }
    assert!(steps > 50, "only {steps} steps");
}

#[test]
fn death_at_every_step_of_a_rough_fabric() {
    let late =
        FaultPlan { fence_pending: Odds::ALWAYS, complete_early: Odds::ALWAYS, ..FaultPlan::default() };
    let mut steps = 0;
    while run_to_death(steps + 1, &late) {
        steps += 1;
    }
    assert!(steps > 50, "only {steps} steps");
}

/// Cancels a large Call after `passes` passes. Returns whether it was over before.
fn cancel_after(passes: usize, plan: &FaultPlan) -> bool {
    let mut bench = Bench::in_world(World::new(5, plan.clone()), small(), small(), 1);
    bench.establish();
    let call = begin_large(&mut bench, Duration::from_secs(1)).expect("a credit");
    for _ in 0..passes {
        bench.step();
    }
    bench.clients[0].engine.cancel(call);
    bench.clients[0].engine.cancel(call);
    bench.run(|bench| !bench.clients[0].done.is_empty());
    let done = bench.clients[0].done.pop().expect("just seen");
    let over = done.result.is_ok();
    assert!(matches!(done.result, Ok(_) | Err(CallError::Cancelled)), "{:?}", done.result);
    assert_eq!(done.written.len(), 1, "its memory is back");
    // 8166-4.4.1-b: whatever the server still does, it does not reach this memory.
    let mut guard: Vec<_> = done.written.into_iter().collect();
    for (_, buf) in &mut guard {
        buf.fill(0xa5);
    }
    bench.run_for(Duration::from_millis(50));
    assert!(guard.iter().all(|(_, buf)| buf.iter().all(|octet| *octet == 0xa5)));
    assert!(bench.clients[0].done.is_empty(), "it ends once");
    drop((guard, done.result));
    if bench.closed(0).is_none() {
        // The late Reply brought the credit back.
        bench.check_alive(0);
    }
    bench.close();
    over
}

#[test]
fn cancelled_at_every_pass() {
    // A server that reads or writes fenced memory loses its connection: that is the fabric's word, not a fault.
    for plan in [FaultPlan::default(), FaultPlan { fence_pending: Odds::ALWAYS, ..FaultPlan::default() }] {
        let mut passes = 0;
        while !cancel_after(passes, &plan) {
            passes += 1;
        }
        assert!(passes > 5, "only {passes} passes");
    }
}

#[test]
fn a_call_times_out_and_its_late_reply_frees_its_credit() {
    let mut bench = Bench::new();
    let request = Request { timeout: Duration::from_millis(30), ..request(LATER) };
    let call = bench.begin(0, request, Chunks::default(), |writer| {
        writer.u64(200_000)?;
        writer.opaque(b"late")
    });
    let done = bench.finish(0, call.expect("a credit"));
    assert_eq!(done.result, Err(CallError::TimedOut));
    let connection = bench.connections[0];
    let available = bench.clients[0].engine.credits_available(connection);
    assert_eq!(available, first_credits() - 1, "the first Call of a connection is not answered yet");
    if available == 0 {
        let refused = bench.begin(0, request, Chunks::default(), |_| Ok(()));
        assert_eq!(refused, Err(CallRefused::NoCredit));
    }
    bench.run_for(Duration::from_millis(300));
    assert!(bench.clients[0].engine.credits_available(connection) > 0);
    bench.check_alive(0);
    bench.close();
}

/// Credits of a connection that its user hears of: the answer to the probe for version 2 grants more than the first.
fn first_credits() -> u32 {
    if IS_VERSION_2 { small().credits_max } else { 1 }
}

#[test]
fn credits_grow_with_use() {
    // 8166-3.3.3-a: one at first; 8166-3.3.1-a: then what the server can give.
    let mut bench = Bench::new();
    let connection = bench.connections[0];
    assert_eq!(bench.clients[0].engine.credits_available(connection), first_credits());
    bench.check_alive(0);
    assert_eq!(bench.clients[0].engine.credits_granted(connection), small().credits_max);
    bench.close();
}

#[test]
fn credits_are_shared_by_many_connections() {
    // 8166-3.3.1-c, d: scarce Receives, more and more connections, all of them busy: no Send finds none.
    let server = stag_rpc::EngineConfig { connections_max: 8, receives_max: 24, ..small() };
    let mut bench = Bench::with(server, small(), 1);
    for round in 0..8 {
        if round > 0 {
            bench.add_client(small());
            bench.establish();
        }
        for _ in 0..40 {
            for client in 0..bench.clients.len() {
                while bench.clients[client].engine.credits_available(bench.connections[client]) > 0 {
                    bench
                        .begin(client, request_for(ECHO, 16), Chunks::default(), |writer| writer.opaque(b"x"))
                        .expect("a credit");
                }
            }
            bench.step();
        }
        bench.run(|bench| {
            bench.clients.iter().zip(&bench.connections).all(|(client, connection)| {
                let granted = client.engine.credits_granted(*connection);
                assert!(granted >= 1, "never 0");
                client.engine.credits_available(*connection) == granted.min(small().credits_max)
            })
        });
        for client in &mut bench.clients {
            for done in client.done.drain(..) {
                assert_eq!(bytes(&Ended::of(done)), opaque(b"x"));
            }
        }
    }
    // One more than there is room for is refused, with a reason.
    bench.add_client(small());
    bench.run(|bench| bench.closed(8).is_some());
    assert!(matches!(bench.closed(8), Some(CloseReason::Fabric(_))));
    bench.close();
}

/// 8166-3.3.1-c: clients that were busy and are idle now keep their credits; those that come after them find some, too.
#[test]
fn connections_that_come_late_find_credits() {
    let server =
        stag_rpc::EngineConfig { credits_max: 32, connections_max: 16, receives_max: 256, ..small() };
    let client = stag_rpc::EngineConfig { credits_max: 32, ..small() };
    let mut bench = Bench::with(server, client, 0);
    let mut granted = Vec::new();
    for index in 0..16 {
        bench.add_client(client);
        bench.establish();
        let connection = bench.connections[index];
        for _ in 0..20 {
            while bench.clients[index].engine.credits_available(connection) > 0 {
                bench
                    .begin(index, request(ECHO), Chunks::default(), |writer| writer.opaque(b"x"))
                    .expect("a credit");
            }
            bench.run_for(Duration::from_millis(1));
            bench.clients[index].done.clear();
        }
        granted.push(bench.clients[index].engine.credits_granted(connection));
    }
    assert_eq!(granted[0], 32, "{granted:?}: alone, it has all it wants");
    assert!(granted.iter().all(|granted| *granted >= 7), "{granted:?}: half of all, less the spare");
    bench.close();
}

/// An engine that slept for long still has its last pass's time when it is called to connect: set-up did not begin
/// then.
#[test]
fn a_connection_begun_after_a_long_sleep_has_its_time() {
    let mut bench = Bench::new();
    bench.check_alive(0);
    let hour = Duration::from_secs(3600);
    let (end, mut late) = (bench.world.now() + hour, small());
    bench.world.advance_to(end);
    late.set_up_timeout = Duration::MAX;
    for config in [small(), late] {
        bench.add_client(config);
        bench.establish();
    }
    bench.close();
}

#[test]
fn segments_beyond_the_queue_pair_wait() {
    // As many regions as a queue pair may expose: the next Call is refused, with its memory untouched.
    let mut bench = Bench::chunked();
    bench.check_alive(0);
    let config = stag_rpc::EngineConfig { ..small() };
    let regions = config.credits_max as usize * 4 + 8;
    let mut begun = 0;
    let refused = loop {
        let mut chunks = Chunks::default();
        for _ in 0..8 {
            chunks.write.push((0, bench.clients[0].space(64)));
        }
        let call = bench.begin(0, request_for(GET, 8), chunks, |writer| words(writer, &[1, 1, 500]));
        match call {
            Ok(_) => begun += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!((begun, refused), (regions / 8, CallRefused::FabricBusy));
    bench.run(|bench| bench.clients[0].done.len() == begun);
    assert!(bench.clients[0].done.iter().all(|done| done.result.is_ok()));
    bench.close();
}

#[test]
fn a_server_that_stops_answers_first() {
    sweep("a_server_that_stops_answers_first", 0..20, |seed| {
        let mut bench = Bench::in_world(World::new(seed, FaultPlan::default()), small(), small(), 1);
        bench.establish();
        bench.check_alive(0);
        let calls: Vec<_> = [0u64, 100, 2000]
            .iter()
            .map(|delay| {
                let encode = |writer: &mut stag_wire::xdr::Writer<'_>| {
                    writer.u64(*delay)?;
                    writer.opaque(b"before the end")
                };
                bench.begin(0, request(LATER), Chunks::default(), encode).expect("a credit")
            })
            .collect();
        bench.run(|bench| bench.server.engine.services_mut().0.executed == 4);
        let now = bench.world.now();
        bench.server.engine.stop(now);
        for call in calls {
            let done = bench.finish(0, call);
            assert_eq!(bytes(&done), opaque(b"before the end"));
        }
        bench.run(|bench| bench.server.engine.is_drained() && bench.clients[0].engine.is_drained());
        let late = bench.add_client(small());
        bench.run(|bench| bench.closed(late).is_some());
        assert!(
            !bench.clients[late]
                .events
                .iter()
                .any(|event| matches!(event, ConnectionEvent::Established { .. }))
        );
        bench.close();
    });
}

/// A client that calls and calls does not keep a server from its end.
#[test]
fn a_server_stops_under_load() {
    let config = stag_rpc::EngineConfig { credits_max: 32, ..small() };
    let mut bench = Bench::with(config, config, 1);
    let (connection, begun_at) = (bench.connections[0], bench.world.now());
    let (mut delay, mut stopped_at) = (0, None);
    bench.run(|bench| {
        // Slow ones, as of a disk: some are always under way.
        delay = (delay + 700) % 5000;
        let _ = bench.begin(0, request(LATER), Chunks::default(), |writer| {
            writer.u64(1000 + delay)?;
            writer.opaque(b"more")
        });
        let now = bench.world.now();
        if stopped_at.is_none() && now > begun_at + Duration::from_millis(50) {
            assert!(bench.clients[0].engine.credits_granted(connection) > 16, "it is not busy");
            stopped_at = Some(now);
            bench.server.engine.stop(now);
        }
        let late = stopped_at.is_some_and(|stopped_at| now > stopped_at + Duration::from_millis(50));
        assert!(!late, "no end, and {} Calls answered", bench.clients[0].done.len());
        bench.server.engine.is_drained()
    });
    bench.run(|bench| bench.closed(0).is_some());
    let executed = bench.server.engine.services_mut().0.executed;
    let answered = bench.clients[0].done.iter().filter(|done| done.result.is_ok()).count() as u64;
    assert_eq!(answered, executed, "what was begun is answered");
    bench.close();
}

/// Payload memory is all in use: Calls that bring data wait for some, and only when there is none for long they do without.
#[test]
fn calls_wait_for_payload_memory() {
    for (back_after, is_missing) in [(Duration::from_millis(300), false), (Duration::from_secs(3), true)] {
        let mut bench = Bench::chunked();
        bench.check_alive(0);
        let pool = bench.server.memory.pools.payload.clone();
        let hoard: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        let chunks = Chunks::read(bench.clients[0].data(&pattern(1, 5000)));
        let encode = |writer: &mut stag_wire::xdr::Writer<'_>| {
            writer.u32(1)?;
            writer.eligible_opaque_reduced(5000).map(|_| ())
        };
        let data = bench.begin(0, request_for(PUT, 8), chunks, encode).expect("a credit");
        let text = pattern(2, 3000);
        let encode = |writer: &mut stag_wire::xdr::Writer<'_>| {
            writer.u32(1)?;
            writer.opaque(&text)
        };
        let long = bench.begin(0, request_for(PUT, 8), Chunks::default(), encode).expect("a credit");
        bench.run_for(back_after);
        drop(hoard);
        let missing = u32::from(is_missing).to_be_bytes();
        assert_eq!(bytes(&bench.finish(0, data))[..4], missing);
        // Its client cannot be told to retry, so it waits longer.
        let long = bench.finish(0, long).result;
        assert_eq!(long.map(|answer| answer[..4] == [0; 4]), Ok(true));
        bench.close();
    }
}

#[test]
fn too_few_message_buffers_are_no_engine() {
    let world = World::new(1, FaultPlan::default());
    let memory = stag_rpc::Memory::on_demand(&small(), 1 << 20).expect("a few megabytes");
    let engine = |config| {
        let mut sim = world.provider("server");
        sim.register(&memory.arena).expect("an arena");
        stag_rpc::Engine::new(sim, (), memory.pools.clone(), config, 7)
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    assert_eq!(engine(small()), Ok(()));
    let larger = stag_rpc::EngineConfig { receives_max: small().receives_max + 1, ..small() };
    let found = memory.pools.messages.units();
    let error = format!(
        "{found} message buffers, but {} are needed (Pools::messages_needed); make the pool larger, or lower \
         receives_max or credits_max",
        found + 2
    );
    assert_eq!(engine(larger), Err(error));
}

#[test]
fn calls_wait_for_message_buffers() {
    // The pool is empty but for what the first Call needs: no client is cut off, the Calls wait for memory.
    let mut bench = Bench::new();
    bench.check_alive(0);
    let pool = bench.server.memory.pools.messages.clone();
    let mut hoard = Vec::new();
    while let Some(buf) = pool.take() {
        hoard.push(buf);
    }
    let mut calls = Vec::new();
    for _ in 0..4 {
        let encode = |writer: &mut stag_wire::xdr::Writer<'_>| writer.opaque(b"patience");
        calls.push(bench.begin(0, request_for(ECHO, 16), Chunks::default(), encode).expect("a credit"));
    }
    bench.run_for(Duration::from_millis(50));
    assert!(bench.clients[0].done.is_empty());
    assert_eq!(bench.closed(0), None);
    drop(hoard);
    for call in calls {
        assert_eq!(bytes(&bench.finish(0, call)), opaque(b"patience"));
    }
    bench.close();
}
