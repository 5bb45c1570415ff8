//! An engine's counters. Plain numbers of one reactor: read them between passes.

use std::ops::AddAssign;

/// Counters of an engine. All count from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Calls sent.
    pub calls_sent: u64,
    /// Calls received and taken on.
    pub calls_received: u64,
    /// Replies sent.
    pub replies_sent: u64,
    /// Replies that a handler did not fill in as it announced, or panicked over, and that were SYSTEM_ERR instead; or whose memory is not
    /// registered, so that the connection ended.
    pub replies_defective: u64,
    /// Replies received that completed a Call.
    pub replies_received: u64,
    /// Calls sent once more, on the next connection.
    pub calls_retransmitted: u64,
    /// Keep-alives sent.
    pub keep_alives: u64,
    /// Connections made anew.
    pub connections_restored: u64,
    /// Calls that ended in error, at the client.
    pub calls_failed: u64,
    /// Messages whose Payload was all inline, in either direction.
    pub messages_short: u64,
    /// Read chunks at a non-zero Position.
    pub read_chunks: u64,
    /// Position Zero Read chunks: Long Calls.
    pub position_zero_chunks: u64,
    /// Write chunks used.
    pub write_chunks: u64,
    /// Write chunks offered and returned unused.
    pub write_chunks_unused: u64,
    /// Reply chunks used: Long Replies.
    pub reply_chunks: u64,
    /// Replies exposed, because they fitted nowhere else.
    pub replies_exposed: u64,
    /// Of these, those that the client told to have no more use for (RDMA_DONE).
    pub replies_taken: u64,
    /// Of these, those that it left for too long.
    pub exposures_expired: u64,
    /// Replies read that the server had exposed.
    pub replies_pulled: u64,
    /// Octets moved by RDMA Read.
    pub read_bytes: u64,
    /// Octets moved by RDMA Write.
    pub write_bytes: u64,
    /// Payload octets that were copied by this side's CPU beyond their placement: inline data, and
    /// messages that turned out to be long.
    pub copied_bytes: u64,
    /// RDMA_ERROR messages sent.
    pub errors_sent: u64,
    /// Messages silently discarded, as the rules want.
    pub messages_discarded: u64,
    /// Handles invalidated by the peer's Send.
    pub remote_invalidations: u64,
    /// Handles fenced by us.
    pub local_fences: u64,
    /// Connections accepted or established.
    pub connections_opened: u64,
    /// Connections that ended.
    pub connections_closed: u64,
    /// Connections refused at admission.
    pub connections_refused: u64,
    /// Connections ended to make room for others.
    pub connections_evicted: u64,
    /// Replies that found no memory in their client's part: their Calls wait, and are executed again.
    pub replies_starved: u64,
    /// Connections ended because of a defect of this engine. Always 0, unless it has one.
    pub faults: u64,
    /// Connections ended because the peer broke the rules.
    pub violations: u64,
    /// Connections ended because the client did not take its Replies, or did not let its chunks be read.
    pub peers_stuck: u64,
    /// Byte streams (TCP) taken on.
    pub streams_opened: u64,
    /// Byte streams that ended.
    pub streams_closed: u64,
    /// Byte streams refused, because there were enough.
    pub streams_refused: u64,
    /// Byte streams ended to make room for others, or for lack of descriptors.
    pub streams_evicted: u64,
    /// Connections of a byte stream that could not be accepted: the process has no descriptor left.
    pub accepts_failed: u64,
    /// Byte streams ended because the peer was too slow, or silent.
    pub stream_timeouts: u64,
    /// Octets received over byte streams.
    pub stream_bytes_received: u64,
    /// Octets sent over byte streams.
    pub stream_bytes_sent: u64,
    /// Eligible arguments of Calls over byte streams that were received where they may stay.
    pub stream_items: u64,
    /// Calls that came by UDP.
    pub datagrams_received: u64,
    /// Those of them that were not answered.
    pub datagrams_dropped: u64,
    /// Calls that came again and were answered with the kept Reply.
    pub duplicates_answered: u64,
    /// Calls that came again while they were executed, and were dropped.
    pub duplicates_dropped: u64,
    /// Replies that should have been kept for such Calls, and could not be.
    pub duplicates_unkept: u64,
    /// Calls carried to another reactor of the group, to be executed there.
    pub calls_carried: u64,
    /// Other reactors' Calls executed here.
    pub calls_executed_for_others: u64,
    /// Pieces of memory lent to other reactors, with Calls or with their Replies.
    pub pieces_lent: u64,
    /// Messages of version 2 with data or of several Sends that were sent.
    pub groups_sent: u64,
    /// Those that were received.
    pub groups_received: u64,
    /// Sends beside the first of such messages, in either direction.
    pub continuations: u64,
    /// Items of bulk data in such messages, in either direction.
    pub items_placed: u64,
}

impl Statistics {
    /// Counts a Write chunk that came back with `len` octets in it.
    #[inline]
    pub(crate) fn count_write_chunk(&mut self, len: u32) {
        if len > 0 {
            self.write_chunks += 1;
        } else {
            self.write_chunks_unused += 1;
        }
    }
}

/// Several engines together.
impl AddAssign<&Statistics> for Statistics {
    fn add_assign(&mut self, other: &Statistics) {
        // A field that is missing here does not compile.
        macro_rules! add {
            ($($field:ident,)*) => {{
                let Statistics { $($field),* } = other;
                $(self.$field += $field;)*
            }};
        }
        add! {
            calls_sent,
            calls_received,
            replies_sent,
            replies_defective,
            replies_received,
            calls_retransmitted,
            keep_alives,
            connections_restored,
            calls_failed,
            messages_short,
            read_chunks,
            position_zero_chunks,
            write_chunks,
            write_chunks_unused,
            reply_chunks,
            replies_exposed,
            replies_taken,
            exposures_expired,
            replies_pulled,
            read_bytes,
            write_bytes,
            copied_bytes,
            errors_sent,
            messages_discarded,
            remote_invalidations,
            local_fences,
            connections_opened,
            connections_closed,
            connections_refused,
            connections_evicted,
            replies_starved,
            faults,
            violations,
            peers_stuck,
            streams_opened,
            streams_closed,
            streams_refused,
            streams_evicted,
            accepts_failed,
            stream_timeouts,
            stream_bytes_received,
            stream_bytes_sent,
            stream_items,
            datagrams_received,
            datagrams_dropped,
            duplicates_answered,
            duplicates_dropped,
            duplicates_unkept,
            calls_carried,
            calls_executed_for_others,
            pieces_lent,
            groups_sent,
            groups_received,
            continuations,
            items_placed,
        }
    }
}
