//! The transfers that wait for a limit at one reactor, in a fair order.
//!
//! ```text
//! a client's transfers, oldest first ──▶ its own limit ──▶ turns: the client that was given least ──▶ the limit of all ──▶ passes
//! ```
//!
//! Of each client only the oldest transfer takes part, and of all clients only one has taken octets of the common limit and waits for
//! them: so no reactor and no client takes more than one transfer in advance, however many wait. Turns are by octets (start-time fair
//! queueing): each client has a *tag*, how far it has been served, and the lowest tag is next. A client that was away begins
//! where the others are.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::rate::{RateBucket, RateLimits};

/// Transfers that wait at most. A client may have as many of them as it leaves free.
const WAITING_MAX: usize = 8192;

/// Clients that are remembered without a transfer that waits, before those with nothing to pay are forgotten.
const REMEMBERED_MIN: usize = 64;

/// What waited so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateWaits {
    /// Transfers that had to wait.
    pub transfers: u64,
    /// Their octets.
    pub octets: u64,
    /// The sum of the times that they waited.
    pub time: Duration,
    /// Transfers that wait now.
    pub waiting: u64,
}

/// Transfers `T` that wait for their turn.
#[derive(Debug)]
pub struct RateQueue<T> {
    limits: RateLimits,
    clients: HashMap<u128, RateClient<T>>,
    /// Clients when those were forgotten last that have nothing to pay.
    remembered: usize,
    /// Clients whose oldest transfer waits for the limit of all, by tag; among equals the one that came first.
    turns: BinaryHeap<Reverse<(u64, u64, u128)>>,
    /// Clients whose oldest transfer waits for their own limit, and until when.
    later: BinaryHeap<Reverse<(Duration, u128)>>,
    /// The client whose oldest transfer has taken its octets of the limit of all, and when they may pass.
    next: Option<(Duration, u128)>,
    /// The tag of the turn that was given last.
    tag: u64,
    /// Counts turns, to tell equals apart.
    arrivals: u64,
    waiting: usize,
    waiting_max: usize,
    waits: RateWaits,
}

#[derive(Debug)]
struct RateClient<T> {
    bucket: Option<Arc<RateBucket>>,
    transfers: VecDeque<RatedTransfer<T>>,
    /// It is in `turns` or `later`, or is `next`.
    is_listed: bool,
    tag: u64,
}

#[derive(Debug)]
struct RatedTransfer<T> {
    octets: u32,
    since: Duration,
    transfer: T,
}

impl<T> RateQueue<T> {
    /// Nothing waits.
    #[must_use]
    pub fn new(limits: RateLimits) -> RateQueue<T> {
        RateQueue {
            limits,
            clients: HashMap::new(),
            remembered: 0,
            turns: BinaryHeap::new(),
            later: BinaryHeap::new(),
            next: None,
            tag: 0,
            arrivals: 0,
            waiting: 0,
            waiting_max: WAITING_MAX,
            waits: RateWaits::default(),
        }
    }

    /// Lets this number of transfers wait at once. Without this it is 8,192. A client has as many of these places as it leaves to
    /// others.
    pub fn set_waiting_max(&mut self, transfers_max: usize) {
        self.waiting_max = transfers_max;
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> &RateLimits {
        &self.limits
    }

    /// Obeys other limits from now on. What waits goes on by them.
    pub fn set_limits(&mut self, limits: RateLimits) {
        self.limits = limits;
        let listed = self.next.take().into_iter().chain(self.later.drain().map(|Reverse(found)| found));
        let listed: Vec<u128> = listed.map(|(_, client)| client).collect();
        self.clients.values_mut().for_each(|found| found.bucket = None);
        for client in listed {
            self.take_turn(client);
        }
    }

    /// Transfers that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// What waited so far, and waits now.
    #[must_use]
    pub fn waits(&self) -> RateWaits {
        RateWaits { waiting: self.waiting as u64, ..self.waits }
    }

    /// Whether a client has no room for one more transfer that waits.
    #[must_use]
    pub fn is_full(&self, client: u128) -> bool {
        let own = self.clients.get(&client).map_or(0, |found| found.transfers.len());
        own >= self.waiting_max.saturating_sub(self.waiting)
    }

    /// Takes octets for a client's transfer that passes now. `false`: it has to wait, for its client's earlier ones, for those of others,
    /// or for a limit; give it to [`RateQueue::push`].
    #[must_use]
    pub fn pass(&mut self, client: u128, octets: u32, now: Duration) -> bool {
        let has_company = self.next.is_some() || !self.turns.is_empty();
        if has_company && self.limits.bucket().is_some() {
            return false;
        }
        let found = self.client(client, now);
        if !found.transfers.is_empty() {
            return false;
        }
        let own = found.bucket.clone();
        if own.as_ref().is_some_and(|own| !own.take_now(octets.into(), now)) {
            return false;
        }
        let passes = self.limits.bucket().is_none_or(|all| all.take_now(octets.into(), now));
        if let Some(own) = own.filter(|_| !passes) {
            own.give_back(octets.into());
        }
        passes
    }

    /// Lets a transfer wait. [`RateQueue::is_full`] was asked before.
    pub fn push(&mut self, client: u128, octets: u32, transfer: T, now: Duration) {
        self.waiting += 1;
        let found = self.client(client, now);
        found.transfers.push_back(RatedTransfer { octets, since: now, transfer });
        if !found.is_listed {
            self.list(client, now);
        }
    }

    /// The next transfer whose turn it is.
    pub fn poll(&mut self, now: Duration) -> Option<T> {
        while let Some(Reverse((due, client))) = self.later.peek().copied()
            && due <= now
        {
            self.later.pop();
            self.take_turn(client);
        }
        loop {
            let (due, client) = match self.next.take() {
                Some(next) => next,
                None => self.begin_turn(now)?,
            };
            if due > now {
                self.next = Some((due, client));
                return None;
            }
            let Some(found) = self.clients.get_mut(&client) else { continue };
            found.is_listed = false;
            let Some(RatedTransfer { octets, since, transfer }) = found.transfers.pop_front() else {
                continue;
            };
            if !found.transfers.is_empty() {
                self.list(client, now);
            }
            self.waiting -= 1;
            self.waits.transfers += 1;
            self.waits.octets += u64::from(octets);
            self.waits.time += now.saturating_sub(since);
            return Some(transfer);
        }
    }

    /// When [`RateQueue::poll`] has something to do, if nothing comes before.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        let next = match self.next {
            Some((due, _)) => Some(due),
            None => (!self.turns.is_empty()).then_some(Duration::ZERO),
        };
        let later = self.later.peek().map(|Reverse((due, _))| *due);
        next.into_iter().chain(later).min()
    }

    /// Takes out the transfers that are no longer wanted. What they were to take is not given to others.
    pub fn remove(&mut self, is_unwanted: impl Fn(&T) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        for found in self.clients.values_mut() {
            // A client that stays listed keeps its place, and what was taken for it.
            for _ in 0..found.transfers.len() {
                let Some(first) = found.transfers.pop_front() else { break };
                if is_unwanted(&first.transfer) {
                    removed.push(first.transfer);
                } else {
                    found.transfers.push_back(first);
                }
            }
        }
        self.waiting -= removed.len();
        removed
    }

    /// A client, with its own bucket.
    fn client(&mut self, client: u128, now: Duration) -> &mut RateClient<T> {
        if !self.clients.contains_key(&client) {
            self.forget(now);
        }
        let found = self.clients.entry(client).or_insert_with(|| RateClient {
            bucket: None,
            transfers: VecDeque::new(),
            is_listed: false,
            tag: 0,
        });
        if found.bucket.is_none() {
            found.bucket = self.limits.client_bucket(client, now);
        }
        found
    }

    /// Forgets clients that are as if they had never come, once there are twice as many as after the last time.
    fn forget(&mut self, now: Duration) {
        if self.clients.len() < REMEMBERED_MIN.max(2 * self.remembered) {
            return;
        }
        let (tag, is_idle) = (self.tag, self.waiting == 0);
        self.clients.retain(|_, found| {
            let owes = found.bucket.as_ref().is_some_and(|bucket| !bucket.is_full(now));
            found.is_listed || owes || (found.tag > tag && !is_idle)
        });
        self.remembered = self.clients.len();
    }

    /// Lets a client's oldest transfer wait for the client's own limit, and then for its turn.
    fn list(&mut self, client: u128, now: Duration) {
        let found = self.client(client, now);
        let Some(oldest) = found.transfers.front() else { return };
        found.is_listed = true;
        let due = found.bucket.as_ref().map(|bucket| bucket.take(oldest.octets.into(), now));
        match due.filter(|due| *due > now) {
            Some(due) => self.later.push(Reverse((due, client))),
            None => self.take_turn(client),
        }
    }

    /// Lets a client wait for its turn.
    fn take_turn(&mut self, client: u128) {
        let Some(found) = self.clients.get_mut(&client) else { return };
        found.tag = found.tag.max(self.tag);
        self.arrivals += 1;
        self.turns.push(Reverse((found.tag, self.arrivals, client)));
    }

    /// Gives the next turn: takes its octets of the limit of all. Returns when they may pass, and whose they are.
    fn begin_turn(&mut self, now: Duration) -> Option<(Duration, u128)> {
        while let Some(Reverse((tag, _, client))) = self.turns.pop() {
            self.tag = tag;
            let Some(found) = self.clients.get_mut(&client) else { continue };
            let Some(oldest) = found.transfers.front() else {
                found.is_listed = false;
                continue;
            };
            let octets = u64::from(oldest.octets);
            found.tag = tag + octets;
            let due = self.limits.bucket().map_or(now, |all| all.take(octets, now));
            return Some((due, client));
        }
        None
    }
}

#[cfg(test)]
#[path = "rate_queue_tests.rs"]
mod tests;
