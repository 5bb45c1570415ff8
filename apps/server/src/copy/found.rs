//! The kind of an existing file, and the attributes that a copy can keep.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use stag_wire::nfs3::{Attributes, FileType, SetAttributes, SetTime, Time};

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Folder,
    Link,
    /// What is not copied: its name.
    Other(&'static str),
}

/// Permission bits.
pub(super) const MODE_MASK: u32 = 0o777;

/// Set-user-ID, set-group-ID and sticky bit.
pub(super) const SPECIAL_MASK: u32 = 0o7000;

/// The two of them that say as whom a program runs.
pub(super) const SET_ID_MASK: u32 = 0o6000;

/// A file's attributes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) kind: Kind,
    /// Permission bits and the special ones.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size: u64,
    /// Names that it has.
    pub(super) names: u64,
    /// Which file it is there: file system and number.
    pub(super) id: (u64, u64),
    /// It takes less space than its size.
    pub(super) is_sparse: bool,
    /// Last access and last change of the data: seconds since 1970, and nanoseconds.
    pub(super) times: [(i64, u32); 2],
}

impl Found {
    /// What is at a path of this machine; `None` if there is nothing.
    pub(super) fn local(path: &Path, follow: bool) -> io::Result<Option<Found>> {
        let metadata = if follow { fs::metadata(path) } else { fs::symlink_metadata(path) };
        match metadata {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            metadata => Ok(Some(Found::of_metadata(&metadata?))),
        }
    }

    pub(super) fn of_metadata(metadata: &Metadata) -> Found {
        let file_type = metadata.file_type();
        let kind = match () {
            () if file_type.is_file() => Kind::File,
            () if file_type.is_dir() => Kind::Folder,
            () if file_type.is_symlink() => Kind::Link,
            () if file_type.is_socket() => Kind::Other("socket"),
            () if file_type.is_fifo() => Kind::Other("pipe"),
            () => Kind::Other("device"),
        };
        Found {
            kind,
            mode: metadata.mode() & (MODE_MASK | SPECIAL_MASK),
            uid: metadata.uid(),
            gid: metadata.gid(),
            size: metadata.len(),
            names: metadata.nlink(),
            id: (metadata.dev(), metadata.ino()),
            is_sparse: metadata.blocks().saturating_mul(512) < metadata.len(),
            times: [
                (metadata.atime(), metadata.atime_nsec() as u32),
                (metadata.mtime(), metadata.mtime_nsec() as u32),
            ],
        }
    }

    pub(super) fn of_attributes(attributes: &Attributes) -> Found {
        let kind = match attributes.file_type {
            FileType::Regular => Kind::File,
            FileType::Directory => Kind::Folder,
            FileType::Symlink => Kind::Link,
            FileType::Socket => Kind::Other("socket"),
            FileType::Fifo => Kind::Other("pipe"),
            FileType::Block | FileType::Character => Kind::Other("device"),
        };
        let time = |time: Time| (i64::from(time.seconds), time.nanoseconds);
        Found {
            kind,
            mode: attributes.mode & (MODE_MASK | SPECIAL_MASK),
            uid: attributes.uid,
            gid: attributes.gid,
            size: attributes.size,
            names: u64::from(attributes.nlink),
            id: (attributes.fsid, attributes.fileid),
            is_sparse: attributes.used < attributes.size,
            times: [time(attributes.atime), time(attributes.mtime)],
        }
    }

    /// The times as a server takes them. `None`: NFS version 3 cannot say them (before 1970, or after 2106).
    pub(super) fn server_times(&self) -> Option<[SetTime; 2]> {
        let [accessed, modified] = self.times.map(|(seconds, nanoseconds)| {
            let seconds = u32::try_from(seconds).ok()?;
            Some(SetTime::ClientTime(Time { seconds, nanoseconds }))
        });
        Some([accessed?, modified?])
    }
}

/// Sets the mode, and the times if they can be said.
pub(super) fn mode_and_times(found: &Found, mode: u32) -> SetAttributes {
    let [atime, mtime] = found.server_times().unwrap_or_default();
    SetAttributes { mode: Some(mode), atime, mtime, ..SetAttributes::default() }
}
