//! One descriptor that becomes readable for any of the device's.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::FabricError;

/// An epoll of descriptors that are only looked at, all together. A closed one leaves by itself.
pub(super) struct Epoll(OwnedFd);

impl Epoll {
    pub(super) fn new() -> io::Result<Epoll> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor, owned by nobody else.
        Ok(Epoll(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Watches one more.
    pub(super) fn add(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: the event is read during the call.
        match unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &mut event) }
        {
            0 => Ok(()),
            // Two providers of one process share the descriptor of a device; each watches it.
            _ => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
                error => Err(error),
            },
        }
    }

    /// Watches one no longer.
    pub(super) fn remove(&self, fd: BorrowedFd<'_>) {
        // SAFETY: nothing is read for a removal. That it was not there is all that can go wrong.
        unsafe {
            libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_DEL, fd.as_raw_fd(), std::ptr::null_mut())
        };
    }

    /// Whether any is readable. One system call.
    pub(super) fn is_ready(&self) -> bool {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for the one event that is asked for.
        unsafe { libc::epoll_wait(self.0.as_raw_fd(), &mut event, 1, 0) > 0 }
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub(super) fn failed(source: io::Error) -> FabricError {
    FabricError::System { doing: "watch the RDMA device's events".to_owned(), source }
}
