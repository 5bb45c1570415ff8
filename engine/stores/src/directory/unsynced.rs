//! Files with data that was acknowledged and not yet synced, and the descriptors that report its loss.
//!
//! The kernel reports data that it could not write to each descriptor that was open at that time, once. A descriptor that is
//! opened later gets no report if another process got it before, or if the kernel evicted the inode. So a descriptor stays open
//! from before the first unstable WRITE until a sync through it is over, even if [`super::tree`] closes its own.
//!
//! The number of places is fixed. When more than half are taken, the store syncs the oldest files on its own. When all are taken,
//! an unstable WRITE to another file becomes a stable one: RFC 1813 section 3.3.7 allows a server to commit more than was asked
//! for.

use std::os::fd::AsFd;

use super::index::NumberMap;
use super::object::stat;
use super::opened::File;
use super::verifier::{LossCount, WriteVerifier};
use stag_vfs::ObjectId;

/// The most places.
const PLACES_MAX: usize = 512;

/// One part in this number of the descriptors that a store may keep is for other things.
const OTHERS_SHARE: usize = 4;

pub(super) struct Unsynced {
    files: NumberMap<ObjectId, UnsyncedFile>,
    places: usize,
    /// Files that ever had a place: they are numbered in this order.
    count: u64,
    /// What each sync under way covers, in the place of its wait.
    syncs: Vec<Option<Coverage>>,
    failures: LossCount,
}

struct UnsyncedFile {
    number: u64,
    file: File,
    /// Unstable WRITEs that were begun.
    writes: u64,
    /// The store syncs it on its own at the moment.
    is_syncing: bool,
    /// An error was reported while a WRITE was under way, whose data may be what was lost. That WRITE is answered
    /// with the verifier of after the error, so the next sync must change the verifier once more.
    is_suspect: bool,
}

/// What a sync covers.
struct Coverage {
    object: ObjectId,
    /// The WRITEs that were begun when it began; `None`: some of them were under way still.
    writes: Option<u64>,
    /// The store began it, no client waits for it.
    is_own: bool,
}

impl Unsynced {
    /// Takes its share of the descriptors that a store may keep open.
    pub(super) fn new(descriptors: usize, verifier: &WriteVerifier) -> Unsynced {
        let places = (descriptors / OTHERS_SHARE).min(PLACES_MAX);
        // Twice as much as is used, so that the map never grows for what is removed and inserted.
        let files = NumberMap::with_capacity_and_hasher(2 * places, Default::default());
        Unsynced { files, places, count: 0, syncs: Vec::new(), failures: LossCount::new(verifier) }
    }

    /// Descriptors that it may keep.
    pub(super) fn places(&self) -> usize {
        self.places
    }

    /// Closes all descriptors: no client can ask for the data of these files any more.
    pub(super) fn close_all(&mut self) {
        self.files.clear();
    }

    /// Descriptors that it keeps.
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// Syncs that succeeded, but after an error that may have been about data they cover.
    #[cfg(test)]
    fn failures(&self) -> u64 {
        self.failures.own()
    }

    /// The descriptor through which a file has to be synced, which can also write.
    pub(super) fn descriptor(&self, object: ObjectId) -> Option<File> {
        self.files.get(&object).map(|known| known.file.clone())
    }

    /// Whether there is a place for one more file.
    pub(super) fn has_room(&self) -> bool {
        self.files.len() < self.places
    }

    /// An unstable WRITE through `file` begins. There is a place, if the object has none.
    pub(super) fn begin_write(&mut self, object: ObjectId, file: File) {
        if let Some(known) = self.files.get_mut(&object) {
            known.writes += 1;
            return;
        }
        debug_assert!(self.has_room(), "a file more than there are places");
        let number = self.count;
        self.count += 1;
        self.files
            .insert(object, UnsyncedFile { number, file, writes: 1, is_syncing: false, is_suspect: false });
    }

    /// The file that the store should sync next, if places get scarce: the oldest.
    pub(super) fn due(&self) -> Option<(ObjectId, File)> {
        if self.files.len() <= self.places / 2 {
            return None;
        }
        let idle = self.files.iter().filter(|(_, file)| !file.is_syncing);
        idle.min_by_key(|(_, file)| file.number).map(|(object, file)| (*object, file.file.clone()))
    }

    /// Somebody begins to wait for a sync of `object`, of which data `is_written` at the moment.
    pub(super) fn begin_sync(&mut self, wait: u32, object: ObjectId, is_written: bool, is_own: bool) {
        let Some(file) = self.files.get_mut(&object) else { return };
        file.is_syncing |= is_own;
        let writes = (!is_written).then_some(file.writes);
        let place = wait as usize;
        if self.syncs.len() <= place {
            self.syncs.resize_with(place + 1, || None);
        }
        self.syncs[place] = Some(Coverage { object, writes, is_own });
    }

    /// Whether the store began what somebody waits for.
    pub(super) fn is_own(&self, wait: u32) -> bool {
        matches!(self.syncs.get(wait as usize), Some(Some(Coverage { is_own: true, .. })))
    }

    /// A sync is over, which may be of something else.
    pub(super) fn end_sync(&mut self, wait: u32, is_ok: bool) {
        let Some(covered) = self.syncs.get_mut(wait as usize).and_then(Option::take) else { return };
        let Some(file) = self.files.get_mut(&covered.object) else { return };
        file.is_syncing &= !covered.is_own;
        let was_suspect = std::mem::replace(&mut file.is_suspect, false);
        let is_covered = covered.writes == Some(file.writes);
        // The verifier has changed, so clients write again what they wrote before; but a WRITE may be under way.
        file.is_suspect = !is_ok && !is_covered;
        if is_ok && was_suspect {
            self.failures.note();
        }
        if is_covered {
            self.files.remove(&covered.object);
        }
    }

    /// The file with this number heard of an error otherwise, while data of it was being written.
    pub(super) fn suspect(&mut self, fileid: u64) {
        let known = self.files.iter_mut().filter(|(object, _)| object.fileid == fileid);
        known.for_each(|(_, file)| file.is_suspect = true);
    }

    /// A name of the file with this number is gone. If it was the last, no client can ask for its data any
    /// more. `was_last`: whether that was so when it was last seen, if the file cannot be asked at once.
    pub(super) fn forget_deleted(&mut self, fileid: u64, was_last: Option<bool>) {
        let is_deleted = |file: &UnsyncedFile| {
            was_last.unwrap_or_else(|| stat(file.file.as_fd()).is_ok_and(|found| found.nlink == 0))
        };
        self.files.retain(|object, file| object.fileid != fileid || !is_deleted(file));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use super::*;

    const A: ObjectId = ObjectId { fileid: 1, generation: 0 };
    const B: ObjectId = ObjectId { fileid: 2, generation: 0 };

    fn unsynced(objects: &[ObjectId]) -> Unsynced {
        let mut unsynced = Unsynced::new(16, &WriteVerifier::default());
        for object in objects {
            unsynced.begin_write(*object, Arc::new(OwnedFd::from(fs::File::open("/").unwrap()).into()));
        }
        unsynced
    }

    #[test]
    fn a_sync_that_saw_all_writes_frees_the_place() {
        let mut unsynced = unsynced(&[A, B]);
        unsynced.begin_sync(0, A, false, false);
        unsynced.begin_sync(1, B, false, false);
        let file = unsynced.descriptor(B).unwrap();
        unsynced.begin_write(B, file);
        for wait in [0, 1, 7] {
            unsynced.end_sync(wait, true);
        }
        assert!(unsynced.descriptor(A).is_none(), "A was synced");
        assert!(unsynced.descriptor(B).is_some(), "B was written meanwhile");
        unsynced.begin_sync(0, B, true, false);
        unsynced.end_sync(0, true);
        assert!(unsynced.descriptor(B).is_some(), "a WRITE was under way when the sync began");
        unsynced.begin_sync(0, B, false, false);
        unsynced.end_sync(0, false);
        assert_eq!((unsynced.len(), unsynced.failures()), (0, 0), "it failed: the clients write again");
    }

    #[test]
    fn an_error_while_a_write_is_under_way_counts_again_at_the_next_sync() {
        let mut unsynced = unsynced(&[A]);
        unsynced.begin_sync(0, A, true, false);
        unsynced.end_sync(0, false);
        unsynced.begin_sync(0, A, false, false);
        unsynced.end_sync(0, true);
        assert_eq!((unsynced.len(), unsynced.failures()), (0, 1));
    }

    #[test]
    fn when_places_get_scarce_the_oldest_is_due_once() {
        let mut unsynced = unsynced(&[A, B]);
        assert!(unsynced.has_room() && unsynced.due().is_none());
        let third = ObjectId { fileid: 3, generation: 0 };
        let file = unsynced.descriptor(A).unwrap();
        unsynced.begin_write(third, file);
        assert_eq!(unsynced.due().map(|(object, _)| object), Some(A));
        unsynced.begin_sync(4, A, false, true);
        assert!(unsynced.is_own(4) && !unsynced.is_own(3));
        assert_eq!(unsynced.due().map(|(object, _)| object), Some(B));
        unsynced.end_sync(4, true);
        assert!(unsynced.due().is_none());
    }
}
