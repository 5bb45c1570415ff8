//! Broken invariants: states that only a defect of this engine can cause.
//!
//! A debug build panics where the defect shows. In a release build only that connection ends, with a line in the log: its
//! end gives everything back that it held, and the other connections go on.

use crate::ConnectionId;
use crate::client::CloseReason;
use crate::state::EngineState;

/// An invariant is broken: `what` was found. Returns the reason to end the connection with.
///
/// # Panics
///
/// In debug builds.
#[cold]
pub(crate) fn fault(what: &'static str) -> CloseReason {
    assert!(!cfg!(debug_assertions) || is_tolerated(), "a defect of this engine: {what}");
    CloseReason::Fault(what)
}

impl EngineState {
    /// As [`fault`], where no error can be returned: the connection ends with this pass.
    #[cold]
    pub(crate) fn fault(&mut self, connection: ConnectionId, what: &'static str) {
        self.faults.push((connection, fault(what)));
    }
}

#[cfg(not(test))]
fn is_tolerated() -> bool {
    false
}

#[cfg(test)]
thread_local!(static IS_TOLERATED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });

#[cfg(test)]
fn is_tolerated() -> bool {
    IS_TOLERATED.get()
}

/// Runs `test` as a release build would.
#[cfg(test)]
pub(crate) fn tolerated<T>(test: impl FnOnce() -> T) -> T {
    IS_TOLERATED.set(true);
    let result = test();
    IS_TOLERATED.set(false);
    result
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use stag_fabric::sim::{FaultPlan, Sim, World};
    use stag_fabric::{Peer, Provider};
    use stag_runtime::Poller;
    use stag_wire::xdr::Reader;

    use super::*;
    use crate::client::{CallError, Chunks, ConnectionEvent, Credentials, ReplyMode, Request};
    use crate::config::EngineConfig;
    use crate::connection::FinishedRead;
    use crate::engine::{Engine, find};
    use crate::memory::Memory;
    use crate::server::duplicates::{Asked, Known};
    use crate::server::pending::Begun;
    use crate::service::dispatch::ReplyPolicy;
    use crate::service::{Procedure, Repeat, Token};
    use crate::state::{Link, Pass};

    /// A client and a server, connected, and what the client was told.
    struct Pair {
        world: World,
        server: (Engine<Sim, ()>, Memory),
        client: (Engine<Sim, ()>, Memory),
        connection: ConnectionId,
        events: Vec<ConnectionEvent>,
    }

    fn engine(world: &World, name: &str) -> (Engine<Sim, ()>, Memory) {
        let config =
            EngineConfig { credits_max: 4, connections_max: 2, receives_max: 16, ..EngineConfig::default() };
        let memory = Memory::new(&config, 1 << 20).expect("a few megabytes");
        let mut sim = world.provider(name);
        sim.register(&memory.arena).expect("an arena");
        (Engine::new(sim, (), memory.pools.clone(), config, 7).expect("it fits"), memory)
    }

    impl Pair {
        fn new() -> Pair {
            let world = World::new(1, FaultPlan::default());
            let (mut server, mut client) = (engine(&world, "server"), engine(&world, "client"));
            server.0.listen("server").expect("the address is free");
            let connection = client.0.connect("server").expect("the address is fine");
            let mut pair = Pair { world, server, client, connection, events: Vec::new() };
            pair.run(|pair| pair.events == [ConnectionEvent::Established { connection }]);
            pair
        }

        fn run(&mut self, mut is_done: impl FnMut(&mut Pair) -> bool) {
            for _ in 0..10_000 {
                if is_done(self) {
                    return;
                }
                let now = self.world.now();
                let count = self.server.0.poll(now) + self.client.0.poll(now);
                self.events.extend(self.client.0.connection_event());
                if count == 0 {
                    let timers = [self.server.0.next_timeout(), self.client.0.next_timeout()];
                    self.world.advance_before(timers.into_iter().flatten().min());
                }
            }
            panic!("what was awaited did not happen");
        }

        /// The server's end of the connection.
        fn accepted(&self) -> ConnectionId {
            self.server.0.connections.iter().flatten().next().expect("a connection").id
        }

        /// The connection ends on both sides, and nothing is left of it.
        fn ends(mut self) -> Vec<ConnectionEvent> {
            self.run(|pair| pair.server.0.is_drained() && pair.client.0.is_drained());
            self.run(|pair| pair.events.len() > 1);
            assert_eq!(self.server.1.ledger.outstanding(), 0, "{}", self.server.1.ledger);
            assert_eq!(self.client.1.ledger.outstanding(), 0, "{}", self.client.1.ledger);
            assert_eq!(self.server.0.core.credits.taken(), 0);
            self.events.split_off(1)
        }
    }

    fn null() -> Request<'static> {
        Request {
            program: 1,
            version: 1,
            procedure: 0,
            credentials: Credentials::None,
            user: 5,
            timeout: Duration::from_secs(1),
            results_len_max: 0,
            retransmit: false,
            reply_mode: ReplyMode::Auto,
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a defect of this engine: two and two is five")]
    fn a_defect_is_an_assertion_where_it_is_developed() {
        let _ = fault("two and two is five");
    }

    #[test]
    fn a_read_that_no_call_waits_for_ends_one_connection_and_leaks_nothing() {
        for request in [0, 1 << 32 | 3, 99 << 32, u64::MAX] {
            let mut pair = Pair::new();
            let id = pair.accepted();
            let buf = pair.server.1.pools.payload.take_len(100).expect("a page");
            let engine = &mut pair.server.0;
            let found = find(&mut engine.connections, id).expect("it is connected");
            let serving = found.serving.as_mut().expect("a server's");
            let read = FinishedRead { request, buf, result: Ok(()) };
            let pass = &mut Pass { core: &mut engine.core, services: &mut () };
            let done = tolerated(|| serving.read_done(pass, Link { id, peer: None }, read));
            let reason = done.expect_err("no Call is there");
            assert_eq!(reason, CloseReason::Fault("a Read is done for a Call that is in no slot"));
            found.close(&mut engine.core, reason);
            assert_eq!(engine.core.statistics.faults, 1);
            let events = pair.ends();
            assert!(matches!(events[..], [ConnectionEvent::Closed { .. }]), "{events:?}");
        }
    }

    /// Its message was behind another one that ended the connection. Who sends it again over a new connection is not left waiting.
    #[test]
    fn a_call_that_was_executed_where_it_arrived_is_not_running_for_ever_when_its_connection_ends() {
        static ONCE: Procedure = Procedure { repeat: Repeat::Harmful, ..Procedure::plain("MAKE") };
        let peer = Peer::Address("10.0.0.1:800".parse().expect("an address"));
        for is_answered in [true, false] {
            let mut pair = Pair::new();
            let id = pair.accepted();
            let engine = &mut pair.server.0;
            let state = &mut engine.core.state;
            let look = |state: &mut EngineState, xid| {
                let asked = Asked {
                    procedure: &ONCE,
                    connection: id,
                    peer: Some(&peer),
                    xid,
                    stream: &[0; 40],
                    arguments: &Reader::new(&[]),
                    items: &[],
                    now: Duration::ZERO,
                };
                state.duplicates.lookup(&asked, &mut state.statistics)
            };
            let Known::New(entry) = look(state, 3) else { panic!("it is new") };
            let draft = is_answered.then(|| state.drafts.take());
            let terms = ReplyPolicy { kept: Some(entry), ..ReplyPolicy::ENGINE };
            let found = find(&mut engine.connections, id).expect("it is connected");
            let serving = found.serving.as_mut().expect("a server's");
            // Not the next slot any more: another Call has ended since.
            let slot = serving.responder.next_slot() + 1;
            let token = Token { connection: id, slot, xid: 3 };
            serving.begun = Some(Begun { xid: 3, slot, terms, draft, pull: None });
            found.close(&mut engine.core, CloseReason::Violation("it is wrong"));
            pair.run(|pair| pair.server.0.connections.iter().flatten().count() == 0);
            let state = &mut pair.server.0.core.state;
            if is_answered {
                assert!(matches!(look(state, 3), Known::New(_)), "its Reply was not made, so none is kept");
            } else {
                assert_eq!(state.duplicates.take_orphan(&token), Some(entry), "its answer is still to come");
            }
            pair.ends();
        }
    }

    #[test]
    fn a_defect_of_the_client_is_told_and_the_connection_is_not_made_anew() {
        let mut pair = Pair::new();
        let connection = pair.connection;
        let found = find(&mut pair.client.0.connections, connection).expect("it is connected");
        found.calling.as_mut().expect("a client's").interrupted = 1;
        pair.client.0.core.ready.touch(found);
        let now = pair.world.now();
        tolerated(|| pair.client.0.poll(now));
        assert_eq!(pair.client.0.statistics().faults, 1);
        let reason = CloseReason::Fault("interrupted Calls are counted that are not there");
        assert_eq!(pair.ends(), [ConnectionEvent::Closed { connection, reason }]);
    }

    #[test]
    fn a_call_that_is_over_without_an_end_is_handed_to_its_user() {
        let mut pair = Pair::new();
        let connection = pair.connection;
        let engine = &mut pair.client.0;
        let call = engine.call(connection, &null(), &mut Chunks::default(), |_| Ok(())).expect("a credit");
        let found = find(&mut engine.connections, connection).expect("it is connected");
        tolerated(|| found.calling.as_mut().expect("a client's").finish(&mut engine.core, call.call));
        let done = engine.completed().expect("it is over");
        assert_eq!((done.user, done.result.err()), (5, Some(CallError::ConnectionLost)));
        let reason = CloseReason::Fault("a Call is over without an outcome");
        assert_eq!(pair.ends(), [ConnectionEvent::Closed { connection, reason }]);
    }
}
