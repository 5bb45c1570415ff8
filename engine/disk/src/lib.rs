//! Files: reads, writes and syncs of buffers by io_uring, owned by one reactor.
//!
//! A [`Disk`] takes the buffers of an operation by value and gives them back with its [`DiskCompletion`], as a fabric
//! does. So a buffer in flight can be neither freed nor touched, even if the operation is abandoned; a [`Disk`] that
//! is dropped waits for what is in flight. Nothing allocates after [`Disk::new`].
//!
//! Operations that were begun are handed to the kernel together, by one system call for each [`Disk::poll`]
//! that finds some; completions are found in shared memory, by none. Where io_uring is not permitted
//! (an old kernel, a container's filter), operations are done by plain system calls as they are begun, and
//! [`Disk::method`] says so. So are those of an owner whose files are in memory ([`Disk::set_immediate`]), since the kernel has nothing to
//! wait for there.
//!
//! [`system`] has the few system calls about files that `rustix` lacks.

mod blocking;
mod completion;
mod disk;
mod ring;
mod steps;
pub mod system;
mod users;

pub use completion::{Data, DiskCompletion, DiskRefused, PIECES_MAX, PIECES_USUAL, Pieces};
pub use disk::{Disk, DiskConfig, DiskStatistics, Method, Sync};
pub use rustix::io::Errno;
pub use steps::{DiskStep, Steps};
