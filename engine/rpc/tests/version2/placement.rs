//! Bulk data in the messages themselves, and messages of several Sends: what they are, and how many round trips they take.

use std::time::Duration;

use stag_fabric::sim::{FaultPlan, Odds, World};
use stag_rpc::{CallError, Chunks, EngineConfig, PlacementChoice, ProtocolChoice, Statistics};
use stag_wire::xdr::{Overflow, Writer};

use crate::support::log::warnings;
use crate::support::program::{BIG, ECHO, GET_ONE, PUT_ONE, pattern, sum};
use crate::support::{Bench, bytes, chunked, error, opaque, request, request_for, small, words};

/// Counts of both ends: of the client, and of the server.
fn counts(bench: &Bench) -> [Statistics; 2] {
    [*bench.clients[0].engine.statistics(), *bench.server.engine.statistics()]
}

fn put(writer: &mut Writer<'_>, len: usize) -> Result<(), Overflow> {
    writer.u32(1)?;
    writer.eligible_opaque_reduced(len as u32).map(drop)
}

#[track_caller]
fn put_comes(bench: &mut Bench, len: usize) {
    let data = pattern(len as u32, len);
    let chunks = Chunks::read(bench.clients[0].data(&data));
    let done = bench.call(request(PUT_ONE), chunks, |writer| put(writer, len));
    assert_eq!(bytes(&done), [[0; 4], sum(&data).to_be_bytes()].concat(), "{len} octets");
}

#[track_caller]
fn get_comes(bench: &mut Bench, len: usize) {
    let space = bench.clients[0].space(len);
    let done = bench
        .call(request_for(GET_ONE, 64), Chunks::write(space), |writer| words(writer, &[7, 1, len as u32]));
    assert_eq!(bytes(&done), (len as u32).to_be_bytes(), "{len} octets");
    assert_eq!(done.written, [(0, pattern(7, len))]);
    assert_eq!(done.reduced_len as usize, len);
}

#[test]
fn both_ends_that_announce_version_2_speak_it() {
    // V2-5.1-a XC-c RTR-5.1-a
    let mut bench = Bench::new();
    bench.check_alive(0);
    bench.close();
}

#[test]
fn data_of_a_call_lands_in_pages_of_the_receive() {
    // RTR-5.3-a RTR-7.3-a RTR-9.2-a
    let mut bench = Bench::new();
    for len in [1, 3, 4, 1000, 4096, 4097, 8191, 8192] {
        put_comes(&mut bench, len);
    }
    let [client, server] = counts(&bench);
    assert_eq!((client.read_chunks, server.read_chunks, server.read_bytes), (0, 0, 0), "no RDMA Read");
    assert_eq!((client.groups_sent, server.groups_received, server.items_placed), (8, 8, 8));
    assert_eq!(client.continuations, 0, "each in one Send");
    assert_eq!(server.copied_bytes, 0, "the service has the pages as they came");
    bench.close();
}

#[test]
fn results_land_in_pages_of_the_receive() {
    // RTR-5.3-c RTR-7.4-f
    let mut bench = Bench::new();
    for len in [1, 3, 4, 1000, 4096, 4097, 8191, 8192] {
        get_comes(&mut bench, len);
    }
    let [client, server] = counts(&bench);
    assert_eq!((server.write_chunks, server.write_bytes, client.local_fences), (0, 0, 0), "no RDMA Write");
    assert_eq!((server.groups_sent, client.items_placed), (8, 8));
    bench.close();
}

#[test]
fn longer_data_goes_by_several_sends() {
    // RTR-4.2-a RTR-4.3-a RTR-4.3-c RTR-5.2-a RTR-5.2-b RTR-X-8
    let mut bench = Bench::new();
    for len in [8193, 16384, 30_000] {
        put_comes(&mut bench, len);
        get_comes(&mut bench, len);
    }
    let [client, server] = counts(&bench);
    assert_eq!((server.read_bytes, server.write_bytes), (0, 0), "no RDMA");
    assert_eq!((client.groups_sent, server.groups_sent), (6, 3), "each GET has directions for its result");
    assert_eq!(server.continuations, 2 * (1 + 1 + 3));
    // More than a message may have: by chunks.
    put_comes(&mut bench, 300_000);
    get_comes(&mut bench, 300_000);
    let [_, server] = counts(&bench);
    assert_eq!((server.read_bytes, server.write_bytes), (300_000, 300_000));
    bench.close();
}

#[test]
fn long_calls_and_replies_are_continued() {
    // RTR-4.2-a RTR-4.3-b RTR-5.2-c
    let mut bench = Bench::new();
    for len in [900, 1000, 4000, 9000, 20_000] {
        let text = pattern(2, len);
        let done = bench.call(request_for(ECHO, len + 8), Chunks::default(), |writer| writer.opaque(&text));
        assert_eq!(bytes(&done), opaque(&text), "{len}");
        let done = bench
            .call(request_for(BIG, len + 8), Chunks::default(), |writer| words(writer, &[3, len as u32]));
        assert_eq!(bytes(&done), opaque(&pattern(3, len)), "{len}");
    }
    let [client, server] = counts(&bench);
    assert_eq!((server.position_zero_chunks, server.reply_chunks), (0, 0));
    assert!(client.groups_sent > 4 && server.continuations > 4, "{server:?}");
    bench.close();
}

/// A server without memory to send a Reply from says so after a while: the Call's credit comes back.
#[test]
fn a_reply_does_not_wait_for_memory_for_ever() {
    let mut bench = Bench::new();
    let memory = bench.server.memory.pools.payload.clone();
    let results = memory.take_len(5000).expect("memory");
    let mut hoard = Vec::new();
    while let Some(buf) = memory.take() {
        hoard.push(buf);
    }
    drop(results);
    let chunks = Chunks::write(bench.clients[0].space(5000));
    let begun = bench.world.now();
    let call = bench.begin(0, request_for(GET_ONE, 64), chunks, |writer| words(writer, &[7, 1, 5000]));
    let done = bench.finish(0, call.expect("a credit"));
    assert_eq!(error(&done), CallError::Chunk);
    let took = bench.world.now() - begun;
    assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(3), "{took:?}");
    drop(hoard);
    get_comes(&mut bench, 5000);
    bench.close();
}

#[test]
fn what_is_placed_by_rdma_on_request_is() {
    // RTR-5.3-b
    let config = EngineConfig { placement: PlacementChoice::Rdma, ..small() };
    let mut bench = Bench::with(small(), config, 1);
    for len in [1, 4096, 8192] {
        put_comes(&mut bench, len);
        get_comes(&mut bench, len);
    }
    let [client, server] = counts(&bench);
    assert_eq!((client.groups_sent, server.groups_sent), (0, 0));
    assert_eq!((server.read_bytes, server.write_bytes), (12_289, 12_289));
    bench.close();
}

#[test]
fn ends_that_want_different_versions_agree() {
    // V2-5-a V2-5.1-a V2-5.2-a V2-5.2-b V2-5.3-a
    use ProtocolChoice::{Auto, One, Two};
    for server in [One, Two, Auto] {
        for client in [One, Two, Auto] {
            for targets in [0, 2] {
                let with = |protocol| EngineConfig { protocol, receive_targets: targets, ..small() };
                let mut bench = Bench::with(with(server), with(client), 1);
                bench.check_alive(0);
                put_comes(&mut bench, 5000);
                get_comes(&mut bench, 5000);
                let text = pattern(2, 3000);
                let echo = request_for(ECHO, 3008);
                let done = bench.call(echo, Chunks::default(), |writer| writer.opaque(&text));
                assert_eq!(bytes(&done), opaque(&text), "{server:?} {client:?}");
                let [_, counted] = counts(&bench);
                let is_version2 = server != One && client != One;
                assert_eq!(counted.groups_received > 0, is_version2, "{server:?} {client:?} {targets}");
                assert_eq!(counted.items_placed > 0, is_version2 && targets > 0, "{server:?} {client:?}");
                bench.close();
            }
        }
    }
}

/// Puts some data as one of the clients. Returns whether its messages are of version 2.
#[track_caller]
fn put_speaks_version_2(bench: &mut Bench, client: usize) -> bool {
    let data = pattern(1, 3000);
    let chunks = Chunks::read(bench.clients[client].data(&data));
    let call = bench.begin(client, request(PUT_ONE), chunks, |writer| put(writer, 3000));
    let done = bench.finish(client, call.expect("a Call can be begun"));
    assert_eq!(bytes(&done), [[0; 4], sum(&data).to_be_bytes()].concat());
    bench.clients[client].engine.statistics().groups_sent > 0
}

#[test]
fn connections_beyond_the_quota_speak_version_1() {
    let server = EngineConfig { version2_max: 2, ..small() };
    let mut bench = Bench::with(server, small(), 4);
    let speak = [0, 1, 2, 3].map(|client| put_speaks_version_2(&mut bench, client));
    assert_eq!(speak.into_iter().filter(|&speaks| speaks).count(), 2, "{speak:?}");
    // A place that is free again is taken.
    let leaving = speak.into_iter().position(|speaks| speaks).expect("two speak version 2");
    let connection = bench.connections[leaving];
    bench.clients[leaving].engine.disconnect(connection);
    bench.run(|bench| bench.server.engine.connection_count() == 3);
    let next = bench.add_client(small());
    bench.establish();
    assert!(put_speaks_version_2(&mut bench, next));
    bench.close();

    let client = EngineConfig { version2_max: 0, ..small() };
    let mut bench = Bench::with(small(), client, 1);
    assert!(!put_speaks_version_2(&mut bench, 0));
    bench.close();
}

/// The time from a Call to its end, in one-way delays.
fn delays(placement: PlacementChoice, one_way: Duration, len: usize) -> [u64; 2] {
    let plan = FaultPlan { latency: one_way..=one_way, ..FaultPlan::default() };
    let config = EngineConfig { placement, receive_targets: 16, ..small() };
    let mut bench = Bench::in_world(World::new(1, plan), config, config, 1);
    bench.establish();
    // Several credits, and what each end told of itself.
    bench.check_alive(0);
    [put_comes, get_comes].map(|comes| {
        let before = bench.world.now();
        comes(&mut bench, len);
        let took = bench.world.now() - before;
        (took.as_nanos() / one_way.as_nanos()) as u64
    })
}

#[test]
fn data_in_the_message_takes_one_round_trip() {
    for one_way in [1, 10, 100, 1000].map(Duration::from_micros) {
        for len in [4096, 8192, 16384, 32768, 65536] {
            assert_eq!(delays(PlacementChoice::Send, one_way, len), [2, 2], "{one_way:?}, {len} octets");
            assert_eq!(delays(PlacementChoice::Rdma, one_way, len), [4, 2], "{one_way:?}, {len} octets");
        }
    }
}

/// As with version 1: only who configures one of both ends can help. By a base message, and by one with items of its own.
#[test]
fn more_data_than_the_server_reads_is_named_in_the_log_of_version_2() {
    for client in [chunked(), small()] {
        let lines = warnings(|| {
            let mut bench = Bench::with(EngineConfig { chunk_len_max: 65_536, ..client }, client, 1);
            for _ in 0..3 {
                let chunks = Chunks::read(bench.clients[0].data(&[7; 100_000]));
                let done = bench.call(request(PUT_ONE), chunks, |writer| put(writer, 100_000));
                assert!(done.result.is_err());
            }
            bench.check_alive(0);
            bench.close();
        });
        let [line] = &lines[..] else { panic!("{:?}: {lines:?}", client.placement) };
        for part in ["TAKES_ONE", "100000 octets", "limit 65536", "chunk_len_max"] {
            assert!(line.contains(part), "{line}");
        }
    }
}

/// A Call and a Reply of version 2 in one Send each are handled where they arrive, as those of version 1 are.
#[test]
fn messages_in_one_send_are_handled_where_they_arrive() {
    let plan = FaultPlan { in_place: Odds::ALWAYS, ..FaultPlan::default() };
    let mut bench = Bench::in_world(World::new(1, plan), small(), small(), 1);
    bench.establish();
    // Grants grow the general way, while Receives are posted.
    (0..200).for_each(|_| bench.check_alive(0));
    let before = bench.world.taken_in_place();
    (0..100).for_each(|_| bench.check_alive(0));
    assert_eq!(bench.world.taken_in_place() - before, 200);
    bench.close();
}
