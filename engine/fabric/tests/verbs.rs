//! The verbs provider when things fail: each function of the libraries, each work-completion status, each event of
//! the connection manager and of the device. Whatever fails, all buffers come back, every connection ends with a
//! reason, and nothing of the libraries is left over.

#[path = "fake/mod.rs"]
mod fake;

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::time::Duration;

use stag_fabric::verbs::{Verbs, VerbsConfig};
use stag_fabric::{
    Completed, Completion, DisconnectReason, Event, Exposed, ExposureKind, FabricError, Fence, ListenerId,
    Peer, Provider, QueuePairCapacity, QueuePairId, ReadPart, ReadRequest, RemoteSegment, SendRequest,
    WorkError, WriteRequest,
};
use stag_memory::{Arena, ArenaConfig, Budget, Buf, PageChoice, PageSize, Pool};
use stag_rdma_core_sys as sys;

const CAPACITY: QueuePairCapacity =
    QueuePairCapacity { receives: 4, sends: 8, exposures: 4, send_len_max: 512, receive_len_max: 512 };
const TICK: Duration = Duration::from_micros(50);

/// The kinds of devices: memory windows, iWARP.
const KINDS: [(bool, bool); 3] = [(true, false), (false, false), (false, true)];

fn config() -> VerbsConfig {
    VerbsConfig {
        completions: 1024,
        queue_pairs: 8,
        setup_timeout: Duration::from_millis(20),
        ..VerbsConfig::default()
    }
}

fn open(config: VerbsConfig) -> Result<Verbs, FabricError> {
    // SAFETY: the fake does as the manual pages say.
    unsafe { Verbs::open_with(&fake::FAKE, config) }
}

fn memory() -> (Arena, Pool) {
    let budget = Budget::new(1 << 22);
    let page = PageChoice::Size(PageSize::Base);
    let arena = ArenaConfig { name: "verbs test", len: 1 << 18, page, node: None, budget: &budget };
    let arena = Arena::new(&arena).expect("a quarter of a megabyte");
    let pool = Pool::fixed(&arena, "buffers", 512, 128).expect("64 KiB");
    (arena, pool)
}

/// One side, and what it saw.
struct Side {
    verbs: Verbs,
    pool: Pool,
    pair: Option<QueuePairId>,
    is_up: bool,
    ended: Vec<DisconnectReason>,
    completions: Vec<(u64, Result<(), WorkError>)>,
    told: Option<RemoteSegment>,
}

impl Side {
    fn new() -> Option<Side> {
        let (arena, pool) = memory();
        let mut verbs = open(config()).ok()?;
        verbs.register(&arena).ok()?;
        let (ended, completions) = (Vec::new(), Vec::new());
        Some(Side { verbs, pool, pair: None, is_up: false, ended, completions, told: None })
    }

    fn buf(&self, octets: &[u8]) -> Buf {
        let mut buf = self.pool.take_len(octets.len()).expect("the pool is large enough");
        buf.copy_from_slice(octets);
        buf
    }

    /// Posts Receives, as many as are taken.
    fn receive(&mut self) {
        let Some(pair) = self.pair else { return };
        for id in 0..u64::from(CAPACITY.receives) {
            let buf = self.pool.take().expect("the pool is large enough");
            let _ = self.verbs.post_receive(pair, id, buf);
        }
    }

    /// Exposes memory and tells the peer of it.
    fn offer(&mut self) {
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

    fn poll(&mut self, now: Duration) {
        let mut completions: Vec<Completion> = Vec::with_capacity(16);
        self.verbs.poll(now, &mut completions, 16);
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
                    if let Ok(pair) = self.verbs.prepare(request, CAPACITY) {
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
struct Outcome {
    opened: bool,
    connected: bool,
    reasons: Vec<DisconnectReason>,
    errors: BTreeSet<String>,
}

/// A connection from start to end, with `disturb` called at two points: while it is set up, and while it works. However
/// it goes, everything is given back at the end.
fn run(kind: (bool, bool), mut disturb: impl FnMut(u32)) -> Outcome {
    let mut outcome = Outcome::default();
    let pools = {
        let (Some(mut a), Some(mut b)) = (Side::new(), Side::new()) else { return outcome };
        outcome.opened = true;
        let mut now = Duration::ZERO;
        if b.verbs.listen("127.0.0.1:20049").is_ok() {
            a.pair = a.verbs.connect("127.0.0.1:20049", b"hello", CAPACITY).ok();
            a.receive();
        }
        let turns = if kind.1 { 1300 } else { 60 };
        for turn in 0..turns {
            if turn == 1 {
                disturb(0);
            }
            if turn == turns - 50 {
                outcome.connected = a.is_up && b.is_up;
                disturb(1);
                a.offer();
            }
            now += TICK;
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
            assert_eq!(side.pool.outstanding(), 0, "every buffer comes back");
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

/// A fresh world of that kind.
fn begin((has_windows, is_iwarp): (bool, bool)) {
    fake::reset(has_windows);
    fake::with(|world| world.is_iwarp = is_iwarp);
}

/// With port 0 the connection manager chooses one; an address that leads to the device can be told to others.
#[test]
fn a_listener_says_where_it_is() {
    fake::reset(false);
    let mut verbs = open(config()).expect("the fake has a device");
    let chosen = verbs.listen("0.0.0.0:0").expect("a port");
    let other = verbs.listen("127.0.0.1:0").expect("another port");
    let port = |listener| verbs.listener_address(listener).expect("an address").port();
    assert_ne!(port(chosen), 0);
    assert_ne!(port(chosen), port(other));
    assert_eq!(verbs.listener_address(ListenerId(7)), None);
    let addresses = verbs.addresses();
    assert!(addresses.iter().any(|found| found.interface == "lo"), "{addresses:?}");
    assert!(!verbs.addresses().is_empty(), "looking takes nothing away");
    drop(verbs);
    assert_eq!(fake::leaks(), []);
}

#[test]
fn nothing_fails() {
    for kind in KINDS {
        begin(kind);
        let outcome = run(kind, |_| {});
        assert!(outcome.connected, "{kind:?}: {outcome:?}");
        assert_eq!(outcome.reasons.len(), 2);
        assert_eq!(fake::leaks(), [], "{kind:?}");
    }
}

#[test]
fn every_function_fails_at_every_call() {
    let functions = [
        "rdma_create_event_channel",
        "rdma_get_devices",
        "ibv_query_device",
        "ibv_query_port",
        "ibv_create_cq",
        "ibv_alloc_pd",
        "ibv_alloc_mw",
        "ibv_create_qp",
        "ibv_reg_mr",
        "ibv_get_async_event",
        "ibv_modify_qp",
        "ibv_post_send",
        "ibv_post_recv",
        "ibv_poll_cq",
        "rdma_create_id",
        "rdma_bind_addr",
        "rdma_listen",
        "rdma_resolve_addr",
        "rdma_resolve_route",
        "rdma_create_qp",
        "rdma_connect",
        "rdma_accept",
        "rdma_disconnect",
        "rdma_get_cm_event",
        "rdma_set_option",
        "rdma_notify",
        "rdma_reject",
    ];
    for kind in KINDS {
        for function in functions {
            // A poll fails now and then, not each of thousands.
            let stride = if matches!(function, "ibv_poll_cq" | "rdma_get_cm_event") { 17 } else { 1 };
            for after in (0..).step_by(stride).take(40) {
                begin(kind);
                fake::fail(function, after, libc::ENOMEM);
                run(kind, |_| {});
                let was_met = fake::calls(function) > u64::from(after);
                fake::forgive();
                assert_eq!(fake::leaks(), [], "{kind:?}: call {after} of {function} failed");
                if !was_met {
                    break;
                }
            }
        }
    }
}

#[test]
fn every_status_of_a_send_and_of_a_receive() {
    for kind in KINDS {
        for is_receive in [false, true] {
            for status in 1..=24 {
                begin(kind);
                let outcome = run(kind, |when| {
                    if when == 1 {
                        fake::spoil(is_receive, status);
                    }
                });
                assert!(outcome.connected, "{outcome:?}");
                assert_eq!(outcome.reasons.len(), 2, "both sides are told");
                assert!(!outcome.errors.is_empty(), "{status} is an error");
                if status != sys::IBV_WC_WR_FLUSH_ERR {
                    let is_why = |reason: &DisconnectReason| {
                        matches!(
                            reason,
                            DisconnectReason::Work(_)
                                | DisconnectReason::PeerDied
                                | DisconnectReason::PeerViolation(_)
                        )
                    };
                    assert!(outcome.reasons.iter().any(is_why), "{kind:?} {status}: {outcome:?}");
                }
                fake::forgive();
                assert_eq!(fake::leaks(), [], "{kind:?} {is_receive} {status}");
            }
        }
    }
}

#[test]
fn every_event_of_the_connection_manager_at_any_time() {
    let kinds = (0..=17).filter(|&kind| kind != sys::RDMA_CM_EVENT_CONNECT_REQUEST);
    for event in kinds {
        for status in [0, 8, 28, -libc::ETIMEDOUT, -libc::ENODEV] {
            for then in [0, 1] {
                let kind = (true, false);
                begin(kind);
                let outcome = run(kind, |when| {
                    if when == then {
                        fake::cm_event(event, status);
                    }
                });
                assert!(outcome.opened);
                assert_eq!(fake::leaks(), [], "event {event}, status {status}, at {then}");
            }
        }
    }
}

#[test]
fn every_event_of_the_device() {
    for kind in KINDS {
        for event in 0..=20 {
            begin(kind);
            let outcome = run(kind, |when| {
                if when == 1 {
                    fake::async_event(event);
                }
            });
            assert!(outcome.connected, "{outcome:?}");
            assert_eq!(fake::leaks(), [], "{kind:?}: event {event}");
        }
    }
}

#[test]
fn a_device_goes_and_comes_back() {
    begin((true, false));
    {
        let mut a = Side::new().expect("a device");
        let mut b = Side::new().expect("a device");
        b.verbs.listen("127.0.0.1:20049").expect("nobody listens there");
        let mut now = Duration::ZERO;
        for round in 0..3 {
            a.pair = a.verbs.connect("127.0.0.1:20049", b"", CAPACITY).ok();
            a.receive();
            for _ in 0..60 {
                now += TICK;
                a.poll(now);
                b.poll(now);
            }
            assert!(a.is_up && b.is_up, "round {round}");
            fake::with(|world| world.has_device = false);
            fake::cm_event(sys::RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
            while a.pair.is_some() || b.pair.is_some() {
                now += TICK;
                a.poll(now);
                b.poll(now);
            }
            assert_eq!(a.ended.pop(), Some(DisconnectReason::DeviceRemoved));
            assert_eq!(a.verbs.device(), None);
            let refused = a.verbs.connect("127.0.0.1:20049", b"", CAPACITY).expect_err("there is no device");
            assert!(matches!(refused, FabricError::Gone(_)), "{refused}");
            assert_eq!(a.pool.outstanding() + b.pool.outstanding(), 0);
            fake::with(|world| world.has_device = true);
            while a.verbs.device().is_none() || b.verbs.device().is_none() {
                now += Duration::from_millis(1);
                a.poll(now);
                b.poll(now);
            }
        }
    }
    assert_eq!(fake::leaks(), []);
}

#[test]
fn a_machine_that_cannot_says_why() {
    begin((true, false));
    fake::fail("rdma_create_event_channel", 0, libc::ENODEV);
    let error = open(config()).err().expect("no connection manager").to_string();
    assert!(error.contains("verbs://") && error.contains("modprobe rdma_ucm"), "{error}");
    fake::fail("rdma_get_devices", 0, libc::ENOSYS);
    let error = open(config()).err().expect("no devices").to_string();
    assert!(error.contains("modprobe"), "{error}");
    fake::with(|world| world.has_device = false);
    let error = open(config()).err().expect("no device").to_string();
    assert!(error.contains("no RDMA device"), "{error}");
    fake::with(|world| world.has_device = true);
    let named = VerbsConfig { device: Some("mlx5_7".to_owned()), ..config() };
    let error = open(named).err().expect("no such device").to_string();
    assert!(error.contains("mlx5_7") && error.contains("fake0"), "{error}");
    assert_eq!(fake::leaks(), []);
}

/// On the machine that runs this: with rdma-core or without, with a device or without.
#[test]
fn this_machine_opens_or_says_why() {
    match Verbs::open(VerbsConfig::default()) {
        Ok(verbs) => assert!(!verbs.notes().is_empty()),
        Err(error) => assert!(matches!(error, FabricError::Unavailable { fabric: "verbs", .. }), "{error}"),
    }
}

#[test]
fn the_device_decides_how_memory_is_exposed() {
    for (kind, expected) in KINDS.into_iter().zip([
        ExposureKind::MemoryWindow,
        ExposureKind::Registration,
        ExposureKind::Registration,
    ]) {
        begin(kind);
        let verbs = open(config()).expect("a device");
        assert_eq!(verbs.limits().exposure, expected);
        assert!(verbs.notes().iter().any(|note| note.contains("exposed")), "{:?}", verbs.notes());
        // 256 octets were asked for, and refused, until few enough were.
        assert!(verbs.notes().iter().any(|note| note.contains("64 octets")), "{:?}", verbs.notes());
    }
    begin((true, false));
    fake::fail("ibv_alloc_mw", 0, libc::ENOMEM);
    let verbs = open(config()).expect("a device");
    assert_eq!(verbs.limits().exposure, ExposureKind::Registration, "windows only in name");
}

/// The end of a registration fails: then the memory is not given back before the queue pair is gone.
#[test]
fn a_fence_that_fails_ends_the_connection() {
    let kind = (false, false);
    begin(kind);
    let mut was_pending = false;
    let outcome = run(kind, |when| {
        if when == 1 {
            fake::fail("ibv_dereg_mr", 0, libc::EBUSY);
            was_pending = true;
        }
    });
    assert!(outcome.connected && was_pending);
    assert!(outcome.reasons.contains(&DisconnectReason::Work(WorkError::Device)), "{outcome:?}");
    assert_eq!(fake::leaks(), []);
}

#[test]
fn one_doorbell_for_all_that_was_posted() {
    begin((true, false));
    let (mut a, mut b) = connected(config());
    let before = fake::calls("ibv_post_send");
    let pair = a.pair.expect("it is connected");
    for id in 0..6 {
        let buf = a.buf(b"one of six");
        let request = SendRequest { id, buf, invalidate: None, signaled: id == 5 };
        a.verbs.post_send(pair, request).expect("within capacity");
    }
    a.verbs.ring_doorbells();
    assert_eq!(fake::calls("ibv_post_send") - before, 1);
    for turn in 0..20 {
        a.poll(TICK * (2000 + turn));
        b.poll(TICK * (2000 + turn));
    }
}

/// Nothing that comes between the last poll and the sleep is slept through, and what comes later wakes.
#[test]
fn arm_then_poll_again() {
    begin((true, false));
    let (mut a, mut b) = connected(VerbsConfig { may_sleep: true, ..config() });
    let wakes = |verbs: &Verbs| {
        let fd = verbs.descriptor().expect("it may sleep").as_raw_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure.
        unsafe { libc::poll(&mut poll, 1, 0) > 0 }
    };
    let say = |a: &mut Side| {
        let buf = a.buf(b"wake up");
        let request = SendRequest { id: 1, buf, invalidate: None, signaled: true };
        a.verbs.post_send(a.pair.expect("connected"), request).expect("within capacity");
        a.verbs.ring_doorbells();
    };
    b.verbs.disarm();
    say(&mut a);
    assert!(!b.verbs.arm(), "it came before");
    b.poll(TICK * 3000);
    assert!(b.verbs.arm(), "there is nothing");
    assert!(!wakes(&b.verbs));
    say(&mut a);
    a.poll(TICK * 3001);
    assert!(wakes(&b.verbs), "it came later");
    b.verbs.disarm();
    let before = b.completions.len();
    b.poll(TICK * 3002);
    assert_eq!(b.completions.len(), before + 1);
}

/// Two sides, connected, with Receives, and nothing under way.
fn connected(config: VerbsConfig) -> (Side, Side) {
    let side = || {
        let (arena, pool) = memory();
        let mut verbs = open(config.clone()).expect("a device");
        verbs.register(&arena).expect("it can be registered");
        let (ended, completions) = (Vec::new(), Vec::new());
        Side { verbs, pool, pair: None, is_up: false, ended, completions, told: None }
    };
    let (mut a, mut b) = (side(), side());
    b.verbs.listen("127.0.0.1:20049").expect("nobody listens there");
    a.pair = a.verbs.connect("127.0.0.1:20049", b"", CAPACITY).ok();
    for turn in 0..60 {
        a.poll(TICK * turn);
        b.poll(TICK * turn);
    }
    assert!(a.is_up && b.is_up);
    b.receive();
    (a, b)
}

/// Over IPv6 too, and a link-local peer is named with its scope.
#[test]
fn addresses_of_both_families() {
    for address in ["127.0.0.1:20049", "[::1]:20049", "[fe80::1%1]:20049"] {
        begin((true, false));
        let (mut a, mut b) = (Side::new().expect("a device"), Side::new().expect("a device"));
        b.verbs.listen(address).expect("nobody listens there");
        a.pair = a.verbs.connect(address, b"", CAPACITY).ok();
        let (mut asked, mut established) = (None, None);
        for turn in 0..60 {
            a.verbs.poll(TICK * turn, &mut Vec::new(), 0);
            b.verbs.poll(TICK * turn, &mut Vec::new(), 0);
            if let Some(Event::Established { peer, .. }) = a.verbs.poll_event() {
                established = Some(peer);
            }
            if let Some(Event::ConnectRequest { request, peer, .. }) = b.verbs.poll_event() {
                asked = Some(peer);
                let pair = b.verbs.prepare(request, CAPACITY).expect("there is room");
                b.verbs.accept(pair, b"").expect("whoever asked is there");
            }
        }
        let mut peer: std::net::SocketAddr = address.parse().expect("numbers");
        assert_eq!(established, Some(Peer::Address(peer)));
        peer.set_port(4711);
        assert_eq!(asked, Some(Peer::Address(peer)));
    }
}
