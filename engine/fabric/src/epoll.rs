//! The epoll on which a sleeping reactor waits, and by which a provider with many descriptors finds the ready
//! ones.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData};

pub(crate) use rustix::event::epoll::EventFlags;

use crate::QueuePairId;

/// What a descriptor belongs to, or an identifier of the connection manager: the number that the kernel gives back
/// with its events. Generations tell a new user of a slot from an old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// The provider itself.
    Own,
    /// A listener, by its index.
    Listener(u32),
    /// A connection that has no queue pair yet.
    Incoming {
        /// Its slot, or its number.
        index: u32,
        /// The low bits of its generation.
        generation: u32,
    },
    /// A queue pair.
    QueuePair {
        /// Its slot.
        index: u32,
        /// The low bits of its generation.
        generation: u32,
    },
}

impl Token {
    /// Bits of a generation that a token keeps. An event is at most some passes old, so a few would do.
    pub(crate) const GENERATION_MASK: u32 = (1 << 28) - 1;

    pub(crate) fn queue_pair(id: QueuePairId) -> Token {
        Token::QueuePair { index: id.index, generation: id.generation & Token::GENERATION_MASK }
    }

    pub(crate) fn encode(self) -> u64 {
        let (kind, generation, index) = match self {
            Token::Own => (0, 0, 0),
            Token::Listener(index) => (1, 0, index),
            Token::Incoming { index, generation } => (2, generation & Token::GENERATION_MASK, index),
            Token::QueuePair { index, generation } => (3, generation & Token::GENERATION_MASK, index),
        };
        kind << 60 | u64::from(generation) << 32 | u64::from(index)
    }

    pub(crate) fn decode(value: u64) -> Token {
        let (index, generation) = (value as u32, (value >> 32) as u32 & Token::GENERATION_MASK);
        match value >> 60 {
            0 => Token::Own,
            1 => Token::Listener(index),
            2 => Token::Incoming { index, generation },
            _ => Token::QueuePair { index, generation },
        }
    }
}

/// What became of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ready {
    /// Whose it is.
    pub(crate) token: Token,
    /// The other end closed, or is gone.
    pub(crate) hung_up: bool,
}

/// Descriptors looked at in one pass.
const BURST: usize = 64;

/// An epoll, level-triggered. A descriptor that is closed leaves it by itself.
pub(crate) struct Epoll {
    fd: OwnedFd,
    events: [Event; BURST],
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Epoll> {
        let blank = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        Ok(Epoll { fd: epoll::create(CreateFlags::CLOEXEC)?, events: [blank; BURST] })
    }

    /// Watches `fd`, for `interest`, as `token`.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, token: Token, interest: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.fd, fd, EventData::new_u64(token.encode()), interest)?)
    }

    /// Watches `fd`, which is in already, for something else or as something else.
    pub(crate) fn change(&self, fd: BorrowedFd<'_>, token: Token, interest: EventFlags) -> io::Result<()> {
        Ok(epoll::modify(&self.fd, fd, EventData::new_u64(token.encode()), interest)?)
    }

    /// Watches `fd` no more.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        // It fails if `fd` is not in: then all is well.
        let _ = epoll::delete(&self.fd, fd);
    }

    /// Polls, without waiting, and returns how many are ready; [`Epoll::ready`] tells which.
    pub(crate) fn poll(&mut self) -> usize {
        // The only failure with our own epoll is EINTR; the next poll tells.
        epoll::wait(&self.fd, &mut self.events[..], Some(&Timespec::default())).unwrap_or(0)
    }

    /// The ready descriptor `at`, below what [`Epoll::poll`] returned.
    pub(crate) fn ready(&self, at: usize) -> Ready {
        let Event { flags, data } = self.events[at];
        let hung_up = flags.intersects(EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR);
        Ready { token: Token::decode(data.u64()), hung_up }
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn tokens_survive_the_kernel() {
        let id = QueuePairId { index: u32::MAX, generation: u32::MAX };
        let incoming = Token::Incoming { index: 5, generation: 6 };
        for token in [Token::Own, Token::Listener(3), incoming, Token::queue_pair(id)] {
            assert_eq!(Token::decode(token.encode()), token);
        }
    }

    #[test]
    fn what_is_watched_tells_its_token_and_what_became_of_it() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let mut epoll = Epoll::new().unwrap();
        let (token, other) = (Token::Listener(7), Token::Incoming { index: 1, generation: 2 });
        epoll.add(far.as_fd(), token, EventFlags::IN | EventFlags::RDHUP).unwrap();
        assert_eq!(epoll.poll(), 0, "nothing was sent");
        near.write_all(b"x").unwrap();
        assert_eq!((epoll.poll(), epoll.ready(0)), (1, Ready { token, hung_up: false }));
        epoll.change(far.as_fd(), other, EventFlags::IN | EventFlags::RDHUP).unwrap();
        drop(near);
        assert_eq!((epoll.poll(), epoll.ready(0)), (1, Ready { token: other, hung_up: true }));
        epoll.remove(far.as_fd());
        assert_eq!(epoll.poll(), 0, "it is not watched");
    }
}
