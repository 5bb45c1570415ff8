//! CREATE, REMOVE, RENAME, LINK, SETATTR.

use stag_wire::nfs4::attributes::{Attribute, AttributeList, AttributeValue, ModeUmask, SetTime4};
use stag_wire::nfs4::files::{ChangeInfo, CreateType, RenameArguments4, SetattrArguments4};
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::{DeviceNumber, Opaque, StateId, Status4, Time4};

use super::Lab;
use super::files::*;
use super::names::BAD_NAMES;

fn mode(mode: u32) -> Attributes {
    Attributes::of(&[(Attribute::Mode, AttributeValue::U32(mode))])
}

fn remove(name: &[u8]) -> Argument4<'_> {
    Argument4::Remove(Opaque(name))
}

fn rename<'a>(from: &'a [u8], to: &'a [u8]) -> Argument4<'a> {
    Argument4::Rename(RenameArguments4 { from: Opaque(from), to: Opaque(to) })
}

fn link(name: &[u8]) -> Argument4<'_> {
    Argument4::Link(Opaque(name))
}

fn setattr(attributes: AttributeList<'_>) -> Argument4<'_> {
    Argument4::Setattr(SetattrArguments4 { stateid: StateId::ANONYMOUS, attributes })
}

#[test]
fn all_kinds_of_objects_are_made() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let root = lab.root();
    let number = DeviceNumber { major: 7, minor: 9 };
    for (kind, kind_name) in [
        (CreateType::Directory, "Directory"),
        (CreateType::Block(number), "Block"),
        (CreateType::Character(number), "Character"),
        (symlink(b"text"), "Symlink"),
        (CreateType::Socket, "Socket"),
        (CreateType::Fifo, "Fifo"),
    ] {
        let name = kind_name.as_bytes();
        let attributes = mode(0o640);
        let make = create(kind, name, attributes.list());
        lab.changes(&root, &[put(&root), make]);
        let made = lab.handle(&[put(&root), lookup(name)]).unwrap();
        assert_eq!(lab.attribute(&made, Attribute::Type), kind_name);
        if !matches!(kind, CreateType::Symlink(_)) {
            assert_eq!(lab.attribute(&made, Attribute::Mode), 0o640.to_string());
        }
        if matches!(kind, CreateType::Block(_)) {
            assert!(lab.attribute(&made, Attribute::RawDev).contains("major: 7"));
        }
        assert_eq!(lab.status(&[put(&root), make]), Status4::Exist);
        lab.changes(&root, &[put(&root), remove(name)]);
        // The new object is the current one.
        assert_eq!(lab.handle(&[put(&root), make]).map(|handle| handle.len()), Ok(made.len()));
        assert_eq!(lab.status(&[put(&made), getattr(&[Attribute::Size])]), Status4::Stale);
    }
    for kind in [CreateType::Regular, CreateType::AttributeDirectory, CreateType::NamedAttribute] {
        let make = create(kind, b"other", NO_ATTRIBUTES);
        assert_eq!(lab.status(&[put(&root), make]), Status4::BadType, "{kind:?}");
    }
}

#[test]
fn what_cannot_be_made() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let (root, file) = (lab.root(), lab.make_file(b"file"));
    let directory = |name| create(CreateType::Directory, name, NO_ATTRIBUTES);
    for (name, expected) in BAD_NAMES {
        lab.statuses(&root, &[(directory(name), expected)]);
    }
    lab.statuses(
        &root,
        &[
            (create(symlink(b""), b"link", NO_ATTRIBUTES), Status4::Inval),
            (create(symlink(b"a\0"), b"link", NO_ATTRIBUTES), Status4::Inval),
        ],
    );
    lab.statuses(&file, &[(directory(b"a"), Status4::NotDir)]);
    assert_eq!(lab.status(&[ROOT, directory(b"a")]), Status4::RoFs);
    assert_eq!(lab.status(&[directory(b"a")]), Status4::NoFilehandle);
    let unsupported = Attributes::of(&[(Attribute::Hidden, AttributeValue::Bool(true))]);
    let read_only = Attributes::of(&[(Attribute::FileId, AttributeValue::U64(7))]);
    let bad_owner = Attributes::of(&[(Attribute::Owner, AttributeValue::Text(Opaque(b"nobody")))]);
    let bad_mode = mode(0o10_000);
    let malformed = AttributeList { mask: request(&[Attribute::Mode]).0, values: &[] };
    for (attributes, expected) in [
        (unsupported.list(), Status4::AttrNotSupp),
        (read_only.list(), Status4::Inval),
        (bad_owner.list(), Status4::BadOwner),
        (bad_mode.list(), Status4::Inval),
        (malformed, Status4::BadXdr),
    ] {
        let make = create(CreateType::Directory, b"a", attributes);
        lab.statuses(&root, &[(make, expected), (lookup(b"a"), Status4::NoEnt)]);
    }
    lab.become_user(1000, 1000);
    lab.statuses(&root, &[(directory(b"a"), Status4::Access)]);
    let device = CreateType::Block(DeviceNumber { major: 1, minor: 1 });
    lab.statuses(&root, &[(create(device, b"a", NO_ATTRIBUTES), Status4::Perm)]);
}

#[test]
fn an_export_that_is_read_only_is_not_changed() {
    is_not_changed("/data,ro,root_squash=no");
}

/// A rule about the client decides, whatever the export says of all others.
#[test]
fn a_client_has_the_rights_of_its_rule() {
    is_not_changed("/data,client=*:ro,root_squash=no");
    let mut lab = Lab::new(&["/data,ro,client=*:rw,root_squash=no"]);
    let root = lab.root();
    let make = create(CreateType::Directory, b"a", NO_ATTRIBUTES);
    lab.statuses(&root, &[(make, Status4::Ok), (lookup(b"a"), Status4::Ok)]);
}

fn is_not_changed(export: &str) {
    let mut lab = Lab::new(&[export]);
    let root = lab.root();
    let attributes = mode(0o700);
    for operation in
        [create(CreateType::Directory, b"a", NO_ATTRIBUTES), remove(b"a"), setattr(attributes.list())]
    {
        assert_eq!(lab.status(&[put(&root), operation]), Status4::RoFs, "{operation:?}");
    }
    for operation in [rename(b"a", b"b"), link(b"a")] {
        assert_eq!(lab.status(&[put(&root), SAVEFH, operation]), Status4::RoFs, "{operation:?}");
        assert_eq!(lab.status(&[ROOT, SAVEFH, operation]), Status4::RoFs, "{operation:?}");
    }
    assert_eq!(lab.status(&[ROOT, setattr(attributes.list())]), Status4::RoFs);
    assert_eq!(lab.status(&[ROOT, remove(b"data")]), Status4::RoFs);
}

/// RFC 8275 section 5.
#[test]
fn a_umask_is_applied_by_the_server() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let root = lab.root();
    let masked = |mode, umask| {
        let value = AttributeValue::ModeUmask(ModeUmask { mode, umask });
        Attributes::of(&[(Attribute::ModeUmask, value)])
    };
    let attributes = masked(0o777, 0o027);
    let make = create(CreateType::Directory, b"a", attributes.list());
    let set = lab.compound(&[put(&root), make], |status, outcomes| match outcomes.last() {
        Some(Outcome4::Create(Ok(ok))) => ok.attributes_set.0.words(),
        _ => panic!("{status:?}"),
    });
    assert_eq!(set, request(&[Attribute::ModeUmask]).0.words());
    let made = lab.handle(&[put(&root), lookup(b"a")]).unwrap();
    assert_eq!(lab.attribute(&made, Attribute::Mode), 0o750.to_string());
    lab.statuses(&made, &[(setattr(attributes.list()), Status4::Inval)]);
    lab.minor = 1;
    let make = create(CreateType::Directory, b"b", attributes.list());
    lab.statuses(&root, &[(make, Status4::AttrNotSupp)]);
}

#[test]
fn attributes_that_the_maker_may_not_set_are_not_said_to_be_set() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let root = lab.root();
    let open = mode(0o777);
    assert_eq!(lab.status(&[put(&root), setattr(open.list())]), Status4::Ok);
    let attributes = Attributes::of(&[
        (Attribute::Mode, AttributeValue::U32(0o700)),
        (Attribute::Owner, AttributeValue::Text(Opaque(b"7"))),
    ]);
    let set = |lab: &mut Lab, name: &[u8]| {
        let make = create(CreateType::Directory, name, attributes.list());
        lab.compound(&[put(&root), make], |status, outcomes| match outcomes.last() {
            Some(Outcome4::Create(Ok(ok))) => ok.attributes_set.0.words(),
            _ => panic!("{status:?}"),
        })
    };
    assert_eq!(set(&mut lab, b"a"), request(&[Attribute::Mode, Attribute::Owner]).0.words());
    lab.become_user(1000, 1000);
    assert_eq!(set(&mut lab, b"b"), request(&[Attribute::Mode]).0.words());
}

#[test]
fn names_are_removed() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let (root, file) = (lab.root(), lab.make_file(b"file"));
    let full = lab.make_directory(b"full");
    assert_eq!(
        lab.status(&[put(&full), create(CreateType::Directory, b"inner", NO_ATTRIBUTES)]),
        Status4::Ok
    );
    for (name, expected) in BAD_NAMES {
        lab.statuses(&root, &[(remove(name), expected)]);
    }
    lab.statuses(&root, &[(remove(b"full"), Status4::NotEmpty), (remove(b"other"), Status4::NoEnt)]);
    lab.statuses(&file, &[(remove(b"a"), Status4::NotDir)]);
    assert_eq!(lab.status(&[remove(b"a")]), Status4::NoFilehandle);
    lab.become_user(1000, 1000);
    lab.statuses(&root, &[(remove(b"file"), Status4::Access)]);
    lab.become_user(0, 0);
    lab.changes(&root, &[put(&root), remove(b"file")]);
    lab.changes(&full, &[put(&full), remove(b"inner")]);
    lab.changes(&root, &[put(&root), remove(b"full")]);
    assert_eq!(lab.names(&root), Vec::<Vec<u8>>::new());
    assert_eq!(lab.status(&[put(&full), remove(b"a")]), Status4::Stale);
}

#[test]
fn names_are_renamed() {
    let mut lab = Lab::new(&["/data,root_squash=no", "/other,root_squash=no"]);
    let (root, directory) = (lab.root(), lab.make_directory(b"directory"));
    let file = lab.make_file(b"a");
    let before = [lab.change(&root), lab.change(&directory)];
    let moved = [put(&root), SAVEFH, put(&directory), rename(b"a", b"b")];
    let told = lab.compound(&moved, |status, outcomes| match outcomes.last() {
        Some(Outcome4::Rename(Ok(ok))) => [ok.from, ok.to],
        _ => panic!("{status:?}"),
    });
    let after = [lab.change(&root), lab.change(&directory)];
    for ((info, before), after) in told.into_iter().zip(before).zip(after) {
        assert_eq!(info, ChangeInfo { is_atomic: super::IS_ATOMIC, before, after });
    }
    assert_eq!(lab.handle(&[put(&directory), lookup(b"b")]), Ok(file));
    // Within a directory, over another file.
    let other = lab.make_file(b"c");
    assert_eq!(lab.status(&[put(&directory), SAVEFH, put(&root), rename(b"b", b"c")]), Status4::Ok);
    assert_eq!(lab.status(&[put(&other), getattr(&[Attribute::Size])]), Status4::Stale);
    assert_eq!(lab.names(&root), [&b"c"[..], b"directory"]);
    assert_eq!(lab.status(&[put(&root), SAVEFH, rename(b"c", b"c")]), Status4::Ok);
}

#[test]
fn what_cannot_be_renamed() {
    let mut lab = Lab::new(&["/data,root_squash=no", "/other,root_squash=no"]);
    let (root, directory, file) = (lab.root(), lab.make_directory(b"directory"), lab.make_file(b"file"));
    let inner =
        lab.handle(&[put(&directory), create(CreateType::Directory, b"inner", NO_ATTRIBUTES)]).unwrap();
    lab.make_directory(b"empty");
    for (name, expected) in BAD_NAMES {
        for operation in [rename(name, b"a"), rename(b"file", name)] {
            assert_eq!(lab.status(&[put(&root), SAVEFH, operation]), expected, "{name:?}");
        }
    }
    for (operation, expected) in [
        (rename(b"other", b"a"), Status4::NoEnt),
        (rename(b"file", b"directory"), Status4::Exist),
        (rename(b"directory", b"file"), Status4::Exist),
        (rename(b"empty", b"directory"), Status4::NotEmpty),
    ] {
        assert_eq!(lab.status(&[put(&root), SAVEFH, operation]), expected, "{operation:?}");
    }
    let into_itself = [put(&root), SAVEFH, put(&inner), rename(b"directory", b"a")];
    assert_eq!(lab.status(&into_itself), Status4::Inval);
    assert_eq!(lab.status(&[put(&root), rename(b"file", b"a")]), Status4::NoFilehandle);
    assert_eq!(lab.status(&[rename(b"file", b"a")]), Status4::NoFilehandle);
    assert_eq!(lab.status(&[put(&file), SAVEFH, put(&root), rename(b"file", b"a")]), Status4::NotDir);
    assert_eq!(lab.status(&[put(&root), SAVEFH, put(&file), rename(b"file", b"a")]), Status4::NotDir);
    let other = [lookup(b"other"), rename(b"file", b"a")];
    assert_eq!(lab.status(&[&[put(&root), SAVEFH, ROOT], &other[..]].concat()), Status4::XDev);
    assert_eq!(lab.status(&[put(&root), SAVEFH, ROOT, rename(b"file", b"a")]), Status4::XDev);
}

#[test]
fn files_get_more_names() {
    let mut lab = Lab::new(&["/data,root_squash=no", "/other,root_squash=no"]);
    let (root, directory, file) = (lab.root(), lab.make_directory(b"directory"), lab.make_file(b"file"));
    lab.changes(&directory, &[put(&file), SAVEFH, put(&directory), link(b"again")]);
    assert_eq!(lab.handle(&[put(&directory), lookup(b"again")]), Ok(file.clone()));
    assert_eq!(lab.attribute(&file, Attribute::NumLinks), "2");
    for (from, to, expected) in
        [(&file, &root, Status4::Ok), (&file, &file, Status4::NotDir), (&directory, &root, Status4::IsDir)]
    {
        assert_eq!(lab.status(&[put(from), SAVEFH, put(to), link(b"third")]), expected);
    }
    assert_eq!(lab.status(&[put(&file), SAVEFH, put(&root), link(b"third")]), Status4::Exist);
    for (name, expected) in BAD_NAMES {
        assert_eq!(lab.status(&[put(&file), SAVEFH, put(&root), link(name)]), expected, "{name:?}");
    }
    assert_eq!(lab.status(&[put(&file), link(b"a")]), Status4::NoFilehandle);
    assert_eq!(lab.status(&[put(&file), SAVEFH, ROOT, link(b"a")]), Status4::XDev);
    assert_eq!(lab.status(&[put(&file), SAVEFH, ROOT, lookup(b"other"), link(b"a")]), Status4::XDev);
}

/// What SETATTR says that it set.
fn set(lab: &mut Lab, handle: &[u8], attributes: AttributeList<'_>) -> (Status4, [u32; 3]) {
    lab.compound(&[put(handle), setattr(attributes)], |status, outcomes| {
        let Some(Outcome4::Setattr(result)) = outcomes.last() else { panic!("{status:?}") };
        assert_eq!(result.status, status);
        (status, result.attributes_set.0.words())
    })
}

#[test]
fn attributes_are_set() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let file = lab.make_file(b"file");
    let change = lab.change(&file);
    let time = Time4 { seconds: 1_000_000_007, nanoseconds: 5 };
    let all = Attributes::of(&[
        (Attribute::Size, AttributeValue::U64(5000)),
        (Attribute::Mode, AttributeValue::U32(0o640)),
        (Attribute::Owner, AttributeValue::Text(Opaque(b"12@example.org"))),
        (Attribute::OwnerGroup, AttributeValue::Text(Opaque(b"34"))),
        (Attribute::TimeAccessSet, AttributeValue::SetTime(SetTime4::ServerTime)),
        (Attribute::TimeModifySet, AttributeValue::SetTime(SetTime4::ClientTime(time))),
    ]);
    assert_eq!(set(&mut lab, &file, all.list()), (Status4::Ok, all.list().mask.words()));
    for (attribute, expected) in [
        (Attribute::Size, "5000".to_owned()),
        (Attribute::Mode, 0o640.to_string()),
        (Attribute::Owner, "\"12\"".to_owned()),
        (Attribute::OwnerGroup, "\"34\"".to_owned()),
        (Attribute::TimeModify, format!("{time:?}")),
    ] {
        assert_eq!(lab.attribute(&file, attribute), expected, "{attribute:?}");
    }
    assert_ne!(lab.change(&file), change);
    assert_eq!(set(&mut lab, &file, NO_ATTRIBUTES), (Status4::Ok, [0; 3]));
}

/// 8881-18.30.3: a failure says what was set, too: nothing.
#[test]
fn what_cannot_be_set() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let (root, file) = (lab.root(), lab.make_file(b"file"));
    let size = |size| Attributes::of(&[(Attribute::Size, AttributeValue::U64(size))]);
    let birth = Attributes::of(&[(Attribute::TimeCreate, AttributeValue::Time(Time4::default()))]);
    let fileid = Attributes::of(&[(Attribute::FileId, AttributeValue::U64(1))]);
    let owner = Attributes::of(&[(Attribute::Owner, AttributeValue::Text(Opaque(b"root@here")))]);
    let nothing = [0; 3];
    assert_eq!(set(&mut lab, &root, size(0).list()), (Status4::Inval, nothing));
    assert_eq!(set(&mut lab, &file, size(u64::MAX).list()), (Status4::FBig, nothing));
    assert_eq!(set(&mut lab, &file, birth.list()), (Status4::AttrNotSupp, nothing));
    assert_eq!(set(&mut lab, &file, fileid.list()), (Status4::Inval, nothing));
    assert_eq!(set(&mut lab, &file, owner.list()), (Status4::BadOwner, nothing));
    let malformed = AttributeList { mask: request(&[Attribute::Size]).0, values: &[0; 5] };
    assert_eq!(set(&mut lab, &file, malformed), (Status4::BadXdr, nothing));
    lab.compound(&[setattr(NO_ATTRIBUTES)], |status, outcomes| {
        let Some(Outcome4::Setattr(result)) = outcomes.last() else { panic!("{status:?}") };
        assert_eq!((result.status, result.attributes_set.0.words()), (Status4::NoFilehandle, nothing));
    });
    lab.become_user(1000, 1000);
    assert_eq!(set(&mut lab, &file, mode(0o777).list()), (Status4::Perm, nothing));
    assert_eq!(set(&mut lab, &file, size(0).list()), (Status4::Access, nothing));
}

/// 8881-18.30.4: VERIFY before SETATTR is version 3's guard.
#[test]
fn a_change_may_depend_on_what_was_seen() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let file = lab.make_file(b"file");
    let seen = Attributes::of(&[(Attribute::Change, AttributeValue::U64(lab.change(&file)))]);
    let (first, second) = (mode(0o600), mode(0o644));
    let guarded = |attributes| [put(&file), Argument4::Verify(seen.list()), setattr(attributes)];
    assert_eq!(lab.status(&guarded(first.list())), Status4::Ok);
    assert_eq!(lab.status(&guarded(second.list())), Status4::NotSame);
    assert_eq!(lab.attribute(&file, Attribute::Mode), 0o600.to_string());
}

/// RFC 8881 section 7.3: the path that leads to an export ends with it. What is open there does not keep the handle good.
#[test]
fn an_export_that_is_removed_is_stale() {
    let mut lab = Lab::new(&["/data,root_squash=no", "/more,root_squash=no"]);
    let root = lab.root();
    let file = lab.make_file(b"file");
    lab.pair.remove_export("/data");
    assert_eq!(lab.status(&[put(&root)]), Status4::Stale);
    assert_eq!(lab.status(&[put(&file)]), Status4::Stale);
    assert_eq!(lab.status(&[ROOT, lookup(b"data")]), Status4::NoEnt);
    assert_eq!(lab.status(&[ROOT, lookup(b"more")]), Status4::Ok);
}

/// RFC 8881 section 7.3: the root shows a new export at once.
#[test]
fn an_export_that_is_added_is_found() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    if super::IS_CARRIED {
        // The reactor where Calls come in does not learn of files in memory at another.
        return;
    }
    let way = [ROOT, lookup(b"deep"), lookup(b"more")];
    assert_eq!(lab.status(&way), Status4::NoEnt);
    lab.pair.add_export("/deep/more,root_squash=no", 1).unwrap();
    assert_eq!(lab.status(&way), Status4::Ok);
    lab.pair.remove_export("/deep/more");
    assert_eq!(lab.status(&way), Status4::NoEnt);
    lab.pair.add_export("/deep/more,root_squash=no", 1).unwrap();
    assert_eq!(lab.status(&way), Status4::Ok);
}
