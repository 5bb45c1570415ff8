//! Stores of files, each an implementation of [`stag_vfs::Store`].
//!
//! - [`memory`]: files in pool memory, which READ hands out and WRITE takes over without a copy.
//! - [`directory`]: a directory of the machine.
#![forbid(unsafe_code)]

pub mod directory;
pub mod memory;
