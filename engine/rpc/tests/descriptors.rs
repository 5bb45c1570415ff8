//! A process whose descriptors run out: a program of its own, because the limit is the process's.

#[path = "engine/support/mod.rs"]
mod support;

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stag_fabric::sim::{FaultPlan, World};
use stag_rpc::EngineConfig;
use stag_runtime::Poller;

use support::program::Program;
use support::{Node, small};

/// No connection can be accepted: that is tried a few times a second, not all the time, and the reactor may sleep. Then
/// it works again.
#[test]
fn listeners_are_left_alone_while_no_descriptor_is_left() {
    let world = World::new(1, FaultPlan::default());
    let config = EngineConfig { streams_max: 8, ..small() };
    let mut node =
        Node::new(&world, "server", config, 1 << 20, |memory| (Program::new(memory.pools.payload.clone()),));
    let address = node.engine.listen_tcp("127.0.0.1:0").expect("a port is free");
    let client = TcpStream::connect(address).expect("it listens");
    let before = getrlimit(Resource::Nofile);
    let lowest = Rlimit { current: Some(client.as_raw_fd() as u64 + 1), ..before };
    setrlimit(Resource::Nofile, lowest).expect("it may be lowered");
    let mut now = Duration::ZERO;
    let mut sleeps = 0;
    for _ in 0..10_000 {
        now += Duration::from_micros(100);
        node.poll(now);
        let timeout = node.engine.next_timeout();
        sleeps += u32::from(node.engine.arm() && timeout.is_none_or(|timeout| timeout > now));
        node.engine.disarm();
    }
    setrlimit(Resource::Nofile, before).expect("as it was");
    let failed = node.engine.statistics().accepts_failed;
    assert!((5..=11).contains(&failed), "{failed} in a second");
    assert!(sleeps > 9_000, "{sleeps}");
    while node.engine.stream_count() == 0 {
        now += Duration::from_micros(100);
        node.poll(now);
        assert!(now < Duration::from_secs(2), "it is not accepted");
    }
    drop(client);
}
