//! What the halves of all connections share.

use std::collections::VecDeque;
use std::time::Duration;

use crate::client::{CompletedCall, ConnectionEvent};
use crate::config::EngineConfig;
use crate::draft::Draft;
use crate::duplicates::Duplicates;
use crate::pools::Pools;
use crate::pulling::Pull;
use crate::statistics::Statistics;

/// Everything of an engine but its connections and services.
pub(crate) struct Core<P> {
    pub(crate) provider: P,
    pub(crate) pools: Pools,
    pub(crate) config: EngineConfig,
    pub(crate) statistics: Statistics,
    pub(crate) duplicates: Duplicates,
    /// The instant of this pass.
    pub(crate) now: Duration,
    pub(crate) completed: VecDeque<CompletedCall>,
    pub(crate) events: VecDeque<ConnectionEvent>,
    /// Kept for reuse, so that the steady state allocates nothing. Boxed, because they move from here to a
    /// Call and back.
    #[allow(clippy::vec_box, reason = "the box moves, not what is in it")]
    pub(crate) drafts: Vec<Box<Draft>>,
    #[allow(clippy::vec_box, reason = "the box moves, not what is in it")]
    pub(crate) pulls: Vec<Box<Pull>>,
    /// Receives that serving connections hold: posted, or with a Call in process.
    pub(crate) receives_held: u32,
    /// Connections that serve.
    pub(crate) serving_count: u32,
    /// Credits that one serving connection may have at most, by the number of them.
    pub(crate) credit_share: u32,
    /// Counts the passes.
    pub(crate) pass: u64,
    /// A graceful stop is under way.
    pub(crate) stopping: bool,
    /// An RDMA Read was posted since the last look at completions.
    pub(crate) read_posted: bool,
}

impl<P> Core<P> {
    pub(crate) fn draft(&mut self) -> Box<Draft> {
        self.drafts.pop().unwrap_or_else(|| Box::new(Draft::new()))
    }

    pub(crate) fn put_draft(&mut self, mut draft: Box<Draft>) {
        draft.clear();
        self.drafts.push(draft);
    }

    pub(crate) fn put_pull(&mut self, mut pull: Box<Pull>) {
        pull.clear();
        self.pulls.push(pull);
    }

    /// Whether there are hardly enough message buffers to answer what is begun: nothing more is begun then.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.pools.messages.free_units() < MESSAGES_RESERVE
    }

    /// Shares the Receives anew after a change of the number of serving connections. Every connection that
    /// may still come has its first two put aside; the rest is divided equally.
    pub(crate) fn share_credits(&mut self) {
        let guaranteed = self.config.connections_max * FIRST_RECEIVES;
        let free = self.config.receives_max.saturating_sub(guaranteed);
        self.credit_share = (1 + free / self.serving_count.max(1)).min(self.config.credits_max);
    }

    /// Receives that serving connections may post beyond those they have, without taking those put aside for
    /// connections to come.
    pub(crate) fn receives_room(&self) -> u32 {
        let aside = self.config.connections_max.saturating_sub(self.serving_count) * FIRST_RECEIVES;
        self.config.receives_max.saturating_sub(self.receives_held + aside)
    }
}

/// Receives that a serving connection starts with: one credit (8166-3.3.3-a), and the spare.
pub(crate) const FIRST_RECEIVES: u32 = 1 + crate::config::SPARE_RECEIVES;

/// Message buffers that answering one Call takes: its Reply, or an RDMA_ERROR instead, and the Receive in
/// place of its own.
const MESSAGES_RESERVE: usize = 3;
