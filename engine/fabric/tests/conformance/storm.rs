//! Random programs on a simulated fabric in any weather: many connections, all kinds of work, refusals, cuts and
//! rude disconnects. The programs keep the rules (a Send only when a Receive is there for it), and so the fabric
//! must keep its own: the bench checks every completion, this file checks every octet.

use std::collections::BTreeMap;

use stag_fabric::sim::{FaultPlan, Random, sweep};
use stag_fabric::{
    Completed, DisconnectReason, Event, Exposed, Fence, Handle, PostError, Provider, QueuePairId, ReadPart,
    ReadRequest, RemoteSegment, SendRequest, WorkError, WriteRequest,
};
use stag_memory::Buf;

use crate::bench::{A, B, Bench, CAPACITY, pattern};
use crate::simulated::Simulated;

/// Programs in the suite; the long sweep says `STAG_SEEDS`.
const SEEDS: u64 = 150;
/// Things that a program does.
const ACTIONS: u32 = 400;
/// Connections at once.
const CONNECTIONS: usize = 4;

#[test]
fn random_programs_in_any_weather() {
    let mut tally = BTreeMap::new();
    let mut runs = 0;
    sweep("random_programs_in_any_weather", 0..SEEDS, |seed| {
        let (_, done) = run(seed);
        done.into_iter().for_each(|(what, count)| *tally.entry(what).or_insert(0) += count);
        runs += 1;
    });
    // Programs that do nothing would break nothing. (A single seed need not have it all.)
    for (what, at_least) in AT_LEAST {
        let count = tally.get(what).copied().unwrap_or(0);
        assert!(count >= at_least || runs < SEEDS, "{what} happened {count} times: {tally:?}");
    }
}

/// What has to happen in the course of a sweep, and how often.
const AT_LEAST: [(&str, u64); 10] = [
    ("message", 3000),
    ("flushed", 1000),
    ("read", 500),
    ("write", 500),
    ("refused access", 10),
    ("fence", 500),
    ("fence completed", 100),
    ("invalidated", 100),
    ("connection", 300),
    ("died", 20),
];

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..6 {
        assert_eq!(run(seed).0, run(seed).0, "seed {seed}");
    }
    assert_ne!(run(1).0, run(2).0, "another seed is another run");
}

/// Runs the program of a seed to its end, and returns the fingerprint of the run and what was done.
fn run(seed: u64) -> (u64, BTreeMap<&'static str, u64>) {
    let harness = Simulated::new(seed, FaultPlan::from_seed(seed));
    let world = harness.world.clone();
    let mut bench = Bench::new(harness);
    let mut program = Program::new(seed);
    for _ in 0..ACTIONS {
        program.act(&mut bench);
        program.observe(&mut bench);
    }
    bench.settle();
    program.observe(&mut bench);
    for (buf, then) in &program.kept {
        assert!(buf[..] == then[..], "fenced memory has changed");
    }
    let tally = std::mem::take(&mut program.tally);
    drop(program);
    bench.finish();
    (world.trace_hash(), tally)
}

/// Memory that a peer told us of.
#[derive(Clone, Copy)]
struct Offer {
    segment: RemoteSegment,
    len: u32,
    writable: bool,
}

impl Offer {
    fn encode(offer: Option<Offer>) -> Vec<u8> {
        let Some(Offer { segment, len, writable }) = offer else { return Vec::new() };
        let mut bytes = vec![u8::from(writable)];
        bytes.extend(segment.handle.0.to_le_bytes());
        bytes.extend(segment.offset.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Offer> {
        let (&[writable], rest) = bytes.split_first_chunk()?;
        let (handle, rest) = rest.split_first_chunk()?;
        let (offset, rest) = rest.split_first_chunk()?;
        let len = u32::from_le_bytes(rest.try_into().ok()?);
        let segment = RemoteSegment {
            handle: Handle(u32::from_le_bytes(*handle)),
            offset: u64::from_le_bytes(*offset),
        };
        Some(Offer { segment, len, writable: writable == 1 })
    }
}

/// One side of a connection, as its program sees it.
#[derive(Default)]
struct End {
    queue_pair: Option<QueuePairId>,
    is_up: bool,
    receives: u64,
    sends: u64,
    own: Vec<Offer>,
    theirs: Vec<Offer>,
}

struct Program {
    random: Random,
    next_id: u64,
    connections: Vec<[End; 2]>,
    /// What each Read has to fetch.
    reads: BTreeMap<u64, Vec<u8>>,
    /// Fenced memory, and what was in it then.
    kept: Vec<(Buf, Vec<u8>)>,
    /// What happened, how often.
    tally: BTreeMap<&'static str, u64>,
}

impl Program {
    fn new(seed: u64) -> Program {
        let random = Random::new(seed ^ 0x5701_0000);
        Program {
            random,
            next_id: 0,
            connections: Vec::new(),
            reads: BTreeMap::new(),
            kept: Vec::new(),
            tally: BTreeMap::new(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_insert(0) += 1;
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.random.below(n) == 0
    }

    /// Does one thing somewhere.
    fn act(&mut self, bench: &mut Bench<Simulated>) {
        if self.connections.len() < CONNECTIONS && self.one_in(4) {
            let queue_pair = bench.dial(&self.next_id.to_le_bytes(), CAPACITY);
            let ours = End { queue_pair: Some(queue_pair), ..End::default() };
            self.connections.push([ours, End::default()]);
        }
        for _ in 0..self.random.below(3) {
            bench.turn();
        }
        if self.connections.is_empty() {
            return;
        }
        let at = self.random.below(self.connections.len() as u64) as usize;
        let side = self.random.below(2) as usize;
        let Some(queue_pair) = self.connections[at][side].queue_pair else { return };
        if self.one_in(60) {
            return bench[side].provider().disconnect(queue_pair);
        }
        if self.one_in(3) {
            // Refused only if the capacity is used up, or the connection is ending.
            let id = self.id();
            if bench[side].try_receive(queue_pair, id).is_ok() {
                self.connections[at][side].receives += 1;
            }
            return;
        }
        if !self.connections[at][side].is_up {
            return;
        }
        match self.random.below(5) {
            0 | 1 => self.send(bench, at, side, queue_pair),
            2 => self.fence(bench, at, side, queue_pair),
            _ => self.access(bench, at, side, queue_pair),
        }
    }

    /// Sends, with news of memory that is exposed for it, or with the end of some of the peer's.
    fn send(&mut self, bench: &mut Bench<Simulated>, at: usize, side: usize, queue_pair: QueuePairId) {
        if self.connections[at][side].sends >= self.connections[at][1 - side].receives {
            return;
        }
        let invalidate = if self.one_in(6) { self.connections[at][side].theirs.pop() } else { None };
        let offer = if self.one_in(2) { self.expose(bench, side, queue_pair) } else { None };
        if let Some(offer) = offer {
            self.connections[at][side].own.push(offer);
        }
        let buf = bench[side].buf(&Offer::encode(offer));
        let signaled = self.one_in(2);
        let invalidate = invalidate.map(|offer| offer.segment.handle);
        let request = SendRequest { id: self.id(), buf, invalidate, signaled };
        match bench[side].try_send(queue_pair, request) {
            Ok(()) => self.connections[at][side].sends += 1,
            Err(refused) => assert!(matches!(refused.error, PostError::Full | PostError::NotConnected)),
        }
    }

    fn expose(
        &mut self,
        bench: &mut Bench<Simulated>,
        side: usize,
        queue_pair: QueuePairId,
    ) -> Option<Offer> {
        let len = 1 + self.random.below(6000) as usize;
        let writable = self.one_in(2);
        let buf = bench[side].buf(&pattern(len, 0));
        let exposed = if writable { Exposed::Write(buf) } else { Exposed::Read(buf.share()) };
        let segment = bench[side].try_expose(queue_pair, exposed).ok()?;
        Some(Offer { segment, len: len as u32, writable })
    }

    /// Fences something of ours; the peer usually has heard that it is not to use it any more.
    fn fence(&mut self, bench: &mut Bench<Simulated>, at: usize, side: usize, queue_pair: QueuePairId) {
        let ends = &mut self.connections[at];
        let Some(offer) = ends[side].own.pop() else { return };
        if self.random.below(32) > 0 {
            ends[1 - side].theirs.retain(|other| other.segment != offer.segment);
        }
        let id = self.id();
        if let Some(Fence::Done(exposed)) = bench[side].fence(queue_pair, offer.segment.handle, id) {
            self.count("fence");
            self.keep(exposed);
        }
    }

    fn keep(&mut self, exposed: Exposed) {
        if let Exposed::Write(buf) = exposed
            && self.kept.len() < 8
        {
            let then = buf.to_vec();
            self.kept.push((buf, then));
        }
    }

    /// Reads or writes memory of the peer; rarely a little more than there is.
    fn access(&mut self, bench: &mut Bench<Simulated>, at: usize, side: usize, queue_pair: QueuePairId) {
        let offers = &self.connections[at][side].theirs;
        if offers.is_empty() {
            return;
        }
        let offer = offers[self.random.below(offers.len() as u64) as usize];
        let start = self.random.below(u64::from(offer.len) + 1) as u32;
        let most = offer.len - start + u32::from(self.one_in(100));
        let len = self.random.below(u64::from(most) + 1) as u32;
        let segment = RemoteSegment { offset: offer.segment.offset + u64::from(start), ..offer.segment };
        let id = self.id();
        let result = if offer.writable {
            let source = bench[side].buf(&pattern(len as usize, id)).share();
            let request = WriteRequest { id, source, target: segment, signaled: self.one_in(2) };
            bench[side].try_write(queue_pair, request).map_err(|refused| refused.error)
        } else {
            let whole = pattern(offer.len as usize, 0);
            let expected = whole.get(start as usize..(start + len) as usize).map(<[u8]>::to_vec);
            let target = bench[side].buf(&vec![0xee; len as usize]);
            // In two parts, which change places on the way.
            let first = len / 3;
            let parts = [
                ReadPart { at: first, len: len - first, source: segment },
                ReadPart {
                    at: 0,
                    len: first,
                    source: RemoteSegment { offset: segment.offset + u64::from(len - first), ..segment },
                },
            ];
            let turned = expected.map(|bytes| {
                let (head, tail) = bytes.split_at((len - first) as usize);
                [tail, head].concat()
            });
            self.reads.insert(id, turned.unwrap_or_default());
            bench[side]
                .try_read(queue_pair, ReadRequest { id, target }, &parts)
                .map_err(|refused| refused.error)
        };
        assert!(matches!(result, Ok(()) | Err(PostError::Full | PostError::NotConnected)), "{result:?}");
    }

    /// Takes in what the sides harvested.
    fn observe(&mut self, bench: &mut Bench<Simulated>) {
        for side in [A, B] {
            while let Some(event) = bench[side].events.pop_front() {
                self.event(bench, side, event);
            }
            while let Some(completion) = bench[side].completions.pop_front() {
                let is_ok = completion.result.is_ok();
                match (completion.result, &completion.completed) {
                    (Ok(()), Completed::Receive { invalidated: Some(_), .. }) => self.count("invalidated"),
                    (Ok(()), Completed::Receive { .. }) => self.count("message"),
                    (Ok(()), Completed::Read(_)) => self.count("read"),
                    (Ok(()), Completed::Write(_)) => self.count("write"),
                    (Ok(()), Completed::Fence { .. }) => self.count("fence completed"),
                    (Ok(()), Completed::Send(_)) => self.count("sent"),
                    (Err(WorkError::RemoteAccess), _) => self.count("refused access"),
                    (Err(_), _) => self.count("flushed"),
                }
                let end = self.end(side, completion.queue_pair);
                match completion.completed {
                    Completed::Receive { buf, invalidated, exposed } => {
                        if let Some(end) = end {
                            end.theirs.extend(Offer::decode(&buf).filter(|_| is_ok));
                            end.own.retain(|offer| Some(offer.segment.handle) != invalidated);
                        }
                        exposed.into_iter().for_each(|exposed| self.keep(exposed));
                    }
                    Completed::Read(buf) => {
                        let expected = self.reads.remove(&completion.id).expect("it was posted");
                        assert!(!is_ok || buf[..] == expected[..], "a Read fetches what was exposed");
                    }
                    Completed::Fence { exposed, .. } => self.keep(exposed),
                    Completed::Send(_) | Completed::Write(_) => {}
                }
            }
        }
    }

    fn end(&mut self, side: usize, queue_pair: QueuePairId) -> Option<&mut End> {
        let mut ends = self.connections.iter_mut().map(|ends| &mut ends[side]);
        ends.find(|end| end.queue_pair == Some(queue_pair))
    }

    fn event(&mut self, bench: &mut Bench<Simulated>, side: usize, event: Event) {
        match event {
            Event::ConnectRequest { request, .. } => {
                if self.one_in(12) {
                    return bench[side].provider().reject(request, "not today");
                }
                let Ok(queue_pair) = bench[side].provider().prepare(request, CAPACITY) else { return };
                bench[side].adopt(queue_pair);
                let _ = bench[side].provider().accept(queue_pair, &queue_pair.index.to_le_bytes());
                let peer = bench[side].provider().peer(queue_pair);
                let dialed = peer.and_then(|peer| {
                    self.connections.iter_mut().find(|ends| ends[A].queue_pair == Some(peer))
                });
                match dialed {
                    Some(ends) => ends[B].queue_pair = Some(queue_pair),
                    None => bench[side].provider().disconnect(queue_pair),
                }
            }
            Event::Established { queue_pair, .. } => {
                self.count("connection");
                if let Some(end) = self.end(side, queue_pair) {
                    end.is_up = true;
                }
            }
            Event::Disconnected { queue_pair, reason } => {
                if reason == DisconnectReason::PeerDied {
                    self.count("died");
                }
                if let Some(end) = self.end(side, queue_pair) {
                    *end = End::default();
                }
                self.connections.retain(|ends| ends.iter().any(|end| end.queue_pair.is_some()));
            }
            _ => {}
        }
    }
}
