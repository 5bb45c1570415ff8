//! The last messages of a connection that ends badly are handed over, and those of others are not.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use stag_fabric::sim::{FaultPlan, World};
use stag_rpc::{BadEnd, EngineConfig};

use crate::ends::Served as Case;
use crate::raw::{octets, word};
use crate::support::program::{ECHO, LATER, NEVER, PROGRAM, VERSION};
use crate::support::{ADDRESS, small};

fn call(xid: u32, procedure: u32, arguments: &[u32]) -> Vec<u8> {
    let header = [xid, 1, 1, 0, 0, 0, 0, xid, 0, 2, PROGRAM, VERSION, procedure, 0, 0, 0, 0];
    octets(&[&header[..], arguments].concat())
}

/// Ends the connection of the test's client in order, and makes another.
fn reconnect(case: &mut Case) {
    case.raw.disconnect();
    case.run(|case| case.bench.server.engine.connection_count() == 1);
    (case.raw.closed, case.raw.established) = (None, false);
    case.raw.connect(ADDRESS);
    case.run(|case| case.raw.established);
}

/// Two Calls that wait, with one credit (8166-3.3.1-b).
fn send_too_much(case: &mut Case) {
    for xid in [1, 2] {
        let arguments = [(NEVER >> 32) as u32, NEVER as u32, 0];
        assert!(case.raw.send(&call(xid, LATER, &arguments), None));
    }
    case.run(|case| case.raw.closed.is_some() && case.bench.server.engine.connection_count() == 1);
}

#[test]
fn the_last_messages_of_a_connection_that_ends_badly_are_handed_over() {
    let server = EngineConfig { inline_threshold: 4096, ..small() };
    let mut case = Case::connected(World::new(1, FaultPlan::default()), server, Vec::new());
    let ends: Rc<RefCell<Vec<BadEnd>>> = Rc::default();
    let taken = ends.clone();
    case.bench.server.engine.record(64, move |end| taken.borrow_mut().push(end));
    reconnect(&mut case);
    let answer = case.answer_to(&call(77, ECHO, &[0]));
    assert_eq!(word(&answer, 0), 77);
    reconnect(&mut case);
    assert!(ends.borrow().is_empty(), "it ended in order");

    send_too_much(&mut case);
    {
        let ends = ends.borrow();
        let [end] = &ends[..] else { panic!("{ends:?}") };
        assert!(end.reason.contains("more Calls than it had credits for"), "{}", end.reason);
        let messages: Vec<_> = end.recording.messages().collect();
        let found: Vec<_> = messages.iter().map(|it| (word(it.octets, 0), it.is_sent)).collect();
        assert_eq!(found, [(1, false), (2, false)], "not those of the connection before");
        let [known] = &end.recording.connections[..] else { panic!("one connection") };
        assert_eq!((&known.peer, end.withheld), (&end.peer, 0));
    }

    // A second has one.
    reconnect(&mut case);
    send_too_much(&mut case);
    assert_eq!(ends.borrow().len(), 1);
    case.run_for(Duration::from_secs(1));
    reconnect(&mut case);
    send_too_much(&mut case);
    assert_eq!(ends.borrow().iter().map(|end| end.withheld).collect::<Vec<_>>(), [0, 1]);
    case.close();
}

/// A connection that ends badly without a message has nothing to hand over, and does not take the turn of one that has.
#[test]
fn an_end_without_a_message_is_not_the_one_of_its_second() {
    let mut case = Case::connected(World::new(1, FaultPlan::default()), small(), Vec::new());
    let ends: Rc<RefCell<Vec<BadEnd>>> = Rc::default();
    let taken = ends.clone();
    case.bench.server.engine.record(64, move |end| taken.borrow_mut().push(end));
    reconnect(&mut case);
    // Longer than the server's Receives: it does not arrive.
    assert!(case.raw.send(&[0; 4096], None));
    case.run(|case| case.raw.closed.is_some() && case.bench.server.engine.connection_count() == 1);
    assert!(ends.borrow().is_empty(), "{ends:?}");
    (case.raw.closed, case.raw.established) = (None, false);
    case.raw.connect(ADDRESS);
    case.run(|case| case.raw.established);
    send_too_much(&mut case);
    let ended: Vec<_> =
        ends.borrow().iter().map(|end| (end.withheld, end.recording.messages().count())).collect();
    assert_eq!(ended, [(0, 2)]);
    case.close();
}
