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
//! `service/` (the embedder's interface; `call.rs` and `reply.rs` are the handler's view), `client/` (the interface of a
//! client; `calling.rs` is the client half of a connection), `engine/` (`pass.rs` is what a reactor calls; `chores.rs` is
//! its work beside messages), `server/` (`serving/` is the server half of a connection), and `in_place.rs`, the fast path
//! of both halves for messages with one chunk or none. `security/` says who calls, and seals what has to be sealed.
//! `both_ways.rs` is for connections with both halves, `call_back.rs` for Calls that services make, `recorder.rs` keeps
//! the last messages for who wants to see them, `agreement.rs` for features that both ends have to announce, `version2/`
//! for connections that speak version 2 of RPC-over-RDMA. `stream/` is RPC over TCP, with a client of its own. `carried/`
//! is for groups of reactors: Calls that are executed at another reactor than they came in at; `group.rs` makes several
//! engines one server, with `newcomers.rs` for connections that are served elsewhere. Who gets how much of what is scarce
//! is decided in `stag-shares`.

#![forbid(unsafe_code)]

mod agreement;
mod both_ways;
mod call_back;
mod carried;
mod chores;
mod client;
mod config;
mod connection;
mod engine;
mod fault;
mod few;
mod gauges;
mod group;
mod group_arenas;
mod in_place;
mod memory;
mod newcomers;
mod pools;
mod ready;
mod recorder;
mod security;
mod server;
mod service;
mod stages;
mod state;
mod statistics;
mod stream;
mod version2;

pub use call_back::{CALLS_BACK_MAX, CallBack, CallBackError, carries_calls_back, name_in_group};
pub use carried::{CARRIED_CALLS_MAX, CallLanes, CallMesh};
pub use client::reconnect::{Backoff, ClientPolicy, KeepAlive};
pub use client::{
    CLIENT_SEGMENTS_MAX, CallError, CallId, CallRefused, Chunks, CloseReason, CompletedCall, ConnectionEvent,
    Credentials, ReplyMode, Request, Results,
};
pub use config::{ConfigError, EngineConfig, PlacementChoice, ProtocolChoice, SEGMENTS_MAX};
pub use engine::{Engine, EngineError};
pub use few::Few;
pub use gauges::{ClientCredits, CreditGauge, ServedConnection, client_credits, credit_fairness};
pub use group::EngineGroup;
pub use memory::{Memory, MemoryError};
pub use newcomers::{Newcomer, ServedAt};
pub use pools::{PAGE_LEN, Pools};
pub use recorder::{BadEnd, RECORDED_LEN_MAX, Recording, TracedConnection, TracedMessage, recorder_len};
pub use security::{
    AuthBody, AuthNone, AuthTls, AuthUnix, CallSealer, CallToSeal, CallerVisitor, Claim, Flavor, FlavorSet,
    OpenedCall, OpenedCaller, OpenedResults, ReplyOpener, ReplySeal, SealBroken, SealedCall, SealedHeader,
    Secured, StandardFlavors, Unsealed,
};
pub use server::governor::{CLIENT_WEIGHT_MAX, CLIENT_WEIGHT_USUAL, CreditPolicy};
pub use server::owner::owner;
pub use service::call::{Call, CallHead, Caller, Placed, PlacedPieces};
pub use service::deferred::Deferred;
pub use service::observed::{
    EXECUTION_BOUNDS_NANOSECONDS, OTHER_STATUS, Observed, ProcedureStatistics, WAIT_BOUNDS_MICROSECONDS,
};
pub use service::panic_guard::PanicGuard;
pub use service::procedure_sums::sum_procedures;
pub use service::reply::{LONG_REPLY_LEN_MAX, Placement, Reply};
pub use service::{Home, Locate, Lookup, Outcome, Procedure, Repeat, Service, Services, Token};
pub use statistics::Statistics;
pub use stream::client::{
    BlockingClient, CallSource, StreamCall, StreamCallError, StreamClient, StreamLimits,
};

/// Names a connection: that of its queue pair; of a TCP connection, an index that no queue pair has.
pub type ConnectionId = stag_fabric::QueuePairId;
