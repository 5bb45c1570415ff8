//! [`Server`]: a program served by as little code as possible, on the polled engine.
//!
//! `program.rs` makes a service of functions, `seat.rs` is what a service is told when it is made, `service_set.rs` is what services it
//! may have, `engines.rs` the poller of one core, `running.rs` the handle of a server that runs, `statistics.rs` how other threads read what the cores count.

mod engines;
mod error;
mod program;
mod running;
mod seat;
mod service_set;
mod statistics;

use std::fmt;
use std::marker::PhantomData;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

#[cfg(feature = "shm")]
use stag_fabric::shm::Admit;
use stag_memory::{Bytes, Pool};
#[cfg(feature = "version2")]
use stag_rpc::ProtocolChoice;
use stag_rpc::{EngineConfig, EngineError, PAGE_LEN, Pools};
use stag_runtime::{Clock, CoreId, GroupConfig, PollMode, ReactorGroup, StopFlag};

use crate::fabrics::FabricOptions;
use crate::url::{self, Scheme};

use engines::Plan;
pub use error::ServerError;
use error::system;
pub use program::Program;
pub use running::{RunningServer, ServerEnd};
pub use seat::Seat;
pub use service_set::ServiceSet;
pub use statistics::{CoreStatistics, ServerStatistics, StatisticsHandle};

/// Octets of memory of each core, unless told otherwise.
const MEMORY_PER_CORE: usize = 64 << 20;

/// Octets of memory that take a while to touch: the log says so.
const MUCH_MEMORY: usize = 256 << 20;

/// Builds a server: what it serves, where, on which cores, with how much memory.
///
/// ```
/// use stag::prelude::*;
///
/// static PROCEDURES: [Procedure; 1] = [Procedure::plain("ECHO")];
///
/// fn echo(call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
///     match call.arguments().opaque(1024) {
///         Ok(text) => reply.success(|writer| writer.opaque(text)),
///         Err(_) => reply.garbage_arguments(),
///     }
///     Outcome::Done
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::new(|_| (Program::new(0x2000_7a62, 1, &PROCEDURES, echo),));
/// let running = server.listen("iwarp://127.0.0.1:0").start()?;
///
/// let client = Client::connect(&running.urls()[0])?;
/// let answer = client.call(0x2000_7a62, 1, 1, |writer| writer.opaque(b"hello"))?;
/// assert_eq!(answer.reader().opaque(1024)?, b"hello");
/// # drop(client);
/// assert!(running.stop()?.drained);
/// # Ok(())
/// # }
/// ```
///
/// Everything stands on [`Engine`](stag_rpc::Engine), [`Memory`](stag_rpc::Memory) and
/// [`ReactorGroup`](stag_runtime::ReactorGroup), which a program may use instead: for Calls back to clients, or for pollers of
/// its own on the same core.
#[must_use = "a server does nothing before start or run"]
pub struct Server<F, S> {
    make: F,
    urls: Vec<String>,
    cores: Vec<Option<CoreId>>,
    memory: Option<usize>,
    config: EngineConfig,
    options: FabricOptions,
    drain_max: Duration,
    catches_panics: bool,
    services: PhantomData<fn() -> S>,
}

impl<F, S> Server<F, S>
where
    F: Fn(&Seat) -> S + Send + Sync + 'static,
    S: ServiceSet + 'static,
{
    /// A server of the services that `make` returns: a tuple of one to four, or one of the other kinds of [`ServiceSet`].
    ///
    /// `make` runs once for each core **and each fabric**, on the core's own thread, so services need be neither `Send` nor
    /// `Sync`. What the fabrics of a core have in common comes from [`Seat::shared`].
    pub fn new(make: F) -> Server<F, S> {
        Server {
            make,
            urls: Vec::new(),
            cores: vec![None],
            memory: None,
            config: EngineConfig::default(),
            options: FabricOptions::default(),
            drain_max: Duration::from_secs(5),
            catches_panics: true,
            services: PhantomData,
        }
    }

    /// Listens at this URL, too: `shm://NAME`, `iwarp://HOST:PORT`, `verbs://HOST:PORT`, `tcp://HOST:PORT`. Port 0 lets the system
    /// choose; [`RunningServer::urls`] tells what.
    pub fn listen(mut self, url: &str) -> Self {
        self.urls.push(url.to_owned());
        self
    }

    /// Runs on these cores, one thread pinned to each. Otherwise one thread runs where the system puts it.
    ///
    /// Connections are spread over the cores. A service says with [`Service::home`](stag_rpc::Service::home) which core executes a Call.
    pub fn cores(mut self, cores: impl IntoIterator<Item = CoreId>) -> Self {
        self.cores = cores.into_iter().map(Some).collect();
        self
    }

    /// Runs on `count` threads that are not pinned.
    pub fn threads(mut self, count: usize) -> Self {
        self.cores = vec![None; count];
        self
    }

    /// Takes this many octets of memory for messages and data of all cores together. It is touched, and registered with the
    /// fabrics, before the server is ready. Default: 64 MiB for each core.
    pub fn memory(mut self, len: usize) -> Self {
        self.memory = Some(len);
        self
    }

    /// Takes arguments of up to `len` octets of data in one Call: 64 MiB less a page at most. Default: 1 MiB.
    pub fn data_max(mut self, len: u32) -> Self {
        self.config.chunk_len_max = len.saturating_add(PAGE_LEN as u32);
        let least = self.config.chunk_len_max.saturating_add(8192);
        self.config.stream_memory = self.config.stream_memory.max(least);
        self
    }

    /// Polls so while idle. Default: for 50 µs, then it sleeps.
    pub fn poll(mut self, mode: PollMode) -> Self {
        self.options.poll = mode;
        self
    }

    /// Whether a handler that panics costs only its Call, which is answered with SYSTEM_ERR. Default: yes. See
    /// [`PanicGuard`](stag_rpc::PanicGuard) for what that means for the service's state.
    pub fn catch_panics(mut self, is_on: bool) -> Self {
        self.catches_panics = is_on;
        self
    }

    /// Admits processes of other users over shared memory. **They may read and write all memory of the server**: see
    /// [`fabric::shm`](stag_fabric::shm#trust).
    #[cfg(feature = "shm")]
    pub fn admit(mut self, whom: Admit) -> Self {
        self.options.admit.push(whom);
        self
    }

    /// Speaks version 2 of RPC-over-RDMA with peers that announce it, and version 1 with others.
    #[cfg(feature = "version2")]
    pub fn version2(mut self) -> Self {
        self.config.protocol = ProtocolChoice::Auto;
        self
    }

    /// How long a stop may wait for Calls that are being answered. Default: 5 s.
    pub fn drain_max(mut self, limit: Duration) -> Self {
        self.drain_max = limit;
        self
    }

    /// Changes numbers of the engines that no method here has.
    pub fn tune(mut self, change: impl FnOnce(&mut EngineConfig)) -> Self {
        change(&mut self.config);
        self
    }

    /// Serves until the process gets SIGINT or SIGTERM; see [`RunningServer::until_signal`].
    ///
    /// # Errors
    ///
    /// Why it does not run.
    pub fn run(self) -> Result<ServerEnd, ServerError> {
        self.start()?.until_signal()
    }

    /// Serves on threads of its own. Returns when all URLs are listened at.
    ///
    /// # Errors
    ///
    /// Why it does not run.
    pub fn start(self) -> Result<RunningServer, ServerError> {
        let Server { make, urls, cores, memory, config, options, drain_max, catches_panics, .. } = self;
        let places = urls.iter().map(|url| url::parse(url)).collect::<Result<Vec<_>, _>>()?;
        if places.is_empty() {
            return Err(ServerError::NoUrl);
        }
        let places: Vec<_> = places.into_iter().map(|(scheme, at)| (scheme, at.to_owned())).collect();
        let mut fabrics: Vec<Scheme> = Vec::new();
        for (scheme, _) in &places {
            if *scheme != Scheme::Tcp && !fabrics.contains(scheme) {
                fabrics.push(*scheme);
            }
        }
        // The sockets of RPC over TCP belong to an engine, whatever its fabric is.
        if fabrics.is_empty() {
            fabrics.push(Scheme::Shm);
        }
        config.check().map_err(EngineError::from)?;
        let prepared = memory.unwrap_or(cores.len() * MEMORY_PER_CORE);
        if prepared >= MUCH_MEMORY {
            let size = Bytes(prepared as u64);
            tracing::info!("preparing {size} of memory: every page is touched before the server is ready");
        }
        let payload_len = payload_len(&config, memory, cores.len(), fabrics.len())?;
        let stop = StopFlag::new().map_err(system("make the flag that stops the server"))?;
        let group = GroupConfig { cores: cores.clone(), mode: options.poll, drain_max };
        let reactors = ReactorGroup::new(&group, Clock::start())?;
        let (ready, is_ready) = mpsc::channel();
        let times = reactors.statistics();
        let (statistics, desks) = statistics::desks(&cores, times)
            .map_err(system("make the mailboxes that ask cores for what they count"))?;
        let plan = Plan { places, fabrics, config, options, payload_len, catches_panics, desks };
        let its_stop = stop.clone();
        let thread = thread::Builder::new().name("stag-server".to_owned());
        let thread = thread.spawn(move || plan.run(reactors, &its_stop, &make, ready));
        let thread = thread.map_err(system("start a thread for the server"))?;
        match is_ready.recv() {
            Ok(urls) => Ok(RunningServer::new(urls, stop, statistics, thread)),
            // It ended before it was ready, and says why.
            Err(mpsc::RecvError) => match running::join(thread) {
                Err(error) => Err(error),
                Ok(_) => unreachable!("it is ready before it stops"),
            },
        }
    }
}

/// Octets of payload memory of one core, beside the messages of its engines.
fn payload_len(
    config: &EngineConfig,
    memory: Option<usize>,
    cores: usize,
    engines: usize,
) -> Result<usize, ServerError> {
    let given = memory.map_or(MEMORY_PER_CORE, |all| all / cores.max(1));
    let messages = engines * Pool::footprint(config.message_len(), Pools::messages_needed(config));
    let targets = engines * config.target_pages() * PAGE_LEN;
    // One Call that brings as much as it may, and one that waits.
    let data = 2 * config.chunk_len_max as usize;
    let least = messages + targets + data;
    match given.checked_sub(least) {
        Some(more) => Ok((data + more) / PAGE_LEN * PAGE_LEN),
        None => {
            let by = if data > messages { "data_max" } else { "receives_max, by tune" };
            Err(ServerError::TooLittleMemory { given, least, by })
        }
    }
}

impl<F, S> fmt::Debug for Server<F, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("urls", &self.urls).field("cores", &self.cores).finish_non_exhaustive()
    }
}
