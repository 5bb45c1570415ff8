//! Operations by plain system calls, done as they are begun.

use std::io::{IoSlice, IoSliceMut};

use rustix::fs::{fdatasync, fsync};
use rustix::io::{Errno, ReadWriteFlags, preadv, preadv2, pwritev2};

use smallvec::SmallVec;

use crate::completion::{Data, DiskCompletion, PIECES_USUAL};
use crate::disk::{Sync, Work};
use crate::file::DiskFile;

pub(crate) fn run(mut work: Work, file: &DiskFile) -> DiskCompletion {
    let result = loop {
        match once(&mut work, file) {
            Err(Errno::INTR) => {}
            result => break result,
        }
    };
    work.data.cut(result.unwrap_or(0));
    DiskCompletion { tag: work.tag, result: result.map(|count| count as u32), data: work.data }
}

/// What came of a read that does not wait.
pub(crate) enum Cached {
    /// It is done.
    All,
    /// A device has to be asked, for a part at least; or it failed.
    NotAll,
    /// The file system does not tell.
    Unknown,
}

/// Fills the buffers of a read, if all of it is in memory.
pub(crate) fn read_cached(work: &mut Work, file: &DiskFile) -> Cached {
    let wanted = work.data.len();
    let Data::Read(pieces) = &mut work.data else { return Cached::NotAll };
    let mut slices: SmallVec<[IoSliceMut<'_>; PIECES_USUAL]> =
        pieces.iter_mut().map(|piece| IoSliceMut::new(piece)).collect();
    match preadv2(file, &mut slices, work.offset, ReadWriteFlags::NOWAIT) {
        Ok(count) if count == wanted => Cached::All,
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Cached::Unknown,
        _ => Cached::NotAll,
    }
}

fn once(work: &mut Work, file: &DiskFile) -> Result<usize, Errno> {
    match &mut work.data {
        Data::None if work.sync == Sync::All => fsync(file).map(|()| 0),
        Data::None => fdatasync(file).map(|()| 0),
        Data::Read(pieces) => {
            let mut slices: SmallVec<[IoSliceMut<'_>; PIECES_USUAL]> =
                pieces.iter_mut().map(|piece| IoSliceMut::new(piece)).collect();
            preadv(file, &mut slices, work.offset)
        }
        Data::Write(pieces) => {
            let slices: SmallVec<[IoSlice<'_>; PIECES_USUAL]> =
                pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            let flags = match work.sync {
                Sync::None => ReadWriteFlags::empty(),
                Sync::Data => ReadWriteFlags::DSYNC,
                Sync::All => ReadWriteFlags::SYNC,
            };
            pwritev2(file, &slices, work.offset, flags)
        }
    }
}
