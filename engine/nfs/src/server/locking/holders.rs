//! What clients of NFS version 4 hold at this reactor: opens and locks, beside those of NLM.
//!
//! A client whose lease has lapsed keeps what it holds until another owner, of either protocol, wants it: then it loses all.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use stag_state::client::{ClientId, EndedClient};
use stag_state::grace::ReclaimRefused;
use stag_state::lease::{Lease, LeaseStage};
use stag_state::open::{OpenConfig, OpenFault, OpenGrant, OpenRefused, OpenRequest, OpenTable, ShareModes};
use stag_state::session::Session;
use stag_state::stateid::StateToken;
use stag_state::{FileKey, Held, HostId, HostNumber, HostSite, LockRefused, LockRequest, Range};

use super::Locking;
use crate::known_clients::KnownClients;

/// Why a client gets no state now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum StateRefused {
    /// Others may reclaim, or the client has not said that it has.
    Grace,
    /// It may not reclaim.
    Reclaim(ReclaimRefused),
    /// It is not on record yet.
    NotRecorded,
}

impl From<ReclaimRefused> for StateRefused {
    fn from(refused: ReclaimRefused) -> StateRefused {
        StateRefused::Reclaim(refused)
    }
}

/// The opens of this reactor, and who has them.
pub(super) struct Holders {
    pub(super) opens: OpenTable,
    pub(super) known: KnownClients,
    clients: HashMap<ClientId, Holder>,
    /// At this number of clients, those that ended are looked for.
    sweep_at: usize,
    /// Before this, none is looked for that could make room.
    next_search: Duration,
}

/// Fewer clients are not worth a look.
const SWEEP_LEN_MIN: usize = 64;

/// How often clients are searched for one that makes room for others.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);

/// A client that holds something.
struct Holder {
    site: HostSite,
    lease: Arc<Lease>,
    /// What it calls itself.
    owner: Arc<[u8]>,
}

impl Holder {
    /// Whether it ended, or lost what it held at another reactor.
    fn has_ended(&self, now: Duration, term: Duration) -> bool {
        self.lease.look(now, term) == LeaseStage::Expired
    }
}

impl Holders {
    pub(super) fn new(config: OpenConfig, known: KnownClients, home: u8) -> Holders {
        Holders {
            opens: OpenTable::new(config, known.epoch(), home),
            known,
            clients: HashMap::new(),
            sweep_at: SWEEP_LEN_MIN,
            next_search: Duration::ZERO,
        }
    }
}

/// The host that a client of version 4 is.
pub(in crate::server) fn host_of(session: &Session) -> HostId {
    HostId { number: HostNumber::Client(session.client()), site: session.site() }
}

impl Locking {
    /// Opens of version 4 here.
    pub(in crate::server) fn opens(&self) -> &OpenTable {
        &self.holders.opens
    }

    /// The same, to change what a state id stands for.
    pub(in crate::server) fn opens_mut(&mut self) -> &mut OpenTable {
        &mut self.holders.opens
    }

    /// The clients that are known from before a restart.
    pub(in crate::server) fn known_clients(&self) -> &KnownClients {
        &self.holders.known
    }

    /// Begins or ends the grace period when its time has come, and returns whether it lasts: for hosts of NLM, or for clients of
    /// version 4. While it lasts, only what was held before a restart is given.
    pub(in crate::server) fn poll_grace(&mut self, now: Duration) -> bool {
        let of_nlm = self.enter_grace(now);
        of_nlm || self.holders.known.poll_grace(now, self.config.lease_term)
    }

    /// Whether a client may take something new, or take back what it held before a restart (`is_reclaim`). It is on record then.
    pub(in crate::server) fn admit_state(
        &mut self,
        session: &Session,
        is_reclaim: bool,
        now: Duration,
    ) -> Result<(), StateRefused> {
        let (of_nlm, term) = (self.enter_grace(now), self.config.lease_term);
        let (known, has_reclaimed) = (&self.holders.known, session.lease().has_reclaimed());
        if is_reclaim {
            known.may_reclaim(session.owner(), has_reclaimed, now, term)?;
        } else if of_nlm || known.may_take(has_reclaimed, now, term).is_err() {
            return Err(StateRefused::Grace);
        }
        if known.note(session.owner()) { Ok(()) } else { Err(StateRefused::NotRecorded) }
    }

    /// A client that calls itself `owner` said RECLAIM_COMPLETE.
    pub(in crate::server) fn reclaim_complete(&mut self, owner: &[u8], now: Duration) {
        self.holders.known.complete(owner, now, self.config.lease_term);
    }

    /// Whether an open or share of others excludes these modes of a file.
    pub(in crate::server) fn has_share_conflict(
        &mut self,
        file: FileKey,
        modes: ShareModes,
        now: Duration,
    ) -> bool {
        while let Some(client) = self.holders.opens.conflict(file, modes) {
            if !self.make_way(client, now) {
                return true;
            }
        }
        modes.conflicts(&self.table.share_modes(file))
    }

    /// Opens a file for a client.
    pub(in crate::server) fn open(
        &mut self,
        session: &Session,
        request: &OpenRequest<'_>,
        now: Duration,
    ) -> Result<OpenGrant, OpenRefused> {
        loop {
            let elsewhere = self.table.share_modes(request.file);
            match self.holders.opens.open(&OpenRequest { elsewhere, ..*request }) {
                Err(OpenRefused::Conflict(Some(client))) if self.make_way(client, now) => {}
                Err(OpenRefused::NoRoom(_)) if self.make_room(now) => {}
                refused @ Err(_) => return refused,
                Ok(grant) => {
                    let holder = || Holder {
                        site: session.site(),
                        lease: Arc::clone(session.lease()),
                        owner: Arc::clone(session.owner()),
                    };
                    self.holders.clients.entry(session.client()).or_insert_with(holder);
                    self.sweep(now);
                    return Ok(grant);
                }
            }
        }
    }

    /// CLOSE: the locks that were made through the open are freed.
    pub(in crate::server) fn close(
        &mut self,
        session: &Session,
        token: &StateToken,
        file: FileKey,
    ) -> Result<(), OpenFault> {
        let (host, slots) = (host_of(session), session.fore().slots);
        let (table, opens) = (&mut self.table, &mut self.holders.opens);
        opens.close(token, session.client(), file, slots, |owner| {
            let Some(range) = Range::between(0, u64::MAX) else { return };
            let all = LockRequest { file, host, svid: 0, handle: owner, range, exclusive: false };
            // What is freed whole leaves no pieces that would need room.
            let _ = table.unlock(&all);
        })
    }

    /// Takes a share for a host of NLM, unless an open of version 4 is in its way.
    pub(in crate::server) fn share(
        &mut self,
        request: &LockRequest<'_>,
        modes: ShareModes,
        now: Duration,
    ) -> Result<(), LockRefused> {
        while let Some(client) = self.holders.opens.conflict(request.file, modes) {
            if !self.make_way(client, now) {
                return Err(LockRefused::Conflict);
            }
        }
        self.table.share(request, modes.deny.into(), modes.access.into())
    }

    /// Takes a lock, for an owner of either protocol.
    pub(in crate::server) fn lock(
        &mut self,
        request: &LockRequest<'_>,
        now: Duration,
    ) -> Result<(), LockRefused> {
        loop {
            match self.table.lock(request) {
                Err(LockRefused::Conflict) if self.frees_conflict(request, now) => {}
                Err(LockRefused::NoRoom(_)) if self.make_room(now) => {}
                outcome => return outcome,
            }
        }
    }

    /// The lock that is in the way of an owner of either protocol.
    pub(in crate::server) fn conflict(&mut self, request: &LockRequest<'_>, now: Duration) -> Option<&Held> {
        while self.frees_conflict(request, now) {}
        self.table.test(request)
    }

    /// Whether the lock in a request's way was that of a client whose lease had lapsed. It is gone then.
    fn frees_conflict(&mut self, request: &LockRequest<'_>, now: Duration) -> bool {
        let client = self.table.test(request).and_then(|held| held.owner.host.client());
        client.is_some_and(|client| self.make_way(client, now))
    }

    /// Ends what a client holds if its lease has lapsed. `false`: it is still there.
    fn make_way(&mut self, client: ClientId, now: Duration) -> bool {
        let Some(holder) = self.holders.clients.get(&client) else { return false };
        if holder.lease.expire(now, self.config.lease_term) {
            self.holders.known.forget(&holder.owner);
        } else if !holder.has_ended(now, self.config.lease_term) {
            return false;
        }
        self.free_client(client);
        true
    }

    /// Makes room for others: without clients that ended elsewhere, or else without the one whose lease lapsed longest ago.
    /// `false`: there is none, or none was there a moment ago.
    #[cold]
    fn make_room(&mut self, now: Duration) -> bool {
        if now < self.holders.next_search {
            return false;
        }
        let before = self.holders.clients.len();
        self.free_ended(now);
        if self.holders.clients.len() < before {
            return true;
        }
        let term = self.config.lease_term;
        let lapsed =
            self.holders.clients.iter().filter(|(_, it)| it.lease.look(now, term) == LeaseStage::Courtesy);
        let longest = lapsed.min_by_key(|(_, holder)| holder.lease.heard()).map(|(client, _)| *client);
        if longest.is_some_and(|client| self.make_way(client, now)) {
            return true;
        }
        self.holders.next_search = now + SEARCH_INTERVAL;
        false
    }

    /// Frees all that a client holds here.
    pub(in crate::server) fn free_client(&mut self, client: ClientId) {
        self.holders.opens.free_client(client);
        if let Some(Holder { site, .. }) = self.holders.clients.remove(&client) {
            self.table.free_host(HostId { number: HostNumber::Client(client), site });
            self.below.all_freed();
        }
    }

    /// Frees all that clients of both protocols hold of a file system ([`FileKey::volume`]).
    pub(in crate::server) fn free_volume(&mut self, volume: u64) {
        self.holders.opens.free_volume(volume);
        self.table.free_volume(volume);
        self.below.all_freed();
    }

    /// A client ended: what it held is free.
    pub(in crate::server) fn client_ended(&mut self, ended: &EndedClient) {
        self.free_client(ended.client);
        self.holders.known.forget(&ended.owner);
    }

    /// Frees what clients hold that ended where other reactors are told of it. Done when the number of clients has doubled.
    fn sweep(&mut self, now: Duration) {
        if self.holders.clients.len() < self.holders.sweep_at {
            return;
        }
        self.free_ended(now);
        self.holders.sweep_at = (2 * self.holders.clients.len()).max(SWEEP_LEN_MIN);
    }

    fn free_ended(&mut self, now: Duration) {
        let term = self.config.lease_term;
        let ended = self.holders.clients.iter().filter(|(_, holder)| holder.has_ended(now, term));
        let ended: Vec<ClientId> = ended.map(|(client, _)| *client).collect();
        ended.into_iter().for_each(|client| self.free_client(client));
    }
}
