//! The place of a reactor in its group, and sets of them.

use std::fmt;

/// Place of a reactor in its group: 0, 1, …. Reactor 0 is on the thread that runs the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReactorId(u8);

impl ReactorId {
    /// Reactors of a group at most.
    pub const COUNT_MAX: usize = 64;

    /// The first of a group, and one that is alone.
    pub const FIRST: ReactorId = ReactorId(0);

    /// The id with this index, if a group can have it.
    #[must_use]
    pub const fn new(index: usize) -> Option<ReactorId> {
        // Below 64, so the cast cuts nothing off.
        if index < ReactorId::COUNT_MAX { Some(ReactorId(index as u8)) } else { None }
    }

    /// The id with an index that is known to be right.
    #[inline]
    pub(crate) fn of(index: usize) -> ReactorId {
        ReactorId::new(index)
            .unwrap_or_else(|| panic!("a group has {} reactors at most", ReactorId::COUNT_MAX))
    }

    /// Where it is in a list with one entry for each reactor.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Its number, for what names reactors without knowing of groups (the owner of a pool).
impl From<ReactorId> for u8 {
    #[inline]
    fn from(id: ReactorId) -> u8 {
        id.0
    }
}

impl fmt::Display for ReactorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of reactors of one group. Iterating takes the lowest id first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReactorSet(u64);

impl ReactorSet {
    /// Adds a reactor.
    #[inline]
    pub fn insert(&mut self, id: ReactorId) {
        self.0 |= 1 << id.0;
    }

    /// Adds all of another set.
    #[inline]
    pub fn insert_all(&mut self, other: ReactorSet) {
        self.0 |= other.0;
    }

    /// Whether it has a reactor.
    #[inline]
    #[must_use]
    pub const fn contains(self, id: ReactorId) -> bool {
        self.0 >> id.0 & 1 != 0
    }

    /// Whether it has none.
    #[inline]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Iterator for ReactorSet {
    type Item = ReactorId;

    #[inline]
    fn next(&mut self) -> Option<ReactorId> {
        if self.0 == 0 {
            return None;
        }
        // Below 64, so the cast cuts nothing off.
        let id = ReactorId(self.0.trailing_zeros() as u8);
        self.0 &= self.0 - 1;
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_reactors_is_in_order() {
        let mut set = ReactorSet::default();
        assert!(set.is_empty() && set.next().is_none());
        for index in [63, 0, 7] {
            set.insert(ReactorId::of(index));
        }
        assert!(set.contains(ReactorId::of(63)) && !set.contains(ReactorId::of(62)));
        let mut other = ReactorSet::default();
        other.insert(ReactorId::of(5));
        set.insert_all(other);
        assert_eq!(set.map(ReactorId::index).collect::<Vec<_>>(), [0, 5, 7, 63]);
        assert_eq!(ReactorId::new(64), None);
    }
}
