//! Client hosts that have locks, had some, or may get some.

use std::net::{IpAddr, Ipv6Addr};

use stag_fabric::Peer;

use stag_state::{HostId, HostNumber, HostSite};

/// The first half of the sites of users of this machine.
const USERS: u64 = 0x0100 << 48;

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

    /// What hosts there share limits by: an address, of IPv6 its first 64 bits, as one host has all the others.
    pub(super) fn site(self) -> HostSite {
        HostSite(match self {
            Place::Address(IpAddr::V4(address)) => address.to_ipv6_mapped().to_bits(),
            Place::Address(IpAddr::V6(address)) => address.to_bits() >> 64 << 64,
            // Addresses that no host has: 100::/64 (RFC 6666), and none.
            Place::User(uid) => u128::from(USERS) << 64 | u128::from(uid),
            Place::Unknown => 0,
        })
    }

    /// A site, as people write it: an address, of IPv6 its first half, or the user of this machine.
    pub(super) fn shown(HostSite(site): HostSite) -> String {
        let (prefix, rest) = ((site >> 64) as u64, site as u64);
        match (Ipv6Addr::from_bits(site).to_canonical(), prefix, rest) {
            (_, 0, 0) => "unknown".to_owned(),
            (_, USERS, uid) => format!("uid {uid}"),
            (IpAddr::V6(address), _, 0) => format!("{address}/64"),
            (address, ..) => address.to_string(),
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
    /// The address of ours that it last connected to, if that is known.
    pub(super) local: Option<IpAddr>,
    /// The newest NSM state that it said, if it did.
    state: Option<u32>,
    /// Whether we notify it when we restart.
    pub(super) is_noted: bool,
}

/// The NSM state of a host: a number that grows with each restart, and is repeated with each repetition of the news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateNews {
    /// It never said one before.
    First,
    /// It was known to be in this state, or in a later one.
    Known,
    /// It restarted since.
    Restarted,
}

impl Host {
    /// Takes note of the state that a host says.
    pub(super) fn hear(&mut self, state: u32) -> StateNews {
        // Greater, even if it wrapped.
        let news = match self.state {
            None => StateNews::First,
            Some(known) if (1..1 << 31).contains(&state.wrapping_sub(known)) => StateNews::Restarted,
            Some(_) => return StateNews::Known,
        };
        self.state = Some(state);
        news
    }
}

/// The hosts, by their ids.
#[derive(Debug)]
pub(super) struct Hosts {
    list: Vec<Host>,
    limit: usize,
}

impl Hosts {
    /// Octets of heap of a host with a name of `name_len` octets. The list doubles when it is full.
    pub(super) const fn footprint(name_len: usize) -> usize {
        2 * size_of::<Host>() + name_len + 16
    }

    pub(super) fn new(limit: u32) -> Hosts {
        Hosts { list: Vec::new(), limit: limit as usize }
    }

    pub(super) fn get(&self, id: HostId) -> Option<&Host> {
        self.list.get(place_of(id)?)
    }

    pub(super) fn get_mut(&mut self, id: HostId) -> Option<&mut Host> {
        self.list.get_mut(place_of(id)?)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Host> {
        self.list.iter()
    }

    /// The host of this name there, if it is known.
    pub(super) fn find(&self, name: &[u8], place: Place) -> Option<HostId> {
        let found = self.list.iter().position(|host| host.place == place && *host.name == *name);
        found.map(|index| self.id(index))
    }

    fn id(&self, index: usize) -> HostId {
        HostId { number: HostNumber::Nlm(index as u32), site: self.list[index].place.site() }
    }

    /// Adds the host of this name there, which is not known. It may replace one that `is_idle`: one of the same site, if
    /// there is one, so that the names of one site push out none of another. `None`: there are too many.
    pub(super) fn add(
        &mut self,
        name: &[u8],
        place: Place,
        is_idle: impl Fn(HostId) -> bool,
    ) -> Option<HostId> {
        let host = Host { name: name.into(), place, local: None, state: None, is_noted: false };
        if self.list.len() < self.limit {
            self.list.push(host);
            return Some(self.id(self.list.len() - 1));
        }
        let replaceable = |index: &usize| is_idle(self.id(*index));
        let mut own = (0..self.list.len()).filter(|index| self.list[*index].place.site() == place.site());
        let idle = own.find(replaceable).or_else(|| (0..self.list.len()).find(replaceable))?;
        self.list[idle] = host;
        Some(self.id(idle))
    }

    /// The hosts that somebody at `place` may mean by `name`: those of that name, or of its first part (one says
    /// its domain, another does not). Never one of another name: several clients may share an address.
    pub(super) fn meant(&self, name: &[u8], place: Place) -> Vec<HostId> {
        let there = self.list.iter().enumerate().filter(|(_, host)| host.place == place);
        there.filter(|(_, host)| same_name(&host.name, name)).map(|(index, _)| self.id(index)).collect()
    }
}

/// The place in the list of a host of NLM.
fn place_of(id: HostId) -> Option<usize> {
    match id.number {
        HostNumber::Nlm(number) => Some(number as usize),
        HostNumber::Client(_) => None,
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
        let mut hosts = Hosts::new(3);
        let alice = hosts.add(b"alice", at(1), |_| false).unwrap();
        let other = hosts.add(b"alice", at(2), |_| false).unwrap();
        assert_ne!(alice, other);
        assert_eq!(hosts.find(b"alice", at(1)), Some(alice));
        let third = hosts.add(b"carol", at(2), |_| false).unwrap();
        assert_eq!(hosts.add(b"bob", at(3), |_| false), None, "too many");
        let bob = hosts.add(b"bob", at(2), |id| id != other).unwrap();
        assert_eq!(bob, third, "it replaces an idle one of its own place, not the first");
        let bob = hosts.add(b"bob", at(3), |id| id == other).unwrap();
        assert_eq!(
            (bob.number, hosts.find(b"alice", at(2))),
            (other.number, None),
            "it replaces an idle one"
        );
        assert_ne!(bob.site, other.site);
    }

    #[test]
    fn a_state_is_news_once() {
        let mut hosts = Hosts::new(1);
        let alice = hosts.add(b"alice", at(1), |_| false).unwrap();
        let mut hear = |state| hosts.get_mut(alice).unwrap().hear(state);
        assert_eq!([hear(5), hear(5), hear(3)], [StateNews::First, StateNews::Known, StateNews::Known]);
        assert_eq!(
            [hear(6), hear(7), hear(6)],
            [StateNews::Restarted, StateNews::Restarted, StateNews::Known]
        );
        assert_eq!([hear(1 << 31), hear(u32::MAX), hear(1)], [StateNews::Restarted; 3], "it wraps");
        assert_eq!(hear(u32::MAX), StateNews::Known);
    }

    #[test]
    fn nobody_speaks_for_another_place() {
        let mut hosts = Hosts::new(9);
        let alice = hosts.add(b"alice", at(1), |_| false).unwrap();
        let bob = hosts.add(b"bob.example.org", at(2), |_| false).unwrap();
        let carol = hosts.add(b"carol", at(2), |_| false).unwrap();
        assert_eq!(hosts.meant(b"alice", at(2)), []);
        assert_eq!(hosts.meant(b"ALICE.example.org", at(1)), [alice]);
        assert_eq!(hosts.meant(b"whatever", at(1)), [], "not even the only one there");
        assert_eq!(hosts.meant(b"bob", at(2)), [bob]);
        assert_eq!(hosts.meant(b"bob.example.com", at(2)), []);
        assert_eq!(hosts.meant(b"carol", at(2)), [carol]);
    }
}
