//! The log, on standard error: unrequested events. `STAG_LOG` sets the level (`STAG_LOG=info`,
//! `STAG_LOG=stag_rpc=debug`).

mod format;

use std::env;
use std::io::{self, IsTerminal, Write};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;

use crate::failure::CommandFailure;
use format::LineFormat;
pub use format::{LogFormat, now};

/// The variable that sets the log's level.
const VARIABLE: &str = "STAG_LOG";

/// Octets of lines that wait for the reader of standard error. Lines that do not fit are dropped and counted.
const WAITING_MAX: usize = 256 << 10;

/// How long the end of a program waits for the readers of its last words: for each of standard output and standard error.
pub const FLUSH_MAX: Duration = Duration::from_secs(1);

/// Changes what the filter of the log lets through.
type SetFilter = Box<dyn Fn(Targets) -> Result<(), reload::Error> + Send + Sync>;

static SET_FILTER: OnceLock<SetFilter> = OnceLock::new();

/// How lines are written that are no events.
static NOTICES: OnceLock<LineFormat> = OnceLock::new();

/// Reads a filter: a level, or `target=level` with commas between.
fn filter(text: &str) -> Result<Targets, String> {
    text.parse().map_err(|error| format!("{text:?}: {error}; write for example info, or stag_rpc=debug"))
}

/// Logs what this filter lets through from now on.
///
/// # Errors
///
/// It is no filter, in words.
pub fn set(text: &str) -> Result<(), String> {
    let filter = filter(text)?;
    let Some(set) = SET_FILTER.get() else { return Err("the log has not started".to_owned()) };
    set(filter).map_err(|error| error.to_string())
}

/// Starts the log: warnings and errors, unless told otherwise.
pub fn start(format: LogFormat) -> Result<(), CommandFailure> {
    let wanted = env::var(VARIABLE).unwrap_or_else(|_| "warn".to_owned());
    let filter =
        filter(&wanted).map_err(|problem| CommandFailure::usage(format_args!("{VARIABLE}={problem}")))?;
    let (filter, handle) = reload::Layer::new(filter);
    let subscriber = tracing_subscriber::fmt()
        // The filter alone decides: the subscriber's own limit is open.
        .with_max_level(LevelFilter::TRACE)
        .with_writer(|| LogWriter)
        .with_ansi(wants_colours(&io::stderr()))
        .event_format(LineFormat::new(format))
        .finish()
        .with(filter);
    // It is set already where one process runs two servers: the first one's log serves both.
    if tracing::subscriber::set_global_default(subscriber).is_ok() {
        let _ = SET_FILTER.set(Box::new(move |filter| handle.reload(filter)));
        let _ = NOTICES.set(LineFormat::new(format));
    }
    Ok(())
}

/// Lets a thread write what is logged from now on. It has the rights, and runs on the cores, of the calling thread.
pub fn write_on_thread() -> Result<(), CommandFailure> {
    LOG.lines().has_thread = true;
    let thread = thread::Builder::new().name("log".to_owned()).spawn(|| LOG.write_on());
    thread
        .map(drop)
        .map_err(|error| CommandFailure::run(format_args!("a thread for the log (clone): {error}")))
}

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
struct Log {
    lines: Mutex<Lines>,
    changed: Condvar,
}

struct Lines {
    waiting: Vec<u8>,
    dropped: u64,
    has_thread: bool,
    is_writing: bool,
}

static LOG: Log = Log {
    lines: Mutex::new(Lines { waiting: Vec::new(), dropped: 0, has_thread: false, is_writing: false }),
    changed: Condvar::new(),
};

impl Log {
    /// Held only briefly.
    fn lines(&self) -> MutexGuard<'_, Lines> {
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
    fn write_on(&self) {
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
struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        LOG.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file or a pipe gets no colours, nor does a user who opted out (no-color.org).
pub fn wants_colours(out: &impl IsTerminal) -> bool {
    out.is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
