//! Who may do what.

use crate::procedures::Start;
use stag_stores::memory::{MemoryConfig, RootAttributes};
use stag_vfs::{
    CreateMode, FsError, ObjectId, Special, Stability, TimeUpdate, Timestamp, Update, UserIdentity,
    WriteData, access,
};

use crate::lab::{CONFIG, Lab, NONE, is_root};

const OWNER: u32 = 10;
const GROUP: u32 = 20;

fn owner() -> UserIdentity {
    UserIdentity::new(OWNER, 99, [])
}

fn member() -> UserIdentity {
    UserIdentity::new(11, 99, [5, GROUP])
}

fn other() -> UserIdentity {
    UserIdentity::new(12, 99, [])
}

/// A file of `OWNER` and `GROUP` with this mode, and the directory of that name too.
fn prepare(mut lab: Lab, mode: u32) -> (Lab, ObjectId, ObjectId) {
    let root = lab.root();
    let file = lab.file("file");
    let directory = lab.mkdir(&UserIdentity::ROOT, root, "directory", 0o755).unwrap();
    lab.create(&UserIdentity::ROOT, directory, "inner", &CreateMode::Guarded(NONE)).unwrap();
    for object in [file, directory] {
        let set = Update { mode: Some(mode), uid: Some(OWNER), gid: Some(GROUP), ..NONE };
        lab.set(&UserIdentity::ROOT, object, set).unwrap();
    }
    (lab, file, directory)
}

/// A store in memory, and a directory if this process may act as any user.
fn labs(mode: u32) -> Vec<(Lab, ObjectId, ObjectId)> {
    let mut labs = vec![prepare(Lab::new(64), mode)];
    if is_root() {
        labs.push(prepare(Lab::directory(64, |_| {}), mode));
    } else {
        stag_testing::skipped("a directory: only root may act as other users");
    }
    labs
}

/// Every procedure by every class, for every single permission bit.
#[test]
fn the_matrix() {
    for (class, caller, shift) in [("owner", owner(), 6), ("member", member(), 3), ("other", other(), 0)] {
        for digit in 0..8 {
            for (mut lab, file, directory) in labs(digit << shift) {
                let may =
                    |wanted: u32| if digit & wanted == wanted { None } else { Some(FsError::AccessDenied) };
                let is_owner = class == "owner";
                let case = format!("{class} {digit}");

                // An owner has always opened its file before: RFC 1813 section 4.4.
                let read = lab.read_of(&caller, file, 0, 1).err();
                let expected = if is_owner || digit & 5 != 0 { None } else { Some(FsError::AccessDenied) };
                assert_eq!(read, expected, "read, {case}");
                let data = WriteData::Inline(b"x");
                let write = lab.write_of(&caller, file, 0, data, Stability::FileSync).err();
                assert_eq!(write, if is_owner { None } else { may(2) }, "write, {case}");
                let now = lab.now();
                let store = &mut lab.store;
                let truncate = Update { size: Some(0), ..NONE };
                let cut = store.set_attributes(&caller, file, &truncate, now).err();
                assert_eq!(cut, if is_owner { None } else { may(2) }, "truncate, {case}");

                let verifier = store.list_verifier(directory).unwrap();
                let start = Start { cookie: 0, verifier, attributes: false };
                let list = store.list(&caller, directory, start, now, |_| true).err();
                assert_eq!(list, may(4), "list, {case}");
                assert_eq!(store.lookup(&caller, directory, b"inner").err(), may(1), "lookup, {case}");
                let missing = may(1).unwrap_or(FsError::NotFound);
                assert_eq!(
                    store.lookup(&caller, directory, b"none"),
                    Err(missing),
                    "lookup of nothing, {case}"
                );
                let made = store.create(&caller, directory, b"new", &CreateMode::Guarded(NONE), now).err();
                assert_eq!(made, may(3), "create, {case}");
                assert_eq!(
                    store.make_directory(&caller, directory, b"d", &NONE, now).err(),
                    may(3),
                    "{case}"
                );
                assert_eq!(
                    store.make_symlink(&caller, directory, b"l", b"x", &NONE, now).err(),
                    may(3),
                    "{case}"
                );
                assert_eq!(store.link(&caller, file, directory, b"k", now).err(), may(3), "link, {case}");
                let renamed = store.rename(&caller, (directory, b"inner"), (directory, b"other"), now).err();
                assert_eq!(renamed, may(3), "rename, {case}");
                let name: &[u8] = if renamed.is_none() { b"other" } else { b"inner" };
                assert_eq!(store.remove(&caller, directory, name, now).err(), may(3), "remove, {case}");
                let gone = may(3).unwrap_or(FsError::NotFound);
                assert_eq!(
                    store.remove_directory(&caller, directory, b"none", now),
                    Err(gone),
                    "rmdir, {case}"
                );

                let mut bits = 0;
                bits |= if digit & 4 != 0 { access::READ } else { 0 };
                bits |= if digit & 1 != 0 { access::LOOKUP } else { 0 };
                if digit & 3 == 3 {
                    bits |= access::MODIFY | access::EXTEND | access::DELETE;
                }
                assert_eq!(store.access(&caller, directory, 0x3f), Ok(bits), "access, {case}");
                assert!(store.attributes(file).is_ok(), "attributes need no permission");
            }
        }
    }
}

#[test]
fn only_owners_change_attributes_and_only_root_gives_away() {
    for (mut lab, file, _) in labs(0o666) {
        let mode = Update { mode: Some(0o600), ..NONE };
        let uid = |uid| Update { uid: Some(uid), ..NONE };
        let gid = |gid| Update { gid: Some(gid), ..NONE };
        let client_time = Update { mtime: TimeUpdate::To(Timestamp::default()), ..NONE };
        let server_time = Update { mtime: TimeUpdate::Now, ..NONE };
        for stranger in [member(), other()] {
            assert_eq!(lab.set(&stranger, file, mode), Err(FsError::NotPermitted));
            assert_eq!(lab.set(&stranger, file, uid(stranger.uid)), Err(FsError::NotPermitted));
            assert_eq!(lab.set(&stranger, file, gid(99)), Err(FsError::NotPermitted));
            assert_eq!(lab.set(&stranger, file, client_time), Err(FsError::NotPermitted));
            // Who may write may touch.
            assert_eq!(lab.set(&stranger, file, server_time), Ok(()));
        }
        assert_eq!(lab.set(&owner(), file, uid(OWNER)), Ok(()), "no change");
        assert_eq!(lab.set(&owner(), file, uid(0)), Err(FsError::NotPermitted));
        assert_eq!(lab.set(&owner(), file, gid(GROUP)), Ok(()), "no change");
        assert_eq!(lab.set(&owner(), file, gid(7)), Err(FsError::NotPermitted), "not a group of the owner's");
        assert_eq!(lab.set(&owner(), file, gid(99)), Ok(()));
        assert_eq!(lab.set(&owner(), file, client_time), Ok(()));
        assert_eq!(lab.set(&owner(), file, mode), Ok(()));
        assert_eq!(lab.set(&other(), file, server_time), Err(FsError::AccessDenied));
        assert_eq!(lab.set(&UserIdentity::ROOT, file, uid(5)), Ok(()));
        assert_eq!(lab.store.attributes(file).unwrap().uid, 5);

        // All or nothing: one attribute that may not be set keeps the others as they are.
        let both = Update { mode: Some(0o777), uid: Some(0), ..NONE };
        assert_eq!(lab.set(&UserIdentity::new(5, 5, []), file, both), Err(FsError::NotPermitted));
        assert_eq!(lab.store.attributes(file).unwrap().mode, 0o600);
    }
}

/// A Call that is wrong in several ways has the same answer from every store.
#[test]
fn every_store_judges_in_the_same_order() {
    let time = |nanoseconds| TimeUpdate::To(Timestamp { seconds: 1, nanoseconds });
    let sizes = [None, Some(0), Some(u64::MAX)];
    let modes = [None, Some(0o600)];
    let owners = [None, Some(OWNER), Some(77), Some(u32::MAX)];
    let times = [TimeUpdate::Keep, TimeUpdate::Now, time(5), time(1_000_000_000)];
    let callers = [owner(), member(), other(), UserIdentity::ROOT];
    let ask = |lab: &mut Lab, file: ObjectId, directory: ObjectId| {
        let mut answers = Vec::new();
        let link = lab.store.lookup(&UserIdentity::ROOT, lab.root(), b"link").unwrap();
        for (object, caller) in
            [file, directory, link].iter().flat_map(|it| callers.map(|caller| (*it, caller)))
        {
            for (size, mode) in sizes.iter().flat_map(|size| modes.map(|mode| (*size, mode))) {
                for (uid, mtime) in owners.iter().flat_map(|uid| times.map(|time| (*uid, time))) {
                    for gid in [None, uid] {
                        let set = Update { size, mode, uid, gid, mtime, ..NONE };
                        answers.push(((caller, set), lab.set(&caller, object, set)));
                        // As it was before.
                        let set = Update { mode: Some(0o664), uid: Some(OWNER), gid: Some(GROUP), ..NONE };
                        lab.set(&UserIdentity::ROOT, object, set).unwrap();
                    }
                }
            }
        }
        answers
    };
    let mut all = Vec::new();
    for (mut lab, file, directory) in labs(0o664) {
        let (root, now) = (lab.root(), lab.now());
        lab.store.make_symlink(&UserIdentity::ROOT, root, b"link", b"file", &NONE, now).unwrap();
        all.push(ask(&mut lab, file, directory));
    }
    for answers in &all[1..] {
        assert_eq!(answers.len(), all[0].len());
        for (one, other) in answers.iter().zip(&all[0]) {
            assert_eq!(one, other);
        }
    }
}

/// Clients that copy a symbolic link set its mode, owner and times together; its mode means nothing.
#[test]
fn the_mode_of_a_symbolic_link_is_left_as_it_is() {
    Lab::each(64, |lab| {
        let (root, now) = (lab.root(), lab.now());
        let with_mode = Update { mode: Some(0o640), ..NONE };
        let link =
            lab.store.make_symlink(&UserIdentity::ROOT, root, b"link", b"file", &with_mode, now).unwrap();
        let time = |seconds| Timestamp { seconds, nanoseconds: 0 };
        let (atime, mtime) = (TimeUpdate::To(time(10)), TimeUpdate::To(time(20)));
        let set = Update { mode: Some(0o755), atime, mtime, ..NONE };
        assert_eq!(lab.set(&UserIdentity::ROOT, link, set), Ok(()));
        let found = lab.store.attributes(link).unwrap();
        assert_eq!((found.mode, found.atime, found.mtime), (0o777, time(10), time(20)));
        assert_eq!(lab.set(&UserIdentity::ROOT, link, with_mode), Ok(()));
        assert_eq!(lab.store.attributes(link).unwrap().mode, 0o777);
    });
}

#[test]
fn privileges_end_when_data_or_owner_change() {
    for (mut lab, file, _) in labs(0o6755) {
        let mode = |lab: &Lab| lab.store.attributes(file).unwrap().mode;
        let data = || WriteData::Inline(b"x");
        lab.write_of(&UserIdentity::ROOT, file, 0, data(), Stability::FileSync).unwrap();
        assert_eq!(mode(&lab), 0o6755, "root keeps them");
        lab.write_of(&owner(), file, 0, data(), Stability::FileSync).unwrap();
        assert_eq!(mode(&lab), 0o755);
        let set = |mode| Update { mode: Some(mode), ..NONE };
        lab.set(&UserIdentity::ROOT, file, set(0o6745)).unwrap();
        lab.set(&owner(), file, Update { size: Some(0), ..NONE }).unwrap();
        assert_eq!(mode(&lab), 0o2745, "set-gid without group execute means something else");
        lab.set(&UserIdentity::ROOT, file, Update { uid: Some(OWNER), ..set(0o6755) }).unwrap();
        assert_eq!(mode(&lab), 0o6755, "what is asked for in the same SETATTR counts");
        lab.set(&UserIdentity::ROOT, file, Update { uid: Some(OWNER), ..NONE }).unwrap();
        assert_eq!(mode(&lab), 0o755);
        // An owner outside of the file's group cannot make it set-gid.
        lab.set(&owner(), file, set(0o2755)).unwrap();
        assert_eq!(mode(&lab), 0o755);
        lab.set(&UserIdentity::new(OWNER, GROUP, []), file, set(0o2755)).unwrap();
        assert_eq!(mode(&lab), 0o2755);
        // Only these twelve bits are a mode.
        lab.set(&UserIdentity::ROOT, file, set(u32::MAX)).unwrap();
        assert_eq!(mode(&lab), 0o7777);
    }
}

#[test]
fn sticky_directories_keep_strangers_from_removing() {
    for (mut lab, _, directory) in labs(0o1777) {
        let mine = |lab: &mut Lab, caller: &UserIdentity, name: &str| {
            lab.create(caller, directory, name, &CreateMode::Guarded(NONE)).unwrap()
        };
        mine(&mut lab, &member(), "m");
        let remove = |lab: &mut Lab, caller: &UserIdentity, name: &str| {
            let now = lab.now();
            lab.store.remove(caller, directory, name.as_bytes(), now)
        };
        assert_eq!(remove(&mut lab, &other(), "m"), Err(FsError::AccessDenied));
        assert_eq!(lab.rename(&other(), (directory, "m"), (directory, "x")), Err(FsError::AccessDenied));
        mine(&mut lab, &other(), "o");
        // Neither may a stranger's file be replaced.
        assert_eq!(lab.rename(&other(), (directory, "o"), (directory, "m")), Err(FsError::AccessDenied));
        assert_eq!(lab.rename(&member(), (directory, "m"), (directory, "x")), Ok(()));
        assert_eq!(remove(&mut lab, &member(), "x"), Ok(()), "the file's owner");
        assert_eq!(remove(&mut lab, &owner(), "o"), Ok(()), "the directory's owner");
        mine(&mut lab, &other(), "o");
        assert_eq!(remove(&mut lab, &UserIdentity::ROOT, "o"), Ok(()));
    }
}

#[test]
fn set_gid_directories_give_their_group_on() {
    for (mut lab, _, directory) in labs(0o2777) {
        let file = lab.create(&other(), directory, "f", &CreateMode::Guarded(NONE)).unwrap();
        let inner = lab.mkdir(&other(), directory, "d", 0o750).unwrap();
        let (file, inner_attributes) =
            (lab.store.attributes(file).unwrap(), lab.store.attributes(inner).unwrap());
        assert_eq!((file.uid, file.gid, file.mode), (12, GROUP, 0o644));
        assert_eq!((inner_attributes.gid, inner_attributes.mode), (GROUP, 0o2750));
        let root = lab.root();
        lab.set(&UserIdentity::ROOT, root, Update { mode: Some(0o777), ..NONE }).unwrap();
        let plain = lab.create(&other(), root, "g", &CreateMode::Guarded(NONE)).unwrap();
        assert_eq!(lab.store.attributes(plain).unwrap().gid, 99);
    }
}

/// What a caller could not set is left out when it makes an object; what it could is kept.
#[test]
fn new_objects_belong_to_their_makers() {
    let config = MemoryConfig { root: RootAttributes { mode: 0o777, uid: 1, gid: 2 }, ..CONFIG };
    let mut lab = Lab::with(64, config);
    let root = lab.root();
    let attributes = lab.store.attributes(root).unwrap();
    assert_eq!((attributes.mode, attributes.uid, attributes.gid), (0o777, 1, 2));
    let set = Update { uid: Some(0), gid: Some(GROUP), mode: Some(0o4711), size: Some(9), ..NONE };
    let made = lab.create(&member(), root, "a", &CreateMode::Guarded(set)).unwrap();
    let a = lab.store.attributes(made).unwrap();
    assert_eq!((a.uid, a.gid, a.mode, a.size), (11, GROUP, 0o4711, 9));
    let made = lab.create(&other(), root, "b", &CreateMode::Guarded(set)).unwrap();
    assert_eq!(lab.store.attributes(made).unwrap().gid, 99);
    let made = lab.create(&UserIdentity::ROOT, root, "c", &CreateMode::Guarded(set)).unwrap();
    let c = lab.store.attributes(made).unwrap();
    assert_eq!((c.uid, c.gid), (0, GROUP));
}

/// A directory that moves to another parent is itself changed: its `..` is.
#[test]
fn moving_a_directory_needs_permission_to_write_it() {
    for (mut lab, _, directory) in labs(0o777) {
        let inner = lab.mkdir(&UserIdentity::ROOT, directory, "d", 0o755).unwrap();
        let root = lab.root();
        lab.set(&UserIdentity::ROOT, root, Update { mode: Some(0o777), ..NONE }).unwrap();
        assert_eq!(lab.rename(&other(), (directory, "d"), (directory, "e")), Ok(()));
        assert_eq!(lab.rename(&other(), (directory, "e"), (root, "e")), Err(FsError::AccessDenied));
        lab.set(&UserIdentity::ROOT, inner, Update { mode: Some(0o777), ..NONE }).unwrap();
        assert_eq!(lab.rename(&other(), (directory, "e"), (root, "e")), Ok(()));
    }
}

/// To the kernel the number means "leave it as it is", which would be the superuser's.
#[test]
fn nothing_belongs_to_the_user_that_is_none() {
    Lab::each(64, |lab| {
        let root = lab.root();
        let file = lab.file("f");
        let before = lab.store.attributes(file).unwrap();
        for set in [Update { uid: Some(u32::MAX), ..NONE }, Update { gid: Some(u32::MAX), ..NONE }] {
            assert_eq!(lab.set(&UserIdentity::ROOT, file, set), Err(FsError::Invalid));
            if is_root() || lab.is_memory() {
                let how = CreateMode::Guarded(set);
                assert_eq!(lab.create(&UserIdentity::ROOT, root, "g", &how), Err(FsError::Invalid));
                let (now, store) = (lab.now(), &mut lab.store);
                let made = [
                    store.create(&UserIdentity::ROOT, root, b"g", &CreateMode::Unchecked(set), now),
                    store.make_directory(&UserIdentity::ROOT, root, b"g", &set, now),
                    store.make_symlink(&UserIdentity::ROOT, root, b"g", b"x", &set, now),
                    store.make_special(&UserIdentity::ROOT, root, b"g", Special::Fifo, &set, now),
                ];
                assert_eq!(made, [Err(FsError::Invalid); 4]);
                assert_eq!(lab.store.lookup(&UserIdentity::ROOT, root, b"g"), Err(FsError::NotFound));
            }
        }
        let found = lab.store.attributes(file).unwrap();
        assert_eq!((found.uid, found.gid, found.ctime), (before.uid, before.gid, before.ctime));
    });
}

/// A caller that no export lets through, straight to a store: nothing is made, least of all the superuser's.
#[test]
fn who_is_none_makes_nothing_in_a_directory() {
    if !is_root() {
        return stag_testing::skipped("only root acts as other users");
    }
    let mut lab = Lab::directory(64, |_| {});
    let root = lab.root();
    lab.set(&UserIdentity::ROOT, root, Update { mode: Some(0o777), ..NONE }).unwrap();
    for caller in [
        UserIdentity::new(u32::MAX, 5, []),
        UserIdentity::new(5, u32::MAX, []),
        UserIdentity::new(5, 5, [u32::MAX]),
        UserIdentity::new(u32::MAX, u32::MAX, []),
    ] {
        assert_eq!(lab.create(&caller, root, "f", &CreateMode::Guarded(NONE)), Err(FsError::Invalid));
        assert_eq!(lab.mkdir(&caller, root, "d", 0o777), Err(FsError::Invalid));
    }
    assert_eq!(lab.list(root, 0, 9).0.len(), 2, "nothing but . and ..");
}
