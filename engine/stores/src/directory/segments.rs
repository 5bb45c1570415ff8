//! What is locked of one file: each octet not at all, shared, or exclusively.

use stag_vfs::OctetLock;

/// How octets are locked: exclusively or not, or not at all. The order is that of strength.
pub(super) type LockKind = Option<bool>;

/// Octets that are locked alike, from the first to the last, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockPiece {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) kind: LockKind,
}

/// The locked octets of a file, in their order. No two segments overlap, and none touches one of the same kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Segments(Vec<OctetLock>);

/// The pieces of a range, without a gap, if `segments` are locked.
fn pieces(segments: &[OctetLock], first: u64, last: u64) -> Vec<LockPiece> {
    let mut pieces = Vec::new();
    let mut at = first;
    for segment in segments.iter().filter(|segment| segment.first <= last && segment.last >= first) {
        if segment.first > at {
            pieces.push(LockPiece { first: at, last: segment.first - 1, kind: None });
        }
        let end = segment.last.min(last);
        let kind = Some(segment.exclusive);
        pieces.push(LockPiece { first: segment.first.max(first), last: end, kind });
        if end == last {
            return pieces;
        }
        at = end + 1;
    }
    pieces.push(LockPiece { first: at, last, kind: None });
    pieces
}

impl Segments {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether no octet before `first` or behind `last` is locked.
    pub(super) fn lies_within(&self, first: u64, last: u64) -> bool {
        self.0.first().is_none_or(|segment| segment.first >= first)
            && self.0.last().is_none_or(|segment| segment.last <= last)
    }

    /// The octets of a wanted lock that are locked less than it asks for, as they are.
    pub(super) fn missing(&self, wanted: &OctetLock) -> Vec<LockPiece> {
        let mut pieces = pieces(&self.0, wanted.first, wanted.last);
        pieces.retain(|piece| piece.kind < Some(wanted.exclusive));
        pieces
    }

    /// The octets of a range that are locked more than `kept` asks for, as they have to become.
    pub(super) fn excess(&self, first: u64, last: u64, kept: &[OctetLock]) -> Vec<LockPiece> {
        let own = pieces(&self.0, first, last).into_iter().filter(|piece| piece.kind.is_some());
        let less = |own: LockPiece| {
            pieces(kept, own.first, own.last).into_iter().filter(move |piece| piece.kind < own.kind)
        };
        own.flat_map(less).collect()
    }

    /// Notes how octets are locked now.
    pub(super) fn set(&mut self, set: LockPiece) {
        let mut all = Vec::with_capacity(self.0.len() + 2);
        for segment in &self.0 {
            if segment.first < set.first {
                all.push(OctetLock { last: segment.last.min(set.first - 1), ..*segment });
            }
            if segment.last > set.last {
                all.push(OctetLock { first: segment.first.max(set.last + 1), ..*segment });
            }
        }
        if let Some(exclusive) = set.kind {
            all.push(OctetLock { first: set.first, last: set.last, exclusive });
        }
        all.sort_unstable_by_key(|segment| segment.first);
        self.0.clear();
        for segment in all {
            match self.0.last_mut() {
                Some(before)
                    if before.exclusive == segment.exclusive
                        && before.last.saturating_add(1) >= segment.first =>
                {
                    before.last = segment.last;
                }
                _ => self.0.push(segment),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Octets of the model; the last stands for all from there on.
    const OCTETS: usize = 10;

    type Model = [LockKind; OCTETS];

    fn end(at: usize) -> u64 {
        if at == OCTETS - 1 { u64::MAX } else { at as u64 }
    }

    fn octets(piece: &LockPiece) -> std::ops::RangeInclusive<usize> {
        piece.first as usize..=(piece.last as usize).min(OCTETS - 1)
    }

    fn segments(model: &Model) -> Segments {
        let mut segments = Segments::default();
        for (at, kind) in model.iter().enumerate() {
            segments.set(LockPiece { first: at as u64, last: end(at), kind: *kind });
        }
        segments
    }

    fn model(segments: &Segments) -> Model {
        let mut model = [None; OCTETS];
        for segment in &segments.0 {
            let OctetLock { first, last, exclusive } = *segment;
            let piece = LockPiece { first, last, kind: Some(exclusive) };
            octets(&piece).for_each(|at| model[at] = piece.kind);
        }
        model
    }

    fn piece() -> impl Strategy<Value = LockPiece> {
        (0..OCTETS, 0..OCTETS, any::<Option<bool>>()).prop_map(|(one, other, kind)| LockPiece {
            first: one.min(other) as u64,
            last: end(one.max(other)),
            kind,
        })
    }

    proptest! {
        /// Against a map of octets.
        #[test]
        fn segments_are_a_map_of_octets(sets in vec(piece(), 0..12), kept in vec(piece(), 0..4), range in piece()) {
            let (mut found, mut expected) = (Segments::default(), [None; OCTETS]);
            for set in &sets {
                found.set(*set);
                octets(set).for_each(|at| expected[at] = set.kind);
            }
            prop_assert_eq!(model(&found), expected);
            prop_assert_eq!(&found, &segments(&expected), "in as few segments as can be");

            let exclusive = range.kind == Some(true);
            let wanted = OctetLock { first: range.first, last: range.last, exclusive };
            let mut strengthened = found.clone();
            for missing in found.missing(&wanted) {
                prop_assert!(octets(&missing).all(|at| expected[at] == missing.kind));
                strengthened.set(LockPiece { kind: Some(exclusive), ..missing });
            }
            let mut stronger = expected;
            octets(&range).for_each(|at| stronger[at] = stronger[at].max(Some(exclusive)));
            prop_assert_eq!(model(&strengthened), stronger);

            let mut keeps = [None; OCTETS];
            for keep in &kept {
                octets(keep).for_each(|at| keeps[at] = keep.kind);
            }
            for excess in found.excess(range.first, range.last, &segments(&keeps).0) {
                found.set(excess);
            }
            octets(&range).for_each(|at| expected[at] = expected[at].min(keeps[at]));
            prop_assert_eq!(model(&found), expected);
        }
    }
}
