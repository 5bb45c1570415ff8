//! Calls that services make to their clients ([`Service::next_call_back`](crate::Service::next_call_back)), on the connections
//! that these clients opened.
//!
//! ```text
//! next_call_back ─▶ Waiting ─ a credit, or room ─▶ UnderWay ─ Reply, deadline, end of the connection ─▶ called_back
//!                    │  └─ refused, deadline, end of the connection ──────────────────────────────────▶ called_back
//!                    └─ the connection is another reactor's: carried there ─▶ the same there, carried back ─▶ called_back
//! ```
//!
//! This module has no way of its own for a Call. On an RDMA connection it is a reverse Call ([`crate::both_ways`]), on a byte
//! stream a record between the Replies (`stream/connection/calling.rs`), and for another reactor's connection a pair of records
//! in the lanes ([`crate::carried`]).
//!
//! Of each connection at most [`CALLS_BACK_MAX`] are not over. Each is over at its deadline at the latest, whatever its client does.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use stag_fabric::Provider;
use stag_runtime::ReactorId;
use stag_wire::rpc::{CALL_HEADER_LEN_MIN, OpaqueAuth, flavor};
use stag_wire::xdr::padded;

use crate::ConnectionId;
use crate::both_ways::begin_reverse;
use crate::carried::{is_carried, name_elsewhere, seat};
use crate::client::slot::CallKind;
use crate::client::{CallError, CallRefused, Credentials, ReplyMode, Request};
use crate::engine::Engine;
use crate::service::Services;
use crate::state::EngineState;
use crate::stream::{is_datagram, is_stream};

/// Calls to the client of one connection that may be under way, or wait for that, at once.
pub const CALLS_BACK_MAX: usize = 16;

/// Calls that one pass takes from services at most.
const CALL_BACK_BURST: usize = 64;

/// A Call that a service makes to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallBack {
    /// Comes back in [`Service::called_back`](crate::Service::called_back).
    pub id: u64,
    /// The connection that the client opened: as [`Call::connection`](crate::Call::connection) named it at this reactor, or as
    /// [`name_in_group`] does.
    pub connection: ConnectionId,
    /// Program number.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure of the version.
    pub procedure: u32,
    /// The body of an AUTH_SYS credential, of at most 400 octets; `None`: AUTH_NONE.
    pub user: Option<Box<[u8]>>,
    /// The encoded arguments. The whole Call has to fit inline (8167-5.3-c), and over TCP a page.
    pub arguments: Vec<u8>,
    /// Octets of results at most. Over RDMA they have to fit inline.
    pub results_len_max: u32,
    /// Time after which the Call is over without a Reply, from the pass on in which the engine takes it. A connection over TCP is
    /// looked at once a second.
    pub timeout: Duration,
}

impl CallBack {
    /// Octets of its RPC message.
    pub(crate) fn message_len(&self) -> usize {
        let user = self.user.as_ref().map_or(0, |body| padded(body.len() as u32) as usize);
        CALL_HEADER_LEN_MIN + user + self.arguments.len()
    }

    /// Its credential.
    pub(crate) fn credential(&self) -> OpaqueAuth<'_> {
        match &self.user {
            Some(body) => OpaqueAuth { flavor: flavor::AUTH_SYS, body },
            None => OpaqueAuth::NONE,
        }
    }

    /// The request that it is, named `key`.
    fn request(&self, key: u64, timeout: Duration) -> Request<'_> {
        Request {
            program: self.program,
            version: self.version,
            procedure: self.procedure,
            credentials: self.user.as_deref().map_or(Credentials::None, Credentials::Sys),
            user: key,
            timeout,
            results_len_max: self.results_len_max,
            reply_mode: ReplyMode::Chunk,
            retransmit: false,
        }
    }
}

/// Why a Call to a client brought no results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallBackError {
    /// It was not made, and nothing was sent.
    #[error(transparent)]
    Refused(#[from] CallRefused),
    /// It was made.
    #[error(transparent)]
    Failed(#[from] CallError),
}

/// How a Call to a client ended: its encoded results, or why there are none.
pub(crate) type CallBackEnd = Result<Vec<u8>, CallBackError>;

/// Returns the name of a connection that is the same at each reactor of a group. `own` is the reactor that calls it
/// `connection`; of an engine that is alone it is [`ReactorId`] 0.
///
/// [`Service::connection_ended`](crate::Service::connection_ended) tells this name.
#[must_use]
pub fn name_in_group(own: ReactorId, connection: ConnectionId) -> ConnectionId {
    // What came by UDP has no connection, and so no other name.
    if is_carried(connection) || is_datagram(connection) {
        connection
    } else {
        name_elsewhere(own, connection)
    }
}

/// Whether clients can be called over a connection: over TCP always, over RDMA if the engines of the group have
/// `reverse_credits`. Such Calls are still refused over a connection whose client says that it takes none
/// ([`CallRefused::NotTaken`]).
#[must_use]
pub fn carries_calls_back(connection: ConnectionId, reverse_credits: u32) -> bool {
    let connection = seat(connection).map_or(connection, |(_, there)| there);
    if is_stream(connection) { !is_datagram(connection) } else { reverse_credits > 0 }
}

/// Who is told how a Call to a client ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallBackOwner {
    /// A service here: its place in the registry, and its name for the Call.
    Service { service: usize, id: u64 },
    /// The reactor that carried it here, and its key there.
    Reactor { from: ReactorId, key: u64 },
}

/// A Call that waits for a credit, for memory, or for room.
#[derive(Debug)]
struct WaitingCall {
    key: u64,
    call: CallBack,
    deadline: Duration,
}

/// All Calls to clients of one engine that are not over.
#[derive(Debug, Default)]
pub(crate) struct CallsBack {
    /// By key: who is told, and the connection as it was named.
    owners: HashMap<u64, (CallBackOwner, ConnectionId)>,
    /// How many of them each connection has.
    counts: HashMap<ConnectionId, usize>,
    last_key: u64,
    /// In the order in which they came.
    waiting: VecDeque<WaitingCall>,
    /// Calls that are over, whose owner was not told yet.
    ended: VecDeque<(u64, CallBackEnd)>,
    /// Connections that ended, and of which services were not told.
    gone: Vec<ConnectionId>,
    /// One of these three has something: a pass of an engine without such Calls looks at nothing else.
    is_due: bool,
}

impl CallsBack {
    /// Takes a Call on, or ends it at once.
    fn accept(&mut self, owner: CallBackOwner, call: CallBack, now: Duration) {
        self.is_due = true;
        let key = self.last_key.wrapping_add(1);
        self.last_key = key;
        let count = self.counts.entry(call.connection).or_default();
        *count += 1;
        let is_beyond = *count > CALLS_BACK_MAX;
        self.owners.insert(key, (owner, call.connection));
        if is_beyond {
            return self.end(key, Err(CallRefused::TooManyCallsBack.into()));
        }
        let deadline = now.saturating_add(call.timeout);
        self.waiting.push_back(WaitingCall { key, call, deadline });
    }

    /// Takes on a Call that another reactor carried here.
    pub(crate) fn accept_carried(&mut self, from: ReactorId, key: u64, call: CallBack, now: Duration) {
        self.accept(CallBackOwner::Reactor { from, key }, call, now);
    }

    /// Ends a Call: its owner is told in the next pass at the latest.
    #[cold]
    pub(crate) fn end(&mut self, key: u64, end: CallBackEnd) {
        self.ended.push_back((key, end));
        self.is_due = true;
    }

    /// A connection that was accepted ended.
    pub(crate) fn note_gone(&mut self, connection: ConnectionId) {
        self.gone.push(connection);
        self.is_due = true;
    }

    /// Takes out a Call that is over, with its owner.
    fn take_ended(&mut self) -> Option<(CallBackOwner, CallBackEnd)> {
        let (key, end) = self.ended.pop_front()?;
        let owner = self.owners.remove(&key);
        debug_assert!(owner.is_some(), "a Call to a client is over once");
        let (owner, connection) = owner?;
        if let Some(count) = self.counts.get_mut(&connection) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&connection);
            }
        }
        Some((owner, end))
    }

    /// Whether a pass has something to do.
    #[inline(always)]
    pub(crate) const fn is_due(&self) -> bool {
        self.is_due
    }

    /// Whether services are still to be told something.
    pub(crate) fn has_news(&self) -> bool {
        !self.ended.is_empty() || !self.gone.is_empty()
    }

    /// When the first that waits has waited for too long.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.waiting.iter().map(|waiting| waiting.deadline).min()
    }
}

/// Whether a Call could be made.
enum Made {
    /// It is under way.
    UnderWay,
    /// It cannot be made now.
    Waits(CallRefused),
    /// It cannot be made.
    Refused(CallRefused),
}

impl Made {
    fn of(made: Result<(), CallRefused>) -> Made {
        match made {
            Ok(()) => Made::UnderWay,
            Err(refused @ (CallRefused::NoCredit | CallRefused::NoMemory | CallRefused::FabricBusy)) => {
                Made::Waits(refused)
            }
            Err(refused) => Made::Refused(refused),
        }
    }
}

/// Makes the Calls to clients that services ask for, and tells services how they ended. Returns how many there were.
#[inline(always)]
pub(crate) fn call_clients_back<P: Provider, S: Services>(engine: &mut Engine<P, S>) -> usize {
    let mut count = 0;
    while count < CALL_BACK_BURST
        && let Some((service, call)) = engine.services.next_call_back()
    {
        count += 1;
        take_call_back(&mut engine.core, service, call);
    }
    if engine.core.calls_back.is_due() {
        count += advance_calls_back(engine);
    }
    count
}

// Not inline, as the next: they would be part of every pass.
#[inline(never)]
fn take_call_back(state: &mut EngineState, service: usize, call: CallBack) {
    let now = state.now;
    let owner = CallBackOwner::Service { service, id: call.id };
    state.calls_back.accept(owner, call, now);
}

#[inline(never)]
fn advance_calls_back<P: Provider, S: Services>(engine: &mut Engine<P, S>) -> usize {
    let mut count = 0;
    for connection in std::mem::take(&mut engine.core.calls_back.gone) {
        count += 1;
        let connection = name_in_group(own_reactor(&engine.core), connection);
        engine.services.connection_ended(connection);
    }
    for _ in 0..engine.core.calls_back.waiting.len() {
        let Some(waiting) = engine.core.calls_back.waiting.pop_front() else { break };
        match make_call_back(engine, &waiting) {
            Made::Waits(_) if engine.core.now < waiting.deadline => {
                engine.core.calls_back.waiting.push_back(waiting);
                continue;
            }
            Made::UnderWay => {}
            Made::Waits(refused) | Made::Refused(refused) => {
                engine.core.calls_back.end(waiting.key, Err(refused.into()));
            }
        }
        count += 1;
    }
    while let Some((owner, end)) = engine.core.calls_back.take_ended() {
        count += 1;
        match owner {
            CallBackOwner::Service { service, id } => {
                engine.services.called_back(service, id, end.as_deref().map_err(|error| *error));
            }
            CallBackOwner::Reactor { from, key } => {
                if let Some(carrier) = &mut engine.core.carrier {
                    carrier.send_called_back(from, key, end);
                }
            }
        }
    }
    let calls = &mut engine.core.calls_back;
    calls.is_due = !calls.waiting.is_empty() || calls.has_news();
    count
}

/// The reactor of this engine.
fn own_reactor(state: &EngineState) -> ReactorId {
    state.carrier.as_ref().map_or(ReactorId::FIRST, |carrier| carrier.own)
}

/// Makes a Call on its connection, or carries it to the reactor that has it.
fn make_call_back<P: Provider, S: Services>(engine: &mut Engine<P, S>, waiting: &WaitingCall) -> Made {
    let WaitingCall { key, call, deadline } = waiting;
    let timeout = deadline.saturating_sub(engine.core.now);
    let mut connection = call.connection;
    if let Some((reactor, there)) = seat(connection) {
        if reactor != own_reactor(&engine.core) {
            let Some(carrier) = engine.core.carrier.as_mut().filter(|carrier| carrier.knows(reactor)) else {
                return Made::Refused(CallRefused::NotConnected);
            };
            carrier.send_call_back(reactor, *key, CallBack { connection: there, timeout, ..call.clone() });
            return Made::UnderWay;
        }
        connection = there;
    }
    if !is_stream(connection) {
        let request = call.request(*key, timeout);
        let made = begin_reverse(engine, connection, &request, CallKind::Service, |writer| {
            writer.opaque_fixed(&call.arguments)
        });
        return Made::of(made.map(|_| ()));
    }
    let seed = engine.next_seed();
    let Some(streams) = &mut engine.streams else { return Made::Refused(CallRefused::NotConnected) };
    Made::of(streams.call_back(&mut engine.core, connection, (*key, call), (*deadline, seed)))
}
