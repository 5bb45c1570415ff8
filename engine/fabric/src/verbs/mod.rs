//! RDMA devices through rdma-core: InfiniBand, RoCE and iWARP cards, and Linux's software ones (rxe, siw).
//!
//! [`Verbs::open`] finds libibverbs and librdmacm at run time, and says what is missing where it cannot: the same program
//! runs on machines without RDMA.
//!
//! - `objects` and `identifiers` own the libraries' objects, `work` posts: their lifetimes are proven there, and relied on
//!   elsewhere.
//! - `device` chooses the device and how to use it; [`Verbs::notes`] explains the choice.
//! - `presence` knows the other users of the device in this process; it notices that the device is taken away, and lets it
//!   go.
//! - `manager` follows the connection manager's events, `setup` starts and answers connections.
//! - `connection` is one queue pair: `sends`, `receives`, which may be shared, `exposure`. `harvest` turns completions into
//!   ours, or shows messages where they arrived; `plain` is where such messages are built.
//! - `addresses` says which of the machine's addresses lead to the device.
//! - `survey` looks at all devices, for people; `sysfs` says what the kernel has, with or without rdma-core.
//! - `errors` translates statuses.
//!
//! # Exposure
//!
//! With memory windows of type 2, an exposure is a bind in front of the Send that carries the handle, and a fence is a
//! local invalidation: two work requests, no system call. A window admits the peer of one queue pair only. Without
//! windows, an exposure is a registration of just that memory and a fence its end: two system calls. A region is good
//! for a whole protection domain, so each queue pair has one of its own; domains with the arenas registered in them are
//! kept for later connections. An arena itself is never registered for a peer.
//!
//! [`ExposureKind::Standing`](crate::ExposureKind::Standing) is the exception, and has to be asked for: then arenas are registered for peers, a handle is
//! the key of such a registration, and a fence only gives the memory back to its owner. It revokes nothing: the peer can use
//! the handle until the domain is gone (8166-8.1 is broken knowingly). Exposures of one queue pair at one time need handles
//! of their own, so the arenas are registered once for each concurrent exposure.
//!
//! An iWARP device answers a Read with a tagged message to the reader's buffer, so that buffer has to be registered
//! for the peer to write: each Read of ours registers its target while it lasts.
//!
//! # Threads
//!
//! None. Completions are polled; the connection manager is looked at every [`LOOK_INTERVAL`]. Ending a connection
//! destroys its queue pair, which takes the kernel some microseconds.
//!
//! A process opens a device once, so of several providers on it the first that polls gets an event of the device. It passes
//! on the events that are not its own; a provider that sleeps finds them when it wakes up.
//!
//! # What Linux's software devices do
//!
//! Seen in the guest (`ci/verbs.sh`), kernels 6.1 and 6.12; the code says where it matters.
//!
//! - rxe reports a message that is too long as a malformed Receive, and an invalidation by the peer as a good checksum.
//!   Its windows are at fault: the kernel checks the bounds of the region that a window is in, not the window's
//!   (`check_rkey`), so a peer reaches the arena; and it panics when one is invalidated that is not bound any more
//!   (`rxe_do_invalidate_mw`): a peer has but to end a handle twice, or while we end it. So on rxe memory is exposed by
//!   registrations unless windows are asked for. A queue pair whose windows are bound is not destroyed for a minute, so
//!   they are freed before.
//!   A message of the connection manager that finds no route (the link is down) is the last one: the queue pair of such
//!   messages fails for good, and no connection over that device succeeds until it is made anew (`rdma link delete`, `add`).
//! - siw reports a lost connection as a failure of its own, and a Send as soon as TCP has it, before the Read in front of it;
//!   keeps the peer's Terminate to itself, so that a refused request is only a lost connection; does not tell a listener that
//!   the client is gone, and needs half a minute to destroy such a queue pair; and may leave a first message unread that
//!   comes while it answers. It answers a Read of whatever is registered in the queue pair's domain, for whatever purpose: a
//!   peer that guesses a handle reads the arenas. It is for tests. Its library takes a queue that is mapped at 0x90000 for
//!   one that could not be mapped. It reports a page or more as done while TCP has yet to take it out of the user's memory:
//!   so all such work asks for a completion of its own, which makes it copy. The answers to a peer's Reads it never copies:
//!   if their memory is fenced because a Call was given up, the peer may read the data that the memory is used for next.
//! - Neither can be deleted while a program has it open (`presence`).
//!
//! # What no test here has seen
//!
//! A card. These are from manual pages and drivers, for users who have one:
//!
//! - A fence that crosses the peer's Send with Invalidate of the same handle may fail on the card, and the connection with it.
//! - Cards whose library has no windows (bnxt_re, cxgb4, hns, qedr) pin all arenas once more for each connection at one time:
//!   `ulimit -l` counts them all, and the first such connections take as long as that takes.
//! - A card that was pulled leaves some of rdma-core's own memory behind, unless `RDMAV_ALLOW_DISASSOC_DESTROY=1` is set.
//! - RoCE's traffic class is the system's: `cma_roce_tos`. The end that connects sets it for both directions.
//! - An arena is a shared mapping, which a fork leaves as it is. The queues are the driver's: before Linux 5.12 a program that
//!   forks, and does not exec at once, needs `RDMAV_FORK_SAFE=1` and `RDMAV_HUGEPAGES_SAFE=1`.
//! - The message that ends a connection is sent once: the queue pair does not wait for the answer. A peer that misses it
//!   finds out when it sends, or asks ([`VerbsConfig::keep_alive`]).
//!
//! # Not here yet
//!
//! Connections through several devices: a provider that listens at all addresses refuses those that come in through another
//! than the opened one. A provider for each device can be opened.

mod addresses;
mod config;
mod connection;
mod device;
mod domain;
mod errors;
mod exposure;
mod handover;
mod harvest;
mod identifiers;
mod manager;
mod objects;
mod plain;
mod presence;
mod provider;
mod receives;
mod sends;
mod setup;
mod survey;
mod sysfs;
mod work;

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use stag_memory::{Arena, ArenaId};
use stag_rdma_core_sys::{RdmaCore, ibv_wc};

pub use addresses::InterfaceAddress;
pub use config::{SharedReceives, VerbsConfig};
pub use handover::{VerbsDestination, VerbsHandover};
pub use survey::{Choice, DeviceLimits, OnDemandPaging, Survey, SurveyedDevice, survey, survey_with};
pub use sysfs::{Gid, Kernel, KernelDevice, Port, devices as kernel_devices};

use crate::epoll::{Epoll, EventFlags, Token};
use crate::setup::{check_limit, check_targets};
use crate::slots::{self, Numbered, find};
use crate::{Completion, DisconnectReason, Event, FabricError, Peer, QueuePairCapacity, QueuePairId};
use connection::{Phase, QueuePair};
use device::Opened;
use domain::Domain;
use errors::unavailable;
use identifiers::{CmId, EventChannel};
use presence::Claim;
use work::{Batch, HARVEST, SLOTS_MAX};

/// Connection requests that wait for an answer at once: more are refused.
const INCOMING_MAX: usize = 1024;
/// How often the connection manager is looked at.
pub const LOOK_INTERVAL: Duration = Duration::from_micros(50);
/// As above, in idle passes, for a caller whose time stands still.
const LOOK_PASSES: u32 = 1024;
/// How long the device may take to give back what was posted, before its queue pair is destroyed.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the connection manager may take to say why requests were flushed.
const REASON_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the device is looked for, while it is there and while it is not.
const RETURN_INTERVAL: Duration = Duration::from_millis(500);

/// What happened so far, for tuning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerbsCounters {
    /// Windows bound, one for each exposure.
    pub binds: u64,
    /// Regions registered for an exposure or for the target of a Read.
    pub registrations: u64,
    /// Exposures through standing registrations: nothing was registered, and nothing is protected.
    pub standing: u64,
    /// Exposures ended by us.
    pub fences: u64,
    /// Exposures ended by Sends of peers.
    pub invalidations: u64,
    /// Silent peers asked whether they are there.
    pub probes: u64,
    /// Doorbells rung with something to post.
    pub doorbells: u64,
    /// Looks at the connection manager.
    pub looks: u64,
}

/// A listener, which outlives its device.
struct Listener {
    cm: Option<CmId>,
    address: std::net::SocketAddr,
}

/// A connection request that waits for its answer.
struct Incoming {
    cm: CmId,
    number: u32,
    /// Reads that the peer takes, and that it makes.
    offered: (u8, u8),
}

/// The verbs provider.
///
/// Fields are dropped in this order: what may touch memory, the domains it is registered in, the memory.
pub struct Verbs {
    /// By [`QueuePairId::index`].
    slots: Vec<Option<Box<QueuePair>>>,
    incoming: Vec<Incoming>,
    listeners: Vec<Listener>,
    /// `None` while the device is away.
    opened: Option<Opened>,
    channel: Arc<EventChannel>,
    arenas: Vec<Arena>,

    local: VecDeque<Completion>,
    events: VecDeque<Event>,
    /// Queue pairs that the next doorbell is for.
    dirty: Vec<u32>,
    /// Queue pairs that wait for something else than completions.
    attention: Vec<u32>,
    harvested: Box<[ibv_wc; HARVEST]>,
    batch: Box<Batch>,
    generations: Vec<u32>,
    completions_taken: u64,
    /// Requests that ended before they were adopted: their identifiers' events were faster. Oldest first.
    ended_early: VecDeque<u32>,
    now: Duration,
    /// Counts polls.
    polls: u64,
    look_at: Duration,
    look_passes: u32,
    /// Whether the completion queue failed, until the device is given up.
    is_broken: bool,
    /// A device that was taken away, until it is gone.
    left: Option<Claim>,
    /// When to look for the device next.
    return_at: Duration,
    /// When to look for silent peers next.
    keep_alive_at: Duration,
    epoll: Epoll,
    counters: VerbsCounters,
    config: VerbsConfig,
    core: &'static RdmaCore,
}

impl Verbs {
    /// Opens the provider on a device of this machine. Where there is none, or no rdma-core, the error says so and what
    /// would work.
    pub fn open(config: VerbsConfig) -> Result<Verbs, FabricError> {
        let core = RdmaCore::load().map_err(|error| unavailable(error.to_string()))?;
        Verbs::open_on(core, config)
    }

    /// As [`Verbs::open`], with other functions than those of the machine's libraries: for tests.
    ///
    /// # Safety
    ///
    /// The functions do as the manual pages of their names say.
    pub unsafe fn open_with(core: &'static RdmaCore, config: VerbsConfig) -> Result<Verbs, FabricError> {
        Verbs::open_on(core, config)
    }

    fn open_on(core: &'static RdmaCore, config: VerbsConfig) -> Result<Verbs, FabricError> {
        let config = VerbsConfig { queue_pairs: config.queue_pairs.min(SLOTS_MAX), ..config };
        let channel = EventChannel::new(core).map_err(|error| device::no_device(&error))?;
        let channel = Arc::new(channel);
        let opened = Opened::new(core, &config, &[])?;
        for note in &opened.notes {
            tracing::info!(device = opened.profile.name, "{note}");
        }
        let epoll = Epoll::new().map_err(unwatched)?;
        listen_to(&epoll, channel.descriptor())?;
        let count = config.queue_pairs as usize;
        // SAFETY: numbers, for which all zeros is a value.
        let nothing: ibv_wc = unsafe { std::mem::zeroed() };
        let mut verbs = Verbs {
            slots: Vec::with_capacity(count),
            incoming: Vec::new(),
            listeners: Vec::new(),
            // What is harvested at once may finish all that one queue pair has.
            local: VecDeque::with_capacity(opened.completions(&config) as usize),
            opened: None,
            channel,
            arenas: Vec::new(),
            events: VecDeque::with_capacity(2 * count),
            dirty: Vec::with_capacity(count),
            attention: Vec::with_capacity(count),
            harvested: Box::new([nothing; HARVEST]),
            batch: Batch::new(),
            generations: Vec::with_capacity(count),
            completions_taken: 0,
            ended_early: VecDeque::new(),
            now: Duration::ZERO,
            polls: 0,
            look_at: Duration::ZERO,
            look_passes: 0,
            is_broken: false,
            left: None,
            return_at: Duration::ZERO,
            keep_alive_at: Duration::ZERO,
            epoll,
            counters: VerbsCounters::default(),
            config,
            core,
        };
        verbs.watch(opened)?;
        Ok(verbs)
    }

    /// Puts an opened device in place.
    fn watch(&mut self, opened: Opened) -> Result<(), FabricError> {
        listen_to(&self.epoll, opened.device.prepare_async_events().map_err(unwatched)?)?;
        if let Some(before) = &self.opened {
            // It stays open, for librdmacm, and its events would not be taken.
            self.epoll.remove(before.device.prepare_async_events().map_err(unwatched)?);
        }
        if let Some(fd) = opened.queue.descriptor() {
            listen_to(&self.epoll, fd)?;
        }
        self.opened = Some(opened);
        Ok(())
    }

    /// The device's name; `None` while it is away.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        self.opened.as_ref().map(|opened| &opened.profile.name[..])
    }

    /// This machine's addresses that lead to the device: those that other machines can use first.
    #[must_use]
    pub fn addresses(&self) -> Vec<InterfaceAddress> {
        let Some(opened) = &self.opened else { return Vec::new() };
        let all = addresses::of_this_machine().unwrap_or_default();
        let mut found = addresses::leading_to(&self.channel, opened.device.as_ptr(), all);
        found.sort_by_key(|address| !addresses::is_global(address));
        found
    }

    /// What was chosen on this device and why: sentences for people.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        self.opened.as_ref().map_or(&[], |opened| &opened.notes)
    }

    /// What a queue pair of that capacity takes of [`VerbsConfig::completions`], with Receives of its own.
    #[must_use]
    pub fn completions_needed(capacity: &QueuePairCapacity) -> u64 {
        QueuePair::completions(capacity, false)
    }

    /// Octets of memory that a queue pair of this capacity takes at most, its share of the completions included. What the
    /// device's driver takes is not known; [`Verbs::completions_needed`] says how deep its queues are.
    #[must_use]
    pub fn queue_pair_len(capacity: &QueuePairCapacity) -> usize {
        size_of::<QueuePair>()
            + QueuePair::footprint(capacity)
            + slots::footprint(QueuePair::completions(capacity, false))
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> VerbsCounters {
        self.counters
    }

    /// Which of our arenas it is.
    #[inline]
    fn arena(&self, id: ArenaId) -> Option<usize> {
        // A handful at most, and nearly always the first.
        self.arenas.iter().position(|arena| arena.id() == id)
    }

    #[inline]
    fn find(&mut self, id: QueuePairId) -> Option<&mut QueuePair> {
        find(&mut self.slots, id)
    }

    #[inline]
    fn at(&mut self, index: u32) -> Option<&mut QueuePair> {
        self.slots.get_mut(index as usize)?.as_deref_mut()
    }

    /// Something was posted: the next `ring_doorbells` has to come by.
    #[inline]
    fn mark_dirty(&mut self, index: u32) {
        if let Some(Some(pair)) = self.slots.get_mut(index as usize) {
            pair.mark_dirty(&mut self.dirty);
        }
    }

    /// `look` has to see to this queue pair.
    fn mark_attention(&mut self, index: u32) {
        if !self.attention.contains(&index) {
            self.attention.push(index);
        }
        self.look_at = Duration::ZERO;
    }

    /// Hands over what was posted on a queue pair.
    #[inline]
    fn ring_one(&mut self, index: u32) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        pair.is_dirty = false;
        self.counters.doorbells += 1;
        if let Err(error) = pair.ring(&mut self.batch) {
            self.post_failed(index, &error);
        }
    }

    /// The device took less than it has room for: the end of the queue pair.
    #[cold]
    fn post_failed(&mut self, index: u32, error: &std::io::Error) {
        tracing::warn!("post work requests: {error}");
        self.batch.clear();
        self.failed(index, crate::WorkError::Device);
    }

    /// Finds room for a queue pair, or says what is missing.
    fn admit(
        &mut self,
        phase: Phase,
        capacity: QueuePairCapacity,
        peer: Peer,
    ) -> Result<QueuePair, FabricError> {
        let opened = self.opened.as_ref().ok_or(FabricError::Gone("the RDMA device"))?;
        let smaller = "choose a smaller inline threshold";
        let len_max = opened.profile.len_max.into();
        check_limit("send_len_max", capacity.send_len_max.into(), len_max, smaller)?;
        check_limit("receive_len_max", capacity.receive_len_max.into(), len_max, smaller)?;
        check_targets(capacity.receive_targets, opened.profile.receive_targets)?;
        let fewer = "choose fewer credits";
        let completions = opened.completions(&self.config);
        let repair = "raise VerbsConfig::completions, or choose fewer credits or connections";
        let shared = opened.receives.clone().filter(|shared| shared.suits(&capacity));
        let taken = self.completions_taken + QueuePair::completions(&capacity, shared.is_some());
        let aside = opened.receives.as_ref().map_or(0, |shared| shared.count());
        check_limit("completions of all queue pairs", taken + u64::from(aside), completions.into(), repair)?;
        let requests_max = opened.profile.requests_max.into();
        check_limit("Receives of a queue pair", capacity.receives.into(), requests_max, fewer)?;
        check_limit("work requests of a send queue", sends::depth(&capacity), requests_max, fewer)?;
        check_limit("exposures of a queue pair", capacity.exposures.into(), u16::MAX.into(), fewer)?;
        let repair = "raise VerbsConfig::queue_pairs";
        let most = self.config.queue_pairs;
        let id = slots::reserve(&mut self.slots, &mut self.generations, most, repair)?;
        self.completions_taken = taken;
        Ok(QueuePair::new(id, phase, capacity, peer, shared))
    }

    /// Starts to end a queue pair, for whatever reason. The first reason is the one that counts.
    #[cold]
    fn close(&mut self, index: u32, reason: DisconnectReason) {
        let tells_last = self.opened.as_ref().is_some_and(|opened| opened.profile.tells_last_receive);
        let Some(pair) = self.at(index) else { return };
        if matches!(pair.phase, Phase::Closing | Phase::Gone) {
            return;
        }
        if let Some(cm) = &pair.cm {
            match pair.phase {
                // The peer gets an answer that it understands: a refusal.
                Phase::Prepared => {
                    cm.reject(b"");
                    cm.flush();
                }
                Phase::Accepted | Phase::Settling | Phase::Open | Phase::Failing => cm.disconnect(),
                // Nothing was sent, or destroying the identifier takes it back.
                _ => cm.flush(),
            }
        }
        // Before that no message could come.
        let could_receive =
            matches!(pair.phase, Phase::Accepted | Phase::Settling | Phase::Open | Phase::Failing);
        pair.awaits_last_receive = could_receive && pair.receives.shared().is_some() && tells_last;
        pair.phase = Phase::Closing;
        pair.reason.get_or_insert(reason);
        pair.deadline = None;
        self.mark_attention(index);
    }

    /// All domains that queue pairs use.
    fn domains(&self) -> impl Iterator<Item = &Rc<Domain>> {
        self.slots.iter().flatten().filter_map(|pair| pair.domain.as_ref())
    }
}

/// Lets the epoll tell of a descriptor of the device's, or of the connection manager's.
fn listen_to(epoll: &Epoll, fd: BorrowedFd<'_>) -> Result<(), FabricError> {
    match epoll.add(fd, Token::Own, EventFlags::IN) {
        // A device that is opened again may have the descriptor that it had.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result.map_err(unwatched),
    }
}

fn unwatched(source: io::Error) -> FabricError {
    FabricError::System { doing: "watch the RDMA device's events".to_owned(), source }
}
