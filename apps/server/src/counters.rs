//! Prints an engine's counters.

use serde::{Deserialize, Serialize};
use stag_rpc::Statistics;

/// Declares the object of `--json` with the fields of [`Statistics`] that it shows.
macro_rules! counters {
    ($($field:ident),* $(,)?) => {
        /// The counters of one engine or of several, by the names of [`Statistics`].
        #[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
        #[serde(default)]
        #[expect(missing_docs, reason = "each is a field of `Statistics`, which says what it is")]
        pub struct Counters {
            $(pub $field: u64,)*
        }

        impl std::ops::AddAssign for Counters {
            fn add_assign(&mut self, other: Counters) {
                $(self.$field += other.$field;)*
            }
        }

        impl From<&Statistics> for Counters {
            fn from(statistics: &Statistics) -> Counters {
                Counters { $($field: statistics.$field,)* }
            }
        }
    };
}

counters! {
    calls_sent,
    calls_received,
    replies_sent,
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
    violations,
    peers_stuck,
    streams_opened,
    streams_closed,
    streams_refused,
    streams_evicted,
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
}
