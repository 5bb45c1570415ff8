//! One side of a connection over the fake, and what it saw.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use stag_fabric::verbs::{SharedReceives, Verbs, VerbsConfig};
use stag_fabric::{
    Completed, Completion, DisconnectReason, Event, Exposed, ExposureKind, FabricError, Fence, PlainMessage,
    Provider, QueuePairCapacity, QueuePairId, ReadPart, ReadRequest, RemoteSegment, SendRequest,
    ShownMessage, Taken, WorkError, WriteRequest,
};
use stag_memory::{Arena, ArenaConfig, Budget, Buf, PageChoice, PageSize, Pool};

use crate::fake;

pub(crate) const CAPACITY: QueuePairCapacity = QueuePairCapacity {
    receives: 4,
    sends: 8,
    exposures: 4,
    send_len_max: 512,
    receive_len_max: 512,
    receive_targets: 0,
};
/// As above, with room for messages that are built in place.
pub(crate) const WIDE: QueuePairCapacity = QueuePairCapacity { send_len_max: 1024, ..CAPACITY };
pub(crate) const TICK: Duration = Duration::from_micros(50);

/// A kind of device, and its configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) has_windows: bool,
    pub(crate) is_iwarp: bool,
    pub(crate) exposure: Option<ExposureKind>,
    pub(crate) shares: bool,
}

/// InfiniBand with memory windows and without, and iWARP.
pub(crate) const WINDOWS: Kind = Kind { has_windows: true, is_iwarp: false, exposure: None, shares: false };
pub(crate) const REGIONS: Kind = Kind { has_windows: false, ..WINDOWS };
pub(crate) const IWARP: Kind = Kind { is_iwarp: true, ..REGIONS };
/// Used only on request.
pub(crate) const STANDING: Kind = Kind { exposure: Some(ExposureKind::Standing), ..REGIONS };
pub(crate) const SHARED: Kind = Kind { shares: true, ..WINDOWS };
pub(crate) const KINDS: [Kind; 5] = [WINDOWS, REGIONS, IWARP, STANDING, SHARED];

impl Kind {
    /// Makes a fresh world of this kind.
    pub(crate) fn begin(self) {
        fake::reset(self.has_windows);
        fake::with(|world| world.is_iwarp = self.is_iwarp);
    }

    pub(crate) fn config(self) -> VerbsConfig {
        let shared = SharedReceives { count: 16, len: CAPACITY.receive_len_max };
        VerbsConfig {
            completions: 1024,
            queue_pairs: 8,
            setup_timeout: Duration::from_millis(20),
            exposure: self.exposure,
            shared_receives: self.shares.then_some(shared),
            ..VerbsConfig::default()
        }
    }
}

pub(crate) fn open(config: VerbsConfig) -> Result<Verbs, FabricError> {
    // SAFETY: the fake does as the manual pages say.
    unsafe { Verbs::open_with(&fake::FAKE, config) }
}

pub(crate) fn memory() -> (Arena, Pool) {
    let budget = Budget::new(1 << 22);
    let page = PageChoice::Size(PageSize::Base);
    let arena = ArenaConfig { name: "verbs test", len: 1 << 18, page, node: None, budget: &budget };
    let arena = Arena::new(&arena).expect("a quarter of a megabyte");
    let pool = Pool::runs(&arena, "buffers", 512, 128).expect("64 KiB");
    (arena, pool)
}

/// One side, and what it saw.
pub(crate) struct Side {
    pub(crate) verbs: Verbs,
    pub(crate) pool: Pool,
    pub(crate) capacity: QueuePairCapacity,
    pub(crate) pair: Option<QueuePairId>,
    pub(crate) is_up: bool,
    pub(crate) ended: Vec<DisconnectReason>,
    pub(crate) completions: Vec<(u64, Result<(), WorkError>)>,
    pub(crate) told: Option<RemoteSegment>,
    pub(crate) now: Duration,
}

impl Side {
    pub(crate) fn new(config: VerbsConfig, capacity: QueuePairCapacity) -> Option<Side> {
        let (arena, pool) = memory();
        let mut verbs = open(config).ok()?;
        verbs.register(&arena).ok()?;
        let (ended, completions) = (Vec::new(), Vec::new());
        Some(Side {
            verbs,
            pool,
            capacity,
            pair: None,
            is_up: false,
            ended,
            completions,
            told: None,
            now: Duration::ZERO,
        })
    }

    pub(crate) fn buf(&self, octets: &[u8]) -> Buf {
        let mut buf = self.pool.take_len(octets.len()).expect("the pool is large enough");
        buf.copy_from_slice(octets);
        buf
    }

    /// Posts Receives, as many as are taken.
    pub(crate) fn receive(&mut self) {
        let Some(pair) = self.pair else { return };
        for id in 0..u64::from(self.capacity.receives) {
            let buf = self.pool.take().expect("the pool is large enough");
            let _ = self.verbs.post_receive(pair, id, buf);
        }
    }

    /// Exposes memory and tells the peer of it.
    pub(crate) fn offer(&mut self) {
        let Some(pair) = self.pair else { return };
        let memory = Exposed::Write(self.buf(&[7; 300]));
        let Ok(segment) = self.verbs.expose(pair, memory) else { return };
        let words = [&segment.handle.0.to_le_bytes()[..], &segment.offset.to_le_bytes()].concat();
        let buf = self.buf(&words);
        let _ = self.verbs.post_send(pair, SendRequest { id: 10, buf, invalidate: None, signaled: true });
        let readable = Exposed::Read(self.buf(&[9; 100]).share());
        if let Ok(segment) = self.verbs.expose(pair, readable)
            && let Some(Fence::Done(memory)) = self.verbs.fence(pair, segment.handle, 20)
        {
            assert!(matches!(memory, Exposed::Read(_)));
        }
    }

    /// Builds a message without chunks where it leaves, if there is room: a stream of `len` octets.
    pub(crate) fn build(&mut self, credits: u32, len: usize) -> bool {
        let Some(pair) = self.pair else { return false };
        self.verbs.build_plain(pair, |space| {
            for (at, octet) in space[..len].iter_mut().enumerate() {
                *octet = at as u8;
            }
            Some((credits, len))
        })
    }

    /// Uses what the peer offered.
    fn transfer(&mut self, at: RemoteSegment) {
        let Some(pair) = self.pair else { return };
        let source = self.buf(&[1; 200]).share();
        let _ = self.verbs.post_write(pair, WriteRequest { id: 11, source, target: at, signaled: false });
        let target = self.buf(&[0; 64]);
        let part = ReadPart { at: 0, len: 0, source: at };
        let _ = self.verbs.post_read(pair, ReadRequest { id: 12, target }, &[part]);
        let invalidate = self.verbs.limits().send_with_invalidate.then_some(at.handle);
        let buf = self.buf(b"done");
        let _ = self.verbs.post_send(pair, SendRequest { id: 13, buf, invalidate, signaled: true });
    }

    pub(crate) fn poll(&mut self, now: Duration) {
        let mut completions: VecDeque<Completion> = VecDeque::with_capacity(16);
        // Every other message without chunks is answered.
        self.verbs.poll_in_place(now, &mut completions, 16, &mut |message: ShownMessage<'_>| match message {
            ShownMessage::Plain(PlainMessage { credits, stream, space: Some(space), .. })
                if credits % 2 == 1 =>
            {
                space[..4].copy_from_slice(&stream[..4]);
                Taken::Answered { credits: 2, len: 4 }
            }
            _ => Taken::Done,
        });
        for completion in completions {
            self.completions.push((completion.id, completion.result));
            if let (Completed::Receive { buf, .. }, Ok(())) = (completion.completed, completion.result)
                && let Some((handle, offset)) = buf.split_first_chunk::<4>()
                && let Some(offset) = offset.first_chunk::<8>()
            {
                let handle = stag_fabric::Handle(u32::from_le_bytes(*handle));
                self.told = Some(RemoteSegment { handle, offset: u64::from_le_bytes(*offset) });
            }
        }
        while let Some(event) = self.verbs.poll_event() {
            match event {
                Event::ConnectRequest { request, .. } => {
                    if let Ok(pair) = self.verbs.prepare(request, self.capacity) {
                        self.pair = Some(pair);
                        self.receive();
                        let _ = self.verbs.accept(pair, b"welcome");
                    }
                }
                Event::Established { .. } => {
                    self.is_up = true;
                    self.offer();
                }
                Event::Disconnected { queue_pair, reason } => {
                    assert_eq!(self.pair, Some(queue_pair), "it ends once");
                    self.pair = None;
                    self.is_up = false;
                    self.ended.push(reason);
                }
                _ => {}
            }
        }
        if let Some(at) = self.told.take() {
            self.transfer(at);
        }
        self.verbs.ring_doorbells();
    }
}

/// What a run came to.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) opened: bool,
    pub(crate) connected: bool,
    pub(crate) reasons: Vec<DisconnectReason>,
    pub(crate) errors: BTreeSet<String>,
}

/// A connection from start to end, with `disturb` called at two points: while it is set up, and while it works. However
/// it goes, everything is given back at the end.
pub(crate) fn run(kind: Kind, mut disturb: impl FnMut(u32)) -> Outcome {
    let mut outcome = Outcome::default();
    let pools = {
        let (Some(mut a), Some(mut b)) = (Side::new(kind.config(), WIDE), Side::new(kind.config(), WIDE))
        else {
            return outcome;
        };
        outcome.opened = true;
        let mut now = Duration::ZERO;
        if b.verbs.listen("127.0.0.1:20049").is_ok() {
            a.pair = a.verbs.connect("127.0.0.1:20049", b"hello", WIDE).ok();
            a.receive();
        }
        // siw's side that connects keeps still for 50 ms.
        let (turns, tick) = if kind.is_iwarp { (150, 20 * TICK) } else { (60, TICK) };
        for turn in 0..turns {
            if turn == 1 {
                disturb(0);
            }
            if turn == turns - 50 {
                outcome.connected = a.is_up && b.is_up;
                disturb(1);
                a.offer();
                a.build(1, 40);
                a.build(2, 400);
            }
            now += tick;
            a.poll(now);
            b.poll(now);
        }
        for side in [&mut a, &mut b] {
            if let Some(pair) = side.pair {
                side.verbs.disconnect(pair);
            }
        }
        // Time-outs are part of it: 1.5 s of virtual time.
        for _ in 0..30_000 {
            if a.pair.is_none() && b.pair.is_none() {
                break;
            }
            now += TICK;
            a.poll(now);
            b.poll(now);
        }
        for side in [&mut a, &mut b] {
            assert_eq!(side.pair, None, "every connection ends");
            let shared = if kind.shares { CAPACITY.receives as usize } else { 0 };
            assert!(side.pool.outstanding() <= shared, "every buffer comes back, or stays for others");
            outcome.reasons.append(&mut side.ended);
            let errors = side.completions.iter().filter_map(|(_, result)| result.err());
            outcome.errors.extend(errors.map(|error| format!("{error:?}")));
        }
        [a.pool.clone(), b.pool.clone()]
    };
    for pool in pools {
        assert_eq!(pool.outstanding(), 0);
    }
    outcome
}

/// Two sides, connected, with Receives, and nothing under way.
pub(crate) fn connected(config: &VerbsConfig, capacity: QueuePairCapacity) -> (Side, Side) {
    let side = || Side::new(config.clone(), capacity).expect("a device");
    let (mut a, mut b) = (side(), side());
    b.verbs.listen("127.0.0.1:20049").expect("the address is free");
    connect(&mut a, &mut b);
    (a, b)
}

/// Connects two sides, of which B listens.
pub(crate) fn connect(a: &mut Side, b: &mut Side) {
    a.pair = a.verbs.connect("127.0.0.1:20049", b"", a.capacity).ok();
    a.receive();
    for _ in 0..2000 {
        pass(a, b, 1);
        if a.is_up && b.is_up {
            break;
        }
    }
    assert!(a.is_up && b.is_up);
    // What they do at first: `offer` and `transfer`.
    pass(a, b, 50);
    a.receive();
    b.receive();
    a.completions.clear();
    b.completions.clear();
}

/// Lets both sides make `turns` passes.
pub(crate) fn pass(a: &mut Side, b: &mut Side, turns: u32) {
    for _ in 0..turns {
        let now = a.now + TICK;
        (a.now, b.now) = (now, now);
        a.poll(now);
        b.poll(now);
    }
}
