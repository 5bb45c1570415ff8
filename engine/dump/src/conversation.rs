//! RPC-over-RDMA on one connection, over whatever fabric: Calls wait for their Replies, chunks for the RDMA Reads and
//! Writes that use them.
//!
//! Each side is looked at as a Requester, since both can be one (RFC 8167). What depends on everything before having
//! been captured is checked only while that is so ([`Conversation::lose`]).

use stag_wire::cm_private_data::{self, InlineThresholds, PrivateData};
use stag_wire::reliable_reply::{self, ReliableReplies, ReliableReply};
use stag_wire::rpcrdma::{Direction, Fixed, HeaderLists, MessageProcedure, NFS_PORT};
use stag_wire::rpcrdma2::{self, MessageType};

use crate::call::{self, Call, Waiting};
use crate::check;
use crate::event::{ChunkKind, ConnectionEnd, Context, EventKind, Extension, Message};
use crate::party::{Exposure, Party, Read};
use crate::program;
use crate::reading::Reading;
use crate::report::{called_by, report, report_answer, seen};
use crate::violations::Violations;

/// Calls of one side that wait for their Replies at most; beyond, the oldest one is given up.
const CALLS_MAX: usize = 4096;

/// RDMA Reads that one side has outstanding at most; beyond, the oldest one is given up.
const READS_MAX: usize = 4096;

/// Credits beyond which a grant cannot be meant: a Receive must be posted for each (8166-3.3.1-d), and no device has
/// queues as long. No rule names a limit.
const GRANT_MAX: u32 = 65_536;

/// What breaks a group of version 2, to be named.
const ANOTHER_VERSION: &str = "a message of another version";

/// A message with chunk lists, of whichever version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts<'a> {
    pub(crate) version: u32,
    pub(crate) xid: u32,
    pub(crate) credits: u32,
    /// The Payload stream is in a chunk.
    pub(crate) is_long: bool,
    pub(crate) lists: HeaderLists<'a>,
    /// What follows the header.
    pub(crate) payload: &'a [u8],
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
    pub(crate) parties: [Party; 2],
    protocol: Protocol,
    /// All of it was captured so far.
    whole: bool,
    /// `whole`, and nothing is known to be late.
    pub(crate) complete: bool,
    pub(crate) keep_data: bool,
    /// It was told that a grant is absurd.
    is_lavish: bool,
    /// Messages of version 1 were exchanged.
    pub(crate) speaks_version_1: bool,
    next_age: u64,
    pub(crate) held: usize,
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
            speaks_version_1: false,
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
    pub(crate) fn lack(&mut self, from: ConnectionEnd) {
        self.lose();
        self.drop_groups(from);
        for call in self.parties[from.other().index()].calls.values_mut() {
            call.is_perhaps_answered = true;
        }
    }

    /// Finds the RDMA Read whose answer goes on at a place, and forgets those before it: their answers were not
    /// captured. `false` if there is none.
    pub(crate) fn find_read(&mut self, initiator: ConnectionEnd, (stag, offset): (u32, u64)) -> bool {
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

    /// Something that was sent earlier may be missing, or come late.
    pub(crate) fn doubt(&mut self, late: bool) {
        self.complete = self.whole && !late;
    }

    /// Tells whether all of the connection was captured so far.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Takes the private data of a side's set-up message; returns what RFC 8797 finds in it.
    pub(crate) fn private_data(&mut self, from: ConnectionEnd, octets: &[u8]) -> Option<PrivateData> {
        let found = PrivateData::find(octets);
        self.parties[from.index()].told = Some(found);
        self.parties[from.index()].reliable_reply = ReliableReply::find(octets);
        if found.is_some() {
            self.protocol = Protocol::RpcRdma;
        }
        found
    }

    /// What both sides agreed on, seen from `from`, if both were heard.
    pub(crate) fn thresholds(&self, from: ConnectionEnd) -> Option<InlineThresholds> {
        let own = self.parties[from.index()].told?.unwrap_or(PrivateData::ABSENT);
        let peer = self.parties[from.other().index()].told?;
        Some(cm_private_data::inline_thresholds(&own, peer.as_ref()))
    }

    /// What both sides agreed on about replies of any size, seen from `from`.
    pub(crate) fn reliable_replies(&self, from: ConnectionEnd) -> ReliableReplies {
        let told = |side: ConnectionEnd| self.parties[side.index()].reliable_reply;
        reliable_reply::agree(told(from).as_ref(), told(from.other()).as_ref())
    }

    /// Takes a whole Send.
    pub(crate) fn send(
        &mut self,
        cx: &mut Context<'_>,
        from: ConnectionEnd,
        octets: &[u8],
        invalidated: Option<u32>,
    ) {
        let seen = seen(from, octets, invalidated);
        let is_message = seen.header.is_ok() || matches!(seen.extension, Some(Extension::Version2 { .. }));
        if is_message {
            self.protocol = Protocol::RpcRdma;
        } else if self.protocol == Protocol::Unknown {
            cx.totals.other_sends += 1;
            self.note_unreadable(from, octets);
            return;
        }
        cx.totals.messages += 1;
        let mut violations = Violations::default();
        if Fixed::parse(octets).is_ok_and(|(fixed, _)| fixed.version == rpcrdma2::VERSION)
            && seen.header.is_err()
        {
            return self.send_version_2(cx, &seen, violations);
        }
        let thresholds = self.thresholds(from);
        if let Some(thresholds) = &thresholds
            && octets.len() as u64 > u64::from(thresholds.send)
        {
            let (len, limit) = (octets.len(), thresholds.send);
            violations.add("8166-4.2.4-d", format_args!("{len} octets inline, the threshold is {limit}"));
        }
        if let Some(Extension::Done(done)) = seen.extension
            && self.reliable_replies(from).pull_max > 0
        {
            return self.done(cx, &seen, done, violations);
        }
        let (header, payload) = match seen.header {
            Ok(parts) => parts,
            Err(error) => {
                violations.header(&error);
                self.break_group(cx, from, MessageType::Call, &|| ANOTHER_VERSION.into(), &mut violations);
                self.note_unreadable(from, octets);
                return report(cx, &seen, violations);
            }
        };
        let parts = Parts {
            version: header.version(),
            xid: header.xid(),
            credits: header.credits(),
            is_long: header.procedure() == MessageProcedure::Nomsg,
            lists: header.lists(),
            payload,
        };
        let is_exposed =
            self.reliable_replies(from).expose_max > 0 && header.procedure() == MessageProcedure::Nomsg;
        if !matches!(header.procedure(), MessageProcedure::Error(_)) {
            self.speaks_version_1 = true;
        }
        if is_exposed && header.has_position_zero() {
            self.check_invalidated(&seen, parts.xid, &mut violations);
            return self.expose(cx, &seen, &parts, violations);
        }
        match header.direction(payload) {
            Some(Direction::Call) => {
                if let Err(error) = header.check_call(payload) {
                    violations.header(&error);
                }
                self.break_group(cx, from, MessageType::Call, &|| ANOTHER_VERSION.into(), &mut violations);
                self.call(cx, &seen, &parts, violations);
            }
            Some(Direction::Reply) => {
                self.check_invalidated(&seen, parts.xid, &mut violations);
                if let Err(error) = header.check_reply(payload) {
                    violations.header(&error);
                }
                self.reply(cx, &seen, &parts, violations);
            }
            Some(Direction::Error) => {
                self.check_invalidated(&seen, parts.xid, &mut violations);
                self.error(cx, &seen, &[parts.xid], violations);
            }
            None => {
                violations.no_direction(&header, payload);
                self.note_unreadable(from, octets);
                report(cx, &seen, violations);
            }
        }
    }

    /// Checks the handle that came to be invalidated with a Reply.
    pub(crate) fn check_invalidated(&self, seen: &Message<'_>, xid: u32, violations: &mut Violations) {
        let Some(handle) = seen.invalidated else { return };
        // Linux's server says that it does not, and does: what counts is that the Requester is ready.
        let told = self.parties[seen.from.other().index()].told;
        let allowed = told.is_none_or(|told| told.is_some_and(|told| told.remote_invalidation));
        self.check_invalidation(seen.from, xid, handle, allowed, violations);
    }

    /// Takes a Call whose header was checked.
    pub(crate) fn call(
        &mut self,
        cx: &mut Context<'_>,
        seen: &Message<'_>,
        parts: &Parts<'_>,
        mut violations: Violations,
    ) {
        let (from, xid) = (seen.from, parts.xid);
        self.check_new_call(cx, from, xid, parts.credits, &mut violations);
        let octets = if self.keep_data { seen.octets.to_vec() } else { Vec::new() };
        let mut call = Call::new(cx, call::chunks(&parts.lists, self.keep_data), octets, self.take_age());
        call.version = parts.version;
        self.check_credits(from, 1, &mut violations);
        if parts.is_long {
            call.octets = seen.octets.to_vec();
            call.waits = Some(Waiting { invalidated: seen.invalidated, violations });
        } else {
            let mut reading = program::read_call(parts.payload, &call.reduced_arguments());
            violations.call_payload(&mut reading);
            (call.rpc, call.sent) = (reading.rpc, reading.take_sent(cx));
            report(cx, &reading.message(*seen), violations);
        }
        self.begin_call(cx, from, xid, call);
    }

    /// Counts a Call, and checks what its header says of credits and xid. One with this xid that was not answered ends.
    pub(crate) fn check_new_call(
        &mut self,
        cx: &mut Context<'_>,
        from: ConnectionEnd,
        xid: u32,
        credits: u32,
        violations: &mut Violations,
    ) {
        cx.totals.calls += 1;
        if credits == 0 {
            violations.add("8166-X-8", "a Call that asks for 0 credits");
        }
        if self.parties[from.index()].calls.contains_key(&xid) {
            if self.complete {
                violations
                    .add("5531-e", format_args!("xid {xid:#010x} is in use by a Call not answered yet"));
            }
            self.end_call(cx, from, xid);
        }
    }

    /// The place of the next Call in the order of the connection.
    pub(crate) fn take_age(&mut self) -> u64 {
        self.next_age += 1;
        self.next_age - 1
    }

    /// Checks that one more Call is within the grant.
    pub(crate) fn check_credits(&self, from: ConnectionEnd, credits: u32, violations: &mut Violations) {
        if !self.complete {
            return;
        }
        let party = &self.parties[from.index()];
        // Calls take one each, but for version 2's of several transmissions (RTR-X-8).
        let continued = party.calls.values().filter(|call| call.credits > 1);
        let more: u64 = match party.speaker.sends_groups {
            true => continued.map(|call| u64::from(call.credits) - 1).sum(),
            false => 0,
        };
        let in_flight = party.calls.len() as u64 + more + u64::from(credits);
        match party.granted {
            None if !party.calls.is_empty() => {
                violations.add("8166-3.3.3-a", "a second Call before the first Reply of the connection");
            }
            Some(granted) if in_flight > u64::from(granted) => {
                violations
                    .add("8166-3.3.1-b", format_args!("{in_flight} credits in use, {granted} were granted"));
            }
            _ => {}
        }
    }

    /// Puts a Call where its Reply and its RDMA operations find it.
    pub(crate) fn begin_call(&mut self, cx: &mut Context<'_>, from: ConnectionEnd, xid: u32, call: Call) {
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
                let exposure = Exposure { xid, chunk, segment, is_reply: false };
                party.exposures.entry(exposed.handle).or_default().push(exposure);
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
    pub(crate) fn end_call(&mut self, cx: &mut Context<'_>, from: ConnectionEnd, xid: u32) -> Option<Call> {
        self.report_waiting(cx, from, xid);
        let party = &mut self.parties[from.index()];
        let call = party.calls.remove(&xid)?;
        self.held = self.held.saturating_sub(call.held());
        let segments = call.chunks.iter().flat_map(|chunk| &chunk.segments);
        party.conceal(segments.map(|segment| segment.handle), xid, false);
        Some(call)
    }

    /// Reports a Call that waited for its Payload stream to be read, as far as it was.
    fn report_waiting(&mut self, cx: &mut Context<'_>, from: ConnectionEnd, xid: u32) {
        let party = &mut self.parties[from.index()];
        let Some(call) = party.calls.get_mut(&xid) else { return };
        let Some(Waiting { invalidated, mut violations }) = call.waits.take() else { return };
        let octets = std::mem::take(&mut call.octets);
        let long_payload = call.position_zero().map(|chunk| chunk.usage.data.clone());
        let mut reading = Reading::default();
        if let Some(stream) = long_payload.as_ref().filter(|stream| !stream.is_empty())
            && call.is_read()
        {
            reading = program::read_call(stream, &call.reduced_arguments());
            violations.call_payload(&mut reading);
            violations.long_xid(xid, stream);
            (call.rpc, call.sent) = (reading.rpc, reading.sent.take());
            self.held += call.sent.as_ref().map_or(0, |sent| sent.held());
        }
        let (frame, time) = (call.frame, call.time);
        if self.keep_data {
            call.octets.clone_from(&octets);
        } else {
            self.held = self.held.saturating_sub(octets.len());
        }
        let seen = seen(from, &octets, invalidated);
        let message = Message { long_payload: long_payload.as_deref(), ..reading.message(seen) };
        // The Call's own frame, not that of what completed it.
        let now = (cx.frame, cx.time, cx.missing);
        (cx.frame, cx.time, cx.missing) = (frame, time, 0);
        report(cx, &message, violations);
        (cx.frame, cx.time, cx.missing) = now;
    }

    /// Takes an error: it answers a Call of the other side, or what may have been one, with one of these xids.
    pub(crate) fn error(
        &mut self,
        cx: &mut Context<'_>,
        seen: &Message<'_>,
        xids: &[u32],
        mut violations: Violations,
    ) {
        cx.totals.errors += 1;
        self.refuse_group(seen.from.other(), MessageType::Call, xids);
        let answered = self.end_answered(cx, seen.from.other(), xids);
        match (&answered, xids) {
            (Some(call), _) => cx.totals.paired += u64::from(call.is_some()),
            (None, [xid, ..]) if self.complete => {
                violations
                    .add("8166-4.5-e", format_args!("an RDMA_ERROR for xid {xid:#010x}, which no Call has"));
            }
            (None, _) => self.lose(),
        }
        report_answer(cx, seen, answered.flatten().as_ref(), violations);
    }

    /// Counts a Reply, notes its grant, and takes its Call away.
    pub(crate) fn answered_call(
        &mut self,
        cx: &mut Context<'_>,
        seen: &Message<'_>,
        parts: &Parts<'_>,
        violations: &mut Violations,
    ) -> Option<Call> {
        cx.totals.replies += 1;
        if parts.credits == 0 {
            violations.add("8166-3.3.1-c", "a Reply that grants 0 credits");
        }
        let granted = parts.credits.max(1);
        if granted > GRANT_MAX && !std::mem::replace(&mut self.is_lavish, true) {
            cx.emit(EventKind::Note(
                seen.from,
                "a Reply grants more credits than Receives can be posted (8166-3.3.1-d)",
            ));
        }
        let requester = seen.from.other();
        let known = &mut self.parties[requester.index()].granted;
        *known = Some(known.map_or(granted, |known| known.max(granted)));
        let xid = parts.xid;
        let call = self.end_call(cx, requester, xid);
        match &call {
            Some(call) => {
                cx.totals.paired += 1;
                if call.version != parts.version {
                    let (of_call, found) = (call.version, parts.version);
                    violations
                        .add("V2-5.3-a", format_args!("version {found} answers a Call of version {of_call}"));
                }
            }
            // Its receiver could read it.
            None if self.parties[requester.index()].answerable.take(xid) => {}
            None if self.complete => {
                violations.add("8166-X-10", format_args!("a Reply with xid {xid:#010x}, which no Call has"));
            }
            None => self.lose(),
        }
        call
    }

    /// Takes a Reply whose header was checked.
    pub(crate) fn reply(
        &mut self,
        cx: &mut Context<'_>,
        seen: &Message<'_>,
        parts: &Parts<'_>,
        mut violations: Violations,
    ) {
        let call = self.answered_call(cx, seen, parts, &mut violations);
        if let Some(call) = &call {
            check::returned_chunks(call, &parts.lists, parts.is_long, self.complete, &mut violations);
        }
        let long_payload = call.as_ref().filter(|_| parts.is_long).and_then(|call| {
            let chunk = call.chunks.iter().find(|chunk| chunk.usage.kind == ChunkKind::Reply)?;
            let len = parts.lists.reply_chunk()?.total_len();
            // With a part missing, the rest says nothing.
            chunk.usage.data.get(..usize::try_from(len).ok()?).filter(|_| chunk.usage.moved >= len)
        });
        let stream = if parts.is_long { long_payload } else { Some(parts.payload) };
        let reduced = call.as_ref().map(|call| call.reduced_results(&parts.lists)).unwrap_or_default();
        let mut reading = Reading::default();
        if let Some(stream) = stream {
            reading = program::read_reply(stream, called_by(call.as_ref()).as_ref(), &reduced);
            violations.reply_payload(&mut reading);
            if long_payload.is_some() {
                violations.long_xid(parts.xid, stream);
            }
        }
        let message = Message { long_payload, ..reading.message(*seen) };
        report_answer(cx, &message, call.as_ref(), violations);
    }

    /// Checks that a Send may invalidate `handle`.
    fn check_invalidation(
        &self,
        from: ConnectionEnd,
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
        owner: ConnectionEnd,
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
            let Some(chunk) = party.chunk(exposure) else { continue };
            let is_read = matches!(chunk.usage.kind, ChunkKind::Read { .. } | ChunkKind::Exposed);
            if is_read != (access == Access::Read) {
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
        from: ConnectionEnd,
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
    fn place(&mut self, owner: ConnectionEnd, exposure: Exposure, at: u64, octets: &[u8], starts: bool) {
        let party = &mut self.parties[owner.index()];
        let chunk = match exposure.is_reply {
            true => party.exposed.get_mut(&exposure.xid).map(|reply| &mut reply.chunk),
            false => party.calls.get_mut(&exposure.xid).and_then(|call| call.chunks.get_mut(exposure.chunk)),
        };
        let Some(chunk) = chunk else { return };
        chunk.usage.operations += u32::from(starts);
        self.held += chunk.take(exposure.segment, at, octets);
    }

    /// Takes an RDMA Read Request: its data comes with [`Conversation::read_data`], in the order of the requests.
    pub(crate) fn read_request(
        &mut self,
        cx: &mut Context<'_>,
        from: ConnectionEnd,
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
    pub(crate) fn oldest_read(&self, initiator: ConnectionEnd) -> (Option<&Read>, usize) {
        let reads = &self.parties[initiator.index()].reads;
        (reads.front(), reads.len())
    }

    /// Takes the next octets of the answer to `initiator`'s oldest RDMA Read, and `missing` more that were not captured; `last`
    /// if the answer ends with them.
    pub(crate) fn read_data(
        &mut self,
        cx: &mut Context<'_>,
        initiator: ConnectionEnd,
        octets: &[u8],
        missing: usize,
        last: bool,
    ) {
        cx.totals.reads.octets += octets.len() as u64;
        let reads = &mut self.parties[initiator.index()].reads;
        let Some(read) = reads.front_mut() else { return };
        let (at, source) = (read.received, read.source);
        read.received += (octets.len() + missing) as u64;
        let room = read.len.saturating_sub(at).min(octets.len() as u64) as usize;
        if last {
            reads.pop_front();
        }
        let Some((exposure, start)) = source else { return };
        let owner = initiator.other();
        self.place(owner, exposure, start + at, &octets[..room], false);
        let calls = &self.parties[owner.index()].calls;
        let call = calls.get(&exposure.xid).filter(|_| !exposure.is_reply);
        if call.is_some_and(|call| call.waits.is_some() && call.is_read()) {
            self.report_waiting(cx, owner, exposure.xid);
        }
    }

    /// Forgets the oldest RDMA Read of `initiator`: its answer was not captured.
    pub(crate) fn drop_read(&mut self, initiator: ConnectionEnd) {
        self.parties[initiator.index()].reads.pop_front();
    }

    /// A message cannot be read beyond its xid: its receiver may answer it with an error, unless it is an error itself.
    pub(crate) fn note_unreadable(&mut self, from: ConnectionEnd, octets: &[u8]) {
        if let Ok((fixed, _)) = Fixed::parse(octets)
            && fixed.procedure != rpcrdma2::procedure::ERROR
        {
            self.parties[from.index()].answerable.note(fixed.xid);
        }
    }

    /// A group of Calls broke off: its Call is over, and is answered with an error about the group.
    pub(crate) fn give_up_call(&mut self, cx: &mut Context<'_>, from: ConnectionEnd, xid: u32) {
        if self.end_call(cx, from, xid).is_some() {
            self.parties[from.index()].answerable.note(xid);
        }
    }

    /// Takes away what one of these xids answers: a message that cannot be read, else a Call, else characteristics. `None`: there is
    /// nothing of them.
    pub(crate) fn end_answered(
        &mut self,
        cx: &mut Context<'_>,
        requester: ConnectionEnd,
        xids: &[u32],
    ) -> Option<Option<Call>> {
        let answerable = &mut self.parties[requester.index()].answerable;
        if xids.iter().any(|xid| answerable.take(*xid)) {
            return Some(None);
        }
        if let Some(call) = xids.iter().find_map(|xid| self.end_call(cx, requester, *xid)) {
            return Some(Some(call));
        }
        let told = &mut self.parties[requester.index()].answerable.told;
        xids.iter().any(|xid| told.take(*xid)).then_some(None)
    }

    /// Ends the connection.
    pub(crate) fn close(&mut self, cx: &mut Context<'_>) {
        let (mut unanswered, mut unknown) = (0, 0);
        for side in [ConnectionEnd::Client, ConnectionEnd::Server] {
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
        self.end_extensions();
        cx.totals.unanswered += unanswered as u64;
        cx.totals.unknown += unknown as u64;
        cx.emit(EventKind::Closed { unanswered, unknown });
    }
}
