//! Clients: who they are, from EXCHANGE_ID over their first session to their end (RFC 8881 section 18.35, 18.36, 18.50).
//!
//! ```text
//! owner "Linux …" ─┬─ confirmed    { verifier, principal, id, lease, sessions }
//!                  └─ unconfirmed  { verifier, principal, id }        its next incarnation, until CREATE_SESSION
//! ```
//!
//! An owner has at most one record of each. What a client held is not here: who ends is reported ([`ClientTable::poll_ended`]),
//! and the owner of opens and locks frees them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::back::{BackConnection, BackUse, CallbackParameters};
use crate::lease::{Lease, LeaseStage};
use crate::session::{ChannelLimits, Session, SessionBusy, SessionHolder, SessionKey};
use crate::stages::{Change, may_change};
use crate::{HostSite, has_share, price};

pub use crate::host::ClientId;

/// Who sends: a number that the caller gives each principal, the same for the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Principal(pub u64);

/// What a client's record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientStage {
    /// It waits for the first CREATE_SESSION, a lease's term at most.
    Unconfirmed,
    /// It has sessions and state.
    Confirmed,
    /// It is forgotten, with all that it held.
    Gone,
}

/// Every change of a record's stage.
pub(crate) const CHANGES: [Change<ClientStage>; 3] = [
    (ClientStage::Unconfirmed, ClientStage::Confirmed, "its first CREATE_SESSION"),
    (ClientStage::Unconfirmed, ClientStage::Gone, "its owner asks again, or it is not confirmed in time"),
    (
        ClientStage::Confirmed,
        ClientStage::Gone,
        "its next incarnation is confirmed, DESTROY_CLIENTID, an operator, or its lease expired and is wanted",
    ),
];

/// How many clients there may be, and what sessions they get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// Records in all.
    pub clients_max: u32,
    /// Sessions of one client.
    pub client_sessions_max: u32,
    /// Octets of all sessions together, with all replies that they may keep.
    pub session_octets_max: u64,
    /// Octets of an owner's name: NFS4_OPAQUE_LIMIT.
    pub owner_len_max: u32,
    /// How long a lease lasts.
    pub lease_term: Duration,
    /// What a session's fore channel gets at most.
    pub fore: ChannelLimits,
    /// What a session's back channel gets at most.
    pub back: ChannelLimits,
}

impl Default for ClientConfig {
    fn default() -> ClientConfig {
        let fore = ChannelLimits {
            request_max: (1 << 20) + (64 << 10),
            response_max: (1 << 20) + (64 << 10),
            response_kept_max: 2048,
            operations_max: 16,
            slots: 64,
        };
        let back = ChannelLimits {
            request_max: 4096,
            response_max: 4096,
            response_kept_max: 0,
            operations_max: u32::MAX,
            slots: u32::MAX,
        };
        ClientConfig {
            clients_max: 16_384,
            client_sessions_max: 16,
            session_octets_max: 256 << 20,
            owner_len_max: 1024,
            lease_term: Duration::from_secs(90),
            fore,
            back,
        }
    }
}

impl ClientConfig {
    /// The default limits, or lower ones if the default clients and sessions would take more than `octets` of the heap: a third
    /// is for clients, the rest for sessions.
    #[must_use]
    pub fn within(octets: u64) -> ClientConfig {
        let all = ClientConfig::default();
        // At least something of each, however little memory there is.
        let clients = (octets / 3 / all.client_len()).max(16);
        ClientConfig {
            clients_max: u32::try_from(clients).unwrap_or(u32::MAX).min(all.clients_max),
            session_octets_max: (octets / 3 * 2).clamp(64 << 10, all.session_octets_max),
            ..all
        }
    }

    /// Octets of the heap that all clients and sessions take at most, at a server of this number of reactors.
    #[must_use]
    pub const fn memory_max(&self, reactors: u64) -> u64 {
        // The shortest session there can be, and its place in the maps of all reactors and in the one that they share.
        let least = Session::memory_max(&ChannelLimits { slots: 1, response_kept_max: 0, ..self.fore });
        let place = price::map_entry(size_of::<(SessionKey, Arc<Session>)>());
        self.clients_max as u64 * self.client_len()
            + self.session_octets_max
            + self.session_octets_max / least * place * (reactors + 1)
    }

    /// Octets of the heap that a client without sessions takes at most: its record, lease and name, and its places in three maps,
    /// if it is alone at its site.
    #[must_use]
    pub const fn client_len(&self) -> u64 {
        price::map_entry(size_of::<(ClientId, ClientRecord)>())
            + price::map_entry(size_of::<(Arc<[u8]>, Records)>())
            + price::map_entry(size_of::<(HostSite, SiteHoldings)>())
            + price::piece(price::COUNTS + size_of::<Lease>() as u64)
            + price::piece(price::COUNTS + self.owner_len_max as u64)
    }
}

/// EXCHANGE_ID, as far as it is about who the client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeRequest<'a> {
    /// The client's name for itself (co_ownerid).
    pub owner: &'a [u8],
    /// Its incarnation (co_verifier).
    pub verifier: [u8; 8],
    /// Who sends.
    pub principal: Principal,
    /// Where it is: those at one site share limits.
    pub site: HostSite,
    /// EXCHGID4_FLAG_UPD_CONFIRMED_REC_A: only a confirmed record is meant.
    pub is_update: bool,
    /// The minor version that it speaks.
    pub minor_version: u32,
}

/// What EXCHANGE_ID answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchanged {
    /// The client.
    pub client: ClientId,
    /// The sequence id that its next CREATE_SESSION has.
    pub sequence_id: u32,
    /// EXCHGID4_FLAG_CONFIRMED_R.
    pub is_confirmed: bool,
}

/// Why EXCHANGE_ID fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeRefused {
    /// NFS4ERR_CLID_INUSE (8881-18.35.4-c).
    #[error("another principal uses this client owner")]
    InUse,
    /// NFS4ERR_NOENT (8881-18.35.4-g).
    #[error("there is no confirmed record to update")]
    NoRecord,
    /// NFS4ERR_NOT_SAME (8881-18.35.4-h).
    #[error("the record is of another incarnation")]
    NotSame,
    /// NFS4ERR_PERM (8881-18.35.4-i).
    #[error("the record is of another principal")]
    NotPermitted,
    /// NFS4ERR_SERVERFAULT or NFS4ERR_DELAY: there are too many clients.
    #[error("too many clients")]
    NoRoom,
}

/// CREATE_SESSION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionRequest<'a> {
    /// Whose.
    pub client: ClientId,
    /// csa_sequence.
    pub sequence_id: u32,
    /// Who sends.
    pub principal: Principal,
    /// Wishes for the client's requests.
    pub fore: ChannelLimits,
    /// Wishes for the server's requests.
    pub back: ChannelLimits,
    /// How the client may be called; `None`: in no way.
    pub callback: Option<&'a CallbackParameters>,
    /// The connection that the request came on, if the client wants callbacks over it and they can go over it.
    pub back_connection: Option<BackConnection>,
}

/// What CREATE_SESSION answers, each time that it is asked with the same sequence id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionGrant {
    /// The session.
    pub key: SessionKey,
    /// csr_sequence.
    pub sequence_id: u32,
    /// Limits of the client's requests.
    pub fore: ChannelLimits,
    /// Limits of the server's requests.
    pub back: ChannelLimits,
    /// CREATE_SESSION4_FLAG_CONN_BACK_CHAN: the connection is bound to the back channel.
    pub has_back_connection: bool,
}

/// Why CREATE_SESSION fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionFault {
    /// NFS4ERR_STALE_CLIENTID.
    #[error("no such client")]
    StaleClient,
    /// NFS4ERR_SEQ_MISORDERED.
    #[error("another sequence id is expected")]
    Misordered,
    /// NFS4ERR_CLID_INUSE.
    #[error("another principal owns the client id")]
    InUse,
    /// NFS4ERR_TOOSMALL.
    #[error("the channel is too small for any use")]
    TooSmall,
    /// NFS4ERR_NOSPC.
    #[error("the client has as many sessions as it may, or its site as much memory")]
    NoSpace,
}

/// Why DESTROY_CLIENTID fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DestroyRefused {
    /// NFS4ERR_STALE_CLIENTID.
    #[error("no such client")]
    StaleClient,
    /// NFS4ERR_CLIENTID_BUSY.
    #[error("the client has sessions or state")]
    Busy,
}

/// A client that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedClient {
    /// Which.
    pub client: ClientId,
    /// What it called itself. Its next incarnation may do so already.
    pub owner: Arc<[u8]>,
}

/// What became of a client's last CREATE_SESSION.
#[derive(Clone, Copy, Debug)]
enum LastSession {
    /// There was none.
    None,
    /// A retry gets the same answer.
    Made(SessionGrant),
    /// It changed nothing.
    Failed,
}

/// A client.
#[derive(Debug)]
pub struct ClientRecord {
    owner: Arc<[u8]>,
    verifier: [u8; 8],
    principal: Principal,
    site: HostSite,
    minor_version: u32,
    stage: ClientStage,
    lease: Arc<Lease>,
    /// Sequence id of the last CREATE_SESSION, and what became of it.
    last_session: (u32, LastSession),
    sessions: Vec<SessionKey>,
    session_counter: u32,
}

impl ClientRecord {
    /// Its name for itself.
    #[must_use]
    pub fn owner(&self) -> &[u8] {
        &self.owner
    }

    /// What its record is.
    #[must_use]
    pub const fn stage(&self) -> ClientStage {
        self.stage
    }

    /// Its lease.
    #[must_use]
    pub fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Where it is.
    #[must_use]
    pub const fn site(&self) -> HostSite {
        self.site
    }

    /// The minor version that it spoke when it began.
    #[must_use]
    pub const fn minor_version(&self) -> u32 {
        self.minor_version
    }

    /// Its sessions.
    #[must_use]
    pub fn sessions(&self) -> &[SessionKey] {
        &self.sessions
    }

    /// Tells whether it said RECLAIM_COMPLETE.
    #[must_use]
    pub fn has_reclaimed(&self) -> bool {
        self.lease.has_reclaimed()
    }
}

/// The records of an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Records {
    confirmed: Option<ClientId>,
    unconfirmed: Option<ClientId>,
}

/// What all clients of one site have together.
#[derive(Clone, Copy, Debug, Default)]
struct SiteHoldings {
    clients: u32,
    session_octets: u64,
}

/// All clients and sessions. One reactor owns it; sessions are shared by all.
#[derive(Debug)]
pub struct ClientTable {
    config: ClientConfig,
    epoch: u32,
    next: u32,
    records: HashMap<ClientId, ClientRecord>,
    owners: HashMap<Arc<[u8]>, Records>,
    sites: HashMap<HostSite, SiteHoldings>,
    session_octets: u64,
    /// No lease lapses before this: a full table need not be searched until then.
    no_lapse_before: Duration,
    sessions: HashMap<SessionKey, Arc<Session>>,
    /// Records that were not confirmed.
    unconfirmed: usize,
    /// Not fetched yet.
    ended: VecDeque<EndedClient>,
}

impl ClientTable {
    /// A table without clients. `epoch` differs from that of every earlier start of the server.
    #[must_use]
    pub fn new(config: ClientConfig, epoch: u32) -> ClientTable {
        ClientTable {
            config,
            epoch,
            next: 1,
            records: HashMap::new(),
            owners: HashMap::new(),
            sites: HashMap::new(),
            session_octets: 0,
            no_lapse_before: Duration::ZERO,
            sessions: HashMap::new(),
            unconfirmed: 0,
            ended: VecDeque::new(),
        }
    }

    /// Returns a client's record.
    #[must_use]
    pub fn client(&self, client: ClientId) -> Option<&ClientRecord> {
        self.records.get(&client)
    }

    /// Returns all clients.
    pub fn clients(&self) -> impl Iterator<Item = (ClientId, &ClientRecord)> {
        self.records.iter().map(|(id, record)| (*id, record))
    }

    /// Finds a session.
    #[must_use]
    pub fn session(&self, key: SessionKey) -> Option<&Arc<Session>> {
        self.sessions.get(&key)
    }

    /// Returns how many sessions there are.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// The next client that ended: the caller frees what it held. Each is reported once.
    pub fn poll_ended(&mut self) -> Option<EndedClient> {
        self.ended.pop_front()
    }

    /// EXCHANGE_ID (RFC 8881 section 18.35.4). `has_state` tells whether a client holds opens, locks or delegations.
    pub fn exchange_id(
        &mut self,
        request: &ExchangeRequest<'_>,
        has_state: impl Fn(ClientId) -> bool,
        now: Duration,
    ) -> Result<Exchanged, ExchangeRefused> {
        let known = self.owners.get(request.owner).copied().unwrap_or_default();
        let confirmed = known.confirmed.and_then(|id| Some((id, self.records.get(&id)?)));
        if request.is_update {
            return match confirmed {
                None => Err(ExchangeRefused::NoRecord),
                Some((_, record)) if record.verifier != request.verifier => Err(ExchangeRefused::NotSame),
                Some((_, record)) if record.principal != request.principal => {
                    Err(ExchangeRefused::NotPermitted)
                }
                Some((id, record)) => Ok(record.exchanged(id)),
            };
        }
        if let Some((id, record)) = confirmed {
            if record.lease.look(now, self.config.lease_term) == LeaseStage::Expired {
                // What it held is lost, and its sessions take nothing: it starts again.
                self.end(id);
            } else if record.principal != request.principal {
                let is_lapsed = record.lease.look(now, self.config.lease_term) != LeaseStage::Active;
                let is_used = !record.sessions.is_empty() || has_state(id);
                if is_used && !is_lapsed {
                    return Err(ExchangeRefused::InUse);
                }
                self.end(id);
            } else if record.verifier == request.verifier {
                return Ok(record.exchanged(id));
            }
        }
        // Whatever else: a record to be confirmed, in the place of one that was not.
        if let Some(unconfirmed) = known.unconfirmed {
            self.end(unconfirmed);
        }
        self.make_room(request.site, now)?;
        Ok(self.add(request, now))
    }

    fn add(&mut self, request: &ExchangeRequest<'_>, now: Duration) -> Exchanged {
        let id = ClientId(u64::from(self.epoch) << 32 | u64::from(self.next));
        self.next = self.next.wrapping_add(1).max(1);
        let owner: Arc<[u8]> = request.owner.into();
        let record = ClientRecord {
            owner: Arc::clone(&owner),
            verifier: request.verifier,
            principal: request.principal,
            site: request.site,
            minor_version: request.minor_version,
            stage: ClientStage::Unconfirmed,
            lease: Arc::new(Lease::new(now)),
            // The reply that a request from before the first one would find.
            last_session: (0, LastSession::None),
            sessions: Vec::new(),
            session_counter: 0,
        };
        let exchanged = record.exchanged(id);
        self.records.insert(id, record);
        self.unconfirmed += 1;
        self.owners.entry(owner).or_default().unconfirmed = Some(id);
        self.sites.entry(request.site).or_default().clients += 1;
        exchanged
    }

    /// Makes room for one more client of a site: first without those that were not confirmed in time, then without the client
    /// whose lease lapsed longest ago.
    fn make_room(&mut self, site: HostSite, now: Duration) -> Result<(), ExchangeRefused> {
        loop {
            let own = self.sites.get(&site).map_or(0, |holdings| holdings.clients);
            if has_share(own.into(), self.records.len() as u64, 1, self.config.clients_max.into()) {
                return Ok(());
            }
            if now < self.no_lapse_before {
                return Err(ExchangeRefused::NoRoom);
            }
            let term = self.config.lease_term;
            let lapsed =
                self.records.iter().filter(|(_, record)| record.lease.look(now, term) != LeaseStage::Active);
            let is_confirmed = |record: &ClientRecord| record.stage == ClientStage::Confirmed;
            let longest = lapsed.min_by_key(|(_, record)| (is_confirmed(record), record.lease.heard()));
            let Some(id) = longest.map(|(id, _)| *id) else {
                // Renewals only put it off.
                let earliest = self.records.values().map(|record| record.lease.heard()).min();
                self.no_lapse_before = earliest.unwrap_or(now) + term;
                return Err(ExchangeRefused::NoRoom);
            };
            self.end(id);
        }
    }

    /// CREATE_SESSION (RFC 8881 section 18.36.4).
    pub fn create_session(
        &mut self,
        request: &SessionRequest<'_>,
        now: Duration,
    ) -> Result<SessionGrant, SessionFault> {
        let record = self.records.get_mut(&request.client).ok_or(SessionFault::StaleClient)?;
        // It may be late before a sweep finds it.
        let is_late = record.lease.look(now, self.config.lease_term) != LeaseStage::Active;
        if record.stage == ClientStage::Unconfirmed && is_late {
            self.end(request.client);
            return Err(SessionFault::StaleClient);
        }
        // Others may make further sessions: only the first one confirms the client.
        if record.principal != request.principal && record.stage == ClientStage::Unconfirmed {
            return Err(SessionFault::InUse);
        }
        let (last, answer) = record.last_session;
        match answer {
            _ if request.sequence_id == last.wrapping_add(1) => {}
            LastSession::Made(grant) if request.sequence_id == last => return Ok(grant),
            // Some clients count only successes, as the Linux server does.
            LastSession::Failed if request.sequence_id == last => {}
            _ => return Err(SessionFault::Misordered),
        }
        if record.lease.renew(now).is_err() {
            return Err(SessionFault::StaleClient);
        }
        let answer = self.grant(request);
        if let Some(record) = self.records.get_mut(&request.client) {
            let made = answer.map_or(LastSession::Failed, LastSession::Made);
            record.last_session = (request.sequence_id, made);
        }
        if answer.is_ok() {
            self.confirm(request.client);
        }
        answer
    }

    fn grant(&mut self, request: &SessionRequest<'_>) -> Result<SessionGrant, SessionFault> {
        let record = self.records.get_mut(&request.client).ok_or(SessionFault::StaleClient)?;
        if record.sessions.len() >= self.config.client_sessions_max as usize {
            return Err(SessionFault::NoSpace);
        }
        let agree = |asked, ours| ChannelLimits::agree(asked, ours).ok_or(SessionFault::TooSmall);
        let fore = agree(&request.fore, &self.config.fore)?;
        let back = agree(&request.back, &self.config.back)?;
        let own = self.sites.entry(record.site).or_default();
        let fore = affordable(fore, own.session_octets, self.session_octets, self.config.session_octets_max)
            .ok_or(SessionFault::NoSpace)?;
        own.session_octets += Session::memory_max(&fore);
        self.session_octets += Session::memory_max(&fore);
        record.session_counter += 1;
        let key = SessionKey::new(request.client, record.session_counter);
        let holder = SessionHolder::of(request.client, record);
        let session = Session::new(key, holder, fore, back, request.callback.cloned());
        let has_back_connection = request.callback.is_some() && request.back_connection.is_some();
        if let Some(connection) = request.back_connection {
            session.with_back_channel(|channel| channel.bind(connection, BackUse::Both));
        }
        record.sessions.push(key);
        self.sessions.insert(key, Arc::new(session));
        Ok(SessionGrant { key, sequence_id: request.sequence_id, fore, back, has_back_connection })
    }

    /// The client is confirmed: its last incarnation ends (8881-18.36.4-b).
    fn confirm(&mut self, id: ClientId) {
        let Some(record) = self.records.get_mut(&id) else { return };
        if record.stage == ClientStage::Confirmed {
            return;
        }
        debug_assert!(may_change(&CHANGES, record.stage, ClientStage::Confirmed));
        record.stage = ClientStage::Confirmed;
        self.unconfirmed -= 1;
        let Some(records) = self.owners.get_mut(&record.owner) else { return };
        let last = records.confirmed.replace(id);
        records.unconfirmed = None;
        if let Some(last) = last {
            self.forget(last);
        }
    }

    /// DESTROY_SESSION. `own`: the request runs in a slot of the session.
    pub fn destroy_session(&mut self, key: SessionKey, own: bool) -> Result<bool, SessionBusy> {
        let Some(session) = self.sessions.get(&key) else { return Ok(false) };
        session.end(own)?;
        let (client, octets) = (session.client(), Session::memory_max(session.fore()));
        self.sessions.remove(&key);
        if let Some(record) = self.records.get_mut(&client) {
            record.sessions.retain(|other| *other != key);
            let site = record.site;
            self.release(site, 0, octets);
        }
        Ok(true)
    }

    /// DESTROY_CLIENTID (8881-18.50.3-a).
    pub fn destroy_client(&mut self, id: ClientId, has_state: bool) -> Result<(), DestroyRefused> {
        let record = self.records.get(&id).ok_or(DestroyRefused::StaleClient)?;
        if has_state || !record.sessions.is_empty() {
            return Err(DestroyRefused::Busy);
        }
        self.end(id);
        Ok(())
    }

    /// RECLAIM_COMPLETE. `false`: it was said before, NFS4ERR_COMPLETE_ALREADY (8881-18.51.3-a).
    pub fn reclaim_complete(&mut self, id: ClientId) -> bool {
        self.records.get(&id).is_some_and(|record| record.lease.reclaim_complete())
    }

    /// Ends a client whose lease has lapsed, because others want what it holds. `false`: it is back, or gone already.
    pub fn expire(&mut self, id: ClientId, now: Duration) -> bool {
        let Some(record) = self.records.get(&id) else { return false };
        let is_lapsed = record.lease.expire(now, self.config.lease_term);
        if is_lapsed {
            self.end(id);
        }
        is_lapsed
    }

    /// Ends a client, whatever it holds: an operator wants it. `false`: there is none.
    pub fn evict(&mut self, id: ClientId) -> bool {
        let is_there = self.records.contains_key(&id);
        self.end(id);
        is_there
    }

    /// Tells whether there are clients that were not confirmed.
    #[must_use]
    pub fn has_unconfirmed(&self) -> bool {
        self.unconfirmed > 0
    }

    /// Ends those that were not confirmed within a term.
    pub fn sweep(&mut self, now: Duration) {
        let term = self.config.lease_term;
        let late = self.records.iter().filter(|(_, record)| {
            record.stage == ClientStage::Unconfirmed && record.lease.look(now, term) != LeaseStage::Active
        });
        let late: Vec<ClientId> = late.map(|(id, _)| *id).collect();
        late.into_iter().for_each(|id| self.end(id));
    }

    /// Ends a client, and takes it from its owner.
    fn end(&mut self, id: ClientId) {
        let Some(record) = self.records.get(&id) else { return };
        if let Some(records) = self.owners.get_mut(&record.owner) {
            for place in [&mut records.confirmed, &mut records.unconfirmed] {
                *place = place.filter(|other| *other != id);
            }
            if *records == Records::default() {
                self.owners.remove(&record.owner);
            }
        }
        self.forget(id);
    }

    /// Forgets a client that its owner does not have any more.
    fn forget(&mut self, id: ClientId) {
        let Some(record) = self.records.remove(&id) else { return };
        debug_assert!(may_change(&CHANGES, record.stage, ClientStage::Gone));
        record.lease.end();
        let mut octets = 0;
        for session in record.sessions.iter().filter_map(|key| self.sessions.remove(key)) {
            session.kill();
            octets += Session::memory_max(session.fore());
        }
        self.release(record.site, 1, octets);
        // One that was not confirmed could not hold anything.
        if record.stage == ClientStage::Unconfirmed {
            self.unconfirmed -= 1;
        }
        if record.stage == ClientStage::Confirmed {
            self.ended.push_back(EndedClient { client: id, owner: record.owner });
        }
    }
}

impl ClientTable {
    /// Returns what a site had to all.
    fn release(&mut self, site: HostSite, clients: u32, session_octets: u64) {
        self.session_octets -= session_octets;
        if let Some(holdings) = self.sites.get_mut(&site) {
            holdings.clients -= clients;
            holdings.session_octets -= session_octets;
            if holdings.clients == 0 {
                self.sites.remove(&site);
            }
        }
    }
}

/// The limits with as many slots as a site's share of the memory allows, half as many each time. `None`: not even one.
fn affordable(mut fore: ChannelLimits, own: u64, all: u64, max: u64) -> Option<ChannelLimits> {
    while !has_share(own, all, Session::memory_max(&fore), max) {
        if fore.slots == 1 {
            return None;
        }
        fore.slots /= 2;
    }
    Some(fore)
}

impl SessionHolder {
    fn of(client: ClientId, record: &ClientRecord) -> SessionHolder {
        let (owner, lease) = (Arc::clone(&record.owner), Arc::clone(&record.lease));
        SessionHolder { client, owner, site: record.site, lease }
    }
}

impl ClientRecord {
    fn exchanged(&self, client: ClientId) -> Exchanged {
        Exchanged {
            client,
            sequence_id: self.last_session.0.wrapping_add(1),
            is_confirmed: self.stage == ClientStage::Confirmed,
        }
    }
}
