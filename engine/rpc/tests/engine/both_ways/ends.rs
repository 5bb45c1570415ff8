//! A server that calls its client back, over a simulated fabric.

use std::time::Duration;

use stag_fabric::sim::{FaultPlan, Violations, World};
use stag_rpc::{
    CallId, CallRefused, Chunks, ClientPolicy, CloseReason, ConnectionEvent, ConnectionId, EngineConfig,
    Request,
};
use stag_runtime::Poller;
use stag_wire::xdr::{Overflow, Writer};

use crate::support::program::{ECHO, Program};
use crate::support::{ADDRESS, Ended, Node, bytes, opaque, request_for, small};

/// Credits of the reverse direction.
pub(crate) const REVERSE_CREDITS: u32 = 4;

pub(crate) fn config() -> EngineConfig {
    EngineConfig { reverse_credits: REVERSE_CREDITS, ..small() }
}

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// It opened the connection: its Calls are forward ones.
    Client,
    /// It accepted the connection: its Calls are reverse ones.
    Server,
}

/// Both ends, and the world between them.
pub(crate) struct Ends {
    pub(crate) world: World,
    pub(crate) server: Node<(Program,)>,
    pub(crate) client: Node<(Program,)>,
    /// What the client calls the connection.
    pub(crate) forward: ConnectionId,
    /// What the server calls it.
    pub(crate) reverse: ConnectionId,
}

impl Ends {
    pub(crate) fn new() -> Ends {
        Ends::with(FaultPlan::default(), config(), config(), ClientPolicy::default())
    }

    pub(crate) fn with(
        plan: FaultPlan,
        server: EngineConfig,
        client: EngineConfig,
        policy: ClientPolicy,
    ) -> Ends {
        let world = World::new(1, plan);
        let node = |name, config| {
            Node::new(&world, name, config, 4 << 20, |memory| (Program::new(memory.pools.payload.clone()),))
        };
        let (mut server, mut client) = (node("server", server), node("client", client));
        server.engine.listen(ADDRESS).expect("the address is free");
        let forward = client.engine.connect_with(ADDRESS, policy).expect("the address is fine");
        let mut ends = Ends { world, server, client, forward, reverse: forward };
        let wanted = ConnectionEvent::Established { connection: forward };
        ends.run(|ends| ends.client.events.contains(&wanted));
        ends.introduce();
        ends
    }

    /// A forward Call, by which the server learns the connection, and that its client takes Calls (8167-6-a).
    #[track_caller]
    pub(crate) fn introduce(&mut self) {
        self.check(Side::Client);
        self.reverse = self.server.engine.services_mut().0.called_on.expect("it was called");
    }

    pub(crate) fn node(&mut self, side: Side) -> &mut Node<(Program,)> {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    pub(crate) fn pass(&mut self) -> usize {
        let now = self.world.now();
        self.server.poll(now) + self.client.poll(now)
    }

    pub(crate) fn step_before(&mut self, end: Option<Duration>) -> bool {
        if self.pass() > 0 {
            return true;
        }
        let timers = [self.client.engine.next_timeout(), self.server.engine.next_timeout(), end];
        self.world.advance_before(timers.into_iter().flatten().min())
    }

    #[track_caller]
    pub(crate) fn run(&mut self, mut done: impl FnMut(&mut Ends) -> bool) {
        for _ in 0..1_000_000 {
            if done(self) {
                return;
            }
            assert!(self.step_before(None) || done(self), "nothing happens, and what was awaited did not");
        }
        panic!("what was awaited did not happen");
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.world.now() + time;
        while self.world.now() < end {
            self.step_before(Some(end));
        }
    }

    /// Begins a Call of one side.
    pub(crate) fn begin(
        &mut self,
        side: Side,
        request: &Request<'_>,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<CallId, CallRefused> {
        match side {
            Side::Client => self.client.engine.call(self.forward, request, &mut Chunks::default(), encode),
            Side::Server => self.server.engine.call_back(self.reverse, request, encode),
        }
    }

    /// Runs until a Call of one side is over.
    #[track_caller]
    pub(crate) fn finish(&mut self, side: Side, call: CallId) -> Ended {
        self.run(|ends| ends.node(side).done.iter().any(|done| done.call == call));
        let done = &mut self.node(side).done;
        let at = done.iter().position(|done| done.call == call).expect("just seen");
        Ended::of(done.swap_remove(at))
    }

    /// A whole Call of one side.
    #[track_caller]
    pub(crate) fn call(
        &mut self,
        side: Side,
        request: &Request<'_>,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Ended {
        let call = self.begin(side, request, encode).expect("the Call is begun");
        self.finish(side, call)
    }

    /// An echo comes back to this side.
    #[track_caller]
    pub(crate) fn check(&mut self, side: Side) {
        let done = self.call(side, &request_for(ECHO, 64), |writer| writer.opaque(b"alive?"));
        assert_eq!(bytes(&done), opaque(b"alive?"));
    }

    /// How one side's end of the connection ended, as it was told.
    pub(crate) fn closed(&mut self, side: Side) -> Option<CloseReason> {
        self.node(side).events.iter().find_map(|event| match event {
            ConnectionEvent::Closed { reason, .. } => Some(reason.clone()),
            _ => None,
        })
    }

    /// Ends the connection, and sees that nothing is left anywhere.
    #[track_caller]
    pub(crate) fn close(mut self) {
        self.client.engine.disconnect(self.forward);
        self.run(|ends| ends.client.engine.is_drained() && ends.server.engine.is_drained());
        for side in [Side::Client, Side::Server] {
            self.node(side).engine.services_mut().0.release();
        }
        for _ in 0..100 {
            self.pass();
        }
        for side in [Side::Client, Side::Server] {
            let node = self.node(side);
            node.done.clear();
            assert_eq!(node.outstanding(), 0, "{side:?}: {}", node.memory.ledger);
        }
        assert_eq!(self.world.violations(), Violations::default());
    }
}
