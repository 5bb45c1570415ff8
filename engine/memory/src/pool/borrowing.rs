//! The books on units borrowed from a pool of another reactor: an [`Inner`] without free units.

use std::cell::{Cell, UnsafeCell};
use std::ptr::NonNull;
use std::rc::Rc;

use super::{Inner, Run, next_serial};
use crate::loan::Debt;

impl Inner {
    /// What a reactor has of a pool of another one: nothing yet. `owner` is the reactor that borrows.
    ///
    /// # Safety
    ///
    /// `lender` is alive, and stays so until this returns.
    pub(crate) unsafe fn borrowed(
        lender: NonNull<Inner>,
        owner: u8,
        any_due: &Rc<Cell<bool>>,
    ) -> NonNull<Inner> {
        // SAFETY: alive, by the caller's word. The lender's thread may be changing its `Cell`s meanwhile, which are not looked
        // at here but for `owner`, which does not change while a unit is in use. All other fields never change.
        let of = unsafe { lender.as_ref() };
        let units = of.counts.len();
        let inner = Inner {
            base: of.base,
            stack: Box::default(),
            stack_len: Cell::new(0),
            recent: Cell::default(),
            unit_len: of.unit_len,
            shift: of.shift,
            outstanding: Cell::new(0),
            handles: Cell::new(1),
            outstanding_max: Cell::new(0),
            is_fixed: true,
            counts: (0..units).map(|_| Cell::new(0)).collect(),
            stored: Cell::new(0),
            stored_max: Cell::new(0),
            lent: Cell::new(0),
            stranded: Cell::new(0),
            extents: UnsafeCell::new(None),
            name: of.name,
            arena: of.arena.clone(),
            serial: next_serial(),
            owner: Cell::new(owner),
            debt: Some(Debt::new(lender, of.serial, of.owner.get(), any_due.clone())),
        };
        inner.leak()
    }

    #[inline]
    pub(crate) fn serial(&self) -> u32 {
        self.serial
    }

    /// Units in use.
    #[inline]
    pub(crate) fn outstanding(&self) -> u32 {
        self.outstanding.get()
    }

    /// What is owed, of what is borrowed.
    #[inline]
    pub(crate) fn debt(&self) -> Option<&Debt> {
        self.debt.as_ref()
    }

    /// Counts `units` more in use, which came from another reactor.
    #[inline]
    pub(crate) fn count_borrowed(&self, units: u32) {
        let outstanding = self.outstanding.get() + units;
        self.outstanding.set(outstanding);
        self.outstanding_max.set(self.outstanding_max.get().max(outstanding));
    }

    /// Notes that borrowed units, which are no longer used here, are due to their lender.
    #[cold]
    #[inline(never)]
    pub(super) fn owe(&self, first: u32, count: u32) {
        debug_assert!(self.debt.is_some(), "a pool of our own has room for all of its units");
        // The next loan of a unit asks whether it is held. Who gave back a `Buf` left its count as it was.
        self.counts(first, count).iter().for_each(|count| count.set(0));
        self.debt.iter().for_each(|debt| debt.note(Run { first, count }, self.unit_len));
    }
}
