//! The server: admission of clients, and the Calls of each connection from their arrival to their Reply.
//!
//! ```text
//!  admission (eviction) ─▶ serving ─▶ pulling ─▶ service ─▶ draft ─▶ pushing
//! ```
//!
//! `serving/` is the server half of a connection: it drives the Responder of `stag-proto`. `pending.rs` has the stages of a
//! Call that is not answered at once. The data of a Call's chunks is in `pulling.rs` (the plan) and `serving/pulls.rs` (the
//! waits for memory or room), the data of its Reply in `draft.rs` and `pushing.rs`. `duplicates.rs` and
//! `doomed.rs` are for Calls that come again, `spares.rs` keeps reusable lists, `progress.rs` watches the peer,
//! `client_log.rs` reports on it. Who gets how much of what is scarce is decided in `stag-shares`; `owner.rs` says by whom.

pub(crate) mod admission;
pub(crate) mod client_log;
pub(crate) mod doomed;
pub(crate) mod draft;
pub(crate) mod duplicates;
pub(crate) mod owner;
pub(crate) mod pending;
pub(crate) mod progress;
pub(crate) mod pulling;
pub(crate) mod pushing;
pub(crate) mod serving;
pub(crate) mod shown;
pub(crate) mod spares;

pub(crate) use stag_shares::{eviction, governor, kept, transit};
