//! Locks that are taken below as well, of clients of version 4 and hosts of NLM: another node of a cluster file system sees them, and
//! has some itself.

use std::time::Duration;

use stag_fabric::sim::{Random, sweep};
use stag_nfs::client::Operation;
use stag_nfs::server::{HeldWhat, Removal};
use stag_rpc::Chunks;
use stag_state::Counts;
use stag_testing::Scratch;
use stag_vfs::OctetLock;
use stag_wire::nfs4::Status4;
use stag_wire::nfs4::lock::LockKind;
use stag_wire::nlm4::{self, Object, Status};
use stag_wire::xdr::{Encode, Overflow, Writer};

use super::files::put;
use super::pair::Pair;
use super::restart::{self, previous, reclaim_lock, settled};
use super::state::{BOTH, close, lock_more, lock_new, lockt, locku, open_handle};
use super::{Lab, Node};

/// Enough for whatever is given back in the background, and for the next try of what waits.
const MOMENT: Duration = Duration::from_secs(5);

const ALL: (u64, u64) = (0, u64::MAX);

const fn lock(first: u64, last: u64, exclusive: bool) -> Option<OctetLock> {
    Some(OctetLock { first, last, exclusive })
}

fn lab() -> (Lab, Vec<u8>, Node) {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let file = lab.make_file(b"file");
    let node = Node::new(&mut lab);
    (lab, file, node)
}

/// Procedures of NLM with their arguments.
macro_rules! operations {
    ($($name:ident($arguments:ty) is $procedure:expr, $reply:ty;)*) => {$(
        struct $name<'a>($arguments);

        impl Encode for $name<'_> {
            fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
                writer.value(&self.0)
            }
        }

        impl Operation for $name<'_> {
            const PROGRAM: u32 = nlm4::PROGRAM;
            const VERSION: u32 = nlm4::VERSION;
            type Reply<'r> = $reply;

            fn procedure(&self) -> u32 {
                $procedure.number()
            }

            fn results_len_max(&self, _: bool) -> u32 {
                2048
            }
        }
    )*};
}

operations! {
    Test(nlm4::TestArguments<'a>) is nlm4::Procedure::Test, nlm4::TestResults<'r>;
    Lock(nlm4::LockArguments<'a>) is nlm4::Procedure::Lock, nlm4::Results<'r>;
    Cancel(nlm4::CancelArguments<'a>) is nlm4::Procedure::Cancel, nlm4::Results<'r>;
    Unlock(nlm4::UnlockArguments<'a>) is nlm4::Procedure::Unlock, nlm4::Results<'r>;
    FreeAll(nlm4::FreeAllArguments<'a>) is nlm4::Procedure::FreeAll, ();
}

const COOKIE: Object<'static> = Object(b"c");

fn nlm<'a>(file: &'a [u8], host: &'a [u8], (offset, len): (u64, u64)) -> nlm4::Lock<'a> {
    let (caller, file, owner) = (nlm4::Name(host), Object(file), Object(b"process"));
    nlm4::Lock { caller, file, owner, svid: 7, offset, len }
}

/// LOCK of NLM for an exclusive lock.
fn nlm_lock(lab: &mut Lab, lock: nlm4::Lock<'_>, block: bool) -> Status {
    let arguments =
        nlm4::LockArguments { cookie: COOKIE, block, exclusive: true, lock, reclaim: false, state: 1 };
    lab.pair.ask(Lock(arguments), |results| results.status)
}

fn nlm_unlock(lab: &mut Lab, lock: nlm4::Lock<'_>) -> Status {
    lab.pair.ask(Unlock(nlm4::UnlockArguments { cookie: COOKIE, lock }), |results| results.status)
}

fn counts(lab: &Lab) -> Counts {
    lab.pair.locking.borrow().statistics().counts
}

/// 8881-18.10, 18.11: who is in the way is told; it is no client.
#[test]
fn a_lock_of_another_node_denies() {
    let (mut lab, file, node) = lab();
    let open = lab.open_at(&file, BOTH);
    assert!(node.set(lock(10, 19, true)));
    let expected = (0, Vec::new(), 10, 10, LockKind::Write);
    let new = |range| lock_new(open, b"p", LockKind::Read, range);
    for range in [(0, 100), (19, 1), ALL] {
        assert_eq!(lab.denied(&[put(&file), new(range)]), expected);
        assert_eq!(lab.denied(&[put(&file), lockt(b"p", LockKind::Read, range)]), expected);
    }
    assert_eq!(node.sees(0, u64::MAX), None, "nothing is left of what was denied");
    assert_eq!(lab.status(&[put(&file), lockt(b"p", LockKind::Write, (20, 5))]), Status4::Ok);
    lab.state(&[put(&file), new((20, 5))]).unwrap();
    assert!(node.set(lock(30, u64::MAX, false)));
    let found = lab.denied(&[put(&file), lockt(b"p", LockKind::Write, (25, 100))]);
    assert_eq!(found, (0, Vec::new(), 30, u64::MAX, LockKind::Read));
    assert_eq!(lab.status(&[put(&file), lockt(b"p", LockKind::Read, (25, 100))]), Status4::Ok, "both share");
    assert_eq!(lab.status(&[put(&file), new((25, 100))]), Status4::Ok);
    assert!(node.set(None));
    assert_eq!(lab.status(&[put(&file), lock_new(open, b"p", LockKind::Write, ALL)]), Status4::Ok);
    assert_eq!(node.sees(0, u64::MAX), Some((0, u64::MAX, true)));
    assert!(!node.set(lock(7, 7, false)));
}

/// What owners have together is what another node sees; an UNLOCK is answered when it sees that, too.
#[test]
fn the_locks_of_all_clients_are_one_below() {
    let (mut lab, file, node) = lab();
    let open = lab.open_at(&file, BOTH);
    let one = lab.state(&[put(&file), lock_new(open, b"p", LockKind::Read, (0, 10))]).unwrap();
    let other = lab.state(&[put(&file), lock_new(open, b"q", LockKind::Read, (5, 10))]).unwrap();
    assert_eq!(node.sees(0, u64::MAX), Some((0, 14, false)));
    let one = lab.state(&[put(&file), locku(one, ALL)]).unwrap();
    assert_eq!((node.sees(0, 4), node.sees(0, u64::MAX)), (None, Some((5, 14, false))));
    // Up, and down again.
    let other = lab.state(&[put(&file), lock_more(other, LockKind::Write, (7, 3))]).unwrap();
    assert_eq!(node.sees(7, 7), Some((7, 9, true)));
    let other = lab.state(&[put(&file), lock_more(other, LockKind::Read, (8, 2))]).unwrap();
    lab.wait(MOMENT);
    assert_eq!((node.sees(7, 7), node.sees(8, 100)), (Some((7, 7, true)), Some((8, 14, false))));
    // One is denied what the other has, and nothing changes.
    lab.denied(&[put(&file), lock_more(one, LockKind::Write, (0, 100))]);
    assert_eq!((node.sees(0, 4), node.sees(20, u64::MAX)), (None, None));
    lab.state(&[put(&file), locku(other, (6, 3))]).unwrap();
    assert_eq!((node.sees(0, 8), node.sees(6, 100)), (Some((5, 5, false)), Some((9, 14, false))));
}

/// 8881-9.8-a, and whatever else ends a lock.
#[test]
fn what_ends_a_lock_ends_it_below() {
    for way in ["close", "evict", "remove", "free_all", "lapse"] {
        let (mut lab, file, node) = lab();
        let open = lab.open_at(&file, BOTH);
        if way == "free_all" {
            assert_eq!(nlm_lock(&mut lab, nlm(&file, b"host", (0, 0)), false), Status::Granted);
        } else {
            lab.state(&[put(&file), lock_new(open, b"p", LockKind::Write, ALL)]).unwrap();
        }
        assert_eq!(node.sees(0, 100), Some((0, u64::MAX, true)), "{way}");
        match way {
            "close" => assert_eq!(lab.status(&[put(&file), close(open)]), Status4::Ok),
            "evict" => {
                let clientid = lab.clientid;
                assert!(lab.pair.server.services_mut().1.evict(clientid));
            }
            "remove" => assert_eq!(lab.pair.remove_export("/data"), Removal::Done),
            "free_all" => {
                let name = nlm4::Name(b"host");
                lab.pair.ask(FreeAll(nlm4::FreeAllArguments { name, state: 3 }), |()| ());
            }
            _ => {
                lab.wait(Duration::from_secs(200));
                assert_eq!(
                    node.sees(0, 100),
                    Some((0, u64::MAX, true)),
                    "it is silent, and keeps what it has"
                );
                assert_eq!(nlm_lock(&mut lab, nlm(&file, b"host", (3, 1)), false), Status::Granted);
                lab.wait(MOMENT);
                assert_eq!(node.sees(0, u64::MAX), Some((3, 3, true)), "what others wanted stays");
                assert_eq!(nlm_unlock(&mut lab, nlm(&file, b"host", (3, 1))), Status::Granted);
            }
        }
        lab.wait(MOMENT);
        assert_eq!(node.sees(0, u64::MAX), None, "{way}");
        assert!(node.set(lock(0, u64::MAX, true)), "{way}");
    }
}

/// 8881-8.4.2-a: what a client takes back after a restart it takes below again, unless another node was faster.
#[test]
fn what_is_taken_back_is_taken_below() {
    let scratch = Scratch::folder();
    let mut first = restart::lab(&scratch.0);
    let file = first.make_file(b"file");
    let mut client = first.another_ready(b"one");
    first.by(&mut client, |lab| {
        assert_eq!(settled(lab, &[put(&file), open_handle(BOTH)]), Status4::Ok);
    });
    drop(first);
    let mut lab = restart::lab(&scratch.0);
    let file = lab.make_file(b"file");
    let node = Node::new(&mut lab);
    let mut client = lab.another(b"one");
    lab.by(&mut client, |lab| {
        assert_eq!(settled(lab, &[put(&file), previous(BOTH)]), Status4::Ok);
        let open = lab.state(&[put(&file), previous(BOTH)]).unwrap();
        assert!(node.set(lock(5, 5, false)));
        assert_eq!(lab.status(&[put(&file), reclaim_lock(open)]), Status4::ReclaimConflict);
        assert_eq!(node.sees(0, u64::MAX), None);
        assert!(node.set(None));
        lab.state(&[put(&file), reclaim_lock(open)]).unwrap();
        assert_eq!(node.sees(0, u64::MAX), Some((0, u64::MAX, true)));
    });
}

#[test]
fn hosts_of_nlm_lock_below() {
    let (mut lab, file, node) = lab();
    assert!(node.set(lock(10, u64::MAX, false)));
    assert_eq!(nlm_lock(&mut lab, nlm(&file, b"host", (0, 11)), false), Status::Denied);
    let holder = |lab: &mut Lab, exclusive| {
        let lock = nlm(&file, b"host", (0, 11));
        let arguments = nlm4::TestArguments { cookie: COOKIE, exclusive, lock };
        lab.pair.ask(Test(arguments), |results| match results.outcome {
            nlm4::Tested::Denied(nlm4::Holder { exclusive, svid, owner, offset, len }) => {
                Some((exclusive, svid, owner.0.to_vec(), offset, len))
            }
            nlm4::Tested::Other(status) => {
                assert_eq!(status, Status::Granted);
                None
            }
        })
    };
    assert_eq!(holder(&mut lab, true), Some((false, 0, Vec::new(), 10, 0)));
    assert_eq!(holder(&mut lab, false), None);
    assert_eq!(nlm_lock(&mut lab, nlm(&file, b"host", (0, 10)), false), Status::Granted);
    assert_eq!(node.sees(0, u64::MAX), Some((0, 9, true)));
    assert_eq!(nlm_lock(&mut lab, nlm(&file, b"other", (5, 1)), false), Status::Denied);
    assert_eq!(nlm_unlock(&mut lab, nlm(&file, b"host", (0, 5))), Status::Granted);
    assert_eq!(node.sees(0, u64::MAX), Some((5, 9, true)), "others get it before the answer");
    assert_eq!(nlm_unlock(&mut lab, nlm(&file, b"host", (0, 0))), Status::Granted);
    assert_eq!(node.sees(0, u64::MAX), None);
    assert_eq!(counts(&lab), Counts::default());
}

/// Nothing tells when another node gives something back: it is tried again.
#[test]
fn a_host_waits_for_another_node() {
    let (mut lab, file, node) = lab();
    assert!(node.set(lock(0, 9, true)));
    let wanted = nlm(&file, b"host", (5, 10));
    assert_eq!(nlm_lock(&mut lab, wanted, true), Status::Blocked);
    assert_eq!(nlm_lock(&mut lab, wanted, true), Status::Blocked, "asked again, it waits once");
    lab.wait(MOMENT);
    assert_eq!(counts(&lab), Counts { locks: 0, waiting: 1 });
    // Others are not held up by what waits.
    assert_eq!(nlm_lock(&mut lab, nlm(&file, b"other", (12, 1)), false), Status::Granted);
    assert!(node.set(None));
    lab.wait(MOMENT);
    assert_eq!(counts(&lab), Counts { locks: 1, waiting: 1 }, "it still waits for the other host");
    assert_eq!(node.sees(0, u64::MAX), Some((12, 12, true)), "and has nothing meanwhile");
    assert_eq!(nlm_unlock(&mut lab, nlm(&file, b"other", (12, 1))), Status::Granted);
    lab.wait(MOMENT);
    assert_eq!(counts(&lab), Counts { locks: 1, waiting: 0 });
    assert_eq!(node.sees(0, u64::MAX), Some((5, 14, true)));
    assert_eq!(nlm_lock(&mut lab, wanted, true), Status::Granted);
    assert_eq!(lab.pair.locking.borrow().statistics().granted, 1);
}

/// A host that does not say that it knows loses what it waited for, below as well.
#[test]
fn what_is_granted_to_a_silent_host_is_given_back_below() {
    let (mut lab, file, node) = lab();
    assert!(node.set(lock(0, 9, true)));
    assert_eq!(nlm_lock(&mut lab, nlm(&file, b"host", (0, 1)), true), Status::Blocked);
    assert!(node.set(None));
    lab.wait(MOMENT);
    assert_eq!(node.sees(0, u64::MAX), Some((0, 0, true)));
    lab.wait(Duration::from_secs(130));
    assert_eq!((node.sees(0, u64::MAX), counts(&lab)), (None, Counts::default()));
}

#[test]
fn who_waits_for_another_node_may_cancel() {
    let (mut lab, file, node) = lab();
    assert!(node.set(lock(0, 9, false)));
    let wanted = nlm(&file, b"host", (5, 10));
    assert_eq!(nlm_lock(&mut lab, wanted, true), Status::Blocked);
    let arguments = nlm4::CancelArguments { cookie: COOKIE, block: true, exclusive: true, lock: wanted };
    assert_eq!(lab.pair.ask(Cancel(arguments), |results| results.status), Status::Granted);
    assert!(node.set(None));
    lab.wait(MOMENT);
    assert_eq!((node.sees(0, u64::MAX), counts(&lab)), (None, Counts::default()));
}

/// Several wait; each is tried, and those that share get it together.
#[test]
fn several_wait_for_another_node() {
    let (mut lab, file, node) = lab();
    assert!(node.set(lock(0, u64::MAX, true)));
    let hosts: [&[u8]; 3] = [b"a", b"b", b"c"];
    for (number, host) in (0..).zip(hosts) {
        let wanted = nlm(&file, host, (10 * number, 15));
        assert_eq!(nlm_lock(&mut lab, wanted, true), Status::Blocked);
    }
    lab.wait(MOMENT);
    assert_eq!(counts(&lab), Counts { locks: 0, waiting: 3 });
    assert!(node.set(None));
    lab.wait(MOMENT);
    // The first and the third have no octet in common.
    assert_eq!(counts(&lab), Counts { locks: 2, waiting: 1 });
    assert_eq!((node.sees(0, 14), node.sees(15, 19)), (Some((0, 14, true)), None));
    assert_eq!(node.sees(20, 20), Some((20, 34, true)));
    for host in [0, 2] {
        let wanted = nlm(&file, hosts[host], (10 * host as u64, 15));
        assert_eq!(nlm_unlock(&mut lab, wanted), Status::Granted);
    }
    lab.wait(MOMENT);
    assert_eq!(counts(&lab), Counts { locks: 1, waiting: 0 });
    assert_eq!(node.sees(0, u64::MAX), Some((10, 24, true)));
}

/// Octets that the random requests are about.
const OCTETS: u64 = 24;

/// How owners have each of those octets, the strongest of them.
fn held(pair: &Pair) -> Vec<Option<bool>> {
    let mut octets = vec![None; OCTETS as usize];
    for state in pair.locking.borrow().held(1000) {
        let HeldWhat::Lock { range, exclusive } = state.what else { continue };
        for at in range.first()..=range.last().min(OCTETS - 1) {
            octets[at as usize] = octets[at as usize].max(Some(exclusive));
        }
    }
    octets
}

/// How they are locked below.
fn below(node: &Node) -> Vec<Option<bool>> {
    (0..OCTETS).map(|at| node.sees(at, at).map(|(_, _, exclusive)| exclusive)).collect()
}

/// Whatever is asked for at once, and whatever another node does: each lock of an owner is below as well, and in the end nothing else
/// is.
#[test]
fn whatever_is_held_is_locked_below() {
    sweep("whatever_is_held_is_locked_below", 0..80, |seed| {
        let (mut lab, file, node) = lab();
        let pair = &mut lab.pair;
        let mut random = Random::new(seed);
        let next = |pair: &mut Pair| {
            pair.until(|pair| {
                assert!(held(pair).into_iter().zip(below(&node)).all(|(held, below)| below >= held));
                pair.client.completed()
            });
        };
        let mut under_way = 0;
        for user in 0..120 {
            let (one, other) = (random.below(OCTETS), random.below(OCTETS));
            let (first, last, exclusive) = (one.min(other), one.max(other), random.below(2) == 0);
            let host = [&b"a"[..], b"b", b"c"][random.below(3) as usize];
            let wanted = nlm(&file, host, (first, last - first + 1));
            let (block, none) = (random.below(2) == 0, Chunks::default());
            let (cookie, reclaim, state) = (COOKIE, false, 1);
            let what = random.below(9);
            under_way += u64::from(what > 1);
            match what {
                0 => _ = node.set(lock(first, last.min(first + 3), exclusive)),
                1 => _ = node.set(None),
                2..=4 => pair.begin(&Unlock(nlm4::UnlockArguments { cookie, lock: wanted }), none, user),
                5 => {
                    let arguments = nlm4::CancelArguments { cookie, block: true, exclusive, lock: wanted };
                    pair.begin(&Cancel(arguments), none, user);
                }
                _ => {
                    let arguments =
                        nlm4::LockArguments { cookie, block, exclusive, lock: wanted, reclaim, state };
                    pair.begin(&Lock(arguments), none, user);
                }
            }
            while under_way > random.below(6) {
                next(pair);
                under_way -= 1;
            }
        }
        (0..under_way).for_each(|_| next(pair));
        assert!(node.set(None));
        lab.wait(Duration::from_secs(15));
        assert_eq!(held(&lab.pair), below(&node));
        assert!(lab.pair.locking.borrow().statistics().locks > 0);
    });
}
