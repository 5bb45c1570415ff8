//! Limits the payload memory of records that have not all arrived. Memory that a service keeps of them is not
//! counted.

use std::time::Duration;

use stag_memory::{Buf, Pool};

use super::incoming::Short;
use crate::server::transit::{Obstacle, TransitAccounts, TransitShare, reserve};

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
}

/// What a record that arrives takes its memory from.
pub(super) struct Means<'a> {
    pub(super) pool: &'a Pool,
    pub(super) quota: &'a mut Quota,
    pub(super) accounts: &'a mut TransitAccounts,
    /// Of the connection that it arrives on.
    pub(super) share: &'a mut TransitShare,
    /// Streams there may be.
    pub(super) streams_max: u32,
    pub(super) now: Duration,
}

impl Means<'_> {
    /// Takes the empty first page of a record. It may come out of the reserve, so that a Call without bulk data waits for none that
    /// has some; but of the reserve an address gets no more than it leaves free, so that records which never end do not use it
    /// up. [`Means::give_first`] ends that.
    #[inline]
    pub(super) fn take_first(&mut self) -> Result<Buf, Short> {
        if self.pool.transit_free() == 0 {
            return Err(Short { owner: None });
        }
        self.check_first()?;
        let buf = self.take_page()?;
        self.accounts.begin(self.share);
        Ok(buf)
    }

    /// Whether the address has its part of the reserve already: then not even the first octets of a record are received.
    #[inline]
    pub(super) fn check_first(&self) -> Result<(), Short> {
        let free = self.pool.transit_free();
        if free > reserve(self.pool) {
            return Ok(());
        }
        match self.accounts.has_begun(self.share, free.max(1)) {
            Some(owner) => Err(Short { owner: Some(owner) }),
            None => Ok(()),
        }
    }

    /// The record whose first page was taken is over. The page itself is counted as all others are: [`Means::give`].
    #[inline]
    pub(super) fn give_first(&mut self) {
        self.accounts.end(self.share);
    }

    /// Takes an empty page that is not the first of its record. [`Means::give`] it back.
    #[inline]
    pub(super) fn take(&mut self) -> Result<Buf, Short> {
        self.check(1)?;
        self.take_page()
    }

    fn take_page(&mut self) -> Result<Buf, Short> {
        let mut buf = self.pool.take().ok_or(Short { owner: None })?;
        buf.set_len(0);
        self.hold(1);
        Ok(buf)
    }

    /// Whether `pages` more are there, and the connection's due.
    pub(super) fn check(&self, pages: usize) -> Result<(), Short> {
        let own = self.share.held() - self.share.replies();
        match self.accounts.obstacle(self.share, self.pool, pages, own) {
            _ if !self.quota.has(pages * self.pool.unit_len()) => Err(Short { owner: None }),
            None => Ok(()),
            Some(Obstacle::Owner(owner)) => Err(Short { owner: Some(owner) }),
            Some(_) => Err(Short { owner: None }),
        }
    }

    /// Counts `pages` more.
    #[inline]
    pub(super) fn hold(&mut self, pages: usize) {
        self.quota.hold(pages * self.pool.unit_len());
        self.accounts.take(self.share, pages);
    }

    /// Counts `pages` less.
    #[inline]
    pub(super) fn give(&mut self, pages: usize) {
        self.quota.release(pages * self.pool.unit_len());
        self.accounts.give(self.share, pages);
    }
}
