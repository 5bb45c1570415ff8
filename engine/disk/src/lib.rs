//! Files: reads, writes and syncs of buffers by io_uring, owned by one reactor.
//!
//! A [`Disk`] takes the buffers of an operation by value and gives them back with its [`DiskCompletion`], as a fabric does. So a
//! buffer in flight can be neither freed nor touched, even if the operation is abandoned; dropping the last [`Disk`] of a
//! reactor waits for the operations in flight. Those that do not end within half a second keep their buffers for good
//! ([`Pool::stranded`](stag_memory::Pool::stranded)). With io_uring nothing allocates after [`Disk::new`].
//!
//! Each [`Disk::poll`] submits all new operations by one system call, and finds completions in shared memory, without one.
//! Where io_uring is not permitted (an old kernel, a container's filter), helper threads of each owner do the operations, which takes
//! longer, and [`Disk::method`] says so. An owner whose files are in memory does operations as they are begun, by plain system
//! calls, and so do reads of what the kernel has in memory of other files ([`AtOnce`]): there the kernel never waits for a device.
//!
//! # In a service
//!
//! A service of one's own keeps the [`Disk`] of its reactor. A handler begins an operation with a tag ([`Disk::write`] of the pieces in
//! which a Call's data was placed, [`Disk::read`] into memory for its answer) and returns `Outcome::Later`. `Service::poll_later` asks
//! [`Disk::poll`] and finds the Call by the tag; `Service::finish` answers it with the buffers that came back; and
//! `Service::descriptors` adds [`Disk::descriptor`], so that the reactor wakes. Arenas that [`Disk::new`] is told of are registered with the
//! kernel once: `Seat::arena` in a server that is built. The example `engine/stag/examples/disk.rs` is a whole program.
//!
//! # What may wait
//!
//! System calls that io_uring does not have, and that may wait, are for [`Helpers`]: threads of one owner. A [`DiskFile`] can leave its
//! closing to them.
//!
//! [`system`] has the few system calls about files that `rustix` lacks.

mod blocking;
mod completion;
mod disk;
mod file;
mod helped;
mod helpers;
mod locks;
mod operations;
mod ring;
mod steps;
pub mod system;
mod users;
mod work;

pub use completion::{Data, DiskCompletion, DiskRefused, PIECES_MAX, PIECES_USUAL, Pieces};
pub use disk::{Disk, DiskConfig};
pub use file::{ClosingBin, DiskFile};
pub use helpers::{HelperLimits, Helpers};
pub use operations::{AtOnce, DiskStatistics, Method};
pub use rustix::io::Errno;
pub use steps::{DiskStep, Steps};
pub use work::Sync;
