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
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use stag_rpc::{CallSource, StreamCall, StreamCallError, StreamClient, StreamLimits};
use stag_wire::rpc::OpaqueAuth;
use stag_wire::rpcbind::{self, UniversalAddress};
use stag_wire::xdr::{Encode, Overflow, Reader, Writer};

/// Octets of the arguments that a Call out can have.
pub const ARGUMENTS_LEN_MAX: usize = 8192;
/// Bounds of one connection: its one Call, with its header, and the Reply.
const LIMITS: StreamLimits =
    StreamLimits { calls_max: 1, call_len_max: ARGUMENTS_LEN_MAX as u32 + 64, reply_len_max: 4096 };
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
    /// The client's rpcbind knows no such program.
    #[error("the client's rpcbind knows no such program")]
    NotRegistered,
    /// The client, or its rpcbind, brought no results.
    #[error("the client: {0}")]
    Call(#[from] StreamCallError),
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
        Some((CallOutId(self.ended), Err(StreamCallError::Connection(ErrorKind::Unsupported).into())))
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
    /// One connection, for one Call.
    client: StreamClient,
}

/// How a Call ended, if it has.
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
            next_look: Duration::ZERO,
        }
    }

    /// Calls where the Call goes next: rpcbind, or the program.
    fn connect(
        &self,
        call: &OutCall,
        port: Option<u16>,
        deadline: Duration,
    ) -> Result<StreamClient, StreamCallError> {
        let address = SocketAddr::new(call.to, port.unwrap_or(self.config.rpcbind_port));
        // From the same address as the Call: a firewall lets through both or none.
        let question = port.is_none().then(|| port_question(call, address));
        let call = question.as_ref().unwrap_or(call);
        let source = call.from.map_or(CallSource::Any, CallSource::Address);
        let mut client = StreamClient::connect(address, source, LIMITS)?;
        let OutCall { program, version, procedure, .. } = *call;
        let arguments = &Encoded(&call.arguments);
        client.begin(
            &StreamCall { program, version, procedure, credential: OpaqueAuth::NONE, arguments },
            deadline,
        )?;
        Ok(client)
    }

    /// Takes one job a step further.
    fn step(&mut self, index: usize, now: Duration) -> Look {
        let job = &mut self.jobs[index];
        let (_, found) = job.client.poll(now)?;
        if job.asks_port {
            let call = job.call.clone();
            let port = found.map_err(CallOutError::from).and_then(|results| read_port(&results, call.to));
            return match port {
                Ok(port) => {
                    self.remember_port(&call, port);
                    self.redirect(index, Some(port))
                }
                Err(error) => Some(Err(error)),
            };
        }
        if let Err(error) = found {
            self.forget_port(index);
            // The lock manager may have another port since: ask once more, unless there is no time.
            if self.jobs[index].from_memory && error != StreamCallError::TimedOut {
                return self.redirect(index, None);
            }
        }
        Some(found.map_err(CallOutError::from))
    }

    /// The job goes on with another connection: to the program, or to rpcbind.
    fn redirect(&mut self, index: usize, port: Option<u16>) -> Look {
        let job = &self.jobs[index];
        match self.connect(&job.call, port, job.deadline) {
            Ok(client) => {
                let job = &mut self.jobs[index];
                (job.client, job.asks_port, job.from_memory) = (client, port.is_none(), false);
                None
            }
            Err(error) => Some(Err(error.into())),
        }
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
        let deadline = now + self.config.timeout;
        match self.connect(&call, port, deadline) {
            Ok(client) => {
                let (asks_port, from_memory) = (port.is_none(), port.is_some());
                self.jobs.push(Job { id, call, deadline, asks_port, from_memory, client });
            }
            Err(error) => self.failed.push((id, error.into())),
        }
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
        let connects = self.jobs.iter().any(|job| job.client.is_sending());
        let deadline = self.jobs.iter().map(|job| job.deadline).min()?;
        Some(if connects { self.next_look + LOOK } else { deadline })
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.extend(self.jobs.iter().map(|job| job.client.as_fd().as_raw_fd()));
    }
}

/// Arguments that are encoded already.
struct Encoded<'a>(&'a [u8]);

impl Encode for Encoded<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.opaque_fixed(self.0)
    }
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
        let port = reader.u32().map_err(|_| StreamCallError::BadReply)?;
        u16::try_from(port).map_err(|_| StreamCallError::BadReply)?
    } else {
        let address: rpcbind::Text<'_> = reader.value().map_err(|_| StreamCallError::BadReply)?;
        match address.0 {
            b"" => 0,
            text => UniversalAddress::parse(text).ok_or(StreamCallError::BadReply)?.port(),
        }
    };
    if port == 0 { Err(CallOutError::NotRegistered) } else { Ok(port) }
}
