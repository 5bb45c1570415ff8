//! Lines on their way to standard error.

use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::format::{LineFormat, LogFormat};

/// Octets of lines that wait for the reader of standard error. Lines that do not fit are dropped and counted.
const WAITING_MAX: usize = 256 << 10;

/// How long the end of a program waits for the readers of its last words: for each of standard output and standard error.
pub const FLUSH_MAX: Duration = Duration::from_secs(1);

/// How lines are written that are no events.
pub(super) static NOTICES: OnceLock<LineFormat> = OnceLock::new();

/// Waits until what was logged is written, but not long: a reader that has stopped reading holds nobody up.
pub fn flush() {
    let lines = LOG.lines();
    if lines.has_thread {
        let is_busy = |lines: &mut Lines| lines.is_writing || !lines.waiting.is_empty();
        drop(LOG.changed.wait_timeout_while(lines, FLUSH_MAX, is_busy));
    } else {
        LOG.write(lines);
    }
}

/// Writes a line to standard error, whatever the level of the log, behind what was logged. Waits as [`flush`] does.
pub fn tell(line: &str) {
    LOG.push(format!("{line}\n").as_bytes());
    flush();
}

/// Writes a line of the server, whatever the level of the log, in the form of its lines. Waits as [`flush`] does.
pub fn notice(text: &str) {
    LOG.push(notice_line(text).as_bytes());
    flush();
}

fn notice_line(text: &str) -> String {
    NOTICES.get_or_init(|| LineFormat::new(LogFormat::Text)).notice(text)
}

/// Lines on their way to standard error, which a thread of its own writes: a reactor never waits for its reader.
pub(super) struct Log {
    lines: Mutex<Lines>,
    changed: Condvar,
}

pub(super) struct Lines {
    waiting: Vec<u8>,
    dropped: u64,
    pub(super) has_thread: bool,
    is_writing: bool,
}

pub(super) static LOG: Log = Log {
    lines: Mutex::new(Lines { waiting: Vec::new(), dropped: 0, has_thread: false, is_writing: false }),
    changed: Condvar::new(),
};

impl Log {
    /// Held only briefly.
    pub(super) fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &[u8]) {
        let mut lines = self.lines();
        if lines.waiting.len() + line.len() > WAITING_MAX {
            lines.dropped += 1;
            return;
        }
        lines.waiting.extend_from_slice(line);
        drop(lines);
        self.changed.notify_all();
    }

    /// Writes what waits, for ever.
    pub(super) fn write_on(&self) {
        loop {
            let wait = self.changed.wait_while(self.lines(), |lines| lines.waiting.is_empty());
            self.write(wait.unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn write(&self, mut lines: MutexGuard<'_, Lines>) {
        let mut text = std::mem::take(&mut lines.waiting);
        let dropped = std::mem::take(&mut lines.dropped);
        lines.is_writing = true;
        drop(lines);
        if dropped > 0 {
            let told =
                notice_line(&format!("{dropped} lines of the log were dropped: they were not read in time"));
            text.extend(told.bytes());
        }
        // A program goes on without readers.
        let _ = io::stderr().write_all(&text);
        self.lines().is_writing = false;
        self.changed.notify_all();
    }
}

/// Takes a line at a time.
pub(super) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        LOG.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
