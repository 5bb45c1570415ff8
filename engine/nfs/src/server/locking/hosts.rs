//! Client hosts that have locks, had some, or may get some.

use std::net::IpAddr;

use stag_fabric::Peer;

use crate::lock::HostId;

/// Where a host is: names can be made up, this cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// At this address.
    Address(IpAddr),
    /// On this machine, as this user.
    User(u32),
    /// The fabric does not say.
    Unknown,
}

impl Place {
    pub(super) fn of(peer: Option<&Peer>) -> Place {
        match peer {
            Some(Peer::Address(address)) => Place::Address(address.ip().to_canonical()),
            Some(Peer::Process { uid, .. }) => Place::User(*uid),
            None => Place::Unknown,
        }
    }

    /// Where it can be called back.
    pub(super) fn address(self) -> Option<IpAddr> {
        if let Place::Address(address) = self { Some(address) } else { None }
    }
}

/// A client host.
#[derive(Debug)]
pub(super) struct Host {
    /// As it calls itself.
    pub(super) name: Box<[u8]>,
    pub(super) place: Place,
    /// Its NSM state, if it said one: a greater one says that it restarted.
    pub(super) state: Option<u32>,
    /// Whether it is to be told when we restart.
    pub(super) is_noted: bool,
}

/// The hosts, by their ids.
#[derive(Debug)]
pub(super) struct Hosts {
    list: Vec<Host>,
    limit: usize,
}

impl Hosts {
    pub(super) fn new(limit: u32) -> Hosts {
        Hosts { list: Vec::new(), limit: limit as usize }
    }

    pub(super) fn get(&self, id: HostId) -> Option<&Host> {
        self.list.get(id.0 as usize)
    }

    pub(super) fn get_mut(&mut self, id: HostId) -> Option<&mut Host> {
        self.list.get_mut(id.0 as usize)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Host> {
        self.list.iter()
    }

    /// The host of this name there, if it is known.
    pub(super) fn find(&self, name: &[u8], place: Place) -> Option<HostId> {
        let found = self.list.iter().position(|host| host.place == place && *host.name == *name);
        found.map(|index| HostId(index as u32))
    }

    /// The host of this name there. If it is new, it may take the place of one that `is_idle`. `None`: there are
    /// too many.
    pub(super) fn find_or_add(
        &mut self,
        name: &[u8],
        place: Place,
        is_idle: impl Fn(HostId) -> bool,
    ) -> Option<HostId> {
        if let Some(found) = self.find(name, place) {
            return Some(found);
        }
        let host = Host { name: name.into(), place, state: None, is_noted: false };
        if self.list.len() < self.limit {
            self.list.push(host);
            return Some(HostId(self.list.len() as u32 - 1));
        }
        let idle = (0..self.list.len() as u32).map(HostId).find(|id| is_idle(*id))?;
        self.list[idle.0 as usize] = host;
        Some(idle)
    }

    /// The hosts that somebody at `place` may mean by `name`: those of that name, or of its first part (one says
    /// its domain, another does not). If there are none, the only host there is.
    pub(super) fn meant(&self, name: &[u8], place: Place) -> Vec<HostId> {
        let there: Vec<_> = self.list.iter().enumerate().filter(|(_, host)| host.place == place).collect();
        let id = |(index, _): &(usize, &Host)| HostId(*index as u32);
        let named: Vec<_> = there.iter().filter(|(_, host)| same_name(&host.name, name)).map(id).collect();
        match (named.is_empty(), &there[..]) {
            (true, [only]) => vec![id(only)],
            _ => named,
        }
    }
}

fn same_name(one: &[u8], other: &[u8]) -> bool {
    let first =
        |name: &[u8]| name.split(|octet| *octet == b'.').next().unwrap_or_default().to_ascii_lowercase();
    let has_domain = |name: &[u8]| name.contains(&b'.');
    one.eq_ignore_ascii_case(other) || (has_domain(one) != has_domain(other) && first(one) == first(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> Place {
        Place::Address([192, 0, 2, last].into())
    }

    #[test]
    fn a_host_is_a_name_at_a_place() {
        let mut hosts = Hosts::new(2);
        let alice = hosts.find_or_add(b"alice", at(1), |_| false).unwrap();
        let other = hosts.find_or_add(b"alice", at(2), |_| false).unwrap();
        assert_ne!(alice, other);
        assert_eq!(hosts.find_or_add(b"alice", at(1), |_| false), Some(alice));
        assert_eq!(hosts.find_or_add(b"bob", at(3), |_| false), None, "too many");
        assert_eq!(hosts.find_or_add(b"bob", at(3), |id| id == other), Some(other), "in an idle one's stead");
        assert_eq!(hosts.find(b"alice", at(2)), None);
    }

    #[test]
    fn nobody_speaks_for_another_place() {
        let mut hosts = Hosts::new(9);
        let alice = hosts.find_or_add(b"alice", at(1), |_| false).unwrap();
        let bob = hosts.find_or_add(b"bob.example.org", at(2), |_| false).unwrap();
        let carol = hosts.find_or_add(b"carol", at(2), |_| false).unwrap();
        assert_eq!(hosts.meant(b"alice", at(2)), []);
        assert_eq!(hosts.meant(b"ALICE.example.org", at(1)), [alice]);
        assert_eq!(hosts.meant(b"whatever", at(1)), [alice], "the only one there");
        assert_eq!(hosts.meant(b"bob", at(2)), [bob]);
        assert_eq!(hosts.meant(b"bob.example.com", at(2)), []);
        assert_eq!(hosts.meant(b"carol", at(2)), [carol]);
    }
}
