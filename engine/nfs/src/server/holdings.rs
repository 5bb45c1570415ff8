//! What clients hold, for an operator: who the clients of version 4 are, and who has which opens and locks.

use std::collections::HashMap;
use std::time::Duration;

use stag_state::client::{ClientId, ClientStage};
use stag_state::lease::LeaseStage;
use stag_state::open::ShareModes;
use stag_state::{FileKey, HostId, HostNumber, Range};
use stag_vfs::Store;

use super::locking::shown_site;
use super::{Locking, Nfs4};

/// A client of NFS version 4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientState4 {
    /// Its client id.
    pub id: u64,
    /// What it calls itself (co_ownerid).
    pub owner: Box<[u8]>,
    /// Its address, or the user of this machine.
    pub place: String,
    /// The minor version that it spoke when it began.
    pub minor_version: u32,
    /// Whether it made a session.
    pub is_confirmed: bool,
    /// Whether its lease was renewed in time.
    pub is_lapsed: bool,
    /// Since when it has not been heard, to the second.
    pub silent: Duration,
    /// Sessions.
    pub sessions: u32,
    /// Slots of its sessions.
    pub slots: u32,
    /// Slots that run a request now.
    pub slots_used: u32,
    /// Octets of the replies that the slots keep.
    pub kept_octets: u64,
}

/// Names who holds something.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostName {
    /// A client of NFS version 4, by its id.
    Client(u64),
    /// A host of NLM: what it calls itself.
    Host(Box<[u8]>),
}

/// What a host or client holds at one reactor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostHoldings {
    /// Opens of version 4, and shares of NLM.
    pub opens: u32,
    /// Locks.
    pub locks: u32,
}

/// An open, share or lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldState {
    /// Who has it.
    pub host: HostName,
    /// Which of its owners.
    pub owner: Box<[u8]>,
    /// The file.
    pub file: FileKey,
    /// What it is.
    pub what: HeldWhat,
}

/// What is held of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldWhat {
    /// An open, or a share: what it has, and what it denies others.
    Open(ShareModes),
    /// A lock of these octets.
    Lock {
        /// Which.
        range: Range,
        /// Whether it excludes shared locks too.
        exclusive: bool,
    },
}

impl<S: Store + ?Sized> Nfs4<S> {
    /// The clients, the one that was heard last first, `max` at most; and how many there are. Only the first reactor knows them.
    #[must_use]
    pub fn clients(&self, now: Duration, max: usize) -> (Vec<ClientState4>, usize) {
        let (table, term) = self.client_table();
        let mut all: Vec<_> = table.clients().collect();
        all.sort_by_key(|(id, record)| (std::cmp::Reverse(record.lease().heard()), *id));
        let count = all.len();
        let state = |(ClientId(id), record): (ClientId, &stag_state::client::ClientRecord)| {
            let sessions = || record.sessions().iter().filter_map(|key| table.session(*key));
            ClientState4 {
                id,
                owner: record.owner().into(),
                place: shown_site(record.site()),
                minor_version: record.minor_version(),
                is_confirmed: record.stage() == ClientStage::Confirmed,
                is_lapsed: record.lease().look(now, term) != LeaseStage::Active,
                silent: now.saturating_sub(record.lease().heard()),
                sessions: record.sessions().len() as u32,
                slots: sessions().map(|session| session.slots().count()).sum(),
                slots_used: sessions().map(|session| session.slots().running() as u32).sum(),
                kept_octets: sessions().map(|session| session.slots().kept_octets() as u64).sum(),
            }
        };
        (all.into_iter().take(max).map(state).collect(), count)
    }

    /// Ends a client and frees what it holds at this reactor. Returns whether it was known here: it has to be done at each reactor,
    /// and the first one knows. The client starts again, and reclaims nothing.
    pub fn evict(&mut self, client: u64) -> bool {
        self.evict_client(ClientId(client))
    }
}

impl Locking {
    fn name_of(&self, id: HostId) -> HostName {
        match id.number {
            HostNumber::Client(ClientId(client)) => HostName::Client(client),
            HostNumber::Nlm(_) => HostName::Host(self.host_name(id).unwrap_or_default().into()),
        }
    }

    /// How much each host and client holds at this reactor.
    #[must_use]
    pub fn holdings(&self) -> HashMap<HostName, HostHoldings> {
        let mut all: HashMap<HostName, HostHoldings> = HashMap::new();
        for (ClientId(client), ..) in self.opens().opens() {
            all.entry(HostName::Client(client)).or_default().opens += 1;
        }
        for (_, host, ..) in self.table.all_shares() {
            all.entry(self.name_of(host)).or_default().opens += 1;
        }
        for (_, held) in self.table.all_held() {
            all.entry(self.name_of(held.owner.host)).or_default().locks += 1;
        }
        all
    }

    /// What is held at this reactor: `max` at most, locks first.
    #[must_use]
    pub fn held(&self, max: usize) -> Vec<HeldState> {
        let locks = self.table.all_held().map(|(file, held)| {
            let what = HeldWhat::Lock { range: held.range, exclusive: held.exclusive };
            let owner = held.owner.handle.clone();
            HeldState { host: self.name_of(held.owner.host), owner, file, what }
        });
        let shares = self.table.all_shares().map(|(file, host, owner, modes)| {
            let what = HeldWhat::Open(modes);
            HeldState { host: self.name_of(host), owner: owner.into(), file, what }
        });
        let opens = self.opens().opens().map(|(ClientId(client), file, owner, modes)| {
            let what = HeldWhat::Open(modes);
            HeldState { host: HostName::Client(client), owner: owner.into(), file, what }
        });
        locks.chain(shares).chain(opens).take(max).collect()
    }
}
