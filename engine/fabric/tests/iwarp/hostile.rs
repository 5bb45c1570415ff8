//! Peers that break the rules within an established stream: each gets the Terminate that says so, is counted, loses its connection, and
//! nothing else; all memory comes back, and a bystander does not notice.

use stag_fabric::iwarp::{IwarpConfig, IwarpCounters};
use stag_fabric::{Completed, DisconnectReason, Exposed, QueuePairId, WorkError};
use stag_wire::mpa;
use stag_wire::rdmap::{Cause, Opcode};

use crate::server::{MESSAGE, Peer, Server, fpdu, read_request, tagged, untagged};

/// What a peer does, given what was exposed: the STag to write and the one to read.
type Misdeed = fn(&mut Peer, write: u32, read: u32) -> Vec<u8>;
/// Which counter counts it.
type Counter = fn(&IwarpCounters) -> u64;

const fn cause(layer: u8, error_type: u8, code: u8) -> Cause {
    Cause { layer, error_type, code }
}

/// Each with its Terminate and its counter. Two exposures of 64 octets are there.
#[rustfmt::skip]
const MISDEEDS: &[(&str, Misdeed, Cause, Counter)] = &[
    ("5044-4.4-a, siw-20: a wrong CRC", |peer, _, _| {
        let mut octets = peer.send(b"hello");
        octets[25] ^= 1;
        octets
    }, cause(2, 0, 2), |c| c.bad_crcs),
    ("no room for a header", |_, _, _| fpdu(&[0x41; 13]), cause(1, 0, 0), |c| c.bad_segments),
    ("no room for an untagged header", |_, _, _| fpdu(&[0x41; 17]), cause(1, 0, 0), |c| c.bad_segments),
    ("no ULPDU at all", |_, _, _| fpdu(&[]), cause(1, 0, 0), |c| c.bad_segments),
    ("5041-a: another version, tagged", |_, stag, _| {
        let mut ulpdu = mpa::Fpdu::parse(&tagged(Opcode::Write, stag, 0, true, b"x")).expect("whole").0.ulpdu.to_vec();
        ulpdu[0] ^= 3;
        fpdu(&ulpdu)
    }, cause(1, 1, 4), |c| c.bad_segments),
    ("5041-a: another version, untagged", |_, _, _| {
        let mut ulpdu = mpa::Fpdu::parse(&untagged(Opcode::Send, 0, 1, 0, true, b"x")).expect("whole").0.ulpdu.to_vec();
        ulpdu[0] ^= 3;
        fpdu(&ulpdu)
    }, cause(1, 2, 6), |c| c.bad_segments),
    ("another version of RDMAP", |_, stag, _| {
        let mut ulpdu = mpa::Fpdu::parse(&tagged(Opcode::Write, stag, 0, true, b"x")).expect("whole").0.ulpdu.to_vec();
        ulpdu[1] = 0x80;
        fpdu(&ulpdu)
    }, cause(0, 2, 5), |c| c.bad_segments),
    ("an opcode that there is not", |_, stag, _| {
        let mut ulpdu = mpa::Fpdu::parse(&tagged(Opcode::Write, stag, 0, true, b"x")).expect("whole").0.ulpdu.to_vec();
        ulpdu[1] = 0x4f;
        fpdu(&ulpdu)
    }, cause(0, 2, 6), |c| c.bad_segments),
    ("a Send that is tagged", |_, stag, _| tagged(Opcode::Send, stag, 0, true, b"x"), cause(0, 2, 6), |c| c.bad_segments),
    ("a Send in the queue of Read Requests", |_, _, _| {
        let mut ulpdu = mpa::Fpdu::parse(&untagged(Opcode::ReadRequest, 0, 1, 0, true, b"x")).expect("whole").0.ulpdu.to_vec();
        ulpdu[1] = Opcode::Send.to_control();
        fpdu(&ulpdu)
    }, cause(0, 2, 6), |c| c.bad_segments),
    ("5041-b: a queue that there is not", |_, _, _| {
        let mut ulpdu = mpa::Fpdu::parse(&untagged(Opcode::Send, 0, 1, 0, true, b"x")).expect("whole").0.ulpdu.to_vec();
        ulpdu[9] = 3;
        fpdu(&ulpdu)
    }, cause(1, 2, 1), |c| c.bad_segments),
    ("5041-c, siw-13: not the next message", |_, _, _| untagged(Opcode::Send, 0, 2, 0, true, b"x"), cause(1, 2, 3), |c| c.bad_sequences),
    ("5041-c: not the next Read Request", |_, _, _| untagged(Opcode::ReadRequest, 0, 2, 0, true, &[0; 28]), cause(1, 2, 3), |c| c.bad_sequences),
    ("5041-d, siw-13: not the next octet", |_, _, _| untagged(Opcode::Send, 0, 1, 1, true, b"x"), cause(1, 2, 4), |c| c.bad_sequences),
    ("5041-d: a hole in a message", |_, _, _| {
        [untagged(Opcode::Send, 0, 1, 0, false, b"four"), untagged(Opcode::Send, 0, 1, 5, true, b"x")].concat()
    }, cause(1, 2, 4), |c| c.bad_sequences),
    ("5041-e, siw-14: more messages than Receives", |peer, _, _| {
        (0..9).flat_map(|_| peer.send(b"one of nine")).collect()
    }, cause(1, 2, 2), |c| c.bad_messages),
    ("5041-e: a message longer than its Receive", |peer, _, _| peer.send(&[1; MESSAGE + 1]), cause(1, 2, 5), |c| c.bad_messages),
    ("5041-e: the same, in pieces", |_, _, _| {
        let piece = [1; MESSAGE / 2];
        [
            untagged(Opcode::Send, 0, 1, 0, false, &piece),
            untagged(Opcode::Send, 0, 1, 512, false, &piece),
            untagged(Opcode::Send, 0, 1, 1024, true, b"!"),
        ].concat()
    }, cause(1, 2, 5), |c| c.bad_messages),
    ("a Read Request of another length", |_, _, _| untagged(Opcode::ReadRequest, 0, 1, 0, true, &[0; 27]), cause(1, 0, 0), |c| c.bad_segments),
    ("a Read Request in pieces", |_, _, _| untagged(Opcode::ReadRequest, 0, 1, 0, false, &[0; 28]), cause(1, 0, 0), |c| c.bad_segments),
    ("5041-f, 5042-a: a guessed STag", |_, stag, _| tagged(Opcode::Write, stag ^ 0x100, 0, true, b"x"), cause(1, 1, 0), |c| c.stags_refused),
    ("5041-f: a Write out of bounds", |_, stag, _| tagged(Opcode::Write, stag, 60, true, b"five!"), cause(1, 1, 1), |c| c.accesses_refused),
    ("5041-f: a Write that wraps", |_, stag, _| tagged(Opcode::Write, stag, u64::MAX, true, b"xx"), cause(1, 1, 3), |c| c.accesses_refused),
    ("siw-15: a Write to what may be read", |_, _, stag| tagged(Opcode::Write, stag, 0, true, b"x"), cause(1, 1, 0), |c| c.accesses_refused),
    ("a Read of a guessed STag", |_, _, stag| read_request(1, stag ^ 0x100, 0, 8), cause(0, 1, 0), |c| c.stags_refused),
    ("a Read out of bounds", |_, _, stag| read_request(1, stag, 60, 5), cause(0, 1, 1), |c| c.accesses_refused),
    ("a Read that wraps", |_, _, stag| read_request(1, stag, u64::MAX, 5), cause(0, 1, 4), |c| c.accesses_refused),
    ("a Read of what may be written", |_, stag, _| read_request(1, stag, 0, 8), cause(0, 1, 2), |c| c.accesses_refused),
    ("siw-17: a Response without a Read", |_, stag, _| tagged(Opcode::ReadResponse, stag, 0, true, b"x"), cause(1, 1, 0), |c| c.bad_responses),
    ("5040-e, siw-19: an invalidation of nothing", |_, stag, _| {
        untagged(Opcode::SendInvalidate, stag ^ 0x100, 1, 0, true, b"x")
    }, cause(0, 1, 9), |c| c.bad_invalidations),
];

/// A connection that lives through what another does.
struct Bystander {
    peer: Peer,
    pair: QueuePairId,
    count: u32,
}

impl Bystander {
    fn new(server: &mut Server) -> Bystander {
        let (peer, pair) = Peer::connect(server);
        Bystander { peer, pair, count: 0 }
    }

    fn check(&mut self, server: &mut Server) {
        if self.count == 8 {
            // Its Receives are used up: another one takes over.
            *self = Bystander::new(server);
        }
        self.count += 1;
        let octets = self.peer.send(b"still here");
        self.peer.say(&octets);
        assert_eq!(server.message(self.pair), b"still here");
    }
}

/// 5041-h, 5042-e.
#[test]
fn misdeeds_end_one_connection() {
    for crc in [true, false] {
        let mut server = Server::new(IwarpConfig { crc, ird: 4, ..IwarpConfig::default() });
        let mut bystander = Bystander::new(&mut server);
        for (at, (what, misdeed, cause, counter)) in MISDEEDS.iter().enumerate() {
            // By the octet, and all at once: both ways into the receiver.
            for in_pieces in [false, true] {
                let before = server.counters();
                let (mut peer, pair) = Peer::connect(&mut server);
                let write = server.expose_write(pair, 64);
                let read = server.expose_read(pair, 64);
                let octets = misdeed(&mut peer, write.0, read.0);
                if in_pieces {
                    for octet in &octets {
                        peer.try_say(&[*octet]);
                        server.pass();
                    }
                } else {
                    peer.say(&octets);
                }
                let (told, about) = peer.terminated(&mut server);
                assert_eq!(told, *cause, "{what}");
                assert!(told.meaning().is_some(), "{what}");
                let names_segment = !matches!((told.layer, told.error_type), (2, _) | (1, 0));
                assert_eq!(
                    about.is_some(),
                    names_segment && !what.contains("version, "),
                    "{what}: {about:?}"
                );
                let reason = server.end(pair);
                let is_right = match reason {
                    DisconnectReason::Work(WorkError::Length) => {
                        what.contains("longer") || what.contains("same")
                    }
                    DisconnectReason::PeerViolation(_) => true,
                    _ => false,
                };
                assert!(is_right, "{what}: {reason:?}");
                let after = server.counters();
                assert_eq!(counter(&after), counter(&before) + 1, "{what} is counted");
                assert_eq!(after.terminates_sent, before.terminates_sent + 1, "{what}");
                for completion in server.completions.drain(..) {
                    if completion.queue_pair == pair
                        && let Completed::Fence { exposed: Exposed::Write(buf), .. } = completion.completed
                    {
                        assert!(buf.iter().all(|&octet| octet == 0x77), "{what}: nothing was written");
                    }
                }
            }
            if at % 4 == 0 {
                bystander.check(&mut server);
            }
        }
        bystander.check(&mut server);
    }
}

/// 5040-c, siw-18: Read Requests beyond the IRD, when the answers cannot leave because the peer does not read.
#[test]
fn more_reads_than_agreed_on() {
    let mut server = Server::new(IwarpConfig { ird: 4, ..IwarpConfig::default() });
    let mut bystander = Bystander::new(&mut server);
    let (mut peer, pair) = Peer::connect(&mut server);
    let read = server.expose_read(pair, 1 << 20);
    let mut msn = 0;
    // It asks and never listens: the socket fills up, then four more wait, then it is too much.
    server.until("the peer is cut off", |server| {
        if server.counters().reads_refused == 0 {
            msn += 1;
            peer.try_say(&read_request(msn, read.0, 0, 1 << 20));
        }
        server.ended.iter().any(|(ended, _)| *ended == pair).then_some(())
    });
    assert!(msn > 4);
    assert_eq!(server.counters().reads_refused, 1);
    // The Terminate comes behind all that was sent before.
    assert_eq!(peer.terminated(&mut server).0, cause(0, 2, 7));
    bystander.check(&mut server);
}

/// A Terminate ends the connection in every state, whatever it says, and is not answered by another.
#[test]
fn a_terminate_is_the_end() {
    let mut server = Server::new(IwarpConfig::default());
    let mut bystander = Bystander::new(&mut server);
    let payloads: [&[u8]; 5] = [&[0x11, 1, 0xc0, 0], &[0x20, 2, 0, 0], &[0xff; 60], &[0x11], &[]];
    for (at, payload) in payloads.into_iter().enumerate() {
        // First of all, in the middle of a message, and in the middle of an answer.
        for before in 0..3 {
            let (mut peer, pair) = Peer::connect(&mut server);
            let read = server.expose_read(pair, 1 << 20);
            match before {
                1 => peer.say(&untagged(Opcode::Send, 0, 1, 0, false, b"a beginning")),
                2 => {
                    peer.say(&read_request(1, read.0, 0, 1 << 20));
                    server.pass();
                }
                _ => {}
            }
            peer.say(&untagged(Opcode::Terminate, 0, 1, 0, true, payload));
            let reason = server.end(pair);
            let expected = match at {
                0 => DisconnectReason::Work(WorkError::RemoteAccess),
                1 => DisconnectReason::PeerViolation("MPA: CRC"),
                _ => DisconnectReason::PeerViolation("a Terminate for no known reason"),
            };
            assert_eq!(reason, expected);
            peer.closed(&mut server);
            server.completions.clear();
        }
    }
    assert_eq!((server.counters().terminates_received, server.counters().terminates_sent), (15, 0));
    bystander.check(&mut server);
}

/// A peer that stops in the middle of anything, or vanishes, holds nothing of anybody else's; its end gives everything back.
#[test]
fn the_end_in_the_middle() {
    let mut server = Server::new(IwarpConfig::default());
    let mut bystander = Bystander::new(&mut server);
    let (mut peer, _) = Peer::connect(&mut server);
    let message = peer.send(b"a message that is cut short");
    for len in 1..message.len() {
        let before = server.counters().truncated;
        let (mut peer, pair) = Peer::connect(&mut server);
        peer.say(&message[..len]);
        for _ in 0..3 {
            server.pass();
        }
        drop(peer);
        assert_eq!(server.end(pair), DisconnectReason::Peer);
        assert_eq!(server.counters().truncated, before + 1);
    }
    bystander.check(&mut server);
}

/// 5042-b: what is fenced while a Write is half there is not written any more; the late part ends the connection.
#[test]
fn a_fence_in_the_middle_of_a_write() {
    let mut server = Server::new(IwarpConfig::default());
    let (mut peer, pair) = Peer::connect(&mut server);
    let handle = server.expose_write(pair, 40_000);
    let write = tagged(Opcode::Write, handle.0, 0, true, &[1; 40_000]);
    peer.say(&write[..20_000]);
    for _ in 0..3 {
        server.pass();
    }
    let Some(stag_fabric::Fence::Done(Exposed::Write(buf))) =
        stag_fabric::Provider::fence(&mut server.iwarp, pair, handle, 1)
    else {
        panic!("a fence is over at once");
    };
    let then = buf.to_vec();
    assert!(then.contains(&1) && then.contains(&0x77), "half of it was there");
    peer.try_say(&write[20_000..]);
    assert_eq!(peer.terminated(&mut server).0, cause(1, 1, 0));
    assert!(matches!(server.end(pair), DisconnectReason::PeerViolation(_)));
    assert!(buf[..] == then[..], "nothing is placed after the fence");
    drop(buf);
    server.check_memory();
}

/// 5044-5-b, 5040-a, siw-12, siw-16: any segmentation gives the same. A mixed stream, with a Write and a Send in several segments each
/// and another message between them, cut at each of its octets.
#[test]
fn any_segmentation() {
    let mut server = Server::new(IwarpConfig::default());
    let mut stream = Vec::new();
    let mut lens = Vec::new();
    for cut in 0..400 {
        let (mut peer, pair) = Peer::connect(&mut server);
        let write = server.expose_write(pair, 64);
        let read = server.expose_read(pair, 64);
        stream.clear();
        stream.extend(peer.send(b"one"));
        stream.extend(tagged(Opcode::Write, write.0, 1, false, b"written"));
        stream.extend(read_request(1, read.0, 4, 9));
        stream.extend(tagged(Opcode::Write, write.0, 8, true, b"!"));
        stream.extend(tagged(Opcode::Write, 0, 0, true, b""));
        stream.extend(untagged(Opcode::Send, 0, 2, 0, false, b"in two "));
        stream.extend(untagged(Opcode::Send, 0, 2, 7, true, b"pieces"));
        stream.extend(untagged(Opcode::SendSolicitedInvalidate, write.0, 3, 0, true, b"last"));
        lens.push(stream.len());
        if cut > stream.len() {
            break;
        }
        let (one, two) = stream.split_at(cut);
        peer.say(one);
        server.pass();
        peer.say(two);
        assert_eq!(server.message(pair), b"one");
        assert_eq!(server.message(pair), b"in two pieces");
        let is_last = |c: &stag_fabric::Completion| {
            c.queue_pair == pair && matches!(c.completed, Completed::Receive { exposed: Some(_), .. })
        };
        let last = server.until("the last message", |server| {
            let at = server.completions.iter().position(is_last)?;
            server.completions.remove(at)
        });
        let Completed::Receive { buf, invalidated, exposed: Some(Exposed::Write(memory)) } = last.completed
        else {
            panic!("it brings the memory back");
        };
        assert_eq!((&buf[..], invalidated), (&b"last"[..], Some(write)));
        assert_eq!(memory[..10], *b"\x77written!\x77");
        let response = peer.ulpdu(&mut server);
        assert_eq!(response[response.len() - 9..], [0x55; 9]);
        drop((buf, memory));
        drop(peer);
        server.end(pair);
        server.completions.clear();
    }
    assert!(lens[0] < 400, "all cuts were made");
}

/// 5040-f: the orderly end is TCP's, by either side, without a Terminate.
#[test]
fn an_orderly_end() {
    let mut server = Server::new(IwarpConfig::default());
    let (mut peer, pair) = Peer::connect(&mut server);
    stag_fabric::Provider::disconnect(&mut server.iwarp, pair);
    assert_eq!(server.end(pair), DisconnectReason::Local);
    peer.closed(&mut server);
    assert!(peer.received.is_empty());

    let (peer, pair) = Peer::connect(&mut server);
    drop(peer);
    assert_eq!(server.end(pair), DisconnectReason::Peer);
    assert_eq!((server.counters().terminates_sent, server.counters().truncated), (0, 0));
    server.check_memory();
}

/// 5042-d, 5044-4.1-b: what pads an FPDU is 0, whatever was in that memory before.
#[test]
fn padding_is_zero() {
    let mut server = Server::new(IwarpConfig::default());
    let (mut peer, pair) = Peer::connect(&mut server);
    let read = server.expose_read(pair, 64);
    for (msn, len) in [(1, 64), (2, 1), (3, 2), (4, 3), (5, 4)] {
        peer.say(&read_request(msn, read.0, 0, len));
        let ulpdu_len = 14 + len as usize;
        let response = server.until("a response", |_| {
            peer.listen();
            let len = mpa::fpdu_len(ulpdu_len);
            (peer.received.len() >= len).then(|| peer.received.drain(..len).collect::<Vec<u8>>())
        });
        let padding = &response[mpa::LENGTH_LEN + ulpdu_len..response.len() - mpa::CRC_LEN];
        assert_eq!((padding.len(), padding.iter().max().unwrap_or(&0)), (mpa::pad_len(ulpdu_len), &0));
    }
}
