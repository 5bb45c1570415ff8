//! Our ends of sockets, and descriptors that a peer sent: closing them never blocks us.
//!
//! A close can block: that of a TCP socket with SO_LINGER waits for its data to be acknowledged, that of a file on FUSE
//! for its daemon. A peer can send such a descriptor. The close of the last reference waits, and so does the close of a Unix
//! socket in whose queue such a descriptor lies. So threads close what may wait: at most [`CLOSERS_MAX`] of them. What finds no
//! thread waits in a list, and is closed as threads become free.
//!
//! A socket that lingers never holds a thread for long: its linger time is taken away, or, in the queue of a Unix socket, a thread
//! that exits closes it, for which the kernel does not linger. What remains is a file whose close waits for a file system, as one on FUSE.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::{io, thread};

use super::message::WAKE;
use super::pages::{check, seals};

/// Threads that close something, at most.
const CLOSERS_MAX: usize = 64;
/// Octets of stack of such a thread.
const CLOSER_STACK: usize = 128 * 1024;
static CLOSERS: Closers = Closers::new(CLOSERS_MAX);

/// Our end of a connected Unix socket. Closing it never waits, whatever lies in its queue.
pub(super) struct Socket(ManuallyDrop<OwnedFd>);

impl Socket {
    /// Takes over a socket.
    pub(super) fn new(fd: OwnedFd) -> Socket {
        Socket(ManuallyDrop::new(fd))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // SAFETY: `drop` runs once, and the field is not used after it.
        let fd = unsafe { ManuallyDrop::take(&mut self.0) };
        if is_queue_empty(fd.as_fd()) {
            drop(fd);
        } else {
            CLOSERS.close(fd, How::ByExit);
        }
    }
}

/// Whether nothing lies in the socket's queue, wake-ups aside; from here on nothing is added to it. `false` if that is not
/// known.
fn is_queue_empty(socket: BorrowedFd<'_>) -> bool {
    let fd = socket.as_raw_fd();
    // SAFETY: an open descriptor.
    let is_shut = unsafe { libc::shutdown(fd, libc::SHUT_RDWR) } == 0;
    // Usual, and harmless: a peer woke us, and then went. They are bounded by the length of the queue.
    let mut octets = [0; WAKE.len()];
    while let Ok((len, 0)) = peek(socket, &mut octets)
        && octets[..len] == WAKE
    {
        // SAFETY: room for nothing, which is what of the datagram is wanted.
        unsafe { libc::recv(fd, std::ptr::null_mut(), 0, libc::MSG_DONTWAIT) };
    }
    let on: libc::c_int = 1;
    // SAFETY: an open descriptor, and an option of its type and length.
    let is_marked = unsafe {
        let len = size_of::<libc::c_int>() as libc::socklen_t;
        // From here on every datagram carries credentials, also one of no octets; the end of the stream does not.
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_PASSCRED, (&raw const on).cast(), len)
    } == 0;
    // The first look may get the error that the peer left behind when it closed.
    let found = peek(socket, &mut []).or_else(|_| peek(socket, &mut []));
    is_shut && is_marked && matches!(found, Ok((0, 0)))
}

/// Looks at the next datagram: its octets, as far as there is room, their number, and flags for what found no room.
fn peek(socket: BorrowedFd<'_>, octets: &mut [u8]) -> io::Result<(usize, libc::c_int)> {
    let mut part = libc::iovec { iov_base: octets.as_mut_ptr().cast(), iov_len: octets.len() };
    // SAFETY: all zeroes is a valid message header: one without room for anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: `message` and what it points to live over the call. A peek leaves descriptors where they are.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    if len < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((len as usize, message.msg_flags & (libc::MSG_CTRUNC | libc::MSG_TRUNC)))
}

/// A Unix socket that listens. Closing it never waits, whatever lies in the queues of connections that were not
/// accepted, and its name is free at once.
pub(super) struct Listener(ManuallyDrop<OwnedFd>);

impl Listener {
    /// Takes over a socket that listens and does not block.
    pub(super) fn new(fd: OwnedFd) -> Listener {
        Listener(ManuallyDrop::new(fd))
    }

    /// Takes the next connection, `None` while there is none.
    pub(super) fn accept(&self) -> io::Result<Option<Socket>> {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let (address, len) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: null asks for no address.
        match check(unsafe { libc::accept4(self.0.as_raw_fd(), address, len, flags) }) {
            // SAFETY: just made, it has no other owner.
            Ok(fd) => Ok(Some(Socket::new(unsafe { OwnedFd::from_raw_fd(fd) }))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // SAFETY: an open descriptor. From here on no connection succeeds.
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_RDWR) };
        let rest: Vec<Socket> = std::iter::from_fn(|| self.accept().ok().flatten()).collect();
        // SAFETY: `drop` runs once, and the field is not used after it.
        drop(unsafe { ManuallyDrop::take(&mut self.0) });
        // Now, since the threads that close these hold all other descriptors for a moment, and with it the name.
        drop(rest);
    }
}

/// A descriptor from a peer, of whatever kind. Closing it never waits.
pub(super) struct Foreign(ManuallyDrop<OwnedFd>);

impl Foreign {
    /// Takes over a descriptor that was received.
    pub(super) fn new(fd: OwnedFd) -> Foreign {
        Foreign(ManuallyDrop::new(fd))
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: `drop` runs once, and the field is not used after it.
        let fd = unsafe { ManuallyDrop::take(&mut self.0) };
        // Only files in memory have seals, and their close does not wait.
        if seals(fd.as_fd()).is_some() {
            return drop(fd);
        }
        let off = libc::linger { l_onoff: 0, l_linger: 0 };
        let len = size_of::<libc::linger>() as libc::socklen_t;
        // SAFETY: an open descriptor, and an option of its type and length. It fails on what is not a socket.
        unsafe {
            let option = (&raw const off).cast();
            libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, option, len)
        };
        let how = how_to_close(fd.as_fd());
        CLOSERS.close(fd, how);
    }
}

/// How a thread closes a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// As any.
    Plainly,
    /// A Unix socket, whose queue may hold anything: see [`close_with_thread`].
    ByExit,
}

/// How a descriptor of unknown kind is closed.
fn how_to_close(fd: BorrowedFd<'_>) -> How {
    let mut domain: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: an open descriptor, and room for the answer. It fails on what is not a socket.
    let found = unsafe {
        let option = (&raw mut domain).cast();
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_DOMAIN, option, &raw mut len)
    };
    if found == 0 && domain == libc::AF_UNIX { How::ByExit } else { How::Plainly }
}

/// The threads that close descriptors, and the descriptors that wait for one.
struct Closers {
    threads_max: usize,
    state: Mutex<Closing>,
}

struct Closing {
    threads: usize,
    waiting: VecDeque<(OwnedFd, How)>,
}

impl Closers {
    const fn new(threads_max: usize) -> Closers {
        Closers { threads_max, state: Mutex::new(Closing { threads: 0, waiting: VecDeque::new() }) }
    }

    fn lock(&self) -> MutexGuard<'_, Closing> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a thread close `fd`, at once or when one is free.
    #[cold]
    fn close(&'static self, fd: OwnedFd, how: How) {
        let mut closing = self.lock();
        match how {
            // First: a thread that exits to close a socket would close these, too (`close_with_thread`), and wait for them.
            How::Plainly => closing.waiting.push_front((fd, how)),
            How::ByExit => closing.waiting.push_back((fd, how)),
        }
        drop(closing);
        self.go_on();
    }

    /// Starts a thread if something waits for one.
    fn go_on(&'static self) {
        let mut closing = self.lock();
        if closing.waiting.is_empty() || closing.threads == self.threads_max {
            return;
        }
        let thread = thread::Builder::new().name("stag-shm-close".to_owned()).stack_size(CLOSER_STACK);
        match thread.spawn(|| self.work()) {
            Ok(_) => closing.threads += 1,
            // What waits is tried again when the next connection comes.
            Err(error) => tracing::warn!(
                "shm: no thread for closing {} descriptors of peers: {error}; they stay open until there is one",
                closing.waiting.len()
            ),
        }
        if closing.threads == self.threads_max {
            tracing::warn!(
                "shm: {} threads (the limit) are closing descriptors of peers; others wait, and meanwhile no connections of \
                 other users are accepted",
                self.threads_max
            );
        }
    }

    /// Closes what waits, until nothing does.
    fn work(&self) {
        loop {
            let mut closing = self.lock();
            let Some((fd, how)) = closing.waiting.pop_front() else {
                closing.threads -= 1;
                return;
            };
            drop(closing);
            match how {
                How::Plainly => drop(fd),
                How::ByExit => close_with_thread(fd),
            }
        }
    }

    /// Whether all threads are in use, and descriptors wait for one.
    fn is_full(&self) -> bool {
        let closing = self.lock();
        closing.threads == self.threads_max && !closing.waiting.is_empty()
    }
}

/// Closes what could not be closed for want of a thread.
pub(super) fn go_on_closing() {
    CLOSERS.go_on();
}

/// Whether descriptors of peers wait for a thread that closes them: all threads wait in a close.
pub(super) fn waits_to_close() -> bool {
    CLOSERS.is_full()
}

/// Closes a Unix socket so that a thread that exits drops its last reference: then the kernel closes the descriptors in the
/// socket's queue without lingering.
fn close_with_thread(socket: OwnedFd) {
    let (held, is_held) = mpsc::channel();
    let (closed, is_closed) = mpsc::channel::<()>();
    let holder = thread::Builder::new().name("stag-shm-close".to_owned()).spawn(move || {
        // A table of descriptors of its own, which for a moment holds all that the process has open. The range
        // is empty: no descriptor has that number. Before Linux 5.9 only the other call exists; some containers
        // permit neither, and then the close below may wait.
        // SAFETY: neither call has pointers; this thread uses no descriptor, and none of the process's is closed.
        unsafe {
            if libc::syscall(libc::SYS_close_range, u32::MAX, u32::MAX, libc::CLOSE_RANGE_UNSHARE) != 0 {
                libc::unshare(libc::CLONE_FILES);
            }
        }
        let _ = held.send(());
        // Until the sender is gone.
        let _ = is_closed.recv();
    });
    if holder.is_ok() {
        let _ = is_held.recv();
    }
    drop(socket);
    drop(closed);
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::shm::rendezvous;

    /// A pair of connected sockets of our kind.
    fn pair() -> (OwnedFd, Socket) {
        let [near, far] = raw_pair();
        (near, Socket::new(far))
    }

    fn raw_pair() -> [OwnedFd; 2] {
        let mut fds = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors.
        check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) }).unwrap();
        // SAFETY: just made, they have no other owner.
        fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Waits until the other end of `socket` is closed.
    fn wait_for_end(socket: &OwnedFd) {
        let mut octet = 0u8;
        let mut watched = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry; then room for an octet.
        let len = unsafe {
            assert_eq!(libc::poll(&raw mut watched, 1, 60_000), 1, "the other end is still open");
            libc::recv(socket.as_raw_fd(), (&raw mut octet).cast(), 1, libc::MSG_DONTWAIT)
        };
        assert_eq!(len, 0, "the end, and nothing else");
    }

    #[test]
    fn what_finds_no_thread_is_closed_later() {
        static NONE: Closers = Closers::new(0);
        static ONE: Closers = Closers::new(1);
        let [near, far] = raw_pair();
        NONE.close(far, How::Plainly);
        assert!(NONE.is_full());
        let (fd, how) = NONE.lock().waiting.pop_front().unwrap();
        assert!(!NONE.is_full());
        ONE.close(fd, how);
        for _ in 0..100 {
            let [near, far] = raw_pair();
            ONE.close(far, How::ByExit);
            wait_for_end(&near);
        }
        wait_for_end(&near);
    }

    /// A Unix socket from a peer, with a TCP socket in its queue whose close lingers, holds no thread.
    #[test]
    fn what_lingers_in_the_queue_of_a_foreign_socket_holds_no_thread() {
        static ONE: Closers = Closers::new(1);
        let mut kept = Vec::new();
        for _ in 0..3 {
            let (lingering, listener, far) = crate::shm::tests::lingering();
            let [near, foreign] = raw_pair();
            rendezvous::send(near.as_fd(), b"x", &[lingering.as_fd()]).unwrap();
            drop((lingering, near));
            let [end, behind] = raw_pair();
            assert_eq!(how_to_close(foreign.as_fd()), How::ByExit);
            ONE.close(foreign, How::ByExit);
            ONE.close(behind, How::ByExit);
            wait_for_end(&end);
            kept.push((listener, far));
        }
    }

    #[test]
    fn a_queue_is_empty_but_for_wake_ups() {
        for (what, datagrams, is_empty) in [
            ("nothing", &[][..], true),
            ("wake-ups", &[&WAKE[..]; 3], true),
            ("no octets", &[&[]], false),
            ("a wake-up and no octets", &[&WAKE[..], &[]], false),
            ("noise", &[&[7; 12]], false),
            ("noise that begins like a wake-up", &[&[&WAKE[..], &[0]].concat()], false),
        ] {
            for is_gone in [false, true] {
                let (near, far) = pair();
                for octets in datagrams {
                    rendezvous::send(far.as_fd(), octets, &[]).unwrap();
                }
                let far = (!is_gone).then_some(far);
                assert_eq!(is_queue_empty(near.as_fd()), is_empty, "{what}");
                drop(far);
            }
        }
        let (near, far) = pair();
        rendezvous::send(far.as_fd(), &WAKE, &[near.as_fd()]).unwrap();
        assert!(!is_queue_empty(near.as_fd()), "a wake-up with a descriptor");
        // What the other end left unread is an error here, once.
        let (near, far) = pair();
        rendezvous::send(near.as_fd(), b"unread", &[]).unwrap();
        drop(far);
        assert!(is_queue_empty(near.as_fd()));
    }
}
