//! A capture as JSON: one object for each message, and at the end one with the totals.

use std::collections::BTreeMap;

use serde::Serialize;
use stag_dump::{
    CapturedCompound, CapturedEvent, CapturedOperation, ChunkKind, ConnectionEnd, EventKind, Extension,
    Message, Rpc, RuleViolation, Setup, Status, Totals,
};
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_wire::cm_private_data::PrivateData;
use stag_wire::rpcrdma::{self, ErrorBody, Fixed, MessageProcedure};
use stag_wire::rpcrdma2::Body2;

use super::show::Show;
use super::version2;

/// Connections, and incidents, that the totals list one by one; beyond, they are only counted.
const LISTED_MAX: usize = 10_000;

/// Objects.
#[derive(Default)]
pub(super) struct Json {
    connections: BTreeMap<u64, Connection>,
    incidents: Vec<Incident>,
}

#[derive(Serialize)]
struct Connection {
    connection: u64,
    fabric: String,
    client: String,
    server: String,
    midway: bool,
    setup: Vec<SetupObject>,
    ended: Option<u64>,
    unanswered: Option<usize>,
    unknown: Option<usize>,
}

#[derive(Serialize)]
struct SetupObject {
    frame: u64,
    direction: &'static str,
    name: &'static str,
    options: BTreeMap<&'static str, String>,
    private_data: String,
    send_size: Option<u32>,
    receive_size: Option<u32>,
    remote_invalidation: Option<bool>,
    pulls_replies: Option<bool>,
    exposes_replies: Option<bool>,
    done_receives: Option<u16>,
    speaks_version_2: Option<bool>,
}

/// Something that is no message: a broken rule below, a Terminate, a gap.
#[derive(Serialize)]
struct Incident {
    frame: u64,
    connection: u64,
    direction: &'static str,
    kind: &'static str,
    rule: Option<&'static str>,
    text: String,
}

#[derive(Serialize)]
struct Segment {
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<u32>,
    handle: u32,
    length: u32,
    offset: u64,
}

impl Segment {
    fn plain(segment: rpcrdma::Segment) -> Segment {
        Segment { position: None, handle: segment.handle, length: segment.length, offset: segment.offset }
    }
}

#[derive(Serialize)]
struct RpcObject {
    r#type: &'static str,
    program: Option<u32>,
    version: Option<u32>,
    procedure: Option<u32>,
    /// `NFS v3 READ`.
    name: Option<String>,
    status: Option<String>,
    status_number: Option<u32>,
    /// Of a Call of NFS version 4.
    #[serde(skip_serializing_if = "Option::is_none")]
    minor_version: Option<u32>,
    /// Of NFS version 4.
    #[serde(skip_serializing_if = "Option::is_none")]
    operations: Option<Vec<OperationObject>>,
    /// Operations that are not listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    unlisted: Option<u32>,
}

#[derive(Serialize)]
struct OperationObject {
    number: u32,
    name: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    /// Arguments or results, field by field.
    text: String,
}

fn operation(found: &CapturedOperation) -> OperationObject {
    OperationObject {
        number: found.number,
        name: found.name,
        status: found.status.map(|status| status.to_string()),
        text: found.text.clone(),
    }
}

#[derive(Serialize)]
struct Transfer {
    chunk: &'static str,
    position: Option<u32>,
    index: Option<usize>,
    offered: u64,
    operations: u32,
    octets: u64,
}

#[derive(Serialize)]
struct Broken<'a> {
    rule: &'static str,
    text: &'a str,
}

#[derive(Serialize)]
struct MessageObject<'a> {
    frame: u64,
    /// Seconds since 1970.
    time: f64,
    connection: u64,
    direction: &'static str,
    octets: usize,
    /// Octets behind these that the capture lacks.
    missing: usize,
    xid: Option<u32>,
    vers: Option<u32>,
    credits: Option<u32>,
    proc: Option<&'static str>,
    read_list: Vec<Segment>,
    write_list: Vec<Vec<Segment>>,
    reply_chunk: Option<Vec<Segment>>,
    error: Option<&'static str>,
    /// Of version 2.
    operation: Option<version2::OperationObject>,
    rpc: Option<RpcObject>,
    invalidated: Option<u32>,
    call_frame: Option<u64>,
    /// Since the Call.
    latency_ns: Option<u64>,
    transfers: Vec<Transfer>,
    violations: Vec<Broken<'a>>,
}

#[derive(Serialize)]
struct MovedObject {
    operations: u64,
    octets: u64,
}

#[derive(Serialize)]
struct TotalsObject<'a> {
    frames: u64,
    connections: u64,
    messages: u64,
    calls: u64,
    replies: u64,
    errors: u64,
    others: u64,
    continuations: u64,
    paired: u64,
    unanswered: u64,
    unknown: u64,
    other_sends: u64,
    reads: MovedObject,
    writes: MovedObject,
    segments: u64,
    crc_good: u64,
    crc_bad: u64,
    duplicates: u64,
    gaps: u64,
    missing: u64,
    fragments: u64,
    malformed: u64,
    frames_of_other_links: u64,
    given_up: u64,
    violations: u64,
    rules: &'a BTreeMap<&'static str, u64>,
    connection_list: Vec<&'a Connection>,
    incidents: &'a [Incident],
}

#[derive(Serialize)]
struct Last<'a> {
    totals: TotalsObject<'a>,
}

/// The direction of what a side sends.
fn direction(from: ConnectionEnd) -> &'static str {
    match from {
        ConnectionEnd::Client => "to_server",
        ConnectionEnd::Server => "to_client",
    }
}

impl Json {
    fn incident(
        &mut self,
        event: &CapturedEvent<'_>,
        from: ConnectionEnd,
        kind: &'static str,
        rule: Option<&'static str>,
        text: &str,
    ) {
        if self.incidents.len() < LISTED_MAX {
            let (frame, connection) = (event.frame, event.connection);
            let text = text.to_owned();
            self.incidents.push(Incident { frame, connection, direction: direction(from), kind, rule, text });
        }
    }
}

impl Show for Json {
    fn event(&mut self, event: &CapturedEvent<'_>, out: &mut Output) -> Result<(), CommandFailure> {
        match &event.kind {
            EventKind::Message(found) => out.object(&message(event, found))?,
            EventKind::Opened(ends) if self.connections.len() < LISTED_MAX => {
                let connection = Connection {
                    connection: event.connection,
                    fabric: ends.fabric.to_string(),
                    client: ends.client.to_string(),
                    server: ends.server.to_string(),
                    midway: ends.midway,
                    setup: Vec::new(),
                    ended: None,
                    unanswered: None,
                    unknown: None,
                };
                self.connections.insert(event.connection, connection);
            }
            EventKind::Opened(_) => {}
            EventKind::Setup(from, found) => {
                if let Some(connection) = self.connections.get_mut(&event.connection) {
                    connection.setup.push(set_up(event.frame, *from, found));
                }
            }
            EventKind::Closed { unanswered, unknown } => {
                if let Some(connection) = self.connections.get_mut(&event.connection) {
                    connection.ended = Some(event.frame);
                    connection.unanswered = Some(*unanswered);
                    connection.unknown = Some(*unknown);
                }
            }
            EventKind::Violation(from, RuleViolation { rule, text }) => {
                self.incident(event, *from, "violation", Some(rule), text);
            }
            EventKind::Gap(from, len) => self.incident(event, *from, "gap", None, &len.to_string()),
            EventKind::Note(from, note) => self.incident(event, *from, "note", None, note),
            EventKind::Terminate(from, found) => self.incident(event, *from, "terminate", None, &found.text),
        }
        Ok(())
    }

    fn totals(&mut self, totals: &Totals, out: &mut Output) -> Result<(), CommandFailure> {
        let t = totals;
        let totals = TotalsObject {
            frames: t.frames,
            connections: t.connections,
            messages: t.messages,
            calls: t.calls,
            replies: t.replies,
            errors: t.errors,
            others: t.others,
            continuations: t.continuations,
            paired: t.paired,
            unanswered: t.unanswered,
            unknown: t.unknown,
            other_sends: t.other_sends,
            reads: MovedObject { operations: t.reads.operations, octets: t.reads.octets },
            writes: MovedObject { operations: t.writes.operations, octets: t.writes.octets },
            segments: t.segments,
            crc_good: t.crc_good,
            crc_bad: t.crc_bad,
            duplicates: t.duplicates,
            gaps: t.gaps,
            missing: t.missing,
            fragments: t.fragments,
            malformed: t.malformed,
            frames_of_other_links: t.frames_of_other_links,
            given_up: t.given_up,
            violations: t.violation_count(),
            rules: &t.violations,
            connection_list: self.connections.values().collect(),
            incidents: &self.incidents,
        };
        out.object(&Last { totals })
    }
}

fn set_up(frame: u64, from: ConnectionEnd, setup: &Setup<'_>) -> SetupObject {
    let told: Option<PrivateData> = setup.parameters;
    SetupObject {
        frame,
        direction: direction(from),
        name: setup.name,
        options: setup.options.iter().cloned().collect(),
        private_data: setup.private_data.iter().map(|octet| format!("{octet:02x}")).collect(),
        send_size: told.map(|told| told.send_size.octets()),
        receive_size: told.map(|told| told.receive_size.octets()),
        remote_invalidation: told.map(|told| told.remote_invalidation),
        pulls_replies: setup.reliable_reply.map(|told| told.pulls),
        exposes_replies: setup.reliable_reply.map(|told| told.exposes),
        done_receives: setup.reliable_reply.map(|told| told.done_receives),
        speaks_version_2: setup.reliable_reply.map(|_| setup.announces_version_2),
    }
}

fn rpc(rpc: &Rpc, compound: Option<&CapturedCompound>) -> RpcObject {
    let target = rpc.target();
    let (kind, status) = match rpc {
        Rpc::Call(_) => ("call", None),
        Rpc::Reply(_, status) => ("reply", Some(status)),
    };
    RpcObject {
        r#type: kind,
        program: target.map(|target| target.program),
        version: target.map(|target| target.version),
        procedure: target.map(|target| target.procedure),
        name: target.map(|target| target.to_string()),
        status: status.map(Status::to_string),
        status_number: match status {
            Some(Status::Program { number, .. }) => Some(*number),
            _ => None,
        },
        minor_version: compound.and_then(|compound| compound.minor_version),
        operations: compound.map(|compound| compound.operations.iter().map(operation).collect()),
        unlisted: compound.map(|compound| compound.unlisted),
    }
}

fn message<'a>(event: &CapturedEvent<'_>, message: &Message<'a>) -> MessageObject<'a> {
    let fixed = Fixed::parse(message.octets).ok().map(|(fixed, _)| fixed);
    let header = message.header.as_ref().ok().map(|(header, _)| header);
    let (header2, operation) = match &message.extension {
        Some(Extension::Version2 { header, operation, .. }) => (Some(header), operation.as_ref()),
        _ => (None, None),
    };
    let lists = match header2.map(|header| header.body) {
        Some(Body2::Message(_, lists) | Body2::Long(_, lists)) => Some(lists),
        _ => header.map(|header| header.lists()),
    };
    let proc = header2.map(version2::name).or_else(|| {
        fixed.map(|fixed| match fixed.procedure {
            rpcrdma::procedure::MSG => "RDMA_MSG",
            rpcrdma::procedure::NOMSG => "RDMA_NOMSG",
            rpcrdma::procedure::MSGP => "RDMA_MSGP",
            rpcrdma::procedure::DONE => "RDMA_DONE",
            rpcrdma::procedure::ERROR => "RDMA_ERROR",
            _ => "unknown",
        })
    });
    let read_list = lists.into_iter().flat_map(|lists| lists.read_list());
    let write_list = lists.into_iter().flat_map(|lists| lists.write_list());
    let transfers = message.answered.iter().flat_map(|answered| answered.chunks).map(|found| {
        let (chunk, position, index) = match found.kind {
            ChunkKind::Read { position } => ("read", Some(position), None),
            ChunkKind::Write { index } => ("write", None, Some(index)),
            ChunkKind::Reply => ("reply", None, None),
            ChunkKind::Exposed => ("exposed", None, None),
        };
        let (offered, operations, octets) = (found.offered, found.operations, found.moved);
        Transfer { chunk, position, index, offered, operations, octets }
    });
    MessageObject {
        frame: event.frame,
        time: event.time.as_secs_f64(),
        connection: event.connection,
        direction: direction(message.from),
        octets: message.octets.len(),
        missing: message.missing,
        xid: fixed.map(|fixed| fixed.xid),
        vers: fixed.map(|fixed| fixed.version),
        credits: fixed.map(|fixed| fixed.credits),
        proc,
        read_list: read_list
            .map(|entry| Segment { position: Some(entry.position), ..Segment::plain(entry.segment) })
            .collect(),
        write_list: write_list.map(|chunk| chunk.segments().map(Segment::plain).collect()).collect(),
        reply_chunk: lists
            .and_then(|lists| lists.reply_chunk())
            .map(|chunk| chunk.segments().map(Segment::plain).collect()),
        error: header
            .and_then(|header| match header.procedure() {
                MessageProcedure::Error(ErrorBody::Vers { .. }) => Some("ERR_VERS"),
                MessageProcedure::Error(ErrorBody::Chunk) => Some("ERR_CHUNK"),
                _ => None,
            })
            .or_else(|| header2.and_then(version2::error)),
        operation: header2.zip(operation).map(|(header, found)| version2::object(header, found)),
        rpc: message.rpc.map(|found| rpc(found, message.compound)),
        invalidated: message.invalidated,
        call_frame: message.answered.map(|answered| answered.frame),
        latency_ns: message
            .answered
            .and_then(|answered| u64::try_from(event.time.saturating_sub(answered.time).as_nanos()).ok()),
        transfers: transfers.collect(),
        violations: message
            .violations
            .iter()
            .map(|broken| Broken { rule: broken.rule, text: &broken.text })
            .collect(),
    }
}
