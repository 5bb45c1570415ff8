//! NFSACL, as a client sees it: lists are kept, keep in step with the mode, decide, and are inherited.

use std::time::Duration;

use stag_disk::{Disk, DiskConfig};
use stag_fabric::sim::FaultPlan;
use stag_nfs::client::{FinishedCall, Getacl, ReplyRoom, Setacl, Target};
use stag_nfs::server::LockingConfig;
use stag_nfs::state::Recovered;
use stag_rpc::{Chunks, Credentials, ProtocolChoice};
use stag_stores::directory::{DirectoryConfig, DirectoryStore, MayWait};
use stag_testing::Scratch;
use stag_vfs::Store;
use stag_wire::nfs3::*;
use stag_wire::nfsacl::{self, ENTRIES_MAX, Entry, GetaclArguments, SetaclArguments, encode_acl, kind, mask};
use stag_wire::xdr::{Reader, Writer};

use super::pair::{Pair, credential};

/// Entries of a list that has no room in 4 KiB.
const LONG_LIST: u32 = 600;

/// How long a Call may take.
const TIMEOUT: Duration = Duration::from_secs(60);

type List = Vec<(u32, u32, u32)>;

/// Runs a test over a store in memory, and over a directory of the machine where that may act as any user and has lists.
fn each(test: impl Fn(&mut Pair)) {
    println!("in memory");
    test(&mut Pair::new(&["/data,root_squash=no"]));
    if !rustix::process::geteuid().is_root() {
        return stag_testing::skipped("a directory: only root may act as other users");
    }
    println!("a directory");
    let scratch = Scratch::folder();
    let keeps_lists = std::cell::Cell::new(false);
    let locking = (LockingConfig::default(), Recovered::nothing());
    let mut pair = Pair::of(&["/data,root_squash=no"], 1, FaultPlan::default(), locking, |_, pool| {
        // Time is simulated: no thread answers in it.
        let config =
            DirectoryConfig { may_wait: Some(MayWait::Nothing), ..DirectoryConfig::new(&scratch.0, 9) };
        let disk = Disk::new(&DiskConfig { uring: false, helpers: false, ..DiskConfig::default() }, &[]);
        let store = DirectoryStore::new(&config, disk, pool.clone()).unwrap();
        keeps_lists.set(store.profile().can.keeps_lists);
        Box::new(store)
    });
    if keeps_lists.get() {
        test(&mut pair);
    } else {
        stag_testing::skipped("the file system of temporary files has no access control lists");
    }
}

/// Both lists of an object, and its mode.
fn getacl(pair: &mut Pair, object: &[u8], wanted: u32) -> Result<(List, List, u32), Status> {
    let arguments = GetaclArguments { object: Handle(object), mask: wanted };
    pair.ask(Getacl(arguments), |reply| {
        let lists = reply.map_err(|failure| failure.status)?;
        assert_eq!(lists.mask, wanted);
        let list = |acl: nfsacl::Acl<'_>| acl.entries.iter().map(|e| (e.kind, e.id, e.permissions)).collect();
        Ok((list(lists.access), list(lists.default), lists.attributes.unwrap().mode))
    })
}

fn setacl(
    pair: &mut Pair,
    object: &[u8],
    access: Option<&[(u32, u32, u32)]>,
    default: Option<&[(u32, u32, u32)]>,
) -> Result<u32, Status> {
    let encoded = |list: Option<&[(u32, u32, u32)]>| {
        let list = list.unwrap_or_default();
        let entries = list.iter().map(|&(kind, id, permissions)| Entry { kind, id, permissions });
        let mut octets = vec![0; 8 + 12 * list.len()];
        encode_acl(&mut Writer::new(&mut octets), entries, false).unwrap();
        octets
    };
    let bit = |list: Option<&[_]>, bit| if list.is_some() { bit } else { 0 };
    let wanted = bit(access, mask::ACCESS) | bit(default, mask::DEFAULT);
    let (access, default) = (encoded(access), encoded(default));
    let access = Reader::new(&access).value().unwrap();
    let default = Reader::new(&default).value().unwrap();
    let arguments = SetaclArguments { object: Handle(object), mask: wanted, access, default };
    pair.ask(Setacl(arguments), |reply| match reply {
        Ok(done) => Ok(done.attributes.unwrap().mode),
        Err(failure) => Err(failure.status),
    })
}

fn chmod(pair: &mut Pair, object: &[u8], mode: u32) {
    let attributes = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
    pair.ask(SetattrArguments { object: Handle(object), attributes, guard: None }, |reply| reply.unwrap());
}

fn access(pair: &mut Pair, object: &[u8]) -> u32 {
    pair.ask(AccessArguments { object: Handle(object), access: 0x3f }, |reply| reply.unwrap().access)
}

fn become_user(pair: &mut Pair, uid: u32, gids: &[u32]) {
    pair.credential = Some(credential(uid, 99, gids));
}

fn make(pair: &mut Pair, directory: &[u8], name: &[u8], mode: u32, is_directory: bool) -> Vec<u8> {
    let place = DirectoryName { directory: Handle(directory), name: Name(name) };
    let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
    let handle = |reply: CreateReply<'_>| reply.unwrap().object.unwrap().0.to_vec();
    if is_directory {
        pair.ask(MkdirArguments { place, attributes: set }, handle)
    } else {
        pair.ask(CreateArguments { place, how: CreateHow::Guarded(set) }, handle)
    }
}

const OWNER: u32 = kind::OWNER;
const USER: u32 = kind::USER;
const OWNING: u32 = kind::OWNING_GROUP;
const GROUP: u32 = kind::GROUP;
const MASK: u32 = kind::MASK;
const OTHER: u32 = kind::OTHER;
const EVERYTHING: u32 = mask::ALL;

/// GETACL with as much room as it takes: how often it was called, and the entries that came.
fn getacl_unbounded(pair: &mut Pair, object: &[u8]) -> (u32, usize) {
    let arguments = GetaclArguments { object: Handle(object), mask: EVERYTHING };
    let mut room = ReplyRoom::FIRST;
    let mut calls = 0;
    loop {
        let credential = pair.credential.clone().unwrap();
        let target = Target {
            connection: pair.connection,
            credentials: Credentials::Sys(&credential),
            timeout: TIMEOUT,
        };
        target.begin_unbounded(&mut pair.client, &Getacl(arguments), room, 7).unwrap();
        calls += 1;
        let finished = FinishedCall::new(pair.until(|pair| pair.client.completed()));
        if !room.grow_after(&finished) {
            let entries = finished.reply::<Getacl<'_>>().unwrap().unwrap().access.entries.iter().count();
            return (calls, entries);
        }
    }
}

/// 8267-5.2-a, 8267-3.1-a: lists that are longer than the first Reply chunk are asked for again, as a new Call, with a longer one.
#[test]
fn long_lists_are_asked_for_again_with_more_room() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    let file = make(&mut pair, &root, b"f", 0o600, false);
    assert_eq!(getacl_unbounded(&mut pair, &file), (1, 4));
    let named = (0..LONG_LIST).map(|id| (USER, 1000 + id, 6));
    let list: List = [(OWNER, 0, 6)]
        .into_iter()
        .chain(named)
        .chain([(OWNING, 0, 0), (MASK, 0, 6), (OTHER, 0, 0)])
        .collect();
    assert_eq!(setacl(&mut pair, &file, Some(&list), None), Ok(0o660));
    // Version 2 has Sends enough for it.
    let expected = if super::PROTOCOL == ProtocolChoice::One { 2 } else { 1 };
    assert_eq!(getacl_unbounded(&mut pair, &file), (expected, list.len()));
}

#[test]
fn a_mode_shows_as_four_entries() {
    each(|pair| {
        let root = pair.root.clone();
        let file = make(pair, &root, b"f", 0o640, false);
        let expected = vec![(OWNER, 0, 6), (OWNING, 0, 4), (MASK, 0, 4), (OTHER, 0, 0)];
        assert_eq!(getacl(pair, &file, mask::ACCESS | mask::ACCESS_COUNT), Ok((expected, vec![], 0o640)));
        assert_eq!(getacl(pair, &file, mask::ACCESS_COUNT), Ok((vec![], vec![], 0o640)));
        assert_eq!(getacl(pair, &root, mask::DEFAULT | mask::DEFAULT_COUNT).map(|lists| lists.1), Ok(vec![]));
        assert_eq!(getacl(pair, &file, 16), Err(Status::Inval));
        assert_eq!(getacl(pair, &[7; 32], EVERYTHING), Err(Status::Stale));
    });
}

/// What `setfacl -m u:7:rw,g:30:r` does, and `chmod` after it.
#[test]
fn lists_are_kept_and_decide_and_follow_the_mode() {
    each(|pair| {
        let root = pair.root.clone();
        let file = make(pair, &root, b"f", 0o600, false);
        let list = [(OWNER, 0, 6), (USER, 7, 6), (OWNING, 0, 0), (GROUP, 30, 4), (MASK, 0, 6), (OTHER, 0, 0)];
        assert_eq!(setacl(pair, &file, Some(&list), None), Ok(0o660));
        assert_eq!(getacl(pair, &file, EVERYTHING), Ok((list.to_vec(), vec![], 0o660)));
        let (read, write) = (access::READ, access::MODIFY | access::EXTEND);
        for (uid, gids, expected) in [(7, &[][..], read | write), (8, &[30], read), (8, &[], 0)] {
            become_user(pair, uid, gids);
            assert_eq!(access(pair, &file), expected, "{uid} {gids:?}");
        }
        become_user(pair, 7, &[]);
        assert_eq!(setacl(pair, &file, Some(&list), None), Err(Status::Perm), "not the owner's");
        let arguments = ReadArguments { file: Handle(&file), offset: 0, count: 1 };
        assert!(pair.call(&arguments, Chunks::default()).reply::<ReadArguments<'_>>().unwrap().is_ok());

        become_user(pair, 0, &[]);
        chmod(pair, &file, 0o640);
        become_user(pair, 7, &[]);
        assert_eq!(access(pair, &file), read, "the mask is the mode's middle");
        become_user(pair, 0, &[]);
        let (shown, _, mode) = getacl(pair, &file, EVERYTHING).unwrap();
        assert_eq!((shown[4], mode), ((MASK, 0, 4), 0o640));

        // Taken away: the mode remains.
        assert_eq!(setacl(pair, &file, Some(&[]), None), Ok(0o640));
        assert_eq!(getacl(pair, &file, mask::ACCESS).unwrap().0.len(), 4);
        become_user(pair, 7, &[]);
        assert_eq!(access(pair, &file), 0);
    });
}

#[test]
fn new_objects_inherit_the_default_list() {
    each(|pair| {
        let root = pair.root.clone();
        let directory = make(pair, &root, b"d", 0o755, true);
        let default = [(OWNER, 0, 7), (USER, 7, 7), (OWNING, 0, 5), (MASK, 0, 7), (OTHER, 0, 0)]
            .map(|(kind, id, permissions)| (kind | kind::DEFAULT, id, permissions));
        assert_eq!(setacl(pair, &directory, None, Some(&default)), Ok(0o755));
        assert_eq!(getacl(pair, &directory, EVERYTHING).unwrap().1, default);

        let file = make(pair, &directory, b"f", 0o640, false);
        let (list, none, mode) = getacl(pair, &file, EVERYTHING).unwrap();
        assert_eq!(list, [(OWNER, 0, 6), (USER, 7, 7), (OWNING, 0, 5), (MASK, 0, 4), (OTHER, 0, 0)]);
        assert_eq!((none, mode), (vec![], 0o640));
        let below = make(pair, &directory, b"b", 0o777, true);
        let (list, inherited, mode) = getacl(pair, &below, EVERYTHING).unwrap();
        assert_eq!((list.len(), inherited, mode), (5, default.to_vec(), 0o770));
        // A default list says nothing of the directory itself.
        become_user(pair, 7, &[]);
        assert_eq!(access(pair, &below) & access::MODIFY, access::MODIFY);
        assert_eq!(access(pair, &directory) & access::MODIFY, 0);

        become_user(pair, 0, &[]);
        assert_eq!(setacl(pair, &file, None, Some(&default)), Err(Status::Acces), "only directories");
        assert_eq!(setacl(pair, &directory, None, Some(&[])), Ok(0o755));
        let plain = make(pair, &directory, b"p", 0o640, false);
        assert_eq!(getacl(pair, &plain, EVERYTHING).unwrap().0.len(), 4);
    });
}

/// The longest list of the captures, and the longest there is: one Long Call each, and a Long Reply (8267-5.2-a).
#[test]
fn long_lists_go_both_ways() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    let file = pair.create(&root, b"f");
    for count in [425, ENTRIES_MAX] {
        let users = (0..count - 4).map(|index| (USER, 1000 + index, 4));
        let list: Vec<_> = [(OWNER, 0, 6)]
            .into_iter()
            .chain(users)
            .chain([(OWNING, 0, 4), (MASK, 0, 4), (OTHER, 0, 4)])
            .collect();
        assert_eq!(setacl(&mut pair, &file, Some(&list), None), Ok(0o644));
        assert_eq!(getacl(&mut pair, &file, EVERYTHING).map(|lists| lists.0), Ok(list));
    }
}

#[test]
fn lists_that_make_no_sense_change_nothing() {
    each(|pair| {
        let root = pair.root.clone();
        let file = make(pair, &root, b"f", 0o640, false);
        for list in [
            &[(OWNER, 0, 6)][..],
            &[(OWNER, 0, 6), (OWNING, 0, 4), (OTHER, 0, 4), (USER, 7, 4)],
            &[(OWNER, 0, 8), (OWNING, 0, 4), (OTHER, 0, 4)],
        ] {
            assert_eq!(setacl(pair, &file, Some(list), None), Err(Status::Inval));
        }
        let place = DirectoryName { directory: Handle(&root), name: Name(b"l") };
        let arguments = SymlinkArguments {
            place,
            attributes: SetAttributes::default(),
            path: Path(stag_wire::xdr::Item::Inline(b"x")),
        };
        let link = pair.ask(arguments, |reply| reply.unwrap().object.unwrap().0.to_vec());
        let list = [(OWNER, 0, 6), (OWNING, 0, 4), (OTHER, 0, 4)];
        assert_eq!(setacl(pair, &link, Some(&list), None), Err(Status::NotSupp));
        assert_eq!(getacl(pair, &file, EVERYTHING).map(|lists| lists.2), Ok(0o640));
        assert_eq!(setacl(pair, &file, Some(&list), None), Ok(0o644), "a minimal list is a mode");
    });
}

#[test]
fn a_read_only_export_keeps_its_lists() {
    let mut pair = Pair::new(&["/data,ro,root_squash=no"]);
    let root = pair.root.clone();
    let list = [(OWNER, 0, 6), (OWNING, 0, 4), (OTHER, 0, 4)];
    assert_eq!(setacl(&mut pair, &root, Some(&list), None), Err(Status::RoFs));
}

/// What lists name is bounded for the whole store, and comes back when they go.
#[test]
fn names_in_lists_are_bounded() {
    // 10,000 objects: 20,000 names.
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    let users = (0..1000).map(|index| (USER, 1000 + index, 4));
    let list: Vec<_> = users.chain([(OWNER, 0, 6), (OWNING, 0, 4), (MASK, 0, 4), (OTHER, 0, 4)]).collect();
    let files: Vec<_> = (0..21).map(|n| pair.create(&root, format!("f{n}").as_bytes())).collect();
    for file in &files[..20] {
        assert_eq!(setacl(&mut pair, file, Some(&list), None), Ok(0o644));
    }
    assert_eq!(setacl(&mut pair, &files[20], Some(&list), None), Err(Status::NoSpc));
    assert_eq!(setacl(&mut pair, &files[0], Some(&list), None), Ok(0o644), "in its own stead");
    let object = DirectoryName { directory: Handle(&root), name: Name(b"f0") };
    pair.ask(RemoveArguments { object }, |reply| reply.unwrap());
    assert_eq!(setacl(&mut pair, &files[20], Some(&list), None), Ok(0o644));
}
