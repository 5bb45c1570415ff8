//! An operation to do, and how safe a write has to be.

use rustix::event::Timespec;

use crate::completion::Data;

/// How long the end of a disk waits for an operation in flight to end.
pub(crate) const DROP_PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// How safe a write has to be before it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Not at all: [`Disk::sync`](crate::Disk::sync) will make it so.
    None,
    /// The octets, and what is needed to find them.
    Data,
    /// All of the file's attributes too.
    All,
}

impl Sync {
    /// The flags of a write's system call.
    pub(crate) fn write_flags(self) -> libc::c_int {
        match self {
            Sync::None => 0,
            Sync::Data => libc::RWF_DSYNC,
            Sync::All => libc::RWF_SYNC,
        }
    }
}

/// An operation to do.
pub(crate) struct Work {
    pub(crate) tag: u64,
    pub(crate) offset: u64,
    pub(crate) sync: Sync,
    pub(crate) data: Data,
}
