//! One core of a server: an engine for each fabric, as one poller.

use std::any::Any;
use std::cell::RefCell;
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

#[cfg(feature = "iwarp")]
use stag_fabric::Iwarp;
use stag_fabric::Provider;
#[cfg(feature = "shm")]
use stag_fabric::Shm;
#[cfg(feature = "verbs")]
use stag_fabric::Verbs;
use stag_memory::{Arena, Ledger};
use stag_rpc::{CARRIED_CALLS_MAX, Engine, EngineConfig, EngineGroup, Memory, PAGE_LEN, Pools, Services};
use stag_runtime::{GroupMember, Poller, ReactorGroup, StopFlag, Stopped};

use super::error::{ServerError, system};
use super::running::ServerEnd;
use super::seat::Seat;
use super::service_set::ServiceSet;
use super::statistics::{CoreCounted, Desk, Desks};
use crate::fabrics::{FabricOptions, Open};
use crate::url::Scheme;

/// Connections that a core serves at most, beside what its engine serves by RDMA: those over TCP.
fn connections_max(config: &EngineConfig) -> u32 {
    config.connections_max.saturating_add(config.streams_max)
}

/// A server that is going to run.
pub(super) struct Plan {
    pub(super) places: Vec<(Scheme, String)>,
    /// Each once. The first has the sockets of RPC over TCP.
    pub(super) fabrics: Vec<Scheme>,
    pub(super) config: EngineConfig,
    pub(super) options: FabricOptions,
    pub(super) payload_len: usize,
    pub(super) catches_panics: bool,
    pub(super) desks: Desks,
}

/// The engines of each fabric, as one server; `None` where there is one core, or not this fabric.
struct Groups {
    #[cfg(feature = "shm")]
    shm: Option<EngineGroup<Shm>>,
    #[cfg(feature = "iwarp")]
    iwarp: Option<EngineGroup<Iwarp>>,
    #[cfg(feature = "verbs")]
    verbs: Option<EngineGroup<Verbs>>,
}

/// The engines of one core.
struct CoreEngines<S: ServiceSet> {
    #[cfg(feature = "shm")]
    shm: Option<Engine<Shm, S::Guarded>>,
    #[cfg(feature = "iwarp")]
    iwarp: Option<Engine<Iwarp, S::Guarded>>,
    #[cfg(feature = "verbs")]
    verbs: Option<Engine<Verbs, S::Guarded>>,
    ledgers: Vec<Ledger>,
    desk: Desk,
}

/// Does something with each engine that is there. One copy of the code for each fabric: nothing is looked up while it runs.
macro_rules! each {
    ($engines:ident . $how:ident, $engine:ident => $do:expr) => {{
        #[cfg(feature = "shm")]
        if let Some($engine) = $engines.shm.$how() {
            $do
        }
        #[cfg(feature = "iwarp")]
        if let Some($engine) = $engines.iwarp.$how() {
            $do
        }
        #[cfg(feature = "verbs")]
        if let Some($engine) = $engines.verbs.$how() {
            $do
        }
    }};
}

/// What the fabrics of a core have in common.
struct CoreParts<'a> {
    member: &'a GroupMember,
    pools: Pools,
    /// Whether an engine has the message buffers of `pools`.
    are_messages_taken: bool,
    arena: Arena,
    ledgers: Vec<Ledger>,
    shared: Rc<RefCell<Vec<Rc<dyn Any>>>>,
}

impl Plan {
    /// Serves until `stop` is requested. Sends the URLs when all cores are made and all are listened at.
    pub(super) fn run<F, S>(
        self,
        reactors: ReactorGroup,
        stop: &StopFlag,
        make: &F,
        ready: mpsc::Sender<Vec<String>>,
    ) -> Result<ServerEnd, ServerError>
    where
        F: Fn(&Seat) -> S + Sync,
        S: ServiceSet,
    {
        let count = reactors.statistics().len();
        let groups = self.groups(count).map_err(system("make the lanes between cores"))?;
        let urls = Mutex::new(Vec::new());
        let missing = AtomicUsize::new(count);
        let make_core = |member: GroupMember| {
            let engines = self.make_core(&member, &groups, make, &urls)?;
            // AcqRel: the last one sees what the first one wrote, which a lock guards besides.
            if missing.fetch_sub(1, Ordering::AcqRel) == 1 {
                let urls = urls.lock().unwrap_or_else(PoisonError::into_inner);
                // Fails when no one waits for it any more.
                let _ = ready.send(urls.clone());
            }
            Ok::<_, ServerError>(engines)
        };
        let ended = reactors.run(stop, make_core, |engines, stopped| engines.end(stopped))?;
        Ok(ServerEnd {
            drained: ended.iter().all(|(stopped, _)| stopped.drained),
            buffers_lost: ended.iter().map(|(_, lost)| lost).sum(),
        })
    }

    fn has(&self, scheme: Scheme) -> bool {
        self.fabrics.contains(&scheme)
    }

    fn groups(&self, count: usize) -> io::Result<Groups> {
        Ok(Groups {
            #[cfg(feature = "shm")]
            shm: self.group(count, Scheme::Shm)?,
            #[cfg(feature = "iwarp")]
            iwarp: self.group(count, Scheme::Iwarp)?,
            #[cfg(feature = "verbs")]
            verbs: self.group(count, Scheme::Verbs)?,
        })
    }

    fn group<P: Provider>(&self, count: usize, scheme: Scheme) -> io::Result<Option<EngineGroup<P>>> {
        let is_needed = count > 1 && self.has(scheme);
        let connections_max = connections_max(&self.config);
        is_needed.then(|| EngineGroup::new(count, CARRIED_CALLS_MAX, connections_max)).transpose()
    }

    fn make_core<F, S>(
        &self,
        member: &GroupMember,
        groups: &Groups,
        make: &F,
        urls: &Mutex<Vec<String>>,
    ) -> Result<CoreEngines<S>, ServerError>
    where
        F: Fn(&Seat) -> S,
        S: ServiceSet,
    {
        let others = self.fabrics.len() - 1;
        let payload_len = self.payload_len + others * self.config.target_pages() * PAGE_LEN;
        let memory = Memory::new(&self.config, payload_len)?.owned_by(member.id());
        let mut parts = CoreParts {
            member,
            pools: memory.pools,
            are_messages_taken: false,
            arena: memory.arena,
            ledgers: vec![memory.ledger],
            shared: Rc::default(),
        };
        let engines = CoreEngines::<S> {
            #[cfg(feature = "shm")]
            shm: self.engine(Scheme::Shm, &mut parts, groups.shm.as_ref(), make)?,
            #[cfg(feature = "iwarp")]
            iwarp: self.engine(Scheme::Iwarp, &mut parts, groups.iwarp.as_ref(), make)?,
            #[cfg(feature = "verbs")]
            verbs: self.engine(Scheme::Verbs, &mut parts, groups.verbs.as_ref(), make)?,
            ledgers: parts.ledgers,
            desk: self.desks.take(member.id().index()),
        };
        if member.id().index() == 0 {
            let mut engines = engines;
            let mut urls = urls.lock().unwrap_or_else(PoisonError::into_inner);
            for (scheme, address) in &self.places {
                urls.push(engines.listen(*scheme, address)?);
            }
            return Ok(engines);
        }
        Ok(engines)
    }

    /// The engine of one fabric, if that is served.
    fn engine<P, F, S>(
        &self,
        scheme: Scheme,
        parts: &mut CoreParts<'_>,
        group: Option<&EngineGroup<P>>,
        make: &F,
    ) -> Result<Option<Engine<P, S::Guarded>>, ServerError>
    where
        P: Open,
        F: Fn(&Seat) -> S,
        S: ServiceSet,
    {
        if !self.has(scheme) {
            return Ok(None);
        }
        let mut provider = P::open_for(&self.options, &self.config)?;
        let pools = match std::mem::replace(&mut parts.are_messages_taken, true) {
            false => parts.pools.clone(),
            true => {
                // Messages of its own; data lies in the memory that all fabrics of the core share.
                let memory = Memory::new(&self.config, PAGE_LEN)?;
                provider.register(&memory.arena)?;
                parts.ledgers.push(memory.ledger);
                Pools { messages: memory.pools.messages, payload: parts.pools.payload.clone() }
            }
        };
        provider.register(&parts.arena)?;
        let member = parts.member;
        let seat = Seat {
            reactor: member.id(),
            count: member.count(),
            core: member.core(),
            fabric: provider.name(),
            payload: pools.payload.clone(),
            arena: parts.arena.clone(),
            clock: member.clock(),
            shared: parts.shared.clone(),
        };
        let services = make(&seat).guarded(self.catches_panics);
        let mut engine = Engine::new(provider, services, pools, self.config, 0)?;
        if let Some(group) = group {
            engine.join_group(group, member.id(), Some(member.clone()));
        }
        Ok(Some(engine))
    }
}

/// Listens at a fabric's address, and says where that is.
fn listen<P: Provider, S: Services>(
    engine: &mut Option<Engine<P, S>>,
    scheme: Scheme,
    address: &str,
) -> Result<String, ServerError> {
    let Some(engine) = engine else { unreachable!("each fabric that is listened at has an engine") };
    let listener = engine.listen(address)?;
    let chosen = engine.provider().listener_address(listener);
    Ok(format!("{scheme}://{}", chosen.map_or(address.to_owned(), |chosen| chosen.to_string())))
}

impl<S: ServiceSet> CoreEngines<S> {
    fn listen(&mut self, scheme: Scheme, address: &str) -> Result<String, ServerError> {
        match scheme {
            #[cfg(feature = "shm")]
            Scheme::Shm => listen(&mut self.shm, scheme, address),
            #[cfg(feature = "iwarp")]
            Scheme::Iwarp => listen(&mut self.iwarp, scheme, address),
            #[cfg(feature = "verbs")]
            Scheme::Verbs => listen(&mut self.verbs, scheme, address),
            Scheme::Tcp => {
                each!(self.as_mut, engine => return Ok(format!("tcp://{}", engine.listen_tcp(address)?)));
                unreachable!("a server has an engine")
            }
            // A URL of a fabric that is not built is refused earlier.
            #[allow(unreachable_patterns)]
            _ => unreachable!("{scheme} is not built"),
        }
    }

    /// What they count.
    fn counted(&mut self) -> CoreCounted {
        let mut counted = CoreCounted::default();
        each!(self.as_mut, engine => {
            counted.engines += engine.statistics();
            counted.connections += engine.connection_count() + engine.stream_count();
            counted.procedures.extend(S::procedures(engine.services_mut()));
        });
        counted
    }

    #[cold]
    fn answer(&mut self) {
        let counted = self.counted();
        self.desk.answer(&counted);
    }

    /// Ends them. Returns how many buffers did not come back.
    fn end(mut self, _: &Stopped) -> usize {
        let counted = self.counted();
        self.desk.end(counted);
        let ledgers = std::mem::take(&mut self.ledgers);
        // What the engines hold goes back to the pools.
        drop(self);
        ledgers.iter().map(Ledger::outstanding).sum()
    }
}

impl<S: ServiceSet> Poller for CoreEngines<S> {
    #[inline]
    fn poll(&mut self, now: Duration) -> usize {
        let mut events = 0;
        each!(self.as_mut, engine => events += engine.poll(now));
        if !self.desk.is_idle() {
            self.answer();
        }
        events
    }

    fn next_timeout(&self) -> Option<Duration> {
        let mut next = None;
        each!(self.as_ref, engine => next = next.into_iter().chain(engine.next_timeout()).min());
        next
    }

    fn arm(&mut self) -> bool {
        let mut may_sleep = self.desk.questions().arm();
        each!(self.as_mut, engine => may_sleep = may_sleep && engine.arm());
        may_sleep
    }

    fn disarm(&mut self) {
        self.desk.questions().disarm();
        each!(self.as_mut, engine => engine.disarm());
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        each!(self.as_ref, engine => engine.descriptors(out));
        out.push(self.desk.descriptor());
    }

    fn stop(&mut self, now: Duration) {
        each!(self.as_mut, engine => engine.stop(now));
    }

    fn is_drained(&self) -> bool {
        let mut is_drained = true;
        each!(self.as_ref, engine => is_drained = is_drained && engine.is_drained());
        is_drained
    }

    fn give_back(&mut self, now: Duration) {
        each!(self.as_mut, engine => engine.give_back(now));
    }

    fn has_given_back(&self) -> bool {
        let mut has = true;
        each!(self.as_ref, engine => has = has && engine.has_given_back());
        has
    }
}
