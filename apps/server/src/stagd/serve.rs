//! The server's life: allocates memory, runs one engine for each core until a signal, and stops in order.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use stag_fabric::{Iwarp, Provider, Shm, Verbs};
use stag_memory::{Arena, ArenaConfig, ArenaError, Budget, PageChoice, PageSize, Pool};
use stag_nfs::server::{DATAGRAM_PROGRAMS, Registered, Registry, datagram_programs_at, programs_at};
use stag_rpc::{Engine, EngineGroup, Pools};
use stag_runtime::{Clock, GroupConfig, GroupMember, PollMode, ReactorGroup, Receiver, Sender, StopFlag};

use super::asking::Reactors;
use super::control::ControlSocket;
use super::cores::Place;
use super::ends::Ends;
use super::fabric::{self, Served};
use super::filling::{self, Filling};
use super::listen::Listen;
use super::listeners;
use super::live::LiveSettings;
use super::plan::{GROUP_CONNECTIONS, PAGE_LEN, Plan};
use super::printer::Printer;
use super::progress;
use super::reactor::{self, Announcement, ServedReactor};
use super::recordings::BadEnds;
use super::registration::reach;
use super::request::{Request, mailboxes};
use super::services::Common;
use super::signals;
use super::weights::weight_of;
use super::{Settings, StagdOptions, choices, metrics, privileges, services, supervisor};
use crate::failure::CommandFailure;
use crate::output::Output;
use crate::programs::Programs;
use crate::seed::random_seed;
use crate::url::{FabricName, Url};
use crate::values::{Poll, Size};
use crate::{limits, logging};

/// How long a graceful stop may take.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// Serves until a signal, or until standard input ends if the options say so. `settings` was made of the options.
pub(super) fn serve(
    (options, settings): (&StagdOptions, &Settings),
    plan: &Plan,
    place: &Place,
    out: &mut Output,
) -> Result<(), CommandFailure> {
    // Before any thread starts, which would keep what this one gives up. Afterwards the processes of others are closed books.
    let holders = settings.listen.iter().map(listeners::holder).collect();
    privileges::drop_unneeded(settings);
    logging::write_on_thread()?;
    let stop = StopFlag::new()
        .map_err(|error| CommandFailure::run(format_args!("eventfd for the stop flag: {error}")))?;
    // Before a reactor pins this thread: a thread inherits where its parent may run.
    let cores: Vec<_> = place.seats.iter().map(|seat| seat.core).collect();
    let (senders, requests) = mailboxes(cores.len())?;
    let printer = Printer::start(out.json(), cores)?;
    let live = Arc::new(LiveSettings::new(options, settings, &senders));
    signals::handle(&stop, senders.clone(), printer.sender(), live.clone())?;
    if options.until_eof {
        stop_on_eof(&stop)?;
    }

    let server = Server { settings, plan, place, holders, stop, senders, requests, printer, live };
    match settings.fabric {
        None | Some(FabricName::Shm) => server.run::<Shm>(out),
        Some(FabricName::Iwarp) => server.run::<Iwarp>(out),
        Some(FabricName::Verbs) => server.run::<Verbs>(out),
    }
}

/// All that a server has, whichever fabric it serves.
struct Server<'a> {
    settings: &'a Settings,
    plan: &'a Plan,
    place: &'a Place,
    /// Who listens already at each of the places where it is to listen.
    holders: Vec<Option<String>>,
    stop: StopFlag,
    /// The mailboxes of the reactors.
    senders: Vec<Sender<Request>>,
    requests: Vec<Receiver<Request>>,
    printer: Printer,
    live: Arc<LiveSettings>,
}

impl Server<'_> {
    /// Serves until it is stopped.
    fn run<P: Served>(self, out: &mut Output) -> Result<(), CommandFailure> {
        let Server { settings, plan, place, holders, stop, senders, requests, printer, live } = self;
        // Before the memory, which takes its time, so that a missing device is reported at once.
        P::serving(settings, plan).map(drop).map_err(CommandFailure::run)?;
        let budget = Budget::new(settings.memory);
        let make = || arena(settings, plan, place, &budget);
        let arena = progress::tell(out, progress::QUIET, plan.arena_len as u64, make)?;
        let filling = match filling::may_grow(settings) {
            true => Some(Filling::start(&arena, &stop)?),
            false => None,
        };
        let count = plan.reactors.len();
        let group = match count {
            1 => None,
            _ => {
                let connections_max = GROUP_CONNECTIONS * plan.engine.connections_max;
                let group = EngineGroup::new(count, plan.carried_max, connections_max);
                Some(
                    group
                        .map_err(|error| CommandFailure::run(format_args!("lanes between cores: {error}")))?,
                )
            }
        };
        let mode = match settings.poll {
            Poll::Busy => PollMode::Busy,
            Poll::Adaptive => PollMode::default(),
        };
        let config = GroupConfig { cores: place.cores(), mode, drain_max: DRAIN_MAX };
        let reactors = ReactorGroup::new(&config, Clock::start()).map_err(CommandFailure::run)?;
        let cores: Vec<_> = place.seats.iter().map(|seat| seat.core).collect();
        let memory =
            plan.prices.prices().iter().map(|price| (price.what.to_string(), price.bytes())).collect();
        let asked = Reactors { senders, cores: cores.clone(), times: reactors.statistics(), live, memory };
        let mut notes = place.notes.clone();
        let bad_ends = match settings.record {
            0 => None,
            _ => BadEnds::start(settings.state_dir.as_deref(), &mut notes)?,
        };
        // Each is there before the server says that it is ready, and answers when its reactors run.
        let control = ControlSocket::listen(settings.control.as_deref(), &mut notes)?;
        let control = control.map(|socket| socket.serve(asked.clone(), stop.clone())).transpose()?;
        if let Some(address) = &settings.metrics {
            metrics::serve(address, asked.clone())?;
        }
        supervisor::watch(asked, stop.clone())?;
        let shared = Shared::<P> {
            notes,
            bad_ends,
            settings,
            plan,
            place,
            holders,
            arena: &arena,
            filling: filling.as_ref(),
            group,
            common: Common::new(settings, plan)?,
            programs: OnceLock::new(),
            requests: Mutex::new(requests.into_iter().map(Some).collect()),
            stop: stop.clone(),
            json: out.json(),
        };
        let ends = Ends::new(cores, printer, out.json());
        let end =
            |reactor: ServedReactor<'_, P>, stopped: &_| ends.add(reactor.id.index(), reactor.end(stopped));
        let run = || reactors.run(&stop, |member| shared.make(&member), end);
        beside_signals(run)?.map_err(|error| match error {
            stag_runtime::GroupError::Make { source, .. } => source,
            error => CommandFailure::run(error),
        })?;
        drop(shared);
        drop(control);
        if let Some(filling) = filling {
            filling.finish();
        }
        ends.told()
    }
}

/// Runs reactors on a thread of their own, and waits on this one, the main thread: the kernel prefers it for signals, and a
/// reactor that waits for a disk takes none.
fn beside_signals<T: Send>(run: impl FnOnce() -> T + Send) -> Result<T, CommandFailure> {
    thread::scope(|scope| {
        let named = thread::Builder::new().name("reactor-0".to_owned());
        let thread = named.spawn_scoped(scope, run).map_err(|error| {
            CommandFailure::run(format_args!("a thread for the first reactor (clone): {error}"))
        })?;
        thread.join().or_else(|panic| resume_unwind(panic))
    })
}

/// What the reactors have in common while they are made.
struct Shared<'a, P: Provider> {
    settings: &'a Settings,
    plan: &'a Plan,
    place: &'a Place,
    /// What it stepped down from, and why.
    notes: Vec<String>,
    /// Where the last messages of connections go that end badly, if they are kept.
    bad_ends: Option<BadEnds>,
    holders: Vec<Option<String>>,
    /// The memory of all pools.
    arena: &'a Arena,
    /// If that is not there from the start.
    filling: Option<&'a Filling>,
    /// If there are several reactors.
    group: Option<EngineGroup<P>>,
    common: Common,
    /// What rpcbind tells, at each reactor, since the one that listens does.
    programs: OnceLock<Vec<Registered>>,
    requests: Mutex<Vec<Option<Receiver<Request>>>>,
    stop: StopFlag,
    json: bool,
}

impl<P: Served> Shared<'_, P> {
    /// Makes a reactor's part of the server. The first one listens.
    fn make(&self, member: &GroupMember) -> Result<ServedReactor<'_, P>, CommandFailure> {
        let Shared { settings, plan, place, arena, group, .. } = self;
        let (id, own) = (member.id(), plan.reactors[member.id().index()]);
        let mut provider = P::serving(settings, plan).map_err(CommandFailure::run)?;
        let pools = Pools {
            messages: Pool::fixed(arena, "messages", plan.engine.message_len(), plan.messages)
                .map_err(CommandFailure::run)?,
            payload: Pool::runs(arena, "payload", PAGE_LEN, own.pages)
                .map_err(CommandFailure::run)?
                .owned_by(id.into()),
        };
        if let Some(filling) = self.filling {
            filling.fill(plan, &pools.messages, &pools.payload)?;
        }
        provider.register(arena).map_err(CommandFailure::run)?;
        let device = provider.device();
        let mut notes = [self.notes.as_slice(), arena.notes()].concat();
        let registry = Registry::default();
        let locking = self.common.locking(id, settings, plan);
        let programs = (registry.clone(), locking.clone());
        let made_of = (*settings, *plan, &self.common);
        let (services, directories) =
            services::make(made_of, id, &pools, &member.clock(), programs, &mut notes)?;
        let ledger = reactor::ledger(&pools);
        let mut engine = Engine::new(provider, services, pools, plan.engine, random_seed())
            .map_err(CommandFailure::run)?;
        if settings.record > 0 {
            let bad_ends = self.bad_ends.clone();
            engine.record(settings.record, move |end| {
                if let Some(bad_ends) = &bad_ends {
                    bad_ends.keep(end);
                }
            });
        }
        if !settings.weights.is_empty() {
            let weights = settings.weights.clone();
            engine.set_client_weights(move |peer| weight_of(&weights, peer));
        }
        if let Some(group) = group {
            engine.join_group(group, id, Some(member.clone()));
        }
        let announcement = match id.index() {
            0 => {
                let (places, programs) = listen(&mut engine, settings, &self.holders, &mut notes)?;
                // It is set only here.
                let _ = self.programs.set(programs);
                let got = choices::Got {
                    pages: arena.page_size().to_string(),
                    notes,
                    device,
                    mount: fabric::mount_advice(settings, &places),
                };
                Some(Announcement { settings, plan, place, got, places, json: self.json })
            }
            _ => None,
        };
        // A panic elsewhere cannot leave the list half changed.
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let requests = requests.get_mut(id.index()).and_then(Option::take);
        let Some(requests) = requests else { unreachable!("a reactor is made once") };
        Ok(ServedReactor {
            engine,
            id,
            requests,
            directories,
            locking,
            registry,
            ledger,
            clock: member.clock(),
            programs: &self.programs,
            stop: self.stop.clone(),
            announcement,
            registration: None,
            failure: None,
        })
    }
}

/// Listens at all places. Returns them, with the ports that the system chose, and the programs that are served there: those at
/// addresses that more clients reach first, and at a port for TCP alone before one that iWARP has, too.
fn listen<P: Served>(
    engine: &mut Engine<P, Programs>,
    settings: &Settings,
    holders: &[Option<String>],
    notes: &mut Vec<String>,
) -> Result<(Vec<Listen>, Vec<Registered>), CommandFailure> {
    let (mut places, mut programs, mut shared) = (Vec::new(), Vec::new(), Vec::new());
    for (place, holder) in settings.listen.iter().zip(holders) {
        let fail = |error| {
            let advice = fabric::listen_advice(&error, place, &settings.listen);
            let holder = holder.as_ref().filter(|_| fabric::is_in_use(&error));
            let holder = holder.map_or_else(String::new, |holder| format!(" by {holder}"));
            CommandFailure::run(format_args!("--listen {place}: {error}{holder}{advice}"))
        };
        places.push(match place {
            Listen::Fabric(url) => {
                let listener = engine.listen(&url.address).map_err(fail)?;
                let address = engine.provider().listener_address(listener);
                programs.extend(address.into_iter().flat_map(|at| programs_at(at, true)));
                // Who speaks no RDMA there is served over TCP.
                if let Some(address) = address.filter(|_| url.fabric == FabricName::Iwarp) {
                    shared.extend(programs_at(address, false));
                    shared.extend(serve_datagrams(engine, address, notes));
                }
                match address.filter(|_| url.address.ends_with(":0")) {
                    Some(address) => Listen::Fabric(Url { address: address.to_string(), ..url.clone() }),
                    None => place.clone(),
                }
            }
            Listen::Tcp(address) => {
                let bound = engine.listen_tcp(address).map_err(fail)?;
                programs.extend(programs_at(bound, false));
                programs.extend(serve_datagrams(engine, bound, notes));
                // With port 0 the system has chosen one.
                if address.ends_with(":0") { Listen::Tcp(bound.to_string()) } else { place.clone() }
            }
        });
    }
    programs.append(&mut shared);
    programs.retain(|it| settings.nfs.serves(it));
    programs.sort_by_key(|it: &Registered| reach(it.address));
    Ok((places, programs))
}

/// Serves the programs that are called by UDP, beside a port for RPC over TCP. If the port is taken already, its
/// owner keeps it.
fn serve_datagrams<P: Provider>(
    engine: &mut Engine<P, Programs>,
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

/// The memory of all pools.
fn arena(settings: &Settings, plan: &Plan, place: &Place, budget: &Budget) -> Result<Arena, CommandFailure> {
    let make = |page| {
        let (len, node) = (plan.arena_len, place.node());
        let config = ArenaConfig { name: "stagd", len, page, node, budget };
        if filling::may_grow(settings) { Arena::growing(&config) } else { Arena::new(&config) }
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
        CommandFailure::run(format_args!("--memory {memory}, --pages {}: {why}", settings.pages.0))
    })
}

/// Stops the server when standard input ends: when the parent process that holds it goes, or wants it.
fn stop_on_eof(stop: &StopFlag) -> Result<(), CommandFailure> {
    let stop = stop.clone();
    let thread = thread::Builder::new().name("stdin".to_owned());
    let thread = thread.spawn(move || {
        let mut input = io::stdin().lock();
        let mut ignored = [0; 64];
        while matches!(input.read(&mut ignored), Ok(1..)) {}
        stop.request();
    });
    thread
        .map(drop)
        .map_err(|error| CommandFailure::run(format_args!("a thread for standard input: {error}")))
}
