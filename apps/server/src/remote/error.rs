//! Why an operation on a server's file failed, in words.

use std::fmt;

use rustix::process::geteuid;
use stag_nfs::client::ClientError;
use stag_wire::nfs3::{Failure as Failed, ProcedureResults, Status};

use crate::failure::CommandFailure;

/// Why an operation on a server's file failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteError {
    /// The server's answer.
    Status(Status),
    /// A file cannot get a name there.
    Apart,
    /// The server does not have the program.
    NotServed,
    /// There was no answer, or none that makes sense; or the other end of a copy failed.
    Broken(String),
}

impl RemoteError {
    /// A Reply that makes no sense.
    pub(super) fn senseless(procedure: &str) -> RemoteError {
        RemoteError::Broken(format!("the server's Reply to {procedure} is malformed"))
    }

    /// The failure of a command, about this file.
    #[must_use]
    pub fn at(self, thing: impl fmt::Display) -> CommandFailure {
        CommandFailure::run(format_args!("{thing}: {self}"))
    }

    /// Whether the server says that there is no such file.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        *self == RemoteError::Status(Status::NoEnt)
    }

    /// Whether a file that was there a moment ago was removed since.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, RemoteError::Status(Status::NoEnt | Status::Stale))
    }
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemoteError::Status(Status::Acces) if geteuid().is_root() => f.write_str(
                "permission denied; the server may treat root as nobody: export with root_squash=no, or chown the folder",
            ),
            RemoteError::Status(status) => f.write_str(meaning(*status)),
            RemoteError::Apart => f.write_str(
                "lies in another export, or in another file system of the same one; use cp and rm",
            ),
            RemoteError::NotServed => f.write_str("the server does not have this program"),
            RemoteError::Broken(text) => f.write_str(text),
        }
    }
}

/// A status in words; where there is a repair, with it.
fn meaning(status: Status) -> &'static str {
    match status {
        Status::Perm => "not permitted: only its owner may",
        Status::NoEnt => "no such file",
        Status::Io => "the server had an input/output error",
        Status::Acces => "permission denied",
        Status::Exist => "exists already",
        Status::XDev => {
            "another file system is mounted there, which is not exported with this one; export it as well"
        }
        Status::NotDir => "is not a folder",
        Status::IsDir => "is a folder",
        Status::Inval => "not possible with this kind of file",
        Status::FBig => "larger than the server's files may be",
        Status::NoSpc => {
            "no space left in this export (`stag df` shows it); raise its size= or the server's --memory, or remove something"
        }
        Status::RoFs => "the export is read-only",
        Status::NameTooLong => "the name is too long; the limit is 255 octets",
        Status::NotEmpty => "the folder is not empty (rm -r removes it whole)",
        Status::DQuot => "over quota",
        Status::Stale => "the file is gone",
        Status::BadHandle => "the server does not know this handle",
        Status::NotSupp => "not supported by the server",
        Status::Jukebox => "the server wants us to try again later",
        _ => "the server refuses it",
    }
}

/// The fields of a successful NFS procedure, or its status.
pub(super) fn answer<T, F>(reply: Result<ProcedureResults<T, F>, ClientError>) -> Result<T, RemoteError> {
    reply?.map_err(|Failed { status, .. }| RemoteError::Status(status))
}

impl From<ClientError> for RemoteError {
    fn from(error: ClientError) -> RemoteError {
        RemoteError::Broken(error.to_string())
    }
}
