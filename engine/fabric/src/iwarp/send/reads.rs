//! Our Reads and their Responses.

use stag_wire::ddp::{self, Tagged, Untagged};
use stag_wire::rdmap::{self, Opcode, queue};

use super::super::fault::Access;
use super::built::FPDU_LEN_MAX;
use super::gather::Ends;
use super::{Asked, Payload, Tx, Work};
use crate::{ReadPart, ReadRequest, RemoteSegment};

/// The headers of a Read Request, which has no payload.
type RequestHead = [u8; ddp::UNTAGGED_LEN + rdmap::READ_REQUEST_LEN];

/// The STag under which the Response to a Read Request comes. Good for that alone: only the oldest request is answered, and
/// Writes find no such STag (theirs have the top bit).
#[inline]
fn sink_stag(msn: u32) -> u32 {
    msn & !(1 << 31)
}

impl Tx {
    /// Posts a Read of one part, for which there is room. Its Read Request is built with the messages if nothing waits before it.
    #[inline]
    pub(in super::super) fn begin_read(&mut self, request: ReadRequest, source: RemoteSegment) {
        let ReadRequest { id, target } = request;
        let part = ReadPart { at: 0, len: target.len() as u32, source };
        let is_next = !self.waits
            && self.fpdus.is_empty()
            && self.next == self.first + self.work.len() as u64
            && self.asked.len() < self.ord as usize
            && self.built.has_room()
            && self.cuts.has_room(FPDU_LEN_MAX);
        if !is_next {
            return self.post_read(id, target, &[part]);
        }
        let sequence = self.next;
        let payload = Payload::Read { target, to_ask: 0, to_come: 1 };
        self.post(Work { id, signaled: true, is_done: false, payload });
        self.next += 1;
        let head = self.request(Some(sequence), part);
        let fpdu_len = self.built.push_request(&head, self.crc);
        self.cuts.laid(fpdu_len);
    }

    /// Makes an FPDU of a Read Request. `work`: whose it is; `None`: it only makes the peer ready.
    pub(super) fn ask(&mut self, work: Option<u64>, part: ReadPart) {
        let head = self.request(work, part);
        self.make(&head, std::ptr::null(), 0, Ends::Nothing);
    }

    /// The headers of a Read Request, which is on its way from here on.
    #[inline]
    fn request(&mut self, work: Option<u64>, part: ReadPart) -> RequestHead {
        let msn = self.read_msn;
        self.read_msn = msn.wrapping_add(1);
        let control = Opcode::ReadRequest.to_control();
        let header = Untagged { last: true, control, ulp: 0, queue: queue::READ_REQUEST, msn, offset: 0 };
        let request = rdmap::RdmapReadRequest {
            sink_stag: sink_stag(msn),
            sink_offset: 0,
            len: part.len,
            source_stag: part.source.handle.0,
            source_offset: part.source.offset,
        };
        let mut head = [0; ddp::UNTAGGED_LEN + rdmap::READ_REQUEST_LEN];
        head[..ddp::UNTAGGED_LEN].copy_from_slice(&header.to_wire());
        head[ddp::UNTAGGED_LEN..].copy_from_slice(&request.to_wire());
        self.asked.push_back(Asked { work, msn, at: part.at, len: part.len, got: 0 });
        head
    }

    /// Checks a segment of a Read Response against the oldest request (5040-b, siw-17).
    #[inline]
    pub(in super::super) fn expect_response(&self, header: &Tagged, len: u32) -> Result<(), Access> {
        let asked = self.asked.front().ok_or(Access::Stag)?;
        if header.stag != sink_stag(asked.msn) {
            return Err(Access::Stag);
        }
        let left = asked.len - asked.got;
        if header.offset != u64::from(asked.got) || len > left || header.last != (len == left) {
            return Err(Access::Bounds);
        }
        Ok(())
    }

    /// Where the octet `at` of the segment that [`Tx::expect_response`] let in goes.
    #[inline]
    pub(in super::super) fn response_place(&mut self, at: u32) -> Option<*mut u8> {
        let asked = self.asked.front()?;
        let sequence = asked.work?;
        let offset = asked.at as usize + asked.got as usize + at as usize;
        match &mut self.work.get_mut((sequence - self.first) as usize)?.payload {
            // Within the target: the part was checked against it when it was posted, the segment against the part.
            Payload::Read { target, .. } => Some(target.as_mut_ptr().wrapping_add(offset)),
            _ => None,
        }
    }

    /// A segment of a Read Response is there, all of it. `true`: a Read is done.
    #[inline]
    pub(in super::super) fn responded(&mut self, len: u32, last: bool) -> bool {
        let Some(asked) = self.asked.front_mut() else { return false };
        asked.got += len;
        if !last {
            return false;
        }
        let work = asked.work;
        self.asked.pop_front();
        let Some(sequence) = work else { return false };
        if let Some(work) = self.work.get_mut((sequence - self.first) as usize)
            && let Payload::Read { to_come, .. } = &mut work.payload
        {
            *to_come -= 1;
            work.is_done = *to_come == 0;
            return work.is_done;
        }
        false
    }

    /// Which request a Terminate is about: the one that its header names, or else the first that it can be.
    pub(in super::super) fn refused(&self, header: Option<ddp::DdpHeader>) -> Option<u64> {
        let is_read = |work: &Work| matches!(work.payload, Payload::Read { .. });
        let is_write = |work: &Work| matches!(work.payload, Payload::Write { .. });
        let first = |is: &dyn Fn(&Work) -> bool| {
            let at = self.work.iter().position(|work| is(work) && !work.is_done);
            let at = at.or_else(|| self.work.iter().position(is))?;
            Some(self.first + at as u64)
        };
        match header {
            Some(ddp::DdpHeader::Untagged(Untagged { queue: queue::READ_REQUEST, msn, .. })) => {
                let asked = self.asked.iter().find(|asked| asked.msn == msn);
                asked.and_then(|asked| asked.work).or_else(|| first(&is_read))
            }
            Some(ddp::DdpHeader::Untagged(_)) => None,
            Some(ddp::DdpHeader::Tagged(_)) => first(&is_write),
            None => first(&|work| is_read(work) || is_write(work)),
        }
    }
}
