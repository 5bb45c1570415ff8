//! Lines for people, objects for programs.

use std::fmt;
use std::io::{self, BufWriter, Stdout, Write};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde::Serialize;

use crate::failure::CommandFailure;
use crate::logging::wants_colours;

/// Colours of what is good, doubtful and bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Good.
    Green,
    /// Doubtful.
    Yellow,
    /// Bad.
    Red,
}

impl Colour {
    /// The text in this colour, if standard output uses colours.
    #[must_use]
    pub fn of(self, text: &str) -> String {
        let number = match self {
            _ if !wants_colours(&io::stdout()) => return text.to_owned(),
            Colour::Green => 32,
            Colour::Yellow => 33,
            Colour::Red => 31,
        };
        format!("\x1b[{number}m{text}\x1b[0m")
    }
}

/// Runs `tell`, which writes to standard output, on a thread of its own, and waits for at most `patience`. `None`: the reader has
/// not read by then, or the process has no thread left. Until it reads, nothing more can be written there.
pub fn within<T: Send + 'static>(patience: Duration, tell: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, told) = mpsc::channel();
    let thread = thread::Builder::new().name("last words".to_owned());
    // It is not joined: it ends with the process. The receiver may be gone when it sends.
    thread.spawn(move || drop(sender.send(tell()))).ok()?;
    told.recv_timeout(patience).ok()
}

/// Standard output. Either lines, or with `--json` one JSON object a line.
pub struct Output {
    json: bool,
    out: BufWriter<Stdout>,
}

impl Output {
    /// Standard output, for people or for programs.
    #[must_use]
    pub fn new(json: bool) -> Output {
        Output { json, out: BufWriter::new(io::stdout()) }
    }

    /// Whether objects are wanted.
    #[must_use]
    pub fn json(&self) -> bool {
        self.json
    }

    /// Writes a line. Nothing with `--json`.
    pub fn line(&mut self, line: impl fmt::Display) -> Result<(), CommandFailure> {
        if self.json {
            return Ok(());
        }
        writeln!(self.out, "{line}").map_err(|error| CommandFailure::output(&error))
    }

    /// Writes a line, with `--json` too: help is for people.
    pub fn text(&mut self, line: impl fmt::Display) -> Result<(), CommandFailure> {
        writeln!(self.out, "{line}").map_err(|error| CommandFailure::output(&error))
    }

    /// Writes an object, as one line. Nothing without `--json`.
    pub fn object(&mut self, object: &impl Serialize) -> Result<(), CommandFailure> {
        if !self.json {
            return Ok(());
        }
        let text = serde_json::to_string(object).map_err(CommandFailure::run)?;
        writeln!(self.out, "{text}").map_err(|error| CommandFailure::output(&error))
    }

    /// Tells a failure on standard error, of a command that goes on.
    pub fn complain(&self, failure: &CommandFailure) {
        failure.tell("stag", self.json);
    }

    /// Writes bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), CommandFailure> {
        self.out.write_all(bytes).map_err(|error| CommandFailure::output(&error))
    }

    /// Sends off what is buffered, so that a reader that waits for a line gets it.
    pub fn flush(&mut self) -> Result<(), CommandFailure> {
        self.out.flush().map_err(|error| CommandFailure::output(&error))
    }
}
