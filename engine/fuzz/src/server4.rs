//! A server of NFS version 4 against a client that sends any COMPOUNDs, over the simulated fabric.
//!
//! The input is a list of COMPOUNDs: a count of operations, a length in two octets, and as many octets of operations. Each goes behind
//! a SEQUENCE; with the highest bit of the count, the octets are all arguments of the Call.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use stag_fabric::Provider;
use stag_fabric::sim::{FaultPlan, Sim, Violations, World};
use stag_nfs::callout::NoCallOut;
use stag_nfs::client::{FinishedCall, Operation, Target};
use stag_nfs::export::Export;
use stag_nfs::server::{
    Config4, ExportTable, Locking, LockingConfig, ServicesWithLocks, SharedSessions, TimeOfDay,
    services_with_locks,
};
use stag_nfs::state::Recovered;
use stag_rpc::{
    CallRefused, Chunks, ConnectionEvent, ConnectionId, Credentials, Engine, EngineConfig, Memory,
};
use stag_runtime::Poller;
use stag_stores::memory::{MemoryConfig, MemoryStore, RootAttributes};
use stag_vfs::Timestamp;
use stag_wire::nfs4::compound::{CompoundReply, OperationsWriter};
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::session::{
    CallbackSecurity, ChannelAttributes, ClientOwner, CreateSessionArguments, ExchangeIdArguments,
    SequenceArguments, StateProtection,
};
use stag_wire::nfs4::value::{FixedOpaque, List};
use stag_wire::nfs4::{Opaque, SessionId, Status4};
use stag_wire::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError};

/// COMPOUNDs of one input.
const COMPOUNDS_MAX: usize = 8;

/// Operations of one COMPOUND that are octets of the input.
const OPERATIONS_MAX: u8 = 16;

const CHANNEL: ChannelAttributes = ChannelAttributes {
    header_pad: 0,
    request_max: 65_536,
    response_max: 65_536,
    response_cached_max: 4096,
    operations_max: 20,
    requests_max: 4,
    rdma_ird: None,
};

/// Arguments of COMPOUND, whatever they are.
struct AnyCompound<'a>(&'a [u8]);

impl Encode for AnyCompound<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.opaque_fixed(self.0)
    }
}

/// What a COMPOUND came to: results that are well-formed.
struct WellFormed {
    client: Option<(u64, u32)>,
    session: Option<SessionId>,
}

impl<'r> Decode<'r> for WellFormed {
    fn decode(reader: &mut Reader<'r>) -> Result<Self, XdrError> {
        let parsed = CompoundReply::parse(reader.clone());
        let CompoundReply { status, mut operations, .. } =
            parsed.unwrap_or_else(|error| panic!("the results are not those of a COMPOUND: {error}"));
        let mut found = WellFormed { client: None, session: None };
        let mut last = Status4::Ok;
        while let Some(outcome) = operations.next_item() {
            let outcome = outcome.unwrap_or_else(|error| panic!("results of an operation: {error}"));
            assert_eq!(last, Status4::Ok, "an operation follows one that failed");
            last = outcome.status();
            match outcome {
                Outcome4::ExchangeId(Ok(ok)) => found.client = Some((ok.clientid, ok.sequence_id)),
                Outcome4::CreateSession(Ok(ok)) => found.session = Some(ok.session),
                _ => {}
            }
        }
        assert!(last == status || last == Status4::Ok, "the last operation says {last:?}, all {status:?}");
        *reader = operations.reader().clone();
        Ok(found)
    }
}

impl Operation for AnyCompound<'_> {
    const PROGRAM: u32 = stag_wire::nfs4::PROGRAM;
    const VERSION: u32 = 4;
    type Reply<'r> = WellFormed;

    fn procedure(&self) -> u32 {
        1
    }

    fn results_len_max(&self, _: bool) -> u32 {
        65_536
    }
}

struct Pair {
    world: World,
    server: Engine<Sim, ServicesWithLocks<MemoryStore>>,
    client: Engine<Sim, ()>,
    connection: ConnectionId,
    _memory: [Memory; 2],
}

fn config() -> EngineConfig {
    EngineConfig { credits_max: 4, connections_max: 2, receives_max: 16, ..EngineConfig::default() }
}

impl Pair {
    fn new() -> Pair {
        let world = World::new(1, FaultPlan::default());
        let memory = || Memory::on_demand(&config(), 2 << 20).expect("memory");
        let [here, there] = [memory(), memory()];
        let store = MemoryConfig {
            fsid: 1,
            data_len_max: 1 << 20,
            objects_max: 200,
            names_max: 200,
            root: RootAttributes { mode: 0o777, uid: 0, gid: 0 },
        };
        let store =
            MemoryStore::new(&store, there.pools.payload.clone(), Timestamp::default()).expect("pages");
        let shares = vec![(Export { root_squash: false, ..Export::new("/data") }, Box::new(store))];
        let exports = ExportTable::new(shares, there.pools.payload.clone()).expect("one export");
        let time = TimeOfDay::Offset(Duration::from_secs(1_000_000));
        let locking =
            Locking::new(LockingConfig::default(), Recovered::nothing(), Box::new(NoCallOut::default()));
        let locking = Rc::new(RefCell::new(locking));
        let version4 = (Config4::new(1), SharedSessions::default());
        let services = services_with_locks(exports, time, locking, Rc::default(), version4);
        let mut provider = world.provider("server");
        provider.register(&there.arena).expect("an arena");
        let mut server = Engine::new(provider, services, there.pools.clone(), config(), 1).expect("it fits");
        server.listen("here").expect("the address is free");
        let mut provider = world.provider("client");
        provider.register(&here.arena).expect("an arena");
        let mut client = Engine::new(provider, (), here.pools.clone(), config(), 2).expect("it fits");
        let connection = client.connect("here").expect("the address is fine");
        let mut pair = Pair { world, server, client, connection, _memory: [here, there] };
        let event = pair.until(|pair| pair.client.connection_event());
        assert_eq!(event, ConnectionEvent::Established { connection });
        pair
    }

    fn until<T>(&mut self, mut found: impl FnMut(&mut Pair) -> Option<T>) -> T {
        let mut idle = 0;
        for _ in 0..10_000 {
            let now = self.world.now();
            let work = self.client.poll(now) + self.server.poll(now);
            if let Some(found) = found(self) {
                return found;
            }
            let timer = [self.client.next_timeout(), self.server.next_timeout()].into_iter().flatten().min();
            idle = if work > 0 || self.world.advance_before(timer) { 0 } else { idle + 1 };
            assert!(idle < 3, "a Call is never answered");
        }
        panic!("a Call is not answered in 10,000 passes");
    }

    /// Makes a COMPOUND. `None`: the server says that it is none.
    fn call(&mut self, octets: &[u8]) -> Option<WellFormed> {
        let timeout = Duration::from_secs(10);
        self.until(|pair| {
            let target = Target { connection: pair.connection, credentials: Credentials::None, timeout };
            match target.begin(&mut pair.client, &AnyCompound(octets), &mut Chunks::default(), 0) {
                Ok(_) => Some(()),
                Err(CallRefused::NoCredit | CallRefused::NoMemory | CallRefused::FabricBusy) => None,
                Err(refused) => panic!("{refused}"),
            }
        });
        let finished = FinishedCall::new(self.until(|pair| pair.client.completed()));
        finished.reply::<AnyCompound<'_>>().ok()
    }

    /// Makes a COMPOUND of one operation.
    fn ask(&mut self, operation: &Argument4<'_>) -> WellFormed {
        let octets = compound(&[*operation], 0, &[]);
        self.call(&octets).expect("a server that goes on answers it")
    }

    /// A session of a client of this name.
    fn session(&mut self, name: &[u8]) -> SessionId {
        let found = self.ask(&Argument4::ExchangeId(ExchangeIdArguments {
            owner: ClientOwner { verifier: FixedOpaque([1; 8]), id: Opaque(name) },
            flags: 0,
            protection: StateProtection::None,
            implementation: None,
        }));
        let (clientid, sequence_id) = found.client.expect("there is room for a client");
        let found = self.ask(&Argument4::CreateSession(CreateSessionArguments {
            clientid,
            sequence_id,
            flags: 0,
            fore: CHANNEL,
            back: CHANNEL,
            callback_program: 0x4000_0000,
            callback_securities: List::new(&[CallbackSecurity::None]),
        }));
        found.session.expect("there is room for a session")
    }
}

/// Arguments of COMPOUND: these operations, and `more` that are in `octets`.
fn compound(operations: &[Argument4<'_>], more: u32, octets: &[u8]) -> Vec<u8> {
    let mut space = vec![0; 4096];
    let mut writer = Writer::new(&mut space);
    let begun = OperationsWriter::begin_call(&mut writer, &Opaque(b""), 2);
    let mut list = begun.expect("there is space");
    operations.iter().for_each(|operation| list.push(operation).expect("there is space"));
    list.finish();
    let len = writer.position();
    space.truncate(len);
    // The count is behind an empty tag and the minor version.
    space[8..12].copy_from_slice(&(operations.len() as u32 + more).to_be_bytes());
    space.extend_from_slice(octets);
    space
}

/// A server answers each COMPOUND with results that are well-formed, or says that it is none; and then another client.
pub fn nfs4_server(input: &[u8]) {
    let mut pair = Pair::new();
    let session = pair.session(b"fuzz");
    let mut sequence_id = 0;
    let mut rest = input;
    for _ in 0..COMPOUNDS_MAX {
        let [count, high, low, octets @ ..] = rest else { break };
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(octets.len());
        let (octets, others) = octets.split_at(len);
        rest = others;
        if count & 0x80 != 0 {
            let _ = pair.call(octets);
            continue;
        }
        sequence_id += 1;
        let (slot, highest_slot, keep_reply) = (0, 0, count & 0x40 != 0);
        let sequence = SequenceArguments { session, sequence_id, slot, highest_slot, keep_reply };
        let more = u32::from(count % (OPERATIONS_MAX + 1));
        let octets = compound(&[Argument4::Sequence(sequence)], more, octets);
        let _ = pair.call(&octets);
    }
    let _ = pair.session(b"another");
    assert_eq!(pair.world.violations(), Violations::default());
}
