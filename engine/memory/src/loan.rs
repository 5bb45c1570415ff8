//! Loans: a reactor's memory in the hands of another reactor of the process, without an atomic count.
//!
//! ```text
//!   lender                                      borrower
//!   Shared::lend ──────── Loan ──────────────▶ Borrowed::borrow ──▶ Shared, slices of it, …
//!   (its counts stay raised)                    (counts of its own)          │ the last one is dropped
//!   Pool::take_back ◀──── Return ◀──────────── Borrowed::next_return ◀───────┘
//! ```
//!
//! Each side counts in plain numbers of its own. The lender's counts stay as they were, as if the lent [`Shared`] still lived
//! there; so its units are neither free nor unique, until the return lowers the counts. The borrower keeps books like those of a
//! [`Pool`] for each pool that it borrows from. It holds **one** of the lender's counts for each unit, however many loans of the
//! unit it was given: the count of any further loan is due at once. So are units that are no longer used here.
//!
//! *Loans nest.* Borrowed memory can be lent on. It returns to the reactor that lent it, which then owes it to its own lender.
//!
//! *Writing.* The lender lends a unique [`Shared`] with the right to write: it keeps nothing that touches those bytes, so the
//! borrower's counts alone decide what is unique. Any other loan marks its units as read elsewhere, and they are never unique at
//! the borrower. So [`Shared::get_mut`] and [`Shared::into_buf`] mean the same on both sides.
//!
//! [`Pool`]: crate::Pool

use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pool::{COUNT, Inner, READ_ELSEWHERE, Run};
use crate::shared::{Shared, check_count};

/// Runs in one [`Return`]: as many as fit into a cache line with the rest.
const RUNS: usize = 6;
/// The `first` of what stands for a handle of the lender, not for units: what an empty loan holds. A pool has fewer units.
const HANDLE: u32 = u32::MAX;
/// Runs that are due before the list of them allocates.
const DUE: usize = 256;

/// Loans and returns that were dropped on their way.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Loans and returns of this process that were dropped instead of borrowed or taken back. Their units stay in use for ever.
///
/// Each is a defect, or was on its way when reactors ended before they were drained.
#[must_use]
pub fn loans_lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Bytes of a pool on their way to another reactor, which must borrow them with [`Borrowed::borrow`].
///
/// Dropped instead, it leaves its units in use for ever (nothing is freed that might be used) and is counted by [`loans_lost`].
#[must_use = "a loan that is dropped leaves its units in use for ever"]
pub struct Loan {
    // Invariants:
    // - We are what `lender` counts for the bytes at `pointer`: one for each unit that they touch, or a handle if there are none.
    //   So it is alive.
    // - `serial` is its.
    // - If `is_alone`, nothing else at the lender, or at those that it borrowed from, touches these units.
    lender: NonNull<Inner>,
    pointer: NonNull<u8>,
    len: u32,
    /// The lender's serial number, doubled, and whether we are alone.
    serial_alone: u32,
}

const _: () = assert!(size_of::<Loan>() == 24);

// SAFETY: it only carries what it stands for. The pool's counts are never touched through it; what is read of the pool on another thread
// does not change (`Inner::borrowed`). The bytes are memory that any thread of the process may use.
unsafe impl Send for Loan {}

impl Loan {
    /// # Safety
    ///
    /// The invariants of the fields.
    #[inline]
    pub(crate) unsafe fn new(
        lender: NonNull<Inner>,
        serial: u32,
        pointer: NonNull<u8>,
        len: u32,
        is_alone: bool,
    ) -> Loan {
        Loan { lender, pointer, len, serial_alone: serial << 1 | u32::from(is_alone) }
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

    /// Whether the borrower may write the bytes, because it is their only user.
    #[inline]
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.serial_alone & 1 != 0
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        LOST.fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan")
            .field("len", &self.len)
            .field("is_alone", &self.is_alone())
            .finish_non_exhaustive()
    }
}

/// Units on their way back to the reactor that lent them, where [`Pool::take_back`](crate::Pool::take_back) or
/// [`Borrowed::take_back`] must be given it. One cache line.
///
/// Dropped instead, it leaves its units in use for ever and is counted by [`loans_lost`].
#[must_use = "a return that is dropped leaves its units in use for ever"]
#[repr(C, align(64))]
pub struct Return {
    // Invariant: `lender` counts each unit of each run once for us (a handle, for a run at `HANDLE`), so it is alive.
    lender: NonNull<Inner>,
    runs: [Run; RUNS],
    /// Runs that are valid.
    len: u8,
    owner: u8,
}

const _: () = assert!(size_of::<Return>() == 64);

// SAFETY: as for `Loan`.
unsafe impl Send for Return {}

impl Return {
    /// The number of the reactor that it is for.
    #[inline]
    #[must_use]
    pub fn owner(&self) -> u8 {
        self.owner
    }

    /// Lowers the counts of `pool`, if it is what lent the units; otherwise it is handed back.
    ///
    /// # Safety
    ///
    /// `pool` is a pool of the calling thread, and something else than us keeps it alive until this returns.
    #[inline]
    pub(crate) unsafe fn apply(self, pool: NonNull<Inner>) -> Result<(), Return> {
        if self.lender != pool {
            return Err(self);
        }
        let this = ManuallyDrop::new(self);
        // SAFETY: alive, by the caller's word.
        let inner = unsafe { pool.as_ref() };
        for run in &this.runs[..usize::from(this.len)] {
            if run.first == HANDLE {
                // SAFETY: alive; the handle was counted for an empty `Shared` that was lent, and is ours.
                unsafe { Inner::drop_handle(pool) };
                continue;
            }
            inner.count_lent(0, run.count);
            let len = run.count * inner.unit_len();
            // SAFETY: each unit of the run is counted once for us (the field's invariant), which is what a `Shared` of all of
            // their bytes is; we are not dropped. `Debt::note` keeps the bytes of a run in a `u32`.
            drop(unsafe { Shared::from_counted(pool, inner.pointer_to(run.first), len) });
        }
        Ok(())
    }
}

impl Drop for Return {
    fn drop(&mut self) {
        LOST.fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Return {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = &self.runs[..usize::from(self.len)];
        let units: u32 = runs.iter().filter(|run| run.first != HANDLE).map(|run| run.count).sum();
        f.debug_struct("Return").field("owner", &self.owner).field("units", &units).finish_non_exhaustive()
    }
}

/// What a reactor owes to one pool of another one.
pub(crate) struct Debt {
    lender: NonNull<Inner>,
    serial: u32,
    owner: u8,
    /// Runs whose count at the lender must be lowered by one. No more than loans came since the last were collected.
    due: RefCell<Vec<Run>>,
    /// Some debt of the same [`Borrowed`] is due.
    any_due: Rc<Cell<bool>>,
}

impl Debt {
    pub(crate) fn new(lender: NonNull<Inner>, serial: u32, owner: u8, any_due: Rc<Cell<bool>>) -> Debt {
        Debt { lender, serial, owner, due: RefCell::new(Vec::with_capacity(DUE)), any_due }
    }

    /// Units, of `unit_len` bytes each, of which a count is due.
    #[inline]
    pub(crate) fn note(&self, mut run: Run, unit_len: u32) {
        let mut due = self.due.borrow_mut();
        self.any_due.set(true);
        // The bytes of a run are a `u32`.
        let longest = u32::MAX / unit_len;
        while run.count > longest {
            due.push(Run { first: run.first, count: longest });
            run = Run { first: run.first + longest, count: run.count - longest };
        }
        match due.last_mut().and_then(|last| Some((joined(*last, run, longest)?, last))) {
            Some((longer, last)) => *last = longer,
            None => due.push(run),
        }
    }

    /// An empty `Shared` was lent, and what it counts at the lender, a handle, is due.
    fn note_handle(&self) {
        self.due.borrow_mut().push(Run { first: HANDLE, count: 0 });
        self.any_due.set(true);
    }

    /// Collects what is due, as much as fits. `None`: nothing is.
    fn collect(&self) -> Option<Return> {
        let mut due = self.due.borrow_mut();
        let mut runs = [Run::default(); RUNS];
        let mut len = 0;
        for to in &mut runs {
            let Some(run) = due.pop() else { break };
            *to = run;
            len += 1;
        }
        (len > 0).then(|| Return { lender: self.lender, runs, len, owner: self.owner })
    }
}

/// Two runs as one, if they meet and are not too long together.
#[inline]
fn joined(a: Run, b: Run, longest: u32) -> Option<Run> {
    let (low, high) = if a.first < b.first { (a, b) } else { (b, a) };
    // Neither is a handle: that has the highest number, and its count would not reach it.
    let meet = low.first + low.count == high.first && high.first != HANDLE;
    (meet && low.count + high.count <= longest)
        .then_some(Run { first: low.first, count: low.count + high.count })
}

impl Drop for Debt {
    fn drop(&mut self) {
        // There is no owner left to send it.
        LOST.fetch_add(self.due.get_mut().len() as u64, Ordering::Relaxed);
    }
}

/// What one reactor has of the memory of others. Neither `Send` nor `Sync`, as the pools that it borrows from.
///
/// Borrow each [`Loan`] that arrives; at the end of a pass send each [`Borrowed::next_return`] to the reactor that it names.
/// Memory: 4 bytes for each unit of each pool that something was borrowed from, once.
pub struct Borrowed {
    owner: u8,
    // Invariant: counted in `Inner::handles`, so each is alive.
    views: Vec<NonNull<Inner>>,
    any_due: Rc<Cell<bool>>,
}

/// What is borrowed of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The name of the pool, for humans.
    pub pool: &'static str,
    /// The number of the reactor that lent.
    pub lender: u8,
    /// Units that are in use here, or lent on.
    pub units: usize,
}

impl Borrowed {
    /// Of reactor `owner`, that has borrowed nothing yet.
    #[must_use]
    pub fn new(owner: u8) -> Borrowed {
        Borrowed { owner, views: Vec::new(), any_due: Rc::default() }
    }

    /// Turns a loan into a reference that is counted here.
    ///
    /// Allocates for the first loan from a pool, and never for the others.
    #[inline]
    pub fn borrow(&mut self, loan: Loan) -> Shared {
        let loan = ManuallyDrop::new(loan);
        let serial = loan.serial_alone >> 1;
        let of_lender = |view: &&NonNull<Inner>| {
            // SAFETY: alive, by the field's invariant.
            let debt = unsafe { view.as_ref() }.debt();
            debt.is_some_and(|debt| debt.lender == loan.lender && debt.serial == serial)
        };
        let view = match self.views.iter().find(of_lender) {
            Some(view) => *view,
            None => self.begin(loan.lender),
        };
        // SAFETY: alive, by the field's invariant.
        let inner = unsafe { view.as_ref() };
        // Not dropped before it is counted.
        // SAFETY: the view has the base and length of the lender, so the bytes are in it. What follows counts them.
        let shared = ManuallyDrop::new(unsafe { Shared::from_counted(view, loan.pointer, loan.len) });
        if shared.is_empty() {
            // The handle at the lender is not needed here: the view has one of its own.
            inner.add_handle();
            inner.debt().inspect(|debt| debt.note_handle());
        } else {
            count_in(inner, &shared, loan.is_alone());
        }
        ManuallyDrop::into_inner(shared)
    }

    /// Makes the bookkeeping for a lender that nothing was borrowed from yet.
    #[cold]
    fn begin(&mut self, lender: NonNull<Inner>) -> NonNull<Inner> {
        // One of a pool that has ended, and whose place in memory this lender has now: nothing is borrowed of it any more.
        self.views.retain(|view| {
            // SAFETY: alive, by the field's invariant.
            let is_of_another = unsafe { view.as_ref() }.debt().is_none_or(|debt| debt.lender != lender);
            if !is_of_another {
                // SAFETY: the handle was counted, and is not used again: it leaves the list.
                unsafe { Inner::drop_handle(*view) };
            }
            is_of_another
        });
        // SAFETY: the loan that led here keeps it alive.
        let view = unsafe { Inner::borrowed(lender, self.owner, &self.any_due) };
        self.views.push(view);
        view
    }

    /// The next return, of up to six runs of units, for the reactor that [`Return::owner`] names. `None`: nothing is due.
    ///
    /// Take only as many as there is room to send.
    #[inline]
    pub fn next_return(&mut self) -> Option<Return> {
        if !self.any_due.get() {
            return None;
        }
        let found = self.views.iter().find_map(|view| {
            // SAFETY: alive, by the field's invariant.
            unsafe { view.as_ref() }.debt()?.collect()
        });
        if found.is_none() {
            self.any_due.set(false);
        }
        found
    }

    /// Takes back what was lent on, of what is borrowed here. A return of a pool, or of another reactor's, is handed back.
    pub fn take_back(&mut self, units: Return) -> Result<(), Return> {
        match self.views.iter().find(|view| **view == units.lender) {
            // SAFETY: alive, by the field's invariant, for as long as `self`, and of this thread, because `self` is not Send.
            Some(view) => unsafe { units.apply(*view) },
            None => Err(units),
        }
    }

    /// What is in use of each pool that something was borrowed from: what the lenders miss.
    pub fn holdings(&self) -> impl Iterator<Item = Holding> {
        self.views.iter().filter_map(|view| {
            // SAFETY: alive, by the field's invariant.
            let inner = unsafe { view.as_ref() };
            let lender = inner.debt()?.owner;
            let units = inner.outstanding() as usize;
            (units > 0).then_some(Holding { pool: inner.name(), lender, units })
        })
    }

    /// Whether nothing is borrowed, and nothing is due.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.views.iter().all(|view| {
            // SAFETY: alive, by the field's invariant.
            let inner = unsafe { view.as_ref() };
            inner.outstanding() == 0 && inner.debt().is_none_or(|debt| debt.due.borrow().is_empty())
        })
    }
}

/// Counts the units of a loan in the borrower's counts.
#[inline]
fn count_in(inner: &Inner, shared: &Shared, is_alone: bool) {
    let (first, count) = shared.covered();
    let mut new = 0;
    for (unit, cell) in (first..).zip(inner.counts(first, count)) {
        let found = cell.get();
        if found & COUNT == 0 {
            cell.set(if is_alone { 1 } else { 1 | READ_ELSEWHERE });
            new += 1;
        } else {
            // Held here already, so somebody else has it; one of the lender's counts is enough.
            check_count((found & COUNT) + 1);
            cell.set((found + 1) | READ_ELSEWHERE);
            inner.debt().inspect(|debt| debt.note(Run { first: unit, count: 1 }, inner.unit_len()));
        }
    }
    inner.count_borrowed(new);
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        for view in self.views.drain(..) {
            // SAFETY: the handle was counted, and is not used again.
            unsafe { Inner::drop_handle(view) };
        }
    }
}

impl fmt::Debug for Borrowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Borrowed").field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// One line for each lender that misses something; nothing if none does.
impl fmt::Display for Borrowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = self.owner;
        self.holdings().try_for_each(|Holding { pool, lender, units }| {
            writeln!(f, "reactor {owner} holds {units} units of pool {pool} of reactor {lender}")
        })
    }
}
