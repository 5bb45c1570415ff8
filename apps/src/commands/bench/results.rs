//! What is kept of a run, and how it is read again.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stag_server::failure::CommandFailure;
use stag_server::values::Size;

use super::peer_row::{MissingProgram, PeerRow};
use crate::commands::perf::rate;

/// The version of [`BenchResults`].
pub(super) const SCHEMA: u32 = 1;

/// The results of one run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct BenchResults {
    /// [`SCHEMA`] of the program that wrote it.
    pub(super) schema: u32,
    /// Where, when and of which build.
    pub(super) environment: Value,
    /// The figures, in the order in which they were taken.
    pub(super) figures: Vec<BenchFigure>,
    /// Of `stag bench peers`: its rows, and the programs that were not there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) peers: Vec<PeerRow>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) missing: Vec<MissingProgram>,
}

/// One figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct BenchFigure {
    /// The scenario that it is of.
    pub(super) scenario: String,
    /// Its name.
    pub(super) name: String,
    /// The objects of `stag perf --json`: one, or one for each point of a curve. Empty if it failed.
    pub(super) points: Vec<Value>,
    /// Why it failed.
    pub(super) error: Option<String>,
}

/// A median with the extremes of its rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Range {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    /// Rounds.
    pub(super) count: u64,
}

impl Range {
    /// Reads a spread of `stag perf --json`; `None` if it was not measured.
    pub(super) fn of(value: &Value) -> Option<Range> {
        let number = |name: &str| value[name].as_f64();
        let count = value["count"].as_u64().filter(|count| *count > 0)?;
        Some(Range { median: number("median")?, min: number("min")?, max: number("max")?, count })
    }
}

impl BenchResults {
    /// Reads a file of results, or all `*.json` of a folder as one.
    pub(super) fn read(path: &Path) -> Result<BenchResults, CommandFailure> {
        let refuse = |path: &Path, problem: &dyn std::fmt::Display| {
            CommandFailure::usage(format_args!("{}: {problem}", path.display()))
        };
        let files = if path.is_dir() {
            files(path).map_err(|error| refuse(path, &error))?
        } else {
            vec![path.to_owned()]
        };
        let mut all: Option<BenchResults> = None;
        for file in &files {
            let text = fs::read_to_string(file).map_err(|error| refuse(file, &error))?;
            let found: BenchResults = serde_json::from_str(&text).map_err(|error| {
                refuse(file, &format_args!("these are no results of stag bench run: {error}"))
            })?;
            if found.schema != SCHEMA {
                return Err(refuse(
                    file,
                    &format_args!("results of version {}, this stag reads {SCHEMA}", found.schema),
                ));
            }
            match &mut all {
                None => all = Some(found),
                Some(all) => {
                    all.figures.extend(found.figures);
                    all.peers.extend(found.peers);
                    all.missing.extend(found.missing);
                }
            }
        }
        all.ok_or_else(|| refuse(path, &"no *.json is in it; stag bench run writes some"))
    }

    /// A short name: the commit, and the day.
    pub(super) fn label(&self) -> String {
        let text = |name: &str| self.environment[name].as_str().unwrap_or("unknown").to_owned();
        let (commit, time) = (text("commit"), text("time"));
        format!("{commit}, {}", time.get(..16).unwrap_or(&time).replace('T', " "))
    }
}

/// The `*.json` of a folder, in the order of their names.
fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "json") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// What distinguishes the points of one figure: `4 KiB`, `depth 32`, `100.0 k/s asked`; empty of one.
pub(super) fn point_name(points: &[Value], point: &Value) -> String {
    type Key = (fn(f64) -> String, fn(&Value) -> &Value);
    let keys: [Key; 3] = [
        (|size| Size(size as u64).to_string(), |point| &point["size"]),
        (|depth| format!("depth {depth}"), |point| &point["depth"]),
        (|asked| format!("{} asked", rate(asked)), |point| &point["open_loop"]["rate"]),
    ];
    let differs = |of: &fn(&Value) -> &Value| points.iter().any(|other| of(other) != of(&points[0]));
    let parts: Vec<String> = keys
        .iter()
        .filter(|(_, of)| differs(of))
        .map(|(name, of)| name(of(point).as_f64().unwrap_or_default()))
        .collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn points_are_named_by_what_differs() {
        let point = |depth: u32, rate: Option<f64>| json!({"size": 4096, "depth": depth, "open_loop": rate.map(|rate| json!({"rate": rate}))});
        let points = [point(1, None), point(32, None)];
        assert_eq!(point_name(&points, &points[1]), "depth 32");
        assert_eq!(point_name(&points[..1], &points[0]), "");
        let points = [point(64, Some(1e3)), point(64, Some(1e4))];
        assert_eq!(point_name(&points, &points[1]), "10.0 k/s asked");
    }

    #[test]
    fn what_was_not_measured_has_no_range() {
        assert_eq!(Range::of(&Value::Null), None);
        assert_eq!(Range::of(&json!({"median": 0.0, "min": 0.0, "max": 0.0, "count": 0})), None);
        let found = Range::of(&json!({"median": 2.0, "min": 1.0, "max": 4.0, "count": 3}));
        assert_eq!(found, Some(Range { median: 2.0, min: 1.0, max: 4.0, count: 3 }));
    }
}
