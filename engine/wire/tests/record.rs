//! Record marking: RFC 5531 section 11.

use proptest::prelude::*;
use stag_wire::record::{FRAGMENTS_MAX, Mark, RecordError, Splitter, Step};

/// A stream of records, each cut into fragments of these lengths.
fn stream(records: &[Vec<u32>]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let (mut octets, mut expected, mut next) = (Vec::new(), Vec::new(), 0u8);
    for fragments in records {
        let mut record = Vec::new();
        for (index, &len) in fragments.iter().enumerate() {
            octets.extend(Mark { len, is_last: index + 1 == fragments.len() }.to_bytes());
            for _ in 0..len {
                next = next.wrapping_mul(5).wrapping_add(1);
                record.push(next);
            }
            octets.extend(&record[record.len() - len as usize..]);
        }
        expected.push(record);
    }
    (octets, expected)
}

/// All records of a stream that arrives in pieces of these lengths, the last of them again and again.
fn split(octets: &[u8], cuts: &[usize]) -> Result<Vec<Vec<u8>>, RecordError> {
    let mut splitter = Splitter::new(1 << 16);
    let (mut records, mut record, mut at, mut cut) = (Vec::new(), Vec::new(), 0, 0);
    while at < octets.len() {
        let len = cuts.get(cut).or(cuts.last()).copied().unwrap_or(1).clamp(1, octets.len() - at);
        (cut, at) = (cut + 1, at + len);
        let mut input = &octets[at - len..at];
        loop {
            if let Some(whole) = splitter.whole(&mut input) {
                assert!(record.is_empty());
                records.push(whole.to_vec());
                continue;
            }
            match splitter.step(&mut input)? {
                Step::Octets(octets) => record.extend(octets),
                Step::End => records.push(std::mem::take(&mut record)),
                Step::Pause => break,
            }
        }
        assert!(input.is_empty());
    }
    assert!(splitter.is_between(), "the stream ends with a record");
    Ok(records)
}

/// 5531-11-a: the highest bit marks the last fragment; the spec's NULL Call.
#[test]
fn a_mark_is_a_bit_and_a_length() {
    assert_eq!(Mark::from_bytes([0x80, 0, 0, 0x28]), Mark { len: 40, is_last: true });
    assert_eq!(Mark::whole(40).to_bytes(), [0x80, 0, 0, 0x28]);
    assert_eq!(Mark::from_bytes([0x7f, 0xff, 0xff, 0xff]), Mark { len: (1 << 31) - 1, is_last: false });
    assert_eq!(Mark { len: 1, is_last: false }.to_bytes(), [0, 0, 0, 1]);
}

/// 5531-11-b: several fragments, also empty ones, and a record of nothing.
#[test]
fn fragments_of_any_length_make_a_record() {
    let (octets, expected) = stream(&[vec![3], vec![0, 5, 0, 1, 0], vec![0], vec![0, 0], vec![7, 2]]);
    for piece in 1..octets.len() {
        assert_eq!(split(&octets, &[piece]).unwrap(), expected, "pieces of {piece}");
    }
}

/// 5531-11-b: a record above the limit is the end of the connection, and is known by its mark alone.
#[test]
fn records_above_the_limit_are_refused() {
    let mut splitter = Splitter::new(100);
    let mut input = &Mark::whole(101).to_bytes()[..];
    assert_eq!(splitter.whole(&mut input), None);
    assert_eq!(splitter.step(&mut input), Err(RecordError::TooLong { limit: 100, found: 101 }));
    // Of two fragments together.
    let (octets, _) = stream(&[vec![60, 41]]);
    let mut splitter = Splitter::new(100);
    let mut input = &octets[..];
    assert!(matches!(splitter.step(&mut input), Ok(Step::Octets(first)) if first.len() == 60));
    assert_eq!(splitter.step(&mut input), Err(RecordError::TooLong { limit: 100, found: 101 }));
    // 2 GiB, and the words of another protocol.
    for first in [[0xff; 4], *b"GET ", *b"MPA "] {
        let found = u64::from(Mark::from_bytes(first).len);
        let refused = Splitter::new(100).step(&mut &first[..]);
        assert_eq!(refused, Err(RecordError::TooLong { limit: 100, found }));
    }
    let told = |first: [u8; 4]| {
        RecordError::TooLong {
            limit: 100,
            found: u64::from_be_bytes([[0; 4], first].concat().try_into().unwrap()),
        }
        .to_string()
    };
    assert!(told(*b"MPA ").ends_with("; its peer speaks iWARP, and this port RPC over TCP"));
    assert!(told(*b"GET ").ends_with("; \"GET \" begins no RPC"));
    assert!(told([0, 1, 0, 0]).ends_with("the limit is 100"));
}

#[test]
fn endless_fragments_are_refused() {
    let mut splitter = Splitter::new(100);
    let empty = Mark { len: 0, is_last: false }.to_bytes();
    for _ in 0..FRAGMENTS_MAX {
        assert_eq!(splitter.step(&mut &empty[..]), Ok(Step::Pause));
    }
    assert_eq!(splitter.step(&mut &empty[..]), Err(RecordError::TooManyFragments));
}

/// Octets that the caller received elsewhere count as if they had come through here.
#[test]
fn octets_may_be_received_elsewhere() {
    let mut splitter = Splitter::new(100);
    let (octets, _) = stream(&[vec![10], vec![2]]);
    let mut input = &octets[..7];
    assert!(matches!(splitter.step(&mut input), Ok(Step::Octets(first)) if first.len() == 3));
    assert_eq!((splitter.expected(), splitter.record_len()), (7, Some(10)));
    splitter.advance(7);
    let mut input = &octets[14..];
    assert_eq!(splitter.step(&mut input), Ok(Step::End));
    assert_eq!(splitter.whole(&mut input).map(<[u8]>::len), Some(2));
}

proptest! {
    #[test]
    fn any_records_in_any_pieces(
        records in prop::collection::vec(prop::collection::vec(0u32..300, 1..6), 0..8),
        cuts in prop::collection::vec(1usize..400, 1..20),
    ) {
        let (octets, expected) = stream(&records);
        prop_assert_eq!(split(&octets, &cuts).unwrap(), expected);
    }
}
