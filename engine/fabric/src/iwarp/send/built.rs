//! Messages built in the send buffer: whole FPDUs, one behind the other, for one system call. Memory that belongs to a message,
//! behind it or written before it, is sent from where it lies.

use stag_memory::Shared;
use stag_wire::ddp::{self, Tagged, Untagged};
use stag_wire::mpa;
use stag_wire::rdmap::{Opcode, queue};
use stag_wire::rpcrdma::{HEADER_LEN_MIN, emit_plain};

use super::super::crc::{Crc, crc32c};
use super::gather::{BUILT_PIECES_MAX, Scratch};
use crate::{
    GATHERED_LEN_MAX, GATHERED_PIECES_MAX, GatheredPieces, Handle, PLAIN_LEN_MAX, RemoteSegment,
    WHOLE_LEN_MAX,
};

/// Octets of a ULPDU before the Payload stream.
const ULPDU_HEAD_LEN: usize = ddp::UNTAGGED_LEN + HEADER_LEN_MIN;
/// Octets of an FPDU before the Payload stream.
const HEAD_LEN: usize = mpa::LENGTH_LEN + ULPDU_HEAD_LEN;
/// Octets of an FPDU at most.
pub(super) const FPDU_LEN_MAX: usize = mpa::fpdu_len(ULPDU_HEAD_LEN + PLAIN_LEN_MAX);
/// Octets of the buffer: some eighty NULL Calls. A fuller one leaves before the end of the pass.
pub(super) const BUILT_LEN: usize = 8192;

/// Octets of an FPDU before a message that is built whole, header included.
const MESSAGE_AT: usize = mpa::LENGTH_LEN + ddp::UNTAGGED_LEN;
/// Octets that are built of an FPDU at most, if the rest of it lies elsewhere.
const GATHERED_FPDU_LEN_MAX: usize =
    mpa::fpdu_len(ddp::UNTAGGED_LEN + GATHERED_LEN_MAX) + mpa::TRAILER_LEN_MAX;
/// Octets of them together, before what is built leaves: a peer that takes nothing holds so much of a store's memory, and one piece.
const PIECES_LEN_MAX: usize = 128 * 1024;
/// Octets of an RDMA Write's FPDU before its data.
const WRITE_HEAD_LEN: usize = mpa::LENGTH_LEN + ddp::TAGGED_LEN;
/// Octets that are left free for an RDMA Write's FPDU before a whole message: its head and its CRC.
const WRITE_LEN: usize = WRITE_HEAD_LEN + mpa::CRC_LEN;
/// Octets of the FPDU of a whole message at most.
pub(super) const WHOLE_FPDU_LEN_MAX: usize = mpa::fpdu_len(ddp::UNTAGGED_LEN + WHOLE_LEN_MAX);
/// Octets that are built of both at most, with the padding behind the Write's data.
const WHOLE_ROOM: usize = WRITE_HEAD_LEN + mpa::TRAILER_LEN_MAX + WHOLE_FPDU_LEN_MAX;

/// FPDUs of one queue pair that the socket has not taken, or not all of them.
pub(super) struct Built {
    octets: Box<[u8]>,
    /// Octets of whole FPDUs, without the pieces.
    len: usize,
    /// Octets that the socket has taken, of both: fewer than all or none.
    at: usize,
    count: u32,
    /// Room that there must be for the next message.
    room_min: usize,
    /// Memory that goes between the octets, each with the octets that come before it.
    pieces: Vec<(usize, Shared)>,
    /// Octets of all pieces.
    pieces_len: usize,
}

impl Built {
    /// `gathers`: its messages may have memory behind them.
    pub(super) fn new(gathers: bool) -> Built {
        Built {
            octets: vec![0; BUILT_LEN].into(),
            len: 0,
            at: 0,
            count: 0,
            room_min: if gathers { GATHERED_FPDU_LEN_MAX } else { FPDU_LEN_MAX },
            pieces: Vec::with_capacity(BUILT_PIECES_MAX),
            pieces_len: 0,
        }
    }

    /// Octets of heap of one.
    pub(super) const FOOTPRINT: usize = BUILT_LEN + BUILT_PIECES_MAX * size_of::<(usize, Shared)>();

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the longest message still fits.
    #[inline(always)]
    pub(super) fn has_room(&self) -> bool {
        self.octets.len() - self.len >= self.room_min
    }

    /// Whether no other message fits.
    #[inline(always)]
    pub(super) fn is_full(&self) -> bool {
        !self.has_room() || self.has_pieces() && !self.has_room_to_gather()
    }

    /// Whether the longest message with memory behind it still fits, on a queue pair that has such messages.
    #[inline]
    pub(super) fn has_room_to_gather(&self) -> bool {
        self.has_room()
            && self.pieces.len() + GATHERED_PIECES_MAX <= BUILT_PIECES_MAX
            && self.pieces_len < PIECES_LEN_MAX
    }

    /// Whether the longest whole message still fits, with an RDMA Write before it.
    #[inline]
    pub(super) fn has_room_for_whole(&self) -> bool {
        self.octets.len() - self.len >= WHOLE_ROOM
            && self.pieces.len() < BUILT_PIECES_MAX
            && self.pieces_len < PIECES_LEN_MAX
    }

    /// Whether pieces of memory are among the FPDUs.
    #[inline(always)]
    pub(super) fn has_pieces(&self) -> bool {
        self.pieces_len > 0
    }

    /// Where the next whole message is built. There is room (see [`Built::has_room_for_whole`]).
    #[inline]
    pub(super) fn whole_space(&mut self) -> &mut [u8] {
        &mut self.octets[self.len + WRITE_LEN + MESSAGE_AT..][..WHOLE_LEN_MAX]
    }

    /// Makes FPDUs of the first `len` octets of that space, with which `invalidate` dies at the peer, and of an RDMA Write before
    /// it. Returns the octets of each.
    #[inline]
    pub(super) fn push_whole(
        &mut self,
        msn: u32,
        len: usize,
        invalidate: Option<Handle>,
        write: Option<(Shared, RemoteSegment)>,
        crc: bool,
    ) -> (usize, usize) {
        assert!((1..=WHOLE_LEN_MAX).contains(&len), "a message of {len} octets");
        let built_at = self.len + WRITE_LEN + MESSAGE_AT;
        let write_len = write.map_or(0, |(source, target)| self.push_write(source, target, crc));
        let begin = self.len;
        if begin + MESSAGE_AT != built_at {
            self.octets.copy_within(built_at..built_at + len, begin + MESSAGE_AT);
        }
        let ulpdu_len = ddp::UNTAGGED_LEN + len;
        let fpdu = &mut self.octets[begin..][..mpa::fpdu_len(ulpdu_len)];
        let (covered, trailer) = fpdu.split_at_mut(mpa::fpdu_len(ulpdu_len) - mpa::CRC_LEN);
        covered[..mpa::LENGTH_LEN].copy_from_slice(&(ulpdu_len as u16).to_be_bytes());
        let (opcode, ulp) = match invalidate {
            None => (Opcode::Send, 0),
            Some(Handle(stag)) => (Opcode::SendInvalidate, stag),
        };
        let control = opcode.to_control();
        let header = Untagged { last: true, control, ulp, queue: queue::SEND, msn, offset: 0 };
        covered[mpa::LENGTH_LEN..MESSAGE_AT].copy_from_slice(&header.to_wire());
        covered[MESSAGE_AT + len..].fill(0);
        let sum = if crc { crc32c(covered) } else { 0 };
        trailer.copy_from_slice(&sum.to_le_bytes());
        self.len += mpa::fpdu_len(ulpdu_len);
        self.count += 1;
        (write_len, mpa::fpdu_len(ulpdu_len))
    }

    /// Makes an FPDU of an RDMA Write of all of `source`, and returns its octets.
    #[inline]
    fn push_write(&mut self, source: Shared, target: RemoteSegment, crc: bool) -> usize {
        let ulpdu_len = ddp::TAGGED_LEN + source.len();
        let pad_len = mpa::pad_len(ulpdu_len);
        let (head, trailer) =
            self.octets[self.len..][..WRITE_HEAD_LEN + pad_len + mpa::CRC_LEN].split_at_mut(WRITE_HEAD_LEN);
        head[..mpa::LENGTH_LEN].copy_from_slice(&(ulpdu_len as u16).to_be_bytes());
        let control = Opcode::Write.to_control();
        let header = Tagged { last: true, control, stag: target.handle.0, offset: target.offset };
        head[mpa::LENGTH_LEN..].copy_from_slice(&header.to_wire());
        let (pad, sum) = trailer.split_at_mut(pad_len);
        pad.fill(0);
        let value = if crc { Crc::START.update(head).update(&source).update(pad).finish() } else { 0 };
        sum.copy_from_slice(&value.to_le_bytes());
        let at = self.len + WRITE_HEAD_LEN;
        self.len = at + pad_len + mpa::CRC_LEN;
        self.count += 1;
        self.pieces_len += source.len();
        self.pieces.push((at, source));
        mpa::fpdu_len(ulpdu_len)
    }

    /// Where the next message with memory behind it is built. There is room (see [`Built::has_room_to_gather`]).
    #[inline]
    pub(super) fn gather_space(&mut self) -> &mut [u8] {
        &mut self.octets[self.len + MESSAGE_AT..][..GATHERED_LEN_MAX]
    }

    /// Makes an FPDU around the first `len` octets of that space, and `pieces` behind them. Returns its octets.
    #[inline]
    pub(super) fn push_gathered(
        &mut self,
        msn: u32,
        len: usize,
        pieces: &mut GatheredPieces,
        crc: bool,
    ) -> usize {
        assert!((1..=GATHERED_LEN_MAX).contains(&len), "a message that begins with {len} octets");
        let data_len: usize = pieces.iter().map(|piece| piece.len()).sum();
        let ulpdu_len = ddp::UNTAGGED_LEN + len + data_len;
        let head_len = MESSAGE_AT + len;
        let pad_len = mpa::pad_len(ulpdu_len);
        let (head, trailer) =
            self.octets[self.len..][..head_len + pad_len + mpa::CRC_LEN].split_at_mut(head_len);
        head[..mpa::LENGTH_LEN].copy_from_slice(&(ulpdu_len as u16).to_be_bytes());
        let control = Opcode::Send.to_control();
        let header = Untagged { last: true, control, ulp: 0, queue: queue::SEND, msn, offset: 0 };
        head[mpa::LENGTH_LEN..MESSAGE_AT].copy_from_slice(&header.to_wire());
        let (pad, sum) = trailer.split_at_mut(pad_len);
        pad.fill(0);
        let mut value = 0;
        if crc {
            let covered = pieces.iter().fold(Crc::START.update(head), |crc, piece| crc.update(piece));
            value = covered.update(pad).finish();
        }
        sum.copy_from_slice(&value.to_le_bytes());
        let at = self.len + head_len;
        self.len = at + pad_len + mpa::CRC_LEN;
        self.count += 1;
        self.pieces_len += data_len;
        self.pieces.extend(pieces.drain(..).filter(|piece| !piece.is_empty()).map(|piece| (at, piece)));
        mpa::fpdu_len(ulpdu_len)
    }

    /// Octets that the socket has not taken, pieces included.
    #[inline]
    pub(super) fn rest_len(&self) -> usize {
        self.len + self.pieces_len - self.at
    }

    /// Adds what the socket has not taken to the pieces of a system call.
    pub(super) fn gather(&self, scratch: &mut Scratch) {
        let mut skip = self.at;
        let mut add = |octets: &[u8]| {
            let skipped = skip.min(octets.len());
            skip -= skipped;
            if skipped < octets.len() {
                scratch.refer(octets[skipped..].as_ptr(), octets.len() - skipped);
            }
        };
        let mut begin = 0;
        for (at, piece) in &self.pieces {
            add(&self.octets[begin..*at]);
            add(piece);
            begin = *at;
        }
        add(&self.octets[begin..self.len]);
    }

    /// Where the next Payload stream is built. There is room (see [`Built::has_room`]).
    #[inline(always)]
    pub(super) fn space(&mut self) -> &mut [u8] {
        &mut self.octets[self.len + HEAD_LEN..][..PLAIN_LEN_MAX]
    }

    /// Makes an FPDU around the first `len` octets of the space, and returns its octets.
    #[inline(always)]
    pub(super) fn push(&mut self, msn: u32, credits: u32, len: usize, crc: bool) -> usize {
        assert!((4..=PLAIN_LEN_MAX).contains(&len), "a Payload stream of {len} octets");
        let ulpdu_len = ULPDU_HEAD_LEN + len;
        let fpdu = &mut self.octets[self.len..][..mpa::fpdu_len(ulpdu_len)];
        let (covered, trailer) = fpdu.split_at_mut(mpa::fpdu_len(ulpdu_len) - mpa::CRC_LEN);
        let (head, rest) = covered.split_at_mut(HEAD_LEN);
        let (stream, pad) = rest.split_at_mut(len);
        head[..mpa::LENGTH_LEN].copy_from_slice(&(ulpdu_len as u16).to_be_bytes());
        let control = Opcode::Send.to_control();
        let header = Untagged { last: true, control, ulp: 0, queue: queue::SEND, msn, offset: 0 };
        head[mpa::LENGTH_LEN..][..ddp::UNTAGGED_LEN].copy_from_slice(&header.to_wire());
        let xid = stream.first_chunk().map_or(0, |xid| u32::from_be_bytes(*xid));
        let has_room = emit_plain(&mut head[mpa::LENGTH_LEN + ddp::UNTAGGED_LEN..], xid, credits).is_ok();
        debug_assert!(has_room, "the head has room for the header");
        pad.fill(0);
        let crc = if crc { crc32c(covered) } else { 0 };
        trailer.copy_from_slice(&crc.to_le_bytes());
        let fpdu_len = mpa::fpdu_len(ulpdu_len);
        self.len += fpdu_len;
        self.count += 1;
        fpdu_len
    }

    /// What the socket has not taken, if there are no pieces.
    #[inline(always)]
    pub(super) fn rest(&self) -> &[u8] {
        &self.octets[self.at..self.len]
    }

    /// The socket took `count` octets, or more than there are. Returns how many were others', and how many FPDUs are gone.
    #[inline(always)]
    pub(super) fn taken(&mut self, count: usize) -> (usize, u32) {
        let left = self.rest_len();
        if count < left {
            self.at += count;
            return (0, 0);
        }
        let fpdus = self.count;
        self.clear();
        (count - left, fpdus)
    }

    pub(super) fn clear(&mut self) {
        (self.len, self.at, self.count) = (0, 0, 0);
        if self.pieces_len > 0 {
            self.pieces.clear();
            self.pieces_len = 0;
        }
    }

    /// What of an FPDU that has begun to go out has not gone yet.
    pub(super) fn unfinished(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len + self.pieces_len);
        let mut begin = 0;
        for (at, piece) in &self.pieces {
            all.extend_from_slice(&self.octets[begin..*at]);
            all.extend_from_slice(piece);
            begin = *at;
        }
        all.extend_from_slice(&self.octets[begin..self.len]);
        let mut end = 0;
        while end < self.at {
            let Some(length) = all[end..].first_chunk() else { break };
            end += mpa::fpdu_len(usize::from(u16::from_be_bytes(*length)));
        }
        all.truncate(end);
        all.split_off(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stag_wire::ddp::DdpHeader;

    fn build(built: &mut Built, msn: u32, len: usize, crc: bool) -> usize {
        let space = built.space();
        space.fill(0xee);
        (0..len).for_each(|at| space[at] = (at as u8) ^ (msn as u8));
        built.push(msn, 7, len, crc)
    }

    /// 5044-4.4-a, 5041-c: each is what the general way sends, whatever was in the buffer before.
    #[test]
    fn each_is_a_whole_fpdu() {
        for crc in [false, true] {
            let mut built = Built::new(false);
            built.octets.fill(0xee);
            let mut lens = (4..=PLAIN_LEN_MAX).step_by(37);
            let mut total = 0;
            let mut made = Vec::new();
            while built.has_room()
                && let Some(len) = lens.next()
            {
                total += build(&mut built, made.len() as u32 + 1, len, crc);
                made.push(len);
            }
            assert!(made.len() > 10);
            assert_eq!(built.rest().len(), total);
            let mut stream = built.rest().to_vec();
            for (msn, len) in (1u32..).zip(made) {
                let (fpdu, rest) = mpa::Fpdu::parse(&stream).expect("it is whole");
                assert_eq!(if crc { crc32c(fpdu.covered) } else { 0 }, fpdu.crc);
                assert!(fpdu.covered[mpa::LENGTH_LEN + fpdu.ulpdu.len()..].iter().all(|&octet| octet == 0));
                let (header, payload) = DdpHeader::parse(fpdu.ulpdu).expect("it is a segment");
                let control = Opcode::Send.to_control();
                let expected = Untagged { last: true, control, ulp: 0, queue: 0, msn, offset: 0 };
                assert_eq!(header, DdpHeader::Untagged(expected));
                let mut message = vec![0; HEADER_LEN_MIN];
                let first = payload[HEADER_LEN_MIN..].first_chunk().expect("an xid");
                emit_plain(&mut message, u32::from_be_bytes(*first), 7).expect("it has room");
                message.extend((0..len).map(|at| (at as u8) ^ (msn as u8)));
                assert_eq!(payload, message);
                stream = rest.to_vec();
            }
            assert!(stream.is_empty());
        }
    }

    /// However many octets a socket takes at once, the rest of an FPDU that has begun is known.
    #[test]
    fn what_is_unfinished_ends_with_its_fpdu() {
        for taken in 0..=300 {
            let mut built = Built::new(false);
            let ends = [40, 60, 100].map(|len| build(&mut built, 1, len, true));
            let ends = [0, ends[0], ends[0] + ends[1], ends.iter().sum()];
            let all = built.rest().to_vec();
            let (others, fpdus) = built.taken(taken);
            if taken >= all.len() {
                assert_eq!((others, fpdus, built.is_empty()), (taken - all.len(), 3, true));
                assert!(built.unfinished().is_empty());
                continue;
            }
            assert_eq!((others, fpdus, built.rest()), (0, 0, &all[taken..]));
            let end = ends.into_iter().find(|&end| end >= taken).expect("it is before the last end");
            assert_eq!(built.unfinished(), all[taken..end], "{taken} were taken");
        }
    }
}
