//! What a [`Provider`](crate::Provider) is asked for and tells: names, requests, completions, events and errors.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use stag_memory::{Buf, Location, Shared};

/// Names a queue pair of one provider. Never reused while the provider lives: `generation` tells a
/// new queue pair from an old one in the same slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueuePairId {
    /// Slot: small and dense, so that callers can index an array with it.
    pub index: u32,
    /// Counts the uses of the slot.
    pub generation: u32,
}

/// The slot and its use: `3.1`.
impl fmt::Display for QueuePairId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// Names a listener of one provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId(pub u32);

/// Names a connection request that waits for [`Provider::accept`](crate::Provider::accept) or [`Provider::reject`](crate::Provider::reject).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectRequestId(pub u64);

/// A steering tag (STag, R_key): names exposed memory to the peer of one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub u32);

/// Parts of one [`ReadRequest`] at most: a chunk of as many segments as every server has to take
/// (8267-6.4.2-a), and more.
pub const READ_PARTS_MAX: usize = 64;

/// A piece of the peer's memory, as a chunk segment names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSegment {
    /// The peer's steering tag.
    pub handle: Handle,
    /// Where the piece starts, in the address space that belongs to `handle`. Opaque to us.
    pub offset: u64,
}

/// What a peer may do with exposed memory, and the memory itself (8166-8.1-c: the least access).
#[derive(Debug)]
pub enum Exposed {
    /// The peer may read it. Shared, because reading leaves it as it is.
    Read(Shared),
    /// The peer may write it, up to the buffer's `len()`.
    Write(Buf),
}

impl Exposed {
    /// Where the memory is.
    #[inline]
    pub(crate) fn location(&self) -> Location {
        match self {
            Exposed::Read(shared) => shared.location(),
            Exposed::Write(buf) => buf.location(),
        }
    }
}

/// How much a queue pair may have outstanding. Admission is decided on it: a queue pair whose
/// completions might not fit the completion queue is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairCapacity {
    /// Posted Receives at once.
    pub receives: u32,
    /// Posted Sends, Writes, Reads and pending fences at once.
    pub sends: u32,
    /// Exposed memory regions at once.
    pub exposures: u32,
    /// Largest message that this side sends, in bytes.
    pub send_len_max: u32,
    /// Largest message that this side receives, in bytes: every posted Receive has at least this capacity.
    pub receive_len_max: u32,
    /// Targets of a [`ScatteredReceive`](crate::ScatteredReceive), at most [`Limits::receive_targets`]; 0: each Receive is one buffer.
    pub receive_targets: u32,
}

/// How a provider exposes memory to its peers.
///
/// With all kinds but [`ExposureKind::Standing`] each exposure has a handle of its own, which a fence or an invalidation
/// makes worthless without touching another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExposureKind {
    /// An entry of a table that the provider checks on every access.
    TableEntry,
    /// A type 2 memory window.
    MemoryWindow,
    /// A registration for each exposure.
    Registration,
    /// Registrations of whole arenas, which last: **a handle opens its whole arena for reading and writing, on every
    /// queue pair, also after its fence**. Never chosen but when asked for (8166-8.1 is not kept).
    Standing,
}

/// What an opened provider can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Completions that the completion queue holds.
    pub completions: u32,
    /// Queue pairs at once.
    pub queue_pairs: u32,
    /// Largest Send, in bytes.
    pub message_len_max: u32,
    /// Largest single Write or Read, in bytes.
    pub transfer_len_max: u32,
    /// Octets of private data that a connect request or an accept can carry.
    pub private_data_len_max: usize,
    /// Whether a Send can invalidate a handle of the peer.
    pub send_with_invalidate: bool,
    /// How memory is exposed.
    pub exposure: ExposureKind,
    /// Whether Receives that a queue pair has not used at its end stay for others: no completion gives them back.
    pub shared_receives: bool,
    /// Targets of a [`ScatteredReceive`](crate::ScatteredReceive) at most; 0 where each Receive is one buffer.
    pub receive_targets: u32,
    /// Octets of data up to which it costs less in a message than in memory that its receiver reads from: measured. 0: it always
    /// costs more.
    pub message_data_max: u32,
    /// The same of data that its sender may write to the receiver's memory instead.
    pub message_results_max: u32,
}

/// Whether a fence is complete.
#[derive(Debug)]
#[must_use]
pub enum Fence {
    /// The handle is dead, and here is the memory.
    Done(Exposed),
    /// The handle takes no new access, but one may be under way: a [`Completed::Fence`] will come.
    Pending,
}

/// A Send to post.
#[derive(Debug)]
pub struct SendRequest {
    /// Comes back in the completion.
    pub id: u64,
    /// The message: the buffer's `len()` bytes.
    pub buf: Buf,
    /// A handle of the peer that dies with this Send (Send with Invalidate). One that the peer fenced while
    /// the Send was on its way is no error, but on some hardware the end of the connection; one that was
    /// never exposed is an error everywhere.
    pub invalidate: Option<Handle>,
    /// Whether a completion is wanted. Without one the buffer goes back to its pool by itself; errors
    /// always complete.
    pub signaled: bool,
}

/// An RDMA Write to post.
#[derive(Debug)]
pub struct WriteRequest {
    /// Comes back in the completion.
    pub id: u64,
    /// What to write: all of it. A counted reference, so a store's page can be written as it is.
    pub source: Shared,
    /// Where to: `source.len()` bytes from there.
    pub target: RemoteSegment,
    /// As in [`SendRequest::signaled`].
    pub signaled: bool,
}

/// RDMA Reads to post: one buffer filled from one or more pieces of the peer's memory. Always signaled,
/// with one completion when all its parts are done.
#[derive(Debug)]
pub struct ReadRequest {
    /// Comes back in the completion.
    pub id: u64,
    /// Receives the data.
    pub target: Buf,
}

/// One RDMA Read of a [`ReadRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPart {
    /// First octet of the target to fill.
    pub at: u32,
    /// Octets to read.
    pub len: u32,
    /// Where from.
    pub source: RemoteSegment,
}

/// A finished work request.
#[derive(Debug)]
pub struct Completion {
    /// Whose it is.
    pub queue_pair: QueuePairId,
    /// The request's own id.
    pub id: u64,
    /// What finished.
    pub completed: Completed,
    /// How. On an error the queue pair takes no more work and is being disconnected.
    pub result: Result<(), WorkError>,
}

/// Which request finished, and what it gives back.
#[derive(Debug)]
pub enum Completed {
    /// A message arrived: `buf.len()` is its length. On an error `buf` is what was posted.
    Receive {
        /// The posted buffer.
        buf: Buf,
        /// The handle of ours that the peer's Send invalidated. Its memory is in `exposed`.
        invalidated: Option<Handle>,
        /// What [`Provider::expose`](crate::Provider::expose) took for `invalidated`.
        exposed: Option<Exposed>,
    },
    /// A Send is done.
    Send(Buf),
    /// A Write is done: the source may be reused. It says nothing about the peer.
    Write(Shared),
    /// A Read is done: the data is there.
    Read(Buf),
    /// A fence is done: no access of the peer is under way or will come. The end of the connection fences
    /// what is still exposed; then the result is `Flushed`, and `id` is 0 unless a fence was pending.
    Fence {
        /// The dead handle.
        handle: Handle,
        /// What it named.
        exposed: Exposed,
    },
}

/// Why a work request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkError {
    /// The queue pair was disconnected before the request ran; it may or may not have run.
    #[error("flushed: the connection ended before the work request was done")]
    Flushed,
    /// A message was larger than the Receive posted for it (either side sees this).
    #[error("length error: the message is larger than the Receive posted for it")]
    Length,
    /// The peer refused: no such handle, outside of its bounds, or not that access.
    #[error("remote access error: the handle is unknown, or does not allow this access there")]
    RemoteAccess,
    /// A buffer that this provider has no registration for.
    #[error("local protection error: the buffer is not in a registered arena")]
    LocalProtection,
    /// The peer broke the rules of the fabric.
    #[error("the peer violated the fabric's protocol")]
    PeerViolation,
    /// The peer, or the way to it, did not answer however often it was tried.
    #[error("the peer does not answer: transport retries are used up")]
    Unreachable,
    /// The peer had no Receive posted, however often it was tried.
    #[error("the peer has no Receive posted: receiver-not-ready retries are used up")]
    ReceiverNotReady,
    /// The device, or its driver, failed.
    #[error("the device failed")]
    Device,
}

/// Why a request was not posted. The request is handed back beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue pair does not exist, or takes no more work.
    #[error("the queue pair is not connected")]
    NotConnected,
    /// The capacity given at connection set-up is used up.
    #[error("the queue pair's capacity is used up")]
    Full,
    /// Longer than the limits allow.
    #[error("longer than this queue pair carries")]
    TooLong,
    /// The buffer is not in a registered arena.
    #[error("the buffer is not in a registered arena")]
    NotRegistered,
    /// A Receive in several buffers that is not possible: too many targets, capacities that are no multiples of 8, or a queue
    /// pair with other Receives.
    #[error("the Receive cannot be in these buffers together")]
    Scatter,
}

/// A refused request and why.
#[derive(Debug)]
pub struct Refused<T> {
    /// The request, untouched.
    pub request: T,
    /// Why.
    pub error: PostError,
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// We asked for it.
    Local,
    /// The peer closed it in order.
    Peer,
    /// The peer went away: its process died, its machine was cut off.
    PeerDied,
    /// The peer refused the connection, and says why.
    Rejected(String),
    /// We refused: who listens there is no process that our side admits.
    NotAdmitted {
        /// Its user.
        uid: u32,
        /// Its group.
        gid: u32,
    },
    /// We refused: the peer's memory is not mapped here, and why.
    MemoryRefused(String),
    /// There is no listener at that address.
    NoListener,
    /// Set-up took too long.
    TimedOut,
    /// Nothing leads there, and why.
    Unreachable(&'static str),
    /// The device under the connection is gone.
    DeviceRemoved,
    /// A work request failed.
    Work(WorkError),
    /// The peer broke the fabric's own protocol.
    PeerViolation(&'static str),
}

impl DisconnectReason {
    /// The reason as a sentence; `peer` is what it calls the other side, for example "the server".
    #[must_use]
    pub fn describe(&self, peer: &str) -> String {
        match self {
            DisconnectReason::Local => "this side ended the connection".to_owned(),
            DisconnectReason::Peer => format!("{peer} ended the connection"),
            DisconnectReason::PeerDied => format!("{peer}'s process is gone"),
            DisconnectReason::Rejected(why) if why.trim().is_empty() => {
                format!("{peer} refused the connection, and does not say why")
            }
            DisconnectReason::Rejected(why) => format!("{peer} refused: {why}"),
            DisconnectReason::NotAdmitted { uid, .. } => {
                format!("{peer} runs as user {uid}, who is not admitted here, and got nothing")
            }
            DisconnectReason::MemoryRefused(why) => format!("{peer}'s memory is not mapped here: {why}"),
            DisconnectReason::NoListener => "no server listens there".to_owned(),
            DisconnectReason::TimedOut => "no connection in time".to_owned(),
            DisconnectReason::Unreachable(why) => format!("no route to it: {why}"),
            DisconnectReason::DeviceRemoved => "the RDMA device is gone".to_owned(),
            DisconnectReason::Work(error) => format!("the connection failed: {error}"),
            DisconnectReason::PeerViolation(what) => {
                format!("the connection was ended for a violation of the fabric's protocol: {what}")
            }
        }
    }
}

impl fmt::Display for DisconnectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe("the peer"))
    }
}

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A process of this machine.
    Process {
        /// Its process id.
        pid: u32,
        /// Its user.
        uid: u32,
        /// Its group.
        gid: u32,
    },
    /// An address of a network.
    Address(SocketAddr),
}

/// `process 7 (uid 1000)`, or `10.0.0.7:51234`.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Process { pid, uid, .. } => write!(f, "process {pid} (uid {uid})"),
            Peer::Address(address) => address.fmt(f),
        }
    }
}

/// Something of the connection manager. Rare: not on the path of an RPC.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// Somebody wants to connect: answer with [`Provider::accept`](crate::Provider::accept) or [`Provider::reject`](crate::Provider::reject).
    ConnectRequest {
        /// Where they came in.
        listener: ListenerId,
        /// The name to answer with.
        request: ConnectRequestId,
        /// Who they are.
        peer: Peer,
        /// Their private data, without what the provider itself adds.
        private_data: Vec<u8>,
    },
    /// The queue pair is connected. Comes before its first completion. Nothing else is posted for the
    /// user before this but Receives.
    Established {
        /// Which.
        queue_pair: QueuePairId,
        /// The accepting side's private data; empty on the accepting side itself.
        private_data: Vec<u8>,
        /// Who is there.
        peer: Peer,
    },
    /// The queue pair is gone. Comes after the last of its completions, and after the targets of each message were taken
    /// ([`Provider::take_targets`](crate::Provider::take_targets)): by then every posted buffer (but of
    /// [`Limits::shared_receives`]) and every exposed one was given back, and the peer can no longer touch any (but with
    /// [`ExposureKind::Standing`]). The exception is memory that a peer does not let go of
    /// ([`ShmConfig::fence_timeout`](crate::ShmConfig::fence_timeout)): it is lost.
    Disconnected {
        /// Which.
        queue_pair: QueuePairId,
        /// Why.
        reason: DisconnectReason,
    },
}

/// A connection to one of our listeners that is not for the fabric: its first octets are those of another
/// protocol, which the user may speak on the same port (RPC over TCP, by its record mark).
///
/// Nothing was consumed: the octets that told it apart are still in the socket.
#[derive(Debug)]
pub struct Stranger {
    /// Where it came in.
    pub listener: ListenerId,
    /// The connection: non-blocking, with the listener's socket options.
    pub socket: OwnedFd,
    /// Who it is.
    pub peer: SocketAddr,
}

/// Why something outside the data path failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// This machine cannot run the fabric.
    #[error("{fabric}:// does not work here: {problem}")]
    Unavailable {
        /// Which.
        fabric: &'static str,
        /// What is missing, and how to get it.
        problem: String,
    },
    /// The address cannot be understood.
    #[error("address {address:?}: {problem}")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// Something of this kind is at its limit.
    #[error("{what}: {wanted} wanted, the limit is {limit}; {repair}")]
    Limit {
        /// The thing.
        what: &'static str,
        /// The value found.
        wanted: u64,
        /// The limit.
        limit: u64,
        /// What to change.
        repair: &'static str,
    },
    /// The request or queue pair is no longer there.
    #[error("{0} is gone")]
    Gone(&'static str),
    /// The operating system refused.
    #[error("{doing}: {source}")]
    System {
        /// What was being done, and to what.
        doing: String,
        /// The system's answer.
        source: std::io::Error,
    },
}
