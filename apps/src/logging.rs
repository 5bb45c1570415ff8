//! The log, on standard error: unrequested events. `STAG_LOG` sets the level (`STAG_LOG=info`,
//! `STAG_LOG=stag_rpc=debug`).

use std::env;
use std::io::{self, IsTerminal};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;

use crate::failure::CommandFailure;

/// The variable that sets the log's level.
const VARIABLE: &str = "STAG_LOG";

/// Starts the log: warnings and errors, unless told otherwise.
pub fn start() -> Result<(), CommandFailure> {
    let wanted = env::var(VARIABLE).unwrap_or_else(|_| "warn".to_owned());
    let filter: Targets = wanted.parse().map_err(|error| {
        CommandFailure::usage(format_args!(
            "{VARIABLE}={wanted:?}: {error}; write for example {VARIABLE}=info"
        ))
    })?;
    let subscriber = tracing_subscriber::fmt()
        // The filter alone decides: the subscriber's own limit is open.
        .with_max_level(LevelFilter::TRACE)
        .with_writer(io::stderr)
        .with_ansi(wants_colours(&io::stderr()))
        // The sentence says what it is about.
        .with_target(false)
        .finish()
        .with(filter);
    // It is set already where one process runs two servers: the first one's log serves both.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Ok(())
}

/// A file or a pipe gets no colours, nor does a user who opted out (no-color.org).
pub fn wants_colours(out: &impl IsTerminal) -> bool {
    out.is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
