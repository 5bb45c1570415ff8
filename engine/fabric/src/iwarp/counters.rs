//! Counters of events, and a log that a peer cannot flood.

use std::net::SocketAddr;
use std::time::Duration;

use crate::{LogLimiter, Withheld};

/// Defines the counters with their names, once.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What happened since the provider was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct IwarpCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl IwarpCounters {
            /// Names and values, for a table.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Times that the system was asked which sockets have news.
    looks,
    /// TCP connections that came in.
    accepted,
    /// Connection requests that were handed to the user.
    requests,
    /// Connections that were handed out as strangers, to be served by another protocol.
    strangers,
    /// Connections of another protocol that were not taken.
    strangers_dropped,
    /// First octets that are neither an MPA request nor anything known.
    bad_keys,
    /// Requests and replies of MPA that are malformed: length, revision, private data too long.
    bad_frames,
    /// Requests for markers, refused.
    markers_refused,
    /// Connections that did not send a whole request, or reply, in time.
    handshakes_timed_out,
    /// Connections that were closed because too many had sent nothing yet.
    handshakes_evicted,
    /// Connections that could not be accepted because no descriptor was left; after each, none is for a while.
    accepts_failed,
    /// Connections refused because too many requests waited for the user.
    requests_refused,
    /// FPDUs that came before the reply, or the reply's sender's too early (5044-7.1-f, 5044-7.1-g).
    early_fpdus,
    /// FPDUs with a wrong CRC.
    bad_crcs,
    /// Segments whose lengths, version, opcode or queue make no sense.
    bad_segments,
    /// Segments out of order: message sequence number or offset.
    bad_sequences,
    /// Messages that came without a Receive, or were longer than it.
    bad_messages,
    /// Accesses with an STag that is not valid: guessed, or fenced meanwhile.
    stags_refused,
    /// Accesses outside of the bounds or rights of a valid STag.
    accesses_refused,
    /// Invalidations of what is not exposed.
    bad_invalidations,
    /// Read Requests beyond the IRD.
    reads_refused,
    /// Read Responses without a Read of ours.
    bad_responses,
    /// Terminates sent.
    terminates_sent,
    /// Terminates received.
    terminates_received,
    /// Connections that ended in the middle of an FPDU.
    truncated,
    /// Messages of no octets sent because a peer had not shown that it listens (it may have missed the first segment).
    nudges,
    /// Connections established.
    established,
    /// Connections ended.
    disconnected,
    /// FPDUs received.
    fpdus_received,
    /// FPDUs sent.
    fpdus_sent,
    /// System calls that received octets.
    receive_calls,
    /// System calls that sent octets.
    send_calls,
}

/// Says what a peer does wrong, once a second at most.
#[cold]
pub(super) fn complain(
    complaints: &mut LogLimiter,
    now: Duration,
    peer: Option<SocketAddr>,
    what: &dyn std::fmt::Display,
) {
    let Some(withheld) = complaints.admit(now).map(Withheld) else { return };
    match peer {
        Some(peer) => tracing::warn!("iwarp, client {peer}: {what}{withheld}"),
        None => tracing::warn!("iwarp: {what}{withheld}"),
    }
}
