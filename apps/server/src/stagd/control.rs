//! The control socket: answers `stag admin` and `stag top`, on a thread of its own.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use stag_runtime::StopFlag;

use super::asking::Reactors;
use super::draining;
use super::holdings::read_id;
use super::live::Reloaded;
use super::recordings;
use crate::admin::{
    AdminReply, AdminRequest, PATIENCE, REQUEST_LEN_MAX, is_abandoned, remove_abandoned_sockets,
    usual_sockets,
};
use crate::failure::CommandFailure;
use crate::logging;

/// A control socket that is listened at. Its file is removed when this is dropped.
pub(super) struct ControlSocket {
    listener: UnixListener,
    file: SocketFile,
}

/// The name of a socket.
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = fs::remove_file(&self.0);
    }
}

impl ControlSocket {
    /// Listens at `path`; if none is given, at the first usual place that allows it. `Ok(None)`: there is no such place, and
    /// `notes` says so.
    pub(super) fn listen(
        path: Option<&Path>,
        notes: &mut Vec<String>,
    ) -> Result<Option<ControlSocket>, CommandFailure> {
        if let Some(path) = path {
            return match bind(path) {
                Ok(socket) => Ok(Some(socket)),
                Err(error) => Err(CommandFailure::run(format_args!("--control {}: {error}", path.display()))),
            };
        }
        remove_abandoned_sockets();
        let mut refusals = Vec::new();
        for path in usual_sockets() {
            match bind(&path) {
                Ok(socket) => return Ok(Some(socket)),
                Err(error) => refusals.push(format!("{}: {error}", path.display())),
            }
        }
        notes
            .push(format!("no control socket ({}); --control PATH names another place", refusals.join("; ")));
        Ok(None)
    }

    /// Answers from now on.
    pub(super) fn serve(self, reactors: Reactors, stop: StopFlag) -> Result<SocketFile, CommandFailure> {
        let ControlSocket { listener, file } = self;
        let thread = thread::Builder::new().name("control".to_owned());
        let thread = thread.spawn(move || {
            for stream in listener.incoming() {
                // The one that failed may have gone again. One after the other: each has little time.
                if let Ok(stream) = stream
                    && let Err(error) = answer(&stream, &reactors, &stop)
                {
                    tracing::debug!("control socket: {error}");
                }
            }
        });
        thread.map_err(|error| {
            CommandFailure::run(format_args!("a thread for the control socket (clone): {error}"))
        })?;
        Ok(file)
    }
}

fn bind(path: &Path) -> io::Result<ControlSocket> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    // One that a killed server left behind is in the way; one that is answered belongs to another server.
    if is_abandoned(path) {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    let file = SocketFile(path.to_owned());
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(ControlSocket { listener, file })
}

/// Reads a request and answers it. A client that stops reading or writing loses its turn after a while.
fn answer(stream: &UnixStream, reactors: &Reactors, stop: &StopFlag) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let user = socket_peercred(stream)?.uid;
    let own = geteuid();
    let mut behind = Vec::new();
    let reply = if user != own && !user.is_root() {
        AdminReply::Refused(format!("user {} may not; users {} and 0 may", user.as_raw(), own.as_raw()))
    } else {
        let mut line = String::new();
        BufReader::new(stream.take(REQUEST_LEN_MAX)).read_line(&mut line)?;
        match serde_json::from_str(&line) {
            Ok(request) => act(request, reactors, stop, &mut behind),
            Err(error) => AdminReply::Refused(format!("not a request: {error}")),
        }
    };
    let mut text = serde_json::to_string(&reply)?;
    text.push('\n');
    (&mut &*stream).write_all(text.as_bytes())?;
    (&mut &*stream).write_all(&behind)
}

fn done(outcome: Result<String, String>) -> AdminReply {
    outcome.map_or_else(AdminReply::Refused, AdminReply::Done)
}

/// Does what is asked. Octets that follow the reply's line are put into `behind`.
fn act(request: AdminRequest, reactors: &Reactors, stop: &StopFlag, behind: &mut Vec<u8>) -> AdminReply {
    match request {
        AdminRequest::Stats => match reactors.state() {
            Some(state) => AdminReply::Stats(Box::new(state)),
            None => AdminReply::Refused(format!("a core did not answer in {PATIENCE:?}")),
        },
        AdminRequest::Holdings => match reactors.holdings() {
            Some(holdings) => AdminReply::Holdings(Box::new(holdings)),
            None => AdminReply::Refused(format!("a core did not answer in {PATIENCE:?}")),
        },
        AdminRequest::Evict { client } => evict(&client, reactors),
        AdminRequest::Log { filter } => match logging::set(&filter) {
            Ok(()) => AdminReply::Done(format!("logs {filter} from now on")),
            Err(problem) => AdminReply::Refused(problem),
        },
        AdminRequest::AddExport { spec } => done(reactors.live.add_export(&spec)),
        AdminRequest::ChangeExport { spec } => done(reactors.live.change_export(&spec)),
        AdminRequest::RemoveExport { path, force } => done(reactors.live.remove_export(&path, force)),
        AdminRequest::Reload => match reactors.live.reload() {
            Ok(Reloaded { changed, restart }) => AdminReply::Reloaded { changed, restart },
            Err(problem) => AdminReply::Refused(problem),
        },
        AdminRequest::Drain { seconds } => {
            let drains = draining::begin(reactors.clone(), stop.clone(), Duration::from_secs(seconds));
            done(
                drains
                    .map(|()| "takes no more connections, and stops when the last one has ended".to_owned()),
            )
        }
        AdminRequest::Record => match recordings::capture_of(reactors) {
            Ok(capture) => {
                *behind = capture;
                AdminReply::Recording { octets: behind.len() as u64 }
            }
            Err(problem) => AdminReply::Refused(problem),
        },
        AdminRequest::Stop => {
            stop.request();
            AdminReply::Done("stops in order".to_owned())
        }
    }
}

/// Ends a client of version 4, or the connections of a client.
fn evict(client: &str, reactors: &Reactors) -> AdminReply {
    if let Some(id) = read_id(client) {
        return match reactors.evict_client(id) {
            true => AdminReply::Done(format!("client {client} ended, with all that it held")),
            false => {
                AdminReply::Refused(format!("no client {client} is known; stag admin clients lists them"))
            }
        };
    }
    match reactors.evict(client) {
        0 => AdminReply::Refused(format!("no client {client:?} is connected; stag admin clients lists them")),
        count => AdminReply::Done(format!("{count} connections of {client} ended")),
    }
}
