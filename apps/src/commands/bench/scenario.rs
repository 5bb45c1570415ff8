//! Scenarios: which figures to take, as files of `bench/scenarios`.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use stag_server::failure::CommandFailure;
use stag_server::values::Size;

/// A scenario file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scenario {
    /// What it measures, in a sentence.
    pub(super) about: String,
    /// A `stagd` that is started for the figures that want it.
    pub(super) server: Option<ScenarioServer>,
    /// The figures, in the order in which they are taken.
    #[serde(rename = "figure")]
    pub(super) figures: Vec<ScenarioFigure>,
    /// The file's name without its ending.
    #[serde(skip)]
    pub(super) name: String,
}

/// The `stagd` of a scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScenarioServer {
    /// As `stagd --export` takes it; `{directory}` is a folder made for the time of the run.
    pub(super) export: String,
    /// The path of the export in URLs.
    pub(super) path: String,
    /// Where the folder is made.
    pub(super) directory: PathBuf,
    /// As `stagd --memory`.
    pub(super) memory: Size,
}

/// One figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScenarioFigure {
    /// What it is called in tables. It is compared with figures of the same name.
    pub(super) name: String,
    /// The arguments of `stag perf`, apart by spaces; those of the rounds and of the requirement excepted.
    pub(super) perf: String,
    /// As `stag perf --require`.
    pub(super) require: Option<String>,
    /// The least share of the rate that the same arguments find of `stag perf`'s own server, whose files are in memory. In place
    /// of `require`, for a figure that is taken of the scenario's server: how fast a machine is hardly changes it.
    pub(super) memory_share: Option<f64>,
    /// Whether it is taken of the scenario's server.
    #[serde(default)]
    pub(super) server: bool,
}

impl Scenario {
    /// Reads a scenario.
    pub(super) fn read(path: &Path) -> Result<Scenario, CommandFailure> {
        let refuse = |problem: String| CommandFailure::usage(format_args!("{}: {problem}", path.display()));
        let text = fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Scenario::parse(&text, name).map_err(refuse)
    }

    fn parse(text: &str, name: String) -> Result<Scenario, String> {
        let scenario: Scenario = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            format!("line {line}: {}", error.message())
        })?;
        for (index, figure) in scenario.figures.iter().enumerate() {
            let ScenarioFigure { name, perf, require, memory_share, server } = figure;
            if perf.split_ascii_whitespace().next().is_none() {
                return Err(format!("figure {name:?}: perf is empty; write the arguments of stag perf"));
            }
            if *server && scenario.server.is_none() {
                return Err(format!("figure {name:?}: it wants a server, and there is no [server]"));
            }
            if memory_share.is_some() && (!server || require.is_some()) {
                return Err(format!(
                    "figure {name:?}: memory_share stands in place of require, and wants server = true"
                ));
            }
            if scenario.figures[..index].iter().any(|other| other.name == *name) {
                return Err(format!("figure {name:?}: another one has this name"));
            }
        }
        Ok(Scenario { name, ..scenario })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_says_what_is_wrong_with_it() {
        let good = "about = 'a'\n[[figure]]\nname = 'n'\nperf = 'null -q 1'\nrequire = 'rate>1'\n";
        let found = Scenario::parse(good, "good".to_owned()).unwrap();
        assert_eq!((&found.name[..], found.figures.len(), found.figures[0].server), ("good", 1, false));
        for (text, part) in [
            ("about = 'a'\nfigure = 3\n", "line 2: "),
            ("about = 'a'\n[[figure]]\nname = 'n'\nperf = ''\n", "perf is empty"),
            ("about = 'a'\n[[figure]]\nname = 'n'\nperf = 'null'\nserver = true\n", "there is no [server]"),
            ("about = 'a'\n[[figure]]\nname = 'n'\nprf = 'null'\n", "unknown field `prf`"),
            (
                "about = 'a'\n[[figure]]\nname = 'n'\nperf = 'null'\nmemory_share = 0.5\n",
                "wants server = true",
            ),
        ] {
            let error = Scenario::parse(text, "bad".to_owned()).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        let twice = format!("{good}[[figure]]\nname = 'n'\nperf = 'null'\n");
        assert!(Scenario::parse(&twice, "bad".to_owned()).unwrap_err().contains("another one has this name"));
    }
}
