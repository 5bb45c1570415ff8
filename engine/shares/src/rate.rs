//! Limits in octets per second, which reactors share without a lock.
//!
//! A [`RateBucket`] is one word: when the octets taken so far are *paid* for at the rate (the generic cell rate algorithm, ITU-T
//! I.371). To take octets moves that time on by what they cost, and tells when they may pass: as soon as it is ahead of the clock by no
//! more than the burst.
//!
//! **Why it holds.** Each take is one atomic change of the word, so all takes have an order. Of the transfers that pass between
//! times `a` and `b`, let `k` be the first in that order and `m` the last. When `k` was taken, the word was set to at least the time
//! at which `k` passed, and so to at least `a`, plus the cost of `k`; each one up to `m` added its own cost. As `m` passed by `b`, the word
//! was then at most `b` plus the burst. So all costs together are at most `b - a` plus the burst. A transfer that passes later than told
//! adds at most itself.
//!
//! [`RateLimits`] are the buckets of something that clients use: one for all of them, and one for each. Clones share them. [`RateQueue`]
//! has the transfers that wait, at one reactor.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use crate::rate_queue::{RateQueue, RateWaits};

/// How long a client that was idle may go beyond the rate.
const BURST: Duration = Duration::from_millis(100);

/// Buckets of single clients at most. Clients beyond them share one.
const CLIENTS_MAX: usize = 4096;

/// The client whose bucket those share who have none of their own. No address and no user is this owner.
const OTHERS: u128 = u128::MAX;

const NANOSECONDS: u128 = 1_000_000_000;

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A limit in octets per second.
#[derive(Debug)]
pub struct RateBucket {
    /// When the octets that were taken so far are paid for, in nanoseconds of the reactors' clock.
    paid: AtomicU64,
    rate: NonZeroU64,
    /// How far `paid` may be ahead of the clock when octets pass, in nanoseconds.
    burst: u64,
}

impl RateBucket {
    /// A limit of `rate` octets per second, for transfers of at most `largest` octets. The burst is what passes in a tenth of a second, or
    /// the largest transfer, whichever is more.
    #[must_use]
    pub fn new(rate: NonZeroU64, largest: u32) -> RateBucket {
        let mut bucket = RateBucket { paid: AtomicU64::new(0), rate, burst: 0 };
        bucket.burst = nanoseconds(BURST).max(bucket.cost(largest.into()));
        bucket
    }

    /// Octets per second.
    #[must_use]
    pub fn rate(&self) -> NonZeroU64 {
        self.rate
    }

    /// The time that octets take at the rate, in nanoseconds, rounded up.
    fn cost(&self, octets: u64) -> u64 {
        let cost = (u128::from(octets) * NANOSECONDS).div_ceil(u128::from(self.rate.get()));
        u64::try_from(cost).unwrap_or(u64::MAX)
    }

    /// Takes octets, and returns when they may pass: at once, if that is not after `now`.
    pub fn take(&self, octets: u64, now: Duration) -> Duration {
        let (now, cost) = (nanoseconds(now), self.cost(octets));
        let pay = |paid: u64| paid.max(now).saturating_add(cost);
        // Relaxed: the word guards no other memory. It cannot fail, as `pay` always has an answer.
        let before = self.paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |paid| Some(pay(paid)));
        Duration::from_nanos(pay(before.unwrap_or_else(|paid| paid)).saturating_sub(self.burst))
    }

    /// Takes octets if they may pass now. `false`: nothing was taken.
    #[must_use]
    pub fn take_now(&self, octets: u64, now: Duration) -> bool {
        let (now, cost) = (nanoseconds(now), self.cost(octets));
        let pay = |paid: u64| {
            let paid = paid.max(now).saturating_add(cost);
            (paid <= now.saturating_add(self.burst)).then_some(paid)
        };
        self.paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay).is_ok()
    }

    /// Gives back what [`RateBucket::take_now`] took, and did not pass.
    pub fn give_back(&self, octets: u64) {
        let cost = self.cost(octets);
        let give = |paid: u64| Some(paid.saturating_sub(cost));
        let _ = self.paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, give);
    }

    /// Whether all is paid: the bucket is as a new one.
    #[must_use]
    pub fn is_full(&self, now: Duration) -> bool {
        self.paid.load(Ordering::Relaxed) <= nanoseconds(now)
    }
}

/// Limits of all clients together, and of each client. Clones are the same limits, and count together.
#[derive(Clone, Debug)]
pub struct RateLimits(Arc<SharedLimits>);

#[derive(Debug)]
struct SharedLimits {
    all: Option<RateBucket>,
    each: Option<NonZeroU64>,
    largest: u32,
    /// Buckets of clients that were not full when they were looked at. A reactor asks once for each client that becomes busy.
    clients: Mutex<HashMap<u128, Arc<RateBucket>>>,
}

/// Limits are equal that say the same, whatever was taken.
impl PartialEq for RateLimits {
    fn eq(&self, other: &RateLimits) -> bool {
        (self.all(), self.each()) == (other.all(), other.each())
    }
}

impl Eq for RateLimits {}

impl RateLimits {
    /// Limits of `all` clients together and of `each` client, in octets per second, for transfers of at most `largest` octets.
    #[must_use]
    pub fn new(all: Option<NonZeroU64>, each: Option<NonZeroU64>, largest: u32) -> RateLimits {
        let all = all.map(|rate| RateBucket::new(rate, largest));
        RateLimits(Arc::new(SharedLimits { all, each, largest, clients: Mutex::default() }))
    }

    /// Octets per second of all clients together.
    #[must_use]
    pub fn all(&self) -> Option<NonZeroU64> {
        self.0.all.as_ref().map(RateBucket::rate)
    }

    /// Octets per second of each client.
    #[must_use]
    pub fn each(&self) -> Option<NonZeroU64> {
        self.0.each
    }

    /// Whether there is a limit at all.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        self.0.all.is_none() && self.0.each.is_none()
    }

    /// The bucket of all clients together.
    pub(crate) fn bucket(&self) -> Option<&RateBucket> {
        self.0.all.as_ref()
    }

    /// The bucket of one client, if each has a limit. A full one is as good as a new one, so those are forgotten that no reactor holds.
    pub(crate) fn client_bucket(&self, client: u128, now: Duration) -> Option<Arc<RateBucket>> {
        let SharedLimits { each, largest, clients, .. } = &*self.0;
        let rate = (*each)?;
        // A panic elsewhere cannot leave the table half changed.
        let mut clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = clients.get(&client) {
            return Some(Arc::clone(found));
        }
        if clients.len() >= CLIENTS_MAX {
            clients.retain(|_, bucket| Arc::strong_count(bucket) > 1 || !bucket.is_full(now));
        }
        let client = if clients.len() < CLIENTS_MAX { client } else { OTHERS };
        let bucket = clients.entry(client).or_insert_with(|| Arc::new(RateBucket::new(rate, *largest)));
        Some(Arc::clone(bucket))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LARGEST: u32 = 1 << 20;

    fn rate(octets: u64) -> NonZeroU64 {
        NonZeroU64::new(octets).expect("a rate")
    }

    fn milliseconds(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    #[test]
    fn a_burst_passes_and_then_the_rate_holds() {
        let bucket = RateBucket::new(rate(100 << 20), LARGEST);
        let now = milliseconds(5000);
        // A tenth of a second at 100 MiB/s.
        for _ in 0..10 {
            assert!(bucket.take(1 << 20, now) <= now);
        }
        for late in 1..50 {
            assert_eq!(bucket.take(1 << 20, now), now + milliseconds(10 * late));
        }
        assert!(!bucket.is_full(now + milliseconds(589)) && bucket.is_full(now + milliseconds(590)));
    }

    #[test]
    fn the_largest_transfer_passes_whatever_the_rate_is() {
        let bucket = RateBucket::new(rate(1 << 20), LARGEST);
        let now = milliseconds(1);
        assert!(bucket.take_now(1 << 20, now));
        assert!(!bucket.take_now(1 << 20, now + milliseconds(999)));
        assert!(bucket.take_now(1 << 20, now + milliseconds(1000)));
        // A small one need not wait until all is paid.
        assert!(bucket.take_now(1 << 10, now + milliseconds(1001)));
        // What did not pass is as if it had not come.
        let later = milliseconds(9000);
        assert!(bucket.take_now(1 << 20, later));
        bucket.give_back(1 << 20);
        assert!(bucket.is_full(later));
    }

    #[test]
    fn numbers_of_any_size_do_no_harm() {
        let bucket = RateBucket::new(rate(1), u32::MAX);
        bucket.take(u64::MAX, Duration::MAX);
        bucket.take(u64::MAX, Duration::ZERO);
        assert!(!bucket.is_full(milliseconds(1)));
        let bucket = RateBucket::new(rate(u64::MAX), 0);
        assert!(bucket.take(u64::from(u32::MAX), Duration::ZERO).is_zero());
    }

    /// The table of clients is bounded, forgets who is idle, and never gives a client of its own to two.
    #[test]
    fn buckets_of_clients_are_bounded() {
        let limits = RateLimits::new(None, Some(rate(1 << 20)), LARGEST);
        let now = milliseconds(1);
        let most = CLIENTS_MAX as u128;
        let held: Vec<_> = (0..most).filter_map(|client| limits.client_bucket(client, now)).collect();
        let [one, two] = [most, most + 1].map(|client| limits.client_bucket(client, now).expect("a limit"));
        assert!(Arc::ptr_eq(&one, &two), "those beyond share one");
        assert!(!held.iter().any(|own| Arc::ptr_eq(own, &one)));
        held[7].take(1 << 20, now);
        drop((held, one, two));
        limits.client_bucket(most, now);
        let clients = limits.0.clients.lock().unwrap();
        assert_eq!(clients.len(), 2, "one has something to pay, and the other has come");
        assert!(clients.contains_key(&7));
    }

    proptest! {
        /// In any window of T seconds at most rate × T + burst octets pass.
        #[test]
        fn no_window_has_more_than_the_rate_and_a_burst(
            megabytes in 1..2000_u64,
            transfers in proptest::collection::vec((0..LARGEST + 1, 0..30_000_u64), 1..200),
        ) {
            let bucket = RateBucket::new(rate(megabytes * 1_000_000), LARGEST);
            let mut now = milliseconds(3000);
            let mut passed = Vec::new();
            for (octets, gap) in transfers {
                now += Duration::from_micros(gap);
                passed.push((bucket.take(octets.into(), now).max(now), u64::from(octets)));
            }
            let burst = (megabytes * 100_000).max(LARGEST.into());
            for (first, (from, _)) in passed.iter().enumerate() {
                let mut sum = 0;
                for (to, octets) in &passed[first..] {
                    sum += octets;
                    let budget = (*to - *from).as_nanos() * u128::from(megabytes) / 1000 + u128::from(burst);
                    prop_assert!(u128::from(sum) <= budget + 1, "{sum} octets of {budget}");
                }
            }
        }
    }
}
