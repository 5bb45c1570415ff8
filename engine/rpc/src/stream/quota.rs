//! How much payload memory holds records that have not all arrived. What a service keeps of them is not counted.

use stag_memory::{Buf, Pool};

/// The account of one engine.
#[derive(Debug)]
pub(super) struct Quota {
    held: usize,
    max: usize,
}

impl Quota {
    pub(super) fn new(max: usize) -> Quota {
        Quota { held: 0, max }
    }

    /// Whether `octets` more may be held.
    #[inline]
    pub(super) fn has(&self, octets: usize) -> bool {
        self.held + octets <= self.max
    }

    #[inline]
    pub(super) fn hold(&mut self, octets: usize) {
        self.held += octets;
    }

    #[inline]
    pub(super) fn release(&mut self, octets: usize) {
        debug_assert!(octets <= self.held, "released more than was held");
        self.held -= octets;
    }

    /// Takes an empty buffer of at least `len` octets, whatever the limit. [`Quota::give`] it back.
    #[inline]
    pub(super) fn take(&mut self, pool: &Pool, len: usize) -> Option<Buf> {
        let mut buf = pool.take_len(len)?;
        buf.set_len(0);
        self.hold(buf.capacity());
        Some(buf)
    }

    #[inline]
    pub(super) fn give(&mut self, buf: Buf) {
        self.release(buf.capacity());
    }
}
