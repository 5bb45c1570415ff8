//! Owners and files whose last lock is gone, kept for the next one: who locks and unlocks in turn allocates nothing.

use std::rc::Rc;

use super::file::File;
use super::{LockRequest, Owner};

/// Owners, and files, that are kept at most.
const SPARE_MAX: usize = 8;
/// A file that is kept has room for no more locks.
const FILE_LOCKS_MAX: usize = 16;

/// Octets of the heap that all this takes at most, where the name of an owner has 1024 octets.
pub(super) const SPARE_LEN: u64 = 16 << 10;

/// Owners that lately let go of a lock, the oldest first.
#[derive(Debug, Default)]
pub(super) struct SpareOwners(Vec<Rc<Owner>>);

impl SpareOwners {
    /// The owner of a request.
    pub(super) fn take(&mut self, request: &LockRequest<'_>) -> Rc<Owner> {
        match self.0.iter().position(|owner| request.is_by(owner)) {
            Some(place) => self.0.remove(place),
            None => request.owner(),
        }
    }

    /// Keeps an owner that has no lock on the file any more.
    pub(super) fn keep(&mut self, owner: Rc<Owner>) {
        if self.0.len() == SPARE_MAX {
            self.0.remove(0);
        }
        self.0.push(owner);
    }
}

/// Files without locks.
#[derive(Debug)]
pub(super) struct SpareFiles<W>(Vec<File<W>>);

impl<W> Default for SpareFiles<W> {
    fn default() -> SpareFiles<W> {
        SpareFiles(Vec::new())
    }
}

impl<W> SpareFiles<W> {
    /// A file that is empty.
    pub(super) fn take(&mut self) -> File<W> {
        self.0.pop().unwrap_or_default()
    }

    /// Keeps an empty file, unless it is large.
    pub(super) fn keep(&mut self, file: File<W>) {
        debug_assert!(file.is_empty(), "nothing is lost with it");
        let capacities = [file.held.capacity(), file.waiting.capacity(), file.shares.capacity()];
        if self.0.len() < SPARE_MAX && capacities[0] <= FILE_LOCKS_MAX && capacities[1..] == [0; 2] {
            self.0.push(file);
        }
    }
}
