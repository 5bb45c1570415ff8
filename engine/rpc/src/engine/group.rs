//! An engine among others: groups of reactors, and connections that come in at one engine and are served by another.

use stag_fabric::{Peer, Provider};
use stag_runtime::{GroupMember, ReactorId};

use crate::carried::{CallLanes, exchange};
use crate::engine::Engine;
use crate::group::{self, EngineGroup};
use crate::newcomers::{self, Doorkeeper, Newcomer, ServedAt};
use crate::service::Services;

impl<P: Provider, S: Services> Engine<P, S> {
    /// Makes this engine that of `reactor` in a group that is one server: reactor 0 listens, and connections are spread over all. Services
    /// may say that a Call is executed at another reactor ([`Service::home`](crate::Service::home)). Before the first connection. All
    /// engines of a group have the same services, in the same order.
    ///
    /// `member` is what the [`ReactorGroup`](stag_runtime::ReactorGroup) hands to the function that makes the engine; `None`
    /// where no reactor sleeps, as in simulations. Where a service carries Calls, the others send what lies in the payload pool of
    /// this engine: each registers the arenas of all with its provider, before its first connection. An arena of its own that a
    /// service sends from must be registered with all providers by its owner. Which reactor a pool belongs to,
    /// [`Memory::owned_by`](crate::Memory::owned_by) says.
    ///
    /// # Panics
    ///
    /// If the group has no such reactor, or its engine has joined already, or the payload pool is another reactor's.
    pub fn join_group(&mut self, group: &EngineGroup<P>, reactor: ReactorId, member: Option<GroupMember>) {
        group::join(self, group, reactor, member);
    }

    /// Makes this engine one of a group: services may say that a Call is executed at another reactor
    /// ([`Service::home`](crate::Service::home)).
    /// Before the first connection. All engines of a group have the same services, in the same order. Connections stay where they
    /// come in; [`Engine::join_group`] spreads them too.
    ///
    /// `member` wakes the others; `None` where no reactor sleeps. What is in the payload pool of one engine may be sent by
    /// each other one: each registers the arenas of all with its provider, before its first connection. The pool says whose it
    /// is ([`Pool::owned_by`](stag_memory::Pool::owned_by)).
    pub fn join(&mut self, lanes: CallLanes, member: Option<GroupMember>) {
        exchange::join(&mut self.core, lanes, member);
    }

    /// Takes on no more connections of clients. Existing connections go on as before, until they end.
    pub fn refuse_newcomers(&mut self) {
        self.core.refuses_newcomers = true;
        if let Some(streams) = &mut self.streams {
            streams.close_listeners();
        }
    }

    /// What other engines must know of this one to let connections go to it.
    #[must_use]
    pub fn destination(&self) -> P::Destination {
        self.core.provider.destination()
    }

    /// From now on `place` says for each incoming connection where it is served. It is called once for each, with the peer.
    ///
    /// The caller has to call [`Engine::take_released`] after each pass until it gives nothing: meanwhile the engine does not let
    /// its reactor sleep. At most 1024 connections of a kind wait; more are served here, as are those for a number that is not in
    /// `destinations`.
    pub fn set_placement(
        &mut self,
        destinations: Vec<P::Destination>,
        place: impl FnMut(&Peer) -> ServedAt + 'static,
    ) {
        self.core.doorkeeper = Some(Doorkeeper::new(destinations.len(), place));
        self.destinations = destinations;
    }

    /// The next connection to hand over to another engine, and that engine's number.
    pub fn take_released(&mut self) -> Option<(usize, Newcomer<P::Handover>)> {
        newcomers::take_released(self)
    }

    /// Takes on a connection that another engine let go. The next pass admits it, or refuses it as if it had come in here.
    pub fn adopt_connection(&mut self, newcomer: Newcomer<P::Handover>) {
        newcomers::adopt(self, newcomer);
    }
}
