//! NLM, NSM and rpcbind, as clients see them: two hosts want the same range, one waits, one restarts.

use std::fs;
use std::time::Duration;

use stag_disk::{Disk, DiskConfig};
use stag_fabric::sim::FaultPlan;
use stag_nfs::client::Operation;
use stag_nfs::server::LockingConfig;
use stag_nfs::state::{KnownHost, Recovered};
use stag_rpc::{CallError, Chunks};
use stag_state::{Counts, LockConfig};
use stag_stores::directory::{DirectoryConfig, DirectoryStore, MayWait};
use stag_testing::Scratch;
use stag_wire::nfs3::{DirectoryName, Handle, LookupArguments, Name, RemoveArguments};
use stag_wire::nlm4::{self, *};
use stag_wire::nsm;
use stag_wire::rpcbind::{self as rpcb, Text, UniversalAddress};
use stag_wire::xdr::{Encode, Overflow, Writer};

use super::hostile::raw;
use super::pair::{Pair, credential};

/// A procedure with its arguments: of NLM, NSM or rpcbind.
macro_rules! operations {
    ($($name:ident $(<$lt:lifetime>)? ($arguments:ty) is $program:expr, $version:expr, $procedure:expr, $reply:ty;)*) => {$(
        struct $name $(<$lt>)? ($arguments);

        impl $(<$lt>)? Encode for $name $(<$lt>)? {
            fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
                writer.value(&self.0)
            }
        }

        impl $(<$lt>)? Operation for $name $(<$lt>)? {
            const PROGRAM: u32 = $program;
            const VERSION: u32 = $version;
            type Reply<'r> = $reply;

            fn procedure(&self) -> u32 {
                $procedure
            }

            fn results_len_max(&self, _: bool) -> u32 {
                2048
            }
        }
    )*};
}

operations! {
    TestCall<'a>(TestArguments<'a>) is nlm4::PROGRAM, 4, 1, TestResults<'r>;
    LockCall<'a>(LockArguments<'a>) is nlm4::PROGRAM, 4, 2, Results<'r>;
    CancelCall<'a>(CancelArguments<'a>) is nlm4::PROGRAM, 4, 3, Results<'r>;
    UnlockCall<'a>(UnlockArguments<'a>) is nlm4::PROGRAM, 4, 4, Results<'r>;
    GrantedCall<'a>(TestArguments<'a>) is nlm4::PROGRAM, 4, 5, Results<'r>;
    LockMessage<'a>(LockArguments<'a>) is nlm4::PROGRAM, 4, 7, ();
    ShareCall<'a>(ShareArguments<'a>) is nlm4::PROGRAM, 4, 20, ShareResults<'r>;
    UnshareCall<'a>(ShareArguments<'a>) is nlm4::PROGRAM, 4, 21, ShareResults<'r>;
    NmLockCall<'a>(LockArguments<'a>) is nlm4::PROGRAM, 4, 22, Results<'r>;
    FreeAllCall<'a>(FreeAllArguments<'a>) is nlm4::PROGRAM, 4, 23, ();
    StatCall<'a>(nsm::StatArguments<'a>) is nsm::PROGRAM, 1, 1, nsm::StatResults;
    NotifyCall<'a>(nsm::NotifyArguments<'a>) is nsm::PROGRAM, 1, 6, ();
    Getport(rpcb::Mapping) is rpcb::PROGRAM, 2, 3, u32;
    Set(rpcb::Mapping) is rpcb::PROGRAM, 2, 1, bool;
    Dump2(()) is rpcb::PROGRAM, 2, 4, rpcb::Mappings<'r>;
    Getaddr<'a>(rpcb::Binding<'a>) is rpcb::PROGRAM, 4, 3, Text<'r>;
    Getversaddr<'a>(rpcb::Binding<'a>) is rpcb::PROGRAM, 4, 9, Text<'r>;
    Dump4(()) is rpcb::PROGRAM, 4, 4, rpcb::Bindings<'r>;
    Gettime(()) is rpcb::PROGRAM, 4, 6, u32;
}

/// Enough passes for a store that answers later.
const PASSES: Duration = Duration::from_secs(5);

const COOKIE: Object<'static> = Object(b"biscuit");

/// A process of a host.
#[derive(Clone, Copy)]
struct Process {
    host: &'static [u8],
    svid: u32,
}

const ALICE: Process = Process { host: b"alice", svid: 7 };
const BOB: Process = Process { host: b"bob", svid: 7 };

fn lock<'a>(file: &'a [u8], process: Process, offset: u64, len: u64) -> Lock<'a> {
    let Process { host, svid } = process;
    Lock { caller: nlm4::Name(host), file: Object(file), owner: Object(b"owner"), svid, offset, len }
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    Try,
    Block,
    Reclaim,
}

struct Locker {
    pair: Pair,
    file: Vec<u8>,
}

impl Locker {
    fn new() -> Locker {
        Locker::of(Pair::new(&["/data,root_squash=no"]))
    }

    fn of(mut pair: Pair) -> Locker {
        let root = pair.root.clone();
        let file = pair.create(&root, b"f");
        Locker { pair, file }
    }

    fn lock(&mut self, process: Process, offset: u64, len: u64, exclusive: bool, how: How) -> Status {
        let arguments = LockArguments {
            cookie: COOKIE,
            block: how == How::Block,
            exclusive,
            lock: lock(&self.file, process, offset, len),
            reclaim: how == How::Reclaim,
            state: 1,
        };
        self.pair.ask(LockCall(arguments), |results| {
            assert_eq!(results.cookie, COOKIE);
            results.status
        })
    }

    fn unlock(&mut self, process: Process, offset: u64, len: u64) -> Status {
        let arguments = UnlockArguments { cookie: COOKIE, lock: lock(&self.file, process, offset, len) };
        self.pair.ask(UnlockCall(arguments), |results| results.status)
    }

    fn cancel(&mut self, process: Process, offset: u64, len: u64, exclusive: bool) -> Status {
        let lock = lock(&self.file, process, offset, len);
        let arguments = CancelArguments { cookie: COOKIE, block: true, exclusive, lock };
        self.pair.ask(CancelCall(arguments), |results| results.status)
    }

    /// The status, and of a conflict: exclusive, svid, offset, length.
    fn test(
        &mut self,
        process: Process,
        offset: u64,
        len: u64,
        exclusive: bool,
    ) -> (Status, Option<(bool, u32, u64, u64)>) {
        let arguments =
            TestArguments { cookie: COOKIE, exclusive, lock: lock(&self.file, process, offset, len) };
        self.pair.ask(TestCall(arguments), |results| {
            assert_eq!(results.cookie, COOKIE);
            let holder = match results.outcome {
                Tested::Denied(holder) => {
                    assert_eq!(holder.owner, Object(b"owner"));
                    Some((holder.exclusive, holder.svid, holder.offset, holder.len))
                }
                Tested::Other(_) => None,
            };
            (results.outcome.status(), holder)
        })
    }

    fn share(&mut self, process: Process, mode: DenyMode, access: ShareAccess) -> Status {
        let (caller, file, owner) = (nlm4::Name(process.host), Object(&self.file), Object(b"o"));
        let share = Share { caller, file, owner, mode, access };
        let arguments = ShareArguments { cookie: COOKIE, share, reclaim: false };
        self.pair.ask(ShareCall(arguments), |results| results.status)
    }

    fn counts(&self) -> Counts {
        self.pair.locking.borrow().statistics().counts
    }

    /// Lets so much time go by.
    fn wait(&mut self, time: Duration) {
        let end = self.pair.world.now() + time;
        while self.pair.world.now() < end {
            let now = self.pair.world.now();
            self.pair.world.advance_before(Some((now + Duration::from_secs(1)).min(end)));
            let now = self.pair.world.now();
            self.pair.poll_server(now);
            stag_runtime::Poller::poll(&mut self.pair.client, now);
        }
    }
}

#[test]
fn two_hosts_contend() {
    let mut locker = Locker::new();
    assert_eq!(locker.lock(ALICE, 10, 10, true, How::Try), Status::Granted);
    assert_eq!(locker.test(BOB, 0, 0, false), (Status::Denied, Some((true, 7, 10, 10))));
    assert_eq!(locker.test(ALICE, 0, 0, true), (Status::Granted, None), "one's own is not in the way");
    assert_eq!(locker.test(BOB, 20, 0, true), (Status::Granted, None));
    assert_eq!(locker.lock(BOB, 19, 1, false, How::Try), Status::Denied);
    assert_eq!(locker.lock(BOB, 20, 0, true, How::Try), Status::Granted, "to the end");
    assert_eq!(locker.test(ALICE, 1 << 40, 1, false), (Status::Denied, Some((true, 7, 20, 0))));
    // A piece from the middle, and a process of the same host.
    assert_eq!(locker.unlock(ALICE, 12, 4), Status::Granted);
    let other = Process { svid: 8, ..ALICE };
    assert_eq!(locker.lock(other, 12, 4, true, How::Try), Status::Granted);
    assert_eq!(locker.lock(other, 12, 5, true, How::Try), Status::Denied);
    assert_eq!(locker.counts(), Counts { locks: 4, waiting: 0 });
    assert_eq!(locker.unlock(ALICE, 0, 0), Status::Granted);
    assert_eq!(locker.unlock(ALICE, 0, 0), Status::Granted, "of nothing");
    assert_eq!(
        locker.unlock(Process { host: b"carol", svid: 1 }, 0, 0),
        Status::Granted,
        "of an unknown host"
    );
    assert_eq!(locker.counts().locks, 2);
}

/// No address to call back: the host asks again, as Linux's does every 30 seconds.
#[test]
fn a_lock_that_is_waited_for() {
    let mut locker = Locker::new();
    assert_eq!(locker.lock(ALICE, 0, 0, true, How::Try), Status::Granted);
    assert_eq!(locker.lock(BOB, 0, 10, true, How::Block), Status::Blocked);
    assert_eq!(locker.lock(BOB, 0, 10, true, How::Block), Status::Blocked, "asked again, it waits once");
    assert_eq!(locker.counts(), Counts { locks: 1, waiting: 1 });
    assert_eq!(locker.unlock(ALICE, 0, 0), Status::Granted);
    locker.wait(PASSES);
    assert_eq!(locker.counts(), Counts { locks: 1, waiting: 0 }, "it is Bob's now");
    assert_eq!(locker.lock(ALICE, 5, 1, false, How::Try), Status::Denied);
    assert_eq!(locker.cancel(BOB, 0, 10, true), Status::Denied, "too late: give it back");
    locker.wait(Duration::from_secs(30));
    assert_eq!(locker.lock(BOB, 0, 10, true, How::Block), Status::Granted);
    // It knows now: it may keep it as long as it likes.
    locker.wait(Duration::from_secs(300));
    assert_eq!(locker.lock(ALICE, 5, 1, false, How::Try), Status::Denied);
}

#[test]
fn a_host_that_never_asks_again_loses_the_lock() {
    let mut locker = Locker::new();
    assert_eq!(locker.lock(ALICE, 0, 0, true, How::Try), Status::Granted);
    assert_eq!(locker.lock(BOB, 0, 10, true, How::Block), Status::Blocked);
    assert_eq!(locker.unlock(ALICE, 0, 0), Status::Granted);
    locker.wait(PASSES);
    locker.wait(Duration::from_secs(110));
    assert_eq!(locker.counts().locks, 1);
    locker.wait(Duration::from_secs(20));
    assert_eq!(locker.counts(), Counts::default());
}

#[test]
fn who_waits_may_cancel() {
    let mut locker = Locker::new();
    assert_eq!(locker.lock(ALICE, 0, 0, false, How::Try), Status::Granted);
    assert_eq!(locker.lock(BOB, 0, 10, true, How::Block), Status::Blocked);
    assert_eq!(locker.cancel(BOB, 0, 9, true), Status::Granted, "another request: nothing waits");
    assert_eq!(locker.counts().waiting, 1);
    assert_eq!(locker.cancel(BOB, 0, 10, true), Status::Granted);
    assert_eq!(locker.unlock(ALICE, 0, 0), Status::Granted);
    assert_eq!(locker.counts(), Counts::default());
}

/// A file is one object of the machine, whichever export it is reached by.
#[test]
fn locks_through_two_exports_of_one_folder_meet() {
    let scratch = Scratch::folder();
    fs::create_dir(scratch.0.join("below")).unwrap();
    fs::write(scratch.0.join("below/f"), "").unwrap();
    let exports = ["/data,root_squash=no", "/same,root_squash=no", "/below,root_squash=no"];
    let locks = (LockingConfig::default(), Recovered::nothing());
    let mut pair = Pair::of(&exports, 1, FaultPlan::default(), locks, |index, pool| {
        let path = [scratch.0.clone(), scratch.0.clone(), scratch.0.join("below")];
        let config = DirectoryConfig::new(&path[index], index as u64);
        // Another thread has no part in simulated time.
        let may_wait = Some(MayWait::Nothing);
        // Locks below meet as well: a file has them through one of the exports only.
        let config = DirectoryConfig { may_wait, locks_below: true, ..config };
        Box::new(DirectoryStore::new(&config, Disk::new(&DiskConfig::default(), &[]), pool.clone()).unwrap())
    });
    let files = ["/data/below", "/same/below", "/below"].map(|path| {
        let directory = pair.mnt(path.as_bytes()).unwrap();
        let what = DirectoryName { directory: Handle(&directory), name: Name(b"f") };
        pair.ask(LookupArguments { what }, |reply| reply.unwrap().object.0.to_vec())
    });
    let mut locker = Locker { pair, file: files[0].clone() };
    assert_eq!(locker.lock(ALICE, 0, 0, true, How::Try), Status::Granted);
    for file in &files {
        locker.file.clone_from(file);
        assert_eq!(locker.lock(BOB, 0, 0, true, How::Try), Status::Denied);
        assert_eq!(locker.lock(BOB, 0, 0, false, How::Try), Status::Denied);
    }
    // Shares, too; and what one handle took, another gives back.
    locker.file.clone_from(&files[1]);
    assert_eq!(locker.share(ALICE, DenyMode::ReadWrite, ShareAccess::ReadWrite), Status::Granted);
    locker.file.clone_from(&files[2]);
    assert_eq!(locker.share(BOB, DenyMode::None, ShareAccess::Read), Status::Denied);
    assert_eq!(locker.unlock(ALICE, 0, 0), Status::Granted);
    assert_eq!(locker.lock(BOB, 0, 0, true, How::Try), Status::Granted);
}

/// FREE_ALL, SM_NOTIFY, and a LOCK with a greater state: each says that the host restarted.
#[test]
fn a_host_that_restarted_has_nothing() {
    for way in 0..3 {
        let mut locker = Locker::new();
        assert_eq!(locker.lock(ALICE, 0, 10, true, How::Try), Status::Granted);
        assert_eq!(locker.lock(BOB, 20, 10, true, How::Try), Status::Granted);
        assert_eq!(locker.lock(ALICE, 20, 10, true, How::Block), Status::Blocked);
        match way {
            0 => locker
                .pair
                .ask(FreeAllCall(FreeAllArguments { name: nlm4::Name(b"alice"), state: 3 }), |()| ()),
            1 => {
                let name = nsm::Name(b"alice.example.org");
                locker.pair.ask(NotifyCall(nsm::NotifyArguments { name, state: 3 }), |()| ());
            }
            _ => {
                let lock = lock(&locker.file, ALICE, 90, 1);
                let arguments = LockArguments {
                    cookie: COOKIE,
                    block: false,
                    exclusive: true,
                    lock,
                    reclaim: false,
                    state: 3,
                };
                assert_eq!(locker.pair.ask(LockCall(arguments), |results| results.status), Status::Granted);
            }
        }
        let own = u32::from(way == 2);
        assert_eq!(locker.counts(), Counts { locks: 1 + own, waiting: 0 }, "way {way}");
        assert_eq!(locker.lock(BOB, 0, 10, true, How::Try), Status::Granted);
        // Of somebody who is not there.
        locker.pair.ask(FreeAllCall(FreeAllArguments { name: nlm4::Name(b"mallory"), state: 3 }), |()| ());
        assert_eq!(locker.counts().locks, 2 + own);
    }
}

/// A host that says by LOCK which NSM state it is in, and by SM_NOTIFY or FREE_ALL that it restarted.
struct Restarting {
    locker: Locker,
}

impl Restarting {
    fn new() -> Restarting {
        Restarting { locker: Locker::new() }
    }

    fn lock(&mut self, offset: u64, state: u32) {
        let lock = lock(&self.locker.file, ALICE, offset, 1);
        let (block, exclusive, reclaim) = (false, true, false);
        let arguments = LockArguments { cookie: COOKIE, block, exclusive, lock, reclaim, state };
        let status = self.locker.pair.ask(LockCall(arguments), |results| results.status);
        assert_eq!(status, Status::Granted);
    }

    fn notify(&mut self, name: &[u8], state: u32) {
        let news = nsm::NotifyArguments { name: nsm::Name(name), state };
        self.locker.pair.ask(NotifyCall(news), |()| ());
    }

    fn free_all(&mut self, state: u32) {
        let news = FreeAllArguments { name: nlm4::Name(b"alice"), state };
        self.locker.pair.ask(FreeAllCall(news), |()| ());
    }

    #[track_caller]
    fn has(&self, locks: u32) {
        assert_eq!(self.locker.counts().locks, locks);
    }
}

/// sm-notify repeats itself until it is answered, under the short name and the long one; a host may also lock before its news
/// gets through. What it has locked since its restart stays.
#[test]
fn news_of_a_restart_is_news_once() {
    let mut alice = Restarting::new();
    alice.lock(0, 3);
    alice.notify(b"alice", 5);
    alice.has(0);
    alice.lock(0, 5);
    for name in [&b"alice"[..], b"alice.example.org", b"ALICE", b"stranger"] {
        alice.notify(name, 5);
        alice.has(1);
    }
    assert_eq!(alice.locker.lock(BOB, 0, 1, true, How::Try), Status::Denied);
    // Older news comes late, and an older state does not make the present one news again.
    alice.notify(b"alice", 3);
    alice.lock(10, 3);
    alice.notify(b"alice", 5);
    alice.has(2);
    // It locks first, and its news comes afterwards.
    alice.lock(0, 7);
    alice.has(1);
    alice.notify(b"alice.example.org", 7);
    alice.has(1);
    // It goes down, says so, and is there again: states are even and odd in turn.
    alice.notify(b"alice", 8);
    alice.has(0);
    alice.lock(0, 9);
    alice.notify(b"alice", 9);
    alice.notify(b"alice", 8);
    alice.has(1);
    alice.notify(b"alice", 11);
    alice.has(0);
    // The numbers wrap.
    alice.notify(b"alice", 1 << 31);
    alice.lock(0, u32::MAX);
    alice.notify(b"alice", u32::MAX);
    alice.has(1);
    alice.notify(b"alice", 1);
    alice.has(0);
}

/// A host whose state is unknown, because it did not say one: it is freed once, and known from then on.
#[test]
fn news_of_a_host_whose_state_is_not_known() {
    let mut alice = Restarting::new();
    alice.lock(0, 0);
    alice.notify(b"alice", 5);
    alice.has(0);
    alice.lock(0, 0);
    alice.notify(b"alice", 5);
    alice.notify(b"alice.example.org", 5);
    alice.has(1);
    alice.notify(b"alice", 7);
    alice.has(0);
}

/// FREE_ALL is said once for each start of a host, which may not count its starts.
#[test]
fn free_all_frees_each_time() {
    for state in [0, 3] {
        let mut alice = Restarting::new();
        for _ in 0..3 {
            alice.lock(0, state);
            alice.free_all(3);
            alice.has(0);
            assert_eq!(alice.locker.lock(BOB, 0, 1, true, How::Try), Status::Granted);
            assert_eq!(alice.locker.unlock(BOB, 0, 1), Status::Granted);
        }
        // What its status monitor repeats of the same start is still no news.
        alice.lock(0, state);
        alice.notify(b"alice", 3);
        alice.has(1);
    }
    // A host without a status monitor says 0 each time; it means it.
    let mut alice = Restarting::new();
    for _ in 0..2 {
        alice.lock(0, 0);
        alice.free_all(0);
        alice.has(0);
    }
}

fn recovered(state: u32) -> Recovered {
    let name: Box<[u8]> = (*b"alice").into();
    Recovered {
        state,
        hosts: vec![KnownHost { address: "192.0.2.1".parse().unwrap(), local: None, name }],
        had_hosts: true,
        journal: None,
    }
}

#[test]
fn after_a_restart_only_claims_are_granted_for_a_while() {
    let config = LockingConfig { grace: Duration::from_secs(45), ..LockingConfig::default() };
    let pair = Pair::with_locking(&["/data,root_squash=no"], 1, FaultPlan::default(), config, recovered(5));
    let mut locker = Locker::of(pair);
    assert_eq!(locker.lock(BOB, 0, 10, true, How::Try), Status::DeniedGracePeriod);
    assert_eq!(locker.lock(BOB, 0, 10, true, How::Block), Status::DeniedGracePeriod);
    assert_eq!(locker.test(BOB, 0, 10, true), (Status::DeniedGracePeriod, None));
    assert_eq!(locker.lock(ALICE, 0, 10, true, How::Reclaim), Status::Granted);
    assert_eq!(locker.lock(BOB, 0, 10, true, How::Reclaim), Status::Denied, "who lies is refused");
    assert_eq!(locker.unlock(ALICE, 0, 5), Status::Granted);
    let share = |reclaim| ShareArguments {
        cookie: COOKIE,
        share: Share {
            caller: nlm4::Name(b"bob"),
            file: Object(&[]),
            owner: Object(b"o"),
            mode: DenyMode::None,
            access: ShareAccess::Read,
        },
        reclaim,
    };
    let status = |results: ShareResults<'_>| results.status;
    assert_eq!(locker.pair.ask(ShareCall(share(false)), status), Status::DeniedGracePeriod);
    assert_eq!(locker.pair.ask(ShareCall(share(true)), status), Status::StaleFh);
    locker.wait(Duration::from_secs(45));
    assert_eq!(locker.lock(BOB, 0, 5, true, How::Try), Status::Granted);
    assert_eq!(locker.lock(BOB, 5, 5, true, How::Try), Status::Denied);
    assert_eq!(locker.lock(ALICE, 90, 1, true, How::Reclaim), Status::DeniedGracePeriod, "too late");
    let stat = nsm::StatArguments { name: nsm::Name(b"x") };
    let expected = nsm::StatResults { outcome: nsm::Outcome::Fail, state: 5 };
    locker.pair.ask(StatCall(stat), |results| assert_eq!(results, expected));
}

#[test]
fn shares_are_kept_apart() {
    let mut locker = Locker::new();
    let file = locker.file.clone();
    let mut ask = |host: &'static [u8], mode, access, take: bool| {
        let share =
            Share { caller: nlm4::Name(host), file: Object(&file), owner: Object(b"o"), mode, access };
        let arguments = ShareArguments { cookie: COOKIE, share, reclaim: false };
        if take {
            locker.pair.ask(ShareCall(arguments), |results| results.status)
        } else {
            locker.pair.ask(UnshareCall(arguments), |results| results.status)
        }
    };
    let (none, write) = (DenyMode::None, DenyMode::Write);
    assert_eq!(ask(b"alice", write, ShareAccess::Read, true), Status::Granted);
    assert_eq!(ask(b"bob", none, ShareAccess::ReadWrite, true), Status::Denied);
    assert_eq!(ask(b"bob", none, ShareAccess::Read, true), Status::Granted);
    assert_eq!(ask(b"alice", write, ShareAccess::Read, false), Status::Granted);
    assert_eq!(ask(b"bob", none, ShareAccess::ReadWrite, true), Status::Granted);
    assert_eq!(ask(b"carol", none, ShareAccess::None, false), Status::Granted, "of nothing");
}

#[test]
fn what_is_no_file_or_not_allowed_is_refused() {
    let mut locker = Locker::new();
    let root = locker.pair.root.clone();
    let file = std::mem::replace(&mut locker.file, root.clone());
    assert_eq!(locker.lock(ALICE, 0, 1, false, How::Try), Status::Failed, "a directory");
    locker.file = vec![7; 32];
    assert_eq!(locker.lock(ALICE, 0, 1, false, How::Try), Status::StaleFh);
    locker.file = vec![7; 1000];
    assert_eq!(locker.lock(ALICE, 0, 1, false, How::Try), Status::StaleFh);
    locker.file = file;
    assert_eq!(locker.lock(ALICE, 2, u64::MAX, false, How::Try), Status::Fbig);
    assert_eq!(locker.unlock(ALICE, 2, u64::MAX), Status::Fbig);
    // Made by root with 0644, so others may read it; not after a chmod.
    locker.pair.credential = Some(credential(9, 9, &[]));
    assert_eq!(locker.lock(ALICE, 0, 1, true, How::Try), Status::Granted);
    locker.pair.credential = Some(credential(0, 0, &[]));
    let attributes = stag_wire::nfs3::SetAttributes { mode: Some(0o600), ..Default::default() };
    let arguments =
        stag_wire::nfs3::SetattrArguments { object: Handle(&locker.file), attributes, guard: None };
    locker.pair.ask(arguments, |reply| assert!(reply.is_ok()));
    locker.pair.credential = Some(credential(9, 9, &[]));
    assert_eq!(locker.lock(ALICE, 5, 1, true, How::Try), Status::Failed);
    assert_eq!(locker.unlock(ALICE, 0, 1), Status::Granted, "whichever user it runs as at the end");

    // A file that is gone is stale; what was locked of it can still be given back.
    locker.pair.credential = Some(credential(0, 0, &[]));
    assert_eq!(locker.lock(ALICE, 0, 1, true, How::Try), Status::Granted);
    let object = DirectoryName { directory: Handle(&root), name: Name(b"f") };
    locker.pair.ask(RemoveArguments { object }, |reply| assert!(reply.is_ok()));
    assert_eq!(locker.lock(ALICE, 5, 1, true, How::Try), Status::StaleFh);
    assert_eq!(locker.unlock(ALICE, 0, 0), Status::Granted);
    assert_eq!(locker.counts(), Counts::default());
}

/// A flood from one host ends at its limit; another host does not notice.
#[test]
fn floods_are_bounded() {
    let locks = LockConfig {
        host_locks_max: 50,
        host_waiting_max: 20,
        handle_octets_max: 4000,
        ..LockConfig::default()
    };
    // All are at one address, which gets three hosts of five.
    let config = LockingConfig { locks, hosts_max: 5, ..LockingConfig::default() };
    let pair =
        Pair::with_locking(&["/data,root_squash=no"], 1, FaultPlan::default(), config, Recovered::nothing());
    let mut locker = Locker::of(pair);
    for index in 0..60 {
        let expected = if index < 50 { Status::Granted } else { Status::DeniedNolocks };
        assert_eq!(locker.lock(ALICE, 2 * index, 1, true, How::Try), expected, "{index}");
    }
    for index in 0..25 {
        let expected = if index < 20 { Status::Blocked } else { Status::DeniedNolocks };
        assert_eq!(locker.lock(BOB, 2 * index, 1, true, How::Block), expected, "{index}");
    }
    assert_eq!(locker.lock(BOB, 1000, 1, true, How::Try), Status::Granted);
    // Hosts are made up one after the other: those without locks make room.
    for name in [&b"c"[..], b"d", b"e"] {
        let process = Process { host: name, svid: 1 };
        assert_eq!(locker.lock(process, 0, 1, true, How::Try), Status::Denied);
    }
    let process = Process { host: b"f", svid: 1 };
    assert_eq!(locker.lock(process, 2000, 1, true, How::Try), Status::Granted);
    let process = Process { host: b"g", svid: 1 };
    assert_eq!(
        locker.lock(process, 3000, 1, true, How::Try),
        Status::DeniedNolocks,
        "three hosts have locks"
    );
    assert_eq!(locker.counts(), Counts { locks: 52, waiting: 20 });
    assert!(locker.pair.locking.borrow().statistics().refused >= 16);
}

/// XDR-f: a netobj of 4 GiB, names too long: garbage, and the server goes on.
#[test]
fn objects_that_lie_are_garbage() {
    let mut locker = Locker::new();
    let garbage = Err(CallError::GarbageArguments);
    for procedure in [1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 21, 22, 23] {
        for len in [1025, u32::MAX, u32::MAX - 3] {
            let target = (nlm4::PROGRAM, 4, procedure);
            assert_eq!(raw(&mut locker.pair, target, Chunks::default(), |writer| writer.u32(len)), garbage);
        }
    }
    for procedure in [1, 2, 3, 4, 6] {
        let target = (nsm::PROGRAM, 1, procedure);
        assert_eq!(raw(&mut locker.pair, target, Chunks::default(), |writer| writer.u32(u32::MAX)), garbage);
    }
    assert_eq!(locker.lock(ALICE, 0, 1, true, How::Try), Status::Granted);
}

/// A `_MSG` is taken, and answered by a Call out; here there is no address to call.
#[test]
fn messages_and_other_procedures() {
    let mut locker = Locker::new();
    let arguments = LockArguments {
        cookie: COOKIE,
        block: false,
        exclusive: true,
        lock: lock(&locker.file, ALICE, 0, 1),
        reclaim: false,
        state: 1,
    };
    locker.pair.ask(LockMessage(arguments), |()| ());
    assert_eq!(locker.counts().locks, 1);
    assert_eq!(locker.pair.ask(NmLockCall(arguments), |results| results.status), Status::Granted);
    let granted = TestArguments { cookie: COOKIE, exclusive: true, lock: lock(&locker.file, ALICE, 0, 1) };
    assert_eq!(locker.pair.ask(GrantedCall(granted), |results| results.status), Status::Denied);
}

/// 8267-4.2-a, 8267-5.1-a: NFS over RDMA under its netid, the rest over TCP.
#[test]
fn rpcbind_tells_where_programs_are() {
    let mut pair = Pair::new(&["/data"]);
    let mapping = |program, version, protocol| rpcb::Mapping { program, version, protocol, port: 0 };
    for (wanted, port) in [
        (mapping(100_021, 4, rpcb::protocol::TCP), 4045),
        (mapping(100_021, 1, rpcb::protocol::TCP), 4045),
        (mapping(100_021, 4, rpcb::protocol::UDP), 0),
        (mapping(100_099, 4, rpcb::protocol::TCP), 0),
    ] {
        assert_eq!(pair.ask(Getport(wanted), |port| port), port, "{wanted:?}");
    }
    assert!(!pair.ask(Set(mapping(100_021, 4, 6)), |done| done), "registrations are refused");
    let nfs = rpcb::Mapping { program: 100_003, version: 3, protocol: 6, port: 2049 };
    let nlm = rpcb::Mapping { program: 100_021, version: 4, protocol: 6, port: 4045 };
    pair.ask(Dump2(()), |list| assert!(list.into_iter().eq([nfs, nlm])));

    let binding = |program, version, netid, address| rpcb::Binding {
        program,
        version,
        netid: Text(netid),
        address: Text(address),
        owner: Text(b""),
    };
    let (rdma, tcp, tcp6) = (rpcb::netid::RDMA, rpcb::netid::TCP, rpcb::netid::TCP6);
    for (wanted, address) in [
        (binding(100_003, 3, rdma, &b""[..]), "0.0.0.0.78.81"),
        (binding(100_003, 3, rdma, b"192.0.2.7.0.111"), "192.0.2.7.78.81"),
        (binding(100_021, 4, tcp, b"192.0.2.7.0.111"), "192.0.2.9.15.205"),
        (binding(100_021, 3, tcp6, b"fd00::7.0.111"), "fd00::7.15.205"),
        (binding(100_021, 4, tcp6, b"nonsense"), "::.15.205"),
        (binding(100_024, 1, tcp, b""), ""),
    ] {
        let expected = Text(address.as_bytes());
        pair.ask(Getaddr(wanted), |found| assert_eq!(found, expected, "{wanted:?}"));
    }
    pair.ask(Getversaddr(binding(100_021, 3, tcp6, b"")), |found| assert_eq!(found, Text(b"")));
    pair.ask(Dump4(()), |list| {
        assert_eq!(list.into_iter().count(), 4);
        assert!(list.into_iter().all(|found| UniversalAddress::parse(found.address.0).is_some()));
    });
    assert!(pair.ask(Gettime(()), |seconds| seconds) >= 1_000_000);
}
