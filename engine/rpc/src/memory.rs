//! One arena with an engine's pools, as most programs need it.

use stag_memory::{Arena, ArenaConfig, ArenaError, Budget, Ledger, PageChoice, Pool, PoolError, PriceList};

use stag_runtime::ReactorId;

use crate::EngineConfig;
use crate::pools::{PAGE_LEN, Pools};

/// An arena, the pools cut from it, and what they cost.
///
/// Register `arena` with the provider before the engine is made.
#[derive(Debug)]
pub struct Memory {
    /// The memory.
    pub arena: Arena,
    /// An engine's pools, all of the arena.
    pub pools: Pools,
    /// What the memory is spent on.
    pub prices: PriceList,
    /// Knows the pools: at the end it tells whether every buffer came back.
    pub ledger: Ledger,
}

/// Why there is no memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// No arena.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// No pool.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

impl Memory {
    /// Makes an arena that holds the message buffers that `config` needs and `payload_len` octets of payload
    /// pages, beside those of [`EngineConfig::target_pages`], on the largest pages the machine has, on any NUMA node.
    ///
    /// # Errors
    ///
    /// When the system has not so much.
    pub fn new(config: &EngineConfig, payload_len: usize) -> Result<Memory, MemoryError> {
        Memory::of(config, payload_len, Arena::new)
    }

    /// As [`Memory::new`], on ordinary pages that come when they are first touched ([`Arena::on_demand`]): for engines on the
    /// simulator.
    ///
    /// # Errors
    ///
    /// When the system has not so much.
    pub fn on_demand(config: &EngineConfig, payload_len: usize) -> Result<Memory, MemoryError> {
        Memory::of(config, payload_len, Arena::on_demand)
    }

    fn of(
        config: &EngineConfig,
        payload_len: usize,
        make: impl FnOnce(&ArenaConfig<'_>) -> Result<Arena, ArenaError>,
    ) -> Result<Memory, MemoryError> {
        let messages = Pools::messages_needed(config);
        let pages = payload_len.div_ceil(PAGE_LEN) + config.target_pages();
        let mut prices = PriceList::new();
        prices.add("message buffers", Pool::footprint(config.message_len(), 1) as u64, messages as u64);
        prices.add("payload pages", PAGE_LEN as u64, pages as u64);
        // Whole 2 MiB pages, so that nothing is lost by rounding where there are some.
        let sum = Pool::footprint(config.message_len(), messages) + Pool::footprint(PAGE_LEN, pages);
        let len = sum.next_multiple_of(2 << 20);
        let budget = Budget::new(len as u64);
        let page = PageChoice::Auto;
        let arena = make(&ArenaConfig { name: "stag", len, page, node: None, budget: &budget })?;
        let pools = Pools {
            messages: Pool::fixed(&arena, "messages", config.message_len(), messages)?,
            payload: Pool::runs(&arena, "payload", PAGE_LEN, pages)?,
        };
        let mut ledger = Ledger::new();
        ledger.register(&pools.messages);
        ledger.register(&pools.payload);
        Ok(Memory { arena, pools, prices, ledger })
    }

    /// The same memory, as that of a reactor of a group: what it lends to others comes back there.
    ///
    /// # Panics
    ///
    /// If some of it is in use.
    #[must_use]
    pub fn owned_by(mut self, reactor: ReactorId) -> Memory {
        // A group has 64 reactors at most.
        self.pools.payload = self.pools.payload.owned_by(reactor.index() as u8);
        self
    }
}
