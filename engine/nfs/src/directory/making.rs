//! Making objects, and giving them what they should have.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Gid, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, chownat, ftruncate, unlinkat, utimensat,
};
use rustix::io::Errno;
use stag_disk::system;
use stag_wire::nfs3::{FileType, SetAttributes, SetTime, Status, Time, Verifier};

use super::DirectoryStore;
use super::object::{Stat, stat, status};
use super::permit::{self, SET_GID};
use super::tree::{Index, Tree};
use crate::caller::Caller;
use crate::name::{check_name, is_dots};
use crate::store::ObjectId;

impl DirectoryStore {
    /// Makes an object by `make`, gives it owner and mode, and finds it.
    ///
    /// `make` makes what only we may use; it becomes the caller's when it is what it should be.
    pub(super) fn make(
        &mut self,
        caller: &Caller,
        (directory, name): (ObjectId, &[u8]),
        set: &SetAttributes,
        kind: FileType,
        make: impl FnOnce(BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno>,
    ) -> Result<ObjectId, Status> {
        let caller = &self.caller(caller);
        check_name(name)?;
        let tree = &mut *self.tree.borrow_mut();
        let (parent, above) = self.open_to_change(tree, caller, directory)?;
        if is_dots(name) {
            return Err(Status::Exist);
        }
        permit::check_new(set)?;
        let look = tree.look(parent)?;
        let target = self.target(tree, parent)?;
        let opened = make(look.as_fd()).map_err(status)?;
        let made = tree.enter(parent, name).and_then(|(index, found)| {
            // Who may write the directory on the server may have put something else there meanwhile: it is not ours
            // to give away.
            let file = opened.as_ref().map(OwnedFd::as_fd);
            let is_ours = self.own.is_some() || found.uid == rustix::process::geteuid().as_raw();
            let is_same = file.is_none_or(|file| stat(file).is_ok_and(|made| made.fileid == found.fileid));
            if found.kind != kind || !is_ours || !is_same {
                return Err(Status::Jukebox);
            }
            // Before it gets a mode that may forbid us to open it.
            let target = if file.is_none() { self.target(tree, index)? } else { None };
            self.dress(tree, index, &found, caller, &above, set, file)?;
            Ok((index, target))
        });
        match made {
            Ok((index, made)) => {
                let made = match opened.map(|file| tree.keep_opened(index, file, true)) {
                    Some(file) => self.sync.then(|| (tree.id(index).fileid, file)),
                    None => made,
                };
                self.changed.extend([target, made].into_iter().flatten());
                Ok(tree.id(index))
            }
            Err(error) => {
                let flags = if kind == FileType::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                // As if it had never been made; if that fails too, there is nobody to tell.
                let _ = unlinkat(&*look, name, flags);
                Err(error)
            }
        }
    }

    /// Gives a new object its owner, mode, size and times.
    #[expect(clippy::too_many_arguments, reason = "all that a new object depends on")]
    fn dress(
        &self,
        tree: &Tree,
        index: Index,
        found: &Stat,
        caller: &Caller,
        above: &Stat,
        set: &SetAttributes,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(), Status> {
        let look = tree.look(index)?;
        let inherits = above.mode & SET_GID != 0;
        // Like most servers: of the owner and group asked for, what the caller could not set is left out.
        let uid = set.uid.filter(|_| caller.is_root()).unwrap_or(caller.uid);
        let own_gid = if inherits { above.gid } else { caller.gid };
        let gid = set.gid.filter(|gid| caller.is_root() || caller.in_group(*gid)).unwrap_or(own_gid);
        if self.own.is_none() && (uid, gid) != (found.uid, found.gid) {
            change_owner(look.as_fd(), Some(uid), Some(gid))?;
        }
        if let (Some(size), Some(file)) = (set.size, file) {
            ftruncate(file, size).map_err(status)?;
        }
        if found.kind != FileType::Symlink {
            let default = if found.is_directory() { 0o755 } else { 0o644 };
            let mut mode = set.mode.unwrap_or(default) & 0o7777;
            if !caller.is_root() && !caller.in_group(gid) {
                mode &= !SET_GID;
            }
            if found.is_directory() && inherits {
                mode |= SET_GID;
            }
            system::change_mode(look.as_fd(), mode).map_err(status)?;
        }
        set_times(look.as_fd(), set.atime, set.mtime)
    }
}

pub(super) fn change_owner(file: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<(), Status> {
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    chownat(file, c"", uid, gid, AtFlags::EMPTY_PATH).map_err(status)
}

pub(super) fn set_times(file: BorrowedFd<'_>, atime: SetTime, mtime: SetTime) -> Result<(), Status> {
    if (atime, mtime) == (SetTime::Keep, SetTime::Keep) {
        return Ok(());
    }
    let time = |set| match set {
        SetTime::Keep => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        SetTime::ServerTime => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        SetTime::ClientTime(time) => {
            Timespec { tv_sec: time.seconds.into(), tv_nsec: time.nanoseconds.into() }
        }
    };
    let times = Timestamps { last_access: time(atime), last_modification: time(mtime) };
    utimensat(file, c"", &times, AtFlags::EMPTY_PATH).map_err(status)
}

/// The two times that keep the verifier of an exclusive CREATE, as other servers do: nothing else of a new file is
/// on stable storage and free to use. The client sets them to what they should be.
pub(super) fn verifier_times(verifier: Verifier) -> (SetTime, SetTime) {
    let [a, b, c, d, e, f, g, h] = verifier;
    // Without the top bit: not every file system has times after 2038.
    let time = |word: [u8; 4]| {
        SetTime::ClientTime(Time { seconds: u32::from_be_bytes(word) & 0x7fff_ffff, nanoseconds: 0 })
    };
    (time([a, b, c, d]), time([e, f, g, h]))
}
