//! The credit governor: how many Calls each client may have in flight.
//!
//! A grant is a promise that this number of Receives is posted, so Receives are what it governs. A reactor has
//! `receives_max` of them. Each connection that there may be is sure of its part of one half; the other half is shared.
//! Nothing here is atomic, nothing looks at all connections, and there is no I/O and no clock of its own.
//!
//! - A [`CreditLedger`] is a reactor's: how many Receives are held, by all and by each *client* (a network address, or a
//!   user of this machine).
//! - A [`CreditGovernor`] is a connection's. It counts its Calls, and *reviews* its limit after each round of them, when
//!   it uses half of its limit, and when the ledger says that much has changed.
//!
//! What is fair for a client is the larger of two numbers, in credits:
//!
//! - its equal part, by weight (`CreditLedger::equal`). All clients can have theirs at once: Receives that a crowd of connections
//!   is sure of and does not use are not divided, because no other client may have them.
//! - its part of what is free: a client of usual weight may hold four times what is free (a *dynamic threshold*, as
//!   switches have that share one buffer among their ports). `k` clients that want all settle at equal parts, without a
//!   list of who wants what, and the next client still finds some.
//!
//! A client's part is divided among its busy connections. The client is not charged for what its idle connections are sure
//! of, because no other client may have it.
//!
//! A limit doubles while it is used, up to what is fair. A limit above what is fair falls to it: each Reply then takes one
//! Receive out of use, because the peer may have sent all that it was granted before (8166-3.3.1-d). What the server does not see of
//! use is found by trial (`trial.rs`). A client that is silent cannot be told of a lower grant: its connection ends if it
//! holds more than its part while a busy client has less ([`CreditLedger::take_starved`]).

use std::time::Duration;

use stag_runtime::HeadCounts;

use crate::trial::{CreditTrial, RoundResult};

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

/// Of what is shared, one part in this number is left to clients that have less than their equal part.
const RESERVE_SHARE: u32 = 16;

/// A client whose connections had no review for so long is quiet: it holds what it has, and wants no more.
const QUIET: Duration = Duration::from_secs(1);

/// Clients that each review looks at for that.
const QUIET_LOOKS: u32 = 4;

/// How often a silent connection may end for a starved one, and how often one is looked for when there is none: each look is at
/// all connections.
const RELIEF_INTERVAL: Duration = Duration::from_millis(100);
const RELIEF_LATER: Duration = Duration::from_secs(1);

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

/// Receives that stay posted beside those that the credits promise.
pub const SPARE_RECEIVES: u32 = 1;

/// Receives that a serving connection starts with: one credit (8166-3.3.3-a), and the spare.
pub const FIRST_RECEIVES: u32 = 1 + SPARE_RECEIVES;

/// What a reactor has to share, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditConfig {
    /// Connections that there may be.
    pub connections_max: u32,
    /// Receives that they may hold together.
    pub receives_max: u32,
    /// Credits of one connection.
    pub credits_max: u32,
    /// How they are granted.
    pub policy: CreditPolicy,
}

impl CreditConfig {
    /// Shares evenly: a connection has no more credits than there are Receives.
    #[must_use]
    pub fn new(connections_max: u32, receives_max: u32) -> CreditConfig {
        let policy = CreditPolicy::default();
        CreditConfig { connections_max, receives_max, credits_max: receives_max, policy }
    }

    /// Receives that every serving connection is sure of, however many there are: half of all. Posted Receives cannot be
    /// taken back, so an idle client keeps its credits, and a late client would find none.
    #[must_use]
    pub fn receives_sure(&self) -> u32 {
        (self.receives_max / self.connections_max / 2).max(FIRST_RECEIVES)
    }
}

/// Returns Jain's index of fairness: 1 if each of n shares is as large, 1/n if one is all there is.
#[must_use]
pub fn jain(shares: impl Iterator<Item = f64>) -> f64 {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for share in shares {
        count += 1.0;
        sum += share;
        squares += share * share;
    }
    if squares > 0.0 { sum * sum / (count * squares) } else { 1.0 }
}

/// What one client's connections hold at this reactor.
#[derive(Clone, Copy, Debug, Default)]
struct CreditAccount {
    /// Receives, posted or with a Call in process.
    held: u32,
    /// Of these, what is not charged: the spare of each busy connection, and what an idle one is sure of.
    uncharged: u32,
    /// Receives beyond those that each connection is sure of.
    taken: u32,
    connections: u32,
    /// Of these, those that use their credits, and those that use at least half.
    busy: u32,
    wanting: u32,
    /// When one of them was last reviewed; whether that is long ago, so that what they want is not known.
    reviewed: Duration,
    is_quiet: bool,
    /// Connections at all reactors of the group, as was read last, and where that is counted.
    connections_everywhere: u32,
    head_count: Option<u32>,
    weight: u32,
    /// Among all clients, and among those that want more: its part is more than its busy connections are sure of.
    is_sharing: [bool; 2],
}

/// Whom Receives are divided among: all clients that are connected, or those that want more than they have.
const ALL: usize = 0;
const WANTING: usize = 1;

/// Of the clients that have some of what is shared: the sums of [`CreditAccount::users`] and [`CreditAccount::parts`].
#[derive(Clone, Copy, Debug, Default)]
struct Sharers {
    users: u64,
    parts: u64,
}

impl CreditAccount {
    /// The weight at this reactor, in [`PARTS`]: as much of the client's as it has of its connections here.
    fn parts(&self) -> u64 {
        let everywhere = self.connections_everywhere.max(self.connections).max(1);
        let all = u64::from(self.weight) * u64::from(PARTS);
        (all * u64::from(self.connections) / u64::from(everywhere)).max(1)
    }

    /// Connections that its part is for: an idle client may become busy on one.
    fn users(&self) -> u64 {
        self.busy.max(1).into()
    }

    fn is_of(&self, set: usize) -> bool {
        if set == ALL { self.connections > 0 } else { self.wanting > 0 && !self.is_quiet }
    }
}

/// What a reactor has of Receives, and who holds them.
#[derive(Debug)]
pub struct CreditLedger {
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
    /// By the place of a client's account in [`TransitAccounts`](crate::transit::TransitAccounts).
    clients: Vec<CreditAccount>,
    sharers: [Sharers; 2],
    /// Of the Receives taken, those that clients have which want more.
    wanting_taken: u32,
    /// The client that is looked at next, whether it is quiet.
    hand: u32,
    /// Counts the times that what is free, or among how many, has changed by much: connections then review their limits.
    pub changes: u32,
    /// Connections of each client at all reactors, in a group.
    head_counts: Option<HeadCounts>,
    /// What was free, and a client's equal part, when that was last counted.
    free_then: u32,
    levels_then: [u64; 2],
    /// A busy connection found less than its equal part since this was last asked, and when it may be asked again.
    is_starved: bool,
    relief_due: Duration,
}

impl CreditLedger {
    /// Nothing is held yet.
    #[must_use]
    pub fn new(config: &CreditConfig) -> CreditLedger {
        let sure = config.receives_sure();
        let shared = config.receives_max.saturating_sub(config.connections_max * sure);
        CreditLedger {
            connections_max: config.connections_max,
            sure,
            shared,
            taken: 0,
            connections: 0,
            started: 0,
            clients: Vec::new(),
            sharers: Default::default(),
            wanting_taken: 0,
            hand: 0,
            changes: 0,
            head_counts: None,
            free_then: shared,
            levels_then: [0; 2],
            is_starved: false,
            relief_due: Duration::ZERO,
        }
    }

    /// This reactor is one of a group, which counts connections there. Before the first one.
    pub fn join(&mut self, head_counts: HeadCounts) {
        debug_assert_eq!(self.connections, 0, "connections that the group does not know");
        self.head_counts = Some(head_counts);
    }

    /// A connection of the client with this place, which is this owner, begins.
    #[cold]
    pub fn open(&mut self, client: u32, owner: u128, weight: u32) {
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
            account.uncharged += FIRST_RECEIVES;
            account.head_count = head_count;
            account.weight = weight;
        });
        self.refresh(client);
    }

    /// A connection of that client, which holds nothing any more, is gone.
    #[cold]
    pub fn close(&mut self, client: u32, governor: &CreditGovernor) {
        self.started -= u32::from(governor.has_started);
        self.connections -= 1;
        if let (Some(counts), Some(place)) = (&self.head_counts, self.clients[client as usize].head_count) {
            counts.remove(place);
        }
        self.change(client, |account| {
            account.connections -= 1;
            account.busy -= u32::from(governor.usage.is_busy());
            account.wanting -= u32::from(governor.usage.is_counted);
            account.uncharged -= governor.usage.uncharged;
        });
    }

    /// A connection of the client is reviewed. Sees how many connections it has at all reactors, and whether another client has
    /// become quiet.
    fn visit(&mut self, client: u32, now: Duration) {
        self.refresh(client);
        self.clients[client as usize].reviewed = now;
        if self.clients[client as usize].is_quiet {
            self.change(client, |account| account.is_quiet = false);
        }
        for _ in 0..QUIET_LOOKS {
            self.hand = if self.hand as usize + 1 < self.clients.len() { self.hand + 1 } else { 0 };
            let other = &self.clients[self.hand as usize];
            if other.is_of(WANTING) && now > other.reviewed.saturating_add(QUIET) {
                self.change(self.hand, |account| account.is_quiet = true);
            }
        }
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
        let taken = |account: &CreditAccount| if account.is_of(WANTING) { account.taken } else { 0 };
        self.withdraw(ALL, client);
        self.withdraw(WANTING, client);
        let account = &mut self.clients[client as usize];
        let before = taken(account);
        change(account);
        if account.connections == 0 {
            debug_assert_eq!(account.held, 0, "its connections are gone, and hold Receives");
            *account = CreditAccount::default();
        }
        self.wanting_taken = self.wanting_taken - before + taken(account);
        for set in [ALL, WANTING] {
            self.classify(set, client);
            // An eighth: who comes as one of many changes little.
            let level = self.level(set);
            if level.abs_diff(self.levels_then[set]) > self.levels_then[set] / 8 {
                self.levels_then[set] = level;
                self.changes = self.changes.wrapping_add(1);
                // Each change lowers the level, so it ends.
                while self.classify_all(set) {}
            }
        }
    }

    /// Sees which clients have some of what is shared. Returns whether that has changed.
    fn classify_all(&mut self, set: usize) -> bool {
        (0..self.clients.len() as u32).filter(|&client| self.classify(set, client)).count() > 0
    }

    /// Takes the client out of the sums of those that have some of what is shared.
    fn withdraw(&mut self, set: usize, client: u32) {
        let account = &mut self.clients[client as usize];
        if std::mem::take(&mut account.is_sharing[set]) {
            self.sharers[set].users -= account.users();
            self.sharers[set].parts -= account.parts();
        }
    }

    /// Sees whether the client has some of what is shared: its part is more than its connections are sure of. Returns whether
    /// that has changed. (The answer is the same, whether the client is counted among the others or not.)
    fn classify(&mut self, set: usize, client: u32) -> bool {
        let was_sharing = self.clients[client as usize].is_sharing[set];
        self.withdraw(set, client);
        let usable = self.usable(set);
        let account = &mut self.clients[client as usize];
        let sharers = &mut self.sharers[set];
        let sure = account.users() * u64::from(self.sure - SPARE_RECEIVES);
        let is_sharing = account.is_of(set) && sure * sharers.parts <= usable * account.parts();
        account.is_sharing[set] = is_sharing;
        if is_sharing {
            sharers.users += account.users();
            sharers.parts += account.parts();
        }
        is_sharing != was_sharing
    }

    /// Credits of those clients of a set that have some of what is shared, with what they are sure of. What other connections
    /// are sure of belongs to them alone.
    fn usable(&self, set: usize) -> u64 {
        let shared = match set {
            ALL => self.shared,
            _ => (self.shared - self.shared / RESERVE_SHARE).saturating_sub(self.taken - self.wanting_taken),
        };
        u64::from(shared) + self.sharers[set].users * u64::from(self.sure - SPARE_RECEIVES)
    }

    /// The equal part for each part of a weight, in 2^-32 credits.
    fn level(&self, set: usize) -> u64 {
        (self.usable(set) << 32) / self.sharers[set].parts.max(1)
    }

    /// The client's equal part, in credits, as one of the set: there is enough for each client of the set to have it at once.
    fn equal(&self, set: usize, account: &CreditAccount) -> u64 {
        let (mut usable, mut parts) = (self.usable(set), self.sharers[set].parts);
        if !account.is_of(set) {
            usable += u64::from(account.taken);
            let sure = account.users() * u64::from(self.sure - SPARE_RECEIVES);
            if sure * parts <= usable * account.parts() {
                (usable, parts) = (usable + sure, parts + account.parts());
            }
        }
        usable * account.parts() / parts.max(account.parts())
    }

    /// Receives that are shared and that no connection holds.
    #[inline]
    pub fn free(&self) -> u32 {
        self.shared.saturating_sub(self.taken)
    }

    /// Receives that all connections hold.
    pub fn held(&self) -> u32 {
        self.clients.iter().map(|account| account.held).sum()
    }

    /// The weight of a client.
    pub fn weight(&self, client: u32) -> u32 {
        self.clients[client as usize].weight
    }

    /// Receives that are held beyond those that each connection is sure of.
    #[must_use]
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// Whether less than half of what is shared is free: connections give up the credits that they do not need
    /// then.
    pub fn is_scarce(&self) -> bool {
        self.free() < self.shared / 2
    }

    /// Receives that a connection may post beside the `held` that it has.
    #[inline]
    pub fn room(&self, held: u32) -> u32 {
        self.sure.saturating_sub(held) + self.free()
    }

    /// A connection of `client` holds `now` Receives instead of `before`; `None`: it is for reverse Calls.
    #[inline]
    pub fn hold(&mut self, client: Option<u32>, before: u32, now: u32) {
        self.taken += now.saturating_sub(self.sure);
        self.taken -= before.saturating_sub(self.sure);
        if let Some(account) = client.and_then(|client| self.clients.get_mut(client as usize)) {
            let taken = account.taken;
            account.held = account.held + now - before;
            account.taken = taken + now.saturating_sub(self.sure) - before.saturating_sub(self.sure);
            if account.is_of(WANTING) {
                self.wanting_taken = self.wanting_taken + account.taken - taken;
            }
        }
        let free = self.free();
        // Not for each: what changes little is found in the next round.
        if free < self.free_then / 2 || free / 4 > self.free_then {
            self.free_then = free;
            self.changes = self.changes.wrapping_add(1);
        }
    }

    /// A connection of `client` has this use for its credits now.
    fn note_use(&mut self, client: u32, before: CreditUse, now: CreditUse) {
        let change = |account: &mut CreditAccount| {
            account.uncharged = account.uncharged + now.uncharged - before.uncharged;
            account.busy = account.busy + u32::from(now.is_busy()) - u32::from(before.is_busy());
            account.wanting = account.wanting + u32::from(now.is_counted) - u32::from(before.is_counted);
        };
        if before.is_busy() == now.is_busy() && before.is_counted == now.is_counted {
            change(&mut self.clients[client as usize]);
        } else {
            self.change(client, change);
        }
    }

    /// Credits that a connection of `client` should have at most, which holds `held` Receives, and uses them so.
    fn fair(&self, client: u32, held: u32, usage: CreditUse, is_wanting: bool) -> u32 {
        let account = &self.clients[client as usize];
        let users = u64::from(account.busy + u32::from(!usage.is_busy()));
        let all = self.equal(ALL, account).max(match is_wanting {
            true => self.equal(WANTING, account),
            false => self.part_of_free(account, users),
        });
        // Among its busy connections: one more each while that is left, and all that the others leave.
        let others = u64::from((account.held - held).saturating_sub(account.uncharged - usage.uncharged));
        let each = all / users;
        let left = all.saturating_sub(others);
        let fair = (each + 1).min(left).max(each).max(left.saturating_sub(users - 1));
        u32::try_from(fair).unwrap_or(u32::MAX).max(1)
    }

    /// What a client may have of what is free: c = sure + a * (free - reserve), where a is four times its weight. What it has beyond
    /// what its connections are sure of is not free then: this is the solution for the client.
    fn part_of_free(&self, account: &CreditAccount, users: u64) -> u64 {
        let sure = u64::from(self.sure - SPARE_RECEIVES);
        let reserve = self.shared / RESERVE_SHARE;
        let free = u64::from(self.free().saturating_sub(reserve) + account.taken);
        let unit = u64::from(CLIENT_WEIGHT_USUAL * PARTS);
        let a = CLIENT_MULTIPLE * account.parts();
        match (a * free).checked_sub((users - 1) * sure * unit) {
            Some(left) => users * sure + left / (a + unit),
            None => sure + a * free / unit,
        }
    }

    /// A busy connection of `client` found room for no more than `credits`.
    #[cold]
    fn starve(&mut self, client: u32, credits: u32) {
        let account = &self.clients[client as usize];
        self.is_starved |= u64::from(credits) < self.equal(ALL, account) / account.users();
    }

    /// Whether a silent connection that holds more than its part is to end, because a busy one found less: then the caller looks
    /// for it, once in `RELIEF_INTERVAL` at most.
    pub fn take_starved(&mut self, now: Duration) -> bool {
        if now < self.relief_due || !std::mem::take(&mut self.is_starved) {
            return false;
        }
        self.relief_due = now + RELIEF_INTERVAL;
        true
    }

    /// There was no such connection: the next look is later.
    pub fn postpone_relief(&mut self, now: Duration) {
        self.relief_due = now + RELIEF_LATER;
    }

    /// Of the `held` Receives of a connection of `client`, those beyond its equal part that others could have.
    pub fn excess(&self, client: u32, held: u32) -> u32 {
        let account = &self.clients[client as usize];
        let equal = u32::try_from(self.equal(ALL, account) / account.users()).unwrap_or(u32::MAX);
        held.saturating_sub(equal.saturating_add(SPARE_RECEIVES).max(self.sure))
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
pub struct ReviewInput {
    /// The place of its client's account.
    pub client: u32,
    /// Receives that it holds.
    pub held: u32,
    /// Calls or Replies of it wait for memory or for room in a queue: more of them would wait, too.
    pub is_obstructed: bool,
    /// The instant of this pass.
    pub now: Duration,
}

/// Calls at once from which on a limit is raised: half of it. One at a time raises no limit but that of one: two credits are
/// enough to see whether there are more.
fn grows_at(limit: u32) -> u32 {
    limit.div_ceil(2).max(limit.min(2))
}

/// What use a connection has for its credits.
#[derive(Clone, Copy, Debug)]
struct CreditUse {
    /// Receives that its client is not charged for: the spare, or, if it is idle, what it is sure of and has been granted.
    uncharged: u32,
    /// It uses at least half of its limit at once.
    is_wanting: bool,
    /// It would use more than that: not if its limit is the highest, and with one credit, one Call at a time says nothing.
    is_counted: bool,
}

impl CreditUse {
    fn is_busy(self) -> bool {
        self.uncharged == SPARE_RECEIVES
    }
}

/// How many credits one connection may be granted.
#[derive(Debug)]
pub struct CreditGovernor {
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
    /// What the ledger knows of its use.
    usage: CreditUse,
    trial: CreditTrial,
    /// Its first Call has come: until then it has one credit, and holds nothing that others share.
    has_started: bool,
    is_fixed: bool,
}

impl CreditGovernor {
    /// Of a connection that is accepted.
    pub fn new(config: &CreditConfig) -> CreditGovernor {
        match config.policy {
            CreditPolicy::Governed => CreditGovernor::with(config.credits_max, 1, false),
            CreditPolicy::Fixed => CreditGovernor::fixed(config.credits_max),
        }
    }

    /// Always `credits`, as far as there are Receives.
    pub fn fixed(credits: u32) -> CreditGovernor {
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
            usage: CreditUse { uncharged: FIRST_RECEIVES, is_wanting: false, is_counted: false },
            trial: CreditTrial::default(),
            has_started: false,
            is_fixed,
        }
    }

    /// Messages that came.
    pub fn calls(&self) -> u64 {
        self.calls - u64::from(self.left)
    }

    /// Credits that it may have at present.
    #[inline(always)]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Calls that were under way at once, at most: in this round, or in the last one.
    pub fn used(&self) -> u32 {
        self.used.max(self.peak)
    }

    /// Whether it would have more if there were more.
    pub fn is_wanting(&self) -> bool {
        self.limit < self.max && self.used() * 2 >= self.limit
    }

    /// Whether nothing has changed since the last review that makes another one due before its Calls do.
    #[inline(always)]
    pub fn is_current(&self, ledger: &CreditLedger) -> bool {
        self.changes == ledger.changes
    }

    /// A Call has come, beside `pending` that are in process. `true`: a review is due.
    #[inline(always)]
    pub fn observe(&mut self, pass: u64, pending: u32) -> bool {
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
    pub fn review(&mut self, ledger: &mut CreditLedger, input: &ReviewInput) {
        self.changes = ledger.changes;
        let is_round_over = self.left == 0;
        if !self.is_fixed {
            ledger.visit(input.client, input.now);
            if !self.has_started {
                self.has_started = true;
                self.limit = ledger.start().clamp(1, self.max);
            }
            self.note_use(ledger, input.client, is_round_over);
            self.decide(ledger, input, is_round_over);
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
        let is_wanting = self.usage.is_wanting || self.limit == 1;
        let fair = ledger.fair(input.client, input.held, self.usage, is_wanting).min(self.max);
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

    /// Tells the ledger what use the connection has for its credits.
    fn note_use(&mut self, ledger: &mut CreditLedger, client: u32, is_round_over: bool) {
        // With one credit, one Call at a time says nothing.
        let is_busy = self.peak * 4 >= self.limit && (self.peak > 1 || self.limit == 1);
        let uncharged = if is_busy {
            SPARE_RECEIVES
        } else if is_round_over || !self.usage.is_busy() {
            (self.limit + SPARE_RECEIVES).min(ledger.sure)
        } else {
            SPARE_RECEIVES
        };
        let is_used = self.peak >= grows_at(self.limit) || self.usage.is_wanting && !is_round_over;
        let is_wanting = is_used && self.limit > 1;
        let is_counted = is_wanting && self.limit < self.max;
        let usage = CreditUse { uncharged, is_wanting, is_counted };
        ledger.note_use(client, self.usage, usage);
        self.usage = usage;
    }

    /// There were Receives for no more than `credits`. It asks again after as many Calls.
    #[cold]
    pub fn settle(&mut self, ledger: &mut CreditLedger, client: u32, credits: u32) {
        if !self.is_fixed {
            self.trial.cancel();
            self.limit = credits.clamp(1, self.limit);
            self.grow_at = u32::MAX;
            let early = self.left.saturating_sub(self.limit);
            (self.left, self.round, self.calls) =
                (self.left - early, self.round - early, self.calls - u64::from(early));
            ledger.starve(client, credits);
        }
    }
}

#[cfg(test)]
#[path = "governor_tests.rs"]
mod tests;
