//! Permissions: the rules of a local file system, which the kernel does not apply to a server that runs as root.

use stag_wire::nfs3::{FileType, SetAttributes, SetTime, Status};

use super::FILE_LEN_MAX;
use super::object::Stat;
use crate::caller::{UserIdentity, check_ids, permission};

const SET_UID: u32 = 0o4000;
pub(super) const SET_GID: u32 = 0o2000;
const STICKY: u32 = 0o1000;
const GROUP_EXECUTE: u32 = 0o0010;

const NANOSECONDS: u32 = 1_000_000_000;

impl Stat {
    /// Fails unless `caller` has the permission `wanted`.
    pub(super) fn permit(&self, caller: &UserIdentity, wanted: u32) -> Result<(), Status> {
        if caller.may(&self.guarded(), wanted) { Ok(()) } else { Err(Status::Acces) }
    }

    pub(super) fn must_be_directory(&self) -> Result<(), Status> {
        if self.is_directory() { Ok(()) } else { Err(Status::NotDir) }
    }

    pub(super) fn must_be_file(&self) -> Result<(), Status> {
        match self.kind {
            FileType::Regular => Ok(()),
            FileType::Directory => Err(Status::IsDir),
            _ => Err(Status::Inval),
        }
    }

    /// Fails if the sticky directory `above` keeps `caller` from removing or renaming this.
    pub(super) fn check_sticky(&self, caller: &UserIdentity, above: &Stat) -> Result<(), Status> {
        let owns = caller.is_root() || caller.uid == self.uid || caller.uid == above.uid;
        if above.mode & STICKY != 0 && !owns { Err(Status::Acces) } else { Ok(()) }
    }
}

/// Fails unless `caller` may set all of `set`.
pub(super) fn check(found: &Stat, caller: &UserIdentity, set: &SetAttributes) -> Result<(), Status> {
    check_ids(set)?;
    let is_root = caller.is_root();
    let owns = is_root || caller.uid == found.uid;
    let may_write = owns || caller.may(&found.guarded(), permission::WRITE);
    if set.mode.is_some() && !owns {
        return Err(Status::Perm);
    }
    // chown_restricted: only the superuser gives objects away.
    if !set.uid.is_none_or(|uid| is_root || owns && uid == found.uid) {
        return Err(Status::Perm);
    }
    if !set.gid.is_none_or(|gid| is_root || owns && (gid == found.gid || caller.in_group(gid))) {
        return Err(Status::Perm);
    }
    if set.size.is_some() {
        found.must_be_file()?;
        if !may_write {
            return Err(Status::Acces);
        }
    }
    // A symbolic link's mode means nothing, and the kernel does not change it.
    if set.mode.is_some() && found.kind == FileType::Symlink {
        return Err(Status::NotSupp);
    }
    for time in [set.atime, set.mtime] {
        match time {
            SetTime::ServerTime if !may_write => return Err(Status::Acces),
            SetTime::ClientTime(_) if !owns => return Err(Status::Perm),
            _ => {}
        }
    }
    check_new(set)
}

/// Fails if `set` says what nothing can be set to.
pub(super) fn check_new(set: &SetAttributes) -> Result<(), Status> {
    if set.size.is_some_and(|size| size > FILE_LEN_MAX) {
        return Err(Status::FBig);
    }
    for time in [set.atime, set.mtime] {
        if matches!(time, SetTime::ClientTime(time) if time.nanoseconds >= NANOSECONDS) {
            return Err(Status::Inval);
        }
    }
    Ok(())
}

/// The mode of a program that somebody changed: it no longer runs as its owner. (Set-gid without group execute means
/// something else and stays.) `None`: it is so already.
pub(super) fn without_privileges(mode: u32) -> Option<u32> {
    let mut without = mode & !SET_UID;
    if mode & GROUP_EXECUTE != 0 {
        without &= !SET_GID;
    }
    (without != mode).then_some(without)
}
