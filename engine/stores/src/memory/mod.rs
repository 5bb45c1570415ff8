//! A file system in pool memory.
//!
//! Data is in pages of 4096 bytes, each a counted reference into a pool. A READ takes references to the pages as
//! they are; a WRITE replaces them, and changes a page in place only if there is no other reference to it. So a
//! READ in flight is never torn, and neither copies what it need not; [`MemoryStore::statistics`] counts what was
//! copied.
//!
//! Everything is bounded: data by [`MemoryConfig::data_len_max`] and by the pool, objects and names by the configuration,
//! and the heap that these, link targets, access control lists and tables of pages take together by [`HEAP_PER_OBJECT`].
//! Beyond a bound the answer is [`FsError::NoSpace`], and nothing changes. Lack of memory for Calls on their way is never
//! NOSPC.

mod chunks;
mod directory;
mod heap;
mod inode;
mod pages;
mod space;

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use stag_memory::{Pool, Shared};
use stag_vfs::{
    Acl, Capabilities, ChangeStep, EntryName, ExtentKind, FsError, LINK_SPACE, ListStart, Listed,
    NAME_LEN_MAX, NewAttributes, NewObject, ObjectId, ObjectKind, ObjectStat, PATH_LEN_MAX, Progress,
    ReadDone, ReadStep, RenameSeen, SetLists, SpaceChange, Stability, Store, StoreLimits, StoreProfile,
    StoreVerifier, TimeUpdate, Timestamp, Update, Usage, UserIdentity, WriteData, WriteDone, policy,
};

use directory::Index;
use directory::{COOKIE_PARENT, COOKIE_SELF, Directory, name_len};
pub use heap::HEAP_PER_OBJECT;
use heap::{Heap, OBJECT_LEN_MIN};
use inode::{Body, Inode, Inodes, fileid};
pub use space::MemoryStoreStatistics;
use space::{PAGE_LEN, Source, Space};

/// The largest file, in bytes: leaves room so that no sum of an offset and a count overflows.
pub const FILE_LEN_MAX: u64 = 1 << 62;
/// Hard links of an object.
pub const LINKS_MAX: u32 = 65_000;
/// How deep a directory may lie that is moved to another one.
pub const DEPTH_MAX: u32 = 2048;
/// Users and groups that access control lists can name, on average over all objects that there can be. A few objects
/// may have many.
pub const ACL_NAMES_PER_OBJECT: u64 = 2;

/// What store to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// Identifies the file system in handles and attributes. Choose another for each. Whatever it is, no handle outlives
    /// the store: objects have generations that no other store gives.
    pub fsid: u64,
    /// Bytes of the pool that data may take. They are set aside for it ([`Pool::set_aside`]), but at least one page in
    /// eight stays for Calls on their way: what is placed for a WRITE comes from the same pool.
    pub data_len_max: u64,
    /// Objects. Together they may take [`HEAP_PER_OBJECT`] octets of heap for each: fewer of them with long names, long
    /// link targets, or scattered data.
    pub objects_max: u32,
    /// Entries of all directories together; more than objects only where there are hard links.
    pub names_max: u32,
    /// Permissions, owner and group of the root directory.
    pub root: RootAttributes,
}

impl MemoryConfig {
    /// A store with no more names than objects, and a root directory of the user root that others may read.
    #[must_use]
    pub fn new(fsid: u64, data_len_max: u64, objects_max: u32) -> MemoryConfig {
        let root = RootAttributes { mode: 0o755, uid: 0, gid: 0 };
        MemoryConfig { fsid, data_len_max, objects_max, names_max: objects_max, root }
    }
}

/// Who owns the root directory, and what others may do there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootAttributes {
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Why there is no store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryStoreError {
    /// Pages are units, of this length.
    #[error("pool {pool}: units of {found} bytes, but a memory store needs units of {PAGE_LEN}")]
    UnitLen {
        /// Which.
        pool: &'static str,
        /// Bytes of its units.
        found: usize,
    },
    /// No unit is free: holes need one.
    #[error("pool {pool}: no unit of {units} is free, but a memory store needs at least one; make it larger")]
    Empty {
        /// Which.
        pool: &'static str,
        /// Its units.
        units: usize,
    },
    /// Not even a root directory.
    #[error("a memory store of {found} objects: it needs at least 1, for its root directory")]
    NoObjects {
        /// What was asked for.
        found: u32,
    },
}

/// A file system in pool memory; see the module.
pub struct MemoryStore {
    fsid: u64,
    root: Index,
    verifier: StoreVerifier,
    inodes: Inodes,
    space: Space,
    /// Entries that can still be made.
    names_left: u32,
    /// Users and groups that access control lists can still name: [`ACL_NAMES_PER_OBJECT`] for each object.
    acl_names_left: u64,
}

impl MemoryStore {
    /// Pages of the pool that a store takes beside [`MemoryConfig::data_len_max`]: zeros, which holes are read from.
    pub const OWN_PAGES: usize = space::ZEROS_LEN / PAGE_LEN;

    /// Makes an empty file system in `pool`, whose units must be of 4096 bytes.
    pub fn new(config: &MemoryConfig, pool: Pool, now: Timestamp) -> Result<MemoryStore, MemoryStoreError> {
        let (name, units) = (pool.name(), pool.units());
        if pool.unit_len() != PAGE_LEN {
            return Err(MemoryStoreError::UnitLen { pool: name, found: pool.unit_len() });
        }
        if config.objects_max == 0 {
            return Err(MemoryStoreError::NoObjects { found: 0 });
        }
        let limit = config.data_len_max / PAGE_LEN as u64;
        let heap = Heap::new(config.objects_max);
        let mut space = Space::new(pool, limit, heap).ok_or(MemoryStoreError::Empty { pool: name, units })?;
        let mut inodes = Inodes::new(config.objects_max);
        let RootAttributes { mode, uid, gid } = config.root;
        let (atime, mtime) = (TimeUpdate::Keep, TimeUpdate::Keep);
        let attributes = NewAttributes { uid, gid, has_asked_gid: false, mode, size: None, atime, mtime };
        let root = insert_root(&mut inodes, &mut space, &attributes, now);
        let verifier = RandomState::new().hash_one(now.seconds).to_be_bytes();
        let acl_names_left = u64::from(config.objects_max) * ACL_NAMES_PER_OBJECT;
        let (fsid, names_left) = (config.fsid, config.names_max);
        Ok(MemoryStore { fsid, root, verifier, inodes, space, names_left, acl_names_left })
    }

    /// What it has done with data.
    #[must_use]
    pub fn statistics(&self) -> MemoryStoreStatistics {
        self.space.statistics
    }

    /// Octets of heap that objects, names and what describes their data take.
    #[must_use]
    pub fn heap_used(&self) -> u64 {
        self.space.heap.used()
    }

    fn find_entry(&self, directory: Index, name: &[u8]) -> Result<Index, FsError> {
        self.inodes[directory].directory()?.find(name).ok_or(FsError::NotFound)
    }

    fn make_object(
        &mut self,
        EntryName { directory, name }: EntryName<'_>,
        what: NewObject<'_>,
        attributes: &NewAttributes,
        now: Timestamp,
    ) -> Result<ObjectStat, FsError> {
        let parent = self.inodes.find(directory.object)?;
        if self.find_entry(parent, name).is_ok() {
            return Err(FsError::Exists);
        }
        self.check_room()?;
        let is_directory = what == NewObject::Directory;
        if is_directory && self.inodes[parent].nlink >= LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
        let mut inode = Inode::new(&what, parent, attributes, now);
        if let Some(default) = self.inodes[parent].lists().default {
            inode.inherit(default);
        }
        let Some(left) = self.acl_names_left.checked_sub(inode.lists_len() as u64) else {
            return Err(FsError::NoSpace);
        };
        let heap = inode.heap_len();
        self.check_heap_for(parent, name, heap)?;
        self.space.heap.change(0, heap);
        self.acl_names_left = left;
        let index = self.inodes.insert(inode);
        self.names_left -= 1;
        self.inodes[parent].nlink += u32::from(is_directory);
        self.change_entries(parent, now, |entries| entries.insert(name, index))?;
        Ok(self.inodes[index].attributes(fileid(index)))
    }

    /// Fails unless there is heap for one more entry of a directory, and `more`.
    fn check_heap_for(&self, directory: Index, name: &[u8], more: u64) -> Result<(), FsError> {
        let entries = self.inodes[directory].directory()?;
        self.space.heap.require(more + entries.heap_len_with(name).saturating_sub(entries.heap_len()))
    }

    fn check_room(&self) -> Result<(), FsError> {
        if self.inodes.left() == 0 || self.names_left == 0 { Err(FsError::NoSpace) } else { Ok(()) }
    }

    /// Changes the entries of a directory; its times, and what it takes of the heap, change with them.
    fn change_entries(
        &mut self,
        directory: Index,
        now: Timestamp,
        change: impl FnOnce(&mut Directory),
    ) -> Result<(), FsError> {
        let inode = &mut self.inodes[directory];
        inode.changed_entries(now);
        let entries = inode.directory_mut()?;
        let before = entries.heap_len();
        change(entries);
        self.space.heap.change(before, entries.heap_len());
        Ok(())
    }

    /// Takes one name from an object, which ends with its last.
    fn unlink(&mut self, object: Index, now: Timestamp) {
        let inode = &mut self.inodes[object];
        inode.changed(now);
        inode.nlink -= 1;
        if inode.nlink == 0 {
            let mut inode = self.inodes.remove(object);
            self.acl_names_left += inode.lists_len() as u64;
            self.space.heap.change(inode.heap_len(), 0);
            if let Body::File(pages) = &mut inode.body {
                pages.truncate(&mut self.space, 0);
            }
        }
    }

    /// Ends an empty directory, but for its entry.
    fn end_directory(&mut self, parent: Index, object: Index) {
        self.inodes[parent].nlink -= 1;
        let inode = self.inodes.remove(object);
        self.acl_names_left += inode.lists_len() as u64;
        self.space.heap.change(inode.heap_len(), 0);
    }

    fn remove_entry(
        &mut self,
        EntryName { directory, name }: EntryName<'_>,
        kind: ObjectKind,
        now: Timestamp,
    ) -> Result<(), FsError> {
        let parent = self.inodes.find(directory.object)?;
        let object = self.find_entry(parent, name)?;
        let is_directory = kind == ObjectKind::Directory;
        if is_directory && !self.inodes[object].directory()?.is_empty() {
            return Err(FsError::NotEmpty);
        }
        self.change_entries(parent, now, |entries| entries.remove(name))?;
        self.names_left += 1;
        if is_directory {
            self.end_directory(parent, object);
        } else {
            self.unlink(object, now);
        }
        Ok(())
    }

    fn add_name(
        &mut self,
        object: ObjectId,
        EntryName { directory, name }: EntryName<'_>,
        now: Timestamp,
    ) -> Result<(), FsError> {
        let index = self.inodes.find(object)?;
        let parent = self.inodes.find(directory.object)?;
        if self.inodes[index].nlink >= LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
        if self.names_left == 0 {
            return Err(FsError::NoSpace);
        }
        self.check_heap_for(parent, name, 0)?;
        self.names_left -= 1;
        self.change_entries(parent, now, |entries| entries.insert(name, index))?;
        let inode = &mut self.inodes[index];
        inode.nlink += 1;
        inode.changed(now);
        Ok(())
    }

    fn rename_entry(
        &mut self,
        EntryName { directory: source, name: from }: EntryName<'_>,
        EntryName { directory: target, name: to }: EntryName<'_>,
        now: Timestamp,
    ) -> Result<(), FsError> {
        let (source, target) = (self.inodes.find(source.object)?, self.inodes.find(target.object)?);
        let object = self.find_entry(source, from)?;
        let is_directory = self.inodes[object].is_directory();
        let replaced = self.find_entry(target, to).ok();
        match replaced {
            Some(replaced) => {
                let entries = self.inodes[replaced].directory();
                if entries.is_ok_and(|entries| !entries.is_empty()) {
                    return Err(FsError::NotEmpty);
                }
            }
            None if is_directory && source != target && self.inodes[target].nlink >= LINKS_MAX => {
                return Err(FsError::TooManyLinks);
            }
            None if source == target => {
                self.space.heap.require(name_len(to).saturating_sub(name_len(from)))?;
            }
            None => self.check_heap_for(target, to, 0)?,
        }

        // Nothing can fail from here on.
        match replaced {
            Some(replaced) => {
                self.change_entries(target, now, |entries| entries.replace(to, object))?;
                self.names_left += 1;
                if is_directory {
                    self.end_directory(target, replaced);
                } else {
                    self.unlink(replaced, now);
                }
            }
            None if source == target => {
                self.change_entries(source, now, |entries| entries.rename(from, to))?
            }
            None => self.change_entries(target, now, |entries| entries.insert(to, object))?,
        }
        self.change_entries(source, now, |entries| entries.remove(from))?;
        self.inodes[object].changed(now);
        if is_directory && source != target {
            self.inodes[object].directory_mut()?.parent = target;
            self.inodes[source].nlink -= 1;
            self.inodes[target].nlink += 1;
        }
        Ok(())
    }

    #[inline(always)]
    fn read_pages(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        offset: u64,
        count: u32,
        pieces: &mut Vec<Shared>,
        now: Timestamp,
    ) -> Result<ReadDone, FsError> {
        let index = self.inodes.find(object)?;
        let inode = &self.inodes[index];
        let pages = inode.file()?;
        policy::admit_read(user, &inode.guarded(), || inode.lists().access)?;
        let end = offset.saturating_add(u64::from(count)).min(inode.size);
        let read = pages.read(&mut self.space, offset, end, pieces);
        inode.atime.set(now);
        let eof = offset.saturating_add(read) >= inode.size;
        Ok(ReadDone { count: read as u32, eof })
    }

    #[inline(always)]
    fn write_pages(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        offset: u64,
        data: WriteData<'_>,
        now: Timestamp,
    ) -> Result<WriteDone, FsError> {
        let index = self.inodes.find(object)?;
        let inode = &mut self.inodes[index];
        inode.file()?;
        policy::admit_write(user, &inode.guarded(), || inode.lists().access)?;
        let len = data.len() as u64;
        if len > u64::from(u32::MAX) {
            return Err(FsError::Invalid);
        }
        // It is as safe as memory is: a COMMIT would not make it safer.
        let committed = Stability::FileSync;
        if len == 0 {
            return Ok(WriteDone { count: 0, committed });
        }
        if offset.checked_add(len).is_none_or(|end| end > FILE_LEN_MAX) {
            return Err(FsError::TooLarge);
        }
        let mut source = match data {
            WriteData::Inline(octets) => Source::inline(octets),
            WriteData::Placed(pieces) => Source::placed(pieces),
        };
        let count = inode.file_mut()?.write(&mut self.space, offset, len, &mut source)?;
        inode.size = inode.size.max(offset + count);
        inode.wrote(now);
        if let Some(mode) = policy::mode_after_write(user, inode.mode) {
            inode.mode = mode;
        }
        Ok(WriteDone { count: count as u32, committed })
    }
}

/// Adds the root directory to an empty table. It is its own parent.
fn insert_root(inodes: &mut Inodes, space: &mut Space, attributes: &NewAttributes, now: Timestamp) -> Index {
    let root = inodes.insert(Inode::new(&NewObject::Directory, 0, attributes, now));
    space.heap.change(0, inodes[root].heap_len());
    root
}

impl Store for MemoryStore {
    fn profile(&self) -> StoreProfile {
        StoreProfile {
            fsid: self.fsid,
            volume: self.fsid,
            root: self.inodes.id(self.root),
            limits: StoreLimits {
                file_len_max: FILE_LEN_MAX,
                links_max: LINKS_MAX,
                name_len_max: NAME_LEN_MAX,
                path_len_max: PATH_LEN_MAX,
            },
            acts_as: None,
            can: Capabilities {
                admits_transfers: true,
                keeps_lists: true,
                keeps_verifiers: true,
                counts_changes: true,
                ..Capabilities::default()
            },
        }
    }

    fn give_up_files(&mut self) {
        let Inode { mode, uid, gid, ctime, .. } = self.inodes[self.root];
        let (atime, mtime) = (TimeUpdate::Keep, TimeUpdate::Keep);
        let attributes = NewAttributes { uid, gid, has_asked_gid: false, mode, size: None, atime, mtime };
        self.space.give_up();
        self.inodes = Inodes::new(1);
        self.root = insert_root(&mut self.inodes, &mut self.space, &attributes, ctime);
        (self.names_left, self.acl_names_left) = (0, 0);
    }

    fn write_verifier(&self) -> StoreVerifier {
        self.verifier
    }

    fn usage(&self) -> ReadStep<Usage> {
        Ok(Usage {
            bytes_total: self.space.limit() * PAGE_LEN as u64,
            bytes_free: self.space.free() * PAGE_LEN as u64,
            files_total: u64::from(self.inodes.limit()),
            files_free: u64::from(self.inodes.left().min(self.names_left))
                .min(self.space.heap.free() / OBJECT_LEN_MIN),
        })
    }

    // `inline(always)`: after a transfer the attributes go into the Reply word by word, without a copy between.
    #[inline(always)]
    fn stat(&self, object: ObjectId) -> ReadStep<ObjectStat> {
        let index = self.inodes.find(object)?;
        Ok(self.inodes[index].attributes(fileid(index)))
    }

    #[inline(always)]
    fn stat_after(&self, object: ObjectId) -> Option<ObjectStat> {
        let index = self.inodes.find(object).ok()?;
        Some(self.inodes[index].attributes(fileid(index)))
    }

    fn stat_seen(&self, object: ObjectId) -> Option<ObjectStat> {
        self.stat_after(object)
    }

    fn entry(&self, EntryName { directory, name }: EntryName<'_>) -> ReadStep<ObjectStat> {
        let index = self.inodes.find(directory.object)?;
        let found = match name {
            b".." => self.inodes[index].directory()?.parent,
            name => self.find_entry(index, name)?,
        };
        Ok(self.inodes[found].attributes(fileid(found)))
    }

    fn lies_within(&self, directory: ObjectId, other: ObjectId) -> ReadStep<bool> {
        let (mut at, other) = (self.inodes.find(directory)?, self.inodes.find(other)?);
        for _ in 0..DEPTH_MAX {
            if at == other {
                return Ok(true);
            }
            if at == self.root {
                return Ok(false);
            }
            at = self.inodes[at].directory()?.parent;
        }
        Err(FsError::NameTooLong.into())
    }

    fn list(
        &self,
        directory: ObjectId,
        start: ListStart,
        now: Timestamp,
        visit: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> ReadStep<bool> {
        let index = self.inodes.find(directory)?;
        self.inodes[index].atime.set(now);
        let entries = self.inodes[index].directory()?;
        let mut show = |name: &[u8], index: Index, cookie: u64| {
            let attributes = start.attributes.then(|| self.inodes[index].attributes(fileid(index)));
            visit(Listed { object: self.inodes.id(index), name, cookie, attributes })
        };
        let dots: [(&[u8], Index, u64); 2] =
            [(b".", index, COOKIE_SELF), (b"..", entries.parent, COOKIE_PARENT)];
        for (name, index, cookie) in dots {
            if start.cookie < cookie && !show(name, index, cookie) {
                return Ok(false);
            }
        }
        for (cookie, entry) in entries.after(start.cookie) {
            if !show(&entry.name, entry.index, cookie) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn link_target<'a>(
        &'a self,
        object: ObjectId,
        _: &'a mut [u8; LINK_SPACE],
        now: Timestamp,
    ) -> ReadStep<&'a [u8]> {
        let index = self.inodes.find(object)?;
        let inode = &self.inodes[index];
        inode.atime.set(now);
        if let Body::Symlink(path) = &inode.body { Ok(path) } else { Err(FsError::Invalid.into()) }
    }

    fn access_acl(&self, seen: &ObjectStat) -> ReadStep<Option<Cow<'_, Acl>>> {
        let index = self.inodes.find(seen.object)?;
        Ok(self.inodes[index].lists().access.map(Cow::Borrowed))
    }

    fn default_acl(&self, directory: ObjectId) -> ReadStep<Option<Cow<'_, Acl>>> {
        let index = self.inodes.find(directory)?;
        Ok(self.inodes[index].lists().default.map(Cow::Borrowed))
    }

    fn is_made_by(&self, seen: &ObjectStat, verifier: StoreVerifier) -> ReadStep<bool> {
        let index = self.inodes.find(seen.object)?;
        Ok(self.inodes[index].create_verifier == Some(verifier))
    }

    fn update(
        &mut self,
        _: &UserIdentity,
        seen: &ObjectStat,
        set: &Update,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let index = self.inodes.find(seen.object)?;
        let inode = &mut self.inodes[index];
        // Also one that sets nothing: with a SETATTR the client is done with its exclusive CREATE.
        inode.create_verifier = None;
        inode.set(set, &mut self.space, now);
        Ok(Progress::Done(()))
    }

    fn make(
        &mut self,
        _: &UserIdentity,
        at: EntryName<'_>,
        what: NewObject<'_>,
        attributes: &NewAttributes,
        now: Timestamp,
    ) -> ChangeStep<ObjectStat> {
        Ok(Progress::Done(self.make_object(at, what, attributes, now)?))
    }

    fn link(
        &mut self,
        _: &UserIdentity,
        seen: &ObjectStat,
        at: EntryName<'_>,
        now: Timestamp,
    ) -> ChangeStep<()> {
        Ok(Progress::Done(self.add_name(seen.object, at, now)?))
    }

    fn remove(
        &mut self,
        _: &UserIdentity,
        at: EntryName<'_>,
        seen: &ObjectStat,
        now: Timestamp,
    ) -> ChangeStep<()> {
        Ok(Progress::Done(self.remove_entry(at, seen.kind, now)?))
    }

    fn rename(
        &mut self,
        _: &UserIdentity,
        from: EntryName<'_>,
        to: EntryName<'_>,
        _: RenameSeen<'_>,
        now: Timestamp,
    ) -> ChangeStep<()> {
        Ok(Progress::Done(self.rename_entry(from, to, now)?))
    }

    fn set_lists(
        &mut self,
        _: &UserIdentity,
        seen: &ObjectStat,
        set: &SetLists,
        mode: Option<u32>,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let index = self.inodes.find(seen.object)?;
        let inode = &mut self.inodes[index];
        let before = inode.lists_heap_len();
        self.space.heap.require(inode.lists_heap_len_with(set).saturating_sub(before))?;
        self.acl_names_left =
            self.acl_names_left.checked_add_signed(-inode.lists_growth(set)).ok_or(FsError::NoSpace)?;
        inode.set_lists(set, mode, now);
        self.space.heap.change(before, inode.lists_heap_len());
        Ok(Progress::Done(()))
    }

    fn seek(&self, seen: &ObjectStat, offset: u64, kind: ExtentKind) -> ReadStep<Option<u64>> {
        let inode = &self.inodes[self.inodes.find(seen.object)?];
        let pages = inode.file()?;
        Ok(match kind {
            ExtentKind::Data => pages.next_data(offset),
            ExtentKind::Hole => Some(pages.next_hole(offset).min(inode.size)),
        })
    }

    fn change_space(
        &mut self,
        _: &UserIdentity,
        seen: &ObjectStat,
        octets: Range<u64>,
        change: SpaceChange,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let index = self.inodes.find(seen.object)?;
        let inode = &mut self.inodes[index];
        let size = inode.size;
        match change {
            SpaceChange::Reserve => {
                inode.file_mut()?.reserve(&mut self.space, octets.clone())?;
                inode.size = size.max(octets.end);
            }
            // Space that is reserved behind the end goes as well.
            SpaceChange::Release => inode.file_mut()?.release(&mut self.space, octets)?,
        }
        inode.wrote(now);
        Ok(Progress::Done(()))
    }

    #[inline]
    fn read(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        offset: u64,
        count: u32,
        pieces: &mut Vec<Shared>,
        now: Timestamp,
    ) -> ChangeStep<ReadDone> {
        Ok(Progress::Done(self.read_pages(user, object, offset, count, pieces, now)?))
    }

    #[inline]
    fn write(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        offset: u64,
        data: WriteData<'_>,
        _: Stability,
        now: Timestamp,
    ) -> ChangeStep<WriteDone> {
        Ok(Progress::Done(self.write_pages(user, object, offset, data, now)?))
    }

    fn commit(&mut self, object: ObjectId, _: u64, _: u32) -> ChangeStep<()> {
        let index = self.inodes.find(object)?;
        Ok(self.inodes[index].file().map(|_| Progress::Done(()))?)
    }
}
