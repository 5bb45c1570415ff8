//! Places of nodes, and maps by the numbers of objects.

use std::collections::HashMap;

/// A node's place in the table.
pub(super) type Index = u32;

/// The node of the root.
pub(super) const ROOT: Index = 0;

/// What is kept by the numbers that the kernel gives objects. They are hashed by each Call, and clients cannot choose them.
pub(super) type NumberMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;
