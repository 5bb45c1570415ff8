//! READs and WRITEs of a directory's files that came together: what they share, and what they do not.

use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use stag_stores::directory::MayWait;
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
    let mut lab = Lab::at_once(64, |_| {});
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

/// A WRITE that waits for nothing is performed when it arrives, and its caller gets the attributes from after it.
#[test]
fn writes_that_cannot_wait_are_over_at_once() {
    let mut lab = Lab::at_once(64, |_| {});
    let file = lab.file("f");
    let here = lab.scratch.as_ref().unwrap().0.join("f");
    let write = |lab: &mut Lab, object, data: WriteData<'_>, stable| -> Result<_, FsError> {
        let now = lab.now();
        match lab.store.write(&ROOT, object, 2, data, stable, now)? {
            Progress::Done(done) => Ok((done.count, done.committed)),
            Progress::Later(ticket) => panic!("{ticket:?}"),
        }
    };
    for (round, stable) in
        [Stability::Unstable, Stability::DataSync, Stability::FileSync].into_iter().enumerate()
    {
        let mut pieces = [&b"ab"[..], &[b'c'; PAGE], b"d"].map(|octets| lab.placed(octets));
        let len = PAGE as u32 + 3;
        assert_eq!(write(&mut lab, file, WriteData::Placed(&mut pieces), stable), Ok((len, stable)));
        assert_eq!(lab.store.attributes_after(file).unwrap().size, u64::from(len) + 2);
        let there = fs::read(&here).unwrap();
        assert_eq!((&there[..4], &there[PAGE + 3..]), (&b"\0\0ab"[..], &b"cd"[..]), "round {round}");
        assert_eq!(write(&mut lab, file, WriteData::Inline(b"xyz"), stable), Ok((3, stable)));
        assert_eq!(&fs::read(&here).unwrap()[..6], b"\0\0xyzc");
        assert_eq!(write(&mut lab, file, WriteData::Inline(b""), stable), Ok((0, stable)));
        fs::write(&here, b"").unwrap();
    }
    // What is refused is refused at once.
    let root = lab.root();
    let refused = write(&mut lab, root, WriteData::Inline(b"x"), Stability::Unstable);
    assert_eq!(refused, Err(FsError::IsDirectory));
    assert_eq!(lab.store.poll_later(Duration::ZERO), None);
    assert_eq!(lab.commit(file), Ok(()));
}

/// A WRITE at once clears the set-id bits, and is refused to a user who may not write.
#[test]
fn a_write_at_once_is_judged_as_any() {
    if !is_root() {
        return unprivileged::left_to_nobody();
    }
    let mut lab = Lab::at_once(64, |_| {});
    let file = lab.file("f");
    let (owner, other) = (UserIdentity::new(7, 7, []), UserIdentity::new(8, 8, []));
    lab.set(&ROOT, file, Update { mode: Some(0o4755), uid: Some(7), gid: Some(7), ..NONE }).unwrap();
    let data = || WriteData::Inline(b"x");
    let refused = lab.write_of(&other, file, 0, data(), Stability::Unstable);
    assert_eq!(refused.err(), Some(FsError::AccessDenied));
    assert_eq!(lab.store.attributes_after(file).map(|found| (found.mode, found.size)), Ok((0o4755, 0)));
    // An empty WRITE changes nothing.
    lab.write_of(&owner, file, 0, WriteData::Inline(b""), Stability::Unstable).unwrap();
    assert_eq!(lab.store.attributes_after(file).map(|found| found.mode), Ok(0o4755));
    lab.write_of(&owner, file, 0, data(), Stability::Unstable).unwrap();
    assert_eq!(lab.store.attributes_after(file).map(|found| (found.mode, found.size)), Ok((0o755, 1)));
}

/// The number of files with data that waits for COMMIT is bounded for WRITEs at once, too. Beyond half of the places the oldest
/// files are synced, and a WRITE that finds no place is a stable one.
#[test]
fn writes_at_once_keep_their_files_open_until_commit() {
    let mut lab = Lab::at_once(64, |config| config.descriptors_max = 16);
    let now = lab.now();
    let files: Vec<_> = (0..9).map(|index| lab.file(&format!("f{index}"))).collect();
    let mut committed = Vec::new();
    for file in &files {
        let done =
            lab.store.write(&ROOT, *file, 0, WriteData::Inline(b"x"), Stability::Unstable, now).unwrap();
        let Progress::Done(done) = done else { panic!("{done:?}") };
        committed.push(done.committed);
    }
    // There are four places. The store sees with its next poll that the oldest files are synced.
    let expected = |index| if index < 4 { Stability::Unstable } else { Stability::FileSync };
    assert_eq!(committed, (0..9).map(expected).collect::<Vec<_>>());
    assert_eq!(lab.store.poll_later(Duration::ZERO), None);
    let again = lab.write(files[8], 0, b"x").unwrap();
    assert_eq!(again.committed, Stability::Unstable, "there is a place again");
    for file in files {
        assert_eq!(lab.commit(file), Ok(()));
    }
}
