//! Names, directories and cookies, handles of what is gone, and the bounds of objects and names.

use crate::procedures::Start;
use stag_stores::memory::{DEPTH_MAX, MemoryConfig};
use stag_vfs::{
    CreateMode, DeviceId, FsError, ObjectId, ObjectKind, Special, TimeUpdate, Update, UserIdentity,
};

use crate::lab::{CONFIG, Lab, NONE, is_root};

const ROOT: UserIdentity = UserIdentity::ROOT;

/// Every procedure that takes a name, on the root directory.
fn with_name(lab: &mut Lab, name: &[u8]) -> Vec<(&'static str, Option<FsError>)> {
    let (root, now) = (lab.root(), lab.now());
    let file = lab.store.lookup(&ROOT, root, b"file").unwrap();
    let store = &mut lab.store;
    let fifo = Special::Fifo;
    vec![
        ("lookup", store.lookup(&ROOT, root, name).err()),
        ("create", store.create(&ROOT, root, name, &CreateMode::Guarded(NONE), now).err()),
        ("mkdir", store.make_directory(&ROOT, root, name, &NONE, now).err()),
        ("symlink", store.make_symlink(&ROOT, root, name, b"x", &NONE, now).err()),
        ("mknod", store.make_special(&ROOT, root, name, fifo, &NONE, now).err()),
        ("link", store.link(&ROOT, file, root, name, now).err()),
        ("rename from", store.rename(&ROOT, (root, name), (root, b"new"), now).err()),
        ("rename to", store.rename(&ROOT, (root, b"file"), (root, name), now).err()),
        ("remove", store.remove(&ROOT, root, name, now).err()),
        ("rmdir", store.remove_directory(&ROOT, root, name, now).err()),
    ]
}

#[test]
fn bad_names_are_refused_everywhere() {
    Lab::each(64, |lab| {
        lab.file("file");
        for (name, status) in [
            (&[b'n'; 256][..], FsError::NameTooLong),
            (&[b'n'; 4096], FsError::NameTooLong),
            (b"", FsError::Invalid),
            (b"a/b", FsError::Invalid),
            (b"a\0b", FsError::Invalid),
        ] {
            for (procedure, found) in with_name(lab, name) {
                assert_eq!(found, Some(status), "{procedure} of {} octets", name.len());
            }
        }
    });
}

#[test]
fn dots_are_there_and_cannot_be_made_or_taken() {
    Lab::each(64, |lab| {
        lab.file("file");
        let expected = |procedure: &str, dotdot: bool| match procedure {
            "lookup" => None,
            "create" | "mkdir" | "symlink" | "mknod" | "link" => Some(FsError::Exists),
            "remove" => Some(FsError::IsDirectory),
            "rmdir" if dotdot => Some(FsError::NotEmpty),
            _ => Some(FsError::Invalid),
        };
        for name in [&b"."[..], b".."] {
            for (procedure, found) in with_name(lab, name) {
                assert_eq!(found, expected(procedure, name == b".."), "{procedure}");
            }
        }
        let root = lab.root();
        assert_eq!(lab.store.lookup(&ROOT, root, b".."), Ok(root), "the root is its own parent");
    });
}

#[test]
fn the_longest_names_and_paths_fit() {
    Lab::each(64, |lab| {
        lab.file("file");
        let name = [0xff; 255];
        let (root, now) = (lab.root(), lab.now());
        let link = lab.store.make_symlink(&ROOT, root, &name, &[b'p'; 1000], &NONE, now).unwrap();
        assert_eq!(lab.store.lookup(&ROOT, root, &name), Ok(link));
        assert_eq!(lab.read_link(link), Ok(vec![b'p'; 1000]));
        let attributes = lab.store.attributes(link).unwrap();
        assert_eq!((attributes.kind, attributes.size, attributes.mode), (ObjectKind::Symlink, 1000, 0o777));
        let mut symlink = |path: &[u8]| lab.store.make_symlink(&ROOT, root, b"l", path, &NONE, now);
        assert_eq!(symlink(&[b'p'; 4096]), Err(FsError::NameTooLong));
        assert_eq!(symlink(b""), Err(FsError::Invalid));
        assert_eq!(symlink(b"a\0"), Err(FsError::Invalid));
    });
}

/// Entries that come and go during a listing change no other entry's cookie, and nothing is seen twice.
#[test]
fn cookies_stay_good_while_the_directory_changes() {
    let mut lab = Lab::new(64);
    let root = lab.root();
    for index in 0..20 {
        lab.file(&format!("f{index:02}"));
    }
    let (all, eof) = lab.list(root, 0, usize::MAX);
    assert!(eof && all.len() == 22);
    assert_eq!(all[..2], [(".".to_owned(), 1), ("..".to_owned(), 2)]);

    let (first, eof) = lab.list(root, 0, 10);
    assert!(!eof && first == all[..10]);
    // The entry that the cookie names goes, one before it, one behind it; one comes, one is renamed.
    let gone = all[15].0.clone();
    for name in [&first[9].0, &first[4].0, &gone] {
        lab.remove(root, name).unwrap();
    }
    lab.file("new");
    lab.rename(&ROOT, (root, &all[20].0), (root, "renamed")).unwrap();
    let (rest, eof) = lab.list(root, first[9].1, usize::MAX);
    assert!(eof);
    // Those that stayed kept their cookies; what is new is behind the reader.
    let mut expected: Vec<_> = all[10..].iter().filter(|entry| entry.0 != gone).cloned().collect();
    expected[9].0 = "renamed".to_owned();
    assert_eq!(rest, expected);
    // A removed name that is created again is a new entry, and cookies beyond the end list nothing.
    let (list, _) = lab.list(root, 0, usize::MAX);
    assert!(list.iter().all(|entry| entry.0 != gone));
    lab.file(&gone);
    let (list, _) = lab.list(root, 0, usize::MAX);
    let again = list.iter().find(|entry| entry.0 == gone).unwrap();
    assert!(all.iter().skip(2).all(|entry| again.1 < entry.1), "{again:?}");
    assert_eq!(lab.list(root, list.last().unwrap().1, 9), (vec![], true));
    assert_eq!(lab.list(root, u64::MAX, 9), (vec![], true));
}

/// RENAME onto a name keeps that name's cookie: a listing shows it once.
#[test]
fn a_replaced_entry_keeps_its_cookie() {
    let mut lab = Lab::new(64);
    let root = lab.root();
    let (a, b) = (lab.file("a"), lab.file("b"));
    let before = lab.list(root, 0, 9).0;
    lab.rename(&ROOT, (root, "b"), (root, "a")).unwrap();
    let place = before.iter().position(|entry| entry.0 == "b").unwrap();
    let left: Vec<_> = before.iter().enumerate().filter(|(at, _)| *at != place).collect();
    assert!(lab.list(root, 0, 9).0.iter().eq(left.into_iter().map(|(_, entry)| entry)));
    assert_eq!(lab.store.lookup(&ROOT, root, b"a"), Ok(b));
    assert_eq!(lab.store.attributes(a), Err(FsError::Stale));
}

#[test]
fn a_cookie_needs_its_verifier() {
    Lab::each(64, |lab| {
        let root = lab.root();
        let other = lab.mkdir(&ROOT, root, "d", 0o755).unwrap();
        let now = lab.now();
        let start = |cookie, verifier| Start { cookie, verifier, attributes: false };
        let wrong = lab.store.list_verifier(other).unwrap();
        assert_eq!(lab.store.list(&ROOT, root, start(1, wrong), now, |_| true), Err(FsError::BadCookie));
        assert_eq!(lab.store.list(&ROOT, root, start(0, wrong), now, |_| true), Ok(true));
        let file = lab.file("f");
        assert_eq!(lab.store.list_verifier(file), Err(FsError::NotDirectory));
        assert_eq!(lab.store.list(&ROOT, file, start(0, wrong), now, |_| true), Err(FsError::NotDirectory));
    });
}

/// A handle of an object that is gone stays stale, even when its number is used again.
#[test]
fn what_is_gone_is_stale_for_good() {
    let mut lab = Lab::new(64);
    let root = lab.root();
    let old = lab.file("f");
    lab.remove(root, "f").unwrap();
    let new = lab.file("f");
    assert_eq!(new.fileid, old.fileid, "the number is used again");
    assert_ne!(new, old);
    let now = lab.now();
    let store = &mut lab.store;
    assert_eq!(store.attributes(old), Err(FsError::Stale));
    assert_eq!(store.access(&ROOT, old, 1), Err(FsError::Stale));
    assert_eq!(store.lookup(&ROOT, old, b"x"), Err(FsError::Stale));
    assert_eq!(store.set_attributes(&ROOT, old, &NONE, now), Err(FsError::Stale));
    assert_eq!(store.link(&ROOT, old, root, b"x", now), Err(FsError::Stale));
    assert_eq!(store.list_verifier(old), Err(FsError::Stale));
    for fileid in [0, 3, 1 << 40, u64::MAX] {
        assert_eq!(store.attributes(ObjectId { fileid, generation: 1 }), Err(FsError::Stale), "{fileid}");
    }

    let directory = lab.mkdir(&ROOT, root, "d", 0o755).unwrap();
    let now = lab.now();
    lab.store.remove_directory(&ROOT, root, b"d", now).unwrap();
    assert_eq!(lab.create(&ROOT, directory, "x", &CreateMode::Guarded(NONE)), Err(FsError::Stale));
    assert_eq!(lab.rename(&ROOT, (root, "f"), (directory, "f")), Err(FsError::Stale));
}

#[test]
fn rename_into_its_own_subtree_is_invalid() {
    Lab::each(64, |lab| {
        let root = lab.root();
        let a = lab.mkdir(&ROOT, root, "a", 0o755).unwrap();
        let b = lab.mkdir(&ROOT, a, "b", 0o755).unwrap();
        assert_eq!(lab.rename(&ROOT, (root, "a"), (a, "x")), Err(FsError::Invalid));
        assert_eq!(lab.rename(&ROOT, (root, "a"), (b, "x")), Err(FsError::Invalid));
        assert_eq!(lab.rename(&ROOT, (root, "a"), (b, "..")), Err(FsError::Invalid));
        assert_eq!(lab.rename(&ROOT, (a, "b"), (root, "b")), Ok(()));
        assert_eq!(lab.store.lookup(&ROOT, b, b".."), Ok(root));
        assert_eq!(lab.store.attributes(a).unwrap().nlink, 2);
        assert_eq!(lab.store.attributes(root).unwrap().nlink, 4);
        assert_eq!(lab.rename(&ROOT, (root, "a"), (b, "x")), Ok(()));
    });
}

/// How far up a RENAME looks is bounded.
#[test]
fn a_directory_is_not_moved_too_deep() {
    let mut lab = Lab::new(64);
    let root = lab.root();
    let moved = lab.mkdir(&ROOT, root, "moved", 0o755).unwrap();
    let mut deep = root;
    for _ in 0..DEPTH_MAX + 3 {
        deep = lab.mkdir(&ROOT, deep, "d", 0o755).unwrap();
    }
    assert_eq!(lab.rename(&ROOT, (root, "moved"), (deep, "m")), Err(FsError::NameTooLong));
    assert_eq!(lab.store.lookup(&ROOT, root, b"moved"), Ok(moved));
}

#[test]
fn exclusive_create_knows_a_retransmission() {
    Lab::each(64, |lab| {
        let root = lab.root();
        let made = lab.create(&ROOT, root, "f", &CreateMode::Exclusive([1; 8], Update::default())).unwrap();
        assert_eq!(lab.create(&ROOT, root, "f", &CreateMode::Exclusive([1; 8], Update::default())), Ok(made));
        assert_eq!(
            lab.create(&ROOT, root, "f", &CreateMode::Exclusive([2; 8], Update::default())),
            Err(FsError::Exists)
        );
        assert_eq!(lab.create(&ROOT, root, "f", &CreateMode::Guarded(NONE)), Err(FsError::Exists));
        assert_eq!(lab.create(&ROOT, root, "f", &CreateMode::Unchecked(NONE)), Ok(made));
        let other = lab.file("g");
        assert_eq!(
            lab.create(&ROOT, root, "g", &CreateMode::Exclusive([0; 8], Update::default())),
            Err(FsError::Exists)
        );
        lab.mkdir(&ROOT, root, "d", 0o755).unwrap();
        assert_eq!(lab.create(&ROOT, root, "d", &CreateMode::Unchecked(NONE)), Err(FsError::Exists));
        // UNCHECKED on an existing file sets only the size.
        lab.write(other, 0, b"abc").unwrap();
        let set = Update { size: Some(1), mode: Some(0o777), ..NONE };
        assert_eq!(lab.create(&ROOT, root, "g", &CreateMode::Unchecked(set)), Ok(other));
        let attributes = lab.store.attributes(other).unwrap();
        assert_eq!((attributes.size, attributes.mode), (1, 0o644));
    });
}

/// Something that a client does to a file.
type Change = fn(&mut Lab, ObjectId);

/// Something that is done in a directory after an entry of this name was listed.
type Disturb = fn(&mut Lab, &str);

/// RFC 1813 section 3.3.8: the verifier is needed until the client's SETATTR. After that the same verifier is another
/// client's, that wants the file for itself.
#[test]
fn the_first_change_ends_an_exclusive_create() {
    Lab::each(64, |lab| {
        let root = lab.root();
        let how = CreateMode::Exclusive([1; 8], Update::default());
        let changes: [(&str, Change); 3] = [
            ("SETATTR", |lab, file| {
                let time = TimeUpdate::Now;
                lab.set(&ROOT, file, Update { atime: time, mtime: time, ..NONE }).unwrap();
            }),
            ("WRITE", |lab, file| assert_eq!(lab.write(file, 0, b"mine").unwrap().count, 4)),
            ("SETATTR size", |lab, file| {
                lab.set(&ROOT, file, Update { size: Some(5), ..NONE }).unwrap();
            }),
        ];
        for (what, change) in changes {
            let made = lab.create(&ROOT, root, "f", &how).unwrap();
            assert_eq!(lab.create(&ROOT, root, "f", &how), Ok(made), "before the {what}");
            change(lab, made);
            assert_eq!(lab.create(&ROOT, root, "f", &how), Err(FsError::Exists), "after the {what}");
            lab.remove(root, "f").unwrap();
        }
    });
    // A file that got the name in another way was not made under it.
    let mut lab = Lab::new(64);
    let (root, how) = (lab.root(), CreateMode::Exclusive([1; 8], Update::default()));
    let made = lab.create(&ROOT, root, "draft", &how).unwrap();
    lab.rename(&ROOT, (root, "draft"), (root, "f")).unwrap();
    assert_eq!(lab.create(&ROOT, root, "f", &how), Err(FsError::Exists));
    let now = lab.now();
    let other = lab.create(&ROOT, root, "draft", &how).unwrap();
    lab.store.link(&ROOT, other, root, b"g", now).unwrap();
    assert_eq!(lab.create(&ROOT, root, "g", &how), Err(FsError::Exists));
    assert_ne!(made, other);
}

/// Lists a directory to its end, an entry at a time, with something done after each. Returns the names that were shown.
fn list_while(lab: &mut Lab, directory: ObjectId, mut act: impl FnMut(&mut Lab, &str)) -> Vec<String> {
    let (mut cookie, mut names) = (0, Vec::new());
    loop {
        let (shown, eof) = lab.list(directory, cookie, 1);
        let Some((name, next)) = shown.into_iter().next() else {
            assert!(eof);
            return names;
        };
        cookie = next;
        act(lab, &name);
        names.push(name);
        assert!(names.len() < 1000, "the listing does not end");
        if eof {
            return names;
        }
    }
}

/// Whatever others do in a directory meanwhile, a listing ends, and shows once what stayed where it was.
#[test]
fn a_listing_ends_while_the_directory_changes() {
    let ways: [(&str, Disturb); 5] = [
        ("renamed there and back", |lab, name| {
            let root = lab.root();
            lab.rename(&ROOT, (root, name), (root, "temporary")).unwrap();
            lab.rename(&ROOT, (root, "temporary"), (root, name)).unwrap();
        }),
        ("renamed, each time to another name", |lab, name| {
            let root = lab.root();
            let number = name.trim_start_matches(|letter: char| !letter.is_ascii_digit());
            let next = format!("renamed{}", number.parse::<u32>().unwrap() + 1000);
            lab.rename(&ROOT, (root, name), (root, &next)).unwrap();
        }),
        ("removed, and made again", |lab, name| {
            let root = lab.root();
            lab.remove(root, name).unwrap();
            lab.file(name);
        }),
        ("moved out and in again", |lab, name| {
            let root = lab.root();
            let other = lab.store.lookup(&ROOT, root, b"stays").unwrap();
            lab.rename(&ROOT, (root, name), (other, name)).unwrap();
            lab.rename(&ROOT, (other, name), (root, name)).unwrap();
        }),
        ("beside which one more is made", |lab, name| {
            if name.len() < 20 {
                lab.file(&format!("{name}1"));
            }
        }),
    ];
    for (way, act) in ways {
        let mut lab = Lab::new(64);
        let root = lab.root();
        for index in 0..20 {
            lab.file(&format!("f{index:02}"));
        }
        lab.mkdir(&ROOT, root, "stays", 0o755).unwrap();
        for index in 20..40 {
            lab.file(&format!("f{index:02}"));
        }
        let mut names = list_while(&mut lab, root, |lab, name| {
            if !matches!(name, "." | ".." | "stays") {
                act(lab, name);
            }
        });
        names.sort();
        let mut expected: Vec<String> = (0..40).map(|index| format!("f{index:02}")).collect();
        expected.extend([".".to_owned(), "..".to_owned(), "stays".to_owned()]);
        expected.sort();
        assert_eq!(names, expected, "entries that are {way}");
    }
}

/// An entry that is renamed is behind a reader where it was behind, and ahead where it was ahead.
#[test]
fn a_renamed_entry_keeps_its_place() {
    let mut lab = Lab::new(64);
    let root = lab.root();
    for name in ["a", "b", "c", "d"] {
        lab.file(name);
    }
    let (all, _) = lab.list(root, 0, 9);
    let (passed, ahead) = (all[2].0.clone(), all[5].0.clone());
    lab.rename(&ROOT, (root, &passed), (root, "x")).unwrap();
    lab.rename(&ROOT, (root, &ahead), (root, "y")).unwrap();
    let (rest, eof) = lab.list(root, all[3].1, 9);
    assert!(eof);
    assert_eq!(rest, [all[4].clone(), ("y".to_owned(), all[5].1)]);
    // An entry that replaces another takes its place, too: that name is shown once, whichever file it names.
    lab.rename(&ROOT, (root, "x"), (root, "y")).unwrap();
    let (rest, _) = lab.list(root, all[3].1, 9);
    assert_eq!(rest, [all[4].clone(), ("y".to_owned(), all[5].1)]);
    assert_eq!(lab.list(root, 0, 9).0.len(), 5);
}

#[test]
fn special_objects_have_their_numbers() {
    Lab::each(64, |lab| {
        let (root, now) = (lab.root(), lab.now());
        let number = DeviceId { major: 8, minor: 1 };
        for (name, special, rdev) in [
            (&b"b"[..], Special::Block(number), number),
            (b"c", Special::Character(number), number),
            (b"s", Special::Socket, DeviceId::default()),
            (b"p", Special::Fifo, DeviceId::default()),
        ] {
            let set = Update { mode: Some(0o640), size: Some(7), ..NONE };
            let made = lab.store.make_special(&ROOT, root, name, special, &set, now);
            if !lab.is_memory() && !is_root() && matches!(special, Special::Block(_) | Special::Character(_))
            {
                assert_eq!(made, Err(FsError::NotPermitted), "devices are root's to make");
                continue;
            }
            let object = made.unwrap();
            let attributes = lab.store.attributes(object).unwrap();
            assert_eq!((attributes.kind, attributes.device), (special.kind(), rdev));
            assert_eq!((attributes.mode, attributes.size), (0o640, 0));
        }
        let user = UserIdentity::new(1, 1, []);
        lab.set(&ROOT, root, Update { mode: Some(0o777), ..NONE }).unwrap();
        let device = Special::Block(number);
        assert_eq!(lab.store.make_special(&user, root, b"x", device, &NONE, now), Err(FsError::NotPermitted));
        assert!(lab.store.make_special(&user, root, b"x", Special::Fifo, &NONE, now).is_ok());
    });
}

#[test]
fn objects_and_names_are_bounded_and_come_back() {
    let config = MemoryConfig { objects_max: 4, names_max: 5, ..CONFIG };
    let mut lab = Lab::with(64, config);
    let root = lab.root();
    let file = lab.file("a");
    lab.mkdir(&ROOT, root, "b", 0o755).unwrap();
    lab.file("c");
    let full = lab.create(&ROOT, root, "d", &CreateMode::Guarded(NONE));
    assert_eq!((full, lab.store.usage().files_free), (Err(FsError::NoSpace), 0));
    assert_eq!(lab.mkdir(&ROOT, root, "d", 0o755), Err(FsError::NoSpace));
    let now = lab.now();
    lab.store.link(&ROOT, file, root, b"d", now).unwrap();
    lab.store.link(&ROOT, file, root, b"e", now).unwrap();
    assert_eq!(lab.store.link(&ROOT, file, root, b"f", now), Err(FsError::NoSpace));
    assert_eq!(lab.store.attributes(file).unwrap().nlink, 3);
    // A RENAME needs neither, whether it replaces or not.
    lab.rename(&ROOT, (root, "c"), (root, "g")).unwrap();
    lab.rename(&ROOT, (root, "g"), (root, "e")).unwrap();
    assert_eq!(lab.store.attributes(file).unwrap().nlink, 2);
    lab.store.link(&ROOT, file, root, b"f", now).unwrap();
    for name in ["a", "d", "e", "f"] {
        lab.remove(root, name).unwrap();
    }
    lab.store.remove_directory(&ROOT, root, b"b", now).unwrap();
    assert_eq!(lab.store.usage().files_free, 3);
    let attributes = lab.store.attributes(root).unwrap();
    assert_eq!(attributes.nlink, 2);
}

#[test]
fn wrong_kinds_are_told() {
    Lab::each(64, |lab| {
        let root = lab.root();
        let file = lab.file("f");
        lab.mkdir(&ROOT, root, "d", 0o755).unwrap();
        let now = lab.now();
        assert_eq!(lab.store.lookup(&ROOT, file, b"x"), Err(FsError::NotDirectory));
        assert_eq!(lab.store.remove(&ROOT, root, b"d", now), Err(FsError::IsDirectory));
        assert_eq!(lab.store.remove_directory(&ROOT, root, b"f", now), Err(FsError::NotDirectory));
        assert_eq!(lab.store.remove(&ROOT, root, b"nothing", now), Err(FsError::NotFound));
        assert_eq!(lab.rename(&ROOT, (root, "d"), (root, "f")), Err(FsError::Exists));
        assert_eq!(lab.rename(&ROOT, (root, "f"), (root, "d")), Err(FsError::Exists));
        assert_eq!(lab.rename(&ROOT, (root, "nothing"), (root, "d")), Err(FsError::NotFound));
        let directory = lab.store.lookup(&ROOT, root, b"d").unwrap();
        assert_eq!(lab.store.link(&ROOT, directory, root, b"x", now), Err(FsError::Invalid));
        assert_eq!(lab.store.link(&ROOT, file, root, b"d", now), Err(FsError::Exists));
    });
}
