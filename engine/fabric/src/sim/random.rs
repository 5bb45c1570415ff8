//! Seeded randomness, and the fingerprint of a run. Both small, both the same on every machine.

use std::ops::RangeInclusive;
use std::time::Duration;

/// How often something happens: one time in `n`, or never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Odds(u32);

impl Odds {
    /// It does not happen.
    pub const NEVER: Odds = Odds(0);
    /// It happens every time.
    pub const ALWAYS: Odds = Odds(1);

    /// One time in `n` on average; `one_in(0)` is never.
    pub const fn one_in(n: u32) -> Odds {
        Odds(n)
    }
}

/// A generator of pseudo-random numbers: SplitMix64. Good enough to explore, trivial to replay.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of `seed`. Equal seeds give equal numbers.
    pub fn new(seed: u64) -> Random {
        // Seeds are small and close to each other; one round of mixing parts their streams.
        let mut random = Random(seed);
        Random(random.next_u64() ^ seed.rotate_left(32))
    }

    /// Any number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, or 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of a 128-bit product: no division, and a bias that no test can notice.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Whether something with these odds happens now. Draws nothing for [`Odds::NEVER`], so that a
    /// fault that is off does not change the rest of a run.
    pub fn happens(&mut self, odds: Odds) -> bool {
        odds.0 != 0 && self.below(u64::from(odds.0)) == 0
    }

    /// A duration of the range, to the nanosecond.
    pub fn duration(&mut self, range: &RangeInclusive<Duration>) -> Duration {
        let span = range.end().saturating_sub(*range.start()).as_nanos() as u64;
        *range.start() + Duration::from_nanos(self.below(span.saturating_add(1)))
    }
}

/// A running fingerprint of everything that happened (FNV-1a over words).
#[derive(Clone, Copy, Debug)]
pub(super) struct Trace(u64);

impl Trace {
    pub(super) fn new() -> Trace {
        Trace(0xcbf2_9ce4_8422_2325)
    }

    pub(super) fn hash(&self) -> u64 {
        self.0
    }

    pub(super) fn word(&mut self, word: u64) {
        self.bytes(&word.to_le_bytes());
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    pub(super) fn words(&mut self, words: &[u64]) {
        for &word in words {
            self.word(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_numbers_and_neighbours_do_not() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            [random.next_u64(), random.next_u64(), random.next_u64()]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn numbers_stay_below_their_bound_and_reach_it() {
        let mut random = Random::new(1);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[random.below(5) as usize] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(random.below(0), 0);
        assert_eq!(random.below(1), 0);
    }

    #[test]
    fn odds_are_about_right() {
        let mut random = Random::new(2);
        let hits = (0..10_000).filter(|_| random.happens(Odds::one_in(10))).count();
        assert!((800..1200).contains(&hits), "{hits} of 10000 at one in ten");
        assert!(random.happens(Odds::ALWAYS));
        let before = random.clone().next_u64();
        assert!(!random.happens(Odds::NEVER));
        assert_eq!(random.next_u64(), before, "odds of never draw nothing");
    }
}
