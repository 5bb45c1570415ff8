//! Private data of Stag's own behind those of RFC 8797: which end exposes and pulls Replies, and which speaks version 2
//! (RR-P-4).
//!
//! Written and read here octet by octet, apart from the engine.

use crate::probe::own_private_data;

/// Octets of the block.
pub const BLOCK_LEN: usize = 8;

/// Its Format Identifier.
pub const BLOCK_IDENTIFIER: [u8; 4] = *b"Stag";

/// Its version.
pub const BLOCK_VERSION: u8 = 1;

/// Feature bit: as Requester it pulls Replies, and sends RDMA_DONE.
pub const PULLS: u8 = 1;

/// Feature bit: as Responder it exposes Replies, and takes RDMA_DONE.
pub const EXPOSES: u8 = 2;

/// Feature bit: it speaks version 2.
pub const SPEAKS_SECOND: u8 = 4;

/// What a side says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureBlock {
    /// Its feature bits.
    pub features: u8,
    /// Receives that it posts for RDMA_DONE.
    pub done_receives: u16,
}

impl FeatureBlock {
    /// The octets of the block.
    #[must_use]
    pub fn to_wire(self) -> [u8; BLOCK_LEN] {
        let [i0, i1, i2, i3] = BLOCK_IDENTIFIER;
        let [r0, r1] = self.done_receives.to_be_bytes();
        [i0, i1, i2, i3, BLOCK_VERSION, self.features, r0, r1]
    }

    /// The block in private data, and the octet that it begins at.
    #[must_use]
    pub fn find(private_data: &[u8]) -> Option<(usize, FeatureBlock)> {
        let mut windows = private_data.windows(BLOCK_LEN).enumerate();
        let (place, found) = windows.find(|(_, window)| {
            window.starts_with(&BLOCK_IDENTIFIER) && window[BLOCK_IDENTIFIER.len()] == BLOCK_VERSION
        })?;
        let done_receives = u16::from_be_bytes([found[6], found[7]]);
        Some((place, FeatureBlock { features: found[5], done_receives }))
    }

    /// Whether private data have a block with this feature bit.
    #[must_use]
    pub fn has(private_data: &[u8], feature: u8) -> bool {
        FeatureBlock::find(private_data).is_some_and(|(_, block)| block.features & feature != 0)
    }
}

/// Our private data with a block behind them.
#[must_use]
pub fn private_data_with(remote_invalidation: bool, features: u8, done_receives: u16) -> Vec<u8> {
    let block = FeatureBlock { features, done_receives }.to_wire();
    [own_private_data(remote_invalidation).to_wire(), block].concat()
}
