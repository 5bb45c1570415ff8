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

use std::hash::{BuildHasher, RandomState};

use stag_memory::{Pool, Shared};
use stag_vfs::{
    CreateMode, FsError, LINK_SPACE, ListStart, Listed, Lists, NAME_LEN_MAX, ObjectId, ObjectStat,
    PATH_LEN_MAX, Progress, ReadDone, SetLists, Special, Stability, Store, StoreLimits, StoreVerifier,
    Timestamp, Update, Usage, UserIdentity, WriteData, WriteDone, accesses, check_name, is_dots, permission,
    settable,
};

use directory::{COOKIE_PARENT, COOKIE_SELF, Directory, name_len};
pub use heap::HEAP_PER_OBJECT;
use heap::{Heap, OBJECT_LEN_MIN};
use inode::{Body, Index, Inode, Inodes, STICKY, fileid};
use pages::Pages;
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
        let owner = UserIdentity::new(config.root.uid, config.root.gid, []);
        // The first object of the table: it is its own parent.
        let body = Body::Directory(Box::new(Directory::new(0)));
        let root = inodes.insert(Inode { mode: config.root.mode, ..Inode::new(&owner, None, body, now) });
        space.heap.change(0, inodes[root].heap_len());
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

    /// A directory in which `caller` may look names up.
    fn search(&self, caller: &UserIdentity, directory: ObjectId) -> Result<Index, FsError> {
        let index = self.inodes.find(directory)?;
        self.inodes[index].directory()?;
        self.inodes[index].permit(caller, permission::EXECUTE)?;
        Ok(index)
    }

    /// A directory whose entries `caller` may change.
    fn open_to_change(&self, caller: &UserIdentity, directory: ObjectId) -> Result<Index, FsError> {
        let index = self.inodes.find(directory)?;
        self.inodes[index].directory()?;
        self.inodes[index].permit(caller, permission::WRITE | permission::EXECUTE)?;
        Ok(index)
    }

    fn entry(&self, directory: Index, name: &[u8]) -> Result<Index, FsError> {
        self.inodes[directory].directory()?.find(name).ok_or(FsError::NotFound)
    }

    /// Fails unless `name` can be that of a new entry of `directory`.
    fn check_new_name(
        &self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
    ) -> Result<Index, FsError> {
        check_name(name)?;
        let index = self.open_to_change(caller, directory)?;
        if is_dots(name) || self.entry(index, name).is_ok() {
            return Err(FsError::Exists);
        }
        Ok(index)
    }

    /// Makes an object and its entry.
    fn make(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        body: Body,
        set: &Update,
        now: Timestamp,
    ) -> Result<Index, FsError> {
        let parent = self.check_new_name(caller, directory, name)?;
        self.check_room()?;
        let is_directory = matches!(body, Body::Directory(_));
        if is_directory && self.inodes[parent].nlink >= LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
        let mut set = settable(body.kind(), set);
        if !matches!(body, Body::File(_)) {
            set.size = None;
        }
        let mut inode = Inode::new(caller, Some(&self.inodes[parent]), body, now);
        // Like most servers: of the owner and group asked for, what the caller could not set is left out.
        if !caller.is_root() {
            set.uid = None;
            set.gid = set.gid.filter(|gid| caller.in_group(*gid));
        }
        inode.check(caller, &set)?;
        let inherited = inode.mode & inode::SET_GID;
        // What is set belongs to the making: it is not a change after it.
        inode.ctime = Timestamp::default();
        inode.set(caller, &set, &mut self.space, now);
        inode.ctime = now;
        if is_directory {
            inode.mode |= inherited;
        }
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
        Ok(index)
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

    /// Fails if a sticky directory keeps `caller` from removing or renaming `object` in it.
    fn check_sticky(&self, caller: &UserIdentity, directory: Index, object: Index) -> Result<(), FsError> {
        let (directory, object) = (&self.inodes[directory], &self.inodes[object]);
        let owns = caller.is_root() || caller.uid == object.uid || caller.uid == directory.uid;
        if directory.mode & STICKY != 0 && !owns { Err(FsError::AccessDenied) } else { Ok(()) }
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

    /// Fails if `directory` is `object` or lies in it.
    fn check_not_within(&self, mut directory: Index, object: Index) -> Result<(), FsError> {
        for _ in 0..DEPTH_MAX {
            if directory == object {
                return Err(FsError::Invalid);
            }
            if directory == self.root {
                return Ok(());
            }
            directory = self.inodes[directory].directory()?.parent;
        }
        Err(FsError::NameTooLong)
    }
}

impl Store for MemoryStore {
    fn fsid(&self) -> u64 {
        self.fsid
    }

    fn root(&self) -> ObjectId {
        self.inodes.id(self.root)
    }

    fn limits(&self) -> StoreLimits {
        StoreLimits {
            file_len_max: FILE_LEN_MAX,
            links_max: LINKS_MAX,
            name_len_max: NAME_LEN_MAX,
            path_len_max: PATH_LEN_MAX,
        }
    }

    fn usage(&self) -> Usage {
        Usage {
            bytes_total: self.space.limit() * PAGE_LEN as u64,
            bytes_free: self.space.free() * PAGE_LEN as u64,
            files_total: u64::from(self.inodes.limit()),
            files_free: u64::from(self.inodes.left().min(self.names_left))
                .min(self.space.heap.free() / OBJECT_LEN_MIN),
        }
    }

    fn write_verifier(&self) -> StoreVerifier {
        self.verifier
    }

    fn attributes(&self, object: ObjectId) -> Result<ObjectStat, FsError> {
        let index = self.inodes.find(object)?;
        Ok(self.inodes[index].attributes(fileid(index)))
    }

    // Inline: a WRITE needs little of the result.
    #[inline(always)]
    fn before_transfer(&self, object: ObjectId) -> Option<ObjectStat> {
        let index = self.inodes.find(object).ok()?;
        Some(self.inodes[index].attributes(fileid(index)))
    }

    // `inline(always)`: the attributes go into the Reply word by word, without a copy between.
    #[inline(always)]
    fn after_transfer(&self, object: ObjectId) -> Option<ObjectStat> {
        self.before_transfer(object)
    }

    fn set_attributes(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        set: &Update,
        guard: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<(), FsError> {
        let index = self.inodes.find(object)?;
        let inode = &mut self.inodes[index];
        if guard.is_some_and(|ctime| ctime != inode.ctime) {
            return Err(FsError::NotSame);
        }
        let set = &settable(inode.body.kind(), set);
        inode.check(caller, set)?;
        // Also one that sets nothing: with a SETATTR the client is done with its exclusive CREATE.
        inode.create_verifier = None;
        inode.set(caller, set, &mut self.space, now);
        Ok(())
    }

    fn lookup(&self, caller: &UserIdentity, directory: ObjectId, name: &[u8]) -> Result<ObjectId, FsError> {
        let index = self.search(caller, directory)?;
        let found = match name {
            b"." => index,
            b".." => self.inodes[index].directory()?.parent,
            name => {
                check_name(name)?;
                self.entry(index, name)?
            }
        };
        Ok(self.inodes.id(found))
    }

    fn access(&self, caller: &UserIdentity, object: ObjectId, wanted: u32) -> Result<u32, FsError> {
        let index = self.inodes.find(object)?;
        let inode = &self.inodes[index];
        Ok(accesses(inode.is_directory(), wanted, |needed| inode.allows(caller, needed)))
    }

    fn lists(&self, object: ObjectId) -> Result<Lists<'_>, FsError> {
        let index = self.inodes.find(object)?;
        Ok(self.inodes[index].lists())
    }

    fn set_lists(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        set: &SetLists,
        now: Timestamp,
    ) -> Result<(), FsError> {
        let index = self.inodes.find(object)?;
        let inode = &mut self.inodes[index];
        inode.check_lists(caller, set)?;
        let before = inode.lists_heap_len();
        self.space.heap.require(inode.lists_heap_len_with(set).saturating_sub(before))?;
        self.acl_names_left =
            self.acl_names_left.checked_add_signed(-inode.lists_growth(set)).ok_or(FsError::NoSpace)?;
        inode.set_lists(caller, set, now);
        self.space.heap.change(before, inode.lists_heap_len());
        Ok(())
    }

    fn read_link<'a>(
        &'a self,
        _: &UserIdentity,
        object: ObjectId,
        _: &'a mut [u8; LINK_SPACE],
        now: Timestamp,
    ) -> Result<&'a [u8], FsError> {
        let index = self.inodes.find(object)?;
        let inode = &self.inodes[index];
        inode.atime.set(now);
        if let Body::Symlink(path) = &inode.body { Ok(path) } else { Err(FsError::Invalid) }
    }

    fn read(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        offset: u64,
        count: u32,
        pieces: &mut Vec<Shared>,
        now: Timestamp,
    ) -> Result<Progress<ReadDone>, FsError> {
        let index = self.inodes.find(object)?;
        let inode = &self.inodes[index];
        let pages = inode.file()?;
        // An owner reads what it opened before it took the permission from itself, and a program is read to be
        // executed: an NFS server cannot see an open file (RFC 1813 section 4.4).
        let permitted = caller.uid == inode.uid
            || inode.allows(caller, permission::READ)
            || inode.allows(caller, permission::EXECUTE);
        if !permitted {
            return Err(FsError::AccessDenied);
        }
        let end = offset.saturating_add(u64::from(count)).min(inode.size);
        let read = pages.read(&mut self.space, offset, end, pieces);
        inode.atime.set(now);
        let eof = offset.saturating_add(read) >= inode.size;
        Ok(Progress::Done(ReadDone { count: read as u32, eof }))
    }

    fn write(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        offset: u64,
        data: WriteData<'_>,
        _stable: Stability,
        now: Timestamp,
    ) -> Result<Progress<WriteDone>, FsError> {
        let index = self.inodes.find(object)?;
        let inode = &mut self.inodes[index];
        inode.file()?;
        // As in `read`.
        if caller.uid != inode.uid {
            inode.permit(caller, permission::WRITE)?;
        }
        let len = data.len() as u64;
        if len > u64::from(u32::MAX) {
            return Err(FsError::Invalid);
        }
        // It is as safe as memory is: a COMMIT would not make it safer.
        let committed = Stability::FileSync;
        if len == 0 {
            return Ok(Progress::Done(WriteDone { count: 0, committed }));
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
        inode.wrote(caller, now);
        Ok(Progress::Done(WriteDone { count: count as u32, committed }))
    }

    fn commit(
        &mut self,
        _: &UserIdentity,
        object: ObjectId,
        _: u64,
        _: u32,
    ) -> Result<Progress<()>, FsError> {
        let index = self.inodes.find(object)?;
        self.inodes[index].file().map(|_| Progress::Done(()))
    }

    fn create(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        how: &CreateMode,
        now: Timestamp,
    ) -> Result<ObjectId, FsError> {
        let body = Body::File(Pages::default());
        let taken = self.search(caller, directory).and_then(|index| self.entry(index, name));
        let index = match (how, taken) {
            (CreateMode::Unchecked(set), Ok(index)) => {
                // The file that is there keeps its attributes; only its size is set.
                let inode = &mut self.inodes[index];
                inode.file().map_err(|_| FsError::Exists)?;
                let set = Update { size: set.size, ..Update::default() };
                inode.check(caller, &set)?;
                inode.set(caller, &set, &mut self.space, now);
                index
            }
            (CreateMode::Exclusive(verifier), Ok(index))
                if self.inodes[index].create_verifier == Some(*verifier) =>
            {
                index
            }
            (CreateMode::Unchecked(set) | CreateMode::Guarded(set), _) => {
                self.make(caller, directory, name, body, set, now)?
            }
            (CreateMode::Exclusive(verifier), _) => {
                let index = self.make(caller, directory, name, body, &Update::default(), now)?;
                self.inodes[index].create_verifier = Some(*verifier);
                index
            }
        };
        Ok(self.inodes.id(index))
    }

    fn make_directory(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        set: &Update,
        now: Timestamp,
    ) -> Result<ObjectId, FsError> {
        let parent = self.inodes.find(directory)?;
        let body = Body::Directory(Box::new(Directory::new(parent)));
        let index = self.make(caller, directory, name, body, set, now)?;
        Ok(self.inodes.id(index))
    }

    fn make_symlink(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        path: &[u8],
        set: &Update,
        now: Timestamp,
    ) -> Result<ObjectId, FsError> {
        if path.len() > PATH_LEN_MAX as usize {
            return Err(FsError::NameTooLong);
        }
        if path.is_empty() || path.contains(&0) {
            return Err(FsError::Invalid);
        }
        let index = self.make(caller, directory, name, Body::Symlink(path.into()), set, now)?;
        Ok(self.inodes.id(index))
    }

    fn make_special(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        special: Special,
        set: &Update,
        now: Timestamp,
    ) -> Result<ObjectId, FsError> {
        if matches!(special, Special::Block(_) | Special::Character(_)) && !caller.is_root() {
            return Err(FsError::NotPermitted);
        }
        let index = self.make(caller, directory, name, Body::Special(special), set, now)?;
        Ok(self.inodes.id(index))
    }

    fn remove(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        now: Timestamp,
    ) -> Result<(), FsError> {
        check_name(name)?;
        let parent = self.open_to_change(caller, directory)?;
        if is_dots(name) {
            return Err(FsError::IsDirectory);
        }
        let object = self.entry(parent, name)?;
        self.check_sticky(caller, parent, object)?;
        if self.inodes[object].directory().is_ok() {
            return Err(FsError::IsDirectory);
        }
        self.change_entries(parent, now, |entries| entries.remove(name))?;
        self.names_left += 1;
        self.unlink(object, now);
        Ok(())
    }

    fn remove_directory(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        now: Timestamp,
    ) -> Result<(), FsError> {
        check_name(name)?;
        let parent = self.open_to_change(caller, directory)?;
        match name {
            b"." => return Err(FsError::Invalid),
            // Whatever it is, the directory itself is in it.
            b".." => return Err(FsError::NotEmpty),
            _ => {}
        }
        let object = self.entry(parent, name)?;
        self.check_sticky(caller, parent, object)?;
        if !self.inodes[object].directory()?.is_empty() {
            return Err(FsError::NotEmpty);
        }
        self.change_entries(parent, now, |entries| entries.remove(name))?;
        self.names_left += 1;
        self.end_directory(parent, object);
        Ok(())
    }

    fn rename(
        &mut self,
        caller: &UserIdentity,
        (from_directory, from): (ObjectId, &[u8]),
        (to_directory, to): (ObjectId, &[u8]),
        now: Timestamp,
    ) -> Result<(), FsError> {
        check_name(from)?;
        check_name(to)?;
        let source = self.open_to_change(caller, from_directory)?;
        let target = self.open_to_change(caller, to_directory)?;
        if is_dots(from) || is_dots(to) {
            return Err(FsError::Invalid);
        }
        let object = self.entry(source, from)?;
        self.check_sticky(caller, source, object)?;
        let is_directory = self.inodes[object].directory().is_ok();
        if is_directory && source != target {
            self.check_not_within(target, object)?;
            // Its `..` changes.
            self.inodes[object].permit(caller, permission::WRITE)?;
        }
        let replaced = self.entry(target, to).ok();
        match replaced {
            // Two names of one object: both stay.
            Some(replaced) if replaced == object => return Ok(()),
            Some(replaced) => {
                self.check_sticky(caller, target, replaced)?;
                let entries = self.inodes[replaced].directory();
                if entries.is_ok() != is_directory {
                    return Err(FsError::Exists);
                }
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

    fn link(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        directory: ObjectId,
        name: &[u8],
        now: Timestamp,
    ) -> Result<(), FsError> {
        let index = self.inodes.find(object)?;
        let parent = self.check_new_name(caller, directory, name)?;
        if self.inodes[index].directory().is_ok() {
            return Err(FsError::Invalid);
        }
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

    fn list_verifier(&self, directory: ObjectId) -> Result<StoreVerifier, FsError> {
        let index = self.inodes.find(directory)?;
        self.inodes[index].directory()?;
        Ok(directory.generation.to_be_bytes())
    }

    fn list(
        &self,
        caller: &UserIdentity,
        directory: ObjectId,
        start: ListStart,
        now: Timestamp,
        mut visit: impl FnMut(Listed<'_>) -> bool,
    ) -> Result<bool, FsError> {
        let verifier = self.list_verifier(directory)?;
        let index = self.inodes.find(directory)?;
        self.inodes[index].permit(caller, permission::READ)?;
        if start.cookie != 0 && start.verifier != verifier {
            return Err(FsError::BadCookie);
        }
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
}
