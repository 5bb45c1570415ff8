//! Peers that do not get as far as a connection.

use std::time::Duration;

use stag_fabric::iwarp::{IwarpConfig, IwarpCounters};
use stag_fabric::{ConnectRequestId, DisconnectReason, Event, Provider};
use stag_wire::mpa::{self, Frame, FrameKind};

use crate::server::{CAPACITY, Peer, REQUEST, Server, octets};

fn request_of(event: &Event) -> ConnectRequestId {
    match event {
        Event::ConnectRequest { request, .. } => *request,
        other => panic!("no request: {other:?}"),
    }
}

/// 5044-7.1-b, siw-4, siw-6: what is no request is closed without a word, whether it comes at once or by the octet.
#[test]
fn nonsense_is_closed() {
    type Counter = fn(&IwarpCounters) -> u64;
    let with = |at: usize, octet: u8| {
        let mut octets = octets(&REQUEST);
        octets[at] = octet;
        octets
    };
    let cases: [(&str, Vec<u8>, Counter); 9] = [
        ("HTTP", b"GET / HTTP/1.1\r\n".to_vec(), |c| c.bad_keys),
        ("TLS", vec![0x16, 3, 1, 2, 0], |c| c.bad_keys),
        ("a key with another end", with(15, b'x'), |c| c.bad_keys),
        ("the key in another case", with(1, b'p'), |c| c.bad_keys),
        ("a reply", octets(&Frame { kind: FrameKind::Reply, ..REQUEST }), |c| c.bad_frames),
        ("revision 0", with(17, 0), |c| c.bad_frames),
        ("revision 3", with(17, 3), |c| c.bad_frames),
        ("private data too long", with(18, 0xff), |c| c.bad_frames),
        ("no room for IRD and ORD", with(19, 2), |c| c.bad_frames),
    ];
    let mut server = Server::new(IwarpConfig::default());
    for (what, octets, counter) in &cases {
        for by_the_octet in [false, true] {
            let before = server.counters();
            let mut peer = Peer::new(&server);
            if by_the_octet {
                for octet in octets {
                    peer.try_say(&[*octet]);
                    server.pass();
                }
            } else {
                peer.say(octets);
            }
            peer.closed(&mut server);
            assert!(peer.received.is_empty(), "{what}: not a word");
            assert_eq!(counter(&server.counters()), counter(&before) + 1, "{what} is counted");
        }
    }
    Peer::connect(&mut server);
}

/// 5044-7.1-d, siw-3: who asks for markers is refused, and told so.
#[test]
fn markers_are_refused() {
    let mut server = Server::new(IwarpConfig::default());
    let mut peer = Peer::new(&server);
    peer.say(&octets(&Frame { markers: true, ..REQUEST }));
    let reply = peer.frame(&mut server);
    let (reply, _) = Frame::parse(&reply).expect("it is a frame");
    assert!(reply.rejected && !reply.markers);
    assert_eq!(reply.private_data, b"markers are not supported");
    peer.closed(&mut server);
    assert_eq!((server.counters().markers_refused, server.counters().requests), (1, 0));
}

/// 5044-7.1-h: one octet a second is not enough. Nor is silence. A slow but honest one gets through.
#[test]
fn time_is_limited() {
    let config = IwarpConfig { request_timeout: Duration::from_secs(5), ..IwarpConfig::default() };
    let mut server = Server::new(config);
    let request = octets(&REQUEST);
    let (mut drip, mut silent, mut honest) = (Peer::new(&server), Peer::new(&server), Peer::new(&server));
    server.until("all three are there", |server| (server.counters().accepted == 3).then_some(()));
    for (second, octet) in request.iter().take(4).enumerate() {
        drip.say(&[*octet]);
        honest.say(&request[second * 6..second * 6 + 6]);
        server.now += Duration::from_secs(1);
        server.pass();
    }
    assert_eq!(server.established.len(), 1, "24 octets in 4 seconds");
    assert_eq!(server.counters().handshakes_timed_out, 0);
    server.now += Duration::from_secs(1);
    drip.closed(&mut server);
    silent.closed(&mut server);
    assert_eq!(server.counters().handshakes_timed_out, 2);
    let pair = server.established[0];
    let hello = honest.send(b"hello");
    honest.frame(&mut server);
    honest.say(&hello);
    assert_eq!(server.message(pair), b"hello");
}

/// 5042-c: thousands of silent connections keep no honest client out, and are few at any time.
#[test]
fn a_crowd_of_silent_ones() {
    let mut server = Server::new(IwarpConfig { handshakes: 32, queue_pairs: 4, ..IwarpConfig::default() });
    let mut crowd = std::collections::VecDeque::new();
    for i in 0..2000 {
        let mut peer = Peer::new(&server);
        if i % 2 == 0 {
            peer.say(b"MPA ID");
        }
        crowd.push_back(peer);
        if crowd.len() > 300 {
            crowd.pop_front();
        }
        server.pass();
        if i % 500 == 250 {
            let (mut peer, pair) = Peer::connect(&mut server);
            let octets = peer.send(b"let me through");
            peer.say(&octets);
            assert_eq!(server.message(pair), b"let me through");
        }
    }
    server.until("all have come", |server| (server.counters().accepted == 2004).then_some(()));
    let most = 32 + 4;
    assert!(server.counters().handshakes_evicted >= 2000 - most - 16, "{:?}", server.counters());
    crowd.iter_mut().for_each(Peer::listen);
    let open = crowd.iter().filter(|peer| !peer.is_closed).count();
    assert!(open as u64 <= most, "{open} silent ones are kept");
}

/// Clients that come back all at once are not taken for a crowd of silent ones, although each needs some time for its request:
/// as many as there are places may be silent.
#[test]
fn all_come_back_at_once() {
    let mut server = Server::new(IwarpConfig { handshakes: 32, queue_pairs: 300, ..IwarpConfig::default() });
    server.accepts = false;
    let mut peers: Vec<_> = (0..300).map(|_| Peer::new(&server)).collect();
    server.until("all are there", |server| (server.counters().accepted == 300).then_some(()));
    peers.iter_mut().for_each(|peer| peer.say(&octets(&REQUEST)));
    server.until("all are heard", |server| (server.counters().requests == 300).then_some(()));
    assert_eq!(server.counters().handshakes_evicted, 0);
}

/// 5044-7.1-g, siw-5: octets behind the request, before the reply, end it: while the user thinks, after it prepared, and
/// when they come with the request.
#[test]
fn octets_before_the_reply() {
    let mut server = Server::new(IwarpConfig::default());
    server.accepts = false;
    let request = octets(&REQUEST);
    for step in 0..3 {
        let mut peer = Peer::new(&server);
        let early = peer.send(b"too early");
        peer.say(&request);
        if step == 0 {
            peer.say(&early);
        }
        let asked = server.until("a request", |server| server.requests.pop());
        let asked = request_of(&asked);
        if step == 1 {
            peer.say(&early);
            for _ in 0..5 {
                server.pass();
            }
        }
        if let Ok(pair) = server.iwarp.prepare(asked, CAPACITY) {
            if step == 2 {
                peer.say(&early);
            }
            let buf = server.messages.take().expect("a fresh pool");
            server.iwarp.post_receive(pair, 1, buf).expect("within the capacity");
            server.iwarp.accept(pair, b"").expect("it is told by an event");
            assert!(matches!(server.end(pair), DisconnectReason::PeerViolation(_)));
        }
        peer.closed(&mut server);
        assert!(peer.received.is_empty(), "no reply");
        assert_eq!(server.counters().early_fpdus, step + 1);
    }
    assert!(server.established.is_empty());
    server.check_memory();
}

/// 5044-7.1-f: what the accepting side posts waits until the connecting side has sent something.
#[test]
fn the_accepting_side_waits() {
    let mut server = Server::new(IwarpConfig::default());
    let (mut peer, pair) = Peer::connect(&mut server);
    server.send(pair, b"after you");
    for _ in 0..100 {
        server.pass();
    }
    peer.listen();
    assert!(peer.received.is_empty(), "nothing before the peer's first FPDU");
    let octets = peer.send(b"please");
    peer.say(&octets);
    assert_eq!(peer.ulpdu(&mut server)[18..], *b"after you");
}

/// A peer that closes at any point of the set-up leaves nothing behind.
#[test]
fn the_end_at_every_step() {
    let mut server = Server::new(IwarpConfig::default());
    let request = octets(&Frame { private_data: b"12345678", ..REQUEST });
    for len in 0..=request.len() {
        let mut peer = Peer::new(&server);
        peer.say(&request[..len]);
        for _ in 0..2 {
            server.pass();
        }
        drop(peer);
        for _ in 0..5 {
            server.pass();
        }
    }
    server.until("the one that got through has ended", |server| (server.ended.len() == 1).then_some(()));
    server.check_memory();
    assert_eq!(server.iwarp.poll_timeout(), None, "it waits for no peer: {:?}", server.counters());
}

/// Revision 1 is answered with revision 1, without IRD and ORD (6581-9-f).
#[test]
fn revision_1() {
    let mut server = Server::new(IwarpConfig::default());
    let request = Frame { revision: 1, enhanced: None, private_data: b"hello", ..REQUEST };
    let (mut peer, pair, reply) = Peer::connect_with(&mut server, &request);
    let (reply, _) = Frame::parse(&reply).expect("it is a frame");
    assert_eq!((reply.revision, reply.enhanced, reply.crc), (1, None, true));
    assert_eq!(reply.len(), mpa::FRAME_LEN);
    let octets = peer.send(b"old but sound");
    peer.say(&octets);
    assert_eq!(server.message(pair), b"old but sound");
}
