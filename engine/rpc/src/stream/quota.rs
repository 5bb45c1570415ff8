//! How much payload memory holds records that have not all arrived. What a service keeps of them is not counted.

use std::time::Duration;

use stag_memory::{Buf, Pool};

use crate::transit;

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

    /// Whether more than half is held. The rest is for records that get all that they still need.
    pub(super) fn is_scarce(&self) -> bool {
        2 * self.held > self.max
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

    /// Takes an empty page. The first of a record is taken whatever the limit, so that a Call without bulk data waits
    /// for none that has some. [`Quota::give`] it back.
    #[inline]
    pub(super) fn take(&mut self, pool: &Pool, is_first: bool) -> Option<Buf> {
        let is_there = match is_first {
            true => pool.transit_free() > 0,
            false => transit::free(pool) > 0 && self.has(pool.unit_len()),
        };
        if !is_there {
            return None;
        }
        let mut buf = pool.take()?;
        buf.set_len(0);
        self.hold(buf.capacity());
        Some(buf)
    }

    #[inline]
    pub(super) fn give(&mut self, buf: Buf) {
        self.release(buf.capacity());
    }
}

/// What a record that arrives takes its memory from.
pub(super) struct Means<'a> {
    pub(super) pool: &'a Pool,
    pub(super) quota: &'a mut Quota,
    /// Streams there may be.
    pub(super) streams_max: u32,
    pub(super) now: Duration,
}
