//! Leases (RFC 8881 section 8.3), and which addresses are one server (section 2.10.5), by number.

use std::time::Duration;

use stag_state::lease::{Lease, LeaseExpired, LeaseStage};
use stag_state::trunking::{ServerIdentity, Trunking};

const TERM: Duration = Duration::from_secs(90);

fn at(second: u64) -> Duration {
    Duration::from_secs(second)
}

/// 8881-8.3-a
#[test]
fn a_lease_lasts_a_term_after_each_request() {
    let lease = Lease::new(at(10));
    assert_eq!(lease.look(at(100), TERM), LeaseStage::Active);
    assert_eq!(lease.renew(at(100)), Ok(()));
    assert_eq!(lease.look(at(190), TERM), LeaseStage::Active);
    assert_eq!(lease.look(at(191), TERM), LeaseStage::Courtesy);
    // Time that goes back, as seen from another core, renews nothing and harms nothing.
    assert_eq!((lease.renew(at(5)), lease.heard()), (Ok(()), at(5)));
}

/// 8881-8.4.3-a
#[test]
fn a_lapsed_client_that_comes_back_has_lost_nothing_unless_it_was_wanted() {
    let lease = Lease::new(at(0));
    assert!(!lease.expire(at(90), TERM), "it is active");
    assert_eq!(lease.look(at(1000), TERM), LeaseStage::Courtesy);
    assert_eq!(lease.renew(at(1000)), Ok(()));
    assert_eq!(lease.look(at(1000), TERM), LeaseStage::Active);
    assert!(lease.expire(at(2000), TERM), "it lapsed without anybody looking");
    assert!(!lease.expire(at(2000), TERM), "only one frees what it held");
    assert_eq!(lease.renew(at(2000)), Err(LeaseExpired));
    assert!(!lease.end());
}

#[test]
fn a_lease_that_its_client_ends_is_over_at_once() {
    let lease = Lease::new(at(0));
    assert!(lease.end());
    assert_eq!(lease.look(at(1), TERM), LeaseStage::Expired);
}

/// 8881-2.10.5-a
#[test]
fn what_is_shared_follows_from_what_is_the_same() {
    let server = ServerIdentity { major: b"host", minor: 1, scope: b"host" };
    let with = |client, other: &ServerIdentity<'_>| Trunking::of((7, &server), (client, other));
    assert_eq!(with(7, &server), Trunking::Session);
    assert_eq!(with(7, &ServerIdentity { minor: 2, ..server }), Trunking::ClientId);
    assert_eq!(with(8, &server), Trunking::Apart);
    assert_eq!(with(7, &ServerIdentity { major: b"other", ..server }), Trunking::Apart);
    assert_eq!(with(7, &ServerIdentity { scope: b"other", ..server }), Trunking::Apart);
}
