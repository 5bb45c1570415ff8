//! The verifier of an exclusive CREATE, kept as the times of the file that it made.

use crate::types::{ObjectStat, StoreVerifier, Timestamp};

/// The two times of a file that keep the verifier of an exclusive CREATE, as other servers do: nothing else of a new file is
/// on stable storage and free to use. The client sets them to what they should be.
#[must_use]
pub fn verifier_times(verifier: StoreVerifier) -> [Timestamp; 2] {
    let [a, b, c, d, e, f, g, h] = verifier;
    // Without the top bit: not every file system has times after 2038.
    let time = |word: [u8; 4]| Timestamp {
        seconds: i64::from(u32::from_be_bytes(word) & 0x7fff_ffff),
        nanoseconds: 0,
    };
    [time([a, b, c, d]), time([e, f, g, h])]
}

/// Whether an exclusive CREATE with this verifier made the file, whose times keep it, and it is as it was made.
#[must_use]
pub fn has_verifier_times(seen: &ObjectStat, verifier: StoreVerifier) -> bool {
    seen.size == 0 && [seen.atime, seen.mtime] == verifier_times(verifier)
}
