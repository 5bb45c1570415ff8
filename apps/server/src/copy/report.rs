//! The progress of a copy, and its summary.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::failure::CommandFailure;
use crate::output::Output;
use crate::url::Place;
use crate::values::{Rate, Size, Time, count};

/// Failures that are told one by one.
const FAILURES_TOLD_MAX: u64 = 10;

/// Files left out that are told by name.
const LEFT_OUT_MAX: usize = 100;

/// The same, in lines.
const LEFT_OUT_LINES_MAX: usize = 10;

/// What was copied; the object of `--json`.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Copied {
    /// Files.
    pub(super) files: u64,
    /// Folders, made or filled.
    pub(super) folders: u64,
    /// Symbolic links.
    pub(super) links: u64,
    /// Further names of files that were copied already.
    pub(super) hard_links: u64,
    /// Files, folders and links that were not copied, or not completely, because something failed.
    pub(super) failed: u64,
    /// Reasons of failures that were not told, each with the number of these.
    #[serde(skip)]
    pub(super) untold: Vec<(String, u64)>,
    /// Left out: neither file, folder nor symbolic link.
    pub(super) skipped: u64,
    /// Of these the first ones.
    pub(super) left_out: Vec<LeftOut>,
    /// Attributes that the copies lack.
    pub(super) not_kept: NotKept,
    /// Octets of files, holes included.
    pub(super) bytes: u64,
    /// Of these octets that are holes.
    pub(super) hole_bytes: u64,
    /// Time it took.
    pub(super) seconds: f64,
}

/// A file that was not copied.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LeftOut {
    path: String,
    kind: &'static str,
}

/// Files whose copies lack something.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct NotKept {
    /// Set-user-ID, set-group-ID or sticky bit.
    pub(super) special_bits: u64,
    /// Owner or group.
    pub(super) owners: u64,
    /// Times that the target cannot say.
    pub(super) times: u64,
    /// Names of a file with several: each became a file of its own.
    pub(super) hard_links: u64,
}

impl Copied {
    /// Notes what is not copied.
    pub(super) fn leave_out(&mut self, place: &Place, kind: &'static str) {
        self.skipped += 1;
        if self.left_out.len() < LEFT_OUT_MAX {
            self.left_out.push(LeftOut { path: place.to_string(), kind });
        }
    }

    /// Notes what could not be copied; what is left of it is told in any case. `true`: it is among the first, each of which is told.
    pub(super) fn note_failure(&mut self, failure: &CommandFailure, remains: &str) -> bool {
        self.failed += 1;
        if self.failed <= FAILURES_TOLD_MAX || !remains.is_empty() {
            return true;
        }
        // `PLACE: REASON`
        let text = failure.to_string();
        let reason = text.split_once(": ").map_or(text.as_str(), |(_, reason)| reason);
        match self.untold.iter_mut().find(|(known, _)| known == reason) {
            Some((_, number)) => *number += 1,
            None => self.untold.push((reason.to_owned(), 1)),
        }
        false
    }

    /// The failures that were not told, a line for each reason.
    pub(super) fn untold(&self) -> impl Iterator<Item = String> + '_ {
        self.untold.iter().map(|(reason, number)| format!("… and {number} more: {reason}"))
    }

    /// What was copied, without time: `3 files, 1 folder, 138 B`.
    pub(super) fn amount(&self) -> String {
        let mut parts = vec![count(self.files, "file"), count(self.folders, "folder")];
        for (number, what) in [(self.links, "symbolic link"), (self.hard_links, "hard link")] {
            if number > 0 {
                parts.push(count(number, what));
            }
        }
        let holes = match self.hole_bytes {
            0 => String::new(),
            holes => format!(" ({} of it holes)", Size(holes)),
        };
        format!("{}, {}{holes}", parts.join(", "), Size(self.bytes))
    }

    /// Prints it.
    pub(super) fn tell(
        &self,
        elapsed: Duration,
        preserve: bool,
        out: &mut Output,
    ) -> Result<(), CommandFailure> {
        out.object(self)?;
        let (amount, rate) = (self.amount(), Rate(self.bytes - self.hole_bytes, elapsed));
        out.line(format_args!("{amount} in {} ({rate})", Time(elapsed)))?;
        if self.failed > 0 {
            out.line(format_args!("not copied: {}, named on standard error", count(self.failed, "object")))?;
        }
        if self.skipped > 0 {
            let number = count(self.skipped, "object");
            out.line(format_args!("left out {number}, neither file, folder nor symbolic link:"))?;
            for LeftOut { path, kind } in self.left_out.iter().take(LEFT_OUT_LINES_MAX) {
                out.line(format_args!("  {path}: {kind}"))?;
            }
            if self.skipped > LEFT_OUT_LINES_MAX as u64 {
                out.line("  …")?;
            }
        }
        let NotKept { special_bits, owners, times, hard_links } = self.not_kept;
        let hint = if preserve { "" } else { " (--preserve keeps them)" };
        for (number, what) in [
            (special_bits, format!("set-user-ID, set-group-ID and sticky bits{hint}")),
            (owners, "owner or group: the server, or this machine, does not permit it".to_owned()),
            (times, "times: NFS version 3 cannot say them".to_owned()),
            (hard_links, format!("hard links: each name became a file of its own{hint}")),
        ] {
            if number > 0 {
                out.line(format_args!("not kept of {}: {what}", count(number, "object")))?;
            }
        }
        Ok(())
    }
}

/// Progress and rate, on a terminal.
pub(super) struct Progress {
    bar: ProgressBar,
    is_json: bool,
}

impl Progress {
    /// Of a single file, of `total` octets; or of a tree, whose size is not known before.
    pub(super) fn new(total: Option<u64>, out: &Output) -> Progress {
        let is_shown = std::io::stderr().is_terminal() && !out.json();
        let (bar, template) = match total {
            _ if !is_shown => (ProgressBar::hidden(), ""),
            Some(total) => {
                (ProgressBar::new(total), "{wide_bar} {bytes}/{total_bytes}, {bytes_per_sec}, ETA {eta}")
            }
            None => (ProgressBar::no_length(), "{spinner} {msg}, {bytes} in {elapsed}, {bytes_per_sec}"),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Progress { bar, is_json: out.json() }
    }

    /// This number of octets more.
    pub(super) fn more(&self, octets: u64) {
        if !self.bar.is_hidden() {
            self.bar.inc(octets);
        }
    }

    /// This number of files is done.
    pub(super) fn files(&self, files: u64) {
        if !self.bar.is_hidden() {
            self.bar.set_message(count(files, "file"));
        }
    }

    /// Tells of a part that failed, and what is left of it.
    pub(super) fn complain(&self, failure: &CommandFailure, remains: &str) {
        let failure = failure.clone().with(remains);
        self.bar.suspend(|| failure.tell("stag", self.is_json));
    }

    /// Takes it off the screen.
    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
