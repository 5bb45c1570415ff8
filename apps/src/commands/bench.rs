//! `stag bench`: whole sets of figures, kept, compared, drawn, and set beside other programs'.
//!
//! | file | subject |
//! |---|---|
//! | `scenario` | files that say which figures to take: `bench/scenarios` |
//! | `results` | what is kept of a run, and how it is read again |
//! | `run` | takes the figures of scenarios, by `stag perf` |
//! | `compare` | two results, figure by figure |
//! | `peers` | other programs on the same cores |
//! | `report` | one page with tables and plots |
//! | `chart` | plots as SVG |

mod chart;
mod compare;
mod peer_row;
mod peers;
mod report;
mod results;
mod run;
mod scenario;

use clap::{Args, Subcommand};

use stag_server::failure::CommandFailure;
use stag_server::output::Output;

/// Takes sets of figures, compares them, and draws them
#[derive(Debug, Args)]
#[command(after_help = "Examples: stag bench run bench/scenarios/shm.toml -o new.json\n          \
                        stag bench compare old.json new.json\n          \
                        stag bench report new.json -o new.html")]
pub struct Bench {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    Compare(compare::Compare),
    Report(report::Report),
    Peers(peers::Peers),
}

impl Bench {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        match &self.command {
            Command::Run(command) => command.run(out),
            Command::Compare(command) => command.run(out),
            Command::Report(command) => command.run(out),
            Command::Peers(command) => command.run(out),
        }
    }
}
