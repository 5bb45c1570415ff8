//! Our Reads and their Responses.

use stag_wire::ddp::{self, Tagged, Untagged};
use stag_wire::rdmap::queue;

use super::super::fault::Access;
use super::{Payload, Tx, Work, sink_stag};

impl Tx {
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
