//! The values that the two ends of a connection agree on when it is set up (RFC 8797).
//!
//! Each end sends its own [`PrivateData`] in the connect request or the accept ([`PrivateData::to_wire`]),
//! and computes the [`Parameters`] from it and the peer's. They hold until the connection ends; a reconnect
//! starts again (8797-4-b).

use stag_wire::cm_private_data::inline_thresholds;
pub use stag_wire::cm_private_data::{InlineSize, PrivateData};
use stag_wire::rpcrdma::INLINE_THRESHOLD_DEFAULT;

/// Which end of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It connected: forward Calls come from it.
    Client,
    /// It accepted.
    Server,
}

/// What was agreed, for the forward direction: the client is Requester, the server Responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Call inline threshold: the largest Send from Requester to Responder, header included, in octets
    /// (8797-4.2-b).
    pub call_threshold: u32,
    /// Reply inline threshold: the largest Send from Responder to Requester (8797-4.2-c).
    pub reply_threshold: u32,
    /// Whether Replies may go, or come, by Send with Invalidate: a Responder sends so if both sides said that they
    /// can (8797-4.1-a), a Requester takes it if it said so itself (8797-L-5).
    pub remote_invalidation: bool,
}

impl Default for Parameters {
    /// Without any agreement (8797-5.1-a).
    fn default() -> Self {
        Self {
            call_threshold: INLINE_THRESHOLD_DEFAULT,
            reply_threshold: INLINE_THRESHOLD_DEFAULT,
            remote_invalidation: false,
        }
    }
}

impl Parameters {
    /// What `own` and the private data that came from the peer amount to.
    ///
    /// Private data of any length and content is taken; what holds no conforming block counts as silence
    /// (8797-5.1-a). An end that tells nothing itself passes [`PrivateData::ABSENT`].
    #[must_use]
    pub fn negotiate(side: Side, own: &PrivateData, peer_private_data: &[u8]) -> Self {
        let peer = PrivateData::find(peer_private_data);
        let agreed = inline_thresholds(own, peer.as_ref());
        let (call_threshold, reply_threshold) = match side {
            Side::Client => (agreed.send, agreed.receive),
            Side::Server => (agreed.receive, agreed.send),
        };
        let remote_invalidation = match side {
            Side::Client => own.remote_invalidation,
            Side::Server => agreed.remote_invalidation,
        };
        Self { call_threshold, reply_threshold, remote_invalidation }
    }

    /// The same agreement for the reverse direction, where the server is Requester (8167-4.2-a). Remote
    /// invalidation was agreed for forward Replies only.
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self {
            call_threshold: self.reply_threshold,
            reply_threshold: self.call_threshold,
            remote_invalidation: false,
        }
    }
}
