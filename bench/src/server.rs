//! The server that a measurement starts itself: NFS over a memory store, and the echo program, on its own
//! pinned thread and in its own reactor.

use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use stag_memory::Pool;
use stag_nfs::export::Export;
use stag_nfs::server::{ExportTable, Mount, Nfs, TimeOfDay, services};
use stag_rpc::{
    Call, Engine, EngineConfig, Memory, Outcome, PAGE_LEN, Procedure, ProtocolChoice, Reply, Service,
    Statistics,
};
use stag_runtime::{Clock, CoreId, PollMode, Reactor, ReactorConfig, StopFlag, WallClock};
use stag_stores::memory::{MemoryConfig, MemoryStore, RootAttributes};
use stag_vfs::Store;

use crate::cpu::{ServerMeter, ThreadClock};
use crate::disturbance::Contention;
use crate::load;
use crate::opened::Opened;
use crate::scenario::{MeasuredOperation, Scenario};

/// Number of the echo program, from the range that RFC 5531 leaves to users.
pub const ECHO_PROGRAM: u32 = 0x2000_7a61;

/// The export that holds the measured files.
pub const EXPORT: &str = "/perf";

/// Replies that one connection exposes at once, at most: each pins a message buffer.
const EXPOSED_MAX: u32 = 64;

/// Octets of the longest Reply that the client reads of the server's memory.
const PULL_LEN_MAX: u32 = 2 << 20;

/// How long all connections together may take to be set up.
const SET_UP_TIMEOUT: Duration = Duration::from_secs(120);

/// What a server came to.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// What it counted.
    pub statistics: Statistics,
    /// Buffers that it did not get back.
    pub outstanding: usize,
    /// What its thread waited for its core.
    pub contention: Contention,
}

/// What a server says when it listens.
struct Ready {
    address: String,
    notes: Vec<String>,
    meter: ServerMeter,
}

/// A running server. Ends when it is dropped.
pub struct Server {
    /// What to connect to.
    pub address: String,
    /// What it stepped down from, if anything.
    pub notes: Vec<String>,
    /// Tells the time that it uses; `None` before it is ready.
    pub meter: Option<ServerMeter>,
    stop: StopFlag,
    thread: Option<JoinHandle<Result<Served>>>,
}

impl Server {
    /// Starts a server for `scenario`, and waits until it listens.
    ///
    /// # Errors
    ///
    /// When it cannot get its memory, core or address.
    pub fn start<P: Opened>(scenario: &Scenario, round: usize) -> Result<Server> {
        let stop = StopFlag::new()?;
        let (ready, started) = mpsc::channel();
        let thread = {
            let (scenario, stop) = (scenario.clone(), stop.clone());
            thread::Builder::new()
                .name("stag-perf-server".into())
                .spawn(move || serve::<P>(&scenario, round, &stop, &ready))?
        };
        let mut server =
            Server { address: String::new(), notes: Vec::new(), meter: None, stop, thread: Some(thread) };
        match started.recv() {
            Ok(Ready { address, notes, meter }) => {
                (server.address, server.notes, server.meter) = (address, notes, Some(meter));
                Ok(server)
            }
            // It ended before it was ready: its result says why.
            Err(_) => Err(server.finish().err().unwrap_or_else(|| anyhow!("the server ended at once"))),
        }
    }

    /// Stops the server, and returns what it came to.
    ///
    /// # Errors
    ///
    /// When it had failed.
    pub fn finish(&mut self) -> Result<Served> {
        self.stop.request();
        let thread = self.thread.take().context("the server was stopped before")?;
        thread.join().map_err(|_| anyhow!("the server panicked"))?
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.finish();
        }
    }
}

/// Octets of payload that a server needs for `scenario`: every file, a block for each Call outstanding, which is placed before it
/// takes a file's place, and room for the rest.
fn payload_len(scenario: &Scenario) -> usize {
    let connections = scenario.connections * scenario.client_cores().len();
    connections * (load::file_len(scenario) + scenario.depth.max(1) * scenario.block_len()) + (16 << 20)
}

/// The engine's numbers for `scenario`, at either end.
#[must_use]
pub fn engine_config(scenario: &Scenario) -> EngineConfig {
    let connections = (scenario.connections * scenario.client_cores().len()) as u32;
    // Room for a lone connection's grant to grow; one of a crowd needs no more than its depth.
    let credits = scenario.credits().max((4096 / connections.max(1)).clamp(4, 16));
    let usual = EngineConfig::default();
    // A message of several Sends takes as many credits.
    let sends = match scenario.protocol {
        ProtocolChoice::One => 1,
        _ => scenario.size.div_ceil(PAGE_LEN * usual.receive_targets as usize) as u32,
    };
    // Both ends take part in reliable reply in every mode, so that the modes differ only in which end provides
    // the memory.
    let is_exposed =
        scenario.operation == MeasuredOperation::Reply && scenario.protocol == ProtocolChoice::One;
    let exposed_replies = if is_exposed { credits.min(EXPOSED_MAX) } else { 0 };
    let credits = (credits * sends.clamp(1, scenario.continuation)).min(1024);
    EngineConfig {
        inline_threshold: scenario.inline_threshold,
        credits_max: credits,
        connections_max: connections,
        receives_max: (credits + 3) * connections,
        protocol: scenario.protocol,
        placement: scenario.placement,
        continuation: scenario.continuation,
        version2_max: connections,
        exposed_replies,
        pull_len_max: if is_exposed { PULL_LEN_MAX } else { 0 },
        // The first Call of a connection comes when all are there.
        set_up_timeout: SET_UP_TIMEOUT,
        ..usual
    }
}

fn serve<P: Opened>(
    scenario: &Scenario,
    round: usize,
    stop: &StopFlag,
    ready: &mpsc::Sender<Ready>,
) -> Result<Served> {
    P::separate_descriptors()?;
    let mode = if scenario.may_sleep { PollMode::default() } else { PollMode::Busy };
    let clock = Clock::start();
    let core = Some(CoreId(scenario.server_core()));
    let drain_max = Duration::from_secs(2);
    let mut reactor = Reactor::new(ReactorConfig { core, mode, drain_max }, clock)?;

    let config = engine_config(scenario);
    let memory = Memory::new(&config, payload_len(scenario))?;
    let mut provider = P::open(scenario)?;
    provider.register(&memory.arena)?;

    let pages = memory.pools.payload.units() - config.target_pages();
    let data_len_max = (pages * PAGE_LEN) as u64 - (8 << 20);
    let files = config.connections_max as usize * scenario.files.max(1)
        + load::files(scenario) * scenario.client_cores().len();
    let services = programs(&memory.pools.payload, (data_len_max, files as u32), clock.now())?;
    let mut engine = Engine::new(provider, services, memory.pools.clone(), config, 1)?;
    let address = P::own_address(round);
    let listener = engine.listen(&address)?;
    let address = engine.provider().listens_at(listener, address)?;
    let meter = ServerMeter { thread: ThreadClock::of_this_thread(), reactor: reactor.statistics() };
    ready.send(Ready { address, notes: memory.arena.notes().to_vec(), meter })?;
    let _ = reactor.run(&mut engine, stop)?;
    let statistics = *engine.statistics();
    drop(engine);
    let (outstanding, contention) = (memory.ledger.outstanding(), Contention::of_this_thread());
    Ok(Served { statistics, outstanding, contention })
}

/// What the engines of this crate serve: files and the echo program, or nothing, as clients. One type, because each is a copy of the engine's code
/// for every fabric to compile.
pub(crate) type Programs = Option<(Nfs<dyn Store>, Mount<dyn Store>, Echo)>;

/// Makes the programs of a server: NFS over an empty store for this many octets and files, MOUNT, and the echo program.
///
/// # Errors
///
/// When the store cannot get its memory.
pub(crate) fn programs(payload: &Pool, (data_len_max, files): (u64, u32), now: Duration) -> Result<Programs> {
    let mut time = TimeOfDay::System(WallClock::new(now));
    let config = MemoryConfig {
        fsid: 1,
        data_len_max,
        objects_max: 4096 + files,
        names_max: 4096 + files,
        root: RootAttributes { mode: 0o777, uid: 0, gid: 0 },
    };
    let store = MemoryStore::new(&config, payload.clone(), time.at(now))?;
    let export = Export { root_squash: false, ..Export::new(EXPORT) };
    let exports = ExportTable::new(vec![(export, Box::new(store) as Box<dyn Store>)], payload.clone())?;
    Ok(serving(exports, time))
}

/// The programs of a server of these exports.
pub(crate) fn serving(exports: ExportTable<dyn Store>, time: TimeOfDay) -> Programs {
    let (nfs, mount, _) = services(exports, time);
    Some((nfs, mount, Echo { results: Vec::new() }))
}

/// The echo program, version 1: procedure 1 returns its arguments, procedure 2 as many octets as its argument says.
pub(crate) struct Echo {
    /// What procedure 2 returns the start of; made when it is first called.
    results: Vec<u8>,
}

static ECHO: Procedure = Procedure::plain("ECHO");

static RESULTS: Procedure = Procedure::plain("RESULTS");

/// Octets of results at most.
const RESULTS_LEN_MAX: usize = 1 << 20;

impl Service for Echo {
    fn program(&self) -> u32 {
        ECHO_PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (1, 1)
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<&'static Procedure> {
        match procedure {
            1 => Some(&ECHO),
            2 => Some(&RESULTS),
            _ => None,
        }
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        if call.procedure == 2 {
            match call.arguments().u32() {
                Ok(len) if len as usize <= RESULTS_LEN_MAX => {
                    self.results.resize(RESULTS_LEN_MAX, 0x5a);
                    let results = &self.results[..len as usize];
                    reply.success(|writer| writer.opaque(results));
                }
                _ => reply.garbage_arguments(),
            }
            return Outcome::Done;
        }
        match call.arguments().opaque(1 << 20) {
            Ok(octets) => reply.success(|writer| writer.opaque(octets)),
            Err(_) => reply.garbage_arguments(),
        }
        Outcome::Done
    }
}
