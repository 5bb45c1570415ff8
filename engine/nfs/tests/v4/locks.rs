//! LOCK, LOCKT, LOCKU, TEST_STATEID, FREE_STATEID; and locks of NLM beside them.

use std::time::Duration;

use stag_nfs::client::Operation;
use stag_wire::nfs4::extended::{ContentKind, SeekArguments, SpaceArguments};
use stag_wire::nfs4::lock::LockKind;
use stag_wire::nfs4::open::{OpenClaim, OpenHow};
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::value::List;
use stag_wire::nfs4::{StateId, Status4};
use stag_wire::nlm4::{self, LockArguments, Object};
use stag_wire::xdr::{Encode, Overflow, Writer};

use super::Lab;
use super::files::{NO_ATTRIBUTES, ROOT, create, put, symlink};
use super::state::{BOTH, READ, WRITE, close, lock_more, lock_new, lockt, locku, open_as, read, write};

const ALL: (u64, u64) = (0, u64::MAX);

/// NLM's LOCK.
struct NlmLock<'a>(LockArguments<'a>);

impl Encode for NlmLock<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.value(&self.0)
    }
}

impl Operation for NlmLock<'_> {
    const PROGRAM: u32 = nlm4::PROGRAM;
    const VERSION: u32 = nlm4::VERSION;
    type Reply<'r> = nlm4::Results<'r>;

    fn procedure(&self) -> u32 {
        nlm4::Procedure::Lock.number()
    }

    fn results_len_max(&self, _: bool) -> u32 {
        2048
    }
}

fn lab() -> (Lab, Vec<u8>) {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let file = lab.make_file(b"file");
    (lab, file)
}

/// 8881-18.10, 18.11, 18.12: an owner's locks have one state id; who is in the way is told.
#[test]
fn owners_lock_and_are_told_of_each_other() {
    let (mut lab, file) = lab();
    let open = lab.open_at(&file, BOTH);
    let first = lab.state(&[put(&file), lock_new(open, b"p", LockKind::Write, (10, 10))]).unwrap();
    assert_eq!(first.seqid, 1);
    let second = lab.state(&[put(&file), lock_more(first, LockKind::Read, (30, 5))]).unwrap();
    assert_eq!((second.seqid, second.other), (2, first.other));
    assert_eq!(lab.status(&[put(&file), lock_more(first, LockKind::Read, (40, 5))]), Status4::OldStateid);
    // The same owner is never in its own way, and the same state id answers.
    let again = lab.state(&[put(&file), lock_new(open, b"p", LockKind::Read, (12, 2))]).unwrap();
    assert_eq!((again.seqid, again.other), (3, first.other));
    let clientid = lab.clientid;
    let mut other = lab.another_ready(b"other");
    lab.by(&mut other, |lab| {
        let open = lab.open_at(&file, BOTH);
        let found = lab.denied(&[put(&file), lock_new(open, b"p", LockKind::WriteWaiting, (0, 100))]);
        assert_eq!(found, (clientid, b"p".to_vec(), 10, 2, LockKind::Write));
        let found = lab.denied(&[put(&file), lockt(b"p", LockKind::Write, (31, 1))]);
        assert_eq!(found, (clientid, b"p".to_vec(), 30, 5, LockKind::Read));
        assert_eq!(lab.status(&[put(&file), lockt(b"p", LockKind::Read, (31, 1))]), Status4::Ok);
        assert_eq!(lab.status(&[put(&file), lock_new(open, b"p", LockKind::Read, (12, 2))]), Status4::Ok);
    });
    assert_eq!(lab.status(&[put(&file), lockt(b"p", LockKind::Read, ALL)]), Status4::Ok);
    let freed = lab.state(&[put(&file), locku(again, ALL)]).unwrap();
    assert_eq!(freed.seqid, 4);
    lab.by(&mut other, |lab| {
        assert_eq!(lab.status(&[put(&file), lockt(b"p", LockKind::Write, ALL)]), Status4::Ok);
    });
    // To the end of the file is all ones.
    lab.state(&[put(&file), lock_more(freed, LockKind::Write, (50, u64::MAX))]).unwrap();
    lab.by(&mut other, |lab| {
        let found = lab.denied(&[put(&file), lockt(b"q", LockKind::Read, (u64::MAX, 1))]);
        assert_eq!(found, (clientid, b"p".to_vec(), 50, u64::MAX, LockKind::Write));
    });
}

#[test]
fn locks_that_are_refused() {
    let (mut lab, file) = lab();
    let root = lab.root();
    let reads = lab.open_at(&file, READ);
    let link = lab.handle(&[put(&root), create(symlink(b"file"), b"link", NO_ATTRIBUTES)]).unwrap();
    let forged = StateId { seqid: 1, other: [9; 12] };
    let new = |open, kind, range| lock_new(open, b"p", kind, range);
    lab.statuses(
        &file,
        &[
            (new(reads, LockKind::Write, ALL), Status4::OpenMode),
            (new(reads, LockKind::Read, (0, 0)), Status4::Inval),
            (new(reads, LockKind::Read, (3, u64::MAX - 1)), Status4::Inval),
            (new(forged, LockKind::Read, ALL), Status4::BadStateid),
            (new(StateId::ANONYMOUS, LockKind::Read, ALL), Status4::BadStateid),
            (lock_more(reads, LockKind::Read, ALL), Status4::BadStateid),
            (locku(reads, ALL), Status4::BadStateid),
            (lockt(b"p", LockKind::Read, (0, 0)), Status4::Inval),
            (new(reads, LockKind::Read, (1, u64::MAX - 1)), Status4::Ok),
        ],
    );
    for (handle, expected) in [(&root, Status4::IsDir), (&link, Status4::Symlink)] {
        lab.statuses(handle, &[(lockt(b"p", LockKind::Read, ALL), expected)]);
        lab.statuses(handle, &[(new(reads, LockKind::Read, ALL), expected)]);
    }
    // So the text of LOCKU says (8881-18.12.3), though its list of errors does not; elsewhere the state is of another object.
    let own = lab.state(&[put(&file), lock_new(reads, b"q", LockKind::Read, (7, 1))]).unwrap();
    assert_eq!(lab.status(&[ROOT, locku(own, ALL)]), Status4::IsDir);
    assert_eq!(lab.status(&[put(&root), locku(own, ALL)]), Status4::BadStateid);
    assert_eq!(lab.status(&[put(&file), locku(own, ALL)]), Status4::Ok);
    assert_eq!(lab.status(&[ROOT, lockt(b"p", LockKind::Read, ALL)]), Status4::IsDir);
    assert_eq!(lab.status(&[lockt(b"p", LockKind::Read, ALL)]), Status4::NoFilehandle);
    // A lock that was denied to a new owner leaves no state behind.
    let mut other = lab.another_ready(b"other");
    lab.by(&mut other, |lab| {
        let open = lab.open_at(&file, BOTH);
        lab.denied(&[put(&file), new(open, LockKind::Write, ALL)]);
        assert_eq!(lab.status(&[put(&file), close(open)]), Status4::Ok);
        let clientid = lab.clientid;
        assert_eq!(lab.status(&[Argument4::DestroyClientid(clientid)]), Status4::ClientidBusy);
    });
}

/// 8881-9.8-a
#[test]
fn a_close_frees_locks() {
    let (mut lab, file) = lab();
    let open = lab.open_at(&file, BOTH);
    let lock = lab.state(&[put(&file), lock_new(open, b"p", LockKind::Write, ALL)]).unwrap();
    // A lock's state id reads and writes, too.
    assert_eq!(lab.status(&[put(&file), write(lock, 0, b"x"), read(lock, 0, 1)]), Status4::Ok);
    assert_eq!(lab.status(&[put(&file), close(lock)]), Status4::BadStateid);
    assert_eq!(lab.status(&[put(&file), close(open)]), Status4::Ok);
    assert_eq!(lab.status(&[put(&file), read(lock, 0, 1)]), Status4::BadStateid);
    let mut other = lab.another_ready(b"other");
    lab.by(&mut other, |lab| {
        assert_eq!(lab.status(&[put(&file), lockt(b"q", LockKind::Write, ALL)]), Status4::Ok);
    });
}

/// 8881-18.38.3, 18.48.3
#[test]
fn state_ids_are_tested_and_freed() {
    let (mut lab, file) = lab();
    let open = lab.open_at(&file, BOTH);
    let lock = lab.state(&[put(&file), lock_new(open, b"p", LockKind::Write, ALL)]).unwrap();
    let forged = StateId { seqid: 1, other: [9; 12] };
    let later = StateId { seqid: 9, ..open };
    let all = [open, lock, forged, later, StateId::ANONYMOUS];
    lab.compound(&[Argument4::TestStateid(List::new(&all))], |status, outcomes| {
        let Some(Outcome4::TestStateid(Ok(found))) = outcomes.last() else { panic!("{status:?}") };
        let found: Vec<_> = found.iter().collect();
        let bad = Status4::BadStateid;
        assert_eq!(found, [Status4::Ok, Status4::Ok, bad, bad, bad]);
    });
    let free = Argument4::FreeStateid;
    assert_eq!(lab.status(&[free(open)]), Status4::LocksHeld);
    assert_eq!(lab.status(&[free(lock)]), Status4::LocksHeld);
    assert_eq!(lab.status(&[free(forged)]), Status4::BadStateid);
    let lock = lab.state(&[put(&file), locku(lock, ALL)]).unwrap();
    assert_eq!(lab.status(&[free(lock)]), Status4::Ok);
    assert_eq!(lab.status(&[free(lock)]), Status4::BadStateid);
    assert_eq!(lab.status(&[put(&file), close(open)]), Status4::Ok);
}

fn nlm_lock(lab: &mut Lab, file: &[u8], exclusive: bool) -> nlm4::Status {
    let arguments = LockArguments {
        cookie: Object(b"c"),
        block: false,
        exclusive,
        lock: nlm4::Lock {
            caller: nlm4::Name(b"host"),
            file: Object(file),
            owner: Object(b"process"),
            svid: 7,
            offset: 0,
            len: 100,
        },
        reclaim: false,
        state: 1,
    };
    lab.pair.ask(NlmLock(arguments), |results| results.status)
}

/// One table for NLM and version 4.
#[test]
fn hosts_of_nlm_and_clients_exclude_each_other() {
    let (mut lab, file) = lab();
    let open = lab.open_at(&file, BOTH);
    let lock = lab.state(&[put(&file), lock_new(open, b"p", LockKind::Write, (50, 100))]).unwrap();
    assert_eq!(nlm_lock(&mut lab, &file, true), nlm4::Status::Denied);
    lab.state(&[put(&file), locku(lock, ALL)]).unwrap();
    assert_eq!(nlm_lock(&mut lab, &file, true), nlm4::Status::Granted);
    let found = lab.denied(&[put(&file), lockt(b"p", LockKind::Read, ALL)]);
    assert_eq!(found, (0, b"process".to_vec(), 0, 100, LockKind::Write), "a host has no client id");
}

/// DENY is for opens, and for who has none in version 4: not for Calls of version 3, which know no opens
/// (`does-deny-of-nfsv4-bind-version-3.md`).
#[test]
fn a_share_binds_special_state_ids_and_not_version_3() {
    use stag_wire::nfs3::{Data, Handle, ReadArguments, Stable, WriteArguments};
    let (mut lab, file) = lab();
    let mut other = lab.another_ready(b"other");
    let denies = open_as(b"s", (BOTH, BOTH), OpenHow::NoCreate, OpenClaim::Handle);
    lab.by(&mut other, |lab| assert_eq!(lab.status(&[put(&file), denies]), Status4::Ok));
    let space = SpaceArguments { stateid: StateId::ANONYMOUS, offset: 0, length: 10 };
    let refused = [
        read(StateId::ANONYMOUS, 0, 1),
        write(StateId::ANONYMOUS, 0, b"x"),
        Argument4::Allocate(space),
        Argument4::Deallocate(space),
        Argument4::Seek(SeekArguments { stateid: StateId::ANONYMOUS, offset: 0, what: ContentKind::Data }),
    ];
    lab.statuses(&file, &refused.map(|operation| (operation, Status4::Locked)));
    let (handle, stable) = (Handle(&file), Stable::FileSync);
    let data = Data(stag_wire::xdr::Item::Inline(b"y"));
    let arguments = WriteArguments { file: handle, offset: 0, count: 1, stable, data };
    assert!(lab.pair.ask(arguments, |reply| reply.is_ok()));
    assert!(lab.pair.ask(ReadArguments { file: handle, offset: 0, count: 1 }, |reply| reply.is_ok()));
}

/// 8881-8.4.3-a: a client that is silent keeps what it holds until somebody wants it.
#[test]
fn a_lapsed_client_makes_way_for_others() {
    let (mut lab, file) = lab();
    let mut silent = lab.another_ready(b"silent");
    let denies = open_as(b"s", (WRITE, WRITE), OpenHow::NoCreate, OpenClaim::Handle);
    let opens = open_as(b"o", (BOTH, 0), OpenHow::NoCreate, OpenClaim::Handle);
    let (held, lock) = lab.by(&mut silent, |lab| {
        let held = lab.state(&[put(&file), denies]).unwrap();
        (held, lab.state(&[put(&file), lock_new(held, b"p", LockKind::Write, ALL)]).unwrap())
    });
    assert_eq!(lab.status(&[put(&file), opens]), Status4::ShareDenied);
    lab.wait(Duration::from_secs(100));
    // Nobody wanted it: it goes on.
    lab.by(&mut silent, |lab| {
        assert_eq!(lab.status(&[put(&file), write(lock, 0, b"x")]), Status4::Ok);
    });
    assert_eq!(lab.status(&[put(&file), opens]), Status4::ShareDenied);
    assert_eq!(nlm_lock(&mut lab, &file, true), nlm4::Status::Denied);
    lab.wait(Duration::from_secs(100));
    assert_eq!(nlm_lock(&mut lab, &file, true), nlm4::Status::Granted);
    let open = lab.state(&[put(&file), opens]).unwrap();
    assert_eq!(lab.status(&[put(&file), write(open, 0, b"y")]), Status4::Ok);
    // It has lost all, and must start again.
    lab.by(&mut silent, |lab| {
        let sequence = lab.sequence(0);
        assert_eq!(lab.pair.status(2, &[sequence, put(&file), close(held)]), Status4::BadSession);
    });
    let mut again = lab.another_ready(b"silent");
    lab.by(&mut again, |lab| {
        assert_eq!(lab.status(&[put(&file), close(held)]), Status4::BadStateid);
        assert_eq!(lab.status(&[put(&file), denies]), Status4::ShareDenied);
    });
}

/// 8881-18.50.3-a, 8881-18.35.4-e
#[test]
fn what_a_client_held_ends_with_it() {
    let (mut lab, file) = lab();
    let mut other = lab.another_ready(b"other");
    let denies = open_as(b"s", (WRITE, BOTH), OpenHow::NoCreate, OpenClaim::Handle);
    let held = lab.by(&mut other, |lab| lab.state(&[put(&file), denies]).unwrap());
    assert_eq!(lab.status(&[put(&file), denies]), Status4::ShareDenied);
    // It restarts: until its next incarnation is confirmed all stays.
    let restarted = super::client::exchange_id(b"other", 2);
    let (clientid, sequence_id) = lab.pair.compound(2, &[restarted], |answer| {
        let [Outcome4::ExchangeId(Ok(exchanged))] = answer.outcomes[..] else { panic!("{answer:?}") };
        (exchanged.clientid, exchanged.sequence_id)
    });
    assert_eq!(lab.status(&[put(&file), denies]), Status4::ShareDenied);
    let create = super::client::create_session(clientid, sequence_id, super::client::FORE);
    assert_eq!(lab.pair.status(2, &[create]), Status4::Ok);
    let open = lab.state(&[put(&file), denies]).unwrap();
    assert_ne!(open.other, held.other);
}
