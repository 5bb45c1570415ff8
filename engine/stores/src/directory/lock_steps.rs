//! Steps that lock and unlock octets of files.

use rustix::io::Errno;
use stag_vfs::{FsError, ObjectId, OctetLock, Progress, ReadStep};

use super::DirectoryStore;
use super::errands::Errand;
use super::kernel::REFUSED;
use super::locks::{LockJob, LockOutcome, lock_status};
use super::object::status;
use super::opened::File;
use super::ticket::Work;

impl DirectoryStore {
    /// The descriptor that a file is locked with.
    fn lockable(&self, object: ObjectId) -> ReadStep<File> {
        if let Some(file) = self.locks.borrow().file(object) {
            return Ok(file.clone());
        }
        if !self.locks_below {
            return Err(FsError::NotSupported.into());
        }
        if self.locks.borrow().is_full() {
            return Err(REFUSED.into());
        }
        let opened = {
            let tree = &mut *self.tree.borrow_mut();
            tree.find(object).and_then(|index| tree.open_to_lock(index).map_err(status))
        };
        let file = self.settle(opened)?;
        self.locks.borrow_mut().add(object, file.clone());
        Ok(file)
    }

    /// Locks octets, at least as they are wanted. `Some`: another's lock is in the way.
    pub(super) fn lock_file(&mut self, object: ObjectId, wanted: &OctetLock) -> ReadStep<Option<OctetLock>> {
        let file = self.lockable(object)?;
        if self.locks.get_mut().holds(object, wanted) {
            return Ok(None);
        }
        let locked = if self.kernel.knows_what_is_open() {
            self.locks.get_mut().run(object, &LockJob::Lock(*wanted))
        } else {
            self.kernel.lock(&file, object, wanted)
        };
        self.settle(locked.map_err(lock_status))
    }

    /// The lock that is in the way of a wanted one.
    pub(super) fn find_file_lock(&self, object: ObjectId, wanted: &OctetLock) -> ReadStep<Option<OctetLock>> {
        let file = self.lockable(object)?;
        self.settle(self.kernel.find_lock(&file, wanted).map_err(lock_status))
    }

    /// Gives back what is locked of a range, as far as it is more than `kept`.
    pub(super) fn relax_file(
        &mut self,
        object: ObjectId,
        first: u64,
        last: u64,
        kept: &[OctetLock],
    ) -> Progress<()> {
        if self.locks.get_mut().is_relaxed(object, first, last, kept) {
            return Progress::Done(());
        }
        let job = LockJob::Relax { first, last, kept: kept.to_vec() };
        if self.kernel.knows_what_is_open() {
            let relaxed = self.locks.get_mut().run(object, &job);
            self.note_relaxed(object, relaxed);
            return Progress::Done(());
        }
        let errands = self.errands.get_mut();
        let place = errands.await_turn(Errand::Relax(object));
        if let Some(work) = self.locks.get_mut().push(object, place, job) {
            errands.set_locks(place, work);
        }
        Progress::Later(Work::Errand(place).ticket())
    }

    /// A helper has done a job of a file, or failed badly: it begins the next.
    pub(super) fn end_lock_job(&mut self, object: ObjectId, outcome: Option<&LockOutcome>) {
        if let Some((place, work)) = self.locks.get_mut().end(object, outcome) {
            self.errands.get_mut().set_locks(place, work);
        }
    }

    /// Says if locks could not be given back: then they end with the last lock of their file.
    pub(super) fn note_relaxed(&self, object: ObjectId, relaxed: Result<Option<OctetLock>, Errno>) {
        if let Err(error) = relaxed {
            tracing::warn!(
                "file {}: a lock that was given up cannot be given back to its file system: {error}; it stays until the file has \
                 no lock",
                object.fileid
            );
        }
    }
}
