//! An owner's part of the payload memory: whatever its connections do, and however many they are, others go on.

use std::time::Duration;

use stag_fabric::sim::{FaultPlan, Odds, World};
use stag_rpc::{CallId, CallRefused, Chunks, ClientPolicy, EngineConfig};

use crate::greedy::{check_honest, close, put};
use crate::support::program::{ECHO, FILL, LATER_FILL, PIECES};
use crate::support::{Bench, bytes, opaque, request, request_for, small};

/// Pages of the server's payload memory.
const PAGES: usize = (4 << 20) / 4096;

/// Octets of the data of one greedy Call.
const LEN: usize = 100 << 10;

/// Client 0 is one user's, and `greedy` others are another's.
fn bench(greedy: usize) -> Bench {
    bench_in(FaultPlan::default(), greedy)
}

/// The same, where all that can be is handled where it arrived.
fn bench_in_place(greedy: usize) -> Bench {
    bench_in(FaultPlan { in_place: Odds::ALWAYS, ..FaultPlan::default() }, greedy)
}

fn bench_in(plan: FaultPlan, greedy: usize) -> Bench {
    let config = EngineConfig { connections_max: 256, receives_max: 2048, ..small() };
    let world = World::new(1, plan);
    let mut bench = Bench::in_world(world, config, small(), 0);
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

/// Asks for results of `len` octets.
fn fill(bench: &mut Bench, client: usize, procedure: u32, len: usize) -> Result<CallId, CallRefused> {
    let chunks = Chunks::write(bench.clients[client].space(len));
    bench.begin(client, request_for(procedure, len), chunks, |writer| writer.u32(len as u32))
}

/// Clients of one owner, all of which were trusted, and then let nothing be read.
#[test]
fn connections_of_one_owner_have_one_part() {
    for count in [24, 240] {
        let mut bench = bench(count);
        for client in 1..=count {
            let call = put(&mut bench, client, 4096).expect("a credit");
            bench.finish(client, call);
            bench.clients[client].engine.provider_mut().set_readable(Some(0));
        }
        for _ in 0..4 {
            for client in 1..=count {
                // A second one where the first is granted more credits.
                let _ = put(&mut bench, client, LEN);
            }
            bench.run_for(Duration::from_millis(5));
        }
        assert!(held(&bench) <= PAGES / 2, "{count} connections hold {} of {PAGES} pages", held(&bench));
        // No connection has to be ended, nor to give anything back.
        check_honest(&mut bench, Duration::from_millis(10));
        check_honest(&mut bench, Duration::from_millis(10));
        assert_eq!(bench.server.engine.statistics().peers_stuck, 0);
        close(bench);
    }
}

/// A client that takes no results has a few, and then its Calls wait: those that are answered at once, and those that are
/// answered later.
#[test]
fn untaken_results_are_their_owners() {
    for (procedure, count) in [(FILL, 1), (LATER_FILL, 24), (FILL, 240)] {
        let mut bench = bench(count);
        for client in 1..=count {
            bench.clients[client].engine.provider_mut().set_writable(false);
        }
        for _ in 0..3 {
            for client in 1..=count {
                while fill(&mut bench, client, procedure, LEN).is_ok() {}
            }
            bench.run_for(Duration::from_millis(15));
        }
        // Each connection has a page at least.
        let most = PAGES / 2 + count;
        assert!(held(&bench) <= most, "{count} connections hold {} of {PAGES} pages", held(&bench));
        check_honest(&mut bench, Duration::from_millis(10));
        let call = fill(&mut bench, 0, procedure, LEN).expect("a credit");
        let done = bench.finish(0, call);
        assert_eq!(done.reduced_len as usize, LEN);
        assert_eq!(bench.server.engine.statistics().peers_stuck, 0);
        // Clients that take them after all get all of their answers.
        for client in 1..=count {
            bench.clients[client].engine.provider_mut().set_writable(true);
        }
        bench.run_for(Duration::from_secs(1));
        assert_eq!(held(&bench), 0, "all is counted back");
        bench.check_alive(1);
        close(bench);
    }
}

/// One that never takes its results holds them for `peer_timeout` at most.
#[test]
fn who_takes_no_results_ends() {
    let mut bench = bench(1);
    bench.clients[1].engine.provider_mut().set_writable(false);
    fill(&mut bench, 1, FILL, LEN).expect("a credit");
    let limit = bench.server.engine.config().peer_timeout;
    bench.run_for(limit + Duration::from_secs(5));
    assert_eq!(bench.server.engine.statistics().peers_stuck, 1);
    assert_eq!(held(&bench), 0);
    check_honest(&mut bench, Duration::from_millis(10));
    close(bench);
}

/// Results in many pieces, whose lists are heap: an owner has as many of them as it may, wherever the Call is executed.
#[test]
fn lists_of_pieces_are_bounded_for_calls_that_are_answered_where_they_arrived() {
    const COUNT: usize = 300;
    for mut bench in [bench_in_place(40), bench(40)] {
        (1..=40).for_each(|client| bench.clients[client].engine.provider_mut().set_writable(false));
        for client in 1..=40 {
            fill(&mut bench, client, PIECES, COUNT).expect("a credit");
            bench.run_for(Duration::from_millis(1));
        }
        let given = &bench.server.engine.services_mut().0.most_pieces;
        assert_eq!((given.len(), given[0]), (40, COUNT));
        let grown = given.iter().filter(|count| **count > 16).count();
        assert!(grown <= 32, "{grown} Replies in many pieces wait for one owner");
        (1..=40).for_each(|client| bench.clients[client].engine.provider_mut().set_writable(true));
        bench.run_for(Duration::from_secs(1));
        bench.server.engine.services_mut().0.release();
        close(bench);
    }
}

/// Who leaves too much untaken waits with all of its Calls: also those without results that count, where they arrive.
#[test]
fn who_takes_no_results_waits_whatever_it_calls() {
    for mut bench in [bench_in_place(1), bench(1)] {
        // Until it has credits enough.
        for _ in 0..4 {
            let echo = |bench: &mut Bench| {
                bench.begin(1, request(ECHO), Chunks::default(), |writer| writer.opaque(b"more")).ok()
            };
            let begun: Vec<_> = std::iter::from_fn(|| echo(&mut bench)).collect();
            begun.into_iter().for_each(|call| drop(bench.finish(1, call)));
        }
        bench.clients[1].engine.provider_mut().set_writable(false);
        for _ in 0..4 {
            fill(&mut bench, 1, FILL, 3 * LEN).expect("a credit");
            bench.run_for(Duration::from_millis(1));
        }
        let received = bench.server.engine.statistics().calls_received;
        let echo = bench.begin(1, request(ECHO), Chunks::default(), |writer| writer.opaque(b"late"));
        bench.run_for(Duration::from_millis(1));
        assert_eq!(bench.server.engine.statistics().calls_received, received, "ECHO waits");
        let null = bench.begin(1, request(0), Chunks::default(), |_| Ok(()));
        bench.run_for(Duration::from_millis(1));
        assert_eq!(bench.server.engine.statistics().calls_received, received, "NULL waits");
        bench.clients[1].engine.provider_mut().set_writable(true);
        let echo = bench.finish(1, echo.expect("a credit"));
        assert_eq!(bytes(&echo), opaque(b"late"));
        bench.finish(1, null.expect("a credit"));
        close(bench);
    }
}
