//! Files in memory whose pages lie in turn: whatever is free then is single pages, and everything works with those.

use stag_disk::{Disk, DiskConfig};
use stag_fabric::sim::FaultPlan;
use stag_memory::Buf;
use stag_nfs::server::LockingConfig;
use stag_nfs::state::Recovered;
use stag_stores::directory::{DirectoryConfig, DirectoryStore, MayWait};
use stag_stores::memory::{MemoryConfig, MemoryStore, RootAttributes};
use stag_testing::Scratch;
use stag_vfs::{Timestamp, Usage};
use stag_wire::nfs3::{DirectoryName, Handle, Name, ReaddirplusArguments, RemoveArguments, Status};

use super::pair::{PAGE, Pair};
use super::transfers::{pattern, read, write};

const MEBI: usize = 1 << 20;

fn usage(pair: &mut Pair) -> Usage {
    let exports = pair.server.services_mut().0.exports().clone();
    let exports = exports.borrow();
    exports.shares()[0].volume().store().usage().unwrap()
}

/// Fills the first export with two files, page by page in turn, and removes one of them.
fn fragment(pair: &mut Pair) {
    let root = pair.root.clone();
    let files = [pair.create(&root, b"a"), pair.create(&root, b"b")];
    let page = pattern(PAGE);
    let status = 'full: loop {
        for at in 0.. {
            for file in &files {
                match write(pair, file, at * PAGE as u64, &page, true) {
                    Ok(count) => assert_eq!(count as usize, PAGE),
                    Err(status) => break 'full status,
                }
            }
        }
    };
    assert_eq!(status, Status::NoSpc);
    assert_eq!(usage(pair).bytes_free, 0);
    let object = DirectoryName { directory: Handle(&root), name: Name(b"b") };
    pair.ask(RemoveArguments { object }, |reply| reply.map(drop).unwrap());
}

/// Names in the root directory, by READDIRPLUS.
fn list(pair: &mut Pair) -> usize {
    let root = pair.root.clone();
    let (mut cookie, mut verifier, mut count) = (0, [0; 8], 0);
    for _ in 0..1000 {
        let directory = Handle(&root);
        let (dircount, maxcount) = (1 << 20, 1 << 20);
        let arguments = ReaddirplusArguments { directory, cookie, verifier, dircount, maxcount };
        let eof = pair.ask(arguments, |reply| {
            let list = reply.unwrap();
            verifier = list.verifier;
            for entry in list.entries {
                cookie = entry.cookie;
                count += 1;
            }
            list.eof
        });
        if eof {
            return count;
        }
    }
    panic!("a list without end");
}

#[test]
fn single_free_pages_are_as_good_as_runs() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    for index in 0..300 {
        pair.create(&root, format!("a name of some length {index}").as_bytes());
    }
    let before = usage(&mut pair);
    fragment(&mut pair);
    let free = usage(&mut pair).bytes_free;
    assert!(free >= before.bytes_free / 2 - PAGE as u64);
    // Large WRITEs until it is full, none of which is told to come again.
    let file = pair.create(&root, b"large");
    let octets = pattern(MEBI);
    let mut len = 0;
    let status = loop {
        match write(&mut pair, &file, len, &octets, true) {
            Ok(count) => len += u64::from(count),
            Err(status) => break status,
        }
    };
    assert_eq!((status, len), (Status::NoSpc, free));
    for at in (0..len).step_by(MEBI) {
        let count = (len - at).min(MEBI as u64) as usize;
        let (found, _) = read(&mut pair, &file, at, count as u32, true);
        assert!(found == octets[..count], "at {at}");
    }
    assert_eq!(list(&mut pair), 2 + 300 + 2, "with . and ..");
    // With what there is for Calls on their way in use, but for a few pages: short lists, and all of the names.
    let pool = pair.server.pools().payload.clone();
    let mut hoard: Vec<Buf> = Vec::new();
    while pool.transit_free() > 40 {
        hoard.extend(pool.take());
    }
    assert_eq!(list(&mut pair), 2 + 300 + 2);
    // None is left: the list goes as it fits inline.
    while pool.transit_free() > 0 {
        hoard.extend(pool.take());
    }
    assert_eq!(list(&mut pair), 2 + 300 + 2);
    let entry = pair.entry_pool();
    while entry.transit_free() > 0 {
        hoard.extend(entry.take());
    }
    // What is full says so, and what is short of memory only for now does not.
    assert_eq!(write(&mut pair, &file, 0, &octets, true), Err(Status::Jukebox));
    hoard.clear();
    assert_eq!(write(&mut pair, &file, 0, &octets, true), Ok(MEBI as u32));
}

/// A directory beside it: its READs are as long as there is memory for, and none waits for ever.
#[test]
fn a_directory_beside_goes_on() {
    let scratch = Scratch::folder();
    let octets = pattern(MEBI);
    std::fs::write(scratch.0.join("f"), &octets).unwrap();
    let exports = ["/data,root_squash=no", "/tmp,root_squash=no"];
    let locking = (LockingConfig::default(), Recovered::nothing());
    let mut pair = Pair::of(&exports, 1, FaultPlan::default(), locking, |index, pool| {
        if index == 1 {
            let config =
                DirectoryConfig { may_wait: Some(MayWait::Nothing), ..DirectoryConfig::new(&scratch.0, 9) };
            let disk = Disk::new(
                &DiskConfig { uring: false, helpers: false, ..DiskConfig::default() },
                &[pool.arena()],
            );
            return Box::new(DirectoryStore::new(&config, disk, pool.clone()).unwrap());
        }
        let config = MemoryConfig {
            fsid: 1,
            data_len_max: 1400 * PAGE as u64,
            objects_max: 1000,
            names_max: 1000,
            root: RootAttributes { mode: 0o755, uid: 0, gid: 0 },
        };
        Box::new(MemoryStore::new(&config, pool.clone(), Timestamp::default()).unwrap())
    });
    fragment(&mut pair);
    let directory = pair.mnt(b"/tmp").unwrap();
    let place = DirectoryName { directory: Handle(&directory), name: Name(b"f") };
    let file =
        pair.ask(stag_wire::nfs3::LookupArguments { what: place }, |reply| reply.unwrap().object.0.to_vec());
    let (found, _) = read(&mut pair, &file, 0, MEBI as u32, true);
    assert!(found == octets, "in as many pieces as pages");
    assert_eq!(write(&mut pair, &file, 0, &octets, true), Ok(MEBI as u32));
    // Of the memory for Calls on their way little is left: READs are shorter.
    let pool = pair.server.pools().payload.clone();
    let mut hoard: Vec<Buf> = Vec::new();
    while pool.transit_free() > pool.transit() / 4 + 30 {
        hoard.extend(pool.take());
    }
    let (mut at, mut calls) = (0, 0);
    while at < MEBI {
        let (found, eof) = read(&mut pair, &file, at as u64, MEBI as u32, true);
        assert!(!found.is_empty() && found == octets[at..at + found.len()]);
        at += found.len();
        assert_eq!(eof, at == MEBI);
        calls += 1;
    }
    assert!(calls > 4, "{calls}");
    // None at all: JUKEBOX, and not in the distant future.
    while pool.transit_free() > pool.transit() / 8 {
        hoard.extend(pool.take());
    }
    let before = pair.world.now();
    let finished = pair.call(
        &stag_wire::nfs3::ReadArguments { file: Handle(&file), offset: 5, count: 100 },
        stag_rpc::Chunks::default(),
    );
    let status =
        finished.reply::<stag_wire::nfs3::ReadArguments<'_>>().unwrap().map_err(|failed| failed.status);
    assert_eq!(status.map(drop), Err(Status::Jukebox));
    assert!(pair.world.now() - before < std::time::Duration::from_secs(5));
    hoard.clear();
    assert_eq!(read(&mut pair, &file, 5, 100, false).0, octets[5..105]);
}
