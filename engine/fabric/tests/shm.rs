//! Shared memory between two processes: data, and death.
//!
//! The second process is this test program again, which runs the test [`second_process`] with a role.

use std::collections::VecDeque;
use std::env;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stag_fabric::shm::Admit;
use stag_fabric::{
    Completed, Completion, DisconnectReason, Event, Exposed, Fence, Handle, Peer, Provider,
    QueuePairCapacity, QueuePairId, ReadPart, ReadRequest, RemoteSegment, SendRequest, Shm, ShmConfig,
    WorkError, WriteRequest,
};
use stag_memory::{Arena, ArenaConfig, Budget, Buf, PageChoice, PageSize, Pool};

const ROLE: &str = "STAG_SHM_TEST_ROLE";
const NAME: &str = "STAG_SHM_TEST_NAME";
const CAPACITY: QueuePairCapacity = QueuePairCapacity {
    receives: 16,
    sends: 16,
    exposures: 8,
    send_len_max: 1024,
    receive_len_max: 1024,
    receive_targets: 0,
};
/// The user that owns nothing.
const NOBODY: u32 = 65534;
const DATA_LEN_MAX: usize = 64 * 1024;
/// What a test waits for at most: a bound against hanging, not a time that it relies on.
const PATIENCE: Duration = Duration::from_secs(60);

#[expect(clippy::disallowed_methods, reason = "a test has no reactor whose clock it could use")]
fn now() -> Instant {
    Instant::now()
}

/// xorshift64*, so that both processes and every run agree.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

struct Side {
    shm: Shm,
    messages: Pool,
    pages: Pool,
    start: Instant,
    completions: VecDeque<Completion>,
    pair: Option<QueuePairId>,
    peer: Option<Peer>,
    ended: Option<DisconnectReason>,
    /// Connections that were asked for.
    requests: u32,
}

impl Side {
    fn new(may_sleep: bool) -> Side {
        Side::admitting(may_sleep, Vec::new())
    }

    fn admitting(may_sleep: bool, admit: Vec<Admit>) -> Side {
        let budget = Budget::new(16 << 20);
        let page = PageChoice::Size(PageSize::Base);
        let config = ArenaConfig { name: "processes", len: 4 << 20, page, node: None, budget: &budget };
        let arena = Arena::new(&config).expect("4 MiB of memory");
        let messages = Pool::fixed(&arena, "messages", 1024, 256).expect("they fit");
        let pages = Pool::runs(&arena, "pages", 4096, 800).expect("they fit");
        let config = ShmConfig { may_sleep, admit, ..ShmConfig::default() };
        let mut shm = Shm::open(config).expect("it needs nothing");
        shm.register(&arena).expect("an arena is sealed");
        let completions = VecDeque::with_capacity(64);
        let (pair, peer, ended) = (None, None, None);
        Side { shm, messages, pages, start: now(), completions, pair, peer, ended, requests: 0 }
    }

    fn poll(&mut self) {
        self.shm.ring_doorbells();
        let time = self.start.elapsed();
        assert!(time < PATIENCE, "nothing happened for {PATIENCE:?}");
        self.shm.poll(time, &mut self.completions, 64);
        while let Some(event) = self.shm.poll_event() {
            match event {
                Event::ConnectRequest { request, peer, .. } => {
                    self.peer = Some(peer);
                    self.requests += 1;
                    if let Ok(pair) = self.shm.prepare(request, CAPACITY) {
                        self.post_receives(pair);
                        self.shm.accept(pair, b"").expect("just prepared");
                    }
                }
                Event::Established { queue_pair, peer, .. } => {
                    self.pair = Some(queue_pair);
                    self.peer = Some(peer);
                }
                Event::Disconnected { reason, .. } => self.ended = Some(reason),
                _ => {}
            }
        }
    }

    fn post_receives(&mut self, pair: QueuePairId) {
        for _ in 0..CAPACITY.receives {
            self.post_receive(pair);
        }
    }

    fn post_receive(&mut self, pair: QueuePairId) {
        let buf = self.messages.take().expect("more than are posted");
        self.shm.post_receive(pair, 0, buf).expect("within the capacity");
    }

    /// Connects to the second process, which may not listen yet.
    fn connect(&mut self, name: &str) -> QueuePairId {
        loop {
            let pair = self.shm.connect(name, b"", CAPACITY).expect("the name is fine");
            self.post_receives(pair);
            while self.pair.is_none() && self.ended.is_none() {
                self.poll();
            }
            self.completions.clear();
            if self.pair.is_some() {
                return pair;
            }
            assert_eq!(self.ended.take(), Some(DisconnectReason::NoListener));
            std::thread::yield_now();
        }
    }

    fn serve(&mut self, name: &str) -> QueuePairId {
        self.shm.listen(name).expect("the name is free");
        loop {
            self.poll();
            if let Some(pair) = self.pair {
                return pair;
            }
        }
    }

    fn send(&mut self, pair: QueuePairId, bytes: &[u8], invalidate: Option<Handle>) {
        let mut buf = self.messages.take().expect("more than are posted");
        buf.set_len(bytes.len());
        buf.copy_from_slice(bytes);
        let request = SendRequest { id: 0, buf, invalidate, signaled: false };
        self.shm.post_send(pair, request).expect("within the capacity");
    }

    /// Waits for a message; its Receive is posted again.
    fn receive(&mut self, pair: QueuePairId) -> Option<(Buf, Option<Handle>, Option<Exposed>)> {
        loop {
            let is_message = |c: &Completion| matches!(c.completed, Completed::Receive { .. });
            if let Some(at) = self.completions.iter().position(is_message) {
                let completion = self.completions.remove(at)?;
                let Completed::Receive { buf, invalidated, exposed } = completion.completed else { continue };
                completion.result.ok()?;
                self.post_receive(pair);
                return Some((buf, invalidated, exposed));
            }
            if self.ended.is_some() {
                return None;
            }
            self.poll();
        }
    }

    /// Waits for the end, and checks that everything came back.
    fn end(&mut self) -> DisconnectReason {
        while self.ended.is_none() {
            self.poll();
        }
        self.completions.clear();
        assert_eq!(self.messages.outstanding(), 0, "messages came back");
        assert_eq!(self.pages.outstanding(), 0, "pages came back");
        self.ended.take().expect("just seen")
    }

    fn pages(&self, len: usize, fill: impl Fn(usize) -> u8) -> Buf {
        let mut buf = self.pages.take_len(len).expect("they are few");
        for (i, byte) in buf.iter_mut().enumerate() {
            *byte = fill(i);
        }
        buf
    }
}

fn encode(segments: &[(RemoteSegment, u64)]) -> Vec<u8> {
    let words = segments.iter().flat_map(|(s, len)| [u64::from(s.handle.0), s.offset, *len]);
    words.flat_map(u64::to_ne_bytes).collect()
}

fn decode(message: &[u8]) -> Vec<(RemoteSegment, u64)> {
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
    let segment = |part: &[u8]| {
        let handle = Handle(word(&part[..8]) as u32);
        (RemoteSegment { handle, offset: word(&part[8..16]) }, word(&part[16..]))
    };
    message.chunks_exact(24).map(segment).collect()
}

/// The second process; killed when the test ends.
struct Second(Child);

impl Second {
    fn start(role: &str, name: &str) -> Second {
        let program = env::current_exe().expect("it has a path");
        let started = Second::spawn(&mut Command::new(program), role, name);
        started.expect("this program can be run again")
    }

    /// Runs it as user "nobody", out of a folder that cannot be listed. `None`, and why, if that cannot be
    /// done.
    fn start_as_nobody(role: &str, name: &str) -> Option<Second> {
        if !Path::new("/proc/self").metadata().is_ok_and(|own| own.uid() == 0) {
            stag_testing::skipped("only root can start a process of another user");
            return None;
        }
        let folder = env::temp_dir().join(name);
        let program = folder.join("second");
        fs::create_dir_all(&folder).expect("a folder for the program");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("it is ours");
        fs::copy(env::current_exe().expect("it has a path"), &program).expect("a copy of the program");
        let mut command = Command::new(&program);
        command.current_dir("/").uid(NOBODY).gid(NOBODY);
        let started = Second::spawn(&mut command, role, name);
        // It runs, or never will.
        fs::remove_dir_all(&folder).expect("it is ours");
        started
            .map_err(|error| {
                stag_testing::skipped(format_args!("this root cannot start anything as nobody: {error}"));
            })
            .ok()
    }

    fn spawn(command: &mut Command, role: &str, name: &str) -> io::Result<Second> {
        command.args(["--exact", "second_process", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(NAME, name).stdout(Stdio::null());
        stag_testing::start_written_program(|| command.spawn()).map(Second)
    }

    fn kill(&mut self) {
        self.0.kill().expect("it is ours");
    }

    fn finish(mut self) {
        let status = self.0.wait().expect("it is ours");
        assert!(status.success(), "the second process failed: {status}");
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn name(what: &str) -> String {
    format!("test-{}-{what}", std::process::id())
}

#[test]
fn second_process() {
    let (Ok(role), Ok(name)) = (env::var(ROLE), env::var(NAME)) else { return };
    let mut side = Side::new(false);
    match role.as_str() {
        "responder" => respond(&mut side, &name),
        "idle" => {
            side.serve(&name);
            loop {
                side.poll();
            }
        }
        "writer" => write_for_ever(&mut side, &name),
        "dialer" => {
            side.shm.connect(&name, b"", CAPACITY).expect("the name is fine");
            loop {
                side.poll();
            }
        }
        "stranger" => {
            // It trusts the server; the server does not trust it.
            let mut side = Side::admitting(false, vec![Admit::Anybody]);
            let why = loop {
                side.shm.connect(&name, b"", CAPACITY).expect("the name is fine");
                while side.ended.is_none() {
                    side.poll();
                    assert!(side.pair.is_none(), "it was admitted");
                }
                match side.ended.take() {
                    Some(DisconnectReason::NoListener) => std::thread::yield_now(),
                    ended => break ended,
                }
            };
            assert!(
                matches!(&why, Some(DisconnectReason::Rejected(why)) if why.contains("not admitted")),
                "{why:?}"
            );
        }
        "squatter" => {
            let mut side = Side::admitting(false, vec![Admit::Anybody]);
            side.serve(&name);
            assert_eq!(side.requests, 1, "only who admits us asks");
            assert_eq!(side.end(), DisconnectReason::Peer);
        }
        other => panic!("no such role: {other}"),
    }
}

#[test]
fn a_server_of_root_admits_nobody_else() {
    let name = name("stranger");
    let Some(mut second) = Second::start_as_nobody("stranger", &name) else { return };
    let mut side = Side::new(false);
    side.shm.listen(&name).expect("the name is free");
    while second.0.try_wait().expect("it is ours").is_none() {
        side.poll();
        std::thread::yield_now();
    }
    assert_eq!(side.requests, 0);
    second.finish();
}

#[test]
fn a_client_of_root_gives_nothing_to_who_took_the_name() {
    let name = name("squatter");
    let Some(second) = Second::start_as_nobody("squatter", &name) else { return };
    let mut side = Side::new(false);
    loop {
        side.shm.connect(&name, b"", CAPACITY).expect("the name is fine");
        while side.ended.is_none() {
            side.poll();
            assert!(side.pair.is_none(), "it was admitted");
        }
        match side.ended.take() {
            Some(DisconnectReason::NoListener) => std::thread::yield_now(),
            ended => {
                let expected = DisconnectReason::NotAdmitted { uid: NOBODY, gid: NOBODY };
                assert_eq!(ended, Some(expected));
                break;
            }
        }
    }
    // Told to, it does.
    let mut side = Side::admitting(false, vec![Admit::User(NOBODY)]);
    let pair = side.connect(&name);
    side.shm.disconnect(pair);
    assert_eq!(side.end(), DisconnectReason::Local);
    second.finish();
}

/// Answers each message: reads what the first segment names, inverts it, writes it to the second, and
/// invalidates that.
fn respond(side: &mut Side, name: &str) {
    let pair = side.serve(name);
    while let Some((message, _, _)) = side.receive(pair) {
        let [(from, len), (to, _)] = decode(&message)[..] else { panic!("two segments") };
        let target = side.pages(len as usize, |_| 0);
        let half = len as u32 / 2;
        let parts = [(0, half), (half, len as u32 - half)].map(|(at, len)| {
            let source = RemoteSegment { offset: from.offset + u64::from(at), ..from };
            ReadPart { at, len, source }
        });
        side.shm.post_read(pair, ReadRequest { id: 1, target }, &parts).expect("within the capacity");
        let read = loop {
            let is_read = |c: &Completion| matches!(c.completed, Completed::Read(_));
            let at = side.completions.iter().position(is_read);
            if let Some(read) = at.and_then(|at| side.completions.remove(at)) {
                break read;
            }
            side.poll();
        };
        assert_eq!(read.result, Ok(()));
        let Completed::Read(mut data) = read.completed else { panic!("it was a Read") };
        data.iter_mut().for_each(|byte| *byte = !*byte);
        let request = WriteRequest { id: 2, source: data.share(), target: to, signaled: false };
        side.shm.post_write(pair, request).expect("within the capacity");
        side.send(pair, b"done", Some(to.handle));
    }
    assert_eq!(side.end(), DisconnectReason::Peer);
}

#[test]
fn two_processes_read_write_and_invalidate() {
    let name = name("data");
    let second = Second::start("responder", &name);
    let mut side = Side::new(false);
    let pair = side.connect(&name);
    assert!(matches!(side.peer, Some(Peer::Process { pid, .. }) if pid == second.0.id()));
    let mut random = Random(0x5eed);
    for round in 0..400 {
        let len = 1 + random.below(DATA_LEN_MAX);
        let salt = random.next() as u8;
        let question = side.pages(len, |i| (i as u8).wrapping_mul(31) ^ salt).share();
        let from = side.shm.expose(pair, Exposed::Read(question)).expect("within the capacity");
        let answer = side.pages(len, |_| 0);
        let to = side.shm.expose(pair, Exposed::Write(answer)).expect("within the capacity");
        side.send(pair, &encode(&[(from, len as u64), (to, len as u64)]), None);
        let (message, invalidated, exposed) = side.receive(pair).expect("the other side answers");
        assert_eq!(message[..], *b"done");
        assert_eq!(invalidated, Some(to.handle));
        let Some(Exposed::Write(answer)) = exposed else { panic!("what was exposed comes back") };
        for (i, &byte) in answer.iter().enumerate() {
            assert_eq!(byte, !((i as u8).wrapping_mul(31) ^ salt), "round {round}, byte {i} of {len}");
        }
        match side.shm.fence(pair, from.handle, 9).expect("it is still exposed") {
            Fence::Done(_) => {}
            Fence::Pending => {
                let is_fence = |c: &Completion| matches!(c.completed, Completed::Fence { .. }) && c.id == 9;
                while !side.completions.iter().any(is_fence) {
                    side.poll();
                }
                side.completions.retain(|c| !is_fence(c));
            }
        }
        assert!(side.shm.fence(pair, to.handle, 0).is_none(), "it was invalidated");
    }
    side.shm.disconnect(pair);
    assert_eq!(side.end(), DisconnectReason::Local);
    second.finish();
}

#[test]
fn a_killed_peer_is_seen_and_everything_comes_back() {
    let name = name("kill");
    let mut second = Second::start("idle", &name);
    let mut side = Side::new(false);
    let pair = side.connect(&name);
    let readable = side.pages(10_000, |_| 1).share();
    side.shm.expose(pair, Exposed::Read(readable)).expect("within the capacity");
    let writable = side.pages(10_000, |_| 1);
    side.shm.expose(pair, Exposed::Write(writable)).expect("within the capacity");
    // More than the other side has Receives for, so that some wait in the ring.
    for _ in 0..30 {
        side.send(pair, &[7; 500], None);
    }
    side.poll();
    second.kill();
    assert_eq!(side.end(), DisconnectReason::PeerDied);
}

#[test]
fn a_sleeper_is_woken_by_its_peers_death() {
    let name = name("sleep");
    let mut second = Second::start("idle", &name);
    let mut side = Side::new(true);
    let pair = side.connect(&name);
    let memory = side.pages(4096, |_| 1);
    side.shm.expose(pair, Exposed::Write(memory)).expect("within the capacity");
    while !side.shm.arm() {
        side.poll();
    }
    second.kill();
    let fd = side.shm.descriptor().expect("it may sleep").as_raw_fd();
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    let ready = unsafe { libc::poll(&raw mut poll, 1, PATIENCE.as_millis() as libc::c_int) };
    assert_eq!(ready, 1, "its death wakes us");
    side.shm.disarm();
    assert_eq!(side.end(), DisconnectReason::PeerDied);
}

/// Writes 0xff as fast as it can to what the first message names.
fn write_for_ever(side: &mut Side, name: &str) {
    let pair = side.connect(name);
    let (message, _, _) = side.receive(pair).expect("the other side tells where");
    let [(target, len)] = decode(&message)[..] else { panic!("one segment") };
    let source = side.pages(len as usize, |_| 0xff).share();
    side.send(pair, b"here it comes", None);
    loop {
        let request = WriteRequest { id: 2, source: source.clone(), target, signaled: false };
        side.shm.post_write(pair, request).expect("until we are killed");
        side.poll();
    }
}

/// Killed in the middle of a copy, most of the time: then its epoch stays odd for ever.
#[test]
fn memory_comes_back_from_a_peer_that_died_while_writing() {
    for round in 0..5 {
        let name = name(&format!("writer-{round}"));
        let mut side = Side::new(false);
        let mut second = Second::start("writer", &name);
        let pair = side.serve(&name);
        let memory = side.pages(DATA_LEN_MAX, |_| 0);
        let segment = side.shm.expose(pair, Exposed::Write(memory)).expect("within the capacity");
        side.send(pair, &encode(&[(segment, DATA_LEN_MAX as u64)]), None);
        side.receive(pair).expect("it says when it starts");
        second.kill();
        // Fenced while it may be dying: done now, or when it is gone.
        let fenced = match side.shm.fence(pair, segment.handle, 3) {
            Some(Fence::Done(exposed)) => exposed,
            _ => loop {
                let is_fence = |c: &Completion| matches!(c.completed, Completed::Fence { .. });
                if let Some(at) = side.completions.iter().position(is_fence)
                    && let Some(Completion { completed: Completed::Fence { exposed, .. }, .. }) =
                        side.completions.remove(at)
                {
                    break exposed;
                }
                side.poll();
            },
        };
        let Exposed::Write(mut buf) = fenced else { panic!("it was exposed to be written") };
        buf.fill(0);
        while side.ended.is_none() {
            side.poll();
        }
        assert!(buf.iter().all(|&byte| byte == 0), "round {round}: written after its fence");
        drop(buf);
        let reason = side.end();
        // It may have met the fence before the signal, which ends the connection from its side.
        assert!(matches!(reason, DisconnectReason::PeerDied | DisconnectReason::Peer), "{reason:?}");
    }
}

#[test]
fn a_client_that_dies_before_it_is_accepted_is_gone() {
    let name = name("dialer");
    let mut side = Side::new(false);
    side.shm.listen(&name).expect("the name is free");
    let mut second = Second::start("dialer", &name);
    let request = loop {
        let time = side.start.elapsed();
        assert!(time < PATIENCE, "no client dialed");
        side.shm.poll(time, &mut side.completions, 64);
        if let Some(Event::ConnectRequest { request, .. }) = side.shm.poll_event() {
            break request;
        }
    };
    let pair = side.shm.prepare(request, CAPACITY).expect("it fits");
    side.post_receives(pair);
    second.kill();
    second.0.wait().expect("it is ours");
    // There is no peer to hear it, and nothing breaks.
    side.shm.accept(pair, b"").expect("it was prepared");
    let reason = side.end();
    assert_eq!(reason, DisconnectReason::PeerDied);
    assert!(side.shm.prepare(request, CAPACITY).is_err(), "a request is answered once");
    let flushed = |c: &Completion| c.result == Err(WorkError::Flushed);
    assert!(side.completions.iter().all(flushed));
}
