//! A store with the policy above it: one operation each, for every protocol.
//!
//! An operation reads first and acts once. It gets its objects as the caller saw them ([`Volume::stat`]), so that what is told
//! of an object before the operation, what permits it, and what the store compares is one and the same view.

use std::borrow::Cow;

use stag_memory::Shared;

use crate::acl::{Acl, SetLists};
use crate::error::FsError;
use crate::identity::{UserIdentity, accesses, permission};
use crate::name::{PATH_LEN_MAX, check_name, is_dots};
use crate::policy;
use crate::store::{
    Blocked, ChangeStep, EntryName, ExtentKind, LINK_SPACE, ListStart, Listed, NewAttributes, NewObject,
    Progress, ReadDone, ReadStep, RenameSeen, SpaceChange, Special, Store, StoreProfile, WriteData,
    WriteDone,
};
use crate::types::{
    CreateMode, ObjectId, ObjectKind, ObjectStat, Stability, StoreVerifier, TimeUpdate, Timestamp, Update,
};

/// A file system that asks who may do what.
pub struct Volume<S: Store + ?Sized> {
    profile: StoreProfile,
    store: Box<S>,
}

impl<S: Store + ?Sized> Volume<S> {
    /// The policy above `store`.
    pub fn new(store: Box<S>) -> Volume<S> {
        Volume { profile: store.profile(), store }
    }

    /// The store alone again.
    #[must_use]
    pub fn into_store(self) -> Box<S> {
        self.store
    }

    /// What the store is.
    #[inline]
    #[must_use]
    pub fn profile(&self) -> &StoreProfile {
        &self.profile
    }

    /// The store, for what needs no permission.
    #[inline]
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The same, to change it: transfers under way, and what is not on stable storage.
    #[inline]
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    /// As whom `user` acts here.
    #[inline]
    fn acting<'u>(&'u self, user: &'u UserIdentity) -> &'u UserIdentity {
        self.profile.acts_as.as_ref().unwrap_or(user)
    }

    /// What an object is. No permission is needed.
    pub fn stat(&self, object: ObjectId) -> ReadStep<ObjectStat> {
        self.store.stat(object)
    }

    /// What a directory is in which names are looked up, as [`Store::stat_to_search`].
    pub fn stat_to_search(&self, directory: ObjectId) -> ReadStep<ObjectStat> {
        self.store.stat_to_search(directory)
    }

    fn allows(&self, user: &UserIdentity, seen: &ObjectStat, wanted: u32) -> ReadStep<bool> {
        let acl = self.acl_for(user, seen)?;
        Ok(policy::allows(user, &seen.guarded(), acl.as_deref(), wanted))
    }

    /// The access control list of an object, if it matters to `user`.
    fn acl_for(&self, user: &UserIdentity, seen: &ObjectStat) -> ReadStep<Option<Cow<'_, Acl>>> {
        let matters = seen.may_have_acl && policy::acl_matters(user, &seen.guarded());
        if matters { self.store.access_acl(seen) } else { Ok(None) }
    }

    fn permit(&self, user: &UserIdentity, seen: &ObjectStat, wanted: u32) -> ReadStep<()> {
        if self.allows(user, seen, wanted)? { Ok(()) } else { Err(FsError::AccessDenied.into()) }
    }

    /// Fails unless it is a directory in which `user` may look names up.
    fn check_search(&self, user: &UserIdentity, directory: &ObjectStat) -> ReadStep<()> {
        policy::check_is_directory(directory)?;
        self.permit(user, directory, permission::EXECUTE)
    }

    /// Fails unless it is a directory whose entries `user` may change.
    fn check_change(&self, user: &UserIdentity, directory: &ObjectStat) -> ReadStep<()> {
        policy::check_is_directory(directory)?;
        self.permit(user, directory, permission::WRITE | permission::EXECUTE)
    }

    /// The object of a name, of `.` and of `..`.
    pub fn lookup(&self, user: &UserIdentity, directory: &ObjectStat, name: &[u8]) -> ReadStep<ObjectStat> {
        self.check_search(self.acting(user), directory)?;
        if name == b"." {
            return Ok(*directory);
        }
        check_name(name)?;
        self.store.entry(EntryName { directory, name })
    }

    /// Which of the accesses `wanted` ([`access`](crate::access)) `user` has on an object.
    pub fn access(&self, user: &UserIdentity, seen: &ObjectStat, wanted: u32) -> ReadStep<u32> {
        let user = self.acting(user);
        let acl = self.acl_for(user, seen)?;
        let (guarded, is_directory) = (seen.guarded(), seen.kind == ObjectKind::Directory);
        Ok(accesses(is_directory, wanted, |needed| policy::allows(user, &guarded, acl.as_deref(), needed)))
    }

    /// What a symbolic link holds. No permission is needed.
    pub fn read_link<'a>(
        &'a self,
        seen: &ObjectStat,
        space: &'a mut [u8; LINK_SPACE],
        now: Timestamp,
    ) -> ReadStep<&'a [u8]> {
        if seen.kind != ObjectKind::Symlink {
            return Err(FsError::Invalid.into());
        }
        self.store.link_target(seen.object, space, now)
    }

    /// What a client must send back together with a directory's cookies.
    pub fn list_verifier(&self, directory: &ObjectStat) -> Result<StoreVerifier, FsError> {
        policy::check_is_directory(directory)?;
        // Cookies stay good for as long as the directory.
        Ok(directory.object.generation.to_be_bytes())
    }

    /// Shows the entries of a directory, as [`Store::list`]. `verifier` came with the cookie.
    pub fn list(
        &self,
        user: &UserIdentity,
        directory: &ObjectStat,
        start: ListStart,
        verifier: StoreVerifier,
        now: Timestamp,
        visit: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> ReadStep<bool> {
        let own = self.list_verifier(directory)?;
        self.permit(self.acting(user), directory, permission::READ)?;
        if start.cookie != 0 && verifier != own {
            return Err(FsError::BadCookie.into());
        }
        self.store.list(directory.object, start, now, visit)
    }

    /// The access control list of an object, as [`Store::access_acl`]. No permission is needed.
    pub fn access_acl(&self, seen: &ObjectStat) -> ReadStep<Option<Cow<'_, Acl>>> {
        if seen.may_have_acl { self.store.access_acl(seen) } else { Ok(None) }
    }

    /// The list that new objects in a directory inherit, as [`Store::default_acl`]. No permission is needed.
    pub fn default_acl(&self, directory: ObjectId) -> ReadStep<Option<Cow<'_, Acl>>> {
        self.store.default_acl(directory)
    }

    /// Sets access control lists. A store that keeps none takes what a mode can say, and no more.
    pub fn set_lists(
        &mut self,
        user: &UserIdentity,
        seen: &ObjectStat,
        set: &SetLists,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let access = set.access.as_ref().and_then(Option::as_ref);
        let has_default = matches!(set.default, Some(Some(_)));
        if self.profile.can.keeps_lists {
            let user = *self.acting(user);
            policy::check_lists(&user, seen, has_default)?;
            let mode = access.map(|acl| policy::mode_with_list(&user, seen, acl));
            return self.store.set_lists(&user, seen, set, mode, now);
        }
        if has_default || seen.kind == ObjectKind::Symlink {
            return Err(FsError::NotSupported.into());
        }
        match access {
            Some(acl) if acl.is_minimal() => {
                let mode = Some(seen.mode & !0o777 | acl.mode_bits());
                self.set_attributes(user, seen, &Update { mode, ..Update::default() }, now)
            }
            Some(_) => Err(FsError::NotSupported.into()),
            None => Ok(Progress::Done(())),
        }
    }

    /// Sets attributes.
    pub fn set_attributes(
        &mut self,
        user: &UserIdentity,
        seen: &ObjectStat,
        set: &Update,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let user = *self.acting(user);
        let may_write = || self.allows(&user, seen, permission::WRITE);
        let set = policy::update(&user, seen, set, self.profile.limits.file_len_max, may_write)?;
        self.store.update(&user, seen, &set, now)
    }

    /// Makes a regular file, or finds the one that `how` allows.
    pub fn create(
        &mut self,
        user: &UserIdentity,
        directory: &ObjectStat,
        name: &[u8],
        how: &CreateMode,
        now: Timestamp,
    ) -> ChangeStep<ObjectStat> {
        let at = EntryName { directory, name };
        check_name(name)?;
        self.check_search(self.acting(user), directory)?;
        let taken = match self.store.entry(at) {
            _ if is_dots(name) => None,
            Ok(seen) => Some(seen),
            Err(Blocked::Fails(FsError::NotFound)) => None,
            Err(blocked) => return Err(blocked),
        };
        let (set, verifier) = match (*how, taken) {
            (CreateMode::Unchecked(set), Some(seen)) => {
                // The file that is there keeps its attributes; only its size is set.
                policy::check_is_file(seen.kind).map_err(|_| FsError::Exists)?;
                let set = Update { size: set.size, ..Update::default() };
                if set.size.is_none() {
                    self.store.note_changed(&[&seen]);
                    return Ok(Progress::Done(seen));
                }
                return match self.set_attributes(user, &seen, &set, now)? {
                    Progress::Done(()) => Ok(Progress::Done(self.store.stat(seen.object)?)),
                    Progress::Later(ticket) => Ok(Progress::Later(ticket)),
                };
            }
            (CreateMode::Exclusive(verifier, _), Some(seen)) => {
                let is_same = seen.kind == ObjectKind::Regular && self.store.is_made_by(&seen, verifier)?;
                if !is_same {
                    return Err(FsError::Exists.into());
                }
                // The CREATE that made it may not be over.
                self.store.note_changed(&[directory, &seen]);
                return Ok(Progress::Done(seen));
            }
            (CreateMode::Guarded(_), Some(_)) => return Err(FsError::Exists.into()),
            (CreateMode::Unchecked(set) | CreateMode::Guarded(set), None) => (set, None),
            (CreateMode::Exclusive(verifier, set), None) if self.profile.can.keeps_verifiers => {
                (set, Some(verifier))
            }
            (CreateMode::Exclusive(verifier, set), None) => {
                let [atime, mtime] = policy::verifier_times(verifier).map(TimeUpdate::To);
                (Update { atime, mtime, ..set }, None)
            }
        };
        self.make(user, at, NewObject::File(verifier), &set, now)
    }

    /// Makes a directory.
    pub fn make_directory(
        &mut self,
        user: &UserIdentity,
        at: EntryName<'_>,
        set: &Update,
        now: Timestamp,
    ) -> ChangeStep<ObjectStat> {
        self.make(user, at, NewObject::Directory, set, now)
    }

    /// Makes a symbolic link that holds `path`.
    pub fn make_symlink(
        &mut self,
        user: &UserIdentity,
        at: EntryName<'_>,
        path: &[u8],
        set: &Update,
        now: Timestamp,
    ) -> ChangeStep<ObjectStat> {
        if path.len() > PATH_LEN_MAX as usize {
            return Err(FsError::NameTooLong.into());
        }
        if path.is_empty() || path.contains(&0) {
            return Err(FsError::Invalid.into());
        }
        self.make(user, at, NewObject::Symlink(path), set, now)
    }

    /// Makes a device, socket or pipe.
    pub fn make_special(
        &mut self,
        user: &UserIdentity,
        at: EntryName<'_>,
        special: Special,
        set: &Update,
        now: Timestamp,
    ) -> ChangeStep<ObjectStat> {
        let is_device = matches!(special, Special::Block(_) | Special::Character(_));
        if is_device && !self.acting(user).is_root() {
            return Err(FsError::NotPermitted.into());
        }
        self.make(user, at, NewObject::Special(special), set, now)
    }

    fn make(
        &mut self,
        user: &UserIdentity,
        at: EntryName<'_>,
        what: NewObject<'_>,
        set: &Update,
        now: Timestamp,
    ) -> ChangeStep<ObjectStat> {
        let user = *self.acting(user);
        check_name(at.name)?;
        self.check_change(&user, at.directory)?;
        if is_dots(at.name) {
            return Err(FsError::Exists.into());
        }
        let attributes = self.new_attributes(&user, at.directory, what.kind(), set)?;
        self.store.make(&user, at, what, &attributes, now)
    }

    fn new_attributes(
        &self,
        user: &UserIdentity,
        above: &ObjectStat,
        kind: ObjectKind,
        set: &Update,
    ) -> Result<NewAttributes, FsError> {
        let (len_max, gives_away) = (self.profile.limits.file_len_max, self.profile.acts_as.is_none());
        policy::new_attributes(user, above, kind, set, len_max, gives_away)
    }

    /// Gives an object one more name.
    pub fn link(
        &mut self,
        user: &UserIdentity,
        seen: &ObjectStat,
        at: EntryName<'_>,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let user = *self.acting(user);
        check_name(at.name)?;
        self.check_change(&user, at.directory)?;
        if is_dots(at.name) || self.find(at)?.is_some() {
            return Err(FsError::Exists.into());
        }
        if seen.kind == ObjectKind::Directory {
            return Err(FsError::Invalid.into());
        }
        self.store.link(&user, seen, at, now)
    }

    /// The object of a name, if there is one that can be told.
    fn find(&self, at: EntryName<'_>) -> ReadStep<Option<ObjectStat>> {
        match self.store.entry(at) {
            Ok(seen) => Ok(Some(seen)),
            Err(Blocked::Fails(_)) => Ok(None),
            Err(waits) => Err(waits),
        }
    }

    /// Removes a name of anything but a directory.
    pub fn remove(&mut self, user: &UserIdentity, at: EntryName<'_>, now: Timestamp) -> ChangeStep<()> {
        let user = *self.acting(user);
        check_name(at.name)?;
        self.check_change(&user, at.directory)?;
        if is_dots(at.name) {
            return Err(FsError::IsDirectory.into());
        }
        let seen = self.store.entry(at)?;
        policy::check_sticky(&user, at.directory, &seen)?;
        if seen.kind == ObjectKind::Directory {
            return Err(FsError::IsDirectory.into());
        }
        self.store.remove(&user, at, &seen, now)
    }

    /// Removes an empty directory.
    pub fn remove_directory(
        &mut self,
        user: &UserIdentity,
        at: EntryName<'_>,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let user = *self.acting(user);
        check_name(at.name)?;
        self.check_change(&user, at.directory)?;
        match at.name {
            b"." => return Err(FsError::Invalid.into()),
            // Whatever it is, the directory itself is in it.
            b".." => return Err(FsError::NotEmpty.into()),
            _ => {}
        }
        let seen = self.store.entry(at)?;
        policy::check_sticky(&user, at.directory, &seen)?;
        policy::check_is_directory(&seen)?;
        self.store.remove(&user, at, &seen, now)
    }

    /// Renames `from` to `to`, replacing what `to` named.
    pub fn rename(
        &mut self,
        user: &UserIdentity,
        from: EntryName<'_>,
        to: EntryName<'_>,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let user = *self.acting(user);
        check_name(from.name)?;
        check_name(to.name)?;
        self.check_change(&user, from.directory)?;
        self.check_change(&user, to.directory)?;
        if is_dots(from.name) || is_dots(to.name) {
            return Err(FsError::Invalid.into());
        }
        let moved = self.store.entry(from)?;
        policy::check_sticky(&user, from.directory, &moved)?;
        let (is_directory, target) = (moved.kind == ObjectKind::Directory, to.directory.object);
        if is_directory && from.directory.object != target {
            if self.store.lies_within(target, moved.object)? {
                return Err(FsError::Invalid.into());
            }
            // Its `..` changes.
            self.permit(&user, &moved, permission::WRITE)?;
        }
        // Most names are free.
        match self.store.rename_to_free(&user, from, to, &moved, now) {
            None | Some(Err(FsError::Exists)) => {}
            Some(renamed) => return Ok(Progress::Done(renamed?)),
        }
        let replaced = self.find(to)?;
        if let Some(replaced) = &replaced {
            // Two names of one object: both stay.
            if replaced.object == moved.object {
                return Ok(Progress::Done(()));
            }
            policy::check_sticky(&user, to.directory, replaced)?;
            if (replaced.kind == ObjectKind::Directory) != is_directory {
                return Err(FsError::Exists.into());
            }
        }
        let seen = RenameSeen { moved: &moved, replaced: replaced.as_ref() };
        self.store.rename(&user, from, to, seen, now)
    }

    /// Reads, as [`Store::read`].
    #[inline(always)]
    pub fn read(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        (offset, count): (u64, u32),
        pieces: &mut Vec<Shared>,
        now: Timestamp,
    ) -> ChangeStep<ReadDone> {
        let user = self.profile.acts_as.as_ref().unwrap_or(user);
        if !self.profile.can.admits_transfers {
            self.admit_read(user, object)?;
        }
        self.store.read(user, object, offset, count, pieces, now)
    }

    /// Fails unless `user` may read there.
    #[inline(never)]
    fn admit_read(&self, user: &UserIdentity, object: ObjectId) -> ReadStep<()> {
        let seen = self.store.stat(object)?;
        policy::check_is_file(seen.kind)?;
        let acl = self.acl_for(user, &seen)?;
        Ok(policy::admit_read(user, &seen.guarded(), || acl.as_deref())?)
    }

    /// Writes, as [`Store::write`].
    #[inline(always)]
    pub fn write(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        offset: u64,
        data: WriteData<'_>,
        stability: Stability,
        now: Timestamp,
    ) -> ChangeStep<WriteDone> {
        if !self.profile.can.admits_transfers {
            self.admit_write(user, object, offset, data.len() as u64, now)?;
        }
        let user = self.profile.acts_as.as_ref().unwrap_or(user);
        self.store.write(user, object, offset, data, stability, now)
    }

    /// Fails unless `user` may write there. A program loses its set-id bits before its data changes.
    #[inline(never)]
    fn admit_write(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        offset: u64,
        len: u64,
        now: Timestamp,
    ) -> ReadStep<()> {
        let user = *self.acting(user);
        let seen = self.store.stat(object)?;
        policy::check_is_file(seen.kind)?;
        let acl = self.acl_for(&user, &seen)?;
        policy::admit_write(&user, &seen.guarded(), || acl.as_deref())?;
        drop(acl);
        if offset.checked_add(len).is_none_or(|end| end > self.profile.limits.file_len_max) {
            return Err(FsError::TooLarge.into());
        }
        if let Some(mode) = policy::mode_after_write(&user, seen.mode).filter(|_| len > 0) {
            let set = Update { mode: Some(mode), ..Update::default() };
            return match self.store.update(&user, &seen, &set, now)? {
                Progress::Done(()) => Ok(()),
                Progress::Later(ticket) => Err(Blocked::Waits(ticket)),
            };
        }
        Ok(())
    }

    /// Puts written data on stable storage, as [`Store::commit`].
    pub fn commit(&mut self, object: ObjectId, offset: u64, count: u32) -> ChangeStep<()> {
        self.store.commit(object, offset, count)
    }

    /// Finds data or a hole, as [`Store::seek`]. [`FsError::NoAddress`]: the file ends before `offset`, or there.
    pub fn seek(
        &self,
        user: &UserIdentity,
        seen: &ObjectStat,
        offset: u64,
        kind: ExtentKind,
    ) -> ReadStep<Option<u64>> {
        policy::check_is_file(seen.kind)?;
        let user = self.acting(user);
        let acl = self.acl_for(user, seen)?;
        policy::admit_read(user, &seen.guarded(), || acl.as_deref())?;
        if offset >= seen.size {
            return Err(FsError::NoAddress.into());
        }
        self.store.seek(seen, offset, kind)
    }

    /// Reserves or gives up the space of `len` octets of a file from `offset` on, for a user who may write them.
    /// [`FsError::Invalid`]: there are none. Beyond the end of the largest file nothing can be reserved, and there is nothing to
    /// give up.
    pub fn change_space(
        &mut self,
        user: &UserIdentity,
        seen: &ObjectStat,
        (offset, len): (u64, u64),
        change: SpaceChange,
        now: Timestamp,
    ) -> ChangeStep<()> {
        policy::check_is_file(seen.kind)?;
        if len == 0 {
            return Err(FsError::Invalid.into());
        }
        let len_max = self.profile.limits.file_len_max;
        let (offset, len) = match change {
            SpaceChange::Reserve => (offset, len),
            SpaceChange::Release => (offset.min(len_max), len.min(len_max.saturating_sub(offset))),
        };
        self.admit_write(user, seen.object, offset, len, now)?;
        if len == 0 {
            return Ok(Progress::Done(()));
        }
        let user = *self.acting(user);
        self.store.change_space(&user, seen, offset..offset + len, change, now)
    }
}
