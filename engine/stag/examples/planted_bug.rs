//! A planted bug that no run on a well-behaved fabric shows, found by the simulator, with the seed that shows it again.
//!
//! The service adds numbers. Its mistake is one word: it says that a Call may be executed twice. When a connection ends before the
//! Reply has come, the client sends the Call again on the next one, and the number is added twice.
//!
//! ```text
//! planted_bug                finds the first seed that shows the bug, runs it again, and shows that the repair holds
//! STAG_SEED=7 planted_bug    runs that seed only
//! ```

use std::cell::Cell;
use std::panic::catch_unwind;
use std::rc::Rc;

use stag::prelude::*;
use stag::testing::{FaultPlan, Simulation, sweep};

const PROGRAM: u32 = 0x2000_7a72;

/// Calls of each seed.
const CALLS: u32 = 40;

/// Seeds that are tried.
const SEEDS: u64 = 200;

/// `unsigned int add(unsigned int)`: the bug. Adding is not harmless if it happens twice.
static WRONG: [Procedure; 1] = [Procedure::plain("ADD")];

/// The repair: the server keeps the Reply, and a Call that comes again is answered with it.
static RIGHT: [Procedure; 1] = [Procedure::plain("ADD").once()];

/// Adds 1 in `CALLS` Calls. Returns the sum that the server has then.
fn sum(seed: u64, plan: FaultPlan, procedures: &'static [Procedure]) -> u32 {
    let sum = Rc::new(Cell::new(0));
    let kept = sum.clone();
    let add = move |call: &mut Call<'_>, reply: &mut Reply<'_>| {
        match call.arguments().u32() {
            Ok(number) => {
                kept.set(kept.get() + number);
                reply.success(|writer| writer.u32(kept.get()));
            }
            Err(_) => reply.garbage_arguments(),
        }
        Outcome::Done
    };
    let mut simulation = Simulation::new(seed, plan, |_| (Program::new(PROGRAM, 1, procedures, add),));
    let client = simulation.add_client();
    for _ in 0..CALLS {
        simulation.call(client, PROGRAM, 1, 1, |writer| writer.u32(1)).expect("each Call is answered");
    }
    simulation.finish().expect("nothing is left");
    sum.get()
}

fn main() {
    // On a fabric where nothing fails, the bug does not show.
    assert_eq!(sum(1, FaultPlan::default(), &WRONG), CALLS);

    // Where connections end, it does. `sweep` prints the seed, and how to run it again.
    let found = Cell::new(0);
    let caught = catch_unwind(std::panic::AssertUnwindSafe(|| {
        sweep("planted_bug", 0..SEEDS, |seed| {
            found.set(seed);
            assert_eq!(sum(seed, FaultPlan::storm(), &WRONG), CALLS, "each Call is executed once");
        });
    }));
    assert!(caught.is_err(), "{SEEDS} seeds do not show the bug");
    let (seed, first) = (found.get(), sum(found.get(), FaultPlan::storm(), &WRONG));
    assert_eq!(sum(seed, FaultPlan::storm(), &WRONG), first, "a seed is the same each time");
    println!("seed {seed}: {CALLS} Calls added {first}");

    sweep("planted_bug", 0..SEEDS, |seed| assert_eq!(sum(seed, FaultPlan::storm(), &RIGHT), CALLS));
    println!("repaired: {SEEDS} seeds add {CALLS} each");
}
