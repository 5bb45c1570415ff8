//! Messages with their header, shown in the receive buffer: an answer in the send buffer, with an RDMA Write before it, and the
//! exposure that a message ends.

use std::collections::VecDeque;

use stag_fabric::iwarp::IwarpConfig;
use stag_fabric::{
    Completed, Exposed, Fence, Handle, Provider, ReadPart, RemoteSegment, ShownMessage, Taken, WHOLE_LEN_MAX,
    WholeMessage,
};
use stag_memory::Shared;
use stag_wire::ddp::{DdpHeader, Tagged, Untagged};
use stag_wire::mpa::Frame;
use stag_wire::rdmap::Opcode;
use stag_wire::rpcrdma::SINGLE_LEN;

use crate::server::{CAPACITY, Peer, REQUEST, Server, untagged};

/// Where an answer's data goes.
const TARGET: RemoteSegment = RemoteSegment { handle: Handle(0x1234_5678), offset: 0x1_0000_0042 };

/// A message of version 1 with an empty Read list and a Write chunk, of `len` octets.
fn with_write_chunk(number: u32, len: usize) -> Vec<u8> {
    let words = [number, 1, 32, 0, 0, 1, 1, 0xaaaa, 4096, 0, 0, 0, 0].map(u32::to_be_bytes);
    let mut message = words.as_flattened().to_vec();
    message.extend((message.len()..len).map(|at| at as u8 ^ number as u8));
    message
}

/// One poll, which shows whole messages.
fn poll_shown(server: &mut Server, take: &mut impl FnMut(WholeMessage<'_>) -> Taken) {
    let mut completions = VecDeque::with_capacity(64);
    server.iwarp.poll_in_place(
        server.now,
        &mut completions,
        64,
        &mut |shown: ShownMessage<'_>| match shown {
            ShownMessage::Whole(message) => take(message),
            other => panic!("{other:?} is shown"),
        },
    );
    server.completions.append(&mut completions);
}

/// With CRCs TCP's segments matter, of which the loopback's have 32 KiB and more.
fn connect(crc: bool) -> (Server, Peer) {
    let mut server = Server::new(IwarpConfig { crc, ..IwarpConfig::default() });
    let (peer, ..) = Peer::connect_with(&mut server, &Frame { crc, ..REQUEST });
    (server, peer)
}

fn data(server: &Server, len: usize) -> Shared {
    let mut buf = server.pages.take_len(len).expect("the pool is large enough");
    (0..len).for_each(|at| buf[at] = (at * 7 + len) as u8);
    buf.share()
}

/// Polls until a message is shown, and answers it with `len` octets, and with `write` before them.
fn answer(server: &mut Server, len: usize, write: Option<&Shared>, invalidate: Option<Handle>) {
    let mut is_answered = false;
    server.until("a message is shown", |server| {
        poll_shown(server, &mut |message| {
            let Some(space) = message.space else { panic!("there is room") };
            assert_eq!(space.len(), WHOLE_LEN_MAX);
            space.fill(0x5a);
            (0..len).for_each(|at| space[at] = at as u8);
            if let Some(write) = write {
                assert!(message.memory.write(write, TARGET), "{} octets", write.len());
                assert!(!message.memory.write(write, TARGET), "there is one");
            }
            is_answered = true;
            Taken::AnsweredWhole { len, invalidate }
        });
        is_answered.then_some(())
    });
}

/// The next message that comes to the peer is the `msn`th, of `len` octets, and ends `invalidate`.
fn hear_answer(peer: &mut Peer, server: &mut Server, msn: u32, len: usize, invalidate: Option<Handle>) {
    let ulpdu = peer.ulpdu(server);
    let (header, payload) = DdpHeader::parse(&ulpdu).expect("it is a segment");
    let opcode = if invalidate.is_some() { Opcode::SendInvalidate } else { Opcode::Send };
    let (control, ulp) = (opcode.to_control(), invalidate.map_or(0, |handle| handle.0));
    assert_eq!(header, DdpHeader::Untagged(Untagged { last: true, control, ulp, queue: 0, msn, offset: 0 }));
    assert!(payload.iter().copied().eq((0..len).map(|at| at as u8)), "{len} octets");
}

/// The next segment that comes to the peer writes `expected` to the target.
fn hear_write(peer: &mut Peer, server: &mut Server, expected: &[u8]) {
    let ulpdu = peer.ulpdu(server);
    let (header, payload) = DdpHeader::parse(&ulpdu).expect("it is a segment");
    let (control, stag, offset) = (Opcode::Write.to_control(), TARGET.handle.0, TARGET.offset);
    assert_eq!(header, DdpHeader::Tagged(Tagged { last: true, control, stag, offset }));
    assert!(payload == expected, "{} octets", expected.len());
}

/// 5040-b, 5041-c, 5044-4.4-a: the Write comes whole and before the answer, whatever the padding of either is; nothing is held
/// once both have left.
#[test]
fn an_answer_goes_out_behind_its_write() {
    for crc in [false, true] {
        let (mut server, mut peer) = connect(crc);
        let mut msn = 0;
        for (round, len) in (0..).zip([4096, 1, 2, 3, 4, 4095, 4097, 16 * 1024]) {
            for answer_len in [1, 52, 53, 54, 55, WHOLE_LEN_MAX - 1, WHOLE_LEN_MAX] {
                let invalidate = (answer_len % 2 == 1).then_some(Handle(0xbeef + round));
                let write = data(&server, len);
                let message = peer.send(&with_write_chunk(round, 100 + len % 300));
                peer.say(&message);
                answer(&mut server, answer_len, Some(&write), invalidate);
                server.iwarp.ring_doorbells();
                msn += 1;
                hear_write(&mut peer, &mut server, &write);
                hear_answer(&mut peer, &mut server, msn, answer_len, invalidate);
                drop(write);
                assert_eq!(server.pages.outstanding(), 0, "the page came back");
            }
        }
        assert!(server.completions.is_empty());
    }
}

/// What has no data is answered alone, between others that are posted in the usual way.
#[test]
fn an_answer_needs_no_write() {
    let mut server = Server::new(IwarpConfig::default());
    let (mut peer, pair) = Peer::connect(&mut server);
    let mut msn = 0;
    for len in 1..=WHOLE_LEN_MAX {
        let message = peer.send(&with_write_chunk(1, 80));
        peer.say(&message);
        answer(&mut server, len, None, None);
        server.send(pair, &(0..len).map(|at| at as u8).collect::<Vec<_>>());
        server.iwarp.ring_doorbells();
        for _ in 0..2 {
            msn += 1;
            hear_answer(&mut peer, &mut server, msn, len, None);
        }
    }
}

/// Many answers with data in one pass leave in order, in as many system calls as the memory that they hold takes.
#[test]
fn many_answers_hold_a_bounded_part_of_the_memory() {
    const COUNT: u32 = 40;
    let (mut server, mut peer) = connect(false);
    let write = data(&server, 30_000);
    let stream: Vec<u8> = (0..COUNT).flat_map(|number| peer.send(&with_write_chunk(number, 60))).collect();
    peer.say(&stream);
    let mut answered = 0;
    server.until("all are answered", |server| {
        poll_shown(server, &mut |message| {
            let Some(space) = message.space else { panic!("what is full leaves at once") };
            (0..60).for_each(|at| space[at] = at as u8);
            assert!(message.memory.write(&write, TARGET));
            answered += 1;
            Taken::AnsweredWhole { len: 60, invalidate: None }
        });
        peer.listen();
        (answered == COUNT).then_some(())
    });
    assert!(server.counters().send_calls >= u64::from(COUNT) / 5, "{:?}", server.counters());
    for msn in 1..=COUNT {
        hear_write(&mut peer, &mut server, &write);
        hear_answer(&mut peer, &mut server, msn, 60, None);
    }
}

/// Results too long for one segment, and data that must be read, are refused, and leave nothing.
#[test]
fn what_cannot_go_with_an_answer_is_refused() {
    let mut server = Server::new(IwarpConfig::default());
    let (mut peer, pair) = Peer::connect(&mut server);
    let long = data(&server, 64 * 1024);
    let message = with_write_chunk(7, 200);
    let fpdu = peer.send(&message);
    peer.say(&fpdu);
    let mut target = server.messages.take_len(1).expect("the pool is large enough");
    server.until("a message is received", |server| {
        poll_shown(server, &mut |message| {
            let parts = [ReadPart { at: 0, len: 1, source: TARGET }];
            assert!(!message.memory.read(&mut target, &parts), "it is not here");
            assert!(!message.memory.write(&long, TARGET), "it is too long");
            Taken::No
        });
        (!server.completions.is_empty()).then_some(())
    });
    assert_eq!(server.message(pair), message);
    // With a Read list, with another word for none, and too short to have one.
    for (at, octet) in [(19, 1), (16, 1)] {
        let mut other = with_write_chunk(8, 200);
        other[at] = octet;
        let fpdu = peer.send(&other);
        peer.say(&fpdu);
        server.until("it is received", |server| {
            poll_shown(server, &mut |message| panic!("{message:?} is shown"));
            (!server.completions.is_empty()).then_some(())
        });
        assert_eq!(server.message(pair), other);
    }
}

/// 5040-d: a message that ends an exposure returns its memory to the function that takes the message: where it was shown, or in
/// the completion, also of a handle that was fenced while the message was on its way.
#[test]
fn a_message_that_ends_an_exposure_brings_its_memory() {
    let mut server = Server::new(IwarpConfig::default());
    let (mut peer, pair) = Peer::connect(&mut server);
    for round in 0..40u32 {
        let handle = server.expose_write(pair, 300);
        let (is_taken, is_fenced) = (round % 2 == 0, round % 3 == 0);
        if is_fenced {
            let fence = server.iwarp.fence(pair, handle, 1).expect("it is exposed");
            assert!(matches!(fence, Fence::Done(Exposed::Write(_))));
        }
        let message = with_write_chunk(round, 100);
        let fpdu = untagged(Opcode::SendInvalidate, handle.0, round + 1, 0, true, &message);
        peer.say(&fpdu);
        let mut is_done = false;
        server.until("it arrives", |server| {
            poll_shown(server, &mut |shown| {
                assert_eq!(shown.octets, message);
                assert_eq!(shown.invalidated, (!is_fenced).then_some(handle));
                assert_eq!(shown.exposed.is_some(), !is_fenced);
                if !is_taken {
                    return Taken::No;
                }
                is_done = true;
                drop(shown.exposed.take());
                Taken::Done
            });
            (is_done || !server.completions.is_empty()).then_some(())
        });
        assert_eq!(is_done, is_taken, "round {round}");
        if let Some(completion) = server.completions.pop_front() {
            assert_eq!(completion.result, Ok(()));
            let Completed::Receive { invalidated, exposed, .. } = completion.completed else {
                panic!("it is a Receive")
            };
            assert_eq!((invalidated, exposed.is_some()), ((!is_fenced).then_some(handle), !is_fenced));
            let buf = server.messages.take().expect("the pool is large enough");
            server.iwarp.post_receive(pair, 1, buf).expect("one was used");
        }
        assert_eq!(server.pages.outstanding(), 0, "round {round}");
    }
}

/// A message that is built behind an exposure is a whole FPDU, numbered on. Where the exposures are used up there is no place for one.
#[test]
fn messages_that_expose_are_built_where_they_leave() {
    let mut server = Server::new(IwarpConfig::default());
    let (mut peer, pair) = Peer::connect(&mut server);
    let hello = peer.send(b"hello");
    peer.say(&hello);
    server.message(pair);
    for (msn, len) in (1..).zip(SINGLE_LEN..=WHOLE_LEN_MAX) {
        let mut exposed = Some(Exposed::Read(data(&server, 100)));
        assert!(!server.iwarp.build_exposing(pair, &mut exposed, |_, _| None));
        assert!(exposed.is_some(), "it is as it was");
        let mut named = None;
        assert!(server.iwarp.build_exposing(pair, &mut exposed, |space, segment| {
            (0..len).for_each(|at| space[at] = at as u8);
            named = Some(segment.handle);
            Some(len)
        }));
        assert!(exposed.is_none());
        server.iwarp.ring_doorbells();
        hear_answer(&mut peer, &mut server, msn, len, None);
        let fence = named.and_then(|handle| server.iwarp.fence(pair, handle, 1));
        assert!(matches!(fence, Some(Fence::Done(Exposed::Read(_)))));
    }
    for _ in 0..CAPACITY.exposures {
        server.expose_read(pair, 10);
    }
    let mut exposed = Some(Exposed::Read(data(&server, 100)));
    assert!(!server.iwarp.build_exposing(pair, &mut exposed, |_, _| panic!("there is no handle")));
}
