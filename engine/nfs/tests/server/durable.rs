//! No Reply leaves before the changes it reports are on stable storage (RFC 1813 section 4.8): a directory over a disk
//! that does one operation at a time, on request.

use std::cell::RefCell;

use stag_disk::{Disk, DiskStep, Errno, Steps};
use stag_fabric::sim::FaultPlan;
use stag_nfs::client::{FinishedCall, Operation, Setacl};
use stag_nfs::server::LockingConfig;
use stag_nfs::state::Recovered;
use stag_rpc::Chunks;
use stag_runtime::Poller;
use stag_stores::directory::{DirectoryConfig, DirectoryStore, MayWait};
use stag_testing::Scratch;
use stag_wire::nfs3::*;
use stag_wire::nfsacl::{self, SetaclArguments, mask};
use stag_wire::xdr::Reader;

use super::pair::Pair;

struct Lab {
    pair: Pair,
    steps: Steps,
    _scratch: Scratch,
}

fn lab() -> Lab {
    let scratch = Scratch::folder();
    let (disk, steps) = Disk::stepped(8);
    let disk = RefCell::new(Some(disk));
    let locking = (LockingConfig::default(), Recovered::nothing());
    let pair = Pair::of(&["/data,root_squash=no"], 1, FaultPlan::default(), locking, |_, pool| {
        let config =
            DirectoryConfig { may_wait: Some(MayWait::Nothing), ..DirectoryConfig::new(&scratch.0, 9) };
        Box::new(DirectoryStore::new(&config, disk.take().unwrap(), pool.clone()).unwrap())
    });
    Lab { pair, steps, _scratch: scratch }
}

impl Lab {
    /// Makes a Call that needs `syncs`: it is not answered before the last of them, of which the first ends with
    /// `error`.
    fn ask<O: Operation, R>(
        &mut self,
        operation: &O,
        syncs: usize,
        error: Option<Errno>,
        look: impl FnOnce(O::Reply<'_>) -> R,
    ) -> R {
        let Lab { pair, steps, .. } = self;
        pair.begin(operation, Chunks::default(), 42);
        let mut error = error;
        for left in (1..=syncs).rev() {
            // Everything that can happen without the disk happens.
            pair.until(|_| (steps.waiting().len() == left).then_some(()));
            assert!(matches!(steps.waiting()[0], DiskStep::Sync(_)));
            for _ in 0..100 {
                pair.world.advance();
                let now = pair.world.now();
                pair.poll_server(now);
                pair.client.poll(now);
                assert!(pair.client.completed().is_none(), "answered with {left} syncs to do");
            }
            assert!(steps.step(error.take()));
        }
        let completed = pair.until(|pair| pair.client.completed());
        assert!(steps.waiting().is_empty());
        look(FinishedCall::new(completed).reply::<O>().unwrap())
    }
}

fn place<'a>(directory: &'a [u8], name: &'a [u8]) -> DirectoryName<'a> {
    DirectoryName { directory: Handle(directory), name: Name(name) }
}

#[test]
fn every_procedure_that_changes_something_waits_for_the_disk() {
    let mut lab = lab();
    let root = lab.pair.root.clone();
    let none = SetAttributes::default();
    let create = CreateArguments { place: place(&root, b"f"), how: CreateHow::Exclusive([7; 8]) };
    let file = lab.ask(&create, 2, None, |reply| {
        let made = reply.unwrap();
        assert!(made.attributes.is_some() && made.directory.before.is_some());
        made.object.unwrap().0.to_vec()
    });
    let set = SetAttributes { size: Some(77), ..none };
    let set = SetattrArguments { object: Handle(&file), attributes: set, guard: None };
    lab.ask(&set, 1, None, |reply| assert_eq!(reply.unwrap().object.after.unwrap().size, 77));
    let mkdir = MkdirArguments { place: place(&root, b"d"), attributes: none };
    let folder = lab.ask(&mkdir, 2, None, |reply| reply.unwrap().object.unwrap().0.to_vec());
    let path = Path(stag_wire::xdr::Item::Inline(b"f"));
    let symlink = SymlinkArguments { place: place(&root, b"l"), attributes: none, path };
    lab.ask(&symlink, 1, None, |reply| assert!(reply.is_ok()));
    let mknod = MknodArguments { place: place(&root, b"p"), what: MknodData::Fifo(none) };
    lab.ask(&mknod, 1, None, |reply| assert!(reply.is_ok()));
    let link = LinkArguments { file: Handle(&file), link: place(&folder, b"g") };
    lab.ask(&link, 2, None, |reply| assert_eq!(reply.unwrap().attributes.unwrap().nlink, 2));
    let rename = RenameArguments { from: place(&root, b"f"), to: place(&folder, b"h") };
    lab.ask(&rename, 2, None, |reply| assert!(reply.unwrap().to.before.is_some()));
    let remove = RemoveArguments { object: place(&folder, b"g") };
    lab.ask(&remove, 1, None, |reply| assert!(reply.is_ok()));
    lab.ask(&RemoveArguments { object: place(&folder, b"h") }, 1, None, |reply| assert!(reply.is_ok()));
    let rmdir = RmdirArguments { object: place(&root, b"d") };
    lab.ask(&rmdir, 1, None, |reply| assert!(reply.is_ok()));
    // What fails has nothing to wait for.
    lab.ask(&remove, 0, None, |reply| assert_eq!(reply.unwrap_err().status, Status::Stale));
}

/// The other service that changes attributes shares the store, and what it waits for.
#[test]
fn setacl_waits_for_the_disk() {
    let mut lab = lab();
    let root = lab.pair.root.clone();
    let create =
        CreateArguments { place: place(&root, b"f"), how: CreateHow::Guarded(SetAttributes::default()) };
    let file = lab.ask(&create, 2, None, |reply| reply.unwrap().object.unwrap().0.to_vec());
    // USER_OBJ rw, GROUP_OBJ r, OTHER none.
    let words: [u32; 11] = [3, 3, 1, 0, 6, 4, 0, 4, 0x20, 0, 0];
    let octets: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    let access = Reader::new(&octets).value().unwrap();
    let empty = [0; 8];
    let default = Reader::new(&empty).value().unwrap();
    let setacl = SetaclArguments { object: Handle(&file), mask: mask::ACCESS, access, default };
    lab.ask(&Setacl(setacl), 1, None, |reply: nfsacl::SetaclReply| {
        assert_eq!(reply.unwrap().attributes.unwrap().mode, 0o640);
    });
}

#[test]
fn a_disk_that_fails_is_told_of() {
    let mut lab = lab();
    let root = lab.pair.root.clone();
    let mkdir = MkdirArguments { place: place(&root, b"d"), attributes: SetAttributes::default() };
    lab.ask(&mkdir, 2, Some(Errno::IO), |reply| {
        let failure = reply.unwrap_err();
        assert_eq!(failure.status, Status::Io);
        assert!(failure.attributes.after.is_some());
    });
    let remove = RemoveArguments { object: place(&root, b"d") };
    lab.ask(&remove, 0, None, |reply| assert_eq!(reply.unwrap_err().status, Status::IsDir));
}

fn write_of<'a>(file: &'a [u8], stable: Stable, octets: &'a [u8]) -> WriteArguments<'a> {
    let data = Data(stag_wire::xdr::Item::Inline(octets));
    WriteArguments { file: Handle(file), offset: 0, count: octets.len() as u32, stable, data }
}

impl Lab {
    /// Makes a Call for which the disk does one operation, which ends with `error`.
    fn transfer<O: Operation, R>(
        &mut self,
        operation: &O,
        error: Option<Errno>,
        look: impl FnOnce(O::Reply<'_>) -> R,
    ) -> R {
        let Lab { pair, steps, .. } = self;
        pair.begin(operation, Chunks::default(), 42);
        pair.until(|_| (steps.waiting().len() == 1).then_some(()));
        assert!(steps.step(error));
        let completed = pair.until(|pair| pair.client.completed());
        look(FinishedCall::new(completed).reply::<O>().unwrap())
    }

    fn create(&mut self) -> Vec<u8> {
        let root = self.pair.root.clone();
        let how = CreateHow::Guarded(SetAttributes::default());
        let create = CreateArguments { place: place(&root, b"f"), how };
        self.ask(&create, 2, None, |reply| reply.unwrap().object.unwrap().0.to_vec())
    }
}

/// What a file was before is only told where nothing can have come between (RFC 1813 section 2.6): a client takes all that
/// changed since for its own work, and keeps what it has cached.
#[test]
fn what_a_file_was_before_is_not_told_while_others_may_write_it() {
    let mut lab = lab();
    let file = lab.create();
    for stable in [Stable::Unstable, Stable::FileSync] {
        lab.transfer(&write_of(&file, stable, b"abc"), None, |reply| {
            let done = reply.unwrap().file;
            assert!(done.before.is_none() && done.after.unwrap().size == 3, "{stable:?}: {done:?}");
        });
    }
    lab.transfer(&write_of(&file, Stable::FileSync, b"abc"), Some(Errno::NOSPC), |reply| {
        let failure = reply.unwrap_err();
        assert!(failure.attributes.before.is_none() && failure.attributes.after.is_some());
    });
    let commit = CommitArguments { file: Handle(&file), offset: 0, count: 0 };
    lab.transfer(&commit, None, |reply| {
        let done = reply.unwrap().file;
        assert!(done.before.is_none() && done.after.is_some(), "{done:?}");
    });

    // SETATTR comes at once, but the WRITE that is under way may come between all the same.
    let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    let set = SetattrArguments { object: Handle(&file), attributes: set, guard: None };
    lab.ask(&set, 1, None, |reply| assert!(reply.unwrap().object.before.is_some(), "nothing is under way"));
    let Lab { pair, steps, .. } = &mut lab;
    pair.begin(&write_of(&file, Stable::Unstable, b"xy"), Chunks::default(), 1);
    pair.until(|_| (steps.waiting().len() == 1).then_some(()));
    pair.begin(&set, Chunks::default(), 2);
    pair.until(|_| (steps.waiting().len() == 2).then_some(()));
    assert!(steps.step(None) && steps.step(None));
    let mut asked = 0;
    while asked < 2 {
        let completed = pair.until(|pair| pair.client.completed());
        asked += 1;
        if completed.user == 2 {
            let finished = FinishedCall::new(completed);
            let done = finished.reply::<SetattrArguments<'_>>().unwrap().unwrap().object;
            assert!(done.before.is_none() && done.after.is_some(), "{done:?}");
        }
    }
    lab.ask(&set, 1, None, |reply| assert!(reply.unwrap().object.before.is_some(), "nothing is under way"));
}

/// Somebody's stable WRITE fails for space, and was told by that what the kernel could not write of others' data. Their
/// COMMIT succeeds: the verifier says that they have to write again.
#[test]
fn a_stable_write_that_fails_is_seen_at_the_next_commit() {
    let mut lab = lab();
    let file = lab.create();
    for error in [Errno::NOSPC, Errno::DQUOT, Errno::FBIG] {
        let told =
            lab.transfer(&write_of(&file, Stable::Unstable, b"abc"), None, |reply| reply.unwrap().verifier);
        lab.transfer(&write_of(&file, Stable::FileSync, b"d"), Some(error), |reply| {
            assert!(reply.is_err());
        });
        let commit = CommitArguments { file: Handle(&file), offset: 0, count: 0 };
        let committed = lab.transfer(&commit, None, |reply| reply.unwrap().verifier);
        assert_ne!(committed, told, "{error}");
    }
}
