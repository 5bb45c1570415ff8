//! What the peer has said of itself by transport characteristics (xcharext-00, rtrext section 5), and what follows from it.
//!
//! Each has a default until it is told (XC-j), and the last word counts. A peer that tells nothing is as one of the base
//! version: Calls and Replies of one transmission, no items in its Receives, Receives of 4096 octets.

use stag_wire::rpcrdma2::{
    BufferGroup, BufferStructure, CharacteristicUpdate, CharacteristicValue, INLINE_THRESHOLD_DEFAULT,
    InitialCharacteristics, ReverseSupport, transmission_support,
};

/// Groups of a Receive's structure that are remembered. A peer with more has Receives that no items are put into.
const GROUPS_MAX: usize = 16;

/// How the peer divides its Receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Structure {
    len: u32,
    groups: [BufferGroup; GROUPS_MAX],
    count: usize,
}

/// The characteristics of one connection's peer. Bounded, whatever it tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCharacteristics {
    receive_size: Option<u32>,
    requester_invalidation: bool,
    reverse_support: ReverseSupport,
    transmission_support: u32,
    structure: Option<Structure>,
    request_limit: u32,
    response_limit: u32,
}

impl Default for PeerCharacteristics {
    fn default() -> Self {
        Self {
            receive_size: None,
            requester_invalidation: false,
            reverse_support: ReverseSupport::Unknown,
            transmission_support: 0,
            structure: None,
            request_limit: 1,
            response_limit: 1,
        }
    }
}

impl PeerCharacteristics {
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
                self.structure = Some(Structure::of(&structure))
            }
            CharacteristicValue::RequestLimit(limit) => self.request_limit = limit.max(1),
            CharacteristicValue::ResponseLimit(limit) => self.response_limit = limit.max(1),
            CharacteristicValue::Unknown { .. } => {}
        }
    }

    /// Returns the octets of the longest Send that the peer takes (RTR-8.3-a): the smaller of its Receive size and of its
    /// structure's length, if it told both.
    #[must_use]
    pub fn receive_size(&self) -> u32 {
        let told = [self.receive_size, self.structure.map(|structure| structure.len)];
        told.into_iter().flatten().min().unwrap_or(INLINE_THRESHOLD_DEFAULT)
    }

    /// Whether the peer, as a Requester, takes Sends with Invalidate (XC-m).
    #[must_use]
    pub fn takes_invalidation(&self) -> bool {
        self.requester_invalidation
    }

    /// Which reverse Calls the peer takes. One that does not say takes none, unless its program says so (XC-l).
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

    /// Whether the peer, as a Responder, puts results into Receives if it is told to (RTR-5.3-c).
    #[must_use]
    pub fn places_results(&self) -> bool {
        self.supports(transmission_support::RESPONSE)
    }

    /// Returns the targets for items in each Receive of the peer: octets from the Receive's start, and octets of each. None:
    /// items go by explicit RDMA (RTR-5.3-a).
    pub fn targets(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let groups = self.structure.iter().flat_map(|structure| &structure.groups[..structure.count]);
        let mut start = 0;
        groups.flat_map(move |group| {
            let (first, len, is_target) = (start, group.len, group.is_target);
            // Checked: all parts together are as long as a Receive.
            start += group.count * group.len;
            let count = if is_target { group.count } else { 0 };
            (0..count).map(move |nth| (first + nth * len, len))
        })
    }

    fn supports(&self, bits: u32) -> bool {
        self.transmission_support & bits == bits
    }
}

impl Structure {
    fn of(told: &BufferStructure<'_>) -> Self {
        let mut structure = Self { len: told.len, groups: [BufferGroup::default(); GROUPS_MAX], count: 0 };
        if told.groups.len() <= GROUPS_MAX {
            for (place, group) in structure.groups.iter_mut().zip(told.groups.iter()) {
                *place = group;
            }
            structure.count = told.groups.len();
        }
        structure
    }
}
