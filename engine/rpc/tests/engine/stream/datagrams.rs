//! RPC over UDP: answers only, short ones, of the programs that were named.

use std::net::UdpSocket;

use stag_wire::rpc::{Accepted, CallHeader, OpaqueAuth};
use stag_wire::xdr::Writer;

use super::peer::{Server, call, outcome, record, results};
use crate::support::opaque;
use crate::support::program::{BIG, ECHO, LATER, ONCE, PROGRAM, pattern};

/// A server that serves its program by UDP, and a socket that is connected to it.
fn server(programs: &'static [u32]) -> (Server, UdpSocket) {
    let mut server = Server::new();
    let address = server.node.engine.listen_udp("127.0.0.1:0".parse().unwrap(), programs).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(address).unwrap();
    socket.set_nonblocking(true).unwrap();
    (server, socket)
}

/// Whether the server took the datagram, and what it answered: it does so in the pass that takes it.
fn ask(server: &mut Server, socket: &UdpSocket, octets: &[u8]) -> Option<Vec<u8>> {
    let before = server.statistics().datagrams_received;
    socket.send(octets).unwrap();
    server.until(|server| server.statistics().datagrams_received > before);
    let mut space = [0; 4096];
    socket.recv(&mut space).ok().map(|len| space[..len].to_vec())
}

#[test]
fn a_datagram_is_a_call_and_a_datagram_its_reply() {
    let (mut server, socket) = server(&[PROGRAM]);
    for xid in 0..100 {
        let text = pattern(xid, xid as usize);
        let reply = ask(&mut server, &socket, &call(xid, ECHO, |writer| writer.opaque(&text))).unwrap();
        assert_eq!(results(&reply, xid), opaque(&text));
    }
    // Several in one pass.
    for xid in 0..40 {
        socket.send(&call(xid, 0, |_| Ok(()))).unwrap();
    }
    let mut space = [0; 4096];
    for xid in 0..40 {
        server.until(|_| socket.peek(&mut [0]).is_ok());
        let len = socket.recv(&mut space).unwrap();
        assert_eq!(outcome(&space[..len], xid), Accepted::Success);
    }
    assert_eq!(server.statistics().datagrams_dropped, 0);
    server.close();
}

/// 5531-b: NULL with RPCSEC_GSS makes a context, which this server has none of; over UDP as over TCP.
#[test]
fn null_with_rpcsec_gss_is_refused() {
    let (mut server, socket) = server(&[PROGRAM]);
    let mut peer = server.connect();
    let credential = [6u32, 20, 1, 1, 0, 1, 0].map(u32::to_be_bytes).concat();
    for xid in [1, 2] {
        let plain = call(xid, 0, |_| Ok(()));
        let octets = [&plain[..24], &credential, &plain[32..]].concat();
        let reply = match xid {
            1 => ask(&mut server, &socket, &octets).unwrap(),
            _ => server.exchange(&mut peer, &record(&octets)),
        };
        let denied = [xid, 1, 1, 1, 1].map(u32::to_be_bytes).concat();
        assert_eq!(reply, denied, "MSG_DENIED, AUTH_ERROR, AUTH_BADCRED");
    }
    drop(peer);
    server.close();
}

/// Nothing is kept of a Call, and nobody gains by asking with a forged address.
#[test]
fn what_is_not_answered_by_udp() {
    let (mut server, socket) = server(&[PROGRAM]);
    // Must not be executed twice: over TCP only.
    let reply = ask(&mut server, &socket, &call(1, ONCE, |_| Ok(()))).unwrap();
    assert_eq!(outcome(&reply, 1), Accepted::ProcUnavail);
    // Too long to be sent to who knows whom.
    for (procedure, octets) in [(BIG, 0), (ECHO, 300)] {
        let text = pattern(7, octets);
        let reply = ask(
            &mut server,
            &socket,
            &call(2, procedure, |writer| match octets {
                0 => writer.u32(7).and_then(|()| writer.u32(5000)),
                _ => writer.opaque(&text),
            }),
        );
        assert_eq!(outcome(&reply.unwrap(), 2), Accepted::SystemErr);
    }
    // Answered later, and so not at all.
    assert_eq!(
        ask(&mut server, &socket, &call(3, LATER, |writer| writer.u64(0).and_then(|()| writer.opaque(b"x")))),
        None
    );
    // No Call, and too long a one.
    for octets in [&b""[..], b"x", &[0; 7], &[0xff; 100]] {
        assert_eq!(ask(&mut server, &socket, octets), None, "{octets:?}");
    }
    let text = pattern(7, 2048);
    assert_eq!(ask(&mut server, &socket, &call(4, ECHO, |writer| writer.opaque(&text))), None);
    assert_eq!(server.statistics().datagrams_dropped, 6);
    server.check_alive();
    server.close();
}

#[test]
fn only_programs_that_were_named_are_served() {
    let (mut server, socket) = server(&[77]);
    let reply = ask(&mut server, &socket, &call(1, ECHO, |writer| writer.opaque(b"x"))).unwrap();
    assert_eq!(outcome(&reply, 1), Accepted::ProgUnavail);
    // A program that is named but not served.
    let mut octets = [0; 64];
    let mut writer = Writer::new(&mut octets);
    let (credential, verifier) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
    let header = CallHeader { xid: 2, program: 77, version: 1, procedure: 0, credential, verifier };
    header.emit(&mut writer).unwrap();
    let len = writer.position();
    let reply = ask(&mut server, &socket, &octets[..len]).unwrap();
    assert_eq!(outcome(&reply, 2), Accepted::ProgUnavail);
    server.close();
}
