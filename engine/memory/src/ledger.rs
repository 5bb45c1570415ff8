//! The ledger of a reactor's pools: proves at exit that every buffer came back.

use std::fmt;

use crate::pool::Pool;

/// Lists pools, and tells which of them have buffers that were not returned.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pools: Vec<Pool>,
}

impl Ledger {
    /// An empty list.
    #[must_use]
    pub fn new() -> Ledger {
        Ledger::default()
    }

    /// Adds a pool, and keeps it alive.
    pub fn register(&mut self, pool: &Pool) {
        self.pools.push(pool.clone());
    }

    /// The pools, in the order they were registered.
    #[must_use]
    pub fn pools(&self) -> &[Pool] {
        &self.pools
    }

    /// Units in use, of all pools together. 0: every buffer came back.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.pools.iter().map(Pool::outstanding).sum()
    }

    /// Of these, units that other reactors have on loan ([`Pool::lent`]). They come back when those reactors let go of them.
    #[must_use]
    pub fn lent(&self) -> usize {
        self.pools.iter().map(Pool::lent).sum()
    }

    /// Of the units in use, those that were given up for good ([`Pool::stranded`]): a disk that stands still may access them.
    #[must_use]
    pub fn stranded(&self) -> usize {
        self.pools.iter().map(Pool::stranded).sum()
    }
}

/// One line for each pool with buffers not returned; a single line if there is none.
impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.outstanding() == 0 {
            return write!(f, "{} pools, every buffer returned", self.pools.len());
        }
        let mut lines = self.pools.iter().filter(|pool| pool.outstanding() > 0);
        lines.try_for_each(|pool| {
            let (name, unit_len) = (pool.name(), pool.unit_len());
            writeln!(
                f,
                "pool {name}: {} of {} units of {unit_len} bytes not returned",
                pool.outstanding(),
                pool.units()
            )
        })
    }
}
