//! A capture as lines of text.

use std::collections::HashSet;
use std::fmt::{self, Write as _};
use std::time::Duration;

use stag_dump::{
    Answered, CapturedEvent, CapturedFabric, ChunkKind, ChunkUse, ConnectionEnd, EventKind, Extension,
    Message, Rpc, RuleViolation, Setup, Totals,
};
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::values::count;
use stag_server::wrapped::{columns, wrapped};
use stag_wire::rpcrdma::{ErrorBody, HeaderLists, MessageProcedure, Segment};
use stag_wire::rpcrdma2::Body2;

use super::show::Show;
use super::version2;

/// Lines.
#[derive(Default)]
pub(super) struct Text {
    /// Times are shown since the first frame.
    start: Duration,
    /// Connections over RoCE, whose gaps are counted in packets.
    roce: HashSet<u64>,
}

impl Text {
    fn is_roce(&self, connection: u64) -> bool {
        self.roce.contains(&connection)
    }
}

/// `1 octet is`, `2 octets are`.
fn are(number: u64, unit: &str) -> String {
    format!("{} {}", count(number, unit), if number == 1 { "is" } else { "are" })
}

/// An arrow that points away from the sender, with the client on the left.
fn arrow(from: ConnectionEnd) -> char {
    match from {
        ConnectionEnd::Client => '>',
        ConnectionEnd::Server => '<',
    }
}

impl Show for Text {
    fn begin(&mut self, time: Duration) {
        self.start = time;
    }

    fn event(&mut self, event: &CapturedEvent<'_>, out: &mut Output) -> Result<(), CommandFailure> {
        let time = event.time.saturating_sub(self.start);
        let place = |mark: char| {
            format!(
                "{:>7} {:>5}.{:06} {:>4} {mark} ",
                event.frame,
                time.as_secs(),
                time.subsec_micros(),
                event.connection
            )
        };
        match &event.kind {
            EventKind::Opened(ends) => {
                let midway = if ends.midway { ", joined midway: who is the client is a guess" } else { "" };
                let (fabric, client, server) = (ends.fabric, ends.client, ends.server);
                if fabric == CapturedFabric::Roce {
                    self.roce.insert(event.connection);
                }
                tell(&place('+'), format_args!("{fabric} {client} > {server}{midway}"), out)
            }
            EventKind::Setup(from, setup) => tell(&place(arrow(*from)), set_up(setup), out),
            EventKind::Message(message) => {
                tell(&place(arrow(message.from)), line(message, event.time), out)?;
                if let Some(compound) = message.compound {
                    let place = place('.');
                    compound.operations.iter().try_for_each(|operation| tell(&place, operation, out))?;
                    if compound.unlisted > 0 {
                        let more = count(u64::from(compound.unlisted), "more operation");
                        tell(&place, format_args!("and {more}"), out)?;
                    }
                }
                message.violations.iter().try_for_each(|broken| violation(broken, place('!'), out))
            }
            EventKind::Violation(from, broken) => {
                violation(broken, format!("{}{} ", place('!'), arrow(*from)), out)
            }
            EventKind::Gap(from, len) => {
                let unit = if self.is_roce(event.connection) { "packet" } else { "octet" };
                let what = format_args!("before this frame {} not in the capture", are(*len, unit));
                tell(&place(arrow(*from)), format_args!("gap: {what}"), out)
            }
            EventKind::Note(from, note) => tell(&place(arrow(*from)), note, out),
            EventKind::Terminate(from, terminate) => {
                tell(&place(arrow(*from)), format_args!("Terminate: {}", terminate.text), out)
            }
            EventKind::Closed { unanswered, unknown } => {
                self.roce.remove(&event.connection);
                let mut end = format!("{}end", place('-'));
                for (number, what) in [
                    (*unanswered as u64, "without a Reply"),
                    (*unknown as u64, "whose Reply may be in a gap"),
                ] {
                    if number > 0 {
                        let _ = write!(end, ", {} {what}", count(number, "Call"));
                    }
                }
                out.line(end)
            }
        }
    }

    fn totals(&mut self, totals: &Totals, out: &mut Output) -> Result<(), CommandFailure> {
        let t = totals;
        tell("", format_args!("{} frames, {} RDMA connections", t.frames, t.connections), out)?;
        let (calls, replies, errors) = (t.calls, t.replies, t.errors);
        tell(
            "",
            format_args!(
                "{} messages: {calls} Calls, {replies} Replies, {errors} errors; {} paired, {} Calls without a Reply",
                t.messages, t.paired, t.unanswered
            ),
            out,
        )?;
        let (reads, writes) = (t.reads, t.writes);
        tell(
            "",
            format_args!(
                "{} RDMA Reads of {} octets, {} RDMA Writes of {} octets",
                reads.operations, reads.octets, writes.operations, writes.octets
            ),
            out,
        )?;
        let unchecked = t.segments.saturating_sub(t.crc_good + t.crc_bad);
        tell(
            "",
            format_args!(
                "{} FPDUs or packets: CRC good {}, bad {}, not checked {unchecked}",
                t.segments, t.crc_good, t.crc_bad
            ),
            out,
        )?;
        let rare = [
            (t.unknown, "Calls whose Replies may be in a gap"),
            (t.gaps, "gaps: places where the capture lacks something"),
            (t.other_sends, "Sends of other protocols"),
            (t.missing, "octets of TCP missing in the capture"),
            (t.duplicates, "packets that came before"),
            (t.fragments, "IP fragments, left out"),
            (t.malformed, "malformed frames, left out"),
            (t.frames_of_other_links, "frames of link types that are not read, left out"),
            (t.given_up, "quiet connections given up to keep within memory"),
        ];
        for (count, what) in rare.into_iter().filter(|(count, _)| *count > 0) {
            tell("", format_args!("{count} {what}"), out)?;
        }
        if t.messages == 0 {
            return out.line("nothing to check");
        }
        if totals.violations.is_empty() {
            return out.line("no violations");
        }
        let rules: Vec<String> = t.violations.iter().map(|(rule, count)| format!("{rule} {count}")).collect();
        tell("", format_args!("{}: {}", count(t.violation_count(), "violation"), rules.join(", ")), out)
    }
}

fn violation(broken: &RuleViolation, place: String, out: &mut Output) -> Result<(), CommandFailure> {
    tell(&place, format_args!("{}: {}", broken.rule, broken.text), out)
}

/// Says something of an event, behind where it happened.
fn tell(place: &str, text: impl fmt::Display, out: &mut Output) -> Result<(), CommandFailure> {
    out.line(wrapped(place, &text.to_string(), columns()))
}

fn set_up(setup: &Setup<'_>) -> String {
    let options: Vec<String> = setup.options.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let mut text = format!("{}: {}", setup.name, options.join(", "));
    match &setup.parameters {
        Some(told) => {
            let invalidation = if told.remote_invalidation { "yes" } else { "no" };
            let (send, receive) = (told.send_size.octets(), told.receive_size.octets());
            let _ =
                write!(text, "; inline send {send}, receive {receive}, remote invalidation {invalidation}");
        }
        None if setup.private_data.is_empty() || setup.reliable_reply.is_some() => {}
        None => {
            text.push_str("; private data ");
            for octet in setup.private_data {
                let _ = write!(text, "{octet:02x}");
            }
        }
    }
    if let Some(told) = &setup.reliable_reply {
        let yes = |flag| if flag { "yes" } else { "no" };
        let (pulls, exposes, receives) = (yes(told.pulls), yes(told.exposes), told.done_receives);
        let second = yes(setup.announces_version_2);
        let _ = write!(
            text,
            "; pulls Replies {pulls}, exposes Replies {exposes}, Receives for DONE {receives}, speaks version 2 {second}"
        );
    }
    text
}

/// One message on one line.
fn line(message: &Message<'_>, time: Duration) -> String {
    let len = message.octets.len();
    let mut text = match (&message.header, &message.extension) {
        (Ok((header, _)), _) => {
            let kind = match header.procedure() {
                MessageProcedure::Msg => "MSG",
                MessageProcedure::Nomsg => "NOMSG",
                MessageProcedure::Error(_) => "ERROR",
            };
            format!("{kind:<5} xid {:08x} credits {:<3}", header.xid(), header.credits())
        }
        (Err(_), Some(Extension::Done(done))) => {
            format!("DONE  xid {:08x} credits {:<3}", done.xid, done.credits)
        }
        (Err(_), Some(Extension::Version2 { header, .. })) => {
            let (name, direction) = (version2::name(header), version2::direction(header.direction()));
            format!("{name} xid {:08x} credits {:<3} {direction}", header.xid, header.credits)
        }
        (Err(error), None) => return format!("{len} octets that are no message: {error}"),
    };
    match message.rpc {
        Some(Rpc::Call(target)) => {
            let _ = write!(text, " Call {target}");
            if let Some(minor_version) = message.compound.and_then(|compound| compound.minor_version) {
                let _ = write!(text, " 4.{minor_version}");
            }
        }
        Some(Rpc::Reply(target, status)) => {
            text.push_str(" Reply");
            if let Some(target) = target {
                let _ = write!(text, " {target}");
            }
            let _ = write!(text, " {status}");
        }
        None => {}
    }
    match (&message.header, &message.extension) {
        (Ok((header, _)), _) => {
            if let MessageProcedure::Error(body) = header.procedure() {
                let _ = match body {
                    ErrorBody::Vers { low, high } => write!(text, " ERR_VERS {low} to {high}"),
                    ErrorBody::Chunk => write!(text, " ERR_CHUNK"),
                };
            }
            chunks(&mut text, &header.lists());
        }
        (Err(_), Some(Extension::Version2 { header, operation, .. })) => {
            if let Some(error) = version2::error(header) {
                let _ = write!(text, " {error}");
            }
            match (header.body, operation) {
                (Body2::Message(_, lists) | Body2::Long(_, lists), _) => chunks(&mut text, &lists),
                (_, Some(operation)) => {
                    let _ = write!(text, " {}", version2::text(header, operation));
                }
                (Body2::Optional(unread), None) => {
                    let _ = write!(text, " operation {} of {} octets", unread.option, unread.info.len());
                }
                (Body2::Error(_), None) => {}
            }
        }
        _ => {}
    }
    if let Some(handle) = message.invalidated {
        let _ = write!(text, " | invalidates {handle:08x}");
    }
    if message.missing > 0 {
        let _ = write!(text, " | cut: {len} of {} octets", len + message.missing);
    }
    if let Some(answered) = &message.answered {
        answer(&mut text, answered, time);
    }
    text
}

/// The chunk lists: handle, length and offset of each segment.
fn chunks(text: &mut String, lists: &HeaderLists<'_>) {
    let mut position = None;
    for entry in lists.read_list() {
        if position != Some(entry.position) {
            let _ = write!(text, " | Read at {}:", entry.position);
            position = Some(entry.position);
        }
        segment(text, &entry.segment);
    }
    for chunk in lists.write_list() {
        text.push_str(" | Write:");
        chunk.segments().for_each(|found| segment(text, &found));
    }
    if let Some(chunk) = lists.reply_chunk() {
        text.push_str(" | Reply chunk:");
        chunk.segments().for_each(|found| segment(text, &found));
    }
}

fn segment(text: &mut String, segment: &Segment) {
    let Segment { handle, length, offset } = segment;
    let _ = write!(text, " {length}@{handle:08x}+{offset:x}");
}

/// What a Reply answers, and what became of the chunks.
fn answer(text: &mut String, answered: &Answered<'_>, time: Duration) {
    let latency = time.saturating_sub(answered.time).as_secs_f64() * 1e3;
    let _ = write!(text, " | to {} after {latency:.3} ms", answered.frame);
    for ChunkUse { kind, operations, moved, .. } in answered.chunks {
        let _ = match kind {
            ChunkKind::Read { position } => write!(text, ", {operations} Reads at {position} of {moved}"),
            ChunkKind::Write { index } => write!(text, ", {operations} Writes to {index} of {moved}"),
            ChunkKind::Reply => write!(text, ", {operations} Writes to the Reply chunk of {moved}"),
            ChunkKind::Exposed => write!(text, ", {operations} Reads of {moved}"),
        };
    }
}
