//! A server's files, as the commands use them: one connection, one Call after the other, data in a
//! pipeline.

use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use stag::wire::nfs3::{Attributes, Status};

use crate::failure::Failure;
use crate::url::Url;

/// Why an operation on a server's file failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteError {
    /// The server's answer.
    Status(Status),
    /// There was no answer, or none that makes sense.
    Broken(String),
}

impl RemoteError {
    /// The failure of a command, about this file.
    #[must_use]
    pub fn at(&self, url: &Url) -> Failure {
        Failure::run(format_args!("{url}: {self}"))
    }
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemoteError::Status(status) => write!(f, "{status:?}"),
            RemoteError::Broken(text) => f.write_str(text),
        }
    }
}

/// A file of the server.
#[derive(Clone, Debug)]
pub struct Node {
    /// The server's name for it.
    pub handle: Vec<u8>,
    /// What it is.
    pub attributes: Attributes,
}

/// A connection to a server.
pub struct Remote(Infallible);

impl Remote {
    /// Connects.
    pub fn connect(url: &Url) -> Result<Remote, Failure> {
        Err(Failure::run(format_args!("{}: the client is not in this version yet", url.server())))
    }

    /// Makes a NULL Call, and says how long it took.
    pub fn null(&mut self) -> Result<Duration, RemoteError> {
        match self.0 {}
    }

    /// Finds the file at these names, the first of which are an export's.
    pub fn find(&mut self, names: &[String]) -> Result<Node, RemoteError> {
        let _ = names;
        match self.0 {}
    }
}
