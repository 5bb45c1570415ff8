//! `stag generate`: manual pages and completions of both programs, made from their flags. For packages.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Arg, Args, Command};
use clap_complete::{Shell, generate_to};
use clap_mangen::Man;
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::stagd;

/// Writes manual pages and shell completions of stag and stagd
#[derive(Debug, Args)]
#[command(after_help = "Examples: stag generate /tmp/stag\n          man /tmp/stag/stagd.8")]
pub struct Generate {
    /// Where to; it is made if it is not there
    directory: PathBuf,
}

impl Generate {
    /// Runs it, for this command line of `stag`.
    pub fn run(&self, stag: Command, out: &mut Output) -> Result<(), CommandFailure> {
        let directory = &self.directory;
        let write = move || -> io::Result<()> {
            fs::create_dir_all(directory)?;
            for (command, section) in [(stag, "1"), (stagd::command(), "8")] {
                for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                    generate_to(shell, &mut command.clone(), command.get_name().to_owned(), directory)?;
                }
                let mut command = with_all_options(command);
                if command.get_name() == "stagd" {
                    let help = "mem:/PATH or dir:/PATH[,OPTION...]; see EXPORT OPTIONS";
                    command = command.mut_arg("export", |argument| argument.help(help));
                }
                command.build();
                pages(&command, section, directory)?;
            }
            Ok(())
        };
        write().map_err(|error| CommandFailure::run(format_args!("{}: {error}", directory.display())))?;
        out.line(format_args!("manual pages and completions are in {}", directory.display()))
    }
}

/// Options of programs that start a server as their own part.
const INTERNAL: [&str; 1] = ["until_eof"];

/// Shows the options that `--help` has no room for.
fn with_all_options(command: Command) -> Command {
    let shown = |argument: Arg| {
        let is_internal = INTERNAL.contains(&argument.get_id().as_str());
        argument.hide(is_internal).hide_short_help(false)
    };
    command.mut_args(shown).mut_subcommands(with_all_options)
}

/// What `--export` takes, as a section of a manual page.
fn export_options() -> String {
    let escaped = |text: &str| text.replace('\\', "\\\\").replace('-', "\\-");
    let mut section =
        ".SH \"EXPORT OPTIONS\"\nBehind the path of an \\fB\\-\\-export\\fR, with commas between:\n"
            .to_owned();
    for (syntax, meaning, default) in stagd::export_options() {
        let (syntax, meaning) = (escaped(syntax), escaped(&meaning));
        section += &format!(".TP\n\\fB{syntax}\\fR\n\\&{meaning} [default: {}]\n", escaped(default));
    }
    section
}

/// Writes the pages of a command and of its commands.
fn pages(command: &Command, section: &str, directory: &Path) -> io::Result<()> {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        pages(inner, section, directory)?;
    }
    let page = Man::new(command.clone()).section(section).generate_to(directory)?;
    if command.get_name() == "stagd" {
        OpenOptions::new().append(true).open(page)?.write_all(export_options().as_bytes())?;
    }
    Ok(())
}
