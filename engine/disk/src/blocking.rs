//! Operations by plain system calls, done when they are begun.

use std::io::{IoSlice, IoSliceMut};

use rustix::fs::{fdatasync, fsync};
use rustix::io::{Errno, ReadWriteFlags, preadv, pwritev2};

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
