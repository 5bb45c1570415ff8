//! `stag perf`: how fast Calls are between pinned cores, as ratios to the limits of the same cores.
//!
//! | file | subject |
//! |---|---|
//! | `flags` | the flags, as they were typed |
//! | `plan` | the flags checked, and every gap filled |
//! | `load` | which Calls: `--mix`, `--offsets`, `--working-set`, `--files`; by which clock: `--rate` |
//! | `curve` | `--all` and `--curve`: the points of a table |
//! | `room` | whether the machine has room for it: memory, descriptors, mappings |
//! | `numbers` | times and counts, as the flags take them |
//! | `requirement` | `--require 'p99<20us'` |
//! | `paired` | `--paired`: a client and a server on each core, taking turns |
//! | `progress` | how far the rounds of a point are |
//! | `notes` | conditions that spoil the figures, each reported once |
//! | `environment` | where, when and of which build a figure is |
//! | `report` | the results for people |
//! | `object` | the results for programs: `--json` |
//! | `server_time` | `--socket`: the processor time of a `stagd` that runs |
//! | `files` | `--histogram` and `--csv` |

mod curve;
pub(crate) mod environment;
mod files;
mod flags;
mod load;
mod notes;
mod numbers;
mod object;
mod paired;
mod plan;
mod progress;
mod report;
mod requirement;
mod room;
mod server_time;

use stag_bench::MeasurementProgress;
use stag_server::failure::CommandFailure;
use stag_server::output::Output;

use self::environment::RunEnvironment;
use self::files::ResultFiles;
pub use self::flags::Perf;
pub(crate) use self::numbers::Span;
use self::plan::Plan;
use self::progress::progress;
pub(crate) use self::requirement::{DISTURBED, rate};
use self::server_time::ServerTime;

impl Perf {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let environment = RunEnvironment::now();
        let plan = Plan::new(self)?;
        if self.paired {
            return paired::run(&plan, &environment, out);
        }
        let mut files = ResultFiles::planned(self.histogram.as_deref(), self.csv.as_deref())?;
        report::chosen(&plan, out)?;
        let mut missed = Vec::new();
        let mut empty = Vec::new();
        let (mut leaked, mut disturbed) = (0, false);
        for (index, scenario) in plan.scenarios.iter().enumerate() {
            let bar = progress(&plan, index, out);
            let mut told = Ok(());
            let before = self.socket.as_ref().map(ServerTime::ask).transpose()?;
            let figures = stag_bench::run(scenario, &mut |progress| match progress {
                MeasurementProgress::Round => bar.inc(1),
                MeasurementProgress::Interval(interval) => bar.suspend(|| {
                    let line = report::interval(scenario, interval, out);
                    told = std::mem::replace(&mut told, Ok(())).and(line);
                }),
            });
            bar.finish_and_clear();
            told?;
            // `{:#}`: what failed, and why, on one line.
            let mut figures = figures.map_err(|error| CommandFailure::run(format_args!("{error:#}")))?;
            if let (Some(before), Some(socket)) = (before, &self.socket) {
                ServerTime::ask(socket)?.add_since(before, &mut figures.cpu);
            }
            let found: Vec<_> = self.require.iter().map(|wanted| wanted.verdict(&figures)).collect();
            disturbed |= figures.disturbance.disturbed;
            report::measured(&plan, index, &figures, &found, disturbed, out)?;
            out.object(&object::object(&plan, index, &figures, &found, &environment))?;
            out.flush()?;
            files.add(&figures)?;
            let at = plan.along.label(scenario).map_or(String::new(), |label| format!("at {label}: "));
            let failed = found.iter().filter(|verdict| verdict.met != Some(true));
            missed.extend(failed.map(|verdict| format!("{at}--require {verdict}")));
            if figures.latency_ns.is_none() {
                empty.extend(requirement::too_short(&figures).map(|problem| at + &problem));
            }
            leaked += figures.buffers_leaked;
        }
        files.finish()?;
        if leaked > 0 {
            return Err(CommandFailure::run(format_args!("the server did not get {leaked} buffers back")));
        }
        if !missed.is_empty() {
            return Err(CommandFailure::run(missed.join("; ")));
        }
        if !empty.is_empty() {
            return Err(CommandFailure::run(empty.join("; ")));
        }
        Ok(())
    }
}
