//! Random seeds, different in every run.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A random number, from which the transaction ids of a connection or an engine go on.
///
/// It is from the system's randomness, not from the process id: in a container that is the same in every run, and a
/// server that recorded the Calls of the run before would answer ours with those Replies.
#[must_use]
pub fn random_seed() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

#[cfg(test)]
mod tests {
    use super::random_seed;

    #[test]
    fn seeds_differ() {
        let mut seeds: Vec<u32> = (0..8).map(|_| random_seed()).collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert!(seeds.len() > 6, "{seeds:?}");
    }
}
