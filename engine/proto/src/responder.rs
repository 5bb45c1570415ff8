//! The Responder: takes in Calls, says which chunks to pull, and forms their Replies.
//!
//! ```text
//!        handle_receive           emit_reply, refuse, discard
//!  Free ────────────────▶ Called ─────────────────────────────▶ Free
//!                          │   ▲
//!                          └───┘ handle_pulled: a Long Call's Payload stream is here
//! ```
//!
//! | state | waits for |
//! |---|---|
//! | `Free` | a Call |
//! | `Called` | the driver: pulls the Read chunks, runs the RPC program, writes the results, sends the Reply |
//!
//! The driver keeps the Receive buffer of a Call until its Reply is emitted: the slot keeps only where the
//! chunk lists are in it, and the Reply repeats them from there. Then it
//!
//! 1. posts that Receive (or another) again and says so with [`Responder::receives_posted`],
//! 2. posts the Writes,
//! 3. posts the Send: the grant in the Reply counts on 1 (8166-3.3.1-d), and the Requester on 2 being before
//!    3 (8166-2.3.2-c).
//!
//! Nothing is written to the peer before [`Responder::plan_reply`] said that all of it fits (8267-3-b).
//!
//! A message with an xid that is in process is dropped (5531-e): over a reliable connection a
//! retransmission can only be an error of the peer, and the one Reply answers both.

mod at_once;
mod call;
mod exposing;
#[cfg(test)]
mod tests;
mod version2;

use stag_wire::rpcrdma::{
    Answer, Direction, ERR_VERS_LEN, Emitter, Fixed, HEADER_LEN_MIN, Header, HeaderError, HeaderLists,
    Layout, MessageKind, MessageProcedure, SINGLE_LEN, Segment, Single, SingleChunk, VERSION, emit_err_chunk,
    emit_err_vers, emit_plain, header_len,
};
use stag_wire::rpcrdma2::{self, Error2};
use stag_wire::xdr::Overflow;

use crate::credits::Grant;
use crate::parameters::Parameters;
use crate::plain;
use crate::reads;
pub use crate::reads::{ChunkError, ChunkLimits};
use call::Chunks;
pub use call::{CallPayload, ReceivedCall, ResponderCallId};
pub use exposing::ExposedForm;
pub use version2::{GroupPlan, GroupReply, LoneAnswer, LoneCall, Responder2, ResponderEvent2, is_version2};

/// Octets that a header of version 2 has more than one of version 1 with the same lists: the direction.
const DIRECTION_LEN: u32 = 4;

/// How a [`Responder`] is made.
#[derive(Clone, Copy, Debug)]
pub struct ResponderConfig {
    /// Calls in process at once, and the most that is ever granted. At most 65536.
    pub slots: u32,
    /// What was agreed with the peer.
    pub parameters: Parameters,
    /// How large and how many chunks may be.
    pub limits: ChunkLimits,
}

impl ResponderConfig {
    /// All of it: nothing has a usual value.
    #[must_use]
    pub fn new(slots: u32, parameters: Parameters, limits: ChunkLimits) -> ResponderConfig {
        ResponderConfig { slots, parameters, limits }
    }
}

/// What a received message meant to the Responder. In every case its Receive is consumed; in all but
/// [`ResponderReceived::Call`] it is posted again at once, before an answer is sent.
#[derive(Debug)]
#[must_use]
pub enum ResponderReceived<'m> {
    /// A Call to process. Keep the message.
    Call(ReceivedCall<'m>),
    /// A message to answer with an RDMA_ERROR: send it, or close the connection (8166-4.5.4-c).
    Error(ErrorReply),
    /// A message to ignore.
    Dropped(DroppedCall),
    /// The connection must be closed.
    Close(ResponderMisuse),
}

/// An RDMA_ERROR to send. Small, and complete: the Call it answers is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorReply {
    octets: [u8; ERR_VERS_LEN],
    len: u8,
    /// Why, for the log.
    pub refused: RefusedCall,
}

impl ErrorReply {
    /// The message.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.octets[..usize::from(self.len)]
    }
}

/// Why a Call was answered with an RDMA_ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedCall {
    /// The header is in error (8166-4.5.1-a, 8166-4.5.2-a).
    Header(HeaderError),
    /// The chunks do not fit the Payload stream, or the limits.
    Chunks(ChunkError),
    /// The pulled Payload stream is not this Call's (8166-4.2.1-a).
    Payload,
    /// The Reply fits nowhere (8166-4.3.3-d, 8267-3-b).
    Reply(ReplyError),
    /// An argument was reduced that must not be (8166-6.1-c).
    Ineligible,
    /// It ended an earlier connection, because its chunks could not be read or written, or its Reply was longer than the
    /// Receive for it (8166-4.5.3-b).
    EndedConnection,
}

/// Why a message was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DroppedCall {
    /// Too short, RDMA_DONE, or an RDMA_ERROR: never answered.
    Header(HeaderError),
    /// An RDMA_MSG whose msg_type is not CALL (5531-d).
    NotACall,
    /// A Call with this xid is in process (5531-e).
    DuplicateXid(u32),
    /// It came after [`Responder::handle_disconnect`]: there is no peer to answer.
    Disconnected,
    /// A message of version 2 that is in error, and is not answered.
    Version2(Error2),
}

/// The peer breaks the rules in a way that nothing but the end of the connection can repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponderMisuse {
    /// More Calls than were ever granted (8166-3.3.1-b).
    TooManyCalls {
        /// The largest grant of this connection.
        granted: u32,
    },
}

/// The form of a Reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyForm {
    /// The Payload stream goes into the Reply chunk (RDMA_NOMSG); otherwise it follows the header.
    pub long: bool,
    /// Octets of the header; the inline Payload starts there.
    pub header_len: u32,
    /// Octets of the Payload stream.
    pub payload_len: u32,
}

/// Why a Reply cannot be sent as wanted. [`Responder::refuse`] answers the Call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyError {
    /// The Call is over, or the connection is: nothing is sent.
    Stale,
    /// A result item is longer than the Write chunk that it must go into (8166-3.4.6-a).
    WriteChunk {
        /// The item.
        item: u32,
    },
    /// The Reply is longer than the inline threshold, and there is no Reply chunk.
    NoReplyChunk,
    /// The Payload stream is longer than the Reply chunk.
    ReplyChunk,
    /// The header alone, with the chunks repeated, is longer than the inline threshold.
    Header,
}

/// A Reply whose header is written: the Call is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// Octets of the header; an inline Payload goes right behind it.
    pub header_len: usize,
    /// A handle of the peer to invalidate with the Send. `None`: a plain Send (8797-4.1-c).
    pub invalidate: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Called,
}

/// Where the chunk lists of a Call in process are.
#[derive(Clone, Copy, Debug)]
enum Lists {
    /// There are none: the Reply needs nothing of the message.
    Absent,
    /// Here, because they hold no more than this.
    Single(SingleChunk),
    /// In the Call's message.
    Message(Layout),
    /// In the Call's message, which is of version 2. It took these credits beside the first.
    Version2 {
        /// One for each further transmission.
        more_credits: u32,
    },
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    xid: u32,
    /// Counts the Calls in this slot.
    generation: u32,
    state: State,
    /// Where the slot is in the list of xids in process.
    place: u32,
    lists: Lists,
    /// The handle to invalidate with the Reply.
    invalidate: Option<u32>,
}

/// One connection's Responder. See the module's text.
#[derive(Debug)]
pub struct Responder {
    parameters: Parameters,
    limits: ChunkLimits,
    grant: Grant,
    requested: u32,
    slots: Box<[Slot]>,
    /// All slots: first those of the Calls in process, then the free ones, the one used last first: its memory is warm.
    order: Box<[u32]>,
    /// The xids in process, close together to be searched, in the order of their slots.
    xids: Box<[u32]>,
    /// Slots that have a Call in process.
    calls: u32,
    connected: bool,
    /// Octets of the longest Reply of version 2 that goes inline.
    version2_threshold: u32,
}

impl Responder {
    /// A new connection's Responder. All that it ever allocates.
    ///
    /// # Panics
    ///
    /// When `config` is out of the limits that it states.
    #[must_use]
    pub fn new(config: &ResponderConfig) -> Self {
        assert!((1..=65536).contains(&config.slots), "slots: {}, the limits are 1 and 65536", config.slots);
        let count = config.slots as usize;
        let slot = Slot {
            xid: 0,
            generation: 0,
            state: State::Free,
            place: 0,
            lists: Lists::Absent,
            invalidate: None,
        };
        Self {
            parameters: config.parameters,
            limits: config.limits,
            grant: Grant::new(config.slots),
            requested: 1,
            slots: vec![slot; count].into_boxed_slice(),
            order: (0..config.slots).collect(),
            xids: vec![0; count].into_boxed_slice(),
            calls: 0,
            connected: true,
            version2_threshold: rpcrdma2::INLINE_THRESHOLD_DEFAULT,
        }
    }

    /// Octets of heap of one with `slots` slots.
    #[must_use]
    pub fn footprint(slots: u32) -> usize {
        slots as usize * (size_of::<Slot>() + 2 * size_of::<u32>())
    }

    /// What was agreed with the peer.
    #[must_use]
    #[inline]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The credits.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Credits that the peer's last Call requested: what more is granted is not used (8166-3.3.1-b).
    #[must_use]
    #[inline]
    pub fn credits_requested(&self) -> u32 {
        self.requested
    }

    /// Bounds the grants to come, from 1 to the slots. Calls in process are not touched.
    #[inline]
    pub fn set_credit_limit(&mut self, limit: u32) {
        self.grant.set_limit(limit);
    }

    /// `count` Receives for Calls were posted. The next message to the peer may grant as many more.
    #[inline]
    pub fn receives_posted(&mut self, count: u32) {
        self.grant.receives_posted(count);
    }

    /// Takes in a message for this Responder. The checks are in the order of section 12.
    // `inline(always)`: the result is large; inlined, it never goes through memory.
    #[inline(always)]
    pub fn handle_receive<'m>(&mut self, message: &'m [u8]) -> ResponderReceived<'m> {
        self.grant.receive_consumed();
        let Some(plain) = plain::parse(message, plain::CALL) else {
            return match self.receive_chunked(message) {
                Ok(call) => ResponderReceived::Call(call),
                Err(refusal) => self.answer(message, refusal),
            };
        };
        match self.start(plain.xid, plain.credits) {
            Ok(id) => {
                self.slots[id.index()].lists = Lists::Absent;
                let payload = CallPayload::Inline(plain.stream);
                ResponderReceived::Call(ReceivedCall { id, xid: plain.xid, payload, chunks: Chunks::None })
            }
            Err(refusal) => self.answer(message, refusal),
        }
    }

    /// Takes in a message that is not the plainest of Calls.
    #[inline(never)]
    fn receive_chunked<'m>(&mut self, message: &'m [u8]) -> Result<ReceivedCall<'m>, Refusal> {
        let Some((single, stream)) = self.parse_single(message) else { return self.receive(message) };
        let id = self.start(single.xid, single.credits)?;
        let slot = &mut self.slots[id.index()];
        slot.lists = Lists::Single(single.chunk);
        if self.parameters.remote_invalidation {
            slot.invalidate = Some(single.chunk.segment().handle);
        }
        let (payload, chunks) = (CallPayload::Inline(stream), Chunks::Single(single.chunk, message));
        Ok(ReceivedCall { id, xid: single.xid, payload, chunks })
    }

    /// Splits off the header of a Call with one chunk of one segment, if [`Responder::receive`] would take it in. `None`
    /// says nothing about the message.
    // `inline(always)`: the result is large; inlined, it never goes through memory.
    #[inline(always)]
    fn parse_single<'m>(&self, message: &'m [u8]) -> Option<(Single, &'m [u8])> {
        let (single, stream) = Single::parse(message)?;
        let limits = &self.limits;
        let allowed = match single.chunk {
            SingleChunk::Write(_) => limits.write_chunks > 0,
            SingleChunk::Read(read) => {
                limits.read_chunks > 0
                    && read.position as usize <= stream.len()
                    && read.segment.length <= limits.chunk_len.min(limits.pull_len)
            }
        };
        let is_call = plain::start(stream) == Some((single.xid, plain::CALL));
        (is_call && allowed && limits.segments > 0).then_some((single, stream))
    }

    /// Takes in a message with any header.
    fn receive<'m>(&mut self, message: &'m [u8]) -> Result<ReceivedCall<'m>, Refusal> {
        let (header, stream) =
            Header::parse_limited(message, self.limits.segments).map_err(Refusal::Header)?;
        header.check_call(stream).map_err(Refusal::Header)?;
        if header.direction(stream) != Some(Direction::Call) {
            return Err(Refusal::Drop(DroppedCall::NotACall));
        }
        self.check_chunks(&header, stream).map_err(Refusal::Chunks)?;
        let id = self.start(header.xid(), header.credits())?;
        let slot = &mut self.slots[id.index()];
        slot.lists = Lists::Message(header.layout());
        if self.parameters.remote_invalidation {
            slot.invalidate = only_handle(&header);
        }
        Ok(ReceivedCall {
            id,
            xid: header.xid(),
            payload: payload(&header, stream),
            chunks: Chunks::Lists(header),
        })
    }

    /// Gives a Call its slot, if the peer may have one more in process.
    // `inline(always)`: called once for each Call.
    #[inline(always)]
    fn start(&mut self, xid: u32, credits: u32) -> Result<ResponderCallId, Refusal> {
        if self.is_in_process(xid) {
            return Err(Refusal::Drop(DroppedCall::DuplicateXid(xid)));
        }
        if !self.connected {
            return Err(Refusal::Drop(DroppedCall::Disconnected));
        }
        self.occupy(xid, credits)
    }

    /// As [`Responder::start`], for a Call that is none of those in process.
    #[inline(always)]
    fn occupy(&mut self, xid: u32, credits: u32) -> Result<ResponderCallId, Refusal> {
        if !self.grant.start() {
            return Err(Refusal::Close(ResponderMisuse::TooManyCalls { granted: self.grant.ceiling() }));
        }
        self.requested = credits.max(1);
        let place = self.calls;
        let index = self.next_slot();
        self.xids[place as usize] = xid;
        self.calls += 1;
        let slot = &mut self.slots[index as usize];
        slot.xid = xid;
        slot.generation = slot.generation.wrapping_add(1);
        slot.state = State::Called;
        slot.place = place;
        slot.invalidate = None;
        let generation = slot.generation;
        Ok(ResponderCallId { index, generation })
    }

    /// What is left of step 8: the Read chunks against the Payload stream, and all lists against the limits.
    fn check_chunks(&self, header: &Header<'_>, stream: &[u8]) -> Result<(), ChunkError> {
        if header.write_chunk_count() > self.limits.write_chunks as usize {
            return Err(ChunkError::Chunks);
        }
        let inline_len = match header.procedure() {
            MessageProcedure::Nomsg => None,
            // A Send is shorter than 4 GiB.
            MessageProcedure::Msg | MessageProcedure::Error(_) => Some(stream.len() as u32),
        };
        reads::check(header.read_list(), inline_len, &self.limits)
    }

    /// Turns a refusal into what the peer gets to see of it.
    #[cold]
    fn answer<'m>(&mut self, message: &[u8], refusal: Refusal) -> ResponderReceived<'m> {
        let refused = match refusal {
            Refusal::Drop(dropped) => return ResponderReceived::Dropped(dropped),
            Refusal::Close(misuse) => return ResponderReceived::Close(misuse),
            Refusal::Header(error) => match error.answer() {
                Answer::Drop => return ResponderReceived::Dropped(DroppedCall::Header(error)),
                Answer::ErrVers | Answer::ErrChunk => RefusedCall::Header(error),
            },
            Refusal::Chunks(error) => RefusedCall::Chunks(error),
        };
        let Ok((fixed, _)) = Fixed::parse(message) else {
            return ResponderReceived::Dropped(DroppedCall::Header(HeaderError::Short));
        };
        let credits = self.grant.renew(true);
        ResponderReceived::Error(error_reply(fixed.xid, fixed.version, credits, refused))
    }

    /// Views a Call again. `message` is the one it came in. `None`: it is over.
    #[inline]
    #[must_use]
    pub fn call<'m>(&self, id: ResponderCallId, message: &'m [u8]) -> Option<ReceivedCall<'m>> {
        let slot = self.slot(id)?;
        let (payload, chunks) = match slot.lists {
            Lists::Absent => (CallPayload::Inline(message.get(HEADER_LEN_MIN..)?), Chunks::None),
            Lists::Single(chunk) => {
                (CallPayload::Inline(message.get(SINGLE_LEN..)?), Chunks::Single(chunk, message))
            }
            Lists::Message(layout) => {
                let header = Header::with_layout(message, layout)?;
                let stream = message.get(header.layout().header_len()..)?;
                (payload(&header, stream), Chunks::Lists(header))
            }
            Lists::Version2 { .. } => return Responder::version2_call(id, slot.xid, message),
        };
        Some(ReceivedCall { id, xid: slot.xid, payload, chunks })
    }

    /// The Payload stream of a Long Call was pulled: checks that it is a Call with the header's xid. If not,
    /// the Call is over, and here is the answer; `None` inside: it was over before.
    pub fn handle_pulled(&mut self, id: ResponderCallId, payload: &[u8]) -> Result<(), Option<ErrorReply>> {
        let slot = self.slot(id).ok_or(None)?;
        match plain::start(payload) == Some((slot.xid, plain::CALL)) {
            true => Ok(()),
            false => Err(self.refuse(id, RefusedCall::Payload)),
        }
    }

    /// Decides the form of a Reply, before anything is written to the peer.
    ///
    /// `message` is the Call's. `items`: the length of each eligible result item in Payload order, 0 for one
    /// that failed or is empty. `payload_len`: the Payload stream without those items that have a
    /// [`ReceivedCall::write_chunk`].
    ///
    /// RDMA_MSG when it fits the inline threshold, else RDMA_NOMSG when a Reply chunk is there and large
    /// enough (8166-3.5.3-e).
    #[inline]
    pub fn plan_reply(
        &self,
        id: ResponderCallId,
        message: &[u8],
        items: &[u32],
        payload_len: u32,
    ) -> Result<ReplyForm, ReplyError> {
        let slot = self.slot(id).ok_or(ReplyError::Stale)?;
        let header_len = match slot.lists {
            Lists::Absent | Lists::Single(SingleChunk::Read(_)) => HEADER_LEN_MIN as u32,
            Lists::Single(SingleChunk::Write(segment)) => {
                if items.first().is_some_and(|&len| len > segment.length) {
                    return Err(ReplyError::WriteChunk { item: 0 });
                }
                SINGLE_LEN as u32
            }
            lists => return self.plan_repeated(lists, message, items, payload_len),
        };
        // A threshold is at least 1 KiB.
        if payload_len > self.parameters.reply_threshold - header_len {
            return Err(ReplyError::NoReplyChunk);
        }
        Ok(ReplyForm { long: false, header_len, payload_len })
    }

    /// As [`Responder::plan_reply`], for a Call with any lists, of any version.
    #[inline(never)]
    fn plan_repeated(
        &self,
        lists: Lists,
        message: &[u8],
        items: &[u32],
        payload_len: u32,
    ) -> Result<ReplyForm, ReplyError> {
        let (lists, more_len) = match lists {
            Lists::Message(layout) => {
                (Header::with_layout(message, layout).ok_or(ReplyError::Stale)?.lists(), 0)
            }
            Lists::Absent | Lists::Single(_) => (HeaderLists::default(), 0),
            Lists::Version2 { .. } => {
                (Responder::version2_parts(message).ok_or(ReplyError::Stale)?.1, DIRECTION_LEN)
            }
        };
        let header_len = repeated_len(&lists, items)? + more_len;
        let threshold = if more_len == 0 { self.parameters.reply_threshold } else { self.version2_threshold };
        if header_len > threshold {
            return Err(ReplyError::Header);
        }
        let long = payload_len > threshold - header_len;
        if long {
            let room = lists.reply_chunk().ok_or(ReplyError::NoReplyChunk)?.total_len();
            if u64::from(payload_len) > room {
                return Err(ReplyError::ReplyChunk);
            }
        }
        Ok(ReplyForm { long, header_len, payload_len })
    }

    /// Writes the header of a Reply to the start of `out`, with the Call's chunks repeated and filled as
    /// `items` and `form` say, and ends the Call. The Writes are posted before the Send.
    ///
    /// `message`, `items` and `form` are those of [`Responder::plan_reply`]. On [`ReplyError::Stale`] nothing
    /// may be sent.
    ///
    /// # Panics
    ///
    /// When `out` is shorter than the header, or `items` are not those of the plan.
    // `inline(always)`: it has many arguments, and passing them costs more than what it does with most of
    // them.
    #[inline(always)]
    pub fn emit_reply(
        &mut self,
        id: ResponderCallId,
        message: &[u8],
        items: &[u32],
        form: &ReplyForm,
        out: &mut [u8],
    ) -> Result<Emitted, ReplyError> {
        let slot = self.slot(id).ok_or(ReplyError::Stale)?;
        let (xid, lists) = (slot.xid, slot.lists);
        let header_len = match lists {
            Lists::Absent | Lists::Single(SingleChunk::Read(_)) => {
                emit_plain(out, xid, self.grant.renew(false)).map(|_| HEADER_LEN_MIN)
            }
            Lists::Single(SingleChunk::Write(segment)) => {
                emit_written(out, xid, self.grant.renew(false), segment, items.first().copied().unwrap_or(0))
            }
            Lists::Message(layout) => {
                let header = Header::with_layout(message, layout).ok_or(ReplyError::Stale)?;
                emit_repeated(&header, items, form, self.grant.renew(false), out)
            }
            Lists::Version2 { .. } => self.emit_version2((xid, message), items, form, out),
        };
        let header_len =
            header_len.expect("`out` holds the header, and the chunks hold the items, as planned");
        let invalidate = self.release(id);
        Ok(Emitted { header_len, invalidate })
    }

    /// Ends a Call with ERR_CHUNK. `None`: it is over already, or the connection is.
    pub fn refuse(&mut self, id: ResponderCallId, why: RefusedCall) -> Option<ErrorReply> {
        let slot = self.slot(id)?;
        let xid = slot.xid;
        // BAD_HEADER of version 2 is laid out as ERR_CHUNK, and has its number.
        let version = if matches!(slot.lists, Lists::Version2 { .. }) { rpcrdma2::VERSION } else { VERSION };
        let reply = error_reply(xid, version, self.grant.renew(false), why);
        let _ = self.release(id);
        Some(reply)
    }

    /// Ends a Call without an answer. The peer's credit is lost to it until the connection ends, so this is
    /// for Calls that must not be answered, and before closing (8166-4.5.4-c). `false`: it is over already.
    pub fn discard(&mut self, id: ResponderCallId) -> bool {
        let current = self.slot(id).is_some();
        if current {
            let _ = self.release(id);
        }
        current
    }

    /// The connection is gone. Tells `each` Call in process, and forgets them all: whatever comes for them
    /// later is [`ReplyError::Stale`].
    pub fn handle_disconnect(&mut self, mut each: impl FnMut(ResponderCallId)) {
        self.connected = false;
        while let Some(last) = self.calls.checked_sub(1) {
            let index = self.order[last as usize];
            let id = ResponderCallId { index, generation: self.slots[index as usize].generation };
            let _ = self.release(id);
            each(id);
        }
    }

    /// The slot of a Call in process.
    #[inline]
    fn slot(&self, id: ResponderCallId) -> Option<&Slot> {
        self.slots
            .get(id.index())
            .filter(|slot| slot.generation == id.generation && slot.state == State::Called)
    }

    /// Whether a Call with this xid is in process.
    // Not inline: a Call that is answered where it arrived finds none in process, and must not set up the
    // loop.
    #[inline(never)]
    fn is_in_process(&self, xid: u32) -> bool {
        // All of them, without a way out of the loop: so several are compared at a time.
        let known = &self.xids[..self.calls as usize];
        known.iter().fold(false, |found, known| found | (*known == xid))
    }

    /// Frees the slot of a Call in process, and returns the handle that its Reply may invalidate.
    #[inline]
    fn release(&mut self, id: ResponderCallId) -> Option<u32> {
        let slot = &mut self.slots[id.index()];
        slot.state = State::Free;
        let place = slot.place as usize;
        let invalidate = slot.invalidate;
        let more_credits = if let Lists::Version2 { more_credits } = slot.lists { more_credits } else { 0 };
        // The last Call takes its place.
        let last = self.calls as usize - 1;
        let moved = self.order[last];
        self.xids[place] = self.xids[last];
        (self.order[place], self.order[last]) = (moved, id.index);
        self.slots[moved as usize].place = place as u32;
        self.calls -= 1;
        self.grant.finish();
        (0..more_credits).for_each(|_| self.grant.finish());
        invalidate
    }
}

/// Why a message is not a Call to process.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    Header(HeaderError),
    Chunks(ChunkError),
    Drop(DroppedCall),
    Close(ResponderMisuse),
}

/// An RDMA_ERROR: the failing message's xid and version (8166-4.5-b), the present grant (8166-X-6).
#[cold]
fn error_reply(xid: u32, version: u32, credits: u32, refused: RefusedCall) -> ErrorReply {
    let mut octets = [0; ERR_VERS_LEN];
    let emitted = match refused {
        RefusedCall::Header(HeaderError::Version(_)) => {
            emit_err_vers(&mut octets, xid, version, credits, (VERSION, VERSION))
        }
        _ => emit_err_chunk(&mut octets, xid, version, credits),
    };
    let len = emitted.expect("the longer of the two errors fits");
    ErrorReply { octets, len: len as u8, refused }
}

#[inline]
fn payload<'m>(header: &Header<'m>, stream: &'m [u8]) -> CallPayload<'m> {
    match header.procedure() {
        // Checked: within the limit of a chunk.
        MessageProcedure::Nomsg => CallPayload::Long(reads::len_at(header.read_list(), 0) as u32),
        MessageProcedure::Msg | MessageProcedure::Error(_) => CallPayload::Inline(stream),
    }
}

/// The handle of a Call whose chunks all have the same one: the only case where the Reply may invalidate
/// it (8797-L-2).
fn only_handle(header: &Header<'_>) -> Option<u32> {
    let reads = header.read_list().map(|read| read.segment);
    let writes = header.write_list().chain(header.reply_chunk()).flat_map(|chunk| chunk.segments());
    let mut handles = reads.chain(writes).map(|segment| segment.handle);
    let first = handles.next()?;
    handles.all(|handle| handle == first).then_some(first)
}

/// Octets of a Reply header of version 1 that repeats the Write list and the Reply chunk of `header`, if each item has
/// room in its Write chunk.
fn repeated_len(header: &HeaderLists<'_>, items: &[u32]) -> Result<u32, ReplyError> {
    let mut items = items.iter();
    for (item, chunk) in (0..).zip(header.write_list()) {
        let len = items.next().copied().unwrap_or(0);
        if !chunk.is_empty() && u64::from(len) > chunk.total_len() {
            return Err(ReplyError::WriteChunk { item });
        }
    }
    let counts = header.write_list().map(|chunk| chunk.segment_count());
    let reply = header.reply_chunk().map(|chunk| chunk.segment_count());
    // Not longer than the Call's header, which has the same chunks.
    Ok(header_len(0, counts, reply) as u32)
}

#[inline(never)]
fn emit_repeated(
    header: &Header<'_>,
    items: &[u32],
    form: &ReplyForm,
    credits: u32,
    out: &mut [u8],
) -> Result<usize, Overflow> {
    let kind = if form.long { MessageKind::Nomsg } else { MessageKind::Msg };
    echo_lists(Emitter::new(out, kind, header.xid(), credits)?, &header.lists(), items, form)
}

/// Writes the Write list and the Reply chunk of a Call as its Reply returns them. Returns the octets of the header.
#[inline]
fn echo_lists(
    mut emitter: Emitter<'_>,
    lists: &HeaderLists<'_>,
    items: &[u32],
    form: &ReplyForm,
) -> Result<usize, Overflow> {
    let mut items = items.iter();
    for chunk in lists.write_list() {
        let len = items.next().copied().unwrap_or(0);
        // An item whose chunk is empty went into the Payload stream (8166-4.3.2.3-b).
        emitter.echo_write_chunk(chunk, if chunk.is_empty() { 0 } else { u64::from(len) })?;
    }
    if let Some(chunk) = lists.reply_chunk() {
        emitter.echo_reply_chunk(chunk, if form.long { u64::from(form.payload_len) } else { 0 })?;
    }
    emitter.finish().map(|(len, _)| len)
}

/// Writes the header of a Reply that returns `segment`, the only one of the Call, with a result of `item` octets.
#[inline(always)]
fn emit_written(
    out: &mut [u8],
    xid: u32,
    credits: u32,
    segment: Segment,
    item: u32,
) -> Result<usize, Overflow> {
    assert!(item <= segment.length, "the chunk holds the item, as planned");
    Single::emit_write(out, xid, credits, Segment { length: item, ..segment }).map(|()| SINGLE_LEN)
}
