//! What a sleeping reactor sleeps on: an epoll with all of our sockets and one eventfd in it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::pages::{check, file_status};

/// What a descriptor in the epoll belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// Our eventfd.
    Wake,
    /// A listener, by its index.
    Listener(u32),
    /// A handshake of the accepting side, by its id.
    Incoming(u32),
    /// A queue pair's socket.
    QueuePair {
        /// Its slot.
        index: u32,
        /// The low bits of its generation.
        generation: u32,
    },
}

impl Token {
    /// Bits of a generation that a token keeps. An event is at most one pass old, so a few would do.
    pub(super) const GENERATION_MASK: u32 = (1 << 28) - 1;

    fn encode(self) -> u64 {
        let (kind, generation, index) = match self {
            Token::Wake => (0, 0, 0),
            Token::Listener(index) => (1, 0, index),
            Token::Incoming(id) => (2, 0, id),
            Token::QueuePair { index, generation } => (3, generation & Token::GENERATION_MASK, index),
        };
        kind << 60 | u64::from(generation) << 32 | u64::from(index)
    }

    fn decode(value: u64) -> Token {
        let index = value as u32;
        match value >> 60 {
            0 => Token::Wake,
            1 => Token::Listener(index),
            2 => Token::Incoming(index),
            _ => Token::QueuePair { index, generation: (value >> 32) as u32 & Token::GENERATION_MASK },
        }
    }
}

/// What became of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ready {
    /// Whose it is.
    pub(super) token: Token,
    /// The other end closed, or is gone.
    pub(super) hung_up: bool,
}

/// Descriptors looked at in one pass.
const BURST: usize = 16;

/// An epoll.
pub(super) struct Epoll {
    fd: OwnedFd,
    events: [libc::epoll_event; BURST],
}

impl Epoll {
    pub(super) fn new() -> io::Result<Epoll> {
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: just made, nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Epoll { fd, events: [libc::epoll_event { events: 0, u64: 0 }; BURST] })
    }

    /// Watches `fd` until it is closed or [removed](Epoll::remove).
    pub(super) fn add(&self, fd: BorrowedFd<'_>, token: Token) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token)
    }

    /// Watches `fd`, which is in already, under another name.
    pub(super) fn rename(&self, fd: BorrowedFd<'_>, token: Token) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token)
    }

    fn control(&self, operation: libc::c_int, fd: BorrowedFd<'_>, token: Token) -> io::Result<()> {
        let events = (libc::EPOLLIN | libc::EPOLLRDHUP) as u32;
        let mut event = libc::epoll_event { events, u64: token.encode() };
        // SAFETY: two open descriptors and an event that lives over the call.
        check(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, fd.as_raw_fd(), &raw mut event) })?;
        Ok(())
    }

    /// Watches `fd` no more.
    pub(super) fn remove(&self, fd: BorrowedFd<'_>) {
        let none = std::ptr::null_mut();
        // SAFETY: two open descriptors; no event is needed. It fails if `fd` is not in: then all is well.
        unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_DEL, fd.as_raw_fd(), none) };
    }

    /// Looks, without waiting, and returns how many are ready; [`Epoll::ready`] tells which.
    pub(super) fn look(&mut self) -> usize {
        // SAFETY: room for BURST events.
        let count = unsafe {
            libc::epoll_wait(self.fd.as_raw_fd(), self.events.as_mut_ptr(), BURST as libc::c_int, 0)
        };
        // The only failure of a look at our own epoll is EINTR; the next look tells.
        usize::try_from(count).unwrap_or(0)
    }

    /// The ready descriptor `at`, below what [`Epoll::look`] returned.
    pub(super) fn ready(&self, at: usize) -> Ready {
        let libc::epoll_event { events, u64: token } = self.events[at];
        let hung_up = events & (libc::EPOLLHUP | libc::EPOLLRDHUP | libc::EPOLLERR) as u32 != 0;
        Ready { token: Token::decode(token), hung_up }
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

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

    #[test]
    fn a_rung_bell_is_ready_until_it_is_cleared() {
        let (mut epoll, bell) = (Epoll::new().unwrap(), Bell::new().unwrap());
        epoll.add(bell.as_fd(), Token::Wake).unwrap();
        assert_eq!(epoll.look(), 0);
        bell.ring();
        assert_eq!(epoll.look(), 1);
        assert_eq!(epoll.ready(0), Ready { token: Token::Wake, hung_up: false });
        bell.clear();
        assert_eq!(epoll.look(), 0);
    }

    #[test]
    fn tokens_survive_the_kernel() {
        let pair = Token::QueuePair { index: u32::MAX, generation: Token::GENERATION_MASK };
        for token in [Token::Wake, Token::Listener(3), Token::Incoming(u32::MAX), pair] {
            assert_eq!(Token::decode(token.encode()), token);
        }
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
