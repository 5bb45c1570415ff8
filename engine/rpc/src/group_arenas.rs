//! The arenas of a group: each engine sends what lies in the payload memory of the others.

use std::sync::{Arc, Mutex, PoisonError};

use stag_fabric::{FabricError, Provider};
use stag_memory::Arena;

/// The arenas of the engines of one group that have joined. Clones are the same list.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupArenas(Arc<Mutex<Vec<Arena>>>);

impl GroupArenas {
    /// Adds the arena of an engine that joins.
    pub(crate) fn add(&self, arena: &Arena) {
        // A panic elsewhere cannot leave the list half changed.
        let mut arenas = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if arenas.iter().all(|known| known.id() != arena.id()) {
            arenas.push(arena.clone());
        }
    }

    /// Registers those that `provider` does not have yet.
    ///
    /// # Errors
    ///
    /// What the provider says of the first that it does not take.
    pub(crate) fn register_with<P: Provider>(&self, provider: &mut P) -> Result<(), FabricError> {
        let arenas = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        arenas.iter().try_for_each(|arena| match provider.is_registered(arena.id()) {
            true => Ok(()),
            false => provider.register(arena),
        })
    }
}
