//! How much payload memory holds records that have not all arrived. What a service keeps of them is not counted.

use std::time::Duration;

use stag_memory::{Buf, Pool};

use super::incoming::Short;
use crate::server::transit::{Obstacle, TransitAccounts, TransitShare};

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
    /// Takes an empty page. The first of a record is taken whatever the limit, so that a Call without bulk data waits
    /// for none that has some. [`Means::give`] it back.
    #[inline]
    pub(super) fn take(&mut self, is_first: bool) -> Result<Buf, Short> {
        if is_first {
            if self.pool.transit_free() == 0 {
                return Err(Short { owner: None });
            }
        } else {
            self.check(1)?;
        }
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
