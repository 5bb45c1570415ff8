//! Calls that wait for a store, and the service of each.
//!
//! ```text
//! a step that reads waits ──▶ Again ──▶ run from its start ──▶ Answered ──▶ finish
//! a step that changes, later ──▶ Acting ──▶ its end ──┐            ▲
//! its changes go to stable storage ──▶ Changed ◀──────┘            │
//! READ, WRITE, COMMIT, later ──▶ Transfer ──▶ finish      (all is there already)
//! a READ at a limit ──▶ Again;  a WRITE at a limit ──▶ Answered    (in the queue of their export: see `limits`)
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use stag_fabric::Peer;
use stag_memory::Shared;
use stag_rpc::{Call, ConnectionId, Outcome, Reply, Token, owner};
use stag_vfs::{Finished, FsError, ObjectStat, Progress, Store, Ticket, Timestamp};
use stag_wire::nfs3::{
    LinkOk, LinkReply, RemoveOk, RemoveReply, RenameOk, RenameReply, SetattrOk, SetattrReply, WccAttributes,
    WccData,
};
use stag_wire::nfsacl::{SetaclOk, SetaclReply};

use super::limits::RateTurn;
use super::nfs::{Answer, Created, Found};
use super::nlm::SuspendedLock;
use super::rerun::{Again, Answered};
use super::transfer::{self, Transfer};
use super::v4::SuspendedCompound;
use super::words::failure;
use super::{ExportTable, ResolvedHandle};

/// A service that leaves Calls for later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Nfs,
    Nfsacl,
    Mount,
    Nfs4,
    Nlm,
}

/// What a Call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitsFor {
    /// The place of the store.
    pub(super) share: usize,
    pub(super) ticket: Ticket,
}

/// What a transfer waits for.
#[derive(Debug)]
pub(super) enum Hold {
    Store(WaitsFor),
    /// Its turn, at an export that has limits.
    Limit(Box<RateTurn>),
}

impl From<WaitsFor> for Hold {
    #[inline]
    fn from(waits: WaitsFor) -> Hold {
        Hold::Store(waits)
    }
}

impl From<Box<RateTurn>> for Hold {
    fn from(turn: Box<RateTurn>) -> Hold {
        Hold::Limit(turn)
    }
}

/// Calls that may wait for one store at once, if nothing else is said.
const PLACES_MAX: usize = 2048;

/// Calls that stores are at: a list for each store, in the places that their tickets say.
pub(super) struct Waiting {
    lists: Vec<WaitingList>,
    /// Calls that may wait at once for one store to look at names and attributes, or to change them. A client has a part of these
    /// places: see [`Waiting::has_no_place`].
    places_max: usize,
    /// Half of the places of a store are taken: only then a client can have more than its part.
    is_crowded: bool,
    /// The one of them that its store told of.
    ready: Option<WaitsFor>,
    /// The time of this pass, and the wall clock.
    now: Duration,
    time: Timestamp,
    /// Those that waited and have their answer.
    answered: VecDeque<(Waiter, Answered)>,
    /// COMPOUNDs whose turn has come at an export that has limits.
    turned: VecDeque<(Token, Box<SuspendedCompound>)>,
}

/// Calls that one store is at.
#[derive(Default)]
struct WaitingList {
    calls: Vec<Option<PendingCall>>,
    /// Of the places of a store.
    taken: usize,
}

/// Why a Call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The store looks at names or attributes, or changes them.
    Names,
    /// The store reads or writes data.
    Data,
    /// Data or changes go to stable storage.
    Sync,
    /// Its export has a limit.
    Limit,
}

impl Stage {
    fn words(self) -> &'static str {
        match self {
            Stage::Names => "the file system, for names or attributes",
            Stage::Data => "the disk, for data",
            Stage::Sync => "the disk, for a sync",
            Stage::Limit => "a limit of its export",
        }
    }
}

/// A Call that waits, and whose it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    /// The service that answers it.
    pub(super) program: Program,
    pub(super) token: Token,
    /// Its client, as [`owner`] tells clients apart.
    pub(super) client: u128,
    waits: Waits,
}

/// The waits of one Call.
#[derive(Clone, Copy, Debug)]
struct Waits {
    /// When the wait in hand began.
    since: Duration,
    /// The longest of the waits that are over.
    longest: Option<(Stage, Duration)>,
}

impl Waits {
    fn since(since: Duration) -> Waits {
        Waits { since, longest: None }
    }

    /// The wait in hand is over.
    fn end(&mut self, stage: Stage, now: Duration) {
        self.longest = self.longest_until(stage, now);
        self.since = now;
    }

    /// The longest, if the wait in hand ends now.
    fn longest_until(&self, stage: Stage, now: Duration) -> Option<(Stage, Duration)> {
        let waited = now.saturating_sub(self.since);
        match self.longest {
            Some((_, longest)) if longest >= waited => self.longest,
            _ => Some((stage, waited)),
        }
    }
}

impl Waiter {
    pub(super) fn of(program: Program, call: &Call<'_>) -> Waiter {
        Waiter { waits: Waits::since(call.now()), ..Waiter::new(program, call.token(), call.peer()) }
    }

    /// One whose waits are not timed.
    pub(super) fn new(program: Program, token: Token, peer: Option<&Peer>) -> Waiter {
        Waiter { program, token, client: owner(peer), waits: Waits::since(Duration::MAX) }
    }

    /// The wait in hand is over.
    pub(super) fn end_wait(&mut self, stage: Stage, now: Duration) {
        self.waits.end(stage, now);
    }
}

/// One of them, or one that waits for a limit.
pub(super) struct PendingCall {
    pub(super) waiter: Waiter,
    pub(super) pending: Pending,
    /// The connection that it ends with.
    pub(super) connection: Option<ConnectionId>,
}

/// What is left to do.
pub(super) enum Pending {
    /// A step that reads had no answer: the procedure is run again.
    Again(Again),
    /// The step that changes something is under way.
    Acting(Acting),
    /// READ, WRITE and COMMIT: the store has the result.
    Transfer(Transfer),
    /// All is done, and these are the results; but they may not be known before they are on stable storage.
    Changed(Changed),
    /// A COMPOUND of version 4, which goes on.
    Compound(Box<SuspendedCompound>),
    /// A Call of NLM, or a request of one, which goes on.
    Lock(Box<SuspendedLock>),
    /// All is done, and these are the results; but a limit lets them go later.
    Answered(Answered),
}

impl Pending {
    /// Whether it takes one of the places of its store: transfers and syncs do not, which have bounds of their own.
    fn takes_place(&self) -> bool {
        match self {
            Pending::Again(_) | Pending::Acting(_) | Pending::Lock(_) => true,
            Pending::Compound(suspended) => suspended.is_at_names(),
            Pending::Transfer(_) | Pending::Changed(_) | Pending::Answered(_) => false,
        }
    }

    /// What its store does.
    fn stage(&self) -> Stage {
        match self {
            Pending::Again(_) | Pending::Acting(_) | Pending::Compound(_) | Pending::Lock(_) => Stage::Names,
            Pending::Transfer(transfer) if transfer.is_commit() => Stage::Sync,
            Pending::Transfer(_) => Stage::Data,
            Pending::Changed(_) => Stage::Sync,
            Pending::Answered(_) => Stage::Limit,
        }
    }
}

/// How far a procedure is that changes names or attributes.
pub(super) enum Begun {
    /// These are its results.
    Over(Changed),
    /// A step that reads had no answer.
    Waits(WaitsFor),
    /// The step that changes something is under way.
    Acts(WaitsFor, Acting),
}

/// What a procedure ends with that changes something.
#[derive(Clone, Copy)]
pub(super) enum Ending {
    Setattr,
    Make,
    Remove,
    /// The other directory, if it is another one, as it was before.
    Rename {
        to: Option<ResolvedHandle>,
        before: Option<WccAttributes>,
    },
    Link {
        file: Option<ResolvedHandle>,
    },
    Setacl,
}

/// A procedure that changes `opened`, unless that could not be opened.
pub(super) struct Acting {
    pub(super) what: Ending,
    pub(super) opened: Option<ResolvedHandle>,
    pub(super) before: Option<WccAttributes>,
}

impl Acting {
    /// The results, once it is known what the change came to: an object that was made, if one was. What was changed is then on
    /// its way to stable storage.
    pub(super) fn conclude<S: Store + ?Sized>(
        self,
        exports: &mut ExportTable<S>,
        outcome: Result<Option<ObjectStat>, FsError>,
    ) -> Changed {
        let Acting { what, opened, before } = self;
        let mut wcc = WccData { before, after: None };
        if let Some(opened) = &opened {
            if let Progress::Later(ticket) = exports.volume_mut(opened).store_mut().sync_changes() {
                exports.uncommitted = Some(opened.waits(ticket));
            }
            wcc.after = exports.after(opened);
        }
        match what {
            Ending::Setattr => Changed::Setattr(
                outcome.map(|_| SetattrOk { object: wcc }).map_err(|error| failure(error, wcc)),
            ),
            Ending::Make => {
                let made = outcome.and_then(|made| Ok((made, opened.ok_or(FsError::Fault)?)));
                Changed::Created(
                    made.map(|(made, opened)| Found::new(exports, &opened, made.as_ref(), wcc))
                        .map_err(|error| failure(error, wcc)),
                )
            }
            Ending::Remove => Changed::Remove(
                outcome.map(|_| RemoveOk { directory: wcc }).map_err(|error| failure(error, wcc)),
            ),
            Ending::Rename { to, before } => {
                let to = to.map_or(wcc, |to| WccData { before, after: exports.after(&to) });
                let attributes = RenameOk { from: wcc, to };
                Changed::Rename(outcome.map(|_| attributes).map_err(|error| failure(error, attributes)))
            }
            Ending::Link { file } => {
                let attributes = file.and_then(|file| exports.after(&file));
                let attributes = LinkOk { attributes, directory: wcc };
                Changed::Link(outcome.map(|_| attributes).map_err(|error| failure(error, attributes)))
            }
            Ending::Setacl => {
                let attributes = wcc.after;
                Changed::Setacl(
                    outcome.map(|_| SetaclOk { attributes }).map_err(|error| failure(error, attributes)),
                )
            }
        }
    }
}

/// Results of a procedure on names or attributes.
pub(super) enum Changed {
    Setattr(SetattrReply),
    Created(Created),
    Remove(RemoveReply),
    Rename(RenameReply),
    Link(LinkReply),
    Setacl(SetaclReply),
}

impl Changed {
    /// Sends the results, or that they are not to be relied on.
    pub(super) fn send(self, committed: Result<(), FsError>, reply: &mut Reply<'_>) {
        /// Of results: those of a failure, with the attributes of the success.
        macro_rules! unless_failed {
            ($results:expr, $ok:pat => $attributes:expr) => {
                match (committed, $results) {
                    (Err(error), Ok($ok)) => Err(failure(error, $attributes)),
                    (_, results) => results,
                }
                .send(reply)
            };
        }
        match self {
            Changed::Setattr(results) => unless_failed!(results, ok => ok.object),
            Changed::Created(results) => unless_failed!(results, named => named.directory()),
            Changed::Remove(results) => unless_failed!(results, ok => ok.directory),
            Changed::Rename(results) => unless_failed!(results, ok => ok),
            Changed::Link(results) => unless_failed!(results, ok => ok),
            Changed::Setacl(results) => unless_failed!(results, ok => ok.attributes),
        }
    }
}

impl Default for Waiting {
    fn default() -> Waiting {
        Waiting {
            lists: Vec::new(),
            places_max: PLACES_MAX,
            is_crowded: false,
            ready: None,
            now: Duration::ZERO,
            time: Timestamp::default(),
            answered: VecDeque::new(),
            turned: VecDeque::new(),
        }
    }
}

impl Waiting {
    /// Sets how many Calls may wait for one store at once.
    pub(super) fn set_places_max(&mut self, places_max: usize) {
        self.places_max = places_max;
        self.note_crowds();
    }

    /// Takes note of whether half of the places of some store are taken.
    fn note_crowds(&mut self) {
        self.is_crowded = self.lists.iter().any(|list| list.taken >= self.places_max / 2);
    }

    /// Keeps a Call until its store is done with it.
    fn add(&mut self, WaitsFor { share, ticket }: WaitsFor, waiter: Waiter, pending: Pending) {
        if self.lists.len() <= share {
            self.lists.resize_with(share + 1, WaitingList::default);
        }
        let list = &mut self.lists[share];
        let place = ticket.0 as usize;
        if list.calls.len() <= place {
            list.calls.resize_with(place + 1, || None);
        }
        debug_assert!(list.calls[place].is_none(), "a ticket is of one Call");
        list.taken += usize::from(pending.takes_place());
        self.is_crowded |= list.taken >= self.places_max / 2;
        list.calls[place] = Some(PendingCall { waiter, pending, connection: None });
    }

    /// Whether half of the places of some store are taken.
    #[inline]
    pub(super) fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    /// Whether a client has at least as many Calls at a store as places are left there: then a new Call of it has to come again.
    /// Alone it has half of the places, two have a third each, and there is always one for a client that has none.
    #[cold]
    pub(super) fn has_no_place(&self, share: usize, peer: Option<&Peer>) -> bool {
        let Some(list) = self.lists.get(share) else { return false };
        let left = self.places_max.saturating_sub(list.taken);
        if list.taken < left {
            return false;
        }
        let client = owner(peer);
        let own = |call: &&PendingCall| call.waiter.client == client && call.pending.takes_place();
        list.calls.iter().flatten().filter(own).count() >= left
    }

    /// Takes a Call out.
    fn remove(&mut self, WaitsFor { share, ticket }: WaitsFor) -> Option<PendingCall> {
        let list = self.lists.get_mut(share)?;
        let call = list.calls.get_mut(ticket.0 as usize)?.take()?;
        list.taken -= usize::from(call.pending.takes_place());
        if self.is_crowded {
            self.note_crowds();
        }
        Some(call)
    }

    /// Keeps the answer of a Call until its service asks.
    pub(super) fn add_answered(&mut self, waiter: Waiter, answered: Answered) {
        self.answered.push_back((waiter, answered));
    }

    /// Keeps a COMPOUND whose turn has come until version 4 asks.
    pub(super) fn add_turned(&mut self, token: Token, suspended: Box<SuspendedCompound>) {
        self.turned.push_back((token, suspended));
    }

    fn at(&self, WaitsFor { share, ticket }: WaitsFor) -> Option<&PendingCall> {
        self.lists.get(share)?.calls.get(ticket.0 as usize)?.as_ref()
    }

    /// Takes out the Call that a store told of.
    fn take_ready(&mut self) -> Option<(WaitsFor, PendingCall)> {
        let ready = self.ready.take()?;
        Some((ready, self.remove(ready)?))
    }

    /// The answer of a Call that waited, if that is the next.
    fn take_answered(&mut self, token: Token) -> Option<Answered> {
        let at = self.answered.iter().position(|(waiter, _)| waiter.token == token)?;
        self.answered.remove(at).map(|(_, answered)| answered)
    }
}

impl<S: Store + ?Sized> ExportTable<S> {
    /// The next Call of a service that can be answered. One of another service is kept until that asks. `time` is the wall
    /// clock. In most passes there is none.
    #[inline]
    pub(super) fn poll_later(
        &mut self,
        program: Program,
        now: Duration,
        time: impl FnOnce() -> Timestamp,
    ) -> Option<Token> {
        self.waiting.now = now;
        // NFS asks the stores for all services.
        let is_answered =
            self.has_answers() || program == Program::Nfs && (self.has_turn(now) || self.ask_stores(now));
        if is_answered { self.next_answered(program, now, time()) } else { None }
    }

    /// Whether a Call that waited can be answered, or goes on.
    #[inline]
    pub(super) fn has_answers(&self) -> bool {
        self.waiting.ready.is_some() || !self.waiting.answered.is_empty()
    }

    /// Whether a COMPOUND can go on because its turn has come.
    pub(super) fn has_turned(&self) -> bool {
        !self.waiting.turned.is_empty()
    }

    /// Asks the stores for what is over. `false`: there is nothing.
    #[inline]
    fn ask_stores(&mut self, now: Duration) -> bool {
        let stores = self.shares.iter_mut().enumerate();
        let mut ready = stores.filter_map(|(share, own)| {
            own.volume_mut().store_mut().poll_later(now).map(|ticket| WaitsFor { share, ticket })
        });
        self.waiting.ready = ready.next();
        self.waiting.ready.is_some()
    }

    #[inline(never)]
    fn next_answered(&mut self, program: Program, now: Duration, time: Timestamp) -> Option<Token> {
        self.waiting.time = time;
        self.mount_log.note_time(now);
        if program == Program::Nfs && self.has_turn(now) {
            self.take_turns(now, time);
        }
        loop {
            let mut answered = self.waiting.answered.iter().map(|(waiter, _)| waiter);
            if let Some(waiter) = answered.find(|waiter| waiter.program == program) {
                return Some(waiter.token);
            }
            if self.waiting.ready.is_none() {
                self.ask_stores(now);
            }
            let ready = self.waiting.ready?;
            match self.waiting.at(ready).map(|call| (call.waiter.program, call.waiter.token, &call.pending)) {
                Some((other, ..)) if other != program => return None,
                Some((_, _, Pending::Again(_) | Pending::Acting(_))) => self.advance(now, time),
                Some((_, _, Pending::Transfer(transfer)))
                    if transfer.is_write() && self.shares[ready.share].rated().is_some() =>
                {
                    self.advance(now, time);
                }
                Some((_, token, _)) => return Some(token),
                None => self.drop_ready(ready),
            }
        }
    }

    /// The next COMPOUND that goes on, with the store that it waited for, if that was it.
    pub(super) fn take_compound(
        &mut self,
        now: Duration,
    ) -> Option<(Option<WaitsFor>, Token, Box<SuspendedCompound>)> {
        if let Some((token, suspended)) = self.waiting.turned.pop_front() {
            return Some((None, token, suspended));
        }
        loop {
            let (ready, PendingCall { waiter, pending, .. }) = self.take_next(Program::Nfs4, now)?;
            if let Pending::Compound(suspended) = pending {
                return Some((Some(ready), waiter.token, suspended));
            }
        }
    }

    /// The next Call of NLM that goes on, when its store is done; or a request of one. `has_taken`: another one went on in this pass,
    /// so the stores may have more.
    #[inline]
    pub(super) fn take_lock(
        &mut self,
        now: Duration,
        has_taken: bool,
    ) -> Option<(Token, Box<SuspendedLock>)> {
        // NFS has asked the stores already.
        if self.waiting.ready.is_none() && !has_taken {
            return None;
        }
        loop {
            let (ready, PendingCall { waiter, pending, .. }) = self.take_next(Program::Nlm, now)?;
            if let Pending::Lock(suspended) = pending {
                let store = self.shares[ready.share].volume_mut().store_mut();
                // What it came to is asked again.
                let _ = store.finish(ready.ticket, &mut Vec::new());
                return Some((waiter.token, suspended));
            }
        }
    }

    /// The next Call of a service that goes on by itself, if it is the turn of that service.
    fn take_next(&mut self, program: Program, now: Duration) -> Option<(WaitsFor, PendingCall)> {
        loop {
            if self.waiting.ready.is_none() {
                self.ask_stores(now);
            }
            let ready = self.waiting.ready?;
            match self.waiting.at(ready).map(|call| call.waiter.program) {
                Some(found) if found == program => return self.waiting.take_ready(),
                Some(_) => return None,
                None => self.drop_ready(ready),
            }
        }
    }

    /// Drops what a store has for a Call that was told to try again.
    fn drop_ready(&mut self, ready: WaitsFor) {
        self.waiting.ready = None;
        let _ = self.shares[ready.share].volume_mut().store_mut().finish(ready.ticket, &mut Vec::new());
    }

    /// Goes on with the Call that its store told of, as far as it gets.
    fn advance(&mut self, now: Duration, time: Timestamp) {
        let Some((ready, call)) = self.waiting.take_ready() else { return };
        let PendingCall { mut waiter, pending, .. } = call;
        waiter.end_wait(pending.stage(), now);
        let finished =
            self.shares[ready.share].volume_mut().store_mut().finish(ready.ticket, &mut Vec::new());
        let next = match pending {
            Pending::Again(again) => again.run(self, time),
            Pending::Acting(acting) => {
                let outcome = finished.map(|finished| match finished {
                    Finished::Made(made) => Some(made),
                    _ => None,
                });
                let changed = acting.conclude(self, outcome);
                Err((self.uncommitted.take(), Pending::Changed(changed)))
            }
            Pending::Transfer(transfer) => {
                Ok(Answered::Transfer(transfer::conclude_write(self, &transfer, finished)))
            }
            pending => Err((Some(ready), pending)),
        };
        self.follow(waiter, next, now);
    }

    /// Keeps what became of a Call: its answer, or what is left to do and what it waits for.
    pub(super) fn follow(
        &mut self,
        waiter: Waiter,
        next: Result<Answered, (Option<WaitsFor>, Pending)>,
        now: Duration,
    ) {
        match next {
            Ok(answered) => {
                let turn = match &answered {
                    Answered::Transfer(transfer) => transfer.limit(self, now),
                    _ => None,
                };
                match turn {
                    Some(turn) => _ = self.keep(turn, waiter, Pending::Answered(answered)),
                    None => self.waiting.add_answered(waiter, answered),
                }
            }
            Err((None, Pending::Changed(changed))) => {
                self.waiting.add_answered(waiter, Answered::Changed(changed));
            }
            Err((Some(waits), pending)) => self.waiting.add(waits, waiter, pending),
            Err((None, _)) => {}
        }
    }

    /// What the Call waited for longest that [`ExportTable::poll_later`] told of.
    pub(super) fn stage(&self, token: Token) -> &'static str {
        let Waiting { answered, ready, now, .. } = &self.waiting;
        let answered = answered.iter().find(|(waiter, _)| waiter.token == token);
        let longest = match answered {
            Some((waiter, _)) => waiter.waits.longest,
            None => ready
                .and_then(|ready| self.waiting.at(ready))
                .and_then(|call| call.waiter.waits.longest_until(call.pending.stage(), *now)),
        };
        longest.map_or("its store", |(stage, _)| stage.words())
    }

    /// Answers the Call that [`ExportTable::poll_later`] told of.
    pub(super) fn finish(&mut self, token: Token, reply: &mut Reply<'_>, pieces: &mut Vec<Shared>) {
        if let Some(answered) = self.waiting.take_answered(token) {
            let time = self.waiting.time;
            answered.send(self, reply, time);
            return Self::refuse_for_memory(reply);
        }
        let Some((ready, call)) = self.waiting.take_ready() else { return reply.system_error() };
        debug_assert_eq!(call.waiter.token, token, "the engine asks for what it was told of");
        match call.pending {
            Pending::Transfer(pending) => {
                transfer::finish(self, ready.ticket, &pending, reply, pieces);
                Self::refuse_for_memory(reply);
            }
            Pending::Changed(results) => {
                let committed =
                    self.shares[ready.share].volume_mut().store_mut().finish(ready.ticket, pieces);
                results.send(committed.map(|_| ()), reply);
            }
            Pending::Again(_)
            | Pending::Acting(_)
            | Pending::Compound(_)
            | Pending::Lock(_)
            | Pending::Answered(_) => {
                reply.system_error();
            }
        }
    }

    /// The Call is abandoned: what a READ has read goes back to its pool.
    pub(super) fn abandon(&mut self, token: Token, pieces: &mut Vec<Shared>) {
        if self.waiting.take_answered(token).is_some() {
            return;
        }
        let Some((ready, _)) = self.waiting.take_ready() else { return };
        let _ = self.shares[ready.share].volume_mut().store_mut().finish(ready.ticket, pieces);
        pieces.clear();
    }

    /// Keeps a Call until its store is done with it, or its turn has come. Clients have a credit for each.
    pub(super) fn keep(&mut self, hold: impl Into<Hold>, waiter: Waiter, pending: Pending) -> Outcome {
        match hold.into() {
            Hold::Store(waits) => self.waiting.add(waits, waiter, pending),
            Hold::Limit(turn) => {
                let connection = turn.connection;
                self.queue(&turn, PendingCall { waiter, pending, connection });
            }
        }
        Outcome::Later(waiter.token)
    }

    /// Answers a procedure that changes something: now, or when that is over and on stable storage. `again` keeps it until a
    /// step that reads has an answer.
    pub(super) fn answer(
        &mut self,
        begun: Begun,
        again: impl FnOnce() -> Again,
        waiter: Waiter,
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let (waits, pending) = match begun {
            Begun::Over(results) => match self.uncommitted.take() {
                Some(waits) => (waits, Pending::Changed(results)),
                None => {
                    results.send(Ok(()), reply);
                    return Outcome::Done;
                }
            },
            Begun::Waits(waits) => (waits, Pending::Again(again())),
            Begun::Acts(waits, acting) => (waits, Pending::Acting(acting)),
        };
        self.keep(waits, waiter, pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stage_of_a_call_is_its_longest_wait() {
        let at = Duration::from_millis;
        let mut waits = Waits::since(at(10));
        let ends = [
            (Stage::Names, 12, Stage::Names),
            (Stage::Limit, 20, Stage::Limit),
            (Stage::Sync, 27, Stage::Limit),
        ];
        for (stage, until, longest) in ends {
            let found = waits.longest_until(stage, at(until));
            assert_eq!(found.map(|(stage, _)| stage), Some(longest), "{stage:?}");
            waits.end(stage, at(until));
        }
        assert_eq!(waits.longest, Some((Stage::Limit, at(8))));
    }
}
