//! Gives copies the attributes of their sources (`--preserve`).
//!
//! As cp(1): the owner first, since a change of owner clears the set-ID bits; if the owner cannot be kept,
//! neither are these bits, because they would name another user.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use stag_wire::nfs3::{SetAttributes, Status};

use super::found::{Found, Kind, SET_ID_MASK, SPECIAL_MASK, mode_and_times};
use super::report::Copied;
use crate::remote::session::Session;
use crate::remote::{RemoteError, RemoteHandle};

/// Opens a folder of this machine itself, not what a link leads to.
pub(super) fn open_folder(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(path)
}

/// Sets the mode of an open file.
pub(super) fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?)
}

/// Sets the mode of a server's file.
pub(super) async fn set_remote_mode(
    session: &Session,
    file: &RemoteHandle,
    mode: u32,
) -> Result<(), RemoteError> {
    session.set(file, SetAttributes { mode: Some(mode), ..SetAttributes::default() }).await.map(drop)
}

/// The times of a file, as system calls take them.
fn timestamps(found: &Found) -> Timestamps {
    let [last_access, last_modification] =
        found.times.map(|(seconds, nanoseconds)| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ });
    Timestamps { last_access, last_modification }
}

/// Whether an error says that this user may not give files away.
fn is_not_permitted(error: Errno) -> bool {
    matches!(error, Errno::PERM | Errno::INVAL | Errno::NOTSUP)
}

/// The mode of a copy whose owner could not be kept. Counts what is lost.
fn without_owner(copied: &RefCell<Copied>, found: &Found) -> u32 {
    let not_kept = &mut copied.borrow_mut().not_kept;
    not_kept.owners += 1;
    not_kept.special_bits += u64::from(found.mode & SET_ID_MASK != 0);
    found.mode & !SET_ID_MASK
}

/// Makes an open file of this machine, which has `owner`, like `found`.
pub(super) fn local(
    copied: &RefCell<Copied>,
    file: &File,
    owner: (u32, u32),
    found: &Found,
) -> io::Result<()> {
    let mut mode = found.mode;
    if owner != (found.uid, found.gid) {
        let (uid, gid) = (Uid::from_raw(found.uid), Gid::from_raw(found.gid));
        match rustix::fs::fchown(file, Some(uid), Some(gid)) {
            Err(error) if is_not_permitted(error) => {
                // The group alone may do.
                let _ = rustix::fs::fchown(file, None, Some(gid));
                mode = without_owner(copied, found);
            }
            given => given?,
        }
    }
    set_mode(file, mode)?;
    Ok(rustix::fs::futimens(file, &timestamps(found))?)
}

/// The same for a symbolic link, which has no mode.
pub(super) fn local_link(copied: &RefCell<Copied>, path: &Path, found: &Found) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(found.uid), Gid::from_raw(found.gid));
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    match rustix::fs::chownat(rustix::fs::CWD, path, Some(uid), Some(gid), flags) {
        Err(error) if is_not_permitted(error) => copied.borrow_mut().not_kept.owners += 1,
        given => given?,
    }
    Ok(rustix::fs::utimensat(rustix::fs::CWD, path, &timestamps(found), flags)?)
}

/// Makes a server's file, which has `owner`, like `found`.
pub(super) async fn remote(
    copied: &RefCell<Copied>,
    session: &Session,
    file: &RemoteHandle,
    owner: (u32, u32),
    found: &Found,
) -> Result<(), RemoteError> {
    let mut mode = found.mode;
    if owner != (found.uid, found.gid) {
        let (uid, gid) = (Some(found.uid), Some(found.gid));
        match session.set(file, SetAttributes { uid, gid, ..SetAttributes::default() }).await {
            Err(RemoteError::Status(Status::Perm | Status::Acces | Status::Inval | Status::NotSupp)) => {
                // The group alone may do.
                if owner.1 != found.gid {
                    let _ = session.set(file, SetAttributes { gid, ..SetAttributes::default() }).await;
                }
                mode = without_owner(copied, found);
            }
            given => drop(given?),
        }
    }
    let mut wanted = mode_and_times(found, mode);
    if found.kind == Kind::Link {
        wanted.mode = None;
    }
    let after = session.set(file, wanted).await?;
    let not_kept = &mut copied.borrow_mut().not_kept;
    not_kept.times += u64::from(found.server_times().is_none());
    // A server may drop set-ID bits without a word.
    let is_dropped = after.is_some_and(|after| after.mode & SPECIAL_MASK != mode & SPECIAL_MASK);
    not_kept.special_bits += u64::from(wanted.mode.is_some() && is_dropped);
    Ok(())
}
