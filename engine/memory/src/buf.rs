//! Buffers that one owner may write.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use crate::arena::ArenaId;
use crate::pool::Inner;
use crate::shared::Shared;

/// Where a buffer begins, in terms that another process, or a device, can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The arena.
    pub arena: ArenaId,
    /// Bytes from its first.
    pub offset: u64,
}

/// A run of units with one owner: `len()` bytes to read and write, in a contiguous piece of `capacity()`
/// bytes. Goes back to its pool when dropped.
///
/// Derefs to the first `len()` bytes. All of the capacity is initialised memory, whatever it holds.
///
/// Moving it into a work request is how the program promises to keep off the memory while a device or
/// a peer writes it: see the crate's documentation.
pub struct Buf {
    // Invariants:
    // - `pool` is alive: it counts our units as outstanding.
    // - `pointer` is the first byte of a unit; it and the next `units - 1` are handed out to us alone.
    // - `1 <= units`, and `len` bytes fit into them.
    pointer: NonNull<u8>,
    pool: NonNull<Inner>,
    len: u32,
    units: u32,
}

const _: () = assert!(size_of::<Buf>() == 24 && size_of::<Option<Buf>>() == 24);

impl Buf {
    /// # Safety
    ///
    /// The invariants of the fields, and no other value gives these units back.
    #[inline]
    pub(crate) unsafe fn from_parts(pool: NonNull<Inner>, pointer: NonNull<u8>, units: u32, len: u32) -> Buf {
        Buf { pointer, pool, len, units }
    }

    #[inline]
    fn pool(&self) -> &Inner {
        // SAFETY: alive, by the field's invariant; only ever borrowed shared.
        unsafe { self.pool.as_ref() }
    }

    /// Bytes in use.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether no byte is in use.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that it has room for.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.units as usize * self.pool().unit_len() as usize
    }

    /// Says how many bytes are in use. What is gained holds whatever was there.
    ///
    /// # Panics
    ///
    /// If `len` is more than [`Buf::capacity`], or than 4 GiB - 1.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        let limit = self.capacity().min(u32::MAX as usize);
        assert!(len <= limit, "{len} bytes in a buffer of {limit}");
        self.len = len as u32;
    }

    /// As [`Buf::set_len`], for a `len` that is known to fit.
    #[inline]
    pub(crate) fn set_len_within(&mut self, len: u32) {
        self.len = len;
    }

    /// Where it begins.
    #[inline]
    #[must_use]
    pub fn location(&self) -> Location {
        let pool = self.pool();
        Location { arena: pool.arena_id(), offset: pool.arena_offset(self.pointer) }
    }

    /// The first byte, for providers. Valid for reads of [`Buf::capacity`] bytes while the buffer lives.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.pointer.as_ptr()
    }

    /// The first byte, for providers. Valid for reads and writes of [`Buf::capacity`] bytes while the buffer
    /// lives, by any party. The holder must not make a reference to the bytes while another party may write
    /// them.
    #[inline]
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    /// Sets `len` and gives back the units behind it; the first stays.
    ///
    /// # Panics
    ///
    /// If `len` is more than [`Buf::capacity`].
    pub fn shrink_to(&mut self, len: usize) {
        self.set_len(len);
        let units = self.pool().units_for(self.len);
        if units < self.units {
            let first = self.pool().index_of(self.pointer);
            let tail = self.units - units;
            self.units = units;
            // SAFETY: the tail was ours and is not any more; the units that stay keep the pool alive.
            unsafe { Inner::give(self.pool, first + units, tail) };
        }
    }

    /// Turns it into a counted reference to its `len()` bytes, which are read-only from then on. Units behind
    /// them go back to the pool at once.
    #[inline]
    #[must_use]
    pub fn share(self) -> Shared {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so its units are handed over, and it was their only owner.
        unsafe { Shared::from_run(this.pool, this.pointer, this.units, this.len) }
    }

    /// Gives the memory up for good: something else may access it at any time, and does not say when it is done. The memory stays
    /// mapped and is never used again. [`Pool::stranded`](crate::Pool::stranded) counts its units.
    pub fn strand(self) {
        let this = ManuallyDrop::new(self);
        this.pool().strand(this.units);
    }
}

impl Deref for Buf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY:
        // - In bounds, initialised and alive: `len` bytes fit into our units (invariants here and of `Inner`),
        //   and `pool`, which they keep alive, keeps the arena mapped.
        // - Not written meanwhile: the units are ours alone, and writing through `self` needs `&mut self`. While
        //   another party may write them, the buffer is held by value, so this cannot be called (crate
        //   documentation).
        unsafe { slice::from_raw_parts(self.pointer.as_ptr(), self.len as usize) }
    }
}

impl DerefMut for Buf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; and `&mut self` is the only way to these bytes.
        unsafe { slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len as usize) }
    }
}

impl AsRef<[u8]> for Buf {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buf {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Drop for Buf {
    #[inline]
    fn drop(&mut self) {
        let first = self.pool().index_of(self.pointer);
        // SAFETY: the units are ours, and this is the end of `self`.
        unsafe { Inner::give(self.pool, first, self.units) };
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf")
            .field("pool", &self.pool().name())
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .field("offset", &self.location().offset)
            .finish()
    }
}
