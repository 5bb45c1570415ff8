//! The credit governor: how many Calls each client may have in flight.
//!
//! A grant is a promise that this number of Receives is posted, so Receives are what it governs. A reactor has
//! `receives_max` of them. Each connection that there may be is sure of its part of one half; the other half is shared.
//! Nothing here is atomic, nothing looks at all connections, and there is no I/O and no clock of its own.
//!
//! - A [`CreditLedger`] is a reactor's: how many Receives are held, by all and by each *client* (a network address, or a
//!   user of this machine: [`owner`](crate::server::eviction::owner)).
//! - A [`CreditGovernor`] is a connection's. It counts its Calls, and *reviews* its limit after each round of them, when
//!   it uses half of its limit, and when the ledger says that much has changed.
//!
//! The fair limit of a connection is the larger of two numbers:
//!
//! - its equal part: of what can be used now, by the weights of the connected clients, divided by the connections of its
//!   client;
//! - its part of what is free: a client of usual weight may hold four times what is free (a *dynamic threshold*, as in
//!   switches that share one buffer among their ports), and so on among its connections. `k` clients with demand all settle
//!   at equal parts, without a list of demands, and the next client still finds some. A client is not charged for the
//!   Receives that its idle connections are sure of, because no other client may have them.
//!
//! A limit doubles while it is used, up to the fair limit. A limit above that falls to it: each Reply then takes one Receive out
//! of use, because the peer may have sent all that it was granted before (8166-3.3.1-d). Demand that the server does not see is
//! found by trial (`trial.rs`).

use std::time::Duration;

use stag_runtime::HeadCounts;

use crate::config::{EngineConfig, SPARE_RECEIVES};
use crate::server::trial::{CreditTrial, RoundResult};
use crate::state::{FIRST_RECEIVES, receives_sure};

/// The weight of a client without a configured one.
pub const CLIENT_WEIGHT_USUAL: u32 = 100;

/// The largest weight of a client.
pub const CLIENT_WEIGHT_MAX: u32 = 1000;

/// Most credits that a connection starts with, when there are enough.
const START_MAX: u32 = 16;

/// Of what is free, a new connection starts with at most one part in `START_SHARE`, beside what it is sure of; and in
/// `START_SHARE_EACH` for each connection that may yet come: a crowd that is idle then leaves more than two thirds to those
/// that are not.
const START_SHARE: u32 = 64;
const START_SHARE_EACH: u32 = 16;

/// Calls of a round where the limit is not more.
const ROUND_MIN: u32 = 64;

/// Calls of a round for each credit, where the limit is small: a connection with one credit waits for at most this number
/// of Replies.
const ROUND_EACH: u32 = 4;

/// Of what is free, all connections of a client may hold this multiple, at the usual weight.
const CLIENT_MULTIPLE: u64 = 4;

/// Of its client's part, one connection may hold this multiple of what its client leaves.
const CONNECTION_MULTIPLE: u64 = 16;

/// Of what is shared, one part in this number is left to those who have less than their equal part.
const RESERVE_SHARE: u32 = 16;

/// The parts of a weight, which is divided among the reactors that its client has connections to.
const PARTS: u32 = 64;

/// How credits are granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CreditPolicy {
    /// By use, by weight, and by what is free.
    #[default]
    Governed,
    /// Each connection gets `credits_max`, as far as there are Receives. To compare with.
    Fixed,
}

/// What one client's connections hold at this reactor.
#[derive(Clone, Copy, Debug, Default)]
struct CreditAccount {
    /// Receives, posted or with a Call in process.
    held: u32,
    /// Of these, what its idle connections are sure of. It is not charged, because no other client may have
    /// it.
    set_aside: u32,
    connections: u32,
    /// Connections at all reactors of the group, as was read last, and where that is counted.
    connections_everywhere: u32,
    head_count: Option<u32>,
    weight: u32,
}

impl CreditAccount {
    /// The weight at this reactor, in [`PARTS`]: as much of the client's as it has of its connections here.
    fn parts(&self) -> u64 {
        let everywhere = self.connections_everywhere.max(self.connections).max(1);
        let all = u64::from(self.weight) * u64::from(PARTS);
        (all * u64::from(self.connections) / u64::from(everywhere)).max(1)
    }
}

/// What a reactor has of Receives, and who holds them.
#[derive(Debug)]
pub(crate) struct CreditLedger {
    receives_max: u32,
    connections_max: u32,
    /// Receives that each connection is sure of, however many there are.
    sure: u32,
    /// Receives that are shared by those connections that have use for more.
    shared: u32,
    /// Receives held beyond those that each connection is sure of.
    taken: u32,
    connections: u32,
    /// Connections that have made a Call.
    started: u32,
    /// By the place of a client's account in [`TransitAccounts`](crate::server::transit::TransitAccounts).
    clients: Vec<CreditAccount>,
    /// The sum of [`CreditAccount::parts`].
    parts: u64,
    /// Counts the times that what is free, or among how many, has changed by much: connections then review their limits.
    pub(crate) changes: u32,
    /// Connections of each client at all reactors, in a group.
    head_counts: Option<HeadCounts>,
    /// What was free, and the sum of weights, when that was last counted.
    free_then: u32,
    parts_then: u64,
}

impl CreditLedger {
    pub(crate) fn new(config: &EngineConfig) -> CreditLedger {
        let sure = receives_sure(config);
        let shared = config.receives_max.saturating_sub(config.connections_max * sure);
        CreditLedger {
            receives_max: config.receives_max,
            connections_max: config.connections_max,
            sure,
            shared,
            taken: 0,
            connections: 0,
            started: 0,
            clients: Vec::new(),
            parts: 0,
            changes: 0,
            head_counts: None,
            free_then: shared,
            parts_then: 0,
        }
    }

    /// This reactor is one of a group, which counts connections there. Before the first one.
    pub(crate) fn join(&mut self, head_counts: HeadCounts) {
        debug_assert_eq!(self.connections, 0, "connections that the group does not know");
        self.head_counts = Some(head_counts);
    }

    /// A connection of the client with this place, which is this [`owner`](crate::server::eviction::owner), begins.
    #[cold]
    pub(crate) fn open(&mut self, client: u32, owner: u128, weight: u32) {
        let at = client as usize;
        if self.clients.len() <= at {
            self.clients.resize(at + 1, CreditAccount::default());
        }
        self.connections += 1;
        let weight = weight.clamp(1, CLIENT_WEIGHT_MAX);
        let CreditAccount { head_count, connections, .. } = self.clients[at];
        let head_count = match (&self.head_counts, head_count) {
            (Some(counts), Some(place)) => {
                counts.add_at(place);
                Some(place)
            }
            (Some(counts), None) if connections == 0 => counts.add(owner),
            _ => None,
        };
        self.change(client, |account| {
            account.connections += 1;
            account.set_aside += FIRST_RECEIVES;
            account.head_count = head_count;
            account.weight = weight;
        });
        self.refresh(client);
    }

    /// A connection of that client, which holds nothing any more, is gone.
    #[cold]
    pub(crate) fn close(&mut self, client: u32, governor: &CreditGovernor) {
        self.started -= u32::from(governor.has_started);
        self.set_aside(client, governor.set_aside, 0);
        self.connections -= 1;
        if let (Some(counts), Some(place)) = (&self.head_counts, self.clients[client as usize].head_count) {
            counts.remove(place);
        }
        self.change(client, |account| account.connections -= 1);
    }

    /// Sees how many connections the client has at all reactors.
    fn refresh(&mut self, client: u32) {
        if let (Some(counts), Some(place)) = (&self.head_counts, self.clients[client as usize].head_count) {
            let count = counts.count(place);
            self.set_connections_everywhere(client, count);
        }
    }

    /// The client has `count` connections at all reactors.
    fn set_connections_everywhere(&mut self, client: u32, count: u32) {
        if self.clients[client as usize].connections_everywhere != count {
            self.change(client, |account| account.connections_everywhere = count);
        }
    }

    #[cold]
    fn change(&mut self, client: u32, change: impl FnOnce(&mut CreditAccount)) {
        let account = &mut self.clients[client as usize];
        let parts = |account: &CreditAccount| if account.connections > 0 { account.parts() } else { 0 };
        let before = parts(account);
        change(account);
        if account.connections == 0 {
            debug_assert_eq!(account.held, 0, "its connections are gone, and hold Receives");
            *account = CreditAccount::default();
        }
        self.parts = self.parts - before + parts(account);
        // An eighth: who comes as one of many changes little.
        if self.parts * 8 > self.parts_then * 9 || self.parts * 8 < self.parts_then * 7 {
            self.parts_then = self.parts;
            self.changes = self.changes.wrapping_add(1);
        }
    }

    /// Receives that are shared and that no connection holds.
    #[inline]
    pub(crate) fn free(&self) -> u32 {
        self.shared.saturating_sub(self.taken)
    }

    /// Receives that all connections hold.
    pub(crate) fn held(&self) -> u32 {
        self.clients.iter().map(|account| account.held).sum()
    }

    /// The weight of a client.
    pub(crate) fn weight(&self, client: u32) -> u32 {
        self.clients[client as usize].weight
    }

    /// Receives that are held beyond those that each connection is sure of.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> u32 {
        self.taken
    }

    /// Whether less than half of what is shared is free: connections give up the credits that they do not need
    /// then.
    pub(crate) fn is_scarce(&self) -> bool {
        self.free() < self.shared / 2
    }

    /// Receives that a connection may post beside the `held` that it has.
    #[inline]
    pub(crate) fn room(&self, held: u32) -> u32 {
        self.sure.saturating_sub(held) + self.free()
    }

    /// A connection of `client` holds `now` Receives instead of `before`; `None`: it is for reverse Calls.
    #[inline]
    pub(crate) fn hold(&mut self, client: Option<u32>, before: u32, now: u32) {
        self.taken += now.saturating_sub(self.sure);
        self.taken -= before.saturating_sub(self.sure);
        if let Some(account) = client.and_then(|client| self.clients.get_mut(client as usize)) {
            account.held = account.held + now - before;
        }
        let free = self.free();
        // Not for each: what changes little is found in the next round.
        if free < self.free_then / 2 || free / 4 > self.free_then {
            self.free_then = free;
            self.changes = self.changes.wrapping_add(1);
        }
    }

    /// Of what a connection of `client` is sure of, `now` is set aside instead of `before`.
    fn set_aside(&mut self, client: u32, before: u32, now: u32) {
        let account = &mut self.clients[client as usize];
        account.set_aside = account.set_aside + now - before;
    }

    /// Receives that a connection of `client` should have at most, which holds `held`, of which some may be set aside.
    fn fair(&self, client: u32, held: u32, set_aside: u32) -> u32 {
        let account = &self.clients[client as usize];
        let connections = u64::from(account.connections.max(1));
        let parts = account.parts();
        // Its equal part. What connections that may yet come are sure of cannot be used.
        let absent = self.connections_max.saturating_sub(self.connections);
        let usable = u64::from(self.receives_max.saturating_sub(absent * self.sure));
        let equal = usable * parts / self.parts.max(parts) / connections;
        // Its part of what is free: h with h / b + (h + others) / a = free - h, where a client may hold a, and one of its
        // connections b times what is free. Each connection that reviews its limit solves that for itself. What idle
        // connections are sure of is not charged: a client with a crowd of them would get nothing for those that are busy.
        let others = (account.held - held).saturating_sub(account.set_aside - set_aside);
        let reserve = self.shared / RESERVE_SHARE;
        let free = u64::from(self.free().saturating_sub(reserve) + held.saturating_sub(self.sure));
        let unit = u64::from(CLIENT_WEIGHT_USUAL * PARTS);
        let a = CLIENT_MULTIPLE * parts;
        let charged = u64::from(others.saturating_sub(self.sure)) * unit;
        let part = (a * free).saturating_sub(charged) / (a + unit + unit / CONNECTION_MULTIPLE);
        let part = u64::from(self.sure.saturating_sub(others)) + part;
        u32::try_from(equal.max(part)).unwrap_or(u32::MAX).max(FIRST_RECEIVES)
    }

    /// A connection makes its first Call. Returns the credits that it starts with.
    fn start(&mut self) -> u32 {
        self.started += 1;
        let absent = self.connections_max.saturating_sub(self.started);
        let share = START_SHARE + START_SHARE_EACH * absent;
        // A third of one is one.
        START_MAX.min(self.sure - SPARE_RECEIVES + (self.free() + 2 * share / 3) / share)
    }
}

/// What a connection is reviewed by, beside what it counts itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReviewInput {
    /// The place of its client's account.
    pub(crate) client: u32,
    /// Receives that it holds.
    pub(crate) held: u32,
    /// Calls or Replies of it wait for memory or for room in a queue: more of them would wait, too.
    pub(crate) is_obstructed: bool,
    pub(crate) now: Duration,
}

/// Calls at once from which on a limit is raised: half of it. One at a time raises no limit but that of one: two credits are
/// enough to see whether there are more.
fn grows_at(limit: u32) -> u32 {
    limit.div_ceil(2).max(limit.min(2))
}

/// How many credits one connection may be granted.
#[derive(Debug)]
pub(crate) struct CreditGovernor {
    /// Most that it may ever have.
    max: u32,
    /// Credits that it may have at present.
    limit: u32,
    /// Calls at once from which on it is reviewed; [`u32::MAX`]: it has what is fair.
    grow_at: u32,
    /// [`CreditLedger::changes`] at the last review.
    changes: u32,
    /// Calls that arrived in the pass `pass` (0: none did yet), and the most at once in this round.
    pass: u64,
    arrived: u32,
    peak: u32,
    /// Calls of this round that are to come, and of all of it.
    left: u32,
    round: u32,
    /// Calls of all rounds, this one included, and when it began.
    calls: u64,
    since: Duration,
    /// The most at once in the last round.
    used: u32,
    /// What [`CreditAccount::set_aside`] has of this connection.
    set_aside: u32,
    trial: CreditTrial,
    /// Its first Call has come: until then it has one credit, and holds nothing that others share.
    has_started: bool,
    is_fixed: bool,
}

impl CreditGovernor {
    /// Of a connection that is accepted.
    pub(crate) fn new(config: &EngineConfig) -> CreditGovernor {
        match config.credit_policy {
            CreditPolicy::Governed => CreditGovernor::with(config.credits_max, 1, false),
            CreditPolicy::Fixed => CreditGovernor::fixed(config.credits_max),
        }
    }

    /// Always `credits`, as far as there are Receives.
    pub(crate) fn fixed(credits: u32) -> CreditGovernor {
        CreditGovernor::with(credits, credits, true)
    }

    fn with(max: u32, start: u32, is_fixed: bool) -> CreditGovernor {
        let limit = start.clamp(1, max);
        CreditGovernor {
            max,
            limit,
            grow_at: if is_fixed { u32::MAX } else { grows_at(limit) },
            changes: 0,
            pass: 0,
            arrived: 0,
            peak: 0,
            left: ROUND_MIN,
            round: ROUND_MIN,
            calls: u64::from(ROUND_MIN),
            since: Duration::ZERO,
            used: 0,
            set_aside: FIRST_RECEIVES,
            trial: CreditTrial::default(),
            has_started: false,
            is_fixed,
        }
    }

    /// Messages that came.
    pub(crate) fn calls(&self) -> u64 {
        self.calls - u64::from(self.left)
    }

    /// Credits that it may have at present.
    #[inline(always)]
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Calls that were under way at once, at most: in this round, or in the last one.
    pub(crate) fn used(&self) -> u32 {
        self.used.max(self.peak)
    }

    /// Whether it would have more if there were more.
    pub(crate) fn is_wanting(&self) -> bool {
        self.limit < self.max && self.used() * 2 >= self.limit
    }

    /// Whether nothing has changed since the last review that makes another one due before its Calls do.
    #[inline(always)]
    pub(crate) fn is_current(&self, ledger: &CreditLedger) -> bool {
        self.changes == ledger.changes
    }

    /// A Call has come, beside `pending` that are in process. `true`: a review is due.
    #[inline(always)]
    pub(crate) fn observe(&mut self, pass: u64, pending: u32) -> bool {
        if self.pass != pass {
            self.pass = pass;
            self.arrived = 0;
        }
        self.arrived += 1;
        let used = self.arrived + pending;
        self.peak = self.peak.max(used);
        self.left -= 1;
        used >= self.grow_at || self.left == 0
    }

    /// Says what the connection should have from now on.
    #[cold]
    #[inline(never)]
    pub(crate) fn review(&mut self, ledger: &mut CreditLedger, input: &ReviewInput) {
        self.changes = ledger.changes;
        let is_round_over = self.left == 0;
        if !self.is_fixed {
            ledger.refresh(input.client);
            if !self.has_started {
                self.has_started = true;
                self.limit = ledger.start().clamp(1, self.max);
            }
            self.decide(ledger, input, is_round_over);
            self.set_aside(ledger, input.client, is_round_over);
        }
        let round = self.limit.max(ROUND_MIN.min(self.limit * ROUND_EACH));
        if is_round_over {
            self.used = std::mem::take(&mut self.peak);
        } else if self.left <= round {
            return;
        } else {
            // This round ends sooner, because it began with a higher limit.
            self.trial.cancel();
        }
        self.since = input.now;
        self.calls = self.calls() + u64::from(round);
        (self.left, self.round) = (round, round);
    }

    fn decide(&mut self, ledger: &CreditLedger, input: &ReviewInput, is_round_over: bool) {
        let fair = ledger.fair(input.client, input.held, self.set_aside) - SPARE_RECEIVES;
        let fair = fair.clamp(1, self.max);
        let (limit, is_scarce) = (self.limit, ledger.is_scarce());
        // While there is enough, an eighth more than what is fair is left alone: else it would follow each Receive that others take.
        let tolerated = if is_scarce { fair } else { fair + fair / 8 };
        let wanted = if limit > tolerated {
            Some(fair)
        } else if input.is_obstructed {
            is_round_over.then_some(limit.min((limit / 2).max(START_MAX)))
        } else if limit < fair && self.peak >= grows_at(limit) {
            Some((limit * 2).min(fair))
        } else {
            None
        };
        if let Some(wanted) = wanted {
            self.trial.cancel();
            self.limit = wanted;
        } else if is_round_over {
            let (calls, peak) = (self.round, self.peak);
            let time = input.now.saturating_sub(self.since);
            self.limit = self
                .trial
                .end_round(&RoundResult { calls, time, peak, limit, fair, is_scarce })
                .min(fair.max(limit));
        }
        let may_grow = self.limit < fair && !input.is_obstructed;
        self.grow_at = if may_grow { grows_at(self.limit) } else { u32::MAX };
    }

    /// Tells the ledger whether the connection has use for more than what it is sure of.
    fn set_aside(&mut self, ledger: &mut CreditLedger, client: u32, is_round_over: bool) {
        let is_busy = self.peak > 1 && self.peak * 4 >= self.limit;
        let set_aside = if is_busy {
            0
        } else if is_round_over || self.set_aside > 0 {
            (self.limit + SPARE_RECEIVES).min(ledger.sure)
        } else {
            return;
        };
        ledger.set_aside(client, self.set_aside, set_aside);
        self.set_aside = set_aside;
    }

    /// There were Receives for no more than `credits`. It asks again after the next round.
    #[cold]
    pub(crate) fn settle(&mut self, credits: u32) {
        if !self.is_fixed {
            self.trial.cancel();
            self.limit = credits.clamp(1, self.limit);
            self.grow_at = u32::MAX;
        }
    }
}

#[cfg(test)]
#[path = "governor_tests.rs"]
mod tests;
