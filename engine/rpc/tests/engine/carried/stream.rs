//! Calls that come in over TCP at one reactor and are executed at another.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::at_one;
use super::group::Group;
use crate::raw::octets;
use crate::support::program::{BIG, ECHO, LOCAL, ONCE, PROGRAM, VERSION, pattern};
use crate::support::{PASSES_MAX, opaque};

/// Words of an accepted Reply before its results: xid, REPLY, MSG_ACCEPTED, verifier, SUCCESS.
const REPLY_HEAD: usize = 6 * 4;

/// A Call of the test program as one record.
fn record(xid: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
    let header = octets(&[xid, 0, 2, PROGRAM, VERSION, procedure, 0, 0, 0, 0]);
    let mark = 0x8000_0000 | (header.len() + arguments.len()) as u32;
    [&mark.to_be_bytes()[..], &header, arguments].concat()
}

/// Lets the group work until a whole record is here, and returns its results.
fn results(group: &mut Group, socket: &mut TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    for _ in 0..PASSES_MAX {
        group.pass();
        // Sockets are looked at now and then.
        group.world.advance_to(group.world.now() + Duration::from_micros(50));
        let mut space = [0; 4096];
        match socket.read(&mut space) {
            Ok(0) => panic!("the connection ended"),
            Ok(len) => received.extend(&space[..len]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        if let Some(mark) = received.first_chunk() {
            let len = (u32::from_be_bytes(*mark) & 0x7fff_ffff) as usize;
            if received.len() == 4 + len {
                return received.split_off(4 + REPLY_HEAD);
            }
        }
    }
    panic!("no answer in {PASSES_MAX} passes");
}

#[test]
fn calls_over_tcp() {
    let mut group = Group::new(2, at_one);
    let address = group.reactors[0].engine.listen_tcp("127.0.0.1:0").expect("a port");
    let mut socket = TcpStream::connect(address).expect("it listens");
    socket.set_nonblocking(true).expect("a socket");
    for len in [0, 10, 400, 3000] {
        let text = pattern(5, len);
        socket.write_all(&record(1, ECHO, &opaque(&text))).expect("room in the socket");
        assert_eq!(results(&mut group, &mut socket), opaque(&text));
    }
    // Its home knows which address a client came to, as it does of its own Calls: callbacks come from there.
    socket.write_all(&record(1, LOCAL, &[])).expect("room in the socket");
    assert_eq!(results(&mut group, &mut socket), opaque(b"127.0.0.1"));
    socket.write_all(&record(2, ONCE, &octets(&[0, 0]))).expect("room in the socket");
    assert_eq!(results(&mut group, &mut socket), 1_u32.to_be_bytes());
    socket.write_all(&record(2, ONCE, &octets(&[0, 0]))).expect("room in the socket");
    assert_eq!(results(&mut group, &mut socket), 1_u32.to_be_bytes(), "it is not executed again");
    assert_eq!(group.executed(), [0, 6]);
    // Two results in one segment, in whichever order.
    let calls = [record(3, BIG, &octets(&[1, 900])), record(4, BIG, &octets(&[1, 900]))].concat();
    socket.write_all(&calls).expect("room in the socket");
    drop(socket);
    while group.reactors[0].engine.stream_count() > 0 {
        group.pass();
        group.world.advance_to(group.world.now() + Duration::from_micros(50));
    }
    // The buffer that all sockets share.
    group.kept = 16;
    group.close();
}
