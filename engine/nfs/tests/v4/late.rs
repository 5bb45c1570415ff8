//! The tests of names, attributes, opens and data of version 4 once more, over a store that answers no question at once, and over one that answers at random.

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
#[path = "../../../stores/tests/store/slow.rs"]
mod slow;
#[path = "state.rs"]
mod state;
#[path = "weather.rs"]
mod weather;

use std::cell::RefCell;
use std::rc::Rc;

use stag_vfs::OctetLock;
use stag_wire::nfs4::Status4;

use lab::Lab;

/// Another node of the cluster.
struct Node(Rc<RefCell<slow::Cluster>>);

impl Node {
    fn new(lab: &mut Lab) -> Node {
        let exports = lab.pair.server.services_mut().0.exports().borrow();
        Node(slow::cluster(exports.shares()[0].volume().store()))
    }

    /// Has this lock from now on, or none. `false`: the server is in its way.
    fn set(&self, lock: Option<OctetLock>) -> bool {
        self.0.borrow_mut().set(lock)
    }

    /// What the server has of a range.
    fn sees(&self, first: u64, last: u64) -> Option<(u64, u64, bool)> {
        self.0.borrow().seen(first, last)
    }
}

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

/// A COMPOUND of a client that has its part of the places of a store is told to try again (8881-15.1.1.3).
#[test]
fn without_a_place_a_compound_is_told_to_try_again() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let file = lab.make_file(b"file");
    let set_max = |lab: &mut Lab, most| {
        lab.pair.server.services_mut().0.exports().borrow_mut().set_waiting_max(most);
    };
    let all = [files::put(&file), files::getattr(&[])];
    set_max(&mut lab, 0);
    lab.compound(&all, |status, _| assert_eq!(status, Status4::Delay));
    set_max(&mut lab, 2);
    lab.compound(&all, |status, _| assert_eq!(status, Status4::Ok));
}
