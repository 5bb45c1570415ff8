//! The server half of a connection of version 2: its Receives, and Calls as they arrive.

use std::collections::VecDeque;

use smallvec::SmallVec;
use stag_fabric::{Provider, ReceiveTargets};
use stag_memory::Buf;
use stag_proto::characteristics::PeerCharacteristics;
use stag_proto::layout::{ReceiveLayout, TargetRun};
use stag_proto::placement::ItemSpan;
use stag_proto::responder::{RefusedCall, Responder, Responder2, ResponderCallId, ResponderEvent2};
use stag_proto::version2::{OwnCharacteristics, SmallMessage};
use stag_wire::rpc::leading_xid;
use stag_wire::rpcrdma;
use stag_wire::rpcrdma2::{ErrorCode2, ItemPlace, VERSION};
use stag_wire::xdr::Reduced;

use crate::ConnectionId;
use crate::client::CloseReason;
use crate::config::EngineConfig;
use crate::fault::fault;
use crate::server::governor::FIRST_RECEIVES;
use crate::server::pending::Begun;
use crate::server::pulling::READ_CHUNKS_MAX;
use crate::server::serving::Serving;
use crate::server::serving::answering::warn_of_length;
use crate::server::spares::Reused;
use crate::server::transit;
use crate::service::Services;
use crate::service::call::{Placed, PlacedPieces};
use crate::state::{Core, Link, Pass};
use crate::version2::answering::UnsentReply;
use crate::version2::explicit::{base_message, is_explicit};
use crate::version2::receives::{ArrivedMessage, DividedReceives, KeptPart, gather, take_item};
use crate::version2::{INITIAL_LEN_MAX, PAYLOAD_LEN_MAX, learn};

/// In the list of slots that wait: there is no memory for the Receives that the connection needs.
pub(crate) const RECEIVES_OWED: u32 = u32::MAX;

/// What the server half of a connection has beside that of version 1.
#[derive(Debug)]
pub(crate) struct ServerVersion2 {
    pub(crate) responder2: Responder2,
    pub(crate) own: OwnCharacteristics,
    pub(crate) peer: PeerCharacteristics,
    /// How the peer's Receives are divided.
    pub(crate) peer_layout: ReceiveLayout,
    /// The targets in that.
    pub(crate) peer_run: Option<TargetRun>,
    receives: DividedReceives,
    /// The transmissions of the Call that is incomplete.
    parts: Vec<KeptPart>,
    /// This end's characteristics were told.
    pub(crate) has_told: bool,
    /// What lies behind the heads of stalled messages, in their order.
    stalled: VecDeque<(Option<Box<ReceiveTargets>>, u32)>,
    /// Replies that wait for memory to be sent from.
    pub(crate) unsent: Vec<UnsentReply>,
}

/// Whether a message is of version 1, or too short to say. One of any other version than these two is refused with both of them
/// (V2-5.2-a).
fn is_first(message: &[u8]) -> bool {
    message.get(4..8).is_none_or(|version| version == rpcrdma::VERSION.to_be_bytes())
}

/// What a message meant, without what it borrowed.
enum Meant {
    Call(ResponderCallId),
    Part { is_first: bool, header_len: u32, payload_len: u32 },
    Whole { is_first: bool, id: ResponderCallId, header_len: u32, payload_len: u32 },
    Answer(SmallMessage),
    Told,
    Nothing,
    Close,
}

impl ServerVersion2 {
    /// `receive_size`: octets of the peer's Receives until it tells more.
    pub(crate) fn new(config: &EngineConfig, own: OwnCharacteristics, receive_size: u32) -> ServerVersion2 {
        let peer = PeerCharacteristics::new(receive_size);
        ServerVersion2 {
            responder2: Responder2::new(&own, PAYLOAD_LEN_MAX.min(config.chunk_len_max)),
            own,
            peer,
            peer_layout: peer.layout(own.send_len_max),
            peer_run: None,
            receives: DividedReceives::new(own.layout, config.capacity().receives),
            parts: Vec::with_capacity(own.request_limit as usize),
            has_told: false,
            stalled: VecDeque::new(),
            unsent: Vec::new(),
        }
    }

    /// For reverse Calls on a connection that this end opened. The client half tells this end's characteristics.
    pub(crate) fn reverse(
        config: &EngineConfig,
        own: OwnCharacteristics,
        receive_size: u32,
    ) -> ServerVersion2 {
        ServerVersion2 { has_told: true, ..ServerVersion2::new(config, own, receive_size) }
    }

    /// Octets of heap of one.
    pub(crate) fn footprint(config: &EngineConfig) -> usize {
        let targets = super::targets(config, config.receive_targets);
        let receives = config.capacity().receives;
        let parts = config.continuation as usize * size_of::<KeptPart>();
        // The Responder's: segments of directions, and where the parts of a message lie.
        let placement = 64 * 16 + (config.continuation * targets.max(1)) as usize * 24;
        size_of::<ServerVersion2>() + DividedReceives::footprint(receives, targets) + parts + placement
    }

    /// The connection is gone.
    pub(crate) fn close<P>(&mut self, core: &mut Core<P>) {
        self.responder2.handle_disconnect();
        for UnsentReply { draft, .. } in self.unsent.drain(..) {
            core.put_draft(draft);
        }
    }

    /// Posts `count` Receives beside the `held` ones, if there is memory for them. Returns how many it posted.
    pub(crate) fn post_receives<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        held: u32,
        count: u32,
    ) -> u32 {
        let mut posted = 0;
        while posted < count {
            // One at any rate, as in version 1.
            let is_needed = posted == 0 && held < FIRST_RECEIVES;
            let has_memory = is_needed || !core.is_short();
            if !has_memory || !self.receives.post(core, id, is_needed) {
                break;
            }
            posted += 1;
        }
        posted
    }

    /// Takes over the peer's characteristics, which the client half has heard.
    pub(crate) fn learn_peer(&mut self, responder: &mut Responder, peer: &PeerCharacteristics) {
        if self.peer != *peer {
            self.peer = *peer;
            self.learn_receives(responder);
        }
    }

    /// Adopts the peer's Receives as its characteristics describe them: every Send from now on fits them.
    pub(crate) fn learn_receives(&mut self, responder: &mut Responder) {
        self.peer_layout = self.peer.layout(self.own.send_len_max);
        self.peer_run = self.peer_layout.run();
        self.responder2.set_threshold(responder, self.peer_layout.len());
    }

    /// Drops the kept transmissions, if no Call is incomplete or another one begins.
    fn drop_parts(&mut self, begins_another: bool) {
        if begins_another || !self.responder2.has_open_group() {
            for part in self.parts.drain(..) {
                self.receives.reuse(part.message.targets);
            }
        }
    }
}

/// Takes in a message on a connection that may speak version 2, now or when there is memory to answer it. `Err`: the
/// connection has to end.
pub(crate) fn receive_version2<P: Provider, S: Services>(
    serving: &mut Serving,
    pass: &mut Pass<'_, Core<P>, S>,
    link: Link<'_>,
    arrived: ArrivedMessage,
) -> Result<(), CloseReason> {
    if !serving.may_take_in(pass.core) {
        return stall(serving, arrived, false);
    }
    take_in_version2(serving, pass, link, arrived).map(|_| ())
}

/// Keeps a message until there is memory.
fn stall(serving: &mut Serving, arrived: ArrivedMessage, is_first: bool) -> Result<(), CloseReason> {
    let Some(version2) = &mut serving.version2 else { return Err(fault("a message of another version")) };
    let ArrivedMessage { octets, targets, behind, .. } = arrived;
    if is_first {
        serving.stalled.push_front(octets);
        version2.stalled.push_front((targets, behind));
    } else {
        serving.stalled.push_back(octets);
        version2.stalled.push_back((targets, behind));
    }
    Ok(())
}

/// Takes in a message that waited. `false`: it waits on.
pub(crate) fn take_stalled<P: Provider, S: Services>(
    serving: &mut Serving,
    pass: &mut Pass<'_, Core<P>, S>,
    link: Link<'_>,
    head: Buf,
) -> Result<bool, CloseReason> {
    let behind = serving.version2.as_mut().and_then(|version2| version2.stalled.pop_front());
    let (targets, behind) = behind.unwrap_or_default();
    take_in_version2(serving, pass, link, ArrivedMessage::of(head, targets, behind))
}

/// Takes in a message. `false`: there is no memory to put it together, and it waits.
fn take_in_version2<P: Provider, S: Services>(
    serving: &mut Serving,
    pass: &mut Pass<'_, Core<P>, S>,
    link: Link<'_>,
    mut arrived: ArrivedMessage,
) -> Result<bool, CloseReason> {
    if !arrived.put_together(pass.core) {
        stall(serving, arrived, true)?;
        return Ok(false);
    }
    let Some(version2) = &mut serving.version2 else { return Err(fault("a message of another version")) };
    if is_first(&arrived.octets) {
        // The Call says the version (V2-5.3-a).
        version2.receives.reuse(arrived.targets.take());
        if version2.responder2.has_open_group()
            && let Some(small) = version2.responder2.break_off(&mut serving.responder, &arrived.octets)
        {
            version2.drop_parts(true);
            send_small(serving, pass.core, link.id, &small)?;
        }
        return serving.take_in(pass, link, arrived.octets).map(|()| true);
    }
    serving.prepare_to_take_in(&mut pass.core.state);
    let Some(version2) = &mut serving.version2 else { return Err(fault("a message of another version")) };
    let ServerVersion2 { responder2, parts, peer: characteristics, .. } = &mut **version2;
    let lead = parts.first().map(|part| &part.message.octets[..]);
    let (event, broken) =
        responder2.handle_divided(&mut serving.responder, &arrived.octets, arrived.behind, lead);
    let meant = match event {
        ResponderEvent2::Call(call) => Meant::Call(call.id),
        ResponderEvent2::Part { part, header_len } => {
            Meant::Part { is_first: part.number == 0, header_len, payload_len: part.len }
        }
        ResponderEvent2::Whole { id, part, header_len } => {
            Meant::Whole { is_first: part.number == 0, id, header_len, payload_len: part.len }
        }
        ResponderEvent2::Answer(small) => Meant::Answer(small),
        ResponderEvent2::Characteristics(operation) => {
            learn(characteristics, &operation);
            Meant::Told
        }
        ResponderEvent2::Rest
        | ResponderEvent2::ReplyRefused { .. }
        | ResponderEvent2::Dropped(_)
        | ResponderEvent2::Reply => Meant::Nothing,
        ResponderEvent2::Close(_) => Meant::Close,
    };
    if let Some(small) = broken {
        version2.drop_parts(true);
        send_small(serving, pass.core, link.id, &small)?;
    }
    if let Some(version2) = &mut serving.version2
        && let Some(refused) = version2.responder2.take_refused_len()
    {
        warn_of_length(pass, link.peer, &arrived.octets, refused);
    }
    act_on(serving, pass, link, meant, arrived)?;
    Ok(true)
}

fn act_on<P: Provider, S: Services>(
    serving: &mut Serving,
    pass: &mut Pass<'_, Core<P>, S>,
    link: Link<'_>,
    meant: Meant,
    mut arrived: ArrivedMessage,
) -> Result<(), CloseReason> {
    let Some(version2) = &mut serving.version2 else { return Err(fault("a message of another version")) };
    match meant {
        Meant::Call(call) => {
            version2.receives.reuse(arrived.targets);
            version2.drop_parts(true);
            run_base(serving, pass, link, call, arrived.octets)?;
            tell_characteristics(serving, pass.core, link.id)
        }
        Meant::Part { is_first, header_len, payload_len } => {
            if is_first {
                version2.drop_parts(true);
            }
            version2.parts.push(KeptPart { message: arrived, header_len, payload_len });
            // Another Receive takes the place of the one that is kept: its Call has the credits of both.
            serving.replenish(pass.core, link.id);
            Ok(())
        }
        Meant::Whole { is_first, id: call, header_len, payload_len } => {
            if is_first {
                version2.drop_parts(true);
            }
            version2.parts.push(KeptPart { message: arrived, header_len, payload_len });
            run_group(serving, pass, link, call)?;
            tell_characteristics(serving, pass.core, link.id)
        }
        Meant::Answer(small) => {
            version2.receives.reuse(arrived.targets.take());
            version2.drop_parts(true);
            drop(arrived);
            serving.replenish(pass.core, link.id);
            send_small(serving, pass.core, link.id, &small)
        }
        Meant::Told => {
            version2.receives.reuse(arrived.targets.take());
            drop(arrived);
            version2.learn_receives(&mut serving.responder);
            serving.replenish(pass.core, link.id);
            Ok(())
        }
        Meant::Nothing => {
            pass.core.statistics.messages_discarded += 1;
            version2.receives.reuse(arrived.targets.take());
            version2.drop_parts(false);
            drop(arrived);
            serving.replenish(pass.core, link.id);
            Ok(())
        }
        Meant::Close => {
            version2.receives.reuse(arrived.targets.take());
            Err(CloseReason::Violation("it sent more Calls than it had credits for"))
        }
    }
}

/// Runs a Call that came by a base message.
fn run_base<P: Provider, S: Services>(
    serving: &mut Serving,
    pass: &mut Pass<'_, Core<P>, S>,
    link: Link<'_>,
    call_id: ResponderCallId,
    message: Buf,
) -> Result<(), CloseReason> {
    let Some(call) = serving.responder.call(call_id, &message) else {
        return Err(fault("a Call that just came is not in process"));
    };
    let xid = call.xid();
    let (ran, pull) = serving.begin(pass, link, &call, &message)?;
    serving.settle(pass, link, (call_id, xid), message, pull, ran)
}

/// Runs a Call that came as a group, all of whose transmissions are here.
fn run_group<P: Provider, S: Services>(
    serving: &mut Serving,
    pass: &mut Pass<'_, Core<P>, S>,
    link: Link<'_>,
    call_id: ResponderCallId,
) -> Result<(), CloseReason> {
    pass.core.statistics.groups_received += 1;
    if let Some(begun) = serving.begun.take() {
        pass.core.statistics.calls_received += 1;
        return go_on_with_group(serving, pass, link, call_id, begun);
    }
    let Some(version2) = &mut serving.version2 else { return Err(fault("a message of another version")) };
    let ServerVersion2 { responder2, parts, receives, .. } = &mut **version2;
    pass.core.statistics.continuations += parts.len() as u64 - 1;
    if is_explicit(&parts[0].message.octets) {
        let message = base_message(pass.core, parts);
        version2.drop_parts(true);
        return match message {
            Some(message) => run_base(serving, pass, link, call_id, message),
            None => serving.refuse(pass.core, link.id, call_id, RefusedCall::Payload).map(|_| ()),
        };
    }
    pass.core.statistics.calls_received += 1;
    let mut pull = pass.core.pulls.take();
    let mut is_explicit = false;
    let count = Responder2::items(&parts[0].message.octets).len();
    for index in 0..count.min(READ_CHUNKS_MAX) {
        let mut placed = Placed { pieces: PlacedPieces::new(), len: 0 };
        let item = Responder2::items(&parts[0].message.octets).iter().nth(index);
        let Some(item) = item else { break };
        is_explicit |= matches!(item.place, ItemPlace::Explicit(_));
        placed.len = item.len;
        let displacement = item.displacement;
        let spans: SmallVec<[ItemSpan; 16]> = responder2.map().spans(&item).collect();
        let pages = transit::pages(&pass.core.pools.payload, item.len as usize);
        if take_item(pass.core, parts, &spans, &mut placed.pieces) {
            pass.core.statistics.items_placed += 1;
            pass.core.transit.take(&mut serving.share, pages);
            pull.held += pages;
        }
        pull.reduced.push(Reduced::read_chunk(index as u32, displacement, placed.len));
        pull.items.push(placed);
    }
    let mut gathered = std::mem::take(&mut pass.core.gathered);
    let is_single = parts.len() == 1 && parts[0].payload().is_some();
    if !is_single {
        gather(parts, &mut gathered);
    }
    let (at, len) = (parts[0].header_len, parts[0].payload_len);
    let mut messages = parts.drain(..).map(|part| {
        receives.reuse(part.message.targets);
        part.message.octets
    });
    let message = messages.next();
    messages.for_each(drop);
    let Some(message) = message else { return Err(fault("a Call without its message")) };
    let stream = match is_single {
        true => &message[at as usize..][..len as usize],
        false => &gathered[..],
    };
    let ran = match serving.responder.call(call_id, &message) {
        None => Err(fault("a Call that just came is not in process")),
        Some(call) if pass.core.refused_calls.has(link.peer, call.xid(), pass.core.now) => {
            serving.refuse(pass.core, link.id, call_id, RefusedCall::EndedConnection)
        }
        // EXRW items beside other items, or with directions (RTR-X-25).
        Some(_) if is_explicit || count > READ_CHUNKS_MAX => {
            serving.refuse(pass.core, link.id, call_id, RefusedCall::Ineligible)
        }
        Some(call) => serving.run_pulled(pass, link, &call, (&message, stream), &mut pull),
    };
    let xid = leading_xid(&message);
    pass.core.gathered = gathered;
    match ran {
        Ok(ran) => serving.settle(pass, link, (call_id, xid), message, Some(pull), ran),
        Err(reason) => {
            serving.put_pull(pass.core, pull);
            Err(reason)
        }
    }
}

/// Goes on with a Call in one Send whose handler ran where it arrived.
#[cold]
fn go_on_with_group<P: Provider, S: Services>(
    serving: &mut Serving,
    pass: &mut Pass<'_, Core<P>, S>,
    link: Link<'_>,
    call_id: ResponderCallId,
    begun: Begun,
) -> Result<(), CloseReason> {
    let Some(version2) = &mut serving.version2 else { return Err(fault("a message of another version")) };
    let Some(part) = version2.parts.pop() else { return Err(fault("a Call without its message")) };
    version2.receives.reuse(part.message.targets);
    let message = part.message.octets;
    let Some(call) = serving.responder.call(call_id, &message) else {
        return Err(fault("a Call that just came is not in process"));
    };
    let xid = call.xid();
    let (ran, pull) = serving.go_on(pass.core, link, begun, &call, &message)?;
    serving.settle(pass, link, (call_id, xid), message, pull, ran)
}

/// Sends a message that is complete as it is.
fn send_small<P: Provider>(
    serving: &mut Serving,
    core: &mut Core<P>,
    id: ConnectionId,
    small: &SmallMessage,
) -> Result<(), CloseReason> {
    core.statistics.errors_sent += 1;
    let octets = small.as_bytes();
    let is_taken =
        serving.version2.as_ref().is_none_or(|version2| octets.len() <= version2.peer_layout.len() as usize);
    if is_taken {
        return send_octets(serving, core, id, octets);
    }
    // The shortest answer that ends what its receiver waits for.
    let xid = leading_xid(octets);
    let credits = serving.responder.grant().granted();
    let shorter = SmallMessage::error(xid, VERSION, credits, ErrorCode2::BadHeader);
    send_octets(serving, core, id, shorter.as_bytes())
}

fn send_octets<P: Provider>(
    serving: &mut Serving,
    core: &mut Core<P>,
    id: ConnectionId,
    octets: &[u8],
) -> Result<(), CloseReason> {
    let Some(mut send) = core.pools.messages.take() else { return Err(CloseReason::CannotReply) };
    send.set_len(octets.len());
    send.copy_from_slice(octets);
    let mut draft = core.draft();
    draft.clear();
    draft.send = Some(send);
    serving.post_in_order(core, id, draft)
}

/// Tells this end's characteristics, right behind the answer to the first Call (XC-X-1).
fn tell_characteristics<P: Provider>(
    serving: &mut Serving,
    core: &mut Core<P>,
    id: ConnectionId,
) -> Result<(), CloseReason> {
    let Some(version2) = serving.version2.as_mut().filter(|version2| !version2.has_told) else {
        return Ok(());
    };
    let mut out = [0; INITIAL_LEN_MAX];
    let credits = serving.responder.grant().granted();
    let Ok(len) = version2.own.emit_initial(credits, &mut out) else {
        return Err(fault("characteristics are longer than a message"));
    };
    // Its Receives may be too short for them: it goes on with defaults (XC-j).
    version2.has_told = len <= version2.peer_layout.len() as usize;
    if !version2.has_told {
        return Ok(());
    }
    send_octets(serving, core, id, &out[..len])
}
