//! Limits of a file system that it does not report: they are tried once, when the store is made.

use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags, fstatvfs, ftruncate, openat};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use stag_disk::{DiskFile, system};
use stag_vfs::{NAME_LEN_MAX, PATH_LEN_MAX, StoreLimits};

/// The largest file, in bytes: what a kernel's offset can say.
pub(super) const FILE_LEN_MAX: u64 = i64::MAX as u64;

/// Hard links where the file system does not say how many.
const LINKS_MAX: u32 = 65_000;

/// The limits of the file system that the directory `root` is in.
pub(super) fn of(root: &DiskFile) -> StoreLimits {
    let name_len_max = fstatvfs(root).map_or(NAME_LEN_MAX, |found| {
        u32::try_from(found.f_namemax).unwrap_or(NAME_LEN_MAX).clamp(1, NAME_LEN_MAX)
    });
    StoreLimits {
        file_len_max: file_len_max(root),
        links_max: system::links_max(root.as_fd()).unwrap_or(LINKS_MAX),
        name_len_max,
        path_len_max: PATH_LEN_MAX,
    }
}

/// The largest file, by making one without a name that large, and no octet in it. Where none can be made (a file system
/// that is read-only, or has none such) it is what a kernel's offset can say.
fn file_len_max(root: &DiskFile) -> u64 {
    // Beyond its own limit the kernel would send a signal.
    let own = getrlimit(Resource::Fsize).current.unwrap_or(FILE_LEN_MAX);
    let most = own.min(FILE_LEN_MAX);
    let flags = OFlags::TMPFILE.union(OFlags::RDWR).union(OFlags::CLOEXEC);
    let Ok(file) = openat(root, c".", flags, Mode::from_raw_mode(0o600)) else { return most };
    let (mut least, mut most) = (0, most);
    // Half of what is left each time; the largest is the likeliest.
    let mut tried = most;
    while least < most {
        match ftruncate(&file, tried) {
            Ok(()) => least = tried,
            Err(Errno::FBIG | Errno::INVAL) => most = tried - 1,
            Err(_) => return most,
        }
        tried = least + (most - least).div_ceil(2);
    }
    least
}
