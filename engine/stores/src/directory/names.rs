//! Changes of names: REMOVE, RMDIR, RENAME, LINK.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, renameat, unlinkat};
use rustix::io::Errno;
use stag_vfs::{EntryName, FsError, ObjectKind, ObjectStat, RenameSeen, UserIdentity};

use super::DirectoryStore;
use super::object::{link_open, name_status, status};

/// The status of an error when a directory is removed or replaced.
fn directory_status(error: Errno) -> FsError {
    match error {
        // What some file systems say of a directory that is not empty.
        Errno::EXIST => FsError::NotEmpty,
        error => name_status(error),
    }
}

impl DirectoryStore {
    /// Removes a name as `user`: if it was exchanged since, for what the user may not remove, the kernel refuses.
    pub(super) fn remove_name(
        &mut self,
        user: &UserIdentity,
        EntryName { directory, name }: EntryName<'_>,
        seen: &ObjectStat,
    ) -> Result<(), FsError> {
        let tree = &mut *self.tree.borrow_mut();
        let index = tree.find(directory.object)?;
        let look = tree.path_fd(index)?;
        let target = self.target(tree, index)?;
        let above = look.as_fd();
        let is_directory = seen.kind == ObjectKind::Directory;
        if is_directory {
            let removed = self.act_as(user, None, || unlinkat(above, name, AtFlags::REMOVEDIR));
            removed.map_err(directory_status)?;
        } else {
            self.act_as(user, None, || unlinkat(above, name, AtFlags::empty())).map_err(name_status)?;
        }
        self.changed.extend(target);
        let fileid = seen.object.fileid;
        tree.forget_name(index, name, fileid, is_directory || seen.nlink <= 1);
        self.unsynced.forget_deleted(fileid);
        Ok(())
    }

    /// Renames as `user`.
    pub(super) fn change_name(
        &mut self,
        user: &UserIdentity,
        EntryName { directory: from_directory, name: from }: EntryName<'_>,
        EntryName { directory: to_directory, name: to }: EntryName<'_>,
        RenameSeen { moved, replaced }: RenameSeen<'_>,
    ) -> Result<(), FsError> {
        let tree = &mut *self.tree.borrow_mut();
        let source = tree.find(from_directory.object)?;
        let source_look = tree.path_fd(source)?;
        let target = tree.find(to_directory.object)?;
        let target_look = tree.path_fd(target)?;
        tree.check_depth(target)?;
        let targets = [self.target(tree, source)?, self.target(tree, target)?];
        let (source_fd, target_fd) = (source_look.as_fd(), target_look.as_fd());
        let renamed = self.act_as(user, None, || renameat(source_fd, from, target_fd, to));
        renamed.map_err(directory_status)?;
        self.changed.extend(targets.into_iter().flatten());
        if let Some(replaced) = replaced {
            let was_last = replaced.kind == ObjectKind::Directory || replaced.nlink <= 1;
            tree.forget_name(target, to, replaced.object.fileid, was_last);
            self.unsynced.forget_deleted(replaced.object.fileid);
        }
        let id = tree.known(moved.object.fileid).map(|index| tree.id(index));
        tree.forget_name(source, from, moved.object.fileid, false);
        if let Some(id) = id {
            tree.note(target, to, id, moved.kind);
        }
        Ok(())
    }

    /// Gives an object one more name.
    pub(super) fn add_name(
        &mut self,
        seen: &ObjectStat,
        EntryName { directory, name }: EntryName<'_>,
    ) -> Result<(), FsError> {
        let tree = &mut *self.tree.borrow_mut();
        let parent = tree.find(directory.object)?;
        let look = tree.path_fd(parent)?;
        tree.check_depth(parent)?;
        let index = tree.find(seen.object)?;
        let targets = [self.target(tree, index)?, self.target(tree, parent)?];
        // By its descriptor, not by a name that may be another's by now.
        link_open(tree.path_fd(index)?.as_fd(), look.as_fd(), name).map_err(status)?;
        self.changed.extend(targets.into_iter().flatten());
        tree.note(parent, name, seen.object, seen.kind);
        Ok(())
    }
}
