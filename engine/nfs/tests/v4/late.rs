//! The tests of names, attributes, opens and data of version 4 once more, over a store that answers no question at once, and over one that answers at random.

#[path = "attributes.rs"]
mod attributes;
#[path = "changes.rs"]
mod changes;
#[path = "client.rs"]
#[expect(dead_code, reason = "shared with v4, whose other tests use the rest")]
mod client;
#[path = "data.rs"]
mod data;
#[path = "files.rs"]
mod files;
#[path = "lab.rs"]
mod lab;
#[path = "limits.rs"]
mod limits;
#[path = "listing.rs"]
mod listing;
#[path = "locks.rs"]
mod locks;
#[path = "names.rs"]
mod names;
#[path = "opens.rs"]
mod opens;
#[path = "../server/pair.rs"]
#[expect(dead_code, reason = "shared with v4, whose other tests use the rest")]
mod pair;
#[path = "../../../stores/tests/store/slow.rs"]
mod slow;
#[path = "state.rs"]
mod state;

use lab::Lab;

/// Whether Calls are executed at another engine than they came in at.
const IS_CARRIED: bool = false;

/// Versions that both ends speak.
const PROTOCOL: stag_rpc::ProtocolChoice = stag_rpc::ProtocolChoice::One;

/// Makes the stores of exports in memory, and finds the memory again.
const STORES: pair::Stores = (slow::wrap, slow::unwrap);

/// What change_info4 says of changes of directories (8881-3.3.5): others come between.
const IS_ATOMIC: bool = false;

/// Whether the files are in a directory of the machine.
const IS_DIRECTORY: bool = false;
