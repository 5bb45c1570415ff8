//! A process whose descriptors run out: a program of its own with one test, because the limit is the process's.

use std::collections::VecDeque;
use std::fs::File;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

use stag_fabric::{Event, Iwarp, IwarpConfig, Provider, QueuePairCapacity, Shm, ShmConfig};
use stag_memory::{Arena, ArenaConfig, Budget, PageChoice, PageSize};

const CAPACITY: QueuePairCapacity = QueuePairCapacity {
    receives: 16,
    sends: 16,
    exposures: 8,
    send_len_max: 1024,
    receive_len_max: 1024,
    receive_targets: 0,
};
const PASS: Duration = Duration::from_micros(100);
const SECOND: u32 = 10_000;

fn limit(change: impl FnOnce(&mut libc::rlimit)) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable, and then readable.
    let changed = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        change(&mut limit);
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit)
    };
    assert_eq!(changed, 0, "it may be lowered, and raised to what it was");
}

/// Whether a reactor that has nothing else to do would be woken at once.
fn is_awake(provider: &mut impl Provider) -> bool {
    let can_sleep = provider.arm();
    let descriptor = provider.descriptor().expect("it may sleep").as_raw_fd();
    let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor that is open over the call.
    let is_ready = unsafe { libc::poll(&raw mut poll, 1, 0) } == 1;
    provider.disarm();
    !can_sleep || is_ready
}

fn pass(provider: &mut impl Provider, now: &mut Duration) -> bool {
    *now += PASS;
    provider.ring_doorbells();
    provider.poll(*now, &mut VecDeque::with_capacity(8), 8);
    matches!(provider.poll_event(), Some(Event::ConnectRequest { .. }))
}

/// A client wants to connect, and none can be accepted: `server` tries that a few times a second. `arrives` says whether
/// it took the connection, in a pass.
fn check<P: Provider>(what: &str, server: &mut P, mut arrives: impl FnMut(&mut P, &mut Duration) -> bool) {
    // The system gives the lowest number that is free: all below are taken.
    let highest = File::open("/dev/null").expect("there is one more");
    let mut before = 0;
    limit(|limit| before = std::mem::replace(&mut limit.rlim_cur, highest.as_raw_fd() as libc::rlim_t + 1));
    let mut now = Duration::ZERO;
    let mut awake = 0;
    for _ in 0..SECOND {
        let has_come = arrives(server, &mut now);
        assert!(!has_come, "{what}: there was a descriptor");
        awake += u32::from(is_awake(server));
        let timeout = server.poll_timeout();
        assert!(timeout.is_some() || is_awake(server), "{what}: it sleeps for ever");
    }
    limit(|limit| limit.rlim_cur = before);
    assert!((1..=20).contains(&awake), "{what}: awake in {awake} of {SECOND} passes, which take a second");
    let end = now + Duration::from_secs(1);
    while !arrives(server, &mut now) {
        assert!(now < end, "{what}: it is not accepted");
    }
}

#[test]
fn listeners_are_left_alone_while_no_descriptor_is_left() {
    let config = IwarpConfig { may_sleep: true, ..IwarpConfig::default() };
    let mut server = Iwarp::open(config).expect("it needs nothing");
    let listener = server.listen("127.0.0.1:0").expect("a port is free");
    let address = server.listener_address(listener).expect("it listens");
    let client = TcpStream::connect(address).expect("it listens");
    check("iwarp", &mut server, |server, now| {
        pass(server, now);
        server.counters().accepted > 0
    });
    drop((client, server));

    let budget = Budget::new(16 << 20);
    let page = PageChoice::Size(PageSize::Base);
    let arena = ArenaConfig { name: "descriptors", len: 1 << 20, page, node: None, budget: &budget };
    let arena = Arena::new(&arena).expect("a megabyte");
    let open = || {
        let mut shm =
            Shm::open(ShmConfig { may_sleep: true, ..ShmConfig::default() }).expect("it needs nothing");
        shm.register(&arena).expect("an arena is sealed");
        shm
    };
    let (mut server, mut client) = (open(), open());
    let name = format!("descriptors-{}", std::process::id());
    server.listen(&name).expect("the name is free");
    client.connect(&name, b"", CAPACITY).expect("the name is fine");
    pass(&mut client, &mut Duration::ZERO.clone());
    check("shm", &mut server, pass);
    check_refusal(&mut server, &mut client, &name);
}

/// There is a descriptor left for one more connection, and none for its memory: the client is told so.
fn check_refusal(server: &mut Shm, client: &mut Shm, name: &str) {
    let (mut now, mut client_now) = (Duration::from_secs(60), Duration::from_secs(60));
    let pair = client.connect(name, b"", CAPACITY).expect("the name is fine");
    pass(client, &mut client_now);
    let _below = File::open("/dev/null").expect("there is one more");
    let last = File::open("/dev/null").expect("there is one more");
    let mut before = 0;
    limit(|limit| before = std::mem::replace(&mut limit.rlim_cur, last.as_raw_fd() as libc::rlim_t + 1));
    drop(last);
    let reason = (0..SECOND).find_map(|_| {
        pass(server, &mut now);
        client_now += PASS;
        client.poll(client_now, &mut VecDeque::with_capacity(8), 8);
        match client.poll_event() {
            Some(Event::Disconnected { queue_pair, reason }) if queue_pair == pair => Some(reason),
            _ => None,
        }
    });
    limit(|limit| limit.rlim_cur = before);
    let reason = reason.expect("it is refused").to_string();
    assert!(reason.contains("no descriptors left") && reason.contains("ulimit -n"), "{reason}");
}
