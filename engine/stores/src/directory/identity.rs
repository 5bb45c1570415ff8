//! Recognises an exported directory.
//!
//! Handles hold a number of their file system, next to the object's own. It must be the same in every run, wherever the
//! export stands in the list; and it must differ when something else is exported under the same name: objects of two file
//! systems often have the same numbers (their roots nearly always).

use std::os::fd::BorrowedFd;

use rustix::fs::{FsWord, fstatfs, fstatvfs};
use rustix::io::Errno;

use super::object::{Naming, hash, stat};
use stag_vfs::ObjectId;

/// File systems whose `f_fsid` comes from the UUID that is written on them: ext2, ext3, ext4, and btrfs. Those of others are
/// device numbers, which may change with a restart of the machine.
const WITH_UUID: [FsWord; 2] = [0xef53, 0x9123_683e];

/// Identifies a directory that is exported as `name`, whose root is this object: by the name, by the object, by the time
/// when it was made (unless the directory may be copied up, which makes it younger), and by its file system.
pub(super) fn identity(name: u64, root: BorrowedFd<'_>, object: ObjectId) -> Result<u64, Errno> {
    let is_copied_up = Naming::of(root) == Naming::Identifier;
    let born = stat(root)?.born().filter(|_| !is_copied_up).unwrap_or_default();
    let has_uuid = WITH_UUID.contains(&fstatfs(root)?.f_type);
    let file_system = if has_uuid { fstatvfs(root)?.f_fsid } else { 0 };
    let (born_s, born_ns) = (born.as_secs(), born.subsec_nanos());
    let words = [name, object.fileid, object.generation, born_s, born_ns.into(), file_system];
    let octets: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    // Small numbers are for stores in memory.
    Ok(hash(&octets) | 1 << 63)
}
