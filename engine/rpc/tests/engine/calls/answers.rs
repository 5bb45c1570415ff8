//! What the engine itself answers, for every service.

use stag_fabric::sim::{FaultPlan, Odds, World};
use stag_rpc::{CallError, CallRefused, Chunks, Credentials, Engine, EngineError, Memory, Request};

use crate::support::program::{
    BAD_CHUNKS, ECHO, FORGET, GET, LATER, NEVER, PROGRAM, PUT, Program, SHORT, VERSION,
};
use crate::support::{Bench, Ended, bytes, error, opaque, request, request_for, small, words};

#[test]
fn unknown_programs_versions_and_procedures() {
    // 5531-a
    let mut bench = Bench::new();
    let cases = [
        (Request { program: PROGRAM + 1, ..request(ECHO) }, CallError::ProgramUnavailable),
        (
            Request { version: VERSION + 1, ..request(ECHO) },
            CallError::ProgramMismatch { low: VERSION - 1, high: VERSION },
        ),
        (
            Request { version: 0, ..request(0) },
            CallError::ProgramMismatch { low: VERSION - 1, high: VERSION },
        ),
        (request(999), CallError::ProcedureUnavailable),
    ];
    for (request, expected) in cases {
        let done = bench.call(request, Chunks::default(), |_| Ok(()));
        assert_eq!(error(&done), expected);
    }
    assert_eq!(bench.server.engine.services_mut().0.executed, 0);
    bench.check_alive(0);
    bench.close();
}

#[test]
fn arguments_that_cannot_be_decoded() {
    let mut bench = Bench::new();
    // A length of 4 GiB, an item longer than the message, nothing at all.
    for lens in [&[u32::MAX][..], &[100, 1], &[]] {
        let done = bench.call(request(ECHO), Chunks::default(), |writer| words(writer, lens));
        assert_eq!(error(&done), CallError::GarbageArguments);
    }
    bench.check_alive(0);
    bench.close();
}

#[test]
fn null_takes_any_credentials_of_a_flavor_that_is_served() {
    // 5531-b: garbage where AUTH_SYS should be is refused, but for NULL.
    let mut bench = Bench::new();
    let broken = Credentials::Sys(&[1, 2, 3, 4]);
    let done = bench.call(Request { credentials: broken, ..request(0) }, Chunks::default(), |_| Ok(()));
    assert_eq!(bytes(&done), []);
    let done = bench.call(Request { credentials: broken, ..request(ECHO) }, Chunks::default(), |_| Ok(()));
    assert_eq!(error(&done), CallError::Authentication(1));
    bench.check_alive(0);
    bench.close();
}

#[test]
fn a_handler_that_answers_nothing_is_a_system_error() {
    let mut bench = Bench::new();
    let done = bench.call(request(FORGET), Chunks::default(), |_| Ok(()));
    assert_eq!(error(&done), CallError::SystemError);
    bench.check_alive(0);
    bench.close();
}

#[test]
fn results_of_other_octets_than_announced_are_a_system_error() {
    // Otherwise the client would take what its memory held before for data.
    let mut bench = Bench::new();
    for (wrong, case) in (0..).zip([
        [100, 0, 100, 1],
        [100, 50, 100, 1],
        [50, 100, 50, 1],
        [5000, 4999, 5000, 1],
        [0, 4, 0, 1],
        [100, 100, 200, 1],
        [100, 100, 100, 0],
        [100, 100, 100, 2],
    ]) {
        // The Reply is short, or goes by Reply chunk, too.
        for results_len_max in [8, 4000] {
            let chunks = Chunks::write(bench.clients[0].space(8192));
            let done = bench.call(request_for(SHORT, results_len_max), chunks, |writer| words(writer, &case));
            assert_eq!(error(&done), CallError::SystemError, "{case:?}");
        }
        assert_eq!(bench.server.engine.statistics().replies_defective, 2 * (wrong + 1));
    }
    // Without a Write chunk the encoder itself must keep its word.
    for case in [[100, 100, 101, 1], [100, 101, 100, 1]] {
        let done = bench.call(request_for(SHORT, 200), Chunks::default(), |writer| words(writer, &case));
        assert_eq!(error(&done), CallError::SystemError, "{case:?}");
    }
    let chunks = Chunks::write(bench.clients[0].space(8192));
    let done = bench.call(request_for(SHORT, 8), chunks, |writer| words(writer, &[100, 100, 100, 1]));
    assert_eq!((done.reduced_len, &done.written[0].1), (100, &vec![1; 100]));
    bench.close();
}

#[test]
fn an_encoder_that_leaves_out_other_items_than_there_are_chunks() {
    let mut bench = Bench::new();
    for reduced in [0, 2] {
        let chunks = Chunks::read(bench.clients[0].data(b"data"));
        let refused = bench.begin(0, request(PUT), chunks, |writer| {
            writer.u32(1)?;
            (0..reduced).try_for_each(|_| writer.eligible_opaque_reduced(4).map(drop))
        });
        assert_eq!(refused, Err(CallRefused::NotReduced { items: 1, reduced }));
    }
    bench.check_alive(0);
    bench.close();
}

/// The connection ends, since a part of the results may have been written; the author of the handler reads why in the log.
#[test]
fn results_in_memory_that_the_fabric_does_not_know() {
    let mut bench = Bench::chunked();
    let foreign = Memory::on_demand(&small(), 1 << 20).expect("a few megabytes");
    bench.server.engine.services_mut().0 = Program::new(foreign.pools.payload.clone());
    let chunks = Chunks::write(bench.clients[0].space(100));
    let done = bench.call(request_for(GET, 100), chunks, |writer| words(writer, &[7, 1, 100]));
    assert!(done.result.is_err());
    assert_eq!(bench.server.engine.statistics().replies_defective, 1);
    drop(bench);
    assert_eq!(foreign.ledger.outstanding(), 0);
}

#[test]
fn memory_that_the_fabric_does_not_know() {
    // At start it says so, with the repair; of a single Call, why it was not sent.
    let world = World::new(1, FaultPlan::default());
    let config = small();
    let memory = Memory::on_demand(&config, 1 << 20).expect("a few megabytes");
    let error = Engine::new(world.provider("forgetful"), (), memory.pools.clone(), config, 1).err();
    let Some(EngineError::NotRegistered { pool: "messages", .. }) = error else { panic!("{error:?}") };
    let mut bench = Bench::chunked();
    let mut foreign = memory.pools.payload.take().expect("a page");
    foreign.set_len(4);
    let done = bench.call(request(PUT), Chunks::read(foreign.share()), |writer| {
        writer.u32(1)?;
        writer.eligible_opaque_reduced(4).map(drop)
    });
    assert_eq!(crate::support::error(&done), CallError::NotPosted(stag_fabric::PostError::NotRegistered));
    bench.check_alive(0);
    bench.close();
}

#[test]
fn chunks_that_the_binding_does_not_allow() {
    // 8166-6.1-c: a handler says so, and the engine does for a procedure without eligible arguments.
    let mut bench = Bench::new();
    let done = bench.call(request(BAD_CHUNKS), Chunks::default(), |_| Ok(()));
    assert_eq!(error(&done), CallError::Chunk);
    let chunks = Chunks::read(bench.clients[0].data(b"not eligible"));
    let done = bench.call(request(ECHO), chunks, |writer| writer.eligible_opaque_reduced(12).map(|_| ()));
    assert_eq!(error(&done), CallError::Chunk);
    assert_eq!(bench.server.engine.statistics().read_bytes, 0, "it is not even pulled");
    bench.check_alive(0);
    bench.close();
}

#[test]
fn late_answers_come_in_any_order() {
    let mut bench = Bench::new();
    bench.check_alive(0);
    let delays = [400u64, 100, 300, 200];
    let calls: Vec<_> = delays
        .iter()
        .map(|delay| {
            let text = delay.to_be_bytes();
            bench
                .begin(0, request(LATER), Chunks::default(), |writer| {
                    writer.u64(*delay * 1000)?;
                    writer.opaque(&text)
                })
                .expect("a credit")
        })
        .collect();
    let mut order = Vec::new();
    while order.len() < calls.len() {
        bench.run(|bench| !bench.clients[0].done.is_empty());
        for done in std::mem::take(&mut bench.clients[0].done) {
            let at = calls.iter().position(|call| *call == done.call).expect("one of them");
            let done = Ended::of(done);
            assert_eq!(bytes(&done), opaque(&delays[at].to_be_bytes()));
            order.push(delays[at]);
        }
    }
    assert_eq!(order, [100, 200, 300, 400]);
    bench.close();
}

#[test]
fn a_call_that_is_never_answered_ends_with_its_connection() {
    let mut bench = Bench::new();
    let call = bench
        .begin(0, request(LATER), Chunks::default(), |writer| {
            writer.u64(NEVER)?;
            writer.opaque(b"")
        })
        .expect("a credit");
    bench.run(|bench| bench.server.engine.services_mut().0.kept() == 1);
    let connection = bench.connections[0];
    bench.clients[0].engine.disconnect(connection);
    let done = bench.finish(0, call);
    assert_eq!(error(&done), CallError::ConnectionLost);
    bench.run(|bench| bench.server.engine.connection_count() == 0);
    bench.server.engine.services_mut().0.release();
    bench.pass();
    assert_eq!(bench.server.engine.services_mut().0.abandoned, 1);
    bench.check_left();
}

#[test]
fn data_that_there_is_no_memory_for_is_missing() {
    // The handler decides what to answer; a Long Call without memory is ERR_CHUNK.
    let mut bench = Bench::chunked();
    let pool = bench.server.memory.pools.payload.clone();
    let mut hoard = Vec::new();
    while let Some(buf) = pool.take() {
        hoard.push(buf);
    }
    let chunks = Chunks::read(bench.clients[0].space(4096).share());
    let done = bench.call(request(PUT), chunks, |writer| {
        writer.u32(1)?;
        writer.eligible_opaque_reduced(4096).map(|_| ())
    });
    assert_eq!(bytes(&done)[..4], [0, 0, 0, 1], "the handler saw that it is missing");
    let text = vec![1; 5000];
    let done = bench.call(request(ECHO), Chunks::default(), |writer| writer.opaque(&text));
    assert_eq!(error(&done), CallError::Chunk);

    // In pieces, when free memory is in pieces: every other page.
    let mut at = 0;
    hoard.sort_by_key(|buf| buf.as_ptr() as usize);
    hoard.retain(|_| {
        at += 1;
        at % 2 == 0
    });
    let data: Vec<u8> = (0..50_000u32).map(|octet| octet as u8).collect();
    let chunks = Chunks::read(bench.clients[0].data(&data));
    let done = bench.call(request(PUT), chunks, |writer| {
        writer.u32(1)?;
        writer.eligible_opaque_reduced(50_000).map(|_| ())
    });
    assert_eq!(bytes(&done)[..4], [0; 4]);
    assert_eq!(bytes(&done)[4..], crate::support::program::sum(&data).to_be_bytes());
    drop(hoard);
    bench.check_alive(0);
    bench.close();
}

/// A Call's handler ran where the Call was shown, and answers later. Before the Call's message is taken in, another Call ends, whose
/// slot is then the next: the Call keeps the slot that its token names.
#[test]
fn a_call_that_is_shown_keeps_its_slot_though_another_ends_before_its_message_is_taken_in() {
    let plan = FaultPlan { in_place: Odds::ALWAYS, ..FaultPlan::default() };
    let mut bench = Bench::in_world(World::new(1, plan), small(), small(), 1);
    bench.establish();
    // With a Reply come more credits.
    bench.check_alive(0);
    // Of two chunks: the server reads them, whatever is in reach.
    let data = [vec![1; 700], vec![2; 900]];
    let mut chunks = Chunks::default();
    (0..).zip(&data).for_each(|(item, data)| chunks.read.push((item, bench.clients[0].data(data))));
    let put = bench.begin(0, request(PUT), chunks, |writer| {
        writer.u32(2)?;
        data.iter().try_for_each(|data| writer.eligible_opaque_reduced(data.len() as u32).map(drop))
    });
    bench.run(|bench| bench.server.engine.statistics().calls_received == 2);
    // The server finds the end of its Reads and, behind it, the second Call in one pass.
    let alone = |bench: &mut Bench| {
        for _ in 0..20 {
            let now = bench.world.now();
            bench.clients[0].poll(now);
            bench.world.advance();
        }
    };
    alone(&mut bench);
    let later = bench.begin(0, request(LATER), Chunks::default(), |writer| {
        writer.u64(10)?;
        writer.opaque(b"later")
    });
    alone(&mut bench);
    assert_eq!(bytes(&bench.finish(0, later.expect("a credit"))), opaque(b"later"));
    bench.finish(0, put.expect("a credit"));
    bench.close();
}
