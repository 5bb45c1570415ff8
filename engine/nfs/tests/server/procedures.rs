//! Every procedure, its attributes and its errors.

use stag_fabric::sim::FaultPlan;
use stag_nfs::client::{ListExports, Null};
use stag_nfs::server::{ExportsError, LockingConfig, Removal};
use stag_nfs::state::Recovered;
use stag_rpc::Chunks;
use stag_stores::memory::{MemoryConfig, MemoryStore, RootAttributes};
use stag_vfs::Timestamp;
use stag_wire::mount3;
use stag_wire::nfs3::*;

use super::pair::{Pair, credential};

fn place<'a>(directory: &'a [u8], name: &'a [u8]) -> DirectoryName<'a> {
    DirectoryName { directory: Handle(directory), name: Name(name) }
}

fn getattr(pair: &mut Pair, object: &[u8]) -> Result<Attributes, Status> {
    pair.ask(GetattrArguments { object: Handle(object) }, |reply| {
        reply.map(|ok| ok.attributes).map_err(|failure| failure.status)
    })
}

fn lookup(pair: &mut Pair, directory: &[u8], name: &[u8]) -> Result<Vec<u8>, Status> {
    pair.ask(LookupArguments { what: place(directory, name) }, |reply| {
        reply.map(|ok| ok.object.0.to_vec()).map_err(|failure| failure.status)
    })
}

// As large as RFC 1813 makes it.
#[expect(clippy::result_large_err)]
fn mkdir(pair: &mut Pair, directory: &[u8], name: &[u8]) -> Result<Vec<u8>, Failure<WccData>> {
    let arguments = MkdirArguments { place: place(directory, name), attributes: SetAttributes::default() };
    let finished = pair.call(&arguments, Chunks::default());
    let reply = finished.reply::<MkdirArguments<'_>>().unwrap();
    reply.map(|ok| ok.object.unwrap().0.to_vec())
}

/// Weak cache consistency: before and after are there, and differ as they should.
fn changed(wcc: &WccData) {
    let (before, after) = (wcc.before.unwrap(), wcc.after.unwrap());
    assert!(before.mtime < after.mtime && before.ctime < after.ctime, "{wcc:?}");
}

fn unchanged(wcc: &WccData) {
    assert_eq!(wcc.before.unwrap(), wcc.after.unwrap().wcc());
}

#[test]
fn mount_finds_exports_and_what_is_below() {
    let mut pair = Pair::new(&[
        "/data,root_squash=no",
        "/data/inner,ro",
        "/private,uid=12345",
        "/net,client=192.0.2.0/24",
    ]);
    let root = pair.root.clone();
    let sub = mkdir(&mut pair, &root, b"sub").unwrap();
    pair.create(&root, b"file");
    assert_eq!(pair.mnt(b"/data/sub"), Ok(sub.clone()));
    assert_eq!(pair.mnt(b"/data/sub/"), Ok(sub));
    assert_eq!(pair.mnt(b"/data/"), Ok(root.clone()));
    assert_ne!(pair.mnt(b"/data/inner"), Ok(root));
    assert_eq!(pair.mnt(b"/data/file"), Err(mount3::Status::NotDir));
    assert_eq!(pair.mnt(b"/data/file/x"), Err(mount3::Status::NotDir));
    assert_eq!(pair.mnt(b"/data/none"), Err(mount3::Status::NoEnt));
    assert_eq!(pair.mnt(b"/database"), Err(mount3::Status::NoEnt));
    assert_eq!(pair.mnt(b"/"), Err(mount3::Status::NoEnt));
    assert_eq!(pair.mnt(b""), Err(mount3::Status::NoEnt));
    assert_eq!(pair.mnt(&[b'/'; 1025]), Err(mount3::Status::NameTooLong));
    assert_eq!(pair.mnt(b"/private"), Err(mount3::Status::Acces));
    let exports: Vec<(String, Vec<String>)> = pair.ask(ListExports, |exports| {
        let text = |octets: &[u8]| String::from_utf8(octets.to_vec()).unwrap();
        let groups = |export: &mount3::Export| export.groups.into_iter().map(|name| text(name.0)).collect();
        exports.into_iter().map(|export| (text(export.path.0), groups(&export))).collect()
    });
    assert_eq!(
        exports,
        [
            ("/data".to_owned(), vec![]),
            ("/data/inner".to_owned(), vec![]),
            ("/private".to_owned(), vec!["uid=12345".to_owned()]),
            ("/net".to_owned(), vec!["192.0.2.0/24".to_owned()]),
        ]
    );
}

#[test]
fn null_and_attributes() {
    let mut pair = Pair::new(&["/data"]);
    pair.ask(Null, |()| ());
    let root = pair.root.clone();
    let attributes = getattr(&mut pair, &root).unwrap();
    assert_eq!((attributes.file_type, attributes.mode, attributes.nlink), (FileType::Directory, 0o755, 2));
    assert_eq!((attributes.fsid, attributes.fileid), (1, 1));
    for (handle, status) in
        [(&root[..31], Status::BadHandle), (&[0; 32], Status::Stale), (&[], Status::BadHandle)]
    {
        assert_eq!(getattr(&mut pair, handle), Err(status));
    }
    let limits = pair.ask(PathconfArguments { object: Handle(&root) }, |reply| reply.unwrap());
    assert_eq!((limits.name_max, limits.no_trunc, limits.chown_restricted), (255, true, true));
    let info = pair.ask(FsinfoArguments { root: Handle(&root) }, |reply| reply.unwrap());
    assert_eq!((info.read_max, info.write_max, info.properties), (1 << 20, 1 << 20, 0x1b));
    assert_eq!(info.file_size_max, 1 << 62);
    let usage = pair.ask(FsstatArguments { root: Handle(&root) }, |reply| reply.unwrap());
    assert_eq!((usage.files_total, usage.files_free), (10_000, 9_999));
    assert!(usage.bytes_free > 0 && usage.bytes_free <= usage.bytes_total);
}

#[test]
fn names_come_and_go_with_their_attributes() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    let how = CreateHow::Guarded(SetAttributes { mode: Some(0o640), ..SetAttributes::default() });
    let made = pair.ask(CreateArguments { place: place(&root, b"f"), how }, |reply| {
        let ok = reply.unwrap();
        changed(&ok.directory);
        assert_eq!(ok.attributes.unwrap().mode, 0o640);
        ok.object.unwrap().0.to_vec()
    });
    assert_eq!(lookup(&mut pair, &root, b"f"), Ok(made.clone()));
    let failure = pair.ask(CreateArguments { place: place(&root, b"f"), how }, |reply| reply.unwrap_err());
    assert_eq!(failure.status, Status::Exist);
    unchanged(&failure.attributes);

    let sub = mkdir(&mut pair, &root, b"d").unwrap();
    let failure = mkdir(&mut pair, &root, b"d").unwrap_err();
    assert_eq!(failure.status, Status::Exist);
    let failure = mkdir(&mut pair, &root, &[b'n'; 256]).unwrap_err();
    assert_eq!(failure.status, Status::NameTooLong);
    unchanged(&failure.attributes);

    let link = LinkArguments { file: Handle(&made), link: place(&sub, b"g") };
    pair.ask(link, |reply| {
        let ok = reply.unwrap();
        changed(&ok.directory);
        assert_eq!(ok.attributes.unwrap().nlink, 2);
    });
    let failure = pair.ask(link, |reply| reply.unwrap_err());
    assert_eq!((failure.status, failure.attributes.attributes.unwrap().nlink), (Status::Exist, 2));

    let rename = RenameArguments { from: place(&root, b"f"), to: place(&sub, b"h") };
    pair.ask(rename, |reply| {
        let ok = reply.unwrap();
        changed(&ok.from);
        changed(&ok.to);
    });
    let failure = pair.ask(rename, |reply| reply.unwrap_err());
    assert_eq!(failure.status, Status::NoEnt);
    unchanged(&failure.attributes.from);
    unchanged(&failure.attributes.to);
    let into_itself = RenameArguments { from: place(&root, b"d"), to: place(&sub, b"x") };
    assert_eq!(pair.ask(into_itself, |reply| reply.unwrap_err()).status, Status::Inval);

    let failure = pair.ask(RemoveArguments { object: place(&root, b"d") }, |reply| reply.unwrap_err());
    assert_eq!(failure.status, Status::IsDir);
    unchanged(&failure.attributes);
    let failure = pair.ask(RmdirArguments { object: place(&root, b"d") }, |reply| reply.unwrap_err());
    assert_eq!(failure.status, Status::NotEmpty);
    for name in [b"g", b"h"] {
        pair.ask(RemoveArguments { object: place(&sub, name) }, |reply| changed(&reply.unwrap().directory));
    }
    assert_eq!(getattr(&mut pair, &made), Err(Status::Stale));
    pair.ask(RmdirArguments { object: place(&root, b"d") }, |reply| changed(&reply.unwrap().directory));
    assert_eq!(getattr(&mut pair, &sub), Err(Status::Stale));
    let failure = pair.ask(RemoveArguments { object: place(&sub, b"x") }, |reply| reply.unwrap_err());
    assert_eq!((failure.status, failure.attributes), (Status::Stale, WccData::default()));
}

#[test]
fn special_objects() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    let number = DeviceNumber { major: 1, minor: 3 };
    let none = SetAttributes::default();
    for (name, what) in [
        (&b"c"[..], MknodData::Character(none, number)),
        (b"b", MknodData::Block(none, number)),
        (b"s", MknodData::Socket(none)),
        (b"p", MknodData::Fifo(none)),
    ] {
        let made = pair.ask(MknodArguments { place: place(&root, name), what }, |reply| {
            reply.unwrap().attributes.unwrap()
        });
        assert_eq!(made.file_type, what.file_type());
    }
    for file_type in [FileType::Regular, FileType::Directory, FileType::Symlink] {
        let what = MknodData::Other(file_type);
        let failure =
            pair.ask(MknodArguments { place: place(&root, b"x"), what }, |reply| reply.unwrap_err());
        assert_eq!(failure.status, Status::BadType);
        unchanged(&failure.attributes);
    }
}

#[test]
fn setattr_has_a_guard() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    let file = pair.create(&root, b"f");
    let before = getattr(&mut pair, &file).unwrap();
    let attributes = SetAttributes { size: Some(10), ..SetAttributes::default() };
    let arguments = |guard| SetattrArguments { object: Handle(&file), attributes, guard };
    let wrong = Time { seconds: 1, nanoseconds: 1 };
    let failure = pair.ask(arguments(Some(wrong)), |reply| reply.unwrap_err());
    assert_eq!(failure.status, Status::NotSync);
    unchanged(&failure.attributes);
    let ok = pair.ask(arguments(Some(before.ctime)), |reply| reply.unwrap());
    changed(&ok.object);
    assert_eq!(ok.object.after.unwrap().size, 10);
}

#[test]
fn commit_repeats_the_verifier_of_write() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    let file = pair.create(&root, b"f");
    let data = Data(stag_wire::xdr::Item::Inline(b"abc"));
    let stable = Stable::Unstable;
    let arguments = WriteArguments { file: Handle(&file), offset: 0, count: 3, stable, data };
    let written = pair.ask(arguments, |reply| reply.unwrap());
    if super::IS_LATE {
        assert_eq!(written.file.before, None);
    } else {
        changed(&written.file);
    }
    let commit = CommitArguments { file: Handle(&file), offset: 0, count: 0 };
    let committed = pair.ask(commit, |reply| reply.unwrap());
    assert_eq!(committed.verifier, written.verifier);
    if !super::IS_LATE {
        unchanged(&committed.file);
    }
    let commit = CommitArguments { file: Handle(&root), offset: 0, count: 0 };
    assert_eq!(pair.ask(commit, |reply| reply.unwrap_err()).status, Status::IsDir);
}

/// Lists with tiny limits, page by page, and with large ones, in the Reply chunk: the same entries.
#[test]
fn listings_of_every_size() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    let mut expected = vec![b".".to_vec(), b"..".to_vec()];
    for index in 0..300 {
        let name = format!("a name of some length {index}").into_bytes();
        pair.create(&root, &name);
        expected.push(name);
    }
    // The newest first.
    expected[2..].reverse();
    for count in [200, 1000, 4096, 65_536, 1 << 20] {
        for plus in [false, true] {
            if plus && count == 200 {
                continue;
            }
            let (mut cookie, mut verifier, mut found) = (0, [0; 8], Vec::new());
            let mut calls = 0;
            loop {
                calls += 1;
                let directory = Handle(&root);
                let eof = if plus {
                    let arguments = ReaddirplusArguments {
                        directory,
                        cookie,
                        verifier,
                        dircount: count,
                        maxcount: count,
                    };
                    pair.ask(arguments, |reply| {
                        let list = reply.unwrap();
                        verifier = list.verifier;
                        for entry in list.entries {
                            cookie = entry.cookie;
                            assert_eq!(entry.attributes.unwrap().fileid, entry.fileid);
                            found.push((entry.name.0.to_vec(), entry.handle.map(|handle| handle.0.to_vec())));
                        }
                        list.eof
                    })
                } else {
                    pair.ask(ReaddirArguments { directory, cookie, verifier, count }, |reply| {
                        let list = reply.unwrap();
                        verifier = list.verifier;
                        for entry in list.entries {
                            cookie = entry.cookie;
                            found.push((entry.name.0.to_vec(), None));
                        }
                        list.eof
                    })
                };
                if eof {
                    break;
                }
                assert!(calls < 1000);
            }
            assert!(found.iter().map(|(name, _)| name).eq(&expected), "count {count}, plus {plus}");
            if count >= 65_536 {
                assert_eq!(calls, 1, "the Reply chunk is used");
            }
            if let Some((name, Some(handle))) = found.last().cloned() {
                assert_eq!(lookup(&mut pair, &root, &name), Ok(handle));
            }
        }
    }
    let mut list = |handle: &[u8], cookie, verifier, count| {
        pair.ask(ReaddirArguments { directory: Handle(handle), cookie, verifier, count }, |reply| {
            reply.map(|list| list.entries.into_iter().count()).map_err(|failure| failure.status)
        })
    };
    assert_eq!(list(&root, 0, [0; 8], 100), Err(Status::TooSmall));
    assert_eq!(list(&root, 1, [9; 8], 4096), Err(Status::BadCookie));
    assert_eq!(list(&[1; 32], 0, [0; 8], 4096), Err(Status::Stale));
    let file = lookup(&mut pair, &root, &expected[9]).unwrap();
    let arguments = ReaddirArguments { directory: Handle(&file), cookie: 0, verifier: [0; 8], count: 4096 };
    assert_eq!(pair.ask(arguments, |reply| reply.unwrap_err()).status, Status::NotDir);
}

#[test]
fn a_read_only_export_is_read_only() {
    is_read_only("/data,ro,root_squash=no");
}

/// A rule about the client decides, whatever the export says of all others.
#[test]
fn a_client_has_the_rights_of_its_rule() {
    is_read_only("/data,client=*:ro,root_squash=no");
    is_read_only("/data,client=*:rw,uid=0:ro,root_squash=no");
    let mut pair = Pair::new(&["/data,ro,client=*:rw,root_squash=no"]);
    let root = pair.root.clone();
    let made = mkdir(&mut pair, &root, b"d").unwrap();
    assert_eq!(lookup(&mut pair, &root, b"d"), Ok(made));
    let access = pair.ask(AccessArguments { object: Handle(&root), access: 0x3f }, |reply| reply.unwrap());
    assert_ne!(access.access & access::MODIFY, 0);
}

/// Nothing can be changed in the export.
fn is_read_only(export: &str) {
    let mut pair = Pair::new(&[export]);
    let root = pair.root.clone();
    let none = SetAttributes::default();
    let failure = mkdir(&mut pair, &root, b"d").unwrap_err();
    assert_eq!(failure.status, Status::RoFs);
    unchanged(&failure.attributes);
    let how = CreateHow::Guarded(none);
    let mut refused = Vec::new();
    refused.push(
        pair.ask(CreateArguments { place: place(&root, b"f"), how }, |reply| reply.unwrap_err().status),
    );
    refused.push(pair.ask(RemoveArguments { object: place(&root, b"f") }, |reply| reply.unwrap_err().status));
    refused.push(pair.ask(RmdirArguments { object: place(&root, b"f") }, |reply| reply.unwrap_err().status));
    let rename = RenameArguments { from: place(&root, b"f"), to: place(&root, b"g") };
    refused.push(pair.ask(rename, |reply| reply.unwrap_err().status));
    let link = LinkArguments { file: Handle(&root), link: place(&root, b"g") };
    refused.push(pair.ask(link, |reply| reply.unwrap_err().status));
    let setattr = SetattrArguments { object: Handle(&root), attributes: none, guard: None };
    refused.push(pair.ask(setattr, |reply| reply.unwrap_err().status));
    assert_eq!(refused, [Status::RoFs; 6]);
    let access = pair.ask(AccessArguments { object: Handle(&root), access: 0x3f }, |reply| reply.unwrap());
    assert_eq!(access.access, access::READ | access::LOOKUP);
}

/// The next Call obeys the new rules, also one by a handle that the client has.
#[test]
fn rules_of_an_export_can_change_while_it_is_served() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    mkdir(&mut pair, &root, b"a").unwrap();
    assert!(pair.change_export("/data,ro,root_squash=no"));
    assert_eq!(mkdir(&mut pair, &root, b"b").unwrap_err().status, Status::RoFs);
    assert!(pair.change_export("/data,root_squash=no,uid=12345"));
    assert_eq!(getattr(&mut pair, &root), Err(Status::Acces));
    assert_eq!(pair.mnt(b"/data"), Err(mount3::Status::Acces));
    assert!(pair.change_export("/data,root_squash=no,uid=12345,client=*:rw"));
    mkdir(&mut pair, &root, b"b").unwrap();
    assert!(pair.change_export("/data"));
    assert_eq!(mkdir(&mut pair, &root, b"c").unwrap_err().status, Status::Acces, "root is squashed");
    assert!(!pair.change_export("/none"));
}

/// Its handles are stale, and so are those of what was in it; the other exports go on.
#[test]
fn an_export_can_be_removed_while_it_is_served() {
    let mut pair = Pair::new(&["/data,root_squash=no", "/more,root_squash=no"]);
    let (root, more) = (pair.root.clone(), pair.mnt(b"/more").unwrap());
    let made = mkdir(&mut pair, &root, b"a").unwrap();
    let file = pair.create(&root, b"file");
    let data = WriteArguments {
        file: Handle(&file),
        offset: 0,
        count: 5,
        stable: Stable::FileSync,
        data: Data(stag_wire::xdr::Item::Inline(b"hello")),
    };
    pair.ask(data, |reply| reply.map(drop).unwrap());
    assert_eq!(pair.remove_export("/data"), Removal::Done);
    for handle in [&root, &made, &file] {
        assert_eq!(getattr(&mut pair, handle), Err(Status::Stale));
    }
    assert_eq!(mkdir(&mut pair, &root, b"b").unwrap_err().status, Status::Stale);
    assert_eq!(pair.mnt(b"/data"), Err(mount3::Status::NoEnt));
    let usage = pair.memory_usage();
    assert_eq!((usage.bytes_free, usage.files_total - usage.files_free), (usage.bytes_total, 1));
    let listed = pair.ask(ListExports, |exports| exports.into_iter().count());
    assert_eq!(listed, 1);
    mkdir(&mut pair, &more, b"b").unwrap();
    assert_eq!(pair.remove_export("/data"), Removal::NotServed);
    assert!(!pair.change_export("/data"));
}

/// It is found as if it had been there from the start. What clients could not tell apart is refused.
#[test]
fn an_export_can_be_added_while_others_are_served() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    if super::IS_CARRIED {
        // The reactor where Calls come in does not learn of files in memory at another.
        return;
    }
    let path = "/more".to_owned();
    assert_eq!(pair.mnt(b"/more"), Err(mount3::Status::NoEnt));
    pair.add_export("/more,root_squash=no", 1).unwrap();
    let more = pair.mnt(b"/more").unwrap();
    mkdir(&mut pair, &more, b"a").unwrap();
    let listed = pair.ask(ListExports, |exports| exports.into_iter().count());
    assert_eq!(listed, 2);

    assert_eq!(pair.add_export("/more", 2), Err(ExportsError::SamePath(path.clone())));
    let same = ExportsError::SameFsid { first: path, second: "/other".to_owned(), fsid: 2 };
    assert_eq!(pair.add_export("/other", 1), Err(same));

    // The path and the id of one that was removed are free again; its files are other ones.
    assert_eq!(pair.remove_export("/more"), Removal::Done);
    pair.add_export("/more,root_squash=no", 1).unwrap();
    assert_eq!(getattr(&mut pair, &more), Err(Status::Stale));
    let again = pair.mnt(b"/more").unwrap();
    mkdir(&mut pair, &again, b"a").unwrap();
}

#[test]
fn root_is_nobody_unless_the_export_trusts_it() {
    let mut pair = Pair::new(&["/data"]);
    let root = pair.root.clone();
    assert_eq!(mkdir(&mut pair, &root, b"d").unwrap_err().status, Status::Acces);
    let access = |pair: &mut Pair| {
        let arguments = AccessArguments { object: Handle(&root), access: 0x3f };
        pair.ask(arguments, |reply| reply.unwrap().access)
    };
    assert_eq!(access(&mut pair), access::READ | access::LOOKUP);
    pair.credential = None;
    assert_eq!(access(&mut pair), access::READ | access::LOOKUP);
    assert_eq!(mkdir(&mut pair, &root, b"d").unwrap_err().status, Status::Acces);
}

/// Whatever an export squashes: the user or group that is none is the anonymous one, also among the supplementary groups.
#[test]
fn who_is_none_is_nobody() {
    const NONE: u32 = u32::MAX;
    for squash in ["no", "yes"] {
        let export = format!("/data,root_squash={squash},anonuid=70,anongid=80");
        let locking = (LockingConfig::default(), Recovered::nothing());
        let mut pair = Pair::of(&[&export], 1, FaultPlan::default(), locking, |_, pool| {
            let config = MemoryConfig {
                fsid: 1,
                data_len_max: 1 << 20,
                objects_max: 100,
                names_max: 100,
                // Where everybody makes what they like.
                root: RootAttributes { mode: 0o777, uid: 0, gid: 0 },
            };
            (super::STORES.0)(MemoryStore::new(&config, pool.clone(), Timestamp::default()).unwrap(), None)
        });
        let folder = pair.root.clone();
        for (uid, gid, owners) in [(NONE, NONE, (70, 80)), (NONE, 5, (70, 5)), (5, NONE, (5, 80))] {
            pair.credential = Some(credential(uid, gid, &[]));
            let made = mkdir(&mut pair, &folder, format!("{uid} {gid}").as_bytes()).unwrap();
            let found = getattr(&mut pair, &made).unwrap();
            assert_eq!((found.uid, found.gid), owners, "root_squash={squash}");
        }
        // A member of the anonymous group by a supplementary one.
        let shut = lookup(&mut pair, &folder, format!("5 {NONE}").as_bytes()).unwrap();
        pair.credential = Some(credential(5, 5, &[]));
        let attributes = SetAttributes { mode: Some(0o070), ..SetAttributes::default() };
        let object = Handle(&shut);
        pair.ask(SetattrArguments { object, attributes, guard: None }, |reply| reply.unwrap());
        for (gids, allowed) in [(&[7][..], false), (&[7, NONE], true)] {
            pair.credential = Some(credential(9, 9, gids));
            assert_eq!(mkdir(&mut pair, &shut, b"d").is_ok(), allowed, "{gids:?}");
        }
    }
}

#[test]
fn users_and_groups_count() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    let directory = mkdir(&mut pair, &root, b"d").unwrap();
    let attributes =
        SetAttributes { mode: Some(0o770), uid: Some(10), gid: Some(20), ..SetAttributes::default() };
    let object = Handle(&directory);
    pair.ask(SetattrArguments { object, attributes, guard: None }, |reply| reply.unwrap());
    for (user, allowed) in [
        (credential(10, 1, &[]), true),
        (credential(11, 20, &[]), true),
        (credential(11, 1, &[5, 20]), true),
        (credential(11, 1, &[5]), false),
    ] {
        pair.credential = Some(user);
        let name = format!("{:?}", pair.world.now());
        let found = mkdir(&mut pair, &directory, name.as_bytes());
        assert_eq!(found.err().map(|failure| failure.status), (!allowed).then_some(Status::Acces));
    }
}

#[test]
fn names_of_two_exports_do_not_mix() {
    let mut pair = Pair::new(&["/data,root_squash=no", "/other,root_squash=no"]);
    let root = pair.root.clone();
    let other = pair.mnt(b"/other").unwrap();
    let file = pair.create(&root, b"f");
    assert_eq!(lookup(&mut pair, &other, b"f"), Err(Status::NoEnt));
    let rename = RenameArguments { from: place(&root, b"f"), to: place(&other, b"f") };
    assert_eq!(pair.ask(rename, |reply| reply.unwrap_err()).status, Status::XDev);
    let link = LinkArguments { file: Handle(&file), link: place(&other, b"f") };
    assert_eq!(pair.ask(link, |reply| reply.unwrap_err()).status, Status::XDev);
}
