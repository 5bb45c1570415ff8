//! The state of NLM and NSM together: locks, the hosts that have them, and the Calls that those must get; and what clients of NFS
//! version 4 hold of the same files ([`holders`]).
//!
//! ```text
//!  LOCK ─▶ table: in the way ─▶ waits … UNLOCK of another ─▶ granted ─▶ GRANTED to the host ─▶ acknowledged
//!                                                               │          no answer: again, later
//!                                                               └─▶ the host asks again: acknowledged
//!                                                                   nothing for GRANT_LIFE: given back
//! ```

mod holders;
mod hosts;
mod link;
mod outbox;

use std::cell::RefCell;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Duration;

use stag_fabric::Peer;
use stag_rpc::Token;
use stag_wire::{nlm4, nsm};

use super::below::Below;
use crate::callout::{CallOut, arguments};
use crate::known_clients::KnownClients;
use crate::state::{Journal, KnownHost, Recovered};
use holders::Holders;
pub(super) use holders::{StateRefused, host_of};
use hosts::{Host, Hosts, Place, StateNews};
use link::HostState;
pub use link::LockingLink;

use outbox::{End, Grant, Outbox, Way, What};
use stag_state::client::ClientConfig;
use stag_state::open::OpenConfig;
use stag_state::{Counts, HostId, HostNumber, HostSite, LockConfig, LockRequest, LockTable, Range};

/// Where a peer is, as far as limits are concerned.
pub(super) fn site_of(peer: Option<&Peer>) -> HostSite {
    Place::of(peer).site()
}

/// A site, as people write it.
pub(super) fn shown_site(site: HostSite) -> String {
    Place::shown(site)
}

/// How long a lock is kept for a host that waited for it and does not say that it knows. Linux's client asks again
/// every 30 seconds, whatever becomes of the Call to it.
const GRANT_LIFE: Duration = Duration::from_secs(120);
/// How long an answer to a `_MSG` is worth sending.
const MESSAGE_LIFE: Duration = Duration::from_secs(10);
/// How long hosts are told that we restarted.
const NOTIFY_LIFE: Duration = Duration::from_secs(15 * 60);
/// Answers to `_MSG`s on their way.
const MESSAGES_MAX: usize = 256;

/// How locks are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockingConfig {
    /// How many there may be.
    pub locks: LockConfig,
    /// Opens of NFS version 4, and lock owners.
    pub opens: OpenConfig,
    /// How long leases of NFS version 4 last, and the grace period for its clients.
    pub lease_term: Duration,
    /// Hosts that may have some.
    pub hosts_max: u32,
    /// After a restart, the time in which hosts may claim what they had, and other locks are refused. It begins
    /// only if hosts are known that had locks before.
    pub grace: Duration,
    /// What this host calls itself.
    pub host_name: String,
}

impl LockingConfig {
    /// Octets of heap that each of `hosts_max` hosts may take, beside its locks ([`LockConfig::memory_max`]).
    pub const HOST_LEN: u64 = (Hosts::footprint(nlm4::NAME_LEN_MAX as usize) + stag_state::HOST_LEN) as u64;
}

impl Default for LockingConfig {
    fn default() -> LockingConfig {
        LockingConfig {
            locks: LockConfig::default(),
            opens: OpenConfig::default(),
            lease_term: ClientConfig::default().lease_term,
            hosts_max: 1024,
            // As long as that of Linux's lock manager.
            grace: Duration::from_secs(50),
            host_name: "stagd".to_owned(),
        }
    }
}

/// What has been done, and what there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockingStatistics {
    /// Locks, shares and waiting requests now.
    pub counts: Counts,
    /// Locks that were taken at once.
    pub locks: u64,
    /// Requests that were told to wait.
    pub blocked: u64,
    /// Locks that were granted after a wait.
    pub granted: u64,
    /// Requests that found another lock in their way.
    pub denied: u64,
    /// Requests for which there was no room.
    pub refused: u64,
    /// Calls to hosts that succeeded.
    pub calls_out: u64,
    /// Calls to hosts that failed.
    pub calls_out_failed: u64,
    /// Hosts whose locks were freed because they restarted.
    pub hosts_freed: u64,
}

/// The value of a lock that was waited for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    way: Way,
    file_handle: Box<[u8]>,
    token: Token,
}

impl Waiter {
    /// The Call that asked.
    pub(super) fn token(&self) -> Token {
        self.token
    }
}

/// Both ends of the connection that a Call came by: the peer, and the address of ours that it connected to.
pub(super) type Ends<'a> = (Option<&'a Peer>, Option<&'a IpAddr>);

/// Who asks for a lock.
#[derive(Clone, Copy)]
pub(super) struct Client<'a> {
    name: &'a [u8],
    place: Place,
    local: Option<IpAddr>,
}

impl<'a> Client<'a> {
    pub(super) fn new(name: &'a [u8], (peer, local): Ends<'_>) -> Client<'a> {
        Client { name, place: Place::of(peer), local: local.copied() }
    }

    fn way(&self) -> Way {
        Way { to: self.place.address(), from: self.local }
    }
}

/// The NSM state that a host says which does not know its own.
const NO_STATE: u32 = 0;

/// The epoch of state ids of a server that is never restarted.
const FIRST_EPOCH: u32 = 1;

/// No host has this id: it stands for an unknown host.
const UNKNOWN_HOST: HostId = HostId { number: HostNumber::Nlm(u32::MAX), site: HostSite(0) };

/// The state of NLM and NSM.
pub struct Locking {
    pub(super) table: LockTable<Waiter>,
    /// The files that are locked below as well.
    pub(super) below: Below,
    holders: Holders,
    config: LockingConfig,
    hosts: Hosts,
    outbox: Outbox,
    /// Hosts that had locks before a restart, and have not been told of it.
    untold: Vec<KnownHost>,
    journal: Option<Journal>,
    /// To the lockings of other reactors, if there are any.
    link: Option<LockingLink>,
    /// Our own NSM state: odd.
    state: u32,
    /// Whether there were any.
    had_hosts: bool,
    /// When the grace period ends: set by the first look at the clock.
    grace_end: Option<Duration>,
    pub(super) statistics: LockingStatistics,
}

/// The state of NLM and NSM, which both use in turn.
pub type SharedLocking = Rc<RefCell<Locking>>;

impl Locking {
    /// Begins without locks. `recovered` is what is known from before a restart.
    #[must_use]
    pub fn new(config: LockingConfig, recovered: Recovered, out: Box<dyn CallOut>) -> Locking {
        let Recovered { state, hosts: untold, had_hosts, journal } = recovered;
        let mut outbox = Outbox::new(out);
        for host in &untold {
            let name = nsm::Name(config.host_name.as_bytes());
            let told = arguments(&nsm::NotifyArguments { name, state });
            let way = Way { to: Some(host.address), from: host.local };
            outbox.push(way, What::Notify(host.clone(), told), Duration::ZERO, NOTIFY_LIFE);
        }
        Locking {
            table: LockTable::new(config.locks),
            below: Below::default(),
            holders: Holders::new(config.opens, KnownClients::nothing(FIRST_EPOCH), 0),
            hosts: Hosts::new(config.hosts_max),
            config,
            outbox,
            had_hosts,
            untold,
            journal,
            link: None,
            state,
            grace_end: None,
            statistics: LockingStatistics::default(),
        }
    }

    /// The same, as one of a group of reactors, each of which keeps the locks of its files.
    #[must_use]
    pub fn linked(self, link: LockingLink) -> Locking {
        Locking { link: Some(link), ..self }
    }

    /// The same, for clients of NFS version 4 of which those are known from before a restart. `home` is the reactor: state ids
    /// name it.
    #[must_use]
    pub fn with_clients(self, known: KnownClients, home: u8) -> Locking {
        Locking { holders: Holders::new(self.config.opens, known, home), ..self }
    }

    /// What has been done, and what there is.
    #[must_use]
    pub fn statistics(&self) -> LockingStatistics {
        let counts = self.table.counts();
        let (calls_out, calls_out_failed) = self.outbox.call_counts();
        LockingStatistics { counts, calls_out, calls_out_failed, ..self.statistics }
    }

    /// Our own NSM state.
    #[must_use]
    pub fn state(&self) -> u32 {
        self.state
    }

    /// Begins the grace period, if it has not begun. Returns whether it lasts: then only locks from before the restart are given.
    pub(super) fn enter_grace(&mut self, now: Duration) -> bool {
        let grace = if self.had_hosts { self.config.grace } else { Duration::ZERO };
        now < *self.grace_end.get_or_insert(now + grace)
    }

    /// Whether there is a grace period at all: then a claim is good for nothing outside of it.
    pub(super) fn has_grace(&self) -> bool {
        !self.config.grace.is_zero()
    }

    /// The host of a client that is known, or an id that no host has.
    pub(super) fn find_host(&self, client: &Client<'_>) -> HostId {
        self.hosts.find(client.name, client.place).unwrap_or(UNKNOWN_HOST)
    }

    /// What a host of NLM calls itself.
    pub(super) fn host_name(&self, id: HostId) -> Option<&[u8]> {
        self.hosts.get(id).map(|host| &*host.name)
    }

    /// The host of a client; `None`: there are too many. `state` is the NSM state that it says.
    pub(super) fn host(&mut self, client: &Client<'_>, state: Option<u32>) -> Option<HostId> {
        let (table, outbox) = (&self.table, &self.outbox);
        let is_idle = |id| table.host_counts(id) == Counts::default() && !outbox.has_grants_of(id);
        let found = self.hosts.find(client.name, client.place);
        // One that has nothing yet is about to get something. Names are made up easily: not too many at one address.
        if found.is_none_or(is_idle) && !table.has_room_for_host(client.place.site(), self.config.hosts_max) {
            return None;
        }
        let id = found.or_else(|| self.hosts.add(client.name, client.place, is_idle))?;
        if let Some(host) = self.hosts.get_mut(id).filter(|_| client.local.is_some()) {
            host.local = client.local;
        }
        // It may have restarted, and not have got through with the news.
        if let Some(state) = state.filter(|state| *state != NO_STATE) {
            let news = self.hosts.get_mut(id)?.hear(state);
            if news == StateNews::Restarted {
                self.free(id);
            }
            if news != StateNews::Known
                && let Some(link) = &self.link
            {
                link.tell(&HostState { name: client.name.into(), place: client.place, state });
            }
        }
        Some(id)
    }

    /// Takes in what other reactors heard of hosts.
    fn hear_others(&mut self) {
        while let Some(HostState { name, place, state }) =
            self.link.as_mut().and_then(|link| link.news.receive())
        {
            let id = self.hosts.find(&name, place);
            // One that never said a state here may have locked what it has here since it restarted.
            if let Some((id, host)) = id.and_then(|id| Some((id, self.hosts.get_mut(id)?)))
                && host.hear(state) == StateNews::Restarted
            {
                self.free(id);
            }
        }
    }

    /// Prepares for sleep. `false`: there is news.
    pub(super) fn arm(&mut self) -> bool {
        self.link.as_mut().is_none_or(|link| link.news.arm())
    }

    /// Ends what [`Locking::arm`] began.
    pub(super) fn disarm(&mut self) {
        if let Some(link) = &mut self.link {
            link.news.disarm();
        }
    }

    /// Notes that a host has locks, so that it is notified when we restart.
    pub(super) fn note(&mut self, id: HostId) {
        if let Some(host) = self.hosts.get_mut(id)
            && !host.is_noted
            && host.place.address().is_some()
        {
            host.is_noted = true;
            self.write_journal();
        }
    }

    fn write_journal(&mut self) {
        let Some(journal) = &self.journal else { return };
        let known = |host: &Host| {
            let address = host.place.address().filter(|_| host.is_noted)?;
            Some(KnownHost { address, local: host.local, name: host.name.clone() })
        };
        let hosts = self.hosts.iter().filter_map(known).chain(self.untold.iter().cloned());
        journal.write(self.state, hosts.collect());
    }

    /// Frees what the hosts have that somebody means by `client`: they restarted, and are in this NSM state now. Status
    /// monitors repeat such news, under several names too: what a host has locked since it is known to be in that state
    /// stays. A host that does not know its state is believed each time.
    pub(super) fn restarted(&mut self, client: &Client<'_>, state: u32) {
        self.free_meant(client, |host| state == NO_STATE || host.hear(state) != StateNews::Known);
    }

    /// The same for a host that says so itself, by FREE_ALL. It does so once for each start and may give the same state
    /// each time, so it is believed each time.
    pub(super) fn free_all(&mut self, client: &Client<'_>, state: u32) {
        self.free_meant(client, |host| {
            if state != NO_STATE {
                host.hear(state);
            }
            true
        });
    }

    fn free_meant(&mut self, client: &Client<'_>, mut is_news: impl FnMut(&mut Host) -> bool) {
        for id in self.hosts.meant(client.name, client.place) {
            if self.hosts.get_mut(id).is_some_and(&mut is_news) {
                self.free(id);
            }
        }
    }

    fn free(&mut self, id: HostId) {
        self.table.free_host(id);
        self.below.all_freed();
        self.outbox.forget(|grant| grant.owner.host == id);
        self.statistics.hosts_freed += 1;
    }

    /// The request of a client's owner waits.
    pub(super) fn waiter(client: &Client<'_>, file_handle: &[u8], token: Token) -> Waiter {
        Waiter { way: client.way(), file_handle: file_handle.into(), token }
    }

    /// The owner of this range knows what it has: no GRANTED is due any more.
    pub(super) fn acknowledge(&mut self, request: &LockRequest<'_>) {
        self.outbox.forget(|grant| grant.is_of(request) && grant.range.overlaps(&request.range));
    }

    /// Whether exactly this was waited for, and its owner has not been heard of since.
    pub(super) fn is_granted(&self, request: &LockRequest<'_>) -> bool {
        self.outbox.has_grant(|grant| {
            grant.is_of(request) && grant.range == request.range && grant.exclusive == request.exclusive
        })
    }

    /// Sends an answer to a `_MSG`, if there is somebody to send it to.
    pub(super) fn send(
        &mut self,
        (peer, local): Ends<'_>,
        answer: nlm4::Procedure,
        arguments: Vec<u8>,
        now: Duration,
    ) {
        if let Some(to) = Place::of(peer).address()
            && self.outbox.has_room_for_message(to, MESSAGES_MAX)
        {
            let way = Way { to: Some(to), from: local.copied() };
            self.outbox.push(way, What::Message(answer, arguments), now, MESSAGE_LIFE);
        }
    }

    /// Drives the Calls to hosts. Called each pass.
    pub(super) fn poll(&mut self, now: Duration) {
        // The grace period begins with the first pass.
        self.enter_grace(now);
        if self.link.is_some() {
            self.hear_others();
        }
        while let Some(granted) = self.table.poll_granted() {
            self.statistics.granted += 1;
            let (file, waiting) = (granted.file, granted.request);
            let Waiter { way, file_handle, .. } = waiting.waiter;
            let name = self.hosts.get(waiting.owner.host).map_or(Box::default(), |host| host.name.clone());
            self.note(waiting.owner.host);
            let (owner, range, exclusive) = (waiting.owner, waiting.range, waiting.exclusive);
            let grant = Grant { file, owner, range, exclusive, file_handle, name };
            self.outbox.push(way, What::Grant(grant), now, GRANT_LIFE);
        }
        if self.outbox.is_idle() {
            return;
        }
        while let Some((what, end)) = self.outbox.poll_ended(now) {
            self.ended(what, end);
        }
        self.outbox.begin_due(now);
    }

    /// Something needs no more Calls.
    fn ended(&mut self, what: What, end: End) {
        match (what, end) {
            (What::Grant(grant), End::Unwanted) => self.give_back(&grant),
            (What::Grant(grant), End::GivenUp) => {
                tracing::debug!(?grant.range, "a lock that was waited for is given back: its host is silent");
                self.give_back(&grant);
            }
            (What::Notify(host, _), End::Told) => {
                self.untold.retain(|untold| *untold != host);
                self.write_journal();
            }
            _ => {}
        }
    }

    fn give_back(&mut self, grant: &Grant) {
        let request = grant.request();
        // It may be too many pieces to take out: then it stays, as it is.
        if self.table.unlock(&request).is_ok() {
            self.below.freed(request.file, request.range);
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Duration> {
        [self.outbox.next_timeout(), self.below.next_timeout()].into_iter().flatten().min()
    }

    pub(super) fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.outbox.descriptors(out);
    }
}

/// The range of a lock, if it is one.
pub(super) fn range(lock: &nlm4::Lock<'_>) -> Option<Range> {
    Range::new(lock.offset, lock.len)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::callout::NoCallOut;
    use stag_state::FileKey;
    use stag_vfs::ObjectId;

    /// A LOCK of its own, of somebody who calls itself so at this address.
    fn lock(locking: &mut Locking, last: u8, name: &str) -> bool {
        lock_since(locking, last, name, Some(1))
    }

    /// The same, of a host in this NSM state.
    fn lock_since(locking: &mut Locking, last: u8, name: &str, state: Option<u32>) -> bool {
        lock_at(locking, [192, 0, 2, last].into(), name, state)
    }

    /// The same, at any address.
    fn lock_at(locking: &mut Locking, address: IpAddr, name: &str, state: Option<u32>) -> bool {
        let peer = Peer::Address((address, 700).into());
        let client = Client::new(name.as_bytes(), (Some(&peer), None));
        let Some(host) = locking.host(&client, state) else { return false };
        // At places where no lock is held: some locks are freed in between.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let offset = NEXT.fetch_add(2, Ordering::Relaxed);
        let range = Range::new(offset, 1).expect("a range");
        let file = FileKey { volume: 1, object: ObjectId { fileid: 1, generation: 1 } };
        let request = LockRequest { file, host, svid: 1, handle: b"owner", range, exclusive: true };
        locking.table.lock(&request).is_ok()
    }

    #[test]
    fn reactors_tell_each_other_of_restarts() {
        let link = LockingLink::all(3).expect("some descriptors");
        let linked = |link| {
            let out = Box::new(NoCallOut::default());
            Locking::new(LockingConfig::default(), Recovered::nothing(), out).linked(link)
        };
        let mut lockings: Vec<Locking> = link.into_iter().map(linked).collect();
        let counts = |lockings: &mut Vec<Locking>| {
            lockings.iter_mut().for_each(|locking| locking.poll(Duration::ZERO));
            [0, 1, 2].map(|index: usize| lockings[index].statistics().counts.locks)
        };
        for locking in &mut lockings {
            assert!(lock(locking, 1, "alice") && lock(locking, 2, "alice") && lock(locking, 1, "bob"));
        }
        assert_eq!(counts(&mut lockings), [3, 3, 3], "the same state is no news");
        // Where a host says no state, it may have locked since.
        assert!(lock_since(&mut lockings[2], 3, "carol", None));
        assert!(lock_since(&mut lockings[0], 3, "carol", Some(9)));
        assert_eq!(counts(&mut lockings), [4, 3, 4]);
        assert!(lock_since(&mut lockings[1], 1, "alice", Some(3)));
        assert_eq!(counts(&mut lockings), [3, 3, 3], "one host at one address");
        assert!(lock_since(&mut lockings[0], 1, "alice", Some(3)));
        assert_eq!(counts(&mut lockings), [4, 3, 3], "it knows already");
        // It was told there of the state before, so this is a restart, and what it had is free.
        assert!(lock_since(&mut lockings[2], 3, "carol", Some(11)));
        assert_eq!(counts(&mut lockings), [3, 3, 3]);
    }

    #[test]
    fn made_up_names_leave_room_for_other_addresses() {
        let config = LockingConfig::default();
        let mut locking = Locking::new(config, Recovered::nothing(), Box::new(NoCallOut::default()));
        let flood = |locking: &mut Locking, last| {
            (0..1100).filter(|number| lock(locking, last, &format!("host{number}"))).count()
        };
        assert_eq!(flood(&mut locking, 1), 512, "half of all hosts");
        assert_eq!(flood(&mut locking, 2), 256);
        for last in 3..100 {
            assert!(lock(&mut locking, last, "honest"), "{last}");
        }
        // One that is known goes on as before.
        assert!(lock(&mut locking, 1, "host7"));
    }

    /// A host of IPv6 has as many addresses as it likes, of one network.
    #[test]
    fn addresses_of_one_network_leave_room_for_other_networks() {
        let config = LockingConfig::default();
        let mut locking = Locking::new(config, Recovered::nothing(), Box::new(NoCallOut::default()));
        let address = |network: u16, host: u16| [0x2001, 0xdb8, 0, network, 0, 0, 0, host].into();
        let flood = |locking: &mut Locking, network| {
            (0..1100).filter(|host| lock_at(locking, address(network, *host), "host", Some(1))).count()
        };
        assert_eq!(flood(&mut locking, 1), 512, "half of all hosts");
        assert_eq!(flood(&mut locking, 2), 256);
        assert!(lock_at(&mut locking, address(3, 1), "honest", Some(1)) && lock(&mut locking, 1, "honest"));
        // Neither do answers to them.
        for host in 0..1100 {
            let peer = Peer::Address((address(1, host), 700).into());
            locking.send((Some(&peer), None), nlm4::Procedure::LockRes, Vec::new(), Duration::ZERO);
        }
        assert!(!locking.outbox.has_room_for_message(address(1, 2000), MESSAGES_MAX));
        assert!(locking.outbox.has_room_for_message(address(2, 1), MESSAGES_MAX));
    }

    /// Two clients share an address: a restart notice for one leaves the locks of the other alone.
    #[test]
    fn a_host_does_not_restart_for_another_at_its_address() {
        let config = LockingConfig::default();
        let mut locking = Locking::new(config, Recovered::nothing(), Box::new(NoCallOut::default()));
        assert!(lock(&mut locking, 1, "alice"));
        let peer = Peer::Address(([192, 0, 2, 1], 700).into());
        let bob = Client::new(b"bob", (Some(&peer), None));
        locking.restarted(&bob, 3);
        locking.free_all(&bob, 3);
        locking.restarted(&bob, NO_STATE);
        assert_eq!(locking.statistics().counts.locks, 1);
    }

    /// Names that have nothing count when they get something, not before.
    #[test]
    fn names_in_store_are_no_way_around_it() {
        let config = LockingConfig { hosts_max: 8, ..LockingConfig::default() };
        let mut locking = Locking::new(config, Recovered::nothing(), Box::new(NoCallOut::default()));
        let peer = Peer::Address(([192, 0, 2, 1], 700).into());
        for number in 0..8 {
            let name = format!("host{number}");
            assert!(locking.host(&Client::new(name.as_bytes(), (Some(&peer), None)), None).is_some());
        }
        let taken = (0..8).filter(|number| lock(&mut locking, 1, &format!("host{number}"))).count();
        assert_eq!(taken, 4);
        assert!(lock(&mut locking, 2, "honest"));
    }
}
