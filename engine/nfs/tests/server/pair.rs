//! A client and a server, and the world between them. With [`IS_CARRIED`](super::IS_CARRIED) the server is a group of two engines:
//! the client is connected to one of them, and all files are at the other.

#[path = "callee.rs"]
#[allow(dead_code, reason = "not every setting has the tests that call back")]
pub(crate) mod callee;

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use stag_fabric::Provider;
use stag_fabric::sim::{FaultPlan, Sim, World};
use stag_memory::{Arena, ArenaConfig, Budget, PageChoice, PageSize, Pool};
use stag_nfs::callout::NoCallOut;
use stag_nfs::client::{FinishedCall, Operation, Target};
use stag_nfs::export::{Client, ClientRule, Export, RateLimits};
use stag_nfs::handle::HandleKey;
use stag_nfs::known_clients::KnownClients;
use stag_nfs::server::{
    Config4, Elsewhere, ExportTable, ExportsError, Locking, LockingConfig, Mount, Nfs, Nfs4, Nfsacl, Nlm,
    Nsm, Registered, Removal, Rpcbind, SharedLocking, SharedSessions, TRANSFER_LEN_MAX, TimeOfDay,
    add_export, change_export, remove_export, services_with_locks,
};
use stag_nfs::state::Recovered;
use stag_rpc::{
    CARRIED_CALLS_MAX, CallMesh, CallRefused, Chunks, ConnectionEvent, ConnectionId, Credentials, Engine,
    EngineConfig, Pools,
};
use stag_runtime::{Poller, ReactorId};
use stag_stores::memory::{MemoryConfig, MemoryStore, MemoryStoreStatistics, RootAttributes};
use stag_vfs::{Store, Timestamp, Usage};
use stag_wire::nfs3::{CreateArguments, CreateHow, DirectoryName, Handle, Name, SetAttributes};
use stag_wire::rpc::{AuthSys, Gids};
use stag_wire::rpcbind::netid;
use stag_wire::xdr::Writer;

use callee::Callee;

pub(crate) const PAGE: usize = 4096;
/// Pages of each side.
const PAGES: usize = 2048;
/// Pages of an engine without files.
const ENTRY_PAGES: usize = 640;
const TIMEOUT: Duration = Duration::from_secs(10);

/// Makes a store of one in memory, by the seed of a test that has one; and gives that back.
pub(crate) type Stores = (fn(MemoryStore, Option<u64>) -> Box<dyn Store>, fn(&dyn Any) -> &MemoryStore);

/// It is the store itself.
#[allow(dead_code, reason = "not where there are others")]
pub(crate) const PLAIN: Stores =
    (|store, _| Box::new(store), |store| store.downcast_ref().expect("a store in memory"));

type Files = dyn Store;
pub(crate) type Server =
    Engine<Sim, (Nfs<Files>, Nfs4<Files>, Mount<Files>, Nfsacl<Files>, Nlm<Files>, Nsm, Rpcbind)>;

pub(crate) struct Pair {
    pub(crate) world: World,
    /// With a program for callbacks, if the test gives it one.
    pub(crate) client: Engine<Sim, Option<(Callee,)>>,
    /// Has the files.
    pub(crate) server: Server,
    /// Has the connection, if that is not the same.
    entry: Option<Server>,
    pub(crate) connection: ConnectionId,
    /// The credential: an AUTH_SYS body, or none.
    pub(crate) credential: Option<Vec<u8>>,
    /// The root of the first export.
    pub(crate) root: Vec<u8>,
    /// What NLM and NSM know.
    #[allow(dead_code, reason = "for the tests of locks")]
    pub(crate) locking: SharedLocking,
}

/// Splits `CLIENT:ro` and `CLIENT:rw`.
fn access(value: &str) -> (&str, Option<bool>) {
    match value.rsplit_once(':') {
        Some((client, "ro")) => (client, Some(true)),
        Some((client, "rw")) => (client, Some(false)),
        _ => (value, None),
    }
}

/// An export of a path with a few options, as `/data,ro,root_squash=no`.
fn export(text: &str) -> Export {
    let mut words = text.split(',');
    let mut export = Export::new(words.next().unwrap());
    let mut rates = [None, None];
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("ro", _) => export.read_only = true,
            ("root_squash", value) => export.root_squash = value == "yes",
            ("rate", value) => rates[0] = value.parse().ok(),
            ("client_rate", value) => rates[1] = value.parse().ok(),
            ("anonuid", value) => export.anonymous_uid = value.parse().unwrap(),
            ("anongid", value) => export.anonymous_gid = value.parse().unwrap(),
            ("uid", value) => {
                let (uid, read_only) = access(value);
                export.clients.push(ClientRule { client: Client::User(uid.parse().unwrap()), read_only });
            }
            ("client", value) => {
                let (value, read_only) = access(value);
                let network = value.split_once('/').map(|(address, bits)| Client::Network {
                    address: address.parse().unwrap(),
                    bits: bits.parse().unwrap(),
                });
                export.clients.push(ClientRule { client: network.unwrap_or(Client::Any), read_only });
            }
            (other, _) => panic!("an option that no test needs: {other}"),
        }
    }
    if let [Some(_), _] | [_, Some(_)] = rates {
        export.limits = Some(RateLimits::new(rates[0], rates[1], TRANSFER_LEN_MAX));
    }
    export
}

/// Pools, which belong to reactor number `owner`: `pages` for payload.
fn pools(provider: &mut Sim, config: &EngineConfig, owner: u8, pages: usize) -> Pools {
    // Receives of version 2 have pages of their own, beside those that a test counts on.
    let pages = pages + config.target_pages();
    let messages = Pools::messages_needed(config);
    let len = Pool::footprint(config.message_len(), messages) + Pool::footprint(PAGE, pages);
    let page = PageChoice::Size(PageSize::Base);
    let budget = Budget::new(1 << 32);
    let arena =
        Arena::on_demand(&ArenaConfig { name: "test", len, page, node: None, budget: &budget }).unwrap();
    provider.register(&arena).unwrap();
    Pools {
        messages: Pool::fixed(&arena, "messages", config.message_len(), messages).unwrap(),
        payload: Pool::runs(&arena, "payload", PAGE, pages).unwrap().owned_by(owner),
    }
}

/// Passes in turn without an event after which nothing happens any more. What one engine of a group leaves in a lane, another finds
/// in its next pass.
const IDLE_MAX: usize = if super::IS_CARRIED { 4 } else { 1 };

/// The reactor with the connection, where that is not the one with the files.
const ENTRY: u8 = 0;

/// The reactor with the files.
const HOME: u8 = if super::IS_CARRIED { 1 } else { 0 };

/// The file system of an export `/far` that the reactor with the files believes the other one to have.
#[allow(dead_code, reason = "not every setting has the tests that go there")]
pub(crate) const FAR_FSID: u64 = 99;

fn reactor(number: u8) -> ReactorId {
    ReactorId::new(number.into()).unwrap()
}

pub(crate) fn time_of_day() -> TimeOfDay {
    TimeOfDay::Offset(Duration::from_secs(1_000_000))
}

fn locking(config: LockingConfig, recovered: Recovered, (known, home): (KnownClients, u8)) -> SharedLocking {
    let locking = Locking::new(config, recovered, Box::new(NoCallOut::default()));
    Rc::new(RefCell::new(locking.with_clients(known, home)))
}

/// The key of handles of all engines of a group.
pub(crate) fn key() -> HandleKey {
    HandleKey::from_secret([7; 16])
}

/// Makes `server`, which has the files of `elsewhere`, and an engine without files one server. Returns the other engine.
fn join(
    world: &World,
    server: &mut Server,
    elsewhere: Vec<Elsewhere>,
    config: EngineConfig,
    (locking, version4): (SharedLocking, (Config4, SharedSessions)),
) -> Server {
    let mut provider = world.provider("server");
    let pools = pools(&mut provider, &config, ENTRY, ENTRY_PAGES);
    let arena = pools.payload.arena().clone();
    let exports = ExportTable::new(Vec::new(), pools.payload.clone()).unwrap();
    let exports = exports.in_group(elsewhere, reactor(ENTRY)).unwrap().with_key(key());
    let registry = Rc::new(RefCell::new(registered()));
    let services = services_with_locks(exports, time_of_day(), locking, registry, version4);
    let mut entry = Engine::new(provider, services, pools, config, 3).unwrap();
    // Each sends what lies in the other's memory.
    entry.provider_mut().register(server.pools().payload.arena()).unwrap();
    server.provider_mut().register(&arena).unwrap();
    let mesh = CallMesh::new(2, CARRIED_CALLS_MAX);
    for (engine, number) in [(&mut entry, ENTRY), (server, HOME)] {
        engine.join(mesh.take(reactor(number)).unwrap(), None);
    }
    entry
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

/// Makes the store of an export in memory.
fn in_memory(index: usize, pool: &Pool, seed: Option<u64>) -> Box<dyn Store> {
    let config = MemoryConfig {
        fsid: index as u64 + 1,
        data_len_max: (PAGES as u64 - 600) * PAGE as u64,
        objects_max: 10_000,
        names_max: 20_000,
        root: RootAttributes { mode: 0o755, uid: 0, gid: 0 },
    };
    (super::STORES.0)(MemoryStore::new(&config, pool.clone(), Timestamp::default()).unwrap(), seed)
}

impl Pair {
    /// A server of these exports, and a client that has mounted the first as root.
    pub(crate) fn new(exports: &[&str]) -> Pair {
        let locking = LockingConfig::default();
        Pair::with_locking(exports, 1, FaultPlan::default(), locking, Recovered::nothing())
    }

    /// The same, for a sweep: all that is left to chance is in the seed.
    #[allow(dead_code, reason = "not every setting has the tests that use it")]
    pub(crate) fn of_seed(exports: &[&str], seed: u64) -> Pair {
        let locking = (LockingConfig::default(), Recovered::nothing());
        let open = |index, pool: &Pool| in_memory(index, pool, Some(seed));
        Pair::of(exports, seed, FaultPlan::default(), locking, open)
    }

    pub(crate) fn with_locking(
        exports: &[&str],
        seed: u64,
        plan: FaultPlan,
        locking: LockingConfig,
        recovered: Recovered,
    ) -> Pair {
        Pair::of(exports, seed, plan, (locking, recovered), |index, pool| in_memory(index, pool, None))
    }

    /// A server that calls its clients back, and a client that takes such Calls.
    #[allow(dead_code, reason = "not every setting has the tests that use it")]
    pub(crate) fn both_ways(exports: &[&str]) -> Pair {
        let locking = (LockingConfig::default(), Recovered::nothing());
        let open = |index, pool: &Pool| in_memory(index, pool, None);
        let mut pair = Pair::of_engines(exports, 1, FaultPlan::default(), locking, 2, open);
        *pair.client.services_mut() = Some((Callee::new(),));
        pair
    }

    /// The same, of the stores that `open` makes, which take their buffers from the pool that it gets.
    pub(crate) fn of(
        exports: &[&str],
        seed: u64,
        plan: FaultPlan,
        (locks, recovered): (LockingConfig, Recovered),
        open: impl Fn(usize, &Pool) -> Box<dyn Store>,
    ) -> Pair {
        Pair::of_engines(exports, seed, plan, (locks, recovered), 0, open)
    }

    /// The same, with engines that have these reverse credits.
    fn of_engines(
        exports: &[&str],
        seed: u64,
        plan: FaultPlan,
        (locks, recovered): (LockingConfig, Recovered),
        reverse_credits: u32,
        open: impl Fn(usize, &Pool) -> Box<dyn Store>,
    ) -> Pair {
        let world = World::new(seed, plan);
        let config = EngineConfig {
            connections_max: 4,
            receives_max: 256,
            reverse_credits,
            protocol: super::PROTOCOL,
            ..EngineConfig::default()
        };
        let mut provider = world.provider("server");
        let server_pools = pools(&mut provider, &config, HOME, PAGES);
        let shares: Vec<_> = exports
            .iter()
            .enumerate()
            .map(|(index, text)| (export(text), open(index, &server_pools.payload)))
            .collect();
        let elsewhere = shares.iter().map(|(export, store)| Elsewhere {
            export: export.clone(),
            fsid: store.profile().fsid,
            reactor: reactor(HOME),
        });
        let elsewhere: Vec<_> = elsewhere.collect();
        let mut exports = ExportTable::new(shares, server_pools.payload.clone()).unwrap();
        if super::IS_CARRIED {
            // Only a COMPOUND that goes to several exports can tell: no such file is asked for.
            let far = Elsewhere { export: export("/far"), fsid: FAR_FSID, reactor: reactor(ENTRY) };
            exports = exports.in_group(vec![far], reactor(ENTRY)).unwrap().with_key(key());
        }
        let mut recovered = recovered.split(2).into_iter();
        let known = KnownClients::nothing(1);
        let mut next_locking =
            |home| locking(locks.clone(), recovered.next().unwrap(), (known.clone(), home));
        let (locking, entry_locking) = (next_locking(HOME), next_locking(ENTRY));
        let registry = Rc::new(RefCell::new(registered()));
        let version4 = (Config4 { reverse_credits, ..Config4::new(1) }, SharedSessions::default());
        let entry_made_of = (entry_locking, version4.clone());
        let services = services_with_locks(exports, time_of_day(), locking.clone(), registry, version4);
        let mut server = Engine::new(provider, services, server_pools, config, 1).unwrap();
        let mut entry =
            super::IS_CARRIED.then(|| join(&world, &mut server, elsewhere, config, entry_made_of));
        entry.as_mut().unwrap_or(&mut server).listen("here").unwrap();

        let mut provider = world.provider("client");
        let client_pools = pools(&mut provider, &config, 0, PAGES);
        let mut client = Engine::new(provider, None, client_pools, config, 2).unwrap();
        client.poll(world.now());
        let connection = client.connect("here").unwrap();
        let credential = Some(credential(0, 0, &[]));
        let mut pair =
            Pair { world, client, server, entry, connection, credential, root: Vec::new(), locking };
        let event = pair.until(|pair| pair.client.connection_event());
        assert_eq!(event, ConnectionEvent::Established { connection });
        pair.root = pair.mnt(b"/data").unwrap();
        pair
    }

    /// One pass of the server's engines.
    pub(crate) fn poll_server(&mut self, now: Duration) -> usize {
        self.server.poll(now) + self.entry.as_mut().map_or(0, |entry| entry.poll(now))
    }

    /// What the first export's store, which is in memory, did with data.
    pub(crate) fn memory_statistics(&mut self) -> MemoryStoreStatistics {
        let exports = self.server.services_mut().0.exports().borrow();
        (super::STORES.1)(exports.shares()[0].volume().store()).statistics()
    }

    /// Space of the first export's store, which is in memory.
    pub(crate) fn memory_usage(&mut self) -> Usage {
        let exports = self.server.services_mut().0.exports().borrow();
        (super::STORES.1)(exports.shares()[0].volume().store()).usage().unwrap()
    }

    /// Transfers that wait for the limits of exports.
    #[allow(dead_code, reason = "not every setting has the tests that use it")]
    pub(crate) fn waiting(&mut self) -> u64 {
        let exports = self.server.services_mut().0.exports().borrow();
        exports.shares().iter().filter_map(|share| share.rate_waits()).map(|waits| waits.waiting).sum()
    }

    /// Begins to stop the server's engines.
    #[allow(dead_code, reason = "not every setting has the tests that use it")]
    pub(crate) fn stop_server(&mut self, now: Duration) {
        self.server.stop(now);
        if let Some(entry) = &mut self.entry {
            entry.stop(now);
        }
    }

    /// Stops serving an export, at each of the server's engines.
    #[allow(dead_code, reason = "not every setting has the tests that use it")]
    pub(crate) fn remove_export(&mut self, path: &str) -> Removal {
        if let Some(entry) = &mut self.entry {
            remove_export(entry.services_mut(), path);
        }
        remove_export(self.server.services_mut(), path)
    }

    /// Serves one more export in memory, at the engine that has the files. `index` is that of its store.
    #[allow(dead_code, reason = "not every setting has the tests that use it")]
    pub(crate) fn add_export(&mut self, text: &str, index: usize) -> Result<(), ExportsError> {
        let store = in_memory(index, &self.server.pools().payload, None);
        add_export(self.server.services_mut(), export(text), store)
    }

    /// Serves an export by other rules, as `/data,ro`, at each of the server's engines.
    #[allow(dead_code, reason = "not every setting has the tests that use it")]
    pub(crate) fn change_export(&mut self, text: &str) -> bool {
        let export = export(text);
        let at_entry = self.entry.as_mut().is_none_or(|entry| change_export(entry.services_mut(), &export));
        change_export(self.server.services_mut(), &export) && at_entry
    }

    /// The memory that a WRITE's data is placed in.
    #[allow(dead_code, reason = "not every setting has the tests that use it")]
    pub(crate) fn entry_pool(&self) -> Pool {
        self.entry.as_ref().unwrap_or(&self.server).pools().payload.clone()
    }

    fn next_timeout(&self) -> Option<Duration> {
        let servers = [Some(&self.server), self.entry.as_ref()].into_iter().flatten();
        servers.map(Poller::next_timeout).chain([self.client.next_timeout()]).flatten().min()
    }

    /// Lets time go by until `found` is.
    pub(crate) fn until<T>(&mut self, mut found: impl FnMut(&mut Pair) -> Option<T>) -> T {
        let mut idle = 0;
        for _ in 0..100_000 {
            let now = self.world.now();
            let work = self.client.poll(now) + self.poll_server(now);
            if let Some(found) = found(self) {
                return found;
            }
            idle = if work > 0 || self.world.advance_before(self.next_timeout()) { 0 } else { idle + 1 };
            assert!(idle < IDLE_MAX, "nothing will ever happen again");
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

    /// Octets of data that a WRITE to this file may carry inline.
    pub(crate) fn inline_write_len_max(&self, file: &[u8]) -> usize {
        let credentials = self.credential.as_deref().map_or(Credentials::None, Credentials::Sys);
        let target = Target { connection: self.connection, credentials, timeout: TIMEOUT };
        target.inline_write_len_max(&self.client, file.len())
    }

    /// Makes one Call.
    pub(crate) fn call<O: Operation>(&mut self, operation: &O, chunks: Chunks) -> FinishedCall {
        self.begin(operation, chunks, 42);
        let completed = self.until(|pair| pair.client.completed());
        assert_eq!(completed.user, 42);
        FinishedCall::new(completed)
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

/// Whatever a test did: neither end broke the fabric's rules.
impl Drop for Pair {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            if let Some(entry) = &self.entry {
                // All but NULL, and what rpcbind says of this reactor.
                assert!(entry.statistics().calls_carried > 0);
            }
            assert_eq!(self.world.violations(), Default::default());
        }
    }
}
