//! What only a store of a directory has: a world beside it that changes the files, restarts, and descriptors.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::procedures::Procedures;
use crate::procedures::Start;
use stag_disk::{Disk, DiskConfig};
use stag_memory::Pool;
use stag_stores::directory::{DirectoryConfig, DirectoryError, DirectoryStore, MayWait, stable_fsid};
use stag_testing::Scratch;
use stag_vfs::{
    CreateMode, DeviceId, FsError, ObjectId, ObjectKind, Special, Stability, TimeUpdate, Timestamp, Update,
    UserIdentity, WriteData, WriteDone,
};

use crate::lab::{Lab, NONE, PAGE, is_root};
use crate::unprivileged;

const ROOT: UserIdentity = UserIdentity::ROOT;

fn lab() -> Lab {
    Lab::directory(512, |_| {})
}

fn path(lab: &Lab) -> PathBuf {
    lab.scratch.as_ref().unwrap().0.clone()
}

/// Looks up name by name.
fn walk(lab: &Lab, names: &[&str]) -> Result<ObjectId, FsError> {
    names.iter().try_fold(lab.root(), |at, name| lab.store.lookup(&ROOT, at, name.as_bytes()))
}

/// Descriptors of this process that lead into `path`.
fn descriptors(path: &Path) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap();
    links
        .filter(|link| fs::read_link(link.as_ref().unwrap().path()).is_ok_and(|to| to.starts_with(path)))
        .count()
}

/// Asks until the store has looked everywhere. Each look is a pass.
fn patiently<T>(lab: &mut Lab, mut ask: impl FnMut(&mut Lab) -> Result<T, FsError>) -> Result<T, FsError> {
    for _ in 0..10_000 {
        match ask(lab) {
            Err(FsError::Busy) => assert!(lab.store.poll_later(Duration::ZERO).is_none()),
            answer => return answer,
        }
    }
    panic!("it is retried for ever")
}

// Nothing outside can be reached.

#[test]
fn symbolic_links_are_told_about_and_never_followed() {
    let outside = Scratch::folder();
    fs::write(outside.0.join("secret"), "secret").unwrap();
    let mut lab = lab();
    let top = path(&lab);
    symlink(&outside.0, top.join("out")).unwrap();
    symlink(outside.0.join("secret"), top.join("file")).unwrap();
    symlink("/", top.join("root")).unwrap();
    symlink("..", top.join("up")).unwrap();
    for name in ["out", "file", "root", "up"] {
        let link = walk(&lab, &[name]).unwrap();
        assert_eq!(lab.store.attributes(link).unwrap().kind, ObjectKind::Symlink);
        assert_eq!(lab.store.lookup(&ROOT, link, b"secret"), Err(FsError::NotDirectory), "{name}");
        assert_eq!(lab.read_of(&ROOT, link, 0, 1), Err(FsError::Invalid), "{name}");
        assert_eq!(lab.write(link, 0, b"x"), Err(FsError::Invalid), "{name}");
        let truncate = Update { size: Some(0), ..NONE };
        assert_eq!(lab.set(&ROOT, link, truncate), Err(FsError::Invalid), "{name}");
        assert_eq!(
            lab.create(&ROOT, link, "x", &CreateMode::Guarded(NONE)),
            Err(FsError::NotDirectory),
            "{name}"
        );
        // CREATE neither follows a link nor replaces it.
        let (root, how) = (lab.root(), CreateMode::Unchecked(Update { size: Some(0), ..NONE }));
        assert_eq!(lab.create(&ROOT, root, name, &how), Err(FsError::Exists), "{name}");
        // Times are the link's own.
        let time = TimeUpdate::To(Timestamp { seconds: 77, nanoseconds: 0 });
        lab.set(&ROOT, link, Update { mtime: time, ..NONE }).unwrap();
        assert_eq!(lab.store.attributes(link).unwrap().mtime.seconds, 77);
    }
    assert_eq!(fs::read(outside.0.join("secret")).unwrap(), b"secret");
    assert_eq!(lab.read_link(walk(&lab, &["up"]).unwrap()), Ok(b"..".to_vec()));
}

/// A directory becomes a symbolic link, and a file something else, between two Calls.
#[test]
fn what_is_swapped_under_our_feet_is_not_followed() {
    let outside = Scratch::folder();
    fs::create_dir(outside.0.join("d")).unwrap();
    fs::write(outside.0.join("d/f"), "outside").unwrap();
    let mut lab = lab();
    let top = path(&lab);
    fs::create_dir(top.join("d")).unwrap();
    fs::write(top.join("d/f"), "inside").unwrap();
    let (directory, file) = (walk(&lab, &["d"]).unwrap(), walk(&lab, &["d", "f"]).unwrap());
    assert_eq!(lab.read(file, 0, 10).0, b"inside");

    fs::rename(top.join("d"), top.join("e")).unwrap();
    symlink(outside.0.join("d"), top.join("d")).unwrap();
    // Found where they are now.
    assert_eq!(lab.read(file, 0, 10).0, b"inside");
    assert_eq!(lab.store.lookup(&ROOT, directory, b"f"), Ok(file));
    let root = lab.root();
    assert_eq!(lab.store.lookup(&ROOT, directory, b".."), Ok(root));
    let link = walk(&lab, &["d"]).unwrap();
    assert_eq!(lab.store.lookup(&ROOT, link, b"f"), Err(FsError::NotDirectory));
    fs::remove_file(top.join("e/f")).unwrap();
    fs::create_dir(top.join("e/f")).unwrap();
    assert_eq!(patiently(&mut lab, |lab| lab.store.attributes(file).map(|_| ())), Err(FsError::Stale));
}

/// Even with a handle, what is moved out of the export is out of reach, and so is all below it.
#[test]
fn what_is_moved_out_of_the_export_is_gone() {
    for by_handle in [true, false] {
        let outside = Scratch::folder();
        let mut lab = Lab::directory(512, |config| config.by_handle = by_handle);
        let top = path(&lab);
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::write(top.join("a/b/f"), "x").unwrap();
        fs::write(top.join("g"), "y").unwrap();
        let (a, b) = (walk(&lab, &["a"]).unwrap(), walk(&lab, &["a", "b"]).unwrap());
        let (f, g) = (walk(&lab, &["a", "b", "f"]).unwrap(), walk(&lab, &["g"]).unwrap());
        assert_eq!(lab.read(f, 0, 9).0, b"x");
        fs::rename(top.join("a"), outside.0.join("a")).unwrap();
        fs::rename(top.join("g"), outside.0.join("g")).unwrap();
        for object in [f, b, a, g] {
            let found = patiently(&mut lab, |lab| lab.store.attributes(object).map(|_| ()));
            assert_eq!(found, Err(FsError::Stale), "by handle: {by_handle}");
        }
        assert_eq!(patiently(&mut lab, |lab| lab.store.lookup(&ROOT, b, b"..")), Err(FsError::Stale));
        assert_eq!(patiently(&mut lab, |lab| lab.store.lookup(&ROOT, b, b"f")), Err(FsError::Stale));
        let made = patiently(&mut lab, |lab| lab.create(&ROOT, b, "new", &CreateMode::Guarded(NONE)));
        assert_eq!(made, Err(FsError::Stale));
        assert!(!outside.0.join("a/b/new").exists());
        assert_eq!(patiently(&mut lab, |lab| lab.write(g, 0, b"z").map(|_| ())), Err(FsError::Stale));
        assert_eq!(fs::read(outside.0.join("g")).unwrap(), b"y");
    }
}

#[test]
fn the_root_is_the_top() {
    let mut lab = lab();
    let root = lab.root();
    assert_eq!(lab.store.lookup(&ROOT, root, b".."), Ok(root));
    let (entries, _) = lab.list(root, 0, 9);
    assert_eq!(entries.len(), 2);
    let verifier = lab.store.list_verifier(root).unwrap();
    let start = Start { cookie: 0, verifier, attributes: true };
    let now = lab.now();
    let all = lab.store.list(&ROOT, root, start, now, |entry| {
        assert_eq!((entry.object, entry.attributes.unwrap().object.fileid), (root, root.fileid));
        true
    });
    assert_eq!(all, Ok(true));
    for name in [&b"../x"[..], b"..", b"/etc", b"a/../../b", b"", b"\0"] {
        let (how, now) = (CreateMode::Guarded(NONE), lab.now());
        assert!(lab.store.create(&ROOT, root, name, &how, now).is_err(), "{name:?}");
    }
    // A handle of something that exists, but elsewhere.
    for elsewhere in ["/", "/proc", "/dev/null"] {
        use std::os::unix::fs::MetadataExt;
        let fileid = fs::metadata(elsewhere).unwrap().ino();
        for generation in [0, 1] {
            let object = ObjectId { fileid, generation };
            let found = patiently(&mut lab, |lab| lab.store.attributes(object).map(|_| ()));
            assert!(found == Err(FsError::Stale) || object == root, "{elsewhere}");
        }
    }
}

#[test]
fn hostile_names_are_only_names() {
    let mut lab = lab();
    let root = lab.root();
    let names: [&[u8]; 7] = [b"...", b"\n", b"-rf", b"*", b"\xff\xfe", b"a\\b", &[b'x'; 255]];
    for name in names {
        let now = lab.now();
        let made = lab.store.create(&ROOT, root, name, &CreateMode::Guarded(NONE), now).unwrap();
        assert_eq!(lab.store.lookup(&ROOT, root, name), Ok(made));
        lab.store.remove(&ROOT, root, name, now).unwrap();
        assert_eq!(lab.store.attributes(made), Err(FsError::Stale));
    }
    assert_eq!(fs::read_dir(path(&lab)).unwrap().count(), 0);
}

// Handles.

/// The same directory, opened again: by the kernel's handles if they are permitted, and by search.
#[test]
fn handles_survive_a_restart() {
    for by_handle in [true, false] {
        let mut lab = lab();
        let root = lab.root();
        let mut known = Vec::new();
        for index in 0..20 {
            let directory = lab.mkdir(&ROOT, root, &format!("d{index}"), 0o755).unwrap();
            let inner = lab.mkdir(&ROOT, directory, "inner", 0o755).unwrap();
            let file = lab.create(&ROOT, inner, "f", &CreateMode::Guarded(NONE)).unwrap();
            lab.write(file, 0, format!("{index}").as_bytes()).unwrap();
            let now = lab.now();
            let link = lab.store.make_symlink(&ROOT, inner, b"l", b"x", &NONE, now).unwrap();
            known.push((index, directory, inner, file, link));
        }
        let gone = lab.file("gone");
        let before = descriptors(&path(&lab));
        assert!(before > 20, "{before}");
        let scratch = lab.scratch.take().unwrap();
        let pool = lab.pool.clone();
        let verifier = lab.store.write_verifier();
        drop(lab);
        assert_eq!(descriptors(&scratch.0), 0, "no descriptor is left open");
        fs::remove_file(scratch.0.join("gone")).unwrap();
        fs::rename(scratch.0.join("d3"), scratch.0.join("d4/d3")).unwrap();

        let store = Lab::open(&scratch, &pool, |config| config.by_handle = by_handle);
        let mut lab = Lab { pool, store, seconds: 0, baseline: 0, scratch: Some(scratch) };
        assert_eq!(lab.root(), root);
        assert_ne!(lab.store.write_verifier(), verifier, "what was not committed may be lost");
        for (index, directory, inner, file, link) in known {
            let attributes = patiently(&mut lab, |lab| lab.store.attributes(file)).unwrap();
            assert_eq!(attributes.object.fileid, file.fileid);
            assert_eq!(lab.read(file, 0, 9).0, format!("{index}").as_bytes());
            assert_eq!(patiently(&mut lab, |lab| lab.read_link(link)), Ok(b"x".to_vec()));
            assert_eq!(patiently(&mut lab, |lab| lab.store.lookup(&ROOT, inner, b"f")), Ok(file));
            assert_eq!(patiently(&mut lab, |lab| lab.store.lookup(&ROOT, inner, b"..")), Ok(directory));
        }
        let found = patiently(&mut lab, |lab| lab.store.attributes(gone).map(|_| ()));
        assert_eq!(found, Err(FsError::Stale));
    }
}

/// A tree too large for one look: clients are told to try again, the walk goes on pass by pass, and what it found
/// answers all the others at once.
#[test]
fn a_long_search_goes_on_in_slices() {
    let scratch = Scratch::folder();
    for directory in 0..60 {
        let directory = scratch.0.join(format!("d{directory}"));
        fs::create_dir(&directory).unwrap();
        for file in 0..200 {
            fs::write(directory.join(format!("f{file}")), "").unwrap();
        }
    }
    let pool = Lab::pool(PAGE, 64);
    let objects = {
        let store = Lab::open(&scratch, &pool, |_| {});
        ["d0", "d59", "d30"].map(|name| {
            let directory = store.lookup(&ROOT, store.root(), name.as_bytes()).unwrap();
            store.lookup(&ROOT, directory, b"f199").unwrap()
        })
    };
    let store = Lab::open(&scratch, &pool, |config| {
        (config.by_handle, config.may_wait) = (false, Some(MayWait::Nothing));
    });
    let mut lab = Lab { pool, store, seconds: 0, baseline: 0, scratch: Some(scratch) };
    let nowhere = ObjectId { fileid: u64::MAX - 1, generation: 0 };
    assert_eq!(lab.store.attributes(nowhere), Err(FsError::Busy));
    assert!(lab.store.is_busy(), "the reactor may not sleep while the walk is under way");
    let mut passes = 0;
    while lab.store.is_busy() {
        assert!(lab.store.poll_later(Duration::ZERO).is_none());
        passes += 1;
    }
    assert!(passes > 1, "{passes}");
    for object in objects {
        assert_eq!(lab.store.attributes(object).unwrap().object.fileid, object.fileid);
    }
    assert_eq!(lab.store.attributes(nowhere), Err(FsError::Stale));
    assert!(!lab.store.is_busy(), "what is nowhere is not looked for again and again");
    assert_eq!(lab.store.attributes(nowhere), Err(FsError::Stale));
}

/// Root asks the kernel: a restart needs no walk, whatever the size of the tree, and what is gone for good is so at once.
#[test]
fn the_kernel_opens_by_handle_for_root() {
    if !is_root() {
        return stag_testing::skipped("only root opens by handle");
    }
    let scratch = Scratch::folder();
    for directory in 0..60 {
        let directory = scratch.0.join(format!("d{directory}/inner"));
        fs::create_dir_all(&directory).unwrap();
        for file in 0..200 {
            fs::write(directory.join(format!("f{file}")), "").unwrap();
        }
    }
    let pool = Lab::pool(PAGE, 64);
    let find = |store: &Procedures, names: [&str; 3]| {
        let look = |at, name: &str| store.lookup(&ROOT, at, name.as_bytes()).unwrap();
        let above = look(look(store.root(), names[0]), names[1]);
        (above, look(above, names[2]))
    };
    let (known, gone) = {
        let store = Lab::open(&scratch, &pool, |_| {});
        let gone = find(&store, ["d7", "inner", "f0"]).1;
        (["d0", "d59", "d30"].map(|name| find(&store, [name, "inner", "f199"])), gone)
    };
    fs::remove_file(scratch.0.join("d7/inner/f0")).unwrap();
    let store = Lab::open(&scratch, &pool, |_| {});
    if handle_of(&scratch.0).is_none() {
        return stag_testing::skipped(format_args!("no file handles in {}", scratch.0.display()));
    }
    for (above, file) in known {
        assert_eq!(store.attributes(file).map(|found| found.object.fileid), Ok(file.fileid));
        assert_eq!(store.lookup(&ROOT, above, b"f199"), Ok(file));
    }
    assert_eq!(store.attributes(gone), Err(FsError::Stale));
    assert!(!store.is_busy(), "nothing was searched for");
}

fn handle_of(path: &Path) -> Option<stag_disk::system::FileHandle> {
    let file = fs::File::open(path).ok()?;
    stag_disk::system::file_handle(std::os::fd::AsFd::as_fd(&file), c"").ok()
}

/// What was moved out is not there, and it is there again as soon as it is moved back in.
#[test]
fn what_comes_back_is_found_at_once() {
    if !is_root() {
        return stag_testing::skipped("only root opens by handle");
    }
    let (outside, mut lab) = (Scratch::folder(), lab());
    let top = path(&lab);
    fs::create_dir_all(top.join("a/b")).unwrap();
    fs::write(top.join("a/b/f"), "x").unwrap();
    let (b, f) = (walk(&lab, &["a", "b"]).unwrap(), walk(&lab, &["a", "b", "f"]).unwrap());
    for _ in 0..3 {
        fs::rename(top.join("a/b"), outside.0.join("b")).unwrap();
        for object in [f, b] {
            let found = patiently(&mut lab, |lab| lab.store.attributes(object).map(|_| ()));
            assert_eq!(found, Err(FsError::Stale));
        }
        fs::rename(outside.0.join("b"), top.join("a/b")).unwrap();
        for object in [f, b] {
            assert_eq!(lab.store.attributes(object).map(|found| found.object.fileid), Ok(object.fileid));
        }
    }
}

/// Where the store can no longer find what it makes, it makes nothing; and what somebody else made there is too deep, not
/// busy for ever.
#[test]
fn a_tree_that_is_too_deep() {
    let mut lab = Lab::directory(64, |config| {
        (config.trust, config.sync) = (Duration::from_secs(1), false);
    });
    let mut at = lab.root();
    let mut path = vec![at];
    let refused = loop {
        match lab.mkdir(&ROOT, at, "d", 0o755) {
            Ok(made) => at = made,
            Err(status) => break status,
        }
        path.push(at);
        assert!(path.len() < 4000, "deeper than it can be found again");
    };
    assert_eq!(refused, FsError::NameTooLong);
    assert_eq!(lab.create(&ROOT, at, "f", &CreateMode::Guarded(NONE)), Err(FsError::NameTooLong));
    assert_eq!(lab.rename(&ROOT, (lab.store.root(), "d"), (at, "e")), Err(FsError::NameTooLong));
    // Nothing is believed any more.
    assert!(lab.store.poll_later(Duration::from_secs(10)).is_none());
    assert_eq!(lab.store.attributes(at).map(|found| found.object.fileid), Ok(at.fileid));
    assert_eq!(lab.list(at, 0, 9).0.len(), 2, "nothing was made");
    // One level more, by moving the whole: what was the deepest is out of reach, and is said to be.
    let root = lab.root();
    let above = lab.mkdir(&ROOT, root, "above", 0o755).unwrap();
    lab.rename(&ROOT, (root, "d"), (above, "d")).unwrap();
    assert!(lab.store.poll_later(Duration::from_secs(20)).is_none());
    assert_eq!(lab.store.attributes(at).map(|_| ()), Err(FsError::NameTooLong));
    assert_eq!(lab.store.attributes(path[path.len() - 2]).map(|_| ()), Ok(()));
    // As deep as it is, not every way of removing it gets there.
    let top = lab.scratch.as_ref().unwrap().0.join("above");
    assert!(std::process::Command::new("rm").arg("-rf").arg(top).status().unwrap().success());
}

/// Two names of one file: it stays in reach by the other one, whichever is removed or replaced.
#[test]
fn hard_links_are_one_file() {
    let mut lab = lab();
    let (root, top) = (lab.root(), path(&lab));
    let file = lab.file("a");
    let now = lab.now();
    lab.store.link(&ROOT, file, root, b"b", now).unwrap();
    fs::hard_link(top.join("a"), top.join("c")).unwrap();
    assert_eq!(walk(&lab, &["b"]), Ok(file));
    assert_eq!(lab.store.attributes(file).unwrap().nlink, 3);
    lab.remove(root, "b").unwrap();
    assert_eq!(lab.store.attributes(file).unwrap().nlink, 2);
    fs::remove_file(top.join("a")).unwrap();
    // By the name that the store has never seen.
    let attributes = patiently(&mut lab, |lab| lab.store.attributes(file)).unwrap();
    assert_eq!(attributes.nlink, 1);
    assert_eq!(walk(&lab, &["c"]), Ok(file));
    fs::remove_file(top.join("c")).unwrap();
    assert_eq!(lab.store.attributes(file), Err(FsError::Stale));
}

/// Far more objects than may be known and descriptors than may be open.
#[test]
fn nodes_and_descriptors_are_bounded() {
    let mut lab = Lab::directory(64, |config| (config.objects_max, config.descriptors_max) = (100, 20));
    let root = lab.root();
    let mut files = Vec::new();
    for index in 0..300 {
        let directory = match index % 10 {
            0 => lab.mkdir(&ROOT, root, &format!("d{index}"), 0o755).unwrap(),
            _ => walk(&lab, &[&format!("d{}", index / 10 * 10)]).unwrap(),
        };
        let file = lab.create(&ROOT, directory, "f", &CreateMode::Unchecked(NONE)).unwrap();
        let other = lab.create(&ROOT, directory, &format!("g{index}"), &CreateMode::Guarded(NONE)).unwrap();
        lab.write(other, 0, format!("{index}").as_bytes()).unwrap();
        files.push((file, other));
        let (open, known) = lab.store.of(DirectoryStore::held);
        assert!(open <= 21 && known <= 100, "{open} descriptors, {known} objects");
        assert!(descriptors(&path(&lab)) <= 21);
    }
    // Those that were forgotten are found again.
    for (index, (file, other)) in files.into_iter().enumerate().step_by(7) {
        patiently(&mut lab, |lab| lab.store.attributes(file)).unwrap();
        patiently(&mut lab, |lab| lab.store.attributes(other)).unwrap();
        assert_eq!(lab.read(other, 0, 9).0, format!("{index}").as_bytes());
    }
}

/// A listing has attributes of the directory above, though its descriptor was closed to make room for others.
#[test]
fn the_directory_above_is_described_whether_it_is_open_or_not() {
    // What was found stays trusted, so it is not found anew from the top.
    let change = |config: &mut DirectoryConfig| {
        (config.descriptors_max, config.trust) = (16, Duration::from_secs(60));
    };
    let mut lab = Lab::directory(64, change);
    let root = lab.root();
    let above = lab.mkdir(&ROOT, root, "above", 0o755).unwrap();
    let directory = lab.mkdir(&ROOT, above, "directory", 0o755).unwrap();
    for index in 0..40 {
        lab.mkdir(&ROOT, root, &format!("d{index}"), 0o755).unwrap();
        let verifier = lab.store.list_verifier(directory).unwrap();
        let start = Start { cookie: 0, verifier, attributes: true };
        let now = lab.now();
        let mut found = Vec::new();
        let all = lab.store.list(&ROOT, directory, start, now, |entry| {
            found.push((entry.object, entry.attributes.map(|attributes| attributes.object.fileid)));
            true
        });
        assert_eq!(all, Ok(true));
        found.sort_by_key(|(object, _)| *object != directory);
        let expected = [directory, above].map(|object| (object, Some(object.fileid)));
        assert_eq!(found, expected, "after {index} others");
    }
}

// Data.

#[test]
fn stable_writes_and_commits() {
    let mut lab = lab();
    let file = lab.file("f");
    for (offset, stable) in [(0, Stability::Unstable), (1, Stability::DataSync), (2, Stability::FileSync)] {
        let done = lab.write_of(&ROOT, file, offset, WriteData::Inline(b"x"), stable).unwrap();
        assert_eq!(done, WriteDone { count: 1, committed: stable });
    }
    assert_eq!(lab.commit(file), Ok(()));
    assert_eq!(fs::read(path(&lab).join("f")).unwrap(), b"xxx");
    let root = lab.root();
    assert_eq!(lab.commit(root), Err(FsError::IsDirectory));
}

#[test]
fn holes_stay_holes() {
    let mut lab = lab();
    let file = lab.file("f");
    lab.write(file, 1 << 30, b"end").unwrap();
    let attributes = lab.store.attributes(file).unwrap();
    assert_eq!(attributes.size, (1 << 30) + 3);
    assert!(attributes.used < 1 << 20, "{} octets used", attributes.used);
    let (octets, done) = lab.read(file, 1 << 29, 1 << 20);
    assert!(octets == vec![0; 1 << 20] && !done.eof);
    lab.set(&ROOT, file, Update { size: Some(1 << 31), ..NONE }).unwrap();
    assert!(lab.store.attributes(file).unwrap().used < 1 << 20);
}

/// More READs than there is memory for wait for their turn, in order, and none is lost.
#[test]
fn reads_wait_for_memory() {
    // Where a look at a file may wait, no READ is done at once.
    let mut lab = Lab::directory(64, |config| {
        (config.reading_max, config.may_wait) = (16 * PAGE, Some(MayWait::Everything));
    });
    let file = lab.file("f");
    let octets: Vec<u8> = (0..8 * PAGE).map(|at| (at / 256) as u8).collect();
    lab.write(file, 0, &octets).unwrap();
    let now = lab.now();
    let mut begun: Vec<_> = (0..50)
        .map(|_| {
            let begun = lab.store.read(&ROOT, file, 0, 8 * PAGE as u32, &mut Vec::new(), now).unwrap();
            let stag_vfs::Progress::Later(ticket) = begun else { panic!("{begun:?}") };
            ticket
        })
        .collect();
    while !begun.is_empty() {
        let Some(ticket) = lab.store.poll_later(Duration::ZERO) else { continue };
        assert!(lab.units() <= 16, "{} units", lab.units());
        let mut pieces = Vec::new();
        lab.store.finish(ticket, &mut pieces).unwrap();
        assert!(pieces.iter().flat_map(|piece| piece.iter()).eq(octets.iter()));
        begun.retain(|other| *other != ticket);
    }
    assert_eq!(lab.units(), 0);
}

/// What a file has become while it is written or read.
#[test]
fn a_file_that_is_removed_with_data_in_flight() {
    let mut lab = lab();
    let file = lab.file("f");
    let now = lab.now();
    let begun = lab.store.write(&ROOT, file, 0, WriteData::Inline(b"x"), Stability::Unstable, now).unwrap();
    let (root, now) = (lab.root(), lab.now());
    lab.store.remove(&ROOT, root, b"f", now).unwrap();
    let stag_vfs::Progress::Later(ticket) = begun else { panic!("{begun:?}") };
    while lab.store.poll_later(Duration::ZERO) != Some(ticket) {}
    assert!(lab.store.finish(ticket, &mut Vec::new()).is_ok());
    assert_eq!(lab.store.attributes(file), Err(FsError::Stale));
}

/// Without io_uring and without helpers everything works the same.
#[test]
fn plain_system_calls_do_the_same() {
    let scratch = Scratch::folder();
    let pool = Lab::pool(PAGE, 64);
    let disk = Disk::new(&DiskConfig { uring: false, helpers: false, ..DiskConfig::default() }, &[]);
    let store = DirectoryStore::new(&DirectoryConfig::new(&scratch.0, 1), disk, pool.clone()).unwrap();
    assert!(store.method().to_string().starts_with("plain system calls"));
    let mut lab = Lab { pool, store: store.into(), seconds: 0, baseline: 0, scratch: Some(scratch) };
    let file = lab.file("f");
    lab.write(file, 3, b"abc").unwrap();
    assert_eq!(lab.read(file, 0, 99).0, b"\0\0\0abc");
    assert_eq!(lab.commit(file), Ok(()));
}

// ObjectStat.

#[test]
fn times_and_guards_of_a_real_file() {
    let mut lab = lab();
    let file = lab.file("f");
    let time = |seconds| TimeUpdate::To(Timestamp { seconds, nanoseconds: 5 });
    lab.set(&ROOT, file, Update { atime: time(1000), mtime: time(3_000_000_000), ..NONE }).unwrap();
    let attributes = lab.store.attributes(file).unwrap();
    assert_eq!(attributes.atime, Timestamp { seconds: 1000, nanoseconds: 5 });
    assert_eq!(attributes.mtime.seconds, 3_000_000_000);
    let mode = Update { mode: Some(0o600), ..NONE };
    let (now, old) = (lab.now(), Timestamp { seconds: 1, nanoseconds: 0 });
    assert_eq!(lab.store.set_guarded(&ROOT, file, &mode, old, now), Err(FsError::NotSame));
    assert_eq!(lab.store.set_guarded(&ROOT, file, &mode, attributes.ctime, now), Ok(()));
    assert_eq!(lab.store.attributes(file).unwrap().mode, 0o600);
}

/// An owner that may not read or write its file any more goes on, as it does where files are open.
#[test]
fn a_mode_does_not_stop_who_opened_the_file_before() {
    let mut lab = lab();
    let root = lab.root();
    let read_only = CreateMode::Guarded(Update { mode: Some(0o444), ..NONE });
    let file = lab.create(&ROOT, root, "f", &read_only).unwrap();
    lab.write(file, 0, b"as git does").unwrap();
    assert_eq!(lab.store.attributes(file).unwrap().mode, 0o444);
    let none = CreateMode::Guarded(Update { mode: Some(0), ..NONE });
    let hidden = lab.create(&ROOT, root, "g", &none).unwrap();
    lab.write(hidden, 0, b"hidden").unwrap();

    // Not open any more: another store.
    let scratch = lab.scratch.take().unwrap();
    let store = Lab::open(&scratch, &lab.pool, |_| {});
    let mut lab = Lab { pool: lab.pool.clone(), store, seconds: 0, baseline: 0, scratch: Some(scratch) };
    assert_eq!((walk(&lab, &["f"]), walk(&lab, &["g"])), (Ok(file), Ok(hidden)));
    assert_eq!(lab.read(hidden, 0, 99).0, b"hidden");
    lab.write(file, 0, b"AS").unwrap();
    assert_eq!(lab.read(file, 0, 99).0, b"AS git does");
    let mode = |object| lab.store.attributes(object).unwrap().mode;
    assert_eq!((mode(file), mode(hidden)), (0o444, 0));
}

#[test]
fn devices_need_privilege() {
    let mut lab = lab();
    let (root, now) = (lab.root(), lab.now());
    let device = Special::Character(DeviceId { major: 1, minor: 3 });
    let made = lab.store.make_special(&ROOT, root, b"null", device, &NONE, now);
    if is_root() {
        println!("root: a device can be made, where the machine lets us");
        assert!(made.is_ok() || made == Err(FsError::NotPermitted));
        let user = UserIdentity::new(1, 1, []);
        lab.set(&ROOT, root, Update { mode: Some(0o777), ..NONE }).unwrap();
        assert_eq!(lab.store.make_special(&user, root, b"n", device, &NONE, now), Err(FsError::NotPermitted));
    } else {
        assert_eq!(made, Err(FsError::NotPermitted));
    }
    let fifo = lab.store.make_special(&ROOT, root, b"p", Special::Fifo, &NONE, now).unwrap();
    // Reading a pipe must not wait for a writer.
    assert_eq!(lab.read_of(&ROOT, fifo, 0, 1), Err(FsError::Invalid));
    assert_eq!(lab.store.attributes(fifo).unwrap().kind, ObjectKind::Fifo);
}

#[test]
fn who_is_not_root_is_always_itself() {
    let mut lab = lab();
    let squashed = lab.store.of(DirectoryStore::squashes_to);
    assert_eq!(squashed.is_none(), is_root());
    let Some((uid, gid)) = squashed else {
        return unprivileged::left_to_nobody();
    };
    let root = lab.root();
    let stranger = UserIdentity::new(uid + 1, gid + 1, []);
    let made = lab.create(&stranger, root, "f", &CreateMode::Guarded(NONE)).unwrap();
    assert_eq!(lab.store.attributes(made).unwrap().uid, uid);
    let give = Update { uid: Some(uid + 1), ..NONE };
    assert_eq!(lab.set(&ROOT, made, give), Err(FsError::NotPermitted));
}

/// The kernel's cookies: entries that come and go, and a restart, do not confuse a listing.
#[test]
fn cookies_stay_good() {
    let mut lab = lab();
    let root = lab.root();
    for index in 0..500 {
        lab.file(&format!("f{index:03}"));
    }
    let (first, eof) = lab.list(root, 0, 200);
    assert!(!eof && first.len() == 200);
    let cookie = first[199].1;
    for (name, _) in first[100..].iter().filter(|(name, _)| name.starts_with('f')) {
        lab.remove(root, name).unwrap();
    }
    lab.file("new");
    let scratch = lab.scratch.take().unwrap();
    let store = Lab::open(&scratch, &lab.pool, |_| {});
    let mut lab = Lab { pool: lab.pool.clone(), store, seconds: 0, baseline: 0, scratch: Some(scratch) };
    let mut seen: Vec<String> = first.into_iter().map(|(name, _)| name).collect();
    let mut cookie = cookie;
    loop {
        let (more, eof) = lab.list(root, cookie, 37);
        cookie = more.last().map_or(cookie, |(_, cookie)| *cookie);
        seen.extend(more.into_iter().map(|(name, _)| name));
        if eof {
            break;
        }
    }
    seen.retain(|name| name.starts_with('f'));
    seen.sort();
    let expected: Vec<String> = (0..500).map(|index| format!("f{index:03}")).collect();
    assert_eq!(seen, expected, "each once");
}

#[test]
fn a_store_needs_a_directory_and_descriptors() {
    let scratch = Scratch::folder();
    fs::write(scratch.0.join("file"), "").unwrap();
    let pool: Pool = Lab::pool(PAGE, 16);
    let open = |path: &Path, descriptors_max| {
        let config = DirectoryConfig { descriptors_max, ..DirectoryConfig::new(path, 1) };
        DirectoryStore::new(&config, Disk::new(&DiskConfig::default(), &[]), pool.clone()).err()
    };
    assert!(matches!(open(&scratch.0.join("file"), 16), Some(DirectoryError::Open { .. })));
    assert!(matches!(open(&scratch.0.join("none"), 16), Some(DirectoryError::Open { .. })));
    assert_eq!(open(&scratch.0, 15), Some(DirectoryError::Descriptors { found: 15 }));
    assert_eq!(open(&scratch.0, 16), None);
    // The export's root may be a link: it is the administrator's.
    symlink(&scratch.0, scratch.0.join("link")).unwrap();
    assert_eq!(open(&scratch.0.join("link"), 16), None);
    assert_eq!(stable_fsid("/data"), stable_fsid("/data"));
    assert_ne!(stable_fsid("/data"), stable_fsid("/date"));
    assert_eq!(fs::metadata(&scratch.0).unwrap().permissions().mode() & 0o777, 0o755);
}

/// A program that runs cannot be written, for as long as it runs: that is no reason to try again.
#[test]
fn a_program_that_runs_is_not_written() {
    let mut lab = lab();
    let top = path(&lab);
    fs::copy("/bin/sleep", top.join("program")).unwrap();
    fs::set_permissions(top.join("program"), fs::Permissions::from_mode(0o755)).unwrap();
    let file = walk(&lab, &["program"]).unwrap();
    // What only reads it does not keep it from being started.
    assert_eq!(lab.read(file, 1, 3).0, b"ELF");
    let mut program = std::process::Command::new(top.join("program")).arg("600").spawn().unwrap();
    let (write, cut) = (lab.write(file, 0, b"x"), Update { size: Some(0), ..NONE });
    let cut = lab.set(&ROOT, file, cut);
    program.kill().unwrap();
    program.wait().unwrap();
    assert_eq!((write, cut), (Err(FsError::Io), Err(FsError::Io)));
    assert_eq!(lab.write(file, 0, b"x").map(|done| done.count), Ok(1));
}

/// What fails leaves nothing done that could be taken back.
#[test]
fn a_setattr_that_fails_changes_nothing() {
    let mut lab = lab();
    let file = lab.file("f");
    lab.set(&ROOT, file, Update { mode: Some(0o4755), size: Some(7), ..NONE }).unwrap();
    let before = lab.store.attributes(file).unwrap();
    let too_large = i64::MAX as u64;
    if lab.store.limits().file_len_max == too_large {
        return stag_testing::skipped("no file is too large here");
    }
    let give = is_root().then_some(77);
    let set = Update { mode: Some(0o600), uid: give, gid: give, size: Some(too_large), ..NONE };
    assert_eq!(lab.set(&ROOT, file, set), Err(FsError::TooLarge));
    let set = Update { mode: None, ..set };
    assert_eq!(lab.set(&ROOT, file, set), Err(FsError::TooLarge));
    let after = lab.store.attributes(file).unwrap();
    assert_eq!((after.mode, after.uid, after.gid), (before.mode, before.uid, before.gid));
    assert_eq!((after.size, after.mtime), (before.size, before.mtime));
}

/// FSINFO and PATHCONF tell what the file system is like, not what a kernel could do.
#[test]
fn limits_are_the_file_systems() {
    let mut lab = lab();
    let limits = lab.store.limits();
    let file = lab.file("f");
    let largest = Update { size: Some(limits.file_len_max), ..NONE };
    assert_eq!(lab.set(&ROOT, file, largest), Ok(()));
    assert_eq!(lab.store.attributes(file).unwrap().size, limits.file_len_max);
    if limits.file_len_max < i64::MAX as u64 {
        let more = Update { size: Some(limits.file_len_max + 1), ..NONE };
        assert_eq!(lab.set(&ROOT, file, more), Err(FsError::TooLarge));
    }
    assert!(limits.name_len_max > 0 && limits.name_len_max <= 255);
}

/// Two file systems, usually, which say different things.
#[test]
fn links_are_as_many_as_the_file_system_takes() {
    let mut places = vec![Scratch::folder()];
    let memory = PathBuf::from(format!("/dev/shm/stag-nfs-links-{}", std::process::id()));
    places.extend(fs::create_dir(&memory).is_ok().then(|| Scratch(memory)));
    for scratch in places {
        let found = Lab::open(&scratch, &Lab::pool(PAGE, 16), |_| {}).limits().links_max;
        let output = std::process::Command::new("getconf").arg("LINK_MAX").arg(&scratch.0).output();
        let text = output.ok().and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default();
        let Ok(links_max) = text.trim().parse::<u64>() else {
            return stag_testing::skipped("getconf does not say how many links a file may have");
        };
        assert_eq!(u64::from(found), links_max.min(u32::MAX.into()), "{}", scratch.0.display());
    }
}

#[test]
fn space_is_the_file_systems() {
    let lab = lab();
    let usage = lab.store.usage();
    assert!(usage.bytes_total > 0 && usage.bytes_free <= usage.bytes_total);
}

/// An export that is removed keeps no descriptor below its directory, so that its file system can be unmounted.
#[test]
fn what_is_given_up_is_closed() {
    let mut lab = lab();
    let file = lab.file("f");
    lab.write(file, 0, b"not synced").unwrap();
    let below = lab.scratch.as_ref().unwrap().0.clone();
    let open = || descriptors(&below);
    assert!(open() > 0);
    // Something that is not known, to be searched for.
    let unknown = ObjectId { fileid: file.fileid, generation: file.generation ^ 1 };
    let _ = lab.store.attributes(unknown);
    lab.store.give_up_files();
    while open() > 0 {
        assert_eq!(lab.store.poll_later(Duration::ZERO), None);
    }
    assert_eq!(lab.store.attributes(file), Err(FsError::Stale));
    assert_eq!(lab.store.attributes(lab.root()), Err(FsError::Stale));
    assert_eq!(open(), 0, "nothing is opened again");
}
