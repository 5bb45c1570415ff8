//! `stag admin`: what a running `stagd` does, and requests to it.

mod changes;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};

use changes::{Done, ExportsChange};
use stag_server::admin::{
    AdminReply, AdminRequest, HeldKind, HoldingsState, ServerState, ask, ask_for_recording, only_socket,
};
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::values::{Delay, Size, Time, count};
use stag_server::wrapped::{beside_or_below, columns};

/// Shows and steers a running stagd
#[derive(Debug, Args)]
#[command(after_help = "Examples: stag admin clients\n          stag admin evict 10.0.0.7")]
pub struct Admin {
    /// Control socket [default: that of the only stagd here]
    #[arg(long, value_name = "PATH", global = true)]
    pub(crate) socket: Option<PathBuf>,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Who is connected, and the clients of NFS version 4
    Clients,
    /// Opens and locks, and who holds them
    Locks,
    /// What is served, and its space; changes it
    Exports {
        #[command(subcommand)]
        change: Option<ExportsChange>,
    },
    /// Calls by procedure and operation, cores and memory
    Stats,
    /// Disconnects a client (address, or "uid N"), or ends one by its id
    Evict {
        /// As `stag admin clients` names it
        client: String,
    },
    /// Changes what is logged: info, stag_rpc=debug
    Log {
        /// As in the variable STAG_LOG
        filter: String,
    },
    /// Writes the last messages as a capture: > x.pcapng
    Record,
    /// Reads the configuration file again
    Reload,
    /// Takes no more connections; stops after the last
    Drain {
        /// Time for clients to go [default: 5m]
        #[arg(long, value_name = "TIME", default_value = "5m", hide_default_value = true)]
        limit: Delay,
    },
    /// Stops the server in order
    Stop,
}

/// Asks the server at `socket`, or the only one of this machine.
pub(crate) fn state(socket: Option<&PathBuf>) -> Result<ServerState, CommandFailure> {
    let socket = socket.cloned().map_or_else(only_socket, Ok)?;
    match ask(&socket, &AdminRequest::Stats)? {
        AdminReply::Stats(state) => Ok(*state),
        _ => Err(CommandFailure::run(format_args!(
            "control socket {}: an answer to something else",
            socket.display()
        ))),
    }
}

/// Asks the same server who holds what.
fn holdings(socket: Option<&PathBuf>) -> Result<HoldingsState, CommandFailure> {
    let socket = socket.cloned().map_or_else(only_socket, Ok)?;
    match ask(&socket, &AdminRequest::Holdings)? {
        AdminReply::Holdings(holdings) => Ok(*holdings),
        _ => Err(CommandFailure::run(format_args!(
            "control socket {}: an answer to something else",
            socket.display()
        ))),
    }
}

impl Admin {
    fn socket(&self) -> Result<PathBuf, CommandFailure> {
        self.socket.clone().map_or_else(only_socket, Ok)
    }

    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let request = match &self.what {
            What::Clients => {
                clients(&state(self.socket.as_ref())?, out)?;
                return nfs_clients(&holdings(self.socket.as_ref())?, out);
            }
            What::Locks => return locks(&holdings(self.socket.as_ref())?, out),
            What::Exports { change: None } => return exports(&state(self.socket.as_ref())?, out),
            What::Stats => return stats(&state(self.socket.as_ref())?, out),
            What::Evict { client } => AdminRequest::Evict { client: client.clone() },
            What::Log { filter } => AdminRequest::Log { filter: filter.clone() },
            What::Exports { change: Some(change) } => change.request(),
            What::Record => return record(&self.socket()?, out),
            What::Reload => return changes::reload(&self.socket()?, out),
            What::Drain { limit } => return changes::drain(&self.socket()?, *limit, out),
            What::Stop => AdminRequest::Stop,
        };
        let socket = self.socket()?;
        if let AdminReply::Done(done) = ask(&socket, &request)? {
            out.line(&done)?;
            out.object(&Done { done })?;
        }
        Ok(())
    }
}

/// Writes what the server recorded to standard output, as it is.
fn record(socket: &Path, out: &mut Output) -> Result<(), CommandFailure> {
    if io::stdout().is_terminal() {
        return Err(CommandFailure::usage(
            "the recording is a binary file, and standard output is a terminal; stag admin record > x.pcapng",
        ));
    }
    out.bytes(&ask_for_recording(socket)?)
}

fn clients(state: &ServerState, out: &mut Output) -> Result<(), CommandFailure> {
    out.line(format_args!(
        "{:>5} {:>5} {:>12} {:>10} {:>10} {:>7} {:>7}  client",
        "RDMA", "TCP", "Calls", "read", "written", "credits", "waiting"
    ))?;
    for client in &state.clients {
        let [read, written] = [client.read_bytes, client.written_bytes].map(|bytes| Size(bytes).to_string());
        let figures = format!(
            "{:>5} {:>5} {:>12} {read:>10} {written:>10} {:>7} {:>7}  ",
            client.connections, client.streams, client.calls, client.granted, client.waiting
        );
        out.line(beside_or_below(&figures, &client.client, columns()))?;
        out.object(client)?;
    }
    out.line(count(state.clients.len() as u64, "client"))
}

fn nfs_clients(holdings: &HoldingsState, out: &mut Output) -> Result<(), CommandFailure> {
    if !holdings.clients.is_empty() {
        out.line(format_args!(
            "\n{:<18} {:>7} {:>6} {:>8} {:>9} {:>9} {:>9}",
            "NFSv4 client", "version", "lease", "sessions", "slots", "opens", "locks"
        ))?;
    }
    for client in &holdings.clients {
        let slots = format!("{}/{}", client.slots_used, client.slots);
        out.line(format_args!(
            "{:<18} {:>7} {:>6} {:>8} {slots:>9} {:>9} {:>9}",
            client.id, client.version, client.lease, client.sessions, client.opens, client.locks
        ))?;
        out.line(format_args!("  {} at {}", client.owner, client.client))?;
        out.object(client)?;
    }
    let left = holdings.clients_count - holdings.clients.len();
    if left > 0 {
        out.line(format_args!("and {left} more"))?;
    }
    Ok(())
}

fn locks(holdings: &HoldingsState, out: &mut Output) -> Result<(), CommandFailure> {
    out.line(format_args!("{:<18} {:<36} file", "client", "what"))?;
    for lock in &holdings.locks {
        let what = match &lock.what {
            HeldKind::Open { access, deny } if deny.is_empty() => format!("open {access}"),
            HeldKind::Open { access, deny } => format!("open {access}, denies {deny}"),
            HeldKind::Lock { offset, length, exclusive } => {
                let end = length.map_or_else(|| "end".to_owned(), |len| (offset + (len - 1)).to_string());
                format!("{} {offset}-{end}", if *exclusive { "write lock" } else { "read lock" })
            }
        };
        out.line(format_args!("{:<18} {what:<36} {} inode {}", lock.client, lock.export, lock.fileid))?;
        out.object(lock)?;
    }
    let left = holdings.locks_count.saturating_sub(holdings.locks.len());
    if left > 0 {
        out.line(format_args!("and {left} more"))?;
    }
    Ok(())
}

fn exports(state: &ServerState, out: &mut Output) -> Result<(), CommandFailure> {
    out.line(format_args!(
        "{:>10} {:>10} {:>10} {:>10} {:>10} {:>10}  export",
        "size", "free", "read", "written", "limit", "each"
    ))?;
    for export in &state.exports {
        let size = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), |bytes| Size(bytes).to_string());
        let figures = format!(
            "{:>10} {:>10} {:>10} {:>10} {:>10} {:>10}  ",
            size(export.bytes_total),
            size(export.bytes_free),
            size(Some(export.read_bytes)),
            size(Some(export.written_bytes)),
            size(export.rate),
            size(export.client_rate),
        );
        out.line(beside_or_below(&figures, &export.spec, columns()))?;
        if let Some(limited) = export.limited.filter(|limited| limited.calls + limited.waiting > 0) {
            let mean = limited.seconds / limited.calls.max(1) as f64;
            out.line(format_args!(
                "{:>10} {} waited for the limit, {} on average; {} wait now",
                "",
                count(limited.calls, "Call"),
                Time(Duration::from_secs_f64(mean)),
                limited.waiting
            ))?;
        }
        out.object(export)?;
    }
    Ok(())
}

fn stats(state: &ServerState, out: &mut Output) -> Result<(), CommandFailure> {
    out.object(state)?;
    let uptime = Time(Duration::from_secs_f64(state.uptime_seconds));
    out.line(format_args!("up {uptime}, {} Replies sent", state.counters.replies_sent))?;
    out.line(format_args!("{:<22} {:>14} {:>12} {:>14}", "procedure", "Calls", "waited", "mean wait"))?;
    for procedure in &state.procedures {
        let mean = match procedure.late {
            0 => "-".to_owned(),
            late => mean_wait(procedure.late_seconds / late as f64),
        };
        let name = format!("{} {}", program_name(procedure.program, procedure.version), procedure.name);
        out.line(format_args!("{name:<22} {:>14} {:>12} {mean:>14}", procedure.calls, procedure.late))?;
    }
    if !state.operations.is_empty() {
        out.line(format_args!(
            "{:<22} {:>14} {:>12} {:>14}",
            "NFSv4 operation", "executed", "waited", "failed"
        ))?;
    }
    for operation in &state.operations {
        out.line(format_args!(
            "{:<22} {:>14} {:>12} {:>14}",
            operation.name, operation.calls, operation.waits, operation.errors
        ))?;
    }
    out.line(format_args!("{:<22} {:>8} {:>8} {:>8} {:>14}", "core", "busy", "idle", "asleep", "Calls"))?;
    for core in &state.cores {
        let all = (core.busy_seconds + core.idle_seconds + core.asleep_seconds).max(1e-9);
        let share = |seconds: f64| format!("{:.1}%", 100.0 * seconds / all);
        let [busy, idle, asleep] = [core.busy_seconds, core.idle_seconds, core.asleep_seconds].map(share);
        out.line(format_args!("{:<22} {busy:>8} {idle:>8} {asleep:>8} {:>14}", core.core, core.calls))?;
    }
    out.line(format_args!("{:<22} {:>14} {:>14}", "memory", "in all", "free"))?;
    for pool in &state.pools {
        let size = |units: usize| Size((units * pool.unit_bytes) as u64).to_string();
        let name = format!("core {} {}", pool.core, pool.pool);
        out.line(format_args!("{name:<22} {:>14} {:>14}", size(pool.units), size(pool.units_free)))?;
    }
    Ok(())
}

/// How long Calls waited. The time is read once in a pass of the core: of a Call that was answered in the pass in which it came, there
/// is none.
pub(crate) fn mean_wait(seconds: f64) -> String {
    if seconds > 0.0 {
        Time(Duration::from_secs_f64(seconds)).to_string()
    } else {
        "within a pass".to_owned()
    }
}

/// A program by its usual name.
pub(crate) fn program_name(program: u32, version: u32) -> String {
    match program {
        100_003 => format!("NFSv{version}"),
        100_005 => "MOUNT".to_owned(),
        100_227 => "NFSACL".to_owned(),
        100_021 => "NLM".to_owned(),
        100_024 => "NSM".to_owned(),
        100_000 => "rpcbind".to_owned(),
        other => other.to_string(),
    }
}
