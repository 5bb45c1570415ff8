//! Retransmissions that come by another reactor than the first time (5531-e).

use stag_fabric::sim::{FaultPlan, World};
use stag_rpc::CARRIED_CALLS_MAX;

use super::at_one;
use super::group::{Group, address};
use crate::raw::{Raw, octets, word};
use crate::support::program::{NEVER, ONCE, PROGRAM, TIMELY, VERSION};

struct Case {
    group: Group,
    raw: Raw,
}

impl Case {
    fn new() -> Case {
        let world = World::new(1, FaultPlan::default());
        let raw = Raw::new(&world);
        Case { group: Group::in_world(world, 1, 3, CARRIED_CALLS_MAX, at_one), raw }
    }

    #[track_caller]
    fn run(&mut self, mut done: impl FnMut(&mut Case) -> bool) {
        for _ in 0..100_000 {
            if done(self) {
                return;
            }
            let now = self.group.world.now();
            if self.group.pass() + self.raw.poll(now) == 0 {
                assert!(self.group.world.advance(), "nothing happens any more, and what was awaited did not");
            }
        }
        panic!("what was awaited did not happen");
    }

    /// Ends the connection, if there is one, and makes one to another reactor.
    fn connect(&mut self, entry: usize) {
        self.raw.disconnect();
        self.run(|case| {
            let reactors = &case.group.reactors;
            case.raw.pair.is_none() && reactors.iter().all(|reactor| reactor.engine.connection_count() == 0)
        });
        self.raw.established = false;
        self.raw.connect(&address(entry));
        self.run(|case| case.raw.established);
    }

    fn send(&mut self, xid: u32, procedure: u32, delay: u64) {
        let transport = [xid, 1, 8, 0, 0, 0, 0];
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

    /// How often its home did what must not be done twice.
    fn executed(&mut self) -> u32 {
        self.group.program(1).counted
    }

    fn close(mut self) {
        self.raw.disconnect();
        self.run(|case| case.raw.pair.is_none());
        assert_eq!(self.raw.memory.ledger.outstanding(), 0);
        self.group.close();
    }
}

#[test]
fn the_same_reply_by_whichever_reactor() {
    let mut case = Case::new();
    for (xid, procedure, expected) in [(1, ONCE, 1), (2, TIMELY, 2)] {
        for entry in [0, 1, 2, 0] {
            case.connect(entry);
            case.send(xid, procedure, 0);
            assert_eq!(case.counted(), expected);
        }
        assert_eq!(case.executed(), expected);
    }
    case.close();
}

#[test]
fn while_it_is_executed() {
    let mut case = Case::new();
    case.connect(0);
    case.send(1, ONCE, NEVER);
    case.run(|case| case.executed() == 1);
    // By another reactor it waits for the answer, which has no other way; and by the one that the Call is executed at.
    for entry in [2, 1, 0] {
        case.connect(entry);
        case.send(1, ONCE, NEVER);
        for _ in 0..100 {
            case.group.pass();
            let now = case.group.world.now();
            case.raw.poll(now);
        }
        assert!(case.raw.messages.is_empty());
    }
    case.group.program(1).release();
    assert_eq!((case.counted(), case.executed()), (1, 1));
    case.close();
}

/// Twice over one connection: dropped, as there is an answer on its way.
#[test]
fn while_it_is_executed_for_the_same_connection() {
    let mut case = Case::new();
    case.connect(0);
    // More than one credit.
    case.send(9, 0, 0);
    case.run(|case| !case.raw.messages.is_empty());
    case.raw.messages.clear();
    case.send(1, ONCE, NEVER);
    case.run(|case| case.executed() == 1);
    case.send(1, ONCE, NEVER);
    (0..100).for_each(|_| _ = case.group.pass());
    case.group.program(1).release();
    assert_eq!(case.counted(), 1);
    // Once more, now that it is answered.
    case.send(1, ONCE, NEVER);
    assert_eq!((case.counted(), case.executed()), (1, 1));
    assert!(case.raw.messages.is_empty());
    case.close();
}
