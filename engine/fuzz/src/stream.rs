//! Targets for input from byte streams.

use stag_wire::record::{RecordError, Splitter, Step};

/// Records of at most this many octets.
const LEN_MAX: u32 = 2000;

/// Record marking: the first octet says how the rest is cut. However it is, the records are the same, and none is
/// longer than the limit.
pub fn record_marking(input: &[u8]) {
    let Some((cut, octets)) = input.split_first() else { return };
    let whole = split(octets, octets.len().max(1));
    assert_eq!(split(octets, usize::from(*cut).max(1)), whole);
    for record in &whole.0 {
        assert!(record.len() <= LEN_MAX as usize);
    }
}

/// The complete records, and how it ended.
fn split(octets: &[u8], cut: usize) -> (Vec<Vec<u8>>, Result<(), RecordError>) {
    let mut splitter = Splitter::new(LEN_MAX);
    let (mut records, mut record): (Vec<Vec<u8>>, Vec<u8>) = Default::default();
    for mut input in octets.chunks(cut) {
        loop {
            if let Some(whole) = splitter.whole(&mut input) {
                assert!(record.is_empty());
                records.push(whole.to_vec());
                continue;
            }
            match splitter.step(&mut input) {
                Ok(Step::Octets(octets)) => {
                    assert!(!octets.is_empty());
                    record.extend(octets);
                    if let Some(len) = splitter.record_len() {
                        assert!(record.len() + splitter.expected() as usize == len as usize);
                    }
                }
                Ok(Step::End) => records.push(std::mem::take(&mut record)),
                Ok(Step::Pause) => {
                    assert!(input.is_empty());
                    break;
                }
                Err(error) => return (records, Err(error)),
            }
        }
    }
    (records, Ok(()))
}
