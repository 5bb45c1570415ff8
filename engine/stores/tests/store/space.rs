//! Space that is reserved and given up, and where data and holes are.

use stag_stores::directory::MayWait;
use stag_vfs::{ExtentKind, FsError, ObjectId, SpaceChange, UserIdentity};

use crate::lab::{Lab, PAGE, is_root};

const PAGES: u64 = PAGE as u64;

fn change(lab: &mut Lab, file: ObjectId, octets: (u64, u64), change: SpaceChange) -> Result<(), FsError> {
    let now = lab.now();
    lab.store.change_space(&UserIdentity::ROOT, file, octets, change, now)?;
    lab.settle()
}

fn reserve(lab: &mut Lab, file: ObjectId, octets: (u64, u64)) -> Result<(), FsError> {
    change(lab, file, octets, SpaceChange::Reserve)
}

fn release(lab: &mut Lab, file: ObjectId, octets: (u64, u64)) -> Result<(), FsError> {
    change(lab, file, octets, SpaceChange::Release)
}

fn seek(lab: &Lab, file: ObjectId, offset: u64, kind: ExtentKind) -> Result<Option<u64>, FsError> {
    lab.store.seek(&UserIdentity::ROOT, file, offset, kind)
}

/// A page is data once it is written, and a hole if it is only reserved, or was given up; the times tell of it.
#[test]
fn a_file_in_memory_knows_its_holes() {
    let mut lab = Lab::new(600);
    let file = lab.file("f");
    for page in [2, 3, 200] {
        lab.write(file, page * PAGES, &[7; PAGE]).unwrap();
    }
    lab.write(file, 300 * PAGES, &[7; 10]).unwrap();
    reserve(&mut lab, file, (100 * PAGES, 5 * PAGES)).unwrap();
    let data = |lab: &Lab, page: u64| seek(lab, file, page * PAGES + 1, ExtentKind::Data).unwrap();
    let hole = |lab: &Lab, page: u64| seek(lab, file, page * PAGES + 1, ExtentKind::Hole).unwrap();
    assert_eq!(data(&lab, 0), Some(2 * PAGES));
    assert_eq!(data(&lab, 3), Some(3 * PAGES + 1));
    assert_eq!(data(&lab, 4), Some(200 * PAGES));
    assert_eq!(data(&lab, 201), Some(300 * PAGES));
    assert_eq!([0, 2, 100].map(|page| hole(&lab, page)), [1, 4 * PAGES, 100 * PAGES + 1].map(Some));
    assert_eq!(hole(&lab, 300), Some(300 * PAGES + 10));
    assert_eq!(seek(&lab, file, 300 * PAGES + 10, ExtentKind::Hole), Err(FsError::NoAddress));
    let before = lab.store.attributes(file).unwrap();
    release(&mut lab, file, (PAGES, 250 * PAGES)).unwrap();
    let after = lab.store.attributes(file).unwrap();
    assert_eq!((after.size, after.used), (before.size, PAGES));
    assert!(after.change > before.change && after.mtime > before.mtime);
    assert_eq!(data(&lab, 0), Some(300 * PAGES));
    release(&mut lab, file, (0, u64::MAX)).unwrap();
    assert_eq!((data(&lab, 0), lab.store.attributes(file).unwrap().used), (None, 0));
    assert_eq!(lab.units(), 0);
}

/// Space is the file's once it is reserved: others find none, and the file can be written.
#[test]
fn reserved_space_is_kept_for_its_file() {
    for lab in [Lab::new(64), Lab::slow(64)] {
        let mut lab = lab;
        let (file, other) = (lab.file("f"), lab.file("other"));
        let free = lab.store.usage().bytes_free;
        assert_eq!(reserve(&mut lab, file, (0, free + 1)), Err(FsError::NoSpace));
        assert_eq!(lab.store.attributes(file).unwrap().size, 0, "nothing has changed");
        reserve(&mut lab, file, (0, free)).unwrap();
        // A second time it takes no more.
        reserve(&mut lab, file, (0, free)).unwrap();
        assert_eq!(lab.store.usage().bytes_free, 0);
        assert_eq!(lab.write(other, 0, &[1]), Err(FsError::NoSpace));
        for page in 0..free / PAGES {
            let octets = [page as u8; PAGE];
            let len = if page % 3 == 0 { 100 } else { PAGE };
            let done = if page % 2 == 0 {
                lab.write(file, page * PAGES, &octets[..len])
            } else {
                let placed = lab.placed(&octets[..len]);
                lab.write_placed(file, page * PAGES, &[placed])
            };
            assert_eq!(done.map(|done| done.count as usize), Ok(len), "page {page}");
        }
        release(&mut lab, file, (0, 2 * PAGES)).unwrap();
        assert_eq!(lab.store.usage().bytes_free, 2 * PAGES);
        lab.write(other, 0, &[1]).unwrap();
        let root = lab.root();
        lab.remove(root, "f").unwrap();
        assert_eq!(lab.store.usage().bytes_free, free - PAGES);
    }
}

/// A READ in flight goes on showing the data from before the space was given up.
#[test]
fn a_read_in_flight_keeps_what_is_given_up() {
    let mut lab = Lab::new(64);
    let file = lab.file("f");
    lab.write(file, 0, &[9; 3 * PAGE]).unwrap();
    let (pieces, _) = lab.pieces(file, 0, 3 * PAGE as u32);
    release(&mut lab, file, (100, 2 * PAGES)).unwrap();
    assert!(pieces.iter().flat_map(|piece| piece.iter()).all(|octet| *octet == 9));
    let (found, _) = lab.read(file, 0, 3 * PAGE as u32);
    let is_hole = |at: usize| (100..2 * PAGE + 100).contains(&at);
    assert!(found.iter().enumerate().all(|(at, octet)| *octet == if is_hole(at) { 0 } else { 9 }));
}

/// Who may not write a file gives up none of its space, and nothing but files has any.
#[test]
fn space_is_for_those_who_may_write() {
    Lab::each(64, |lab| {
        let file = lab.file("f");
        lab.write(file, 0, &[9; PAGE]).unwrap();
        let (root, now) = (lab.root(), lab.now());
        let stranger = UserIdentity::new(77, 77, []);
        if lab.is_memory() || is_root() {
            let changed = lab.store.change_space(&stranger, file, (0, 10), SpaceChange::Release, now);
            assert_eq!(changed, Err(FsError::AccessDenied));
            assert_eq!(lab.store.seek(&stranger, file, 0, ExtentKind::Data), Ok(Some(0)), "others may read");
        }
        assert_eq!(release(lab, root, (0, 10)), Err(FsError::IsDirectory));
        assert_eq!(seek(lab, root, 0, ExtentKind::Data), Err(FsError::IsDirectory));
        assert_eq!(release(lab, file, (0, 0)), Err(FsError::Invalid));
        assert_eq!(reserve(lab, file, (u64::MAX, 1)), Err(FsError::TooLarge));
    });
}

/// In a directory, with system calls made by the reactor or by helpers.
#[test]
fn a_directory_reserves_gives_up_and_finds() {
    for may_wait in [MayWait::Nothing, MayWait::Device, MayWait::Everything] {
        let mut lab = Lab::directory(64, |config| config.may_wait = Some(may_wait));
        let file = lab.file("f");
        lab.write(file, 0, &[9; 10 * PAGE]).unwrap();
        reserve(&mut lab, file, (5 * PAGES, 20 * PAGES)).unwrap();
        let found = lab.store.attributes(file).unwrap();
        assert_eq!((found.size, found.used >= 25 * PAGES), (25 * PAGES, true), "{may_wait:?}");
        release(&mut lab, file, (2 * PAGES, 2 * PAGES)).unwrap();
        assert_eq!(seek(&lab, file, 0, ExtentKind::Hole), Ok(Some(2 * PAGES)));
        assert_eq!(seek(&lab, file, 2 * PAGES, ExtentKind::Data), Ok(Some(4 * PAGES)));
        release(&mut lab, file, (0, u64::MAX)).unwrap();
        assert_eq!(seek(&lab, file, 0, ExtentKind::Data), Ok(None));
        assert_eq!(lab.store.attributes(file).unwrap().size, 25 * PAGES);
    }
}
