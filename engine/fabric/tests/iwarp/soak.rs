//! Connects and disconnects, of all kinds, over and over: nothing is used up.

use std::fs;
use std::time::Duration;

use stag_fabric::Provider;
use stag_fabric::iwarp::IwarpConfig;
use stag_wire::rdmap::Opcode;

use crate::server::{Peer, REQUEST, Server, octets, read_request, tagged, untagged};

/// Connections of one run.
const ROUNDS: u32 = 1500;

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

#[test]
fn connects_and_disconnects() {
    let mut server = Server::new(IwarpConfig { handshakes: 16, ..IwarpConfig::default() });
    let before = descriptors();
    for round in 0..ROUNDS {
        let way = round % 8;
        if way == 0 {
            // Not even a request.
            let mut peer = Peer::new(&server);
            peer.say(&octets(&REQUEST)[..round as usize % 24]);
            server.pass();
            continue;
        }
        let (mut peer, pair) = Peer::connect(&mut server);
        let (write, read) = (server.expose_write(pair, 20_000), server.expose_read(pair, 20_000));
        match way {
            1 => server.iwarp.disconnect(pair),
            2 => peer.say(&tagged(Opcode::Write, 0xbad, 0, true, b"x")),
            3 => peer.say(&untagged(Opcode::Terminate, 0, 1, 0, true, &[0x11, 1, 0, 0])),
            4 => peer.say(&tagged(Opcode::Write, write.0, 0, true, &[1; 20_000])[..9000]),
            5 => {
                let message = peer.send(b"and a message");
                peer.say(&[read_request(1, read.0, 0, 20_000), message].concat());
            }
            6 => {
                server.send(pair, b"it will not be read");
                let octets = peer.send(b"invalid");
                peer.say(&octets[..octets.len() - 1]);
            }
            _ => {}
        }
        for _ in 0..3 {
            server.pass();
        }
        drop(peer);
        server.end(pair);
        server.ended.clear();
        server.completions.clear();
        assert_eq!(pair.index, 0, "the slot is used again");
    }
    server.now += Duration::from_secs(10);
    for _ in 0..100 {
        server.pass();
    }
    server.check_memory();
    let counters = server.counters();
    assert_eq!(counters.established, counters.disconnected);
    assert_eq!(counters.established, u64::from(ROUNDS - ROUNDS.div_ceil(8)));
    // Other tests run in the same process, so a few may be theirs; not one for each round.
    assert!(descriptors() < before + 700, "descriptors leak: {before}, now {}", descriptors());
    assert_eq!(server.iwarp.poll_timeout(), None);
}
