//! Messages of version 2, and the transport characteristics of both sides.

use stag_wire::rpcrdma::INLINE_THRESHOLD_DEFAULT;
use stag_wire::rpcrdma2::{
    self, Body2, Error2, Header2, MessageType, OptionMessage, OptionalOperation, Refused2, option,
};

use crate::conversation::{Conversation, Parts};
use crate::event::{ConnectionEnd, Context, EventKind, Extension, Message};
use crate::report::report;
use crate::violations::Violations;

/// Requests for characteristics that one side waits for at most.
const ASKED_MAX: usize = 16;

impl Violations {
    /// Names what was refused in a message of version 2.
    pub(crate) fn version_2(&mut self, error: &Error2) {
        let rule = match error {
            Error2::Lists(error) => return self.header(error),
            Error2::Short => "V2-X-6",
            Error2::Version(_) => "V2-5.2-a",
            Error2::Direction(_) => "V2-X-7",
            Error2::OtherDirection => "V2-4.2.2-b",
            Error2::OperationDirection(option::XMTREQ) => "RTR-9.2-a",
            Error2::OperationDirection(option::XMTRESP) => "RTR-9.3-a",
            Error2::OperationDirection(option::XMTERR) => "RTR-X-17",
            Error2::OperationDirection(_) => "XC-X-4",
            Error2::CharacteristicValue(_) | Error2::StructureLength => "XC-X-3",
            Error2::SegmentRange => "8166-2.3.2-a",
            Error2::Displacement(_) => "RTR-X-18",
            Error2::ResultInRequest => "RTR-X-13",
            Error2::Ranges => "RTR-7.4-a",
            Error2::EmptyGroup => "RTR-X-14",
            Error2::EmptyStart => "RTR-X-11",
            // Procedure, ErrorBody, OptionLength, UnknownOption, Xdr.
            _ => "V2-4.2.3-a",
        };
        self.add(rule, error);
    }
}

/// What a message is called that breaks a group.
fn name(body: &Body2<'_>) -> String {
    match body {
        Body2::Optional(message) => format!("operation {}", message.option),
        Body2::Error(_) => String::from("RDMA2_ERROR"),
        Body2::Message(..) => String::from("RDMA2_MSG"),
        Body2::Long(..) => String::from("RDMA2_NOMSG"),
    }
}

impl Conversation {
    /// Takes a message of version 2.
    pub(crate) fn send_version_2(
        &mut self,
        cx: &mut Context<'_>,
        seen: &Message<'_>,
        mut violations: Violations,
    ) {
        // An answer has the version of its Call (V2-5.3-a).
        let is_answer = matches!(
            &seen.extension,
            Some(Extension::Version2 { header, .. }) if header.direction() == MessageType::Reply
        );
        if self.speaks_version_1 && self.complete && !is_answer {
            violations.add("8166-4.2.2-a", "version 2 on a connection that uses version 1");
        }
        self.check_length(seen, &mut violations);
        self.parties[seen.from.index()].speaker.has_spoken = true;
        let Some(Extension::Version2 { header, operation, payload }) = seen.extension else {
            if let Err(Refused2 { error, .. }) = Header2::parse(seen.octets) {
                violations.version_2(&error);
            }
            let what = || String::from("a message that cannot be read");
            self.break_group(cx, seen.from, MessageType::Call, &what, &mut violations);
            self.note_unreadable(seen.from, seen.octets);
            return report(cx, seen, violations);
        };
        if let Body2::Optional(message) = &header.body {
            let Some(operation) = operation else {
                if let Err(Refused2 { error, .. }) = OptionalOperation::parse(message) {
                    violations.version_2(&error);
                }
                let what = || name(&header.body);
                self.break_group(cx, seen.from, message.direction, &what, &mut violations);
                self.note_unreadable(seen.from, seen.octets);
                return report(cx, seen, violations);
            };
            return self.operation(cx, seen, message, &operation, payload, violations);
        }
        self.break_group(cx, seen.from, header.direction(), &|| name(&header.body), &mut violations);
        if let Err(Refused2 { error, .. }) = header.check(payload) {
            violations.version_2(&error);
        }
        let parts = |is_long, lists| Parts {
            version: rpcrdma2::VERSION,
            xid: header.xid,
            credits: header.credits,
            is_long,
            lists,
            payload,
        };
        match (header.body, header.direction()) {
            (Body2::Message(_, lists), MessageType::Call) => {
                self.call(cx, seen, &parts(false, lists), violations)
            }
            (Body2::Long(_, lists), MessageType::Call) => {
                self.call(cx, seen, &parts(true, lists), violations)
            }
            (Body2::Message(_, lists), MessageType::Reply) => {
                self.confirm(seen.from);
                self.check_invalidated(seen, header.xid, &mut violations);
                self.reply(cx, seen, &parts(false, lists), violations);
            }
            (Body2::Long(_, lists), MessageType::Reply) => {
                self.confirm(seen.from);
                self.check_invalidated(seen, header.xid, &mut violations);
                self.reply(cx, seen, &parts(true, lists), violations);
            }
            (Body2::Error(_), _) => {
                let asked = &mut self.parties[seen.from.other().index()].speaker.asked;
                match asked.iter().position(|xid| *xid == header.xid) {
                    Some(place) => {
                        asked.remove(place);
                        cx.totals.errors += 1;
                        report(cx, seen, violations);
                    }
                    None => self.error(cx, seen, &[header.xid], violations),
                }
            }
            (Body2::Optional(_), _) => {}
        }
    }

    /// The other side's version was answered.
    pub(crate) fn confirm(&mut self, from: ConnectionEnd) {
        self.parties[from.other().index()].speaker.is_confirmed = true;
    }

    /// Checks that a message fits the Receive of the other side.
    fn check_length(&self, seen: &Message<'_>, violations: &mut Violations) {
        let (own, peer) =
            (&self.parties[seen.from.index()].speaker, &self.parties[seen.from.other().index()].speaker);
        let len = seen.octets.len() as u64;
        let told = self.thresholds(seen.from).map_or(INLINE_THRESHOLD_DEFAULT, |thresholds| thresholds.send);
        // A side that has not heard version 2 from the other does not know that it speaks it.
        let is_probe = !own.has_spoken && !peer.has_spoken;
        if is_probe {
            if len > u64::from(told) && self.complete {
                violations.add("V2-5-a", format_args!("a first message of {len} octets, {told} are sure"));
            }
            return;
        }
        let limit = peer.receive_size.unwrap_or(rpcrdma2::INLINE_THRESHOLD_DEFAULT.max(told));
        if len > u64::from(limit) && (self.complete || peer.receive_size.is_some()) {
            violations.add("V2-3-a", format_args!("{len} octets inline, the threshold is {limit}"));
        }
    }

    fn operation(
        &mut self,
        cx: &mut Context<'_>,
        seen: &Message<'_>,
        message: &OptionMessage<'_>,
        operation: &OptionalOperation<'_>,
        payload: &[u8],
        mut violations: Violations,
    ) {
        if !matches!(operation, OptionalOperation::Continuation(_)) {
            let what = || name(&Body2::Optional(*message));
            self.break_group(cx, seen.from, message.direction, &what, &mut violations);
        }
        let own = &mut self.parties[seen.from.index()].speaker;
        match operation {
            OptionalOperation::Request(request) => {
                return self.request(cx, seen, message, request, payload, violations);
            }
            OptionalOperation::Response(response) => {
                return self.response(cx, seen, message, response, payload, violations);
            }
            OptionalOperation::Continuation(continuation) => {
                return self.continuation(cx, seen, message, continuation, payload, violations);
            }
            OptionalOperation::Error(error) => {
                if error.bad.direction == MessageType::Call {
                    // About a group, or about the transmission of none that broke it off.
                    let lead = error.lead.map_or(error.bad.xid, |lead| lead.xid);
                    return self.error(cx, seen, &[lead, error.bad.xid], violations);
                }
                cx.totals.errors += 1;
                self.refuse_group(seen.from.other(), MessageType::Reply, &[error.bad.xid]);
                return report(cx, seen, violations);
            }
            // A peer that does not support them answers INVAL_OPTION (XC-a).
            OptionalOperation::Initial(initial) => {
                initial.values.iter().for_each(|value| own.learn(&value));
                self.parties[seen.from.index()].answerable.told.note(message.xid);
            }
            OptionalOperation::Update(update) => {
                own.learn(&update.now);
                self.parties[seen.from.index()].answerable.told.note(message.xid);
            }
            OptionalOperation::Ask(_) => {
                if own.asked.len() == ASKED_MAX {
                    own.asked.pop_front();
                }
                own.asked.push_back(message.xid);
            }
            OptionalOperation::Answer(_) => {
                let asked = &mut self.parties[seen.from.other().index()].speaker.asked;
                match asked.iter().position(|xid| *xid == message.xid) {
                    Some(place) => drop(asked.remove(place)),
                    None if self.complete => {
                        let xid = message.xid;
                        violations.add(
                            "XC-d",
                            format_args!("an answer with xid {xid:#010x}, which no request has"),
                        );
                    }
                    None => {}
                }
            }
        }
        cx.totals.others += 1;
        if !payload.is_empty() {
            violations
                .add("XC-a", format_args!("{} octets behind an operation that has none", payload.len()));
        }
        report(cx, seen, violations);
    }

    /// Forgets what was not finished when the connection ends.
    pub(crate) fn end_extensions(&mut self) {
        for side in [ConnectionEnd::Client, ConnectionEnd::Server] {
            self.drop_groups(side);
            let xids: Vec<u32> = self.parties[side.index()].exposed.keys().copied().collect();
            for xid in xids {
                self.end_reply(side, xid);
            }
        }
    }

    /// Notes that something is odd but breaks no rule.
    pub(crate) fn note(cx: &mut Context<'_>, from: ConnectionEnd, text: &'static str) {
        cx.emit(EventKind::Note(from, text));
    }
}
