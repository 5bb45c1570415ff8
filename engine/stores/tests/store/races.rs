//! Names that somebody on the server exchanges for others while a Call is at them: what they lead to by then is neither
//! given away, nor changed, read, moved or removed.
//!
//! Each race takes a second; `STAG_RACE_SECONDS=60` makes it a minute.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, mkfifoat, renameat_with};
use stag_runtime::Clock;
use stag_vfs::{
    CreateMode, FsError, ObjectId, Special, Stability, TimeUpdate, Timestamp, Update, UserIdentity, WriteData,
};

use crate::lab::{Lab, NONE, is_root};

/// A user of the server, who may change names in the directory of the race.
const USER: u32 = 1000;

/// Somebody else's, which the name leads to now and then.
const VICTIM: &str = "victim";
/// What the Calls are about.
const NAME: &str = "name";

const SECRET: &[u8] = b"the superuser's own";

struct Race {
    lab: Lab,
    /// The directory of the race, and where it is.
    folder: ObjectId,
    path: PathBuf,
    user: UserIdentity,
}

/// Lets another thread act only while a Call is under way.
#[derive(Default)]
struct Gate {
    is_open: AtomicBool,
    is_acting: AtomicBool,
}

impl Gate {
    fn open(&self) {
        self.is_open.store(true, Ordering::SeqCst);
    }

    fn close(&self) {
        self.is_open.store(false, Ordering::SeqCst);
        while self.is_acting.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    /// On the other thread: acts if it may, or lets others run.
    fn pass(&self, act: impl FnOnce()) {
        // Set before the call, so that the closing thread sees it.
        self.is_acting.store(true, Ordering::SeqCst);
        let is_open = self.is_open.load(Ordering::SeqCst);
        if is_open {
            act();
        }
        self.is_acting.store(false, Ordering::SeqCst);
        if !is_open {
            std::hint::spin_loop();
        }
    }
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What of a victim must stay as it is.
fn traits(path: &Path) -> (u64, u32, u32, u32, i64, u64, u64) {
    let found = fs::symlink_metadata(path).unwrap();
    let is_directory = found.is_dir();
    let (links, size) = if is_directory { (0, 0) } else { (found.nlink(), found.size()) };
    // The times of a directory are those of its names, too.
    (found.ino(), found.uid(), found.gid(), found.mode(), found.mtime(), links, size)
}

impl Race {
    /// A directory that belongs to the user, with the victim that `make` makes.
    fn new(mode: u32, make: impl FnOnce(&Path)) -> Race {
        let mut lab = Lab::directory(64, |config| config.sync = false);
        let root = lab.root();
        let folder = lab.mkdir(&UserIdentity::ROOT, root, "folder", 0o755).unwrap();
        let path = lab.scratch.as_ref().unwrap().0.join("folder");
        make(&path.join(VICTIM));
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        if mode & 0o1000 == 0 {
            chown(&path, Some(USER), Some(USER)).unwrap();
        }
        Race { lab, folder, path, user: UserIdentity::new(USER, USER, []) }
    }

    /// Lets `call` run while the two names are exchanged all the time, for as long as the races take. `begin` is done before
    /// each, and `end` after it, while nothing is exchanged.
    fn run(
        &mut self,
        what: &str,
        mut begin: impl FnMut(&mut Race),
        mut call: impl FnMut(&mut Race),
        mut end: impl FnMut(&mut Race),
    ) {
        let seconds = std::env::var("STAG_RACE_SECONDS").map_or(1.0, |text| text.parse().unwrap());
        let (clock, time) = (Clock::start(), Duration::from_secs_f64(seconds));
        let (victim, name) = (self.path.join(VICTIM), self.path.join(NAME));
        let before = traits(&victim);
        let exchange = || renameat_with(CWD, &victim, CWD, &name, RenameFlags::EXCHANGE).is_ok();
        let (gate, is_over) = (Gate::default(), AtomicBool::new(false));
        let (mut rounds, mut exchanged) = (0, 0);
        std::thread::scope(|scope| {
            let adversary = scope.spawn(|| {
                let mut count = 0;
                while !is_over.load(Ordering::SeqCst) {
                    gate.pass(|| count += u64::from(exchange()));
                }
                count
            });
            // Also when an assertion fails.
            let over = Over(&is_over);
            while clock.now() < time {
                begin(self);
                gate.open();
                call(self);
                gate.close();
                rounds += 1;
                if name.symlink_metadata().is_ok_and(|found| found.ino() == before.0) && !exchange() {
                    // The other is not there: where it was, too.
                    fs::rename(&name, &victim).unwrap();
                }
                let is_there = victim.symlink_metadata().is_ok_and(|found| found.ino() == before.0);
                assert_eq!(is_there.then(|| traits(&victim)), Some(before), "{what}, round {rounds}");
                end(self);
            }
            drop(over);
            exchanged = adversary.join().unwrap();
        });
        println!("{what}: {rounds} rounds, {exchanged} exchanges");
        assert!(rounds > 0);
    }

    fn clear(&mut self) {
        let name = self.path.join(NAME);
        let _ = fs::remove_dir(&name).or_else(|_| fs::remove_file(&name));
    }

    /// Makes the user's own file, and finds it.
    fn file(&mut self) -> ObjectId {
        let (user, folder) = (self.user, self.folder);
        self.lab.create(&user, folder, NAME, &CreateMode::Unchecked(NONE)).unwrap()
    }
}

fn applies() -> bool {
    if !is_root() {
        stag_testing::skipped("only root has what is not everybody's");
    }
    is_root()
}

fn secret_file(path: &Path) {
    fs::write(path, SECRET).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

fn secret_directory(path: &Path) {
    fs::create_dir(path).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
    // Not even root removes it.
    fs::write(path.join("inside"), SECRET).unwrap();
}

/// All that a Call can ask for beside the object itself, so that as much as possible is left for a second system call.
fn everything() -> Update {
    let time = TimeUpdate::To(Timestamp { seconds: 77, nanoseconds: 0 });
    Update { mode: Some(0o2777), atime: time, mtime: time, ..NONE }
}

#[test]
fn a_directory_that_is_made() {
    if !applies() {
        return;
    }
    for set in [everything(), Update { mode: Some(0o755), ..NONE }] {
        Race::new(0o755, secret_directory).run(
            "MKDIR",
            |_| {},
            |race| {
                let now = race.lab.now();
                let _ = race.lab.store.make_directory(&race.user, race.folder, NAME.as_bytes(), &set, now);
                let _ = race.lab.settle();
            },
            Race::clear,
        );
    }
}

/// The superuser makes a directory for somebody else.
#[test]
fn a_directory_that_is_made_for_another() {
    if !applies() {
        return;
    }
    let set = Update { uid: Some(USER), gid: Some(USER), mode: Some(0o777), ..NONE };
    Race::new(0o755, secret_directory).run(
        "MKDIR by root",
        |_| {},
        |race| {
            let now = race.lab.now();
            let _ =
                race.lab.store.make_directory(&UserIdentity::ROOT, race.folder, NAME.as_bytes(), &set, now);
            let _ = race.lab.settle();
        },
        Race::clear,
    );
}

#[test]
fn a_pipe_that_is_made() {
    if !applies() {
        return;
    }
    let pipe = |path: &Path| mkfifoat(CWD, path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    Race::new(0o755, pipe).run(
        "MKNOD",
        |_| {},
        |race| {
            let (now, set) = (race.lab.now(), everything());
            let (name, what) = (NAME.as_bytes(), Special::Fifo);
            let _ = race.lab.store.make_special(&race.user, race.folder, name, what, &set, now);
            let _ = race.lab.settle();
        },
        Race::clear,
    );
}

#[test]
fn a_symbolic_link_that_is_made() {
    if !applies() {
        return;
    }
    Race::new(0o755, |path| symlink("/secret", path).unwrap()).run(
        "SYMLINK",
        |_| {},
        |race| {
            let (now, set) = (race.lab.now(), Update { mode: None, ..everything() });
            let _ = race.lab.store.make_symlink(&race.user, race.folder, NAME.as_bytes(), b"x", &set, now);
            let _ = race.lab.settle();
        },
        Race::clear,
    );
}

#[test]
fn a_file_that_is_made() {
    if !applies() {
        return;
    }
    Race::new(0o755, secret_file).run(
        "CREATE",
        |_| {},
        |race| {
            let now = race.lab.now();
            let how = CreateMode::Unchecked(Update { size: Some(1), ..everything() });
            let _ = race.lab.store.create(&race.user, race.folder, NAME.as_bytes(), &how, now);
            let _ = race.lab.settle();
        },
        Race::clear,
    );
}

/// A file that is known, and no longer open: it is opened again by each Call.
#[test]
fn a_file_that_is_changed_and_read() {
    if !applies() {
        return;
    }
    Race::new(0o755, secret_file).run(
        "SETATTR, WRITE, READ",
        |race| {
            let scratch = race.lab.scratch.take().unwrap();
            let id = race.file();
            let store = Lab::open(&scratch, &race.lab.pool, |config| config.sync = false);
            (race.lab.store, race.lab.scratch) = (store, Some(scratch));
            let at = race.lab.store.lookup(&UserIdentity::ROOT, race.lab.root(), b"folder").unwrap();
            assert_eq!(race.lab.store.lookup(&UserIdentity::ROOT, at, NAME.as_bytes()), Ok(id));
        },
        |race| {
            let file = race.lab.store.lookup(&race.user, race.folder, NAME.as_bytes());
            let Ok(file) = file else { return };
            let user = race.user;
            let _ = race.lab.set(&user, file, Update { size: Some(3), mode: Some(0o666), ..NONE });
            let data = WriteData::Inline(b"by the user");
            let _ = race.lab.write_of(&user, file, 0, data, Stability::Unstable);
            let now = race.lab.now();
            let mut pieces = Vec::with_capacity(16);
            if let Ok(begun) = race.lab.store.read(&user, file, 0, 99, &mut pieces, now) {
                let _ = race.lab.wait(begun, &mut pieces, |done| match done {
                    stag_vfs::Finished::Read(done) => Some(done),
                    _ => None,
                });
            }
            assert!(!pieces.iter().any(|piece| piece.starts_with(SECRET)), "read");
        },
        Race::clear,
    );
}

/// In a directory like /tmp, where each may remove only what is its own.
#[test]
fn a_file_that_is_removed() {
    if !applies() {
        return;
    }
    Race::new(0o1777, secret_file).run(
        "REMOVE",
        |race| {
            race.file();
        },
        |race| {
            let now = race.lab.now();
            let _ = race.lab.store.remove(&race.user, race.folder, NAME.as_bytes(), now);
            let _ = race.lab.settle();
        },
        Race::clear,
    );
}

#[test]
fn a_directory_that_is_removed() {
    if !applies() {
        return;
    }
    let make = |path: &Path| {
        fs::create_dir(path).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
    };
    Race::new(0o1777, make).run(
        "RMDIR",
        |race| {
            let (user, folder) = (race.user, race.folder);
            let made = race.lab.mkdir(&user, folder, NAME, 0o755);
            assert!(matches!(made, Ok(_) | Err(FsError::Exists)), "{made:?}");
        },
        |race| {
            let now = race.lab.now();
            let _ = race.lab.store.remove_directory(&race.user, race.folder, NAME.as_bytes(), now);
            let _ = race.lab.settle();
        },
        Race::clear,
    );
}

#[test]
fn a_file_that_is_renamed() {
    if !applies() {
        return;
    }
    Race::new(0o1777, secret_file).run(
        "RENAME",
        |race| {
            race.file();
        },
        |race| {
            let now = race.lab.now();
            let (from, to) = ((race.folder, NAME.as_bytes()), (race.folder, &b"other"[..]));
            let _ = race.lab.store.rename(&race.user, from, to, now);
            let _ = race.lab.settle();
        },
        |race| {
            let _ = fs::remove_file(race.path.join("other"));
            race.clear();
        },
    );
}

/// A directory that the user may not write does not get another `..`.
#[test]
fn a_directory_that_is_moved() {
    if !applies() {
        return;
    }
    Race::new(0o755, secret_directory).run(
        "RENAME of a directory",
        |race| {
            let (user, folder) = (race.user, race.folder);
            let made = race.lab.mkdir(&user, folder, NAME, 0o755);
            assert!(matches!(made, Ok(_) | Err(FsError::Exists)), "{made:?}");
            let made = race.lab.mkdir(&user, folder, "below", 0o755);
            assert!(matches!(made, Ok(_) | Err(FsError::Exists)), "{made:?}");
        },
        |race| {
            let now = race.lab.now();
            let below = race.lab.store.lookup(&race.user, race.folder, b"below").unwrap();
            let (from, to) = ((race.folder, NAME.as_bytes()), (below, &b"moved"[..]));
            let _ = race.lab.store.rename(&race.user, from, to, now);
            let _ = race.lab.settle();
        },
        |race| {
            let _ = fs::remove_dir(race.path.join("below/moved"));
            race.clear();
        },
    );
}

/// Somebody else's file gets no name, not even for a moment.
#[test]
fn a_file_that_gets_another_name() {
    if !applies() {
        return;
    }
    let mut race = Race::new(0o755, secret_file);
    let victim = fs::metadata(race.path.join(VICTIM)).unwrap().ino();
    race.run(
        "LINK",
        |race| {
            race.file();
            // Known by this name.
            race.lab.store.lookup(&race.user, race.folder, NAME.as_bytes()).unwrap();
        },
        |race| {
            let file = race.lab.store.lookup(&race.user, race.folder, NAME.as_bytes());
            let Some(file) = file.ok().filter(|file| file.fileid != victim) else { return };
            let now = race.lab.now();
            let done = race.lab.store.link(&race.user, file, race.folder, b"other", now);
            let linked = fs::symlink_metadata(race.path.join("other"));
            assert!(linked.is_err() || linked.unwrap().ino() == file.fileid);
            assert_ne!(done, Err(FsError::Busy), "there was no other object to link to");
            let _ = race.lab.settle();
        },
        |race| {
            let _ = fs::remove_file(race.path.join("other"));
            race.clear();
        },
    );
}

/// What was made cannot be what was asked for, and is taken back: only what was made.
#[test]
fn a_file_that_cannot_be_made() {
    if !applies() {
        return;
    }
    let mut race = Race::new(0o1777, secret_file);
    if race.lab.store.limits().file_len_max == i64::MAX as u64 {
        return stag_testing::skipped("no file is too large here");
    }
    race.run(
        "CREATE that fails",
        |_| {},
        |race| {
            let now = race.lab.now();
            let set = Update { size: Some(i64::MAX as u64), ..everything() };
            let (name, how) = (NAME.as_bytes(), CreateMode::Guarded(set));
            let made = race.lab.store.create(&race.user, race.folder, name, &how, now);
            assert!(
                matches!(made, Err(FsError::TooLarge | FsError::Exists | FsError::AccessDenied)),
                "{made:?}"
            );
            let _ = race.lab.settle();
        },
        Race::clear,
    );
}
