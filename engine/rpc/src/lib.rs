//! RPC over RDMA: connections, clients and services, inside one reactor.

mod statistics;

pub use statistics::Statistics;

/// Names a connection: that of its queue pair.
pub type ConnectionId = stag_fabric::QueuePairId;
