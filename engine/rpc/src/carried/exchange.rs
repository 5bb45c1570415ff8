//! A pass's exchange with other reactors: their Calls, and their answers to ours: [`Engine::exchange`].

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use smallvec::SmallVec;
use stag_fabric::{Peer, Provider};
use stag_memory::{Borrowed, Buf, Shared};
use stag_runtime::{GroupMember, LaneRecord, ReactorId};
use stag_wire::rpcrdma::HEADER_LEN_MIN;
use stag_wire::xdr::Reader;

use super::light::{LightCall, ShortReply, SingleReply};
use super::record::{
    CALL, CarriedCall, CarriedItem, CarriedReply, Ending, PLAIN_CALL, Place, READ_CALL, REPLY, SHORT_REPLY,
    SINGLE_REPLY, WRITE_CALL, WRITE_CHUNKS_MAX, kind,
};
use super::{
    Attachment, CallLanes, CarriedRoom, Carrier, Homes, LaterCall, Lent, Neighbour, Parcel, name_elsewhere,
};
use crate::engine::Engine;
use crate::pools::PAGE_LEN;
use crate::server::draft::{Draft, Verdict};
use crate::server::owner::{address, owner};
use crate::server::transit::{MemoryHolder, TransitAccounts};
use crate::service::call::Placed;
use crate::service::dispatch::{Admission, Origin, ReplyPolicy, Route, admit, route};
use crate::service::late;
use crate::service::reply::{Reply, Room, Space};
use crate::service::{Services, Token};
use crate::state::{Core, EngineState};

/// Records that one pass takes from another reactor at most.
const EXCHANGE_BURST: usize = 64;

/// From this many octets on, a Reply's data is large: it is sent after others' Calls were executed.
pub(super) const LARGE_LEN: usize = 32 << 10;

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
                None => unreachable!("what belongs to a record is published before it"),
            }
        }
        octets
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
    fn note_lent(&mut self, accounts: &mut TransitAccounts, peer: Option<&Peer>, draft: &Draft) {
        let pages = draft.transit_pages();
        // What a service has, too, may never come back.
        let last = draft.long.last().or(draft.pieces.last()).filter(|last| last.is_unique());
        if let Some(last) = last.filter(|_| pages > 0) {
            let mut share = accounts.open(owner(peer));
            accounts.take_reply(&mut share, pages);
            self.lent.push(Lent { share, last: last.clone() });
        }
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

impl<P: Provider, S: Services> Engine<P, S> {
    /// Makes this engine one of a group: services may say that a Call is executed at another reactor
    /// ([`Service::home`](crate::Service::home)).
    /// Before the first connection. All engines of a group have the same services, in the same order. Connections stay where they
    /// come in; [`Engine::join_group`] spreads them too.
    ///
    /// `member` wakes the others; `None` where no reactor sleeps. What is in the payload pool of one engine may be sent by
    /// each other one: each registers the arenas of all with its provider, before its first connection. The pool says whose it
    /// is ([`Pool::owned_by`](stag_memory::Pool::owned_by)).
    pub fn join(&mut self, lanes: CallLanes, member: Option<GroupMember>) {
        assert!(self.core.carrier.is_none(), "an engine is in one group");
        let (owner, own) = (self.core.pools.payload.owner(), lanes.records.id());
        assert!(
            usize::from(owner) == own.index(),
            "the payload pool is reactor {owner}'s, this is reactor {own}"
        );
        let reactors = lanes.count;
        let carrier = Carrier::new(lanes, member, &self.core);
        self.core.deferrals.multiply_limit(reactors);
        self.core.carrier = Some(Box::new(carrier));
    }

    /// Executes what other reactors carried here, and takes in what they answered. Returns how much there was.
    #[inline(never)]
    pub(crate) fn exchange(&mut self) -> usize {
        let EngineState { carrier, pools, transit, .. } = &mut self.core.state;
        let Some(carrier) = carrier else { return 0 };
        carrier.take_returns(&pools.payload, transit);
        let reactors = carrier.neighbours.len();
        let mut count = self.attend();
        // Another one first in each pass, so that none always waits for the others.
        for turn in 0..reactors {
            let Some(from) = ReactorId::new((self.core.pass as usize + turn) % reactors) else { break };
            // Out of the carrier meanwhile: records are read where they lie in it, and answered into other lanes.
            let Some(mut lane) = self.carrier().records.take_from(from) else { continue };
            let end = count + EXCHANGE_BURST;
            // As for other late answers: each takes a message buffer.
            while count < end && !self.core.is_short() {
                let Some(record) = lane.first() else { break };
                count += 1;
                self.handle_record(from, record);
                lane.advance();
            }
            self.carrier().records.put_back(from, lane);
        }
        if !self.carrier().waiting.is_empty() {
            count += self.deliver_waiting();
        }
        count
    }

    /// Sends large results, and what this reactor answers to itself. Returns how many Replies there were.
    ///
    /// A few in a pass: what other reactors put into their lanes meanwhile would wait for all of them, and then these
    /// reactors have nothing to do while this one copies, and the other way round.
    #[inline(never)]
    fn deliver_waiting(&mut self) -> usize {
        // The answers to others' Calls, which were just executed.
        self.carrier().publish();
        let (mut count, mut sent) = (0, 0);
        while sent < LARGE_BURST
            && !self.core.is_short()
            && let Some((Parcel { record, cargo }, pieces)) = self.carrier().waiting.pop_front()
        {
            count += 1;
            sent += total_len(&pieces);
            let (reply, place) = CarriedReply::decode(&record);
            self.carrier().pieces.extend(pieces);
            self.deliver(&reply, place, &record, stream_of(cargo));
        }
        count
    }

    /// Says what leads to the homes of clients.
    pub(crate) fn set_homes(&mut self, homes: Homes) {
        self.carrier().homes = homes;
    }

    /// A connection of this client comes, whose home is that.
    pub(crate) fn note_home(&mut self, peer: &Peer, home: ReactorId) {
        if let Homes::Told(homes) = &mut self.carrier().homes {
            let (reactor, connections) = homes.entry(address(peer)).or_insert((home, 0));
            (*reactor, *connections) = (home, *connections + 1);
        }
    }

    /// A connection of this client is gone.
    pub(crate) fn forget_home(&mut self, peer: &Peer) {
        if let Homes::Told(homes) = &mut self.carrier().homes
            && let Entry::Occupied(mut found) = homes.entry(address(peer))
        {
            found.get_mut().1 = found.get().1.saturating_sub(1);
            if found.get().1 == 0 {
                found.remove();
            }
        }
    }

    #[inline(always)]
    fn carrier(&mut self) -> &mut Carrier {
        match &mut self.core.carrier {
            Some(carrier) => carrier,
            None => unreachable!("an engine does not leave its group"),
        }
    }

    #[inline]
    fn handle_record(&mut self, from: ReactorId, record: &LaneRecord) {
        match kind(record) {
            PLAIN_CALL => {
                if !self.execute_plain(from, &LightCall::plain(record)) {
                    self.execute_carried(from, record);
                }
            }
            WRITE_CALL | READ_CALL => {
                if !self.execute_single(from, &LightCall::single(record), record) {
                    self.execute_carried(from, record);
                }
            }
            SHORT_REPLY => {
                let reply = ShortReply::of(record);
                self.carrier().note_answer(from);
                let is_done = self.carrier().broadcasts.is_empty()
                    && (self.deliver_short(&reply)
                        || self.answer_single(&reply.token, reply.is_service, reply.payload, None));
                if !is_done {
                    self.deliver_carried(from, record);
                }
            }
            SINGLE_REPLY => {
                self.carrier().note_answer(from);
                if !self.deliver_single(from, &SingleReply::of(record)) {
                    let (reply, place) = CarriedReply::decode(record);
                    // None that others execute, too, has eligible results.
                    self.deliver_in_turn(&reply, place, record, None);
                }
            }
            CALL => self.execute_carried(from, record),
            REPLY => {
                self.carrier().note_answer(from);
                self.deliver_carried(from, record);
            }
            other => unreachable!("a record of kind {other}"),
        }
    }

    /// Executes another reactor's Call, the general way.
    #[inline(never)]
    fn execute_carried(&mut self, from: ReactorId, record: &LaneRecord) {
        let call = CarriedCall::decode(record);
        let pieces = call.pieces.iter().sum::<u32>() as usize;
        let octets = self.carrier().unload(from, call.stream == Place::Attached, pieces);
        self.execute(from, &call, record, octets);
    }

    /// Takes in what another reactor answered, the general way.
    #[inline(never)]
    fn deliver_carried(&mut self, from: ReactorId, record: &LaneRecord) {
        let (reply, place) = CarriedReply::decode(record);
        let pieces = usize::from(reply.pieces) + usize::from(reply.long.0);
        let octets = self.carrier().unload(from, place == Place::Attached, pieces);
        match self.carrier().note_execution(&reply.token) {
            Execution::Only => self.deliver_in_turn(&reply, place, record, octets),
            Execution::OneOfOthers => self.carrier().pieces.clear(),
            Execution::LastOfOthers(Parcel { record, cargo }) => {
                self.carrier().pieces.clear();
                let own = self.carrier().own;
                self.execute(own, &CarriedCall::decode(&record), &record, stream_of(cargo));
            }
        }
    }

    /// Executes another reactor's Call, or this one's as the last that does.
    pub(super) fn execute(
        &mut self,
        from: ReactorId,
        call: &CarriedCall,
        record: &LaneRecord,
        octets: Option<Box<[u8]>>,
    ) {
        let stream = octets_at(call.stream, record, octets.as_deref());
        let mut items: SmallVec<[Placed; 1]> = SmallVec::new();
        if !call.pieces.is_empty() {
            let mut pieces = self.carrier().pieces.drain(..);
            items.extend(call.reduced.iter().zip(&call.pieces).map(|(reduced, count)| Placed {
                pieces: pieces.by_ref().take(*count as usize).filter_map(as_buf).collect(),
                len: reduced.len,
            }));
        }
        let Engine { core, services, .. } = self;
        core.statistics.calls_executed_for_others +=
            u64::from(core.carrier.as_ref().is_some_and(|carrier| carrier.own != from));
        let connection = name_elsewhere(from, call.token.connection);
        let answering = Answering { from, token: call.token, peer: call.peer.as_ref(), room: &call.room };
        let routed = route(services, Reader::with_reduced(stream, &call.reduced));
        let run = match &routed {
            Route::Run(run) => run,
            Route::Refuse(refusal) => {
                return answering.answer_whole(core, |reply| reply.header(refusal));
            }
            Route::Drop => return answering.drop(core),
        };
        let slot = core.carrier.as_ref().map_or(0, |carrier| carrier.later_slot());
        let token = Token { connection, slot, xid: run.head.xid };
        let peer = call.peer.as_ref();
        let terms = match admit(core, run, token, stream, &items, peer) {
            Admission::Execute(terms) => terms,
            Admission::Repeat(kept) => return answering.answer_whole(core, |reply| reply.repeat(&kept)),
            Admission::Wait => return answering.keep(core, token, ReplyPolicy::ENGINE),
            Admission::Drop => return answering.drop(core),
        };
        let origin = Origin { connection, slot, peer, local: call.local.as_ref(), now: core.now };
        let answered = answering.answer(core, terms, |reply| run.call(services, &origin, &mut items, reply));
        if let Err(pages) = answered {
            answering.keep(core, token, ReplyPolicy { pages, ..terms });
        }
    }

    /// Hands another reactor's Reply to its connection: at once, or after the lanes were read if its data is large.
    #[inline(always)]
    fn deliver_in_turn(
        &mut self,
        reply: &CarriedReply,
        place: Place,
        record: &LaneRecord,
        octets: Option<Box<[u8]>>,
    ) {
        if total_len(&self.carrier().pieces) >= LARGE_LEN {
            return self.put_aside(record, octets);
        }
        self.deliver(reply, place, record, octets);
    }

    /// Keeps a Reply until the lanes were read.
    #[cold]
    fn put_aside(&mut self, record: &LaneRecord, octets: Option<Box<[u8]>>) {
        let carrier = self.carrier();
        let cargo = octets.into_iter().map(Attachment::Octets).collect();
        let pieces = carrier.pieces.drain(..).collect();
        carrier.waiting.push_back((Parcel { record: Box::new(record.clone()), cargo }, pieces));
    }

    /// Hands another reactor's Reply to the connection that its Call came in on.
    fn deliver(
        &mut self,
        reply: &CarriedReply,
        place: Place,
        record: &LaneRecord,
        octets: Option<Box<[u8]>>,
    ) {
        let payload = octets_at(place, record, octets.as_deref());
        let mut pieces = std::mem::take(&mut self.carrier().pieces);
        let Engine { core, connections, streams, .. } = self;
        match reply.ending {
            Ending::Dropped => late::drop_call(core, connections, streams, reply.token),
            // If the connection is gone, the Reply is not needed any more.
            _ => {
                _ = late::answer(core, connections, streams, reply.token, |out| {
                    out.carried(reply, payload, &mut pieces)
                })
            }
        }
        pieces.clear();
        self.carrier().pieces = pieces;
    }
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
        Attachment::Piece(_) | Attachment::Pieces(_) => None,
    })
}

/// Data that was placed at another reactor, as it was there.
pub(super) fn as_buf(piece: Shared) -> Option<Buf> {
    let found = piece.into_buf();
    debug_assert!(found.is_ok(), "what was placed is lent whole, and has no other user");
    found.ok()
}

/// A carried Call that waits for its answer.
pub(super) struct Answering<'a> {
    pub(super) from: ReactorId,
    pub(super) peer: Option<&'a Peer>,
    /// Names it where its connection is.
    pub(super) token: Token,
    pub(super) room: &'a CarriedRoom,
}

impl Answering<'_> {
    /// Lets `fill` fill the Reply in, then sends it to where the Call came in, unless `fill` says with `false` that it comes
    /// later. Then [`Answering::keep`] follows, with the pages that this returns as `Err`.
    fn answer<P>(
        &self,
        core: &mut Core<P>,
        terms: ReplyPolicy,
        fill: impl FnOnce(&mut Reply<'_>) -> bool,
    ) -> Result<(), u32> {
        let mut draft = core.draft();
        if !self.fill(core, &mut draft, terms.procedure.eligible_results, fill) {
            let pages = draft.pages;
            core.put_draft(draft);
            return Err(pages);
        }
        self.conclude(core, terms, draft);
        Ok(())
    }

    /// Lets `fill` fill the Reply in; its payload is in the carrier's space then. Says what `fill` says.
    fn fill<P>(
        &self,
        core: &mut Core<P>,
        draft: &mut Draft,
        eligible: u8,
        fill: impl FnOnce(&mut Reply<'_>) -> bool,
    ) -> bool {
        let EngineState { pools, transit, scratch, statistics, deferrals, carrier, .. } = &mut core.state;
        let Some(carrier) = carrier.as_deref_mut() else {
            unreachable!("an engine does not leave its group")
        };
        let guest = MemoryHolder::Guest { owner: owner(self.peer), is_last_try: self.room.is_last_try };
        let mut reply = Reply {
            draft,
            xid: self.token.xid,
            room: Room::Carried(self.room),
            inline_len_max: self.room.inline_len_max as usize + HEADER_LEN_MIN,
            space: Some(Space { octets: &mut carrier.space, header_len: HEADER_LEN_MIN, messages: None }),
            payload: &pools.payload,
            transit: Some((transit, guest)),
            scratch,
            eligible,
            copied_bytes: &mut statistics.copied_bytes,
            deferrals,
        };
        fill(&mut reply)
    }

    /// Sends a Reply that is filled in, with its payload in the carrier's space, to where the Call came in.
    pub(super) fn conclude<P>(&self, core: &mut Core<P>, terms: ReplyPolicy, mut draft: Box<Draft>) {
        let defect = draft.defect();
        if defect.is_some() {
            self.fill(core, &mut draft, 0, |reply| {
                reply.system_error();
                true
            });
        }
        let EngineState { statistics, carrier, duplicates, transit, .. } = &mut core.state;
        let Some(carrier) = carrier else { unreachable!("an engine does not leave its group") };
        let space = std::mem::take(&mut carrier.space);
        let ending = match draft.verdict {
            Verdict::Encoded => Ending::Encoded,
            Verdict::BadChunks => Ending::BadChunks,
            Verdict::NoMemory(_) => Ending::NoMemory,
            Verdict::TooLong | Verdict::Empty | Verdict::Panicked | Verdict::BadSum(..) => Ending::TooLong,
        };
        let is_inline = ending == Ending::Encoded && draft.long.is_empty();
        let payload = if is_inline { &space[..draft.payload_len] } else { &[] };
        if let Some(entry) = terms.kept {
            duplicates.keep_octets(
                entry,
                Some(payload).filter(|_| is_inline && draft.items.is_empty()),
                statistics,
            );
        }
        let items = draft.items.iter().take(WRITE_CHUNKS_MAX).map(|item| CarriedItem {
            len: item.len,
            pieces_end: item.pieces_end as u16,
            is_reduced: item.reduced,
        });
        let are_stored = draft.pieces.iter().all(Shared::is_stored);
        let reply = CarriedReply {
            token: self.token,
            are_stored,
            ending,
            is_service: draft.is_service,
            splice: draft.splice,
            left_out: draft.left_out,
            items: items.collect(),
            pieces: draft.pieces.len() as u16,
            long: (draft.long.len() as u16, if is_inline { 0 } else { draft.payload_len as u32 }),
        };
        if self.from != carrier.own {
            carrier.note_lent(transit, self.peer, &draft);
        }
        let Draft { pieces, long, .. } = &mut *draft;
        let count = pieces.len() + long.len();
        let pieces = pieces.drain(..).chain(long.drain(..));
        statistics.pieces_lent += count as u64;
        carrier.send_reply(self.from, &reply, payload, (count, pieces));
        carrier.space = space;
        core.put_draft(draft);
        if let Some(defect) = defect {
            terms.report(core, defect);
        }
    }

    /// Answers with what the engine knows.
    fn answer_whole<P>(&self, core: &mut Core<P>, fill: impl FnOnce(&mut Reply<'_>)) {
        let answered = self.answer(core, ReplyPolicy::ENGINE, |reply| {
            fill(reply);
            true
        });
        debug_assert!(answered.is_ok(), "it is filled in");
    }

    /// The Call is answered later, under this token.
    #[cold]
    pub(super) fn keep<P>(&self, core: &mut Core<P>, token: Token, terms: ReplyPolicy) {
        let mut share = core.transit.open(owner(self.peer));
        core.transit.expect(&mut share, terms.pages as usize);
        let (peer, room) = (self.peer.cloned(), self.room.clone());
        let call = LaterCall { from: self.from, token: self.token, peer, room, terms, share };
        if let Some(carrier) = &mut core.carrier {
            carrier.keep_later(token.slot, call);
        }
    }

    /// The Call is not answered.
    #[cold]
    fn drop<P>(&self, core: &mut Core<P>) {
        if let Some(carrier) = &mut core.carrier {
            let reply = CarriedReply::dropped(self.token);
            carrier.send_reply(self.from, &reply, &[], (0, std::iter::empty()));
        }
    }
}

/// Another reactor's Call that was left for later is answered. `false`: that Call is gone.
pub(crate) fn finish<P>(core: &mut Core<P>, token: Token, fill: impl FnOnce(&mut Reply<'_>)) -> bool {
    let Some(LaterCall { from, token, peer, room, terms, .. }) = take_later(core, token) else {
        return false;
    };
    let answering = Answering { from, token, peer: peer.as_ref(), room: &room };
    let answered = answering.answer(core, terms, |reply| {
        fill(reply);
        true
    });
    debug_assert!(answered.is_ok(), "it is filled in");
    true
}

/// Another reactor's Call that was left for later is not answered at all.
#[cold]
pub(crate) fn drop_later<P>(core: &mut Core<P>, token: Token) {
    if let Some(LaterCall { from, token, room, .. }) = take_later(core, token) {
        Answering { from, token, peer: None, room: &room }.drop(core);
    }
}

fn take_later<P>(core: &mut Core<P>, token: Token) -> Option<LaterCall> {
    let carrier = core.state.carrier.as_mut()?;
    let mut call = carrier.take_later(&token)?;
    core.state.transit.close(&mut call.share);
    Some(call)
}
