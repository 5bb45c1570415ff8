//! A lock that is waited for, over TCP: the server calls the waiting host's lock manager, at the port that its
//! rpcbind tells. Server, rpcbind and lock manager are threads and sockets of the test.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use stag_fabric::Provider;
use stag_fabric::sim::{FaultPlan, World};
use stag_memory::{Arena, ArenaConfig, Budget, PageChoice, PageSize, Pool};
use stag_nfs::callout::{CallOutConfig, TcpCallOut};
use stag_nfs::export::Export;
use stag_nfs::server::{
    Config4, ExportTable, Locking, LockingConfig, SharedSessions, TimeOfDay, services_with_locks,
};
use stag_nfs::state::{KnownHost, Recovered};
use stag_rpc::{Engine, EngineConfig, Pools};
use stag_runtime::{Clock, PollMode, Poller, Reactor, ReactorConfig, StopFlag};
use stag_stores::memory::{MemoryConfig, MemoryStore, RootAttributes};
use stag_vfs::{CreateMode, Timestamp, Update, UserIdentity, Volume};
use stag_wire::mount3::{self, MntReply, PathArguments};
use stag_wire::nfs3::{self, Handle, LookupArguments, LookupReply};
use stag_wire::nlm4::{self, *};
use stag_wire::record::Mark;
use stag_wire::rpc::{CallHeader, OpaqueAuth, ReplyHeader, emit_success};
use stag_wire::xdr::{Encode, Reader, Writer};
use stag_wire::{nsm, rpcbind};

const PAGE: usize = 4096;

fn receive(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).ok()?;
    let mark = Mark::from_bytes(mark);
    assert!(mark.is_last);
    let mut record = vec![0; mark.len as usize];
    stream.read_exact(&mut record).ok()?;
    Some(record)
}

fn send(stream: &mut TcpStream, encode: impl FnOnce(&mut Writer<'_>)) {
    let mut buf = [0; 2048];
    let mut writer = Writer::new(&mut buf);
    encode(&mut writer);
    let octets = [&Mark::whole(writer.position() as u32).to_bytes()[..], writer.written()].concat();
    stream.write_all(&octets).unwrap();
}

/// One who listens, and answers every Call by `answer`: a client's rpcbind, or lock manager.
fn listen(answer: impl Fn(IpAddr, CallHeader<'_>, Reader<'_>, &mut Writer<'_>) + Send + 'static) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let caller = stream.peer_addr().unwrap().ip();
            while let Some(record) = receive(&mut stream) {
                let mut reader = Reader::new(&record);
                let header = CallHeader::parse(&mut reader).unwrap();
                send(&mut stream, |writer| answer(caller, header, reader, writer));
            }
        }
    });
    port
}

/// What the waiting host was told.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Granted {
        exclusive: bool,
        svid: u32,
        offset: u64,
        len: u64,
        file: Vec<u8>,
        owner: Vec<u8>,
        name: Vec<u8>,
    },
    LockResult {
        cookie: Vec<u8>,
        status: Status,
    },
    Restarted {
        name: Vec<u8>,
        state: u32,
    },
}

/// A client's lock manager and status monitor; GRANTED is answered by `status`.
fn manager(status: Status) -> (u16, mpsc::Receiver<Told>) {
    let (port, _, told) = manager_and_callers(status);
    (port, told)
}

/// The same, and from which address each Call came.
fn manager_and_callers(status: Status) -> (u16, mpsc::Receiver<IpAddr>, mpsc::Receiver<Told>) {
    let (sender, told) = mpsc::channel();
    let (caller_sender, callers) = mpsc::channel();
    let port = listen(move |caller, header, mut reader, writer| {
        emit_success(writer, header.xid).unwrap();
        let what = match (header.program, header.version, header.procedure) {
            (nlm4::PROGRAM, 4, 5) => {
                let TestArguments { cookie, exclusive, lock } = reader.value().unwrap();
                writer.value(&Results { cookie, status }).unwrap();
                let Lock { svid, offset, len, .. } = lock;
                let (file, owner, name) =
                    (lock.file.0.to_vec(), lock.owner.0.to_vec(), lock.caller.0.to_vec());
                Told::Granted { exclusive, svid, offset, len, file, owner, name }
            }
            (nlm4::PROGRAM, 4, 12) => {
                let Results { cookie, status } = reader.value().unwrap();
                Told::LockResult { cookie: cookie.0.to_vec(), status }
            }
            (nsm::PROGRAM, 1, 6) => {
                let nsm::NotifyArguments { name, state } = reader.value().unwrap();
                Told::Restarted { name: name.0.to_vec(), state }
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(reader.finish(), Ok(()));
        // Not everybody asks who it was.
        let _ = caller_sender.send(caller);
        sender.send(what).unwrap();
    });
    (port, callers, told)
}

/// An rpcbind that tells this port, whatever the program.
fn binder(port: u16) -> u16 {
    listen(move |_, header, _, writer| {
        assert_eq!((header.program, header.version, header.procedure), (rpcbind::PROGRAM, 2, 3));
        emit_success(writer, header.xid).unwrap();
        writer.u32(port.into()).unwrap();
    })
}

/// A server on a thread, which sleeps whenever it can; it ends when this is dropped.
struct Server {
    address: SocketAddr,
    stop: StopFlag,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    fn start(rpcbind_port: u16, hosts: Vec<KnownHost>) -> Server {
        let stop = StopFlag::new().unwrap();
        let (sender, receiver) = mpsc::channel();
        let its_stop = stop.clone();
        let thread = thread::spawn(move || {
            let (mut engine, _world) = engine(rpcbind_port, hosts);
            sender.send(engine.listen_tcp("0.0.0.0:0").unwrap()).unwrap();
            let mode = PollMode::Adaptive { spin: Duration::ZERO };
            let config = ReactorConfig { mode, drain_max: Duration::from_millis(10), ..Default::default() };
            let mut reactor = Reactor::new(config, Clock::start()).unwrap();
            let _ = reactor.run(&mut engine, &its_stop).unwrap();
        });
        Server { address: receiver.recv().unwrap(), stop, thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.request();
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking());
    }
}

/// A server with one file, `/data/f`; its RDMA side is not used.
fn engine(rpcbind_port: u16, hosts: Vec<KnownHost>) -> (impl EngineLike, World) {
    let world = World::new(1, FaultPlan::default());
    let config = EngineConfig { connections_max: 4, receives_max: 64, ..EngineConfig::default() };
    let mut provider = world.provider("server");
    let messages = Pools::messages_needed(&config);
    let len = Pool::footprint(config.message_len(), messages) + Pool::footprint(PAGE, 1024);
    let (page, budget) = (PageChoice::Size(PageSize::Base), Budget::new(1 << 32));
    let arena = Arena::new(&ArenaConfig { name: "test", len, page, node: None, budget: &budget }).unwrap();
    provider.register(&arena).unwrap();
    let pools = Pools {
        messages: Pool::fixed(&arena, "messages", config.message_len(), messages).unwrap(),
        payload: Pool::runs(&arena, "payload", PAGE, 1024).unwrap(),
    };
    let store = MemoryConfig {
        fsid: 1,
        data_len_max: 1 << 20,
        objects_max: 100,
        names_max: 100,
        root: RootAttributes { mode: 0o755, uid: 0, gid: 0 },
    };
    let store = MemoryStore::new(&store, pools.payload.clone(), Timestamp::default()).unwrap();
    let how = CreateMode::Guarded(Update::default());
    let mut volume = Volume::new(Box::new(store));
    let root = volume.stat(volume.profile().root).unwrap();
    let made = volume.create(&UserIdentity::ROOT, &root, b"f", &how, Timestamp::default()).unwrap();
    assert!(made.done().is_some());
    let export = Export::new("/data");
    let exports = ExportTable::new(vec![(export, volume.into_store())], pools.payload.clone()).unwrap();

    let config_out = CallOutConfig { rpcbind_port, ..CallOutConfig::default() };
    let locking_config = LockingConfig { grace: Duration::ZERO, ..LockingConfig::default() };
    let recovered = Recovered { state: 7, had_hosts: !hosts.is_empty(), hosts, journal: None };
    let locking = Locking::new(locking_config, recovered, Box::new(TcpCallOut::new(config_out)));
    let time = TimeOfDay::Offset(Duration::from_secs(1_000_000));
    let version4 = (Config4::new(1), SharedSessions::default());
    let services =
        services_with_locks(exports, time, Rc::new(RefCell::new(locking)), Rc::default(), version4);
    (Engine::new(provider, services, pools, config, 1).unwrap(), world)
}

/// What the test needs of an engine, whatever its services are.
trait EngineLike: Poller {
    fn listen_tcp(&mut self, address: &str) -> Result<SocketAddr, stag_fabric::FabricError>;
}

impl<P: Provider, S: stag_rpc::Services> EngineLike for Engine<P, S> {
    fn listen_tcp(&mut self, address: &str) -> Result<SocketAddr, stag_fabric::FabricError> {
        Engine::listen_tcp(self, address)
    }
}

/// A client: one connection for all programs.
struct Client {
    stream: TcpStream,
    xid: u32,
    file: Vec<u8>,
}

impl Client {
    fn connect(server: &Server) -> Client {
        Client::connect_from(server, Ipv4Addr::LOCALHOST)
    }

    /// From this address, of those that all lead to this machine.
    fn connect_from(server: &Server, from: Ipv4Addr) -> Client {
        Client::connect_between(server, from, Ipv4Addr::LOCALHOST)
    }

    /// From one of those addresses to another.
    fn connect_between(server: &Server, from: Ipv4Addr, to: Ipv4Addr) -> Client {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
        socket.connect(&SocketAddr::from((to, server.address.port())).into()).unwrap();
        let mut client = Client { stream: socket.into(), xid: 0, file: Vec::new() };
        let path = PathArguments { path: nfs3::Name(b"/data") };
        let root = client.call((mount3::PROGRAM, 3, 1), &path);
        let root: MntReply<'_> = Reader::new(&root).value().unwrap();
        let root = root.unwrap().handle.0.to_vec();
        let what = nfs3::DirectoryName { directory: Handle(&root), name: nfs3::Name(b"f") };
        let found = client.call((nfs3::PROGRAM, 3, 3), &LookupArguments { what });
        let found: LookupReply<'_> = Reader::new(&found).value().unwrap();
        client.file = found.unwrap().object.0.to_vec();
        client
    }

    fn call(&mut self, (program, version, procedure): (u32, u32, u32), arguments: &impl Encode) -> Vec<u8> {
        self.xid += 1;
        let (xid, credential, verifier) = (self.xid, OpaqueAuth::NONE, OpaqueAuth::NONE);
        let header = CallHeader { xid, program, version, procedure, credential, verifier };
        send(&mut self.stream, |writer| {
            header.emit(writer).unwrap();
            writer.value(arguments).unwrap();
        });
        let reply = receive(&mut self.stream).unwrap();
        let mut reader = Reader::new(&reply);
        let header = ReplyHeader::parse(&mut reader).unwrap();
        assert!(header.xid == self.xid && header.is_success(), "{header:?}");
        reader.rest().to_vec()
    }

    fn lock(&mut self, procedure: nlm4::Procedure, host: &[u8], block: bool) -> Option<Status> {
        self.lock_at(procedure, host, 100, block)
    }

    /// From an offset to the end.
    fn lock_at(
        &mut self,
        procedure: nlm4::Procedure,
        host: &[u8],
        offset: u64,
        block: bool,
    ) -> Option<Status> {
        let file = self.file.clone();
        let lock = Lock {
            caller: nlm4::Name(host),
            file: Object(&file),
            owner: Object(b"owner"),
            svid: 9,
            offset,
            len: 0,
        };
        let arguments = LockArguments {
            cookie: Object(b"cookie"),
            block,
            exclusive: true,
            lock,
            reclaim: false,
            state: 1,
        };
        let results = self.call((nlm4::PROGRAM, 4, procedure.number()), &arguments);
        Reader::new(&results).value::<Results<'_>>().ok().map(|results| results.status)
    }

    fn unlock(&mut self, host: &[u8]) -> Status {
        let file = self.file.clone();
        let lock = Lock {
            caller: nlm4::Name(host),
            file: Object(&file),
            owner: Object(b"owner"),
            svid: 9,
            offset: 0,
            len: 0,
        };
        let results = self.call((nlm4::PROGRAM, 4, 4), &UnlockArguments { cookie: Object(&[]), lock });
        Reader::new(&results).value::<Results<'_>>().unwrap().status
    }
}

const LOCK: nlm4::Procedure = nlm4::Procedure::Lock;
const LONG: Duration = Duration::from_secs(60);

/// What is done at once takes some milliseconds, on a machine with much else to do more. What waits for something else first (a
/// Call out that is not answered is given up after 5 s) takes longer.
const PROMPT: Duration = Duration::from_secs(3);

#[test]
fn who_waits_is_called() {
    let (port, told) = manager(Status::Granted);
    let server = Server::start(binder(port), Vec::new());
    let mut client = Client::connect(&server);
    assert_eq!(client.lock(LOCK, b"alice", false), Some(Status::Granted));
    for _ in 0..3 {
        assert_eq!(client.lock(LOCK, b"bob", true), Some(Status::Blocked));
        // Nothing happens for a while: the server sleeps.
        assert_eq!(told.recv_timeout(Duration::from_millis(50)), Err(mpsc::RecvTimeoutError::Timeout));
        assert_eq!(client.unlock(b"alice"), Status::Granted);
        let granted = Told::Granted {
            exclusive: true,
            svid: 9,
            offset: 100,
            len: 0,
            file: client.file.clone(),
            owner: b"owner".to_vec(),
            name: b"bob".to_vec(),
        };
        assert_eq!(told.recv_timeout(PROMPT), Ok(granted));
        assert_eq!(client.lock(LOCK, b"alice", false), Some(Status::Denied), "Bob has it");
        assert_eq!(client.unlock(b"bob"), Status::Granted);
        assert_eq!(client.lock(LOCK, b"alice", false), Some(Status::Granted));
    }
}

/// Hosts that were known before a restart and are gone, and others that do not answer: who waits does not wait for them.
#[test]
fn who_waits_does_not_wait_for_silent_hosts() {
    let (port, told) = manager(Status::Granted);
    let rpcbind_port = binder(port);
    // At these addresses somebody takes connections at rpcbind's port, and never says a word.
    let silent: Vec<_> = (2..12).map(|last| Ipv4Addr::new(127, 0, 0, last)).collect();
    let _mute: Vec<_> =
        silent.iter().map(|address| TcpListener::bind((*address, rpcbind_port)).unwrap()).collect();
    let name: Box<[u8]> = (*b"gone").into();
    let known =
        |address: &Ipv4Addr| KnownHost { address: (*address).into(), local: None, name: name.clone() };
    let hosts = silent.iter().chain(&silent).map(known).collect();
    let server = Server::start(rpcbind_port, hosts);
    let mut client = Client::connect(&server);
    let mut others: Vec<_> = silent[..2].iter().map(|from| Client::connect_from(&server, *from)).collect();
    // Each wants much, and does not hear of it when it gets it.
    assert_eq!(client.lock_at(LOCK, b"alice", 0, false), Some(Status::Granted));
    for other in &mut others {
        for host in 0..10 {
            let name = format!("host{host}");
            assert_eq!(other.lock(LOCK, name.as_bytes(), true), Some(Status::Blocked));
        }
    }
    assert_eq!(client.lock_at(LOCK, b"bob", 1 << 40, true), Some(Status::Blocked));
    assert_eq!(client.unlock(b"alice"), Status::Granted);
    // One of the others has it now, and the server calls: it is given up by its next user.
    for other in &mut others {
        for host in 0..10 {
            let name = format!("host{host}");
            assert_eq!(other.unlock(name.as_bytes()), Status::Granted);
        }
    }
    let Ok(Told::Granted { offset, name, .. }) = told.recv_timeout(PROMPT) else {
        panic!("not told in time")
    };
    assert_eq!((offset, &*name), (1 << 40, &b"bob"[..]));
}

/// The process is gone, says its host: the lock is free again.
#[test]
fn who_does_not_want_it_any_more_loses_it() {
    let (port, told) = manager(Status::Denied);
    let server = Server::start(binder(port), Vec::new());
    let mut client = Client::connect(&server);
    assert_eq!(client.lock(LOCK, b"alice", false), Some(Status::Granted));
    assert_eq!(client.lock(LOCK, b"bob", true), Some(Status::Blocked));
    assert_eq!(client.unlock(b"alice"), Status::Granted);
    told.recv_timeout(LONG).unwrap();
    // The answer is on its way; until it is there Bob has the lock.
    while client.lock(LOCK, b"alice", false) != Some(Status::Granted) {
        thread::yield_now();
    }
}

#[test]
fn a_message_is_answered_by_a_call() {
    let (port, told) = manager(Status::Granted);
    let server = Server::start(binder(port), Vec::new());
    let mut client = Client::connect(&server);
    for (host, status) in [(&b"alice"[..], Status::Granted), (b"bob", Status::Denied)] {
        assert_eq!(client.lock(nlm4::Procedure::LockMsg, host, false), None, "nothing in the Reply");
        let expected = Told::LockResult { cookie: b"cookie".to_vec(), status };
        assert_eq!(told.recv_timeout(LONG), Ok(expected));
    }
}

#[test]
fn hosts_that_had_locks_are_told_of_a_restart() {
    let (port, told) = manager(Status::Granted);
    let name: Box<[u8]> = (*b"alice").into();
    let hosts = vec![KnownHost { address: Ipv4Addr::LOCALHOST.into(), local: None, name }];
    let _server = Server::start(binder(port), hosts);
    let expected = Told::Restarted { name: b"stagd".to_vec(), state: 7 };
    assert_eq!(told.recv_timeout(LONG), Ok(expected));
}

/// A server has several addresses, and a client knows it by one: its lock manager ignores Calls from another.
#[test]
fn calls_to_hosts_come_from_the_address_that_they_know() {
    let known = Ipv4Addr::new(127, 0, 0, 5);
    let gone = Ipv4Addr::new(192, 0, 2, 1);
    // This caller gets no news and does not need `told`, but the channel must exist.
    let (port, callers, _told) = manager_and_callers(Status::Granted);
    let rpcbind_port = binder(port);
    let host = |local: Ipv4Addr| KnownHost {
        address: Ipv4Addr::LOCALHOST.into(),
        local: Some(local.into()),
        name: (*b"alice").into(),
    };
    let from = || callers.recv_timeout(LONG).unwrap();

    // SM_NOTIFY; if the address is no longer ours, it comes from another.
    let server = Server::start(rpcbind_port, vec![host(known)]);
    assert_eq!(from(), known);
    drop(server);
    let server = Server::start(rpcbind_port, vec![host(gone)]);
    assert_eq!(from(), Ipv4Addr::LOCALHOST);

    // GRANTED, and the answer to a message.
    let mut client = Client::connect_between(&server, Ipv4Addr::LOCALHOST, known);
    assert_eq!(client.lock(LOCK, b"alice", false), Some(Status::Granted));
    assert_eq!(client.lock(LOCK, b"bob", true), Some(Status::Blocked));
    assert_eq!(client.unlock(b"alice"), Status::Granted);
    assert_eq!(from(), known);
    assert_eq!(client.lock(nlm4::Procedure::LockMsg, b"carol", false), None);
    assert_eq!(from(), known);
}
