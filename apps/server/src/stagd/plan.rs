//! The plan of the memory: one budget, cut into pools by a commented sum.

use super::exports::{ExportSpec, Medium};
use stag_fabric::{Iwarp, Shm, Verbs};
use stag_memory::{Pool, PriceList};
use stag_nfs::server::{Config4, LockingConfig};
use stag_rpc::{
    CARRIED_CALLS_MAX, CallMesh, EngineConfig, EngineGroup, LONG_REPLY_LEN_MAX, Pools, ProtocolChoice,
    recorder_len,
};
use stag_state::LockConfig;
use stag_state::client::ClientConfig;
use stag_state::open::OpenConfig;
use stag_stores::memory::{HEAP_PER_OBJECT, MemoryStore};

use super::Settings;
use super::listen::Listen;
use crate::failure::CommandFailure;
use crate::url::FabricName;
use crate::values::Size;

/// Directories that may be added to a server at work, until it ends: one that is removed leaves a little behind.
pub(super) const EXPORTS_ADDED_MAX: usize = 8;

/// Of objects and descriptors, this fraction is for directories that are added later.
pub(super) const OF_LATER: usize = 32;

/// Octets of a page of the store, the unit of the payload pool.
pub(crate) const PAGE_LEN: usize = 4096;

/// What a device's driver takes for each completion that a connection may have outstanding: the entry of the completion
/// queue, and that of the send or receive queue. Drivers do not say how much; those of Mellanox take no more than this.
const DEVICE_COMPLETION_LEN: u64 = 256;

/// The arena is a multiple of this, so that hugepages lose nothing to rounding.
const ROUNDING: usize = 2 << 20;

/// Octets of memory for each object: small files run out of space before they run out of objects, nearly.
pub const MEMORY_PER_OBJECT: u64 = 8 << 10;

/// One part in this number of the payload pool is for Calls on their way, which files never take; the rest is
/// files'.
const TRANSIT_SHARE: usize = 8;

/// As many of the largest transfers have room there at once, at least.
const TRANSIT_MIN: usize = 3;

/// One part in this number of what is for Calls on their way is the most that those over TCP take for large
/// arguments.
const STREAM_SHARE: usize = 2;

/// Octets of memory for each Reply that is kept for retransmissions.
const MEMORY_PER_DUPLICATE: u64 = 64 << 10;

/// Locks take at most one part in this number of the budget.
const LOCKS_SHARE: u64 = 64;

/// Opens of NFS version 4 take at most one part in this number of a core's part of the budget, and so do COMPOUNDs that wait.
const OPENS_SHARE: u64 = 64;

/// Octets that COMPOUNDs may keep at one core while they wait, at least: many usual ones. A longer one is told to try again when it
/// would have to wait.
const SUSPENDED_MIN: u64 = 64 << 10;

/// Clients and sessions of NFS version 4 take about one part in this number of the budget.
const CLIENTS_SHARE: u64 = 48;

/// What the rest of a small server takes. What is of NFS version 4 gets its parts of what goes beyond it, so that a server that is as
/// small as it can be has little of it.
const BESIDE_FOUR: u64 = 24 << 20;

/// What is known of the hosts that have locks takes at most one part in this number of the budget.
const HOSTS_SHARE: u64 = 128;

/// Replies of one connection that are exposed at once, with `--reliable-reply`.
const EXPOSED_REPLIES: u32 = 8;

/// Credits of one connection over RDMA for Calls to its client, where NFS version 4 is served: a back channel is proven by one at
/// a time.
const REVERSE_CREDITS: u32 = 1;

/// Receives, and as many Sends, take at most one part in this number of the budget, as far as that leaves enough of
/// them.
const RECEIVES_SHARE: u64 = 8;

/// Receives for each connection beyond as many as the default has: it is sure of two, and the others are shared by those that
/// are busy.
const RECEIVES_EACH: u32 = 4;

/// Octets of lanes between all reactors at most, as far as that leaves a few Calls to each.
const LANES_MAX: usize = 16 << 20;

/// Each reactor may have as many connections of RDMA, and as many of TCP.
pub(super) const GROUP_CONNECTIONS: u32 = 2;

/// Calls that may be under way from one reactor to another at least.
const CARRIED_MIN: usize = 8;

/// Numbers that follow from the budget.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// For the engine of each reactor.
    pub(super) engine: EngineConfig,
    /// Completions that an RDMA device's queue of one reactor has to hold.
    pub(super) device_completions: u32,
    /// Units of the pool of Sends and Receives of each reactor.
    pub(super) messages: usize,
    /// The reactors, the one that listens first.
    pub(super) reactors: Vec<ReactorMemory>,
    /// What each export may hold, and where, in the order of the settings.
    pub(super) exports: Vec<ExportShare>,
    /// Objects that each directory may have at each reactor, if it is added later.
    pub(super) objects_later: u32,
    /// Calls that may be under way from one reactor to another.
    pub(super) carried_max: usize,
    /// Locks of all clients, at each reactor.
    pub(super) locks: LockConfig,
    /// Hosts that may have locks at each reactor.
    pub(super) hosts_max: u32,
    /// Clients and sessions of version 4.
    pub(super) clients: ClientConfig,
    /// Opens of version 4, at each reactor.
    pub(super) opens: OpenConfig,
    /// Octets that COMPOUNDs keep while they wait, at each reactor.
    pub(super) suspended_max: usize,
    /// Octets of the arena that all pools are cut from.
    pub(super) arena_len: usize,
    /// The sum.
    pub(super) prices: PriceList,
    /// Why the server speaks version 1 only where it usually speaks version 2 too.
    pub(super) note: Option<String>,
}

/// The payload pool of a reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReactorMemory {
    /// Pages of it.
    pub(super) pages: usize,
    /// Octets of them that are for Calls on their way.
    pub(super) transit_len: usize,
}

/// What an export may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExportShare {
    /// Whose memory the files are in. Every reactor serves a directory.
    pub(super) owner: usize,
    /// Octets of data in memory.
    pub(super) data_len_max: u64,
    /// At each reactor that serves it.
    pub(super) objects_max: u32,
}

/// What files may take of the pages, with all that follows from it.
struct Division {
    /// Of each export: those in memory, and 0.
    data: Vec<u64>,
    reactors: Vec<ReactorMemory>,
}

impl Division {
    /// Pages of all reactors.
    fn pages(&self) -> usize {
        self.reactors.iter().map(|reactor| reactor.pages).sum()
    }
}

/// Which reactor has which files, and the rest of the budget for pages.
struct Pages<'a> {
    settings: &'a Settings,
    owners: &'a [usize],
    /// Pages of all reactors together.
    count: usize,
    /// Pages for Calls on their way that each reactor has at least.
    transit_min: usize,
}

impl Pages<'_> {
    /// Divides the pages so that files may have `files_len` octets. Fails if the sizes that exports ask for are more.
    fn divide(&self, files_len: u64) -> Result<Division, CommandFailure> {
        let cores = self.settings.core_count();
        let data = shares(&self.settings.exports, files_len)?;
        let mut kept = vec![0; cores];
        for ((data, owner), (_, export)) in data.iter().zip(self.owners).zip(&self.settings.exports) {
            if export.medium == Medium::Memory {
                kept[*owner] += (*data as usize).div_ceil(PAGE_LEN) + MemoryStore::OWN_PAGES;
            }
        }
        let usual = (self.count / TRANSIT_SHARE / cores).max(self.transit_min);
        let reactor = |kept: &usize| {
            // A pool leaves one page in `TRANSIT_SHARE` to Calls on their way, in whatever reactor the others
            // are set aside.
            let transit = usual.max(kept.div_ceil(TRANSIT_SHARE - 1));
            ReactorMemory { pages: kept + transit, transit_len: transit * PAGE_LEN }
        };
        Ok(Division { data, reactors: kept.iter().map(reactor).collect() })
    }

    /// The division that leaves as much to files as there is.
    fn largest(&self) -> Result<Division, CommandFailure> {
        // What the exports ask for is the least that files must have.
        let said = said(&self.settings.exports);
        let (mut low, mut high) = (0, self.count as u64);
        while low < high {
            let middle = (low + high).div_ceil(2);
            let files_len = (middle * PAGE_LEN as u64).max(said);
            let is_enough = self.divide(files_len).is_ok_and(|found| found.pages() <= self.count);
            if is_enough { low = middle } else { high = middle - 1 }
        }
        // If even this is too little for the sizes, it says so.
        let mut division = self.divide(low * PAGE_LEN as u64)?;
        let spare = self.count.saturating_sub(division.pages()) / division.reactors.len();
        for reactor in &mut division.reactors {
            reactor.pages += spare;
            reactor.transit_len += spare * PAGE_LEN;
        }
        Ok(division)
    }
}

/// Octets that the exports in memory ask for.
fn said(exports: &[(String, ExportSpec)]) -> u64 {
    exports.iter().filter_map(|(_, export)| export.size).fold(0, u64::saturating_add)
}

/// Gives each export in memory the size that it says; those that say none share the rest of `files_len`.
fn shares(exports: &[(String, ExportSpec)], files_len: u64) -> Result<Vec<u64>, CommandFailure> {
    let said = said(exports);
    let is_silent = |export: &ExportSpec| export.medium == Medium::Memory && export.size.is_none();
    let silent = exports.iter().filter(|(_, export)| is_silent(export)).count() as u64;
    let left = files_len.checked_sub(said).filter(|left| silent == 0 || *left >= PAGE_LEN as u64 * silent);
    let Some(left) = left else {
        return Err(CommandFailure::usage(format_args!(
            "export: the sizes (size=) add up to {}, but {} of --memory are for files; lower a size= or raise --memory",
            Size(said),
            Size(files_len),
        )));
    };
    let share = |export: &ExportSpec| match export.medium {
        Medium::Memory => export.size.unwrap_or(left / silent.max(1)),
        Medium::Directory => 0,
    };
    Ok(exports.iter().map(|(_, export)| share(export)).collect())
}

/// The export that another one lies in, the innermost if there are several.
fn outer(exports: &[(String, ExportSpec)], inner: usize) -> Option<usize> {
    let path = |number: usize| exports[number].1.access.path.trim_end_matches('/');
    let is_in =
        |number: &usize| path(inner).strip_prefix(path(*number)).is_some_and(|rest| rest.starts_with('/'));
    (0..exports.len()).filter(is_in).max_by_key(|number| path(*number).len())
}

/// The reactor of each export: the one that it says, or that of the export it lies in, because clients of version 4 go from one to
/// the other; or else one with the fewest exports. (That of a directory says nothing; its opens are kept at the first one.)
fn owners(settings: &Settings) -> Vec<usize> {
    let exports = &settings.exports;
    let pinned = |export: &ExportSpec| {
        let core = export.core? as usize;
        settings.cores.as_ref()?.position(core)
    };
    let is_in_memory = |number: &usize| exports[*number].1.medium == Medium::Memory;
    let mut counts = vec![0; settings.core_count()];
    let mut owners = vec![0; exports.len()];
    let in_memory = (0..exports.len()).filter(is_in_memory);
    in_memory.clone().filter_map(|number| pinned(&exports[number].1)).for_each(|owner| counts[owner] += 1);
    let (mut inside, alone): (Vec<_>, Vec<_>) =
        in_memory.partition(|number| outer(exports, *number).is_some());
    // Each behind those that it lies in.
    inside.sort_by_key(|number| exports[*number].1.access.path.len());
    let mut fewest = || {
        let owner = (0..counts.len()).min_by_key(|reactor| counts[*reactor]).unwrap_or(0);
        counts[owner] += 1;
        owner
    };
    for number in alone {
        owners[number] = pinned(&exports[number].1).unwrap_or_else(&mut fewest);
    }
    for number in inside {
        let of_outer = outer(exports, number).map_or(0, |outer| owners[outer]);
        owners[number] = pinned(&exports[number].1).unwrap_or(of_outer);
    }
    owners
}

/// Connections of one reactor at most, so that all together take as many as were asked for.
fn connections_each(settings: &Settings) -> u32 {
    let (all, cores) = (settings.connections_max, settings.core_count() as u32);
    let even = all.div_ceil(cores);
    // Those over TCP may be spread in another way than those over RDMA.
    let has_tcp = settings.listen.iter().any(|place| matches!(place, Listen::Tcp(_)))
        || settings.fabric == Some(FabricName::Iwarp);
    if has_tcp { all.min(2 * even) } else { even }
}

impl Plan {
    /// Cuts the budget. Fails if what must be does not fit.
    pub(super) fn new(settings: &Settings) -> Result<Plan, CommandFailure> {
        if let Some(protocol) = settings.protocol {
            return Plan::speaking(protocol, settings);
        }
        // Over iWARP a message of version 2 that carries its data costs less than RDMA.
        if settings.fabric != Some(FabricName::Iwarp) {
            return Plan::speaking(ProtocolChoice::One, settings);
        }
        // Version 2 takes more Receives. With little memory, a server without it is better than none.
        Plan::speaking(ProtocolChoice::Auto, settings).or_else(|_| {
            let mut plan = Plan::speaking(ProtocolChoice::One, settings)?;
            plan.add_note(format!(
                "version 1 of RPC-over-RDMA only: --memory {} is too little for the Receives of version 2",
                Size(settings.memory)
            ));
            Ok(plan)
        })
    }

    /// Cuts the budget of a server that speaks these versions.
    fn speaking(protocol: ProtocolChoice, settings: &Settings) -> Result<Plan, CommandFailure> {
        let cores = settings.core_count();
        match Plan::of(protocol, settings) {
            // Fewer cores, each with as much, may do with the same budget.
            Err(failure) if cores > 1 => {
                let fits = |count: &usize| {
                    let fewer = Settings {
                        cores: settings.cores.as_ref().map(|list| list.first(*count)),
                        ..settings.clone()
                    };
                    Plan::of(protocol, &fewer).is_ok()
                };
                let enough = (1..cores).rev().find(fits);
                let advice = match enough {
                    Some(1) => "; it is enough for 1 core".to_owned(),
                    Some(count) => format!("; it is enough for {count} cores"),
                    None => String::new(),
                };
                Err(CommandFailure::usage(format_args!(
                    "--cores {}: {failure}{advice}",
                    settings.cores.as_ref().map_or_else(String::new, ToString::to_string)
                )))
            }
            made => made,
        }
    }

    fn of(protocol: ProtocolChoice, settings: &Settings) -> Result<Plan, CommandFailure> {
        if settings.nfs.four == [false; 2] || settings.fabric.is_none() {
            return Plan::calling_back(protocol, settings, 0);
        }
        // With little memory, a server that calls nobody back over RDMA is better than none.
        Plan::calling_back(protocol, settings, REVERSE_CREDITS).or_else(|_| {
            let mut plan = Plan::calling_back(protocol, settings, 0)?;
            plan.add_note(format!(
                "clients of NFS version 4 are called back over TCP only: --memory {} is too little for Calls both ways over RDMA",
                Size(settings.memory)
            ));
            Ok(plan)
        })
    }

    /// Cuts the budget of a server that calls its clients back with these credits of a connection over RDMA.
    fn calling_back(
        protocol: ProtocolChoice,
        settings: &Settings,
        reverse_credits: u32,
    ) -> Result<Plan, CommandFailure> {
        // What lists take depends on the pages for transit, which only shrink when lists are paid for.
        let transit = Plan::with_lists((protocol, reverse_credits), settings, 0)?.transit();
        Plan::with_lists((protocol, reverse_credits), settings, transit)
    }

    /// Adds a note for the operator to those that the plan has already.
    fn add_note(&mut self, note: String) {
        self.note = Some(match self.note.take() {
            Some(other) => format!("{other}; {note}"),
            None => note,
        });
    }

    /// Pages for transit of all reactors.
    fn transit(&self) -> usize {
        self.reactors.iter().map(|reactor| reactor.transit_len / PAGE_LEN).sum()
    }

    /// Cuts the budget, with lists of the pieces of `listed` pages for transit.
    fn with_lists(
        (protocol, reverse_credits): (ProtocolChoice, u32),
        settings: &Settings,
        listed: usize,
    ) -> Result<Plan, CommandFailure> {
        let default = EngineConfig::default();
        let cores = settings.core_count();
        let each = settings.memory / cores as u64;
        // Large messages must not eat up the budget: fewer Receives then, and so fewer credits at once.
        let affordable = each / RECEIVES_SHARE / (2 * u64::from(settings.inline_threshold));
        let connections = connections_each(settings);
        let least = (2 * connections).max(settings.credits + connections);
        let more = connections.saturating_sub(default.connections_max);
        let usual = default.receives_max + RECEIVES_EACH * more;
        let mut engine = EngineConfig {
            inline_threshold: settings.inline_threshold,
            credits_max: settings.credits,
            reverse_credits,
            connections_max: connections,
            exposed_replies: if settings.reliable_reply { EXPOSED_REPLIES } else { 0 },
            streams_max: connections,
            receives_max: u32::try_from(affordable).unwrap_or(u32::MAX).clamp(least, usual.max(least)),
            stream_congestion_control: settings.congestion_control.map(|name| name.0),
            protocol,
            placement: settings.placement,
            duplicates_max: u32::try_from(each / MEMORY_PER_DUPLICATE)
                .unwrap_or(u32::MAX)
                .clamp(256, 1 << 20),
            ..default
        };
        engine.check().map_err(CommandFailure::usage)?;

        let messages = Pools::messages_needed(&engine);
        let messages_len = Pool::footprint(engine.message_len(), messages);
        let connections = u64::from(engine.connections_max);
        let capacity = engine.serving_capacity();
        let device_completions = Verbs::completions_needed(&capacity);
        let queue_pair_len = match settings.fabric {
            None | Some(FabricName::Shm) => {
                Shm::queue_pair_len(&capacity, engine.capacity().exposures) as u64
            }
            Some(FabricName::Iwarp) => Iwarp::queue_pair_len(&capacity) as u64,
            Some(FabricName::Verbs) => {
                Verbs::queue_pair_len(&capacity) as u64 + device_completions * DEVICE_COMPLETION_LEN
            }
        };
        let device_completions = device_completions * connections;
        let connection_len = queue_pair_len + engine.connection_len() as u64;
        let (calls, call_len) = (u64::from(engine.receives_max), engine.call_len() as u64);
        let objects_max = settings.memory / MEMORY_PER_OBJECT;
        let locks = LockConfig::within(each / LOCKS_SHARE);
        let usual_hosts = u64::from(LockingConfig::default().hosts_max);
        let hosts = (each / HOSTS_SHARE / LockingConfig::HOST_LEN).clamp(16, usual_hosts);
        let beyond = settings.memory.saturating_sub(BESIDE_FOUR);
        let clients = ClientConfig::within(beyond / CLIENTS_SHARE);
        let part = beyond / cores as u64 / OPENS_SHARE;
        let opens = OpenConfig::within(part);
        let suspended = part.clamp(SUSPENDED_MIN, Config4::new(1).suspended_max as u64);
        let has_four = settings.nfs.four != [false; 2];
        let of_four = |octets: u64| if has_four { octets } else { 0 };
        let carried_max = carried_max(cores);
        let lanes = match cores {
            1 => 0,
            _ => {
                let connections_max = GROUP_CONNECTIONS * engine.connections_max;
                let len = match settings.fabric {
                    None | Some(FabricName::Shm) => EngineGroup::<Shm>::footprint,
                    Some(FabricName::Iwarp) => EngineGroup::<Iwarp>::footprint,
                    Some(FabricName::Verbs) => EngineGroup::<Verbs>::footprint,
                };
                len(cores, carried_max, connections_max) as u64
            }
        };
        // What is not payload: of each reactor, and of all.
        let (streams, stream_len) = (u64::from(engine.streams_max), engine.stream_len() as u64);
        let duplicates = engine.duplicates_len() as u64;
        let long = LONG_REPLY_LEN_MAX as u64 + u64::from(engine.chunk_len_max);
        let lists = (engine.lists_len(listed) + (cores - 1) * engine.lists_len(0)) as u64;
        let recorder = match settings.record {
            0 => 0,
            messages => recorder_len(messages, engine.connections_max) as u64,
        };
        let fixed = (connection_len * connections
            + recorder
            + call_len * calls
            + stream_len * streams
            + duplicates
            + locks.memory_max()
            + hosts * LockingConfig::HOST_LEN
            + of_four(opens.memory_max() + suspended)
            + long
            + messages_len as u64)
            * cores as u64
            + of_four(clients.memory_max(cores as u64))
            + HEAP_PER_OBJECT * objects_max
            + lists
            + lanes;
        let messages_len = messages_len * cores;
        let left = settings.memory.saturating_sub(fixed);
        let arena_len = (left as usize + messages_len) / ROUNDING * ROUNDING;
        // Those that wait in Receives are of the same pool, and for nothing else.
        let target_pages = engine.target_pages() * cores;
        let pages = (arena_len.saturating_sub(messages_len) / PAGE_LEN).saturating_sub(target_pages);
        // The largest transfer that every client must get through, several at once.
        let chunk_pages = engine.chunk_len_max as usize / PAGE_LEN;
        let transit_min = TRANSIT_MIN * chunk_pages;
        let pages_min = (4 * chunk_pages).max(if cores > 1 {
            cores * (transit_min + MemoryStore::OWN_PAGES) + chunk_pages
        } else {
            0
        });
        if pages < pages_min {
            let wanted = fixed + ((pages_min + target_pages) * PAGE_LEN + ROUNDING) as u64;
            return Err(CommandFailure::usage(format_args!(
                "--memory {}: {} are needed for --connections-max {}, --credits {} and --inline-threshold {}; raise it, \
                 or lower those",
                Size(settings.memory),
                Size(wanted.next_multiple_of(1 << 20)),
                settings.connections_max,
                settings.credits,
                Size(settings.inline_threshold.into()),
            )));
        }
        // Without files in memory, all of it is for Calls on their way.
        let stores = settings.exports.iter().filter(|(_, export)| export.medium == Medium::Memory).count();
        let holes = stores * MemoryStore::OWN_PAGES;
        let owners = owners(settings);
        let mut division = match cores {
            1 => {
                let transit = if stores > 0 { (pages / TRANSIT_SHARE).max(transit_min) } else { pages };
                let files = pages.saturating_sub(transit + holes);
                let reactor = ReactorMemory { pages, transit_len: (pages - files - holes) * PAGE_LEN };
                Division {
                    data: shares(&settings.exports, (files * PAGE_LEN) as u64)?,
                    reactors: vec![reactor],
                }
            }
            _ => Pages { settings, owners: &owners, count: pages, transit_min }.largest()?,
        };
        let transit: usize = division.reactors.iter().map(|reactor| reactor.transit_len / PAGE_LEN).sum();
        let files = division.pages() - transit - holes;
        division.reactors.iter_mut().for_each(|reactor| reactor.pages += target_pages / cores);
        let least = division.reactors.iter().map(|reactor| reactor.transit_len).min().unwrap_or(0);
        engine.stream_memory = u32::try_from(least / STREAM_SHARE)
            .unwrap_or(u32::MAX)
            .clamp(engine.chunk_len_max + 2 * PAGE_LEN as u32, 1 << 30);
        engine.check().map_err(CommandFailure::usage)?;

        let many = cores as u64;
        let mut prices = PriceList::new();
        prices
            .add("Receives and Sends", engine.message_len() as u64, (messages * cores) as u64)
            .add("files, in pages", PAGE_LEN as u64, files as u64)
            .add("what holes of files are read from, in pages", PAGE_LEN as u64, holes as u64)
            .add("Calls on their way, in pages", PAGE_LEN as u64, transit as u64)
            .add("long messages, at most", long, many)
            .add("connections, at most", connection_len, connections * many)
            .add("Calls in process, at most", call_len, calls * many)
            .add("lists of data in many pieces, at most", lists, 1)
            .add("TCP connections, at most", stream_len, streams * many)
            .add("Replies kept for retransmissions", duplicates, many)
            .add("locks, at most", locks.memory_max(), many)
            .add("hosts with locks, at most", LockingConfig::HOST_LEN, hosts * many)
            .add("objects, names, page tables, at most", HEAP_PER_OBJECT, objects_max);
        if has_four {
            prices
                .add("clients and sessions of NFSv4, at most", clients.memory_max(many), 1)
                .add("opens of NFSv4, at most", opens.memory_max(), many)
                .add("NFSv4 COMPOUNDs that wait, at most", suspended, many);
        }
        if target_pages > 0 {
            prices.add("Receives of version 2, in pages", PAGE_LEN as u64, target_pages as u64);
        }
        if recorder > 0 {
            prices.add("messages that are recorded", recorder, many);
        }
        if cores > 1 {
            prices.add("lanes between cores", lanes, 1);
        }
        let lost = settings.memory - prices.bytes();
        prices.add("rounding", lost, 1);
        // A directory has a store at each core.
        let has_stores = |export: &ExportSpec| if export.medium == Medium::Directory { many } else { 1 };
        let all: u64 = settings.exports.iter().map(|(_, export)| has_stores(export)).sum();
        // Some are for directories that are added later, at each core.
        let objects_of_later = objects_max / OF_LATER as u64;
        let objects_later =
            u32::try_from(objects_of_later / EXPORTS_ADDED_MAX as u64 / many).unwrap_or(u32::MAX);
        let objects_each = u32::try_from((objects_max - objects_of_later) / all.max(1)).unwrap_or(u32::MAX);
        let share =
            |((owner, data_len_max), (_, export)): ((&usize, &u64), &(String, ExportSpec))| ExportShare {
                owner: *owner,
                data_len_max: *data_len_max,
                objects_max: export.objects.min(objects_each),
            };
        let exports = owners.iter().zip(&division.data).zip(&settings.exports).map(share).collect();
        Ok(Plan {
            engine,
            device_completions: u32::try_from(device_completions).unwrap_or(u32::MAX),
            messages,
            reactors: division.reactors,
            exports,
            objects_later,
            carried_max,
            locks,
            hosts_max: hosts as u32,
            clients,
            opens,
            suspended_max: suspended as usize,
            arena_len,
            prices,
            note: None,
        })
    }
}

/// Calls that may be under way from one of `cores` reactors to another: the usual number, as far as lanes for them are not too
/// large.
fn carried_max(cores: usize) -> usize {
    let mut calls = CARRIED_CALLS_MAX;
    while calls > CARRIED_MIN && CallMesh::footprint(cores, calls) > LANES_MAX {
        calls /= 2;
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stagd::StagdOptions;

    fn plan(memory: &str, threshold: &str, credits: u32) -> Result<(Settings, Plan), CommandFailure> {
        plan_over("shm://test", memory, threshold, credits)
    }

    fn plan_over(
        url: &str,
        memory: &str,
        threshold: &str,
        credits: u32,
    ) -> Result<(Settings, Plan), CommandFailure> {
        let options = StagdOptions {
            export: vec!["mem:/data".into()],
            listen: vec![url.parse().unwrap()],
            memory: Some(memory.parse().unwrap()),
            inline_threshold: Some(threshold.parse().unwrap()),
            credits: Some(credits),
            ..StagdOptions::default()
        };
        let settings = Settings::new(&options)?;
        let plan = Plan::new(&settings)?;
        Ok((settings, plan))
    }

    #[test]
    fn the_sum_stays_within_the_budget_and_uses_nearly_all_of_it() {
        for (memory, threshold, credits) in [("64M", "4K", 64), ("1G", "4K", 64), ("512M", "64K", 128)] {
            let (settings, plan) = plan(memory, threshold, credits).unwrap();
            let sum = plan.prices.bytes();
            assert_eq!(sum, settings.memory, "{memory}: {}", plan.prices);
            let lost = plan.prices.prices().last().unwrap();
            assert!(lost.bytes() < ROUNDING as u64 + PAGE_LEN as u64, "{memory}: {}", plan.prices);
            let pools =
                Pool::footprint(plan.engine.message_len(), plan.messages) + plan.reactors[0].pages * PAGE_LEN;
            assert!(pools <= plan.arena_len, "{memory}");
        }
    }

    fn on_cores(exports: &[&str], memory: &str, cores: &str) -> Result<(Settings, Plan), CommandFailure> {
        let options = StagdOptions {
            export: exports.iter().map(|export| (*export).to_owned()).collect(),
            listen: vec!["shm://test".parse().unwrap()],
            memory: Some(memory.parse().unwrap()),
            cores: Some(cores.parse().unwrap()),
            ..StagdOptions::default()
        };
        let settings = Settings::new(&options)?;
        let plan = Plan::new(&settings)?;
        Ok((settings, plan))
    }

    /// Pages that a pool sets aside for files, of those that the plan gives them.
    fn check_pools(settings: &Settings, plan: &Plan) {
        assert_eq!(plan.prices.bytes(), settings.memory, "{}", plan.prices);
        let messages = Pool::footprint(plan.engine.message_len(), plan.messages) * plan.reactors.len();
        let pages: usize = plan.reactors.iter().map(|reactor| reactor.pages).sum();
        assert!(messages + pages * PAGE_LEN <= plan.arena_len, "{}", plan.prices);
        for (number, reactor) in plan.reactors.iter().enumerate() {
            let of_files: usize = (plan.exports.iter().zip(&settings.exports))
                .filter(|(share, (_, export))| share.owner == number && export.medium == Medium::Memory)
                .map(|(share, _)| (share.data_len_max as usize).div_ceil(PAGE_LEN) + MemoryStore::OWN_PAGES)
                .sum();
            assert!(of_files + reactor.transit_len / PAGE_LEN <= reactor.pages);
            // As `Pool::set_aside` does.
            assert!(of_files <= reactor.pages - reactor.pages / TRANSIT_SHARE, "{reactor:?}");
            assert!(reactor.transit_len >= TRANSIT_MIN * plan.engine.chunk_len_max as usize);
        }
    }

    #[test]
    fn one_export_has_nearly_all_whatever_the_number_of_cores() {
        let (settings, one) = on_cores(&["mem:/data"], "1G", "0").unwrap();
        check_pools(&settings, &one);
        for cores in ["0-1", "0-3", "4,2,9"] {
            let (settings, plan) = on_cores(&["mem:/data"], "1G", cores).unwrap();
            check_pools(&settings, &plan);
            assert!(plan.exports[0].data_len_max > one.exports[0].data_len_max * 8 / 10, "{}", plan.prices);
        }
    }

    #[test]
    fn exports_are_spread_unless_they_say_where() {
        let exports = ["mem:/a", "mem:/b,core=7,size=64M", "dir:/tmp", "mem:/c,core=7", "mem:/d", "mem:/e"];
        let (settings, plan) = on_cores(&exports, "1G", "5-8").unwrap();
        check_pools(&settings, &plan);
        let owners: Vec<usize> = plan.exports.iter().map(|share| share.owner).collect();
        assert_eq!(owners, [0, 2, 0, 2, 1, 3]);
        assert_eq!((plan.exports[1].data_len_max, plan.exports[2].data_len_max), (64 << 20, 0));
    }

    /// Clients of version 4 go from an export to those that lie in it: one reactor has all of them, unless another is asked for.
    #[test]
    fn exports_in_an_export_are_where_that_is() {
        let owners = |exports: &[&str]| -> Vec<usize> {
            let (_, plan) = on_cores(exports, "1G", "5-6").unwrap();
            plan.exports.iter().map(|share| share.owner).collect()
        };
        assert_eq!(owners(&["mem:/b/x/y", "mem:/a", "mem:/b", "mem:/b/x", "mem:/bx"]), [1, 0, 1, 1, 0]);
        assert_eq!(owners(&["mem:/a", "mem:/a/x,core=6"]), [0, 1]);
        assert_eq!(owners(&["mem:/a", "dir:/tmp", "mem:/tmp/x"]), [0, 0, 0]);
    }

    #[test]
    fn many_cores_share_lanes_and_connections() {
        let (settings, plan) = on_cores(&["mem:/a", "dir:/tmp"], "8G", "0-63").unwrap();
        check_pools(&settings, &plan);
        assert!(plan.carried_max >= CARRIED_MIN && plan.carried_max < CARRIED_CALLS_MAX);
        assert_eq!(plan.engine.connections_max, 1);
    }

    #[test]
    fn too_little_for_all_cores_says_for_how_many_it_is_enough() {
        let error = on_cores(&["mem:/a"], "64M", "0-15").unwrap_err().to_string();
        assert!(error.contains("--cores 0-15: --memory 64 MiB:"), "{error}");
        assert!(error.contains("; it is enough for "), "{error}");
    }

    #[test]
    fn many_connections_are_paid_for_and_find_credits() {
        let options = StagdOptions {
            export: vec!["mem:/data".into()],
            listen: vec!["iwarp://[::]:20049".parse().unwrap()],
            memory: Some("256M".parse().unwrap()),
            connections_max: Some(1000),
            ..StagdOptions::default()
        };
        let settings = Settings::new(&options).unwrap();
        let Plan { engine, prices, note, .. } = Plan::new(&settings).unwrap();
        assert_eq!((engine.connections_max, engine.streams_max), (1000, 1000));
        assert_eq!(engine.protocol, ProtocolChoice::One);
        assert_eq!(
            note.as_deref(),
            Some(
                "version 1 of RPC-over-RDMA only: --memory 256 MiB is too little for the Receives of version 2"
            )
        );
        assert!(engine.receives_max >= 4 * 1000, "{}", engine.receives_max);
        assert_eq!(prices.bytes(), settings.memory, "{prices}");
        let Err(CommandFailure::Usage(text)) =
            Settings::new(&StagdOptions { connections_max: Some(0), ..options })
        else {
            panic!("0 clients are no server")
        };
        assert_eq!(text, "--connections-max 0: it must be 1 to 65536");
    }

    #[test]
    fn version_2_is_spoken_where_data_in_messages_costs_less() {
        for (url, wanted) in [
            ("iwarp://[::]", ProtocolChoice::Auto),
            ("shm://test", ProtocolChoice::One),
            ("verbs://[::]", ProtocolChoice::One),
            ("tcp://[::]:2049", ProtocolChoice::One),
        ] {
            let (_, plan) = plan_over(url, "256M", "4K", 64).unwrap();
            assert_eq!((plan.engine.protocol, plan.note), (wanted, None), "{url}");
        }
    }

    #[test]
    fn connections_over_verbs_are_paid_for() {
        let (_, shm) = plan("256M", "4K", 64).unwrap();
        let (settings, verbs) = plan_over("verbs://[::]", "256M", "4K", 64).unwrap();
        assert_eq!(verbs.prices.bytes(), settings.memory, "{}", verbs.prices);
        assert!(verbs.reactors[0].pages < shm.reactors[0].pages, "{}", verbs.prices);
        assert!(verbs.device_completions >= verbs.engine.serving_completions_max());
    }

    #[test]
    fn too_small_a_budget_says_how_much_is_needed() {
        let error = plan("16M", "256K", 1024).unwrap_err();
        let CommandFailure::Usage(text) = error else { panic!("{error}") };
        assert!(
            text.contains("--memory 16 MiB:")
                && text.contains("are needed for --connections-max 64, --credits 1024"),
            "{text}"
        );
    }
}
