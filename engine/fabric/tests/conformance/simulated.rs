//! The simulated fabric under the suite.

use std::time::Duration;

use stag_fabric::sim::{FaultPlan, Odds, Sim, Violations, World, sweep};

use crate::bench::{Bench, Harness};

/// Seeds for each case.
const SEEDS: u64 = 12;

/// A world, and what the suite asks of it.
pub(crate) struct Simulated {
    pub(crate) world: World,
    addresses: u32,
}

impl Simulated {
    pub(crate) fn new(seed: u64, plan: FaultPlan) -> Simulated {
        Simulated { world: World::new(seed, plan), addresses: 0 }
    }
}

/// Runs a case for several seeds: even ones calm, odd ones rough.
pub(crate) fn run(name: &str, case: fn(&mut Bench<Simulated>)) {
    sweep(name, 0..SEEDS, |seed| {
        let plan = if seed % 2 == 0 { FaultPlan::default() } else { rough() };
        let mut bench = Bench::new(Simulated::new(seed, plan));
        case(&mut bench);
        bench.finish();
    });
}

/// Rough, but for what would hide the outcome of a single request from a case.
fn rough() -> FaultPlan {
    FaultPlan { complete_early: Odds::NEVER, post_full: Odds::NEVER, ..FaultPlan::rough() }
}

impl Harness for Simulated {
    type Provider = Sim;

    fn open(&mut self, label: &str) -> Sim {
        self.world.provider(label)
    }

    fn address(&mut self) -> String {
        self.addresses += 1;
        format!("address-{}", self.addresses)
    }

    fn now(&self) -> Duration {
        self.world.now()
    }

    fn pass_time(&mut self) -> bool {
        self.world.advance()
    }

    fn idle_turns_max(&self) -> u32 {
        u32::MAX
    }

    fn finish(&mut self) {
        assert_eq!(self.world.violations(), Violations::default());
    }
}
