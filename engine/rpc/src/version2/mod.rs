//! Connections that speak version 2 of RPC-over-RDMA, with rtrext: bulk data in the messages themselves, and messages of several
//! Sends.
//!
//! ```text
//!  connect: both announce version 2 in their private data      Receives are divided: a head, and targets of a page each
//!  probe: RPC NULL in version 2 ──▶                             (set_up.rs)
//!                               ◀── its Reply, characteristics
//!  characteristics ──▶             the user hears that the connection is established
//!
//!  a Call      base message, or a group of Sends with its data in targets     (making.rs)
//!  its arrival pages of the Receive go to the service as pulled data does     (serving.rs)
//!  its Reply   base message, or a group with results in targets               (answering.rs)
//!  its arrival pages, or a copy, go to the Call's buffers                     (calling.rs)
//! ```
//!
//! The halves of a connection are those of version 1, with a box beside each ([`ClientVersion2`], [`ServerVersion2`]) that has what
//! version 2 adds. Slots, credits, services, pulls and Writes are the same, so neither a service nor a client sees a difference.
//! Such a connection [is special](crate::connection::Connection::is_special): in place only Calls and Replies in one Send are
//! handled (in_place.rs), and version 1 pays nothing for it.
//!
//! | message | version 2 uses |
//! |---|---|
//! | short Call and Reply, or with chunks | base messages, as version 1 |
//! | data of a Call, if it fits the peer's targets and there are credits | send-based placement |
//! | data of a Reply, if it fits this end's targets | send-based placement, which the Call asked for |
//! | other long Calls and Replies, if they fit the Sends that both ends take | message continuation |
//! | the rest | chunks |
//!
//! Reverse Calls and their Replies are base messages without chunks, as in version 1 ([`crate::both_ways`]): a connection that has
//! them has both boxes at each end. What its peer tells of itself is taken in by the half that it was opened with, and the other
//! half gets a copy.
//!
//! A Call that is retransmitted on another connection goes with chunks.

pub(crate) mod answering;
pub(crate) mod calling;
pub(crate) mod explicit;
pub(crate) mod in_place;
pub(crate) mod making;
pub(crate) mod receives;
pub(crate) mod serving;
pub(crate) mod set_up;

pub(crate) use calling::ClientVersion2;
pub(crate) use serving::ServerVersion2;

use stag_fabric::Limits;
use stag_memory::Shared;
use stag_proto::characteristics::PeerCharacteristics;
use stag_proto::layout::ReceiveLayout;
use stag_proto::version2::OwnCharacteristics;
use stag_wire::rpcrdma2::{Body2, Header2, OptionalOperation, ReverseSupport};

use crate::config::{EngineConfig, PlacementChoice};
use crate::pools::PAGE_LEN;

/// Octets of the head of a divided Receive: header and Payload stream of a WRITE with the longest file handle, 16 groups and a
/// machine's name of 64 octets. A Send with data is padded to as much.
pub(crate) const HEAD_LEN: u32 = 384;

/// Targets of a Receive at most.
pub(crate) const TARGETS_MAX: u32 = 16;

/// Sends of one message at most.
pub(crate) const CONTINUATION_MAX: u32 = 16;

/// Receives for messages that take no credit: characteristics, errors of groups (XC-X-1).
pub(crate) const UNCREDITED_RECEIVES: u32 = 2;

/// Octets of the message that tells characteristics.
pub(crate) const INITIAL_LEN_MAX: usize = 256;

/// Octets of the longest Payload stream that is taken in several Sends.
const PAYLOAD_LEN_MAX: u32 = 1 << 20;

/// Targets of each Receive, if `wanted` are: as many at least as make it no shorter than an inline threshold. 0: it is not divided.
pub(crate) fn targets(config: &EngineConfig, wanted: u32) -> u32 {
    if wanted == 0 {
        return 0;
    }
    let least = (config.message_len() as u32).saturating_sub(HEAD_LEN).div_ceil(PAGE_LEN as u32);
    wanted.max(least)
}

/// Octets of a Send at most: as many as any peer's Receive has that is divided as ours may be, whatever this end's own have. A peer
/// with longer ones gets what fits them by chunks.
pub(crate) fn send_len_max(config: &EngineConfig) -> u32 {
    (HEAD_LEN + TARGETS_MAX * PAGE_LEN as u32).max(config.message_len() as u32)
}

/// What this end tells of itself on a connection whose Receives have targets if `is_divided`.
pub(crate) fn own_characteristics(
    config: &EngineConfig,
    targets_max: u32,
    is_divided: bool,
) -> OwnCharacteristics {
    let wanted = if is_divided { config.receive_targets.min(targets_max) } else { 0 };
    let layout = match targets(config, wanted) {
        count if count == 0 || count > targets_max.min(TARGETS_MAX) => {
            ReceiveLayout::plain(config.message_len() as u32)
        }
        count => ReceiveLayout::with_targets(HEAD_LEN, count, PAGE_LEN as u32, PAGE_LEN as u32),
    };
    OwnCharacteristics {
        layout,
        send_len_max: send_len_max(config),
        request_limit: config.continuation,
        response_limit: config.continuation,
        response_receives: config.continuation - 1,
        reverse_support: match config.reverse_credits {
            0 => ReverseSupport::None,
            _ => ReverseSupport::Short,
        },
    }
}

/// Octets of data up to which it goes in messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacementLimits {
    /// Of a Call's arguments.
    data_max: u32,
    /// Of its results.
    results_max: u32,
}

impl PlacementLimits {
    /// None goes in messages.
    const NOTHING: PlacementLimits = PlacementLimits { data_max: 0, results_max: 0 };

    /// What an engine chooses over a fabric.
    fn of(config: &EngineConfig, limits: &Limits) -> PlacementLimits {
        let (data_max, results_max) = match config.placement {
            PlacementChoice::Auto => (limits.message_data_max, limits.message_results_max),
            PlacementChoice::Send => (u32::MAX, u32::MAX),
            PlacementChoice::Rdma => (0, 0),
        };
        PlacementLimits { data_max, results_max }
    }
}

/// Returns the operation of a message of version 2 that has one.
pub(crate) fn operation(message: &[u8]) -> Option<OptionalOperation<'_>> {
    match Header2::parse(message).ok()?.0.body {
        Body2::Optional(found) => OptionalOperation::parse(&found).ok(),
        _ => None,
    }
}

/// Takes in what the peer says of itself. This end asks for nothing, so other operations say nothing.
fn learn(peer: &mut PeerCharacteristics, operation: &OptionalOperation<'_>) {
    match operation {
        OptionalOperation::Initial(initial) => peer.handle_initial(initial),
        OptionalOperation::Update(update) => peer.handle_update(update),
        _ => {}
    }
}

/// Copies octets of an item that lies in pieces, one behind the other.
fn copy_pieces<'a>(pieces: impl Iterator<Item = &'a Shared>, mut from: usize, mut out: &mut [u8]) {
    for piece in pieces {
        if from >= piece.len() {
            from -= piece.len();
            continue;
        }
        let len = (piece.len() - from).min(out.len());
        let (here, rest) = out.split_at_mut(len);
        here.copy_from_slice(&piece[from..from + len]);
        (from, out) = (0, rest);
        if out.is_empty() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use stag_fabric::sim::LIMITS;

    use super::*;
    use crate::config::ProtocolChoice;

    fn placed(placement: PlacementChoice, limits: &Limits) -> (u32, u32) {
        let config = EngineConfig { placement, ..EngineConfig::default() };
        let PlacementLimits { data_max, results_max } = PlacementLimits::of(&config, limits);
        (data_max, results_max)
    }

    #[test]
    fn auto_places_data_as_the_fabric_says() {
        let limits = Limits { message_data_max: 8192, message_results_max: 4096, ..LIMITS };
        assert_eq!(placed(PlacementChoice::Auto, &limits), (8192, 4096));
        assert_eq!(placed(PlacementChoice::Send, &limits), (u32::MAX, u32::MAX));
        assert_eq!(placed(PlacementChoice::Rdma, &limits), (0, 0));
    }

    #[test]
    fn auto_speaks_version_1_where_a_message_always_costs_more() {
        let dear = Limits { message_data_max: 0, message_results_max: 0, ..LIMITS };
        for protocol in [ProtocolChoice::One, ProtocolChoice::Two, ProtocolChoice::Auto] {
            for placement in [PlacementChoice::Auto, PlacementChoice::Send, PlacementChoice::Rdma] {
                let config = EngineConfig { protocol, placement, ..EngineConfig::default() };
                let is_left_to_it = (protocol, placement) == (ProtocolChoice::Auto, PlacementChoice::Auto);
                let expected = if is_left_to_it { ProtocolChoice::One } else { protocol };
                assert_eq!(config.over(&dear).protocol, expected, "{protocol:?} {placement:?}");
                assert_eq!(config.over(&LIMITS).protocol, protocol, "{protocol:?} {placement:?}");
            }
        }
    }
}
