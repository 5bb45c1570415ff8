//! What clients held before a restart of the server, they take back in the grace period.

use std::path::Path;
use std::time::Duration;

use stag_nfs::callout::NoCallOut;
use stag_nfs::known_clients::KnownClients;
use stag_nfs::server::{Locking, LockingConfig};
use stag_nfs::state::Recovered;
use stag_testing::Scratch;
use stag_wire::nfs4::lock::{LockArguments4, LockKind, Locker, NewLocker};
use stag_wire::nfs4::open::{DelegationType, OpenClaim, OpenHow, StateOwner};
use stag_wire::nfs4::operation::Argument4;
use stag_wire::nfs4::{Opaque, StateId, Status4};

use super::Lab;
use super::files::put;
use super::state::{BOTH, READ, WRITE, lock_new, lockt, open_as, open_handle, read, write};

const ALL: (u64, u64) = (0, u64::MAX);

/// A server that knows what an earlier one wrote into this directory.
pub(crate) fn lab(directory: &Path) -> Lab {
    let lab = Lab::new(&["/data,root_squash=no"]);
    let known = KnownClients::from_directory(directory).unwrap();
    let locking =
        Locking::new(LockingConfig::default(), Recovered::nothing(), Box::new(NoCallOut::default()));
    *lab.pair.locking.borrow_mut() = locking.with_clients(known, 0);
    lab
}

pub(crate) fn previous(access: u32) -> Argument4<'static> {
    open_as(b"alice", (access, 0), OpenHow::NoCreate, OpenClaim::Previous(DelegationType::None))
}

pub(crate) fn reclaim_lock(open_stateid: StateId) -> Argument4<'static> {
    let owner = StateOwner { clientid: 0, owner: Opaque(b"p") };
    let locker = Locker::New(NewLocker { open_seqid: 0, open_stateid, lock_seqid: 0, owner });
    let (offset, length) = ALL;
    Argument4::Lock(LockArguments4 { kind: LockKind::Write, is_reclaim: true, offset, length, locker })
}

const COMPLETE: Argument4<'static> = Argument4::ReclaimComplete(false);

/// Asks until the client is on record.
pub(crate) fn settled(lab: &mut Lab, operations: &[Argument4<'_>]) -> Status4 {
    loop {
        let status = lab.status(operations);
        if status != Status4::Delay {
            return status;
        }
        std::thread::yield_now();
    }
}

/// 8881-8.4.2-a, 8881-8.4.2.1-a, 8881-18.51.3-a
#[test]
fn clients_take_back_what_they_held() {
    let scratch = Scratch::folder();
    let mut first = lab(&scratch.0);
    let file = first.make_file(b"file");
    for name in [&b"one"[..], b"two"] {
        let mut client = first.another_ready(name);
        first.by(&mut client, |lab| {
            assert_eq!(settled(lab, &[put(&file), open_handle(READ)]), Status4::Ok);
        });
    }
    drop(first);

    let mut lab = lab(&scratch.0);
    let file = lab.make_file(b"file");
    // Who is not known takes nothing, neither old nor new.
    assert_eq!(
        lab.status(&[put(&file), previous(READ)]),
        Status4::NoGrace,
        "it has said that it has reclaimed"
    );
    assert_eq!(lab.status(&[put(&file), open_handle(READ)]), Status4::Grace);
    assert_eq!(lab.status(&[put(&file), lockt(b"p", LockKind::Read, ALL)]), Status4::Grace);
    assert_eq!(lab.status(&[put(&file), read(StateId::ANONYMOUS, 0, 1)]), Status4::Grace);
    assert_eq!(lab.status(&[put(&file), read(StateId::READ_BYPASS, 0, 1)]), Status4::Ok);
    let mut stranger = lab.another(b"stranger");
    lab.by(&mut stranger, |lab| {
        assert_eq!(lab.status(&[put(&file), previous(READ)]), Status4::ReclaimBad);
        assert_eq!(lab.status(&[put(&file), open_handle(READ)]), Status4::Grace);
    });
    let mut one = lab.another(b"one");
    let lock = lab.by(&mut one, |lab| {
        assert_eq!(settled(lab, &[put(&file), previous(BOTH)]), Status4::Ok);
        let open = lab.state(&[put(&file), previous(BOTH)]).unwrap();
        assert_eq!(lab.status(&[put(&file), lock_new(open, b"p", LockKind::Write, ALL)]), Status4::Grace);
        let lock = lab.state(&[put(&file), reclaim_lock(open)]).unwrap();
        assert_eq!(lab.status(&[put(&file), write(lock, 0, b"x")]), Status4::Ok);
        assert_eq!(lab.status(&[COMPLETE]), Status4::Ok);
        assert_eq!(lab.status(&[COMPLETE]), Status4::CompleteAlready);
        assert_eq!(lab.status(&[put(&file), previous(BOTH)]), Status4::NoGrace);
        assert_eq!(lab.status(&[put(&file), open_handle(READ)]), Status4::Grace, "another one is missing");
        lock
    });
    let mut two = lab.another(b"two");
    lab.by(&mut two, |lab| {
        let open = loop {
            match lab.state(&[put(&file), previous(BOTH)]) {
                Err(Status4::Delay) => std::thread::yield_now(),
                open => break open.unwrap(),
            }
        };
        assert_eq!(lab.status(&[put(&file), reclaim_lock(open)]), Status4::ReclaimConflict);
        assert_eq!(lab.status(&[COMPLETE]), Status4::Ok);
    });
    // Grace is over as soon as the last of them is back and the file says so.
    lab.by(&mut one, |lab| {
        while lab.status(&[put(&file), open_handle(WRITE)]) == Status4::Grace {
            std::thread::yield_now();
        }
        assert_eq!(lab.status(&[put(&file), open_handle(WRITE), read(lock, 0, 1)]), Status4::Ok);
    });
    assert_eq!(settled(&mut lab, &[put(&file), open_handle(READ)]), Status4::Ok);
    assert_eq!(lab.status(&[put(&file), previous(READ)]), Status4::NoGrace);
}

/// 8881-8.4.2-a: at the latest after a term.
#[test]
fn grace_ends_without_those_who_do_not_come() {
    let scratch = Scratch::folder();
    let mut first = lab(&scratch.0);
    let file = first.make_file(b"file");
    let mut client = first.another_ready(b"one");
    first.by(&mut client, |lab| {
        assert_eq!(settled(lab, &[put(&file), open_handle(READ)]), Status4::Ok);
    });
    drop(first);
    let mut lab = lab(&scratch.0);
    let file = lab.make_file(b"file");
    assert_eq!(lab.status(&[put(&file), open_handle(READ)]), Status4::Grace);
    lab.wait(Duration::from_secs(89));
    assert_eq!(lab.status(&[put(&file), open_handle(READ)]), Status4::Grace);
    lab.wait(Duration::from_secs(2));
    while lab.status(&[put(&file), open_handle(READ)]) == Status4::Grace {
        std::thread::yield_now();
    }
    let mut one = lab.another(b"one");
    lab.by(&mut one, |lab| {
        assert_eq!(lab.status(&[put(&file), previous(READ)]), Status4::NoGrace);
    });
}

/// A client that ended is not waited for.
#[test]
fn who_has_ended_does_not_delay_others() {
    let scratch = Scratch::folder();
    let mut first = lab(&scratch.0);
    let mut client = first.another_ready(b"one");
    let (session, clientid) = first.by(&mut client, |lab| (lab.session_id(), lab.clientid));
    assert_eq!(first.pair.status(2, &[Argument4::DestroySession(session)]), Status4::Ok);
    assert_eq!(first.pair.status(2, &[Argument4::DestroyClientid(clientid)]), Status4::Ok);
    let (session, clientid) = (first.session_id(), first.clientid);
    assert_eq!(first.pair.status(2, &[Argument4::DestroySession(session)]), Status4::Ok);
    assert_eq!(first.pair.status(2, &[Argument4::DestroyClientid(clientid)]), Status4::Ok);
    drop(first);
    let mut lab = lab(&scratch.0);
    let file = lab.make_file(b"file");
    assert_eq!(settled(&mut lab, &[put(&file), open_handle(READ)]), Status4::Ok);
}
