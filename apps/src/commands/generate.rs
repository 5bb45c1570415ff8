//! `stag generate`: manual pages and completions of both programs, made from their flags. For packages.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::{Shell, generate_to};
use clap_mangen::Man;

use crate::failure::CommandFailure;
use crate::output::Output;
use crate::{stagd, tool};

/// Writes manual pages and shell completions of stag and stagd
#[derive(Debug, Args)]
#[command(after_help = "Examples: stag generate /tmp/stag\n          man /tmp/stag/stagd.8")]
pub struct Generate {
    /// Where to; it is made if it is not there
    directory: PathBuf,
}

impl Generate {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let directory = &self.directory;
        let write = || -> io::Result<()> {
            fs::create_dir_all(directory)?;
            for (command, section) in [(tool::command(), "1"), (stagd::command(), "8")] {
                for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                    generate_to(shell, &mut command.clone(), command.get_name().to_owned(), directory)?;
                }
                let mut command = with_all_options(command);
                command.build();
                pages(&command, section, directory)?;
            }
            Ok(())
        };
        write().map_err(|error| CommandFailure::run(format_args!("{}: {error}", directory.display())))?;
        out.line(format_args!("manual pages and completions are in {}", directory.display()))
    }
}

/// Shows the options that `--help` has no room for.
fn with_all_options(command: Command) -> Command {
    command.mut_args(|argument| argument.hide(false)).mut_subcommands(with_all_options)
}

/// Writes the pages of a command and of its commands.
fn pages(command: &Command, section: &str, directory: &Path) -> io::Result<()> {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        pages(inner, section, directory)?;
    }
    Man::new(command.clone()).section(section).generate_to(directory).map(drop)
}
