//! Listing a directory, by the kernel's own cookies: they stay good while entries come and go, and after a restart.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use rustix::fs::{RawDir, SeekFrom, seek};
use stag_vfs::{FsError, ListStart, Listed, ObjectId};

use super::object::{stat, stat_at, status};
use super::tree::Tree;

/// Octets of entries that the kernel gives at a time.
const CHUNK_LEN: usize = 16 << 10;

pub(super) fn list(
    tree: &mut Tree,
    directory: ObjectId,
    start: ListStart,
    visit: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<bool, FsError> {
    let index = tree.find(directory)?;
    let file = tree.reopen(index, false).map_err(status)?;
    // A descriptor has one place, and others may have listed in between.
    seek(&*file, SeekFrom::Start(start.cookie)).map_err(|_| FsError::BadCookie)?;
    let mut space = [MaybeUninit::uninit(); CHUNK_LEN];
    let mut entries = RawDir::new(&*file, &mut space);
    while let Some(entry) = entries.next() {
        let entry = entry.map_err(status)?;
        let name = entry.file_name().to_bytes();
        // Every file system has positive ones; 0 would be taken for the beginning.
        let cookie = entry.next_entry_cookie();
        let (object, attributes) = match name {
            b"." | b".." => {
                let index = if name == b"." { index } else { tree.parent(index) };
                let attributes = match tree.path_fd(index) {
                    _ if !start.attributes => None,
                    Ok(look) => stat(&*look).ok(),
                    // The directory above was closed, to make room for others. The name may lead elsewhere by now.
                    Err(_) => {
                        let found = stat_at(file.as_fd(), name).ok();
                        found.filter(|found| {
                            (found.fileid, found.place()) == (tree.id(index).fileid, tree.place())
                        })
                    }
                };
                (tree.id(index), attributes)
            }
            name if start.attributes => match tree.glance(index, name) {
                Ok((object, found)) => (object, Some(found)),
                // Another file system, or gone by now: its name only.
                Err(_) => (ObjectId { fileid: entry.ino(), generation: 0 }, None),
            },
            _ => (ObjectId { fileid: entry.ino(), generation: 0 }, None),
        };
        let attributes = attributes.map(|found| found.attributes(object));
        if !visit(Listed { object, name, cookie, attributes }) {
            return Ok(false);
        }
    }
    Ok(true)
}
