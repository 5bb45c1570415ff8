//! Progress: a bar on a terminal, plain lines elsewhere, nothing with `--json`.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::values::{Rate, Size, Time};

/// The progress of one step.
pub(super) struct Progress {
    name: &'static str,
    bar: ProgressBar,
    files_total: u64,
    bytes_total: u64,
    /// Files done.
    pub(super) files: u64,
    /// Octets done.
    pub(super) bytes: u64,
}

impl Progress {
    /// A step that goes through this number of files and octets.
    #[must_use]
    pub(super) fn new(name: &'static str, files: u64, bytes: u64, out: &Output) -> Progress {
        // Steps that move no data count names.
        let (len, shown) = match bytes {
            0 => (files, "{pos}/{len}, {per_sec}"),
            _ => (bytes, "{bytes}/{total_bytes}, {bytes_per_sec}"),
        };
        let bar = if std::io::stderr().is_terminal() && !out.json() {
            ProgressBar::new(len.max(1))
        } else {
            ProgressBar::hidden()
        };
        let style = ProgressStyle::with_template(&format!("{{msg}} {{wide_bar}} {shown}, ETA {{eta}}"));
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let progress = Progress { name, bar, files_total: files, bytes_total: bytes, files: 0, bytes: 0 };
        progress.show();
        progress
    }

    fn show(&self) {
        let Progress { name, bar, files_total, bytes_total, files, bytes } = self;
        if bar.is_hidden() {
            return;
        }
        if *bytes_total == 0 {
            bar.set_message(*name);
            bar.set_position(*files);
        } else {
            bar.set_message(format!("{name} {files}/{files_total}"));
            bar.set_position(*bytes);
        }
    }

    /// The step's name.
    #[must_use]
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// One more file, of `bytes` octets; of a large one, the last of them.
    pub(super) fn file(&mut self, bytes: u64) {
        self.files += 1;
        self.more(bytes);
    }

    /// This number of octets of a file that is not done yet.
    pub(super) fn more(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.show();
    }

    /// The step is done: a line says so.
    pub(super) fn finish(self, elapsed: Duration, out: &mut Output) -> Result<(), CommandFailure> {
        self.bar.finish_and_clear();
        let Progress { name, files, bytes, .. } = self;
        let mut line = format!("{name:<10} {files:>7} files");
        if bytes > 0 {
            line = format!("{line} {:>10} {:>8}", Size(bytes).to_string(), Rate(bytes, elapsed).to_string());
        } else {
            line = format!("{line} {:>10} {:>8}", "", "");
        }
        out.line(format_args!("{line}  in {}", Time(elapsed)))?;
        out.flush()
    }
}
