//! Bindings to rdma-core's `libibverbs` and `librdmacm`.
//!
//! - Structures, constants and signatures are made from the headers of rdma-core 44 and checked in (`bindings.sh`);
//!   the layout of every structure is checked when this is compiled.
//! - The libraries are opened when [`RdmaCore::load`] is called, never linked: one binary starts on machines with and
//!   without them. What is missing is a [`LoadError`] that says which package has it.
//! - Functions are fields of a table, [`RdmaCore`]. A test can make a table of its own.
//! - What `verbs.h` has as inline functions is written by hand ([`ibv_post_send`] and those beside it). They
//!   go through `ibv_context.ops`, and one, [`ibv_query_device_ex`], through `verbs_context`.
//!
//! Nothing here is safe to call, and nothing here says how: that is for the manual pages, and for `fabric::verbs`.

mod functions;
mod inline;
mod load;
mod table;
#[rustfmt::skip]
// Generated: the names are C's, and verbs.h has the documentation.
#[allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#[allow(clippy::unnecessary_operation, clippy::identity_op)] // as above: its layout checks
mod types;

pub use functions::{Cm, Verbs};
pub use inline::*;
pub use load::{LoadError, RdmaCore};
pub use types::*;
