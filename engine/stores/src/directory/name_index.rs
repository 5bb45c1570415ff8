//! Which node a name leads to, as far as that is remembered.

use super::index::{Index, ROOT};
use super::object::hash;

/// Names that are remembered at most.
const NAMES_MAX: usize = 1 << 16;

/// A node for each name. It is only a place to look: the node itself knows its names.
pub(super) struct NameIndex {
    /// In the places that hashes of the names say. [`ROOT`]: none.
    nodes: Vec<Index>,
}

impl NameIndex {
    /// An index of the names of this number of objects.
    pub(super) fn new(objects: usize) -> NameIndex {
        NameIndex { nodes: vec![ROOT; objects.next_power_of_two().min(NAMES_MAX)] }
    }

    fn place(&self, directory: Index, name: &[u8]) -> usize {
        let sum = hash(name) ^ u64::from(directory).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (sum ^ sum >> 32) as usize & (self.nodes.len() - 1)
    }

    pub(super) fn note(&mut self, directory: Index, name: &[u8], node: Index) {
        let place = self.place(directory, name);
        self.nodes[place] = node;
    }

    /// The node that may have this name.
    pub(super) fn get(&self, directory: Index, name: &[u8]) -> Index {
        self.nodes[self.place(directory, name)]
    }
}
