//! Our ends of sockets, and descriptors that a peer sent: closing them never blocks us.
//!
//! A close can block: that of a TCP socket with SO_LINGER waits for its data to be acknowledged, that of a file on FUSE
//! for its daemon. A peer can send such a descriptor. The thread that closes the last reference waits; closing a Unix
//! socket also closes the descriptors in its queue that were not received. So what may hold such a thing is closed by a
//! thread made for it.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::{io, thread};

use super::message::WAKE;
use super::pages::check;

/// Threads that close something, at most. Beyond that, descriptors stay open: better one of them lost than a server stopped.
const CLOSERS_MAX: usize = 64;
static CLOSERS: AtomicUsize = AtomicUsize::new(0);

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
            close_elsewhere(fd, close_with_thread);
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
        // SAFETY: an open descriptor. Only files in memory have seals, and their close does not wait.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) } >= 0 {
            return drop(fd);
        }
        let off = libc::linger { l_onoff: 0, l_linger: 0 };
        let len = size_of::<libc::linger>() as libc::socklen_t;
        // SAFETY: an open descriptor, and an option of its type and length. It fails on what is not a socket.
        unsafe {
            let option = (&raw const off).cast();
            libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, option, len)
        };
        close_elsewhere(fd, drop);
    }
}

/// Closes `fd` by `close`, in a thread made for it.
#[cold]
fn close_elsewhere(fd: OwnedFd, close: fn(OwnedFd)) {
    let raw = fd.into_raw_fd();
    let work = move || {
        // SAFETY: it was just taken from its owner, and has no other.
        close(unsafe { OwnedFd::from_raw_fd(raw) });
        CLOSERS.fetch_sub(1, Ordering::Relaxed);
    };
    let is_free = CLOSERS.fetch_add(1, Ordering::Relaxed) < CLOSERS_MAX;
    if !is_free || thread::Builder::new().name("stag-shm-close".to_owned()).spawn(work).is_err() {
        CLOSERS.fetch_sub(1, Ordering::Relaxed);
        tracing::warn!(
            "shm: descriptor {raw}, of a peer or with something of a peer in its queue, stays open: closing it may \
             wait, and no thread can be made for it (limit {CLOSERS_MAX})"
        );
    }
}

/// Closes a Unix socket so that its last reference goes with a thread that exits: for such the kernel closes what lies
/// in the socket's queue without lingering.
fn close_with_thread(socket: OwnedFd) {
    let (held, is_held) = mpsc::channel();
    let (closed, is_closed) = mpsc::channel::<()>();
    let holder = thread::Builder::new().name("stag-shm-close".to_owned()).spawn(move || {
        // A table of descriptors of its own, which holds all that the process has open, for a moment. The range
        // is empty: no descriptor has that number. Before Linux 5.9 only the other call is there; some containers
        // permit neither, and then the close below may block this thread, for which no other waits.
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
        let mut fds = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors.
        check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) }).unwrap();
        // SAFETY: just made, they have no other owner.
        let [near, far] = fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        (near, Socket::new(far))
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
