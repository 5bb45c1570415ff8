//! The server: admission of clients, and the Calls of each connection from their arrival to their Reply.
//!
//! ```text
//!  admission (eviction) ─▶ serving ─▶ pulling ─▶ service ─▶ draft ─▶ pushing
//! ```
//!
//! `serving/` is the server half of a connection: it drives the Responder of `stag-proto`. `pending.rs` has the stages of a
//! Call that is not answered at once. The data of a Call's chunks is in `pulling.rs` (the plan) and `serving/pulls.rs` (the
//! waits for memory or room), the data of its Reply in `draft.rs` and `pushing.rs`. `duplicates.rs` (over `kept.rs`) and
//! `doomed.rs` are for Calls that come again, `transit.rs` shares the memory that payload passes through, `spares.rs` keeps
//! reusable lists, `governor.rs` (over `trial.rs`) says how many Calls a peer may have in flight, `progress.rs` watches the
//! peer, `client_log.rs` reports on it.

pub(crate) mod admission;
pub(crate) mod client_log;
pub(crate) mod doomed;
pub(crate) mod draft;
pub(crate) mod duplicates;
pub(crate) mod eviction;
pub(crate) mod governor;
pub(crate) mod kept;
pub(crate) mod pending;
pub(crate) mod progress;
pub(crate) mod pulling;
pub(crate) mod pushing;
pub(crate) mod ranks;
pub(crate) mod serving;
pub(crate) mod spares;
pub(crate) mod transit;
pub(crate) mod trial;
