//! Opening, listening, and connections of many.

use std::collections::VecDeque;
use std::time::Duration;

use stag_fabric::verbs::{Verbs, VerbsConfig};
use stag_fabric::{
    DisconnectReason, Event, ExposureKind, FabricError, ListenerId, Peer, Provider, QueuePairCapacity,
};
use stag_rdma_core_sys as sys;

use crate::fake;
use crate::side::*;

/// With port 0 the connection manager chooses one; an address that leads to the device can be told to others.
#[test]
fn a_listener_says_where_it_is() {
    fake::reset(false);
    let mut verbs = open(WINDOWS.config()).expect("the fake has a device");
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

/// Each completion vector is an interrupt: they are not all the same core's.
#[test]
fn completion_queues_take_turns_at_the_vectors() {
    WINDOWS.begin();
    (0..16).for_each(|_| drop(open(WINDOWS.config()).expect("a device")));
    // Which one comes next is a matter of the whole process.
    let vectors = fake::with(|world| world.seen.vectors.clone());
    assert!(vectors.len() > 1, "{vectors:?}");
}

/// A connection that was not accepted yet has Receives, which come back at once.
#[test]
fn a_prepared_connection_ends_at_once() {
    WINDOWS.begin();
    let side = || Side::new(WINDOWS.config(), CAPACITY).expect("a device");
    let (mut a, mut b) = (side(), side());
    b.verbs.listen("127.0.0.1:20049").expect("the address is free");
    a.pair = a.verbs.connect("127.0.0.1:20049", b"", CAPACITY).ok();
    for turn in 0..10 {
        a.poll(TICK * turn);
        b.verbs.poll(TICK * turn, &mut VecDeque::new(), 0);
    }
    let Some(Event::ConnectRequest { request, .. }) = b.verbs.poll_event() else { panic!("it was asked") };
    b.pair = b.verbs.prepare(request, CAPACITY).ok();
    let at = b.pair.and_then(|pair| b.verbs.local_address(pair));
    assert_eq!(at, "127.0.0.1:20049".parse().ok(), "where it came in");
    b.receive();
    b.verbs.disconnect(b.pair.expect("prepared"));
    (10..20).for_each(|turn| b.poll(TICK * turn));
    assert_eq!((b.pair, b.pool.outstanding()), (None, 0));
    (10..20).for_each(|turn| a.poll(TICK * turn));
    assert!(matches!(a.ended[..], [DisconnectReason::Rejected(_)]), "{:?}", a.ended);
}

/// Two cards, or two ports of one: the address says which. The first that is active would be another.
#[test]
fn the_address_chooses_the_device() {
    for kind in [WINDOWS, REGIONS] {
        kind.begin();
        fake::with(|world| world.add_device());
        let side = || Side::new(kind.config(), CAPACITY).expect("a device");
        let (mut a, mut b) = (side(), side());
        assert_eq!((a.verbs.device(), b.verbs.device()), (Some("fake0"), Some("fake0")));
        b.verbs.listen("127.0.0.2:20049").expect("the address is free");
        assert_eq!(b.verbs.device(), Some("fake1"));
        a.pair = a.verbs.connect("127.0.0.2:20049", b"", CAPACITY).ok();
        a.receive();
        pass(&mut a, &mut b, 50);
        assert!(a.is_up && b.is_up, "{:?}", a.ended);
        assert_eq!(a.verbs.device(), Some("fake1"));
        // In use, it stays.
        let error = b.verbs.listen("127.0.0.1:20050").expect_err("of the other device").to_string();
        assert!(error.contains("leads to the device fake0, and fake1 is open"), "{error}");
        drop((a, b));
        assert_eq!(fake::leaks(), []);
    }
    // Who names one gets no other.
    let named = VerbsConfig { device: Some("fake0".to_owned()), ..WINDOWS.config() };
    let mut named = Side::new(named, CAPACITY).expect("a device");
    named.verbs.listen("127.0.0.2:20049").expect_err("of the other device");
    named.pair = named.verbs.connect("127.0.0.2:20049", b"", CAPACITY).ok();
    (0..10).for_each(|turn| named.poll(TICK * turn));
    assert!(
        matches!(named.ended[..], [DisconnectReason::Unreachable(why)] if why.contains("another RDMA device")),
        "{:?}",
        named.ended
    );
}

/// A listener that comes back on another device takes the provider along.
#[test]
fn the_device_follows_a_listener() {
    WINDOWS.begin();
    fake::with(|world| world.add_device());
    let mut b = Side::new(WINDOWS.config(), CAPACITY).expect("a device");
    b.verbs.listen("127.0.0.2:20049").expect("the address is free");
    fake::listener_event(sys::RDMA_CM_EVENT_DEVICE_REMOVAL);
    let mut turns = (0..).map(|turn| TICK * turn);
    turns.by_ref().take(10).for_each(|now| b.poll(now));
    assert_eq!(b.verbs.device(), None);
    turns.take(11_000).for_each(|now| b.poll(now));
    assert_eq!(b.verbs.device(), Some("fake1"), "although fake0 is the first");
}

/// Over IPv6 too, and a link-local peer is named with its scope.
#[test]
fn addresses_of_both_families() {
    for address in ["127.0.0.1:20049", "[::1]:20049", "[fe80::1%1]:20049"] {
        WINDOWS.begin();
        let (mut a, mut b) = (
            Side::new(WINDOWS.config(), CAPACITY).expect("a device"),
            Side::new(WINDOWS.config(), CAPACITY).expect("a device"),
        );
        b.verbs.listen(address).expect("the address is free");
        a.pair = a.verbs.connect(address, b"", CAPACITY).ok();
        let (mut asked, mut established) = (None, None);
        for turn in 0..60 {
            a.verbs.poll(TICK * turn, &mut VecDeque::new(), 0);
            b.verbs.poll(TICK * turn, &mut VecDeque::new(), 0);
            if let Some(Event::Established { peer, .. }) = a.verbs.poll_event() {
                established = Some(peer);
            }
            if let Some(Event::ConnectRequest { request, peer, .. }) = b.verbs.poll_event() {
                asked = Some(peer);
                let pair = b.verbs.prepare(request, CAPACITY).expect("there is room");
                b.verbs.accept(pair, b"").expect("the client is there");
            }
        }
        let mut peer: std::net::SocketAddr = address.parse().expect("numbers");
        assert_eq!(established, Some(Peer::Address(peer)));
        peer.set_port(4711);
        assert_eq!(asked, Some(Peer::Address(peer)));
    }
}

#[test]
fn a_machine_that_cannot_says_why() {
    WINDOWS.begin();
    fake::fail("rdma_create_event_channel", 0, libc::ENODEV);
    let error = open(WINDOWS.config()).err().expect("no connection manager").to_string();
    assert!(error.contains("verbs://") && error.contains("modprobe"), "{error}");
    assert!(error.contains("iwarp:// goes to any machine, and shm://"), "{error}");
    fake::fail("rdma_create_event_channel", 0, libc::EACCES);
    let error = open(WINDOWS.config()).err().expect("no permission").to_string();
    assert!(error.contains("/dev/infiniband/rdma_cm") && error.contains("denied"), "{error}");
    for (error, hint) in [(libc::ENOMEM, "ulimit -l"), (libc::EAGAIN, "rdma.max")] {
        fake::fail("ibv_create_cq", 0, error);
        let error = open(WINDOWS.config()).err().expect("no completion queue").to_string();
        assert!(
            error.contains("completion queue on the RDMA device fake0") && error.contains(hint),
            "{error}"
        );
    }
    fake::fail("rdma_get_devices", 0, libc::ENOSYS);
    let error = open(WINDOWS.config()).err().expect("no devices").to_string();
    assert!(error.contains("modprobe"), "{error}");
    fake::with(|world| world.has_device = false);
    let error = open(WINDOWS.config()).err().expect("no device").to_string();
    assert!(error.contains("no RDMA device"), "{error}");
    fake::with(|world| world.has_device = true);
    let named = VerbsConfig { device: Some("mlx5_7".to_owned()), ..WINDOWS.config() };
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
    for (kind, expected) in [
        (WINDOWS, ExposureKind::MemoryWindow),
        (REGIONS, ExposureKind::Registration),
        (IWARP, ExposureKind::Registration),
        (STANDING, ExposureKind::Standing),
    ] {
        kind.begin();
        let verbs = open(kind.config()).expect("a device");
        assert_eq!(verbs.limits().exposure, expected);
        // Standing exposures may not be used unawares.
        let is_loud =
            verbs.notes().iter().any(|note| note.contains("STANDING") && note.contains("no protection"));
        assert_eq!(is_loud, expected == ExposureKind::Standing, "8166-8.1: {:?}", verbs.notes());
        assert!(verbs.notes().iter().any(|note| note.contains("exposed")), "{:?}", verbs.notes());
        // 256 octets were asked for, and refused, until few enough were.
        assert!(verbs.notes().iter().any(|note| note.contains("64 octets")), "{:?}", verbs.notes());
    }
    WINDOWS.begin();
    fake::fail("ibv_alloc_mw", 0, libc::ENOMEM);
    let verbs = open(WINDOWS.config()).expect("a device");
    assert_eq!(verbs.limits().exposure, ExposureKind::Registration, "windows only in name");
}

/// Many ask at once: each is answered, a bounded number in each pass; of those that are not answered a bounded number
/// waits.
#[test]
fn a_backlog_of_many() {
    const ONE: QueuePairCapacity = QueuePairCapacity {
        receives: 1,
        sends: 1,
        exposures: 0,
        send_len_max: 64,
        receive_len_max: 64,
        receive_targets: 0,
    };
    let config = VerbsConfig {
        queue_pairs: 1200,
        completions: 1 << 17,
        backlog: 77,
        setup_timeout: Duration::from_secs(10),
        ..WINDOWS.config()
    };
    for (asked, answers) in [(300, true), (1100, false)] {
        WINDOWS.begin();
        let mut a = open(config.clone()).expect("a device");
        let mut b = open(config.clone()).expect("a device");
        b.listen("127.0.0.1:20049").expect("the address is free");
        fake::with(|world| assert_eq!(world.seen.backlog, 77));
        for _ in 0..asked {
            a.connect("127.0.0.1:20049", b"", ONE).expect("there is room");
        }
        let (mut requests, mut established, mut refused) = (0, [0, 0], 0);
        for turn in 0..500 {
            for verbs in [&mut a, &mut b] {
                verbs.poll(TICK * turn, &mut VecDeque::new(), 0);
            }
            while let Some(event) = b.poll_event() {
                match event {
                    Event::ConnectRequest { request, .. } if answers => {
                        let pair = b.prepare(request, ONE).expect("there is room");
                        b.accept(pair, b"").expect("the client is there");
                    }
                    Event::ConnectRequest { .. } => requests += 1,
                    Event::Established { .. } => established[1] += 1,
                    other => panic!("{other:?}"),
                }
            }
            while let Some(event) = a.poll_event() {
                match event {
                    Event::Established { .. } => established[0] += 1,
                    Event::Disconnected { reason: DisconnectReason::Rejected(why), .. } => {
                        assert!(why.contains("too many connection requests"), "{why}");
                        refused += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        if answers {
            assert_eq!(established, [asked, asked]);
        } else {
            assert_eq!((requests, refused), (1024, asked - 1024));
        }
        drop((a, b));
        assert_eq!(fake::leaks(), []);
    }
}

/// What a connection's set-up tells the device: how often to try again, and how many Reads there may be.
#[test]
fn the_parameters_of_a_connection() {
    for (rnr_retries, expected) in [(6, 6), (0, 0), (3, 3), (200, 7)] {
        WINDOWS.begin();
        let config = VerbsConfig { rnr_retries, read_depth: 3, ..WINDOWS.config() };
        let before = fake::calls("rdma_set_option");
        connected(&config, CAPACITY);
        assert!(
            fake::calls("rdma_set_option") - before >= 2,
            "the time to wait for acknowledgements, on both sides"
        );
        fake::with(|world| {
            assert_eq!(world.seen.parameters.len(), 2, "one asks, one accepts");
            for parameters in &world.seen.parameters {
                assert_eq!(parameters.rnr_retry_count, expected);
                assert_eq!(parameters.retry_count, 7);
                assert_eq!((parameters.responder_resources, parameters.initiator_depth), (3, 3));
            }
        });
    }
}

/// An address that leads to no device, as localhost often does: the kernel only calls it invalid.
#[test]
fn an_address_without_a_device_says_where_to_look() {
    WINDOWS.begin();
    let mut a = Side::new(WINDOWS.config(), CAPACITY).expect("a device");
    fake::fail("rdma_resolve_addr", 0, libc::EINVAL);
    let error = a.verbs.connect("127.0.0.1:20049", b"", CAPACITY).expect_err("refused").to_string();
    assert!(error.contains("connect to verbs://127.0.0.1:20049 (does a device lead there?"), "{error}");
    assert!(error.contains("`stag fabrics`"), "{error}");
}

/// A listener whose address moved to another device listens again; until that succeeds, it is tried.
#[test]
fn a_listener_follows_its_address() {
    WINDOWS.begin();
    let (mut a, mut b) = connected(&WINDOWS.config(), CAPACITY);
    fake::fail("rdma_bind_addr", 0, libc::EADDRNOTAVAIL);
    fake::listener_event(sys::RDMA_CM_EVENT_ADDR_CHANGE);
    pass(&mut a, &mut b, 20);
    assert!(a.is_up && b.is_up, "a connection has events of its own");
    assert!(b.verbs.poll_timeout().is_some(), "a sleeper has to come back");
    for side in [&mut a, &mut b] {
        side.verbs.disconnect(side.pair.expect("connected"));
    }
    pass(&mut a, &mut b, 100);
    a.pair = a.verbs.connect("127.0.0.1:20049", b"", CAPACITY).ok();
    pass(&mut a, &mut b, 100);
    assert_eq!(a.ended.pop(), Some(DisconnectReason::NoListener));
    pass(&mut a, &mut b, 11_000);
    connect(&mut a, &mut b);
    let keep_alive = VerbsConfig::default().keep_alive;
    assert!(b.verbs.poll_timeout() >= keep_alive, "only for that");
    drop((a, b));
    assert_eq!(fake::leaks(), []);
}
