//! Habits of peers that are honest: Linux's siw above all. Here the provider connects, and the test is the listener, too.

use std::net::TcpListener;
use std::time::Duration;

use stag_fabric::iwarp::{Iwarp, IwarpConfig};
use stag_fabric::{DisconnectReason, Provider, QueuePairId};
use stag_wire::ddp::{DdpHeader, Tagged};
use stag_wire::mpa::{self, Enhanced, Frame, FrameKind, ReadyToReceive};
use stag_wire::rdmap::Opcode;

use crate::server::{CAPACITY, Peer, REQUEST, Server, octets, read_request, tagged, untagged};

/// A listener of the test, and a provider that connects to it.
struct Caller {
    server: Server,
    listener: TcpListener,
    pair: QueuePairId,
}

impl Caller {
    fn new(config: IwarpConfig) -> Caller {
        let mut server = Server::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").expect("the system finds a port");
        let address = listener.local_addr().expect("it listens").to_string();
        let pair = server.iwarp.connect(&address, b"hi", CAPACITY).expect("connecting starts");
        for id in 0..4 {
            let buf = server.messages.take().expect("a fresh pool");
            server.iwarp.post_receive(pair, id, buf).expect("within the capacity");
        }
        Caller { server, listener, pair }
    }

    /// The connection that comes in, and its request.
    fn accept(&mut self) -> (Peer, Vec<u8>) {
        self.server.pass();
        let (socket, _) = self.listener.accept().expect("it connects");
        let mut peer = Peer::of(socket);
        let request = peer.frame(&mut self.server);
        (peer, request)
    }
}

/// What siw answers: the request's bits, our ORD as its IRD and the other way round (siw-2, siw-9).
fn echo(request: &[u8]) -> Vec<u8> {
    let (request, _) = Frame::parse(request).expect("it is a frame");
    let enhanced = request.enhanced.map(|asked| Enhanced {
        peer_to_peer: asked.peer_to_peer.map(|_| ReadyToReceive { write: true, ..ReadyToReceive::default() }),
        ird: asked.ord.min(128),
        ord: asked.ird.min(128),
    });
    octets(&Frame { kind: FrameKind::Reply, enhanced, private_data: b"", ..request })
}

/// 6581-9-c, siw-2: a peer like siw; the message that makes it ready comes first.
#[test]
fn connecting_to_siw() {
    for (crc, peer_to_peer) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut caller = Caller::new(IwarpConfig { crc, peer_to_peer, ..IwarpConfig::default() });
        let (mut peer, request) = caller.accept();
        let (asked, _) = Frame::parse(&request).expect("it is a frame");
        assert_eq!(
            (asked.kind, asked.revision, asked.crc, asked.private_data),
            (FrameKind::Request, 2, crc, &b"hi"[..])
        );
        assert!(!asked.markers && !asked.rejected);
        peer.say(&echo(&request));
        let server = &mut caller.server;
        server.until("established", |server| server.established.pop());
        if peer_to_peer {
            let first = peer.ulpdu(server);
            let (header, payload) = DdpHeader::parse(&first).expect("it is a segment");
            assert!(
                matches!(header, DdpHeader::Tagged(Tagged { last: true, control: 0x40, .. }))
                    && payload.is_empty()
            );
        }
        server.send(caller.pair, b"first");
        assert_eq!(peer.ulpdu(server)[18..], *b"first");
        let octets = untagged(Opcode::Send, 0, 1, 0, true, b"reply");
        peer.say(&octets);
        assert_eq!(server.message(caller.pair), b"reply");
    }
}

/// siw may not notice a message right behind its reply until more comes: until it has sent something, it is nudged, a
/// bounded number of times, with messages that mean nothing.
#[test]
fn a_peer_that_seems_deaf_is_nudged() {
    let mut caller = Caller::new(IwarpConfig::default());
    let (mut peer, request) = caller.accept();
    peer.say(&echo(&request));
    let server = &mut caller.server;
    server.until("established", |server| server.established.pop());
    server.send(caller.pair, b"first");
    peer.ulpdu(server);
    assert_eq!(peer.ulpdu(server)[18..], *b"first");
    for nudge in 1..=3 {
        let ulpdu = peer.ulpdu(server);
        assert_eq!((ulpdu.len(), ulpdu[1]), (14, Opcode::Write.to_control()));
        assert_eq!(server.counters().nudges, nudge);
    }
    assert!(server.now < Duration::from_millis(100));
    peer.say(&untagged(Opcode::Send, 0, 1, 0, true, b"here I am"));
    assert_eq!(server.message(caller.pair), b"here I am");
    server.now += Duration::from_secs(10);
    for _ in 0..100 {
        server.pass();
    }
    assert_eq!(server.counters().nudges, 3, "no more of them");
    assert_eq!(server.iwarp.poll_timeout(), None);
}

/// As many nudges as there may be, and no more.
#[test]
fn nudges_end() {
    let mut caller = Caller::new(IwarpConfig::default());
    let (mut peer, request) = caller.accept();
    peer.say(&echo(&request));
    let server = &mut caller.server;
    server.until("established", |server| server.established.pop());
    for _ in 0..1000 {
        server.now += Duration::from_millis(20);
        server.pass();
    }
    assert_eq!(server.counters().nudges, 8);
    assert!(server.ended.is_empty());
}

/// 6581-9-f: a peer that closes on revision 2 gets another try with revision 1; one that closes on that as well, none.
#[test]
fn a_peer_of_revision_1() {
    let mut caller = Caller::new(IwarpConfig::default());
    let (peer, request) = caller.accept();
    assert_eq!(request[17], 2);
    drop(peer);
    for _ in 0..3 {
        caller.server.pass();
    }
    let (mut peer, request) = caller.accept();
    let (asked, _) = Frame::parse(&request).expect("it is a frame");
    assert_eq!((asked.revision, asked.enhanced, asked.private_data), (1, None, &b"hi"[..]));
    peer.say(&echo(&request));
    caller.server.until("established", |server| server.established.pop());

    let mut caller = Caller::new(IwarpConfig::default());
    for _ in 0..2 {
        drop(caller.accept());
        for _ in 0..3 {
            caller.server.pass();
        }
    }
    assert_eq!(caller.server.end(caller.pair), DisconnectReason::PeerDied);
    caller.server.check_memory();
}

/// siw-22, 5044-7.1-e: a refusal, with its reason; replies that cannot be.
#[test]
fn replies_that_do_not_connect() {
    let reply = Frame { kind: FrameKind::Reply, ..REQUEST };
    let cases: [(Frame<'_>, Option<DisconnectReason>); 4] = [
        (
            Frame { rejected: true, private_data: b"not today", ..reply },
            Some(DisconnectReason::Rejected("not today".to_owned())),
        ),
        (Frame { markers: true, ..reply }, None),
        (Frame { kind: FrameKind::Request, ..reply }, None),
        // 6581-9-d: it wants to read more at once than we said that we take.
        (Frame { enhanced: Some(Enhanced { peer_to_peer: None, ird: 1, ord: 5 }), ..reply }, None),
    ];
    for (reply, reason) in cases {
        let mut caller = Caller::new(IwarpConfig { ird: 4, ..IwarpConfig::default() });
        let (mut peer, _) = caller.accept();
        peer.say(&octets(&reply));
        let end = caller.server.end(caller.pair);
        match reason {
            Some(reason) => assert_eq!(end, reason),
            None => assert!(matches!(end, DisconnectReason::PeerViolation(_)), "{end:?}"),
        }
        if reply.enhanced.is_some_and(|enhanced| enhanced.ord == 5) {
            assert_eq!(peer.terminated(&mut caller.server).0.to_string(), "MPA: insufficient IRD");
        } else {
            peer.closed(&mut caller.server);
        }
        caller.server.check_memory();
    }
}

/// A reply that never comes, or is nonsense, or comes by the octet.
#[test]
fn replies_that_take_their_time() {
    let config = IwarpConfig { connect_timeout: Duration::from_secs(10), ..IwarpConfig::default() };
    let mut caller = Caller::new(config);
    let (mut peer, request) = caller.accept();
    let reply = echo(&request);
    for octet in &reply[..9] {
        peer.say(&[*octet]);
        caller.server.now += Duration::from_secs(1);
        caller.server.pass();
    }
    caller.server.now += Duration::from_secs(1);
    assert_eq!(caller.server.end(caller.pair), DisconnectReason::TimedOut);

    let mut caller = Caller::new(config);
    let (mut peer, _) = caller.accept();
    peer.say(b"HTTP/1.1 400 Bad Request\r\n");
    assert!(matches!(caller.server.end(caller.pair), DisconnectReason::PeerViolation(_)));
}

/// siw-10: messages that make us ready: a Write or a Read of no octets, of any STag; or a Send of none, which takes no Receive.
#[test]
fn messages_that_make_ready() {
    let none = ReadyToReceive::default();
    let ways: [(ReadyToReceive, Vec<u8>); 3] = [
        (ReadyToReceive { write: true, ..none }, tagged(Opcode::Write, 1, 0, true, b"")),
        (ReadyToReceive { read: true, ..none }, read_request(1, 1, 0, 0)),
        (ReadyToReceive { send: true, ..none }, untagged(Opcode::Send, 0, 1, 0, true, b"")),
    ];
    for (ready, first) in ways {
        let mut server = Server::new(IwarpConfig::default());
        let words = Enhanced { peer_to_peer: Some(ready), ird: 4, ord: 4 };
        let request = Frame { enhanced: Some(words), ..REQUEST };
        let (mut peer, pair, reply) = Peer::connect_with(&mut server, &request);
        let (reply, _) = Frame::parse(&reply).expect("it is a frame");
        assert_eq!(reply.enhanced.and_then(|enhanced| enhanced.peer_to_peer), Some(ready));
        server.send(pair, b"ready");
        for _ in 0..50 {
            server.pass();
        }
        peer.listen();
        assert!(peer.received.is_empty());
        peer.say(&first);
        let mut answer = peer.ulpdu(&mut server);
        if ready.read {
            assert_eq!((answer.len(), answer[1]), (14, Opcode::ReadResponse.to_control()));
            answer = peer.ulpdu(&mut server);
        }
        assert_eq!(answer[18..], *b"ready");
        assert!(server.completions.is_empty(), "no Receive was taken");
        let msn = if ready.send { 2 } else { 1 };
        peer.say(&untagged(Opcode::Send, 0, msn, 0, true, b"go on"));
        assert_eq!(server.message(pair), b"go on");
    }
}

/// siw-1: a Linux client asks for no CRC and says ORD 0, IRD 128; S and revision come back, and with C=1 all carry CRCs.
#[test]
fn a_linux_client() {
    for crc in [false, true] {
        let mut server = Server::new(IwarpConfig { crc, ..IwarpConfig::default() });
        let words = Enhanced { peer_to_peer: None, ird: 128, ord: 0 };
        let request = Frame { crc: false, enhanced: Some(words), private_data: b"12345678", ..REQUEST };
        let (mut peer, pair, reply) = Peer::connect_with(&mut server, &request);
        let (reply, _) = Frame::parse(&reply).expect("it is a frame");
        assert_eq!((reply.revision, reply.crc, reply.large_fpdus), (2, crc, false));
        assert_eq!(reply.enhanced, Some(Enhanced { peer_to_peer: None, ird: 128, ord: 128 }));
        // Without CRCs siw sends 0 in their place.
        let mut octets = peer.send(b"call");
        if !crc {
            let len = octets.len();
            octets[len - 4..].fill(0);
        }
        peer.say(&octets);
        assert_eq!(server.message(pair), b"call");
        server.send(pair, b"reply");
        server.until("the reply", |_| {
            peer.listen();
            (!peer.received.is_empty()).then_some(())
        });
        let (fpdu, _) = mpa::Fpdu::parse(&peer.received).expect("it came in one piece");
        assert_eq!((fpdu.is_intact(), fpdu.crc == 0), (crc, !crc));
    }
}

/// No listener, and a name that there is not.
#[test]
fn addresses() {
    let mut iwarp = Iwarp::open(IwarpConfig::default()).expect("TCP needs nothing special");
    for bad in ["", "127.0.0.1", "host:", ":20049", "127.0.0.1:70000", "a\0b:1", "no such name:1"] {
        assert!(iwarp.connect(bad, b"", CAPACITY).is_err(), "{bad:?}");
        assert!(iwarp.listen(bad).is_err(), "{bad:?}");
    }
    assert!(iwarp.listen("[::1]:0").is_ok() || iwarp.listen("127.0.0.1:0").is_ok());
    assert!(iwarp.poll_event().is_none());
}
