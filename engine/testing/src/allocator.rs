//! An allocator that counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
    static FREED: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<isize> = const { Cell::new(0) };
    static TAKEN: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator, which counts for each thread: what runs the tests allocates beside them.
///
/// A program of tests makes it the allocator of all that is in it:
///
/// ```
/// # use stag_testing::CountingAllocator;
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator;
///
/// let before = CountingAllocator::allocations();
/// drop(Box::new(1));
/// assert_eq!(CountingAllocator::allocations() - before, 1);
/// ```
pub struct CountingAllocator;

impl CountingAllocator {
    /// Pieces of memory that this thread has allocated.
    #[must_use]
    pub fn allocations() -> u64 {
        ALLOCATED.get()
    }

    /// Pieces of memory that this thread has freed.
    #[must_use]
    pub fn frees() -> u64 {
        FREED.get()
    }

    /// Octets that this thread has allocated, less those that it has freed.
    #[must_use]
    pub fn held() -> isize {
        HELD.get()
    }

    /// The same as glibc hands it out: with a word beside each piece, in steps of 16 octets.
    #[must_use]
    pub fn taken() -> i64 {
        TAKEN.get()
    }
}

/// Octets that glibc takes for a piece of this length.
fn piece(len: usize) -> i64 {
    (len + 8).next_multiple_of(16).max(32) as i64
}

// SAFETY: it is the system's allocator; counting allocates nothing, in thread-locals made by constants, without destructors.
// `realloc` and `alloc_zeroed` are the trait's own, which come here.
#[allow(unsafe_code, reason = "to count, one has to be the allocator")]
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + 1);
        HELD.set(HELD.get() + layout.size() as isize);
        TAKEN.set(TAKEN.get() + piece(layout.size()));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        FREED.set(FREED.get() + 1);
        HELD.set(HELD.get() - layout.size() as isize);
        TAKEN.set(TAKEN.get() - piece(layout.size()));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}
