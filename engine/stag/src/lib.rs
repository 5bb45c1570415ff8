//! **Stag**: a userspace, polled-mode RPC-over-RDMA engine.
//!
//! This is the crate to depend on. [`Server`] and [`Client`] are the shortest way, [`prelude`] has what most programs need, and
//! [`guide`] leads from an echo to an object store on several cores.
//!
//! ```no_run
//! use stag::prelude::*;
//!
//! static PROCEDURES: [Procedure; 1] = [Procedure::plain("ECHO")];
//!
//! fn echo(call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
//!     match call.arguments().opaque(1024) {
//!         Ok(text) => reply.success(|writer| writer.opaque(text)),
//!         Err(_) => reply.garbage_arguments(),
//!     }
//!     Outcome::Done
//! }
//!
//! fn main() -> Result<(), ServerError> {
//!     Server::new(|_| (Program::new(0x2000_7a62, 1, &PROCEDURES, echo),)).listen("shm://echo").run()?;
//!     Ok(())
//! }
//! ```
//!
//! Both stand on the polled engine, which a program may use itself: implement [`rpc::Service`], give it to a [`rpc::Engine`], and let
//! a [`runtime::Reactor`] run it. The layers are modules here.
//!
//! # Features
//!
//! | feature | default | what |
//! |---|---|---|
//! | `shm` | yes | shared memory between processes of one machine |
//! | `iwarp` | yes | RDMA over TCP |
//! | `verbs` | | RDMA devices; rdma-core is opened at run time |
//! | `tcp` | | `tcp://` URLs: RPC without RDMA |
//! | `nfs` | | NFSv3 and its neighbours, stores of files, disk input and output by io_uring |
//! | `version2` | | the builders' methods for version 2 of RPC-over-RDMA; the engine has it always |
//! | `test-util` | | the module `testing`: whole servers and clients in virtual time, with faults by seed |
//! | `hwloc` | | the machine's topology by the library hwloc |

#[cfg(any(feature = "shm", feature = "iwarp", feature = "verbs"))]
mod client;
#[cfg(any(feature = "shm", feature = "iwarp", feature = "verbs"))]
mod fabrics;
#[cfg(any(feature = "shm", feature = "iwarp", feature = "verbs"))]
mod server;
#[cfg(feature = "test-util")]
pub mod testing;
#[cfg(any(feature = "shm", feature = "iwarp", feature = "verbs"))]
mod url;

pub mod guide;

#[cfg(feature = "nfs")]
pub use stag_disk as disk;
pub use stag_fabric as fabric;
pub use stag_hugepages as hugepages;
pub use stag_memory as memory;
#[cfg(feature = "nfs")]
pub use stag_nfs as nfs;
pub use stag_proto as proto;
pub use stag_rpc as rpc;
pub use stag_runtime as runtime;
#[cfg(feature = "nfs")]
pub use stag_state as state;
#[cfg(feature = "nfs")]
pub use stag_stores as stores;
#[cfg(feature = "nfs")]
pub use stag_vfs as vfs;
pub use stag_wire as wire;

#[cfg(any(feature = "shm", feature = "iwarp", feature = "verbs"))]
pub use client::{Answer, CallBuilder, CallData, Client, ClientBuilder, ClientError, Pending};
#[cfg(any(feature = "shm", feature = "iwarp", feature = "verbs"))]
pub use server::{
    CoreStatistics, Program, RunningServer, Seat, Server, ServerEnd, ServerError, ServerStatistics,
    ServiceSet, StatisticsHandle,
};
#[cfg(any(feature = "shm", feature = "iwarp", feature = "verbs"))]
pub use url::UrlError;

/// What most programs need.
pub mod prelude {
    #[cfg(any(feature = "shm", feature = "iwarp", feature = "verbs"))]
    pub use crate::{
        Answer, Client, ClientError, Pending, Program, RunningServer, Seat, Server, ServerError,
        StatisticsHandle,
    };
    pub use stag_fabric::Provider;
    #[cfg(feature = "iwarp")]
    pub use stag_fabric::{Iwarp, IwarpConfig};
    #[cfg(feature = "shm")]
    pub use stag_fabric::{Shm, ShmConfig};
    #[cfg(feature = "verbs")]
    pub use stag_fabric::{Verbs, VerbsConfig};
    pub use stag_memory::{Arena, ArenaConfig, Budget, Buf, Ledger, PageChoice, Pool, SendBuf, Shared};
    pub use stag_rpc::{
        Call, CallError, Caller, Chunks, ConnectionEvent, Credentials, Deferred, Engine, EngineConfig, Home,
        Memory, Observed, Outcome, Placed, Placement, Pools, Procedure, Reply, ReplyMode, Request, Service,
    };
    pub use stag_runtime::{Clock, CoreId, PollMode, Poller, Reactor, ReactorConfig, ReactorId, StopFlag};
    pub use stag_wire::xdr::{Item, Overflow, Reader, Writer};
}

/// Compiles the example in the repository's README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
