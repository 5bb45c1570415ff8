//! Back channels: which connections are bound to them, and the Calls by which this server proves that clients answer.
//!
//! ```text
//! CREATE_SESSION, BIND_CONN_TO_SESSION, BACKCHANNEL_CTL ─▶ BackChannel::next_call ─▶ next_call_back ─▶ the client
//!                                                              ▲                                         │
//!                                                              └──────── BackChannel::answered ◀── called_back
//! ```
//!
//! Connections are named as in the whole group of reactors, so any of them calls a client back, and the reactor of a connection
//! finds the sessions to tell of its end.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use stag_rpc::{CallBack, CallBackError, ConnectionId, carries_calls_back, name_in_group};
use stag_runtime::ReactorId;
use stag_state::back::{
    BackAnswer, BackCall, BackConnection, BackProbe, BackStage, BackUse, CallbackParameters,
};
use stag_state::session::{Session, SessionKey};
use stag_vfs::Store;
use stag_wire::nfs4::callback::CbSequenceArguments;
use stag_wire::nfs4::compound::{CbCompoundReply, OperationsWriter};
use stag_wire::nfs4::operation::{CbArgument, CbOutcome};
use stag_wire::nfs4::session::{
    BackchannelCtlArguments, BindConnArguments, BindConnOk, CALLBACK_SECURITIES_MAX, CallbackSecurity,
    DirectionFromClient, DirectionFromServer, SequenceArguments, sequence_status,
};
use stag_wire::nfs4::value::{FixedOpaque, List};
use stag_wire::nfs4::{self, CALLBACK_VERSION, Opaque, Status4};
use stag_wire::rpc::{AUTH_BODY_LEN_MAX, CALL_HEADER_LEN_MIN};
use stag_wire::xdr::{Overflow, Reader, Writer};

use super::session::Sessions;
use super::{Cursor, Server, State4, Step};

/// How long a client has to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Octets of a CB_COMPOUND of CB_SEQUENCE alone.
const CB_SEQUENCE_LEN: usize = 4 + 4 + 4 + 4 + 4 + 16 + 3 * 4 + 4 + 4;

/// Octets of results at most: those of CB_SEQUENCE, and a tag.
const RESULTS_LEN_MAX: u32 = 256;

/// Octets of BIND_CONN_TO_SESSION's results.
const BIND_CONN_LEN: usize = 16 + 4 + 4;

/// The Calls to clients of one reactor.
pub(super) struct BackCalls {
    own: ReactorId,
    /// Reverse credits of the engine: without any, clients are not called over RDMA.
    reverse_credits: u32,
    /// Calls to make.
    due: VecDeque<(Arc<Session>, BackCall)>,
    /// Calls under way, by id. A session has one at most.
    under_way: HashMap<u64, (Arc<Session>, BackProbe, BackConnection)>,
    last_id: u64,
}

impl BackCalls {
    pub(super) fn new(own: ReactorId, reverse_credits: u32) -> BackCalls {
        BackCalls { own, reverse_credits, due: VecDeque::new(), under_way: HashMap::new(), last_id: 0 }
    }

    /// The reactor that all this is at.
    pub(super) fn own(&self) -> ReactorId {
        self.own
    }

    /// Names the connection of a COMPOUND, if its client can be called over it.
    fn connection(&self, cursor: &Cursor<'_>) -> Option<BackConnection> {
        let connection = cursor.connection?;
        let is_able = carries_calls_back(connection, self.reverse_credits);
        is_able.then(|| numbered(name_in_group(self.own, connection)))
    }

    /// Makes the next Call of a session's back channel, if there is one now.
    fn advance(&mut self, session: &Arc<Session>) {
        if let Some(call) = session.with_back_channel(|channel| channel.next_call()).flatten() {
            self.due.push_back((Arc::clone(session), call));
        }
    }

    /// The next Call to make.
    #[inline]
    pub(super) fn next_call(&mut self) -> Option<CallBack> {
        if self.due.is_empty() { None } else { self.make_next() }
    }

    #[cold]
    fn make_next(&mut self) -> Option<CallBack> {
        let (session, BackCall { connection, parameters, probe }) = self.due.pop_front()?;
        let CallbackParameters { program, minor_version, user } = parameters;
        self.last_id += 1;
        let arguments = match probe {
            BackProbe::Null => Vec::new(),
            BackProbe::Sequence(sequence_id) => sequence_alone(session.key(), sequence_id, minor_version),
        };
        let call = CallBack {
            id: self.last_id,
            connection: ConnectionId { index: (connection.0 >> 32) as u32, generation: connection.0 as u32 },
            program,
            version: CALLBACK_VERSION,
            procedure: if probe == BackProbe::Null { 0 } else { nfs4::COMPOUND },
            user: user.map(|body| body.iter().copied().collect()),
            arguments,
            results_len_max: RESULTS_LEN_MAX,
            timeout: ANSWER_WITHIN,
        };
        self.under_way.insert(self.last_id, (session, probe, connection));
        Some(call)
    }
}

/// A connection as a number.
fn numbered(connection: ConnectionId) -> BackConnection {
    BackConnection(u64::from(connection.index) << 32 | u64::from(connection.generation))
}

/// The arguments of a CB_COMPOUND of CB_SEQUENCE alone, in slot 0 (8881-20.9.3).
fn sequence_alone(session: SessionKey, sequence_id: u32, minor_version: u32) -> Vec<u8> {
    let sequence = SequenceArguments {
        session: FixedOpaque(session.0),
        sequence_id,
        slot: 0,
        highest_slot: 0,
        keep_reply: false,
    };
    let mut octets = vec![0; CB_SEQUENCE_LEN];
    let mut writer = Writer::new(&mut octets);
    let mut write = || -> Result<(), Overflow> {
        let mut operations = OperationsWriter::begin_callback(&mut writer, &Opaque(b""), minor_version, 0)?;
        operations
            .push(&CbArgument::Sequence(CbSequenceArguments { sequence, referring: List::new(&[]) }))?;
        operations.finish();
        Ok(())
    };
    let written = write();
    debug_assert!(written.is_ok() && writer.position() == CB_SEQUENCE_LEN, "its length is fixed");
    octets
}

/// What the results of such a CB_COMPOUND say.
fn judge(results: &[u8], session: SessionKey, sequence_id: u32) -> BackAnswer {
    let Ok(CbCompoundReply { mut operations, .. }) = CbCompoundReply::parse(Reader::new(results)) else {
        return BackAnswer::Unanswered;
    };
    let Some(Ok(CbOutcome::Sequence(outcome))) = operations.next_item() else {
        return BackAnswer::Unanswered;
    };
    match outcome {
        Ok(ok) if (ok.session.0, ok.sequence_id, ok.slot) == (session.0, sequence_id, 0) => {
            BackAnswer::Answered
        }
        Ok(_) => BackAnswer::Misunderstood,
        // It has been executed, and the reply was lost.
        Err(Status4::RetryUncachedRep) => BackAnswer::Answered,
        Err(Status4::Delay) => BackAnswer::Delayed,
        Err(
            Status4::BadSession
            | Status4::BadSlot
            | Status4::BadHighSlot
            | Status4::SeqMisordered
            | Status4::SeqFalseRetry,
        ) => BackAnswer::Misunderstood,
        Err(_) => BackAnswer::Unanswered,
    }
}

/// Chooses the first of a client's credentials that callbacks here can have. `None`: it gives none.
///
/// Without RPCSEC_GSS here, no handle of it exists: NFS4ERR_NOENT, if the client gives nothing else (8881-18.36.3).
pub(super) fn callback_parameters(
    program: u32,
    securities: &List<'_, CallbackSecurity<'_>, CALLBACK_SECURITIES_MAX>,
    minor_version: u32,
) -> Result<Option<CallbackParameters>, Status4> {
    let mut has_others = false;
    for security in securities.iter() {
        let user = match security {
            CallbackSecurity::None => None,
            CallbackSecurity::User(user) => {
                let mut body = [0; AUTH_BODY_LEN_MAX as usize];
                let mut writer = Writer::new(&mut body);
                writer.value(&user).map_err(|Overflow| Status4::BadXdr)?;
                Some(writer.written().into())
            }
            CallbackSecurity::Gss(_) => {
                has_others = true;
                continue;
            }
        };
        return Ok(Some(CallbackParameters { program, minor_version, user }));
    }
    if has_others { Err(Status4::NoEnt) } else { Ok(None) }
}

/// Whether the longest Call that is made is no longer than the client takes (ca_maxrequestsize of its back channel).
fn is_within(parameters: &CallbackParameters, request_max: u32) -> bool {
    let user = parameters.user.as_ref().map_or(0, |body| body.len());
    CALL_HEADER_LEN_MIN + user + CB_SEQUENCE_LEN <= request_max as usize
}

/// What CREATE_SESSION binds: how the client may be called, and over which connection, if it `wants` that one.
pub(super) fn to_bind(
    calls: &BackCalls,
    cursor: &Cursor<'_>,
    parameters: Option<&CallbackParameters>,
    (wants, request_max): (bool, u32),
) -> Option<BackConnection> {
    let is_able = wants && parameters.is_some_and(|parameters| is_within(parameters, request_max));
    calls.connection(cursor).filter(|_| is_able)
}

impl State4 {
    /// Begins to prove a back channel to which `connection` may just have been bound.
    pub(super) fn prove_back_channel(&mut self, key: SessionKey, connection: BackConnection) {
        let Some(session) = self.sessions.find(key).map(Arc::clone) else { return };
        let is_bound = session.with_back_channel(|channel| channel.back_use(connection).is_some());
        if is_bound == Some(true) {
            self.sessions.note_bound(connection, key);
        }
        self.back.advance(&session);
    }

    /// A Call to a client is over.
    pub(super) fn called_back(&mut self, id: u64, end: Result<&[u8], CallBackError>) {
        let Some((session, probe, connection)) = self.back.under_way.remove(&id) else { return };
        let answer = match (end, probe) {
            (Err(_), _) => BackAnswer::Unanswered,
            (Ok(_), BackProbe::Null) => BackAnswer::Answered,
            (Ok(results), BackProbe::Sequence(sequence_id)) => judge(results, session.key(), sequence_id),
        };
        let is_bound = session.with_back_channel(|channel| {
            channel.answered(answer);
            channel.back_use(connection).is_some()
        });
        if is_bound != Some(true) {
            self.sessions.forget_bound(connection, session.key());
        }
        self.back.advance(&session);
    }

    /// A connection of a client ended.
    pub(super) fn connection_ended(&mut self, connection: ConnectionId) {
        let connection = numbered(connection);
        for session in self.sessions.take_bound(connection) {
            session.with_back_channel(|channel| channel.connection_ended(connection));
            self.back.advance(&session);
        }
    }
}

/// What SEQUENCE says of callbacks (8881-18.46.3).
#[inline]
pub(super) fn status_flags(session: &Session) -> u32 {
    let paths_down = session.lease().back_paths().are_down();
    if paths_down || session.is_back_channel_broken() { flags_of_broken(session, paths_down) } else { 0 }
}

#[cold]
fn flags_of_broken(session: &Session, paths_down: bool) -> u32 {
    let of_session = match session.with_back_channel(|channel| channel.stage()) {
        Some(BackStage::Down) => sequence_status::CB_PATH_DOWN_SESSION,
        Some(BackStage::Faulty) => sequence_status::BACKCHANNEL_FAULT,
        _ => 0,
    };
    of_session | if paths_down { sequence_status::CB_PATH_DOWN } else { 0 }
}

pub(super) fn bind_conn_to_session<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &BindConnArguments,
) -> Step {
    let key = SessionKey(arguments.session.0);
    let State4 { sessions, back, .. } = &mut *server.state;
    let session = sessions.find(key).map(Arc::clone).ok_or(Status4::BadSession)?;
    cursor.reserve(BIND_CONN_LEN)?;
    let connection = back.connection(cursor);
    let request_max = session.back().request_max;
    let wanted = session.with_back_channel(|channel| {
        let connection = connection
            .filter(|_| channel.parameters().is_some_and(|parameters| is_within(parameters, request_max)));
        direction(arguments.direction, connection.is_some(), connection.and_then(|id| channel.back_use(id)))
            .inspect(|direction| {
                let back_use = match direction {
                    DirectionFromServer::Fore => None,
                    DirectionFromServer::Back => Some(BackUse::Back),
                    DirectionFromServer::Both => Some(BackUse::Both),
                };
                if let (Some(connection), Some(back_use)) = (connection, back_use) {
                    channel.bind(connection, back_use);
                }
            })
    });
    let direction = wanted.ok_or(Status4::BadSession)??;
    if let (Some(connection), false) = (connection, direction == DirectionFromServer::Fore) {
        server.state.prove_back_channel(key, connection);
    }
    cursor.results.value(&BindConnOk { session: arguments.session, direction, use_rdma: false })?;
    Ok(())
}

/// For which channels a connection is, if a client asks for these (8881-18.34.3). `is_able`: callbacks can go over it; `bound`: what
/// it is for already. Changes are refused.
fn direction(
    asked: DirectionFromClient,
    is_able: bool,
    bound: Option<BackUse>,
) -> Result<DirectionFromServer, Status4> {
    use DirectionFromClient::{Back, BackOrBoth, Fore, ForeOrBoth};
    match (asked, bound) {
        (Fore, None) => Ok(DirectionFromServer::Fore),
        (ForeOrBoth, None) if !is_able => Ok(DirectionFromServer::Fore),
        (Back | BackOrBoth, None) if !is_able => Err(Status4::Inval),
        (Back, None | Some(BackUse::Back)) | (BackOrBoth, Some(BackUse::Back)) => {
            Ok(DirectionFromServer::Back)
        }
        (ForeOrBoth | BackOrBoth, None | Some(BackUse::Both)) => Ok(DirectionFromServer::Both),
        (Fore, Some(_)) | (ForeOrBoth, Some(BackUse::Back)) | (Back, Some(BackUse::Both)) => {
            Err(Status4::Inval)
        }
    }
}

pub(super) fn backchannel_ctl<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &BackchannelCtlArguments<'_>,
) -> Step {
    cursor.client()?;
    let program = arguments.callback_program;
    let asked = callback_parameters(program, &arguments.callback_securities, cursor.minor)?;
    let Some(session) = &cursor.session else { return Err(Status4::OpNotInSession.into()) };
    session.with_back_channel(|channel| {
        // Without credentials, those that there are stay.
        let known = || Some(CallbackParameters { program, ..channel.parameters()?.clone() });
        if let Some(parameters) = asked.or_else(known) {
            channel.set_parameters(parameters);
        }
    });
    server.state.back.advance(session);
    Ok(())
}

impl Sessions {
    /// A connection is bound to a session's back channel.
    fn note_bound(&self, connection: BackConnection, key: SessionKey) {
        self.shared.with(|shared| {
            let keys = shared.bound.entry(connection).or_default();
            // Sessions that ended, too.
            keys.retain(|other| *other != key && shared.sessions.contains_key(other));
            keys.push(key);
        });
    }

    /// A connection is not bound to a back channel any more.
    fn forget_bound(&self, connection: BackConnection, key: SessionKey) {
        self.shared.with(|shared| {
            if let Some(keys) = shared.bound.get_mut(&connection) {
                keys.retain(|other| *other != key);
                if keys.is_empty() {
                    shared.bound.remove(&connection);
                }
            }
        });
    }

    /// The sessions to whose back channels a connection was bound that ended.
    fn take_bound(&self, connection: BackConnection) -> Vec<Arc<Session>> {
        self.shared.with(|shared| {
            let keys = shared.bound.remove(&connection).unwrap_or_default();
            keys.iter().filter_map(|key| shared.sessions.get(key).cloned()).collect()
        })
    }
}
