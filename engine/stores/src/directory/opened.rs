//! What is open in a directory of the machine, how it is told from others, and what may wait in its file system.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use stag_disk::{ClosingBin, DiskFile, system};
use stag_vfs::{ObjectId, ObjectKind};

use super::object::{self, Naming, Place, Stat, object_id, open_name};

/// An open file or directory, for the reactor and its helpers.
pub(super) type File = Arc<DiskFile>;

/// What may wait in a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MayWait {
    /// All is in memory.
    Nothing,
    /// What is not in this machine's memory.
    Device,
    /// Everything: another machine or another process answers.
    Everything,
}

/// File systems whose attributes are in this machine's memory once an object is open: ext2 to ext4, XFS, Btrfs, F2FS, bcachefs, and
/// tmpfs and ramfs, which may have been swapped out.
const LOCAL: [u64; 7] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0xca45_1a4e, 0x0102_1994, 0x8584_58f6];

/// What may wait in the file system of `root`.
pub(super) fn may_wait(root: impl AsFd) -> MayWait {
    if system::is_in_memory(root.as_fd()) {
        return MayWait::Nothing;
    }
    // The kernel's numbers have 32 bits, whatever the width of their type.
    let is_local =
        rustix::fs::fstatfs(root).is_ok_and(|found| LOCAL.contains(&(found.f_type as u64 & 0xffff_ffff)));
    if is_local { MayWait::Device } else { MayWait::Everything }
}

/// Whether a file system is of a kind that may be in memory, or swapped out.
pub(super) fn is_memory_kind(root: impl AsFd) -> bool {
    rustix::fs::fstatfs(root).is_ok_and(|found| LOCAL[5..].contains(&(found.f_type as u64 & 0xffff_ffff)))
}

/// What an object is that a name was seen to lead to, open to be looked at.
#[derive(Clone, Debug)]
pub(super) struct Identified {
    pub(super) file: File,
    pub(super) id: ObjectId,
    pub(super) found: Stat,
}

/// What helps to tell objects apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    pub(super) place: Place,
    pub(super) naming: Naming,
}

/// How to open again what is open to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reopen {
    Directory,
    Read,
    Write,
}

/// Opens a name to be looked at, and says what it is.
pub(super) fn identify(
    directory: impl AsFd,
    name: &[u8],
    marks: &Marks,
    bin: Option<ClosingBin>,
) -> Result<Identified, Errno> {
    identified(open_name(directory.as_fd(), name)?, marks, bin)
}

pub(super) fn identified(
    opened: OwnedFd,
    marks: &Marks,
    bin: Option<ClosingBin>,
) -> Result<Identified, Errno> {
    let file = DiskFile::new(opened, bin);
    let found = object::stat(&file)?;
    if found.place() != marks.place {
        return Err(Errno::XDEV);
    }
    let id = object_id(file.as_fd(), c"", &found, marks.naming)?;
    Ok(Identified { file: Arc::new(file), id, found })
}

/// What was seen of an object, as the way to open it again.
pub(super) fn reopen_as(kind: ObjectKind, writable: bool) -> Result<Reopen, Errno> {
    match kind {
        ObjectKind::Directory => Ok(Reopen::Directory),
        ObjectKind::Regular if writable => Ok(Reopen::Write),
        ObjectKind::Regular => Ok(Reopen::Read),
        _ => Err(Errno::INVAL),
    }
}
