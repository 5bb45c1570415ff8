//! Data that crosses reactors: as loans, and back.

use stag_rpc::{CallError, Chunks};

use crate::at_one;
use crate::group::Group;
use crate::support::program::{
    BIG, FILL, GET, LATER_FILL, LATER_PUT, PUT, PUT_ONE, TIMELY_PUT, pattern, sum,
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
