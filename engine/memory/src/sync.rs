//! The atomics of this crate, which loom replaces in its model.

#[cfg(loom)]
pub(crate) use loom::sync::{Arc, atomic::AtomicU64, atomic::Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::{Arc, atomic::AtomicU64, atomic::Ordering};
