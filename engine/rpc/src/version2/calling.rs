//! The client half of a connection of version 2: its Receives, and Replies as they arrive.

use std::collections::VecDeque;

use smallvec::SmallVec;
use stag_fabric::{Exposed, Handle, PostError, Provider, SendRequest};
use stag_memory::Buf;
use stag_proto::characteristics::PeerCharacteristics;
use stag_proto::layout::{ReceiveLayout, TargetRun};
use stag_proto::parameters::Parameters;
use stag_proto::placement::ItemSpan;
use stag_proto::requester::{
    self, CallFailure, ExposedMemory, Requester, Requester2, RequesterEvent2, RequesterReceived,
};
use stag_proto::responder::is_version2;
use stag_proto::version::{NextMessage, ProtocolVersion, VersionProbe};
use stag_proto::version2::{OwnCharacteristics, SmallMessage};
use stag_wire::rpc::leading_xid;
use stag_wire::rpcrdma2::{ErrorCode2, ItemPlace, OptionalOperation, VERSION};

use crate::ConnectionId;
use crate::client::calling::Calling;
use crate::client::slot::{Ending, Slot, Stage, Written, results_start};
use crate::client::taking::{ReplyMessage, ReplyOutcome};
use crate::client::{CLIENT_SEGMENTS_MAX, CallError};
use crate::config::EngineConfig;
use crate::few::Few;
use crate::state::{Core, EngineState};
use crate::version2::receives::{ArrivedMessage, DividedReceives, KeptPart, take_message};
use crate::version2::{INITIAL_LEN_MAX, PAYLOAD_LEN_MAX, UNCREDITED_RECEIVES, learn};
use crate::version2::{PlacementLimits, operation};

/// What the client half of a connection has beside that of version 1.
#[derive(Debug)]
pub(crate) struct ClientVersion2 {
    pub(crate) requester2: Requester2,
    pub(crate) own: OwnCharacteristics,
    pub(crate) peer: PeerCharacteristics,
    /// How the peer's Receives are divided.
    pub(crate) peer_layout: ReceiveLayout,
    /// The targets in that, and in this end's own Receives.
    pub(crate) peer_run: Option<TargetRun>,
    pub(crate) own_run: Option<TargetRun>,
    /// Which data goes in messages.
    pub(crate) placement: PlacementLimits,
    pub(crate) probe: VersionProbe,
    /// The peer announced version 2: it is to tell its characteristics before Calls go.
    pub(crate) is_announced: bool,
    pub(crate) has_characteristics: bool,
    /// The peer has the characteristics of this end. Without them it does not know the targets that results
    /// may go to.
    has_told: bool,
    /// Its user knows that it is established.
    pub(crate) is_ready: bool,
    /// What version 1 would speak with, and how long a base Reply may be.
    parameters: Parameters,
    receives: DividedReceives,
    receives_max: u32,
    /// Receives that Replies of Calls under way may take.
    pub(crate) promised: u32,
    /// The transmissions of the Reply that is incomplete.
    parts: Vec<KeptPart>,
    /// Sends of a group whose first ones have left.
    pub(crate) outbox: VecDeque<Buf>,
    /// Where the Payload stream of a Call's Reply is put together, if it may come in several Sends.
    pub(crate) reply_bufs: Box<[Option<Buf>]>,
}

/// How a Reply ended a Call, without what it borrowed from the message.
enum Answered {
    /// What a base message says.
    Base(ReplyOutcome),
    /// A transmission is kept.
    Part {
        is_first: bool,
        header_len: u32,
        payload_len: u32,
    },
    Whole {
        is_first: bool,
        call: requester::RequesterCallId,
        memory: ExposedMemory,
        header_len: u32,
        payload_len: u32,
    },
    Fault(SmallMessage),
    /// A wish that is not granted (XC-a).
    Refused(SmallMessage),
    Told,
}

impl ClientVersion2 {
    pub(crate) fn new(
        config: &EngineConfig,
        own: OwnCharacteristics,
        parameters: Parameters,
        is_announced: bool,
        placement: PlacementLimits,
    ) -> ClientVersion2 {
        let receives_max = config.credits_max + UNCREDITED_RECEIVES + own.response_receives;
        ClientVersion2 {
            is_announced,
            ..ClientVersion2::with(config.credits_max, receives_max, own, parameters, placement)
        }
    }

    /// For reverse Calls on a connection whose client speaks version 2. They go by base messages: what the client takes beside
    /// these is for the other half.
    pub(crate) fn reverse(
        config: &EngineConfig,
        own: OwnCharacteristics,
        parameters: Parameters,
    ) -> ClientVersion2 {
        let own = OwnCharacteristics { response_receives: 0, ..own };
        let (credits, receives_max) = (config.reverse_credits, config.reverse_receives());
        let mut reverse =
            ClientVersion2::with(credits, receives_max, own, parameters, PlacementLimits::NOTHING);
        reverse.probe.handle_sent();
        reverse.probe.handle_answer();
        reverse.is_ready = true;
        reverse
    }

    fn with(
        credits: u32,
        receives_max: u32,
        own: OwnCharacteristics,
        parameters: Parameters,
        placement: PlacementLimits,
    ) -> ClientVersion2 {
        let slots = credits * 2;
        let peer = PeerCharacteristics::default();
        ClientVersion2 {
            requester2: Requester2::new(slots, &own, PAYLOAD_LEN_MAX),
            own,
            peer,
            peer_layout: peer.layout(own.send_len_max),
            peer_run: None,
            own_run: own.layout.run(),
            placement,
            probe: VersionProbe::new(true),
            is_announced: false,
            has_characteristics: false,
            has_told: false,
            is_ready: false,
            parameters,
            receives: DividedReceives::new(own.layout, receives_max),
            receives_max,
            promised: 0,
            parts: Vec::with_capacity(own.response_receives as usize + 1),
            outbox: VecDeque::new(),
            reply_bufs: (0..slots).map(|_| None).collect(),
        }
    }

    /// Octets of heap of one for reverse Calls.
    pub(crate) fn reverse_footprint(config: &EngineConfig) -> usize {
        let (slots, receives) = (config.reverse_credits * 2, config.reverse_receives());
        let targets = super::targets(config, config.receive_targets);
        size_of::<ClientVersion2>()
            + Requester2::footprint(slots, targets)
            + slots as usize * size_of::<Option<Buf>>()
            + size_of::<KeptPart>()
            + DividedReceives::footprint(receives, targets)
    }

    /// Whether version 2 was agreed on.
    pub(crate) fn is_agreed(&self) -> bool {
        self.probe.next_message() == NextMessage::Any(ProtocolVersion::Two)
    }

    /// Whether Calls may go as groups: each end knows what the other one receives.
    #[inline]
    pub(crate) fn takes_groups(&self) -> bool {
        self.has_told && self.peer.takes_request_transmissions()
    }

    /// Lets go of what is kept of an incomplete Reply: its Receives are promised again.
    fn drop_parts(&mut self) {
        self.promised += self.parts.len() as u32;
        for part in self.parts.drain(..) {
            self.receives.reuse(part.message.targets);
        }
    }

    /// Lets go of what is kept if no Reply is incomplete, or another one begins: it is over.
    fn drop_closed_parts(&mut self, begins_another: bool) {
        if begins_another || !self.requester2.has_open_group() {
            for part in self.parts.drain(..) {
                self.receives.reuse(part.message.targets);
            }
        }
    }

    /// Octets of a base Call at most, header included.
    pub(crate) fn call_len_max(&self) -> u32 {
        self.peer.receive_size().min(self.own.send_len_max)
    }

    /// Whether a Reply with a Payload stream of `reply_payload_len_max` octets fits a base message without a
    /// Reply chunk.
    #[inline]
    pub(crate) fn fits_base(&self, reply_payload_len_max: u32) -> bool {
        let header_len = stag_wire::rpcrdma2::HEADER_LEN_MIN as u32;
        reply_payload_len_max.saturating_add(header_len) <= self.parameters.reply_threshold
    }

    /// What this end tells of itself as far as base Replies go: they are no longer than was agreed on for version 1.
    pub(crate) fn own_for_base(&self) -> OwnCharacteristics {
        OwnCharacteristics { layout: ReceiveLayout::plain(self.parameters.reply_threshold), ..self.own }
    }

    /// Posts Receives until there are as many as may be needed. `posted` is the number of those that are posted.
    pub(crate) fn post_receives<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        posted: &mut u32,
    ) {
        while *posted < self.receives_max {
            let is_needed = *posted <= self.promised + UNCREDITED_RECEIVES;
            if !self.receives.post(core, id, is_needed) {
                return;
            }
            *posted += 1;
        }
    }

    /// Puts the results of a Reply that is whole where its Call wants them, and its RPC message into the slot. Returns where that
    /// starts there. `None`: the results have no room, or there is no memory for the message.
    fn take_whole_reply<P>(
        &mut self,
        core: &mut Core<P>,
        call: requester::RequesterCallId,
        slot: &mut Slot,
    ) -> Option<u32> {
        let ClientVersion2 { requester2, parts, receives, reply_bufs, .. } = self;
        (slot.chunk_lens, slot.displacement) = ([0; CLIENT_SEGMENTS_MAX], None);
        core.statistics.groups_received += 1;
        core.statistics.continuations += parts.len() as u64 - 1;
        // One item for each direction, and a Call of ours has one at most.
        let item = Requester2::items(&parts.first()?.message.octets).iter().next();
        let mut spans: SmallVec<[ItemSpan; 16]> = SmallVec::new();
        let mut has_room = true;
        if let Some(item) = item {
            spans.extend(requester2.map().spans(&item));
            let is_there = matches!(item.place, ItemPlace::Buffers { .. } | ItemPlace::Explicit(_));
            slot.chunk_lens[0] = if is_there { item.len } else { 0 };
            slot.displacement = is_there.then_some(item.displacement);
            core.statistics.items_placed += u64::from(matches!(item.place, ItemPlace::Buffers { .. }));
            has_room = item.len <= slot.written.iter().map(|part| part.offered).sum();
        }
        if has_room {
            place_results(core, parts, &spans, &mut slot.written);
        }
        let start = match &mut parts[..] {
            [part] if part.payload().is_some() => parts.pop().map(|part| {
                let mut message = part.message.octets;
                message.set_len((part.header_len + part.payload_len) as usize);
                receives.reuse(part.message.targets);
                slot.message = Some(message);
                part.header_len
            }),
            _ => {
                let len: usize = parts.iter().map(|part| part.payload_len as usize).sum();
                let kept = reply_bufs[call.index()].take().filter(|buf| buf.capacity() >= len);
                kept.or_else(|| take_message(core, len)).map(|mut message| {
                    message.set_len(len);
                    let mut at = 0;
                    for part in parts.iter() {
                        let end = at + part.payload_len as usize;
                        part.copy_payload(&mut message[at..end]);
                        at = end;
                    }
                    core.statistics.copied_bytes += len as u64;
                    slot.message = Some(message);
                    0
                })
            }
        };
        reply_bufs[call.index()] = None;
        for part in parts.drain(..) {
            receives.reuse(part.message.targets);
        }
        start.filter(|_| has_room)
    }

    /// Sends a message, or leaves it in the outbox until there is room: then it is one of the `unsent`. `false`: there is no memory
    /// for it.
    fn send<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        octets: &[u8],
        unsent: &mut u32,
    ) -> bool {
        let Some(mut buf) = core.pools.messages.take() else { return false };
        buf.set_len(octets.len());
        buf.copy_from_slice(octets);
        // Nothing goes between the Sends of a group.
        if !self.outbox.is_empty() {
            self.outbox.push_back(buf);
            return true;
        }
        let request = SendRequest { id: 0, buf, invalidate: None, signaled: false };
        if let Err(refused) = core.post_send(id, request)
            && refused.error == PostError::Full
        {
            self.outbox.push_back(refused.request.buf);
            *unsent += 1;
            core.ready.touch_late(id);
        }
        true
    }

    /// Takes back the Receives that were promised to a Call. The Call was not sent, and will be abandoned.
    pub(crate) fn forget_unsent(&mut self, requester: &mut Requester, call: requester::RequesterCallId) {
        self.requester2.handle_over(requester, call);
        let unused = 1 + self.requester2.take_unused();
        self.promised = self.promised.saturating_sub(unused);
    }
}

/// Prepares the probe for version 2: no Call leaves before its answer.
pub(crate) fn begin_probe(calling: &mut Calling, version2: Box<ClientVersion2>) {
    // No Call fits these thresholds, so all go through `make_planned`, which knows version 2.
    let none = Parameters { call_threshold: 0, reply_threshold: 0, ..version2.parameters };
    calling.requester.set_parameters(none);
    calling.receives_max = 0;
    calling.version2 = Some(version2);
}

/// The peer speaks version 1 only. The Receives of this connection fit version 1, too.
pub(super) fn fall_back(calling: &mut Calling) {
    let Some(version2) = calling.version2.take() else { return };
    calling.requester.set_parameters(version2.parameters);
    calling.receive_as_version1();
}

/// Takes in a Reply where it arrived. `false`: it is for the general way, and nothing happened.
#[inline(never)]
pub(crate) fn complete_lone(calling: &mut Calling, state: &mut EngineState, octets: &[u8]) -> bool {
    let Some(version2) = calling.version2.as_deref_mut().filter(|version2| version2.is_ready) else {
        return false;
    };
    if state.pools.messages.free_units() == 0 {
        return false;
    }
    let Some(reply) = version2.requester2.peek_lone(&calling.requester, octets) else { return false };
    let call = reply.call;
    let slot = &mut calling.slots[call.index()];
    let data = reply.item.map_or(&[][..], |item| item.data);
    let has_room = match &slot.written[..] {
        [] => data.is_empty(),
        [part] => part.buf.is_some() && data.len() <= part.offered as usize,
        _ => false,
    };
    // The results are copied to a buffer for a message.
    let has_room = has_room && reply.stream.len() <= state.pools.messages.unit_len();
    if !has_room || !matches!(slot.stage(), Stage::Sent) {
        return false;
    }
    version2.requester2.accept_lone(&mut calling.requester, &reply);
    let unused = version2.requester2.take_unused();
    version2.promised = version2.promised.saturating_sub(1 + unused);
    version2.reply_bufs[call.index()] = None;
    calling.heard = state.now;
    state.statistics.replies_received += 1;
    state.statistics.groups_received += u64::from(reply.is_transmission);
    state.statistics.items_placed += u64::from(reply.item.is_some());
    let mut written = Few::new();
    if let Some(Written { chunk, buf: Some(mut buf), .. }) = slot.written.pop() {
        buf.set_len(data.len());
        buf.copy_from_slice(data);
        state.statistics.count_write_chunk(data.len() as u32);
        written = Few::one((chunk, buf));
    }
    let message = &octets[..reply.start as usize + reply.stream.len()];
    let result = match results_start(message, reply.start as usize, call, &mut slot.sealed) {
        Ok(first) => {
            let message = ReplyMessage::Shown(message);
            let results = message.into_results(&state.pools.messages, first, data.len() as u32);
            results.and_then(|results| match reply.item {
                None => Ok(results),
                Some(item) => results.placed(item.displacement, first - reply.start),
            })
        }
        Err(error) => Err(error),
    };
    calling.hand_over(state, call, result, written);
    true
}

/// Takes in a message on a connection that speaks version 2, or was asked whether it does. `Err`: the connection has to end.
pub(crate) fn receive_version2<P: Provider>(
    calling: &mut Calling,
    core: &mut Core<P>,
    id: ConnectionId,
    mut arrived: ArrivedMessage,
    invalidated: Option<Handle>,
    exposed: &mut Option<Exposed>,
) -> Result<(), &'static str> {
    calling.heard = core.now;
    calling.receives_posted -= 1;
    core.statistics.remote_invalidations += u64::from(invalidated.is_some());
    let Some(version2) = &mut calling.version2 else { return Err("a message of another version") };
    if !is_version2(&arrived.octets) {
        version2.receives.reuse(arrived.targets.take());
        return receive_first(calling, core, id, &arrived.octets);
    }
    let is_whole = arrived.put_together(core);
    let ClientVersion2 { requester2, parts, peer, .. } = &mut **version2;
    let lead = parts.first().map(|part| &part.message.octets[..]);
    let message = (&arrived.octets[..], arrived.behind);
    let handle = invalidated.map(|handle| handle.0);
    let (event, broken) = requester2.handle_divided(&mut calling.requester, message, handle, lead);
    let answered = match event {
        // Those are of version 1.
        RequesterEvent2::Base(RequesterReceived::Exposed(_)) => Answered::Base(ReplyOutcome::Dropped),
        RequesterEvent2::Base(received) => {
            match ReplyOutcome::of(received, message.0.len(), &mut calling.slots) {
                // Its Call is over, without its results.
                ReplyOutcome::Reply { call, memory, .. } if !is_whole => {
                    let len = message.0.len() as u32 + arrived.behind;
                    let error = CallError::NoMemory { len };
                    Answered::Base(ReplyOutcome::Failed { call, memory, error })
                }
                // Which Call it is for is not known.
                ReplyOutcome::Dropped if !is_whole => {
                    return Err("it sent a long message, and there is no memory to put it together");
                }
                outcome => Answered::Base(outcome),
            }
        }
        RequesterEvent2::Part { part, header_len } => {
            Answered::Part { is_first: part.number == 0, header_len, payload_len: part.len }
        }
        RequesterEvent2::Whole { call, part, header_len, memory } => {
            let is_first = part.number == 0;
            Answered::Whole { is_first, call, memory, header_len, payload_len: part.len }
        }
        RequesterEvent2::Fault(small) => Answered::Fault(small),
        RequesterEvent2::Characteristics(operation) => {
            learn(peer, &operation);
            Answered::Told
        }
        RequesterEvent2::Rest => Answered::Base(ReplyOutcome::Dropped),
        // Calls are for the other half, or this end takes none (8167-6-a).
        RequesterEvent2::Call => match operation(message.0) {
            Some(OptionalOperation::Ask(_)) => {
                let xid = leading_xid(message.0);
                let credits = calling.requester.window().requested();
                Answered::Refused(SmallMessage::error(xid, VERSION, credits, ErrorCode2::InvalidOption))
            }
            _ => Answered::Base(ReplyOutcome::Dropped),
        },
    };
    let unused = version2.requester2.take_unused();
    version2.promised = version2.promised.saturating_sub(unused);
    if let Some(small) = broken {
        version2.drop_parts();
        version2.send(core, id, small.as_bytes(), &mut calling.unsent);
    }
    take_answered(calling, core, id, answered, arrived, invalidated, exposed)?;
    // Only the Reply to a Call has a handle of the Call to invalidate.
    if exposed.is_some() { Err(calling.misused(invalidated, exposed)) } else { Ok(()) }
}

fn take_answered<P: Provider>(
    calling: &mut Calling,
    core: &mut Core<P>,
    id: ConnectionId,
    answered: Answered,
    mut arrived: ArrivedMessage,
    invalidated: Option<Handle>,
    exposed: &mut Option<Exposed>,
) -> Result<(), &'static str> {
    let Some(version2) = &mut calling.version2 else {
        core.fault(id, "a message of another version");
        return Ok(());
    };
    // A Receive that was promised is used.
    let is_reply = !matches!(
        answered,
        Answered::Base(ReplyOutcome::Dropped | ReplyOutcome::Misused)
            | Answered::Fault(_)
            | Answered::Refused(_)
            | Answered::Told
    );
    version2.promised = version2.promised.saturating_sub(u32::from(is_reply));
    let result = match answered {
        Answered::Base(answer) => {
            version2.receives.reuse(arrived.targets);
            let is_reply = matches!(answer, ReplyOutcome::Reply { .. });
            if !is_reply {
                version2.drop_closed_parts(false);
            }
            if let ReplyOutcome::Failed { error: CallError::TransportVersion { low, high }, .. } = answer
                && !version2.is_agreed()
            {
                version2.probe.handle_err_vers(low, high);
            }
            let taken = calling.take_answer(core, id, answer, arrived.octets, (invalidated, exposed));
            if is_reply { taken.and_then(|()| note_probe_answered(calling, core, id)) } else { taken }
        }
        Answered::Part { is_first, header_len, payload_len } => {
            if is_first {
                version2.drop_closed_parts(true);
            }
            version2.parts.push(KeptPart { message: arrived, header_len, payload_len });
            Ok(())
        }
        Answered::Whole { is_first, call, memory, header_len, payload_len } => {
            if is_first {
                version2.drop_closed_parts(true);
            }
            version2.parts.push(KeptPart { message: arrived, header_len, payload_len });
            let taken = version2.take_whole_reply(core, call, &mut calling.slots[call.index()]);
            let ending = taken.map_or(Ending::Failed(CallError::BadReply), Ending::Inline);
            calling.end_answered(core, call, ending);
            core.statistics.replies_received += 1;
            calling.settle_returned(core, id, (call, memory), (invalidated, exposed));
            Ok(())
        }
        Answered::Fault(small) => {
            version2.receives.reuse(arrived.targets.take());
            version2.drop_parts();
            version2.send(core, id, small.as_bytes(), &mut calling.unsent);
            Ok(())
        }
        Answered::Refused(small) => {
            version2.receives.reuse(arrived.targets.take());
            version2.send(core, id, small.as_bytes(), &mut calling.unsent);
            Ok(())
        }
        Answered::Told => {
            version2.has_characteristics = true;
            version2.peer_layout = version2.peer.layout(version2.own.send_len_max);
            version2.peer_run = version2.peer_layout.run();
            version2.receives.reuse(arrived.targets);
            Ok(())
        }
    };
    calling.post_divided(core, id);
    result
}

/// A message of version 1 came: only the answer to a probe that the peer refuses may be one.
fn receive_first<P: Provider>(
    calling: &mut Calling,
    core: &mut Core<P>,
    id: ConnectionId,
    octets: &[u8],
) -> Result<(), &'static str> {
    let Some(version2) = &mut calling.version2 else {
        core.fault(id, "a message of another version");
        return Ok(());
    };
    if version2.is_agreed() {
        return Err("it answered in another version than it was called in (V2-5.3-a)");
    }
    let RequesterReceived::Failed { call, failure: CallFailure::Version { low, high }, memory } =
        calling.requester.handle_receive(octets, None)
    else {
        return Err("it answered in another version than it was called in (V2-5.3-a)");
    };
    version2.promised = version2.promised.saturating_sub(1);
    version2.probe.handle_err_vers(low, high);
    calling.end_answered(core, call, Ending::Failed(CallError::TransportVersion { low, high }));
    calling.settle(core, id, call, memory);
    Ok(())
}

/// The probe was answered, if this was the answer: tells this end's characteristics.
fn note_probe_answered<P: Provider>(
    calling: &mut Calling,
    core: &mut Core<P>,
    id: ConnectionId,
) -> Result<(), &'static str> {
    let Some(version2) = calling.version2.as_mut().filter(|version2| !version2.is_agreed()) else {
        return Ok(());
    };
    version2.probe.handle_answer();
    let mut out = [0; INITIAL_LEN_MAX];
    let credits = calling.requester.window().requested();
    if let Ok(len) = version2.own.emit_initial(credits, &mut out) {
        version2.has_told = version2.send(core, id, &out[..len], &mut calling.unsent);
    }
    Ok(())
}

/// The connection is gone, and its state of version 2 with it. Call this before the Requester's own.
pub(crate) fn end_version2(calling: &mut Calling) {
    if let Some(mut version2) = calling.version2.take() {
        version2.requester2.handle_disconnect(&mut calling.requester);
        calling.unsent = calling.unsent.saturating_sub(u32::from(!version2.outbox.is_empty()));
        // The server that is found next may not speak version 2 any more.
        calling.receive_as_version1();
    }
}

/// Puts what came in targets into a Call's buffers: as whole pages that change places where that is possible, else by a copy.
fn place_results<P>(core: &mut Core<P>, parts: &mut [KeptPart], spans: &[ItemSpan], written: &mut [Written]) {
    if let ([span], [Written { buf: Some(buf), .. }]) = (spans, &mut written[..])
        && let Some(part) = parts.get_mut(span.transmission as usize)
        && part.message.swap_page(span, buf)
    {
        return;
    }
    let mut places = written.iter_mut().filter_map(|part| Some((part.offered as usize, part.buf.as_mut()?)));
    let (mut place, mut at) = (places.next(), 0);
    for span in spans {
        let Some(part) = parts.get(span.transmission as usize) else { continue };
        let (mut from, mut left) = (span.at as usize, span.len as usize);
        while left > 0 {
            let Some((offered, buf)) = &mut place else { return };
            if at == *offered {
                (place, at) = (places.next(), 0);
                continue;
            }
            let here = left.min(*offered - at);
            buf.set_len(*offered);
            part.message.copy_out(from, &mut buf[at..at + here]);
            core.statistics.copied_bytes += here as u64;
            (from, left, at) = (from + here, left - here, at + here);
        }
    }
}
