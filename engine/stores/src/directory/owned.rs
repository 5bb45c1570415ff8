//! Opens a file whose mode forbids that to its owner.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use stag_disk::system;

use super::object::stat;

/// The bit of a mode with which a program runs as its group.
const SET_GID: u32 = 0o2000;

/// Opens a file that its mode forbids its owner to open: who opened it before it took the permission from itself may
/// go on, and an NFS server cannot see an open file (RFC 1813 section 4.4). If we are not the owner, it stays
/// forbidden.
///
/// Only a server that is not root comes here, for a file of its own. The kernel has no other way for it: for a
/// moment the mode lets the owner read and write, and the change time becomes now. If the process dies in that moment, the
/// mode stays so.
pub(super) fn open_as_owner(
    looked: impl AsFd,
    open: impl FnOnce() -> Result<OwnedFd, Errno>,
) -> Result<OwnedFd, Errno> {
    let before = stat(&looked)?;
    // The kernel would take the bit away, and not let us give it back.
    if before.mode & SET_GID != 0 && !has_group(before.gid) {
        return Err(Errno::ACCESS);
    }
    system::change_mode(looked.as_fd(), before.mode | 0o600).map_err(|_| Errno::ACCESS)?;
    let opened = open();
    system::change_mode(looked.as_fd(), before.mode)?;
    opened
}

/// Whether this process belongs to a group.
fn has_group(gid: u32) -> bool {
    let groups = rustix::process::getgroups().unwrap_or_default();
    rustix::process::getegid().as_raw() == gid || groups.iter().any(|group| group.as_raw() == gid)
}
