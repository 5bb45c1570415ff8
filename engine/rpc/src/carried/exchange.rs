//! A pass's exchange with other reactors: their Calls, and their answers to ours.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use smallvec::SmallVec;
use stag_fabric::{Peer, Provider};
use stag_memory::{Borrowed, Buf, Shared};
use stag_runtime::{GroupMember, LaneRecord, ReactorId};
use stag_wire::xdr::Reduced;

use super::answering::Answering;
use super::light::{CarriedChunk, LightCall, short_reply, single_reply};
use super::record::{
    CALL, CALL_BACK, CALLED_BACK, CarriedCall, CarriedReply, Ending, PLAIN_CALL, Place, READ_CALL, REPLY,
    SHORT_REPLY, SINGLE_REPLY, TAKEN_OUT, WRITE_CALL, decode_key, kind,
};
use super::{Attachment, CallLanes, CarriedRoom, Carrier, Homes, Lent, Neighbour, Parcel};
use crate::engine::{Engine, find};
use crate::group::attend;
use crate::pools::PAGE_LEN;
use crate::server::draft::Draft;
use crate::server::owner::{address, owner};
use crate::server::pending::Served;
use crate::server::serving::carrying::{LightReply, answer_light};
use crate::server::transit::TransitAccounts;
use crate::service::call::{Placed, PlacedPieces};
use crate::service::dispatch::Origin;
use crate::service::late::Answerer;
use crate::service::steps::{Arrived, serve};
use crate::service::{Services, Token};
use crate::state::{Core, EngineState, Pass};

/// Records that one pass takes from another reactor at most.
const EXCHANGE_BURST: usize = 64;

/// From this many octets on, a Reply's data is large: it is sent after others' Calls were executed.
const LARGE_LEN: usize = 32 << 10;

/// A pass sends large results until they have this many octets; 1 MiB takes some 40 µs, in which other reactors wait for nothing
/// that is in their lanes.
const LARGE_BURST: usize = 256 << 10;

impl Carrier {
    fn new<P>(lanes: CallLanes, member: Option<GroupMember>, core: &Core<P>) -> Carrier {
        let CallLanes { records, attachments, returns, arenas, count, calls_max } = lanes;
        arenas.add(core.pools.payload.arena());
        let own = records.id();
        let neighbour = |_| Neighbour { under_way: 0, backlog: VecDeque::new() };
        Carrier {
            own,
            calls_max,
            records,
            attachments,
            returns,
            arenas,
            // A group has 64 reactors at most.
            borrowed: Borrowed::new(own.index() as u8),
            lent: Vec::new(),
            stuck: None,
            cargo: Vec::new(),
            pieces: Vec::new(),
            neighbours: (0..count).map(neighbour).collect(),
            member,
            homes: Homes::Told(HashMap::new()),
            later: Vec::new(),
            vacant: Vec::new(),
            broadcasts: Vec::new(),
            waiting: VecDeque::new(),
            outgoing: Some(Box::default()),
            // All that may stay inline, over RDMA or over a byte stream.
            space: vec![0; core.config.message_len().max(PAGE_LEN)],
        }
    }

    /// Takes what belongs to a record that came: a Payload stream, if it is attached, then `count` pieces of memory, which
    /// are in `pieces` afterwards.
    #[inline]
    pub(super) fn unload(&mut self, from: ReactorId, is_attached: bool, count: usize) -> Option<Box<[u8]>> {
        debug_assert!(self.pieces.is_empty(), "what came with the last record was used");
        if !is_attached && count == 0 {
            return None;
        }
        let Some(lane) = self.attachments.from(from) else {
            unreachable!("a record comes from another reactor")
        };
        let mut octets = None;
        while (is_attached && octets.is_none()) || self.pieces.len() < count {
            match lane.pop() {
                Some(Attachment::Octets(found)) => octets = Some(found),
                Some(Attachment::Piece(loan)) => self.pieces.push(self.borrowed.borrow(loan)),
                Some(Attachment::Pieces(loans)) => {
                    self.pieces.extend(loans.into_iter().map(|loan| self.borrowed.borrow(loan)));
                }
                Some(Attachment::CallBack(_) | Attachment::CalledBack(_)) => {
                    unreachable!("what belongs to a Call or a Reply is octets and memory")
                }
                None => unreachable!("what belongs to a record is published before it"),
            }
        }
        octets
    }

    /// Takes what belongs to the record of a Call to a client, or of its end.
    fn unload_one(&mut self, from: ReactorId) -> Attachment {
        match self.attachments.from(from).and_then(|lane| lane.pop()) {
            Some(attachment) => attachment,
            None => unreachable!("what belongs to a record is published before it"),
        }
    }

    /// Another reactor has answered: the next Call that waited can be sent there.
    #[inline(always)]
    fn note_answer(&mut self, from: ReactorId) {
        let neighbour = self.neighbour(from);
        neighbour.under_way -= 1;
        if !neighbour.backlog.is_empty() {
            self.send_next(from);
        }
    }

    #[cold]
    fn send_next(&mut self, to: ReactorId) {
        let neighbour = self.neighbour(to);
        if let Some(Parcel { record, cargo }) = neighbour.backlog.pop_front() {
            neighbour.under_way += 1;
            self.cargo.extend(cargo);
            self.put(to, &record);
        }
    }

    /// Counts what a Reply takes with it of the memory here for its client, until it is back.
    pub(super) fn note_lent(&mut self, accounts: &mut TransitAccounts, peer: Option<&Peer>, draft: &Draft) {
        let pages = draft.transit_pages();
        // What a service has, too, may never come back.
        let last = draft.long.last().or(draft.pieces.last()).filter(|last| last.is_unique());
        if let Some(last) = last.filter(|_| pages > 0) {
            let mut share = accounts.open(owner(peer));
            accounts.take_reply(&mut share, pages);
            self.lent.push(Lent { share, last: last.clone() });
        }
    }

    /// Sets how the homes of clients are found.
    pub(crate) fn set_homes(&mut self, homes: Homes) {
        self.homes = homes;
    }

    /// Counts a connection of this client, whose home is that reactor.
    pub(crate) fn note_home(&mut self, peer: &Peer, home: ReactorId) {
        if let Homes::Told(homes) = &mut self.homes {
            let (reactor, connections) = homes.entry(address(peer)).or_insert((home, 0));
            (*reactor, *connections) = (home, *connections + 1);
        }
    }

    /// Forgets a connection of this client, which is gone.
    pub(crate) fn forget_home(&mut self, peer: &Peer) {
        if let Homes::Told(homes) = &mut self.homes
            && let Entry::Occupied(mut found) = homes.entry(address(peer))
        {
            found.get_mut().1 = found.get().1.saturating_sub(1);
            if found.get().1 == 0 {
                found.remove();
            }
        }
    }

    /// Keeps a Reply until all lanes of this pass were read.
    #[cold]
    fn put_aside(&mut self, record: &LaneRecord, octets: Option<Box<[u8]>>) {
        let cargo = octets.into_iter().map(Attachment::Octets).collect();
        let pieces = self.pieces.drain(..).collect();
        self.waiting.push_back((Parcel { record: Box::new(record.clone()), cargo }, pieces));
    }

    /// Another reactor has answered a Call. Says what to do with the answer, if all were to execute that Call.
    fn note_execution(&mut self, token: &Token) -> Execution {
        let Some(place) = self.broadcasts.iter().position(|found| found.token == *token) else {
            return Execution::Only;
        };
        self.broadcasts[place].awaited -= 1;
        match self.broadcasts[place].awaited {
            0 => Execution::LastOfOthers(self.broadcasts.swap_remove(place).own),
            _ => Execution::OneOfOthers,
        }
    }
}

/// Makes an engine one of a group: see [`Engine::join`].
pub(crate) fn join<P>(core: &mut Core<P>, lanes: CallLanes, member: Option<GroupMember>) {
    assert!(core.carrier.is_none(), "an engine is in one group");
    let (owner, own) = (core.pools.payload.owner(), lanes.records.id());
    assert!(
        usize::from(owner) == own.index(),
        "the payload pool is reactor {owner}'s, this is reactor {own}"
    );
    let reactors = lanes.count;
    let carrier = Carrier::new(lanes, member, core);
    core.deferrals.multiply_limit(reactors);
    core.carrier = Some(Box::new(carrier));
}

/// The carrier of an engine that is one of a group.
#[inline(always)]
pub(crate) fn carrier(state: &mut EngineState) -> &mut Carrier {
    match &mut state.carrier {
        Some(carrier) => carrier,
        None => unreachable!("an engine does not leave its group"),
    }
}

/// Executes the Calls that other reactors carried here, and takes in their Replies. Returns how many there were.
#[inline(never)]
pub(crate) fn exchange<P: Provider, S: Services>(engine: &mut Engine<P, S>) -> usize {
    let EngineState { carrier: Some(found), pools, transit, .. } = &mut engine.core.state else { return 0 };
    found.take_returns(&pools.payload, transit);
    let reactors = found.neighbours.len();
    let mut count = attend(engine);
    // Another one first in each pass, so that none always waits for the others.
    for turn in 0..reactors {
        let Some(from) = ReactorId::new((engine.core.pass as usize + turn) % reactors) else { break };
        // Out of the carrier meanwhile: records are read where they lie in it, and answered into other lanes.
        let Some(mut lane) = carrier(&mut engine.core.state).records.take_from(from) else { continue };
        let end = count + EXCHANGE_BURST;
        // As for other late answers: each takes a message buffer.
        while count < end && !engine.core.is_short() {
            let Some(record) = lane.first() else { break };
            count += 1;
            handle_record(engine, from, record);
            lane.advance();
        }
        carrier(&mut engine.core.state).records.put_back(from, lane);
    }
    if !carrier(&mut engine.core.state).waiting.is_empty() {
        count += deliver_waiting(&mut engine.answerer().0);
    }
    count
}

/// Delivers the Replies that were put aside: large ones, and those of this reactor to itself. Returns how many.
///
/// A few in a pass: what other reactors put into their lanes meanwhile would wait for all of them, and then these
/// reactors have nothing to do while this one copies, and the other way round.
#[inline(never)]
fn deliver_waiting<P: Provider>(answerer: &mut Answerer<'_, P>) -> usize {
    // The answers to others' Calls, which were just executed.
    carrier(answerer.core).publish();
    let (mut count, mut sent) = (0, 0);
    while sent < LARGE_BURST
        && !answerer.core.is_short()
        && let Some((Parcel { record, cargo }, pieces)) = carrier(answerer.core).waiting.pop_front()
    {
        count += 1;
        sent += total_len(&pieces);
        carrier(answerer.core).pieces.extend(pieces);
        deliver(answerer, &ArrivedReply::new(&record, stream_of(cargo)));
    }
    count
}

#[inline]
fn handle_record<P: Provider, S: Services>(engine: &mut Engine<P, S>, from: ReactorId, record: &LaneRecord) {
    let (mut answerer, services) = engine.answerer();
    match kind(record) {
        SHORT_REPLY => {
            carrier(answerer.core).note_answer(from);
            let is_only = carrier(answerer.core).broadcasts.is_empty();
            if !is_only || !deliver_light(&mut answerer, &short_reply(record), &mut None) {
                deliver_carried(engine, from, record);
            }
        }
        SINGLE_REPLY => {
            let carrier = carrier(answerer.core);
            carrier.note_answer(from);
            let piece = carrier.take_piece(from);
            let is_light = carrier.broadcasts.is_empty() && piece.len() < LARGE_LEN;
            let mut result = Some(piece);
            if !is_light || !deliver_light(&mut answerer, &single_reply(record), &mut result) {
                self::carrier(answerer.core).pieces.extend(result);
                // None that others execute, too, has eligible results.
                deliver_in_turn(&mut answerer, ArrivedReply::new(record, None));
            }
        }
        PLAIN_CALL => {
            let pass = &mut Pass { core: &mut answerer.core.state, services };
            execute_light(pass, from, &LightCall::plain(record));
        }
        WRITE_CALL | READ_CALL => {
            let pass = &mut Pass { core: &mut answerer.core.state, services };
            execute_light(pass, from, &LightCall::single(record));
        }
        CALL => execute_carried(&mut Pass { core: &mut answerer.core.state, services }, from, record),
        REPLY => {
            carrier(answerer.core).note_answer(from);
            deliver_carried(engine, from, record);
        }
        CALL_BACK | CALLED_BACK => take_carried_back(answerer.core, from, record),
        TAKEN_OUT => carrier(answerer.core).note_answer(from),
        other => unreachable!("a record of kind {other}"),
    }
}

/// Takes in a Call to a client of this reactor, or the end of one that this reactor carried elsewhere.
#[cold]
fn take_carried_back(state: &mut EngineState, from: ReactorId, record: &LaneRecord) {
    let key = decode_key(record);
    let now = state.now;
    let attachment = carrier(state).unload_one(from);
    carrier(state).send_taken_out(from);
    match attachment {
        Attachment::CallBack(call) => state.calls_back.accept_carried(from, key, *call, now),
        Attachment::CalledBack(end) => state.calls_back.end(key, *end),
        Attachment::Octets(_) | Attachment::Piece(_) | Attachment::Pieces(_) => {
            unreachable!("octets and memory belong to Calls and Replies")
        }
    }
}

/// Executes another reactor's Call with one chunk or none.
#[inline]
fn execute_light<S: Services>(pass: &mut Pass<'_, EngineState, S>, from: ReactorId, call: &LightCall<'_>) {
    let &LightCall { token, ref peer, inline_len_max, chunk, stream } = call;
    let mut room = CarriedRoom { inline_len_max, ..CarriedRoom::default() };
    let (mut reduced, mut data) = (None, None);
    match chunk {
        None => {}
        Some(CarriedChunk::Write(len)) => room.write_chunks.push(len.into()),
        Some(CarriedChunk::Read { position, len }) => {
            reduced = Some(Reduced::read_chunk(0, position, len));
            let piece = carrier(pass.core).take_piece(from);
            // Filled in place: it is large to move.
            let placed = data.insert(Placed { pieces: PlacedPieces::new(), len });
            placed.pieces.extend(as_buf(piece));
        }
    }
    let answering = Answering::new(from, token, peer.as_ref(), &room);
    take_through_steps(pass, answering, None, (stream, reduced.as_slice()), data.as_mut_slice());
}

/// Executes another reactor's Call.
#[inline(never)]
fn execute_carried<S: Services>(pass: &mut Pass<'_, EngineState, S>, from: ReactorId, record: &LaneRecord) {
    let call = CarriedCall::decode(record);
    let pieces = call.pieces.iter().sum::<u32>() as usize;
    let octets = carrier(pass.core).unload(from, call.stream == Place::Attached, pieces);
    execute(pass, from, &call, record, octets);
}

/// Sends a Reply with one result or none to a Call that was carried from where it arrived, from where it leaves. `false`: it takes
/// the general way, and nothing happened.
#[inline]
fn deliver_light<P: Provider>(
    Answerer { core, connections, .. }: &mut Answerer<'_, P>,
    reply: &LightReply<'_>,
    result: &mut Option<Shared>,
) -> bool {
    let Some(found) = find(connections, reply.token.connection) else { return false };
    let Some(serving) = found.serving.as_mut() else { return false };
    match answer_light(serving, core, reply, result) {
        Ok(Served::Left) => return false,
        Ok(_) => core.state.ready.touch(found),
        Err(reason) => found.close(core, reason),
    }
    true
}

/// Takes in another reactor's Reply, the general way.
#[inline(never)]
fn deliver_carried<P: Provider, S: Services>(
    engine: &mut Engine<P, S>,
    from: ReactorId,
    record: &LaneRecord,
) {
    let (mut answerer, services) = engine.answerer();
    let mut arrived = ArrivedReply::new(record, None);
    let ArrivedReply { reply, place, .. } = &arrived;
    let pieces = usize::from(reply.pieces) + usize::from(reply.long.0);
    arrived.attached = carrier(answerer.core).unload(from, *place == Place::Attached, pieces);
    match carrier(answerer.core).note_execution(&arrived.reply.token) {
        Execution::Only => deliver_in_turn(&mut answerer, arrived),
        Execution::OneOfOthers => carrier(answerer.core).pieces.clear(),
        Execution::LastOfOthers(Parcel { record, cargo }) => {
            carrier(answerer.core).pieces.clear();
            let own = carrier(answerer.core).own;
            let pass = &mut Pass { core: &mut answerer.core.state, services };
            execute(pass, own, &CarriedCall::decode(&record), &record, stream_of(cargo));
        }
    }
}

/// Executes a Call of another reactor, or one of this reactor that all others have executed.
fn execute<S: Services>(
    pass: &mut Pass<'_, EngineState, S>,
    from: ReactorId,
    call: &CarriedCall,
    record: &LaneRecord,
    octets: Option<Box<[u8]>>,
) {
    let stream = octets_at(call.stream, record, octets.as_deref());
    let mut items: SmallVec<[Placed; 1]> = SmallVec::new();
    if !call.pieces.is_empty() {
        let mut pieces = carrier(pass.core).pieces.drain(..);
        items.extend(call.reduced.iter().zip(&call.pieces).map(|(reduced, count)| Placed {
            pieces: pieces.by_ref().take(*count as usize).filter_map(as_buf).collect(),
            len: reduced.len,
        }));
    }
    let answering = Answering::new(from, call.token, call.peer.as_ref(), &call.room);
    take_through_steps(pass, answering, call.local.as_ref(), (stream, &call.reduced), &mut items);
}

/// Takes a Call through its steps, at its home.
#[inline(always)]
fn take_through_steps<S: Services>(
    pass: &mut Pass<'_, EngineState, S>,
    mut answering: Answering<'_>,
    local: Option<&IpAddr>,
    (stream, reduced): (&[u8], &[Reduced]),
    items: &mut [Placed],
) {
    let state = &mut *pass.core;
    let Some(carrier) = state.carrier.as_deref() else { return };
    let (own, now) = (carrier.own, state.now);
    let Token { connection, slot, .. } = answering.wait_at(carrier.later_slot());
    state.statistics.calls_executed_for_others += u64::from(answering.from != own);
    let origin = Origin { connection, slot, peer: answering.peer, local, now };
    let arrived = Arrived { origin, stream, reduced };
    serve(pass, &mut answering, &arrived, items);
}

/// Another reactor's Reply. Its memory is in the carrier's `pieces`.
struct ArrivedReply<'r> {
    reply: CarriedReply,
    record: &'r LaneRecord,
    /// Where its Payload stream is.
    place: Place,
    /// The Payload stream, if it did not come in the record.
    attached: Option<Box<[u8]>>,
}

impl ArrivedReply<'_> {
    fn new(record: &LaneRecord, attached: Option<Box<[u8]>>) -> ArrivedReply<'_> {
        let (reply, place) = CarriedReply::decode(record);
        ArrivedReply { reply, record, place, attached }
    }
}

/// Hands a Reply to its connection: at once, or after the lanes were read if its data is large.
#[inline(always)]
fn deliver_in_turn<P: Provider>(answerer: &mut Answerer<'_, P>, arrived: ArrivedReply<'_>) {
    let carrier = carrier(answerer.core);
    if total_len(&carrier.pieces) >= LARGE_LEN {
        return carrier.put_aside(arrived.record, arrived.attached);
    }
    deliver(answerer, &arrived);
}

/// Hands a Reply to the connection that its Call came in on.
fn deliver<P: Provider>(answerer: &mut Answerer<'_, P>, arrived: &ArrivedReply<'_>) {
    let ArrivedReply { reply, record, place, attached } = arrived;
    let payload = octets_at(*place, record, attached.as_deref());
    let mut pieces = std::mem::take(&mut carrier(answerer.core).pieces);
    match reply.ending {
        Ending::Dropped => answerer.drop_call(reply.token),
        // If the connection is gone, the Reply is not needed any more.
        _ => _ = answerer.answer(reply.token, |out| out.carried(reply, payload, &mut pieces)),
    }
    pieces.clear();
    carrier(answerer.core).pieces = pieces;
}

/// How another reactor's answer ends a Call.
enum Execution {
    /// It is the only one.
    Only,
    /// All reactors execute the Call, and others have not answered yet.
    OneOfOthers,
    /// All others have: this reactor is the last, and this is the Call.
    LastOfOthers(Parcel),
}

/// Octets that belong to a record.
#[inline]
fn octets_at<'a>(place: Place, record: &'a LaneRecord, attached: Option<&'a [u8]>) -> &'a [u8] {
    match (place, attached) {
        (Place::Record { at, len }, _) => &record.octets()[at..at + len],
        (Place::Attached, Some(octets)) => octets,
        (Place::Attached, None) => unreachable!("an attached Payload stream comes with its record"),
    }
}

/// Octets of these pieces.
fn total_len(pieces: &[Shared]) -> usize {
    pieces.iter().map(|piece| piece.len()).sum()
}

/// The Payload stream of a Reply that waited.
fn stream_of(cargo: Vec<Attachment>) -> Option<Box<[u8]>> {
    cargo.into_iter().find_map(|attachment| match attachment {
        Attachment::Octets(octets) => Some(octets),
        _ => None,
    })
}

/// Data that was placed at another reactor, as it was there.
fn as_buf(piece: Shared) -> Option<Buf> {
    let found = piece.into_buf();
    debug_assert!(found.is_ok(), "what was placed is lent whole, and has no other user");
    found.ok()
}
