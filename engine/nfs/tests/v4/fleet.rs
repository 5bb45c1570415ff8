//! Clients and reactors that come and go, over a directory: connections are cut and come back at other reactors, with Calls that
//! are sent again; clients restart, and so does the server. Some seeds have a directory that answers later, or at random.
//!
//! What must hold, whatever happens: a slot's request is executed once; one client at a time has the lock; what was acknowledged is
//! there, after a restart too; and clients take back what they held.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use stag_disk::{Disk, DiskConfig};
use stag_fabric::Provider;
use stag_fabric::sim::{Attendance, FaultPlan, Odds, Random, Sim, Violations, World, sweep};
use stag_nfs::callout::NoCallOut;
use stag_nfs::client::{FinishedCall, Target};
use stag_nfs::export::Export;
use stag_nfs::known_clients::KnownClients;
use stag_nfs::server::{
    Config4, ExportTable, Locking, LockingConfig, SharedSessions, TimeOfDay, services_with_locks,
};
use stag_nfs::state::Recovered;
use stag_rpc::{
    Backoff, CARRIED_CALLS_MAX, CallError, CallRefused, Chunks, ClientPolicy, CompletedCall, ConnectionEvent,
    ConnectionId, Credentials, Engine, EngineConfig, EngineGroup, Memory,
};
use stag_runtime::{Poller, ReactorId};
use stag_stores::directory::{DirectoryConfig, DirectoryStore, MayWait, WriteVerifier};
use stag_testing::Scratch;
use stag_wire::nfs4::files::CreateType;
use stag_wire::nfs4::lock::{LockArguments4, LockKind, Locker, NewLocker};
use stag_wire::nfs4::open::{DelegationType, OpenClaim, OpenHow, StateOwner};
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::session::SequenceArguments;
use stag_wire::nfs4::{Opaque, SessionId, StateId, Status4};

use super::client::{Compound, FORE, RESULTS_MAX, create_session, exchange_id};
use super::files::{NO_ATTRIBUTES, ROOT, create, lookup};
use super::pair::{Server, credential, key};
use super::slow;
use super::state::{BOTH, lock_more, lock_new, locku, open_as, read, write};

const ADDRESS: &str = "server";

/// Clients.
const CLIENTS: usize = 3;

/// Reactors of a server at most: each start may have another number.
const REACTORS_MAX: usize = 3;

/// Requests of all clients that succeed in one run.
const DONE_MAX: usize = 60;

/// Octets of payload memory of each engine.
const PAYLOAD_LEN: usize = 2 << 20;

/// Calls wait for as long as it takes to connect again.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// Passes after which a run is stuck.
const PASSES_MAX: usize = 200_000;

/// One octet of the file, which all write in turn while they hold it locked.
const PLACE: (u64, u64) = (0, 1);

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

fn config() -> EngineConfig {
    EngineConfig {
        credits_max: 8,
        connections_max: 16,
        receives_max: 64,
        peer_timeout: Duration::from_secs(5),
        ..EngineConfig::default()
    }
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Exchange,
    Session,
    /// What it held before the server restarted.
    OpenAgain,
    LockAgain,
    Complete,
    Open,
    Lock,
    Unlock,
    Write(u8),
    Read,
    /// A directory of its own: what is executed twice finds it there, or gone.
    Make,
    Remove,
}

/// A request, to be sent once or several times.
#[derive(Clone, Debug)]
struct Request {
    asked: Asked,
    open: StateId,
    lock: Option<StateId>,
    /// What it came to before, if it is a retry.
    first: Option<Answered>,
}

/// Whether a client's own directory is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Existence {
    Known(bool),
    /// A reply was lost with the session.
    Unknown,
}

/// What a request came to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answered {
    Exchanged(u64, u32),
    Session(SessionId),
    State(StateId),
    Octets(Vec<u8>),
    Done,
    /// Of SEQUENCE, or where there is none, of the only operation.
    Refused(Status4),
    Failed(Status4),
}

struct Worker {
    engine: Engine<Sim, ()>,
    memory: Memory,
    connection: ConnectionId,
    name: Vec<u8>,
    /// Of this start of the client.
    verifier: u8,
    client: Option<(u64, u32)>,
    session: Option<SessionId>,
    sequence_id: u32,
    is_ready: bool,
    open: Option<StateId>,
    lock: Option<StateId>,
    holds: bool,
    directory: Existence,
    /// Under way.
    request: Option<Request>,
    /// To be sent again with the same sequence id.
    again: Option<Request>,
}

/// What all clients know together.
#[derive(Debug)]
struct Truth {
    holder: Option<usize>,
    /// What the octet may be: one value, unless a reply was lost.
    values: Vec<u8>,
    next: u8,
    locks: usize,
}

struct Fleet {
    world: World,
    random: Random,
    /// Of clients and then reactors.
    attendance: Attendance,
    reactors: Vec<(Server, Memory)>,
    known: KnownClients,
    clients: Vec<Worker>,
    truth: Truth,
    credential: Vec<u8>,
    scratch: Scratch,
    seed: u64,
    done: usize,
}

fn reactor(number: usize) -> ReactorId {
    ReactorId::new(number).expect("a group of a few")
}

/// A server of one export, a directory, on `count` reactors. The seed says when the directory answers.
fn server(
    world: &World,
    count: usize,
    scratch: &Scratch,
    known: &KnownClients,
    seed: u64,
) -> Vec<(Server, Memory)> {
    let lanes =
        EngineGroup::new(count, CARRIED_CALLS_MAX, config().connections_max).expect("some descriptors");
    let (sessions, verifier) = (SharedSessions::default(), WriteVerifier::default());
    let mut reactors: Vec<(Server, Memory)> = (0..count)
        .map(|number| {
            let memory = Memory::on_demand(&config(), PAYLOAD_LEN).expect("memory").owned_by(reactor(number));
            let directory = DirectoryConfig {
                // Time is simulated: no thread answers in it.
                may_wait: Some(MayWait::Nothing),
                sync: false,
                verifier: verifier.clone(),
                ..DirectoryConfig::new(&scratch.0, 1)
            };
            let disk = Disk::new(&DiskConfig { uring: false, helpers: false, ..DiskConfig::default() }, &[]);
            let store =
                DirectoryStore::new(&directory, disk, memory.pools.payload.clone()).expect("a directory");
            let export = Export { root_squash: false, ..Export::new("/data") };
            let mut exports =
                ExportTable::new(vec![(export, slow::drawn(store, seed))], memory.pools.payload.clone())
                    .expect("one export");
            if count > 1 {
                exports = exports.in_group(Vec::new(), reactor(0)).expect("one export");
            }
            let exports = exports.with_key(key());
            let locking =
                Locking::new(LockingConfig::default(), Recovered::nothing(), Box::new(NoCallOut::default()));
            let locking = Rc::new(RefCell::new(locking.with_clients(known.clone(), number as u8)));
            let time = TimeOfDay::Offset(Duration::from_secs(1_000_000));
            let version4 = (Config4::new(known.epoch()), sessions.clone());
            let services = services_with_locks(exports, time, locking, Rc::default(), version4);
            let mut provider = world.provider("server");
            provider.register(&memory.arena).expect("an arena");
            let mut engine =
                Engine::new(provider, services, memory.pools.clone(), config(), 7).expect("it fits");
            if count > 1 {
                engine.join_group(&lanes, reactor(number), None);
            }
            (engine, memory)
        })
        .collect();
    reactors[0].0.listen(ADDRESS).expect("the address is free");
    reactors
}

impl Request {
    /// Whether a client that hears nothing of it does not know whether its directory is there.
    fn may_have_changed_names(&self) -> bool {
        self.first.is_none() && matches!(self.asked, Asked::Make | Asked::Remove)
    }
}

impl Worker {
    fn new(world: &World, number: usize) -> Worker {
        let memory = Memory::on_demand(&config(), PAYLOAD_LEN).expect("memory");
        let mut provider = world.provider("client");
        provider.register(&memory.arena).expect("an arena");
        let mut engine = Engine::new(provider, (), memory.pools.clone(), config(), 9).expect("it fits");
        let connection = engine.connect_with(ADDRESS, POLICY).expect("the address is fine");
        Worker {
            engine,
            memory,
            connection,
            name: format!("client {number}").into_bytes(),
            verifier: 1,
            client: None,
            session: None,
            sequence_id: 0,
            is_ready: false,
            open: None,
            lock: None,
            holds: false,
            directory: Existence::Known(false),
            request: None,
            again: None,
        }
    }

    /// The request that this client makes next.
    fn next(&self, random: &mut Random, value: u8) -> Asked {
        match () {
            () if self.client.is_none() => Asked::Exchange,
            () if self.session.is_none() => Asked::Session,
            // Only who held something before has something to take back.
            () if !self.is_ready && self.holds && self.open.is_none() => Asked::OpenAgain,
            () if !self.is_ready && self.holds && self.lock.is_none() => Asked::LockAgain,
            () if !self.is_ready => Asked::Complete,
            () if self.open.is_none() => Asked::Open,
            () => match random.below(6) {
                0 | 1 if self.directory == Existence::Known(true) => Asked::Remove,
                0 | 1 => Asked::Make,
                _ if !self.holds => Asked::Lock,
                2 => Asked::Unlock,
                3 => Asked::Read,
                _ => Asked::Write(value),
            },
        }
    }

    /// The session is gone: what was under way may have been executed or not.
    fn lose_session(&mut self) {
        (self.client, self.session, self.is_ready) = (None, None, false);
        (self.open, self.lock, self.sequence_id, self.again) = (None, None, 0, None);
    }
}

const FILE: [Argument4<'static>; 2] = [ROOT, Argument4::Lookup(Opaque(b"data"))];

impl Fleet {
    fn new(seed: u64) -> Fleet {
        let world = World::new(seed, FaultPlan::default());
        let scratch = Scratch::folder();
        std::fs::write(scratch.0.join("file"), [0]).expect("a file");
        let known = KnownClients::nothing(1);
        let reactors = server(&world, 1 + seed as usize % REACTORS_MAX, &scratch, &known, seed);
        let clients = (0..CLIENTS).map(|number| Worker::new(&world, number)).collect();
        Fleet {
            world,
            random: Random::new(seed),
            attendance: Attendance::new(seed),
            reactors,
            known,
            clients,
            truth: Truth { holder: None, values: vec![0], next: 0, locks: 0 },
            credential: credential(0, 0, &[]),
            scratch,
            seed,
            done: 0,
        }
    }

    fn pass(&mut self) -> usize {
        let now = self.world.now();
        let all = self.reactors.len();
        let first = self.random.below(all as u64) as usize;
        let mut count = 0;
        self.attendance.begin_pass();
        for reactor in (0..all).map(|turn| (first + turn) % all) {
            if self.attendance.draw(CLIENTS + reactor) {
                count += self.reactors[reactor].0.poll(now);
            }
        }
        for client in 0..CLIENTS {
            if self.attendance.draw(client) {
                count += self.clients[client].engine.poll(now);
            }
        }
        count
    }

    fn run(&mut self) {
        let mut idle = 0;
        for _ in 0..PASSES_MAX {
            if self.done >= DONE_MAX {
                return;
            }
            (0..CLIENTS).for_each(|client| self.begin(client));
            let work = self.pass();
            for index in 0..CLIENTS {
                let client = &mut self.clients[index];
                while let Some(event) = client.engine.connection_event() {
                    // One that was never made is not made anew by itself.
                    if let ConnectionEvent::Closed { .. } = event {
                        client.connection = client.engine.connect_with(ADDRESS, POLICY).expect("an address");
                    }
                }
                if let Some(done) = client.engine.completed() {
                    self.end(index, done);
                    self.mishap();
                }
            }
            let servers = self.reactors.iter().map(|(engine, _)| engine.next_timeout());
            let clients = self.clients.iter().map(|client| client.engine.next_timeout());
            let away = self.attendance.next_pass(self.world.now());
            let timer = servers.chain(clients).chain([away]).flatten().min();
            idle = if work > 0 || self.world.advance_before(timer) { 0 } else { idle + 1 };
            assert!(idle < 8, "nothing happens any more");
        }
        panic!("{} requests succeeded in {PASSES_MAX} passes", self.done);
    }

    /// Now and then something ends, whatever others have under way.
    fn mishap(&mut self) {
        match self.random.below(120) {
            0 => self.restart_server(),
            1 | 2 => {
                let client = self.random.below(CLIENTS as u64) as usize;
                self.restart_client(client);
            }
            _ => {}
        }
    }

    /// Begins the next request of a client that has none under way.
    fn begin(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if client.request.is_some() {
            return;
        }
        let is_new = client.again.is_none();
        let request = client.again.clone().unwrap_or_else(|| Request {
            asked: client.next(&mut self.random, self.truth.next.wrapping_add(1)),
            open: client.open.unwrap_or_default(),
            lock: client.lock,
            first: None,
        });
        let Request { asked, open, .. } = request;
        let has_session = !matches!(asked, Asked::Exchange | Asked::Session);
        let sequence_id = client.sequence_id + u32::from(is_new && has_session);
        let mut operations = Vec::new();
        if let Some(session) = client.session.filter(|_| has_session) {
            let (slot, highest_slot, keep_reply) = (0, 0, true);
            operations.push(Argument4::Sequence(SequenceArguments {
                session,
                sequence_id,
                slot,
                highest_slot,
                keep_reply,
            }));
        }
        let lock = request.lock.unwrap_or_default();
        let name = client.name.clone();
        let octets = if let Asked::Write(value) = asked { [value] } else { [0] };
        let previous = OpenClaim::Previous(DelegationType::None);
        let again = NewLocker {
            open_seqid: 0,
            open_stateid: open,
            lock_seqid: 0,
            owner: StateOwner { clientid: 0, owner: Opaque(b"worker") },
        };
        match asked {
            Asked::Exchange => operations.push(exchange_id(&name, client.verifier)),
            Asked::Session => {
                let (id, sequence_id) = client.client.expect("it has an id");
                operations.push(create_session(id, sequence_id, FORE));
            }
            Asked::Complete => operations.push(Argument4::ReclaimComplete(false)),
            Asked::Open => {
                operations.extend(FILE);
                let claim = OpenClaim::Null(Opaque(b"file"));
                operations.push(open_as(b"worker", (BOTH, 0), OpenHow::NoCreate, claim));
            }
            Asked::Make => {
                operations.extend(FILE);
                operations.push(create(CreateType::Directory, &name, NO_ATTRIBUTES));
            }
            Asked::Remove => {
                operations.extend(FILE);
                operations.push(Argument4::Remove(Opaque(&name)));
            }
            _ => {
                operations.extend(FILE);
                operations.push(lookup(b"file"));
                operations.push(match asked {
                    Asked::OpenAgain => open_as(b"worker", (BOTH, 0), OpenHow::NoCreate, previous),
                    Asked::LockAgain => Argument4::Lock(LockArguments4 {
                        kind: LockKind::Write,
                        is_reclaim: true,
                        offset: PLACE.0,
                        length: PLACE.1,
                        locker: Locker::New(again),
                    }),
                    Asked::Lock if request.lock.is_some() => lock_more(lock, LockKind::Write, PLACE),
                    Asked::Lock => lock_new(open, b"worker", LockKind::Write, PLACE),
                    Asked::Unlock => locku(lock, PLACE),
                    Asked::Write(_) => write(lock, 0, &octets),
                    _ => read(lock, 0, 1),
                });
            }
        }
        let compound = Compound { minor: 2, tag: b"", operations: &operations, results_max: RESULTS_MAX };
        let target = Target {
            connection: client.connection,
            credentials: Credentials::Sys(&self.credential),
            timeout: TIMEOUT,
        };
        match target.begin(&mut client.engine, &compound, &mut Chunks::default(), index as u64) {
            Ok(_) => {}
            // It is being made anew, or was never made yet.
            Err(
                CallRefused::NoCredit
                | CallRefused::NoMemory
                | CallRefused::FabricBusy
                | CallRefused::NotConnected
                | CallRefused::Interrupted,
            ) => return,
            Err(refused) => panic!("{refused}"),
        }
        (client.request, client.again, client.sequence_id) = (Some(request), None, sequence_id);
        match asked {
            // From now on it writes no more.
            Asked::Unlock => {
                client.holds = false;
                // A request that is sent again may come when another has the lock.
                if self.truth.holder == Some(index) {
                    self.truth.holder = None;
                }
            }
            Asked::Write(value) if is_new => {
                self.truth.next = value;
                self.truth.values.push(value);
            }
            _ => {}
        }
    }

    /// A request of a client is over.
    fn end(&mut self, index: usize, done: CompletedCall) {
        let request = self.clients[index].request.take().expect("something was asked");
        // The send queue was full just then: the Call was not executed.
        if matches!(done.result, Err(CallError::NotSent | CallError::NotPosted(_))) {
            self.clients[index].again = Some(request);
            return;
        }
        let asked = request.asked;
        let answered = answered(asked, &FinishedCall::new(done));
        if let Answered::Refused(status) = answered {
            return self.refused(index, request, status);
        }
        if let Some(first) = request.first {
            assert_eq!(answered, first, "a retry of {asked:?} gets the kept reply");
            return;
        }
        self.note(index, asked, &answered);
        // As a client whose reply was lost.
        if !matches!(asked, Asked::Exchange | Asked::Session) && self.random.below(4) == 0 {
            self.clients[index].again = Some(Request { first: Some(answered), ..request });
        }
    }

    /// The request was not executed, or it is not known whether it was.
    fn refused(&mut self, index: usize, request: Request, status: Status4) {
        let client = &mut self.clients[index];
        match status {
            // The same request runs still.
            Status4::Delay => client.again = Some(request),
            Status4::BadSession | Status4::StaleClientid | Status4::Deadsession => {
                if request.may_have_changed_names() {
                    client.directory = Existence::Unknown;
                }
                client.lose_session();
            }
            status => panic!("{request:?}: {status:?}"),
        }
    }

    /// Notes what a request came to, and checks it.
    fn note(&mut self, index: usize, asked: Asked, answered: &Answered) {
        let (client, truth) = (&mut self.clients[index], &mut self.truth);
        let next_of = |before: Option<StateId>| before.map_or(1, |state| state.seqid + 1);
        match (asked, answered) {
            (Asked::Exchange, Answered::Exchanged(id, sequence_id)) => {
                client.client = Some((*id, *sequence_id))
            }
            (Asked::Session, Answered::Session(session)) => {
                (client.session, client.sequence_id) = (Some(*session), 0);
            }
            (Asked::Complete, Answered::Done | Answered::Failed(Status4::CompleteAlready)) => {
                client.is_ready = true;
            }
            (Asked::OpenAgain | Asked::Open, Answered::State(state)) => client.open = Some(*state),
            (Asked::LockAgain, Answered::State(state)) => {
                assert_eq!(truth.holder, Some(index), "another client got it before it was reclaimed");
                client.lock = Some(*state);
            }
            (Asked::Lock, Answered::State(state)) => {
                assert_eq!(truth.holder, None, "two writers");
                // A request that were executed twice would have counted twice.
                assert_eq!(state.seqid, next_of(client.lock));
                (client.lock, client.holds, truth.holder) = (Some(*state), true, Some(index));
                truth.locks += 1;
            }
            (Asked::Unlock, Answered::State(state)) => {
                assert_eq!(state.seqid, next_of(client.lock));
                client.lock = Some(*state);
            }
            (Asked::Write(value), Answered::Done) => truth.values = vec![value],
            (Asked::Read, Answered::Octets(octets)) => {
                let [value] = octets[..] else { panic!("{octets:?}") };
                assert!(truth.values.contains(&value), "{value} is read, and {:?} was written", truth.values);
                truth.values = vec![value];
            }
            (Asked::Make, Answered::Done | Answered::Failed(Status4::Exist)) => {
                let is_new = *answered == Answered::Done;
                assert!(is_new || client.directory == Existence::Unknown, "made twice");
                client.directory = Existence::Known(true);
            }
            (Asked::Remove, Answered::Done) => client.directory = Existence::Known(false),
            // Somebody has it, or had it until a moment ago; or others may take back what they held.
            (Asked::Lock, Answered::Failed(Status4::Denied)) => return,
            (
                Asked::Lock | Asked::Open | Asked::Read | Asked::Write(_) | Asked::Make | Asked::Remove,
                Answered::Failed(Status4::Grace | Status4::Delay),
            ) => return,
            (asked, answered) => panic!("{asked:?} came to {answered:?}; {truth:?}"),
        }
        self.done += 1;
    }

    /// All reactors end at once, and begin anew: on as many cores as chance likes.
    fn restart_server(&mut self) {
        self.reactors.clear();
        self.known = self.known.restarted();
        let count = 1 + self.random.below(REACTORS_MAX as u64) as usize;
        self.reactors = server(&self.world, count, &self.scratch, &self.known, self.seed);
    }

    /// A client forgets all, and comes again.
    fn restart_client(&mut self, index: usize) {
        let old = &self.clients[index];
        let (verifier, mut directory) = (old.verifier + 1, old.directory);
        if old.request.as_ref().is_some_and(Request::may_have_changed_names) {
            directory = Existence::Unknown;
        }
        if self.truth.holder == Some(index) {
            self.truth.holder = None;
        }
        self.clients[index] = Worker { verifier, directory, ..Worker::new(&self.world, index) };
    }

    fn close(mut self) {
        self.attendance.be_all_here();
        self.world.set_plan(FaultPlan::default());
        assert!(self.truth.locks > 0, "nobody locked anything");
        self.clients.iter_mut().for_each(|client| client.engine.disconnect(client.connection));
        for _ in 0..PASSES_MAX {
            let is_over = self.clients.iter().all(|client| client.engine.is_drained())
                && self.reactors.iter().all(|(engine, _)| engine.connection_count() == 0);
            if is_over {
                break;
            }
            if self.pass() == 0 {
                let servers = self.reactors.iter().map(|(engine, _)| engine.next_timeout());
                let clients = self.clients.iter().map(|client| client.engine.next_timeout());
                self.world.advance_before(servers.chain(clients).flatten().min());
            }
        }
        (0..50).for_each(|_| _ = self.pass());
        for client in &mut self.clients {
            // What was answered meanwhile.
            while client.engine.completed().is_some() {}
            assert_eq!(client.memory.ledger.outstanding(), 0, "a client's buffers");
        }
        assert_eq!(self.world.violations(), Violations::default());
    }
}

fn answered(asked: Asked, finished: &FinishedCall) -> Answered {
    let answer = finished.reply::<Compound<'_>>().expect("a Reply");
    if let Some(Outcome4::Sequence(Err(status))) = answer.outcomes.first() {
        return Answered::Refused(*status);
    }
    match (asked, answer.outcomes.last()) {
        (_, Some(Outcome4::ExchangeId(Ok(ok)))) => Answered::Exchanged(ok.clientid, ok.sequence_id),
        (_, Some(Outcome4::CreateSession(Ok(ok)))) => Answered::Session(ok.session),
        (_, Some(Outcome4::CreateSession(Err(status)))) => Answered::Refused(*status),
        (_, Some(Outcome4::Open(Ok(ok)))) => Answered::State(ok.stateid),
        (_, Some(Outcome4::Lock(Ok(state)) | Outcome4::Locku(Ok(state)))) => Answered::State(*state),
        (_, Some(Outcome4::Read(Ok(ok)))) => {
            Answered::Octets(finished.octets(&ok.data.0).flatten().copied().collect())
        }
        _ if answer.status == Status4::Ok => Answered::Done,
        _ => Answered::Failed(answer.status),
    }
}

/// 8881-2.10.6.1-b: whatever happens to connections, clients and the server.
#[test]
fn a_fleet_of_clients_loses_nothing_and_repeats_nothing() {
    sweep("a_fleet_of_clients_loses_nothing_and_repeats_nothing", 0..40, |seed| {
        let mut fleet = Fleet::new(seed);
        let death = [Odds::NEVER, Odds::one_in(400), Odds::one_in(150)][(seed / 3 % 3) as usize];
        fleet.world.set_plan(FaultPlan { death, ..FaultPlan::rough() });
        fleet.run();
        fleet.close();
    });
}
