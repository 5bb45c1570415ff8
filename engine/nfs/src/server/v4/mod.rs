//! NFS version 4: COMPOUND of minor versions 1 and 2, over the same exports as version 3.
//!
//! ```text
//! Call ─▶ compound: one operation at a time ─▶ session · pseudo · attributes · names · files · locks ─▶ results ─▶ Reply
//!            │ a step waits, or a change is over later                                              └▶ slot, if the client asks to keep it
//!            └▶ Suspended: arguments from that operation on, results so far ─▶ run again
//!
//! Call to a client ◀─ back ◀─ a connection is bound to a session's back channel
//! ```
//!
//! An operation is a function of [`Server`], what it works on, and [`Cursor`], where its COMPOUND stands. It appends its
//! results' fields to [`Cursor::results`], or says in a [`Stop`] why the COMPOUND does not go on now.

mod attribute_sets;
mod attributes;
mod back;
mod changes;
mod compound;
mod counts;
mod fattr;
mod files;
mod handles;
mod home;
mod listing;
mod locks;
mod names;
mod opens;
mod pseudo;
mod results;
mod session;
mod settable;
mod status;

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use stag_memory::Shared;
use stag_rpc::{
    Call, CallBack, CallBackError, ConnectionId, Home, Outcome, Procedure as Bound, Repeat, Reply, Service,
    Token, name_in_group,
};
use stag_runtime::ReactorId;
use stag_state::client::{ClientConfig, ClientId, ClientTable};
use stag_state::session::Session;
use stag_state::slot::SlotClaim;
use stag_vfs::{Blocked, Finished, FsError, ReadStep, Store, Timestamp};
use stag_wire::nfs4::compound::locate_write;
use stag_wire::nfs4::{self, StateId, Status4};
use stag_wire::xdr::{Overflow, Reader, XdrError};

use super::limits::RateTurn;
use super::nfs::PIECES_MAX;
use super::waiting::WaitsFor;
use super::{CallContext, ExportTable, ResolvedHandle, SharedExports, SharedLocking, TimeOfDay};
use crate::handle::HANDLE_LEN;
use back::BackCalls;
use compound::{Ended, OperationData};
use counts::OperationCounts;
use pseudo::{NodeIndex, PseudoTree};
use results::Results;
use session::Sessions;

pub use counts::OperationStatistics;
pub use session::SharedSessions;

pub(in crate::server) use compound::Suspended as SuspendedCompound;

/// What a server of version 4 is told once.
#[derive(Clone, Debug)]
pub struct Config4 {
    /// Whether minor versions 1 and 2 are served.
    pub minor_versions: [bool; 2],
    /// Differs from that of every earlier start of the server, and is not 0.
    pub epoch: u32,
    /// Who the server is (so_major_id, eir_server_scope): the same after a restart if clients may reclaim.
    pub identity: Vec<u8>,
    /// Limits of clients and sessions.
    pub clients: ClientConfig,
    /// Octets of arguments and results that COMPOUNDs keep which wait for a store, at one reactor: beyond them clients are told to
    /// try again.
    pub suspended_max: usize,
    /// [`EngineConfig::reverse_credits`](stag_rpc::EngineConfig::reverse_credits) of the engines: without any, clients are called
    /// back over TCP only.
    pub reverse_credits: u32,
}

impl Config4 {
    /// The usual limits, for a server that started at `epoch` and is nobody that was there before.
    #[must_use]
    pub fn new(epoch: u32) -> Config4 {
        Config4 {
            minor_versions: [true; 2],
            epoch: epoch.max(1),
            identity: epoch.to_be_bytes().to_vec(),
            clients: ClientConfig::default(),
            suspended_max: 16 << 20,
            reverse_credits: 0,
        }
    }
}

/// The service NFS version 4.
pub struct Nfs4<S: Store + ?Sized> {
    exports: SharedExports<S>,
    time: TimeOfDay,
    state: State4,
    /// For the data of the operation in hand. Allocated once.
    pieces: Vec<Shared>,
    /// Empty results, for the next COMPOUNDs.
    #[expect(clippy::vec_box, reason = "they move into a cursor and back, and are large")]
    spare: Vec<Box<Results>>,
    /// COMPOUNDs that waited and are over.
    answered: VecDeque<(Token, Box<Results>)>,
}

/// Spare results that are kept.
const SPARE_MAX: usize = 64;

/// The state of version 4 at one reactor.
struct State4 {
    config: Config4,
    sessions: Sessions,
    back: BackCalls,
    pseudo: PseudoTree,
    /// Locks and shares of all versions, and whether they may be reclaimed.
    locking: SharedLocking,
    /// Octets of arguments and results that suspended COMPOUNDs keep.
    suspended: usize,
    counts: OperationCounts,
}

/// What operations work on.
struct Server<'s, S: Store + ?Sized> {
    exports: &'s mut ExportTable<S>,
    state: &'s mut State4,
    /// Empty before each operation, with room for the data of a READ.
    pieces: &'s mut Vec<Shared>,
    /// The reactor's clock, for leases.
    now: Duration,
    /// The time of day, for files.
    time: Timestamp,
}

/// An object, or a node of the pseudo file system.
#[derive(Clone, Copy)]
enum At {
    Object(ResolvedHandle),
    Pseudo(NodeIndex),
}

/// Where a COMPOUND went.
#[derive(Clone, Copy)]
enum Place {
    Here(At),
    /// To the object with this handle, which another reactor has: a COMPOUND whose first handle was of this one may name it for RENAME
    /// or LINK. These answer NFS4ERR_XDEV, as no other operation may (8881-15.2): the others have NFS4ERR_SERVERFAULT, and LOCKT what
    /// [`status::answered`] makes of it.
    Elsewhere([u8; HANDLE_LEN]),
}

impl Place {
    /// The object or node.
    fn at(&self) -> Result<&At, Status4> {
        match self {
            Place::Here(at) => Ok(at),
            Place::Elsewhere(_) => Err(Status4::ServerFault),
        }
    }
}

/// Where a COMPOUND stands.
struct Cursor<'c> {
    minor: u32,
    caller: CallContext<'c>,
    /// The connection of its Call, as long as that is there.
    connection: Option<ConnectionId>,
    current: Option<Place>,
    saved: Option<Place>,
    /// The current state id (8881-16.2.3.1.2), and the one that goes with the saved handle.
    current_state: Option<StateId>,
    saved_state: Option<StateId>,
    session: Option<Arc<Session>>,
    /// The slot that runs it.
    claim: Option<SlotClaim>,
    /// The client asks to keep the reply in the slot.
    keeps_reply: bool,
    results: Box<Results>,
    /// Data of Read chunks.
    data: OperationData<'c>,
    /// What the next READ's data may have, as far as its transport is concerned.
    room: compound::ReplyRoom<'c>,
    /// Operations behind the present one.
    operations_left: u32,
    /// Operations before the present one.
    operations_done: u32,
    /// Octets of payload memory that the results of an operation will take which is under way.
    expected_len: u32,
    /// The present operation has taken its octets of the limits of its export, and is run again.
    has_paid: bool,
}

/// Why a COMPOUND does not go on now.
enum Stop {
    /// The operation failed, and with it the COMPOUND ends. What it appended is taken back.
    Fails(Status4),
    /// As [`Stop::Fails`], with the fields that the operation appended: LOCK's DENIED, SETATTR's attributes that were set.
    FailsWithFields(Status4),
    /// The results have no room: NFS4ERR_REP_TOO_BIG, or NFS4ERR_REP_TOO_BIG_TO_CACHE.
    TooBig,
    /// A step that reads has no answer: the operation is run again, from its start.
    Waits(WaitsFor),
    /// The step that changes something is under way: the rest of the operation follows when it is over.
    Later(WaitsFor, Resume),
    /// A limit of the export lets it go on later: with its rest, or from its start.
    Limited(Box<RateTurn>, Option<Resume>),
}

/// The rest of an operation, once a store is done with its change.
enum Resume {
    /// Nothing: the results are there, and hold if the change reaches stable storage.
    Settled,
    Names(Box<changes::Resume>),
    Files(files::Resume),
}

impl From<Status4> for Stop {
    fn from(status: Status4) -> Stop {
        Stop::Fails(status)
    }
}

impl From<FsError> for Stop {
    fn from(error: FsError) -> Stop {
        Stop::Fails(status::status4(error))
    }
}

impl From<Overflow> for Stop {
    fn from(_: Overflow) -> Stop {
        Stop::TooBig
    }
}

/// What a step of an operation answers.
type Step<T = ()> = Result<T, Stop>;

impl ResolvedHandle {
    /// The answer of a step that reads this object or another one of its store.
    fn known<T>(&self, step: ReadStep<T>) -> Step<T> {
        step.map_err(|blocked| match blocked {
            Blocked::Fails(error) => error.into(),
            Blocked::Waits(ticket) => Stop::Waits(self.waits(ticket)),
        })
    }
}

impl Cursor<'_> {
    /// The current object or node.
    fn at(&self) -> Result<At, Status4> {
        self.place().and_then(Place::at).copied()
    }

    /// Where the current handle led.
    fn place(&self) -> Result<&Place, Status4> {
        self.current.as_ref().ok_or(Status4::NoFilehandle)
    }

    /// The current object, for an operation that answers `otherwise` for nodes of the pseudo file system.
    fn object_or(&self, otherwise: Status4) -> Result<ResolvedHandle, Status4> {
        match self.at()? {
            At::Object(opened) => Ok(opened),
            At::Pseudo(_) => Err(otherwise),
        }
    }

    /// Goes to an object or node: the current state id was the other one's (8881-16.2.3.1.2).
    fn go(&mut self, to: At) {
        self.current = Some(Place::Here(to));
        self.current_state = None;
    }

    /// The client whose session runs this. An operation that needs one has a SEQUENCE before it.
    fn client(&self) -> Result<ClientId, Status4> {
        self.session.as_ref().map(|session| session.client()).ok_or(Status4::OpNotInSession)
    }

    /// Fails if the fields of the operation's results, of at most `len` octets, have no room: before it has an effect.
    fn reserve(&self, len: usize) -> Step {
        if len > self.results.room() { Err(Stop::TooBig) } else { Ok(()) }
    }
}

impl<S: Store + ?Sized> Server<'_, S> {
    /// Puts what was changed on stable storage, after the results were appended.
    fn settle(&mut self, opened: &ResolvedHandle) -> Step {
        match self.exports.volume_mut(opened).store_mut().sync_changes() {
            stag_vfs::Progress::Done(()) => Ok(()),
            stag_vfs::Progress::Later(ticket) => Err(Stop::Later(opened.waits(ticket), Resume::Settled)),
        }
    }

    /// Runs the rest of an operation.
    fn resume(
        &mut self,
        cursor: &mut Cursor<'_>,
        resume: Resume,
        finished: Result<Finished, FsError>,
    ) -> Step {
        match resume {
            Resume::Settled => finished.map(|_| ()).map_err(Stop::from),
            Resume::Names(resume) => changes::resume(self, cursor, *resume, finished),
            Resume::Files(resume) => files::resume(self, cursor, resume, finished),
        }
    }
}

static COMPOUND: Bound = Bound {
    name: "COMPOUND",
    eligible_arguments: 8,
    eligible_results: results::ELIGIBLE_RESULTS,
    // Slots keep replies (8881-2.10.6).
    repeat: Repeat::Harmless,
    locate: Some(locate_data),
};

/// Finds the data of the first WRITE.
fn locate_data(arguments: &mut Reader<'_>) -> Result<u32, XdrError> {
    let start = arguments.unreduced_position();
    let place = locate_write(arguments.clone()).ok_or(XdrError::Truncated)?;
    let before = usize::try_from(place.position - start).map_err(|_| XdrError::Truncated)?;
    arguments.opaque_fixed(before)?;
    Ok(place.len)
}

impl<S: Store + ?Sized> Nfs4<S> {
    /// The service over these exports. `sessions` are those of all reactors, and `locking` is shared with NLM.
    #[must_use]
    pub fn new(
        exports: SharedExports<S>,
        time: TimeOfDay,
        config: Config4,
        sessions: SharedSessions,
        locking: SharedLocking,
    ) -> Nfs4<S> {
        let pseudo = PseudoTree::new(&exports.borrow());
        let sessions = Sessions::new(&config, sessions);
        let own = ReactorId::new(locking.borrow().opens().home().into()).unwrap_or(ReactorId::FIRST);
        let back = BackCalls::new(own, config.reverse_credits);
        let counts = OperationCounts::default();
        let state = State4 { config, sessions, back, pseudo, locking, suspended: 0, counts };
        let pieces = Vec::with_capacity(PIECES_MAX);
        Nfs4 { exports, time, state, pieces, spare: Vec::new(), answered: VecDeque::new() }
    }

    /// The clients, and how long their leases last.
    pub(in crate::server) fn client_table(&self) -> (&ClientTable, Duration) {
        (&self.state.sessions.clients, self.state.config.clients.lease_term)
    }

    /// Ends a client, and frees what it holds here.
    pub(in crate::server) fn evict_client(&mut self, client: ClientId) -> bool {
        let state = &mut self.state;
        let is_known = state.sessions.clients.evict(client);
        state.locking.borrow_mut().free_client(client);
        state.free_ended();
        if is_known {
            state.sessions.publish(None);
        }
        is_known
    }

    /// What is served.
    pub(in crate::server) fn exports(&self) -> SharedExports<S> {
        self.exports.clone()
    }

    /// What clients hold here.
    pub(in crate::server) fn locking(&self) -> &SharedLocking {
        &self.state.locking
    }

    /// The exports have changed.
    pub(in crate::server) fn follow_exports(&mut self) {
        self.state.pseudo.follow(&self.exports.borrow());
    }

    #[expect(clippy::vec_box, reason = "see `spare`")]
    fn recycle(spare: &mut Vec<Box<Results>>, mut results: Box<Results>) {
        if spare.len() < SPARE_MAX {
            results.clear();
            spare.push(results);
        }
    }
}

impl<S: Store + ?Sized> Service for Nfs4<S> {
    fn program(&self) -> u32 {
        nfs4::PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        ExportTable::<S>::versions(self.state.config.minor_versions != [false; 2], nfs4::VERSION)
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<&'static Bound> {
        (procedure == nfs4::COMPOUND).then_some(&COMPOUND)
    }

    // Not inline: its walk would be part of every Call's way to its home.
    #[inline(never)]
    fn home(&self, call: &Call<'_>) -> Home {
        home::home_of_compound(&self.exports.borrow(), &self.state.pseudo, call)
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        let now = call.now();
        let time = self.time.at(now);
        let mut exports = self.exports.borrow_mut();
        let results = self.spare.pop().unwrap_or_default();
        let server =
            Server { exports: &mut exports, state: &mut self.state, pieces: &mut self.pieces, now, time };
        let results = match compound::call(server, call, reply, results) {
            Ended::Answered(mut results) => {
                results.send(reply, &exports.pool);
                results
            }
            Ended::Refused(results) => results,
            Ended::Suspended => return Outcome::Later(call.token()),
        };
        Self::recycle(&mut self.spare, results);
        exports.tell_refused(reply);
        Outcome::Done
    }

    fn subject(&self, call: &Call<'_>) -> Option<String> {
        let first = home::first_handle(call)?;
        let subject = self.exports.borrow().describe(first.0);
        // Asked when a COMPOUND has just begun to wait.
        Some(match self.state.counts.last_waited() {
            Some(operation) => format!("{subject}, in {operation}"),
            None => subject,
        })
    }

    fn stage(&self, _: Token) -> &'static str {
        "the store or the limit of that operation"
    }

    fn poll_later(&mut self, now: Duration) -> Option<Token> {
        if let Some((token, _)) = self.answered.front() {
            return Some(*token);
        }
        self.state.sessions.sweep(now);
        let mut exports = self.exports.borrow_mut();
        while let Some((ready, token, suspended)) = exports.take_compound(now) {
            let time = self.time.at(now);
            let server =
                Server { exports: &mut exports, state: &mut self.state, pieces: &mut self.pieces, now, time };
            if let Some(results) = compound::go_on(server, *suspended, ready, token) {
                self.answered.push_back((token, results));
                return Some(token);
            }
        }
        None
    }

    fn finish(&mut self, token: Token, reply: &mut Reply<'_>) {
        let place = self.answered.iter().position(|(answered, _)| *answered == token);
        let Some((_, mut results)) = place.and_then(|place| self.answered.remove(place)) else {
            return reply.system_error();
        };
        results.send(reply, &self.exports.borrow().pool);
        Self::recycle(&mut self.spare, results);
    }

    fn abandoned(&mut self, token: Token) {
        // It ran to its end, and its slot has the reply: the client asks again over another connection.
        if let Some(place) = self.answered.iter().position(|(answered, _)| *answered == token)
            && let Some((_, results)) = self.answered.remove(place)
        {
            Self::recycle(&mut self.spare, results);
        }
    }

    #[inline]
    fn next_call_back(&mut self) -> Option<CallBack> {
        self.state.back.next_call()
    }

    fn called_back(&mut self, id: u64, end: Result<&[u8], CallBackError>) {
        self.state.called_back(id, end);
    }

    fn connection_ended(&mut self, connection: ConnectionId) {
        self.state.connection_ended(connection);
        let own = self.state.back.own();
        self.exports.borrow_mut().drop_limited(|found| name_in_group(own, found) == connection);
    }

    fn descriptors(&self, _: &mut Vec<RawFd>) {
        // Version 3 tells those of the stores.
    }

    fn next_timeout(&self) -> Option<Duration> {
        if self.answered.is_empty() { self.state.sessions.next_sweep() } else { Some(Duration::ZERO) }
    }
}
