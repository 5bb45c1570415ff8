//! Random Calls in random fragments and pieces, some of them damaged, one seed after another.

use stag_fabric::sim::{Random, sweep};

use super::peer::{Server, call, fragments, results};
use crate::support::program::{ECHO, GET_ONE, ONCE, PUT_ONE, pattern, sum};
use crate::support::{opaque, words};

/// Seeds without `STAG_SEEDS`.
const SEEDS: u64 = 60;

/// A Call, and its results.
fn some_call(random: &mut Random, xid: u32, counted: &mut u32) -> (Vec<u8>, Vec<u8>) {
    let len = match random.below(4) {
        0 => random.below(40),
        1 => 4000 + random.below(300),
        2 => random.below(20_000),
        _ => random.below(300_000),
    } as usize;
    let data = pattern(xid, len);
    match random.below(4) {
        0 => (call(xid, ECHO, |writer| writer.opaque(&data)), opaque(&data)),
        1 => {
            let octets = call(xid, PUT_ONE, |writer| {
                writer.u32(1)?;
                writer.opaque(&data)
            });
            (octets, [0u32.to_be_bytes(), sum(&data).to_be_bytes()].concat())
        }
        2 => (call(xid, GET_ONE, |writer| words(writer, &[xid, 1, len as u32])), opaque(&data)),
        _ => {
            *counted += 1;
            (call(xid, ONCE, |writer| words(writer, &[0, 0, 0])), counted.to_be_bytes().to_vec())
        }
    }
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let mut server = Server::new();
    let is_damaged = random.below(2) == 0;
    let mut counted = 0;
    let (mut stream, mut expected) = (Vec::new(), Vec::new());
    for xid in 0..1 + random.below(12) as u32 {
        let (octets, results) = some_call(&mut random, xid, &mut counted);
        let cut = match random.below(3) {
            0 => 1 + random.below(5000) as usize,
            _ => octets.len(),
        };
        // No more fragments than a record may have.
        stream.extend(fragments(&octets, cut.max(octets.len() / 500 + 1)));
        expected.push((xid, results));
    }
    if is_damaged {
        for _ in 0..1 + random.below(3) {
            let at = random.below(stream.len() as u64) as usize;
            stream[at] ^= 1 << random.below(8);
        }
        stream.truncate(1 + random.below(stream.len() as u64) as usize);
    }
    let mut peer = server.connect();
    let mut at = 0;
    while at < stream.len() && !peer.ended {
        let most = [10, 5000, 200_000][random.below(3) as usize];
        let len = (1 + random.below(most) as usize).min(stream.len() - at);
        server.send(&mut peer, &stream[at..at + len]);
        for _ in 0..random.below(4) {
            server.pass();
        }
        at += len;
    }
    if is_damaged {
        // Whatever was answered: the server lives, and the connection can end anywhere.
        drop(peer);
    } else {
        for (xid, wanted) in expected {
            assert_eq!(results(&server.reply(&mut peer), xid), wanted, "seed {seed}, xid {xid}");
        }
    }
    server.check_alive();
    server.close();
}

#[test]
fn random_calls_in_random_pieces() {
    sweep("random_calls_in_random_pieces", 0..SEEDS, run);
}
