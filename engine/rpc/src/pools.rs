//! The buffers of an engine.

use stag_memory::Pool;

/// Octets of a payload page.
pub const PAGE_LEN: usize = 4096;

/// The pools of one reactor. The handler's own data may live in `payload` too: an in-memory store keeps
/// placed buffers as they are.
#[derive(Clone, Debug)]
pub struct Pools {
    /// Sends and Receives: a fixed pool whose buffers hold an inline threshold each.
    pub messages: Pool,
    /// Placed data, Long Calls and Long Replies: a pool of page runs.
    pub payload: Pool,
}

impl Pools {
    /// Message buffers that `config` needs, the sum of its users.
    #[must_use]
    pub fn messages_needed(config: &crate::EngineConfig) -> usize {
        // Receives posted and Calls in process, for all connections together.
        config.receives_max as usize
            // Their Replies, until they are sent: Replies to dead clients are held until the disconnect is noticed,
            // and the others must not wait for that.
            + config.receives_max as usize
            // Receives of a client: one for each of its credits.
            + config.credits_max as usize
            // Calls of a client: a Send may complete after its Reply has come, and the next Call is made.
            + 2 * config.credits_max as usize
            // Completed Calls that the user has not let go of yet.
            + config.credits_max as usize
            // Replies that a client pulls: their messages become RDMA_DONEs.
            + if config.pull_len_max == 0 { 0 } else { 2 * config.credits_max as usize }
            // RDMA_ERROR messages in a burst of bad ones.
            + config.burst
            // For each connection: the Receives of reverse Calls or of their Replies; Sends of the Replies, or two of each Call,
            // as above; completed Calls; and Receives of RDMA_DONE.
            + config.connections_max as usize
                 * (config.reverse_receives() + 3 * config.reverse_credits + config.exposed_replies) as usize
            // In version 2: messages whose others are missing, what tells characteristics, and spare Receives.
            + if config.speaks_version_2() {
                (config.version2_connections() + 1) as usize * (config.continuation + 4) as usize
            } else {
                0
            }
    }
}
