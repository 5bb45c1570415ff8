//! Some entries of a directory, as a helper reads them.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use rustix::fs::{OFlags, RawDir, SeekFrom, seek};
use rustix::io::Errno;
use stag_vfs::ObjectId;

use super::object::{Stat, object_id, open_with, stat_at};
use super::opened::{File, Marks};

/// Octets of entries that a helper reads at a time: not much more than what a client asks for.
const ASKED_CHUNK_LEN: usize = 8 << 10;

/// Some entries of a directory, one after the other.
pub(super) struct Chunk {
    pub(super) entries: Vec<Entry>,
    /// Whether the last entry of the directory is among them.
    pub(super) is_last: bool,
}

/// One of them.
pub(super) struct Entry {
    pub(super) name: Box<[u8]>,
    pub(super) fileid: u64,
    pub(super) cookie: u64,
    /// What it is, if that was asked for, and it is of this file system. An object's name is its own only if it is not `.` or `..`.
    pub(super) found: Option<(ObjectId, Stat)>,
}

/// Reads entries after a cookie. [`Errno::INVAL`]: there is no such cookie.
pub(super) fn read_chunk(
    looked: &File,
    cookie: u64,
    attributes: bool,
    marks: &Marks,
) -> Result<Chunk, Errno> {
    // A descriptor has one place, so this is one of its own.
    let file = open_with(looked.as_fd(), b".", OFlags::RDONLY.union(OFlags::DIRECTORY))?;
    seek(&file, SeekFrom::Start(cookie)).map_err(|_| Errno::INVAL)?;
    let mut space = [MaybeUninit::uninit(); ASKED_CHUNK_LEN];
    let mut read = RawDir::new(&file, &mut space);
    let mut chunk = Chunk { entries: Vec::new(), is_last: false };
    loop {
        let Some(entry) = read.next() else {
            chunk.is_last = true;
            return Ok(chunk);
        };
        let entry = entry?;
        let (name, fileid) = (entry.file_name(), entry.ino());
        let found = if attributes { glance(&file, name, marks).ok() } else { None };
        chunk.entries.push(Entry {
            name: name.to_bytes().into(),
            fileid,
            cookie: entry.next_entry_cookie(),
            found,
        });
        if read.is_buffer_empty() {
            return Ok(chunk);
        }
    }
}

/// What a name is.
pub(super) fn glance(directory: impl AsFd, name: &CStr, marks: &Marks) -> Result<(ObjectId, Stat), Errno> {
    let found = stat_at(directory.as_fd(), name)?;
    if found.place() != marks.place {
        return Err(Errno::XDEV);
    }
    let id = object_id(directory.as_fd(), name, &found, marks.naming)?;
    Ok((id, found))
}
