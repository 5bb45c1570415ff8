//! The store's use of the heap: objects, names, link targets, access control lists, tables of pages. Counted in the
//! allocator's sizes, against a limit, so that no mixture of them takes more than was promised.

use std::mem::size_of;

use stag_vfs::FsError;

/// Octets of heap that a store may take for each object that it may have, on average.
pub const HEAP_PER_OBJECT: u64 = 512;

/// Octets that the smallest store may take.
const LIMIT_MIN: u64 = 64 << 10;

/// The least that an object and its entry take: no more objects than that can still be made.
pub(super) const OBJECT_LEN_MIN: u64 = 256;

/// Entries of a node of the standard library's B-tree at most, and on average where each comes before all others: that
/// is how entries of directories come, by their cookies.
const NODE_MAX: u64 = 11;
const NODE_USUAL: u64 = 6;

/// What is left of the heap that the store may take.
#[derive(Debug)]
pub(super) struct Heap {
    used: u64,
    limit: u64,
}

impl Heap {
    /// For a store of `objects_max` objects.
    pub(super) fn new(objects_max: u32) -> Heap {
        Heap { used: 0, limit: (u64::from(objects_max) * HEAP_PER_OBJECT).max(LIMIT_MIN) }
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn free(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    /// Fails unless `len` more octets may be taken.
    #[inline]
    pub(super) fn require(&self, len: u64) -> Result<(), FsError> {
        if len <= self.free() { Ok(()) } else { Err(FsError::NoSpace) }
    }

    /// Something that took `before` octets takes `now`.
    #[inline]
    pub(super) fn change(&mut self, before: u64, now: u64) {
        self.used = (self.used + now).saturating_sub(before);
    }
}

/// What the allocator takes for `len` octets (that of glibc: a word beside them, in steps of 16).
#[inline]
pub(super) const fn allocation(len: u64) -> u64 {
    match len {
        0 => 0,
        1..=24 => 32,
        _ => (len + 8).next_multiple_of(16),
    }
}

/// What a B-tree of `count` entries takes, each with a key of 8 octets and a value of `T`.
pub(super) fn tree<T>(count: u64) -> u64 {
    let node = NODE_MAX * (8 + size_of::<T>() as u64) + 16;
    let (leaf, inner) = (allocation(node), allocation(node + (NODE_MAX + 1) * 8));
    match count {
        0 => 0,
        1..=NODE_MAX => leaf,
        // A leaf for each `NODE_USUAL + 1` entries; one entry in as many is in an inner node.
        _ => {
            leaf * count.div_ceil(NODE_USUAL + 1)
                + inner * count.div_ceil((NODE_USUAL + 1) * (NODE_USUAL + 1))
        }
    }
}

/// What a hash table with room for `capacity` entries of `T` takes.
pub(super) fn table<T>(capacity: u64) -> u64 {
    let buckets = match capacity {
        0 => return 0,
        1..=3 => 4,
        4..=7 => 8,
        // Filled to seven eighths.
        _ => capacity / 7 * 8,
    };
    // A control octet for each, and a group of them behind the last.
    allocation(buckets * (size_of::<T>() as u64 + 1) + 16)
}

/// What the hash table will take when it has to hold one more than its capacity.
pub(super) fn larger_table<T>(capacity: u64) -> u64 {
    match capacity {
        0 => table::<T>(3),
        1..=3 => table::<T>(7),
        4..=7 => table::<T>(14),
        _ => table::<T>(2 * capacity),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_holds() {
        let mut heap = Heap::new(1000);
        assert_eq!(heap.free(), 512_000);
        heap.change(0, 500_000);
        heap.require(12_000).unwrap();
        assert_eq!(heap.require(12_001), Err(FsError::NoSpace));
        heap.change(500_000, 100);
        assert_eq!((heap.used(), heap.free()), (100, 511_900));
        assert_eq!(Heap::new(1).free(), LIMIT_MIN);
    }

    #[test]
    fn allocations_are_as_glibc_makes_them() {
        for (len, taken) in [(0, 0), (1, 32), (24, 32), (25, 48), (40, 48), (41, 64), (1023, 1040)] {
            assert_eq!(allocation(len), taken, "{len}");
        }
    }
}
