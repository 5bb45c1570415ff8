//! A directory of the machine as a file system to serve.
//!
//! - **Handles survive a restart** of the server and of the machine: an object is named by its number and the kernel's
//!   generation of it (`object.rs`), nothing is written beside the files. If the server does not know where an object
//!   is, it searches (`search.rs`).
//! - **Nothing outside can be reached**: by names, symbolic links, `..`, mounts, or by moving things around (`tree.rs`). Symbolic
//!   links are only reported; clients follow them, on their side.
//! - **A READ of what is in memory** is done as it comes (`admission.rs`). Others, and WRITEs, go through [`stag_disk`] and are done
//!   later (`transfer.rs`); those that come together share the examination of their file (`seen.rs`). Data that was acknowledged as
//!   stable was synced.
//! - **Nothing else waits for the file system either**: what may take its time is asked and changed by helper threads of the store
//!   (`kernel.rs`, `changes.rs`), and the step is over later.
//! - **Changes of a Call are on stable storage before it is answered**, as RFC 1813 section 4.8 wants: names and
//!   attributes are synced by [`Store::sync_changes`], and COMMIT's data with them (`syncs.rs`).
//!   [`DirectoryConfig::sync`] can switch it off. Two things cannot be synced by themselves: attributes of objects that
//!   cannot be opened (symbolic links, devices, sockets, pipes), and names in a directory that a server which is not root
//!   may write but not read. They are as safe as the file system's journal makes them.
//! - **SETATTR is several system calls.** Changes that can be undone come first (owner, then mode), and are undone if a
//!   later one fails: the size, then the times. A failure leaves a later change time; and, if the disk fails in the
//!   middle, changes that the kernel refuses to undo. WRITE clears a program's set-id bits before it has written
//!   anything, as the kernel does.
//! - **ObjectStat before a change** are left out of Replies (RFC 1813 section 2.6) while data of the file is being
//!   written. Changes by local processes in the microseconds between the system calls of one Call cannot be told from the
//!   Call's own.
//! - **Other file systems below the directory are not exported**: mounts, subvolumes, and layers of an overlay that have
//!   numbers of their own. They are listed without attributes, and looking them up is `NFS3ERR_XDEV`.
//! - **2048 levels** of directories: deeper objects are `NFS3ERR_NAMETOOLONG`.
//! - **Whose files?** A server that runs as root checks permissions by owner, group and mode as the caller, and creates
//!   objects as the caller: the kernel sets owner and group, and has the last word where names are made, changed and
//!   removed. A server that is not root acts as its own user for every caller.
//! - **POSIX access control lists** decide as they do in the kernel, are set as the caller, and are inherited as the kernel does
//!   (`acl.rs`). Where the file system has none, only what a mode can say is set.
//! - **Locks of clients** can be taken on the files as well ([`DirectoryConfig::locks_below`]), where local processes and other nodes of a
//!   cluster file system see them (`locks.rs`).
//! - **Local processes may change names at any moment**, also between two system calls of one Call. So nothing is given
//!   away, changed or removed by a name that may have been exchanged: see `making.rs` for new objects; everything else
//!   is done to a descriptor whose identity was checked, or by the kernel as the caller.

mod acl;
mod actor;
mod admission;
mod changes;
mod chunk;
mod config;
mod errands;
mod identity;
mod index;
mod kernel;
mod last_seen;
mod limits;
mod listing;
mod locate;
mod lock_steps;
mod locks;
mod making;
mod name_index;
mod object;
mod opened;
mod owned;
mod recent;
mod search;
mod seen;
mod segments;
mod steps;
mod surroundings;
mod syncs;
mod ticket;
mod transfer;
mod tree;
mod unsynced;
mod verifier;
mod writing;

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::Gid;
use rustix::io::Errno;
use stag_disk::system::{self, FileUsers};
use stag_disk::{AtOnce, Disk, Method};
use stag_memory::{Pool, Shared};
use stag_vfs::{
    Acl, Blocked, Capabilities, ChangeStep, EntryName, ExtentKind, Finished, FsError, LINK_SPACE, ListStart,
    Listed, NewAttributes, NewObject, ObjectId, ObjectStat, OctetLock, Progress, ReadDone, ReadStep,
    RenameSeen, SetLists, SpaceChange, Stability, Store, StoreLimits, StoreProfile, StoreVerifier, Ticket,
    Timestamp, Update, Usage, UserIdentity, WriteData, WriteDone, policy,
};

use actor::Actor;
pub use config::{DirectoryConfig, DirectoryError, stable_fsid};
use errands::Errands;
use identity::identity;
use index::ROOT;
use kernel::Kernel;
use limits::FILE_LEN_MAX;
use locks::LockedFiles;
use object::{is_read_only, status};
pub use opened::MayWait;
use opened::may_wait;
use seen::Seen;
use surroundings::ExportPlace;
pub use surroundings::{HandleWeakness, handle_weakness, has_stable_storage};
use syncs::{Syncs, Target};
use ticket::Work;
use transfer::Transfers;
use tree::{Limits, Tree};
use unsynced::Unsynced;
pub use verifier::WriteVerifier;
use writing::Writing;

/// How long it is believed that files are in memory.
const MEMORY_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A directory of the machine; see the module.
pub struct DirectoryStore {
    fsid: u64,
    place: ExportPlace,
    root: ObjectId,
    kernel: Rc<Kernel>,
    /// What helpers are at.
    errands: RefCell<Errands>,
    /// Changes that were over when the first of the answers was asked for that the operation in hand has.
    answered_since: Cell<u64>,
    /// What objects are that a helper just changed; `None`: that is not told.
    told: RefCell<Vec<(ObjectId, Option<object::Stat>)>>,
    /// Whether the files were read-only, when that was last known, and when it was last asked.
    read_only: Cell<bool>,
    mount_checked: Cell<Option<Duration>>,
    /// Whether a helper closes descriptors.
    is_closing: bool,
    /// Whether what may wait is as the configuration says, and not as the file system is.
    is_configured: bool,
    // A procedure that changes nothing still finds, opens and notes. Each borrows it for itself alone.
    tree: RefCell<Tree>,
    transfers: Transfers,
    syncs: Syncs,
    writing: Writing,
    unsynced: Unsynced,
    locks: RefCell<LockedFiles>,
    /// Whether clients' locks are taken on the files as well.
    locks_below: bool,
    /// What files are, of which transfers ended, since those did.
    finished: RefCell<Seen>,
    /// How many were over then.
    finished_for: u64,
    /// What the directory was in which a name was looked up last, since the store was polled; and how many changes there had been.
    searched: Cell<Option<(ObjectId, u64, ObjectStat)>>,
    /// What files are, of which transfers are admitted. Empty but for that time.
    asked: Seen,
    limits: StoreLimits,
    /// Whether the file system has access control lists.
    keeps_lists: bool,
    /// When it was last seen whether the files are in memory.
    memory_checked: Option<Duration>,
    /// Whether that may change.
    is_memory_kind: bool,
    /// Readable while the disk or a helper is done with something.
    wake: Option<OwnedFd>,
    /// Whether to sync what a Call changed.
    sync: bool,
    /// What the Call in hand changed.
    changed: Vec<Target>,
    verifier: WriteVerifier,
    /// Whom every caller is, unless we may act as anybody.
    own: Option<UserIdentity>,
    /// How we act as anybody.
    actor: Actor,
}

impl DirectoryStore {
    /// Opens a directory. READ and WRITE go through `disk`, into buffers of `pool`.
    pub fn new(config: &DirectoryConfig, disk: Disk, pool: Pool) -> Result<DirectoryStore, DirectoryError> {
        if config.descriptors_max < 16 {
            return Err(DirectoryError::Descriptors { found: config.descriptors_max });
        }
        let unsynced = Unsynced::new(config.descriptors_max, &config.verifier);
        let locks = LockedFiles::new(config.descriptors_max, config.locks_below);
        let kept = Limits {
            objects: config.objects_max.max(64),
            descriptors: config.descriptors_max - unsynced.places() - locks.places(),
            trust: config.trust,
            by_handle: config.by_handle,
        };
        let failed = |error| DirectoryError::of_opening(&config.path, error);
        let tree = Tree::open(&config.path, kept, config.may_wait).map_err(failed)?;
        let kernel = tree.kernel().clone();
        let mut errands = Errands::new();
        if !kernel.is_immediate() && !errands.start_helpers() {
            tracing::warn!(
                "directory {}: no thread can be started to wait for its file system: while that works, all clients wait",
                config.path.display()
            );
            kernel.set_may_wait(MayWait::Nothing);
        }
        let root = tree.id(ROOT);
        let looked = tree.path_fd(ROOT).map_err(|_| failed(Errno::AGAIN))?;
        let fsid = identity(config.fsid, looked.as_fd(), root).map_err(failed)?;
        let limits = limits::of(&looked);
        let keeps_lists = acl::has_lists(looked.as_fd());
        let uid = rustix::process::geteuid();
        let own = (!uid.is_root()).then(|| {
            let groups = rustix::process::getgroups().unwrap_or_default();
            let gid = rustix::process::getegid().as_raw();
            UserIdentity::new(uid.as_raw(), gid, groups.into_iter().map(Gid::as_raw))
        });
        let act_as = |error| DirectoryError::ActAs { path: config.path.clone(), error };
        let users = if own.is_none() { Some(FileUsers::new().map_err(act_as)?) } else { None };
        let verifier = config.verifier.clone();
        let syncs = Syncs::new(disk.another(), &verifier);
        let transfers = Transfers::new(disk, kernel.clone(), pool, config.reading_max, &verifier);
        let read_only = Cell::new(is_read_only(&*looked));
        let mut store = DirectoryStore {
            fsid,
            place: ExportPlace::new(&config.path),
            root,
            kernel,
            errands: RefCell::new(errands),
            answered_since: Cell::new(0),
            told: RefCell::default(),
            read_only,
            mount_checked: Cell::new(None),
            is_closing: false,
            is_configured: config.may_wait.is_some(),
            tree: RefCell::new(tree),
            transfers,
            syncs,
            writing: Writing::default(),
            unsynced,
            locks: RefCell::new(locks),
            locks_below: config.locks_below,
            finished: RefCell::new(Seen::new()),
            searched: Cell::new(None),
            finished_for: 0,
            asked: Seen::new(),
            limits,
            keeps_lists,
            memory_checked: None,
            is_memory_kind: opened::is_memory_kind(&*looked),
            wake: None,
            sync: config.sync,
            changed: Vec::new(),
            verifier,
            own,
            actor: Actor::new(users),
        };
        let waits = may_wait(&*looked);
        store.note_waits(waits);
        Ok(store)
    }

    /// The user and group that every caller is here; `None` if each is itself.
    #[must_use]
    pub fn squashes_to(&self) -> Option<(u32, u32)> {
        self.own.map(|own| (own.uid, own.gid))
    }

    /// How READs and WRITEs are done.
    #[must_use]
    pub fn method(&self) -> Method {
        self.transfers.disk().method()
    }

    /// Descriptors that are open, and objects whose place is known.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        let tree = self.tree.borrow();
        (tree.descriptors() + self.unsynced.len() + self.locks.borrow().len(), tree.len())
    }

    /// The file system of the machine, as a number.
    fn volume(&self) -> u64 {
        self.tree.borrow().place().volume()
    }

    /// What may wait in its file system.
    #[must_use]
    pub fn may_wait(&self) -> MayWait {
        self.kernel.may_wait()
    }

    /// Sees whether the files are in memory. They are not always: somebody may give the machine swap.
    fn check_memory(&mut self, now: Duration) {
        self.memory_checked = Some(now);
        // Another file system than one in memory is none later, and may take its time to say so.
        if !self.is_memory_kind {
            return;
        }
        let Ok(root) = self.tree.get_mut().path_fd(ROOT) else { return };
        self.note_waits(may_wait(&*root));
    }

    fn note_waits(&mut self, waits: MayWait) {
        let at_once = match waits {
            MayWait::Nothing => AtOnce::All,
            MayWait::Device => AtOnce::CachedReads,
            MayWait::Everything => AtOnce::None,
        };
        self.transfers.disk().set_at_once(at_once);
        self.syncs.disk().set_at_once(at_once);
        if !self.is_configured && (waits == MayWait::Nothing || self.errands.get_mut().start_helpers()) {
            self.kernel.set_may_wait(waits);
        }
        self.watch();
    }

    /// Sees to it that one descriptor tells of the disk and of helpers.
    fn watch(&mut self) {
        if self.wake.is_none()
            && let (Some(disk), Some(helpers)) =
                (self.transfers.disk().descriptor(), self.errands.get_mut().descriptor())
        {
            self.wake = system::any_of(&[disk, helpers]).ok();
        }
    }

    /// Syncs a file on our own, if there are few places left for files with data that is not synced.
    fn sync_oldest(&mut self) {
        let Some((object, file)) = self.unsynced.due() else { return };
        let wait = self.syncs.wait([(object.fileid, file)].into_iter());
        self.unsynced.begin_sync(wait, object, self.writing.contains(object.fileid), true);
    }
}

impl Store for DirectoryStore {
    fn profile(&self) -> StoreProfile {
        StoreProfile {
            fsid: self.fsid,
            volume: self.volume(),
            root: self.root,
            limits: self.limits,
            acts_as: self.own,
            can: Capabilities {
                reads_take_memory: true,
                admits_transfers: true,
                finishes_transfers_later: true,
                keeps_lists: self.keeps_lists,
                is_at_every_reactor: true,
                locks_below: self.locks_below,
                ..Capabilities::default()
            },
        }
    }

    fn is_read_only(&self) -> bool {
        self.is_mounted_read_only()
    }

    fn check_place(&self) -> ReadStep<()> {
        let root = self.tree.borrow().path_fd(ROOT)?;
        let found = self.kernel.stat_path(&root, self.place.path());
        self.settle(Ok(()))?;
        Ok(self.place.check(found, self.root.fileid, self.volume())?)
    }

    fn write_verifier(&self) -> StoreVerifier {
        // Another one tells clients to write again what they did not commit.
        self.verifier.current()
    }

    fn usage(&self) -> ReadStep<Usage> {
        let root = self.tree.borrow().path_fd(ROOT)?;
        self.settle(self.kernel.usage(&root).map_err(status))
    }

    fn stat(&self, object: ObjectId) -> ReadStep<ObjectStat> {
        let found = self.tree.borrow_mut().find_stat(object);
        self.settle(found.map(|(_, found)| found.attributes(object)))
    }

    fn stat_to_search(&self, directory: ObjectId) -> ReadStep<ObjectStat> {
        let changes = self.verifier.changes();
        let is_believed = self.kernel.is_immediate() && !self.tree.borrow().trust().is_zero();
        if let Some((known, at, found)) = self.searched.get().filter(|_| is_believed)
            && (known, at) == (directory, changes)
        {
            return Ok(found);
        }
        let found = self.stat(directory)?;
        self.searched.set(Some((directory, changes, found)));
        Ok(found)
    }

    fn stat_after(&self, object: ObjectId) -> Option<ObjectStat> {
        if let Some(told) = self.told_of(object) {
            return told;
        }
        let mut finished = self.finished.borrow_mut();
        let found = finished.find_stat(&mut self.tree.borrow_mut(), object);
        if self.kernel.take_missing().is_some() {
            return None;
        }
        Some(found.ok()?.1.attributes(object))
    }

    fn stat_seen(&self, object: ObjectId) -> Option<ObjectStat> {
        self.tree.borrow().last_seen(object).map(|found| found.attributes(object))
    }

    fn is_changing(&self, object: ObjectId) -> bool {
        self.writing.contains(object.fileid) || self.errands.borrow().is_changing(object)
    }

    fn entry(&self, EntryName { directory, name }: EntryName<'_>) -> ReadStep<ObjectStat> {
        let find = |tree: &mut Tree| {
            let index = tree.find(directory.object)?;
            if name == b".." {
                let above = tree.id(tree.parent(index));
                let (_, found) = tree.find_stat(above)?;
                return Ok(found.attributes(above));
            }
            let (index, found) = tree.look_up(index, name)?;
            Ok(found.attributes(tree.id(index)))
        };
        let found = find(&mut self.tree.borrow_mut());
        self.settle(found)
    }

    fn lies_within(&self, directory: ObjectId, other: ObjectId) -> ReadStep<bool> {
        let find = |tree: &mut Tree| {
            let index = tree.find(directory)?;
            tree.check_depth(index)?;
            Ok(tree.is_within(index, other.fileid))
        };
        let found = find(&mut self.tree.borrow_mut());
        self.settle(found)
    }

    fn list(
        &self,
        directory: ObjectId,
        start: ListStart,
        _: Timestamp,
        visit: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> ReadStep<bool> {
        let listed = listing::list(&mut self.tree.borrow_mut(), directory, start, visit);
        self.settle(listed)
    }

    fn link_target<'a>(
        &'a self,
        object: ObjectId,
        space: &'a mut [u8; LINK_SPACE],
        _: Timestamp,
    ) -> ReadStep<&'a [u8]> {
        let read = |tree: &mut Tree, space: &mut [u8; LINK_SPACE]| {
            let index = tree.find(object)?;
            let look = tree.path_fd(index)?;
            self.kernel.link_target(&look, space).map_err(status)
        };
        let read = read(&mut self.tree.borrow_mut(), space);
        let len = self.settle(read)?;
        Ok(&space[..len])
    }

    fn access_acl(&self, seen: &ObjectStat) -> ReadStep<Option<Cow<'_, Acl>>> {
        if !self.keeps_lists {
            return Ok(None);
        }
        let found = self.tree.borrow_mut().access_acl(seen.object, seen.ctime);
        Ok(self.settle(found)?.map(|acl| Cow::Owned(Arc::unwrap_or_clone(acl))))
    }

    fn default_acl(&self, directory: ObjectId) -> ReadStep<Option<Cow<'_, Acl>>> {
        if !self.keeps_lists {
            return Ok(None);
        }
        let found = self.tree.borrow_mut().default_acl(directory);
        Ok(self.settle(found)?.map(|acl| Cow::Owned(Arc::unwrap_or_clone(acl))))
    }

    fn update(&mut self, _: &UserIdentity, seen: &ObjectStat, set: &Update, _: Timestamp) -> ChangeStep<()> {
        let mut seen = *seen;
        if self.transfers.has_asked() {
            // They may take bits of its mode.
            self.admit();
            seen = self.stat(seen.object)?;
        }
        self.set_attributes(&seen, set)
    }

    fn make(
        &mut self,
        user: &UserIdentity,
        at: EntryName<'_>,
        what: NewObject<'_>,
        attributes: &NewAttributes,
        _: Timestamp,
    ) -> ChangeStep<ObjectStat> {
        self.admit();
        self.make_object(user, at, what, attributes)
    }

    fn link(
        &mut self,
        _: &UserIdentity,
        seen: &ObjectStat,
        at: EntryName<'_>,
        _: Timestamp,
    ) -> ChangeStep<()> {
        self.add_name(seen, at)
    }

    fn remove(
        &mut self,
        user: &UserIdentity,
        at: EntryName<'_>,
        seen: &ObjectStat,
        _: Timestamp,
    ) -> ChangeStep<()> {
        self.admit();
        self.remove_name(user, at, seen)
    }

    fn rename(
        &mut self,
        user: &UserIdentity,
        from: EntryName<'_>,
        to: EntryName<'_>,
        seen: RenameSeen<'_>,
        _: Timestamp,
    ) -> ChangeStep<()> {
        self.admit();
        self.change_name(user, from, to, seen, false)
    }

    fn rename_to_free(
        &mut self,
        user: &UserIdentity,
        from: EntryName<'_>,
        to: EntryName<'_>,
        moved: &ObjectStat,
        _: Timestamp,
    ) -> Option<Result<(), FsError>> {
        if !self.kernel.is_immediate() {
            return None;
        }
        self.admit();
        let seen = RenameSeen { moved, replaced: None };
        match self.change_name(user, from, to, seen, true) {
            // The file system has no such rename.
            Err(Blocked::Fails(FsError::Invalid)) | Ok(Progress::Later(_)) => None,
            renamed => Some(renamed.map(drop).map_err(FsError::from)),
        }
    }

    fn set_lists(
        &mut self,
        user: &UserIdentity,
        seen: &ObjectStat,
        set: &SetLists,
        // The kernel sets the mode with the access list.
        _: Option<u32>,
        _: Timestamp,
    ) -> ChangeStep<()> {
        self.admit();
        self.change_lists(user, seen, set)
    }

    fn seek(&self, seen: &ObjectStat, offset: u64, kind: ExtentKind) -> ReadStep<Option<u64>> {
        let seek = |tree: &mut Tree| {
            let index = tree.find(seen.object)?;
            let file = tree.reopen(index, false).map_err(status)?;
            self.kernel.seek(&file, offset, kind).map_err(status)
        };
        let found = seek(&mut self.tree.borrow_mut());
        self.settle(found)
    }

    fn change_space(
        &mut self,
        user: &UserIdentity,
        seen: &ObjectStat,
        octets: Range<u64>,
        change: SpaceChange,
        _: Timestamp,
    ) -> ChangeStep<()> {
        self.admit();
        self.change_file_space(user, seen, octets, change)
    }

    fn lock_octets(&mut self, object: ObjectId, wanted: &OctetLock) -> ReadStep<Option<OctetLock>> {
        self.lock_file(object, wanted)
    }

    fn relax_locks(&mut self, object: ObjectId, first: u64, last: u64, kept: &[OctetLock]) -> Progress<()> {
        self.relax_file(object, first, last, kept)
    }

    fn find_lock(&mut self, object: ObjectId, wanted: &OctetLock) -> ReadStep<Option<OctetLock>> {
        self.find_file_lock(object, wanted)
    }

    fn read(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        offset: u64,
        count: u32,
        pieces: &mut Vec<Shared>,
        _: Timestamp,
    ) -> ChangeStep<ReadDone> {
        if let Some(read) = self.read_now(user, object, (offset, count), pieces) {
            return Ok(Progress::Done(read?));
        }
        let ticket = self.transfers.read(object, *user, offset, count)?;
        if self.transfers.has_many_asked() {
            self.admit();
        }
        Ok(Progress::Later(ticket))
    }

    fn write(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        offset: u64,
        data: WriteData<'_>,
        stability: Stability,
        _: Timestamp,
    ) -> ChangeStep<WriteDone> {
        let len = data.len() as u64;
        if len > u64::from(u32::MAX) {
            return Err(FsError::Invalid.into());
        }
        if offset.checked_add(len).is_none_or(|end| end > FILE_LEN_MAX) {
            return Err(FsError::TooLarge.into());
        }
        // What the file is when a change of it is over would show this WRITE as well.
        self.errands.get_mut().disturb(&[object]);
        if let Some(written) = self.write_now(user, object, offset, &data, stability) {
            self.errands.get_mut().note_written();
            return Ok(Progress::Done(written?));
        }
        let ticket = self.transfers.write(object, *user, offset, data, stability)?;
        self.writing.begin(ticket, object.fileid);
        if self.transfers.has_many_asked() {
            self.admit();
        }
        Ok(Progress::Later(ticket))
    }

    fn commit(&mut self, object: ObjectId, _: u64, _: u32) -> ChangeStep<()> {
        self.admit();
        let kept = self.unsynced.descriptor(object);
        let open = |tree: &mut Tree| {
            let (index, found) = tree.find_stat(object)?;
            policy::check_is_file(found.kind)?;
            kept.map_or_else(|| tree.reopen(index, false), Ok).map_err(status)
        };
        let file = open(&mut self.tree.borrow_mut());
        let file = self.settle(file)?;
        let wait = self.syncs.wait([(object.fileid, file)].into_iter());
        self.unsynced.begin_sync(wait, object, self.writing.contains(object.fileid), false);
        Ok(Progress::Later(Work::Sync(wait).ticket()))
    }

    fn give_up_files(&mut self) {
        self.tree.get_mut().close_all();
        self.unsynced.close_all();
        self.locks.get_mut().close_all();
    }

    fn note_changed(&mut self, objects: &[&ObjectStat]) {
        let tree = &mut *self.tree.borrow_mut();
        for seen in objects {
            // What cannot be found is as safe as it was.
            let target = tree.find(seen.object).and_then(|index| self.target(tree, index));
            self.changed.extend(target.ok().flatten().map(|(id, file)| (id.fileid, file)));
        }
        // Who came before syncs it.
        self.kernel.take_missing();
    }

    fn sync_changes(&mut self) -> Progress<()> {
        if self.changed.is_empty() {
            return Progress::Done(());
        }
        Progress::Later(Work::Sync(self.syncs.wait(self.changed.drain(..))).ticket())
    }

    fn poll_later(&mut self, now: Duration) -> Option<Ticket> {
        let tree = self.tree.get_mut();
        if tree.now != now {
            self.finished.get_mut().clear();
        }
        tree.now = now;
        self.searched.set(None);
        tree.walk_on();
        if !self.kernel.is_immediate() {
            self.poll_helpers();
        }
        if self.memory_checked.is_none_or(|checked| now >= checked + MEMORY_CHECK_INTERVAL) {
            self.check_memory(now);
            self.locks.get_mut().close_idle(now);
        }
        self.admit();
        // What both begin goes to the kernel together.
        self.syncs.start();
        if let Some(ticket) = self.next_errand() {
            return Some(ticket);
        }
        loop {
            let transfer = self.transfers.poll(now);
            if self.finished_for != self.transfers.ended() {
                self.finished_for = self.transfers.ended();
                self.finished.get_mut().clear();
            }
            if let Some(transfer) = transfer {
                return Some(Work::Transfer(transfer).ticket());
            }
            let wait = self.syncs.poll()?;
            self.finished.get_mut().clear();
            if !self.unsynced.is_own(wait) {
                return Some(Work::Sync(wait).ticket());
            }
            let synced = self.syncs.finish(wait);
            self.unsynced.end_sync(wait, synced.is_ok());
        }
    }

    fn finish(&mut self, ticket: Ticket, pieces: &mut Vec<Shared>) -> Result<Finished, FsError> {
        let written = self.writing.end(ticket);
        if written.is_some() {
            self.errands.get_mut().note_written();
        }
        match Work::of(ticket) {
            Work::Transfer(index) => {
                let failures = self.transfers.failures();
                let finished = self.transfers.finish(index, pieces);
                if let Some(fileid) = written {
                    self.suspect_others(failures, fileid);
                }
                finished
            }
            Work::Sync(wait) => {
                let synced = self.syncs.finish(wait);
                self.unsynced.end_sync(wait, synced.is_ok());
                synced.map(|()| Finished::Commit)
            }
            Work::Errand(place) => self.finish_errand(place),
        }
    }

    fn descriptor(&self) -> Option<RawFd> {
        let helpers = || self.errands.borrow().descriptor();
        self.wake
            .as_ref()
            .map(AsRawFd::as_raw_fd)
            .or_else(|| self.transfers.disk().descriptor())
            .or_else(helpers)
    }

    fn is_busy(&self) -> bool {
        self.transfers.has_asked() || self.kernel.is_immediate() && self.tree.borrow().search.is_busy()
    }
}
