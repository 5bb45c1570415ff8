//! The tests of `server`, with two engines: Calls come in at one, and all files are at the other.

#[path = "../server/acl.rs"]
mod acl;
#[path = "../server/durable.rs"]
mod durable;
mod filling;
#[path = "../server/fragmented.rs"]
mod fragmented;
#[path = "../server/hostile.rs"]
mod hostile;
#[path = "../server/locks.rs"]
mod locks;
#[path = "../server/pair.rs"]
mod pair;
#[path = "../server/procedures.rs"]
mod procedures;
#[path = "../server/transfers.rs"]
mod transfers;
#[path = "../server/weather.rs"]
mod weather;

/// Whether Calls are executed at another engine than they came in at.
const IS_CARRIED: bool = true;

/// Versions that both ends speak.
const PROTOCOL: stag_rpc::ProtocolChoice = stag_rpc::ProtocolChoice::One;

/// Makes the stores of exports in memory, and finds the memory again.
const STORES: pair::Stores = pair::PLAIN;

/// Whether the store finishes READ, WRITE and COMMIT later, and does not tell what the file was before.
const IS_LATE: bool = false;
