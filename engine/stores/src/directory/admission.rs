//! Admits or refuses READs and WRITEs: a READ of what is in memory as it comes, and others once in a pass, for all that came in it.
//!
//! In a pass the file is examined after the last of them came and before the first is done. So the result is as true for each as
//! if the file had been examined for that one alone. WRITEs always share that look: for one of its own, and another one afterwards,
//! they would pay more than their Replies gain from being sent at once.

use std::sync::Arc;

use stag_vfs::{Acl, FsError, ObjectId, Stability, UserIdentity, policy};

use super::DirectoryStore;
use super::object::{Stat, status};
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

impl DirectoryStore {
    /// Admits or refuses the transfers that were asked for: what a file is counts for all of them that are there now. What
    /// changes names or attributes admits first those that came before it.
    pub(super) fn admit(&mut self) {
        self.admit_asked();
        self.asked.clear();
    }

    /// As [`DirectoryStore::admit`]; what the files are is still known afterwards.
    pub(super) fn admit_asked(&mut self) {
        if self.transfers.has_asked() {
            // The operation in hand goes on with its own answers.
            let answers = self.kernel.take_answers();
            while let Some(asked) = self.transfers.next_asked() {
                self.admit_one(asked);
            }
            self.kernel.resume(answers);
        }
    }

    pub(super) fn admit_read(
        &mut self,
        Asked { index: transfer, object, user, .. }: &Asked,
    ) -> Result<(), FsError> {
        let tree = self.tree.get_mut();
        let (index, found) = self.asked.find_stat(tree, *object)?;
        policy::check_is_file(found.kind)?;
        let acl = access_acl(tree, self.keeps_lists, user, *object, &found)?;
        policy::admit_read(user, &found.guarded(), || acl.as_deref())?;
        let file = tree.reopen(index, false).map_err(status)?;
        self.transfers.admit_read(*transfer, file, found.size);
        Ok(())
    }

    pub(super) fn admit_write(&mut self, asked: &Asked, stable: Stability) -> Result<(), FsError> {
        let Asked { index: transfer, object, user, .. } = asked;
        let tree = self.tree.get_mut();
        let (index, found) = self.asked.find_stat(tree, *object)?;
        policy::check_is_file(found.kind)?;
        let acl = access_acl(tree, self.keeps_lists, user, *object, &found)?;
        policy::admit_write(user, &found.guarded(), || acl.as_deref())?;
        if self.transfers.end_if_empty(*transfer) {
            return Ok(());
        }
        let kept = self.unsynced.descriptor(*object);
        let has_place = kept.is_some() || self.unsynced.has_room();
        let file = kept.map_or_else(|| tree.reopen(index, true), Ok).map_err(status)?;
        // Before the data, as the kernel does: what is in the file must not run as its owner any more.
        if let Some(mode) = policy::mode_after_write(user, found.mode) {
            let look = tree.open_to_look(index).map_err(status)?;
            self.kernel.set_mode(&look, mode).map_err(status)?;
            self.asked.clear();
        }
        // Without a place for its descriptor, data that is lost before COMMIT would go unnoticed.
        let stable = if has_place || stable != Stability::Unstable { stable } else { Stability::FileSync };
        self.transfers.admit_write(*transfer, file.clone(), stable);
        if stable == Stability::Unstable {
            self.unsynced.begin_write(*object, file);
        }
        self.sync_oldest();
        Ok(())
    }
}
