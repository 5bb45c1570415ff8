//! A directory store of a server that is not root: the kernel opens nothing by handle for it, gives nothing away, and
//! has the last word. Started by root, these tests and the others of directories run once more as nobody.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use stag_disk::{Errno, system};
use stag_testing::Scratch;
use stag_vfs::{CreateMode, FsError, Update, UserIdentity};

/// The user `nobody` of Linux.
const NOBODY: u32 = 65534;

use stag_stores::directory::DirectoryStore;

use crate::lab::{Lab, NONE, is_root};

/// What is run as nobody.
const SUITES: [&str; 6] =
    ["directory::", "durable::", "locks::", "names::", "permissions::", "unprivileged::"];

#[test]
fn everything_holds_for_a_server_that_is_not_root() {
    if !is_root() {
        return;
    }
    // The user may not be able to go to our folder.
    let folder = Scratch::folder();
    let program = folder.0.join("store");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut command = Command::new(&program);
    // These take their time, and do the same for every user.
    command
        .args(SUITES)
        .args(["--skip", "a_long_search", "--skip", "too_deep"])
        .current_dir(&folder.0)
        .uid(NOBODY)
        .gid(NOBODY);
    // Tests that are skipped for that user are run as root.
    command.env_remove(stag_testing::SKIPPED_FILE);
    let output = match stag_testing::start_written_program(|| command.output()) {
        Ok(output) => output,
        Err(error) => {
            return stag_testing::skipped(format_args!("this root cannot start anything as nobody: {error}"));
        }
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "as nobody: {text}");
    println!("as nobody: {}", text.lines().rfind(|line| !line.is_empty()).unwrap_or_default());
}

/// Whether this run is not as root, and the test therefore makes sense.
fn applies() -> bool {
    if is_root() {
        left_to_nobody();
    }
    !is_root()
}

/// Says that a test makes no sense as root. It is not skipped: the first test of this file runs it as nobody, or is skipped itself.
pub(crate) fn left_to_nobody() {
    println!("done as nobody, by the first test of unprivileged.rs");
}

#[test]
fn objects_are_found_by_a_walk() {
    if !applies() {
        return;
    }
    let mut lab = Lab::directory(64, |_| {});
    let root = lab.root();
    let folder = lab.mkdir(&UserIdentity::ROOT, root, "d", 0o755).unwrap();
    let file = lab.create(&UserIdentity::ROOT, folder, "f", &CreateMode::Guarded(NONE)).unwrap();
    let scratch = lab.scratch.take().unwrap();
    let top = fs::File::open(&scratch.0).unwrap();
    if let Ok(handle) = system::file_handle(top.as_fd(), c"") {
        assert_eq!(system::open_by_handle(top.as_fd(), &handle).unwrap_err(), Errno::PERM);
    }
    // As after a restart.
    let mut again = Lab::directory(64, |_| {});
    again.store = Lab::open(&scratch, &lab.pool, |_| {});
    assert_eq!(again.store.attributes(file).unwrap().size, 0);
}

#[test]
fn what_only_root_can_give_away_is_refused_with_the_right_status() {
    if !applies() {
        return;
    }
    let mut lab = Lab::directory(64, |_| {});
    let squashed = lab.store.of(DirectoryStore::squashes_to);
    let own = rustix::process::geteuid().as_raw();
    assert_eq!(squashed.map(|(uid, _)| uid), Some(own), "everybody is the server's user");
    // Owner and group that were asked for are left out, as for any user.
    let root = lab.root();
    let how = CreateMode::Guarded(Update { uid: Some(7), gid: Some(7), mode: Some(0o600), ..NONE });
    let file = lab.create(&UserIdentity::ROOT, root, "f", &how).unwrap();
    assert_eq!(lab.store.attributes(file).unwrap().uid, own);
    for set in [Update { uid: Some(7), ..NONE }, Update { gid: Some(7), ..NONE }] {
        assert_eq!(lab.set(&UserIdentity::ROOT, file, set), Err(FsError::NotPermitted));
    }
    // Of somebody else: the directory of all scratch directories is root's.
    let scratch = lab.scratch.take().unwrap();
    fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o555)).unwrap();
    assert_eq!(lab.create(&UserIdentity::ROOT, root, "g", &how), Err(FsError::AccessDenied));
    assert_eq!(lab.remove(root, "f"), Err(FsError::AccessDenied));
    fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o755)).unwrap();
}

/// It cannot be opened, and so not be synced; what can be done in it is done all the same.
#[test]
fn a_directory_that_may_be_written_and_not_read() {
    if !applies() {
        return;
    }
    let mut lab = Lab::directory(64, |_| {});
    let root = lab.root();
    let folder = lab.mkdir(&UserIdentity::ROOT, root, "d", 0o300).unwrap();
    let file = lab.create(&UserIdentity::ROOT, folder, "f", &CreateMode::Guarded(NONE)).unwrap();
    lab.rename(&UserIdentity::ROOT, (folder, "f"), (root, "g")).unwrap();
    assert_eq!(lab.store.lookup(&UserIdentity::ROOT, root, b"g"), Ok(file));
}
