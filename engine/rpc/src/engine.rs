//! The engine: one pass over all work of a reactor's RPC connections.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use stag_fabric::{
    Completed, Completion, DisconnectReason, Event, FabricError, ListenerId, LogLimiter, Peer, Provider,
    Withheld, WorkError,
};
use stag_proto::parameters::{InlineSize, Parameters, PrivateData, Side};
use stag_runtime::Poller;
use stag_wire::xdr::{Overflow, Writer};

use crate::ConnectionId;
use crate::client::calling::Calling;
use crate::client::clients::is_named;
use crate::client::reconnect::{ClientPolicy, Session};
use crate::client::{CallId, CallRefused, Chunks, CloseReason, CompletedCall, ConnectionEvent, Request};
use crate::config::{ConfigError, EngineConfig};
use crate::connection::{Connection, FinishedRead};
use crate::group::Membership;
use crate::pools::Pools;
use crate::ready::ReadyLists;
use crate::recorder::Way;
use crate::security::sealed::Seals;
use crate::server::admission::ConnectRequest;
use crate::server::client_log::printable;
use crate::server::doomed::{DoomedCalls, xid_of};
use crate::server::duplicates::Duplicates;
use crate::server::governor::CreditLedger;
use crate::server::spares::Spares;
use crate::server::transit::TransitAccounts;
use crate::service::Services;
use crate::service::deferred::Deferrals;
use crate::state::{Core, EngineState, Pass};
use crate::statistics::Statistics;
use crate::stream::{Streams, is_stream, later_max};

/// How often a pass that finds nothing looks again.
const IDLE_LOOKS: usize = 4;

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

    /// Begins to connect to `address` as a client. A [`ConnectionEvent`] tells how it went.
    ///
    /// [`Pools::messages_needed`] has the message buffers of one such connection. With more of them a Call is refused
    /// ([`CallRefused::NoMemory`]) while others have them all.
    ///
    /// # Errors
    ///
    /// What the provider says.
    pub fn connect(&mut self, address: &str) -> Result<ConnectionId, FabricError> {
        self.connect_with(address, ClientPolicy::default())
    }

    /// As [`Engine::connect`], with a policy for when the connection ends, or falls silent. It applies once the
    /// connection was established; the name that this returns stays when it is made anew.
    ///
    /// # Errors
    ///
    /// What the provider says.
    pub fn connect_with(&mut self, address: &str, policy: ClientPolicy) -> Result<ConnectionId, FabricError> {
        self.register_group()?;
        let own = self.private_data_to_connect();
        let capacity = self.with_targets(self.core.config.capacity());
        let id = self.core.provider.connect(address, &own, capacity)?;
        // It begins with the next pass: the last one may be long ago.
        let mut connection = Connection::new(id, Duration::MAX);
        // Before the Established event the parameters are the smallest; no Call is sent until then.
        let seed = self.next_seed();
        connection.calling = Some(Calling::new(&self.core.config, Parameters::default(), seed, id, policy));
        connection.session = Some(Box::new(Session::new(id, address, policy, seed)));
        self.insert(Box::new(connection));
        Ok(id)
    }

    /// Ends a connection, for good. At a client its Calls complete first, then [`ConnectionEvent::Closed`] comes. A connection
    /// that was accepted, over RDMA or TCP, ends without the answers that are still under way.
    #[cold]
    pub fn disconnect(&mut self, connection: ConnectionId) {
        if let Some(streams) = self.streams.as_mut().filter(|_| is_stream(connection)) {
            return streams.disconnect(&mut self.core, connection);
        }
        if let Some(at) = self.parked.iter().position(|parked| is_named(parked, connection)) {
            let parked = self.parked.swap_remove(at);
            self.close(parked, CloseReason::Fabric(DisconnectReason::Local));
            return;
        }
        let id = self.current(connection);
        if let Some(session) = find(&mut self.connections, id).and_then(|found| found.session.as_deref_mut())
        {
            session.ended = true;
        }
        self.core.provider.disconnect(id);
    }

    /// Begins a Call on an established connection. `encode` writes the arguments; it may be called twice,
    /// when they turn out too long to stay inline, and must write the same both times.
    ///
    /// # Errors
    ///
    /// Nothing is sent then, and `chunks` is as it was. Otherwise it is empty: its memory belongs to the
    /// Call, and the Write chunks' comes back with the [`CompletedCall`].
    pub fn call(
        &mut self,
        connection: ConnectionId,
        request: &Request<'_>,
        chunks: &mut Chunks,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<CallId, CallRefused> {
        let id = self.current(connection);
        let Some(found) = find(&mut self.connections, id) else {
            return Err(self.refusal(connection));
        };
        self.core.ready.wake(found);
        let established = found.established;
        let Some(calling) = found.calling.as_mut().filter(|_| established) else {
            return Err(self.refusal(connection));
        };
        calling.call(&mut self.core, id, request, chunks, encode)
    }

    /// Makes Calls begun since the last pass leave now rather than at the end of the next one.
    #[inline]
    pub fn ring_doorbells(&mut self) {
        self.core.provider.ring_doorbells();
    }

    /// Gives up a Call: its memory is fenced, then it completes with
    /// [`CallError::Cancelled`](crate::CallError::Cancelled). Harmless when it is over already.
    pub fn cancel(&mut self, call: CallId) {
        let id = self.current(call.connection);
        if let Some(found) = find(&mut self.connections, id) {
            if let Some(calling) = found.calling.as_mut() {
                calling.cancel(&mut self.core, id, call.call, crate::CallError::Cancelled);
                self.core.ready.touch(found);
            }
            return;
        }
        let parked = self.parked.iter_mut().find(|found| is_named(found, call.connection));
        if let Some(calling) = parked.and_then(|found| found.calling.as_mut()) {
            calling.cancel(&mut self.core, id, call.call, crate::CallError::Cancelled);
        }
    }

    /// The next Call that is over.
    #[inline]
    pub fn completed(&mut self) -> Option<CompletedCall> {
        self.core.completed.pop_front()
    }

    /// The next change of a connection that this engine opened, and the end of one that it called back.
    pub fn connection_event(&mut self) -> Option<ConnectionEvent> {
        self.core.events.pop_front()
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

    pub(crate) fn connection(&self, name: ConnectionId) -> Option<&Connection> {
        let id = self.current(name);
        self.connections.get(id.index as usize)?.as_deref().filter(|found| found.id == id)
    }

    /// What this side says in its private data (RFC 8797).
    pub(crate) fn settings(&self) -> PrivateData {
        let size = InlineSize::round_down(self.core.config.inline_threshold);
        PrivateData {
            remote_invalidation: self.core.config.remote_invalidation
                && self.core.provider.limits().send_with_invalidate,
            send_size: size,
            receive_size: size,
        }
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

    #[inline(never)]
    fn handle_event(&mut self, event: Event) {
        match event {
            Event::ConnectRequest { request, peer, private_data, .. } => {
                self.place_request(request, peer, private_data);
            }
            Event::Established { queue_pair, private_data, peer } => {
                let settings = self.settings();
                let Some(found) = find(&mut self.connections, queue_pair) else {
                    debug_assert!(false, "{queue_pair} is established, but was not asked for");
                    return;
                };
                self.core.ready.touch(found);
                found.established = true;
                found.peer = Some(peer);
                self.core.statistics.connections_opened += 1;
                if found.serving.is_some()
                    && tracing::enabled!(tracing::Level::INFO)
                    && let Some(withheld) = self.core.state.comings.admit(self.core.state.now)
                {
                    let (client, withheld) = (found.client(), Withheld(withheld));
                    tracing::info!("{client} connected by RDMA{withheld}");
                    tracing::debug!("{client}: {:?}", found.parameters);
                }
                if found.calling.is_some() {
                    let parameters = Parameters::negotiate(Side::Client, &settings, &private_data);
                    found.parameters = parameters;
                    self.handle_connected(queue_pair, parameters, &private_data);
                }
            }
            Event::Disconnected { queue_pair, reason } => self.disconnects.push((queue_pair, reason)),
            // `Event` may grow.
            _ => {}
        }
    }

    /// Whether every connection that waits, or has a deadline, is in the lists for it.
    fn is_listed(&self) -> bool {
        self.connections.iter().flatten().all(|found| {
            let is_to_be_flushed = found.listed.is_touched || self.core.ready.is_touched_late(found.id);
            (is_to_be_flushed || !found.has_waiting()) && (found.listed.is_awake || !found.has_timer())
        })
    }

    pub(crate) fn handle_disconnected(&mut self, id: ConnectionId, reason: DisconnectReason) {
        let Some(mut gone) = find_slot(&mut self.connections, id).and_then(Option::take) else {
            debug_assert!(false, "{id} is gone for the second time");
            return;
        };
        self.connection_count -= 1;
        self.core.ready.forget(&mut gone);
        self.core.statistics.connections_closed += u64::from(gone.established);
        let reason = gone.close_reason.take().unwrap_or(CloseReason::Fabric(reason));
        self.core.note_end(id, &reason);
        if gone.is_accepted()
            && tracing::enabled!(tracing::Level::INFO)
            && let Some(withheld) = self.core.state.comings.admit(self.core.state.now)
        {
            let (client, service) = (gone.client(), gone.service(self.core.now));
            let (reason, withheld) = (reason.describe("the client"), Withheld(withheld));
            tracing::info!("{client} closed: {}; {service}{withheld}", printable(&reason));
        }
        if let Some(serving) = gone.serving.take() {
            serving.close(&mut self.core, id);
            if gone.is_accepted() {
                self.core.calls_back.note_gone(id);
                self.core.note_departure(gone.peer.as_ref());
                self.core.serving_count -= 1;
            }
        }
        self.lose(gone, reason);
    }

    /// Acts on all that one look found, and says how many events were among it.
    #[inline]
    fn handle(&mut self) -> usize {
        let mut events = 0;
        // Established comes before a queue pair's first completion, Disconnected after its last.
        while let Some(event) = self.core.provider.poll_event() {
            events += 1;
            self.handle_event(event);
        }
        if !self.completions.is_empty() {
            self.handle_completions();
        }
        events
    }

    /// Polls a few times more: an idle poll is much cheaper than a pass, and shortens the time from a message's arrival to its
    /// handling.
    // Not inline, as each of these: it would slow down a pass that needs none of it.
    #[inline(never)]
    fn poll_again(&mut self) -> usize {
        for _ in 0..IDLE_LOOKS {
            let count = self.poll_provider();
            if count > 0 {
                return count;
            }
        }
        0
    }

    /// Looks once more: where memory is shared a Read is done when it is posted, and its Call need not wait for another pass. Once
    /// only, so that the pass stays bounded.
    #[inline(never)]
    fn look_after_reads(&mut self) -> usize {
        self.core.read_posted = false;
        self.poll_provider() + self.handle()
    }

    #[inline(never)]
    fn handle_completions(&mut self) {
        while let Some(completion) = self.completions.pop_front() {
            self.complete(completion);
        }
    }

    #[inline]
    fn complete(&mut self, mut completion: Completion) {
        let id = completion.queue_pair;
        let Some(found) = find(&mut self.connections, id) else {
            debug_assert!(false, "{id} is gone, and has a completion");
            return;
        };
        self.core.ready.wake(found);
        match completion.completed {
            // By reference: hardly any message has it, and it is large to move.
            Completed::Receive { buf, invalidated, ref mut exposed } => {
                if completion.result.is_err() {
                    // Flushed: the buffer goes back to its pool.
                    found.receive_flushed(&mut self.core);
                } else {
                    let state = &mut self.core.state;
                    if let Some(recorder) = &mut state.recorder {
                        recorder.note(state.now, id, Way::Received, &buf, invalidated);
                    }
                    let pass = &mut Pass { core: &mut self.core, services: &mut self.services };
                    found.receive(pass, buf, invalidated, exposed);
                }
            }
            Completed::Read(buf) => {
                let read = FinishedRead { request: completion.id, buf, result: completion.result };
                let pass = &mut Pass { core: &mut self.core, services: &mut self.services };
                found.read_done(pass, read);
            }
            Completed::Fence { handle, exposed } => found.fenced(&mut self.core, handle, exposed),
            // Unsignaled, but for the Sends of a stopping server: only failures arrive, and the disconnect that
            // follows them says all.
            Completed::Send(_) => {
                if let (Err(WorkError::Length), Some(xid)) = (completion.result, xid_of(completion.id)) {
                    self.core.state.refused_calls.add(found.peer.as_ref(), xid, self.core.state.now);
                }
                if let Some(serving) = found.serving.as_mut() {
                    serving.sent(&mut self.core);
                }
            }
            Completed::Write(_) => {
                if let (Err(WorkError::RemoteAccess), Some(xid)) = (completion.result, xid_of(completion.id))
                {
                    self.core.state.refused_calls.add(found.peer.as_ref(), xid, self.core.state.now);
                }
            }
        }
        if found.has_waiting() {
            self.core.ready.touch(found);
        }
    }
}

#[inline]
pub(crate) fn find(connections: &mut [Option<Box<Connection>>], id: ConnectionId) -> Option<&mut Connection> {
    connections.get_mut(id.index as usize)?.as_deref_mut().filter(|found| found.id == id)
}

fn find_slot(
    connections: &mut [Option<Box<Connection>>],
    id: ConnectionId,
) -> Option<&mut Option<Box<Connection>>> {
    connections.get_mut(id.index as usize).filter(|slot| slot.as_ref().is_some_and(|found| found.id == id))
}

impl<P: Provider, S: Services> Poller for Engine<P, S> {
    fn poll(&mut self, now: Duration) -> usize {
        (self.core.now, self.core.deferrals.now) = (now, now);
        self.core.pass += 1;
        let mut count = self.poll_provider();
        if count == 0 {
            count = self.poll_again();
        }
        let mut events = count + self.handle();
        if self.core.read_posted {
            events += self.look_after_reads();
        }
        if !self.disconnects.is_empty() || !self.requests.is_empty() {
            self.admit_and_dismiss();
        }
        if let Some(carrier) = &mut self.core.carrier {
            // Calls leave before others' are executed, so that their homes do not wait for that.
            carrier.publish();
            events += self.exchange();
        }
        events += self.answer_late();
        if self.core.ready.is_due() {
            events += self.flush();
        }
        debug_assert!(self.is_listed(), "something waits, and is on no list");
        while let Some(stranger) = self.core.provider.take_stranger() {
            self.place_stranger(stranger);
        }
        if let Some(streams) = &mut self.streams {
            events += streams.poll(&mut Pass { core: &mut self.core, services: &mut self.services });
        }
        if now >= self.next_scan {
            self.scan();
        }
        if !self.core.faults.is_empty() {
            self.end_faulty();
        }
        events += self.call_clients_back();
        // Posted work leaves together: one doorbell for each queue pair, not for each request.
        self.core.provider.ring_doorbells();
        if let Some(carrier) = &mut self.core.carrier {
            carrier.publish();
        }
        self.core.deferrals.yield_core(events);
        events
    }

    fn next_timeout(&self) -> Option<Duration> {
        let awake = || {
            let places = self.core.ready.awake.iter();
            places.filter_map(|&index| self.connections.get(index as usize)?.as_deref())
        };
        let busy = awake().any(|found| found.has_deadline());
        let busy = busy || !self.requests.is_empty() || !self.parked.is_empty();
        let own = busy.then_some(self.next_scan);
        let streams = self.streams.as_ref().and_then(|streams| streams.next_timeout());
        let idle = awake().filter_map(|found| found.calling.as_ref()?.keep_alive_due());
        let idle = idle.min().map(|due| due.max(self.next_scan));
        let (late, back) = (self.core.deferrals.next_timeout(), self.core.calls_back.next_deadline());
        let others =
            [idle, streams, late, back, self.services.next_timeout(), self.core.provider.poll_timeout()];
        others.into_iter().chain([own]).flatten().min()
    }

    fn arm(&mut self) -> bool {
        self.core.completed.is_empty()
            && self.core.events.is_empty()
            && !self.core.calls_back.has_news()
            && !self.has_released()
            && self.membership.as_mut().is_none_or(|membership| membership.arm())
            // One that was adopted since the last pass.
            && self.requests.iter().all(|request| request.deadline.is_some())
            && self.services.arm()
            && self.core.deferrals.arm()
            && self.streams.as_ref().is_none_or(|streams| streams.arm())
            && self.core.carrier.as_ref().is_none_or(|carrier| carrier.is_quiet())
            && self.core.provider.arm()
    }

    fn disarm(&mut self) {
        if let Some(streams) = &mut self.streams {
            streams.disarm();
        }
        self.services.disarm();
        self.core.deferrals.disarm();
        if let Some(membership) = &mut self.membership {
            membership.disarm();
        }
        self.core.provider.disarm();
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.extend(self.core.provider.descriptor().map(|descriptor| descriptor.as_raw_fd()));
        out.extend(self.streams.as_ref().map(|streams| streams.descriptor()));
        out.extend(self.core.deferrals.descriptor());
        out.extend(self.membership.as_ref().map(|membership| membership.descriptor()));
        self.services.descriptors(out);
    }

    fn stop(&mut self, now: Duration) {
        self.core.now = now;
        self.core.stopping = true;
        // Clients' connections end at once, serving ones when their Calls are answered.
        for found in self.connections.iter_mut().flatten() {
            found.stop(&mut self.core);
            self.core.ready.touch(found);
        }
        if let Some(streams) = &mut self.streams {
            streams.stop();
        }
        while let Some(parked) = self.parked.pop() {
            self.close(parked, CloseReason::Fabric(DisconnectReason::Local));
        }
    }

    fn is_drained(&self) -> bool {
        self.connection_count == 0 && self.parked.is_empty() && self.stream_count() == 0
    }

    fn give_back(&mut self, now: Duration) {
        self.core.now = now;
        self.services.give_back();
    }

    fn has_given_back(&self) -> bool {
        self.core.carrier.as_ref().is_none_or(|carrier| carrier.is_settled())
    }
}
