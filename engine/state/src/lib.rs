//! What clients hold: pure machines, without I/O, without a clock of their own and without a wire.
//!
//! Here are locks on ranges of files, of NLM and of NFS version 4 together, and NLM's shares. The modules are NFS version 4's,
//! each with its stages drawn in `stages.txt`:
//!
//! | module | keeps |
//! |---|---|
//! | [`client`] | clients, from EXCHANGE_ID over CREATE_SESSION to their end |
//! | [`session`], [`slot`] | sessions; their slots, which execute each request once and keep its reply |
//! | [`back`] | over which connection a session's client is called back, and whether it answers |
//! | [`lease`] | whether a client was heard of: one word, which any reactor renews |
//! | [`open`], [`stateid`] | opens with share reservations, and the names of state |
//! | [`trunking`] | whether two addresses are one server |
//! | [`grace`] | who may reclaim, and who must wait, after a restart |
//!
//! ```text
//! owner A   ────────xxxxxxxxxxxx──────ssss──      x: exclusive   s: shared
//! owner B   ──ssss────────────────────ssssss      of one owner nothing overlaps, and what touches and is alike is one
//! waiting   [A x 0-3] [C x 0-end]                 in the order in which they came
//! ```
//!
//! An owner is a process of a host, or a lock owner of a client of version 4: both lock in one table. A new lock replaces the owner's own locks in its range: it upgrades, downgrades, joins and
//! splits them. Another owner's lock conflicts if the ranges overlap and one of the two is exclusive. Waiting requests are
//! examined whenever a range is freed, the oldest first, and each is granted as soon as no *held* lock conflicts. (A younger
//! one may overtake an older one with which it does not conflict: holding it back for fairness would make deadlocks of programs
//! that have none.)
//!
//! Everything is bounded ([`LockConfig`]): a host that asks for too much is refused, and the others are not. A host is a name,
//! and names can be made up; so all hosts of one site ([`HostId::site`]) together may also only grow as long as they have no
//! more than is still free. One site gets half of a limit at most, two a third each; a site that has nothing yet always finds
//! room.

#![forbid(unsafe_code)]

pub mod back;
pub mod client;
mod file;
pub mod grace;
mod host;
pub mod lease;
pub mod open;
mod price;
mod range;
pub mod session;
pub mod slot;
mod spare;
mod stages;
pub mod stateid;
mod sync;
pub mod trunking;

use std::collections::{HashMap, VecDeque};

use file::{File, Share, SpareFiles};
pub use file::{Held, LockedSegment, Waiting};
pub use host::{FileKey, HostId, HostNumber, HostSite, LockRequest, Owner, has_share};
pub use range::Range;
use spare::{SPARE_LEN, SpareOwners};

use open::ShareModes;

/// How many locks there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockConfig {
    /// Locks and shares in all.
    pub locks_max: u32,
    /// Locks and shares of one host.
    pub host_locks_max: u32,
    /// Locks and shares on one file: what one request may have to look at.
    pub file_locks_max: u32,
    /// Requests that wait, in all.
    pub waiting_max: u32,
    /// Requests of one host that wait.
    pub host_waiting_max: u32,
    /// Requests that wait for one file.
    pub file_waiting_max: u32,
    /// Octets of all owners' handles together.
    pub handle_octets_max: u32,
}

impl Default for LockConfig {
    fn default() -> LockConfig {
        LockConfig {
            locks_max: 32_768,
            host_locks_max: 8_192,
            file_locks_max: 8_192,
            waiting_max: 4_096,
            host_waiting_max: 1_024,
            file_waiting_max: 256,
            handle_octets_max: 2 << 20,
        }
    }
}

impl LockConfig {
    /// The default limits, or proportionally lower ones if those would take more than `octets` of the heap.
    #[must_use]
    pub fn within(octets: u64) -> LockConfig {
        let all = LockConfig::default();
        let most = all.memory_max();
        // At least something of each, however little memory there is.
        let part = |limit: u32| (u64::from(limit) * octets.min(most) / most).max(16) as u32;
        LockConfig {
            locks_max: part(all.locks_max),
            host_locks_max: part(all.host_locks_max),
            file_locks_max: part(all.file_locks_max),
            waiting_max: part(all.waiting_max),
            host_waiting_max: part(all.host_waiting_max),
            file_waiting_max: part(all.file_waiting_max),
            handle_octets_max: part(all.handle_octets_max),
        }
    }

    /// Octets of the heap that all this can take, at most.
    #[must_use]
    pub const fn memory_max(&self) -> u64 {
        // A lock with its owner, its place in a list that grew by doubling, and a file of its own.
        const LOCK: u64 = 480;
        // The same, and what the waiting one's owner is called back with.
        const WAITING: u64 = 560;
        let locks = self.locks_max as u64 * LOCK + self.waiting_max as u64 * WAITING;
        locks + self.handle_octets_max as u64 + SPARE_LEN
    }
}

/// No room: one of the limits of [`LockConfig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many locks")]
pub struct NoRoom;

/// Why there is no lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockRefused {
    /// Another owner's lock or share is in the way.
    #[error("another lock is in the way")]
    Conflict,
    /// There are too many.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
}

/// A lock that was waited for.
#[derive(Debug, PartialEq, Eq)]
pub struct Granted<W> {
    /// The file.
    pub file: FileKey,
    /// What was asked for.
    pub request: Waiting<W>,
}

/// What there is, in all or of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Locks and shares.
    pub locks: u32,
    /// Requests that wait.
    pub waiting: u32,
}

/// What all hosts of one site have together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SiteAccount {
    counts: Counts,
    handle_octets: u64,
    /// Hosts that have something.
    hosts: u32,
}

/// All locks. `W` is returned with a lock that was waited for.
#[derive(Debug)]
pub struct LockTable<W> {
    config: LockConfig,
    files: HashMap<FileKey, File<W>>,
    hosts: HashMap<HostId, Counts>,
    sites: HashMap<HostSite, SiteAccount>,
    all: Counts,
    handle_octets: u64,
    /// Not fetched yet. No more than waited.
    granted: VecDeque<Granted<W>>,
    spare_owners: SpareOwners,
    spare_files: SpareFiles<W>,
}

/// Octets of heap that the table takes for a host at a site of its own: maps are as large again as what is in them.
pub const HOST_LEN: usize = 2 * (size_of::<(HostId, Counts)>() + size_of::<(HostSite, SiteAccount)>() + 2);

impl<W> LockTable<W> {
    /// A table without locks.
    #[must_use]
    pub fn new(config: LockConfig) -> LockTable<W> {
        LockTable {
            config,
            files: HashMap::new(),
            hosts: HashMap::new(),
            sites: HashMap::new(),
            all: Counts::default(),
            handle_octets: 0,
            granted: VecDeque::new(),
            spare_owners: SpareOwners::default(),
            spare_files: SpareFiles::default(),
        }
    }

    /// What there is in all.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.all
    }

    /// What a host has.
    #[must_use]
    pub fn host_counts(&self, host: HostId) -> Counts {
        self.hosts.get(&host).copied().unwrap_or_default()
    }

    /// Whether one more host of a site may get something, when at most `hosts_max` hosts may have anything.
    #[must_use]
    pub fn has_room_for_host(&self, site: HostSite, hosts_max: u32) -> bool {
        has_share(self.site(site).hosts.into(), self.hosts.len() as u64, 1, hosts_max.into())
    }

    /// The locks on a file, in the order of their first octets.
    #[must_use]
    pub fn held(&self, file: FileKey) -> &[Held] {
        self.files.get(&file).map_or(&[], |file| &file.held)
    }

    /// What owners together have locked of a range: segments in the order of their octets, each as long as its kind allows.
    #[must_use]
    pub fn locked(&self, file: FileKey, range: Range) -> Vec<LockedSegment> {
        self.files.get(&file).map(|file| file.locked(&range)).unwrap_or_default()
    }

    /// The requests that wait for a file, in the order in which they came.
    pub fn waiting(&self, file: FileKey) -> impl Iterator<Item = &Waiting<W>> {
        self.files.get(&file).into_iter().flat_map(|file| &file.waiting)
    }

    /// All locks, with their files.
    pub fn all_held(&self) -> impl Iterator<Item = (FileKey, &Held)> {
        self.files.iter().flat_map(|(key, file)| file.held.iter().map(|held| (*key, held)))
    }

    /// All shares, with their files: whose, and what they have and deny.
    pub fn all_shares(&self) -> impl Iterator<Item = (FileKey, HostId, &[u8], ShareModes)> {
        self.files.iter().flat_map(|(key, file)| {
            file.shares.iter().map(|share| (*key, share.host, &*share.handle, share.modes()))
        })
    }

    /// The lock that is in a request's way, the first if there are several.
    #[must_use]
    pub fn test(&self, request: &LockRequest<'_>) -> Option<&Held> {
        self.files.get(&request.file)?.conflict(request)
    }

    /// Whether the owner of a request has any lock on its file, wherever.
    #[must_use]
    pub fn holds(&self, request: &LockRequest<'_>) -> bool {
        self.held(request.file).iter().any(|held| request.is_by(&held.owner))
    }

    /// What all shares of a file together have and deny: for opens of NFS version 4.
    #[must_use]
    pub fn share_modes(&self, file: FileKey) -> ShareModes {
        let shares = self.files.get(&file).map(|file| &file.shares[..]).unwrap_or_default();
        shares.iter().map(Share::modes).fold(ShareModes::default(), ShareModes::union)
    }

    /// Takes a lock, or changes what the owner has there. A request of the same owner for the same that waits
    /// is over then.
    pub fn lock(&mut self, request: &LockRequest<'_>) -> Result<(), LockRefused> {
        if self.test(request).is_some() {
            return Err(LockRefused::Conflict);
        }
        let frees = self.replace(request, Some(request.exclusive))?;
        self.forget_waiting(request);
        if frees {
            self.settle(request.file);
        }
        Ok(())
    }

    /// Lets a request wait for its turn. If the same waits already, it keeps its place, with the new `waiter`.
    pub fn wait(&mut self, request: &LockRequest<'_>, waiter: W) -> Result<(), NoRoom> {
        if let Some(file) = self.files.get_mut(&request.file)
            && let Some(same) = file.waiting.iter_mut().find(|waiting| waiting.is(request))
        {
            same.waiter = waiter;
            return Ok(());
        }
        let site = self.site(request.host.site);
        let (waiting, octets) = (site.counts.waiting.into(), site.handle_octets);
        let LockConfig { waiting_max, file_waiting_max, handle_octets_max, .. } = self.config;
        let queue = self.files.get(&request.file).map(|file| &file.waiting);
        let of_site = |waiting: &&Waiting<W>| waiting.owner.host.site == request.host.site;
        let own_queued = queue.map_or(0, |queue| queue.iter().filter(of_site).count() as u64);
        let queued = queue.map_or(0, |queue| queue.len() as u64);
        let has_room = has_share(waiting, self.all.waiting.into(), 1, waiting_max.into())
            && self.host_counts(request.host).waiting < self.config.host_waiting_max
            && has_share(own_queued, queued, 1, file_waiting_max.into())
            && has_share(octets, self.handle_octets, request.handle.len() as u64, handle_octets_max.into());
        if !has_room {
            return Err(NoRoom);
        }
        let (owner, range, exclusive) = (request.owner(), request.range, request.exclusive);
        let file = self.files.entry(request.file).or_default();
        file.waiting.push_back(Waiting { owner, range, exclusive, is_held_back: false, waiter });
        self.count_waiting(request.host, request.handle.len(), true);
        Ok(())
    }

    /// Holds a request back that waits: it is granted by [`LockTable::grant`] only, because something besides the table's locks may
    /// be in its way.
    pub fn hold_back(&mut self, request: &LockRequest<'_>) {
        if let Some(file) = self.files.get_mut(&request.file)
            && let Some(waiting) = file.waiting.iter_mut().find(|waiting| waiting.is(request))
        {
            waiting.is_held_back = true;
        }
    }

    /// Grants a request that waits, unless a lock is in its way: [`LockTable::poll_granted`] tells it. Does nothing if no such
    /// request waits.
    pub fn grant(&mut self, request: &LockRequest<'_>) -> Result<(), LockRefused> {
        let Some(file) = self.files.get(&request.file) else { return Ok(()) };
        let Some(place) = file.waiting.iter().position(|waiting| waiting.is(request)) else { return Ok(()) };
        if file.conflict(request).is_some() {
            return Err(LockRefused::Conflict);
        }
        if self.grant_at(place, request)? {
            self.settle(request.file);
        }
        Ok(())
    }

    /// Ends a request that waits. `false`: there is none.
    pub fn cancel(&mut self, request: &LockRequest<'_>) -> bool {
        let found = self.forget_waiting(request);
        self.drop_if_empty(request.file);
        found
    }

    /// Gives a range back, whatever the owner has there. [`NoRoom`]: what is left would be too many pieces.
    pub fn unlock(&mut self, request: &LockRequest<'_>) -> Result<(), NoRoom> {
        self.replace(request, None)?;
        self.settle(request.file);
        Ok(())
    }

    /// Takes a share. One that the same owner has on the file is over then.
    pub fn share(&mut self, request: &LockRequest<'_>, deny: u32, access: u32) -> Result<(), LockRefused> {
        let file = self.files.get(&request.file);
        let shares = || file.into_iter().flat_map(|file| &file.shares);
        if shares().any(|other| !other.is_by(request) && other.deny & access | deny & other.access != 0) {
            return Err(LockRefused::Conflict);
        }
        let has_one = shares().any(|other| other.is_by(request));
        if !has_one {
            self.check_room(request.file, request.host, 1, request.handle.len())?;
        }
        let file = self.files.entry(request.file).or_default();
        if let Some(own) = file.shares.iter_mut().find(|other| other.is_by(request)) {
            (own.deny, own.access) = (deny, access);
        } else {
            file.shares.push(Share { host: request.host, handle: request.handle.into(), deny, access });
            self.count_locks(request.host, 1, request.handle.len());
        }
        Ok(())
    }

    /// Ends the share of an owner on a file, if there is one.
    pub fn unshare(&mut self, request: &LockRequest<'_>) {
        let Some(file) = self.files.get_mut(&request.file) else { return };
        if let Some(place) = file.shares.iter().position(|share| share.is_by(request)) {
            let share = file.shares.swap_remove(place);
            self.count_locks(share.host, -1, share.handle.len());
            self.drop_if_empty(request.file);
        }
    }

    /// Frees all that a host has, and ends all that it waits for.
    pub fn free_host(&mut self, host: HostId) {
        let mut touched = Vec::new();
        let mut octets = 0;
        for (key, file) in &mut self.files {
            let before = (file.held.len(), file.waiting.len(), file.shares.len());
            file.held.retain(|held| {
                let stays = held.owner.host != host;
                octets += if stays { 0 } else { held.owner.handle.len() as u64 };
                stays
            });
            file.waiting.retain(|waiting| {
                let stays = waiting.owner.host != host;
                octets += if stays { 0 } else { waiting.owner.handle.len() as u64 };
                stays
            });
            file.shares.retain(|share| {
                let stays = share.host != host;
                octets += if stays { 0 } else { share.handle.len() as u64 };
                stays
            });
            if before != (file.held.len(), file.waiting.len(), file.shares.len()) {
                touched.push(*key);
            }
        }
        if let Some(had) = self.hosts.remove(&host) {
            self.all.locks -= had.locks;
            self.all.waiting -= had.waiting;
            self.handle_octets -= octets;
            self.change_site(host.site, |site| {
                site.counts.locks -= had.locks;
                site.counts.waiting -= had.waiting;
                site.handle_octets -= octets;
                site.hosts -= 1;
            });
        }
        self.granted.retain(|granted| granted.request.owner.host != host);
        for file in touched {
            self.settle(file);
        }
    }

    /// Frees all that hosts have on files of a file system ([`FileKey::volume`]), and ends all that waits there: the file system
    /// is no longer served.
    pub fn free_volume(&mut self, volume: u64) {
        let gone: Vec<FileKey> = self.files.keys().filter(|key| key.volume == volume).copied().collect();
        for key in gone {
            let Some(file) = self.files.remove(&key) else { continue };
            for Held { owner, .. } in file.held {
                self.count_locks(owner.host, -1, owner.handle.len());
            }
            for Waiting { owner, .. } in file.waiting {
                self.count_waiting(owner.host, owner.handle.len(), false);
            }
            for Share { host, handle, .. } in file.shares {
                self.count_locks(host, -1, handle.len());
            }
        }
        self.granted.retain(|granted| granted.file.volume != volume);
    }

    /// The next lock that was waited for and is held now.
    pub fn poll_granted(&mut self) -> Option<Granted<W>> {
        self.granted.pop_front()
    }

    /// Sets what an owner has in a range: a lock, or nothing.
    /// Returns whether others may have more there than before.
    fn replace(&mut self, request: &LockRequest<'_>, kind: Option<bool>) -> Result<bool, NoRoom> {
        let plan = match self.files.get(&request.file) {
            Some(file) => file.plan(request, kind),
            None if kind.is_none() => return Ok(false),
            None => File::<W>::default().plan(request, kind),
        };
        let growth = plan.growth();
        if growth > 0 {
            self.check_room(request.file, request.host, growth as u32, request.handle.len())?;
        }
        let file = self.files.entry(request.file).or_insert_with(|| self.spare_files.take());
        file.apply(request, &plan, &mut self.spare_owners);
        self.count_locks(request.host, growth, request.handle.len());
        Ok(plan.frees)
    }

    /// Grants what can be granted now, and forgets a file without locks and waiters.
    fn settle(&mut self, key: FileKey) {
        let mut place = 0;
        while let Some(file) = self.files.get(&key)
            && let Some(waiting) = file.waiting.get(place)
        {
            let owner = waiting.owner.clone();
            let request = LockRequest {
                file: key,
                host: owner.host,
                svid: owner.svid,
                handle: &owner.handle,
                range: waiting.range,
                exclusive: waiting.exclusive,
            };
            if waiting.is_held_back || file.conflict(&request).is_some() {
                place += 1;
                continue;
            }
            match self.grant_at(place, &request) {
                Ok(true) => place = 0,
                Ok(false) => {}
                // Without room it goes on waiting: its host asks again, and gets the answer then.
                Err(NoRoom) => place += 1,
            }
        }
        self.drop_if_empty(key);
    }

    /// Grants the request at this place of its file's queue, which no lock is in the way of. Returns whether others may have more than
    /// before.
    fn grant_at(&mut self, place: usize, request: &LockRequest<'_>) -> Result<bool, NoRoom> {
        let frees = self.replace(request, Some(request.exclusive))?;
        let waited = self.files.get_mut(&request.file).and_then(|file| file.waiting.remove(place));
        self.count_waiting(request.host, request.handle.len(), false);
        self.granted.extend(waited.map(|waited| Granted { file: request.file, request: waited }));
        Ok(frees)
    }

    fn forget_waiting(&mut self, request: &LockRequest<'_>) -> bool {
        let Some(file) = self.files.get_mut(&request.file) else { return false };
        let Some(place) = file.waiting.iter().position(|waiting| waiting.is(request)) else { return false };
        file.waiting.remove(place);
        self.count_waiting(request.host, request.handle.len(), false);
        true
    }

    fn drop_if_empty(&mut self, key: FileKey) {
        if self.files.get(&key).is_some_and(File::is_empty)
            && let Some(file) = self.files.remove(&key)
        {
            self.spare_files.keep(file);
        }
    }

    fn check_room(&self, key: FileKey, host: HostId, growth: u32, handle_len: usize) -> Result<(), NoRoom> {
        let site = self.site(host.site);
        let (locks, octets) = (site.counts.locks.into(), site.handle_octets);
        let LockConfig { locks_max, file_locks_max, handle_octets_max, .. } = self.config;
        let more = u64::from(growth);
        let more_octets = more * handle_len as u64;
        let has_room = has_share(locks, self.all.locks.into(), more, locks_max.into())
            && self.host_counts(host).locks + growth <= self.config.host_locks_max
            && self.has_room_on_file(key, host.site, more, file_locks_max.into())
            && has_share(octets, self.handle_octets, more_octets, handle_octets_max.into());
        if has_room { Ok(()) } else { Err(NoRoom) }
    }

    fn has_room_on_file(&self, key: FileKey, site: HostSite, growth: u64, max: u64) -> bool {
        let Some(file) = self.files.get(&key) else { return growth <= max };
        let all = (file.held.len() + file.shares.len()) as u64;
        // As long as it is true of all sites together it is true of each.
        has_share(all, all, growth, max) || has_share(file.locks_of(site), all, growth, max)
    }

    fn site(&self, site: HostSite) -> SiteAccount {
        self.sites.get(&site).copied().unwrap_or_default()
    }

    fn change_site(&mut self, site: HostSite, change: impl FnOnce(&mut SiteAccount)) {
        let account = self.sites.entry(site).or_default();
        change(account);
        if *account == SiteAccount::default() {
            self.sites.remove(&site);
        }
    }

    fn count_locks(&mut self, host: HostId, growth: i32, handle_len: usize) {
        self.count(host, growth, handle_len, |counts| &mut counts.locks);
    }

    fn count_waiting(&mut self, host: HostId, handle_len: usize, more: bool) {
        self.count(host, if more { 1 } else { -1 }, handle_len, |counts| &mut counts.waiting);
    }

    /// Counts what a host has more or less, with the octets of the owner's handle, in all accounts.
    fn count(
        &mut self,
        host: HostId,
        growth: i32,
        handle_len: usize,
        which: impl Fn(&mut Counts) -> &mut u32,
    ) {
        let add = |counts: &mut Counts| {
            let place = which(counts);
            *place = grown(*place, growth);
        };
        let octets = i64::from(growth) * handle_len as i64;
        let add_octets = |all: u64| all.checked_add_signed(octets).expect("what is freed was counted");
        let had_something = self.hosts.contains_key(&host);
        let own = self.hosts.entry(host).or_default();
        add(own);
        let has_something = *own != Counts::default();
        if !has_something {
            self.hosts.remove(&host);
        }
        add(&mut self.all);
        self.handle_octets = add_octets(self.handle_octets);
        self.change_site(host.site, |site| {
            add(&mut site.counts);
            site.handle_octets = add_octets(site.handle_octets);
            site.hosts = grown(site.hosts, i32::from(has_something) - i32::from(had_something));
        });
    }
}

/// A count after a change, which is within its limits.
fn grown(count: u32, growth: i32) -> u32 {
    count.checked_add_signed(growth).expect("what is freed was counted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_takes_no_more_than_it_leaves() {
        // How much each of `sites` sites gets of 100, if they take turns and never have enough.
        for (sites, expected) in [(1, 50), (2, 33), (3, 25), (9, 10), (99, 1), (200, 0)] {
            let mut owned = vec![0; sites];
            for _ in 0..100 {
                for own in 0..sites {
                    let all = owned.iter().sum();
                    owned[own] += u64::from(has_share(owned[own], all, 1, 100));
                }
            }
            assert!(owned.iter().all(|own| own.abs_diff(expected) <= 1), "{sites}: {owned:?}");
        }
        assert!(!has_share(0, 100, 1, 100) && has_share(0, 99, 1, 100) && has_share(0, 0, 100, 100));
    }

    #[test]
    fn limits_fit_the_memory_that_they_are_given() {
        let all = LockConfig::default();
        assert_eq!(LockConfig::within(u64::MAX / (1 << 33)), all);
        for octets in [1 << 20, 4 << 20, 16 << 20] {
            let part = LockConfig::within(octets);
            assert!(part.memory_max() <= octets + 64 * 1024, "{octets}: {}", part.memory_max());
            assert!(part.memory_max() >= octets / 2, "{octets}: {}", part.memory_max());
        }
        assert_eq!(LockConfig::within(0).locks_max, 16);
    }
}
