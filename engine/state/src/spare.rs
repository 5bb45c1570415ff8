//! Owners whose last lock is gone, kept for the next one: who locks and unlocks in turn allocates nothing.

use std::rc::Rc;

use super::{LockRequest, Owner};

/// Owners, and files, that are kept at most.
pub(super) const SPARE_MAX: usize = 8;

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
