//! The buffers and results that pass between an operation and its completion.

use rustix::io::Errno;
use smallvec::SmallVec;
use stag_memory::{Buf, Shared};

/// Buffers of one operation that need no allocation: more only where free memory is in many pieces. Not many, because an
/// operation and its completion are moved several times.
pub const PIECES_USUAL: usize = 4;

/// Buffers of one operation at most: what a system call takes.
pub const PIECES_MAX: usize = 1024;

/// The buffers of one operation, in the order of the file: [`PIECES_MAX`] at most.
pub type Pieces<T> = SmallVec<[T; PIECES_USUAL]>;

/// What an operation moves.
#[derive(Debug, Default)]
pub enum Data {
    /// Nothing: a sync.
    #[default]
    None,
    /// Buffers to fill, each to its `len()`. When they come back, to what was read.
    Read(Pieces<Buf>),
    /// What to write.
    Write(Pieces<Shared>),
}

/// An operation is over.
#[derive(Debug)]
pub struct DiskCompletion {
    /// What it was begun with.
    pub tag: u64,
    /// Octets moved, fewer than asked for perhaps; or why none were.
    pub result: Result<u32, Errno>,
    /// The buffers.
    pub data: Data,
}

/// An operation that was not begun, because as many as possible are under way: the buffers come back.
#[derive(Debug)]
pub struct DiskRefused(pub Data);

impl Data {
    /// Gives up the memory of an operation that does not end.
    pub(crate) fn strand(self) {
        match self {
            Data::None => {}
            Data::Read(bufs) => bufs.into_iter().for_each(Buf::strand),
            Data::Write(pieces) => pieces.into_iter().for_each(Shared::strand),
        }
    }

    /// Octets in all.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Data::None => 0,
            Data::Read(pieces) => pieces.iter().map(Buf::len).sum(),
            Data::Write(pieces) => pieces.iter().map(Shared::len).sum(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the addresses of the buffers into a list for a system call.
    pub(crate) fn list_into(&mut self, list: &mut Vec<libc::iovec>) {
        list.clear();
        let entry = |base: *mut u8, len| libc::iovec { iov_base: base.cast(), iov_len: len };
        match self {
            Data::None => {}
            Data::Read(pieces) => {
                list.extend(pieces.iter_mut().map(|piece| entry(piece.as_mut_ptr(), piece.len())))
            }
            Data::Write(pieces) => {
                list.extend(pieces.iter().map(|piece| entry(piece.as_ptr().cast_mut(), piece.len())));
            }
        }
    }

    /// After a read of `count` octets: cuts the buffers to them, and gives back those behind.
    pub(crate) fn cut(&mut self, count: usize) {
        if let Data::Read(pieces) = self {
            cut(pieces, count);
        }
    }
}

/// Cuts buffers to the `count` octets that were read into them, and gives back those behind.
pub(crate) fn cut(pieces: &mut Pieces<Buf>, count: usize) {
    let mut left = count;
    for piece in pieces.iter_mut() {
        let len = piece.len().min(left);
        piece.shrink_to(len);
        left -= len;
    }
    pieces.retain(|piece| !piece.is_empty());
}
