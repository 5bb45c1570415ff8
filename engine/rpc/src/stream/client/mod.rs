//! A client of RPC over byte streams: TCP, or a local socket (RFC 5531 section 11).
//!
//! [`StreamClient`] never blocks: for a reactor that also does other work. [`BlockingClient`] waits for each Call: for
//! programs that make a few. Neither looks anything up: an address is all that they connect to.
//!
//! What a server sends cannot harm: Replies are bounded, every Call has a deadline, and whatever is no Reply to a Call that
//! waits ends the connection ([`exchange`]).

mod blocking;
mod exchange;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use stag_wire::rpc::{Accepted, Denied, OpaqueAuth};
use stag_wire::xdr::Encode;

use crate::client::CallError;
use crate::client::slot::{check_accepted, error_of_denied};

pub use blocking::BlockingClient;
use exchange::Exchange;

/// Ports that only root may send from. The lowest are well-known services'.
const RESERVED_PORTS: std::ops::RangeInclusive<u16> = 665..=1023;

/// Octets that one receive takes.
const RECEIVE_LEN: usize = 4096;

/// A Call to make.
#[derive(Clone, Copy)]
pub struct StreamCall<'a> {
    /// Program number.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure of the version.
    pub procedure: u32,
    /// Who calls.
    pub credential: OpaqueAuth<'a>,
    /// The arguments.
    pub arguments: &'a dyn Encode,
}

/// Bounds of the Calls of one connection, and so of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLimits {
    /// Calls at once.
    pub calls_max: usize,
    /// Octets of a Call.
    pub call_len_max: u32,
    /// Octets of a Reply.
    pub reply_len_max: u32,
}

/// The end of a connection that Calls come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallSource {
    /// The system chooses address and port.
    Any,
    /// This address, if the machine has it; otherwise the system chooses.
    Address(IpAddr),
    /// A port that only root may use, if there is one for us; otherwise the system chooses.
    ReservedPort,
}

/// Why a Call over a byte stream brought no results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamCallError {
    /// There is no connection, or it ended.
    Connection(ErrorKind),
    /// There was no Reply in time.
    TimedOut,
    /// What arrived is no Reply to a Call that waits.
    BadReply,
    /// The Call was not executed.
    NotExecuted(Accepted),
    /// The Call was denied.
    Denied(Denied),
    /// The Call is longer than [`StreamLimits::call_len_max`].
    TooLong,
    /// As many Calls as [`StreamLimits::calls_max`] are under way; or have ended, and were not taken.
    TooMany,
}

impl StreamCallError {
    /// The server's refusal to execute the Call. `None`: something else is wrong, with the Call or with the connection.
    #[must_use]
    pub fn refusal(&self) -> Option<CallError> {
        match *self {
            StreamCallError::NotExecuted(outcome) => check_accepted(outcome).err(),
            StreamCallError::Denied(denied) => Some(error_of_denied(denied)),
            _ => None,
        }
    }
}

impl fmt::Display for StreamCallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamCallError::Connection(ErrorKind::ConnectionRefused) => {
                f.write_str("no server listens there")
            }
            StreamCallError::Connection(ErrorKind::UnexpectedEof) => f.write_str("it ended the connection"),
            StreamCallError::Connection(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
                f.write_str("it cut the connection")
            }
            StreamCallError::Connection(kind) => kind.fmt(f),
            StreamCallError::TimedOut => f.write_str("no answer in time"),
            StreamCallError::BadReply => f.write_str("its answer is malformed"),
            StreamCallError::NotExecuted(Accepted::GarbageArgs) => {
                f.write_str("it cannot decode the arguments (GARBAGE_ARGS)")
            }
            StreamCallError::NotExecuted(Accepted::SystemErr) => f.write_str("it failed (SYSTEM_ERR)"),
            StreamCallError::NotExecuted(_) => f.write_str("it does not serve this program"),
            StreamCallError::Denied(Denied::AuthError(status)) => {
                write!(f, "it refuses the credential (auth_stat {})", status.0)
            }
            StreamCallError::Denied(Denied::RpcMismatch { low, high }) => {
                write!(f, "it speaks other versions of RPC ({low} to {high})")
            }
            StreamCallError::TooLong => f.write_str("the Call is too long"),
            StreamCallError::TooMany => f.write_str("too many Calls are under way"),
        }
    }
}

impl std::error::Error for StreamCallError {}

/// A connection to a server, and the Calls on it. Nothing blocks; dropping it ends both.
#[derive(Debug)]
pub struct StreamClient {
    socket: Socket,
    exchange: Exchange,
}

impl StreamClient {
    /// Begins to connect to `address`. A failure may show only later, at the first Call.
    ///
    /// # Errors
    ///
    /// [`StreamCallError::Connection`].
    pub fn connect(
        address: SocketAddr,
        source: CallSource,
        limits: StreamLimits,
    ) -> Result<StreamClient, StreamCallError> {
        let socket = begin_connect(address, source).map_err(|error| failure(&error))?;
        Ok(StreamClient::new(socket, limits))
    }

    /// `socket` does not block.
    fn new(socket: Socket, limits: StreamLimits) -> StreamClient {
        let seed = RandomState::new().hash_one(0) as u32;
        StreamClient { socket, exchange: Exchange::new(limits, seed) }
    }

    /// Begins a Call, which [`StreamClient::poll`] sends and ends, at `deadline` at the latest. Returns its xid.
    ///
    /// # Errors
    ///
    /// Nothing was begun: [`StreamCallError::TooLong`], [`StreamCallError::TooMany`], or why the connection failed before.
    pub fn begin(&mut self, call: &StreamCall<'_>, deadline: Duration) -> Result<u32, StreamCallError> {
        self.exchange.begin(call, deadline)
    }

    /// As [`StreamClient::begin`], with an xid that the caller chooses: for a Call that an earlier connection did not answer. A server that
    /// remembers the Call by its xid does not execute it again. No Call under way may have the same.
    ///
    /// # Errors
    ///
    /// As [`StreamClient::begin`].
    pub fn begin_with_xid(
        &mut self,
        xid: u32,
        call: &StreamCall<'_>,
        deadline: Duration,
    ) -> Result<(), StreamCallError> {
        self.exchange.begin_with_xid(xid, call, deadline)
    }

    /// Whether the connection is made.
    ///
    /// # Errors
    ///
    /// [`StreamCallError::Connection`]: it cannot be made.
    pub fn is_connected(&self) -> Result<bool, StreamCallError> {
        if let Some(error) = self.socket.take_error().unwrap_or_else(Some) {
            return Err(failure(&error));
        }
        Ok(self.socket.peer_addr().is_ok())
    }

    /// Whether the server has ended the connection, as far as it is known here. For a connection without Calls, before the next one.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        match self.socket.peek(&mut [std::mem::MaybeUninit::uninit()]) {
            // Octets that answer no Call: the next poll says so.
            Ok(count) => count == 0,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    /// Sends and receives what it can; returns the next Call that ended, by its xid, with its encoded results. After an error of
    /// the connection all its Calls end; make another connection.
    pub fn poll(&mut self, now: Duration) -> Option<(u32, Result<Vec<u8>, StreamCallError>)> {
        if let Some(ended) = self.exchange.take_ended() {
            return Some(ended);
        }
        if self.exchange.is_waiting() {
            self.advance();
            self.exchange.expire(now);
        }
        self.exchange.take_ended()
    }

    /// When to poll next even if nothing happens: the first deadline.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        self.exchange.next_deadline()
    }

    /// Whether it waits until it may send, rather than for octets: until it is connected, above all.
    #[must_use]
    pub fn is_sending(&self) -> bool {
        !self.exchange.output().is_empty()
    }

    /// Whether Calls come from a port that only root may use.
    #[must_use]
    pub fn is_from_reserved_port(&self) -> bool {
        let port = self.socket.local_addr().ok().and_then(|own| own.as_socket()).map(|own| own.port());
        port.is_some_and(|port| RESERVED_PORTS.contains(&port))
    }

    /// Sends and receives until the socket has neither room nor octets. Ends: the Calls that wait bound what may arrive.
    fn advance(&mut self) {
        while self.exchange.is_waiting() {
            let moved = self.send().and_then(|sent| Ok(self.receive()? | sent));
            match moved {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => self.exchange.fail(failure(&error)),
            }
        }
    }

    /// One system call. `true`: octets went.
    fn send(&mut self) -> io::Result<bool> {
        let output = self.exchange.output();
        if output.is_empty() {
            return Ok(false);
        }
        let sent = unless_blocked(self.socket.write(output))?;
        self.exchange.sent(sent.unwrap_or(0));
        Ok(sent.is_some())
    }

    /// One system call. `true`: octets arrived.
    fn receive(&mut self) -> io::Result<bool> {
        let mut buf = [0; RECEIVE_LEN];
        match unless_blocked(self.socket.read(&mut buf))? {
            Some(0) => Err(ErrorKind::UnexpectedEof.into()),
            Some(count) => {
                self.exchange.receive(&buf[..count]);
                Ok(true)
            }
            None => Ok(false),
        }
    }
}

impl AsFd for StreamClient {
    /// Becomes readable when there is work, or writable while [`StreamClient::is_sending`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// `None`: the socket has no room or no octets, or is not connected yet. An interrupted call moved nothing.
fn unless_blocked(moved: io::Result<usize>) -> io::Result<Option<usize>> {
    match moved {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => Ok(None),
        moved => moved.map(Some),
    }
}

fn failure(error: &io::Error) -> StreamCallError {
    StreamCallError::Connection(error.kind())
}

/// Begins to connect, without blocking.
fn begin_connect(address: SocketAddr, source: CallSource) -> io::Result<Socket> {
    match source {
        CallSource::ReservedPort => {
            for port in RESERVED_PORTS.rev() {
                let socket = new_socket(address)?;
                match socket.bind(&any_address(address, port).into()) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::AddrInUse => continue,
                    // Not root: any port will have to do.
                    Err(_) => break,
                }
                match start(&socket, address) {
                    // An earlier connection from here to there is not forgotten yet.
                    Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {}
                    started => return started.map(|()| socket),
                }
            }
        }
        CallSource::Address(from) if from.is_ipv4() == address.is_ipv4() => {
            let socket = new_socket(address)?;
            match socket.bind(&SocketAddr::new(from, 0).into()) {
                Ok(()) => return start(&socket, address).map(|()| socket),
                Err(error) => {
                    tracing::debug!(%from, %error, "a Call does not come from the address that it should");
                }
            }
        }
        CallSource::Address(_) | CallSource::Any => {}
    }
    let socket = new_socket(address)?;
    start(&socket, address)?;
    Ok(socket)
}

fn new_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket)
}

/// No particular address of this machine, of the same family as `other`.
fn any_address(other: SocketAddr, port: u16) -> SocketAddr {
    match other {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, port).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, port).into(),
    }
}

fn start(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    let in_progress = rustix::io::Errno::INPROGRESS.raw_os_error();
    match socket.connect(&address.into()) {
        // The standard library's name for it is not stable.
        Err(error) if error.raw_os_error() == Some(in_progress) || error.kind() == ErrorKind::WouldBlock => {
            Ok(())
        }
        started => started,
    }
}
