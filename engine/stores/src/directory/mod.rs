//! A directory of the machine as a file system to serve.
//!
//! - **Handles survive a restart** of the server and of the machine: an object is named by its number and the kernel's
//!   generation of it (`object.rs`), nothing is written beside the files. If the server does not know where an object
//!   is, it searches (`search.rs`).
//! - **Nothing outside can be reached**: by names, symbolic links, `..`, mounts, or by moving things around (`tree.rs`). Symbolic
//!   links are only reported; clients follow them, on their side.
//! - **READ and WRITE** go through [`stag_disk`] and are done later (`transfer.rs`); those that come together share the
//!   examination of their file (`seen.rs`). Data that was acknowledged as stable was synced. All else is system calls on names
//!   and attributes, made at once: a directory that the kernel does not have in memory costs the reactor the disk's time.
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
//!   removed. A server that is not root acts as its own user for every caller. POSIX access control lists can only refuse
//!   more; a server that runs as root ignores what they permit beyond the mode.
//! - **Local processes may change names at any moment**, also between two system calls of one Call. So nothing is given
//!   away, changed or removed by a name that may have been exchanged: see `making.rs` for new objects; everything else
//!   is done to a descriptor whose identity was checked, or by the kernel as the caller.

mod admission;
mod attributes;
mod config;
mod identity;
mod limits;
mod listing;
mod making;
mod names;
mod object;
mod owned;
mod recent;
mod search;
mod seen;
mod surroundings;
mod syncs;
mod ticket;
mod transfer;
mod tree;
mod unsynced;
mod verifier;
mod writing;

use std::cell::RefCell;
use std::os::fd::{AsFd, RawFd};
use std::time::Duration;

use rustix::fs::{Gid, fstatvfs, readlinkat_raw};
use rustix::io::Errno;
use stag_disk::system::{self, FileUsers};
use stag_disk::{Disk, Method};
use stag_memory::{Pool, Shared};
use stag_vfs::{
    Capabilities, ChangeStep, EntryName, Finished, FsError, LINK_SPACE, ListStart, Listed, NewAttributes,
    NewObject, ObjectId, ObjectStat, Progress, ReadDone, ReadStep, RenameSeen, Stability, Store, StoreLimits,
    StoreProfile, StoreVerifier, Ticket, Timestamp, Update, Usage, UserIdentity, WriteData, WriteDone,
    policy,
};

pub use config::{DirectoryConfig, DirectoryError, stable_fsid};
use identity::identity;
use object::{is_read_only, status};
use seen::Seen;
use surroundings::ExportPlace;
pub use surroundings::{HandleWeakness, handle_weakness};
use syncs::{Syncs, Target};
use ticket::Work;
use transfer::Transfers;
use tree::{Index, Limits, ROOT, Tree};
use unsynced::Unsynced;
pub use verifier::WriteVerifier;
use writing::Writing;

/// The largest file, in bytes: what a kernel's offset can say.
const FILE_LEN_MAX: u64 = i64::MAX as u64;

/// How long it is believed that files are in memory.
const MEMORY_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A directory of the machine; see the module.
pub struct DirectoryStore {
    fsid: u64,
    place: ExportPlace,
    root: ObjectId,
    // A procedure that changes nothing still finds, opens and notes. Each borrows it for itself alone.
    tree: RefCell<Tree>,
    transfers: Transfers,
    syncs: Syncs,
    writing: Writing,
    unsynced: Unsynced,
    /// What files are, of which transfers ended, since those did.
    finished: RefCell<Seen>,
    /// How many were over then.
    finished_for: u64,
    /// What files are, of which transfers are admitted. Empty but for that time.
    asked: Seen,
    limits: StoreLimits,
    /// When it was last seen whether the files are in memory.
    memory_checked: Option<Duration>,
    /// Whether to sync what a Call changed.
    sync: bool,
    /// What the Call in hand changed.
    changed: Vec<Target>,
    verifier: WriteVerifier,
    /// Whom every caller is, unless we may act as anybody.
    own: Option<UserIdentity>,
    /// How we act as anybody.
    users: Option<FileUsers>,
}

impl DirectoryStore {
    /// Opens a directory. READ and WRITE go through `disk`, into buffers of `pool`.
    pub fn new(config: &DirectoryConfig, disk: Disk, pool: Pool) -> Result<DirectoryStore, DirectoryError> {
        if config.descriptors_max < 16 {
            return Err(DirectoryError::Descriptors { found: config.descriptors_max });
        }
        let unsynced = Unsynced::new(config.descriptors_max, &config.verifier);
        let kept = Limits {
            objects: config.objects_max.max(64),
            descriptors: config.descriptors_max - unsynced.places(),
            trust: config.trust,
            by_handle: config.by_handle,
        };
        let failed = |error| DirectoryError::of_opening(&config.path, error);
        let tree = Tree::open(&config.path, kept).map_err(failed)?;
        let root = tree.id(ROOT);
        let looked = tree.path_fd(ROOT).map_err(|_| failed(Errno::AGAIN))?;
        let fsid = identity(config.fsid, looked.as_fd(), root).map_err(failed)?;
        let limits = limits::of(&looked);
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
        let transfers = Transfers::new(disk, pool, config.reading_max, &verifier);
        Ok(DirectoryStore {
            fsid,
            place: ExportPlace::new(&config.path),
            root,
            tree: RefCell::new(tree),
            transfers,
            syncs,
            writing: Writing::default(),
            unsynced,
            finished: RefCell::new(Seen::new()),
            finished_for: 0,
            asked: Seen::new(),
            limits,
            memory_checked: None,
            sync: config.sync,
            changed: Vec::new(),
            verifier,
            own,
            users,
        })
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
        (tree.descriptors() + self.unsynced.len(), tree.len())
    }

    /// The file system of the machine, as a number.
    fn volume(&self) -> u64 {
        self.tree.borrow().place().volume()
    }

    /// Sees whether the files are in memory. They are not always: somebody may give the machine swap.
    fn check_memory(&mut self, now: Duration) {
        self.memory_checked = Some(now);
        let Ok(root) = self.tree.get_mut().path_fd(ROOT) else { return };
        let is_in_memory = system::is_in_memory(root.as_fd());
        self.transfers.disk().set_immediate(is_in_memory);
        self.syncs.disk().set_immediate(is_in_memory);
    }

    /// Syncs a file on our own, if there are few places left for files with data that is not synced.
    fn sync_oldest(&mut self) {
        let Some((object, file)) = self.unsynced.due() else { return };
        let wait = self.syncs.wait([(object.fileid, file)].into_iter());
        self.unsynced.begin_sync(wait, object, self.writing.contains(object.fileid), true);
    }

    /// What must be synced when an object has changed; found before it is changed, because afterwards it would be too
    /// late to fail. Nothing, if it cannot be synced or need not be.
    fn target(&self, tree: &mut Tree, index: Index) -> Result<Option<Target>, FsError> {
        if !self.sync {
            return Ok(None);
        }
        match tree.reopen(index, false) {
            Ok(file) => Ok(Some((tree.id(index).fileid, file))),
            // No file or directory; or not for us to open. See the module.
            Err(Errno::INVAL | Errno::ACCESS | Errno::PERM) => Ok(None),
            Err(error) => Err(status(error)),
        }
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
                is_at_every_reactor: true,
                ..Capabilities::default()
            },
        }
    }

    fn is_read_only(&self) -> bool {
        self.tree.borrow().path_fd(ROOT).is_ok_and(|root| is_read_only(&root))
    }

    fn check_place(&self) -> Result<(), FsError> {
        self.place.check(self.root.fileid, self.volume())
    }

    fn write_verifier(&self) -> StoreVerifier {
        // Another one tells clients to write again what they did not commit.
        self.verifier.current()
    }

    fn usage(&self) -> ReadStep<Usage> {
        let none = Usage { bytes_total: 0, bytes_free: 0, files_total: 0, files_free: 0 };
        let Ok(root) = self.tree.borrow().path_fd(ROOT) else { return Ok(none) };
        // Statistics need a descriptor that is more than a look; the kernel takes one of a directory.
        Ok(fstatvfs(&*root).map_or(none, |found| Usage {
            bytes_total: found.f_blocks.saturating_mul(found.f_frsize),
            bytes_free: found.f_bavail.saturating_mul(found.f_frsize),
            files_total: found.f_files,
            files_free: found.f_favail,
        }))
    }

    fn stat(&self, object: ObjectId) -> ReadStep<ObjectStat> {
        let (_, found) = self.tree.borrow_mut().find_stat(object)?;
        Ok(found.attributes(object))
    }

    fn stat_after(&self, object: ObjectId) -> Option<ObjectStat> {
        let (_, found) = self.finished.borrow_mut().find_stat(&mut self.tree.borrow_mut(), object).ok()?;
        Some(found.attributes(object))
    }

    fn is_changing(&self, object: ObjectId) -> bool {
        self.writing.contains(object.fileid)
    }

    fn entry(&self, EntryName { directory, name }: EntryName<'_>) -> ReadStep<ObjectStat> {
        let tree = &mut *self.tree.borrow_mut();
        let index = tree.find(directory.object)?;
        if name == b".." {
            let above = tree.id(tree.parent(index));
            let (_, found) = tree.find_stat(above)?;
            return Ok(found.attributes(above));
        }
        let (index, found) = tree.look_up(index, name)?;
        Ok(found.attributes(tree.id(index)))
    }

    fn lies_within(&self, directory: ObjectId, other: ObjectId) -> ReadStep<bool> {
        let tree = &mut *self.tree.borrow_mut();
        let index = tree.find(directory)?;
        tree.check_depth(index)?;
        Ok(tree.is_within(index, other.fileid))
    }

    fn list(
        &self,
        directory: ObjectId,
        start: ListStart,
        _: Timestamp,
        visit: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> ReadStep<bool> {
        Ok(listing::list(&mut self.tree.borrow_mut(), directory, start, visit)?)
    }

    fn link_target<'a>(
        &'a self,
        object: ObjectId,
        space: &'a mut [u8; LINK_SPACE],
        _: Timestamp,
    ) -> ReadStep<&'a [u8]> {
        let tree = &mut *self.tree.borrow_mut();
        let index = tree.find(object)?;
        let look = tree.path_fd(index)?;
        // The empty path: of the link itself that is open.
        let len = readlinkat_raw(&*look, c"", &mut space[..]).map_err(status)?;
        Ok(&space[..len])
    }

    fn update(&mut self, _: &UserIdentity, seen: &ObjectStat, set: &Update, _: Timestamp) -> ChangeStep<()> {
        let mut seen = *seen;
        if self.transfers.has_asked() {
            // They may take bits of its mode.
            self.admit();
            seen = self.stat(seen.object)?;
        }
        Ok(Progress::Done(attributes::set(self, &seen, set)?))
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
        Ok(Progress::Done(self.make_object(user, at, what, attributes)?))
    }

    fn link(
        &mut self,
        _: &UserIdentity,
        seen: &ObjectStat,
        at: EntryName<'_>,
        _: Timestamp,
    ) -> ChangeStep<()> {
        Ok(Progress::Done(self.add_name(seen, at)?))
    }

    fn remove(
        &mut self,
        user: &UserIdentity,
        at: EntryName<'_>,
        seen: &ObjectStat,
        _: Timestamp,
    ) -> ChangeStep<()> {
        self.admit();
        Ok(Progress::Done(self.remove_name(user, at, seen)?))
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
        Ok(Progress::Done(self.change_name(user, from, to, seen)?))
    }

    fn read(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        offset: u64,
        count: u32,
        _: &mut Vec<Shared>,
        _: Timestamp,
    ) -> ChangeStep<ReadDone> {
        let progress = self.transfers.read(object, *user, offset, count)?;
        if self.transfers.has_many_asked() {
            self.admit();
        }
        Ok(progress)
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
        let progress = self.transfers.write(object, *user, offset, data, stability)?;
        if let Progress::Later(ticket) = progress {
            self.writing.begin(ticket, object.fileid);
        }
        if self.transfers.has_many_asked() {
            self.admit();
        }
        Ok(progress)
    }

    fn commit(&mut self, object: ObjectId, _: u64, _: u32) -> ChangeStep<()> {
        self.admit();
        let tree = self.tree.get_mut();
        let (index, found) = tree.find_stat(object)?;
        policy::check_is_file(found.kind)?;
        let kept = self.unsynced.descriptor(object);
        let file = kept.map_or_else(|| tree.reopen(index, false), Ok).map_err(status)?;
        let wait = self.syncs.wait([(object.fileid, file)].into_iter());
        self.unsynced.begin_sync(wait, object, self.writing.contains(object.fileid), false);
        Ok(Progress::Later(Work::Sync(wait).ticket()))
    }

    fn note_changed(&mut self, objects: &[&ObjectStat]) {
        let tree = &mut *self.tree.borrow_mut();
        for seen in objects {
            // What cannot be found is as safe as it was.
            let target = tree.find(seen.object).and_then(|index| self.target(tree, index));
            self.changed.extend(target.ok().flatten());
        }
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
        tree.walk_on();
        if self.memory_checked.is_none_or(|checked| now >= checked + MEMORY_CHECK_INTERVAL) {
            self.check_memory(now);
        }
        self.admit();
        // What both begin goes to the kernel together.
        self.syncs.start();
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
        match Work::of(ticket) {
            Work::Transfer(index) => {
                let failures = self.transfers.failures();
                let finished = self.transfers.finish(index, pieces);
                if failures != self.transfers.failures()
                    && let Some(fileid) = written.filter(|fileid| self.writing.contains(*fileid))
                {
                    self.unsynced.suspect(fileid);
                }
                finished
            }
            Work::Sync(wait) => {
                let synced = self.syncs.finish(wait);
                self.unsynced.end_sync(wait, synced.is_ok());
                synced.map(|()| Finished::Commit)
            }
        }
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.transfers.disk().descriptor()
    }

    fn is_busy(&self) -> bool {
        self.transfers.has_asked() || self.tree.borrow().search.is_busy()
    }
}
