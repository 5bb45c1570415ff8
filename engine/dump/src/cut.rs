//! Messages of which the capture has only the start: their headers are reported, and no rule is named.

use stag_wire::rpcrdma2::Body2;

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
        // A part of it is missing.
        self.drop_groups(from);
        true
    }
}

/// Whether the transport header is whole, and tells which message it is.
fn is_readable(message: &Message<'_>) -> bool {
    match (&message.header, &message.extension) {
        (Ok((header, payload)), _) => header.direction(payload).is_some(),
        (Err(_), Some(Extension::Version2 { header, operation, .. })) => {
            matches!(header.body, Body2::Message(..) | Body2::Long(..)) || operation.is_some()
        }
        _ => false,
    }
}
