//! The engine: all work of a reactor's RPC connections.
//!
//! Its methods are in four files: here what makes, describes and configures an engine, `pass.rs` (what the reactor calls),
//! `client.rs` and `group.rs`. What belongs to another subject is a function of that subject's module.

mod client;
mod group;
mod pass;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use stag_fabric::{Completion, DisconnectReason, FabricError, ListenerId, LogLimiter, Peer, Provider};

use crate::ConnectionId;
use crate::config::{ConfigError, EngineConfig};
use crate::connection::{Connection, Connections};
use crate::gauges::{self, CreditGauge, ServedConnection};
use crate::group::Membership;
use crate::pools::Pools;
use crate::ready::ReadyLists;
use crate::recorder::{BadEnd, Recorder, Recording};
use crate::security::sealed::Seals;
use crate::server::admission::ConnectRequest;
use crate::server::doomed::DoomedCalls;
use crate::server::duplicates::Duplicates;
use crate::server::governor::CreditLedger;
use crate::server::spares::Spares;
use crate::server::transit::TransitAccounts;
use crate::service::Services;
use crate::service::deferred::Deferrals;
use crate::service::late::Answerer;
use crate::state::{Core, EngineState};
use crate::statistics::Statistics;
use crate::stream::{Streams, later_max};

/// Lines a second about clients that come and go.
const COMINGS_MAX: u32 = 50;

/// Why an engine could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A number is out of its range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The provider cannot carry what was asked.
    #[error("{what}: {wanted} wanted, the fabric's limit is {limit}; {repair}")]
    Fabric {
        /// The thing.
        what: &'static str,
        /// What the configuration wants.
        wanted: u64,
        /// What the fabric can do.
        limit: u64,
        /// What to change.
        repair: &'static str,
    },
    /// Message buffers are smaller than the inline threshold.
    #[error(
        "message buffers of {found} octets cannot hold an inline threshold of {wanted}; make them as large"
    )]
    MessageLen {
        /// Octets of one buffer.
        found: usize,
        /// The inline threshold.
        wanted: usize,
    },
    /// An arena that buffers come from is not registered with the provider: nothing could be sent.
    #[error(
        "the arena {arena:?} of the {pool} pool is not registered with {fabric}; call provider.register(&arena) before \
             Engine::new"
    )]
    NotRegistered {
        /// The pool.
        pool: &'static str,
        /// The arena's name.
        arena: String,
        /// The provider's.
        fabric: &'static str,
    },
    /// There are fewer message buffers than all users of them need: Calls would wait for them, some for ever.
    #[error(
        "{found} message buffers, but {wanted} are needed (Pools::messages_needed); make the pool larger, or lower \
             receives_max or credits_max"
    )]
    Messages {
        /// Buffers in the pool.
        found: usize,
        /// Buffers needed.
        wanted: usize,
    },
}

/// Calls that all connections together may leave for later.
fn calls_max(config: &EngineConfig) -> usize {
    config.receives_max as usize + config.streams_max as usize * later_max()
}

/// RPC over one provider, inside one reactor: connections, their Calls, and the services.
pub struct Engine<P: Provider, S> {
    pub(crate) core: Core<P>,
    pub(crate) services: S,
    pub(crate) connections: Vec<Option<Box<Connection>>>,
    /// Of these, how many there are.
    connection_count: usize,
    /// Clients' connections that ended and will be made anew.
    #[allow(clippy::vec_box, reason = "the box moves here from `connections`, and back")]
    pub(crate) parked: Vec<Box<Connection>>,
    /// Clients' connections that were: their names, and their queue pairs of today.
    pub(crate) moved: Vec<(ConnectionId, ConnectionId)>,
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) disconnects: Vec<(ConnectionId, DisconnectReason)>,
    pub(crate) requests: Vec<ConnectRequest>,
    /// Requests that belong to other engines: to which, and what they are. And where those engines are.
    pub(crate) released: VecDeque<(usize, Peer, P::Handover, Vec<u8>)>,
    pub(crate) destinations: Vec<P::Destination>,
    /// What it has of its group.
    pub(crate) membership: Option<Box<Membership<P>>>,
    pub(crate) next_scan: Duration,
    xid_seed: u32,
    /// RPC over TCP, once there is some.
    pub(crate) streams: Option<Box<Streams>>,
}

impl<P: Provider, S: Services> Engine<P, S> {
    /// Makes an engine. The arenas of `pools` must be registered with `provider`.
    ///
    /// `seed` makes a client's transaction ids differ from run to run: take it from the system's randomness, not from the
    /// process id, which is the same each time in a container. Otherwise a server's duplicate cache may answer with the
    /// previous run's Replies. Ignored by engines that only serve.
    ///
    /// # Errors
    ///
    /// When numbers do not fit together; see [`EngineError`].
    pub fn new(
        provider: P,
        services: S,
        pools: Pools,
        config: EngineConfig,
        seed: u32,
    ) -> Result<Engine<P, S>, EngineError> {
        config.check()?;
        let limits = provider.limits();
        let config = config.over(&limits);
        if config.message_len() > limits.message_len_max as usize {
            return Err(EngineError::Fabric {
                what: "inline_threshold",
                wanted: config.message_len() as u64,
                limit: limits.message_len_max.into(),
                repair: "lower it",
            });
        }
        if pools.messages.unit_len() < config.message_len() {
            return Err(EngineError::MessageLen {
                found: pools.messages.unit_len(),
                wanted: config.message_len(),
            });
        }
        for pool in [&pools.messages, &pools.payload] {
            if !provider.is_registered(pool.arena().id()) {
                let (pool, arena) = (pool.name(), pool.arena().name().to_owned());
                return Err(EngineError::NotRegistered { pool, arena, fabric: provider.name() });
            }
        }
        let (found, wanted) = (pools.messages.units(), Pools::messages_needed(&config));
        if found < wanted {
            return Err(EngineError::Messages { found, wanted });
        }
        let calls = config.credits_max as usize * 2;
        Ok(Engine {
            services,
            connections: Vec::new(),
            connection_count: 0,
            parked: Vec::new(),
            moved: Vec::new(),
            completions: VecDeque::with_capacity(config.burst),
            disconnects: Vec::new(),
            requests: Vec::new(),
            released: VecDeque::new(),
            destinations: Vec::new(),
            membership: None,
            next_scan: Duration::ZERO,
            xid_seed: seed,
            streams: None,
            core: Core {
                provider,
                state: EngineState {
                    pools,
                    config,
                    statistics: Statistics::default(),
                    duplicates: Duplicates::new(config.duplicates_max),
                    deferrals: Deferrals::new(calls_max(&config)),
                    seals: Seals::default(),
                    refused_calls: DoomedCalls::default(),
                    now: Duration::ZERO,
                    completed: VecDeque::with_capacity(calls),
                    events: VecDeque::with_capacity(8),
                    calls_back: Default::default(),
                    drafts: Spares::with_capacity(calls),
                    pulls: Spares::with_capacity(calls),
                    credits: CreditLedger::new(&config.credits()),
                    serving_count: 0,
                    weigh: None,
                    complaints: LogLimiter::default(),
                    defects: LogLimiter::default(),
                    oversized: LogLimiter::default(),
                    comings: LogLimiter::new(COMINGS_MAX),
                    faults: Vec::new(),
                    pass: 0,
                    stopping: false,
                    refuses_newcomers: false,
                    scratch: Vec::new(),
                    gathered: Vec::new(),
                    streams_pressure: None,
                    transit: TransitAccounts::default(),
                    read_posted: false,
                    carrier: None,
                    ready: ReadyLists::default(),
                    doorkeeper: None,
                    departures: None,
                    draft_in_place: Some(Box::default()),
                    recorder: None,
                },
            },
        })
    }

    /// Listens at `address` (a URL's part after `scheme://`) and serves the clients that connect.
    ///
    /// # Errors
    ///
    /// What the provider says.
    pub fn listen(&mut self, address: &str) -> Result<ListenerId, FabricError> {
        self.core.provider.listen(address)
    }

    /// Listens at `address` (`HOST:PORT`) for RPC over TCP, and serves the clients that connect. Returns the
    /// address that it got: with port 0, the system chooses one.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn listen_tcp(&mut self, address: &str) -> Result<SocketAddr, FabricError> {
        self.streams()?.listen(address)
    }

    /// Serves `programs`, and no others, by UDP at `address` too; see `stream/datagram.rs` for what that is good for.
    /// Returns the address that it got.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn listen_udp(
        &mut self,
        address: SocketAddr,
        programs: &'static [u32],
    ) -> Result<SocketAddr, FabricError> {
        self.streams()?.listen_datagrams(address, programs)
    }

    /// TCP connections there are.
    #[must_use]
    pub fn stream_count(&self) -> usize {
        self.streams.as_ref().map_or(0, |streams| streams.count())
    }

    /// Sets a function that gives the weight of a client among those that want credits: 1 to
    /// [`CLIENT_WEIGHT_MAX`](crate::CLIENT_WEIGHT_MAX). All have [`CLIENT_WEIGHT_USUAL`](crate::CLIENT_WEIGHT_USUAL) otherwise.
    /// It is called for each connection that is accepted.
    ///
    /// A client is a network address (of IPv6 the first 64 bits), or a user of this machine, however many connections it has.
    pub fn set_client_weights(&mut self, weigh: impl Fn(&Peer) -> u32 + 'static) {
        self.core.weigh = Some(Box::new(weigh));
    }

    pub(crate) fn streams(&mut self) -> Result<&mut Streams, FabricError> {
        let streams = match self.streams.take() {
            Some(streams) => streams,
            None => Box::new(Streams::new(&self.core.config)?),
        };
        Ok(self.streams.insert(streams))
    }

    /// Connections there are, of both kinds, also those being set up or ended.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.connection_count + self.parked.len()
    }

    /// What was counted so far.
    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        &self.core.statistics
    }

    /// Lists all connections that this engine accepted, over RDMA and TCP. Takes a look at each: not for each pass.
    pub fn served_connections(&self) -> impl Iterator<Item = ServedConnection> + '_ {
        gauges::served_connections(&self.connections, self.streams.as_deref())
    }

    /// Reads the gauges of all connections that this engine accepted over RDMA. Takes a look at each: not for each pass.
    pub fn credit_gauges(&self) -> impl Iterator<Item = CreditGauge> + '_ {
        gauges::credit_gauges(&self.core, &self.connections)
    }

    /// Receives that all connections hold, and the most that they may.
    #[must_use]
    pub fn receives_held(&self) -> (u32, u32) {
        (self.core.credits.held(), self.core.config.receives_max)
    }

    /// Records from now on the first [`RECORDED_LEN_MAX`](crate::RECORDED_LEN_MAX) octets of each of the last `messages` messages, at least 2, on connections
    /// that peers open. `take_bad_end` gets the last ones of a connection that ended badly, 512 at most, as soon as it is gone: one such
    /// connection a second at most, and none of which no message is left. It runs within a pass, so it should only hand them on.
    ///
    /// To be called before the engine listens: connections that are there already are not recorded.
    pub fn record(&mut self, messages: u32, take_bad_end: impl FnMut(BadEnd) + 'static) {
        let recorder = Recorder::new(messages, self.core.provider.name(), take_bad_end);
        self.core.state.recorder = Some(Box::new(recorder));
    }

    /// A copy of what is recorded; `None` without [`Engine::record`].
    #[must_use]
    pub fn recording(&self) -> Option<Recording> {
        self.core.recorder.as_ref().map(|recorder| recorder.copy(self.core.now, None))
    }

    /// The provider.
    #[must_use]
    pub fn provider(&self) -> &P {
        &self.core.provider
    }

    /// The provider, to change it.
    pub fn provider_mut(&mut self) -> &mut P {
        &mut self.core.provider
    }

    /// The services.
    pub fn services_mut(&mut self) -> &mut S {
        &mut self.services
    }

    /// The buffers.
    #[must_use]
    pub fn pools(&self) -> &Pools {
        &self.core.pools
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &EngineConfig {
        &self.core.config
    }

    /// What late answers are sent with, and the services.
    #[inline(always)]
    pub(crate) fn answerer(&mut self) -> (Answerer<'_, P>, &mut S) {
        let Engine { core, services, connections, streams, .. } = self;
        (Answerer { core, connections, streams }, services)
    }

    /// Another seed for a connection's transaction ids (a step of a multiplicative generator).
    pub(crate) fn next_seed(&mut self) -> u32 {
        self.xid_seed = self.xid_seed.wrapping_mul(0x915f_77f5).wrapping_add(0x9e37_79b9);
        self.xid_seed
    }

    pub(crate) fn insert(&mut self, mut connection: Box<Connection>) {
        let index = connection.id.index as usize;
        if self.connections.len() <= index {
            self.connections.resize_with(index + 1, || None);
        }
        self.core.ready.reserve(self.connections.len());
        self.core.ready.touch(&mut connection);
        self.connections[index] = Some(connection);
        self.connection_count += 1;
    }
}

#[inline]
pub(crate) fn find(connections: &mut Connections, id: ConnectionId) -> Option<&mut Connection> {
    connections.get_mut(id.index as usize)?.as_deref_mut().filter(|found| found.id == id)
}
