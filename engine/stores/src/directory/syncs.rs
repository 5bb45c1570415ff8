//! Syncs that have to end before a Call is answered: of names and attributes that it changed (RFC 1813 section 4.8), and
//! of COMMIT's data.
//!
//! One sync of an object is under way at a time. A Call that comes meanwhile may have changed something that this sync
//! misses, so it waits for the next one, which all such Calls share: many Calls on one directory cost as many syncs as
//! the disk can do one after the other, not one each.

use std::collections::VecDeque;

use rustix::io::Errno;
use stag_disk::{Disk, Sync};
use stag_vfs::FsError;

use super::index::NumberMap;
use super::object::status;
use super::opened::File;
use super::verifier::{LossCount, WriteVerifier};

/// An object to sync: its number, and a descriptor of it.
pub(super) type Target = (u64, File);

pub(super) struct Syncs {
    disk: Disk,
    objects: Vec<Object>,
    free_objects: Vec<u32>,
    by_fileid: NumberMap<u64, u32>,
    /// Objects whose next sync can begin.
    due: VecDeque<u32>,
    waits: Vec<Option<Wait>>,
    free_waits: Vec<u32>,
    /// Waits that are over.
    done: VecDeque<u32>,
    failures: LossCount,
}

/// An object that is synced, or will be; or room for one.
#[derive(Default)]
struct Object {
    fileid: u64,
    file: Option<File>,
    /// Who waits for the sync that is under way.
    now: Vec<u32>,
    /// Who waits for the one after it.
    next: Vec<u32>,
}

/// Somebody who waits for some objects.
struct Wait {
    /// Syncs that have not ended.
    left: u32,
    error: Option<Errno>,
}

impl Syncs {
    pub(super) fn new(disk: Disk, verifier: &WriteVerifier) -> Syncs {
        Syncs {
            disk,
            objects: Vec::new(),
            free_objects: Vec::new(),
            by_fileid: NumberMap::default(),
            due: VecDeque::new(),
            waits: Vec::new(),
            free_waits: Vec::new(),
            done: VecDeque::new(),
            failures: LossCount::new(verifier),
        }
    }

    pub(super) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Begins to wait until all of `targets`, as they are now, are on stable storage. There is at least one. Never
    /// refuses, because the change cannot be undone; the Calls under way bound the number of waits.
    pub(super) fn wait(&mut self, targets: impl Iterator<Item = Target>) -> u32 {
        let wait = self.free_waits.pop().unwrap_or_else(|| {
            self.waits.push(None);
            (self.waits.len() - 1) as u32
        });
        let mut left = 0;
        for (fileid, file) in targets {
            let index = self.object(fileid, file);
            let object = &mut self.objects[index as usize];
            // Twice in the same directory: a RENAME.
            if object.next.last() == Some(&wait) {
                continue;
            }
            if object.next.is_empty() && object.now.is_empty() {
                self.due.push_back(index);
            }
            object.next.push(wait);
            left += 1;
        }
        debug_assert!(left > 0, "nothing to wait for");
        self.waits[wait as usize] = Some(Wait { left, error: None });
        wait
    }

    /// The object with this number.
    fn object(&mut self, fileid: u64, file: File) -> u32 {
        *self.by_fileid.entry(fileid).or_insert_with(|| {
            let index = self.free_objects.pop().unwrap_or_else(|| {
                self.objects.push(Object::default());
                (self.objects.len() - 1) as u32
            });
            let object = &mut self.objects[index as usize];
            (object.fileid, object.file) = (fileid, Some(file));
            index
        })
    }

    /// Begins what can begin. It goes to the kernel with the next look at the disk.
    pub(super) fn start(&mut self) {
        while self.disk.left() > 0
            && let Some(index) = self.due.pop_front()
        {
            let object = &mut self.objects[index as usize];
            debug_assert!(object.now.is_empty(), "one at a time");
            std::mem::swap(&mut object.now, &mut object.next);
            let Some(file) = &object.file else { unreachable!("an object that somebody waits for is open") };
            let begun = self.disk.sync(index.into(), file, Sync::All);
            assert!(begun.is_ok(), "there was room for an operation");
        }
    }

    /// The next wait that is over.
    pub(super) fn poll(&mut self) -> Option<u32> {
        self.start();
        while let Some(completion) = self.disk.poll() {
            self.synced(completion.tag as u32, completion.result.err());
            // Without a ring a sync is over when it has begun.
            self.start();
        }
        self.done.pop_front()
    }

    /// A sync of an object is over.
    fn synced(&mut self, index: u32, error: Option<Errno>) {
        let object = &mut self.objects[index as usize];
        // Also one that is done once more: the kernel tells of what it could not write to the first who asks.
        if error.is_some() {
            self.failures.note();
        }
        if matches!(error, Some(Errno::INTR | Errno::AGAIN | Errno::CANCELED)) {
            // Once more, for all who wait.
            object.next.append(&mut object.now);
            return self.due.push_back(index);
        }
        for wait in object.now.drain(..) {
            let Some(Some(waiting)) = self.waits.get_mut(wait as usize) else { continue };
            waiting.left -= 1;
            waiting.error = waiting.error.or(error);
            if waiting.left == 0 {
                self.done.push_back(wait);
            }
        }
        if object.next.is_empty() {
            object.file = None;
            self.by_fileid.remove(&object.fileid);
            self.free_objects.push(index);
        } else {
            self.due.push_back(index);
        }
    }

    /// What came of a wait that is over.
    pub(super) fn finish(&mut self, wait: u32) -> Result<(), FsError> {
        let place = self.waits.get_mut(wait as usize);
        let Some(over) = place.and_then(|place| place.take_if(|waiting| waiting.left == 0)) else {
            return Err(FsError::Fault);
        };
        self.free_waits.push(wait);
        over.error.map_or(Ok(()), |error| Err(status(error)))
    }
}
