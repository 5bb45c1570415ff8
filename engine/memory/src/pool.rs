//! Pools: an arena's memory cut into units of one size, for one reactor.
//!
//! The unit that was freed last is handed out first: it is likeliest to be in the cache. Taking and dropping
//! a unit touches at most two cache lines beside the buffer itself: the first of [`Inner`] and the top of the
//! stack.
//!
//! In a pool of runs, the first run that is given back becomes the *recent* run; later ones may extend it
//! at either end. So a run comes back in one step whether it is dropped whole or page by page, and a run of
//! the same length is taken again in one step. When a run that does not adjoin is given back, the recent run
//! retires: a single unit to the stack, a longer run to the [`Extents`], which merge it with its neighbours.
//!
//! # Two accounts
//!
//! Units that a store keeps ([`Shared::mark_stored`](crate::Shared::mark_stored)) and units in transit, which are all
//! others in use, are counted apart. A store sets aside the units that it may fill ([`Pool::set_aside`]); a caller that
//! takes units for transit keeps within [`Pool::transit_free`]. So neither can use up what the other needs, and placed
//! data still becomes stored data without a copy: its units only change accounts.

mod accounts;
mod borrowing;
mod copying;

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::arena::{Arena, ArenaId};
use crate::buf::Buf;
use crate::extent::Extents;
use crate::loan::{Debt, Return};

/// Free single units that a pool of runs keeps at hand instead of merging them.
const STACK_MAX: u32 = 512;
/// Single units that are cut from an extent at once, when none is at hand.
const REFILL: u32 = 32;
/// The longest recent run that single units are taken from: longer ones are kept whole for who needs them.
const BREAK_MAX: u32 = 128;

/// Why there is no pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A pool of nothing.
    #[error("pool {pool}: {count} units of {unit_len} bytes; both must be at least 1")]
    Empty {
        /// Which.
        pool: &'static str,
        /// Bytes of a unit.
        unit_len: usize,
        /// Units wanted.
        count: usize,
    },
    /// A number beyond what a pool can count.
    #[error(
        "pool {pool}: {count} units of {unit_len} bytes; the limit of either is {limit}; use several pools"
    )]
    TooLarge {
        /// Which.
        pool: &'static str,
        /// Bytes of a unit.
        unit_len: usize,
        /// Units wanted.
        count: usize,
        /// The most units, and the most bytes of one.
        limit: usize,
    },
    /// The arena has not enough left.
    #[error(
        "pool {pool}: {wanted} bytes wanted, but its arena has {left} left of {len}; make the arena larger"
    )]
    ArenaFull {
        /// Which.
        pool: &'static str,
        /// Bytes wanted, with alignment: see [`Pool::footprint`].
        wanted: usize,
        /// Bytes left.
        left: usize,
        /// The arena's bytes.
        len: usize,
    },
}

/// Units of one size in one arena, for one reactor. Clones name the same units.
///
/// A pool's numbers are plain, not atomic, because a reactor owns its pools; therefore `Pool`, [`Buf`] and
/// [`Shared`](crate::Shared) cannot be sent to another thread. A pool lives on, unseen, until its last buffer
/// is dropped, and it keeps its arena mapped.
///
/// Buffers are not cleared in between: a taken buffer holds whatever its last user left there, and
/// zeroes before its first use.
///
/// ```
/// use stag_memory::{Arena, ArenaConfig, Budget, PageChoice, Pool};
/// let budget = Budget::new(16 << 20);
/// let arena =
///     Arena::new(&ArenaConfig { name: "doc", len: 8 << 20, page: PageChoice::Auto, node: None, budget: &budget })?;
/// let pages = Pool::runs(&arena, "pages", 4096, 1024)?;
/// let mut buf = pages.take_len(10_000).expect("1024 are free");
/// buf[9_999] = 7;
/// assert_eq!((buf.len(), buf.capacity(), pages.outstanding()), (10_000, 12_288, 3));
/// let page = buf.share().slice(8192..10_000); // the first two units are free again
/// assert_eq!((page[1807], pages.outstanding()), (7, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pool {
    // Invariant: counted in `Inner::handles`, so `Inner` is alive.
    inner: NonNull<Inner>,
    // Not Send and not Sync, even if `NonNull` were.
    not_send: PhantomData<*const Inner>,
}

/// What a pool and all its buffers point to.
///
/// Lives while `handles + outstanding > 0`. The fields of the hot path fill the first cache line.
#[repr(C, align(64))]
pub(crate) struct Inner {
    // Invariant: `base..base + count * unit_len` lies in `arena`, was reserved for this pool alone, and is
    // initialised memory.
    base: NonNull<u8>,
    /// Free single units; the first `stack_len` are valid, the last of those is taken first. A pool of fixed
    /// units has room for all here. All others that are free are in `recent` or `extents`.
    stack: Box<[Cell<u32>]>,
    stack_len: Cell<u32>,
    /// Units that were given back last. Always empty in a pool of fixed units.
    recent: Cell<Run>,
    unit_len: u32,
    /// `unit_len` is `1 << shift`; [`NO_SHIFT`] where it is not a power of two.
    shift: u32,
    /// Units that are in use.
    outstanding: Cell<u32>,
    /// [`Pool`]s, and [`Shared`](crate::Shared)s that are empty and therefore hold no unit.
    handles: Cell<u32>,
    outstanding_max: Cell<u32>,
    /// Units are not merged with their neighbours: those of a pool of fixed units, and those that are borrowed.
    is_fixed: bool,

    /// How many [`Shared`](crate::Shared) cover a unit, and [`STORED`]. Only valid while it is shared.
    counts: Box<[Cell<u32>]>,
    /// Of the units in use, those that are stored: marked with [`STORED`] in `counts`.
    stored: Cell<u32>,
    /// Units set aside for what is stored.
    stored_max: Cell<u32>,
    /// Units on loan to other reactors, each as often as it was lent.
    lent: Cell<u32>,
    /// Units that were given up for good.
    stranded: Cell<u32>,
    // Only touched in `with_extents`, by closures that call nothing that could come back here.
    extents: UnsafeCell<Option<Extents>>,
    name: &'static str,
    arena: Arena,
    /// Which pool of this process it is: no two have the same, also not one after the other.
    serial: u32,
    /// The number of the reactor that it belongs to. Written only before anything is in use, so never while something is lent.
    owner: Cell<u8>,
    /// Of a pool of borrowed units: the units that are due to the lender. `None` for a pool of our own.
    debt: Option<Debt>,
}

const _: () = assert!(offset_of!(Inner, counts) == 64, "the hot fields fill the first cache line");

/// Units side by side.
#[derive(Clone, Copy, Default)]
pub(crate) struct Run {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

const NO_SHIFT: u32 = u32::MAX;

/// In a unit's count: it is stored.
pub(crate) const STORED: u32 = 1 << 31;
/// In a unit's count: it is borrowed, and its lender, or whom that borrowed it from, may be reading it too.
pub(crate) const READ_ELSEWHERE: u32 = 1 << 30;
/// The bits of a unit's count that count.
pub(crate) const COUNT: u32 = !(STORED | READ_ELSEWHERE);
/// The highest of them: a count that reaches it is one of leaked references.
pub(crate) const COUNT_GUARD: u32 = 1 << 29;

impl Pool {
    /// The most units of a pool, and the most bytes of a unit.
    pub const LIMIT: usize = u32::MAX as usize >> 1;

    /// Bytes of an arena that a pool of `count` units takes: their sum, rounded up to 4096. At the largest
    /// number instead of wrapping.
    #[must_use]
    pub fn footprint(unit_len: usize, count: usize) -> usize {
        let sum = unit_len.saturating_mul(count);
        sum.checked_next_multiple_of(4096).unwrap_or(usize::MAX)
    }

    /// Cuts `count` units out of `arena`, which are handed out one by one.
    ///
    /// They lie side by side and are aligned to the largest power of two that divides `unit_len`, at most to
    /// 4096. Choose a multiple of 64, so that no two share a cache line; a power of two is fastest.
    pub fn fixed(
        arena: &Arena,
        name: &'static str,
        unit_len: usize,
        count: usize,
    ) -> Result<Pool, PoolError> {
        Pool::new(arena, name, unit_len, count, false)
    }

    /// Cuts `count` units out of `arena`, which are handed out one by one or as contiguous runs of any
    /// number, and come back one by one or as runs, in any order.
    ///
    /// For payload let `unit_len` be 4096: every buffer is then page-aligned.
    pub fn runs(arena: &Arena, name: &'static str, unit_len: usize, count: usize) -> Result<Pool, PoolError> {
        Pool::new(arena, name, unit_len, count, true)
    }

    fn new(
        arena: &Arena,
        pool: &'static str,
        unit_len: usize,
        count: usize,
        runs: bool,
    ) -> Result<Pool, PoolError> {
        if unit_len == 0 || count == 0 {
            return Err(PoolError::Empty { pool, unit_len, count });
        }
        if unit_len > Pool::LIMIT || count > Pool::LIMIT {
            return Err(PoolError::TooLarge { pool, unit_len, count, limit: Pool::LIMIT });
        }
        let wanted = Pool::footprint(unit_len, count);
        let range = arena.reserve(wanted, 4096).ok_or(PoolError::ArenaFull {
            pool,
            wanted,
            left: arena.left(),
            len: arena.len(),
        })?;
        let units = count as u32;
        let stack_room = if runs { units.min(STACK_MAX) } else { units };
        // Lowest first, so that a small working set stays on few pages.
        let stack: Box<[Cell<u32>]> = (0..stack_room).rev().map(Cell::new).collect();
        let inner = Inner {
            // SAFETY: the reserved range lies within the arena's mapping.
            base: unsafe { arena.base().add(range.start) },
            stack_len: Cell::new(if runs { 0 } else { stack_room }),
            stack,
            recent: Cell::default(),
            is_fixed: !runs,
            counts: (0..units).map(|_| Cell::new(0)).collect(),
            unit_len: unit_len as u32,
            shift: if unit_len.is_power_of_two() { unit_len.ilog2() } else { NO_SHIFT },
            outstanding: Cell::new(0),
            handles: Cell::new(1),
            outstanding_max: Cell::new(0),
            stored: Cell::new(0),
            stored_max: Cell::new(0),
            lent: Cell::new(0),
            stranded: Cell::new(0),
            extents: UnsafeCell::new(runs.then(|| Extents::new(units))),
            name: pool,
            arena: arena.clone(),
            serial: next_serial(),
            owner: Cell::new(0),
            debt: None,
        };
        Ok(Pool { inner: inner.leak(), not_send: PhantomData })
    }

    /// The same pool, that says to which reactor of a group it belongs: what it lends comes back there. 0 unless said.
    ///
    /// # Panics
    ///
    /// If a unit is in use: it may be lent.
    #[must_use]
    pub fn owned_by(self, reactor: u8) -> Pool {
        assert_eq!(
            self.outstanding(),
            0,
            "pool {}: units are in use, so its owner cannot change",
            self.name()
        );
        self.inner().owner.set(reactor);
        self
    }

    /// The number of the reactor that it belongs to.
    #[must_use]
    pub fn owner(&self) -> u8 {
        self.inner().owner.get()
    }

    /// Whether `bytes` are in units of this pool, and not in ones that another reactor lent.
    #[inline]
    #[must_use]
    pub fn has(&self, bytes: &crate::Shared) -> bool {
        bytes.is_of(self.inner)
    }

    /// Takes back what another reactor had borrowed. A return of another pool is handed back.
    #[inline]
    pub fn take_back(&self, units: Return) -> Result<(), Return> {
        // SAFETY: alive, by the field's invariant, for as long as `self`, and of this thread, because a pool is not Send.
        unsafe { units.apply(self.inner) }
    }

    #[inline]
    fn inner(&self) -> &Inner {
        // SAFETY: alive, by the field's invariant; only ever borrowed shared.
        unsafe { self.inner.as_ref() }
    }

    /// Takes one unit; `len()` of the buffer is its whole capacity. `None` if none is free.
    #[inline]
    #[must_use]
    pub fn take(&self) -> Option<Buf> {
        let inner = self.inner();
        let first = inner.pop()?;
        // SAFETY: `first` was free, and is now this buffer's alone.
        Some(unsafe { Inner::hand_out(self.inner, first, 1, inner.unit_len) })
    }

    /// Takes a contiguous run of as many units as hold `len` bytes (at least one); the buffer's `len()` is
    /// `len`. `None` if there is none so long: then [`Pool::take_pieces`] may still succeed. A pool of fixed
    /// units has only runs of one.
    ///
    /// Bounded work; so where the free memory is very fragmented, it may overlook a run which is barely
    /// long enough if `len` is not a power of two units.
    #[inline]
    #[must_use]
    pub fn take_len(&self, len: usize) -> Option<Buf> {
        let inner = self.inner();
        let len = u32::try_from(len).ok()?;
        let count = inner.units_for(len);
        let first = if count == 1 { inner.pop()? } else { inner.take_run(count)? };
        // SAFETY: these units were free, and are now this buffer's alone; `count` of them hold `len` bytes.
        Some(unsafe { Inner::hand_out(self.inner, first, count, len) })
    }

    /// Takes buffers whose `len()`s add up to `len` and which are full but for the last; puts them at the end of
    /// `pieces`, in order. One, if a contiguous run is free; else as few as the free memory allows, at most one for each
    /// unit. All or nothing: `false` if the free memory is too little.
    ///
    /// A length of 0 is one empty buffer. If `pieces` has room for them, this allocates nothing.
    #[must_use]
    pub fn take_pieces(&self, len: usize, pieces: &mut impl Extend<Buf>) -> bool {
        if self.free_units() < len.div_ceil(self.unit_len()).max(1) {
            return false;
        }
        let mut left = len;
        loop {
            let Some(buf) = self.take_len(left).or_else(|| self.take_longest(left)) else {
                debug_assert!(false, "there are as many free units as were asked for");
                return false;
            };
            left -= buf.len();
            pieces.extend(Some(buf));
            if left == 0 {
                return true;
            }
        }
    }

    /// Takes one run of at most `len` bytes (at least one unit), the longest that is free or nearly; its `len()` is what
    /// it holds of `len`. `None` if no unit is free.
    #[must_use]
    pub fn take_up_to(&self, len: usize) -> Option<Buf> {
        self.take_len(len).or_else(|| self.take_longest(len))
    }

    /// Takes the longest free run, or nearly, if that is shorter than `len`.
    fn take_longest(&self, len: usize) -> Option<Buf> {
        let inner = self.inner();
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let (first, count) = inner.take_longest_run(inner.units_for(len))?;
        let len = len.min(count.saturating_mul(inner.unit_len));
        // SAFETY: these units were free, and are now this buffer's alone; `count` of them hold `len` bytes.
        Some(unsafe { Inner::hand_out(self.inner, first, count, len) })
    }

    /// Its name, for humans.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.inner().name
    }

    /// Bytes of a unit.
    #[inline]
    #[must_use]
    pub fn unit_len(&self) -> usize {
        self.inner().unit_len as usize
    }

    /// Units in all.
    #[inline]
    #[must_use]
    pub fn units(&self) -> usize {
        self.inner().counts.len()
    }

    /// Units that can be taken.
    #[inline]
    #[must_use]
    pub fn free_units(&self) -> usize {
        self.units() - self.outstanding()
    }

    /// Units in use.
    #[inline]
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.inner().outstanding.get() as usize
    }

    /// Units in use that were given up for good ([`Buf::strand`]).
    #[must_use]
    pub fn stranded(&self) -> usize {
        self.inner().stranded.get().min(self.inner().outstanding.get()) as usize
    }

    /// The most units that were in use at once.
    #[must_use]
    pub fn outstanding_max(&self) -> usize {
        self.inner().outstanding_max.get() as usize
    }

    /// Where its units lie in the arena, in bytes from its start. Those at the start are used first, the rest as more are in
    /// use at once.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        let start = self.inner().arena_offset(self.inner().base) as usize;
        start..start + self.unit_len() * self.units()
    }

    /// The arena it was cut from.
    #[must_use]
    pub fn arena(&self) -> &Arena {
        &self.inner().arena
    }
}

impl Clone for Pool {
    fn clone(&self) -> Pool {
        self.inner().add_handle();
        Pool { inner: self.inner, not_send: PhantomData }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: this handle was counted, and is not used again.
        unsafe { Inner::drop_handle(self.inner) };
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name())
            .field("unit_len", &self.unit_len())
            .field("units", &self.units())
            .field("outstanding", &self.outstanding())
            .field("outstanding_max", &self.outstanding_max())
            .finish()
    }
}

/// A number for the next pool. Relaxed: it guards nothing.
fn next_serial() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Inner {
    /// Counts units that are given up for good.
    pub(crate) fn strand(&self, units: u32) {
        self.stranded.set(self.stranded.get().saturating_add(units));
    }

    fn leak(self) -> NonNull<Inner> {
        NonNull::from(Box::leak(Box::new(self)))
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    #[inline]
    pub(crate) fn unit_len(&self) -> u32 {
        self.unit_len
    }

    #[inline]
    pub(crate) fn arena_id(&self) -> ArenaId {
        self.arena.id()
    }

    /// Where `pointer`, which points into this pool, lies in the arena.
    #[inline]
    pub(crate) fn arena_offset(&self, pointer: NonNull<u8>) -> u64 {
        (pointer.addr().get() - self.arena.base().addr().get()) as u64
    }

    /// Units that hold `len` bytes; at least 1.
    #[inline]
    pub(crate) fn units_for(&self, len: u32) -> u32 {
        self.index_at(len.saturating_sub(1) as usize) + 1
    }

    /// The unit that the byte at `offset` from `base` belongs to.
    #[inline]
    fn index_at(&self, offset: usize) -> u32 {
        if self.shift != NO_SHIFT {
            (offset >> self.shift) as u32
        } else {
            (offset / self.unit_len as usize) as u32
        }
    }

    /// The unit that `pointer`, which points into this pool, belongs to.
    #[inline]
    pub(crate) fn index_of(&self, pointer: NonNull<u8>) -> u32 {
        self.index_at(pointer.addr().get() - self.base.addr().get())
    }

    /// The first unit that `len` bytes at `pointer` touch, and how many they touch. The bytes lie in this pool, and are at
    /// least one.
    #[inline]
    pub(crate) fn units_of(&self, pointer: NonNull<u8>, len: u32) -> (u32, u32) {
        let offset = pointer.addr().get() - self.base.addr().get();
        let last = offset + len as usize - 1;
        // One look at what a unit is, for both.
        let (first, last) = match self.shift {
            NO_SHIFT => (offset / self.unit_len as usize, last / self.unit_len as usize),
            shift => (offset >> shift, last >> shift),
        };
        (first as u32, (last - first) as u32 + 1)
    }

    /// The first byte of a unit.
    #[inline]
    pub(crate) fn pointer_to(&self, index: u32) -> NonNull<u8> {
        debug_assert!((index as usize) < self.counts.len());
        // SAFETY: callers give an index below the number of units, so it stays within the range at `base`.
        unsafe { self.base.add(index as usize * self.unit_len as usize) }
    }

    /// The counts of a run of units.
    #[inline]
    pub(crate) fn counts(&self, first: u32, count: u32) -> &[Cell<u32>] {
        &self.counts[first as usize..][..count as usize]
    }

    /// Takes a single free unit.
    #[inline]
    fn pop(&self) -> Option<u32> {
        let Run { first, count } = self.recent.get();
        // Wraps for none, which is thereby too many.
        if count.wrapping_sub(1) < BREAK_MAX {
            self.recent.set(Run { first, count: count - 1 });
            return Some(first + count - 1);
        }
        let len = self.stack_len.get();
        if len == 0 {
            return self.refill();
        }
        self.stack_len.set(len - 1);
        Some(self.stack[len as usize - 1].get())
    }

    /// Cuts single units from an extent, onto the empty stack, and takes one.
    #[cold]
    fn refill(&self) -> Option<u32> {
        let room = self.stack.len() as u32;
        let cut = self.with_extents(|extents| extents.take_from_shortest(REFILL.min(room)))?;
        let Some((first, count)) = cut else {
            // A long recent run may be all there is.
            let Run { first, count } = self.recent.get();
            let left = count.checked_sub(1)?;
            self.recent.set(Run { first, count: left });
            return Some(first + left);
        };
        for index in 1..count {
            // The lowest on top.
            self.stack[(count - 1 - index) as usize].set(first + index);
        }
        self.stack_len.set(count - 1);
        Some(first)
    }

    /// Takes a run of at least 2 units.
    #[inline]
    fn take_run(&self, count: u32) -> Option<u32> {
        let recent = self.recent.get();
        if recent.count == count {
            self.recent.set(Run::default());
            return Some(recent.first);
        }
        self.find_run(count)
    }

    /// The rest of [`Inner::take_run`]: finds one that is not the recent one.
    #[inline(never)]
    fn find_run(&self, count: u32) -> Option<u32> {
        self.retire();
        let first = self.with_extents(|extents| extents.take(count))?;
        if first.is_some() || self.stack_len.get() == 0 {
            return first;
        }
        // Perhaps the single units at hand are what is missing.
        self.spill(self.stack_len.get());
        self.with_extents(|extents| extents.take(count))?
    }

    /// Takes the longest run, or nearly, but at most `count` units.
    fn take_longest_run(&self, count: u32) -> Option<(u32, u32)> {
        self.retire();
        let run = self.with_extents(|extents| extents.take_from_longest(count)).flatten();
        run.or_else(|| Some((self.pop()?, 1)))
    }

    /// Makes units free that were in use.
    #[inline]
    fn put_back(&self, first: u32, count: u32) {
        if self.is_fixed {
            if count == 1 {
                return self.push(first);
            }
            return self.push_all(first, count);
        }
        let recent = self.recent.get();
        let longer = recent.count + count;
        if recent.count == 0 || first + count == recent.first {
            self.recent.set(Run { first, count: longer });
        } else if recent.first + recent.count == first {
            self.recent.set(Run { first: recent.first, count: longer });
        } else {
            self.retire();
            self.recent.set(Run { first, count });
        }
    }

    /// Puts the recent run where it belongs.
    #[inline(never)]
    fn retire(&self) {
        let Run { first, count } = self.recent.replace(Run::default());
        if count > 1 {
            self.with_extents(|extents| extents.give(first, count));
        } else if count == 1 {
            if self.stack_len.get() as usize == self.stack.len() {
                self.spill(self.stack_len.get().div_ceil(2));
            }
            self.push(first);
        }
    }

    /// Puts a unit on the stack, which has room, unless the unit is borrowed: what borrows has no stack.
    #[inline]
    fn push(&self, unit: u32) {
        let len = self.stack_len.get();
        match self.stack.get(len as usize) {
            Some(place) => {
                place.set(unit);
                self.stack_len.set(len + 1);
            }
            None => self.owe(unit, 1),
        }
    }

    /// Puts units on the stack, as `push` does. Out of line, so that giving back a single unit stays small.
    #[cold]
    fn push_all(&self, first: u32, count: u32) {
        match self.debt {
            Some(_) => self.owe(first, count),
            None => (first..first + count).for_each(|unit| self.push(unit)),
        }
    }

    /// Puts the `count` oldest units of the stack among the extents.
    #[cold]
    fn spill(&self, count: u32) {
        let len = self.stack_len.get();
        self.with_extents(|extents| {
            for unit in &self.stack[..count as usize] {
                extents.give(unit.get(), 1);
            }
        });
        for index in count..len {
            self.stack[(index - count) as usize].swap(&self.stack[index as usize]);
        }
        self.stack_len.set(len - count);
    }

    /// Runs `f` on the extents; `None` for a pool of fixed units.
    #[inline]
    fn with_extents<T>(&self, f: impl FnOnce(&mut Extents) -> T) -> Option<T> {
        // SAFETY: no other reference exists: the pool is of one thread, and every `f` in this file is a
        // closure that only calls `Extents`, which knows no pool.
        let extents = unsafe { &mut *self.extents.get() };
        extents.as_mut().map(f)
    }

    /// Makes the buffer of units that were just taken.
    ///
    /// # Safety
    ///
    /// `inner` is alive. The units `first..first + count` are free, and in neither the stack nor the extents. They
    /// hold `len` bytes.
    #[inline]
    unsafe fn hand_out(inner: NonNull<Inner>, first: u32, count: u32, len: u32) -> Buf {
        // SAFETY: alive, by the caller's word.
        let this = unsafe { inner.as_ref() };
        let outstanding = this.outstanding.get() + count;
        this.outstanding.set(outstanding);
        if outstanding > this.outstanding_max.get() {
            this.outstanding_max.set(outstanding);
        }
        // SAFETY: the units are the new buffer's alone (the caller's word) and are counted as outstanding.
        unsafe { Buf::from_parts(inner, this.pointer_to(first), count, len) }
    }

    /// Takes back a run of units, and ends the pool if they were all that held it.
    ///
    /// # Safety
    ///
    /// `inner` is alive, the units were handed out, and their owner, who gives them back now, uses neither
    /// them nor `inner` again, unless it is kept alive by something else.
    #[inline]
    pub(crate) unsafe fn give(inner: NonNull<Inner>, first: u32, count: u32) {
        // SAFETY: alive, by the caller's word.
        let this = unsafe { inner.as_ref() };
        this.put_back(first, count);
        let outstanding = this.outstanding.get() - count;
        this.outstanding.set(outstanding);
        if outstanding | this.handles.get() == 0 {
            // SAFETY: nothing holds it any more, and each holder's way out leads through here or through
            // `drop_handle`, which make the sum 0 only once.
            unsafe { Inner::end(inner) };
        }
    }

    /// Counts one more holder that has no unit.
    #[inline]
    pub(crate) fn add_handle(&self) {
        let handles = self.handles.get();
        if handles > u32::MAX >> 1 {
            // Only leaked handles reach this count; counting on would free what is in use.
            std::process::abort();
        }
        self.handles.set(handles + 1);
    }

    /// Counts one holder less, and ends the pool if it was the last.
    ///
    /// # Safety
    ///
    /// `inner` is alive, the holder was counted by `add_handle` or at the start, and does not use it again.
    #[inline]
    pub(crate) unsafe fn drop_handle(inner: NonNull<Inner>) {
        // SAFETY: alive, by the caller's word.
        let this = unsafe { inner.as_ref() };
        let handles = this.handles.get() - 1;
        this.handles.set(handles);
        if handles | this.outstanding.get() == 0 {
            // SAFETY: as in `give`.
            unsafe { Inner::end(inner) };
        }
    }

    /// Frees the pool itself, and its share in the arena.
    ///
    /// # Safety
    ///
    /// Nothing points to `inner` any more.
    #[cold]
    unsafe fn end(inner: NonNull<Inner>) {
        // SAFETY: it came from `Box::leak` in `Inner::leak`, and this is the only place that takes it back.
        drop(unsafe { Box::from_raw(inner.as_ptr()) });
    }
}
