//! GETATTR, VERIFY and NVERIFY.

use stag_wire::nfs4::attributes::{Attribute, AttributeList, AttributeValue};
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::{Bitmap, Opaque, Status4};

use super::Lab;
use super::files::*;

/// What Linux asks for of each object.
const WHOLE: [Attribute; 15] = [
    Attribute::Type,
    Attribute::Change,
    Attribute::Size,
    Attribute::Fsid,
    Attribute::FileId,
    Attribute::Mode,
    Attribute::NumLinks,
    Attribute::Owner,
    Attribute::OwnerGroup,
    Attribute::RawDev,
    Attribute::SpaceUsed,
    Attribute::TimeAccess,
    Attribute::TimeMetadata,
    Attribute::TimeModify,
    Attribute::MountedOnFileId,
];

#[test]
fn an_object_has_the_attributes_that_are_asked_for() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let file = lab.make_file(b"file");
    let whole = lab.attributes(&file, &WHOLE);
    assert_eq!(whole.iter().map(|(attribute, _)| *attribute).collect::<Vec<_>>(), WHOLE);
    let value = |wanted| &whole.iter().find(|(attribute, _)| *attribute == wanted).unwrap().1;
    assert_eq!(value(Attribute::Type), "Regular");
    assert_eq!(value(Attribute::Size), "0");
    assert_eq!(value(Attribute::NumLinks), "1");
    assert_eq!(value(Attribute::Owner), "\"0\"");
    assert_eq!(value(Attribute::FileId), value(Attribute::MountedOnFileId));
    // One by one they are the same.
    for (attribute, value) in &whole {
        assert_eq!(lab.attribute(&file, *attribute), *value, "{attribute:?}");
    }
    assert_eq!(lab.attributes(&file, &[]), []);
}

/// All that the server says it supports can be asked for, of objects and of the pseudo file system.
#[test]
fn all_supported_attributes_have_values() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let root = lab.handle(&[ROOT]).unwrap();
    for handle in [lab.root(), lab.make_file(b"file"), root] {
        for minor in [1, 2] {
            lab.minor = minor;
            let set = lab.compound(&[put(&handle), getattr(&[Attribute::SupportedAttrs])], |_, outcomes| {
                let Some(Outcome4::Getattr(Ok(list))) = outcomes.last() else { panic!("{outcomes:?}") };
                let value = list.values().next().unwrap().unwrap().1;
                let AttributeValue::Set(set) = value else { panic!("{value:?}") };
                set.0.words()
            });
            let supported = Bitmap::from_words(set);
            let asked: Vec<_> = Attribute::ALL
                .iter()
                .filter(|attribute| supported.contains(attribute.number()) && attribute.is_readable())
                .copied()
                .collect();
            let told = lab.attributes(&handle, &asked);
            assert_eq!(told.iter().map(|(attribute, _)| *attribute).collect::<Vec<_>>(), asked);
            assert!(asked.len() > 40, "{asked:?}");
            let mode_umask = supported.contains(Attribute::ModeUmask.number());
            assert_eq!(mode_umask, minor == 2);
            // 8881-18.7.3-b: others are left out.
            let all: Vec<_> =
                Attribute::ALL.iter().filter(|attribute| attribute.is_readable()).copied().collect();
            assert_eq!(lab.attributes(&handle, &all).len(), told.len());
        }
    }
}

/// 8881-5.5-a.
#[test]
fn attributes_that_are_only_set_cannot_be_asked_for() {
    let mut lab = Lab::new(&["/data"]);
    for attribute in [Attribute::TimeAccessSet, Attribute::TimeModifySet, Attribute::ModeUmask] {
        assert_eq!(lab.status(&[ROOT, getattr(&[attribute])]), Status4::Inval, "{attribute:?}");
    }
    assert_eq!(lab.status(&[getattr(&[Attribute::Size])]), Status4::NoFilehandle);
}

/// RFC 8881 section 5.8.2.23: the root of an export covers a directory of the pseudo file system.
#[test]
fn the_root_of_an_export_covers_another_directory() {
    let mut lab = Lab::new(&["/data,root_squash=no", "/deep/down"]);
    let root = lab.root();
    assert_eq!(lab.handle(&[ROOT, lookup(b"data")]), Ok(root.clone()));
    let fileid = lab.attribute(&root, Attribute::FileId);
    let covered = lab.attribute(&root, Attribute::MountedOnFileId);
    assert_ne!(fileid, covered);
    let pseudo = lab.handle(&[ROOT]).unwrap();
    assert_ne!(lab.attribute(&root, Attribute::Fsid), lab.attribute(&pseudo, Attribute::Fsid));
    let deep = lab.handle(&[ROOT, lookup(b"deep")]).unwrap();
    assert_eq!(lab.attribute(&deep, Attribute::Fsid), lab.attribute(&pseudo, Attribute::Fsid));
    let file = lab.make_file(b"file");
    assert_eq!(lab.attribute(&file, Attribute::Fsid), lab.attribute(&root, Attribute::Fsid));
}

#[test]
fn attributes_are_compared() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let file = lab.make_file(b"file");
    let change = lab.change(&file);
    let same = Attributes::of(&[
        (Attribute::Change, AttributeValue::U64(change)),
        (Attribute::Size, AttributeValue::U64(0)),
        (Attribute::Owner, AttributeValue::Text(Opaque(b"0"))),
    ]);
    let other = Attributes::of(&[(Attribute::Size, AttributeValue::U64(1))]);
    let unsupported = Attributes::of(&[(Attribute::Hidden, AttributeValue::Bool(false))]);
    let error = Attributes::of(&[(Attribute::RdattrError, AttributeValue::U32(0))]);
    let malformed = AttributeList { mask: request(&[Attribute::Size]).0, values: &[0; 4] };
    let verify = Argument4::Verify;
    let nverify = Argument4::Nverify;
    lab.statuses(
        &file,
        &[
            (verify(same.list()), Status4::Ok),
            (nverify(same.list()), Status4::Same),
            (verify(other.list()), Status4::NotSame),
            (nverify(other.list()), Status4::Ok),
            (verify(unsupported.list()), Status4::AttrNotSupp),
            (nverify(unsupported.list()), Status4::AttrNotSupp),
            (verify(error.list()), Status4::Inval),
            (nverify(error.list()), Status4::Inval),
            (verify(malformed), Status4::BadXdr),
            (nverify(malformed), Status4::BadXdr),
        ],
    );
    assert_eq!(lab.status(&[verify(same.list())]), Status4::NoFilehandle);
}
