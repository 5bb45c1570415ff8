//! The `Provider` trait and its types.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use stag_memory::{Arena, ArenaId, Buf, Location, Shared};

use crate::scatter::{ReceiveTargets, ScatteredReceive};
use crate::shown::{GatheredPieces, TakeShown};

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

/// Names a connection request that waits for [`Provider::accept`] or [`Provider::reject`].
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
    /// Targets of a [`ScatteredReceive`], at most [`Limits::receive_targets`]; 0: each Receive is one buffer.
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
    /// Targets of a [`ScatteredReceive`] at most; 0 where each Receive is one buffer.
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
        /// What [`Provider::expose`] took for `invalidated`.
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
    /// Somebody wants to connect: answer with [`Provider::accept`] or [`Provider::reject`].
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
    /// ([`Provider::take_targets`]): by then every posted buffer (but of
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

/// An opened fabric, as one reactor uses it. Not shared between threads.
///
/// # Order
///
/// On one queue pair: Sends arrive in the order they were posted, each in the oldest posted Receive; a
/// Write is placed before any Send posted after it is delivered; a Read posted after a Send does not
/// wait for it. Completions of one queue pair's Sends, Writes and Reads come in posting order.
///
/// # No allocation
///
/// After set-up, `post_*`, `expose`, `fence`, `ring_doorbells` and `poll` do not allocate.
pub trait Provider {
    /// A connection request on its way from one provider to another of its kind, in the same process. Dropped, it ends the
    /// connection.
    type Handover: Send;
    /// What a provider must know of the one that it hands a request over to.
    type Destination: Clone + Send;

    /// The scheme of this fabric's URLs.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn limits(&self) -> Limits;

    /// Registers an arena, so that its buffers can be posted and exposed. At start, before traffic.
    fn register(&mut self, arena: &Arena) -> Result<(), FabricError>;

    /// Whether an arena is registered.
    fn is_registered(&self, arena: ArenaId) -> bool;

    /// Listens at `address` (what stands after `scheme://` and before the path).
    fn listen(&mut self, address: &str) -> Result<ListenerId, FabricError>;

    /// The network address that a listener got, where it has one: with port 0 the system has chosen the port.
    fn listener_address(&self, listener: ListenerId) -> Option<SocketAddr> {
        let _ = listener;
        None
    }

    /// Starts to connect. [`Event::Established`] or [`Event::Disconnected`] will follow. Receives may be
    /// posted at once.
    fn connect(
        &mut self,
        address: &str,
        private_data: &[u8],
        capacity: QueuePairCapacity,
    ) -> Result<QueuePairId, FabricError>;

    /// Makes the queue pair of an incoming connection, so that Receives can be posted **before** the
    /// peer hears of it; [`Provider::accept`] then tells the peer.
    fn prepare(
        &mut self,
        request: ConnectRequestId,
        capacity: QueuePairCapacity,
    ) -> Result<QueuePairId, FabricError>;

    /// This machine's address that a peer's connection came in at, where it has one.
    fn local_address(&self, queue_pair: QueuePairId) -> Option<SocketAddr> {
        let _ = queue_pair;
        None
    }

    /// Accepts: the peer gets `private_data`. [`Event::Established`] or [`Event::Disconnected`] follows.
    fn accept(&mut self, queue_pair: QueuePairId, private_data: &[u8]) -> Result<(), FabricError>;

    /// Refuses, with a reason for the peer's log.
    fn reject(&mut self, request: ConnectRequestId, reason: &str);

    /// What others need to [`release`](Provider::release) requests to this provider.
    fn destination(&self) -> Self::Destination;

    /// Lets a request go, to be adopted by the provider whose [`destination`](Provider::destination) that is. From here on it is
    /// unknown here. `None`: it is gone already.
    fn release(&mut self, request: ConnectRequestId, to: &Self::Destination) -> Option<Self::Handover>;

    /// Takes on a request that another provider released to this one, and names it: it is answered as if it had come in
    /// here. The arenas registered here are the ones that count.
    ///
    /// # Errors
    ///
    /// The client is gone, or is refused because too many requests wait.
    fn adopt(&mut self, handover: Self::Handover) -> Result<ConnectRequestId, FabricError>;

    /// Starts to disconnect: everything posted or exposed comes back in completions (`Flushed`), then
    /// [`Event::Disconnected`]. Harmless when it is already under way.
    fn disconnect(&mut self, queue_pair: QueuePairId);

    /// Posts a Receive. It is there for the peer's messages after [`Provider::ring_doorbells`] at the latest, and before
    /// whatever else was posted leaves. Its capacity is at least the queue pair's `receive_len_max`. With
    /// [`Limits::shared_receives`] the buffer of the completion may be another one that was posted, and `buf` may be dropped
    /// at once, where a queue pair that ended left one over.
    fn post_receive(&mut self, queue_pair: QueuePairId, id: u64, buf: Buf) -> Result<(), Refused<Buf>>;

    /// Posts a Receive in several buffers, as [`Provider::post_receive`] does in one, to a queue pair that was asked for with
    /// [`QueuePairCapacity::receive_targets`]. All Receives of the queue pair are such, or none is; the head's `len()` and the
    /// targets' capacities together are at least its `receive_len_max`, and each is a multiple of 8. Messages that are shown in place
    /// ([`Provider::poll_in_place`]) on such a queue pair are [`ScatteredMessage`](crate::ScatteredMessage)s.
    ///
    /// The completion has the head, with the octets in it as its length. If it is no error, the user asks
    /// [`Provider::take_targets`] once: [`Event::Disconnected`] does not come before. The targets of a Receive that failed or was
    /// flushed go back to their pools.
    ///
    /// # Errors
    ///
    /// [`PostError::Scatter`] if it has more targets than the queue pair was asked for with, if their capacities are not such, or if
    /// the Receives that are posted are plain.
    fn post_scattered(
        &mut self,
        queue_pair: QueuePairId,
        request: ScatteredReceive,
    ) -> Result<(), Refused<ScatteredReceive>>;

    /// Takes the targets of the oldest scattered Receive that completed well and was not asked about.
    fn take_targets(&mut self, queue_pair: QueuePairId) -> Option<Box<ReceiveTargets>>;

    /// Posts a Send. Leaves with [`Provider::ring_doorbells`] at the latest.
    fn post_send(
        &mut self,
        queue_pair: QueuePairId,
        request: SendRequest,
    ) -> Result<(), Refused<SendRequest>>;

    /// Posts an RDMA Write.
    fn post_write(
        &mut self,
        queue_pair: QueuePairId,
        request: WriteRequest,
    ) -> Result<(), Refused<WriteRequest>>;

    /// Posts the RDMA Reads of `parts`, at most [`READ_PARTS_MAX`], into one target. They count as one
    /// of the queue pair's `sends`.
    fn post_read(
        &mut self,
        queue_pair: QueuePairId,
        request: ReadRequest,
        parts: &[ReadPart],
    ) -> Result<(), Refused<ReadRequest>>;

    /// Does the RDMA Reads of `parts` into `target` at once, where the peer's memory is in reach: what
    /// [`Provider::post_read`] would do, but without a completion. It may overtake requests that were posted before.
    ///
    /// `false`: not now, or not here, or `parts` are refused. Nothing was posted and nothing has failed; what `target` holds
    /// is not defined. [`Provider::post_read`] does it then, or says what is wrong.
    fn read_at_once(&mut self, queue_pair: QueuePairId, target: &mut Buf, parts: &[ReadPart]) -> bool {
        let _ = (queue_pair, target, parts);
        false
    }

    /// Lets the peer of `queue_pair` touch `exposed`, and returns the segment that names its first octet.
    /// A Send posted afterwards on the same queue pair may carry it.
    fn expose(
        &mut self,
        queue_pair: QueuePairId,
        exposed: Exposed,
    ) -> Result<RemoteSegment, Refused<Exposed>>;

    /// Ends the exposure of `handle` (local invalidation). `None`: it is not exposed (any more).
    fn fence(&mut self, queue_pair: QueuePairId, handle: Handle, id: u64) -> Option<Fence>;

    /// Makes all posted work leave: one doorbell for each queue pair that has some.
    fn ring_doorbells(&mut self);

    /// Harvests completions into `completions`, at its end, at most `max` of them and never beyond its capacity, and
    /// returns how many. Also does the provider's own bounded work (connection set-up, retries).
    fn poll(&mut self, now: Duration, completions: &mut VecDeque<Completion>, max: usize) -> usize;

    /// As [`Provider::poll`], but shows short messages to `take` where they arrived, if that is possible, and counts those
    /// that were taken. The others, and what `take` leaves, come as completions.
    ///
    /// What was taken needs no buffer and no completion. The Receive that stood for it is posted still, so it stands for the
    /// next message. Without a posted Receive nothing is shown.
    ///
    /// Messages of one queue pair are shown in the order in which they were sent, and only until one of them comes as a
    /// completion: no message that is shown overtakes one that this call puts into `completions`.
    fn poll_in_place(
        &mut self,
        now: Duration,
        completions: &mut VecDeque<Completion>,
        max: usize,
        take: &mut impl TakeShown,
    ) -> usize {
        let _ = take;
        self.poll(now, completions, max)
    }

    /// Builds the Payload stream of a message without chunks where it leaves, and posts it: as [`Provider::post_send`] of an
    /// unsignaled Send, with no buffer. `build` is given a space of [`PLAIN_LEN_MAX`](crate::PLAIN_LEN_MAX) octets, and returns the
    /// credits of the header and the number of octets that it wrote, at least 4.
    ///
    /// `false`: there is no space now, or `build` returned `None`; nothing was posted. By default there is never space.
    #[inline(always)]
    fn build_plain(
        &mut self,
        queue_pair: QueuePairId,
        build: impl FnOnce(&mut [u8]) -> Option<(u32, usize)>,
    ) -> bool {
        let _ = (queue_pair, build);
        false
    }

    /// Builds a message of at most [`WHOLE_LEN_MAX`](crate::WHOLE_LEN_MAX) octets where it leaves, header included, and posts it, if that
    /// can be done now: as [`Provider::post_send`] of an unsignaled Send, with no buffer. `build` returns the octets that it wrote,
    /// and the handle that is invalidated.
    ///
    /// `false`: there is no space, or `build` returned `None`; nothing was posted.
    #[inline(always)]
    fn build_whole(
        &mut self,
        queue_pair: QueuePairId,
        build: impl FnOnce(&mut [u8]) -> Option<(usize, Option<Handle>)>,
    ) -> bool {
        let _ = (queue_pair, build);
        false
    }

    /// Exposes memory, as [`Provider::expose`], and sends a message that names it, as [`Provider::post_send`] of an unsignaled Send
    /// without a buffer, in one step. `build` writes that message to the space that it is given, of
    /// [`WHOLE_LEN_MAX`](crate::WHOLE_LEN_MAX) octets, and returns its length; the segment names the first octet of the memory.
    /// `None`: it does not leave after all.
    ///
    /// `false`: nothing happened, and `exposed` is as it was. There is no such place, or no room in it now, or `build` returned
    /// `None`, or [`Provider::expose`] would refuse: it says why. After a `true`, `exposed` is `None`.
    fn build_exposing(
        &mut self,
        queue_pair: QueuePairId,
        exposed: &mut Option<Exposed>,
        build: impl FnOnce(&mut [u8], RemoteSegment) -> Option<usize>,
    ) -> bool {
        let _ = (queue_pair, exposed, build);
        false
    }

    /// Where the start of a message can be built, of at most [`GATHERED_LEN_MAX`](crate::GATHERED_LEN_MAX) octets, which then
    /// leaves with [`Provider::send_gathered`], together with memory that is not copied. Only on a queue pair with scattered
    /// Receives. `None`: there is no such place, or no room in it now.
    fn gather_space(&mut self, queue_pair: QueuePairId) -> Option<&mut [u8]> {
        let _ = queue_pair;
        None
    }

    /// Posts the first `len` octets of the space given last, for the same queue pair and just before, and `pieces` of at most
    /// [`GATHERED_DATA_LEN_MAX`](crate::GATHERED_DATA_LEN_MAX) octets behind them, as one message no longer than its `send_len_max`. As [`Provider::post_send`] of an unsignaled Send. The pieces are dropped when the message has left.
    ///
    /// # Panics
    ///
    /// When [`Provider::gather_space`] gave none just before.
    fn send_gathered(&mut self, queue_pair: QueuePairId, len: usize, pieces: &mut GatheredPieces) {
        let _ = pieces;
        unreachable!("{queue_pair:?} gave no space for {len} octets");
    }

    /// The next event of the connection manager.
    fn poll_event(&mut self) -> Option<Event>;

    /// The next connection that is not for this fabric. It belongs to the caller from now on; one that is not taken is
    /// closed after a while. `None`, too, where a listener can have no such guests.
    fn take_stranger(&mut self) -> Option<Stranger> {
        None
    }

    /// When `poll` must be called next even if nothing happens.
    fn poll_timeout(&self) -> Option<Duration> {
        None
    }

    /// Prepares for sleep on [`Provider::descriptor`]. `false`: there is work already, do not sleep.
    /// After a `true`, anything that would make `poll` return work makes the descriptor readable.
    /// Call [`Provider::disarm`] after waking up.
    fn arm(&mut self) -> bool;

    /// Ends what `arm` began.
    fn disarm(&mut self);

    /// What becomes readable when there is work; `None` where sleep is not possible (simulated time).
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}
