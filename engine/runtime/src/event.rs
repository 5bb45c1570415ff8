//! An eventfd: a descriptor that any thread, or a signal handler, can make readable.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A descriptor that becomes readable when it is signalled, and stays so until it is cleared.
#[derive(Debug)]
pub(crate) struct Event {
    descriptor: OwnedFd,
}

impl Event {
    pub(crate) fn new() -> io::Result<Event> {
        // SAFETY: the call takes no pointer.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made the descriptor, so it is open and has no other owner.
        Ok(Event { descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) } })
    }

    /// Makes the descriptor readable. Async-signal-safe: one `write`, and `errno` is left as it was.
    pub(crate) fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: errno's address is valid for the life of the thread, and this thread alone uses it.
        let errno = unsafe { *libc::__errno_location() };
        // SAFETY: `one` is readable for its length. It fails only when the counter is at its limit,
        // and then the descriptor is readable already.
        let _ = unsafe { libc::write(self.descriptor.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }

    /// Makes the descriptor not readable until the next signal.
    pub(crate) fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: `count` is writable for its length. Without a signal it fails with EAGAIN, and there
        // is nothing to clear.
        let _ = unsafe { libc::read(self.descriptor.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}
