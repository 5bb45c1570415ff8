//! What the machine does around an exported directory: file systems whose files cannot be told apart for good, and what is
//! mounted over an export.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FsWord, Mode, OFlags, fstatfs, openat};
use rustix::io::Errno;

use stag_vfs::FsError;

use super::object::{Naming, Stat, stat};
use super::opened::is_memory_kind;

/// The kernel's number for overlay file systems.
const OVERLAYFS: FsWord = 0x794c_7630;

/// FUSE and FAT: of most, a file's handle is of its place in the kernel's memory, and is another once the file has left it.
const FORGETFUL: [FsWord; 2] = [0x6573_5546, 0x4d44];

/// Why file handles of a directory's clients may not last as long as the files. The text says what can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandleWeakness {
    /// An overlay that gives its files no handles: only the time of birth is left, and a copied file has a new one.
    #[error(
        "this overlay gives no file handles (it takes Linux 6.6, and layers that have them): clients' handles of a file \
         become stale when it is first written and therefore copied up; mount the overlay with \
         index=on,nfs_export=on, or export a volume of another file system"
    )]
    CopyUp,
    /// A file system with neither handles nor times of birth: a number that is used again leads to the new file.
    #[error(
        "this file system gives neither file handles nor times of birth: a client's handle of a deleted file may lead \
         to a new one; export a directory of another file system, such as ext4 or XFS"
    )]
    NumberOnly,
    /// A file system whose file handles may change when a file leaves the kernel's memory.
    #[error(
        "this file system is FUSE or FAT: many of these give a file another handle when it has left the kernel's memory, \
         and then clients' handles become stale; ceph-fuse keeps its handles; of others, export a directory of another \
         file system, such as ext4 or XFS"
    )]
    Forgetful,
}

/// What is wrong with the file handles that clients of the directory at `path` would have, if something is.
pub fn handle_weakness(path: &Path) -> Result<Option<HandleWeakness>, Errno> {
    let flags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
    let root = openat(CWD, path, flags, Mode::empty())?;
    let kind = fstatfs(&root)?.f_type;
    Ok(match Naming::of(root.as_fd()) {
        _ if FORGETFUL.contains(&kind) => Some(HandleWeakness::Forgetful),
        Naming::Handle | Naming::Identifier => None,
        Naming::Birth if kind == OVERLAYFS => Some(HandleWeakness::CopyUp),
        Naming::Birth => stat(&root)?.born().is_none().then_some(HandleWeakness::NumberOnly),
    })
}

/// Whether the directory at `path` may be on stable storage. What is in a tmpfs or a ramfs is not, and there a sync does nothing:
/// [`DirectoryConfig::sync`](super::DirectoryConfig::sync) would only take time.
#[must_use]
pub fn has_stable_storage(path: &Path) -> bool {
    let flags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
    openat(CWD, path, flags, Mode::empty()).map_or(true, |root| !is_memory_kind(&root))
}

/// Where an exported directory was when it was opened.
pub(super) struct ExportPlace {
    path: PathBuf,
    /// Whether it was there no longer when that was last checked.
    is_displaced: Cell<bool>,
}

impl ExportPlace {
    pub(super) fn new(path: &Path) -> ExportPlace {
        ExportPlace { path: path.to_owned(), is_displaced: Cell::new(false) }
    }

    /// Where that is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Fails unless what was `found` there is the directory with this number, in this [volume](super::object::Place::volume): the log says so
    /// once. The directory is open, so nothing else gets its number.
    pub(super) fn check(&self, found: Result<Stat, Errno>, fileid: u64, volume: u64) -> Result<(), FsError> {
        let is_there = match found {
            Ok(found) => (found.fileid, found.place().volume()) == (fileid, volume),
            Err(error) => !matches!(error, Errno::NOENT | Errno::NOTDIR),
        };
        let was_displaced = self.is_displaced.replace(!is_there);
        if is_there {
            return Ok(());
        }
        if !was_displaced {
            tracing::warn!(
                "directory {}: another one is there since the start (something is mounted on it, or it was moved), so \
                 MNT is refused; start the server again",
                self.path.display()
            );
        }
        Err(FsError::Fault)
    }
}
