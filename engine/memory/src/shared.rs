//! Counted references to read-only bytes.

use std::cell::Cell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Bound, Deref, RangeBounds};
use std::ptr::NonNull;
use std::slice;

use crate::buf::{Buf, Location};
use crate::loan::Loan;
use crate::pool::{COUNT, COUNT_GUARD, Inner, STORED};

/// A counted reference to a contiguous slice of a pool's memory. Cloning and slicing copy no bytes: each
/// unit counts the `Shared`s that cover some of it, and goes back to the pool when none does.
///
/// The bytes are not written while they are shared. A peer may be allowed to read them for as long as
/// somebody holds a `Shared` for it.
pub struct Shared {
    // Invariants:
    // - If `len > 0`, each unit that `pointer..pointer + len` touches is counted once for us in the pool's counts;
    //   it is handed out, which keeps the pool alive. If `len == 0`, we count as a handle of the pool.
    // - `pointer` is in or one past the end of the pool's memory.
    pointer: NonNull<u8>,
    pool: NonNull<Inner>,
    len: u32,
}

const _: () = assert!(size_of::<Shared>() == 24 && size_of::<Option<Shared>>() == 24);

impl Shared {
    /// Takes over a run of units; those that the first `len` bytes do not touch go back to the pool.
    ///
    /// # Safety
    ///
    /// `pool` is alive. The run of `units` at `pointer` is handed out to the caller alone, who gives it up. `len`
    /// bytes fit into it.
    #[inline]
    pub(crate) unsafe fn from_run(
        pool: NonNull<Inner>,
        pointer: NonNull<u8>,
        units: u32,
        len: u32,
    ) -> Shared {
        // SAFETY: alive, by the caller's word.
        let inner = unsafe { pool.as_ref() };
        let first = inner.index_of(pointer);
        if units == 1 && len > 0 {
            // As below: one unit is the most usual run.
            inner.counts(first, 1)[0].set(1);
            return Shared { pointer, pool, len };
        }
        let covered = if len == 0 { 0 } else { inner.units_for(len) };
        for count in inner.counts(first, covered) {
            count.set(1);
        }
        if covered == 0 {
            inner.add_handle();
        }
        if covered < units {
            // SAFETY: these units were the caller's and are not any more; what is covered, or the handle,
            // keeps the pool alive.
            unsafe { Inner::give(pool, first + covered, units - covered) };
        }
        Shared { pointer, pool, len }
    }

    #[inline]
    fn pool(&self) -> &Inner {
        // SAFETY: alive, by the field's invariant; only ever borrowed shared.
        unsafe { self.pool.as_ref() }
    }

    /// Whether the bytes are in units of `pool`.
    #[inline]
    pub(crate) fn is_of(&self, pool: NonNull<Inner>) -> bool {
        self.pool == pool
    }

    /// The first unit that is covered, and how many are.
    #[inline]
    pub(crate) fn covered(&self) -> (u32, u32) {
        if self.len == 0 {
            return (0, 0);
        }
        self.pool().units_of(self.pointer, self.len)
    }

    /// The counts of what is covered.
    #[inline]
    fn counts(&self) -> &[Cell<u32>] {
        let (first, count) = self.covered();
        self.pool().counts(first, count)
    }

    /// A second reference to a part of it.
    ///
    /// # Safety
    ///
    /// `at + len <= self.len`.
    #[inline]
    unsafe fn part(&self, at: u32, len: u32) -> Shared {
        // SAFETY: in the pool's memory, or one past its end: it is so for `self`, and `at` is within.
        let pointer = unsafe { self.pointer.add(at as usize) };
        // Not dropped before it is counted.
        let part = ManuallyDrop::new(Shared { pointer, pool: self.pool, len });
        if len == 0 {
            part.pool().add_handle();
        } else {
            let mut all = 0;
            let counts = part.counts();
            // A loop prepares for many units, and most have one.
            if let [count] = counts {
                all = count.get().wrapping_add(1);
                count.set(all);
            } else {
                for count in counts {
                    count.set(count.get().wrapping_add(1));
                    all |= count.get();
                }
            }
            check_count(all);
        }
        ManuallyDrop::into_inner(part)
    }

    /// Of bytes that are counted already.
    ///
    /// # Safety
    ///
    /// The invariants of the fields.
    #[inline]
    pub(crate) unsafe fn from_counted(pool: NonNull<Inner>, pointer: NonNull<u8>, len: u32) -> Shared {
        Shared { pointer, pool, len }
    }

    /// Lends the bytes to another reactor of this process, which borrows them with
    /// [`Borrowed::borrow`](crate::Borrowed::borrow).
    ///
    /// The units stay in use here until the borrower's [`Return`](crate::Return) is taken back. If no other `Shared` touches
    /// them, the borrower may write them.
    #[inline]
    pub fn lend(self) -> Loan {
        let is_alone = !self.is_empty() && self.is_unique();
        let this = ManuallyDrop::new(self);
        let pool = this.pool();
        pool.count_lent(this.counts().len() as u32, 0);
        let serial = pool.serial();
        // SAFETY: `this` is not dropped, so what it counts (its units, or a handle) is the loan's from now on.
        unsafe { Loan::new(this.pool, serial, this.pointer, this.len, is_alone) }
    }

    /// Bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it begins.
    #[inline]
    #[must_use]
    pub fn location(&self) -> Location {
        let pool = self.pool();
        Location { arena: pool.arena_id(), offset: pool.arena_offset(self.pointer) }
    }

    /// The first byte, for providers. Valid for reads of [`Shared::len`] bytes while this or another `Shared`
    /// covers them.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.pointer.as_ptr()
    }

    /// A second reference, to a part of the bytes.
    ///
    /// # Panics
    ///
    /// If the range is not within `0..len()`, as for slices.
    #[inline]
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Shared {
        let start = match range.start_bound() {
            Bound::Included(&at) => at,
            Bound::Excluded(&at) => at.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&at) => at.saturating_add(1),
            Bound::Excluded(&at) => at,
            Bound::Unbounded => self.len(),
        };
        assert!(start <= end && end <= self.len(), "{start}..{end} of {} shared bytes", self.len());
        // SAFETY: just checked.
        unsafe { self.part(start as u32, (end - start) as u32) }
    }

    /// Splits it into `0..at` and `at..len()`. Touches no count but that of the unit that both share, if any.
    ///
    /// # Panics
    ///
    /// If `at` is more than `len()`.
    #[inline]
    #[must_use]
    pub fn split_at(self, at: usize) -> (Shared, Shared) {
        assert!(at <= self.len(), "split at {at} of {} shared bytes", self.len());
        if at == 0 {
            return (self.slice(..0), self);
        }
        if at == self.len() {
            let empty = self.slice(at..);
            return (self, empty);
        }
        let this = ManuallyDrop::new(self);
        // SAFETY: `0 < at < len`, so both are within what `this` covers.
        let (before, next) = unsafe { (this.pointer.add(at - 1), this.pointer.add(at)) };
        let pool = this.pool();
        let boundary = pool.index_of(next);
        if pool.index_of(before) == boundary {
            let count = &pool.counts(boundary, 1)[0];
            count.set(count.get() + 1);
            check_count(count.get());
        }
        let part = |pointer, len| Shared { pointer, pool: this.pool, len };
        (part(this.pointer, at as u32), part(next, this.len - at as u32))
    }

    /// Appends `next`, whose first byte follows our last one in the same pool. Any two join if one of them is
    /// empty. Otherwise `next` is handed back.
    pub fn try_join(&mut self, next: Shared) -> Result<(), Shared> {
        if next.is_empty() {
            return Ok(());
        }
        if self.is_empty() {
            *self = next;
            return Ok(());
        }
        // SAFETY: at most one past the end of the pool's memory.
        let end = unsafe { self.pointer.add(self.len as usize) };
        let Some(len) = self.len.checked_add(next.len) else { return Err(next) };
        if self.pool != next.pool || end != next.pointer {
            return Err(next);
        }
        let next = ManuallyDrop::new(next);
        let (first, count) = self.covered();
        let boundary = next.covered().0;
        if boundary == first + count - 1 {
            // Both count the unit in which they meet: one of the two counts ends here, the other stays.
            let counts = self.pool().counts(boundary, 1);
            counts[0].set(counts[0].get() - 1);
        }
        self.len = len;
        Ok(())
    }

    /// Whether no other `Shared` touches a unit that this one touches, here or at another reactor.
    #[inline]
    #[must_use]
    pub fn is_unique(&self) -> bool {
        // With READ_ELSEWHERE it is more than 1.
        let is_one = |count: &Cell<u32>| count.get() & !STORED == 1;
        match self.counts() {
            [count] => is_one(count),
            counts => counts.iter().all(is_one),
        }
    }

    /// The bytes, to write, if no other `Shared` touches their units.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        if !self.is_unique() {
            return None;
        }
        // SAFETY: as in `deref`; and no other `Shared` covers any of these units, so the only way to the
        // bytes is through `self`, which is borrowed for as long as the slice lives.
        Some(unsafe { slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len as usize) })
    }

    /// Turns it back into a buffer, if no other `Shared` touches its units, and if it begins where a unit does
    /// and is not empty. Otherwise it is handed back. The buffer's capacity is that of the units covered.
    pub fn into_buf(self) -> Result<Buf, Shared> {
        let (first, count) = self.covered();
        if count == 0 || self.pool().pointer_to(first) != self.pointer || !self.is_unique() {
            return Err(self);
        }
        self.unmark_stored();
        let this = ManuallyDrop::new(self);
        // SAFETY: the units are handed out, no other `Shared` covers them, and `this`, which is not dropped,
        // gives them up. `len` bytes fit, because they touch just these units and begin with the first.
        Ok(unsafe { Buf::from_parts(this.pool, this.pointer, count, this.len) })
    }

    /// Counts the units that this touches as stored, until no `Shared` covers them any more
    /// ([`Pool::stored`]).
    ///
    /// [`Pool::stored`]: crate::Pool::stored
    #[inline]
    pub fn mark_stored(&self) {
        let mark = |count: &Cell<u32>| u32::from(count.replace(count.get() | STORED) & STORED == 0);
        let marked = match self.counts() {
            [count] => mark(count),
            counts => counts.iter().map(mark).sum(),
        };
        self.pool().count_stored(marked, 0);
    }

    /// Whether the first unit that this touches counts as stored ([`Shared::mark_stored`]). An empty one touches none.
    #[inline]
    #[must_use]
    pub fn is_stored(&self) -> bool {
        self.counts().first().is_some_and(|count| count.get() & STORED != 0)
    }

    /// Counts the units that this touches as stored no longer.
    fn unmark_stored(&self) {
        let mut unmarked = 0;
        for count in self.counts() {
            unmarked += u32::from(count.get() & STORED != 0);
            count.set(count.get() & !STORED);
        }
        self.pool().count_stored(0, unmarked);
    }

    /// Gives back the units that no other `Shared` covers.
    #[inline]
    fn release(&mut self) {
        let (first, count) = self.covered();
        if count == 0 {
            // SAFETY: an empty one is counted as a handle, and this is its end.
            unsafe { Inner::drop_handle(self.pool) };
            return;
        }
        let counts = self.pool().counts(first, count);
        if let [cell] = counts {
            let left = cell.get() - 1;
            if left & COUNT != 0 {
                return cell.set(left);
            }
            cell.set(0);
            if left & STORED != 0 {
                self.pool().count_stored(0, 1);
            }
            // SAFETY: this unit's count is zero, and this is the end of `self`.
            return unsafe { Inner::give(self.pool, first, count) };
        }
        // In one sweep without a branch, which the compiler turns into vector instructions: most often all
        // units have the same fate.
        let (mut any_left, mut any_free, mut marks) = (false, false, 0);
        for cell in counts {
            let left = cell.get() - 1;
            cell.set(left);
            any_left |= left & COUNT != 0;
            any_free |= left & COUNT == 0;
            marks |= left;
        }
        if !any_left {
            if marks & STORED != 0 {
                self.forget_stored(first, count);
            }
            // SAFETY: the counts of these units are zero, and this is the end of `self`.
            unsafe { Inner::give(self.pool, first, count) };
        } else if any_free {
            self.release_some(first, count);
        }
    }

    /// Counts units that are no longer covered as stored no longer.
    fn forget_stored(&self, first: u32, count: u32) {
        let pool = self.pool();
        let marked = pool.counts(first, count).iter().filter(|cell| cell.replace(0) & STORED != 0).count();
        pool.count_stored(0, marked as u32);
    }

    /// Gives back those of the units whose count is 0; there is one whose is not.
    #[cold]
    fn release_some(&self, first: u32, count: u32) {
        // The pool outlives this: somebody else covers one of the units.
        let counts = self.pool().counts(first, count);
        let mut start = first;
        for run in counts.chunk_by(|a, b| is_free(a) == is_free(b)) {
            let len = run.len() as u32;
            if is_free(&run[0]) {
                self.forget_stored(start, len);
                // SAFETY: the counts of these units are zero, and `self` is at its end.
                unsafe { Inner::give(self.pool, start, len) };
            }
            start += len;
        }
    }
}

/// Whether a unit is covered by no `Shared`, by its count.
#[inline]
fn is_free(count: &Cell<u32>) -> bool {
    count.get() & COUNT == 0
}

/// Ends the process rather than let a count reach its mark. Only leaked references reach it; counting on would
/// free what is in use.
#[inline]
pub(crate) fn check_count(count: u32) {
    if count & COUNT_GUARD != 0 {
        std::process::abort();
    }
}

impl Clone for Shared {
    #[inline]
    fn clone(&self) -> Shared {
        // SAFETY: all of it is within it.
        unsafe { self.part(0, self.len) }
    }
}

impl Deref for Shared {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY:
        // - In bounds, initialised and alive: the bytes are in units that are handed out (invariants here and of
        //   `Inner`), and these keep the pool alive, which keeps the arena mapped. An empty slice needs no more
        //   than the pointer to be aligned and not null.
        // - Not written meanwhile: a `Buf` of them no longer exists, `get_mut` wants `&mut` of the only one
        //   that covers them, and other parties may at most read what is shared (crate documentation).
        unsafe { slice::from_raw_parts(self.pointer.as_ptr(), self.len as usize) }
    }
}

impl AsRef<[u8]> for Shared {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Buf> for Shared {
    #[inline]
    fn from(buf: Buf) -> Shared {
        buf.share()
    }
}

impl Shared {
    /// Gives the memory up for good, as [`Buf::strand`] does. Others that cover the same memory go on reading it.
    pub fn strand(self) {
        if !self.is_empty() {
            let this = ManuallyDrop::new(self);
            this.pool().strand(this.counts().len() as u32);
        }
    }
}

impl Drop for Shared {
    #[inline]
    fn drop(&mut self) {
        self.release();
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("pool", &self.pool().name())
            .field("len", &self.len())
            .field("offset", &self.location().offset)
            .finish()
    }
}
