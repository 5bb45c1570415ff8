//! A directory store whose file system takes its time, or stands still.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stag_disk::{Disk, DiskConfig, DiskFile, Pieces, Sync};
use stag_runtime::Clock;
use stag_stores::directory::{DirectoryConfig, DirectoryError, DirectoryStore, MayWait};
use stag_testing::Scratch;
use stag_vfs::{
    Blocked, EntryName, Finished, FsError, ObjectStat, Progress, ReadStep, Stability, Store, Ticket,
    Timestamp, Update, UserIdentity, Volume, WriteData,
};

use crate::fuse::Fuse;
use crate::lab::{Lab, PAGE, is_root};

const ROOT: UserIdentity = UserIdentity::ROOT;
const NOW: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };

/// The volume of a file system of our own. `None`: it cannot be mounted here.
fn slow() -> Option<(Volume<DirectoryStore>, Fuse)> {
    let Some(fuse) = Fuse::mount() else {
        stag_testing::skipped("this process may not mount FUSE file systems");
        return None;
    };
    let pool = Lab::pool(PAGE, 64);
    let disk = Disk::new(&DiskConfig::default(), &[pool.arena()]);
    let store = DirectoryStore::new(&DirectoryConfig::new(&fuse.scratch.0, 1), disk, pool).unwrap();
    assert_eq!(store.may_wait(), MayWait::Everything);
    Some((Volume::new(Box::new(store)), fuse))
}

/// Runs an operation that reads until it has an answer.
fn wait<T>(
    volume: &mut Volume<DirectoryStore>,
    mut step: impl FnMut(&mut Volume<DirectoryStore>) -> ReadStep<T>,
) -> Result<T, FsError> {
    loop {
        match step(volume) {
            Ok(found) => return Ok(found),
            Err(Blocked::Fails(error)) => return Err(error),
            Err(Blocked::Waits(ticket)) => assert_eq!(end(volume, ticket), Ok(Finished::Ready)),
        }
    }
}

thread_local! {
    /// Tickets that were over while something else was waited for.
    static READY: RefCell<Vec<Ticket>> = const { RefCell::new(Vec::new()) };
}

/// Waits for a ticket.
fn end(volume: &mut Volume<DirectoryStore>, wanted: Ticket) -> Result<Finished, FsError> {
    READY.with_borrow_mut(|ready| {
        while !ready.contains(&wanted) {
            match volume.store_mut().poll_later(Duration::ZERO) {
                Some(ticket) => ready.push(ticket),
                None => std::thread::yield_now(),
            }
        }
        ready.retain(|ticket| *ticket != wanted);
    });
    volume.store_mut().finish(wanted, &mut Vec::new())
}

fn look_up(volume: &Volume<DirectoryStore>, name: &str) -> ReadStep<ObjectStat> {
    let root = volume.stat(volume.profile().root)?;
    volume.lookup(&ROOT, &root, name.as_bytes())
}

fn make(volume: &mut Volume<DirectoryStore>, name: &str) -> Result<Finished, FsError> {
    let begun = wait(volume, |volume| {
        let root = volume.stat(volume.profile().root)?;
        let at = EntryName { directory: &root, name: name.as_bytes() };
        volume.make_directory(&ROOT, at, &Update::default(), NOW)
    })?;
    let Progress::Later(ticket) = begun else { panic!("it cannot be over at once") };
    end(volume, ticket)
}

#[test]
fn look_ups_that_take_a_while_overlap() {
    const COUNT: usize = 1000;
    let Some((mut volume, fuse)) = slow() else { return };
    fuse.delay(Duration::from_millis(5));
    let clock = Clock::start();
    let (mut waiting, mut found) = (HashMap::new(), vec![0; COUNT]);
    let mut run =
        |volume: &Volume<DirectoryStore>, waiting: &mut HashMap<Ticket, usize>, number: usize| match look_up(
            volume,
            &format!("f{number}"),
        ) {
            Ok(seen) => found[number] = seen.object.fileid,
            Err(Blocked::Waits(ticket)) => assert_eq!(waiting.insert(ticket, number), None),
            Err(Blocked::Fails(error)) => panic!("{error:?}"),
        };
    for number in 0..COUNT {
        run(&volume, &mut waiting, number);
    }
    while !waiting.is_empty() {
        let Some(ticket) = volume.store_mut().poll_later(Duration::ZERO) else {
            std::thread::yield_now();
            continue;
        };
        assert_eq!(volume.store_mut().finish(ticket, &mut Vec::new()), Ok(Finished::Ready));
        let number = waiting.remove(&ticket).unwrap();
        run(&volume, &mut waiting, number);
    }
    println!("{COUNT} look-ups of 5 ms each: {:?}, {} at once", clock.now(), fuse.most_at_once());
    assert!(found.iter().enumerate().all(|(number, fileid)| *fileid == 1000 + number as u64));
    assert!(fuse.most_at_once() >= 16, "{}", fuse.most_at_once());
}

/// What waits is bounded, holds nothing up, and does not have to end before the store does.
#[test]
fn a_file_system_that_stands_still_holds_up_its_own_calls_only() {
    let Some((mut volume, fuse)) = slow() else { return };
    let file = wait(&mut volume, |volume| look_up(volume, "f1")).unwrap();
    let mut other = Lab::directory(64, |_| {});
    fuse.stand_still(true);
    let (mut waits, mut refused) = (0, 0);
    for _ in 0..2500 {
        match volume.stat(file.object) {
            Err(Blocked::Waits(_)) => waits += 1,
            Err(Blocked::Fails(FsError::Busy)) => refused += 1,
            found => panic!("{found:?}"),
        }
    }
    assert!(waits >= 500 && refused > 0, "{waits} wait, {refused} are refused");
    for number in 0..20 {
        assert_eq!(volume.store_mut().poll_later(Duration::from_secs(2 * number)), None);
        let made = other.file(&format!("f{number}"));
        assert_eq!(other.store.attributes(made).map(|found| found.size), Ok(0));
    }
    // What is known without asking.
    assert!(!volume.store().is_read_only());
    assert_eq!(volume.store().stat_after(file.object), None);
    assert!(!volume.store().is_busy(), "the reactor may sleep");
    drop(volume);
    fuse.stand_still(false);
}

/// With io_uring and without.
#[test]
fn data_of_a_file_system_that_stands_still_holds_up_its_owner_only() {
    let Some(fuse) = Fuse::mount() else {
        return stag_testing::skipped("this process may not mount FUSE file systems");
    };
    let scratch = Scratch::folder();
    let open = |path: &Path| {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        Arc::new(DiskFile::from(OwnedFd::from(file)))
    };
    for uring in [true, false] {
        let still = open(&fuse.scratch.0.join("f1"));
        let moving = open(&scratch.0.join("file"));
        let pool = Lab::pool(PAGE, 256);
        let buf = || Pieces::from_iter([pool.take().unwrap()]);
        let disk = Disk::new(&DiskConfig { uring, depth: 256, ..DiskConfig::default() }, &[]);
        let other = disk.another();
        let next = |disk: &Disk| loop {
            match disk.poll() {
                Some(completion) => break completion,
                None => std::thread::yield_now(),
            }
        };
        fuse.stand_still(true);
        while disk.left() > 0 {
            disk.read(1, &still, 0, buf()).unwrap();
        }
        for tag in 2..9 {
            let text = Pieces::from_iter([buf().pop().unwrap().share()]);
            other.write(tag, &moving, 0, text, Sync::Data).unwrap();
            assert_eq!(next(&other).tag, tag);
            other.read(tag, &moving, 0, buf()).unwrap();
            assert_eq!(next(&other).result, Ok(PAGE as u32));
            assert!(disk.poll().is_none(), "it stands still");
        }
        fuse.stand_still(false);
        for _ in 0..128 {
            assert_eq!(next(&disk).tag, 1);
        }
    }
}

/// A disk ends although a file system stands still, with io_uring and without. What that has in hand stays out of the pool.
#[test]
fn data_of_a_file_system_that_stands_still_does_not_hold_up_the_end() {
    let Some(fuse) = Fuse::mount() else {
        return stag_testing::skipped("this process may not mount FUSE file systems");
    };
    for uring in [true, false] {
        let file = OpenOptions::new().read(true).write(true).open(fuse.scratch.0.join("f1")).unwrap();
        let file = Arc::new(DiskFile::from(OwnedFd::from(file)));
        let pool = Lab::pool(PAGE, 16);
        let disk = Disk::new(&DiskConfig { uring, ..DiskConfig::default() }, &[]);
        fuse.stand_still(true);
        for tag in 0..3 {
            disk.read(tag, &file, 0, Pieces::from_iter([pool.take().unwrap()])).unwrap();
        }
        let text = Pieces::from_iter([pool.take().unwrap().share()]);
        disk.write(3, &file, 0, text, Sync::None).unwrap();
        assert!(disk.poll().is_none(), "it stands still");
        drop(disk);
        assert_eq!((pool.outstanding(), pool.stranded()), (4, 4), "io_uring: {uring}");
        fuse.stand_still(false);
    }
}

/// What waits for a file system that goes away gets an answer: a question, and a change.
#[test]
fn a_file_system_that_goes_away_answers_what_waits() {
    let Some((mut volume, fuse)) = slow() else { return };
    let begin = |volume: &mut Volume<DirectoryStore>| {
        let root = volume.stat(volume.profile().root)?;
        let at = EntryName { directory: &root, name: b"d" };
        volume.make_directory(&ROOT, at, &Update::default(), NOW)
    };
    // Once all that it has to know is known, the change begins.
    let change = loop {
        match begin(&mut volume) {
            Ok(Progress::Later(change)) => break change,
            Err(Blocked::Waits(question)) => {
                fuse.stand_still(false);
                assert_eq!(end(&mut volume, question), Ok(Finished::Ready));
                fuse.stand_still(true);
            }
            found => panic!("{found:?}"),
        }
    };
    let Err(Blocked::Waits(question)) = look_up(&volume, "f7") else { panic!("it stands still") };
    assert_eq!(volume.store_mut().poll_later(Duration::ZERO), None);
    fuse.abort();
    assert!(end(&mut volume, change).is_err());
    assert_eq!(end(&mut volume, question), Ok(Finished::Ready));
    let found = wait(&mut volume, |volume| look_up(volume, "f7"));
    assert!(found.is_err(), "{found:?}");
}

/// Makes a file, writes, reads, lists and removes it.
fn use_it(lab: &mut Lab) {
    let file = lab.file("f");
    lab.write(file, 0, b"text").unwrap();
    assert_eq!(lab.commit(file), Ok(()));
    assert_eq!(lab.read(file, 0, 9).0, b"text");
    let root = lab.root();
    lab.remove(root, "f").unwrap();
    assert_eq!(lab.store.attributes(file).err(), Some(FsError::Stale));
}

/// Where no more threads can be started, a store does all that it does with them.
#[test]
fn without_helper_threads_a_store_works() {
    let test = |uring: bool, may_wait: MayWait| {
        let (scratch, pool) = (Scratch::folder(), Lab::pool(PAGE, 64));
        let disk = Disk::new(&DiskConfig { uring, ..DiskConfig::default() }, &[]);
        let store = Lab::open_by(disk, &scratch, &pool, |config| config.may_wait = Some(may_wait));
        stag_testing::refuse_system_calls(&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN);
        use_it(&mut Lab { pool, store, seconds: 0, baseline: 0, scratch: Some(scratch) });
    };
    for (uring, may_wait) in [(true, MayWait::Device), (false, MayWait::Device), (false, MayWait::Everything)]
    {
        // The filter is of a thread.
        std::thread::spawn(move || test(uring, may_wait)).join().unwrap();
    }
}

/// Where no thread at all can be started, a store waits itself. One that acts as its callers needs a thread for that, and says so.
#[test]
fn without_any_thread_a_store_works_or_says_why_not() {
    let test = || {
        stag_testing::refuse_system_calls(&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN);
        let (scratch, pool) = (Scratch::folder(), Lab::pool(PAGE, 64));
        let config = DirectoryConfig { trust: Duration::ZERO, ..DirectoryConfig::new(&scratch.0, 78) };
        let disk = Disk::new(&DiskConfig::default(), &[]);
        match DirectoryStore::new(&config, disk, pool.clone()) {
            Ok(store) => {
                assert_eq!(store.may_wait(), MayWait::Nothing);
                use_it(&mut Lab {
                    pool,
                    store: store.into(),
                    seconds: 0,
                    baseline: 0,
                    scratch: Some(scratch),
                });
            }
            Err(error) => assert!(is_root() && matches!(error, DirectoryError::ActAs { .. }), "{error}"),
        }
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn all_goes_on_when_the_file_system_does() {
    let Some((mut volume, fuse)) = slow() else { return };
    fuse.stand_still(true);
    let Err(Blocked::Waits(ticket)) = look_up(&volume, "f7") else { panic!("it stands still") };
    assert_eq!(volume.store_mut().poll_later(Duration::ZERO), None);
    fuse.stand_still(false);
    assert_eq!(end(&mut volume, ticket), Ok(Finished::Ready));
    let found = wait(&mut volume, |volume| look_up(volume, "f7")).unwrap();
    assert_eq!(found.object.fileid, 1007);
    assert!(matches!(make(&mut volume, "d"), Ok(Finished::Made(made)) if made.object.fileid == 10));
    assert_eq!(wait(&mut volume, |volume| look_up(volume, "d")).map(|found| found.object.fileid), Ok(10));
    assert_eq!(wait(&mut volume, |volume| volume.store().check_place()), Ok(()));
    assert!(wait(&mut volume, |volume| volume.store().usage()).is_ok());
}

#[test]
fn what_fails_later_is_told() {
    let Some((mut volume, _fuse)) = slow() else { return };
    for (name, error) in [("io", FsError::Io), ("stale", FsError::Stale), ("none", FsError::NotFound)] {
        assert_eq!(wait(&mut volume, |volume| look_up(volume, name)).err(), Some(error));
    }
    for (name, error) in [("full", FsError::NoSpace), ("quota", FsError::OverQuota)] {
        assert_eq!(make(&mut volume, name), Err(error));
    }
    assert!(make(&mut volume, "d").is_ok());
    assert_eq!(make(&mut volume, "d").err(), Some(FsError::Exists));
}

/// Of two changes of one directory at the same time, neither tells what the directory is after it: that would show what the other
/// did as well.
#[test]
fn changes_that_overlap_tell_nothing_of_what_they_share() {
    let Some((mut volume, _fuse)) = slow() else { return };
    let root = volume.profile().root;
    assert!(make(&mut volume, "alone").is_ok());
    assert!(volume.store().stat_after(root).is_some());
    let tickets: Vec<Ticket> = ["a", "b"]
        .iter()
        .map(|name| {
            let begun = wait(&mut volume, |volume| {
                let seen = volume.stat(root)?;
                let at = EntryName { directory: &seen, name: name.as_bytes() };
                volume.make_directory(&ROOT, at, &Update::default(), NOW)
            });
            let Ok(Progress::Later(ticket)) = begun else { panic!("{begun:?}") };
            ticket
        })
        .collect();
    assert!(volume.store().is_changing(root));
    for ticket in tickets {
        assert!(end(&mut volume, ticket).is_ok());
        assert_eq!(volume.store().stat_after(root), None);
    }
    assert!(!volume.store().is_changing(root));
}

/// The same of a WRITE that begins while a file's attributes are set, or that was begun and ended since they were seen.
#[test]
fn a_change_that_overlaps_a_write_tells_nothing_of_the_file() {
    let (scratch, pool) = (Scratch::folder(), Lab::pool(PAGE, 64));
    std::fs::write(scratch.0.join("f"), b"").unwrap();
    let config =
        DirectoryConfig { may_wait: Some(MayWait::Everything), ..DirectoryConfig::new(&scratch.0, 1) };
    let disk = Disk::new(&DiskConfig::default(), &[pool.arena()]);
    let mut volume = Volume::new(Box::new(DirectoryStore::new(&config, disk, pool).unwrap()));
    let file = wait(&mut volume, |volume| look_up(volume, "f")).unwrap().object;
    let write = |volume: &mut Volume<DirectoryStore>| {
        let data = WriteData::Inline(b"data");
        let begun = volume.store_mut().write(&ROOT, file, 0, data, Stability::Unstable, NOW);
        let Ok(Progress::Later(ticket)) = begun else { panic!("{begun:?}") };
        ticket
    };
    let set_mode = |volume: &mut Volume<DirectoryStore>| {
        let seen = volume.stat(file)?;
        let set = Update { mode: Some(0o600), ..Update::default() };
        volume.set_attributes(&ROOT, &seen, &set, NOW)
    };
    for (is_written_before, is_written) in [(false, false), (false, true), (true, false)] {
        let looks = set_mode(&mut volume);
        let Err(Blocked::Waits(look)) = looks else { panic!("{looks:?}") };
        if is_written_before {
            let ticket = write(&mut volume);
            assert!(end(&mut volume, ticket).is_ok());
        }
        assert!(end(&mut volume, look).is_ok());
        let begun = wait(&mut volume, set_mode);
        let Ok(Progress::Later(ticket)) = begun else { panic!("{begun:?}") };
        let written = is_written.then(|| write(&mut volume));
        assert!(end(&mut volume, ticket).is_ok());
        let is_told = !is_written_before && !is_written;
        assert_eq!(volume.store().stat_after(file).is_some(), is_told);
        if let Some(ticket) = written {
            assert!(end(&mut volume, ticket).is_ok());
        }
    }
}

/// What a name is taken from by a RENAME is changed by it, too.
#[test]
fn what_a_rename_replaces_is_changing() {
    let (scratch, pool) = (Scratch::folder(), Lab::pool(PAGE, 64));
    for name in ["old", "new"] {
        std::fs::write(scratch.0.join(name), b"").unwrap();
    }
    let config =
        DirectoryConfig { may_wait: Some(MayWait::Everything), ..DirectoryConfig::new(&scratch.0, 1) };
    let disk = Disk::new(&DiskConfig::default(), &[pool.arena()]);
    let mut volume = Volume::new(Box::new(DirectoryStore::new(&config, disk, pool).unwrap()));
    let replaced = wait(&mut volume, |volume| look_up(volume, "old")).unwrap().object;
    let root = volume.profile().root;
    let begun = wait(&mut volume, |volume| {
        let seen = volume.stat(root)?;
        let [from, to] = [&b"new"[..], b"old"].map(|name| EntryName { directory: &seen, name });
        volume.rename(&ROOT, from, to, NOW)
    });
    let Ok(Progress::Later(ticket)) = begun else { panic!("{begun:?}") };
    assert!(volume.store().is_changing(replaced));
    assert!(end(&mut volume, ticket).is_ok());
    assert!(!volume.store().is_changing(replaced));
}
