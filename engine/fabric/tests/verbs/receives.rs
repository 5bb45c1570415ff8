//! Receives that queue pairs share.

use std::collections::VecDeque;
use std::time::Duration;

use stag_fabric::verbs::{SharedReceives, Verbs, VerbsConfig};
use stag_fabric::{
    Completed, Completion, DisconnectReason, Event, PostError, Provider, QueuePairCapacity, QueuePairId,
    SendRequest, WorkError,
};
use stag_memory::{Arena, Pool};

use crate::fake;
use crate::side::*;

/// Two connections between the same two sides; B's Receives are shared.
struct Two {
    a: Verbs,
    b: Verbs,
    pools: [Pool; 2],
    _arenas: [Arena; 2],
    /// Of each connection, at A and at B.
    pairs: [[QueuePairId; 2]; 2],
    now: Duration,
    received: VecDeque<(QueuePairId, u64, Result<(), WorkError>)>,
    ended: Vec<(QueuePairId, DisconnectReason)>,
}

impl Two {
    fn new(count: u32, capacities: [QueuePairCapacity; 2]) -> Two {
        SHARED.begin();
        let shared_receives = Some(SharedReceives { count, len: CAPACITY.receive_len_max });
        let (mut a, mut b) = (
            open(REGIONS.config()).expect("a device"),
            open(VerbsConfig { shared_receives, ..SHARED.config() }).expect("a device"),
        );
        let (memories, mut pairs) = ([memory(), memory()], Vec::new());
        a.register(&memories[0].0).expect("it can be registered");
        b.register(&memories[1].0).expect("it can be registered");
        b.listen("127.0.0.1:20049").expect("the address is free");
        let mut now = Duration::ZERO;
        for capacity in capacities {
            let here = a.connect("127.0.0.1:20049", b"", capacity).expect("there is room");
            let mut there = None;
            for _ in 0..60 {
                now += TICK;
                a.poll(now, &mut VecDeque::new(), 0);
                b.poll(now, &mut VecDeque::new(), 0);
                while a.poll_event().is_some() {}
                while let Some(event) = b.poll_event() {
                    if let Event::ConnectRequest { request, .. } = event {
                        let pair = b.prepare(request, capacity).expect("there is room");
                        b.accept(pair, b"").expect("the client is there");
                        there = Some(pair);
                    }
                }
            }
            pairs.push([here, there.expect("it was asked for")]);
        }
        let [(first, of_a), (second, of_b)] = memories;
        let (received, ended) = (VecDeque::new(), Vec::new());
        let pairs = [pairs[0], pairs[1]];
        Two { a, b, pools: [of_a, of_b], _arenas: [first, second], pairs, now, received, ended }
    }

    /// Posts a Receive on one of B's queue pairs.
    fn receive(&mut self, pair: usize, id: u64) -> Result<(), PostError> {
        let buf = self.pools[1].take().expect("the pool is large enough");
        let posted = self.b.post_receive(self.pairs[pair][1], id, buf).map_err(|refused| refused.error);
        self.b.ring_doorbells();
        posted
    }

    fn send(&mut self, pair: usize) {
        let mut buf = self.pools[0].take_len(5).expect("the pool is large enough");
        buf.copy_from_slice(b"hello");
        let request = SendRequest { id: 1, buf, invalidate: None, signaled: false };
        self.a.post_send(self.pairs[pair][0], request).expect("within capacity");
        self.a.ring_doorbells();
    }

    fn pass(&mut self, turns: u32) {
        let mut completions: VecDeque<Completion> = VecDeque::with_capacity(16);
        for _ in 0..turns {
            self.now += TICK;
            // B first: the device's events go to whichever of a process' providers looks first.
            self.b.poll(self.now, &mut completions, 16);
            for completion in completions.drain(..) {
                if let Completed::Receive { buf, .. } = &completion.completed {
                    assert!(completion.result.is_err() || buf[..] == *b"hello");
                    self.received.push_back((completion.queue_pair, completion.id, completion.result));
                }
            }
            self.a.poll(self.now, &mut completions, 16);
            completions.clear();
            while self.a.poll_event().is_some() {}
            while let Some(event) = self.b.poll_event() {
                if let Event::Disconnected { queue_pair, reason } = event {
                    self.ended.push((queue_pair, reason));
                }
            }
        }
    }
}

/// Each queue pair's Receives complete in posting order, whosever buffer a message took.
#[test]
fn each_queue_pair_has_its_own_order() {
    let mut two = Two::new(16, [CAPACITY; 2]);
    for id in 0..4 {
        two.receive(0, id).expect("there is room");
        two.receive(1, 10 + id).expect("there is room");
    }
    assert_eq!((fake::calls("ibv_post_srq_recv"), fake::calls("ibv_post_recv")), (8, 0));
    // The second takes what was posted for the first.
    for pair in [1, 1, 1, 0, 0, 1, 0, 0] {
        two.send(pair);
        two.pass(10);
    }
    for (pair, ids) in [(0, 0..4), (1, 10..14)] {
        let own = two.pairs[pair][1];
        let got: Vec<u64> = two.received.iter().filter(|got| got.0 == own).map(|got| got.1).collect();
        assert_eq!(got, ids.collect::<Vec<u64>>());
    }
    assert_eq!(two.pools[1].outstanding(), 0);
}

/// A peer that sends more than was granted is left, and what it took from another goes back: the other's messages arrive.
#[test]
fn a_peer_that_sends_too_much_harms_nobody_else() {
    let mut two = Two::new(16, [CAPACITY; 2]);
    two.receive(0, 1).expect("there is room");
    for id in 0..3 {
        two.receive(1, 10 + id).expect("there is room");
    }
    two.send(0);
    two.send(0);
    two.pass(50);
    let [greedy, modest] = [two.pairs[0][1], two.pairs[1][1]];
    assert_eq!(two.received.pop_front(), Some((greedy, 1, Ok(()))));
    let what = "it sent more messages than it had Receives for";
    assert_eq!(two.ended, [(greedy, DisconnectReason::PeerViolation(what))]);
    for id in 10..13 {
        two.send(1);
        two.pass(50);
        assert_eq!(two.received.pop_front(), Some((modest, id, Ok(()))));
    }
    assert_eq!(two.pools[1].outstanding(), 0);
}

/// What a queue pair leaves over is used by the next, and its end is not waited for: the device says when it holds
/// nothing any more.
#[test]
fn what_is_left_over_is_used() {
    let mut two = Two::new(6, [CAPACITY; 2]);
    for id in 0..4 {
        two.receive(0, id).expect("there is room");
    }
    let began = two.now;
    two.b.disconnect(two.pairs[0][1]);
    while two.ended.is_empty() {
        two.pass(1);
    }
    assert!(two.now - began < Duration::from_millis(10), "{:?}", two.now - began);
    assert_eq!((two.received.len(), two.pools[1].outstanding()), (0, 4), "they stay where they are");
    let before = fake::calls("ibv_post_srq_recv");
    for id in 0..4 {
        two.receive(1, id).expect("there is room");
        assert_eq!(two.pools[1].outstanding(), 4);
    }
    assert_eq!(fake::calls("ibv_post_srq_recv"), before);
    for id in 0..4 {
        two.send(1);
        two.pass(10);
        assert_eq!(two.received.pop_front(), Some((two.pairs[1][1], id, Ok(()))));
    }
    assert_eq!(two.pools[1].outstanding(), 0);
}

/// No more are posted for all queue pairs together than there are (a credit that is granted is a Receive that is posted).
#[test]
fn nothing_is_promised_twice() {
    let mut two = Two::new(6, [CAPACITY; 2]);
    for id in 0..4 {
        two.receive(0, id).expect("there is room");
    }
    assert_eq!(two.receive(0, 4), Err(PostError::Full), "its own capacity");
    for id in 0..2 {
        two.receive(1, id).expect("there is room");
    }
    assert_eq!(two.receive(1, 2), Err(PostError::Full), "all that there are");
    two.send(0);
    two.pass(10);
    two.receive(1, 2).expect("one was used");
    assert_eq!(two.receive(0, 4), Err(PostError::Full), "the other has it now");
}

/// A queue pair whose messages are of another length, or that wants more than there are, has Receives of its own.
#[test]
fn who_does_not_suit_has_its_own() {
    let shorter = QueuePairCapacity { receive_len_max: 256, ..CAPACITY };
    let more = QueuePairCapacity { receives: 7, ..CAPACITY };
    for other in [shorter, more] {
        let mut two = Two::new(6, [CAPACITY, other]);
        two.receive(0, 1).expect("there is room");
        two.receive(1, 2).expect("there is room");
        assert_eq!((fake::calls("ibv_post_srq_recv"), fake::calls("ibv_post_recv")), (1, 1));
        for pair in [1, 0] {
            two.send(pair);
            two.pass(10);
            assert_eq!(two.received.pop_front().map(|got| got.0), Some(two.pairs[pair][1]));
        }
    }
}

/// Where a device has none, or gives none, each queue pair has its own, and the notes say why.
#[test]
fn a_device_without() {
    type Spoil = fn();
    let ways: [(Spoil, &str); 3] = [
        (|| fake::with(|world| world.has_srq = false), "has no shared receive queues"),
        (|| fake::fail("ibv_create_srq", 0, libc::ENOMEM), "gives no shared receive queue"),
        (|| (), "queue pairs share 16 Receives"),
    ];
    for (spoil, expected) in ways {
        SHARED.begin();
        spoil();
        let verbs = open(SHARED.config()).expect("a device");
        assert!(verbs.notes().iter().any(|note| note.contains(expected)), "{:?}", verbs.notes());
        assert_eq!(verbs.limits().shared_receives, expected.contains("share 16"));
    }
    SHARED.begin();
    let too_many = SharedReceives { count: 1025, len: 512 };
    let verbs = open(VerbsConfig { shared_receives: Some(too_many), ..SHARED.config() }).expect("a device");
    assert!(verbs.notes().iter().any(|note| note.contains("at most 1024")), "{:?}", verbs.notes());
}
