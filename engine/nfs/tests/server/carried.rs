//! The tests of `server`, with two engines: Calls come in at one, and all files are at the other.

#[path = "acl.rs"]
mod acl;
#[path = "counted.rs"]
mod counted;
#[path = "durable.rs"]
mod durable;
#[path = "filling.rs"]
mod filling;
#[path = "fragmented.rs"]
mod fragmented;
#[path = "hostile.rs"]
mod hostile;
#[path = "limits.rs"]
mod limits;
#[path = "locks.rs"]
mod locks;
#[path = "pair.rs"]
mod pair;
#[path = "procedures.rs"]
mod procedures;
#[path = "transfers.rs"]
mod transfers;
#[path = "weather.rs"]
mod weather;
#[path = "written_once.rs"]
mod written_once;

/// Whether Calls are executed at another engine than they came in at.
const IS_CARRIED: bool = true;

/// Versions that both ends speak.
const PROTOCOL: stag_rpc::ProtocolChoice = stag_rpc::ProtocolChoice::One;

/// Makes the stores of exports in memory, and finds the memory again.
const STORES: pair::Stores = pair::PLAIN;

/// Whether the store finishes READ, WRITE and COMMIT later, and does not tell what the file was before.
const IS_LATE: bool = false;
