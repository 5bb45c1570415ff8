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
//!   attributes are synced by [`Store::commit_changes`], and COMMIT's data with them (`syncs.rs`).
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
mod object;
mod permit;
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

use rustix::fs::{
    AtFlags, FileType as Kind, Gid, OFlags, fstatvfs, makedev, mkdirat, mknodat, openat, readlinkat_raw,
    renameat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use stag_disk::system::{self, FileUsers};
use stag_disk::{Disk, Method};
use stag_memory::{Pool, Shared};
use stag_vfs::{
    CreateMode, Finished, FsError, LINK_SPACE, ListStart, Listed, ObjectId, ObjectKind, ObjectStat,
    PATH_LEN_MAX, Progress, ReadDone, Special, Stability, Store, StoreLimits, StoreVerifier, Ticket,
    TimeUpdate, Timestamp, Update, Usage, UserIdentity, WriteData, WriteDone, check_name, is_dots,
    permission,
};

pub use config::{DirectoryConfig, DirectoryError, stable_fsid};
use identity::identity;
use making::verifier_times;
use object::{Stat, is_read_only, link_open, name_status, stat_at, status};
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
    finished: Seen,
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
            finished: Seen::new(),
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

    /// As whom a caller acts here.
    fn caller(&self, caller: &UserIdentity) -> UserIdentity {
        self.own.unwrap_or(*caller)
    }

    /// A directory in which `caller` may look names up.
    fn search(&self, tree: &mut Tree, caller: &UserIdentity, directory: ObjectId) -> Result<Index, FsError> {
        let (index, found) = tree.find_stat(directory)?;
        found.must_be_directory()?;
        found.permit(caller, permission::EXECUTE)?;
        Ok(index)
    }

    /// A directory whose entries `caller` may change, and its descriptor.
    fn open_to_change(
        &self,
        tree: &mut Tree,
        caller: &UserIdentity,
        directory: ObjectId,
    ) -> Result<(Index, Stat), FsError> {
        let (index, found) = tree.find_stat(directory)?;
        found.must_be_directory()?;
        found.permit(caller, permission::WRITE | permission::EXECUTE)?;
        Ok((index, found))
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
    fn fsid(&self) -> u64 {
        self.fsid
    }

    fn volume(&self) -> u64 {
        self.tree.borrow().place().volume()
    }

    fn root(&self) -> ObjectId {
        self.root
    }

    fn limits(&self) -> StoreLimits {
        self.limits
    }

    fn reads_take_memory(&self) -> bool {
        true
    }

    fn is_read_only(&self) -> bool {
        self.tree.borrow().path_fd(ROOT).is_ok_and(|root| is_read_only(&root))
    }

    fn check_place(&self) -> Result<(), FsError> {
        self.place.check(self.root.fileid, self.volume())
    }

    fn usage(&self) -> Usage {
        let none = Usage { bytes_total: 0, bytes_free: 0, files_total: 0, files_free: 0 };
        let Ok(root) = self.tree.borrow().path_fd(ROOT) else { return none };
        // Statistics need a descriptor that is more than a look; the kernel takes one of a directory.
        fstatvfs(&*root).map_or(none, |found| Usage {
            bytes_total: found.f_blocks.saturating_mul(found.f_frsize),
            bytes_free: found.f_bavail.saturating_mul(found.f_frsize),
            files_total: found.f_files,
            files_free: found.f_favail,
        })
    }

    fn write_verifier(&self) -> StoreVerifier {
        // Another one tells clients to write again what they did not commit.
        self.verifier.current()
    }

    fn attributes(&self, object: ObjectId) -> Result<ObjectStat, FsError> {
        let (_, found) = self.tree.borrow_mut().find_stat(object)?;
        Ok(found.attributes(object))
    }

    fn before(&self, object: ObjectId) -> Option<ObjectStat> {
        if self.writing.contains(object.fileid) { None } else { self.attributes(object).ok() }
    }

    fn before_transfer(&self, _: ObjectId) -> Option<ObjectStat> {
        None
    }

    fn attributes_after(&mut self, object: ObjectId) -> Result<ObjectStat, FsError> {
        let (_, found) = self.finished.find_stat(self.tree.get_mut(), object)?;
        Ok(found.attributes(object))
    }

    fn set_attributes(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        set: &Update,
        guard: Option<Timestamp>,
        _: Timestamp,
    ) -> Result<(), FsError> {
        self.admit();
        attributes::set(self, &self.caller(caller), object, set, guard)
    }

    fn lookup(&self, caller: &UserIdentity, directory: ObjectId, name: &[u8]) -> Result<ObjectId, FsError> {
        let caller = &self.caller(caller);
        let tree = &mut *self.tree.borrow_mut();
        let index = self.search(tree, caller, directory)?;
        match name {
            b"." => Ok(directory),
            b".." => Ok(tree.id(tree.parent(index))),
            name => {
                check_name(name)?;
                let (found, _) = tree.enter(index, name)?;
                Ok(tree.id(found))
            }
        }
    }

    fn access(&self, caller: &UserIdentity, object: ObjectId, wanted: u32) -> Result<u32, FsError> {
        let (_, found) = self.tree.borrow_mut().find_stat(object)?;
        Ok(self.caller(caller).accesses(&found.guarded(), wanted))
    }

    fn read_link<'a>(
        &'a self,
        _: &UserIdentity,
        object: ObjectId,
        space: &'a mut [u8; LINK_SPACE],
        _: Timestamp,
    ) -> Result<&'a [u8], FsError> {
        let tree = &mut *self.tree.borrow_mut();
        let (index, found) = tree.find_stat(object)?;
        if found.kind != ObjectKind::Symlink {
            return Err(FsError::Invalid);
        }
        let look = tree.path_fd(index)?;
        // The empty path: of the link itself that is open.
        let len = readlinkat_raw(&*look, c"", &mut space[..]).map_err(status)?;
        Ok(&space[..len])
    }

    fn read(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        offset: u64,
        count: u32,
        _: &mut Vec<Shared>,
        _: Timestamp,
    ) -> Result<Progress<ReadDone>, FsError> {
        let progress = self.transfers.read(object, self.caller(caller), offset, count)?;
        if self.transfers.has_many_asked() {
            self.admit();
        }
        Ok(progress)
    }

    fn write(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        offset: u64,
        data: WriteData<'_>,
        stable: Stability,
        _: Timestamp,
    ) -> Result<Progress<WriteDone>, FsError> {
        let len = data.len() as u64;
        if len > u64::from(u32::MAX) {
            return Err(FsError::Invalid);
        }
        if offset.checked_add(len).is_none_or(|end| end > FILE_LEN_MAX) {
            return Err(FsError::TooLarge);
        }
        let progress = self.transfers.write(object, self.caller(caller), offset, data, stable)?;
        if let Progress::Later(ticket) = progress {
            self.writing.begin(ticket, object.fileid);
        }
        if self.transfers.has_many_asked() {
            self.admit();
        }
        Ok(progress)
    }

    fn commit(
        &mut self,
        _: &UserIdentity,
        object: ObjectId,
        _: u64,
        _: u32,
    ) -> Result<Progress<()>, FsError> {
        self.admit();
        let tree = self.tree.get_mut();
        let (index, found) = tree.find_stat(object)?;
        found.must_be_file()?;
        let kept = self.unsynced.descriptor(object);
        let file = kept.map_or_else(|| tree.reopen(index, false), Ok).map_err(status)?;
        let wait = self.syncs.wait([(object.fileid, file)].into_iter());
        self.unsynced.begin_sync(wait, object, self.writing.contains(object.fileid), false);
        Ok(Progress::Later(Work::Sync(wait).ticket()))
    }

    fn commit_changes(&mut self) -> Progress<()> {
        if self.changed.is_empty() {
            return Progress::Done(());
        }
        Progress::Later(Work::Sync(self.syncs.wait(self.changed.drain(..))).ticket())
    }

    fn poll_later(&mut self, now: Duration) -> Option<Ticket> {
        let tree = self.tree.get_mut();
        if tree.now != now {
            self.finished.clear();
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
                self.finished.clear();
            }
            if let Some(transfer) = transfer {
                return Some(Work::Transfer(transfer).ticket());
            }
            let wait = self.syncs.poll()?;
            self.finished.clear();
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

    fn create(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        how: &CreateMode,
        now: Timestamp,
    ) -> Result<ObjectId, FsError> {
        self.admit();
        let taken = {
            let own = self.caller(caller);
            let tree = &mut *self.tree.borrow_mut();
            check_name(name)?;
            let index = self.search(tree, &own, directory)?;
            if is_dots(name) { Err(FsError::NotFound) } else { tree.enter(index, name) }
        };
        let taken = match taken {
            Ok((index, found)) => Some((index, self.tree.borrow().id(index), found)),
            Err(FsError::NotFound) => None,
            Err(error) => return Err(error),
        };
        let set = match (how, taken) {
            (CreateMode::Unchecked(set), Some((_, object, found))) => {
                // The file that is there keeps its attributes; only its size is set.
                found.must_be_file().map_err(|_| FsError::Exists)?;
                let set = Update { size: set.size, ..Update::default() };
                self.set_attributes(caller, object, &set, None, now)?;
                return Ok(object);
            }
            (CreateMode::Exclusive(verifier), Some((index, object, found))) => {
                let times = (TimeUpdate::To(found.atime), TimeUpdate::To(found.mtime));
                let is_same = found.kind == ObjectKind::Regular
                    && found.size == 0
                    && times == verifier_times(*verifier);
                if !is_same {
                    return Err(FsError::Exists);
                }
                // The CREATE that made it may not be over.
                let tree = &mut *self.tree.borrow_mut();
                for index in [index, tree.parent(index)] {
                    self.changed.extend(self.target(tree, index)?);
                }
                return Ok(object);
            }
            (CreateMode::Guarded(_), Some(_)) => return Err(FsError::Exists),
            (CreateMode::Unchecked(set) | CreateMode::Guarded(set), None) => *set,
            (CreateMode::Exclusive(verifier), None) => {
                let (atime, mtime) = verifier_times(*verifier);
                Update { atime, mtime, ..Update::default() }
            }
        };
        self.make(caller, (directory, name), &set, ObjectKind::Regular, |above, mode| {
            let flags = OFlags::RDWR
                .union(OFlags::CREATE)
                .union(OFlags::EXCL)
                .union(OFlags::NOFOLLOW)
                .union(OFlags::CLOEXEC);
            openat(above, name, flags, mode).map(Some)
        })
    }

    fn make_directory(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        set: &Update,
        _: Timestamp,
    ) -> Result<ObjectId, FsError> {
        let set = Update { size: None, ..*set };
        self.make(caller, (directory, name), &set, ObjectKind::Directory, |above, mode| {
            mkdirat(above, name, mode).map(|()| None)
        })
    }

    fn make_symlink(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        path: &[u8],
        set: &Update,
        _: Timestamp,
    ) -> Result<ObjectId, FsError> {
        if path.len() > PATH_LEN_MAX as usize {
            return Err(FsError::NameTooLong);
        }
        if path.is_empty() || path.contains(&0) {
            return Err(FsError::Invalid);
        }
        let set = Update { size: None, ..*set };
        self.make(caller, (directory, name), &set, ObjectKind::Symlink, |above, _| {
            symlinkat(path, above, name).map(|()| None)
        })
    }

    fn make_special(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        special: Special,
        set: &Update,
        _: Timestamp,
    ) -> Result<ObjectId, FsError> {
        let (kind, device) = match special {
            Special::Block(number) => (Kind::BlockDevice, Some(number)),
            Special::Character(number) => (Kind::CharacterDevice, Some(number)),
            Special::Socket => (Kind::Socket, None),
            Special::Fifo => (Kind::Fifo, None),
        };
        if device.is_some() && !self.caller(caller).is_root() {
            return Err(FsError::NotPermitted);
        }
        let device = device.map_or(0, |number| makedev(number.major, number.minor));
        let set = Update { size: None, ..*set };
        self.make(caller, (directory, name), &set, special.kind(), |above, mode| {
            mknodat(above, name, kind, mode, device).map(|()| None)
        })
    }

    fn remove(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        _: Timestamp,
    ) -> Result<(), FsError> {
        self.admit();
        let caller = &self.caller(caller);
        check_name(name)?;
        let tree = &mut *self.tree.borrow_mut();
        let (index, above) = self.open_to_change(tree, caller, directory)?;
        if is_dots(name) {
            return Err(FsError::IsDirectory);
        }
        let look = tree.path_fd(index)?;
        let found = stat_at(look.as_fd(), name).map_err(status)?;
        found.check_sticky(caller, &above)?;
        if found.is_directory() {
            return Err(FsError::IsDirectory);
        }
        let target = self.target(tree, index)?;
        // As the caller: if the name was exchanged since, for what it may not remove, the kernel refuses.
        let above = look.as_fd();
        self.act_as(caller, None, || unlinkat(above, name, AtFlags::empty())).map_err(name_status)?;
        self.changed.extend(target);
        tree.forget_name(index, name, found.fileid, found.nlink <= 1);
        self.unsynced.forget_deleted(found.fileid);
        Ok(())
    }

    fn remove_directory(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        _: Timestamp,
    ) -> Result<(), FsError> {
        let caller = &self.caller(caller);
        check_name(name)?;
        let tree = &mut *self.tree.borrow_mut();
        let (index, above) = self.open_to_change(tree, caller, directory)?;
        match name {
            b"." => return Err(FsError::Invalid),
            // Whatever it is, the directory itself is in it.
            b".." => return Err(FsError::NotEmpty),
            _ => {}
        }
        let look = tree.path_fd(index)?;
        let found = stat_at(look.as_fd(), name).map_err(status)?;
        found.check_sticky(caller, &above)?;
        found.must_be_directory()?;
        let target = self.target(tree, index)?;
        let above = look.as_fd();
        let removed = self.act_as(caller, None, || unlinkat(above, name, AtFlags::REMOVEDIR));
        removed.map_err(|error| match error {
            // What some file systems say of a directory that is not empty.
            Errno::EXIST => FsError::NotEmpty,
            error => name_status(error),
        })?;
        self.changed.extend(target);
        tree.forget_name(index, name, found.fileid, true);
        Ok(())
    }

    fn rename(
        &mut self,
        caller: &UserIdentity,
        (from_directory, from): (ObjectId, &[u8]),
        (to_directory, to): (ObjectId, &[u8]),
        _: Timestamp,
    ) -> Result<(), FsError> {
        self.admit();
        let caller = &self.caller(caller);
        check_name(from)?;
        check_name(to)?;
        let tree = &mut *self.tree.borrow_mut();
        let (source, source_stat) = self.open_to_change(tree, caller, from_directory)?;
        let source_look = tree.path_fd(source)?;
        let (target, target_stat) = self.open_to_change(tree, caller, to_directory)?;
        let target_look = tree.path_fd(target)?;
        if is_dots(from) || is_dots(to) {
            return Err(FsError::Invalid);
        }
        tree.check_depth(target)?;
        let found = stat_at(source_look.as_fd(), from).map_err(status)?;
        found.check_sticky(caller, &source_stat)?;
        if found.is_directory() && source != target {
            // The kernel says so too, but only where nothing else is wrong.
            if tree.is_within(target, found.fileid) {
                return Err(FsError::Invalid);
            }
            // Its `..` changes.
            found.permit(caller, permission::WRITE)?;
        }
        let replaced = stat_at(target_look.as_fd(), to).ok();
        if let Some(replaced) = &replaced {
            // Two names of one object: both stay.
            if replaced.fileid == found.fileid {
                return Ok(());
            }
            replaced.check_sticky(caller, &target_stat)?;
            if replaced.is_directory() != found.is_directory() {
                return Err(FsError::Exists);
            }
        }
        let targets = [self.target(tree, source)?, self.target(tree, target)?];
        let (source_fd, target_fd) = (source_look.as_fd(), target_look.as_fd());
        let renamed = self.act_as(caller, None, || renameat(source_fd, from, target_fd, to));
        renamed.map_err(|error| match error {
            Errno::EXIST => FsError::NotEmpty,
            error => name_status(error),
        })?;
        self.changed.extend(targets.into_iter().flatten());
        if let Some(replaced) = replaced {
            let was_last = replaced.is_directory() || replaced.nlink <= 1;
            tree.forget_name(target, to, replaced.fileid, was_last);
            self.unsynced.forget_deleted(replaced.fileid);
        }
        let id = tree.known(found.fileid).map(|index| tree.id(index));
        tree.forget_name(source, from, found.fileid, false);
        if let Some(id) = id {
            tree.note(target, to, id, found.kind);
        }
        Ok(())
    }

    fn link(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        directory: ObjectId,
        name: &[u8],
        _: Timestamp,
    ) -> Result<(), FsError> {
        let caller = &self.caller(caller);
        let tree = &mut *self.tree.borrow_mut();
        let (_, found) = tree.find_stat(object)?;
        check_name(name)?;
        let (parent, _) = self.open_to_change(tree, caller, directory)?;
        let look = tree.path_fd(parent)?;
        if is_dots(name) || stat_at(look.as_fd(), name).is_ok() {
            return Err(FsError::Exists);
        }
        if found.is_directory() {
            return Err(FsError::Invalid);
        }
        tree.check_depth(parent)?;
        // Found again, because looking for the directory may have closed it.
        let index = tree.find(object)?;
        let targets = [self.target(tree, index)?, self.target(tree, parent)?];
        // By its descriptor, not by a name that may be another's by now.
        link_open(tree.path_fd(index)?.as_fd(), look.as_fd(), name).map_err(status)?;
        self.changed.extend(targets.into_iter().flatten());
        tree.note(parent, name, object, found.kind);
        Ok(())
    }

    fn list_verifier(&self, directory: ObjectId) -> Result<StoreVerifier, FsError> {
        let tree = &mut *self.tree.borrow_mut();
        let (_, found) = tree.find_stat(directory)?;
        found.must_be_directory()?;
        // The kernel's cookies stay good for as long as the directory.
        Ok(directory.generation.to_be_bytes())
    }

    fn list(
        &self,
        caller: &UserIdentity,
        directory: ObjectId,
        start: ListStart,
        _: Timestamp,
        visit: impl FnMut(Listed<'_>) -> bool,
    ) -> Result<bool, FsError> {
        listing::list(self, &self.caller(caller), directory, start, visit)
    }
}
