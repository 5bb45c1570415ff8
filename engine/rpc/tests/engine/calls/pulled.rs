//! Calls whose only chunk is read after they were shown where they arrived: they go on where they stood, or take the general way from
//! there, and to their client it is the same.

use std::time::Duration;

use stag_fabric::sim::{FaultPlan, Odds, World};
use stag_rpc::{CallId, Chunks, EngineConfig, Request};
use stag_wire::xdr::Writer;

use crate::support::program::{LATER_PUT, LONG_LEN, PUT, PUT_LONG, PUT_ONE, TIMELY_PUT, pattern, sum};
use crate::support::{Bench, bytes, error, opaque, request, request_for, small};

/// Octets of the data.
const LEN: usize = 5000;

/// A bench that shows all messages where they arrive, and whose memory takes a round trip to read.
fn bench() -> Bench {
    bench_with(small())
}

fn bench_with(server: EngineConfig) -> Bench {
    let plan = FaultPlan { in_place: Odds::ALWAYS, far: Odds::ALWAYS, ..FaultPlan::default() };
    let mut bench = Bench::in_world(World::new(1, plan), server, small(), 1);
    bench.establish();
    // Grants grow the general way, while Receives are posted.
    (0..200).for_each(|_| bench.check_alive(0));
    // The first pull shows that the client lets itself be read.
    assert_eq!(bytes(&put(&mut bench, PUT_ONE)), answer());
    bench
}

fn begin(bench: &mut Bench, request: Request<'_>) -> CallId {
    let data = bench.clients[0].data(&pattern(7, LEN));
    let is_late = request.procedure == LATER_PUT;
    let encode = |writer: &mut Writer<'_>| {
        if is_late {
            writer.u64(500)?;
        }
        writer.u32(1)?;
        writer.eligible_opaque_reduced(LEN as u32).map(drop)
    };
    bench.begin(0, request, Chunks::read(data), encode).expect("a credit")
}

fn put(bench: &mut Bench, procedure: u32) -> crate::support::Ended {
    let call = begin(bench, request_for(procedure, 800));
    bench.finish(0, call)
}

/// What [`PUT_ONE`] answers.
fn answer() -> Vec<u8> {
    [0, sum(&pattern(7, LEN))].map(u32::to_be_bytes).concat()
}

/// The Call is shown and its Reply built in place: neither takes a Receive, and the Receive that stood for the Call stands for the next.
#[test]
fn it_is_answered_where_it_was_shown() {
    let mut bench = bench();
    let (taken, counted) = (bench.world.taken_in_place(), *bench.server.engine.statistics());
    for _ in 0..50 {
        assert_eq!(bytes(&put(&mut bench, PUT_ONE)), answer());
    }
    assert_eq!(bench.world.taken_in_place() - taken, 100, "each Call, and each Reply");
    let now = bench.server.engine.statistics();
    assert_eq!(now.calls_received - counted.calls_received, 50);
    assert_eq!(now.replies_sent - counted.replies_sent, 50);
    assert_eq!(now.read_chunks - counted.read_chunks, 50);
    assert_eq!(now.read_bytes - counted.read_bytes, 50 * LEN as u64);
    bench.check_alive(0);
    bench.close();
}

/// As many as there may be at once are read at once.
#[test]
fn many_are_read_at_once() {
    let mut bench = bench();
    for _ in 0..20 {
        let calls: Vec<_> = (0..8).map(|_| begin(&mut bench, request_for(PUT_ONE, 800))).collect();
        for call in calls {
            assert_eq!(bytes(&bench.finish(0, call)), answer());
        }
    }
    bench.close();
}

/// Its service answers later: it waits with its data, as any other.
#[test]
fn it_is_answered_later() {
    let mut bench = bench();
    for _ in 0..20 {
        assert_eq!(bytes(&put(&mut bench, LATER_PUT)), answer());
        assert_eq!(bytes(&put(&mut bench, PUT_ONE)), answer());
    }
    assert_eq!(bench.server.engine.services_mut().0.finished, 20);
    bench.close();
}

/// Its Reply is too long to be built in place: the handler does not run again.
#[test]
fn its_reply_is_too_long() {
    let mut bench = bench();
    let before = bench.server.engine.services_mut().0.executed;
    for _ in 0..20 {
        assert_eq!(bytes(&put(&mut bench, PUT_LONG)), opaque(&pattern(1, LONG_LEN)));
        assert_eq!(bytes(&put(&mut bench, PUT_ONE)), answer());
    }
    assert_eq!(bench.server.engine.services_mut().0.executed - before, 40);
    bench.close();
}

/// What is kept as WRITEs are is executed once, in place or not.
#[test]
fn it_is_counted_once() {
    let mut bench = bench();
    for round in 1..20u32 {
        assert_eq!(bytes(&put(&mut bench, TIMELY_PUT)), round.to_be_bytes());
    }
    bench.close();
}

/// Without message buffers it waits for them, and goes on in the general way.
#[test]
fn there_are_no_message_buffers_when_its_data_is_here() {
    let mut bench = bench();
    bench.clients[0].engine.provider_mut().set_readable(Some(0));
    let call = begin(&mut bench, request_for(PUT_ONE, 800));
    bench.run_for(Duration::from_millis(5));
    let pool = bench.server.memory.pools.messages.clone();
    let taken: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    bench.clients[0].engine.provider_mut().set_readable(None);
    let before = bench.server.engine.services_mut().0.executed;
    bench.run_for(Duration::from_millis(5));
    assert_eq!(bench.server.engine.services_mut().0.executed, before, "there is nothing to answer with");
    drop(taken);
    assert_eq!(bytes(&bench.finish(0, call)), answer());
    for _ in 0..20 {
        assert_eq!(bytes(&put(&mut bench, PUT_ONE)), answer());
    }
    bench.close();
}

/// Its client goes away while it is read: the memory is back, and nothing is executed.
#[test]
fn its_client_goes_away() {
    let mut bench = bench();
    bench.clients[0].engine.provider_mut().set_readable(Some(0));
    let before = bench.server.engine.services_mut().0.executed;
    let call = begin(&mut bench, request_for(PUT_ONE, 800));
    bench.run_for(Duration::from_millis(5));
    bench.clients[0].engine.cancel(call);
    bench.run_for(Duration::from_millis(5));
    assert_eq!(bench.server.engine.services_mut().0.executed, before);
    bench.close();
}

/// Its client lets nothing be read for so long that it is stuck: the connection ends, as that of any other.
#[test]
fn its_client_lets_nothing_be_read() {
    let peer_timeout = Duration::from_secs(3);
    let mut bench = bench_with(EngineConfig { peer_timeout, ..small() });
    bench.clients[0].engine.provider_mut().set_readable(Some(0));
    let call = begin(&mut bench, Request { timeout: Duration::from_secs(60), ..request(PUT) });
    let done = bench.finish(0, call);
    let _ = error(&done);
    assert_eq!(bench.server.engine.statistics().peers_stuck, 1);
    bench.close();
}
