//! The kernel's view of an object in the words of NFS: its number, its attributes, and errors.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FileType as Kind, IFlags, Mode, OFlags, ResolveFlags, StatVfsMountFlags, Statx, StatxFlags,
    StatxTimestamp, fstatvfs, ioctl_getflags, linkat, openat, openat2, statx,
};
use rustix::io::Errno;
use rustix::path::Arg;
use stag_disk::system::{self, FileHandle};
use stag_vfs::{DeviceId, FsError, Guarded, ObjectId, ObjectKind, ObjectStat, Timestamp};

/// What an object is at this moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stat {
    pub(super) fileid: u64,
    pub(super) kind: ObjectKind,
    /// Permission bits.
    pub(super) mode: u32,
    pub(super) nlink: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size: u64,
    used: u64,
    device: DeviceId,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
    /// When it was made, if the file system knows.
    born: Option<Timestamp>,
    place: Place,
}

/// The file system and the mount that an object was found in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    device: (u32, u32),
    mount: u64,
}

const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME).union(StatxFlags::MNT_ID);

/// What `file` is, which may be opened to be looked at only.
pub(super) fn stat(file: impl AsFd) -> Result<Stat, Errno> {
    statx(file, c"", AtFlags::EMPTY_PATH, WANTED).and_then(|found| Stat::new(&found))
}

/// What is at `path` now, to which symbolic links may lead.
pub(super) fn stat_path(path: &Path) -> Result<Stat, Errno> {
    statx(CWD, path, AtFlags::NO_AUTOMOUNT, WANTED).and_then(|found| Stat::new(&found))
}

/// What `name` in `directory` is; a symbolic link is itself.
pub(super) fn stat_at(directory: BorrowedFd<'_>, name: impl Arg) -> Result<Stat, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW.union(AtFlags::NO_AUTOMOUNT);
    statx(directory, name, flags, WANTED).and_then(|found| Stat::new(&found))
}

impl Place {
    /// The file system, as a number that no other of this machine has.
    pub(super) fn volume(&self) -> u64 {
        let (major, minor) = self.device;
        // Small numbers are for stores in memory.
        u64::from(major) << 32 | u64::from(minor) | 1 << 63
    }
}

impl Stat {
    fn new(found: &Statx) -> Result<Stat, Errno> {
        let kind = match Kind::from_raw_mode(found.stx_mode.into()) {
            Kind::RegularFile => ObjectKind::Regular,
            Kind::Directory => ObjectKind::Directory,
            Kind::Symlink => ObjectKind::Symlink,
            Kind::BlockDevice => ObjectKind::Block,
            Kind::CharacterDevice => ObjectKind::Character,
            Kind::Fifo => ObjectKind::Fifo,
            Kind::Socket => ObjectKind::Socket,
            _ => return Err(Errno::IO),
        };
        let has_birth = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        Ok(Stat {
            fileid: found.stx_ino,
            kind,
            mode: u32::from(found.stx_mode) & 0o7777,
            nlink: found.stx_nlink,
            uid: found.stx_uid,
            gid: found.stx_gid,
            size: found.stx_size,
            used: found.stx_blocks.saturating_mul(512),
            device: DeviceId { major: found.stx_rdev_major, minor: found.stx_rdev_minor },
            atime: time(&found.stx_atime),
            mtime: time(&found.stx_mtime),
            ctime: time(&found.stx_ctime),
            born: has_birth.then(|| time(&found.stx_btime)),
            place: Place { device: (found.stx_dev_major, found.stx_dev_minor), mount: found.stx_mnt_id },
        })
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// When it was made, if the file system knows.
    pub(super) fn born_at(&self) -> Option<Timestamp> {
        self.born
    }

    /// The same, since 1970.
    pub(super) fn born(&self) -> Option<Duration> {
        self.born?.since_epoch()
    }

    /// When it was made, if that identifies it together with its number: it was before this moment, so what gets the number
    /// after this object is born later.
    pub(super) fn settled_birth(&self) -> Option<Timestamp> {
        self.born.filter(|_| self.born().is_some_and(|born| born < system::file_time()))
    }

    pub(super) fn is_directory(&self) -> bool {
        self.kind == ObjectKind::Directory
    }

    pub(super) fn guarded(&self) -> Guarded {
        Guarded { mode: self.mode, uid: self.uid, gid: self.gid, is_directory: self.is_directory() }
    }

    /// The attributes, as those of the object of this name.
    pub(super) fn attributes(&self, object: ObjectId) -> ObjectStat {
        ObjectStat {
            object,
            kind: self.kind,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            size: self.size,
            used: self.used,
            device: self.device,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            may_have_acl: self.kind != ObjectKind::Symlink,
            born: self.born,
            change: self.ctime.as_change(),
        }
    }
}

fn time(found: &StatxTimestamp) -> Timestamp {
    Timestamp { seconds: found.tv_sec, nanoseconds: found.tv_nsec }
}

/// Opens one name in `directory` to be looked at only: a symbolic link is itself, and what another file system is
/// mounted on is refused ([`Errno::XDEV`]).
pub(super) fn open_name(directory: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    open_with(directory, name, OFlags::PATH)
}

/// As [`open_name`], if the kernel has in memory what the name leads to, or that it leads nowhere. [`Errno::AGAIN`]: it has not.
pub(super) fn open_cached(directory: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let resolve = RESOLVE.union(ResolveFlags::CACHED);
    let flags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
    match openat2(directory, name, flags, Mode::empty(), resolve) {
        // Before Linux 5.12, or a container's filter: it cannot be told.
        Err(Errno::INVAL | Errno::NOSYS | Errno::PERM) => Err(Errno::AGAIN),
        opened => opened,
    }
}

/// One name, of the same file system and mount.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Opens again what is open to be looked at, to be read or written: the very same, whatever its name leads to by now.
/// [`Errno::NOENT`]: there is no /proc.
pub(super) fn open_again(object: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", object.as_raw_fd());
    let flags = flags.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
    openat(CWD, path, flags, Mode::empty())
}

/// Opens one name in `directory`, as [`open_name`] does, to be read or written. Never waits for the other end of a
/// pipe, and never takes a terminal.
pub(super) fn open_with(directory: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut flags = flags.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
    if !flags.contains(OFlags::PATH) {
        flags |= OFlags::NONBLOCK.union(OFlags::NOCTTY);
    }
    match openat2(directory, name, flags, Mode::empty(), RESOLVE) {
        // Before Linux 5.6, or a container's filter. One name without a slash is as safe, but for mounts, which
        // the place tells.
        Err(Errno::NOSYS | Errno::PERM) => openat(directory, name, flags, Mode::empty()),
        // Also `AGAIN`: a name was moved at the same time; the kernel could not be sure.
        opened => opened,
    }
}

/// How a file system lays its handles out, as far as we can put them together again.
struct Layout {
    kind: i32,
    len: usize,
    /// Where the number of the file is, and how many octets it has.
    fileid: (usize, usize),
    /// Where the four octets are that tell the files of one number apart.
    generation: usize,
}

/// Of most file systems: ext2, ext3, ext4, f2fs; tmpfs; XFS.
const LAYOUTS: [Layout; 3] = [
    Layout { kind: 1, len: 8, fileid: (0, 4), generation: 4 },
    Layout { kind: 1, len: 12, fileid: (4, 8), generation: 0 },
    Layout { kind: 0x81, len: 12, fileid: (0, 8), generation: 8 },
];

/// The kind of an overlay's identifiers (`OVL_FILEID_V1`): the handle of the first layer that had the file.
const OVERLAY_IDENTIFIER: i32 = 0xf8;

/// A generation that is not one of a known layout has this bit.
const HASHED: u64 = 1 << 63;

impl Layout {
    fn handle(&self, object: ObjectId) -> FileHandle {
        let mut octets = [0; 16];
        let (at, len) = self.fileid;
        octets[at..at + len].copy_from_slice(&object.fileid.to_le_bytes()[..len]);
        octets[self.generation..][..4].copy_from_slice(&(object.generation as u32).to_le_bytes());
        FileHandle::new(self.kind, &octets[..self.len])
    }
}

/// What tells an object from others that had its number before or will have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// The kernel's file handle.
    Handle,
    /// What the kernel would write in a file handle if it could open one: an overlay keeps it when a file is copied up.
    Identifier,
    /// The time of birth, if the file system tells one.
    Birth,
}

impl Naming {
    /// How objects of the file system are named that `root` is in.
    pub(super) fn of(root: BorrowedFd<'_>) -> Naming {
        if system::file_handle(root, c"").is_ok() {
            return Naming::Handle;
        }
        // Identifiers of other kinds hold the number only, so the time of birth tells more: that is what other file
        // systems give, and an overlay whose layers have no file handles.
        if system::file_identifier(root, c"").is_ok_and(|found| found.kind() == OVERLAY_IDENTIFIER) {
            Naming::Identifier
        } else {
            Naming::Birth
        }
    }
}

/// The name of an object for good: its number, and what tells it from others that had the number before or will.
///
/// That is the kernel's own generation, if the file system shows it in its file handles; otherwise a hash of
/// what `naming` says.
pub(super) fn object_id(
    directory: BorrowedFd<'_>,
    name: &CStr,
    stat: &Stat,
    naming: Naming,
) -> Result<ObjectId, Errno> {
    let fileid = stat.fileid;
    let handle = match naming {
        Naming::Handle => system::file_handle(directory, name),
        Naming::Identifier => system::file_identifier(directory, name),
        Naming::Birth => Err(Errno::OPNOTSUPP),
    };
    let generation = match handle {
        Ok(handle) => generation(&handle, fileid),
        // For a moment, or gone by now: with the other kind of name it would be another object.
        Err(error @ (Errno::NOMEM | Errno::INTR | Errno::NOENT | Errno::STALE | Errno::IO)) => {
            return Err(error);
        }
        Err(_) => stat.born.map_or(HASHED, |Timestamp { seconds, nanoseconds }| {
            hash(&[&seconds.to_le_bytes()[..], &nanoseconds.to_le_bytes()[..]].concat()) | HASHED
        }),
    };
    Ok(ObjectId { fileid, generation })
}

fn generation(handle: &FileHandle, fileid: u64) -> u64 {
    for layout in &LAYOUTS {
        let fits = layout.fileid.1 == 8 || fileid <= u64::from(u32::MAX);
        if fits
            && (layout.kind, layout.len) == (handle.kind(), handle.octets().len())
            && let Some(generation) = handle.octets()[layout.generation..].first_chunk()
        {
            let generation = u64::from(u32::from_le_bytes(*generation));
            if layout.handle(ObjectId { fileid, generation }).octets() == handle.octets() {
                return generation;
            }
        }
    }
    hash(handle.octets()) | HASHED
}

/// What the kernel could be asked to open for `object`: at most one is right, and that has to be checked.
pub(super) fn handles(object: ObjectId) -> impl Iterator<Item = FileHandle> {
    let layouts = if object.generation & HASHED == 0 { &LAYOUTS[..] } else { &[] };
    layouts.iter().map(move |layout| layout.handle(object))
}

/// FNV-1a, 64 bits: the same in every process and version, which std's hashes do not promise. A party that
/// could gain by a collision does not choose the input.
pub(super) fn hash(octets: &[u8]) -> u64 {
    octets
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, octet| (sum ^ u64::from(*octet)).wrapping_mul(0x0100_0000_01b3))
}

/// Whether the file system or the mount that `file` is in takes no changes.
pub(super) fn is_read_only(file: impl AsFd) -> bool {
    fstatvfs(file).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Whether every write to a file is a synchronous one, because it is marked so, or its file system is mounted so.
pub(super) fn is_synchronous(file: impl AsFd) -> bool {
    let file = file.as_fd();
    fstatvfs(file).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::SYNCHRONOUS))
        || ioctl_getflags(file).is_ok_and(|flags| flags.contains(IFlags::SYNC))
}

/// Gives an open object one more name.
pub(super) fn link_open(object: BorrowedFd<'_>, directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    match linkat(object, c"", directory, name, AtFlags::EMPTY_PATH) {
        // Without the capability for it: by the name that /proc has for the descriptor.
        Err(Errno::NOENT) => {
            let path = format!("/proc/self/fd/{}", object.as_raw_fd());
            linkat(CWD, path, directory, name, AtFlags::SYMLINK_FOLLOW)
        }
        linked => linked,
    }
}

/// The status of an error when a name is removed or changed.
pub(super) fn name_status(error: Errno) -> FsError {
    match error {
        // Something is mounted there: it will not be over in a moment.
        Errno::BUSY => FsError::CrossDevice,
        error => status(error),
    }
}

/// The status of an error.
pub(super) fn status(error: Errno) -> FsError {
    match error {
        Errno::PERM => FsError::NotPermitted,
        Errno::NOENT => FsError::NotFound,
        Errno::NXIO => FsError::NoAddress,
        Errno::ACCESS => FsError::AccessDenied,
        Errno::EXIST => FsError::Exists,
        Errno::XDEV => FsError::CrossDevice,
        Errno::NODEV => FsError::NoDevice,
        Errno::NOTDIR => FsError::NotDirectory,
        Errno::ISDIR => FsError::IsDirectory,
        Errno::INVAL | Errno::LOOP => FsError::Invalid,
        Errno::FBIG => FsError::TooLarge,
        Errno::NOSPC => FsError::NoSpace,
        Errno::ROFS => FsError::ReadOnly,
        Errno::MLINK => FsError::TooManyLinks,
        Errno::NAMETOOLONG => FsError::NameTooLong,
        Errno::NOTEMPTY => FsError::NotEmpty,
        Errno::DQUOT => FsError::OverQuota,
        Errno::STALE => FsError::Stale,
        Errno::OPNOTSUPP => FsError::NotSupported,
        // For a moment: descriptors, memory, a race. A program that runs (`TXTBSY`) may run for years.
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::BUSY => FsError::Busy,
        _ => FsError::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_layout_comes_apart_and_together_again() {
        let object = ObjectId { fileid: 0x0102_0304, generation: 0x0a0b_0c0d };
        for layout in &LAYOUTS {
            let handle = layout.handle(object);
            assert_eq!(generation(&handle, object.fileid), object.generation);
            assert!(handles(object).any(|other| other.octets() == handle.octets()));
        }
        // Another number in it: not to be trusted, but still a name.
        let handle = LAYOUTS[0].handle(object);
        let other = generation(&handle, 77);
        assert_ne!(other & HASHED, 0);
        assert_eq!(handles(ObjectId { fileid: 77, generation: other }).count(), 0);
        // A number that does not fit the four octets.
        let large = ObjectId { fileid: 1 << 40, generation: 1 };
        assert_ne!(generation(&LAYOUTS[0].handle(large), large.fileid) & HASHED, 0);
    }
}
