//! TCP sockets, non-blocking, and the four system calls of the data path.
//!
//! `socket2` sets sockets up. The data path calls the kernel itself: its pieces of memory are raw, because a peer's Read
//! may be filling them.

use std::io;
use std::mem;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use socket2::{Domain, TcpKeepalive, Type};

use super::config::IwarpConfig;

/// Connections that wait in the kernel to be accepted.
const BACKLOG: i32 = 4096;
/// Keep-alive probes without an answer before the peer counts as dead.
const PROBES: u32 = 3;

/// What a receive or send of octets came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// The number of octets, at least one.
    Octets(usize),
    /// The socket would block.
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
pub(super) struct Socket(socket2::Socket);

impl Socket {
    /// Starts to connect.
    pub(super) fn connect(to: SocketAddr, config: &IwarpConfig) -> io::Result<Socket> {
        let socket = Socket(create(to)?);
        // Buffers and the algorithm before the connection, so that its window is announced accordingly.
        socket.configure(config)?;
        match socket.0.connect(&to.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(socket),
        }
    }

    /// Sets the options of a connection.
    pub(super) fn configure(&self, config: &IwarpConfig) -> io::Result<()> {
        self.0.set_tcp_nodelay(true)?;
        // Idle or busy, a connection without an answer for this long is lost. Half of it passes before the first probe.
        let timeout = config.dead_peer_timeout.max(Duration::from_secs(4));
        let whole = |time: Duration| Duration::from_secs(time.as_secs().clamp(1, 32_767));
        let keepalive = TcpKeepalive::new()
            .with_time(whole(timeout / 2))
            .with_interval(whole(timeout / 2 / PROBES))
            .with_retries(PROBES);
        self.0.set_tcp_keepalive(&keepalive)?;
        self.0.set_tcp_user_timeout(Some(timeout.min(Duration::from_millis(i32::MAX as u64))))?;
        tune(&self.0, config)
    }

    /// Why connecting failed, if it did.
    pub(super) fn error(&self) -> Option<io::Error> {
        self.0.take_error().unwrap_or_else(Some)
    }

    /// This end's address.
    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()?.as_socket().map(plain).ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// Octets of payload in a TCP segment to the peer; 0 if the kernel does not tell.
    pub(super) fn segment_len(&self) -> usize {
        self.0.tcp_mss().map_or(0, |len| len as usize)
    }

    /// The congestion control algorithm in use; empty if the kernel does not tell.
    pub(super) fn congestion_control(&self) -> String {
        let name = self.0.tcp_congestion().unwrap_or_default();
        let name = name.split(|&octet| octet == 0).next().unwrap_or_default();
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

    /// Closes the sending side.
    pub(super) fn finish(&self) {
        // It fails if the connection is lost already.
        let _ = self.0.shutdown(Shutdown::Write);
    }

    pub(super) fn into_fd(self) -> OwnedFd {
        self.0.into()
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
pub(super) struct ListenSocket(socket2::Socket);

impl ListenSocket {
    pub(super) fn bind(at: SocketAddr, config: &IwarpConfig) -> io::Result<ListenSocket> {
        let socket = create(at)?;
        socket.set_reuse_address(true)?;
        // Connections inherit these.
        tune(&socket, config)?;
        socket.bind(&at.into())?;
        socket.listen(BACKLOG)?;
        Ok(ListenSocket(socket))
    }

    /// The address it listens at.
    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()?.as_socket().map(plain).ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// The next connection, or `None` if none waits.
    pub(super) fn accept(&self, config: &IwarpConfig) -> io::Result<Option<(Socket, SocketAddr)>> {
        match self.0.accept() {
            Ok((socket, peer)) => {
                socket.set_nonblocking(true)?;
                let socket = Socket(socket);
                socket.configure(config)?;
                Ok(peer.as_socket().map(|peer| (socket, plain(peer))))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for ListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn create(address: SocketAddr) -> io::Result<socket2::Socket> {
    socket2::Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), None)
}

/// Sets what a listener passes on to its connections.
fn tune(socket: &socket2::Socket, config: &IwarpConfig) -> io::Result<()> {
    if let Some(len) = config.send_buffer {
        socket.set_send_buffer_size(len.min(i32::MAX as u32) as usize)?;
    }
    if let Some(len) = config.receive_buffer {
        socket.set_recv_buffer_size(len.min(i32::MAX as u32) as usize)?;
    }
    if let Some(algorithm) = &config.congestion_control {
        socket.set_tcp_congestion(algorithm.as_str().as_bytes())?;
    }
    Ok(())
}

/// An IPv4 peer of an IPv6 socket by its IPv4 address.
fn plain(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(v4.into(), v6.port()),
            None => address,
        },
        SocketAddr::V4(_) => address,
    }
}
