//! How far the rounds of a point are, on a terminal.

use std::io::IsTerminal;

use indicatif::ProgressBar;
use stag_server::output::Output;

use super::plan::Plan;
use crate::time_left;

/// A bar for the rounds of one point on a terminal, nothing elsewhere.
pub(super) fn progress(plan: &Plan, index: usize, out: &Output) -> ProgressBar {
    if !std::io::stderr().is_terminal() || out.json() {
        return ProgressBar::hidden();
    }
    let scenario = &plan.scenarios[index];
    let bar = ProgressBar::new(scenario.repeat as u64);
    let later: usize = plan.scenarios[index + 1..].iter().map(|scenario| scenario.repeat).sum();
    // How long a number of Calls takes is known when a round has ended.
    let expected = scenario.count.is_none().then_some(scenario.warm_up + scenario.duration);
    bar.set_style(time_left::style("{msg}round {pos}/{len} {wide_bar}{left}", later as u64, expected));
    let message = match plan.scenarios.len() {
        1 => String::new(),
        points => format!("{} {} of {points}, ", plan.along.heading(), index + 1),
    };
    bar.set_message(message);
    bar.tick();
    bar
}
