//! What a sleeping reactor sleeps on, and how a provider with many sockets finds those with news.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::socket::check;

/// What a descriptor in the epoll belongs to. The generation, or what is kept of it, tells a new user of a slot from an old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// A listener, by its index.
    Listener(u32),
    /// A handshake of the accepting side.
    Incoming {
        /// Its slot.
        index: u32,
        /// The low bits of its generation.
        generation: u32,
    },
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
            Token::Listener(index) => (0, 0, index),
            Token::Incoming { index, generation } => (1, generation & Token::GENERATION_MASK, index),
            Token::QueuePair { index, generation } => (2, generation & Token::GENERATION_MASK, index),
        };
        kind << 60 | u64::from(generation) << 32 | u64::from(index)
    }

    fn decode(value: u64) -> Token {
        let (index, generation) = (value as u32, (value >> 32) as u32 & Token::GENERATION_MASK);
        match value >> 60 {
            0 => Token::Listener(index),
            1 => Token::Incoming { index, generation },
            _ => Token::QueuePair { index, generation },
        }
    }
}

/// Descriptors looked at in one pass.
pub(super) const BURST: usize = 64;

/// An epoll, level-triggered.
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

    /// Watches `fd` for something to receive, until it is closed.
    pub(super) fn add(&self, fd: BorrowedFd<'_>, token: Token) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, false)
    }

    /// As [`Epoll::add`], for room to send as well.
    pub(super) fn add_both(&self, fd: BorrowedFd<'_>, token: Token) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, true)
    }

    /// Watches `fd`, which is in already, as `token`, and for room to send if it is `to_send`.
    pub(super) fn change(&self, fd: BorrowedFd<'_>, token: Token, to_send: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, to_send)
    }

    /// Watches `fd` no more.
    pub(super) fn remove(&self, fd: BorrowedFd<'_>) {
        let none = std::ptr::null_mut();
        // SAFETY: two open descriptors; no event is needed. It fails if `fd` is not in: then all is well.
        unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_DEL, fd.as_raw_fd(), none) };
    }

    fn control(
        &self,
        operation: libc::c_int,
        fd: BorrowedFd<'_>,
        token: Token,
        to_send: bool,
    ) -> io::Result<()> {
        let to_send = if to_send { libc::EPOLLOUT } else { 0 };
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | to_send) as u32, u64: token.encode() };
        // SAFETY: two open descriptors and an event that lives over the call.
        check(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, fd.as_raw_fd(), &raw mut event) })?;
        Ok(())
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
    pub(super) fn ready(&self, at: usize) -> Token {
        let libc::epoll_event { u64: token, .. } = self.events[at];
        Token::decode(token)
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_kernel() {
        let (index, generation) = (u32::MAX, Token::GENERATION_MASK);
        let pair = Token::QueuePair { index, generation };
        for token in [Token::Listener(3), Token::Incoming { index: 5, generation: 6 }, pair] {
            assert_eq!(Token::decode(token.encode()), token);
        }
    }
}
