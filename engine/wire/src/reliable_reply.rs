//! Private data of our own: whether an end takes Replies of any size (reliable reply, RR-P-4), and whether it speaks
//! version 2.
//!
//! Eight octets behind the block of RFC 8797 ([`crate::cm_private_data`]), and only from a side that has the feature switched
//! on: a peer that does not know the identifier skips the block (RR-P-3).
//!
//! ```text
//!  0                    4         5          6                8
//!  | Format Identifier  | Version | Features | Receives for   |
//!  |                    |         |          | RDMA_DONE      |
//! ```

/// Octets of the block.
pub const LEN: usize = 8;

/// The Format Identifier, as it stands on the wire: `Stag` in ASCII.
///
/// Neither it nor the block contains that of RFC 8797, so a search for that one finds nothing here.
pub const IDENTIFIER: [u8; 4] = *b"Stag";

/// The version of the block.
pub const VERSION: u8 = 1;

/// As Requester: takes Replies with a Read chunk, and sends RDMA_DONE.
const FEATURE_PULLS: u8 = 0x01;
/// As Responder: sends such Replies, and takes RDMA_DONE.
const FEATURE_EXPOSES: u8 = 0x02;
/// Speaks version 2 of RPC-over-RDMA, and tells its transport characteristics.
const FEATURE_VERSION_2: u8 = 0x04;

/// The octet of the block with the features.
const FEATURES: usize = 5;

/// Returns `block` with the word that its sender speaks version 2 of RPC-over-RDMA. A peer that does not know that feature
/// ignores it, as RR-P-4a says.
#[must_use]
pub const fn announcing_version_2(mut block: [u8; LEN]) -> [u8; LEN] {
    block[FEATURES] |= FEATURE_VERSION_2;
    block
}

/// Returns whether the side that sent this private data announces version 2 of RPC-over-RDMA. It still is probed for it
/// (V2-5-a).
#[must_use]
pub fn announces_version_2(private_data: &[u8]) -> bool {
    let mut blocks = private_data.windows(LEN);
    let found = blocks.find(|block| block.starts_with(&IDENTIFIER) && block[4] == VERSION);
    found.is_some_and(|block| block[FEATURES] & FEATURE_VERSION_2 != 0)
}

/// What one side tells the other. Holds for the life of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReliableReply {
    /// As Requester it pulls Replies that the peer exposes, and sends RDMA_DONE for each.
    pub pulls: bool,
    /// As Responder it exposes Replies, and takes RDMA_DONE.
    pub exposes: bool,
    /// Receives that it posts for RDMA_DONE: the most Replies that it exposes at once (RR-P-8).
    pub done_receives: u16,
}

impl ReliableReply {
    /// Finds the block in received private data: the first place, at any offset, that has the identifier, a known version,
    /// and all its octets. Features that are not known here are ignored.
    ///
    /// `None` is no error: the peer does not have the feature (RR-P-1).
    #[must_use]
    pub fn find(private_data: &[u8]) -> Option<ReliableReply> {
        private_data.windows(LEN).find_map(|window| ReliableReply::from_wire(window.first_chunk()?))
    }

    fn from_wire(wire: &[u8; LEN]) -> Option<ReliableReply> {
        let [i0, i1, i2, i3, version, features, r0, r1] = *wire;
        ([i0, i1, i2, i3] == IDENTIFIER && version == VERSION).then_some(ReliableReply {
            pulls: features & FEATURE_PULLS != 0,
            exposes: features & FEATURE_EXPOSES != 0,
            done_receives: u16::from_be_bytes([r0, r1]),
        })
    }

    /// Returns the block to send, behind that of RFC 8797.
    #[must_use]
    pub const fn to_wire(&self) -> [u8; LEN] {
        let [i0, i1, i2, i3] = IDENTIFIER;
        let pulls = if self.pulls { FEATURE_PULLS } else { 0 };
        let exposes = if self.exposes { FEATURE_EXPOSES } else { 0 };
        let [r0, r1] = self.done_receives.to_be_bytes();
        [i0, i1, i2, i3, VERSION, pulls | exposes, r0, r1]
    }
}

/// What two sides agreed on, seen from one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReliableReplies {
    /// Replies that this side may have exposed at once, as Responder. 0: none may be.
    pub expose_max: u16,
    /// Replies that the peer may have exposed at once. 0: it exposes none, and no RDMA_DONE is sent.
    pub pull_max: u16,
}

/// Returns what a connection's sides agreed on: `own` is what this side told, `peer` what it was told, or `None` (RR-P-2).
///
/// The peer computes the same with the roles exchanged, so both ends agree.
#[must_use]
pub fn agree(own: Option<&ReliableReply>, peer: Option<&ReliableReply>) -> ReliableReplies {
    let (Some(own), Some(peer)) = (own, peer) else { return ReliableReplies::default() };
    let granted = |exposes: &ReliableReply, pulls: &ReliableReply| {
        if exposes.exposes && pulls.pulls { exposes.done_receives } else { 0 }
    };
    ReliableReplies { expose_max: granted(own, peer), pull_max: granted(peer, own) }
}
