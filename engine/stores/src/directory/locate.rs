//! Where an object is of which only the number is known, if the kernel opens it by its file handle.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use stag_disk::{ClosingBin, DiskFile, system};
use stag_vfs::{ObjectId, ObjectKind};

use super::object::{handles, stat};
use super::opened::{File, Identified, Marks, identify};

/// The longest way that is told: deeper objects are searched for.
const WAY_MAX: usize = 128;

/// What the kernel says of a file handle.
pub(super) enum Located {
    /// The names that lead to it, and what each of them was.
    Found(Vec<(Box<[u8]>, Identified)>),
    /// There is no such object any more, or it is not in the export.
    Gone,
    /// It does not say, or not where.
    Unknown,
    /// It opens none for us, now and later.
    Refused(Errno),
}

/// Lets the kernel open an object, if it does so for us, and walks to where it is.
pub(super) fn locate(
    mount: &File,
    root: &File,
    id: ObjectId,
    marks: &Marks,
    bin: Option<&ClosingBin>,
) -> Located {
    // A name that is not in the kernel's words: no handle can be put together.
    let mut is_gone = false;
    for handle in handles(id) {
        is_gone = true;
        match system::open_by_handle(mount.as_fd(), &handle) {
            Ok(opened) => match stat(&opened) {
                Ok(found) if found.fileid == id.fileid => {
                    return walk_to(root, id, &opened, found.kind, marks, bin);
                }
                // Laid out in another file system's way, it is another object's.
                Ok(_) => {}
                Err(_) => return Located::Unknown,
            },
            Err(Errno::STALE) => {}
            // For a moment.
            Err(Errno::NOMEM | Errno::MFILE | Errno::NFILE | Errno::INTR) => return Located::Unknown,
            // Without the capability, or where a file system has no handles, that is how it is.
            Err(error) => return Located::Refused(error),
        }
    }
    if is_gone { Located::Gone } else { Located::Unknown }
}

/// Walks to an object that the kernel has opened.
fn walk_to(
    root: &File,
    id: ObjectId,
    opened: &OwnedFd,
    kind: ObjectKind,
    marks: &Marks,
    bin: Option<&ClosingBin>,
) -> Located {
    // What /proc says is only a hint: each name is looked up, and has to lead to the object. Of an object with
    // several names it says one; of a file that was not used since the machine started, none.
    let (Some(path), Some(top)) = (path_of(opened.as_raw_fd()), path_of(root.as_raw_fd())) else {
        return Located::Unknown;
    };
    let Ok(below) = path.strip_prefix(&top) else {
        // A directory has one place, and the kernel knows it.
        let is_outside = kind == ObjectKind::Directory && path.is_absolute() && top.is_absolute();
        return if is_outside { Located::Gone } else { Located::Unknown };
    };
    let mut way: Vec<(Box<[u8]>, Identified)> = Vec::new();
    let mut at: Arc<DiskFile> = root.clone();
    for component in below.components() {
        let Component::Normal(name) = component else { return Located::Unknown };
        if way.len() == WAY_MAX {
            return Located::Unknown;
        }
        match identify(&*at, name.as_bytes(), marks, bin.cloned()) {
            Ok(found) => {
                at = found.file.clone();
                way.push((name.as_bytes().into(), found));
            }
            Err(_) => return Located::Unknown,
        }
    }
    match way.last() {
        Some((_, last)) if last.id == id => Located::Found(way),
        _ => Located::Unknown,
    }
}

/// Where the kernel says that a descriptor leads.
fn path_of(descriptor: i32) -> Option<PathBuf> {
    let link = format!("/proc/self/fd/{descriptor}");
    let path = rustix::fs::readlink(Path::new(OsStr::new(&link)), Vec::new()).ok()?;
    Some(PathBuf::from(std::ffi::OsString::from_vec(path.into_bytes())))
}
