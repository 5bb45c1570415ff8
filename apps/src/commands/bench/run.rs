//! `stag bench run`: the figures of scenarios, each by a `stag perf` of its own.

use std::env;
use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use indicatif::ProgressBar;
use serde_json::{Value, json};
use stag_server::failure::CommandFailure;
use stag_server::output::{Colour, Output};
use stag_server::values::Poll;
use stag_server::wrapped::{columns, wrapped};

use super::results::{BenchFigure, BenchResults, SCHEMA};
use super::scenario::{Scenario, ScenarioFigure, ScenarioServer};
use crate::commands::perf::DISTURBED;
use crate::commands::perf::environment::RunEnvironment;
use crate::demo::server::{Server, ServerConfig};
use crate::time_left;

/// Takes the figures of scenarios
#[derive(Debug, Args)]
#[command(after_help = "A figure that is missed is said; status 1: one could not be taken\n\
                        Examples: stag bench run bench/scenarios/shm.toml -o new.json\n          \
                        stag bench run bench/scenarios/*.toml --repeat 15")]
pub(super) struct Run {
    /// Files that say which figures to take
    #[arg(required = true, value_name = "SCENARIO")]
    scenarios: Vec<PathBuf>,
    /// Where the results are kept, as JSON
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Rounds of each figure
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Only figures whose name has this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

impl Run {
    /// Runs it.
    pub(super) fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let environment = RunEnvironment::now();
        let scenarios: Vec<Scenario> =
            self.scenarios.iter().map(|path| Scenario::read(path)).collect::<Result<_, _>>()?;
        let is_wanted = |figure: &ScenarioFigure| {
            self.only.as_ref().is_none_or(|part| figure.name.to_lowercase().contains(&part.to_lowercase()))
        };
        let count =
            scenarios.iter().flat_map(|scenario| &scenario.figures).filter(|it| is_wanted(it)).count();
        if count == 0 {
            return Err(CommandFailure::usage("no figure is of that name; see the scenario's file"));
        }
        // It fails before minutes of measuring, not behind them.
        if let Some(path) = &self.output {
            write(path, "")?;
        }
        let bar = progress(count, out);
        let mut results = BenchResults {
            schema: SCHEMA,
            environment: serde_json::to_value(&environment).map_err(CommandFailure::run)?,
            ..BenchResults::default()
        };
        for scenario in &scenarios {
            bar.suspend(|| {
                out.line(wrapped(&format!("{}: ", scenario.name), &scenario.about, columns().min(120)))?;
                out.flush()
            })?;
            let mut server: Option<Result<ScenarioRun, CommandFailure>> = None;
            for figure in scenario.figures.iter().filter(|figure| is_wanted(figure)) {
                bar.set_message(figure.name.clone());
                bar.tick();
                let url = match &scenario.server {
                    Some(config) if figure.server => {
                        let server = server.get_or_insert_with(|| ScenarioRun::start(config));
                        server.as_ref().map(|server| Some(server.url(config))).map_err(ToString::to_string)
                    }
                    _ => Ok(None),
                };
                let mut taken = url.and_then(|url| self.take(figure, url));
                if let Some(least) = figure.memory_share {
                    // It polls without a pause: on the same cores it would slow the other.
                    server = None;
                    taken = taken.and_then(|points| self.take_beside_memory(figure, points, least));
                }
                let (points, error) = match taken {
                    Ok(points) => (points, None),
                    Err(error) => (Vec::new(), Some(error)),
                };
                let (scenario, name) = (scenario.name.clone(), figure.name.clone());
                let found = BenchFigure { scenario, name, points, error };
                bar.suspend(|| tell(&found, out))?;
                bar.inc(1);
                results.figures.push(found);
                // After each, so that a run that is interrupted leaves what it took.
                if let Some(path) = &self.output {
                    let text = serde_json::to_string(&results).map_err(CommandFailure::run)?;
                    write(path, &(text + "\n"))?;
                }
            }
        }
        bar.finish_and_clear();
        if let Some(path) = &self.output {
            out.line(format_args!("results    {}", path.display()))?;
        }
        out.object(&results)?;
        match results.figures.iter().filter(|figure| figure.error.is_some()).count() {
            0 => Ok(()),
            failed => {
                Err(CommandFailure::run(format_args!("{failed} of {count} figures could not be taken")))
            }
        }
    }

    /// Takes one figure: the objects of `stag perf`, or why there are none.
    fn take(&self, figure: &ScenarioFigure, url: Option<String>) -> Result<Vec<Value>, String> {
        let mut words = figure.perf.split_ascii_whitespace().map(str::to_owned);
        let operation = words.next();
        let rounds = ["--repeat".to_owned(), self.repeat.to_string()];
        let wanted = figure.require.iter().flat_map(|wanted| ["--require".to_owned(), wanted.clone()]);
        take(operation.into_iter().chain(url).chain(words).chain(rounds).chain(wanted))
    }

    /// Takes a figure of files in memory, and says beside each of these points what share of that it has.
    fn take_beside_memory(
        &self,
        figure: &ScenarioFigure,
        mut points: Vec<Value>,
        least: f64,
    ) -> Result<Vec<Value>, String> {
        for (point, in_memory) in points.iter_mut().zip(self.take(figure, None)?) {
            point["requirements"] = json!([memory_share(point, &in_memory, least)]);
        }
        Ok(points)
    }
}

/// Whether the rate of a figure is a large enough share of that of files in memory: as `stag perf` says it of a requirement.
fn memory_share(point: &Value, in_memory: &Value, least: f64) -> Value {
    let rate = |point: &Value| point["calls_per_second"]["median"].as_f64().unwrap_or_default();
    let found = rate(point) / rate(in_memory);
    let is_disturbed = point["disturbed"] == true || in_memory["disturbed"] == true;
    let reason = is_disturbed.then_some(DISTURBED);
    json!({
        "wanted": format!("rate/mem>={least}"),
        "found": found,
        "text": format!("{found:.3}"),
        "met": reason.is_none().then_some(found >= least),
        "reason": reason,
    })
}

/// Runs `stag perf` with these arguments: its objects, or why there are none.
pub(super) fn take(words: impl Iterator<Item = String>) -> Result<Vec<Value>, String> {
    let own = env::current_exe().map_err(|error| format!("this program's path: {error}"))?;
    let output = Command::new(own).args(["--json", "perf"]).args(words).output();
    let output = output.map_err(|error| format!("stag perf does not start: {error}"))?;
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let points: Vec<Value> = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    // Status 1 is a missed requirement, too: what counts is whether there are figures.
    match points.iter().all(|point| point["calls"].as_u64().is_some_and(|calls| calls > 0)) {
        true if !points.is_empty() => Ok(points),
        _ => {
            let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
            let last = complaint.lines().last().unwrap_or("it said nothing").to_owned();
            // With --json its complaints are objects.
            let object: Value = serde_json::from_str(&last).unwrap_or_default();
            Err(object["message"].as_str().map_or(last, str::to_owned))
        }
    }
}

/// The server of a scenario while its figures are taken, and its folder.
struct ScenarioRun {
    server: Server,
    // Removed behind the server.
    _folder: Folder,
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl ScenarioRun {
    fn start(config: &ScenarioServer) -> Result<ScenarioRun, CommandFailure> {
        let name = format!("stag-bench-{}", std::process::id());
        let folder = Folder(config.directory.join(&name));
        let fail =
            |error: std::io::Error| CommandFailure::run(format_args!("{}: {error}", folder.0.display()));
        for inner in ["data", "state"] {
            fs::create_dir_all(folder.0.join(inner)).map_err(fail)?;
        }
        let data = folder.0.join("data").display().to_string();
        let server = Server::start(&ServerConfig {
            url: format!("shm://{name}"),
            export: config.export.replace("{directory}", &data),
            memory: config.memory.0,
            cores: Vec::new(),
            poll: Poll::Busy,
            state_dir: Some(folder.0.join("state")),
        })?;
        Ok(ScenarioRun { server, _folder: folder })
    }

    fn url(&self, config: &ScenarioServer) -> String {
        format!("{}{}", self.server.ready["url"].as_str().unwrap_or_default(), config.path)
    }
}

/// Says what was found: what was required of it, or its rate and median.
fn tell(figure: &BenchFigure, out: &mut Output) -> Result<(), CommandFailure> {
    let name = &figure.name;
    if let Some(error) = &figure.error {
        out.line(Colour::Red.of(&wrapped(&format!("{name:<38} "), &format!("FAILED: {error}"), columns())))?;
        return out.flush();
    }
    for point in &figure.points {
        let at = super::results::point_name(&figure.points, point);
        let name = if at.is_empty() { name.clone() } else { format!("{name}, {at}") };
        let text = verdict(point);
        let colour = match text.split_once(' ') {
            Some(("met", _)) => Some(Colour::Green),
            Some(("MISSED", _)) => Some(Colour::Red),
            Some(("not", _)) => Some(Colour::Yellow),
            _ => None,
        };
        let line = wrapped(&format!("{name:<38} "), &text, columns());
        out.line(colour.map_or(line.clone(), |colour| colour.of(&line)))?;
    }
    out.flush()
}

/// What one point came to, in a line.
pub(super) fn verdict(point: &Value) -> String {
    let is_disturbed = point["disturbed"] == true;
    match &point["requirements"][0] {
        Value::Null => {
            let rate = point["calls_per_second"]["median"].as_f64().unwrap_or_default();
            let p50 = point["latency_ns"]["p50"]["median"].as_f64();
            let p50 = p50.map_or("-".to_owned(), |p50| format!("{:.1} us", p50 / 1e3));
            let note = if is_disturbed { "; disturbed" } else { "" };
            format!("{}, p50 {p50}{note}", crate::commands::perf::rate(rate))
        }
        wanted => {
            let text = |name: &str| wanted[name].as_str().unwrap_or_default().to_owned();
            let word = match wanted["met"].as_bool() {
                Some(true) => "met",
                Some(false) if wanted["found"].is_null() => "not measured",
                Some(false) => "MISSED",
                None => "not measured",
            };
            let reason = wanted["reason"].as_str().map_or(String::new(), |reason| format!(", but {reason}"));
            let found = if wanted["found"].is_null() { "" } else { " found" };
            format!("{word:<12} {}: {}{found}{reason}", text("wanted"), text("text"))
        }
    }
}

fn write(path: &Path, text: &str) -> Result<(), CommandFailure> {
    fs::write(path, text).map_err(|error| CommandFailure::run(format_args!("{}: {error}", path.display())))
}

/// A bar for the figures on a terminal, nothing elsewhere.
fn progress(count: usize, out: &Output) -> ProgressBar {
    if !std::io::stderr().is_terminal() || out.json() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(count as u64);
    bar.set_style(time_left::style("figure {pos}/{len} {wide_bar} {msg}{left}", 0, None));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_rate_in_memory_is_a_requirement() {
        let point = |rate: f64, disturbed: bool| json!({"calls_per_second": {"median": rate}, "disturbed": disturbed});
        let verdict_of = |found: (f64, bool), in_memory: (f64, bool)| {
            let mut found = point(found.0, found.1);
            let share = memory_share(&found, &point(in_memory.0, in_memory.1), 0.3);
            found["requirements"] = json!([share]);
            verdict(&found)
        };
        assert_eq!(verdict_of((35.0, false), (100.0, false)), "met          rate/mem>=0.3: 0.350 found");
        assert_eq!(verdict_of((20.0, false), (100.0, false)), "MISSED       rate/mem>=0.3: 0.200 found");
        for (one, other) in [(true, false), (false, true)] {
            let said = verdict_of((35.0, one), (100.0, other));
            assert!(
                said.starts_with("not measured rate/mem>=0.3: 0.350 found, but other programs ran"),
                "{said}"
            );
        }
    }
}
