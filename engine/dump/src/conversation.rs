//! RPC-over-RDMA on one connection, over whatever fabric: Calls wait for their Replies, chunks for the RDMA Reads and
//! Writes that use them.
//!
//! Each side is looked at as a Requester, since both can be one (RFC 8167). What depends on everything before having
//! been captured is checked only while that is so ([`Conversation::lose`]).

use std::collections::{HashMap, VecDeque};

use stag_wire::cm_private_data::{self, InlineThresholds, PrivateData};
use stag_wire::rpcrdma::{Direction, Header, NFS_PORT, Procedure};

use crate::call::{self, Call, Waiting};
use crate::check::{self, Violations};
use crate::event::{Answered, ChunkKind, ChunkUse, Context, EventKind, Message, Side, Violation};
use crate::program::{self, Rpc};

/// Calls of one side that wait for their Replies at most; beyond, the oldest one is given up.
const CALLS_MAX: usize = 4096;

/// RDMA Reads that one side has outstanding at most; beyond, the oldest one is given up.
const READS_MAX: usize = 4096;

/// Credits beyond which a grant cannot be meant: a Receive must be posted for each (8166-3.3.1-d), and no device has
/// queues as long. No rule names a limit.
const GRANT_MAX: u32 = 65_536;

/// Where an exposed segment belongs.
#[derive(Clone, Copy, Debug)]
struct Exposure {
    xid: u32,
    chunk: usize,
    segment: usize,
}

/// An RDMA Read that was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    /// Where its data goes, on iWARP.
    pub(crate) sink: (u32, u64),
    pub(crate) len: u64,
    pub(crate) received: u64,
    /// Which segment it reads, and from where on.
    source: Option<(Exposure, u64)>,
}

/// One side, as a Requester of Calls and as an initiator of RDMA Reads.
#[derive(Debug, Default)]
struct Party {
    calls: HashMap<u32, Call>,
    exposures: HashMap<u32, Vec<Exposure>>,
    reads: VecDeque<Read>,
    /// The largest grant so far: a Requester may not know yet that it was lowered.
    granted: Option<u32>,
    /// Its set-up message was seen, with or without RFC 8797's block.
    told: Option<Option<PrivateData>>,
}

/// Whether the Sends are RPC-over-RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Unknown,
    RpcRdma,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Conversation {
    parties: [Party; 2],
    protocol: Protocol,
    /// All of it was captured so far.
    whole: bool,
    /// `whole`, and nothing is known to be late.
    complete: bool,
    keep_data: bool,
    /// It was told that a grant is absurd.
    is_lavish: bool,
    next_age: u64,
    held: usize,
}

/// Which way an RDMA operation goes, to find the chunk that it may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

impl Conversation {
    pub(crate) fn new(keep_data: bool, midway: bool, server_port: u16) -> Conversation {
        Conversation {
            parties: Default::default(),
            protocol: if server_port == NFS_PORT { Protocol::RpcRdma } else { Protocol::Unknown },
            whole: !midway,
            complete: !midway,
            keep_data,
            is_lavish: false,
            next_age: 0,
            held: 0,
        }
    }

    /// Octets that are held for it, roughly.
    pub(crate) fn held(&self) -> usize {
        self.held + self.parties.iter().map(|party| 64 * party.reads.len()).sum::<usize>()
    }

    /// Something was not captured: what depends on the past is not checked any more.
    pub(crate) fn lose(&mut self) {
        self.whole = false;
        self.complete = false;
    }

    /// Something that a side sent was not captured: it may be the Reply to any Call that waits for one.
    pub(crate) fn lack(&mut self, from: Side) {
        self.lose();
        for call in self.parties[from.other().index()].calls.values_mut() {
            call.is_perhaps_answered = true;
        }
    }

    /// Finds the RDMA Read whose answer goes on at a place, and forgets those before it: their answers were not
    /// captured. `false` if there is none.
    pub(crate) fn find_read(&mut self, initiator: Side, (stag, offset): (u32, u64)) -> bool {
        let reads = &mut self.parties[initiator.index()].reads;
        let goes_on = |read: &Read| {
            let at = offset.wrapping_sub(read.sink.1);
            // A part of the answer may be missing.
            read.sink.0 == stag && at >= read.received && at <= read.len
        };
        let Some(index) = reads.iter().position(goes_on) else { return false };
        reads.drain(..index);
        if let Some(read) = reads.front_mut() {
            read.received = offset.wrapping_sub(read.sink.1);
        }
        true
    }

    /// Something that was sent before what comes next may be missing, or come late.
    pub(crate) fn doubt(&mut self, late: bool) {
        self.complete = self.whole && !late;
    }

    /// Tells whether all of the connection was captured so far.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Takes the private data of a side's set-up message; returns what RFC 8797 finds in it.
    pub(crate) fn private_data(&mut self, from: Side, octets: &[u8]) -> Option<PrivateData> {
        let found = PrivateData::find(octets);
        self.parties[from.index()].told = Some(found);
        if found.is_some() {
            self.protocol = Protocol::RpcRdma;
        }
        found
    }

    /// What both sides agreed on, seen from `from`, if both were heard.
    fn thresholds(&self, from: Side) -> Option<InlineThresholds> {
        let own = self.parties[from.index()].told?.unwrap_or(PrivateData::ABSENT);
        let peer = self.parties[from.other().index()].told?;
        Some(cm_private_data::inline_thresholds(&own, peer.as_ref()))
    }

    /// Takes a whole Send.
    pub(crate) fn send(&mut self, cx: &mut Context<'_>, from: Side, octets: &[u8], invalidated: Option<u32>) {
        let header = Header::parse(octets);
        match (&header, self.protocol) {
            (Ok(_), _) => self.protocol = Protocol::RpcRdma,
            (Err(_), Protocol::Unknown) => {
                cx.totals.other_sends += 1;
                return;
            }
            (Err(_), Protocol::RpcRdma) => {}
        }
        cx.totals.messages += 1;
        let mut violations = Violations::default();
        let thresholds = self.thresholds(from);
        if let Some(thresholds) = &thresholds
            && octets.len() as u64 > u64::from(thresholds.send)
        {
            let (len, limit) = (octets.len(), thresholds.send);
            violations.add("8166-4.2.4-d", format_args!("{len} octets inline, the threshold is {limit}"));
        }
        let (header, payload) = match header {
            Ok(parts) => parts,
            Err(error) => {
                violations.header(&error);
                let header = Err(error);
                return report(cx, &Message { octets, invalidated, ..empty(from, header) }, violations);
            }
        };
        match header.direction(payload) {
            Some(Direction::Call) => self.call(cx, from, octets, &header, payload, invalidated, violations),
            Some(Direction::Reply | Direction::Error) => {
                if let Some(handle) = invalidated {
                    // Linux's server says that it does not, and does: what counts is that the Requester is ready.
                    let told = self.parties[from.other().index()].told;
                    let allowed = told.is_none_or(|told| told.is_some_and(|told| told.remote_invalidation));
                    self.check_invalidation(from, header.xid(), handle, allowed, &mut violations);
                }
                self.reply(cx, from, octets, &header, payload, invalidated, violations);
            }
            None => {
                violations.no_direction(&header, payload);
                let message = Message { octets, invalidated, ..empty(from, Ok((header, payload))) };
                report(cx, &message, violations);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one message, in its parts")]
    fn call(
        &mut self,
        cx: &mut Context<'_>,
        from: Side,
        octets: &[u8],
        header: &Header<'_>,
        payload: &[u8],
        invalidated: Option<u32>,
        mut violations: Violations,
    ) {
        cx.totals.calls += 1;
        if let Err(error) = header.check_call(payload) {
            violations.header(&error);
        }
        if header.credits() == 0 {
            violations.add("8166-X-8", "a Call that asks for 0 credits");
        }
        let xid = header.xid();
        if self.parties[from.index()].calls.contains_key(&xid) {
            if self.complete {
                violations
                    .add("5531-e", format_args!("xid {xid:#010x} is in use by a Call not answered yet"));
            }
            self.end_call(cx, from, xid);
        }
        let mut call = Call {
            frame: cx.frame,
            time: cx.time,
            chunks: call::chunks(header, self.keep_data),
            rpc: None,
            octets: if self.keep_data { octets.to_vec() } else { Vec::new() },
            waits: None,
            is_perhaps_answered: false,
            age: self.next_age,
        };
        self.next_age += 1;
        if header.procedure() == Procedure::Msg {
            let (rpc, problem) = program::read_call(payload, &call.reduced_arguments());
            violations.call_payload(problem);
            call.rpc = rpc;
            self.check_credits(from, &mut violations);
            let message =
                Message { octets, invalidated, rpc: rpc.as_ref(), ..empty(from, Ok((*header, payload))) };
            report(cx, &message, violations);
        } else {
            self.check_credits(from, &mut violations);
            call.octets = octets.to_vec();
            call.waits = Some(Waiting { invalidated, violations });
        }
        self.begin_call(cx, from, xid, call);
    }

    /// Checks that one more Call is within the grant.
    fn check_credits(&self, from: Side, violations: &mut Violations) {
        if !self.complete {
            return;
        }
        let party = &self.parties[from.index()];
        let in_flight = party.calls.len() as u64 + 1;
        match party.granted {
            None if in_flight > 1 => {
                violations.add("8166-3.3.3-a", "a second Call before the first Reply of the connection");
            }
            Some(granted) if in_flight > u64::from(granted) => {
                violations
                    .add("8166-3.3.1-b", format_args!("{in_flight} Calls in flight, {granted} were granted"));
            }
            _ => {}
        }
    }

    /// Puts a Call where its Reply and its RDMA operations find it.
    fn begin_call(&mut self, cx: &mut Context<'_>, from: Side, xid: u32, call: Call) {
        let calls = &self.parties[from.index()].calls;
        if calls.len() >= CALLS_MAX
            && let Some((&oldest, _)) = calls.iter().min_by_key(|(_, call)| call.age)
        {
            cx.totals.unanswered += 1;
            self.end_call(cx, from, oldest);
        }
        let party = &mut self.parties[from.index()];
        for (chunk, offered) in call.chunks.iter().enumerate() {
            for (segment, exposed) in offered.segments.iter().enumerate() {
                party.exposures.entry(exposed.handle).or_default().push(Exposure { xid, chunk, segment });
            }
        }
        self.held += call.held();
        let is_read = call.is_read();
        party.calls.insert(xid, call);
        if is_read {
            self.report_waiting(cx, from, xid);
        }
    }

    /// Takes a Call away, and what it exposed. A Call that was not reported yet is now.
    fn end_call(&mut self, cx: &mut Context<'_>, from: Side, xid: u32) -> Option<Call> {
        self.report_waiting(cx, from, xid);
        let party = &mut self.parties[from.index()];
        let call = party.calls.remove(&xid)?;
        self.held = self.held.saturating_sub(call.held());
        for segment in call.chunks.iter().flat_map(|chunk| &chunk.segments) {
            if let Some(exposures) = party.exposures.get_mut(&segment.handle) {
                exposures.retain(|exposure| exposure.xid != xid);
                if exposures.is_empty() {
                    party.exposures.remove(&segment.handle);
                }
            }
        }
        Some(call)
    }

    /// Reports a Call that waited for its Payload stream to be read, as far as it was.
    fn report_waiting(&mut self, cx: &mut Context<'_>, from: Side, xid: u32) {
        let party = &mut self.parties[from.index()];
        let Some(call) = party.calls.get_mut(&xid) else { return };
        let Some(Waiting { invalidated, mut violations }) = call.waits.take() else { return };
        let octets = std::mem::take(&mut call.octets);
        let Ok((header, payload)) = Header::parse(&octets) else { return };
        let long_payload = call.position_zero().map(|chunk| chunk.usage.data.clone());
        if let Some(stream) = long_payload.as_ref().filter(|stream| !stream.is_empty())
            && call.is_read()
        {
            let (rpc, problem) = program::read_call(stream, &call.reduced_arguments());
            violations.call_payload(problem);
            violations.long_xid(xid, stream);
            call.rpc = rpc;
        }
        let rpc = call.rpc;
        let (frame, time) = (call.frame, call.time);
        if self.keep_data {
            call.octets.clone_from(&octets);
        } else {
            self.held = self.held.saturating_sub(octets.len());
        }
        let message = Message {
            octets: &octets,
            invalidated,
            long_payload: long_payload.as_deref(),
            rpc: rpc.as_ref(),
            ..empty(from, Ok((header, payload)))
        };
        // The Call's own frame, not that of what completed it.
        let (now_frame, now) = (cx.frame, cx.time);
        (cx.frame, cx.time) = (frame, time);
        report(cx, &message, violations);
        (cx.frame, cx.time) = (now_frame, now);
    }

    #[expect(clippy::too_many_arguments, reason = "one message, in its parts")]
    fn reply(
        &mut self,
        cx: &mut Context<'_>,
        from: Side,
        octets: &[u8],
        header: &Header<'_>,
        payload: &[u8],
        invalidated: Option<u32>,
        mut violations: Violations,
    ) {
        let is_error = matches!(header.procedure(), Procedure::Error(_));
        match is_error {
            true => cx.totals.errors += 1,
            false => cx.totals.replies += 1,
        }
        let requester = from.other();
        if !is_error {
            if let Err(error) = header.check_reply(payload) {
                violations.header(&error);
            }
            if header.credits() == 0 {
                violations.add("8166-3.3.1-c", "a Reply that grants 0 credits");
            }
            let granted = header.credits().max(1);
            if granted > GRANT_MAX && !std::mem::replace(&mut self.is_lavish, true) {
                cx.emit(EventKind::Note(
                    from,
                    "a Reply grants more credits than Receives can be posted (8166-3.3.1-d)",
                ));
            }
            let known = &mut self.parties[requester.index()].granted;
            *known = Some(known.map_or(granted, |known| known.max(granted)));
        }
        let xid = header.xid();
        let call = self.end_call(cx, requester, xid);
        let target = call.as_ref().and_then(|call| call.rpc).and_then(|rpc| rpc.target());
        match &call {
            Some(_) => cx.totals.paired += 1,
            None if self.complete && is_error => {
                violations
                    .add("8166-4.5-e", format_args!("an RDMA_ERROR for xid {xid:#010x}, which no Call has"));
            }
            None if self.complete => {
                violations.add("8166-X-10", format_args!("a Reply with xid {xid:#010x}, which no Call has"));
            }
            None => self.lose(),
        }
        if let Some(call) = call.as_ref().filter(|_| !is_error) {
            check::returned_chunks(call, header, self.complete, &mut violations);
        }
        let long_payload =
            call.as_ref().filter(|_| header.procedure() == Procedure::Nomsg).and_then(|call| {
                let chunk = call.chunks.iter().find(|chunk| chunk.usage.kind == ChunkKind::Reply)?;
                let len = header.reply_chunk()?.total_len();
                // With a part missing, the rest says nothing.
                chunk.usage.data.get(..usize::try_from(len).ok()?).filter(|_| chunk.usage.moved >= len)
            });
        let stream = if header.procedure() == Procedure::Msg { Some(payload) } else { long_payload };
        let reduced = call.as_ref().map(|call| call.reduced_results(header)).unwrap_or_default();
        let mut rpc: Option<Rpc> = None;
        if let Some(stream) = stream {
            let (found, problem) = program::read_reply(stream, target, &reduced);
            violations.reply_payload(problem);
            if long_payload.is_some() {
                violations.long_xid(xid, stream);
            }
            rpc = found;
        }
        let chunks: Vec<ChunkUse>;
        let mut answered = None;
        if let Some(call) = &call {
            chunks = call.chunks.iter().map(|chunk| chunk.usage.clone()).collect();
            answered =
                Some(Answered { frame: call.frame, time: call.time, chunks: &chunks, octets: &call.octets });
        }
        let message = Message {
            octets,
            invalidated,
            long_payload,
            rpc: rpc.as_ref(),
            answered,
            ..empty(from, Ok((*header, payload)))
        };
        report(cx, &message, violations);
    }

    /// Checks that a Send may invalidate `handle`.
    fn check_invalidation(
        &self,
        from: Side,
        xid: u32,
        handle: u32,
        allowed: bool,
        violations: &mut Violations,
    ) {
        if !allowed {
            violations.add(
                "8797-4.1-c",
                "Send with Invalidate to a Requester that did not say that it supports it",
            );
        }
        let party = &self.parties[from.other().index()];
        let owners = party.exposures.get(&handle).map(Vec::as_slice).unwrap_or_default();
        if self.complete && !owners.iter().any(|exposure| exposure.xid == xid) {
            violations.add("8797-4.1-b", format_args!("handle {handle:#010x} does not belong to the xid"));
        }
    }

    /// Finds the segment of `owner`'s Calls that an operation may use, and how far from its start. Reports why not.
    fn find(
        &mut self,
        cx: &mut Context<'_>,
        owner: Side,
        (handle, offset, len): (u32, u64, u64),
        access: Access,
    ) -> Option<(Exposure, u64)> {
        let name = match access {
            Access::Read => "RDMA Read",
            Access::Write => "RDMA Write",
        };
        let from = owner.other();
        let party = &self.parties[owner.index()];
        let exposures = party.exposures.get(&handle).map(Vec::as_slice).unwrap_or_default();
        let mut kind_fits = false;
        for exposure in exposures {
            let Some(chunk) = party.calls.get(&exposure.xid).and_then(|call| call.chunks.get(exposure.chunk))
            else {
                continue;
            };
            if matches!(chunk.usage.kind, ChunkKind::Read { .. }) != (access == Access::Read) {
                continue;
            }
            kind_fits = true;
            let Some(segment) = chunk.segments.get(exposure.segment) else { continue };
            if let Some(at) = offset.checked_sub(segment.offset)
                && at.checked_add(len).is_some_and(|end| end <= u64::from(segment.length))
            {
                return Some((*exposure, at));
            }
        }
        // Other protocols have their own ways to tell handles; and a Call, or an earlier Reply, may be missing.
        if !self.complete || self.protocol != Protocol::RpcRdma {
            self.lose();
        } else if exposures.is_empty() {
            cx.violation(
                from,
                "5041-f",
                format_args!("{name} to handle {handle:#010x}, which no Call offers"),
            );
        } else if kind_fits {
            let text =
                format_args!("{name} of {len} octets at {offset:#x}, outside of handle {handle:#010x}");
            cx.violation(from, "8166-4.4.3-a", text);
        } else {
            let text = format_args!("{name} to handle {handle:#010x}, which is offered for the opposite");
            cx.violation(from, "8166-2.3.2-e", text);
        }
        None
    }

    /// Takes a piece of an RDMA Write.
    pub(crate) fn write(
        &mut self,
        cx: &mut Context<'_>,
        from: Side,
        (handle, offset): (u32, u64),
        octets: &[u8],
        starts: bool,
    ) {
        if starts {
            cx.totals.writes.operations += 1;
        }
        cx.totals.writes.octets += octets.len() as u64;
        // A Write without octets touches nothing: its handle is not looked at (siw-16).
        if octets.is_empty() {
            return;
        }
        let owner = from.other();
        let found = self.find(cx, owner, (handle, offset, octets.len() as u64), Access::Write);
        if let Some((exposure, at)) = found {
            self.place(owner, exposure, at, octets, starts);
        }
    }

    /// Notes that octets were moved from or to a chunk.
    fn place(&mut self, owner: Side, exposure: Exposure, at: u64, octets: &[u8], starts: bool) {
        let calls = &mut self.parties[owner.index()].calls;
        let Some(call) = calls.get_mut(&exposure.xid) else { return };
        let Some(chunk) = call.chunks.get_mut(exposure.chunk) else { return };
        chunk.usage.operations += u32::from(starts);
        self.held += chunk.take(exposure.segment, at, octets);
    }

    /// Takes an RDMA Read Request: its data comes with [`Conversation::read_data`], in the order of the requests.
    pub(crate) fn read_request(
        &mut self,
        cx: &mut Context<'_>,
        from: Side,
        sink: (u32, u64),
        (handle, offset, len): (u32, u64, u64),
    ) {
        cx.totals.reads.operations += 1;
        let owner = from.other();
        // A Read of nothing touches nothing (siw-16).
        let source = match len {
            0 => None,
            _ => self.find(cx, owner, (handle, offset, len), Access::Read),
        };
        if let Some((exposure, _)) = source {
            self.place(owner, exposure, 0, &[], true);
        }
        let reads = &mut self.parties[from.index()].reads;
        if reads.len() == READS_MAX {
            reads.pop_front();
        }
        reads.push_back(Read { sink, len, received: 0, source });
    }

    /// The oldest RDMA Read of `initiator` that was not answered, and how many there are.
    pub(crate) fn oldest_read(&self, initiator: Side) -> (Option<&Read>, usize) {
        let reads = &self.parties[initiator.index()].reads;
        (reads.front(), reads.len())
    }

    /// Takes the next octets of the answer to `initiator`'s oldest RDMA Read; `last` if the answer ends with them.
    pub(crate) fn read_data(&mut self, cx: &mut Context<'_>, initiator: Side, octets: &[u8], last: bool) {
        cx.totals.reads.octets += octets.len() as u64;
        let reads = &mut self.parties[initiator.index()].reads;
        let Some(read) = reads.front_mut() else { return };
        let (at, source) = (read.received, read.source);
        read.received += octets.len() as u64;
        let room = read.len.saturating_sub(at).min(octets.len() as u64) as usize;
        if last {
            reads.pop_front();
        }
        let Some((exposure, start)) = source else { return };
        let owner = initiator.other();
        self.place(owner, exposure, start + at, &octets[..room], false);
        let call = self.parties[owner.index()].calls.get(&exposure.xid);
        if call.is_some_and(|call| call.waits.is_some() && call.is_read()) {
            self.report_waiting(cx, owner, exposure.xid);
        }
    }

    /// Forgets the oldest RDMA Read of `initiator`: its answer was not captured.
    pub(crate) fn drop_read(&mut self, initiator: Side) {
        self.parties[initiator.index()].reads.pop_front();
    }

    /// Ends the connection.
    pub(crate) fn close(&mut self, cx: &mut Context<'_>) {
        let (mut unanswered, mut unknown) = (0, 0);
        for side in [Side::Client, Side::Server] {
            let calls = &self.parties[side.index()].calls;
            let mut waiting: Vec<(u64, u32)> = calls.iter().map(|(xid, call)| (call.age, *xid)).collect();
            let perhaps = calls.values().filter(|call| call.is_perhaps_answered).count();
            unanswered += waiting.len() - perhaps;
            unknown += perhaps;
            waiting.sort_unstable();
            for (_, xid) in waiting {
                self.end_call(cx, side, xid);
            }
        }
        cx.totals.unanswered += unanswered as u64;
        cx.totals.unknown += unknown as u64;
        cx.emit(EventKind::Closed { unanswered, unknown });
    }
}

/// A message of which nothing more is known.
fn empty<'a>(from: Side, header: Result<(Header<'a>, &'a [u8]), stag_wire::rpcrdma::Error>) -> Message<'a> {
    Message {
        from,
        octets: &[],
        invalidated: None,
        header,
        long_payload: None,
        rpc: None,
        answered: None,
        violations: &[],
    }
}

/// Reports a message with the rules that it breaks.
fn report(cx: &mut Context<'_>, message: &Message<'_>, violations: Violations) {
    let violations: Vec<Violation> = violations.into_inner();
    for violation in &violations {
        *cx.totals.violations.entry(violation.rule).or_default() += 1;
    }
    cx.emit(EventKind::Message(&Message { violations: &violations, ..*message }));
}
