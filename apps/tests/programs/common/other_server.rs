//! A server of NFS in a thread of the test, which is not as ours: it answers some Calls in its own way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use stag_fabric::{Provider, Shm, ShmConfig};
use stag_nfs::export::Export;
use stag_nfs::server::{ExportTable, Mount, Nfs, Nfsacl, TimeOfDay, services};
use stag_rpc::{Call, Engine, EngineConfig, Lookup, Memory, Outcome, Reply, Services, Token};
use stag_runtime::{Clock, Poller};
use stag_stores::memory::{MemoryConfig, MemoryStore, RootAttributes};
use stag_wire::nfs3::{self, Procedure as Nfs3, Status};
use stag_wire::xdr::{Overflow, Writer};

use crate::common::unique;

/// What a Call of NFS is answered with.
pub(crate) enum Answer {
    /// What a server of ours answers.
    Right,
    /// This failure, without attributes.
    Status(Status),
    /// By READDIRPLUS: these names, without handles and attributes.
    Names(&'static [&'static str]),
}

type Rule = dyn FnMut(Nfs3, &Call<'_>) -> Answer + Send;

/// The server. It has one export, `/data`, in memory, where root is root.
pub(crate) struct OtherServer {
    pub(crate) url: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl OtherServer {
    /// Starts it; `rule` says how it answers.
    pub(crate) fn start(rule: impl FnMut(Nfs3, &Call<'_>) -> Answer + Send + 'static) -> OtherServer {
        OtherServer::with_export("/data", rule)
    }

    /// The same with an export of that path.
    pub(crate) fn with_export(
        path: &str,
        rule: impl FnMut(Nfs3, &Call<'_>) -> Answer + Send + 'static,
    ) -> OtherServer {
        let (name, stop) = (unique("other"), Arc::new(AtomicBool::new(false)));
        let url = format!("shm://{name}");
        let ready = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let (stop, ready, path) = (Arc::clone(&stop), Arc::clone(&ready), path.to_owned());
            move || serve(&name, &path, Box::new(rule), &ready, &stop)
        });
        while !ready.load(Ordering::Acquire) {
            assert!(!thread.is_finished(), "the server ended");
            std::thread::yield_now();
        }
        OtherServer { url, stop, thread: Some(thread) }
    }

    /// The URL of a file.
    pub(crate) fn at(&self, path: &str) -> String {
        format!("{}/{path}", self.url)
    }
}

impl Drop for OtherServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the server panicked");
        }
    }
}

fn serve(name: &str, path: &str, rule: Box<Rule>, ready: &AtomicBool, stop: &AtomicBool) {
    let config = EngineConfig::default();
    let memory = Memory::new(&config, 32 << 20).unwrap();
    let mut shm = Shm::open(ShmConfig { may_sleep: true, ..ShmConfig::default() }).unwrap();
    shm.register(&memory.arena).unwrap();
    let clock = Clock::start_system();
    let payload = memory.pools.payload.clone();
    let store = MemoryConfig {
        fsid: 1,
        data_len_max: 16 << 20,
        objects_max: 10_000,
        names_max: 10_000,
        root: RootAttributes { mode: 0o777, uid: 0, gid: 0 },
    };
    let store = MemoryStore::new(&store, payload.clone(), stag_vfs::Timestamp::default()).unwrap();
    let export = Export { root_squash: false, ..Export::new(path) };
    let exports = ExportTable::new(vec![(export, Box::new(store))], payload).unwrap();
    let time = TimeOfDay::System(stag_runtime::WallClock::new(clock.now()));
    let services = Other { services: services(exports, time), rule };
    let mut engine = Engine::new(shm, services, memory.pools, config, 1).unwrap();
    engine.listen(name).unwrap();
    ready.store(true, Ordering::Release);
    while !stop.load(Ordering::Acquire) {
        let now = clock.now();
        if engine.poll(now) == 0 {
            stag_runtime::sleep(&mut [&mut engine], now, now + Duration::from_millis(5));
        }
    }
}

/// The programs of ours, with the rule before them.
struct Other {
    services: (Nfs<MemoryStore>, Mount<MemoryStore>, Nfsacl<MemoryStore>),
    rule: Box<Rule>,
}

impl Services for Other {
    fn lookup(&self, program: u32, version: u32, procedure: u32) -> Lookup {
        self.services.lookup(program, version, procedure)
    }

    fn call(&mut self, service: usize, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        let procedure = Nfs3::from_number(call.procedure).filter(|_| call.program == nfs3::PROGRAM);
        let answer = match procedure {
            Some(Nfs3::Null) | None => Answer::Right,
            Some(procedure) => (self.rule)(procedure, call),
        };
        match (answer, procedure) {
            (Answer::Right, _) | (_, None) => return self.services.call(service, call, reply),
            (Answer::Status(status), Some(procedure)) => {
                reply.success(|writer| {
                    writer.u32(status.number())?;
                    (0..words_of_failure(procedure)).try_for_each(|_| writer.u32(0))
                });
            }
            (Answer::Names(names), _) => reply.success(|writer| list(writer, names)),
        }
        Outcome::Done
    }

    fn poll_later(&mut self, now: Duration) -> Option<(usize, Token)> {
        self.services.poll_later(now)
    }

    fn finish(&mut self, service: usize, token: Token, reply: &mut Reply<'_>) {
        self.services.finish(service, token, reply);
    }

    fn abandoned(&mut self, service: usize, token: Token) {
        self.services.abandoned(service, token);
    }
}

/// Words of a failure that say that there are no attributes.
fn words_of_failure(procedure: Nfs3) -> usize {
    match procedure {
        Nfs3::Null | Nfs3::Getattr => 0,
        Nfs3::Setattr
        | Nfs3::Write
        | Nfs3::Create
        | Nfs3::Mkdir
        | Nfs3::Symlink
        | Nfs3::Mknod
        | Nfs3::Remove
        | Nfs3::Rmdir
        | Nfs3::Commit => 2,
        Nfs3::Link => 3,
        Nfs3::Rename => 4,
        _ => 1,
    }
}

/// READDIRPLUS3resok of all of a directory.
fn list(writer: &mut Writer<'_>, names: &[&str]) -> Result<(), Overflow> {
    // Status, no attributes, verifier.
    [0, 0, 0, 0].into_iter().try_for_each(|word| writer.u32(word))?;
    for (index, name) in names.iter().enumerate() {
        writer.bool(true)?;
        writer.u64(1000 + index as u64)?;
        writer.opaque(name.as_bytes())?;
        writer.u64(1 + index as u64)?;
        writer.bool(false)?;
        writer.bool(false)?;
    }
    writer.bool(false)?;
    writer.bool(true)
}
