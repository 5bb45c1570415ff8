//! The policy of a client's connection that ends or goes silent, and its life beyond one queue pair.

use std::time::Duration;

use crate::ConnectionId;

/// What a client's connection does when it ends without having been asked to, and when nothing is heard of the
/// server. By default nothing: its Calls end, and so does it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientPolicy {
    /// Whether to connect again. Calls without a Reply are sent again then, with the same xid, those excepted
    /// whose [`Request::retransmit`](crate::Request::retransmit) is `false`. A server without a duplicate request
    /// cache may execute them twice. Not after a [`CloseReason::Violation`](crate::CloseReason::Violation): a server that
    /// broke the rules would break them again.
    pub reconnect: Option<Backoff>,
    /// Whether to find out that the server is gone when the fabric does not tell.
    pub keep_alive: Option<KeepAlive>,
}

/// How long to wait between attempts to connect again: twice as long after each that failed, within bounds,
/// and less by a random part of up to a half, so that the clients of a restarted server do not come all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Before the first attempt, at most.
    pub first: Duration,
    /// Between two attempts, at most.
    pub max: Duration,
    /// When this has passed since the connection ended, it is given up, and its Calls end.
    pub give_up_after: Duration,
    /// A server that is still executing a Call drops its retransmission (5531-e), and replies on the connection that
    /// is gone. So a retransmitted Call that stays unanswered this long ends the connection, and is sent once more;
    /// the delay doubles each time.
    pub resend_after: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff {
            first: Duration::from_millis(50),
            max: Duration::from_secs(5),
            give_up_after: Duration::from_secs(90),
            resend_after: Duration::from_secs(2),
        }
    }
}

impl Backoff {
    /// How long to wait before attempt number `attempt`, the first of which is 0.
    fn delay(&self, attempt: u32, random: u64) -> Duration {
        let longest = self.first.saturating_mul(1 << attempt.min(20)).min(self.max);
        let nanoseconds = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(nanoseconds - random % (nanoseconds / 2 + 1))
    }

    /// How long a Call may be unanswered that was sent again `count` times.
    pub(crate) fn resend_after(&self, count: u32) -> Duration {
        self.resend_after.saturating_mul(1 << count.clamp(1, 6) >> 1)
    }
}

/// A NULL Call when nothing is heard, for which one credit is kept back (8267-6.7.2-a). If nothing comes then
/// either, the connection is ended, with [`CloseReason::Silent`](crate::CloseReason::Silent); so it is when nothing
/// comes and Calls that were given up hold every credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// The program whose procedure 0 is called.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// After so long without a message, while Calls are in flight, those that were given up included.
    pub after: Duration,
    /// How long the server has to send anything at all.
    pub answer_within: Duration,
    /// Whether also when no Call is in flight.
    pub when_idle: bool,
}

/// A client's connection beyond one queue pair.
#[derive(Debug)]
pub(crate) struct Session {
    /// What its user calls it: its first queue pair.
    pub(crate) name: ConnectionId,
    pub(crate) address: Box<str>,
    pub(crate) policy: ClientPolicy,
    /// When the connection was lost, until another one is made.
    pub(crate) lost: Option<Duration>,
    /// Its user ended it: there is no other attempt.
    pub(crate) ended: bool,
    /// It was lost while it was asked for version 2: its next one speaks version 1 (V2-5.2-b).
    pub(crate) assumes_version_1: bool,
    /// Its user does not know of any connection yet.
    pub(crate) is_new: bool,
    attempt: u32,
    next_attempt: Duration,
    random: u64,
}

impl Session {
    pub(crate) fn new(name: ConnectionId, address: &str, policy: ClientPolicy, seed: u32) -> Session {
        Session {
            name,
            address: address.into(),
            policy,
            lost: None,
            ended: false,
            assumes_version_1: false,
            is_new: true,
            attempt: 0,
            next_attempt: Duration::ZERO,
            random: seed.into(),
        }
    }

    /// The connection ended, or an attempt failed. `false`: there will be no other.
    pub(crate) fn lose(&mut self, now: Duration) -> bool {
        let Some(backoff) = self.policy.reconnect else { return false };
        let lost = *self.lost.get_or_insert(now);
        let delay = backoff.delay(self.attempt, self.next_random());
        self.attempt = self.attempt.saturating_add(1);
        self.next_attempt = now + delay;
        !self.ended && now < lost.saturating_add(backoff.give_up_after)
    }

    /// The connection ended before the peer said which version it speaks: the next one speaks version 1, and comes at once.
    pub(crate) fn lose_to_version_1(&mut self, now: Duration) {
        self.assumes_version_1 = true;
        self.lost.get_or_insert(now);
        self.next_attempt = now;
    }

    /// It is connected. Attempts are counted on until the server was `heard`: one that accepts and then ends the
    /// connection at once would be asked without end otherwise.
    pub(crate) fn restore(&mut self) {
        self.lost = None;
    }

    /// The server has answered: it is well.
    pub(crate) fn heard(&mut self) {
        self.attempt = 0;
    }

    pub(crate) fn is_due(&self, now: Duration) -> bool {
        now >= self.next_attempt
    }

    /// The next number of SplitMix64.
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.random;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: ClientPolicy = ClientPolicy {
        reconnect: Some(Backoff {
            first: Duration::from_millis(100),
            max: Duration::from_secs(2),
            give_up_after: Duration::from_secs(30),
            resend_after: Duration::from_secs(2),
        }),
        keep_alive: None,
    };

    fn session(seed: u32) -> Session {
        Session::new(ConnectionId { index: 0, generation: 1 }, "server", POLICY, seed)
    }

    /// The times between the attempts, until there is no other.
    fn delays(session: &mut Session) -> Vec<Duration> {
        let mut now = Duration::from_secs(7);
        let mut delays = Vec::new();
        while session.lose(now) {
            assert!(!session.is_due(now));
            delays.push(session.next_attempt - now);
            now = session.next_attempt;
            assert!(session.is_due(now));
        }
        delays
    }

    #[test]
    fn delays_double_within_bounds_and_are_not_everybodys() {
        let found = delays(&mut session(1));
        assert_eq!(found, delays(&mut session(1)), "a seed decides");
        assert_ne!(found, delays(&mut session(2)), "and another one otherwise");
        for (attempt, delay) in (0..).zip(&found) {
            let longest = Duration::from_millis(100 << attempt.min(10)).min(Duration::from_secs(2));
            assert!((longest / 2..=longest).contains(delay), "attempt {attempt}: {delay:?}");
        }
        let sum: Duration = found.iter().sum();
        assert!(sum >= Duration::from_secs(28) && sum <= Duration::from_secs(32), "{sum:?}");
    }

    #[test]
    fn only_an_answer_makes_the_delay_short_again() {
        let mut session = session(3);
        let now = Duration::from_secs(1);
        for _ in 0..4 {
            assert!(session.lose(now));
            session.restore();
        }
        assert!(session.lose(now));
        assert!(session.next_attempt - now > Duration::from_millis(700), "connections that end at once");
        session.restore();
        session.heard();
        assert!(session.lose(now));
        assert!(session.next_attempt - now <= Duration::from_millis(100));
        session.ended = true;
        assert!(!session.lose(now), "its user does not want it any more");
    }

    #[test]
    fn extreme_policies_do_not_overflow() {
        let max = Duration::MAX;
        let backoff = Backoff { first: max, max, give_up_after: max, resend_after: max };
        assert!(backoff.delay(u32::MAX, u64::MAX) > Duration::ZERO);
        assert_eq!(backoff.resend_after(u32::MAX), max);
        let zero = Duration::ZERO;
        let none = Backoff { first: zero, max: zero, give_up_after: zero, resend_after: zero };
        assert_eq!(none.delay(3, 12345), Duration::ZERO);
    }
}
