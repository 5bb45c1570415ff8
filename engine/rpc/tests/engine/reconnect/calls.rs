//! What becomes of single Calls: sent again, refused, cancelled, timed out, given up.

use std::time::Duration;

use stag_fabric::DisconnectReason;
use stag_fabric::sim::{FaultPlan, World};
use stag_rpc::{
    Backoff, CallError, CallId, CallRefused, Chunks, ClientPolicy, CloseReason, ConnectionEvent,
    EngineConfig, ProtocolChoice, Request,
};

use crate::support::program::{BIG, ECHO, LATER, NEVER, ONCE, PUT, Program, pattern, sum};
use crate::support::{
    ADDRESS, Bench, IS_VERSION_2, Node, bytes, error, opaque, request, request_for, small, words,
};

pub(crate) const POLICY: ClientPolicy = ClientPolicy {
    reconnect: Some(Backoff {
        first: Duration::from_millis(20),
        max: Duration::from_millis(200),
        give_up_after: Duration::from_secs(60),
        resend_after: Duration::from_secs(2),
    }),
    keep_alive: None,
};

/// A calm world with one client that reconnects, connected.
pub(crate) fn bench(policy: ClientPolicy) -> Bench {
    let mut bench = Bench::in_world(World::new(1, FaultPlan::default()), small(), small(), 0);
    bench.add_client_with(small(), policy);
    bench.establish();
    bench
}

/// The server's end of everything is gone, and with it what it knew.
fn kill_server(bench: &mut Bench) {
    let idle = Node::new(&bench.world, "spare", small(), 1 << 20, |memory| {
        (Program::new(memory.pools.payload.clone()),)
    });
    bench.server = idle;
}

/// Another server, where the one was that is gone.
fn start_server(bench: &mut Bench, config: EngineConfig) {
    let mut server = Node::new(&bench.world, "server", config, 4 << 20, |memory| {
        (Program::new(memory.pools.payload.clone()),)
    });
    server.engine.listen(ADDRESS).expect("the address is free");
    bench.server = server;
}

fn later(bench: &mut Bench, delay: u64, request: Request<'_>) -> CallId {
    let begun = bench.begin(0, request, Chunks::default(), |writer| {
        writer.u64(delay)?;
        writer.opaque(b"text")
    });
    begun.expect("a credit")
}

fn interruptions(bench: &Bench) -> usize {
    let interrupted = |event: &&ConnectionEvent| matches!(event, ConnectionEvent::Interrupted { .. });
    bench.clients[0].events.iter().filter(interrupted).count()
}

fn restored(bench: &Bench) -> bool {
    let connection = bench.connections[0];
    bench.clients[0].events.contains(&ConnectionEvent::Restored { connection })
}

#[test]
fn a_restarted_server_answers_what_the_last_one_did_not() {
    let mut bench = bench(POLICY);
    bench.check_alive(0);
    let call = later(&mut bench, NEVER, request_for(LATER, 16));
    bench.run_for(Duration::from_millis(5));
    kill_server(&mut bench);
    bench.run(|bench| interruptions(bench) == 1);
    let refused = bench.begin(0, request(ECHO), Chunks::default(), |writer| writer.opaque(b"x"));
    assert_eq!(refused, Err(CallRefused::Interrupted));
    let connection = bench.connections[0];
    assert_eq!(bench.clients[0].engine.credits_available(connection), 0);
    // There is no listener for a while.
    bench.run_for(Duration::from_secs(2));
    assert_eq!(interruptions(&bench), 1, "attempts that fail are not reported");
    start_server(&mut bench, small());
    bench.run(|bench| restored(bench));
    // The Call is there again, with its xid; this server's answer to it is a matter of its own.
    bench.run(|bench| bench.server.engine.services_mut().0.kept() == 1);
    assert_eq!(bench.clients[0].engine.statistics().calls_retransmitted, 1);
    bench.server.engine.services_mut().0.release();
    let done = bench.finish(0, call);
    assert_eq!(bytes(&done), opaque(b"text"));
    // The name of the connection is what it was.
    bench.check_alive(0);
    bench.close();
}

#[test]
fn memory_of_every_form_is_exposed_again() {
    for threshold in [1024, 4096] {
        let mut bench = bench(POLICY);
        bench.check_alive(0);
        bench.check_alive(0);
        let text = pattern(2, 2000);
        let mut chunks = Chunks::read(bench.clients[0].data(&pattern(1, 5000)));
        chunks.read.push((1, bench.clients[0].data(&pattern(3, 3))));
        chunks.write.push((0, bench.clients[0].space(100)));
        let put = bench.begin(0, request_for(PUT, 9000), chunks, |writer| {
            writer.u32(3)?;
            writer.eligible_opaque_reduced(5000)?;
            writer.eligible_opaque_inline(&text)?;
            writer.eligible_opaque_reduced(3).map(|_| ())
        });
        let (put, big) = (put.expect("a credit"), {
            let big =
                bench.begin(0, request_for(BIG, 4000), Chunks::default(), |writer| words(writer, &[1, 3000]));
            big.expect("a credit")
        });
        // The client saw none of it; the next server's messages may be of another size.
        kill_server(&mut bench);
        start_server(&mut bench, EngineConfig { inline_threshold: threshold, ..small() });
        let done = bench.finish(0, put);
        let mut answer = vec![0; 4];
        for octets in [&pattern(1, 5000), &text, &pattern(3, 3)] {
            answer.extend(sum(octets).to_be_bytes());
        }
        assert_eq!(bytes(&done), answer);
        assert_eq!(done.written.len(), 1, "a Write chunk that was not used comes back");
        let done = bench.finish(0, big);
        assert_eq!(bytes(&done), opaque(&pattern(1, 3000)));
        bench.close();
    }
}

#[test]
fn a_smaller_inline_threshold_makes_long_calls_of_short_ones() {
    let mut bench = Bench::in_world(
        World::new(1, FaultPlan::default()),
        EngineConfig { inline_threshold: 4096, ..small() },
        small(),
        0,
    );
    bench.add_client_with(EngineConfig { inline_threshold: 4096, ..small() }, POLICY);
    bench.establish();
    let text = pattern(9, 3000);
    let request = request_for(ECHO, 3004);
    let call = bench.begin(0, request, Chunks::default(), |writer| writer.opaque(&text)).expect("a credit");
    kill_server(&mut bench);
    start_server(&mut bench, small());
    let done = bench.finish(0, call);
    assert_eq!(bytes(&done), opaque(&text));
    let statistics = bench.clients[0].engine.statistics();
    // In version 2 its Receives are longer than what it agreed on when it connected.
    let reply_chunks = u64::from(!IS_VERSION_2);
    assert_eq!((statistics.calls_retransmitted, statistics.reply_chunks), (1, reply_chunks));
    bench.close();
}

#[test]
fn who_does_not_want_a_call_twice_is_told_of_the_loss() {
    let mut bench = bench(POLICY);
    bench.check_alive(0);
    let once = later(&mut bench, NEVER, Request { retransmit: false, ..request_for(LATER, 16) });
    let again = later(&mut bench, 1000, request_for(LATER, 16));
    bench.run_for(Duration::from_micros(300));
    kill_server(&mut bench);
    let done = bench.finish(0, once);
    assert_eq!(error(&done), CallError::ConnectionLost);
    start_server(&mut bench, small());
    let done = bench.finish(0, again);
    assert_eq!(bytes(&done), opaque(b"text"));
    bench.close();
}

#[test]
fn deadlines_and_cancellation_hold_while_nobody_is_there() {
    let mut bench = bench(POLICY);
    bench.check_alive(0);
    let late = Request { timeout: Duration::from_secs(1), ..request_for(LATER, 16) };
    let expired = later(&mut bench, NEVER, late);
    let cancelled = later(&mut bench, NEVER, request_for(LATER, 16));
    let begun = bench.world.now();
    kill_server(&mut bench);
    bench.run(|bench| interruptions(bench) == 1);
    bench.clients[0].engine.cancel(cancelled);
    let done = bench.finish(0, cancelled);
    assert_eq!(error(&done), CallError::Cancelled);
    let done = bench.finish(0, expired);
    assert_eq!(error(&done), CallError::TimedOut);
    let took = bench.world.now() - begun;
    assert!(took >= Duration::from_secs(1) && took < Duration::from_millis(1300), "{took:?}");
    start_server(&mut bench, small());
    bench.run(|bench| restored(bench));
    bench.check_alive(0);
    assert_eq!(bench.clients[0].engine.statistics().calls_retransmitted, 0);
    bench.close();
}

#[test]
fn what_takes_too_long_is_given_up() {
    let backoff = Backoff { give_up_after: Duration::from_secs(3), ..POLICY.reconnect.unwrap_or_default() };
    let mut bench = bench(ClientPolicy { reconnect: Some(backoff), ..POLICY });
    bench.check_alive(0);
    let call = later(&mut bench, NEVER, request_for(LATER, 16));
    kill_server(&mut bench);
    bench.run(|bench| interruptions(bench) == 1);
    let begun = bench.world.now();
    let done = bench.finish(0, call);
    assert_eq!(error(&done), CallError::ConnectionLost);
    let took = bench.world.now() - begun;
    assert!(took >= Duration::from_secs(3) && took < Duration::from_secs(4), "{took:?}");
    bench.run(|bench| bench.closed(0).is_some());
    assert_eq!(bench.closed(0), Some(&CloseReason::Fabric(DisconnectReason::NoListener)));
    let refused = bench.begin(0, request(ECHO), Chunks::default(), |writer| writer.opaque(b"x"));
    assert_eq!(refused, Err(CallRefused::NotConnected));
    bench.close();
}

#[test]
fn a_user_who_disconnects_means_it() {
    for interrupted in [false, true] {
        let mut bench = bench(POLICY);
        bench.check_alive(0);
        let call = later(&mut bench, NEVER, request_for(LATER, 16));
        if interrupted {
            kill_server(&mut bench);
            bench.run(|bench| interruptions(bench) == 1);
        }
        let connection = bench.connections[0];
        bench.clients[0].engine.disconnect(connection);
        let done = bench.finish(0, call);
        assert_eq!(error(&done), CallError::ConnectionLost);
        bench.run(|bench| bench.closed(0).is_some());
        assert_eq!(bench.closed(0), Some(&CloseReason::Fabric(DisconnectReason::Local)));
        bench.run_for(Duration::from_secs(5));
        assert!(!restored(&bench));
        bench.close();
    }
}

#[test]
fn the_first_connection_is_its_users_matter() {
    let mut bench = Bench::in_world(World::new(1, FaultPlan::default()), small(), small(), 0);
    kill_server(&mut bench);
    bench.add_client_with(small(), POLICY);
    bench.run(|bench| bench.closed(0).is_some());
    assert_eq!(bench.clients[0].events.len(), 1, "{:?}", bench.clients[0].events);
    bench.close();
}

#[test]
fn the_next_server_may_speak_another_version() {
    use ProtocolChoice::{Auto, One};
    let mut bench = bench(POLICY);
    for (round, protocol) in [One, Auto, One].into_iter().enumerate() {
        bench.check_alive(0);
        let data = pattern(round as u32, 5000);
        let chunks = Chunks::read(bench.clients[0].data(&data));
        let put = bench.begin(0, request_for(PUT, 8), chunks, |writer| {
            writer.u32(1)?;
            writer.eligible_opaque_reduced(5000).map(|_| ())
        });
        kill_server(&mut bench);
        start_server(&mut bench, EngineConfig { protocol, ..small() });
        let done = bench.finish(0, put.expect("a credit"));
        assert_eq!(bytes(&done), [[0; 4], sum(&data).to_be_bytes()].concat());
        assert_eq!(interruptions(&bench), round + 1);
    }
    bench.close();
}

/// The server is still at the Call when the retransmission comes: it must not execute it twice, and its first
/// answer is lost.
#[test]
fn what_a_server_drops_is_sent_once_more() {
    let mut bench = bench(POLICY);
    bench.check_alive(0);
    let request = request_for(ONCE, 16);
    let call = bench.begin(0, request, Chunks::default(), |writer| writer.u64(3_000_000)).expect("a credit");
    bench.run(|bench| bench.server.engine.services_mut().0.kept() == 1);
    let death_at = Some(bench.world.steps() + 1);
    bench.world.set_plan(FaultPlan { death_at, ..FaultPlan::default() });
    let other = later(&mut bench, 1, request_for(LATER, 16));
    let done = bench.finish(0, other);
    assert_eq!(bytes(&done), opaque(b"text"));
    // A connection of version 1 has one credit at first, which is the other Call's; of version 2, those that the probe was answered with.
    assert_eq!(interruptions(&bench), if IS_VERSION_2 { 1 } else { 2 });
    let done = bench.finish(0, call);
    assert_eq!(bytes(&done), 1u32.to_be_bytes(), "5531-e");
    assert_eq!(bench.server.engine.services_mut().0.counted, 1);
    bench.check_alive(0);
    bench.close();
}
