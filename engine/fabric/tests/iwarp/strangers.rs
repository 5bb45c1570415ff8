//! Connections of another protocol on the same port.

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use stag_fabric::Provider;
use stag_fabric::iwarp::IwarpConfig;

use crate::server::{Peer, Server};

/// The record mark of a Call over TCP, and a fragment that is not the last: both are handed out, with every octet.
#[test]
fn a_record_mark_is_handed_out() {
    let mut server = Server::new(IwarpConfig::default());
    for first in [&b"\x80\x00\x00\x28and a Call"[..], b"\x00\x00\x10\x00a fragment", b"\x80"] {
        let mut peer = Peer::new(&server);
        peer.say(first);
        let stranger = server.until("it is handed out", |server| server.iwarp.take_stranger());
        assert_eq!(Some(stranger.peer), peer.socket.local_addr().ok());
        let mut socket = TcpStream::from(stranger.socket);
        let mut octets = [0; 64];
        let count = socket.read(&mut octets).expect("the octets are there");
        assert_eq!(octets[..count], *first, "nothing was consumed");
        let would_block = socket.read(&mut octets).expect_err("nothing more");
        assert_eq!(would_block.kind(), std::io::ErrorKind::WouldBlock, "and it does not block");
        peer.listen();
        assert!(!peer.is_closed);
    }
    assert_eq!(server.counters().strangers, 3);
    // Beside them, RDMA on the same port.
    let (mut peer, pair) = Peer::connect(&mut server);
    let octets = peer.send(b"RDMA");
    peer.say(&octets);
    assert_eq!(server.message(pair), b"RDMA");
}

/// Where they are not taken they are closed: those beyond a number at once, the others after a while.
#[test]
fn strangers_that_are_not_taken() {
    let mut server = Server::new(IwarpConfig::default());
    let mut peers: Vec<Peer> = (0..100)
        .map(|_| {
            let mut peer = Peer::new(&server);
            peer.say(b"\x80\x00\x00\x28");
            server.pass();
            peer
        })
        .collect();
    server.until("all were looked at", |server| {
        (server.counters().strangers + server.counters().strangers_dropped == 100).then_some(())
    });
    assert_eq!(server.counters().strangers_dropped, 36);
    server.now += Duration::from_secs(6);
    for peer in &mut peers {
        peer.closed(&mut server);
    }
    assert!(server.iwarp.take_stranger().is_none());
    assert_eq!(server.counters().strangers_dropped, 100);
}
