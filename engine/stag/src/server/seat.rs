//! [`Seat`]: where a service is.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use stag_memory::{Arena, Pool};
use stag_runtime::{Clock, CoreId, ReactorId};

/// Where a service is: its core and fabric, and what it may use there. What
/// [`Server::new`](crate::Server::new) hands to the function that makes it.
#[derive(Clone)]
pub struct Seat {
    pub(super) reactor: ReactorId,
    pub(super) count: usize,
    pub(super) core: Option<CoreId>,
    pub(super) fabric: &'static str,
    pub(super) payload: Pool,
    pub(super) arena: Arena,
    pub(super) clock: Clock,
    pub(super) shared: Rc<RefCell<Vec<Rc<dyn Any>>>>,
}

impl Seat {
    /// Which of the server's cores this is, counted from 0: what [`Home::At`](stag_rpc::Home::At) takes.
    #[must_use]
    pub fn reactor(&self) -> ReactorId {
        self.reactor
    }

    /// Cores of the server.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The core that the thread is pinned to, if it is.
    #[must_use]
    pub fn core(&self) -> Option<CoreId> {
        self.core
    }

    /// The name of the fabric whose Calls the service gets: `shm`, `iwarp`, `verbs`. Calls over TCP come with those of the first.
    #[must_use]
    pub fn fabric(&self) -> &'static str {
        self.fabric
    }

    /// Memory for data. All fabrics of all cores can send what lies in it. Data of Calls arrives in it, too.
    #[must_use]
    pub fn payload(&self) -> &Pool {
        &self.payload
    }

    /// The memory that [`Seat::payload`] is cut from, for what has to know of it beforehand, as `stag::disk` does.
    #[must_use]
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The clock of all cores.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// What the services of this core have in common: made by the first that asks for this type, the same for all that follow. A
    /// server with several fabrics needs it for everything that a client of one fabric shall see of another's.
    pub fn shared<T: 'static>(&self, make: impl FnOnce() -> T) -> Rc<T> {
        let find = || self.shared.borrow().iter().find_map(|any| any.clone().downcast::<T>().ok());
        if let Some(found) = find() {
            return found;
        }
        // Not borrowed meanwhile: `make` may ask for other types.
        let made = Rc::new(make());
        self.shared.borrow_mut().push(made.clone());
        made
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat")
            .field("reactor", &self.reactor)
            .field("count", &self.count)
            .field("fabric", &self.fabric)
            .finish_non_exhaustive()
    }
}
