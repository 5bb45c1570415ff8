//! The tests of the server once more, over a store that answers no question at once, and over one that answers at random.

#[path = "acl.rs"]
mod acl;
#[path = "hostile.rs"]
mod hostile;
#[path = "limits.rs"]
mod limits;
#[path = "locks.rs"]
mod locks;
#[path = "pair.rs"]
mod pair;
#[path = "places.rs"]
mod places;
#[path = "procedures.rs"]
mod procedures;
#[path = "../../../stores/tests/store/slow.rs"]
mod slow;
#[path = "transfers.rs"]
mod transfers;
#[path = "weather.rs"]
mod weather;

/// Whether Calls are executed at another engine than they came in at.
const IS_CARRIED: bool = false;

/// Versions that both ends speak.
const PROTOCOL: stag_rpc::ProtocolChoice = stag_rpc::ProtocolChoice::One;

/// Makes the stores of exports in memory, and finds the memory again.
const STORES: pair::Stores = (slow::wrap, slow::unwrap);

/// Whether the store finishes READ, WRITE and COMMIT later, and does not tell what the file was before.
const IS_LATE: bool = true;
