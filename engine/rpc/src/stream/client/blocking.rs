//! One Call after the other, each waited for.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, SockAddr, Socket, Type};
use stag_runtime::Clock;

use super::{CallSource, StreamCall, StreamCallError, StreamClient, StreamLimits, failure};

/// A [`StreamClient`] that waits: for the connection, and for each Call.
#[derive(Debug)]
pub struct BlockingClient {
    client: StreamClient,
    clock: Clock,
    timeout: Duration,
}

impl BlockingClient {
    /// Connects to a TCP port within `connect_timeout`. Each Call may take `call_timeout`.
    ///
    /// # Errors
    ///
    /// [`StreamCallError::Connection`], [`StreamCallError::TimedOut`].
    pub fn connect(
        address: SocketAddr,
        source: CallSource,
        limits: StreamLimits,
        (connect_timeout, call_timeout): (Duration, Duration),
    ) -> Result<BlockingClient, StreamCallError> {
        let client = StreamClient::connect(address, source, limits)?;
        let blocking = BlockingClient { client, clock: Clock::start(), timeout: call_timeout };
        if !blocking.wait(PollFlags::OUT, blocking.clock.now() + connect_timeout)? {
            return Err(StreamCallError::TimedOut);
        }
        match blocking.client.socket.take_error() {
            Ok(None) => Ok(blocking),
            Ok(Some(error)) | Err(error) => Err(failure(&error)),
        }
    }

    /// Connects to a local socket. That, and each Call, may take `timeout`.
    ///
    /// # Errors
    ///
    /// [`StreamCallError::Connection`].
    pub fn connect_local(
        path: impl AsRef<Path>,
        limits: StreamLimits,
        timeout: Duration,
    ) -> Result<BlockingClient, StreamCallError> {
        let connect = || {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            // A connection waits for its server's attention for no longer than that.
            socket.set_write_timeout(Some(timeout))?;
            socket.connect(&SockAddr::unix(path)?)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let socket = connect().map_err(|error: std::io::Error| failure(&error))?;
        Ok(BlockingClient { client: StreamClient::new(socket, limits), clock: Clock::start(), timeout })
    }

    /// Makes a Call, and returns its encoded results.
    ///
    /// # Errors
    ///
    /// See [`StreamCallError`]. After [`StreamCallError::NotExecuted`] and [`StreamCallError::Denied`] the connection can be
    /// used on; otherwise make another.
    pub fn call(&mut self, call: &StreamCall<'_>) -> Result<Vec<u8>, StreamCallError> {
        let deadline = self.clock.now() + self.timeout;
        let xid = self.client.begin(call, deadline)?;
        loop {
            match self.client.poll(self.clock.now()) {
                Some((ended, end)) if ended == xid => return end,
                // There is one Call at a time.
                Some(_) => {}
                None => {
                    let is_sending = self.client.is_sending();
                    let flags = if is_sending { PollFlags::OUT | PollFlags::IN } else { PollFlags::IN };
                    // Whether something happened, or it is too late: the next poll knows.
                    self.wait(flags, deadline)?;
                }
            }
        }
    }

    /// Whether Calls come from a port that only root may use.
    #[must_use]
    pub fn is_from_reserved_port(&self) -> bool {
        self.client.is_from_reserved_port()
    }

    /// Waits until the socket is ready, for no longer than until `deadline`. `false`: it is not.
    fn wait(&self, flags: PollFlags, deadline: Duration) -> Result<bool, StreamCallError> {
        loop {
            let left = deadline.saturating_sub(self.clock.now());
            let left =
                Timespec::try_from(left).map_err(|_| StreamCallError::Connection(ErrorKind::InvalidInput))?;
            match poll(&mut [PollFd::new(&self.client, flags)], Some(&left)) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(error) => return Err(failure(&error.into())),
            }
        }
    }
}
