//! Tests of the whole provider that need to see its inside: full rings, sleep, fences; and [`hostile`] peers.
//!
//! Both sides run in one thread, in turns; two processes are in `tests/shm.rs`.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use stag_memory::{Arena, ArenaConfig, Budget, Buf, PageChoice, Pool};

use super::rendezvous::{self, Address};
use super::{Shm, ShmConfig};
use crate::{
    Completed, Completion, DisconnectReason, Event, Exposed, FabricError, Fence, Handle, PostError, Provider,
    QueuePairCapacity, QueuePairId, Refused, RemoteSegment, SendRequest, WorkError, WriteRequest,
};

mod greedy;
mod hostile;
mod idle;

pub(in crate::shm) use hostile::lingering;

const CAPACITY: QueuePairCapacity = QueuePairCapacity {
    receives: 16,
    sends: 16,
    exposures: 8,
    send_len_max: 1024,
    receive_len_max: 1024,
    receive_targets: 0,
};

struct Side {
    shm: Shm,
    messages: Pool,
    now: Duration,
    completions: VecDeque<Completion>,
    events: Vec<Event>,
}

fn address() -> String {
    // Partner of nothing: only uniqueness matters.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("unit-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn arena() -> Arena {
    let budget = Budget::new(16 << 20);
    let page = PageChoice::Size(stag_memory::PageSize::Base);
    Arena::new(&ArenaConfig { name: "unit", len: 1 << 20, page, node: None, budget: &budget }).unwrap()
}

impl Side {
    fn new(config: ShmConfig) -> Side {
        let arena = arena();
        let messages = Pool::runs(&arena, "messages", 1024, 512).unwrap();
        let mut shm = Shm::open(config).unwrap();
        shm.register(&arena).unwrap();
        let (completions, events) = (VecDeque::with_capacity(64), Vec::new());
        Side { shm, messages, now: Duration::ZERO, completions, events }
    }

    fn buf(&self, bytes: &[u8]) -> Buf {
        let mut buf = self.messages.take_len(bytes.len().max(1)).unwrap();
        buf.set_len(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    fn turn(&mut self) {
        self.now += Duration::from_micros(10);
        self.shm.ring_doorbells();
        let mut completions = VecDeque::with_capacity(64);
        self.shm.poll(self.now, &mut completions, 64);
        self.completions.append(&mut completions);
        while let Some(event) = self.shm.poll_event() {
            self.events.push(event);
        }
    }

    fn send(&mut self, pair: QueuePairId, bytes: &[u8]) -> Result<(), PostError> {
        let buf = self.buf(bytes);
        let request = SendRequest { id: 7, buf, invalidate: None, signaled: false };
        self.shm.post_send(pair, request).map_err(|refused| refused.error)
    }

    fn receive(&mut self, pair: QueuePairId) {
        let buf = self.messages.take().unwrap();
        self.shm.post_receive(pair, 1, buf).unwrap();
    }

    fn messages(&mut self) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        self.completions.retain(|completion| match &completion.completed {
            Completed::Receive { buf, .. } if completion.result.is_ok() => {
                messages.push(buf.to_vec());
                false
            }
            _ => true,
        });
        messages
    }

    fn reason(&self, pair: QueuePairId) -> Option<DisconnectReason> {
        self.events.iter().find_map(|event| match event {
            Event::Disconnected { queue_pair, reason } if *queue_pair == pair => Some(reason.clone()),
            _ => None,
        })
    }
}

/// Runs both sides in turns until `done` says so.
fn until<T>(sides: &mut [&mut Side], mut done: impl FnMut(&mut [&mut Side]) -> Option<T>) -> T {
    for _ in 0..200_000 {
        for side in sides.iter_mut() {
            side.turn();
        }
        if let Some(value) = done(sides) {
            return value;
        }
    }
    panic!("200000 turns were not enough");
}

/// As [`until`], with the other side in another thread, which runs when it may.
fn wait<T>(side: &mut Side, mut done: impl FnMut(&mut Side) -> Option<T>) -> T {
    for _ in 0..20_000_000 {
        side.turn();
        if let Some(value) = done(side) {
            return value;
        }
        thread::yield_now();
    }
    panic!("20 million turns were not enough");
}

/// For sides in threads: their time is counted in turns, and one may get many while the other gets none.
fn patient(may_sleep: bool) -> ShmConfig {
    ShmConfig { may_sleep, setup_timeout: Duration::from_secs(1 << 20), ..ShmConfig::default() }
}

fn connect(client: &mut Side, server: &mut Side, capacity: QueuePairCapacity) -> (QueuePairId, QueuePairId) {
    let address = address();
    server.shm.listen(&address).unwrap();
    let a = client.shm.connect(&address, b"", capacity).unwrap();
    let b = until(&mut [client, server], |sides| accept(sides[1], capacity));
    until(&mut [client, server], |sides| {
        let established = |side: &Side| side.events.iter().any(|e| matches!(e, Event::Established { .. }));
        (established(sides[0]) && established(sides[1])).then_some(())
    });
    (a, b)
}

fn accept(server: &mut Side, capacity: QueuePairCapacity) -> Option<QueuePairId> {
    let is_request = |event: &Event| matches!(event, Event::ConnectRequest { .. });
    let at = server.events.iter().position(is_request)?;
    let Event::ConnectRequest { request, .. } = server.events.remove(at) else { return None };
    let pair = server.shm.prepare(request, capacity).unwrap();
    server.shm.accept(pair, b"").unwrap();
    Some(pair)
}

fn pair() -> (Side, Side, QueuePairId, QueuePairId) {
    let (mut client, mut server) = (Side::new(ShmConfig::default()), Side::new(ShmConfig::default()));
    let (a, b) = connect(&mut client, &mut server, CAPACITY);
    (client, server, a, b)
}

#[test]
fn a_full_ring_pushes_back_and_keeps_order() {
    let (mut client, mut server, a, b) = pair();
    // The peer does not receive: the ring fills, then the send queue, and then it is Full.
    let (mut sent, mut rest) = (0u32, None);
    for i in 0..1000u32 {
        match client.send(a, &[&i.to_ne_bytes()[..], &[0xaa; 996]].concat()) {
            Ok(()) => sent += 1,
            Err(error) => {
                rest = Some(error);
                break;
            }
        }
    }
    assert_eq!(rest, Some(PostError::Full));
    // Two records of 1008 bytes are a batch of 2 KiB, one line stays clear; and 16 that wait.
    assert_eq!(sent, 16 + 15);

    for seen in 0..sent {
        server.receive(b);
        let message = until(&mut [&mut client, &mut server], |sides| sides[1].messages().pop());
        assert_eq!(message[..4], seen.to_ne_bytes());
    }
    client.send(a, b"there is room again").unwrap();
}

#[test]
fn completions_keep_posting_order_behind_a_send_that_waits() {
    let (mut client, mut server, a, b) = pair();
    let memory = server.buf(&[0; 100]);
    let segment = server.shm.expose(b, Exposed::Write(memory)).unwrap();
    for _ in 0..3 {
        server.turn();
        client.turn();
    }
    while !client.shm.slots[0].as_ref().unwrap().has_chores() {
        client.send(a, &[1; 1000]).unwrap();
    }
    let buf = client.buf(b"signaled");
    client.shm.post_send(a, SendRequest { id: 100, buf, invalidate: None, signaled: true }).unwrap();
    let source = client.buf(&[9; 100]).share();
    client.shm.post_write(a, WriteRequest { id: 101, source, target: segment, signaled: true }).unwrap();
    client.turn();
    assert!(client.completions.is_empty(), "the Send waits, so what is behind it does");
    let ids = until(&mut [&mut client, &mut server], |sides| {
        sides[1].messages();
        if sides[1].messages.outstanding() < 8 {
            sides[1].receive(b);
        }
        let ids: Vec<u64> = sides[0].completions.iter().map(|c| c.id).collect();
        (ids.len() == 2).then_some(ids)
    });
    assert_eq!(ids, [100, 101]);
}

#[test]
fn large_messages_get_a_large_ring() {
    let (mut client, mut server) = (Side::new(ShmConfig::default()), Side::new(ShmConfig::default()));
    let capacity = QueuePairCapacity { send_len_max: 65536, receive_len_max: 65536, ..CAPACITY };
    let (a, b) = connect(&mut client, &mut server, capacity);
    for len in [65536, 1, 40000, 65535] {
        let buf = server.messages.take_len(65536).unwrap();
        server.shm.post_receive(b, 1, buf).unwrap();
        let message: Vec<u8> = (0..len).map(|i: u32| (i * 7 + len) as u8).collect();
        client.send(a, &message).unwrap();
        let got = until(&mut [&mut client, &mut server], |sides| sides[1].messages().pop());
        assert!(got == message, "{len} bytes");
    }
}

#[test]
fn what_does_not_fit_is_refused_and_the_peer_is_told_why() {
    let mut client = Side::new(ShmConfig::default());
    let mut server = Side::new(ShmConfig { completions: 50, ..ShmConfig::default() });
    let address = address();
    server.shm.listen(&address).unwrap();
    let first = client.shm.connect(&address, b"", CAPACITY).unwrap();
    until(&mut [&mut client, &mut server], |sides| accept(sides[1], CAPACITY));
    let second = client.shm.connect(&address, b"", CAPACITY).unwrap();
    let error = until(&mut [&mut client, &mut server], |sides| {
        let at = sides[1].events.iter().position(|e| matches!(e, Event::ConnectRequest { .. }))?;
        let Event::ConnectRequest { request, .. } = sides[1].events.remove(at) else { return None };
        Some(sides[1].shm.prepare(request, CAPACITY).unwrap_err())
    });
    assert!(matches!(error, FabricError::Limit { wanted: 80, limit: 50, .. }), "{error}");
    let reason = until(&mut [&mut client, &mut server], |sides| sides[0].reason(second));
    assert!(
        matches!(&reason, DisconnectReason::Rejected(why) if why.contains("the limit is 50")),
        "{reason:?}"
    );
    assert_eq!(client.reason(first), None);

    // What ends makes room.
    client.shm.disconnect(first);
    until(&mut [&mut client, &mut server], |sides| sides[0].reason(first));
    until(&mut [&mut client, &mut server], |sides| (sides[1].shm.completions_taken == 0).then_some(()));
}

#[test]
fn a_stale_id_names_nothing() {
    let (mut client, mut server, a, _) = pair();
    client.shm.disconnect(a);
    until(&mut [&mut client, &mut server], |sides| sides[0].reason(a));
    assert_eq!(client.send(a, b"x"), Err(PostError::NotConnected));
    assert!(client.shm.fence(a, Handle(1), 0).is_none());
    client.shm.disconnect(a);
}

#[test]
fn dropping_the_provider_ends_its_connections_in_order() {
    let (client, mut server, _, b) = pair();
    server.receive(b);
    let memory = server.buf(&[0; 10]);
    server.shm.expose(b, Exposed::Write(memory)).unwrap();
    drop(client);
    let reason = until(&mut [&mut server], |sides| sides[0].reason(b));
    assert_eq!(reason, DisconnectReason::Peer);
    server.completions.clear();
    assert_eq!(server.messages.outstanding(), 0);
}

#[test]
fn a_listener_that_says_nothing_times_out() {
    let name = address();
    let listener = rendezvous::listen(&Address::new(&name).unwrap()).unwrap();
    let mut client = Side::new(ShmConfig::default());
    let pair = client.shm.connect(&name, b"", CAPACITY).unwrap();
    client.receive(pair);
    client.turn();
    assert!(client.shm.poll_timeout().is_some_and(|at| at <= client.now + Duration::from_secs(5)));
    client.now += Duration::from_secs(6);
    let reason = until(&mut [&mut client], |sides| sides[0].reason(pair));
    assert_eq!(reason, DisconnectReason::TimedOut);
    client.completions.clear();
    assert_eq!(client.messages.outstanding(), 0);
    drop(listener);
}

#[test]
fn arenas_are_mapped_once_for_all_connections() {
    let (mut client, mut server) = (Side::new(ShmConfig::default()), Side::new(ShmConfig::default()));
    let address = address();
    server.shm.listen(&address).unwrap();
    for _ in 0..3 {
        client.shm.connect(&address, b"", CAPACITY).unwrap();
        until(&mut [&mut client, &mut server], |sides| accept(sides[1], CAPACITY));
    }
    assert_eq!(server.shm.regions.mapped(), 2, "an arena, and the bells");
    drop(client);
    until(&mut [&mut server], |sides| (sides[0].shm.regions.mapped() == 0).then_some(()));
}

/// Two reactors that sleep whenever they may; a lost wake-up would end the test by its time limit.
#[test]
fn sleepers_are_always_woken() {
    const ROUNDS: u32 = 3000;
    let config = patient(true);
    let name = address();
    let mut server = Side::new(config.clone());
    server.shm.listen(&name).unwrap();

    fn sleep(side: &mut Side) {
        if side.shm.arm() {
            let fd = side.shm.descriptor().unwrap().as_raw_fd();
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry.
            let ready = unsafe { libc::poll(&raw mut poll, 1, 20_000) };
            assert!(ready == 1, "no wake-up for 20 s");
            side.shm.disarm();
        }
    }

    let client_name = name.clone();
    let client = thread::spawn(move || {
        let mut client = Side::new(config);
        let pair = client.shm.connect(&client_name, b"", CAPACITY).unwrap();
        client.receive(pair);
        loop {
            client.turn();
            if client.events.iter().any(|e| matches!(e, Event::Established { .. })) {
                break;
            }
            sleep(&mut client);
        }
        for round in 0..ROUNDS {
            client.send(pair, &round.to_ne_bytes()).unwrap();
            loop {
                client.turn();
                if let Some(message) = client.messages().pop() {
                    assert_eq!(message, round.to_ne_bytes());
                    client.receive(pair);
                    break;
                }
                sleep(&mut client);
            }
        }
        client.shm.disconnect(pair);
        while client.reason(pair).is_none() {
            client.turn();
        }
    });
    let mut pair = None;
    loop {
        server.turn();
        if pair.is_none() {
            pair = accept(&mut server, CAPACITY);
            if let Some(pair) = pair {
                server.receive(pair);
            }
        }
        if let Some(pair) = pair {
            for message in server.messages() {
                server.receive(pair);
                server.send(pair, &message).unwrap();
            }
            if let Some(reason) = server.reason(pair) {
                assert_eq!(reason, DisconnectReason::Peer);
                break;
            }
        }
        sleep(&mut server);
    }
    client.join().unwrap();
}

/// Two threads, messages of any length both ways, Receives posted late: nothing is lost, torn or out of order.
#[test]
fn messages_both_ways_under_pressure() {
    const COUNT: u64 = 20_000;
    let name = address();

    fn run(side: &mut Side, pair: QueuePairId, salt: u64) {
        let mut state = salt;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let message = |number: u64, salt: u64| {
            let len = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt) % 1016;
            let mut bytes = number.to_ne_bytes().to_vec();
            bytes.extend((0..len).map(|i| (i ^ number ^ salt) as u8));
            bytes
        };
        let (mut sent, mut received, mut posted) = (0, 0, 0);
        while sent < COUNT || received < COUNT {
            thread::yield_now();
            for _ in 0..random() % 20 {
                if sent < COUNT && side.send(pair, &message(sent, salt)).is_ok() {
                    sent += 1;
                }
            }
            for _ in 0..random() % 8 {
                if posted < 16 && received + posted < COUNT {
                    side.receive(pair);
                    posted += 1;
                }
            }
            side.turn();
            for bytes in side.messages() {
                assert!(bytes == message(received, 3 - salt), "message {received}");
                received += 1;
                posted -= 1;
            }
            assert_eq!(side.reason(pair), None);
        }
    }

    let mut server = Side::new(patient(false));
    server.shm.listen(&name).unwrap();
    let client_name = name.clone();
    let client = thread::spawn(move || {
        let mut client = Side::new(patient(false));
        let pair = client.shm.connect(&client_name, b"", CAPACITY).unwrap();
        wait(&mut client, |client| (!client.events.is_empty()).then_some(()));
        run(&mut client, pair, 1);
        // A disconnect throws away what no Receive is posted for: so say that we have it all.
        wait(&mut client, |client| client.send(pair, b"all here").ok());
        wait(&mut client, |client| client.reason(pair))
    });
    let pair = wait(&mut server, |server| accept(server, CAPACITY));
    wait(&mut server, |server| (!server.events.is_empty()).then_some(()));
    run(&mut server, pair, 2);
    server.receive(pair);
    wait(&mut server, |server| server.messages().pop());
    server.shm.disconnect(pair);
    wait(&mut server, |server| server.reason(pair));
    assert_eq!(client.join().unwrap(), DisconnectReason::Peer);
}

/// Clients that come back all at once are all heard: one more may wait for each free place.
#[test]
fn all_come_back_at_once() {
    let name = address();
    let mut server = Side::new(patient(false));
    let mut client = Side::new(patient(false));
    server.shm.listen(&name).unwrap();
    for _ in 0..200 {
        client.shm.connect(&name, b"", CAPACITY).unwrap();
    }
    until(&mut [&mut server, &mut client], |sides| {
        assert!(sides[1].events.is_empty(), "{:?}", sides[1].events);
        let is_request = |event: &&Event| matches!(event, Event::ConnectRequest { .. });
        (sides[0].events.iter().filter(is_request).count() == 200).then_some(())
    });
}

/// The real memory model, for what loom shows of the abstract one: the target fences while the initiator writes,
/// and whatever the fence gave back is not written any more.
#[test]
fn fenced_memory_is_never_written_again() {
    let name = address();
    let mut server = Side::new(patient(false));
    server.shm.listen(&name).unwrap();
    let stop = std::sync::Arc::new(AtomicU32::new(0));
    let (client_name, client_stop) = (name.clone(), stop.clone());
    let initiator = thread::spawn(move || {
        let mut client = Side::new(patient(false));
        let pair = client.shm.connect(&client_name, b"", CAPACITY).unwrap();
        let source = client.buf(&[0xff; 4096]).share();
        let (mut segment, mut writes) = (None, 0u64);
        while client_stop.load(Ordering::Acquire) == 0 {
            client.turn();
            for _ in 0..16 - client.shm.slots[0].as_ref().map_or(16, |p| p.receives_posted()) {
                client.receive(pair);
            }
            for message in client.messages() {
                let word = |at: usize| u64::from_ne_bytes(message[at..at + 8].try_into().unwrap());
                segment = Some(RemoteSegment { handle: Handle(word(0) as u32), offset: word(8) });
            }
            // Not `post_write`: a refusal would end the connection.
            if let (Some(target), Some(Some(pair))) = (segment, client.shm.slots.first_mut()) {
                writes += u64::from(pair.try_write(&source, target));
                client.shm.mark_dirty(0);
            }
        }
        writes
    });

    let pair = wait(&mut server, |server| accept(server, CAPACITY));
    wait(&mut server, |server| (!server.events.is_empty()).then_some(()));
    let mut pending = 0;
    for round in 0..2000 {
        let mut exposed = Exposed::Write(server.buf(&[0; 4096]));
        let segment = loop {
            match server.shm.expose(pair, exposed) {
                Ok(segment) => break segment,
                // The announcements of earlier ones still wait for room.
                Err(Refused { request, error }) => {
                    assert_eq!(error, PostError::Full);
                    exposed = request;
                    server.turn();
                }
            }
        };
        let mut message = u64::from(segment.handle.0).to_ne_bytes().to_vec();
        message.extend_from_slice(&segment.offset.to_ne_bytes());
        while server.send(pair, &message).is_err() {
            server.turn();
        }
        for _ in 0..round % 50 {
            server.turn();
        }
        let exposed = match server.shm.fence(pair, segment.handle, 5).unwrap() {
            Fence::Done(exposed) => exposed,
            Fence::Pending => {
                pending += 1;
                wait(&mut server, |server| {
                    let is_fence = |c: &Completion| matches!(c.completed, Completed::Fence { .. });
                    let at = server.completions.iter().position(is_fence)?;
                    match server.completions.remove(at)?.completed {
                        Completed::Fence { exposed, .. } => Some(exposed),
                        _ => None,
                    }
                })
            }
        };
        let Exposed::Write(mut buf) = exposed else { panic!("it was exposed to be written") };
        buf.fill(0);
        for _ in 0..5 {
            server.turn();
        }
        assert!(buf.iter().all(|&byte| byte == 0), "round {round}: written after its fence");
    }
    stop.store(1, Ordering::Release);
    let writes = initiator.join().unwrap();
    println!("{writes} writes, {pending} fences had to wait");
}
