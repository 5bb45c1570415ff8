//! The log, on standard error: unrequested events. `STAG_LOG` sets the level (`STAG_LOG=info`,
//! `STAG_LOG=stag_rpc=debug`).

mod format;
mod lines;

use std::env;
use std::io::{self, IsTerminal};
use std::sync::OnceLock;
use std::thread;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;

use crate::failure::CommandFailure;
use format::LineFormat;
pub use format::{LogFormat, now};
pub use lines::{FLUSH_MAX, flush, notice, tell};
use lines::{LOG, LogWriter, NOTICES};

/// The variable that sets the log's level.
const VARIABLE: &str = "STAG_LOG";

/// Changes what the filter of the log lets through.
type SetFilter = Box<dyn Fn(Targets) -> Result<(), reload::Error> + Send + Sync>;

static SET_FILTER: OnceLock<SetFilter> = OnceLock::new();

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

/// A file or a pipe gets no colours, nor does a user who opted out (no-color.org).
pub fn wants_colours(out: &impl IsTerminal) -> bool {
    out.is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
