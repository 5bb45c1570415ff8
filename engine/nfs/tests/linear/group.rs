//! Reactors that serve one set of files, and clients that use the same files through any of them.

use std::time::Duration;

use stag_fabric::Provider;
use stag_fabric::sim::{Attendance, FaultPlan, Random, Sim, Violations, World};
use stag_nfs::client::{FinishedCall, Mnt, Operation, Target};
use stag_nfs::export::Export;
use stag_nfs::server::{Elsewhere, ExportTable, Mount, Nfs, Nfsacl, TimeOfDay, services};
use stag_rpc::{
    Backoff, CARRIED_CALLS_MAX, CallError, CallRefused, Chunks, ClientPolicy, CompletedCall, ConnectionEvent,
    ConnectionId, Credentials, Engine, EngineConfig, EngineGroup, Memory,
};
use stag_runtime::{Poller, ReactorId};
use stag_stores::memory::{MemoryConfig, MemoryStore, RootAttributes};
use stag_vfs::{Store, Timestamp};
use stag_wire::mount3::PathArguments;
use stag_wire::nfs3::{
    CreateArguments, CreateHow, Data, DirectoryName, GetattrArguments, Handle, LookupArguments, Name,
    PostOpAttributes, ReadArguments, RemoveArguments, RenameArguments, SetAttributes, SetattrArguments,
    Stable, WccData, WriteArguments,
};
use stag_wire::rpc::{AuthSys, Gids};
use stag_wire::xdr::{Item, Writer};

use crate::history::History;
use crate::objects::{DirectoryState, DirectoryStep, FileState, FileStep, NAMES, Sizes, WRITE_LEN};
use crate::slow;

type Services = (Nfs<dyn Store>, Mount<dyn Store>, Nfsacl<dyn Store>);

const ADDRESS: &str = "server";

/// Clients, and Calls that each has outstanding.
const CLIENTS: usize = 4;
const DEPTH: usize = 3;

/// Octets of payload memory of each engine.
const PAYLOAD_LEN: usize = 2 << 20;

/// Calls wait for as long as it takes to connect again.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// Passes after which a run is stuck.
const PASSES_MAX: usize = 1_000_000;

/// A connection that is cut comes back.
const POLICY: ClientPolicy = ClientPolicy {
    reconnect: Some(Backoff {
        first: Duration::from_millis(5),
        max: Duration::from_millis(100),
        give_up_after: TIMEOUT,
        resend_after: Duration::from_millis(200),
    }),
    keep_alive: None,
};

struct Client {
    engine: Engine<Sim, ()>,
    memory: Memory,
    connection: ConnectionId,
    outstanding: usize,
}

/// A file or a directory that all clients use, and its number in a history.
#[derive(Clone, Copy)]
enum Object {
    File(usize),
    Directory(usize),
}

/// What was asked.
#[derive(Clone, Copy)]
enum Asked {
    Write(u8),
    Resize(u32),
    Read,
    Size,
    Create(usize),
    Remove(usize),
    Lookup(usize),
    Rename(usize, usize),
}

/// A Call that is under way.
struct Open {
    object: Object,
    step: usize,
    /// The size of a file that comes with the answer, where that may be of another moment.
    size: Option<usize>,
    asked: Asked,
}

pub(crate) struct Group {
    world: World,
    reactors: Vec<(Engine<Sim, Services>, Memory)>,
    clients: Vec<Client>,
    random: Random,
    /// Of reactors and then clients.
    attendance: Attendance,
    credential: Vec<u8>,
    files: Vec<(Vec<u8>, History<FileStep>)>,
    directories: Vec<(Vec<u8>, History<DirectoryStep>)>,
    /// Files that names have led to, by number.
    handles: Vec<Vec<u8>>,
    open: Vec<Option<Open>>,
    /// Values that were written.
    written: u8,
    /// Whether the stores do what is asked later: others come between that and the attributes that are told.
    is_late: bool,
}

fn config() -> EngineConfig {
    EngineConfig {
        inline_threshold: 1024,
        credits_max: 8,
        connections_max: 16,
        receives_max: 128,
        peer_timeout: Duration::from_secs(5),
        ..EngineConfig::default()
    }
}

fn reactor(number: usize) -> ReactorId {
    ReactorId::new(number).expect("a group of a few")
}

fn size(attributes: PostOpAttributes) -> Option<u32> {
    attributes.map(|attributes| attributes.size as u32)
}

fn sizes(data: &WccData) -> Sizes {
    data.before.map(|before| before.size as u32).zip(size(data.after))
}

impl Group {
    /// A group of one to four reactors, each with an export, and clients that have mounted all.
    pub(crate) fn new(seed: u64, plan: FaultPlan) -> Group {
        let world = World::new(seed, plan);
        let count = 1 + (seed % 4) as usize;
        let calls_max = [CARRIED_CALLS_MAX, 2, 1][(seed / 16 % 3) as usize];
        let lanes = EngineGroup::new(count, calls_max, config().connections_max).expect("some descriptors");
        let export = |number: usize| Export { root_squash: false, ..Export::new(&format!("/{number}")) };
        let mut is_late = false;
        let mut reactors: Vec<_> = (0..count)
            .map(|number| {
                let memory =
                    Memory::on_demand(&config(), PAYLOAD_LEN).expect("memory").owned_by(reactor(number));
                let store = MemoryStore::new(
                    &MemoryConfig {
                        fsid: number as u64 + 1,
                        data_len_max: 1 << 20,
                        objects_max: 1000,
                        names_max: 1000,
                        root: RootAttributes { mode: 0o777, uid: 0, gid: 0 },
                    },
                    memory.pools.payload.clone(),
                    Timestamp::default(),
                );
                let store = slow::drawn(store.expect("memory for files"), seed);
                is_late = store.profile().can.finishes_transfers_later;
                let shares = vec![(export(number), store)];
                let elsewhere = (0..count).filter(|other| *other != number).map(|other| Elsewhere {
                    export: export(other),
                    fsid: other as u64 + 1,
                    reactor: reactor(other),
                });
                let exports = ExportTable::new(shares, memory.pools.payload.clone())
                    .and_then(|exports| exports.in_group(elsewhere.collect(), reactor(0)));
                let time = TimeOfDay::Offset(Duration::from_secs(1_000_000));
                let services = services(exports.expect("exports of different names"), time);
                let mut provider = world.provider("server");
                provider.register(&memory.arena).expect("an arena");
                let pools = memory.pools.clone();
                let mut engine = Engine::new(provider, services, pools, config(), 7).expect("it fits");
                engine.join_group(&lanes, reactor(number), None);
                (engine, memory)
            })
            .collect();
        reactors[0].0.listen(ADDRESS).expect("the address is free");
        let clients = (0..CLIENTS).map(|_| {
            let memory = Memory::on_demand(&config(), PAYLOAD_LEN).expect("memory");
            let mut provider = world.provider("client");
            provider.register(&memory.arena).expect("an arena");
            let mut engine = Engine::new(provider, (), memory.pools.clone(), config(), 9).expect("it fits");
            let connection = engine.connect_with(ADDRESS, POLICY).expect("the address is fine");
            Client { engine, memory, connection, outstanding: 0 }
        });
        let user = AuthSys { stamp: 1, machine_name: b"test", uid: 0, gid: 0, gids: Gids::NONE };
        let mut credential = vec![0; AuthSys::BODY_LEN_MAX];
        let mut writer = Writer::new(&mut credential);
        writer.value(&user).expect("it is as long as any");
        let len = writer.position();
        credential.truncate(len);
        let mut group = Group {
            attendance: Attendance::new(seed),
            clients: clients.collect(),
            world,
            reactors,
            random: Random::new(seed),
            credential,
            files: Vec::new(),
            directories: Vec::new(),
            handles: Vec::new(),
            open: Vec::new(),
            written: 0,
            is_late,
        };
        for client in 0..CLIENTS {
            let connection = group.clients[client].connection;
            let wanted = ConnectionEvent::Established { connection };
            group.until(|group| group.clients[client].engine.connection_event() == Some(wanted.clone()));
        }
        for number in 0..count {
            let root = group.mount(&format!("/{number}"));
            let place = DirectoryName { directory: Handle(&root), name: Name(b"file") };
            let how = CreateHow::Guarded(SetAttributes::default());
            let file = group.ask(&CreateArguments { place, how }, |finished| {
                let ok = finished.reply::<CreateArguments<'_>>().expect("a Reply").expect("a new file");
                ok.object.expect("its handle").0.to_vec()
            });
            group.files.push((file, History::new()));
            group.directories.push((root, History::new()));
        }
        group
    }

    pub(crate) fn set_plan(&self, plan: FaultPlan) {
        self.world.set_plan(plan);
    }

    /// One pass of each reactor, in an order of its own each time; now and then one has none.
    fn pass(&mut self) -> usize {
        let now = self.world.now();
        let all = self.reactors.len();
        let first = self.random.below(64) as usize;
        let mut count = 0;
        self.attendance.begin_pass();
        for at in (0..all).map(|turn| (first + turn) % all) {
            if self.attendance.draw(at) {
                count += self.reactors[at].0.poll(now);
            }
        }
        for client in 0..self.clients.len() {
            if self.attendance.draw(all + client) {
                count += self.clients[client].engine.poll(now);
            }
        }
        count
    }

    #[track_caller]
    fn until(&mut self, mut is_done: impl FnMut(&mut Group) -> bool) {
        for _ in 0..PASSES_MAX {
            if is_done(self) {
                return;
            }
            if self.pass() == 0 {
                let servers = self.reactors.iter().map(|(engine, _)| engine.next_timeout());
                let clients = self.clients.iter().map(|client| client.engine.next_timeout());
                let away = self.attendance.next_pass(self.world.now());
                let timer = servers.chain(clients).chain([away]).flatten().min();
                assert!(
                    self.world.advance_before(timer) || is_done(self),
                    "nothing happens any more, and what was awaited did not"
                );
            }
        }
        panic!("what was awaited did not happen in {PASSES_MAX} passes");
    }

    /// Makes one Call, as the first client.
    fn ask<O: Operation, T>(&mut self, operation: &O, look: impl FnOnce(&FinishedCall) -> T) -> T {
        assert!(self.begin(0, operation, Chunks::default(), 0));
        let mut done = None;
        self.until(|group| {
            done = group.clients[0].engine.completed();
            done.is_some()
        });
        look(&FinishedCall::new(done.expect("just seen")))
    }

    fn mount(&mut self, path: &str) -> Vec<u8> {
        self.ask(&Mnt(PathArguments { path: Name(path.as_bytes()) }), |finished| {
            let reply = finished.reply::<Mnt<'_>>().expect("a Reply");
            reply.expect("it is exported").handle.0.to_vec()
        })
    }

    /// Begins a Call. `false`: not now.
    fn begin<O: Operation>(&mut self, client: usize, operation: &O, mut chunks: Chunks, user: u64) -> bool {
        let Client { engine, connection, .. } = &mut self.clients[client];
        let credentials = Credentials::Sys(&self.credential);
        let target = Target { connection: *connection, credentials, timeout: TIMEOUT };
        match target.begin(engine, operation, &mut chunks, user) {
            Ok(_) => true,
            Err(CallRefused::NoCredit | CallRefused::NoMemory | CallRefused::FabricBusy) => false,
            // It is being made anew.
            Err(CallRefused::Interrupted) => false,
            Err(refused) => panic!("{refused}"),
        }
    }

    /// Has the clients make `count` Calls, and looks for an order that explains what they saw of each object.
    pub(crate) fn make_calls(&mut self, count: usize) {
        let (mut begun, mut ended) = (0, 0);
        while ended < count {
            for client in 0..CLIENTS {
                while begun < count && self.clients[client].outstanding < DEPTH && self.begin_any(client) {
                    begun += 1;
                }
            }
            let mut over = Vec::new();
            self.until(|group| {
                for client in &mut group.clients {
                    while let Some(done) = client.engine.completed() {
                        client.outstanding -= 1;
                        over.push(done);
                    }
                    // Cut, and made anew.
                    while client.engine.connection_event().is_some() {}
                }
                // Nothing is under way: those that could not be begun are tried again.
                !over.is_empty() || begun == ended
            });
            ended += over.len();
            over.into_iter().for_each(|done| self.end(done));
            if begun == ended {
                // Connections that were cut come back.
                self.pass();
                self.world.advance_before(None);
            }
        }
        for (number, (_, history)) in self.files.iter().enumerate() {
            history.check(FileState::default(), &format!("file {number}"));
        }
        for (number, (_, history)) in self.directories.iter().enumerate() {
            history.check(DirectoryState::default(), &format!("names of directory {number}"));
        }
    }

    /// Begins a Call of any kind on any object.
    fn begin_any(&mut self, client: usize) -> bool {
        let random = &mut self.random;
        let at = random.below(self.files.len() as u64) as usize;
        let name = |random: &mut Random| random.below(NAMES.len() as u64) as usize;
        let asked = match random.below(12) {
            0..3 => {
                // 0 is the value of a file that was never written.
                self.written = self.written % 255 + 1;
                Asked::Write(self.written)
            }
            3 => Asked::Resize(random.below(2 * u64::from(WRITE_LEN)) as u32),
            4..7 => Asked::Read,
            7 => Asked::Size,
            8 => Asked::Create(name(random)),
            9 => Asked::Remove(name(random)),
            10 => Asked::Lookup(name(random)),
            _ => Asked::Rename(name(random), name(random)),
        };
        let user = self.open.len() as u64;
        let is_begun = match asked {
            Asked::Write(_) | Asked::Resize(_) | Asked::Read | Asked::Size => {
                let file = self.files[at].0.clone();
                self.begin_on_file(client, Handle(&file), asked, user)
            }
            _ => {
                let directory = self.directories[at].0.clone();
                self.begin_on_names(client, Handle(&directory), asked, user)
            }
        };
        if !is_begun {
            return false;
        }
        let open = match asked {
            Asked::Write(_) | Asked::Resize(_) | Asked::Read | Asked::Size => {
                let history = &mut self.files[at].1;
                let (object, step) = (Object::File(at), history.begin());
                Open { object, step, size: self.is_late.then(|| history.begin()), asked }
            }
            _ => {
                let (object, step) = (Object::Directory(at), self.directories[at].1.begin());
                Open { object, step, size: None, asked }
            }
        };
        self.open.push(Some(open));
        self.clients[client].outstanding += 1;
        true
    }

    fn begin_on_file(&mut self, client: usize, file: Handle<'_>, asked: Asked, user: u64) -> bool {
        // What does not fit inline goes as a Long Call, or comes as a Long Reply.
        let by_chunk = self.random.below(4) > 0;
        let payload = &self.clients[client].memory.pools.payload;
        match asked {
            Asked::Write(value) => {
                let octets = [value; WRITE_LEN as usize];
                let (chunks, item) = if by_chunk {
                    let mut buf = payload.take_len(WRITE_LEN as usize).expect("memory for a few Calls");
                    buf.copy_from_slice(&octets);
                    (Chunks::read(buf.share()), Item::Reduced { index: 0, len: WRITE_LEN })
                } else {
                    (Chunks::default(), Item::Inline(&octets[..]))
                };
                let (stable, data) = (Stable::FileSync, Data(item));
                let arguments = WriteArguments { file, offset: 0, count: WRITE_LEN, stable, data };
                self.begin(client, &arguments, chunks, user)
            }
            Asked::Read => {
                let count = 2 * WRITE_LEN;
                let chunks = match by_chunk {
                    true => Chunks::write(payload.take_len(count as usize).expect("memory for a few Calls")),
                    false => Chunks::default(),
                };
                self.begin(client, &ReadArguments { file, offset: 0, count }, chunks, user)
            }
            Asked::Resize(len) => {
                let attributes = SetAttributes { size: Some(len.into()), ..SetAttributes::default() };
                let arguments = SetattrArguments { object: file, attributes, guard: None };
                self.begin(client, &arguments, Chunks::default(), user)
            }
            _ => self.begin(client, &GetattrArguments { object: file }, Chunks::default(), user),
        }
    }

    fn begin_on_names(&mut self, client: usize, directory: Handle<'_>, asked: Asked, user: u64) -> bool {
        let named = |name: usize| DirectoryName { directory, name: Name(NAMES[name].as_bytes()) };
        match asked {
            Asked::Create(name) => {
                let how = CreateHow::Guarded(SetAttributes::default());
                let arguments = CreateArguments { place: named(name), how };
                self.begin(client, &arguments, Chunks::default(), user)
            }
            Asked::Remove(name) => {
                self.begin(client, &RemoveArguments { object: named(name) }, Chunks::default(), user)
            }
            Asked::Rename(from, to) => {
                let arguments = RenameArguments { from: named(from), to: named(to) };
                self.begin(client, &arguments, Chunks::default(), user)
            }
            Asked::Lookup(name) => {
                self.begin(client, &LookupArguments { what: named(name) }, Chunks::default(), user)
            }
            _ => unreachable!("the other Calls are on files"),
        }
    }

    /// Notes what a Call was answered.
    fn end(&mut self, done: CompletedCall) {
        let open = self.open[done.user as usize].take().expect("a Call ends once");
        let Open { object, step, size, asked } = open;
        // The send queue was full just then: the Call was not executed.
        if matches!(done.result, Err(CallError::NotSent | CallError::NotPosted(_))) {
            match object {
                Object::File(at) => {
                    let history = &mut self.files[at].1;
                    [Some(step), size].into_iter().flatten().for_each(|step| history.forget(step));
                }
                Object::Directory(at) => self.directories[at].1.forget(step),
            }
            return;
        }
        let finished = FinishedCall::new(done);
        match object {
            Object::File(at) => {
                let (answered, told) = answered_of_file(asked, &finished);
                let history = &mut self.files[at].1;
                match (size, told) {
                    (Some(size), Some(told)) => history.end(size, FileStep::Size(told)),
                    (Some(size), None) => history.forget(size),
                    (None, told) => assert!(
                        told.is_some_and(|told| answered.agrees_with(told)),
                        "{answered:?} and a file of {told:?}"
                    ),
                }
                history.end(step, answered);
            }
            Object::Directory(at) => {
                let answered = self.answered_of_names(asked, &finished);
                self.directories[at].1.end(step, answered);
            }
        }
    }

    /// The number of a file.
    fn number(&mut self, handle: &[u8]) -> u32 {
        let found = self.handles.iter().position(|known| known == handle);
        let at = found.unwrap_or_else(|| {
            self.handles.push(handle.to_vec());
            self.handles.len() - 1
        });
        at as u32
    }

    fn answered_of_names(&mut self, asked: Asked, finished: &FinishedCall) -> DirectoryStep {
        match asked {
            Asked::Create(name) => {
                let reply = finished.reply::<CreateArguments<'_>>().expect("a Reply");
                let answer = reply.map(|ok| self.number(ok.object.expect("its handle").0));
                DirectoryStep::Create(name, answer.map_err(|failure| failure.status))
            }
            Asked::Remove(name) => {
                let reply = finished.reply::<RemoveArguments<'_>>().expect("a Reply");
                DirectoryStep::Remove(name, reply.map(drop).map_err(|failure| failure.status))
            }
            Asked::Rename(from, to) => {
                let reply = finished.reply::<RenameArguments<'_>>().expect("a Reply");
                DirectoryStep::Rename(from, to, reply.map(drop).map_err(|failure| failure.status))
            }
            Asked::Lookup(name) => {
                let reply = finished.reply::<LookupArguments<'_>>().expect("a Reply");
                let answer = reply.map(|ok| self.number(ok.object.0));
                DirectoryStep::Lookup(name, answer.map_err(|failure| failure.status))
            }
            _ => unreachable!("the other Calls are on files"),
        }
    }

    /// Ends all connections, and sees that nothing is left anywhere.
    pub(crate) fn close(mut self) {
        self.attendance.be_all_here();
        for client in &mut self.clients {
            client.engine.disconnect(client.connection);
        }
        self.until(|group| {
            group.clients.iter().all(|client| client.engine.is_drained())
                && group.reactors.iter().all(|(engine, _)| engine.connection_count() == 0)
        });
        // The buffers of unanswered Calls come back.
        (0..200).for_each(|_| _ = self.pass());
        for client in &self.clients {
            assert_eq!(client.memory.ledger.outstanding(), 0, "a client's buffers");
        }
        for (number, (engine, _)) in self.reactors.iter().enumerate() {
            assert!(engine.has_given_back(), "reactor {number} holds others' memory");
        }
        assert_eq!(self.world.violations(), Violations::default());
    }
}

/// What a Call on a file came to, and the size that came with it.
fn answered_of_file(asked: Asked, finished: &FinishedCall) -> (FileStep, Option<u32>) {
    match asked {
        Asked::Write(value) => {
            let ok = finished.reply::<WriteArguments<'_>>().expect("a Reply").expect("there is room");
            assert_eq!(ok.count, WRITE_LEN);
            (FileStep::Write { value, sizes: sizes(&ok.file) }, size(ok.file.after))
        }
        Asked::Resize(len) => {
            let ok = finished.reply::<SetattrArguments<'_>>().expect("a Reply").expect("there is room");
            (FileStep::Resize { len, sizes: sizes(&ok.object) }, size(ok.object.after))
        }
        Asked::Read => {
            let ok = finished.reply::<ReadArguments<'_>>().expect("a Reply").expect("it may be read");
            let octets: Vec<u8> = finished.octets(&ok.data.0).flatten().copied().collect();
            assert!(ok.eof);
            (FileStep::Read(FileState::of(&octets).expect("a READ found two values")), size(ok.attributes))
        }
        _ => {
            let reply = finished.reply::<GetattrArguments<'_>>().expect("a Reply");
            let size = reply.expect("it is there").attributes.size as u32;
            (FileStep::Size(size), Some(size))
        }
    }
}
