//! Operations by plain system calls, done as they are begun.

use std::io::{IoSlice, IoSliceMut};

use rustix::fs::{fdatasync, fsync};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv, preadv2, pwrite, pwritev2};

use smallvec::SmallVec;
use stag_memory::Buf;

use crate::completion::{Data, DiskCompletion, PIECES_USUAL, Pieces};
use crate::file::DiskFile;
use crate::work::{Sync, Work};

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
    /// It is done. Holds the number of octets read.
    All(usize),
    /// A device has to be asked, for a part at least; or it failed.
    NotAll,
    /// The file system does not tell.
    Unknown,
}

/// Fills the buffers, if all that they hold is in memory.
pub(crate) fn read_cached(pieces: &mut Pieces<Buf>, file: &DiskFile, offset: u64) -> Cached {
    let wanted: usize = pieces.iter().map(Buf::len).sum();
    match preadv2(file, &mut slices(pieces), offset, ReadWriteFlags::NOWAIT) {
        Ok(count) if count == wanted => Cached::All(count),
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Cached::Unknown,
        _ => Cached::NotAll,
    }
}

/// Fills the buffers. The file is in memory.
pub(crate) fn read(pieces: &mut Pieces<Buf>, file: &DiskFile, offset: u64) -> Result<usize, Errno> {
    loop {
        // The kernel takes longer to read a list, even if it is of one.
        let result = match &mut pieces[..] {
            [piece] => pread(file, &mut piece[..], offset),
            _ => preadv(file, &mut slices(pieces), offset),
        };
        if !matches!(result, Err(Errno::INTR)) {
            return result;
        }
    }
}

fn slices(pieces: &mut Pieces<Buf>) -> SmallVec<[IoSliceMut<'_>; PIECES_USUAL]> {
    pieces.iter_mut().map(|piece| IoSliceMut::new(piece)).collect()
}

fn once(work: &mut Work, file: &DiskFile) -> Result<usize, Errno> {
    match &mut work.data {
        Data::None if work.sync == Sync::All => fsync(file).map(|()| 0),
        Data::None => fdatasync(file).map(|()| 0),
        Data::Read(pieces) => read(pieces, file, work.offset),
        Data::Write(pieces) => {
            let slices: SmallVec<[IoSlice<'_>; PIECES_USUAL]> =
                pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            write(&slices, file, work.offset, work.sync)
        }
    }
}

/// Writes the slices, one after the other, and syncs as `sync` says.
pub(crate) fn write(
    slices: &[IoSlice<'_>],
    file: &DiskFile,
    offset: u64,
    sync: Sync,
) -> Result<usize, Errno> {
    let flags = match sync {
        Sync::None => ReadWriteFlags::empty(),
        Sync::Data => ReadWriteFlags::DSYNC,
        Sync::All => ReadWriteFlags::SYNC,
    };
    loop {
        // One slice is faster without a list, as in `read`.
        let result = match (slices, sync) {
            ([slice], Sync::None) => pwrite(file, slice, offset),
            _ => pwritev2(file, slices, offset, flags),
        };
        if !matches!(result, Err(Errno::INTR)) {
            return result;
        }
    }
}
