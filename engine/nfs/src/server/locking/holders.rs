//! What clients of NFS version 4 hold at this reactor: opens and locks, beside those of NLM.
//!
//! A client whose lease has lapsed keeps what it holds until another owner, of either protocol, wants it: then it loses all.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use stag_state::client::ClientId;
use stag_state::lease::Lease;
use stag_state::open::{OpenConfig, OpenFault, OpenGrant, OpenRefused, OpenRequest, OpenTable, ShareModes};
use stag_state::session::Session;
use stag_state::stateid::{StateKind, StateToken};
use stag_state::{FileKey, Held, HostId, HostNumber, HostSite, LockRefused, LockRequest, Range};

use super::Locking;
use crate::known_clients::KnownClients;

/// The opens of this reactor, and who has them.
pub(super) struct Holders {
    pub(super) opens: OpenTable,
    pub(super) known: KnownClients,
    clients: HashMap<ClientId, Holder>,
}

/// A client that holds something.
struct Holder {
    site: HostSite,
    lease: Arc<Lease>,
    /// What it calls itself.
    owner: Box<[u8]>,
}

impl Holders {
    pub(super) fn new(config: OpenConfig, known: KnownClients, home: u8) -> Holders {
        Holders { opens: OpenTable::new(config, known.epoch(), home), known, clients: HashMap::new() }
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

    /// Whether only what was held before a restart is given: to hosts of NLM, or to clients of version 4.
    pub(in crate::server) fn is_grace(&mut self, now: Duration) -> bool {
        let of_nlm = self.enter_grace(now);
        of_nlm || self.holders.known.is_grace(now, self.config.lease_term)
    }

    /// Opens a file for a client that calls itself `name`.
    pub(in crate::server) fn open(
        &mut self,
        session: &Session,
        name: &[u8],
        request: &OpenRequest<'_>,
        now: Duration,
    ) -> Result<OpenGrant, OpenRefused> {
        loop {
            let elsewhere = self.table.share_modes(request.file);
            match self.holders.opens.open(&OpenRequest { elsewhere, ..*request }) {
                Err(OpenRefused::Conflict(Some(client))) if self.make_way(client, now) => {}
                refused @ Err(_) => return refused,
                Ok(grant) => {
                    let holder = || Holder {
                        site: session.site(),
                        lease: Arc::clone(session.lease()),
                        owner: name.into(),
                    };
                    self.holders.clients.entry(session.client()).or_insert_with(holder);
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
        let lapsed = |holder: &Holder| holder.lease.expire(now, self.config.lease_term);
        let is_lapsed = self.holders.clients.get(&client).is_some_and(lapsed);
        if is_lapsed {
            self.free_client(client);
        }
        is_lapsed
    }

    /// Frees all that a client holds here: it ended, or its lease was wanted.
    pub(in crate::server) fn free_client(&mut self, client: ClientId) {
        self.holders.opens.free_client(client);
        if let Some(Holder { site, owner, .. }) = self.holders.clients.remove(&client) {
            self.table.free_host(HostId { number: HostNumber::Client(client), site });
            self.holders.known.forget(&owner);
        }
    }
}

/// The kinds of states that READ and WRITE take.
pub(in crate::server) const TRANSFER_STATES: [StateKind; 3] =
    [StateKind::Open, StateKind::Lock, StateKind::Delegation];
