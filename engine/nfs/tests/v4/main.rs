//! Clients of version 4 and a server, over the simulated fabric.

#[expect(dead_code, reason = "shared with the tests of version 3, which use other parts")]
#[path = "../server/pair.rs"]
mod pair;

mod attributes;
mod back;
mod changes;
mod client;
mod data;
mod files;
mod fleet;
mod greedy;
mod handles;
mod hostile;
mod lab;
mod listing;
mod locks;
mod names;
mod opens;
mod restart;
mod sessions;
mod state;
mod weather;

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
