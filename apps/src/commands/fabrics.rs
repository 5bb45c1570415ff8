//! `stag fabrics`: the fabrics that work on this machine, and why the others do not.

use std::fs;

use clap::Args;
use serde::Serialize;
use stag_fabric::VerbsConfig;
use stag_fabric::verbs::{Survey, survey};
use stag_memory::{Arena, ArenaConfig, Budget, PageChoice};
use stag_server::failure::CommandFailure;
use stag_server::options;
use stag_server::output::Output;
use stag_server::url::FabricName;
use stag_server::values::Time;
use stag_server::wrapped::{columns, wrapped};

mod verbs;

/// Shows which fabrics work here, and why the others do not
#[derive(Debug, Args)]
#[command(after_help = "Examples: stag fabrics\n          stag fabrics --json")]
pub struct Fabrics {}

/// What is found out about a fabric; the object of `--json`.
#[derive(Serialize)]
struct Finding {
    /// The scheme of its URLs.
    fabric: &'static str,
    /// Whether it can be used now.
    works: bool,
    /// What it stands on, or why it does not work.
    detail: String,
    /// What could be better.
    notes: Vec<String>,
    /// The RDMA devices, of verbs.
    #[serde(skip_serializing_if = "Option::is_none")]
    devices: Option<Vec<serde_json::Value>>,
}

impl Fabrics {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        for fabric in FabricName::ALL {
            let mut survey = None;
            let (works, detail, notes) = match fabric {
                FabricName::Shm => shm(),
                FabricName::Iwarp => iwarp(),
                FabricName::Verbs => verbs(survey.insert(survey_devices())),
            };
            let devices = survey.as_ref().map(verbs::objects);
            let finding = Finding { fabric: fabric.name(), works, detail, notes, devices };
            out.object(&finding)?;
            let verdict = if works { "works" } else { "does not work" };
            let indent = format!("{:<6} {verdict:<14} ", finding.fabric);
            out.line(wrapped(&indent, &finding.detail, columns()))?;
            for note in &finding.notes {
                out.line(wrapped(&format!("{:<6} {:<14} ", "", ""), note, columns()))?;
            }
            for line in survey.iter().flat_map(verbs::lines) {
                out.line(wrapped("  ", &line, columns()))?;
            }
        }
        Ok(())
    }
}

/// Tries what shm needs: memory that another process can map.
fn shm() -> (bool, String, Vec<String>) {
    /// One large page: enough to see which pages there are.
    const TRIAL_LEN: usize = 2 << 20;
    let config = ArenaConfig {
        name: "stag-fabrics",
        len: TRIAL_LEN,
        page: PageChoice::Auto,
        node: None,
        budget: &Budget::new(1 << 31),
    };
    match Arena::new(&config) {
        Ok(arena) => (true, format!("memfd on {}", arena.page_size()), arena.notes().to_vec()),
        Err(error) => (false, error.to_string(), Vec::new()),
    }
}

/// Connects to itself, and makes a Call.
fn iwarp() -> (bool, String, Vec<String>) {
    match stag_bench::loopback::check() {
        Ok(time) => {
            let congestion =
                fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
            let congestion = congestion.trim();
            let note = "TCP's congestion control is bbr, which paces even the loopback; --congestion-control reno is faster";
            let notes = if congestion == "bbr" { vec![note.to_owned()] } else { Vec::new() };
            (true, format!("over TCP ({congestion}); a Call to itself took {}", Time(time)), notes)
        }
        Err(error) => (false, format!("no Call over the loopback: {error}"), Vec::new()),
    }
}

/// Looks at the RDMA devices, as the options would have them opened, and as `stagd` polls them.
fn survey_devices() -> Survey {
    let options = options::get();
    survey(&VerbsConfig {
        device: options.device,
        exposure: options.exposure,
        may_sleep: true,
        ..VerbsConfig::default()
    })
}

/// Whether one of them can be used, and which.
fn verbs(survey: &Survey) -> (bool, String, Vec<String>) {
    match (survey.problem(), &survey.chosen) {
        (None, Some(device)) => (true, format!("on the RDMA device {device}"), Vec::new()),
        (problem, _) => (false, problem.unwrap_or_default(), Vec::new()),
    }
}
