//! LOOKUP, LOOKUPP, READLINK, SECINFO.

use stag_wire::nfs4::files::CreateType;
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::{Opaque, Status4};
use stag_wire::xdr::Item;

use crate::Lab;
use crate::files::*;

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
    lab.statuses(&file, &[(secinfo, Status4::NotDir)]);
    lab.statuses(&link, &[(secinfo, Status4::NotDir)]);
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
