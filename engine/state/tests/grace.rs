//! The grace period (RFC 8881 sections 8.4.2 and 18.51), by number.

use std::time::Duration;

use stag_state::grace::{Grace, GraceStage, InGrace, ReclaimRefused};

const TERM: Duration = Duration::from_secs(90);

fn at(second: u64) -> Duration {
    Duration::from_secs(second)
}

fn grace(known: &[&[u8]]) -> Grace {
    Grace::new(known.iter().map(|owner| Box::from(*owner)), at(0), TERM)
}

/// 8881-8.4.2-a
#[test]
fn nothing_new_is_given_until_all_known_clients_are_back() {
    let mut grace = grace(&[b"a", b"b"]);
    assert_eq!((grace.stage(at(1)), grace.left()), (GraceStage::Waiting, 2));
    assert_eq!(grace.may_take(true, at(1)), Err(InGrace));
    assert_eq!(grace.may_reclaim(b"a", false, at(1)), Ok(()));
    assert!(!grace.complete(b"a", at(2)));
    assert!(!grace.complete(b"a", at(2)), "once");
    assert!(!grace.complete(b"new", at(2)), "it is not waited for");
    assert_eq!(grace.may_take(true, at(3)), Err(InGrace));
    assert!(grace.complete(b"b", at(4)), "the last");
    assert_eq!(grace.may_take(true, at(4)), Ok(()));
    assert_eq!(grace.stage(at(4)), GraceStage::Over);
}

/// 8881-8.4.2-a
#[test]
fn a_term_ends_it_whether_or_not_clients_come_back() {
    let mut grace = grace(&[b"a"]);
    assert_eq!(grace.may_take(true, at(89)), Err(InGrace));
    assert_eq!(grace.may_take(true, at(90)), Ok(()));
    assert_eq!(grace.may_reclaim(b"a", false, at(90)), Err(ReclaimRefused::NoGrace));
    assert!(!grace.complete(b"a", at(91)));
    assert_eq!(self::grace(&[]).stage(at(0)), GraceStage::Over, "no client is waited for");
}

/// 8881-8.4.2.1-a
#[test]
fn only_known_clients_reclaim_and_only_until_they_said_that_they_have() {
    let mut grace = grace(&[b"a"]);
    assert_eq!(grace.may_reclaim(b"stranger", false, at(1)), Err(ReclaimRefused::NotKnown));
    assert_eq!(grace.may_reclaim(b"a", true, at(1)), Err(ReclaimRefused::NoGrace));
}

/// 8881-18.51.3-b
#[test]
fn a_client_takes_nothing_new_before_its_reclaim_complete() {
    let mut grace = grace(&[]);
    assert_eq!(grace.may_take(false, at(1000)), Err(InGrace));
    assert_eq!(grace.may_take(true, at(1000)), Ok(()));
}
