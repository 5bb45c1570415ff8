//! The receiving half of a queue pair: a stream of octets, cut anywhere, becomes placed data and completions.
//!
//! An FPDU that has arrived whole is checked (CRC first), placed and delivered in one go; a message without chunks is shown where
//! it lies, and need not be placed. An FPDU that has arrived in part is taken in three stages, each of which keeps its state and
//! waits for more: the headers; the payload, which is placed as it comes, large ones by the system call itself
//! ([`QueuePair::direct`]); padding and CRC. Only then is anything delivered. So the outcome does not depend on how the stream
//! was cut. The place is looked up again for each piece: memory that was fenced meanwhile is not written (5042-b).

use stag_wire::ddp::{self, DdpHeader, Tagged, Untagged};
use stag_wire::mpa;
use stag_wire::rdmap::{self, Opcode, RdmapReadRequest, Terminate, queue};
use stag_wire::rpcrdma::HEADER_LEN_MIN;

use super::connection::{Phase, QueuePair, Sink};
use super::counters::IwarpCounters;
use super::crc::{Crc, crc32c};
use super::fault::{Access, Fault};
use super::rx::{DIRECT_MIN, INLINE_MAX, Place, Stage};
use super::stags::Invalidated;
use crate::plain::plain_credits;
use crate::{
    Completed, Completion, GatheredPieces, Handle, PlainMessage, ScatteredMessage, TakeShown, Taken,
    WHOLE_LEN_MAX, WholeMessage,
};

/// Why no more is taken from the stream.
#[derive(Debug)]
pub(super) enum Stop {
    /// The peer did something wrong.
    Fault(Fault),
    /// The peer says that we did.
    Terminated(rdmap::Cause, Option<DdpHeader>),
}

impl From<Fault> for Stop {
    #[cold]
    fn from(fault: Fault) -> Stop {
        Stop::Fault(fault)
    }
}

impl QueuePair {
    /// Takes octets of the stream, at least one, up to the end of the first FPDU or of the stage that they go to, and returns the
    /// rest.
    #[inline(always)]
    pub(super) fn take<'a>(
        &mut self,
        octets: &'a [u8],
        sink: &mut Sink<'_>,
        counters: &mut IwarpCounters,
        show: &mut impl TakeShown,
    ) -> Result<&'a [u8], Stop> {
        match self.rx.stage {
            Stage::Head => match self.take_whole(octets, sink, counters, show)? {
                Some(rest) => Ok(rest),
                None if self.rx.hold(octets) => Ok(&[]),
                None => self.take_head(octets),
            },
            Stage::Payload => self.take_payload(octets),
            Stage::Trailer => self.take_trailer(octets, sink, counters),
        }
    }

    /// Takes an FPDU that is there from its first to its last octet. `None`: it is not.
    #[inline(always)]
    fn take_whole<'a>(
        &mut self,
        octets: &'a [u8],
        sink: &mut Sink<'_>,
        counters: &mut IwarpCounters,
        show: &mut impl TakeShown,
    ) -> Result<Option<&'a [u8]>, Stop> {
        if self.rx.head_len > 0 {
            return Ok(None);
        }
        let Ok((fpdu, rest)) = mpa::Fpdu::parse(octets) else { return Ok(None) };
        // Lengths first: what has no room for a header is hopeless, CRC or not.
        let header_len = ddp::header_len(fpdu.covered[mpa::LENGTH_LEN]);
        if fpdu.ulpdu.len() < header_len {
            return Err(Fault::Length.into());
        }
        if self.rx.checks_crc && crc32c(fpdu.covered) != fpdu.crc {
            return Err(Fault::Crc.into());
        }
        let head_len = mpa::LENGTH_LEN + header_len;
        self.rx.head[..head_len].copy_from_slice(&fpdu.covered[..head_len]);
        let (header, payload) = parse(fpdu.ulpdu)?;
        self.begin(header, payload.len() as u32)?;
        if !self.show_in_place(payload, sink, counters, show) {
            self.put(payload)?;
            self.deliver(sink, counters)?;
        }
        Ok(Some(rest))
    }

    /// Shows the user a message that is there as a whole, in the segment that has begun, if it has no chunks. `true`: it was
    /// taken, and its Receive stands for the next one.
    #[inline(always)]
    fn show_in_place(
        &mut self,
        payload: &[u8],
        sink: &mut Sink<'_>,
        counters: &mut IwarpCounters,
        show: &mut impl TakeShown,
    ) -> bool {
        let is_message = matches!(self.rx.place, Place::Receive)
            && self.rx.send_at == 0
            && matches!(self.rx.header, DdpHeader::Untagged(Untagged { last: true, .. }));
        if !is_message {
            return matches!(self.rx.place, Place::Scattered)
                && self.show_scattered(payload, sink, counters, show);
        }
        if !sink.may_show() {
            return false;
        }
        let plain = if self.rx.opcode == Opcode::Send { plain_credits(payload) } else { None };
        let Some(credits) = plain else { return self.show_whole(payload, sink, counters, show) };
        self.hear();
        let (queue_pair, stream) = (self.id, &payload[HEADER_LEN_MIN..]);
        let space = self.plain_space();
        let has_space = space.is_some();
        match show.take_plain(PlainMessage { queue_pair, credits, stream, space }) {
            Taken::No => {
                sink.shows = false;
                return false;
            }
            Taken::Done => {}
            Taken::Answered { credits, len } => {
                assert!(has_space, "an answer of {len} octets without space");
                self.tx.send_plain(credits, len);
            }
            Taken::AnsweredWhole { .. } | Taken::AnsweredGathered { .. } => {
                unreachable!("its Payload stream alone was shown")
            }
        }
        self.note_shown(sink, counters);
        true
    }

    /// As [`QueuePair::show_in_place`], of a message with a Write chunk, or one that ends an exposure of ours.
    // Not inline: it would slow down messages without chunks.
    #[inline(never)]
    fn show_whole(
        &mut self,
        octets: &[u8],
        sink: &mut Sink<'_>,
        counters: &mut IwarpCounters,
        show: &mut impl TakeShown,
    ) -> bool {
        if octets.len() > WHOLE_LEN_MAX || !can_be_answered_at_once(octets) {
            return false;
        }
        let (mut invalidated, mut exposed) = (None, None);
        if self.rx.opcode.invalidates() {
            let DdpHeader::Untagged(Untagged { ulp, .. }) = self.rx.header else { return false };
            match self.stags.invalidate(ulp) {
                Invalidated::Now(memory) => (invalidated, exposed) = (Some(Handle(ulp)), Some(memory)),
                Invalidated::Before => {}
                // The general way finds it once more, and ends the connection.
                Invalidated::Never => return false,
            }
        }
        self.hear();
        let queue_pair = self.id;
        let is_open = matches!(self.phase, Phase::Open);
        let (space, mut memory) = self.tx.answer_space();
        let space = space.filter(|_| is_open);
        let has_space = space.is_some();
        match show.take_whole(WholeMessage {
            queue_pair,
            octets,
            space,
            invalidated,
            exposed: &mut exposed,
            memory: &mut memory,
        }) {
            Taken::No => {
                sink.shows = false;
                self.rx.invalidated = self.rx.opcode.invalidates().then(|| invalidated.zip(exposed));
                return false;
            }
            Taken::Done => {}
            Taken::AnsweredWhole { len, invalidate } => {
                assert!(has_space, "an answer of {len} octets without space");
                self.tx.send_whole(len, invalidate, memory);
            }
            taken => unreachable!("it is answered whole: {taken:?}"),
        }
        self.note_shown(sink, counters);
        true
    }

    /// As [`QueuePair::show_in_place`], of any message whose Receive is scattered.
    #[inline(never)]
    fn show_scattered(
        &mut self,
        octets: &[u8],
        sink: &mut Sink<'_>,
        counters: &mut IwarpCounters,
        show: &mut impl TakeShown,
    ) -> bool {
        let is_message = self.rx.opcode == Opcode::Send
            && self.rx.send_at == 0
            && matches!(self.rx.header, DdpHeader::Untagged(Untagged { last: true, .. }));
        if !is_message || !sink.may_show() {
            return false;
        }
        self.hear();
        let queue_pair = self.id;
        let mut pieces = GatheredPieces::new();
        let space = self.gather_space();
        let has_space = space.is_some();
        match show.take_scattered(ScatteredMessage { queue_pair, octets, space, pieces: &mut pieces }) {
            Taken::No => {
                sink.shows = false;
                return false;
            }
            Taken::Done => {}
            Taken::AnsweredGathered { len } => {
                assert!(has_space, "an answer of {len} octets without space");
                self.tx.send_gathered(len, &mut pieces);
            }
            taken => unreachable!("it is answered from several pieces of memory: {taken:?}"),
        }
        self.note_shown(sink, counters);
        true
    }

    /// A message that was shown was taken.
    #[inline(always)]
    fn note_shown(&mut self, sink: &mut Sink<'_>, counters: &mut IwarpCounters) {
        self.rx.send_msn = self.rx.send_msn.wrapping_add(1);
        self.rx.swallows_send = false;
        self.pace.note_arrival();
        counters.fpdus_received += 1;
        sink.taken += 1;
    }

    /// The peer has sent something.
    #[inline(always)]
    fn hear(&mut self) {
        self.rx.has_heard = true;
        self.tx.hear();
    }

    #[inline]
    fn take_head<'a>(&mut self, octets: &'a [u8]) -> Result<&'a [u8], Stop> {
        let rx = &mut self.rx;
        // The first octet of the header says how long it is.
        let known = mpa::LENGTH_LEN + 1;
        let needed = match rx.head_len < known {
            true => known,
            false => mpa::LENGTH_LEN + ddp::header_len(rx.head[mpa::LENGTH_LEN]),
        };
        let (now, rest) = octets.split_at(octets.len().min(needed - rx.head_len));
        rx.head[rx.head_len..rx.head_len + now.len()].copy_from_slice(now);
        rx.head_len += now.len();
        if rx.head_len < needed {
            return Ok(rest);
        }
        let ulpdu_len = rx.ulpdu_len();
        let header_len = ddp::header_len(rx.head[mpa::LENGTH_LEN]);
        if ulpdu_len < header_len {
            return Err(Fault::Length.into());
        }
        if rx.head_len < mpa::LENGTH_LEN + header_len {
            return Ok(rest);
        }
        if rx.checks_crc {
            rx.crc = Crc::START.update(&rx.head[..rx.head_len]);
        }
        let payload_len = (ulpdu_len - header_len) as u32;
        let parsed = parse(&rx.head[mpa::LENGTH_LEN..mpa::LENGTH_LEN + header_len]);
        let header = parsed.map(|(header, _)| header);
        if let Err(fault) = header.and_then(|header| self.begin(header, payload_len)) {
            if !self.rx.checks_crc {
                return Err(fault.into());
            }
            // A header that is damaged is not its sender's fault: the CRC decides, as it does for an FPDU that is whole.
            self.rx.suspect = Some(fault);
            (self.rx.place, self.rx.payload_len, self.rx.payload_at) = (Place::Nowhere, payload_len, 0);
        }
        self.rx.trailer_len = 0;
        self.rx.stage = if payload_len > 0 { Stage::Payload } else { Stage::Trailer };
        Ok(rest)
    }

    fn take_payload<'a>(&mut self, octets: &'a [u8]) -> Result<&'a [u8], Stop> {
        let left = (self.rx.payload_len - self.rx.payload_at) as usize;
        let (now, rest) = octets.split_at(octets.len().min(left));
        if self.rx.checks_crc {
            self.rx.crc = self.rx.crc.update(now);
        }
        self.put(now)?;
        if self.rx.payload_at == self.rx.payload_len {
            self.rx.stage = Stage::Trailer;
        }
        Ok(rest)
    }

    fn take_trailer<'a>(
        &mut self,
        octets: &'a [u8],
        sink: &mut Sink<'_>,
        counters: &mut IwarpCounters,
    ) -> Result<&'a [u8], Stop> {
        let rx = &mut self.rx;
        let pad_len = mpa::pad_len(rx.ulpdu_len());
        let needed = pad_len + mpa::CRC_LEN;
        let (now, rest) = octets.split_at(octets.len().min(needed - rx.trailer_len));
        rx.trailer[rx.trailer_len..rx.trailer_len + now.len()].copy_from_slice(now);
        rx.trailer_len += now.len();
        if rx.trailer_len < needed {
            return Ok(rest);
        }
        if rx.checks_crc {
            let (pad, crc) = rx.trailer[..needed].split_at(pad_len);
            let expected = rx.crc.update(pad).finish().to_le_bytes();
            if crc != expected {
                return Err(Fault::Crc.into());
            }
        }
        if let Some(fault) = rx.suspect.take() {
            return Err(fault.into());
        }
        rx.stage = Stage::Head;
        self.deliver(sink, counters)?;
        Ok(rest)
    }

    /// Where the rest of a large payload goes, for the system call to put it there.
    #[inline]
    pub(super) fn direct(&mut self) -> Result<Option<(*mut u8, usize)>, Stop> {
        let left = self.rx.payload_len - self.rx.payload_at;
        if self.rx.stage != Stage::Payload || left < DIRECT_MIN {
            return Ok(None);
        }
        if matches!(self.rx.place, Place::Scattered) {
            return Ok(self.piece().map(|(place, room)| (place, room.min(left as usize))));
        }
        let place = self.place(left)?;
        Ok(place.map(|place| (place, left as usize)))
    }

    /// The system call put `count` octets where [`QueuePair::direct`] said.
    #[inline]
    pub(super) fn landed(&mut self, count: usize) -> Result<(), Stop> {
        if self.rx.checks_crc
            && let Some(place) = self.place(count as u32)?
        {
            // SAFETY: `count` octets of a buffer that is held here, and that only this thread writes.
            self.rx.crc = self.rx.crc.update(unsafe { std::slice::from_raw_parts(place, count) });
        }
        self.rx.payload_at += count as u32;
        if self.rx.payload_at == self.rx.payload_len {
            self.rx.stage = Stage::Trailer;
        }
        Ok(())
    }

    /// Where the next `len` octets of the payload go: valid for writes of them, in a buffer that this queue pair holds. `None`:
    /// they go to no such place.
    #[inline]
    fn place(&mut self, len: u32) -> Result<Option<*mut u8>, Stop> {
        let at = self.rx.payload_at;
        Ok(match self.rx.place {
            Place::Receive => {
                let (_, buf) = self.receives.front_mut().ok_or(Fault::NoReceive)?;
                // `begin` saw that the whole segment fits.
                Some(buf.as_mut_ptr().wrapping_add(self.rx.send_at as usize + at as usize))
            }
            Place::Exposed { stag, offset } => {
                // `begin` saw that this does not wrap.
                let offset = offset.wrapping_add(u64::from(at));
                Some(self.stags.place(stag, offset, len).map_err(Fault::Write)?)
            }
            Place::Read => self.tx.response_place(at),
            Place::Scattered => self.piece().map(|(place, _)| place),
            Place::Inline | Place::Nowhere => None,
        })
    }

    /// Puts the next octets of the payload in their place.
    #[inline]
    fn put(&mut self, octets: &[u8]) -> Result<(), Stop> {
        if octets.is_empty() {
            return Ok(());
        }
        if matches!(self.rx.place, Place::Scattered) {
            return self.put_scattered(octets);
        }
        match self.place(octets.len() as u32)? {
            Some(place) => {
                // SAFETY: `place` is valid for writes of as many octets, in a buffer of the user's, which the provider's own
                // memory, where `octets` are, does not overlap.
                unsafe { std::ptr::copy_nonoverlapping(octets.as_ptr(), place, octets.len()) };
            }
            None if matches!(self.rx.place, Place::Inline) => {
                let at = (self.rx.payload_at as usize).min(INLINE_MAX);
                let room = (INLINE_MAX - at).min(octets.len());
                self.rx.inline[at..at + room].copy_from_slice(&octets[..room]);
            }
            None => {}
        }
        self.rx.payload_at += octets.len() as u32;
        Ok(())
    }

    /// Checks a segment by its header, before any of its payload is placed, and finds out where that goes.
    #[inline]
    fn begin(&mut self, header: DdpHeader, len: u32) -> Result<(), Fault> {
        let control = match &header {
            DdpHeader::Tagged(tagged) => tagged.control,
            DdpHeader::Untagged(untagged) => untagged.control,
        };
        let opcode = Opcode::from_control(control).map_err(|error| match error {
            rdmap::ControlError::Version(_) => Fault::Version,
            _ => Fault::Opcode,
        })?;
        self.rx.place = match &header {
            DdpHeader::Tagged(tagged) => self.begin_tagged(tagged, opcode, len)?,
            DdpHeader::Untagged(untagged) => self.begin_untagged(untagged, opcode, len)?,
        };
        self.rx.header = header;
        self.rx.opcode = opcode;
        self.rx.payload_len = len;
        self.rx.payload_at = 0;
        Ok(())
    }

    #[inline]
    fn begin_tagged(&self, header: &Tagged, opcode: Opcode, len: u32) -> Result<Place, Fault> {
        match opcode {
            // Of no octets: its STag means nothing (siw-10, siw-16).
            Opcode::Write if len == 0 => Ok(Place::Nowhere),
            Opcode::Write => {
                let Tagged { stag, offset, .. } = *header;
                self.stags.place(stag, offset, len).map_err(Fault::Write)?;
                Ok(Place::Exposed { stag, offset })
            }
            Opcode::ReadResponse => {
                self.tx.expect_response(header, len).map_err(Fault::Response)?;
                Ok(Place::Read)
            }
            _ => Err(Fault::Opcode),
        }
    }

    #[inline]
    fn begin_untagged(&self, header: &Untagged, opcode: Opcode, len: u32) -> Result<Place, Fault> {
        let expected = match header.queue {
            queue::SEND => (self.rx.send_msn, self.rx.send_at),
            queue::READ_REQUEST => (self.rx.read_msn, 0),
            queue::TERMINATE => (1, 0),
            _ => return Err(Fault::Queue),
        };
        if opcode.queue() != Some(header.queue) {
            return Err(Fault::Opcode);
        }
        // Whatever a Terminate says, it is the end.
        if opcode == Opcode::Terminate {
            return Ok(Place::Inline);
        }
        if header.msn != expected.0 {
            return Err(Fault::Sequence);
        }
        if header.offset != expected.1 {
            return Err(Fault::Offset);
        }
        if opcode == Opcode::ReadRequest {
            let is_whole = len as usize == rdmap::READ_REQUEST_LEN && header.last;
            return if is_whole { Ok(Place::Inline) } else { Err(Fault::Length) };
        }
        if self.rx.swallows_send && len == 0 && header.last {
            return Ok(Place::Nowhere);
        }
        if self.scatter.is_some() {
            return self.begin_scattered(len);
        }
        let (_, buf) = self.receives.front().ok_or(Fault::NoReceive)?;
        if buf.capacity() as u64 - u64::from(self.rx.send_at) < u64::from(len) {
            return Err(Fault::TooLong);
        }
        Ok(Place::Receive)
    }

    /// Checks that a segment fits a scattered Receive.
    #[inline]
    fn begin_scattered(&self, len: u32) -> Result<Place, Fault> {
        let (_, head) = self.receives.front().ok_or(Fault::NoReceive)?;
        let targets = self.scatter.as_ref().map_or(0, |scatter| scatter.room());
        let room = head.len() as u64 + targets as u64;
        if u64::from(self.rx.send_at) + u64::from(len) > room {
            return Err(Fault::TooLong);
        }
        Ok(Place::Scattered)
    }

    /// Where the next octet of the payload goes in a scattered Receive, and the octets that fit there.
    fn piece(&mut self) -> Option<(*mut u8, usize)> {
        let at = self.rx.send_at as usize + self.rx.payload_at as usize;
        let (_, head) = self.receives.front_mut()?;
        let head_room = head.len();
        if at < head_room {
            return Some((head.as_mut_ptr().wrapping_add(at), head_room - at));
        }
        self.scatter.as_mut()?.oldest()?.piece(at - head_room)
    }

    /// Puts the next octets of the payload into a scattered Receive.
    #[cold]
    fn put_scattered(&mut self, mut octets: &[u8]) -> Result<(), Stop> {
        while !octets.is_empty() {
            // `begin_scattered` saw that the whole segment fits.
            let (place, room) = self.piece().ok_or(Fault::TooLong)?;
            let (here, rest) = octets.split_at(room.min(octets.len()));
            // SAFETY: `place` is valid for writes of `room` octets, in a buffer of the user's, which the provider's own memory,
            // where `octets` are, does not overlap.
            unsafe { std::ptr::copy_nonoverlapping(here.as_ptr(), place, here.len()) };
            self.rx.payload_at += here.len() as u32;
            octets = rest;
        }
        Ok(())
    }

    /// A segment is there, and its CRC is right.
    #[inline]
    fn deliver(&mut self, sink: &mut Sink<'_>, counters: &mut IwarpCounters) -> Result<(), Stop> {
        self.rx.head_len = 0;
        self.hear();
        counters.fpdus_received += 1;
        let swallows_send = std::mem::replace(&mut self.rx.swallows_send, false);
        match self.rx.header {
            DdpHeader::Untagged(header) => match self.rx.opcode {
                Opcode::ReadRequest => self.deliver_read_request()?,
                Opcode::Terminate => return Err(self.deliver_terminate(counters)),
                _ if swallows_send && matches!(self.rx.place, Place::Nowhere) => {
                    self.rx.send_msn = self.rx.send_msn.wrapping_add(1);
                }
                opcode => self.deliver_send(&header, opcode, sink)?,
            },
            DdpHeader::Tagged(header) => {
                if self.rx.opcode == Opcode::ReadResponse
                    && self.tx.responded(self.rx.payload_len, header.last)
                {
                    self.pace.note_arrival();
                    self.complete(sink);
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn deliver_send(&mut self, header: &Untagged, opcode: Opcode, sink: &mut Sink<'_>) -> Result<(), Fault> {
        self.rx.send_at += self.rx.payload_len;
        if !header.last {
            return Ok(());
        }
        let (mut invalidated, mut exposed) = (None, None);
        if let Some(ended) = opcode.invalidates().then(|| self.rx.invalidated.take()).flatten() {
            (invalidated, exposed) = ended.unzip();
        } else if opcode.invalidates() {
            match self.stags.invalidate(header.ulp) {
                Invalidated::Now(memory) => {
                    (invalidated, exposed) = (Some(Handle(header.ulp)), Some(memory));
                }
                Invalidated::Before => {}
                Invalidated::Never => return Err(Fault::Invalidate),
            }
        }
        let (id, mut buf) = self.receives.pop_front().ok_or(Fault::NoReceive)?;
        let len = self.rx.send_at as usize;
        match &mut self.scatter {
            None => buf.set_len(len),
            Some(scatter) => {
                let in_head = len.min(buf.len());
                buf.set_len(in_head);
                scatter.complete(len - in_head);
            }
        }
        self.rx.send_at = 0;
        self.rx.send_msn = self.rx.send_msn.wrapping_add(1);
        let completed = Completed::Receive { buf, invalidated, exposed };
        self.pace.note_arrival();
        sink.shows = false;
        sink.push(Completion { queue_pair: self.id, id, completed, result: Ok(()) });
        Ok(())
    }

    fn deliver_read_request(&mut self) -> Result<(), Fault> {
        let Some(wire) = self.rx.inline.first_chunk() else { return Err(Fault::Length) };
        let request = RdmapReadRequest::from_wire(*wire);
        self.rx.read_msn = self.rx.read_msn.wrapping_add(1);
        self.pace.note_arrival();
        if self.tx.is_responding_full() {
            return Err(Fault::TooManyReads);
        }
        if request.len == 0 {
            // Nothing is read, so the STag means nothing (siw-10, siw-16); the answer has no octets either.
            self.tx.respond(None, request.sink_stag, request.sink_offset);
            return Ok(());
        }
        if request.sink_offset.checked_add(u64::from(request.len)).is_none() {
            return Err(Fault::Read(Access::Wrap));
        }
        let source = self.stags.source(request.source_stag, request.source_offset, request.len);
        self.tx.respond(Some(source.map_err(Fault::Read)?), request.sink_stag, request.sink_offset);
        Ok(())
    }

    #[cold]
    fn deliver_terminate(&mut self, counters: &mut IwarpCounters) -> Stop {
        counters.terminates_received += 1;
        let len = (self.rx.payload_len as usize).min(INLINE_MAX);
        match Terminate::parse(&self.rx.inline[..len]) {
            Some(terminate) => Stop::Terminated(terminate.likely_cause(), terminate.header),
            None => Stop::Terminated(rdmap::Cause { layer: 0xf, error_type: 0, code: 0 }, None),
        }
    }
}

/// Whether a message of version 1 has no Read list: reading the peer's memory takes a round trip.
#[inline]
fn can_be_answered_at_once(message: &[u8]) -> bool {
    /// Octets before the Read list: xid, version, credits, procedure (RFC 8166, section 4.1).
    const READ_LIST_AT: usize = 16;
    message.get(READ_LIST_AT..).and_then(<[u8]>::first_chunk) == Some(&[0; 4])
}

#[inline]
fn parse(ulpdu: &[u8]) -> Result<(DdpHeader, &[u8]), Fault> {
    DdpHeader::parse(ulpdu).map_err(|error| match error {
        ddp::DdpError::TaggedVersion => Fault::TaggedVersion,
        ddp::DdpError::UntaggedVersion => Fault::UntaggedVersion,
        _ => Fault::Length,
    })
}
