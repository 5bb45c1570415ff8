//! The [`Provider`] trait.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use stag_memory::{Arena, ArenaId, Buf};

use crate::scatter::{ReceiveTargets, ScatteredReceive};
use crate::shown::{GatheredPieces, TakeShown};
use crate::verb_types::*;

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
