//! OPEN in all its forms, OPEN_DOWNGRADE, CLOSE.

use stag_wire::nfs4::attributes::{Attribute, AttributeList, AttributeValue};
use stag_wire::nfs4::files::{ChangeInfo, CreateType};
use stag_wire::nfs4::open::{
    CreateHow4, DelegatedName, Delegation, DelegationType, OpenClaim, OpenHow, VerifierAndAttributes,
    WhyNoDelegation, open_result, share,
};
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::value::FixedOpaque;
use stag_wire::nfs4::{Bitmap, Opaque, StateId, Status4};

use super::Lab;
use super::files::{Attributes, GETFH, NO_ATTRIBUTES, ROOT, create, lookup, put, symlink};
use super::state::{
    BOTH, READ, WRITE, close, downgrade, open, open_as, open_create, open_handle, read, write,
};

fn lab() -> Lab {
    Lab::new(&["/data,root_squash=no"])
}

/// Attributes of a new file: its mode.
fn mode(mode: u32) -> Attributes {
    Attributes::of(&[(Attribute::Mode, AttributeValue::U32(mode))])
}

fn size(size: u64) -> Attributes {
    Attributes::of(&[(Attribute::Size, AttributeValue::U64(size))])
}

/// 8881-18.16.3: the file is made with its attributes, becomes the current object, and its state id the current one.
#[test]
fn a_file_is_made_and_opened() {
    let mut lab = lab();
    let root = lab.root();
    let before = lab.change(&root);
    let mode = mode(0o640);
    let made = open_create(b"new", CreateHow4::Guarded(mode.list()));
    let operations = [put(&root), made, GETFH, write(StateId::CURRENT, 0, b"hello")];
    let (info, set, file) = lab.compound(&operations, |status, outcomes| {
        let [_, Outcome4::Open(Ok(ok)), Outcome4::Getfh(Ok(handle)), Outcome4::Write(Ok(_))] = outcomes
        else {
            panic!("{status:?}: {outcomes:?}")
        };
        assert_eq!((ok.stateid.seqid, ok.flags), (1, open_result::LOCKTYPE_POSIX));
        assert_eq!(ok.delegation, Delegation::None);
        (ok.directory, ok.attributes_set.0.words(), handle.0.to_vec())
    });
    let after = lab.change(&root);
    assert_eq!(info, ChangeInfo { is_atomic: super::IS_ATOMIC, before, after });
    assert_ne!(before, after);
    assert_eq!(set, mode.list().mask.words());
    assert_eq!(lab.attribute(&file, Attribute::Mode), "416");
    assert_eq!(lab.status(&[put(&root), made]), Status4::Exist);
    assert_eq!(lab.octets(&file, read(StateId::ANONYMOUS, 0, 100), None), Ok((b"hello".to_vec(), true)));
}

/// 8881-18.16.3: a file that is there keeps its attributes but the size, which is set if the open may write.
#[test]
fn an_unchecked_create_takes_the_file_that_is_there() {
    let mut lab = lab();
    let root = lab.root();
    let file = lab.make_file(b"old");
    let state = lab.open_at(&file, WRITE);
    lab.state(&[put(&root), open_create(b"old", CreateHow4::Unchecked(mode(0o777).list()))]).unwrap();
    assert_eq!(lab.status(&[put(&file), write(state, 0, b"0123456789")]), Status4::OldStateid);
    let state = StateId { seqid: 0, ..state };
    assert_eq!(lab.status(&[put(&file), write(state, 0, b"0123456789")]), Status4::Ok);
    let before = lab.attribute(&file, Attribute::Mode);
    let size = size(4);
    let cut = open_create(b"old", CreateHow4::Unchecked(size.list()));
    lab.compound(&[put(&root), cut, GETFH], |status, outcomes| {
        let [_, Outcome4::Open(Ok(ok)), Outcome4::Getfh(Ok(handle))] = outcomes else { panic!("{status:?}") };
        assert_eq!((ok.attributes_set.0.words(), handle.0), ([0; 3], &file[..]));
        assert_eq!(ok.directory.before, ok.directory.after);
    });
    assert_eq!(lab.attribute(&file, Attribute::Size), "4");
    assert_eq!(lab.attribute(&file, Attribute::Mode), before);
    // An open that is denied changes nothing.
    let mut other = lab.another_ready(b"other");
    let denies = open_as(b"o", (READ, WRITE), OpenHow::NoCreate, OpenClaim::Null(Opaque(b"old")));
    lab.state(&[put(&file), close(state)]).unwrap();
    lab.by(&mut other, |lab| lab.state(&[put(&root), denies]).unwrap());
    let all = self::size(0);
    let cut = open_create(b"old", CreateHow4::Unchecked(all.list()));
    assert_eq!(lab.status(&[put(&root), cut]), Status4::ShareDenied);
    assert_eq!(lab.attribute(&file, Attribute::Size), "4");
}

/// 8881-18.16.3: a retry of an exclusive create gets the file that the first made.
#[test]
fn exclusive_creates_are_recognized() {
    let mut lab = lab();
    let root = lab.root();
    let mode = mode(0o600);
    let exclusive = |octet: u8| CreateHow4::Exclusive(FixedOpaque([octet; 8]));
    let with_mode = |octet: u8| {
        let verifier = FixedOpaque([octet; 8]);
        CreateHow4::Exclusive41(VerifierAndAttributes { verifier, attributes: mode.list() })
    };
    for (name, [first, again, foreign]) in [
        (b"a", [exclusive(1), exclusive(1), exclusive(2)]),
        (b"b", [with_mode(1), with_mode(1), with_mode(2)]),
    ] {
        let made = lab.handle(&[put(&root), open_create(name, first)]).unwrap();
        assert_eq!(lab.handle(&[put(&root), open_create(name, again)]), Ok(made));
        assert_eq!(lab.status(&[put(&root), open_create(name, foreign)]), Status4::Exist);
    }
    let file = lab.handle(&[put(&root), lookup(b"b")]).unwrap();
    assert_eq!(lab.attribute(&file, Attribute::Mode), "384");
    lab.compound(&[put(&root), open_create(b"c", with_mode(3))], |_, outcomes| {
        let Some(Outcome4::Open(Ok(ok))) = outcomes.last() else { panic!("{outcomes:?}") };
        assert_eq!(ok.attributes_set.0.words()[1] & mode.list().mask.words()[1], mode.list().mask.words()[1]);
    });
    let size = size(1);
    let verifier = FixedOpaque([9; 8]);
    let sized = CreateHow4::Exclusive41(VerifierAndAttributes { verifier, attributes: size.list() });
    assert_eq!(lab.status(&[put(&root), open_create(b"d", sized)]), Status4::Inval);
    assert_eq!(lab.status(&[put(&root), lookup(b"d")]), Status4::NoEnt);
}

/// 8881-18.16.4 and 15.2: what is refused, and how.
#[test]
fn opens_that_are_refused() {
    let mut lab = lab();
    let root = lab.root();
    let file = lab.make_file(b"file");
    let link = lab.handle(&[put(&root), create(symlink(b"file"), b"link", NO_ATTRIBUTES)]).unwrap();
    let fifo = lab.handle(&[put(&root), create(CreateType::Fifo, b"fifo", NO_ATTRIBUTES)]).unwrap();
    lab.make_directory(b"directory");
    let long = [b'n'; 300];
    let claim = |claim| open_as(b"alice", (READ, 0), OpenHow::NoCreate, claim);
    let modes = |access, deny| open_as(b"alice", (access, deny), OpenHow::NoCreate, OpenClaim::Handle);
    let guarded = OpenHow::Create(CreateHow4::Guarded(NO_ATTRIBUTES));
    let stateid = StateId { seqid: 1, other: [7; 12] };
    lab.statuses(
        &root,
        &[
            (open(b"nothing", READ), Status4::NoEnt),
            (open(b"", READ), Status4::Inval),
            (open(b".", READ), Status4::BadName),
            (open(&long, READ), Status4::NameTooLong),
            (open(b"directory", READ), Status4::IsDir),
            (open(b"link", READ), Status4::Symlink),
            (open(b"fifo", READ), Status4::WrongType),
            (open_create(b"directory", CreateHow4::Guarded(NO_ATTRIBUTES)), Status4::Exist),
            (open_create(b"directory", CreateHow4::Unchecked(NO_ATTRIBUTES)), Status4::IsDir),
            (open_handle(READ), Status4::IsDir),
        ],
    );
    lab.statuses(
        &file,
        &[
            (open(b"x", READ), Status4::NotDir),
            (modes(0, 0), Status4::Inval),
            (modes(4, 0), Status4::Inval),
            (modes(READ, 4), Status4::Inval),
            (modes(READ | 0x600, 0), Status4::Inval),
            (open_as(b"alice", (READ, 0), guarded, OpenClaim::Handle), Status4::Inval),
            (claim(OpenClaim::DelegateCurrentHandle(stateid)), Status4::BadStateid),
            (
                claim(OpenClaim::DelegateCurrent(DelegatedName { stateid, name: Opaque(b"file") })),
                Status4::BadStateid,
            ),
            (claim(OpenClaim::DelegatePreviousHandle), Status4::NotSupp),
            (claim(OpenClaim::DelegatePrevious(Opaque(b"file"))), Status4::NotSupp),
            (claim(OpenClaim::Previous(DelegationType::None)), Status4::NoGrace),
        ],
    );
    lab.statuses(&link, &[(open_handle(READ), Status4::Symlink), (open(b"x", READ), Status4::Symlink)]);
    lab.statuses(&fifo, &[(open_handle(READ), Status4::WrongType)]);
    assert_eq!(lab.status(&[open_handle(READ)]), Status4::NoFilehandle);
    assert_eq!(lab.status(&[ROOT, open_handle(READ)]), Status4::IsDir);
    assert_eq!(lab.status(&[ROOT, open(b"data", READ)]), Status4::IsDir);
    assert_eq!(lab.status(&[ROOT, open(b"nothing", READ)]), Status4::NoEnt);
}

/// 8881-18.51.3-b: a client takes nothing before it has said that it has reclaimed.
#[test]
fn a_client_reclaims_first() {
    let mut lab = lab();
    let file = lab.make_file(b"file");
    let mut other = lab.another(b"other");
    lab.by(&mut other, |lab| {
        assert_eq!(lab.status(&[put(&file), open_handle(READ)]), Status4::Grace);
        assert_eq!(lab.status(&[Argument4::ReclaimComplete(false)]), Status4::Ok);
        assert_eq!(lab.status(&[put(&file), open_handle(READ)]), Status4::Ok);
    });
}

/// The rights of an open are those that ACCESS tells.
#[test]
fn opens_need_permission() {
    let mut lab = lab();
    let root = lab.root();
    let [readable, executable, own] = [0o644, 0o711, 0o000].map(mode);
    let make = |lab: &mut Lab, name: &'static [u8], mode: &Attributes| {
        lab.handle(&[put(&root), open_create(name, CreateHow4::Guarded(mode.list()))]).unwrap()
    };
    let readable = make(&mut lab, b"readable", &readable);
    let executable = make(&mut lab, b"executable", &executable);
    lab.become_user(7, 7);
    for (file, access, expected) in [
        (&readable, READ, Status4::Ok),
        (&readable, WRITE, Status4::Access),
        (&readable, BOTH, Status4::Access),
        // To execute it: the client tells that apart.
        (&executable, READ, Status4::Ok),
        (&executable, WRITE, Status4::Access),
    ] {
        assert_eq!(lab.status(&[put(file), open_handle(access)]), expected, "{access}");
    }
    assert_eq!(lab.status(&[put(&root), open(b"readable", READ)]), Status4::Ok);
    let new = open_create(b"new", CreateHow4::Guarded(own.list()));
    assert_eq!(lab.status(&[put(&root), new]), Status4::Access);
    lab.become_user(0, 0);
    let directory = lab.make_directory(b"for-all");
    let mode = mode(0o777);
    let set = Argument4::Setattr(stag_wire::nfs4::files::SetattrArguments4 {
        stateid: StateId::ANONYMOUS,
        attributes: mode.list(),
    });
    assert_eq!(lab.status(&[put(&directory), set]), Status4::Ok);
    lab.become_user(7, 7);
    // Who makes a file may write it, whatever its mode says; and only then.
    assert_eq!(lab.status(&[put(&directory), new, write(StateId::CURRENT, 0, b"x")]), Status4::Ok);
    assert_eq!(lab.status(&[put(&directory), open(b"new", READ)]), Status4::Access);
}

/// 8881-9.7-b, 8881-9.9-a, 8881-9.9-b, 8881-18.18.3-a
#[test]
fn shares_exclude_each_other() {
    let mut lab = lab();
    let file = lab.make_file(b"file");
    let share = |name, access, deny| open_as(name, (access, deny), OpenHow::NoCreate, OpenClaim::Handle);
    let state = lab.state(&[put(&file), share(b"a", READ, WRITE)]).unwrap();
    let mut other = lab.another_ready(b"other");
    lab.by(&mut other, |lab| {
        assert_eq!(lab.status(&[put(&file), share(b"a", WRITE, 0)]), Status4::ShareDenied);
        assert_eq!(lab.status(&[put(&file), write(StateId::ANONYMOUS, 0, b"x")]), Status4::Locked);
        assert_eq!(lab.status(&[put(&file), read(StateId::ANONYMOUS, 0, 1)]), Status4::Ok);
        assert_eq!(lab.status(&[put(&file), share(b"a", READ, READ)]), Status4::ShareDenied);
        lab.state(&[put(&file), share(b"a", READ, 0)]).unwrap();
    });
    let more = lab.state(&[put(&file), share(b"a", READ, 0)]).unwrap();
    assert_eq!((more.seqid, more.other), (2, state.other));
    assert_eq!(lab.status(&[put(&file), downgrade(state, READ, 0)]), Status4::OldStateid);
    assert_eq!(lab.status(&[put(&file), downgrade(more, WRITE, 0)]), Status4::Inval);
    assert_eq!(lab.status(&[put(&file), downgrade(more, 0, 0)]), Status4::Inval);
    let less = lab.state(&[put(&file), downgrade(more, READ, 0)]).unwrap();
    assert_eq!(less.seqid, 3);
    lab.by(&mut other, |lab| {
        assert_eq!(lab.status(&[put(&file), share(b"b", WRITE, 0)]), Status4::Ok);
        // The state of another client is none.
        assert_eq!(lab.status(&[put(&file), close(less)]), Status4::BadStateid);
    });
    assert_eq!(lab.state(&[put(&file), close(less)]), Ok(StateId::INVALID));
    assert_eq!(lab.status(&[put(&file), close(less)]), Status4::BadStateid);
    assert_eq!(lab.status(&[put(&file), read(less, 0, 1)]), Status4::BadStateid);
}

/// 8881-10.4: no delegation is given, and a client that asked is told why.
#[test]
fn no_delegation_is_given() {
    let mut lab = lab();
    let file = lab.make_file(b"file");
    for (want, expected) in [
        (share::WANT_NO_PREFERENCE, Delegation::None),
        (share::WANT_READ_DELEGATION, Delegation::NoneWhy(WhyNoDelegation::Resource(false))),
        (
            share::WANT_ANY_DELEGATION | share::WANT_PUSH_WHEN_UNCONTENDED,
            Delegation::NoneWhy(WhyNoDelegation::Resource(false)),
        ),
        (share::WANT_NO_DELEGATION, Delegation::NoneWhy(WhyNoDelegation::NotWanted)),
        (share::WANT_CANCEL, Delegation::NoneWhy(WhyNoDelegation::Cancelled)),
    ] {
        lab.compound(&[put(&file), open_handle(READ | want)], |status, outcomes| {
            let Some(Outcome4::Open(Ok(ok))) = outcomes.last() else { panic!("{status:?}") };
            assert_eq!(ok.delegation, expected, "{want:x}");
        });
    }
}

#[test]
fn a_read_only_export_opens_to_read() {
    let mut lab = Lab::new(&["/data,root_squash=no", "/fixed,ro"]);
    let fixed = lab.handle(&[ROOT, lookup(b"fixed")]).unwrap();
    let none = AttributeList { mask: Bitmap::EMPTY, values: &[] };
    lab.statuses(
        &fixed,
        &[
            (open_create(b"new", CreateHow4::Unchecked(none)), Status4::RoFs),
            (open(b"new", READ), Status4::NoEnt),
        ],
    );
}
