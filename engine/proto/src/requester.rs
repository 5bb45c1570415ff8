//! The Requester: sends Calls, takes in their Replies, and fences what they exposed.
//!
//! ```text
//!        begin            emit_call            Reply, RDMA_ERROR
//!  Free ──────▶ Building ──────────▶ Sent ─────────────────────────▶ Fencing ──▶ Free
//!   ▲              │                 │  │                              ▲  when every handle is fenced
//!   └──────────────┘ abandon         │  └─ abandon (the Send failed) ──┤
//!                                    │ cancel                          │
//!                                    ▼            late Reply           │
//!                                 Cancelled ───────────────────────────┘
//!
//!             handle_interruption              resume
//!  Building, Sent ──────────────▶ Interrupted ───────▶ Building       cancel: Interrupted ──▶ Free
//! ```
//!
//! | state | waits for | holds a credit |
//! |---|---|---|
//! | `Free` | `begin` | no |
//! | `Building` | `emit_call`: the driver exposes memory and encodes the Call | yes |
//! | `Sent` | the Reply | yes |
//! | `Cancelled` | the late Reply; its memory is fenced meanwhile | yes |
//! | `Pulling` | `handle_pulled`: the driver reads a Reply that the peer exposed ([`ExposedReply`]) | no |
//! | `Fencing` | the last fence | no |
//! | `Interrupted` | `resume`: a new connection to the same Responder, and a credit there | no |
//!
//! The driver owns buffers, queue pair and clock. It passes each received message to
//! [`Requester::handle_receive`] and acts on the result. While a Call's memory is [`ExposedMemory::Exposed`]
//! it asks [`Requester::poll_fence`] for handles to fence, and reports each that is dead to
//! [`Requester::handle_fenced`]; it hands out no memory of the Call before that says [`ExposedMemory::Safe`]
//! (8166-4.4.1-a).
//!
//! One Receive must be posted for each Call in flight **before** the Call is sent (8166-3.3.1-e), and after
//! every message, dropped ones too, the Receive it took is posted again.

use stag_wire::rpcrdma::{
    Direction, Emitter, ErrorBody, Header, HeaderLists, MessageKind, MessageProcedure, Segment, VERSION,
    emit_plain, header_len,
};
use stag_wire::xdr::Overflow;

mod call;
mod chunk_lists;
mod interruption;
mod pulling;
mod received;
mod short;
#[cfg(test)]
mod tests;
mod version2;

use crate::credits::Window;
pub use crate::offer::Violation;
use crate::offer::{HANDLES_MAX, Offer, Offers, TooMany};
use crate::parameters::Parameters;
pub use crate::plan::{CallForm, PlanError, Shape};
pub use call::{ExposedMemory, RequesterCallId};
pub use chunk_lists::ChunkLists;
use chunk_lists::single_chunk;
use received::Writes;
pub use received::{
    AnsweredCall, CallFailure, DroppedReply, EndedCall, ExposedReply, Pulled, ReplyPayload, RequesterMisuse,
    RequesterReceived,
};
pub use short::ShortReply;
pub use version2::{GroupCall, LoneReply, LoneRequest, Requester2, RequesterEvent2};

/// How a [`Requester`] is made.
#[derive(Clone, Copy, Debug)]
pub struct RequesterConfig {
    /// Calls at once: in flight, cancelled or being fenced. At most 65536.
    pub slots: u32,
    /// What was agreed with the peer.
    pub parameters: Parameters,
    /// Credits to request; more than `slots` are of no use.
    pub credits_requested: u32,
    /// Segments that one Call can carry, all lists together; at most 64. 0 for a Requester that sends Short Calls only, as one
    /// of reverse Calls does that does not know of more (8167-5.3-c).
    pub segments_max: u32,
    /// Where the xids start. Random, so that a restarted client does not repeat those of its last life.
    pub xid_seed: u32,
}

impl RequesterConfig {
    /// Requests as many credits as there are slots. A Call can carry 64 segments.
    #[must_use]
    pub fn new(slots: u32, parameters: Parameters, xid_seed: u32) -> RequesterConfig {
        RequesterConfig { slots, parameters, credits_requested: slots, segments_max: 64, xid_seed }
    }
}

/// Why [`Requester::emit_call`] wrote nothing. The driver broke the plan: it abandons the Call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmitError {
    /// `out` is shorter than the header.
    OutTooShort,
    /// The lists are not those of the [`CallForm`]: their header's length, a Position Zero Read chunk or a Reply
    /// chunk differs.
    NotAsPlanned,
}

impl From<Overflow> for EmitError {
    fn from(_: Overflow) -> Self {
        Self::OutTooShort
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Building,
    Sent,
    Cancelled,
    Pulling,
    Fencing,
    Interrupted,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The xid of the Call in it, or of the last one.
    xid: u32,
    state: State,
    /// What a disconnect would say of the Call.
    outcome: EndedCall,
    /// It left on an earlier connection, where it may have been executed.
    left: bool,
    /// The next free slot, while this is one.
    next: u32,
    offer: Offer,
}

/// One connection's Requester. See the module's text.
#[derive(Debug)]
pub struct Requester {
    parameters: Parameters,
    window: Window,
    slots: Box<[Slot]>,
    /// The free slot that was used last, whose memory is warm; the others hang on it.
    free: u32,
    free_count: u32,
    offers: Offers,
    segments_max: u32,
    /// Low bits of an xid: the slot. The bits above count the slot's Calls from a random start, so that no
    /// xid comes back before 2^32 / slots others in the same slot.
    index_bits: u32,
    connected: bool,
    /// Octets of the longest Reply that is pulled; 0 when none may come.
    pull_len_max: u32,
}

impl Requester {
    /// A new connection's Requester. All that it ever allocates.
    ///
    /// # Panics
    ///
    /// When `config` is out of the limits that it states.
    #[must_use]
    pub fn new(config: &RequesterConfig) -> Self {
        assert!((1..=65536).contains(&config.slots), "slots: {}, the limits are 1 and 65536", config.slots);
        let per_slot = config.segments_max as usize;
        assert!(per_slot <= HANDLES_MAX, "segments_max: {per_slot}, the limit is {HANDLES_MAX}");
        let index_bits = config.slots.next_power_of_two().trailing_zeros();
        let index_mask = (1 << index_bits) - 1;
        let slots = (0..config.slots)
            .map(|index| Slot {
                xid: scramble(config.xid_seed ^ index) & !index_mask | index,
                state: State::Free,
                outcome: EndedCall::NotSent,
                left: false,
                next: index + 1,
                offer: Offer::default(),
            })
            .collect();
        Self {
            parameters: config.parameters,
            window: Window::new(config.credits_requested.min(config.slots)),
            slots,
            free: 0,
            free_count: config.slots,
            offers: Offers::new(config.slots as usize, per_slot),
            segments_max: config.segments_max,
            index_bits,
            connected: true,
            pull_len_max: 0,
        }
    }

    /// Octets of heap of one with `slots` slots that sends Short Calls only: its `segments_max` is 0.
    #[must_use]
    pub fn short_footprint(slots: u32) -> usize {
        slots as usize * size_of::<Slot>()
    }

    /// What was agreed with the peer.
    #[must_use]
    #[inline]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The credits.
    #[must_use]
    #[inline]
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Changes the credits that the next Calls request; more than the slots count as the slots.
    pub fn set_credits_requested(&mut self, credits: u32) {
        self.window.set_requested(credits.min(self.slots.len() as u32));
    }

    /// Calls that can begin now.
    #[inline]
    #[must_use]
    pub fn available(&self) -> u32 {
        if self.connected { self.window.available().min(self.free_count) } else { 0 }
    }

    /// Starts a Call: takes a credit and a slot. `None`: there is none now, or no connection any more.
    #[inline]
    pub fn begin(&mut self) -> Option<RequesterCallId> {
        self.begin_beyond(0)
    }

    /// As [`Requester::begin`], but leaves `reserved` credits for others.
    #[inline]
    pub fn begin_beyond(&mut self, reserved: u32) -> Option<RequesterCallId> {
        if self.available() <= reserved {
            return None;
        }
        let index = self.free;
        let slot = self.slots.get_mut(index as usize)?;
        let taken = self.window.take();
        debug_assert!(taken, "available() counted a credit");
        (self.free, self.free_count) = (slot.next, self.free_count - 1);
        slot.xid = slot.xid.wrapping_add(1 << self.index_bits);
        slot.state = State::Building;
        slot.outcome = EndedCall::NotSent;
        slot.left = false;
        slot.offer = Offer::default();
        Some(RequesterCallId { xid: slot.xid, index })
    }

    /// Gives up a Call that was not sent: its header was not emitted, or the Send was refused (8166-4.5.4-a).
    /// The credit is free again. Handles that never got into an emitted header are the driver's to fence.
    pub fn abandon(&mut self, call: RequesterCallId) -> ExposedMemory {
        let Some(state) = self.state(call) else { return ExposedMemory::Safe };
        assert!(matches!(state, State::Building | State::Sent), "only a Call in the making is abandoned");
        let left = self.slots[call.index()].left;
        self.answered(call.index, if left { EndedCall::MaybeExecuted } else { EndedCall::NotSent })
    }

    /// Decides the form of a Call, before anything is exposed for it.
    #[inline]
    pub fn plan(&self, shape: &Shape<'_>) -> Result<CallForm, PlanError> {
        CallForm::of_call(shape, &self.parameters, self.segments_max)
    }

    /// Writes the header of a Call to the start of `out`, and returns its length. The inline Payload of an
    /// RDMA_MSG goes right behind it. From now on the Call counts as sent: post it, or abandon it.
    ///
    /// `form` is what [`Requester::plan`] said. Handles in `lists` belong to this Call alone (8797-4.1-b).
    ///
    /// # Panics
    ///
    /// When the Call was sent before, or is over.
    // `inline(always)`: for a plain Call most arguments are constants, and disappear.
    #[inline(always)]
    pub fn emit_call(
        &mut self,
        call: RequesterCallId,
        form: &CallForm,
        lists: &ChunkLists<'_>,
        out: &mut [u8],
    ) -> Result<usize, EmitError> {
        assert!(self.state(call) == Some(State::Building), "a Call is emitted once, after begin");
        let credits = self.window.requested();
        let len = if lists.is_empty() && !form.long && !form.reply_chunk {
            let len = out.len();
            len - emit_plain(out, call.xid, credits)?.len()
        } else if let Some(single) = single_chunk(form, lists) {
            self.emit_single(call, single, credits, out)?
        } else {
            self.emit_chunks(call, form, lists, credits, out)?
        };
        let slot = &mut self.slots[call.index()];
        slot.state = State::Sent;
        slot.outcome = EndedCall::MaybeExecuted;
        Ok(len)
    }

    fn emit_chunks(
        &mut self,
        call: RequesterCallId,
        form: &CallForm,
        lists: &ChunkLists<'_>,
        credits: u32,
        out: &mut [u8],
    ) -> Result<usize, EmitError> {
        let kind = if form.long { MessageKind::Nomsg } else { MessageKind::Msg };
        let offer = self.record_offer(call, form, lists, 0)?;
        let len = write_lists(Emitter::new(out, kind, call.xid, credits)?, lists)?;
        self.slots[call.index()].offer = offer;
        Ok(len)
    }

    /// Compares the lists with the form, and remembers what they offer. `more_len`: octets of the header that version 1 does
    /// not have.
    #[inline]
    fn record_offer(
        &mut self,
        call: RequesterCallId,
        form: &CallForm,
        lists: &ChunkLists<'_>,
        more_len: usize,
    ) -> Result<Offer, EmitError> {
        let counts = lists.writes.iter().map(|chunk| chunk.len());
        let len = header_len(lists.reads.len(), counts, lists.reply.map(<[Segment]>::len)) + more_len;
        let long = lists.reads.iter().any(|read| read.position == 0);
        let aligned = lists.reads.iter().all(|read| read.position.is_multiple_of(4));
        let as_planned =
            len == form.header_len as usize && long == form.long && lists.reply.is_some() == form.reply_chunk;
        if !as_planned || !aligned {
            return Err(EmitError::NotAsPlanned);
        }
        self.offers.record(call.index(), lists).map_err(|TooMany| EmitError::NotAsPlanned)
    }

    /// Takes in a message for this Requester. `invalidated`: the handle that came dead with it, if it was
    /// sent with Send with Invalidate.
    ///
    /// Post the Receive again before a Call that the Reply's grant lets out is sent.
    #[inline]
    pub fn handle_receive<'m>(
        &mut self,
        message: &'m [u8],
        invalidated: Option<u32>,
    ) -> RequesterReceived<'m> {
        if let Some(ShortReply { call, start, written, memory }) = self.handle_short(message, invalidated) {
            let payload = ReplyPayload::Inline(&message[start as usize..]);
            let writes = written.map_or(Writes::None, Writes::Single);
            return RequesterReceived::Reply(AnsweredCall { call, payload, memory, writes });
        }
        self.receive_any(message, invalidated)
    }

    #[inline(never)]
    fn receive_any<'m>(&mut self, message: &'m [u8], invalidated: Option<u32>) -> RequesterReceived<'m> {
        match self.receive(message, invalidated) {
            Ok(received) => received,
            // Whose memory was invalidated cannot be told (8797-X-2).
            Err(dropped) => match invalidated {
                Some(handle) => RequesterReceived::Close(self.misuse(handle)),
                None => RequesterReceived::Dropped(dropped),
            },
        }
    }

    fn receive<'m>(
        &mut self,
        message: &'m [u8],
        invalidated: Option<u32>,
    ) -> Result<RequesterReceived<'m>, DroppedReply> {
        let (header, payload) = Header::parse(message).map_err(DroppedReply::Header)?;
        if let MessageProcedure::Error(body) = header.procedure() {
            return self.receive_error(&header, body, invalidated);
        }
        if self.is_exposed(&header) {
            return self.receive_exposed(&header, invalidated);
        }
        header.check_reply(payload).map_err(DroppedReply::Header)?;
        if header.direction(payload) != Some(Direction::Reply) {
            return Err(DroppedReply::NotAReply);
        }
        let payload = match header.procedure() {
            MessageProcedure::Msg => Some(payload),
            MessageProcedure::Nomsg | MessageProcedure::Error(_) => None,
        };
        self.receive_reply(header.xid(), header.credits(), &header.lists(), payload, invalidated)
    }

    /// Takes in a Reply of either version whose header is right. `payload`: its Payload stream; `None`: it is in the Reply chunk.
    #[inline]
    fn receive_reply<'m>(
        &mut self,
        xid: u32,
        credits: u32,
        lists: &HeaderLists<'m>,
        payload: Option<&'m [u8]>,
        invalidated: Option<u32>,
    ) -> Result<RequesterReceived<'m>, DroppedReply> {
        let Some(call) = self.find(xid) else {
            // Late or not, the grant is the Responder's latest word (8166-X-10).
            self.window.handle_grant(credits);
            return Err(DroppedReply::UnknownXid(xid));
        };
        if let Some(handle) = invalidated
            && !self.invalidate(call, handle)
        {
            return Ok(RequesterReceived::Close(self.misuse(handle)));
        }
        let slot = &self.slots[call.index()];
        if slot.state == State::Cancelled {
            self.window.handle_grant(credits);
            return Ok(RequesterReceived::Late {
                call,
                memory: self.answered(call.index, EndedCall::Cancelled),
            });
        }
        match self.offers.verify(call.index(), &slot.offer, lists.write_list(), lists.reply_chunk()) {
            Ok(reply_chunk_len) => {
                self.window.handle_grant(credits);
                let payload = payload.map_or(ReplyPayload::Long(reply_chunk_len), ReplyPayload::Inline);
                let memory = self.answered(call.index, EndedCall::Replied);
                let writes = Writes::List(lists.write_list());
                Ok(RequesterReceived::Reply(AnsweredCall { call, payload, memory, writes }))
            }
            Err(violation) => {
                // Not the valid reply of 8166-3.3.3-a: the grant stays.
                let memory = self.answered(call.index, EndedCall::Failed);
                Ok(RequesterReceived::Failed { call, failure: CallFailure::Violation(violation), memory })
            }
        }
    }

    /// An RDMA_ERROR ends its Call for good (8166-4.5-d). Its credit field is not looked at (8166-X-6).
    fn receive_error<'m>(
        &mut self,
        header: &Header<'m>,
        body: ErrorBody,
        invalidated: Option<u32>,
    ) -> Result<RequesterReceived<'m>, DroppedReply> {
        if header.version() != VERSION {
            return Err(DroppedReply::Version(header.version()));
        }
        let call = self.find(header.xid()).ok_or(DroppedReply::UnknownXid(header.xid()))?;
        if let Some(handle) = invalidated
            && !self.invalidate(call, handle)
        {
            return Ok(RequesterReceived::Close(self.misuse(handle)));
        }
        if self.slots[call.index()].state == State::Cancelled {
            return Ok(RequesterReceived::Late {
                call,
                memory: self.answered(call.index, EndedCall::Cancelled),
            });
        }
        let failure = match body {
            ErrorBody::Vers { low, high } => CallFailure::Version { low, high },
            ErrorBody::Chunk => CallFailure::Chunk,
        };
        let memory = self.answered(call.index, EndedCall::Failed);
        Ok(RequesterReceived::Failed { call, failure, memory })
    }

    /// Takes note that the peer's Send invalidated `handle`. `false`: it must not have.
    fn invalidate(&mut self, call: RequesterCallId, handle: u32) -> bool {
        let offer = &mut self.slots[call.index()].offer;
        self.parameters.remote_invalidation && self.offers.handle_invalidated(call.index(), offer, handle)
    }

    fn misuse(&self, handle: u32) -> RequesterMisuse {
        if self.parameters.remote_invalidation {
            RequesterMisuse::ForeignHandle(handle)
        } else {
            RequesterMisuse::InvalidationNotAgreed
        }
    }

    /// Gives up on a Call's Reply. The Responder does not know (8166-4.4.1-b): the memory is fenced first,
    /// and the slot keeps its credit until the late Reply comes. Harmless on a Call that is over.
    pub fn cancel(&mut self, call: RequesterCallId) -> ExposedMemory {
        let Some(state) = self.state(call) else { return ExposedMemory::Safe };
        match state {
            State::Building => return self.answered(call.index, EndedCall::NotSent),
            State::Interrupted => self.free(call.index),
            State::Sent => {
                let slot = &mut self.slots[call.index()];
                slot.state = State::Cancelled;
                slot.outcome = EndedCall::Cancelled;
            }
            State::Pulling => self.slots[call.index()].outcome = EndedCall::Cancelled,
            State::Free | State::Cancelled | State::Fencing => {}
        }
        self.memory(call.index)
    }

    /// The next handle of a Call to fence, once the Call was answered, failed, cancelled or abandoned.
    /// A handle that cannot be fenced closes the connection (8166-4.5.4-b).
    #[inline]
    pub fn poll_fence(&mut self, call: RequesterCallId) -> Option<u32> {
        match self.state(call)? {
            State::Cancelled | State::Pulling | State::Fencing => {
                self.offers.poll_fence(call.index(), &mut self.slots[call.index()].offer)
            }
            State::Free | State::Building | State::Sent | State::Interrupted => None,
        }
    }

    /// A handle from [`Requester::poll_fence`] is dead. `None`: its fence was not awaited, as when the
    /// peer's Send invalidated it in the meantime.
    #[inline]
    pub fn handle_fenced(&mut self, call: RequesterCallId, handle: u32) -> Option<ExposedMemory> {
        self.state(call)?;
        let slot = &mut self.slots[call.index()];
        if !self.offers.handle_fenced(call.index(), &mut slot.offer, handle) {
            return None;
        }
        Some(self.settle(call.index))
    }

    #[inline(always)]
    fn free(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        (slot.state, slot.next) = (State::Free, self.free);
        (self.free, self.free_count) = (index, self.free_count + 1);
    }

    /// The Call in the slot `index` that is not over.
    #[must_use]
    pub fn call_at(&self, index: usize) -> Option<RequesterCallId> {
        let slot = self.slots.get(index)?;
        (slot.state != State::Free).then_some(RequesterCallId { xid: slot.xid, index: index as u32 })
    }

    /// Whether a Call with this xid waits for its Reply, cancelled or not.
    #[inline]
    #[must_use]
    pub fn has_call(&self, xid: u32) -> bool {
        self.find(xid).is_some()
    }

    /// The state of `call`; `None` when it is over.
    #[inline]
    fn state(&self, call: RequesterCallId) -> Option<State> {
        let slot = self.slots.get(call.index())?;
        (slot.xid == call.xid && slot.state != State::Free).then_some(slot.state)
    }

    /// The Call in flight with this xid.
    #[inline]
    fn find(&self, xid: u32) -> Option<RequesterCallId> {
        let index = xid & ((1 << self.index_bits) - 1);
        let slot = self.slots.get(index as usize)?;
        let in_flight = matches!(slot.state, State::Sent | State::Cancelled);
        (slot.xid == xid && in_flight).then_some(RequesterCallId { xid, index })
    }

    /// A Call got all the answer it will get: its credit is free, and its memory must be fenced.
    #[inline(always)]
    fn answered(&mut self, index: u32, outcome: EndedCall) -> ExposedMemory {
        self.window.give_back();
        let slot = &mut self.slots[index as usize];
        slot.state = State::Fencing;
        slot.outcome = outcome;
        self.settle(index)
    }

    /// Frees the slot when nothing keeps it: no credit held, nothing exposed.
    #[inline(always)]
    fn settle(&mut self, index: u32) -> ExposedMemory {
        let memory = self.memory(index);
        let slot = &self.slots[index as usize];
        if memory == ExposedMemory::Safe && slot.state == State::Fencing {
            self.free(index);
        }
        memory
    }

    #[inline(always)]
    fn memory(&self, index: u32) -> ExposedMemory {
        if self.slots[index as usize].offer.is_exposed() {
            ExposedMemory::Exposed
        } else {
            ExposedMemory::Safe
        }
    }
}

/// Writes the chunk lists of a Call behind what `emitter` has written. Returns the octets of the header.
#[inline]
fn write_lists(mut emitter: Emitter<'_>, lists: &ChunkLists<'_>) -> Result<usize, EmitError> {
    // Ascending by Position (8166-X-9), one pass for each chunk: there are few, and nothing to allocate.
    let mut next = lists.reads.iter().map(|read| read.position).min();
    while let Some(position) = next {
        for read in lists.reads.iter().filter(|read| read.position == position) {
            emitter.read_segment(*read)?;
        }
        next = lists.reads.iter().map(|read| read.position).filter(|&other| other > position).min();
    }
    for chunk in lists.writes {
        emitter.write_chunk(chunk)?;
    }
    if let Some(chunk) = lists.reply {
        emitter.reply_chunk(chunk)?;
    }
    Ok(emitter.finish()?.0)
}

/// Spreads the seed over all bits (the finaliser of MurmurHash3): neighbours start far apart.
fn scramble(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
    x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}
