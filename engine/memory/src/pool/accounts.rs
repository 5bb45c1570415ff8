//! The accounts of a pool: units that are stored, units in transit, units on loan.

use super::{Inner, Pool};

/// One unit in this many, at least, stays for transit when units are set aside for what is stored.
const TRANSIT_SHARE: usize = 8;

impl Pool {
    /// Sets `units` more aside for what is stored, and returns how many there were: some stay for transit. A pool has
    /// none set aside at first.
    #[must_use]
    pub fn set_aside(&self, units: usize) -> usize {
        let inner = self.inner();
        let all = self.units();
        let room = (all - (all / TRANSIT_SHARE).max(1)).saturating_sub(self.stored_max());
        let granted = units.min(room);
        // At most `all`, which is a `u32`.
        inner.stored_max.set(inner.stored_max.get() + granted as u32);
        granted
    }

    /// Units in use that are stored.
    #[inline]
    #[must_use]
    pub fn stored(&self) -> usize {
        self.inner().stored.get() as usize
    }

    /// Units that are set aside for what is stored.
    #[inline]
    #[must_use]
    pub fn stored_max(&self) -> usize {
        self.inner().stored_max.get() as usize
    }

    /// Units for transit, in use or not: those that are not set aside.
    #[inline]
    #[must_use]
    pub fn transit(&self) -> usize {
        self.units() - self.stored_max()
    }

    /// Units that can be taken for transit without touching what is set aside.
    #[inline]
    #[must_use]
    pub fn transit_free(&self) -> usize {
        self.transit().saturating_sub(self.outstanding().saturating_sub(self.stored()))
    }

    /// Of the units in use, those that other reactors have on loan; one that was lent several times counts as often.
    #[must_use]
    pub fn lent(&self) -> usize {
        (self.inner().lent.get() as usize).min(self.outstanding())
    }
}

impl Inner {
    /// Counts `units` more, or fewer, that are stored.
    #[inline]
    pub(crate) fn count_stored(&self, more: u32, fewer: u32) {
        self.stored.set(self.stored.get() + more - fewer);
    }

    /// Counts `units` more, or fewer, that are on loan.
    #[inline]
    pub(crate) fn count_lent(&self, more: u32, fewer: u32) {
        self.lent.set(self.lent.get() + more - fewer);
    }
}
