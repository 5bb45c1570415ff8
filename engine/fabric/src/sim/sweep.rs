//! Runs a test for many seeds, and says which one failed and how to replay it.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Names the one seed to run instead of all.
pub const SEED_VARIABLE: &str = "STAG_SEED";
/// Says how many seeds to run instead of the test's own number.
pub const SEEDS_VARIABLE: &str = "STAG_SEEDS";

/// Runs `run` for each of `seeds`. When one panics, prints its seed and the command that replays it, and
/// lets the panic go on.
///
/// `STAG_SEED=n` runs only seed `n`; `STAG_SEEDS=count` runs `count` seeds from the start of the range, or from seed `n` if both are set:
/// so several processes share a long sweep.
///
/// # Panics
///
/// When `run` does, and when a variable is not a number.
pub fn sweep(test: &str, seeds: Range<u64>, mut run: impl FnMut(u64)) {
    let seeds = match (variable(SEED_VARIABLE), variable(SEEDS_VARIABLE)) {
        (Some(seed), count) => seed..seed.saturating_add(count.unwrap_or(1)),
        (None, Some(count)) => seeds.start..seeds.start.saturating_add(count),
        (None, None) => seeds,
    };
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            eprintln!(
                "{test}: failed with seed {seed}; replay: {SEED_VARIABLE}={seed} cargo test --workspace {test}"
            );
            resume_unwind(panic);
        }
    }
}

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    match value.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{name}={value:?}: a number from 0 to {} is expected", u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_seed_stops_the_sweep() {
        let mut ran = Vec::new();
        let failed = catch_unwind(AssertUnwindSafe(|| {
            sweep("a_failing_seed_stops_the_sweep", 3..9, |seed| {
                ran.push(seed);
                assert_ne!(seed, 5);
            });
        }));
        // With the variables set for another test, other seeds run here; only the default is checked.
        if variable(SEED_VARIABLE).is_none() && variable(SEEDS_VARIABLE).is_none() {
            assert!(failed.is_err());
            assert_eq!(ran, [3, 4, 5]);
        }
    }
}
