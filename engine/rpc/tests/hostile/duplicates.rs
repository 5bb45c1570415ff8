//! Calls over RDMA that come again over a new connection (5531-e).

use stag_fabric::sim::{FaultPlan, World};

use crate::raw::{Raw, octets, word};
use crate::support::program::{NEVER, ONCE, PROGRAM, TIMELY, VERSION};
use crate::support::{ADDRESS, Bench, small};

struct Case {
    bench: Bench,
    raw: Raw,
}

impl Case {
    fn new() -> Case {
        let server = stag_rpc::EngineConfig { inline_threshold: 4096, ..small() };
        let bench = Bench::in_world(World::new(1, FaultPlan::default()), server, small(), 0);
        let raw = Raw::new(&bench.world);
        let mut case = Case { bench, raw };
        case.connect();
        case
    }

    #[track_caller]
    fn run(&mut self, mut done: impl FnMut(&mut Case) -> bool) {
        for _ in 0..100_000 {
            if done(self) {
                return;
            }
            let now = self.bench.world.now();
            if self.bench.pass() + self.raw.poll(now) == 0 {
                assert!(self.bench.world.advance(), "nothing happens any more, and what was awaited did not");
            }
        }
        panic!("what was awaited did not happen");
    }

    fn connect(&mut self) {
        self.raw.established = false;
        self.raw.connect(ADDRESS);
        self.run(|case| case.raw.established);
    }

    /// Ends the connection on both sides, and makes another.
    fn reconnect(&mut self) {
        self.raw.disconnect();
        self.run(|case| case.raw.pair.is_none() && case.bench.server.engine.connection_count() == 0);
        self.connect();
    }

    fn send(&mut self, xid: u32, procedure: u32, delay: u64) {
        let transport = [xid, 1, 1, 0, 0, 0, 0];
        let rpc = [xid, 0, 2, PROGRAM, VERSION, procedure, 0, 0, 0, 0, (delay >> 32) as u32, delay as u32];
        assert!(self.raw.send(&octets(&[&transport[..], &rpc].concat()), None));
    }

    /// What the next Reply counts.
    #[track_caller]
    fn counted(&mut self) -> u32 {
        self.run(|case| !case.raw.messages.is_empty());
        let reply = self.raw.messages.remove(0);
        // Behind transport header and RPC header.
        word(&reply, 7 + 6)
    }

    fn close(mut self) {
        self.raw.disconnect();
        self.run(|case| case.raw.pair.is_none() && case.bench.server.engine.connection_count() == 0);
        assert_eq!(self.raw.memory.ledger.outstanding(), 0);
        self.bench.close();
    }
}

#[test]
fn the_same_reply_over_a_new_connection() {
    let mut case = Case::new();
    for (xid, procedure, expected) in [(1, ONCE, 1), (2, TIMELY, 2)] {
        case.send(xid, procedure, 0);
        assert_eq!(case.counted(), expected);
        case.reconnect();
        case.send(xid, procedure, 0);
        assert_eq!(case.counted(), expected);
        case.send(xid, procedure, 0);
        assert_eq!(case.counted(), expected);
    }
    case.send(3, ONCE, 0);
    assert_eq!(case.counted(), 3);
    assert_eq!(case.bench.server.engine.statistics().duplicates_answered, 4);
    case.close();
}

/// The first connection ends while the Call is executed: it is not executed again, and its answer is kept.
#[test]
fn an_answer_that_comes_after_the_connection() {
    let mut case = Case::new();
    case.send(1, ONCE, NEVER);
    case.run(|case| case.bench.server.engine.services_mut().0.kept() == 1);
    case.reconnect();
    case.send(1, ONCE, NEVER);
    case.run(|case| case.bench.server.engine.statistics().duplicates_dropped == 1);
    case.bench.server.engine.services_mut().0.release();
    case.run(|case| case.bench.server.engine.services_mut().0.kept() == 0);
    case.send(1, ONCE, NEVER);
    assert_eq!(case.counted(), 1);
    let program = &case.bench.server.engine.services_mut().0;
    assert_eq!((program.counted, program.finished, program.abandoned), (1, 1, 0));
    case.close();
}
