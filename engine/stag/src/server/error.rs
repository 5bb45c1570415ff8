//! [`ServerError`]: why a server does not run.

use std::io;

use stag_fabric::FabricError;
use stag_rpc::{EngineError, MemoryError};
use stag_runtime::{GroupConfigError, GroupError};

use crate::url::UrlError;

/// Why a server does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// A URL cannot be used.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// There is no URL.
    #[error("the server has no URL to listen at; call listen(\"shm://NAME\") first")]
    NoUrl,
    /// The memory is too small.
    #[error(
        "memory: {given} octets are too few, {least} are needed for each core; allow more, or lower {by}"
    )]
    TooLittleMemory {
        /// What each core has.
        given: usize,
        /// What it needs.
        least: usize,
        /// What needs it.
        by: &'static str,
    },
    /// The cores are not to be had.
    #[error(transparent)]
    Cores(#[from] GroupConfigError),
    /// The system refused a thread, a descriptor or a pin.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A fabric cannot be used, or its address.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// There is no memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// An engine cannot be made so.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A thread of the server panicked.
    #[error("a thread of the server panicked: {0}")]
    Panic(String),
}

pub(super) fn system(doing: &'static str) -> impl FnOnce(io::Error) -> ServerError {
    move |source| ServerError::System { doing, source }
}

impl From<GroupError<ServerError>> for ServerError {
    fn from(error: GroupError<ServerError>) -> ServerError {
        match error {
            GroupError::Make { source, .. } => source,
            GroupError::Thread { source, .. } => system("start a thread for a core")(source),
            GroupError::Affinity { source, .. } => ServerError::Cores(GroupConfigError::Affinity(source)),
        }
    }
}
