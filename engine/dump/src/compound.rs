//! COMPOUNDs and CB_COMPOUNDs of NFS version 4: each operation with its arguments or results, and the rules that they break.

use std::fmt;
use std::sync::Arc;

use stag_wire::nfs4::attributes::{AttributeError, AttributeList};
use stag_wire::nfs4::compound::{CbCompoundCall, CbCompoundReply, CompoundCall, CompoundReply, Operations};
use stag_wire::nfs4::operation::{
    Argument4, CbArgument, CbOperation, CbOutcome, Operation4, OperationItem, Outcome4,
};
use stag_wire::nfs4::{SessionId, Status4};
use stag_wire::xdr::{Reader, XdrError};

use crate::event::{CapturedCompound, CapturedOperation, RuleViolation};
use crate::procedure::Status;
use crate::reading::{OPERATIONS_MAX, Problem, Reading, SentCompound, SentOperation};
use crate::status;

/// Octets of an operation's text at most.
const TEXT_LEN_MAX: usize = 1024;

/// Reads the arguments of a COMPOUND.
pub(crate) fn read_call(reader: Reader<'_>, reading: &mut Reading) -> Result<(), XdrError> {
    let CompoundCall { minor_version, operations, .. } = CompoundCall::parse(reader)?;
    let mut sent = SentCompound::new(minor_version, operations.left());
    let result = read(operations, reading, Some(minor_version), |item: &Argument4<'_>, into| {
        into.name(item.operation().name(), item);
        into.attributes(item.attributes());
        let (mut sequence, mut request) = (None, None);
        match item {
            Argument4::Sequence(arguments) => sequence = Some(*arguments),
            Argument4::Getattr(arguments) => request = Some(arguments.request.0.words()),
            Argument4::Readdir(arguments) => request = Some(arguments.request.0.words()),
            _ => {}
        }
        sent.add(SentOperation { number: item.operation().number(), sequence, request });
    });
    check_order(&sent, reading, Operation4::Sequence.number(), &SESSIONLESS);
    reading.sent = Some(Arc::new(sent));
    result
}

/// Reads the arguments of a CB_COMPOUND.
pub(crate) fn read_callback(reader: Reader<'_>, reading: &mut Reading) -> Result<(), XdrError> {
    let CbCompoundCall { minor_version, operations, .. } = CbCompoundCall::parse(reader)?;
    let mut sent = SentCompound::new(minor_version, operations.left());
    let result = read(operations, reading, Some(minor_version), |item: &CbArgument<'_>, into| {
        into.name(item.operation().name(), item);
        let sequence = match item {
            CbArgument::Sequence(arguments) => Some(arguments.sequence),
            _ => None,
        };
        sent.add(SentOperation { number: item.operation().number(), sequence, request: None });
    });
    check_order(&sent, reading, CbOperation::Sequence.number(), &[]);
    reading.sent = Some(Arc::new(sent));
    result
}

/// Reads the results of a COMPOUND.
pub(crate) fn read_reply(
    reader: Reader<'_>,
    sent: Option<&SentCompound>,
    reading: &mut Reading,
) -> Result<(), XdrError> {
    let CompoundReply { status, operations, .. } = CompoundReply::parse(reader)?;
    let mut answers = Answers::new(sent, status, operations.left());
    let result = read(operations, reading, None, |item: &Outcome4<'_>, into| {
        into.name(item.operation().name(), item);
        into.status(item.status());
        item.attributes().for_each(|list| {
            into.attributes(Some(list));
            answers.attributes(&list, into);
        });
        let sequence = match item {
            Outcome4::Sequence(Ok(found)) => Some((found.session, found.slot, found.sequence_id)),
            _ => None,
        };
        answers.answer(item.operation().number(), item.status(), sequence, into);
    });
    answers.end(reading, |number, minor| Operation4::lookup(number, minor).err() == Some(Status4::OpIllegal));
    result
}

/// Reads the results of a CB_COMPOUND.
pub(crate) fn read_callback_reply(
    reader: Reader<'_>,
    sent: Option<&SentCompound>,
    reading: &mut Reading,
) -> Result<(), XdrError> {
    let CbCompoundReply { status, operations, .. } = CbCompoundReply::parse(reader)?;
    let mut answers = Answers::new(sent, status, operations.left());
    let result = read(operations, reading, None, |item: &CbOutcome<'_>, into| {
        into.name(item.operation().name(), item);
        into.status(item.status());
        if let CbOutcome::Getattr(Ok(list)) = item {
            into.attributes(Some(*list));
        }
        let sequence = match item {
            CbOutcome::Sequence(Ok(found)) => Some((found.session, found.slot, found.sequence_id)),
            _ => None,
        };
        answers.answer(item.operation().number(), item.status(), sequence, into);
    });
    answers
        .end(reading, |number, minor| CbOperation::lookup(number, minor).err() == Some(Status4::OpIllegal));
    result
}

/// What is found out about one operation.
struct OperationNotes<'r> {
    name: &'static str,
    status: Option<Status>,
    text: String,
    malformed: Option<XdrError>,
    breaches: &'r mut Vec<RuleViolation>,
}

impl OperationNotes<'_> {
    fn name(&mut self, name: &'static str, item: &impl fmt::Debug) {
        self.name = name;
        self.text = fields(format!("{item:?}"));
    }

    fn status(&mut self, status: Status4) {
        self.status = Some(Status::Program { number: status.number(), name: status::nfs4(status.number()) });
        // What a failure has beside its status are fields.
        if status != Status4::Ok && !self.text.contains(": ") {
            self.text.clear();
        }
    }

    fn attributes(&mut self, list: Option<AttributeList<'_>>) {
        let error = list.and_then(|list| list.values().find_map(Result::err));
        if let Some(AttributeError::Malformed(error)) = error {
            self.malformed.get_or_insert(error);
        }
    }

    fn breach(&mut self, rule: &'static str, text: impl fmt::Display) {
        self.breaches.push(RuleViolation { rule, text: text.to_string() });
    }
}

/// The fields in the text of an operation: without the names of the types around them.
fn fields(debug: String) -> String {
    let mut text = &debug[..];
    while let Some((name, rest)) = text.split_once('(')
        && name.bytes().all(|octet| octet.is_ascii_alphanumeric())
        && let Some(inner) = rest.strip_suffix(')')
    {
        text = inner;
    }
    if let Some((name, rest)) = text.split_once(" { ")
        && name.bytes().all(|octet| octet.is_ascii_alphanumeric())
        && let Some(inner) = rest.strip_suffix(" }")
    {
        text = inner;
    }
    let mut text = text.to_owned();
    if text.len() > TEXT_LEN_MAX {
        let cut = (0..=TEXT_LEN_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(cut);
        text.push_str("...");
    }
    text
}

/// Reads the operations of a message, one after the other, up to one that cannot be read.
fn read<'a, I: OperationItem<'a>>(
    mut operations: Operations<'a, I>,
    reading: &mut Reading,
    minor_version: Option<u32>,
    mut look: impl FnMut(&I, &mut OperationNotes<'_>),
) -> Result<(), XdrError> {
    let Reading { compound, breaches, problem, .. } = reading;
    let compound = compound.insert(CapturedCompound { minor_version, ..CapturedCompound::default() });
    while let Some(number) = operations.next_number() {
        let number = number?;
        let mut notes = OperationNotes {
            name: "",
            status: None,
            text: String::new(),
            malformed: None,
            breaches: &mut *breaches,
        };
        let item = I::decode_numbered(number, operations.reader());
        let mut listed = CapturedOperation { number, name: None, status: None, text: String::new() };
        match &item {
            Some(Ok(item)) => {
                look(item, &mut notes);
                listed.name = Some(notes.name);
                listed.status = notes.status;
                listed.text = std::mem::take(&mut notes.text);
            }
            Some(Err(error)) => listed.text = format!("malformed: {error}"),
            None => listed.text = "is not known: how long it is, and what follows, cannot be told".to_owned(),
        }
        if let Some(error) = notes.malformed {
            problem.get_or_insert(Problem::Body(error));
        }
        if compound.operations.len() < OPERATIONS_MAX {
            compound.operations.push(listed);
        } else {
            compound.unlisted += 1;
        }
        match item {
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                compound.unlisted += operations.left();
                return Err(error);
            }
            None => {
                compound.unlisted += operations.left();
                return Ok(());
            }
        }
    }
    operations.finish()
}

/// What may come without a SEQUENCE (8881-15.1.3.5-a).
const SESSIONLESS: [Operation4; 5] = [
    Operation4::ExchangeId,
    Operation4::CreateSession,
    Operation4::BindConnToSession,
    Operation4::DestroySession,
    Operation4::DestroyClientid,
];

/// Checks where SEQUENCE stands.
fn check_order(sent: &SentCompound, reading: &mut Reading, sequence: u32, sessionless: &[Operation4]) {
    let mut breach = |rule, text: String| reading.breaches.push(RuleViolation { rule, text });
    let is_behind = sent.operations.iter().skip(1).any(|operation| operation.number == sequence);
    if is_behind {
        breach("8881-18.46.3-a", "a SEQUENCE that is not the first operation".into());
    }
    let Some(first) = sent.operations.first() else { return };
    if !matches!(sent.minor_version, 1 | 2) || first.number == sequence {
        return;
    }
    if !sessionless.iter().any(|operation| operation.number() == first.number) {
        breach("8881-15.1.3.5-a", format!("operation {} comes without a SEQUENCE", first.number));
    } else if sent.count > 1 {
        let text = format!("operation {} without a SEQUENCE has others behind it", first.number);
        breach("8881-15.1.3.3-a", text);
    }
}

/// Compares results with their arguments.
struct Answers<'s> {
    sent: Option<&'s SentCompound>,
    status: Status4,
    count: u32,
    seen: usize,
    last: Option<Status4>,
    /// Numbers of operations whose results are those of ILLEGAL.
    illegal: Option<u32>,
}

impl<'s> Answers<'s> {
    fn new(sent: Option<&'s SentCompound>, status: Status4, count: u32) -> Answers<'s> {
        Answers { sent, status, count, seen: 0, last: None, illegal: None }
    }

    fn sent(&self) -> Option<&'s SentOperation> {
        self.sent?.operations.get(self.seen)
    }

    /// Attributes of the results that come next.
    fn attributes(&self, list: &AttributeList<'_>, notes: &mut OperationNotes<'_>) {
        let Some(request) = self.sent().and_then(|sent| sent.request) else { return };
        let unasked = list.mask.words().iter().zip(request).any(|(given, asked)| given & !asked != 0);
        if unasked {
            notes.breach("8881-18.7.3-a", format_args!("attributes {:?} are not all asked for", list.mask));
        }
    }

    fn answer(
        &mut self,
        number: u32,
        status: Status4,
        sequence: Option<(SessionId, u32, u32)>,
        notes: &mut OperationNotes<'_>,
    ) {
        if let Some(last) = self.last
            && last != Status4::Ok
        {
            notes.breach("8881-16.2.3-a", "results follow those of an operation that failed");
        }
        if let Some(sent) = self.sent() {
            if number == Operation4::Illegal.number() {
                self.illegal = Some(sent.number);
            } else if number != sent.number {
                let asked = sent.number;
                notes.breach(
                    "8881-16.2.3-c",
                    format_args!("results of operation {number} in the place of {asked}'s"),
                );
            }
            if let (Some(asked), Some(found)) = (sent.sequence, sequence)
                && found != (asked.session, asked.slot, asked.sequence_id)
            {
                notes.breach("8881-18.46.3-b", "the results of SEQUENCE are those of another request");
            }
        }
        self.seen += 1;
        self.last = Some(status);
    }

    /// All results were read, or as many as can be.
    fn end(&self, reading: &mut Reading, is_illegal: impl Fn(u32, u32) -> bool) {
        let mut breach = |rule, text: String| reading.breaches.push(RuleViolation { rule, text });
        let status = self.status;
        let is_whole = self.seen == self.count as usize;
        if let Some(last) = self.last
            && is_whole
            && last != status
        {
            breach("8881-16.2.3-b", format!("the status is {status:?}, that of the last results {last:?}"));
        }
        if status == Status4::MinorVersMismatch && self.count > 0 {
            breach("8881-16.2.3-e", "results beside NFS4ERR_MINOR_VERS_MISMATCH".into());
        }
        let Some(sent) = self.sent else { return };
        if self.count > sent.count {
            breach("8881-16.2.3-c", format!("{} results for {} operations", self.count, sent.count));
        } else if status == Status4::Ok && self.count < sent.count {
            breach(
                "8881-16.2.3-a",
                format!("{} results for {} operations, and no failure", self.count, sent.count),
            );
        }
        if let Some(number) = self.illegal
            && sent.minor_version <= 2
            && !is_illegal(number, sent.minor_version)
        {
            let minor = sent.minor_version;
            breach("8178-8.4-a", format!("operation {number} is answered as ILLEGAL, but 4.{minor} has it"));
        }
    }
}
