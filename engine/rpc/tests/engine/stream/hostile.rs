//! Peers that break the rules, or just do nothing: their connection ends, and nothing else happens.

use std::time::Duration;

use stag_rpc::EngineConfig;

use super::peer::{Server, call, config, record, results};
use crate::support::program::{BIG, ECHO, GET_ONE, PUT_ONE, pattern};
use crate::support::{opaque, words};

/// 5531-11-b: records above the limit, endless fragments, other protocols.
#[test]
fn what_is_no_record() {
    let mut server = Server::new();
    let mut bystander = server.connect();
    let endless = [0u8; 8000];
    let cases: [&[u8]; 6] = [
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff....",
        b"GET / HTTP/1.1\r\n\r\n",
        b"MPA ID Req Frame",
        b"\x00\x00\x00\x10................\x80\xff\xff\xff",
        &endless,
    ];
    for (count, octets) in (1..).zip(cases) {
        let mut peer = server.connect();
        peer.write(octets);
        server.assert_closed(&mut peer);
        assert_eq!(server.statistics().violations, count);
        server.check_echo(&mut bystander);
    }
    server.close();
}

/// 5531-d: what is no Call is not answered. What is one, is.
#[test]
fn records_that_are_no_calls() {
    let mut server = Server::new();
    let mut peer = server.connect();
    let mut reply = call(1, ECHO, |_| Ok(()));
    reply[7] = 1;
    for octets in [&b""[..], b"abc", b"abcdefgh", &reply] {
        server.send(&mut peer, &record(octets));
        server.check_echo(&mut peer);
    }
    assert_eq!(server.statistics().messages_discarded, 4);
    server.close();
}

/// A record that comes an octet at a time, and one that stops.
#[test]
fn records_that_take_too_long() {
    let mut server = Server::new();
    let data = pattern(1, 900_000);
    let octets = record(&call(1, PUT_ONE, |writer| writer.u32(1).and_then(|()| writer.opaque(&data))));
    for first in [2, 5, 60, 500_000] {
        let mut peer = server.connect();
        server.check_echo(&mut peer);
        server.send(&mut peer, &octets[..first]);
        let before = server.statistics().stream_timeouts;
        let mut at = first;
        while !peer.ended {
            peer.write(&octets[at..at + 1]);
            at += 1;
            server.wait(Duration::from_secs(1));
            peer.read();
            assert!(at < first + 40, "it goes on for {} s", at - first);
        }
        assert_eq!(server.statistics().stream_timeouts, before + 1);
        server.check_alive();
    }
    server.close();
}

/// Connections that never say anything make place again, and those beyond the limit are refused.
#[test]
fn silent_connections() {
    let mut server = Server::new();
    let most = u64::from(config().streams_max);
    let mut silent: Vec<_> = (0..2 * most).map(|_| server.connect()).collect();
    // The newer ones made the older ones go.
    assert_eq!(server.statistics().stream_timeouts, most);
    server.check_alive();
    silent[..=most as usize].iter_mut().for_each(|peer| server.assert_closed(peer));
    server.wait(Duration::from_secs(12));
    silent.iter_mut().for_each(|peer| server.assert_closed(peer));
    assert_eq!(server.statistics().stream_timeouts, 2 * most);
    // So do those that only say NULL, and what is refused.
    for procedure in [0, 999] {
        let useless = record(&call(1, procedure, |_| Ok(())));
        let mut peers: Vec<_> = (0..most).map(|_| server.connect()).collect();
        peers.iter_mut().for_each(|peer| drop(server.exchange(peer, &useless)));
        let before = server.statistics().streams_evicted;
        server.check_alive();
        assert_eq!(server.statistics().streams_evicted, before + 1);
        drop(peers);
        server.until(|server| server.node.engine.stream_count() == 0);
    }
    // Those that do something stay.
    let mut used: Vec<_> = (0..most).map(|_| server.connect()).collect();
    used.iter_mut().for_each(|peer| server.check_echo(peer));
    let mut refused = server.connect();
    server.assert_closed(&mut refused);
    assert_eq!(server.statistics().streams_refused, 1);
    used.iter_mut().for_each(|peer| server.check_echo(peer));
    // Unless they are idle, and others are not.
    for _ in 0..24 {
        server.wait(Duration::from_millis(500));
        used[1..].iter_mut().for_each(|peer| server.check_echo(peer));
    }
    server.check_alive();
    server.assert_closed(&mut used[0]);
    used[1..].iter_mut().for_each(|peer| server.check_echo(peer));
    drop(used);
    server.until(|server| server.node.engine.stream_count() == 0);
    server.check_alive();
    server.close();
}

/// Peers that send a part of a large Call and no more: a peer with a whole one does not wait for them.
#[test]
fn parts_of_records_do_not_keep_whole_ones_waiting() {
    for part in [100 << 10, 1000 << 10] {
        let mut server = Server::with(EngineConfig { streams_max: 64, ..config() }, 24 << 20);
        let mut honest = server.connect();
        let data = pattern(1, 1 << 20);
        let octets = record(&call(1, PUT_ONE, |writer| writer.u32(1).and_then(|()| writer.opaque(&data))));
        let mut slow: Vec<_> = (0..60).map(|_| server.connect()).collect();
        for peer in &mut slow {
            server.send(peer, &octets[..part]);
        }
        for _ in 0..2 {
            let before = server.now;
            server.exchange(&mut honest, &octets);
            server.check_echo(&mut honest);
            let took = server.now - before;
            assert!(took < Duration::from_secs(2), "{part} octets of each: {took:?}");
        }
        server.close();
    }
}

/// A peer that was never seen to finish a large Call gets little memory for the first.
#[test]
fn a_part_of_a_record_takes_little() {
    let mut server = Server::with(EngineConfig { streams_max: 64, ..config() }, 24 << 20);
    let mut peer = server.connect();
    let data = pattern(1, 1 << 20);
    let octets = record(&call(1, PUT_ONE, |writer| writer.u32(1).and_then(|()| writer.opaque(&data))));
    server.send(&mut peer, &octets[..20 << 10]);
    server.until(|server| server.node.outstanding() * 4096 >= 20 << 10);
    let held = server.node.outstanding() * 4096;
    assert!(held < 256 << 10, "{held} octets are held for it");
    server.close();
}

/// Records without a large item, and one octet short: they end, and Calls in between are served.
#[test]
fn long_records_without_an_item_do_not_keep_others_waiting() {
    let mut server = Server::with(EngineConfig { streams_max: 64, ..config() }, 24 << 20);
    let octets = record(&call(1, ECHO, |writer| writer.opaque(&[7; 1 << 20])));
    let mut slow: Vec<_> = (0..60).map(|_| server.connect()).collect();
    for peer in &mut slow {
        let mut sent = 0;
        for _ in 0..50 {
            sent += peer.write(&octets[sent..octets.len() - 1]);
            server.pass();
        }
    }
    let mut honest = server.connect();
    server.check_echo(&mut honest);
    server.wait(Duration::from_secs(40));
    slow.iter_mut().for_each(|peer| server.assert_closed(peer));
    server.close();
}

/// A connection that was used and is not any more.
#[test]
fn idle_connections() {
    let mut server = Server::new();
    let mut peer = server.connect();
    server.check_echo(&mut peer);
    server.wait(Duration::from_secs(300));
    server.check_echo(&mut peer);
    server.wait(Duration::from_secs(300));
    assert!(!peer.has_octets() && !peer.ended);
    server.wait(Duration::from_secs(100));
    server.assert_closed(&mut peer);
    server.close();
}

/// A peer that asks and does not read: no more is taken on than fits, whatever it asks, and its time ends.
#[test]
fn untaken_replies() {
    for procedure in [GET_ONE, BIG, ECHO] {
        let mut server = Server::new();
        let mut bystander = server.connect();
        let mut peer = server.connect();
        let arguments = |writer: &mut stag_wire::xdr::Writer<'_>| match procedure {
            GET_ONE => words(writer, &[1, 1, 1 << 20]),
            BIG => words(writer, &[1, 1 << 19]),
            _ => writer.opaque(&[0; 1000]),
        };
        let octets = record(&call(1, procedure, arguments));
        let mut written = 0;
        let mut stuck = 0;
        // It writes until nothing more is taken.
        while stuck < 2000 {
            let at = written % octets.len();
            let count = peer.write(&octets[at..]);
            written += count;
            stuck = if count == 0 { stuck + 1 } else { 0 };
            server.pass();
        }
        let calls = server.statistics().calls_received;
        let held = server.node.outstanding() * 4096;
        assert!(held < 4 << 20, "{held} octets are held for it");
        server.check_echo(&mut bystander);
        for _ in 0..15 {
            server.wait(Duration::from_secs(1));
            server.check_echo(&mut bystander);
        }
        assert_eq!(server.statistics().stream_timeouts, 0);
        server.wait(Duration::from_secs(20));
        assert_eq!(server.statistics().stream_timeouts, 1);
        assert!(server.statistics().calls_received < calls + 100);
        server.close();
    }
}

/// As above, but in the end it reads: all is there.
#[test]
fn replies_that_are_taken_late() {
    let mut server = Server::new();
    let mut peer = server.connect();
    let mut octets = Vec::new();
    for xid in 0..40 {
        octets.extend(record(&call(xid, GET_ONE, |writer| words(writer, &[xid, 1, 500_001]))));
    }
    // All at once: the server has to keep most of them for later.
    assert_eq!(peer.write(&octets), octets.len());
    for _ in 0..100 {
        server.pass();
    }
    for xid in 0..40 {
        assert_eq!(results(&server.reply(&mut peer), xid), opaque(&pattern(xid, 500_001)));
    }
    server.close();
}

/// Connections that come and go, in the middle of anything.
#[test]
fn connections_that_break() {
    let mut server = Server::new();
    let data = pattern(1, 200_000);
    let octets = [
        record(&call(1, PUT_ONE, |writer| writer.u32(1).and_then(|()| writer.opaque(&data)))),
        record(&call(2, GET_ONE, |writer| words(writer, &[1, 1, 1 << 20]))),
        record(&call(3, PUT_ONE, |writer| writer.u32(1).and_then(|()| writer.opaque(&data)))),
    ]
    .concat();
    for end in (0..octets.len()).step_by(octets.len() / 37) {
        let mut peer = server.connect();
        server.send(&mut peer, &octets[..end]);
        for _ in 0..end % 5 {
            server.pass();
        }
        drop(peer);
        server.until(|server| server.node.engine.stream_count() == 0);
    }
    server.check_alive();
    server.close();
}
