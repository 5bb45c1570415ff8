//! Makes objects, and sets their attributes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, chownat, ftruncate, unlinkat,
    utimensat,
};
use rustix::io::Errno;
use stag_disk::system::{self, FileUser};
use stag_vfs::{
    FsError, GROUPS_MAX, INVALID_ID, ObjectId, ObjectKind, StoreVerifier, TimeUpdate, Timestamp, Update,
    UserIdentity, check_ids, check_name, check_values, is_dots,
};

use super::object::{Stat, stat, stat_at, status};
use super::permit::SET_GID;
use super::tree::{Index, Tree};
use super::{DirectoryStore, FILE_LEN_MAX};

/// What an object is made as: what `make` gives to the kernel, so that nothing is left to be given afterwards.
struct Wanted {
    uid: u32,
    gid: u32,
    /// All of the mode's bits.
    mode: u32,
}

/// What is known of an object that was just made.
struct Made<'a> {
    kind: ObjectKind,
    wanted: &'a Wanted,
    /// Of the directory that it is in.
    above: &'a Stat,
    /// The kernel's time before it was made.
    began: Duration,
}

impl Made<'_> {
    /// Whether what has the name now may be what was made: its kind and owner are right.
    fn may_be(&self, found: &Stat) -> bool {
        // A file system can be mounted so that the group is always the directory's.
        let is_group = found.gid == self.wanted.gid || found.gid == self.above.gid;
        found.kind == self.kind && found.uid == self.wanted.uid && is_group
    }

    /// Whether it cannot have been there before, so that no older object is taken for it, whatever the name
    /// was exchanged for. A file system that does not know when an object was born leaves it open.
    fn is_newborn(&self, found: &Stat) -> bool {
        self.may_be(found) && found.born().is_some_and(|born| born >= self.began)
    }
}

impl DirectoryStore {
    /// Makes an object by `make`, which gets the directory and the mode, and finds it.
    ///
    /// Between two system calls, who may write the directory on the server may exchange the name for another. So the
    /// object is made as its owner and with its mode in one system call, and nothing is given to what has the
    /// name afterwards. What one system call cannot give (set-id bits, what umask took, times, a group) goes to the
    /// descriptor of a file, which is the file whatever its name; and of anything else only to what was born since.
    pub(super) fn make(
        &mut self,
        caller: &UserIdentity,
        (directory, name): (ObjectId, &[u8]),
        set: &Update,
        kind: ObjectKind,
        make: impl FnOnce(BorrowedFd<'_>, Mode) -> Result<Option<OwnedFd>, Errno> + Send,
    ) -> Result<ObjectId, FsError> {
        let caller = &self.caller(caller);
        check_name(name)?;
        let tree = &mut *self.tree.borrow_mut();
        let (parent, above) = self.open_to_change(tree, caller, directory)?;
        if is_dots(name) {
            return Err(FsError::Exists);
        }
        check_values(set, FILE_LEN_MAX)?;
        tree.check_depth(parent)?;
        if caller.is_root() {
            check_ids(set)?;
        }
        let look = tree.path_fd(parent)?;
        let target = self.target(tree, parent)?;
        let wanted = self.wanted(caller, set, kind, &above);
        // The kernel gives the directory's group on by itself.
        let gid = if wanted.gid == above.gid { caller.gid } else { wanted.gid };
        let maker = UserIdentity::new(wanted.uid, gid, []);
        let mode = Mode::from_raw_mode(wanted.mode);
        let made = Made { kind, wanted: &wanted, above: &above, began: system::file_time() };
        let above_fd = look.as_fd();
        let opened = self.act_as(caller, Some(&maker), || make(above_fd, mode)).map_err(status)?;
        let (index, made) = match opened {
            Some(file) => {
                let made = stat(&file).map_err(status)?;
                self.dress_file(&file, &made, caller, &wanted, set)
                    .inspect_err(|_| self.take_back(caller, &look, name, made.fileid, AtFlags::empty()))?;
                let (index, _) = find_made(tree, parent, name, |found| found.fileid == made.fileid)?;
                let file = tree.keep_opened(index, file, true);
                (index, self.sync.then(|| (tree.id(index).fileid, file)))
            }
            None => {
                let (index, found) = find_made(tree, parent, name, |found| made.may_be(found))?;
                let flags = if kind == ObjectKind::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                // Before it gets a mode that may forbid us to open it.
                let target = self.target(tree, index).and_then(|target| {
                    if made.is_newborn(&found) {
                        self.dress(tree, index, &found, caller, &wanted, set)?;
                    }
                    Ok(target)
                });
                let target = target.inspect_err(|_| {
                    if made.is_newborn(&found) {
                        self.take_back(caller, &look, name, found.fileid, flags);
                    }
                })?;
                (index, target)
            }
        };
        self.changed.extend([target, made].into_iter().flatten());
        Ok(tree.id(index))
    }

    /// What a new object in the directory `above` should be.
    fn wanted(&self, caller: &UserIdentity, set: &Update, kind: ObjectKind, above: &Stat) -> Wanted {
        let inherits = above.mode & SET_GID != 0;
        // Like most servers: of the owner and group asked for, what the caller could not set is left out. A server
        // that is not root can set none.
        let uid = set.uid.filter(|_| caller.is_root()).unwrap_or(caller.uid);
        let own_gid = if inherits { above.gid } else { caller.gid };
        let may_belong = |gid: &u32| self.users.is_some() && (caller.is_root() || caller.in_group(*gid));
        let gid = set.gid.filter(may_belong).unwrap_or(own_gid);
        let is_directory = kind == ObjectKind::Directory;
        let mut mode = set.mode.unwrap_or(if is_directory { 0o755 } else { 0o644 }) & 0o7777;
        if !caller.is_root() && !caller.in_group(gid) {
            mode &= !SET_GID;
        }
        if is_directory && inherits {
            mode |= SET_GID;
        }
        Wanted { uid, gid, mode }
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
            return users.run(&FileUser { uid, gid, groups: &groups, privileged: false }, act);
        }
        if owner.is_none() || (uid, gid) == (0, 0) {
            return act();
        }
        users.run(&FileUser { uid, gid, groups: &[], privileged: true }, act)
    }

    /// Removes what was just made and cannot be what it should be; a failure of that cannot be reported. What
    /// somebody else put there stays; and what somebody puts there just now, unless `caller` may remove it.
    fn take_back(
        &self,
        caller: &UserIdentity,
        directory: &OwnedFd,
        name: &[u8],
        fileid: u64,
        flags: AtFlags,
    ) {
        if stat_at(directory.as_fd(), name).is_ok_and(|found| found.fileid == fileid) {
            let _ = self.act_as(caller, None, || unlinkat(directory, name, flags));
        }
    }

    /// Gives a new file what its making could not.
    fn dress_file(
        &self,
        file: &OwnedFd,
        made: &Stat,
        caller: &UserIdentity,
        wanted: &Wanted,
        set: &Update,
    ) -> Result<(), FsError> {
        if self.users.is_some() && (made.uid, made.gid) != (wanted.uid, wanted.gid) {
            let follows_directory = made.uid == wanted.uid && set.gid.is_none();
            if !follows_directory {
                change_owner(file.as_fd(), Some(wanted.uid), Some(wanted.gid))?;
            }
        }
        if let Some(size) = set.size {
            ftruncate(file, size).map_err(status)?;
        }
        // What a change of the owner took, too.
        if stat(file).map_err(status)?.mode != wanted.mode {
            self.act_as(caller, None, || system::change_mode(file.as_fd(), wanted.mode)).map_err(status)?;
        }
        set_times(file.as_fd(), set.atime, set.mtime)
    }

    /// Gives a new object that is no file what its making could not, as the caller could.
    fn dress(
        &self,
        tree: &Tree,
        index: Index,
        found: &Stat,
        caller: &UserIdentity,
        wanted: &Wanted,
        set: &Update,
    ) -> Result<(), FsError> {
        let look = tree.path_fd(index)?;
        let mut mode = found.mode;
        if self.users.is_some() && set.gid.is_some() && found.gid != wanted.gid {
            let object = look.as_fd();
            self.act_as(caller, None, || own(object, None, Some(wanted.gid))).map_err(status)?;
            mode = stat(&*look).map_err(status)?.mode;
        }
        if found.kind != ObjectKind::Symlink && mode != wanted.mode {
            let object = look.as_fd();
            self.act_as(caller, None, || system::change_mode(object, wanted.mode)).map_err(status)?;
        }
        set_times(look.as_fd(), set.atime, set.mtime)
    }
}

/// Looks up what was just made as `name`. What fails `is_made` is somebody else's.
fn find_made(
    tree: &mut Tree,
    parent: Index,
    name: &[u8],
    is_made: impl FnOnce(&Stat) -> bool,
) -> Result<(Index, Stat), FsError> {
    match tree.enter(parent, name) {
        Ok((_, found)) if !is_made(&found) => Err(FsError::Exists),
        // Somebody took the name away at once: as if it had not been made.
        Err(FsError::NotFound) => Err(FsError::Busy),
        found => found,
    }
}

pub(super) fn change_owner(file: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<(), FsError> {
    own(file, uid, gid).map_err(status)
}

fn own(file: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
    // To the kernel it means "as it is": the object would stay whose it is, and its caller be told that it is another's.
    if uid == Some(INVALID_ID) || gid == Some(INVALID_ID) {
        return Err(Errno::INVAL);
    }
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    chownat(file, c"", uid, gid, AtFlags::EMPTY_PATH)
}

pub(super) fn set_times(file: BorrowedFd<'_>, atime: TimeUpdate, mtime: TimeUpdate) -> Result<(), FsError> {
    if (atime, mtime) == (TimeUpdate::Keep, TimeUpdate::Keep) {
        return Ok(());
    }
    let time = |set| match set {
        TimeUpdate::Keep => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        TimeUpdate::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        TimeUpdate::To(time) => Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() },
    };
    let times = Timestamps { last_access: time(atime), last_modification: time(mtime) };
    utimensat(file, c"", &times, AtFlags::EMPTY_PATH).map_err(status)
}

/// The two times that keep the verifier of an exclusive CREATE, as other servers do: nothing else of a new file is
/// on stable storage and free to use. The client sets them to what they should be.
pub(super) fn verifier_times(verifier: StoreVerifier) -> (TimeUpdate, TimeUpdate) {
    let [a, b, c, d, e, f, g, h] = verifier;
    // Without the top bit: not every file system has times after 2038.
    let time = |word: [u8; 4]| {
        TimeUpdate::To(Timestamp {
            seconds: i64::from(u32::from_be_bytes(word) & 0x7fff_ffff),
            nanoseconds: 0,
        })
    };
    (time([a, b, c, d]), time([e, f, g, h]))
}
