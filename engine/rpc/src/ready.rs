//! The connections with work to do, so that a pass costs nothing for the others.

use crate::ConnectionId;
use crate::connection::{Connection, Connections};
use crate::engine::find;

/// Connections by their places, each once in a list.
#[derive(Debug, Default)]
pub(crate) struct ReadyLists {
    /// With something that may wait for memory, room in a queue, or the end of the others.
    pub(crate) touched: Vec<u32>,
    /// Touched where the connection itself was not at hand.
    touched_late: Vec<ConnectionId>,
    /// With a deadline, or touched since the last scan.
    pub(crate) awake: Vec<u32>,
}

/// In which lists a connection is.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    pub(crate) is_touched: bool,
    pub(crate) is_awake: bool,
}

impl ReadyLists {
    /// The next flush looks at the connection, and scans do until it has no deadline.
    #[inline(always)]
    pub(crate) fn touch(&mut self, found: &mut Connection) {
        if !found.listed.is_touched {
            found.listed.is_touched = true;
            self.touched.push(found.id.index);
            self.wake(found);
        }
    }

    /// As [`ReadyLists::touch`], of a connection by its queue pair.
    #[cold]
    pub(crate) fn touch_late(&mut self, id: ConnectionId) {
        if self.touched_late.last() != Some(&id) {
            self.touched_late.push(id);
        }
    }

    /// Whether a flush has something to look at.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        !self.touched.is_empty() || !self.touched_late.is_empty()
    }

    /// Whether that was done, and no flush was since.
    pub(crate) fn is_touched_late(&self, id: ConnectionId) -> bool {
        self.touched_late.contains(&id)
    }

    /// What the next flush looks at, once. It is given back to `touched` as far as it waits.
    pub(crate) fn take_touched(&mut self, connections: &mut Connections) -> Vec<u32> {
        while let Some(id) = self.touched_late.pop() {
            if let Some(found) = find(connections, id) {
                self.touch(found);
            }
        }
        std::mem::take(&mut self.touched)
    }

    /// Scans look at the connection until it has no deadline.
    #[inline(always)]
    pub(crate) fn wake(&mut self, found: &mut Connection) {
        if !found.listed.is_awake {
            found.listed.is_awake = true;
            self.awake.push(found.id.index);
        }
    }

    /// The connection leaves its place.
    #[cold]
    pub(crate) fn forget(&mut self, gone: &mut Connection) {
        gone.listed = Listed::default();
        for list in [&mut self.touched, &mut self.awake] {
            list.retain(|&index| index != gone.id.index);
        }
    }

    /// Makes room for this number of connections.
    pub(crate) fn reserve(&mut self, connections: usize) {
        for list in [&mut self.touched, &mut self.awake] {
            list.reserve(connections.saturating_sub(list.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use stag_fabric::Provider;
    use stag_fabric::sim::{FaultPlan, Sim, World};
    use stag_runtime::Poller;

    use crate::client::{Chunks, Credentials, ReplyMode, Request};
    use crate::{Engine, EngineConfig, Memory};

    const IDLE: usize = 50;

    fn engine(world: &World, name: &str) -> Engine<Sim, ()> {
        let config = EngineConfig {
            credits_max: 2,
            connections_max: 64,
            receives_max: 256,
            ..EngineConfig::default()
        };
        let memory = Memory::new(&config, 1 << 20).expect("a few megabytes");
        let mut sim = world.provider(name);
        sim.register(&memory.arena).expect("an arena");
        Engine::new(sim, (), memory.pools, config, 7).expect("it fits")
    }

    /// Lengths of the lists: to flush, and to scan.
    fn lens(engine: &Engine<Sim, ()>) -> [usize; 2] {
        let ready = &engine.core.ready;
        [ready.touched.len() + ready.touched_late.len(), ready.awake.len()]
    }

    #[test]
    fn a_pass_looks_at_no_connection_that_is_idle() {
        let world = World::new(1, FaultPlan::default());
        let (mut server, mut client) = (engine(&world, "server"), engine(&world, "client"));
        server.listen("server").expect("the address is free");
        let connections: Vec<_> = (0..=IDLE).map(|_| client.connect("server").expect("it is fine")).collect();
        let mut run = |client: &mut Engine<Sim, ()>, time: Duration| {
            let end = world.now() + time;
            while world.now() < end {
                let count = server.poll(world.now()) + client.poll(world.now());
                if count == 0 && !world.advance_before(Some(end)) {
                    break;
                }
            }
            server.poll(end);
            client.poll(end);
            (server.connection_count(), lens(&server), server.next_timeout())
        };
        let second = Duration::from_secs(1);
        let idle = run(&mut client, second);
        assert_eq!(idle, (IDLE + 1, [0, 0], None), "of {IDLE} idle connections, none is in a list");
        assert_eq!((lens(&client), client.next_timeout()), ([0, 0], None));

        let request = Request {
            program: 1,
            version: 1,
            procedure: 0,
            credentials: Credentials::None,
            user: 5,
            timeout: second,
            results_len_max: 0,
            retransmit: false,
            reply_mode: ReplyMode::Auto,
        };
        client.call(connections[7], &request, &mut Chunks::default(), |_| Ok(())).expect("a credit");
        assert_eq!(lens(&client), [0, 1], "one Call, one deadline");
        assert!(client.next_timeout().is_some());
        run(&mut client, second);
        assert!(client.completed().is_some());
        assert_eq!(run(&mut client, second), (IDLE + 1, [0, 0], None));
        assert_eq!(lens(&client), [0, 0]);
    }
}
