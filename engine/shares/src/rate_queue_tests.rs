//! Models of clients that wait for limits, at one reactor and at several.

use std::num::NonZeroU64;

use proptest::prelude::*;

use super::*;

const LARGEST: u32 = 1 << 20;
const MIB: u64 = 1 << 20;

fn limits(all: u64, each: u64) -> RateLimits {
    RateLimits::new(NonZeroU64::new(all), NonZeroU64::new(each), LARGEST)
}

/// A transfer of a client.
type Transfer = (u128, u32);

/// A reactor, what has passed there, and when.
struct Reactor {
    queue: RateQueue<Transfer>,
    passed: Vec<(Duration, Transfer)>,
}

impl Reactor {
    fn new(limits: &RateLimits) -> Reactor {
        Reactor { queue: RateQueue::new(limits.clone()), passed: Vec::new() }
    }

    fn come(&mut self, client: u128, octets: u32, now: Duration) {
        if self.queue.pass(client, octets, now) {
            self.passed.push((now, (client, octets)));
        } else {
            assert!(!self.queue.is_full(client));
            self.queue.push(client, octets, (client, octets), now);
        }
    }

    /// Lets pass what may by now.
    fn poll(&mut self, now: Duration) {
        while let Some(transfer) = self.queue.poll(now) {
            self.passed.push((now, transfer));
        }
        assert!(self.queue.next_due().is_none_or(|due| due > now), "it would not sleep");
    }

    fn octets_of(&self, client: u128) -> u64 {
        let own = self.passed.iter().filter(|(_, (found, _))| *found == client);
        own.map(|(_, (_, octets))| u64::from(*octets)).sum()
    }
}

/// Lets time go by until `end`, each reactor awake only when it said so.
fn run(reactors: &mut [Reactor], now: &mut Duration, end: Duration) {
    loop {
        reactors.iter_mut().for_each(|reactor| reactor.poll(*now));
        let due = reactors.iter().filter_map(|reactor| reactor.queue.next_due()).min();
        match due.filter(|due| *due <= end) {
            Some(due) => *now = due,
            None => break *now = end,
        }
    }
}

/// Fails if a window has more than the rate and the burst, and `late` transfers that passed later than they might.
fn keeps(passed: &[(Duration, Transfer)], rate: u64, late: u64) -> Result<(), String> {
    let mut passed = passed.to_vec();
    passed.sort();
    let burst = (rate / 10).max(LARGEST.into()) + late * u64::from(LARGEST);
    for (first, (from, _)) in passed.iter().enumerate() {
        let mut sum = 0;
        for (to, (_, octets)) in &passed[first..] {
            sum += u128::from(*octets);
            let budget = (*to - *from).as_nanos() * u128::from(rate) / 1_000_000_000 + u128::from(burst);
            if sum > budget + 1 {
                return Err(format!("{sum} octets of {budget} from {from:?} to {to:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn all_of_the_rate_is_used_and_no_more() {
    let mut reactors = [Reactor::new(&limits(100 * MIB, 0))];
    let mut now = Duration::from_secs(1);
    (0..300).for_each(|_| reactors[0].come(1, LARGEST, now));
    run(&mut reactors, &mut now, Duration::from_secs(2));
    // A second's, and the burst.
    assert_eq!(reactors[0].octets_of(1), 110 * MIB);
    run(&mut reactors, &mut now, Duration::from_secs(9));
    assert_eq!(reactors[0].octets_of(1), 300 * MIB);
    let waits = reactors[0].queue.waits();
    assert_eq!((waits.transfers, waits.octets, waits.waiting), (290, 290 * MIB, 0));
    assert_eq!(waits.time, Duration::from_millis((1..=290).map(|turn| 10 * turn).sum()));
    assert_eq!(reactors[0].queue.next_due(), None);
}

/// Turns are by octets: not by transfers, and not by how many wait.
#[test]
fn clients_of_one_limit_have_equal_parts() {
    let mut reactors = [Reactor::new(&limits(64 * MIB, 0))];
    let mut now = Duration::from_secs(1);
    (0..2000).for_each(|_| reactors[0].come(1, LARGEST, now));
    (0..40_000).for_each(|at| {
        let client = 2 + at % 2;
        if reactors[0].queue.is_full(client) {
            return;
        }
        reactors[0].come(client, 65_536, now);
    });
    run(&mut reactors, &mut now, Duration::from_secs(4));
    let parts = [1, 2, 3].map(|client| reactors[0].octets_of(client) / MIB);
    // The burst was the first one's.
    assert!((59..=72).contains(&parts[0]), "{parts:?}");
    assert!(parts[1..].iter().all(|part| (62..=66).contains(part)), "{parts:?}");
}

/// A client that has one transfer at a time is not served before others for that.
#[test]
fn a_client_with_one_transfer_at_a_time_has_no_more() {
    let mut reactors = [Reactor::new(&limits(16 * MIB, 0))];
    let mut now = Duration::from_secs(1);
    (0..1024).for_each(|_| reactors[0].come(1, 65_536, now));
    for _ in 0..20_000 {
        if reactors[0].queue.clients.get(&2).is_none_or(|found| found.transfers.is_empty()) {
            reactors[0].come(2, LARGEST, now);
        }
        now = reactors[0].queue.next_due().expect("the first one waits").max(now);
        reactors[0].poll(now);
        if reactors[0].octets_of(1) > 48 * MIB {
            break;
        }
    }
    let parts = [1, 2].map(|client| reactors[0].octets_of(client) / MIB);
    assert!((45..=50).contains(&parts[1]), "{parts:?}");
}

/// The limit of each client holds beside that of all, and what one does not use is there for the others.
#[test]
fn each_client_has_a_limit_of_its_own() {
    let mut reactors = [Reactor::new(&limits(50 * MIB, 10 * MIB))];
    let mut now = Duration::from_secs(1);
    for client in 1..=3 {
        (0..200).for_each(|_| reactors[0].come(client, LARGEST, now));
    }
    run(&mut reactors, &mut now, Duration::from_secs(5));
    for client in 1..=3 {
        let octets = reactors[0].octets_of(client);
        assert!((40 * MIB..=41 * MIB).contains(&octets), "{octets}");
        let own: Vec<_> =
            reactors[0].passed.iter().filter(|(_, (found, _))| *found == client).copied().collect();
        keeps(&own, 10 * MIB, 1).unwrap();
    }
    // One who comes when these wait for limits of their own passes at once.
    let before = reactors[0].passed.len();
    reactors[0].come(9, LARGEST, now);
    assert_eq!(reactors[0].passed.len(), before + 1);
}

/// Reactors count together, and none of them has all.
#[test]
fn reactors_share_the_limit() {
    let limits = limits(100 * MIB, 0);
    let mut reactors: Vec<_> = (0..3).map(|_| Reactor::new(&limits)).collect();
    let mut now = Duration::from_secs(1);
    for (reactor, count) in reactors.iter_mut().zip([500, 100, 500]) {
        (0..count).for_each(|_| reactor.come(1, LARGEST, now));
    }
    run(&mut reactors, &mut now, Duration::from_secs(3));
    let parts: Vec<_> = reactors.iter().map(|reactor| reactor.octets_of(1) / MIB).collect();
    assert_eq!(parts.iter().sum::<u64>(), 210, "{parts:?}");
    assert!(parts.iter().all(|part| (65..=77).contains(part)), "{parts:?}");
    let all: Vec<_> = reactors.iter().flat_map(|reactor| reactor.passed.clone()).collect();
    keeps(&all, 100 * MIB, 0).unwrap();
}

#[test]
fn other_limits_hold_at_once_for_what_waits() {
    let mut reactors = [Reactor::new(&limits(MIB, MIB))];
    let mut now = Duration::from_secs(1);
    for client in 1..=2 {
        (0..10).for_each(|_| reactors[0].come(client, LARGEST, now));
    }
    run(&mut reactors, &mut now, Duration::from_secs(2));
    assert!(reactors[0].queue.waiting() >= 17);
    // The limit of each client holds for transfers that waited before it, too.
    reactors[0].queue.set_limits(limits(0, 2 * MIB));
    run(&mut reactors, &mut now, Duration::from_secs(3));
    let parts = [1, 2].map(|client| reactors[0].octets_of(client) / MIB);
    assert!(parts.iter().all(|part| (3..=6).contains(part)), "{parts:?}");
    reactors[0].queue.set_limits(limits(0, 0));
    reactors[0].poll(now);
    assert_eq!((reactors[0].queue.waiting(), reactors[0].queue.next_due()), (0, None));
    assert_eq!(reactors[0].octets_of(1) + reactors[0].octets_of(2), 20 * MIB);
    assert!(reactors[0].queue.limits().is_unlimited());
}

/// What a client has waiting when it goes away is gone at once, and delays no other client.
#[test]
fn what_is_removed_holds_nobody_up() {
    let mut reactors = [Reactor::new(&limits(100 * MIB, 10 * MIB))];
    let mut now = Duration::from_secs(1);
    for client in [1, 2, 3] {
        (0..100).for_each(|_| reactors[0].come(client, LARGEST, now));
    }
    let removed = reactors[0].queue.remove(|(client, _)| *client != 2);
    assert!(removed.len() >= 190 && removed.iter().all(|(client, _)| *client != 2));
    run(&mut reactors, &mut now, Duration::from_secs(12));
    assert_eq!((reactors[0].octets_of(2), reactors[0].queue.waiting()), (100 * MIB, 0));
    assert_eq!(reactors[0].queue.next_due(), None);
}

/// A client may have as many waiting as it leaves free, and the next one still finds room.
#[test]
fn what_waits_is_bounded() {
    let mut queue = RateQueue::new(limits(1, 0));
    let now = Duration::from_secs(1);
    for client in 0..4 {
        let mut count = 0;
        while !queue.is_full(client) {
            queue.push(client, 1, (), now);
            count += 1;
        }
        assert_eq!(count, WAITING_MAX >> (client + 1));
    }
}

/// Clients that come and go leave nothing.
#[test]
fn clients_that_are_gone_are_forgotten() {
    let mut reactors = [Reactor::new(&limits(1000 * MIB, 10 * MIB))];
    let mut now = Duration::from_secs(1);
    for client in 0..10_000 {
        reactors[0].come(client, LARGEST, now);
        reactors[0].come(client, 1, now);
        let end = now + Duration::from_millis(10);
        run(&mut reactors, &mut now, end);
        assert!(reactors[0].queue.clients.len() <= 2 * REMEMBERED_MIN, "{client}");
    }
}

proptest! {
    /// Whatever comes: every window has at most the rate and the burst, of all and of each; all that waits passes, in the order of its
    /// client; and a reactor that has something to do says when.
    #[test]
    fn limits_hold_and_nothing_starves(
        all in 0..200_u64,
        each in 0..50_u64,
        reactors in 1..4_usize,
        transfers in proptest::collection::vec((0..3_usize, 0..5_u128, 0..LARGEST + 1, 0..8000_u64), 1..150),
    ) {
        let limits = limits(all * MIB, each * MIB);
        let mut reactors: Vec<_> = (0..reactors).map(|_| Reactor::new(&limits)).collect();
        let mut now = Duration::from_secs(5);
        let mut expected = 0;
        for (reactor, client, octets, gap) in transfers {
            let end = now + Duration::from_micros(gap);
            run(&mut reactors, &mut now, end);
            let reactor = reactor % reactors.len();
            reactors[reactor].come(client, octets, now);
            expected += u64::from(octets);
        }
        run(&mut reactors, &mut now, Duration::from_secs(5000));
        let passed: Vec<_> = reactors.iter().flat_map(|reactor| reactor.passed.clone()).collect();
        prop_assert_eq!(passed.iter().map(|(_, (_, octets))| u64::from(*octets)).sum::<u64>(), expected);
        prop_assert!(reactors.iter().all(|reactor| reactor.queue.waiting() == 0));
        if all > 0 {
            prop_assert_eq!(keeps(&passed, all * MIB, 0), Ok(()));
        }
        for client in (0..5).filter(|_| each > 0) {
            let own: Vec<_> = passed.iter().filter(|(_, (found, _))| *found == client).copied().collect();
            // One at each reactor may have waited for its turn after its client's limit let it go.
            prop_assert_eq!(keeps(&own, each * MIB, reactors.len() as u64), Ok(()));
        }
    }
}
