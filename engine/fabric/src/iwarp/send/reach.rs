//! The peer's memory while one of its messages is shown: what is done to it then leaves with the answer, or before it.

use stag_memory::{Buf, Shared};
use stag_wire::{ddp, mpa};

use super::super::cuts::Cuts;
use super::built;
use crate::{GATHERED_DATA_LEN_MAX, MemoryInReach, ReadPart, ReadRequest, RemoteSegment};

/// The RDMA Write that goes out before an answer, or the RDMA Read that it waits for.
pub(in super::super) struct InReach {
    /// Octets of a tagged segment at most; 0: there is no Write.
    len_max: u32,
    cuts: Cuts,
    may_read: bool,
    /// The Write.
    pub(in super::super) written: Option<(Shared, RemoteSegment)>,
    /// The Read.
    pub(in super::super) read: Option<(ReadRequest, RemoteSegment)>,
}

impl InReach {
    #[inline(always)]
    pub(super) fn new(len_max: u32, cuts: Cuts, may_read: bool) -> InReach {
        InReach { len_max, cuts, may_read, written: None, read: None }
    }
}

impl MemoryInReach for InReach {
    #[inline]
    fn is_far(&self) -> bool {
        true
    }

    /// What is not here yet cannot be read at once.
    fn read(&mut self, _target: &mut Buf, _parts: &[ReadPart]) -> bool {
        false
    }

    #[inline]
    fn post_read(&mut self, request: ReadRequest, source: RemoteSegment) -> Result<(), ReadRequest> {
        if !self.may_read || self.read.is_some() {
            return Err(request);
        }
        self.read = Some((request, source));
        Ok(())
    }

    #[inline]
    fn write(&mut self, source: &Shared, target: RemoteSegment) -> bool {
        let len = source.len();
        if len == 0 || len > (self.len_max as usize).min(GATHERED_DATA_LEN_MAX) || self.written.is_some() {
            return false;
        }
        // In one segment, and the answer behind it, too.
        if self.cuts.fit(ddp::TAGGED_LEN, len as u32) as usize != len {
            return false;
        }
        self.cuts.laid(mpa::fpdu_len(ddp::TAGGED_LEN + len));
        if !self.cuts.has_room(built::WHOLE_FPDU_LEN_MAX) {
            return false;
        }
        self.written = Some((source.clone(), target));
        true
    }
}
