//! [`ClientError`]: why a Call failed, or a client.

use std::io;
use std::sync::Arc;

use stag_fabric::FabricError;
use stag_rpc::{CallError, CallRefused, CloseReason, EngineError, MemoryError};

use crate::url::UrlError;

/// Calls that wait for the client's thread at most.
pub(super) const JOBS_MAX: usize = 1024;

/// Why a Call failed, or a client.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The URL cannot be used.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The fabric cannot be used, or its address.
    #[error(transparent)]
    Fabric(Arc<FabricError>),
    /// There is no memory.
    #[error(transparent)]
    Memory(Arc<MemoryError>),
    /// The engine cannot be made so.
    #[error(transparent)]
    Engine(Arc<EngineError>),
    /// The system refused a thread or a descriptor.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// The system's answer.
        source: Arc<io::Error>,
    },
    /// There is no connection. The Call was not executed.
    #[error("not connected: {}", .0.describe("the server"))]
    NotConnected(CloseReason),
    /// The Call ended without results.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The Call was not begun.
    #[error(transparent)]
    Refused(#[from] CallRefused),
    /// Each time that the Call was sent, the connection ended. It is not sent again. The server may have executed it.
    #[error(
        "the connection ended each of the {times} times that the Call was sent, the last time because {}; the server may have \
         executed it",
        .reason.describe("the server")
    )]
    EndedEachTime {
        /// How often it was sent.
        times: u32,
        /// Why the connection ended last.
        reason: CloseReason,
    },
    /// The arguments are longer than a Call may be.
    #[error("the arguments are longer than {0} octets; send what is long as data")]
    ArgumentsTooLong(usize),
    /// The arguments say more items of data than the Call has, or the data's length is not that of the item.
    #[error("the arguments leave out {0} items of data (eligible_opaque_reduced); a Call has one at most")]
    Items(usize),
    /// The memory of the client has no run of this length, and no Call that ends will make one free.
    #[error("no memory for {0} octets in one piece; give the client more memory")]
    NoMemory(usize),
    /// More Calls wait than may.
    #[error("{JOBS_MAX} Calls wait for the client's thread; wait for some of them")]
    Busy,
    /// A Call over TCP cannot be sealed.
    #[error("a Call over tcp:// cannot be sealed; connect to an address of the server for RDMA")]
    SealedOverTcp,
    /// The client has ended.
    #[error("the client has ended")]
    Ended,
}

pub(super) fn system(doing: &'static str) -> impl FnOnce(io::Error) -> ClientError {
    move |source| ClientError::System { doing, source: Arc::new(source) }
}

impl From<FabricError> for ClientError {
    fn from(error: FabricError) -> ClientError {
        ClientError::Fabric(Arc::new(error))
    }
}

impl From<MemoryError> for ClientError {
    fn from(error: MemoryError) -> ClientError {
        ClientError::Memory(Arc::new(error))
    }
}

impl From<EngineError> for ClientError {
    fn from(error: EngineError) -> ClientError {
        ClientError::Engine(Arc::new(error))
    }
}
