//! Permissions: the rules of a local file system, which the kernel does not apply to a server that runs as root.

use stag_vfs::{FsError, Update, UserIdentity, check_is_file, check_set, check_values, permission};

use super::FILE_LEN_MAX;
use super::object::Stat;

const SET_UID: u32 = 0o4000;
pub(super) const SET_GID: u32 = 0o2000;
const STICKY: u32 = 0o1000;
const GROUP_EXECUTE: u32 = 0o0010;

impl Stat {
    /// Fails unless `caller` has the permission `wanted`.
    pub(super) fn permit(&self, caller: &UserIdentity, wanted: u32) -> Result<(), FsError> {
        if caller.may(&self.guarded(), wanted) { Ok(()) } else { Err(FsError::AccessDenied) }
    }

    pub(super) fn must_be_directory(&self) -> Result<(), FsError> {
        if self.is_directory() { Ok(()) } else { Err(FsError::NotDirectory) }
    }

    pub(super) fn must_be_file(&self) -> Result<(), FsError> {
        check_is_file(self.kind)
    }

    /// Fails unless `caller` may set all of `set`, and it can be set.
    pub(super) fn check_set(&self, caller: &UserIdentity, set: &Update) -> Result<(), FsError> {
        let may_write = || caller.may(&self.guarded(), permission::WRITE);
        check_set(caller, self.kind, (self.uid, self.gid), set, may_write)?;
        check_values(set, FILE_LEN_MAX)
    }

    /// Fails if the sticky directory `above` keeps `caller` from removing or renaming this.
    pub(super) fn check_sticky(&self, caller: &UserIdentity, above: &Stat) -> Result<(), FsError> {
        let owns = caller.is_root() || caller.uid == self.uid || caller.uid == above.uid;
        if above.mode & STICKY != 0 && !owns { Err(FsError::AccessDenied) } else { Ok(()) }
    }
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
