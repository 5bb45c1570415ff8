//! The control socket of `stagd`: what is asked there, what is answered, and how a client asks.
//!
//! A client connects to a Unix socket, writes one [`AdminRequest`] as a line of JSON, and reads one [`AdminReply`] as a line of
//! JSON; behind [`AdminReply::Recording`] octets follow. Then the server closes the connection. Only the server's user and root are answered.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::failure::CommandFailure;

/// The variable that names the directory of the sockets, in place of the usual ones.
const VARIABLE: &str = "STAG_RUNTIME_DIR";

/// Where sockets are, if the server may write there.
const SYSTEM: &str = "/run/stag";

/// The end of a socket's name.
const ENDING: &str = ".sock";

/// How long either end waits for the other.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Octets of a request that are read at most.
pub const REQUEST_LEN_MAX: u64 = 64 << 10;

/// Octets of a reply that are read at most.
const REPLY_LEN_MAX: u64 = 64 << 20;

/// Octets of a recording that are read at most: beyond what all cores record.
const RECORDING_LEN_MAX: u64 = 1 << 30;

/// What a server can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum AdminRequest {
    /// Everything that it counts.
    Stats,
    /// Who holds which opens and locks.
    Holdings,
    /// To disconnect all connections of a client, or to end a client of NFS version 4 with all that it holds.
    Evict {
        /// Its address, or `uid N`, as [`ClientState::client`] has it; or its client id, as [`NfsClientState::id`] has it.
        client: String,
    },
    /// To serve one more export, a directory.
    AddExport {
        /// As behind `--export`.
        spec: String,
    },
    /// To serve an export by other rules.
    ChangeExport {
        /// As behind `--export`: it names the path.
        spec: String,
    },
    /// To serve an export no longer.
    RemoveExport {
        /// The path that clients mount.
        path: String,
        /// Even if files in memory are lost with it.
        #[serde(default)]
        force: bool,
    },
    /// To read the configuration file again.
    Reload,
    /// To take no more connections, and to stop when the last one has ended, or when the time is up.
    Drain {
        /// The time.
        seconds: u64,
    },
    /// To log from another level on.
    Log {
        /// As in the variable `STAG_LOG`.
        filter: String,
    },
    /// For the messages that are recorded.
    Record,
    /// To stop in order.
    Stop,
}

/// What a server answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminReply {
    /// To [`AdminRequest::Stats`].
    Stats(Box<ServerState>),
    /// To [`AdminRequest::Holdings`].
    Holdings(Box<HoldingsState>),
    /// To [`AdminRequest::Reload`].
    Reloaded {
        /// What has changed.
        changed: Vec<String>,
        /// What would change with a restart.
        restart: Vec<String>,
    },
    /// To [`AdminRequest::Record`]: a capture (pcapng) of this number of octets follows the line.
    Recording {
        /// The number.
        octets: u64,
    },
    /// It did that.
    Done(String),
    /// It did not, for this reason.
    Refused(String),
}

/// What a server counts, since it started.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the JSON objects")]
pub struct ServerState {
    pub version: String,
    pub uptime_seconds: f64,
    pub counters: Counters,
    pub cores: Vec<CoreState>,
    pub procedures: Vec<ProcedureState>,
    /// Operations of COMPOUND of NFS version 4.
    #[serde(default)]
    pub operations: Vec<OperationState>,
    pub clients: Vec<ClientState>,
    pub exports: Vec<ExportState>,
    pub pools: Vec<PoolState>,
    /// What `--memory` is for: the octets of each line of the price list.
    #[serde(default)]
    pub memory: Vec<(String, u64)>,
    /// Receives that RDMA connections hold, and the most that they may.
    pub receives_held: u32,
    pub receives_max: u32,
    /// Locks that clients hold, and requests that wait for one.
    pub locks_held: u32,
    pub locks_waiting: u32,
}

/// One core of a server.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the JSON objects")]
pub struct CoreState {
    pub core: usize,
    pub busy_seconds: f64,
    pub idle_seconds: f64,
    pub asleep_seconds: f64,
    /// Replies to Calls that came in there.
    pub calls: u64,
    pub calls_carried: u64,
    pub connections: usize,
    pub streams: usize,
}

/// One procedure that was called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the JSON objects")]
pub struct ProcedureState {
    pub program: u32,
    pub version: u32,
    pub name: String,
    pub calls: u64,
    /// Those that were answered in a later pass of the core, because they waited for a disk or a lock.
    pub late: u64,
    pub late_seconds: f64,
    /// Late answers by the time that they took: the upper bound in seconds, and how many. The last has no bound.
    pub waited: Vec<(Option<f64>, u64)>,
    /// The time that the service took for one Call of 64, in the same form, and the sum of these times.
    #[serde(default)]
    pub executed: Vec<(Option<f64>, u64)>,
    #[serde(default)]
    pub executed_seconds: f64,
    /// Replies with an error, by its name or number.
    #[serde(default)]
    pub failures: Vec<(String, u64)>,
}

/// One operation of NFS version 4 that was executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the JSON objects")]
pub struct OperationState {
    pub name: String,
    pub calls: u64,
    /// Those that failed.
    pub errors: u64,
    /// The same by the name of the error.
    #[serde(default)]
    pub failures: Vec<(String, u64)>,
    /// Times that one waited for a disk or a limit.
    pub waits: u64,
}

/// One client: an address, or a user of this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the JSON objects")]
pub struct ClientState {
    pub client: String,
    /// RDMA connections, and TCP connections.
    pub connections: u32,
    pub streams: u32,
    /// Calls on these connections.
    pub calls: u64,
    /// Octets of files that it read and wrote, over all its connections since the server started.
    #[serde(default)]
    pub read_bytes: u64,
    #[serde(default)]
    pub written_bytes: u64,
    /// Credits granted over RDMA, and those in use.
    pub granted: u32,
    pub used: u32,
    /// Calls and Replies that wait for memory, or for room in a queue.
    pub waiting: u32,
}

/// Who holds which opens and locks.
#[derive(Debug, Serialize, Deserialize)]
pub struct HoldingsState {
    /// Clients of NFS version 4, the one that was heard last first.
    pub clients: Vec<NfsClientState>,
    /// How many there are: more than are listed if there are very many.
    pub clients_count: usize,
    /// What they and the hosts of NLM hold.
    pub locks: Vec<LockState>,
    /// How much that is, listed or not.
    pub locks_count: usize,
}

/// One client of NFS version 4.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NfsClientState {
    /// Its client id: `0x` and 16 digits.
    pub id: String,
    /// What it calls itself; octets that are no ASCII text are escaped.
    pub owner: String,
    /// Its address, or `uid N`.
    pub client: String,
    /// The version of the protocol.
    pub version: String,
    /// Whether it made a session.
    pub confirmed: bool,
    /// `active`, or `lapsed`: it keeps what it holds until another client wants it.
    pub lease: String,
    /// Since when it has not been heard.
    pub silent_seconds: u64,
    /// Sessions.
    pub sessions: u32,
    /// Slots of its sessions.
    pub slots: u32,
    /// Slots that run a request now.
    pub slots_used: u32,
    /// Octets of replies that its slots keep.
    pub kept_bytes: u64,
    /// Opens.
    pub opens: u32,
    /// Locks.
    pub locks: u32,
}

/// One open, share or lock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LockState {
    /// The export that the file was reached by, or another one of the same file system.
    pub export: String,
    /// The number of the file: `find -inum` finds its name.
    pub fileid: u64,
    /// The client id of version 4 ([`NfsClientState::id`]), or the name of a host of NLM.
    pub client: String,
    /// Which of its owners; octets that are no ASCII text are escaped.
    pub owner: String,
    /// What it is.
    #[serde(flatten)]
    pub what: HeldKind,
}

/// What is held of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum HeldKind {
    /// An open of version 4, or a share of NLM.
    Open {
        /// `r`, `w` or `rw`.
        access: String,
        /// What others may not: the same, or nothing.
        deny: String,
    },
    /// A lock.
    Lock {
        /// Its first octet.
        offset: u64,
        /// Octets; absent: to the end of the file.
        length: Option<u64>,
        /// Whether it excludes shared locks too.
        exclusive: bool,
    },
}

/// One export.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the JSON objects")]
pub struct ExportState {
    pub path: String,
    /// As it was written behind `--export`.
    pub spec: String,
    /// Absent where the disk does not answer at once.
    pub bytes_total: Option<u64>,
    pub bytes_free: Option<u64>,
    pub files_total: Option<u64>,
    pub files_free: Option<u64>,
    /// Octets of its files that clients read and wrote, since the server started.
    #[serde(default)]
    pub read_bytes: u64,
    #[serde(default)]
    pub written_bytes: u64,
    /// Limits in octets per second of READ and WRITE: of all clients together, and of each.
    #[serde(default)]
    pub rate: Option<u64>,
    #[serde(default)]
    pub client_rate: Option<u64>,
    /// What waited for them; absent if there are none.
    #[serde(default)]
    pub limited: Option<LimitedState>,
}

/// READs and WRITEs that waited for the limits of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the JSON objects")]
pub struct LimitedState {
    /// Those that waited, their octets, and the sum of their times.
    pub calls: u64,
    pub bytes: u64,
    pub seconds: f64,
    /// Those that wait now.
    pub waiting: u64,
}

/// One pool of memory of one core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the JSON objects")]
pub struct PoolState {
    pub core: usize,
    pub pool: String,
    pub unit_bytes: usize,
    pub units: usize,
    pub units_free: usize,
}

/// Directories in which sockets may be.
fn directories() -> Vec<PathBuf> {
    if let Some(path) = env::var_os(VARIABLE) {
        return vec![path.into()];
    }
    let user = env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty());
    let user = user.map(|path| PathBuf::from(path).join("stag"));
    [PathBuf::from(SYSTEM)].into_iter().chain(user).collect()
}

/// Where a server puts its socket if nothing else is said: the first of the usual directories in which it may.
pub fn usual_sockets() -> Vec<PathBuf> {
    let name = format!("stagd-{}{ENDING}", std::process::id());
    directories().into_iter().map(|directory| directory.join(&name)).collect()
}

/// Sockets in the usual directories.
fn sockets() -> Vec<PathBuf> {
    let entries = directories()
        .into_iter()
        .flat_map(|directory| fs::read_dir(directory).into_iter().flatten().flatten());
    let sockets = entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("stagd-") && name.ends_with(ENDING)
    });
    sockets.collect()
}

/// Removes the sockets that servers left behind which were killed, as far as this process may.
pub fn remove_abandoned_sockets() {
    for path in sockets() {
        // One that starts just now has a socket before it listens there, and a process.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let pid = name.trim_start_matches("stagd-").trim_end_matches(ENDING);
        if is_abandoned(&path) && !Path::new("/proc").join(pid).exists() {
            // Another server may do the same at the same time.
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether there is a socket at a path that no server listens at.
#[must_use]
pub fn is_abandoned(path: &Path) -> bool {
    UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// The socket of the only server of this machine that has one.
///
/// # Errors
///
/// There is none, or there are several.
pub fn only_socket() -> Result<PathBuf, CommandFailure> {
    let mut found = sockets();
    // A server that was killed leaves its socket behind.
    found.retain(|path| UnixStream::connect(path).is_ok());
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(CommandFailure::usage(
            "no stagd of this machine answers at a control socket in /run/stag; start one, or name its socket by --socket PATH",
        )),
        several => {
            let names: Vec<String> = several.iter().map(|path| path.display().to_string()).collect();
            Err(CommandFailure::usage(format_args!(
                "{} servers run here; name one by --socket: {}",
                several.len(),
                names.join(", ")
            )))
        }
    }
}

/// Asks the server at a socket.
///
/// # Errors
///
/// It cannot be reached, does not answer in time, or refuses.
pub fn ask(socket: &Path, request: &AdminRequest) -> Result<AdminReply, CommandFailure> {
    exchange(socket, request).map(|(reply, _)| reply)
}

/// Asks the server at a socket for what it recorded: a capture.
///
/// # Errors
///
/// Those of [`ask`]. It also fails if the recording came in part only.
pub fn ask_for_recording(socket: &Path) -> Result<Vec<u8>, CommandFailure> {
    let (reply, rest) = exchange(socket, &AdminRequest::Record)?;
    let AdminReply::Recording { octets } = reply else {
        return Err(failed(socket, &"an answer to something else"));
    };
    let mut capture = Vec::new();
    let read = rest.take(octets.min(RECORDING_LEN_MAX)).read_to_end(&mut capture);
    read.map_err(|error| failed(socket, &error))?;
    if capture.len() as u64 != octets {
        let problem = format_args!("{} octets of a recording of {octets}; ask again", capture.len());
        return Err(failed(socket, &problem));
    }
    Ok(capture)
}

fn failed(socket: &Path, problem: &dyn std::fmt::Display) -> CommandFailure {
    CommandFailure::run(format_args!("control socket {}: {problem}", socket.display()))
}

/// Asks the server at a socket. Returns its reply, and the connection from which the octets behind the reply's line can be read.
fn exchange(
    socket: &Path,
    request: &AdminRequest,
) -> Result<(AdminReply, BufReader<UnixStream>), CommandFailure> {
    let fail = |problem: &dyn std::fmt::Display| failed(socket, problem);
    let exchange = || -> std::io::Result<(String, BufReader<UnixStream>)> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        stream.write_all(line.as_bytes())?;
        let (mut reply, mut stream) = (String::new(), BufReader::new(stream));
        stream.by_ref().take(REPLY_LEN_MAX).read_line(&mut reply)?;
        Ok((reply, stream))
    };
    let (reply, rest) = exchange().map_err(|error| fail(&error))?;
    if reply.is_empty() {
        return Err(fail(&"the server closed the connection without an answer"));
    }
    match serde_json::from_str(&reply).map_err(|error| fail(&error))? {
        AdminReply::Refused(why) => Err(fail(&why)),
        reply => Ok((reply, rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words on the socket are an interface: scripts may write them.
    #[test]
    fn requests_are_plain_words() {
        let written = |request| serde_json::to_string(&request).unwrap();
        assert_eq!(written(AdminRequest::Stats), r#"{"do":"stats"}"#);
        assert_eq!(written(AdminRequest::Record), r#"{"do":"record"}"#);
        let evict = AdminRequest::Evict { client: "10.0.0.7".to_owned() };
        assert_eq!(written(evict), r#"{"do":"evict","client":"10.0.0.7"}"#);
        assert_eq!(serde_json::from_str::<AdminRequest>(r#"{"do":"stop"}"#).unwrap(), AdminRequest::Stop);
        let remove = AdminRequest::RemoveExport { path: "/a".to_owned(), force: false };
        assert_eq!(
            serde_json::from_str::<AdminRequest>(r#"{"do":"remove_export","path":"/a"}"#).unwrap(),
            remove
        );
        assert_eq!(written(AdminRequest::Drain { seconds: 60 }), r#"{"do":"drain","seconds":60}"#);
        assert!(serde_json::from_str::<AdminRequest>(r#"{"do":"dance"}"#).is_err());
    }

    #[test]
    fn a_socket_without_a_server_is_named() {
        let failure = ask(Path::new("/nonexistent/stagd.sock"), &AdminRequest::Stats).unwrap_err();
        assert!(format!("{failure:?}").contains("/nonexistent/stagd.sock"), "{failure:?}");
    }
}
