//! One served export with its files, and what each client may do there.

use std::cell::RefCell;
use std::net::IpAddr;
use std::time::Duration;

use stag_fabric::Peer;
use stag_shares::rate::{RateLimits, RateQueue, RateWaits};
use stag_vfs::{Store, Volume};

use super::traffic::Traffic;
use super::waiting::PendingCall;
use crate::export::{Export, Rights};

/// Clients whose rights on one export are remembered. A client is a connection: rights depend on its port, too.
const REMEMBERED_MAX: usize = 64;

/// An export with the store that keeps its files.
pub struct Share<S: Store + ?Sized> {
    export: Export,
    volume: Volume<S>,
    remembered: RightsCache,
    /// The transfers that wait for the limits of the export, if it has any.
    rated: Option<Box<RateQueue<PendingCall>>>,
    traffic: Traffic,
    /// It is no longer served. It stays where it is: Calls that wait for its store know its place.
    is_removed: bool,
}

impl<S: Store + ?Sized> Share<S> {
    pub(super) fn new(export: Export, store: Box<S>) -> Share<S> {
        let rated = export.limits.clone().map(RateQueue::new).map(Box::new);
        let volume = Volume::new(store);
        Share {
            export,
            volume,
            remembered: RightsCache::default(),
            rated,
            traffic: Traffic::default(),
            is_removed: false,
        }
    }

    /// The export.
    #[must_use]
    pub fn export(&self) -> &Export {
        &self.export
    }

    /// By what clients and handles tell it from others: its path, and its file system id.
    pub(super) fn identity(&self) -> (&str, u64) {
        (&self.export.path, self.volume.profile().fsid)
    }

    /// Its files.
    #[inline]
    #[must_use]
    pub fn volume(&self) -> &Volume<S> {
        &self.volume
    }

    /// Its files, to change them.
    #[inline]
    pub(super) fn volume_mut(&mut self) -> &mut Volume<S> {
        &mut self.volume
    }

    /// Whether it is the export of this path, and not removed.
    pub(super) fn serves(&self, path: &str) -> bool {
        !self.is_removed && self.export.path == path
    }

    /// Whether it is no longer served.
    #[inline]
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.is_removed
    }

    /// The transfers that wait for the limits of the export; `None`: it has no limits.
    #[inline(always)]
    pub(super) fn rated(&self) -> Option<&RateQueue<PendingCall>> {
        self.rated.as_deref()
    }

    pub(super) fn rated_mut(&mut self) -> Option<&mut RateQueue<PendingCall>> {
        self.rated.as_deref_mut()
    }

    /// The next transfer whose turn has come at the limits of the export.
    pub(super) fn next_turn(&mut self, now: Duration) -> Option<PendingCall> {
        let rated = self.rated.as_mut()?;
        let call = rated.poll(now);
        if call.is_none() && rated.limits().is_unlimited() {
            self.rated = None;
        }
        call
    }

    /// What waited for the limits of the export, at this reactor; `None`: it has no limits.
    #[must_use]
    pub fn rate_waits(&self) -> Option<RateWaits> {
        self.rated().map(RateQueue::waits)
    }

    #[inline(always)]
    pub(super) fn count(&mut self, moved: Traffic) {
        self.traffic += moved;
    }

    /// What was read and written of it, at this reactor.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn set_limits(&mut self, limits: Option<RateLimits>) {
        match (&mut self.rated, limits) {
            // Limits that say the same go on as they are.
            (Some(rated), Some(limits)) if *rated.limits() != limits => rated.set_limits(limits),
            (None, Some(limits)) => self.rated = Some(Box::new(RateQueue::new(limits))),
            (Some(rated), None) if rated.waiting() == 0 => self.rated = None,
            // What waits goes on at once.
            (Some(rated), None) => rated.set_limits(RateLimits::new(None, None, 0)),
            (Some(_), Some(_)) | (None, None) => {}
        }
    }

    /// Serves the same files by other rules.
    pub(super) fn set_export(&mut self, export: Export) {
        self.set_limits(export.limits.clone());
        self.export = export;
        self.remembered = RightsCache::default();
    }

    /// Stops serving it.
    pub(super) fn remove(&mut self) {
        self.is_removed = true;
        self.set_limits(None);
        self.volume.store_mut().give_up_files();
    }

    /// What `peer` may do here. The rules are searched once for each connection, as long as it is remembered.
    #[inline]
    pub(super) fn rights(&self, peer: Option<&Peer>) -> Rights {
        if !self.export.has_rules() {
            return self.export.own_rights();
        }
        match peer {
            Some(peer) => self.remembered.find(peer, &self.export),
            None => self.export.rights(None),
        }
    }
}

/// Rights of the peers that asked last. A peer has one place where it can be, and the next with that place evicts it.
#[derive(Default)]
struct RightsCache {
    /// Empty until the first peer asks.
    places: RefCell<Vec<Option<(Peer, Rights)>>>,
}

impl RightsCache {
    fn find(&self, peer: &Peer, export: &Export) -> Rights {
        let places = &mut *self.places.borrow_mut();
        if places.is_empty() {
            places.resize(REMEMBERED_MAX, None);
        }
        let place = &mut places[place_of(peer)];
        match place {
            Some((found, rights)) if found == peer => *rights,
            _ => {
                let rights = export.rights(Some(peer));
                *place = Some((peer.clone(), rights));
                rights
            }
        }
    }
}

/// Where a peer can be. Connections of one client differ in their ports, and clients of one network in their last octets.
fn place_of(peer: &Peer) -> usize {
    let mixed = match peer {
        Peer::Process { pid, .. } => *pid,
        Peer::Address(address) => {
            let host = match address.ip() {
                IpAddr::V4(address) => u32::from(address),
                IpAddr::V6(address) => u128::from(address) as u32,
            };
            host ^ u32::from(address.port())
        }
    };
    mixed as usize % REMEMBERED_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::{Client, ClientRule};

    /// Peers that evict one another get what the rules say each time.
    #[test]
    fn remembered_rights_are_those_of_the_rules() {
        let network = |address: &str, bits| Client::Network { address: address.parse().unwrap(), bits };
        let export = Export {
            clients: vec![
                ClientRule { client: network("10.0.0.0", 24), read_only: Some(false) },
                ClientRule { client: network("10.0.0.0", 8), read_only: Some(true) },
                ClientRule { client: Client::User(7), read_only: None },
            ],
            ..Export::new("/a")
        };
        let cache = RightsCache::default();
        for _ in 0..2 {
            for host in 0..=255 {
                for network in [[10, 0, 0], [10, 0, 1], [192, 0, 2]] {
                    let address = IpAddr::from([network[0], network[1], network[2], host]);
                    let peer = Peer::Address((address, 700 + u16::from(host)).into());
                    assert_eq!(cache.find(&peer, &export), export.rights(Some(&peer)), "{peer}");
                }
                let peer = Peer::Process { pid: 1, uid: host.into(), gid: 0 };
                assert_eq!(cache.find(&peer, &export), export.rights(Some(&peer)), "{peer}");
            }
        }
    }
}
