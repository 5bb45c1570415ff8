//! An address's part of the payload memory over TCP: whatever its connections do, and however many they are, others go on.

use std::time::Duration;

use stag_rpc::EngineConfig;

use super::peer::{Peer, Server, call, config, record, results};
use crate::support::program::{ECHO, FILL, PUT_ONE, pattern, sum};
use crate::support::words;

/// Pages of the server's payload memory.
const PAGES: usize = (8 << 20) / 4096;

/// The buffer that all connections receive in, and a page for each of their records.
const SHARED: usize = 16;

const MEBI: usize = 1 << 20;

fn server() -> Server {
    Server::with(EngineConfig { streams_max: 256, ..config() }, PAGES * 4096)
}

fn put(data: &[u8]) -> Vec<u8> {
    record(&call(1, PUT_ONE, |writer| writer.u32(1).and_then(|()| writer.opaque(data))))
}

/// Writes what the server takes of `octets`.
fn write_some(server: &mut Server, peer: &mut Peer, octets: &[u8]) {
    let (mut at, mut idle) = (0, 0);
    while at < octets.len() && idle < 20 {
        let count = peer.write(&octets[at..]);
        at += count;
        idle = if count == 0 { idle + 1 } else { 0 };
        server.pass();
    }
}

/// A client of another address goes on at once, with much data and with long results.
#[track_caller]
fn check_honest(server: &mut Server) {
    let mut honest = server.connect();
    let data = pattern(5, MEBI);
    let begun = server.now;
    let reply = server.exchange(&mut honest, &put(&data));
    assert_eq!(results(&reply, 1), [0u32.to_be_bytes(), sum(&data).to_be_bytes()].concat());
    let filled = server.exchange(&mut honest, &record(&call(2, FILL, |writer| words(writer, &[1 << 20]))));
    assert_eq!(results(&filled, 2).len(), 4 + MEBI);
    let took = server.now - begun;
    assert!(took < Duration::from_millis(90), "it took {took:?}: somebody had to be ended for it");
}

#[test]
fn records_that_are_never_ended_are_their_addresss() {
    let data = pattern(1, MEBI);
    let octets = put(&data);
    for count in [24, 200] {
        let mut server = server();
        let mut silent: Vec<Peer> = (0..count).map(|_| server.connect_from([127, 0, 0, 2])).collect();
        for peer in &mut silent {
            // Trusted, until they are silent.
            drop(server.exchange(peer, &put(&data[..5000])));
        }
        for peer in &mut silent {
            write_some(&mut server, peer, &octets[..600_000]);
        }
        let held = server.node.outstanding();
        assert!(held <= PAGES / 2 + SHARED + 2 * count, "{count} connections hold {held} of {PAGES} pages");
        check_honest(&mut server);
        drop(silent);
        server.close();
    }
}

/// The first octets of a record get a page from what bulk data leaves: one address cannot take all of that by records that it
/// begins and never ends.
#[test]
fn records_that_only_begin_leave_room_for_those_of_others() {
    let mut server = small_server();
    let mut silent: Vec<Peer> = (0..200).map(|_| server.connect_from([127, 0, 0, 2])).collect();
    let octets = record(&call(1, ECHO, |writer| writer.opaque(b"never ended")));
    for peer in &mut silent {
        write_some(&mut server, peer, &octets[..20]);
    }
    let begun = server.now;
    for _ in 0..3 {
        let mut honest = server.connect();
        let reply = server.exchange(&mut honest, &record(&call(2, ECHO, |writer| writer.opaque(b"short"))));
        assert_eq!(results(&reply, 2), [&5u32.to_be_bytes()[..], b"short\0\0\0"].concat());
    }
    let took = server.now - begun;
    assert!(took < Duration::from_millis(90), "it took {took:?}: somebody had to be ended for it");
    assert_eq!(server.statistics().stream_timeouts, 0);
    drop(silent);
    server.close();
}

/// Pages of a server that has fewer of them than it may have connections.
const FEW_PAGES: usize = 64;

/// More small Replies than a socket takes.
const CALLS_MAX: usize = 100_000;

fn small_server() -> Server {
    Server::with(EngineConfig { streams_max: 256, ..config() }, FEW_PAGES * 4096)
}

/// Several addresses together can begin enough records to take every page while no Call waits.
#[test]
fn records_that_only_begin_at_many_addresses_are_ended_for_others() {
    let mut server = small_server();
    let octets = record(&call(1, ECHO, |writer| writer.opaque(b"never ended")));
    let mut silent = Vec::new();
    let pool = server.node.memory.pools.payload.clone();
    for host in 2..20 {
        // As many as are its part of what bulk data leaves: none of them has to wait.
        let mut begun = 0;
        while pool.transit_free() >= 2
            && (pool.transit_free() > FEW_PAGES / 16 || begun < pool.transit_free())
        {
            let mut peer = server.connect_from([127, 0, 0, host]);
            let free = pool.transit_free();
            assert_eq!(peer.write(&octets[..20]), 20);
            server.until(|_| pool.transit_free() < free);
            silent.push(peer);
            begun += 1;
        }
    }
    assert!(pool.transit_free() < 2, "the last page is taken");
    for _ in 0..3 {
        let begun = server.now;
        server.check_alive();
        let took = server.now - begun;
        assert!(took < Duration::from_secs(1), "it took {took:?}");
    }
    let ended = server.statistics().stream_timeouts;
    assert!((1..=4).contains(&ended), "{ended} were ended: not as few as it takes");
    drop(silent);
    server.close();
}

#[test]
fn untaken_replies_are_their_addresss() {
    for count in [24, 200] {
        let mut server = server();
        let mut silent: Vec<Peer> = (0..count).map(|_| server.connect_from([127, 0, 0, 2])).collect();
        for round in 0..4 {
            for peer in &mut silent {
                let octets = record(&call(round, FILL, |writer| words(writer, &[1 << 20])));
                assert_eq!(peer.write(&octets), octets.len());
                server.pass();
            }
        }
        let held = server.node.outstanding();
        assert!(held <= PAGES / 2 + SHARED + 3 * count, "{count} connections hold {held} of {PAGES} pages");
        check_honest(&mut server);
        assert_eq!(server.statistics().stream_timeouts, 0);
        drop(silent);
        server.close();
    }
}

/// A peer at `host` asks for small Replies and takes none, until a page holds what its socket does not take. `None`: the server
/// takes no more Calls of it before that.
fn leave_untaken(server: &mut Server, host: [u8; 4]) -> Option<Peer> {
    let pool = server.node.memory.pools.payload.clone();
    let mut peer = server.connect_narrow(host);
    let free = pool.transit_free();
    let octets = record(&call(1, ECHO, |writer| writer.opaque(&[0; 900])));
    for _ in 0..CALLS_MAX {
        let calls = server.statistics().calls_received;
        assert_eq!(peer.write(&octets), octets.len());
        let is_taken = (0..10).any(|_| {
            server.pass();
            server.statistics().calls_received > calls
        });
        if pool.transit_free() < free {
            return Some(peer);
        }
        if !is_taken {
            return None;
        }
    }
    panic!("the socket took {CALLS_MAX} Replies");
}

/// Small Replies are in pages of what bulk data leaves: one address cannot take all of that by Replies that it does not take.
#[test]
fn small_untaken_replies_leave_room_for_those_of_others() {
    let mut server = small_server();
    server.check_alive();
    let silent: Vec<Peer> =
        (0..FEW_PAGES).map_while(|_| leave_untaken(&mut server, [127, 0, 0, 2])).collect();
    let begun = server.now;
    for _ in 0..3 {
        server.check_alive();
    }
    let took = server.now - begun;
    assert!(took < Duration::from_millis(90), "it took {took:?}: somebody had to be ended for it");
    assert_eq!(server.statistics().stream_timeouts, 0);
    drop(silent);
    server.close();
}

/// Several addresses together can leave as many untaken as there are pages.
#[test]
fn small_untaken_replies_at_many_addresses_are_ended_for_others() {
    let mut server = small_server();
    server.check_alive();
    let mut silent = Vec::new();
    let pool = server.node.memory.pools.payload.clone();
    for host in 2..100 {
        // As many as are its part of what bulk data leaves.
        while pool.transit_free() >= 2
            && let Some(peer) = leave_untaken(&mut server, [127, 0, 0, host])
        {
            silent.push(peer);
        }
    }
    assert!(pool.transit_free() < 2, "{} pages are free", pool.transit_free());
    for _ in 0..3 {
        let begun = server.now;
        server.check_alive();
        let took = server.now - begun;
        assert!(took < Duration::from_secs(1), "it took {took:?}");
    }
    let ended = server.statistics().stream_timeouts;
    assert!((1..=4).contains(&ended), "{ended} were ended: not as few as it takes");
    drop(silent);
    server.close();
}
