//! NFSv3 clients see that somebody else changed an object by its ctime (and mtime, and size): each change shows, however
//! many there are at one instant of the server's clock.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use stag_disk::{Disk, DiskConfig};
use stag_stores::directory::{DirectoryConfig, DirectoryStore, MayWait};
use stag_testing::Scratch;
use stag_vfs::{
    Acl, CreateMode, FsError, ObjectId, Progress, SetLists, Special, Stability, Store, TimeUpdate, Timestamp,
    Update, UserIdentity, WriteData,
};

use crate::lab::{Lab, NONE, PAGE};

const ROOT: UserIdentity = UserIdentity::ROOT;

/// A store whose clock stands still, or goes back.
struct Still {
    lab: Lab,
    now: Timestamp,
}

impl Still {
    fn ctime(&self, object: ObjectId) -> Timestamp {
        self.lab.store.attributes(object).unwrap().ctime
    }

    /// Runs `work`, and sees that it changed the ctime of all of `objects`, forwards.
    fn changes(
        &mut self,
        what: &str,
        objects: &[ObjectId],
        work: impl FnOnce(&mut Lab, Timestamp) -> Result<(), FsError>,
    ) {
        let before: Vec<_> = objects.iter().map(|object| self.ctime(*object)).collect();
        work(&mut self.lab, self.now).unwrap();
        for (object, before) in objects.iter().zip(before) {
            assert!(self.ctime(*object) > before, "{what}");
        }
    }
}

#[test]
fn each_change_has_a_time_of_its_own() {
    let start = Timestamp { seconds: 1000, nanoseconds: 999_999_990 };
    for now in [start, Timestamp { seconds: 999, ..start }] {
        let mut lab = Lab::new(64);
        let root = lab.root();
        let set = Update { mode: Some(0o777), ..NONE };
        let how = CreateMode::Guarded(NONE);
        lab.store.set_attributes(&ROOT, root, &set, start).unwrap();
        let file = lab.store.create(&ROOT, root, b"f", &how, start).unwrap();
        let other = lab.store.make_directory(&ROOT, root, b"d", &NONE, start).unwrap();
        let mut still = Still { lab, now };
        for round in 0..3 {
            still.changes("WRITE", &[file], |lab, now| {
                let data = WriteData::Inline(b"x");
                lab.store.write(&ROOT, file, 0, data, Stability::FileSync, now).map(|_| ())
            });
            still.changes("SETATTR", &[file], |lab, now| lab.store.set_attributes(&ROOT, file, &set, now));
            still.changes("SETATTR size", &[file], |lab, now| {
                let set = Update { size: Some(round), ..NONE };
                lab.store.set_attributes(&ROOT, file, &set, now)
            });
            still.changes("SETATTR time", &[file], |lab, now| {
                let set = Update { mtime: TimeUpdate::Now, ..NONE };
                lab.store.set_attributes(&ROOT, file, &set, now)
            });
            still.changes("CREATE that cuts", &[file], |lab, now| {
                let how = CreateMode::Unchecked(Update { size: Some(0), ..NONE });
                lab.store.create(&ROOT, root, b"f", &how, now).map(|_| ())
            });
            still.changes("SETACL", &[file], |lab, now| {
                let set = SetLists { access: Some(Some(Acl::from_mode(0o640))), default: None };
                lab.store.set_lists(&ROOT, file, &set, now)
            });
            still.changes("LINK", &[file, root], |lab, now| lab.store.link(&ROOT, file, root, b"l", now));
            still.changes("REMOVE", &[file, root], |lab, now| lab.store.remove(&ROOT, root, b"l", now));
            still.changes("CREATE", &[root], |lab, now| {
                lab.store.create(&ROOT, root, b"n", &how, now).map(|_| ())
            });
            still.changes("REMOVE of the last name", &[root], |lab, now| {
                lab.store.remove(&ROOT, root, b"n", now)
            });
            still.changes("MKDIR", &[root], |lab, now| {
                lab.store.make_directory(&ROOT, root, b"n", &NONE, now).map(|_| ())
            });
            still.changes("RMDIR", &[root], |lab, now| lab.store.remove_directory(&ROOT, root, b"n", now));
            still.changes("SYMLINK", &[root], |lab, now| {
                lab.store.make_symlink(&ROOT, root, b"s", b"to", &NONE, now).map(|_| ())
            });
            still.changes("MKNOD", &[root], |lab, now| {
                lab.store.make_special(&ROOT, root, b"p", Special::Fifo, &NONE, now).map(|_| ())
            });
            let (s, moved) = ((root, &b"s"[..]), (root, &b"t"[..]));
            still.changes("RENAME", &[root], |lab, now| lab.store.rename(&ROOT, s, moved, now));
            still.changes("RENAME elsewhere", &[root, other, file], |lab, now| {
                lab.store.rename(&ROOT, (root, b"f"), (other, b"f"), now)
            });
            still.changes("and back", &[root, other, file], |lab, now| {
                lab.store.rename(&ROOT, (other, b"f"), (root, b"f"), now)
            });
            still.changes("LINK over which", &[file], |lab, now| {
                lab.store.link(&ROOT, file, other, b"l", now)
            });
            still.changes("RENAME replaces a name", &[root, other, file], |lab, now| {
                lab.store.rename(&ROOT, (root, b"t"), (other, b"l"), now)
            });
            for (directory, name) in [(root, &b"p"[..]), (other, b"l")] {
                still.changes("REMOVE", &[directory], |lab, now| {
                    lab.store.remove(&ROOT, directory, name, now)
                });
            }
        }
        // What is new has one time, that of the clock.
        let made = still.lab.store.create(&ROOT, root, b"new", &CreateMode::Guarded(set), now).unwrap();
        let made = still.lab.store.attributes(made).unwrap();
        assert_eq!((made.atime, made.mtime, made.ctime), (now, now, now));
    }
}

/// A SETATTR that is guarded by the ctime of before a WRITE does nothing, even when both came at one instant.
#[test]
fn a_guard_sees_each_change() {
    let mut lab = Lab::new(64);
    let (file, now) = (lab.file("f"), Timestamp { seconds: 9000, nanoseconds: 1 });
    let mut write = |octets| {
        let data = WriteData::Inline(octets);
        let done = lab.store.write(&ROOT, file, 0, data, Stability::FileSync, now);
        assert!(done.is_ok());
        lab.store.attributes(file).unwrap()
    };
    let (one, other) = (write(b"one"), write(b"two"));
    assert!(other.ctime > one.ctime && other.mtime > one.mtime);
    let set = Update { size: Some(0), ..NONE };
    assert_eq!(lab.store.set_guarded(&ROOT, file, &set, one.ctime, now), Err(FsError::NotSame));
    assert_eq!(lab.store.set_guarded(&ROOT, file, &set, other.ctime, now), Ok(()));
}

/// The last instant that RFC 1813's times can say: time stands still there, and nothing breaks.
#[test]
fn time_ends() {
    let mut lab = Lab::new(64);
    let file = lab.file("f");
    let end = Timestamp { seconds: i64::MAX, nanoseconds: 999_999_999 };
    for _ in 0..2 {
        let data = WriteData::Inline(b"x");
        assert!(lab.store.write(&ROOT, file, 0, data, Stability::FileSync, end).is_ok());
        assert_eq!(lab.store.attributes(file).unwrap().ctime, end);
    }
}

/// What an object is after a change is told as it is, also if several changes of it come in one pass and none is synced.
#[test]
fn each_change_tells_what_the_object_is_then() {
    let mut lab = Lab::directory(64, |config| {
        config.sync = false;
        config.may_wait = Some(MayWait::Nothing);
    });
    let file = lab.file("f");
    for size in 1..4 {
        let now = lab.now();
        lab.store.set_attributes(&ROOT, file, &Update { size: Some(size), ..NONE }, now).unwrap();
        assert_eq!(lab.store.attributes_after(file).unwrap().size, size);
    }
}

/// Look-ups that come together may share what their directory was; but not beyond a change by any reactor of the server, and not
/// beyond the pass.
#[test]
fn a_look_up_knows_what_the_server_changed_before_it() {
    let scratch = Scratch::folder();
    let pool = Lab::pool(PAGE, 64);
    let config = DirectoryConfig { may_wait: Some(MayWait::Nothing), ..DirectoryConfig::new(&scratch.0, 78) };
    let open = || DirectoryStore::new(&config, Disk::new(&DiskConfig::default(), &[]), pool.clone()).unwrap();
    let (one, mut other) = (open(), open());
    let root = one.profile().root;
    let mode = |store: &DirectoryStore| store.stat_to_search(root).map(|seen| seen.mode);
    assert_eq!(mode(&one), Ok(0o755));
    let seen = other.stat(root).unwrap();
    for wanted in [0o700, 0o711] {
        let set = Update { mode: Some(wanted), ..NONE };
        assert_eq!(other.update(&ROOT, &seen, &set, Timestamp::default()), Ok(Progress::Done(())));
        assert_eq!((mode(&one), mode(&other)), (Ok(wanted), Ok(wanted)));
    }
    let mut one = one;
    fs::set_permissions(&scratch.0, Permissions::from_mode(0o751)).unwrap();
    assert_eq!(one.poll_later(Duration::ZERO), None);
    assert_eq!(mode(&one), Ok(0o751), "what is changed locally counts from the next pass on");
}
