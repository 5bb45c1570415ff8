//! Data that crosses reactors: as loans, and back.

use stag_rpc::{Call, CallError, Chunks, Home};
use stag_runtime::ReactorId;
use stag_wire::xdr::Writer;

use super::at_one;
use super::group::Group;
use crate::support::program::{
    BIG, ECHO, FILL, GET, LATER_FILL, LATER_PUT, PUT, PUT_ONE, TIMELY_PUT, pattern, sum,
};
use crate::support::{bytes, error, opaque, request, request_for, words};

/// What PUT answers: nothing is missing, and the sum of each item.
fn sums(items: &[&[u8]]) -> Vec<u8> {
    let sums = items.iter().map(|item| sum(item));
    [0].into_iter().chain(sums).flat_map(u32::to_be_bytes).collect()
}

#[test]
fn arguments_in_read_chunks() {
    let mut group = Group::new(2, at_one);
    let client = group.connect(0);
    for len in [1, 4096, 5000, 70_000, 1 << 20] {
        let data = pattern(3, len);
        for procedure in [PUT, PUT_ONE, TIMELY_PUT] {
            let chunks = Chunks::read(group.data(client, &data));
            let call = group.begin(client, request(procedure), chunks, |writer| {
                writer.u32(1)?;
                writer.eligible_opaque_reduced(len as u32).map(drop)
            });
            let ended = group.finish(client, call);
            if procedure != TIMELY_PUT {
                assert_eq!(bytes(&ended), sums(&[&data]), "{len} octets");
            }
        }
    }
    assert_eq!(group.executed(), [0, 15]);
    assert_eq!(group.program(1).counted, 5);
    group.close();
}

#[test]
fn several_read_chunks_and_an_answer_that_comes_later() {
    let mut group = Group::new(3, at_one);
    let client = group.connect(2);
    let items: Vec<Vec<u8>> = [10, 4096, 9000].iter().map(|len| pattern(*len as u32, *len)).collect();
    let mut chunks = Chunks::default();
    for (number, item) in (0..).zip(&items) {
        chunks.read.push((number, group.data(client, item)));
    }
    let call = group.begin(client, request(LATER_PUT), chunks, |writer| {
        writer.u64(500)?;
        writer.u32(3)?;
        items.iter().try_for_each(|item| writer.eligible_opaque_reduced(item.len() as u32).map(drop))
    });
    let items: Vec<&[u8]> = items.iter().map(Vec::as_slice).collect();
    assert_eq!(bytes(&group.finish(client, call)), sums(&items));
    group.close();
}

#[test]
fn results_in_write_chunks() {
    let mut group = Group::new(2, at_one);
    let client = group.connect(0);
    for lens in [&[4096][..], &[1 << 20], &[10, 5000], &[0, 100], &[]] {
        let mut chunks = Chunks::default();
        for (number, len) in (0..).zip(lens) {
            chunks.write.push((number, group.clients[client].space((*len).max(1))));
        }
        let count = lens.len() as u32;
        let call = group.begin(client, request_for(GET, 100), chunks, |writer| {
            words(writer, &[7, count])?;
            lens.iter().try_for_each(|len| writer.u32(*len as u32))
        });
        let ended = group.finish(client, call);
        let expected: Vec<_> =
            (0u8..).zip(lens).map(|(number, len)| (number, pattern(7 + u32::from(number), *len))).collect();
        assert_eq!(ended.written, expected);
    }
    group.close();
}

#[test]
fn results_of_any_length() {
    let mut group = Group::new(2, at_one);
    let client = group.connect(0);
    for len in [0, 300, 480, 900, 5000, 300_000] {
        let call = group.begin(client, request_for(BIG, len + 8), Chunks::default(), |writer| {
            words(writer, &[5, len as u32])
        });
        assert_eq!(bytes(&group.finish(client, call)), opaque(&pattern(5, len)), "{len} octets");
    }
    // Longer than the Reply chunk.
    let call =
        group.begin(client, request_for(BIG, 2000), Chunks::default(), |writer| words(writer, &[5, 4000]));
    assert_eq!(error(&group.finish(client, call)), CallError::Chunk);
    group.close();
}

#[test]
fn results_in_memory_of_their_own() {
    let mut group = Group::new(2, at_one);
    let client = group.connect(0);
    for procedure in [FILL, LATER_FILL] {
        for len in [4096, 100_000] {
            let chunks = Chunks::write(group.clients[client].space(len));
            let call =
                group.begin(client, request_for(procedure, 100), chunks, |writer| writer.u32(len as u32));
            assert_eq!(group.finish(client, call).written[0].1.len(), len);
        }
    }
    group.close();
}

/// A connection that ends while its data is elsewhere: the memory comes back all the same.
#[test]
fn a_connection_that_is_gone() {
    let mut group = Group::new(2, at_one);
    let client = group.connect(0);
    let data = pattern(1, 50_000);
    let chunks = Chunks::read(group.data(client, &data));
    group.begin(client, request(LATER_PUT), chunks, |writer| {
        writer.u64(1_000_000)?;
        writer.u32(1)?;
        writer.eligible_opaque_reduced(data.len() as u32).map(drop)
    });
    group.run(|group| group.program(1).kept() > 0);
    group.disconnect(client);
    group.run(|group| group.reactors[0].engine.connection_count() == 0);
    group.close();
}

#[test]
fn large_results_are_sent_a_few_in_a_pass_and_after_the_calls_of_others() {
    let home = |call: &Call<'_>| {
        // GET at reactor 1, ECHO at reactor 0.
        Home::At(ReactorId::new(usize::from(call.procedure != ECHO)).expect("a group may have two"))
    };
    const LEN: usize = 400_000;
    let mut group = Group::new(2, home);
    let (reader, other) = (group.connect(0), group.connect(1));
    group.check_alive(reader);
    let calls = [1, 2].map(|number| {
        let mut chunks = Chunks::default();
        chunks.write.push((0, group.clients[reader].space(LEN)));
        let encode = move |writer: &mut Writer<'_>| words(writer, &[number, 1, LEN as u32]);
        (number, group.begin(reader, request_for(GET, 100), chunks, encode))
    });
    let echo =
        group.begin(other, request(ECHO), Chunks::default(), |writer| writer.opaque(b"behind results"));
    // Reactor 0 carries both, and then has no pass until reactor 1 has answered, and has sent another Call behind the answers.
    let carried = |group: &Group, reactor: usize| group.reactors[reactor].engine.statistics().calls_carried;
    let (before, executed) = (carried(&group, 0), group.program(0).executed);
    group.turns(|group| {
        let now = group.world.now();
        group.clients[reader].poll(now);
        group.reactors[0].poll(now);
        carried(group, 0) == before + 2
    });
    group.turns(|group| {
        let now = group.world.now();
        group.clients[other].poll(now);
        group.reactors[1].poll(now);
        carried(group, 1) > 0 && group.program(1).executed == 2
    });
    let sent = |group: &Group| group.reactors[0].engine.statistics().write_bytes as usize / LEN;
    for pass in 1..=2 {
        let now = group.world.now();
        group.reactors[0].poll(now);
        assert_eq!(sent(&group), pass, "large results that were sent");
        assert_eq!(group.program(0).executed, executed + 1, "the other reactor's Call did not wait for them");
    }
    for (number, call) in calls {
        assert_eq!(group.finish(reader, call).written, [(0, pattern(number, LEN))]);
    }
    assert_eq!(bytes(&group.finish(other, echo)), opaque(b"behind results"));
    group.close();
}
