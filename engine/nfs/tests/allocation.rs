//! Calls of versions 3 and 4 that clients make often allocate nothing at the server in the steady state: counted, over shared
//! memory, with both ends in one thread.
//!
//! A program of its own, because it replaces the allocator.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use stag_fabric::{Provider, Shm, ShmConfig};
use stag_memory::Buf;
use stag_nfs::callout::NoCallOut;
use stag_nfs::client::{FinishedCall, Mnt, Operation, Target};
use stag_nfs::export::Export;
use stag_nfs::server::{
    Config4, ExportTable, Locking, LockingConfig, ServicesWithLocks, SharedSessions, TimeOfDay,
    services_with_locks,
};
use stag_nfs::state::Recovered;
use stag_rpc::{Chunks, ConnectionEvent, ConnectionId, Credentials, Engine, EngineConfig, Memory};
use stag_runtime::Poller;
use stag_stores::memory::{MemoryConfig, MemoryStore, RootAttributes};
use stag_testing::CountingAllocator;
use stag_vfs::Timestamp;
use stag_wire::nfs3;
use stag_wire::nfs4::attributes::{Attribute, AttributeList, AttributeSet};
use stag_wire::nfs4::compound::{CompoundReply, OperationsWriter};
use stag_wire::nfs4::files::{
    AccessArguments4, GetattrArguments4, ReadArguments4, WriteArguments4, WriteHead,
};
use stag_wire::nfs4::lock::{ExistingLocker, LockArguments4, LockKind, Locker, LockuArguments, NewLocker};
use stag_wire::nfs4::open::{
    CloseArguments4, CreateHow4, OpenArguments4, OpenClaim, OpenHow, StateOwner, share,
};
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::session::{
    CallbackSecurity, ChannelAttributes, ClientOwner, CreateSessionArguments, ExchangeIdArguments,
    SequenceArguments, StateProtection,
};
use stag_wire::nfs4::value::{FixedOpaque, List};
use stag_wire::nfs4::{self, Bitmap, Data, Opaque, SessionId, Stable, StateId, Status4};
use stag_wire::rpc::{AuthSys, Gids};
use stag_wire::xdr::{Decode, Encode, Item, Overflow, Reader, Writer, XdrError};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Octets of a READ or WRITE by chunk.
const PAGE: usize = 4096;
/// Rounds that are counted, after as many to warm up.
const ROUNDS: usize = 500;
/// Octets of results, at most.
const RESULTS_MAX: u32 = 800;

/// A COMPOUND of minor version 2.
struct Compound<'a>(&'a [Argument4<'a>]);

impl Encode for Compound<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        let mut operations = OperationsWriter::begin_call(writer, &Opaque(b""), 2)?;
        self.0.iter().try_for_each(|operation| operations.push(operation))?;
        operations.finish();
        Ok(())
    }
}

/// Its status and outcomes.
struct Answer<'r>(Status4, Vec<Outcome4<'r>>);

impl<'r> Decode<'r> for Answer<'r> {
    fn decode(reader: &mut Reader<'r>) -> Result<Self, XdrError> {
        let CompoundReply { status, mut operations, .. } = CompoundReply::parse(reader.clone())?;
        let mut outcomes = Vec::new();
        while let Some(outcome) = operations.next_item() {
            outcomes.push(outcome.unwrap_or_else(|error| panic!("{error}")));
        }
        *reader = operations.reader().clone();
        Ok(Answer(status, outcomes))
    }
}

impl Operation for Compound<'_> {
    const PROGRAM: u32 = nfs4::PROGRAM;
    const VERSION: u32 = nfs4::VERSION;
    type Reply<'r> = Answer<'r>;

    fn procedure(&self) -> u32 {
        nfs4::COMPOUND
    }

    fn results_len_max(&self, _: bool) -> u32 {
        RESULTS_MAX
    }
}

/// A client and a server with one file.
struct Lab {
    client: Engine<Shm, ()>,
    server: Engine<Shm, ServicesWithLocks<MemoryStore>>,
    connection: ConnectionId,
    credential: Vec<u8>,
    now: Duration,
    /// Allocations of the server so far.
    allocations: u64,
    root: Vec<u8>,
    file: Vec<u8>,
    session: SessionId,
    /// The sequence id of slot 0 that was used last.
    sequence_id: u32,
    /// Whether the slot keeps replies.
    keeps: bool,
}

fn shm(memory: &Memory) -> Shm {
    let mut shm = Shm::open(ShmConfig::default()).unwrap();
    shm.register(&memory.arena).unwrap();
    shm
}

fn services(memory: &Memory) -> ServicesWithLocks<MemoryStore> {
    let pool = &memory.pools.payload;
    let config = MemoryConfig {
        fsid: 1,
        data_len_max: 1 << 20,
        objects_max: 64,
        names_max: 64,
        root: RootAttributes { mode: 0o777, uid: 0, gid: 0 },
    };
    let store = MemoryStore::new(&config, pool.clone(), Timestamp::default()).unwrap();
    let export = Export { root_squash: false, ..Export::new("/data") };
    let exports = ExportTable::new(vec![(export, Box::new(store))], pool.clone()).unwrap();
    let locking =
        Locking::new(LockingConfig::default(), Recovered::nothing(), Box::new(NoCallOut::default()));
    let time = TimeOfDay::Offset(Duration::from_secs(1_000_000));
    let version4 = (Config4::new(1), SharedSessions::default());
    services_with_locks(exports, time, Rc::new(RefCell::new(locking)), Rc::default(), version4)
}

fn credential() -> Vec<u8> {
    let user = AuthSys { stamp: 0, machine_name: b"test", uid: 0, gid: 0, gids: Gids::NONE };
    let mut body = vec![0; AuthSys::BODY_LEN_MAX];
    let mut writer = Writer::new(&mut body);
    writer.value(&user).unwrap();
    let len = writer.position();
    body.truncate(len);
    body
}

impl Lab {
    fn new(name: &str) -> Lab {
        let config = EngineConfig::default();
        let memory = [Memory::new(&config, 4 << 20).unwrap(), Memory::new(&config, 4 << 20).unwrap()];
        let name = format!("nfs-allocation-{name}-{}", std::process::id());
        let services = services(&memory[1]);
        let mut server = Engine::new(shm(&memory[1]), services, memory[1].pools.clone(), config, 1).unwrap();
        server.listen(&name).unwrap();
        let mut client = Engine::new(shm(&memory[0]), (), memory[0].pools.clone(), config, 2).unwrap();
        let connection = client.connect(&name).unwrap();
        let mut lab = Lab {
            client,
            server,
            connection,
            credential: credential(),
            now: Duration::from_secs(1),
            allocations: 0,
            root: Vec::new(),
            file: Vec::new(),
            session: SessionId::default(),
            sequence_id: 0,
            keeps: false,
        };
        loop {
            lab.pass();
            match lab.client.connection_event() {
                Some(ConnectionEvent::Established { .. }) => break,
                Some(event) => panic!("unexpected: {event:?}"),
                None => {}
            }
        }
        let mount = Mnt(stag_wire::mount3::PathArguments { path: nfs3::Name(b"/data") });
        lab.root = lab.call(&mount, Chunks::default()).reply::<Mnt<'_>>().unwrap().unwrap().handle.0.to_vec();
        lab
    }

    fn pass(&mut self) {
        self.now += Duration::from_micros(1);
        self.client.poll(self.now);
        let before = CountingAllocator::allocations();
        self.server.poll(self.now);
        self.allocations += CountingAllocator::allocations() - before;
    }

    fn call<O: Operation>(&mut self, operation: &O, mut chunks: Chunks) -> FinishedCall {
        let credentials = Credentials::Sys(&self.credential);
        let target = Target { connection: self.connection, credentials, timeout: Duration::from_secs(10) };
        target.begin(&mut self.client, operation, &mut chunks, 0).unwrap();
        for _ in 0..100_000 {
            self.pass();
            if let Some(done) = self.client.completed() {
                return FinishedCall::new(done);
            }
        }
        panic!("no answer");
    }

    /// What the server allocates in many rounds, after as many to warm up.
    fn count(&mut self, mut round: impl FnMut(&mut Lab)) -> u64 {
        (0..ROUNDS).for_each(|_| round(self));
        let before = self.allocations;
        (0..ROUNDS).for_each(|_| round(self));
        self.allocations - before
    }

    fn page(&self) -> Buf {
        let mut buf = self.client.pools().payload.take_len(PAGE).unwrap();
        buf.set_len(PAGE);
        buf
    }

    /// A COMPOUND without a session, whose last outcome `look` sees.
    fn alone<R>(&mut self, operation: Argument4<'_>, look: impl FnOnce(&Outcome4<'_>) -> R) -> R {
        let finished = self.call(&Compound(&[operation]), Chunks::default());
        look(&finished.reply::<Compound<'_>>().unwrap().1[0])
    }

    /// A COMPOUND of a SEQUENCE in slot 0 and these operations, all of which succeed; `look` sees their outcomes.
    fn compound<R>(
        &mut self,
        operations: &[Argument4<'_>],
        chunks: Chunks,
        look: impl FnOnce(&[Outcome4<'_>]) -> R,
    ) -> R {
        self.sequence_id += 1;
        let mut all = vec![Argument4::Sequence(SequenceArguments {
            session: self.session,
            sequence_id: self.sequence_id,
            slot: 0,
            highest_slot: 0,
            keep_reply: self.keeps,
        })];
        all.extend_from_slice(operations);
        let finished = self.call(&Compound(&all), chunks);
        let Answer(status, outcomes) = finished.reply::<Compound<'_>>().unwrap();
        assert_eq!(status, Status4::Ok, "{outcomes:?}");
        look(&outcomes[1..])
    }

    /// Becomes a client of version 4 with a session, and a file that it has open.
    fn begin4(&mut self) -> StateId {
        let exchange = Argument4::ExchangeId(ExchangeIdArguments {
            owner: ClientOwner { verifier: FixedOpaque([1; 8]), id: Opaque(b"client") },
            flags: 0,
            protection: StateProtection::None,
            implementation: None,
        });
        let (clientid, sequence_id) = self.alone(exchange, |outcome| match outcome {
            Outcome4::ExchangeId(Ok(ok)) => (ok.clientid, ok.sequence_id),
            other => panic!("{other:?}"),
        });
        let limits = |operations_max, requests_max| ChannelAttributes {
            header_pad: 0,
            request_max: 1 << 20,
            response_max: 1 << 20,
            response_cached_max: 2048,
            operations_max,
            requests_max,
            rdma_ird: None,
        };
        let create = Argument4::CreateSession(CreateSessionArguments {
            clientid,
            sequence_id,
            flags: 0,
            fore: limits(8, 64),
            back: limits(2, 1),
            callback_program: 0,
            callback_securities: List::new(&[CallbackSecurity::None]),
        });
        self.session = self.alone(create, |outcome| match outcome {
            Outcome4::CreateSession(Ok(ok)) => ok.session,
            other => panic!("{other:?}"),
        });
        self.compound(&[Argument4::ReclaimComplete(false)], Chunks::default(), |_| ());
        let how = OpenHow::Create(CreateHow4::Unchecked(NO_ATTRIBUTES));
        let root = self.root.clone();
        let make = [put(&root), open(b"maker", how), GETFH];
        let (state, file) = self.compound(&make, Chunks::default(), |outcomes| match outcomes {
            [_, Outcome4::Open(Ok(ok)), Outcome4::Getfh(Ok(handle))] => (ok.stateid, handle.0.to_vec()),
            other => panic!("{other:?}"),
        });
        self.file = file;
        state
    }
}

const GETFH: Argument4<'static> = Argument4::Getfh(());
const ACCESS: Argument4<'static> = Argument4::Access(AccessArguments4 { access: 0x1f });
const NO_ATTRIBUTES: AttributeList<'static> = AttributeList { mask: Bitmap::EMPTY, values: &[] };

fn put(handle: &[u8]) -> Argument4<'_> {
    Argument4::Putfh(Opaque(handle))
}

fn open<'a>(owner: &'a [u8], how: OpenHow<'a>) -> Argument4<'a> {
    Argument4::Open(OpenArguments4 {
        seqid: 0,
        share_access: share::BOTH,
        share_deny: 0,
        owner: StateOwner { clientid: 0, owner: Opaque(owner) },
        how,
        claim: OpenClaim::Null(Opaque(b"file")),
    })
}

/// GETATTR of what Linux asks for of an object that it meets.
fn getattr() -> Argument4<'static> {
    const ASKED: [Attribute; 15] = [
        Attribute::Type,
        Attribute::Change,
        Attribute::Size,
        Attribute::Fsid,
        Attribute::FileId,
        Attribute::Mode,
        Attribute::NumLinks,
        Attribute::Owner,
        Attribute::OwnerGroup,
        Attribute::RawDev,
        Attribute::SpaceUsed,
        Attribute::TimeAccess,
        Attribute::TimeMetadata,
        Attribute::TimeModify,
        Attribute::MountedOnFileId,
    ];
    let request = AttributeSet(Attribute::set_of(|attribute| ASKED.contains(&attribute)));
    Argument4::Getattr(GetattrArguments4 { request })
}

fn write(stateid: StateId, item: Item<'_>) -> Argument4<'_> {
    let head = WriteHead { stateid, offset: 0, stable: Stable::Unstable };
    Argument4::Write(WriteArguments4 { head, data: Data(item) })
}

fn read(stateid: StateId, count: usize) -> Argument4<'static> {
    Argument4::Read(ReadArguments4 { stateid, offset: 0, count: count as u32 })
}

const BY_CHUNK: Item<'static> = Item::Reduced { index: 0, len: PAGE as u32 };

/// The COMPOUNDs that Linux makes of these operations, with replies that are not kept.
#[test]
fn version_4_reads_and_writes_without_allocations() {
    let mut lab = Lab::new("data4");
    let state = lab.begin4();
    let (root, file) = (lab.root.clone(), lab.file.clone());
    let writes = lab.count(|lab| {
        let chunks = Chunks::read(lab.page().share());
        lab.compound(&[put(&file), write(state, BY_CHUNK), getattr()], chunks, |_| ());
    });
    let writes_inline = lab.count(|lab| {
        let operations = [put(&file), write(state, Item::Inline(&[7; 100])), getattr()];
        lab.compound(&operations, Chunks::default(), |_| ());
    });
    let reads = lab.count(|lab| {
        let chunks = Chunks::write(lab.page());
        lab.compound(&[put(&file), read(state, PAGE)], chunks, |outcomes| {
            assert!(matches!(outcomes[1], Outcome4::Read(Ok(ok)) if ok.data.0.len() == PAGE));
        });
    });
    let reads_inline = lab.count(|lab| {
        lab.compound(&[put(&file), read(state, 100)], Chunks::default(), |_| ());
    });
    let asks = lab.count(|lab| {
        lab.compound(&[put(&file), ACCESS, getattr()], Chunks::default(), |_| ());
    });
    let looks = lab.count(|lab| {
        let down = [put(&root), Argument4::Lookup(Opaque(b"file")), GETFH, getattr()];
        lab.compound(&down, Chunks::default(), |_| ());
    });
    assert_eq!(
        [writes, writes_inline, reads, reads_inline, asks, looks],
        [0; 6],
        "allocations of {ROUNDS} Calls: WRITE by chunk and inline, READ by chunk and inline, GETATTR, LOOKUP"
    );
}

/// OPEN and CLOSE, with replies that are kept: of a file that another owner has open, and of one without other opens.
#[test]
fn version_4_opens_and_closes_without_allocations() {
    let mut lab = Lab::new("open4");
    let state = lab.begin4();
    let (root, file) = (lab.root.clone(), lab.file.clone());
    lab.keeps = true;
    let opens = |lab: &mut Lab| {
        lab.count(|lab| {
            // As long as Linux's: 36 octets.
            let owner = open(b"open id:0123456789abcdef0123456789ab", OpenHow::NoCreate);
            let down = [put(&root), owner, GETFH, ACCESS, getattr()];
            let opened = lab.compound(&down, Chunks::default(), |outcomes| match &outcomes[1] {
                Outcome4::Open(Ok(ok)) => ok.stateid,
                other => panic!("{other:?}"),
            });
            let close = Argument4::Close(CloseArguments4 { seqid: 0, stateid: opened });
            lab.compound(&[put(&file), getattr(), close], Chunks::default(), |_| ());
        })
    };
    let beside = opens(&mut lab);
    let close = Argument4::Close(CloseArguments4 { seqid: 0, stateid: state });
    lab.compound(&[put(&file), close], Chunks::default(), |_| ());
    let alone = opens(&mut lab);
    assert_eq!([beside, alone], [0; 2], "allocations of {ROUNDS} OPENs and CLOSEs: beside another, alone");
}

/// LOCK and LOCKU of a program that locks a range, works on it, and unlocks it, with replies that are kept.
#[test]
fn version_4_locks_without_allocations() {
    const LOCKED: u64 = 4096;
    let mut lab = Lab::new("lock4");
    let state = lab.begin4();
    let file = lab.file.clone();
    lab.keeps = true;
    let lock = |locker| {
        Argument4::Lock(LockArguments4 {
            kind: LockKind::Write,
            is_reclaim: false,
            offset: 0,
            length: LOCKED,
            locker,
        })
    };
    let locked = |outcomes: &[Outcome4<'_>]| match &outcomes[1] {
        Outcome4::Lock(Ok(stateid)) | Outcome4::Locku(Ok(stateid)) => *stateid,
        other => panic!("{other:?}"),
    };
    let unlock = |stateid| {
        Argument4::Locku(LockuArguments {
            kind: LockKind::Write,
            seqid: 0,
            stateid,
            offset: 0,
            length: LOCKED,
        })
    };
    let owner = StateOwner { clientid: 0, owner: Opaque(b"lock id:0123456789abcdef") };
    let first = lock(Locker::New(NewLocker { open_seqid: 0, open_stateid: state, lock_seqid: 0, owner }));
    let stateid = lab.compound(&[put(&file), first], Chunks::default(), locked);
    let mut stateid = lab.compound(&[put(&file), unlock(stateid)], Chunks::default(), locked);
    let counted = lab.count(|lab| {
        let again = lock(Locker::Existing(ExistingLocker { stateid, lock_seqid: 0 }));
        stateid = lab.compound(&[put(&file), again], Chunks::default(), locked);
        stateid = lab.compound(&[put(&file), unlock(stateid)], Chunks::default(), locked);
    });
    assert_eq!(counted, 0, "allocations of {ROUNDS} LOCKs and LOCKUs");
}

#[test]
fn version_3_allocates_nothing() {
    let mut lab = Lab::new("data3");
    let root = lab.root.clone();
    let place = nfs3::DirectoryName { directory: nfs3::Handle(&root), name: nfs3::Name(b"file") };
    let how = nfs3::CreateHow::Guarded(nfs3::SetAttributes::default());
    let finished = lab.call(&nfs3::CreateArguments { place, how }, Chunks::default());
    let made = finished.reply::<nfs3::CreateArguments<'_>>().unwrap().unwrap();
    let file = made.object.unwrap().0.to_vec();
    let file = nfs3::Handle(&file);
    let writes = lab.count(|lab| {
        let chunks = Chunks::read(lab.page().share());
        let (count, stable, data) = (PAGE as u32, nfs3::Stable::Unstable, nfs3::Data(BY_CHUNK));
        let write = nfs3::WriteArguments { file, offset: 0, count, stable, data };
        assert!(lab.call(&write, chunks).reply::<nfs3::WriteArguments<'_>>().unwrap().is_ok());
    });
    let reads = lab.count(|lab| {
        let chunks = Chunks::write(lab.page());
        let read = nfs3::ReadArguments { file, offset: 0, count: PAGE as u32 };
        assert!(lab.call(&read, chunks).reply::<nfs3::ReadArguments<'_>>().unwrap().is_ok());
    });
    let asks = lab.count(|lab| {
        let getattr = nfs3::GetattrArguments { object: file };
        let finished = lab.call(&getattr, Chunks::default());
        assert!(finished.reply::<nfs3::GetattrArguments<'_>>().unwrap().is_ok());
    });
    let looks = lab.count(|lab| {
        let lookup = nfs3::LookupArguments { what: place };
        let finished = lab.call(&lookup, Chunks::default());
        assert!(finished.reply::<nfs3::LookupArguments<'_>>().unwrap().is_ok());
    });
    assert_eq!(
        [writes, reads, asks, looks],
        [0; 4],
        "allocations of {ROUNDS} Calls: WRITE, READ, GETATTR, LOOKUP"
    );
}
