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
