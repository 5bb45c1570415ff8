//! Which block of which file the next Call of a connection is at, and which Call of a mix it is.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::scenario::{Offsets, Scenario};

/// The places of one client's Calls. The same client has the same ones in each run.
pub(super) struct Places {
    /// Blocks of each file, and of all files of a connection.
    blocks: usize,
    all: usize,
    block_len: u64,
    /// With sequential offsets: the next block of each connection.
    next: Vec<usize>,
    /// With random ones.
    is_random: bool,
    random: SmallRng,
    /// Sums of the mix's weights, up to each.
    weights: Vec<u32>,
}

impl Places {
    pub(super) fn new(scenario: &Scenario, number: usize) -> Places {
        let (blocks, files) = (scenario.blocks_of_file(), scenario.files.max(1));
        let mut sum = 0;
        let weights = scenario.mix.iter().map(|share| {
            sum += share.weight;
            sum
        });
        Places {
            blocks,
            all: blocks * files,
            block_len: scenario.block_len() as u64,
            weights: weights.collect(),
            next: vec![0; scenario.connections],
            is_random: scenario.offsets == Offsets::Random,
            random: SmallRng::seed_from_u64(number as u64),
        }
    }

    /// The file, and the offset in it, of a connection's next Call.
    #[inline]
    pub(super) fn next(&mut self, connection: usize) -> (usize, u64) {
        let block = if self.is_random {
            self.random.random_range(0..self.all)
        } else {
            let next = &mut self.next[connection];
            let block = *next;
            *next = if block + 1 == self.all { 0 } else { block + 1 };
            block
        };
        (block / self.blocks, (block % self.blocks) as u64 * self.block_len)
    }

    /// The index in the mix of the next Call.
    #[inline]
    pub(super) fn next_share(&mut self) -> usize {
        let sum = self.weights.last().copied().unwrap_or(1);
        let ticket = self.random.random_range(0..sum);
        self.weights.iter().position(|weight| ticket < *weight).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{MeasuredOperation, MixShare};

    fn scenario() -> Scenario {
        let share = |operation, weight| MixShare { operation, weight };
        Scenario {
            operation: MeasuredOperation::Mix,
            mix: vec![share(MeasuredOperation::Read, 70), share(MeasuredOperation::Write, 30)],
            working_set: Some(64 << 10),
            files: 2,
            connections: 2,
            ..Scenario::default()
        }
    }

    #[test]
    fn sequential_offsets_go_through_all_files_and_begin_again() {
        let mut places = Places::new(&scenario(), 0);
        // 64 KiB are two connections with two files of four blocks each.
        let found: Vec<_> = (0..9).map(|_| places.next(0)).collect();
        let blocks = [0, 4096, 8192, 12_288];
        let expected: Vec<_> =
            [0, 1].into_iter().flat_map(|file| blocks.map(|offset| (file, offset))).collect();
        assert_eq!((&found[..8], found[8]), (&expected[..], (0, 0)));
        assert_eq!(places.next(1), (0, 0), "each connection has its own place");
    }

    #[test]
    fn random_offsets_reach_each_block() {
        let mut places = Places::new(&Scenario { offsets: Offsets::Random, ..scenario() }, 0);
        let found: std::collections::BTreeSet<_> = (0..1000).map(|_| places.next(0)).collect();
        assert_eq!(found.len(), 8);
        assert!(found.iter().all(|(file, offset)| *file < 2 && offset % 4096 == 0 && *offset < 16 << 10));
    }

    #[test]
    fn a_mix_has_its_shares() {
        let mut places = Places::new(&scenario(), 0);
        let reads = (0..10_000).filter(|_| places.next_share() == 0).count();
        assert!((6_700..7_300).contains(&reads), "{reads}");
    }
}
