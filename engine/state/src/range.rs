//! Ranges of octets, in NLM's form and in one that can be compared.

/// Octets of a file, from the first to the last, both included. There is always at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    first: u64,
    last: u64,
}

impl Range {
    /// All octets of a file.
    pub const ALL: Range = Range { first: 0, last: u64::MAX };

    /// `len` octets from `offset`; 0 is to the end of the file, however far that moves. `None`: it goes beyond
    /// what 64 bits can count.
    #[must_use]
    pub const fn new(offset: u64, len: u64) -> Option<Range> {
        if len == 0 {
            return Some(Range { first: offset, last: u64::MAX });
        }
        match offset.checked_add(len - 1) {
            Some(last) => Some(Range { first: offset, last }),
            None => None,
        }
    }

    /// The octets from `first` to `last`; `None` if there are none.
    #[must_use]
    pub const fn between(first: u64, last: u64) -> Option<Range> {
        if first <= last { Some(Range { first, last }) } else { None }
    }

    /// The first octet.
    #[must_use]
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// The last octet; [`u64::MAX`] stands for the end of the file.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// The length as NLM writes it: 0 to the end of the file.
    #[must_use]
    pub const fn wire_len(&self) -> u64 {
        if self.last == u64::MAX { 0 } else { self.last - self.first + 1 }
    }

    /// Whether the two have an octet in common.
    #[must_use]
    pub const fn overlaps(&self, other: &Range) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Whether the two overlap, or one begins where the other ends.
    #[must_use]
    pub const fn touches(&self, other: &Range) -> bool {
        self.first <= other.last.saturating_add(1) && other.first <= self.last.saturating_add(1)
    }

    /// The range from the first octet of either to the last of either.
    #[must_use]
    pub fn joined(&self, other: &Range) -> Range {
        Range { first: self.first.min(other.first), last: self.last.max(other.last) }
    }

    /// The octets that the two have in common, if there are any.
    #[must_use]
    pub fn within(&self, other: &Range) -> Option<Range> {
        Range::between(self.first.max(other.first), self.last.min(other.last))
    }

    /// What is before `other`, if anything is.
    #[must_use]
    pub fn before(&self, other: &Range) -> Option<Range> {
        Range::between(self.first, self.last.min(other.first.checked_sub(1)?))
    }

    /// What is behind `other`, if anything is.
    #[must_use]
    pub fn behind(&self, other: &Range) -> Option<Range> {
        Range::between(self.first.max(other.last.checked_add(1)?), self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_to_the_end() {
        let to_end = Range::new(5, 0).unwrap();
        assert_eq!((to_end.first(), to_end.last(), to_end.wire_len()), (5, u64::MAX, 0));
        let one = Range::new(u64::MAX, 1).unwrap();
        assert_eq!(one, Range::new(u64::MAX, 0).unwrap());
        assert_eq!(Range::new(u64::MAX, 2), None);
        assert_eq!(Range::new(1, u64::MAX), Range::new(1, 0));
        assert_eq!(Range::new(2, u64::MAX), None);
        assert_eq!(Range::new(3, 4).unwrap().wire_len(), 4);
    }

    #[test]
    fn ranges_meet_and_part() {
        let range = |first, last| Range::between(first, last).unwrap();
        let middle = range(10, 19);
        assert!(middle.overlaps(&range(19, 30)) && !middle.overlaps(&range(20, 30)));
        assert!(
            middle.touches(&range(20, 30)) && middle.touches(&range(0, 9)) && !middle.touches(&range(21, 30))
        );
        assert!(range(0, u64::MAX).touches(&range(0, 0)));
        assert_eq!(range(0, 29).before(&middle), Some(range(0, 9)));
        assert_eq!(range(0, 29).behind(&middle), Some(range(20, 29)));
        assert_eq!(middle.before(&range(0, 5)), None);
        assert_eq!(middle.behind(&range(0, u64::MAX)), None);
        assert_eq!(middle.joined(&range(20, 25)), range(10, 25));
        assert_eq!(middle.within(&range(15, 25)), Some(range(15, 19)));
        assert_eq!(middle.within(&range(20, 25)), None);
        assert_eq!(Range::between(1, 0), None);
    }
}
