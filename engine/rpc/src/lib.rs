//! RPC over RDMA: connections, clients and services, inside one reactor.
//!
//! An [`Engine`] drives the state machines of `stag-proto` over a provider of `stag-fabric`. It is one
//! [`Poller`](stag_runtime::Poller) of a reactor: each pass harvests completions, runs handlers, posts
//! work, and rings the doorbells once.
//!
//! A server implements [`Service`] and gives it to the engine; a client begins Calls with
//! [`Engine::call`] and takes their ends from [`Engine::completed`]. One engine can be both.
//!
//! # Reading order
//!
//! `service.rs` (what an embedder implements), `call.rs` and `reply.rs` (what its handler sees),
//! `client.rs` and `reconnect.rs` (what a client sees), `engine.rs` (the pass), then `serving.rs` (with
//! `pulling.rs` and `pushing.rs`: its Reads and Writes) and `calling.rs` (with `retransmission.rs` and
//! `keepalive.rs`), the two halves of a connection, and `in_place.rs`, their short cut for what has no chunks. `stream/` is RPC over TCP.

#![forbid(unsafe_code)]

mod admission;
mod call;
mod calling;
mod client;
mod client_log;
mod clients;
mod complaints;
mod config;
mod connection;
mod deferred;
mod dispatch;
mod doomed;
mod draft;
mod duplicates;
mod engine;
mod eviction;
mod fault;
mod few;
mod forecast;
mod in_place;
mod keepalive;
mod kept;
mod late;
mod memory;
mod offering;
mod pools;
mod progress;
mod pulling;
mod pushing;
mod reconnect;
mod reply;
mod retransmission;
mod service;
mod serving;
mod slot;
mod state;
mod statistics;
mod stream;
mod transit;
mod usage;

pub use call::{Call, Caller, Placed, PlacedPieces};
pub use client::{
    CLIENT_SEGMENTS_MAX, CallError, CallId, CallRefused, Chunks, CloseReason, CompletedCall, ConnectionEvent,
    Credentials, Request, Results,
};
pub use config::{ConfigError, EngineConfig, SEGMENTS_MAX};
pub use deferred::Deferred;
pub use engine::{Engine, EngineError};
pub use few::Few;
pub use memory::{Memory, MemoryError};
pub use pools::{PAGE_LEN, Pools};
pub use reconnect::{Backoff, ClientPolicy, KeepAlive};
pub use reply::{LONG_REPLY_LEN_MAX, Placement, Reply};
pub use service::{Locate, Lookup, Outcome, Procedure, Repeat, Service, Services, Token};
pub use statistics::Statistics;

/// Names a connection: that of its queue pair; of a TCP connection, an index that no queue pair has.
pub type ConnectionId = stag_fabric::QueuePairId;
