//! A store of either kind, so that one server can export both.

use std::os::fd::RawFd;
use std::time::Duration;

use stag_memory::Shared;
use stag_vfs::{
    CreateMode, Finished, FsError, LINK_SPACE, ListStart, Listed, Lists, ObjectId, ObjectStat, Progress,
    ReadDone, SetLists, Special, Stability, Store, StoreLimits, StoreVerifier, Ticket, Timestamp, Update,
    Usage, UserIdentity, WriteData, WriteDone,
};

use crate::directory::DirectoryStore;
use crate::memory::MemoryStore;

/// A store of files in memory, or of a directory of the machine.
#[expect(clippy::large_enum_variant, reason = "a server has a handful of them")]
pub enum AnyStore {
    /// In pool memory.
    Memory(MemoryStore),
    /// A directory.
    Directory(DirectoryStore),
}

impl From<MemoryStore> for AnyStore {
    fn from(store: MemoryStore) -> AnyStore {
        AnyStore::Memory(store)
    }
}

impl From<DirectoryStore> for AnyStore {
    fn from(store: DirectoryStore) -> AnyStore {
        AnyStore::Directory(store)
    }
}

/// The same of whichever store it is.
macro_rules! each {
    ($any:expr, $store:ident => $call:expr) => {
        match $any {
            AnyStore::Memory($store) => $call,
            AnyStore::Directory($store) => $call,
        }
    };
}

impl Store for AnyStore {
    #[inline]
    fn fsid(&self) -> u64 {
        each!(self, store => store.fsid())
    }

    #[inline]
    fn volume(&self) -> u64 {
        each!(self, store => store.volume())
    }

    #[inline]
    fn root(&self) -> ObjectId {
        each!(self, store => store.root())
    }

    #[inline]
    fn reads_take_memory(&self) -> bool {
        each!(self, store => store.reads_take_memory())
    }

    #[inline]
    fn limits(&self) -> StoreLimits {
        each!(self, store => store.limits())
    }

    #[inline]
    fn is_read_only(&self) -> bool {
        each!(self, store => store.is_read_only())
    }

    #[inline]
    fn check_place(&self) -> Result<(), FsError> {
        each!(self, store => store.check_place())
    }

    #[inline]
    fn usage(&self) -> Usage {
        each!(self, store => store.usage())
    }

    #[inline]
    fn write_verifier(&self) -> StoreVerifier {
        each!(self, store => store.write_verifier())
    }

    #[inline]
    fn attributes(&self, object: ObjectId) -> Result<ObjectStat, FsError> {
        each!(self, store => store.attributes(object))
    }

    #[inline]
    fn before(&self, object: ObjectId) -> Option<ObjectStat> {
        each!(self, store => store.before(object))
    }

    #[inline]
    fn before_transfer(&self, object: ObjectId) -> Option<ObjectStat> {
        each!(self, store => store.before_transfer(object))
    }

    #[inline]
    fn after_transfer(&self, object: ObjectId) -> Option<ObjectStat> {
        each!(self, store => store.after_transfer(object))
    }

    #[inline]
    fn attributes_after(&mut self, object: ObjectId) -> Result<ObjectStat, FsError> {
        each!(self, store => store.attributes_after(object))
    }

    #[inline]
    fn set_attributes(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        set: &Update,
        guard: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<(), FsError> {
        each!(self, store => store.set_attributes(caller, object, set, guard, now))
    }

    #[inline]
    fn lookup(&self, caller: &UserIdentity, directory: ObjectId, name: &[u8]) -> Result<ObjectId, FsError> {
        each!(self, store => store.lookup(caller, directory, name))
    }

    #[inline]
    fn access(&self, caller: &UserIdentity, object: ObjectId, wanted: u32) -> Result<u32, FsError> {
        each!(self, store => store.access(caller, object, wanted))
    }

    #[inline]
    fn lists(&self, object: ObjectId) -> Result<Lists<'_>, FsError> {
        each!(self, store => store.lists(object))
    }

    #[inline]
    fn set_lists(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        set: &SetLists,
        now: Timestamp,
    ) -> Result<(), FsError> {
        each!(self, store => store.set_lists(caller, object, set, now))
    }

    #[inline]
    fn read_link<'a>(
        &'a self,
        caller: &UserIdentity,
        object: ObjectId,
        space: &'a mut [u8; LINK_SPACE],
        now: Timestamp,
    ) -> Result<&'a [u8], FsError> {
        each!(self, store => store.read_link(caller, object, space, now))
    }

    #[inline]
    fn read(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        offset: u64,
        count: u32,
        pieces: &mut Vec<Shared>,
        now: Timestamp,
    ) -> Result<Progress<ReadDone>, FsError> {
        each!(self, store => store.read(caller, object, offset, count, pieces, now))
    }

    #[inline]
    fn write(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        offset: u64,
        data: WriteData<'_>,
        stable: Stability,
        now: Timestamp,
    ) -> Result<Progress<WriteDone>, FsError> {
        each!(self, store => store.write(caller, object, offset, data, stable, now))
    }

    #[inline]
    fn commit(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        offset: u64,
        count: u32,
    ) -> Result<Progress<()>, FsError> {
        each!(self, store => store.commit(caller, object, offset, count))
    }

    #[inline]
    fn commit_changes(&mut self) -> Progress<()> {
        each!(self, store => store.commit_changes())
    }

    #[inline]
    fn poll_later(&mut self, now: Duration) -> Option<Ticket> {
        each!(self, store => store.poll_later(now))
    }

    #[inline]
    fn finish(&mut self, ticket: Ticket, pieces: &mut Vec<Shared>) -> Result<Finished, FsError> {
        each!(self, store => store.finish(ticket, pieces))
    }

    #[inline]
    fn descriptor(&self) -> Option<RawFd> {
        each!(self, store => store.descriptor())
    }

    #[inline]
    fn is_busy(&self) -> bool {
        each!(self, store => store.is_busy())
    }

    #[inline]
    fn create(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        how: &CreateMode,
        now: Timestamp,
    ) -> Result<ObjectId, FsError> {
        each!(self, store => store.create(caller, directory, name, how, now))
    }

    #[inline]
    fn make_directory(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        set: &Update,
        now: Timestamp,
    ) -> Result<ObjectId, FsError> {
        each!(self, store => store.make_directory(caller, directory, name, set, now))
    }

    #[inline]
    fn make_symlink(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        path: &[u8],
        set: &Update,
        now: Timestamp,
    ) -> Result<ObjectId, FsError> {
        each!(self, store => store.make_symlink(caller, directory, name, path, set, now))
    }

    #[inline]
    fn make_special(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        special: Special,
        set: &Update,
        now: Timestamp,
    ) -> Result<ObjectId, FsError> {
        each!(self, store => store.make_special(caller, directory, name, special, set, now))
    }

    #[inline]
    fn remove(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        now: Timestamp,
    ) -> Result<(), FsError> {
        each!(self, store => store.remove(caller, directory, name, now))
    }

    #[inline]
    fn remove_directory(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        now: Timestamp,
    ) -> Result<(), FsError> {
        each!(self, store => store.remove_directory(caller, directory, name, now))
    }

    #[inline]
    fn rename(
        &mut self,
        caller: &UserIdentity,
        from: (ObjectId, &[u8]),
        to: (ObjectId, &[u8]),
        now: Timestamp,
    ) -> Result<(), FsError> {
        each!(self, store => store.rename(caller, from, to, now))
    }

    #[inline]
    fn link(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        directory: ObjectId,
        name: &[u8],
        now: Timestamp,
    ) -> Result<(), FsError> {
        each!(self, store => store.link(caller, object, directory, name, now))
    }

    #[inline]
    fn list_verifier(&self, directory: ObjectId) -> Result<StoreVerifier, FsError> {
        each!(self, store => store.list_verifier(directory))
    }

    #[inline]
    fn list(
        &self,
        caller: &UserIdentity,
        directory: ObjectId,
        start: ListStart,
        now: Timestamp,
        visit: impl FnMut(Listed<'_>) -> bool,
    ) -> Result<bool, FsError> {
        each!(self, store => store.list(caller, directory, start, now, visit))
    }
}
