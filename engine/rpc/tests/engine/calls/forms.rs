//! Short, Chunked and Long messages, in both directions.

use stag_rpc::{CallError, Chunks, EngineConfig};
use stag_wire::xdr::{Overflow, Writer};

use crate::support::log::warnings;
use crate::support::program::{BIG, ECHO, GET, LATER_PUT, PUT, REGRET, pattern, sum};
use crate::support::{Bench, bytes, chunked, error, opaque, request, request_for, small, words};

/// The arguments of `PUT` for items all of which are in Read chunks.
fn put_reduced(writer: &mut Writer<'_>, lens: &[u32]) -> Result<(), Overflow> {
    writer.u32(lens.len() as u32)?;
    lens.iter().try_for_each(|len| writer.eligible_opaque_reduced(*len).map(|_| ()))
}

/// The answer of `PUT`: nothing missing, and these sums.
fn sums(items: &[&[u8]]) -> Vec<u8> {
    let mut answer = vec![0; 4];
    items.iter().for_each(|item| answer.extend(sum(item).to_be_bytes()));
    answer
}

#[test]
fn a_short_call_has_a_short_reply() {
    // 8166-3.5.1-a
    let mut bench = Bench::new();
    for len in [0, 1, 3, 4, 500] {
        let text = pattern(1, len);
        let done = bench.call(request_for(ECHO, 600), Chunks::default(), |writer| writer.opaque(&text));
        assert_eq!(bytes(&done), opaque(&text));
    }
    let statistics = *bench.server.engine.statistics();
    assert_eq!(
        (statistics.messages_short, statistics.position_zero_chunks, statistics.reply_chunks),
        (5, 0, 0)
    );
    bench.close();
}

#[test]
fn a_call_that_does_not_fit_inline_is_long() {
    // 8166-3.5.3-a, 8166-3.5.3-b
    let mut bench = Bench::new();
    // 28 octets of header, 40 of the Call, 4 of the length: 952 are the most that fit in 1024.
    for (len, long) in [(948, 0), (952, 0), (953, 1), (956, 1), (5000, 1), (300_000, 1)] {
        let text = pattern(2, len);
        let before = bench.server.engine.statistics().position_zero_chunks;
        let done = bench.call(request_for(ECHO, len + 8), Chunks::default(), |writer| writer.opaque(&text));
        assert_eq!(bytes(&done), opaque(&text), "{len}");
        let after = bench.server.engine.statistics().position_zero_chunks;
        assert_eq!(after - before, long, "{len}");
    }
    bench.close();
}

#[test]
fn a_reply_that_does_not_fit_inline_goes_to_the_reply_chunk() {
    // 8166-3.5.3-c, 8166-3.5.3-e, 8166-4.3.3-b: a provided chunk is used only when it has to be.
    let mut bench = Bench::new();
    for (len, long) in [(100, 0), (900, 0), (2000, 1), (100_000, 1)] {
        let before = bench.server.engine.statistics().reply_chunks;
        let done = bench
            .call(request_for(BIG, 200_000), Chunks::default(), |writer| words(writer, &[3, len as u32]));
        assert_eq!(bytes(&done), opaque(&pattern(3, len)));
        assert_eq!(bench.server.engine.statistics().reply_chunks - before, long, "{len}");
    }
    bench.close();
}

#[test]
fn a_reply_longer_than_its_chunk_is_err_chunk_and_the_connection_lives() {
    // 8166-4.3.3-d; the same without any chunk.
    let mut bench = Bench::new();
    for room in [4000, 100] {
        let done = bench.call(request_for(BIG, room), Chunks::default(), |writer| words(writer, &[1, 9000]));
        assert_eq!(error(&done), CallError::Chunk);
        bench.check_alive(0);
    }
    assert_eq!(bench.server.engine.statistics().errors_sent, 2);
    bench.close();
}

#[test]
fn a_handler_may_change_its_mind_after_a_long_reply() {
    let mut bench = Bench::new();
    let done = bench.call(request_for(REGRET, 9000), Chunks::default(), |writer| words(writer, &[1, 8000]));
    assert_eq!(error(&done), CallError::GarbageArguments);
    bench.check_alive(0);
    bench.close();
}

#[test]
fn an_argument_in_a_read_chunk_is_placed() {
    // 8166-3.5.2-a, 8166-3.4.5-a; lengths with and without roundup, 8166-3.4.5.2-a
    let mut bench = Bench::new();
    for len in [1, 2, 3, 4, 1000, 4096, 4097, 100_001] {
        let data = pattern(4, len);
        let chunks = Chunks::read(bench.clients[0].data(&data));
        let done = bench.call(request(PUT), chunks, |writer| put_reduced(writer, &[len as u32]));
        assert_eq!(bytes(&done), sums(&[&data]), "{len}");
    }
    assert_eq!(bench.server.engine.statistics().read_chunks, 8);
    bench.close();
}

#[test]
fn a_read_chunk_may_hold_its_roundup() {
    // 8166-3.4.5.2-a: chunk length = item length + padding
    let mut bench = Bench::new();
    let mut data = pattern(4, 1001);
    data.extend([0; 3]);
    let chunks = Chunks::read(bench.clients[0].data(&data));
    let done = bench.call(request(PUT), chunks, |writer| put_reduced(writer, &[1001]));
    assert_eq!(bytes(&done), sums(&[&data[..1001]]));
    bench.close();
}

#[test]
fn a_read_chunk_of_another_length_than_its_item_is_garbage() {
    // 8166-4.5.2-b
    let mut bench = Bench::new();
    for (chunk, item) in [(1000, 1100), (1100, 1000)] {
        let chunks = Chunks::read(bench.clients[0].space(chunk).share());
        let done = bench.call(request(PUT), chunks, |writer| put_reduced(writer, &[item]));
        assert_eq!(error(&done), CallError::GarbageArguments);
    }
    bench.check_alive(0);
    bench.close();
}

#[test]
fn several_read_chunks_of_several_segments() {
    // 8166-3.4.5-b, 8166-3.4.4-a: segments cut anywhere are put together in list order.
    let mut bench = Bench::new();
    let items: Vec<Vec<u8>> =
        [7usize, 4096, 1, 9001].into_iter().map(|len| pattern(len as u32, len)).collect();
    let lens: Vec<u32> = items.iter().map(|item| item.len() as u32).collect();
    let mut chunks = Chunks::default();
    for (number, item) in (0u8..).zip(&items) {
        let (head, tail) = item.split_at(item.len() / 2);
        for part in [head, tail].into_iter().filter(|part| !part.is_empty()) {
            chunks.read.push((number, bench.clients[0].data(part)));
        }
    }
    assert_eq!(chunks.read.len(), 7);
    let done = bench.call(request(PUT), chunks, |writer| put_reduced(writer, &lens));
    assert_eq!(bytes(&done), sums(&items.iter().map(Vec::as_slice).collect::<Vec<_>>()));
    bench.close();
}

#[test]
fn data_chunks_beside_a_position_zero_read_chunk() {
    // 8166-3.5.3-g: the rest of the arguments is too long to be inline, and one item is reduced.
    for procedure in [PUT, LATER_PUT] {
        let mut bench = Bench::new();
        let (inline, reduced) = (pattern(5, 3000), pattern(6, 10_000));
        let chunks = Chunks::read(bench.clients[0].data(&reduced));
        let done = bench.call(request(procedure), chunks, |writer| {
            if procedure == LATER_PUT {
                writer.u64(100)?;
            }
            writer.u32(2)?;
            writer.opaque(&inline)?;
            writer.eligible_opaque_reduced(reduced.len() as u32).map(|_| ())
        });
        assert_eq!(bytes(&done), sums(&[&inline, &reduced]));
        let statistics = bench.server.engine.statistics();
        assert_eq!((statistics.position_zero_chunks, statistics.read_chunks), (1, 1));
        assert_eq!(bench.server.engine.services_mut().0.executed, 1);
        bench.close();
    }
}

#[test]
fn results_go_to_write_chunks() {
    // 8166-4.3.2-a, 8166-4.3.2.1-a, 8166-3.4.6-b: several chunks of several segments, front to back.
    let mut bench = Bench::new();
    let lens = [5000u32, 17, 4096];
    let mut chunks = Chunks::default();
    for (chunk, room) in [(0, 4096), (0, 4096), (1, 100), (2, 1), (2, 4095)] {
        chunks.write.push((chunk, bench.clients[0].space(room)));
    }
    let done = bench.call(request_for(GET, 100), chunks, |writer| {
        words(writer, &[9, 3])?;
        words(writer, &lens)
    });
    let expected: Vec<u8> = lens.iter().flat_map(|len| len.to_be_bytes()).collect();
    assert_eq!(bytes(&done), expected);
    let written = |chunk: u8| -> Vec<u8> {
        done.written.iter().filter(|(own, _)| *own == chunk).flat_map(|(_, buf)| buf.clone()).collect()
    };
    for (chunk, len) in (0u8..).zip(lens) {
        assert_eq!(written(chunk), pattern(9 + u32::from(chunk), len as usize));
    }
    assert_eq!(done.reduced_len, lens.iter().sum::<u32>());
    bench.close();
}

#[test]
fn results_beyond_the_write_chunks_stay_inline() {
    // 8166-4.3.2.3-c: a surplus of items; 8166-4.3.2.3-a, 8166-4.3.2.3-b: an empty chunk in the middle keeps its item inline.
    let mut bench = Bench::new();
    let mut chunks = Chunks::default();
    chunks.write.push((0, bench.clients[0].space(200)));
    chunks.write.push((2, bench.clients[0].space(200)));
    let done = bench.call(request_for(GET, 500), chunks, |writer| words(writer, &[20, 4, 111, 50, 113, 60]));
    let mut expected = 111u32.to_be_bytes().to_vec();
    expected.extend(opaque(&pattern(21, 50)));
    expected.extend(113u32.to_be_bytes());
    expected.extend(opaque(&pattern(23, 60)));
    assert_eq!(bytes(&done), expected);
    assert_eq!(done.written[0].1, pattern(20, 111));
    assert_eq!(done.written[1].1, pattern(22, 113));
    bench.close();
}

#[test]
fn unused_write_chunks_come_back_unused() {
    // 8166-4.3.2.2-b: fewer results than chunks, an item of no octets (8166-X-12), and an error instead of results.
    let mut bench = Bench::new();
    let mut chunks = Chunks::default();
    chunks.write.push((0, bench.clients[0].space(4096)));
    chunks.write.push((1, bench.clients[0].space(4096)));
    let done = bench.call(request_for(GET, 100), chunks, |writer| words(writer, &[1, 1, 0]));
    assert_eq!(bytes(&done), [0; 4]);
    assert_eq!(done.written.iter().map(|(_, buf)| buf.len()).collect::<Vec<_>>(), [0, 0]);
    let chunks = Chunks::write(bench.clients[0].space(4096));
    let done = bench.call(request_for(GET, 100), chunks, |writer| writer.u32(1));
    assert_eq!(error(&done), CallError::GarbageArguments);
    assert_eq!(done.written.len(), 1);
    bench.close();
}

#[test]
fn a_write_chunk_on_a_procedure_without_eligible_results_is_unused() {
    // 8166-6.1-b: its result may be in a Reply chunk, never in a Write chunk.
    let mut bench = Bench::new();
    let chunks = Chunks::write(bench.clients[0].space(4096));
    let done = bench.call(request_for(ECHO, 100), chunks, |writer| writer.opaque(b"plain"));
    assert_eq!(bytes(&done), opaque(b"plain"));
    assert_eq!(done.written[0].1.len(), 0);
    bench.close();
}

#[test]
fn a_result_longer_than_its_write_chunk_is_err_chunk() {
    // 8166-3.4.6-a
    let mut bench = Bench::new();
    let chunks = Chunks::write(bench.clients[0].space(1000));
    let done = bench.call(request_for(GET, 100), chunks, |writer| words(writer, &[1, 1, 1001]));
    assert_eq!(error(&done), CallError::Chunk);
    bench.check_alive(0);
    bench.close();
}

#[test]
fn write_chunks_and_a_reply_chunk_in_one_reply() {
    // 8166-3.5.3-e: first the Write chunks, then what is still too long goes to the Reply chunk.
    let mut bench = Bench::new();
    let chunks = Chunks::write(bench.clients[0].space(5000));
    let done = bench.call(request_for(GET, 9000), chunks, |writer| words(writer, &[30, 2, 5000, 7000]));
    let mut expected = 5000u32.to_be_bytes().to_vec();
    expected.extend(opaque(&pattern(31, 7000)));
    assert_eq!(bytes(&done), expected);
    assert_eq!(done.written[0].1, pattern(30, 5000));
    let statistics = bench.server.engine.statistics();
    assert_eq!((statistics.write_chunks, statistics.reply_chunks), (1, 1));
    bench.close();
}

#[test]
fn every_inline_threshold_and_unequal_ones() {
    // 8166-3.3.2-a, 8797-4.2-b: each direction has the smaller of what the two ends said.
    let sizes = [1024, 4096, 65_536, 262_144];
    for server in sizes {
        for client in sizes {
            let config = |inline_threshold| stag_rpc::EngineConfig {
                inline_threshold,
                credits_max: 4,
                connections_max: 2,
                receives_max: 16,
                burst: 8,
                ..small()
            };
            let mut bench = Bench::with(config(server), config(client), 1);
            let smaller = server.min(client) as usize;
            let parameters = bench.clients[0].engine.parameters(bench.connections[0]).expect("connected");
            assert_eq!(
                (parameters.call_threshold, parameters.reply_threshold),
                (smaller as u32, smaller as u32)
            );
            for (len, long) in [(smaller - 72, 0), (smaller - 71, 1)] {
                let text = pattern(8, len);
                let before = bench.server.engine.statistics().position_zero_chunks;
                let request = request_for(ECHO, len + 8);
                let done = bench.call(request, Chunks::default(), |writer| writer.opaque(&text));
                assert_eq!(bytes(&done), opaque(&text));
                let after = bench.server.engine.statistics().position_zero_chunks;
                assert_eq!(after - before, long, "{server} {client} {len}");
            }
            bench.close();
        }
    }
}

#[test]
fn remote_invalidation_needs_both_ends() {
    // 8797-4.1-a, c
    for (server, client) in [(true, true), (true, false), (false, true), (false, false)] {
        let config = |remote_invalidation| stag_rpc::EngineConfig { remote_invalidation, ..small() };
        let mut bench = Bench::with(config(server), config(client), 1);
        let chunks = Chunks::write(bench.clients[0].space(1000));
        let done = bench.call(request_for(GET, 100), chunks, |writer| words(writer, &[1, 1, 999]));
        assert_eq!(done.written[0].1, pattern(1, 999));
        let statistics = *bench.clients[0].engine.statistics();
        let both = u64::from(server && client);
        assert_eq!((statistics.remote_invalidations, statistics.local_fences), (both, 1 - both));
        bench.close();
    }
}

/// Only who configures one of both ends can help, so a line says what was sent and which setting is in its way; one each second.
#[test]
fn more_data_than_the_server_reads_is_named_in_the_log() {
    let lines = warnings(|| {
        let mut bench = Bench::with(EngineConfig { chunk_len_max: 65_536, ..chunked() }, chunked(), 1);
        for _ in 0..3 {
            let chunks = Chunks::read(bench.clients[0].data(&[7; 100_000]));
            let done = bench.call(request(PUT), chunks, |writer| {
                writer.u32(1)?;
                writer.eligible_opaque_reduced(100_000).map(drop)
            });
            assert_eq!(error(&done), CallError::Chunk);
        }
        bench.check_alive(0);
        bench.close();
    });
    let [line] = &lines[..] else { panic!("{lines:?}") };
    for part in ["TAKES", "100000 octets", "limit 65536", "chunk_len_max"] {
        assert!(line.contains(part), "{line}");
    }
    let told = CallError::Chunk.to_string();
    assert!(told.contains("chunk_len_max") && told.contains("results_len_max"), "{told}");
}
