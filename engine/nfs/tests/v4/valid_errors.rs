//! Each operation on each kind of object: it fails only as the tables of the RFCs say (8881-15.2). The check itself is where tests read
//! the replies to COMPOUNDs ([`Answer`](super::client::Answer)).

use stag_vfs::ObjectId;
use stag_wire::nfs4::attributes::Attribute;
use stag_wire::nfs4::client_id::SecinfoStyle;
use stag_wire::nfs4::directory::ReaddirArguments4;
use stag_wire::nfs4::extended::{ContentKind, IoAdviseArguments, SeekArguments, SpaceArguments};
use stag_wire::nfs4::files::{
    AccessArguments4, CommitArguments4, CreateType, RenameArguments4, SetattrArguments4,
};
use stag_wire::nfs4::lock::LockKind;
use stag_wire::nfs4::open::CreateHow4;
use stag_wire::nfs4::operation::Argument4;
use stag_wire::nfs4::session::TestStateidArguments;
use stag_wire::nfs4::{Bitmap, Opaque, StateId, Status4};

use super::Lab;
use super::files::{NO_ATTRIBUTES, create, getattr, lookup, put, request, symlink};
use super::state::{
    BOTH, READ, close, downgrade, lock_more, lock_new, lockt, locku, open, open_create, open_handle, read,
    write,
};

const ROOT: Argument4<'static> = Argument4::Putrootfh(());

/// Operations with a state of the file `file`, or one of none.
fn operations(stateid: StateId) -> Vec<Argument4<'static>> {
    let space = SpaceArguments { stateid, offset: 0, length: 10 };
    vec![
        Argument4::Access(AccessArguments4 { access: 0x3f }),
        close(stateid),
        Argument4::Commit(CommitArguments4 { offset: 0, count: 0 }),
        create(symlink(b"text"), b"new link", NO_ATTRIBUTES),
        create(CreateType::Directory, b"new directory", NO_ATTRIBUTES),
        getattr(&[Attribute::Type]),
        Argument4::Getfh(()),
        Argument4::Link(Opaque(b"another")),
        lock_new(stateid, b"owner", LockKind::Write, (0, 10)),
        lock_new(stateid, b"owner", LockKind::Write, (0, 0)),
        lock_more(stateid, LockKind::Read, (0, 10)),
        lockt(b"owner", LockKind::Write, (0, 10)),
        lockt(b"owner", LockKind::Write, (0, 0)),
        locku(stateid, (0, 10)),
        lookup(b"file"),
        lookup(b""),
        lookup(b"missing"),
        Argument4::Lookupp(()),
        open(b"file", BOTH),
        open(b"link", BOTH),
        open(b"missing", BOTH),
        open_handle(READ),
        open_create(b"new file", CreateHow4::Guarded(NO_ATTRIBUTES)),
        downgrade(stateid, READ, 0),
        read(stateid, 0, 100),
        Argument4::Readdir(ReaddirArguments4 {
            cookie: 0,
            verifier: Default::default(),
            dircount: 0,
            maxcount: 4096,
            request: request(&[]),
        }),
        Argument4::Readdir(ReaddirArguments4 {
            cookie: 1,
            verifier: Default::default(),
            dircount: 0,
            maxcount: 1,
            request: request(&[]),
        }),
        Argument4::Readlink(()),
        Argument4::Remove(Opaque(b"missing")),
        Argument4::Remove(Opaque(b"..")),
        Argument4::Rename(RenameArguments4 { from: Opaque(b"missing"), to: Opaque(b"other") }),
        Argument4::Savefh(()),
        Argument4::Secinfo(Opaque(b"file")),
        Argument4::SecinfoNoName(SecinfoStyle::CurrentHandle),
        Argument4::SecinfoNoName(SecinfoStyle::Parent),
        Argument4::Setattr(SetattrArguments4 { stateid, attributes: NO_ATTRIBUTES }),
        Argument4::Verify(NO_ATTRIBUTES),
        Argument4::Nverify(NO_ATTRIBUTES),
        write(stateid, 0, b"text"),
        Argument4::FreeStateid(stateid),
        Argument4::TestStateid(TestStateidArguments::new(&[StateId::ANONYMOUS])),
        Argument4::Allocate(space),
        Argument4::Deallocate(space),
        Argument4::IoAdvise(IoAdviseArguments {
            stateid,
            offset: 0,
            count: 0,
            hints: Bitmap::from_words([2, 0, 0]),
        }),
        Argument4::Seek(SeekArguments { stateid, offset: 0, what: ContentKind::Data }),
        Argument4::Delegreturn(stateid),
        Argument4::Openattr(false),
    ]
}

#[test]
fn each_operation_fails_only_as_it_may() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let data = lab.pair.root.clone();
    let file = lab.make_file(b"file");
    let link = lab.handle(&[put(&data), create(symlink(b"text"), b"link", NO_ATTRIBUTES)]).unwrap();
    let state = lab.open_at(&file, BOTH);
    let far = super::pair::key().seal(super::pair::FAR_FSID, ObjectId { fileid: 7, generation: 1 });
    let gone = super::pair::key().seal(1, ObjectId { fileid: 999, generation: 1 });
    // Where there is one reactor, nothing is elsewhere: such a handle is stale.
    let places: [&[Argument4<'_>]; 8] = [
        &[],
        &[ROOT],
        &[put(&data)],
        &[put(&data), Argument4::Savefh(()), put(&file)],
        &[put(&file), Argument4::Savefh(()), put(&data)],
        &[put(&link)],
        &[put(&data), Argument4::Savefh(()), put(&far)],
        &[put(&data), Argument4::Savefh(()), put(&gone)],
    ];
    for place in places {
        for stateid in [state, StateId::ANONYMOUS, StateId::CURRENT] {
            for operation in operations(stateid) {
                // The reply is checked where it is read.
                let _ = lab.status(&[place, &[operation]].concat());
            }
        }
    }
}

/// A file that another reactor has: only RENAME and LINK know what that is, and LOCKT has no NFS4ERR_SERVERFAULT.
#[test]
fn what_is_done_with_another_reactors_file_has_an_error_of_its_own_list() {
    if !super::IS_CARRIED {
        return;
    }
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let data = lab.pair.root.clone();
    let file = lab.make_file(b"file");
    let state = lab.open_at(&file, BOTH);
    let far = super::pair::key().seal(super::pair::FAR_FSID, ObjectId { fileid: 7, generation: 1 });
    for (operation, expected) in [
        (lockt(b"owner", LockKind::Write, (0, 10)), Status4::Access),
        (lock_new(state, b"owner", LockKind::Write, (0, 10)), Status4::ServerFault),
        (lock_more(state, LockKind::Write, (0, 10)), Status4::ServerFault),
        (locku(state, (0, 10)), Status4::ServerFault),
        (read(state, 0, 10), Status4::ServerFault),
        (write(state, 0, b"text"), Status4::ServerFault),
        (open_handle(READ), Status4::ServerFault),
        (close(state), Status4::ServerFault),
    ] {
        assert_eq!(lab.status(&[put(&data), put(&far), operation]), expected, "{operation:?}");
    }
}
