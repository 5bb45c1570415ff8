//! A TCP connection that may be iWARP: MPA's frames, then FPDUs in any alignment, and the DDP and RDMAP messages in them.
//!
//! ```text
//!  Frame ──MPA frame──▶ Fpdus ◀──plausible FPDU── Searching
//!    │ other octets       └──gap in the capture──────▲
//!    ▼                                               └── joined midway
//!  Other                 Fpdus ──markers in use──▶ Undecoded
//! ```

use std::collections::VecDeque;
use std::net::SocketAddr;

use stag_wire::ddp::{self, Tagged, Untagged};
use stag_wire::mpa::{self, Fpdu, Frame, FrameError, FrameKind};
use stag_wire::rdmap::{self, Opcode, RdmapReadRequest};
use stag_wire::reliable_reply::{ReliableReply, announces_version_2};
use stag_wire::rpcrdma::NFS_PORT;

use crate::conversation::Conversation;
use crate::event::{CapturedFabric, ConnectionEnd, Context, Endpoints, EventKind, Setup, Termination};
use crate::packet::TcpSegment;
use crate::stream::{Octets, Place, Stream};

/// Octets of a Send at most: above the largest inline threshold that RFC 8797 can agree on.
pub(crate) const SEND_LEN_MAX: usize = 1 << 20;

/// Candidates whose CRC is computed in one search: octets that are made to look like FPDUs must not cost more.
const CANDIDATES_MAX: usize = 16;

/// Segments that wait for what they answer, before it is given up: the capture does not have it.
const HELD_MAX: usize = 16;

/// A segment whose sender had received what was not captured yet, or not at all.
#[derive(Debug)]
struct Held {
    sequence: u32,
    payload: Vec<u8>,
    missing: usize,
    frame: Place,
    /// How much of the other direction its sender had.
    answers: u64,
}

/// A TCP connection.
#[derive(Debug)]
pub(crate) struct Flow {
    client: SocketAddr,
    streams: [Stream; 2],
    /// What each side sent, and waits for what it answers.
    held: [VecDeque<Held>; 2],
    ended: [bool; 2],
    link: Link,
    /// The last frame of it.
    pub(crate) last_frame: u64,
}

/// What is above TCP.
#[derive(Debug)]
struct Link {
    endpoints: Endpoints,
    /// The number under which it is reported, once it is known to be iWARP.
    id: Option<u64>,
    halves: [Half; 2],
    /// Whether CRCs are in use; not known yet of a connection that was joined midway.
    crc: Option<bool>,
    conversation: Conversation,
}

/// What one side sends.
#[derive(Debug)]
struct Half {
    state: State,
    /// Octets that are not a whole frame or FPDU yet.
    buffer: Vec<u8>,
    /// It asked for markers in what it receives.
    wants_markers: bool,
    /// It asked for CRCs.
    wants_crc: bool,
    /// RDMA Reads that it answers at once, if it said so.
    ird: Option<u16>,
    has_framed: bool,
    has_sent_fpdu: bool,
    /// Sequence number of the next message of each queue, once known.
    msn: [Option<u32>; 3],
    /// The Send in work, if its start was captured.
    send: Option<Vec<u8>>,
    /// A message of several segments is in work.
    writing: bool,
    terminated: bool,
    /// It was told that it sends PAD that is not zero.
    pads: bool,
    /// Octets that the capture lacks of it, while it was not known to be iWARP.
    lacks: u64,
    /// Octets of the FPDU in which a gap lies that are still to come: then FPDUs go on.
    skips: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// An MPA frame comes next.
    Frame,
    /// FPDUs come.
    Fpdus,
    /// FPDUs come, but where they start is not known.
    Searching,
    /// FPDUs with markers, which are not decoded.
    Undecoded,
    /// Something else.
    Other,
}

/// Passes a stream's octets to the connection.
struct Feed<'f, 'c> {
    link: &'f mut Link,
    cx: &'f mut Context<'c>,
    from: ConnectionEnd,
}

impl Octets for Feed<'_, '_> {
    fn at(&mut self, (frame, time): Place) {
        (self.cx.frame, self.cx.time) = (frame, time);
    }

    fn octets(&mut self, octets: &[u8]) {
        self.link.octets(self.cx, self.from, octets);
    }

    fn gap(&mut self, len: u64) {
        self.link.gap(self.cx, self.from, len);
    }
}

impl Flow {
    /// Starts with the first segment that was captured. `None` if it tells nothing.
    pub(crate) fn new(segment: &TcpSegment<'_>, keep_data: bool) -> Option<Flow> {
        let (source, destination) = (segment.source, segment.destination);
        let (client, server, midway) = match (segment.flags.syn, segment.acknowledged) {
            (true, None) => (source, destination, false),
            (true, Some(_)) => (destination, source, false),
            (false, _) if segment.payload.is_empty() => return None,
            (false, _) if guess_client(source, destination) => (source, destination, true),
            (false, _) => (destination, source, true),
        };
        let half = || Half {
            state: if midway { State::Searching } else { State::Frame },
            buffer: Vec::new(),
            wants_markers: false,
            wants_crc: false,
            ird: None,
            has_framed: false,
            has_sent_fpdu: false,
            msn: if midway { [None; 3] } else { [Some(1); 3] },
            send: None,
            writing: false,
            terminated: false,
            pads: false,
            lacks: 0,
            skips: 0,
        };
        let link = Link {
            endpoints: Endpoints { fabric: CapturedFabric::Iwarp, client, server, midway },
            id: None,
            halves: [half(), half()],
            crc: None,
            conversation: Conversation::new(keep_data, midway, server.port()),
        };
        let (streams, held) = Default::default();
        Some(Flow { client, streams, held, ended: [false; 2], link, last_frame: 0 })
    }

    /// Octets that are held for it, roughly.
    pub(crate) fn held(&self) -> usize {
        let streams: usize = self.streams.iter().map(Stream::held).sum();
        let held: usize = self.held.iter().flatten().map(|held| 64 + held.payload.len()).sum();
        let halves =
            self.link.halves.iter().map(|half| half.buffer.len() + half.send.as_ref().map_or(0, Vec::len));
        streams + held + halves.sum::<usize>() + self.link.conversation.held()
    }

    /// Tells whether a SYN starts another connection between the same ends.
    pub(crate) fn is_replaced_by(&self, segment: &TcpSegment<'_>) -> bool {
        segment.flags.syn
            && segment.acknowledged.is_none()
            && !(segment.source == self.client
                && self.streams[ConnectionEnd::Client.index()].is_started_by(segment.sequence))
    }

    /// Takes a segment. Returns true if the connection has ended.
    pub(crate) fn segment(&mut self, cx: &mut Context<'_>, segment: &TcpSegment<'_>) -> bool {
        cx.connection = self.link.id.unwrap_or(0);
        let from = if segment.source == self.client { ConnectionEnd::Client } else { ConnectionEnd::Server };
        if segment.flags.syn {
            if !self.streams[from.index()].is_started() {
                self.streams[from.index()].start(segment.sequence);
            }
            // With the client's SYN lost, the answer to it tells where the client starts.
            if let Some(acknowledged) = segment.acknowledged
                && !self.streams[from.other().index()].is_started()
            {
                self.streams[from.other().index()].start(acknowledged.wrapping_sub(1));
            }
        }
        let acknowledged = segment.acknowledged;
        let answers = acknowledged.map_or(0, |number| self.streams[from.other().index()].acknowledge(number));
        let sequence = segment.sequence.wrapping_add(u32::from(segment.flags.syn));
        let (payload, missing) = (segment.payload, segment.missing);
        let now = (cx.frame, cx.time);
        // What a segment answers comes before it: a Call before its Reply.
        let waits = !self.streams[from.other().index()].has_reached(answers);
        if !waits {
            self.pass(cx, from, sequence, payload, missing, now);
        } else if !payload.is_empty() || missing > 0 {
            let payload = payload.to_vec();
            self.held[from.index()].push_back(Held { sequence, payload, missing, frame: now, answers });
        }
        if segment.flags.fin {
            self.streams[from.index()].ends(sequence, payload.len() + missing);
        }
        self.release(cx);
        while self.held.iter().map(VecDeque::len).sum::<usize>() > HELD_MAX {
            self.give_up_oldest(cx);
        }
        (cx.frame, cx.time) = now;
        self.ended[from.index()] |= segment.flags.fin;
        let nothing_waits =
            self.streams.iter().all(|stream| stream.held() == 0) && self.held.iter().all(VecDeque::is_empty);
        segment.flags.rst || (self.ended == [true; 2] && nothing_waits)
    }

    /// Passes on what a side sent.
    fn pass(
        &mut self,
        cx: &mut Context<'_>,
        from: ConnectionEnd,
        sequence: u32,
        payload: &[u8],
        missing: usize,
        frame: Place,
    ) {
        self.link.conversation.doubt(self.streams.iter().any(Stream::is_behind));
        if self.link.is_watched(from) {
            let mut feed = Feed { link: &mut self.link, cx, from };
            self.streams[from.index()].push(sequence, payload, missing, frame, &mut feed);
        }
    }

    /// Passes on what waited, and has been reached by what it answers.
    fn release(&mut self, cx: &mut Context<'_>) {
        let mut is_stuck = false;
        while !is_stuck {
            is_stuck = true;
            for from in [ConnectionEnd::Client, ConnectionEnd::Server] {
                let other = &self.streams[from.other().index()];
                // What is not looked at is not passed on either.
                let is_watched = self.link.is_watched(from.other());
                let is_due = |held: &Held| !is_watched || other.has_reached(held.answers);
                let due = self.held[from.index()].iter().position(is_due);
                if let Some(held) = due.and_then(|due| self.held[from.index()].remove(due)) {
                    let Held { sequence, payload, missing, frame, .. } = held;
                    self.pass(cx, from, sequence, &payload, missing, frame);
                    is_stuck = false;
                }
            }
        }
    }

    /// Passes on what waits for the longest time: what it answers was not captured.
    fn give_up_oldest(&mut self, cx: &mut Context<'_>) {
        let oldest =
            |side: &ConnectionEnd| self.held[side.index()].front().map_or(u64::MAX, |held| held.frame.0);
        let from = [ConnectionEnd::Client, ConnectionEnd::Server]
            .into_iter()
            .min_by_key(oldest)
            .unwrap_or(ConnectionEnd::Client);
        let Some(held) = self.held[from.index()].pop_front() else { return };
        let Held { sequence, payload, missing, frame, answers } = held;
        (cx.frame, cx.time) = frame;
        let other = from.other();
        let mut feed = Feed { link: &mut self.link, cx, from: other };
        // As far as the other side's stream goes: a segment may claim to answer more than there ever was.
        self.streams[other.index()].skip_to(answers, &mut feed);
        self.pass(cx, from, sequence, &payload, missing, frame);
        self.release(cx);
    }

    /// Passes on what still waits, and reports the end.
    pub(crate) fn close(&mut self, cx: &mut Context<'_>) {
        let now = (cx.frame, cx.time);
        while self.held.iter().any(|held| !held.is_empty()) {
            self.give_up_oldest(cx);
        }
        for from in [ConnectionEnd::Client, ConnectionEnd::Server] {
            (cx.frame, cx.time) = now;
            if self.link.is_watched(from) {
                let mut feed = Feed { link: &mut self.link, cx, from };
                self.streams[from.index()].finish(&mut feed);
            }
        }
        (cx.frame, cx.time) = now;
        if let Some(id) = self.link.id {
            cx.connection = id;
            self.link.conversation.close(cx);
        }
    }
}

/// Guesses which end is the client of a connection whose start was not captured.
fn guess_client(source: SocketAddr, destination: SocketAddr) -> bool {
    match (source.port(), destination.port()) {
        (NFS_PORT, _) => false,
        (_, NFS_PORT) => true,
        (source, destination) => source > destination,
    }
}

impl Link {
    /// Tells whether what a side sends is still looked at.
    fn is_watched(&self, from: ConnectionEnd) -> bool {
        !matches!(self.halves[from.index()].state, State::Other | State::Undecoded)
    }

    /// Reports the connection, once it is known to be iWARP.
    fn open(&mut self, cx: &mut Context<'_>) {
        if self.id.is_none() {
            cx.totals.connections += 1;
            cx.connection = cx.totals.connections;
            self.id = Some(cx.connection);
            cx.emit(EventKind::Opened(self.endpoints));
            for from in [ConnectionEnd::Client, ConnectionEnd::Server] {
                let lacks = std::mem::take(&mut self.halves[from.index()].lacks);
                if lacks > 0 {
                    self.tell_gap(cx, from, lacks);
                }
            }
        }
    }

    fn octets(&mut self, cx: &mut Context<'_>, from: ConnectionEnd, octets: &[u8]) {
        let half = &mut self.halves[from.index()];
        let mut buffer = std::mem::take(&mut half.buffer);
        buffer.extend_from_slice(octets);
        let mut rest = &buffer[..];
        while let Some(after) = self.step(cx, from, rest) {
            rest = after;
        }
        let used = buffer.len() - rest.len();
        if self.is_watched(from) {
            buffer.drain(..used);
            self.halves[from.index()].buffer = buffer;
        }
    }

    fn gap(&mut self, cx: &mut Context<'_>, from: ConnectionEnd, len: u64) {
        if !self.is_watched(from) {
            return;
        }
        let half = &mut self.halves[from.index()];
        let octets = std::mem::take(&mut half.buffer);
        half.send = None;
        half.writing = false;
        half.msn = [None; 3];
        // An FPDU whose length was captured says where the next one starts.
        let rest = match (half.state, Fpdu::parse(&octets)) {
            (State::Fpdus, _) if half.skips > 0 => Some(half.skips),
            (State::Fpdus, Err(needed)) if octets.len() >= mpa::LENGTH_LEN => Some(needed - octets.len()),
            _ => None,
        };
        match rest.and_then(|rest| (rest as u64).checked_sub(len)) {
            Some(rest) => half.skips = rest as usize,
            // Otherwise what follows tells, if it looks like an FPDU.
            None => (half.state, half.skips) = (State::Searching, 0),
        }
        self.conversation.lose();
        if self.id.is_some() {
            self.tell_gap(cx, from, len);
        } else {
            self.halves[from.index()].lacks += len;
        }
    }

    fn tell_gap(&mut self, cx: &mut Context<'_>, from: ConnectionEnd, len: u64) {
        cx.totals.missing += len;
        cx.totals.gaps += 1;
        self.conversation.lack(from);
        cx.emit(EventKind::Gap(from, len));
    }

    /// Takes one frame or FPDU off what a side sent. `None` if there is no whole one.
    fn step<'a>(&mut self, cx: &mut Context<'_>, from: ConnectionEnd, octets: &'a [u8]) -> Option<&'a [u8]> {
        if octets.is_empty() {
            return None;
        }
        match self.halves[from.index()].state {
            State::Frame => self.frame(cx, from, octets),
            State::Fpdus => {
                let half = &mut self.halves[from.index()];
                if half.skips > 0 {
                    let skipped = half.skips.min(octets.len());
                    half.skips -= skipped;
                    return octets.get(skipped..);
                }
                let (fpdu, rest) = Fpdu::parse(octets).ok()?;
                self.fpdu(cx, from, &fpdu);
                Some(rest)
            }
            State::Searching => self.search(cx, from, octets),
            State::Other | State::Undecoded => None,
        }
    }

    /// Takes an MPA frame.
    fn frame<'a>(&mut self, cx: &mut Context<'_>, from: ConnectionEnd, octets: &'a [u8]) -> Option<&'a [u8]> {
        let (frame, rest) = match Frame::parse(octets) {
            Ok(parts) => parts,
            Err(FrameError::Truncated(_)) => return None,
            Err(FrameError::Key) => {
                self.halves[from.index()].state = State::Other;
                return None;
            }
            Err(error) => {
                self.open(cx);
                cx.violation(from, "5044-7.1-b", error);
                self.halves[from.index()].state = State::Other;
                return None;
            }
        };
        self.open(cx);
        let expected = if from == ConnectionEnd::Client { FrameKind::Request } else { FrameKind::Reply };
        if frame.kind != expected {
            cx.violation(from, "5044-7.1-a", "the MPA frame of the other side");
        }
        let parameters = self.conversation.private_data(from, frame.private_data);
        cx.emit(EventKind::Setup(from, describe(&frame, parameters)));
        let half = &mut self.halves[from.index()];
        half.has_framed = true;
        half.wants_markers = frame.markers;
        half.wants_crc = frame.crc;
        half.ird = frame.enhanced.map(|enhanced| enhanced.ird).filter(|ird| *ird != mpa::NOT_NEGOTIATED);
        half.state = State::Fpdus;
        if self.halves.iter().all(|half| half.has_framed) {
            self.crc = Some(self.halves.iter().any(|half| half.wants_crc));
            for side in [ConnectionEnd::Client, ConnectionEnd::Server] {
                if self.halves[side.other().index()].wants_markers {
                    self.halves[side.index()].state = State::Undecoded;
                    cx.emit(EventKind::Note(
                        side,
                        "markers are in use, what it sends is not decoded (5044-4.3-a)",
                    ));
                }
            }
        }
        if !self.is_watched(from) { None } else { Some(rest) }
    }

    /// Looks for the start of an FPDU.
    fn search<'a>(
        &mut self,
        cx: &mut Context<'_>,
        from: ConnectionEnd,
        octets: &'a [u8],
    ) -> Option<&'a [u8]> {
        // Of a connection that may be anything, only the starts of segments are looked at.
        let last = if self.id.is_some() { octets.len() } else { 1 };
        let (mut failures, mut incomplete) = (0, None);
        for start in 0..last {
            match plausible(&octets[start..], self.crc) {
                Plausible::No => {}
                Plausible::Wrong if failures < CANDIDATES_MAX => failures += 1,
                Plausible::Wrong => break,
                // A whole one behind it is better.
                Plausible::Incomplete => drop(incomplete.get_or_insert(start)),
                Plausible::Yes { crc } => {
                    self.open(cx);
                    self.crc.get_or_insert(crc);
                    self.halves[from.index()].state = State::Fpdus;
                    return Some(&octets[start..]);
                }
            }
        }
        match incomplete {
            Some(0) => None,
            Some(start) => octets.get(start..),
            None => Some(&[]),
        }
    }

    /// Takes an FPDU.
    fn fpdu(&mut self, cx: &mut Context<'_>, from: ConnectionEnd, fpdu: &Fpdu<'_>) {
        cx.totals.segments += 1;
        let complete = self.conversation.is_complete();
        if complete && from == ConnectionEnd::Client && !self.halves[ConnectionEnd::Server.index()].has_framed
        {
            cx.violation(from, "5044-7.1-g", "an FPDU before the MPA Reply");
        }
        if complete
            && from == ConnectionEnd::Server
            && !self.halves[ConnectionEnd::Client.index()].has_sent_fpdu
        {
            cx.violation(from, "5044-7.1-f", "an FPDU of the Responder before the first of the Initiator");
        }
        self.halves[from.index()].has_sent_fpdu = true;
        if self.crc == Some(true) {
            if !fpdu.is_intact() {
                cx.totals.crc_bad += 1;
                let (found, right) = (fpdu.crc, mpa::crc32c(fpdu.covered));
                cx.violation(from, "5044-4.4-a", format_args!("CRC {found:08x}, it should be {right:08x}"));
                // What it says is not to be believed.
                self.halves[from.index()].send = None;
                self.conversation.lose();
                return;
            }
            cx.totals.crc_good += 1;
        }
        if fpdu.covered[mpa::LENGTH_LEN + fpdu.ulpdu.len()..].iter().any(|octet| *octet != 0) {
            // Linux's siw does that, and receivers ignore it: told once, and not called an error.
            if !std::mem::replace(&mut self.halves[from.index()].pads, true) {
                cx.emit(EventKind::Note(from, "its PAD octets are not zero (5044-4.1-b)"));
            }
        }
        if std::mem::replace(&mut self.halves[from.index()].terminated, false) {
            cx.violation(from, "5040-g", "more FPDUs behind a Terminate");
        }
        let (header, payload) = match ddp::DdpHeader::parse(fpdu.ulpdu) {
            Ok(parts) => parts,
            Err(ddp::DdpError::Truncated) => return cx.violation(from, "5042-e", ddp::DdpError::Truncated),
            Err(error) => return cx.violation(from, "5041-a", error),
        };
        let control = match header {
            ddp::DdpHeader::Tagged(header) => header.control,
            ddp::DdpHeader::Untagged(header) => header.control,
        };
        let opcode = match Opcode::from_control(control) {
            Ok(opcode) => opcode,
            Err(error) => return cx.violation(from, "5042-e", format_args!("RDMAP: {error:?}")),
        };
        match header {
            ddp::DdpHeader::Tagged(header) if opcode == Opcode::Write => {
                self.write(cx, from, &header, payload)
            }
            ddp::DdpHeader::Tagged(header) if opcode == Opcode::ReadResponse => {
                self.read_response(cx, from, &header, payload);
            }
            ddp::DdpHeader::Untagged(header) if opcode.queue() == Some(header.queue) => {
                self.untagged(cx, from, opcode, &header, payload);
            }
            ddp::DdpHeader::Untagged(Untagged { queue, .. }) => {
                cx.violation(from, "5041-b", format_args!("{opcode:?} on queue {queue}"));
            }
            ddp::DdpHeader::Tagged(_) => {
                cx.violation(from, "5041-b", format_args!("{opcode:?} in a tagged segment"))
            }
        }
    }

    fn write(&mut self, cx: &mut Context<'_>, from: ConnectionEnd, header: &Tagged, payload: &[u8]) {
        let starts = !std::mem::replace(&mut self.halves[from.index()].writing, !header.last);
        self.conversation.write(cx, from, (header.stag, header.offset), payload, starts);
    }

    fn read_response(&mut self, cx: &mut Context<'_>, from: ConnectionEnd, header: &Tagged, payload: &[u8]) {
        let complete = self.conversation.is_complete();
        let initiator = from.other();
        if !complete && !self.conversation.find_read(initiator, (header.stag, header.offset)) {
            // Its request was not captured.
            cx.totals.reads.octets += payload.len() as u64;
            return;
        }
        let (read, _) = self.conversation.oldest_read(initiator);
        let len = payload.len() as u64;
        let problem = match read {
            None => Some("it answers no RDMA Read Request"),
            Some(read) => {
                let (stag, offset) = read.sink;
                let end = read.received + len;
                if header.stag != stag || header.offset != offset.wrapping_add(read.received) {
                    Some("it goes to another place than requested")
                } else if end > read.len || (header.last && end != read.len) {
                    Some("its length is not the requested one")
                } else {
                    None
                }
            }
        };
        if let Some(problem) = problem.filter(|_| complete) {
            cx.violation(from, "5040-b", format_args!("RDMA Read Response: {problem}"));
        }
        self.conversation.read_data(cx, initiator, payload, 0, header.last);
    }

    fn untagged(
        &mut self,
        cx: &mut Context<'_>,
        from: ConnectionEnd,
        opcode: Opcode,
        header: &Untagged,
        payload: &[u8],
    ) {
        let half = &mut self.halves[from.index()];
        let Some(expected) = half.msn.get_mut(header.queue as usize) else { return };
        if let Some(number) = *expected
            && number != header.msn
        {
            let (queue, found) = (header.queue, header.msn);
            cx.violation(
                from,
                "5041-c",
                format_args!("queue {queue}: message {found}, it should be {number}"),
            );
        }
        *expected = Some(header.msn.wrapping_add(u32::from(header.last)));
        match opcode {
            Opcode::ReadRequest => self.read_request(cx, from, header, payload),
            Opcode::Terminate => self.terminate(cx, from, payload),
            _ => self.send(cx, from, opcode, header, payload),
        }
    }

    fn send(
        &mut self,
        cx: &mut Context<'_>,
        from: ConnectionEnd,
        opcode: Opcode,
        header: &Untagged,
        payload: &[u8],
    ) {
        let half = &mut self.halves[from.index()];
        if header.offset == 0 && half.send.as_ref().is_none_or(Vec::is_empty) {
            half.send = Some(Vec::new());
        }
        let Some(mut message) = half.send.take() else { return };
        if header.offset as usize != message.len() {
            let (found, len) = (header.offset, message.len());
            cx.violation(from, "5041-d", format_args!("message offset {found}, it should be {len}"));
            return self.conversation.lose();
        }
        if message.len() + payload.len() > SEND_LEN_MAX {
            cx.totals.other_sends += 1;
            return self.conversation.lose();
        }
        message.extend_from_slice(payload);
        if header.last {
            let invalidated = opcode.invalidates().then_some(header.ulp);
            self.conversation.send(cx, from, &message, invalidated);
        } else {
            self.halves[from.index()].send = Some(message);
        }
    }

    fn read_request(&mut self, cx: &mut Context<'_>, from: ConnectionEnd, header: &Untagged, payload: &[u8]) {
        let Ok(wire) = <[u8; rdmap::READ_REQUEST_LEN]>::try_from(payload) else {
            let len = payload.len();
            return cx.violation(
                from,
                "5042-e",
                format_args!("an RDMA Read Request of {len} octets, not 28"),
            );
        };
        if header.offset != 0 || !header.last {
            cx.violation(from, "5041-d", "an RDMA Read Request in several segments");
        }
        let request = RdmapReadRequest::from_wire(wire);
        let (_, outstanding) = self.conversation.oldest_read(from);
        if let Some(ird) = self.halves[from.other().index()].ird
            && self.conversation.is_complete()
            && outstanding >= usize::from(ird)
        {
            let count = outstanding + 1;
            cx.violation(
                from,
                "5040-c",
                format_args!("{count} RDMA Reads outstanding, the peer takes {ird}"),
            );
        }
        let source = (request.source_stag, request.source_offset, u64::from(request.len));
        self.conversation.read_request(cx, from, (request.sink_stag, request.sink_offset), source);
    }

    fn terminate(&mut self, cx: &mut Context<'_>, from: ConnectionEnd, payload: &[u8]) {
        let text = match rdmap::Terminate::parse(payload) {
            Some(terminate) => terminate.likely_cause().to_string(),
            None => "without a cause".to_owned(),
        };
        cx.emit(EventKind::Terminate(from, Termination { text }));
        self.halves[from.index()].terminated = true;
    }
}

/// Whether octets look like the start of an FPDU.
enum Plausible {
    No,
    /// It is all there and looks right, but for its CRC.
    Wrong,
    /// So far; more octets will tell.
    Incomplete,
    Yes {
        crc: bool,
    },
}

/// Whether octets may be the start of an FPDU, as far as they are there.
fn could_start(octets: &[u8]) -> bool {
    let Some(([l0, l1, control, rdmap], _)) = octets.split_first_chunk() else { return true };
    let ulpdu_len = usize::from(u16::from_be_bytes([*l0, *l1]));
    // The reserved bits of both control octets are zero.
    ulpdu_len >= ddp::header_len(*control) && control & 0x3f == ddp::VERSION && rdmap & 0x30 == 0
}

/// Looks at octets that may be an FPDU of RDMAP; `crc` says whether CRCs are in use, if that is known.
fn plausible(octets: &[u8], crc: Option<bool>) -> Plausible {
    let Some(([_, _, control, rdmap], _)) = octets.split_first_chunk() else {
        return Plausible::Incomplete;
    };
    if !could_start(octets) {
        return Plausible::No;
    }
    let Ok(opcode) = Opcode::from_control(*rdmap) else { return Plausible::No };
    if opcode.is_tagged() != (control & 0x80 != 0) {
        return Plausible::No;
    }
    if let Some(queue) = opcode.queue() {
        if octets.get(8..12).is_some_and(|found| found != queue.to_be_bytes()) {
            return Plausible::No;
        }
        if octets.get(4..8).is_some_and(|ulp| !opcode.invalidates() && ulp != [0; 4]) {
            return Plausible::No;
        }
    }
    let Ok((fpdu, rest)) = Fpdu::parse(octets) else { return Plausible::Incomplete };
    let is_intact = fpdu.is_intact();
    match crc {
        _ if is_intact => Plausible::Yes { crc: true },
        // Not checked, and what Linux and we write there.
        None | Some(false) if fpdu.crc == 0 && could_start(rest) => Plausible::Yes { crc: false },
        _ => Plausible::Wrong,
    }
}

/// Describes an MPA frame.
fn describe<'a>(frame: &Frame<'a>, parameters: Option<stag_wire::cm_private_data::PrivateData>) -> Setup<'a> {
    let yes_no = |flag: bool| if flag { "yes" } else { "no" }.to_owned();
    let mut options = vec![
        ("revision", frame.revision.to_string()),
        ("markers", yes_no(frame.markers)),
        ("crc", yes_no(frame.crc)),
    ];
    if frame.rejected {
        options.push(("rejected", yes_no(true)));
    }
    if let Some(enhanced) = frame.enhanced {
        options.push(("ird", enhanced.ird.to_string()));
        options.push(("ord", enhanced.ord.to_string()));
        if let Some(ready) = enhanced.peer_to_peer {
            let names = [(ready.send, "send"), (ready.write, "write"), (ready.read, "read")];
            let names: Vec<&str> = names.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
            options.push(("peer-to-peer", names.join("+")));
        }
    }
    let name = match frame.kind {
        FrameKind::Request => "MPA Request",
        FrameKind::Reply => "MPA Reply",
    };
    let reliable_reply = ReliableReply::find(frame.private_data);
    let announces_version_2 = announces_version_2(frame.private_data);
    Setup { name, options, private_data: frame.private_data, parameters, reliable_reply, announces_version_2 }
}
