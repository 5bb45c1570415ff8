//! SETATTR.

use std::os::fd::AsFd;

use rustix::fs::ftruncate;
use stag_disk::system;
use stag_vfs::{FsError, ObjectKind, ObjectStat, Update};

use super::DirectoryStore;
use super::making::{change_owner, set_times};
use super::object::status;

/// Sets attributes of an object that was `seen` so. What can be taken back is done first, so that what may fail with good reason
/// (no space, too large) leaves nothing behind.
pub(super) fn set(store: &mut DirectoryStore, seen: &ObjectStat, set: &Update) -> Result<(), FsError> {
    let tree = &mut *store.tree.borrow_mut();
    let index = tree.find(seen.object)?;
    let look = tree.path_fd(index)?;
    // Even if only a part of it is done.
    store.changed.extend(store.target(tree, index)?);
    // What cannot be opened cannot be cut.
    let file = set.size.map(|size| Ok((tree.reopen(index, true)?, size))).transpose().map_err(status)?;

    let changes = |wanted: Option<u32>, is: u32| wanted.filter(|wanted| *wanted != is);
    let (uid, gid) = (changes(set.uid, seen.uid), changes(set.gid, seen.gid));
    let (changes_owner, mode) = (uid.is_some() || gid.is_some(), set.mode);
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
        set_times(look.as_fd(), set.atime, set.mtime).map(drop)
    };
    rest().inspect_err(|_| {
        // If that fails too, it cannot be reported: the Reply shows the attributes as they are.
        if changes_owner {
            let _ = change_owner(look.as_fd(), uid.map(|_| seen.uid), gid.map(|_| seen.gid));
        }
        if (changes_owner || mode.is_some()) && seen.kind != ObjectKind::Symlink {
            let _ = system::change_mode(look.as_fd(), seen.mode);
        }
    })
}
