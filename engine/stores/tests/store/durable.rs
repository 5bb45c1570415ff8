//! The changes that are on stable storage before a Call is answered (RFC 1813 section 4.8), seen on a disk that does
//! one operation at a time, on request.

use std::time::Duration;

use crate::procedures::Procedures;
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use stag_disk::{Disk, DiskStep, Errno, Steps};
use stag_stores::directory::MayWait;
use stag_testing::Scratch;
use stag_vfs::{
    CreateMode, Finished, FsError, ObjectId, Progress, Special, Stability, Ticket, TimeUpdate, Timestamp,
    Update, UserIdentity, WriteData,
};

use crate::lab::{Lab, NONE, PAGE, is_root};

const ROOT: UserIdentity = UserIdentity::ROOT;
const NOW: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };

/// A directory store whose disk waits for steps.
fn stepped(sync: bool) -> (Procedures, Steps, Scratch) {
    let scratch = Scratch::folder();
    let pool = Lab::pool(PAGE, 64);
    let (disk, steps) = Disk::stepped(8);
    // What else there is to wait for comes at once.
    let store = Lab::open_by(disk, &scratch, &pool, |config| {
        (config.sync, config.may_wait) = (sync, Some(MayWait::Nothing));
    });
    (store, steps, scratch)
}

fn ticket(progress: Progress<()>) -> Ticket {
    let Progress::Later(ticket) = progress else { panic!("it has to wait for the disk") };
    ticket
}

fn poll(store: &mut Procedures) -> Option<Ticket> {
    store.poll_later(Duration::ZERO)
}

/// Objects that are synced, and nothing else, until what was changed is on stable storage. Each sync is needed: it is not
/// over before the last.
fn settle(store: &mut Procedures, steps: &Steps) -> Vec<u64> {
    let wanted = ticket(store.commit_changes());
    assert_eq!(poll(store), None, "the disk has not done anything");
    let mut synced = Vec::new();
    loop {
        let DiskStep::Sync(number) = steps.waiting()[0] else { panic!("{:?}", steps.waiting()) };
        synced.push(number);
        assert!(steps.step(None));
        if let Some(ready) = poll(store) {
            assert_eq!((ready, steps.waiting().len()), (wanted, 0));
            assert_eq!(store.finish(ready, &mut Vec::new()), Ok(Finished::Commit));
            synced.sort_unstable();
            return synced;
        }
    }
}

fn both(a: ObjectId, b: ObjectId) -> Vec<u64> {
    vec![a.fileid.min(b.fileid), a.fileid.max(b.fileid)]
}

#[test]
fn each_procedure_syncs_what_it_changed() {
    let (mut store, steps, _scratch) = stepped(true);
    let root = store.root();
    let unchecked = CreateMode::Unchecked(NONE);
    let file = store.create(&ROOT, root, b"f", &CreateMode::Guarded(NONE), NOW).unwrap();
    assert_eq!(settle(&mut store, &steps), both(root, file), "CREATE: the name, and owner, mode and times");
    let folder = store.make_directory(&ROOT, root, b"d", &NONE, NOW).unwrap();
    assert_eq!(settle(&mut store, &steps), both(root, folder), "MKDIR");
    store.make_symlink(&ROOT, root, b"l", b"f", &NONE, NOW).unwrap();
    assert_eq!(settle(&mut store, &steps), [root.fileid], "SYMLINK: a link cannot be opened");
    store.make_special(&ROOT, folder, b"p", Special::Fifo, &NONE, NOW).unwrap();
    assert_eq!(settle(&mut store, &steps), [folder.fileid], "MKNOD");
    let set = Update { size: Some(10), mode: Some(0o600), ..NONE };
    store.set_attributes(&ROOT, file, &set, NOW).unwrap();
    assert_eq!(settle(&mut store, &steps), [file.fileid], "SETATTR: the new length too");
    let set = Update { mtime: TimeUpdate::Now, ..NONE };
    store.set_attributes(&ROOT, folder, &set, NOW).unwrap();
    assert_eq!(settle(&mut store, &steps), [folder.fileid], "SETATTR of a directory");
    // The file is there: CREATE is a SETATTR.
    assert_eq!(store.create(&ROOT, root, b"f", &unchecked, NOW), Ok(file));
    assert_eq!(settle(&mut store, &steps), [file.fileid], "CREATE of an existing file");
    store.link(&ROOT, file, folder, b"g", NOW).unwrap();
    assert_eq!(settle(&mut store, &steps), both(file, folder), "LINK: the name, and the number of links");
    store.rename(&ROOT, (root, b"f"), (folder, b"h"), NOW).unwrap();
    assert_eq!(settle(&mut store, &steps), both(root, folder), "RENAME: both directories");
    store.rename(&ROOT, (folder, b"h"), (folder, b"i"), NOW).unwrap();
    assert_eq!(settle(&mut store, &steps), [folder.fileid], "RENAME within one");
    store.remove(&ROOT, folder, b"g", NOW).unwrap();
    assert_eq!(settle(&mut store, &steps), [folder.fileid], "REMOVE");
    for name in [&b"i"[..], b"p"] {
        store.remove(&ROOT, folder, name, NOW).unwrap();
    }
    store.remove_directory(&ROOT, root, b"d", NOW).unwrap();
    assert_eq!(settle(&mut store, &steps), both(root, folder), "RMDIR");
}

/// A verifier that is only in memory would let a CREATE that is repeated after a crash fail.
#[test]
fn an_exclusive_create_keeps_its_verifier_and_is_synced_again_when_repeated() {
    let (mut store, steps, _scratch) = stepped(true);
    let (root, how) = (store.root(), CreateMode::Exclusive(*b"verifier", Update::default()));
    let file = store.create(&ROOT, root, b"f", &how, NOW).unwrap();
    // The Reply was lost, or is not sent yet.
    assert_eq!(settle(&mut store, &steps), both(root, file));
    assert_eq!(store.create(&ROOT, root, b"f", &how, NOW), Ok(file));
    assert_eq!(settle(&mut store, &steps), both(root, file));
    let other = CreateMode::Exclusive(*b"another1", Update::default());
    assert_eq!(store.create(&ROOT, root, b"f", &other, NOW), Err(FsError::Exists));
    assert_eq!(store.commit_changes(), Progress::Done(()));
}

/// Who comes while a sync is under way is not covered by it; all those share the next.
#[test]
fn many_changes_of_one_directory_share_syncs() {
    let (mut store, steps, _scratch) = stepped(true);
    let root = store.root();
    let mut tickets = Vec::new();
    let mut make = |store: &mut Procedures, name: String| {
        store.make_symlink(&ROOT, root, name.as_bytes(), b"x", &NONE, NOW).unwrap();
        tickets.push(ticket(store.commit_changes()));
    };
    // Two before the disk begins, ten when it has.
    for name in 0..2 {
        make(&mut store, format!("{name}"));
    }
    assert_eq!(poll(&mut store), None);
    for name in 2..12 {
        make(&mut store, format!("{name}"));
        assert_eq!(poll(&mut store), None);
    }
    assert_eq!(steps.waiting(), [DiskStep::Sync(root.fileid)], "one at a time");
    let mut done = Vec::new();
    let mut finish = |store: &mut Procedures| {
        while let Some(ready) = poll(store) {
            assert_eq!(store.finish(ready, &mut Vec::new()), Ok(Finished::Commit));
            done.push(ready);
        }
        done.clone()
    };
    assert!(steps.step(None));
    assert_eq!(finish(&mut store), tickets[..2]);
    assert_eq!(steps.waiting(), [DiskStep::Sync(root.fileid)]);
    assert!(steps.step(None));
    assert_eq!(finish(&mut store), tickets);
    assert!(!steps.step(None), "two syncs for twelve changes");
}

/// More objects than operations that the disk takes at once.
#[test]
fn syncs_wait_for_room_on_the_disk() {
    let (mut store, steps, _scratch) = stepped(true);
    let root = store.root();
    let mut left = Vec::new();
    for name in 0..20 {
        store.create(&ROOT, root, format!("{name}").as_bytes(), &CreateMode::Guarded(NONE), NOW).unwrap();
        left.push(ticket(store.commit_changes()));
    }
    while !left.is_empty() {
        if let Some(ready) = poll(&mut store) {
            assert_eq!(store.finish(ready, &mut Vec::new()), Ok(Finished::Commit));
            left.retain(|ticket| *ticket != ready);
        } else {
            assert!(steps.waiting().len() <= 8);
            assert!(steps.step(None), "{left:?}");
        }
    }
    assert!(!steps.step(None));
}

/// No client is told that something is done which the disk did not keep; and clients write again what they did not
/// commit.
#[test]
fn a_sync_that_fails_fails_those_who_wait_for_it() {
    let (mut store, steps, _scratch) = stepped(true);
    let (root, before) = (store.root(), store.write_verifier());
    let how = CreateMode::Guarded(NONE);
    let mut tickets = Vec::new();
    for name in [b"a", b"b"] {
        store.create(&ROOT, root, name, &how, NOW).unwrap();
        tickets.push(ticket(store.commit_changes()));
    }
    assert_eq!(poll(&mut store), None);
    assert_eq!(steps.waiting()[0], DiskStep::Sync(root.fileid));
    assert!(steps.step(Some(Errno::IO)));
    assert_eq!(poll(&mut store), None, "each waits for its file too");
    while steps.step(None) {}
    for _ in 0..2 {
        let ready = poll(&mut store).unwrap();
        assert!(tickets.contains(&ready));
        assert_eq!(store.finish(ready, &mut Vec::new()), Err(FsError::Io));
    }
    assert_ne!(store.write_verifier(), before);
    // An interruption fails no waiting Call: the sync is repeated. But the kernel may have reported lost data by it.
    let verifier = store.write_verifier();
    store.remove(&ROOT, root, b"a", NOW).unwrap();
    let wanted = ticket(store.commit_changes());
    assert_eq!(poll(&mut store), None);
    assert!(steps.step(Some(Errno::INTR)));
    assert_eq!((poll(&mut store), steps.waiting()), (None, vec![DiskStep::Sync(root.fileid)]));
    assert!(steps.step(None));
    assert_eq!(poll(&mut store), Some(wanted));
    assert_eq!(store.finish(wanted, &mut Vec::new()), Ok(Finished::Commit));
    assert_ne!(store.write_verifier(), verifier);
}

/// The kernel reports data that it could not write once, and a synchronous WRITE may get the report, whatever it fails
/// with. COMMIT would then succeed: the verifier tells clients to write again.
#[test]
fn a_stable_write_that_fails_changes_the_verifier() {
    let (mut store, steps, _scratch) = stepped(true);
    let root = store.root();
    let file = store.create(&ROOT, root, b"f", &CreateMode::Guarded(NONE), NOW).unwrap();
    settle(&mut store, &steps);
    let mut fail = |stable, error| {
        let before = store.write_verifier();
        let write = store.write(&ROOT, file, 0, WriteData::Inline(b"hello"), stable, NOW);
        let Ok(Progress::Later(write)) = write else { panic!("{write:?}") };
        assert_eq!(poll(&mut store), None);
        assert!(steps.step(Some(error)));
        assert_eq!(poll(&mut store), Some(write));
        let done = store.finish(write, &mut Vec::new());
        assert!(done.is_err(), "{done:?}");
        store.write_verifier() != before
    };
    for error in [Errno::NOSPC, Errno::DQUOT, Errno::FBIG, Errno::IO, Errno::INTR, Errno::NOMEM] {
        for stable in [Stability::DataSync, Stability::FileSync] {
            assert!(fail(stable, error), "{stable:?}: {error}");
        }
        // No COMMIT was answered yet, so each COMMIT is told.
        assert!(!fail(Stability::Unstable, error), "{error}");
    }
}

/// Every WRITE to a file that is marked synchronous is a stable one to the kernel, whatever the client asked for.
#[test]
fn a_write_to_a_synchronous_file_that_fails_changes_the_verifier() {
    let (mut store, steps, scratch) = stepped(true);
    let root = store.root();
    let file = store.create(&ROOT, root, b"f", &CreateMode::Guarded(NONE), NOW).unwrap();
    settle(&mut store, &steps);
    let mut is_told = || {
        let before = store.write_verifier();
        let write = store.write(&ROOT, file, 0, WriteData::Inline(b"hello"), Stability::Unstable, NOW);
        let Ok(Progress::Later(write)) = write else { panic!("{write:?}") };
        assert_eq!(poll(&mut store), None);
        assert!(steps.step(Some(Errno::NOSPC)));
        assert_eq!(poll(&mut store), Some(write));
        assert_eq!(store.finish(write, &mut Vec::new()), Err(FsError::NoSpace));
        store.write_verifier() != before
    };
    assert!(!is_told());
    let open = std::fs::File::open(scratch.0.join("f")).unwrap();
    let marked = ioctl_getflags(&open).and_then(|flags| ioctl_setflags(&open, flags | IFlags::SYNC));
    if let Err(error) = marked {
        return stag_testing::skipped(format_args!("no file can be marked synchronous here: {error}"));
    }
    assert!(is_told());
}

/// COMMITs of one file share syncs in the same way, and WRITEs between go their own way.
#[test]
fn commits_share_syncs() {
    let (mut store, steps, _scratch) = stepped(true);
    let root = store.root();
    let file = store.create(&ROOT, root, b"f", &CreateMode::Guarded(NONE), NOW).unwrap();
    settle(&mut store, &steps);
    let write = store.write(&ROOT, file, 0, WriteData::Inline(b"hello"), Stability::Unstable, NOW);
    let Ok(Progress::Later(write)) = write else { panic!("{write:?}") };
    let commits: Vec<_> = (0..3).map(|_| ticket(store.commit(file).unwrap())).collect();
    assert_eq!(poll(&mut store), None);
    assert_eq!(steps.waiting().len(), 2, "{:?}", steps.waiting());
    while steps.step(None) {}
    let mut over: Vec<_> = std::iter::from_fn(|| poll(&mut store)).collect();
    for ready in &over {
        assert!(store.finish(*ready, &mut Vec::new()).is_ok());
    }
    over.sort_by_key(|ticket| ticket.0);
    let mut wanted = commits;
    wanted.push(write);
    wanted.sort_by_key(|ticket| ticket.0);
    assert_eq!(over, wanted);
}

/// `sync=no`: names are answered at once. Data is as safe as ever.
#[test]
fn without_sync_only_data_is_synced() {
    let (mut store, steps, _scratch) = stepped(false);
    let root = store.root();
    let file = store.create(&ROOT, root, b"f", &CreateMode::Guarded(NONE), NOW).unwrap();
    store.make_directory(&ROOT, root, b"d", &NONE, NOW).unwrap();
    store.set_attributes(&ROOT, file, &Update { size: Some(1), ..NONE }, NOW).unwrap();
    assert_eq!(store.commit_changes(), Progress::Done(()));
    let commit = ticket(store.commit(file).unwrap());
    assert_eq!(poll(&mut store), None);
    assert_eq!(steps.waiting(), [DiskStep::Sync(file.fileid)]);
    assert!(steps.step(None));
    assert_eq!(poll(&mut store), Some(commit));
    assert_eq!(store.finish(commit, &mut Vec::new()), Ok(Finished::Commit));
}

/// What ends a program's privileges comes before the data, so that a stable WRITE makes both safe.
#[test]
fn a_write_ends_privileges_before_the_data_is_there() {
    if !is_root() {
        stag_testing::skipped("only root has other users' programs");
        return;
    }
    let (mut store, steps, _scratch) = stepped(true);
    let (root, user) = (store.root(), UserIdentity::new(7, 7, []));
    let set = Update { mode: Some(0o4755), uid: Some(7), gid: Some(7), ..NONE };
    let file = store.create(&ROOT, root, b"program", &CreateMode::Guarded(set), NOW).unwrap();
    settle(&mut store, &steps);
    let write = store.write(&user, file, 0, WriteData::Inline(b"x"), Stability::FileSync, NOW);
    assert!(matches!(write, Ok(Progress::Later(_))));
    assert_eq!(poll(&mut store), None);
    assert_eq!(steps.waiting(), [DiskStep::Write(file.fileid)]);
    assert_eq!(store.attributes(file).unwrap().mode, 0o755);
}

/// Begins an unstable WRITE and does what it needs, but no sync. Returns how stable it is.
fn write(store: &mut Procedures, steps: &Steps, file: ObjectId) -> Stability {
    let begun = store.write(&ROOT, file, 0, WriteData::Inline(b"x"), Stability::Unstable, NOW).unwrap();
    let Progress::Later(ticket) = begun else { panic!("{begun:?}") };
    loop {
        if poll(store) == Some(ticket) {
            break;
        }
        // The store may sync others before.
        assert!(steps.step(None));
    }
    match store.finish(ticket, &mut Vec::new()).unwrap() {
        Finished::Write(done) => done.committed,
        other => panic!("{other:?}"),
    }
}

/// Names of what this process has open in a directory.
fn open_in(scratch: &Scratch) -> Vec<String> {
    let names = std::fs::read_dir("/proc/self/fd").unwrap();
    let mut names: Vec<String> = names
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .filter_map(|path| Some(path.strip_prefix(&scratch.0).ok()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// What is written and not synced is synced through a descriptor that was open before it was written, however many files
/// there are: no other would hear of an error that somebody else heard of before. A client that never commits does not
/// take all descriptors.
#[test]
fn files_with_data_that_is_not_synced_stay_open() {
    let scratch = Scratch::folder();
    let pool = Lab::pool(PAGE, 64);
    let (disk, steps) = Disk::stepped(64);
    let store = Lab::open_by(disk, &scratch, &pool, |config| {
        (config.sync, config.descriptors_max) = (false, 16);
        config.may_wait = Some(MayWait::Nothing);
    });
    let mut store = store;
    let root = store.root();
    let mut made = Vec::new();
    for index in 0..40 {
        let how = CreateMode::Guarded(NONE);
        made.push(store.create(&ROOT, root, format!("f{index}").as_bytes(), &how, NOW).unwrap());
    }
    for file in &made[..2] {
        assert_eq!(write(&mut store, &steps, *file), Stability::Unstable);
    }
    for file in &made {
        store.attributes(*file).unwrap();
    }
    let open = open_in(&scratch);
    assert!(open.contains(&"f0".to_owned()) && open.contains(&"f1".to_owned()), "{open:?}");
    // A COMMIT gives the place back.
    let wanted = ticket(store.commit(made[0]).unwrap());
    assert_eq!((poll(&mut store), steps.waiting()), (None, vec![DiskStep::Sync(made[0].fileid)]));
    assert!(steps.step(None));
    assert_eq!(poll(&mut store), Some(wanted));
    assert_eq!(store.finish(wanted, &mut Vec::new()), Ok(Finished::Commit));
    for file in &made[2..] {
        store.attributes(*file).unwrap();
    }
    assert!(!open_in(&scratch).contains(&"f0".to_owned()), "{:?}", open_in(&scratch));
    // So does the end of the file.
    store.remove(&ROOT, root, b"f1", NOW).unwrap();
    for file in &made[2..] {
        store.attributes(*file).unwrap();
    }
    assert!(!open_in(&scratch).iter().any(|name| name.starts_with("f1 ")), "{:?}", open_in(&scratch));
    // Four may be so. Beyond two, the oldest are synced; beyond four, a WRITE is synced itself.
    for file in &made[2..4] {
        assert_eq!(write(&mut store, &steps, *file), Stability::Unstable);
    }
    assert!(steps.waiting().is_empty());
    let begin = |store: &mut Procedures, file: ObjectId| {
        let begun = store.write(&ROOT, file, 0, WriteData::Inline(b"x"), Stability::Unstable, NOW).unwrap();
        let Progress::Later(ticket) = begun else { panic!("{begun:?}") };
        ticket
    };
    let tickets: Vec<_> = made[4..9].iter().map(|file| begin(&mut store, *file)).collect();
    assert_eq!(poll(&mut store), None);
    let syncs = steps.waiting().into_iter().filter(|step| matches!(step, DiskStep::Sync(_)));
    assert_eq!(syncs.count(), 4, "one for each that has a place: {:?}", steps.waiting());
    let mut committed = Vec::new();
    while committed.len() < tickets.len() {
        match poll(&mut store) {
            None => assert!(steps.step(None), "{committed:?}"),
            Some(ready) => {
                assert_eq!(ready, tickets[committed.len()]);
                let Ok(Finished::Write(done)) = store.finish(ready, &mut Vec::new()) else {
                    panic!("a WRITE")
                };
                committed.push(done.committed);
            }
        }
    }
    let (unstable, stable) = (Stability::Unstable, Stability::FileSync);
    assert_eq!(committed, [unstable, unstable, stable, stable, stable]);
}

/// A sync that no client asked for fails: no Call waits for its result, so COMMIT must tell.
#[test]
fn a_sync_of_the_stores_own_that_fails_changes_the_verifier() {
    let scratch = Scratch::folder();
    let pool = Lab::pool(PAGE, 64);
    let (disk, steps) = Disk::stepped(64);
    let store = Lab::open_by(disk, &scratch, &pool, |config| {
        (config.sync, config.descriptors_max) = (false, 16);
        config.may_wait = Some(MayWait::Nothing);
    });
    let mut store = store;
    let root = store.root();
    for name in [b"a", b"b"] {
        let file = store.create(&ROOT, root, name, &CreateMode::Guarded(NONE), NOW).unwrap();
        assert_eq!(write(&mut store, &steps, file), Stability::Unstable);
    }
    let told = store.write_verifier();
    let file = store.create(&ROOT, root, b"c", &CreateMode::Guarded(NONE), NOW).unwrap();
    let begun = store.write(&ROOT, file, 0, WriteData::Inline(b"x"), Stability::Unstable, NOW).unwrap();
    let Progress::Later(ticket) = begun else { panic!("{begun:?}") };
    assert_eq!(poll(&mut store), None);
    while let Some(step) = steps.waiting().first().copied() {
        assert!(steps.step(matches!(step, DiskStep::Sync(_)).then_some(Errno::IO)));
    }
    assert_eq!(poll(&mut store), Some(ticket));
    assert!(store.finish(ticket, &mut Vec::new()).is_ok());
    assert_eq!(poll(&mut store), None);
    assert_ne!(store.write_verifier(), told);
}
