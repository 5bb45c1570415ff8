//! What two ends tell each other when they connect, beside inline thresholds: who exposes Replies, and who pulls them.
//!
//! The block of reliable reply goes behind that of RFC 8797, and only where the feature is switched on (RR-P-3). The end that
//! connects only pulls, the end that accepts only exposes, and says so to who pulls alone: to any other its private data are
//! what they were without the feature.

use arrayvec::ArrayVec;
use stag_fabric::Provider;
use stag_proto::parameters::PrivateData;
use stag_wire::cm_private_data;
use stag_wire::reliable_reply::{self, ReliableReply, agree};

use crate::client::pulling::PullTerms;
use crate::engine::Engine;
use crate::service::Services;

/// Private data of this end.
pub(crate) type OwnPrivateData = ArrayVec<u8, { cm_private_data::LEN + reliable_reply::LEN }>;

impl<P: Provider, S: Services> Engine<P, S> {
    /// What this end says of reliable reply when it connects. `None`: it has the feature switched off, or no room to say so.
    fn pulls(&self) -> Option<ReliableReply> {
        let has_room = self.core.provider.limits().private_data_len_max >= OwnPrivateData::new().capacity();
        let is_on = self.core.config.pull_len_max > 0 && has_room;
        is_on.then_some(ReliableReply { pulls: true, exposes: false, done_receives: 0 })
    }

    /// The private data to connect with.
    pub(crate) fn private_data_to_connect(&self) -> OwnPrivateData {
        concatenate(&self.settings(), self.pulls().as_ref())
    }

    /// What was agreed on with the server whose private data these are.
    pub(crate) fn pull_terms(&self, private_data: &[u8]) -> PullTerms {
        let agreed = agree(self.pulls().as_ref(), ReliableReply::find(private_data).as_ref());
        let peer = PrivateData::find(private_data);
        let invalidates =
            self.settings().remote_invalidation && peer.is_some_and(|peer| peer.remote_invalidation);
        PullTerms { replies_max: agreed.pull_max, invalidates }
    }

    /// Whether Replies may be exposed to a client with these private data.
    pub(crate) fn may_expose_to(&self, private_data: &[u8]) -> bool {
        self.core.config.exposed_replies > 0
            && self.core.provider.limits().private_data_len_max >= OwnPrivateData::new().capacity()
            && ReliableReply::find(private_data).is_some_and(|peer| peer.pulls)
    }
}

/// The private data to accept with: `exposed_replies` may be exposed at once, on a connection that does that.
pub(crate) fn private_data_to_accept(settings: &PrivateData, exposed_replies: u16) -> OwnPrivateData {
    let exposes = ReliableReply { pulls: false, exposes: true, done_receives: exposed_replies };
    concatenate(settings, Some(&exposes).filter(|_| exposed_replies > 0))
}

fn concatenate(settings: &PrivateData, block: Option<&ReliableReply>) -> OwnPrivateData {
    let blocks = settings.to_wire().into_iter().chain(block.into_iter().flat_map(ReliableReply::to_wire));
    blocks.collect()
}
