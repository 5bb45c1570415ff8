//! The gain of a second core, on a machine that has no cores to spare for clients: on each core a client and a server take turns.
//!
//! A *pair* is a client and a server in one thread on one core. The servers are one group, each with an export in memory, and
//! each client calls its own server only. The place of its files decides which Calls are carried: none, those of every other
//! connection, or all. Several pairs on several cores are compared with one pair on one core, in the same round: with twice the
//! cores, twice the Calls would be ideal.
//!
//! With a directory, the same is measured of files on disk, too. Every server has a store of the directory, so nothing is
//! carried.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use stag_disk::{Disk, DiskConfig};
use stag_fabric::{Provider, Shm};
use stag_memory::{Arena, Pool};
use stag_nfs::export::Export;
use stag_nfs::server::{Elsewhere, ExportTable, TimeOfDay};
use stag_rpc::{CARRIED_CALLS_MAX, CallMesh, Engine, Memory};
use stag_runtime::{Clock, Poller, ReactorId, WallClock};
use stag_stores::directory::{DirectoryConfig, DirectoryStore, WriteVerifier, stable_fsid};
use stag_stores::memory::{MemoryConfig, MemoryStore, RootAttributes};
use stag_vfs::Store;

use crate::disturbance::{CoreTime, Disturbance};
use crate::engine_config::engine_config;
use crate::limits;
use crate::load::{self, Measured, file_len};
use crate::opened::Opened;
use crate::pin::pin;
use crate::programs::{Programs, serving};
use crate::scenario::Scenario;
use crate::spread::Spread;

/// Connections of each client: every other one has its files at another core, where half of the Calls are carried.
const CONNECTIONS: usize = 2;

/// How long a stage of a round may take beside what it measures.
const STAGE_TIME_MAX: Duration = Duration::from_secs(20);

/// How long the copies of a round are measured.
const COPY_TIME: Duration = Duration::from_millis(50);

/// Octets that READs of a directory take of a server's memory at once.
const READING_MAX: usize = 8 << 20;

/// Rounds of the bare cache line's ping-pong, and of the carried round trip.
const ROUND_TRIP_TIME: Duration = Duration::from_millis(100);

/// Which Calls are carried to another core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Carried {
    /// None.
    None,
    /// Those of every other connection.
    Half,
    /// All.
    All,
}

/// What a paired measurement came to. Spreads are over rounds.
#[derive(Clone, Debug, Serialize)]
pub struct PairedFigures {
    /// What else ran meanwhile.
    pub disturbance: Disturbance,
    /// Calls a second of one pair on the first core.
    pub one_core: Spread,
    /// Of a pair on each core, by what is carried.
    pub rates: Vec<PairedRate>,
    /// Of files on disk, if they were asked for.
    pub directory: Option<DirectoryFigures>,
    /// What as many threads with memcpy gain over one, on blocks of the Calls' size.
    pub copy_gain: Spread,
    /// What a carried Call of one outstanding takes longer than one that is not, in nanoseconds; the other core only serves.
    pub carried_round_trip_ns: Spread,
    /// Round trip of a bare cache line between the first two cores, in nanoseconds.
    pub line_round_trip_ns: Spread,
    /// The first of these to the second.
    pub carried_to_line: Spread,
}

/// Calls a second of pairs on all cores.
#[derive(Clone, Debug, Serialize)]
pub struct PairedRate {
    /// What is carried.
    pub carried: Carried,
    /// Calls a second.
    pub rate: Spread,
    /// To those of one core in the same round.
    pub gain: Spread,
}

/// Calls a second of pairs with files on disk.
#[derive(Clone, Debug, Serialize)]
pub struct DirectoryFigures {
    /// Of one pair on the first core.
    pub one_core: Spread,
    /// Of a pair on each core.
    pub rate: Spread,
    /// The second to the first, in the same round.
    pub gain: Spread,
}

/// Measures pairs on `scenario.cores`, over shared memory; with a `directory` also of files in a directory that is made there for
/// the time. `progress` is called after each round.
///
/// # Errors
///
/// When there are fewer than two cores, or a Call fails.
pub fn run(
    scenario: &Scenario,
    directory: Option<&Path>,
    mut progress: impl FnMut(usize),
) -> Result<PairedFigures> {
    let cores = &scenario.cores[..];
    let (mut disturbance, begin) = (Disturbance::before(cores), CoreTime::of(cores));
    let [first, second, ..] = *cores else { bail!("pairs take two cores at least") };
    let kinds = [Carried::None, Carried::Half, Carried::All];
    let (mut one, mut many) = (Vec::new(), [(); 3].map(|()| Vec::new()));
    let (mut copies, mut carried, mut line) = (Vec::new(), Vec::new(), Vec::new());
    let load = Load { scenario: paired(scenario, scenario.depth), is_alone: false, directory: None };
    let single = Scenario { duration: ROUND_TRIP_TIME, ..paired(scenario, 1) };
    let single = Load { scenario: Scenario { connections: 1, ..single }, is_alone: true, directory: None };
    let directory = directory.map(TemporaryDirectory::new).transpose()?;
    let on_disk = directory.as_ref().map(|directory| Load {
        scenario: load.scenario.clone(),
        is_alone: false,
        directory: Some(directory.0.clone()),
    });
    let (mut one_on_disk, mut many_on_disk) = (Vec::new(), Vec::new());
    for round in 0..scenario.repeat.max(1) {
        let mut measured = |load: &Load, cores: &[usize], carried| {
            let found = round_of(load, cores, carried)?;
            // Each core has one thread: what that waits for is another program.
            found.iter().for_each(|pair| disturbance.add(pair.contention, true));
            Ok::<_, anyhow::Error>(found)
        };
        one.push(rate(&measured(&load, &cores[..1], Carried::None)?));
        // Another order each time, so that what changes with time does not favour one.
        for turn in 0..kinds.len() {
            let kind = (round + turn) % kinds.len();
            many[kind].push(rate(&measured(&load, cores, kinds[kind])?));
        }
        if let Some(load) = &on_disk {
            one_on_disk.push(rate(&measured(load, &cores[..1], Carried::None)?));
            many_on_disk.push(rate(&measured(load, cores, Carried::None)?));
        }
        let block = scenario.size.max(4096);
        copies.push(copy_rate(cores, block) / copy_rate(&cores[..1], block));
        let here = median_latency(&measured(&single, &cores[..2], Carried::None)?);
        let there = median_latency(&measured(&single, &cores[..2], Carried::All)?);
        carried.push((there - here).max(0.0));
        line.push(2.0 * limits::ping_pong([first, second]));
        progress(round + 1);
    }
    let ratio = |of: &[f64], to: &[f64]| Spread::of(of.iter().zip(to).map(|(of, to)| of / to).collect());
    let rates = kinds.into_iter().zip(&many);
    disturbance.add_cores(begin, CoreTime::of(cores));
    Ok(PairedFigures {
        disturbance,
        rates: rates
            .map(|(carried, rate)| PairedRate {
                carried,
                rate: Spread::of(rate.clone()),
                gain: ratio(rate, &one),
            })
            .collect(),
        carried_to_line: ratio(&carried, &line),
        directory: on_disk.is_some().then(|| DirectoryFigures {
            gain: ratio(&many_on_disk, &one_on_disk),
            one_core: Spread::of(one_on_disk),
            rate: Spread::of(many_on_disk),
        }),
        one_core: Spread::of(one),
        copy_gain: Spread::of(copies),
        carried_round_trip_ns: Spread::of(carried),
        line_round_trip_ns: Spread::of(line),
    })
}

/// The scenario of one client.
fn paired(scenario: &Scenario, depth: usize) -> Scenario {
    Scenario {
        connections: CONNECTIONS,
        depth: depth.div_ceil(CONNECTIONS),
        // Of the client's engine: it has these connections only.
        cores: scenario.cores[..2].to_vec(),
        may_sleep: false,
        arrivals: None,
        interval: None,
        server: None,
        root: None,
        ..scenario.clone()
    }
}

/// What each pair does.
struct Load {
    scenario: Scenario,
    /// Only the first has a client.
    is_alone: bool,
    /// Where the files are, if not in memory.
    directory: Option<PathBuf>,
}

/// A directory that is there for as long as this is.
struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    fn new(parent: &Path) -> Result<TemporaryDirectory> {
        let place = parent.join(format!("stag-perf-{}", std::process::id()));
        fs::create_dir(&place).with_context(|| format!("make the directory {}", place.display()))?;
        Ok(TemporaryDirectory(place))
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // Clients remove their files. What a round that failed left goes, too.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What the threads of a round share.
struct Shared {
    mesh: Option<CallMesh>,
    /// Each server's memory, which all others send from.
    arenas: Mutex<Vec<Option<Arena>>>,
    /// All memory is there; all servers listen.
    barrier: Barrier,
    /// Threads that have reached each stage.
    stages: [AtomicUsize; 4],
    threads: usize,
    has_failed: AtomicBool,
    /// Of the directory that all servers have, if they have one.
    verifier: WriteVerifier,
}

impl Shared {
    /// Polls until all threads are here, or one has failed.
    fn meet(&self, stage: usize, clock: &Clock, companion: &mut load::Companion<'_>) -> Result<()> {
        self.stages[stage].fetch_add(1, Ordering::AcqRel);
        let patience = clock.now() + STAGE_TIME_MAX;
        while self.stages[stage].load(Ordering::Acquire) < self.threads {
            let now = clock.now();
            if self.has_failed.load(Ordering::Acquire) {
                bail!("another core's pair failed");
            }
            if now > patience {
                bail!("a pair on another core does not go on");
            }
            companion(now);
        }
        Ok(())
    }
}

/// Sets the flag unless all went well: others do not wait for a thread that is gone.
struct Alarm<'a>(&'a AtomicBool);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// One round of a pair on each of these cores.
fn round_of(load: &Load, cores: &[usize], carried: Carried) -> Result<Vec<Measured>> {
    let shared = Shared {
        mesh: (cores.len() > 1).then(|| CallMesh::new(cores.len(), CARRIED_CALLS_MAX)),
        arenas: Mutex::new(vec![None; cores.len()]),
        barrier: Barrier::new(cores.len()),
        stages: Default::default(),
        threads: cores.len(),
        has_failed: AtomicBool::new(false),
        verifier: WriteVerifier::default(),
    };
    let results: Vec<Result<Option<Measured>>> = thread::scope(|scope| {
        let pairs: Vec<_> = cores
            .iter()
            .enumerate()
            .map(|(index, core)| {
                let shared = &shared;
                scope.spawn(move || {
                    pin(*core);
                    let alarm = Alarm(&shared.has_failed);
                    let measured = pair(load, index, carried, shared);
                    if measured.is_ok() {
                        std::mem::forget(alarm);
                    }
                    measured
                })
            })
            .collect();
        pairs
            .into_iter()
            .map(|pair| pair.join().unwrap_or_else(|_| Err(anyhow!("a pair panicked"))))
            .collect()
    });
    // The first cause, not what it caused.
    let mut found = Vec::new();
    let mut failures = Vec::new();
    for result in results {
        match result {
            Ok(measured) => found.extend(measured),
            Err(error) => failures.push(error),
        }
    }
    let others = |error: &anyhow::Error| error.to_string().contains("another core");
    failures.sort_by_key(others);
    failures.into_iter().next().map_or(Ok(found), Err)
}

/// One pair, on this thread.
fn pair(load: &Load, index: usize, carried: Carried, shared: &Shared) -> Result<Option<Measured>> {
    let (scenario, count) = (&load.scenario, shared.threads);
    let clock = Clock::start();
    // A failure before the barrier must not keep the other threads waiting there: all reach it.
    let made = make_server(load, index, shared, &clock);
    shared.barrier.wait();
    let (mut server, memory) = made?;
    let arenas = shared.arenas.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for arena in
        arenas.iter().enumerate().filter(|(other, _)| *other != index).filter_map(|(_, arena)| arena.as_ref())
    {
        server.provider_mut().register(arena)?;
    }
    let address = format!("{}-{index}", Shm::own_address(0));
    server.listen(&address)?;
    let home = match carried {
        Carried::None => [index, index],
        Carried::Half => [index, (index + 1) % count],
        Carried::All => [(index + 1) % count; 2],
    };
    let exports = home.map(|at| mount_path(load, at));
    let exports = [&exports[0][..], &exports[1][..]];
    let mut measured = None;
    {
        let mut poll = |now| _ = server.poll(now);
        if load.is_alone && index > 0 {
            shared.meet(0, &clock, &mut poll)?;
            shared.meet(1, &clock, &mut poll)?;
        } else {
            let mut prepared = |poll: &mut load::Companion<'_>| shared.meet(0, &clock, poll);
            let mut ended = |poll: &mut load::Companion<'_>| shared.meet(1, &clock, poll);
            let stages: [&mut load::Stage<'_>; 2] = [&mut prepared, &mut ended];
            measured =
                Some(load::run_beside::<Shm>(scenario, (&address, &exports), index, &mut poll, stages)?);
        }
        shared.meet(2, &clock, &mut poll)?;
    }
    // The clients are gone. What was lent comes home.
    let patience = clock.now() + STAGE_TIME_MAX;
    while server.connection_count() > 0 || !server.has_given_back() {
        let now = clock.now();
        if now > patience {
            bail!("core {index}: memory of another core does not go back");
        }
        server.poll(now);
    }
    shared.meet(3, &clock, &mut |now| _ = server.poll(now))?;
    drop(server);
    match memory.ledger.outstanding() {
        0 => Ok(measured),
        left => bail!("a server did not get {left} buffers back"),
    }
}

/// The path of a core's export.
fn export_path(index: usize) -> String {
    format!("/perf{index}")
}

/// The path by which clients mount the files that a core has.
fn mount_path(load: &Load, index: usize) -> String {
    match &load.directory {
        Some(directory) => directory.display().to_string(),
        None => export_path(index),
    }
}

/// What a core exports.
fn export(load: &Load, index: usize) -> Export {
    Export { root_squash: false, ..Export::new(&mount_path(load, index)) }
}

/// The store that a core has.
fn store(
    load: &Load,
    index: usize,
    files: usize,
    pool: &Pool,
    shared: &Shared,
    time: &mut TimeOfDay,
    now: Duration,
) -> Result<Box<dyn Store>> {
    if let Some(directory) = &load.directory {
        let config = DirectoryConfig {
            reading_max: READING_MAX,
            verifier: shared.verifier.clone(),
            ..DirectoryConfig::new(directory, stable_fsid(&mount_path(load, index)))
        };
        let disk = Disk::new(&DiskConfig::default(), &[pool.arena()]);
        return Ok(Box::new(DirectoryStore::new(&config, disk, pool.clone())?));
    }
    let config = MemoryConfig {
        fsid: index as u64 + 1,
        data_len_max: (2 * files + (1 << 20)) as u64,
        objects_max: 4096,
        names_max: 4096,
        root: RootAttributes { mode: 0o777, uid: 0, gid: 0 },
    };
    Ok(Box::new(MemoryStore::new(&config, pool.clone(), time.at(now))?))
}

/// Makes the server of a pair, a member of the group if there is one.
fn make_server(
    load: &Load,
    index: usize,
    shared: &Shared,
    clock: &Clock,
) -> Result<(Engine<Shm, Programs>, Memory)> {
    let scenario = &load.scenario;
    let own = ReactorId::new(index).context("a group has 64 reactors at most")?;
    // All clients' files may be here.
    let files = scenario.connections * shared.threads * file_len(scenario);
    let config = engine_config(scenario);
    let memory = Memory::new(&config, 4 * files + (24 << 20))?.owned_by(own);
    let mut provider = <Shm as Opened>::open(scenario)?;
    provider.register(&memory.arena)?;
    shared.arenas.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(memory.arena.clone());

    let now = clock.now();
    let mut time = TimeOfDay::System(WallClock::new(now));
    let pool = &memory.pools.payload;
    let store = store(load, index, files, pool, shared, &mut time, now)?;
    let mut exports = ExportTable::new(vec![(export(load, index), store)], pool.clone())?;
    if shared.mesh.is_some() {
        let mut elsewhere = Vec::new();
        // A directory is at all of them.
        for at in (0..shared.threads).filter(|at| load.directory.is_none() && *at != index) {
            let reactor = ReactorId::new(at).context("a group has 64 reactors at most")?;
            elsewhere.push(Elsewhere { export: export(load, at), fsid: at as u64 + 1, reactor });
        }
        exports = exports.in_group(elsewhere, ReactorId::new(0).context("the first")?)?;
    }
    let mut engine = Engine::new(provider, serving(exports, time), memory.pools.clone(), config, 1)?;
    if let Some(mesh) = &shared.mesh {
        engine.join(mesh.take(own).context("each takes its lanes once")?, None);
    }
    Ok((engine, memory))
}

/// Calls a second of all clients.
fn rate(measured: &[Measured]) -> f64 {
    measured.iter().map(|client| client.calls as f64 / client.took.as_secs_f64().max(1e-9)).sum()
}

fn median_latency(measured: &[Measured]) -> f64 {
    measured.first().map_or(0.0, |client| client.latency.value_at_quantile(0.5) as f64)
}

/// Octets a second that a thread on each of these cores copies, between blocks of its own.
fn copy_rate(cores: &[usize], block: usize) -> f64 {
    let barrier = Barrier::new(cores.len());
    thread::scope(|scope| {
        let copiers: Vec<_> = cores
            .iter()
            .map(|core| {
                let barrier = &barrier;
                scope.spawn(move || {
                    pin(*core);
                    let (source, mut target) = (vec![1_u8; block], vec![0_u8; block]);
                    target.copy_from_slice(&source);
                    barrier.wait();
                    let clock = Clock::start();
                    let (start, mut copied) = (clock.now(), 0_u64);
                    loop {
                        for _ in 0..16 {
                            target.copy_from_slice(std::hint::black_box(&source));
                            std::hint::black_box(&mut target);
                        }
                        copied += 16 * block as u64;
                        let took = clock.now() - start;
                        if took >= COPY_TIME {
                            return copied as f64 / took.as_secs_f64();
                        }
                    }
                })
            })
            .collect();
        copiers.into_iter().map(|copier| copier.join().unwrap_or(0.0)).sum()
    })
}
