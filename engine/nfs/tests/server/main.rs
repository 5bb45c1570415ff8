//! Client and server together, over the simulated fabric.

mod acl;
mod durable;
mod fragmented;
mod hostile;
mod locks;
mod pair;
mod procedures;
mod transfers;
mod weather;

/// Whether Calls are executed at another engine than they came in at.
const IS_CARRIED: bool = false;

/// Versions that both ends speak.
const PROTOCOL: stag_rpc::ProtocolChoice = stag_rpc::ProtocolChoice::One;

/// Makes the stores of exports in memory, and finds the memory again.
const STORES: pair::Stores = pair::PLAIN;

/// Whether the store finishes READ, WRITE and COMMIT later, and does not tell what the file was before.
const IS_LATE: bool = false;
