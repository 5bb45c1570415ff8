//! One side of a connection as a speaker of version 2.

use std::collections::VecDeque;

use stag_wire::rpcrdma2::{BufferGroup, CharacteristicValue, MessageType};
use stag_wire::xdr::Reduced;

use crate::reading::Called;

/// A message of several transmissions, of which some are missing.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) xid: u32,
    pub(crate) direction: MessageType,
    pub(crate) lead_option: u32,
    pub(crate) count: u32,
    pub(crate) next: u32,
    /// `None` if it is too long to be kept.
    pub(crate) stream: Option<Vec<u8>>,
    pub(crate) reduced: Vec<Reduced>,
    /// Of a Reply: what was called.
    pub(crate) called: Option<Called>,
}

/// What a side said of itself in version 2, and what it has begun to say.
#[derive(Debug, Default)]
pub(crate) struct Speaker {
    /// It sent a message of version 2.
    pub(crate) has_spoken: bool,
    /// It was answered in version 2.
    pub(crate) is_confirmed: bool,
    /// It sent a Call of several transmissions.
    pub(crate) sends_groups: bool,
    /// Octets of its smallest Receive.
    pub(crate) receive_size: Option<u32>,
    /// Transmissions of the longest Call that it takes.
    pub(crate) request_limit: Option<u32>,
    /// How its Receives are divided, if it said so.
    pub(crate) structure: Option<Vec<BufferGroup>>,
    /// Its requests for characteristics that were not answered.
    pub(crate) asked: VecDeque<u32>,
    /// The messages that it is in the midst of: a Call, a Reply.
    pub(crate) groups: [Option<Group>; 2],
}

impl Speaker {
    /// Takes a characteristic of the side.
    pub(crate) fn learn(&mut self, value: &CharacteristicValue<'_>) {
        match value {
            CharacteristicValue::ReceiveSize(octets) => self.receive_size = Some(*octets),
            CharacteristicValue::RequestLimit(limit) => self.request_limit = Some(*limit),
            CharacteristicValue::BufferStructure(structure) => {
                self.structure = Some(structure.groups.iter().take(64).collect());
            }
            _ => {}
        }
    }
}
