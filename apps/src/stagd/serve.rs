//! The server's life: memory, services, reactor; until a signal, and out in order.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use stag::fabric::{Iwarp, Provider, Shm, Verbs};
use stag::memory::{Arena, ArenaConfig, ArenaError, Budget, Ledger, PageChoice, PageSize, Pool};
use stag::nfs::server::{DATAGRAM_PROGRAMS, Registered, Registry, datagram_programs_at, programs_at};
use stag::rpc::{Engine, Pools, Services};
use stag::runtime::{
    Clock, CoreId, CoreSet, PollMode, Reactor, ReactorConfig, Receiver, StopFlag, Topology, affinity,
};

use super::claims::{Claim, Claimed, Claims, Holder};
use super::fabric::{self, Served};
use super::listen::{self, Listen};
use super::listeners;
use super::plan::{PAGE_LEN, Plan};
use super::registration::Registration;
use super::report::Snapshot;
use super::signals::{self, Observed, Printer};
use super::{Settings, report, services};
use crate::failure::Failure;
use crate::limits;
use crate::locality;
use crate::output::Output;
use crate::seed::random_seed;
use crate::url::{Fabric, Url};
use crate::values::{Poll, Size};

/// How long a graceful stop may take.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// Where the server runs.
pub(super) struct Place {
    /// The core, and its NUMA node if there is more than one.
    pub(super) core: CoreId,
    pub(super) node: u32,
    /// Something that costs speed, if there is such.
    pub(super) warnings: Vec<String>,
    /// What is done in another way than usual, and why.
    pub(super) notes: Vec<String>,
    /// Until the server ends.
    _claim: Option<Claim>,
}

impl Place {
    /// The core that was asked for, or one that suits and that no other server has.
    pub(super) fn choose(settings: &Settings) -> Result<Place, Failure> {
        let topology = Topology::read().map_err(Failure::run)?;
        let allowed = affinity::allowed();
        let claims = Claims::find();
        let mut warnings = Vec::new();
        let (core, claim) = match settings.core.map(CoreId) {
            Some(core) => {
                affinity::check(core)
                    .map_err(|error| Failure::usage(format_args!("--core {}: {error}", core.0)))?;
                match claims.claim(core) {
                    Claimed::Own(claim) => (core, Some(claim)),
                    Claimed::Unknown => (core, None),
                    Claimed::Taken(holder) => {
                        warnings.push(shared(core, &holder, "choose another core, or leave --core out"));
                        (core, None)
                    }
                }
            }
            None => {
                match free_core(&topology, &allowed, near(&topology, settings)?, &claims, &mut warnings) {
                    Some(found) => found,
                    None => return Err(Failure::run("no core of this machine is allowed to this process")),
                }
            }
        };
        if allowed.len() == 1 {
            let advice = match settings.poll {
                Poll::Busy => "; --poll adaptive leaves it to the clients between Calls",
                Poll::Adaptive => "",
            };
            warnings.push(format!(
                "{} is the only core, for the server and its clients: each Call waits for the scheduler{advice}",
                core.0
            ));
        }
        Ok(Place {
            core,
            node: topology.node_of(core).unwrap_or(0),
            warnings,
            notes: claims.note().into_iter().collect(),
            _claim: claim,
        })
    }
}

/// The core that suits best of those that no other server has; if they have all, the best of all.
fn free_core(
    topology: &Topology,
    allowed: &CoreSet,
    near: Option<CoreSet>,
    claims: &Claims,
    warnings: &mut Vec<String>,
) -> Option<(CoreId, Option<Claim>)> {
    let mut free = *allowed;
    // Cores whose SMT siblings are taken are as slow as taken ones, nearly: they come last.
    let mut quiet = *allowed;
    let best = |cores: &CoreSet| topology.choose_near(cores, 1, near).first().copied();
    while let Some(core) = best(&quiet).or_else(|| best(&free)) {
        match claims.claim(core) {
            Claimed::Own(claim) => return Some((core, Some(claim))),
            Claimed::Unknown => return Some((core, None)),
            Claimed::Taken(_) => {
                free.remove(core);
                quiet.remove(core);
                let siblings = topology.core(core).map(|core| core.siblings).unwrap_or_default();
                siblings.iter().for_each(|sibling| quiet.remove(sibling));
            }
        }
    }
    let core = best(allowed)?;
    if let Some(holder) = claims.holder(core) {
        let advice = "other servers have all cores of this process; give it more, or run fewer servers";
        warnings.push(shared(core, &holder, advice));
    }
    Some((core, None))
}

fn shared(core: CoreId, holder: &Holder, advice: &str) -> String {
    format!("core {}: {holder} runs there, and each waits while the other works; {advice}", core.0)
}

/// The cores nearest to the RDMA device, where it serves over one.
fn near(topology: &Topology, settings: &Settings) -> Result<Option<CoreSet>, Failure> {
    let fabric = listen::fabric(&settings.listen)?;
    Ok(fabric.and_then(|fabric| locality::near(topology, fabric, settings.device.as_deref())))
}

/// Serves until a signal, or until standard input ends if `until_eof`.
pub(super) fn serve(
    settings: &Settings,
    plan: &Plan,
    place: &Place,
    until_eof: bool,
    out: &mut Output,
) -> Result<(), Failure> {
    let stop = StopFlag::new().map_err(|error| Failure::run(format_args!("stop flag: {error}")))?;
    // Before the reactor pins this thread: a thread inherits where its parent may run.
    let requests = signals::handle(&stop)?;
    if until_eof {
        stop_on_eof(&stop)?;
    }

    let server = Server { settings, plan, place, stop, requests };
    match settings.fabric {
        None | Some(Fabric::Shm) => server.run::<Shm>(out),
        Some(Fabric::Iwarp) => server.run::<Iwarp>(out),
        Some(Fabric::Verbs) => server.run::<Verbs>(out),
    }
}

/// All that a server has, whichever fabric it serves.
struct Server<'a> {
    settings: &'a Settings,
    plan: &'a Plan,
    place: &'a Place,
    stop: StopFlag,
    /// For counters.
    requests: Receiver<()>,
}

impl Server<'_> {
    /// Serves until it is stopped.
    fn run<P: Served>(self, out: &mut Output) -> Result<(), Failure> {
        let Server { settings, plan, place, stop, requests } = self;
        // Before the memory, which takes its time: that there is no device is told at once.
        let mut provider = P::serving(settings, plan).map_err(Failure::run)?;
        let budget = Budget::new(settings.memory);
        let arena = arena(settings, plan, place, &budget)?;
        let pools = Pools {
            messages: Pool::fixed(&arena, "messages", plan.engine.message_len(), plan.messages)
                .map_err(Failure::run)?,
            payload: Pool::runs(&arena, "payload", PAGE_LEN, plan.pages).map_err(Failure::run)?,
        };
        let mut ledger = Ledger::new();
        ledger.register(&pools.messages);
        ledger.register(&pools.payload);
        provider.register(&arena).map_err(Failure::run)?;
        let device = provider.device();
        let clock = Clock::start();
        let mut notes = [place.notes.as_slice(), arena.notes()].concat();
        let registry = Registry::default();
        let locking = services::locking(settings, plan)?;
        let programs = (registry.clone(), locking.clone());
        let services = services::make(settings, plan, &pools, &clock, programs, &mut notes)?;
        let mut engine =
            Engine::new(provider, services, pools, plan.engine, random_seed()).map_err(Failure::run)?;
        let (mut places, mut programs) = (Vec::new(), Vec::new());
        for place in &settings.listen {
            let fail = |error| {
                let advice = fabric::listen_advice(&error, place, &settings.listen);
                let holder = listeners::holder(place).filter(|_| fabric::is_in_use(&error));
                let holder = holder.map_or_else(String::new, |holder| format!(" by {holder}"));
                Failure::run(format_args!("--listen {place}: {error}{holder}{advice}"))
            };
            places.push(match place {
                Listen::Fabric(url) => {
                    let listener = engine.listen(&url.address).map_err(fail)?;
                    let address = engine.provider().listener_address(listener);
                    programs.extend(address.into_iter().flat_map(|at| programs_at(at, true)));
                    // Who speaks no RDMA there is served over TCP.
                    if let Some(address) = address.filter(|_| url.fabric == Fabric::Iwarp) {
                        programs.extend(programs_at(address, false));
                        programs.extend(serve_datagrams(&mut engine, address, &mut notes));
                    }
                    match address.filter(|_| url.address.ends_with(":0")) {
                        Some(address) => Listen::Fabric(Url { address: address.to_string(), ..url.clone() }),
                        None => place.clone(),
                    }
                }
                Listen::Tcp(address) => {
                    let bound = engine.listen_tcp(address).map_err(fail)?;
                    programs.extend(programs_at(bound, false));
                    programs.extend(serve_datagrams(&mut engine, bound, &mut notes));
                    // With port 0 the system has chosen one.
                    if address.ends_with(":0") { Listen::Tcp(bound.to_string()) } else { place.clone() }
                }
            });
        }
        let mode = match settings.poll {
            Poll::Busy => PollMode::Busy,
            Poll::Adaptive => PollMode::default(),
        };
        let config = ReactorConfig { core: Some(place.core), mode, drain_max: DRAIN_MAX };
        let mut reactor = Reactor::new(config, clock).map_err(Failure::run)?;
        let printer = Printer::start(out.json())?;
        registry.borrow_mut().clone_from(&programs);
        // Until the end of this function.
        let registration = settings.rpcbind.then(|| Registration::new(programs)).transpose()?;

        let got = report::Got {
            pages: arena.page_size().to_string(),
            notes: &notes,
            device: device.as_ref(),
            mount: fabric::mount_advice(settings, &places),
        };
        Failure::unless_output_closed(report::started(settings, plan, place, &got, out))?;
        Failure::unless_output_closed(report::ready(&places, out))?;
        let mut observed =
            Observed { engine: &mut engine, requests, locking: locking.clone(), printer: &printer };
        let stopped = reactor.run(&mut observed, &stop).map_err(Failure::run)?;
        drop(observed);
        printer.finish();

        drop(registration);
        let work = Snapshot::take(&engine, &locking, clock.now());
        // Whatever the engine, its services and the provider hold goes back to the pools.
        drop(engine);
        report::stopped(&stopped, &work, &ledger, out)
    }
}

/// Serves by UDP, beside a port for RPC over TCP, what is asked for that way. Who has the port already keeps it.
fn serve_datagrams<P: Provider, S: Services>(
    engine: &mut Engine<P, S>,
    address: SocketAddr,
    notes: &mut Vec<String>,
) -> Vec<Registered> {
    match engine.listen_udp(address, DATAGRAM_PROGRAMS) {
        Ok(bound) => datagram_programs_at(bound),
        Err(error) => {
            notes.push(format!("no restarts of clients are heard by UDP at {address}: {error}"));
            Vec::new()
        }
    }
}

/// The memory of both pools.
fn arena(settings: &Settings, plan: &Plan, place: &Place, budget: &Budget) -> Result<Arena, Failure> {
    let make = |page| {
        let (len, node) = (plan.arena_len, Some(place.node));
        Arena::new(&ArenaConfig { name: "stagd", len, page, node, budget })
    };
    let made = match make(settings.pages.0) {
        // 1 GiB pages may round up to more than the budget; 2 MiB pages never do.
        Err(ArenaError::Budget(_)) if settings.pages.0 == PageChoice::Auto => {
            make(PageChoice::Size(PageSize::Huge2M))
        }
        made => made,
    };
    made.map_err(|error| {
        let memory = Size(settings.memory);
        let why = limits::memory_too_large(plan.arena_len).unwrap_or_else(|| error.to_string());
        Failure::run(format_args!("--memory {memory}, --pages {}: {why}", settings.pages.0))
    })
}

/// Stops the server when standard input ends: when the parent process that holds it goes, or wants it.
fn stop_on_eof(stop: &StopFlag) -> Result<(), Failure> {
    let stop = stop.clone();
    let thread = thread::Builder::new().name("stdin".to_owned());
    let thread = thread.spawn(move || {
        let mut input = io::stdin().lock();
        let mut ignored = [0; 64];
        while matches!(input.read(&mut ignored), Ok(1..)) {}
        stop.request();
    });
    thread.map(drop).map_err(|error| Failure::run(format_args!("a thread for standard input: {error}")))
}
