//! What `stag admin` changes of a running server, beside requests that are one line.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use clap::Subcommand;
use serde::Serialize;
use stag_runtime::Clock;
use stag_server::admin::{AdminReply, AdminRequest, ask};
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::values::{Delay, count};

/// What a request did: an object of `--json`.
#[derive(Serialize)]
pub(super) struct Done {
    pub(super) done: String,
}

/// Changes of what is served. They last until the server ends: the configuration file decides at the next start.
#[derive(Debug, Subcommand)]
pub(super) enum ExportsChange {
    /// Serves one more directory
    Add {
        /// As behind stagd --export
        spec: String,
    },
    /// Serves an export by other rules
    Change {
        /// As behind stagd --export; it names the path
        spec: String,
    },
    /// Stops serving an export: its handles are stale
    Remove {
        /// The path that clients mount
        path: String,
        /// Also if files in memory are lost
        #[arg(long)]
        force: bool,
    },
}

impl ExportsChange {
    pub(super) fn request(&self) -> AdminRequest {
        match self {
            ExportsChange::Add { spec } => AdminRequest::AddExport { spec: spec.clone() },
            ExportsChange::Change { spec } => AdminRequest::ChangeExport { spec: spec.clone() },
            ExportsChange::Remove { path, force } => {
                AdminRequest::RemoveExport { path: path.clone(), force: *force }
            }
        }
    }
}

/// What a new configuration did: an object of `--json`.
#[derive(Serialize)]
struct Reloaded {
    changed: Vec<String>,
    restart: Vec<String>,
}

/// Lets the server read its configuration file again.
pub(super) fn reload(socket: &Path, out: &mut Output) -> Result<(), CommandFailure> {
    let AdminReply::Reloaded { changed, restart } = ask(socket, &AdminRequest::Reload)? else {
        return Ok(());
    };
    if changed.is_empty() && restart.is_empty() {
        out.line("nothing has changed")?;
    }
    for change in &changed {
        out.line(format_args!("changed: {change}"))?;
    }
    for change in &restart {
        out.line(format_args!("needs a restart: {change}"))?;
    }
    out.object(&Reloaded { changed, restart })
}

/// How many connections there are while a server is drained: an object of `--json`.
#[derive(Serialize)]
struct Remaining {
    connections: usize,
}

/// How often connections are counted.
const INTERVAL: Duration = Duration::from_millis(500);

/// What the server may take to stop in order, after the last connection has ended.
const STOP_MAX: Duration = Duration::from_secs(30);

/// Drains the server, and says how many connections there are, until it has ended.
pub(super) fn drain(socket: &Path, limit: Delay, out: &mut Output) -> Result<(), CommandFailure> {
    let AdminReply::Done(done) = ask(socket, &AdminRequest::Drain { seconds: limit.0.as_secs() })? else {
        return Ok(());
    };
    out.line(format_args!("the server {done}, or in {}", limit))?;
    out.flush()?;
    let clock = Clock::start_system();
    let until = clock.now().saturating_add(limit.0).saturating_add(STOP_MAX);
    let mut told = None;
    // Its socket ends with it.
    while UnixStream::connect(socket).is_ok() {
        if clock.now() >= until {
            return Err(CommandFailure::run(
                "the server has not ended in time; stag admin clients lists who is there",
            ));
        }
        // It does not answer while it stops.
        if let Ok(AdminReply::Stats(state)) = ask(socket, &AdminRequest::Stats) {
            let connections = state.cores.iter().map(|core| core.connections + core.streams).sum();
            if told != Some(connections) {
                out.line(format_args!("{} left", count(connections as u64, "connection")))?;
                out.object(&Remaining { connections })?;
                out.flush()?;
                told = Some(connections);
            }
        }
        thread::sleep(INTERVAL);
    }
    let done = "the server has ended".to_owned();
    out.line(&done)?;
    out.object(&Done { done })
}
