//! The part of a Requester that only version 2 has.
//!
//! ```text
//!   the same Requester: slots, xids, credits, offers and their fences
//!     version 1   emit_call, handle_receive
//!     version 2   Requester2::emit_call, emit_lead, emit_continuation, handle_receive
//! ```
//!
//! A driver keeps one [`Requester`] for each connection, whatever its version is, and beside it a [`Requester2`] once
//! [`VersionProbe`](crate::version::VersionProbe) has found that the peer speaks version 2. It asks once for each message which
//! of the two takes it; `begin`, `cancel`, `poll_fence`, `handle_fenced` and the ends of connections are the Requester's in both,
//! with [`Requester2::handle_over`] after a Call that was abandoned or cancelled before it was sent.
//!
//! A Call goes by one of three ways, as its size and the peer's characteristics allow:
//!
//! - a base message ([`Requester2::plan`]), Short, Chunked or Long, as in version 1;
//! - a group ([`Requester2::plan_group`]), of one transmission or of several, whose items lie in the peer's Receives. It takes a
//!   credit for each transmission (RTR-4.3-a); if there are too few it goes as a base message (no Call waits for them).
//!
//! *Receives.* Before a group is sent, one Receive is posted and promised for its Reply and one for each of
//! [`GroupCall::response_receives`]. Each transmission of the Reply takes one. [`Requester2::take_unused`] says how many of the
//! promises are no longer needed. The Receives of a transmission that is not taken ([`RequesterEvent2::Fault`],
//! [`RequesterEvent2::Rest`]), and those kept for its group, are posted and promised again: the Responder may send the Reply by
//! base means (RTR-5.4-c), and if it does not, the Call times out.

mod lone;

use stag_wire::rpcrdma::MessageKind;
use stag_wire::rpcrdma2::{
    Body2, Continuation, DirectionSet, Elements, ErrorCode2, Header2, Header2 as Header, ItemPlace,
    MessageType, OptionMessage, OptionalOperation, PlacedItem, RequestTransmission, ResponseTransmission,
    VERSION, option, procedure, start,
};

use super::{
    CallFailure, CallForm, ChunkLists, DroppedReply, EmitError, EndedCall, ExposedMemory, Parameters,
    PlanError, Requester, RequesterCallId, RequesterReceived, Shape, State, write_lists,
};
use crate::characteristics::PeerCharacteristics;
use crate::cut::{CutError, MessageCut, MessageShape, Transmission};
use crate::directions::{DIRECTIONS_MAX, ExpectedResult};
use crate::group::{GroupReceiver, Interruption, Lead, MessagePart, Transmitted};
use crate::layout::{ReceiveLayout, TargetRun};
use crate::placement::{PlacementError, PlacementMap};
use crate::sender::{GroupSender, SendingFault};
use crate::version2::{OwnCharacteristics, SmallMessage};
pub use lone::{LoneReply, LoneRequest};

/// Octets that a base header of version 2 has more than one of version 1: the direction.
const DIRECTION_LEN: u32 = 4;

/// What a Requester remembers of a Call that went as a group.
#[derive(Clone, Copy, Debug, Default)]
struct Extra {
    /// Credits beside the first.
    credits: u32,
    /// Receives that the Responder was told of.
    receives: u32,
    expected: [ExpectedResult; DIRECTIONS_MAX],
    directions: usize,
}

/// A Call that goes as a group of transmissions.
#[derive(Clone, Copy, Debug)]
pub struct GroupCall<'a> {
    /// The items of its arguments that are not in the Payload stream, by displacement.
    pub items: &'a [PlacedItem<'a>],
    /// Octets of those of them that go into targets, in the same order.
    pub target_lens: &'a [u32],
    /// Where the results are to go.
    pub directions: Elements<'a, DirectionSet<'a>>,
    /// Octets of the Payload stream.
    pub payload_len: u32,
    /// Receives posted for further transmissions of the Reply (RTR-4.3-c).
    pub response_receives: u32,
}

/// What a message of version 2 meant to a Requester.
#[derive(Debug)]
#[must_use]
pub enum RequesterEvent2<'m> {
    /// As in version 1.
    Base(RequesterReceived<'m>),
    /// A transmission of a Reply of which others are missing: keep the message.
    Part {
        /// Where its part of the Payload stream belongs.
        part: MessagePart,
        /// Octets of its header.
        header_len: u32,
    },
    /// The last transmission of a Reply: the Call is answered. Its items are those of the first transmission
    /// ([`Requester2::items`]), and lie where [`Requester2::map`] says.
    Whole {
        /// Which.
        call: RequesterCallId,
        /// Where its part of the Payload stream belongs.
        part: MessagePart,
        /// Octets of its header.
        header_len: u32,
        /// Whether the Call's memory must be fenced first.
        memory: ExposedMemory,
    },
    /// A transmission that cannot be taken: send this XMTERR. What was kept of its group is posted again.
    Fault(SmallMessage),
    /// The rest of such a group: dropped.
    Rest,
    /// What the peer says of itself: for the connection's [`PeerCharacteristics`].
    Characteristics(OptionalOperation<'m>),
    /// It is for the Responder of this end.
    Call,
}

/// What one connection's Requester needs for version 2. All that it ever allocates is allocated when it is made.
#[derive(Debug)]
pub struct Requester2 {
    slots: Box<[Extra]>,
    sender: GroupSender,
    receiver: GroupReceiver,
    map: PlacementMap,
    /// The targets of this end's Receives.
    run: Option<TargetRun>,
    /// The Call whose Reply is incomplete.
    open: Option<RequesterCallId>,
    unused: u32,
}

impl Requester2 {
    /// Beside a [`Requester`] of `slots`. `own`: what this end tells of itself. `payload_len_max`: octets of the longest Payload
    /// stream of a Reply.
    ///
    /// # Panics
    ///
    /// When a Reply could have more targets than [`TARGETS_MAX`](crate::layout::TARGETS_MAX).
    #[must_use]
    pub fn new(slots: u32, own: &OwnCharacteristics, payload_len_max: u32) -> Self {
        Self {
            slots: vec![Extra::default(); slots as usize].into_boxed_slice(),
            sender: GroupSender::new(MessageType::Call),
            receiver: GroupReceiver::new(MessageType::Reply, payload_len_max),
            map: PlacementMap::new(own.layout, own.response_receives + 1),
            run: own.layout.run(),
            open: None,
            unused: 0,
        }
    }

    /// Octets of heap of one whose Replies are single Sends into Receives with `targets` targets.
    #[must_use]
    pub fn footprint(slots: u32, targets: u32) -> usize {
        slots as usize * size_of::<Extra>() + PlacementMap::footprint(targets)
    }

    /// Returns where the items of the Reply that is whole lie.
    #[must_use]
    pub fn map(&self) -> &PlacementMap {
        &self.map
    }

    /// Whether transmissions of a Reply are missing. When none are missing after a message, what was kept is used (the Reply is
    /// whole) or posted again; so it is when a transmission with the number 0 comes.
    #[must_use]
    pub fn has_open_group(&self) -> bool {
        self.receiver.open().is_some()
    }

    /// Returns the promises of Receives that are not needed any more, each once.
    pub fn take_unused(&mut self) -> u32 {
        core::mem::take(&mut self.unused)
    }

    /// Decides the form of a Call that goes as a base message, before anything is exposed for it. `own` is what this
    /// end tells of itself.
    ///
    /// # Errors
    ///
    /// As [`Requester::plan`].
    pub fn plan(
        &self,
        requester: &Requester,
        peer: &PeerCharacteristics,
        own: &OwnCharacteristics,
        shape: &Shape<'_>,
    ) -> Result<CallForm, PlanError> {
        let parameters = Parameters {
            call_threshold: peer.receive_size().min(own.send_len_max).saturating_sub(DIRECTION_LEN),
            reply_threshold: own.layout.len().saturating_sub(DIRECTION_LEN),
            remote_invalidation: false,
        };
        let mut form = CallForm::of_call(shape, &parameters, requester.segments_max)?;
        form.header_len += DIRECTION_LEN;
        Ok(form)
    }

    /// Writes the base header of a Call, as [`Requester::emit_call`] does in version 1.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Panics
    ///
    /// When the Call was sent before, or is over, or a group is being sent.
    pub fn emit_call(
        &mut self,
        requester: &mut Requester,
        call: RequesterCallId,
        form: &CallForm,
        lists: &ChunkLists<'_>,
        out: &mut [u8],
    ) -> Result<usize, EmitError> {
        assert!(requester.state(call) == Some(State::Building), "a Call is emitted once, after begin");
        assert!(self.sender.open().is_none(), "nothing is sent between the transmissions of a group");
        let kind = if form.long { MessageKind::Nomsg } else { MessageKind::Msg };
        let credits = requester.window.requested();
        let offer = requester.record_offer(call, form, lists, DIRECTION_LEN as usize)?;
        let len = write_lists(start(out, kind, MessageType::Call, call.xid, credits)?, lists)?;
        let slot = &mut requester.slots[call.index()];
        (slot.offer, slot.state, slot.outcome) = (offer, State::Sent, EndedCall::MaybeExecuted);
        Ok(len)
    }

    /// Cuts a Call into transmissions for the peer's Receives (`layout`), as many as it takes and as there are credits for,
    /// that of the Call included. Nothing is taken yet.
    ///
    /// # Errors
    ///
    /// It does not fit: it goes as a base message (RTR-5.2-a, RTR-5.3-a).
    pub fn plan_group<'a>(
        &self,
        requester: &Requester,
        peer: &PeerCharacteristics,
        layout: &'a ReceiveLayout,
        group: &GroupCall<'a>,
    ) -> Result<MessageCut<'a>, CutError> {
        let credits = requester.window.available().saturating_add(1);
        let taken = if peer.takes_request_transmissions() { peer.request_transmissions() } else { 0 };
        let lead_len = group.lead(0, 0).header_len();
        let shape = MessageShape {
            lead_len: u32::try_from(lead_len).unwrap_or(u32::MAX),
            payload_len: group.payload_len,
            items: group.target_lens,
        };
        let cut = MessageCut::new(shape, layout, taken.min(credits))?;
        let in_targets = group.items.iter().filter_map(|item| match item.place {
            ItemPlace::Buffers { offset, numbers } => Some((offset, numbers)),
            _ => None,
        });
        for (item, (offset, numbers)) in in_targets.enumerate() {
            if offset != cut.offset_of(item) || !numbers.iter().eq(cut.targets_of(item)) {
                return Err(CutError::Targets);
            }
        }
        Ok(cut)
    }

    /// Writes the header of the first transmission, and takes the credits of all. The others follow with
    /// [`Requester2::emit_continuation`], with nothing between them.
    ///
    /// `lists` has the segments of the items that go by explicit RDMA as `reads`, and as `writes` one chunk for each direction: its
    /// segments, or none.
    ///
    /// # Errors
    ///
    /// `out` is too short, there are too many segments or directions, or the credits are gone. The Call can be abandoned, or
    /// sent otherwise.
    ///
    /// # Panics
    ///
    /// When the Call was sent before, or is over, or another group is being sent.
    pub fn emit_lead(
        &mut self,
        requester: &mut Requester,
        call: RequesterCallId,
        group: &GroupCall<'_>,
        cut: &MessageCut<'_>,
        lists: &ChunkLists<'_>,
        out: &mut [u8],
    ) -> Result<usize, EmitError> {
        assert!(requester.state(call) == Some(State::Building), "a Call is emitted once, after begin");
        let mut extra =
            Extra { credits: cut.count() - 1, receives: group.response_receives, ..Extra::default() };
        for direction in group.directions.iter().flat_map(|set| set.items.iter()) {
            *extra.expected.get_mut(extra.directions).ok_or(EmitError::NotAsPlanned)? =
                ExpectedResult::of(&direction);
            extra.directions += 1;
        }
        let has_room = extra.receives < self.map.capacity();
        if lists.writes.len() != extra.directions || lists.reply.is_some() || !has_room {
            return Err(EmitError::NotAsPlanned);
        }
        let operation = OptionalOperation::Request(group.lead(cut.count(), cut.first_payload_len()));
        let (len, _) = operation.emit(out, MessageType::Call, call.xid, requester.window.requested())?;
        let offer = requester.offers.record(call.index(), lists).map_err(|_| EmitError::NotAsPlanned)?;
        if !requester.window.take_more(extra.credits) {
            return Err(EmitError::NotAsPlanned);
        }
        self.sender.begin(call.xid, cut.count());
        let _ = self.sender.next_transmission();
        self.slots[call.index()] = extra;
        let slot = &mut requester.slots[call.index()];
        (slot.offer, slot.state, slot.outcome) = (offer, State::Sent, EndedCall::MaybeExecuted);
        Ok(len)
    }

    /// Writes the header of another transmission. `None`: the peer refused the group meanwhile, and nothing more is sent of it.
    ///
    /// # Errors
    ///
    /// `out` is too short.
    ///
    /// # Panics
    ///
    /// When it is not the next one.
    pub fn emit_continuation(
        &mut self,
        requester: &Requester,
        call: RequesterCallId,
        sent: &Transmission,
        out: &mut [u8],
    ) -> Result<Option<usize>, EmitError> {
        if self.sender.open() != Some(call.xid) {
            return Ok(None);
        }
        let found =
            Continuation { number: sent.number, lead_option: option::XMTREQ, payload_len: sent.payload_len };
        let credits = requester.window.requested();
        let (len, _) =
            OptionalOperation::Continuation(found).emit(out, MessageType::Call, call.xid, credits)?;
        assert!(
            self.sender.next_transmission() == Some(sent.number),
            "transmissions are sent in their order"
        );
        Ok(Some(len))
    }

    /// A Call was not sent: to be said before [`Requester::abandon`], or before [`Requester::cancel`] of one that is in the
    /// making. Gives back its further credits. If some of its transmissions were sent, the connection must be closed:
    /// the Responder waits for the others.
    pub fn handle_over(&mut self, requester: &mut Requester, call: RequesterCallId) {
        if self.sender.open() == Some(call.xid) {
            self.sender.abandon();
        }
        if requester.state(call).is_some() {
            self.release(requester, call);
        }
    }

    /// The connection is gone: call this before the Requester's own.
    pub fn handle_disconnect(&mut self, requester: &mut Requester) {
        for extra in &mut self.slots {
            let extra = core::mem::take(extra);
            (0..extra.credits).for_each(|_| requester.window.give_back());
        }
        self.sender.handle_disconnect();
        self.receiver.handle_disconnect();
        (self.open, self.unused) = (None, 0);
    }

    /// Takes in a message. `lead` is the first transmission of the Reply that is incomplete, which the driver keeps; `invalidated`
    /// as in [`Requester::handle_receive`].
    ///
    /// The second value is an XMTERR to send besides: the message came into the midst of a Reply's transmissions, of which what was
    /// kept is posted again.
    pub fn handle_receive<'m>(
        &mut self,
        requester: &mut Requester,
        message: &'m [u8],
        invalidated: Option<u32>,
        lead: Option<&'m [u8]>,
    ) -> (RequesterEvent2<'m>, Option<SmallMessage>) {
        self.handle_divided(requester, (message, 0), invalidated, lead)
    }

    /// As [`Requester2::handle_receive`], of a message of which some octets lie elsewhere: in the targets of its Receive. The second
    /// value of the message is their number. Header and Payload stream are in the first.
    pub fn handle_divided<'m>(
        &mut self,
        requester: &mut Requester,
        (message, behind): (&'m [u8], u32),
        invalidated: Option<u32>,
        lead: Option<&'m [u8]>,
    ) -> (RequesterEvent2<'m>, Option<SmallMessage>) {
        let dropped =
            |error| RequesterEvent2::Base(RequesterReceived::Dropped(DroppedReply::Version2(error)));
        let (header, rest) = match Header2::parse(message) {
            Ok(parts) => parts,
            Err(refused) => return (dropped(refused.error), None),
        };
        let is_reply = header.direction() == MessageType::Reply;
        if !is_reply && !header.tells_of_sender() {
            return (RequesterEvent2::Call, None);
        }
        let operation = match &header.body {
            Body2::Optional(found) => match OptionalOperation::parse(found) {
                Ok(operation) => Some((operation, found)),
                Err(refused) => return (dropped(refused.error), None),
            },
            _ => None,
        };
        let interruption = match (&header.body, &operation) {
            (Body2::Message(..), _) => Some(Interruption::Procedure(procedure::MSG)),
            (Body2::Long(..), _) => Some(Interruption::Procedure(procedure::NOMSG)),
            (Body2::Error(_), _) => Some(Interruption::Procedure(procedure::ERROR)),
            // Between the transmissions of a Reply, messages of the other direction may come (RTR-X-26).
            _ if !is_reply => None,
            (_, Some((OptionalOperation::Continuation(_), _))) => None,
            // It is about the other direction: an answer to a Call comes whenever it likes.
            (_, Some((operation, _))) => Some(Interruption::Option(operation.option())),
            (Body2::Optional(_), None) => None,
        };
        let broken = interruption.and_then(|found| self.receiver.handle_other(header.xid, found));
        let broken = broken.map(|error| {
            self.open = None;
            SmallMessage::transmission_error(&error, requester.window.requested())
        });
        let event = match operation {
            None => self.receive_base(requester, &header, rest, invalidated),
            Some((operation, found)) => {
                // Of a group that begins, what is kept of another says nothing.
                let lead = match operation {
                    OptionalOperation::Response(_) => message,
                    _ => lead.unwrap_or(message),
                };
                let header_len = (message.len() - rest.len()) as u32;
                let lens = (header_len, behind);
                self.receive_operation(requester, (operation, found), (rest, lens), invalidated, lead)
            }
        };
        (event, broken)
    }

    /// A message with chunk lists, or an error.
    fn receive_base<'m>(
        &mut self,
        requester: &mut Requester,
        header: &Header<'m>,
        rest: &'m [u8],
        invalidated: Option<u32>,
    ) -> RequesterEvent2<'m> {
        if let Err(refused) = header.check(rest) {
            return RequesterEvent2::Base(RequesterReceived::Dropped(DroppedReply::Version2(refused.error)));
        }
        let result = match &header.body {
            Body2::Error(code) if header.version == VERSION => {
                let failure = match *code {
                    ErrorCode2::Vers { low, high } => CallFailure::Version { low, high },
                    ErrorCode2::BadHeader => CallFailure::Chunk,
                    ErrorCode2::InvalidOption => CallFailure::Option,
                };
                self.fail(requester, header.xid, failure)
            }
            Body2::Error(_) => Err(DroppedReply::Version(header.version)),
            Body2::Message(_, lists) => {
                requester.receive_reply(header.xid, header.credits, lists, Some(rest), invalidated)
            }
            Body2::Long(_, lists) => {
                requester.receive_reply(header.xid, header.credits, lists, None, invalidated)
            }
            Body2::Optional(_) => Err(DroppedReply::NotAReply),
        };
        match &result {
            Ok(RequesterReceived::Reply(super::AnsweredCall { call, .. }))
            | Ok(RequesterReceived::Late { call, .. }) => {
                self.release(requester, *call);
            }
            // `fail` released those that it ended.
            Ok(RequesterReceived::Failed { call, .. }) => self.release(requester, *call),
            _ => {}
        }
        RequesterEvent2::Base(result.unwrap_or_else(RequesterReceived::Dropped))
    }

    /// Ends a Call with an error of the peer.
    fn fail<'m>(
        &mut self,
        requester: &mut Requester,
        xid: u32,
        failure: CallFailure,
    ) -> Result<RequesterReceived<'m>, DroppedReply> {
        let call = requester.find(xid).ok_or(DroppedReply::UnknownXid(xid))?;
        if self.sender.open() == Some(xid) {
            self.sender.abandon();
        }
        if self.open == Some(call) {
            // The Call is over: the rest of its Reply is dropped.
            self.open = None;
        }
        self.release(requester, call);
        if requester.slots[call.index()].state == State::Cancelled {
            let memory = requester.answered(call.index, EndedCall::Cancelled);
            return Ok(RequesterReceived::Late { call, memory });
        }
        let memory = requester.answered(call.index, EndedCall::Failed);
        Ok(RequesterReceived::Failed { call, failure, memory })
    }

    fn receive_operation<'m>(
        &mut self,
        requester: &mut Requester,
        (operation, found): (OptionalOperation<'m>, &OptionMessage<'m>),
        (rest, (header_len, behind)): (&'m [u8], (u32, u32)),
        invalidated: Option<u32>,
        lead: &'m [u8],
    ) -> RequesterEvent2<'m> {
        let room = rest.len() as u32 + behind;
        let xid = found.xid;
        let dropped = |why| RequesterEvent2::Base(RequesterReceived::Dropped(why));
        let transmitted = match operation {
            OptionalOperation::Response(response) => {
                if let Err(refused) = found.check_start(rest) {
                    return dropped(DroppedReply::Version2(refused.error));
                }
                let Some(call) = requester.find(xid) else {
                    requester.window.handle_grant(found.credits);
                    return dropped(DroppedReply::UnknownXid(xid));
                };
                self.open = Some(call);
                self.map.begin();
                let ResponseTransmission { count, payload_len, .. } = response;
                let count_max = self.slots[call.index()].receives + 1;
                self.receiver.handle_lead(&Lead { xid, count, payload_len }, count_max, room)
            }
            OptionalOperation::Continuation(next) => self.receiver.handle_continuation(xid, &next, room),
            OptionalOperation::Error(error) => {
                let xid = match self.sender.handle_error(&error) {
                    SendingFault::OtherDirection => return dropped(DroppedReply::NotAReply),
                    SendingFault::Stopped { xid, .. } | SendingFault::Sent { xid } => xid,
                };
                let failed = self.fail(requester, xid, CallFailure::Transmission(error.fault));
                return RequesterEvent2::Base(failed.unwrap_or_else(RequesterReceived::Dropped));
            }
            OptionalOperation::Initial(_) | OptionalOperation::Update(_) | OptionalOperation::Answer(_) => {
                return RequesterEvent2::Characteristics(operation);
            }
            OptionalOperation::Request(_) | OptionalOperation::Ask(_) => return RequesterEvent2::Call,
        };
        let part = match transmitted {
            Transmitted::Part(part) => part,
            Transmitted::Fault(error) => {
                self.open = None;
                return RequesterEvent2::Fault(SmallMessage::transmission_error(
                    &error,
                    requester.window.requested(),
                ));
            }
            Transmitted::Dropped => return RequesterEvent2::Rest,
        };
        self.map.record(header_len, part.len, header_len + room);
        if !part.is_last {
            return RequesterEvent2::Part { part, header_len };
        }
        let Some(call) = self.open.take().filter(|call| requester.find(call.xid) == Some(*call)) else {
            return dropped(DroppedReply::UnknownXid(xid));
        };
        self.finish(requester, call, (part, header_len), found.credits, invalidated, lead)
    }

    /// A Reply is whole.
    fn finish<'m>(
        &mut self,
        requester: &mut Requester,
        call: RequesterCallId,
        (part, header_len): (MessagePart, u32),
        credits: u32,
        invalidated: Option<u32>,
        lead: &[u8],
    ) -> RequesterEvent2<'m> {
        if let Some(handle) = invalidated
            && !requester.invalidate(call, handle)
        {
            return RequesterEvent2::Base(RequesterReceived::Close(requester.misuse(handle)));
        }
        let extra = self.slots[call.index()];
        // The transmissions took this number of the promised Receives; `release` counts one.
        let taken = part.number;
        if requester.slots[call.index()].state == State::Cancelled {
            requester.window.handle_grant(credits);
            self.release(requester, call);
            self.unused = self.unused.saturating_sub(taken);
            let memory = requester.answered(call.index, EndedCall::Cancelled);
            return RequesterEvent2::Base(RequesterReceived::Late { call, memory });
        }
        let items = Self::items(lead);
        let offer = &requester.slots[call.index()].offer;
        let expected = &extra.expected[..extra.directions];
        let written = |direction, segments: &Elements<'_, _>| {
            requester.offers.verify_item(call.index(), offer, direction, segments)
        };
        let results = ExpectedResult::check_all(expected, &items, written).map_err(CallFailure::Results);
        let checked = results.and_then(|()| self.map.check(&items).map_err(CallFailure::Placement));
        if let Err(CallFailure::Placement(PlacementError::Fault(fault))) = checked {
            // It is reported, and the Responder may send the Reply by base means (RTR-5.4-c).
            let error = self.receiver.fault_of_lead(call.xid, fault);
            return RequesterEvent2::Fault(SmallMessage::transmission_error(
                &error,
                requester.window.requested(),
            ));
        }
        self.release(requester, call);
        self.unused = self.unused.saturating_sub(taken);
        match checked {
            Ok(()) => {
                requester.window.handle_grant(credits);
                let memory = requester.answered(call.index, EndedCall::Replied);
                RequesterEvent2::Whole { call, part, header_len, memory }
            }
            Err(failure) => {
                let memory = requester.answered(call.index, EndedCall::Failed);
                RequesterEvent2::Base(RequesterReceived::Failed { call, failure, memory })
            }
        }
    }

    /// Returns the items of a Reply from its first transmission: one for each direction of the Call.
    #[must_use]
    pub fn items(lead: &[u8]) -> Elements<'_, PlacedItem<'_>> {
        match crate::version2::operation(lead) {
            Some(OptionalOperation::Response(response)) => response.items,
            _ => Elements::EMPTY,
        }
    }

    /// Gives back what a Call had beside its first credit and its first Receive.
    fn release(&mut self, requester: &mut Requester, call: RequesterCallId) {
        let extra = core::mem::take(&mut self.slots[call.index()]);
        (0..extra.credits).for_each(|_| requester.window.give_back());
        self.unused += extra.receives;
    }
}

impl Requester {
    /// Changes what was agreed with the peer, when it turned out that it does not speak version 2: before any Call but the probe.
    pub fn set_parameters(&mut self, parameters: Parameters) {
        self.parameters = parameters;
    }
}

impl<'a> GroupCall<'a> {
    fn lead(&self, count: u32, payload_len: u32) -> RequestTransmission<'a> {
        RequestTransmission {
            items: Elements::new(self.items),
            directions: self.directions,
            count,
            response_receives: self.response_receives,
            payload_len,
        }
    }

    /// Returns whether an item is sent with the message.
    #[must_use]
    pub fn has_targets(&self) -> bool {
        self.items.iter().any(|item| matches!(item.place, ItemPlace::Buffers { .. }))
    }
}
