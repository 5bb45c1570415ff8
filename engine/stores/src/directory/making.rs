//! Makes objects, and sets their attributes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::fs::{
    AtFlags, FileType as Kind, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, chownat,
    ftruncate, makedev, mkdirat, mknodat, openat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use stag_disk::system::{self, FileUser};
use stag_vfs::{
    DeviceId, EntryName, FsError, GROUPS_MAX, INVALID_ID, NewAttributes, NewObject, ObjectKind, ObjectStat,
    Special, TimeUpdate, UserIdentity,
};

use super::DirectoryStore;
use super::object::{Stat, stat, stat_at, status};
use super::tree::{Index, Tree};

/// What is known of an object that was just made.
struct Made<'a> {
    kind: ObjectKind,
    wanted: &'a NewAttributes,
    /// Of the directory that it is in.
    above: &'a ObjectStat,
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
    pub(super) fn make_object(
        &mut self,
        user: &UserIdentity,
        at: EntryName<'_>,
        what: NewObject<'_>,
        wanted: &NewAttributes,
    ) -> Result<ObjectStat, FsError> {
        let EntryName { directory: above, name } = at;
        let kind = what.kind();
        let tree = &mut *self.tree.borrow_mut();
        let parent = tree.find(above.object)?;
        tree.check_depth(parent)?;
        let look = tree.path_fd(parent)?;
        let target = self.target(tree, parent)?;
        // The kernel gives the directory's group on by itself.
        let gid = if wanted.gid == above.gid { user.gid } else { wanted.gid };
        let maker = UserIdentity::new(wanted.uid, gid, []);
        let mode = Mode::from_raw_mode(wanted.mode);
        let made = Made { kind, wanted, above, began: system::file_time() };
        let above_fd = look.as_fd();
        let opened = self.act_as(user, Some(&maker), || make(above_fd, name, what, mode)).map_err(status)?;
        let (index, found, made) = match opened {
            Some(file) => {
                let made = stat(&file).map_err(status)?;
                let found = self
                    .dress_file(&file, &made, user, wanted)
                    .inspect_err(|_| self.take_back(user, &look, name, made.fileid, AtFlags::empty()))?;
                let (index, file) = tree.note_made(parent, name, file, &found).map_err(status)?;
                (index, found, self.sync.then(|| (tree.id(index).fileid, file)))
            }
            None => {
                let (index, found) = find_made(tree, parent, name, |found| made.may_be(found))?;
                let flags = if kind == ObjectKind::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                // Before it gets a mode that may forbid us to open it.
                let dressed = self.target(tree, index).and_then(|target| {
                    let found = if made.is_newborn(&found) {
                        self.dress(tree, index, &found, user, wanted)?
                    } else {
                        found
                    };
                    Ok((found, target))
                });
                let (found, target) = dressed.inspect_err(|_| {
                    if made.is_newborn(&found) {
                        self.take_back(user, &look, name, found.fileid, flags);
                    }
                })?;
                (index, found, target)
            }
        };
        self.changed.extend([target, made].into_iter().flatten());
        Ok(found.attributes(tree.id(index)))
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

    /// Gives a new file what its making could not. Returns what it is then.
    fn dress_file(
        &self,
        file: &OwnedFd,
        made: &Stat,
        user: &UserIdentity,
        wanted: &NewAttributes,
    ) -> Result<Stat, FsError> {
        let look = || stat(file).map_err(status);
        let mut found = *made;
        if self.users.is_some() && (made.uid, made.gid) != (wanted.uid, wanted.gid) {
            let follows_directory = made.uid == wanted.uid && !wanted.has_asked_gid;
            if !follows_directory {
                change_owner(file.as_fd(), Some(wanted.uid), Some(wanted.gid))?;
                found = look()?;
            }
        }
        if let Some(size) = wanted.size {
            ftruncate(file, size).map_err(status)?;
            found = look()?;
        }
        // What a change of the owner took, too.
        if found.mode != wanted.mode {
            self.act_as(user, None, || system::change_mode(file.as_fd(), wanted.mode)).map_err(status)?;
            found = look()?;
        }
        if set_times(file.as_fd(), wanted.atime, wanted.mtime)? {
            found = look()?;
        }
        Ok(found)
    }

    /// Gives a new object that is no file what its making could not, as the caller could. Returns what it is then.
    fn dress(
        &self,
        tree: &Tree,
        index: Index,
        found: &Stat,
        user: &UserIdentity,
        wanted: &NewAttributes,
    ) -> Result<Stat, FsError> {
        let look = tree.path_fd(index)?;
        let mut found = *found;
        if self.users.is_some() && wanted.has_asked_gid && found.gid != wanted.gid {
            let object = look.as_fd();
            self.act_as(user, None, || own(object, None, Some(wanted.gid))).map_err(status)?;
            found = stat(&*look).map_err(status)?;
        }
        if found.kind != ObjectKind::Symlink && found.mode != wanted.mode {
            let object = look.as_fd();
            self.act_as(user, None, || system::change_mode(object, wanted.mode)).map_err(status)?;
            found = stat(&*look).map_err(status)?;
        }
        if set_times(look.as_fd(), wanted.atime, wanted.mtime)? {
            found = stat(&*look).map_err(status)?;
        }
        Ok(found)
    }
}

/// The system call that makes an object. It gives the descriptor of a file.
fn make(
    above: BorrowedFd<'_>,
    name: &[u8],
    what: NewObject<'_>,
    mode: Mode,
) -> Result<Option<OwnedFd>, Errno> {
    let special = |kind, device| mknodat(above, name, kind, mode, device);
    let device = |number: DeviceId| makedev(number.major, number.minor);
    match what {
        NewObject::File(_) => {
            let flags = OFlags::RDWR
                .union(OFlags::CREATE)
                .union(OFlags::EXCL)
                .union(OFlags::NOFOLLOW)
                .union(OFlags::CLOEXEC);
            return openat(above, name, flags, mode).map(Some);
        }
        NewObject::Directory => mkdirat(above, name, mode),
        NewObject::Symlink(path) => symlinkat(path, above, name),
        NewObject::Special(Special::Block(number)) => special(Kind::BlockDevice, device(number)),
        NewObject::Special(Special::Character(number)) => special(Kind::CharacterDevice, device(number)),
        NewObject::Special(Special::Socket) => special(Kind::Socket, 0),
        NewObject::Special(Special::Fifo) => special(Kind::Fifo, 0),
    }
    .map(|()| None)
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

/// Sets times. `false`: there was nothing to set.
pub(super) fn set_times(file: BorrowedFd<'_>, atime: TimeUpdate, mtime: TimeUpdate) -> Result<bool, FsError> {
    if (atime, mtime) == (TimeUpdate::Keep, TimeUpdate::Keep) {
        return Ok(false);
    }
    let time = |set| match set {
        TimeUpdate::Keep => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        TimeUpdate::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        TimeUpdate::To(time) => Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() },
    };
    let times = Timestamps { last_access: time(atime), last_modification: time(mtime) };
    utimensat(file, c"", &times, AtFlags::EMPTY_PATH).map_err(status)?;
    Ok(true)
}
