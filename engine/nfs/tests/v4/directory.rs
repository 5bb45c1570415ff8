//! The tests of names, attributes, opens and data of version 4 once more, over directories of the machine.

#[path = "attributes.rs"]
mod attributes;
#[path = "below.rs"]
mod below;
#[path = "changes.rs"]
mod changes;
#[path = "client.rs"]
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
#[path = "restart.rs"]
mod restart;
#[path = "room.rs"]
mod room;
#[path = "state.rs"]
mod state;

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;

use stag_disk::system::{DescriptionLock, find_lock, set_lock};
use stag_vfs::OctetLock;

use lab::Lab;

/// Another node of the cluster: another open file description of the file named `file`.
struct Node(File);

impl Node {
    fn new(lab: &mut Lab) -> Node {
        Node(OpenOptions::new().read(true).write(true).open(lab.scratch[0].0.join("file")).unwrap())
    }

    /// Has this lock from now on, or none. `false`: the server is in its way.
    fn set(&self, lock: Option<OctetLock>) -> bool {
        set_lock(self.0.as_fd(), 0, u64::MAX, None).unwrap();
        lock.is_none_or(|lock| set_lock(self.0.as_fd(), lock.first, lock.last, Some(lock.exclusive)).is_ok())
    }

    /// What the server has of a range.
    fn sees(&self, first: u64, last: u64) -> Option<(u64, u64, bool)> {
        let found = find_lock(self.0.as_fd(), &DescriptionLock { first, last, exclusive: true });
        found.unwrap().map(|found| (found.first, found.last, found.exclusive))
    }
}

/// Whether Calls are executed at another engine than they came in at.
const IS_CARRIED: bool = false;

/// Versions that both ends speak.
const PROTOCOL: stag_rpc::ProtocolChoice = stag_rpc::ProtocolChoice::One;

/// Makes the stores of exports in memory, and finds the memory again.
const STORES: pair::Stores = pair::PLAIN;

/// What change_info4 says of changes of directories (8881-3.3.5): others come between.
const IS_ATOMIC: bool = false;

/// Whether the files are in a directory of the machine.
const IS_DIRECTORY: bool = true;
