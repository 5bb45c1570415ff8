//! A client and a server, and the world between them.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use stag_fabric::Provider;
use stag_fabric::sim::{FaultPlan, Sim, World};
use stag_memory::{Arena, ArenaConfig, Budget, PageChoice, PageSize, Pool};
use stag_nfs::callout::NoCallOut;
use stag_nfs::client::{Finished, Operation, Target};
use stag_nfs::export::Export;
use stag_nfs::memory::{MemoryConfig, MemoryStore, RootAttributes};
use stag_nfs::server::{
    Exports, Locking, LockingConfig, Mount, Nfs, Nfsacl, Nlm, Nsm, Registered, Rpcbind, SharedLocking,
    TimeOfDay, services_with_locks,
};
use stag_nfs::state::Recovered;
use stag_nfs::stores::AnyStore;
use stag_rpc::{
    CallRefused, Chunks, ConnectionEvent, ConnectionId, Credentials, Engine, EngineConfig, Pools,
};
use stag_runtime::Poller;
use stag_wire::nfs3::{CreateArguments, CreateHow, DirectoryName, Handle, Name, SetAttributes, Time};
use stag_wire::rpc::{AuthSys, Gids};
use stag_wire::rpcbind::netid;
use stag_wire::xdr::Writer;

pub(crate) const PAGE: usize = 4096;
/// Pages of each side.
const PAGES: usize = 2048;
const TIMEOUT: Duration = Duration::from_secs(10);

type Files = AnyStore;
type Server = Engine<Sim, (Nfs<Files>, Mount<Files>, Nfsacl<Files>, Nlm<Files>, Nsm, Rpcbind)>;

pub(crate) struct Pair {
    pub(crate) world: World,
    pub(crate) client: Engine<Sim, ()>,
    pub(crate) server: Server,
    pub(crate) connection: ConnectionId,
    /// The credential: an AUTH_SYS body, or none.
    pub(crate) credential: Option<Vec<u8>>,
    /// The root of the first export.
    pub(crate) root: Vec<u8>,
    /// What NLM and NSM know.
    pub(crate) locking: SharedLocking,
}

fn pools(provider: &mut Sim, config: &EngineConfig) -> Pools {
    let messages = Pools::messages_needed(config);
    let len = Pool::footprint(config.message_len(), messages) + Pool::footprint(PAGE, PAGES);
    let page = PageChoice::Size(PageSize::Base);
    let budget = Budget::new(1 << 32);
    let arena = Arena::new(&ArenaConfig { name: "test", len, page, node: None, budget: &budget }).unwrap();
    provider.register(&arena).unwrap();
    Pools {
        messages: Pool::fixed(&arena, "messages", config.message_len(), messages).unwrap(),
        payload: Pool::runs(&arena, "payload", PAGE, PAGES).unwrap(),
    }
}

pub(crate) fn credential(uid: u32, gid: u32, gids: &[u32]) -> Vec<u8> {
    let user = AuthSys { stamp: 1, machine_name: b"test", uid, gid, gids: Gids::new(gids).unwrap() };
    let mut body = vec![0; AuthSys::BODY_LEN_MAX];
    let mut writer = Writer::new(&mut body);
    writer.value(&user).unwrap();
    let len = writer.position();
    body.truncate(len);
    body
}

/// What its rpcbind tells: NFS over RDMA and TCP, NLM over TCP of both kinds.
fn registered() -> Vec<Registered> {
    let at = |program, version, netid, address: &str| {
        let address = address.parse().unwrap();
        Registered { program, version, netid, address }
    };
    vec![
        at(100_003, 3, netid::RDMA, "0.0.0.0:20049"),
        at(100_003, 3, netid::TCP, "0.0.0.0:2049"),
        at(100_021, 4, netid::TCP, "192.0.2.9:4045"),
        at(100_021, 4, netid::TCP6, "[::]:4045"),
    ]
}

impl Pair {
    /// A server of these exports, and a client that has mounted the first as root.
    pub(crate) fn new(exports: &[&str]) -> Pair {
        Pair::with(exports, 1, FaultPlan::default())
    }

    pub(crate) fn with(exports: &[&str], seed: u64, plan: FaultPlan) -> Pair {
        Pair::with_locking(exports, seed, plan, LockingConfig::default(), Recovered::nothing())
    }

    pub(crate) fn with_locking(
        exports: &[&str],
        seed: u64,
        plan: FaultPlan,
        locking: LockingConfig,
        recovered: Recovered,
    ) -> Pair {
        Pair::of(exports, seed, plan, (locking, recovered), |index, pool| {
            let config = MemoryConfig {
                fsid: index as u64 + 1,
                data_len_max: (PAGES as u64 - 600) * PAGE as u64,
                objects_max: 10_000,
                names_max: 20_000,
                root: RootAttributes { mode: 0o755, uid: 0, gid: 0 },
            };
            MemoryStore::new(&config, pool.clone(), Time::default()).unwrap().into()
        })
    }

    /// The same, of the stores that `open` makes, which take their buffers from the pool that it gets.
    pub(crate) fn of(
        exports: &[&str],
        seed: u64,
        plan: FaultPlan,
        (locking, recovered): (LockingConfig, Recovered),
        open: impl Fn(usize, &Pool) -> AnyStore,
    ) -> Pair {
        let world = World::new(seed, plan);
        let config = EngineConfig { connections_max: 4, receives_max: 256, ..EngineConfig::default() };
        let mut provider = world.provider("server");
        let server_pools = pools(&mut provider, &config);
        let shares = exports
            .iter()
            .enumerate()
            .map(|(index, text)| (text.parse::<Export>().unwrap(), open(index, &server_pools.payload)));
        let exports = Exports::new(shares.collect(), server_pools.payload.clone()).unwrap();
        let locking = Locking::new(locking, recovered, Box::new(NoCallOut::default()));
        let locking = Rc::new(RefCell::new(locking));
        let time = TimeOfDay::Offset(Duration::from_secs(1_000_000));
        let services =
            services_with_locks(exports, time, locking.clone(), Rc::new(RefCell::new(registered())));
        let mut server = Engine::new(provider, services, server_pools, config, 1).unwrap();
        server.listen("here").unwrap();

        let mut provider = world.provider("client");
        let client_pools = pools(&mut provider, &config);
        let mut client = Engine::new(provider, (), client_pools, config, 2).unwrap();
        client.poll(world.now());
        let connection = client.connect("here").unwrap();
        let credential = Some(credential(0, 0, &[]));
        let mut pair = Pair { world, client, server, connection, credential, root: Vec::new(), locking };
        let event = pair.until(|pair| pair.client.connection_event());
        assert_eq!(event, ConnectionEvent::Established { connection });
        pair.root = pair.mnt(b"/data").unwrap();
        pair
    }

    /// Lets time go by until `found` is.
    pub(crate) fn until<T>(&mut self, mut found: impl FnMut(&mut Pair) -> Option<T>) -> T {
        for _ in 0..100_000 {
            let now = self.world.now();
            let work = self.client.poll(now) + self.server.poll(now);
            if let Some(found) = found(self) {
                return found;
            }
            if work == 0 {
                let timer = self.client.next_timeout().into_iter().chain(self.server.next_timeout()).min();
                assert!(self.world.advance_before(timer), "nothing will ever happen again");
            }
        }
        panic!("too many passes")
    }

    /// Begins a Call, as soon as that is possible.
    pub(crate) fn begin<O: Operation>(&mut self, operation: &O, mut chunks: Chunks, user: u64) {
        self.until(|pair| {
            let credentials = pair.credential.as_deref().map_or(Credentials::None, Credentials::Sys);
            let target = Target { connection: pair.connection, credentials, timeout: TIMEOUT };
            match target.begin(&mut pair.client, operation, &mut chunks, user) {
                Ok(_) => Some(()),
                Err(CallRefused::NoCredit | CallRefused::NoMemory | CallRefused::FabricBusy) => None,
                Err(refused) => panic!("{refused}"),
            }
        });
    }

    /// Makes one Call.
    pub(crate) fn call<O: Operation>(&mut self, operation: &O, chunks: Chunks) -> Finished {
        self.begin(operation, chunks, 42);
        let completed = self.until(|pair| pair.client.completed());
        assert_eq!(completed.user, 42);
        Finished::new(completed)
    }

    /// Makes a Call without chunks, and gives its results to `look`.
    pub(crate) fn ask<O: Operation, R>(&mut self, operation: O, look: impl FnOnce(O::Reply<'_>) -> R) -> R {
        let finished = self.call(&operation, Chunks::default());
        look(finished.reply::<O>().unwrap())
    }

    pub(crate) fn mnt(&mut self, path: &[u8]) -> Result<Vec<u8>, stag_wire::mount3::Status> {
        let operation = stag_nfs::client::Mnt(stag_wire::mount3::PathArguments { path: Name(path) });
        let finished = self.call(&operation, Chunks::default());
        finished.reply::<stag_nfs::client::Mnt<'_>>().unwrap().map(|ok| ok.handle.0.to_vec())
    }

    pub(crate) fn create(&mut self, directory: &[u8], name: &[u8]) -> Vec<u8> {
        let place = DirectoryName { directory: Handle(directory), name: Name(name) };
        let how = CreateHow::Guarded(SetAttributes::default());
        self.ask(CreateArguments { place, how }, |reply| reply.unwrap().object.unwrap().0.to_vec())
    }
}

/// Whatever a test did: nobody broke the fabric's rules.
impl Drop for Pair {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.world.violations(), Default::default());
        }
    }
}
