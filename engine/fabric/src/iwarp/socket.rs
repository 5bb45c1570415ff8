//! TCP sockets, non-blocking, and the few system calls that the data path makes.

use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::config::IwarpConfig;

/// Connections that wait in the kernel to be accepted.
const BACKLOG: libc::c_int = 4096;
/// Keep-alive probes before a silent peer is taken for dead.
const PROBES: libc::c_int = 3;

pub(super) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// What a receive or send of octets came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// This number of octets, at least one.
    Octets(usize),
    /// None now.
    Nothing,
    /// Receive: the peer closed its side. Send: never.
    End,
    /// The connection is lost.
    Lost,
}

impl Moved {
    fn from(count: libc::ssize_t) -> Moved {
        match count {
            0 => Moved::End,
            1.. => Moved::Octets(count as usize),
            _ => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS) => Moved::Nothing,
                _ => Moved::Lost,
            },
        }
    }
}

/// A connected, or connecting, socket.
pub(super) struct Socket(OwnedFd);

impl Socket {
    /// Starts to connect.
    pub(super) fn connect(to: SocketAddr, config: &IwarpConfig) -> io::Result<Socket> {
        let socket = Socket(create(&to)?);
        // Buffers and the algorithm before the connection, so that its window is announced accordingly.
        socket.configure(config)?;
        let (address, len) = encode(&to);
        // SAFETY: `address` holds an address of `len` bytes.
        match check(unsafe { libc::connect(socket.0.as_raw_fd(), address.as_ptr().cast(), len) }) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(socket),
        }
    }

    /// Options of every connection.
    pub(super) fn configure(&self, config: &IwarpConfig) -> io::Result<()> {
        let fd = self.0.as_raw_fd();
        set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        set(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
        // Quiet or not: after this long without an answer the connection is lost. Half of it goes to the first probe.
        let timeout = config.dead_peer_timeout.max(Duration::from_secs(4));
        let seconds = |duration: Duration| duration.as_secs().clamp(1, 32_767) as libc::c_int;
        set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, seconds(timeout / 2))?;
        set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, seconds(timeout / 2 / PROBES as u32))?;
        set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, PROBES)?;
        let timeout_ms = timeout.as_millis().min(i32::MAX as u128) as libc::c_int;
        set(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, timeout_ms)?;
        tune(fd, config)
    }

    /// Why connecting failed, if it did.
    pub(super) fn error(&self) -> Option<io::Error> {
        match get(self.0.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ERROR) {
            Ok(0) => None,
            Ok(error) => Some(io::Error::from_raw_os_error(error)),
            Err(error) => Some(error),
        }
    }

    /// Octets of payload in a TCP segment to the peer.
    pub(super) fn segment_len(&self) -> usize {
        get(self.0.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_MAXSEG).map_or(0, |len| len.max(0) as usize)
    }

    /// The congestion control algorithm that it really has.
    pub(super) fn congestion_control(&self) -> String {
        let mut name = [0u8; 16];
        let mut len = name.len() as libc::socklen_t;
        let fd = self.0.as_raw_fd();
        // SAFETY: room for `len` bytes.
        let result = unsafe {
            libc::getsockopt(
                fd,
                libc::IPPROTO_TCP,
                libc::TCP_CONGESTION,
                name.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        let len = if result == 0 { (len as usize).min(name.len()) } else { 0 };
        let name = name[..len].split(|&octet| octet == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }

    /// Receives into `out`.
    #[inline]
    pub(super) fn receive(&self, out: &mut [u8]) -> Moved {
        // SAFETY: `out` is writable for its length.
        Moved::from(unsafe { libc::recv(self.0.as_raw_fd(), out.as_mut_ptr().cast(), out.len(), 0) })
    }

    /// Looks at the first octets without taking them.
    pub(super) fn peek(&self, out: &mut [u8]) -> Moved {
        let flags = libc::MSG_PEEK;
        // SAFETY: `out` is writable for its length.
        Moved::from(unsafe { libc::recv(self.0.as_raw_fd(), out.as_mut_ptr().cast(), out.len(), flags) })
    }

    /// Receives into `place`, and the octets behind it into `out`.
    ///
    /// # Safety
    ///
    /// `place` is valid for writes of `len` bytes, to which no reference exists.
    #[inline]
    pub(super) unsafe fn receive_at(&self, place: *mut u8, len: usize, out: &mut [u8]) -> Moved {
        let pieces = [
            libc::iovec { iov_base: place.cast(), iov_len: len },
            libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() },
        ];
        // SAFETY: two pieces, each writable for its length: the caller's word, and a unique reference.
        Moved::from(unsafe { libc::readv(self.0.as_raw_fd(), pieces.as_ptr(), 2) })
    }

    /// Sends octets. `apart`: what is sent next does not join their last TCP segment.
    #[inline]
    pub(super) fn send(&self, octets: &[u8], apart: bool) -> Moved {
        let (at, len, flags) = (octets.as_ptr().cast(), octets.len(), send_flags(apart));
        // SAFETY: `octets` is readable for its length.
        Moved::from(unsafe { libc::send(self.0.as_raw_fd(), at, len, flags) })
    }

    /// Sends pieces of memory, in order. `apart`: what is sent next does not join their last TCP segment.
    ///
    /// # Safety
    ///
    /// Each piece is valid for reads of its length.
    #[inline]
    pub(super) unsafe fn send_pieces(&self, pieces: &[libc::iovec], apart: bool) -> Moved {
        // SAFETY: all zeroes is an empty message.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = pieces.as_ptr().cast_mut();
        message.msg_iovlen = pieces.len() as _;
        let flags = send_flags(apart);
        // SAFETY: the pieces are readable by the caller's word; sendmsg writes to none of it.
        Moved::from(unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const message, flags) })
    }

    /// Says that no more will be sent.
    pub(super) fn finish(&self) {
        // SAFETY: no pointers. It fails if the connection is lost already.
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_WR) };
    }

    pub(super) fn into_fd(self) -> OwnedFd {
        self.0
    }
}

/// An error is returned, no signal raised; `apart` as in [`Socket::send`].
#[inline(always)]
fn send_flags(apart: bool) -> libc::c_int {
    if apart { libc::MSG_NOSIGNAL | libc::MSG_EOR } else { libc::MSG_NOSIGNAL }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A listening socket.
pub(super) struct ListenSocket(OwnedFd);

impl ListenSocket {
    pub(super) fn bind(at: SocketAddr, config: &IwarpConfig) -> io::Result<ListenSocket> {
        let fd = create(&at)?;
        set(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        tune(fd.as_raw_fd(), config)?;
        let (address, len) = encode(&at);
        // SAFETY: `address` holds an address of `len` bytes.
        check(unsafe { libc::bind(fd.as_raw_fd(), address.as_ptr().cast(), len) })?;
        // SAFETY: no pointers.
        check(unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) })?;
        Ok(ListenSocket(fd))
    }

    /// Where it listens.
    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        let mut address = MaybeUninit::<libc::sockaddr_storage>::zeroed();
        let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        // SAFETY: room for any address.
        check(unsafe { libc::getsockname(self.0.as_raw_fd(), address.as_mut_ptr().cast(), &raw mut len) })?;
        // SAFETY: zeroes, or what the kernel wrote; any bytes are one.
        decode(unsafe { address.assume_init_ref() }).ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// The next connection; `None`: there is none now.
    pub(super) fn accept(&self, config: &IwarpConfig) -> io::Result<Option<(Socket, SocketAddr)>> {
        let mut address = MaybeUninit::<libc::sockaddr_storage>::zeroed();
        let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: room for any address.
        let result =
            unsafe { libc::accept4(self.0.as_raw_fd(), address.as_mut_ptr().cast(), &raw mut len, flags) };
        match check(result) {
            Ok(fd) => {
                // SAFETY: just made, it has no other owner.
                let socket = Socket(unsafe { OwnedFd::from_raw_fd(fd) });
                socket.configure(config)?;
                // SAFETY: zeroes, or what the kernel wrote; any bytes are one.
                let peer = decode(unsafe { address.assume_init_ref() });
                Ok(peer.map(|peer| (socket, peer)))
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN) => Ok(None),
                _ => Err(error),
            },
        }
    }
}

impl AsFd for ListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn create(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(family, kind, 0) })?;
    // SAFETY: just made, it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What listeners pass on to their connections.
fn tune(fd: RawFd, config: &IwarpConfig) -> io::Result<()> {
    if let Some(len) = config.send_buffer {
        set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, len.min(i32::MAX as u32) as libc::c_int)?;
    }
    if let Some(len) = config.receive_buffer {
        set(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, len.min(i32::MAX as u32) as libc::c_int)?;
    }
    if let Some(algorithm) = &config.congestion_control {
        let name = algorithm.as_str();
        // SAFETY: the name is readable for its length.
        let result = unsafe {
            libc::setsockopt(
                fd,
                libc::IPPROTO_TCP,
                libc::TCP_CONGESTION,
                name.as_ptr().cast(),
                name.len() as libc::socklen_t,
            )
        };
        check(result)?;
    }
    Ok(())
}

fn set(fd: RawFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `value` is readable for `len` bytes.
    check(unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), len) })?;
    Ok(())
}

fn get(fd: RawFd, level: libc::c_int, option: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `value` is writable for `len` bytes.
    check(unsafe { libc::getsockopt(fd, level, option, (&raw mut value).cast(), &raw mut len) })?;
    Ok(value)
}

/// An address as the system has it, and its length.
fn encode(address: &SocketAddr) -> (MaybeUninit<libc::sockaddr_storage>, libc::socklen_t) {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let len = match address {
        SocketAddr::V4(v4) => {
            let it = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: a `sockaddr_storage` is large enough for any address, and aligned for it.
            unsafe { storage.as_mut_ptr().cast::<libc::sockaddr_in>().write(it) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let it = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { storage.as_mut_ptr().cast::<libc::sockaddr_in6>().write(it) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, len as libc::socklen_t)
}

/// The reverse of `encode`. Addresses of IPv4 that came in by IPv6 are told as what they are.
fn decode(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let from: *const libc::sockaddr_storage = storage;
    match libc::c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is one; a storage is large enough and aligned for it.
            let it = unsafe { &*from.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(it.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(it.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let it = unsafe { &*from.cast::<libc::sockaddr_in6>() };
            let (ip, port) = (Ipv6Addr::from(it.sin6_addr.s6_addr), u16::from_be(it.sin6_port));
            match ip.to_ipv4_mapped() {
                Some(v4) => Some(SocketAddrV4::new(v4, port).into()),
                None => Some(SocketAddrV6::new(ip, port, it.sin6_flowinfo, it.sin6_scope_id).into()),
            }
        }
        _ => None,
    }
}
