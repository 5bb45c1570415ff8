//! An RPC program for the tests: arguments and results are counted opaque items, each of them eligible.
//!
//! ```text
//! Call    xid  CALL   results  max...   arguments  (len  octets, roundup)...
//! Reply   xid  REPLY  results           (len  octets, roundup)...
//! ```

use crate::support::{CALL, REPLY, Random, words};

/// A Call before reduction.
#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    /// The Payload stream.
    pub(crate) stream: Vec<u8>,
    /// Where each item's octets are in it.
    pub(crate) items: Vec<std::ops::Range<usize>>,
    /// The most that each result can be.
    pub(crate) results_max: Vec<u32>,
}

/// The octets of an item, from a name.
pub(crate) fn octets(name: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(name);
    (0..len).map(|_| random.next() as u8).collect()
}

/// Mostly short, sometimes long.
fn len(random: &mut Random) -> u32 {
    let bound = if random.once_in(3) { 6000 } else { 60 };
    random.below(bound)
}

pub(crate) fn arguments(random: &mut Random, xid: u32) -> Arguments {
    let results_max: Vec<u32> = (0..random.below(4)).map(|_| len(random)).collect();
    let mut head = vec![xid, CALL, results_max.len() as u32];
    head.extend(&results_max);
    let count = random.below(4);
    head.push(count);
    let mut stream = words(&head);
    let mut items = Vec::new();
    for item in 0..count {
        let len = len(random) as usize;
        stream.extend((len as u32).to_be_bytes());
        items.push(stream.len()..stream.len() + len);
        stream.extend(octets(u64::from(xid) << 8 | u64::from(item), len));
        stream.resize(stream.len().next_multiple_of(4), 0);
    }
    Arguments { stream, items, results_max }
}

/// One result: its length, at most what the Call allows, its octets told by the xid.
pub(crate) fn result(random: &mut Random, xid: u32, item: usize, max: u32) -> Vec<u8> {
    let len = match random.below(4) {
        0 => 0,
        1 => random.below(max + 1),
        _ => max,
    };
    octets(u64::from(xid) << 8 | 0x80 | item as u64, len as usize)
}

/// The largest results that a Call's stream asks for.
pub(crate) fn results_max(stream: &[u8]) -> Vec<u32> {
    let word = |at: usize| u32::from_be_bytes(stream[4 * at..4 * at + 4].try_into().expect("four octets"));
    (0..word(2) as usize).map(|item| word(3 + item)).collect()
}

/// A Reply's Payload stream. `reduced` says which items are elsewhere.
pub(crate) fn reply(xid: u32, results: &[Vec<u8>], reduced: &[bool]) -> Vec<u8> {
    let mut stream = words(&[xid, REPLY, results.len() as u32]);
    for (result, &reduced) in results.iter().zip(reduced) {
        stream.extend((result.len() as u32).to_be_bytes());
        if !reduced {
            stream.extend(result);
            stream.resize(stream.len().next_multiple_of(4), 0);
        }
    }
    stream
}

/// Takes a Reply apart. `placed`: for each item that a Write chunk was there for, what is in it.
pub(crate) fn results(stream: &[u8], placed: &[Option<Vec<u8>>]) -> Vec<Vec<u8>> {
    let word = |at: usize| u32::from_be_bytes(stream[at..at + 4].try_into().expect("four octets")) as usize;
    let mut at = 12;
    let mut results = Vec::new();
    for item in 0..word(8) {
        let len = word(at);
        at += 4;
        match placed.get(item).and_then(Option::as_ref) {
            Some(octets) => {
                assert_eq!(octets.len(), len, "the returned length is that of the item");
                results.push(octets.clone());
            }
            None => {
                results.push(stream[at..at + len].to_vec());
                at += len.next_multiple_of(4);
            }
        }
    }
    assert_eq!(at, stream.len());
    results
}
