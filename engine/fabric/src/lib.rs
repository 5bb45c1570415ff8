//! The fabric: what RPC-over-RDMA needs from RDMA, in the words of verbs.
//!
//! [`Provider`] is an opened device as one reactor sees it: its queue pairs, its one completion queue,
//! its registered memory and its connection manager. Engine code is generic over it; an application
//! picks one provider at start. Nothing here knows RPC.
//!
//! Ownership mirrors the hardware: a buffer is **moved** into a posted work request, and its [`Completion`]
//! gives it back. Memory that a peer may touch is moved into [`Provider::expose`], and comes back when it is
//! fenced. So safe code cannot touch memory that a device or a peer may write.
//!
//! The providers `shm`, `iwarp` and `verbs` are features of this crate, all on by default. `sim` needs nothing and is always there.

#![cfg_attr(
    not(all(feature = "shm", feature = "iwarp", feature = "verbs")),
    allow(dead_code, reason = "what providers share is used by those that are built")
)]

mod congestion;
mod epoll;
#[cfg(feature = "iwarp")]
pub mod iwarp;
mod log_limiter;
mod plain;
mod provider;
mod scatter;
mod setup;
#[cfg(feature = "shm")]
pub mod shm;
mod shown;
pub mod sim;
mod slots;
mod verb_types;
#[cfg(feature = "verbs")]
pub mod verbs;

pub use congestion::{BadCongestionControl, CongestionControl};
#[cfg(feature = "iwarp")]
pub use iwarp::{Iwarp, IwarpConfig};
pub use log_limiter::{LogLimiter, Withheld};
pub use provider::*;
pub use scatter::{RECEIVE_TARGETS_MAX, ReceiveTargets, ScatteredReceive};
pub use setup::{is_exhausted, resolve};
#[cfg(feature = "shm")]
pub use shm::{Shm, ShmConfig};
pub use shown::*;
pub use verb_types::*;
#[cfg(feature = "verbs")]
pub use verbs::{Verbs, VerbsConfig};
