//! The parts of a report that all messages share.

use stag_wire::rpcrdma::{Done, Fixed, Header, HeaderError};
use stag_wire::rpcrdma2::{self, Body2, Header2, OptionalOperation};

use crate::call::Call;
use crate::event::{
    Answered, ChunkUse, ConnectionEnd, Context, EventKind, Extension, Message, RuleViolation,
};
use crate::reading::Called;
use crate::violations::Violations;

/// What was called.
pub(crate) fn called_by(call: Option<&Call>) -> Option<Called> {
    let call = call?;
    Some(Called { target: call.rpc?.target()?, sent: call.sent.clone() })
}

/// A message of which only the header was looked at.
pub(crate) fn seen(from: ConnectionEnd, octets: &[u8], invalidated: Option<u32>) -> Message<'_> {
    let header = Header::parse(octets);
    let version = Fixed::parse(octets).map_or(0, |(fixed, _)| fixed.version);
    let extension = match header {
        Err(HeaderError::Done) => Done::parse(octets).map(Extension::Done),
        Err(_) if version == rpcrdma2::VERSION => Header2::parse(octets).ok().map(|(header, payload)| {
            let operation = match &header.body {
                Body2::Optional(message) => OptionalOperation::parse(message).ok(),
                _ => None,
            };
            Extension::Version2 { header, operation, payload }
        }),
        _ => None,
    };
    Message {
        from,
        octets,
        missing: 0,
        invalidated,
        extension,
        header,
        long_payload: None,
        rpc: None,
        compound: None,
        answered: None,
        violations: &[],
    }
}

/// Reports a Reply or an error with the Call that it answers.
pub(crate) fn report_answer(
    cx: &mut Context<'_>,
    message: &Message<'_>,
    call: Option<&Call>,
    violations: Violations,
) {
    let Some(call) = call else { return report(cx, message, violations) };
    let chunks: Vec<ChunkUse> = call.chunks.iter().map(|chunk| chunk.usage.clone()).collect();
    let (frame, time, octets) = (call.frame, call.time, &call.octets[..]);
    let answered = Some(Answered { frame, time, chunks: &chunks, octets });
    report(cx, &Message { answered, ..*message }, violations);
}

/// Reports a message with the rules that it breaks. None are named of a message that was cut: what is missing may explain them.
pub(crate) fn report(cx: &mut Context<'_>, message: &Message<'_>, violations: Violations) {
    let violations: Vec<RuleViolation> = match cx.missing {
        0 => violations.into_inner(),
        _ => Vec::new(),
    };
    for violation in &violations {
        *cx.totals.violations.entry(violation.rule).or_default() += 1;
    }
    let missing = cx.missing;
    cx.emit(EventKind::Message(&Message { violations: &violations, missing, ..*message }));
}
