//! RPC over byte streams: TCP, with record marking, beside RDMA and on the same reactor (RFC 5531 section 11).
//!
//! Sockets come from listeners of our own ([`Streams::listen`]), and from a provider that met a connection on its
//! port that speaks no RDMA ([`Streams::adopt`]). The services are the same, and so are the `Call` and the `Reply`
//! that they see. Beside them, small programs are served by UDP ([`Streams::listen_datagrams`]).
//!
//! Records go both ways: a service may call its clients back on their streams (`connection/calling.rs`).
//!
//! # What is copied
//!
//! One receive brings a burst of Calls into a buffer that all connections share, where they are run. A large WRITE's
//! data are received in payload buffers, page-aligned, for a store to keep; the part that came with the burst (at
//! most its buffer's length, a sixteenth of 1 MiB, and 4 KiB while WRITE follows WRITE) is copied there. A WRITE
//! that came whole with a burst is handed over inline: the store copies it once. Results are sent from the store's
//! memory. One send takes the Replies of the whole burst.
//!
//! # Bounds
//!
//! Bounded are: one incoming record for each connection, whose memory all of them share by a quota, and which ends if
//! it does not go on while another waits for memory; the Calls that are answered later; the length of outgoing
//! Replies; and the burst that waits for any of these. Time-outs bound everything that needs the peer. Octets that do
//! not begin like a record end that connection alone.

pub(crate) mod client;
mod connection;
mod datagram;
mod incoming;
mod outbox;
mod outstanding;
mod quota;

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_congestion, set_tcp_keepidle};
use stag_fabric::{CongestionControl, FabricError, LogLimiter, Peer, Withheld};

use crate::ConnectionId;
use crate::call_back::CallBack;
use crate::client::CallRefused;
use crate::config::EngineConfig;
use crate::server::eviction::victim;
use crate::server::owner::owner;
use crate::server::pulling::{WANTED_BACK, worse};
use crate::service::reply::Reply;
use crate::service::{Services, Token};
use crate::state::{Core, Pass};
use connection::{Connection, Ending, Shared};
use datagram::Datagrams;
use quota::Quota;

/// Octets of the buffer that bursts are received in.
pub(crate) const STAGING_LEN: usize = 64 << 10;

/// What a record may have beyond its largest item: headers and the other arguments.
const RECORD_REST: u32 = 4096;

/// Sockets whose events one pass handles at most, and new ones that it accepts at most.
const EVENTS_MAX: usize = 64;

/// How long a pass that is busy with RDMA leaves silent sockets alone at most.
const LOOK_INTERVAL_MAX: Duration = Duration::from_micros(50);

/// How often deadlines are looked at.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// How often those that wait for memory are looked at.
const RELIEF_INTERVAL: Duration = Duration::from_millis(10);
/// How long it takes until a wait for memory is others' fault, and one of them ends for it.
const PRESSED: Duration = Duration::from_millis(100);

/// Connections that the system keeps until they are accepted, if it is not told to keep fewer (`net.core.somaxconn`). Who finds
/// no place tries again, but only after a second.
const BACKLOG: i32 = 4096;

/// How long no connection is accepted after descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// After this time of silence, a peer is probed.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// In the index of a [`ConnectionId`]: it names a byte stream, and no queue pair.
const STREAM: u32 = 1 << 31;

/// In the index of a [`ConnectionId`] of a byte stream: it is none, but where Calls by UDP come from.
const DATAGRAM: u32 = 1 << 30;

/// In the poller's data: a listener.
const LISTENER: u64 = 1 << 63;

/// In the poller's data: a socket of datagrams.
const DATAGRAMS: u64 = 1 << 62;

/// Generations keep clear of those two.
const GENERATION_MASK: u32 = (1 << 30) - 1;

/// Whether a connection is a byte stream.
#[inline]
pub(crate) const fn is_stream(id: ConnectionId) -> bool {
    id.index & STREAM != 0
}

/// The index of a byte stream in its place.
pub(crate) const fn stream_index(place: u32) -> u32 {
    place | STREAM
}

/// Whether it is no connection, but where Calls by UDP come from.
pub(crate) const fn is_datagram(id: ConnectionId) -> bool {
    is_stream(id) && id.index & DATAGRAM != 0
}

/// Calls of one byte stream that may be answered later.
pub(crate) const fn later_max() -> usize {
    connection::LATER_MAX
}

/// All byte streams of an engine.
pub(crate) struct Streams {
    poller: OwnedFd,
    listeners: Vec<TcpListener>,
    datagrams: Vec<Datagrams>,
    connections: Vec<Option<Box<Connection>>>,
    /// How often each place was used.
    generations: Vec<u32>,
    free: Vec<u32>,
    count: usize,
    connections_max: usize,
    record_len_max: u32,
    set_up_timeout: Duration,
    congestion_control: Option<CongestionControl>,
    shared: Shared,
    /// Places of connections that have something to send, or wait for something: each once.
    active: Vec<u32>,
    /// Those of them that this pass has still to look at.
    at_hand: Vec<u32>,
    events: Box<[Event]>,
    next_look: Duration,
    look_interval: Duration,
    next_scan: Duration,
    next_relief: Duration,
    /// No connection is accepted until then.
    paused_until: Option<Duration>,
    complaints: LogLimiter,
}

/// Octets of heap of one connection at most, whose largest record has `chunk_len_max` octets.
pub(crate) const fn connection_len(chunk_len_max: u32) -> usize {
    connection::footprint(chunk_len_max)
}

fn system(doing: &str, error: impl Into<std::io::Error>) -> FabricError {
    FabricError::System { doing: doing.to_owned(), source: error.into() }
}

impl Streams {
    pub(crate) fn new(config: &EngineConfig) -> Result<Streams, FabricError> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| system("epoll", error))?;
        let blank = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let most = config.streams_max as usize;
        Ok(Streams {
            poller,
            listeners: Vec::new(),
            datagrams: Vec::new(),
            connections: Vec::new(),
            generations: Vec::new(),
            free: Vec::new(),
            count: 0,
            connections_max: most,
            record_len_max: config.chunk_len_max + RECORD_REST,
            set_up_timeout: config.set_up_timeout,
            congestion_control: config.stream_congestion_control,
            shared: Shared {
                quota: Quota::new(config.stream_memory as usize),
                staging: None,
                streams_max: config.streams_max,
            },
            active: Vec::with_capacity(most),
            at_hand: Vec::with_capacity(most),
            events: vec![blank; EVENTS_MAX].into_boxed_slice(),
            next_look: Duration::ZERO,
            look_interval: Duration::ZERO,
            next_scan: Duration::ZERO,
            next_relief: Duration::ZERO,
            paused_until: None,
            complaints: LogLimiter::default(),
        })
    }

    /// Listens at `HOST:PORT`, and returns the address that it got.
    pub(crate) fn listen(&mut self, address: &str) -> Result<SocketAddr, FabricError> {
        // Its complaint about an unknown name has a repair.
        stag_fabric::resolve(address)?;
        let doing = format!("listen at tcp://{address}");
        let listener = TcpListener::bind(address).map_err(|error| system(&doing, error))?;
        listener.set_nonblocking(true).map_err(|error| system(&doing, error))?;
        rustix::net::listen(&listener, BACKLOG).map_err(|error| system(&doing, error))?;
        if let Some(name) = &self.congestion_control {
            // What it accepts would have it anyway; a name that the system does not know is refused here.
            let doing = format!("congestion control {name} at tcp://{address}");
            set_tcp_congestion(&listener, name.as_str()).map_err(|error| system(&doing, error))?;
        }
        let data = EventData::new_u64(LISTENER | self.listeners.len() as u64);
        epoll::add(&self.poller, &listener, data, EventFlags::IN).map_err(|error| system(&doing, error))?;
        let bound = listener.local_addr().map_err(|error| system(&doing, error))?;
        self.listeners.push(listener);
        Ok(bound)
    }

    /// Serves `programs` by UDP at `address`, and returns the address that it got.
    pub(crate) fn listen_datagrams(
        &mut self,
        address: SocketAddr,
        programs: &'static [u32],
    ) -> Result<SocketAddr, FabricError> {
        let doing = format!("listen at udp://{address}");
        let socket = UdpSocket::bind(address).map_err(|error| system(&doing, error))?;
        socket.set_nonblocking(true).map_err(|error| system(&doing, error))?;
        let data = EventData::new_u64(DATAGRAMS | self.datagrams.len() as u64);
        epoll::add(&self.poller, &socket, data, EventFlags::IN).map_err(|error| system(&doing, error))?;
        let bound = socket.local_addr().map_err(|error| system(&doing, error))?;
        self.datagrams.push(Datagrams::new(socket, programs));
        Ok(bound)
    }

    /// Connections there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Takes on a connected socket.
    pub(crate) fn adopt<P>(&mut self, core: &mut Core<P>, socket: TcpStream, peer: SocketAddr) {
        if core.refuses_newcomers {
            core.statistics.streams_refused += 1;
            core.note_departure(Some(&Peer::Address(peer)));
            return;
        }
        if !core.stopping && self.count >= self.connections_max {
            self.evict(core, Some(&Peer::Address(peer)), "others come, and it is of less use");
        }
        if core.stopping || self.count >= self.connections_max {
            core.statistics.streams_refused += 1;
            core.note_departure(Some(&Peer::Address(peer)));
            if let Some(withheld) = self.complaints.admit(core.now) {
                let (open, limit) = (self.count, self.connections_max);
                tracing::warn!(
                    "client {peer} is refused over TCP: {open} connections are open, the limit is {limit}; raise \
                     streams_max{}",
                    Withheld(withheld)
                );
            }
            return;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.generations.push(0);
            self.connections.len() as u32 - 1
        });
        let id = ConnectionId { index: index | STREAM, generation: self.generations[index as usize] };
        if let Err(error) = self.watch(id, &socket) {
            self.free.push(index);
            core.statistics.streams_refused += 1;
            core.note_departure(Some(&Peer::Address(peer)));
            if let Some(withheld) = self.complaints.admit(core.now) {
                tracing::warn!("client {peer} is refused over TCP: {error}{}", Withheld(withheld));
            }
            return;
        }
        let (address, peer) = (peer, Peer::Address(peer));
        let share = core.transit.open(owner(Some(&peer)));
        let mut connection = Connection::new(id, socket, peer, self.record_len_max, share, core.now);
        connection.interest = EventFlags::IN;
        self.connections[index as usize] = Some(Box::new(connection));
        if self.count == 0 {
            self.next_scan = core.now + SCAN_INTERVAL;
        }
        self.count += 1;
        core.statistics.streams_opened += 1;
        if tracing::enabled!(tracing::Level::INFO)
            && let Some(withheld) = core.state.comings.admit(core.state.now)
        {
            tracing::info!("client {address} connected by TCP{}", Withheld(withheld));
        }
    }

    /// Ends a connection that is of less use than a newcomer's.
    #[cold]
    fn evict<P>(&mut self, core: &mut Core<P>, newcomer: Option<&Peer>, why: &'static str) {
        let each = self.connections.iter().flatten();
        let candidates =
            each.map(|found| (found.id.index & !STREAM, owner(Some(&found.peer)), found.usage()));
        let Some(index) = victim(candidates, newcomer.map(|peer| owner(Some(peer))), core.now) else {
            return;
        };
        if let Some(connection) = self.connections[index as usize].take() {
            core.statistics.streams_evicted += 1;
            self.put(core, index, connection, Err(Ending::TimedOut(why)));
        }
    }

    /// Ends a connection, if it is still there.
    #[cold]
    pub(crate) fn disconnect<P>(&mut self, core: &mut Core<P>, id: ConnectionId) {
        let index = id.index & !STREAM;
        if self.generations.get(index as usize) == Some(&id.generation)
            && let Some(connection) = self.connections[index as usize].take()
        {
            self.put(core, index, connection, Err(Ending::Disconnected));
        }
    }

    /// The connections, each with its peer and the Calls that were taken on.
    pub(crate) fn served(&self) -> impl Iterator<Item = (ConnectionId, &Peer, u64)> {
        self.connections.iter().flatten().map(|found| (found.id, &found.peer, found.calls()))
    }

    fn watch(&self, id: ConnectionId, socket: &TcpStream) -> std::io::Result<()> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        set_socket_keepalive(socket, true)?;
        set_tcp_keepidle(socket, KEEP_ALIVE)?;
        if let Some(name) = &self.congestion_control {
            set_tcp_congestion(socket, name.as_str())?;
        }
        epoll::add(&self.poller, socket, key(id), EventFlags::IN)?;
        Ok(())
    }

    /// One pass. Returns how much was done.
    #[inline]
    pub(crate) fn poll<P, S: Services>(&mut self, pass: &mut Pass<'_, Core<P>, S>) -> usize {
        let mut events = 0;
        if self.paused_until.is_some_and(|until| pass.core.now >= until) {
            self.paused_until = None;
            self.set_listening(EventFlags::IN);
        }
        if pass.core.now >= self.next_look {
            events += self.poll_sockets(pass);
        }
        if !self.active.is_empty() {
            events += self.go_on(pass);
        }
        if pass.core.now >= self.next_scan {
            self.scan(pass.core);
        }
        if pass.core.now >= self.next_relief {
            self.relieve(pass.core);
        }
        events
    }

    /// Looks which sockets have something for us. A look is a system call: while nothing comes, there are fewer.
    fn poll_sockets<P, S: Services>(&mut self, pass: &mut Pass<'_, Core<P>, S>) -> usize {
        let mut events = std::mem::take(&mut self.events);
        let count = epoll::wait(&self.poller, &mut events[..], Some(&Timespec::default())).unwrap_or(0);
        self.look_interval = match count {
            0 => (self.look_interval * 2 + Duration::from_micros(1)).min(LOOK_INTERVAL_MAX),
            _ => Duration::ZERO,
        };
        self.next_look = pass.core.now + self.look_interval;
        for event in &events[..count] {
            let (data, flags) = (event.data.u64(), event.flags);
            if data & LISTENER != 0 {
                self.accept(pass.core, (data & !LISTENER) as usize);
                continue;
            }
            if data & DATAGRAMS != 0 {
                if let Some(datagrams) = self.datagrams.get_mut((data & !DATAGRAMS) as usize) {
                    datagrams.receive(pass);
                }
                continue;
            }
            let (index, generation) = (data as u32, (data >> 32) as u32);
            if self.generations.get(index as usize) == Some(&generation) {
                self.handle(pass, index, flags);
            }
        }
        self.events = events;
        count
    }

    fn accept<P>(&mut self, core: &mut Core<P>, listener: usize) {
        for _ in 0..EVENTS_MAX {
            let Some(listener) = self.listeners.get(listener) else { return };
            match listener.accept() {
                Ok((socket, peer)) => {
                    let socket = match &mut core.doorkeeper {
                        Some(keeper) => keeper.admit_stream(socket, peer),
                        None => Some(socket),
                    };
                    if let Some(socket) = socket {
                        self.adopt(core, socket, peer);
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    if let Some(withheld) = self.complaints.admit(core.now) {
                        tracing::warn!(
                            "a TCP connection could not be accepted: {error}{}",
                            Withheld(withheld)
                        );
                    }
                    if stag_fabric::is_exhausted(&error) {
                        core.statistics.accepts_failed += 1;
                        self.evict(core, None, "the process has no descriptor left, and it is idle");
                        self.pause(core.now);
                    }
                    return;
                }
            }
        }
    }

    /// Accepts no connection for a while: the listeners would be ready all the time.
    #[cold]
    fn pause(&mut self, now: Duration) {
        self.set_listening(EventFlags::empty());
        self.paused_until = Some(now + ACCEPT_PAUSE);
    }

    fn set_listening(&self, flags: EventFlags) {
        for (index, listener) in (0..).zip(&self.listeners) {
            let changed = epoll::modify(&self.poller, listener, EventData::new_u64(LISTENER | index), flags);
            debug_assert!(changed.is_ok(), "the socket is ours and watched: {changed:?}");
        }
    }

    fn handle<P, S: Services>(&mut self, pass: &mut Pass<'_, Core<P>, S>, index: u32, flags: EventFlags) {
        let Some(mut connection) = self.connections[index as usize].take() else { return };
        let mut result = Ok(());
        if flags.contains(EventFlags::OUT) {
            connection.writable();
        }
        if flags.contains(EventFlags::IN) {
            result = connection.receive(pass, &mut self.shared);
        }
        if flags.intersects(EventFlags::ERR | EventFlags::HUP) {
            result = result.and(Err(Ending::Peer));
        }
        self.put(pass.core, index, connection, result);
    }

    /// Puts a connection back that something was done with, or ends it.
    fn put<P>(
        &mut self,
        core: &mut Core<P>,
        index: u32,
        mut connection: Box<Connection>,
        result: Result<(), Ending>,
    ) {
        if let Err(ending) = result {
            self.generations[index as usize] = (self.generations[index as usize] + 1) & GENERATION_MASK;
            self.free.push(index);
            self.count -= 1;
            self.tell(core, &connection, ending);
            core.calls_back.note_gone(connection.id);
            core.note_departure(Some(&connection.peer));
            connection.close(core, &mut self.shared);
            return;
        }
        let wanted = connection.wanted();
        if wanted != connection.interest {
            let changed = epoll::modify(&self.poller, &connection.socket, key(connection.id), wanted);
            debug_assert!(changed.is_ok(), "the socket is ours and watched: {changed:?}");
            connection.interest = wanted;
        }
        let is_active = connection.has_output() || connection.is_stalled() || connection.has_ended();
        if is_active && !connection.is_active {
            connection.is_active = true;
            self.active.push(index);
        }
        self.connections[index as usize] = Some(connection);
    }

    #[cold]
    fn tell<P>(&mut self, core: &mut Core<P>, connection: &Connection, ending: Ending) {
        core.statistics.streams_closed += 1;
        let what: &dyn std::fmt::Display = match &ending {
            Ending::Peer => return say_closed(core, connection, "the client ended the connection"),
            Ending::Stopped => return say_closed(core, connection, "this server stops"),
            Ending::Disconnected => return say_closed(core, connection, "this server disconnected it"),
            Ending::Idle => {
                core.statistics.stream_timeouts += 1;
                return say_closed(core, connection, "it was not used for a long time");
            }
            Ending::Record(error) => {
                core.statistics.violations += 1;
                error
            }
            Ending::TimedOut(what) => {
                core.statistics.stream_timeouts += 1;
                what
            }
            Ending::CannotReply => &"no Reply could be made",
        };
        if let Some(withheld) = self.complaints.admit(core.now) {
            let (client, service) = (connection.client(), connection.service(core.now));
            tracing::warn!("{client} is cut off: {what}; {service}{}", Withheld(withheld));
        }
    }

    /// Goes on with connections that have something to send, or wait.
    fn go_on<P, S: Services>(&mut self, pass: &mut Pass<'_, Core<P>, S>) -> usize {
        let mut events = 0;
        // Those that stay active are for the next pass.
        std::mem::swap(&mut self.active, &mut self.at_hand);
        while let Some(index) = self.at_hand.pop() {
            let Some(mut connection) = self.connections[index as usize].take() else { continue };
            connection.is_active = false;
            let mut result = Ok(());
            if connection.is_stalled() && !pass.core.stopping {
                result = connection.resume(pass, &mut self.shared);
                events += usize::from(!connection.is_stalled());
            }
            if result.is_ok() {
                result = match connection.send(pass.core.now, &mut pass.core.transit) {
                    Ok(count) => {
                        pass.core.statistics.stream_bytes_sent += count as u64;
                        events += usize::from(count > 0);
                        Ok(())
                    }
                    Err(ending) => Err(ending),
                };
            }
            if pass.core.stopping && connection.is_idle() {
                result = result.and(Err(Ending::Stopped));
            }
            self.put(pass.core, index, connection, result);
        }
        events
    }

    /// Ends the connection that holds most for a record that does not go on, if others wait for memory.
    fn relieve<P>(&mut self, core: &mut Core<P>) {
        self.next_relief = core.now + RELIEF_INTERVAL;
        // Who waits for memory is stalled, and so active.
        let waiting = self.active.iter().filter_map(|&index| self.connections[index as usize].as_ref());
        core.streams_pressure = waiting.map(|found| found.pressure(core.now)).fold(None, worse);
        debug_assert!(
            self.connections.iter().flatten().all(|c| c.is_active || c.pressure(core.now).is_none()),
            "a connection waits for memory, and is on no list"
        );
        let Some(pressure) = core.streams_pressure.filter(|pressure| pressure.time >= WANTED_BACK) else {
            return;
        };
        let mut idlest = (0, 0, 0);
        for (index, found) in (0..).zip(&mut self.connections) {
            let Some(found) = found.as_mut().filter(|found| found.is_of(pressure.owner)) else { continue };
            found.vacate(core, &mut self.shared);
            let (record, replies) = (found.idle_octets(core.now), found.untaken_octets(core.now));
            idlest = idlest.max((record + replies, replies, index));
        }
        let (1.., untaken, index) = idlest else { return };
        if pressure.time < PRESSED {
            return;
        }
        if let Some(connection) = self.connections[index as usize].take() {
            let why = match untaken {
                0 => "it does not go on with a record, and others wait for memory",
                _ => "it does not take its Replies, and others wait for memory",
            };
            self.put(core, index, connection, Err(Ending::TimedOut(why)));
        }
    }

    /// Looks at deadlines.
    fn scan<P>(&mut self, core: &mut Core<P>) {
        self.next_scan = core.now + SCAN_INTERVAL;
        for index in 0..self.connections.len() as u32 {
            let Some(connection) = &mut self.connections[index as usize] else { continue };
            connection.observe(core.now);
            connection.expire_calls_back(&mut core.state);
            if let Err(ending) = connection.expire(core.now, self.set_up_timeout)
                && let Some(connection) = self.connections[index as usize].take()
            {
                self.put(core, index, connection, Err(ending));
            }
        }
    }

    /// Begins the Call `key` to the client of a connection, which ends at `deadline` at the latest. `seed`: for its xids.
    #[cold]
    pub(crate) fn call_back<P>(
        &mut self,
        core: &mut Core<P>,
        connection: ConnectionId,
        call: (u64, &CallBack),
        (deadline, seed): (Duration, u32),
    ) -> Result<(), CallRefused> {
        let (index, mut connection) = self.take(connection).ok_or(CallRefused::NotConnected)?;
        let made = connection.call_back(core, call, (deadline, seed));
        self.put(core, index, connection, Ok(()));
        made
    }

    /// A Call that was left for later is answered. `false`: that Call, or its connection, is gone.
    pub(crate) fn finish<P>(
        &mut self,
        core: &mut Core<P>,
        token: Token,
        fill: &mut dyn FnMut(&mut Reply<'_>),
    ) -> bool {
        let Some((index, mut connection)) = self.take(token.connection) else { return false };
        let (answered, result) = match connection.finish(&mut core.state, token, fill) {
            Ok(answered) => (answered, Ok(())),
            Err(ending) => (true, Err(ending)),
        };
        self.put(core, index, connection, result);
        answered
    }

    /// A Call that was left for later is not answered at all.
    #[cold]
    pub(crate) fn drop_later<P>(&mut self, core: &mut Core<P>, token: Token) {
        if let Some((index, mut connection)) = self.take(token.connection) {
            let _ = connection.take_later(&mut core.state, token);
            self.put(core, index, connection, Ok(()));
        }
    }

    /// Takes out a connection.
    fn take(&mut self, id: ConnectionId) -> Option<(u32, Box<Connection>)> {
        let index = id.index & !STREAM;
        let place = self.connections.get_mut(index as usize)?;
        Some((index, place.take_if(|found| found.id == id)?))
    }

    /// Accepts no more connections.
    pub(crate) fn close_listeners(&mut self) {
        self.listeners.clear();
    }

    /// Begins a graceful stop: no connection is accepted, no more Calls are taken on, answers are still sent.
    pub(crate) fn stop(&mut self) {
        self.listeners.clear();
        self.datagrams.clear();
        for (index, connection) in (0..).zip(&mut self.connections) {
            if let Some(connection) = connection
                && !std::mem::replace(&mut connection.is_active, true)
            {
                self.active.push(index);
            }
        }
    }

    /// Prepares for sleep on [`Streams::descriptor`]. `false`: there is work that no socket will tell of.
    pub(crate) fn arm(&self) -> bool {
        self.active
            .iter()
            .filter_map(|index| self.connections[*index as usize].as_ref())
            .all(|c| c.will_be_told() || c.is_short())
    }

    /// After a sleep: looks at once.
    pub(crate) fn disarm(&mut self) {
        self.next_look = Duration::ZERO;
        self.look_interval = Duration::ZERO;
    }

    /// What becomes readable when a socket has something for us.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.poller.as_raw_fd()
    }

    /// When it must be polled next even if nothing happens.
    pub(crate) fn next_timeout(&self) -> Option<Duration> {
        let mut active = self.active.iter().filter_map(|index| self.connections[*index as usize].as_ref());
        let relief = active.any(|found| found.is_short()).then_some(self.next_relief);
        let scan = (self.count > 0).then_some(self.next_scan);
        relief.or(scan).into_iter().chain(self.paused_until).min()
    }
}

/// A connection ended without a fault.
fn say_closed<P>(core: &mut Core<P>, connection: &Connection, why: &str) {
    if tracing::enabled!(tracing::Level::INFO)
        && let Some(withheld) = core.state.comings.admit(core.state.now)
    {
        let (client, service) = (connection.client(), connection.service(core.now));
        tracing::info!("{client} closed: {why}; {service}{}", Withheld(withheld));
    }
}

/// What the poller says of a connection's socket.
fn key(id: ConnectionId) -> EventData {
    EventData::new_u64(u64::from(id.index & !STREAM) | (u64::from(id.generation) << 32))
}
