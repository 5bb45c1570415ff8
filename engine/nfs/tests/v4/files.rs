//! What tests of names and attributes share: attributes in XDR, objects that are there, and what COMPOUNDs tell of them.

use stag_wire::nfs4::attributes::{Attribute, AttributeList, AttributeSet, AttributeValue};
use stag_wire::nfs4::files::{ChangeInfo, CreateArguments4, CreateType, GetattrArguments4};
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::{Bitmap, Opaque, Path, Status4};
use stag_wire::xdr::{Item, Writer};

use super::Lab;

pub(crate) const ROOT: Argument4<'static> = Argument4::Putrootfh(());
pub(crate) const GETFH: Argument4<'static> = Argument4::Getfh(());
pub(crate) const SAVEFH: Argument4<'static> = Argument4::Savefh(());

pub(crate) fn put(handle: &[u8]) -> Argument4<'_> {
    Argument4::Putfh(Opaque(handle))
}

pub(crate) fn lookup(name: &[u8]) -> Argument4<'_> {
    Argument4::Lookup(Opaque(name))
}

/// Attributes and their values.
pub(crate) struct Attributes {
    mask: Bitmap<'static>,
    values: Vec<u8>,
}

impl Attributes {
    /// These, which must be in the order of their numbers.
    pub(crate) fn of(all: &[(Attribute, AttributeValue<'_>)]) -> Attributes {
        let mask = Attribute::set_of(|attribute| all.iter().any(|(other, _)| *other == attribute));
        let mut buf = vec![0; 1024];
        let mut writer = Writer::new(&mut buf);
        all.iter().for_each(|(_, value)| writer.value(value).unwrap());
        Attributes { mask, values: writer.written().to_vec() }
    }

    pub(crate) fn list(&self) -> AttributeList<'_> {
        AttributeList { mask: self.mask, values: &self.values }
    }
}

pub(crate) const NO_ATTRIBUTES: AttributeList<'static> = AttributeList { mask: Bitmap::EMPTY, values: &[] };

pub(crate) fn request(attributes: &[Attribute]) -> AttributeSet<'static> {
    AttributeSet(Attribute::set_of(|attribute| attributes.contains(&attribute)))
}

pub(crate) fn getattr(attributes: &[Attribute]) -> Argument4<'static> {
    Argument4::Getattr(GetattrArguments4 { request: request(attributes) })
}

pub(crate) fn create<'a>(
    kind: CreateType<'a>,
    name: &'a [u8],
    attributes: AttributeList<'a>,
) -> Argument4<'a> {
    Argument4::Create(CreateArguments4 { kind, name: Opaque(name), attributes })
}

pub(crate) fn symlink(text: &[u8]) -> CreateType<'_> {
    CreateType::Symlink(Path(Item::Inline(text)))
}

/// Values of attributes of a list, shown: in the order of their numbers.
pub(crate) fn shown(list: &AttributeList<'_>) -> Vec<(Attribute, String)> {
    list.values().map(Result::unwrap).map(|(attribute, value)| (attribute, format!("{value:?}"))).collect()
}

impl Lab {
    /// The root of the first export.
    pub(crate) fn root(&self) -> Vec<u8> {
        self.pair.root.clone()
    }

    /// A directory in the first export's root.
    pub(crate) fn make_directory(&mut self, name: &[u8]) -> Vec<u8> {
        let root = self.root();
        self.handle(&[put(&root), create(CreateType::Directory, name, NO_ATTRIBUTES)]).unwrap()
    }

    /// An empty file in the first export's root.
    pub(crate) fn make_file(&mut self, name: &[u8]) -> Vec<u8> {
        let root = self.root();
        self.pair.create(&root, name)
    }

    /// What an object is.
    pub(crate) fn attributes(&mut self, handle: &[u8], asked: &[Attribute]) -> Vec<(Attribute, String)> {
        self.compound(&[put(handle), getattr(asked)], |status, outcomes| match outcomes.last() {
            Some(Outcome4::Getattr(Ok(list))) => shown(list),
            _ => panic!("{status:?}"),
        })
    }

    /// One attribute, shown.
    pub(crate) fn attribute(&mut self, handle: &[u8], attribute: Attribute) -> String {
        let all = self.attributes(handle, &[attribute]);
        assert_eq!(all.len(), 1, "{attribute:?}");
        all[0].1.clone()
    }

    /// The change attribute.
    pub(crate) fn change(&mut self, handle: &[u8]) -> u64 {
        self.attribute(handle, Attribute::Change).parse().unwrap()
    }

    /// Runs an operation that changes a directory: it says how the directory was and is.
    pub(crate) fn changes(&mut self, directory: &[u8], operations: &[Argument4<'_>]) {
        let before = self.change(directory);
        let info = self.compound(operations, |status, outcomes| match outcomes.last().unwrap() {
            Outcome4::Create(Ok(ok)) => ok.directory,
            Outcome4::Remove(Ok(info)) | Outcome4::Link(Ok(info)) => *info,
            other => panic!("{status:?}: {other:?}"),
        });
        let is_atomic = super::IS_ATOMIC;
        let after = self.change(directory);
        assert_eq!(info, ChangeInfo { is_atomic, before, after });
        assert_ne!(before, after);
    }

    /// Names in a directory, in order.
    pub(crate) fn names(&mut self, directory: &[u8]) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        let (mut cookie, mut verifier) = (0, stag_wire::nfs4::Verifier4::default());
        loop {
            let list = Argument4::Readdir(stag_wire::nfs4::directory::ReaddirArguments4 {
                cookie,
                verifier,
                dircount: 0,
                maxcount: 4096,
                request: request(&[]),
            });
            let eof = self.compound(&[put(directory), list], |status, outcomes| {
                let Some(Outcome4::Readdir(Ok(ok))) = outcomes.last() else { panic!("{status:?}") };
                verifier = ok.verifier;
                for entry in ok.entries {
                    cookie = entry.cookie;
                    names.push(entry.name.0.to_vec());
                }
                ok.eof
            });
            if eof {
                names.sort();
                return names;
            }
        }
    }

    /// Acts as this user from now on.
    pub(crate) fn become_user(&mut self, uid: u32, gid: u32) {
        self.pair.credential = Some(super::pair::credential(uid, gid, &[]));
    }

    /// Statuses of operations behind a PUTFH of `handle`.
    pub(crate) fn statuses(&mut self, handle: &[u8], all: &[(Argument4<'_>, Status4)]) {
        for (operation, expected) in all {
            assert_eq!(self.status(&[put(handle), *operation]), *expected, "{operation:?}");
        }
    }
}
