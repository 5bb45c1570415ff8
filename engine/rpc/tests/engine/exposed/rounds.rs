//! What a Reply costs in round trips, by who provides its memory.

use std::time::Duration;

use stag_fabric::sim::{FaultPlan, World};
use stag_rpc::{Chunks, EngineConfig, ReplyMode, Request};

use super::config;
use crate::support::program::BIG;
use crate::support::{Bench, bytes, request, words};

/// Results, from those that fit inline to those of the largest Reply chunk.
const LENS: [u32; 6] = [512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, (1 << 20) - 64];

/// The time that a Call takes whose results have `len` octets.
fn time(bench: &mut Bench, len: u32, mode: ReplyMode) -> Duration {
    let known = Request { results_len_max: len + 8, reply_mode: mode, ..request(BIG) };
    let begun = bench.world.now();
    let done = bench.call(known, Chunks::default(), |writer| words(writer, &[1, len]));
    assert_eq!(bytes(&done).len(), len as usize + 4);
    bench.world.now() - begun
}

/// RR-4.1-a: a Reply that is exposed takes a round trip more than one in a Reply chunk, and none more if it turns out short.
/// `cargo test --workspace --test exposed rounds -- --nocapture` prints the table of `bench/docs/figures.md`.
#[test]
fn an_exposed_reply_takes_one_round_trip_more() {
    println!("| one way | octets | Reply chunk | exposed |\n|---|---|---|---|");
    for delay in [1, 10, 100, 1000].map(Duration::from_micros) {
        let plan = FaultPlan { latency: delay..=delay, ..FaultPlan::default() };
        let both = EngineConfig { inline_threshold: 1024, ..config() };
        let mut bench = Bench::in_world(World::new(1, plan), both, both, 1);
        bench.establish();
        for len in LENS {
            let rounds = |time: Duration| time.as_nanos() as f64 / (2 * delay).as_nanos() as f64;
            let chunk = rounds(time(&mut bench, len, ReplyMode::Chunk));
            let exposed = rounds(time(&mut bench, len, ReplyMode::Responder));
            println!("| {delay:?} | {len} | {chunk:.2} | {exposed:.2} |");
            let expected = if len < 1000 { 0.0 } else { 1.0 };
            assert!((0.95..1.5).contains(&chunk), "{len} octets, {delay:?}: {chunk} round trips");
            assert!(
                (exposed - chunk - expected).abs() < 0.5,
                "{len} octets, {delay:?}: {exposed} and {chunk}"
            );
        }
        bench.close();
    }
}
