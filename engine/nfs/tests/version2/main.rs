//! The tests of `server`, over version 2 of RPC-over-RDMA: data of WRITEs and READs in the messages.

#[path = "../server/acl.rs"]
mod acl;
#[path = "../server/durable.rs"]
mod durable;
#[path = "../server/hostile.rs"]
mod hostile;
#[path = "../server/locks.rs"]
mod locks;
#[path = "../server/pair.rs"]
mod pair;
mod placed;
#[path = "../server/procedures.rs"]
mod procedures;
#[path = "../server/transfers.rs"]
mod transfers;
#[path = "../server/weather.rs"]
mod weather;

/// Whether Calls are executed at another engine than they came in at.
const IS_CARRIED: bool = false;

/// Versions that both ends speak.
const PROTOCOL: stag_rpc::ProtocolChoice = stag_rpc::ProtocolChoice::Auto;

/// Makes the stores of exports in memory, and finds the memory again.
const STORES: pair::Stores = pair::PLAIN;

/// Whether the store finishes READ, WRITE and COMMIT later, and does not tell what the file was before.
const IS_LATE: bool = false;
