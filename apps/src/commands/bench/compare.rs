//! `stag bench compare`: two results, figure by figure.
//!
//! A difference counts where the spreads of both do not overlap: a median that moves within the other's extremes is noise.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde_json::Value;
use stag_server::failure::CommandFailure;
use stag_server::output::{Colour, Output};

use super::results::{BenchResults, Range, point_name};

/// Rounds that a spread takes at least: the extremes of two say little.
const ROUNDS_MIN: u64 = 3;

/// Columns of a figure's name, so that a line has 80.
const NAME_COLUMNS: usize = 31;

/// Says which figures became better or worse
#[derive(Debug, Args)]
#[command(after_help = "Worse or better: the extremes of both do not overlap. Status 1 if one is worse\n\
                        Examples: stag bench compare old.json new.json\n          \
                        stag bench compare bench/history/1a2b3c bench/history/4d5e6f")]
pub(super) struct Compare {
    /// Results before: a file, or a folder of them
    before: PathBuf,
    /// Results after
    after: PathBuf,
}

/// How a figure changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Change {
    Better,
    Worse,
    /// The spreads overlap.
    Same,
    /// Other programs ran during one of them, or it was not measured.
    NotMeasured,
    /// Fewer rounds than [`ROUNDS_MIN`].
    TooFewRounds,
}

impl Change {
    fn word(self) -> &'static str {
        match self {
            Change::Better => "better",
            Change::Worse => "WORSE",
            Change::Same => "same",
            Change::NotMeasured => "not measured",
            Change::TooFewRounds => "too few rounds",
        }
    }

    fn colour(self) -> Option<Colour> {
        match self {
            Change::Better => Some(Colour::Green),
            Change::Worse => Some(Colour::Red),
            Change::Same => None,
            Change::NotMeasured | Change::TooFewRounds => Some(Colour::Yellow),
        }
    }
}

/// One number of a figure, in both results.
#[derive(Clone, Debug, Serialize)]
struct Compared {
    name: String,
    metric: &'static str,
    before: Option<f64>,
    after: Option<f64>,
    change: Change,
}

/// What is compared: its name, where it is, and whether more of it is better.
const METRICS: [(&str, &str, bool); 3] = [
    ("rate", "/calls_per_second", true),
    ("p50", "/latency_ns/p50", false),
    ("p99", "/latency_ns/p99", false),
];

fn change(before: Option<Range>, after: Option<Range>, is_disturbed: bool, more_is_better: bool) -> Change {
    let (Some(before), Some(after)) = (before, after) else { return Change::NotMeasured };
    if is_disturbed {
        return Change::NotMeasured;
    }
    if before.count.min(after.count) < ROUNDS_MIN {
        return Change::TooFewRounds;
    }
    match (after.min > before.max, after.max < before.min) {
        (false, false) => Change::Same,
        (is_more, _) if is_more == more_is_better => Change::Better,
        _ => Change::Worse,
    }
}

/// Compares the figures of the same name and point. Of open loop the rate is what was asked for, so it is not compared.
fn compared(before: &BenchResults, after: &BenchResults) -> (Vec<Compared>, Vec<String>) {
    let points = |results: &BenchResults| {
        let mut all: Vec<(String, Value)> = Vec::new();
        for figure in &results.figures {
            for point in &figure.points {
                let at = point_name(&figure.points, point);
                let at = if at.is_empty() { at } else { format!(", {at}") };
                all.push((format!("{}{at}", figure.name), point.clone()));
            }
        }
        all
    };
    let (old, new) = (points(before), points(after));
    let mut found = Vec::new();
    let mut lone: Vec<String> = Vec::new();
    for (name, point) in &new {
        let Some((_, other)) = old.iter().find(|(known, _)| known == name) else {
            lone.push(format!("{name}: only after"));
            continue;
        };
        let is_disturbed = point["disturbed"] == true || other["disturbed"] == true;
        for (metric, place, more_is_better) in METRICS {
            if metric == "rate" && !point["open_loop"].is_null() {
                continue;
            }
            let range = |point: &Value| point.pointer(place).and_then(Range::of);
            let (before, after) = (range(other), range(point));
            if before.is_none() && after.is_none() {
                continue;
            }
            found.push(Compared {
                name: name.clone(),
                metric,
                before: before.map(|range| range.median),
                after: after.map(|range| range.median),
                change: change(before, after, is_disturbed, more_is_better),
            });
        }
    }
    let is_gone = |name: &str| new.iter().all(|(known, _)| known != name);
    lone.extend(old.iter().filter(|(name, _)| is_gone(name)).map(|(name, _)| format!("{name}: only before")));
    (found, lone)
}

impl Compare {
    /// Runs it.
    pub(super) fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let (before, after) = (BenchResults::read(&self.before)?, BenchResults::read(&self.after)?);
        let (found, lone) = compared(&before, &after);
        if found.is_empty() {
            return Err(CommandFailure::usage("the results have no figure of the same name"));
        }
        out.line(format_args!("before     {}", before.label()))?;
        out.line(format_args!("after      {}", after.label()))?;
        for key in ["host", "cpu", "kernel", "profile"] {
            let (old, new) = (&before.environment[key], &after.environment[key]);
            if old != new {
                out.line(Colour::Yellow.of(&format!("warning: another {key}: {old}, then {new}")))?;
            }
        }
        out.line(format_args!(
            "\n{:<NAME_COLUMNS$} {:<5} {:>9} {:>9} {:>6}  verdict",
            "figure", "", "before", "after", ""
        ))?;
        for line in &found {
            out.line(row(line))?;
            out.object(line)?;
        }
        for line in &lone {
            out.line(line)?;
        }
        let count = |change: Change| found.iter().filter(|line| line.change == change).count();
        let (worse, better) = (count(Change::Worse), count(Change::Better));
        let (same, rest) = (count(Change::Same), count(Change::NotMeasured) + count(Change::TooFewRounds));
        out.line(format_args!("\n{worse} worse, {better} better, {same} same, {rest} not compared"))?;
        match worse {
            0 => Ok(()),
            worse => Err(CommandFailure::run(format_args!("{worse} of {} numbers are worse", found.len()))),
        }
    }
}

fn row(line: &Compared) -> String {
    let number = |value: Option<f64>| match (value, line.metric) {
        (None, _) => "-".to_owned(),
        (Some(value), "rate") => crate::commands::perf::rate(value),
        (Some(value), _) => {
            stag_server::values::Time(std::time::Duration::from_nanos(value as u64)).to_string()
        }
    };
    let percent = match (line.before, line.after) {
        (Some(before), Some(after)) if before > 0.0 => format!("{:+.0}%", 100.0 * (after / before - 1.0)),
        _ => "-".to_owned(),
    };
    let word = line.change.word();
    let word = line.change.colour().map_or(word.to_owned(), |colour| colour.of(word));
    let name: String = match line.name.chars().count() {
        0..=NAME_COLUMNS => line.name.clone(),
        _ => line.name.chars().take(NAME_COLUMNS - 1).chain(['…']).collect(),
    };
    format!(
        "{name:<NAME_COLUMNS$} {:<5} {:>9} {:>9} {percent:>6}  {word}",
        line.metric,
        number(line.before),
        number(line.after)
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::results::{BenchFigure, SCHEMA};
    use super::*;

    fn range(min: f64, median: f64, max: f64) -> Option<Range> {
        Some(Range { median, min, max, count: 5 })
    }

    #[test]
    fn only_spreads_that_do_not_overlap_differ() {
        let old = range(90.0, 100.0, 110.0);
        for (new, more_is_better, expected) in [
            (range(111.0, 120.0, 130.0), true, Change::Better),
            (range(111.0, 120.0, 130.0), false, Change::Worse),
            (range(50.0, 60.0, 89.0), true, Change::Worse),
            (range(50.0, 60.0, 89.0), false, Change::Better),
            (range(50.0, 60.0, 90.0), true, Change::Same),
            (range(80.0, 200.0, 300.0), true, Change::Same),
            (None, true, Change::NotMeasured),
        ] {
            assert_eq!(change(old, new, false, more_is_better), expected, "{new:?}");
        }
        assert_eq!(change(old, range(200.0, 210.0, 220.0), true, true), Change::NotMeasured);
        let few = Some(Range { median: 1.0, min: 1.0, max: 1.0, count: 2 });
        assert_eq!(change(old, few, false, true), Change::TooFewRounds);
    }

    fn results(figures: &[(&str, f64, bool)]) -> BenchResults {
        let spread =
            |middle: f64| json!({"median": middle, "min": middle - 1.0, "max": middle + 1.0, "count": 5});
        let figures = figures.iter().map(|(name, rate, is_open)| BenchFigure {
            scenario: "test".to_owned(),
            name: (*name).to_owned(),
            points: vec![json!({
                "calls_per_second": spread(*rate),
                "latency_ns": {"p50": spread(1e9 / rate), "p99": null},
                "open_loop": is_open.then_some(json!({"rate": 7})),
                "disturbed": false,
            })],
            error: None,
        });
        BenchResults { schema: SCHEMA, figures: figures.collect(), ..BenchResults::default() }
    }

    #[test]
    fn figures_meet_by_name() {
        let before = results(&[("a", 100.0, false), ("b", 100.0, false), ("gone", 1.0, false)]);
        let after = results(&[("b", 50.0, false), ("a", 200.0, true), ("new", 1.0, false)]);
        let (found, lone) = compared(&before, &after);
        let found: Vec<_> = found.iter().map(|line| (&line.name[..], line.metric, line.change)).collect();
        assert_eq!(
            found,
            [("b", "rate", Change::Worse), ("b", "p50", Change::Worse), ("a", "p50", Change::Better)]
        );
        assert_eq!(lone, ["new: only after", "gone: only before"]);
    }
}
