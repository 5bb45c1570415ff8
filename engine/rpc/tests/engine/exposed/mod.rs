//! Replies that the server exposes and the client reads (reliable reply), between whole engines: the rules, and peers that break
//! them. All weathers are in `sim.rs`.

mod greedy;
mod hostile;
mod rounds;
mod rules;
mod servers;

use stag_fabric::sim::{FaultPlan, World};
use stag_rpc::{EngineConfig, ReplyMode, Request};

use crate::support::program::{BIG, pattern};
use crate::support::{Bench, opaque, request, small};

/// Replies that a server exposes at once.
const EXPOSED: u32 = 4;

/// Both ends take part: a server exposes Replies, a client pulls them.
fn config() -> EngineConfig {
    EngineConfig { exposed_replies: EXPOSED, pull_len_max: 1 << 30, ..small() }
}

/// One client in a calm world, connected.
fn bench(server: EngineConfig, client: EngineConfig) -> Bench {
    let mut bench = Bench::with_memory(World::new(1, FaultPlan::default()), server, client, 1, 4 << 20);
    bench.establish();
    bench
}

/// A Call whose Reply may have any size.
fn unknown(procedure: u32) -> Request<'static> {
    Request { results_len_max: u32::MAX, ..request(procedure) }
}

/// A Call whose Reply is left to the server.
fn left(procedure: u32, results_len_max: u32) -> Request<'static> {
    Request { results_len_max, reply_mode: ReplyMode::Responder, ..request(procedure) }
}

/// Asks client 0 for a result of `len` octets, and compares it.
#[track_caller]
fn check_big(bench: &mut Bench, len: u32) {
    let done =
        bench.call(unknown(BIG), Default::default(), |writer| crate::support::words(writer, &[len, len]));
    assert!(crate::support::bytes(&done) == opaque(&pattern(len, len as usize)), "{len} octets arrive whole");
}

/// The server exposed `count` Replies, and the client has said of each that it has no more use for it.
#[track_caller]
fn check_exposed(bench: &mut Bench, count: u64) {
    bench.run(|bench| {
        let statistics = bench.server.engine.statistics();
        statistics.replies_taken == statistics.replies_exposed
    });
    let statistics = bench.server.engine.statistics();
    assert_eq!((statistics.replies_exposed, statistics.exposures_expired), (count, 0));
}
