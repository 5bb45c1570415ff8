//! Locks of clients that are taken on the files of a directory as well. Another open file description stands for another process, or
//! another node.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use stag_disk::system::{DescriptionLock, find_lock, set_lock};
use stag_disk::{Disk, DiskConfig};
use stag_stores::directory::{DirectoryConfig, DirectoryStore, MayWait};
use stag_testing::Scratch;
use stag_vfs::{
    Blocked, EntryName, Finished, FsError, ObjectId, OctetLock, Progress, ReadStep, Store, Ticket,
};

use crate::fuse::Fuse;
use crate::lab::{Lab, PAGE};

struct Locks {
    store: DirectoryStore,
    file: ObjectId,
    path: PathBuf,
    scratch: Option<Scratch>,
    /// Tickets that were over while something else was waited for.
    ready: VecDeque<Ticket>,
    now: Duration,
}

const fn lock(first: u64, last: u64, exclusive: bool) -> OctetLock {
    OctetLock { first, last, exclusive }
}

/// Runs a test where the reactor sets locks, and where helpers do.
fn each(test: impl Fn(&mut Locks)) {
    for may_wait in [MayWait::Nothing, MayWait::Device, MayWait::Everything] {
        println!("{may_wait:?}");
        test(&mut Locks::new(may_wait, 256));
    }
}

impl Locks {
    fn new(may_wait: MayWait, descriptors_max: usize) -> Locks {
        let scratch = Scratch::folder();
        let path = scratch.0.join("file");
        fs::write(&path, "").unwrap();
        let config = DirectoryConfig {
            may_wait: Some(may_wait),
            locks_below: true,
            descriptors_max,
            ..DirectoryConfig::new(&scratch.0, 1)
        };
        let pool = Lab::pool(PAGE, 16);
        let disk = Disk::new(&DiskConfig { uring: false, helpers: false, ..DiskConfig::default() }, &[]);
        let store = DirectoryStore::new(&config, disk, pool).unwrap();
        Locks::of(store, path, Some(scratch))
    }

    /// Those of the file at `path`, which is in the root of the store.
    fn of(store: DirectoryStore, path: PathBuf, scratch: Option<Scratch>) -> Locks {
        assert!(store.profile().can.locks_below);
        let name = path.file_name().unwrap().as_bytes().to_vec();
        let (file, now) = (ObjectId { fileid: 0, generation: 0 }, Duration::ZERO);
        let mut locks = Locks { store, file, path, scratch, ready: VecDeque::new(), now };
        locks.file = locks.find(&name);
        locks
    }

    fn find(&mut self, name: &[u8]) -> ObjectId {
        let root = self.store.profile().root;
        let found = self.wait(|store| {
            let directory = store.stat(root)?;
            store.entry(EntryName { directory: &directory, name })
        });
        found.unwrap().object
    }

    /// Another open file description of the file.
    fn other(&self) -> File {
        OpenOptions::new().read(true).write(true).open(&self.path).unwrap()
    }

    fn pass(&mut self) {
        while let Some(ticket) = self.store.poll_later(self.now) {
            self.ready.push_back(ticket);
        }
    }

    fn end(&mut self, wanted: Ticket) -> Result<Finished, FsError> {
        while !self.ready.contains(&wanted) {
            self.pass();
            std::thread::yield_now();
        }
        self.ready.retain(|ticket| *ticket != wanted);
        self.store.finish(wanted, &mut Vec::new())
    }

    /// Runs an operation until it has an answer.
    fn wait<T>(&mut self, mut step: impl FnMut(&mut DirectoryStore) -> ReadStep<T>) -> Result<T, FsError> {
        loop {
            match step(&mut self.store) {
                Ok(found) => return Ok(found),
                Err(Blocked::Fails(error)) => return Err(error),
                Err(Blocked::Waits(ticket)) => assert_eq!(self.end(ticket), Ok(Finished::Ready)),
            }
        }
    }

    fn lock(&mut self, wanted: OctetLock) -> Result<Option<OctetLock>, FsError> {
        let file = self.file;
        self.wait(|store| store.lock_octets(file, &wanted))
    }

    fn test(&mut self, wanted: OctetLock) -> Result<Option<OctetLock>, FsError> {
        let file = self.file;
        self.wait(|store| store.find_lock(file, &wanted))
    }

    fn relax(&mut self, first: u64, last: u64, kept: &[OctetLock]) {
        if let Progress::Later(ticket) = self.store.relax_locks(self.file, first, last, kept) {
            assert_eq!(self.end(ticket), Ok(Finished::Changed));
        }
    }

    /// Lets so much time go by.
    fn later(&mut self, time: Duration) {
        for _ in 0..4 {
            self.now += time / 4;
            self.pass();
        }
    }
}

/// What another sees of octets that it would lock exclusively.
fn seen(other: &File, first: u64, last: u64) -> Option<(u64, u64, bool)> {
    let wanted = DescriptionLock { first, last, exclusive: true };
    find_lock(other.as_fd(), &wanted).unwrap().map(|found| (found.first, found.last, found.exclusive))
}

#[test]
fn others_see_what_is_locked_and_what_is_given_back() {
    each(|locks| {
        let other = locks.other();
        assert_eq!(locks.lock(lock(10, 19, false)), Ok(None));
        assert_eq!(seen(&other, 0, u64::MAX), Some((10, 19, false)));
        assert_eq!(locks.lock(lock(15, u64::MAX, true)), Ok(None));
        assert_eq!(seen(&other, 0, 14), Some((10, 14, false)));
        assert_eq!(seen(&other, 15, u64::MAX), Some((15, u64::MAX, true)));
        // What is stronger already stays as it is.
        assert_eq!(locks.lock(lock(10, 30, false)), Ok(None));
        assert_eq!(seen(&other, 15, 30), Some((15, u64::MAX, true)));
        // It becomes weaker only, whatever is said to be kept.
        locks.relax(0, 29, &[lock(0, 12, true), lock(20, 29, false)]);
        assert_eq!(seen(&other, 0, 19), Some((10, 12, false)));
        assert_eq!(seen(&other, 13, 29), Some((20, 29, false)));
        assert_eq!(seen(&other, 30, u64::MAX), Some((30, u64::MAX, true)));
        locks.relax(0, u64::MAX, &[]);
        assert_eq!(seen(&other, 0, u64::MAX), None);
    });
}

/// What is in the way is told, and what was locked of the rest goes back.
#[test]
fn a_lock_of_another_is_in_the_way() {
    each(|locks| {
        let other = locks.other();
        assert_eq!(locks.lock(lock(0, 4, false)), Ok(None));
        set_lock(other.as_fd(), 20, 29, Some(true)).unwrap();
        assert_eq!(locks.test(lock(0, 100, false)), Ok(Some(lock(20, 29, true))));
        assert_eq!(locks.lock(lock(0, 100, true)), Ok(Some(lock(20, 29, true))));
        assert_eq!(seen(&other, 0, u64::MAX), Some((0, 4, false)), "as before");
        assert_eq!(locks.lock(lock(30, 100, true)), Ok(None));
        set_lock(other.as_fd(), 20, 29, Some(false)).unwrap();
        assert_eq!(locks.lock(lock(5, 29, false)), Ok(None), "both share");
        assert_eq!(locks.lock(lock(25, 25, true)), Ok(Some(lock(20, 29, false))));
        set_lock(other.as_fd(), 0, u64::MAX, None).unwrap();
        assert_eq!(locks.test(lock(0, u64::MAX, true)), Ok(None), "its own is never in the way");
        assert_eq!(locks.lock(lock(25, 25, true)), Ok(None));
    });
}

/// Requests of one file follow each other, however many are under way: what is locked after something was given back stays locked.
#[test]
fn a_lock_that_follows_a_relaxation_holds() {
    let mut locks = Locks::new(MayWait::Everything, 256);
    let other = locks.other();
    let file = locks.file;
    for round in 0..200 {
        assert_eq!(locks.lock(lock(0, 9, true)), Ok(None), "{round}");
        let relaxed = locks.store.relax_locks(file, 0, 9, &[]);
        let Progress::Later(ticket) = relaxed else { panic!("a helper does it") };
        // It is not believed to be locked still.
        let Err(Blocked::Waits(locked)) = locks.store.lock_octets(file, &lock(5, 9, false)) else {
            panic!("a helper does it")
        };
        assert_eq!(locks.end(locked), Ok(Finished::Ready));
        assert_eq!(locks.store.lock_octets(file, &lock(5, 9, false)), Ok(None));
        assert_eq!(locks.end(ticket), Ok(Finished::Changed));
        assert_eq!(seen(&other, 0, 9), Some((5, 9, false)), "{round}");
        locks.relax(0, 9, &[]);
    }
}

/// What was locked and is given back before its operation runs again is locked again.
#[test]
fn an_answer_that_is_no_longer_true_does_not_count() {
    let mut locks = Locks::new(MayWait::Everything, 256);
    let file = locks.file;
    // So that the file is open.
    assert_eq!(locks.test(lock(0, 0, true)), Ok(None));
    let wanted = lock(0, 9, true);
    let Err(Blocked::Waits(first)) = locks.store.lock_octets(file, &wanted) else {
        panic!("a helper does it")
    };
    let Progress::Later(relaxed) = locks.store.relax_locks(file, 0, 9, &[]) else { panic!("it follows") };
    assert_eq!(locks.end(relaxed), Ok(Finished::Changed));
    assert_eq!(locks.end(first), Ok(Finished::Ready));
    let Err(Blocked::Waits(again)) = locks.store.lock_octets(file, &wanted) else { panic!("it is not held") };
    assert_eq!(locks.end(again), Ok(Finished::Ready));
    assert_eq!(locks.store.lock_octets(file, &wanted), Ok(None));
}

/// The descriptor of a file without locks is closed, but not at once.
#[test]
fn files_without_locks_are_closed() {
    each(|locks| {
        locks.later(Duration::from_secs(1));
        let before = locks.store.held().0;
        assert_eq!(locks.lock(lock(0, 9, true)), Ok(None));
        locks.later(Duration::from_secs(100));
        let other = locks.other();
        assert_eq!(seen(&other, 0, 9), Some((0, 9, true)), "a lock stays as long as it is held");
        locks.relax(0, 9, &[]);
        locks.later(Duration::from_secs(1));
        assert!(locks.store.held().0 > before);
        locks.later(Duration::from_secs(100));
        assert_eq!(locks.store.held().0, before);
        assert_eq!(locks.lock(lock(0, 9, true)), Ok(None), "it is opened again");
    });
}

/// More files than there are descriptors for are refused until others have no lock.
#[test]
fn the_number_of_locked_files_is_bounded() {
    let mut locks = Locks::new(MayWait::Nothing, 16);
    let names: Vec<String> = (0..5).map(|number| format!("f{number}")).collect();
    for name in &names {
        let folder = &locks.scratch.as_ref().unwrap().0;
        fs::write(folder.join(name), "").unwrap();
    }
    let files: Vec<ObjectId> = names.iter().map(|name| locks.find(name.as_bytes())).collect();
    let wanted = lock(0, 0, true);
    for file in &files[..4] {
        assert_eq!(locks.store.lock_octets(*file, &wanted), Ok(None));
    }
    assert_eq!(locks.store.lock_octets(files[4], &wanted), Err(FsError::Busy.into()));
    assert_eq!(locks.store.find_lock(files[4], &wanted), Err(FsError::Busy.into()));
    assert_eq!(locks.store.relax_locks(files[0], 0, 0, &[]), Progress::Done(()));
    locks.later(Duration::from_secs(20));
    assert_eq!(locks.store.lock_octets(files[4], &wanted), Ok(None));
}

/// A program that runs cannot be opened for writing, not even by root.
#[test]
fn a_file_that_cannot_be_written_takes_shared_locks_only() {
    for may_wait in [MayWait::Nothing, MayWait::Everything] {
        let mut locks = Locks::new(may_wait, 256);
        fs::copy("/bin/sleep", &locks.path).unwrap();
        fs::set_permissions(&locks.path, fs::Permissions::from_mode(0o755)).unwrap();
        let mut child = loop {
            match Command::new(&locks.path).arg("1000").spawn() {
                // A process that another test starts right now has a copy of each descriptor until it is another program.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
                started => break started.unwrap(),
            }
        };
        let is_writable = OpenOptions::new().write(true).open(&locks.path).is_ok();
        if !is_writable {
            assert_eq!(locks.lock(lock(0, 9, false)), Ok(None));
            assert_eq!(locks.lock(lock(0, 9, true)), Err(FsError::AccessDenied));
            assert_eq!(locks.test(lock(0, 9, true)), Ok(None));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        if is_writable {
            return stag_testing::skipped("this kernel lets programs be written that run");
        }
    }
}

/// A file system that a process serves.
#[test]
fn locks_of_a_fuse_file_system() {
    let Some(fuse) = Fuse::mount() else {
        return stag_testing::skipped("this process may not mount FUSE file systems");
    };
    let pool = Lab::pool(PAGE, 16);
    let disk = Disk::new(&DiskConfig::default(), &[pool.arena()]);
    let config = DirectoryConfig { locks_below: true, ..DirectoryConfig::new(&fuse.scratch.0, 1) };
    let store = DirectoryStore::new(&config, disk, pool).unwrap();
    assert_eq!(store.may_wait(), MayWait::Everything);
    let mut locks = Locks::of(store, fuse.scratch.0.join("f0"), None);
    let other = locks.other();
    set_lock(other.as_fd(), 20, 29, Some(true)).unwrap();
    assert_eq!(locks.lock(lock(0, 100, true)), Ok(Some(lock(20, 29, true))));
    assert_eq!(locks.lock(lock(0, 9, true)), Ok(None));
    assert_eq!(seen(&other, 0, 100), Some((0, 9, true)));
    locks.relax(0, 9, &[]);
    assert_eq!(seen(&other, 0, 100), None);
}

#[test]
fn what_is_no_file_is_not_locked() {
    each(|locks| {
        let root = locks.store.profile().root;
        assert_eq!(locks.wait(|store| store.lock_octets(root, &lock(0, 0, true))), Err(FsError::Invalid));
        let gone = ObjectId { fileid: 1 << 60, generation: 1 };
        assert_eq!(locks.store.relax_locks(gone, 0, 0, &[]), Progress::Done(()));
    });
}

/// Without the option nothing is locked.
#[test]
fn locks_are_taken_below_only_where_that_is_wanted() {
    let scratch = Scratch::folder();
    let disk = Disk::new(&DiskConfig { uring: false, helpers: false, ..DiskConfig::default() }, &[]);
    let config = DirectoryConfig { may_wait: Some(MayWait::Nothing), ..DirectoryConfig::new(&scratch.0, 1) };
    let mut store = DirectoryStore::new(&config, disk, Lab::pool(PAGE, 16)).unwrap();
    let root = store.profile().root;
    assert!(!store.profile().can.locks_below);
    assert_eq!(store.lock_octets(root, &lock(0, 0, true)), Err(FsError::NotSupported.into()));
}
