//! The world: virtual time, the events to come, and the state that the simulated devices share.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use super::device::{Device, Queued, Slots};
use super::fault::FaultPlan;
use super::queue_pair::{End, QueuePair};
use super::random::{Random, Trace};
use crate::scatter::RECEIVE_TARGETS_MAX;
use crate::{Completed, Completion, DisconnectReason, ExposureKind, Handle, Limits, ListenerId, WorkError};

/// What a simulated provider can do unless told otherwise: small enough that tests meet the limits.
pub const LIMITS: Limits = Limits {
    completions: 65_536,
    queue_pairs: 1024,
    message_len_max: 1 << 20,
    transfer_len_max: 1 << 30,
    // What the connection manager of InfiniBand leaves to a program in a connect request.
    private_data_len_max: 56,
    send_with_invalidate: true,
    exposure: ExposureKind::TableEntry,
    shared_receives: false,
    receive_targets: RECEIVE_TARGETS_MAX as u32,
    message_data_max: u32::MAX,
    message_results_max: u32::MAX,
};

/// Rules of the fabric that the program under test broke. A correct one leaves all at 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Violations {
    /// Sends that found no posted Receive (receiver not ready).
    pub receiver_not_ready: u64,
    /// Completions that found the completion queue full.
    pub completions_overrun: u64,
    /// Posted Receives with less capacity than their queue pair promised.
    pub receives_too_small: u64,
}

/// A simulated fabric and its time. Clones name the same world.
///
/// Nothing happens by itself: [`World::advance`] moves time to the next thing that is going to happen, and
/// lets it. All providers of a world live in one thread. The same seed, plan and calls give the same run:
/// [`World::trace_hash`] proves it.
#[derive(Clone)]
pub struct World(pub(super) Rc<RefCell<State>>);

impl World {
    /// An empty world at time 0.
    #[must_use]
    pub fn new(seed: u64, plan: FaultPlan) -> World {
        World(Rc::new(RefCell::new(State {
            now: Duration::ZERO,
            random: Random::new(seed),
            plan,
            agenda: BTreeMap::new(),
            next_number: 0,
            steps: 0,
            taken_in_place: 0,
            trace: Trace::new(),
            violations: Violations::default(),
            devices: Vec::new(),
            listeners: BTreeMap::new(),
            handles: BTreeSet::new(),
            next_request: 0,
        })))
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.0.borrow().now
    }

    /// When the next thing is going to happen. `None`: nothing will, whatever the time.
    #[must_use]
    pub fn next_event(&self) -> Option<Duration> {
        self.0.borrow().agenda.keys().next().map(|&(at, _)| at)
    }

    /// Moves time to the next thing that is going to happen and lets it. `false`: nothing is.
    pub fn advance(&self) -> bool {
        match self.next_event() {
            Some(at) => {
                self.advance_to(at);
                true
            }
            None => false,
        }
    }

    /// Moves time to `now` and lets everything happen that is due by then. Time never goes back: an
    /// earlier `now` does nothing.
    pub fn advance_to(&self, now: Duration) {
        self.0.borrow_mut().advance_to(now);
    }

    /// Moves time to the next thing that is going to happen, or to `timer` if that comes first: what a
    /// driver does when all its reactors are idle, with the earliest of their timers. `false`: there is
    /// neither, so waiting is of no use.
    pub fn advance_before(&self, timer: Option<Duration>) -> bool {
        match self.next_event().into_iter().chain(timer).min() {
            Some(at) => {
                self.advance_to(at);
                true
            }
            None => false,
        }
    }

    /// Calls `pass` at one time after the other until it returns `Run::Done`, and moves time on each time it
    /// was idle. Says whether it was done; otherwise nothing was left to happen, or `passes_max` was reached.
    pub fn run(&self, passes_max: u64, mut pass: impl FnMut(Duration) -> Run) -> bool {
        for _ in 0..passes_max {
            match pass(self.now()) {
                Run::Done => return true,
                Run::Busy => {}
                Run::Idle(timer) => {
                    if !self.advance_before(timer) {
                        return false;
                    }
                }
            }
        }
        false
    }

    /// Steps taken by connections so far: arrivals, placements, deliveries, acknowledgements. See
    /// [`FaultPlan::death_at`].
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.0.borrow().steps
    }

    /// Messages so far that were handled where they arrived ([`poll_in_place`](crate::Provider::poll_in_place)).
    #[must_use]
    pub fn taken_in_place(&self) -> u64 {
        self.0.borrow().taken_in_place
    }

    /// Rules that were broken so far.
    #[must_use]
    pub fn violations(&self) -> Violations {
        self.0.borrow().violations
    }

    /// A fingerprint of everything that happened so far, with its time. Equal for equal runs.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.0.borrow().trace.hash()
    }

    /// Changes the weather from here on.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.0.borrow_mut().plan = plan;
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.try_borrow() {
            Ok(state) => f
                .debug_struct("World")
                .field("now", &state.now)
                .field("steps", &state.steps)
                .field("agenda", &state.agenda.len())
                .finish_non_exhaustive(),
            Err(_) => f.write_str("World(in use)"),
        }
    }
}

/// What a pass of [`World::run`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// Something: there may be more to do at the same time.
    Busy,
    /// Nothing. Time may move on, at most to the timer.
    Idle(Option<Duration>),
    /// What was run for is reached.
    Done,
}

/// Something that is going to happen.
#[derive(Debug)]
pub(super) enum Happening {
    /// A request to connect reaches the address.
    ConnectArrives { from: End, address: String, private_data: Vec<u8> },
    /// The accept reaches the connecting side.
    AcceptArrives { to: End, private_data: Vec<u8> },
    /// The accepting side learns that the connection is up.
    EstablishedArrives { to: End },
    /// The connecting side is gone: its request is, too.
    RequestLapses { device: usize, from: End },
    /// Set-up has taken too long.
    SetupTimesOut { end: End },
    /// A queue pair ends.
    Dies {
        end: End,
        failed: Option<(u64, WorkError)>,
        reason: DisconnectReason,
        tell: Option<DisconnectReason>,
    },
    /// A Send reaches the peer.
    SendArrives { from: End, work: u64 },
    /// A Send tries again to find a Receive.
    SendRetries { from: End },
    /// A piece of a Write or Read reaches the peer's memory.
    PieceArrives { from: End, work: u64, part: usize, at: u32, len: u32 },
    /// The side that posted a request learns that it is done.
    Acked { from: End, work: u64 },
    /// A late fence is done, as far as the device is concerned.
    FenceDue { end: End, handle: Handle },
}

impl Happening {
    /// The connection whose step this is: one that a cut connection does not take any more.
    fn step_of(&self) -> Option<End> {
        match *self {
            Happening::ConnectArrives { from, .. }
            | Happening::SendArrives { from, .. }
            | Happening::SendRetries { from }
            | Happening::PieceArrives { from, .. }
            | Happening::Acked { from, .. } => Some(from),
            Happening::AcceptArrives { to, .. } | Happening::EstablishedArrives { to } => Some(to),
            Happening::RequestLapses { .. }
            | Happening::SetupTimesOut { .. }
            | Happening::Dies { .. }
            | Happening::FenceDue { .. } => None,
        }
    }

    fn trace(&self, trace: &mut Trace) {
        let (tag, end, detail) = match *self {
            Happening::ConnectArrives { from, ref private_data, .. } => (1, from, private_data.len() as u64),
            Happening::AcceptArrives { to, ref private_data } => (2, to, private_data.len() as u64),
            Happening::EstablishedArrives { to } => (3, to, 0),
            Happening::RequestLapses { device, from } => (4, from, device as u64),
            Happening::SetupTimesOut { end } => (5, end, 0),
            Happening::Dies { end, ref failed, .. } => (6, end, failed.map_or(0, |(work, _)| work + 1)),
            Happening::SendArrives { from, work } => (7, from, work),
            Happening::SendRetries { from } => (8, from, 0),
            Happening::PieceArrives { from, work, part, at, len } => {
                trace.words(&[part as u64, u64::from(at), u64::from(len)]);
                (9, from, work)
            }
            Happening::Acked { from, work } => (10, from, work),
            Happening::FenceDue { end, handle } => (11, end, u64::from(handle.0)),
        };
        trace.words(&[tag, end.device as u64, u64::from(end.id.index), u64::from(end.id.generation), detail]);
    }
}

/// Everything that the handles to a world share.
pub(super) struct State {
    pub(super) now: Duration,
    pub(super) random: Random,
    pub(super) plan: FaultPlan,
    /// By time, and in the order of planning at the same time.
    agenda: BTreeMap<(Duration, u64), Happening>,
    next_number: u64,
    steps: u64,
    pub(super) taken_in_place: u64,
    pub(super) trace: Trace,
    pub(super) violations: Violations,
    /// `None`: dropped.
    pub(super) devices: Vec<Option<Device>>,
    pub(super) listeners: BTreeMap<String, (usize, ListenerId)>,
    /// All live handles of all queue pairs.
    pub(super) handles: BTreeSet<u32>,
    pub(super) next_request: u64,
}

impl State {
    pub(super) fn advance_to(&mut self, now: Duration) {
        while let Some(entry) = self.agenda.first_entry() {
            let &(at, _) = entry.key();
            if at > now {
                break;
            }
            let happening = entry.remove();
            self.now = self.now.max(at);
            self.happen(happening);
        }
        self.now = self.now.max(now);
    }

    fn happen(&mut self, happening: Happening) {
        self.trace.word(self.now.as_nanos() as u64);
        happening.trace(&mut self.trace);
        if let Some(end) = happening.step_of() {
            let Some(queue_pair) = self.queue_pair(end) else { return };
            if queue_pair.cut {
                return;
            }
            self.steps += 1;
            if self.plan.death_at == Some(self.steps) || self.random.happens(self.plan.death) {
                return self.cut(end);
            }
        }
        match happening {
            Happening::ConnectArrives { from, address, private_data } => {
                self.connect_arrives(from, &address, private_data);
            }
            Happening::AcceptArrives { to, private_data } => self.accept_arrives(to, private_data),
            Happening::EstablishedArrives { to } => self.establish_accepting(to),
            Happening::RequestLapses { device, from } => self.request_lapses(device, from),
            Happening::SetupTimesOut { end } => self.setup_times_out(end),
            Happening::Dies { end, failed, reason, tell } => self.die(end, failed, reason, tell),
            Happening::SendArrives { from, work } => self.send_arrives(from, work),
            Happening::SendRetries { from } => self.send_retries(from),
            Happening::PieceArrives { from, work, part, at, len } => {
                self.piece_arrives(from, work, part, at, len);
            }
            Happening::Acked { from, work } => self.acked(from, work),
            Happening::FenceDue { end, handle } => self.fence_due(end, handle),
        }
    }

    /// Plans something for after `delay`. The key takes it off the agenda again.
    pub(super) fn plan_after(&mut self, delay: Duration, happening: Happening) -> (Duration, u64) {
        let key = (self.now + delay, self.next_number);
        self.next_number += 1;
        self.agenda.insert(key, happening);
        key
    }

    pub(super) fn unplan(&mut self, key: (Duration, u64)) {
        self.agenda.remove(&key);
    }

    /// How long one way takes on this queue pair, this time.
    pub(super) fn latency(&mut self, end: End) -> Duration {
        let slowness = self.queue_pair(end).map_or(1, |queue_pair| queue_pair.slowness);
        let mut latency = self.random.duration(&self.plan.latency) * slowness;
        if self.random.happens(self.plan.delay) {
            latency += self.random.duration(&(Duration::ZERO..=self.plan.delay_max));
        }
        latency
    }

    pub(super) fn device(&self, index: usize) -> Option<&Device> {
        self.devices.get(index)?.as_ref()
    }

    pub(super) fn device_mut(&mut self, index: usize) -> Option<&mut Device> {
        self.devices.get_mut(index)?.as_mut()
    }

    pub(super) fn queue_pair(&self, end: End) -> Option<&QueuePair> {
        self.device(end.device)?.queue_pair(end.id)
    }

    pub(super) fn queue_pair_mut(&mut self, end: End) -> Option<&mut QueuePair> {
        self.device_mut(end.device)?.queue_pair_mut(end.id)
    }

    /// Puts a completion in the completion queue.
    pub(super) fn complete(
        &mut self,
        end: End,
        id: u64,
        completed: Completed,
        result: Result<(), WorkError>,
        slots: Slots,
    ) {
        let overtakes = self.random.happens(self.plan.reorder);
        let Some(device) = self.devices[end.device].as_mut() else { return };
        if let Some(queue_pair) = device.queue_pair_mut(end.id) {
            queue_pair.unharvested += 1;
        }
        if device.completions.len() >= device.limits.completions as usize {
            self.violations.completions_overrun += 1;
        }
        let completion = Completion { queue_pair: end.id, id, completed, result };
        let mut at = device.completions.len();
        if overtakes {
            let own = |queued: &Queued| queued.completion.queue_pair == end.id;
            let behind_own = device.completions.iter().rposition(own).map_or(0, |last| last + 1);
            at = behind_own + self.random.below((at - behind_own + 1) as u64) as usize;
        }
        device.completions.insert(at, Queued { completion, slots });
    }
}
