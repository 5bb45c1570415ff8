//! **Stag**: a userspace, polled-mode RPC-over-RDMA engine.
//!
//! This is the crate to depend on. It re-exports the layers, and what most programs need stands in
//! [`prelude`].
//!
//! - To serve: implement [`rpc::Service`], give it to a [`rpc::Engine`], and let a
//!   [`runtime::Reactor`] run it. `examples/echo_server.rs` is a whole server.
//! - To call: connect an engine, begin Calls, take their ends. `examples/echo_client.rs` is a whole
//!   client.
//! - A fabric is chosen once, at start, and all else is the same: [`fabric::shm`] between processes of one
//!   machine (`engine.listen("NAME")`), [`fabric::iwarp`] over TCP and [`fabric::verbs`] on an RDMA device
//!   (`engine.listen("0.0.0.0:20049")`), [`fabric::sim`] for tests in virtual time. Write functions that are
//!   generic over [`fabric::Provider`], and the choice is one `match` in `main`.
//! - Work that takes long is done by another thread, which answers when it is done: `examples/later.rs`.
//! - A server calls its clients back on their own connections: `examples/lease.rs` recalls leases so.
//! - Several cores are one server: a [`runtime::ReactorGroup`] runs an engine on each, and a [`rpc::EngineGroup`] spreads the
//!   connections. `examples/echo_server.rs` does so if it is told `--cores`.
//! - Data that is large goes by chunk, without a copy: `examples/store.rs` is a server and a client.

pub use stag_disk as disk;
pub use stag_fabric as fabric;
pub use stag_hugepages as hugepages;
pub use stag_memory as memory;
pub use stag_nfs as nfs;
pub use stag_proto as proto;
pub use stag_rpc as rpc;
pub use stag_runtime as runtime;
pub use stag_state as state;
pub use stag_stores as stores;
pub use stag_vfs as vfs;
pub use stag_wire as wire;

/// What most programs need.
pub mod prelude {
    pub use stag_fabric::{Iwarp, IwarpConfig, Provider, Shm, ShmConfig, Verbs, VerbsConfig};
    pub use stag_memory::{Arena, ArenaConfig, Budget, Buf, Ledger, PageChoice, Pool, Shared};
    pub use stag_rpc::{
        Call, CallError, Caller, Chunks, ConnectionEvent, Credentials, Deferred, Engine, EngineConfig,
        Memory, Outcome, Placed, Placement, Pools, Procedure, Reply, ReplyMode, Request, Service,
    };
    pub use stag_runtime::{Clock, CoreId, PollMode, Poller, Reactor, ReactorConfig, StopFlag};
    pub use stag_wire::xdr::{Overflow, Reader, Writer};
}

/// Compiles the example in the repository's README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
