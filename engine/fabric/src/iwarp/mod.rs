//! iWARP in userspace: MPA, DDP and RDMAP over the kernel's TCP. So any machine speaks RDMA with iWARP network cards, with
//! Linux's siw, and with itself. No device, no module, no privilege.
//!
//! One non-blocking socket for each queue pair. Posted work becomes FPDUs at the doorbell, many in one system call (`send`), or
//! in two halves if the peer waits (`pace`); `poll` checks and places what arrives, large payloads by the system call itself
//! (`receive`). A message without chunks is shown in the receive buffer, and built in the send buffer. Connections are made
//! without blocking: `listen` and `handshake`. The exposures of a queue pair are a table (`stags`); all placing is done by the
//! polling thread, so a fence is over at once.
//!
//! # Trust
//!
//! None. A peer can end its own connection, with the right Terminate where there is one (`fault`), and nothing else: what it
//! may touch is checked for each segment, what it may use up is bounded, what it does wrong is counted ([`IwarpCounters`]) and
//! logged at most once a second.
//!
//! # Who listens on the port
//!
//! A connection whose first octet is not that of an MPA key, but may be that of a record mark, is handed out by
//! [`take_stranger`](crate::Provider::take_stranger): RPC over TCP can be served on the same port.
//!
//! # Names
//!
//! An address is `HOST:PORT`. A host that is not a number is looked up when `listen` or `connect` is called, which may
//! take as long as the system's resolver does.
//!
//! # Linux's siw
//!
//! As initiator it wants S=1 and revision 2 back, and has ORD 0 when it is an NFS client. As responder it may not notice a first
//! FPDU that comes within milliseconds of its reply until more comes: so until a peer that we connected to has sent a message, it
//! gets a message of no octets now and then ([`IwarpCounters::nudges`]). FPDUs to it follow the TCP segment size unless it asks
//! for larger ones; it takes any.

#[doc(hidden)]
pub mod bare;
mod config;
mod connection;
mod counters;
mod crc;
mod cuts;
mod dial;
mod fault;
mod handshake;
mod linger;
mod listen;
mod pace;
mod provider;
mod reactor;
mod receive;
mod rx;
mod send;
mod socket;
mod stags;
mod terms;
mod waiting;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use stag_memory::{Arena, ArenaId};

use crate::epoll::Epoll;
use crate::scatter::RECEIVE_TARGETS_MAX;
use crate::setup::{check_limit, check_targets};
use crate::slots::{self, Numbered};
use crate::{Completion, Event, FabricError, ListenerId, LogLimiter, QueuePairCapacity, QueuePairId};
use connection::{Nudging, QueuePair};
use linger::Lingerers;
use send::Scratch;
use socket::ListenSocket;
use stags::Stags;
use waiting::Waiting;

pub use crate::congestion::{BadCongestionControl, CongestionControl};
pub use config::{IwarpConfig, Revision};
pub use counters::IwarpCounters;
pub use listen::IwarpHandover;

/// Largest message.
const MESSAGE_LEN_MAX: u32 = 1 << 20;
/// Up to this length, data costs less in a message than by an RDMA Read, and results less than by an RDMA Write
/// (`bench/docs/figures.md`).
const MESSAGE_DATA_MAX: u32 = 8192;
const MESSAGE_RESULTS_MAX: u32 = 4096;
/// Octets received by one system call, but for payload that goes straight to its place.
const STAGING_LEN: usize = 64 * 1024;

/// The iWARP provider.
pub struct Iwarp {
    // The poll loop's part.
    /// Queue pairs that are open.
    open: Vec<u32>,
    /// Those of them that are read in every pass: the ones in use.
    hot: Vec<u32>,
    turn: usize,
    local: VecDeque<Completion>,
    /// Messages that were taken where they arrived, in this poll.
    taken: usize,
    /// Queue pairs with something to send.
    dirty: Vec<u32>,
    /// Queue pairs whose socket was full.
    blocked: Vec<u32>,
    staging: Box<[u8]>,
    scratch: Scratch,
    now: Duration,
    look_at: Duration,
    look_interval: Duration,
    look_passes: u32,
    timers_at: Duration,
    /// By [`QueuePairId::index`].
    slots: Vec<Option<Box<QueuePair>>>,
    counters: IwarpCounters,

    // The rest.
    config: IwarpConfig,
    arenas: Vec<Arena>,
    epoll: Epoll,
    events: VecDeque<Event>,
    generations: Vec<u32>,
    completions_taken: u64,
    /// Queue pairs that there are.
    pairs: u32,
    listeners: Vec<ListenSocket>,
    waiting: Waiting,
    /// Descriptors ran out: no connection is accepted until then.
    paused_until: Option<Duration>,
    /// Queue pairs that wait to be connected.
    dialing: Vec<u32>,
    /// Queue pairs that are ending, all given back.
    closing: Vec<u32>,
    /// Peers that have not shown that they listen.
    nudging: Vec<Nudging>,
    lingerers: Lingerers,
    complaints: LogLimiter,
    is_armed: bool,
}

impl Iwarp {
    /// Opens the provider. It needs no device and no privilege.
    pub fn open(config: IwarpConfig) -> Result<Iwarp, FabricError> {
        let failed = |source| FabricError::System { doing: "make an epoll".to_owned(), source };
        let epoll = Epoll::new().map_err(failed)?;
        let count = config.queue_pairs as usize;
        Ok(Iwarp {
            open: Vec::with_capacity(count),
            hot: Vec::with_capacity(count),
            turn: 0,
            local: VecDeque::new(),
            taken: 0,
            dirty: Vec::with_capacity(count),
            blocked: Vec::with_capacity(count),
            staging: vec![0; STAGING_LEN].into(),
            scratch: Scratch::new(),
            now: Duration::ZERO,
            look_at: Duration::ZERO,
            look_interval: Duration::ZERO,
            look_passes: 0,
            timers_at: Duration::ZERO,
            slots: Vec::with_capacity(count),
            counters: IwarpCounters::default(),
            config,
            arenas: Vec::new(),
            epoll,
            events: VecDeque::with_capacity(2 * count),
            generations: Vec::with_capacity(count),
            completions_taken: 0,
            pairs: 0,
            listeners: Vec::new(),
            waiting: Waiting::new(),
            paused_until: None,
            dialing: Vec::new(),
            closing: Vec::with_capacity(count),
            nudging: Vec::new(),
            lingerers: Lingerers::default(),
            complaints: LogLimiter::default(),
            is_armed: false,
        })
    }

    /// Octets of heap that a queue pair of this capacity takes at most, its share of the completions included.
    #[must_use]
    pub fn queue_pair_len(capacity: &QueuePairCapacity) -> usize {
        size_of::<QueuePair>()
            + QueuePair::footprint(capacity)
            + slots::footprint(QueuePair::completions(capacity))
    }

    /// What happened since then.
    #[must_use]
    pub fn counters(&self) -> &IwarpCounters {
        &self.counters
    }

    /// Where a listener listens: the port, if the system chose it.
    #[must_use]
    pub fn listener_address(&self, listener: ListenerId) -> Option<SocketAddr> {
        self.listeners.get(listener.0 as usize)?.address().ok()
    }

    /// The congestion control algorithm that a connection has, for the record of a measurement.
    #[must_use]
    pub fn congestion_control(&self, queue_pair: QueuePairId) -> Option<String> {
        let pair =
            self.slots.get(queue_pair.index as usize)?.as_ref().filter(|pair| pair.id == queue_pair)?;
        pair.socket.as_ref().map(socket::Socket::congestion_control)
    }

    /// Whether it is one of our arenas.
    #[inline(always)]
    fn is_registered(&self, arena: ArenaId) -> bool {
        // A handful at most, and nearly always the first.
        self.arenas.iter().any(|a| a.id() == arena)
    }

    /// Finds room for a queue pair, or says what is missing.
    fn admit(&mut self, capacity: &QueuePairCapacity) -> Result<QueuePairId, FabricError> {
        let QueuePairCapacity { exposures, send_len_max, receive_len_max, receive_targets, .. } = *capacity;
        let smaller = "choose a smaller inline threshold";
        check_limit("send_len_max", send_len_max.into(), MESSAGE_LEN_MAX.into(), smaller)?;
        check_limit("receive_len_max", receive_len_max.into(), MESSAGE_LEN_MAX.into(), smaller)?;
        check_targets(receive_targets, RECEIVE_TARGETS_MAX as u32)?;
        let wanted = self.completions_taken + QueuePair::completions(capacity);
        let repair = "raise IwarpConfig::completions, or choose fewer credits or connections";
        check_limit("completions of all queue pairs", wanted, self.config.completions.into(), repair)?;
        let most = Stags::EXPOSURES_MAX;
        check_limit("exposures of a queue pair", exposures.into(), most.into(), "choose fewer credits")?;
        let repair = "raise IwarpConfig::queue_pairs";
        let most = self.config.queue_pairs;
        let id = slots::reserve(&mut self.slots, &mut self.generations, most, repair)?;
        self.completions_taken = wanted;
        slots::reserve_completions(&mut self.local, wanted, self.slots.len());
        Ok(id)
    }

    /// Puts a queue pair into the slot that `admit` found.
    fn install(&mut self, pair: QueuePair) {
        let index = pair.id.index as usize;
        self.slots[index] = Some(Box::new(pair));
        self.pairs += 1;
    }

    /// Something was posted: the next `ring_doorbells` has to come by.
    #[inline(always)]
    fn mark_dirty(&mut self, index: u32) {
        if let Some(Some(pair)) = self.slots.get_mut(index as usize) {
            pair.mark_dirty(&mut self.dirty);
        }
    }
}
