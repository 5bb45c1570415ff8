//! Calls that come in at one reactor of a group and are executed at another.
//!
//! Each object has one reactor that owns it, its *home* ([`Home`]). A Call about it may come in at any other, the *entry*,
//! which has the connection. The entry parses the Call and pulls its data, as for any Call; then it carries the Call whole to
//! the home, where its handler runs; the Reply comes back the same way, and the entry sends it.
//!
//! ```text
//!          entry                                                home
//!  Receive ─▶ Responder ─▶ pull ─▶ Service::home ──┐
//!                                  kept as late    │  lane
//!                                                  └─ Call ───▶ duplicates ─▶ service ─┐
//!                                  ┌──────────────── Reply ◀───────────────────────────┤
//!  Writes, Send ◀─ plan ◀──────────┘                            later ─▶ poll_later ───┘
//! ```
//!
//! Connections, credits, chunks and their memory stay at the entry: to it a carried Call is one that is answered late.
//! Calls that must not be executed twice are remembered at the home ([`Duplicates`](crate::server::duplicates)): the
//! home is a function of a Call's arguments, so a retransmission that comes by another reactor finds the entry.
//!
//! # Lanes
//!
//! Between each two reactors there is a lane in each direction ([`stag_runtime::lane`]), which only these two use: no locks,
//! and no counts that are shared. A lane holds as many Calls and as many Replies as may be under way; a reactor counts those
//! that it sent, and the others wait here, in order. So a Reply always finds room, and no reactor waits for another while it
//! holds something that the other waits for.
//!
//! A Call that a service makes to a client goes the other way round: its home carries it to the reactor that has the connection,
//! which carries back how it ended ([`crate::call_back`]). Each of the two counts as a Call, which is answered as soon as it is
//! taken out of the lane: a client that does not answer keeps no place in it.
//!
//! `record.rs` has the records of a lane, and `light.rs` those of a Call with one chunk or none, and of its Reply. `exchange.rs` is
//! the part of a pass that handles them, and `answering.rs` is where the home's answers go.

mod answering;
pub(crate) mod exchange;
mod light;
mod record;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;

use arrayvec::ArrayVec;
use stag_fabric::Peer;
use stag_memory::{Borrowed, Loan, Pool, Return, Shared};
use stag_runtime::{GroupMember, LaneMesh, LaneRecord, Lanes, ReactorId};
use stag_wire::xdr::Reduced;

use crate::ConnectionId;
use crate::call_back::{CallBack, CallBackEnd};
use crate::carried::record::{CALL_BACK, CALLED_BACK, CarriedCall, TAKEN_OUT, encode_key};
use crate::group::TimedPlacement;
use crate::group_arenas::GroupArenas;
use crate::server::owner::address;
use crate::server::pulling::READ_CHUNKS_MAX;
use crate::server::transit::{TransitAccounts, TransitShare};
use crate::service::call::Placed;
use crate::service::dispatch::ReplyPolicy;
use crate::service::{Home, Token};
pub(crate) use answering::{drop_later, finish};
pub(crate) use light::CarriedChunk;
pub(crate) use record::{CarriedReply, CarriedRoom, Ending};

/// In the index of a [`ConnectionId`]: it names a connection of another reactor. No queue pair has it, and no byte stream.
const CARRIED: u32 = 1 << 29;

/// In the index of such a [`ConnectionId`]: where the reactor's number begins.
const FROM_SHIFT: u32 = 23;

/// In the index of such a [`ConnectionId`]: it is a byte stream there.
const FROM_STREAM: u32 = 1 << 22;

/// Connections of a reactor that have names elsewhere at most.
const INDEX_MASK: u32 = FROM_STREAM - 1;

/// Whether a connection is another reactor's.
#[inline]
pub(crate) const fn is_carried(id: ConnectionId) -> bool {
    id.index >> FROM_SHIFT >= CARRIED >> FROM_SHIFT && id.index < CARRIED << 1
}

/// What a connection is called at another reactor than its own: the same name for as long as it lives.
pub(crate) fn name_elsewhere(from: ReactorId, id: ConnectionId) -> ConnectionId {
    let stream = if crate::stream::is_stream(id) { FROM_STREAM } else { 0 };
    let index = CARRIED | (from.index() as u32) << FROM_SHIFT | stream | (id.index & INDEX_MASK);
    ConnectionId { index, generation: id.generation }
}

/// Where a connection is that has this name: its reactor, and its name there. `None`: it is this reactor's own name for one.
pub(crate) fn seat(id: ConnectionId) -> Option<(ReactorId, ConnectionId)> {
    if !is_carried(id) {
        return None;
    }
    let reactor = ReactorId::new(((id.index & !CARRIED) >> FROM_SHIFT) as usize)?;
    let index = id.index & INDEX_MASK;
    let index = if id.index & FROM_STREAM == 0 { index } else { crate::stream::stream_index(index) };
    Some((reactor, ConnectionId { index, generation: id.generation }))
}

/// What goes beside a record.
#[derive(Debug)]
enum Attachment {
    /// A Call to a client.
    CallBack(Box<CallBack>),
    /// How one ended.
    CalledBack(Box<CallBackEnd>),
    /// A Payload stream that is longer than a record.
    Octets(Box<[u8]>),
    /// A piece of memory.
    Piece(Loan),
    /// More pieces than go one by one.
    Pieces(Box<[Loan]>),
}

/// Pieces that go one by one at most.
const PIECES_MAX: usize = 4;

/// Calls that may be under way from one reactor to another, by default.
pub const CARRIED_CALLS_MAX: usize = 64;

/// The lanes of a group of reactors, until each has taken its own.
///
/// Made before the group runs, and shared with its threads by reference. Each reactor gives its [`CallLanes`] to its
/// [`Engine`](crate::Engine::join).
#[derive(Debug)]
pub struct CallMesh {
    records: LaneMesh<LaneRecord>,
    attachments: LaneMesh<Attachment>,
    returns: LaneMesh<Return>,
    arenas: GroupArenas,
    count: usize,
    calls_max: usize,
}

/// Places in a lane of returns. What finds none waits for the next pass.
const RETURNS_LEN: usize = 64;

impl CallMesh {
    /// Lanes for `count` reactors. `calls_max` Calls may be under way from each to each other one; more wait where they came
    /// in. [`CallMesh::footprint`] is what they take.
    ///
    /// # Panics
    ///
    /// If `count` is more than [`ReactorId::COUNT_MAX`].
    #[must_use]
    pub fn new(count: usize, calls_max: usize) -> CallMesh {
        CallMesh {
            records: LaneMesh::new(count, records_max(calls_max)),
            attachments: LaneMesh::new(count, attachments_max(calls_max)),
            returns: LaneMesh::new(count, RETURNS_LEN),
            arenas: GroupArenas::default(),
            count,
            calls_max,
        }
    }

    /// Octets of memory of the lanes.
    #[must_use]
    pub const fn footprint(count: usize, calls_max: usize) -> usize {
        let records = records_max(calls_max).next_power_of_two() * size_of::<LaneRecord>();
        let attachments = attachments_max(calls_max).next_power_of_two() * size_of::<Attachment>();
        count * count.saturating_sub(1) * (records + attachments + RETURNS_LEN * size_of::<Return>())
    }

    /// The lanes of one reactor. `None`: they were taken already, or there is no such reactor.
    #[must_use]
    pub fn take(&self, reactor: ReactorId) -> Option<CallLanes> {
        Some(CallLanes {
            records: self.records.take(reactor)?,
            attachments: self.attachments.take(reactor)?,
            returns: self.returns.take(reactor)?,
            arenas: self.arenas.clone(),
            count: self.count,
            calls_max: self.calls_max,
        })
    }
}

/// Records in a lane at most: as many Calls as may be under way, and as many Replies to those of the other side. What was
/// taken out is free again a quarter of the lane later.
const fn records_max(calls_max: usize) -> usize {
    2 * calls_max * 4 / 3 + 1
}

/// Attachments in a lane at most: those of that many records.
const fn attachments_max(calls_max: usize) -> usize {
    records_max(calls_max) * (1 + PIECES_MAX)
}

/// The lanes of one reactor of a group: to each other one, and from it.
#[derive(Debug)]
pub struct CallLanes {
    records: Lanes<LaneRecord>,
    attachments: Lanes<Attachment>,
    returns: Lanes<Return>,
    arenas: GroupArenas,
    count: usize,
    calls_max: usize,
}

/// A record, and what goes beside it.
#[derive(Debug)]
struct Parcel {
    record: Box<LaneRecord>,
    cargo: Vec<Attachment>,
}

/// What there is of another reactor of the group; of this one, nothing is used.
struct Neighbour {
    /// Calls that were sent there, whose Replies are still to come.
    under_way: usize,
    /// Calls that wait for others to be answered first.
    backlog: VecDeque<Parcel>,
}

/// A Reply that left with memory of this reactor, until that is back.
struct Lent {
    /// What the client holds meanwhile.
    share: TransitShare,
    /// The last piece of it, which nothing else here touches: whatever is sent is let go of in order.
    last: Shared,
}

/// A Call of another reactor that is answered later.
#[derive(Debug)]
struct LaterCall {
    from: ReactorId,
    /// Names it where its connection is.
    token: Token,
    peer: Option<Peer>,
    room: CarriedRoom,
    terms: ReplyPolicy,
    /// What its results will take, said the service.
    share: TransitShare,
}

/// A Call that all reactors execute.
struct Broadcast {
    token: Token,
    /// Reactors that have not answered yet.
    awaited: usize,
    /// For this reactor, which is the last.
    own: Parcel,
}

/// Where clients have their homes.
pub(crate) enum Homes {
    /// As the reactor that places connections told, with the number of the client's connections here.
    Told(HashMap<u128, (ReactorId, u32)>),
    /// This reactor places them.
    Placed(Rc<RefCell<TimedPlacement>>),
}

impl Homes {
    /// The home of a client; `None`: its connection was not placed.
    fn find(&self, peer: Option<&Peer>) -> Option<ReactorId> {
        match self {
            Homes::Told(homes) => homes.get(&address(peer?)).map(|(home, _)| *home),
            Homes::Placed(placed) => ReactorId::new(placed.borrow().placement.home(address(peer?))?),
        }
    }
}

/// What an engine has of the group that it belongs to.
pub(crate) struct Carrier {
    pub(crate) own: ReactorId,
    calls_max: usize,
    records: Lanes<LaneRecord>,
    attachments: Lanes<Attachment>,
    returns: Lanes<Return>,
    /// The memory of all reactors of the group, which each has registered.
    pub(crate) arenas: GroupArenas,
    /// What other reactors lent.
    borrowed: Borrowed,
    /// What other reactors' clients hold of the memory here.
    lent: Vec<Lent>,
    /// A return that found no place.
    stuck: Option<Return>,
    /// What goes with the record that is being sent.
    cargo: Vec<Attachment>,
    /// Memory that came with the record that is being read.
    pieces: Vec<Shared>,
    /// By number.
    neighbours: Vec<Neighbour>,
    /// Wakes the others; `None` where no reactor sleeps, as in simulations.
    member: Option<GroupMember>,
    homes: Homes,
    /// Other reactors' Calls that are answered later, by their slots in tokens.
    later: Vec<Option<LaterCall>>,
    /// Free places in `later`.
    vacant: Vec<u32>,
    broadcasts: Vec<Broadcast>,
    /// Replies that are delivered after the lanes were read, and their memory: large results, and what this reactor answers
    /// to itself, whose memory need not be lent.
    waiting: VecDeque<(Parcel, Vec<Shared>)>,
    /// For the record of a Call or a Reply that is sent the general way; taken meanwhile.
    outgoing: Option<Box<LaneRecord>>,
    /// Where results are encoded.
    space: Vec<u8>,
}

impl Carrier {
    /// Where a Call of `peer` is executed that `home` says this of; `None`: here.
    #[inline]
    pub(crate) fn destination(&self, home: Home, peer: Option<&Peer>) -> Option<Destination> {
        match home {
            Home::Here => None,
            Home::At(reactor) => self.other(reactor),
            Home::OfCaller => self.other(self.homes.find(peer).unwrap_or(self.own)),
            Home::Everywhere => (self.neighbours.len() > 1).then_some(Destination::All),
        }
    }

    #[inline]
    fn other(&self, reactor: ReactorId) -> Option<Destination> {
        (reactor != self.own).then_some(Destination::One(reactor))
    }

    /// Carries a Call to where it is executed. The Reply comes as a late one. Returns how many pieces of memory go with it.
    #[inline]
    pub(crate) fn send_call(
        &mut self,
        to: Destination,
        token: &Token,
        ends: (Option<&Peer>, Option<&IpAddr>),
        room: &CarriedRoom,
        (stream, reduced, items): (&[u8], &[Reduced], &mut [Placed]),
    ) -> u64 {
        let mut record = self.take_outgoing();
        let pieces: ArrayVec<u32, READ_CHUNKS_MAX> =
            items.iter().map(|item| item.pieces.len() as u32).collect();
        let is_inside = CarriedCall::encode(&mut record, token, ends, room, (reduced, &pieces), stream);
        let octets = || (!is_inside).then(|| Attachment::Octets(stream.into()));
        self.cargo.extend(octets());
        // To this reactor they are on their way until they come back: a home that keeps data copies it.
        let lent = items.iter_mut().flat_map(|item| item.pieces.drain(..)).map(|piece| piece.share().lend());
        let count = pieces.iter().sum::<u32>();
        load(&mut self.cargo, count as usize, lent);
        match to {
            Destination::One(to) => self.put_call(to, &record),
            Destination::All => {
                let (own, all) = (self.own, self.neighbours.len());
                for to in (0..all).filter_map(ReactorId::new).filter(|to| *to != own) {
                    self.put_call(to, &record);
                    self.cargo.extend(octets());
                }
                let own = Parcel { record: record.clone(), cargo: std::mem::take(&mut self.cargo) };
                self.broadcasts.push(Broadcast { token: *token, awaited: all - 1, own });
            }
        }
        self.outgoing = Some(record);
        u64::from(count)
    }

    #[inline(always)]
    fn neighbour(&mut self, reactor: ReactorId) -> &mut Neighbour {
        match self.neighbours.get_mut(reactor.index()) {
            Some(neighbour) => neighbour,
            None => no_neighbour(reactor),
        }
    }

    /// Whether this is another reactor of the group.
    pub(crate) fn knows(&self, reactor: ReactorId) -> bool {
        reactor != self.own && reactor.index() < self.neighbours.len()
    }

    /// Carries a Call to a client to the reactor that has its connection.
    #[cold]
    pub(crate) fn send_call_back(&mut self, to: ReactorId, key: u64, call: CallBack) {
        let mut record = self.take_outgoing();
        encode_key(&mut record, CALL_BACK, key);
        self.cargo.push(Attachment::CallBack(Box::new(call)));
        self.put_call(to, &record);
        self.outgoing = Some(record);
    }

    /// Carries how one ended to the reactor that carried it here.
    #[cold]
    pub(crate) fn send_called_back(&mut self, to: ReactorId, key: u64, end: CallBackEnd) {
        let mut record = self.take_outgoing();
        encode_key(&mut record, CALLED_BACK, key);
        self.cargo.push(Attachment::CalledBack(Box::new(end)));
        self.put_call(to, &record);
        self.outgoing = Some(record);
    }

    /// Tells that a record of the two was taken out.
    #[cold]
    fn send_taken_out(&mut self, to: ReactorId) {
        let mut record = self.take_outgoing();
        encode_key(&mut record, TAKEN_OUT, 0);
        self.put(to, &record);
        self.outgoing = Some(record);
    }

    fn take_outgoing(&mut self) -> Box<LaneRecord> {
        self.outgoing.take().unwrap_or_else(|| unreachable!("one record is sent at a time"))
    }

    /// Puts a Call into the lane, or behind those that wait.
    #[inline]
    fn put_call(&mut self, to: ReactorId, record: &LaneRecord) {
        let calls_max = self.calls_max;
        let neighbour = self.neighbour(to);
        if neighbour.under_way < calls_max && neighbour.backlog.is_empty() {
            neighbour.under_way += 1;
            self.put(to, record);
        } else {
            let cargo = std::mem::take(&mut self.cargo);
            let parcel = Parcel { record: Box::new(record.clone()), cargo };
            self.neighbour(to).backlog.push_back(parcel);
        }
    }

    /// Puts a record into the lane, and the cargo beside it. There is room for as many Calls as may be under way from here, and for a Reply to each of
    /// those from there.
    fn put(&mut self, to: ReactorId, record: &LaneRecord) {
        let is_attached = self.cargo.is_empty() || {
            let lane = self.attachments.to(to);
            lane.is_some_and(|lane| self.cargo.drain(..).all(|piece| lane.push(piece).is_ok()))
        };
        let is_pushed = self.records.to(to).is_some_and(|lane| lane.push_record(record));
        assert!(is_pushed && is_attached, "a lane has no room for what may be under way");
    }

    /// Sends a Reply to where its Call came in.
    fn send_reply(
        &mut self,
        to: ReactorId,
        reply: &CarriedReply,
        payload: &[u8],
        (count, pieces): (usize, impl Iterator<Item = Shared>),
    ) {
        let mut record = self.take_outgoing();
        let is_inside = reply.encode(&mut record, payload);
        self.cargo.extend((!is_inside).then(|| Attachment::Octets(payload.into())));
        if to == self.own {
            let cargo = std::mem::take(&mut self.cargo);
            self.waiting.push_back((Parcel { record: record.clone(), cargo }, pieces.collect()));
        } else {
            load(&mut self.cargo, count, pieces.map(Shared::lend));
            self.put(to, &record);
        }
        self.outgoing = Some(record);
    }

    /// Makes known what was put into lanes since the last time, and wakes who sleeps. In each pass before others' Calls are
    /// executed and at the end, as doorbells are; and before large results are sent. Other reactors do not wait for either.
    #[inline(never)]
    pub(crate) fn publish(&mut self) {
        // Attachments first: the reader that sees a record finds what belongs to it.
        let mut reached = self.attachments.publish();
        reached.insert_all(self.records.publish());
        while let Some(units) = self.stuck.take().or_else(|| self.borrowed.next_return()) {
            let lane = ReactorId::new(usize::from(units.owner())).and_then(|owner| self.returns.to(owner));
            let Some(lane) = lane else { unreachable!("memory of a reactor that is not in this group") };
            if let Err(units) = lane.push(units) {
                self.stuck = Some(units);
                break;
            }
        }
        reached.insert_all(self.returns.publish());
        if let Some(member) = &self.member {
            member.ring(reached);
        }
    }

    /// Whether other reactors have sent nothing that was not taken in: the look before sleep.
    pub(crate) fn is_quiet(&self) -> bool {
        self.records.is_empty() && self.returns.is_empty() && self.waiting.is_empty() && self.stuck.is_none()
    }

    /// Whether nothing of others' memory is here any more.
    pub(crate) fn is_settled(&self) -> bool {
        self.borrowed.is_settled() && self.stuck.is_none()
    }

    /// Takes back what others had borrowed.
    pub(crate) fn take_returns(&mut self, payload: &Pool, accounts: &mut TransitAccounts) {
        let mut has_come = false;
        while let Some((from, units)) = self.returns.pop() {
            // Either of our own memory, or of what we had borrowed and lent on.
            let taken = payload.take_back(units).or_else(|units| self.borrowed.take_back(units));
            assert!(taken.is_ok(), "reactor {from} returns what was not lent");
            has_come = true;
        }
        if has_come && !self.lent.is_empty() {
            self.lent.retain_mut(|lent| {
                let is_back = lent.last.is_unique();
                if is_back {
                    accounts.close(&mut lent.share);
                }
                !is_back
            });
        }
    }

    /// Keeps another reactor's Call that is answered later, in the place that [`Carrier::later_slot`] said.
    fn keep_later(&mut self, slot: u32, call: LaterCall) {
        match self.vacant.pop() {
            Some(vacant) => {
                debug_assert_eq!(vacant, slot);
                self.later[slot as usize] = Some(call);
            }
            None => {
                debug_assert_eq!(self.later.len(), slot as usize);
                self.later.push(Some(call));
            }
        }
    }

    /// The place of the next Call that is answered later.
    fn later_slot(&self) -> u32 {
        self.vacant.last().copied().unwrap_or(self.later.len() as u32)
    }

    fn take_later(&mut self, token: &Token) -> Option<LaterCall> {
        let is_it = |call: &mut LaterCall| {
            call.token.xid == token.xid
                && name_elsewhere(call.from, call.token.connection) == token.connection
        };
        let call = self.later.get_mut(token.slot as usize)?.take_if(is_it)?;
        self.vacant.push(token.slot);
        Some(call)
    }
}

/// Adds `count` pieces to what goes beside a record.
#[inline]
fn load(cargo: &mut Vec<Attachment>, count: usize, pieces: impl Iterator<Item = Loan>) {
    match count {
        0 => {}
        1..=PIECES_MAX => cargo.extend(pieces.map(Attachment::Piece)),
        _ => cargo.push(Attachment::Pieces(pieces.collect())),
    }
}

#[cold]
fn no_neighbour(reactor: ReactorId) -> ! {
    panic!("a Call's home is reactor {reactor}, which is not in this group")
}

/// Where a Call is executed that is not executed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    One(ReactorId),
    All,
}
