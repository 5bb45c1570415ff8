//! FPDUs that refer to their payload, and how they become the pieces of one system call.

use std::slice;

use stag_wire::{ddp, mpa, rdmap};

/// FPDUs made before they are given to the socket.
pub(super) const FPDUS_MAX: usize = 64;
/// Payloads up to this are copied beside their headers: cheaper than a piece of their own.
const COPY_MAX: usize = 1024;
/// The longest header: ULPDU_Length, an untagged header, a Read Request.
pub(super) const HEAD_LEN_MAX: usize = mpa::LENGTH_LEN + ddp::UNTAGGED_LEN + rdmap::READ_REQUEST_LEN;
/// Pieces of memory among the FPDUs that are built whole.
pub(super) const BUILT_PIECES_MAX: usize = 48;

/// What is done when an FPDU has gone out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    Nothing,
    /// The request of this sequence number.
    Work(u64),
    /// The oldest Read Response.
    Response,
}

/// An FPDU that the socket has not taken, or not all of it.
///
/// Invariant: `payload` is readable for `payload_len` octets, which are not written: they are of a buffer that
/// the request, or the response, in which the FPDU is a part, holds. It is neither done nor taken away before.
pub(super) struct Fpdu {
    pub(super) head: [u8; HEAD_LEN_MAX],
    pub(super) head_len: u8,
    pub(super) trailer: [u8; mpa::TRAILER_LEN_MAX],
    pub(super) trailer_len: u8,
    pub(super) payload_len: u32,
    pub(super) payload: *const u8,
    pub(super) ends: Ends,
}

impl Fpdu {
    pub(super) fn len(&self) -> usize {
        usize::from(self.head_len) + self.payload_len as usize + usize::from(self.trailer_len)
    }
}

/// Memory for one system call, shared by all queue pairs of a provider.
pub(in super::super) struct Scratch {
    octets: Box<[u8]>,
    used: usize,
    pub(super) pieces: Vec<libc::iovec>,
}

/// Each FPDU makes three pieces at most, of which two merge with their neighbours; what was built is one more, and two for each
/// piece of memory in it.
const PIECES_MAX: usize = 2 * FPDUS_MAX + 3 + 2 * BUILT_PIECES_MAX;
const SCRATCH_LEN: usize = FPDUS_MAX * (HEAD_LEN_MAX + COPY_MAX + mpa::TRAILER_LEN_MAX);

impl Scratch {
    pub(in super::super) fn new() -> Scratch {
        Scratch { octets: vec![0; SCRATCH_LEN].into(), used: 0, pieces: Vec::with_capacity(PIECES_MAX) }
    }

    pub(super) fn clear(&mut self) {
        self.used = 0;
        self.pieces.clear();
    }

    /// Adds octets by copying them.
    #[inline(always)]
    fn copy(&mut self, octets: &[u8]) {
        let start = self.used;
        self.used += octets.len();
        let to = &mut self.octets[start..self.used];
        to.copy_from_slice(octets);
        let base = to.as_mut_ptr();
        match self.pieces.last_mut() {
            // Right behind what was copied before.
            Some(last) if last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == base => {
                last.iov_len += octets.len();
            }
            _ => self.pieces.push(libc::iovec { iov_base: base.cast(), iov_len: octets.len() }),
        }
    }

    /// Adds octets where they are.
    #[inline(always)]
    pub(super) fn refer(&mut self, place: *const u8, len: usize) {
        self.pieces.push(libc::iovec { iov_base: place.cast_mut().cast(), iov_len: len });
    }

    /// Adds what of an FPDU is behind its first `skip` octets.
    #[inline(always)]
    pub(super) fn add(&mut self, fpdu: &Fpdu, skip: usize) {
        let head = &fpdu.head[..usize::from(fpdu.head_len)];
        let trailer = &fpdu.trailer[..usize::from(fpdu.trailer_len)];
        let payload_len = fpdu.payload_len as usize;
        if skip < head.len() {
            self.copy(&head[skip..]);
        }
        let skip = skip.saturating_sub(head.len());
        if skip < payload_len {
            // SAFETY: `skip` is within the payload (invariant of `Fpdu`).
            let place = unsafe { fpdu.payload.add(skip) };
            let len = payload_len - skip;
            if len <= COPY_MAX {
                // SAFETY: readable, and not written (invariant of `Fpdu`).
                self.copy(unsafe { slice::from_raw_parts(place, len) });
            } else {
                self.refer(place, len);
            }
        }
        let skip = skip.saturating_sub(payload_len);
        self.copy(&trailer[skip..]);
    }
}
