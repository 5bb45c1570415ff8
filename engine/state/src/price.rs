//! What things take of the heap, at most: the sums that limits are made of.

/// Octets of an entry of `len` octets in a hash map: just behind where the map grows, 16 places for 7 entries, with an octet
/// beside each.
pub(crate) const fn map_entry(len: usize) -> u64 {
    ((len as u64 + 1) * 16).div_ceil(7)
}

/// Octets of an entry of `len` octets in a vector that grew by doubling.
pub(crate) const fn vector_entry(len: usize) -> u64 {
    2 * len as u64
}

/// Octets of a piece of the heap of `len` octets, as the allocator hands it out.
pub(crate) const fn piece(len: u64) -> u64 {
    let taken = (len + 8).next_multiple_of(16);
    if taken < 32 { 32 } else { taken }
}

/// Octets before what is counted, in an `Rc` or `Arc`.
pub(crate) const COUNTS: u64 = 16;
