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
//! peers one fence per doorbell. The sockets are looked at every 30 µs, one system call.
//!
//! # Death
//!
//! A process that dies closes its sockets, after its memory is gone: then nobody can touch anything any
//! more, and all that was exposed comes back. So a process must not hand its sockets to a child that
//! outlives it: they close on `exec`, but a bare `fork` keeps them.

mod connection;
mod exposure;
mod message;
mod order;
mod pages;
mod provider;
mod regions;
mod rendezvous;
mod ring;
mod setup;
#[cfg(all(test, not(loom), not(miri)))]
mod tests;
mod wake;

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use stag_memory::{Arena, ArenaId};

use crate::epoll::{Epoll, EventFlags, Ready, Token};
use crate::setup::check_limit;
use crate::slots;
use crate::{Completion, DisconnectReason, Event, FabricError, QueuePairCapacity, QueuePairId};
use connection::{Phase, QueuePair};
use regions::Regions;
use setup::Incoming;
use wake::Bell;

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
    /// Whether the reactor may sleep on [`Provider::descriptor`](crate::Provider::descriptor). It costs every peer a fence per doorbell.
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
    /// Queue pairs that wait for their listener.
    dialing: Vec<u32>,
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
        epoll.add(bell.as_fd(), Token::Own, EventFlags::IN).map_err(failed("watch an eventfd"))?;
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
            dialing: Vec::new(),
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
        let QueuePairCapacity { exposures, send_len_max, receive_len_max, .. } = *capacity;
        let smaller = "choose a smaller inline threshold";
        check_limit("send_len_max", send_len_max.into(), MESSAGE_LEN_MAX.into(), smaller)?;
        check_limit("receive_len_max", receive_len_max.into(), MESSAGE_LEN_MAX.into(), smaller)?;
        let most = pages::Layout::EXPOSURES_MAX;
        check_limit("exposures of a queue pair", exposures.into(), most.into(), "choose fewer credits")?;
        let wanted = self.completions_taken + QueuePair::completions(capacity);
        let repair = "raise ShmConfig::completions, or choose fewer credits or connections";
        check_limit("completions of all queue pairs", wanted, self.config.completions.into(), repair)?;
        let repair = "raise ShmConfig::queue_pairs";
        let most = self.config.queue_pairs;
        let id = slots::reserve(&mut self.slots, &mut self.generations, most, repair)?;
        self.completions_taken = wanted;
        Ok(id)
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
    fn attend(&mut self, completions: &mut VecDeque<Completion>, end: usize) {
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
    fn attend_one(&mut self, index: u32, completions: &mut VecDeque<Completion>, end: usize) -> bool {
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
        for at in 0..self.epoll.look() {
            let Ready { token, hung_up } = self.epoll.ready(at);
            match token {
                Token::Own => self.ours.bell.clear(),
                Token::Listener(index) => self.take_connections(index),
                Token::Incoming { index: id, .. } => self.hear_incoming(id, hung_up),
                Token::QueuePair { index, .. } => {
                    let is_current = |pair: &&mut Box<QueuePair>| Token::queue_pair(pair.id) == token;
                    let slot = self.slots.get_mut(index as usize).and_then(Option::as_mut);
                    if slot.filter(is_current).is_some() {
                        self.hear(index, hung_up);
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
        let mut at = 0;
        while let Some(&index) = self.dialing.get(at) {
            let timeout = self.config.setup_timeout;
            let pair = self.slots.get_mut(index as usize).and_then(Option::as_mut);
            let Some(pair) = pair.filter(|pair| matches!(pair.phase, Phase::Dialing)) else {
                self.dialing.swap_remove(at);
                continue;
            };
            at += 1;
            let Some(dialing) = &mut pair.dialing else { continue };
            if now >= *dialing.deadline.get_or_insert(now + timeout) {
                self.close(index, DisconnectReason::TimedOut);
            } else if pair.socket.is_none() {
                self.dial(index);
            }
        }
    }
}
