//! Peers that want too much: memory, descriptors, time. What they ask for is bounded, and refused with a reason.

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use super::hostile::{Rogue, answer};
use super::*;
use crate::shm::Admit;
use crate::shm::bells::BellPlace;
use crate::shm::message::{Introduction, Message, WAKE};
use crate::shm::pages::{Layout, Part, check};
use crate::shm::setup::Answer;
use crate::shm::sockets::Socket;

const LAYOUT: Layout = Layout { ring_len: 16384, exposures: 8 };
const FIXED: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
const TIB: u64 = 1 << 40;

/// A memfd without a page in it. `None`: this kernel has none of that kind.
fn sparse(len: u64, flags: libc::c_uint, seals: libc::c_int) -> Option<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | flags;
    // SAFETY: a C string, and flags that exist.
    let fd = check(unsafe { libc::memfd_create(c"sparse".as_ptr(), flags) }).ok()?;
    // SAFETY: just made.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: an open descriptor.
    unsafe {
        check(libc::ftruncate(fd.as_raw_fd(), len as libc::off_t)).unwrap();
        check(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals)).unwrap();
    }
    Some(fd)
}

/// A server with a name, where processes of any user are admitted.
fn server(config: ShmConfig) -> (Side, String) {
    let mut server = Side::new(ShmConfig { admit: vec![Admit::Anybody], ..config });
    let name = address();
    server.shm.listen(&name).unwrap();
    (server, name)
}

fn dial(name: &str) -> Socket {
    rendezvous::connect(&Address::new(name).unwrap()).unwrap()
}

/// Says HELLO.
fn say(socket: &Socket, introduction: &Introduction, fds: &[BorrowedFd<'_>]) {
    rendezvous::send(socket.as_fd(), &Message::Hello(introduction.clone()).encode(), fds).unwrap();
}

/// What the server answers: the reason of a refusal, or nothing while its user has the request.
fn refused(server: &mut Side, socket: &Socket) -> Option<String> {
    until(&mut [server], |sides| match answer(socket) {
        Answer::Nothing => sides[0].events.pop().map(|event| {
            assert!(matches!(event, Event::ConnectRequest { .. }), "{event:?}");
            None
        }),
        Answer::Rejected(reason) => Some(Some(reason)),
        _ => panic!("neither an answer nor a request"),
    })
}

/// A hole takes as long as the file is: while it is punched, an access to any page in it waits.
#[test]
fn memory_that_is_longer_than_it_says_is_refused() {
    let (mut server, name) = server(ShmConfig::default());
    let (_part, exact) = Part::create(LAYOUT).unwrap();
    let longer = sparse(1 << 30, 0, FIXED).unwrap();
    let growing = sparse(LAYOUT.file_len() as u64, 0, libc::F_SEAL_SHRINK).unwrap();
    let plain = Rogue::introduction(LAYOUT);
    let with_arena = Introduction { arenas: vec![1 << 20], ..plain.clone() };
    let place = BellPlace { count: 64, index: 0 };
    let with_bells = Introduction { bell: Some(place), ..plain.clone() };
    let cases: [(&str, &Introduction, &[BorrowedFd<'_>], &str); 4] = [
        ("a part", &plain, &[longer.as_fd()], "longer or shorter"),
        ("a part that may grow", &plain, &[growing.as_fd()], "not sealed"),
        ("an arena", &with_arena, &[exact.as_fd(), longer.as_fd()], "longer or shorter"),
        ("bells", &with_bells, &[exact.as_fd(), longer.as_fd()], "longer or shorter"),
    ];
    for (what, introduction, fds, problem) in cases {
        let socket = dial(&name);
        say(&socket, introduction, fds);
        let reason = refused(&mut server, &socket);
        assert!(reason.as_ref().is_some_and(|reason| reason.contains(problem)), "{what}: {reason:?}");
    }
}

/// A process dies that touches a hole in a reserved hugepage while no such page is free.
#[test]
fn hugepages_of_other_users_are_refused() {
    let Some(huge) = sparse(2 << 20, libc::MFD_HUGETLB | libc::MFD_HUGE_2MB, FIXED) else {
        return stag_testing::skipped("this kernel has no hugepages of 2 MiB");
    };
    let (_part, part) = Part::create(LAYOUT).unwrap();
    let introduction = Introduction { arenas: vec![2 << 20], ..Rogue::introduction(LAYOUT) };
    for (is_own, foreign_hugepages) in [(true, false), (false, true), (false, false)] {
        let (mut server, name) = server(ShmConfig { foreign_hugepages, ..ShmConfig::default() });
        if !is_own {
            server.shm.own_user = || 4_000_000;
        }
        let socket = dial(&name);
        say(&socket, &introduction, &[part.as_fd(), huge.as_fd()]);
        match refused(&mut server, &socket) {
            None => assert!(is_own || foreign_hugepages),
            Some(reason) => {
                assert!(!is_own && !foreign_hugepages, "{reason}");
                assert!(reason.contains("hugepages") && reason.contains("use pages of 4 KiB"), "{reason}");
            }
        }
    }
}

#[test]
fn more_memory_than_may_be_mapped_is_refused_and_others_are_served() {
    let (mut server, name) = server(ShmConfig::default());
    let (_part, part) = Part::create(LAYOUT).unwrap();
    let arenas: Vec<OwnedFd> = (0..5).map(|_| sparse(7 * TIB, 0, FIXED).unwrap()).collect();
    let introduction = Introduction { arenas: vec![7 * TIB; 5], ..Rogue::introduction(LAYOUT) };
    let fds: Vec<BorrowedFd<'_>> = [&part].into_iter().chain(&arenas).map(AsFd::as_fd).collect();
    let socket = dial(&name);
    say(&socket, &introduction, &fds);
    let request = until(&mut [&mut server], |sides| match sides[0].events.pop()? {
        Event::ConnectRequest { request, .. } => Some(request),
        other => panic!("{other:?}"),
    });
    let error = server.shm.prepare(request, CAPACITY).unwrap_err().to_string();
    assert!(error.contains("shared memory") && error.contains("the limit is"), "{error}");
    assert!(error.contains("offer smaller arenas"), "{error}");
    let Answer::Rejected(reason) = answer(&socket) else { panic!("it is refused") };
    assert_eq!(reason, error, "it is told why");
    assert_eq!((server.shm.regions.mapped(), server.shm.completions_taken), (0, 0));
    let mut client = Side::new(ShmConfig::default());
    connect(&mut client, &mut server, CAPACITY);
}

/// The same from a server, whose memory comes with its answer.
#[test]
fn a_client_refuses_too_much_memory_too() {
    let name = address();
    let listener = rendezvous::listen(&Address::new(&name).unwrap()).unwrap();
    let mut client = Side::new(ShmConfig::default());
    let pair = client.shm.connect(&name, b"", CAPACITY).unwrap();
    let socket = until(&mut [&mut client], |_| listener.accept().unwrap());
    let (_part, part) = Part::create(LAYOUT).unwrap();
    let arenas: Vec<OwnedFd> = (0..5).map(|_| sparse(7 * TIB, 0, FIXED).unwrap()).collect();
    let accept = Introduction { arenas: vec![7 * TIB; 5], ..Rogue::introduction(LAYOUT) };
    let fds: Vec<BorrowedFd<'_>> = [&part].into_iter().chain(&arenas).map(AsFd::as_fd).collect();
    rendezvous::send(socket.as_fd(), &Message::Accept(accept).encode(), &fds).unwrap();
    let reason = until(&mut [&mut client], |sides| sides[0].reason(pair));
    let DisconnectReason::MemoryRefused(why) = &reason else { panic!("{reason:?}") };
    assert!(why.contains("the limit is") && why.contains("offer smaller arenas"), "{why}");
    assert!(reason.describe("the server").starts_with("the server's memory is not mapped here: "));
}

/// Few threads close such descriptors, so their sender is shut out.
#[test]
fn descriptors_that_were_not_asked_for_shut_their_user_out_for_a_while() {
    let layout = LAYOUT;
    let plain = Rogue::introduction(layout);
    let hello = Message::Hello(plain.clone()).encode();
    let (_part, part) = Part::create(layout).unwrap();
    let (near, _far) = UnixStream::pair().unwrap();
    let part_fd = part.as_fd();
    let many = vec![part_fd; 60];
    let cases: Vec<(&str, &[u8], Vec<BorrowedFd<'_>>)> = vec![
        ("no memfd", &hello, vec![near.as_fd()]),
        ("one more", &hello, vec![part_fd, part_fd]),
        ("many", &hello, many),
        ("with another message", b"GET / HTTP/1.1", vec![near.as_fd()]),
        ("with a wake-up", &WAKE, vec![part_fd]),
    ];
    for (what, bytes, fds) in &cases {
        let (mut server, name) = server(ShmConfig::default());
        let (silent, socket) = (dial(&name), dial(&name));
        rendezvous::send(socket.as_fd(), bytes, fds).unwrap();
        let reason = refused(&mut server, &socket).unwrap();
        assert!(reason.contains("descriptors were sent"), "{what}: {reason}");
        // Not even what it connected before is heard.
        assert!(server.shm.incoming.is_empty());
        assert!(matches!(answer(&silent), Answer::Closed));
        let early = dial(&name);
        let reason = refused(&mut server, &early).unwrap();
        assert!(reason.contains("refused for a minute"), "{what}: {reason}");
        server.now += Duration::from_secs(60);
        let later = dial(&name);
        say(&later, &plain, &[part_fd]);
        assert_eq!(refused(&mut server, &later), None, "{what}");
    }
    // Behind the set-up, too.
    let mut server = Side::new(ShmConfig::default());
    let (rogue, pair) = Rogue::connect(&mut server);
    rendezvous::send(rogue.socket.as_fd(), &WAKE, &[part_fd]).unwrap();
    let reason = until(&mut [&mut server], |sides| sides[0].reason(pair));
    assert!(
        matches!(reason, DisconnectReason::PeerViolation(why) if why.contains("descriptors were sent")),
        "{reason:?}"
    );
    assert_eq!(server.shm.shunned.len(), 1);
}

/// One user cannot take all places of the set-up by silence.
#[test]
fn silent_connections_of_one_user_leave_places() {
    let (mut server, name) = server(ShmConfig { queue_pairs: 8, ..ShmConfig::default() });
    let silent: Vec<Socket> = (0..80).map(|_| dial(&name)).collect();
    let mut refusals = 0;
    for _ in 0..100 {
        server.turn();
    }
    for socket in &silent {
        match answer(socket) {
            Answer::Nothing => {}
            Answer::Rejected(reason) => {
                assert!(reason.contains("have not said HELLO"), "{reason}");
                refusals += 1;
            }
            _ => panic!("no answer is expected"),
        }
    }
    assert_eq!((server.shm.incoming.len(), refusals), (36, 44), "half of the places, and the rest");
}

/// Memory that the peer only reads is back at once, though it says that it is in the middle of an access.
#[test]
fn a_fence_against_reads_never_waits() {
    let mut server = Side::new(ShmConfig { may_sleep: true, ..ShmConfig::default() });
    let (rogue, pair) = Rogue::connect(&mut server);
    until(&mut [&mut server], |sides| (!sides[0].events.is_empty()).then_some(()));
    rogue.part.epoch().store(1, Ordering::SeqCst);
    let before = server.messages.outstanding();
    let fenced = server.shm.expose(pair, Exposed::Read(server.buf(&[7; 100]).share())).unwrap();
    server.shm.expose(pair, Exposed::Read(server.buf(&[8; 100]).share())).unwrap();
    let fence = server.shm.fence(pair, fenced.handle, 1);
    assert!(matches!(fence, Some(Fence::Done(Exposed::Read(_)))), "{fence:?}");
    drop(fence);
    assert_eq!(server.messages.outstanding(), before + 1);
    server.turn();
    assert!(server.shm.arm(), "there is nothing to wait for");
    server.shm.disarm();
    server.shm.disconnect(pair);
    assert_eq!(until(&mut [&mut server], |sides| sides[0].reason(pair)), DisconnectReason::Local);
    server.completions.clear();
    assert_eq!(server.messages.outstanding(), 0, "all is back, though its peer still says so");
}

/// A reader that was under way when its source was fenced finds out.
#[test]
fn what_was_read_too_late_counts_as_not_read() {
    let (mut client, mut server, a, b) = pair();
    let source = server.shm.expose(b, Exposed::Read(server.buf(&[7; 100]).share())).unwrap();
    for _ in 0..3 {
        server.turn();
        client.turn();
    }
    let link = client.shm.slots[a.index as usize].as_mut().unwrap().link.as_mut().unwrap();
    let access = crate::shm::exposure::Access::Read;
    assert!(link.access(source, 100, access).is_ok());
    assert_eq!(link.check_read(source.handle), Ok(()));
    assert!(matches!(server.shm.fence(b, source.handle, 0), Some(Fence::Done(_))));
    assert_eq!(link.check_read(source.handle), Err(WorkError::RemoteAccess));
    link.end_span();
}

/// A peer that says for ever that it is in the middle of a write: its connection ends, the reactor sleeps, and only that memory is lost.
#[test]
fn a_fence_that_never_ends_ends_its_connection() {
    let config = ShmConfig { may_sleep: true, ..ShmConfig::default() };
    let limit = config.fence_timeout;
    let mut server = Side::new(config);
    let (rogue, pair) = Rogue::connect(&mut server);
    until(&mut [&mut server], |sides| (!sides[0].events.is_empty()).then_some(()));
    rogue.part.epoch().store(1, Ordering::SeqCst);
    let target = server.shm.expose(pair, Exposed::Write(server.buf(&[0; 100]))).unwrap();
    server.shm.expose(pair, Exposed::Write(server.buf(&[0; 100]))).unwrap();
    assert!(matches!(server.shm.fence(pair, target.handle, 1), Some(Fence::Pending)));
    server.turn();
    let due = server.shm.poll_timeout().unwrap();
    assert!(server.shm.arm(), "the reactor sleeps meanwhile");
    // Its access ends, which is work.
    rogue.part.epoch().store(2, Ordering::SeqCst);
    server.shm.disarm();
    assert!(!server.shm.arm());
    server.turn();
    assert!(server.completions.iter().any(|c| matches!(c.completed, Completed::Fence { .. })));
    server.completions.clear();

    rogue.part.epoch().store(3, Ordering::SeqCst);
    let target = server.shm.expose(pair, Exposed::Write(server.buf(&[0; 100]))).unwrap();
    assert!(matches!(server.shm.fence(pair, target.handle, 1), Some(Fence::Pending)));
    server.turn();
    assert!(server.shm.poll_timeout().unwrap() > due, "each access has its own time");
    server.now += limit - Duration::from_millis(1);
    server.turn();
    assert!(matches!(server.shm.slots[pair.index as usize].as_ref().unwrap().phase, crate::shm::Phase::Open));
    server.now += Duration::from_millis(1);
    for _ in 0..3 {
        server.turn();
    }
    assert_eq!(server.reason(pair), None, "it may let go of its end yet");
    assert!(server.shm.arm(), "the reactor sleeps meanwhile");
    server.shm.disarm();
    server.now += limit;
    let reason = until(&mut [&mut server], |sides| sides[0].reason(pair));
    assert!(
        matches!(reason, DisconnectReason::PeerViolation(why) if why.contains("does not end")),
        "{reason:?}"
    );
    server.completions.clear();
    assert_eq!(server.messages.outstanding(), 2, "what it may be writing to, and nothing else");
    // Its end is of no interest any more.
    drop(rogue);
    for _ in 0..100 {
        server.turn();
    }
}
