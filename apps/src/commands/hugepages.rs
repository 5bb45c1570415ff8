//! `stag hugepages`.

use clap::{Args, Subcommand};

use crate::failure::Failure;
use crate::output::Output;

/// Shows, reserves and gives back hugepages
#[derive(Debug, Args)]
#[command(
    disable_help_subcommand = true,
    after_help = "Examples: stag hugepages show\n          stag hugepages setup --size 2m --count 512 --apply"
)]
pub struct Hugepages {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Shows the reserved and the free pages of each NUMA node
    Show,
}

impl Hugepages {
    /// Runs it.
    pub fn run(&self, _out: &mut Output) -> Result<(), Failure> {
        match self.action {
            Action::Show => Err(Failure::run("hugepages: not in this version yet")),
        }
    }
}
