//! A reactor that sleeps is woken by everything that `poll` has to see, and by nothing else.

use std::os::fd::AsRawFd;

use stag_fabric::Provider;
use stag_fabric::iwarp::IwarpConfig;
use stag_wire::rdmap::Opcode;

use crate::server::{Peer, REQUEST, Server, octets, read_request, untagged};

/// Whether something wakes the reactor up, which has nothing else to do.
fn wakes(server: &mut Server) -> bool {
    let Some(descriptor) = server.iwarp.descriptor() else { panic!("it may sleep") };
    let mut poll = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor that is open over the call.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

/// Passes until it can go to sleep.
fn doze(server: &mut Server) {
    server.until("it can sleep", |server| {
        if server.iwarp.arm() && !wakes(server) {
            return Some(());
        }
        server.iwarp.disarm();
        None
    });
}

#[test]
fn everything_wakes_a_sleeper() {
    let mut server = Server::new(IwarpConfig { may_sleep: true, ..IwarpConfig::default() });
    doze(&mut server);
    let mut peer = Peer::new(&server);
    assert!(wakes(&mut server), "a connection");
    doze(&mut server);
    let request = octets(&REQUEST);
    peer.say(&request[..10]);
    assert!(wakes(&mut server), "half of a request");
    doze(&mut server);
    assert!(server.iwarp.poll_timeout().is_some(), "there is a limit to its patience");
    peer.say(&request[10..]);
    assert!(wakes(&mut server), "the other half");
    peer.frame(&mut server);
    doze(&mut server);
    assert_eq!(server.iwarp.poll_timeout(), None, "nothing is waited for");
    let pair = server.established[0];
    let message = peer.send(b"good morning");
    peer.say(&message[..20]);
    assert!(wakes(&mut server), "a part of a message");
    doze(&mut server);
    peer.say(&message[20..]);
    assert!(wakes(&mut server), "the rest of it");
    assert_eq!(server.message(pair), b"good morning");
    doze(&mut server);

    // More than the sockets take: room for the rest wakes it up.
    let read = server.expose_read(pair, 1 << 20);
    for msn in 1..=16 {
        peer.say(&read_request(msn, read.0, 0, 1 << 20));
    }
    server.until("the socket is full", |server| {
        let before = server.counters().fpdus_sent;
        for _ in 0..50 {
            server.pass();
        }
        (server.counters().fpdus_sent == before && before > 0).then_some(())
    });
    doze(&mut server);
    let before = server.counters().fpdus_sent;
    for _ in 0..2000 {
        peer.listen();
    }
    assert!(wakes(&mut server), "room to send");
    server.until("more is sent", |server| {
        peer.listen();
        (server.counters().fpdus_sent > before).then_some(())
    });
    let mut other = Peer::new(&server);
    other.say(b"\x80\x00\x00\x28");
    server.until("a stranger", |server| server.iwarp.take_stranger());
    server.until("all is sent", |server| {
        peer.listen();
        peer.received.clear();
        (server.counters().fpdus_sent >= 16 * 16).then_some(())
    });
    doze(&mut server);
    peer.say(&untagged(Opcode::Terminate, 0, 1, 0, true, &[0, 0, 0, 0]));
    assert!(wakes(&mut server), "the end");
    server.end(pair);
}
