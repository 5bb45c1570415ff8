//! Progress: a bar on a terminal, plain lines elsewhere, nothing with `--json`.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::failure::Failure;
use crate::output::Output;
use crate::values::{Size, Time};

/// The progress of one step.
pub(super) struct Progress {
    name: &'static str,
    bar: ProgressBar,
    /// Files done.
    pub(super) files: u64,
    /// Octets done.
    pub(super) bytes: u64,
}

impl Progress {
    /// A step that goes through so many files and octets.
    #[must_use]
    pub(super) fn new(name: &'static str, files: u64, bytes: u64, out: &Output) -> Progress {
        let bar = if std::io::stderr().is_terminal() && !out.json() {
            ProgressBar::new(bytes.max(1))
        } else {
            ProgressBar::hidden()
        };
        let template = "{msg:<20} {bar:24} {bytes}/{total_bytes} {bytes_per_sec}, ETA {eta}";
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(format!("{name} 0/{files}"));
        Progress { name, bar, files: 0, bytes: 0 }
    }

    /// The step's name.
    #[must_use]
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// One more file, of so many octets; of a large one, the last of them.
    pub(super) fn file(&mut self, bytes: u64) {
        self.files += 1;
        self.more(bytes);
        self.bar.set_message(format!("{} {}", self.name, self.files));
    }

    /// So many octets of a file that is not done yet.
    pub(super) fn more(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.bar.set_position(self.bytes);
    }

    /// The step is done: a line says so.
    pub(super) fn finish(self, elapsed: Duration, out: &mut Output) -> Result<(), Failure> {
        self.bar.finish_and_clear();
        let Progress { name, files, bytes, .. } = self;
        let mut line = format!("{name:<10} {files:>7} files");
        if bytes > 0 {
            line = format!("{line} {:>10} {:>8}", Size(bytes).to_string(), gigabytes(bytes, elapsed));
        } else {
            line = format!("{line} {:>10} {:>8}", "", "");
        }
        out.line(format_args!("{line}  in {}", Time(elapsed)))?;
        out.flush()
    }
}

/// A rate for people.
#[must_use]
pub(super) fn gigabytes(bytes: u64, elapsed: Duration) -> String {
    format!("{:.2} GB/s", bytes as f64 / 1e9 / elapsed.as_secs_f64().max(1e-9))
}
