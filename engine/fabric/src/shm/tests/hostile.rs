//! Peers that break the rules, or that were not admitted: they can end their connection, and nothing else.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::*;
use crate::shm::Admit;
use crate::shm::message::{Introduction, Message, WAKE};
use crate::shm::pages::{AllowedPages, Layout, Part, check};
use crate::shm::rendezvous::Heard;
use crate::shm::setup::{self, Answer};
use crate::shm::sockets::Socket;

/// What a client by hand hears.
pub(super) fn answer(socket: &Socket) -> Answer {
    setup::answer(socket.as_fd(), AllowedPages::Base)
}

/// A client by hand: a socket and a part, to break the rules with.
pub(super) struct Rogue {
    // Kept open, as a living peer does.
    pub(super) socket: Socket,
    pub(super) part: Part,
}

impl Rogue {
    pub(super) fn introduction(layout: Layout) -> Introduction {
        let (arenas, private_data) = (Vec::new(), Vec::new());
        Introduction { may_sleep: false, capacity: CAPACITY, layout, arenas, bell: None, private_data }
    }

    /// Connects in order, then has the server's attention. Says that it may sleep, and does not.
    pub(super) fn connect(server: &mut Side) -> (Rogue, QueuePairId) {
        Rogue::connect_with(server, CAPACITY)
    }

    /// The same, to a queue pair of this capacity.
    fn connect_with(server: &mut Side, capacity: QueuePairCapacity) -> (Rogue, QueuePairId) {
        let address = address();
        server.shm.listen(&address).unwrap();
        let layout = Layout { ring_len: 16384, exposures: 8 };
        let (part, fd) = Part::create(layout).unwrap();
        let socket = rendezvous::connect(&Address::new(&address).unwrap()).unwrap();
        let introduction = Introduction { may_sleep: true, ..Rogue::introduction(layout) };
        let hello = Message::Hello(introduction).encode();
        rendezvous::send(socket.as_fd(), &hello, &[fd.as_fd()]).unwrap();
        let pair = until(&mut [server], |sides| accept(sides[0], capacity));
        server.receive(pair);
        (Rogue { socket, part }, pair)
    }

    fn write(&self, at: usize, words: &[u64]) {
        // Last to first: the header of the first record is the doorbell.
        for (i, &word) in words.iter().enumerate().rev() {
            // SAFETY: in the ring, which is mapped writable and page-aligned.
            let atomic = unsafe { AtomicU64::from_ptr(self.part.ring().add(at + 8 * i).cast()) };
            atomic.store(word, Ordering::Release);
        }
    }
}

const LAST: u64 = 1 << 28;

#[test]
fn impossible_records_end_the_connection() {
    let cases: [(&str, &[u64]); 10] = [
        ("longer than the ring", &[LAST | 1 << 24 | 0xff_ffff]),
        ("an unknown kind", &[LAST | 15 << 24]),
        ("a batch that ends in nothing", &[1 << 24]),
        ("a bind of the wrong length", &[LAST | 3 << 24 | 8 | 77 << 32, 0]),
        ("a bind of an arena that is not there", &[LAST | 4 << 24 | 16 | 77 << 32, 9 << 48, 4096]),
        ("a bind of an index that is not there", &[LAST | 4 << 24 | 16 | u64::from(u32::MAX) << 32, 0, 1]),
        ("a message behind half a bind", &[LAST | 6 << 24 | 8 | 77 << 32, 0]),
        ("a message behind a bind of no arena", &[LAST | 7 << 24 | 24 | 77 << 32, 9 << 48, 4096, 0]),
        ("one that is longer than what is shown", &[LAST | 6 << 24 | 900 | 77 << 32, 9 << 48, 4096]),
        ("all ones", &[u64::MAX]),
    ];
    for (what, words) in cases {
        let mut server = Side::new(ShmConfig::default());
        let (rogue, pair) = Rogue::connect(&mut server);
        server.receive(pair);
        rogue.write(0, words);
        let reason = until(&mut [&mut server], |sides| sides[0].reason(pair));
        assert!(matches!(reason, DisconnectReason::PeerViolation(_)), "{what}: {reason:?}");
        server.completions.clear();
        assert_eq!(server.messages.outstanding(), 0, "{what}: all buffers came back");
    }
}

#[test]
fn an_impossible_position_ends_the_connection() {
    let mut server = Side::new(ShmConfig::default());
    let (rogue, pair) = Rogue::connect(&mut server);
    rogue.part.head().store(u64::MAX / 2, Ordering::Release);
    until(&mut [&mut server], |sides| {
        let _ = sides[0].send(pair, &[0; 1000]);
        sides[0].reason(pair)
    });
    let failed = server.completions.iter().any(|c| c.result == Err(WorkError::PeerViolation));
    assert!(failed, "the Send that met it says so");
}

#[test]
fn every_stray_word_is_survived() {
    // A small generator with a fixed seed: random words at the start of a batch, and random lengths behind.
    let mut state = 0x5eed_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 20
    };
    for round in 0..60 {
        let mut server = Side::new(ShmConfig::default());
        let (rogue, pair) = Rogue::connect(&mut server);
        for i in (0..16384 / 8).rev() {
            // Headers that are nearly right go further than noise.
            let kind = 1 + random() % 7;
            let word = (random() % 200) | (kind << 24) | ((random() & 1) << 28) | ((random() % 16) << 32);
            rogue.write(8 * i, &[word]);
        }
        for _ in 0..200 {
            server.turn();
            server.completions.clear();
            let buf = server.messages.take().unwrap();
            let _ = server.shm.post_receive(pair, 1, buf);
        }
        drop(rogue);
        let reason = until(&mut [&mut server], |sides| sides[0].reason(pair));
        server.completions.clear();
        assert_eq!(server.messages.outstanding(), 0, "round {round}: {reason:?}");
    }
}

#[test]
fn handshakes_that_break_the_rules_cost_nothing() {
    let mut server = Side::new(ShmConfig::default());
    let name = address();
    server.shm.listen(&name).unwrap();
    let dial = || rendezvous::connect(&Address::new(&name).unwrap()).unwrap();
    let layout = Layout { ring_len: 16384, exposures: 8 };
    let hello = Message::Hello(Rogue::introduction(layout)).encode();
    let (_part, fd) = Part::create(layout).unwrap();
    let (_small, short) = Part::create(Layout { ring_len: 4096, exposures: 0 }).unwrap();
    let unsealed = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&unsealed, 1 << 20).unwrap();
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let part_and =
        |len| Message::Hello(Introduction { arenas: vec![len], ..Rogue::introduction(layout) }).encode();

    let cases: Vec<(&str, Vec<u8>, Vec<BorrowedFd<'_>>)> = vec![
        ("another program", b"GET / HTTP/1.1".to_vec(), vec![]),
        ("another version", b"GET / HTTP/1.1".to_vec(), vec![fd.as_fd()]),
        ("no descriptors", hello.clone(), vec![]),
        ("too many descriptors", hello.clone(), vec![fd.as_fd(), fd.as_fd()]),
        ("a part that is too short", hello.clone(), vec![short.as_fd()]),
        ("a part that may shrink", hello.clone(), vec![unsealed.as_fd()]),
        ("a socket for a part", hello.clone(), vec![socket.as_fd()]),
        ("an arena that may shrink", part_and(1 << 20), vec![fd.as_fd(), unsealed.as_fd()]),
        ("an arena that is shorter", part_and(1 << 20), vec![fd.as_fd(), short.as_fd()]),
        ("an arena that is longer", part_and(4096), vec![fd.as_fd(), short.as_fd()]),
        ("an arena of half a page", part_and(2048), vec![fd.as_fd(), short.as_fd()]),
        ("an arena of nothing", part_and(0), vec![fd.as_fd(), short.as_fd()]),
        ("an accept", Message::Accept(Rogue::introduction(layout)).encode(), vec![fd.as_fd()]),
        ("a wake-up", WAKE.to_vec(), vec![]),
        ("too long", vec![0; 4000], vec![]),
    ];
    for (what, bytes, fds) in cases {
        server.shm.shunned.clear();
        let socket = dial();
        rendezvous::send(socket.as_fd(), &bytes, &fds).unwrap();
        let answer = until(&mut [&mut server], |_| match answer(&socket) {
            Answer::Nothing => None,
            answer => Some(answer),
        });
        let Answer::Rejected(reason) = answer else { panic!("{what}") };
        assert!(!what.contains("version") || reason.contains(what), "{what}: {reason}");
        assert!(server.events.is_empty(), "{what}: the user hears nothing of it");
    }

    server.shm.shunned.clear();
    // A client that says nothing is dropped when its time is over; another client is served meanwhile.
    let silent = dial();
    let mut client = Side::new(ShmConfig::default());
    client.shm.connect(&name, b"", CAPACITY).unwrap();
    until(&mut [&mut client, &mut server], |sides| accept(sides[1], CAPACITY));
    assert_eq!(server.shm.incoming.len(), 1);
    server.now += ShmConfig::default().setup_timeout;
    until(&mut [&mut server], |sides| sides[0].shm.incoming.is_empty().then_some(()));
    assert!(matches!(answer(&silent), Answer::Closed));
}

/// As fast as the machine is, or this test hangs: then the wait below ends it.
fn in_time(what: &'static str, work: impl FnOnce() + Send + 'static) {
    let (done, finished) = std::sync::mpsc::channel();
    thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    finished
        .recv_timeout(Duration::from_secs(30))
        .unwrap_or_else(|_| panic!("{what}: it waits for its peer"));
}

#[test]
fn a_peer_that_never_wakes_up_does_not_make_us_wait() {
    in_time("a full queue of wake-ups", || {
        let mut server = Side::new(ShmConfig::default());
        // A ring that takes more messages than the socket's queue takes wake-ups.
        let capacity = QueuePairCapacity { send_len_max: 65536, ..CAPACITY };
        let (rogue, pair) = Rogue::connect_with(&mut server, capacity);
        // Its end of the socket blocks, which must be nothing to us.
        let socket = rogue.socket.as_fd();
        // SAFETY: an open descriptor.
        check(unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETFL, 0) }).unwrap();
        let mut sent = 0;
        for sleep in 1..=5000 {
            rogue.part.sleeping().store(sleep, Ordering::SeqCst);
            // What it does not read fills the ring, and the queue before.
            sent += usize::from(server.send(pair, b"wake up").is_ok());
            server.turn();
        }
        // SAFETY: an open descriptor.
        check(unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }).unwrap();
        assert!(matches!(setup::answer(socket, AllowedPages::Base), Answer::Accepted(_)));
        let heard = std::iter::repeat_with(|| rendezvous::hear_wake(socket));
        let heard = heard.take_while(|heard| *heard == Heard::Wake).count();
        assert!(0 < heard && 2 * heard < sent, "{heard} of {sent}: the queue was never full");
        assert_eq!(server.reason(pair), None);
    });
}

#[test]
fn a_sleeper_is_woken_once_for_each_sleep() {
    let mut server = Side::new(ShmConfig::default());
    let (rogue, pair) = Rogue::connect(&mut server);
    // ACCEPT.
    until(&mut [&mut server], |_| match answer(&rogue.socket) {
        Answer::Nothing => None,
        answer => {
            assert!(matches!(answer, Answer::Accepted(_)));
            Some(())
        }
    });
    let mut wakes = |sleep| {
        rogue.part.sleeping().store(sleep, Ordering::SeqCst);
        for _ in 0..3 {
            server.send(pair, b"news").unwrap();
            server.turn();
        }
        let heard = std::iter::repeat_with(|| rendezvous::hear_wake(rogue.socket.as_fd()));
        heard.take_while(|heard| *heard == Heard::Wake).count()
    };
    assert_eq!([0, 1, 0, 2, u32::MAX, 0].map(&mut wakes), [0, 1, 0, 1, 1, 0]);
}

#[test]
fn wake_ups_that_nobody_waits_for_end_the_connection_and_its_end_is_still_heard() {
    for (what, bytes) in [("a wake-up", &WAKE[..]), ("noise", b"noise")] {
        let mut server = Side::new(ShmConfig { may_sleep: true, ..ShmConfig::default() });
        let (rogue, pair) = Rogue::connect(&mut server);
        until(&mut [&mut server], |sides| (!sides[0].events.is_empty()).then_some(()));
        // It says that it is in the middle of an access, so that memory comes back only when it is gone.
        rogue.part.epoch().store(1, Ordering::SeqCst);
        let memory = server.buf(&[0; 10]);
        server.shm.expose(pair, Exposed::Write(memory)).unwrap();
        if what == "a wake-up" {
            assert!(server.shm.arm());
            server.shm.disarm();
            rendezvous::wake(rogue.socket.as_fd());
            for _ in 0..100 {
                server.turn();
            }
            assert_eq!(server.shm.slots[pair.index as usize].as_ref().map(|p| p.has_chores()), Some(false));
        }
        rendezvous::send(rogue.socket.as_fd(), bytes, &[]).unwrap();
        for _ in 0..100 {
            server.turn();
        }
        assert_eq!(server.reason(pair), None, "{what}: its access is under way");
        assert!(server.shm.slots[pair.index as usize].as_ref().is_some_and(|p| p.has_chores()), "{what}");
        drop(rogue);
        let reason = until(&mut [&mut server], |sides| sides[0].reason(pair));
        assert!(matches!(reason, DisconnectReason::PeerViolation(_)), "{what}: {reason:?}");
        server.completions.clear();
        assert_eq!(server.messages.outstanding(), 0);
    }
}

/// A TCP socket whose close waits, for an hour, for octets that its peer does not read.
pub(in crate::shm) fn lingering() -> (OwnedFd, std::net::TcpListener, std::net::TcpStream) {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    while near.write(&[0; 65536]).is_ok() {}
    let linger = libc::linger { l_onoff: 1, l_linger: 3600 };
    // SAFETY: an open descriptor, and an option of its length.
    check(unsafe {
        let len = size_of::<libc::linger>() as libc::socklen_t;
        libc::setsockopt(near.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), len)
    })
    .unwrap();
    // SO_LINGER has no effect on a socket that does not block.
    near.set_nonblocking(false).unwrap();
    (near.into(), listener, far)
}

#[test]
fn a_descriptor_whose_close_waits_does_not_make_us_wait() {
    in_time("a refused HELLO", || {
        let mut server = Side::new(ShmConfig::default());
        let name = address();
        server.shm.listen(&name).unwrap();
        let (fd, _listener, _far) = lingering();
        let layout = Layout { ring_len: 16384, exposures: 8 };
        let hello = Message::Hello(Rogue::introduction(layout)).encode();
        let socket = rendezvous::connect(&Address::new(&name).unwrap()).unwrap();
        rendezvous::send(socket.as_fd(), &hello, &[fd.as_fd(), fd.as_fd()]).unwrap();
        drop(fd);
        for _ in 0..100 {
            server.turn();
        }
    });
    in_time("what is behind HELLO", || {
        let mut server = Side::new(ShmConfig::default());
        let name = address();
        server.shm.listen(&name).unwrap();
        let (fd, _listener, _far) = lingering();
        let layout = Layout { ring_len: 16384, exposures: 8 };
        let (_part, part) = Part::create(layout).unwrap();
        let hello = Message::Hello(Rogue::introduction(layout)).encode();
        let socket = rendezvous::connect(&Address::new(&name).unwrap()).unwrap();
        rendezvous::send(socket.as_fd(), &hello, &[part.as_fd()]).unwrap();
        // Of no octets, so that the queue looks empty; and another.
        rendezvous::send(socket.as_fd(), &[], &[]).unwrap();
        rendezvous::send(socket.as_fd(), &[], &[fd.as_fd()]).unwrap();
        drop(fd);
        for _ in 0..100 {
            server.turn();
        }
    });
    in_time("a client that is not admitted", || {
        let mut server = Side::new(ShmConfig::default());
        server.shm.own_user = || 4_000_000;
        let name = address();
        server.shm.listen(&name).unwrap();
        let (fd, _listener, _far) = lingering();
        let socket = rendezvous::connect(&Address::new(&name).unwrap()).unwrap();
        rendezvous::send(socket.as_fd(), &[], &[fd.as_fd()]).unwrap();
        drop(fd);
        for _ in 0..100 {
            server.turn();
        }
    });
    in_time("a listener's backlog", || {
        let mut server = Side::new(ShmConfig::default());
        let name = address();
        server.shm.listen(&name).unwrap();
        let (fd, _listener, _far) = lingering();
        let socket = rendezvous::connect(&Address::new(&name).unwrap()).unwrap();
        rendezvous::send(socket.as_fd(), &[], &[fd.as_fd()]).unwrap();
        drop(fd);
        drop(server);
        // The name is free at once.
        Side::new(ShmConfig::default()).shm.listen(&name).unwrap();
    });
}

#[test]
fn who_is_not_admitted_gets_nothing() {
    let stranger = || 4_000_000;
    // SAFETY: no pointers.
    let own = unsafe { libc::geteuid() };
    for (admit, is_admitted) in [
        (vec![], false),
        (vec![Admit::User(own + 1)], false),
        (vec![Admit::User(own + 1), Admit::User(own)], true),
        (vec![Admit::Anybody], true),
    ] {
        let config = ShmConfig { admit: admit.clone(), ..ShmConfig::default() };
        // A server that runs as somebody else.
        let (mut client, mut server) = (Side::new(ShmConfig::default()), Side::new(config.clone()));
        server.shm.own_user = stranger;
        let name = address();
        server.shm.listen(&name).unwrap();
        let pair = client.shm.connect(&name, b"", CAPACITY).unwrap();
        let accepted = until(&mut [&mut client, &mut server], |sides| {
            let accepted = accept(sides[1], CAPACITY).map(|_| true);
            accepted.or_else(|| {
                sides[0].reason(pair).map(|reason| {
                    assert!(
                        matches!(&reason, DisconnectReason::Rejected(why) if why.contains("not admitted")),
                        "{reason:?}"
                    );
                    false
                })
            })
        });
        assert_eq!(accepted, is_admitted, "server with {admit:?}");
        assert_eq!(server.shm.regions.mapped(), 2 * usize::from(is_admitted), "an arena, and the bells");

        // A client that runs as somebody else: somebody else has taken the name.
        let (mut client, mut server) = (Side::new(config), Side::new(ShmConfig::default()));
        client.shm.own_user = stranger;
        let name = address();
        server.shm.listen(&name).unwrap();
        let pair = client.shm.connect(&name, b"", CAPACITY).unwrap();
        let accepted = until(&mut [&mut client, &mut server], |sides| {
            let accepted = accept(sides[1], CAPACITY).map(|_| true);
            accepted.or_else(|| {
                sides[0].reason(pair).map(|reason| {
                    assert!(
                        matches!(reason, DisconnectReason::NotAdmitted { uid, .. } if uid == own),
                        "{reason:?}"
                    );
                    false
                })
            })
        });
        assert_eq!(accepted, is_admitted, "client with {admit:?}");
        if !is_admitted {
            until(&mut [&mut server], |sides| sides[0].shm.incoming.is_empty().then_some(()));
            assert!(server.events.is_empty(), "nothing was sent");
        }
    }
}

#[test]
fn a_connection_that_cannot_be_watched_gives_its_completions_back() {
    let (mut client, mut server) = (Side::new(ShmConfig::default()), Side::new(ShmConfig::default()));
    let address = address();
    server.shm.listen(&address).unwrap();
    client.shm.connect(&address, b"", CAPACITY).unwrap();
    let is_request = |event: &Event| matches!(event, Event::ConnectRequest { .. });
    let request = until(&mut [&mut client, &mut server], |sides| {
        let at = sides[1].events.iter().position(is_request)?;
        let Event::ConnectRequest { request, .. } = sides[1].events.remove(at) else { return None };
        Some(request)
    });
    server.shm.epoll.remove(server.shm.incoming[0].socket.as_fd());
    server.shm.prepare(request, CAPACITY).unwrap_err();
    assert_eq!(server.shm.completions_taken, 0);
}
