//! READs and WRITEs of a directory's files that came together: what they share, and what they do not.

use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use stag_disk::{Disk, DiskConfig};
use stag_stores::directory::MayWait;
use stag_testing::Scratch;
use stag_vfs::{Finished, FsError, Progress, Stability, Update, UserIdentity, WriteData};

use crate::lab::{Lab, NONE, PAGE, is_root};
use crate::unprivileged;

const ROOT: UserIdentity = UserIdentity::ROOT;

/// Transfers share what is known of a file only while they are under way together: what somebody else did before one was
/// asked for counts for it, in whatever pass that is.
#[test]
fn what_others_change_counts_for_the_next_transfer() {
    let mut lab = Lab::directory(512, |_| {});
    let file = lab.file("f");
    let here = lab.scratch.as_ref().unwrap().0.join("f");
    let size = |lab: &mut Lab| lab.store.attributes_after(file).map(|attributes| attributes.size);
    for len in [9, 3, 5000, 0, 7] {
        lab.write(file, 0, b"twelve bytes").unwrap();
        assert_eq!(size(&mut lab), Ok(fs::metadata(&here).unwrap().len()));
        File::options().write(true).open(&here).unwrap().set_len(len).unwrap();
        let done = lab.read_of(&ROOT, file, 0, 4096).unwrap();
        assert_eq!((u64::from(done.count), done.eof), (len.min(4096), len <= 4096));
        assert_eq!(size(&mut lab), Ok(len));
        fs::set_permissions(&here, Permissions::from_mode(0o600 + len as u32 % 8)).unwrap();
        lab.commit(file).unwrap();
        assert_eq!(lab.store.attributes_after(file).map(|found| found.mode), Ok(0o600 + len as u32 % 8));
    }
    if is_root() {
        // Also what permits it.
        let user = UserIdentity::new(4321, 4321, []);
        for mode in [0o604, 0o600, 0o602, 0o606] {
            fs::set_permissions(&here, Permissions::from_mode(mode)).unwrap();
            let may = |bit| if mode & bit == 0 { Some(FsError::AccessDenied) } else { None };
            assert_eq!(lab.read_of(&user, file, 0, 1).err(), may(4), "{mode:o}");
            let data = WriteData::Inline(b"x");
            assert_eq!(lab.write_of(&user, file, 0, data, Stability::Unstable).err(), may(2), "{mode:o}");
        }
    }
    fs::remove_file(&here).unwrap();
    assert_eq!(lab.read_of(&ROOT, file, 0, 1).err(), Some(FsError::Stale));
    assert_eq!(lab.write(file, 0, b"x").err(), Some(FsError::Stale));
}

/// Of what came in one pass, each is admitted or refused for itself, and what changes names or attributes comes after what
/// came before it.
#[test]
fn transfers_of_one_pass_are_each_judged() {
    if !is_root() {
        return unprivileged::left_to_nobody();
    }
    // Where a look at a file may wait, no READ is done at once.
    let mut lab = Lab::directory(512, |config| config.may_wait = Some(MayWait::Everything));
    let (file, other) = (lab.file("f"), lab.file("g"));
    lab.write(file, 0, b"abc").unwrap();
    lab.set(&ROOT, file, Update { mode: Some(0o600), ..NONE }).unwrap();
    let user = UserIdentity::new(4321, 4321, []);
    let (root, now) = (lab.root(), lab.now());
    let mut expected = HashMap::new();
    let mut pieces = Vec::new();
    // More than are noted before they are admitted.
    for round in 0..100 {
        for (caller, object) in [(&ROOT, file), (&user, file), (&user, other), (&ROOT, root)] {
            let status = match (caller.is_root(), object) {
                (_, object) if object == root => Err(FsError::IsDirectory),
                (true, _) => Ok(3),
                (false, object) if object == file => Err(FsError::AccessDenied),
                (false, _) => Ok(0),
            };
            let Progress::Later(ticket) = lab.store.read(caller, object, 0, 9, &mut pieces, now).unwrap()
            else {
                panic!("a READ of a directory's file is done later")
            };
            assert_eq!(expected.insert(ticket, status), None, "round {round}: a ticket is of one");
        }
    }
    lab.store.set_attributes(&ROOT, file, &Update { size: Some(1), ..NONE }, now).unwrap();
    while !expected.is_empty() {
        let Some(ticket) = lab.store.poll_later(Duration::ZERO) else {
            std::thread::yield_now();
            continue;
        };
        let wanted = expected.remove(&ticket).expect("a READ's ticket");
        let found = lab.store.finish(ticket, &mut pieces).map(|finished| match finished {
            Finished::Read(done) => done.count,
            other => panic!("{other:?}"),
        });
        // A READ may or may not be before the SETATTR.
        assert!(found == wanted || (wanted, found) == (Ok(3), Ok(1)), "{wanted:?}, {found:?}");
        pieces.clear();
    }
}

/// A READ that waits for no device is over when it was begun, and what its caller is told of the file belongs to it.
#[test]
fn reads_that_cannot_wait_are_over_at_once() {
    let scratch = Scratch::folder();
    let pool = Lab::pool(PAGE, 64);
    let disk = Disk::new(&DiskConfig { uring: false, helpers: false, ..DiskConfig::default() }, &[]);
    let store = Lab::open_by(disk, &scratch, &pool, |_| {});
    let mut lab = Lab { pool, store, seconds: 0, baseline: 0, scratch: Some(scratch) };
    let file = lab.file("f");
    let now = lab.now();
    for text in [&b"abc"[..], b"longer"] {
        lab.write(file, 0, text).unwrap();
        let mut pieces = Vec::new();
        let read = lab.store.read(&ROOT, file, 0, 99, &mut pieces, now).unwrap();
        let Progress::Done(read) = read else { panic!("{read:?}") };
        assert_eq!((read.count as usize, read.eof), (text.len(), true));
        assert_eq!(*pieces[0], *text);
        assert_eq!(lab.store.attributes_after(file).unwrap().size, text.len() as u64);
    }
    // What is refused is refused at once.
    let root = lab.root();
    let refused = lab.store.read(&ROOT, root, 0, 9, &mut Vec::new(), now);
    assert!(matches!(refused, Err(FsError::IsDirectory)), "{refused:?}");
    assert_eq!(lab.store.poll_later(Duration::ZERO), None);
    assert_eq!(lab.commit(file), Ok(()));
}
