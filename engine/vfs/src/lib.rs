//! Files without a protocol: what NFS programs and stores agree on.
//!
//! ```text
//! NFSv3, MOUNT, NFSACL, NLM ─▶ policy: names, permissions ─▶ Store ◀─ files in memory, a directory, an embedder's own
//! ```
//!
//! - Types: objects ([`ObjectStat`]), times of 64 bits ([`Timestamp`]), changes ([`Update`]), why something failed
//!   ([`FsError`]).
//! - [`UserIdentity`]: who acts, and what a mode permits; [`Acl`]: access control lists.
//! - [`Store`]: the interface of a store; [`policy`]: who may do what; [`Volume`]: the two together, an operation each.
//!
//! No type here belongs to a protocol: each protocol translates at its edge.
#![forbid(unsafe_code)]

mod acl;
mod error;
mod identity;
mod name;
pub mod policy;
mod store;
mod types;
mod verifier;
mod volume;

pub use acl::*;
pub use error::FsError;
pub use identity::*;
pub use name::*;
pub use store::*;
pub use types::*;
pub use volume::Volume;
