//! The private data of connection set-up beside inline thresholds: which end exposes Replies, which pulls them, and which speaks
//! version 2.
//!
//! The block of Stag goes behind that of RFC 8797, and only if one of the features is switched on (RR-P-3). The end that connects
//! only pulls; the end that accepts only exposes, and announces that only to a peer that pulls; likewise it announces version 2
//! only to a peer that did. To any other peer its private data are as without the features. On a connection that may speak
//! version 2, Replies are not exposed: its messages may be of several Sends.
//!
//! No setting says "the peer supports it" in the block's place (RR-P-5 allows one). The server's block has a number that such a
//! setting would have to guess: the number of its Receives for RDMA_DONE (RR-P-8). One RDMA_DONE too many ends an iWARP
//! connection, or stalls one of InfiniBand; and a peer without the feature takes RDMA_DONE for a header that it cannot read. The
//! private data of every fabric have room for the block, so the setting would reach no peer that the block does not.

use arrayvec::ArrayVec;
use stag_fabric::Provider;
use stag_proto::parameters::{InlineSize, PrivateData};
use stag_wire::cm_private_data;
use stag_wire::reliable_reply::{self, ReliableReply, agree, announcing_version_2};

use crate::client::pulling::PullTerms;
use crate::connection::Connections;
use crate::state::Core;
use crate::version2::set_up::has_room_for_version2;

/// Private data of this end.
pub(crate) type OwnPrivateData = ArrayVec<u8, { cm_private_data::LEN + reliable_reply::LEN }>;

/// What this side says in its private data (RFC 8797).
pub(crate) fn settings<P: Provider>(core: &Core<P>) -> PrivateData {
    let size = InlineSize::round_down(core.config.inline_threshold);
    PrivateData {
        remote_invalidation: core.config.remote_invalidation && core.provider.limits().send_with_invalidate,
        send_size: size,
        receive_size: size,
    }
}

/// Whether private data have room for a block of its own.
fn has_room_for_block<P: Provider>(core: &Core<P>) -> bool {
    core.provider.limits().private_data_len_max >= OwnPrivateData::new().capacity()
}

/// What this end says of reliable reply when it connects. `None`: it has the feature switched off, or no room to say so.
fn pulls<P: Provider>(core: &Core<P>) -> Option<ReliableReply> {
    let is_on = core.config.pull_len_max > 0 && has_room_for_block(core);
    is_on.then_some(ReliableReply { pulls: true, exposes: false, done_receives: 0 })
}

/// The private data to connect with.
pub(crate) fn private_data_to_connect<P: Provider>(
    core: &Core<P>,
    connections: &Connections,
) -> OwnPrivateData {
    let speaks_version_2 = has_room_for_version2(&core.config, connections) && has_room_for_block(core);
    concatenate(&settings(core), pulls(core).as_ref(), speaks_version_2)
}

/// The private data to accept with: `exposed_replies` may be exposed at once, and the connection may speak version 2 if
/// `is_version2`.
pub(crate) fn private_data_to_accept<P: Provider>(
    core: &Core<P>,
    exposed_replies: u16,
    is_version2: bool,
) -> OwnPrivateData {
    let exposes = ReliableReply { pulls: false, exposes: true, done_receives: exposed_replies };
    let exposes = Some(&exposes).filter(|_| exposed_replies > 0);
    concatenate(&settings(core), exposes, is_version2 && has_room_for_block(core))
}

/// What was agreed on with the server whose private data these are.
pub(crate) fn pull_terms<P: Provider>(core: &Core<P>, private_data: &[u8]) -> PullTerms {
    let agreed = agree(pulls(core).as_ref(), ReliableReply::find(private_data).as_ref());
    let peer = PrivateData::find(private_data);
    let invalidates = settings(core).remote_invalidation && peer.is_some_and(|peer| peer.remote_invalidation);
    PullTerms { replies_max: agreed.pull_max, invalidates }
}

/// Whether Replies may be exposed to a client with these private data.
pub(crate) fn may_expose_to<P: Provider>(core: &Core<P>, private_data: &[u8]) -> bool {
    core.config.exposed_replies > 0
        && has_room_for_block(core)
        && ReliableReply::find(private_data).is_some_and(|peer| peer.pulls)
}

fn concatenate(
    settings: &PrivateData,
    block: Option<&ReliableReply>,
    speaks_version_2: bool,
) -> OwnPrivateData {
    let mut data: OwnPrivateData = settings.to_wire().into_iter().collect();
    let octets = block.copied().unwrap_or_default().to_wire();
    if speaks_version_2 {
        data.extend(announcing_version_2(octets));
    } else if block.is_some() {
        data.extend(octets);
    }
    data
}
