//! Linearizability: what several clients of a group of reactors see of an object is what one client after the other would see.
//!
//! Each client keeps Calls outstanding on files and names that others use too, and its connection is at any reactor of the group, also
//! after it was cut. [`history`] looks for an order of the Calls that explains all their answers: one in which each Call has a place between its
//! beginning and its end. The files and names of [`objects`] are judged one by one, because a history is linearizable if and only if that
//! of each object is. Some seeds have stores that answer later, or at random.

mod group;
mod history;
mod objects;
#[path = "../../../stores/tests/store/slow.rs"]
mod slow;

use stag_fabric::sim::{FaultPlan, Odds, sweep};

use group::Group;

/// Seeds without `STAG_SEEDS`.
const SEEDS: u64 = 48;

/// Calls of all clients in one run.
const CALLS: usize = 96;

fn run(seed: u64, plan: FaultPlan) {
    let in_place = [Odds::one_in(2), Odds::ALWAYS, Odds::NEVER, Odds::one_in(10)][(seed / 4 % 4) as usize];
    let mut group = Group::new(seed, FaultPlan { in_place, ..FaultPlan::default() });
    group.set_plan(FaultPlan { in_place, ..plan });
    group.make_calls(CALLS);
    group.set_plan(FaultPlan::default());
    group.close();
}

/// On a fabric that takes every liberty but to fail.
#[test]
fn each_object_is_linearizable_on_a_rough_fabric() {
    sweep("each_object_is_linearizable_on_a_rough_fabric", 0..SEEDS, |seed| run(seed, FaultPlan::rough()));
}

/// Connections are cut, and come back at another reactor: Calls that were under way are sent again, and none is executed twice.
#[test]
fn each_object_is_linearizable_while_connections_are_cut() {
    sweep("each_object_is_linearizable_while_connections_are_cut", 0..SEEDS, |seed| {
        run(seed, FaultPlan { death: Odds::one_in(150), ..FaultPlan::rough() });
    });
}
