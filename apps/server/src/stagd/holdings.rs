//! Who holds which opens and locks: taken in each reactor, put together elsewhere.

use std::collections::HashMap;
use std::time::Duration;

use stag_nfs::server::{
    ClientState4, HeldState, HeldWhat, HostHoldings, HostName, ServicesWithLocks, SharedLocking,
};
use stag_rpc::Observed;
use stag_state::open::ShareModes;
use stag_vfs::Store;

use crate::admin::{HeldKind, HoldingsState, LockState, NfsClientState};

/// Clients that are listed at most: what a reactor does for an operator takes no longer than a few requests.
const CLIENTS_MAX: usize = 1000;

/// Opens and locks of one reactor that are listed at most.
const HELD_MAX: usize = 1000;

/// What is held at one reactor, or at all.
#[derive(Default)]
pub(super) struct Holdings {
    clients: Vec<ClientState4>,
    clients_count: usize,
    hosts: HashMap<HostName, HostHoldings>,
    held: Vec<HeldState>,
    /// File systems, and an export of each.
    volumes: HashMap<u64, String>,
}

impl Holdings {
    /// Takes it.
    pub(super) fn take(
        programs: &mut Observed<ServicesWithLocks<dyn Store>>,
        locking: &SharedLocking,
        now: Duration,
    ) -> Holdings {
        let (nfs, nfs4, ..) = programs.get_mut();
        let (clients, clients_count) = nfs4.clients(now, CLIENTS_MAX);
        let exports = nfs.exports().borrow();
        let volumes = exports
            .shares()
            .iter()
            .map(|share| (share.volume().profile().volume, share.export().path.clone()));
        let locking = locking.borrow();
        let (hosts, held) = (locking.holdings(), locking.held(HELD_MAX));
        Holdings { clients, clients_count, hosts, held, volumes: volumes.collect() }
    }

    /// Adds what is held at another reactor.
    pub(super) fn add(&mut self, other: Holdings) {
        self.clients.extend(other.clients);
        self.clients_count += other.clients_count;
        for (host, more) in other.hosts {
            let sum = self.hosts.entry(host).or_default();
            sum.opens += more.opens;
            sum.locks += more.locks;
        }
        self.held.extend(other.held);
        self.volumes.extend(other.volumes);
    }

    /// The same, as it is told.
    pub(super) fn state(&self) -> HoldingsState {
        let locks_count = self.hosts.values().map(|host| (host.opens + host.locks) as usize).sum();
        HoldingsState {
            clients: self.clients.iter().map(|client| self.client(client)).collect(),
            clients_count: self.clients_count,
            locks: self.held.iter().map(|held| self.lock(held)).collect(),
            locks_count,
        }
    }

    fn client(&self, client: &ClientState4) -> NfsClientState {
        let held = self.hosts.get(&HostName::Client(client.id)).copied().unwrap_or_default();
        NfsClientState {
            id: shown_id(client.id),
            owner: client.owner.escape_ascii().to_string(),
            client: client.place.clone(),
            version: format!("4.{}", client.minor_version),
            confirmed: client.is_confirmed,
            lease: if client.is_lapsed { "lapsed" } else { "active" }.to_owned(),
            silent_seconds: client.silent.as_secs(),
            sessions: client.sessions,
            slots: client.slots,
            slots_used: client.slots_used,
            kept_bytes: client.kept_octets,
            opens: held.opens,
            locks: held.locks,
        }
    }

    fn lock(&self, held: &HeldState) -> LockState {
        let client = match &held.host {
            HostName::Client(id) => shown_id(*id),
            HostName::Host(name) => name.escape_ascii().to_string(),
        };
        let what = match held.what {
            HeldWhat::Open(modes) => {
                HeldKind::Open { access: shown_modes(modes.access), deny: shown_modes(modes.deny) }
            }
            HeldWhat::Lock { range, exclusive } => {
                let length = Some(range.wire_len()).filter(|len| *len > 0);
                HeldKind::Lock { offset: range.first(), length, exclusive }
            }
        };
        LockState {
            export: self.volumes.get(&held.file.volume).cloned().unwrap_or_default(),
            fileid: held.file.object.fileid,
            client,
            owner: held.owner.escape_ascii().to_string(),
            what,
        }
    }
}

/// A client id, as it is told and asked for.
pub(super) fn shown_id(id: u64) -> String {
    format!("{id:#018x}")
}

/// The client id that an operator writes. `None`: it is something else.
pub(super) fn read_id(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

fn shown_modes(modes: u8) -> String {
    let names = [(ShareModes::READ, 'r'), (ShareModes::WRITE, 'w')];
    names.iter().filter(|(mode, _)| modes & mode != 0).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_id_is_read_as_it_is_shown() {
        assert_eq!(shown_id(0x1f), "0x000000000000001f");
        assert_eq!(read_id(&shown_id(u64::MAX)), Some(u64::MAX));
        for other in ["10.0.0.7", "uid 0", "0x", "0xzz", "0x11112222333344445"] {
            assert_eq!(read_id(other), None, "{other}");
        }
        assert_eq!([0, 1, 2, 3].map(shown_modes), ["", "r", "w", "rw"]);
    }
}
