//! SETATTR.

use std::os::fd::AsFd;

use rustix::fs::ftruncate;
use stag_disk::system;
use stag_vfs::{FsError, ObjectId, ObjectKind, Timestamp, Update, UserIdentity, settable};

use super::DirectoryStore;
use super::making::{change_owner, set_times};
use super::object::{Stat, status};
use super::permit::{SET_GID, without_privileges};

/// Sets attributes as `caller`. What can be taken back is done first, so that what may fail with good reason (no space,
/// too large) leaves nothing behind.
pub(super) fn set(
    store: &mut DirectoryStore,
    caller: &UserIdentity,
    object: ObjectId,
    set: &Update,
    guard: Option<Timestamp>,
) -> Result<(), FsError> {
    let tree = &mut *store.tree.borrow_mut();
    let (index, found) = tree.find_stat(object)?;
    if guard.is_some_and(|ctime| ctime != found.ctime) {
        return Err(FsError::NotSame);
    }
    let set = &settable(found.kind, set);
    found.check_set(caller, set)?;
    let look = tree.path_fd(index)?;
    // Even if only a part of it is done.
    store.changed.extend(store.target(tree, index)?);
    // What cannot be opened cannot be cut.
    let file = set.size.map(|size| Ok((tree.reopen(index, true)?, size))).transpose().map_err(status)?;

    let changes = |wanted: Option<u32>, is: u32| wanted.filter(|wanted| *wanted != is);
    let (uid, gid) = (changes(set.uid, found.uid), changes(set.gid, found.gid));
    let (changes_owner, mode) = (uid.is_some() || gid.is_some(), new_mode(&found, caller, set));
    if changes_owner {
        change_owner(look.as_fd(), uid, gid)?;
    }
    let rest = || {
        // After the owner, whose change ends privileges: a mode that was asked for counts.
        if let Some(mode) = mode {
            system::change_mode(look.as_fd(), mode).map_err(status)?;
        }
        if let Some((file, size)) = &file {
            ftruncate(&**file, *size).map_err(status)?;
        }
        // After the size, whose change sets a time.
        set_times(look.as_fd(), set.atime, set.mtime)
    };
    rest().inspect_err(|_| {
        // If that fails too, it cannot be reported: the Reply shows the attributes as they are.
        if changes_owner {
            let _ = change_owner(look.as_fd(), uid.map(|_| found.uid), gid.map(|_| found.gid));
        }
        if (changes_owner || mode.is_some()) && found.kind != ObjectKind::Symlink {
            let _ = system::change_mode(look.as_fd(), found.mode);
        }
    })
}

/// The mode that a change leads to; `None`: the one that it is.
fn new_mode(found: &Stat, caller: &UserIdentity, set: &Update) -> Option<u32> {
    let changed_data = set.size.is_some() && !caller.is_root();
    let changed_owner = (set.uid.is_some() || set.gid.is_some()) && !found.is_directory();
    match set.mode {
        Some(mode) => {
            let outsider = !caller.is_root() && !caller.in_group(set.gid.unwrap_or(found.gid));
            Some(mode & 0o7777 & if outsider { !SET_GID } else { !0 })
        }
        None if changed_data || changed_owner => without_privileges(found.mode),
        None => None,
    }
}
