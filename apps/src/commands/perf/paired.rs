//! `stag perf --paired`: what several cores gain over one, and what carried Calls cost.

use serde::Serialize;
use stag_bench::Spread;
use stag_bench::paired::{self, Carried, PairedFigures};
use stag_server::failure::CommandFailure;
use stag_server::output::{Colour, Output};
use stag_server::values::{Size, Time};

use super::environment::{FigureEnvironment, RunEnvironment};
use super::plan::{BUILD_PROFILE, Plan};
use super::progress::progress;
use super::requirement::rate;

/// Of what as many cores would ideally gain, the least that memcpy gains on otherwise idle cores.
const COPY_GAIN_MIN: f64 = 0.7;

/// The object of `--json`. A figure is `median`, `min`, `max`, and `count` of rounds.
#[derive(Serialize)]
struct Paired<'a> {
    environment: FigureEnvironment<'a>,
    operation: &'static str,
    /// Null for those that move no data.
    size: Option<usize>,
    /// Calls that each client keeps outstanding.
    depth: usize,
    cores: &'a [usize],
    nodes: &'a [u32],
    build: &'a str,
    notes: &'a [String],
    /// Other programs ran on the cores: the figures are theirs as well.
    disturbed: bool,
    #[serde(flatten)]
    figures: &'a PairedFigures,
}

/// Measures, and says what was found.
pub(super) fn run(plan: &Plan, environment: &RunEnvironment, out: &mut Output) -> Result<(), CommandFailure> {
    let scenario = &plan.scenarios[0];
    let cores: Vec<String> = plan.cores.iter().map(usize::to_string).collect();
    let size = scenario.operation.has_size().then_some(scenario.size);
    let of = size.map_or_else(String::new, |size| format!(" of {}", Size(size as u64)));
    out.line(format_args!("cores      {}, on each a client and its server, taking turns", cores.join(",")))?;
    out.line(format_args!(
        "load       {}{of}, depth {} of each client; {} rounds of {}",
        plan.operation(),
        scenario.depth,
        scenario.repeat,
        Time(scenario.duration)
    ))?;
    for note in &plan.notes {
        out.line(super::report::warning(note))?;
    }
    for finding in &plan.findings {
        out.line(super::report::warning(finding))?;
    }
    out.flush()?;
    let bar = progress(plan, 0, out);
    let figures = paired::run(scenario, plan.directory.as_deref(), |_| bar.inc(1));
    bar.finish_and_clear();
    let figures = figures.map_err(|error| CommandFailure::run(format_args!("{error:#}")))?;
    out.object(&Paired {
        environment: environment.with(&figures.disturbance),
        operation: plan.operation(),
        size,
        depth: scenario.depth,
        cores: &plan.cores,
        nodes: &plan.nodes,
        build: BUILD_PROFILE,
        notes: &plan.notes,
        disturbed: figures.disturbance.disturbed,
        figures: &figures,
    })?;
    report(plan.cores.len(), &figures, out)
}

fn report(cores: usize, figures: &PairedFigures, out: &mut Output) -> Result<(), CommandFailure> {
    let gained = |gain: &Spread| format!("{:.2} (± {:.0} %)", gain.median, gain.percent());
    out.line(format_args!("\n{:<24} {:>10}  times one core", "", "Calls"))?;
    out.line(format_args!("{:<24} {:>10}", "one core", rate(figures.one_core.median)))?;
    for found in &figures.rates {
        let what = match found.carried {
            Carried::None => "no Call carried",
            Carried::Half => "half carried",
            Carried::All => "all carried",
        };
        let what = format!("{cores} cores, {what}");
        out.line(format_args!("{what:<24} {:>10}  {}", rate(found.rate.median), gained(&found.gain)))?;
    }
    if let Some(found) = &figures.directory {
        out.line(format_args!("{:<24} {:>10}", "one core, directory", rate(found.one_core.median)))?;
        let (what, rate) = (format!("{cores} cores, directory"), rate(found.rate.median));
        out.line(format_args!("{what:<24} {rate:>10}  {}", gained(&found.gain)))?;
    }
    if let Some(problem) = figures.disturbance.describe() {
        let problem = super::report::warning(format_args!("not measured: {problem}"));
        out.line(Colour::Red.of(&problem))?;
    }
    let memcpy = format!("{cores} cores, memcpy");
    out.line(format_args!("{memcpy:<24} {:>10}  {}", "", gained(&figures.copy_gain)))?;
    if figures.copy_gain.median < COPY_GAIN_MIN * cores as f64 {
        out.line(format_args!(
            "warning: memcpy does not gain either: other programs use these cores, or they share one"
        ))?;
    }
    out.line(format_args!(
        "\ncarried    {:.0} ns more than a Call that is not: {:.1} times a cache line's round trip of {:.0} ns",
        figures.carried_round_trip_ns.median, figures.carried_to_line.median, figures.line_round_trip_ns.median
    ))?;
    out.flush()
}
