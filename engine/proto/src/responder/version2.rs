//! The part of a Responder that only version 2 has.
//!
//! ```text
//!   the same Responder: slots, grant, views of Calls, base Replies, refusals
//!     version 1   handle_receive
//!     version 2   Responder2::handle_receive; Replies as groups: plan_group, emit_lead, emit_continuation
//! ```
//!
//! A driver keeps one [`Responder`] for each connection, and beside it a [`Responder2`] if it speaks version 2. It asks once for
//! each message which of the two takes it ([`is_version2`]), because the Call says the version (V2-5.3-a). A Call of either version
//! is a [`ReceivedCall`], and [`Responder::plan_reply`], [`Responder::emit_reply`], [`Responder::refuse`] answer it in its own.
//!
//! *Groups.* The driver keeps the messages of a group, each of which has a credit, until its Reply is sent; then it posts them
//! all again. The first of them is the message that the methods of [`Responder`] ask for. [`Responder2::map`] says where the
//! items of its arguments lie, until the next Call comes.

mod lone;

use stag_wire::rpcrdma::{Fixed, HeaderLists, MessageKind, Segment};
use stag_wire::rpcrdma2::{
    Answer2, Body2, CharacteristicRequest, CharacteristicResponse, Continuation, DirectionSet, Elements,
    ErrorCode2, Header2, ItemPlace, MessageType, OptionMessage, OptionalOperation, PlacedItem, PositionSet,
    Refused2, RequestTransmission, ResponseTransmission, VERSION, option, procedure, start,
};
use stag_wire::xdr::{Overflow, padded};

use super::call::Chunks;
use super::{
    CallPayload, DroppedCall, Lists, ReceivedCall, Refusal, ReplyError, ReplyForm, Responder,
    ResponderCallId, ResponderMisuse, echo_lists, reads,
};
use crate::cut::{MessageCut, MessageShape, Transmission};
use crate::directions::{DIRECTIONS_MAX, PlacedResults, ResultItem};
use crate::group::{GroupReceiver, Interruption, Lead, MessagePart, Transmitted};
use crate::layout::{ReceiveLayout, TARGETS_MAX, TargetRun, target_numbers};
use crate::placement::{PlacementError, PlacementMap};
use crate::sender::{GroupSender, SendingFault};
use crate::version2::{OwnCharacteristics, SmallMessage, operation};
pub use lone::{LoneAnswer, LoneCall};

/// Segments of all directions of a Call together. A Call with more is refused.
const SEGMENTS_MAX: usize = 64;

/// Words of a set that a RESPXCH of ours can have: as many wishes as a REQXCH can hold.
const SET_WORDS: usize = 16;

/// Tells whether a message is of version 2: [`Responder2::handle_receive`] takes it, and [`Responder`] any other.
#[inline]
#[must_use]
pub fn is_version2(message: &[u8]) -> bool {
    message.get(4..8) == Some(&VERSION.to_be_bytes())
}

/// What a message of version 2 meant to a Responder. In all cases but [`Part`](ResponderEvent2::Part) and the Calls its Receive
/// is posted again at once, before an answer is sent.
#[derive(Debug)]
#[must_use]
pub enum ResponderEvent2<'m> {
    /// A Call by a base message. Keep the message.
    Call(ReceivedCall<'m>),
    /// A transmission of a Call of which others are missing: keep the message.
    Part {
        /// Where its part of the Payload stream belongs.
        part: MessagePart,
        /// Octets of its header.
        header_len: u32,
    },
    /// The last transmission of a Call. Keep the message.
    Whole {
        /// The Call: its Payload stream is in the parts, one behind the other.
        id: ResponderCallId,
        /// Where this part of the Payload stream belongs.
        part: MessagePart,
        /// Octets of its header.
        header_len: u32,
    },
    /// A message to answer with this one. What was kept of its group is posted again.
    Answer(SmallMessage),
    /// The rest of a group that was refused: dropped.
    Rest,
    /// What the peer says of itself: for the connection's [`PeerCharacteristics`](crate::characteristics::PeerCharacteristics).
    Characteristics(OptionalOperation<'m>),
    /// The Requester refused a Reply that was sent as a group. It may be sent by base means if it was kept (RTR-5.4-c).
    ReplyRefused {
        /// Its xid.
        xid: u32,
    },
    /// A message to ignore.
    Dropped(DroppedCall),
    /// It is for the Requester of this end.
    Reply,
    /// The connection must be closed.
    Close(ResponderMisuse),
}

/// A Reply that goes as a group of transmissions.
#[derive(Clone, Copy, Debug)]
pub struct GroupReply<'a> {
    /// Its items that may leave the Payload stream, in the order of the Reply.
    pub results: &'a [ResultItem],
    /// Octets of its virtual stream: with all of them, and their roundup.
    pub stream_len: u32,
    /// The Requester's Receives, which it is cut for.
    pub layout: &'a ReceiveLayout,
}

/// How such a Reply is sent.
#[derive(Clone, Copy, Debug)]
pub struct GroupPlan {
    /// Where each direction's item goes: the driver writes the [`Explicit`](crate::directions::ResultPlace::Explicit) ones before
    /// the first Send.
    pub placed: PlacedResults,
    /// Octets of the Payload stream: the virtual stream without what was placed.
    pub payload_len: u32,
    lens: [u32; DIRECTIONS_MAX],
    lens_count: usize,
    lead_len: u32,
    limit: u32,
}

impl GroupPlan {
    /// Cuts the Reply for the Requester's Receives: `layout` is that of the plan.
    ///
    /// # Panics
    ///
    /// When it is not.
    #[must_use]
    pub fn cut<'a>(&'a self, layout: &'a ReceiveLayout) -> MessageCut<'a> {
        self.try_cut(layout).expect("it was cut when it was planned")
    }

    fn try_cut<'a>(&'a self, layout: &'a ReceiveLayout) -> Result<MessageCut<'a>, crate::cut::CutError> {
        let items = &self.lens[..self.lens_count];
        let shape = MessageShape { lead_len: self.lead_len, payload_len: self.payload_len, items };
        MessageCut::new(shape, layout, self.limit)
    }
}

/// What one connection's Responder needs for version 2. All that it ever allocates is allocated when it is made.
#[derive(Debug)]
pub struct Responder2 {
    sender: GroupSender,
    receiver: GroupReceiver,
    map: PlacementMap,
    /// The targets of this end's Receives.
    run: Option<TargetRun>,
    /// The Call of which transmissions are missing.
    open: Option<ResponderCallId>,
    request_limit: u32,
    response_limit: u32,
    /// Octets of the data for which a Call was refused last, and the limit.
    refused_len: Option<(u64, u32)>,
    segments: Box<[Segment]>,
}

impl Responder2 {
    /// Beside a [`Responder`]. `own`: what this end tells of itself. `payload_len_max`: octets of the longest Payload stream of a
    /// Call.
    ///
    /// # Panics
    ///
    /// When a Call could have more targets than [`TARGETS_MAX`].
    #[must_use]
    pub fn new(own: &OwnCharacteristics, payload_len_max: u32) -> Self {
        let empty = Segment { handle: 0, length: 0, offset: 0 };
        Self {
            sender: GroupSender::new(MessageType::Reply),
            receiver: GroupReceiver::new(MessageType::Call, payload_len_max),
            map: PlacementMap::new(own.layout, own.request_limit),
            run: own.layout.run(),
            open: None,
            request_limit: own.request_limit,
            response_limit: own.response_limit,
            refused_len: None,
            segments: vec![empty; SEGMENTS_MAX].into_boxed_slice(),
        }
    }

    /// Octets of the data for which the last message was refused, and the limit. `None`: it was refused for something else, or
    /// this was asked before.
    pub fn take_refused_len(&mut self) -> Option<(u64, u32)> {
        self.refused_len.take()
    }

    /// Returns where the items of the Call that became whole last lie.
    #[must_use]
    pub fn map(&self) -> &PlacementMap {
        &self.map
    }

    /// Whether transmissions of a Call are missing. When none are missing after a message, what was kept is used (the Call is
    /// whole) or posted again; so it is when a transmission with the number 0 comes.
    #[must_use]
    pub fn has_open_group(&self) -> bool {
        self.receiver.open().is_some()
    }

    /// Base Replies of version 2 may be so long: what the peer's Receives hold
    /// ([`PeerCharacteristics::receive_size`](crate::characteristics::PeerCharacteristics::receive_size)), and this end's Sends.
    /// 4096 octets before.
    pub fn set_threshold(&self, responder: &mut Responder, octets: u32) {
        responder.version2_threshold = octets;
    }

    /// The connection is gone: call this before the Responder's own.
    pub fn handle_disconnect(&mut self) {
        self.sender.handle_disconnect();
        self.receiver.handle_disconnect();
        self.open = None;
    }

    /// Takes in a message of version 2. `lead` is the first transmission of the Call that is incomplete, which the driver keeps.
    ///
    /// The second value is an XMTERR to send first: the message came into the midst of a Call's transmissions, of which what was
    /// kept is posted again.
    pub fn handle_receive<'m>(
        &mut self,
        responder: &mut Responder,
        message: &'m [u8],
        lead: Option<&'m [u8]>,
    ) -> (ResponderEvent2<'m>, Option<SmallMessage>) {
        self.handle_divided(responder, message, 0, lead)
    }

    /// As [`Responder2::handle_receive`], of a message of which `behind` octets lie elsewhere: in the targets of its Receive. Header
    /// and Payload stream are in `message`.
    pub fn handle_divided<'m>(
        &mut self,
        responder: &mut Responder,
        message: &'m [u8],
        behind: u32,
        lead: Option<&'m [u8]>,
    ) -> (ResponderEvent2<'m>, Option<SmallMessage>) {
        responder.grant.receive_consumed();
        let (header, rest) = match Header2::parse(message) {
            Ok(parts) => parts,
            Err(refused) => {
                let is_call = refused.answer != Answer2::Drop;
                let broken = if is_call { self.break_off(responder, message) } else { None };
                return (self.answer(responder, message, &refused), broken);
            }
        };
        let is_call = header.direction() == MessageType::Call;
        if !is_call && !header.tells_of_sender() {
            return (ResponderEvent2::Reply, None);
        }
        let parsed = match &header.body {
            Body2::Optional(found) => Some((OptionalOperation::parse(found), found)),
            _ => None,
        };
        let interruption = match (&header.body, &parsed) {
            (Body2::Message(..), _) => Some(Interruption::Procedure(procedure::MSG)),
            (Body2::Long(..), _) => Some(Interruption::Procedure(procedure::NOMSG)),
            // Between the transmissions of a Call, messages of the other direction may come (RTR-X-26).
            _ if !is_call => None,
            (_, Some((Ok(OptionalOperation::Continuation(_)), _))) => None,
            (_, Some((_, found))) => Some(Interruption::Option(found.option)),
            (Body2::Error(_) | Body2::Optional(_), None) => None,
        };
        let broken = interruption.and_then(|found| self.receiver.handle_other(header.xid, found));
        let broken = broken.map(|error| self.refuse_open(responder, &error));
        let event = match parsed {
            None => self.receive_base(responder, message, &header, rest),
            Some((Err(refused), _)) => self.answer(responder, message, &refused),
            Some((Ok(operation), found)) => {
                // Of a group that begins, what is kept of another says nothing.
                let lead = match operation {
                    OptionalOperation::Request(_) => message,
                    _ => lead.unwrap_or(message),
                };
                let header_len = (message.len() - rest.len()) as u32;
                self.receive_operation(responder, operation, found, (rest, header_len, behind), lead)
            }
        };
        (event, broken)
    }

    /// A message of another version came, which is answered like a Call. If it interrupts a group, the group is refused with the
    /// XMTERR that is returned: the driver sends it first, and posts the Receives that it kept again.
    pub fn break_off(&mut self, responder: &mut Responder, message: &[u8]) -> Option<SmallMessage> {
        let (fixed, _) =
            Fixed::parse(message).ok().filter(|(fixed, _)| fixed.procedure != procedure::ERROR)?;
        let broken = self.receiver.handle_other(fixed.xid, Interruption::Procedure(fixed.procedure))?;
        Some(self.refuse_open(responder, &broken))
    }

    fn receive_base<'m>(
        &mut self,
        responder: &mut Responder,
        message: &'m [u8],
        header: &Header2<'m>,
        rest: &'m [u8],
    ) -> ResponderEvent2<'m> {
        if let Err(refused) = header.check(rest) {
            return self.answer(responder, message, &refused);
        }
        let (lists, is_long) = match header.body {
            Body2::Message(_, lists) => (lists, false),
            Body2::Long(_, lists) => (lists, true),
            Body2::Error(_) | Body2::Optional(_) => return ResponderEvent2::Reply,
        };
        let inline_len = (!is_long).then_some(rest.len() as u32);
        let segments = lists.write_list().chain(lists.reply_chunk()).map(|chunk| chunk.segment_count());
        let count = lists.read_list().len() + segments.sum::<usize>();
        let reads = reads::check(lists.read_list(), inline_len, &responder.limits);
        if let Err(reads::ChunkError::Length { len, limit }) = reads {
            self.refused_len = Some((len, limit));
        }
        let has_room = count <= responder.limits.segments as usize
            && lists.write_chunk_count() <= responder.limits.write_chunks as usize
            && reads.is_ok();
        if !has_room {
            return Self::bad_header(responder, header.xid);
        }
        match responder.start(header.xid, header.credits) {
            Err(refusal) => Self::unstarted(refusal),
            Ok(id) => {
                responder.slots[id.index()].lists = Lists::Version2 { more_credits: 0 };
                ResponderEvent2::Call(responder.call(id, message).expect("it was taken in just now"))
            }
        }
    }

    fn receive_operation<'m>(
        &mut self,
        responder: &mut Responder,
        operation: OptionalOperation<'m>,
        found: &OptionMessage<'m>,
        (rest, header_len, behind): (&'m [u8], u32, u32),
        lead: &'m [u8],
    ) -> ResponderEvent2<'m> {
        let (xid, room) = (found.xid, rest.len() as u32 + behind);
        let transmitted = match operation {
            OptionalOperation::Request(request) => {
                if found.check_start(rest).is_err() {
                    return Self::bad_header(responder, xid);
                }
                let id = match responder.start(xid, found.credits) {
                    Ok(id) => id,
                    Err(refusal) => return Self::unstarted(refusal),
                };
                responder.slots[id.index()].lists = Lists::Version2 { more_credits: 0 };
                self.open = Some(id);
                self.map.begin();
                let RequestTransmission { count, payload_len, .. } = request;
                self.receiver.handle_lead(&Lead { xid, count, payload_len }, self.request_limit, room)
            }
            OptionalOperation::Continuation(next) => {
                let transmitted = self.receiver.handle_continuation(xid, &next, room);
                if matches!(transmitted, Transmitted::Part(_)) && !self.take_credit(responder) {
                    return ResponderEvent2::Close(ResponderMisuse::TooManyCalls {
                        granted: responder.grant.ceiling(),
                    });
                }
                transmitted
            }
            OptionalOperation::Error(error) => {
                return match self.sender.handle_error(&error) {
                    SendingFault::Stopped { xid, .. } | SendingFault::Sent { xid } => {
                        ResponderEvent2::ReplyRefused { xid }
                    }
                    SendingFault::OtherDirection => ResponderEvent2::Dropped(DroppedCall::NotACall),
                };
            }
            OptionalOperation::Initial(_) | OptionalOperation::Update(_) => {
                return ResponderEvent2::Characteristics(operation);
            }
            OptionalOperation::Ask(asked) => return Self::reject_all(responder, xid, &asked),
            OptionalOperation::Response(_) | OptionalOperation::Answer(_) => return ResponderEvent2::Reply,
        };
        let part = match transmitted {
            Transmitted::Part(part) => part,
            Transmitted::Fault(error) => return ResponderEvent2::Answer(self.refuse_open(responder, &error)),
            Transmitted::Dropped => return ResponderEvent2::Rest,
        };
        self.map.record(header_len, part.len, header_len + room);
        if !part.is_last {
            return ResponderEvent2::Part { part, header_len };
        }
        let Some(id) = self.open.take() else { return ResponderEvent2::Rest };
        let checked = self.check(responder, lead);
        match checked {
            Ok(()) => ResponderEvent2::Whole { id, part, header_len },
            Err(PlacementError::Fault(fault)) => {
                self.open = Some(id);
                let error = self.receiver.fault_of_lead(xid, fault);
                ResponderEvent2::Answer(self.refuse_open(responder, &error))
            }
            Err(PlacementError::Displacement(_)) => {
                responder.discard(id);
                Self::bad_header(responder, xid)
            }
        }
    }

    /// Checks the items and directions of a Call that is whole.
    fn check(&mut self, responder: &Responder, lead: &[u8]) -> Result<(), PlacementError> {
        let items = Self::items(lead);
        self.map.check(&items)?;
        // Bounded as chunks are (8166-8.1-e).
        let limits = &responder.limits;
        let (mut segments, mut chunks, mut pulled) = (0, 0, 0_u64);
        for item in items.iter() {
            let ItemPlace::Explicit(list) = item.place else { continue };
            let len: u64 = list.iter().map(|segment| u64::from(segment.length)).sum();
            (segments, chunks, pulled) = (segments + list.len(), chunks + 1, pulled + len);
            let is_right = len == u64::from(item.len) || len == padded(item.len);
            let measures = [(len, limits.chunk_len), (pulled, limits.pull_len)];
            let too_long = measures.into_iter().find(|(len, limit)| *len > u64::from(*limit));
            if !is_right || too_long.is_some() {
                self.refused_len = too_long.filter(|_| is_right);
                return Err(PlacementError::Displacement(item.displacement));
            }
        }
        let (mut directions, mut directed) = (0, 0);
        for direction in Self::directions(lead).iter().flat_map(|set| set.items.iter()) {
            (directions, directed) = (directions + 1, directed + direction.place.segments().len());
        }
        let has_room = segments + directed <= SEGMENTS_MAX.min(limits.segments as usize)
            && chunks <= limits.read_chunks
            && directions <= DIRECTIONS_MAX;
        if has_room { Ok(()) } else { Err(PlacementError::Displacement(0)) }
    }

    /// Returns the items of a Call's arguments, from its first transmission.
    #[must_use]
    pub fn items(lead: &[u8]) -> Elements<'_, PlacedItem<'_>> {
        request(lead).map_or(Elements::EMPTY, |request| request.items)
    }

    /// Returns where a Call's results are to go, from its first transmission.
    #[must_use]
    pub fn directions(lead: &[u8]) -> Elements<'_, DirectionSet<'_>> {
        request(lead).map_or(Elements::EMPTY, |request| request.directions)
    }

    /// Takes the credit of another transmission.
    fn take_credit(&self, responder: &mut Responder) -> bool {
        let Some(id) = self.open else { return true };
        let Lists::Version2 { more_credits } = &mut responder.slots[id.index()].lists else { return true };
        let is_there = responder.grant.start();
        *more_credits += u32::from(is_there);
        is_there
    }

    /// Answers the Call that is incomplete with an XMTERR: its credits come back with that (RTR-X-8).
    fn refuse_open(
        &mut self,
        responder: &mut Responder,
        error: &stag_wire::rpcrdma2::TransmissionError,
    ) -> SmallMessage {
        let credits = responder.grant.renew(self.open.is_none());
        if let Some(id) = self.open.take() {
            responder.discard(id);
        }
        SmallMessage::transmission_error(error, credits)
    }

    /// What a message that is refused as a whole is answered with.
    fn answer<'m>(
        &self,
        responder: &mut Responder,
        message: &[u8],
        refused: &Refused2,
    ) -> ResponderEvent2<'m> {
        let Ok((fixed, _)) = Fixed::parse(message) else {
            return ResponderEvent2::Dropped(DroppedCall::Version2(refused.error));
        };
        let code = match refused.answer {
            Answer2::Drop => return ResponderEvent2::Dropped(DroppedCall::Version2(refused.error)),
            Answer2::ErrVers => ErrorCode2::Vers { low: 1, high: VERSION },
            Answer2::BadHeader => ErrorCode2::BadHeader,
            Answer2::InvalidOption => ErrorCode2::InvalidOption,
        };
        let credits = responder.grant.renew(true);
        ResponderEvent2::Answer(SmallMessage::error(fixed.xid, fixed.version, credits, code))
    }

    fn bad_header<'m>(responder: &mut Responder, xid: u32) -> ResponderEvent2<'m> {
        let credits = responder.grant.renew(true);
        ResponderEvent2::Answer(SmallMessage::error(xid, VERSION, credits, ErrorCode2::BadHeader))
    }

    fn unstarted<'m>(refusal: Refusal) -> ResponderEvent2<'m> {
        match refusal {
            Refusal::Close(misuse) => ResponderEvent2::Close(misuse),
            Refusal::Drop(dropped) => ResponderEvent2::Dropped(dropped),
            Refusal::Header(error) => ResponderEvent2::Dropped(DroppedCall::Header(error)),
            Refusal::Chunks(_) => ResponderEvent2::Dropped(DroppedCall::NotACall),
        }
    }

    /// Answers a REQXCH: nothing of ours changes (XC-d).
    fn reject_all<'m>(
        responder: &mut Responder,
        xid: u32,
        asked: &CharacteristicRequest<'_>,
    ) -> ResponderEvent2<'m> {
        let count = asked.wanted.len();
        let credits = responder.grant.renew(true);
        let words = count.div_ceil(32);
        if words > SET_WORDS {
            let code = ErrorCode2::InvalidOption;
            return ResponderEvent2::Answer(SmallMessage::error(xid, VERSION, credits, code));
        }
        let mut rejected = [u32::MAX; SET_WORDS];
        if !count.is_multiple_of(32) {
            rejected[words - 1] = (1 << (count % 32)) - 1;
        }
        let none = PositionSet(Elements::EMPTY);
        let rejected = PositionSet(Elements::new(&rejected[..words]));
        let response = CharacteristicResponse { done: none, rejected, pending: none };
        let operation = OptionalOperation::Answer(response);
        ResponderEvent2::Answer(SmallMessage::of(&operation, MessageType::Reply, xid, credits))
    }

    /// Checks, before a Call is executed, that a Reply with a Payload stream of `payload_len` octets and without eligible results
    /// can be sent at all. `message` is the Call's first, `layout` the Requester's Receives.
    ///
    /// # Errors
    ///
    /// It cannot: [`Responder::refuse`] answers the Call.
    pub fn check_room(
        &mut self,
        responder: &Responder,
        id: ResponderCallId,
        message: &[u8],
        layout: &ReceiveLayout,
        payload_len: u32,
    ) -> Result<(), ReplyError> {
        let is_group = request(message).is_some();
        if !is_group || Self::directions(message).is_empty() {
            let planned = responder.plan_reply(id, message, &[], payload_len);
            if planned.is_ok() || !is_group {
                return planned.map(drop);
            }
        }
        let reply = GroupReply { results: &[], stream_len: payload_len, layout };
        self.plan_group(responder, id, message, &reply).map(drop)
    }

    /// Plans a Reply as a group, for the Requester's Receives. `lead` is the Call's first transmission. Nothing
    /// is written before this said that all fits (8267-3-b).
    ///
    /// # Errors
    ///
    /// The Call is over, or the Reply fits nowhere: [`Responder::refuse`] answers it.
    pub fn plan_group(
        &mut self,
        responder: &Responder,
        id: ResponderCallId,
        lead: &[u8],
        reply: &GroupReply<'_>,
    ) -> Result<GroupPlan, ReplyError> {
        let _ = responder.slot(id).ok_or(ReplyError::Stale)?;
        let request = request(lead).ok_or(ReplyError::Stale)?;
        let limit = request.response_receives.saturating_add(1).min(self.response_limit);
        // With as much in targets as may be; if that does not fit, with nothing there.
        let mut error = ReplyError::NoReplyChunk;
        for targets in [limit, 0] {
            let placed = PlacedResults::new(&request.directions, reply.results, reply.layout, targets);
            let Ok(placed) = placed else {
                error = ReplyError::WriteChunk { item: 0 };
                continue;
            };
            let mut plan = GroupPlan {
                placed,
                payload_len: placed.payload_len(reply.results, reply.stream_len),
                lens: [0; DIRECTIONS_MAX],
                lens_count: 0,
                lead_len: 0,
                limit,
            };
            plan.lens_count = placed.target_lens(reply.results, &mut plan.lens);
            let mut items = [NO_ITEM; DIRECTIONS_MAX];
            let count = placed.items(
                &request.directions,
                reply.results,
                reply.layout,
                &mut self.segments,
                &mut items,
            );
            // How long the header is depends on how many targets it names, and in odd Receives these depend on that.
            for _ in 0..HEADERS_MAX {
                plan.lead_len = response(&items[..count], 0, 0).header_len() as u32;
                match plan.try_cut(reply.layout).map(|cut| recount(&mut items[..count], &cut)) {
                    Ok(Some(false)) => return Ok(plan),
                    Ok(Some(true)) => {}
                    Ok(None) | Err(_) => break,
                }
            }
        }
        Err(error)
    }

    /// Writes the header of the first transmission of a Reply, and ends the Call. The others follow with
    /// [`Responder2::emit_continuation`], with nothing between them.
    ///
    /// The arguments are those of [`Responder2::plan_group`].
    ///
    /// # Errors
    ///
    /// [`ReplyError::Stale`]: nothing may be sent.
    ///
    /// # Panics
    ///
    /// When `out` is too short, or another group is being sent.
    pub fn emit_lead(
        &mut self,
        responder: &mut Responder,
        id: ResponderCallId,
        lead: &[u8],
        reply: &GroupReply<'_>,
        plan: &GroupPlan,
        out: &mut [u8],
    ) -> Result<usize, ReplyError> {
        let xid = responder.slot(id).ok_or(ReplyError::Stale)?.xid;
        let request = request(lead).ok_or(ReplyError::Stale)?;
        let cut = plan.cut(reply.layout);
        let mut items = [NO_ITEM; DIRECTIONS_MAX];
        let segments = &mut self.segments;
        let count = plan.placed.items(&request.directions, reply.results, reply.layout, segments, &mut items);
        let mut list = None;
        if !is_as_named(&items[..count], &cut) {
            name_targets(&mut items[..count], &cut, list.insert([0; TARGETS_MAX as usize]));
        }
        let operation =
            OptionalOperation::Response(response(&items[..count], cut.count(), cut.first_payload_len()));
        let credits = responder.grant.renew(false);
        let emitted = operation.emit(out, MessageType::Reply, xid, credits);
        let (len, _) = emitted.expect("`out` holds the header, as planned");
        self.sender.begin(xid, cut.count());
        let _ = self.sender.next_transmission();
        let _ = responder.release(id);
        Ok(len)
    }

    /// Writes the header of another transmission of the Reply that is being sent. `None`: the Requester refused it meanwhile.
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
        responder: &Responder,
        sent: &Transmission,
        out: &mut [u8],
    ) -> Result<Option<usize>, Overflow> {
        let Some(xid) = self.sender.open() else { return Ok(None) };
        let found =
            Continuation { number: sent.number, lead_option: option::XMTRESP, payload_len: sent.payload_len };
        let credits = responder.grant.granted();
        let (len, _) = OptionalOperation::Continuation(found).emit(out, MessageType::Reply, xid, credits)?;
        assert!(
            self.sender.next_transmission() == Some(sent.number),
            "transmissions are sent in their order"
        );
        Ok(Some(len))
    }
}

/// Headers that are tried for a Reply whose targets depend on the header.
const HEADERS_MAX: usize = 4;

/// The items in targets, in their order.
fn in_targets<'i, 's>(items: &'i mut [PlacedItem<'s>]) -> impl Iterator<Item = &'i mut PlacedItem<'s>> {
    items.iter_mut().filter(|item| matches!(item.place, ItemPlace::Buffers { .. }))
}

/// Gives items in targets as many targets as the cut has for them. `Some(true)`: some had others. `None`: more than can be named.
fn recount(items: &mut [PlacedItem<'_>], cut: &MessageCut<'_>) -> Option<bool> {
    let (mut is_changed, mut total) = (false, 0);
    for (nth, item) in in_targets(items).enumerate() {
        let ItemPlace::Buffers { numbers, .. } = item.place else { continue };
        let count = cut.targets_of(nth).count();
        if count != numbers.len() {
            let count = u32::try_from(count).ok().filter(|count| *count <= TARGETS_MAX)?;
            item.place = ItemPlace::Buffers { offset: 0, numbers: target_numbers(&(0..count)) };
            is_changed = true;
        }
        total += count;
    }
    (total <= TARGETS_MAX as usize).then_some(is_changed)
}

/// Whether items in targets lie where they are said to be.
fn is_as_named(items: &[PlacedItem<'_>], cut: &MessageCut<'_>) -> bool {
    let named = items.iter().filter_map(|item| match item.place {
        ItemPlace::Buffers { offset, numbers } => Some((offset, numbers)),
        _ => None,
    });
    named.enumerate().all(|(nth, (offset, numbers))| {
        offset == cut.offset_of(nth) && numbers.iter().eq(cut.targets_of(nth))
    })
}

/// Says where items in targets lie; their numbers are in `list`, which has room for them, as planned.
#[cold]
fn name_targets<'s>(items: &mut [PlacedItem<'s>], cut: &MessageCut<'_>, list: &'s mut [u32]) {
    let mut left = list;
    for (nth, item) in in_targets(items).enumerate() {
        let count = cut.targets_of(nth).count();
        let (mine, rest) = left.split_at_mut(count);
        mine.iter_mut().zip(cut.targets_of(nth)).for_each(|(place, number)| *place = number);
        item.place = ItemPlace::Buffers { offset: cut.offset_of(nth), numbers: Elements::new(mine) };
        left = rest;
    }
}

const NO_ITEM: PlacedItem<'static> = PlacedItem { displacement: 0, len: 0, place: ItemPlace::NoItem };

/// The first transmission of a Call.
fn request(lead: &[u8]) -> Option<RequestTransmission<'_>> {
    match operation(lead) {
        Some(OptionalOperation::Request(request)) => Some(request),
        _ => None,
    }
}

fn response<'a>(items: &'a [PlacedItem<'a>], count: u32, payload_len: u32) -> ResponseTransmission<'a> {
    ResponseTransmission { items: Elements::new(items), count, payload_len }
}

impl Responder {
    /// The lists and the Payload stream of a Call of version 2, which was checked when it came. Those of a group's first
    /// transmission have no chunks.
    pub(super) fn version2_parts(message: &[u8]) -> Option<(CallPayload<'_>, HeaderLists<'_>)> {
        let (header, rest) = Header2::parse(message).ok()?;
        match header.body {
            Body2::Message(_, lists) => Some((CallPayload::Inline(rest), lists)),
            Body2::Long(_, lists) => {
                // Checked: within the limit of a chunk.
                let len = reads::len_at(lists.read_list(), 0) as u32;
                Some((CallPayload::Long(len), lists))
            }
            Body2::Optional(found) => {
                let len = OptionalOperation::parse(&found).ok()?.payload_len()?;
                // The driver has the Payload stream of a group: what is here is its start.
                let start = rest.get(..len as usize).unwrap_or(rest);
                Some((CallPayload::Inline(start), HeaderLists::default()))
            }
            Body2::Error(_) => None,
        }
    }

    /// As `emit_repeated`, in version 2.
    #[inline(never)]
    pub(super) fn emit_version2(
        &mut self,
        (xid, message): (u32, &[u8]),
        items: &[u32],
        form: &ReplyForm,
        out: &mut [u8],
    ) -> Result<usize, Overflow> {
        let (_, lists) = Responder::version2_parts(message).ok_or(Overflow)?;
        let kind = if form.long { MessageKind::Nomsg } else { MessageKind::Msg };
        let emitter = start(out, kind, MessageType::Reply, xid, self.grant.renew(false))?;
        echo_lists(emitter, &lists, items, form)
    }

    /// What a Call of version 2 is seen as.
    pub(super) fn version2_call<'m>(
        id: ResponderCallId,
        xid: u32,
        message: &'m [u8],
    ) -> Option<ReceivedCall<'m>> {
        let (payload, lists) = Responder::version2_parts(message)?;
        Some(ReceivedCall { id, xid, payload, chunks: Chunks::Version2(lists) })
    }
}
