//! The peer's transport characteristics (xcharext-00, rtrext section 5), and what follows from them.
//!
//! Each has a default until the peer sends it (XC-j), and the last value counts. A peer that sends none is treated as
//! one of the base version: Calls and Replies of one transmission, no items in its Receives, Receives of 4096 octets, or as
//! its private data said.

use stag_wire::rpcrdma2::{
    CharacteristicUpdate, CharacteristicValue, INLINE_THRESHOLD_DEFAULT, InitialCharacteristics,
    ReverseSupport, transmission_support,
};

use crate::layout::ReceiveLayout;

/// The characteristics of one connection's peer. Bounded, whatever it tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCharacteristics {
    receive_size_default: u32,
    receive_size: Option<u32>,
    requester_invalidation: bool,
    reverse_support: ReverseSupport,
    transmission_support: u32,
    structure: Option<ReceiveLayout>,
    request_limit: u32,
    response_limit: u32,
}

impl Default for PeerCharacteristics {
    fn default() -> Self {
        Self::new(INLINE_THRESHOLD_DEFAULT)
    }
}

impl PeerCharacteristics {
    /// Nothing is told yet. `receive_size`: octets of its Receives until then: what its private data said (V2-5.2-c).
    #[must_use]
    pub fn new(receive_size: u32) -> Self {
        Self {
            receive_size_default: receive_size,
            receive_size: None,
            requester_invalidation: false,
            reverse_support: ReverseSupport::Unknown,
            transmission_support: 0,
            structure: None,
            request_limit: 1,
            response_limit: 1,
        }
    }

    /// Takes in ROPT_INITXCH. Of two values with one number the last counts (XC-X-2).
    pub fn handle_initial(&mut self, initial: &InitialCharacteristics<'_>) {
        initial.values.iter().for_each(|value| self.learn(&value));
    }

    /// Takes in ROPT_UPDXCH.
    pub fn handle_update(&mut self, update: &CharacteristicUpdate<'_>) {
        self.learn(&update.now);
    }

    fn learn(&mut self, value: &CharacteristicValue<'_>) {
        match *value {
            CharacteristicValue::ReceiveSize(octets) => self.receive_size = Some(octets),
            CharacteristicValue::RequesterInvalidation(is_taken) => self.requester_invalidation = is_taken,
            CharacteristicValue::ReverseSupport(support) => self.reverse_support = support,
            CharacteristicValue::TransmissionSupport(bits) => self.transmission_support = bits,
            CharacteristicValue::BufferStructure(structure) => {
                self.structure = Some(ReceiveLayout::of(&structure));
            }
            CharacteristicValue::RequestLimit(limit) => self.request_limit = limit.max(1),
            CharacteristicValue::ResponseLimit(limit) => self.response_limit = limit.max(1),
            CharacteristicValue::Unknown { .. } => {}
        }
    }

    /// Returns the octets of the longest Send that the peer takes, at least 32 if it told so (RTR-8.3-a, XC-X-3): the smaller of
    /// its Receive size and of its structure's length, if it told both.
    #[must_use]
    pub fn receive_size(&self) -> u32 {
        let told = [self.receive_size, self.structure.map(|structure| structure.len())];
        told.into_iter().flatten().min().unwrap_or(self.receive_size_default)
    }

    /// Whether the peer, as a Requester, takes Sends with Invalidate (XC-m).
    #[must_use]
    pub fn takes_invalidation(&self) -> bool {
        self.requester_invalidation
    }

    /// Which reverse Calls the peer takes: none if it does not say, unless its program says so (XC-l).
    #[must_use]
    pub fn reverse_support(&self) -> ReverseSupport {
        self.reverse_support
    }

    /// Whether the peer takes Calls as transmissions.
    #[must_use]
    pub fn takes_request_transmissions(&self) -> bool {
        self.supports(transmission_support::REQUEST)
    }

    /// Returns the transmissions that a Call to the peer may have (RTR-5.2-a).
    #[must_use]
    pub fn request_transmissions(&self) -> u32 {
        let continues = self.supports(transmission_support::REQUEST | transmission_support::CONTINUATION);
        if continues { self.request_limit } else { 1 }
    }

    /// Returns the transmissions that a Reply of the peer may have: no more Receives need to be told of (RTR-5.2-c).
    #[must_use]
    pub fn response_transmissions(&self) -> u32 {
        let continues = self.supports(transmission_support::RESPONSE | transmission_support::CONTINUATION);
        if continues { self.response_limit } else { 1 }
    }

    /// Whether the peer, as a Responder, puts results in Receives on request (RTR-5.3-c).
    #[must_use]
    pub fn places_results(&self) -> bool {
        self.supports(transmission_support::RESPONSE)
    }

    /// Returns how the peer divides its Receives, for an end whose Sends have `send_len_max` octets at most. Without targets, items
    /// go by explicit RDMA (RTR-5.3-a). A peer whose Receives are shorter than the structure that it told counts as one without.
    #[must_use]
    pub fn layout(&self, send_len_max: u32) -> ReceiveLayout {
        let len = self.receive_size();
        match self.structure {
            Some(structure) if structure.len() == len => structure.bounded(send_len_max),
            _ => ReceiveLayout::plain(len.min(send_len_max)),
        }
    }

    fn supports(&self, bits: u32) -> bool {
        self.transmission_support & bits == bits
    }
}
