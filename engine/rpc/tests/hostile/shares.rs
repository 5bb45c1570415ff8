//! An owner's part of the payload memory: whatever its connections do, and however many they are, others go on.

use std::time::Duration;

use stag_fabric::sim::{FaultPlan, World};
use stag_rpc::{CallId, CallRefused, Chunks, ClientPolicy, EngineConfig};

use crate::greedy::{check_honest, close, put};
use crate::support::program::{FILL, LATER_FILL};
use crate::support::{Bench, request_for, small};

/// Pages of the server's payload memory.
const PAGES: usize = (4 << 20) / 4096;

/// Octets of the data of one greedy Call.
const LEN: usize = 100 << 10;

/// Client 0 is one user's, and `greedy` others are another's.
fn bench(greedy: usize) -> Bench {
    let config = EngineConfig { connections_max: 256, receives_max: 2048, ..small() };
    let world = World::new(1, FaultPlan::default());
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
        // Those who take them after all get all of their answers.
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
