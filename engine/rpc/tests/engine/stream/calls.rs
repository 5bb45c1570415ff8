//! Calls and Replies of every form, however they are cut.

use std::time::Duration;

use stag_wire::rpc::Accepted;

use super::peer::{Peer, Server, call, config, fragments, outcome, record, results};
use crate::support::program::{
    BAD_CHUNKS, BIG, ECHO, FORGET, GET, GET_ONE, LATER, NEVER, PUT, PUT_ONE, SHORT, pattern, sum,
};
use crate::support::{opaque, words};

/// A Call of PUT or PUT_ONE with one item.
fn put(xid: u32, procedure: u32, data: &[u8]) -> Vec<u8> {
    call(xid, procedure, |writer| {
        writer.u32(1)?;
        writer.opaque(data)
    })
}

/// What PUT answers: all is here, and this is its sum.
fn put_results(data: &[u8]) -> Vec<u8> {
    [0u32.to_be_bytes(), sum(data).to_be_bytes()].concat()
}

/// 5531-11-a, 5531-11-b: records in any fragments that arrive in any pieces.
#[test]
fn calls_cut_anywhere() {
    let mut server = Server::new();
    let mut peer = server.connect();
    let text: Vec<u8> = pattern(3, 301);
    let octets = call(1, ECHO, |writer| writer.opaque(&text));
    for cut in [1, 2, 3, 5, 40, 100] {
        for stream in [record(&octets), fragments(&octets, 1), fragments(&octets, 7), fragments(&octets, 64)]
        {
            for piece in stream.chunks(cut) {
                server.send(&mut peer, piece);
                server.pass();
            }
            assert_eq!(results(&server.reply(&mut peer), 1), opaque(&text), "pieces of {cut}");
        }
    }
    server.close();
}

/// Many Calls at once are answered in order, with few system calls.
#[test]
fn calls_in_a_burst() {
    let mut server = Server::new();
    let mut peer = server.connect();
    let mut octets = Vec::new();
    for xid in 0..5000u32 {
        octets.extend(record(&call(xid, ECHO, |writer| writer.u32(4).and_then(|()| writer.u32(xid)))));
    }
    server.send(&mut peer, &octets);
    for xid in 0..5000u32 {
        let expected = [4u32.to_be_bytes(), xid.to_be_bytes()].concat();
        assert_eq!(results(&server.reply(&mut peer), xid), expected);
    }
    server.close();
}

/// Large eligible arguments lie in payload buffers, whatever their length and however they arrive.
#[test]
fn large_arguments_are_placed() {
    let mut server = Server::new();
    let mut peer = server.connect();
    let mut items = 0;
    for len in [4096, 5001, 65_536, 65_537, 100_002, 500_003, 1 << 20] {
        let data = pattern(len as u32, len);
        for fragment in [usize::MAX, 100_000, 8000] {
            let octets = fragments(&put(9, PUT_ONE, &data), fragment.min(len + 1000));
            let reply = server.exchange(&mut peer, &octets);
            assert_eq!(results(&reply, 9), put_results(&data), "{len} octets in fragments of {fragment}");
            items += 1;
        }
    }
    // Those that came whole with a burst are inline.
    let placed = server.statistics().stream_items;
    assert!(placed >= 15 && placed <= items, "{placed} of {items} were placed");
    // Several items, or a procedure that does not say where they are, are inline too.
    let data = pattern(1, 300_000);
    assert_eq!(results(&server.exchange(&mut peer, &record(&put(9, PUT, &data))), 9), put_results(&data));
    assert_eq!(server.statistics().stream_items, placed);
    server.close();
}

/// A burst of large arguments: what is behind one of them is the beginning of the next.
#[test]
fn large_arguments_in_a_burst() {
    let mut server = Server::new();
    let mut peer = server.connect();
    let sizes = [70_000, 4096, 10, 262_144, 3, 0, 100_001, 8192];
    let octets: Vec<u8> = (0..64u32)
        .flat_map(|xid| record(&put(xid, PUT_ONE, &pattern(xid, sizes[xid as usize % sizes.len()]))))
        .collect();
    server.send(&mut peer, &octets);
    for xid in 0..64 {
        let data = pattern(xid, sizes[xid as usize % sizes.len()]);
        assert_eq!(results(&server.reply(&mut peer), xid), put_results(&data), "number {xid}");
    }
    server.close();
}

/// A record that ends before its item does, and one whose item claims more than a record can hold.
#[test]
fn arguments_that_lie_about_their_length() {
    let mut server = Server::new();
    let mut peer = server.connect();
    let data = pattern(5, 100_000);
    let honest = put(9, PUT_ONE, &data);
    for end in [honest.len() - 4, honest.len() - 50_000, 5000] {
        for fragment in [usize::MAX, 3000] {
            let octets = fragments(&honest[..end], fragment.min(end));
            let reply = server.exchange(&mut peer, &octets);
            assert_eq!(outcome(&reply, 9), Accepted::GarbageArgs, "cut at {end}, fragments of {fragment}");
        }
    }
    for claim in [u32::MAX, 1 << 31, 100_001] {
        let mut octets = honest.clone();
        octets[44..48].copy_from_slice(&claim.to_be_bytes());
        let reply = server.exchange(&mut peer, &record(&octets));
        assert_eq!(outcome(&reply, 9), Accepted::GarbageArgs, "{claim}");
    }
    server.check_echo(&mut peer);
    server.close();
}

/// Results are in the record as if they had been copied there, also with padding.
#[test]
fn large_results_are_spliced() {
    let mut server = Server::new();
    let mut peer = server.connect();
    for procedure in [GET, GET_ONE] {
        for len in [0, 1, 1023, 1024, 1025, 4098, 65_539, 300_000, 1 << 20] {
            let octets = call(5, procedure, |writer| words(writer, &[77, 1, len]));
            let reply = server.exchange(&mut peer, &record(&octets));
            if procedure == GET && len == 1 << 20 {
                continue;
            }
            assert_eq!(results(&reply, 5), opaque(&pattern(77, len as usize)), "{len} octets");
        }
    }
    // Several eligible results of one Reply are copied.
    let octets = call(6, GET, |writer| words(writer, &[3, 2, 5000, 6001]));
    let reply = server.exchange(&mut peer, &record(&octets));
    assert_eq!(results(&reply, 6), [opaque(&pattern(3, 5000)), opaque(&pattern(4, 6001))].concat());
    server.close();
}

/// They are not sent: spliced, when they are many, or inline.
#[test]
fn results_of_other_octets_than_announced() {
    let mut server = Server::new();
    let mut peer = server.connect();
    let cases = [
        [5000, 4999, 5000, 1],
        [5000, 0, 5000, 1],
        [5000, 5001, 5000, 1],
        [5000, 5000, 6000, 1],
        [5000, 5000, 5000, 0],
        [100, 99, 100, 1],
        [100, 101, 100, 1],
    ];
    for (xid, case) in (1..).zip(&cases) {
        let octets = record(&call(xid, SHORT, |writer| words(writer, case)));
        assert_eq!(outcome(&server.exchange(&mut peer, &octets), xid), Accepted::SystemErr, "{case:?}");
    }
    assert_eq!(server.statistics().replies_defective, cases.len() as u64);
    server.check_echo(&mut peer);
    server.close();
}

/// Results of any length without an eligible item; beyond what a Reply may have, SYSTEM_ERR.
#[test]
fn long_results() {
    let mut server = Server::new();
    let mut peer = server.connect();
    for len in [0, 3000, 4050, 4093, 4096, 100_000, 1 << 20] {
        let octets = call(5, BIG, |writer| words(writer, &[8, len]));
        let reply = server.exchange(&mut peer, &record(&octets));
        assert_eq!(results(&reply, 5), opaque(&pattern(8, len as usize)), "{len} octets");
    }
    for (procedure, expected) in [(FORGET, Accepted::SystemErr), (BAD_CHUNKS, Accepted::GarbageArgs)] {
        let reply = server.exchange(&mut peer, &record(&call(5, procedure, |_| Ok(()))));
        assert_eq!(outcome(&reply, 5), expected);
    }
    server.close();
}

fn later(server: &mut Server, peer: &mut Peer, xid: u32, delay: u64) {
    let octets = call(xid, LATER, |writer| {
        writer.u64(delay)?;
        writer.opaque(&xid.to_be_bytes())
    });
    server.send(peer, &record(&octets));
}

/// Late answers come when they are ready, past those that are not.
#[test]
fn late_answers() {
    let mut server = Server::new();
    let mut peer = server.connect();
    later(&mut server, &mut peer, 1, 500_000);
    later(&mut server, &mut peer, 2, 1000);
    server.check_echo(&mut peer);
    for xid in [2, 1] {
        assert_eq!(results(&server.reply(&mut peer), xid), opaque(&xid.to_be_bytes()));
    }
    // More than may be under way at once: the rest waits for its turn.
    for xid in 10..210 {
        later(&mut server, &mut peer, xid, 50_000);
    }
    let mut seen: Vec<u32> = (0..200)
        .map(|_| u32::from_be_bytes(server.reply(&mut peer)[..4].try_into().expect("an xid")))
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, (10..210).collect::<Vec<_>>());
    server.close();
}

/// A service hears that a late answer is not needed; a place that is used again gets no old answer.
#[test]
fn late_answers_to_nobody() {
    let mut server = Server::new();
    for _ in 0..3 {
        let mut peer = server.connect();
        later(&mut server, &mut peer, 1, NEVER);
        server.until(|server| server.node.engine.services_mut().0.kept() == 1);
        // What it has not read makes its end an abort.
        let replies = server.statistics().replies_sent;
        server.send(&mut peer, &record(&call(2, ECHO, |writer| writer.opaque(b""))));
        server.until(|server| server.statistics().replies_sent > replies);
        peer.abort();
        server.until(|server| server.node.engine.stream_count() == 0);
        let mut peer = server.connect();
        server.check_echo(&mut peer);
        server.node.engine.services_mut().0.release();
        server.until(|server| server.node.engine.services_mut().0.kept() == 0);
        server.check_echo(&mut peer);
        assert!(!peer.has_octets(), "an answer that is not its own");
        drop(peer);
        server.until(|server| server.node.engine.stream_count() == 0);
    }
    assert_eq!(server.node.engine.services_mut().0.abandoned, 3);
    server.close();
}

/// A peer that has said all is still answered, and then the connection ends.
#[test]
fn half_closed() {
    let mut server = Server::new();
    let mut peer = server.connect();
    later(&mut server, &mut peer, 1, 100_000);
    peer.finish();
    assert_eq!(results(&server.reply(&mut peer), 1), opaque(&1u32.to_be_bytes()));
    server.assert_closed(&mut peer);
    server.close();
}

/// A peer that has said all, and whose answer never comes, does not stay for ever.
#[test]
fn half_closed_and_forgotten() {
    let mut server = Server::new();
    let mut peer = server.connect();
    later(&mut server, &mut peer, 1, NEVER);
    peer.finish();
    server.wait(Duration::from_secs(50));
    assert_eq!(server.node.engine.stream_count(), 1);
    server.wait(Duration::from_secs(20));
    server.assert_closed(&mut peer);
    server.close();
}

/// A stopping server answers what it has taken on.
#[test]
fn a_stop_lets_answers_out() {
    use stag_runtime::Poller;
    let mut server = Server::new();
    let mut peer = server.connect();
    later(&mut server, &mut peer, 1, 100_000);
    server.until(|server| server.node.engine.services_mut().0.kept() == 1);
    let now = server.now;
    server.node.engine.stop(now);
    assert_eq!(results(&server.reply(&mut peer), 1), opaque(&1u32.to_be_bytes()));
    server.assert_closed(&mut peer);
    server.close();
}

/// Memory for Calls on their way in is shared by all connections: who finds none waits, and none is lost.
#[test]
fn large_arguments_of_many_connections_take_turns() {
    let mut server = Server::with(stag_rpc::EngineConfig { stream_memory: 1_100_000, ..config() }, 8 << 20);
    let mut peers: Vec<_> = (0..6).map(|_| server.connect()).collect();
    let octets: Vec<Vec<u8>> = (0..6).map(|n| record(&put(n, PUT_ONE, &pattern(n, 600_000)))).collect();
    let mut sent = [0; 6];
    server.until(|_| {
        for ((peer, octets), sent) in peers.iter_mut().zip(&octets).zip(&mut sent) {
            let end = octets.len().min(*sent + 30_000);
            *sent += peer.write(&octets[*sent..end]);
        }
        sent.iter().zip(&octets).all(|(sent, octets)| *sent == octets.len())
    });
    for (n, peer) in (0..).zip(&mut peers) {
        assert_eq!(results(&server.reply(peer), n), put_results(&pattern(n, 600_000)));
    }
    assert_eq!(server.statistics().stream_items, 6);
    server.wait(Duration::from_secs(1));
    server.close();
}

/// A connection that has to wait for memory gets that of an idle one.
#[test]
fn one_that_does_not_go_on_yields_to_one_that_waits() {
    let mut server = Server::with(stag_rpc::EngineConfig { stream_memory: 1_100_000, ..config() }, 8 << 20);
    let (mut first, mut second) = (server.connect(), server.connect());
    let (long, short) = (pattern(1, 1_000_000), pattern(2, 600_000));
    let (long, short) = (record(&put(1, PUT_ONE, &long)), record(&put(2, PUT_ONE, &short)));
    server.send(&mut first, &long[..500_000]);
    // Its beginning alone: the rest finds no place.
    let mut sent = second.write(&short[..300_000]);
    let before = server.now;
    // The first does not go on: it has had its time, and its memory goes to the second.
    server.assert_closed(&mut first);
    assert!(server.now - before < std::time::Duration::from_secs(2));
    server.until(|_| {
        sent += second.write(&short[sent..]);
        sent == short.len()
    });
    assert_eq!(results(&server.reply(&mut second), 2), put_results(&pattern(2, 600_000)));
    server.close();
}
