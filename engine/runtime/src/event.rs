//! An eventfd: a descriptor that any thread, or a signal handler, can make readable.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, eventfd};

/// A descriptor that becomes readable when it is signalled, and stays so until it is cleared.
#[derive(Debug)]
pub(crate) struct Event {
    descriptor: OwnedFd,
}

impl Event {
    pub(crate) fn new() -> io::Result<Event> {
        Ok(Event { descriptor: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Makes the descriptor readable. Async-signal-safe: one `write`, which rustix makes without libc, so that `errno`
    /// stays as it was.
    pub(crate) fn signal(&self) {
        // It fails only when the counter is at its limit, and then the descriptor is readable already.
        let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
    }

    /// Makes the descriptor not readable until the next signal.
    pub(crate) fn clear(&self) {
        // Without a signal it fails with EAGAIN, and there is nothing to clear.
        let _ = rustix::io::read(&self.descriptor, &mut [0u8; 8]);
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}
