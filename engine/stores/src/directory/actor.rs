//! As whom a change is made, and what of it has to be synced.

use std::os::fd::AsFd;
use std::sync::Arc;

use arrayvec::ArrayVec;
use rustix::fs::OFlags;
use rustix::io::Errno;
use stag_disk::system::{FileUser, FileUsers};
use stag_disk::{ClosingBin, DiskFile};
use stag_vfs::{FsError, GROUPS_MAX, ObjectId, UserIdentity};

use super::object::{open_again, open_with, status};
use super::opened::{File, Identified, Reopen};

/// As whom system calls are made.
#[derive(Clone)]
pub(super) struct Actor {
    /// How to act as anybody; `None`: we are ourselves for everybody.
    users: Option<Arc<FileUsers>>,
    /// Whether the calling thread may become another user.
    is_helper: bool,
}

impl Actor {
    /// For the reactor.
    pub(super) fn new(users: Option<FileUsers>) -> Actor {
        Actor { users: users.map(Arc::new), is_helper: false }
    }

    /// The same, for a helper.
    pub(super) fn helper(&self) -> Actor {
        Actor { is_helper: true, ..self.clone() }
    }

    /// Whether it may be anybody.
    pub(super) fn is_anybody(&self) -> bool {
        self.users.is_some()
    }

    /// Does `act` as `caller`, whom the kernel then refuses what it may not do; and if `caller` is the superuser, as
    /// the superuser for `owner`, whose is what it makes. A server that is not root is itself for everybody.
    pub(super) fn act_as<T: Send>(
        &self,
        caller: &UserIdentity,
        owner: Option<&UserIdentity>,
        act: impl FnOnce() -> Result<T, Errno> + Send,
    ) -> Result<T, Errno> {
        let Some(users) = &self.users else { return act() };
        let UserIdentity { uid, gid, .. } = *owner.unwrap_or(caller);
        if !caller.is_root() {
            // With a group of its own choice it still belongs to its first one.
            let groups: ArrayVec<u32, { GROUPS_MAX + 1 }> =
                caller.groups().iter().copied().chain([caller.gid]).collect();
            return self.run(users, &FileUser { uid, gid, groups: &groups, privileged: false }, act);
        }
        if owner.is_none() || (uid, gid) == (0, 0) {
            return act();
        }
        self.run(users, &FileUser { uid, gid, groups: &[], privileged: true }, act)
    }

    fn run<T: Send>(
        &self,
        users: &FileUsers,
        user: &FileUser<'_>,
        act: impl FnOnce() -> Result<T, Errno> + Send,
    ) -> Result<T, Errno> {
        if self.is_helper { users.run_here(user, act) } else { users.run(user, act) }
    }
}

/// What has to be on stable storage after a change: an object, and a descriptor of it. That is found before the change, because
/// afterwards it would be too late to fail. `None`: it cannot be synced by itself, or need not be.
pub(super) type SyncTarget = Option<(ObjectId, File)>;

/// Opens an object to sync it; `None`: it cannot be synced.
pub(super) fn open_to_sync(
    looked: &File,
    how: Reopen,
    bin: Option<&ClosingBin>,
) -> Result<Option<File>, FsError> {
    let opened = match how {
        Reopen::Directory => open_with(looked.as_fd(), b".", OFlags::RDONLY.union(OFlags::DIRECTORY)),
        Reopen::Read => open_again(looked.as_fd(), OFlags::RDONLY),
        Reopen::Write => open_again(looked.as_fd(), OFlags::RDWR),
    };
    match opened {
        Ok(opened) => Ok(Some(Arc::new(DiskFile::new(opened, bin.cloned())))),
        // Not for us to open. See the module.
        Err(Errno::INVAL | Errno::ACCESS | Errno::PERM) => Ok(None),
        Err(error) => Err(status(error)),
    }
}

/// An object that was made, open to be looked at; a file, to be read and written.
pub(super) struct MadeObject {
    pub(super) identified: Identified,
    /// Its own descriptor for reading, if it is no file and has to be synced.
    pub(super) opened: Option<File>,
}
