//! The flight recorder of a server: what a Call and its Reply leave in it, whichever way they take.

use stag_fabric::sim::{FaultPlan, Odds, World};
use stag_rpc::{Chunks, Engine, RECORDED_LEN_MAX, Recording};

use crate::support::program::{ECHO, GET, GET_ONE, PUT, PUT_ONE, pattern};
use crate::support::{Bench, IS_VERSION_2, bytes, chunked, opaque, request, request_for, small, words};

const WAYS: [Odds; 3] = [Odds::NEVER, Odds::one_in(2), Odds::ALWAYS];

/// Octets of a header of version 1 without chunks, which is not counted where its Payload stream is kept alone.
const PLAIN_LEN: usize = 28;

/// A server that records, and one client.
fn bench(in_place: Odds, messages: u32) -> Bench {
    let plan = FaultPlan { in_place, ..FaultPlan::default() };
    let mut bench = Bench::in_world(World::new(1, plan), small(), small(), 1);
    bench.server.engine.record(messages, |end| panic!("{end:?}"));
    bench.establish();
    // In version 2 the first Call is a probe, which is answered with more than a Reply.
    bench.check_alive(0);
    bench.check_alive(0);
    bench
}

fn recording(bench: &Bench) -> Recording {
    Engine::recording(&bench.server.engine).expect("it records")
}

/// Word of a message.
fn word(octets: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(octets[4 * at..][..4].try_into().expect("four octets"))
}

/// Whether a message has these octets in it.
fn has(octets: &[u8], part: &[u8]) -> bool {
    octets.windows(part.len()).any(|window| window == part)
}

#[test]
fn a_call_and_its_reply_are_recorded_whichever_way_they_take() {
    for in_place in WAYS {
        let mut bench = bench(in_place, 64);
        for round in 0..8 {
            let text = pattern(round, 40);
            let echoed = bench.call(request(ECHO), Chunks::default(), |writer| writer.opaque(&text));
            assert_eq!(bytes(&echoed), opaque(&text));
            let recording = recording(&bench);
            let messages: Vec<_> = recording.messages().collect();
            let [.., call, reply] = &messages[..] else { panic!("{messages:?}") };
            assert_eq!((call.is_sent, reply.is_sent), (false, true));
            assert_eq!(call.connection, reply.connection);
            for message in [call, reply] {
                assert_eq!(word(message.octets, 1), if IS_VERSION_2 { 2 } else { 1 });
                assert_eq!(message.octets.len(), message.len as usize);
                assert!(has(message.octets, &opaque(&text)), "{message:?}");
                assert!(message.time <= recording.time);
            }
            assert_eq!(word(call.octets, 0), word(reply.octets, 0), "the xid");
            if !IS_VERSION_2 {
                assert_eq!((call.len, reply.len), (28 + 40 + 44, 28 + 24 + 44));
            }
            let [known] = &recording.connections[..] else { panic!("one connection") };
            assert_eq!(known.connection, call.connection);
            // RFC 8797's block.
            assert!(known.peer_private_data.starts_with(&[0xf6, 0xab, 0x0e, 0x18]));
            assert!(known.own_private_data.starts_with(&[0xf6, 0xab, 0x0e, 0x18]));
        }
        bench.close();
    }
}

/// Of a long message the start is kept, and how long it is.
#[test]
fn long_messages_leave_their_start() {
    for in_place in WAYS {
        let mut bench = bench(in_place, 64);
        // In version 2 longer ones may be in several Sends.
        let lens: &[usize] = if IS_VERSION_2 { &[RECORDED_LEN_MAX] } else { &[RECORDED_LEN_MAX, 460, 800] };
        for &len in lens {
            let text = pattern(7, len);
            bench.call(request(ECHO), Chunks::default(), |writer| writer.opaque(&text));
            let recording = recording(&bench);
            let messages: Vec<_> = recording.messages().collect();
            let [.., call, reply] = &messages[..] else { panic!("{messages:?}") };
            for message in [call, reply] {
                let kept = message.octets.len();
                assert!((RECORDED_LEN_MAX..=RECORDED_LEN_MAX + PLAIN_LEN).contains(&kept), "{kept}");
                assert!(message.len as usize > len, "{} of {len}", message.len);
                assert!(has(message.octets, &text[..100]));
            }
            if !IS_VERSION_2 {
                assert_eq!((call.len as usize, reply.len as usize), (28 + 44 + len, 28 + 28 + len));
            }
        }
        bench.close();
    }
}

/// Messages with chunks are kept with their lists; the data is not.
#[test]
fn messages_with_chunks_are_recorded() {
    for in_place in WAYS {
        let plan = FaultPlan { in_place, ..FaultPlan::default() };
        let mut bench = Bench::in_world(World::new(1, plan), chunked(), chunked(), 1);
        bench.server.engine.record(64, |end| panic!("{end:?}"));
        bench.establish();
        let data = bench.clients[0].data(&pattern(3, 4096));
        let put = bench.call(request_for(PUT, 100), Chunks::read(data), |writer| {
            writer.u32(1)?;
            writer.eligible_opaque_reduced(4096).map(|_| ())
        });
        assert!(put.result.is_ok());
        let space = bench.clients[0].space(4096);
        let get =
            bench.call(request_for(GET, 100), Chunks::write(space), |writer| words(writer, &[9, 1, 4096]));
        assert_eq!(get.reduced_len, 4096);
        let recording = recording(&bench);
        let messages: Vec<_> = recording.messages().collect();
        let [.., put, put_reply, get, get_reply] = &messages[..] else { panic!("{messages:?}") };
        for (message, is_sent) in [(put, false), (put_reply, true), (get, false), (get_reply, true)] {
            assert_eq!(message.is_sent, is_sent);
            assert!(message.len < 300, "{message:?}");
        }
        assert!(has(put.octets, &4096_u32.to_be_bytes()) && has(get.octets, &4096_u32.to_be_bytes()));
        bench.close();
    }
}

/// A place of the ring is used again: of a message whose end lies elsewhere, nothing else stands in the place of that end.
#[test]
fn a_message_whose_end_is_elsewhere_has_no_octets_of_another() {
    for in_place in WAYS {
        let plan = FaultPlan { in_place, ..FaultPlan::default() };
        let mut bench = Bench::in_world(World::new(1, plan), small(), small(), 1);
        bench.server.engine.record(4, |end| panic!("{end:?}"));
        bench.establish();
        let marks = [0xee; RECORDED_LEN_MAX];
        for _ in 0..4 {
            bench.call(request(ECHO), Chunks::default(), |writer| writer.opaque(&marks));
        }
        let data = bench.clients[0].data(&pattern(3, 4096));
        bench.call(request(PUT_ONE), Chunks::read(data), |writer| {
            writer.u32(1)?;
            writer.eligible_opaque_reduced(4096).map(drop)
        });
        let space = bench.clients[0].space(4096);
        bench.call(request_for(GET_ONE, 100), Chunks::write(space), |writer| words(writer, &[9, 1, 4096]));
        let recording = recording(&bench);
        let messages: Vec<_> = recording.messages().collect();
        let [put, _, _, reply] = &messages[..] else { panic!("{messages:?}") };
        for message in [put, reply] {
            // In version 2 the data is in the message itself.
            assert_eq!(message.len > 4096, IS_VERSION_2, "{message:?}");
        }
        for message in messages {
            assert!(!has(message.octets, &[0xee; 4]), "{message:?}");
        }
        bench.close();
    }
}

#[test]
fn the_ring_is_bounded_and_has_the_last_messages() {
    for in_place in WAYS {
        let mut bench = bench(in_place, 4);
        let mut last = Vec::new();
        for round in 0..20 {
            let text = pattern(round, 16);
            bench.call(request(ECHO), Chunks::default(), |writer| writer.opaque(&text));
            last.push(text);
        }
        let recording = recording(&bench);
        let messages: Vec<_> = recording.messages().collect();
        assert_eq!(messages.len(), 4);
        for (message, text) in messages.iter().zip([&last[18], &last[18], &last[19], &last[19]]) {
            assert!(has(message.octets, text), "{message:?}");
        }
        bench.close();
    }
}

#[test]
fn nothing_is_recorded_unless_it_is_asked_for() {
    let mut bench = Bench::new();
    bench.check_alive(0);
    assert!(bench.server.engine.recording().is_none());
    bench.close();
}

/// A connection that ends in order is no bad end: the other tests' recorders would panic.
#[test]
fn a_connection_that_is_gone_stays_in_the_ring() {
    let mut bench = bench(Odds::ALWAYS, 64);
    bench.check_alive(0);
    let before = recording(&bench).messages().count();
    bench.clients[0].engine.disconnect(bench.connections[0]);
    bench.run(|bench| bench.server.engine.connection_count() == 0);
    // Another one in its place.
    let client = bench.add_client(small());
    let connection = bench.connections[client];
    let wanted = stag_rpc::ConnectionEvent::Established { connection };
    bench.run(|bench| bench.clients[client].events.contains(&wanted));
    bench.check_alive(client);
    let recording = recording(&bench);
    assert!(recording.messages().count() > before);
    assert_eq!(recording.connections.len(), 2, "{:?}", recording.connections);
    bench.close();
}
