//! Arenas of memory that the program has already.
#![cfg(not(loom))]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use stag_memory::{Arena, ArenaError, Pool};

const PAGE: usize = 4096;

/// Pages of the heap, and whether they are free again.
struct Heap {
    base: NonNull<u8>,
    layout: Layout,
    is_free: Arc<AtomicBool>,
}

impl Heap {
    fn new(pages: usize) -> Heap {
        let layout = Layout::from_size_align(pages * PAGE, PAGE).unwrap();
        // SAFETY: the layout has a size.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
        Heap { base, layout, is_free: Arc::default() }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated so, and not freed since.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
        self.is_free.store(true, Ordering::SeqCst);
    }
}

// SAFETY: plain memory, which this type does not touch.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

#[test]
fn foreign_memory_stays_with_its_owner_until_the_last_buffer_is_gone() {
    let heap = Heap::new(4);
    let (base, is_free) = (heap.base, heap.is_free.clone());
    // SAFETY: within the pages, which nothing else touches.
    unsafe { base.add(2 * PAGE + 5).write(77) };
    // SAFETY: initialised pages that the owner keeps.
    let arena = unsafe { Arena::foreign("foreign", base, 4 * PAGE, Box::new(heap)) }.unwrap();
    assert!(arena.fd().is_none() && arena.base() == base && arena.len() == 4 * PAGE);
    assert!(arena.populate(0..4 * PAGE).is_ok());
    let pool = Pool::fixed(&arena, "foreign", PAGE, 4).unwrap();
    let mut pages: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!(pages[2][5], 77, "it is as its owner left it, in the order of the addresses");
    pages[3][0] = 78;
    let kept = pages.remove(2).share();
    drop((pages, pool, arena));
    assert!(!is_free.load(Ordering::SeqCst), "a buffer is left");
    assert_eq!(kept[5], 77);
    // SAFETY: no buffer has this page, and the owner lives.
    assert_eq!(unsafe { base.add(3 * PAGE).read() }, 78);
    drop(kept);
    assert!(is_free.load(Ordering::SeqCst));
}

#[test]
fn foreign_memory_is_whole_pages() {
    for (from, len) in [(0, 0), (0, 100), (8, PAGE), (PAGE, PAGE + 1)] {
        let heap = Heap::new(4);
        let is_free = heap.is_free.clone();
        // SAFETY: within the pages.
        let base = unsafe { heap.base.add(from) };
        // SAFETY: initialised memory that the owner keeps.
        let refused = unsafe { Arena::foreign("odd", base, len, Box::new(heap)) };
        assert!(matches!(refused, Err(ArenaError::NotPages { len: found, .. }) if found == len));
        assert!(is_free.load(Ordering::SeqCst), "its owner goes with it");
    }
}

/// A descriptor is adopted with what is in it, if it can neither grow nor shrink.
#[cfg(not(miri))]
#[test]
fn a_descriptor_is_adopted_as_it_is() {
    use std::os::fd::{AsFd, OwnedFd};

    use stag_memory::Mapping;

    let theirs = Mapping::on_demand("theirs", 4 * PAGE).unwrap();
    // SAFETY: within the mapping, which nothing else touches.
    unsafe { theirs.base().add(PAGE).write(7) };
    let fd = || theirs.as_fd().try_clone_to_owned().unwrap();
    let arena = Arena::adopt("adopted", fd(), 4 * PAGE).unwrap();
    assert!(arena.fd().is_some() && arena.base() != theirs.base());
    let pool = Pool::fixed(&arena, "adopted", PAGE, 4).unwrap();
    let mut pages: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!(pages[1][0], 7);
    pages[2][9] = 8;
    drop(pages);
    // SAFETY: within the mapping; no buffer has it any more.
    assert_eq!(unsafe { theirs.base().add(2 * PAGE + 9).read() }, 8, "it is the same memory");

    // Another length; a file that may shrink.
    let refused = Arena::adopt("longer", fd(), 5 * PAGE).unwrap_err().to_string();
    assert!(refused.contains("longer") && refused.contains("its size is not the one announced"), "{refused}");
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(Arena::adopt("a file", OwnedFd::from(file), PAGE).is_err());
}
