//! LOOKUP, LOOKUPP, READLINK, SECINFO.

use stag_wire::nfs4::attributes::Attribute;
use stag_wire::nfs4::client_id::SecinfoStyle;
use stag_wire::nfs4::directory::ReaddirArguments4;
use stag_wire::nfs4::files::CreateType;
use stag_wire::nfs4::open::CreateHow4;
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::{Opaque, Status4};
use stag_wire::xdr::Item;

use super::Lab;
use super::files::*;
use super::state::open_create;

const UP: Argument4<'static> = Argument4::Lookupp(());
const READLINK: Argument4<'static> = Argument4::Readlink(());

/// 8881-14.5, 8881-15.1.7: names that no entry has.
pub(crate) const BAD_NAMES: [(&[u8], Status4); 6] = [
    (b"", Status4::Inval),
    (b".", Status4::BadName),
    (b"..", Status4::BadName),
    (b"a/b", Status4::BadName),
    (b"a\0b", Status4::BadChar),
    (&[b'n'; 256], Status4::NameTooLong),
];

#[test]
fn names_lead_down_and_up_again() {
    let mut lab = Lab::new(&["/data,root_squash=no", "/deep/down"]);
    let (root, directory) = (lab.root(), lab.make_directory(b"a"));
    let inner = lab.handle(&[put(&directory), create(CreateType::Directory, b"b", NO_ATTRIBUTES)]).unwrap();
    assert_eq!(lab.handle(&[put(&root), lookup(b"a"), lookup(b"b")]), Ok(inner.clone()));
    assert_eq!(lab.handle(&[ROOT, lookup(b"data"), lookup(b"a")]), Ok(directory.clone()));
    assert_eq!(lab.handle(&[put(&inner), UP]), Ok(directory));
    assert_eq!(lab.handle(&[put(&inner), UP, UP]), Ok(root.clone()));
    // From the root of an export to the directory that has it.
    let pseudo = lab.handle(&[ROOT]).unwrap();
    assert_eq!(lab.handle(&[put(&root), UP]), Ok(pseudo.clone()));
    let deep = lab.handle(&[ROOT, lookup(b"deep")]).unwrap();
    assert_eq!(lab.handle(&[ROOT, lookup(b"deep"), lookup(b"down"), UP]), Ok(deep.clone()));
    assert_eq!(lab.handle(&[put(&deep), UP]), Ok(pseudo));
    assert_eq!(lab.status(&[ROOT, UP]), Status4::NoEnt);
    assert_eq!(lab.status(&[ROOT, lookup(b"other")]), Status4::NoEnt);
    assert_eq!(lab.status(&[put(&root), lookup(b"other")]), Status4::NoEnt);
}

/// An export below another one is found, whatever the other has there.
#[test]
fn an_export_lies_over_what_is_below_it() {
    let mut lab = Lab::new(&["/data,root_squash=no", "/data/inner"]);
    let (root, covered) = (lab.root(), lab.make_directory(b"inner"));
    let inner = lab.handle(&[put(&root), lookup(b"inner")]).unwrap();
    assert_ne!(inner, covered);
    assert_eq!(lab.handle(&[put(&inner), UP]), Ok(root.clone()));
    assert_eq!(lab.names(&root), [b"inner"]);
}

/// 8881-7.3, 8881-7.4: each export is a file system of its own, though it lies in another one; the way there may be directories of
/// that one, or none.
#[test]
fn exports_in_exports_are_crossed_up_and_down() {
    let mut lab = Lab::new(&["/data,root_squash=no", "/data/inner", "/data/x/deep,root_squash=no"]);
    let root = lab.root();
    let inner = lab.handle(&[put(&root), lookup(b"inner")]).unwrap();
    assert_eq!(lab.handle(&[ROOT, lookup(b"data"), lookup(b"inner")]), Ok(inner.clone()));
    assert_eq!(lab.handle(&[put(&inner), UP]), Ok(root.clone()));
    // What is in the way to an export is there, whether the outer export has it or not.
    assert_eq!(lab.names(&root), [&b"inner"[..], b"x"]);
    let stand_in = lab.handle(&[put(&root), lookup(b"x")]).unwrap();
    assert_eq!(lab.names(&stand_in), [b"deep"]);
    let deep = lab.handle(&[put(&stand_in), lookup(b"deep")]).unwrap();
    assert_eq!(lab.handle(&[put(&deep), UP]), Ok(stand_in.clone()));
    assert_eq!(lab.handle(&[put(&stand_in), UP]), Ok(root.clone()));
    let fsids: Vec<_> = [&root, &inner, &deep, &stand_in]
        .into_iter()
        .map(|handle| lab.attribute(handle, Attribute::Fsid))
        .collect();
    for (place, fsid) in fsids.iter().enumerate() {
        assert!(!fsids[..place].contains(fsid), "{fsids:?}");
    }
    // The number of the directory that an export covers is told beside its own.
    for handle in [&inner, &deep] {
        let covered = lab.attribute(handle, Attribute::MountedOnFileId);
        assert_ne!(covered, lab.attribute(handle, Attribute::FileId));
    }
    // Once the outer export has the directory, that leads there, with all else that is in it.
    let real = lab.make_directory(b"x");
    assert_eq!(lab.handle(&[put(&root), lookup(b"x")]), Ok(real.clone()));
    let other = lab.handle(&[put(&real), create(CreateType::Directory, b"other", NO_ATTRIBUTES)]).unwrap();
    assert_eq!(lab.names(&real), [&b"deep"[..], b"other"]);
    assert_eq!(lab.handle(&[put(&real), lookup(b"deep")]), Ok(deep.clone()));
    assert_eq!(lab.handle(&[put(&real), lookup(b"other")]), Ok(other.clone()));
    assert_eq!(lab.handle(&[put(&deep), UP]), Ok(real.clone()));
    assert_eq!(lab.handle(&[put(&deep), UP, UP]), Ok(root.clone()));
    assert_eq!(lab.status(&[put(&other), lookup(b"deep")]), Status4::NoEnt);
    assert_eq!(lab.names(&root), [&b"inner"[..], b"x"]);
    // A file cannot be made where an export lies.
    let how = CreateHow4::Unchecked(NO_ATTRIBUTES);
    assert_eq!(lab.status(&[put(&real), open_create(b"deep", how)]), Status4::IsDir);
}

/// 8881-18.23.3: a list goes on where it ended, among entries that the directory has and those that it has because of exports.
#[test]
fn a_list_goes_on_among_exports_in_exports() {
    let mut lab = Lab::new(&["/data,root_squash=no", "/data/aa", "/data/bb", "/data/cc/dd"]);
    let root = lab.root();
    lab.make_directory(b"real");
    lab.make_directory(b"bb");
    let (mut cookie, mut verifier) = (0, stag_wire::nfs4::Verifier4::default());
    let mut names = Vec::new();
    let mut is_over = false;
    while !is_over {
        let list = Argument4::Readdir(ReaddirArguments4 {
            cookie,
            verifier,
            dircount: 0,
            // Room for one entry or two.
            maxcount: 60,
            request: request(&[]),
        });
        is_over = lab.compound(&[put(&root), list], |status, outcomes| {
            let Some(Outcome4::Readdir(Ok(ok))) = outcomes.last() else { panic!("{status:?}") };
            verifier = ok.verifier;
            for entry in ok.entries {
                cookie = entry.cookie;
                names.push(entry.name.0.to_vec());
            }
            ok.eof
        });
    }
    names.sort();
    assert_eq!(names, [&b"aa"[..], b"bb", b"cc", b"real"]);
}

#[test]
fn lookups_go_through_directories_only() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let (root, file) = (lab.root(), lab.make_file(b"file"));
    let link = lab.handle(&[put(&root), create(symlink(b"file"), b"link", NO_ATTRIBUTES)]).unwrap();
    let secinfo = Argument4::Secinfo(Opaque(b"a"));
    for operation in [lookup(b"a"), UP] {
        lab.statuses(&file, &[(operation, Status4::NotDir)]);
        lab.statuses(&link, &[(operation, Status4::Symlink)]);
    }
    let above = Argument4::SecinfoNoName(SecinfoStyle::Parent);
    for operation in [secinfo, above] {
        lab.statuses(&file, &[(operation, Status4::NotDir)]);
        lab.statuses(&link, &[(operation, Status4::NotDir)]);
    }
    for operation in [lookup(b"a"), UP, secinfo, READLINK] {
        assert_eq!(lab.status(&[operation]), Status4::NoFilehandle, "{operation:?}");
    }
    for (name, expected) in BAD_NAMES {
        for start in [ROOT, put(&root)] {
            assert_eq!(lab.status(&[start, lookup(name)]), expected, "{name:?}");
            assert_eq!(lab.status(&[start, Argument4::Secinfo(Opaque(name))]), expected, "{name:?}");
        }
    }
}

#[test]
fn who_may_not_search_a_directory_finds_nothing() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let closed = Attributes::of(&[(
        stag_wire::nfs4::attributes::Attribute::Mode,
        stag_wire::nfs4::attributes::AttributeValue::U32(0o700),
    )]);
    let root = lab.root();
    let directory =
        lab.handle(&[put(&root), create(CreateType::Directory, b"closed", closed.list())]).unwrap();
    lab.become_user(1000, 1000);
    lab.statuses(&directory, &[(lookup(b"a"), Status4::Access), (UP, Status4::Access)]);
    assert_eq!(lab.handle(&[put(&root), lookup(b"closed")]), Ok(directory));
}

#[test]
fn links_are_read() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let root = lab.root();
    let long = vec![b'l'; 1023];
    for text in [&b"x"[..], b"over/there", &long] {
        let make = create(symlink(text), b"link", NO_ATTRIBUTES);
        let link = lab.handle(&[put(&root), make]).unwrap();
        // Two in one COMPOUND.
        lab.compound(&[put(&link), READLINK, READLINK], |status, outcomes| {
            assert_eq!(status, Status4::Ok);
            for outcome in &outcomes[1..] {
                let Outcome4::Readlink(Ok(path)) = outcome else { panic!("{outcome:?}") };
                assert_eq!(path.0, Item::Inline(text));
            }
        });
        assert_eq!(lab.status(&[put(&root), Argument4::Remove(Opaque(b"link"))]), Status4::Ok);
    }
    for start in [ROOT, put(&root)] {
        assert_eq!(lab.status(&[start, READLINK]), Status4::Inval);
    }
}

/// 8881-2.6.3.1.1.8.
#[test]
fn the_security_of_a_name_is_told() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let (root, _) = (lab.root(), lab.make_file(b"file"));
    for (start, name) in [(ROOT, &b"data"[..]), (put(&root), b"file")] {
        let ask = Argument4::Secinfo(Opaque(name));
        lab.compound(&[start, ask], |status, outcomes| {
            let Some(Outcome4::Secinfo(Ok(flavors))) = outcomes.last() else { panic!("{status:?}") };
            assert!(!flavors.is_empty());
        });
        assert_eq!(lab.status(&[start, ask, GETFH]), Status4::NoFilehandle);
        assert_eq!(lab.status(&[start, Argument4::Secinfo(Opaque(b"other"))]), Status4::NoEnt);
    }
}
