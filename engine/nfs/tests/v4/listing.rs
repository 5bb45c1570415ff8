//! READDIR.

use stag_wire::nfs4::attributes::{Attribute, AttributeSet};
use stag_wire::nfs4::directory::ReaddirArguments4;
use stag_wire::nfs4::files::CreateType;
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::{Bitmap, Status4, Verifier4};

use super::Lab;
use super::files::*;

const START: ReaddirArguments4<'static> = ReaddirArguments4 {
    cookie: 0,
    verifier: Verifier4 { 0: [0; 8] },
    dircount: 0,
    maxcount: 4096,
    request: AttributeSet(Bitmap::EMPTY),
};

/// An entry: cookie, name, and attributes as they are shown.
type Entry = (u64, Vec<u8>, Vec<(Attribute, String)>);

/// One answer: entries, verifier, and whether the last entry is among them.
fn list(
    lab: &mut Lab,
    start: Argument4<'_>,
    arguments: ReaddirArguments4<'_>,
) -> Result<(Vec<Entry>, Verifier4, bool), Status4> {
    lab.compound(&[start, Argument4::Readdir(arguments)], |status, outcomes| match outcomes.last() {
        Some(Outcome4::Readdir(Ok(ok))) => {
            let entries = ok.entries.into_iter();
            let entries = entries
                .map(|entry| (entry.cookie, entry.name.0.to_vec(), shown(&entry.attributes)))
                .collect();
            Ok((entries, ok.verifier, ok.eof))
        }
        _ => Err(status),
    })
}

#[test]
fn a_listing_goes_on_where_it_ended() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let root = lab.root();
    let mut expected: Vec<_> = (0..40).map(|number| format!("file{number:02}").into_bytes()).collect();
    for name in &expected {
        lab.make_file(name);
    }
    for (maxcount, dircount) in [(400, 0), (4096, 0), (4096, 60), (8000, 8000)] {
        let (mut found, mut cookies, mut next) = (Vec::new(), Vec::new(), START);
        (next.maxcount, next.dircount) = (maxcount, dircount);
        next.request = request(&[Attribute::FileId]);
        loop {
            let (entries, verifier, eof) = list(&mut lab, put(&root), next).unwrap();
            for (cookie, name, _) in entries {
                (next.cookie, next.verifier) = (cookie, verifier);
                cookies.push(cookie);
                found.push(name);
            }
            if eof {
                break;
            }
        }
        found.sort();
        assert_eq!(found, expected, "no dots, none twice, none lost");
        // 8881-18.23.3.
        assert!(cookies.iter().all(|cookie| *cookie > 2), "{cookies:?}");
        cookies.sort_unstable();
        cookies.dedup();
        assert_eq!(cookies.len(), expected.len());
    }
    expected.clear();
    let empty = lab.make_directory(b"empty");
    let found = list(&mut lab, put(&empty), START).unwrap();
    assert_eq!((found.0, found.2), (Vec::new(), true));
}

#[test]
fn entries_have_the_attributes_of_their_objects() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let root = lab.root();
    lab.make_file(b"file");
    lab.make_directory(b"directory");
    let asked = [
        Attribute::Type,
        Attribute::Change,
        Attribute::Fsid,
        Attribute::RdattrError,
        Attribute::FileHandle,
        Attribute::FileId,
        Attribute::Mode,
        Attribute::SpaceFree,
        Attribute::TimeModify,
        Attribute::MountedOnFileId,
    ];
    let arguments = ReaddirArguments4 { request: request(&asked), ..START };
    let (entries, ..) = list(&mut lab, put(&root), arguments).unwrap();
    assert_eq!(entries.len(), 2);
    for (_, name, attributes) in entries {
        let object = lab.handle(&[put(&root), lookup(&name)]).unwrap();
        assert_eq!(lab.attributes(&object, &asked), attributes);
    }
    // Only numbers.
    let arguments =
        ReaddirArguments4 { request: request(&[Attribute::FileId, Attribute::MountedOnFileId]), ..START };
    for (_, name, attributes) in list(&mut lab, put(&root), arguments).unwrap().0 {
        let object = lab.handle(&[put(&root), lookup(&name)]).unwrap();
        let fileid = lab.attribute(&object, Attribute::FileId);
        assert_eq!(attributes, [(Attribute::FileId, fileid.clone()), (Attribute::MountedOnFileId, fileid)]);
    }
}

#[test]
fn what_cannot_be_listed() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let (root, file) = (lab.root(), lab.make_file(b"file"));
    let (entries, verifier, _) = list(&mut lab, put(&root), START).unwrap();
    let cookie = entries[0].0;
    let other = Verifier4 { 0: [9; 8] };
    for (arguments, expected) in [
        (ReaddirArguments4 { cookie: 1, verifier, ..START }, Status4::BadCookie),
        (ReaddirArguments4 { cookie: 2, verifier, ..START }, Status4::BadCookie),
        (ReaddirArguments4 { verifier: other, ..START }, Status4::BadCookie),
        (ReaddirArguments4 { cookie, verifier: other, ..START }, Status4::NotSame),
        (ReaddirArguments4 { maxcount: 0, ..START }, Status4::TooSmall),
        (ReaddirArguments4 { maxcount: 16, ..START }, Status4::TooSmall),
        (ReaddirArguments4 { maxcount: 43, ..START }, Status4::TooSmall),
        (ReaddirArguments4 { request: request(&[Attribute::TimeModifySet]), ..START }, Status4::Inval),
    ] {
        assert_eq!(list(&mut lab, put(&root), arguments).err(), Some(expected), "{arguments:?}");
    }
    // Exactly one entry: the list's ends, cookie, name, an empty set of attributes.
    let least = ReaddirArguments4 { maxcount: 44, ..START };
    assert_eq!(list(&mut lab, put(&root), least).map(|(entries, ..)| entries.len()), Ok(1));
    assert_eq!(list(&mut lab, put(&file), START).err(), Some(Status4::NotDir));
    assert_eq!(lab.status(&[Argument4::Readdir(START)]), Status4::NoFilehandle);
    let closed =
        Attributes::of(&[(Attribute::Mode, stag_wire::nfs4::attributes::AttributeValue::U32(0o711))]);
    let closed = lab.handle(&[put(&root), create(CreateType::Directory, b"closed", closed.list())]).unwrap();
    lab.become_user(1000, 1000);
    assert_eq!(list(&mut lab, put(&closed), START).err(), Some(Status4::Access));
}

/// The exports are in the pseudo file system, with what they are.
#[test]
fn exports_are_listed() {
    let mut lab = Lab::new(&["/data,root_squash=no", "/deep/down", "/deep/up"]);
    let asked = [Attribute::Type, Attribute::Fsid, Attribute::FileId, Attribute::MountedOnFileId];
    let error_too = [Attribute::Type, Attribute::RdattrError, Attribute::MountedOnFileId];
    let request = request(if super::IS_CARRIED { &error_too } else { &asked });
    let arguments = ReaddirArguments4 { request, ..START };
    let (entries, verifier, eof) = list(&mut lab, ROOT, arguments).unwrap();
    assert!(eof);
    let names: Vec<_> = entries.iter().map(|(_, name, _)| &name[..]).collect();
    assert_eq!(names, [&b"data"[..], b"deep"]);
    // Of an export that another reactor has, a client hears when it goes there.
    for (_, name, attributes) in entries.iter().filter(|_| !super::IS_CARRIED) {
        let object = lab.handle(&[ROOT, lookup(name)]).unwrap();
        assert_eq!(lab.attributes(&object, &asked), *attributes);
    }
    let next = ReaddirArguments4 { cookie: entries[0].0, verifier, ..arguments };
    assert_eq!(list(&mut lab, ROOT, next).unwrap().0, entries[1..]);
    let other = ReaddirArguments4 { verifier: Verifier4 { 0: [9; 8] }, ..next };
    assert_eq!(list(&mut lab, ROOT, other).err(), Some(Status4::NotSame));
    let small = ReaddirArguments4 { maxcount: 40, ..arguments };
    assert_eq!(list(&mut lab, ROOT, small).err(), Some(Status4::TooSmall));
    let deep = lab.handle(&[ROOT, lookup(b"deep")]).unwrap();
    assert_eq!(lab.names(&deep), [&b"down"[..], b"up"]);
}
