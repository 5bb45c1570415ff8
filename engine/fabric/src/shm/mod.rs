//! Shared memory: two processes (or threads) of one machine.
//!
//! Messages go through byte rings (`ring`); RDMA Write and RDMA Read are one copy by the initiator,
//! straight between its buffer and the peer's arena, which it has mapped (`regions`). What may be
//! touched is announced and fenced per exposure (`exposure`). Two processes find each other through a Unix
//! socket (`rendezvous`, `setup`), which then stays open and tells at once when the peer is gone.
//!
//! # Trust
//!
//! **For processes that trust each other with the memory they map**: each maps the registered arenas of the
//! other, all of them, writable. Handles, bounds, access and fences are checked by the initiator's copy
//! of this code; they protect against mistakes, not against a peer that is bent on harm. What a peer puts into
//! rings and messages is checked all the same: it can end its connection, never crash or hang us. By
//! default only processes of the same user, or root, connect ([`Admit`]).
//!
//! # Cost
//!
//! In busy mode no message and no doorbell takes a locked instruction, a fence or a system call; accesses
//! to exposed memory take one fence per doorbell. A side that may sleep ([`ShmConfig::may_sleep`]) costs its
//! peers one fence per doorbell. The socket is looked at every 30 µs, one system call.

mod connection;
mod exposure;
mod message;
mod order;
mod pages;
mod regions;
mod rendezvous;
mod ring;
mod setup;
#[cfg(all(test, not(loom), not(miri)))]
mod tests;
mod wake;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stag_memory::{Arena, ArenaId, Buf};

use crate::{
    Completed, Completion, ConnectRequestId, DisconnectReason, Event, Exposed, ExposureKind, FabricError,
    Fence, Handle, Limits, ListenerId, Peer, PostError, Provider, QueuePairCapacity, QueuePairId, ReadPart,
    ReadRequest, Refused, RemoteSegment, SendRequest, WriteRequest,
};
use connection::{Link, Phase, QueuePair};
use regions::{REGIONS_MAX, Regions};
use rendezvous::Address;
use setup::{Answer, Deaf, Dialing, Incoming};
use wake::{Bell, Epoll, Token};

/// Bytes of a ring, unless large messages need more.
const RING_LEN_DEFAULT: u32 = 16 * 1024;
/// Largest message.
const MESSAGE_LEN_MAX: u32 = 1 << 20;
/// Connections without a queue pair at once: more are refused.
const INCOMING_MAX: usize = 64;
/// Connections taken from a listener in one look.
const ACCEPT_BURST: usize = 8;
/// How often the sockets are looked at.
const LOOK_INTERVAL: Duration = Duration::from_micros(30);
/// As above, for a caller whose time stands still: so many idle passes.
const LOOK_PASSES: u32 = 4096;
/// How soon a listener with a full backlog is tried again.
const DIAL_INTERVAL: Duration = Duration::from_millis(1);

/// Who may be at the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admit {
    /// Processes of our user, and root; anybody if we are root ourselves.
    #[default]
    SameUserOrRoot,
    /// Any process that reaches the socket's name. It can read and write all registered memory.
    AnyUser,
}

/// How to open the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmConfig {
    /// Whether the reactor may sleep on [`Provider::descriptor`]. It costs every peer a fence per doorbell.
    pub may_sleep: bool,
    /// Queue pairs at most.
    pub queue_pairs: u32,
    /// Completions at most, over all queue pairs: the sum of their `receives`, `sends` and `exposures`.
    pub completions: u32,
    /// How long a connection's set-up may take.
    pub setup_timeout: Duration,
    /// Who may connect, and to whom we do.
    pub admit: Admit,
}

impl Default for ShmConfig {
    fn default() -> ShmConfig {
        ShmConfig {
            may_sleep: false,
            queue_pairs: 1024,
            completions: 64 * 1024,
            setup_timeout: Duration::from_secs(5),
            admit: Admit::default(),
        }
    }
}

/// What we tell every peer.
struct Ours {
    may_sleep: bool,
    bell: Bell,
    arenas: Vec<Arena>,
}

impl Ours {
    /// Which of our arenas it is.
    #[inline(always)]
    fn region(&self, arena: ArenaId) -> Option<usize> {
        // A handful at most, and nearly always the first.
        self.arenas.iter().position(|a| a.id() == arena)
    }
}

/// An open queue pair, as the poll loop sees it: one load tells whether there is work.
///
/// Invariant: `doorbell` is the address of a header in the ring of the queue pair in slot `index`, which stays
/// mapped while this entry is in the list.
#[derive(Clone, Copy)]
struct Active {
    doorbell: *const AtomicU64,
    index: u32,
}

/// The shared-memory provider.
pub struct Shm {
    // The poll loop's part.
    active: Vec<Active>,
    turn: usize,
    local: VecDeque<Completion>,
    attention: Vec<u32>,
    dirty: Vec<u32>,
    look_at: Duration,
    look_passes: u32,
    now: Duration,
    /// By [`QueuePairId::index`].
    slots: Vec<Option<Box<QueuePair>>>,

    // The rest.
    config: ShmConfig,
    ours: Ours,
    epoll: Epoll,
    events: VecDeque<Event>,
    generations: Vec<u32>,
    completions_taken: u64,
    regions: Regions,
    listeners: Vec<OwnedFd>,
    incoming: Vec<Incoming>,
    incoming_next: u32,
    is_armed: bool,
}

impl Shm {
    /// Opens the provider. It needs no device and no privilege.
    pub fn open(config: ShmConfig) -> Result<Shm, FabricError> {
        let failed = |doing: &str| {
            let doing = doing.to_owned();
            move |source| FabricError::System { doing, source }
        };
        let epoll = Epoll::new().map_err(failed("make an epoll"))?;
        let bell = Bell::new().map_err(failed("make an eventfd"))?;
        epoll.add(bell.as_fd(), Token::Wake).map_err(failed("watch an eventfd"))?;
        let count = config.queue_pairs as usize;
        Ok(Shm {
            active: Vec::with_capacity(count),
            turn: 0,
            // One error for each queue pair comes on top of what its capacity allows.
            local: VecDeque::with_capacity(config.completions as usize + count),
            attention: Vec::with_capacity(count),
            dirty: Vec::with_capacity(count),
            look_at: Duration::ZERO,
            look_passes: 0,
            now: Duration::ZERO,
            slots: Vec::with_capacity(count),
            config,
            ours: Ours { may_sleep: config.may_sleep, bell, arenas: Vec::new() },
            epoll,
            // Established and Disconnected for each, and the requests.
            events: VecDeque::with_capacity(2 * count + INCOMING_MAX),
            generations: Vec::with_capacity(count),
            completions_taken: 0,
            regions: Regions::new(),
            listeners: Vec::new(),
            incoming: Vec::new(),
            incoming_next: 0,
            is_armed: false,
        })
    }

    /// Something was posted: the next `ring_doorbells` has to come by.
    #[inline(always)]
    fn mark_dirty(&mut self, index: u32) {
        if let Some(Some(pair)) = self.slots.get_mut(index as usize)
            && !pair.is_dirty
        {
            pair.is_dirty = true;
            self.dirty.push(index);
        }
    }

    /// `poll` has to look after this queue pair.
    #[inline]
    fn mark_attention(&mut self, index: u32) {
        if let Some(Some(pair)) = self.slots.get_mut(index as usize)
            && !pair.needs_attention
            && pair.has_chores()
        {
            pair.needs_attention = true;
            self.attention.push(index);
        }
    }

    /// Ends a post: its queue pair is dirty, and may have to wait or to end.
    #[inline(always)]
    fn posted(&mut self, index: u32, result: Result<(), DisconnectReason>) {
        self.mark_dirty(index);
        match result {
            Ok(()) => self.mark_attention(index),
            Err(reason) => self.close(index, reason),
        }
    }

    /// Finds room for a queue pair, or says what is missing.
    fn admit(&mut self, capacity: &QueuePairCapacity) -> Result<QueuePairId, FabricError> {
        let limit = |what, wanted: u64, limit: u64, repair| {
            if wanted > limit { Err(FabricError::Limit { what, wanted, limit, repair }) } else { Ok(()) }
        };
        let QueuePairCapacity { exposures, send_len_max, receive_len_max, .. } = *capacity;
        let smaller = "choose a smaller inline threshold";
        limit("send_len_max", send_len_max.into(), MESSAGE_LEN_MAX.into(), smaller)?;
        limit("receive_len_max", receive_len_max.into(), MESSAGE_LEN_MAX.into(), smaller)?;
        let most = pages::Layout::EXPOSURES_MAX;
        limit("exposures of a queue pair", exposures.into(), most.into(), "choose fewer credits")?;
        let wanted = self.completions_taken + QueuePair::completions(capacity);
        let repair = "raise ShmConfig::completions, or choose fewer credits or connections";
        limit("completions of all queue pairs", wanted, self.config.completions.into(), repair)?;
        let free = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        let repair = "raise ShmConfig::queue_pairs";
        limit("queue pairs", free as u64 + 1, self.config.queue_pairs.into(), repair)?;
        if free == self.slots.len() {
            self.slots.push(None);
            self.generations.push(0);
        }
        self.generations[free] = self.generations[free].wrapping_add(1);
        self.completions_taken = wanted;
        Ok(QueuePairId { index: free as u32, generation: self.generations[free] })
    }

    /// Puts a queue pair into the slot that `admit` found.
    fn install(&mut self, pair: QueuePair) {
        let index = pair.id.index as usize;
        self.slots[index] = Some(Box::new(pair));
    }

    /// Starts to end a queue pair, for whatever reason. Harmless when it is already ending.
    #[cold]
    fn close(&mut self, index: u32, reason: DisconnectReason) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        if matches!(pair.phase, Phase::Closing(_)) {
            return;
        }
        pair.close(reason);
        if let Some(socket) = &pair.socket {
            rendezvous::shutdown(socket.as_fd());
        }
        // A pointer into its ring must not outlive it.
        self.active.retain(|active| active.index != index);
        self.mark_attention(index);
    }

    /// Looks after the queue pairs that wait for something else than messages.
    #[cold]
    fn attend(&mut self, completions: &mut Vec<Completion>, end: usize) {
        let mut at = 0;
        while at < self.attention.len() {
            let index = self.attention[at];
            if self.attend_one(index, completions, end) {
                at += 1;
            } else {
                self.attention.swap_remove(at);
            }
        }
    }

    /// Whether the queue pair needs attention again.
    fn attend_one(&mut self, index: u32, completions: &mut Vec<Completion>, end: usize) -> bool {
        let room = end - completions.len();
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return false };
        match pair.phase.clone() {
            Phase::Open => {
                if let Err(reason) = pair.send_pending(&mut self.local) {
                    self.close(index, reason);
                    return true;
                }
                pair.poll_fences(completions, room);
            }
            Phase::Draining(reason) => {
                pair.poll_fences(completions, room);
                if pair.is_drained() {
                    self.close(index, reason);
                    return true;
                }
            }
            // Completions that were queued before come first.
            Phase::Closing(reason) if self.local.is_empty() => {
                if pair.flush(completions, room) {
                    let capacity = pair.capacity;
                    let queue_pair = pair.id;
                    self.slots[index as usize] = None;
                    self.completions_taken -= QueuePair::completions(&capacity);
                    self.events.push_back(Event::Disconnected { queue_pair, reason });
                    return false;
                }
                return true;
            }
            Phase::Closing(_) => return true,
            Phase::Dialing | Phase::Prepared | Phase::Announced => {}
        }
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return false };
        // Others come back to the list by themselves.
        let again = pair.has_chores() && matches!(pair.phase, Phase::Open | Phase::Draining(_));
        pair.needs_attention = again;
        again
    }

    /// Looks at the sockets, and at the clock.
    #[cold]
    fn look(&mut self) {
        self.look_at = self.now + LOOK_INTERVAL;
        self.look_passes = 0;
        let ready = self.epoll.look();
        for at in 0..ready {
            let ready = self.epoll.ready(at);
            match ready.token {
                Token::Wake => self.ours.bell.clear(),
                Token::Listener(index) => self.take_connections(index),
                Token::Incoming(id) => self.hear_incoming(id, ready.hung_up),
                Token::QueuePair { index, generation } => {
                    let is_current = |pair: &&mut Box<QueuePair>| {
                        pair.id.generation & Token::GENERATION_MASK == generation
                    };
                    let slot = self.slots.get_mut(index as usize).and_then(Option::as_mut);
                    if slot.filter(is_current).is_some() {
                        self.hear(index, ready.hung_up);
                    }
                }
            }
        }
        self.expire();
    }

    /// Ends set-ups that take too long, and dials again where a backlog was full.
    fn expire(&mut self) {
        let now = self.now;
        let late = |incoming: &Incoming| incoming.hello.is_none() && now >= incoming.deadline;
        // A closed descriptor leaves the epoll by itself.
        self.incoming.retain(|incoming| !late(incoming));
        for index in 0..self.slots.len() as u32 {
            let timeout = self.config.setup_timeout;
            let Some(Some(pair)) = self.slots.get_mut(index as usize) else { continue };
            let Some(dialing) = &mut pair.dialing else { continue };
            if now >= *dialing.deadline.get_or_insert(now + timeout) {
                self.close(index, DisconnectReason::TimedOut);
            } else if pair.socket.is_none() {
                self.dial(index);
            }
        }
    }
}

// Set-up, the connecting side.
impl Shm {
    /// Tries to reach the listener, and says HELLO.
    fn dial(&mut self, index: u32) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        if !matches!(pair.phase, Phase::Dialing) {
            return;
        }
        let Some(dialing) = &pair.dialing else { return };
        let socket = match rendezvous::connect(&dialing.address) {
            Ok(socket) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return self.close(index, DisconnectReason::NoListener),
        };
        let token = Token::QueuePair { index, generation: pair.id.generation };
        let result = rendezvous::peer(socket.as_fd()).and_then(|peer| {
            pair.peer = peer;
            if !setup::is_admitted(self.config.admit, &pair.peer) {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            self.epoll.add(socket.as_fd(), token)?;
            let part = (&dialing.part, dialing.fd.as_fd());
            let private_data = dialing.private_data.clone();
            setup::introduce(socket.as_fd(), true, &self.ours, part, pair.capacity, private_data)
        });
        pair.socket = Some(socket);
        match result {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let reason = "the listener runs as another user; see Admit".to_owned();
                self.close(index, DisconnectReason::Rejected(reason));
            }
            Err(_) => self.close(index, DisconnectReason::PeerDied),
        }
    }

    /// The socket of a queue pair has news.
    fn hear(&mut self, index: u32, hung_up: bool) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        let Some(socket) = &pair.socket else { return };
        match pair.phase {
            Phase::Dialing => match setup::answer(socket.as_fd()) {
                Answer::Nothing => {}
                Answer::Accepted(offer) => self.establish(index, offer),
                Answer::Rejected(reason) => self.close(index, DisconnectReason::Rejected(reason)),
                Answer::Violation(problem) => self.close(index, DisconnectReason::PeerViolation(problem)),
                Answer::Closed => self.close(index, DisconnectReason::PeerDied),
            },
            _ if hung_up => {
                // Whoever holds this end no longer reads it: it would be ready for ever.
                self.epoll.remove(socket.as_fd());
                pair.peer_gone = true;
                let reason = pair.peer_reason();
                match pair.phase {
                    Phase::Open | Phase::Announced => {
                        pair.phase = Phase::Draining(reason);
                        self.mark_attention(index);
                    }
                    Phase::Closing(_) => {}
                    _ => self.close(index, reason),
                }
            }
            // One more datagram, after the last that there should be.
            _ => {
                self.epoll.remove(socket.as_fd());
                self.close(index, DisconnectReason::PeerViolation("a message after the set-up"));
            }
        }
    }

    /// The peer accepted.
    fn establish(&mut self, index: u32, mut offer: setup::Offer) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        let Some(dialing) = pair.dialing.take() else { return };
        let private_data = std::mem::take(&mut offer.introduction.private_data);
        match offer.map(&mut self.regions) {
            Ok((theirs, binds, bell)) => {
                pair.link = Some(Link::new(dialing.part, theirs, binds, bell, self.ours.arenas.len()));
                pair.phase = Phase::Announced;
                let (queue_pair, peer) = (pair.id, pair.peer.clone());
                self.events.push_back(Event::Established { queue_pair, private_data, peer });
            }
            Err(_) => self.close(index, DisconnectReason::PeerViolation("its memory cannot be mapped")),
        }
    }
}

// Set-up, the accepting side.
impl Shm {
    /// Takes connections from a listener's backlog.
    fn take_connections(&mut self, index: u32) {
        for _ in 0..ACCEPT_BURST {
            let Some(listener) = self.listeners.get(index as usize) else { return };
            // An error here is one of a connection that is gone again, or of descriptors that ran out: the
            // next look tries again.
            let Ok(Some(socket)) = rendezvous::accept(listener.as_fd()) else { return };
            let Ok(peer) = rendezvous::peer(socket.as_fd()) else { continue };
            let refusal = if !setup::is_admitted(self.config.admit, &peer) {
                Some("only processes of the same user, or root, may connect")
            } else if self.incoming.len() == INCOMING_MAX {
                Some("too many connection requests wait")
            } else {
                None
            };
            if let Some(reason) = refusal {
                refuse(socket.as_fd(), reason);
                continue;
            }
            let id = self.incoming_next;
            self.incoming_next = self.incoming_next.wrapping_add(1);
            if self.epoll.add(socket.as_fd(), Token::Incoming(id)).is_ok() {
                let deadline = self.now + self.config.setup_timeout;
                let listener = ListenerId(index);
                self.incoming.push(Incoming { id, listener, socket, peer, deadline, hello: None });
                // HELLO is usually there already.
                self.hear_incoming(id, false);
            }
        }
    }

    /// A connection without a queue pair has news.
    fn hear_incoming(&mut self, id: u32, hung_up: bool) {
        let Some(at) = self.incoming.iter().position(|incoming| incoming.id == id) else { return };
        let incoming = &mut self.incoming[at];
        if incoming.hello.is_some() {
            // The user has not answered yet. If the peer gave up, or sent more than it should, it will
            // find the request gone.
            self.incoming.swap_remove(at);
            return;
        }
        match setup::hello(incoming.socket.as_fd()) {
            Ok(Some(mut offer)) => {
                let private_data = std::mem::take(&mut offer.introduction.private_data);
                incoming.hello = Some(offer);
                let Incoming { listener, ref peer, .. } = *incoming;
                let (request, peer) = (incoming.request(), peer.clone());
                self.events.push_back(Event::ConnectRequest { listener, request, peer, private_data });
            }
            Ok(None) if !hung_up => {}
            Ok(None) | Err(Deaf::Closed) => {
                self.incoming.swap_remove(at);
            }
            Err(Deaf::Nonsense(problem)) => {
                refuse(incoming.socket.as_fd(), problem);
                self.incoming.swap_remove(at);
            }
        }
    }

    fn take_request(&mut self, request: ConnectRequestId) -> Option<(Incoming, setup::Offer)> {
        let is_it = |incoming: &Incoming| incoming.request() == request && incoming.hello.is_some();
        let at = self.incoming.iter().position(is_it)?;
        let mut incoming = self.incoming.swap_remove(at);
        let offer = incoming.hello.take()?;
        Some((incoming, offer))
    }
}

/// Says no, as far as the peer still listens.
fn refuse(socket: BorrowedFd<'_>, reason: &str) {
    // It may be gone already.
    let _ = rendezvous::send(socket, &message::Message::Reject(reason.to_owned()).encode(), &[]);
}

impl Provider for Shm {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn limits(&self) -> Limits {
        Limits {
            completions: self.config.completions,
            queue_pairs: self.config.queue_pairs,
            message_len_max: MESSAGE_LEN_MAX,
            transfer_len_max: u32::MAX,
            private_data_len_max: message::PRIVATE_DATA_LEN_MAX,
            send_with_invalidate: true,
            exposure: ExposureKind::TableEntry,
        }
    }

    /// Connections that exist already do not learn of it: expose its buffers on later ones.
    fn register(&mut self, arena: &Arena) -> Result<(), FabricError> {
        if self.ours.region(arena.id()).is_some() {
            return Ok(());
        }
        let wanted = self.ours.arenas.len() + 1;
        if wanted > REGIONS_MAX {
            let (wanted, limit) = (wanted as u64, REGIONS_MAX as u64);
            let repair = "register fewer, larger arenas";
            return Err(FabricError::Limit { what: "registered arenas", wanted, limit, repair });
        }
        if !pages::is_safe_to_map(arena.fd(), arena.len() as u64) {
            let doing = format!("register the arena {:?}: it is not sealed against shrinking", arena.name());
            return Err(FabricError::System { doing, source: io::ErrorKind::InvalidInput.into() });
        }
        self.ours.arenas.push(arena.clone());
        Ok(())
    }

    fn listen(&mut self, address: &str) -> Result<ListenerId, FabricError> {
        let name = Address::new(address)?;
        let index = self.listeners.len() as u32;
        let listener = rendezvous::listen(&name).and_then(|listener| {
            self.epoll.add(listener.as_fd(), Token::Listener(index))?;
            Ok(listener)
        });
        let failed = |source| FabricError::System { doing: format!("listen at shm://{address}"), source };
        self.listeners.push(listener.map_err(failed)?);
        Ok(ListenerId(index))
    }

    fn connect(
        &mut self,
        address: &str,
        private_data: &[u8],
        capacity: QueuePairCapacity,
    ) -> Result<QueuePairId, FabricError> {
        let name = Address::new(address)?;
        check_private_data(private_data)?;
        let seed = seed()?;
        let id = self.admit(&capacity)?;
        let (part, fd) = setup::create_part(&capacity).map_err(|error| {
            self.completions_taken -= QueuePair::completions(&capacity);
            no_memory(error)
        })?;
        // Who it is comes out when there is a socket.
        let peer = Peer::Process { pid: 0, uid: 0, gid: 0 };
        let mut pair = QueuePair::new(id, Phase::Dialing, capacity, seed, peer);
        let private_data = private_data.to_vec();
        pair.dialing = Some(Dialing { address: name, part, fd, private_data, deadline: None });
        self.install(pair);
        // The next pass dials, so that Receives can be posted even when nobody listens.
        self.look_at = Duration::ZERO;
        Ok(id)
    }

    fn prepare(
        &mut self,
        request: ConnectRequestId,
        capacity: QueuePairCapacity,
    ) -> Result<QueuePairId, FabricError> {
        let (incoming, offer) =
            self.take_request(request).ok_or(FabricError::Gone("the connection request"))?;
        let refused = |error: FabricError| {
            refuse(incoming.socket.as_fd(), &error.to_string());
            error
        };
        let seed = seed()?;
        let id = self.admit(&capacity).map_err(refused)?;
        let parts = setup::create_part(&capacity).and_then(|ours| Ok((ours, offer.map(&mut self.regions)?)));
        let ((ours, fd), (theirs, binds, bell)) = match parts {
            Ok(parts) => parts,
            Err(error) => {
                self.completions_taken -= QueuePair::completions(&capacity);
                return Err(refused(no_memory(error)));
            }
        };
        let token = Token::QueuePair { index: id.index, generation: id.generation };
        self.epoll.rename(incoming.socket.as_fd(), token).map_err(no_memory)?;
        let mut pair = QueuePair::new(id, Phase::Prepared, capacity, seed, incoming.peer);
        pair.link = Some(Link::new(ours, theirs, binds, bell, self.ours.arenas.len()));
        pair.part_fd = Some(fd);
        pair.socket = Some(incoming.socket);
        self.install(pair);
        Ok(id)
    }

    fn accept(&mut self, queue_pair: QueuePairId, private_data: &[u8]) -> Result<(), FabricError> {
        check_private_data(private_data)?;
        let gone = FabricError::Gone("the prepared queue pair");
        let slot = self.slots.get_mut(queue_pair.index as usize).and_then(Option::as_deref_mut);
        let Some(pair) = slot.filter(|pair| pair.id == queue_pair && pair.phase == Phase::Prepared) else {
            return Err(gone);
        };
        let (Some(socket), Some(link), Some(fd)) = (&pair.socket, &pair.link, pair.part_fd.take()) else {
            return Err(gone);
        };
        let part = (link.ours(), fd.as_fd());
        let private_data = private_data.to_vec();
        let sent = setup::introduce(socket.as_fd(), false, &self.ours, part, pair.capacity, private_data);
        if sent.is_err() {
            self.close(queue_pair.index, DisconnectReason::PeerDied);
            return Ok(());
        }
        pair.phase = Phase::Announced;
        let peer = pair.peer.clone();
        self.events.push_back(Event::Established { queue_pair, private_data: Vec::new(), peer });
        Ok(())
    }

    fn reject(&mut self, request: ConnectRequestId, reason: &str) {
        if let Some((incoming, _)) = self.take_request(request) {
            refuse(incoming.socket.as_fd(), reason);
        }
    }

    fn disconnect(&mut self, queue_pair: QueuePairId) {
        if find(&mut self.slots, queue_pair).is_some() {
            self.close(queue_pair.index, DisconnectReason::Local);
        }
    }

    #[inline]
    fn post_receive(&mut self, queue_pair: QueuePairId, id: u64, buf: Buf) -> Result<(), Refused<Buf>> {
        let registered = self.ours.region(buf.location().arena).is_some();
        match find(&mut self.slots, queue_pair) {
            None => Err(Refused { request: buf, error: PostError::NotConnected }),
            Some(_) if !registered => Err(Refused { request: buf, error: PostError::NotRegistered }),
            Some(pair) => pair.post_receive(id, buf),
        }
    }

    #[inline]
    fn post_send(
        &mut self,
        queue_pair: QueuePairId,
        request: SendRequest,
    ) -> Result<(), Refused<SendRequest>> {
        if self.ours.region(request.buf.location().arena).is_none() {
            return Err(Refused { request, error: PostError::NotRegistered });
        }
        let result = match find(&mut self.slots, queue_pair) {
            None => return Err(Refused { request, error: PostError::NotConnected }),
            Some(pair) => pair.post_send(request, &mut self.local)?,
        };
        self.posted(queue_pair.index, result);
        Ok(())
    }

    #[inline]
    fn post_write(
        &mut self,
        queue_pair: QueuePairId,
        request: WriteRequest,
    ) -> Result<(), Refused<WriteRequest>> {
        if self.ours.region(request.source.location().arena).is_none() {
            return Err(Refused { request, error: PostError::NotRegistered });
        }
        let result = match find(&mut self.slots, queue_pair) {
            None => return Err(Refused { request, error: PostError::NotConnected }),
            Some(pair) => pair.post_write(request, &mut self.local)?,
        };
        self.posted(queue_pair.index, result);
        Ok(())
    }

    #[inline]
    fn post_read(
        &mut self,
        queue_pair: QueuePairId,
        request: ReadRequest,
        parts: &[ReadPart],
    ) -> Result<(), Refused<ReadRequest>> {
        if self.ours.region(request.target.location().arena).is_none() {
            return Err(Refused { request, error: PostError::NotRegistered });
        }
        let result = match find(&mut self.slots, queue_pair) {
            None => return Err(Refused { request, error: PostError::NotConnected }),
            Some(pair) => pair.post_read(request, parts, &mut self.local)?,
        };
        self.posted(queue_pair.index, result);
        Ok(())
    }

    #[inline]
    fn expose(
        &mut self,
        queue_pair: QueuePairId,
        exposed: Exposed,
    ) -> Result<RemoteSegment, Refused<Exposed>> {
        let arena = match &exposed {
            Exposed::Read(shared) => shared.location().arena,
            Exposed::Write(buf) => buf.location().arena,
        };
        let region = self.ours.region(arena);
        let segment = match find(&mut self.slots, queue_pair) {
            None => return Err(Refused { request: exposed, error: PostError::NotConnected }),
            Some(pair) => pair.expose(exposed, region)?,
        };
        self.posted(queue_pair.index, Ok(()));
        Ok(segment)
    }

    #[inline]
    fn fence(&mut self, queue_pair: QueuePairId, handle: Handle, id: u64) -> Option<Fence> {
        let fence = find(&mut self.slots, queue_pair)?.fence(handle, id)?;
        if matches!(fence, Fence::Pending) {
            self.mark_attention(queue_pair.index);
        }
        Some(fence)
    }

    #[inline]
    fn ring_doorbells(&mut self) {
        while let Some(index) = self.dirty.pop() {
            if let Some(Some(pair)) = self.slots.get_mut(index as usize) {
                pair.is_dirty = false;
                pair.ring_doorbell();
            }
        }
    }

    #[inline]
    fn poll(&mut self, now: Duration, completions: &mut Vec<Completion>, max: usize) -> usize {
        let start = completions.len();
        let end = start + max.min(completions.capacity() - start);
        self.now = now;

        while completions.len() < end
            && let Some(completion) = self.local.pop_front()
        {
            let signaled =
                !matches!(completion.completed, Completed::Receive { .. } | Completed::Fence { .. });
            if signaled && let Some(pair) = find(&mut self.slots, completion.queue_pair) {
                pair.harvested();
            }
            completions.push(completion);
        }

        self.harvest(completions, end);

        if !self.attention.is_empty() {
            self.attend(completions, end);
        }
        self.look_passes += u32::from(completions.len() == start);
        if now >= self.look_at || self.look_passes >= LOOK_PASSES {
            self.look();
        }
        completions.len() - start
    }

    fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if let Event::Established { queue_pair, .. } = event
            && let Some(pair) = find(&mut self.slots, queue_pair)
        {
            // From here on there may be completions.
            if pair.phase == Phase::Announced {
                pair.phase = Phase::Open;
            }
            let open = matches!(pair.phase, Phase::Open | Phase::Draining(_));
            if let Some(doorbell) = pair.doorbell().filter(|_| open) {
                self.active.push(Active { doorbell, index: queue_pair.index });
            }
        }
        Some(event)
    }

    fn poll_timeout(&self) -> Option<Duration> {
        let incoming = self.incoming.iter().filter(|i| i.hello.is_none()).map(|i| i.deadline);
        let dialing = self.slots.iter().flatten().filter_map(|pair| {
            let dialing = pair.dialing.as_ref()?;
            let again = pair.socket.is_none().then_some(self.now + DIAL_INTERVAL);
            Some(again.unwrap_or_else(|| dialing.deadline.unwrap_or(self.now)))
        });
        incoming.chain(dialing).min()
    }

    fn arm(&mut self) -> bool {
        if !self.config.may_sleep || !self.local.is_empty() || !self.events.is_empty() {
            return false;
        }
        self.ring_doorbells();
        self.is_armed = true;
        for pair in self.slots.iter().flatten() {
            pair.set_sleeping(true);
        }
        // Pairs with the fence of `order::is_asleep`: a producer whose doorbell we miss below sees that we sleep.
        order::full_fence();
        if self.slots.iter_mut().flatten().any(|pair| pair.has_work()) {
            self.disarm();
            return false;
        }
        true
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            for pair in self.slots.iter().flatten() {
                pair.set_sleeping(false);
            }
            // Whatever woke us, the next pass looks.
            self.look_at = Duration::ZERO;
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.config.may_sleep.then(|| self.epoll.as_fd())
    }
}

impl Shm {
    /// Goes round the open queue pairs, once.
    #[inline(always)]
    fn harvest(&mut self, completions: &mut Vec<Completion>, end: usize) {
        let count = self.active.len();
        if self.turn >= count {
            self.turn = 0;
        }
        let mut at = self.turn;
        for _ in 0..count {
            let Active { doorbell, index } = self.active[at];
            let next = if at + 1 == count { 0 } else { at + 1 };
            if count > 1 {
                ring::prefetch_read(self.active[next].doorbell.cast());
            }
            // SAFETY: mapped and aligned (invariant of `Active`). Relaxed: the harvest looks again, in order.
            let rung = unsafe { &*doorbell }.load(Ordering::Relaxed) != 0;
            if rung && !self.harvest_one(at, index, completions, end) {
                return;
            }
            at = next;
        }
    }

    /// Takes what one queue pair has. `false`: this pass is over.
    #[inline(always)]
    fn harvest_one(&mut self, at: usize, index: u32, completions: &mut Vec<Completion>, end: usize) -> bool {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return true };
        let result = pair.harvest(completions, end - completions.len());
        if let Some(doorbell) = pair.doorbell() {
            self.active[at].doorbell = doorbell;
        }
        if let Err(reason) = result {
            self.close(index, reason);
            return false;
        }
        if completions.len() == end {
            // The next pass starts behind this one, so that nobody starves.
            self.turn = at + 1;
            return false;
        }
        true
    }
}

/// The queue pair, if it still exists.
#[inline(always)]
fn find(slots: &mut [Option<Box<QueuePair>>], id: QueuePairId) -> Option<&mut QueuePair> {
    let slot = slots.get_mut(id.index as usize)?.as_deref_mut()?;
    (slot.id.generation == id.generation).then_some(slot)
}

fn check_private_data(private_data: &[u8]) -> Result<(), FabricError> {
    let (wanted, limit) = (private_data.len() as u64, message::PRIVATE_DATA_LEN_MAX as u64);
    if wanted > limit {
        let repair = "carry less in it";
        return Err(FabricError::Limit { what: "octets of private data", wanted, limit, repair });
    }
    Ok(())
}

fn no_memory(source: io::Error) -> FabricError {
    FabricError::System { doing: "map the memory of a connection".to_owned(), source }
}

/// Random bits for handles.
fn seed() -> Result<u64, FabricError> {
    getrandom::u64().map_err(|error| FabricError::System {
        doing: "get random bits for handles".to_owned(),
        source: io::Error::other(error.to_string()),
    })
}
