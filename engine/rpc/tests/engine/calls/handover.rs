//! Connections that come in at one engine and are served by another.

use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::time::Duration;

use stag_fabric::sim::{FaultPlan, Odds, World};
use stag_fabric::{DisconnectReason, Peer};
use stag_rpc::{CloseReason, ConnectionEvent, ServedAt};
use stag_runtime::Poller;

use crate::support::program::{PROGRAM, VERSION};
use crate::support::{Bench, Node, small};

/// A server that listens nowhere that matters, and an engine that takes connections for it.
struct Door {
    bench: Bench,
    door: Node<()>,
    asked: Rc<RefCell<Vec<Peer>>>,
}

impl Door {
    fn new(plan: FaultPlan, place: ServedAt) -> Door {
        let world = World::new(1, plan);
        let mut door = Node::new(&world, "door", small(), 1 << 20, |_| ());
        door.engine.listen("door").expect("the address is free");
        let bench = Bench::in_world(world, small(), small(), 0);
        let asked = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::clone(&asked);
        let destinations = vec![bench.server.engine.destination()];
        door.engine.set_placement(destinations, move |peer| {
            seen.borrow_mut().push(peer.clone());
            place
        });
        Door { bench, door, asked }
    }

    /// A client that connects to the door.
    fn dial(&mut self) {
        let mut client = Node::new(&self.bench.world, "client", small(), 1 << 20, |_| ());
        let connection = client.engine.connect("door").expect("the address is fine");
        self.bench.clients.push(client);
        self.bench.connections.push(connection);
    }

    /// Runs until client 0 knows how it went, and carries what is released.
    fn run(&mut self) -> ConnectionEvent {
        for _ in 0..10_000 {
            let now = self.bench.world.now();
            let count = self.door.poll(now) + self.bench.pass() + self.carry();
            if let Some(event) = self.bench.clients[0].events.pop() {
                return event;
            }
            if count == 0 {
                let timers = [self.door.engine.next_timeout(), self.bench.clients[0].engine.next_timeout()];
                self.bench.world.advance_before(timers.into_iter().flatten().min());
            }
        }
        panic!("the client hears nothing");
    }

    fn carry(&mut self) -> usize {
        let mut count = 0;
        while let Some((number, newcomer)) = self.door.engine.take_released() {
            assert_eq!(number, 0);
            assert_eq!(self.asked.borrow().last(), Some(newcomer.peer()));
            self.bench.server.engine.adopt_connection(newcomer);
            count += 1;
        }
        count
    }
}

#[test]
fn a_connection_is_served_where_it_belongs() {
    let mut door = Door::new(FaultPlan::default(), ServedAt::Engine(0));
    door.dial();
    let event = door.run();
    assert!(matches!(event, ConnectionEvent::Established { .. }), "{event:?}");
    assert_eq!(door.bench.server.engine.connection_count(), 1);
    assert_eq!((door.door.engine.connection_count(), door.asked.borrow().len()), (0, 1));
    door.bench.check_alive(0);
}

#[test]
fn a_connection_that_belongs_to_nobody_else_is_served_here() {
    for place in [ServedAt::Here, ServedAt::Engine(1)] {
        let mut door = Door::new(FaultPlan::default(), place);
        door.dial();
        let event = door.run();
        assert!(matches!(event, ConnectionEvent::Established { .. }), "{event:?}");
        assert_eq!(door.door.engine.connection_count(), 1);
        assert_eq!(door.bench.server.engine.connection_count(), 0);
    }
}

#[test]
fn a_reactor_does_not_sleep_while_a_connection_waits_to_be_carried() {
    let mut door = Door::new(FaultPlan::default(), ServedAt::Engine(0));
    door.dial();
    let pass = |door: &mut Door| {
        let now = door.bench.world.now();
        if door.door.poll(now) + door.bench.pass() == 0 {
            door.bench.world.advance();
        }
    };
    for _ in 0..1000 {
        pass(&mut door);
    }
    assert_eq!(door.asked.borrow().len(), 1);
    assert!(!door.door.engine.arm(), "it waits to be carried");
    assert_eq!(door.carry(), 1);
    assert!(door.door.engine.arm(), "nothing is left");
}

#[test]
fn a_full_server_refuses_what_it_adopts() {
    let mut door = Door::new(FaultPlan::default(), ServedAt::Engine(0));
    door.bench.server.engine.stop(Duration::ZERO);
    door.dial();
    let reason = match door.run() {
        ConnectionEvent::Closed { reason: CloseReason::Fabric(DisconnectReason::Rejected(why)), .. } => why,
        event => panic!("{event:?}"),
    };
    assert_eq!(reason, "the server is stopping");
}

#[test]
fn a_request_that_is_lost_on_its_way_is_counted_and_its_client_told() {
    let plan = FaultPlan { handover_lost: Odds::ALWAYS, ..FaultPlan::default() };
    let mut door = Door::new(plan, ServedAt::Engine(0));
    door.dial();
    let event = door.run();
    assert!(matches!(event, ConnectionEvent::Closed { .. }), "{event:?}");
    assert_eq!(door.bench.server.engine.statistics().connections_refused, 1);
}

#[test]
fn a_tcp_connection_is_served_where_it_belongs() {
    let mut door = Door::new(FaultPlan::default(), ServedAt::Engine(0));
    let address = door.door.engine.listen_tcp("127.0.0.1:0").expect("a port is free");
    let mut client = TcpStream::connect(address).expect("it listens");
    client.set_nonblocking(true).expect("a socket can be");
    let call = [0x8000_0028, 77, 0, 2, PROGRAM, VERSION, 0, 0, 0, 0, 0_u32];
    client.write_all(call.map(u32::to_be_bytes).as_flattened()).expect("the socket takes it");
    let mut answer = [0; 28];
    let mut now = Duration::ZERO;
    let len = loop {
        now += Duration::from_micros(100);
        door.door.engine.poll(now);
        door.carry();
        door.bench.server.engine.poll(now);
        match client.read(&mut answer) {
            Ok(len) => break len,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    };
    assert_eq!((len, &answer[..12]), (28, &[0x80, 0, 0, 24, 0, 0, 0, 77, 0, 0, 0, 1][..]));
    assert_eq!((door.door.engine.stream_count(), door.bench.server.engine.stream_count()), (0, 1));
}
