//! Clients of version 4 and a server, over the simulated fabric.

#[path = "../server/pair.rs"]
mod pair;

mod client;
mod handles;
mod sessions;

/// Whether Calls are executed at another engine than they came in at.
const IS_CARRIED: bool = false;

/// Versions that both ends speak.
const PROTOCOL: stag_rpc::ProtocolChoice = stag_rpc::ProtocolChoice::One;

/// Makes the stores of exports in memory, and finds the memory again.
const STORES: pair::Stores = pair::PLAIN;
