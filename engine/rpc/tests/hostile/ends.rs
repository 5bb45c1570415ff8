//! One of our engines against a peer that a test makes: a server's, with an honest client beside, and a client's.

use std::time::Duration;

use stag_fabric::sim::{Violations, World};
use stag_rpc::{ClientPolicy, ConnectionEvent, ConnectionId, EngineConfig};

use crate::raw::Raw;
use crate::support::{ADDRESS, Bench, Node, small};

/// Passes until a test gives up.
const PASSES_MAX: usize = 100_000;

/// A server's engine, an honest client beside, and a client that a test makes.
pub(crate) struct Served {
    pub(crate) bench: Bench,
    pub(crate) raw: Raw,
}

impl Served {
    /// All connected. `block` is what the client of the test says behind the private data of RFC 8797.
    #[track_caller]
    pub(crate) fn connected(world: World, server: EngineConfig, block: Vec<u8>) -> Served {
        let mut bench = Bench::in_world(world, server, small(), 1);
        bench.establish();
        let mut raw = Raw::new(&bench.world);
        raw.block = block;
        raw.connect(ADDRESS);
        let mut served = Served { bench, raw };
        served.run(|served| served.raw.established);
        served
    }

    pub(crate) fn pass(&mut self) -> usize {
        let now = self.bench.world.now();
        self.bench.pass() + self.raw.poll(now)
    }

    fn next_timer(&self) -> Option<Duration> {
        stag_runtime::Poller::next_timeout(&self.bench.server.engine)
    }

    #[track_caller]
    pub(crate) fn run(&mut self, mut done: impl FnMut(&mut Served) -> bool) {
        for _ in 0..PASSES_MAX {
            if done(self) {
                return;
            }
            if self.pass() == 0 {
                let goes_on = self.bench.world.advance_before(self.next_timer()) || done(self);
                assert!(goes_on, "nothing happens any more, and what was awaited did not");
            }
        }
        panic!("what was awaited did not happen");
    }

    /// As [`Served::run`], where time goes to what happens next in the world, whatever a timer would do.
    #[track_caller]
    pub(crate) fn run_ahead(&mut self, mut done: impl FnMut(&mut Served) -> bool) {
        for _ in 0..PASSES_MAX {
            if done(self) {
                return;
            }
            if self.pass() == 0 {
                assert!(self.bench.world.advance(), "nothing happens any more, and what was awaited did not");
            }
        }
        panic!("what was awaited did not happen");
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.bench.world.now() + time;
        while self.bench.world.now() < end {
            if self.pass() == 0 {
                self.bench.world.advance_before(self.next_timer().into_iter().chain([end]).min());
            }
        }
    }

    /// Until nothing happens any more, whatever a timer would do.
    #[track_caller]
    pub(crate) fn quiesce(&mut self) {
        for _ in 0..PASSES_MAX {
            if self.pass() == 0 && !self.bench.world.advance() {
                return;
            }
        }
        panic!("it never becomes quiet");
    }

    /// Sends a message, and returns the answer.
    #[track_caller]
    pub(crate) fn answer_to(&mut self, message: &[u8]) -> Vec<u8> {
        assert!(self.raw.send(message, None));
        self.run(|served| !served.raw.messages.is_empty());
        self.raw.messages.remove(0)
    }

    /// The honest client's connection works, and at the end all memory is back.
    #[track_caller]
    pub(crate) fn close(mut self) {
        self.bench.check_alive(0);
        self.raw.disconnect();
        self.quiesce();
        assert_eq!(self.raw.memory.ledger.outstanding(), 0, "{}", self.raw.memory.ledger);
        drop(self.raw);
        self.bench.close();
    }
}

/// A client's engine, connected to a server that a test makes.
pub(crate) struct Asking {
    pub(crate) world: World,
    pub(crate) client: Node<()>,
    pub(crate) connection: ConnectionId,
    pub(crate) raw: Raw,
}

impl Asking {
    /// The client is about to connect. `block` is what the server of the test says behind the private data of RFC 8797.
    #[track_caller]
    pub(crate) fn begun(world: World, client: EngineConfig, policy: ClientPolicy, block: Vec<u8>) -> Asking {
        let mut raw = Raw::new(&world);
        raw.block = block;
        raw.listen(ADDRESS);
        let mut client = Node::new(&world, "client", client, 2 << 20, |_| ());
        let connection = client.engine.connect_with(ADDRESS, policy).expect("the address is fine");
        Asking { world, client, connection, raw }
    }

    /// As [`Asking::begun`], and connected.
    #[track_caller]
    pub(crate) fn connected(
        world: World,
        client: EngineConfig,
        policy: ClientPolicy,
        block: Vec<u8>,
    ) -> Asking {
        let mut asking = Asking::begun(world, client, policy, block);
        asking.run(|asking| !asking.client.events.is_empty() && asking.raw.established);
        let connection = asking.connection;
        assert_eq!(asking.client.events.pop(), Some(ConnectionEvent::Established { connection }));
        asking
    }

    pub(crate) fn pass(&mut self) -> usize {
        let now = self.world.now();
        self.client.poll(now) + self.raw.poll(now)
    }

    #[track_caller]
    pub(crate) fn run(&mut self, mut done: impl FnMut(&mut Asking) -> bool) {
        for _ in 0..PASSES_MAX {
            if done(self) {
                return;
            }
            if self.pass() == 0 {
                let timer = stag_runtime::Poller::next_timeout(&self.client.engine);
                let goes_on = self.world.advance_before(timer) || done(self);
                assert!(goes_on, "nothing happens, and what was awaited did not");
            }
        }
        panic!("what was awaited did not happen");
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.world.now() + time;
        while self.world.now() < end {
            if self.pass() == 0 {
                let timer = stag_runtime::Poller::next_timeout(&self.client.engine);
                self.world.advance_before(timer.into_iter().chain([end]).min());
            }
        }
    }

    /// Ends the connection, and sees that nothing is left.
    #[track_caller]
    pub(crate) fn close(self) {
        self.close_after(Violations::default());
    }

    /// As [`Asking::close`], where the server of the test broke rules of the fabric itself.
    #[track_caller]
    pub(crate) fn close_after(mut self, violations: Violations) {
        self.client.engine.disconnect(self.connection);
        self.run(|asking| asking.client.engine.connection_count() == 0 && asking.raw.pair.is_none());
        self.client.done.clear();
        assert_eq!(self.client.outstanding(), 0, "{}", self.client.memory.ledger);
        assert_eq!(self.raw.memory.ledger.outstanding(), 0, "{}", self.raw.memory.ledger);
        assert_eq!(self.world.violations(), violations);
    }
}
