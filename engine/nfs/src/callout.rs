//! The server's own Calls: to the lock managers and status monitors of its clients, over TCP, at ports that
//! their rpcbind tells.
//!
//! ```text
//! begin ─▶ [ask rpcbind, port 111] ─▶ connect ─▶ Call ─▶ Reply ─▶ poll
//!             left out while the port is known
//! ```
//!
//! Nothing blocks, and everything is bounded: the number of concurrent Calls, the time of each, the length of a Reply.
//! It is driven by [`CallOut::poll`], from the reactor that owns it. One connection for each Call: there are few.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use stag_wire::record::{Mark, Splitter, Step};
use stag_wire::rpc::{CallHeader, OpaqueAuth, ReplyHeader};
use stag_wire::rpcbind::{self, UniversalAddress};
use stag_wire::xdr::{Encode, Reader, Writer};

/// Octets of the arguments that a Call out can have.
pub const ARGUMENTS_LEN_MAX: usize = 8192;
/// Octets of a Reply to such a Call.
const REPLY_LEN_MAX: u32 = 4096;
/// Ports that are remembered.
const PORTS_MAX: usize = 1024;
/// While something is under way, sockets are looked at so often.
const LOOK: Duration = Duration::from_micros(500);

/// A Call to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutCall {
    /// The client's address.
    pub to: IpAddr,
    /// The address of this machine that the client knows the server by. A lock manager takes no news from another one. `None`, or
    /// an address that this machine does not have: the system chooses.
    pub from: Option<IpAddr>,
    /// Program number.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure of the version.
    pub procedure: u32,
    /// The arguments, encoded.
    pub arguments: Vec<u8>,
}

/// Encodes arguments.
///
/// # Panics
///
/// If they are longer than [`ARGUMENTS_LEN_MAX`].
#[must_use]
pub fn arguments(value: &impl Encode) -> Vec<u8> {
    let mut octets = vec![0; ARGUMENTS_LEN_MAX];
    let mut writer = Writer::new(&mut octets);
    writer.value(value).expect("arguments are shorter than that");
    let len = writer.position();
    octets.truncate(len);
    octets
}

/// Why a Call out brought nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallOutError {
    /// No connection, or it ended.
    #[error("no connection to the client: {0}")]
    Connection(ErrorKind),
    /// The client's rpcbind knows no such program.
    #[error("the client's rpcbind knows no such program")]
    NotRegistered,
    /// The Reply says that the Call was not executed.
    #[error("the client refused the Call")]
    Refused,
    /// The Reply makes no sense.
    #[error("the client's reply is malformed")]
    BadReply,
    /// It took too long.
    #[error("the client took too long")]
    TimedOut,
}

/// Names a Call out until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallOutId(pub u64);

/// What makes Calls out. A trait object where it is used: such Calls are rare, and far from where Calls are served.
pub trait CallOut {
    /// Begins a Call. `None`: there are too many at once; try again when one has ended.
    fn begin(&mut self, call: OutCall, now: Duration) -> Option<CallOutId>;

    /// Forgets a Call: it will not be returned by [`CallOut::poll`].
    fn cancel(&mut self, id: CallOutId);

    /// Drives all of them; returns the next one that ended, with its results. Call it until it returns `None`.
    fn poll(&mut self, now: Duration) -> Option<(CallOutId, Result<Vec<u8>, CallOutError>)>;

    /// When to call [`CallOut::poll`] next, even if nothing happens.
    fn next_timeout(&self) -> Option<Duration>;

    /// Adds what becomes readable when there is work.
    fn descriptors(&self, out: &mut Vec<RawFd>);
}

/// Calls out that all fail: for a server that shall make none.
#[derive(Debug, Default)]
pub struct NoCallOut {
    begun: u64,
    ended: u64,
}

impl CallOut for NoCallOut {
    fn begin(&mut self, _: OutCall, _: Duration) -> Option<CallOutId> {
        self.begun += 1;
        Some(CallOutId(self.begun))
    }

    fn cancel(&mut self, _: CallOutId) {}

    fn poll(&mut self, _: Duration) -> Option<(CallOutId, Result<Vec<u8>, CallOutError>)> {
        if self.ended == self.begun {
            return None;
        }
        self.ended += 1;
        Some((CallOutId(self.ended), Err(CallOutError::Connection(ErrorKind::Unsupported))))
    }

    fn next_timeout(&self) -> Option<Duration> {
        None
    }

    fn descriptors(&self, _: &mut Vec<RawFd>) {}
}

/// How [`TcpCallOut`] behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOutConfig {
    /// Calls at once.
    pub calls_max: usize,
    /// Time for each, with the question for the port.
    pub timeout: Duration,
    /// Where rpcbind listens.
    pub rpcbind_port: u16,
}

impl Default for CallOutConfig {
    fn default() -> CallOutConfig {
        CallOutConfig { calls_max: 16, timeout: Duration::from_secs(5), rpcbind_port: rpcbind::PORT }
    }
}

/// Makes Calls out over TCP.
#[derive(Debug)]
pub struct TcpCallOut {
    config: CallOutConfig,
    jobs: Vec<Job>,
    /// Calls that did not get as far as a socket.
    failed: Vec<(CallOutId, CallOutError)>,
    /// Ports that rpcbinds told; forgotten when a connection there fails.
    ports: HashMap<(IpAddr, u32, u32), u16>,
    last_id: u64,
    xid: u32,
    next_look: Duration,
}

#[derive(Debug)]
struct Job {
    id: CallOutId,
    call: OutCall,
    deadline: Duration,
    /// The port is not known yet, so the Call goes to rpcbind.
    asks_port: bool,
    /// The port was known from before, and may have changed.
    from_memory: bool,
    connection: Connection,
}

/// One connection, for one Call.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    xid: u32,
    output: Vec<u8>,
    sent: usize,
    splitter: Splitter,
    reply: Vec<u8>,
}

/// What a look at a connection found.
type Look = Option<Result<Vec<u8>, CallOutError>>;

impl TcpCallOut {
    /// Makes no Call yet.
    #[must_use]
    pub fn new(config: CallOutConfig) -> TcpCallOut {
        TcpCallOut {
            config,
            jobs: Vec::new(),
            failed: Vec::new(),
            ports: HashMap::new(),
            last_id: 0,
            // Clients that remember Calls of an earlier run must not take ours for those.
            xid: RandomState::new().hash_one(0) as u32,
            next_look: Duration::ZERO,
        }
    }

    /// Connects to where the Call goes next: rpcbind, or the program.
    fn connect(&mut self, call: &OutCall, port: Option<u16>) -> Result<Connection, CallOutError> {
        self.xid = self.xid.wrapping_add(1);
        let address = SocketAddr::new(call.to, port.unwrap_or(self.config.rpcbind_port));
        match port {
            Some(_) => Connection::new(address, self.xid, call),
            // From the same address as the Call: a firewall lets through both or none.
            None => Connection::new(address, self.xid, &port_question(call, address)),
        }
    }

    /// Takes one job a step further.
    fn step(&mut self, index: usize, now: Duration) -> Look {
        let job = &mut self.jobs[index];
        if now >= job.deadline {
            self.forget_port(index);
            return Some(Err(CallOutError::TimedOut));
        }
        let found = job.connection.poll()?;
        if job.asks_port {
            let call = job.call.clone();
            let port = found.and_then(|results| read_port(&results, call.to));
            let next = port.and_then(|port| {
                self.remember_port(&call, port);
                self.connect(&call, Some(port))
            });
            return match next {
                Ok(connection) => {
                    let job = &mut self.jobs[index];
                    (job.connection, job.asks_port) = (connection, false);
                    None
                }
                Err(error) => Some(Err(error)),
            };
        }
        if found.is_err() {
            let from_memory = job.from_memory;
            let call = job.call.clone();
            self.forget_port(index);
            // The lock manager may have another port since: ask once more.
            if from_memory {
                return match self.connect(&call, None) {
                    Ok(connection) => {
                        let job = &mut self.jobs[index];
                        (job.connection, job.asks_port, job.from_memory) = (connection, true, false);
                        None
                    }
                    Err(error) => Some(Err(error)),
                };
            }
        }
        Some(found)
    }

    fn remember_port(&mut self, call: &OutCall, port: u16) {
        if self.ports.len() >= PORTS_MAX {
            self.ports.clear();
        }
        self.ports.insert((call.to, call.program, call.version), port);
    }

    fn forget_port(&mut self, index: usize) {
        let call = &self.jobs[index].call;
        self.ports.remove(&(call.to, call.program, call.version));
    }
}

impl CallOut for TcpCallOut {
    fn begin(&mut self, call: OutCall, now: Duration) -> Option<CallOutId> {
        if self.jobs.len() + self.failed.len() >= self.config.calls_max {
            return None;
        }
        let port = self.ports.get(&(call.to, call.program, call.version)).copied();
        self.last_id += 1;
        let id = CallOutId(self.last_id);
        self.next_look = now;
        let connection = match self.connect(&call, port) {
            Ok(connection) => connection,
            Err(error) => {
                self.failed.push((id, error));
                return Some(id);
            }
        };
        let deadline = now + self.config.timeout;
        self.jobs.push(Job {
            id,
            call,
            deadline,
            asks_port: port.is_none(),
            from_memory: port.is_some(),
            connection,
        });
        Some(id)
    }

    fn cancel(&mut self, id: CallOutId) {
        self.jobs.retain(|job| job.id != id);
        self.failed.retain(|(failed, _)| *failed != id);
    }

    fn poll(&mut self, now: Duration) -> Option<(CallOutId, Result<Vec<u8>, CallOutError>)> {
        if let Some((id, error)) = self.failed.pop() {
            return Some((id, Err(error)));
        }
        if self.jobs.is_empty() || now < self.next_look {
            return None;
        }
        for index in 0..self.jobs.len() {
            if let Some(result) = self.step(index, now) {
                let job = self.jobs.swap_remove(index);
                return Some((job.id, result));
            }
        }
        self.next_look = now + LOOK;
        None
    }

    fn next_timeout(&self) -> Option<Duration> {
        if !self.failed.is_empty() {
            return Some(self.next_look);
        }
        // A socket that connects becomes writable, not readable: it is looked at by the clock.
        let connects = self.jobs.iter().any(|job| job.connection.sent < job.connection.output.len());
        let deadline = self.jobs.iter().map(|job| job.deadline).min()?;
        Some(if connects { self.next_look + LOOK } else { deadline })
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.extend(self.jobs.iter().map(|job| job.connection.stream.as_raw_fd()));
    }
}

impl Connection {
    fn new(address: SocketAddr, xid: u32, call: &OutCall) -> Result<Connection, CallOutError> {
        let stream = connect(address, call.from).map_err(|error| CallOutError::Connection(error.kind()))?;
        let output = message(xid, call);
        let splitter = Splitter::new(REPLY_LEN_MAX);
        Ok(Connection { stream, xid, output, sent: 0, splitter, reply: Vec::new() })
    }

    /// Sends and receives what can be; the results if the Reply is complete.
    fn poll(&mut self) -> Look {
        loop {
            match self.advance() {
                Ok(Some(end)) => return Some(end),
                Ok(None) => {}
                Err(ErrorKind::WouldBlock | ErrorKind::NotConnected) => return None,
                Err(ErrorKind::Interrupted) => {}
                Err(kind) => return Some(Err(CallOutError::Connection(kind))),
            }
        }
    }

    /// One system call.
    fn advance(&mut self) -> Result<Look, ErrorKind> {
        if self.sent < self.output.len() {
            let sent = self.stream.write(&self.output[self.sent..]).map_err(|error| error.kind())?;
            self.sent += sent;
            return Ok(None);
        }
        let mut buf = [0; 1024];
        let count = self.stream.read(&mut buf).map_err(|error| error.kind())?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof);
        }
        let mut input = &buf[..count];
        loop {
            match self.splitter.step(&mut input) {
                Ok(Step::Octets(octets)) => self.reply.extend_from_slice(octets),
                Ok(Step::End) => return Ok(Some(self.results())),
                Ok(Step::Pause) => return Ok(None),
                Err(_) => return Ok(Some(Err(CallOutError::BadReply))),
            }
        }
    }

    fn results(&self) -> Result<Vec<u8>, CallOutError> {
        let mut reader = Reader::new(&self.reply);
        let header = ReplyHeader::parse(&mut reader).map_err(|_| CallOutError::BadReply)?;
        if header.xid != self.xid {
            return Err(CallOutError::BadReply);
        }
        if !header.is_success() {
            return Err(CallOutError::Refused);
        }
        Ok(reader.rest().to_vec())
    }
}

/// Begins to connect.
fn connect(address: SocketAddr, from: Option<IpAddr>) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if let Some(from) = from.filter(|from| from.is_ipv4() == address.is_ipv4())
        && let Err(error) = socket.bind(&SocketAddr::new(from, 0).into())
    {
        tracing::debug!(%from, %error, "a Call to a host does not come from the address that it knows");
    }
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(error) if in_progress(&error) => {}
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}

fn in_progress(error: &std::io::Error) -> bool {
    // The standard library's name for it is not stable.
    error.kind() == ErrorKind::WouldBlock || error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error())
}

/// A Call behind its record mark.
fn message(xid: u32, call: &OutCall) -> Vec<u8> {
    let (credential, verifier) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
    let (program, version, procedure) = (call.program, call.version, call.procedure);
    let header = CallHeader { xid, program, version, procedure, credential, verifier };
    let len = header.emitted_len() + call.arguments.len();
    let mut octets = vec![0; 4 + len];
    let (mark, rest) = octets.split_at_mut(4);
    mark.copy_from_slice(&Mark::whole(len as u32).to_bytes());
    let mut writer = Writer::new(rest);
    let written = header.emit(&mut writer).and_then(|()| writer.opaque_fixed(&call.arguments));
    written.expect("the buffer is as long as the message");
    octets
}

/// What to ask an rpcbind: of IPv4 the port mapper, which everybody has; of IPv6 what can say such an address.
fn port_question(call: &OutCall, rpcbind: SocketAddr) -> OutCall {
    let (program, version, to) = (call.program, call.version, call.to);
    let (asked, procedure, arguments) = if to.is_ipv4() {
        let mapping = rpcbind::Mapping { program, version, protocol: rpcbind::protocol::TCP, port: 0 };
        (rpcbind::VERSION_PORTMAP, rpcbind::PortmapProcedure::Getport.number(), arguments(&mapping))
    } else {
        let address = UniversalAddress::new(rpcbind);
        let (netid, owner) = (rpcbind::Text(rpcbind::netid::TCP6), rpcbind::Text(b""));
        let binding = rpcbind::Binding { program, version, netid, address: address.text(), owner };
        (rpcbind::VERSION_4, rpcbind::RpcbindProcedure::Getaddr.number(), arguments(&binding))
    };
    OutCall { to, from: call.from, program: rpcbind::PROGRAM, version: asked, procedure, arguments }
}

/// The port in an rpcbind's answer.
fn read_port(results: &[u8], to: IpAddr) -> Result<u16, CallOutError> {
    let mut reader = Reader::new(results);
    let port = if to.is_ipv4() {
        let port = reader.u32().map_err(|_| CallOutError::BadReply)?;
        u16::try_from(port).map_err(|_| CallOutError::BadReply)?
    } else {
        let address: rpcbind::Text<'_> = reader.value().map_err(|_| CallOutError::BadReply)?;
        match address.0 {
            b"" => 0,
            text => UniversalAddress::parse(text).ok_or(CallOutError::BadReply)?.port(),
        }
    };
    if port == 0 { Err(CallOutError::NotRegistered) } else { Ok(port) }
}
