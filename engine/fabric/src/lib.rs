//! The fabric: what RPC-over-RDMA needs from RDMA, in the words of verbs.
//!
//! [`Provider`] is an opened device as one reactor sees it: its queue pairs, its one completion queue,
//! its registered memory and its connection manager. Engine code is generic over it; an application
//! picks one provider at start. Nothing here knows RPC.
//!
//! Ownership mirrors the hardware: a buffer is **moved** into a posted work request, and its [`Completion`]
//! gives it back. Memory that a peer may touch is moved into [`Provider::expose`], and comes back when it is
//! fenced. So safe code cannot touch memory that a device or a peer may write.

mod epoll;
pub mod iwarp;
mod log_limiter;
mod plain;
mod provider;
mod scatter;
mod setup;
pub mod shm;
mod shown;
pub mod sim;
mod slots;
pub mod verbs;

pub use iwarp::{CongestionControl, Iwarp, IwarpConfig};
pub use log_limiter::{LogLimiter, Withheld};
pub use provider::*;
pub use scatter::{RECEIVE_TARGETS_MAX, ReceiveTargets, ScatteredReceive};
pub use setup::{is_exhausted, resolve};
pub use shm::{Shm, ShmConfig};
pub use shown::*;
pub use verbs::{Verbs, VerbsConfig};
