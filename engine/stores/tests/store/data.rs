//! Data: copies, torn reads, holes, and the end of space.

use stag_stores::memory::{FILE_LEN_MAX, MemoryConfig, MemoryStore, MemoryStoreError, MemoryStoreStatistics};
use stag_vfs::{FsError, ObjectId, Stability, Timestamp, Update, UserIdentity, WriteData, WriteDone};

use crate::lab::{CONFIG, Lab, NONE, PAGE};

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 7) as u8 ^ seed).collect()
}

fn truncate(lab: &mut Lab, file: ObjectId, size: u64) -> Result<(), FsError> {
    lab.set(&UserIdentity::ROOT, file, Update { size: Some(size), ..NONE })
}

/// A page-aligned placed buffer becomes the file's pages; a READ hands the same memory out again.
#[test]
fn aligned_data_is_neither_copied_in_nor_out() {
    let mut lab = Lab::new(600);
    let file = lab.file("f");
    let octets = pattern(256 * PAGE, 1);
    let placed = lab.placed(&octets);
    let location = placed.location();
    assert_eq!(lab.write_placed(file, 0, &[placed]).unwrap().count as usize, octets.len());
    let (pieces, done) = lab.pieces(file, 0, 256 * PAGE as u32);
    // One piece: the pages follow each other in memory as in the file.
    assert_eq!((pieces.len(), done.eof), (1, true));
    assert_eq!(pieces[0].location(), location);
    assert_eq!(*pieces[0], *octets);
    drop(pieces);
    let expected = MemoryStoreStatistics { octets_copied: 0, pages_placed: 256, pages_read: 256 };
    assert_eq!(lab.statistics(), expected);
    assert_eq!(lab.units(), 256);

    // The last page may be in part: what follows it reads as zeros.
    let placed = lab.placed(&octets[..100]);
    lab.write_placed(file, 300 * PAGE as u64, &[placed]).unwrap();
    assert_eq!(lab.statistics().octets_copied, 0);
    truncate(&mut lab, file, 301 * PAGE as u64).unwrap();
    let (read, _) = lab.read(file, 300 * PAGE as u64, PAGE as u32);
    assert!(read[..100] == octets[..100] && read[100..].iter().all(|octet| *octet == 0));
}

#[test]
fn what_is_not_aligned_is_copied_and_counted() {
    let mut lab = Lab::new(600);
    let file = lab.file("f");
    let octets = pattern(2 * PAGE, 1);
    // Inline: everything.
    lab.write(file, 0, &octets).unwrap();
    assert_eq!(lab.statistics().octets_copied, 2 * PAGE as u64);
    // Placed, but for the middle of pages of the file.
    let placed = lab.placed(&octets[..PAGE]);
    lab.write_placed(file, 100, &[placed]).unwrap();
    assert_eq!(lab.statistics().octets_copied, 3 * PAGE as u64);
    // Placed in the middle of a page of memory.
    let placed = lab.placed(&octets).slice(8..8 + PAGE);
    lab.write_placed(file, 0, &[placed]).unwrap();
    assert_eq!(
        lab.statistics(),
        MemoryStoreStatistics { octets_copied: 4 * PAGE as u64, ..MemoryStoreStatistics::default() }
    );
    let (read, _) = lab.read(file, 0, PAGE as u32);
    assert!(read == octets[8..8 + PAGE]);
}

/// A READ in flight goes on showing what it found, however the file changes.
#[test]
fn a_read_in_flight_is_never_torn() {
    let mut lab = Lab::new(600);
    let file = lab.file("f");
    let old = pattern(3 * PAGE + 10, 1);
    lab.write(file, 0, &old).unwrap();
    let (pieces, _) = lab.pieces(file, 0, old.len() as u32);
    let same = |lab: &Lab| {
        assert!(pieces.iter().flat_map(|piece| piece.iter()).eq(old.iter()));
        lab.units()
    };
    let new = pattern(PAGE, 99);
    lab.write(file, 0, &new).unwrap();
    same(&lab);
    lab.write(file, PAGE as u64 + 17, &new).unwrap();
    same(&lab);
    let placed = lab.placed(&new);
    lab.write_placed(file, 2 * PAGE as u64, &[placed]).unwrap();
    same(&lab);
    lab.write(file, 3 * PAGE as u64 + 5, &new).unwrap();
    same(&lab);
    truncate(&mut lab, file, 7).unwrap();
    assert_eq!(same(&lab), 4 + 1, "the READ's pages and the file's");
    let root = lab.root();
    lab.remove(root, "f").unwrap();
    assert_eq!(same(&lab), 4, "the READ's pages");
    drop(pieces);
    assert_eq!(lab.units(), 0);
}

/// What another file left in a page is never seen.
#[test]
fn fresh_pages_show_no_old_data() {
    let mut lab = Lab::new(40);
    let secret = lab.file("secret");
    lab.write(secret, 0, &[0xee; 20 * PAGE]).unwrap();
    let root = lab.root();
    lab.remove(root, "secret").unwrap();
    let file = lab.file("f");
    lab.write(file, 100, b"x").unwrap();
    lab.write(file, 3 * PAGE as u64 + 50, b"y").unwrap();
    truncate(&mut lab, file, 3 * PAGE as u64 + 20).unwrap();
    lab.write(file, 3 * PAGE as u64 + 60, b"z").unwrap();
    truncate(&mut lab, file, 10 * PAGE as u64).unwrap();
    let (read, _) = lab.read(file, 0, 10 * PAGE as u32);
    let found: Vec<_> = read.iter().enumerate().filter(|(_, octet)| **octet != 0).collect();
    assert_eq!(found, [(100, &b'x'), (3 * PAGE + 60, &b'z')]);
}

#[test]
fn sparse_files_take_no_more_than_their_pages() {
    let mut lab = Lab::new(64);
    let file = lab.file("f");
    for shift in [12, 20, 31, 32, 40, 50, 61] {
        lab.write(file, 1 << shift, b"here").unwrap();
    }
    let attributes = lab.store.attributes(file).unwrap();
    assert_eq!((attributes.size, attributes.used), ((1 << 61) + 4, 7 * PAGE as u64));
    let (read, done) = lab.read(file, (1 << 61) - 2, 100);
    assert_eq!((read.as_slice(), done.eof), (&b"\0\0here"[..], true));
    let (read, done) = lab.read(file, 1 << 45, 300_000);
    assert!(read.len() == 300_000 && read.iter().all(|octet| *octet == 0) && !done.eof);
    // To the end of the largest file and not beyond.
    lab.write(file, FILE_LEN_MAX - 1, b"!").unwrap();
    assert_eq!(lab.write(file, FILE_LEN_MAX, b"!"), Err(FsError::TooLarge));
    assert_eq!(lab.write(file, FILE_LEN_MAX - 1, b"!!"), Err(FsError::TooLarge));
    assert_eq!(lab.write(file, u64::MAX, b"!"), Err(FsError::TooLarge));
    assert_eq!(truncate(&mut lab, file, FILE_LEN_MAX + 1), Err(FsError::TooLarge));
    assert_eq!(lab.read(file, u64::MAX, u32::MAX).1.count, 0);
    truncate(&mut lab, file, 0).unwrap();
    assert_eq!(lab.units(), 0);
}

/// The pieces of a READ never outgrow the vector that the caller gave.
#[test]
fn a_read_in_too_many_pieces_is_short() {
    let mut lab = Lab::new(64);
    let file = lab.file("f");
    for page in (0..8).rev() {
        // From the last to the first, so that they do not follow each other in memory.
        let placed = lab.placed(&pattern(PAGE, page));
        lab.write_placed(file, u64::from(page) * PAGE as u64, &[placed]).unwrap();
        let root = lab.root();
        let spacer =
            lab.create(&UserIdentity::ROOT, root, &format!("s{page}"), &stag_vfs::CreateMode::Guarded(NONE));
        lab.write(spacer.unwrap(), 0, b"x").unwrap();
    }
    let now = lab.now();
    let mut pieces = Vec::with_capacity(3);
    let done = lab.store.read(&UserIdentity::ROOT, file, 0, 8 * PAGE as u32, &mut pieces, now).unwrap();
    let done = done.done().unwrap();
    assert_eq!((pieces.len(), pieces.capacity()), (3, 3));
    assert_eq!((done.count as usize, done.eof), (3 * PAGE, false));
    for (page, piece) in pieces.iter().enumerate() {
        assert!(**piece == *pattern(PAGE, page as u8));
    }
}

/// Fills the space to the last page; nothing that was there is lost, and all of it comes back.
#[test]
fn when_space_ends_nothing_is_lost() {
    for placed in [false, true] {
        // Some of the pool is zeros, and some for transit.
        let mut lab = Lab::new(72);
        let file = lab.file("f");
        let mut expected = Vec::new();
        for step in 0.. {
            let octets = pattern(3 * PAGE, step);
            let done = if placed {
                // What a transfer would place, when there is room at all.
                let Some(mut buf) = lab.pool.take_len(octets.len()) else { break };
                buf.copy_from_slice(&octets);
                lab.write_placed(file, expected.len() as u64, &[buf.share()])
            } else {
                lab.write(file, expected.len() as u64, &octets)
            };
            match done {
                Ok(done) => expected.extend(&octets[..done.count as usize]),
                Err(status) => {
                    assert_eq!(status, FsError::NoSpace);
                    break;
                }
            }
            assert!(step < 30, "it never ends");
        }
        assert!(expected.len() >= 45 * PAGE, "{}", expected.len());
        let (read, done) = lab.read(file, 0, expected.len() as u32);
        assert!(read == expected && done.eof);
        assert_eq!(lab.store.attributes(file).unwrap().size, expected.len() as u64);
        if !placed {
            assert_eq!(lab.store.usage().bytes_free, 0);
            // What needs no new page still works.
            lab.write(file, 10, b"in place").unwrap();
            // What needs one does not for now, and changes nothing: the page is being read.
            let (pieces, _) = lab.pieces(file, 0, 100);
            let before = lab.store.attributes(file).unwrap();
            assert_eq!(lab.write(file, 10, b"elsewhere"), Err(FsError::Busy));
            assert_eq!(lab.store.attributes(file).unwrap().mtime, before.mtime);
            drop(pieces);
            truncate(&mut lab, file, 100).unwrap();
            assert_eq!(lab.units(), 1);
        }
        let root = lab.root();
        lab.remove(root, "f").unwrap();
        assert_eq!(lab.units(), 0);
    }
}

/// The limit of data counts as well as the pool, and a WRITE at it is short.
#[test]
fn a_write_is_short_where_the_limit_is() {
    let mut lab = Lab::with(64, MemoryConfig { data_len_max: 5 * PAGE as u64, ..CONFIG });
    let file = lab.file("f");
    let octets = pattern(4 * PAGE, 1);
    assert_eq!(lab.write(file, 0, &octets).unwrap().count as usize, 4 * PAGE);
    let pieces = [lab.placed(&octets)];
    assert_eq!(lab.write_placed(file, 4 * PAGE as u64, &pieces).unwrap().count as usize, PAGE);
    assert_eq!(lab.write_placed(file, 5 * PAGE as u64, &pieces), Err(FsError::NoSpace));
    // A hole costs nothing, and writing where pages are costs none.
    truncate(&mut lab, file, 1 << 30).unwrap();
    assert_eq!(lab.write_placed(file, 0, &pieces).unwrap().count as usize, 4 * PAGE);
    assert_eq!(lab.store.usage().bytes_free, 0);
    assert_eq!(lab.store.usage().bytes_total, 5 * PAGE as u64);
    drop(pieces);
    let other = lab.file("other");
    assert_eq!(lab.write(other, 0, b"x"), Err(FsError::NoSpace));
    assert_eq!(lab.store.attributes(other).unwrap().size, 0);
    truncate(&mut lab, file, 4 * PAGE as u64).unwrap();
    assert_eq!(lab.write(other, 0, b"x").unwrap().count, 1);
}

/// At the limit, WRITEs to ever new places must not leave bookkeeping behind: same memory, same answer.
#[test]
fn refused_writes_leave_nothing_behind() {
    let mut lab = Lab::with(64, MemoryConfig { data_len_max: 0, ..CONFIG });
    let file = lab.file("f");
    for step in 0..10_000u64 {
        assert_eq!(lab.write(file, step << 30, b"x"), Err(FsError::NoSpace));
    }
    let attributes = lab.store.attributes(file).unwrap();
    assert_eq!((attributes.size, attributes.used, lab.units()), (0, 0, 0));
}

#[test]
fn empty_reads_and_writes() {
    Lab::each(64, |lab| {
        let file = lab.file("f");
        let done = lab.write(file, 10, b"").unwrap();
        assert_eq!(done.count, 0);
        assert_eq!(lab.store.attributes(file).unwrap().size, 0, "a WRITE of nothing extends nothing");
        let (_, done) = lab.read(file, 0, 100);
        assert_eq!((done.count, done.eof), (0, true));
        lab.write(file, 0, b"abc").unwrap();
        assert!(!lab.read(file, 0, 0).1.eof && !lab.read(file, 0, 2).1.eof);
        assert!(lab.read(file, 0, 3).1.eof && lab.read(file, 3, 0).1.eof && lab.read(file, 9, 9).1.eof);
    });
}

#[test]
fn only_regular_files_have_data() {
    Lab::each(64, |lab| {
        let root = lab.root();
        let now = lab.now();
        let link = lab.store.make_symlink(&UserIdentity::ROOT, root, b"l", b"x", &NONE, now).unwrap();
        for (object, status) in [(root, FsError::IsDirectory), (link, FsError::Invalid)] {
            assert_eq!(lab.write(object, 0, b"x"), Err(status));
            assert_eq!(truncate(lab, object, 0), Err(status));
            assert_eq!(lab.commit(object), Err(status));
            assert_eq!(lab.read_of(&UserIdentity::ROOT, object, 0, 1), Err(status));
        }
        assert_eq!(lab.read_link(link), Ok(b"x".to_vec()));
        assert_eq!(lab.read_link(root), Err(FsError::Invalid));
    });
}

#[test]
fn times_and_guards() {
    let mut lab = Lab::new(64);
    let file = lab.file("f");
    let made = lab.store.attributes(file).unwrap();
    assert_eq!((made.atime, made.mtime), (made.ctime, made.ctime));
    lab.write(file, 0, b"x").unwrap();
    let written = lab.store.attributes(file).unwrap();
    assert!(written.mtime > made.mtime && written.ctime == written.mtime && written.atime == made.atime);
    lab.read(file, 0, 1);
    let read = lab.store.attributes(file).unwrap();
    assert!(read.atime > written.mtime && read.mtime == written.mtime && read.ctime == written.ctime);

    let set = Update { mode: Some(0o600), ..NONE };
    let now = lab.now();
    let root = UserIdentity::ROOT;
    let stale = made.ctime;
    assert_eq!(lab.store.set_guarded(&root, file, &set, stale, now), Err(FsError::NotSame));
    assert_eq!(lab.store.attributes(file).unwrap().mode, 0o644);
    assert_eq!(lab.store.set_guarded(&root, file, &set, read.ctime, now), Ok(()));
    let set = lab.store.attributes(file).unwrap();
    assert_eq!((set.mode, set.ctime, set.mtime), (0o600, now, written.mtime));

    let client = Timestamp { seconds: 5, nanoseconds: 6 };
    let times = Update { atime: stag_vfs::TimeUpdate::To(client), mtime: stag_vfs::TimeUpdate::Now, ..NONE };
    lab.set(&root, file, times).unwrap();
    let set = lab.store.attributes(file).unwrap();
    assert_eq!((set.atime, set.mtime), (client, set.ctime));
    let bad = stag_vfs::TimeUpdate::To(Timestamp { seconds: 0, nanoseconds: 1_000_000_000 });
    assert_eq!(lab.set(&root, file, Update { mtime: bad, ..NONE }), Err(FsError::Invalid));
}

#[test]
fn a_store_needs_pages_and_a_root() {
    let lab = Lab::new(64);
    let make = |config, pool| MemoryStore::new(&config, pool, Timestamp::default()).err();
    let wide = Lab::pool(PAGE * 2, 4);
    assert_eq!(make(CONFIG, wide), Some(MemoryStoreError::UnitLen { pool: "pages", found: PAGE * 2 }));
    let everything = lab.pool.take_len(48 * PAGE).unwrap();
    assert_eq!(make(CONFIG, lab.pool.clone()), Some(MemoryStoreError::Empty { pool: "pages", units: 64 }));
    drop(everything);
    let none = MemoryConfig { objects_max: 0, ..CONFIG };
    assert_eq!(make(none, lab.pool.clone()), Some(MemoryStoreError::NoObjects { found: 0 }));
    assert_eq!(make(CONFIG, lab.pool.clone()), None);
}

/// Copying data of a WRITE that came in pieces, at any alignment, gives the same file as one piece.
#[test]
fn pieces_are_one_stream() {
    Lab::each(200, |lab| {
        let octets = pattern(5 * PAGE + 123, 3);
        for (index, cut) in [1000, PAGE, PAGE + 1, 3 * PAGE, 9 * PAGE].into_iter().enumerate() {
            for offset in [0, 1, PAGE as u64, PAGE as u64 - 1] {
                let name = format!("f{index}-{offset}");
                let file = lab.file(&name);
                let mut pieces: Vec<_> = octets.chunks(cut).map(|piece| lab.placed(piece)).collect();
                // Empty pieces are no trouble.
                pieces.insert(1, pieces[0].slice(0..0));
                let data = WriteData::Placed(&mut pieces);
                assert_eq!(data.len(), octets.len());
                let done =
                    lab.write_of(&UserIdentity::ROOT, file, offset, data, Stability::FileSync).unwrap();
                assert_eq!(done, WriteDone { count: octets.len() as u32, committed: Stability::FileSync });
                drop(pieces);
                let (read, _) = lab.read(file, offset, octets.len() as u32);
                assert!(read == octets, "{name}");
                let root = lab.root();
                lab.remove(root, &name).unwrap();
            }
        }
        assert_eq!(lab.units(), 0);
    });
}
