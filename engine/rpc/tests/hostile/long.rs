//! Untaken Long Replies come out of their owner's part of the payload memory, as data does.

use std::time::Duration;

use stag_fabric::sim::{FaultPlan, World};
use stag_rpc::{CallError, CallId, CallRefused, Chunks, ClientPolicy, EngineConfig};

use crate::greedy::{LARGE, check_honest, close};
use crate::support::program::{BIG, pattern};
use crate::support::{Bench, Ended, bytes, opaque, request_for, small, words};

/// Pages of the server's payload memory, and those that bulk data leaves to byte streams.
const PAGES: usize = (4 << 20) / 4096;
const RESERVE: usize = PAGES / 16;

/// Client 0 is one user's, and `greedy` others are another's.
fn bench(greedy: usize) -> Bench {
    let config = EngineConfig { connections_max: 256, receives_max: 2048, ..small() };
    let mut bench = Bench::in_world(World::new(1, FaultPlan::default()), config, small(), 0);
    bench.add_client_of(2, small(), ClientPolicy::default());
    for _ in 0..greedy {
        bench.add_client_of(1, small(), ClientPolicy::default());
    }
    bench.establish();
    (0..=greedy).for_each(|client| bench.check_alive(client));
    bench
}

fn held(bench: &Bench) -> usize {
    bench.server.memory.pools.payload.outstanding()
}

/// Asks for a result of `len` octets, which has no shorter form, in a Reply chunk.
fn ask(bench: &mut Bench, client: usize, len: usize) -> Result<CallId, CallRefused> {
    let encode = |writer: &mut stag_wire::xdr::Writer<'_>| words(writer, &[9, len as u32]);
    bench.begin(client, request_for(BIG, len + 8), Chunks::default(), encode)
}

/// One owner, and no client of it takes its Long Replies: the others' data finds its memory.
#[test]
fn long_replies_that_nobody_takes_are_their_owners() {
    for count in [4, 60] {
        let mut bench = bench(count);
        for client in 1..=count {
            bench.clients[client].engine.provider_mut().set_writable(false);
        }
        for _ in 0..3 {
            (1..=count).for_each(|client| while ask(&mut bench, client, LARGE).is_ok() {});
            bench.run_for(Duration::from_millis(15));
        }
        assert!(held(&bench) <= PAGES / 2, "{count} connections hold {} of {PAGES} pages", held(&bench));
        check_honest(&mut bench, Duration::from_millis(10));
        // Nor is a Long Reply to somebody else in the way of theirs.
        let call = ask(&mut bench, 0, LARGE).expect("a credit");
        assert!(bytes(&bench.finish(0, call)) == opaque(&pattern(9, LARGE)), "it arrives whole");
        // What finds no memory is refused as data is that finds none; while it waits, connections that are silent end for it.
        bench.run_for(Duration::from_secs(3));
        check_honest(&mut bench, Duration::from_millis(10));
        (1..=count).for_each(|client| bench.clients[client].engine.provider_mut().set_writable(true));
        bench.run_for(Duration::from_secs(3));
        let expected = opaque(&pattern(9, LARGE));
        let (mut whole, mut refused) = (0, 0);
        for client in &mut bench.clients[1..] {
            for done in client.done.drain(..) {
                match Ended::of(done).result {
                    Ok(results) if results == expected => whole += 1,
                    Err(CallError::Chunk | CallError::ConnectionLost | CallError::NotSent) => refused += 1,
                    other => panic!("{:?}", other.map(|results| results.len())),
                }
            }
        }
        assert!(whole > 0 && refused > 0, "{whole} whole, {refused} refused");
        assert_eq!(held(&bench), 0, "all is counted back");
        close(bench);
    }
}

/// Owners that hold all there is for bulk data: Long Replies leave the rest to byte streams, and wait for memory that is given back.
#[test]
fn long_replies_leave_the_reserve() {
    let mut bench = bench(1);
    let pool = bench.server.memory.pools.payload.clone();
    let mut hoard: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    hoard.truncate(PAGES - RESERVE - 1);
    let small_one = ask(&mut bench, 0, 4 * 4096).expect("a credit");
    bench.run_for(Duration::from_secs(1));
    assert_eq!(held(&bench), PAGES - RESERVE - 1, "it took something of what is for byte streams");
    hoard.truncate(100);
    assert_eq!(bytes(&bench.finish(0, small_one)).len(), 4 + 4 * 4096);
    // In the end it is refused.
    hoard.extend(std::iter::from_fn(|| pool.take()));
    let begun = bench.world.now();
    let call = ask(&mut bench, 0, 4 * 4096).expect("a credit");
    assert_eq!(bench.finish(0, call).result, Err(CallError::Chunk));
    let took = bench.world.now() - begun;
    assert!((2..3).contains(&took.as_secs()), "{took:?}");
    drop(hoard);
    bench.check_alive(0);
    close(bench);
}
