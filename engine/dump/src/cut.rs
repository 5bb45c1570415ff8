//! Messages of which the capture has only the start: their headers are reported, and no rule is named.

use stag_wire::rpcrdma2::{Body2, OptionalOperation};

use crate::conversation::Conversation;
use crate::event::{ConnectionEnd, Context, Extension, Message};
use crate::report::seen;

impl Conversation {
    /// Takes the start of a Send, and the number of octets behind it that were not captured. `false`: it does not tell which message
    /// it is, and nothing was reported.
    pub(crate) fn send_start(
        &mut self,
        cx: &mut Context<'_>,
        from: ConnectionEnd,
        (octets, missing): (&[u8], usize),
        invalidated: Option<u32>,
    ) -> bool {
        if !is_readable(&seen(from, octets, invalidated)) {
            return false;
        }
        self.lose();
        cx.missing = missing;
        self.send(cx, from, octets, invalidated);
        cx.missing = 0;
        true
    }
}

/// Whether the transport header is whole, and what follows it is not needed to read another message.
fn is_readable(message: &Message<'_>) -> bool {
    match (&message.header, &message.extension) {
        (Ok((header, payload)), _) => header.direction(payload).is_some(),
        (Err(_), Some(Extension::Version2 { header, operation, .. })) => match (&header.body, operation) {
            (Body2::Message(..) | Body2::Long(..), _) => true,
            (_, Some(OptionalOperation::Request(request))) => request.count == 1,
            (_, Some(OptionalOperation::Response(response))) => response.count == 1,
            _ => false,
        },
        _ => false,
    }
}
