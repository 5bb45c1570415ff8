//! One run of a server and the next: what a handle of the first names in the second.

use std::fs;

use stag_nfs::handle::HandleKey;
use stag_stores::directory::stable_fsid;
use stag_testing::Scratch;
use stag_vfs::{FsError, ObjectId, Update, UserIdentity};

use crate::lab::{Lab, NONE};

const ROOT: UserIdentity = UserIdentity::ROOT;

/// The same configuration, the same order of events: and nothing of the first run is in the second.
#[test]
fn objects_in_memory_are_of_one_run() {
    let mut first = Lab::new(64);
    let mut second = Lab::new(64);
    let (root, other_root) = (first.root(), second.root());
    let secrets = first.file("alice-secrets");
    first.write(secrets, 0, b"alice").unwrap();
    let payroll = second.file("bob-payroll");
    second.write(payroll, 0, b"bob--").unwrap();
    assert_eq!(secrets.fileid, payroll.fileid, "the test shows nothing otherwise");

    for old in [root, secrets] {
        assert_eq!(second.store.attributes(old).map(|_| ()), Err(FsError::Stale));
    }
    assert_eq!(second.write(secrets, 0, b"ALICE"), Err(FsError::Stale));
    assert_eq!(second.set(&ROOT, secrets, Update { size: Some(0), ..NONE }), Err(FsError::Stale));
    assert_eq!(second.store.lookup(&ROOT, root, b"bob-payroll"), Err(FsError::Stale));
    assert_eq!(second.read(payroll, 0, 9).0, b"bob--");
    // What else tells runs apart: cookies and uncommitted data are of one run, too.
    assert_ne!(first.store.list_verifier(root), second.store.list_verifier(other_root));
    assert_ne!(first.store.write_verifier(), second.store.write_verifier());
}

/// Objects of two shares in memory never have the same name, so that a share cannot take another's place in the next
/// run.
#[test]
fn shares_in_memory_do_not_share_names() {
    let mut labs: Vec<Lab> = (0..8).map(|_| Lab::new(16)).collect();
    let mut names: Vec<ObjectId> = Vec::new();
    for lab in &mut labs {
        let file = lab.file("f");
        names.extend([lab.root(), file]);
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 16);
}

/// A directory that is exported is known again by itself, and by the name that it is mounted under: not by its place among
/// the exports, and not by a path that something else may have by now.
#[test]
fn an_exported_directory_is_known_again() {
    let (one, other) = (Scratch::folder(), Scratch::folder());
    let pool = Lab::pool(4096, 16);
    let fsid = |scratch: &Scratch, name: &str| {
        Lab::open(scratch, &pool, |config| config.fsid = stable_fsid(name)).fsid()
    };
    let known = fsid(&one, "/data");
    assert_eq!(fsid(&one, "/data"), known, "in the next run");
    assert_ne!(fsid(&other, "/data"), known, "another directory under the same name");
    assert_ne!(fsid(&one, "/readonly"), known, "the same directory under another name");

    // Moved on the server: it is still the same directory.
    let moved = Scratch(one.0.with_extension("moved"));
    fs::rename(&one.0, &moved.0).unwrap();
    assert_eq!(fsid(&moved, "/data"), known);
    // And what has its path now is not.
    fs::create_dir(&one.0).unwrap();
    assert_ne!(fsid(&one, "/data"), known);
}

/// A handle that was sealed by another key may be one of an earlier run; what does not even look like a handle is
/// invalid.
#[test]
fn handles_of_another_key_are_stale() {
    let object = ObjectId { fileid: 3, generation: 9 };
    let handle = HandleKey::new().seal(7, object);
    assert_eq!(HandleKey::new().open(&handle), Err(FsError::Stale));
    assert_eq!(HandleKey::new().open(&[0; 32]), Err(FsError::Stale));
    for len in [0, 8, 31, 33, 64] {
        assert_eq!(HandleKey::new().open(&[0; 64][..len]), Err(FsError::BadHandle), "{len} octets");
    }
}
