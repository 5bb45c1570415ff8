//! Unix sockets: how two processes find each other, and how descriptors travel.
//!
//! Everything is non-blocking; the provider calls again from its `poll`. The name lives in the abstract
//! namespace (`@stag/shm/NAME`), so nothing is left behind in a file system.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::message::{LEN_MAX, WAKE};
use super::pages::check;
use super::regions::REGIONS_MAX;
use super::sockets::{Foreign, Listener, Socket};
use crate::{FabricError, Peer};

/// Descriptors beside a message at most: the part, the arenas.
pub(super) const DESCRIPTORS_MAX: usize = 2 + REGIONS_MAX;
/// Descriptors that Linux lets anybody send with one datagram (SCM_MAX_FD). There is room for all, since those that find
/// none are closed by the kernel within the call that receives them, which may wait.
const RECEIVED_MAX: usize = 253;

const PREFIX: &[u8] = b"\0stag/shm/";
const NAME_LEN_MAX: usize = 64;
const BACKLOG: libc::c_int = 4096;

/// A checked name.
#[derive(Clone, Copy)]
pub(super) struct Address {
    raw: libc::sockaddr_un,
    len: libc::socklen_t,
}

/// Checks the name of a server: 1 to 64 letters, digits, `.`, `_`, `-`. `Err` says what is wrong, and what to write.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("the name is empty; write shm://NAME".to_owned());
    }
    let bad = name.chars().find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '.' | '_' | '-'));
    if let Some(bad) = bad {
        return Err(format!("{bad:?} cannot be in a name; use letters, digits, '.', '_' and '-'"));
    }
    match name.len() {
        ..=NAME_LEN_MAX => Ok(()),
        len => {
            Err(format!("the name has {len} characters, the limit is {NAME_LEN_MAX}; choose a shorter one"))
        }
    }
}

impl Address {
    /// Checks `name`, see [`check_name`].
    pub(super) fn new(name: &str) -> Result<Address, FabricError> {
        check_name(name).map_err(|problem| FabricError::Address { address: name.to_owned(), problem })?;
        // SAFETY: all zeroes is a valid address structure.
        let mut raw: libc::sockaddr_un = unsafe { mem::zeroed() };
        raw.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, &from) in raw.sun_path.iter_mut().zip(PREFIX.iter().chain(name.as_bytes())) {
            *to = from as libc::c_char;
        }
        let len = mem::offset_of!(libc::sockaddr_un, sun_path) + PREFIX.len() + name.len();
        Ok(Address { raw, len: len as libc::socklen_t })
    }

    fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.raw).cast()
    }
}

/// A socket of our kind.
fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    // SAFETY: just made, it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Listens.
pub(super) fn listen(address: &Address) -> io::Result<Listener> {
    let socket = socket()?;
    // SAFETY: an address of the length given.
    check(unsafe { libc::bind(socket.as_raw_fd(), address.as_ptr(), address.len) })?;
    // SAFETY: no pointers.
    check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) })?;
    Ok(Listener::new(socket))
}

/// Connects. A full backlog is `WouldBlock`: try again later.
pub(super) fn connect(address: &Address) -> io::Result<Socket> {
    let socket = socket()?;
    // SAFETY: an address of the length given.
    check(unsafe { libc::connect(socket.as_raw_fd(), address.as_ptr(), address.len) })?;
    Ok(Socket::new(socket))
}

/// The process at the other end, by the kernel's word: the one that called `connect`, or `listen`.
pub(super) fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: room for the answer, and its length.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    })?;
    let libc::ucred { pid, uid, gid } = credentials;
    Ok(Peer::Process { pid: pid as u32, uid, gid })
}

/// Whether the process at the other end is in the group `gid`: by its effective group, or a supplementary one.
pub(super) fn is_in_group(socket: BorrowedFd<'_>, peer: &Peer, gid: u32) -> bool {
    if matches!(peer, Peer::Process { gid: own, .. } if *own == gid) {
        return true;
    }
    // The most that a process can have (NGROUPS_MAX).
    let mut groups: Vec<libc::gid_t> = vec![0; 65536];
    let mut len = size_of_val(&groups[..]) as libc::socklen_t;
    // SAFETY: room for the answer, and its length, which the call sets to what it wrote.
    let found = check(unsafe {
        let option = libc::SO_PEERGROUPS;
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            groups.as_mut_ptr().cast(),
            &raw mut len,
        )
    });
    // Before Linux 4.13 there is no way to ask: then only the effective group counts.
    groups.truncate(len as usize / size_of::<libc::gid_t>());
    found.is_ok() && groups.contains(&gid)
}

/// Says that nothing more will come from us, which wakes the peer.
pub(super) fn shutdown(socket: BorrowedFd<'_>) {
    // SAFETY: no pointers. It fails when the peer is gone already.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_WR) };
}

/// Room for the control message that carries descriptors, aligned as it must be.
#[repr(align(8))]
struct Control([u8; CONTROL_LEN]);
const CONTROL_LEN: usize =
    (size_of::<libc::cmsghdr>() + size_of::<RawFd>() * RECEIVED_MAX).next_multiple_of(16);

/// Wakes the peer. A queue that is full is as good: it has not read what woke it before.
pub(super) fn wake(socket: BorrowedFd<'_>) {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: readable octets, and their number. That the peer is gone is seen elsewhere.
    unsafe { libc::send(socket.as_raw_fd(), WAKE.as_ptr().cast(), WAKE.len(), flags) };
}

/// Sends one datagram with descriptors beside it. Never waits: a queue that is full is an error.
pub(super) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    assert!(fds.len() <= RECEIVED_MAX, "the control buffer holds {RECEIVED_MAX} descriptors");
    let mut control = Control([0; CONTROL_LEN]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all zeroes is a valid message header.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if !fds.is_empty() {
        let len = size_of_val(fds) as u32;
        debug_assert_eq!(size_of::<BorrowedFd<'_>>(), size_of::<RawFd>());
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: plain arithmetic.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(len) } as _;
        // SAFETY: the control buffer is aligned and, by the assertion above, long enough for one header
        // and these descriptors, so CMSG_FIRSTHDR is not null and CMSG_DATA is within it.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(len) as _;
            let data = libc::CMSG_DATA(header).cast::<RawFd>();
            for (i, fd) in fds.iter().enumerate() {
                data.add(i).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    // SAFETY: `message` points to what lives over the call.
    let sent = unsafe {
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A received datagram.
pub(super) enum Received {
    /// Bytes, and the descriptors beside them.
    Datagram(Vec<u8>, Vec<Foreign>),
    /// Longer than any message.
    TooLong,
    /// With more descriptors than any message.
    TooMany,
    /// With descriptors that found no number in this process: it has as many as it may have.
    Exhausted,
    /// None yet.
    Nothing,
    /// The peer closed.
    Closed,
}

/// Takes the next datagram. Descriptors that are not used are closed.
pub(super) fn receive(socket: BorrowedFd<'_>) -> Received {
    let mut bytes = [0; LEN_MAX];
    match receive_into(socket, &mut bytes) {
        Ok((_, _, flags)) if flags & libc::MSG_CTRUNC != 0 => Received::Exhausted,
        Ok((_, fds, _)) if fds.len() > DESCRIPTORS_MAX => Received::TooMany,
        Ok((_, fds, flags)) if flags & libc::MSG_TRUNC != 0 => {
            if fds.is_empty() {
                Received::TooLong
            } else {
                Received::TooMany
            }
        }
        Ok((len, fds, _)) => Received::Datagram(bytes[..len].to_vec(), fds),
        Err(received) => received,
    }
}

/// What is in the queue of a connection that is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Nothing, or the end.
    Nothing,
    /// The peer wakes us.
    Wake,
    /// Something that has no place there.
    Nonsense,
    /// A message with descriptors.
    Strays,
}

/// Takes the next wake-up.
pub(super) fn hear_wake(socket: BorrowedFd<'_>) -> Heard {
    let mut bytes = [0; WAKE.len()];
    match receive_into(socket, &mut bytes) {
        Ok((_, fds, flags)) if !fds.is_empty() || flags & libc::MSG_CTRUNC != 0 => Heard::Strays,
        Ok((len, _, 0)) if bytes[..len] == WAKE => Heard::Wake,
        Ok(_) => Heard::Nonsense,
        Err(_) => Heard::Nothing,
    }
}

/// Takes the next datagram: its octets, the descriptors beside it, and flags: MSG_TRUNC and MSG_CTRUNC for octets and descriptors
/// that found no room. There is room for all descriptors, so only a process that may have no more of them loses some.
fn receive_into(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> Result<(usize, Vec<Foreign>, libc::c_int), Received> {
    let mut control = Control([0; CONTROL_LEN]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zeroes is a valid message header.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_LEN as _;
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: `message` points to what lives over the call, with its true lengths.
    let mut receive = || unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let mut len = receive();
    // Told once, where a peer closed and had not read all; what it sent before is behind that.
    if len < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ECONNRESET) {
        len = receive();
    }
    if len < 0 {
        let blocked = matches!(
            io::Error::last_os_error().kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        );
        return Err(if blocked { Received::Nothing } else { Received::Closed });
    }

    // Own the descriptors before anything else can go wrong.
    let mut fds = Vec::new();
    // SAFETY: `message` is what the kernel filled in, and the control buffer lives.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: not null, so a whole header within the control buffer, as CMSG_FIRSTHDR and CMSG_NXTHDR
        // promise; the kernel wrote its length, which covers the descriptors.
        unsafe {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let count = ((*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                for i in 0..count {
                    // The kernel just made this descriptor for us.
                    fds.push(Foreign::new(OwnedFd::from_raw_fd(data.add(i).read_unaligned())));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    if len == 0 && fds.is_empty() {
        return Err(Received::Closed);
    }
    Ok((len as usize, fds, message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC)))
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::shm::pages::{Layout, Part};

    #[test]
    fn names_are_checked() {
        for bad in ["", "a/b", "ä", &"x".repeat(65), "a b"] {
            assert!(Address::new(bad).is_err(), "{bad:?}");
        }
        assert!(Address::new("a.b_c-1").is_ok());
    }

    #[test]
    fn a_datagram_and_its_descriptors_arrive_and_the_end_is_seen() {
        let address = Address::new(&format!("rendezvous-{}", std::process::id())).unwrap();
        let listener = listen(&address).unwrap();
        assert!(listener.accept().unwrap().is_none());
        let client = connect(&address).unwrap();
        let server = listener.accept().unwrap().unwrap();
        assert!(matches!(receive(server.as_fd()), Received::Nothing));

        let (_part, fd) = Part::create(Layout { ring_len: 4096, exposures: 0 }).unwrap();
        send(client.as_fd(), b"hello", &[fd.as_fd(); DESCRIPTORS_MAX]).unwrap();
        let Received::Datagram(bytes, fds) = receive(server.as_fd()) else { panic!("it was sent") };
        assert_eq!((&bytes[..], fds.len()), (&b"hello"[..], DESCRIPTORS_MAX));

        for (bytes, heard) in
            [(&WAKE[..], Heard::Wake), (b"wake", Heard::Nonsense), (&[7; 99], Heard::Nonsense)]
        {
            send(client.as_fd(), bytes, &[]).unwrap();
            assert_eq!(hear_wake(server.as_fd()), heard);
        }
        send(client.as_fd(), &WAKE, &[fd.as_fd()]).unwrap();
        assert_eq!(hear_wake(server.as_fd()), Heard::Strays, "with a descriptor");
        wake(client.as_fd());
        assert_eq!(hear_wake(server.as_fd()), Heard::Wake);
        assert_eq!(hear_wake(server.as_fd()), Heard::Nothing);

        send(client.as_fd(), &[7; LEN_MAX + 1], &[]).unwrap();
        assert!(matches!(receive(server.as_fd()), Received::TooLong));

        // A refusal is heard although its sender did not read on.
        let other = connect(&address).unwrap();
        send(other.as_fd(), b"hello", &[]).unwrap();
        let refusing = listener.accept().unwrap().unwrap();
        send(refusing.as_fd(), b"no", &[]).unwrap();
        drop(refusing);
        while send(other.as_fd(), b"gone?", &[]).is_ok() {}
        assert!(matches!(receive(other.as_fd()), Received::Datagram(bytes, _) if bytes == b"no"));

        let Peer::Process { pid, .. } = peer(server.as_fd()).unwrap() else { panic!("a process") };
        assert_eq!(pid, std::process::id());
        drop(client);
        assert!(matches!(receive(server.as_fd()), Received::Closed));
    }
}
