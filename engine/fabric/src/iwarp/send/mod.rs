//! The sending half of a queue pair: work requests and Read Responses become FPDUs, FPDUs become system calls.
//!
//! Requests wait in `work`, the peer's Reads in `responses`. [`Tx::flush`] turns their heads into FPDUs, alternating between the
//! two, and gives as many as fit to one `sendmsg`: headers and small payloads are copied together, large payloads are sent from
//! where they are ([`gather`]). What the socket does not take stays as it is, CRC included. A request is done when the socket has
//! taken its last octet (a Read: when its last Response came, [`reads`]).
//!
//! A message without chunks needs no request if nothing waits before it: it is [`built`] as an FPDU at once.

mod built;
mod gather;
mod reads;

use std::collections::VecDeque;
use std::slice;

use stag_memory::{Buf, Shared};
use stag_wire::ddp::{self, Tagged, Untagged};
use stag_wire::mpa;
use stag_wire::rdmap::{self, Opcode, queue};
use stag_wire::rpcrdma::HEADER_LEN_MIN;

use super::counters::IwarpCounters;
use super::crc::Crc;
use super::cuts::Cuts;
use super::socket::{Moved, Socket};
use super::terms::Terms;
use crate::{
    Completed, GATHERED_DATA_LEN_MAX, GATHERED_LEN_MAX, GatheredPieces, Handle, MemoryInReach, PLAIN_LEN_MAX,
    QueuePairCapacity, ReadPart, RemoteSegment, WHOLE_LEN_MAX,
};
use built::Built;
use gather::{Ends, FPDUS_MAX, Fpdu, HEAD_LEN_MAX};

pub(super) use gather::Scratch;

/// Octets made into FPDUs before they are given to the socket: what has gone through the CRC is still in the cache then.
const OCTETS_MAX: usize = 256 * 1024;
/// System calls for one queue pair before the next one gets its turn.
const CALLS_MAX: u32 = 32;
/// Read parts that may wait, beyond one for each request.
const PARTS_EXTRA: usize = 4 * crate::READ_PARTS_MAX;
/// Read Requests at once, of either side, that a price is made for: the default of
/// [`IwarpConfig`](super::IwarpConfig).
const READS_MAX: usize = super::config::READS_DEFAULT as usize;
/// The STag of messages of no octets, which peers do not check (siw-10, siw-16).
const NO_STAG: u32 = 1;

/// The STag under which the Response to a Read Request comes. Good for that alone: only the oldest request is answered, and
/// Writes find no such STag (theirs have the top bit).
#[inline]
fn sink_stag(msn: u32) -> u32 {
    msn & !(1 << 31)
}

/// What a request is, and what it holds meanwhile.
pub(super) enum Payload {
    Send {
        buf: Buf,
        invalidate: Option<Handle>,
    },
    Write {
        source: Shared,
        target: RemoteSegment,
    },
    Read {
        target: Buf,
        /// Parts that were not asked for yet.
        to_ask: u32,
        /// Parts whose data is not there yet.
        to_come: u32,
    },
}

/// A posted Send, Write or Read.
pub(super) struct Work {
    pub(super) id: u64,
    pub(super) signaled: bool,
    is_done: bool,
    payload: Payload,
}

impl Work {
    #[inline(always)]
    pub(super) fn new(id: u64, signaled: bool, payload: Payload) -> Work {
        Work { id, signaled, is_done: false, payload }
    }

    /// What it gives back.
    #[inline(always)]
    pub(super) fn completed(self) -> Completed {
        match self.payload {
            Payload::Send { buf, .. } => Completed::Send(buf),
            Payload::Write { source, .. } => Completed::Write(source),
            Payload::Read { target, .. } => Completed::Read(target),
        }
    }
}

/// A Read Request of ours that is on its way.
struct Asked {
    /// Which request; `None`: the one that only made the peer ready.
    work: Option<u64>,
    msn: u32,
    at: u32,
    len: u32,
    /// Octets that came.
    got: u32,
}

/// A Read Request of the peer that has to be answered.
struct Response {
    /// `None`: no octets were asked for.
    source: Option<Shared>,
    sink_stag: u32,
    sink_offset: u64,
}

/// The RDMA Write that goes out before an answer, while that is made.
pub(super) struct AnswersWrite {
    /// Octets of a tagged segment at most; 0: there is no Write.
    len_max: u32,
    cuts: Cuts,
    made: Option<(Shared, RemoteSegment)>,
}

impl MemoryInReach for AnswersWrite {
    /// What is not here yet cannot be read at once.
    fn read(&mut self, _target: &mut Buf, _parts: &[ReadPart]) -> bool {
        false
    }

    #[inline]
    fn write(&mut self, source: &Shared, target: RemoteSegment) -> bool {
        let len = source.len();
        if len == 0 || len > (self.len_max as usize).min(GATHERED_DATA_LEN_MAX) || self.made.is_some() {
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
        self.made = Some((source.clone(), target));
        true
    }
}

/// What became of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// All that may go out has gone.
    All,
    /// The socket is full.
    Blocked,
    /// There is more, but others want their turn.
    More,
    /// The connection is lost.
    Lost,
}

/// The sending half.
pub(super) struct Tx {
    /// Requests, the oldest first; `first` is its sequence number.
    work: VecDeque<Work>,
    first: u64,
    /// The first request that is not wholly made into FPDUs, and how many octets of it are.
    next: u64,
    next_at: u32,
    /// Parts of Reads that were not asked for yet, in order.
    parts: VecDeque<ReadPart>,
    asked: VecDeque<Asked>,
    responses: VecDeque<Response>,
    /// Responses that are wholly made into FPDUs, and how many octets of the next one are.
    responses_made: usize,
    response_at: u32,
    fpdus: VecDeque<Fpdu>,
    /// Octets of the oldest FPDU that the socket has taken.
    fpdu_at: usize,
    /// Messages that leave before the FPDUs: none joins them while there are FPDUs.
    built: Built,
    /// Messages that are built in place fit in what is agreed on.
    builds: bool,
    /// So do whole messages, with their headers.
    builds_whole: bool,
    /// And messages with memory behind what is built.
    gathers: bool,
    send_msn: u32,
    read_msn: u32,
    /// It is the responses' turn.
    responses_turn: bool,
    waits: bool,
    crc: bool,
    cuts: Cuts,
    ird: u32,
    ord: u32,
    tagged_len_max: u32,
    untagged_len_max: u32,
}

impl Tx {
    pub(super) fn new(capacity: &QueuePairCapacity) -> Tx {
        let sends = capacity.sends as usize;
        Tx {
            work: VecDeque::with_capacity(sends),
            first: 0,
            next: 0,
            next_at: 0,
            parts: VecDeque::with_capacity(sends + PARTS_EXTRA),
            asked: VecDeque::new(),
            responses: VecDeque::new(),
            responses_made: 0,
            response_at: 0,
            fpdus: VecDeque::with_capacity(FPDUS_MAX),
            fpdu_at: 0,
            built: Built::new(capacity.receive_targets > 0),
            builds: false,
            builds_whole: false,
            gathers: false,
            send_msn: 1,
            read_msn: 1,
            responses_turn: false,
            waits: true,
            crc: true,
            cuts: Cuts::default(),
            ird: 0,
            ord: 0,
            tagged_len_max: 8,
            untagged_len_max: 8,
        }
    }

    /// Octets of heap of its queues, all full, at the largest IRD and ORD.
    pub(super) fn footprint(capacity: &QueuePairCapacity) -> usize {
        let sends = capacity.sends as usize;
        sends * size_of::<Work>()
            + (sends + PARTS_EXTRA) * size_of::<ReadPart>()
            + (READS_MAX + 1) * size_of::<Asked>()
            + READS_MAX * size_of::<Response>()
            + FPDUS_MAX * size_of::<Fpdu>()
            + Built::FOOTPRINT
    }

    pub(super) fn agree(&mut self, terms: &Terms, send_len_max: u32) {
        self.crc = terms.crc;
        self.cuts = Cuts::new(terms.crc, terms.segment_len);
        self.waits = terms.waits;
        (self.ird, self.ord) = (terms.ird, terms.ord);
        // Multiples of 8, as siw cuts them: payloads stay aligned.
        let room = |header: usize| (terms.ulpdu_len_max.clamp(128, mpa::ULPDU_LEN_MAX) - header) as u32 & !7;
        (self.tagged_len_max, self.untagged_len_max) = (room(ddp::TAGGED_LEN), room(ddp::UNTAGGED_LEN));
        let message_len_max = (HEADER_LEN_MIN + PLAIN_LEN_MAX) as u32;
        self.builds = message_len_max <= self.untagged_len_max.min(send_len_max);
        self.builds_whole = WHOLE_LEN_MAX as u32 <= self.untagged_len_max.min(send_len_max);
        self.gathers = self.untagged_len_max as usize >= GATHERED_LEN_MAX + GATHERED_DATA_LEN_MAX;
        self.asked.reserve_exact(terms.ord as usize + 1);
        self.responses.reserve_exact(terms.ird as usize);
    }

    /// The peer sent something: the accepting side may send now (5044-7.1-f). `true`: that is news.
    #[inline]
    pub(super) fn hear(&mut self) -> bool {
        std::mem::replace(&mut self.waits, false)
    }

    #[inline]
    pub(super) fn post(&mut self, work: Work) {
        self.work.push_back(work);
    }

    pub(super) fn may_read(&self) -> bool {
        self.ord > 0
    }

    pub(super) fn has_room_for_parts(&self, count: usize) -> bool {
        self.parts.len() + count <= self.parts.capacity()
    }

    #[inline]
    pub(super) fn post_read(&mut self, id: u64, target: Buf, parts: &[ReadPart]) {
        self.parts.extend(parts);
        let count = parts.len() as u32;
        let payload = Payload::Read { target, to_ask: count, to_come: count };
        self.post(Work { id, signaled: true, is_done: count == 0, payload });
    }

    /// Answers a Read Request of the peer; there is room (see [`Tx::is_responding_full`]).
    #[inline]
    pub(super) fn respond(&mut self, source: Option<Shared>, sink_stag: u32, sink_offset: u64) {
        self.responses.push_back(Response { source, sink_stag, sink_offset });
    }

    /// Whether no message has begun to go out: another one may come between.
    pub(super) fn is_between(&self) -> bool {
        self.next_at == 0 && self.response_at == 0
    }

    pub(super) fn uses_crc(&self) -> bool {
        self.crc
    }

    /// Whether Read Responses of ours wait, so that more Read Requests would be too many.
    #[inline]
    pub(super) fn is_responding_full(&self) -> bool {
        self.responses.len() >= self.ird as usize
    }

    /// Whether there is something to send, and it may be sent.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        !self.fpdus.is_empty()
            || !self.built.is_empty()
            || !self.waits
                && (self.responses_made < self.responses.len()
                    || self.next < self.first + self.work.len() as u64 && !self.is_out_of_ord())
    }

    /// The next request is a Read, and the peer takes no more for now.
    fn is_out_of_ord(&self) -> bool {
        self.asked.len() >= self.ord as usize
            && matches!(
                self.work.get((self.next - self.first) as usize),
                Some(Work { payload: Payload::Read { to_ask: 1.., .. }, .. })
            )
    }

    /// The oldest request, if it is done.
    #[inline]
    pub(super) fn take_done(&mut self) -> Option<Work> {
        if !self.work.front()?.is_done {
            return None;
        }
        self.first += 1;
        // A Read of no parts is done before its turn has come.
        self.next = self.next.max(self.first);
        self.work.pop_front()
    }

    /// The oldest request, done or not, with its sequence number: for the end of the connection.
    pub(super) fn take_any(&mut self) -> Option<(u64, Work)> {
        let work = self.work.pop_front()?;
        self.first += 1;
        self.next = self.next.max(self.first);
        Some((self.first - 1, work))
    }

    /// Forgets all unsent FPDUs, before the memory they refer to is given back.
    pub(super) fn forget_emitted(&mut self) {
        self.built.clear();
        self.fpdus.clear();
        self.fpdu_at = 0;
        self.responses.clear();
        self.responses_made = 0;
        self.response_at = 0;
        self.asked.clear();
        self.parts.clear();
    }

    /// What of an FPDU that has begun to go out has not gone yet: the peer needs it to find the next one.
    pub(super) fn unfinished(&self) -> Vec<u8> {
        if !self.built.is_empty() {
            return self.built.unfinished();
        }
        let Some(fpdu) = self.fpdus.front() else { return Vec::new() };
        if self.fpdu_at == 0 {
            return Vec::new();
        }
        let mut octets = Vec::with_capacity(fpdu.len());
        octets.extend_from_slice(&fpdu.head[..usize::from(fpdu.head_len)]);
        if fpdu.payload_len > 0 {
            // SAFETY: readable, and not written (invariant of `Fpdu`).
            octets
                .extend_from_slice(unsafe { slice::from_raw_parts(fpdu.payload, fpdu.payload_len as usize) });
        }
        octets.extend_from_slice(&fpdu.trailer[..usize::from(fpdu.trailer_len)]);
        octets.split_off(self.fpdu_at.min(octets.len()))
    }

    /// Where a message without chunks can be built; `None`: it has to be posted, behind what waits.
    #[inline(always)]
    pub(super) fn plain_space(&mut self) -> Option<&mut [u8]> {
        let may_build = self.builds
            && !self.waits
            && self.fpdus.is_empty()
            && self.next == self.first + self.work.len() as u64
            && self.built.has_room()
            && self.cuts.has_room(built::FPDU_LEN_MAX);
        may_build.then(|| self.built.space())
    }

    /// Makes an FPDU of the first `len` octets of the space given last.
    #[inline(always)]
    pub(super) fn send_plain(&mut self, credits: u32, len: usize) {
        let fpdu_len = self.built.push(self.send_msn, credits, len, self.crc);
        self.send_msn = self.send_msn.wrapping_add(1);
        self.cuts.laid(fpdu_len);
    }

    /// Whether a whole message can be built; `false`: it has to be posted, behind what waits.
    #[inline]
    fn may_build_whole(&self) -> bool {
        self.builds_whole
            && !self.waits
            && self.fpdus.is_empty()
            && self.next == self.first + self.work.len() as u64
            && self.built.has_room_for_whole()
            && self.cuts.has_room(built::WHOLE_FPDU_LEN_MAX)
    }

    /// Where a whole message can be built, with its header; `None`: it has to be posted, behind what waits.
    #[inline]
    pub(super) fn whole_space(&mut self) -> Option<&mut [u8]> {
        self.may_build_whole().then(|| self.built.whole_space())
    }

    /// Makes an FPDU of the first `len` octets of the space given last.
    #[inline]
    pub(super) fn send_exposing(&mut self, len: usize) {
        let (_, fpdu_len) = self.built.push_whole(self.send_msn, len, None, None, self.crc);
        self.send_msn = self.send_msn.wrapping_add(1);
        self.cuts.laid(fpdu_len);
    }

    /// As [`Tx::whole_space`], for an answer before which an RDMA Write may go out.
    #[inline]
    pub(super) fn answer_space(&mut self) -> (Option<&mut [u8]>, AnswersWrite) {
        // Segments of two tagged messages are not mixed (siw-12): a Response that has begun comes first.
        let is_possible = self.may_build_whole() && self.response_at == 0;
        let len_max = if is_possible { self.tagged_len_max } else { 0 };
        let write = AnswersWrite { len_max, cuts: self.cuts, made: None };
        (is_possible.then(|| self.built.whole_space()), write)
    }

    /// Makes FPDUs of the first `len` octets of the space given last, with which `invalidate` dies at the peer, and of the RDMA
    /// Write before it.
    #[inline]
    pub(super) fn send_whole(&mut self, len: usize, invalidate: Option<Handle>, write: AnswersWrite) {
        let (write_len, fpdu_len) =
            self.built.push_whole(self.send_msn, len, invalidate, write.made, self.crc);
        self.send_msn = self.send_msn.wrapping_add(1);
        self.cuts.laid(write_len);
        self.cuts.laid(fpdu_len);
    }

    /// Where a message with memory behind it can be built; `None`: it has to be posted, behind what waits.
    #[inline]
    pub(super) fn gather_space(&mut self) -> Option<&mut [u8]> {
        let may_build = self.gathers
            && !self.waits
            && self.fpdus.is_empty()
            && self.next == self.first + self.work.len() as u64
            && self.built.has_room_to_gather();
        may_build.then(|| self.built.gather_space())
    }

    /// Makes an FPDU of the first `len` octets of the space given last, and of `pieces` behind them. Their sender keeps to
    /// what the peer takes; a CRC across two TCP segments is nothing to a peer that such messages go to (siw-23 is of siw).
    #[inline]
    pub(super) fn send_gathered(&mut self, len: usize, pieces: &mut GatheredPieces) {
        let fpdu_len = self.built.push_gathered(self.send_msn, len, pieces, self.crc);
        self.send_msn = self.send_msn.wrapping_add(1);
        self.cuts.laid(fpdu_len);
    }

    /// Whether there is no place to build another message before those that are built have left.
    #[inline(always)]
    pub(super) fn is_built_full(&self) -> bool {
        !self.built.is_empty() && (self.built.is_full() || !self.cuts.has_room(built::FPDU_LEN_MAX))
    }

    /// Makes an FPDU. `head` is what follows ULPDU_Length; `payload` as in the invariant of [`Fpdu`].
    #[inline(always)]
    fn make<const HEAD: usize>(
        &mut self,
        head: &[u8; HEAD],
        payload: *const u8,
        payload_len: u32,
        ends: Ends,
    ) {
        let ulpdu_len = HEAD + payload_len as usize;
        let pad_len = mpa::pad_len(ulpdu_len);
        let mut fpdu = Fpdu {
            head: [0; HEAD_LEN_MAX],
            head_len: (mpa::LENGTH_LEN + HEAD) as u8,
            trailer: [0; mpa::TRAILER_LEN_MAX],
            trailer_len: (pad_len + mpa::CRC_LEN) as u8,
            payload_len,
            payload,
            ends,
        };
        fpdu.head[..mpa::LENGTH_LEN].copy_from_slice(&(ulpdu_len as u16).to_be_bytes());
        fpdu.head[mpa::LENGTH_LEN..mpa::LENGTH_LEN + HEAD].copy_from_slice(head);
        if self.crc {
            let mut crc = Crc::START.update(&fpdu.head[..mpa::LENGTH_LEN + HEAD]);
            if payload_len > 0 {
                // SAFETY: readable, and not written (invariant of `Fpdu`).
                crc = crc.update(unsafe { slice::from_raw_parts(payload, payload_len as usize) });
            }
            let crc = crc.update(&fpdu.trailer[..pad_len]).finish();
            fpdu.trailer[pad_len..pad_len + mpa::CRC_LEN].copy_from_slice(&crc.to_le_bytes());
        }
        self.cuts.laid(fpdu.len());
        self.fpdus.push_back(fpdu);
    }

    /// Makes a message of no octets and no meaning: it makes the peer ready, or shows it that more came (siw-10).
    pub(super) fn nudge(&mut self) {
        let control = Opcode::Write.to_control();
        let header = Tagged { last: true, control, stag: NO_STAG, offset: 0 }.to_wire();
        self.make(&header, std::ptr::null(), 0, Ends::Nothing);
    }

    /// Makes the message that the peer waits for before it sends (6581-9-c).
    pub(super) fn make_ready(&mut self, kind: mpa::ReadyToReceive) {
        if kind.write || !kind.read && !kind.send {
            self.nudge();
        } else if kind.read {
            self.ask(
                None,
                ReadPart { at: 0, len: 0, source: RemoteSegment { handle: Handle(NO_STAG), offset: 0 } },
            );
        } else {
            let control = Opcode::Send.to_control();
            let header =
                Untagged { last: true, control, ulp: 0, queue: queue::SEND, msn: self.send_msn, offset: 0 };
            self.send_msn = self.send_msn.wrapping_add(1);
            self.make(&header.to_wire(), std::ptr::null(), 0, Ends::Nothing);
        }
    }

    /// Makes FPDUs of what waits: as many as one system call should carry. Requests and Responses alternate, but segments
    /// of two tagged messages are not mixed (siw-12): a Write waits for a Response that has begun, and the other way round.
    #[inline]
    fn fill(&mut self) {
        if self.waits {
            return;
        }
        let mut octets = 0;
        while self.fpdus.len() < FPDUS_MAX && octets < OCTETS_MAX {
            let made = if self.responses.is_empty() {
                self.make_request()
            } else {
                self.responses_turn = !self.responses_turn;
                if self.responses_turn {
                    self.make_response().or_else(|| self.make_request())
                } else {
                    self.make_request().or_else(|| self.make_response())
                }
            };
            match made {
                Some(len) => octets += len,
                None => break,
            }
        }
    }

    /// Makes the next FPDU of the next request, and returns its octets.
    #[inline]
    fn make_request(&mut self) -> Option<usize> {
        loop {
            let work = self.work.get_mut((self.next - self.first) as usize)?;
            let sequence = self.next;
            let at = self.next_at;
            match &mut work.payload {
                Payload::Send { buf, invalidate } => {
                    let len = (buf.len() as u32 - at).min(self.untagged_len_max);
                    let len = self.cuts.fit(ddp::UNTAGGED_LEN, len);
                    let last = at + len == buf.len() as u32;
                    let (opcode, ulp) = match *invalidate {
                        None => (Opcode::Send, 0),
                        Some(Handle(stag)) => (Opcode::SendInvalidate, stag),
                    };
                    let (control, queue, msn) = (opcode.to_control(), queue::SEND, self.send_msn);
                    let header = Untagged { last, control, ulp, queue, msn, offset: at }.to_wire();
                    let place = buf.as_ptr().wrapping_add(at as usize);
                    let ends = if last { Ends::Work(sequence) } else { Ends::Nothing };
                    self.advance(last, len);
                    self.send_msn = self.send_msn.wrapping_add(u32::from(last));
                    self.make(&header, place, len, ends);
                    return Some(header.len() + len as usize);
                }
                Payload::Write { source, target } => {
                    if self.response_at > 0 {
                        return None;
                    }
                    let len = (source.len() as u32 - at).min(self.tagged_len_max);
                    let len = self.cuts.fit(ddp::TAGGED_LEN, len);
                    let last = at + len == source.len() as u32;
                    let control = Opcode::Write.to_control();
                    let offset = target.offset.wrapping_add(u64::from(at));
                    let header = Tagged { last, control, stag: target.handle.0, offset }.to_wire();
                    let place = source.as_ptr().wrapping_add(at as usize);
                    let ends = if last { Ends::Work(sequence) } else { Ends::Nothing };
                    self.advance(last, len);
                    self.make(&header, place, len, ends);
                    return Some(header.len() + len as usize);
                }
                Payload::Read { to_ask: 0, .. } => self.next += 1,
                Payload::Read { to_ask, .. } => {
                    if self.asked.len() >= self.ord as usize {
                        return None;
                    }
                    let part = self.parts.pop_front()?;
                    *to_ask -= 1;
                    self.next += u64::from(*to_ask == 0);
                    self.ask(Some(sequence), part);
                    return Some(HEAD_LEN_MAX);
                }
            }
        }
    }

    #[inline(always)]
    fn advance(&mut self, last: bool, len: u32) {
        if last {
            self.next += 1;
            self.next_at = 0;
        } else {
            self.next_at += len;
        }
    }

    /// Makes a Read Request.
    fn ask(&mut self, work: Option<u64>, part: ReadPart) {
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
        self.make(&head, std::ptr::null(), 0, Ends::Nothing);
    }

    /// Makes the next FPDU of the next Read Response, and returns its octets.
    #[inline]
    fn make_response(&mut self) -> Option<usize> {
        let in_write = self.next_at > 0
            && matches!(
                self.work.get((self.next - self.first) as usize),
                Some(Work { payload: Payload::Write { .. }, .. })
            );
        if in_write {
            return None;
        }
        let response = self.responses.get(self.responses_made)?;
        let at = self.response_at;
        let (from, all) =
            response.source.as_ref().map_or((std::ptr::null(), 0), |s| (s.as_ptr(), s.len() as u32));
        let len = self.cuts.fit(ddp::TAGGED_LEN, (all - at).min(self.tagged_len_max));
        let last = at + len == all;
        let control = Opcode::ReadResponse.to_control();
        let offset = response.sink_offset.wrapping_add(u64::from(at));
        let header = Tagged { last, control, stag: response.sink_stag, offset }.to_wire();
        let place = from.wrapping_add(at as usize);
        let ends = if last { Ends::Response } else { Ends::Nothing };
        if last {
            self.responses_made += 1;
            self.response_at = 0;
        } else {
            self.response_at += len;
        }
        self.make(&header, place, len, ends);
        Some(header.len() + len as usize)
    }

    /// Gives all that may go out to the socket, as far as that takes it.
    #[inline]
    pub(super) fn flush(
        &mut self,
        socket: &Socket,
        scratch: &mut Scratch,
        counters: &mut IwarpCounters,
    ) -> Flushed {
        for _ in 0..CALLS_MAX {
            self.fill();
            if self.fpdus.is_empty() && self.built.is_empty() {
                return Flushed::All;
            }
            counters.send_calls += 1;
            let apart = self.cuts.matter();
            let (total, moved) = if self.fpdus.is_empty() && !self.built.has_pieces() {
                let built = self.built.rest();
                (built.len(), socket.send(built, apart))
            } else {
                self.gather(scratch);
                let total = scratch.pieces.iter().map(|piece| piece.iov_len).sum();
                // SAFETY: the pieces are in the scratch memory, in `built` or memory that it shares, or the payloads of FPDUs,
                // which are not written (invariant of `Fpdu`); all of them stay over the call.
                (total, unsafe { socket.send_pieces(&scratch.pieces, apart) })
            };
            match moved {
                Moved::Octets(count) => {
                    self.taken(count, counters);
                    if count < total {
                        return Flushed::Blocked;
                    }
                    self.cuts.restart();
                }
                Moved::Nothing => return Flushed::Blocked,
                Moved::End | Moved::Lost => return Flushed::Lost,
            }
        }
        if self.has_work() { Flushed::More } else { Flushed::All }
    }

    /// Puts all that is made into the pieces of one system call.
    #[inline]
    fn gather(&self, scratch: &mut Scratch) {
        scratch.clear();
        if self.built.has_pieces() {
            self.built.gather(scratch);
        } else if !self.built.is_empty() {
            let built = self.built.rest();
            scratch.refer(built.as_ptr(), built.len());
        }
        let mut skip = self.fpdu_at;
        for fpdu in &self.fpdus {
            scratch.add(fpdu, skip);
            skip = 0;
        }
    }

    /// Makes all that may go out into octets, as if a socket had taken them.
    #[cold]
    pub(super) fn drain(&mut self, scratch: &mut Scratch, counters: &mut IwarpCounters) -> Vec<u8> {
        let mut octets = Vec::new();
        loop {
            self.fill();
            if self.fpdus.is_empty() && self.built.is_empty() {
                return octets;
            }
            self.gather(scratch);
            let before = octets.len();
            for piece in &scratch.pieces {
                // SAFETY: as in `flush`.
                octets.extend_from_slice(unsafe {
                    slice::from_raw_parts(piece.iov_base.cast_const().cast(), piece.iov_len)
                });
            }
            self.taken(octets.len() - before, counters);
        }
    }

    /// The socket took `count` octets.
    #[inline]
    fn taken(&mut self, count: usize, counters: &mut IwarpCounters) {
        let (count, built) = self.built.taken(count);
        counters.fpdus_sent += u64::from(built);
        let mut left = self.fpdu_at + count;
        while let Some(fpdu) = self.fpdus.front() {
            let len = fpdu.len();
            if left < len {
                break;
            }
            left -= len;
            counters.fpdus_sent += 1;
            match fpdu.ends {
                Ends::Nothing => {}
                Ends::Work(sequence) => {
                    if let Some(work) = self.work.get_mut((sequence - self.first) as usize) {
                        work.is_done = true;
                    }
                }
                Ends::Response => {
                    self.responses.pop_front();
                    self.responses_made -= 1;
                }
            }
            self.fpdus.pop_front();
        }
        self.fpdu_at = left;
    }
}
