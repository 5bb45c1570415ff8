//! Clients and sessions: EXCHANGE_ID, CREATE_SESSION, SEQUENCE, and what belongs to them.
//!
//! One reactor, the registrar, has the clients. Sessions are found by any reactor. `back.rs` has their back channels.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use stag_state::back::BackConnection;
use stag_state::client::{ClientId, ClientTable, ExchangeRequest, Principal, SessionGrant, SessionRequest};
use stag_state::session::{ChannelLimits, Session, SessionBusy, SessionKey};
use stag_state::slot::{Sequenced, SlotRequest};
use stag_vfs::Store;
use stag_wire::nfs4::client_id::{SecinfoOk, SecinfoStyle, SecurityFlavor};
use stag_wire::nfs4::session::{
    ChannelAttributes, CreateSessionArguments, CreateSessionOk, ExchangeIdArguments, ExchangeIdOk,
    SequenceArguments, SequenceOk, ServerOwner, StateProtected, StateProtection, exchange_flag, session_flag,
};
use stag_wire::nfs4::value::FixedOpaque;
use stag_wire::nfs4::{Opaque, SessionId, Status4};
use stag_wire::rpc::flavor;

use super::super::CallContext;
use super::results::REPLY_HEADER_LEN;
use super::status::{destroy_status, exchange_status, sequence_status, session_status};
use super::{At, Config4, Cursor, Server, State4, Step, back};
use crate::server::locking::site_of;
use crate::sync::{AtomicU64, Mutex, Ordering};

/// The sessions of all reactors of a server.
#[derive(Clone, Debug, Default)]
pub struct SharedSessions(Arc<SessionRegistry>);

#[derive(Debug, Default)]
struct SessionRegistry {
    maps: Mutex<SessionMaps>,
    /// Grows when sessions end: each reactor lets go of them then.
    endings: AtomicU64,
}

/// The sessions that all reactors find.
#[derive(Debug, Default)]
pub(super) struct SessionMaps {
    pub(super) sessions: HashMap<SessionKey, Arc<Session>>,
    /// Those that may have a connection bound to their back channels.
    pub(super) bound: HashMap<BackConnection, Vec<SessionKey>>,
}

impl SharedSessions {
    pub(super) fn with<R>(&self, look: impl FnOnce(&mut SessionMaps) -> R) -> R {
        // A panic of another holder leaves a whole map behind.
        look(&mut self.0.maps.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn endings(&self) -> u64 {
        // Relaxed: the map has a lock of its own, and a reactor that sees the number late lets go late.
        self.0.endings.load(Ordering::Relaxed)
    }

    fn note_endings(&self) {
        self.0.endings.fetch_add(1, Ordering::Relaxed);
    }
}

/// Clients and sessions, as one reactor has them.
pub(super) struct Sessions {
    /// Empty everywhere but at the registrar.
    pub(super) clients: ClientTable,
    pub(super) shared: SharedSessions,
    /// The session of the last request.
    last: Option<Arc<Session>>,
    /// Those that were used here.
    known: HashMap<SessionKey, Arc<Session>>,
    /// [`SharedSessions::endings`] when those that ended were last removed.
    endings: u64,
    /// When clients that were not confirmed in time are looked for.
    next_sweep: Duration,
    lease_term: Duration,
}

impl Sessions {
    pub(super) fn new(config: &Config4, shared: SharedSessions) -> Sessions {
        let clients = ClientTable::new(config.clients, config.epoch);
        Sessions {
            clients,
            shared,
            last: None,
            known: HashMap::new(),
            endings: 0,
            next_sweep: Duration::ZERO,
            lease_term: config.clients.lease_term,
        }
    }

    /// Lets go of sessions that ended, and forgets clients that were not confirmed in time, if some may be due.
    #[inline]
    pub(super) fn sweep(&mut self, now: Duration) {
        if self.endings != self.shared.endings() {
            self.let_go();
        }
        if now >= self.next_sweep {
            self.next_sweep = now + self.lease_term;
            self.clients.sweep(now);
        }
    }

    /// When [`Sessions::sweep`] has something to do.
    pub(super) fn next_sweep(&self) -> Option<Duration> {
        // One that sleeps lets go of sessions, too.
        (self.clients.has_unconfirmed() || !self.known.is_empty()).then_some(self.next_sweep)
    }

    /// Lets go of sessions that ended: what they keep is no longer counted.
    #[cold]
    fn let_go(&mut self) {
        self.endings = self.shared.endings();
        let known = &mut self.known;
        self.shared.with(|shared| known.retain(|key, _| shared.sessions.contains_key(key)));
        self.last = self.last.take().filter(|session| self.known.contains_key(&session.key()));
    }

    /// Finds a session.
    pub(super) fn find(&mut self, key: SessionKey) -> Option<&Arc<Session>> {
        if self.last.as_ref().is_none_or(|session| session.key() != key) {
            self.last = Some(self.find_else(key)?);
        }
        self.last.as_ref()
    }

    #[cold]
    fn find_else(&mut self, key: SessionKey) -> Option<Arc<Session>> {
        if let Some(known) = self.known.get(&key) {
            return Some(Arc::clone(known));
        }
        let found = self.shared.with(|shared| shared.sessions.get(&key).cloned())?;
        self.known.insert(key, Arc::clone(&found));
        Some(found)
    }

    /// Forgets a session that takes no more requests.
    fn forget(&mut self, key: SessionKey) {
        self.known.remove(&key);
        self.last = self.last.take().filter(|session| session.key() != key);
    }

    /// Tells all reactors of the sessions that there are, after one was made or ended.
    pub(super) fn publish(&mut self, made: Option<SessionKey>) {
        let clients = &self.clients;
        let have_ended = self.shared.with(|SessionMaps { sessions, .. }| {
            if let Some(key) = made
                && let Some(session) = clients.session(key)
            {
                sessions.insert(key, Arc::clone(session));
            }
            let have_ended = sessions.len() > clients.session_count();
            if have_ended {
                sessions.retain(|key, _| clients.session(*key).is_some());
            }
            have_ended
        });
        if have_ended {
            self.shared.note_endings();
            self.let_go();
        }
    }
}

impl State4 {
    /// Frees what clients held that ended.
    pub(super) fn free_ended(&mut self) {
        while let Some(ended) = self.sessions.clients.poll_ended() {
            self.locking.borrow_mut().client_ended(&ended);
        }
    }
}

/// A number for who sends: the same for the same user.
fn principal(asker: &CallContext<'_>) -> Principal {
    Principal(asker.caller.as_ref().map_or(0, |caller| 1 << 32 | u64::from(caller.uid)))
}

pub(super) fn exchange_id<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &ExchangeIdArguments<'_>,
) -> Step {
    // RFC 7862 adds a flag.
    let added = if cursor.minor < 2 { exchange_flag::SUPPORTS_FENCES } else { 0 };
    if arguments.flags & !(exchange_flag::FROM_CLIENT & !added) != 0 {
        return Err(Status4::Inval.into());
    }
    match arguments.protection {
        StateProtection::None => {}
        // Without RPCSEC_GSS there is no machine credential (8881-18.35.3).
        StateProtection::MachineCredential(_) => return Err(Status4::Inval.into()),
        StateProtection::Ssv(wishes)
            if wishes.hashes.is_empty() || wishes.ciphers.is_empty() || wishes.window == 0 =>
        {
            return Err(Status4::Inval.into());
        }
        StateProtection::Ssv(_) => return Err(Status4::EncrAlgUnsupp.into()),
    }
    let Config4 { identity, .. } = &server.state.config;
    // Before it has an effect: fields, and three names.
    let results_len = 64 + 3 * (8 + identity.len());
    cursor.reserve(results_len)?;
    let request = ExchangeRequest {
        owner: arguments.owner.id.0,
        verifier: arguments.owner.verifier.0,
        principal: principal(&cursor.caller),
        site: site_of(cursor.caller.peer),
        is_update: arguments.flags & exchange_flag::UPDATE_CONFIRMED != 0,
        minor_version: cursor.minor,
    };
    let State4 { sessions, locking, .. } = &mut *server.state;
    let has_state = |client| locking.borrow().opens().has_state(client);
    let exchanged = sessions.clients.exchange_id(&request, has_state, server.now);
    server.state.free_ended();
    let exchanged = exchanged.map_err(exchange_status)?;
    server.state.sessions.publish(None);
    let mut flags = exchange_flag::USE_NON_PNFS;
    if exchanged.is_confirmed {
        flags |= exchange_flag::CONFIRMED;
    }
    let identity = &server.state.config.identity;
    cursor.results.value(&ExchangeIdOk {
        clientid: exchanged.client.0,
        sequence_id: exchanged.sequence_id,
        flags,
        protection: StateProtected::None,
        server_owner: ServerOwner { minor: 0, major: Opaque(identity) },
        server_scope: Opaque(identity),
        implementation: None,
    })?;
    Ok(())
}

fn limits(asked: &ChannelAttributes) -> ChannelLimits {
    ChannelLimits {
        request_max: asked.request_max,
        response_max: asked.response_max,
        response_kept_max: asked.response_cached_max,
        operations_max: asked.operations_max,
        slots: asked.requests_max,
    }
}

fn attributes(granted: &ChannelLimits) -> ChannelAttributes {
    ChannelAttributes {
        header_pad: 0,
        request_max: granted.request_max,
        response_max: granted.response_max,
        response_cached_max: granted.response_kept_max,
        operations_max: granted.operations_max,
        requests_max: granted.slots,
        rdma_ird: None,
    }
}

/// Octets of CREATE_SESSION's results.
const CREATE_SESSION_LEN: usize = 16 + 8 + 2 * 28;

pub(super) fn create_session<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &CreateSessionArguments<'_>,
) -> Step {
    const KNOWN_FLAGS: u32 = 7;
    if arguments.flags & !KNOWN_FLAGS != 0 {
        return Err(Status4::Inval.into());
    }
    cursor.reserve(CREATE_SESSION_LEN)?;
    let callback =
        back::callback_parameters(arguments.callback_program, &arguments.callback_securities, cursor.minor)?;
    let wants = arguments.flags & session_flag::CONN_BACK_CHANNEL != 0;
    let asked = (wants, arguments.back.request_max);
    let back_connection = back::to_bind(&server.state.back, cursor, callback.as_ref(), asked);
    let request = SessionRequest {
        client: ClientId(arguments.clientid),
        sequence_id: arguments.sequence_id,
        principal: principal(&cursor.caller),
        fore: limits(&arguments.fore),
        back: limits(&arguments.back),
        callback: callback.as_ref(),
        back_connection,
    };
    let granted = server.state.sessions.clients.create_session(&request, server.now);
    server.state.free_ended();
    let SessionGrant { key, sequence_id, fore, back, has_back_connection } =
        granted.map_err(session_status)?;
    server.state.sessions.publish(Some(key));
    if let Some(connection) = back_connection {
        server.state.prove_back_channel(key, connection);
    }
    cursor.results.value(&CreateSessionOk {
        session: FixedOpaque(key.0),
        sequence_id,
        // No reply survives a restart, and no connection becomes another one.
        flags: if has_back_connection { session_flag::CONN_BACK_CHANNEL } else { 0 },
        fore: attributes(&fore),
        back: attributes(&back),
    })?;
    Ok(())
}

/// Octets of SEQUENCE's results.
const SEQUENCE_LEN: usize = 16 + 5 * 4;

/// What SEQUENCE makes of a COMPOUND.
pub(super) enum Begun {
    /// It runs.
    Runs,
    /// It ran before, and its reply is in the results.
    Repeated,
    /// It ran before, and its reply is gone: the next operation says so.
    Forgotten,
}

/// SEQUENCE. `fingerprint` tells the COMPOUND from others; `request_len` is that of its Call.
pub(super) fn sequence<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &SequenceArguments,
    (fingerprint, request_len): (u64, u64),
) -> Result<Begun, super::Stop> {
    let key = SessionKey(arguments.session.0);
    let session = Arc::clone(server.state.sessions.find(key).ok_or(Status4::BadSession)?);
    let fore = session.fore();
    if request_len > u64::from(fore.request_max) {
        return Err(Status4::ReqTooBig.into());
    }
    if cursor.operations_left >= fore.operations_max {
        return Err(Status4::TooManyOps.into());
    }
    // Before the slot is taken: a SEQUENCE that fails leaves it as it is.
    let results_len = REPLY_HEADER_LEN + cursor.results.total_len() + SEQUENCE_LEN;
    if results_len > fore.response_max as usize {
        return Err(Status4::RepTooBig.into());
    }
    if arguments.keep_reply && results_len > fore.response_kept_max as usize {
        return Err(Status4::RepTooBigToCache.into());
    }
    let request = SlotRequest {
        slot: arguments.slot,
        sequence_id: arguments.sequence_id,
        highest_slot: arguments.highest_slot,
        fingerprint,
    };
    let sequenced = session.sequence(&request, server.now).map_err(|refused| {
        if refused == stag_state::session::SessionRefused::NoSession {
            server.state.sessions.forget(key);
        }
        sequence_status(refused)
    })?;
    match sequenced {
        Sequenced::New(claim) => {
            cursor.claim = Some(claim);
            cursor.keeps_reply = arguments.keep_reply;
            let header = REPLY_HEADER_LEN;
            let most = (fore.response_max as usize).saturating_sub(header);
            cursor.results.limit_to(most);
            if arguments.keep_reply {
                cursor.results.limit_to((fore.response_kept_max as usize).saturating_sub(header));
            }
        }
        Sequenced::Retry(claim) => {
            let results = &mut cursor.results;
            session.slots().repeat(claim, |kept| results.restore(kept));
            return Ok(Begun::Repeated);
        }
        Sequenced::RetryUnkept => {}
    }
    let slots = session.slots();
    // It always fits: no session has a limit that it exceeds.
    cursor.results.fixed::<SEQUENCE_LEN>(&SequenceOk {
        session: arguments.session,
        sequence_id: arguments.sequence_id,
        slot: arguments.slot,
        highest_slot: slots.highest(),
        // It does not follow the client's credits, which bound requests by themselves.
        target_highest_slot: slots.highest(),
        status_flags: back::status_flags(&session),
    })?;
    cursor.session = Some(session);
    Ok(if cursor.claim.is_some() { Begun::Runs } else { Begun::Forgotten })
}

pub(super) fn destroy_session<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &SessionId,
) -> Step {
    let key = SessionKey(arguments.0);
    let own = cursor.session.as_ref().is_some_and(|session| session.key() == key);
    if own && cursor.operations_left > 0 {
        return Err(Status4::NotOnlyOp.into());
    }
    let sessions = &mut server.state.sessions;
    match sessions.clients.destroy_session(key, own) {
        Ok(true) => {
            sessions.publish(None);
            Ok(())
        }
        Ok(false) => Err(Status4::BadSession.into()),
        Err(SessionBusy) => Err(Status4::Delay.into()),
    }
}

pub(super) fn destroy_clientid<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &u64,
) -> Step {
    let client = ClientId(*arguments);
    if cursor.session.as_ref().is_some_and(|session| session.client() == client) {
        return Err(Status4::ClientidBusy.into());
    }
    let State4 { sessions, locking, .. } = &mut *server.state;
    let has_state = locking.borrow().opens().has_state(client);
    sessions.clients.destroy_client(client, has_state).map_err(destroy_status)?;
    server.state.free_ended();
    Ok(())
}

pub(super) fn reclaim_complete<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    of_one_file_system: &bool,
) -> Step {
    let client = cursor.client()?;
    if *of_one_file_system {
        // No file system moves here, so nothing of one is reclaimed.
        cursor.at()?;
        return Ok(());
    }
    if !server.state.sessions.clients.reclaim_complete(client) {
        return Err(Status4::CompleteAlready.into());
    }
    let owner = cursor.session()?.owner();
    server.state.locking.borrow_mut().reclaim_complete(owner, server.now);
    Ok(())
}

/// The flavors that are taken, the preferred one first.
const FLAVORS: [SecurityFlavor<'static>; 2] =
    [SecurityFlavor::Other(flavor::AUTH_SYS), SecurityFlavor::Other(flavor::AUTH_NONE)];

/// Appends the results of SECINFO and SECINFO_NO_NAME, which take the current handle away (8881-2.6.3.1.1.8).
pub(super) fn append_flavors(cursor: &mut Cursor<'_>) -> Step {
    cursor.results.value(&SecinfoOk::new(&FLAVORS))?;
    (cursor.current, cursor.current_state) = (None, None);
    Ok(())
}

pub(super) fn secinfo_no_name<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &SecinfoStyle,
) -> Step {
    let at = cursor.at()?;
    if *arguments == SecinfoStyle::Parent {
        match at {
            At::Pseudo(node) => {
                server.state.pseudo.parent(node).ok_or(Status4::NoEnt)?;
            }
            At::Object(_) => super::names::lookupp(server, cursor, &())?,
        }
    }
    append_flavors(cursor)
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;
    use stag_state::HostSite;

    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    /// A session, as CREATE_SESSION makes it.
    fn session(clients: &mut ClientTable) -> SessionKey {
        let request = ExchangeRequest {
            owner: b"client",
            verifier: [0; 8],
            principal: Principal(0),
            site: HostSite(1),
            is_update: false,
            minor_version: 1,
        };
        let exchanged = clients.exchange_id(&request, |_| false, NOW).unwrap();
        let limits = ChannelLimits {
            request_max: 999,
            response_max: 999,
            response_kept_max: 0,
            operations_max: 9,
            slots: 1,
        };
        let request = SessionRequest {
            client: exchanged.client,
            sequence_id: exchanged.sequence_id,
            principal: Principal(0),
            fore: limits,
            back: limits,
            callback: None,
            back_connection: None,
        };
        clients.create_session(&request, NOW).unwrap().key
    }

    /// A reactor that used a session lets go of it in its next pass after the session ended, whatever it did meanwhile.
    #[test]
    fn loom_a_reactor_lets_go_of_sessions_that_ended() {
        loom::model(|| {
            let config = Config4::new(1);
            let shared = SharedSessions::default();
            let mut registrar = Sessions::new(&config, shared.clone());
            let key = session(&mut registrar.clients);
            registrar.publish(Some(key));
            let mut reactor = Sessions::new(&config, shared);
            assert!(reactor.find(key).is_some());
            let ending = thread::spawn(move || {
                registrar.clients.destroy_session(key, false).unwrap();
                registrar.publish(None);
            });
            reactor.sweep(NOW);
            ending.join().unwrap();
            reactor.sweep(NOW);
            assert!(reactor.known.is_empty() && reactor.last.is_none());
        });
    }
}
