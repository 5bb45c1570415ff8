//! Places of Calls that wait for a store, and the parts of clients in them.

use stag_nfs::client::FinishedCall;
use stag_rpc::{Chunks, ConnectionId};
use stag_wire::nfs3::{CreateArguments, CreateHow, DirectoryName, Handle, Name, SetAttributes, Status};

use super::limits::connect;
use super::pair::Pair;
use super::slow;

/// Calls that may wait.
const PLACES: usize = 16;

fn stand_still(pair: &mut Pair, stands_still: bool) {
    let exports = pair.server.services_mut().0.exports().borrow();
    slow::cluster(exports.shares()[0].volume().store()).borrow_mut().stand_still(stands_still);
}

/// Begins to make files, whose names begin so.
fn begin(pair: &mut Pair, connection: ConnectionId, name: char, count: u64) {
    pair.connection = connection;
    for number in 0..count {
        let (root, name) = (pair.root.clone(), format!("{name}{number}"));
        let place = DirectoryName { directory: Handle(&root), name: Name(name.as_bytes()) };
        let how = CreateHow::Guarded(SetAttributes::default());
        pair.begin(&CreateArguments { place, how }, Chunks::default(), number);
    }
}

/// What this number of Calls came to.
fn results(pair: &mut Pair, count: usize) -> Vec<Result<(), Status>> {
    let mut next = || {
        let completed = pair.until(|pair| pair.client.completed());
        let reply = FinishedCall::new(completed);
        reply.reply::<CreateArguments<'_>>().unwrap().map(drop).map_err(|failure| failure.status)
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn a_client_takes_as_many_places_as_it_leaves() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    pair.server.services_mut().0.exports().borrow_mut().set_waiting_max(PLACES);
    let first = pair.connection;
    let second = connect(&mut pair, 1000);
    // With its Replies come the credits for the Calls below.
    for connection in [first, second].into_iter().cycle().take(32) {
        pair.connection = connection;
        pair.mnt(b"/data").unwrap();
    }
    stand_still(&mut pair, true);

    let again = Err(Status::Jukebox);
    begin(&mut pair, first, 'a', 12);
    assert_eq!(results(&mut pair, 4), [again; 4], "alone it has half of the places");
    begin(&mut pair, second, 'b', 6);
    assert_eq!(results(&mut pair, 2), [again; 2], "four are left when it has four");
    begin(&mut pair, first, 'c', 1);
    assert_eq!(results(&mut pair, 1), [again]);

    // Those that wait keep their places, though the first client has more than its part by now.
    stand_still(&mut pair, false);
    assert_eq!(results(&mut pair, 12), [Ok(()); 12]);
    begin(&mut pair, first, 'd', 1);
    assert_eq!(results(&mut pair, 1), [Ok(())]);
}
