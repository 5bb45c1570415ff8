//! Why a command fails, and its exit status.

use std::fmt;
use std::io;
use std::process::ExitCode;

use crate::logging::tell;

/// Why a command ends. Its text is one line that names the thing, the value found, the limit and the
/// repair, as far as there are such.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandFailure {
    /// A flag, an argument or the configuration is wrong: status 2, before anything was done.
    Usage(String),
    /// It went wrong while running: status 1.
    Run(String),
    /// It could not begin, where status 1 says something else (`stag conform`): status 2.
    NotBegun(String),
    /// A signal ended it: status 128 and the signal's number, as shells say it.
    Signal(i32, String),
    /// All is said already: status 1.
    Told,
    /// All is said already, and it is more than warnings: status 3 (`stag doctor`).
    ToldErrors,
    /// The reader of our output is gone (`stag ls … | head`): status 0, in silence.
    OutputClosed,
}

impl CommandFailure {
    /// A [`CommandFailure::Run`].
    pub fn run(text: impl fmt::Display) -> CommandFailure {
        CommandFailure::Run(one_line(&text.to_string()))
    }

    /// A [`CommandFailure::NotBegun`].
    pub fn not_begun(text: impl fmt::Display) -> CommandFailure {
        CommandFailure::NotBegun(one_line(&text.to_string()))
    }

    /// Whatever it is, it was before the command began its work.
    #[must_use]
    pub fn before_begin(self) -> CommandFailure {
        match self {
            CommandFailure::Run(text) => CommandFailure::NotBegun(text),
            other => other,
        }
    }

    /// A [`CommandFailure::Usage`].
    pub fn usage(text: impl fmt::Display) -> CommandFailure {
        CommandFailure::Usage(one_line(&text.to_string()))
    }

    /// Puts a text behind it.
    #[must_use]
    pub fn with(self, behind: &str) -> CommandFailure {
        match self {
            CommandFailure::Run(text) => CommandFailure::Run(text + behind),
            other => other,
        }
    }

    /// What failed on writing to standard output.
    #[must_use]
    pub fn output(error: &io::Error) -> CommandFailure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => CommandFailure::OutputClosed,
            _ => CommandFailure::Run(format!("standard output: {error}")),
        }
    }

    /// Turns a closed output into success: a server goes on without it.
    pub fn unless_output_closed(result: Result<(), CommandFailure>) -> Result<(), CommandFailure> {
        match result {
            Err(CommandFailure::OutputClosed) => Ok(()),
            result => result,
        }
    }

    /// Puts the name of the thing before the text.
    #[must_use]
    pub fn of(self, thing: impl fmt::Display) -> CommandFailure {
        match self {
            CommandFailure::Usage(text) => CommandFailure::Usage(format!("{thing}: {text}")),
            CommandFailure::Run(text) => CommandFailure::Run(format!("{thing}: {text}")),
            CommandFailure::NotBegun(text) => CommandFailure::NotBegun(format!("{thing}: {text}")),
            CommandFailure::Signal(signal, text) => {
                CommandFailure::Signal(signal, format!("{thing}: {text}"))
            }
            told => told,
        }
    }

    /// Prints the line, or with `--json` an object, and gives the exit status.
    #[must_use]
    pub fn report(&self, program: &str, is_json: bool) -> ExitCode {
        let (status, text) = match self {
            CommandFailure::Usage(text) | CommandFailure::NotBegun(text) => (2, text),
            CommandFailure::Run(text) => (1, text),
            CommandFailure::Signal(signal, text) => (128_u8.saturating_add(*signal as u8), text),
            CommandFailure::Told => return ExitCode::from(1),
            CommandFailure::ToldErrors => return ExitCode::from(3),
            CommandFailure::OutputClosed => return ExitCode::SUCCESS,
        };
        say(program, text, is_json);
        ExitCode::from(status)
    }

    /// Prints the line of a failure that ends nothing.
    pub fn tell(&self, program: &str, is_json: bool) {
        say(program, &self.to_string(), is_json);
    }
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommandFailure::Usage(text)
            | CommandFailure::Run(text)
            | CommandFailure::NotBegun(text)
            | CommandFailure::Signal(_, text) => f.write_str(text),
            CommandFailure::Told | CommandFailure::ToldErrors => f.write_str("failed"),
            CommandFailure::OutputClosed => f.write_str("standard output was closed"),
        }
    }
}

/// A complaint on standard error: a line, or with `--json` an object.
pub fn say(program: &str, text: &str, is_json: bool) {
    if is_json {
        let object = serde_json::json!({ "event": "error", "program": program, "error": text });
        tell(&object.to_string());
    } else {
        tell(&format!("{program}: {text}"));
    }
}

/// Folds white space, so that any text is one line.
#[must_use]
pub fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
