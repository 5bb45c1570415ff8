//! Calls and Replies of version 2's transmissions: groups of Sends, and items in target segments or registered memory.

use std::sync::Arc;

use stag_wire::rpcrdma::{HeaderLists, Segment};
use stag_wire::rpcrdma2::{
    self, Continuation, DirectedPlace, Elements, ItemPlace, MessageType, OptionMessage, PlacedItem,
    RequestTransmission, ResponseTransmission, option,
};
use stag_wire::xdr::Reduced;

use crate::call::{Call, Chunk, Wanted, WantedItem};
use crate::check;
use crate::conversation::{Conversation, Parts};
use crate::event::{ChunkKind, ConnectionEnd, Context, Message};
use crate::program;
use crate::reading::{Reading, SentCompound};
use crate::report::{called_by, report, report_answer};
use crate::speaker::Group;
use crate::violations::Violations;

/// Octets of a group's Payload stream that are kept; a longer one is not read.
const STREAM_LEN_MAX: usize = 2 << 20;

/// The part of the Payload stream in a transmission; what its header claims may be more than there is.
fn part<'a>(payload: &'a [u8], claimed: u32, violations: &mut Violations) -> &'a [u8] {
    let Some(part) = payload.get(..claimed as usize) else {
        let len = payload.len();
        violations.add("RTR-9.2-a", format_args!("{claimed} octets of Payload stream in {len}"));
        return payload;
    };
    part
}

impl Conversation {
    /// A message that is no continuation, `what`, came from a side: no group may be open in its direction.
    pub(crate) fn break_group(
        &mut self,
        cx: &mut Context<'_>,
        from: ConnectionEnd,
        direction: MessageType,
        what: &dyn Fn() -> String,
        violations: &mut Violations,
    ) {
        if let Some(group) = self.take_group(from, direction) {
            let what = what();
            violations.add("RTR-4.2-a", format_args!("{what} between the transmissions of a group"));
            self.break_off(cx, from, &group);
        }
    }

    /// A group goes no further.
    fn break_off(&mut self, cx: &mut Context<'_>, from: ConnectionEnd, group: &Group) {
        if group.direction == MessageType::Call {
            self.give_up_call(cx, from, group.xid);
        }
    }

    /// The other side refused a message of a side: if it is a group that goes on, what was sent of it meanwhile is no mistake.
    pub(crate) fn refuse_group(&mut self, from: ConnectionEnd, direction: MessageType, xids: &[u32]) {
        let group = self.group(from, direction);
        if let Some(Group { xid, .. }) = group
            && xids.contains(xid)
        {
            let refused = Some(*xid);
            self.take_group(from, direction);
            self.parties[from.index()].answerable.refused[direction.number() as usize] = refused;
        }
    }

    /// The message that a side is in the midst of, in one direction.
    fn group(&mut self, from: ConnectionEnd, direction: MessageType) -> &mut Option<Group> {
        &mut self.parties[from.index()].speaker.groups[direction.number() as usize]
    }

    /// Takes that message away.
    pub(crate) fn take_group(&mut self, from: ConnectionEnd, direction: MessageType) -> Option<Group> {
        let group = self.group(from, direction).take()?;
        self.held = self.held.saturating_sub(group.stream.as_ref().map_or(0, Vec::len));
        Some(group)
    }

    /// A part of the messages that a side is in the midst of may be missing: they are not read.
    pub(crate) fn drop_groups(&mut self, from: ConnectionEnd) {
        self.take_group(from, MessageType::Call);
        self.take_group(from, MessageType::Reply);
    }

    /// Keeps a message that goes on.
    fn keep_group(&mut self, from: ConnectionEnd, group: Group) {
        let direction = group.direction;
        self.take_group(from, direction);
        self.held += group.stream.as_ref().map_or(0, Vec::len);
        *self.group(from, direction) = Some(group);
    }

    /// Keeps the start of a group, or says what a whole message of one transmission is.
    fn begin_group(&mut self, from: ConnectionEnd, group: Group) -> Option<Group> {
        self.parties[from.index()].answerable.refused[group.direction.number() as usize] = None;
        if group.count <= 1 {
            return Some(group);
        }
        self.keep_group(from, group);
        None
    }

    /// Checks that items in the receiver's buffers are where it has targets.
    fn check_places(
        &self,
        from: ConnectionEnd,
        items: &Elements<'_, PlacedItem<'_>>,
        count: u32,
        violations: &mut Violations,
    ) {
        let structure = self.parties[from.other().index()].speaker.structure.as_ref();
        for item in items.iter() {
            let ItemPlace::Buffers { offset, numbers } = item.place else { continue };
            let Some(groups) = structure else {
                if self.complete {
                    let text = "an item in target segments, although the receiver announced none";
                    violations.add("RTR-5.3-a", text);
                }
                return;
            };
            let targets = || groups.iter().filter(|group| group.is_target);
            let in_one: u64 = targets().map(|group| u64::from(group.count)).sum();
            let limit = in_one.saturating_mul(u64::from(count));
            if let Some(number) = numbers.iter().find(|number| u64::from(*number) >= limit) {
                violations.add("RTR-6.2-a", format_args!("target segment {number}, the group has {limit}"));
            }
            let longest = targets().map(|group| group.len).max().unwrap_or(0);
            if offset > longest {
                violations
                    .add("RTR-7.3-b", format_args!("offset {offset}, the longest segment has {longest}"));
            }
            let room =
                u64::from(longest).saturating_mul(numbers.len() as u64).saturating_sub(u64::from(offset));
            if u64::from(item.len) > room {
                violations.add("RTR-7.3-b", format_args!("{} octets in segments of {room}", item.len));
            }
        }
    }

    /// Takes the first transmission of a Call.
    pub(crate) fn request(
        &mut self,
        cx: &mut Context<'_>,
        seen: &Message<'_>,
        message: &OptionMessage<'_>,
        request: &RequestTransmission<'_>,
        payload: &[u8],
        mut violations: Violations,
    ) {
        let (from, xid) = (seen.from, message.xid);
        self.check_new_call(cx, from, xid, message.credits, &mut violations);
        let limit = self.parties[from.other().index()].speaker.request_limit;
        if request.count > limit.unwrap_or(1) && (self.complete || limit.is_some()) {
            let (count, limit) = (request.count, limit.unwrap_or(1));
            violations
                .add("RTR-5.2-a", format_args!("a Call of {count} transmissions, the limit is {limit}"));
        }
        self.check_places(from, &request.items, request.count, &mut violations);
        self.check_credits(from, request.count, &mut violations);
        self.parties[from.index()].speaker.sends_groups |= request.count > 1;

        let mut chunks = Vec::new();
        let mut reduced = Vec::new();
        for (index, item) in (0..).zip(request.items.iter()) {
            reduced.push(Reduced::read_chunk(index, item.displacement, item.len));
            if let ItemPlace::Explicit(segments) = item.place {
                let kind = ChunkKind::Read { position: item.displacement };
                chunks.push(Chunk::new(kind, segments.iter().collect(), self.keep_data));
                let room: u64 = segments.iter().map(|segment| u64::from(segment.length)).sum();
                if room < u64::from(item.len) {
                    violations.add(
                        "RTR-7.3-c",
                        format_args!("{room} octets are exposed for an item of {}", item.len),
                    );
                }
            }
        }
        let mut directions = Vec::new();
        for (index, wanted) in request.directions.iter().flat_map(|set| set.items.iter()).enumerate() {
            let segments: Vec<Segment> = wanted.place.segments().iter().collect();
            let has_segments = !matches!(wanted.place, DirectedPlace::Buffers);
            let chunk = has_segments.then_some(chunks.len());
            if has_segments {
                chunks.push(Chunk::new(ChunkKind::Write { index }, segments, self.keep_data));
            }
            let takes_buffers = !matches!(wanted.place, DirectedPlace::Explicit(_));
            directions.push(WantedItem { min_len: wanted.min_len, takes_buffers, chunk });
        }
        let octets = if self.keep_data { seen.octets.to_vec() } else { Vec::new() };
        let mut call = Call::new(cx, chunks, octets, self.take_age());
        call.version = rpcrdma2::VERSION;
        call.credits = request.count;
        call.wanted = Some(Wanted { receives: request.response_receives, directions });

        let stream = part(payload, request.payload_len, &mut violations);
        let group = Group {
            xid,
            direction: MessageType::Call,
            lead_option: option::XMTREQ,
            count: request.count,
            next: 1,
            stream: Some(stream.to_vec()),
            reduced,
            called: None,
        };
        let mut reading = Reading::default();
        if let Some(group) = self.begin_group(from, group) {
            reading = program::read_call(stream, &group.reduced);
            violations.call_payload(&mut reading);
            (call.rpc, call.sent) = (reading.rpc, reading.take_sent(cx));
        } else {
            // The header is enough to know what is called; the arguments go on.
            reading.rpc = program::read_call(stream, &[]).rpc;
            call.rpc = reading.rpc;
        }
        if let Err(refused) = header_start(message, stream) {
            violations.version_2(&refused);
        }
        report(cx, &reading.message(*seen), violations);
        self.begin_call(cx, from, xid, call);
    }

    /// Takes the first transmission of a Reply.
    pub(crate) fn response(
        &mut self,
        cx: &mut Context<'_>,
        seen: &Message<'_>,
        message: &OptionMessage<'_>,
        response: &ResponseTransmission<'_>,
        payload: &[u8],
        mut violations: Violations,
    ) {
        self.confirm(seen.from);
        self.check_invalidated(seen, message.xid, &mut violations);
        let stream = part(payload, response.payload_len, &mut violations);
        if let Err(refused) = header_start(message, stream) {
            violations.version_2(&refused);
        }
        self.check_places(seen.from, &response.items, response.count, &mut violations);
        let parts = Parts {
            version: rpcrdma2::VERSION,
            xid: message.xid,
            credits: message.credits,
            is_long: false,
            lists: HeaderLists::default(),
            payload: stream,
        };
        let call = self.answered_call(cx, seen, &parts, &mut violations);
        if let Some(call) = &call {
            self.check_results(call, response, &mut violations);
        }
        let reduced = (0..)
            .zip(response.items.iter())
            .filter_map(|(index, item)| match item.place {
                ItemPlace::Explicit(_) | ItemPlace::Buffers { .. } => {
                    Some(Reduced::write_chunk(index, item.len))
                }
                ItemPlace::TooShort => Some(Reduced::empty_write_chunk(index)),
                ItemPlace::NoItem => None,
            })
            .collect();
        let group = Group {
            xid: message.xid,
            direction: MessageType::Reply,
            lead_option: option::XMTRESP,
            count: response.count,
            next: 1,
            stream: Some(stream.to_vec()),
            reduced,
            called: called_by(call.as_ref()),
        };
        let mut reading = Reading::default();
        if let Some(group) = self.begin_group(seen.from, group) {
            reading = program::read_reply(stream, group.called.as_ref(), &group.reduced);
            violations.reply_payload(&mut reading);
        }
        report_answer(cx, &reading.message(*seen), call.as_ref(), violations);
    }

    /// Compares a Reply's items with what its Call wanted.
    fn check_results(&self, call: &Call, response: &ResponseTransmission<'_>, violations: &mut Violations) {
        let more = response.count - 1;
        let receives = call.wanted.as_ref().map_or(0, |wanted| wanted.receives);
        if !call.is_transmission() {
            violations.add("RTR-5.2-b", "a transmission answers a Call that is none");
        } else if more > receives {
            let text = format_args!("{more} continuations, although the peer has Receives for {receives}");
            violations.add("RTR-5.2-b", text);
        }
        let directions = call.wanted.as_ref().map(|wanted| &wanted.directions[..]).unwrap_or_default();
        let (wanted, found) = (directions.len(), response.items.len());
        if wanted != found {
            violations.add("RTR-7.4-f", format_args!("{wanted} directions, {found} results"));
        }
        for (direction, item) in directions.iter().zip(response.items.iter()) {
            if item.len < direction.min_len
                && matches!(item.place, ItemPlace::Explicit(_) | ItemPlace::Buffers { .. })
            {
                let (len, least) = (item.len, direction.min_len);
                violations.add(
                    "RTR-7.4-c",
                    format_args!("an item of {len} octets is placed, {least} is the least"),
                );
            }
            match (item.place, direction.chunk.and_then(|chunk| call.chunks.get(chunk))) {
                (ItemPlace::Buffers { .. }, _) if !direction.takes_buffers => {
                    violations.add("RTR-7.4-f", "a result in target segments, directed to memory only");
                }
                (ItemPlace::Explicit(_), None) => {
                    violations.add("RTR-7.4-f", "a result in memory, directed to target segments only");
                }
                (ItemPlace::Explicit(segments), Some(chunk)) => {
                    check::returned_chunk("result", chunk, segments.iter(), self.complete, violations);
                    let used: u64 = segments.iter().map(|segment| u64::from(segment.length)).sum();
                    if used != u64::from(item.len) {
                        let len = item.len;
                        violations
                            .add("RTR-7.3-c", format_args!("{used} octets in memory for a result of {len}"));
                    }
                }
                _ => {}
            }
        }
    }

    /// Takes a further transmission.
    pub(crate) fn continuation(
        &mut self,
        cx: &mut Context<'_>,
        seen: &Message<'_>,
        message: &OptionMessage<'_>,
        continuation: &Continuation,
        payload: &[u8],
        mut violations: Violations,
    ) {
        cx.totals.continuations += 1;
        let from = seen.from;
        let part = part(payload, continuation.payload_len, &mut violations);
        let Some(mut group) = self.take_group(from, message.direction) else {
            let answerable = &mut self.parties[from.index()].answerable;
            let is_refused = answerable.refused[message.direction.number() as usize] == Some(message.xid);
            if message.direction == MessageType::Call && !is_refused {
                answerable.note(message.xid);
            }
            if self.complete && !is_refused {
                violations.add("RTR-9.4-a", "a continuation of nothing");
            }
            return report(cx, seen, violations);
        };
        let expected = (group.xid, group.next, group.lead_option);
        let found = (message.xid, continuation.number, continuation.lead_option);
        if found != expected {
            let (xid, number, lead) = expected;
            let text = format_args!("xid, number and operation are not {xid:#010x}, {number}, {lead}");
            violations.add("RTR-9.4-a", text);
            self.break_off(cx, from, &group);
            return report(cx, seen, violations);
        }
        group.next += 1;
        group.stream = group.stream.filter(|stream| stream.len() + part.len() <= STREAM_LEN_MAX);
        if let Some(stream) = &mut group.stream {
            stream.extend_from_slice(part);
        }
        if group.next < group.count {
            self.keep_group(from, group);
            return report(cx, seen, violations);
        }
        let Some(stream) = &group.stream else {
            Conversation::note(cx, from, "a message of more than 2 MiB in transmissions: it is not read");
            return report(cx, seen, violations);
        };
        let reading = match group.direction {
            MessageType::Call => {
                let mut reading = program::read_call(stream, &group.reduced);
                violations.call_payload(&mut reading);
                self.keep_sent(from, group.xid, reading.take_sent(cx));
                reading
            }
            MessageType::Reply => {
                let mut reading = program::read_reply(stream, group.called.as_ref(), &group.reduced);
                violations.reply_payload(&mut reading);
                reading
            }
        };
        report(cx, &Message { long_payload: Some(stream), ..reading.message(*seen) }, violations);
    }

    /// Keeps the operations of a Call that was read late.
    fn keep_sent(&mut self, from: ConnectionEnd, xid: u32, sent: Option<Arc<SentCompound>>) {
        if let Some(call) = self.parties[from.index()].calls.get_mut(&xid) {
            let before = call.held();
            call.sent = sent;
            self.held = (self.held + call.held()).saturating_sub(before);
        }
    }
}

/// Checks that a Payload stream starts with the xid and the direction of its first transmission.
fn header_start(message: &OptionMessage<'_>, stream: &[u8]) -> Result<(), rpcrdma2::Error2> {
    message.check_start(stream).map_err(|refused| refused.error)
}
