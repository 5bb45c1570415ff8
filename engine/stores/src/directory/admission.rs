//! Admits or refuses READs and WRITEs. A READ of cached data, and a WRITE to a file system in memory, are performed when they
//! arrive. Others are admitted together, once in a pass.
//!
//! In a pass the file is examined after the last of them arrived and before the first is performed. So the result is as true for
//! each as if the file had been examined for that one alone.

use std::sync::Arc;

use stag_disk::AtOnce;
use stag_memory::Shared;
use stag_vfs::{Acl, FsError, ObjectId, ReadDone, Stability, UserIdentity, WriteData, WriteDone, policy};

use super::DirectoryStore;
use super::object::{Stat, status};
use super::opened::File;
use super::seen::Seen;
use super::transfer::Asked;
use super::tree::Tree;

/// The access control list of a file that was just `found`, if it matters to `user`.
#[inline]
fn access_acl(
    tree: &mut Tree,
    keeps_lists: bool,
    user: &UserIdentity,
    object: ObjectId,
    found: &Stat,
) -> Result<Option<Arc<Acl>>, FsError> {
    let matters = keeps_lists && policy::acl_matters(user, &found.guarded());
    if matters { tree.access_acl(object, found.ctime) } else { Ok(None) }
}

/// Opens a file that `user` may read, as it was `seen`; and says how long it is.
#[inline]
fn open_to_read(
    tree: &mut Tree,
    seen: &mut Seen,
    keeps_lists: bool,
    user: &UserIdentity,
    object: ObjectId,
) -> Result<(File, u64), FsError> {
    let (index, found) = seen.find_stat(tree, object)?;
    policy::check_is_file(found.kind)?;
    let acl = access_acl(tree, keeps_lists, user, object, found)?;
    policy::admit_read(user, &found.guarded(), || acl.as_deref())?;
    Ok((tree.reopen(index, false).map_err(status)?, found.size))
}

impl DirectoryStore {
    /// Admits or refuses the transfers that were asked for: what a file is counts for all of them that are there now. What
    /// changes names or attributes admits first those that came before it.
    pub(super) fn admit(&mut self) {
        if self.transfers.has_asked() {
            // The operation in hand goes on with its own answers.
            let answers = self.kernel.take_answers();
            while let Some(asked) = self.transfers.next_asked() {
                self.admit_one(asked);
            }
            self.kernel.resume(answers);
            self.asked.clear();
        }
    }

    pub(super) fn admit_read(
        &mut self,
        Asked { index: transfer, object, user, .. }: &Asked,
    ) -> Result<(), FsError> {
        let tree = self.tree.get_mut();
        let (file, size) = open_to_read(tree, &mut self.asked, self.keeps_lists, user, *object)?;
        self.transfers.admit_read(*transfer, file, size);
        Ok(())
    }

    /// Performs a READ, if it waits neither for the file system nor for a device. `None`: the READ has to be queued.
    pub(super) fn read_now(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        (offset, count): (u64, u32),
        pieces: &mut Vec<Shared>,
    ) -> Option<Result<ReadDone, FsError>> {
        if self.transfers.disk().at_once() == AtOnce::None || self.kernel.has_answers() {
            return None;
        }
        // Earlier transfers are begun first.
        self.admit();
        // What the file was just before it was read is what its reader is told of it.
        let seen = self.finished.get_mut();
        seen.clear();
        let opened = open_to_read(self.tree.get_mut(), seen, self.keeps_lists, user, object);
        if self.kernel.take_missing().is_some() {
            seen.clear();
            return None;
        }
        match opened {
            Ok((file, size)) => self.transfers.read_now(&file, size, (offset, count), pieces),
            Err(error) => Some(Err(error)),
        }
    }

    pub(super) fn admit_write(&mut self, asked: &Asked, stable: Stability) -> Result<(), FsError> {
        let Asked { index: transfer, object, user, .. } = asked;
        let is_empty = self.transfers.is_empty(*transfer);
        match self.open_to_write(user, *object, stable, is_empty)? {
            Some((file, stable)) => self.transfers.admit_write(*transfer, file, stable),
            None => assert!(self.transfers.end_if_empty(*transfer), "an empty WRITE ends at once"),
        }
        self.sync_oldest();
        Ok(())
    }

    /// Performs a WRITE, if it waits for nothing. `None`: the WRITE has to be queued.
    pub(super) fn write_now(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        offset: u64,
        data: &WriteData<'_>,
        stable: Stability,
    ) -> Option<Result<WriteDone, FsError>> {
        if self.transfers.disk().at_once() != AtOnce::All || self.kernel.has_answers() {
            return None;
        }
        // Earlier transfers are begun first.
        self.admit();
        let opened = self.open_to_write(user, object, stable, data.is_empty());
        self.asked.clear();
        // Attributes from before the WRITE are out of date.
        self.finished.get_mut().clear();
        if self.kernel.take_missing().is_some() {
            return None;
        }
        let (file, stable) = match opened {
            Ok(Some(opened)) => opened,
            Ok(None) => return Some(Ok(WriteDone { count: 0, committed: stable })),
            Err(error) => return Some(Err(error)),
        };
        let failures = self.transfers.failures();
        let written = self.transfers.write_now(&file, offset, data, stable);
        self.suspect_others(failures, object.fileid);
        self.sync_oldest();
        written
    }

    /// Opens a file that `user` may write to. Returns the file and the stability of the WRITE, which may be higher than the
    /// client asked for. An unstable WRITE takes a place in `unsynced`. `None`: the WRITE is empty.
    fn open_to_write(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        stable: Stability,
        is_empty: bool,
    ) -> Result<Option<(File, Stability)>, FsError> {
        let tree = self.tree.get_mut();
        let (index, found) = self.asked.find_stat(tree, object)?;
        policy::check_is_file(found.kind)?;
        let acl = access_acl(tree, self.keeps_lists, user, object, found)?;
        policy::admit_write(user, &found.guarded(), || acl.as_deref())?;
        if is_empty {
            return Ok(None);
        }
        let kept = self.unsynced.descriptor(object);
        let has_place = kept.is_some() || self.unsynced.has_room();
        let file = kept.map_or_else(|| tree.reopen(index, true), Ok).map_err(status)?;
        // Before the data, as in the kernel: the new contents must not run as the owner of the file.
        if let Some(mode) = policy::mode_after_write(user, found.mode) {
            let look = tree.open_to_look(index).map_err(status)?;
            self.kernel.set_mode(&look, mode).map_err(status)?;
            self.asked.clear();
        }
        // Without a place for its descriptor, a loss of data before COMMIT would go unnoticed.
        let stable = if has_place || stable != Stability::Unstable { stable } else { Stability::FileSync };
        if stable == Stability::Unstable {
            self.unsynced.begin_write(object, file.clone());
        }
        Ok(Some((file, stable)))
    }

    /// If a WRITE just noted a loss (`failures` is the count from before it), others that are under way to the same file may
    /// have lost their data as well.
    pub(super) fn suspect_others(&mut self, failures: u64, fileid: u64) {
        if failures != self.transfers.failures() && self.writing.contains(fileid) {
            self.unsynced.suspect(fileid);
        }
    }
}
