//! Grace: after a restart, clients that are known from before take back what they held, before anybody takes anything new
//! (RFC 8881 section 8.4.2).
//!
//! ```text
//! records from before ──▶ Waiting ── each client: reclaims, RECLAIM_COMPLETE ──▶ Over
//!                             └───────────── one term ─────────────────────────────┘
//! ```

use std::collections::HashMap;
use std::time::Duration;

use crate::stages::{Change, may_change};

/// What grace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraceStage {
    /// It waits for clients that are known from before the restart.
    Waiting,
    /// All of them are back, or time is up.
    Over,
}

/// Every change of its stage.
pub(crate) const CHANGES: [Change<GraceStage>; 1] =
    [(GraceStage::Waiting, GraceStage::Over, "all known clients have reclaimed, or a term has passed")];

/// Why nothing is reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReclaimRefused {
    /// NFS4ERR_NO_GRACE: grace is over, for all or for this client.
    #[error("grace is over")]
    NoGrace,
    /// NFS4ERR_RECLAIM_BAD: the server has no record of the client from before (8881-8.4.2.1-a).
    #[error("the client is not known from before the restart")]
    NotKnown,
}

/// NFS4ERR_GRACE: nothing new is given yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the grace period")]
pub struct InGrace;

/// The grace period after a start of the server.
#[derive(Debug)]
pub struct Grace {
    stage: GraceStage,
    until: Duration,
    /// Owners known from before, and whether each has reclaimed.
    known: HashMap<Box<[u8]>, bool>,
    /// Those that have not.
    left: usize,
}

impl Grace {
    /// Begins, at `now`, with the owners of the records from before. Without any it is over at once.
    #[must_use]
    pub fn new(known: impl IntoIterator<Item = Box<[u8]>>, now: Duration, term: Duration) -> Grace {
        let known: HashMap<Box<[u8]>, bool> = known.into_iter().map(|owner| (owner, false)).collect();
        let mut grace = Grace { stage: GraceStage::Waiting, until: now + term, left: known.len(), known };
        grace.settle(now);
        grace
    }

    /// Returns its stage at `now`.
    pub fn stage(&mut self, now: Duration) -> GraceStage {
        self.settle(now);
        self.stage
    }

    /// Returns how many known clients have not reclaimed yet.
    #[must_use]
    pub const fn left(&self) -> usize {
        self.left
    }

    /// Tells whether a client may take back what it held. `has_reclaimed`: it said RECLAIM_COMPLETE.
    pub fn may_reclaim(
        &mut self,
        owner: &[u8],
        has_reclaimed: bool,
        now: Duration,
    ) -> Result<(), ReclaimRefused> {
        self.settle(now);
        if self.stage == GraceStage::Over || has_reclaimed {
            return Err(ReclaimRefused::NoGrace);
        }
        if self.known.contains_key(owner) { Ok(()) } else { Err(ReclaimRefused::NotKnown) }
    }

    /// Tells whether a client may take something new: not while others may reclaim, and in 4.1 and later not before it said
    /// that it has (8881-18.51.3-b).
    pub fn may_take(&mut self, has_reclaimed: bool, now: Duration) -> Result<(), InGrace> {
        self.settle(now);
        if self.stage == GraceStage::Over && has_reclaimed { Ok(()) } else { Err(InGrace) }
    }

    /// A client said RECLAIM_COMPLETE. `true`: it was the last that grace waited for.
    pub fn complete(&mut self, owner: &[u8], now: Duration) -> bool {
        self.settle(now);
        if let Some(has_reclaimed) = self.known.get_mut(owner)
            && !std::mem::replace(has_reclaimed, true)
        {
            self.left -= 1;
        }
        let before = self.stage;
        self.settle(now);
        self.stage != before
    }

    fn settle(&mut self, now: Duration) {
        if self.stage == GraceStage::Waiting && (self.left == 0 || now >= self.until) {
            debug_assert!(may_change(&CHANGES, self.stage, GraceStage::Over));
            self.stage = GraceStage::Over;
            self.known = HashMap::new();
            self.left = 0;
        }
    }
}
