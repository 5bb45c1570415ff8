//! A directory store where the machine is not as usual: overlays, mounts below the export and over it, and file systems
//! that are read-only. Each test runs in mounts of its own.

use std::fs;
use std::path::Path;
use std::process::Command;

use stag_stores::directory::{HandleWeakness, handle_weakness, has_stable_storage};
use stag_testing::Scratch;
use stag_vfs::{FsError, ObjectId, UserIdentity};

use crate::lab::{Lab, is_root};

const ROOT: UserIdentity = UserIdentity::ROOT;

/// Set for the process that runs a test in mounts of its own.
const INSIDE: &str = "STAG_TEST_OWN_MOUNTS";

/// Whether this process has private mounts. If not, runs the test of this name in a process that has.
fn has_own_mounts(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !is_root() {
        stag_testing::skipped("only root mounts");
        return false;
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]).arg(std::env::current_exe().unwrap());
    // What it leaves behind under its mounts goes when these are gone.
    let folder = Scratch::folder();
    command.args(["--exact", &format!("surroundings::{test}"), "--nocapture"]);
    command.env(INSIDE, "yes").env("TMPDIR", &folder.0);
    if !mount_works() {
        stag_testing::skipped("this root may not mount");
        return false;
    }
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "in mounts of its own: {}", String::from_utf8_lossy(&text));
    false
}

fn mount_works() -> bool {
    let script = "mount -t tmpfs none /tmp";
    let output =
        Command::new("unshare").args(["--mount", "--propagation", "private", "sh", "-c", script]).output();
    output.is_ok_and(|output| output.status.success())
}

/// Runs mount(8).
fn mount(arguments: &[&str]) {
    let output = Command::new("mount").args(arguments).output().unwrap();
    assert!(output.status.success(), "mount {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn path(scratch: &Scratch, name: &str) -> String {
    scratch.0.join(name).to_str().unwrap().to_owned()
}

/// Mounts an overlay of the folders `lower`, `upper` and `work` of `scratch` at `merged`.
fn overlay(scratch: &Scratch, lower: &Path, more: &str) -> Scratch {
    for name in ["upper", "work", "merged"] {
        fs::create_dir_all(scratch.0.join(name)).unwrap();
    }
    let options = format!(
        "lowerdir={},upperdir={},workdir={}{more}",
        lower.display(),
        path(scratch, "upper"),
        path(scratch, "work")
    );
    let merged = path(scratch, "merged");
    mount(&["-t", "overlay", "overlay", "-o", &options, &merged]);
    Scratch(merged.into())
}

/// Returns when a file that is made now is younger than `file`: the kernel's clock for files is coarse.
fn wait_for_another_birth(file: &Path) {
    let born = |path: &Path| fs::metadata(path).unwrap().created().unwrap();
    let scratch = Scratch::folder();
    let probe = scratch.0.join("probe");
    loop {
        fs::write(&probe, "").unwrap();
        if born(&probe) != born(file) {
            return;
        }
        fs::remove_file(&probe).unwrap();
    }
}

fn lab_of(scratch: Scratch) -> Lab {
    let pool = Lab::pool(crate::lab::PAGE, 64);
    let store = Lab::open(&scratch, &pool, |_| {});
    Lab { pool, store, seconds: 0, baseline: 0, scratch: Some(scratch) }
}

fn lookup(lab: &Lab, name: &str) -> Result<ObjectId, FsError> {
    lab.store.lookup(&ROOT, lab.root(), name.as_bytes())
}

/// The first write to a file of a lower layer makes a copy of it, with another time of birth: to clients it is the same file.
#[test]
fn a_handle_outlives_a_copy_up() {
    if !has_own_mounts("a_handle_outlives_a_copy_up") {
        return;
    }
    for options in ["", ",index=on,nfs_export=on"] {
        let scratch = Scratch::folder();
        let lower = scratch.0.join("lower");
        fs::create_dir_all(lower.join("folder")).unwrap();
        fs::write(lower.join("old"), "lower content").unwrap();
        fs::write(lower.join("folder/inner"), "inner").unwrap();
        wait_for_another_birth(&lower.join("folder/inner"));
        let merged = overlay(&scratch, &lower, options);
        assert_eq!(handle_weakness(&merged.0), Ok(None), "{options}");
        let mut lab = lab_of(merged);
        let (old, folder) = (lookup(&lab, "old").unwrap(), lookup(&lab, "folder").unwrap());
        let inner = lab.store.lookup(&ROOT, folder, b"inner").unwrap();
        for (file, octets) in [(old, b"UPPER"), (inner, b"INNER")] {
            lab.write(file, 0, octets).unwrap();
            let (found, _) = lab.read(file, 0, 99);
            assert!(found.starts_with(octets), "{options}");
        }
        assert_eq!(lab.store.attributes(old).unwrap().size, 13);
        assert_eq!((lookup(&lab, "old"), lookup(&lab, "folder")), (Ok(old), Ok(folder)));
        // As after a restart, also of what is exported from below the top.
        let again = Lab::open(lab.scratch.as_ref().unwrap(), &lab.pool, |_| {});
        assert_eq!(again.lookup(&ROOT, again.root(), b"old"), Ok(old));
        assert_eq!((again.root(), again.fsid()), (lab.root(), lab.store.fsid()));
    }
}

/// What is exported itself may be copied up, too.
#[test]
fn an_export_keeps_its_identity_over_a_copy_up() {
    if !has_own_mounts("an_export_keeps_its_identity_over_a_copy_up") {
        return;
    }
    let scratch = Scratch::folder();
    let lower = scratch.0.join("lower");
    fs::create_dir_all(lower.join("folder")).unwrap();
    wait_for_another_birth(&lower.join("folder"));
    let merged = overlay(&scratch, &lower, "");
    let folder = Scratch(merged.0.join("folder"));
    let pool = Lab::pool(crate::lab::PAGE, 64);
    let before = {
        let store = Lab::open(&folder, &pool, |_| {});
        (store.fsid(), store.root())
    };
    fs::write(folder.0.join("new"), "").unwrap();
    let store = Lab::open(&folder, &pool, |_| {});
    assert_eq!((store.fsid(), store.root()), before);
}

/// Where nothing tells files apart over a copy-up, the operator is told.
#[test]
fn an_overlay_without_any_file_handles_is_known() {
    if !has_own_mounts("an_overlay_without_any_file_handles_is_known") {
        return;
    }
    let (scratch, outer) = (Scratch::folder(), Scratch::folder());
    let lower = scratch.0.join("lower");
    fs::create_dir(&lower).unwrap();
    // An overlay has no file handles for the overlay above it.
    let inner = overlay(&scratch, &lower, "");
    let merged = overlay(&outer, &inner.0, "");
    assert_eq!(handle_weakness(&merged.0), Ok(Some(HandleWeakness::CopyUp)));
    assert_eq!(handle_weakness(&outer.0), Ok(None));
}

/// Mounts below the export, and parts of its mount with numbers of their own, are listed but not entered. The
/// status does not blame permissions.
#[test]
fn other_file_systems_below_are_named_and_not_entered() {
    if !has_own_mounts("other_file_systems_below_are_named_and_not_entered") {
        return;
    }
    let scratch = Scratch::folder();
    let layers = Scratch::folder();
    mount(&["-t", "tmpfs", "none", layers.0.to_str().unwrap()]);
    fs::create_dir(layers.0.join("lower")).unwrap();
    fs::write(layers.0.join("lower/part"), "of the other layer").unwrap();
    // Two file systems in one mount: the files of each have another device.
    let merged = overlay(&scratch, &layers.0.join("lower"), "");
    fs::create_dir(merged.0.join("mp")).unwrap();
    mount(&["-t", "tmpfs", "none", merged.0.join("mp").to_str().unwrap()]);
    fs::write(merged.0.join("mp/inner"), "").unwrap();
    let mut lab = lab_of(merged);
    for name in ["mp", "part"] {
        assert_eq!(lookup(&lab, name), Err(FsError::CrossDevice), "{name}");
    }
    let root = lab.root();
    let now = lab.now();
    assert_eq!(lab.store.remove_directory(&ROOT, root, b"mp", now), Err(FsError::CrossDevice));
    assert_eq!(lab.rename(&ROOT, (root, "mp"), (root, "other")), Err(FsError::CrossDevice));
    let names: Vec<String> = lab.list(root, 0, 9).0.into_iter().map(|(name, _)| name).collect();
    assert!(["mp", "part"].iter().all(|name| names.iter().any(|other| other == name)), "{names:?}");
}

/// What is mounted on the export later, or moved into its place, is not served: a new mount is refused.
#[test]
fn an_export_that_is_mounted_over_is_not_mounted_any_more() {
    if !has_own_mounts("an_export_that_is_mounted_over_is_not_mounted_any_more") {
        return;
    }
    let mut lab = Lab::directory(64, |_| {});
    let (file, place) = (lab.file("f"), lab.scratch.as_ref().unwrap().0.clone());
    let text = place.to_str().unwrap();
    assert_eq!(lab.store.check_place(), Ok(()));
    // The same directory by another mount is no other one.
    mount(&["--bind", text, text]);
    assert_eq!(lab.store.check_place(), Ok(()));
    mount(&["-t", "tmpfs", "none", text]);
    assert_eq!(lab.store.check_place(), Err(FsError::Fault));
    // Handles go on to mean what they meant.
    lab.write(file, 0, b"still there").unwrap();
    Command::new("umount").arg(text).status().unwrap();
    assert_eq!(lab.store.check_place(), Ok(()));
    Command::new("umount").arg(text).status().unwrap();
    let moved = Scratch::folder();
    fs::rename(&place, moved.0.join("moved")).unwrap();
    assert_eq!(lab.store.check_place(), Err(FsError::Fault));
    fs::create_dir(&place).unwrap();
    assert_eq!(lab.store.check_place(), Err(FsError::Fault));
    assert_eq!(lab.read(file, 0, 99).0, b"still there");
}

/// A file system may be read-only although the export is not: it was mounted so, or became so after an error.
#[test]
fn a_read_only_file_system_is_known() {
    if !has_own_mounts("a_read_only_file_system_is_known") {
        return;
    }
    for remount in ["remount,ro,bind", "remount,ro"] {
        let scratch = Scratch::folder();
        let text = scratch.0.to_str().unwrap().to_owned();
        mount(&["-t", "tmpfs", "none", &text]);
        let mut lab = lab_of(scratch);
        lab.file("f");
        assert!(!lab.store.is_read_only());
        lab.store = Lab::open(lab.scratch.as_ref().unwrap(), &lab.pool, |_| {});
        mount(&["-o", remount, &text]);
        assert!(lab.store.is_read_only(), "{remount}");
    }
}

/// A sync does nothing in a tmpfs; what is not known for that is taken to be on a disk.
#[test]
fn a_file_system_in_memory_is_not_stable_storage() {
    if !has_own_mounts("a_file_system_in_memory_is_not_stable_storage") {
        return;
    }
    let scratch = Scratch::folder();
    let inner = scratch.0.join("inner");
    fs::create_dir(&inner).unwrap();
    assert!(has_stable_storage(Path::new("/proc")));
    mount(&["-t", "tmpfs", "none", inner.to_str().unwrap()]);
    assert!(!has_stable_storage(&inner));
    assert!(has_stable_storage(&inner.join("nothing")), "what is not there");
}
