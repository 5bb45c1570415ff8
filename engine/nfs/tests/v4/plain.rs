//! Clients of version 4 and a server, over the simulated fabric.

#[expect(dead_code, reason = "shared with the tests of version 3, which use other parts")]
#[path = "../server/pair.rs"]
mod pair;

#[path = "attributes.rs"]
mod attributes;
#[path = "back.rs"]
mod back;
#[path = "changes.rs"]
mod changes;
#[path = "client.rs"]
mod client;
#[path = "../server/counted.rs"]
mod counted;
#[path = "data.rs"]
mod data;
#[path = "files.rs"]
mod files;
#[path = "fleet.rs"]
mod fleet;
#[path = "greedy.rs"]
mod greedy;
#[path = "handles.rs"]
mod handles;
#[path = "hostile.rs"]
mod hostile;
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
#[path = "restart.rs"]
mod restart;
#[path = "room.rs"]
mod room;
#[path = "sessions.rs"]
mod sessions;
#[path = "../../../stores/tests/store/slow.rs"]
mod slow;
#[path = "state.rs"]
mod state;
#[path = "valid_errors.rs"]
mod valid_errors;
#[path = "versions.rs"]
mod versions;
#[path = "weather.rs"]
mod weather;
#[path = "written_once.rs"]
mod written_once;

use lab::Lab;

/// Whether Calls are executed at another engine than they came in at.
const IS_CARRIED: bool = false;

/// Versions that both ends speak.
const PROTOCOL: stag_rpc::ProtocolChoice = stag_rpc::ProtocolChoice::One;

/// Makes the stores of exports in memory, and finds the memory again.
const STORES: pair::Stores = pair::PLAIN;

/// What change_info4 says of changes of directories (8881-3.3.5).
const IS_ATOMIC: bool = true;

/// Whether the files are in a directory of the machine.
const IS_DIRECTORY: bool = false;
