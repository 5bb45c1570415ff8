//! Makes objects.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::fs::{
    AtFlags, FileType as Kind, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, chownat,
    ftruncate, makedev, mkdirat, mknodat, openat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use stag_disk::{ClosingBin, DiskFile, system};
use stag_vfs::{
    DeviceId, FsError, INVALID_ID, NewAttributes, NewObject, ObjectId, ObjectKind, ObjectStat, Special,
    TimeUpdate, UserIdentity,
};

use super::acl::{AclKind, acl_status, read_acl};
use super::actor::{Actor, MadeObject, SyncTarget, open_to_sync};
use super::object::{Stat, object_id, stat, stat_at, status};
use super::opened::{File, Identified, Marks, identify, reopen_as};

/// The bits of a mode that a umask or a default list may take.
const PERMISSIONS: u32 = 0o777;

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

/// An object to make.
///
/// Between two system calls, who may write the directory on the server may exchange the name for another. So the
/// object is made as its owner and with its mode in one system call, and nothing is given to what has the
/// name afterwards. What one system call cannot give (set-id bits, what umask took, times, a group) goes to the
/// descriptor of a file, which is the file whatever its name; and of anything else only to what was born since.
pub(super) struct Make {
    pub(super) user: UserIdentity,
    /// The directory, open and as it was seen.
    pub(super) look: File,
    pub(super) above: ObjectStat,
    pub(super) name: Box<[u8]>,
    pub(super) what: NewKind,
    pub(super) wanted: NewAttributes,
    pub(super) target: SyncTarget,
    /// Whether the object has to be synced too.
    pub(super) syncs: bool,
    pub(super) marks: Marks,
}

/// What kind of object to make, with what that takes.
pub(super) enum NewKind {
    File,
    Directory,
    Symlink(Box<[u8]>),
    Special(Special),
}

impl NewKind {
    pub(super) fn new(what: NewObject<'_>) -> NewKind {
        match what {
            NewObject::File(_) => NewKind::File,
            NewObject::Directory => NewKind::Directory,
            NewObject::Symlink(path) => NewKind::Symlink(path.into()),
            NewObject::Special(special) => NewKind::Special(special),
        }
    }

    fn kind(&self) -> ObjectKind {
        match self {
            NewKind::File => ObjectKind::Regular,
            NewKind::Directory => ObjectKind::Directory,
            NewKind::Symlink(_) => ObjectKind::Symlink,
            NewKind::Special(special) => special.kind(),
        }
    }
}

impl Make {
    /// Makes it.
    pub(super) fn run(
        self,
        actor: &Actor,
        bin: Option<&ClosingBin>,
        targets: &mut ArrayVec<(ObjectId, File), 2>,
    ) -> Result<MadeObject, FsError> {
        let Make { user, look, above, name, what, wanted, target, syncs, marks } = self;
        let (kind, name, look) = (what.kind(), &*name, look.as_fd());
        targets.extend(target);
        // The kernel gives the directory's group on by itself.
        let gid = if wanted.gid == above.gid { user.gid } else { wanted.gid };
        let maker = UserIdentity::new(wanted.uid, gid, []);
        let mode = Mode::from_raw_mode(wanted.mode);
        let began = system::file_time();
        let made = Made { kind, wanted: &wanted, above: &above, began };
        let dresser = Dresser { actor, user: &user, wanted: &wanted, above: look };
        let opened = actor.act_as(&user, Some(&maker), || make(look, name, &what, mode)).map_err(status);
        match opened.inspect_err(|_| targets.clear())? {
            Some(opened) => {
                let first = stat(&opened).map_err(status)?;
                let found = dresser
                    .dress_file(&opened, &first)
                    .inspect_err(|_| take_back(actor, &user, look, name, first.fileid, AtFlags::empty()))?;
                if found.place() != marks.place {
                    return Err(FsError::CrossDevice);
                }
                let file: File = Arc::new(DiskFile::new(opened, bin.cloned()));
                let id = object_id(file.as_fd(), c"", &found, marks.naming).map_err(status)?;
                if syncs {
                    targets.push((id, file.clone()));
                }
                Ok(MadeObject { identified: Identified { file, id, found }, opened: None })
            }
            None => {
                let mut identified = match identify(look, name, &marks, bin.cloned()) {
                    Ok(found) if !made.may_be(&found.found) => return Err(FsError::Exists),
                    // Somebody took the name away at once: as if it had not been made.
                    Err(Errno::NOENT) => return Err(FsError::Busy),
                    found => found.map_err(status)?,
                };
                let found = identified.found;
                let flags = if kind == ObjectKind::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                // Before it gets a mode that may forbid us to open it.
                let how = reopen_as(found.kind, false).ok().filter(|_| syncs);
                let opened = how.map_or(Ok(None), |how| open_to_sync(&identified.file, how, bin));
                let dressed = opened.and_then(|opened| {
                    let is_newborn = made.is_newborn(&found);
                    let found = if is_newborn { dresser.dress(&identified.file, &found)? } else { found };
                    Ok((found, opened))
                });
                let (found, opened) = dressed.inspect_err(|_| {
                    if made.is_newborn(&found) {
                        take_back(actor, &user, look, name, found.fileid, flags);
                    }
                })?;
                identified.found = found;
                targets.extend(opened.iter().map(|file| (identified.id, file.clone())));
                Ok(MadeObject { identified, opened })
            }
        }
    }
}

/// Removes what was just made and cannot be what it should be; a failure of that cannot be reported. What
/// somebody else put there stays; and what somebody puts there just now, unless `caller` may remove it.
fn take_back(
    actor: &Actor,
    caller: &UserIdentity,
    directory: BorrowedFd<'_>,
    name: &[u8],
    fileid: u64,
    flags: AtFlags,
) {
    if stat_at(directory, name).is_ok_and(|found| found.fileid == fileid) {
        let _ = actor.act_as(caller, None, || unlinkat(directory, name, flags));
    }
}

/// Gives new objects what their making could not.
struct Dresser<'a> {
    actor: &'a Actor,
    user: &'a UserIdentity,
    wanted: &'a NewAttributes,
    /// The directory.
    above: BorrowedFd<'a>,
}

impl Dresser<'_> {
    /// The mode that it should have. What a default list of its directory took from the permissions, it does not get back.
    fn mode(&self, made: &Stat) -> Result<u32, FsError> {
        let wanted = self.wanted.mode;
        if (made.mode ^ wanted) & PERMISSIONS == 0 {
            return Ok(wanted);
        }
        // Else it was the umask.
        let inherits = match read_acl(self.above, AclKind::Default) {
            Ok(default) => default.is_some(),
            Err(Errno::OPNOTSUPP) => false,
            Err(error) => return Err(acl_status(error)),
        };
        Ok(if inherits { wanted & !PERMISSIONS | made.mode & PERMISSIONS } else { wanted })
    }

    /// Gives it to a file. Returns what that is then.
    fn dress_file(&self, file: &OwnedFd, made: &Stat) -> Result<Stat, FsError> {
        let wanted = self.wanted;
        let look = || stat(file).map_err(status);
        let mut found = *made;
        if self.actor.is_anybody() && (made.uid, made.gid) != (wanted.uid, wanted.gid) {
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
        let mode = self.mode(made)?;
        if found.mode != mode {
            let act = || system::change_mode(file.as_fd(), mode);
            self.actor.act_as(self.user, None, act).map_err(status)?;
            found = look()?;
        }
        if set_times(file.as_fd(), wanted.atime, wanted.mtime)? {
            found = look()?;
        }
        Ok(found)
    }

    /// Gives it to an object that is no file, as the caller could. Returns what that is then.
    fn dress(&self, object: &File, found: &Stat) -> Result<Stat, FsError> {
        let wanted = self.wanted;
        let object = object.as_fd();
        let is_symlink = found.kind == ObjectKind::Symlink;
        let mode = if is_symlink { found.mode } else { self.mode(found)? };
        let mut found = *found;
        if self.actor.is_anybody() && wanted.has_asked_gid && found.gid != wanted.gid {
            self.actor.act_as(self.user, None, || own(object, None, Some(wanted.gid))).map_err(status)?;
            found = stat(object).map_err(status)?;
        }
        if found.mode != mode && !is_symlink {
            let act = || system::change_mode(object, mode);
            self.actor.act_as(self.user, None, act).map_err(status)?;
            found = stat(object).map_err(status)?;
        }
        if set_times(object, wanted.atime, wanted.mtime)? {
            found = stat(object).map_err(status)?;
        }
        Ok(found)
    }
}

/// The system call that makes an object. It gives the descriptor of a file.
fn make(above: BorrowedFd<'_>, name: &[u8], what: &NewKind, mode: Mode) -> Result<Option<OwnedFd>, Errno> {
    let special = |kind, device| mknodat(above, name, kind, mode, device);
    let device = |number: DeviceId| makedev(number.major, number.minor);
    match what {
        NewKind::File => {
            let flags = OFlags::RDWR
                .union(OFlags::CREATE)
                .union(OFlags::EXCL)
                .union(OFlags::NOFOLLOW)
                .union(OFlags::CLOEXEC);
            return openat(above, name, flags, mode).map(Some);
        }
        NewKind::Directory => mkdirat(above, name, mode),
        NewKind::Symlink(path) => symlinkat(&**path, above, name),
        NewKind::Special(Special::Block(number)) => special(Kind::BlockDevice, device(*number)),
        NewKind::Special(Special::Character(number)) => special(Kind::CharacterDevice, device(*number)),
        NewKind::Special(Special::Socket) => special(Kind::Socket, 0),
        NewKind::Special(Special::Fifo) => special(Kind::Fifo, 0),
    }
    .map(|()| None)
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
