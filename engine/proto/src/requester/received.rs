//! The outcome of a received message, and of a Call.

use stag_wire::rpcrdma::{HeaderError, ReadList, WriteList};
use stag_wire::rpcrdma2::{Error2, GroupFault};

use super::call::{ExposedMemory, RequesterCallId};
use crate::directions::ResultFault;
use crate::offer::Violation;
use crate::placement::PlacementError;

/// What a received message meant to the Requester.
#[derive(Debug)]
#[must_use]
pub enum RequesterReceived<'m> {
    /// A Call was answered.
    Reply(AnsweredCall<'m>),
    /// A Call failed for good (8166-4.5-d): the same xid is not sent again.
    Failed {
        /// Which.
        call: RequesterCallId,
        /// Why.
        failure: CallFailure,
        /// Whether its memory must be fenced first.
        memory: ExposedMemory,
    },
    /// The Reply of a cancelled Call came: its credit is free again.
    Late {
        /// Which.
        call: RequesterCallId,
        /// Whether fences of its memory are still under way.
        memory: ExposedMemory,
    },
    /// A Reply that the peer exposed, where that was agreed on ([`set_pull_limit`](super::Requester::set_pull_limit)).
    Exposed(ExposedReply<'m>),
    /// The message was discarded (8166-4.5-c).
    Dropped(DroppedReply),
    /// The connection must be closed.
    Close(RequesterMisuse),
}

/// An answered Call.
#[derive(Debug)]
pub struct AnsweredCall<'m> {
    /// Which.
    pub call: RequesterCallId,
    /// The Reply's Payload stream.
    pub payload: ReplyPayload<'m>,
    /// Whether the Call's memory must be fenced first. With [`ExposedMemory::Safe`] the Call is over.
    pub memory: ExposedMemory,
    pub(super) writes: Writes<'m>,
}

/// The Write chunks of a Reply.
#[derive(Clone, Debug)]
pub(super) enum Writes<'m> {
    None,
    /// One Write chunk, with this number of octets.
    Single(u32),
    List(WriteList<'m>),
}

/// Where the Payload stream of a Reply is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyPayload<'m> {
    /// In the message.
    Inline(&'m [u8]),
    /// In the Reply chunk: its first octets, this many. Check it with [`RequesterCallId::is_reply`] after the fence.
    Long(u32),
}

impl<'m> AnsweredCall<'m> {
    /// The octets in each Write chunk, in the order of [`ChunkLists::writes`](super::ChunkLists::writes); 0 for one that came back
    /// unused or empty (8267-X-2). Each was checked against the offer.
    ///
    /// An eligible result that has octets, but none in the non-empty chunk that was there for it, ends the
    /// RPC with a permanent error (8166-6.1-d): only the Upper-Layer Binding can tell.
    #[inline]
    pub fn write_lens(&self) -> impl Iterator<Item = u32> + use<'m> {
        let (single, list) = match &self.writes {
            Writes::None => (None, None),
            Writes::Single(len) => (Some(*len), None),
            Writes::List(list) => (None, Some(list.clone())),
        };
        // Checked against the offer, where a chunk of 4 GiB is refused.
        let list = list.into_iter().flatten().map(|chunk| chunk.total_len() as u32);
        single.into_iter().chain(list)
    }
}

/// A Reply that the peer exposed.
#[derive(Clone, Debug)]
pub struct ExposedReply<'m> {
    /// The xid, for the RDMA_DONE. It need not be one of a Call of ours.
    pub xid: u32,
    /// What to do.
    pub pulled: Pulled,
    pub(super) reads: ReadList<'m>,
    pub(super) writes: WriteList<'m>,
}

/// What to do about a Reply that the peer exposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulled {
    /// Read the Payload stream, send RDMA_DONE, and say [`Requester::handle_pulled`](super::Requester::handle_pulled).
    Pull {
        /// The Call that it answers.
        call: RequesterCallId,
        /// Octets of the Payload stream.
        len: u32,
        /// Whether the Call's memory must be fenced first.
        memory: ExposedMemory,
    },
    /// Send RDMA_DONE: the Call failed, or was cancelled.
    Tell {
        /// The Call, which is over but for its fences; `None`: no Call has this xid (RR-4.1.3-c).
        call: Option<RequesterCallId>,
        /// Why it failed; `None` when it was cancelled.
        failure: Option<CallFailure>,
        /// Whether its memory must be fenced first.
        memory: ExposedMemory,
    },
}

impl<'m> ExposedReply<'m> {
    /// Returns the segments of the Payload stream, in order.
    #[inline]
    #[must_use]
    pub fn segments(&self) -> ReadList<'m> {
        self.reads.clone()
    }

    /// Returns the octets in each Write chunk, as [`AnsweredCall::write_lens`] does.
    #[inline]
    pub fn write_lens(&self) -> impl Iterator<Item = u32> + use<'m> {
        // Checked against the offer, where a chunk of 4 GiB is refused.
        self.writes.clone().map(|chunk| chunk.total_len() as u32)
    }
}

/// Why a message was discarded. Its Receive is posted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DroppedReply {
    /// The header is in error, or is not that of a Reply (section 12, steps 1 to 6; LX-5).
    Header(HeaderError),
    /// An RDMA_ERROR of another version than that of our Calls.
    Version(u32),
    /// An RDMA_MSG whose msg_type is not REPLY.
    NotAReply,
    /// No Call in flight has this xid: it was answered already, or never sent (8166-X-10).
    UnknownXid(u32),
    /// A message of version 2 that is in error.
    Version2(Error2),
}

/// Why a Call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFailure {
    /// ERR_VERS: the Responder speaks only these versions of RPC-over-RDMA (8166-4.5.1-b).
    Version {
        /// The lowest.
        low: u32,
        /// The highest.
        high: u32,
    },
    /// ERR_CHUNK: the Responder cannot process the Call's header or chunks, or the Reply does not fit. It
    /// does not say whether the Call was executed (8267-4-c).
    Chunk,
    /// The Reply contradicts the Call (8166-X-11).
    Violation(Violation),
    /// The peer exposed a Reply that is longer than this end pulls, or of no octets.
    Length {
        /// Octets.
        len: u64,
        /// The limit.
        limit: u32,
    },
    /// The peer exposed a Reply by other lists than a Read chunk at Position 0 (RR-X-3).
    Lists,
    /// INVAL_OPTION: the Responder does not support the operation of version 2 that the Call came by. The Call was not
    /// executed, and may be sent by base means under another xid (RTR-5.4-c).
    Option,
    /// The Responder refused the Call's transmissions. It was not executed, as with [`CallFailure::Option`].
    Transmission(GroupFault),
    /// The results are not where the Call directed them, or not where the Reply says (rtrext).
    Results(ResultFault),
    /// The Reply says that an item lies where none can.
    Placement(PlacementError),
}

/// A Send with Invalidate that was not agreed on (8797-X-2): the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequesterMisuse {
    /// Remote invalidation is off (8797-4.1-c).
    InvalidationNotAgreed,
    /// The handle is not one that the answered Call exposed (8797-4.1-b).
    ForeignHandle(u32),
}

/// What became of a Call when the connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedCall {
    /// The Call never left, or was abandoned before it left on any connection: it may be sent on another one without care.
    NotSent,
    /// The Call left and no Reply came: it may have been executed.
    MaybeExecuted,
    /// The Reply is here, and complete: only fences were missing, and the connection's end was the fence.
    Replied,
    /// The Call had failed.
    Failed,
    /// The Call had been cancelled. It may have been executed.
    Cancelled,
}
