//! Messages without chunks, shown in the receive buffer and answered in the send buffer; and when messages leave.

use std::collections::VecDeque;

use socket2::{Domain, Type};
use stag_fabric::iwarp::IwarpConfig;
use stag_fabric::{
    Completed, PLAIN_LEN_MAX, PlainMessage, Provider, QueuePairId, SendRequest, ShownMessage, Taken,
};
use stag_wire::ddp::{DdpHeader, Untagged};
use stag_wire::rdmap::Opcode;

use crate::server::{CAPACITY, Peer, REQUEST, Server, octets, untagged};

/// A message without chunks whose Payload stream has `len` octets.
fn plain(xid: u32, credits: u32, len: usize) -> Vec<u8> {
    let words = [xid, 1, credits, 0, 0, 0, 0, xid].map(u32::to_be_bytes);
    let mut message = words.as_flattened().to_vec();
    message.extend((4..len).map(|at| at as u8 ^ xid as u8));
    message
}

/// One poll, which shows messages; how many were taken.
fn poll_shown(server: &mut Server, take: &mut impl FnMut(PlainMessage<'_>) -> Taken) -> usize {
    let mut completions = VecDeque::with_capacity(64);
    let count = server.iwarp.poll_in_place(server.now, &mut completions, 64, &mut |shown: ShownMessage<
        '_,
    >| match shown {
        ShownMessage::Plain(message) => take(message),
        ShownMessage::Whole(_) | ShownMessage::Scattered(_) => {
            panic!("its Receive is one buffer, and no memory in reach")
        }
    });
    let taken = count - completions.len();
    server.completions.append(&mut completions);
    taken
}

/// Polls until `count` messages were taken, with an answer of as many octets, and credits one higher.
fn answer(server: &mut Server, count: usize) {
    let mut left = count;
    for _ in 0..1_000_000 {
        left -= poll_shown(server, &mut |message| {
            let Some(space) = message.space else { return Taken::No };
            assert_eq!(space.len(), PLAIN_LEN_MAX);
            space.fill(0x5a);
            space[..message.stream.len()].copy_from_slice(message.stream);
            Taken::Answered { credits: message.credits + 1, len: message.stream.len() }
        });
        if left == 0 {
            return;
        }
    }
    panic!("{left} of {count} messages were not shown: {:?}", server.counters());
}

/// Polls often enough for the queue pair to count as one that waits.
fn wait(server: &mut Server) {
    for _ in 0..100 {
        poll_shown(server, &mut |message| panic!("{message:?}"));
    }
}

/// The next message that comes to the peer, which is the `msn`th.
fn heard(peer: &mut Peer, server: &mut Server, msn: u32) -> Vec<u8> {
    let ulpdu = peer.ulpdu(server);
    let (header, payload) = DdpHeader::parse(&ulpdu).expect("it is a segment");
    let control = Opcode::Send.to_control();
    assert_eq!(
        header,
        DdpHeader::Untagged(Untagged { last: true, control, ulp: 0, queue: 0, msn, offset: 0 })
    );
    payload.to_vec()
}

/// Posts as many Receives as there may be, and returns how many were missing.
fn missing_receives(server: &mut Server, pair: QueuePairId) -> usize {
    (0..)
        .take_while(|_| {
            let buf = server.messages.take().expect("the pool is large enough");
            server.iwarp.post_receive(pair, 100, buf).is_ok()
        })
        .count()
}

/// 5041-c, 5044-4.4-a: what is answered in place needs no Receive, and the answers are whole FPDUs, numbered on.
#[test]
fn messages_are_answered_where_they_arrived() {
    let mut server = Server::new(IwarpConfig::default());
    let (mut peer, pair) = Peer::connect(&mut server);
    let mut msn = 0;
    for round in 0..20u32 {
        let lens: Vec<usize> = (0..round as usize % 7 + 1).map(|at| 4 + at * 81 + round as usize).collect();
        let messages: Vec<Vec<u8>> =
            (0..).zip(&lens).map(|(at, &len)| plain(round * 100 + at, at, len)).collect();
        let stream: Vec<u8> = messages.iter().flat_map(|message| peer.send(message)).collect();
        peer.say(&stream);
        answer(&mut server, messages.len());
        for (at, &len) in (0..).zip(&lens) {
            msn += 1;
            assert_eq!(heard(&mut peer, &mut server, msn), plain(round * 100 + at, at + 1, len));
        }
        assert!(server.completions.is_empty());
        // One that has come in the usual way between them, and one that has left so.
        let other = peer.send(b"not plain");
        peer.say(&other);
        assert_eq!(server.message(pair), b"not plain");
        server.send(pair, b"neither");
        msn += 1;
        assert_eq!(heard(&mut peer, &mut server, msn), b"neither");
        assert_eq!(missing_receives(&mut server, pair), 1, "that of the message that was not shown");
    }
}

/// 5044-4.4-a, 5041-c, 5041-d, 5041-e: what is wrong is found before anything is shown.
#[test]
fn nothing_wrong_is_shown() {
    let damaged = |octets: &[u8]| {
        let mut octets = octets.to_vec();
        octets[60] ^= 1;
        octets
    };
    let whole = plain(9, 3, 40);
    let right = untagged(Opcode::Send, 0, 1, 0, true, &whole);
    let cases: [(&str, Vec<u8>); 5] = [
        ("a wrong CRC", damaged(&right)),
        ("a number that is not its turn", untagged(Opcode::Send, 0, 2, 0, true, &whole)),
        ("an offset in a message that has not begun", untagged(Opcode::Send, 0, 1, 4, true, &whole)),
        ("more than a Receive holds", untagged(Opcode::Send, 0, 1, 0, true, &plain(9, 3, 1100))),
        ("a handle that is not exposed", untagged(Opcode::SendInvalidate, 77, 1, 0, true, &whole)),
    ];
    for (what, octets) in cases {
        let mut server = Server::new(IwarpConfig::default());
        let (mut peer, pair) = Peer::connect(&mut server);
        peer.say(&octets);
        server.until(what, |server| {
            poll_shown(server, &mut |message| panic!("{what}: {message:?} is shown"));
            server.ended.iter().any(|(ended, _)| *ended == pair).then_some(())
        });
        assert_eq!(server.counters().terminates_sent, 1, "{what}");
        server.check_memory();
    }
}

/// A message that is not there as a whole, or in several segments, comes as a completion, and so do those behind it in the same
/// look.
#[test]
fn what_is_not_whole_comes_as_a_completion() {
    let mut server = Server::new(IwarpConfig::default());
    let (mut peer, pair) = Peer::connect(&mut server);
    let messages = [plain(1, 1, 100), plain(2, 1, 200), plain(3, 1, 60)];
    let [first, second] = [(0, 64), (64, 128)]
        .map(|(from, to)| untagged(Opcode::Send, 0, 1, from as u32, to == 128, &messages[0][from..to]));
    peer.say(&[&first[..], &second[..], &untagged(Opcode::Send, 0, 2, 0, true, &messages[1])].concat());
    let mut received = 0;
    server.until("both are received", |server| {
        poll_shown(server, &mut |message| panic!("{message:?} is shown"));
        received = server.completions.len();
        (received == 2).then_some(())
    });
    // In two pieces of the stream.
    let octets = untagged(Opcode::Send, 0, 3, 0, true, &messages[2]);
    for part in [&octets[..50], &octets[50..]] {
        peer.say(part);
        wait(&mut server);
    }
    server.until("it is received", |server| {
        poll_shown(server, &mut |message| panic!("{message:?} is shown"));
        (server.completions.len() == 3).then_some(())
    });
    for message in messages {
        assert_eq!(server.message(pair), message);
    }
}

/// Without a Receive there is no credit: nothing is shown, and the peer hears of it.
#[test]
fn without_a_receive_nothing_is_shown() {
    let mut server = Server::new(IwarpConfig::default());
    let (mut peer, pair) = Peer::connect(&mut server);
    for number in 0..CAPACITY.receives {
        let message = peer.send(&plain(number, 1, 50));
        peer.say(&message);
        let message = server.message(pair);
        assert_eq!(message, plain(number, 1, 50));
    }
    let message = peer.send(&plain(99, 1, 50));
    peer.say(&message);
    server.until("the end", |server| {
        poll_shown(server, &mut |message| panic!("{message:?} is shown"));
        server.ended.first().map(drop)
    });
    assert_eq!(server.counters().bad_messages, 1);
}

/// A connection whose peer receives little before it listens.
fn connect_small(server: &mut Server) -> (Peer, QueuePairId) {
    let socket = socket2::Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(8 << 10).expect("a socket can be");
    socket.connect(&server.address.into()).expect("it listens");
    let mut peer = Peer::of(socket.into());
    peer.say(&octets(&REQUEST));
    peer.frame(server);
    let pair = server.until("established", |server| server.established.first().copied());
    (peer, pair)
}

/// A peer that does not receive fills the socket and the send buffer. Nothing is lost or waited for: what finds no place is
/// answered in the usual way.
#[test]
fn answers_to_a_peer_that_does_not_receive() {
    const COUNT: u32 = 1000;
    for crc in [false, true] {
        let config = IwarpConfig { send_buffer: Some(8192), crc, ..IwarpConfig::default() };
        let mut server = Server::new(config);
        let (mut peer, pair) = connect_small(&mut server);
        let (mut left, mut answered) = (VecDeque::new(), 0);
        let (mut said, mut received) = (0, 0);
        server.until("all are answered", |server| {
            let is_full = left.len() == CAPACITY.sends as usize;
            if is_full || said == COUNT {
                // Now it does.
                peer.listen();
            } else if said - answered - received < CAPACITY.receives {
                // No more than there are Receives: the peer keeps its credits.
                said += 1;
                let message = peer.send(&plain(said, 1, PLAIN_LEN_MAX));
                peer.say(&message);
            }
            poll_shown(server, &mut |message| {
                let Some(space) = message.space.filter(|_| left.is_empty()) else { return Taken::No };
                space[..message.stream.len()].copy_from_slice(message.stream);
                answered += 1;
                Taken::Answered { credits: 1, len: message.stream.len() }
            });
            for completion in std::mem::take(&mut server.completions) {
                assert_eq!(completion.result, Ok(()), "{:?}", server.counters());
                let Completed::Receive { buf, .. } = completion.completed else { continue };
                received += 1;
                left.push_back(buf.to_vec());
                let buf = server.messages.take().expect("the pool is large enough");
                server.iwarp.post_receive(pair, 1, buf).expect("one was used");
            }
            while let Some(message) = left.front() {
                let mut buf = server.messages.take_len(message.len()).expect("the pool is large enough");
                buf.copy_from_slice(message);
                let request = SendRequest { id: 0, buf, invalidate: None, signaled: false };
                if server.iwarp.post_send(pair, request).is_err() {
                    break;
                }
                left.pop_front();
            }
            server.iwarp.ring_doorbells();
            (answered + received == COUNT && left.is_empty()).then_some(())
        });
        assert!(answered > 0 && received > 0, "{answered} were answered in place, {received} otherwise");
        for number in 1..=COUNT {
            assert_eq!(heard(&mut peer, &mut server, number), plain(number, 1, PLAIN_LEN_MAX), "CRC {crc}");
        }
    }
}

/// The first message of a queue pair that waits leaves when it is posted; others leave together.
#[test]
fn the_first_message_leaves_at_once() {
    let mut server = Server::new(IwarpConfig::default());
    let (mut peer, pair) = Peer::connect(&mut server);
    let hello = peer.send(b"hello");
    peer.say(&hello);
    server.message(pair);
    for in_place in [false, true] {
        wait(&mut server);
        let before = server.counters().send_calls;
        for number in 0..6 {
            if in_place {
                let is_built = server.iwarp.build_plain(pair, |space| {
                    space[..4].fill(number);
                    Some((1, 4))
                });
                assert!(is_built, "nothing waits");
            } else {
                server.send(pair, &[number]);
            }
            assert_eq!(server.counters().send_calls - before, 1);
        }
        server.iwarp.ring_doorbells();
        assert_eq!(server.counters().send_calls - before, 2);
    }
    for msn in 1..=12 {
        heard(&mut peer, &mut server, msn);
    }
}

/// Answers to many messages leave in two halves where the end had waited; those to few messages, or of a busy end, leave
/// together.
#[test]
fn answers_leave_in_halves_where_the_peer_would_wait() {
    let mut server = Server::new(IwarpConfig::default());
    let (mut peer, _) = Peer::connect(&mut server);
    let mut msn = 0;
    for (count, calls) in [(1, 1), (8, 1), (32, 2), (2, 1)] {
        let stream: Vec<u8> = (0..count).flat_map(|number| peer.send(&plain(number, 1, 60))).collect();
        wait(&mut server);
        let before = server.counters().send_calls;
        peer.say(&stream);
        answer(&mut server, count as usize);
        assert_eq!(server.counters().send_calls - before, calls, "{count} messages");
        for _ in 0..count {
            msn += 1;
            heard(&mut peer, &mut server, msn);
        }
    }
    // The messages of the first look.
    wait(&mut server);
    for calls in [2, 1] {
        let stream: Vec<u8> = (0..32).flat_map(|number| peer.send(&plain(number, 1, 60))).collect();
        let before = server.counters().send_calls;
        peer.say(&stream);
        answer(&mut server, 32);
        assert_eq!(server.counters().send_calls - before, calls);
    }
    for number in 1..=64 {
        heard(&mut peer, &mut server, msn + number);
    }
}
