//! Locks on octets of files that belong to an open file description (`F_OFD_SETLK`), not to a process.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::system::last as last_error;

/// The last octet that a lock of the kernel can name: it stands for the end of the file.
const LAST_OCTET: u64 = i64::MAX as u64;

/// Octets of a file, from the first to the last, both included, and how they are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptionLock {
    /// The first octet.
    pub first: u64,
    /// The last octet; [`u64::MAX`] stands for the end of the file.
    pub last: u64,
    /// Whether it excludes shared locks too.
    pub exclusive: bool,
}

/// The kernel's form of a lock of `kind`: exclusive or not, or none. `None`: it lies behind all octets that a file can have.
fn kernel_lock(first: u64, last: u64, kind: Option<bool>) -> Option<libc::flock> {
    let start = i64::try_from(first).ok()?;
    let kind = match kind {
        Some(true) => libc::F_WRLCK,
        Some(false) => libc::F_RDLCK,
        None => libc::F_UNLCK,
    };
    // 0 is to the end of the file.
    let len = if last >= LAST_OCTET { 0 } else { last as i64 - start + 1 };
    // SAFETY: a plain structure of the C library, for which zeros are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    (lock.l_start, lock.l_len) = (start, len);
    Some(lock)
}

/// Sets octets of `file` to exclusively locked, shared or unlocked (`kind`), for its open file description, without waiting for another's lock:
/// [`Errno::AGAIN`] or [`Errno::ACCESS`] if one is in the way. Locks end when the description is closed. It has to be open for writing to
/// lock exclusively, and for reading to share ([`Errno::BADF`]). Octets that no file can have are never locked.
pub fn set_lock(file: BorrowedFd<'_>, first: u64, last: u64, kind: Option<bool>) -> Result<(), Errno> {
    let Some(mut lock) = kernel_lock(first, last, kind) else { return Ok(()) };
    loop {
        // SAFETY: the descriptor is open, and the kernel reads a `struct flock` there.
        let status = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) };
        if status >= 0 {
            return Ok(());
        }
        match last_error() {
            Errno::INTR => {}
            error => return Err(error),
        }
    }
}

/// The lock of another open file description or process that is in the way of such a lock, if one is.
pub fn find_lock(file: BorrowedFd<'_>, wanted: &DescriptionLock) -> Result<Option<DescriptionLock>, Errno> {
    let Some(mut lock) = kernel_lock(wanted.first, wanted.last, Some(wanted.exclusive)) else {
        return Ok(None);
    };
    // SAFETY: the descriptor is open, and the kernel reads and writes a `struct flock` there.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } < 0 {
        return Err(last_error());
    }
    if i32::from(lock.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    let first = lock.l_start as u64;
    let last = if lock.l_len == 0 { u64::MAX } else { first + (lock.l_len as u64).saturating_sub(1) };
    Ok(Some(DescriptionLock { first, last, exclusive: i32::from(lock.l_type) == libc::F_WRLCK }))
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsFd;

    use stag_testing::Scratch;

    use super::*;

    /// Two open file descriptions of one file, for reading and writing, and one for reading only.
    fn files(scratch: &Scratch) -> (File, File, File) {
        let path = scratch.0.join("file");
        let open =
            || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        (open(), open(), File::open(&path).unwrap())
    }

    #[test]
    fn descriptions_exclude_each_other() {
        let scratch = Scratch::folder();
        let (one, other, reader) = files(&scratch);
        let everything = DescriptionLock { first: 0, last: u64::MAX, exclusive: true };
        assert_eq!(set_lock(one.as_fd(), 10, 19, Some(true)), Ok(()));
        assert_eq!(set_lock(other.as_fd(), 19, 30, Some(false)), Err(Errno::AGAIN));
        assert_eq!(set_lock(other.as_fd(), 20, u64::MAX, Some(true)), Ok(()));
        assert_eq!(
            find_lock(one.as_fd(), &everything),
            Ok(Some(DescriptionLock { first: 20, ..everything }))
        );
        let held = DescriptionLock { first: 10, last: 19, exclusive: true };
        assert_eq!(find_lock(reader.as_fd(), &held), Ok(Some(held)));
        assert_eq!(set_lock(one.as_fd(), 12, 19, None), Ok(()));
        assert_eq!(set_lock(one.as_fd(), 10, 11, Some(false)), Ok(()));
        let shared = DescriptionLock { first: 10, last: 11, exclusive: false };
        assert_eq!(find_lock(other.as_fd(), &held), Ok(Some(shared)));
        assert_eq!(find_lock(other.as_fd(), &shared), Ok(None), "both share");
        drop(one);
        assert_eq!(find_lock(other.as_fd(), &held), Ok(None));
        assert_eq!(set_lock(reader.as_fd(), 0, 0, Some(true)), Err(Errno::BADF));
        assert_eq!(set_lock(reader.as_fd(), 0, 0, Some(false)), Ok(()));
    }

    /// The kernel's offsets have 63 bits.
    #[test]
    fn the_last_octets_are_the_end_of_the_file() {
        let scratch = Scratch::folder();
        let (one, other, _) = files(&scratch);
        assert_eq!(set_lock(one.as_fd(), LAST_OCTET, LAST_OCTET, Some(true)), Ok(()));
        let end = DescriptionLock { first: LAST_OCTET, last: u64::MAX, exclusive: true };
        assert_eq!(find_lock(other.as_fd(), &end), Ok(Some(end)));
        assert_eq!(set_lock(other.as_fd(), 0, LAST_OCTET - 1, Some(true)), Ok(()));
        let beyond = DescriptionLock { first: LAST_OCTET + 1, last: u64::MAX, exclusive: true };
        assert_eq!(set_lock(one.as_fd(), beyond.first, beyond.last, Some(true)), Ok(()));
        assert_eq!(find_lock(other.as_fd(), &beyond), Ok(None));
    }
}
