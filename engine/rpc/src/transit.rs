//! Shares of the payload memory that Calls and Replies pass through.
//!
//! What stores keep is counted apart ([`Pool::set_aside`]); the rest is for transit, and every connection takes from it
//! while a peer has to do something: to let a chunk be read, to send the rest of a record. So it must not be possible to
//! take all of it and then do nothing.
//!
//! - A connection that holds something gets more only while it would hold no more than half of what is free, as
//!   switches do that share one buffer among their ports (a dynamic threshold). Whoever is greedy settles at an equal
//!   part, and waits alone; one who comes later finds twice as much as each of them has.
//! - A peer that has not shown that it answers gets a *probe* first, a few pages. Those of all connections together are
//!   at most one part in [`PROBES_SHARE`]. So peers that never answer hold next to nothing.
//! - A Call gets all of its remaining memory at once, or none and waits: two that hold parts cannot wait for each other.
//! - Some pages are left for messages on byte streams, so that a Call without bulk data never waits for one with.

use stag_memory::Pool;

/// Of the pages for transit, probes of all connections together take at most one part in so many.
const PROBES_SHARE: usize = 4;

/// Pages of a probe at most.
const PROBE_MAX: usize = 16;

/// Pages that bulk data leaves to others at most.
const RESERVE_MAX: usize = 128;

/// Of the pages for transit, bulk data leaves one part in so many to others at most.
const RESERVE_SHARE: usize = 16;

/// Pages that bulk data leaves to messages on byte streams.
pub(crate) fn reserve(pool: &Pool) -> usize {
    (pool.transit() / RESERVE_SHARE).min(RESERVE_MAX)
}

/// Pages that bulk data may take now.
#[inline]
pub(crate) fn free(pool: &Pool) -> usize {
    pool.transit_free().saturating_sub(reserve(pool))
}

/// Pages that hold `octets`.
#[inline]
pub(crate) fn pages(pool: &Pool, octets: usize) -> usize {
    octets.div_ceil(pool.unit_len())
}

/// What one connection holds of the memory for transit.
#[derive(Debug, Default)]
pub(crate) struct TransitShare {
    /// Pages that its Calls hold.
    held: usize,
    /// Of these, pages that its peer has still to fill.
    unanswered: usize,
    /// Its peer has let something be read, and goes on doing so.
    pub(crate) is_trusted: bool,
    /// Pages that were free, and held, when it was last refused some: while neither has become better there is no use in
    /// trying again.
    refused: Option<(usize, usize)>,
}

impl TransitShare {
    /// Pages of a probe, where `connections` may each have one.
    pub(crate) fn probe_len(pool: &Pool, connections: u32) -> usize {
        (pool.transit() / PROBES_SHARE / connections.max(1) as usize).clamp(1, PROBE_MAX)
    }

    /// Pages that its Calls hold.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Whether `pages` more are its due, and are there.
    pub(crate) fn may_take(&self, pool: &Pool, pages: usize) -> bool {
        let free = free(pool);
        pages == 0 || pages <= free && (self.held == 0 || 2 * (self.held + pages) <= free)
    }

    /// Counts `pages` more.
    pub(crate) fn take(&mut self, pages: usize) {
        self.held += pages;
    }

    /// Counts `pages` less.
    pub(crate) fn give(&mut self, pages: usize) {
        debug_assert!(pages <= self.held, "gave back more than was held");
        self.held -= pages;
    }

    /// Pages that its peer has still to fill.
    pub(crate) fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// Of what was taken, its peer is asked to fill `pages`.
    pub(crate) fn ask(&mut self, pages: usize) {
        self.unanswered += pages;
    }

    /// Its peer filled `pages`.
    pub(crate) fn answered(&mut self, pages: usize) {
        self.unanswered -= pages;
        if self.unanswered == 0 {
            self.refused = None;
        }
        if !self.is_trusted {
            self.is_trusted = true;
            self.refused = None;
        }
    }

    /// Remembers that it was refused.
    pub(crate) fn refuse(&mut self, pool: &Pool) {
        self.refused = Some((pool.transit_free(), self.held));
    }

    /// Whether what was refused might be granted now.
    pub(crate) fn is_worth_trying(&self, pool: &Pool) -> bool {
        self.refused.is_none_or(|(free, held)| pool.transit_free() > free || self.held < held)
    }
}

#[cfg(test)]
mod tests {
    use stag_memory::{Arena, ArenaConfig, Budget, PageChoice, PageSize};

    use super::*;

    fn pool(units: usize) -> Pool {
        let page = PageChoice::Size(PageSize::Base);
        let budget = Budget::new(1 << 30);
        let len = Pool::footprint(4096, units);
        let arena = Arena::new(&ArenaConfig { name: "test", len, page, node: None, budget: &budget });
        Pool::runs(&arena.expect("some megabytes"), "pages", 4096, units).expect("it fits")
    }

    #[test]
    fn the_greedy_settle_at_equal_parts_and_one_who_comes_later_finds_as_much() {
        let pool = pool(3200);
        let mut shares: Vec<TransitShare> = (0..9).map(|_| TransitShare::default()).collect();
        let mut taken = Vec::new();
        for turn in 0..9 * 400 {
            let share = &mut shares[turn % 9];
            if share.may_take(&pool, 8) {
                share.take(8);
                taken.push(pool.take_len(8 * 4096).expect("it is free"));
            }
        }
        let held: Vec<usize> = shares.iter().map(TransitShare::held).collect();
        let part = (3200 - reserve(&pool)) / 11;
        assert!(held.iter().all(|held| held.abs_diff(part) <= 24), "{part}: {held:?}");
        assert!(TransitShare::default().may_take(&pool, 2 * part - 96), "{held:?}");
    }

    #[test]
    fn all_connections_together_leave_pages_to_messages() {
        let pool = pool(3200);
        let mut taken = Vec::new();
        for pages in [1000, 100, 10, 1] {
            while TransitShare::default().may_take(&pool, pages) {
                taken.push(pool.take_len(pages * 4096).expect("it is free"));
            }
        }
        assert_eq!(pool.transit_free(), RESERVE_MAX);
    }

    #[test]
    fn probes_of_all_connections_leave_most_of_the_memory() {
        let pool = pool(3200);
        for connections in [1, 24, 240, 4096] {
            let probes = TransitShare::probe_len(&pool, connections) * connections as usize;
            assert!(probes <= 800 || connections > 800, "{connections}");
        }
    }
}
