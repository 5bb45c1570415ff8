//! Listing a directory, by the kernel's own cookies: they stay good while entries come and go, and after a restart.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use rustix::fs::{RawDir, SeekFrom, seek};
use rustix::io::Errno;
use stag_vfs::{FsError, ListStart, Listed, ObjectId};

use super::chunk::Entry;
use super::index::{Index, ROOT};
use super::object::{stat, stat_at, status};
use super::tree::Tree;

/// Octets of entries that the kernel gives at a time.
const CHUNK_LEN: usize = 4 << 10;

/// Shows the entries after a cookie; see [`stag_vfs::Store::list`].
pub(super) fn list(
    tree: &mut Tree,
    directory: ObjectId,
    start: ListStart,
    visit: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<bool, FsError> {
    let index = tree.find(directory)?;
    if tree.kernel().is_immediate() {
        list_now(tree, index, start, visit)
    } else {
        list_by_chunks(tree, index, start, visit)
    }
}

fn list_now(
    tree: &mut Tree,
    index: Index,
    start: ListStart,
    visit: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<bool, FsError> {
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
            _ if start.attributes => match tree.glance(index, entry.file_name()) {
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

/// The same, by what helpers have read.
fn list_by_chunks(
    tree: &mut Tree,
    index: Index,
    start: ListStart,
    visit: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<bool, FsError> {
    let looked = tree.open_to_look(index).map_err(status)?;
    let mut cookie = start.cookie;
    loop {
        let chunk = match tree.kernel().chunk(&looked, cookie, start.attributes) {
            Ok(chunk) => chunk,
            // Nothing else of it is about a cookie.
            Err(Errno::INVAL) => return Err(FsError::BadCookie),
            Err(error) => return Err(status(error)),
        };
        for Entry { name, fileid, cookie: next, found } in &chunk.entries {
            cookie = *next;
            let (object, attributes) = match (&**name, found) {
                (b"." | b"..", found) => {
                    let of = if **name == *b"." { index } else { tree.parent(index) };
                    let object = tree.id(of);
                    // Above the root is nothing that is exported: it is above itself.
                    let is_known = of == ROOT || tree.kernel().knows_what_is_open();
                    let found = match tree.path_fd(of) {
                        _ if !start.attributes => None,
                        Ok(look) if is_known => tree.kernel().stat(&look).ok(),
                        _ => found.map(|(_, found)| found).filter(|found| found.fileid == object.fileid),
                    };
                    (object, found)
                }
                (name, Some((object, found))) => {
                    tree.note(index, name, *object, found.kind);
                    (*object, Some(*found))
                }
                (_, None) => (ObjectId { fileid: *fileid, generation: 0 }, None),
            };
            let attributes = attributes.map(|found| found.attributes(object));
            if !visit(Listed { object, name, cookie, attributes }) {
                return Ok(false);
            }
        }
        if chunk.is_last {
            return Ok(true);
        }
    }
}
