//! Services that call back clients of other reactors: the Call is carried to the reactor that has the connection.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use stag_rpc::{
    CALLS_BACK_MAX, CallBackError, CallError, CallRefused, Chunks, ConnectionId, EngineConfig, name_in_group,
};
use stag_runtime::ReactorId;

use super::at_one;
use super::group::{Group, address};
use crate::raw::octets;
use crate::support::program::{ECHO, LATER, NEVER, PROGRAM, Program, VERSION};
use crate::support::{Node, PASSES_MAX, opaque, request, small};

fn both_ways() -> EngineConfig {
    EngineConfig { reverse_credits: 4, ..small() }
}

/// A client that takes Calls, connected to reactor 0, and what reactor 1 calls its connection.
struct Called {
    group: Group,
    client: Node<(Program,)>,
    forward: ConnectionId,
    named: ConnectionId,
}

impl Called {
    fn new() -> Called {
        let group = Group::configured(2, both_ways(), at_one);
        let mut client = Node::new(&group.world, "client", both_ways(), 4 << 20, |memory| {
            (Program::new(memory.pools.payload.clone()),)
        });
        let forward = client.engine.connect(&address(0)).expect("the address is fine");
        let nowhere = ConnectionId { index: 0, generation: 0 };
        let mut called = Called { group, client, forward, named: nowhere };
        called.run(|called| called.client.engine.credits_available(forward) > 0);
        called
            .client
            .engine
            .call(forward, &request(ECHO), &mut Chunks::default(), |writer| writer.opaque(b"first"))
            .expect("a credit");
        called.run(|called| called.client.done.pop().is_some());
        called.named = called.group.program(1).called_on.expect("it was executed there");
        called
    }

    fn run(&mut self, mut done: impl FnMut(&mut Called) -> bool) {
        for _ in 0..PASSES_MAX {
            if done(self) {
                return;
            }
            let count = self.group.pass() + self.client.poll(self.group.world.now());
            if count == 0 {
                let later = self.group.world.now() + Duration::from_millis(1);
                self.group.world.advance_before(Some(later));
            }
        }
        panic!("what was awaited did not happen in {PASSES_MAX} passes");
    }

    fn answers(&mut self, count: usize) -> Vec<(u64, Result<Vec<u8>, CallBackError>)> {
        self.run(|called| called.group.program(1).called_back.len() >= count);
        std::mem::take(&mut self.group.program(1).called_back)
    }

    fn close(mut self) {
        self.client.engine.disconnect(self.forward);
        self.run(|called| called.group.connections() == [0, 0]);
        self.client.engine.services_mut().0.release();
        self.run(|called| called.client.engine.services_mut().0.kept() == 0);
        for _ in 0..200 {
            self.client.poll(self.group.world.now());
        }
        assert_eq!(self.client.outstanding(), 0, "{}", self.client.memory.ledger);
        self.group.close();
    }
}

#[test]
fn a_call_back_goes_by_way_of_the_reactor_that_has_the_connection() {
    let mut called = Called::new();
    let named = called.named;
    for id in 0..40 {
        let text = opaque(&vec![id as u8; 10 * id as usize]);
        called.group.program(1).call_back(id, named, ECHO, &text);
        assert_eq!(called.answers(1), [(id, Ok(text))]);
    }
    // The name that it has here is the one that it has in the group, and no other reactor's service was told.
    assert_eq!(name_in_group(ReactorId::new(1).expect("a reactor"), named), named);
    assert_eq!(called.group.program(0).called_back, []);
    called.close();
}

#[test]
fn many_at_once_are_answered_and_those_beyond_the_limit_refused() {
    let mut called = Called::new();
    let named = called.named;
    for id in 0..CALLS_BACK_MAX as u64 + 1 {
        called.group.program(1).call_back(id, named, ECHO, &opaque(&[id as u8]));
    }
    let mut answers = called.answers(CALLS_BACK_MAX + 1);
    answers.sort_by_key(|(id, _)| *id);
    assert_eq!(answers.pop(), Some((CALLS_BACK_MAX as u64, Err(CallRefused::TooManyCallsBack.into()))));
    for (id, answer) in answers {
        assert_eq!(answer, Ok(opaque(&[id as u8])));
    }
    called.close();
}

#[test]
fn the_end_of_the_connection_ends_those_of_other_reactors() {
    let mut called = Called::new();
    let named = called.named;
    let never = [&NEVER.to_be_bytes()[..], &opaque(b"")].concat();
    called.group.program(1).call_back(1, named, LATER, &never);
    called.run(|called| called.client.engine.services_mut().0.kept() == 1);
    called.client.engine.disconnect(called.forward);
    assert_eq!(called.answers(1), [(1, Err(CallError::ConnectionLost.into()))]);
    // The reactor that had it tells its services, by the same name.
    assert_eq!(called.group.program(0).ended, [named]);
    called.group.program(1).call_back(2, named, ECHO, &opaque(b"x"));
    assert_eq!(called.answers(1), [(2, Err(CallRefused::NotConnected.into()))]);
    let other =
        name_in_group(ReactorId::new(9).expect("a reactor"), ConnectionId { index: 1, generation: 0 });
    called.group.program(1).call_back(3, other, ECHO, &opaque(b"x"));
    assert_eq!(called.answers(1), [(3, Err(CallRefused::NotConnected.into()))]);
    called.close();
}

#[test]
fn a_client_over_tcp_is_called_back_from_another_reactor() {
    // One record at a time may be on its way: a Call that is not answered does not keep the next from its client.
    let mut group = Group::with_lanes(2, 1, at_one);
    let address = group.reactors[0].engine.listen_tcp("127.0.0.1:0").expect("a port");
    let mut socket = TcpStream::connect(address).expect("it listens");
    socket.set_nonblocking(true).expect("a socket");
    let mark = |octets: &[u8]| [&(0x8000_0000 | octets.len() as u32).to_be_bytes()[..], octets].concat();
    let mut received = Vec::new();
    let mut next = |group: &mut Group, socket: &mut TcpStream| {
        for _ in 0..PASSES_MAX {
            group.pass();
            // Sockets are looked at now and then.
            group.world.advance_to(group.world.now() + Duration::from_micros(50));
            let mut space = [0; 4096];
            match socket.read(&mut space) {
                Ok(0) => panic!("the connection ended"),
                Ok(len) => received.extend(&space[..len]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            if let Some(mark) = received.first_chunk() {
                let len = (u32::from_be_bytes(*mark) & 0x7fff_ffff) as usize;
                if received.len() >= 4 + len {
                    let rest = received.split_off(4 + len);
                    return std::mem::replace(&mut received, rest).split_off(4);
                }
            }
        }
        panic!("no record in {PASSES_MAX} passes");
    };
    let call = [octets(&[1, 0, 2, PROGRAM, VERSION, ECHO, 0, 0, 0, 0]), opaque(b"x")].concat();
    socket.write_all(&mark(&call)).expect("room in the socket");
    next(&mut group, &mut socket);
    let named = group.program(1).called_on.expect("it was executed there");
    for id in 0..5 {
        for unanswered in [100 + id, 200 + id] {
            group.program(1).call_back(unanswered, named, ECHO, &opaque(b"unanswered"));
            next(&mut group, &mut socket);
        }
        group.program(1).call_back(id, named, ECHO, &opaque(b"back"));
        let record = next(&mut group, &mut socket);
        assert_eq!(record[4..8], [0; 4], "a Call");
        assert_eq!(record[40..], opaque(b"back"));
        let reply = [&record[..4], &octets(&[1, 0, 0, 0, 0]), &opaque(b"answer")].concat();
        socket.write_all(&mark(&reply)).expect("room in the socket");
        group.turns(|group| {
            group.pass();
            group.world.advance_to(group.world.now() + Duration::from_micros(50));
            !group.program(1).called_back.is_empty()
        });
        assert_eq!(std::mem::take(&mut group.program(1).called_back), [(id, Ok(opaque(b"answer")))]);
    }
    drop(socket);
    while group.reactors[0].engine.stream_count() > 0 {
        group.pass();
        group.world.advance_to(group.world.now() + Duration::from_micros(50));
    }
    group.turns(|group| {
        group.pass();
        group.program(1).called_back.len() == 10
    });
    let lost = Err(CallError::ConnectionLost.into());
    assert!(group.program(1).called_back.iter().all(|(_, end)| *end == lost));
    assert_eq!(group.program(0).ended, [named]);
    // The buffer that all sockets share.
    group.kept = 16;
    group.close();
}
