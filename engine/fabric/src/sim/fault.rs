//! The faults of a simulated fabric, and how often they happen.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::random::{Odds, Random};

/// The weather of a [`World`](super::World). [`FaultPlan::default`] is calm: work takes seeded time
/// and Writes land in pieces, but nothing fails.
///
/// Everything below is legal for a fabric to do; nothing is lost or duplicated on a live connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultPlan {
    /// How long one way through the fabric takes.
    pub latency: RangeInclusive<Duration>,
    /// A request to connect that has not been established for so long fails with `TimedOut`.
    pub setup_timeout: Duration,

    /// A way through the fabric takes up to [`FaultPlan::delay_max`] longer.
    pub delay: Odds,
    /// The longest additional delay.
    pub delay_max: Duration,
    /// A connection whose every step takes [`FaultPlan::slow_factor`] times as long.
    pub slow_peer: Odds,
    /// How much slower a slow peer is.
    pub slow_factor: u32,
    /// A completion overtakes those of other queue pairs (never those of its own).
    pub reorder: Odds,
    /// A fence is `Pending` although no access is under way, as it always is on real hardware.
    pub fence_pending: Odds,
    /// A Send or Write completes before it reaches the peer, as iWARP does; should it fail afterwards,
    /// then only the end of the connection tells.
    pub complete_early: Odds,
    /// A post is refused as `Full` before the capacity is used up. Only while another request of the
    /// same send queue is outstanding, so that a retry after later progress succeeds.
    pub post_full: Odds,

    /// A short message is shown where it arrived, there is space to build an answer or another one, and the peer's
    /// memory is read or written at once: each by itself ([`poll_in_place`](crate::Provider::poll_in_place),
    /// [`build_plain`](crate::Provider::build_plain), [`build_exposing`](crate::Provider::build_exposing),
    /// [`read_at_once`](crate::Provider::read_at_once)).
    pub in_place: Odds,

    /// A request to connect is refused.
    pub connect_refused: Odds,
    /// A request to connect, or the answer to it, is lost, so that set-up times out.
    pub setup_lost: Odds,
    /// A request to connect is lost while it is handed over, so that set-up times out.
    pub handover_lost: Odds,
    /// A Send that invalidates a handle which was fenced while it was on its way ends the connection, as it
    /// does on some hardware, instead of being taken for the message it is.
    pub late_invalidate_refused: Odds,
    /// Private data arrives empty.
    pub private_data_dropped: Odds,
    /// Private data arrives without its end.
    pub private_data_truncated: Odds,
    /// A connection is cut at a step: nothing arrives any more, and each side finds out on its own,
    /// some time later.
    pub death: Odds,
    /// The connection that takes this step (see [`World::steps`](super::World::steps)) is cut there. A test that
    /// runs once for each step has seen death at every point of its scenario.
    pub death_at: Option<u64>,
}

impl Default for FaultPlan {
    fn default() -> FaultPlan {
        FaultPlan {
            latency: Duration::from_nanos(500)..=Duration::from_micros(20),
            setup_timeout: Duration::from_secs(5),
            delay: Odds::NEVER,
            delay_max: Duration::from_millis(20),
            slow_peer: Odds::NEVER,
            slow_factor: 50,
            reorder: Odds::NEVER,
            fence_pending: Odds::NEVER,
            complete_early: Odds::NEVER,
            post_full: Odds::NEVER,
            in_place: Odds::one_in(2),
            connect_refused: Odds::NEVER,
            setup_lost: Odds::NEVER,
            handover_lost: Odds::NEVER,
            late_invalidate_refused: Odds::NEVER,
            private_data_dropped: Odds::NEVER,
            private_data_truncated: Odds::NEVER,
            death: Odds::NEVER,
            death_at: None,
        }
    }
}

impl FaultPlan {
    /// Delays, reordering, late fences, early completions and full queues: all that a program has to
    /// expect of a fabric on which no connection ever fails.
    pub fn rough() -> FaultPlan {
        FaultPlan {
            delay: Odds::one_in(20),
            slow_peer: Odds::one_in(4),
            reorder: Odds::one_in(2),
            fence_pending: Odds::one_in(2),
            complete_early: Odds::one_in(3),
            post_full: Odds::one_in(20),
            ..FaultPlan::default()
        }
    }

    /// [`FaultPlan::rough`], and connections are refused, time out, lose private data and die.
    pub fn storm() -> FaultPlan {
        FaultPlan {
            connect_refused: Odds::one_in(8),
            setup_lost: Odds::one_in(12),
            handover_lost: Odds::one_in(12),
            late_invalidate_refused: Odds::one_in(2),
            private_data_dropped: Odds::one_in(8),
            private_data_truncated: Odds::one_in(8),
            death: Odds::one_in(400),
            ..FaultPlan::rough()
        }
    }

    /// The plan for `seed` of a sweep: calm, rough, stormy, or each fault on or off by itself, so that a
    /// sweep meets faults alone as well as together.
    pub fn from_seed(seed: u64) -> FaultPlan {
        let mut random = Random::new(seed ^ 0xfa17_0000_0000_0000);
        let storm = FaultPlan::storm();
        match random.below(8) {
            0 => FaultPlan::default(),
            1 => FaultPlan::rough(),
            2 => storm,
            _ => {
                let in_place = [Odds::NEVER, Odds::one_in(2), Odds::one_in(10), Odds::ALWAYS];
                let in_place = in_place[random.below(4) as usize];
                let mut some = |odds: Odds| if random.below(2) == 0 { odds } else { Odds::NEVER };
                FaultPlan {
                    delay: some(storm.delay),
                    slow_peer: some(storm.slow_peer),
                    reorder: some(storm.reorder),
                    fence_pending: some(storm.fence_pending),
                    complete_early: some(storm.complete_early),
                    post_full: some(storm.post_full),
                    in_place,
                    connect_refused: some(storm.connect_refused),
                    setup_lost: some(storm.setup_lost),
                    handover_lost: storm.handover_lost,
                    late_invalidate_refused: some(storm.late_invalidate_refused),
                    private_data_dropped: some(storm.private_data_dropped),
                    private_data_truncated: some(storm.private_data_truncated),
                    death: some(storm.death),
                    ..storm
                }
            }
        }
    }
}
