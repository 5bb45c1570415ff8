//! What wakes a sleeping reactor: an eventfd that peers write to, and its sockets.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::pages::{check, file_status};
use crate::epoll::EventFlags;

/// What a socket is watched for.
pub(super) const SOCKET: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);

/// An eventfd: ours, which peers write to wake us; or a peer's.
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new() -> io::Result<Bell> {
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: just made, nobody else owns it.
        Ok(Bell(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The peer's, from its handshake. `None` if a write to it might block or raise a signal.
    pub(super) fn from_peer(fd: OwnedFd) -> Option<Bell> {
        let kind = file_status(fd.as_fd()).ok()?.st_mode & libc::S_IFMT;
        // SAFETY: an open descriptor.
        let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) }).ok()?;
        let harmless = kind != libc::S_IFIFO && kind != libc::S_IFSOCK && flags & libc::O_NONBLOCK != 0;
        harmless.then_some(Bell(fd))
    }

    /// Wakes whoever sleeps on it.
    pub(super) fn ring(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: 8 readable bytes. Full (EAGAIN) is as good as rung.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Forgets that it was rung.
    pub(super) fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: 8 writable bytes. EAGAIN: it was not rung.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::epoll::{Epoll, Ready, Token};

    #[test]
    fn a_rung_bell_is_ready_until_it_is_cleared() {
        let (mut epoll, bell) = (Epoll::new().unwrap(), Bell::new().unwrap());
        epoll.add(bell.as_fd(), Token::Own, EventFlags::IN).unwrap();
        assert_eq!(epoll.look(), 0);
        bell.ring();
        assert_eq!(epoll.look(), 1);
        assert_eq!(epoll.ready(0), Ready { token: Token::Own, hung_up: false });
        bell.clear();
        assert_eq!(epoll.look(), 0);
    }

    #[test]
    fn a_pipe_is_no_bell() {
        let mut pipe = [0; 2];
        // SAFETY: room for two descriptors.
        check(unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) }).unwrap();
        // SAFETY: just made.
        let [_read, write] = pipe.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        assert!(Bell::from_peer(write).is_none());
    }
}
