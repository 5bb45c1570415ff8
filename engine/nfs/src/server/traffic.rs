//! Counts the octets that READ gives and WRITE takes, by export and by client.
//!
//! A Call counts where it is executed: the figures of all reactors have to be added.

use std::collections::HashMap;
use std::mem;
use std::net::IpAddr;
use std::ops::AddAssign;

use stag_fabric::Peer;
use stag_vfs::Store;

use super::ExportTable;

/// Clients that are counted apart at one reactor.
const CLIENTS_MAX: usize = 4096;

/// Octets of files that were read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Those that READ gave.
    pub read: u64,
    /// Those that WRITE took.
    pub written: u64,
}

impl Traffic {
    pub(super) const fn read(octets: u32) -> Traffic {
        Traffic { read: octets as u64, written: 0 }
    }

    pub(super) const fn written(octets: u32) -> Traffic {
        Traffic { read: 0, written: octets as u64 }
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        self.read += other.read;
        self.written += other.written;
    }
}

/// A client as it is counted: an address without its port, or a user of this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrafficClient(u128);

impl TrafficClient {
    /// The client at the other end of a connection.
    // The limits and the memory of clients go by `stag_rpc::owner`, to which a network of IPv6 is one client.
    #[inline]
    #[must_use]
    pub fn of(peer: Option<&Peer>) -> TrafficClient {
        TrafficClient(match peer {
            None => 0,
            Some(Peer::Address(address)) => match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
                IpAddr::V6(ip) => ip.to_bits(),
            },
            // In a range of addresses that no host has (RFC 6666).
            Some(Peer::Process { uid, .. }) => 0x0100 << 112 | u128::from(*uid),
        })
    }
}

/// What each client read and wrote.
#[derive(Debug, Default)]
pub(super) struct ClientsTraffic {
    /// The client that came last, and what it moved since then. It mostly comes again, so that counting needs no look-up.
    last: (TrafficClient, Traffic),
    known: HashMap<TrafficClient, Traffic>,
}

impl ClientsTraffic {
    #[inline(always)]
    fn add(&mut self, client: TrafficClient, moved: Traffic) {
        if self.last.0 != client {
            self.switch_to(client);
        }
        self.last.1 += moved;
    }

    #[inline(never)]
    fn switch_to(&mut self, client: TrafficClient) {
        let (before, moved) = mem::replace(&mut self.last, (client, Traffic::default()));
        if moved == Traffic::default() {
            return;
        }
        if self.known.len() >= CLIENTS_MAX && !self.known.contains_key(&before) {
            self.forget_half();
        }
        *self.known.entry(before).or_default() += moved;
    }

    /// Forgets the clients that moved the least.
    #[cold]
    fn forget_half(&mut self) {
        let rank = |client: &TrafficClient, moved: &Traffic| (moved.read + moved.written, *client);
        let mut ranks: Vec<_> = self.known.iter().map(|(client, moved)| rank(client, moved)).collect();
        let half = ranks.len() / 2;
        let (_, &mut middle, _) = ranks.select_nth_unstable(half);
        self.known.retain(|client, moved| rank(client, moved) >= middle);
    }

    fn all(&self) -> HashMap<TrafficClient, Traffic> {
        let mut all = self.known.clone();
        let (last, moved) = self.last;
        if moved != Traffic::default() {
            *all.entry(last).or_default() += moved;
        }
        all
    }
}

impl<S: Store + ?Sized> ExportTable<S> {
    /// Counts what a READ or WRITE of an export moved.
    #[inline(always)]
    pub(super) fn count(&mut self, share: usize, client: TrafficClient, moved: Traffic) {
        self.shares[share].count(moved);
        self.traffic.add(client, moved);
    }

    /// What each client read and wrote of all exports, at this reactor. About 4,000 clients are counted apart: of more, those are
    /// forgotten that moved the least, and count from 0 when they come again.
    #[must_use]
    pub fn clients_traffic(&self) -> HashMap<TrafficClient, Traffic> {
        self.traffic.all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: usize) -> TrafficClient {
        TrafficClient(number as u128)
    }

    #[test]
    fn clients_that_take_turns_are_counted_apart() {
        let mut clients = ClientsTraffic::default();
        for octets in 0..100 {
            clients.add(client(1), Traffic::read(octets));
            clients.add(client(2), Traffic::written(octets));
            clients.add(client(2), Traffic::read(1));
        }
        let all = clients.all();
        assert_eq!(all.len(), 2, "{all:?}");
        assert_eq!(all[&client(1)], Traffic { read: 4950, written: 0 });
        assert_eq!(all[&client(2)], Traffic { read: 100, written: 4950 });
    }

    #[test]
    fn clients_without_number_take_no_memory_without_bound() {
        let mut clients = ClientsTraffic::default();
        for number in 0..10 * CLIENTS_MAX {
            clients.add(client(number), Traffic::read(1));
            clients.add(client(usize::MAX), Traffic::written(1));
        }
        let all = clients.all();
        assert!(all.len() <= CLIENTS_MAX + 1, "{}", all.len());
        let busiest = Traffic { read: 0, written: 10 * CLIENTS_MAX as u64 };
        assert_eq!(all[&client(usize::MAX)], busiest, "the busiest is kept");
    }

    #[test]
    fn a_client_is_an_address_or_a_user() {
        let address = |text: &str| TrafficClient::of(Some(&Peer::Address(text.parse().unwrap())));
        assert_eq!(address("10.0.0.1:700"), address("[::ffff:10.0.0.1]:9"));
        assert_ne!(address("[2001:db8::1]:1"), address("[2001:db8::2]:1"));
        let process = |pid, uid| TrafficClient::of(Some(&Peer::Process { pid, uid, gid: 0 }));
        assert_eq!(process(1, 7), process(2, 7));
        assert_ne!(process(1, 7), process(1, 8));
    }
}
