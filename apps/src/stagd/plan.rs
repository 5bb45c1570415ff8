//! What the memory goes to: one budget, cut into pools by a commented sum.

use stag::fabric::{Iwarp, Shm, Verbs};
use stag::memory::{Pool, PriceList};
use stag::nfs::export::Medium;
use stag::nfs::lock::LockConfig;
use stag::nfs::memory::{HEAP_PER_OBJECT, MemoryStore};
use stag::rpc::{EngineConfig, LONG_REPLY_LEN_MAX, Pools};

use super::Settings;
use crate::failure::Failure;
use crate::url::Fabric;
use crate::values::Size;

/// Octets of a page of the store, the unit of the payload pool.
pub(crate) const PAGE_LEN: usize = 4096;

/// What a device's driver takes for each completion that a connection may have outstanding: the entry of the completion
/// queue, and that of the send or receive queue. Drivers do not say how much; those of Mellanox take no more than this.
const DEVICE_COMPLETION_LEN: u64 = 256;

/// The arena is a multiple of this, so that hugepages lose nothing to rounding.
const ROUNDING: usize = 2 << 20;

/// One object for so many octets of memory: small files run out of space before they run out of objects, nearly.
pub(crate) const MEMORY_PER_OBJECT: u64 = 8 << 10;

/// Of the payload pool, one part in so many is for Calls on their way, which files never take; the rest is files'.
const TRANSIT_SHARE: usize = 8;

/// As many of the largest transfers have room there at once, at least.
const TRANSIT_MIN: usize = 3;

/// Of what is for Calls on their way, those over TCP take at most one part in so many for large arguments.
const STREAM_SHARE: usize = 2;

/// One Reply is kept for retransmissions for so many octets of memory.
const MEMORY_PER_DUPLICATE: u64 = 64 << 10;

/// Locks take at most one part in so many of the budget.
const LOCKS_SHARE: u64 = 64;

/// Receives, and as many Sends, take at most one part in so many of the budget, as far as that leaves enough of them.
const RECEIVES_SHARE: u64 = 8;

/// Receives for each connection, on average, as far as the budget has them.
const RECEIVES_EACH: u32 = 16;

/// Numbers that follow from the budget.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// For the engine.
    pub(super) engine: EngineConfig,
    /// Completions that an RDMA device's queue has to hold.
    pub(super) device_completions: u32,
    /// Units of the pool of Sends and Receives.
    pub(super) messages: usize,
    /// Pages of the payload pool.
    pub(super) pages: usize,
    /// Octets of them that files may take.
    pub(super) files_len_max: u64,
    /// Octets of them that are for Calls on their way.
    pub(super) transit_len: usize,
    /// Locks of all clients.
    pub(super) locks: LockConfig,
    /// Objects that all exports together may have.
    pub(super) objects_max: u32,
    /// Octets of the arena that both pools are cut from.
    pub(super) arena_len: usize,
    /// The sum.
    pub(super) prices: PriceList,
}

impl Plan {
    /// Cuts the budget. Fails if what must be does not fit.
    pub(super) fn new(settings: &Settings) -> Result<Plan, Failure> {
        let default = EngineConfig::default();
        // Large messages must not eat up the budget: fewer Receives then, and so fewer credits at once.
        let affordable = settings.memory / RECEIVES_SHARE / (2 * u64::from(settings.inline_threshold));
        let connections = settings.connections_max;
        let least = (2 * connections).max(settings.credits + connections);
        let usual = default.receives_max.max(RECEIVES_EACH * connections);
        let mut engine = EngineConfig {
            inline_threshold: settings.inline_threshold,
            credits_max: settings.credits,
            connections_max: connections,
            streams_max: connections,
            receives_max: u32::try_from(affordable).unwrap_or(u32::MAX).clamp(least, usual.max(least)),
            stream_congestion_control: settings.congestion_control.map(|name| name.0),
            duplicates_max: u32::try_from(settings.memory / MEMORY_PER_DUPLICATE)
                .unwrap_or(u32::MAX)
                .clamp(256, 1 << 20),
            ..default
        };
        engine.check().map_err(Failure::usage)?;

        let messages = Pools::messages_needed(&engine);
        let messages_len = Pool::footprint(engine.message_len(), messages);
        let connections = u64::from(engine.connections_max);
        let capacity = engine.serving_capacity();
        let device_completions = Verbs::completions_needed(&capacity);
        let queue_pair_len = match settings.fabric {
            None | Some(Fabric::Shm) => Shm::queue_pair_len(&capacity, engine.capacity().exposures) as u64,
            Some(Fabric::Iwarp) => Iwarp::queue_pair_len(&capacity) as u64,
            Some(Fabric::Verbs) => {
                Verbs::queue_pair_len(&capacity) as u64 + device_completions * DEVICE_COMPLETION_LEN
            }
        };
        let device_completions = device_completions * connections;
        let connection_len = queue_pair_len + engine.connection_len() as u64;
        let (calls, call_len) = (u64::from(engine.receives_max), engine.call_len() as u64);
        let objects_max = settings.memory / MEMORY_PER_OBJECT;
        let locks = LockConfig::within(settings.memory / LOCKS_SHARE);
        // What is not payload.
        let (streams, stream_len) = (u64::from(engine.streams_max), engine.stream_len() as u64);
        let duplicates = engine.duplicates_len() as u64;
        let long = LONG_REPLY_LEN_MAX as u64 + u64::from(engine.chunk_len_max);
        let fixed = connection_len * connections
            + call_len * calls
            + stream_len * streams
            + duplicates
            + locks.memory_max()
            + HEAP_PER_OBJECT * objects_max
            + long
            + messages_len as u64;
        let left = settings.memory.saturating_sub(fixed);
        let arena_len = (left as usize + messages_len) / ROUNDING * ROUNDING;
        let pages = arena_len.saturating_sub(messages_len) / PAGE_LEN;
        // The largest transfer that every client must get through, several at once.
        let pages_min = 4 * engine.chunk_len_max as usize / PAGE_LEN;
        if pages < pages_min {
            let wanted = fixed + (pages_min * PAGE_LEN + ROUNDING) as u64;
            return Err(Failure::usage(format_args!(
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
        let transit_min = TRANSIT_MIN * engine.chunk_len_max as usize / PAGE_LEN;
        let transit = if stores > 0 { (pages / TRANSIT_SHARE).max(transit_min) } else { pages };
        let files = pages.saturating_sub(transit + holes);
        engine.stream_memory = u32::try_from(transit * PAGE_LEN / STREAM_SHARE)
            .unwrap_or(u32::MAX)
            .clamp(engine.chunk_len_max + 2 * PAGE_LEN as u32, 1 << 30);
        engine.check().map_err(Failure::usage)?;

        let mut prices = PriceList::new();
        prices
            .add("Receives and Sends", engine.message_len() as u64, messages as u64)
            .add("files, in pages", PAGE_LEN as u64, files as u64)
            .add("what holes of files are read from, in pages", PAGE_LEN as u64, holes as u64)
            .add("Calls on their way, in pages", PAGE_LEN as u64, (pages - files - holes) as u64)
            .add("long messages, at most", long, 1)
            .add("connections, at most", connection_len, connections)
            .add("Calls in process, at most", call_len, calls)
            .add("TCP connections, at most", stream_len, streams)
            .add("Replies kept for retransmissions", duplicates, 1)
            .add("locks, at most", locks.memory_max(), 1)
            .add("objects, names, page tables, at most", HEAP_PER_OBJECT, objects_max);
        let lost = settings.memory - prices.bytes();
        prices.add("rounding", lost, 1);
        Ok(Plan {
            engine,
            device_completions: u32::try_from(device_completions).unwrap_or(u32::MAX),
            messages,
            pages,
            files_len_max: (files * PAGE_LEN) as u64,
            transit_len: (pages - files - holes) * PAGE_LEN,
            locks,
            objects_max: u32::try_from(objects_max).unwrap_or(u32::MAX),
            arena_len,
            prices,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stagd::StagdOptions;

    fn plan(memory: &str, threshold: &str, credits: u32) -> Result<(Settings, Plan), Failure> {
        plan_over("shm://test", memory, threshold, credits)
    }

    fn plan_over(
        url: &str,
        memory: &str,
        threshold: &str,
        credits: u32,
    ) -> Result<(Settings, Plan), Failure> {
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
            let pools = Pool::footprint(plan.engine.message_len(), plan.messages) + plan.pages * PAGE_LEN;
            assert!(pools <= plan.arena_len, "{memory}");
        }
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
        let Plan { engine, prices, .. } = Plan::new(&settings).unwrap();
        assert_eq!((engine.connections_max, engine.streams_max), (1000, 1000));
        assert!(engine.receives_max >= 4 * 1000, "{}", engine.receives_max);
        assert_eq!(prices.bytes(), settings.memory, "{prices}");
        let Err(Failure::Usage(text)) = Settings::new(&StagdOptions { connections_max: Some(0), ..options })
        else {
            panic!("0 clients are no server")
        };
        assert_eq!(text, "--connections-max 0: it must be 1 to 65536");
    }

    #[test]
    fn connections_over_verbs_are_paid_for() {
        let (_, shm) = plan("256M", "4K", 64).unwrap();
        let (settings, verbs) = plan_over("verbs://[::]", "256M", "4K", 64).unwrap();
        assert_eq!(verbs.prices.bytes(), settings.memory, "{}", verbs.prices);
        assert!(verbs.pages < shm.pages, "{}", verbs.prices);
        assert!(verbs.device_completions >= verbs.engine.serving_completions_max());
    }

    #[test]
    fn too_small_a_budget_says_how_much_is_needed() {
        let error = plan("16M", "256K", 1024).unwrap_err();
        let Failure::Usage(text) = error else { panic!("{error}") };
        assert!(
            text.contains("--memory 16 MiB:")
                && text.contains("are needed for --connections-max 64, --credits 1024"),
            "{text}"
        );
    }
}
