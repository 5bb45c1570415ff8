//! Retransmissions over RDMA by a new connection (5531-e).

use stag_fabric::sim::{FaultPlan, World};
use stag_rpc::EngineConfig;

use crate::raw::{Raw, octets, word};
use crate::support::program::{NEVER, ONCE, PROGRAM, TIMELY, TIMELY_PUT, VERSION};
use crate::support::{ADDRESS, Bench, small};

struct Case {
    bench: Bench,
    raw: Raw,
    /// Clients that there are beside it.
    others: Vec<Raw>,
}

impl Case {
    fn new() -> Case {
        Case::with(small())
    }

    fn with(server: EngineConfig) -> Case {
        let server = EngineConfig { inline_threshold: 4096, ..server };
        let bench = Bench::in_world(World::new(1, FaultPlan::default()), server, small(), 0);
        let raw = Raw::new(&bench.world);
        let mut case = Case { bench, raw, others: Vec::new() };
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
            let others: usize = self.others.iter_mut().map(|other| other.poll(now)).sum();
            if self.bench.pass() + self.raw.poll(now) + others == 0 {
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
        let transport = [xid, 1, 8, 0, 0, 0, 0];
        let rpc = [xid, 0, 2, PROGRAM, VERSION, procedure, 0, 0, 0, 0, (delay >> 32) as u32, delay as u32];
        assert!(self.raw.send(&octets(&[&transport[..], &rpc].concat()), None));
    }

    /// A Call and its answer: from then on there is more than one credit.
    fn exchange(&mut self) {
        self.send(99, 0, 0);
        self.run(|case| !case.raw.messages.is_empty());
        self.raw.messages.clear();
    }

    /// Sends a WRITE of `len` octets, all of which are `fill`, in a Read chunk.
    fn put(&mut self, xid: u32, len: u32, fill: u8) {
        let segment = self.raw.expose_filled(len as usize, fill).expect("memory");
        let (high, low) = ((segment.offset >> 32) as u32, segment.offset as u32);
        let transport = [xid, 1, 1, 0, 1, 48, segment.handle.0, len, high, low, 0, 0, 0];
        let rpc = [xid, 0, 2, PROGRAM, VERSION, TIMELY_PUT, 0, 0, 0, 0, 1, len];
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

/// The first connection ends while the Call is executed: it is not executed again, and who asks again over a new
/// connection gets the answer there as soon as there is one.
#[test]
fn an_answer_that_comes_after_the_connection() {
    let mut case = Case::new();
    case.send(1, ONCE, NEVER);
    case.run(|case| case.bench.server.engine.services_mut().0.kept() == 1);
    case.reconnect();
    case.exchange();
    let discarded = case.bench.server.engine.statistics().messages_discarded;
    case.send(1, ONCE, NEVER);
    case.send(1, ONCE, NEVER);
    case.run(|case| case.bench.server.engine.statistics().messages_discarded > discarded);
    assert!(case.raw.messages.is_empty());
    case.bench.server.engine.services_mut().0.release();
    assert_eq!(case.counted(), 1);
    assert!(case.raw.messages.is_empty(), "one answer for the two that came over one connection");
    case.send(1, ONCE, NEVER);
    assert_eq!(case.counted(), 1);
    let program = &case.bench.server.engine.services_mut().0;
    assert_eq!((program.counted, program.finished, program.abandoned), (1, 1, 0));
    case.close();
}

/// Each connection that asked gets the answer, those that are gone are forgotten, and all memory comes back.
#[test]
fn several_connections_wait_for_one_answer() {
    let mut case = Case::new();
    case.send(1, ONCE, NEVER);
    case.run(|case| case.bench.server.engine.services_mut().0.kept() == 1);
    for _ in 0..3 {
        case.reconnect();
        let received = case.bench.server.engine.statistics().calls_received;
        case.send(1, ONCE, NEVER);
        case.run(|case| case.bench.server.engine.statistics().calls_received > received);
    }
    case.bench.server.engine.services_mut().0.release();
    assert_eq!(case.counted(), 1);
    assert_eq!(case.bench.server.engine.statistics().duplicates_answered, 1);
    case.close();
}

/// An answer that cannot be kept is not waited for: the Call is dropped, and may come again.
#[test]
fn an_answer_that_cannot_be_kept() {
    let server = EngineConfig { duplicates_max: 1, ..small() };
    let mut case = Case::with(server);
    case.send(1, ONCE, NEVER);
    case.run(|case| case.bench.server.engine.services_mut().0.kept() == 1);
    case.reconnect();
    case.exchange();
    case.send(1, ONCE, NEVER);
    case.run(|case| case.bench.server.engine.statistics().calls_received == 3);
    // So long that the entry is lost, and another takes its place.
    let late = case.bench.world.now() + std::time::Duration::from_secs(121);
    case.bench.world.advance_to(late);
    case.send(2, ONCE, 0);
    assert_eq!(case.counted(), 2);
    case.run(|case| case.bench.server.engine.statistics().duplicates_dropped == 1);
    case.bench.server.engine.services_mut().0.release();
    case.run(|case| case.bench.server.engine.services_mut().0.kept() == 0);
    case.send(2, ONCE, 0);
    assert_eq!(case.counted(), 2);
    case.close();
}

/// However many Calls one client makes, another's answers stay as long as it may ask for them.
#[test]
fn a_busy_client_does_not_evict_a_quiet_ones_answers() {
    let server = EngineConfig { duplicates_max: 64, ..small() };
    let unanswered = 2 * server.credits_max;
    let mut case = Case::with(server);
    for procedure in [ONCE, TIMELY] {
        // Of the WRITEs' a quarter as many entries are kept.
        let unanswered = if procedure == ONCE { unanswered } else { unanswered / 4 };
        let first: Vec<_> = (0..unanswered)
            .map(|xid| {
                case.send(xid, procedure, 0);
                case.counted()
            })
            .collect();
        let other = Raw::new(&case.bench.world);
        case.others.push(other);
        case.others[0].connect(ADDRESS);
        case.run(|case| case.others[0].established);
        std::mem::swap(&mut case.raw, &mut case.others[0]);
        for xid in 0..500 {
            case.send(xid, procedure, 0);
            case.counted();
        }
        case.raw.disconnect();
        case.run(|case| case.raw.pair.is_none());
        let other = case.others.remove(0);
        drop(std::mem::replace(&mut case.raw, other));
        case.reconnect();
        for (xid, counted) in (0..).zip(first) {
            case.send(xid, procedure, 0);
            assert_eq!(case.counted(), counted);
        }
    }
    case.close();
}

/// The same xid, length and arguments, but other data: another Call. It is looked at where it is, by Read chunk.
#[test]
fn a_write_of_other_data_is_no_retransmission() {
    let mut case = Case::new();
    let mut expected = 0;
    for (xid, len) in [(1, 4), (2, 100), (3, 4096), (4, 50_001)] {
        for fill in [1, 2] {
            expected += 1;
            for _ in 0..2 {
                case.put(xid, len, fill);
                assert_eq!(case.counted(), expected, "{len} octets of {fill}");
            }
        }
    }
    case.close();
}
