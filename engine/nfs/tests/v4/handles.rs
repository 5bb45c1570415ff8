//! Handles, and the pseudo file system.

use stag_vfs::ObjectId;
use stag_wire::nfs4::attributes::Attribute;
use stag_wire::nfs4::client_id::{SecinfoStyle, SecurityFlavor};
use stag_wire::nfs4::directory::ReaddirArguments4;
use stag_wire::nfs4::files::{AccessArguments4, RenameArguments4};
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::{Opaque, Status4};

use super::client::Client;
use super::files::{NO_ATTRIBUTES, create, getattr, lookup, request, symlink};

const ROOT: Argument4<'static> = Argument4::Putrootfh(());
const GETFH: Argument4<'static> = Argument4::Getfh(());

fn put(handle: &[u8]) -> Argument4<'_> {
    Argument4::Putfh(Opaque(handle))
}

#[test]
fn without_a_handle_there_is_nothing_to_work_on() {
    let mut client = Client::new(&["/data"]);
    let access = Argument4::Access(AccessArguments4 { access: 0x3f });
    for operation in
        [GETFH, Argument4::Savefh(()), access, Argument4::SecinfoNoName(SecinfoStyle::CurrentHandle)]
    {
        assert_eq!(client.status(&[operation]), Status4::NoFilehandle, "{operation:?}");
    }
    assert_eq!(client.status(&[Argument4::Restorefh(())]), Status4::NoFilehandle);
    assert_eq!(client.status(&[ROOT, Argument4::Restorefh(())]), Status4::NoFilehandle);
}

#[test]
fn handles_lead_back_to_where_they_were_taken() {
    let mut client = Client::new(&["/data"]);
    let root = client.handle(&[ROOT]).unwrap();
    assert_eq!(client.handle(&[put(&root)]), Ok(root.clone()));
    assert_eq!(client.handle(&[Argument4::Putpubfh(())]), Ok(root.clone()));
    // The handles of version 3 are the same.
    let data = client.pair.root.clone();
    assert_eq!(client.handle(&[put(&data)]), Ok(data.clone()));
    let saved = [put(&data), Argument4::Savefh(()), ROOT, Argument4::Restorefh(())];
    assert_eq!(client.handle(&saved), Ok(data.clone()));
    let mut forged = root;
    forged[20] ^= 1;
    assert_eq!(client.status(&[put(&forged)]), Status4::Stale);
    assert_eq!(client.status(&[put(b"short")]), Status4::BadHandle);
}

/// 8881-2.6.3.1.1.8: the current handle is gone then.
#[test]
fn the_security_of_an_object_is_told() {
    let mut client = Client::new(&["/data"]);
    let ask = Argument4::SecinfoNoName(SecinfoStyle::CurrentHandle);
    client.compound(&[ROOT, ask], |status, outcomes| {
        let Some(Outcome4::SecinfoNoName(Ok(flavors))) = outcomes.last() else { panic!("{status:?}") };
        let flavors: Vec<_> = flavors.iter().collect();
        assert_eq!(flavors, [SecurityFlavor::Other(1), SecurityFlavor::Other(0)]);
    });
    assert_eq!(client.status(&[ROOT, ask, GETFH]), Status4::NoFilehandle);
    let above = Argument4::SecinfoNoName(SecinfoStyle::Parent);
    assert_eq!(client.status(&[ROOT, above]), Status4::NoEnt, "the root has no parent");
}

/// 8881-18.1.3: what says nothing of such an object is not supported for it.
#[test]
fn access_says_what_it_can_check() {
    let mut client = Client::new(&["/data,root_squash=no"]);
    let ask = Argument4::Access(AccessArguments4 { access: 0x1ff });
    let data = client.pair.root.clone();
    for (from, expected) in [(ROOT, (0x1f, 0x03)), (put(&data), (0x1f, 0x1f))] {
        client.compound(&[from, ask], |status, outcomes| {
            let Some(Outcome4::Access(Ok(ok))) = outcomes.last() else { panic!("{status:?}") };
            assert_eq!((ok.supported, ok.access), expected, "{from:?}");
        });
    }
}

/// 8881-15.2: a COMPOUND may name what another reactor has, for RENAME and LINK to say that it is another file system. It does
/// nothing else with it.
#[test]
fn a_compound_that_comes_to_another_reactors_export_hears_so() {
    const SAVEFH: Argument4<'static> = Argument4::Savefh(());
    const RESTOREFH: Argument4<'static> = Argument4::Restorefh(());
    if !super::IS_CARRIED {
        return;
    }
    let mut client = Client::new(&["/data,root_squash=no"]);
    let data = client.pair.root.clone();
    let far = super::pair::key().seal(super::pair::FAR_FSID, ObjectId { fileid: 7, generation: 1 });
    let (near, far) = ([put(&data), SAVEFH], put(&far));
    let rename = Argument4::Rename(RenameArguments4 { from: Opaque(b"a"), to: Opaque(b"b") });
    let link = Argument4::Link(Opaque(b"b"));
    let list = Argument4::Readdir(ReaddirArguments4 {
        cookie: 0,
        verifier: Default::default(),
        dircount: 0,
        maxcount: 4096,
        request: request(&[]),
    });
    for (behind, expected) in [
        (&[far][..], Status4::Ok),
        (&[far, rename], Status4::XDev),
        (&[far, link], Status4::XDev),
        (&[far, SAVEFH, put(&data), rename], Status4::XDev),
        (&[far, SAVEFH, put(&data), link], Status4::XDev),
        (&[far, GETFH], Status4::Ok),
        (&[ROOT, lookup(b"far")], Status4::ServerFault),
        (&[far, getattr(&[Attribute::Type])], Status4::ServerFault),
        (&[far, lookup(b"a")], Status4::ServerFault),
        (&[far, Argument4::Lookupp(())], Status4::ServerFault),
        (&[far, list], Status4::ServerFault),
        (&[far, create(symlink(b"text"), b"a", NO_ATTRIBUTES)], Status4::ServerFault),
        (&[far, Argument4::Remove(Opaque(b"a"))], Status4::ServerFault),
        (&[far, RESTOREFH, getattr(&[Attribute::Type])], Status4::Ok),
        (&[far, SAVEFH, put(&data), RESTOREFH, list], Status4::ServerFault),
    ] {
        assert_eq!(client.status(&[&near, behind].concat()), expected, "{behind:?}");
    }
}
