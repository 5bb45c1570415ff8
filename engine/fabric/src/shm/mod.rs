//! Shared memory: two processes (or threads) of one machine.
//!
//! Messages go through byte rings (`ring`); RDMA Write and RDMA Read are one copy by the initiator, straight between its buffer
//! and the peer's arena, which it has mapped (`regions`). Memory is announced and fenced per exposure (`exposure`). Two
//! processes find each other through a Unix socket (`rendezvous`, `setup`), which then stays open: it wakes a side that sleeps,
//! and tells at once when the peer is gone.
//!
//! # Trust
//!
//! **An admitted process has the power of our own user over all registered memory.** By default only processes of the
//! same user are admitted, root being no exception; [`ShmConfig::admit`] names others. Both sides check, by the kernel's
//! word ([`Admit`]), before they send or map anything: a process that is not admitted gets no descriptor, only the
//! refusal.
//!
//! An admitted peer *can*:
//!
//! - read and write every registered arena, all of it, at any time: messages and data of all connections, over other
//!   transports too if they use the same arena. The initiator's copy of this code checks handles, bounds, access and fences; that
//!   protects against mistakes, not against a hostile peer;
//! - so change octets while we look at them. What is in rings is copied out once, by accesses that allow for it, and the
//!   copy is checked. But the copy, like every message, lies in registered memory, where `&[u8]` promises the compiler that it
//!   stands still, and RDMA Reads and Writes copy by `memcpy`: with such a peer these are data races, for which the language
//!   promises nothing. Seen of them so far: wrong octets, and connections that end;
//! - punch holes into our arenas, which no seal forbids while others may write. On pages of 4 KiB a hole reads as zeroes.
//!   **On reserved hugepages the page goes back to the machine; if none is free when we touch the hole, we die of SIGBUS**;
//! - do the same in its own arenas. They lie on hugepages only if the peer is of our own user, or
//!   [`ShmConfig::foreign_hugepages`] says so;
//! - make us wait for page faults: while it punches a hole into an arena, ours or its own, our access to a page in the hole waits,
//!   0.7 s for each GiB that it had filled. For its part of a connection that is 50 µs at most (`pages.rs`), for its bells 1 ms. A
//!   page of its own that it has had swapped out takes one read of the swap device;
//! - make us pay for its memory: the first write to an untouched page of its arenas is charged to the writer,
//!   so are 64 KiB of its part of a connection. The table of what it exposes is ours, 160 KiB at most for each connection;
//! - use our address space: all peers together 32 times this machine's memory, or a quarter of the address space if that is less, and a
//!   quarter of `vm.max_map_count`; each user half of that (`mapped.rs`). More is refused;
//! - keep our arenas in memory for as long as it runs, also after we have ended;
//! - ring the bells of other connections (`bells`), each of which costs a look, or silence them: a message that comes after a
//!   pause is then found some milliseconds later;
//! - say that it is in the middle of writing to memory that we exposed for it. We wait for that memory, asleep, for
//!   [`ShmConfig::fence_timeout`]; then the connection ends. After as long again that memory is lost, with a line in the log, unless the
//!   peer has let go of its socket. Memory that it only reads is ours again at once;
//! - hold up to 64 threads that close descriptors which it sent, each for as long as that close takes (a file on FUSE may
//!   take for ever), and keep at most 253 more descriptors open. Then no process of another user than ours is accepted until a
//!   thread is free; the user of a process that sends descriptors that were not asked for is refused for a minute anyway;
//! - tell us wrong things through its rings and its control words: then its connection ends.
//!
//! It *cannot*:
//!
//! - make us wait beyond those page faults: no system call on anything that a peer owns, shares or sent blocks. We are woken through
//!   our own socket, wake a peer by a send that does not wait, and leave to a thread each close that could wait (`sockets`). One
//!   exception: a process that has reached its limit of descriptors, which a peer alone cannot bring about. The kernel closes a
//!   descriptor that finds no number within our system call;
//! - change the length of what we map (seals), or have us map anything but a sealed memfd of exactly the length that it says;
//! - write our ring and control words, which it maps read-only (sealed against more since Linux 5.1; before that it could);
//! - reach memory that is not registered, nor our descriptors;
//! - take all places of the set-up by connections that say nothing: one user has half at most.
//!
//! # Cost
//!
//! In busy mode no message and no doorbell takes a locked instruction, a fence or a system call; accesses
//! to exposed memory take one fence per doorbell. A side that may sleep ([`ShmConfig::may_sleep`]) costs its
//! peers one fence per doorbell. The sockets are looked at every 30 µs, one system call.
//! A pass looks at the rings of connections that were used in the last 180 µs, and at one byte for all others (`bells`).
//!
//! # Death
//!
//! A process that dies closes its sockets, after its memory is gone: then it can touch nothing any more, and
//! all that was exposed comes back. So a process must not hand its sockets to a child that outlives it: they
//! close on `exec`, but a bare `fork` keeps them.

mod admit;
mod bells;
mod connection;
mod copy;
mod exposure;
mod harvest;
mod idle;
mod link;
mod mapped;
mod message;
mod order;
mod pages;
mod pending;
mod provider;
mod regions;
mod rendezvous;
mod ring;
mod scattered;
mod setup;
mod sockets;
#[cfg(all(test, not(loom), not(miri)))]
mod tests;

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use stag_memory::{Arena, ArenaId};

use crate::epoll::{Epoll, EventFlags, Ready, Token};
use crate::scatter::RECEIVE_TARGETS_MAX;
use crate::setup::{check_limit, check_targets};
use crate::slots::{self, Numbered};
use crate::{Completion, DisconnectReason, Event, FabricError, QueuePairCapacity, QueuePairId};
use bells::{BellPlace, Bells};
use connection::{Phase, QueuePair};
use pages::{Layout, MESSAGE_LEN_MAX};
use pending::Incoming;
use regions::Regions;
pub use rendezvous::check_name;
use sockets::Listener;

pub use admit::{Admit, BadAdmit};
pub use setup::ShmHandover;

/// Connections without a queue pair at once, beside one for each queue pair that there may still be: more are refused.
const INCOMING_MAX: usize = 64;
/// Connections taken from a listener in one look.
const ACCEPT_BURST: usize = 8;
/// How often the sockets are looked at.
const LOOK_INTERVAL: Duration = Duration::from_micros(30);
/// As above, in idle passes, for a caller whose time stands still.
const LOOK_PASSES: u32 = 4096;
/// How soon a listener with a full backlog is tried again.
const DIAL_INTERVAL: Duration = Duration::from_millis(1);

/// Why a connection ends on which a fence waits for [`ShmConfig::fence_timeout`].
const ENDLESS_ACCESS: &str = "an access to our memory that does not end";

/// What a socket is watched for.
const SOCKET: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);

/// How to open the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmConfig {
    /// Whether the reactor may sleep on [`Provider::descriptor`](crate::Provider::descriptor). It costs every peer a fence per doorbell.
    pub may_sleep: bool,
    /// Queue pairs at most.
    pub queue_pairs: u32,
    /// Completions at most, over all queue pairs: the sum of their `receives`, `sends` and `exposures`.
    pub completions: u32,
    /// How long a connection's set-up may take.
    pub setup_timeout: Duration,
    /// How long a peer may be in the middle of writing to memory that we want back. Then its connection ends; and as long again
    /// after that, if the peer has not let go of its end, that memory counts as lost.
    pub fence_timeout: Duration,
    /// Who may connect, and to whom we do, besides processes of our own user. **An admitted process may read and write all
    /// registered memory**: see [Trust](self#trust).
    pub admit: Vec<Admit>,
    /// Whether arenas of processes of other users may lie on reserved hugepages. Such a process can end ours: see
    /// [Trust](self#trust). For a client whose server chooses its pages.
    pub foreign_hugepages: bool,
}

impl Default for ShmConfig {
    fn default() -> ShmConfig {
        ShmConfig {
            may_sleep: false,
            queue_pairs: 1024,
            completions: 64 * 1024,
            setup_timeout: Duration::from_secs(5),
            fence_timeout: Duration::from_secs(60),
            admit: Vec::new(),
            foreign_hugepages: false,
        }
    }
}

/// What we tell every peer.
struct Ours {
    may_sleep: bool,
    arenas: Vec<Arena>,
    bells: Bells,
}

impl Ours {
    /// Which of our arenas it is.
    #[inline(always)]
    fn region(&self, arena: ArenaId) -> Option<usize> {
        // A handful at most, and nearly always the first.
        match &self.arenas[..] {
            [first, ..] if first.id() == arena => Some(0),
            _ => self.other_region(arena),
        }
    }

    #[inline(never)]
    fn other_region(&self, arena: ArenaId) -> Option<usize> {
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
    /// The doorbell that the last look at the clock met, and for how many looks it has been the same.
    seen: *const AtomicU64,
    quiet: u32,
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
    /// Queue pairs that there are.
    pairs: u32,
    regions: Regions,
    listeners: Vec<Listener>,
    incoming: Vec<Incoming>,
    incoming_next: u32,
    /// Descriptors ran out: no connection is accepted until then.
    paused_until: Option<Duration>,
    /// Users that sent descriptors that were not asked for, and until when they are refused.
    shunned: Vec<(u32, Duration)>,
    /// Queue pairs that wait for their listener.
    dialing: Vec<u32>,
    is_armed: bool,
    /// Idle connections whose bells were rung: kept for reuse.
    rung: Vec<u32>,
    /// Doorbells looked at.
    #[cfg(test)]
    doorbells_seen: u64,
    /// Tells our user: [`admit::own_user`], but in tests.
    own_user: fn() -> u32,
}

impl Shm {
    /// Opens the provider. It needs no device and no privilege.
    pub fn open(config: ShmConfig) -> Result<Shm, FabricError> {
        let failed = |doing: &str| {
            let doing = doing.to_owned();
            move |source| FabricError::System { doing, source }
        };
        let epoll = Epoll::new().map_err(failed("make an epoll"))?;
        let most = BellPlace::COUNT_MAX;
        check_limit("ShmConfig::queue_pairs", config.queue_pairs.into(), most.into(), "lower it")?;
        let bells =
            Bells::new(config.queue_pairs.max(1)).map_err(failed("make memory (memfd_create) for bells"))?;
        let count = config.queue_pairs as usize;
        Ok(Shm {
            active: Vec::with_capacity(count),
            turn: 0,
            local: VecDeque::new(),
            attention: Vec::with_capacity(count),
            dirty: Vec::with_capacity(count),
            look_at: Duration::ZERO,
            look_passes: 0,
            now: Duration::ZERO,
            slots: Vec::with_capacity(count),
            ours: Ours { may_sleep: config.may_sleep, arenas: Vec::new(), bells },
            config,
            epoll,
            // Established and Disconnected for each, and the requests.
            events: VecDeque::with_capacity(2 * count + INCOMING_MAX),
            generations: Vec::with_capacity(count),
            completions_taken: 0,
            pairs: 0,
            regions: Regions::new(),
            listeners: Vec::new(),
            incoming: Vec::new(),
            incoming_next: 0,
            paused_until: None,
            shunned: Vec::new(),
            dialing: Vec::new(),
            is_armed: false,
            rung: Vec::with_capacity(count),
            #[cfg(test)]
            doorbells_seen: 0,
            own_user: admit::own_user,
        })
    }

    /// Octets that a queue pair of this capacity takes at most: heap, its share of the completions, and what it shares with
    /// its peer, whose own part is counted as if it were as long as ours, with `peer_exposures`.
    #[must_use]
    pub fn queue_pair_len(capacity: &QueuePairCapacity, peer_exposures: u32) -> usize {
        let ours = Layout::of(capacity);
        let theirs = pages::Layout { exposures: peer_exposures, ..ours };
        size_of::<QueuePair>()
            + QueuePair::footprint(capacity)
            + exposure::footprint(capacity.exposures, peer_exposures)
            + slots::footprint(QueuePair::completions(capacity))
            + ours.file_len()
            + theirs.file_len()
    }

    /// Something was posted: the next `ring_doorbells` has to come by.
    #[inline(always)]
    fn mark_dirty(&mut self, index: u32) {
        if let Some(Some(pair)) = self.slots.get_mut(index as usize) {
            pair.mark_dirty(&mut self.dirty);
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
        let QueuePairCapacity { exposures, send_len_max, receive_len_max, receive_targets, .. } = *capacity;
        let smaller = "choose a smaller inline threshold";
        check_limit("send_len_max", send_len_max.into(), MESSAGE_LEN_MAX.into(), smaller)?;
        check_limit("receive_len_max", receive_len_max.into(), MESSAGE_LEN_MAX.into(), smaller)?;
        check_targets(receive_targets, RECEIVE_TARGETS_MAX as u32)?;
        let most = pages::Layout::EXPOSURES_MAX;
        check_limit("exposures of a queue pair", exposures.into(), most.into(), "choose fewer credits")?;
        let wanted = self.completions_taken + QueuePair::completions(capacity);
        let repair = "raise ShmConfig::completions, or choose fewer credits or connections";
        check_limit("completions of all queue pairs", wanted, self.config.completions.into(), repair)?;
        let repair = "raise ShmConfig::queue_pairs";
        let most = self.config.queue_pairs;
        let id = slots::reserve(&mut self.slots, &mut self.generations, most, repair)?;
        self.completions_taken = wanted;
        slots::reserve_completions(&mut self.local, wanted, self.slots.len());
        Ok(id)
    }

    /// Puts a queue pair into the slot that `admit` found.
    fn install(&mut self, pair: QueuePair) {
        let index = pair.id.index as usize;
        self.ours.bells.quieten(pair.id.index);
        self.slots[index] = Some(Box::new(pair));
        self.pairs += 1;
    }

    /// Connections without a queue pair at once.
    fn incoming_max(&self) -> usize {
        INCOMING_MAX + self.config.queue_pairs.saturating_sub(self.pairs) as usize
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
        self.ours.bells.quieten(index);
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
                if pair.stalled_for(self.now) >= self.config.fence_timeout {
                    self.close(index, DisconnectReason::PeerViolation(ENDLESS_ACCESS));
                    return true;
                }
            }
            Phase::Draining(reason) => {
                pair.poll_fences(completions, room);
                if pair.is_drained() {
                    self.close(index, reason);
                    return true;
                }
            }
            // Completions that were queued before come first, and targets of messages that the user has.
            Phase::Closing(reason) if self.local.is_empty() && !pair.has_targets() => {
                let mut is_over = pair.flush(completions, room);
                if !is_over && pair.stalled_for(self.now) >= self.config.fence_timeout {
                    let count = pair.lose_waiting();
                    tracing::warn!(
                        "shm: {} says that it is writing to {count} exposed buffers, and has not let go of its connection for \
                         {:?} (fence_timeout); their memory is lost to this process",
                        pair.peer,
                        self.config.fence_timeout
                    );
                    is_over = true;
                }
                if is_over {
                    let capacity = pair.capacity;
                    let queue_pair = pair.id;
                    self.slots[index as usize] = None;
                    self.pairs -= 1;
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

    /// Polls the sockets, and looks at the clock.
    #[cold]
    fn poll_sockets(&mut self) {
        self.look_at = self.now + LOOK_INTERVAL;
        self.look_passes = 0;
        self.retire_idle();
        for at in 0..self.epoll.poll() {
            let Ready { token, hung_up } = self.epoll.ready(at);
            match token {
                Token::Own => {}
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
        if self.paused_until.is_some_and(|until| now >= until) {
            self.paused_until = None;
            sockets::go_on_closing();
            self.set_listening(SOCKET);
        }
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
