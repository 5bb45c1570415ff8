//! The server that a measurement starts itself: NFS over a memory store, and the echo program, on its own
//! pinned thread and in its own reactor.

use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use stag_rpc::{Engine, Memory, PAGE_LEN, Statistics};
use stag_runtime::{Clock, CoreId, PollMode, Reactor, ReactorConfig, StopFlag};

use crate::cpu::{ServerMeter, ThreadClock};
use crate::disturbance::Contention;
pub use crate::engine_config::engine_config;
use crate::load;
use crate::opened::Opened;
use crate::programs::programs;
pub use crate::programs::{ECHO_PROGRAM, EXPORT};
use crate::scenario::Scenario;

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
