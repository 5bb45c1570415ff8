//! Reactors that are late.

use std::time::Duration;

use super::random::{Odds, Random};

/// How soon a reactor that stayed away from a pass may come to the next one.
const BACK_AFTER: Duration = Duration::from_micros(10);

/// Which reactors of a simulated run come to a pass. One that stayed away finds more at once: where each is polled at each instant,
/// what arrives together is never seen together.
#[derive(Clone, Debug)]
pub struct Attendance {
    random: Random,
    /// How often each comes that was asked for so far.
    odds: Vec<Odds>,
    are_all_here: bool,
    is_anyone_away: bool,
}

impl Attendance {
    /// The seed decides how often each comes: always, to every other pass, or to one of ten.
    pub fn new(seed: u64) -> Attendance {
        Attendance { random: Random::new(seed), odds: Vec::new(), are_all_here: false, is_anyone_away: false }
    }

    /// From now on all come: for a time in which seconds pass.
    pub fn be_all_here(&mut self) {
        self.are_all_here = true;
    }

    /// A pass begins.
    pub fn begin_pass(&mut self) {
        self.is_anyone_away = false;
    }

    /// Draws whether the reactor of this number, counted from 0, comes to the pass.
    pub fn draw(&mut self, reactor: usize) -> bool {
        if self.are_all_here {
            return true;
        }
        while self.odds.len() <= reactor {
            let odds = [Odds::ALWAYS, Odds::ALWAYS, Odds::one_in(2), Odds::one_in(10)];
            self.odds.push(odds[self.random.below(odds.len() as u64) as usize]);
        }
        let comes = self.random.happens(self.odds[reactor]);
        self.is_anyone_away |= !comes;
        comes
    }

    /// Returns when the next pass has to be at the latest if the last one, at `now`, did nothing: one that stayed away may have
    /// something to do. `None` if all came.
    pub fn next_pass(&self, now: Duration) -> Option<Duration> {
        self.is_anyone_away.then(|| now + BACK_AFTER)
    }
}
