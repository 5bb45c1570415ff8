//! Retransmissions (5531-e): over the same connection, and over another one.

use std::time::Duration;

use stag_rpc::EngineConfig;

use super::peer::{Peer, Server, call, config, outcome, record, results};
use crate::support::program::{ECHO, NEVER, ONCE, TIMELY, TIMELY_PUT};

fn once(xid: u32, procedure: u32, delay: u64, filler: u32) -> Vec<u8> {
    record(&call(xid, procedure, |writer| {
        writer.u64(delay)?;
        writer.u32(filler)
    }))
}

/// What ONCE counts.
#[track_caller]
fn count(server: &mut Server, peer: &mut Peer, xid: u32, procedure: u32) -> u32 {
    let reply = server.exchange(peer, &once(xid, procedure, 0, 0));
    let counted = results(&reply, xid);
    u32::from_be_bytes(counted[..4].try_into().expect("a count"))
}

fn wait_until_gone(server: &mut Server) {
    server.until(|server| server.node.engine.stream_count() == 0);
}

#[test]
fn another_connection_is_the_same_caller() {
    let mut server = Server::new();
    for (xid, procedure) in [(1, ONCE), (2, TIMELY)] {
        let mut peer = server.connect();
        let first = count(&mut server, &mut peer, xid, procedure);
        assert_eq!(count(&mut server, &mut peer, xid, procedure), first);
        drop(peer);
        wait_until_gone(&mut server);
        let mut peer = server.connect();
        assert_eq!(count(&mut server, &mut peer, xid, procedure), first);
        // Another xid, other arguments, another length: another Call.
        assert_eq!(count(&mut server, &mut peer, xid + 10, procedure), first + 1);
        let reply = server.exchange(&mut peer, &once(xid, procedure, 0, 1));
        assert_eq!(results(&reply, xid)[..4], (first + 2).to_be_bytes());
        let longer = record(&call(xid, procedure, |writer| writer.u64(0)));
        let reply = server.exchange(&mut peer, &longer);
        assert_eq!(results(&reply, xid), (first + 3).to_be_bytes());
        drop(peer);
        wait_until_gone(&mut server);
    }
    assert_eq!(server.statistics().duplicates_answered, 4);
    server.close();
}

/// The same xid, length and arguments, but other data: another Call, whether the data is placed or came with the rest. The
/// same data is the same Call, however it came.
#[test]
fn other_data_is_another_call() {
    let mut server = Server::new();
    let mut peer = server.connect();
    let put = |xid, len: usize, fill| {
        record(&call(xid, TIMELY_PUT, |writer| {
            writer.u32(1)?;
            writer.opaque(&vec![fill; len])
        }))
    };
    let mut expected = 0u32;
    for (xid, len) in [(1, 4), (2, 1000), (3, 300_000)] {
        for fill in [1, 2] {
            expected += 1;
            for _ in 0..2 {
                let reply = server.exchange(&mut peer, &put(xid, len, fill));
                assert_eq!(results(&reply, xid), expected.to_be_bytes(), "{len} octets of {fill}");
            }
        }
    }
    // In two parts, so that it is placed; it came whole before.
    let octets = put(2, 1000, 2);
    server.send(&mut peer, &octets[..200]);
    for _ in 0..10 {
        server.pass();
    }
    let reply = server.exchange(&mut peer, &octets[200..]);
    assert_eq!(results(&reply, 2), 4u32.to_be_bytes());
    server.close();
}

/// A Call that may be executed again is.
#[test]
fn harmless_calls_are_executed_again() {
    let mut server = Server::new();
    let mut peer = server.connect();
    for executed in 1..4 {
        let octets = record(&call(1, ECHO, |writer| writer.opaque(b"again")));
        assert_eq!(outcome(&server.exchange(&mut peer, &octets), 1), stag_wire::rpc::Accepted::Success);
        assert_eq!(server.node.engine.services_mut().0.executed, executed);
    }
    server.close();
}

/// While it is executed, it is dropped where it came first, and waits for the answer elsewhere.
#[test]
fn calls_that_are_executed_now() {
    let mut server = Server::new();
    let (mut first, mut second) = (server.connect(), server.connect());
    server.send(&mut first, &once(1, ONCE, 20_000, 0));
    server.until(|server| server.node.engine.services_mut().0.kept() == 1);
    server.send(&mut first, &once(1, ONCE, 20_000, 0));
    server.send(&mut second, &once(1, ONCE, 20_000, 0));
    server.send(&mut second, &once(1, ONCE, 20_000, 0));
    server.until(|server| server.statistics().duplicates_dropped == 2);
    assert_eq!(results(&server.reply(&mut first), 1), 1u32.to_be_bytes());
    assert_eq!(results(&server.reply(&mut second), 1), 1u32.to_be_bytes());
    let reply = server.exchange(&mut second, &once(1, ONCE, 20_000, 0));
    assert_eq!(results(&reply, 1), 1u32.to_be_bytes());
    assert!(!first.has_octets() && !second.has_octets());
    assert_eq!(server.node.engine.services_mut().0.counted, 1);
    server.close();
}

/// The connection is gone when the answer is ready: a retransmission over a new one gets it there, at once.
#[test]
fn answers_to_connections_that_are_gone() {
    let mut server = Server::new();
    let mut peer = server.connect();
    server.send(&mut peer, &once(1, ONCE, NEVER, 0));
    server.until(|server| server.node.engine.services_mut().0.kept() == 1);
    // Unread octets make its end an abort.
    let replies = server.statistics().replies_sent;
    server.send(&mut peer, &record(&call(2, ECHO, |writer| writer.opaque(b""))));
    server.until(|server| server.statistics().replies_sent > replies);
    peer.abort();
    wait_until_gone(&mut server);
    let mut peer = server.connect();
    let received = server.statistics().calls_received;
    server.send(&mut peer, &once(1, ONCE, NEVER, 0));
    server.until(|server| server.statistics().calls_received > received);
    assert!(!peer.has_octets());
    server.node.engine.services_mut().0.release();
    assert_eq!(results(&server.reply(&mut peer), 1), 1u32.to_be_bytes());
    let reply = server.exchange(&mut peer, &once(1, ONCE, NEVER, 0));
    assert_eq!(results(&reply, 1), 1u32.to_be_bytes());
    let program = &server.node.engine.services_mut().0;
    assert_eq!((program.counted, program.finished, program.abandoned), (1, 1, 0));
    server.close();
}

/// What is kept has an end: by number, by age, by length; and can be switched off. WRITEs push out only WRITEs.
#[test]
fn what_is_not_kept() {
    let mut server = Server::with(EngineConfig { duplicates_max: 16, ..config() }, 4 << 20);
    let mut peer = server.connect();
    let first = count(&mut server, &mut peer, 1, ONCE);
    for xid in 100..200 {
        count(&mut server, &mut peer, xid, TIMELY);
    }
    assert_eq!(count(&mut server, &mut peer, 1, ONCE), first);
    for xid in 2..17 {
        count(&mut server, &mut peer, xid, ONCE);
    }
    assert_eq!(count(&mut server, &mut peer, 1, ONCE), first, "16 are kept");
    count(&mut server, &mut peer, 17, ONCE);
    let last = server.node.engine.services_mut().0.counted;
    assert_eq!(count(&mut server, &mut peer, 1, ONCE), last + 1, "the oldest made place");
    assert_eq!(count(&mut server, &mut peer, 17, ONCE), last);

    server.wait(Duration::from_secs(121));
    assert_eq!(count(&mut server, &mut peer, 17, ONCE), last + 2, "too old to be a retransmission");

    for counted in last + 3..last + 6 {
        let reply = server.exchange(&mut peer, &once(50, ONCE, 0, 75));
        assert_eq!(results(&reply, 50)[..4], counted.to_be_bytes(), "too long to be kept");
    }
    assert_eq!(server.statistics().duplicates_unkept, 3);
    server.close();

    let mut server = Server::with(EngineConfig { duplicates_max: 0, ..config() }, 4 << 20);
    let mut peer = server.connect();
    assert_eq!([1, 2].map(|_| count(&mut server, &mut peer, 1, ONCE)), [1, 2]);
    server.close();
}

/// More Calls under way than can be kept: they are executed all the same.
#[test]
fn more_at_once_than_can_be_kept() {
    let mut server = Server::with(EngineConfig { duplicates_max: 8, ..config() }, 4 << 20);
    let mut peer = server.connect();
    for xid in 0..30 {
        server.send(&mut peer, &once(xid, ONCE, 100_000, 0));
    }
    let mut seen: Vec<u32> = (0..30)
        .map(|_| u32::from_be_bytes(server.reply(&mut peer)[..4].try_into().expect("an xid")))
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..30).collect::<Vec<_>>());
    assert_eq!(server.statistics().duplicates_unkept, 22);
    server.close();
}
